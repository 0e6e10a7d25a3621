/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound: no plan without relays moves its bytes faster. Egress is the exact optimum over
 * all choices of replicas. A node must take in what no source on it holds, once per receiver; what
 * leaves nodes is the same question as the egress of ranks, asked of nodes.
 */
#include "plan/core.h"

#include "plan/balance.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    double seconds;
    uint32_t rank;
    uint32_t reason;
} candidate;

static void consider(candidate *best, double seconds, uint32_t rank, uint32_t reason)
{
    /* A later reason must be worse by more than rounding to take over. */
    if (seconds > best->seconds * (1 + 1e-12)) {
        *best = (candidate){.seconds = seconds, .rank = rank, .reason = reason};
    }
}

/* Traffic between nodes, by replica set. */
typedef struct crossing {
    ferry_plan *plan;
    uint32_t n_nodes;
    double *in;     /* [n_nodes] bytes that must come from outside */
    double *demand; /* [n_sets] bytes that must leave some node of the set */
} crossing;

/* Whether a set has a member on a node: its members ascend. */
static bool has_node(const ferry_plan *plan, size_t set, uint32_t node)
{
    const fy_sets *sets = &plan->sets;
    uint32_t per = plan->problem.cluster.ranks_per_node;
    uint64_t first = (uint64_t)node * per;
    FY_BISECT(size_t, low, sets->member_begin[set], sets->member_begin[set + 1], middle,
              sets->members[middle] < first);
    return low < sets->member_begin[set + 1] && sets->members[low] < first + per;
}

static ferry_status cross_cell(crossing *c, const fy_route *route, uint32_t cell,
                               fy_cell_touch **touches, size_t *capacity, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&c->plan->routes, route);
    uint32_t set = route->view->set[cell];
    size_t n = 0;
    ferry_status status =
        fy_route_list_touches(&c->plan->routes, route, cell, touches, capacity, &n, error);
    uint32_t last_node = UINT32_MAX; /* receivers of one node come together */
    bool at_home = false;
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        const fy_cell_touch *touch = &(*touches)[i];
        double bytes = (double)touch->volume * route->n_units * route->element_bits / 8;
        for (uint32_t s = dst->cell_begin[touch->dst]; s < dst->cell_begin[touch->dst + 1]; s++) {
            uint32_t node = fy_node_of(&c->plan->problem.cluster, dst->rank[s]);
            if (node != last_node) {
                last_node = node;
                at_home = has_node(c->plan, set, node);
            }
            if (!at_home) {
                c->in[node] += bytes;
                c->demand[set] += bytes;
            }
        }
    }
    return status;
}

static ferry_status cross_all(crossing *c, ferry_error *error)
{
    fy_cell_touch *touches = NULL;
    size_t capacity = 0;
    ferry_status status = FERRY_OK;
    for (size_t r = 0; r < c->plan->routes.n_routes && status == FERRY_OK; r++) {
        const fy_route *route = &c->plan->routes.routes[r];
        for (uint32_t cell = 0; cell < route->n_cells && status == FERRY_OK; cell++) {
            if (route->view->set[cell] != FY_NONE) {
                status = cross_cell(c, route, cell, &touches, &capacity, error);
            }
        }
    }
    fy_free(touches);
    return status;
}

/* The sets as sets of nodes; members ascend, so equal nodes are neighbours. */
static void nodes_of_sets(const ferry_plan *plan, size_t *begin, uint32_t *members)
{
    const fy_sets *sets = &plan->sets;
    size_t used = 0;
    for (size_t s = 0; s < sets->n_sets; s++) {
        begin[s] = used;
        for (size_t i = sets->member_begin[s]; i < sets->member_begin[s + 1]; i++) {
            uint32_t node = fy_node_of(&plan->problem.cluster, sets->members[i]);
            if (used == begin[s] || members[used - 1] != node) {
                members[used++] = node;
            }
        }
    }
    begin[sets->n_sets] = used;
}

