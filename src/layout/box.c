/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/box.h"

uint64_t fy_box_volume(const uint64_t *length, uint32_t n_dims)
{
    uint64_t volume = 1;
    for (uint32_t d = 0; d < n_dims; d++) {
        volume *= length[d];
    }
    return volume;
}

typedef struct range_walk {
    const uint64_t *shape;
    uint32_t n_dims;
    fy_box fixed; /* the dimensions outside the one at work are one row thick */
    fy_box *boxes;
    size_t n_boxes;
} range_walk;

/* Emits rows [first, first + count) of dimension dim, whole in every inner dimension. */
static void emit_rows(range_walk *walk, uint32_t dim, uint64_t first, uint64_t count)
{
    fy_box *box = &walk->boxes[walk->n_boxes++];
    *box = walk->fixed;
    box->begin[dim] = first;
    box->length[dim] = count;
    for (uint32_t d = dim + 1; d < walk->n_dims; d++) {
        box->begin[d] = 0;
        box->length[d] = walk->shape[d];
    }
}

static void walk_range(range_walk *walk, uint32_t dim, uint64_t begin, uint64_t end);

static void walk_inside_row(range_walk *walk, uint32_t dim, uint64_t row, uint64_t begin,
                            uint64_t end)
{
    walk->fixed.begin[dim] = row;
    walk->fixed.length[dim] = 1;
    walk_range(walk, dim + 1, begin, end);
}

static void walk_range(range_walk *walk, uint32_t dim, uint64_t begin, uint64_t end)
{
    uint64_t inner = fy_box_volume(walk->shape + dim + 1, walk->n_dims - dim - 1);
    uint64_t row = begin / inner;
    uint64_t last = end / inner;
    if (begin % inner != 0) {
        uint64_t row_end = row == last ? end % inner : inner;
        walk_inside_row(walk, dim, row, begin % inner, row_end);
        row++;
    }
    if (row < last) {
        emit_rows(walk, dim, row, last - row);
        row = last;
    }
    if (row == last && end % inner != 0) {
        walk_inside_row(walk, dim, last, 0, end % inner);
    }
}

size_t fy_range_boxes(const uint64_t *shape, uint32_t n_dims, uint64_t begin, uint64_t end,
                      fy_box boxes[FY_MAX_RANGE_BOXES])
{
    range_walk walk = {.shape = shape, .n_dims = n_dims, .boxes = boxes};
    if (begin >= end) {
        return 0;
    }
    if (n_dims == 0) {
        boxes[0] = (fy_box){0};
        return 1;
    }
    walk_range(&walk, 0, begin, end);
    return walk.n_boxes;
}
