/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_WINDOW_H
#define FY_CHECKPOINT_WINDOW_H

#include "checkpoint/job.h"

/*
 * Destination shards are made window by window: a window is a stretch of a shard's elements in the
 * order of its file, some rows of one dimension under fixed indices of those before it. What a
 * window needs of any source shard is then a stretch of that as well, for shards keep the global
 * order; and windows of one number of shards that are cut alike need the same stretches.
 */
typedef struct fy_grain {
    uint32_t dim;  /* rows are those of this dimension of the tensor */
    uint64_t rows; /* of a window */
} fy_grain;

/*
 * Rows so that a window has at most most_bytes, and what it needs of a source shard spans at most
 * most_span. At least one row, whatever its size; elements smaller than a byte are kept together so
 * that windows begin on bytes.
 */
fy_grain fy_grain_of(const fy_layout_job *job, uint32_t tensor, uint64_t most_bytes,
                     uint64_t most_span);

typedef struct fy_window {
    uint32_t tensor;
    uint32_t cell;
    uint64_t first; /* element in the holders' memory */
    uint64_t n_elements;
    uint64_t bytes;
    /* The shard before flattening, where its flat range begins, and the window as boxes of it. */
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t flat_begin;
    size_t n_boxes;
    fy_box boxes[FY_MAX_RANGE_BOXES];
    bool is_tile; /* one box, which is gathered by itself: its rows lie side by side */
} fy_window;

/* Goes over the windows of one cell in order. */
typedef struct fy_window_walk {
    fy_window window; /* the last one */
    fy_grain grain;
    bool is_flat;
    uint32_t n_dims;
    uint32_t element_bits;
    uint64_t next;    /* element at which the next one begins */
    uint64_t end;     /* of the shard */
    uint64_t row;     /* elements of a row */
    uint64_t section; /* elements of all rows under one fixed prefix */
} fy_window_walk;

void fy_window_walk_begin(fy_window_walk *walk, const fy_layout_job *job, uint32_t tensor,
                          uint32_t cell, const fy_grain *grain);
/* False behind the last; a shard without elements has none. */
bool fy_window_walk_next(fy_window_walk *walk);

#endif
