/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_COVER_H
#define FY_PROVE_COVER_H

#include "prove/content.h"

/* A destination box that a task writes. */
typedef struct fy_proof_written {
    uint64_t key; /* for sorting */
    uint64_t task_id;
    uint64_t begin[FY_PROOF_DIMS];
    uint64_t end[FY_PROOF_DIMS];
} fy_proof_written;

/* What is wrong with a cover: the cell, and the tasks that write it when there are two. */
typedef struct fy_proof_flaw {
    bool is_found;
    bool is_twice; /* else nobody writes it */
    uint64_t tasks[2];
    uint64_t begin[FY_PROOF_DIMS];
    uint64_t length[FY_PROOF_DIMS];
} fy_proof_flaw;

/*
 * Whether boxes, each inside the shard, cover every element of it exactly once. Dimension by
 * dimension, the space is cut wherever a box (or the flat range) begins or ends; between two cuts
 * nothing changes, so one look at each cell sees every element. Within a slab only the boxes that
 * reach into it make cuts, which keeps the number of cells near that of the boxes.
 */
ferry_status fy_proof_cover_check(const fy_proof_shard *shard, size_t n_dims,
                                  fy_proof_written *boxes, size_t n, fy_proof_flaw *flaw_out,
                                  ferry_error *error);

#endif
