/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From what each rank says of its own parameters to tensors and placements: the same form that
 * specs lower to. Parameters with the same resolved name are one tensor; who has it, and which
 * part, follows from the ranks' positions in their tensor-parallel groups.
 */
#include "model/roster_gather.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/group.h"
#include "model/seed.h"

#include <stdlib.h>
#include <string.h>

/* One side of a tensor that has its placement. */
typedef struct placed_side {
    uint32_t tensor;
    int side;
    bool replicated;
    uint32_t placement;
} placed_side;

typedef struct roster_lowering {
    fy_roster_gathering gathering;
    fy_problem *problem;
    bool with_seed;
    /* Sides that differ only in the name of the tensor are worked out once. */
    placed_side *placed;
    size_t n_placed, placed_capacity;
    fy_index placed_index;
    /* Scratch of one side of one tensor, by rank ascending. */
    ferry_param_metadata *said;
    const ferry_param_metadata **side;
    uint32_t *part;
    size_t n_side, said_capacity, side_capacity, part_capacity;
    const ferry_param_metadata **by_part;
    size_t by_part_capacity;
    fy_seed_memo seeds;
} roster_lowering;

static void cleanup(roster_lowering *l)
{
    fy_gathering_cleanup(&l->gathering);
    fy_seed_memo_cleanup(&l->seeds);
    fy_index_cleanup(&l->placed_index);
    fy_free(l->placed);
    fy_free(l->said);
    fy_free(l->side);
    fy_free(l->part);
    fy_free(l->by_part);
}

static int compare_owners(const void *a, const void *b)
{
    uint32_t x = ((const ferry_param_metadata *)a)->owner_rank;
    uint32_t y = ((const ferry_param_metadata *)b)->owner_rank;
    return (x > y) - (x < y);
}

/* What the ranks of one use say. */
static ferry_status list_use(roster_lowering *l, const fy_use *use, int side, ferry_error *error)
{
    const fy_roster_gathering *g = &l->gathering;
    for (uint32_t r = g->first_rank[side][use->outline]; r != FY_NONE; r = g->next_rank[side][r]) {
        FY_TRY(
            FY_GROW(l->said, l->said_capacity, l->n_side + 1, "the holders of a parameter", error));
        fy_said_param(&g->roster->entries[r].said[side], r, use->param, &l->said[l->n_side++]);
    }
    return FERRY_OK;
}

static ferry_status list_side(roster_lowering *l, uint32_t tensor, int side, ferry_error *error)
{
    const fy_uses *uses = &l->gathering.tensors[tensor];
    ferry_status status = FERRY_OK;
    l->n_side = 0;
    for (uint32_t i = uses->first[side]; i != FY_NONE && status == FERRY_OK;
         i = l->gathering.uses[i].next) {
        status = list_use(l, &l->gathering.uses[i], side, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (uses->first[side] != uses->last[side]) {
        fy_sort(l->said, l->n_side, sizeof *l->said, compare_owners);
    }
    if (!FY_RESERVE(l->side, l->side_capacity, l->n_side) ||
        !FY_RESERVE(l->part, l->part_capacity, l->n_side)) {
        return fy_fail_no_memory(error, "the holders of a parameter");
    }
    for (size_t i = 0; i < l->n_side; i++) {
        l->side[i] = &l->said[i];
    }
    return FERRY_OK;
}

/* Everything but the part that a rank holds must be said alike by all ranks. */
static ferry_status check_alike(const roster_lowering *l, const char *side_name, ferry_error *error)
{
    const ferry_param_metadata *first = l->side[0];
    for (size_t i = 1; i < l->n_side; i++) {
        const ferry_param_metadata *m = l->side[i];
        const char *what = NULL;
        if (m->dtype.kind != first->dtype.kind ||
            m->dtype.element_bits != first->dtype.element_bits) {
            what = "dtype";
        } else if (m->n_dims != first->n_dims) {
            what = "number of dimensions";
        } else if (m->is_tp != first->is_tp) {
            what = "is_tp";
        } else if (m->is_tp && (m->partition_dim != first->partition_dim ||
                                m->partition_stride != first->partition_stride ||
                                m->n_partition_sizes != first->n_partition_sizes)) {
            what = "partition";
        } else if (m->is_tp && (m->tensor_parallel_group_ranks == NULL) !=
                                   (first->tensor_parallel_group_ranks == NULL)) {
            what = "knowledge of the tensor-parallel group";
        } else if (m->is_tp && m->tensor_parallel_group_ranks != NULL &&
                   ferry_group_rank_count(m->tensor_parallel_group_ranks) !=
                       ferry_group_rank_count(first->tensor_parallel_group_ranks)) {
            what = "tensor-parallel size";
        }
        for (uint32_t d = 0; what == NULL && d < m->n_dims; d++) {
            bool cut = m->is_tp && d == m->partition_dim;
            what = !cut && m->shape[d] != first->shape[d] ? "shape" : NULL;
        }
        if (what != NULL) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %s ranks %u and %u differ in %s",
                           fy_metadata_name(m), side_name, first->owner_rank, m->owner_rank, what);
        }
    }
    return FERRY_OK;
}

