/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/onto.h"

#include "base/checked.h"
#include "checkpoint/open.h"
#include "host/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 32 << 10 };      /* is compared, and written where it differs */
#define LINK_NAME ".ferry-link" /* until it takes the place of the file that was made for it */

typedef struct onto_file {
    pthread_mutex_t lock; /* of what is being made its own */
    bool has_lock;
    bool has_base;  /* the old file begins its data where the new one does */
    bool is_cloned; /* it shares the old one's blocks */
    bool is_linked; /* it is the old one */
    _Atomic bool is_own;
    _Atomic uint64_t kept; /* bytes that were equal */
} onto_file;

struct fy_onto {
    ferry_checkpoint *old;
    fy_files *in;
    fy_files *out; /* the caller's */
    onto_file *files;
    size_t n;
};

/*
 * Is it the same?
 */

static ferry_status misfit(const char *path, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: cannot be written onto: %s; give an earlier result of the same target, or "
                   "leave --onto out",
                   path, what);
}

static ferry_status check_file(const ferry_checkpoint *old, const fy_ckpt_file *file,
                               ferry_error *error)
{
    struct stat about;
    if (fstatat(old->folder_fd, file->name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return fy_fail_errno(file->path, "cannot be examined", errno, error);
    }
    return S_ISREG(about.st_mode) ? FERRY_OK : misfit(file->path, "it is a link", error);
}

static bool has_shape(const fy_st_tensor *its, const fy_form_tensor *wanted)
{
    return its->n_dims == wanted->n_dims &&
           (wanted->n_dims == 0 ||
            memcmp(its->shape, wanted->shape, wanted->n_dims * sizeof *its->shape) == 0);
}

static ferry_status check_tensors(const fy_ckpt_file *file, const fy_form *form, ferry_error *error)
{
    for (size_t i = 0; i < form->n_tensors; i++) {
        const fy_form_tensor *wanted = &form->tensors[i];
        const fy_st_tensor *its = fy_st_find(&file->header, wanted->name);
        const char *what = its == NULL                                   ? "is missing there"
                           : strcmp(its->dtype_text, wanted->dtype_text) ? "is of another dtype"
                           : !has_shape(its, wanted)                     ? "has another shape"
                           : its->begin != wanted->begin                 ? "lies elsewhere"
                                                                         : NULL;
        if (what != NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: cannot be written onto: \"%s\" %s; give an earlier result of the "
                           "same target, or leave --onto out",
                           file->path, wanted->name, what);
        }
    }
    return file->header.n_tensors == form->n_tensors
               ? FERRY_OK
               : misfit(file->path, "it has tensors that the result has not", error);
}

static ferry_status check_files(fy_onto *onto, fy_onto_target_fn target, const void *context,
                                ferry_error *error)
{
    const ferry_checkpoint *old = onto->old;
    if (old->n_files != onto->n) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: cannot be written onto: it has %zu files of tensors, and the result "
                       "%zu; give an earlier result of the same target, or leave --onto out",
                       old->path, old->n_files, onto->n);
    }
    for (size_t i = 0; i < onto->n; i++) {
        const fy_ckpt_file *file = &old->files[i];
        fy_onto_target its = target(context, i);
        if (strcmp(file->name, its.name) != 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s: cannot be written onto: the result has %s in its place; give an "
                           "earlier result of the same target, or leave --onto out",
                           file->path, its.name);
        }
        FY_TRY(check_file(old, file, error));
        FY_TRY(check_tensors(file, its.form, error));
        /* Other metadata may make another header: then nothing lies where it lay. */
        onto->files[i].has_base = file->header.data_begin == its.form->header_bytes &&
                                  file->header.data_bytes == its.form->data_bytes;
    }
    return FERRY_OK;
}

/*
 * Its life
 */

static ferry_status make_files(fy_onto *onto, ferry_error *error)
{
    onto->files = fy_alloc_zeroed(onto->n, sizeof *onto->files);
    FY_TRY(fy_check_memory(onto->files != NULL, "the files of an older result", error));
    for (size_t i = 0; i < onto->n; i++) {
        onto->files[i].has_lock = pthread_mutex_init(&onto->files[i].lock, NULL) == 0;
        FY_TRY(fy_check_memory(onto->files[i].has_lock, "the files of an older result", error));
    }
    return FERRY_OK;
}

