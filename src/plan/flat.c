/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat cuts divide boxes along the row-major order of the shards that they cut. Where the owners of
 * a shared piece are cut flat, one of them is asked for it: one whose part of a box a rank of the
 * destination cell holds itself, else that of a fixed rule (see fy_region); if no rank is left that
 * has its part of a box, the others are.
 */
#include "plan/flat.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* The part of an atom that lies in a box of its source (or destination) shard. */
static bool clip(const fy_atom *atom, const uint64_t *atom_begin, const fy_box *box,
                 uint32_t n_dims, fy_atom *part_out)
{
    fy_atom part = *atom;
    part.volume = 1;
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t begin = fy_max(atom_begin[d], box->begin[d]);
        uint64_t end = fy_min(atom_begin[d] + atom->length[d], box->begin[d] + box->length[d]);
        if (begin >= end) {
            return false;
        }
        uint64_t skipped = begin - atom_begin[d];
        if (part.src_begin[d] != FY_LOCAL_BY_OWNER) {
            part.src_begin[d] += skipped;
        }
        part.src_global[d] += skipped;
        part.dst_begin[d] += skipped;
        part.length[d] = end - begin;
        part.volume *= part.length[d];
    }
    *part_out = part;
    return true;
}

static uint64_t row_major(const uint64_t *shape, const uint64_t *at, const uint64_t *length,
                          bool last, uint32_t n_dims)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        index = index * shape[d] + at[d] + (last ? length[d] - 1 : 0);
    }
    return index;
}

/* The shape of a source cell's shard before flattening; returns its elements. */
static uint64_t shape_of_cell(const fy_routes *routes, const fy_route *route, uint32_t cell,
                              uint64_t shape_out[FERRY_MAX_DIMS])
{
    uint32_t parts[FERRY_MAX_DIMS] = {0};
    for (uint32_t d = 0; d < route->n_dims; d++) {
        parts[d] = cell / route->cell_weight[d] % route->overlap[d]->n_src_cells;
    }
    return fy_route_shard(routes, route, route->src, route->src_pad, parts, shape_out);
}

/* The flat part in which an element of a shard lies. */
static uint32_t flat_part_of(const fy_layout *layout, uint64_t n_elements, uint64_t element)
{
    if (layout->flat_begin == NULL) {
        return (uint32_t)(element / fy_ceil_div(n_elements, layout->n_flat));
    }
    FY_BISECT_LAST(uint32_t, low, 0, layout->n_flat, middle, layout->flat_begin[middle] <= element);
    return low;
}

/* The parts of a box in the row-major range of one flat part of the source. */
static bool cut_by_part(fy_flat_cut *cut, const fy_atom *atom, uint32_t flat, const uint64_t *shape,
                        uint64_t n_elements)
{
    uint64_t begin, end;
    uint32_t n_dims = cut->route->n_dims;
    size_t first = cut->boxes.n_items;
    fy_box boxes[FY_MAX_RANGE_BOXES];
    fy_layout_flat_range(cut->src, flat, n_elements, &begin, &end);
    size_t n = fy_range_boxes(shape, n_dims, begin, end, boxes);
    cut->boxes.n_steps += n;
    for (size_t i = 0; i < n; i++) {
        fy_atom part;
        if (!clip(atom, atom->src_begin, &boxes[i], n_dims, &part)) {
            continue;
        }
        part.cell += flat;
        bool held = fy_view_cell_size(cut->route->view, part.cell) > 0;
        if (!fy_atoms_push(held ? &cut->boxes : &cut->orphans, &part)) {
            return false;
        }
    }
    fy_atoms_join(&cut->boxes, first, n_dims);
    return true;
}

/* The parts of a box in the row-major ranges of the source ranks. */
static bool cut_by_source(fy_flat_cut *cut, const fy_atom *atom)
{
    const fy_layout *src = cut->src;
    uint32_t n_dims = cut->route->n_dims;
    if (src->n_flat == 0) {
        return fy_atoms_push(&cut->boxes, atom);
    }
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t n_elements = shape_of_cell(cut->routes, cut->route, atom->cell, shape);
    uint32_t first = flat_part_of(src, n_elements,
                                  row_major(shape, atom->src_begin, atom->length, false, n_dims));
    uint32_t last = flat_part_of(src, n_elements,
                                 row_major(shape, atom->src_begin, atom->length, true, n_dims));
    if (cut->one_part) {
        first = first > cut->part ? first : cut->part;
        last = last < cut->part ? last : cut->part;
    }
    bool complete = true;
    for (uint32_t f = first; complete && f <= last; f++) {
        complete = cut_by_part(cut, atom, f, shape, n_elements);
    }
    return complete;
}

