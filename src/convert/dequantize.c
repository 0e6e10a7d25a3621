/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/format.h"

#include "base/checked.h"
#include "convert/scale.h"

/* Elements that are narrowed at once. */
enum { PIECE = 1024 };

typedef struct job {
    const fy_quantized *q;
    const fy_convert_kernels *k;
    fy_block_facts facts;
    fy_rows_in codes, scales;
    fy_rows_out values;
} job;

/* n columns of a row, of whole blocks but for the last one; more than a piece are of one block. */
static void dequantize_some(const job *j, char *to, const char *from, uint64_t n,
                            const float *factors)
{
    float values[PIECE];
    size_t width = (size_t)fy_min(j->q->format.block[1], n);
    if (j->facts.value != FY_VALUE_F16) {
        j->k->dequantize[j->facts.value][j->facts.code](to, from, (size_t)n, width, factors);
        return;
    }
    for (uint64_t at = 0; at < n; at += PIECE) {
        size_t here = (size_t)fy_min(n - at, PIECE);
        j->k->dequantize[FY_VALUE_F32][j->facts.code](
            values, from + (j->facts.code == FY_CODE_F4 ? at / 2 : at), here, width, factors);
        j->k->narrow_f16(to + 2 * at, values, here);
    }
}

/* Column by column of blocks, as many as factors are held for, and all rows of those blocks. */
static void dequantize_rows(const job *j, uint64_t first_row, uint64_t end_row)
{
    float factors[FY_MOST_BLOCKS];
    const fy_quantized *q = j->q;
    const char *scales = j->scales.data + first_row / q->format.block[0] * j->scales.pitch;
    uint64_t most = fy_group_columns(q), n;
    for (uint64_t column = 0; column < q->n_columns; column += n) {
        uint64_t block = column / q->format.block[1];
        uint64_t code = j->facts.code == FY_CODE_F4 ? column / 2 : column;
        n = fy_min(most, q->n_columns - column);
        fy_scales_read(q, j->k, factors, scales + block * j->facts.scale_bytes,
                       (size_t)fy_ceil_div(n, q->format.block[1]));
        for (uint64_t row = first_row; row < end_row; row++) {
            dequantize_some(j,
                            j->values.data + row * j->values.pitch + column * j->facts.value_bytes,
                            j->codes.data + row * j->codes.pitch + code, n, factors);
        }
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
        dequantize_rows(&j, row, row + n);
    }
    (void)fesetenv(&before);
    return FERRY_OK;
}
