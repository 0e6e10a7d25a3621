/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_BLOCK_H
#define FY_EXEC_BLOCK_H

#include "exec/walk.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows of bytes, equally spaced on either side: what two walks have in common where they stand. */
typedef struct fy_block {
    char *to;
    const char *from;
    uint64_t to_distance;
    uint64_t from_distance;
    uint64_t n_rows;
    uint64_t row_bytes;
} fy_block;

/* One side of a copy: a walk and where its area lies. */
typedef struct fy_walk_side {
    fy_area_walk walk;
    char *base;
} fy_walk_side;

static inline fy_walk_side fy_walk_side_of(const fy_area *area, const void *base, uint64_t first,
                                           uint64_t bytes)
{
    return (fy_walk_side){.walk = fy_area_walk_of(area, first, bytes),
                          .base = (char *)(uintptr_t)base};
}

/* At least one row. Nobody has walked over it yet. Both have as much left, and something. */
static inline fy_block fy_block_here(const fy_walk_side *to, const fy_walk_side *from)
{
    fy_block b = {.to = to->base + to->walk.at, .from = from->base + from->walk.at};
    b.row_bytes = fy_min(fy_min(to->walk.n_here, from->walk.n_here), to->walk.left);
    b.n_rows = fy_min(fy_min(fy_walk_pieces(&to->walk, b.row_bytes, &b.to_distance),
                             fy_walk_pieces(&from->walk, b.row_bytes, &b.from_distance)),
                      to->walk.left / b.row_bytes);
    return b;
}

static inline void fy_block_take(fy_walk_side *to, fy_walk_side *from, const fy_block *b)
{
    fy_walk_take_pieces(&to->walk, b->row_bytes, b->n_rows);
    fy_walk_take_pieces(&from->walk, b->row_bytes, b->n_rows);
}

/* Whether all rows are written as whole lines of the cache. */
static inline bool fy_is_lines(const fy_block *b)
{
    enum { LINE = 64 };
    return (((uintptr_t)b->to | b->row_bytes | (b->n_rows > 1 ? b->to_distance : 0)) % LINE) == 0;
}

/* Whether its rows end up side by side and are so short that a kernel appends them: see rows.h. */
bool fy_block_is_appended(const fy_block *block);

/* Copies a block through the cache. */
void fy_block_copy_cached(const fy_block *block);

#endif
