/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/gather.h"

#include "base/checked.h"
#include "base/sort.h"
#include "checkpoint/gather_boxes.h"

#include <string.h>

ferry_status fy_gather_init(fy_gather *gather, const fy_layout_job *job, fy_files *files,
                            fy_checked *checked, uint64_t span_bytes, ferry_error *error)
{
    *gather = (fy_gather){.job = job,
                          .files = files,
                          .checked = checked,
                          .atoms_cell = FY_NONE,
                          .span_bytes = span_bytes,
                          .span = fy_alloc(span_bytes, 1)};
    return gather->span == NULL ? fy_fail_no_memory(error, "a buffer to read into") : FERRY_OK;
}

void fy_gather_cleanup(fy_gather *gather)
{
    for (size_t i = 0; i < gather->n_atoms; i++) {
        fy_atoms_cleanup(&gather->atoms[i]);
    }
    fy_free(gather->atoms);
    fy_free(gather->first_atom);
    fy_free(gather->shards);
    fy_index_cleanup(&gather->shard_index);
    fy_index_cleanup(&gather->check_index);
    for (size_t i = 0; i < gather->made_checks; i++) {
        fy_free(gather->checks[i].raw);
    }
    fy_free(gather->checks);
    fy_free(gather->span);
    fy_free(gather->found);
    *gather = (fy_gather){0};
}

/* Room for the atoms of the tensor's legs. */
static ferry_status turn_to(fy_gather *gather, uint32_t tensor, ferry_error *error)
{
    const fy_layout_job *job = gather->job;
    size_t n = job->first_leg[tensor + 1] - job->first_leg[tensor];
    if (!FY_RESERVE(gather->atoms, gather->atoms_capacity, n) ||
        !FY_RESERVE(gather->first_atom, gather->first_capacity, n)) {
        return fy_fail_no_memory(error, "the boxes of a tensor");
    }
    for (; gather->n_atoms < n; gather->n_atoms++) {
        gather->atoms[gather->n_atoms] = (fy_atoms){0};
    }
    gather->tensor = tensor;
    gather->atoms_cell = FY_NONE;
    return FERRY_OK;
}

ferry_status fy_gather_begin(fy_gather *gather, uint32_t tensor, ferry_error *error)
{
    FY_TRY(turn_to(gather, tensor, error));
    fy_index_cleanup(&gather->shard_index);
    fy_index_cleanup(&gather->check_index);
    gather->n_shards = 0;
    gather->last_shard = 0;
    gather->n_checks = 0;
    gather->span_begin = gather->span_end = 0;
    return FERRY_OK;
}

ferry_status fy_gather_turn(fy_gather *gather, uint32_t tensor, ferry_error *error)
{
    enum { MOST_SHARDS = 4096, MOST_CHECKS = 256 };
    if (gather->tensor == tensor) {
        return FERRY_OK;
    }
    if (gather->n_shards < MOST_SHARDS && gather->n_checks < MOST_CHECKS) {
        return turn_to(gather, tensor, error);
    }
    FY_TRY(fy_gather_end(gather, error)); /* work of thousands of tensors needs no more room */
    return fy_gather_begin(gather, tensor, error);
}

static const fy_route *route_of(const fy_gather *gather, size_t leg)
{
    return &gather->job->routes.routes[gather->job->routes.legs[leg].route];
}

bool fy_gather_takes_turns(const fy_gather *gather)
{
    const fy_layout_job *job = gather->job;
    for (size_t l = job->first_leg[gather->tensor]; l < job->first_leg[gather->tensor + 1]; l++) {
        if (!route_of(gather, l)->is_regular) {
            return false;
        }
    }
    return true;
}

/* ---- boxes ---- */

/*
 * A box of a row-major array as an area of bytes. Trailing dimensions that it has whole are one run
 * with the dimension before them: elements smaller than a byte end on bytes only there.
 */