static bool is_present(const ferry_param_metadata *const *parts, uint32_t p)
{
    return parts[p] != NULL;
}

static uint64_t part_length(const ferry_param_metadata *const *parts, uint32_t p, uint32_t dim)
{
    /* A rank of the group that is not in the roster counts as one like the others. */
    for (uint32_t q = 0; !is_present(parts, p); q++) {
        if (is_present(parts, q)) {
            return parts[q]->shape[dim];
        }
    }
    return parts[p]->shape[dim];
}

static const ferry_param_metadata *any_present(const ferry_param_metadata *const *parts)
{
    while (*parts == NULL) {
        parts++;
    }
    return *parts;
}

/* Stride: each shard is that many segments; if they divide, equal ones, else those of the chunk
 * rule. */
static ferry_status split_strided(const ferry_param_metadata *const *parts, uint32_t n_parts,
                                  uint32_t dim, uint64_t stride, fy_split **split_out,
                                  ferry_error *error)
{
    uint64_t extent = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
        extent += part_length(parts, p, dim);
    }
    FY_TRY(fy_split_strided(extent, n_parts, stride, 1, split_out, error));
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; p < n_parts; p++) {
        if ((*split_out)->part_length[p] != part_length(parts, p, dim)) {
            const ferry_param_metadata *m = any_present(parts);
            status = fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "%s dim %u: rank %u of %u holds %llu of %llu, but a stride of %llu gives "
                "it %llu",
                fy_metadata_name(m), dim, p, n_parts,
                (unsigned long long)part_length(parts, p, dim), (unsigned long long)extent,
                (unsigned long long)stride, (unsigned long long)(*split_out)->part_length[p]);
            fy_split_destroy(*split_out);
            return status;
        }
    }
    return FERRY_OK;
}

ferry_status fy_metadata_split(const ferry_param_metadata *const *parts, uint32_t n_parts,
                               uint32_t dim, fy_split **split_out, ferry_error *error)
{
    const ferry_param_metadata *like = any_present(parts);
    if (like->is_tp && like->partition_stride > 1) {
        return split_strided(parts, n_parts, dim, like->partition_stride, split_out, error);
    }
    size_t n_segments = like->is_tp && like->n_partition_sizes > 0 ? like->n_partition_sizes : 1;
    uint64_t *lengths = fy_alloc(n_parts * n_segments, sizeof *lengths);
    FY_TRY(fy_check_memory(lengths != NULL, "the lengths of shards", error));
    for (uint32_t p = 0; p < n_parts; p++) {
        const ferry_param_metadata *m = is_present(parts, p) ? parts[p] : like;
        for (size_t s = 0; s < n_segments; s++) {
            bool packed = m->is_tp && m->n_partition_sizes > 0;
            lengths[p * n_segments + s] = packed ? m->partition_sizes[s] : m->shape[dim];
        }
    }
    ferry_status status = fy_split_segments(n_parts, lengths, n_segments, split_out, error);
    fy_free(lengths);
    return status;
}

