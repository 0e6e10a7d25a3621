/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/maker_blocks.h"

#include "base/checked.h"
#include "checkpoint/matrices.h"

#include <string.h>

enum {
    SPARSE = 4 /* a hull has at most so many times the blocks that are wanted of it */
};

/* What a hull is made of. */
typedef struct blocks {
    uint32_t weight;
    const fy_block_format *format;
    const float *matrix_scales; /* of all matrices that become codes; NULL: the format has none */
    fy_box values, scales;
} blocks;

static bool is_dequantized(const fy_maker *m, uint32_t tensor)
{
    return m->job->changes[tensor].kind == FY_DEQUANTIZED;
}

bool fy_maker_makes_blocks(const fy_maker *m, uint32_t tensor)
{
    const fy_change *change = &m->job->changes[tensor];
    bool is_half =
        is_dequantized(m, tensor) && m->job->problem.tensors[tensor].dtype.element_bits < 8;
    return !m->keeps_types &&
           (is_half || change->kind == FY_QUANTIZED || fy_change_is_made(change));
}

static uint32_t weight_of(const fy_maker *m, uint32_t tensor)
{
    const fy_change *change = &m->job->changes[tensor];
    return fy_change_is_made(change) ? change->weight : tensor;
}

/* Elements of a unit of what a tensor becomes. */
static uint32_t unit_of(const fy_maker *m, uint32_t tensor)
{
    return fy_unit_elements(m->job->changes[tensor].dtype.element_bits);
}

/* How many units along a dimension of a weight share a scale. */
static uint64_t block_units(const fy_maker *m, uint32_t weight, uint32_t n_dims, uint32_t dim)
{
    uint64_t extent = fy_block_extent(&m->job->changes[weight].format, n_dims, dim);
    return dim + 1 == n_dims ? fy_max(extent / unit_of(m, weight), 1) : extent;
}

static uint64_t scale_bytes(const fy_block_format *format)
{
    return format->scale_kind == FERRY_F32 ? sizeof(float) : 1;
}

uint64_t fy_maker_least_bytes(const fy_layout_job *job, uint32_t tensor)
{
    const fy_change *change = &job->changes[tensor];
    uint64_t n = 1;
    if (change->kind != FY_QUANTIZED) {
        return 0;
    }
    const fy_tensor *t = &job->spec->tensors[tensor];
    for (uint32_t d = t->n_dims - 2; d < t->n_dims; d++) {
        n *= fy_min(fy_block_extent(&change->format, t->n_dims, d), t->shape[d]);
    }
    return fy_max(n, 1) * (t->dtype.element_bits / 8);
}

static void find_blocks(const fy_maker *m, uint32_t tensor, const fy_box *hull, blocks *b)
{
    b->weight = weight_of(m, tensor);
    b->matrix_scales = NULL;
    b->format = &m->job->changes[b->weight].format;
    const fy_tensor *w = &m->job->problem.tensors[b->weight];
    b->scales = *hull;
    if (b->weight == tensor) {
        fy_box elements = *hull;
        elements.begin[w->n_dims - 1] *= unit_of(m, tensor);
        elements.length[w->n_dims - 1] *= unit_of(m, tensor);
        fy_change_scales_box(b->format, w->n_dims, &elements, &b->scales);
    }
    fy_change_values_box(b->format, w->shape, w->n_dims, &b->scales, &b->values);
}

/* Loops that step over blocks leave some of the hull out. */
bool fy_maker_wants_blocks(const fy_maker *m, const fy_nest *nest)
{
    bool has_scales = fy_change_is_made(&m->job->changes[m->tensor]);
    uint64_t skipped = 1;
    for (uint32_t i = 0; i < nest->n_loops; i++) {
        for (uint32_t d = 0; d < nest->n_dims; d++) {
            uint64_t block = has_scales ? 1 : block_units(m, m->tensor, nest->n_dims, d);
            skipped = fy_min(skipped * fy_max(fy_min(nest->step[i][d] / block, SPARSE + 1), 1),
                             SPARSE + 1);
        }
    }
    return skipped <= SPARSE;
}

/* Of so many values, or codes: of scales that are made as well, codes are by the way. */
static uint64_t made_bytes(const fy_maker *m, uint32_t weight, uint64_t n)
{
    return fy_bytes(n, m->job->changes[weight].dtype.element_bits);
}

