/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The reference planner's functions for one parameter: descriptors and the transfers of one
 * receiver. */
#include "layout/overlap.h"
#include "model/group.h"
#include "model/metadata.h"
#include "model/roster.h"

#include "base/checked.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

typedef struct transfer {
    uint32_t src_rank;
    ferry_slice src[FERRY_MAX_DIMS];
    ferry_slice dst[FERRY_MAX_DIMS];
} transfer;

struct ferry_transfers {
    uint32_t n_dims;
    transfer *items;
    size_t n_items;
    size_t capacity;
};

size_t ferry_transfers_count(const ferry_transfers *transfers)
{
    return transfers == NULL ? 0 : transfers->n_items;
}

ferry_status ferry_transfers_at(const ferry_transfers *transfers, size_t index,
                                ferry_transfer *transfer_out, ferry_error *error)
{
    if (index >= ferry_transfers_count(transfers)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "transfer %zu of %zu", index,
                       ferry_transfers_count(transfers));
    }
    const transfer *t = &transfers->items[index];
    size_t bytes = transfers->n_dims * sizeof *t->src;
    ferry_transfer own = FERRY_TRANSFER_INIT;
    own.src_rank = t->src_rank;
    own.n_dims = transfers->n_dims;
    memcpy(own.src_slice, t->src, bytes);
    memcpy(own.dst_slice, t->dst, bytes);
    return fy_copy_out(&own, sizeof own, transfer_out, "ferry_transfer", error);
}

void ferry_transfers_destroy(ferry_transfers *transfers)
{
    if (transfers != NULL) {
        fy_free(transfers->items);
        fy_free(transfers);
    }
}

/* What a caller says of a parameter at both ends. */
typedef struct both {
    ferry_param_metadata src, dst;
} both;

static ferry_status take_both(const ferry_param_metadata *src, const ferry_param_metadata *dst,
                              both *both_out, ferry_error *error)
{
    FY_TRY(fy_metadata_take(src, &both_out->src, error));
    FY_TRY(fy_metadata_take(dst, &both_out->dst, error));
    if (both_out->src.n_dims != both_out->dst.n_dims) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s has %u dimensions at the source, but %u at the destination",
                       both_out->dst.name, both_out->src.n_dims, both_out->dst.n_dims);
    }
    return FERRY_OK;
}

static bool has_group(const ferry_param_metadata *m)
{
    return m->tensor_parallel_group_ranks != NULL &&
           ferry_group_rank_count(m->tensor_parallel_group_ranks) > 0;
}

static ferry_status check_conservation(const ferry_param_metadata *src,
                                       const ferry_param_metadata *dst, uint32_t dim,
                                       ferry_error *error)
{
    uint64_t n_src = ferry_group_rank_count(src->tensor_parallel_group_ranks), have = 0;
    uint64_t n_dst = ferry_group_rank_count(dst->tensor_parallel_group_ranks), want = 0;
    if (!fy_mul(n_src, src->shape[dim], &have) || !fy_mul(n_dst, dst->shape[dim], &want) ||
        have != want) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "%s dim %u: %llu source ranks x %llu = %llu, but %llu destination ranks x "
                       "%llu = %llu; is it marked TP but replicated?",
                       dst->name, dim, (unsigned long long)n_src,
                       (unsigned long long)src->shape[dim], (unsigned long long)have,
                       (unsigned long long)n_dst, (unsigned long long)dst->shape[dim],
                       (unsigned long long)want);
    }
    return FERRY_OK;
}

static ferry_sharding_descriptor descriptor_of(const both *b, uint32_t dim)
{
    return (ferry_sharding_descriptor){
        .struct_size = sizeof(ferry_sharding_descriptor),
        .name = "tp",
        .dim = dim,
        .src_stride = b->src.is_tp ? b->src.partition_stride : 1,
        .dst_stride = b->dst.is_tp ? b->dst.partition_stride : 1,
        .src_dim_ranks = b->src.tensor_parallel_group_ranks,
        .dst_dim_ranks = b->dst.tensor_parallel_group_ranks,
    };
}

