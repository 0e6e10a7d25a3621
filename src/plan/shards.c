/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank holds. Its tables of holders lead to routes, these to tensors, and the placement of
 * each says which part: the cost is that of what the rank holds, and a look at each table.
 */
#include "plan/shards.h"

#include "plan/core.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/* Local indices [local, local + length) of a dimension are global ones from global. */
typedef struct stretch {
    uint64_t local;
    uint64_t global;
    uint64_t length;
} stretch;

/* One dimension of the shard at work: the stretches of one part of a split. */
typedef struct axis {
    const fy_split *split; /* NULL: none yet */
    uint32_t part;
    stretch *stretches;
    size_t n_stretches, capacity;
} axis;

/* A visit that is under way on this thread. */
typedef struct walk {
    struct walk *outer; /* that the visitor of which made this one */
    uint64_t number;    /* of the tensor that its visitor has now: ferry_shard.visit */
    const ferry_plan *plan;
    ferry_side_role side;
    uint32_t rank;
    bool of_staged; /* the scales that come with codes, which others leave out */
    const fy_tensor *tensor;
    uint32_t *tensors;
    size_t n_tensors, capacity;
    axis axes[FERRY_MAX_DIMS];
} walk;

/* The innermost first; numbers begin with 1 and are never used again by a thread. */
static _Thread_local walk *walks;
static _Thread_local uint64_t n_visited;

static void walk_begin(walk *w)
{
    w->outer = walks;
    walks = w;
}

/* The visit that a shard belongs to; a copy that outlived its tensor's turn belongs to none. */
static const walk *walk_of(const ferry_shard *shard)
{
    const walk *w = shard == NULL || shard->visit == 0 ? NULL : walks;
    while (w != NULL && w->number != shard->visit) {
        w = w->outer;
    }
    return w;
}

static void walk_end(walk *w)
{
    walks = w->outer;
    fy_free(w->tensors);
    for (uint32_t d = 0; d < FERRY_MAX_DIMS; d++) {
        fy_free(w->axes[d].stretches);
    }
}

/* Scales are made of values, which are what a rank holds. */
static uint32_t held_source(const ferry_plan *plan, const fy_leg *leg)
{
    const fy_scales *scales = plan->problem.tensors[leg->source].scales;
    return scales == NULL ? leg->source : scales->tensor;
}

static bool add_tensors(walk *w, uint32_t table)
{
    const ferry_plan *plan = w->plan;
    const fy_routes *routes = &plan->routes;
    bool by_source = w->side == FERRY_SIDE_SOURCE;
    const size_t *begin = by_source ? plan->table_source_begin : plan->table_route_begin;
    const uint32_t *numbers = by_source ? plan->table_sources : plan->table_routes;
    for (size_t i = begin[table]; i < begin[table + 1]; i++) {
        const fy_route *route = &routes->routes[numbers[i]];
        if (!FY_RESERVE(w->tensors, w->capacity, w->n_tensors + 2 * (size_t)route->n_units)) {
            return false;
        }
        for (uint32_t u = 0; u < route->n_units; u++) {
            const fy_leg *leg = &routes->legs[fy_route_leg(routes, route, u)];
            uint32_t given =
                by_source && !fy_problem_is_made_at_receiver(&plan->problem, leg->tensor)
                    ? fy_problem_tensor_scale(&plan->problem, leg->tensor)
                    : FY_NONE;
            w->tensors[w->n_tensors++] = by_source ? held_source(plan, leg) : leg->tensor;
            if (given != FY_NONE) { /* who makes codes needs it, wherever it goes */
                w->tensors[w->n_tensors++] = given;
            }
        }
    }
    return true;
}