/* Boxes without a holder. */

static const fy_piece *piece_at(const fy_split *split, uint64_t global)
{
    FY_BISECT_LAST(size_t, low, 0, split->n_pieces, middle, split->pieces[middle].global <= global);
    return &split->pieces[low];
}

static const fy_split *source_split(const fy_routes *routes, const fy_route *route, uint32_t d)
{
    return fy_route_split(routes, route->src, route->src_pad, d);
}

/* Cuts the atoms of a list where the owners of their indices change. */
static bool cut_at_pieces(const fy_routes *routes, const fy_route *route, fy_atoms *list)
{
    for (uint32_t d = 0; d < route->n_dims; d++) {
        const fy_split *split = source_split(routes, route, d);
        for (size_t i = 0; i < list->n_items; i++) {
            fy_atom tail = list->items[i];
            const fy_piece *piece = piece_at(split, tail.src_global[d]);
            uint64_t kept = piece->global + piece->length - tail.src_global[d];
            if (kept >= tail.length[d]) {
                continue;
            }
            list->items[i].volume = tail.volume / tail.length[d] * kept;
            list->items[i].length[d] = kept;
            tail.volume -= list->items[i].volume;
            tail.length[d] -= kept;
            tail.src_global[d] += kept;
            tail.src_begin[d] += kept;
            tail.dst_begin[d] += kept;
            if (!fy_atoms_push(list, &tail)) {
                return false;
            }
        }
    }
    return true;
}

/*
 * Takes an atom, which lies in one piece per dimension, from the owners of the given number: one
 * per dimension, the last varying fastest. The cell is that of flat part 0. False: there is no such
 * number.
 */
static bool choose_owners(const fy_routes *routes, const fy_route *route, uint32_t number,
                          fy_atom *atom)
{
    atom->cell = 0;
    for (uint32_t d = route->n_dims; d > 0; d--) {
        const fy_split *split = source_split(routes, route, d - 1);
        const fy_piece *piece = piece_at(split, atom->src_global[d - 1]);
        uint32_t part = piece->part + number % piece->n_owners;
        number /= piece->n_owners;
        atom->src_begin[d - 1] = fy_split_local(split, part, atom->src_global[d - 1]);
        atom->cell += part * route->cell_weight[d - 1];
    }
    return number == 0;
}

/* What none has stays with the cell that was asked last: that it has no holder shows later. */
static bool ask_others(fy_flat_cut *cut)
{
    fy_atoms tried = {0};
    bool complete = cut_at_pieces(cut->routes, cut->route, &cut->orphans);
    for (uint32_t number = 0; complete && cut->orphans.n_items > 0; number++) {
        fy_atoms scratch = tried;
        tried = cut->orphans;
        cut->orphans = scratch;
        cut->orphans.n_items = 0;
        for (size_t i = 0; complete && i < tried.n_items; i++) {
            fy_atom other = tried.items[i];
            complete = choose_owners(cut->routes, cut->route, number, &other)
                           ? cut_by_source(cut, &other)
                           : fy_atoms_push(&cut->boxes, &tried.items[i]);
        }
    }
    fy_atoms_cleanup(&tried);
    cut->has_new_owners = true;
    return complete;
}

/* What the destination's own ranks hold. */

bool fy_flat_has_choice(const fy_routes *routes, const fy_route *route)
{
    const fy_holders *src = route->view->holders, *dst = fy_route_dst_holders(routes, route);
    bool is_shared = false;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        is_shared = is_shared || fy_split_is_shared(source_split(routes, route, d));
    }
    return is_shared && routes->problem->placements[route->src].layout.n_flat != 0 &&
           src->first_rank <= dst->last_rank && dst->first_rank <= src->last_rank;
}

/* In order of ranks; of the replicas of a large cell, which want the same, the first ones'. */
static void list_own_cells(fy_flat_cut *cut, uint32_t dst)
{
    const fy_holders *from = cut->route->view->holders;
    const fy_holders *to = fy_route_dst_holders(cut->routes, cut->route);
    for (uint32_t i = to->cell_begin[dst]; i < to->cell_begin[dst + 1]; i++) {
        uint32_t slot = fy_holders_find(from, to->rank[i]), k = 0;
        while (slot != FY_NO_SLOT && k < cut->n_own && cut->own[k] != from->cell[slot]) {
            k++;
        }
        if (slot != FY_NO_SLOT && k == cut->n_own) {
            cut->own[cut->n_own++] = from->cell[slot];
        }
        if (cut->n_own == FY_MOST_OWN_CELLS) {
            return;
        }
    }
}

