/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions on numbers with a fraction. f32 and f64 are this machine's, which rounds as .rn says
 * and forgets no small number; what is NaN becomes the one NaN that PTX promises. Narrower numbers
 * are made by arithmetic of doubles, which is exact here, and not by moving bits, as the kernels do
 * it. An f32 operation without a rounding is left out: ptxas may make one of two of them.
 */
#include "device/ptx/program.h"

#include <math.h>
#include <string.h>

enum { NAN_F32 = 0x7fffffff, NAN_F16 = 0x7fff, NAN_F8 = 0x7f };

static float f32(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}

static uint64_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t reckoned(float value)
{
    return isnan(value) ? NAN_F32 : bits_of_f32(value);
}

static double f64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#define RECKON(name, ...)                                                                          \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d)                           \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)b;                                                                                   \
        (void)c;                                                                                   \
        (void)d;                                                                                   \
        return (uint64_t)(__VA_ARGS__);                                                            \
    }

RECKON(add_f32, reckoned(f32(a) + f32(b)))
RECKON(sub_f32, reckoned(f32(a) - f32(b)))
RECKON(mul_f32, reckoned(f32(a) * f32(b)))
RECKON(div_f32, reckoned(f32(a) / f32(b)))
RECKON(rcp_f32, reckoned(1.0f / f32(a)))
RECKON(sqrt_f32, reckoned(sqrtf(f32(a))))
RECKON(fma_f32, reckoned(fmaf(f32(a), f32(b), f32(c))))
RECKON(neg_f32, a ^ 0x80000000u)
RECKON(abs_f32, a & 0x7fffffffu)
RECKON(copysign_f32, (a & 0x80000000u) | (b & 0x7fffffffu))

/* The one that is no NaN, if there is one; of zeros the negative one is less. */
static uint64_t lesser(uint64_t a, uint64_t b, bool takes_greater)
{
    float x = f32(a), y = f32(b);
    if (isnan(x) || isnan(y)) {
        return isnan(x) && isnan(y) ? (uint64_t)NAN_F32 : isnan(x) ? b : a;
    }
    bool a_is_less = x < y || (x == y && signbit(x) != 0);
    return a_is_less != takes_greater ? a : b;
}
RECKON(min_f32, lesser(a, b, false))
RECKON(max_f32, lesser(a, b, true))

RECKON(eq_f32, f32(a) == f32(b))
RECKON(ne_f32, f32(a) < f32(b) || f32(a) > f32(b))
RECKON(lt_f32, f32(a) < f32(b))
RECKON(le_f32, f32(a) <= f32(b))
RECKON(gt_f32, f32(a) > f32(b))
RECKON(ge_f32, f32(a) >= f32(b))
RECKON(neu_f32, !(f32(a) == f32(b)))
RECKON(equ_f32, !(f32(a) < f32(b) || f32(a) > f32(b)))
RECKON(ltu_f32, !(f32(a) >= f32(b)))
RECKON(leu_f32, !(f32(a) > f32(b)))
RECKON(gtu_f32, !(f32(a) <= f32(b)))
RECKON(geu_f32, !(f32(a) < f32(b)))
RECKON(num_f32, !isnan(f32(a)) && !isnan(f32(b)))
RECKON(nan_f32, isnan(f32(a)) || isnan(f32(b)))

/*
 * Narrow types: so many bits of mantissa, the exponent of the least normal number, and the code of
 * what comes behind the largest number.
 */
typedef struct narrow_type {
    int mantissa, least;
    uint32_t beyond, nan;
    uint32_t bits;
} narrow_type;

static const narrow_type f16_type = {10, -14, 0x7c00, NAN_F16, 16};
static const narrow_type bf16_type = {7, -126, 0x7f80, NAN_F16, 16};
static const narrow_type e4m3_type = {3, -6, 0x7f, NAN_F8, 8};
static const narrow_type e5m2_type = {2, -14, 0x7c, NAN_F8, 8};

