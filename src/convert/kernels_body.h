/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of kernels_<isa>.c: included once in each, with the compiler flags of that instruction
 * set and those that make it vectorise, after FY_CONVERT, the name of the kernels, is defined. The
 * loops are plain C, of 32-bit integers and of operations of f32 that are exact or rounded once: so
 * all instruction sets, and machines that have none of these, get the same bits.
 */
#include "convert/kernels.h"

#include <stdbool.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

#define FY_NUMBER static ALWAYS_INLINE
#include "convert/numbers.h"

static void widen_f16(float *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)from + 2 * i, sizeof half);
        to[i] = widen_one_f16(half);
    }
}

static void widen_bf16(float *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)from + 2 * i, sizeof half);
        to[i] = float_of((uint32_t)half << 16);
    }
}

static void widen_f8e4m3(float *to, const void *from, size_t n)
{
    const unsigned char *codes = from;
    for (size_t i = 0; i < n; i++) {
        to[i] = widen_one_f8e4m3(codes[i]);
    }
}

/* An f8e5m2 is the upper half of an f16. */
static void widen_f8e5m2(float *to, const void *from, size_t n)
{
    const unsigned char *codes = from;
    for (size_t i = 0; i < n; i++) {
        to[i] = widen_one_f16((uint32_t)codes[i] << 8);
    }
}

static void narrow_f64(float *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, (const char *)from + 8 * i, sizeof value);
        to[i] = (float)value;
    }
}

static void narrow_f16(void *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)narrow_one_f16(from[i]);
        memcpy((char *)to + 2 * i, &half, sizeof half);
    }
}

static void saturate_f16(void *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)saturate_one_f16(from[i]);
        memcpy((char *)to + 2 * i, &half, sizeof half);
    }
}

static void narrow_bf16(void *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)narrow_one_bf16(from[i]);
        memcpy((char *)to + 2 * i, &half, sizeof half);
    }
}

static void saturate_bf16(void *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half = (uint16_t)saturate_one_bf16(from[i]);
        memcpy((char *)to + 2 * i, &half, sizeof half);
    }
}

static void narrow_f8e4m3(void *to, const float *from, size_t n)
{
    unsigned char *codes = to;
    for (size_t i = 0; i < n; i++) {
        codes[i] = (unsigned char)narrow_one_f8e4m3(from[i]);
    }
}

static void saturate_f8e4m3(void *to, const float *from, size_t n)
{
    unsigned char *codes = to;
    for (size_t i = 0; i < n; i++) {
        codes[i] = (unsigned char)saturate_one_f8e4m3(from[i]);
    }
}

static void codes_f8e4m3(void *to, const float *from, size_t n)
{
    unsigned char *codes = to;
    for (size_t i = 0; i < n; i++) {
        codes[i] = (unsigned char)narrow_one_f8e4m3(capped(from[i], MOST_F8E4M3, F32_INFINITY));
    }
}

static void narrow_f8e5m2(void *to, const float *from, size_t n)
{
    unsigned char *codes = to;
    for (size_t i = 0; i < n; i++) {
        codes[i] = (unsigned char)narrow_one_f8e5m2(from[i]);
    }
}

static void saturate_f8e5m2(void *to, const float *from, size_t n)
{
    unsigned char *codes = to;
    for (size_t i = 0; i < n; i++) {
        codes[i] = (unsigned char)saturate_one_f8e5m2(from[i]);
    }
}

static void multiply(float *values, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        values[i] *= scale;
    }
}

static void divide(float *values, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        values[i] /= scale;
    }
}

/* Of blocks of one element no loop is made for each. */
static void multiply_blocks(float *restrict values, size_t n, size_t width,
                            const float *restrict scales)
{
    if (width == 1) {
        for (size_t i = 0; i < n; i++) {
            values[i] *= scales[i];
        }
        return;
    }
    for (size_t at = 0; at < n; at += width, scales++) {
        multiply(values + at, n - at < width ? n - at : width, *scales);
    }
}

static void divide_blocks(float *restrict values, size_t n, size_t width,
                          const float *restrict scales)
{
    if (width == 1) {
        for (size_t i = 0; i < n; i++) {
            values[i] /= scales[i];
        }
        return;
    }
    for (size_t at = 0; at < n; at += width, scales++) {
        divide(values + at, n - at < width ? n - at : width, *scales);
    }
}

static void plain_nans(float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(values[i]);
        values[i] = float_of((bits & 0x7fffffff) > F32_INFINITY ? 0x7fc00000 : bits);
    }
}

static void add(float *values, size_t n, float number)
{
    for (size_t i = 0; i < n; i++) {
        values[i] += number;
    }
}

#include "convert/blocks_body.h"
#if defined(__AVX512F__)
#include "convert/tables_body.h"
#endif

const fy_convert_kernels FY_CONVERT = {
    .widen_f16 = widen_f16,
    .widen_bf16 = widen_bf16,
    .widen_f8e4m3 = widen_f8e4m3,
    .widen_f8e5m2 = widen_f8e5m2,
    .widen_f4 = widen_f4,
    .narrow_f64 = narrow_f64,
    .narrow_f16 = narrow_f16,
    .narrow_bf16 = narrow_bf16,
    .narrow_f8e4m3 = narrow_f8e4m3,
    .narrow_f8e5m2 = narrow_f8e5m2,
    .saturate_f16 = saturate_f16,
    .saturate_bf16 = saturate_bf16,
    .saturate_f8e4m3 = saturate_f8e4m3,
    .saturate_f8e5m2 = saturate_f8e5m2,
    .codes_f8e4m3 = codes_f8e4m3,
    .multiply = multiply,
    .divide = divide,
    .multiply_blocks = multiply_blocks,
    .divide_blocks = divide_blocks,
    .add = add,
    .plain_nans = plain_nans,
    .largest = {[FY_VALUE_F32] = largest_f32,
                [FY_VALUE_F16] = largest_f16,
                [FY_VALUE_BF16] = largest_bf16},
    .largest_finite = {[FY_VALUE_F32] = largest_finite_f32,
                       [FY_VALUE_F16] = largest_finite_f16,
                       [FY_VALUE_BF16] = largest_finite_bf16},
    .quantize = {[FY_VALUE_F32] = QUANTIZE_FROM(f32), [FY_VALUE_BF16] = QUANTIZE_FROM(bf16)},
    .dequantize = {[FY_VALUE_F32] = DEQUANTIZE_TO(f32), [FY_VALUE_BF16] = DEQUANTIZE_TO(bf16)},
#if defined(__AVX512F__)
    .quantize_by_tables = quantize_by_tables,
    .dequantize_by_tables = dequantize_by_tables,
#endif
};