static ferry_status solve_nodes(const crossing *c, const double *rates, double *level_out,
                                uint32_t *node_out, ferry_error *error)
{
    const fy_sets *sets = &c->plan->sets;
    size_t n_members = sets->member_begin[sets->n_sets];
    size_t *begin = fy_alloc(sets->n_sets + 1, sizeof *begin);
    uint32_t *members = fy_alloc(n_members, sizeof *members);
    double *share = fy_alloc(n_members, sizeof *share);
    double *load = fy_alloc_zeroed(c->n_nodes, sizeof *load);
    ferry_status status = FERRY_OK;
    if (begin == NULL || members == NULL || share == NULL || load == NULL) {
        status = fy_fail_no_memory(error, "the bound of the nodes");
    } else {
        nodes_of_sets(c->plan, begin, members);
        fy_balance balance = {.n_servers = c->n_nodes,
                              .rate = rates,
                              .n_sets = sets->n_sets,
                              .member_begin = begin,
                              .members = members,
                              .demand = c->demand,
                              .share = share,
                              .load = load};
        status = fy_balance_solve(&balance, error);
        *level_out = balance.level;
        *node_out = balance.server;
    }
    fy_free(begin);
    fy_free(members);
    fy_free(share);
    fy_free(load);
    return status;
}

static ferry_status bound_nodes(ferry_plan *plan, candidate *best, ferry_error *error)
{
    const fy_cluster *cluster = &plan->problem.cluster;
    uint32_t per = cluster->ranks_per_node;
    uint32_t n_nodes = (plan->problem.n_ranks - 1) / per + 1;
    crossing c = {.plan = plan, .n_nodes = n_nodes};
    double *rates = fy_alloc(n_nodes, sizeof *rates);
    c.in = fy_alloc_zeroed(n_nodes, sizeof *c.in);
    c.demand = fy_alloc_zeroed(plan->sets.n_sets, sizeof *c.demand);
    ferry_status status = FERRY_OK;
    double level = 0;
    uint32_t node = 0;
    if (rates == NULL || c.in == NULL || c.demand == NULL) {
        status = fy_fail_no_memory(error, "the bound of the nodes");
        goto out;
    }
    fy_cluster_fill_rates(cluster, plan->problem.n_ranks, NULL, rates);
    status = cross_all(&c, error);
    FY_THEN(status, solve_nodes(&c, rates, &level, &node, error));
    if (status != FERRY_OK) {
        goto out;
    }
    consider(best, level, node * per, FERRY_BOUND_NODE_EGRESS);
    for (uint32_t i = 0; i < n_nodes; i++) {
        consider(best, c.in[i] / rates[i], i * per, FERRY_BOUND_NODE_INGRESS);
    }
out:
    fy_free(rates);
    fy_free(c.in);
    fy_free(c.demand);
    return status;
}

ferry_status fy_plan_find_bound(ferry_plan *plan, double seconds, uint32_t rank, ferry_error *error)
{
    candidate best = {0};
    consider(&best, seconds, rank, FERRY_BOUND_EGRESS);
    for (uint32_t r = 0; r < plan->problem.n_ranks; r++) {
        /* Whatever the policy, nothing that a rank has at home needs to come in. */
        uint64_t in = plan->in_bytes[r] + plan->local_bytes[r] - plan->home_bytes[r];
        consider(&best, (double)in / plan->rank_rate[r], r, FERRY_BOUND_INGRESS);
    }
    ferry_status status = FERRY_OK;
    if (plan->problem.cluster.present) {
        status = bound_nodes(plan, &best, error);
    }
    plan->bound.struct_size = sizeof plan->bound;
    plan->bound.reason = best.reason;
    plan->bound.rank = best.rank;
    plan->bound.has_seconds = plan->problem.cluster.present;
    plan->bound.seconds = plan->problem.cluster.present ? best.seconds : 0;
    return status;
}
