/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "plan/route.h"

#include "base/checked.h"
#include "base/sort.h"
#include "base/subset.h"
#include "plan/flat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void route_cleanup(fy_route *route)
{
    fy_free(route->touch_begin);
    fy_free(route->touches);
    fy_free(route->touch_atoms);
    fy_free(route->atom_index);
    fy_free(route->atom_count);
    fy_free(route->wanted);
}

void fy_routes_cleanup(fy_routes *routes)
{
    for (size_t i = 0; i < routes->n_routes; i++) {
        route_cleanup(&routes->routes[i]);
    }
    for (size_t i = 0; i < routes->n_views; i++) {
        fy_view_destroy(routes->views[i]);
    }
    for (size_t i = 0; i < routes->n_overlaps; i++) {
        fy_overlap_destroy(routes->overlaps[i]);
    }
    fy_split_destroy(routes->one);
    fy_free(routes->routes);
    fy_free(routes->legs);
    fy_free(routes->unit_legs);
    fy_free(routes->views);
    fy_free(routes->overlaps);
    fy_free(routes->overlap_keys);
    fy_free(routes->made);
    fy_index_cleanup(&routes->view_index);
    fy_index_cleanup(&routes->route_index);
    fy_index_cleanup(&routes->overlap_index);
    *routes = (fy_routes){0};
}

/* The overlap of two splits in a region, made at its first use. */
static ferry_status find_overlap(fy_routes *routes, const fy_route *route, uint32_t d,
                                 fy_overlap **overlap_out, ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    const fy_split *src = fy_route_split(routes, route->src, route->src_pad, d);
    const fy_split *dst = fy_route_split(routes, route->dst, route->dst_pad, d);
    bool one_owner = problem->placements[route->src].layout.n_flat != 0;
    uint64_t values[6] = {(uintptr_t)src, /* interned: one object, one address */
                          (uintptr_t)dst,
                          route->src_begin[d],
                          route->dst_begin[d],
                          route->length[d],
                          one_owner && fy_split_is_shared(src)};
    fy_hash128 key = fy_hash128_of(values, sizeof values);
    fy_index_cursor c = fy_index_first(&routes->overlap_index, key.low);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&routes->overlap_index, &c)) {
        if (routes->overlap_keys[c.value].high == key.high) {
            *overlap_out = routes->overlaps[c.value];
            return FERRY_OK;
        }
    }
    size_t n = routes->n_overlaps;
    if (!FY_RESERVE(routes->overlaps, routes->overlap_capacity, n + 1) ||
        !FY_RESERVE(routes->overlap_keys, routes->key_capacity, n + 1)) {
        return fy_fail_no_memory(error, "the overlaps");
    }
    fy_overlap *overlap;
    fy_region region = {.src_begin = route->src_begin[d],
                        .dst_begin = route->dst_begin[d],
                        .length = route->length[d],
                        .one_owner = one_owner};
    FY_TRY(fy_overlap_create(src, dst, &region, &overlap, error));
    routes->overlaps[n] = overlap;
    routes->overlap_keys[n] = key;
    routes->n_overlaps++;
    if (!fy_index_insert(&routes->overlap_index, key.low, (uint32_t)n)) {
        return fy_fail_no_memory(error, "the overlaps");
    }
    *overlap_out = overlap;
    return FERRY_OK;
}

static bool same_route(const fy_route *a, const fy_route *b)
{
    return a->src == b->src && a->dst == b->dst && a->element_bits == b->element_bits &&
           a->block_rows == b->block_rows &&
           memcmp(a->src_begin, b->src_begin, sizeof a->src_begin) == 0 &&
           memcmp(a->dst_begin, b->dst_begin, sizeof a->dst_begin) == 0 &&
           memcmp(a->length, b->length, sizeof a->length) == 0;
}

