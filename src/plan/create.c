/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "plan/core.h"

#include "plan/balance.h"
#include "plan/cut.h"
#include "plan/shards.h"

#include "model/spec.h"

#include "base/checked.h"
#include "base/options.h"
#include "base/subset.h"

#include <string.h>

void ferry_plan_destroy(ferry_plan *plan)
{
    if (plan == NULL ||
        atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    fy_routes_cleanup(&plan->routes);
    fy_free(plan->sets.member_begin);
    fy_free(plan->sets.members);
    fy_free(plan->sets.share);
    fy_free(plan->sets.demand);
    fy_free(plan->sets.n_lines);
    fy_index_cleanup(&plan->sets.index);
    fy_free(plan->lines.lines);
    fy_free(plan->lines.end);
    fy_free(plan->lines.sender);
    fy_free(plan->lines.extras);
    fy_free(plan->first_task);
    fy_free(plan->in_bytes);
    fy_free(plan->out_bytes);
    fy_free(plan->local_bytes);
    fy_free(plan->home_bytes);
    fy_free(plan->rank_table_begin);
    fy_free(plan->rank_tables);
    fy_free(plan->table_route_begin);
    fy_free(plan->table_routes);
    fy_free(plan->table_source_begin);
    fy_free(plan->table_sources);
    fy_free(plan->cut_legs);
    fy_free(plan->used[0]);
    fy_free(plan->used[1]);
    fy_free(plan->rank_rate);
    fy_free(plan->subset);
    fy_free(plan->lost);
    for (size_t t = 0; plan->whole_tables != NULL && t < plan->problem.n_holders; t++) {
        fy_holders_destroy(plan->whole_tables[t]);
    }
    fy_free(plan->whole_tables);
    fy_problem_cleanup(&plan->problem);
    ferry_spec_destroy((ferry_spec *)plan->spec);
    ferry_roster_destroy(plan->roster);
    fy_free(plan);
}

ferry_plan *fy_plan_retain(const ferry_plan *plan)
{
    ferry_plan *same = (ferry_plan *)plan;
    atomic_fetch_add_explicit(&same->references, 1, memory_order_relaxed);
    return same;
}

/* The least possible highest load of a sender, and a rank that no choice of replicas can relieve.
 */
typedef struct optimum {
    double level;
    uint32_t rank;
} optimum;

static ferry_status allocate_ranks(ferry_plan *plan, ferry_error *error)
{
    size_t n = plan->problem.n_ranks;
    plan->in_bytes = fy_alloc_zeroed(n, sizeof *plan->in_bytes);
    plan->out_bytes = fy_alloc_zeroed(n, sizeof *plan->out_bytes);
    plan->local_bytes = fy_alloc_zeroed(n, sizeof *plan->local_bytes);
    plan->home_bytes = fy_alloc_zeroed(n, sizeof *plan->home_bytes);
    plan->rank_rate = fy_alloc(n, sizeof *plan->rank_rate);
    if (plan->in_bytes == NULL || plan->out_bytes == NULL || plan->local_bytes == NULL ||
        plan->home_bytes == NULL || plan->rank_rate == NULL) {
        return fy_fail_no_memory(error, "the bytes of all ranks");
    }
    return FERRY_OK;
}

/*
 * The least possible highest load. rates of NULL count bytes: that is what the choice of replicas
 * minimises, and shares are kept. With rates it is the bound in seconds, and shares are thrown
 * away.
 */
static ferry_status solve_balance(ferry_plan *plan, const double *rates, optimum *optimum_out,
                                  ferry_error *error)
{
    const fy_sets *sets = &plan->sets;
    size_t n_members = sets->n_sets == 0 ? 0 : sets->member_begin[sets->n_sets];
    double *load = fy_alloc_zeroed(plan->problem.n_ranks, sizeof *load);
    double *scratch = rates == NULL ? NULL : fy_alloc(n_members, sizeof *scratch);
    ferry_status status = FERRY_OK;
    if (load == NULL || (rates != NULL && scratch == NULL)) {
        status = fy_fail_no_memory(error, "the balance of senders");
        goto out;
    }
    fy_balance balance = {.n_servers = plan->problem.n_ranks,
                          .rate = rates,
                          .n_sets = sets->n_sets,
                          .member_begin = sets->member_begin,
                          .members = sets->members,
                          .demand = sets->demand,
                          .share = rates == NULL ? sets->share : scratch,
                          .load = load};
    status = fy_balance_solve(&balance, error);
    *optimum_out = (optimum){.level = balance.level, .rank = balance.server};
out:
    fy_free(load);
    fy_free(scratch);
    return status;
}

/* The bound of the senders: in seconds where there is a cluster, which differs if rates do. */
static ferry_status solve_bound(ferry_plan *plan, const optimum *bytes, optimum *bound_out,
                                ferry_error *error)
{
    const fy_cluster *cluster = &plan->problem.cluster;
    *bound_out = *bytes;
    if (cluster->n_overrides > 0) {
        return solve_balance(plan, plan->rank_rate, bound_out, error);
    }
    bound_out->level = bytes->level / plan->rank_rate[0];
    return FERRY_OK;
}

/* A sum, so that it does not matter how tensors share routes. */
static uint64_t hash_names(const ferry_plan *plan, const fy_route *route)
{
    uint64_t sum = 0;
    for (uint32_t u = 0; u < route->n_units; u++) {
        uint32_t leg = fy_route_leg(&plan->routes, route, u);
        const char *name = plan->problem.tensors[plan->routes.legs[leg].tensor].name;
        sum += fy_hash64(name, strlen(name));
    }
    return sum;
}

/* That a rank gets so much of a cell, which its holders tell from others, from a sender. */
static uint64_t hash_choice(const fy_route *route, uint32_t cell, uint32_t receiver,
                            uint32_t sender, uint64_t volume)
{
    const fy_view *view = route->view;
    uint64_t holder = view->rank[view->cell_begin[cell]];
    uint64_t hash = fy_hash_mix(((uint64_t)receiver << 32) | sender, volume);
    return fy_hash_mix(hash, (holder << 32) | fy_view_cell_size(view, cell));
}

/* Under the seed rule senders follow from each receiver: nothing but going over them adds up. */
static ferry_status charge_by_seed(ferry_plan *plan, ferry_error *error)
{
    const fy_routes *routes = &plan->routes;
    fy_cell_touch *touches = NULL;
    size_t capacity = 0, n = 0;
    ferry_status status = FERRY_OK;
    for (size_t r = 0; r < routes->n_routes && status == FERRY_OK; r++) {
        const fy_route *route = &routes->routes[r];
        const fy_holders *dst = fy_route_dst_holders(routes, route);
        uint64_t names = hash_names(plan, route);
        for (uint32_t cell = 0; cell < route->n_cells && status == FERRY_OK; cell++) {
            status = fy_route_list_touches(routes, route, cell, &touches, &capacity, &n, error);
            for (size_t i = 0; i < n && status == FERRY_OK; i++) {
                uint64_t bytes = fy_bytes(touches[i].volume * route->n_units, route->element_bits);
                uint32_t s = dst->cell_begin[touches[i].dst];
                for (; s < dst->cell_begin[touches[i].dst + 1]; s++) {
                    uint32_t sender = fy_seed_sender(plan, route, cell, s);
                    bool local = sender == dst->rank[s];
                    plan->seed_choice +=
                        names * hash_choice(route, cell, dst->rank[s], sender, touches[i].volume);
                    *(local ? &plan->local_bytes[sender] : &plan->out_bytes[sender]) += bytes;
                }
            }
        }
    }
    fy_free(touches);
    return status;
}

/* Of one table of holders: what all its routes together want per cell, and then what each rank
 * wants. */
static ferry_status add_table(ferry_plan *plan, uint32_t table, ferry_error *error)
{
    const fy_routes *routes = &plan->routes;
    const fy_holders *holders = plan->problem.holders[table];
    uint64_t *wanted = fy_alloc_zeroed(holders->n_cells, sizeof *wanted);
    FY_TRY(fy_check_memory(wanted != NULL, "the bytes of all ranks", error));
    for (size_t i = plan->table_route_begin[table]; i < plan->table_route_begin[table + 1]; i++) {
        const fy_route *route = &routes->routes[plan->table_routes[i]];
        for (uint32_t cell = 0; cell < holders->n_cells; cell++) {
            wanted[cell] += fy_bytes(fy_route_wanted(routes, route, cell) * route->n_units,
                                     route->element_bits);
        }
    }
    for (uint32_t s = 0; s < holders->n_slots; s++) {
        plan->in_bytes[holders->rank[s]] += wanted[holders->cell[s]];
    }
    fy_free(wanted);
    return FERRY_OK;
}

static ferry_status add_up(ferry_plan *plan, ferry_error *error)
{
    for (uint32_t table = 0; table < plan->problem.n_holders; table++) {
        bool used = plan->table_route_begin[table] < plan->table_route_begin[table + 1];
        FY_TRY(used ? add_table(plan, table, error) : FERRY_OK);
    }
    plan->totals.struct_size = sizeof plan->totals;
    for (uint32_t rank = 0; rank < plan->problem.n_ranks; rank++) {
        plan->in_bytes[rank] -= plan->local_bytes[rank];
        plan->totals.moved_bytes += plan->in_bytes[rank];
        plan->totals.local_bytes += plan->local_bytes[rank];
    }
    return FERRY_OK;
}

/* Whether a tensor of the destination has a name of the subset, with elements or without. */
static ferry_status find_chosen(const ferry_plan *plan, bool *any_out, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    fy_subset subset;
    ferry_status status = fy_subset_create(plan->subset, &subset, error);
    *any_out = false;
    for (uint32_t t = 0; t < problem->n_tensors && status == FERRY_OK && !*any_out; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        *any_out =
            (tensor->dst != FY_NONE || tensor->is_made) && fy_subset_has(&subset, tensor->name);
    }
    fy_subset_cleanup(&subset);
    return status;
}

static ferry_status check_not_empty(const ferry_plan *plan, ferry_error *error)
{
    bool any_chosen;
    if (plan->routes.total_bytes > 0) {
        return FERRY_OK;
    }
    if (!fy_plan_has_boxes(plan)) { /* half a byte is none, and not nothing */
        FY_TRY(fy_routes_check_alignment(&plan->routes, error));
    }
    FY_TRY(find_chosen(plan, &any_chosen, error));
    if (!any_chosen && plan->subset == NULL) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "the plan moves and copies nothing, 0 bytes: the spec has no tensor for the "
                       "destination");
    }
    if (!any_chosen) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "the plan moves and copies nothing, 0 bytes: no tensor of the destination "
                       "fits the subset \"%.400s\"",
                       plan->subset);
    }
    if (plan->n_lost > 0 && plan->n_lost == plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "the plan moves and copies nothing, 0 bytes: all of its ranks, %u, are left "
                       "out as lost",
                       plan->problem.n_ranks);
    }
    return fy_fail(
        error, FERRY_ERR_INVALID_PLAN,
        "the plan moves and copies nothing, 0 bytes: none of %u tensors has an element that "
        "the destination wants",
        plan->problem.n_tensors);
}

