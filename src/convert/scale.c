/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "convert/scale.h"

#include "convert/matrix.h"

#include <ferry/dtype.h>

#include <string.h>

/* Bits of f32. */
enum {
    INFINITE = 0x7f800000,
    NOT_A_NUMBER = 0x7fc00000,
    HALF_THE_LEAST_NORMAL = 0x00400000, /* 2^-127, the least f8e8m0 */
    MANTISSA = 23,
    BIAS = 127
};

static const float least_f32 = 0x1p-126f, least_f8e4m3 = 0x1p-9f, least_of_tensor = 0x1p-117f;
static const float most_f8e4m3 = 448;

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float most_of(uint32_t kind)
{
    return kind == FERRY_F8E4M3 ? 448 : kind == FERRY_F8E5M2 ? 57344 : 6;
}

size_t fy_scale_bytes(uint32_t scale_kind)
{
    return scale_kind == FERRY_F32 ? 4 : 1;
}

static float greater(float a, float b)
{
    return a < b ? b : a;
}

float fy_tensor_scale(const fy_block_format *format, float largest)
{
    fenv_t before = fy_plain_arithmetic();
    float scale = greater(largest / (most_of(format->kind) * most_f8e4m3), least_of_tensor);
    (void)fesetenv(&before);
    return largest == 0 ? 1 : scale;
}

/*
 * The bits of a power of two: exponents and mantissas compared as integers. What is subnormal has
 * the least scale, whatever its mantissa says.
 */
static uint32_t power_of_two(const fy_block_format *format, uint32_t largest)
{
    uint32_t most = bits_of(most_of(format->kind)), mask = (1u << MANTISSA) - 1;
    int least = format->scale_kind == FERRY_F32 ? 1 : 0;
    int exponent = (int)(largest >> MANTISSA) + BIAS - (int)(most >> MANTISSA);
    exponent += format->rule == FY_SCALE_COVER && (largest & mask) > (most & mask);
    exponent = exponent < least ? least : exponent;
    return exponent == 0 ? HALF_THE_LEAST_NORMAL : (uint32_t)exponent << MANTISSA;
}

static void make_powers(const fy_block_format *format, float *largest, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(largest[i]);
        if (bits == 0) {
            largest[i] = 1;
        } else if (bits < INFINITE) {
            largest[i] = float_of(power_of_two(format, bits));
        }
    }
}

static void make_quotients(const fy_convert_kernels *k, float *largest, size_t n, float by,
                           float least)
{
    float zeros[FY_MOST_BLOCKS];
    memcpy(zeros, largest, n * sizeof *zeros);
    k->divide(largest, n, by);
    for (size_t i = 0; i < n; i++) {
        largest[i] = zeros[i] == 0 ? 1 : greater(largest[i], least);
    }
}

void fy_scales_make(const fy_quantized *q, const fy_convert_kernels *k, float *largest_inout,
                    void *stored, size_t n)
{
    float most = most_of(q->format.kind);
    if (q->format.rule != FY_SCALE_LARGEST) {
        make_powers(&q->format, largest_inout, n);
    } else if (q->format.scale_kind == FERRY_F32) {
        make_quotients(k, largest_inout, n, most, least_f32);
    } else {
        make_quotients(k, largest_inout, n, most * q->tensor_scale, least_f8e4m3);
    }
    switch (q->format.scale_kind) {
    case FERRY_F32:
        memcpy(stored, largest_inout, n * sizeof *largest_inout);
        return;
    case FERRY_F8E8M0:
        for (size_t i = 0; i < n; i++) {
            ((unsigned char *)stored)[i] = (unsigned char)(bits_of(largest_inout[i]) >> MANTISSA);
        }
        return;
    default:
        k->saturate_f8e4m3(stored, largest_inout, n);
        fy_scales_read(q, k, largest_inout, stored, n);
    }
}

float fy_scale_of_power(unsigned char stored)
{
    return float_of(stored == 0      ? HALF_THE_LEAST_NORMAL
                    : stored == 0xff ? NOT_A_NUMBER
                                     : (uint32_t)stored << MANTISSA);
}

void fy_scales_read(const fy_quantized *q, const fy_convert_kernels *k, float *factors,
                    const void *stored, size_t n)
{
    const unsigned char *codes = stored;
    switch (q->format.scale_kind) {
    case FERRY_F32:
        memcpy(factors, stored, n * sizeof *factors);
        return;
    case FERRY_F8E8M0:
        for (size_t i = 0; i < n; i++) {
            factors[i] = fy_scale_of_power(codes[i]);
        }
        return;
    default:
        k->widen_f8e4m3(factors, stored, n);
        k->multiply(factors, n, q->tensor_scale);
    }
}
