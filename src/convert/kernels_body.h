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

enum { F32_INFINITY = 0x7f800000, F32_MANTISSA = 23, F32_BIAS = 127 };

static ALWAYS_INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static ALWAYS_INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/*
 * A type of so many bits of mantissa and this bias: its magnitude's bits as those of an f32. The
 * mantissa moves up and the exponent's bias is exchanged; a number below the smallest normal one
 * counts units in the last place: put into the mantissa of that power of two, which is then taken
 * away, it is the right f32.
 */
static ALWAYS_INLINE uint32_t widened(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
{
    uint32_t moved = magnitude << (F32_MANTISSA - mantissa);
    uint32_t least = (F32_BIAS + 1 - bias) << F32_MANTISSA; /* the smallest normal number */
    uint32_t normal = moved + ((F32_BIAS - bias) << F32_MANTISSA);
    uint32_t small = bits_of(float_of(moved + least) - float_of(least));
    return magnitude < 1u << mantissa ? small : normal;
}

/*
 * The other way, rounded: carries of the mantissa go into the exponent as they should. For numbers
 * below the smallest normal one, adding 2^23 units in the last place makes the processor round.
 * Infinity and what is beyond the type come out too large, NaN as anything.
 */
static ALWAYS_INLINE uint32_t narrowed(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
{
    uint32_t shift = F32_MANTISSA - mantissa;
    uint32_t least = (F32_BIAS + 1 - bias) << F32_MANTISSA;
    uint32_t unit = (F32_BIAS + 1 - bias - mantissa + F32_MANTISSA) << F32_MANTISSA;
    uint32_t even = (magnitude >> shift) & 1;
    uint32_t normal =
        ((magnitude + (1u << (shift - 1)) - 1 + even) >> shift) - ((F32_BIAS - bias) << mantissa);
    uint32_t capped = magnitude < least ? magnitude : 0;
    uint32_t small = bits_of(float_of(capped) + float_of(unit)) - unit;
    return magnitude < least ? small : normal;
}

static ALWAYS_INLINE uint32_t least_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static ALWAYS_INLINE float widen_one_f16(uint32_t half)
{
    uint32_t magnitude = half & 0x7fff, sign = (half & 0x8000) << 16;
    uint32_t bits = widened(magnitude, 10, 15);
    uint32_t special = F32_INFINITY | (magnitude & 0x3ff) << 13;
    return float_of(sign | (magnitude >= 0x7c00 ? special : bits));
}

static ALWAYS_INLINE float widen_one_f8e4m3(uint32_t code)
{
    uint32_t magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    return float_of(sign | (magnitude == 0x7f ? 0x7fc00000 : widened(magnitude, 3, 7)));
}

/* One number, rounded; what is too large becomes infinite, or NaN. */
static ALWAYS_INLINE uint32_t narrow_one_f16(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 10, 15), 0x7c00);
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    return (bits >> 16 & 0x8000) | (magnitude > F32_INFINITY ? nan : code);
}

static ALWAYS_INLINE uint32_t narrow_one_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > F32_INFINITY ? bits >> 16 | 0x40 : rounded;
}

static ALWAYS_INLINE uint32_t narrow_one_f8e4m3(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 3, 7), 0x7f);
    return (bits >> 24 & 0x80) | (magnitude >= F32_INFINITY ? 0x7f : code);
}

static ALWAYS_INLINE uint32_t narrow_one_f8e5m2(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 2, 15), 0x7c);
    return (bits >> 24 & 0x80) | (magnitude > F32_INFINITY ? 0x7f : code);
}

/* Magnitudes below `end` are no more than `most`: so the roundings above saturate. */
static ALWAYS_INLINE float capped(float value, uint32_t most, uint32_t end)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t least = least_of(magnitude, most);
    return float_of((bits & 0x80000000) | (magnitude < end ? least : magnitude));
}

/* The largest numbers of the types, as f32. */
enum {
    MOST_F16 = 0x477fe000,
    MOST_BF16 = 0x7f7f0000,
    MOST_F8E4M3 = 0x43e00000,
    MOST_F8E5M2 = 0x47600000,
    MOST_F4 = 0x40c00000
};

static ALWAYS_INLINE uint32_t saturate_one_f16(float value)
{
    return narrow_one_f16(capped(value, MOST_F16, F32_INFINITY));
}

static ALWAYS_INLINE uint32_t saturate_one_bf16(float value)
{
    return narrow_one_bf16(capped(value, MOST_BF16, F32_INFINITY));
}

/* It has no infinity: that is the largest number, too. */
static ALWAYS_INLINE uint32_t saturate_one_f8e4m3(float value)
{
    return narrow_one_f8e4m3(capped(value, MOST_F8E4M3, F32_INFINITY + 1u));
}

static ALWAYS_INLINE uint32_t saturate_one_f8e5m2(float value)
{
    return narrow_one_f8e5m2(capped(value, MOST_F8E5M2, F32_INFINITY));
}

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

#include "convert/blocks_body.h"
#if defined(__AVX512F__)
#include "convert/tables_body.h"
#endif

const fy_convert_kernels FY_CONVERT = {
    .widen_f16 = widen_f16,
    .widen_bf16 = widen_bf16,
    .widen_f8e4m3 = widen_f8e4m3,
    .widen_f8e5m2 = widen_f8e5m2,
    .narrow_f64 = narrow_f64,
    .narrow_f16 = narrow_f16,
    .narrow_bf16 = narrow_bf16,
    .narrow_f8e4m3 = narrow_f8e4m3,
    .narrow_f8e5m2 = narrow_f8e5m2,
    .saturate_f16 = saturate_f16,
    .saturate_bf16 = saturate_bf16,
    .saturate_f8e4m3 = saturate_f8e4m3,
    .saturate_f8e5m2 = saturate_f8e5m2,
    .multiply = multiply,
    .divide = divide,
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
