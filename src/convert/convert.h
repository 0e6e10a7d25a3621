/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_CONVERT_H
#define FY_CONVERT_CONVERT_H

#include "base/status.h"

#include <stdint.h>

/*
 * CONVERSIONS OF NUMBERS
 *
 * Casts between floating-point types, and quantization: blocks of a matrix that share a scale. Pure
 * functions: they allocate nothing, keep nothing, and give the same bits on every machine,
 * whatever the calling thread has done to its rounding mode or to its subnormal numbers. Input and
 * output must not overlap. Threads may share the work by rows; of a quantization, by whole rows of
 * blocks.
 *
 *     type     bits  largest      smallest   infinity  NaN
 *     f32      32    3.4e38       2^-149     yes       many
 *     f16      16    65504        2^-24      yes       many
 *     bf16     16    3.39e38      2^-133     yes       many
 *     f8e4m3   8     448          2^-9       no        0x7f and 0xff
 *     f8e5m2   8     57344        2^-16      yes       0x7d to 0x7f, and negative
 *     f4       4     6            0.5        no        no            of blocks only
 *     f8e8m0   8     2^127        2^-127     no        0xff          of scales only, no sign, no 0
 *
 * MATRICES
 *
 * Elements are row-major. Rows lie `pitch` bytes apart, or side by side where pitch is 0. n_bytes
 * are what may be read or written from data on; between rows nothing is touched. Two f4 are in a
 * byte, the first in its lower half; a row begins with a byte of its own, and where it has an odd
 * number of them, the last half byte is written as 0 and not read.
 */
typedef struct fy_input {
    const void *data; /* aligned to the type */
    uint64_t n_bytes;
    uint64_t pitch;
} fy_input;

typedef struct fy_output {
    void *data; /* aligned to the type */
    uint64_t n_bytes;
    uint64_t pitch;
} fy_output;

/*
 * CASTS
 *
 * f32, f16, bf16, f8e4m3 and f8e5m2 become one another, and f64 becomes f32. Rounding is to the
 * nearest, ties to even, once. Nothing is flushed: subnormal numbers are read and written. The
 * sign stays, also that of zero and of NaN.
 *
 *     what                         FY_OVERFLOW_PLAIN    FY_OVERFLOW_SATURATE
 *     finite and too large         infinity             the largest number
 *       in f8e4m3                  NaN                  448
 *     infinity                     infinity             infinity
 *       to f8e4m3                  NaN                  448
 *
 * Too large is what rounds to more than the largest number: from the middle between that and the
 * next one, if there were one, with a tie to even. (The standard of the f8 types saturates infinity
 * in f8e5m2 too; here an infinity stays one where it can.)
 *
 * Codes of blocks, below, have a way of their own, FY_OVERFLOW_CODES: as FY_OVERFLOW_SATURATE, but
 * an infinity becomes NaN in f8e4m3. It is for the f8 types.
 *
 * NaN stays NaN. In f32 it keeps its payload and is not made quiet; that of f8e4m3 becomes the
 * quiet one without a payload. In f16 and bf16 it is quiet and keeps the upper bits of its payload,
 * in f8 it is all ones. A cast to the type itself is a copy, bit for bit. Of an f64 only that it is
 * NaN is kept for sure.
 */
typedef enum fy_overflow {
    FY_OVERFLOW_PLAIN = 0,
    FY_OVERFLOW_SATURATE = 1,
    FY_OVERFLOW_CODES = 2
} fy_overflow;

typedef struct fy_cast_matrix {
    uint32_t from_kind, to_kind; /* ferry_dtype_kind */
    fy_overflow overflow;
    uint64_t n_rows, n_columns;
    fy_input from;
    fy_output to;
} fy_cast_matrix;

/* Whether there is such a cast. */
bool fy_cast_exists(uint32_t from_kind, uint32_t to_kind);

/* Bytes of an element; 0: of none of these types. */
size_t fy_cast_element_bytes(uint32_t kind);

/* Fails, with nothing done, where there is no such cast or a matrix is smaller than its shape. */
ferry_status fy_cast_run(const fy_cast_matrix *cast, ferry_error *error);

/*
 * BLOCKS
 *
 * A matrix is cut into blocks of block[0] x block[1] elements, those at the lower and right edge
 * perhaps smaller. Each has one scale s; the matrix of scales has ceil(n_rows / block[0]) rows and
 * ceil(n_columns / block[1]) columns. What is stored are codes c, and a value is c x s.
 *
 * Let a be the largest magnitude of the block's finite elements, and q the largest number of the
 * codes' type: 448, 57344 or 6. All arithmetic is f32, to the nearest, ties to even.
 *
 *     rule              scale
 *     FY_SCALE_LARGEST  f32: a / q, but at least 2^-126. f8e4m3 (with a scale g of the tensor):
 *                       a / (q x g), rounded to f8e4m3, but at least 2^-9 and at most 448
 *     FY_SCALE_COVER    the least power of two so that a <= q x s
 *     FY_SCALE_FLOOR    the power of two of a over that of q, both rounded down: that of the OCP
 *                       microscaling formats. a may be up to twice q x s, and then saturates
 *
 * Powers of two are at least 2^-127 in f8e8m0, and 2^-126 in f32. The scale is 1 where a is 0: of
 * a block of zeros, or without a finite element.
 *
 * A code is an element over s, or over s x g, both of them rounded, then rounded to the codes'
 * type; if it is finite and too large, it becomes the largest number. Signs stay, also of zero.
 *
 *     element      f8e4m3             f8e5m2             f4
 *     NaN          NaN, all ones      NaN, all ones      the scale is NaN, all codes of the
 *     infinity     NaN, all ones      infinity             block are 0
 *
 * So what is not finite changes no other element of its block in f8, and is never made finite.
 * In f4, which cannot tell, the block is lost, and can be seen to be; the NaN of an f32 scale is
 * 0x7fc00000, of the others 0x7f and 0xff.
 *
 * Back, a value is c x s, or c x (s x g), rounded to f32, and then to the type that is wanted:
 * what is too large becomes infinite. All NaNs are the quiet one with the sign clear and no
 * payload.
 */
