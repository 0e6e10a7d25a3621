/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_SCALES_GRID_H
#define FY_CHECKPOINT_SCALES_GRID_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The blocks of a parameter in its own rows and columns. Where each has what one block of a tensor
 * has, or nothing of any, there is one scale for each: so what is filled has some as well.
 */
typedef struct fy_grid_rect {
    uint64_t plane, n_planes;  /* which matrices of the parameter, row-major: one, or nobody's */
    uint64_t begin[2], end[2]; /* blocks of each: rows and columns */
    uint32_t weight;           /* whose blocks they are; FY_NONE: nobody's */
    uint64_t matrix;           /* of the weight */
    uint64_t from[2];          /* its block that lies at begin */
} fy_grid_rect;

typedef struct fy_grid {
    uint64_t n_planes, shape[2]; /* of the parameter: matrices, and the elements of one */
    uint64_t block[2];
    uint64_t blocks[2]; /* that a matrix has, also those that are cut off by its end */
    fy_grid_rect *said; /* [n_said] what boxes give */
    size_t n_said, said_capacity;
    fy_grid_rect *laid; /* [n_laid] apart, and all that there is */
    size_t n_laid, laid_capacity;
} fy_grid;

/* Of a parameter in files of at least two dimensions; fy_grid_cleanup ends it. */
void fy_grid_init(fy_grid *grid, const uint64_t *shape, uint32_t n_dims, const uint64_t block[2]);
void fy_grid_cleanup(fy_grid *grid);

/* Some rows and columns of a matrix of a weight, in memory. */
typedef struct fy_grid_part {
    uint32_t weight;
    uint64_t matrix;
    uint64_t offset, stride[2];
    uint64_t begin[2], end[2];
} fy_grid_part;

/* Adds a part; *fits_out is false where its rows are none of the parameter's, or its blocks. */
ferry_status fy_grid_add(fy_grid *grid, const fy_grid_part *part, bool *fits_out,
                         ferry_error *error);

/* Lays out all that was added, and the rest as nobody's; *fits_out is false where a block of the
 * parameter has parts of two. FERRY_ERR_LIMIT: there are very many parts. */
ferry_status fy_grid_lay(fy_grid *grid, bool *fits_out, ferry_error *error);

#endif
