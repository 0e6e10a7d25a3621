/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_KERNELS_H
#define FY_CONVERT_KERNELS_H

#include "base/cpu.h"

#include <stddef.h>
#include <stdint.h>

/*
 * What an instruction set has: kernels_<isa>.c. Elements side by side, of any alignment, but that
 * f32 in a float * is aligned. All sets give the same bits: convert/convert.h says which.
 *
 * A narrow_<type> lets what is too large become infinite, or NaN where the type has no infinity;
 * a saturate_<type> makes the largest number of it, if it was finite.
 */
typedef void fy_widen_kernel(float *to, const void *from, size_t n);
typedef void fy_narrow_kernel(void *to, const float *from, size_t n);

/* Values of blocks of `width` elements side by side, the last one perhaps shorter, by the scale of
 * each. */
typedef void fy_scale_kernel(float *restrict values, size_t n, size_t width,
                             const float *restrict scales);

/*
 * For blocks of a row that are `width` elements side by side, the last one perhaps shorter: raises
 * largest[block] to the magnitude of its elements, as its bits without the sign. Magnitudes grow as
 * their bits do, infinity and NaN are above all numbers.
 */
typedef void fy_largest_kernel(uint32_t *largest, const void *from, size_t n, size_t width);

/* Each element divided by the scale of its block, and rounded to a code; f4 are two to a byte. */
typedef void fy_quantize_kernel(void *to, const void *from, size_t n, size_t width,
                                const float *scales);
/* Each code times the scale of its block, rounded. */
typedef void fy_dequantize_kernel(void *to, const void *from, size_t n, size_t width,
                                  const float *scales);

/*
 * A faster way for large blocks of bf16 and f8e4m3 that share a scale: entries are, for each
 * mantissa of a bf16 that is 0 or more and not subnormal, its code less 8 times its exponent; or,
 * for each magnitude of a code, its value.
 */
typedef struct fy_code_table {
    uint16_t entries[128];
    float scale;
} fy_code_table;

/* As the kernels above; a table for each block. */
typedef void fy_table_kernel(void *to, const void *from, size_t n, size_t width,
                             const fy_code_table *tables);

/* The types of values, and those of codes, as the tables below have them. */
typedef enum fy_value_type {
    FY_VALUE_F32,
    FY_VALUE_F16,
    FY_VALUE_BF16,
    FY_N_VALUE_TYPES
} fy_value_type;

typedef enum fy_code_type {
    FY_CODE_F8E4M3,
    FY_CODE_F8E5M2,
    FY_CODE_F4,
    FY_N_CODE_TYPES
} fy_code_type;

typedef struct fy_convert_kernels {
    fy_widen_kernel *widen_f16, *widen_bf16, *widen_f8e4m3, *widen_f8e5m2;
    fy_widen_kernel *widen_f4;   /* two in a byte, the first one in its lower half */
    fy_widen_kernel *narrow_f64; /* to f32 */
    fy_narrow_kernel *narrow_f16, *narrow_bf16, *narrow_f8e4m3, *narrow_f8e5m2;
    fy_narrow_kernel *saturate_f16, *saturate_bf16, *saturate_f8e4m3, *saturate_f8e5m2;
    fy_narrow_kernel *codes_f8e4m3; /* saturates what was finite, and no infinity */
    void (*multiply)(float *values, size_t n, float scale);
    void (*divide)(float *values, size_t n, float scale);
    fy_scale_kernel *multiply_blocks, *divide_blocks;
    void (*add)(float *values, size_t n, float number);
    void (*plain_nans)(float *values, size_t n); /* what is no number becomes 0x7fc00000 */
    fy_largest_kernel *largest[FY_N_VALUE_TYPES];
    fy_largest_kernel *largest_finite[FY_N_VALUE_TYPES]; /* leaves out infinity and NaN */
    fy_quantize_kernel *quantize[FY_N_VALUE_TYPES][FY_N_CODE_TYPES];
    fy_dequantize_kernel *dequantize[FY_N_VALUE_TYPES][FY_N_CODE_TYPES];
    fy_table_kernel *quantize_by_tables, *dequantize_by_tables; /* NULL: the set has no such way */
} fy_convert_kernels;

extern const fy_convert_kernels fy_convert_baseline;
extern const fy_convert_kernels fy_convert_avx2;
extern const fy_convert_kernels fy_convert_avx512;

/* Those of the best set that this machine has and FERRY_ISA allows. */
const fy_convert_kernels *fy_convert_kernels_here(void);

#endif