typedef enum fy_scale_rule {
    FY_SCALE_LARGEST = 0,
    FY_SCALE_COVER = 1,
    FY_SCALE_FLOOR = 2
} fy_scale_rule;

typedef struct fy_block_format {
    uint32_t kind;       /* of codes: FERRY_F8E4M3, FERRY_F8E5M2, FERRY_F4 */
    uint32_t scale_kind; /* FERRY_F32; FERRY_F8E8M0; of f4 FERRY_F8E4M3: then the tensor has one */
    fy_scale_rule rule;  /* FY_SCALE_LARGEST for f8e4m3, one of the others for f8e8m0 */
    uint64_t block[2];   /* rows and columns; of f4 an even number of columns */
} fy_block_format;

/* f8e4m3 with an f32 scale, largest / 448, for each block. */
fy_block_format fy_format_f8(uint64_t block_rows, uint64_t block_columns);
/* MXFP8: f8e4m3 with an f8e8m0 for each 32 elements of a row. */
fy_block_format fy_format_mxfp8(void);
/* NVFP4: f4 with an f8e4m3 for each 16 elements of a row, and an f32 for the tensor. */
fy_block_format fy_format_nvfp4(void);

/* A matrix of values, with its codes and scales. */
typedef struct fy_quantized {
    fy_block_format format;
    uint32_t kind;      /* of the values: FERRY_F32, FERRY_F16, FERRY_BF16 */
    float tensor_scale; /* of f8e4m3 scales: in [2^-117, 2^119]; else 0 */
    uint64_t n_rows, n_columns;
} fy_quantized;

/* Rows and columns of the matrix of scales. */
void fy_scales_shape(const fy_quantized *q, uint64_t shape_out[2]);

/* Bytes of a row of codes, without a gap. */
uint64_t fy_codes_row_bytes(const fy_quantized *q);

/*
 * Values to codes and scales. Fails, with nothing done, where there is no such format, or a matrix
 * is smaller than its shape.
 */
ferry_status fy_quantize(const fy_quantized *q, const fy_input *values, const fy_output *codes,
                         const fy_output *scales, ferry_error *error);

/*
 * The scales alone: as fy_quantize stores them, and as f32 what elements are divided by. So a code
 * is a cast of the quotient, with FY_OVERFLOW_CODES. For codes of f8e4m3 and f8e5m2.
 */
ferry_status fy_block_scales(const fy_quantized *q, const fy_input *values, const fy_output *scales,
                             const fy_output *divisors, ferry_error *error);

/*
 * The same of n blocks whose largest finite magnitudes are known, in any order: `stored` gets the
 * scales, and in place of the magnitudes are divisors then. The format was checked before.
 */
void fy_scales_of_largest(const fy_quantized *q, float *largest_inout, void *stored, uint64_t n);

/*
 * And back. The format's rule does not matter, and scales may be any, negative and 0 and infinite
 * too; a scale that is NaN makes its block NaN.
 */
ferry_status fy_dequantize(const fy_quantized *q, const fy_input *codes, const fy_input *scales,
                           const fy_output *values, ferry_error *error);

/*
 * The same in place: of codes that were cast to the values' type, which changes no number of f8e4m3
 * and f8e5m2. values are what codes times scales are afterwards; they need not be aligned.
 */
ferry_status fy_scale_values(const fy_quantized *q, const fy_input *scales, const fy_output *values,
                             ferry_error *error);

/* Whether f4 can have it: then no product or quotient by it and by a scale of a block is lost. */
static inline bool fy_is_tensor_scale(float scale)
{
    return scale >= 0x1p-117f && scale <= 0x1p119f;
}

/*
 * The scale of a tensor whose largest finite magnitude is `largest`: largest / (q x 448), but at
 * least 2^-117; 1 where largest is 0. Ranks that hold parts of the tensor take the largest of all
 * of them: fy_largest of each.
 */
float fy_tensor_scale(const fy_block_format *format, float largest);

/* The largest magnitude of the finite elements; 0: there are none. */
ferry_status fy_largest(uint32_t kind, uint64_t n_rows, uint64_t n_columns, const fy_input *values,
                        float *largest_out, ferry_error *error);

#endif