/* Where an atom, which lies in one piece per dimension, begins in a cell's shard; false: it has
 * another owner. */
static bool find_in_cell(const fy_flat_cut *cut, uint32_t cell, const fy_atom *atom,
                         uint64_t at_out[FERRY_MAX_DIMS])
{
    const fy_route *route = cut->route;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        const fy_split *split = source_split(cut->routes, route, d);
        const fy_piece *piece = piece_at(split, atom->src_global[d]);
        uint32_t part = cell / route->cell_weight[d] % route->overlap[d]->n_src_cells;
        if (part < piece->part || part - piece->part >= piece->n_owners) {
            return false;
        }
        at_out[d] = fy_split_local(split, part, atom->src_global[d]);
    }
    return true;
}

/* The parts of an atom in [begin, end) of a cell's shard; owned: they come from there. */
static bool clip_range(fy_flat_cut *cut, const fy_atom *atom, const uint64_t *at,
                       const uint64_t *shape, uint64_t begin, uint64_t end, const uint32_t *owned)
{
    fy_box boxes[FY_MAX_RANGE_BOXES];
    uint32_t n_dims = cut->route->n_dims;
    size_t n = fy_range_boxes(shape, n_dims, begin, end, boxes);
    cut->boxes.n_steps += n;
    for (size_t i = 0; i < n; i++) {
        fy_atom part;
        if (!clip(atom, at, &boxes[i], n_dims, &part)) {
            continue;
        }
        for (uint32_t d = 0; owned != NULL && d < n_dims; d++) {
            part.src_begin[d] = at[d] + (part.src_global[d] - atom->src_global[d]);
        }
        part.cell = owned == NULL ? part.cell : *owned;
        if (!fy_atoms_push(owned == NULL ? &cut->next : &cut->boxes, &part)) {
            return false;
        }
    }
    return true;
}

/* What a cell has of the rest comes from it, and is no rest any more. */
static bool take_from_cell(fy_flat_cut *cut, uint32_t cell)
{
    uint64_t shape[FERRY_MAX_DIMS], at[FERRY_MAX_DIMS], begin, end;
    uint64_t n_elements = shape_of_cell(cut->routes, cut->route, cell, shape);
    bool complete = true;
    cut->next.n_items = 0;
    fy_layout_flat_range(cut->src, cell % cut->src->n_flat, n_elements, &begin, &end);
    for (size_t i = 0; complete && i < cut->rest.n_items; i++) {
        const fy_atom *atom = &cut->rest.items[i];
        complete = !find_in_cell(cut, cell, atom, at)
                       ? fy_atoms_push(&cut->next, atom)
                       : clip_range(cut, atom, at, shape, 0, begin, NULL) &&
                             clip_range(cut, atom, at, shape, begin, end, &cell) &&
                             clip_range(cut, atom, at, shape, end, n_elements, NULL);
    }
    fy_atoms taken = cut->rest;
    cut->rest = cut->next;
    cut->next = taken;
    return complete;
}

static bool take_own(fy_flat_cut *cut, const fy_atom *atom)
{
    if (cut->n_own == 0) {
        return cut_by_source(cut, atom);
    }
    cut->rest.n_items = 0;
    bool complete =
        fy_atoms_push(&cut->rest, atom) && cut_at_pieces(cut->routes, cut->route, &cut->rest);
    for (uint32_t k = 0; complete && k < cut->n_own; k++) {
        complete = take_from_cell(cut, cut->own[k]);
    }
    for (size_t i = 0; complete && i < cut->rest.n_items; i++) {
        complete = cut_by_source(cut, &cut->rest.items[i]);
    }
    return complete;
}

