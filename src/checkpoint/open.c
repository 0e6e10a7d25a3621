/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which kind of checkpoint a path is, and what all kinds have in common. */
#include "checkpoint/open.h"
#include "checkpoint/boxed.h"

#include "base/hash.h"
#include "checkpoint/crew.h"
#include "checkpoint/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ferry_checkpoint_destroy(ferry_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        fy_free(checkpoint->files[i].path);
        fy_st_cleanup(&checkpoint->files[i].header);
    }
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        fy_free(checkpoint->others[i].name);
    }
    if (checkpoint->folder_fd >= 0) {
        close(checkpoint->folder_fd);
    }
    fy_free(checkpoint->files);
    fy_free(checkpoint->others);
    fy_free(checkpoint->tensors);
    fy_free(checkpoint->metadata);
    fy_index_cleanup(&checkpoint->names);
    fy_arena_cleanup(&checkpoint->arena);
    json_decref(checkpoint->layout);
    fy_boxed_destroy(checkpoint->boxed);
    fy_free(checkpoint->layout_path);
    fy_free(checkpoint->path);
    fy_free(checkpoint->folder);
    fy_free(checkpoint);
}

static uint64_t hash_name(const char *name)
{
    return fy_hash64(name, strlen(name));
}

uint32_t fy_ckpt_find(const ferry_checkpoint *checkpoint, const char *name)
{
    fy_index_cursor c = fy_index_first(&checkpoint->names, hash_name(name));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&checkpoint->names, &c)) {
        if (strcmp(checkpoint->tensors[c.value].name, name) == 0) {
            break;
        }
    }
    return c.value;
}

/* ---- filling one ---- */

char *fy_ckpt_join(const char *folder, const char *file)
{
    size_t bytes = strlen(folder) + strlen(file) + 2;
    char *path = fy_alloc(bytes, 1);
    if (path != NULL) {
        snprintf(path, bytes, "%s/%s", folder, file);
    }
    return path;
}

/* How far opening is; FERRY_ERR_STOPPED if that shall end. */
static ferry_status tell(const ferry_checkpoint *checkpoint, const char *phase, ferry_error *error)
{
    ferry_work_progress progress = {.phase = phase,
                                    .seconds = fy_seconds_now() - checkpoint->began,
                                    .n_done_files = checkpoint->n_files,
                                    .n_total_files = checkpoint->n_expected};
    return checkpoint->progress == NULL ||
                   checkpoint->progress(checkpoint->progress_context, &progress)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
}

ferry_status fy_ckpt_add_file(ferry_checkpoint *checkpoint, char *path, uint32_t rank,
                              ferry_error *error)
{
    struct stat about;
    FY_TRY(fy_check_memory(path != NULL, "a file name", error));
    const char *slash = strrchr(path, '/');
    fy_ckpt_file file = {.path = path, .name = slash == NULL ? path : slash + 1, .rank = rank};
    ferry_status status =
        fy_st_read_at(checkpoint->folder_fd, file.name, path, &file.header, &about, error);
    if (status == FERRY_OK &&
        !FY_RESERVE(checkpoint->files, checkpoint->file_capacity, checkpoint->n_files + 1)) {
        fy_st_cleanup(&file.header);
        status = fy_fail_no_memory(error, "the files of a checkpoint");
    }
    if (status != FERRY_OK) {
        fy_free(path);
        return status;
    }
    file.bytes = (uint64_t)about.st_size;
    file.changed_s = about.st_mtim.tv_sec;
    file.changed_ns = about.st_mtim.tv_nsec;
    file.touched_s = about.st_ctim.tv_sec;
    file.touched_ns = about.st_ctim.tv_nsec;
    file.inode = (uint64_t)about.st_ino;

    checkpoint->files[checkpoint->n_files++] = file;
    return tell(checkpoint, "opening", error);
}

ferry_status fy_ckpt_reserve(ferry_checkpoint *checkpoint, size_t n_more, ferry_error *error)
{
    size_t n = checkpoint->n_tensors + n_more;
    if (n >= FY_INDEX_NONE) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%s: has %zu tensors or more, beyond the limit",
                       checkpoint->path, n);
    }
    FY_TRY(FY_GROW(checkpoint->tensors, checkpoint->tensor_capacity, n,
                   "the tensors of a checkpoint", error));
    return FERRY_OK;
}

ferry_status fy_ckpt_add_tensor(ferry_checkpoint *checkpoint, const fy_ckpt_tensor *tensor,
                                uint32_t *twin_out, ferry_error *error)
{
    *twin_out = fy_ckpt_find(checkpoint, tensor->name);
    if (*twin_out != FY_INDEX_NONE) {
        return FERRY_OK;
    }
    if (!fy_index_insert(&checkpoint->names, hash_name(tensor->name),
                         (uint32_t)checkpoint->n_tensors)) {
        return fy_fail_no_memory(error, "the tensors of a checkpoint");
    }
    checkpoint->tensors[checkpoint->n_tensors++] = *tensor;
    return FERRY_OK;
}