/* Rounded to the nearest, ties to even: units in the last place are counted. */
static uint32_t narrowed(const narrow_type *to, double value, bool saturates)
{
    double magnitude = fabs(value);
    uint32_t sign = signbit(value) != 0 ? 1u << (to->bits - 1) : 0, code = to->beyond;
    if (isnan(value)) {
        return to->nan;
    }
    if (!isinf(value)) {
        int exponent = to->least;
        if (magnitude > 0) {
            int above;
            frexp(magnitude, &above);
            exponent = above - 1 > to->least ? above - 1 : to->least;
        }
        double units = rint(ldexp(magnitude, to->mantissa - exponent));
        double all = ldexp((double)(exponent - to->least), to->mantissa) + units;
        code = all < (double)to->beyond ? (uint32_t)all : to->beyond;
    }
    code = saturates && code == to->beyond ? to->beyond - 1 : code;
    return sign | code;
}

static double widened(const narrow_type *from, uint32_t code)
{
    uint32_t magnitude = code & ((1u << (from->bits - 1)) - 1);
    uint32_t field = magnitude >> from->mantissa;
    double fraction = (double)(magnitude & ((1u << from->mantissa) - 1));
    double value = field == 0 ? ldexp(fraction, from->least - from->mantissa)
                              : ldexp(fraction + ldexp(1, from->mantissa),
                                      (int)field - 1 + from->least - from->mantissa);
    bool has_infinity = from->beyond != from->nan;
    value = has_infinity && magnitude == from->beyond ? (double)INFINITY : value;
    value = magnitude > from->beyond || (!has_infinity && magnitude == from->beyond) ? (double)NAN
                                                                                     : value;
    return (code >> (from->bits - 1) & 1) != 0 ? -value : value;
}

RECKON(f32_of_f16, reckoned((float)widened(&f16_type, (uint32_t)a & 0xffff)))
RECKON(f32_of_bf16, reckoned((float)widened(&bf16_type, (uint32_t)a & 0xffff)))
RECKON(f16_of_f32, narrowed(&f16_type, (double)f32(a), false))
RECKON(bf16_of_f32, narrowed(&bf16_type, (double)f32(a), false))

/* Two at once: the first source goes to the upper half. */
static uint64_t pair(const narrow_type *to, uint64_t a, uint64_t b, bool saturates)
{
    uint64_t high = narrowed(to, (double)f32(a), saturates);
    return high << to->bits | narrowed(to, (double)f32(b), saturates);
}
RECKON(f16x2_of_f32, pair(&f16_type, a, b, false))
RECKON(bf16x2_of_f32, pair(&bf16_type, a, b, false))
RECKON(e4m3x2_of_f32, pair(&e4m3_type, a, b, true))
RECKON(e5m2x2_of_f32, pair(&e5m2_type, a, b, true))

static uint64_t halves(const narrow_type *from, uint64_t a)
{
    uint64_t high = narrowed(&f16_type, widened(from, (uint32_t)(a >> 8 & 0xff)), false);
    return high << 16 | narrowed(&f16_type, widened(from, (uint32_t)(a & 0xff)), false);
}
RECKON(f16x2_of_e4m3x2, halves(&e4m3_type, a))
RECKON(f16x2_of_e5m2x2, halves(&e5m2_type, a))

/* To whole numbers: what is too large becomes the largest, and NaN 0. */
static uint64_t whole(double value, double least, double most)
{
    value = isnan(value) ? 0 : value < least ? least : value > most ? most : value;
    return value < 0 ? 0 - (uint64_t)-value : (uint64_t)value;
}
RECKON(u32_rzi_f32, whole(trunc((double)f32(a)), 0, 4294967295.0))
RECKON(s32_rzi_f32, whole(trunc((double)f32(a)), -2147483648.0, 2147483647.0))
RECKON(u32_rni_f32, whole(rint((double)f32(a)), 0, 4294967295.0))
RECKON(s32_rni_f32, whole(rint((double)f32(a)), -2147483648.0, 2147483647.0))
RECKON(f32_rn_u32, bits_of_f32((float)(uint32_t)a))
RECKON(f32_rn_s32, bits_of_f32((float)(int32_t)a))
RECKON(f32_rn_u64, bits_of_f32((float)a))
RECKON(f32_rn_s64, bits_of_f32((float)(int64_t)a))
RECKON(f32_rni_f32, reckoned(rintf(f32(a))))
RECKON(f64_of_f32, bits_of_f64((double)f32(a)))
RECKON(f32_of_f64, reckoned((float)f64(a)))
RECKON(add_f64, bits_of_f64(f64(a) + f64(b)))
RECKON(mul_f64, bits_of_f64(f64(a) * f64(b)))