static uint64_t route_hash(const fy_route *route)
{
    uint64_t hash = fy_hash_mix(route->src, ((uint64_t)route->dst << 32) | route->element_bits);
    hash = route->block_rows == 0 ? hash : fy_hash_mix(hash, route->block_rows);
    for (uint32_t d = 0; d < route->n_dims; d++) {
        hash = fy_hash_mix(hash, route->src_begin[d]);
        hash = fy_hash_mix(hash, route->dst_begin[d]);
        hash = fy_hash_mix(hash, route->length[d]);
    }
    return hash;
}

/* Finds or adds the route; a new one still lacks its geometry, which fill_route adds. */
static ferry_status find_route(fy_routes *routes, const fy_route *wanted, uint32_t *number_out,
                               ferry_error *error)
{
    uint64_t hash = route_hash(wanted);
    fy_index_cursor c = fy_index_first(&routes->route_index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&routes->route_index, &c)) {
        if (same_route(&routes->routes[c.value], wanted)) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    if (!FY_RESERVE(routes->routes, routes->route_capacity, routes->n_routes + 1) ||
        !fy_index_insert(&routes->route_index, hash, (uint32_t)routes->n_routes)) {
        return fy_fail_no_memory(error, "the layout classes");
    }
    *number_out = (uint32_t)routes->n_routes;
    routes->routes[routes->n_routes++] = *wanted;
    return FERRY_OK;
}

static ferry_status add_leg(fy_routes *routes, uint32_t tensor, const fy_feed *feed,
                            ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    const fy_tensor *target = &problem->tensors[tensor];
    uint32_t number = feed == NULL ? tensor : feed->tensor;
    const fy_tensor *source = &problem->tensors[number];
    if (source->src == FY_NONE) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "destination tensor \"%s\" has no source: the source side skips \"%s\"",
                       target->name, source->name);
    }
    fy_route wanted = {.src = source->src,
                       .dst = target->dst,
                       .element_bits = fy_tensor_wire(target).element_bits,
                       .block_rows = fy_tensor_block_rows(target),
                       .n_dims = feed == NULL ? target->n_dims : feed->n_dims};
    wanted.src_pad = wanted.n_dims - source->n_dims;
    wanted.dst_pad = wanted.n_dims - target->n_dims;
    for (uint32_t d = 0; d < wanted.n_dims; d++) {
        wanted.src_begin[d] = feed == NULL ? 0 : feed->begin[d];
        wanted.dst_begin[d] = feed == NULL ? 0 : feed->at[d];
        wanted.length[d] = feed == NULL ? target->shape[d] : feed->shape[d];
    }
    uint32_t route = 0;
    FY_TRY(find_route(routes, &wanted, &route, error));
    FY_TRY(FY_GROW(routes->legs, routes->leg_capacity, routes->n_legs + 1, "the tensors of a plan",
                   error));
    routes->legs[routes->n_legs++] = (fy_leg){.tensor = tensor,
                                              .source = number,
                                              .route = route,
                                              .unit = routes->routes[route].n_units++};
    return FERRY_OK;
}

/* Of what a destination gets. */
static const char *name_at(const void *context, size_t i)
{
    const fy_problem *problem = context;
    const fy_tensor *tensor = &problem->tensors[i];
    bool is_none = tensor->dst == FY_NONE && !tensor->is_made;
    return is_none || tensor->staged != NULL ? NULL : tensor->name;
}

/* Scales that come with codes are wanted where these are. */
static const char *subset_name(const fy_problem *problem, const fy_tensor *tensor)
{
    return tensor->staged == NULL ? tensor->name : problem->tensors[tensor->staged->tensor].name;
}

static ferry_status check_subset(const fy_problem *problem, const char *list, fy_subset *subset,
                                 ferry_error *error)
{
    const fy_subset_pattern *unused =
        fy_subset_find_unused(subset, problem->n_tensors, name_at, problem);
    if (unused == NULL) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "the subset \"%.200s\": no tensor of the destination matches \"%.*s\"", list,
                   unused->length < 200 ? (int)unused->length : 200, unused->text);
}

static bool lacks_some(const fy_tensor *tensor)
{
    return tensor->fragment != NULL && tensor->fragment->missing != NULL;
}

