/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/format.h"

#include "base/checked.h"
#include "convert/scale.h"
#include "convert/tables.h"

#include <ferry/dtype.h>

#include <string.h>

/* A call under way, in either direction. */
typedef struct job {
    const fy_quantized *q;
    const fy_convert_kernels *k;
    fy_block_facts facts;
    fy_rows_in values;
    fy_rows_out codes, scales; /* of scales alone, divisors in place of the codes */
} job;

/* Some whole blocks beside each other: rows [row, row + n_rows), columns [column, ...). */
typedef struct group {
    uint64_t row, n_rows, column, n_columns;
    size_t n_blocks, width; /* elements of a block within a row */
} group;

static const char *value_row(const job *j, const group *g, uint64_t row)
{
    return j->values.data + row * j->values.pitch + g->column * j->facts.value_bytes;
}

/* Largest magnitudes of the type's own bits, as f32. */
static void as_f32(const job *j, float *values, const uint32_t *largest, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word = j->facts.value == FY_VALUE_BF16 ? largest[i] << 16 : largest[i];
        uint16_t half = (uint16_t)largest[i];
        if (j->facts.value == FY_VALUE_F16) {
            j->k->widen_f16(values + i, &half, 1);
        } else {
            memcpy(values + i, &word, sizeof word);
        }
    }
}

/* The same of finite elements only, of one block: for those that have others. */
static uint32_t largest_finite(const job *j, const group *g, size_t block)
{
    uint32_t largest = 0;
    uint64_t first = block * g->width, n = fy_min(g->n_columns - first, g->width);
    for (uint64_t row = g->row; row < g->row + g->n_rows; row++) {
        j->k->largest_finite[j->facts.value](
            &largest, value_row(j, g, row) + first * j->facts.value_bytes, (size_t)n, (size_t)n);
    }
    return largest;
}

static bool is_finite(const job *j, uint32_t magnitude)
{
    static const uint32_t infinity[] = {
        [FY_VALUE_F32] = 0x7f800000, [FY_VALUE_F16] = 0x7c00, [FY_VALUE_BF16] = 0x7f80};
    return magnitude < infinity[j->facts.value];
}

/* Of each block the largest finite magnitude, or NaN where its scale must be NaN. */
static void find_largest(const job *j, const group *g, float *values)
{
    uint32_t largest[FY_MOST_BLOCKS] = {0};
    bool is_lost[FY_MOST_BLOCKS] = {false};
    for (uint64_t row = g->row; row < g->row + g->n_rows; row++) {
        j->k->largest[j->facts.value](largest, value_row(j, g, row), (size_t)g->n_columns,
                                      g->width);
    }
    for (size_t i = 0; i < g->n_blocks; i++) {
        if (!is_finite(j, largest[i])) {
            is_lost[i] = j->facts.code == FY_CODE_F4;
            largest[i] = largest_finite(j, g, i);
        }
    }
    as_f32(j, values, largest, g->n_blocks);
    for (size_t i = 0; i < g->n_blocks; i++) {
        uint32_t nan = 0x7fc00000;
        memcpy(values + i, is_lost[i] ? (const void *)&nan : values + i, sizeof nan);
    }
}

static void quantize_row(const job *j, const group *g, char *to, const char *from,
                         const float *scales)
{
    float values[FY_PIECE];
    if (j->facts.value != FY_VALUE_F16) {
        j->k->quantize[j->facts.value][j->facts.code](to, from, (size_t)g->n_columns, g->width,
                                                      scales);
        return;
    }
    for (uint64_t at = 0, n; at < g->n_columns; at += n) {
        n = fy_piece(at, g->n_columns, g->width);
        j->k->widen_f16(values, from + 2 * at, (size_t)n);
        j->k->quantize[FY_VALUE_F32][j->facts.code](
            to + (j->facts.code == FY_CODE_F4 ? at / 2 : at), values, (size_t)n, g->width,
            scales + at / g->width);
    }
}

/* The faster way, if it is one here. */
static bool quantize_by_tables(const job *j, const group *g, char *to, const float *scales)
{
    fy_code_table tables[FY_MOST_TABLES];
    if (!fy_tables_pay(j->k, &j->facts, g->n_blocks, g->n_rows * g->width) ||
        !fy_quantize_tables(j->k, scales, g->n_blocks, tables)) {
        return false;
    }
    for (uint64_t row = 0; row < g->n_rows; row++) {
        j->k->quantize_by_tables(to + row * j->codes.pitch, value_row(j, g, g->row + row),
                                 (size_t)g->n_columns, g->width, tables);
    }
    return true;
}

static void quantize_group(const job *j, const group *g)
{
    float scales[FY_MOST_BLOCKS];
    uint64_t block_row = g->row / j->q->format.block[0];
    uint64_t first_block = g->column / j->q->format.block[1];
    uint64_t first_code = j->facts.code == FY_CODE_F4 ? g->column / 2 : g->column;
    char *to = j->codes.data + g->row * j->codes.pitch + first_code;
    find_largest(j, g, scales);
    fy_scales_make(j->q, j->k, scales,
                   j->scales.data + block_row * j->scales.pitch +
                       first_block * j->facts.scale_bytes,
                   g->n_blocks);
    if (quantize_by_tables(j, g, to, scales)) {
        return;
    }
    for (uint64_t row = 0; row < g->n_rows; row++) {
        quantize_row(j, g, to + row * j->codes.pitch, value_row(j, g, g->row + row), scales);
    }
}