static ferry_status solve(ferry_plan *plan, ferry_error *error)
{
    optimum bytes = {0}, bound = {0};
    FY_TRY(allocate_ranks(plan, error));
    ferry_status status = FERRY_OK;
    fy_cluster_fill_rates(&plan->problem.cluster, plan->problem.n_ranks, plan->rank_rate, NULL);
    if (plan->policy == FERRY_REPLICA_BALANCED) {
        status = fy_problem_unify(&plan->problem, error);
    }
    FY_THEN(status, fy_plan_remove_lost(plan, error));
    FY_THEN(status, fy_routes_build(&plan->problem, plan->subset, &plan->routes, error));
    FY_THEN(status, check_not_empty(plan, error));
    FY_THEN(status, fy_plan_note_cuts(plan, error));
    FY_THEN(status, fy_plan_check_made(plan, error));
    if (fy_plan_has_boxes(plan)) {
        fy_plan_note_bytes(plan);
    } else {
        FY_THEN(status, fy_routes_check_alignment(&plan->routes, error));
    }
    FY_THEN(status, fy_plan_collect_sets(plan, error));
    FY_THEN(status, solve_balance(plan, NULL, &bytes, error));
    if (status == FERRY_OK && plan->policy == FERRY_REPLICA_BALANCED) {
        memcpy(plan->local_bytes, plan->home_bytes,
               plan->problem.n_ranks * sizeof *plan->local_bytes);
        status = fy_plan_draw_lines(plan, bytes.level, error);
    } else if (status == FERRY_OK) {
        status = charge_by_seed(plan, error);
    }
    FY_THEN(status, fy_plan_list_receivers(plan, error));
    FY_THEN(status, add_up(plan, error));
    FY_THEN(status, fy_plan_count_moves(plan, error));
    FY_THEN(status, fy_plan_check_bytes(plan, error));
    FY_THEN(status, solve_bound(plan, &bytes, &bound, error));
    if (status == FERRY_OK) {
        plan->bound.busiest_bytes = bytes.level;
        status = fy_plan_find_bound(plan, bound.level, bound.rank, error);
    }
    FY_THEN(status, fy_plan_make_digest(plan, error));
    return status;
}

