/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints as the Hugging Face ecosystem writes them, without an index: one file or several. */
#include "checkpoint/open.h"

#include <string.h>

static ferry_status add_tensors(ferry_checkpoint *checkpoint, uint32_t number, ferry_error *error)
{
    const fy_ckpt_file *file = &checkpoint->files[number];
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < file->header.n_tensors && status == FERRY_OK; i++) {
        const fy_st_tensor *entry = &file->header.tensors[i];
        uint32_t twin = FY_INDEX_NONE;
        fy_ckpt_tensor tensor = {
            .name = entry->name,
            .dtype_text = entry->dtype_text,
            .dtype = entry->dtype,
            .is_opaque = entry->is_opaque,
            .n_dims = entry->n_dims,
            .shape = entry->shape,
            .file_n_dims = entry->n_dims,
            .file_shape = entry->shape,
            .file = number,
            .entry = (uint32_t)i,
        };
        if (entry->is_opaque) { /* as it travels: so many bytes */
            uint64_t *bytes = fy_arena_alloc(&checkpoint->arena, 1, sizeof *bytes);
            FY_TRY(fy_check_memory(bytes != NULL, "the tensors of a checkpoint", error));
            *bytes = entry->end - entry->begin;
            tensor.n_dims = 1;
            tensor.shape = bytes;
        }
        status = fy_ckpt_add_tensor(checkpoint, &tensor, &twin, error);
        if (status == FERRY_OK && twin != FY_INDEX_NONE) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "%s: holds \"%.200s\", which %s holds too", file->path, entry->name,
                             checkpoint->files[checkpoint->tensors[twin].file].name);
        }
    }
    return status;
}

ferry_status fy_ckpt_add_all_tensors(ferry_checkpoint *checkpoint, ferry_error *error)
{
    size_t n = 0;
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        n += checkpoint->files[i].header.n_tensors;
    }
    FY_TRY(fy_ckpt_reserve(checkpoint, n, error));
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        FY_TRY(add_tensors(checkpoint, (uint32_t)i, error));
    }
    return FERRY_OK;
}

ferry_status fy_ckpt_open_file(ferry_checkpoint *checkpoint, ferry_error *error)
{
    FY_TRY(fy_ckpt_add_file(checkpoint, fy_strdup(checkpoint->path), 0, error));
    return fy_ckpt_add_all_tensors(checkpoint, error);
}

static bool is_part(const char *name, const char *only)
{
    return only == NULL ? fy_ckpt_is_safetensors(name) : strcmp(name, only) == 0;
}

ferry_status fy_ckpt_open_all(ferry_checkpoint *checkpoint, const char *only, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < checkpoint->n_others; i++) {
        checkpoint->n_expected += is_part(checkpoint->others[i].name, only);
    }
    for (size_t i = 0; i < checkpoint->n_others && status == FERRY_OK; i++) {
        const char *name = checkpoint->others[i].name;
        if (!is_part(name, only)) {
            continue;
        }
        status = fy_ckpt_add_file(checkpoint, fy_ckpt_join(checkpoint->folder, name), 0, error);
    }
    if (status == FERRY_OK && checkpoint->n_files == 0) {
        status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                         "%s: holds no checkpoint: neither " FY_LAYOUT_NAME " nor " FY_INDEX_NAME
                         " nor any safetensors file",
                         checkpoint->path);
    }
    return status == FERRY_OK ? fy_ckpt_add_all_tensors(checkpoint, error) : status;
}
