/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a reshard would do. */
#include "checkpoint/reshard.h"

#include "base/checked.h"
#include "base/print.h"
#include "checkpoint/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

ferry_status ferry_reshard_get_totals(const ferry_reshard *reshard,
                                      ferry_reshard_totals *totals_out, ferry_error *error)
{
    FY_TRY(fy_check_use(reshard != NULL, "ferry_reshard_get_totals needs a reshard", error));
    return fy_copy_out(&reshard->totals, sizeof reshard->totals, totals_out, "ferry_reshard_totals",
                       error);
}

ferry_status ferry_reshard_file_at(const ferry_reshard *reshard, size_t index,
                                   ferry_checkpoint_file *file_out, ferry_error *error)
{
    if (reshard == NULL || index >= reshard->n_out) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_reshard_file_at needs a reshard and one of its files, not "
                       "number %zu",
                       index);
    }
    const fy_out_file *file = &reshard->out[index];
    ferry_checkpoint_file about = {.struct_size = sizeof about,
                                   .name = file->name,
                                   .rank = file->rank,
                                   .bytes = file->form.header_bytes + file->form.data_bytes,
                                   .n_tensors = file->form.n_tensors};
    return fy_copy_out(&about, sizeof about, file_out, "ferry_checkpoint_file", error);
}

ferry_status ferry_reshard_other_at(const ferry_reshard *reshard, size_t index,
                                    ferry_reshard_other *other_out, ferry_error *error)
{
    if (reshard == NULL || index >= reshard->from->n_others) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_reshard_other_at needs a reshard and one of the other files "
                       "of its source, not number %zu",
                       index);
    }
    const fy_ckpt_other *other = &reshard->from->others[index];
    bool is_config = strcmp(other->name, FY_CONFIG_NAME) == 0;
    ferry_reshard_other about = {
        .struct_size = sizeof about,
        .name = other->name,
        .bytes = other->bytes,
        .left_out = other->left_out,
        .torch_dtype =
            is_config && reshard->config != NULL ? fy_reshard_torch_dtype(reshard) : NULL,
        .quantization_config = !is_config                    ? NULL
                               : reshard->drops_quantization ? ""
                                                             : reshard->quantization,
    };
    return fy_copy_out(&about, sizeof about, other_out, "ferry_reshard_other", error);
}

const char *ferry_reshard_replicated_at(const ferry_reshard *reshard, size_t index)
{
    return reshard == NULL ? NULL : json_string_value(json_array_get(reshard->replicated, index));
}

const char *ferry_reshard_left_out_at(const ferry_reshard *reshard, size_t index,
                                      const char **why_out)
{
    const json_t *pair = reshard == NULL ? NULL : json_array_get(reshard->left_out, index);
    if (pair != NULL && why_out != NULL) {
        *why_out = json_string_value(json_array_get(pair, 1));
    }
    return json_string_value(json_array_get(pair, 0));
}

ferry_status ferry_reshard_change_at(const ferry_reshard *reshard, size_t index,
                                     ferry_reshard_change *change_out, ferry_error *error)
{
    if (reshard == NULL || index >= reshard->n_changed) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_reshard_change_at needs a reshard and one of the tensors that it "
                       "quantizes or dequantizes, not number %zu",
                       index);
    }
    uint32_t tensor = reshard->changed[index];
    const fy_tensor *tensors = reshard->job.problem.tensors;
    const fy_change *change = &reshard->job.changes[tensor];
    ferry_reshard_change about = {
        .struct_size = sizeof about,
        .tensor = tensors[tensor].name,
        .scales = tensors[change->scales].name,
        .from = tensors[tensor].dtype,
        .to = change->dtype,
        .block = {change->format.block[0], change->format.block[1]},
    };
    return fy_copy_out(&about, sizeof about, change_out, "ferry_reshard_change", error);
}

ferry_status ferry_reshard_check_target(const char *path, ferry_error *error)
{
    return path == NULL
               ? fy_fail(error, FERRY_ERR_MISUSE, "ferry_reshard_check_target needs a path")
               : fy_folder_check(path, error);
}

/* ---- how much it takes ---- */

enum { BYTES_TEXT_BYTES = 32 };