static ferry_status apply_options(ferry_plan *plan, const ferry_plan_options *options,
                                  ferry_error *error)
{
    if (options->replica > FERRY_REPLICA_SEED) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%u is not a replica policy", options->replica);
    }
    plan->policy = options->replica;
    if (options->subset != NULL) {
        plan->subset = fy_strdup(options->subset);
        FY_TRY(fy_check_memory(plan->subset != NULL, "a pattern", error));
    }
    return fy_plan_note_lost(plan, options->lost_ranks, options->n_lost_ranks, error);
}

ferry_status fy_plan_from_problem(fy_problem *problem, const ferry_plan_options *options,
                                  ferry_plan **plan_out, ferry_error *error)
{
    ferry_plan *plan = fy_alloc_zeroed(1, sizeof *plan);
    if (plan == NULL) {
        fy_problem_cleanup(problem);
        return fy_fail_no_memory(error, "a plan");
    }
    atomic_init(&plan->references, 1);
    plan->problem = *problem;
    *problem = (fy_problem){0};
    ferry_status status = apply_options(plan, options, error);
    FY_THEN(status, solve(plan, error));
    if (status == FERRY_OK) {
        *plan_out = plan;
        plan = NULL;
    }
    ferry_plan_destroy(plan);
    return status;
}