static ferry_status area_of(const uint64_t *shape, const uint64_t *begin, const uint64_t *length,
                            uint32_t n_dims, uint64_t first, uint32_t bits, fy_area *area,
                            ferry_error *error)
{
    uint64_t stride[FERRY_MAX_DIMS], at = 0, pitch = 1, run = 1;
    uint32_t n = n_dims;
    for (uint32_t d = n_dims; d-- > 0;) {
        at += begin[d] * pitch;
        stride[d] = fy_bytes(pitch, bits);
        pitch *= shape[d];
    }
    bool is_whole = true;
    while (n > 0 && is_whole) {
        n--;
        run *= length[n];
        is_whole = length[n] == shape[n];
    }
    return fy_area_make(fy_bytes(at - first, bits), fy_bytes(run, bits), n, length, stride, area,
                        error);
}

typedef struct box_pair {
    uint64_t src_begin[FERRY_MAX_DIMS]; /* or FY_LOCAL_BY_OWNER */
    uint64_t src_global[FERRY_MAX_DIMS];
    uint64_t dst_begin[FERRY_MAX_DIMS];
    uint64_t length[FERRY_MAX_DIMS];
    uint32_t cell;
} box_pair;

/* Of the ranks that have it, the first: any other would have to be read from another file. */
static ferry_status read_boxed(fy_gather *gather, const fy_window *window, uint32_t leg,
                               const fy_route *route, const box_pair *box, char *to,
                               ferry_error *error)
{
    fy_boxed_read read = {.source = gather->job->routes.legs[leg].source,
                          .rank = route->view->rank[route->view->cell_begin[box->cell]],
                          .n_dims = route->n_dims,
                          .src_pad = route->src_pad,
                          .dst_pad = route->dst_pad,
                          .src_begin = box->src_global,
                          .dst_begin = box->dst_begin,
                          .length = box->length};
    return fy_gather_read_boxes(gather, window, &read, to, error);
}

static ferry_status read_box(fy_gather *gather, const fy_window *window, uint32_t leg,
                             const fy_route *route, box_pair *box, char *to, ferry_error *error)
{
    const fy_routes *routes = &gather->job->routes;
    const fy_source_shard *shard = NULL;
    fy_area from, to_area;
    uint64_t shape[FERRY_MAX_DIMS], to_begin[FERRY_MAX_DIMS];
    if (gather->job->from->boxed != NULL) { /* nobody need have all of it: see cover.h */
        return fy_view_cell_size(route->view, box->cell) == 0
                   ? FERRY_OK
                   : read_boxed(gather, window, leg, route, box, to, error);
    }
    const uint64_t *around = window->is_tile ? window->boxes[0].length : window->shape;
    FY_TRY(fy_gather_find_shard(gather, leg, box->cell, &shard, error));
    for (uint32_t d = 0; d < route->n_dims; d++) {
        bool own = d >= route->dst_pad;
        shape[d] = own ? around[d - route->dst_pad] : 1;
        to_begin[d] = box->dst_begin[d];
        to_begin[d] -= own && window->is_tile ? window->boxes[0].begin[d - route->dst_pad] : 0;
        if (box->src_begin[d] == FY_LOCAL_BY_OWNER) {
            box->src_begin[d] =
                fy_split_local(fy_route_split(routes, route->src, route->src_pad, d),
                               shard->parts[d], box->src_global[d]);
        }
    }
    FY_TRY(area_of(shard->shape, box->src_begin, box->length, route->n_dims, shard->flat_begin,
                   route->element_bits, &from, error));
    FY_TRY(area_of(shape, to_begin, box->length, route->n_dims,
                   window->is_tile ? 0 : window->flat_begin + window->first, route->element_bits,
                   &to_area, error));
    from.offset += shard->base;
    gather->is_one_file =
        gather->n_boxes == 0 || (gather->is_one_file && gather->whole_file == shard->file);
    gather->n_boxes++;
    gather->is_whole = from.n_dims == 0 && from.bytes == window->bytes;
    gather->whole_file = shard->file;
    gather->whole_offset = from.offset;
    return gather->only_locates ? FERRY_OK
                                : fy_gather_read_area(gather, shard, &from, &to_area, to, error);
}

