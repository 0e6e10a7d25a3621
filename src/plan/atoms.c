/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The atoms of a route. A regular route is a product: an atom is one run per dimension, and the
 * atoms of a destination cell are all combinations of its runs, the last dimension fastest. Flat
 * cuts divide these boxes further, along the row-major order of the shards that they cut.
 */
#include "plan/route.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

void fy_atoms_cleanup(fy_atoms *atoms)
{
    fy_free(atoms->items);
    *atoms = (fy_atoms){0};
}

static bool push(fy_atoms *atoms, const fy_atom *atom)
{
    if (!fy_reserve((void **)&atoms->items, &atoms->capacity, atoms->n_items + 1,
                    sizeof *atoms->items)) {
        return false;
    }
    atoms->items[atoms->n_items++] = *atom;
    return true;
}

/* One run of one dimension becomes that dimension of the atom. */
static void set_dim(const fy_route *route, fy_atom *atom, uint32_t d, const fy_run *run)
{
    atom->src_begin[d]  = run->src_local;
    atom->src_global[d] = run->src_global;
    atom->dst_begin[d]  = run->dst_local;
    atom->length[d]     = run->length;
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

/* Flat cuts. */

/* What the flat cuts of both sides need to know about the atoms of one destination cell. */
typedef struct flat_cut {
    const fy_routes *routes;
    const fy_route  *route;
    const fy_layout *src;
    const fy_layout *dst;
    uint32_t         dst_parts[FY_MAX_DIMS + 1];
    uint64_t         dst_shape[FY_MAX_DIMS];
    uint64_t         dst_begin, dst_end;
    fy_atoms         boxes; /* scratch: the parts of one box */
    fy_atoms        *atoms;
} flat_cut;

/* The part of an atom that lies in a box of its source (or destination) shard. */
static bool clip(const fy_atom *atom, const uint64_t *atom_begin, const fy_box *box,
                 uint32_t n_dims, fy_atom *part_out)
{
    fy_atom part = *atom;
    part.volume  = 1;
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t begin = fy_max(atom_begin[d], box->begin[d]);
        uint64_t end   = fy_min(atom_begin[d] + atom->length[d], box->begin[d] + box->length[d]);
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

/* Joins b to a if together they are a box. All lie in one box that is affine on both sides. */
static bool join(fy_atom *a, const fy_atom *b, uint32_t n_dims)
{
    uint32_t along = n_dims;
    for (uint32_t d = 0; d < n_dims; d++) {
        if (a->dst_begin[d] == b->dst_begin[d] && a->length[d] == b->length[d]) {
            continue;
        }
        if (along != n_dims || a->dst_begin[d] + a->length[d] != b->dst_begin[d]) {
            return false;
        }
        along = d;
    }
    if (along == n_dims) {
        return false;
    }
    a->length[along] += b->length[along];
    a->volume += b->volume;
    return true;
}

static void join_all(fy_atoms *boxes, uint32_t n_dims)
{
    bool again = true;
    while (again) {
        again = false;
        for (size_t i = 0; i < boxes->n_items; i++) {
            for (size_t j = 0; j < boxes->n_items; j++) {
                if (i != j && boxes->items[i].cell == boxes->items[j].cell &&
                    join(&boxes->items[i], &boxes->items[j], n_dims)) {
                    boxes->items[j] = boxes->items[--boxes->n_items];
                    again           = true;
                    j--;
                    if (i == boxes->n_items) {
                        i = j; /* the last box, i itself, moved to j */
                        break;
                    }
                }
            }
        }
    }
}

/* The parts of an atom in the row-major range of this destination rank. */
static bool cut_by_destination(flat_cut *cut, const fy_atom *atom)
{
    if (cut->dst->n_flat == 0) {
        return push(&cut->boxes, atom);
    }
    fy_box boxes[FY_MAX_RANGE_BOXES];
    size_t n =
        fy_range_boxes(cut->dst_shape, cut->route->n_dims, cut->dst_begin, cut->dst_end, boxes);
    for (size_t i = 0; i < n; i++) {
        fy_atom part;
        if (clip(atom, atom->dst_begin, &boxes[i], cut->route->n_dims, &part) &&
            !push(&cut->boxes, &part)) {
            return false;
        }
    }
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

/* The flat part in which an element of a shard lies. */
static uint32_t flat_part_of(const fy_layout *layout, uint64_t n_elements, uint64_t element)
{
    if (layout->flat_sizes == NULL) {
        return (uint32_t)(element / fy_ceil_div(n_elements, layout->n_flat));
    }
    uint32_t part = 0;
    for (uint64_t end = layout->flat_sizes[0]; element >= end;) {
        end += layout->flat_sizes[++part];
    }
    return part;
}

/* The parts of an atom in the row-major ranges of the source ranks. */
static bool cut_by_source(flat_cut *cut, const fy_atom *atom)
{
    const fy_layout *src    = cut->src;
    uint32_t         n_dims = cut->route->n_dims;
    if (src->n_flat == 0) {
        return cut_by_destination(cut, atom);
    }
    uint32_t parts[FY_MAX_DIMS];
    uint64_t shape[FY_MAX_DIMS];
    for (uint32_t d = 0; d < n_dims; d++) {
        parts[d] = atom->cell / cut->route->cell_weight[d] % cut->route->overlap[d]->n_src_cells;
    }
    uint64_t n_elements =
        fy_route_shard(cut->routes, cut->route, cut->route->src, cut->route->src_pad, parts, shape);
    uint32_t first = flat_part_of(src, n_elements,
                                  row_major(shape, atom->src_begin, atom->length, false, n_dims));
    uint32_t last  = flat_part_of(src, n_elements,
                                  row_major(shape, atom->src_begin, atom->length, true, n_dims));
    for (uint32_t f = first; f <= last; f++) {
        uint64_t begin, end;
        fy_box   boxes[FY_MAX_RANGE_BOXES];
        fy_layout_flat_range(src, f, n_elements, &begin, &end);
        size_t n = fy_range_boxes(shape, n_dims, begin, end, boxes);
        for (size_t i = 0; i < n; i++) {
            fy_atom part;
            if (!clip(atom, atom->src_begin, &boxes[i], n_dims, &part)) {
                continue;
            }
            part.cell += f;
            if (!cut_by_destination(cut, &part)) {
                return false;
            }
        }
    }
    return true;
}

static void prepare_cut(flat_cut *cut, uint32_t dst)
{
    const fy_problem *problem = cut->routes->problem;
    const fy_route   *route   = cut->route;
    cut->src                  = &problem->placements[route->src].layout;
    cut->dst                  = &problem->placements[route->dst].layout;
    fy_route_dst_parts(cut->routes, route, dst, cut->dst_parts);
    uint64_t n_elements = fy_route_shard(cut->routes, route, route->dst, route->dst_pad,
                                         cut->dst_parts, cut->dst_shape);
    fy_layout_flat_range(cut->dst, cut->dst_parts[route->n_dims], n_elements, &cut->dst_begin,
                         &cut->dst_end);
}

static bool push_cut(flat_cut *cut, const fy_atom *atom)
{
    cut->boxes.n_items = 0;
    if (!cut_by_source(cut, atom)) {
        return false;
    }
    join_all(&cut->boxes, cut->route->n_dims);
    for (size_t i = 0; i < cut->boxes.n_items; i++) {
        if (!push(cut->atoms, &cut->boxes.items[i])) {
            return false;
        }
    }
    return true;
}

static int compare_atoms(const void *a, const void *b)
{
    const uint64_t *x = ((const fy_atom *)a)->dst_begin, *y = ((const fy_atom *)b)->dst_begin;
    for (uint32_t d = 0; d < FY_MAX_DIMS; d++) { /* unused dimensions are 0 */
        if (x[d] != y[d]) {
            return x[d] < y[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Products. */

void fy_route_dst_parts(const fy_routes *routes, const fy_route *route, uint32_t dst,
                        uint32_t parts_out[FY_MAX_DIMS + 1])
{
    for (uint32_t d = 0; d < route->dst_pad; d++) {
        parts_out[d] = 0;
    }
    fy_layout_parts(routes->problem, &routes->problem->placements[route->dst].layout, dst,
                    parts_out + route->dst_pad);
}

uint64_t fy_route_shard(const fy_routes *routes, const fy_route *route, uint32_t placement,
                        uint32_t pad, const uint32_t *parts, uint64_t shape_out[FY_MAX_DIMS])
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
    uint32_t      parts[FY_MAX_DIMS + 1];
    size_t        at[FY_MAX_DIMS] = {0};
    flat_cut      cut             = {.routes = routes, .route = route, .atoms = atoms};
    const fy_run *runs[FY_MAX_DIMS];
    fy_route_dst_parts(routes, route, dst, parts);
    uint64_t count = count_runs(route, parts);
    if (count > FY_MAX_ATOMS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a shard would arrive in %llu boxes, more than the limit of %d",
                       (unsigned long long)count, FY_MAX_ATOMS);
    }
    if (!route->is_regular) {
        prepare_cut(&cut, dst);
    }
    bool complete = true;
    for (uint64_t i = 0; complete && i < count; i++) {
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_overlap *overlap = route->overlap[d];
            runs[d]                   = &overlap->runs[overlap->run_begin[parts[d]] + at[d]];
        }
        fy_atom atom = make_atom(route, runs);
        complete     = route->is_regular ? push(atoms, &atom) : push_cut(&cut, &atom);
        for (uint32_t d = route->n_dims; d > 0; d--) {
            if (++at[d - 1] < fy_overlap_n_runs(route->overlap[d - 1], parts[d - 1])) {
                break;
            }
            at[d - 1] = 0;
        }
    }
    fy_atoms_cleanup(&cut.boxes);
    return complete ? FERRY_OK : fy_fail_no_memory(error, "the boxes of a shard");
}

ferry_status fy_route_list_atoms(const fy_routes *routes, const fy_route *route, uint32_t dst,
                                 fy_atoms *atoms, ferry_error *error)
{
    atoms->n_items      = 0;
    ferry_status status = list_product(routes, route, dst, atoms, error);
    if (status == FERRY_OK && !route->is_regular) {
        fy_sort(atoms->items, atoms->n_items, sizeof *atoms->items, compare_atoms);
    }
    return status;
}

static bool reserve_index(uint64_t **index, size_t *capacity, size_t needed)
{
    return fy_reserve((void **)index, capacity, needed, sizeof **index);
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

ferry_status fy_route_list_cell_atoms(const fy_routes *routes, const fy_route *route, uint32_t cell,
                                      uint32_t dst, fy_atoms *atoms, uint64_t **index_inout,
                                      size_t *index_capacity, ferry_error *error)
{
    if (!route->is_regular) {
        ferry_status status = fy_route_list_atoms(routes, route, dst, atoms, error);
        return status == FERRY_OK ? filter_cell(cell, atoms, index_inout, index_capacity, error)
                                  : status;
    }
    uint32_t        parts[FY_MAX_DIMS + 1];
    const fy_touch *touch[FY_MAX_DIMS];
    size_t          at[FY_MAX_DIMS] = {0};
    uint64_t        count           = 1;
    atoms->n_items                  = 0;
    fy_route_dst_parts(routes, route, dst, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        touch[d] = fy_overlap_find(route->overlap[d], dim_cell(route, cell, d), parts[d]);
        if (touch[d] == NULL) {
            return FERRY_OK;
        }
        count *= touch[d]->n_runs; /* of one destination cell: within its limit */
    }
    if (!reserve_index(index_inout, index_capacity, (size_t)count)) {
        return fy_fail_no_memory(error, "the boxes of a shard");
    }
    for (uint64_t i = 0; i < count; i++) {
        const fy_run *runs[FY_MAX_DIMS];
        uint64_t      index = 0;
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_overlap *overlap  = route->overlap[d];
            uint32_t          position = overlap->run_order[touch[d]->first_run + at[d]];
            runs[d]                    = &overlap->runs[overlap->run_begin[parts[d]] + position];
            index                      = index * fy_overlap_n_runs(overlap, parts[d]) + position;
        }
        fy_atom atom = make_atom(route, runs);
        if (!push(atoms, &atom)) {
            return fy_fail_no_memory(error, "the boxes of a shard");
        }
        (*index_inout)[i] = index;
        for (uint32_t d = route->n_dims; d > 0; d--) {
            if (++at[d - 1] < touch[d - 1]->n_runs) {
                break;
            }
            at[d - 1] = 0;
        }
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
    size_t low = route->touch_begin[cell], high = route->touch_begin[cell + 1];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (route->touches[middle].dst < dst) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found = low < route->touch_begin[cell + 1] && route->touches[low].dst == dst;
    return found ? route->touches[low] : (fy_cell_touch){.dst = dst};
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
    uint32_t      parts[FY_MAX_DIMS + 1];
    fy_cell_touch result = {.volume = 1, .dst = dst};
    fy_route_dst_parts(routes, route, dst, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t        c     = dim_cell(route, cell, d);
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
        size_t low = route->touch_begin[cell], high = route->touch_begin[cell + 1];
        while (high - low > 1) {
            size_t middle = low + (high - low) / 2;
            if (route->touches[middle].before <= position) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return route->touches[low];
    }
    fy_cell_touch result = {.volume = 1};
    uint64_t      inner  = fy_route_cell_total(route, cell);
    uint64_t      dst    = 0;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t c = dim_cell(route, cell, d);
        inner /= fy_overlap_cell_total(route->overlap[d], c);
        /* Positions inside step by what lies outside of them already. */
        uint64_t        scale = result.volume * inner;
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
    uint32_t parts[FY_MAX_DIMS + 1];
    fy_route_dst_parts(routes, route, dst, parts);
    return count_runs(route, parts);
}

uint64_t fy_route_wanted(const fy_routes *routes, const fy_route *route, uint32_t dst)
{
    if (!route->is_regular) {
        return route->wanted[dst];
    }
    uint32_t parts[FY_MAX_DIMS + 1];
    uint64_t wanted = 1;
    fy_route_dst_parts(routes, route, dst, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        const fy_overlap *overlap = route->overlap[d];
        uint64_t          length  = 0;
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
    if (!fy_reserve((void **)touches_inout, capacity, n, sizeof **touches_inout)) {
        return fy_fail_no_memory(error, "the receivers of a shard");
    }
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
    size_t   at[FY_MAX_DIMS] = {0};
    uint64_t count = 1, before = 0;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint32_t c = dim_cell(route, cell, d);
        count *= route->overlap[d]->touch_begin[c + 1] - route->overlap[d]->touch_begin[c];
    }
    if (!fy_reserve((void **)touches_inout, capacity, (size_t)count, sizeof **touches_inout)) {
        return fy_fail_no_memory(error, "the receivers of a shard");
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t dst = 0, volume = 1;
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_overlap *overlap = route->overlap[d];
            const fy_touch   *touch =
                &overlap->touches[overlap->touch_begin[dim_cell(route, cell, d)] + at[d]];
            dst = dst * fy_route_split(routes, route->dst, route->dst_pad, d)->n_parts +
                  touch->dst_part;
            volume *= touch->length;
        }
        (*touches_inout)[i] =
            (fy_cell_touch){.volume = volume, .before = before, .dst = (uint32_t)dst};
        before += volume;
        for (uint32_t d = route->n_dims; d > 0; d--) {
            uint32_t          c       = dim_cell(route, cell, d - 1);
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
