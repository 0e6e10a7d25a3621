/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From what each rank says of its own parameters to tensors and placements: the same form that
 * specs lower to. Parameters with the same resolved name are one tensor; who has it, and which
 * part, follows from the ranks' positions in their tensor-parallel groups.
 */
#include "model/roster.h"

#include "base/checked.h"
#include "base/sort.h"
#include "model/group.h"
#include "model/seed.h"

#include <stdlib.h>
#include <string.h>

typedef struct holding {
    const ferry_param_metadata *metadata;
    uint32_t                    next; /* of the same tensor and side; FY_NONE ends */
} holding;

typedef struct gathered {
    uint32_t first[2]; /* source, destination */
    uint32_t last[2];
} gathered;

typedef struct roster_lowering {
    const ferry_roster *roster;
    fy_problem         *problem;
    bool                with_seed;
    fy_index            names;
    size_t              tensor_capacity;
    gathered           *tensors; /* beside problem->tensors */
    size_t              gathered_capacity;
    holding            *holdings;
    size_t              n_holdings, holding_capacity;
    /* Scratch of one side of one tensor, by rank ascending. */
    const ferry_param_metadata **side;
    uint32_t                    *part;
    size_t                       n_side, side_capacity, part_capacity;
    const ferry_param_metadata **by_part;
    size_t                       by_part_capacity;
    fy_seed_memo                 seeds;
} roster_lowering;

static void cleanup(roster_lowering *l)
{
    fy_index_cleanup(&l->names);
    fy_seed_memo_cleanup(&l->seeds);
    fy_free(l->tensors);
    fy_free(l->holdings);
    fy_free(l->side);
    fy_free(l->part);
    fy_free(l->by_part);
}

static uint32_t find_tensor(const roster_lowering *l, const char *name)
{
    fy_index_cursor c = fy_index_first(&l->names, fy_hash64(name, strlen(name)));
    while (c.value != FY_INDEX_NONE && strcmp(l->problem->tensors[c.value].name, name) != 0) {
        fy_index_next(&l->names, &c);
    }
    return c.value;
}

static ferry_status find_or_add(roster_lowering *l, const ferry_param_metadata *m,
                                uint32_t *number_out, ferry_error *error)
{
    fy_problem *problem = l->problem;
    const char *name    = fy_metadata_name(m);
    *number_out         = find_tensor(l, name);
    if (*number_out != FY_NONE) {
        return FERRY_OK;
    }
    uint32_t n = problem->n_tensors;
    if (!fy_reserve((void **)&problem->tensors, &l->tensor_capacity, n + 1u,
                    sizeof *problem->tensors) ||
        !fy_reserve((void **)&l->tensors, &l->gathered_capacity, n + 1u, sizeof *l->tensors) ||
        !fy_index_insert(&l->names, fy_hash64(name, strlen(name)), n)) {
        return fy_fail_no_memory(error, "the tensors of a roster");
    }
    problem->tensors[n] = (fy_tensor){
        .name = name, .dtype = m->dtype, .n_dims = m->n_dims, .src = FY_NONE, .dst = FY_NONE};
    l->tensors[n] = (gathered){.first = {FY_NONE, FY_NONE}, .last = {FY_NONE, FY_NONE}};
    problem->n_tensors++;
    *number_out = n;
    return FERRY_OK;
}

static ferry_status gather_model(roster_lowering *l, const ferry_model *model, int side,
                                 ferry_error *error)
{
    for (size_t i = 0; model != NULL && i < model->n_params; i++) {
        const ferry_param_metadata *m = &model->params[i];
        uint32_t                    t;
        ferry_status                status = find_or_add(l, m, &t, error);
        if (status != FERRY_OK) {
            return status;
        }
        gathered *g = &l->tensors[t];
        if (g->last[side] != FY_NONE &&
            l->holdings[g->last[side]].metadata->owner_rank == m->owner_rank) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u has two %s parameters with the resolved name \"%s\"",
                           m->owner_rank, side == 0 ? "source" : "destination",
                           l->problem->tensors[t].name);
        }
        uint32_t n = (uint32_t)l->n_holdings;
        if (!fy_reserve((void **)&l->holdings, &l->holding_capacity, l->n_holdings + 1,
                        sizeof *l->holdings)) {
            return fy_fail_no_memory(error, "the parameters of a roster");
        }
        l->holdings[l->n_holdings++] = (holding){.metadata = m, .next = FY_NONE};
        if (g->first[side] == FY_NONE) {
            g->first[side] = n;
        } else {
            l->holdings[g->last[side]].next = n;
        }
        g->last[side] = n;
    }
    return FERRY_OK;
}