static void visit_groups(const job *j, void (*visit)(const job *j, const group *g))
{
    const fy_quantized *q = j->q;
    uint64_t most = fy_group_columns(q);
    group g = {0};
    for (g.row = 0; g.row < q->n_rows; g.row += g.n_rows) {
        g.n_rows = fy_min(q->format.block[0], q->n_rows - g.row);
        for (g.column = 0; g.column < q->n_columns; g.column += g.n_columns) {
            g.n_columns = fy_min(most, q->n_columns - g.column);
            g.width = (size_t)fy_min(q->format.block[1], g.n_columns);
            g.n_blocks = (size_t)fy_ceil_div(g.n_columns, g.width);
            visit(j, &g);
        }
    }
}

ferry_status fy_quantize(const fy_quantized *q, const fy_input *values, const fy_output *codes,
                         const fy_output *scales, ferry_error *error)
{
    job j = {.q = q, .k = fy_convert_kernels_here()};
    FY_TRY(fy_check_quantized(q, &j.facts, error));
    FY_TRY(fy_check_input("the values to quantize", q->n_rows, j.facts.value_row_bytes,
                          j.facts.value_bytes, values, &j.values, error));
    FY_TRY(
        fy_check_output("the codes", q->n_rows, j.facts.code_row_bytes, 1, codes, &j.codes, error));
    FY_TRY(fy_check_output("the scales", j.facts.scales[0], j.facts.scale_row_bytes,
                           j.facts.scale_bytes, scales, &j.scales, error));
    fenv_t before = fy_plain_arithmetic();
    visit_groups(&j, quantize_group);
    (void)fesetenv(&before);
    return FERRY_OK;
}

/* Of a group: its scales, and what its elements are divided by. */
static void scale_group(const job *j, const group *g)
{
    float scales[FY_MOST_BLOCKS];
    uint64_t block_row = g->row / j->q->format.block[0];
    uint64_t first_block = g->column / j->q->format.block[1];
    char *stored = j->scales.data + block_row * j->scales.pitch;
    char *divisors = j->codes.data + block_row * j->codes.pitch;
    find_largest(j, g, scales);
    fy_scales_make(j->q, j->k, scales, stored + first_block * j->facts.scale_bytes, g->n_blocks);
    memcpy(divisors + first_block * sizeof *scales, scales, g->n_blocks * sizeof *scales);
}

ferry_status fy_block_scales(const fy_quantized *q, const fy_input *values, const fy_output *scales,
                             const fy_output *divisors, ferry_error *error)
{
    job j = {.q = q, .k = fy_convert_kernels_here()};
    FY_TRY(fy_check_quantized(q, &j.facts, error));
    FY_TRY(fy_check_input("the values to quantize", q->n_rows, j.facts.value_row_bytes,
                          j.facts.value_bytes, values, &j.values, error));
    FY_TRY(fy_check_output("the scales", j.facts.scales[0], j.facts.scale_row_bytes,
                           j.facts.scale_bytes, scales, &j.scales, error));
    FY_TRY(fy_check_output("the divisors", j.facts.scales[0], j.facts.scales[1] * sizeof(float),
                           sizeof(float), divisors, &j.codes, error));
    fenv_t before = fy_plain_arithmetic();
    visit_groups(&j, scale_group);
    (void)fesetenv(&before);
    return FERRY_OK;
}

ferry_status fy_largest(uint32_t kind, uint64_t n_rows, uint64_t n_columns, const fy_input *values,
                        float *largest_out, ferry_error *error)
{
    fy_quantized q = {.format =
                          fy_format_f8(n_rows == 0 ? 1 : n_rows, n_columns == 0 ? 1 : n_columns),
                      .kind = kind,
                      .n_rows = n_rows,
                      .n_columns = n_columns};
    job j = {.q = &q, .k = fy_convert_kernels_here()};
    float largest = 0;
    FY_TRY(fy_check_quantized(&q, &j.facts, error));
    FY_TRY(fy_check_input("the values", n_rows, j.facts.value_row_bytes, j.facts.value_bytes,
                          values, &j.values, error));
    if (n_rows != 0 && n_columns != 0) {
        group g = {
            .n_rows = n_rows, .n_columns = n_columns, .n_blocks = 1, .width = (size_t)n_columns};
        find_largest(&j, &g, &largest);
    }
    *largest_out = largest;
    return FERRY_OK;
}

void fy_scales_of_largest(const fy_quantized *q, float *largest_inout, void *stored, uint64_t n)
{
    const fy_convert_kernels *k = fy_convert_kernels_here();
    fenv_t before = fy_plain_arithmetic();
    for (uint64_t at = 0, here; at < n; at += here) {
        here = fy_min(n - at, FY_MOST_BLOCKS);
        fy_scales_make(q, k, largest_inout + at,
                       (char *)stored + at * fy_scale_bytes(q->format.scale_kind), (size_t)here);
    }
    (void)fesetenv(&before);
}
