/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_JOIN_H
#define FY_LAYOUT_JOIN_H

#include "base/status.h"
#include "layout/box.h"

/* A growing array of boxes. All zero is an empty one; fy_free its items. */
typedef struct fy_boxes {
    fy_box *items;
    size_t n, capacity;
} fy_boxes;

/*
 * Makes of disjoint boxes, none of them empty, the boxes that their union is made of, whatever it
 * was cut into before: the answer is a function of the union. Along the last dimension each box is
 * as long as the union is there; what is alike is then joined along the one before it, and so on.
 * They come in row-major order of where they begin.
 *
 * Boxes that touch no other cost what sorting costs. Those that touch and form no box are swept,
 * and FERRY_ERR_LIMIT says that this would take more than FY_JOIN_WORK looks.
 */
enum { FY_JOIN_WORK = 1 << 26 };
ferry_status fy_boxes_join(fy_boxes *boxes, uint32_t n_dims, ferry_error *error);

/* What keeps boxes from tiling a shape. */
typedef enum fy_tiling_fault {
    FY_TILING_NONE,
    FY_TILING_OVERLAP, /* the boxes first and second share the elements of where */
    FY_TILING_GAP,     /* no box has an element of where */
} fy_tiling_fault;

typedef struct fy_tiling {
    fy_tiling_fault fault;
    size_t first, second;
    fy_box where;
} fy_tiling;

/* Whether boxes within a shape tile it. Empty ones are allowed; FERRY_ERR_NO_MEMORY aside, the call
 * succeeds. */
ferry_status fy_boxes_check_tiling(const fy_box *boxes, size_t n, const uint64_t *shape,
                                   uint32_t n_dims, fy_tiling *tiling_out, ferry_error *error);

#endif