#define COMPARED(how)                                                                              \
    {                                                                                              \
        "setp." #how ".f32", "p=ww", how##_f32                                                     \
    }

static const ptx_row rows[] = {
    {"add.rn.f32", "w=ww", add_f32},
    {"sub.rn.f32", "w=ww", sub_f32},
    {"mul.rn.f32", "w=ww", mul_f32},
    {"div.rn.f32", "w=ww", div_f32},
    {"rcp.rn.f32", "w=w", rcp_f32},
    {"sqrt.rn.f32", "w=w", sqrt_f32},
    {"fma.rn.f32", "w=www", fma_f32},
    {"neg.f32", "w=w", neg_f32},
    {"abs.f32", "w=w", abs_f32},
    {"copysign.f32", "w=ww", copysign_f32},
    {"min.f32", "w=ww", min_f32},
    {"max.f32", "w=ww", max_f32},
    COMPARED(eq),
    COMPARED(ne),
    COMPARED(lt),
    COMPARED(le),
    COMPARED(gt),
    COMPARED(ge),
    COMPARED(equ),
    COMPARED(neu),
    COMPARED(ltu),
    COMPARED(leu),
    COMPARED(gtu),
    COMPARED(geu),
    COMPARED(num),
    COMPARED(nan),
    {"cvt.f32.f16", "w=h", f32_of_f16},
    {"cvt.f32.bf16", "w=h", f32_of_bf16},
    {"cvt.rn.f16.f32", "h=w", f16_of_f32},
    {"cvt.rn.bf16.f32", "h=w", bf16_of_f32},
    {"cvt.rn.f16x2.f32", "w=ww", f16x2_of_f32},
    {"cvt.rn.bf16x2.f32", "w=ww", bf16x2_of_f32},
    {"cvt.rn.satfinite.e4m3x2.f32", "h=ww", e4m3x2_of_f32},
    {"cvt.rn.satfinite.e5m2x2.f32", "h=ww", e5m2x2_of_f32},
    {"cvt.rn.f16x2.e4m3x2", "w=h", f16x2_of_e4m3x2},
    {"cvt.rn.f16x2.e5m2x2", "w=h", f16x2_of_e5m2x2},
    {"cvt.rzi.u32.f32", "w=w", u32_rzi_f32},
    {"cvt.rzi.s32.f32", "w=w", s32_rzi_f32},
    {"cvt.rni.u32.f32", "w=w", u32_rni_f32},
    {"cvt.rni.s32.f32", "w=w", s32_rni_f32},
    {"cvt.rni.f32.f32", "w=w", f32_rni_f32},
    {"cvt.rn.f32.u32", "w=w", f32_rn_u32},
    {"cvt.rn.f32.s32", "w=w", f32_rn_s32},
    {"cvt.rn.f32.u64", "w=d", f32_rn_u64},
    {"cvt.rn.f32.s64", "w=d", f32_rn_s64},
    {"cvt.f64.f32", "d=w", f64_of_f32},
    {"cvt.rn.f32.f64", "w=d", f32_of_f64},
    {"add.rn.f64", "d=dd", add_f64},
    {"mul.rn.f64", "d=dd", mul_f64},
};

const ptx_row *ptx_float_row(const char *name)
{
    return ptx_find_row(rows, sizeof rows / sizeof rows[0], name);
}
