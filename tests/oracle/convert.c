/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "oracle/convert.h"

/* A number: digits x 2^exponent, or none. */
typedef enum class { FINITE, INFINITE, NOT_A_NUMBER } class;

typedef struct number {
    class class;
    bool is_negative;
    uint64_t digits; /* the lowest bit is set if something smaller was left off */
    int exponent;
    uint32_t payload; /* of NaN: the 23 bits that an f32 would have */
} number;

/* How a type writes numbers. */
static const struct form {
    int exponent_bits, mantissa_bits;
    bool has_infinity, has_nan;
} forms[] = {
    [ORACLE_F32] = {8, 23, true, true},    [ORACLE_F16] = {5, 10, true, true},
    [ORACLE_BF16] = {8, 7, true, true},    [ORACLE_F8E4M3] = {4, 3, false, true},
    [ORACLE_F8E5M2] = {5, 2, true, true},  [ORACLE_F4] = {2, 1, false, false},
    [ORACLE_F8E8M0] = {8, 0, false, true},
};

static uint32_t ones(int n)
{
    return n == 0 ? 0 : 0xffffffffu >> (32 - n);
}

int oracle_bits(oracle_type type)
{
    return type == ORACLE_F8E8M0 ? 8 : 1 + forms[type].exponent_bits + forms[type].mantissa_bits;
}

static int bias_of(oracle_type type)
{
    return (1 << (forms[type].exponent_bits - 1)) - 1;
}

/* The magnitude's code of the largest number. */
static uint32_t last_code(oracle_type type)
{
    uint32_t all = ones(oracle_bits(type) - 1);
    if (forms[type].has_infinity) {
        return all - (1u << forms[type].mantissa_bits);
    }
    return forms[type].has_nan ? all - 1 : all;
}

static number decode(oracle_type type, uint32_t code)
{
    const struct form *f = &forms[type];
    if (type == ORACLE_F8E8M0) {
        return (number){code == 255 ? NOT_A_NUMBER : FINITE, false, 1, (int)code - 127, 0};
    }
    uint32_t magnitude = code & ones(oracle_bits(type) - 1);
    uint32_t mantissa = magnitude & ones(f->mantissa_bits);
    int exponent = (int)(magnitude >> f->mantissa_bits);
    number n = {.is_negative = code >> (oracle_bits(type) - 1) != 0};
    if (magnitude > last_code(type)) {
        n.class = f->has_infinity && mantissa == 0 ? INFINITE : NOT_A_NUMBER;
        n.payload = f->has_infinity ? mantissa << (23 - f->mantissa_bits) : 1u << 22;
        return n;
    }
    n.digits = exponent == 0 ? mantissa : mantissa | 1u << f->mantissa_bits;
    n.exponent = (exponent == 0 ? 1 : exponent) - bias_of(type) - f->mantissa_bits;
    return n;
}

/* How far a number lies above the one it was rounded down to, on the way to the next. */
typedef enum remainder { NOTHING, BELOW_HALF, HALF, ABOVE_HALF } remainder;

static remainder after_shift(remainder before, bool bit)
{
    if (bit) {
        return before == NOTHING ? HALF : ABOVE_HALF;
    }
    return before == NOTHING ? NOTHING : BELOW_HALF;
}

/* The greatest magnitude's code, perhaps beyond the last, whose number is no more than n's. */
static uint64_t round_down(oracle_type type, const number *n, remainder *remainder_out)
{
    const struct form *f = &forms[type];
    int least = 1 - bias_of(type) - f->mantissa_bits; /* the unit of the smallest numbers */
    uint64_t digits = n->digits;
    int exponent = n->exponent;
    *remainder_out = NOTHING;
    if (digits == 0) {
        return 0;
    }
    while (digits >> (f->mantissa_bits + 1) != 0 || exponent < least) {
        *remainder_out = after_shift(*remainder_out, (digits & 1) != 0);
        digits >>= 1;
        exponent++;
    }
    while (digits >> f->mantissa_bits == 0 && exponent > least) {
        digits <<= 1;
        exponent--;
    }
    uint64_t steps = (uint64_t)(exponent - least);
    return digits >> f->mantissa_bits == 0
               ? digits
               : ((steps + 1) << f->mantissa_bits) + (digits & ones(f->mantissa_bits));
}