/* Sources in boxes may lack an element: only who wants it minds. */
static ferry_status check_missing(const fy_problem *problem, const fy_tensor *tensor,
                                  ferry_error *error)
{
    char index[24 * FERRY_MAX_DIMS] = "";
    size_t used = 0;
    if (!lacks_some(tensor) || problem->may_lack) {
        return FERRY_OK;
    }
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        used += (size_t)snprintf(index + used, sizeof index - used, d == 0 ? "%llu" : ", %llu",
                                 (unsigned long long)tensor->fragment->missing[d]);
    }
    return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                   "destination tensor \"%s\": rank %u wants its element [%s], which no source "
                   "rank has",
                   tensor->name, fy_problem_holders(problem, tensor->dst)->first_rank, index);
}

static ferry_status add_legs_in(fy_routes *routes, const fy_subset *subset, ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        if (tensor->dst == FY_NONE || tensor->is_made ||
            fy_problem_holders(problem, tensor->dst)->n_slots == 0 ||
            !fy_subset_has(subset, subset_name(problem, tensor))) {
            continue;
        }
        ferry_status status = check_missing(problem, tensor, error);
        if (tensor->n_feeds == 0 && !lacks_some(tensor) && status == FERRY_OK) {
            status = add_leg(routes, t, NULL, error);
        }
        for (uint32_t i = 0; i < tensor->n_feeds && status == FERRY_OK; i++) {
            status = add_leg(routes, t, &tensor->feeds[i], error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return FERRY_OK;
}

/* Receivers make scales of what they get for the codes. */
static ferry_status note_made(fy_routes *routes, const fy_subset *subset, ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    routes->made = fy_alloc_zeroed(problem->n_tensors / 8 + 1u, 1);
    FY_TRY(fy_check_memory(routes->made != NULL, "the tensors of a plan", error));
    for (uint32_t t = 0; t < problem->n_tensors; t++) {
        const fy_tensor *tensor = &problem->tensors[t];
        if (!tensor->is_made || tensor->scales == NULL || !fy_subset_has(subset, tensor->name)) {
            continue;
        }
        const char *values = problem->tensors[tensor->scales->tensor].name;
        if (!fy_subset_has(subset, values)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "\"%s\" has the scales of \"%s\", which receivers make with its codes: "
                           "a subset has both, or leaves the scales out",
                           tensor->name, values);
        }
        routes->made[t / 8] = (unsigned char)(routes->made[t / 8] | 1u << (t % 8));
    }
    return FERRY_OK;
}

/* Receivers make f4 by what they get in the same plan. */
static ferry_status check_given(const fy_routes *routes, const fy_subset *subset,
                                ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    for (size_t i = 0; i < routes->n_legs; i++) {
        uint32_t tensor = routes->legs[i].tensor;
        const char *given = fy_problem_is_made_at_receiver(problem, tensor)
                                ? fy_problem_tensor_scale_name(problem, tensor)
                                : NULL;
        if (given != NULL && !fy_subset_has(subset, given)) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "receivers make nvfp4 of \"%s\" by \"%s\": a subset has both, or "
                           "neither",
                           problem->tensors[tensor].name, given);
        }
    }
    return FERRY_OK;
}

static ferry_status add_legs(fy_routes *routes, const char *list, ferry_error *error)
{
    fy_subset subset;
    ferry_status status = fy_subset_create(list, &subset, error);
    FY_THEN(status, check_subset(routes->problem, list, &subset, error));
    FY_THEN(status, add_legs_in(routes, &subset, error));
    FY_THEN(status, note_made(routes, &subset, error));
    FY_THEN(status, check_given(routes, &subset, error));
    fy_subset_cleanup(&subset);
    return status;
}

/*
 * Senders are chosen route by route and unit by unit, so their order is that of the ranks'
 * parameters, which the digest covers, and not the one in which tensors happened to be listed: by
 * the lowest rank that receives, in its order of tensors.
 */
typedef struct ranked_leg {
    uint32_t rank;
    uint32_t order; /* of the tensor among the rank's */
    uint32_t leg;
} ranked_leg;