/* ---- which boxes ---- */

/* The runs of one dimension that a window's box meets. */
typedef struct runs {
    const fy_run *runs;
    size_t n;
    size_t at;
} runs;

static runs runs_in(const fy_overlap *overlap, uint32_t part, uint64_t begin, uint64_t end)
{
    const fy_run *all = overlap->runs + overlap->run_begin[part];
    size_t n = fy_overlap_n_runs(overlap, part);
    FY_BISECT(size_t, low, 0, n, at, all[at].dst_local + all[at].length <= begin);
    runs found = {.runs = all + low};
    while (low + found.n < n && found.runs[found.n].dst_local < end) {
        found.n++;
    }
    return found;
}

static void clip_run(const fy_run *run, uint64_t begin, uint64_t end, uint32_t d, box_pair *box)
{
    uint64_t from = fy_max(run->dst_local, begin);
    uint64_t until = fy_min(run->dst_local + run->length, end);
    box->dst_begin[d] = from;
    box->length[d] = until - from;
    box->src_global[d] = run->src_global + (from - run->dst_local);
    box->src_begin[d] = run->src_local == FY_LOCAL_BY_OWNER
                            ? FY_LOCAL_BY_OWNER
                            : run->src_local + (from - run->dst_local);
}

/* The product of the runs of all dimensions, within one box of the window. */
static ferry_status read_product(fy_gather *gather, const fy_window *window, const fy_box *inside,
                                 uint32_t leg, const fy_route *route, char *to, ferry_error *error)
{
    uint32_t parts[FERRY_MAX_DIMS + 1];
    runs found[FERRY_MAX_DIMS];
    fy_route_dst_parts(&gather->job->routes, route, window->cell, parts);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        bool own = d >= route->dst_pad;
        uint64_t begin = own ? inside->begin[d - route->dst_pad] : 0;
        uint64_t end = begin + (own ? inside->length[d - route->dst_pad] : 1);
        found[d] = runs_in(route->overlap[d], parts[d], begin, end);
        if (found[d].n == 0) {
            return FERRY_OK;
        }
    }
    for (;;) {
        box_pair box = {.cell = 0};
        for (uint32_t d = 0; d < route->n_dims; d++) {
            const fy_run *run = &found[d].runs[found[d].at];
            bool own = d >= route->dst_pad;
            uint64_t begin = own ? inside->begin[d - route->dst_pad] : 0;
            uint64_t end = begin + (own ? inside->length[d - route->dst_pad] : 1);
            clip_run(run, begin, end, d, &box);
            box.cell += run->src_cell * route->cell_weight[d];
        }
        FY_TRY(read_box(gather, window, leg, route, &box, to, error));
        uint32_t d = route->n_dims;
        while (d > 0 && ++found[d - 1].at == found[d - 1].n) {
            found[--d].at = 0;
        }
        if (d == 0) {
            return FERRY_OK;
        }
    }
}

/* An atom of an irregular route, cut to one box of the window. */
static bool clip_atom(const fy_route *route, const fy_atom *atom, const fy_box *inside,
                      box_pair *box)
{
    *box = (box_pair){.cell = atom->cell};
    for (uint32_t d = 0; d < route->n_dims; d++) {
        bool own = d >= route->dst_pad;
        uint64_t begin = own ? inside->begin[d - route->dst_pad] : 0;
        uint64_t end = begin + (own ? inside->length[d - route->dst_pad] : 1);
        uint64_t from = fy_max(atom->dst_begin[d], begin);
        uint64_t until = fy_min(atom->dst_begin[d] + atom->length[d], end);
        if (from >= until) {
            return false;
        }
        box->dst_begin[d] = from;
        box->length[d] = until - from;
        box->src_global[d] = atom->src_global[d] + (from - atom->dst_begin[d]);
        box->src_begin[d] = atom->src_begin[d] == FY_LOCAL_BY_OWNER
                                ? FY_LOCAL_BY_OWNER
                                : atom->src_begin[d] + (from - atom->dst_begin[d]);
    }
    return true;
}