/* With the codes of what the rank makes itself it has scales, which no leg brings. */
static bool add_made(walk *w)
{
    const fy_routes *routes = &w->plan->routes;
    size_t n = w->n_tensors;
    for (size_t i = 0; i < n; i++) {
        uint32_t scales = w->plan->problem.tensors[w->tensors[i]].made_scales;
        if (scales == 0 || !fy_routes_make(routes, scales)) {
            continue;
        }
        if (!FY_RESERVE(w->tensors, w->capacity, w->n_tensors + 1)) {
            return false;
        }
        w->tensors[w->n_tensors++] = scales;
    }
    return true;
}

/* A tensor of several legs came several times. */
static void sort_tensors(walk *w)
{
    size_t kept = 0;
    fy_sort(w->tensors, w->n_tensors, sizeof *w->tensors, fy_compare_u32);
    for (size_t i = 0; i < w->n_tensors; i++) {
        if (kept == 0 || w->tensors[kept - 1] != w->tensors[i]) {
            w->tensors[kept++] = w->tensors[i];
        }
    }
    w->n_tensors = kept;
}

static ferry_status list_tensors(walk *w, ferry_error *error)
{
    const ferry_plan *plan = w->plan;
    bool fits = true;
    if (w->side == FERRY_SIDE_DESTINATION) {
        const size_t *begin = plan->rank_table_begin;
        for (size_t i = begin[w->rank]; fits && i < begin[w->rank + 1]; i++) {
            fits = add_tensors(w, plan->rank_tables[i]);
        }
        fits = fits && add_made(w);
    } else {
        for (uint32_t t = 0; fits && t < plan->problem.n_holders; t++) {
            bool used = plan->table_source_begin[t] < plan->table_source_begin[t + 1];
            fits = !used || fy_holders_find(plan->problem.holders[t], w->rank) == FY_NO_SLOT ||
                   add_tensors(w, t);
        }
    }
    FY_TRY(fy_check_memory(fits, "the tensors of a rank", error));
    sort_tensors(w);
    return FERRY_OK;
}

/* Whether a piece is the part's next one, of which `filled` indices came before. */
static bool is_next(const fy_split *split, size_t number, uint32_t part, uint64_t filled)
{
    const fy_piece *piece = &split->pieces[number];
    if (part < piece->part || part - piece->part >= piece->n_owners) {
        return false;
    }
    uint64_t local = piece->n_owners == 1 ? piece->local
                                          : split->shared_local[piece->local + part - piece->part];
    return local == filled;
}

static bool add_stretch(axis *a, const fy_piece *piece, uint64_t filled)
{
    stretch *last = a->n_stretches == 0 ? NULL : &a->stretches[a->n_stretches - 1];
    if (last != NULL && last->global + last->length == piece->global) {
        last->length += piece->length; /* it only has other owners */
        return true;
    }
    if (!FY_RESERVE(a->stretches, a->capacity, a->n_stretches + 1)) {
        return false;
    }
    a->stretches[a->n_stretches++] =
        (stretch){.local = filled, .global = piece->global, .length = piece->length};
    return true;
}

/*
 * The pieces of a part. Nearly always its first piece is that of its number, and the distance to
 * the next one stays the same, so others are rarely looked at; a wrong guess shows in the local
 * begin.
 */
static bool list_stretches(axis *a, const fy_split *split, uint32_t part)
{
    uint64_t filled = 0;
    size_t at = 0, distance = split->n_parts;
    a->split = NULL;
    a->n_stretches = 0;
    while (filled < split->part_length[part]) {
        size_t guess = filled == 0 ? part : at + distance;
        size_t next = filled == 0 ? 0 : at + 1;
        if (guess < split->n_pieces && is_next(split, guess, part, filled)) {
            next = guess;
        }
        while (!is_next(split, next, part, filled)) {
            next++;
        }
        if (!add_stretch(a, &split->pieces[next], filled)) {
            return false;
        }
        distance = filled == 0 ? distance : next - at;
        at = next;
        filled += split->pieces[next].length;
    }
    a->split = split;
    a->part = part;
    return true;
}

