/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_CAST_H
#define FY_EXEC_CAST_H

#include "convert/convert.h"
#include "exec/area.h"

/*
 * Casts between element types within a copy: those of convert/convert.h, where f16 and bf16
 * overflow and the f8 types saturate. A side may have scales: its real values are what is stored
 * times the scale. So casts to it divide, and casts from it multiply, in f32.
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

/*
 * Casts elements [first, first + n) in row-major order. Areas have equally many elements and do not
 * overlap; runs hold whole elements. Not fenced, as fy_area_copy.
 */
void fy_area_cast(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                  const void *from_base, uint64_t first, uint64_t n);

#endif