/*
 * Atoms are sorted by where they begin. Windows come in order: what ends before one is not looked
 * at again, and what begins behind a box ends the search.
 */
static ferry_status read_atoms(fy_gather *gather, const fy_window *window, const fy_box *inside,
                               uint32_t leg, const fy_route *route, char *to, ferry_error *error)
{
    size_t number = leg - gather->job->first_leg[gather->tensor];
    const fy_atoms *atoms = &gather->atoms[number];
    size_t *first = &gather->first_atom[number];
    uint32_t own = route->dst_pad;
    bool ranked = route->n_dims > own; /* a scalar has one box */
    ferry_status status = FERRY_OK;
    while (ranked && *first < atoms->n_items &&
           atoms->items[*first].dst_begin[own] + atoms->items[*first].length[own] <=
               window->boxes[0].begin[0]) {
        ++*first;
    }
    for (size_t i = *first; i < atoms->n_items && status == FERRY_OK; i++) {
        box_pair box;
        if (ranked && atoms->items[i].dst_begin[own] >= inside->begin[0] + inside->length[0]) {
            break;
        }
        if (clip_atom(route, &atoms->items[i], inside, &box)) {
            status = read_box(gather, window, leg, route, &box, to, error);
        }
    }
    return status;
}

static ferry_status list_atoms(fy_gather *gather, uint32_t cell, ferry_error *error)
{
    const fy_layout_job *job = gather->job;
    size_t first = job->first_leg[gather->tensor];
    ferry_status status = FERRY_OK;
    for (size_t l = first; l < job->first_leg[gather->tensor + 1] && status == FERRY_OK; l++) {
        const fy_route *route = route_of(gather, l);
        gather->first_atom[l - first] = 0;
        if (!route->is_regular) {
            status =
                fy_route_list_atoms(&job->routes, route, cell, &gather->atoms[l - first], error);
        }
    }
    gather->atoms_cell = status == FERRY_OK ? cell : FY_NONE;
    return status;
}

ferry_status fy_gather_read(fy_gather *gather, const fy_window *window, char *to,
                            ferry_error *error)
{
    const fy_layout_job *job = gather->job;
    size_t first = job->first_leg[gather->tensor];
    ferry_status status = FERRY_OK;
    gather->is_whole = false;
    gather->n_boxes = 0;
    if (gather->atoms_cell != window->cell || window->first < gather->last_first) {
        status = list_atoms(gather, window->cell, error);
    }
    gather->last_first = window->first;
    for (size_t l = first; l < job->first_leg[gather->tensor + 1]; l++) {
        const fy_route *route = route_of(gather, l);
        for (size_t b = 0; b < window->n_boxes && status == FERRY_OK; b++) {
            status =
                route->is_regular
                    ? read_product(gather, window, &window->boxes[b], (uint32_t)l, route, to, error)
                    : read_atoms(gather, window, &window->boxes[b], (uint32_t)l, route, to, error);
        }
    }
    return status;
}

ferry_status fy_gather_look(fy_gather *gather, const fy_window *window, ferry_error *error)
{
    gather->only_locates = true;
    ferry_status status = fy_gather_read(gather, window, NULL, error);
    gather->only_locates = false;
    return status;
}

ferry_status fy_gather_locate(fy_gather *gather, const fy_window *window, ferry_error *error)
{
    FY_TRY(fy_gather_look(gather, window, error));
    if (!gather->is_whole) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "\"%s\" has rows of %llu bytes that cannot be cut on bytes, and more than "
                       "a window has room for",
                       gather->job->problem.tensors[window->tensor].name,
                       (unsigned long long)window->bytes);
    }
    return FERRY_OK;
}