/* The nearest code of what is finite, ties to even; beyond the last where it is too large. */
static uint64_t nearest(oracle_type type, const number *n)
{
    remainder left;
    uint64_t code = round_down(type, n, &left);
    return code + (left == ABOVE_HALF || (left == HALF && code % 2 != 0));
}

static uint32_t with_sign(oracle_type type, const number *n, uint32_t magnitude)
{
    return magnitude | (n->is_negative ? 1u << (oracle_bits(type) - 1) : 0);
}

/* All ones, or the first bit of the mantissa and what there is room for of the payload. */
static uint32_t nan_of(oracle_type type, const number *n)
{
    uint32_t all = ones(oracle_bits(type) - 1);
    if (oracle_bits(type) == 8) {
        return with_sign(type, n, all);
    }
    int room = forms[type].mantissa_bits;
    return with_sign(type, n, (last_code(type) + 1) | 1u << (room - 1) | n->payload >> (23 - room));
}

/* infinity_is_large: where there is no infinity, it is as what is finite and too large. */
static uint32_t encode(oracle_type type, const number *n, bool saturates, bool infinity_is_large)
{
    uint32_t infinity = last_code(type) + 1; /* NaN where there is none */
    if (n->class == NOT_A_NUMBER) {
        return nan_of(type, n);
    }
    if (n->class == INFINITE) {
        bool is_large = !forms[type].has_infinity && saturates && infinity_is_large;
        return with_sign(type, n, is_large ? last_code(type) : infinity);
    }
    uint64_t code = nearest(type, n);
    if (code > last_code(type)) {
        return with_sign(type, n, saturates ? last_code(type) : infinity);
    }
    return with_sign(type, n, (uint32_t)code);
}

uint32_t oracle_cast(oracle_type from, uint32_t code, oracle_type to, bool saturates)
{
    number n = decode(from, code);
    if (from == to) {
        return code;
    }
    if (n.class == NOT_A_NUMBER && to == ORACLE_F32) {
        return with_sign(to, &n, 0x7f800000 | n.payload);
    }
    return encode(to, &n, saturates, true);
}

/* ---- arithmetic: exact, and rounded to f32 ---- */

static number from_f32(uint32_t bits)
{
    return decode(ORACLE_F32, bits);
}

static number rounded_to_f32(const number *n)
{
    return from_f32(encode(ORACLE_F32, n, false, false));
}

static number nothing(class which, bool is_negative)
{
    return (number){which, is_negative, 0, 0, 0};
}

static number product(const number *a, const number *b)
{
    bool is_negative = a->is_negative != b->is_negative;
    bool a_is_zero = a->class == FINITE && a->digits == 0;
    bool b_is_zero = b->class == FINITE && b->digits == 0;
    if (a->class == NOT_A_NUMBER || b->class == NOT_A_NUMBER ||
        (a->class == INFINITE && b_is_zero) || (b->class == INFINITE && a_is_zero)) {
        return nothing(NOT_A_NUMBER, false);
    }
    if (a->class == INFINITE || b->class == INFINITE) {
        return nothing(INFINITE, is_negative);
    }
    /* Digits of f32 are at most 24: those of the product fit. */
    number exact = {FINITE, is_negative, a->digits * b->digits, a->exponent + b->exponent, 0};
    return rounded_to_f32(&exact);
}

/* Of what may be anything over a number above zero. */
static number quotient(const number *a, const number *b)
{
    if (a->class != FINITE || a->digits == 0) {
        return *a;
    }
    uint64_t digits = a->digits;
    int exponent = a->exponent;
    for (; digits >> 62 == 0; exponent--) {
        digits <<= 1;
    }
    /* At least 38 digits, more than f32 has, and one for what is left over. */
    number exact = {FINITE, a->is_negative, digits / b->digits << 1, exponent - b->exponent - 1, 0};
    exact.digits |= digits % b->digits != 0;
    return rounded_to_f32(&exact);
}

/* ---- blocks ---- */

static bool is_less(const number *a, const number *b)
{
    /* As f32, which holds every element: its codes are in the order of the magnitudes. */
    return nearest(ORACLE_F32, a) < nearest(ORACLE_F32, b);
}

static number at_least(const number *a, const number *least)
{
    return is_less(a, least) ? *least : *a;
}

