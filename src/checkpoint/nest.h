/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_NEST_H
#define FY_CHECKPOINT_NEST_H

#include "layout/box.h"
#include "model/side.h"

/*
 * A box of a parameter, with its repeats, or a fill, as nested loops: each turn of a loop goes so
 * many steps further in the tensor along each dimension, and so far in memory. Repeats stay loops,
 * so nothing grows with their counts. The loop with the largest stride in memory is the first, and
 * all have more than one turn.
 *
 * Places are counted in units: elements, or bytes where an element is less than one. Then the last
 * dimension of the tensor is counted in bytes as well.
 */
typedef struct fy_nest {
    uint32_t n_dims; /* of the tensor; of a fill 0 */
    uint32_t n_loops;
    uint64_t begin[FERRY_MAX_DIMS]; /* of the tensor */
    uint64_t offset;                /* of the parameter */
    uint64_t count[FY_MAX_LOOPS];
    uint64_t stride[FY_MAX_LOOPS];
    uint64_t step[FY_MAX_LOOPS][FERRY_MAX_DIMS];
} fy_nest;

/* Elements of a unit: more than one of those that are less than a byte. */
static inline uint32_t fy_unit_elements(uint32_t element_bits)
{
    return element_bits < 8 ? 8 / element_bits : 1;
}

static inline uint32_t fy_unit_bytes(uint32_t element_bits)
{
    return element_bits < 8 ? 1 : element_bits / 8;
}

/* False: there is no element. Elements of less than a byte are known to lie on bytes. */
bool fy_nest_of_box(const fy_said_box *box, uint32_t element_bits, fy_nest *nest_out);
bool fy_nest_of_fill(const fy_fill *fill, uint32_t element_bits, fy_nest *nest_out);

/* The last place in memory; how many there are. */
uint64_t fy_nest_last(const fy_nest *nest);
uint64_t fy_nest_volume(const fy_nest *nest);

/* The box of the tensor around all that it has. */
void fy_nest_hull(const fy_nest *nest, fy_box *hull_out);

/* Turns [first, first + n) of a loop; one turn is no loop any more. */
void fy_nest_take(fy_nest *nest, uint32_t loop, uint64_t first, uint64_t n);

/* Whether memory has the tensor's elements in the tensor's own order. */
bool fy_nest_is_in_order(const fy_nest *nest, const uint64_t *shape);

/* Whether memory has all of the hull, and as the hull itself lies in row-major order. */
bool fy_nest_is_dense(const fy_nest *nest, const fy_box *hull);

/* Hands over the parts that lie in [begin, end) of memory; anything but FERRY_OK ends it. */
typedef ferry_status (*fy_nest_fn)(void *context, fy_nest *part, ferry_error *error);
ferry_status fy_nest_clip(const fy_nest *nest, uint64_t begin, uint64_t end, fy_nest_fn visit,
                          void *context, ferry_error *error);

#endif
