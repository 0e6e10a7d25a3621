/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The groups of the seed policy, from what the holders of a parameter say of theirs. */
#include "model/seed.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/sort.h"

/* The holders of one side of a parameter, by ascending rank. */
typedef struct fy_seed_side {
    const ferry_param_metadata *const *side;
    size_t n_side;
    uint32_t n_cells;
} fy_seed_side;

static ferry_group *dp_of(const ferry_param_metadata *m)
{
    return fy_group_or_none(m->data_parallel_group_ranks);
}

static bool same_group(const ferry_group *a, const ferry_group *b)
{
    return a == b || (a != NULL && b != NULL && fy_group_equal(a, b));
}

static uint64_t hash_group(const ferry_group *group)
{
    return group == NULL ? 1 : fy_group_hash(group);
}

static uint64_t hash_side(const fy_seed_side *l)
{
    uint64_t hash = fy_hash_mix(l->side[0]->is_tp, l->n_cells);
    for (size_t i = 0; i < l->n_side; i++) {
        hash = fy_hash_mix(hash, l->side[i]->owner_rank);
        hash = fy_hash_mix(hash, hash_group(dp_of(l->side[i])));
        hash = fy_hash_mix(hash, hash_group(l->side[i]->tensor_parallel_group_ranks));
    }
    return hash;
}

/* All that a seed is made from. */
static bool is_made_from(const fy_seed_source *source, const fy_seed_side *l)
{
    bool same = source->n_ranks == l->n_side && source->n_cells == l->n_cells &&
                source->is_tp == l->side[0]->is_tp;
    for (size_t i = 0; same && i < l->n_side; i++) {
        const ferry_param_metadata *m = l->side[i];
        same = source->ranks[i].rank == m->owner_rank &&
               same_group(source->ranks[i].dp, dp_of(m)) &&
               same_group(source->ranks[i].tp, m->tensor_parallel_group_ranks);
    }
    return same;
}

static bool note_source(fy_arena *arena, const fy_seed_side *l, fy_seed_source *source)
{
    fy_seed_groups *ranks = fy_arena_alloc(arena, l->n_side, sizeof *ranks);
    if (ranks == NULL) {
        return false;
    }
    for (size_t i = 0; i < l->n_side; i++) {
        ranks[i] = (fy_seed_groups){.rank = l->side[i]->owner_rank,
                                    .dp = dp_of(l->side[i]),
                                    .tp = l->side[i]->tensor_parallel_group_ranks};
    }
    *source = (fy_seed_source){.is_tp = l->side[0]->is_tp,
                               .n_cells = l->n_cells,
                               .n_ranks = (uint32_t)l->n_side,
                               .ranks = ranks};
    return true;
}

typedef struct dp_entry {
    const ferry_param_metadata *metadata;
    size_t index;
} dp_entry;

static int compare_dp(const void *a, const void *b)
{
    const dp_entry *x = a, *y = b;
    const ferry_group *p = dp_of(x->metadata), *q = dp_of(y->metadata);
    int by_group;
    if (p == NULL || q == NULL) {
        by_group = (p != NULL) - (q != NULL);
    } else {
        by_group = fy_group_compare(p, q);
    }
    return by_group != 0 ? by_group : (x->index > y->index) - (x->index < y->index);
}

static bool same_dp(const dp_entry *a, const dp_entry *b)
{
    return same_group(dp_of(a->metadata), dp_of(b->metadata));
}

/* The first entry of every DP group, in the order of the groups. */
static size_t list_buckets(const fy_seed_side *l, dp_entry *entries)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_side; i++) {
        entries[i] = (dp_entry){.metadata = l->side[i], .index = i};
    }
    fy_sort(entries, l->n_side, sizeof *entries, compare_dp);
    for (size_t i = 0; i < l->n_side; i++) {
        if (n == 0 || !same_dp(&entries[n - 1], &entries[i])) {
            entries[n++] = entries[i];
        }
    }
    return n;
}