static ferry_status fill_axes(walk *w, const fy_layout *layout, const uint32_t *parts,
                              ferry_error *error)
{
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        const fy_split *split = fy_problem_split(&w->plan->problem, layout, d);
        axis *a = &w->axes[d];
        if ((a->split != split || a->part != parts[d]) && !list_stretches(a, split, parts[d])) {
            return fy_fail_no_memory(error, "the pieces of a shard");
        }
    }
    return FERRY_OK;
}

static ferry_status visit_tensor(walk *w, uint32_t number, ferry_shard_visitor visitor,
                                 void *context, ferry_error *error)
{
    const fy_problem *problem = &w->plan->problem;
    const fy_tensor *tensor = &problem->tensors[number];
    bool is_source = w->side == FERRY_SIDE_SOURCE;
    bool is_cast = !is_source && tensor->conversion != NULL;
    uint32_t placement = is_source ? tensor->src : tensor->dst;
    const fy_layout *layout = &problem->placements[placement].layout;
    const fy_holders *holders = fy_problem_holders(problem, placement);
    uint32_t cell = holders->cell[fy_holders_find(holders, w->rank)];
    uint32_t parts[FERRY_MAX_DIMS + 1];
    ferry_shard shard = {.tensor = tensor->name,
                         .dtype = is_source ? tensor->dtype : fy_tensor_wanted(tensor),
                         .source_dtype = is_cast ? tensor->conversion->from : tensor->dtype,
                         .conversion = is_cast ? &tensor->conversion->is : NULL,
                         .n_dims = tensor->n_dims,
                         .is_flat = layout->n_flat != 0,
                         .visit = ++n_visited};
    fy_layout_parts(problem, layout, cell, parts);
    FY_TRY(fill_axes(w, layout, parts, error));
    uint64_t n_elements = fy_layout_shard(problem, layout, parts, shard.local);
    fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &shard.flat_begin,
                         &shard.flat_end);
    if (tensor->n_dims > 0) {
        memcpy(shard.global, layout->shape, tensor->n_dims * sizeof *shard.global);
    }
    const fy_scales *scales = is_cast ? tensor->scales : is_source ? NULL : tensor->staged;
    if (scales != NULL) {
        const fy_tensor *values = &problem->tensors[scales->tensor];
        shard.values = values->name;
        memcpy(shard.values_global, values->shape, values->n_dims * sizeof *values->shape);
    }
    /* Only boxes that move must end on bytes: a shard may end inside its last one. */
    shard.bytes = fy_ceil_div((shard.flat_end - shard.flat_begin) * shard.dtype.element_bits, 8);
    w->tensor = tensor;
    w->number = shard.visit;
    return visitor(context, &shard);
}

static ferry_status visit_tensors(walk *w, ferry_shard_visitor visitor, void *context,
                                  ferry_error *error)
{
    const fy_tensor *tensors = w->plan->problem.tensors;
    walk_begin(w);
    ferry_status status = list_tensors(w, error);
    for (size_t i = 0; i < w->n_tensors && status == FERRY_OK; i++) {
        bool is_staged = w->side == FERRY_SIDE_DESTINATION && tensors[w->tensors[i]].staged != NULL;
        if (is_staged == w->of_staged) {
            status = visit_tensor(w, w->tensors[i], visitor, context, error);
        }
    }
    walk_end(w);
    return status;
}

static ferry_status visit(walk *w, const char *misuse, ferry_shard_visitor visitor, void *context,
                          ferry_error *error)
{
    const ferry_plan *plan = w->plan;
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL, misuse, error));
    if (w->side != FERRY_SIDE_SOURCE && w->side != FERRY_SIDE_DESTINATION) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%d is not a side of a plan", (int)w->side);
    }
    if (w->rank >= plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u is not in the world of %u ranks", w->rank,
                       plan->problem.n_ranks);
    }
    fy_before_callback(error);
    ferry_status status = FERRY_OK;
    if (plan->problem.memory[w->side == FERRY_SIDE_SOURCE ? 0 : 1] == NULL) {
        status = visit_tensors(w, visitor, context, error);
    } else {
        status =
            fy_plan_visit_parameters(plan, w->side, w->rank, w->of_staged, visitor, context, error);
    }
    return fy_after_callback(status, "visitor", error);
}

