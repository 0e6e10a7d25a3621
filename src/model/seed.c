/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/seed.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <stdlib.h>

/* Orders cells by their tuples of ranks. Groups are disjoint, so the first rank decides. */
typedef struct bucket {
    uint32_t first_rank;
    uint32_t cell;
} dp_bucket;

static int compare_buckets(const void *a, const void *b)
{
    uint32_t x = ((const dp_bucket *)a)->first_rank, y = ((const dp_bucket *)b)->first_rank;
    return (x > y) - (x < y);
}

/* The replica number of a cell's lowest rank. */
static uint32_t lowest_replica(const fy_holders *holders, uint32_t cell)
{
    uint32_t lowest = holders->cell_begin[cell];
    for (uint32_t s = lowest; s < holders->cell_begin[cell + 1]; s++) {
        lowest = holders->rank[s] < holders->rank[lowest] ? s : lowest;
    }
    return fy_holders_replica(holders, lowest);
}

ferry_status fy_seed_prepare(fy_holders *holders, ferry_error *error)
{
    dp_bucket *buckets = fy_alloc(holders->n_cells, sizeof *buckets);
    holders->seed_replica = fy_alloc(holders->n_cells, sizeof *holders->seed_replica);
    if (buckets == NULL || holders->seed_replica == NULL) {
        fy_free(buckets);
        return fy_fail_no_memory(error, "the groups of the seed policy");
    }
    for (uint32_t c = 0; c < holders->n_cells; c++) {
        uint32_t begin = holders->cell_begin[c];
        bool     empty = begin == holders->cell_begin[c + 1];
        buckets[c] = (dp_bucket){.first_rank = empty ? UINT32_MAX : holders->rank[begin], .cell = c};
    }
    fy_sort(buckets, holders->n_cells, sizeof *buckets, compare_buckets);
    for (uint32_t i = 0; i < holders->n_cells; i++) {
        bool empty               = buckets[i].first_rank == UINT32_MAX;
        holders->seed_replica[i] = empty ? 0 : lowest_replica(holders, buckets[i].cell);
    }
    fy_free(buckets);
    return FERRY_OK;
}

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
    uint32_t            bucket   = receiver->dp_index % src->n_buckets;
    if (is_cut || src->bucket_dp[bucket] == NULL) {
        return src->senders[(size_t)bucket * src->n_cells + cell];
    }
    const ferry_group *group = src->bucket_dp[bucket];
    return ferry_group_rank_at(group, rank % ferry_group_size(group));
}