/* Destination tensors first, in the order of the ranks; then what only the source has. */
static ferry_status gather_all(roster_lowering *l, ferry_error *error)
{
    for (int side = 1; side >= 0; side--) {
        for (uint32_t r = 0; r < l->roster->n_ranks; r++) {
            const fy_entry *entry = &l->roster->entries[r];
            ferry_status status = gather_model(l, side == 0 ? entry->src : entry->dst, side, error);
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return FERRY_OK;
}

static ferry_status list_side(roster_lowering *l, uint32_t tensor, int side, ferry_error *error)
{
    l->n_side = 0;
    for (uint32_t i = l->tensors[tensor].first[side]; i != FY_NONE; i = l->holdings[i].next) {
        if (!fy_reserve((void **)&l->side, &l->side_capacity, l->n_side + 1, sizeof *l->side) ||
            !fy_reserve((void **)&l->part, &l->part_capacity, l->n_side + 1, sizeof *l->part)) {
            return fy_fail_no_memory(error, "the holders of a parameter");
        }
        l->side[l->n_side++] = l->holdings[i].metadata;
    }
    return FERRY_OK;
}

/* Everything but the part that a rank holds must be said alike by all ranks. */
static ferry_status check_alike(const roster_lowering *l, const char *side_name, ferry_error *error)
{
    const ferry_param_metadata *first = l->side[0];
    for (size_t i = 1; i < l->n_side; i++) {
        const ferry_param_metadata *m    = l->side[i];
        const char                 *what = NULL;
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
                   ferry_group_size(m->tensor_parallel_group_ranks) !=
                       ferry_group_size(first->tensor_parallel_group_ranks)) {
            what = "tensor-parallel size";
        }
        for (uint32_t d = 0; what == NULL && d < m->n_dims; d++) {
            bool cut = m->is_tp && d == m->partition_dim;
            what     = !cut && m->shape[d] != first->shape[d] ? "shape" : NULL;
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
    ferry_status status = fy_split_strided(extent, n_parts, stride, 1, split_out, error);
    if (status != FERRY_OK) {
        return status;
    }
    for (uint32_t p = 0; p < n_parts; p++) {
        if ((*split_out)->part_length[p] != part_length(parts, p, dim)) {
            const ferry_param_metadata *m = any_present(parts);
            status                        = fy_fail(
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
    size_t    n_segments = like->is_tp && like->n_partition_sizes > 0 ? like->n_partition_sizes : 1;
    uint64_t *lengths    = fy_alloc(n_parts * n_segments, sizeof *lengths);
    if (lengths == NULL) {
        return fy_fail_no_memory(error, "the lengths of shards");
    }
    for (uint32_t p = 0; p < n_parts; p++) {
        const ferry_param_metadata *m = is_present(parts, p) ? parts[p] : like;
        for (size_t s = 0; s < n_segments; s++) {
            bool packed                 = m->is_tp && m->n_partition_sizes > 0;
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
    if (!fy_reserve((void **)&l->by_part, &l->by_part_capacity, n_parts, sizeof *l->by_part)) {
        return fy_fail_no_memory(error, "the parts of a parameter");
    }
    memset(l->by_part, 0, n_parts * sizeof *l->by_part);
    for (size_t i = 0; i < l->n_side; i++) {
        const ferry_param_metadata *m        = l->side[i];
        size_t                      position = 0;
        if (m->is_tp) {
            ferry_error  inner;
            ferry_status status = ferry_rank_in_group(m->owner_rank, m->tensor_parallel_group_ranks,
                                                      &position, &inner);
            if (status != FERRY_OK) {
                return fy_fail(error, status, "%s: tensor parallel: %s", fy_metadata_name(m),
                               inner.message);
            }
        }
        l->part[i]                        = (uint32_t)position;
        const ferry_param_metadata *other = l->by_part[position];
        bool                        same  = !m->is_tp || other == NULL ||
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
        size_t                      position;
        if (m->data_parallel_group_ranks == NULL ||
            fy_group_find(m->data_parallel_group_ranks, m->owner_rank, &position)) {
            l->side[kept++] = m;
        }
    }
    l->n_side = kept;
}

static ferry_status add_split(roster_lowering *l, fy_split *split, uint32_t *number_out,
                              ferry_error *error)
{
    return fy_problem_add_split(l->problem, split, number_out, error);
}

static ferry_status lower_layout(roster_lowering *l, uint32_t n_parts, fy_layout *layout,
                                 ferry_error *error)
{
    const ferry_param_metadata *first = l->side[0];
    layout->n_dims                    = first->n_dims;
    layout->is_cut                    = first->is_tp;
    for (uint32_t d = 0; d < first->n_dims; d++) {
        fy_split    *split = NULL;
        ferry_status status;
        if (first->is_tp && d == first->partition_dim) {
            status = fy_metadata_split(l->by_part, n_parts, d, &split, error);
        } else {
            status = fy_split_whole(first->shape[d], &split, error);
        }
        if (status == FERRY_OK) {
            layout->shape[d] = split->extent;
            status           = add_split(l, split, &layout->split[d], error);
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
    fy_holder  *entries = fy_alloc(l->n_side, sizeof *entries);
    if (entries == NULL) {
        return fy_fail_no_memory(error, "the holders of a parameter");
    }
    for (size_t i = 0; i < l->n_side; i++) {
        entries[i] = (fy_holder){.rank = l->side[i]->owner_rank, .cell = l->part[i]};
    }
    ferry_status status = fy_holders_create(n_cells, entries, l->n_side, &holders, error);
    fy_free(entries);
    return status == FERRY_OK ? fy_problem_add_holders(l->problem, holders, number_out, error)
                              : status;
}

static ferry_status lower_side(roster_lowering *l, uint32_t tensor, int side, bool replicated,
                               uint32_t *placement_out, ferry_error *error)
{
    const char  *side_name = side == 0 ? "source" : "destination";
    ferry_status status    = list_side(l, tensor, side, error);
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
    const ferry_param_metadata *first   = l->side[0];
    fy_layout                   layout  = {0};
    uint32_t                    holders = 0;
    const fy_seed              *seed    = NULL;
    uint32_t                    n_parts =
        first->is_tp ? (uint32_t)ferry_group_size(first->tensor_parallel_group_ranks) : 1;
    status = find_parts(l, n_parts, error);
    if (status == FERRY_OK) {
        status = lower_layout(l, n_parts, &layout, error);
    }
    if (status == FERRY_OK) {
        status = lower_holders(l, n_parts, &holders, error);
    }
    if (status == FERRY_OK && l->with_seed) {
        status =
            fy_seed_make(&l->seeds, &l->problem->arena, l->side, l->n_side, n_parts, &seed, error);
    }
    if (status == FERRY_OK) {
        status = fy_problem_add_placement(l->problem, &layout, holders, seed, placement_out, error);
    }
    return status;
}

/* Where the two sides meet. */

/* The ranks that share a parameter along its dimension: of a side that is not cut, those of its
 * group. */
static const ferry_param_metadata *first_holder(const roster_lowering *l, uint32_t tensor, int side)
{
    uint32_t i = l->tensors[tensor].first[side];
    return i == FY_NONE ? NULL : l->holdings[i].metadata;
}

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
        ferry_group_size(m->tensor_parallel_group_ranks) == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s is TP, but the %s does not know its tensor-parallel group (rank %u); "
                       "treating it as replicated would hand a rank somebody else's shard",
                       fy_metadata_name(m), side, m->owner_rank);
    }
    return FERRY_OK;
}

static ferry_status check_sums(const roster_lowering *l, uint32_t tensor,
                               const ferry_param_metadata *src, const ferry_param_metadata *dst,
                               ferry_error *error)
{
    const fy_problem *problem = l->problem;
    const fy_tensor  *t       = &problem->tensors[tensor];
    const uint64_t   *have    = problem->placements[t->src].layout.shape;
    const uint64_t   *want    = problem->placements[t->dst].layout.shape;
    size_t            n_src   = ferry_group_size(src->tensor_parallel_group_ranks);
    size_t            n_dst   = ferry_group_size(dst->tensor_parallel_group_ranks);
    for (uint32_t d = 0; d < t->n_dims; d++) {
        /* What a rank of a larger group holds whole counts once for each rank, as if it were cut.
         */
        bool     cut    = d == (dst->is_tp ? dst->partition_dim : src->partition_dim);
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

static ferry_status check_pair(const roster_lowering *l, uint32_t tensor, uint32_t source,
                               ferry_error *error)
{
    const ferry_param_metadata *src = first_holder(l, source, 0);
    const ferry_param_metadata *dst = first_holder(l, tensor, 1);
    if (src->dtype.kind != dst->dtype.kind || src->dtype.element_bits != dst->dtype.element_bits ||
        src->n_dims != dst->n_dims) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s: source and destination differ in dtype or number of dimensions",
                       fy_metadata_name(dst));
    }
    if (!src->is_tp && !dst->is_tp) {
        return check_replicated(src, dst, error);
    }
    ferry_status status = check_group(src, "source", error);
    return status == FERRY_OK ? check_group(dst, "destination", error) : status;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* A destination output layer without a source is tied to the embedding. */
static uint32_t find_source(const roster_lowering *l, uint32_t tensor)
{
    static const char *const tied[] = {"embedding.word_embeddings.weight",
                                       "word_embeddings.weight"};
    const char              *name   = l->problem->tensors[tensor].name;
    if (l->tensors[tensor].first[0] != FY_NONE || !ends_with(name, "output_layer.weight")) {
        return tensor;
    }
    for (size_t i = 0; i < sizeof tied / sizeof tied[0]; i++) {
        uint32_t source = find_tensor(l, tied[i]);
        if (source != FY_NONE && l->tensors[source].first[0] != FY_NONE) {
            return source;
        }
    }
    return tensor;
}

static ferry_status tie(roster_lowering *l, uint32_t tensor, uint32_t source, ferry_error *error)
{
    fy_tensor *t    = &l->problem->tensors[tensor];
    fy_feed   *feed = fy_arena_alloc(&l->problem->arena, 1, sizeof *feed);
    if (feed == NULL) {
        return fy_fail_no_memory(error, "a tied embedding");
    }
    *feed = (fy_feed){.tensor = source, .n_dims = t->n_dims};
    for (uint32_t d = 0; d < t->n_dims; d++) {
        feed->shape[d] = l->problem->placements[t->dst].layout.shape[d];
    }
    t->feeds   = feed;
    t->n_feeds = 1;
    return FERRY_OK;
}

static ferry_status copy_shape(roster_lowering *l, fy_tensor *t, ferry_error *error)
{
    uint32_t  placement = t->dst == FY_NONE ? t->src : t->dst;
    uint64_t *shape     = fy_arena_alloc(&l->problem->arena, t->n_dims, sizeof *shape);
    if (shape == NULL) {
        return fy_fail_no_memory(error, "a shape");
    }
    for (uint32_t d = 0; placement != FY_NONE && d < t->n_dims; d++) {
        shape[d] = l->problem->placements[placement].layout.shape[d];
    }
    t->shape = shape;
    return FERRY_OK;
}

static ferry_status lower_source(roster_lowering *l, uint32_t tensor, ferry_error *error)
{
    const ferry_param_metadata *src = first_holder(l, tensor, 0);
    if (src == NULL) {
        return FERRY_OK;
    }
    ferry_status status = src->is_tp ? check_group(src, "source", error) : FERRY_OK;
    uint32_t     placement;
    if (status == FERRY_OK) {
        status = lower_side(l, tensor, 0, false, &placement, error);
    }
    if (status == FERRY_OK) {
        l->problem->tensors[tensor].src = placement;
    }
    return status;
}

static ferry_status lower_destination(roster_lowering *l, uint32_t tensor, ferry_error *error)
{
    const ferry_param_metadata *dst = first_holder(l, tensor, 1);
    if (dst == NULL) {
        return FERRY_OK;
    }
    uint32_t source = find_source(l, tensor);
    if (l->tensors[source].first[0] == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "destination parameter \"%s\" of rank %u has no source: no rank's source "
                       "model has it",
                       l->problem->tensors[tensor].name, dst->owner_rank);
    }
    const ferry_param_metadata *src        = first_holder(l, source, 0);
    bool                        replicated = !src->is_tp && !dst->is_tp;
    uint32_t                    placement  = FY_NONE;
    ferry_status                status     = check_pair(l, tensor, source, error);
    if (status == FERRY_OK) {
        status = lower_side(l, tensor, 1, replicated, &placement, error);
    }
    if (status != FERRY_OK || placement == FY_NONE) {
        return status;
    }
    fy_tensor *t = &l->problem->tensors[tensor];
    t->dst       = placement;
    if (!replicated) {
        uint32_t kept = t->src;
        t->src        = l->problem->tensors[source].src;
        status        = check_sums(l, tensor, src, dst, error);
        t->src        = kept;
    }
    if (status == FERRY_OK && source != tensor) {
        status = tie(l, tensor, source, error);
    }
    return status;
}

typedef struct ranked_tensor {
    uint32_t tensor;
    uint32_t position;
} ranked_tensor;

static int compare_tensors(const void *a, const void *b)
{
    uint32_t x = ((const ranked_tensor *)a)->tensor, y = ((const ranked_tensor *)b)->tensor;
    return (x > y) - (x < y);
}

/* The order of a rank's own parameters, if it is not that of the tensors. */
static ferry_status note_order(roster_lowering *l, uint32_t rank, ferry_error *error)
{
    const ferry_model *model  = l->roster->entries[rank].dst;
    bool               sorted = true;
    uint32_t           last   = 0;
    for (size_t i = 0; model != NULL && sorted && i < model->n_params; i++) {
        uint32_t t = find_tensor(l, fy_metadata_name(&model->params[i]));
        sorted     = i == 0 || last < t;
        last       = t;
    }
    if (model == NULL || sorted) {
        return FERRY_OK;
    }
    fy_problem *problem = l->problem;
    if (problem->rank_order == NULL) {
        problem->rank_order =
            fy_arena_alloc(&problem->arena, problem->n_ranks, sizeof *problem->rank_order);
        if (problem->rank_order == NULL) {
            return fy_fail_no_memory(error, "the order of parameters");
        }
        memset(problem->rank_order, 0, problem->n_ranks * sizeof *problem->rank_order);
    }
    fy_order       order     = {.n = (uint32_t)model->n_params};
    ranked_tensor *by_tensor = fy_alloc(order.n, sizeof *by_tensor);
    order.tensors            = fy_arena_alloc(&problem->arena, order.n, sizeof *order.tensors);
    order.sorted             = fy_arena_alloc(&problem->arena, order.n, sizeof *order.sorted);
    if (by_tensor == NULL || order.tensors == NULL || order.sorted == NULL) {
        fy_free(by_tensor);
        return fy_fail_no_memory(error, "the order of parameters");
    }
    for (uint32_t i = 0; i < order.n; i++) {
        order.tensors[i] = find_tensor(l, fy_metadata_name(&model->params[i]));
        by_tensor[i]     = (ranked_tensor){.tensor = order.tensors[i], .position = i};
    }
    fy_sort(by_tensor, order.n, sizeof *by_tensor, compare_tensors);
    for (uint32_t i = 0; i < order.n; i++) {
        order.sorted[i] = by_tensor[i].position;
    }
    fy_free(by_tensor);
    problem->rank_order[rank] = order;
    return FERRY_OK;
}

static ferry_status lower_all(roster_lowering *l, ferry_error *error)
{
    ferry_status status = gather_all(l, error);
    uint32_t     n      = l->problem->n_tensors;
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        status = lower_source(l, t, error);
    }
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        status = lower_destination(l, t, error);
    }
    for (uint32_t t = 0; t < n && status == FERRY_OK; t++) {
        status = copy_shape(l, &l->problem->tensors[t], error);
    }
    for (uint32_t r = 0; r < l->roster->n_ranks && status == FERRY_OK; r++) {
        status = note_order(l, r, error);
    }
    return status;
}

ferry_status fy_roster_lower(const ferry_roster *roster, bool with_seed, fy_problem *problem,
                             ferry_error *error)
{
    roster_lowering l   = {.roster = roster, .problem = problem, .with_seed = with_seed};
    *problem            = (fy_problem){.n_ranks = roster->n_ranks};
    ferry_status status = lower_all(&l, error);
    cleanup(&l);
    if (status != FERRY_OK) {
        fy_problem_cleanup(problem);
    }
    return status;
}