/* "2.00 GiB" */
static const char *format_bytes(uint64_t n_bytes, char text[BYTES_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)n_bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        value /= 1024;
    }
    fy_print(text, BYTES_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

ferry_status fy_reshard_check_space(const ferry_reshard *reshard, int parent_fd, const char *path,
                                    const char *parent, ferry_error *error)
{
    struct statfs about;
    uint64_t needed, here;
    char text[3][BYTES_TEXT_BYTES];
    if (!fy_add(reshard->totals.file_bytes, reshard->totals.other_bytes, &needed)) {
        needed = UINT64_MAX;
    }
    if (fstatfs(parent_fd, &about) != 0 || about.f_blocks == 0 ||
        !fy_mul(about.f_bavail, (uint64_t)about.f_bsize, &here) || here >= needed) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_IO,
                   "%s: needs %s, but the disk has only %s free, %s too little; %s is as it was",
                   path, format_bytes(needed, text[0]), format_bytes(here, text[1]),
                   format_bytes(needed - here, text[2]), parent);
}

/* ---- how long it takes ---- */

enum { TRY_BYTES = 64 << 20, TRY_PIECE = 1 << 20 };

/* The folder that a path lies in, for fy_free. */
static char *parent_of(const char *path)
{
    char *parent = fy_strdup(path);
    if (parent == NULL) {
        return NULL;
    }
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/') {
        parent[--length] = '\0';
    }
    char *slash = strrchr(parent, '/');
    if (slash == NULL) {
        strcpy(parent, length == 0 ? "" : ".");
    } else {
        slash[slash == parent ? 1 : 0] = '\0';
    }
    return parent;
}

/* Seconds for TRY_BYTES, with sync, into a file that has no name. */
static ferry_status try_disk(const char *parent, double *seconds_out, ferry_error *error)
{
    char *piece = fy_alloc_zeroed(TRY_PIECE, 1);
    int descriptor = open(parent, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    int number = descriptor < 0 ? errno : 0;
    if (piece == NULL || number != 0) {
        fy_free(piece);
        return number == 0 ? fy_fail_no_memory(error, "a buffer")
                           : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                                     "%s: its file system cannot be measured: %s", parent,
                                     strerror(number));
    }
    memset(piece, 0x5a, TRY_PIECE);
    double began = fy_seconds_now();
    ssize_t now = 1;
    for (size_t done = 0; done < TRY_BYTES && now > 0; done += (size_t)now) {
        now = write(descriptor, piece, TRY_PIECE);
    }
    bool failed = now <= 0 || fsync(descriptor) != 0;
    *seconds_out = fy_seconds_now() - began;
    close(descriptor);
    fy_free(piece);
    return failed ? fy_fail(error, FERRY_ERR_UNSUPPORTED,
                            "%s: its file system cannot be measured: %d MiB could not be written",
                            parent, TRY_BYTES >> 20)
                  : FERRY_OK;
}

/* As a run would find, unless it goes on from what another has left. */
static ferry_status check_room(const ferry_reshard *reshard, const char *path, const char *parent,
                               ferry_error *error)
{
    int parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent_fd < 0) { /* the try says why */
        return FERRY_OK;
    }
    ferry_status status = ferry_reshard_has_left(path)
                              ? FERRY_OK
                              : fy_reshard_check_space(reshard, parent_fd, path, parent, error);
    close(parent_fd);
    return status;
}

ferry_status ferry_reshard_estimate(const ferry_reshard *reshard, const char *path,
                                    double *seconds_out, ferry_error *error)
{
    double seconds = 0;
    FY_TRY(fy_check_use(reshard != NULL && path != NULL && seconds_out != NULL,
                        "ferry_reshard_estimate needs a reshard, a path and a place for the result",
                        error));
    char *parent = parent_of(path);
    FY_TRY(fy_check_memory(parent != NULL, "a file name", error));
    ferry_status status = check_room(reshard, path, parent, error);
    FY_THEN(status, try_disk(parent, &seconds, error));
    if (status == FERRY_OK) {
        const ferry_reshard_totals *t = &reshard->totals;
        *seconds_out = seconds * ((double)t->file_bytes + (double)t->other_bytes) / TRY_BYTES;
    }
    fy_free(parent);
    return status;
}
