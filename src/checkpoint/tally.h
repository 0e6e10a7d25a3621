/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_TALLY_H
#define FY_CHECKPOINT_TALLY_H

#include <ferry/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What stretches of floating elements are, one after the other. All zero is a begin. */
typedef struct fy_tally {
    uint64_t n_elements;
    uint64_t n_nan;
    uint64_t n_infinite;
    double least, most; /* of the finite ones, if there are some */
    double sum;         /* of those below 2^512 */
    double sum_of_big;  /* of the others, each by 2^-64: so no sum overflows */
} fy_tally;

/* Whether elements of this kind are floating numbers. */
bool fy_tally_takes(uint32_t kind);

/* Of the finite elements; 0 if there are none. It is no further from zero than the furthest. */
double fy_tally_mean(const fy_tally *tally);

/*
 * Adds n elements as files write them. room holds n floats, and is used where elements are no f32
 * or f64.
 */
void fy_tally_add(fy_tally *tally, uint32_t kind, const void *elements, size_t n, float *room);

#endif
