/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How many moves every destination rank receives: that is where its task ids begin. */
#include "plan/receiver.h"

#include "base/checked.h"

static ferry_status list_rank_routes(ferry_plan *plan, ferry_error *error)
{
    const fy_routes *routes  = &plan->routes;
    size_t           n_ranks = plan->problem.n_ranks;
    size_t          *begin   = fy_alloc_zeroed(n_ranks + 1, sizeof *begin);
    plan->rank_route_begin   = begin;
    if (begin == NULL) {
        return fy_fail_no_memory(error, "the routes of all ranks");
    }
    for (size_t r = 0; r < routes->n_routes; r++) {
        const fy_holders *holders = fy_route_dst_holders(routes, &routes->routes[r]);
        for (uint32_t s = 0; s < holders->n_slots; s++) {
            begin[holders->rank[s] + 1]++;
        }
    }
    for (size_t i = 0; i < n_ranks; i++) {
        begin[i + 1] += begin[i];
    }
    plan->rank_routes = fy_alloc(begin[n_ranks], sizeof *plan->rank_routes);
    if (plan->rank_routes == NULL) {
        return fy_fail_no_memory(error, "the routes of all ranks");
    }
    for (size_t r = 0; r < routes->n_routes; r++) {
        const fy_holders *holders = fy_route_dst_holders(routes, &routes->routes[r]);
        for (uint32_t s = 0; s < holders->n_slots; s++) {
            plan->rank_routes[begin[holders->rank[s]]++] = (uint32_t)r;
        }
    }
    for (size_t i = n_ranks; i > 0; i--) {
        begin[i] = begin[i - 1]; /* the filling moved each begin to its end */
    }
    begin[0] = 0;
    return FERRY_OK;
}

/* Where the boxes of one sender can join, nothing but making them counts them. */
static ferry_status count_joined(ferry_plan *plan, const fy_route *route, uint64_t *counts,
                                 ferry_error *error)
{
    const fy_holders *holders  = fy_route_dst_holders(&plan->routes, route);
    fy_receiver       receiver = {0};
    ferry_status      status   = FERRY_OK;
    for (uint32_t s = 0; s < holders->n_slots && status == FERRY_OK; s++) {
        status = fy_receiver_turn(&receiver, plan, holders->rank[s], error);
        for (uint32_t u = 0; u < route->n_units && status == FERRY_OK; u++) {
            uint64_t count = 0;
            status =
                fy_receiver_count(&receiver, fy_route_leg(&plan->routes, route, u), &count, error);
            counts[holders->rank[s]] += count;
        }
    }
    fy_receiver_cleanup(&receiver);
    return status;
}

static ferry_status count_route(ferry_plan *plan, const fy_route *route, uint64_t *counts,
                                ferry_error *error)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, route);
    if (route->merges_by_rank) {
        return count_joined(plan, route, counts, error);
    }
    for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
        uint64_t atoms = fy_route_atom_count(&plan->routes, route, cell);
        if (atoms > FY_MAX_ATOMS) {
            uint32_t leg = fy_route_leg(&plan->routes, route, 0);
            return fy_fail(
                error, FERRY_ERR_LIMIT,
                "a shard of \"%s\" would arrive in %llu boxes, more than the limit of %d",
                plan->problem.tensors[plan->routes.legs[leg].tensor].name,
                (unsigned long long)atoms, FY_MAX_ATOMS);
        }
        bool exact = fy_mul(atoms, route->n_units, &atoms);
        for (uint32_t s = holders->cell_begin[cell]; s < holders->cell_begin[cell + 1]; s++) {
            uint64_t *count = &counts[holders->rank[s]];
            if (!exact || !fy_add(*count, atoms, count)) {
                return fy_fail(error, FERRY_ERR_LIMIT, "rank %u would receive more than 2^64 boxes",
                               holders->rank[s]);
            }
        }
    }
    return FERRY_OK;
}

ferry_status fy_plan_count_moves(ferry_plan *plan, ferry_error *error)
{
    uint32_t     n_ranks = plan->problem.n_ranks;
    ferry_status status  = list_rank_routes(plan, error);
    plan->first_task     = fy_alloc_zeroed((size_t)n_ranks + 1, sizeof *plan->first_task);
    if (status == FERRY_OK && plan->first_task == NULL) {
        status = fy_fail_no_memory(error, "the task ids");
    }
    uint64_t *counts = plan->first_task + 1;
    for (size_t r = 0; r < plan->routes.n_routes && status == FERRY_OK; r++) {
        status = count_route(plan, &plan->routes.routes[r], counts, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < plan->lines.n_extras; i++) {
        counts[plan->lines.extras[i].rank] += plan->lines.extras[i].count;
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (!fy_add(plan->first_task[rank + 1], plan->first_task[rank],
                    &plan->first_task[rank + 1])) {
            return fy_fail(error, FERRY_ERR_LIMIT, "the plan would have more than 2^64 moves");
        }
    }
    plan->totals.n_moves = plan->first_task[n_ranks];
    return FERRY_OK;
}
