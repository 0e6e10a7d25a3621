/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * One placement for one content. Meshes, lists of ranks and rosters can number the parts of a
 * dimension differently and mean the same. The order of parts shows in a plan, so it must not
 * depend on the words.
 */
#include "model/problem.h"

/* By the number of a split as it was. */
typedef struct renumbering {
    uint32_t **number; /* where each part went; NULL: nowhere */
    uint32_t *split;   /* the number of the canonical split */
    size_t n_splits;
} renumbering;

static void renumbering_cleanup(renumbering *r)
{
    for (size_t i = 0; r->number != NULL && i < r->n_splits; i++) {
        fy_free(r->number[i]);
    }
    fy_free(r->number);
    fy_free(r->split);
}

static ferry_status renumber_split(fy_problem *problem, renumbering *r, uint32_t number,
                                   ferry_error *error)
{
    const fy_split *split = problem->splits[number];
    fy_split *canonical = NULL;
    uint32_t *to = fy_alloc(split->n_parts, sizeof *to);
    r->split[number] = number;
    FY_TRY(fy_check_memory(to != NULL, "the parts of a split", error));
    ferry_status status = fy_split_canonical(split, to, &canonical, error);
    if (status == FERRY_OK && canonical != NULL) {
        status = fy_problem_add_split(problem, canonical, &r->split[number], error);
        r->number[number] = to;
        return status;
    }
    fy_free(to);
    return status;
}

static ferry_status renumber_splits(fy_problem *problem, renumbering *r, ferry_error *error)
{
    size_t n = problem->n_splits;
    r->number = fy_alloc_zeroed(n, sizeof(uint32_t *));
    r->split = fy_alloc(n, sizeof *r->split);
    if (r->number == NULL || r->split == NULL) {
        return fy_fail_no_memory(error, "the parts of all splits");
    }
    r->n_splits = n;
    for (uint32_t i = 0; i < n; i++) {
        FY_TRY(renumber_split(problem, r, i, error));
    }
    return FERRY_OK;
}

/* The cell that holds what a cell of the layout as it was holds. */
static uint32_t cell_to(const fy_problem *problem, const renumbering *r, const fy_layout *layout,
                        uint32_t cell)
{
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint32_t to = 0;
    fy_layout_parts(problem, layout, cell, parts);
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        uint32_t split = layout->split[d];
        const uint32_t *number = r->number[split];
        to = to * problem->splits[r->split[split]]->n_parts +
             (number == NULL ? parts[d] : number[parts[d]]);
    }
    return layout->n_flat == 0 ? to : to * layout->n_flat + parts[layout->n_dims];
}

static ferry_status renumber_holders(fy_problem *problem, const renumbering *r,
                                     const fy_placement *placement, uint32_t *number_out,
                                     ferry_error *error)
{
    const fy_holders *old = problem->holders[placement->holders];
    const fy_layout *layout = &placement->layout;
    fy_holder *entries = fy_alloc(old->n_slots, sizeof *entries);
    fy_holders *holders = NULL;
    uint32_t n_cells = layout->n_flat == 0 ? 1 : layout->n_flat;
    FY_TRY(fy_check_memory(entries != NULL, "a table of holders", error));
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        n_cells *= problem->splits[r->split[layout->split[d]]]->n_parts;
    }
    for (uint32_t i = 0; i < old->n_slots; i++) {
        uint32_t slot = old->by_rank[i];
        entries[i] = (fy_holder){.rank = old->rank[slot],
                                 .cell = cell_to(problem, r, layout, old->cell[slot])};
    }
    ferry_status status = fy_holders_create(n_cells, entries, old->n_slots, &holders, error);
    fy_free(entries);
    return status == FERRY_OK ? fy_problem_add_holders(problem, holders, number_out, error)
                              : status;
}

static ferry_status unify_placement(fy_problem *problem, const renumbering *r, uint32_t number,
                                    uint32_t *number_out, ferry_error *error)
{
    fy_placement placement = problem->placements[number];
    fy_layout *layout = &placement.layout;
    bool changed = false;
    ferry_status status = FERRY_OK;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        changed = changed || r->number[layout->split[d]] != NULL;
    }
    if (changed) {
        status =
            renumber_holders(problem, r, &problem->placements[number], &placement.holders, error);
    }
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        layout->split[d] = r->split[layout->split[d]];
    }
    layout->is_cut = false;
    placement.seed = NULL;
    return status == FERRY_OK ? fy_problem_intern_placement(problem, &placement, number_out, error)
                              : status;
}

static uint32_t placement_to(const uint32_t *to, uint32_t placement)
{
    return placement == FY_NONE ? FY_NONE : to[placement];
}

ferry_status fy_problem_unify(fy_problem *problem, ferry_error *error)
{
    renumbering r = {0};
    size_t n = problem->n_placements;
    uint32_t *to = fy_alloc(n, sizeof *to);
    ferry_status status = renumber_splits(problem, &r, error);
    FY_THEN(status, fy_check_memory(to != NULL, "the placements", error));
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        status = unify_placement(problem, &r, i, &to[i], error);
    }
    for (uint32_t t = 0; t < problem->n_tensors && status == FERRY_OK; t++) {
        problem->tensors[t].src = placement_to(to, problem->tensors[t].src);
        problem->tensors[t].dst = placement_to(to, problem->tensors[t].dst);
    }
    renumbering_cleanup(&r);
    fy_free(to);
    return status;
}
