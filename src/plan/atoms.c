/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The atoms of a route. A regular route is a product: an atom is one run per dimension, and the
 * atoms of a destination cell are all combinations of its runs, the last dimension fastest. Flat
 * cuts divide these boxes further.
 */
#include "plan/flat.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

void fy_atoms_cleanup(fy_atoms *atoms)
{
    fy_free(atoms->items);
    *atoms = (fy_atoms){0};
}

bool fy_atoms_push(fy_atoms *atoms, const fy_atom *atom)
{
    if (!FY_RESERVE(atoms->items, atoms->capacity, atoms->n_items + 1)) {
        return false;
    }
    atoms->items[atoms->n_items++] = *atom;
    return true;
}

/* One run of one dimension becomes that dimension of the atom. */
static void set_dim(const fy_route *route, fy_atom *atom, uint32_t d, const fy_run *run)
{
    atom->src_begin[d] = run->src_local;
    atom->src_global[d] = run->src_global;
    atom->dst_begin[d] = run->dst_local;
    atom->length[d] = run->length;
    atom->cell += run->src_cell * route->cell_weight[d];
}

static fy_atom make_atom(const fy_route *route, const fy_run *const *runs)
{
    fy_atom atom = {.volume = 1};
    for (uint32_t d = 0; d < route->n_dims; d++) {
        set_dim(route, &atom, d, runs[d]);
        atom.volume *= runs[d]->length;
    }
    return atom;
}

static int compare_atoms(const void *a, const void *b)
{
    const uint64_t *x = ((const fy_atom *)a)->dst_begin, *y = ((const fy_atom *)b)->dst_begin;
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) { /* unused dimensions are 0 */
        if (x[d] != y[d]) {
            return x[d] < y[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Products. */

void fy_route_dst_parts(const fy_routes *routes, const fy_route *route, uint32_t dst,
                        uint32_t parts_out[FERRY_MAX_DIMS + 1])
{
    for (uint32_t d = 0; d < route->dst_pad; d++) {
        parts_out[d] = 0;
    }
    fy_layout_parts(routes->problem, &routes->problem->placements[route->dst].layout, dst,
                    parts_out + route->dst_pad);
}

uint64_t fy_route_shard(const fy_routes *routes, const fy_route *route, uint32_t placement,
                        uint32_t pad, const uint32_t *parts, uint64_t shape_out[FERRY_MAX_DIMS])
{
    uint64_t n_elements = 1;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        shape_out[d] = fy_route_split(routes, placement, pad, d)->part_length[parts[d]];
        n_elements *= shape_out[d];
    }
    return n_elements;
}

static uint64_t count_runs(const fy_route *route, const uint32_t *parts)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        if (!fy_mul(count, fy_overlap_n_runs(route->overlap[d], parts[d]), &count)) {
            return UINT64_MAX;
        }
    }
    return count;
}

static ferry_status list_product(const fy_routes *routes, const fy_route *route, uint32_t dst,
                                 fy_atoms *atoms, ferry_error *error)
{
    uint32_t parts[FERRY_MAX_DIMS + 1];
    size_t at[FERRY_MAX_DIMS] = {0};
    fy_flat_cut cut = {.atoms = atoms};
    const fy_run *runs[FERRY_MAX_DIMS];
    fy_route_dst_parts(routes, route, dst, parts);
    uint64_t count = count_runs(route, parts);
    if (count > FY_MAX_ATOMS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a shard would arrive in %llu boxes, more than the limit of %d",
                       (unsigned long long)count, FY_MAX_ATOMS);
    }
    if (!route->is_regular) {
        fy_flat_cut_init(&cut, routes, route, dst, atoms);
    }
    bool complete = true;
    for (uint64_t i = 0; complete && i < count; i++) {
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_overlap *overlap = route->overlap[d];
            runs[d] = &overlap->runs[overlap->run_begin[parts[d]] + at[d]];
        }
        fy_atom atom = make_atom(route, runs);
        complete = route->is_regular ? fy_atoms_push(atoms, &atom) : fy_flat_cut_push(&cut, &atom);
        for (uint32_t d = route->n_dims; d > 0; d--) {
            if (++at[d - 1] < fy_overlap_n_runs(route->overlap[d - 1], parts[d - 1])) {
                break;
            }
            at[d - 1] = 0;
        }
    }
    fy_flat_cut_end(&cut);
    return complete ? FERRY_OK : fy_fail_no_memory(error, "the boxes of a shard");
}