/* ---- which kind ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static ferry_status open_folder(ferry_checkpoint *checkpoint, ferry_error *error)
{
    FY_TRY(fy_ckpt_list(checkpoint, error));
    if (fy_ckpt_lists(checkpoint, FY_LAYOUT_NAME)) {
        return fy_ckpt_open_sharded(checkpoint, error);
    }
    if (!fy_ckpt_lists(checkpoint, FY_INDEX_NAME)) {
        bool is_single = fy_ckpt_lists(checkpoint, FY_SINGLE_NAME);
        return fy_ckpt_open_all(checkpoint, is_single ? FY_SINGLE_NAME : NULL, error);
    }
    char *path = fy_ckpt_join(checkpoint->folder, FY_INDEX_NAME);
    ferry_status status = path == NULL ? fy_fail_no_memory(error, "a file name")
                                       : fy_ckpt_open_index(checkpoint, path, error);
    fy_free(path);
    return status;
}

static ferry_status open_any(ferry_checkpoint *checkpoint, bool is_folder, ferry_error *error)
{
    ferry_status status;
    bool is_index = !is_folder && ends_with(checkpoint->path, ".json");
    checkpoint->is_folder = is_folder || is_index;
    if (is_folder) {
        status = open_folder(checkpoint, error);
    } else if (is_index) {
        status = fy_ckpt_list(checkpoint, error);
        FY_THEN(status, fy_ckpt_open_index(checkpoint, checkpoint->path, error));
    } else {
        status = fy_ckpt_open_file(checkpoint, error);
    }
    FY_THEN(status, fy_ckpt_merge_metadata(checkpoint, error));
    fy_ckpt_keep_others(checkpoint);
    return status;
}

/* path without slashes at its end, and the folder that it is or lies in. */
static ferry_status set_paths(ferry_checkpoint *checkpoint, const char *path, bool is_folder,
                              ferry_error *error)
{
    checkpoint->path = fy_strdup(path);
    checkpoint->folder = fy_strdup(path[0] == '\0' ? "." : path);
    if (checkpoint->path == NULL || checkpoint->folder == NULL) {
        return fy_fail_no_memory(error, "a file name");
    }
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) {
        checkpoint->path[n - 1] = '\0';
        checkpoint->folder[n - 1] = '\0';
    }
    if (!is_folder) {
        char *slash = strrchr(checkpoint->folder, '/');
        if (slash == NULL) {
            memcpy(checkpoint->folder, ".", 2);
        } else {
            slash[slash == checkpoint->folder] = '\0'; /* "/" stays */
        }
    }
    /* From here on the path is only for sentences. */
    checkpoint->folder_fd = open(checkpoint->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return checkpoint->folder_fd >= 0 ? FERRY_OK
                                      : fy_fail(error, FERRY_ERR_IO, "%s: cannot be opened: %s",
                                                checkpoint->folder, strerror(errno));
}

ferry_status ferry_checkpoint_open(const char *path, ferry_checkpoint **checkpoint_out,
                                   ferry_error *error)
{
    return ferry_checkpoint_open_watched(path, NULL, NULL, checkpoint_out, error);
}

ferry_status ferry_checkpoint_open_watched(const char *path, ferry_work_progress_fn progress,
                                           void *context, ferry_checkpoint **checkpoint_out,
                                           ferry_error *error)
{
    struct stat about;
    FY_TRY(fy_check_use(path != NULL && checkpoint_out != NULL,
                        "ferry_checkpoint_open needs a path and a place for the result", error));
    if (stat(path, &about) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    ferry_checkpoint *checkpoint = fy_alloc_zeroed(1, sizeof *checkpoint);
    FY_TRY(fy_check_memory(checkpoint != NULL, "a checkpoint", error));
    checkpoint->folder_fd = -1;
    checkpoint->progress = progress;
    checkpoint->progress_context = context;
    checkpoint->began = fy_seconds_now();
    bool is_folder = S_ISDIR(about.st_mode);
    ferry_status status = set_paths(checkpoint, path, is_folder, error);
    FY_THEN(status, open_any(checkpoint, is_folder, error));
    if (status == FERRY_OK && checkpoint->is_sharded) {
        status = tell(checkpoint, "checking the layout", error);
    }
    if (status == FERRY_OK && checkpoint->is_sharded) {
        status = fy_ckpt_check_shards(checkpoint, error);
    }
    if (status == FERRY_OK) {
        checkpoint->progress = NULL; /* the caller's, who may be gone */
        *checkpoint_out = checkpoint;
        checkpoint = NULL;
    }
    ferry_checkpoint_destroy(checkpoint);
    return status;
}