ferry_status ferry_plan_create(const ferry_spec *spec, const ferry_plan_options *options,
                               ferry_plan **plan_out, ferry_error *error)
{
    fy_problem problem;
    FY_TRY(fy_check_use(spec != NULL && plan_out != NULL,
                        "ferry_plan_create needs a spec and a place for the result", error));
    ferry_plan *plan = NULL;
    ferry_plan_options own;
    FY_TRY(fy_take_plan_options(options, &own, error));
    FY_TRY(fy_spec_lower(spec, &problem, error));
    FY_TRY(fy_plan_from_problem(&problem, &own, &plan, error));
    plan->spec = fy_spec_retain(spec);
    *plan_out = plan;
    return FERRY_OK;
}

uint32_t ferry_plan_rank_count(const ferry_plan *plan)
{
    return plan == NULL ? 0 : plan->problem.n_ranks;
}

size_t ferry_plan_digest(const ferry_plan *plan, char *text, size_t text_bytes)
{
    return fy_hash128_print(plan == NULL ? (fy_hash128){0, 0} : plan->digest, text, text_bytes);
}

ferry_status ferry_plan_get_totals(const ferry_plan *plan, ferry_plan_totals *totals_out,
                                   ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL, "ferry_plan_get_totals needs a plan", error));
    return fy_copy_out(&plan->totals, sizeof plan->totals, totals_out, "ferry_plan_totals", error);
}

ferry_status ferry_plan_get_rank_bytes(const ferry_plan *plan, uint32_t rank,
                                       ferry_rank_bytes *bytes_out, ferry_error *error)
{
    if (plan == NULL || rank >= plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_plan_get_rank_bytes needs a plan and a rank of its world, not %u",
                       rank);
    }
    ferry_rank_bytes bytes = {.in = plan->in_bytes[rank],
                              .out = plan->out_bytes[rank],
                              .local = plan->local_bytes[rank],
                              .n_moves = plan->first_task[rank + 1] - plan->first_task[rank]};
    return fy_copy_out(&bytes, sizeof bytes, bytes_out, "ferry_rank_bytes", error);
}

ferry_status ferry_plan_get_bound(const ferry_plan *plan, ferry_plan_bound *bound_out,
                                  ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL, "ferry_plan_get_bound needs a plan", error));
    return fy_copy_out(&plan->bound, sizeof plan->bound, bound_out, "ferry_plan_bound", error);
}

/* Regions of a tensor in boxes are tensors of the problem: they count once. */
ferry_status fy_plan_count_tensors(const ferry_plan *plan, uint64_t *n_out, ferry_error *error)
{
    const fy_routes *routes = &plan->routes;
    unsigned char *seen = fy_alloc_zeroed(plan->problem.n_tensors / 8 + 1u, 1);
    FY_TRY(fy_check_memory(seen != NULL, "the tensors of a plan", error));
    uint64_t n = 0;
    for (size_t i = 0; i < routes->n_legs; i++) {
        uint32_t tensor = fy_problem_whole_number(&plan->problem, routes->legs[i].tensor);
        unsigned char bit = (unsigned char)(1u << (tensor % 8));
        n += (seen[tensor / 8] & bit) == 0;
        seen[tensor / 8] = (unsigned char)(seen[tensor / 8] | bit);
    }
    for (uint32_t t = 0; t < plan->problem.n_tensors; t++) {
        n += fy_routes_make(routes, t);
    }
    fy_free(seen);
    *n_out = n;
    return FERRY_OK;
}

ferry_status ferry_plan_get_statistics(const ferry_plan *plan,
                                       ferry_plan_statistics *statistics_out, ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL, "ferry_plan_get_statistics needs a plan", error));
    ferry_plan_statistics statistics = {.n_layout_classes = plan->routes.n_routes,
                                        .n_replica_sets = plan->sets.n_sets,
                                        .n_cuts = plan->lines.n_ends,
                                        .n_flat_steps = plan->routes.flat_steps};
    FY_TRY(fy_plan_count_tensors(plan, &statistics.n_tensors, error));
    for (size_t i = 0; i < plan->problem.n_holders; i++) {
        statistics.n_holder_entries += plan->problem.holders[i]->n_slots;
    }
    return fy_copy_out(&statistics, sizeof statistics, statistics_out, "ferry_plan_statistics",
                       error);
}
