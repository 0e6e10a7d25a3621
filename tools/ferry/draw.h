/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_DRAW_H
#define FERRY_TOOL_DRAW_H

#include <ferry/ferry.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * A picture of one tensor of a plan. A tensor is drawn as a matrix: its last dimension runs to the
 * right, all others are folded into rows, as they lie in memory.
 */

/* Rows and columns of one rank. from is the rank that the elements come from. */
typedef struct draw_box {
    uint32_t rank;
    uint32_t from;
    uint64_t row;
    uint64_t column;
    uint64_t n_rows;
    uint64_t n_columns;
} draw_box;

typedef struct draw_boxes {
    draw_box *at;
    size_t n;
    size_t capacity;
} draw_boxes;

/* One copy of one tensor: ranks that hold the same elements are drawn in different copies. */
typedef struct draw_matrix {
    const char *tensor; /* lives as long as the plan */
    uint64_t n_rows;
    uint64_t n_columns;
    size_t copy;      /* 0 is the first of the tensor */
    draw_boxes held;  /* what each rank holds */
    draw_boxes fills; /* the same cells, by the rank that they come from */
} draw_matrix;

/* More copies than these say nothing new: they are counted, not drawn. */
enum { DRAW_MOST_MATRICES = 12, DRAW_MOST_COPIES = 4, DRAW_MOST_BOXES = 20000 };

typedef struct draw_side {
    draw_matrix matrices[DRAW_MOST_MATRICES];
    size_t n;
    size_t n_ranks;    /* that hold something */
    size_t n_left_out; /* ranks whose copies are not drawn */
} draw_side;

typedef struct draw_picture {
    const char *tensor;
    ferry_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t moved_bytes;
    uint64_t local_bytes;
    uint32_t *senders; /* source ranks that are drawn, each once */
    size_t n_senders;
    size_t senders_capacity;
    draw_side sides[2]; /* by ferry_side_role */
} draw_picture;

/* Collects the picture of the plan's tensor; its boxes need draw_cleanup whatever is returned. */
ferry_status draw_collect(const ferry_plan *plan, draw_picture *picture_out, ferry_error *error);
void draw_cleanup(draw_picture *picture);

/* Writes the picture as SVG, for light and dark pages. A fill_file_fn. */
ferry_status draw_write_svg(const void *picture, FILE *file, ferry_error *error);

#endif
