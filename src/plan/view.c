/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Source cells and who holds them. */
#include "plan/route.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/* The cells of one dimension that a part has a share in: its own, and one per degree of sharing. */
static size_t cells_of_part(const fy_split *split, uint32_t part, uint32_t *cells)
{
    size_t n = 0;
    uint32_t n_shared = split->n_cells - split->n_parts;
    cells[n++] = part;
    for (uint32_t first = 0; first < n_shared;) {
        uint32_t n_owners = split->shared_cells[first].count;
        cells[n++] = split->n_parts + first + part / n_owners;
        first += split->n_parts / n_owners;
    }
    return n;
}

/* Divisors of a number below 2^24: no split has more degrees of sharing. */
enum { MAX_DEGREES = 320 };

typedef struct cell_walk {
    uint32_t cells[FERRY_MAX_DIMS][MAX_DEGREES];
    size_t count[FERRY_MAX_DIMS];
    size_t at[FERRY_MAX_DIMS];
    uint32_t flat;
} cell_walk;

static void walk_begin(cell_walk *walk, const fy_problem *problem, const fy_layout *layout,
                       uint32_t holder_cell)
{
    uint32_t parts[FERRY_MAX_DIMS + 1];
    fy_layout_parts(problem, layout, holder_cell, parts);
    walk->flat = parts[layout->n_dims];
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        const fy_split *split = fy_problem_split(problem, layout, d);
        walk->count[d] = cells_of_part(split, parts[d], walk->cells[d]);
        walk->at[d] = 0;
    }
}

static uint32_t walk_cell(const cell_walk *walk, const fy_problem *problem, const fy_layout *layout)
{
    uint64_t cell = 0;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        cell = cell * fy_problem_split(problem, layout, d)->n_cells + walk->cells[d][walk->at[d]];
    }
    return (uint32_t)(cell * (layout->n_flat == 0 ? 1 : layout->n_flat) + walk->flat);
}

static bool walk_next(cell_walk *walk, uint32_t n_dims)
{
    for (uint32_t d = n_dims; d > 0; d--) {
        if (++walk->at[d - 1] < walk->count[d - 1]) {
            return true;
        }
        walk->at[d - 1] = 0;
    }
    return false;
}

/* Under a flat cut the owners of a shared piece are no replicas: see fy_region. */
static bool has_shared_pieces(const fy_problem *problem, const fy_layout *layout)
{
    if (layout->n_flat != 0) {
        return false;
    }
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        if (fy_split_is_shared(fy_problem_split(problem, layout, d))) {
            return true;
        }
    }
    return false;
}

static ferry_status count_cells(const fy_problem *problem, const fy_layout *layout, uint32_t *n_out,
                                ferry_error *error)
{
    uint64_t n_cells = layout->n_flat == 0 ? 1 : layout->n_flat;
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        n_cells *= fy_problem_split(problem, layout, d)->n_cells;
        if (n_cells > FERRY_MAX_RANKS) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "the shared blocks make more than %u distinct sets of holders",
                           FERRY_MAX_RANKS);
        }
    }
    *n_out = (uint32_t)n_cells;
    return FERRY_OK;
}

static ferry_status list_owned(fy_view *view, const fy_problem *problem, const fy_layout *layout,
                               ferry_error *error)
{
    const fy_holders *holders = view->holders;
    cell_walk *walk = fy_alloc(1, sizeof *walk);
    view->owned_begin = fy_alloc_zeroed((size_t)view->n_cells + 1, sizeof *view->owned_begin);
    if (walk == NULL || view->owned_begin == NULL) {
        fy_free(walk);
        return fy_fail_no_memory(error, "the holders of shared blocks");
    }
    uint32_t *begin = view->owned_begin;
    ferry_status status = FERRY_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t slot = 0; slot < holders->n_slots; slot++) {
            walk_begin(walk, problem, layout, holders->cell[slot]);
            do {
                uint32_t cell = walk_cell(walk, problem, layout);
                if (pass == 0) {
                    begin[cell + 1]++;
                } else {
                    view->owned_rank[begin[cell]++] = holders->rank[slot];
                }
            } while (walk_next(walk, layout->n_dims));
        }
        for (uint32_t c = 0; pass == 0 && c < view->n_cells; c++) {
            begin[c + 1] += begin[c];
        }
        if (pass == 0) {
            view->owned_rank = fy_alloc(begin[view->n_cells], sizeof *view->owned_rank);
            if (view->owned_rank == NULL) {
                status = fy_fail_no_memory(error, "the holders of shared blocks");
                goto out;
            }
        }
    }
    for (uint32_t c = view->n_cells; c > 0; c--) {
        begin[c] = begin[c - 1]; /* the filling moved each begin to its end */
    }
    begin[0] = 0;
    view->cell_begin = begin;
    view->rank = view->owned_rank;
out:
    fy_free(walk);
    return status;
}