/* Which part each holder has; by_part[p] is a representative of part p. */
static ferry_status find_parts(roster_lowering *l, uint32_t n_parts, ferry_error *error)
{
    FY_TRY(FY_GROW(l->by_part, l->by_part_capacity, n_parts, "the parts of a parameter", error));
    memset(l->by_part, 0, n_parts * sizeof *l->by_part);
    for (size_t i = 0; i < l->n_side; i++) {
        const ferry_param_metadata *m = l->side[i];
        size_t position = 0;
        if (m->is_tp) {
            ferry_error inner;
            ferry_status status = ferry_group_find_rank(m->tensor_parallel_group_ranks,
                                                        m->owner_rank, &position, &inner);
            if (status != FERRY_OK) {
                return fy_fail(error, status, "%s: tensor parallel: %s", fy_metadata_name(m),
                               inner.message);
            }
        }
        l->part[i] = (uint32_t)position;
        const ferry_param_metadata *other = l->by_part[position];
        bool same = !m->is_tp || other == NULL ||
                    other->shape[m->partition_dim] == m->shape[m->partition_dim];
        for (size_t s = 0; same && other != NULL && m->is_tp && s < m->n_partition_sizes; s++) {
            same = other->partition_sizes[s] == m->partition_sizes[s];
        }
        if (!same) {
            return fy_fail(
                error, FERRY_ERR_INVALID_INPUT,
                "%s dim %u: ranks %u and %u hold the same part, but with lengths %llu and "
                "%llu",
                fy_metadata_name(m), m->partition_dim, other->owner_rank, m->owner_rank,
                (unsigned long long)other->shape[m->partition_dim],
                (unsigned long long)m->shape[m->partition_dim]);
        }
        l->by_part[position] = other == NULL ? m : other;
    }
    return FERRY_OK;
}

/* A rank outside of its own DP group receives nothing of a replicated parameter. */
static void drop_outsiders(roster_lowering *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n_side; i++) {
        const ferry_param_metadata *m = l->side[i];
        const ferry_group *dp = fy_group_or_none(m->data_parallel_group_ranks);
        size_t position;
        if (dp == NULL || fy_group_find(dp, m->owner_rank, &position)) {
            l->side[kept++] = m;
        }
    }
    l->n_side = kept;
}

