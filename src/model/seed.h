/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_SEED_H
#define FY_MODEL_SEED_H

#include "model/group.h"
#include "model/holders.h"
#include "model/problem.h"

#include <ferry/metadata.h>

/*
 * Groups for the seed policy that were given, not derived from a mesh. Of a source placement: its
 * DP groups in sorted order (buckets), and for each the tensor-parallel group of its first entry,
 * by part. Of a destination placement: each rank's place in its DP group.
 */
typedef struct fy_seed_rank {
    uint32_t rank;
    uint32_t dp_index;
} fy_seed_rank;

struct fy_seed {
    uint32_t n_buckets;
    uint32_t n_cells;
    const uint32_t *senders;       /* [n_buckets * n_cells] */
    const ferry_group **bucket_dp; /* [n_buckets] NULL where there is none, or nobody in it */
    uint32_t n_ranks;
    const fy_seed_rank *ranks; /* by ascending rank */
};

/* is_cut: a side is, so there is no round robin over the DP group. */
uint32_t fy_seed_choose(const fy_seed *src, const fy_seed *dst, bool is_cut, uint32_t cell,
                        uint32_t rank);

/* What the holders of one side said, which is all that a seed is made from. */
typedef struct fy_seed_groups {
    uint32_t rank;
    const ferry_group *dp;
    const ferry_group *tp;
} fy_seed_groups;

typedef struct fy_seed_source {
    bool is_tp;
    uint32_t n_cells;
    uint32_t n_ranks;
    const fy_seed_groups *ranks;
} fy_seed_source;

typedef struct fy_seed_made {
    const fy_seed *seed;
    fy_seed_source source;
} fy_seed_made;

/* One object per distinct set of groups, so that tensors placed alike still share a placement. */
typedef struct fy_seed_memo {
    fy_index index;
    fy_seed_made *made;
    size_t n_made, capacity;
} fy_seed_memo;

/* holders ascend by rank and are not none; the result lives in the arena. */
ferry_status fy_seed_make(fy_seed_memo *memo, fy_arena *arena,
                          const ferry_param_metadata *const *holders, size_t n_holders,
                          uint32_t n_cells, const fy_seed **seed_out, ferry_error *error);
void fy_seed_memo_cleanup(fy_seed_memo *memo);

#endif
