/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/block.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum {
    TRANSPOSE_MOST = 16, /* bytes of a row: longer ones use enough of a line */
    LINE = 64,
    LEAST_EDGE = 8 /* of a tile, in rows */
};

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* With a constant length the compiler makes a load and a store of a row. */
static ALWAYS_INLINE void copy_rows(const fy_block *b, size_t row_bytes)
{
    char *to = b->to;
    const char *from = b->from;
    for (uint64_t i = 0; i < b->n_rows; i++) {
        memcpy(to, from, row_bytes);
        to += b->to_distance;
        from += b->from_distance;
    }
}

/* Rows of n to 2 n bytes as two halves that may overlap: no call, and no branch for the rest. */
static ALWAYS_INLINE void copy_halves(const fy_block *b, size_t half)
{
    char *to = b->to;
    const char *from = b->from;
    size_t rest = (size_t)b->row_bytes - half;
    char first[32], second[32];
    for (uint64_t i = 0; i < b->n_rows; i++) {
        memcpy(first, from, half);
        memcpy(second, from + rest, half);
        memcpy(to, first, half);
        memcpy(to + rest, second, half);
        to += b->to_distance;
        from += b->from_distance;
    }
}

void fy_block_copy_cached(const fy_block *b)
{
    switch (b->row_bytes) {
    case 1:
        copy_rows(b, 1);
        return;
    case 2:
        copy_rows(b, 2);
        return;
    case 4:
        copy_rows(b, 4);
        return;
    case 8:
        copy_rows(b, 8);
        return;
    case 16:
        copy_rows(b, 16);
        return;
    default:
        break;
    }
    if (b->row_bytes < 4) {
        copy_halves(b, 2);
    } else if (b->row_bytes < 8) {
        copy_halves(b, 4);
    } else if (b->row_bytes < 16) {
        copy_halves(b, 8);
    } else if (b->row_bytes <= 32) {
        copy_halves(b, 16);
    } else if (b->row_bytes <= 64) {
        copy_halves(b, 32);
    } else {
        copy_rows(b, (size_t)b->row_bytes);
    }
}

/* A plane of rows as one side sees it. */
typedef struct plane {
    uint64_t n_outer, n_inner; /* n_inner 0: any, for the side is contiguous */
    uint64_t outer, inner;     /* distances */
} plane;

/* False where the side does not stand at the begin of one. */
static bool plane_of(const fy_area_walk *walk, uint64_t row_bytes, plane *plane_out)
{
    const fy_area *area = walk->area;
    uint32_t n = area->n_dims;
    if (walk->n_here > row_bytes) {
        *plane_out = (plane){.n_outer = walk->n_here / row_bytes, .inner = row_bytes};
        return true;
    }
    if (n < 2 || area->run_bytes != row_bytes || walk->index[n - 1] != 0) {
        return false;
    }
    *plane_out = (plane){.n_outer = area->length[n - 2] - walk->index[n - 2],
                         .n_inner = area->length[n - 1],
                         .outer = area->stride[n - 2],
                         .inner = area->stride[n - 1]};
    return true;
}

/* Gives a contiguous side the shape of the other one. */
static void shape_as(plane *p, const plane *other)
{
    if (p->n_inner == 0) {
        p->n_inner = other->n_inner;
        p->outer = other->n_inner * p->inner;
        p->n_outer /= other->n_inner;
    }
}

static void copy_tiles(const fy_block *corner, const plane *to, const plane *from, uint64_t n_outer)
{
    uint64_t edge = LINE / corner->row_bytes;
    edge = edge < LEAST_EDGE ? LEAST_EDGE : edge;
    for (uint64_t i = 0; i < n_outer; i += edge) {
        uint64_t i_end = fy_min(i + edge, n_outer);
        for (uint64_t j = 0; j < to->n_inner; j += edge) {
            fy_block row = *corner;
            row.n_rows = fy_min(edge, to->n_inner - j);
            for (uint64_t k = i; k < i_end; k++) {
                row.to = corner->to + k * to->outer + j * to->inner;
                row.from = corner->from + k * from->outer + j * from->inner;
                fy_block_copy_cached(&row);
            }
        }
    }
}

/* To row n of the dim around the fastest, which is the first of its own. */
static void take_outer(fy_area_walk *walk, uint64_t row_bytes, uint64_t n_inner, uint64_t n_outer)
{
    const fy_area *area = walk->area;
    uint64_t bytes = row_bytes * n_inner * n_outer;
    if (walk->n_here > row_bytes) {
        fy_walk_take(walk, bytes);
        return;
    }
    walk->left -= bytes - row_bytes * n_inner;
    walk->index[area->n_dims - 2] += n_outer - 1;
    walk->at += (n_outer - 1) * area->stride[area->n_dims - 2];
    fy_walk_take_pieces(walk, row_bytes, n_inner);
}

bool fy_block_transpose(fy_walk_side *to, fy_walk_side *from)
{
    fy_block corner = {.to = to->base + to->walk.at, .from = from->base + from->walk.at};
    plane t, f;
    corner.row_bytes = fy_min(to->walk.n_here, from->walk.n_here);
    if (corner.row_bytes > TRANSPOSE_MOST || !plane_of(&to->walk, corner.row_bytes, &t) ||
        !plane_of(&from->walk, corner.row_bytes, &f) || t.n_inner + f.n_inner == 0) {
        return false;
    }
    shape_as(&t, &f);
    shape_as(&f, &t);
    uint64_t n_outer =
        fy_min(fy_min(t.n_outer, f.n_outer), to->walk.left / (corner.row_bytes * t.n_inner));
    if (t.n_inner != f.n_inner || n_outer < 2 || (t.outer > t.inner && f.outer > f.inner)) {
        return false;
    }
    corner.to_distance = t.inner;
    corner.from_distance = f.inner;
    copy_tiles(&corner, &t, &f, n_outer);
    take_outer(&to->walk, corner.row_bytes, t.n_inner, n_outer);
    take_outer(&from->walk, corner.row_bytes, t.n_inner, n_outer);
    return true;
}