static ferry_status lower_layout(roster_lowering *l, uint32_t n_parts, fy_layout *layout,
                                 ferry_error *error)
{
    const ferry_param_metadata *first = l->side[0];
    layout->n_dims = first->n_dims;
    layout->is_cut = first->is_tp;
    for (uint32_t d = 0; d < first->n_dims; d++) {
        fy_split *split = NULL;
        ferry_status status;
        if (first->is_tp && d == first->partition_dim) {
            status = fy_metadata_split(l->by_part, n_parts, d, &split, error);
        } else {
            status = fy_split_whole(first->shape[d], &split, error);
        }
        if (status == FERRY_OK) {
            layout->shape[d] = split->extent;
            status = fy_problem_add_split(l->problem, split, &layout->split[d], error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

static ferry_status lower_holders(roster_lowering *l, uint32_t n_cells, uint32_t *number_out,
                                  ferry_error *error)
{
    fy_holders *holders = NULL;
    fy_holder *entries = fy_alloc(l->n_side, sizeof *entries);
    FY_TRY(fy_check_memory(entries != NULL, "the holders of a parameter", error));
    for (size_t i = 0; i < l->n_side; i++) {
        entries[i] = (fy_holder){.rank = l->side[i]->owner_rank, .cell = l->part[i]};
    }
    ferry_status status = fy_holders_create(n_cells, entries, l->n_side, &holders, error);
    fy_free(entries);
    return status == FERRY_OK ? fy_problem_add_holders(l->problem, holders, number_out, error)
                              : status;
}

/* Every part costs memory, but a group of millions of ranks is three numbers in a message. */
static ferry_status check_group_size(const roster_lowering *l, const ferry_param_metadata *m,
                                     uint32_t n_parts, ferry_error *error)
{
    uint32_t n_ranks = l->gathering.roster->n_ranks;
    if (n_parts <= n_ranks) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "%s: rank %u says that %u ranks share it in its tensor-parallel group, but the "
                   "world has %u",
                   fy_metadata_name(m), m->owner_rank, n_parts, n_ranks);
}

static ferry_status place_side(roster_lowering *l, uint32_t tensor, int side, bool replicated,
                               uint32_t *placement_out, ferry_error *error)
{
    const char *side_name = side == 0 ? "source" : "destination";
    ferry_status status = list_side(l, tensor, side, error);
    if (status == FERRY_OK && l->n_side > 0) {
        status = check_alike(l, side_name, error);
    }
    if (status == FERRY_OK && side == 1 && replicated) {
        drop_outsiders(l);
    }
    *placement_out = FY_NONE;
    if (status != FERRY_OK || l->n_side == 0) {
        return status;
    }
    const ferry_param_metadata *first = l->side[0];
    fy_layout layout = {0};
    uint32_t holders = 0;
    const fy_seed *seed = NULL;
    uint32_t n_parts =
        first->is_tp ? (uint32_t)ferry_group_rank_count(first->tensor_parallel_group_ranks) : 1;
    FY_TRY(check_group_size(l, first, n_parts, error));
    FY_TRY(find_parts(l, n_parts, error));
    FY_TRY(lower_layout(l, n_parts, &layout, error));
    FY_TRY(lower_holders(l, n_parts, &holders, error));
    if (l->with_seed) {
        FY_TRY(
            fy_seed_make(&l->seeds, &l->problem->arena, l->side, l->n_side, n_parts, &seed, error));
    }
    return fy_problem_add_placement(l->problem, &layout, holders, seed, placement_out, error);
}

static uint64_t hash_side(const roster_lowering *l, uint32_t tensor, int side, bool replicated)
{
    const fy_roster_gathering *g = &l->gathering;
    uint64_t hash = (uint64_t)side * 2 + replicated;
    for (uint32_t i = g->tensors[tensor].first[side]; i != FY_NONE; i = g->uses[i].next) {
        hash = fy_hash_mix(hash, (uint64_t)g->uses[i].outline << 32 | g->uses[i].kind);
    }
    return hash;
}

/* The same ranks, by the same outlines, say of two tensors what differs in the name at most. */
static bool is_side_alike(const roster_lowering *l, uint32_t a, uint32_t b, int side)
{
    const fy_roster_gathering *g = &l->gathering;
    uint32_t i = g->tensors[a].first[side], j = g->tensors[b].first[side];
    while (i != FY_NONE && j != FY_NONE) {
        if (g->uses[i].outline != g->uses[j].outline || g->uses[i].kind != g->uses[j].kind) {
            return false;
        }
        i = g->uses[i].next;
        j = g->uses[j].next;
    }
    return i == j;
}

/* The placement of a tensor that the side has. */
static ferry_status lower_side(roster_lowering *l, uint32_t tensor, int side, bool replicated,
                               uint32_t *placement_out, ferry_error *error)
{
    uint64_t hash = hash_side(l, tensor, side, replicated);
    fy_index_cursor c = fy_index_first(&l->placed_index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&l->placed_index, &c)) {
        const placed_side *p = &l->placed[c.value];
        if (p->side == side && p->replicated == replicated &&
            is_side_alike(l, p->tensor, tensor, side)) {
            *placement_out = p->placement;
            return FERRY_OK;
        }
    }
    placed_side placed = {.tensor = tensor, .side = side, .replicated = replicated};
    FY_TRY(place_side(l, tensor, side, replicated, &placed.placement, error));
    if (!FY_RESERVE(l->placed, l->placed_capacity, l->n_placed + 1) ||
        !fy_index_insert(&l->placed_index, hash, (uint32_t)l->n_placed)) {
        return fy_fail_no_memory(error, "the placements of a roster");
    }
    l->placed[l->n_placed++] = placed;
    *placement_out = placed.placement;
    return FERRY_OK;
}

/* Where the two sides meet. */

static ferry_status check_replicated(const ferry_param_metadata *src,
                                     const ferry_param_metadata *dst, ferry_error *error)
{
    for (uint32_t d = 0; d < dst->n_dims; d++) {
        if (src->shape[d] != dst->shape[d]) {
            return fy_fail(
                error, FERRY_ERR_INVALID_PLAN,
                "%s dim %u: source rank %u has %llu, but destination rank %u has %llu, and "
                "neither side is TP",
                fy_metadata_name(dst), d, src->owner_rank, (unsigned long long)src->shape[d],
                dst->owner_rank, (unsigned long long)dst->shape[d]);
        }
    }
    return FERRY_OK;
}

/* A side that is not TP under a TP group of several ranks is replicated there: not a shard. */
static ferry_status check_group(const ferry_param_metadata *m, const char *side, ferry_error *error)
{
    if (m->tensor_parallel_group_ranks == NULL ||
        ferry_group_rank_count(m->tensor_parallel_group_ranks) == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s is TP, but the %s does not know its tensor-parallel group (rank %u); "
                       "treating it as replicated would hand a rank another rank's shard",
                       fy_metadata_name(m), side, m->owner_rank);
    }
    return FERRY_OK;
}

static ferry_status check_sums(const roster_lowering *l, uint32_t tensor,
                               const ferry_param_metadata *src, const ferry_param_metadata *dst,
                               ferry_error *error)
{
    const fy_problem *problem = l->problem;
    const fy_tensor *t = &problem->tensors[tensor];
    const uint64_t *have = problem->placements[t->src].layout.shape;
    const uint64_t *want = problem->placements[t->dst].layout.shape;
    size_t n_src = ferry_group_rank_count(src->tensor_parallel_group_ranks);
    size_t n_dst = ferry_group_rank_count(dst->tensor_parallel_group_ranks);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        /* What a rank of a larger group holds whole counts once for each rank, as if it were cut.
         */
        bool cut = d == (dst->is_tp ? dst->partition_dim : src->partition_dim);
        uint64_t source = have[d] * (cut && !src->is_tp ? n_src : 1);
        uint64_t target = want[d] * (cut && !dst->is_tp ? n_dst : 1);
        if (source != target) {
            return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                           "%s dim %u: %zu source ranks x %llu = %llu, but %zu destination ranks x "
                           "%llu = %llu; is it marked TP but replicated?",
                           t->name, d, n_src, (unsigned long long)src->shape[d],
                           (unsigned long long)source, n_dst, (unsigned long long)dst->shape[d],
                           (unsigned long long)target);
        }
    }
    return FERRY_OK;
}