static number power(int exponent)
{
    return (number){FINITE, false, 1, exponent, 0};
}

/* Rounded down, of what is above zero. */
static int logarithm(const number *n)
{
    int result = n->exponent - 1;
    for (uint64_t digits = n->digits; digits != 0; digits >>= 1) {
        result++;
    }
    return result;
}

static number largest_code(oracle_type type)
{
    return decode(type, last_code(type));
}

static number scale_power(const oracle_block *b, const number *largest)
{
    number q = largest_code(b->to);
    int least = b->scale_type == ORACLE_F32 ? -126 : -127;
    int exponent = logarithm(largest) - logarithm(&q);
    if (b->rule == ORACLE_COVER) {
        /* From far below: the first one that is enough. */
        for (exponent -= 3;; exponent++) {
            number covered = {FINITE, false, q.digits, q.exponent + exponent, 0};
            int up = logarithm(&covered) - logarithm(largest);
            /* Compared exactly: both with 40 digits. */
            uint64_t x = covered.digits, y = largest->digits;
            while (x >> 39 == 0) {
                x <<= 1;
            }
            while (y >> 39 == 0) {
                y <<= 1;
            }
            if (up > 0 || (up == 0 && x >= y)) {
                break;
            }
        }
    }
    return power(exponent < least ? least : exponent);
}

/* What the definitions call s: the number that its code stands for. */
static number scale_of(const oracle_block *b, const number *largest, uint32_t *code_out)
{
    number scale = power(0), q = largest_code(b->to), least = power(-126);
    number tensor = from_f32(b->tensor_scale);
    if (largest->class == NOT_A_NUMBER) {
        scale = nothing(NOT_A_NUMBER, false);
    } else if (largest->digits == 0) {
        scale = power(0);
    } else if (b->rule != ORACLE_LARGEST) {
        scale = scale_power(b, largest);
    } else if (b->scale_type == ORACLE_F32) {
        scale = quotient(largest, &q);
        scale = at_least(&scale, &least);
    } else {
        number whole = product(&q, &tensor);
        scale = quotient(largest, &whole);
        scale = decode(ORACLE_F8E4M3, encode(ORACLE_F8E4M3, &scale, true, true));
        least = power(-9);
        scale = at_least(&scale, &least);
    }
    if (b->scale_type == ORACLE_F8E8M0) {
        *code_out = scale.class == NOT_A_NUMBER ? 255 : (uint32_t)(scale.exponent + 127);
    } else if (scale.class == NOT_A_NUMBER) {
        *code_out = b->scale_type == ORACLE_F32 ? 0x7fc00000 : 0x7f;
    } else {
        *code_out = encode(b->scale_type, &scale, false, false);
    }
    return b->scale_type == ORACLE_F8E4M3 ? product(&scale, &tensor) : scale;
}

uint32_t oracle_quantize(const oracle_block *b, const uint32_t *elements, size_t n, uint32_t *codes)
{
    number largest = {FINITE, false, 0, 0, 0};
    bool is_lost = false;
    uint32_t scale_code;
    for (size_t i = 0; i < n; i++) {
        number element = decode(b->from, elements[i]);
        if (element.class != FINITE) {
            is_lost = is_lost || b->to == ORACLE_F4;
        } else {
            element.is_negative = false;
            largest = at_least(&element, &largest);
        }
    }
    largest = is_lost ? nothing(NOT_A_NUMBER, false) : largest;
    number scale = scale_of(b, &largest, &scale_code);
    for (size_t i = 0; i < n; i++) {
        number element = decode(b->from, elements[i]);
        number value = is_lost ? element : quotient(&element, &scale);
        codes[i] = is_lost ? 0 : encode(b->to, &value, true, false);
    }
    return scale_code;
}

uint32_t oracle_dequantize(const oracle_block *b, uint32_t code, uint32_t scale)
{
    number c = decode(b->to, code), s = decode(b->scale_type, scale);
    number tensor = from_f32(b->tensor_scale);
    s = b->scale_type == ORACLE_F8E4M3 ? product(&s, &tensor) : s;
    number value = product(&c, &s);
    return value.class == NOT_A_NUMBER ? nan_of(b->from, &value)
                                       : encode(b->from, &value, false, false);
}