/* Scales of whole matrices that are read, which stand before those of blocks. */
static uint64_t matrices_bytes(const blocks *b, const fy_tensor *weight)
{
    return fy_format_has_tensor_scale(b->format)
               ? fy_box_volume(b->values.length, weight->n_dims - 2) * sizeof(float)
               : 0;
}

static bool has_matrix_scales(const fy_maker *m)
{
    return m->job->changes[m->tensor].kind == FY_MATRIX_SCALES;
}

bool fy_maker_has_room_for(const fy_maker *m, const fy_box *hull)
{
    blocks b;
    if (has_matrix_scales(m)) {
        uint32_t n_dims = m->job->problem.tensors[m->tensor].n_dims;
        return fy_box_volume(hull->length, n_dims) * sizeof(float) <= m->room.scales_bytes;
    }
    find_blocks(m, m->tensor, hull, &b);
    const fy_tensor *w = &m->job->problem.tensors[b.weight];
    uint64_t n = fy_box_volume(b.values.length, w->n_dims); /* of a tensor: no overflow */
    uint64_t n_scales = fy_box_volume(b.scales.length, w->n_dims);
    return fy_bytes(n, w->dtype.element_bits) <= m->room.hull_bytes &&
           made_bytes(m, b.weight, n) <= m->room.cast_bytes &&
           matrices_bytes(&b, w) + n_scales * scale_bytes(b.format) <= m->room.scales_bytes;
}

uint64_t fy_maker_turns_to_line(const fy_maker *m, uint32_t tensor, const fy_nest *nest,
                                uint32_t loop, uint64_t first, uint64_t n)
{
    const fy_change *change = &m->job->changes[tensor];
    if (!fy_maker_makes_blocks(m, tensor) || change->kind != FY_QUANTIZED) {
        return n;
    }
    for (uint32_t d = nest->n_dims - 2; d < nest->n_dims; d++) {
        uint64_t step = nest->step[loop][d], begin = nest->begin[d] + first * step;
        uint64_t end = begin + n * step;
        uint64_t line = end - end % block_units(m, tensor, nest->n_dims, d);
        if (step > 0 && line > begin && (line - begin) % step == 0) {
            return (line - begin) / step;
        }
    }
    return n;
}

/* Matrix by matrix, of values that were gathered; codes lie where casts do. */
static ferry_status quantize(const fy_maker *m, const blocks *b, ferry_error *error)
{
    const fy_tensor *w = &m->job->problem.tensors[b->weight];
    uint32_t row = w->n_dims - 2;
    fy_quantized q = {.format = *b->format,
                      .kind = w->dtype.kind,
                      .n_rows = b->values.length[row],
                      .n_columns = b->values.length[row + 1]};
    uint64_t n = q.n_rows * q.n_columns, value_bytes = n * (w->dtype.element_bits / 8);
    uint64_t code_bytes = made_bytes(m, b->weight, n);
    uint64_t scales_bytes =
        b->scales.length[row] * b->scales.length[row + 1] * scale_bytes(b->format);
    uint64_t n_matrices = fy_box_volume(b->values.length, row);
    for (uint64_t i = 0; i < n_matrices; i++) {
        fy_input values = {.data = m->hull + i * value_bytes, .n_bytes = value_bytes};
        fy_output codes = {.data = m->cast + i * code_bytes, .n_bytes = code_bytes};
        fy_output scales = {.data = m->scales + i * scales_bytes, .n_bytes = scales_bytes};
        if (b->matrix_scales != NULL) {
            q.tensor_scale = b->matrix_scales[fy_matrix_at(w, &b->values, i)];
        }
        FY_TRY(fy_quantize(&q, &values, &codes, &scales, error));
    }
    return FERRY_OK;
}

/* Codes lie in halves of bytes, and blocks, which are whole, on bytes. */
static ferry_status gather_half(fy_maker *m, const blocks *b, ferry_error *error)
{
    const fy_change *change = &m->job->changes[b->weight];
    const fy_tensor *w = &m->job->problem.tensors[b->weight];
    uint32_t last = w->n_dims - 1, unit = fy_unit_elements(w->dtype.element_bits);
    fy_box codes = b->values, matrices = b->values;
    codes.begin[last] /= unit;
    codes.length[last] /= unit;
    FY_TRY(fy_maker_gather(m, false, b->weight, &codes, m->hull, error));
    FY_TRY(fy_maker_gather(m, true, change->matrix_scales, &matrices, m->scales, error));
    return fy_maker_gather(m, true, change->scales, &b->scales, m->scales + matrices_bytes(b, w),
                           error);
}

