/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_SHARD_H
#define FY_PROVE_SHARD_H

#include "prove/spec.h"

/* The elements of one dimension that a holder has: local index to global index, run by run. */
typedef struct fy_proof_piece {
    uint64_t local;
    uint64_t global;
    uint64_t length;
} fy_proof_piece;

/* Ascending by local; no piece is empty, and none goes on where the one before it ends. */
typedef struct fy_proof_pieces {
    const fy_proof_piece *items;
    size_t n;
    uint64_t length;
} fy_proof_pieces;

/*
 * What one rank holds of one tensor. Boxes are in the coordinates of shape; of its elements in
 * row-major order the rank has those from flat_begin to flat_end, which without "flat" are all.
 */
typedef struct fy_proof_shard {
    fy_proof_pieces dims[FY_PROOF_DIMS];
    uint64_t shape[FY_PROOF_DIMS];
    uint64_t flat_begin;
    uint64_t flat_end;
} fy_proof_shard;

/*
 * Pieces that were derived before, by (cut, extent, part): thousands of tensors share a few. The
 * pieces of every shard stay valid until the cache is trimmed.
 */
typedef struct fy_proof_cache {
    fy_index index;
    struct fy_proof_cached *items;
    size_t n;
    size_t capacity;
    size_t n_pieces;
} fy_proof_cache;

/* Forgets everything when it has become large. */
void fy_proof_cache_trim(fy_proof_cache *cache);
void fy_proof_cache_cleanup(fy_proof_cache *cache);

/* Whether the rank at these coordinates of its mesh holds the tensor, be its part empty or not. */
bool fy_proof_spot_holds(const fy_proof_spot *spot, const uint64_t *coordinates);

/* The shard of a rank that holds the tensor on that side. */
ferry_status fy_proof_shard_find(fy_proof_cache *cache, const fy_proof_side *side,
                                 const fy_proof_tensor *tensor, const fy_proof_spot *spot,
                                 const uint64_t *coordinates, fy_proof_shard *shard_out,
                                 ferry_error *error);

/* The number of the piece with a local index below the length. */
size_t fy_proof_pieces_find(const fy_proof_pieces *pieces, uint64_t local);

/* The global element at a place of the shard. */
void fy_proof_shard_element(const fy_proof_shard *shard, const uint64_t *local,
                            uint64_t *global_out);

/* The row-major number of a place among all elements of shape. */
uint64_t fy_proof_shard_number(const fy_proof_shard *shard, const uint64_t *local);

#endif
