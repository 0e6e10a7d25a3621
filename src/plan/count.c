/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How many moves every destination rank receives: that is where its task ids begin. */
#include "plan/receiver.h"

#include "base/checked.h"

static uint32_t table_of(const ferry_plan *plan, const fy_route *route, bool source)
{
    return plan->problem.placements[source ? route->src : route->dst].holders;
}

/* Routes by the table of holders on one side of them. */
static ferry_status list_table_routes(const ferry_plan *plan, bool by_source, size_t **begin_out,
                                      uint32_t **routes_out, ferry_error *error)
{
    const fy_routes *routes = &plan->routes;
    size_t n_tables = plan->problem.n_holders;
    size_t *begin = fy_alloc_zeroed(n_tables + 1, sizeof *begin);
    uint32_t *numbers = fy_alloc(routes->n_routes, sizeof *numbers);
    *begin_out = begin; /* the plan's, also on failure */
    *routes_out = numbers;
    FY_TRY(fy_check_memory(begin != NULL && numbers != NULL, "the routes of all ranks", error));
    for (size_t r = 0; r < routes->n_routes; r++) {
        begin[table_of(plan, &routes->routes[r], by_source) + 1]++;
    }
    for (size_t t = 0; t < n_tables; t++) {
        begin[t + 1] += begin[t];
    }
    for (size_t r = 0; r < routes->n_routes; r++) {
        numbers[begin[table_of(plan, &routes->routes[r], by_source)]++] = (uint32_t)r;
    }
    for (size_t t = n_tables; t > 0; t--) {
        begin[t] = begin[t - 1]; /* the filling moved each begin to its end */
    }
    begin[0] = 0;
    return FERRY_OK;
}

/* The holders of a table that routes lead to; NULL for any other table. */
static const fy_holders *receiving_table(const ferry_plan *plan, uint32_t table)
{
    bool used = plan->table_route_begin[table] < plan->table_route_begin[table + 1];
    return used ? plan->problem.holders[table] : NULL;
}

static ferry_status list_rank_tables(ferry_plan *plan, ferry_error *error)
{
    size_t n_ranks = plan->problem.n_ranks;
    size_t *begin = fy_alloc_zeroed(n_ranks + 1, sizeof *begin);
    plan->rank_table_begin = begin;
    FY_TRY(fy_check_memory(begin != NULL, "the routes of all ranks", error));
    for (uint32_t t = 0; t < plan->problem.n_holders; t++) {
        const fy_holders *holders = receiving_table(plan, t);
        for (uint32_t s = 0; holders != NULL && s < holders->n_slots; s++) {
            begin[holders->rank[s] + 1]++;
        }
    }
    for (size_t i = 0; i < n_ranks; i++) {
        begin[i + 1] += begin[i];
    }
    plan->rank_tables = fy_alloc(begin[n_ranks], sizeof *plan->rank_tables);
    FY_TRY(fy_check_memory(plan->rank_tables != NULL, "the routes of all ranks", error));
    for (uint32_t t = 0; t < plan->problem.n_holders; t++) {
        const fy_holders *holders = receiving_table(plan, t);
        for (uint32_t s = 0; holders != NULL && s < holders->n_slots; s++) {
            plan->rank_tables[begin[holders->rank[s]]++] = t;
        }
    }
    for (size_t i = n_ranks; i > 0; i--) {
        begin[i] = begin[i - 1]; /* the filling moved each begin to its end */
    }
    begin[0] = 0;
    return FERRY_OK;
}

ferry_status fy_plan_list_receivers(ferry_plan *plan, ferry_error *error)
{
    FY_TRY(list_table_routes(plan, false, &plan->table_route_begin, &plan->table_routes, error));
    FY_TRY(list_table_routes(plan, true, &plan->table_source_begin, &plan->table_sources, error));
    return list_rank_tables(plan, error);
}

/* Where the boxes of one sender can join, nothing but making them counts them. */
static ferry_status count_joined(ferry_plan *plan, const fy_route *route, uint64_t *counts,
                                 ferry_error *error)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, route);
    fy_receiver receiver = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t s = 0; s < holders->n_slots && status == FERRY_OK; s++) {
        status = fy_receiver_turn(&receiver, plan, holders->rank[s], error);
        for (uint32_t u = 0; u < route->n_units && status == FERRY_OK; u++) {
            uint64_t count = 0;
            uint32_t leg = fy_route_leg(&plan->routes, route, u);
            status = fy_leg_is_cut(plan, leg) ? FERRY_OK
                                              : fy_receiver_count(&receiver, leg, &count, error);
            counts[holders->rank[s]] += count;
        }
    }
    fy_receiver_cleanup(&receiver);
    return status;
}

/* Those of a route that no box of memory cuts. */
static uint32_t count_plain_units(const ferry_plan *plan, const fy_route *route)
{
    uint32_t n = 0;
    for (uint32_t u = 0; plan->cut_legs != NULL && u < route->n_units; u++) {
        n += !fy_leg_is_cut(plan, fy_route_leg(&plan->routes, route, u));
    }
    return plan->cut_legs == NULL ? route->n_units : n;
}