ferry_status fy_onto_open(const char *path, bool is_sharded, size_t n_files,
                          fy_onto_target_fn target, const void *context, fy_pace *pace,
                          fy_onto **onto_out, ferry_error *error)
{
    fy_onto *onto = fy_alloc_zeroed(1, sizeof *onto);
    FY_TRY(fy_check_memory(onto != NULL, "an older result", error));
    onto->n = n_files;
    ferry_status status = ferry_checkpoint_open(path, &onto->old, error);
    if (status == FERRY_OK && onto->old->is_sharded != is_sharded) {
        status = misfit(path,
                        is_sharded ? "it is a logical checkpoint, and the result is sharded"
                                   : "it is a sharded checkpoint, and the result is logical",
                        error);
    }
    FY_THEN(status, make_files(onto, error));
    FY_THEN(status, check_files(onto, target, context, error));
    FY_THEN(status, fy_files_of(onto->old, &onto->in, error));
    if (status != FERRY_OK) {
        fy_onto_close(onto);
        return status;
    }
    fy_files_allow_links(onto->in); /* such as other results made onto it get at their end */
    fy_files_set_pace(onto->in, pace);
    *onto_out = onto;
    return FERRY_OK;
}

void fy_onto_close(fy_onto *onto)
{
    if (onto == NULL) {
        return;
    }
    for (size_t i = 0; onto->files != NULL && i < onto->n && onto->files[i].has_lock; i++) {
        pthread_mutex_destroy(&onto->files[i].lock);
    }
    fy_files_destroy(onto->in);
    fy_free(onto->files);
    ferry_checkpoint_destroy(onto->old);
    fy_free(onto);
}

/*
 * Writing
 */

/* Where it cannot, for whatever reason, bytes are copied when they are needed. */
static ferry_status clone_file(fy_onto *onto, size_t file, ferry_error *error)
{
    int from, to;
    FY_TRY(fy_files_get(onto->in, file, &from, error));
    ferry_status status = fy_files_get(onto->out, file, &to, error);
    if (status == FERRY_OK) {
        onto->files[file].is_cloned = ioctl(to, FICLONE, from) == 0;
        fy_files_put(onto->out, file);
    }
    fy_files_put(onto->in, file);
    return status;
}

ferry_status fy_onto_begin(fy_onto *onto, fy_files *out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    onto->out = out;
    for (size_t i = 0; i < onto->n && status == FERRY_OK; i++) {
        if (onto->files[i].has_base) {
            status = clone_file(onto, i, error);
        }
        atomic_store(&onto->files[i].is_own, !onto->files[i].has_base || onto->files[i].is_cloned);
    }
    return status;
}

static ferry_status copy_whole(fy_onto *onto, size_t file, ferry_error *error)
{
    uint64_t size = onto->old->files[file].bytes;
    bool copied = false;
    char piece[PIECE];
    ferry_status status =
        fy_files_copy(onto->in, file, 0, onto->out, file, 0, size, &copied, error);
    for (uint64_t at = 0; !copied && status == FERRY_OK && at < size; at += PIECE) {
        uint64_t n = fy_min(size - at, PIECE);
        status = fy_files_read(onto->in, file, at, piece, n, error);
        FY_THEN(status, fy_files_write(onto->out, file, at, piece, n, error));
    }
    return status;
}

/* Before the first byte that differs: what was equal until then is in the old file alone. */
static ferry_status make_own(fy_onto *onto, size_t file, ferry_error *error)
{
    onto_file *its = &onto->files[file];
    ferry_status status = FERRY_OK;
    if (atomic_load(&its->is_own)) {
        return FERRY_OK;
    }
    pthread_mutex_lock(&its->lock);
    if (!atomic_load(&its->is_own)) {
        status = copy_whole(onto, file, error);
        atomic_store(&its->is_own, status == FERRY_OK);
    }
    pthread_mutex_unlock(&its->lock);
    return status;
}

