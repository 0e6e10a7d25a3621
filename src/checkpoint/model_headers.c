/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/model_headers.h"

#include "checkpoint/checkpoint.h"

/* NULL if memory ran out anywhere: a shape must not lose a dimension. */
static json_t *describe(const fy_ckpt_tensor *tensor)
{
    char dtype[FERRY_DTYPE_TEXT_BYTES];
    json_t *shape = json_array();
    bool whole = shape != NULL;
    ferry_dtype_format(tensor->dtype, dtype, sizeof dtype);
    for (uint32_t d = 0; whole && d < tensor->n_dims; d++) {
        whole = json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d])) == 0;
    }
    if (!whole) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:s}", "name", tensor->name, "shape", shape, "dtype", dtype);
}

ferry_status fy_model_read_tensors(const char *path, json_t **tensors_out, ferry_error *error)
{
    ferry_checkpoint *model = NULL;
    json_t *tensors = NULL;
    FY_TRY(ferry_checkpoint_open(path, &model, error));
    ferry_status status = FERRY_OK;
    tensors = json_array();
    bool whole = tensors != NULL;
    for (size_t i = 0; whole && i < model->n_tensors; i++) {
        whole = json_array_append_new(tensors, describe(&model->tensors[i])) == 0;
    }
    if (whole) {
        *tensors_out = tensors;
        tensors = NULL;
    } else {
        status = fy_fail_no_memory(error, "the tensors of a model");
    }
    json_decref(tensors);
    ferry_checkpoint_destroy(model);
    return status;
}
