/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest of a plan is that of what it is made from: placements, policy, subset and planner
 * version. It does not depend on how the layouts were described, nor on the order of tensors in
 * itself: what counts is what each rank holds, which of them are lost, and the order in which each
 * destination rank lists its parameters.
 */
#include "plan/core.h"

#include "model/memory.h"

#include <string.h>

/* Raise when the same input makes other moves. */
enum { PLANNER_VERSION = 3 };

/*
 * The order of one rank's parameters as a polynomial over their hashes: lists concatenate by
 * arithmetic, so runs of tensors with equal holders are hashed once and appended to each holder at
 * once.
 */
typedef struct chain {
    uint64_t value;
    uint64_t length_power; /* base ^ length */
} chain;

static const uint64_t BASE = 0x9e3779b97f4a7c15u; /* odd, so no information is shifted out */

static chain append(chain a, chain b)
{
    return (chain){.value = a.value * b.length_power + b.value,
                   .length_power = a.length_power * b.length_power};
}

static void digest_feeds(fy_digest *d, const fy_problem *problem, const fy_tensor *tensor)
{
    fy_digest_u64(d, tensor->n_feeds);
    for (uint32_t i = 0; i < tensor->n_feeds; i++) {
        const fy_feed *feed = &tensor->feeds[i];
        fy_digest_text(d, problem->tensors[feed->tensor].name);
        fy_digest_u64(d, feed->n_dims);
        for (uint32_t k = 0; k < feed->n_dims; k++) {
            fy_digest_u64(d, feed->begin[k]);
            fy_digest_u64(d, feed->at[k]);
            fy_digest_u64(d, feed->shape[k]);
        }
    }
}

static fy_hash128 digest_side(const fy_problem *problem, uint32_t placement)
{
    fy_hash128 absent = {0};
    return placement == FY_NONE ? absent : problem->placements[placement].hash;
}

static fy_hash128 digest_tensor(fy_digest *d, const fy_problem *problem, const fy_tensor *tensor)
{
    fy_digest_text(d, tensor->name);
    fy_digest_u64(d, tensor->dtype.kind);
    fy_digest_u64(d, tensor->dtype.element_bits);
    fy_digest_u64(d, tensor->n_dims);
    for (uint32_t k = 0; k < tensor->n_dims; k++) {
        fy_digest_u64(d, tensor->shape[k]);
    }
    fy_digest_hash(d, digest_side(problem, tensor->src));
    fy_digest_hash(d, digest_side(problem, tensor->dst));
    digest_feeds(d, problem, tensor);
    if (tensor->conversion != NULL) {
        fy_conversion_digest(d, tensor->conversion);
    }
    uint32_t given = fy_problem_tensor_scale(problem, (uint32_t)(tensor - problem->tensors));
    if (given != FY_NONE) {
        fy_digest_text(d, problem->tensors[given].name);
        fy_digest_hash(d, digest_side(problem, problem->tensors[given].src));
    }
    if (tensor->fragment != NULL) {
        fy_digest_u64(d, tensor->fragment->layer);
        fy_digest_u64s(d, tensor->fragment->at, FERRY_MAX_DIMS);
    }
    return fy_digest_take(d);
}

/* Appends a run of tensors to the chains of all its holders. */
static void append_run(const fy_problem *problem, uint32_t placement, chain run, chain *chains)
{
    const fy_holders *holders = fy_problem_holders(problem, placement);
    for (uint32_t s = 0; s < holders->n_slots; s++) {
        chain *own = &chains[holders->rank[s]];
        *own = append(*own, run);
    }
}

static chain chain_of(const uint64_t *tensor_hash, uint32_t tensor)
{
    return (chain){.value = tensor_hash[tensor] | 1, .length_power = BASE};
}

/* Ranks with an order of their own are chained anew, parameter by parameter. */
static void chain_own_orders(const fy_problem *problem, const uint64_t *tensor_hash, chain *chains)
{
    for (uint32_t r = 0; problem->rank_order != NULL && r < problem->n_ranks; r++) {
        const fy_order *order = &problem->rank_order[r];
        chain own = {.value = 0, .length_power = 1};
        for (uint32_t i = 0; i < order->n; i++) {
            uint32_t dst = problem->tensors[order->tensors[i]].dst;
            if (dst != FY_NONE &&
                fy_holders_find(fy_problem_holders(problem, dst), r) != FY_NO_SLOT) {
                own = append(own, chain_of(tensor_hash, order->tensors[i]));
            }
        }
        if (order->n > 0) {
            chains[r] = own;
        }
    }
}