ferry_status fy_route_list_atoms(const fy_routes *routes, const fy_route *route, uint32_t dst,
                                 fy_atoms *atoms, ferry_error *error)
{
    atoms->n_items = 0;
    FY_TRY(list_product(routes, route, dst, atoms, error));
    if (!route->is_regular) {
        fy_sort(atoms->items, atoms->n_items, sizeof *atoms->items, compare_atoms);
    }
    return FERRY_OK;
}

static bool reserve_index(uint64_t **index, size_t *capacity, size_t needed)
{
    return FY_RESERVE(*index, *capacity, needed);
}

static ferry_status filter_cell(uint32_t cell, fy_atoms *atoms, uint64_t **index_inout,
                                size_t *index_capacity, ferry_error *error)
{
    size_t kept = 0;
    if (!reserve_index(index_inout, index_capacity, atoms->n_items)) {
        return fy_fail_no_memory(error, "the boxes of a shard");
    }
    for (size_t i = 0; i < atoms->n_items; i++) {
        if (atoms->items[i].cell == cell) {
            (*index_inout)[kept] = i;
            atoms->items[kept++] = atoms->items[i];
        }
    }
    atoms->n_items = kept;
    return FERRY_OK;
}

static uint32_t dim_cell(const fy_route *route, uint32_t cell, uint32_t d)
{
    return cell / route->cell_weight[d] % route->overlap[d]->n_src_cells;
}

/* The place of a touch in the list of an irregular route, or SIZE_MAX. */
static size_t find_listed(const fy_route *route, uint32_t cell, uint32_t dst)
{
    FY_BISECT(size_t, low, route->touch_begin[cell], route->touch_begin[cell + 1], middle,
              route->touches[middle].dst < dst);
    bool found = low < route->touch_begin[cell + 1] && route->touches[low].dst == dst;
    return found ? low : SIZE_MAX;
}

/* The atoms of an irregular route in their order, with the places that were noted. */
static void place_listed(const fy_route *route, uint32_t cell, uint32_t dst, fy_atoms *atoms,
                         uint64_t *index)
{
    size_t touch = find_listed(route, cell, dst);
    size_t first = touch == SIZE_MAX ? 0 : route->touch_atoms[touch];
    fy_sort(atoms->items, atoms->n_items, sizeof *atoms->items, compare_atoms);
    for (size_t i = 0; i < atoms->n_items; i++) {
        index[i] = route->atom_index[first + i];
    }
}

/* The runs that a source cell and a destination cell have in common, dimension by dimension. */
typedef struct common_runs {
    uint32_t parts[FERRY_MAX_DIMS + 1]; /* of the destination */
    const fy_touch *touch[FERRY_MAX_DIMS];
    size_t at[FERRY_MAX_DIMS];
    uint64_t count; /* of combinations; 0: nothing in common */
} common_runs;

static void find_common(const fy_routes *routes, const fy_route *route, uint32_t cell, uint32_t dst,
                        common_runs *c)
{
    *c = (common_runs){.count = 1};
    fy_route_dst_parts(routes, route, dst, c->parts);
    for (uint32_t d = 0; d < route->n_dims && c->count > 0; d++) {
        c->touch[d] = fy_overlap_find(route->overlap[d], dim_cell(route, cell, d), c->parts[d]);
        c->count *= c->touch[d] == NULL ? 0 : c->touch[d]->n_runs; /* within the limit of a cell */
    }
}