ferry_status ferry_sharding_descriptor_build(const ferry_param_metadata *src,
                                             const ferry_param_metadata *dst,
                                             ferry_sharding_descriptor *descriptor_out,
                                             size_t *n_out, ferry_error *error)
{
    FY_TRY(fy_check_use(src != NULL && dst != NULL && n_out != NULL,
                        "ferry_sharding_descriptor_build needs two metadata and two places",
                        error));
    both b;
    FY_TRY(take_both(src, dst, &b, error));
    FY_TRY(fy_check_out(descriptor_out, "ferry_sharding_descriptor", error));
    if ((!b.src.is_tp && !b.dst.is_tp) || !has_group(&b.src) || !has_group(&b.dst)) {
        *n_out = 0;
        return FERRY_OK;
    }
    uint32_t dim = b.dst.is_tp ? b.dst.partition_dim : b.src.partition_dim;
    FY_TRY(check_conservation(&b.src, &b.dst, dim, error));
    ferry_sharding_descriptor found = descriptor_of(&b, dim);
    *n_out = 1;
    return fy_copy_out(&found, sizeof found, descriptor_out, "ferry_sharding_descriptor", error);
}

/*
 * One side of a parameter as splits: cut along its own dimension by its group, whole elsewhere. All
 * parts count as long as the one that is known; a side that is not TP is whole on every rank.
 */
typedef struct cut_side {
    const ferry_param_metadata *metadata;
    fy_split *splits[FERRY_MAX_DIMS];
} cut_side;

static void side_cleanup(cut_side *side)
{
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        fy_split_destroy(side->splits[d]);
        side->splits[d] = NULL; /* a failed side_init has been here before its caller */
    }
}

static ferry_status cut_dim(const ferry_param_metadata *m, uint32_t dim, fy_split **split_out,
                            ferry_error *error)
{
    if (!m->is_tp || dim != m->partition_dim) {
        return fy_split_whole(m->shape[dim], split_out, error);
    }
    uint32_t n = (uint32_t)ferry_group_rank_count(m->tensor_parallel_group_ranks);
    const ferry_param_metadata **parts = fy_alloc(n, sizeof *parts);
    FY_TRY(fy_check_memory(parts != NULL, "the parts of a parameter", error));
    for (uint32_t p = 0; p < n; p++) {
        parts[p] = m;
    }
    ferry_status status = fy_metadata_split(parts, n, dim, split_out, error);
    fy_free(parts);
    return status;
}

static ferry_status side_init(const ferry_param_metadata *m, cut_side *side, ferry_error *error)
{
    *side = (cut_side){.metadata = m};
    for (uint32_t d = 0; d < m->n_dims; d++) {
        ferry_status status = cut_dim(m, d, &side->splits[d], error);
        if (status != FERRY_OK) {
            side_cleanup(side);
            return status;
        }
    }
    return FERRY_OK;
}

static ferry_status check_extents(const cut_side *src, const cut_side *dst, ferry_error *error)
{
    for (uint32_t d = 0; d < dst->metadata->n_dims; d++) {
        if (src->splits[d]->extent != dst->splits[d]->extent) {
            return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                           "%s dim %u: the source has %llu over %u ranks, but the destination %llu "
                           "over %u; is it marked TP but replicated?",
                           dst->metadata->name, d, (unsigned long long)src->splits[d]->extent,
                           src->splits[d]->n_parts, (unsigned long long)dst->splits[d]->extent,
                           dst->splits[d]->n_parts);
        }
    }
    return FERRY_OK;
}

/* The combination of runs that a counter stands at, as a transfer. */
static transfer make_transfer(const ferry_param_metadata *src, fy_overlap *const *overlaps,
                              const uint32_t *parts, const size_t *at, uint32_t n_dims)
{
    transfer t = {.src_rank = src->owner_rank};
    for (uint32_t d = 0; d < n_dims; d++) {
        const fy_run *run = &overlaps[d]->runs[overlaps[d]->run_begin[parts[d]] + at[d]];
        t.src[d] = (ferry_slice){.begin = run->src_local, .length = run->length};
        t.dst[d] = (ferry_slice){.begin = run->dst_local, .length = run->length};
        if (src->is_tp && d == src->partition_dim) {
            t.src_rank = ferry_group_rank_at(src->tensor_parallel_group_ranks, run->src_cell);
        }
    }
    return t;
}

static ferry_status push(ferry_transfers *transfers, const transfer *t, ferry_error *error)
{
    FY_TRY(FY_GROW(transfers->items, transfers->capacity, transfers->n_items + 1,
                   "the transfers of a parameter", error));
    transfers->items[transfers->n_items++] = *t;
    return FERRY_OK;
}

static ferry_status combine(const ferry_param_metadata *src, fy_overlap *const *overlaps,
                            const uint32_t *parts, ferry_transfers *transfers, ferry_error *error)
{
    size_t at[FERRY_MAX_DIMS] = {0};
    for (uint32_t d = 0; d < transfers->n_dims; d++) {
        if (fy_overlap_n_runs(overlaps[d], parts[d]) == 0) {
            return FERRY_OK;
        }
    }
    for (;;) {
        transfer t = make_transfer(src, overlaps, parts, at, transfers->n_dims);
        ferry_status status = push(transfers, &t, error);
        uint32_t d = transfers->n_dims;
        for (; d > 0; d--) {
            if (++at[d - 1] < fy_overlap_n_runs(overlaps[d - 1], parts[d - 1])) {
                break;
            }
            at[d - 1] = 0;
        }
        if (status != FERRY_OK || d == 0) {
            return status;
        }
    }
}

