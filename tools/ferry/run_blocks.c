/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "run_blocks.h"

#include "run_cast.h"

#include <math.h>
#include <stdlib.h>

enum { ROW_BYTES = 4096, RULE_LARGEST = 0, RULE_COVER = 1 };

run_quantized run_quantized_of(const char *values, ferry_dtype dtype,
                               const ferry_conversion *conversion, const uint64_t *shape,
                               uint32_t n_dims)
{
    return (run_quantized){.key = run_key_of(values),
                           .values = dtype,
                           .format = conversion,
                           .rows = shape[n_dims - 2],
                           .columns = shape[n_dims - 1]};
}

void run_quantized_values(const run_quantized *q, char *memory, uint64_t first, uint64_t n,
                          uint64_t bytes)
{
    if (q->parts != NULL) {
        run_parts_fill(q->parts, memory, first, n, bytes);
    } else {
        run_pattern_fill(memory, q->key, first * bytes, n * bytes, 0);
    }
}

static bool is_f4(const run_quantized *q)
{
    return q->format->code_dtype.kind == FERRY_F4;
}

static uint64_t count_blocks(uint64_t extent, uint64_t block)
{
    return (extent + block - 1) / block;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The greatest magnitude of n elements from one on, of those that are finite; whether all are. */
static double greatest_in_row(const run_quantized *q, uint64_t first, uint64_t n, double greatest,
                              bool *all_finite)
{
    char row[ROW_BYTES];
    uint64_t bytes = q->values.element_bits / 8, most = ROW_BYTES / bytes;
    for (uint64_t done = 0, here; done < n; done += here) {
        here = least(n - done, most);
        run_quantized_values(q, row, first + done, here, bytes);
        for (uint64_t i = 0; i < here; i++) {
            double value = fabs(run_float_value(q->values, run_load_bits(row + i * bytes, bytes)));
            greatest = isfinite(value) && value > greatest ? value : greatest;
            *all_finite = *all_finite && isfinite(value);
        }
    }
    return greatest;
}

/* What elements of a block are divided by. q: the largest number of the codes' type. */
static double divisor_of(const ferry_conversion *format, double greatest)
{
    double largest = format->code_dtype.kind == FERRY_F8E4M3 ? 448 : 57344;
    int of_greatest = 0, of_largest = 0, power;
    if (greatest == 0) {
        return 1;
    }
    if (format->scale_rule == RULE_LARGEST) {
        return fmax(run_float_f32(greatest / largest), ldexp(1, -126));
    }
    /* x = m * 2^e, with 0.5 <= m < 1 */
    double m = frexp(greatest, &of_greatest), most = frexp(largest, &of_largest);
    power = of_greatest - of_largest;
    if (format->scale_rule == RULE_COVER && m > most) {
        power++;
    }
    int least_power = format->scale_dtype.kind == FERRY_F8E8M0 ? -127 : -126;
    return ldexp(1, power < least_power ? least_power : power);
}

/* Codes of f4 have a scale of f8e4m3 and one of their matrix, which is given. */
static run_block_scale scale_f4(const run_quantized *q, uint64_t plane, double greatest)
{
    const ferry_dtype f32 = {FERRY_F32, 32};
    char bytes[sizeof(float)];
    run_pattern_fill(bytes, q->given, plane * sizeof bytes, sizeof bytes, 0);
    double given = run_float_value(f32, run_load_bits(bytes, sizeof bytes));
    double quotient = run_float_f32(greatest / run_float_f32(6 * given));
    quotient = greatest == 0 ? 1 : fmax(quotient, ldexp(1, -9));
    uint64_t bits = run_float_round(q->format->scale_dtype, quotient, true);
    double scale = run_float_value(q->format->scale_dtype, bits);
    return (run_block_scale){.bits = bits, .divisor = run_float_f32(scale * given)};
}

/* f8e8m0 counts powers of two from 2^-127 on. */
static uint64_t stored_bits(const ferry_conversion *format, double divisor)
{
    if (format->scale_dtype.kind == FERRY_F8E8M0) {
        return (uint64_t)(ilogb(divisor) + 127);
    }
    return run_float_round(format->scale_dtype, divisor, false);
}

static run_block_scale reckon(const run_quantized *q, uint64_t block)
{
    const uint64_t *size = q->format->block;
    uint64_t across = count_blocks(q->columns, size[1]), down = count_blocks(q->rows, size[0]);
    uint64_t plane = block / (across * down), row = block / across % down * size[0];
    uint64_t column = block % across * size[1], width = least(size[1], q->columns - column);
    double greatest = 0;
    bool all_finite = true;
    run_block_scale scale;
    for (uint64_t r = row; r < least(row + size[0], q->rows); r++) {
        uint64_t first = (plane * q->rows + r) * q->columns + column;
        greatest = greatest_in_row(q, first, width, greatest, &all_finite);
    }
    if (is_f4(q)) {
        scale = scale_f4(q, plane, greatest);
        scale.is_lost = !all_finite;
        scale.bits = all_finite ? scale.bits : 0x7f;
    } else {
        double divisor = divisor_of(q->format, greatest);
        scale = (run_block_scale){.bits = stored_bits(q->format, divisor), .divisor = divisor};
    }
    scale.format = q->format;
    scale.key = q->key.bits;
    scale.block = block;
    return scale;
}

void run_blocks_free(run_blocks *blocks)
{
    free(blocks->kept);
    *blocks = (run_blocks){.kept = NULL};
}

/* Where the scale of a block is kept: those of one row of blocks are in different places. */
static run_block_scale *place_of(run_blocks *blocks, const run_quantized *q, uint64_t block)
{
    uint64_t across = count_blocks(q->columns, q->format->block[1]);
    uint64_t wanted = across > RUN_BLOCKS_KEPT ? across : RUN_BLOCKS_KEPT;
    if (wanted > blocks->n_kept) {
        run_block_scale *grown = calloc(wanted, sizeof *grown);
        if (grown != NULL) {
            free(blocks->kept);
            blocks->kept = grown;
            blocks->n_kept = wanted;
        }
    }
    return blocks->n_kept == 0 ? &blocks->last : &blocks->kept[block % blocks->n_kept];
}

static const run_block_scale *scale_of(run_blocks *blocks, const run_quantized *q, uint64_t block)
{
    run_block_scale *kept = place_of(blocks, q, block);
    if (kept->format != q->format || kept->key != q->key.bits || kept->block != block) {
        *kept = reckon(q, block);
    }
    return kept;
}

uint64_t run_blocks_scale(run_blocks *blocks, const run_quantized *q, uint64_t number)
{
    return scale_of(blocks, q, number)->bits;
}

uint64_t run_blocks_code(run_blocks *blocks, const run_quantized *q, uint64_t element,
                         uint64_t bits)
{
    const uint64_t *size = q->format->block;
    uint64_t row = element / q->columns % q->rows, plane = element / q->columns / q->rows;
    uint64_t down = count_blocks(q->rows, size[0]), across = count_blocks(q->columns, size[1]);
    uint64_t block = (plane * down + row / size[0]) * across + element % q->columns / size[1];
    ferry_dtype codes = q->format->code_dtype;
    double value = run_float_value(q->values, bits);
    if (is_f4(q) && scale_of(blocks, q, block)->is_lost) {
        return 0;
    }
    if (isnan(value) || (isinf(value) && codes.kind == FERRY_F8E4M3)) { /* all ones */
        return bits >> (q->values.element_bits - 1) << 7 | 0x7f;
    }
    double quotient = run_float_f32(value / scale_of(blocks, q, block)->divisor);
    return run_float_round(codes, quotient, true);
}

/* f8e8m0: powers of two from 2^-127 on; the last is no number. */
static double scale_value(ferry_dtype dtype, uint64_t bits)
{
    if (dtype.kind != FERRY_F8E8M0) {
        return run_float_value(dtype, bits);
    }
    return bits == 255 ? (double)NAN : ldexp(1, (int)bits - 127);
}

/* The one NaN that there is then: quiet, without a sign or a payload. */
static uint64_t plain_nan(ferry_dtype dtype)
{
    return dtype.kind == FERRY_F32 ? 0x7fc00000 : dtype.kind == FERRY_F16 ? 0x7e00 : 0x7fc0;
}

uint64_t run_scaled_number(const ferry_conversion *format, uint64_t rows, uint64_t columns,
                           uint64_t element)
{
    const uint64_t *size = format->block;
    uint64_t down = count_blocks(rows, size[0]), across = count_blocks(columns, size[1]);
    uint64_t row = element / columns % rows, plane = element / columns / rows;
    return (plane * down + row / size[0]) * across + element % columns / size[1];
}

uint64_t run_scaled_value(const run_scaled *scaled, uint64_t scale, uint64_t matrix, uint64_t code)
{
    const ferry_dtype f32 = {.kind = FERRY_F32, .element_bits = 32};
    ferry_dtype of_scales = scaled->format->scale_dtype;
    uint64_t bytes = of_scales.element_bits / 8;
    double factor = scale_value(of_scales, run_load_bits(scaled->scales + scale * bytes, bytes));
    if (scaled->matrix_scales != NULL && !isnan(factor)) {
        const char *at = scaled->matrix_scales + matrix * sizeof(float);
        factor = run_float_f32(factor * run_float_value(f32, run_load_bits(at, sizeof(float))));
    }
    /* Both have few bits: the product is exact, but for being rounded to f32. */
    double value = run_float_value(scaled->format->code_dtype, code) * factor;
    return isnan(value) ? plain_nan(scaled->to)
                        : run_float_round(scaled->to, run_float_f32(value), false);
}