static bool fill_buckets(fy_arena *arena, const dp_entry *buckets, size_t n_buckets,
                         uint32_t n_cells, fy_seed *seed)
{
    uint32_t *senders = fy_arena_alloc(arena, n_buckets * n_cells, sizeof *senders);
    seed->bucket_dp = fy_arena_alloc(arena, n_buckets, sizeof *seed->bucket_dp);
    if (senders == NULL || seed->bucket_dp == NULL) {
        return false;
    }
    for (size_t b = 0; b < n_buckets; b++) {
        const ferry_param_metadata *m = buckets[b].metadata;
        seed->bucket_dp[b] = dp_of(m);
        for (uint32_t c = 0; c < n_cells; c++) {
            senders[b * n_cells + c] =
                m->is_tp ? ferry_group_rank_at(m->tensor_parallel_group_ranks, c) : m->owner_rank;
        }
    }
    seed->senders = senders;
    seed->n_buckets = (uint32_t)n_buckets;
    seed->n_cells = n_cells;
    return true;
}

static bool fill_ranks(fy_arena *arena, const fy_seed_side *l, fy_seed *seed)
{
    fy_seed_rank *ranks = fy_arena_alloc(arena, l->n_side, sizeof *ranks);
    if (ranks == NULL) {
        return false;
    }
    for (size_t i = 0; i < l->n_side; i++) {
        const ferry_group *group = dp_of(l->side[i]);
        size_t position = 0;
        if (group != NULL) {
            fy_group_find(group, l->side[i]->owner_rank, &position);
        }
        ranks[i] = (fy_seed_rank){.rank = l->side[i]->owner_rank, .dp_index = (uint32_t)position};
    }
    seed->ranks = ranks;
    seed->n_ranks = (uint32_t)l->n_side;
    return true;
}

ferry_status fy_seed_make(fy_seed_memo *memo, fy_arena *arena,
                          const ferry_param_metadata *const *holders, size_t n_holders,
                          uint32_t n_cells, const fy_seed **seed_out, ferry_error *error)
{
    fy_seed_side side = {.side = holders, .n_side = n_holders, .n_cells = n_cells};
    uint64_t hash = hash_side(&side);
    fy_index_cursor c = fy_index_first(&memo->index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&memo->index, &c)) {
        if (is_made_from(&memo->made[c.value].source, &side)) {
            *seed_out = memo->made[c.value].seed;
            return FERRY_OK;
        }
    }
    dp_entry *entries = fy_alloc(n_holders, sizeof *entries);
    fy_seed *seed = fy_arena_alloc(arena, 1, sizeof *seed);
    fy_seed_made made = {.seed = seed};
    ferry_status status = FERRY_OK;
    if (entries == NULL || seed == NULL) {
        status = fy_fail_no_memory(error, "the groups of the seed policy");
        goto out;
    }
    *seed = (fy_seed){0};
    if (!fill_buckets(arena, entries, list_buckets(&side, entries), n_cells, seed) ||
        !fill_ranks(arena, &side, seed) || !note_source(arena, &side, &made.source) ||
        !FY_RESERVE(memo->made, memo->capacity, memo->n_made + 1) ||
        !fy_index_insert(&memo->index, hash, (uint32_t)memo->n_made)) {
        status = fy_fail_no_memory(error, "the groups of the seed policy");
        goto out;
    }
    memo->made[memo->n_made++] = made;
    *seed_out = seed;
out:
    fy_free(entries);
    return status;
}

void fy_seed_memo_cleanup(fy_seed_memo *memo)
{
    fy_index_cleanup(&memo->index);
    fy_free(memo->made);
    *memo = (fy_seed_memo){0};
}

static const fy_seed_rank *find_rank(const fy_seed *seed, uint32_t rank)
{
    FY_BISECT(uint32_t, low, 0, seed->n_ranks, middle, seed->ranks[middle].rank < rank);
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
    return ferry_group_rank_at(group, rank % ferry_group_rank_count(group));
}