/* Matrix by matrix, into where casts lie. */
static ferry_status dequantize(const fy_maker *m, const blocks *b, ferry_error *error)
{
    const fy_tensor *w = &m->job->problem.tensors[b->weight];
    uint32_t row = w->n_dims - 2;
    fy_quantized q = {.format = *b->format,
                      .kind = m->job->changes[b->weight].dtype.kind,
                      .n_rows = b->values.length[row],
                      .n_columns = b->values.length[row + 1]};
    uint64_t n = q.n_rows * q.n_columns, code_bytes = fy_bytes(n, w->dtype.element_bits);
    uint64_t n_scales = b->scales.length[row] * b->scales.length[row + 1];
    uint64_t value_bytes = made_bytes(m, b->weight, n);
    uint64_t n_matrices = fy_box_volume(b->values.length, row);
    const char *all_scales = m->scales + matrices_bytes(b, w);
    for (uint64_t i = 0; i < n_matrices; i++) {
        fy_input codes = {.data = m->hull + i * code_bytes, .n_bytes = code_bytes};
        fy_input scales = {.data = all_scales + i * n_scales, .n_bytes = n_scales};
        fy_output values = {.data = m->cast + i * value_bytes, .n_bytes = value_bytes};
        memcpy(&q.tensor_scale, m->scales + i * sizeof(float), sizeof(float));
        FY_TRY(fy_dequantize(&q, &codes, &scales, &values, error));
    }
    return FERRY_OK;
}

/* Of the codes' block all values, whether these or only scales are wanted: which need not come with
 * their weights. */
static ferry_status gather_values(fy_maker *m, blocks *b, ferry_error *error)
{
    if (fy_format_has_tensor_scale(b->format)) {
        FY_TRY(fy_matrices_of(m, b->weight, &b->matrix_scales, error));
    }
    return fy_maker_gather(m, b->weight != m->tensor, b->weight, &b->values, m->hull, error);
}

/* Scales of whole matrices, of a box of them. */
static ferry_status list_matrices(fy_maker *m, const fy_box *hull, const char **made_out,
                                  fy_box *around_out, ferry_error *error)
{
    uint32_t weight = weight_of(m, m->tensor);
    const fy_tensor *w = &m->job->problem.tensors[weight];
    uint64_t n = fy_box_volume(hull->length, w->n_dims - 2);
    const float *all;
    FY_TRY(fy_matrices_of(m, weight, &all, error));
    for (uint64_t i = 0; i < n; i++) {
        memcpy(m->scales + i * sizeof *all, &all[fy_matrix_at(w, hull, i)], sizeof *all);
    }
    *made_out = m->scales;
    *around_out = *hull;
    return FERRY_OK;
}

ferry_status fy_maker_make_blocks(fy_maker *m, const fy_box *hull, const char **made_out,
                                  fy_box *around_out, ferry_error *error)
{
    blocks b;
    if (has_matrix_scales(m)) {
        return list_matrices(m, hull, made_out, around_out, error);
    }
    find_blocks(m, m->tensor, hull, &b);
    bool has_scales = b.weight != m->tensor, is_half = is_dequantized(m, b.weight);
    ferry_error cause;
    FY_TRY(is_half ? gather_half(m, &b, error) : gather_values(m, &b, error));
    ferry_status status = is_half ? dequantize(m, &b, &cause) : quantize(m, &b, &cause);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "\"%s\": %s", m->job->problem.tensors[b.weight].name,
                       cause.message);
    }
    *made_out = has_scales ? m->scales : m->cast;
    *around_out = has_scales ? b.scales : b.values;
    if (!has_scales) {
        uint32_t last = m->job->problem.tensors[b.weight].n_dims - 1;
        around_out->begin[last] /= unit_of(m, m->tensor);
        around_out->length[last] /= unit_of(m, m->tensor);
    }
    return FERRY_OK;
}
