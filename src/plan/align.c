/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of less than a byte: every box must start and end on bytes, in both shards. What counts
 * are the contiguous runs of a box in its shard; usually even pieces of one dimension settle the
 * question for a whole route, and only otherwise are its boxes looked at one by one.
 */
#include "plan/route.h"

#include <string.h>

/* Whether all cuts of a dimension fall on even places, on this side of the route. */
static bool is_even(const fy_overlap *overlap)
{
    for (size_t i = 0; i < overlap->run_begin[overlap->n_dst_parts]; i++) {
        const fy_run *run = &overlap->runs[i];
        if (run->length % 2 != 0 || run->dst_local % 2 != 0 || run->src_global % 2 != 0 ||
            run->src_local == FY_LOCAL_BY_OWNER || run->src_local % 2 != 0) {
            return false;
        }
    }
    return true;
}

static bool has_even_parts(const fy_split *split)
{
    for (uint32_t p = 0; p < split->n_parts; p++) {
        if (split->part_length[p] % 2 != 0) {
            return false;
        }
    }
    return true;
}

/* The last dimension has even parts and even cuts: every row of every box starts and ends on bytes.
 */
static bool is_aligned_by_rows(const fy_routes *routes, const fy_route *route)
{
    uint32_t last = route->n_dims;
    if (last == 0 || !route->is_regular) {
        return false;
    }
    last--;
    return is_even(route->overlap[last]) &&
           has_even_parts(fy_route_split(routes, route->src, route->src_pad, last)) &&
           has_even_parts(fy_route_split(routes, route->dst, route->dst_pad, last));
}

/* A box of an array: runs are the whole trailing dimensions and the one before them. */
static bool box_is_aligned(const uint64_t *shape, const uint64_t *begin, const uint64_t *length,
                           uint32_t n_dims, uint64_t offset, uint32_t bits)
{
    uint64_t stride = 1, run = 1, first = 0;
    bool contiguous = true;
    for (uint32_t d = n_dims; d > 0; d--) {
        first += begin[d - 1] * stride;
        if (contiguous) {
            run *= length[d - 1];
            contiguous = length[d - 1] == shape[d - 1];
        } else if (length[d - 1] > 1 && stride * bits % 8 != 0) {
            return false;
        }
        stride *= shape[d - 1];
    }
    return (first - offset) * bits % 8 == 0 && run * bits % 8 == 0;
}

static bool is_aligned_at_destination(const fy_routes *routes, const fy_route *route,
                                      const fy_atom *atom, uint32_t dst_cell)
{
    const fy_layout *dst = &routes->problem->placements[route->dst].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t shape[FERRY_MAX_DIMS], begin, end;
    fy_route_dst_parts(routes, route, dst_cell, parts);
    uint64_t n_elements = fy_route_shard(routes, route, route->dst, route->dst_pad, parts, shape);
    fy_layout_flat_range(dst, parts[route->n_dims], n_elements, &begin, &end);
    return box_is_aligned(shape, atom->dst_begin, atom->length, route->n_dims, begin,
                          route->element_bits);
}

/* In the shard of one holder; inside shared blocks each holder has the box elsewhere. */
static bool is_aligned_at_source(const fy_routes *routes, const fy_route *route,
                                 const fy_atom *atom, uint32_t rank)
{
    const fy_layout *src = &routes->problem->placements[route->src].layout;
    const fy_holders *holders = route->view->holders;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t shape[FERRY_MAX_DIMS], at[FERRY_MAX_DIMS], begin, end;
    memset(parts, 0, sizeof parts);
    fy_layout_parts(routes->problem, src, holders->cell[fy_holders_find(holders, rank)],
                    parts + route->src_pad);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        at[d] = atom->src_begin[d];
        if (at[d] == FY_LOCAL_BY_OWNER) {
            at[d] = fy_split_local(fy_route_split(routes, route->src, route->src_pad, d), parts[d],
                                   atom->src_global[d]);
        }
    }
    uint64_t n_elements = fy_route_shard(routes, route, route->src, route->src_pad, parts, shape);
    fy_layout_flat_range(src, parts[route->n_dims], n_elements, &begin, &end);
    return box_is_aligned(shape, at, atom->length, route->n_dims, begin, route->element_bits);
}

static bool atom_is_aligned(const fy_routes *routes, const fy_route *route, const fy_atom *atom,
                            uint32_t dst_cell)
{
    const fy_view *view = route->view;
    bool aligned = is_aligned_at_destination(routes, route, atom, dst_cell);
    for (uint32_t i = view->cell_begin[atom->cell]; i < view->cell_begin[atom->cell + 1]; i++) {
        aligned = aligned && is_aligned_at_source(routes, route, atom, view->rank[i]);
        if (view->placement == FY_NONE) {
            break; /* all holders of the cell have the same shard */
        }
    }
    return aligned;
}

static ferry_status check_boxes(const fy_routes *routes, const fy_route *route, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(routes, route);
    fy_atoms atoms = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t cell = 0; cell < dst->n_cells && status == FERRY_OK; cell++) {
        if (fy_holders_cell_size(dst, cell) == 0) {
            continue;
        }
        status = fy_route_list_atoms(routes, route, cell, &atoms, error);
        for (size_t i = 0; i < atoms.n_items && status == FERRY_OK; i++) {
            if (!atom_is_aligned(routes, route, &atoms.items[i], cell)) {
                uint32_t leg = fy_route_leg(routes, route, 0);
                status = fy_fail(error, FERRY_ERR_INVALID_PLAN,
                                 "\"%s\" has elements of %u bits, and a box of it for rank %u "
                                 "does not start and end on bytes: give it an even number of "
                                 "elements, and cut it at even places",
                                 routes->problem->tensors[routes->legs[leg].tensor].name,
                                 route->element_bits, dst->rank[dst->cell_begin[cell]]);
            }
        }
    }
    fy_atoms_cleanup(&atoms);
    return status;
}

ferry_status fy_routes_check_alignment(const fy_routes *routes, ferry_error *error)
{
    for (size_t r = 0; r < routes->n_routes; r++) {
        const fy_route *route = &routes->routes[r];
        if (route->element_bits % 8 == 0 || is_aligned_by_rows(routes, route)) {
            continue;
        }
        FY_TRY(check_boxes(routes, route, error));
    }
    return FERRY_OK;
}