ferry_status ferry_plan_visit_shards(const ferry_plan *plan, ferry_side_role side, uint32_t rank,
                                     ferry_shard_visitor visitor, void *context, ferry_error *error)
{
    walk w = {.plan = plan, .side = side, .rank = rank};
    return visit(&w, "ferry_plan_visit_shards needs a plan and a visitor", visitor, context, error);
}

ferry_status ferry_plan_visit_staged(const ferry_plan *plan, uint32_t rank,
                                     ferry_shard_visitor visitor, void *context, ferry_error *error)
{
    walk w = {.plan = plan, .side = FERRY_SIDE_DESTINATION, .rank = rank, .of_staged = true};
    return visit(&w, "ferry_plan_visit_staged needs a plan and a visitor", visitor, context, error);
}

/* Of a shard inside its visit. */
static const axis *axis_of(const ferry_shard *shard, uint32_t dim)
{
    const walk *w = walk_of(shard);
    return w != NULL && dim < w->tensor->n_dims ? &w->axes[dim] : NULL;
}

size_t ferry_shard_piece_count(const ferry_shard *shard, uint32_t dim)
{
    const axis *a = axis_of(shard, dim);
    return a == NULL ? 0 : a->n_stretches;
}

ferry_status ferry_shard_piece_at(const ferry_shard *shard, uint32_t dim, size_t index,
                                  uint64_t *local_out, uint64_t *global_out, uint64_t *length_out,
                                  ferry_error *error)
{
    const axis *a = axis_of(shard, dim);
    FY_TRY(fy_check_use(
        a != NULL && local_out != NULL && global_out != NULL && length_out != NULL,
        "ferry_shard_piece_at needs a shard within its visit, a dimension of it and three places",
        error));
    if (index >= a->n_stretches) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "dimension %u of \"%s\" has %zu pieces, no number %zu", dim, shard->tensor,
                       a->n_stretches, index);
    }
    *local_out = a->stretches[index].local;
    *global_out = a->stretches[index].global;
    *length_out = a->stretches[index].length;
    return FERRY_OK;
}

/* With a source in boxes a tensor may be fed from more than the spec says: that is not told. */
static const fy_tensor *whole_of(const fy_tensor *tensor)
{
    return tensor->fragment == NULL ? tensor : tensor->fragment->whole;
}

size_t ferry_shard_origin_count(const ferry_shard *shard)
{
    const walk *w = walk_of(shard);
    if (w == NULL || w->side == FERRY_SIDE_SOURCE) {
        return 0;
    }
    const fy_tensor *whole = whole_of(w->tensor);
    return whole->n_feeds == 0 ? 1 : whole->n_feeds;
}

static void origin_of_itself(const fy_tensor *tensor, ferry_origin *origin)
{
    origin->source = tensor->name;
    origin->source_n_dims = tensor->n_dims;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        origin->length[d] = tensor->shape[d];
        origin->source_length[d] = tensor->shape[d];
        origin->source_global[d] = tensor->shape[d];
    }
}

/* A feed has the dimensions of the larger side; the other side's leading ones are left out. */
static void origin_of_feed(const fy_tensor *tensor, const fy_tensor *source, const fy_feed *feed,
                           ferry_origin *origin)
{
    uint32_t pad = feed->n_dims - tensor->n_dims;
    uint32_t source_pad = feed->n_dims - source->n_dims;
    origin->source = source->name;
    origin->source_n_dims = source->n_dims;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        origin->at[d] = feed->at[d + pad];
        origin->length[d] = feed->shape[d + pad];
    }
    for (uint32_t d = 0; d < source->n_dims; d++) {
        origin->begin[d] = feed->begin[d + source_pad];
        origin->source_length[d] = feed->shape[d + source_pad];
        origin->source_global[d] = source->shape[d];
    }
}

