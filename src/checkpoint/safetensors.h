/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SAFETENSORS_H
#define FY_CHECKPOINT_SAFETENSORS_H

#include "base/status.h"

#include <ferry/dtype.h>
#include <ferry/plan.h>

#include <jansson.h>

#include <stddef.h>
#include <stdint.h>

/*
 * The header of a safetensors file: eight bytes of length, that many bytes of JSON, then the data.
 * Nothing in it is trusted: lengths against the file, offsets against each other and the shapes.
 */
typedef struct fy_st_tensor {
    const char *name; /* borrowed from the header */
    ferry_dtype dtype;
    const char *dtype_text;
    uint32_t    n_dims;
    uint64_t    shape[FERRY_MAX_DIMS];
    uint64_t    begin; /* in the data section */
    uint64_t    end;
} fy_st_tensor;

typedef struct fy_st_header {
    json_t       *json;    /* owns the names */
    fy_st_tensor *tensors; /* in the order of the file's header */
    size_t        n_tensors;
    uint64_t      data_bytes;
} fy_st_header;

/* The header that a file of file_bytes would have with this JSON. name stands in errors. */
ferry_status fy_st_parse(const char *text, size_t length, uint64_t data_bytes, const char *name,
                         fy_st_header *header, ferry_error *error);

ferry_status fy_st_read(const char *path, fy_st_header *header, ferry_error *error);

void fy_st_cleanup(fy_st_header *header);

#endif