/* Whether boxes of memory cut something that the rank receives. */
static bool receives_cut(const ferry_plan *plan, const bool *cut_routes, uint32_t rank)
{
    for (size_t i = plan->rank_table_begin[rank]; i < plan->rank_table_begin[rank + 1]; i++) {
        uint32_t table = plan->rank_tables[i];
        for (size_t k = plan->table_route_begin[table]; k < plan->table_route_begin[table + 1];
             k++) {
            if (cut_routes[plan->table_routes[k]]) {
                return true;
            }
        }
    }
    return false;
}

static ferry_status count_rank_cut(fy_receiver *receiver, const ferry_plan *plan, uint32_t rank,
                                   uint64_t *count_inout, ferry_error *error)
{
    FY_TRY(fy_receiver_turn(receiver, plan, rank, error));
    FY_TRY(fy_receiver_list_legs(receiver, error));
    for (size_t i = 0; i < receiver->n_legs;) {
        uint64_t count = 0;
        size_t next = fy_receiver_next(receiver, i);
        FY_TRY(fy_receiver_count_cut(receiver, i, next, &count, error));
        *count_inout += count;
        i = next;
    }
    return FERRY_OK;
}

/* What boxes of memory cut, and what may be one again, is counted by making it. */
static ferry_status count_all_cut(ferry_plan *plan, uint64_t *counts, ferry_error *error)
{
    fy_receiver receiver = {0};
    bool *cut_routes = fy_alloc_zeroed(plan->routes.n_routes, sizeof *cut_routes);
    ferry_status status = fy_check_memory(cut_routes != NULL, "the task ids", error);
    for (size_t i = 0; cut_routes != NULL && i < plan->routes.n_legs; i++) {
        cut_routes[plan->routes.legs[i].route] |= fy_leg_is_cut(plan, (uint32_t)i);
    }
    for (uint32_t rank = 0; rank < plan->problem.n_ranks && status == FERRY_OK; rank++) {
        if (receives_cut(plan, cut_routes, rank)) {
            status = count_rank_cut(&receiver, plan, rank, &counts[rank], error);
        }
    }
    fy_receiver_cleanup(&receiver);
    fy_free(cut_routes);
    return status;
}

/* Adds what each cell of the route's table receives; nothing for routes that only making can count.
 */
static ferry_status count_cells(const ferry_plan *plan, const fy_route *route, uint64_t *per_cell,
                                ferry_error *error)
{
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, route);
    uint32_t n_units = count_plain_units(plan, route);
    for (uint32_t cell = 0; !route->merges_by_rank && cell < holders->n_cells; cell++) {
        uint64_t atoms = fy_route_atom_count(&plan->routes, route, cell);
        if (atoms > FY_MAX_ATOMS) {
            uint32_t leg = fy_route_leg(&plan->routes, route, 0);
            return fy_fail(
                error, FERRY_ERR_LIMIT,
                "a shard of \"%s\" would arrive in %llu boxes, more than the limit of %d",
                plan->problem.tensors[plan->routes.legs[leg].tensor].name,
                (unsigned long long)atoms, FY_MAX_ATOMS);
        }
        per_cell[cell] += atoms * n_units; /* below 2^24 x 2^32, and routes are few */
    }
    return FERRY_OK;
}

static ferry_status count_table(ferry_plan *plan, uint32_t table, uint64_t *counts,
                                ferry_error *error)
{
    const fy_holders *holders = plan->problem.holders[table];
    uint64_t *per_cell = fy_alloc_zeroed(holders->n_cells, sizeof *per_cell);
    ferry_status status = FERRY_OK;
    FY_TRY(fy_check_memory(per_cell != NULL, "the task ids", error));
    for (size_t i = plan->table_route_begin[table];
         i < plan->table_route_begin[table + 1] && status == FERRY_OK; i++) {
        const fy_route *route = &plan->routes.routes[plan->table_routes[i]];
        status = count_cells(plan, route, per_cell, error);
        if (status == FERRY_OK && route->merges_by_rank) {
            status = count_joined(plan, route, counts, error);
        }
    }
    for (uint32_t s = 0; s < holders->n_slots && status == FERRY_OK; s++) {
        uint64_t *count = &counts[holders->rank[s]];
        if (!fy_add(*count, per_cell[holders->cell[s]], count)) {
            status = fy_fail(error, FERRY_ERR_LIMIT, "rank %u would receive more than 2^64 boxes",
                             holders->rank[s]);
        }
    }
    fy_free(per_cell);
    return status;
}

ferry_status fy_plan_count_moves(ferry_plan *plan, ferry_error *error)
{
    uint32_t n_ranks = plan->problem.n_ranks;
    ferry_status status = FERRY_OK;
    plan->first_task = fy_alloc_zeroed((size_t)n_ranks + 1, sizeof *plan->first_task);
    FY_TRY(fy_check_memory(plan->first_task != NULL, "the task ids", error));
    uint64_t *counts = plan->first_task + 1;
    for (uint32_t t = 0; t < plan->problem.n_holders && status == FERRY_OK; t++) {
        if (receiving_table(plan, t) != NULL) {
            status = count_table(plan, t, counts, error);
        }
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (plan->cut_legs != NULL) {
        FY_TRY(count_all_cut(plan, counts, error));
    }
    for (size_t i = 0; i < plan->lines.n_extras; i++) {
        if (fy_leg_is_cut(plan, plan->lines.extras[i].leg)) {
            continue;
        }
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