static int compare_ranked(const void *a, const void *b)
{
    const ranked_leg *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    return (x->leg > y->leg) - (x->leg < y->leg);
}

/* Numbers routes and units in the order of the legs; sorted[] takes the routes in theirs. */
static void number_routes(fy_routes *routes, const ranked_leg *order, uint32_t *number,
                          fy_route *sorted)
{
    uint32_t n_sorted = 0;
    for (size_t i = 0; i < routes->n_legs; i++) {
        fy_leg *leg = &routes->legs[order[i].leg];
        uint32_t *to = &number[leg->route];
        if (*to == FY_NONE) {
            sorted[n_sorted] = routes->routes[leg->route];
            sorted[n_sorted].n_units = 0;
            *to = n_sorted++;
        }
        leg->route = *to;
        leg->unit = sorted[*to].n_units++;
    }
    memcpy(routes->routes, sorted, n_sorted * sizeof *sorted);
}

static ferry_status sort_routes(fy_routes *routes, ferry_error *error)
{
    ranked_leg *order = fy_alloc(routes->n_legs, sizeof *order);
    uint32_t *number = fy_alloc(routes->n_routes, sizeof *number);
    fy_route *sorted = fy_alloc(routes->n_routes, sizeof *sorted);
    ferry_status status = FERRY_OK;
    if (order == NULL || number == NULL || sorted == NULL) {
        status = fy_fail_no_memory(error, "the layout classes");
        goto out;
    }
    for (size_t i = 0; i < routes->n_legs; i++) {
        const fy_leg *leg = &routes->legs[i];
        uint32_t rank = fy_route_dst_holders(routes, &routes->routes[leg->route])->first_rank;
        order[i] = (ranked_leg){.rank = rank,
                                .order = fy_problem_order(routes->problem, rank, leg->tensor),
                                .leg = (uint32_t)i};
    }
    fy_sort(order, routes->n_legs, sizeof *order, compare_ranked);
    memset(number, 0xff, routes->n_routes * sizeof *number);
    if (routes->n_legs > 0) {
        number_routes(routes, order, number, sorted);
    }
out:
    fy_free(order);
    fy_free(number);
    fy_free(sorted);
    return status;
}

static ferry_status group_units(fy_routes *routes, ferry_error *error)
{
    uint32_t first = 0;
    routes->unit_legs = fy_alloc(routes->n_legs, sizeof *routes->unit_legs);
    FY_TRY(fy_check_memory(routes->unit_legs != NULL, "the tensors of a plan", error));
    for (size_t r = 0; r < routes->n_routes; r++) {
        routes->routes[r].first_unit = first;
        first += routes->routes[r].n_units;
    }
    for (size_t i = 0; i < routes->n_legs; i++) {
        const fy_leg *leg = &routes->legs[i];
        routes->unit_legs[routes->routes[leg->route].first_unit + leg->unit] = (uint32_t)i;
    }
    return FERRY_OK;
}

static const char *route_example(const fy_routes *routes, const fy_route *route)
{
    uint32_t leg = fy_route_leg(routes, route, 0);
    return routes->problem->tensors[routes->legs[leg].tensor].name;
}

/*
 * An irregular route lists its touches. One pass over the boxes of all destination cells notes what
 * each box is; sorted by source cell, the notes are the touches.
 */
typedef struct noted_atom {
    uint64_t volume;
    uint32_t cell;
    uint32_t dst;
    uint32_t index; /* among those of its destination cell */
} noted_atom;

typedef struct notes {
    noted_atom *items;
    size_t n, capacity;
    size_t *cell_begin; /* [n_cells + 2] how many each cell has, then where they begin */
    uint32_t *order;    /* items by cell, then as they came: by destination and index */
} notes;

static void notes_cleanup(notes *n)
{
    fy_free(n->items);
    fy_free(n->cell_begin);
    fy_free(n->order);
}