ferry_status ferry_shard_origin_at(const ferry_shard *shard, size_t index, ferry_origin *origin_out,
                                   ferry_error *error)
{
    if (shard == NULL || origin_out == NULL || index >= ferry_shard_origin_count(shard)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_shard_origin_at needs a destination shard within its visit, one of "
                       "its %zu origins and a place, not number %zu",
                       ferry_shard_origin_count(shard), index);
    }
    const walk *w = walk_of(shard);
    const fy_tensor *tensor = whole_of(w->tensor);
    ferry_origin origin = {0};
    if (tensor->n_feeds == 0) {
        origin_of_itself(tensor, &origin);
    } else {
        const fy_feed *feed = &tensor->feeds[index];
        origin_of_feed(tensor, &w->plan->problem.tensors[feed->tensor], feed, &origin);
    }
    return fy_copy_out(&origin, sizeof origin, origin_out, "ferry_origin", error);
}

/* The shard of a tensor, row-major, of whose values a rank makes codes, and scales of the same. */
static ferry_status visit_made(walk *w, const fy_tensor *tensor, fy_made_codes_visitor *visitor,
                               void *context)
{
    const fy_problem *problem = &w->plan->problem;
    const fy_layout *layout = &problem->placements[tensor->dst].layout;
    const fy_holders *holders = fy_problem_holders(problem, tensor->dst);
    uint32_t parts[FERRY_MAX_DIMS + 1], n = tensor->n_dims, scales = tensor->made_scales;
    fy_made_codes made = {.tensor = tensor->name,
                          .conversion = &tensor->conversion->is,
                          .values = tensor->conversion->from,
                          .stores_codes = true,
                          .n_dims = n,
                          .codes.name = tensor->name};
    fy_layout_parts(problem, layout, holders->cell[fy_holders_find(holders, w->rank)], parts);
    if (fy_layout_shard(problem, layout, parts, made.shape) == 0) {
        return FERRY_OK;
    }
    made.scales.name =
        fy_routes_make(&w->plan->routes, scales) ? problem->tensors[scales].name : NULL;
    made.given.name = fy_problem_tensor_scale_name(problem, (uint32_t)(tensor - problem->tensors));
    fy_made_shape(&made, made.scales.strides);
    for (uint64_t d = n, step[3] = {1, 1, 1}; d-- > 0;) {
        uint64_t n_scales = made.scales.strides[d];
        made.codes.strides[d] = step[0];
        made.scales.strides[d] = step[1];
        step[0] *= made.shape[d];
        step[1] *= n_scales;
        if (d + 2 < n) {
            made.given.strides[d] = step[2];
            step[2] *= made.shape[d];
        }
    }
    return visitor(context, &made);
}

ferry_status fy_plan_visit_made(const ferry_plan *plan, uint32_t rank,
                                fy_made_codes_visitor *visitor, void *context, ferry_error *error)
{
    walk w = {.plan = plan, .side = FERRY_SIDE_DESTINATION, .rank = rank};
    if (plan->problem.memory[1] != NULL) {
        return fy_plan_visit_made_boxes(plan, rank, visitor, context, error);
    }
    walk_begin(&w);
    ferry_status status = list_tensors(&w, error);
    for (size_t i = 0; i < w.n_tensors && status == FERRY_OK; i++) {
        const fy_tensor *tensor = &plan->problem.tensors[w.tensors[i]];
        status = tensor->made_scales == 0 || tensor->conversion == NULL
                     ? FERRY_OK
                     : visit_made(&w, tensor, visitor, context);
    }
    walk_end(&w);
    return status;
}
