/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_CAST_H
#define FY_EXEC_CAST_H

#include "convert/convert.h"
#include "exec/area.h"

/*
 * Casts between element types within a copy: those of convert/convert.h, with the overflow that is
 * said. A side may have scales: its real values are what is stored times the scale. So casts to it
 * divide, and casts from it multiply, in f32. Between the two, all are multiplied by `scale` and
 * then `add` is added, each rounded to f32, where these are not 1 and not 0; a NaN becomes a quiet
 * one by that, and keeps the rest.
 *
 * Codes of half a byte, f4, can be cast from, without scales, two at once: what is called an
 * element here is such a pair then, one byte that becomes two numbers side by side.
 */

/* The scales of one side, row-major by block; both NULL: there are none. */
typedef struct fy_cast_scales {
    const float *values;
    const unsigned char *powers; /* in place of values, f8e8m0 */
    uint64_t block[2];           /* rows and columns of one; 0, 0: values has one for all */
    uint64_t origin[2]; /* the row and the column of the first element in the grid of blocks */
    uint64_t pitch;     /* from a row of blocks to the next */
    uint64_t step;      /* and from a column to the next; 0: 1 */
    uint64_t plane;     /* from the blocks of a matrix to those of the next */
    /* Of matrices that are a box of some: the lengths of its dims, slowest first, with distances
     * in place of `plane`. */
    uint32_t n_plane_dims; /* 0: none of this */
    uint64_t plane_length[FERRY_MAX_DIMS], plane_stride[FERRY_MAX_DIMS];
    /* In place of values and powers, f8e4m3, each times the scale of its matrix, which lie so far
     * apart by the same dims. */
    const unsigned char *codes;
    const float *of_matrices;
    uint64_t matrix_stride[FERRY_MAX_DIMS];
} fy_cast_scales;

typedef struct fy_cast {
    uint32_t from_kind, to_kind; /* ferry_dtype_kind */
    fy_overflow overflow;
    float scale; /* 0, as 1, changes nothing */
    float add;
    bool has_plain_nans; /* what is no number becomes the quiet one without a sign and a payload */
    fy_cast_scales from_scales, to_scales;
    uint64_t n_rows, n_columns; /* of the matrices that the elements are, row-major: for scales */
} fy_cast;

/* How many numbers an element is. */
static inline uint32_t fy_cast_numbers(const fy_cast *cast)
{
    return cast->from_kind == FERRY_F4 ? 2 : 1;
}

/* What one takes on either side. */
static inline size_t fy_cast_from_bytes(const fy_cast *cast)
{
    return cast->from_kind == FERRY_F4 ? 1 : fy_cast_element_bytes(cast->from_kind);
}

static inline size_t fy_cast_to_bytes(const fy_cast *cast)
{
    return fy_cast_numbers(cast) * fy_cast_element_bytes(cast->to_kind);
}

static inline bool fy_cast_multiplies(const fy_cast *cast)
{
    return cast->scale != 0 && cast->scale != 1;
}

/* What users who do not say it get: f16 and bf16 overflow, the f8 types saturate. */
static inline fy_overflow fy_cast_usual_overflow(uint32_t to_kind)
{
    return fy_cast_element_bytes(to_kind) == 1 ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN;
}

/*
 * Casts elements [first, first + n) in row-major order. Areas have equally many elements and do not
 * overlap, but that both may be the same area where the types are of one size; runs hold whole
 * elements. Not fenced, as fy_area_copy.
 */
void fy_area_cast(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                  const void *from_base, uint64_t first, uint64_t n);
/* What this one writes is left in the cache. */
void fy_area_cast_cached(const fy_cast *cast, const fy_area *to, void *to_base, const fy_area *from,
                         const void *from_base, uint64_t first, uint64_t n);
/* With the XXH3 (64 bits) of what the elements have become; to NULL: nothing is written. */
uint64_t fy_area_cast_hash(const fy_cast *cast, const fy_area *to, void *to_base,
                           const fy_area *from, const void *from_base, uint64_t first, uint64_t n);
/* As fy_area_update: what they become is written where it is not there yet. */
uint64_t fy_area_cast_update(const fy_cast *cast, const fy_area *to, void *to_base,
                             const fy_area *from, const void *from_base, uint64_t first,
                             uint64_t n);

#endif
