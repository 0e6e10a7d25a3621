/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What lies in the folder of a checkpoint, and the metadata of its files. */
#include "base/sort.h"
#include "checkpoint/open.h"
#include "checkpoint/others.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

bool fy_ckpt_is_safetensors(const char *name)
{
    return ends_with(name, ".safetensors");
}

/* Safetensors files and what describes them: copied along they would contradict the result. */
static bool is_ours(const char *name)
{
    return fy_ckpt_is_safetensors(name) || ends_with(name, ".safetensors.index.json") ||
           strcmp(name, FY_LAYOUT_NAME) == 0 || strncmp(name, ".ferry", 6) == 0;
}

static ferry_status add(ferry_checkpoint *checkpoint, const fy_ckpt_other *other, const char *name,
                        ferry_error *error)
{
    size_t length = strlen(name);
    char *copy = fy_alloc(length + 2, 1);
    if (copy == NULL ||
        !FY_RESERVE(checkpoint->others, checkpoint->other_capacity, checkpoint->n_others + 1)) {
        fy_free(copy);
        return fy_fail_no_memory(error, "the names of a folder");
    }
    memcpy(copy, name, length);
    strcpy(copy + length, other->is_folder ? "/" : "");
    checkpoint->others[checkpoint->n_others] = *other;
    checkpoint->others[checkpoint->n_others++].name = copy;
    return FERRY_OK;
}

/* Links are followed. A broken one counts where the file is wanted, so that it is missed. */
static ferry_status add_entry(ferry_checkpoint *checkpoint, const char *name, ferry_error *error)
{
    struct stat own, about;
    fy_ckpt_other other = {0};
    int at = checkpoint->folder_fd;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return FERRY_OK;
    }
    if (fstatat(at, name, &own, AT_SYMLINK_NOFOLLOW) != 0 || fstatat(at, name, &about, 0) != 0) {
        return is_ours(name) ? add(checkpoint, &other, name, error) : FERRY_OK;
    }
    other.bytes = (uint64_t)about.st_size;
    other.is_folder = S_ISDIR(about.st_mode);
    if (other.is_folder) {
        other.left_out = "a folder";
    } else if (!S_ISREG(about.st_mode)) {
        return FERRY_OK;
    } else if (S_ISLNK(own.st_mode) && !is_ours(name) && !fy_other_link_stays(at, name)) {
        other.left_out = "a link that leads out of the checkpoint";
    } else {
        other.left_out = fy_other_left_out(name);
    }
    return add(checkpoint, &other, name, error);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const fy_ckpt_other *)a)->name, ((const fy_ckpt_other *)b)->name);
}

static ferry_status list_open(ferry_checkpoint *checkpoint, DIR *folder, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(folder);
        if (entry != NULL) {
            status = add_entry(checkpoint, entry->d_name, error);
        } else if (errno != 0) {
            status = fy_fail(error, FERRY_ERR_IO, "%s: cannot be listed: %s", checkpoint->folder,
                             strerror(errno));
        }
    } while (status == FERRY_OK && entry != NULL);
    return status;
}

