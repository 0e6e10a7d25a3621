/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are gone leave the tables of holders before anything is planned: everything after that
 * sees only who is left. The tables as they were are kept: they say who had what is missing, and
 * the seed rule begins with them.
 */
#include "plan/core.h"
#include "plan/flat.h"

#include "base/sort.h"

#include <stdio.h>
#include <string.h>

ferry_status fy_plan_note_lost(ferry_plan *plan, const uint32_t *ranks, size_t n_ranks,
                               ferry_error *error)
{
    if (n_ranks == 0) {
        return FERRY_OK;
    }
    if (ranks == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%zu lost ranks, but no list of them", n_ranks);
    }
    plan->lost = fy_alloc(n_ranks, sizeof *plan->lost);
    FY_TRY(fy_check_memory(plan->lost != NULL, "the lost ranks", error));
    memcpy(plan->lost, ranks, n_ranks * sizeof *ranks);
    fy_sort(plan->lost, n_ranks, sizeof *plan->lost, fy_compare_u32);
    for (size_t i = 1; i < n_ranks; i++) {
        if (plan->lost[i] == plan->lost[i - 1]) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u is lost twice", plan->lost[i]);
        }
    }
    /* A world may have more ranks than the plan: of those behind its last one nothing is missing.
     */
    while (n_ranks > 0 && plan->lost[n_ranks - 1] >= plan->problem.n_ranks) {
        n_ranks--;
    }
    plan->n_lost = n_ranks;
    return FERRY_OK;
}

static bool is_lost(const unsigned char *marks, uint32_t rank)
{
    return (marks[rank / 8] >> (rank % 8) & 1) != 0;
}

/* Who is left of a table; NULL if that is everybody. */
static ferry_status filter(const fy_holders *table, const unsigned char *marks, fy_holder *entries,
                           fy_holders **left_out, ferry_error *error)
{
    size_t n_left = 0;
    *left_out = NULL;
    for (uint32_t i = 0; i < table->n_slots; i++) {
        uint32_t slot = table->by_rank[i];
        if (!is_lost(marks, table->rank[slot])) {
            entries[n_left++] = (fy_holder){.rank = table->rank[slot], .cell = table->cell[slot]};
        }
    }
    return n_left == table->n_slots
               ? FERRY_OK
               : fy_holders_create(table->n_cells, entries, n_left, left_out, error);
}

static ferry_status filter_all(ferry_plan *plan, const unsigned char *marks, fy_holder *entries,
                               ferry_error *error)
{
    fy_problem *problem = &plan->problem;
    for (size_t t = 0; t < problem->n_holders; t++) {
        fy_holders *left;
        FY_TRY(filter(problem->holders[t], marks, entries, &left, error));
        if (left != NULL) {
            plan->whole_tables[t] = problem->holders[t];
            problem->holders[t] = left;
        }
    }
    return FERRY_OK;
}

ferry_status fy_plan_remove_lost(ferry_plan *plan, ferry_error *error)
{
    const fy_problem *problem = &plan->problem;
    uint32_t most = 0;
    if (plan->n_lost == 0) {
        return FERRY_OK;
    }
    for (size_t t = 0; t < problem->n_holders; t++) {
        most = problem->holders[t]->n_slots > most ? problem->holders[t]->n_slots : most;
    }
    ferry_status status = FERRY_OK;
    unsigned char *marks = fy_alloc_zeroed(problem->n_ranks / 8 + 1, 1);
    fy_holder *entries = fy_alloc(most, sizeof *entries);
    plan->whole_tables = fy_alloc_zeroed(problem->n_holders, sizeof(fy_holders *));
    if (marks == NULL || entries == NULL || plan->whole_tables == NULL) {
        status = fy_fail_no_memory(error, "the lost ranks");
        goto out;
    }
    for (size_t i = 0; i < plan->n_lost; i++) {
        unsigned char *byte = &marks[plan->lost[i] / 8];
        *byte = (unsigned char)(*byte | 1u << (plan->lost[i] % 8));
    }
    status = filter_all(plan, marks, entries, error);
out:
    fy_free(marks);
    fy_free(entries);
    return status;
}

const fy_holders *fy_plan_whole_table(const ferry_plan *plan, uint32_t placement)
{
    uint32_t table = plan->problem.placements[placement].holders;
    bool changed = plan->whole_tables != NULL && plan->whole_tables[table] != NULL;
    return changed ? plan->whole_tables[table] : plan->problem.holders[table];
}

/* Sentences about what is lost. */

enum { MOST_NAMED = 8 };

typedef struct phrase {
    char text[512];
    size_t used;
} phrase;

/* Room is for eight ranks, or eight pairs of numbers. */
static void append(phrase *p, const char *text, unsigned long long number)
{
    int n = snprintf(p->text + p->used, sizeof p->text - p->used, "%s%llu", text, number);
    p->used += n > 0 ? (size_t)n : 0;
}