static ferry_status note_atoms(fy_route *route, uint32_t dst, const fy_atoms *atoms, notes *n,
                               ferry_error *error)
{
    if (n->n + atoms->n_items > UINT32_MAX ||
        !FY_RESERVE(n->items, n->capacity, n->n + atoms->n_items)) {
        return fy_fail_no_memory(error, "the touches of flat shards");
    }
    for (size_t i = 0; i < atoms->n_items; i++) {
        const fy_atom *atom = &atoms->items[i];
        n->items[n->n++] = (noted_atom){
            .volume = atom->volume, .cell = atom->cell, .dst = dst, .index = (uint32_t)i};
        n->cell_begin[atom->cell + 2]++;
        route->wanted[dst] += atom->volume;
    }
    route->atom_count[dst] = (uint32_t)atoms->n_items;
    return FERRY_OK;
}

static ferry_status note_all(fy_routes *routes, fy_route *route, notes *n, ferry_error *error)
{
    fy_atoms atoms = {0};
    uint32_t n_dst = fy_route_dst_holders(routes, route)->n_cells;
    ferry_status status = FERRY_OK;
    for (uint32_t dst = 0; dst < n_dst && status == FERRY_OK; dst++) {
        status = fy_route_list_atoms(routes, route, dst, &atoms, error);
        FY_THEN(status, note_atoms(route, dst, &atoms, n, error));
    }
    routes->flat_steps += atoms.n_steps;
    fy_atoms_cleanup(&atoms);
    return status;
}

/* Placing moves each begin to its end: with an entry more in front, that is the table itself. */
static bool order_notes(const fy_route *route, notes *n)
{
    n->order = fy_alloc(n->n, sizeof *n->order);
    for (uint32_t c = 0; c < route->n_cells; c++) {
        n->cell_begin[c + 2] += n->cell_begin[c + 1];
    }
    for (size_t i = 0; n->order != NULL && i < n->n; i++) {
        n->order[n->cell_begin[n->items[i].cell + 1]++] = (uint32_t)i;
    }
    return n->order != NULL;
}

/* Turns the ordered notes to touches, and the places of their atoms. */
static bool fill_touches(fy_route *route, const notes *n)
{
    size_t n_touches = 0;
    route->touches = fy_alloc(n->n, sizeof *route->touches);
    route->touch_atoms = fy_alloc(n->n + 1, sizeof *route->touch_atoms);
    route->atom_index = fy_alloc(n->n, sizeof *route->atom_index);
    if (route->touches == NULL || route->touch_atoms == NULL || route->atom_index == NULL) {
        return false;
    }
    for (uint32_t c = 0; c < route->n_cells; c++) {
        uint64_t before = 0;
        route->touch_begin[c] = n_touches;
        for (size_t i = n->cell_begin[c]; i < n->cell_begin[c + 1]; i++) {
            const noted_atom *a = &n->items[n->order[i]];
            if (n_touches == route->touch_begin[c] || route->touches[n_touches - 1].dst != a->dst) {
                route->touch_atoms[n_touches] = i;
                route->touches[n_touches++] = (fy_cell_touch){.before = before, .dst = a->dst};
            }
            route->touches[n_touches - 1].volume += a->volume;
            route->atom_index[i] = a->index;
            before += a->volume;
        }
    }
    route->touch_begin[route->n_cells] = n_touches;
    route->touch_atoms[n_touches] = n->n;
    return true;
}

/* Whether no flat part of a shared source has lost its holders. */
static bool has_all_holders(const fy_route *route)
{
    for (uint32_t c = 0; c < route->n_cells; c++) {
        if (fy_view_cell_size(route->view, c) == 0) {
            return false;
        }
    }
    return true;
}

