/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/format.h"

#include "base/checked.h"
#include "convert/cast.h"
#include "convert/scale.h"
#include "convert/tables.h"

typedef struct job {
    const fy_quantized *q;
    const fy_convert_kernels *k;
    fy_block_facts facts;
    fy_rows_in codes, scales;
    fy_rows_out values;
} job;

/* n columns of a row, of whole blocks but for the last one. */
static void dequantize_row(const job *j, char *to, const char *from, uint64_t n, size_t width,
                           const float *factors)
{
    float values[FY_PIECE];
    if (j->facts.value != FY_VALUE_F16) {
        j->k->dequantize[j->facts.value][j->facts.code](to, from, (size_t)n, width, factors);
        return;
    }
    for (uint64_t at = 0, here; at < n; at += here) {
        here = fy_piece(at, n, width);
        j->k->dequantize[FY_VALUE_F32][j->facts.code](
            values, from + (j->facts.code == FY_CODE_F4 ? at / 2 : at), (size_t)here, width,
            factors + at / width);
        j->k->narrow_f16(to + 2 * at, values, (size_t)here);
    }
}

/* Some whole blocks beside each other. */
typedef struct group {
    char *to;
    const char *from;
    uint64_t n_rows, n_columns;
    size_t n_blocks;
} group;

static void dequantize_group(const job *j, const group *g, const float *factors)
{
    fy_code_table tables[FY_MOST_TABLES];
    uint64_t width = fy_min(j->q->format.block[1], g->n_columns);
    bool has_tables = fy_tables_pay(j->k, &j->facts, g->n_blocks, g->n_rows * width);
    if (has_tables) {
        fy_dequantize_tables(j->k, factors, g->n_blocks, tables);
    }
    for (uint64_t row = 0; row < g->n_rows; row++) {
        char *to = g->to + row * j->values.pitch;
        const char *from = g->from + row * j->codes.pitch;
        if (has_tables) {
            j->k->dequantize_by_tables(to, from, (size_t)g->n_columns, (size_t)width, tables);
        } else {
            dequantize_row(j, to, from, g->n_columns, (size_t)width, factors);
        }
    }
}

/* A row of blocks: as many of them at once as factors are held for. */
static void dequantize_rows(const job *j, uint64_t first_row, uint64_t n_rows)
{
    float factors[FY_MOST_BLOCKS];
    const fy_quantized *q = j->q;
    const char *scales = j->scales.data + first_row / q->format.block[0] * j->scales.pitch;
    uint64_t most = fy_group_columns(q), n;
    for (uint64_t column = 0; column < q->n_columns; column += n) {
        uint64_t code = j->facts.code == FY_CODE_F4 ? column / 2 : column;
        n = fy_min(most, q->n_columns - column);
        group g = {.to =
                       j->values.data + first_row * j->values.pitch + column * j->facts.value_bytes,
                   .from = j->codes.data + first_row * j->codes.pitch + code,
                   .n_rows = n_rows,
                   .n_columns = n,
                   .n_blocks = (size_t)fy_ceil_div(n, q->format.block[1])};
        fy_scales_read(q, j->k, factors,
                       scales + column / q->format.block[1] * j->facts.scale_bytes, g.n_blocks);
        dequantize_group(j, &g, factors);
    }
}

ferry_status fy_dequantize(const fy_quantized *q, const fy_input *codes, const fy_input *scales,
                           const fy_output *values, ferry_error *error)
{
    job j = {.q = q, .k = fy_convert_kernels_here()};
    FY_TRY(fy_check_quantized(q, &j.facts, error));
    FY_TRY(
        fy_check_input("the codes", q->n_rows, j.facts.code_row_bytes, 1, codes, &j.codes, error));
    FY_TRY(fy_check_input("the scales", j.facts.scales[0], j.facts.scale_row_bytes,
                          j.facts.scale_bytes, scales, &j.scales, error));
    FY_TRY(fy_check_output("the values", q->n_rows, j.facts.value_row_bytes, j.facts.value_bytes,
                           values, &j.values, error));
    fenv_t before = fy_plain_arithmetic();
    for (uint64_t row = 0, n; row < q->n_rows; row += n) {
        n = fy_min(q->format.block[0], q->n_rows - row);
        dequantize_rows(&j, row, n);
    }
    (void)fesetenv(&before);
    return FERRY_OK;
}

/* n columns of a row, of whole blocks but for the last one. */
static void scale_row(const job *j, char *row, uint64_t n, uint64_t width, const float *factors)
{
    _Alignas(64) float values[FY_PIECE];
    for (uint64_t at = 0, here; at < n; at += here) {
        char *place = row + at * j->facts.value_bytes;
        here = fy_piece(at, n, width);
        fy_widen(j->k, j->q->kind, values, place, (size_t)here);
        /* A piece is of whole blocks, or of one. */
        j->k->multiply_blocks(values, (size_t)here, (size_t)width, factors + at / width);
        j->k->plain_nans(values, (size_t)here);
        fy_narrow(j->k, j->q->kind, FY_OVERFLOW_PLAIN, place, values, (size_t)here);
    }
}

/* A row of blocks. */
static void scale_rows(const job *j, uint64_t first_row, uint64_t n_rows)
{
    float factors[FY_MOST_BLOCKS];
    const fy_quantized *q = j->q;
    uint64_t width = q->format.block[1], most = fy_group_columns(q), n;
    const char *scales = j->scales.data + first_row / q->format.block[0] * j->scales.pitch;
    for (uint64_t column = 0; column < q->n_columns; column += n) {
        n = fy_min(most, q->n_columns - column);
        fy_scales_read(q, j->k, factors, scales + column / width * j->facts.scale_bytes,
                       (size_t)fy_ceil_div(n, width));
        for (uint64_t row = first_row; row < first_row + n_rows; row++) {
            char *to = j->values.data + row * j->values.pitch + column * j->facts.value_bytes;
            scale_row(j, to, n, width, factors);
        }
    }
}

ferry_status fy_scale_values(const fy_quantized *q, const fy_input *scales, const fy_output *values,
                             ferry_error *error)
{
    job j = {.q = q, .k = fy_convert_kernels_here()};
    FY_TRY(fy_check_quantized(q, &j.facts, error));
    FY_TRY(fy_check_input("the scales", j.facts.scales[0], j.facts.scale_row_bytes,
                          j.facts.scale_bytes, scales, &j.scales, error));
    FY_TRY(fy_check_output("the values", q->n_rows, j.facts.value_row_bytes, 1, values, &j.values,
                           error));
    fenv_t before = fy_plain_arithmetic();
    for (uint64_t row = 0, n; row < q->n_rows; row += n) {
        n = fy_min(q->format.block[0], q->n_rows - row);
        scale_rows(&j, row, n);
    }
    (void)fesetenv(&before);
    return FERRY_OK;
}
