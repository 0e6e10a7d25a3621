/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_CAST_H
#define FY_EXEC_CAST_H

#include "base/cpu.h"
#include "exec/area.h"

/*
 * Casts between element types within a copy. Results are the same bits on every machine:
 *
 * - Rounding is to the nearest, ties to even, once: every type but f64 goes to f32 exactly.
 * - f16, bf16: what is too large becomes infinite. f8: what is finite and too large becomes the
 *   largest number; so does an infinity in f8e4m3 (448), which has none; f8e5m2 keeps it.
 * - NaN stays NaN and keeps its sign; f16 and bf16 keep as much of its payload as there is room
 * for, and it is quiet where it is made narrower.
 * - A side may have scales: its real values are what is stored times the scale. So casts to it
 *   divide, and casts from it multiply, in f32.
 */

/* The scales of one side, row-major by block; NULL: there are none. */
typedef struct fy_cast_scales {
    const float *values;
    uint64_t block[2];  /* rows and columns of one; 0, 0: values has one for all */
    uint64_t origin[2]; /* the row and the column of the first element in the grid of blocks */
    uint64_t pitch;     /* from a row of blocks to the next */
    uint64_t plane;     /* from the blocks of a matrix to those of the next */
} fy_cast_scales;

typedef struct fy_cast {
    uint32_t from_kind, to_kind; /* ferry_dtype_kind */
    fy_cast_scales from_scales, to_scales;
    uint64_t n_rows, n_columns; /* of the matrices that the elements are, row-major */
} fy_cast;

/* Whether there is such a cast. f64 only becomes f32; the others become one another. */
bool fy_cast_exists(uint32_t from_kind, uint32_t to_kind);

/* Bytes of an element; 0: of none of these types. */
size_t fy_cast_element_bytes(uint32_t kind);

/*
 * Casts elements [first, first + n) in row-major order. Areas have equally many elements and do not
 * overlap; runs hold whole elements. Not fenced, as fy_area_copy.
 */
void fy_area_cast(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                  const void *from_base, uint64_t first, uint64_t n);

/* What an instruction set has: cast_<isa>.c. Elements side by side, of any alignment. */
typedef struct fy_cast_kernels {
    void (*widen_f16)(float *to, const void *from, size_t n);
    void (*widen_bf16)(float *to, const void *from, size_t n);
    void (*widen_f8e4m3)(float *to, const void *from, size_t n);
    void (*widen_f8e5m2)(float *to, const void *from, size_t n);
    void (*narrow_f64)(float *to, const void *from, size_t n);
    void (*narrow_f16)(void *to, const float *from, size_t n);
    void (*narrow_bf16)(void *to, const float *from, size_t n);
    void (*narrow_f8e4m3)(void *to, const float *from, size_t n);
    void (*narrow_f8e5m2)(void *to, const float *from, size_t n);
    void (*multiply)(float *values, size_t n, float scale);
    void (*divide)(float *values, size_t n, float scale);
} fy_cast_kernels;

extern const fy_cast_kernels fy_cast_baseline;
extern const fy_cast_kernels fy_cast_avx2;
extern const fy_cast_kernels fy_cast_avx512;

#endif