static ferry_status overlap_sides(const cut_side *src, const cut_side *dst, uint32_t my_part,
                                  ferry_transfers *transfers, ferry_error *error)
{
    fy_overlap *overlaps[FERRY_MAX_DIMS] = {NULL};
    uint32_t parts[FERRY_MAX_DIMS] = {0};
    ferry_status status = check_extents(src, dst, error);
    for (uint32_t d = 0; d < transfers->n_dims && status == FERRY_OK; d++) {
        fy_region region = {.length = dst->splits[d]->extent};
        bool cut = dst->metadata->is_tp && d == dst->metadata->partition_dim;
        parts[d] = cut ? my_part : 0;
        status = fy_overlap_create(src->splits[d], dst->splits[d], &region, &overlaps[d], error);
    }
    FY_THEN(status, combine(src->metadata, overlaps, parts, transfers, error));
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        fy_overlap_destroy(overlaps[d]);
    }
    return status;
}

static ferry_status new_transfers(uint32_t n_dims, ferry_transfers **transfers_out,
                                  ferry_error *error)
{
    ferry_transfers *transfers = fy_alloc_zeroed(1, sizeof *transfers);
    FY_TRY(fy_check_memory(transfers != NULL, "the transfers of a parameter", error));
    transfers->n_dims = n_dims;
    *transfers_out = transfers;
    return FERRY_OK;
}

/* Reads the one descriptor that may be given, so that no stride of an array is needed. */
static ferry_status take_descriptor(const char *param_name,
                                    const ferry_sharding_descriptor *descriptors,
                                    size_t n_descriptors, ferry_sharding_descriptor *own,
                                    ferry_error *error)
{
    if (n_descriptors != 1 || descriptors == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: this planner takes exactly one TP descriptor, not %zu", param_name,
                       n_descriptors);
    }
    FY_TRY(fy_take_sharding_descriptor(descriptors, own, error));
    if (own->name == NULL || strcmp(own->name, "tp") != 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: this planner takes a TP descriptor, not \"%s\"", param_name,
                       own->name == NULL ? "" : own->name);
    }
    return FERRY_OK;
}

/* The groups that the descriptor names are the ones that cut. */
static void apply_descriptor(const ferry_sharding_descriptor *descriptor, ferry_param_metadata *src,
                             ferry_param_metadata *dst)
{
    src->tensor_parallel_group_ranks = (ferry_group *)descriptor->src_dim_ranks;
    dst->tensor_parallel_group_ranks = (ferry_group *)descriptor->dst_dim_ranks;
}

ferry_status ferry_transfers_plan_lcm(const char *param_name, const ferry_param_metadata *src,
                                      const ferry_param_metadata *dst,
                                      const ferry_sharding_descriptor *descriptors,
                                      size_t n_descriptors, uint32_t my_rank,
                                      ferry_transfers **transfers_out, ferry_error *error)
{
    FY_TRY(fy_check_use(
        param_name != NULL && src != NULL && dst != NULL && transfers_out != NULL,
        "ferry_transfers_plan_lcm needs a name, two metadata and a place for the result", error));
    both b;
    ferry_sharding_descriptor descriptor;
    FY_TRY(take_both(src, dst, &b, error));
    FY_TRY(take_descriptor(param_name, descriptors, n_descriptors, &descriptor, error));
    apply_descriptor(&descriptor, &b.src, &b.dst);
    bool has_groups = has_group(&b.src) && has_group(&b.dst);
    size_t my_part = 0;
    ferry_error inner;
    if (!has_groups || ferry_group_find_rank(b.dst.tensor_parallel_group_ranks, my_rank, &my_part,
                                             &inner) != FERRY_OK) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s: %s", param_name,
                       has_groups ? inner.message : "the descriptor lacks a group of ranks");
    }
    cut_side src_side = {0}, dst_side = {0};
    ferry_transfers *transfers = NULL;
    ferry_status status = side_init(&b.src, &src_side, error);
    FY_THEN(status, side_init(&b.dst, &dst_side, error));
    FY_THEN(status, new_transfers(b.dst.n_dims, &transfers, error));
    FY_THEN(status, overlap_sides(&src_side, &dst_side, (uint32_t)my_part, transfers, error));
    if (status == FERRY_OK) {
        *transfers_out = transfers;
        transfers = NULL;
    }
    ferry_transfers_destroy(transfers);
    side_cleanup(&src_side);
    side_cleanup(&dst_side);
    return status;
}

