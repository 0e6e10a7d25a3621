/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * One number from one type to another: what all kernels do, those of processors and those of
 * devices. Plain C of 32-bit integers and of operations of f32 that are exact or rounded once, to
 * be included after FY_NUMBER, what a function that is to be inlined begins with, is defined.
 */
#include <stdint.h>
#include <string.h>

enum { F32_INFINITY = 0x7f800000, F32_MANTISSA = 23, F32_BIAS = 127 };

FY_NUMBER uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FY_NUMBER float float_of(uint32_t bits)
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
FY_NUMBER uint32_t widened(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
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
FY_NUMBER uint32_t narrowed(uint32_t magnitude, uint32_t mantissa, uint32_t bias)
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

FY_NUMBER uint32_t least_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

FY_NUMBER float widen_one_f16(uint32_t half)
{
    uint32_t magnitude = half & 0x7fff, sign = (half & 0x8000) << 16;
    uint32_t bits = widened(magnitude, 10, 15);
    uint32_t special = F32_INFINITY | (magnitude & 0x3ff) << 13;
    return float_of(sign | (magnitude >= 0x7c00 ? special : bits));
}

FY_NUMBER float widen_one_f8e4m3(uint32_t code)
{
    uint32_t magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    return float_of(sign | (magnitude == 0x7f ? 0x7fc00000 : widened(magnitude, 3, 7)));
}

/* One number, rounded; what is too large becomes infinite, or NaN. */
FY_NUMBER uint32_t narrow_one_f16(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 10, 15), 0x7c00);
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    return (bits >> 16 & 0x8000) | (magnitude > F32_INFINITY ? nan : code);
}

FY_NUMBER uint32_t narrow_one_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > F32_INFINITY ? bits >> 16 | 0x40 : rounded;
}

FY_NUMBER uint32_t narrow_one_f8e4m3(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 3, 7), 0x7f);
    return (bits >> 24 & 0x80) | (magnitude >= F32_INFINITY ? 0x7f : code);
}

FY_NUMBER uint32_t narrow_one_f8e5m2(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = least_of(narrowed(magnitude, 2, 15), 0x7c);
    return (bits >> 24 & 0x80) | (magnitude > F32_INFINITY ? 0x7f : code);
}

/* Magnitudes below `end` are no more than `most`: so the roundings above saturate. */
FY_NUMBER float capped(float value, uint32_t most, uint32_t end)
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

FY_NUMBER uint32_t saturate_one_f16(float value)
{
    return narrow_one_f16(capped(value, MOST_F16, F32_INFINITY));
}

FY_NUMBER uint32_t saturate_one_bf16(float value)
{
    return narrow_one_bf16(capped(value, MOST_BF16, F32_INFINITY));
}

/* It has no infinity: that is the largest number, too. */
FY_NUMBER uint32_t saturate_one_f8e4m3(float value)
{
    return narrow_one_f8e4m3(capped(value, MOST_F8E4M3, F32_INFINITY + 1u));
}

FY_NUMBER uint32_t saturate_one_f8e5m2(float value)
{
    return narrow_one_f8e5m2(capped(value, MOST_F8E5M2, F32_INFINITY));
}
