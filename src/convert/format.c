/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/format.h"

#include "base/checked.h"
#include "convert/scale.h"

#include <ferry/dtype.h>

/*
 * Of a group. Whole rows are best, as memory brings what lies side by side much faster, even where
 * the rows of a group of blocks do not fit into the second cache.
 */
enum { MOST_COLUMNS = 16384 };

fy_block_format fy_format_f8(uint64_t block_rows, uint64_t block_columns)
{
    return (fy_block_format){.kind = FERRY_F8E4M3,
                             .scale_kind = FERRY_F32,
                             .rule = FY_SCALE_LARGEST,
                             .block = {block_rows, block_columns}};
}

fy_block_format fy_format_mxfp8(void)
{
    return (fy_block_format){
        .kind = FERRY_F8E4M3, .scale_kind = FERRY_F8E8M0, .rule = FY_SCALE_FLOOR, .block = {1, 32}};
}

fy_block_format fy_format_nvfp4(void)
{
    return (fy_block_format){
        .kind = FERRY_F4, .scale_kind = FERRY_F8E4M3, .rule = FY_SCALE_LARGEST, .block = {1, 16}};
}

bool fy_value_type_of(uint32_t kind, fy_value_type *type_out)
{
    *type_out = kind == FERRY_F32 ? FY_VALUE_F32 : kind == FERRY_F16 ? FY_VALUE_F16 : FY_VALUE_BF16;
    return kind == FERRY_F32 || kind == FERRY_F16 || kind == FERRY_BF16;
}

void fy_scales_shape(const fy_quantized *q, uint64_t shape_out[2])
{
    shape_out[0] = fy_ceil_div(q->n_rows, q->format.block[0]);
    shape_out[1] = fy_ceil_div(q->n_columns, q->format.block[1]);
}

uint64_t fy_codes_row_bytes(const fy_quantized *q)
{
    return q->format.kind == FERRY_F4 ? fy_ceil_div(q->n_columns, 2) : q->n_columns;
}

uint64_t fy_group_columns(const fy_quantized *q)
{
    uint64_t width = q->format.block[1];
    return fy_max(1, fy_min(FY_MOST_BLOCKS, MOST_COLUMNS / width)) * width;
}

uint64_t fy_piece(uint64_t at, uint64_t n, uint64_t width)
{
    uint64_t most = width < FY_PIECE ? FY_PIECE / width * width : width - at % width;
    return fy_min(fy_min(most, n - at), FY_PIECE);
}

static ferry_status check_scale_kind(const fy_quantized *q, ferry_error *error)
{
    const fy_block_format *f = &q->format;
    bool has_tensor_scale = f->scale_kind == FERRY_F8E4M3;
    if (f->scale_kind != FERRY_F32 && f->scale_kind != FERRY_F8E8M0 &&
        (!has_tensor_scale || f->kind != FERRY_F4)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "scales of kind %u: they are f32, f8e8m0, or, of f4, f8e4m3", f->scale_kind);
    }
    if (f->rule > FY_SCALE_FLOOR ||
        (f->scale_kind == FERRY_F8E8M0 && f->rule == FY_SCALE_LARGEST) ||
        (has_tensor_scale && f->rule != FY_SCALE_LARGEST)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "scales in f8e8m0 are powers of two, those in f8e4m3 are not, and rule %u "
                       "is another one",
                       (unsigned)f->rule);
    }
    if (has_tensor_scale && !fy_is_tensor_scale(q->tensor_scale)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "the scale of the tensor is %g, but must be from 2^-117 to 2^119",
                       (double)q->tensor_scale);
    }
    if (!has_tensor_scale && q->tensor_scale != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a scale of the tensor, %g, is of no use in a format that has none; give 0",
                       (double)q->tensor_scale);
    }
    return FERRY_OK;
}

static ferry_status check_format(const fy_quantized *q, ferry_error *error)
{
    const fy_block_format *f = &q->format;
    if (f->kind != FERRY_F8E4M3 && f->kind != FERRY_F8E5M2 && f->kind != FERRY_F4) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "codes of kind %u: they are f8e4m3, f8e5m2 or f4", f->kind);
    }
    if (f->block[0] == 0 || f->block[1] == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "blocks of %llu x %llu are empty",
                       (unsigned long long)f->block[0], (unsigned long long)f->block[1]);
    }
    if (f->kind == FERRY_F4 && f->block[1] % 2 != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "blocks of %llu columns would begin in the middle of a byte of f4",
                       (unsigned long long)f->block[1]);
    }
    return check_scale_kind(q, error);
}

ferry_status fy_check_quantized(const fy_quantized *q, fy_block_facts *facts_out,
                                ferry_error *error)
{
    fy_block_facts facts = {0};
    if (!fy_value_type_of(q->kind, &facts.value)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "values of kind %u are not quantized: they are f32, f16 or bf16", q->kind);
    }
    FY_TRY(check_format(q, error));
    facts.code = q->format.kind == FERRY_F8E4M3   ? FY_CODE_F8E4M3
                 : q->format.kind == FERRY_F8E5M2 ? FY_CODE_F8E5M2
                                                  : FY_CODE_F4;
    facts.value_bytes = q->kind == FERRY_F32 ? 4 : 2;
    facts.scale_bytes = fy_scale_bytes(q->format.scale_kind);
    facts.code_row_bytes = fy_codes_row_bytes(q);
    fy_scales_shape(q, facts.scales);
    if (!fy_mul(q->n_columns, facts.value_bytes, &facts.value_row_bytes) ||
        !fy_mul(facts.scales[1], facts.scale_bytes, &facts.scale_row_bytes)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "a row of %llu elements has too many bytes",
                       (unsigned long long)q->n_columns);
    }
    *facts_out = facts;
    return FERRY_OK;
}
