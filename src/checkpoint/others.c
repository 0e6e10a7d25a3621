/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/others.h"

#include "base/alloc.h"
#include "base/glob.h"
#include "host/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is copied ---- */

/* As the packages that write them name them. Optimizers, tokenizers and scripts are none of them.
 */
static const char *const weight_names[] = {
    "pytorch_model*.bin",
    "pytorch_model*.bin.index.json",
    "consolidated*.pt",
    "consolidated*.pth",
    "model*.pt",
    "model*.pth",
    "*.gguf",
    "*.ggml",
    "*.onnx",
    "*.onnx_data",
    "tf_model*.h5",
    "tf_model*.h5.index.json",
    "model*.ckpt",
    "model.ckpt*",
    "flax_model*.msgpack",
    "flax_model*.msgpack.index.json",
    "rust_model.ot",
    "*.nemo",
};

const char *fy_other_left_out(const char *name)
{
    for (size_t i = 0; i < sizeof weight_names / sizeof weight_names[0]; i++) {
        const char *pattern = weight_names[i];
        if (fy_glob_match(pattern, strlen(pattern), name, strlen(name))) {
            return "weights in another format";
        }
    }
    return NULL;
}

/* ---- links ---- */

/* Where what is open lies, without any link in it; false where the kernel does not say. */
static bool find_real(int fd, char path[PATH_MAX])
{
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, PATH_MAX - 1);
    if (n <= 0) {
        return false;
    }
    path[n] = '\0';
    return path[0] == '/';
}

static bool lies_below(const char *path, const char *folder, size_t length)
{
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/*
 * A snapshot in the hub's cache is MODEL/snapshots/REVISION, of links to MODEL/blobs. The name is
 * put together here: a "blobs" that is itself a link elsewhere is not followed.
 */
static bool lies_in_blobs(const char *path, const char *folder)
{
    char blobs[PATH_MAX + 8];
    size_t length = strlen(folder);
    for (int i = 0; i < 2; i++) {
        while (length > 0 && folder[length - 1] != '/') {
            length--;
        }
        if (length == 0) {
            return false;
        }
        length--;
    }
    snprintf(blobs, sizeof blobs, "%.*s/blobs", (int)length, folder);
    return lies_below(path, blobs, strlen(blobs));
}

static bool stays(int folder_fd, int fd)
{
    char folder[PATH_MAX], path[PATH_MAX];
    return find_real(folder_fd, folder) && find_real(fd, path) &&
           (lies_below(path, folder, strlen(folder)) || lies_in_blobs(path, folder));
}

bool fy_other_link_stays(int folder_fd, const char *name)
{
    int fd = openat(folder_fd, name, O_PATH | O_CLOEXEC);
    bool is = fd >= 0 && stays(folder_fd, fd);
    if (fd >= 0) {
        close(fd);
    }
    return is;
}

ferry_status fy_other_open(int folder_fd, const char *name, const char *path, int *descriptor_out,
                           ferry_error *error)
{
    struct stat about;
    *descriptor_out = -1;
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    /* What was opened is looked at, not what the name led to before. */
    if (fd < 0 && errno == ELOOP) {
        fd = openat(folder_fd, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && !stays(folder_fd, fd)) {
            close(fd);
            return FERRY_OK;
        }
    }
    if (fd < 0) {
        return fy_fail_errno(path, "cannot be opened", errno, error);
    }
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return FERRY_OK;
    }
    *descriptor_out = fd;
    return FERRY_OK;
}

/* ---- the type in config.json ---- */

enum { MOST_DEPTH = 64 };

/* A text as it stands, from its first quote to behind its last. */
typedef struct quoted {
    const char *begin, *end;
} quoted;

static bool is_text(quoted q, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(q.end - q.begin) == n + 2 && memcmp(q.begin + 1, text, n) == 0;
}

static bool ends_in(quoted q, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(q.end - q.begin) >= n + 2 && memcmp(q.end - 1 - n, text, n) == 0;
}

static quoted take_quoted(const char *at, const char *end)
{
    quoted q = {.begin = at};
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\' && at + 1 < end;
    }
    q.end = at < end ? at + 1 : end;
    return q;
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && memchr(" \t\r\n", *at, 4) != NULL) {
        at++;
    }
    return at;
}

static bool names_float(quoted q)
{
    static const char *const names[] = {"float64",       "float32",     "float16",
                                        "bfloat16",      "float",       "half",
                                        "float8_e4m3fn", "float8_e5m2", "double"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char torch[32];
        snprintf(torch, sizeof torch, "torch.%s", names[i]);
        if (is_text(q, names[i]) || is_text(q, torch)) {
            return true;
        }
    }
    return false;
}

/* Where a reader of a JSON text stands. */
typedef struct scan {
    const char *at, *end;
    quoted key;                /* of the value that follows; empty: none */
    bool is_model[MOST_DEPTH]; /* the object describes a model, or a part of one */
    int depth;
} scan;

static void enter(scan *s)
{
    bool is_part = ends_in(s->key, "_config") && !is_text(s->key, "quantization_config");
    bool inside = s->depth == 0 || (s->depth < MOST_DEPTH && s->is_model[s->depth - 1] && is_part);
    if (s->depth < MOST_DEPTH) {
        s->is_model[s->depth] = inside && *s->at == '{';
    }
    s->depth++;
}

/* The next value that is to be another; false: there is none. */
static bool find_dtype(scan *s, quoted *value_out)
{
    while (s->at < s->end) {
        if (*s->at == '{' || *s->at == '[') {
            enter(s);
        } else if (*s->at == '}' || *s->at == ']') {
            s->depth -= s->depth > 0;
        } else if (*s->at == '"') {
            quoted q = take_quoted(s->at, s->end);
            bool holds = s->key.begin != NULL && s->depth > 0 && s->depth <= MOST_DEPTH &&
                         s->is_model[s->depth - 1] &&
                         (is_text(s->key, "torch_dtype") || is_text(s->key, "dtype"));
            const char *next = skip_space(q.end, s->end);
            bool is_key = next < s->end && *next == ':';
            s->key = is_key ? q : (quoted){NULL, NULL};
            s->at = is_key ? next + 1 : q.end;
            if (holds && !is_key && names_float(q)) {
                *value_out = q;
                return true;
            }
            continue;
        }
        if (memchr(" \t\r\n", *s->at, 4) == NULL) {
            s->key = (quoted){NULL, NULL};
        }
        s->at++;
    }
    return false;
}

ferry_status fy_config_set_dtype(const char *text, size_t length, const char *dtype,
                                 char **text_out, size_t *length_out, ferry_error *error)
{
    size_t n_values = 0, used = 0;
    quoted value;
    bool differs = false;
    scan s = {.at = text, .end = text + length};
    *text_out = NULL;
    while (find_dtype(&s, &value)) {
        n_values++;
        differs = differs || !is_text(value, dtype);
    }
    if (!differs) {
        return FERRY_OK;
    }
    char *changed = fy_alloc(length + n_values * (strlen(dtype) + 2) + 1, 1);
    FY_TRY(fy_check_memory(changed != NULL, "a config.json", error));
    const char *copied = text;
    s = (scan){.at = text, .end = text + length};
    while (find_dtype(&s, &value)) {
        memcpy(changed + used, copied, (size_t)(value.begin - copied));
        used += (size_t)(value.begin - copied);
        used += (size_t)sprintf(changed + used, "\"%s\"", dtype);
        copied = value.end;
    }
    memcpy(changed + used, copied, (size_t)(text + length - copied));
    *length_out = used + (size_t)(text + length - copied);
    *text_out = changed;
    return FERRY_OK;
}
