/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/seed.h"

static const fy_seed_rank *find_rank(const fy_seed *seed, uint32_t rank)
{
    uint32_t low = 0, high = seed->n_ranks;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (seed->ranks[middle].rank < rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return &seed->ranks[low];
}

uint32_t fy_seed_choose(const fy_seed *src, const fy_seed *dst, bool is_cut, uint32_t cell,
                        uint32_t rank)
{
    const fy_seed_rank *receiver = find_rank(dst, rank);
    uint32_t bucket = receiver->dp_index % src->n_buckets;
    if (is_cut || src->bucket_dp[bucket] == NULL) {
        return src->senders[(size_t)bucket * src->n_cells + cell];
    }
    const ferry_group *group = src->bucket_dp[bucket];
    return ferry_group_rank_at(group, rank % ferry_group_size(group));
}