/* Who sends a replicated parameter to my_rank; false if nobody does. */
static bool choose_replica(const ferry_param_metadata *src, const ferry_param_metadata *dst,
                           uint32_t my_rank, uint32_t *sender_out)
{
    const ferry_group *from = fy_group_or_none(src->data_parallel_group_ranks);
    const ferry_group *to = fy_group_or_none(dst->data_parallel_group_ranks);
    size_t position;
    if (to != NULL && !fy_group_find(to, my_rank, &position)) {
        return false;
    }
    if (from == NULL) {
        *sender_out = src->owner_rank;
    } else if (fy_group_find(from, my_rank, &position)) {
        *sender_out =
            my_rank; /* it has the parameter already; so too where both groups are equal */
    } else {
        *sender_out = ferry_group_rank_at(from, my_rank % ferry_group_rank_count(from));
    }
    return true;
}

ferry_status ferry_transfers_finalize_dp(const char *param_name, const ferry_param_metadata *src,
                                         const ferry_param_metadata *dst, uint32_t my_rank,
                                         ferry_transfers **transfers_out, ferry_error *error)
{
    FY_TRY(fy_check_use(
        param_name != NULL && src != NULL && dst != NULL && transfers_out != NULL,
        "ferry_transfers_finalize_dp needs a name, two metadata and a place for the result",
        error));
    both b;
    ferry_status status = take_both(src, dst, &b, error);
    src = &b.src;
    dst = &b.dst;
    for (uint32_t d = 0; status == FERRY_OK && d < dst->n_dims; d++) {
        if (src->shape[d] != dst->shape[d]) {
            status =
                fy_fail(error, FERRY_ERR_INVALID_PLAN,
                        "%s dim %u: the source has %llu, but the destination %llu; a replicated "
                        "parameter needs equal shapes",
                        param_name, d, (unsigned long long)src->shape[d],
                        (unsigned long long)dst->shape[d]);
        }
    }
    ferry_transfers *transfers = NULL;
    FY_THEN(status, new_transfers(dst->n_dims, &transfers, error));
    transfer t = {0};
    if (status == FERRY_OK && choose_replica(src, dst, my_rank, &t.src_rank)) {
        for (uint32_t d = 0; d < dst->n_dims; d++) {
            t.src[d] = t.dst[d] = (ferry_slice){.begin = 0, .length = dst->shape[d]};
        }
        status = push(transfers, &t, error);
    }
    if (status == FERRY_OK) {
        *transfers_out = transfers;
        transfers = NULL;
    }
    ferry_transfers_destroy(transfers);
    return status;
}

ferry_status ferry_transfers_find_sources(const char *param_name, const ferry_param_metadata *src,
                                          const ferry_param_metadata *dst, uint32_t my_rank,
                                          ferry_transfers **transfers_out, ferry_error *error)
{
    ferry_sharding_descriptor descriptor = FERRY_SHARDING_DESCRIPTOR_INIT;
    size_t n = 0;
    FY_TRY(fy_check_use(
        param_name != NULL && src != NULL && dst != NULL && transfers_out != NULL,
        "ferry_transfers_find_sources needs a name, two metadata and a place for the result",
        error));
    both b;
    FY_TRY(take_both(src, dst, &b, error));
    ferry_status status = FERRY_OK;
    src = &b.src;
    dst = &b.dst;
    /* The guard compares one dimension; row to column has its sums compared by the planner itself.
     */
    bool turned = src->is_tp && dst->is_tp && src->partition_dim != dst->partition_dim &&
                  has_group(src) && has_group(dst);
    if (turned) {
        descriptor = descriptor_of(&b, dst->partition_dim);
        n = 1;
    } else {
        status = ferry_sharding_descriptor_build(src, dst, &descriptor, &n, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (n == 1) {
        return ferry_transfers_plan_lcm(param_name, src, dst, &descriptor, n, my_rank,
                                        transfers_out, error);
    }
    if (src->is_tp || dst->is_tp) {
        return fy_fail(
            error, FERRY_ERR_INVALID_PLAN,
            "%s is TP, but the %s does not know its tensor-parallel group; treating it as "
            "replicated would hand a rank another rank's shard",
            param_name, has_group(src) ? "destination" : "source");
    }
    return ferry_transfers_finalize_dp(param_name, src, dst, my_rank, transfers_out, error);
}