static fy_hash128 digest_order(const ferry_plan *plan, const uint64_t *tensor_hash, chain *chains)
{
    const fy_problem *problem = &plan->problem;
    const chain empty = {.value = 0, .length_power = 1};
    chain run = empty;
    uint32_t open = FY_NONE; /* a placement of the run at work */
    for (uint32_t r = 0; r < problem->n_ranks; r++) {
        chains[r] = empty;
    }
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        uint32_t placement = problem->tensors[t].dst;
        if (placement == FY_NONE) {
            continue;
        }
        if (open != FY_NONE &&
            problem->placements[open].holders != problem->placements[placement].holders) {
            append_run(problem, open, run, chains);
            run = empty;
        }
        open = placement;
        run = append(run, chain_of(tensor_hash, t));
    }
    if (open != FY_NONE) {
        append_run(problem, open, run, chains);
    }
    chain_own_orders(problem, tensor_hash, chains);
    fy_hash128 sum = {0};
    for (uint32_t r = 0; r < problem->n_ranks; r++) {
        if (chains[r].length_power != 1) {
            uint64_t values[2] = {r, chains[r].value};
            sum = fy_hash128_add(sum, fy_hash128_of(values, sizeof values));
        }
    }
    return sum;
}

static void digest_policy(fy_digest *d, const ferry_plan *plan, fy_hash128 tensors,
                          fy_hash128 order)
{
    const fy_cluster *cluster = &plan->problem.cluster;
    fy_digest_text(d, "ferry.plan/1");
    fy_digest_u64(d, PLANNER_VERSION);
    fy_digest_u64(d, plan->problem.n_ranks);
    fy_digest_hash(d, tensors);
    fy_digest_hash(d, order);
    fy_digest_u64(d, plan->policy);
    fy_digest_u64(d, plan->subset != NULL);
    fy_digest_text(d, plan->subset == NULL ? "" : plan->subset);
    /* The groups of the seed rule are no part of the placements, but they decide who sends. */
    fy_digest_u64(d, plan->seed_choice);
    /* Nothing without lost ranks: plans keep the digests that they had before there were any. */
    if (plan->n_lost > 0) {
        fy_digest_text(d, "lost");
        fy_digest_u64(d, plan->n_lost);
    }
    for (size_t i = 0; i < plan->n_lost; i++) {
        fy_digest_u64(d, plan->lost[i]);
    }
    for (uint32_t side = 0; side < 2; side++) {
        if (plan->problem.memory[side] != NULL) {
            fy_digest_text(d, side == 0 ? "source in boxes" : "destination in boxes");
            fy_digest_hash(d, plan->problem.memory[side]->digest);
        }
    }
    if (plan->policy == FERRY_REPLICA_SEED || !cluster->present) {
        return;
    }
    /* Nodes steer ties of the balanced choice, so they are part of the policy. Rates are not. */
    fy_digest_u64(d, cluster->ranks_per_node);
}

ferry_status fy_plan_make_digest(ferry_plan *plan, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    fy_digest d = {0};
    fy_hash128 tensors = {0};
    uint64_t *tensor_hash = fy_alloc(problem->n_tensors, sizeof *tensor_hash);
    chain *chains = fy_alloc(problem->n_ranks, sizeof *chains);
    ferry_status status = FERRY_OK;
    if (tensor_hash == NULL || chains == NULL) {
        status = fy_fail_no_memory(error, "the digest of a plan");
        goto out;
    }
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        const char *name = problem->tensors[t].name;
        tensor_hash[t] = fy_hash64(name, strlen(name));
        tensors = fy_hash128_add(tensors, digest_tensor(&d, problem, &problem->tensors[t]));
    }
    digest_policy(&d, plan, tensors, digest_order(plan, tensor_hash, chains));
    plan->digest = fy_digest_take(&d);
    if (d.failed) {
        status = fy_fail_no_memory(error, "the digest of a plan");
    }
out:
    fy_digest_cleanup(&d);
    fy_free(tensor_hash);
    fy_free(chains);
    return status;
}