ferry_status fy_ckpt_list(ferry_checkpoint *checkpoint, ferry_error *error)
{
    int fd = openat(checkpoint->folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (folder == NULL) {
        ferry_status status = fy_fail(error, FERRY_ERR_IO, "%s: cannot be listed: %s",
                                      checkpoint->folder, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    ferry_status status = list_open(checkpoint, folder, error);
    closedir(folder);
    fy_sort(checkpoint->others, checkpoint->n_others, sizeof *checkpoint->others, compare_names);
    return status;
}

bool fy_ckpt_lists(const ferry_checkpoint *checkpoint, const char *name)
{
    /* A folder of this name has a slash behind it. */
    const fy_ckpt_other key = {.name = (char *)(uintptr_t)name};
    return checkpoint->n_others > 0 && bsearch(&key, checkpoint->others, checkpoint->n_others,
                                               sizeof *checkpoint->others, compare_names) != NULL;
}

static int compare_file(const void *name, const void *file)
{
    return strcmp(name, ((const fy_ckpt_file *)file)->name);
}

/* Parts of an index may have any name. Files of a logical checkpoint are sorted. */
static bool is_part(const ferry_checkpoint *checkpoint, const char *name)
{
    if (checkpoint->n_files == 0) {
        return false;
    }
    if (checkpoint->is_sharded) { /* in the order of the ranks, and all of one form */
        return fy_ckpt_is_safetensors(name) && strncmp(name, "rank-", 5) == 0;
    }
    return bsearch(name, checkpoint->files, checkpoint->n_files, sizeof *checkpoint->files,
                   compare_file) != NULL;
}

/* Neither its own files, nor what would contradict the result. */
static bool is_dropped(const ferry_checkpoint *checkpoint, const char *name)
{
    const char *slash = strrchr(checkpoint->path, '/');
    const char *index = slash == NULL ? checkpoint->path : slash + 1; /* if it is no folder */
    return !checkpoint->is_folder || is_part(checkpoint, name) ||
           (is_ours(name) && !fy_ckpt_is_safetensors(name)) ||
           (strcmp(name, index) == 0 && !checkpoint->is_sharded);
}

void fy_ckpt_keep_others(ferry_checkpoint *checkpoint)
{
    size_t kept = 0;
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        fy_ckpt_other *other = &checkpoint->others[i];
        if (is_dropped(checkpoint, other->name)) {
            fy_free(other->name);
            continue;
        }
        if (fy_ckpt_is_safetensors(other->name)) {
            other->left_out = "tensors that are not part of the checkpoint";
        }
        checkpoint->others[kept++] = *other;
    }
    checkpoint->n_others = kept;
}

/* ---- metadata ---- */

typedef struct item {
    fy_st_entry entry;
    size_t file;
} item;

static int compare_items(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int order = strcmp(x->entry.key, y->entry.key);
    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

static bool is_own_key(const char *key)
{
    return strncmp(key, "ferry.", 6) == 0;
}

static size_t gather(const ferry_checkpoint *checkpoint, item *items)
{
    size_t n = 0;
    for (size_t f = 0; f < checkpoint->n_files; f++) {
        const fy_st_header *header = &checkpoint->files[f].header;
        for (size_t i = 0; i < header->n_metadata; i++) {
            if (!is_own_key(header->metadata[i].key)) {
                if (items != NULL) {
                    items[n] = (item){header->metadata[i], f};
                }
                n++;
            }
        }
    }
    return n;
}

static ferry_status merge(ferry_checkpoint *checkpoint, const item *items, size_t n,
                          ferry_error *error)
{
    for (size_t i = 0; i < n; i++) {
        const item *it = &items[i];
        const item *last = i == 0 ? NULL : &items[i - 1];
        if (last == NULL || strcmp(last->entry.key, it->entry.key) != 0) {
            checkpoint->metadata[checkpoint->n_metadata++] = it->entry;
        } else if (strcmp(last->entry.value, it->entry.value) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: its metadata have \"%.200s\" for the key \"%.200s\", but those of "
                           "%s have \"%.200s\"",
                           checkpoint->files[it->file].path, it->entry.value, it->entry.key,
                           checkpoint->files[last->file].name, last->entry.value);
        }
    }
    return FERRY_OK;
}

ferry_status fy_ckpt_merge_metadata(ferry_checkpoint *checkpoint, ferry_error *error)
{
    size_t n = gather(checkpoint, NULL);
    item *items = fy_alloc(n, sizeof *items);
    ferry_status status = FERRY_OK;
    checkpoint->metadata = fy_alloc(n, sizeof *checkpoint->metadata);
    if (items == NULL || checkpoint->metadata == NULL) {
        status = fy_fail_no_memory(error, "the metadata of a checkpoint");
        goto out;
    }
    checkpoint->metadata_capacity = n;
    gather(checkpoint, items);
    fy_sort(items, n, sizeof *items, compare_items);
    status = merge(checkpoint, items, n, error);
out:
    fy_free(items);
    return status;
}
