/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ranks hold the same bytes, and how much is wanted of each such set. */
#include "plan/core.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* Members of the cell, sorted, behind those of the last set: where they stay if the set is new. */
static ferry_status stage_members(fy_sets *sets, const fy_view *view, uint32_t cell,
                                  uint32_t **members_out, ferry_error *error)
{
    uint32_t n = fy_view_cell_size(view, cell);
    size_t used = sets->n_sets == 0 ? 0 : sets->member_begin[sets->n_sets];
    FY_TRY(FY_GROW(sets->members, sets->member_capacity, used + n, "the replica sets", error));
    uint32_t *members = sets->members + used;
    bool sorted = true;
    for (uint32_t i = 0; i < n; i++) {
        members[i] = view->rank[view->cell_begin[cell] + i];
        sorted = sorted && (i == 0 || members[i - 1] < members[i]);
    }
    if (!sorted) {
        fy_sort(members, n, sizeof *members, fy_compare_u32);
    }
    *members_out = members;
    return FERRY_OK;
}

static ferry_status find_set(fy_sets *sets, const fy_view *view, uint32_t cell, uint32_t *set_out,
                             ferry_error *error)
{
    uint32_t *members = NULL;
    uint32_t n = fy_view_cell_size(view, cell);
    FY_TRY(stage_members(sets, view, cell, &members, error));
    uint64_t hash = n;
    for (uint32_t i = 0; i < n; i++) {
        hash = fy_hash_mix(hash, members[i]);
    }
    fy_index_cursor c = fy_index_first(&sets->index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&sets->index, &c)) {
        size_t begin = sets->member_begin[c.value];
        if (sets->member_begin[c.value + 1] - begin == n &&
            memcmp(sets->members + begin, members, n * sizeof *members) == 0) {
            *set_out = c.value;
            return FERRY_OK;
        }
    }
    if (!FY_RESERVE(sets->member_begin, sets->set_capacity, sets->n_sets + 2) ||
        !fy_index_insert(&sets->index, hash, (uint32_t)sets->n_sets)) {
        return fy_fail_no_memory(error, "the replica sets");
    }
    if (sets->n_sets == 0) {
        sets->member_begin[0] = 0;
    }
    sets->member_begin[sets->n_sets + 1] = sets->member_begin[sets->n_sets] + n;
    *set_out = (uint32_t)sets->n_sets++;
    return FERRY_OK;
}

static ferry_status number_cells(ferry_plan *plan, ferry_error *error)
{
    for (size_t i = 0; i < plan->routes.n_views; i++) {
        const fy_view *view = plan->routes.views[i];
        for (uint32_t cell = 0; cell < view->n_cells; cell++) {
            view->set[cell] = FY_NONE;
            if (fy_view_cell_size(view, cell) == 0) {
                continue;
            }
            FY_TRY(find_set(&plan->sets, view, cell, &view->set[cell], error));
        }
    }
    return FERRY_OK;
}

/* What ranks that hold the cell want of it themselves: it never travels. */
static uint64_t local_elements(ferry_plan *plan, const fy_route *route, const fy_span *span)
{
    const fy_view *view = route->view;
    const fy_holders *dst = fy_route_dst_holders(&plan->routes, route);
    uint64_t total = 0;
    for (uint32_t i = view->cell_begin[span->cell]; i < view->cell_begin[span->cell + 1]; i++) {
        uint32_t slot = fy_holders_find(dst, view->rank[i]);
        if (slot == FY_NO_SLOT) {
            continue;
        }
        uint64_t volume;
        fy_span_begin(plan, span, slot, &volume);
        total += volume * span->n_units;
        plan->home_bytes[view->rank[i]] += fy_bytes(volume * span->n_units, route->element_bits);
    }
    return total;
}

static ferry_status add_demand(ferry_plan *plan, const fy_route *route, uint32_t cell,
                               ferry_error *error)
{
    fy_span span;
    ferry_status status = fy_span_init(plan, route, cell, &span, error);
    if (status != FERRY_OK || span.length == 0) {
        fy_span_cleanup(&span);
        return status;
    }
    uint32_t set = route->view->set[cell];
    if (set == FY_NONE) {
        status = fy_plan_fail_lost(plan, route, cell, error);
    } else {
        uint64_t wanted = span.length;
        if (fy_route_may_be_local(&plan->routes, route)) {
            wanted -= local_elements(plan, route, &span);
        }
        plan->sets.demand[set] += (double)wanted * route->element_bits / 8;
        plan->sets.n_lines[set]++;
    }
    fy_span_cleanup(&span);
    return status;
}

/*
 * What rounding may cost is shared among all lines that a sender takes part in, so a set counts
 * those of its most sought member, in whatever sets that is.
 */
static ferry_status share_rounding(ferry_plan *plan, ferry_error *error)
{
    fy_sets *sets = &plan->sets;
    uint32_t *by_rank = fy_alloc_zeroed(plan->problem.n_ranks, sizeof *by_rank);
    FY_TRY(fy_check_memory(by_rank != NULL, "the replica sets", error));
    for (size_t s = 0; s < sets->n_sets; s++) {
        for (size_t i = sets->member_begin[s]; i < sets->member_begin[s + 1]; i++) {
            by_rank[sets->members[i]] += sets->n_lines[s];
        }
    }
    for (size_t s = 0; s < sets->n_sets; s++) {
        for (size_t i = sets->member_begin[s]; i < sets->member_begin[s + 1]; i++) {
            uint32_t n = by_rank[sets->members[i]];
            sets->n_lines[s] = n > sets->n_lines[s] ? n : sets->n_lines[s];
        }
    }
    fy_free(by_rank);
    return FERRY_OK;
}

ferry_status fy_plan_collect_sets(ferry_plan *plan, ferry_error *error)
{
    fy_sets *sets = &plan->sets;
    FY_TRY(number_cells(plan, error));
    size_t n_members = sets->n_sets == 0 ? 0 : sets->member_begin[sets->n_sets];
    sets->demand = fy_alloc_zeroed(sets->n_sets, sizeof *sets->demand);
    sets->n_lines = fy_alloc_zeroed(sets->n_sets, sizeof *sets->n_lines);
    sets->share = fy_alloc_zeroed(n_members, sizeof *sets->share);
    if (sets->demand == NULL || sets->n_lines == NULL || sets->share == NULL) {
        return fy_fail_no_memory(error, "the replica sets");
    }
    for (size_t r = 0; r < plan->routes.n_routes; r++) {
        const fy_route *route = &plan->routes.routes[r];
        for (uint32_t cell = 0; cell < route->n_cells; cell++) {
            FY_TRY(add_demand(plan, route, cell, error));
        }
    }
    return share_rounding(plan, error);
}