ferry_status fy_onto_write(fy_onto *onto, size_t file, uint64_t offset, const void *bytes,
                           uint64_t n_bytes, uint64_t *written_out, ferry_error *error)
{
    onto_file *its = &onto->files[file];
    const char *from = bytes;
    char old[PIECE];
    uint64_t written = 0;
    if (!its->has_base) {
        *written_out = n_bytes;
        return fy_files_write(onto->out, file, offset, bytes, n_bytes, error);
    }
    for (uint64_t at = 0; at < n_bytes; at += PIECE) {
        uint64_t n = fy_min(n_bytes - at, PIECE);
        FY_TRY(fy_files_read(onto->in, file, offset + at, old, n, error));
        if (memcmp(old, from + at, (size_t)n) == 0) {
            atomic_fetch_add(&its->kept, n);
            continue;
        }
        FY_TRY(make_own(onto, file, error));
        FY_TRY(fy_files_write(onto->out, file, offset + at, from + at, n, error));
        written += n;
    }
    *written_out = written;
    return FERRY_OK;
}

ferry_status fy_onto_read(fy_onto *onto, size_t file, uint64_t offset, void *bytes,
                          uint64_t n_bytes, ferry_error *error)
{
    return fy_files_read(fy_onto_is_own(onto, file) ? onto->out : onto->in, file, offset, bytes,
                         n_bytes, error);
}

bool fy_onto_is_own(const fy_onto *onto, size_t file)
{
    return atomic_load(&onto->files[file].is_own);
}

/*
 * The end
 */

static bool is_as_compared(const fy_ckpt_file *file, const struct stat *about)
{
    return about->st_ino == file->inode && (uint64_t)about->st_size == file->bytes &&
           about->st_mtim.tv_sec == file->changed_s && about->st_mtim.tv_nsec == file->changed_ns;
}

/* *linked_out is false where the file system does not allow it, or the file is another user's. */
static ferry_status link_file(fy_onto *onto, size_t file, int folder_fd, bool *linked_out,
                              ferry_error *error)
{
    const fy_ckpt_file *old = &onto->old->files[file];
    struct stat about;
    int descriptor;
    FY_TRY(fy_files_get(onto->in, file, &descriptor, error));
    bool can = fy_file_sync(descriptor) == 0 && /* whoever copied it may not have done that */
               fstat(descriptor, &about) == 0 && about.st_uid == geteuid();
    fy_files_put(onto->in, file);
    *linked_out = can && linkat(onto->old->folder_fd, old->name, folder_fd, LINK_NAME, 0) == 0;
    if (!*linked_out) {
        return FERRY_OK;
    }
    if (fstatat(folder_fd, LINK_NAME, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
        !is_as_compared(old, &about)) {
        return fy_fail(error, FERRY_ERR_IO, "%s: was changed while it was compared; run again",
                       old->path);
    }
    return renameat(folder_fd, LINK_NAME, folder_fd, old->name) == 0
               ? FERRY_OK
               : fy_fail_errno(fy_files_path(onto->out, file), "cannot be written", errno, error);
}

/* What cannot be the old file takes a copy of it. */
static ferry_status finish_file(fy_onto *onto, size_t file, int folder_fd, ferry_error *error)
{
    onto_file *its = &onto->files[file];
    int descriptor;
    FY_TRY(link_file(onto, file, folder_fd, &its->is_linked, error));
    if (its->is_linked) {
        return FERRY_OK;
    }
    FY_TRY(make_own(onto, file, error));
    FY_TRY(fy_files_get(onto->out, file, &descriptor, error));
    ferry_status status =
        fy_file_sync(descriptor) == 0
            ? FERRY_OK
            : fy_fail_errno(fy_files_path(onto->out, file), "cannot be written", errno, error);
    fy_files_put(onto->out, file);
    return status;
}

ferry_status fy_onto_finish(fy_onto *onto, int folder_fd, ferry_error *error)
{
    ferry_status status = fy_files_check_unchanged(onto->in, error);
    for (size_t i = 0; i < onto->n && status == FERRY_OK; i++) {
        if (!fy_onto_is_own(onto, i)) {
            status = finish_file(onto, i, folder_fd, error);
        }
    }
    return status;
}

void fy_onto_count(const fy_onto *onto, uint64_t *kept_bytes_out, uint64_t *n_kept_files_out)
{
    *kept_bytes_out = *n_kept_files_out = 0;
    for (size_t i = 0; i < onto->n; i++) {
        const onto_file *its = &onto->files[i];
        *kept_bytes_out += its->is_cloned || its->is_linked ? atomic_load(&its->kept) : 0;
        *n_kept_files_out += its->is_linked;
    }
}