/* The combination at hand, its place among all of the destination cell, and on to the next one. */
static fy_atom next_common(const fy_route *route, common_runs *c, uint64_t *index_out)
{
    const fy_run *runs[FERRY_MAX_DIMS];
    *index_out = 0;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        const fy_overlap *overlap = route->overlap[d];
        uint32_t position = overlap->run_order[c->touch[d]->first_run + c->at[d]];
        runs[d] = &overlap->runs[overlap->run_begin[c->parts[d]] + position];
        *index_out = *index_out * fy_overlap_n_runs(overlap, c->parts[d]) + position;
    }
    for (uint32_t d = route->n_dims; d > 0; d--) {
        if (++c->at[d - 1] < c->touch[d - 1]->n_runs) {
            break;
        }
        c->at[d - 1] = 0;
    }
    return make_atom(route, runs);
}

ferry_status fy_route_list_cell_atoms(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                      uint32_t dst, fy_atoms *atoms, uint64_t **index_inout,
                                      size_t *index_capacity, ferry_error *error)
{
    if (!fy_route_is_listed_by_cell(route)) {
        FY_TRY(fy_route_list_atoms(routes, route, dst, atoms, error));
        return filter_cell(cell, atoms, index_inout, index_capacity, error);
    }
    common_runs c;
    fy_flat_cut cut = {.atoms = atoms};
    bool complete = true;
    atoms->n_items = 0;
    find_common(routes, route, cell, dst, &c);
    if (!route->is_regular) {
        fy_flat_cut_init(&cut, routes, route, dst, atoms);
        fy_flat_cut_only(&cut, cell);
    }
    complete = reserve_index(index_inout, index_capacity, (size_t)c.count);
    for (uint64_t i = 0; complete && i < c.count; i++) {
        fy_atom atom = next_common(route, &c, &(*index_inout)[i]);
        complete = route->is_regular ? fy_atoms_push(atoms, &atom) : fy_flat_cut_push(&cut, &atom);
    }
    fy_flat_cut_end(&cut);
    if (complete && !route->is_regular) {
        complete = reserve_index(index_inout, index_capacity, atoms->n_items);
    }
    FY_TRY(fy_check_memory(complete, "the boxes of a shard", error));
    if (!route->is_regular) {
        place_listed(route, cell, dst, atoms, *index_inout);
    }
    return FERRY_OK;
}

/* Volumes. */

uint64_t fy_route_cell_total(const fy_route *route, uint32_t cell)
{
    if (!route->is_regular) {
        size_t begin = route->touch_begin[cell], end = route->touch_begin[cell + 1];
        return begin == end ? 0 : route->touches[end - 1].before + route->touches[end - 1].volume;
    }
    uint64_t total = 1;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        total *= fy_overlap_cell_total(route->overlap[d], dim_cell(route, cell, d));
    }
    return total;
}

static fy_cell_touch listed_touch(const fy_route *route, uint32_t cell, uint32_t dst)
{
    size_t found = find_listed(route, cell, dst);
    return found == SIZE_MAX ? (fy_cell_touch){.dst = dst} : route->touches[found];
}

/*
 * Destination cells are row-major over the dimensions, so the volume before one is, over each
 * dimension, what the outer parts fix x what lower parts of this dimension have x everything
 * inside.
 */
fy_cell_touch fy_route_touch(const fy_routes *routes, const fy_route *route, uint32_t cell,
                             uint32_t dst)
{
    if (!route->is_regular) {
        return listed_touch(route, cell, dst);
    }
    uint32_t parts[FERRY_MAX_DIMS + 1];
    fy_cell_touch result = {.volume = 1, .dst = dst};
    fy_route_dst_parts(routes, route, dst, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t c = dim_cell(route, cell, d);
        const fy_touch *touch = fy_overlap_find(route->overlap[d], c, parts[d]);
        if (touch == NULL) {
            return (fy_cell_touch){.dst = dst};
        }
        uint64_t inner = 1;
        for (uint32_t e = d + 1; e < route->n_dims; e++) {
            inner *= fy_overlap_cell_total(route->overlap[e], dim_cell(route, cell, e));
        }
        result.before += result.volume * touch->before * inner;
        result.volume *= touch->length;
    }
    return result;
}