static ferry_status list_irregular(fy_routes *routes, fy_route *route, ferry_error *error)
{
    uint32_t n_dst = fy_route_dst_holders(routes, route)->n_cells;
    notes n = {0};
    n.cell_begin = fy_alloc_zeroed((size_t)route->n_cells + 2, sizeof *n.cell_begin);
    route->touch_begin = fy_alloc_zeroed((size_t)route->n_cells + 1, sizeof *route->touch_begin);
    route->atom_count = fy_alloc_zeroed(n_dst, sizeof *route->atom_count);
    route->wanted = fy_alloc_zeroed(n_dst, sizeof *route->wanted);
    bool complete = n.cell_begin != NULL && route->touch_begin != NULL &&
                    route->atom_count != NULL && route->wanted != NULL;
    ferry_status status = complete ? note_all(routes, route, &n, error) : FERRY_OK;
    complete = complete && status == FERRY_OK && order_notes(route, &n) && fill_touches(route, &n);
    FY_THEN(status, fy_check_memory(complete, "the touches of flat shards", error));
    if (status == FERRY_OK && (!has_all_holders(route) || fy_flat_has_choice(routes, route))) {
        fy_free(route->touch_atoms); /* owners were chosen, so a cell's atoms depend on others */
        route->touch_atoms = NULL;
    }
    notes_cleanup(&n);
    return status;
}

/* The bytes of all units and replicas must be countable. */
static ferry_status add_bytes(fy_routes *routes, const fy_route *route, ferry_error *error)
{
    const fy_holders *holders = fy_route_dst_holders(routes, route);
    uint64_t elements = 0, bits;
    for (uint32_t c = 0; c < holders->n_cells; c++) {
        uint64_t wanted = fy_route_wanted(routes, route, c);
        if (!fy_mul(wanted, fy_holders_cell_size(holders, c), &wanted) ||
            !fy_add(elements, wanted, &elements)) {
            elements = UINT64_MAX;
            break;
        }
    }
    if (!fy_mul(elements, route->n_units, &elements) ||
        !fy_mul(elements, route->element_bits, &bits) ||
        !fy_add(routes->total_bytes, bits / 8, &routes->total_bytes) ||
        routes->total_bytes > INT64_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the plan moves more than 2^63 bits; it got too large at \"%s\"",
                       route_example(routes, route));
    }
    return FERRY_OK;
}

static ferry_status fill_route(fy_routes *routes, fy_route *route, ferry_error *error)
{
    const fy_problem *problem = routes->problem;
    const fy_layout *src = &problem->placements[route->src].layout;
    const fy_layout *dst = &problem->placements[route->dst].layout;
    FY_TRY(fy_routes_find_view(routes, route->src, &route->view, error));
    uint32_t weight = src->n_flat == 0 ? 1 : src->n_flat;
    for (uint32_t d = route->n_dims; d > 0; d--) {
        const fy_split *split = fy_route_split(routes, route->src, route->src_pad, d - 1);
        bool shared = fy_split_is_shared(split) && src->n_flat == 0;
        route->cell_weight[d - 1] = weight;
        route->merges_by_rank = route->merges_by_rank || shared;
        weight *= shared ? split->n_cells : split->n_parts; /* the view has checked the product */
        FY_TRY(find_overlap(routes, route, d - 1, &route->overlap[d - 1], error));
    }
    ferry_status status = FERRY_OK;
    route->n_cells = route->view->n_cells;
    route->is_regular = src->n_flat == 0 && dst->n_flat == 0;
    if (!route->is_regular) {
        ferry_error inner;
        status = list_irregular(routes, route, &inner);
        if (status != FERRY_OK) {
            return fy_fail(error, status, "\"%s\": %s", route_example(routes, route),
                           inner.message);
        }
    }
    return add_bytes(routes, route, error);
}

ferry_status fy_routes_build(const fy_problem *problem, const char *subset, fy_routes *routes,
                             ferry_error *error)
{
    *routes = (fy_routes){.problem = problem};
    ferry_status status = fy_split_whole(1, &routes->one, error);
    FY_THEN(status, add_legs(routes, subset, error));
    FY_THEN(status, sort_routes(routes, error));
    FY_THEN(status, group_units(routes, error));
    for (size_t i = 0; i < routes->n_routes && status == FERRY_OK; i++) {
        status = fill_route(routes, &routes->routes[i], error);
    }
    if (status != FERRY_OK) {
        fy_routes_cleanup(routes);
    }
    return status;
}
