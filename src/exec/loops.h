/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_LOOPS_H
#define FY_EXEC_LOOPS_H

#include "exec/area.h"

/*
 * What two areas of equally many elements have in common: dimensions with a stride on either side,
 * slowest first, whose elements in row-major order are those of both. So they may be walked in any
 * other order, too.
 */
enum { FY_MOST_LOOPS = 2 * FERRY_MAX_DIMS + 2 };

typedef struct fy_loop {
    uint64_t length;   /* elements */
    uint64_t to, from; /* strides, bytes */
} fy_loop;

typedef struct fy_loops {
    uint32_t n;
    fy_loop dims[FY_MOST_LOOPS];
} fy_loops;

/* Elements may be of another size on either side. False where a dimension of one side begins within
 * one of the other's. */
bool fy_loops_of(const fy_area *to, uint64_t to_element, const fy_area *from, uint64_t from_element,
                 fy_loops *loops_out);

/*
 * Hands over elements [first, first + n), which are not none, as boxes: few, as each is all of the
 * faster dimensions but those at the ends. to, from: bytes from the areas' first element on.
 */
typedef void (*fy_loops_fn)(void *context, const fy_loops *box, uint64_t to, uint64_t from);
void fy_loops_visit(const fy_loops *loops, uint64_t first, uint64_t n, fy_loops_fn visit,
                    void *context);

#endif