ferry_status fy_routes_find_view(fy_routes *routes, uint32_t placement, const fy_view **view_out,
                                 ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    const fy_layout *layout = &problem->placements[placement].layout;
    const fy_holders *holders = fy_problem_holders(problem, placement);
    uint32_t owner = has_shared_pieces(problem, layout) ? placement : FY_NONE;
    fy_view *view = NULL;
    uint64_t key = fy_hash_mix((uintptr_t)holders, owner);
    fy_index_cursor c = fy_index_first(&routes->view_index, key);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&routes->view_index, &c)) {
        if (routes->views[c.value]->holders == holders &&
            routes->views[c.value]->placement == owner) {
            *view_out = routes->views[c.value];
            return FERRY_OK;
        }
    }
    ferry_status status = FERRY_OK;
    view = fy_alloc_zeroed(1, sizeof *view);
    if (view == NULL || !FY_RESERVE(routes->views, routes->view_capacity, routes->n_views + 1) ||
        !fy_index_insert(&routes->view_index, key, (uint32_t)routes->n_views)) {
        fy_free(view);
        return fy_fail_no_memory(error, "the holders of a placement");
    }
    routes->views[routes->n_views++] = view; /* cleaned up with the routes from here on */
    view->holders = holders;
    view->placement = owner;
    view->n_cells = holders->n_cells;
    view->cell_begin = holders->cell_begin;
    view->rank = holders->rank;
    if (owner != FY_NONE) {
        status = count_cells(problem, layout, &view->n_cells, error);
        FY_THEN(status, list_owned(view, problem, layout, error));
    }
    if (status == FERRY_OK) {
        view->set = fy_alloc(view->n_cells, sizeof *view->set);
        if (view->set == NULL) {
            status = fy_fail_no_memory(error, "the replica sets of a placement");
        }
    }
    *view_out = view;
    return status;
}

ferry_status fy_routes_list_holders(const fy_routes *routes, uint32_t placement,
                                    const fy_holders *holders, uint32_t cell, uint32_t **ranks_out,
                                    size_t *n_out, ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    const fy_layout *layout = &problem->placements[placement].layout;
    fy_view view = {.holders = holders,
                    .n_cells = holders->n_cells,
                    .cell_begin = holders->cell_begin,
                    .rank = holders->rank};
    ferry_status status = FERRY_OK;
    if (has_shared_pieces(problem, layout)) {
        status = count_cells(problem, layout, &view.n_cells, error);
        FY_THEN(status, list_owned(&view, problem, layout, error));
    }
    size_t n = status == FERRY_OK ? fy_view_cell_size(&view, cell) : 0;
    uint32_t *ranks = fy_alloc(n, sizeof *ranks);
    FY_THEN(status, fy_check_memory(ranks != NULL, "the holders of shared blocks", error));
    if (status == FERRY_OK) {
        memcpy(ranks, view.rank + view.cell_begin[cell], n * sizeof *ranks);
        fy_sort(ranks, n, sizeof *ranks, fy_compare_u32);
        *ranks_out = ranks;
        *n_out = n;
        ranks = NULL;
    }
    fy_free(ranks);
    fy_free(view.owned_begin);
    fy_free(view.owned_rank);
    return status;
}

bool fy_view_has_rank(const fy_view *view, uint32_t cell, uint32_t rank)
{
    if (view->placement == FY_NONE) {
        uint32_t slot = fy_holders_find(view->holders, rank);
        return slot != FY_NO_SLOT && view->holders->cell[slot] == cell;
    }
    for (uint32_t i = view->cell_begin[cell]; i < view->cell_begin[cell + 1]; i++) {
        if (view->rank[i] == rank) {
            return true;
        }
    }
    return false;
}

void fy_view_destroy(fy_view *view)
{
    if (view != NULL) {
        fy_free(view->owned_begin);
        fy_free(view->owned_rank);
        fy_free(view->set);
        fy_free(view);
    }
}

ferry_status fy_route_cells_of_rank(const fy_routes *routes, const fy_route *route, uint32_t rank,
                                    uint32_t **cells_inout, size_t *capacity, size_t *n_out,
                                    ferry_error *error)
{
    const fy_layout *layout = &routes->problem->placements[route->src].layout;
    uint32_t slot = fy_holders_find(route->view->holders, rank);
    cell_walk *walk = NULL;
    ferry_status status = FERRY_OK;
    *n_out = 0;
    if (slot == FY_NO_SLOT) {
        return FERRY_OK;
    }
    if (route->view->placement != FY_NONE) {
        walk = fy_alloc(1, sizeof *walk);
        FY_TRY(fy_check_memory(walk != NULL, "the cells of a rank", error));
        walk_begin(walk, routes->problem, layout, route->view->holders->cell[slot]);
    }
    do {
        if (!FY_RESERVE(*cells_inout, *capacity, *n_out + 1)) {
            status = fy_fail_no_memory(error, "the cells of a rank");
            break;
        }
        (*cells_inout)[(*n_out)++] = walk == NULL ? route->view->holders->cell[slot]
                                                  : walk_cell(walk, routes->problem, layout);
    } while (walk != NULL && walk_next(walk, layout->n_dims));
    fy_free(walk);
    return status;
}