static ferry_status check_pair(const ferry_param_metadata *src, const ferry_param_metadata *dst,
                               ferry_error *error)
{
    if (src->dtype.kind != dst->dtype.kind || src->dtype.element_bits != dst->dtype.element_bits ||
        src->n_dims != dst->n_dims) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s: source and destination differ in dtype or number of dimensions",
                       fy_metadata_name(dst));
    }
    if (!src->is_tp && !dst->is_tp) {
        return check_replicated(src, dst, error);
    }
    FY_TRY(check_group(src, "source", error));
    return check_group(dst, "destination", error);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool has_source(const roster_lowering *l, uint32_t tensor)
{
    return l->gathering.tensors[tensor].first[0] != FY_NONE;
}

/* A destination output layer without a source is tied to the embedding. */
static uint32_t find_source(const roster_lowering *l, uint32_t tensor)
{
    static const char *const tied[] = {"embedding.word_embeddings.weight",
                                       "word_embeddings.weight"};
    const char *name = l->problem->tensors[tensor].name;
    if (has_source(l, tensor) || !ends_with(name, "output_layer.weight")) {
        return tensor;
    }
    for (size_t i = 0; i < sizeof tied / sizeof tied[0]; i++) {
        uint32_t source = fy_gathering_find(&l->gathering, tied[i]);
        if (source != FY_NONE && has_source(l, source)) {
            return source;
        }
    }
    return tensor;
}

