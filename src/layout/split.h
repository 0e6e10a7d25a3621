/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_SPLIT_H
#define FY_LAYOUT_SPLIT_H

#include "base/hash.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A split says how one dimension is cut into parts. It is a list of pieces sorted by global begin,
 * which cover the extent without gap or overlap. A piece belongs to one part, or (inside packed
 * blocks of fewer parts) is shared by a run of neighbouring parts. The local shard of a part is the
 * concatenation of its pieces in global order. Every way of cutting is only a constructor of this.
 *
 * Neighbouring pieces that are contiguous for their owner are one piece, so piece boundaries are
 * exactly the places where something changes. See docs/layout-algebra.md.
 */
typedef struct fy_piece {
    uint64_t global;
    uint64_t length;   /* never 0 */
    uint64_t local;    /* begin in the owner's shard; shared: index of the owners' begins */
    uint32_t part;     /* the first owner */
    uint32_t n_owners; /* part, part + 1, ... */
    uint32_t cell;     /* pieces with the same owners have the same cell; unshared: the part */
} fy_piece;

typedef struct fy_owners {
    uint32_t first;
    uint32_t count;
} fy_owners;

typedef struct fy_split {
    uint64_t extent;
    uint32_t n_parts;
    uint32_t n_cells; /* n_parts, and one more for every set of owners that shares pieces */
    size_t n_pieces;
    fy_piece *pieces;
    uint64_t *part_length;  /* [n_parts] */
    uint64_t *shared_local; /* for each shared piece, the begins in its owners' shards */
    size_t n_shared_local;
    fy_owners *shared_cells; /* [n_cells - n_parts] */
    fy_hash128 *part_hash;   /* [n_parts] of what the part holds, whatever its number */
    fy_hash128 hash;         /* of the whole split */
} fy_split;

/* More pieces than this in one dimension is FERRY_ERR_LIMIT: the number comes from unchecked files.
 */
enum { FY_MAX_PIECES = 1 << 24 };

/*
 * The constructors. Where a cut has a unit, the extent is a multiple of it and cuts fall on
 * multiples; 1 means none. Sentences of errors start at the number that is wrong: the caller puts
 * the tensor and the dimension in front. n_parts, unit, stride and block_length must be at least 1.
 */
ferry_status fy_split_whole(uint64_t extent, fy_split **split_out, ferry_error *error);

/* Part p has [min(n, p c), min(n, (p+1) c)) with c = ceil(n / n_parts), in units. */
ferry_status fy_split_even(uint64_t extent, uint32_t n_parts, uint64_t unit, fy_split **split_out,
                           ferry_error *error);

/* Cut evenly into n_parts * stride segments; segment j belongs to part j mod n_parts. */
ferry_status fy_split_strided(uint64_t extent, uint32_t n_parts, uint64_t stride, uint64_t unit,
                              fy_split **split_out, ferry_error *error);

/* Block-cyclic: block j of block_length belongs to part j mod n_parts. */
ferry_status fy_split_cyclic(uint64_t extent, uint32_t n_parts, uint64_t block_length,
                             fy_split **split_out, ferry_error *error);

/* The parts' own lengths, in order. */
ferry_status fy_split_sizes(uint64_t extent, const uint64_t *sizes, size_t n_sizes,
                            fy_split **split_out, ferry_error *error);

/* Packed components, each cut evenly by itself into n_parts, or into fewer that neighbours share.
 */
typedef struct fy_split_block {
    uint64_t size;
    uint32_t n_parts; /* divides the n_parts of the split */
} fy_split_block;
ferry_status fy_split_blocks(uint64_t extent, uint32_t n_parts, const fy_split_block *blocks,
                             size_t n_blocks, uint64_t unit, fy_split **split_out,
                             ferry_error *error);

/* Cut by the first count, each part by the second, and so on; the part index is row-major. */
ferry_status fy_split_nested(uint64_t extent, const uint32_t *counts, size_t n_counts,
                             uint64_t unit, fy_split **split_out, ferry_error *error);

/*
 * Segments of any length: lengths[part * n_segments + s] for segment s of a part; the global order
 * is segment by segment, in each part by part. Strides and packed blocks whose shards are uneven.
 */
ferry_status fy_split_segments(uint32_t n_parts, const uint64_t *lengths, size_t n_segments,
                               fy_split **split_out, ferry_error *error);

/* Pieces in order, each of one part; together they are as long as the extent. */
typedef struct fy_split_piece {
    uint64_t length;
    uint32_t part;
} fy_split_piece;
ferry_status fy_split_pieces(uint32_t n_parts, const fy_split_piece *pieces, size_t n_pieces,
                             fy_split **split_out, ferry_error *error);

/*
 * The same content with the parts in the order in which the index meets them, empty ones last, and
 * parts of which every piece is shared alike as one: two descriptions of one content become one
 * split. number_out[p] is where part p went. NULL and FERRY_OK if that is how the split is already.
 */
ferry_status fy_split_canonical(const fy_split *split, uint32_t *number_out, fy_split **split_out,
                                ferry_error *error);

void fy_split_destroy(fy_split *split);

static inline bool fy_split_is_shared(const fy_split *split)
{
    return split->n_cells != split->n_parts;
}

/* The parts that hold the pieces of a cell. */
fy_owners fy_split_cell_owners(const fy_split *split, uint32_t cell);

/* Where a global index lies in the shard of a part that holds it. */
uint64_t fy_split_local(const fy_split *split, uint32_t part, uint64_t global);

#endif
