/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint says about itself. */
#include "base/json.h"
#include "checkpoint/boxed.h"
#include "checkpoint/checkpoint.h"

#include <string.h>

static uint64_t tensor_bytes(const fy_ckpt_tensor *tensor)
{
    uint64_t bits = tensor->dtype.element_bits; /* no overflow: that was checked */
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        bits *= tensor->shape[d];
    }
    return bits / 8;
}

ferry_status ferry_checkpoint_get_totals(const ferry_checkpoint *checkpoint,
                                         ferry_checkpoint_totals *totals_out, ferry_error *error)
{
    FY_TRY(fy_check_use(checkpoint != NULL && totals_out != NULL,
                        "ferry_checkpoint_get_totals needs a checkpoint and a place for the result",
                        error));
    ferry_checkpoint_totals totals = {
        .is_sharded = checkpoint->is_sharded,
        .n_files = checkpoint->n_files,
        .n_tensors = checkpoint->n_tensors,
    };
    for (size_t i = 0; i < checkpoint->n_files; i++) {
        totals.file_bytes += checkpoint->files[i].bytes;
    }
    for (size_t i = 0; i < checkpoint->n_tensors; i++) {
        totals.tensor_bytes += tensor_bytes(&checkpoint->tensors[i]);
    }
    return fy_copy_out(&totals, sizeof totals, totals_out, "ferry_checkpoint_totals", error);
}

ferry_status ferry_checkpoint_file_at(const ferry_checkpoint *checkpoint, size_t index,
                                      ferry_checkpoint_file *file_out, ferry_error *error)
{
    if (checkpoint == NULL || file_out == NULL || index >= checkpoint->n_files) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_checkpoint_file_at needs a checkpoint, a file of it and a place for the result");
    }
    const fy_ckpt_file *file = &checkpoint->files[index];
    ferry_checkpoint_file out = {
        .name = file->name,
        .rank = file->rank,
        .bytes = file->bytes,
        .n_tensors = file->header.n_tensors,
    };
    return fy_copy_out(&out, sizeof out, file_out, "ferry_checkpoint_file", error);
}

/* The word that a file would have for it. */
static const char *safetensors_word(ferry_dtype dtype)
{
    switch (dtype.kind) {
#define FY_CASE(id, number, text, word, bits)                                                      \
    case FERRY_##id:                                                                               \
        return word;
        FERRY_DTYPE_MAP(FY_CASE)
#undef FY_CASE
    default:
        return "bytes";
    }
}

ferry_status ferry_checkpoint_tensor_at(const ferry_checkpoint *checkpoint, size_t index,
                                        ferry_checkpoint_tensor *tensor_out, ferry_error *error)
{
    if (checkpoint == NULL || tensor_out == NULL || index >= checkpoint->n_tensors) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_checkpoint_tensor_at needs a checkpoint, a tensor of it and a place "
                       "for the result");
    }
    const fy_ckpt_tensor *tensor = &checkpoint->tensors[index];
    ferry_checkpoint_tensor out = {
        .name = tensor->name,
        .dtype = tensor->dtype_text == NULL ? safetensors_word(tensor->dtype) : tensor->dtype_text,
        .n_dims = tensor->file_n_dims,
        .bytes = tensor_bytes(tensor),
    };
    for (uint32_t d = 0; d < tensor->file_n_dims; d++) {
        out.shape[d] = tensor->file_shape[d];
    }
    return fy_copy_out(&out, sizeof out, tensor_out, "ferry_checkpoint_tensor", error);
}

size_t ferry_checkpoint_metadata_count(const ferry_checkpoint *checkpoint)
{
    return checkpoint == NULL ? 0 : checkpoint->n_metadata;
}

ferry_status ferry_checkpoint_metadata_at(const ferry_checkpoint *checkpoint, size_t index,
                                          const char **key_out, const char **value_out,
                                          ferry_error *error)
{
    if (checkpoint == NULL || key_out == NULL || value_out == NULL ||
        index >= checkpoint->n_metadata) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_checkpoint_metadata_at needs a checkpoint, a pair of it and two "
                       "places");
    }
    *key_out = checkpoint->metadata[index].key;
    *value_out = checkpoint->metadata[index].value;
    return FERRY_OK;
}

size_t ferry_checkpoint_other_count(const ferry_checkpoint *checkpoint)
{
    return checkpoint == NULL ? 0 : checkpoint->n_others;
}

ferry_status ferry_checkpoint_other_at(const ferry_checkpoint *checkpoint, size_t index,
                                       ferry_checkpoint_other *other_out, ferry_error *error)
{
    if (checkpoint == NULL || other_out == NULL || index >= checkpoint->n_others) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_checkpoint_other_at needs a checkpoint, another file of its folder "
                       "and a place for the result");
    }
    const fy_ckpt_other *other = &checkpoint->others[index];
    ferry_checkpoint_other out = {
        .name = other->name, .bytes = other->bytes, .left_out = other->left_out};
    return fy_copy_out(&out, sizeof out, other_out, "ferry_checkpoint_other", error);
}

ferry_status ferry_checkpoint_shard_at(const ferry_checkpoint *checkpoint, size_t file,
                                       size_t index, ferry_checkpoint_shard *shard_out,
                                       ferry_error *error)
{
    if (checkpoint == NULL || shard_out == NULL || file >= checkpoint->n_files ||
        index >= checkpoint->files[file].header.n_tensors) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_checkpoint_shard_at needs a checkpoint, a file of it, a tensor of "
                       "that and a place for the result");
    }
    const fy_st_tensor *entry = &checkpoint->files[file].header.tensors[index];
    ferry_checkpoint_shard out = {.tensor = entry->name,
                                  .bytes = entry->end - entry->begin,
                                  .has_checksum = entry->has_checksum,
                                  .checksum = entry->has_checksum ? entry->checksum : 0};
    return fy_copy_out(&out, sizeof out, shard_out, "ferry_checkpoint_shard", error);
}

static ferry_status write_boxes(const fy_boxed *boxed, ferry_write_fn write, void *context,
                                ferry_error *error)
{
    fy_writer *writer = fy_alloc(1, sizeof *writer);
    FY_TRY(fy_check_memory(writer != NULL, "a layout", error));
    fy_writer_init(writer, write, context);
    fy_side_write(writer, boxed->side);
    ferry_status status = fy_writer_finish(writer, error);
    fy_free(writer);
    return status;
}

ferry_status ferry_checkpoint_write_layout(const ferry_checkpoint *checkpoint, ferry_write_fn write,
                                           void *context, ferry_error *error)
{
    char *text = NULL;
    FY_TRY(fy_check_use(checkpoint != NULL && write != NULL,
                        "ferry_checkpoint_write_layout needs a checkpoint and a function", error));
    ferry_status status = FERRY_OK;
    if (checkpoint->boxed != NULL) {
        return write_boxes(checkpoint->boxed, write, context, error);
    }
    if (checkpoint->layout != NULL) {
        status = fy_json_dump(checkpoint->layout, &text, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    const char *bytes = text == NULL ? "null" : text;
    if (write(context, bytes, strlen(bytes)) != 0) {
        status = fy_fail(error, FERRY_ERR_IO, "the output cannot be written");
    }
    fy_free(text);
    return status;
}
