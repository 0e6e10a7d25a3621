/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_BOX_H
#define FY_LAYOUT_BOX_H

#include <ferry/limits.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An n-dimensional rectangle. With no dimensions it is the one element of a scalar. */
typedef struct fy_box {
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t length[FERRY_MAX_DIMS];
} fy_box;

uint64_t fy_box_volume(const uint64_t *length, uint32_t n_dims);

/* Whether two boxes share an element. */
static inline bool fy_box_meets(const fy_box *a, const fy_box *b, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        if (a->begin[d] + a->length[d] <= b->begin[d] || b->begin[d] + b->length[d] <= a->begin[d]) {
            return false;
        }
    }
    return true;
}

/*
 * The elements [begin, end) of an array in row-major order, as the fewest boxes of whole rows,
 * planes and so on between a head and a tail: at most 2 n - 1, in row-major order. This is how a
 * flat shard becomes boxes. Returns their number.
 */
enum { FY_MAX_RANGE_BOXES = 2 * FERRY_MAX_DIMS - 1 };
size_t fy_range_boxes(const uint64_t *shape, uint32_t n_dims, uint64_t begin, uint64_t end,
                      fy_box boxes[FY_MAX_RANGE_BOXES]);

#endif