void fy_flat_cut_init(fy_flat_cut *cut, const fy_routes *routes, const fy_route *route,
                      uint32_t dst, fy_atoms *atoms)
{
    const fy_problem *problem = routes->problem;
    *cut = (fy_flat_cut){.routes = routes,
                         .route = route,
                         .src = &problem->placements[route->src].layout,
                         .dst = &problem->placements[route->dst].layout,
                         .atoms = atoms};
    fy_route_dst_parts(routes, route, dst, cut->dst_parts);
    uint64_t n_elements =
        fy_route_shard(routes, route, route->dst, route->dst_pad, cut->dst_parts, cut->dst_shape);
    fy_layout_flat_range(cut->dst, cut->dst_parts[route->n_dims], n_elements, &cut->dst_begin,
                         &cut->dst_end);
    if (fy_flat_has_choice(routes, route)) {
        list_own_cells(cut, dst);
    }
    cut->has_new_owners = cut->n_own > 0;
}

void fy_flat_cut_only(fy_flat_cut *cut, uint32_t cell)
{
    cut->one_part = cut->src->n_flat != 0;
    cut->part = cut->one_part ? cell % cut->src->n_flat : 0;
}

/*
 * The destination cuts first: its range is a few boxes, so that a rank of many looks at the ranges
 * that meet its own only.
 */
static bool cut_by_destination(fy_flat_cut *cut, const fy_atom *atom)
{
    if (cut->dst->n_flat == 0) {
        return take_own(cut, atom);
    }
    fy_box boxes[FY_MAX_RANGE_BOXES];
    bool complete = true;
    size_t n =
        fy_range_boxes(cut->dst_shape, cut->route->n_dims, cut->dst_begin, cut->dst_end, boxes);
    for (size_t i = 0; complete && i < n; i++) {
        fy_atom part;
        complete = !clip(atom, atom->dst_begin, &boxes[i], cut->route->n_dims, &part) ||
                   take_own(cut, &part);
    }
    return complete;
}

bool fy_flat_cut_push(fy_flat_cut *cut, const fy_atom *atom)
{
    cut->boxes.n_items = 0;
    cut->orphans.n_items = 0;
    if (!cut_by_destination(cut, atom) || (cut->orphans.n_items > 0 && !ask_others(cut))) {
        return false;
    }
    if (cut->dst->n_flat != 0 || cut->has_new_owners) {
        fy_atoms_join(&cut->boxes, 0, cut->route->n_dims);
    }
    for (size_t i = 0; i < cut->boxes.n_items; i++) {
        if (!fy_atoms_push(cut->atoms, &cut->boxes.items[i])) {
            return false;
        }
    }
    return true;
}

void fy_flat_cut_end(fy_flat_cut *cut)
{
    if (cut->has_new_owners) {
        fy_atoms_join(cut->atoms, 0,
                      cut->route->n_dims); /* a new owner may have the box beside as well */
    }
    cut->atoms->n_steps += cut->boxes.n_steps;
    fy_atoms_cleanup(&cut->boxes);
    fy_atoms_cleanup(&cut->orphans);
    fy_atoms_cleanup(&cut->rest);
    fy_atoms_cleanup(&cut->next);
}

/* The flat part of the cell that has an element, given the parts of its dimensions. */
static uint32_t flat_cell_of(const fy_routes *routes, const fy_route *route, const fy_atom *element)
{
    const fy_layout *src = &routes->problem->placements[route->src].layout;
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t n_elements = shape_of_cell(routes, route, element->cell, shape);
    uint64_t at = row_major(shape, element->src_begin, element->length, false, route->n_dims);
    return element->cell + flat_part_of(src, n_elements, at);
}

ferry_status fy_flat_list_holders(const fy_routes *routes, const fy_route *route,
                                  const fy_holders *holders, const fy_atom *atom,
                                  uint32_t **ranks_out, size_t *n_out, ferry_error *error)
{
    uint32_t *ranks = NULL;
    size_t capacity = 0, n = 0, kept = 0;
    fy_atom element = *atom;
    for (uint32_t number = 0; choose_owners(routes, route, number, &element); number++) {
        uint32_t cell = flat_cell_of(routes, route, &element);
        uint32_t size = fy_holders_cell_size(holders, cell);
        if (!FY_RESERVE(ranks, capacity, n + size)) {
            fy_free(ranks);
            return fy_fail_no_memory(error, "the holders of flat shards");
        }
        for (uint32_t i = 0; i < size; i++) {
            ranks[n++] = holders->rank[holders->cell_begin[cell] + i];
        }
    }
    fy_sort(ranks, n, sizeof *ranks, fy_compare_u32);
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || ranks[kept - 1] != ranks[i]) {
            ranks[kept++] = ranks[i];
        }
    }
    *ranks_out = ranks;
    *n_out = kept;
    return FERRY_OK;
}
