/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_FORMAT_H
#define FY_CONVERT_FORMAT_H

#include "convert/kernels.h"
#include "convert/matrix.h"

/* A quantized matrix that was checked, without its buffers. */
typedef struct fy_block_facts {
    fy_value_type value;
    fy_code_type code;
    uint64_t value_row_bytes, code_row_bytes, scale_row_bytes;
    uint64_t scales[2]; /* rows and columns of the matrix of scales */
    size_t value_bytes, scale_bytes;
} fy_block_facts;

/* The type of values; false: none that are quantized. */
bool fy_value_type_of(uint32_t kind, fy_value_type *type_out);

/* Whether there is such a format, and whether the shape can be counted. */
ferry_status fy_check_quantized(const fy_quantized *q, fy_block_facts *facts_out,
                                ferry_error *error);

/* The columns that are worked on at once: whole blocks, at most FY_MOST_BLOCKS of them. */
uint64_t fy_group_columns(const fy_quantized *q);

/* Elements that go through f32 at once. */
enum { FY_PIECE = 1024 };

/* Of a row of n elements, those from `at` on, in whole blocks or all in one. */
uint64_t fy_piece(uint64_t at, uint64_t n, uint64_t width);

#endif
