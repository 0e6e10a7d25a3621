/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_TILE_H
#define FY_CHECKPOINT_TILE_H

#include "checkpoint/window.h"

/*
 * Matrices go from type to type tile by tile: some rows of some columns of one matrix, the last two
 * dimensions of a shard. Tiles begin at multiples of their size and cover the shard once; those of
 * whole rows follow each other as the file has them. Of a flat range a tile is some whole rows, or
 * a part of one, in the order of the file.
 */
typedef struct fy_tile_shape {
    uint64_t rows;
    uint64_t columns;
} fy_tile_shape;

/* One tile: its place in the shard, and the window that gathers what it is made of. The shard's own
 * place is that before flattening; window.first counts from where the holders' part begins. */
typedef struct fy_tile {
    uint64_t matrix; /* the number of the leading indices, in row-major order */
    uint64_t row, column;
    uint64_t n_rows, n_columns;
    fy_window window;
} fy_tile;

typedef struct fy_tile_walk {
    fy_tile tile;
    fy_tile_shape size;
    uint32_t n_dims;
    uint32_t element_bits;                  /* of what is gathered */
    uint64_t n_matrices, n_rows, n_columns; /* of the shard */
    uint64_t next_matrix, next_row, next_column;
    bool is_flat;
    uint64_t flat_begin, flat_end; /* elements of the shard before flattening */
    uint64_t next;                 /* flat: the same, of the next tile */
} fy_tile_walk;

/* Over the shard of a cell, of a tensor with two dimensions or more. */
void fy_tile_walk_begin(fy_tile_walk *walk, const fy_layout_job *job, uint32_t tensor,
                        uint32_t cell, fy_tile_shape size);
/* Whether tiles come in the order in which the file has their elements. */
static inline bool fy_tile_walk_is_in_order(const fy_tile_walk *walk)
{
    return walk->is_flat || walk->size.columns >= walk->n_columns;
}

/* False behind the last; a shard without elements has none. */
bool fy_tile_walk_next(fy_tile_walk *walk);

/* A stretch of a part's local indices that are neighbours in the whole dimension as well. */
typedef struct fy_stretch {
    uint64_t local, global, length;
} fy_stretch;

/* A part's, in order; a list for fy_free. */
ferry_status fy_stretches_of(const fy_split *split, uint32_t part, fy_stretch **list_out,
                             size_t *n_out, ferry_error *error);

#endif
