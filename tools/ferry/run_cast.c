/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "run_cast.h"

#include <math.h>
#include <string.h>

/*
 * A floating-point type: a sign, exponent_bits, mantissa_bits. The exponent of all ones is infinity
 * and NaN, but in f8e4m3, where only all ones in the mantissa too are NaN, and in f4, which has
 * neither.
 */
typedef struct float_type {
    uint32_t exponent_bits;
    uint32_t mantissa_bits;
    bool has_infinity;
    bool has_no_nan;
} float_type;

static float_type type_of(ferry_dtype dtype)
{
    switch (dtype.kind) {
    case FERRY_F64:
        return (float_type){11, 52, true, false};
    case FERRY_F32:
        return (float_type){8, 23, true, false};
    case FERRY_F16:
        return (float_type){5, 10, true, false};
    case FERRY_BF16:
        return (float_type){8, 7, true, false};
    case FERRY_F8E5M2:
        return (float_type){5, 2, true, false};
    case FERRY_F4:
        return (float_type){2, 1, false, true};
    default:
        return (float_type){4, 3, false, false};
    }
}

static const float_type f32 = {8, 23, true, false};

static uint64_t ones(uint32_t n)
{
    return ((uint64_t)1 << n) - 1;
}

/* An element taken apart. */
typedef struct parts {
    bool is_negative;
    uint64_t exponent;
    uint64_t mantissa;
} parts;

static parts take_apart(float_type t, uint64_t bits)
{
    return (parts){.is_negative = bits >> (t.exponent_bits + t.mantissa_bits) & 1,
                   .exponent = bits >> t.mantissa_bits & ones(t.exponent_bits),
                   .mantissa = bits & ones(t.mantissa_bits)};
}

static bool is_nan(float_type t, uint64_t bits)
{
    parts p = take_apart(t, bits);
    if (t.has_no_nan || p.exponent != ones(t.exponent_bits)) {
        return false;
    }
    return t.has_infinity ? p.mantissa != 0 : p.mantissa == ones(t.mantissa_bits);
}

/* The power of two of the smallest number that is not 0. */
static int least_power(float_type t)
{
    int bias = (int)ones(t.exponent_bits - 1);
    return 1 - bias - (int)t.mantissa_bits;
}

/* Of one that is no NaN. */
static double value_of(float_type t, uint64_t bits)
{
    parts p = take_apart(t, bits);
    double value;
    if (t.has_infinity && p.exponent == ones(t.exponent_bits)) {
        value = INFINITY;
    } else if (p.exponent == 0) {
        value = ldexp((double)p.mantissa, least_power(t));
    } else {
        value = ldexp((double)(p.mantissa + ((uint64_t)1 << t.mantissa_bits)),
                      least_power(t) + (int)p.exponent - 1);
    }
    return p.is_negative ? -value : value;
}

/* The largest number, or what stands above it: infinity, and in f8e4m3 NaN; in f4 nothing does. */
static uint64_t end_of(float_type t, bool is_negative, bool is_above)
{
    uint64_t sign = (uint64_t)is_negative << (t.exponent_bits + t.mantissa_bits);
    uint64_t above = t.has_infinity ? ones(t.exponent_bits) << t.mantissa_bits
                                    : ones(t.exponent_bits + t.mantissa_bits) + t.has_no_nan;
    return sign | (is_above ? above : above - 1);
}

/* The nearest number of the type, a tie to the even one. */
static uint64_t round_to(float_type t, double value, bool saturates)
{
    bool is_negative = signbit(value) != 0;
    int power = 0, least = least_power(t);
    if (isinf(value)) {
        return end_of(t, is_negative, t.has_infinity || !saturates);
    }
    (void)frexp(value, &power);
    int unit = power - (int)t.mantissa_bits - 1;
    unit = unit < least ? least : unit;
    double units = ldexp(fabs(value), -unit); /* exact: below 2^53, and a double's smallest are 0 */
    double below = floor(units), rest = units - below;
    uint64_t n = (uint64_t)below;
    n += rest > 0.5 || (rest == 0.5 && (n & 1) != 0);
    /* Numbers of one sign are in the order of their bits: one unit more is one more. */
    uint64_t bits = n;
    if (n >= (uint64_t)1 << t.mantissa_bits) {
        bits = n - ((uint64_t)1 << t.mantissa_bits) +
               ((uint64_t)(unit - least + 1) << t.mantissa_bits);
    }
    uint64_t largest = end_of(t, false, false);
    if (bits > largest) {
        return end_of(t, is_negative, !saturates);
    }
    return bits | (uint64_t)is_negative << (t.exponent_bits + t.mantissa_bits);
}

/* In the larger type the payload stays; else it is quiet, with the upper bits, or f8's only one. */
static uint64_t cast_nan(float_type from, float_type to, uint64_t bits)
{
    parts p = take_apart(from, bits);
    uint64_t sign = (uint64_t)p.is_negative << (to.exponent_bits + to.mantissa_bits);
    uint64_t quiet = (uint64_t)1 << 22;
    uint64_t payload = from.has_infinity ? p.mantissa << (23 - from.mantissa_bits) : quiet;
    if (to.mantissa_bits < 7) {
        return sign | ones(to.exponent_bits + to.mantissa_bits);
    }
    payload |= to.mantissa_bits < 23 ? quiet : 0;
    return sign | ones(to.exponent_bits) << to.mantissa_bits | payload >> (23 - to.mantissa_bits);
}

run_cast run_cast_of(const ferry_conversion *conversion, ferry_dtype from, ferry_dtype to)
{
    return (run_cast){.from = from,
                      .to = to,
                      .saturates = conversion->saturates,
                      .scale = conversion->scale,
                      .add = conversion->add};
}

double run_float_value(ferry_dtype dtype, uint64_t bits)
{
    float_type t = type_of(dtype);
    return is_nan(t, bits) ? (double)NAN : value_of(t, bits);
}

uint64_t run_float_round(ferry_dtype dtype, double value, bool saturates)
{
    return round_to(type_of(dtype), value, saturates);
}

double run_float_f32(double value)
{
    return value_of(f32, round_to(f32, value, false));
}

uint64_t run_load_bits(const char *at, uint64_t n_bytes)
{
    uint64_t bits = 0;
    for (uint64_t i = n_bytes; i-- > 0;) {
        bits = bits << 8 | (uint8_t)at[i];
    }
    return bits;
}

void run_store_bits(char *at, uint64_t n_bytes, uint64_t bits)
{
    for (uint64_t i = 0; i < n_bytes; i++) {
        at[i] = (char)(bits >> 8 * i);
    }
}

run_cast_result run_cast_element(const run_cast *cast, uint64_t bits)
{
    float_type from = type_of(cast->from), to = type_of(cast->to);
    bool reckons = cast->scale != 1 || cast->add != 0 || cast->from.kind == FERRY_F64;
    const run_cast_result any = {.bits = end_of(to, false, true) | 1, .is_any_nan = true};
    if (is_nan(from, bits)) {
        return reckons ? any : (run_cast_result){.bits = cast_nan(from, to, bits)};
    }
    double value = run_float_f32(value_of(from, bits));
    if (cast->scale != 1) {
        value = run_float_f32(value * (double)cast->scale);
    }
    if (cast->add != 0) {
        value = run_float_f32(value + (double)cast->add);
    }
    return isnan(value) ? any : (run_cast_result){.bits = round_to(to, value, cast->saturates)};
}

bool run_cast_is_right(const run_cast *cast, run_cast_result wanted, uint64_t found)
{
    return wanted.is_any_nan ? is_nan(type_of(cast->to), found) : found == wanted.bits;
}