fy_cell_touch fy_route_touch_at(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                uint64_t position)
{
    if (!route->is_regular) {
        FY_BISECT_LAST(size_t, low, route->touch_begin[cell], route->touch_begin[cell + 1], middle,
                       route->touches[middle].before <= position);
        return route->touches[low];
    }
    fy_cell_touch result = {.volume = 1};
    uint64_t inner = fy_route_cell_total(route, cell);
    uint64_t dst = 0;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t c = dim_cell(route, cell, d);
        inner /= fy_overlap_cell_total(route->overlap[d], c);
        /* Positions inside step by what lies outside of them already. */
        uint64_t scale = result.volume * inner;
        const fy_touch *touch =
            fy_overlap_at(route->overlap[d], c, (position - result.before) / scale);
        result.before += touch->before * scale;
        result.volume *= touch->length;
        dst =
            dst * fy_route_split(routes, route->dst, route->dst_pad, d)->n_parts + touch->dst_part;
    }
    result.dst = (uint32_t)dst;
    return result;
}

uint64_t fy_route_atom_count(const fy_routes *routes, const fy_route *route, uint32_t dst)
{
    if (!route->is_regular) {
        return route->atom_count[dst];
    }
    uint32_t parts[FERRY_MAX_DIMS + 1];
    fy_route_dst_parts(routes, route, dst, parts);
    return count_runs(route, parts);
}

uint64_t fy_route_wanted(const fy_routes *routes, const fy_route *route, uint32_t dst)
{
    if (!route->is_regular) {
        return route->wanted[dst];
    }
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t wanted = 1;
    fy_route_dst_parts(routes, route, dst, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        const fy_overlap *overlap = route->overlap[d];
        uint64_t length = 0;
        for (size_t i = overlap->run_begin[parts[d]]; i < overlap->run_begin[parts[d] + 1]; i++) {
            length += overlap->runs[i].length;
        }
        wanted *= length;
    }
    return wanted;
}

static ferry_status copy_listed(const fy_route *route, uint32_t cell, fy_cell_touch **touches_inout,
                                size_t *capacity, size_t *n_out, ferry_error *error)
{
    size_t begin = route->touch_begin[cell], n = route->touch_begin[cell + 1] - begin;
    FY_TRY(FY_GROW(*touches_inout, *capacity, n, "the receivers of a shard", error));
    if (n > 0) {
        memcpy(*touches_inout, route->touches + begin, n * sizeof **touches_inout);
    }
    *n_out = n;
    return FERRY_OK;
}

ferry_status fy_route_list_touches(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                   fy_cell_touch **touches_inout, size_t *capacity, size_t *n_out,
                                   ferry_error *error)
{
    if (!route->is_regular) {
        return copy_listed(route, cell, touches_inout, capacity, n_out, error);
    }
    size_t at[FERRY_MAX_DIMS] = {0};
    uint64_t count = 1, before = 0;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t c = dim_cell(route, cell, d);
        count *= route->overlap[d]->touch_begin[c + 1] - route->overlap[d]->touch_begin[c];
    }
    FY_TRY(FY_GROW(*touches_inout, *capacity, (size_t)count, "the receivers of a shard", error));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t dst = 0, volume = 1;
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_overlap *overlap = route->overlap[d];
            const fy_touch *touch =
                &overlap->touches[overlap->touch_begin[dim_cell(route, cell, d)] + at[d]];
            dst = dst * fy_route_split(routes, route->dst, route->dst_pad, d)->n_parts +
                  touch->dst_part;
            volume *= touch->length;
        }
        (*touches_inout)[i] =
            (fy_cell_touch){.volume = volume, .before = before, .dst = (uint32_t)dst};
        before += volume;
        for (uint32_t d = route->n_dims; d > 0; d--) {
            uint32_t c = dim_cell(route, cell, d - 1);
            const fy_overlap *overlap = route->overlap[d - 1];
            if (++at[d - 1] < overlap->touch_begin[c + 1] - overlap->touch_begin[c]) {
                break;
            }
            at[d - 1] = 0;
        }
    }
    *n_out = (size_t)count;
    return FERRY_OK;
}