static void name_ranks(phrase *p, const uint32_t *ranks, size_t n_ranks)
{
    for (size_t i = 0; i < n_ranks && i < MOST_NAMED; i++) {
        append(p, i == 0 ? "" : ", ", ranks[i]);
    }
    if (n_ranks > MOST_NAMED) {
        append(p, " and others, in all ", n_ranks);
    }
}

/* "0:4, 8:16", in the dimensions of the source tensor. */
static void name_slice(phrase *p, const fy_route *route, const fy_atom *atom)
{
    for (uint32_t d = route->src_pad; d < route->n_dims; d++) {
        append(p, d == route->src_pad ? "" : ", ", atom->src_global[d]);
        append(p, ":", atom->src_global[d] + atom->length[d]);
    }
}

/* A box of the cell that a destination cell with a rank wants; its rank, or FY_NONE. */
static ferry_status find_wanted(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                                fy_atom *atom_out, uint32_t *rank_out, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&plan->routes, route);
    fy_atoms atoms = {0};
    ferry_status status = FERRY_OK;
    *rank_out = FY_NONE;
    for (uint32_t d = 0; d < dst->n_cells && status == FERRY_OK && *rank_out == FY_NONE; d++) {
        if (fy_holders_cell_size(dst, d) == 0 ||
            fy_route_touch(&plan->routes, route, cell, d).volume == 0) {
            continue;
        }
        status = fy_route_list_atoms(&plan->routes, route, d, &atoms, error);
        for (size_t i = 0; i < atoms.n_items && status == FERRY_OK && *rank_out == FY_NONE; i++) {
            if (atoms.items[i].cell == cell) {
                *atom_out = atoms.items[i];
                *rank_out = dst->rank[dst->cell_begin[d]];
            }
        }
    }
    fy_atoms_cleanup(&atoms);
    return status;
}

/*
 * Who held the box that is wanted. Of flat shards only its first element is looked at: owners of
 * shared blocks can have the others elsewhere.
 */
static ferry_status list_losers(const ferry_plan *plan, const fy_route *route, fy_atom *atom,
                                uint32_t **ranks_out, size_t *n_out, ferry_error *error)
{
    const fy_holders *whole = fy_plan_whole_table(plan, route->src);
    if (plan->problem.placements[route->src].layout.n_flat == 0) {
        return fy_routes_list_holders(&plan->routes, route->src, whole, atom->cell, ranks_out,
                                      n_out, error);
    }
    for (uint32_t d = 0; d < route->n_dims; d++) {
        atom->length[d] = 1;
    }
    return fy_flat_list_holders(&plan->routes, route, whole, atom, ranks_out, n_out, error);
}

ferry_status fy_plan_fail_lost(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                               ferry_error *error)
{
    const fy_leg *leg = &plan->routes.legs[fy_route_leg(&plan->routes, route, 0)];
    const char *name = plan->problem.tensors[leg->tensor].name;
    uint32_t *ranks = NULL, wanting;
    size_t n = 0;
    fy_atom atom = {0};
    phrase lost = {0}, slice = {0};
    FY_TRY(find_wanted(plan, route, cell, &atom, &wanting, error));
    if (wanting != FY_NONE) {
        FY_TRY(list_losers(plan, route, &atom, &ranks, &n, error));
    }
    if (n == 0 && wanting != FY_NONE && plan->problem.memory[0] != NULL) {
        const fy_fragment *fragment = plan->problem.tensors[leg->source].fragment;
        for (uint32_t d = route->src_pad; fragment != NULL && d < route->n_dims; d++) {
            atom.src_global[d] += fragment->at[d - route->src_pad];
        }
        name_slice(&slice, route, &atom);
        fy_free(ranks);
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "\"%s\": rank %u needs [%s] of source tensor \"%s\", which no source rank "
                       "has",
                       name, wanting, slice.text, plan->problem.tensors[leg->source].name);
    }
    if (n == 0) {
        fy_free(ranks);
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "no source rank holds a part of \"%s\" that the destination needs", name);
    }
    name_ranks(&lost, ranks, n);
    const fy_fragment *fragment = plan->problem.tensors[leg->source].fragment;
    for (uint32_t d = route->src_pad; fragment != NULL && d < route->n_dims; d++) {
        atom.src_global[d] += fragment->at[d - route->src_pad];
    }
    name_slice(&slice, route, &atom);
    fy_free(ranks);
    return fy_fail(
        error, FERRY_ERR_INVALID_PLAN,
        "\"%s\": rank %u needs [%s] of source tensor \"%s\", which only lost ranks held: %s; "
        "leave the tensor out with a subset, or read it from a checkpoint",
        name, wanting, slice.text, plan->problem.tensors[leg->source].name, lost.text);
}