static ferry_status tie(roster_lowering *l, uint32_t tensor, uint32_t source, ferry_error *error)
{
    fy_tensor *t = &l->problem->tensors[tensor];
    fy_feed *feed = fy_arena_alloc(&l->problem->arena, 1, sizeof *feed);
    FY_TRY(fy_check_memory(feed != NULL, "a tied embedding", error));
    *feed = (fy_feed){.tensor = source, .n_dims = t->n_dims};
    for (uint32_t d = 0; d < t->n_dims; d++) {
        feed->shape[d] = l->problem->placements[t->dst].layout.shape[d];
    }
    t->feeds = feed;
    t->n_feeds = 1;
    return FERRY_OK;
}

static ferry_status copy_shape(roster_lowering *l, fy_tensor *t, ferry_error *error)
{
    uint32_t placement = t->dst == FY_NONE ? t->src : t->dst;
    uint64_t *shape = fy_arena_alloc(&l->problem->arena, t->n_dims, sizeof *shape);
    FY_TRY(fy_check_memory(shape != NULL, "a shape", error));
    for (uint32_t d = 0; placement != FY_NONE && d < t->n_dims; d++) {
        shape[d] = l->problem->placements[placement].layout.shape[d];
    }
    t->shape = shape;
    return FERRY_OK;
}

static ferry_status lower_source(roster_lowering *l, uint32_t tensor, ferry_error *error)
{
    ferry_param_metadata src;
    uint32_t placement;
    if (!fy_gathering_first(&l->gathering, tensor, 0, &src)) {
        return FERRY_OK;
    }
    FY_TRY(src.is_tp ? check_group(&src, "source", error) : FERRY_OK);
    FY_TRY(lower_side(l, tensor, 0, false, &placement, error));
    l->problem->tensors[tensor].src = placement;
    return FERRY_OK;
}

static ferry_status lower_destination(roster_lowering *l, uint32_t tensor, ferry_error *error)
{
    ferry_param_metadata src, dst;
    if (!fy_gathering_first(&l->gathering, tensor, 1, &dst)) {
        return FERRY_OK;
    }
    uint32_t source = find_source(l, tensor);
    if (!fy_gathering_first(&l->gathering, source, 0, &src)) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "destination parameter \"%s\" of rank %u has no source: no rank's source "
                       "model has it",
                       l->problem->tensors[tensor].name, dst.owner_rank);
    }
    bool replicated = !src.is_tp && !dst.is_tp;
    uint32_t placement = FY_NONE;
    ferry_status status = check_pair(&src, &dst, error);
    FY_THEN(status, lower_side(l, tensor, 1, replicated, &placement, error));
    if (status != FERRY_OK || placement == FY_NONE) {
        return status;
    }
    fy_tensor *t = &l->problem->tensors[tensor];
    t->dst = placement;
    if (!replicated) {
        uint32_t kept = t->src;
        t->src = l->problem->tensors[source].src;
        status = check_sums(l, tensor, &src, &dst, error);
        t->src = kept;
    }
    if (status == FERRY_OK && source != tensor) {
        status = tie(l, tensor, source, error);
    }
    return status;
}

static ferry_status lower_all(roster_lowering *l, ferry_error *error)
{
    FY_TRY(fy_gathering_make(&l->gathering, error));
    uint32_t n = l->problem->n_tensors;
    for (uint32_t t = 0; t < n; t++) {
        FY_TRY(lower_source(l, t, error));
    }
    for (uint32_t t = 0; t < n; t++) {
        FY_TRY(lower_destination(l, t, error));
    }
    for (uint32_t t = 0; t < n; t++) {
        FY_TRY(copy_shape(l, &l->problem->tensors[t], error));
    }
    return FERRY_OK;
}

ferry_status fy_roster_lower(const ferry_roster *roster, bool with_seed, fy_problem *problem,
                             ferry_error *error)
{
    roster_lowering l = {.gathering = {.roster = roster, .problem = problem},
                         .problem = problem,
                         .with_seed = with_seed};
    *problem = (fy_problem){.n_ranks = roster->n_ranks};
    ferry_status status = lower_all(&l, error);
    cleanup(&l);
    if (status != FERRY_OK) {
        fy_problem_cleanup(problem);
    }
    return status;
}
