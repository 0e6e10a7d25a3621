/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "plan/receiver.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* One source cell that the receiver draws from. */
typedef struct cell_source {
    uint32_t cell;
    uint32_t sender; /* of everything; FY_NONE: the line says */
    const fy_line *line;
    uint64_t begin;  /* of the receiver's first unit, on the line */
    uint64_t volume; /* of a unit */
    uint64_t done;   /* elements of the unit at work that are passed already */
} cell_source;

struct fy_incoming {
    uint32_t route;
    uint32_t slot;
    bool is_ready;
    fy_atoms atoms;
    uint32_t *atom_source; /* [atoms] */
    size_t atom_source_capacity;
    cell_source *sources;
    size_t n_sources, source_capacity;
};

void fy_receiver_cleanup(fy_receiver *receiver)
{
    for (size_t i = 0; i < receiver->incoming_capacity; i++) {
        fy_atoms_cleanup(&receiver->incoming[i].atoms);
        fy_free(receiver->incoming[i].atom_source);
        fy_free(receiver->incoming[i].sources);
    }
    fy_free(receiver->incoming);
    fy_free(receiver->routes);
    fy_free(receiver->legs);
    fy_free(receiver->moves);
    fy_atoms_cleanup(&receiver->parcels);
    *receiver = (fy_receiver){0};
}

static bool same_routes(const fy_receiver *receiver, const uint32_t *routes, size_t n)
{
    if (receiver->n_inlets != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (receiver->incoming[i].route != routes[i]) {
            return false;
        }
    }
    return true;
}

static bool has_own_order(const ferry_plan *plan, uint32_t rank)
{
    return plan->problem.rank_order != NULL && plan->problem.rank_order[rank].n > 0;
}

static bool reserve_inlets(fy_receiver *receiver, size_t n)
{
    size_t old = receiver->incoming_capacity;
    if (!FY_RESERVE(receiver->incoming, receiver->incoming_capacity, n)) {
        return false;
    }
    if (receiver->incoming_capacity > old) {
        memset(receiver->incoming + old, 0,
               (receiver->incoming_capacity - old) * sizeof *receiver->incoming);
    }
    return true;
}

static bool gather_routes(fy_receiver *receiver, const ferry_plan *plan, uint32_t rank)
{
    receiver->n_routes = 0;
    for (size_t i = plan->rank_table_begin[rank]; i < plan->rank_table_begin[rank + 1]; i++) {
        uint32_t table = plan->rank_tables[i];
        size_t begin = plan->table_route_begin[table];
        size_t n = plan->table_route_begin[table + 1] - begin;
        if (!FY_RESERVE(receiver->routes, receiver->route_capacity, receiver->n_routes + n)) {
            return false;
        }
        memcpy(receiver->routes + receiver->n_routes, plan->table_routes + begin,
               n * sizeof *receiver->routes);
        receiver->n_routes += n;
    }
    fy_sort(receiver->routes, receiver->n_routes, sizeof *receiver->routes, fy_compare_u32);
    return true;
}

ferry_status fy_receiver_turn(fy_receiver *receiver, const ferry_plan *plan, uint32_t rank,
                              ferry_error *error)
{
    if (!gather_routes(receiver, plan, rank) || !reserve_inlets(receiver, receiver->n_routes)) {
        return fy_fail_no_memory(error, "the routes of a rank");
    }
    size_t n = receiver->n_routes;
    /* Replicas of one cell have the same routes, and so the same list of legs. */
    receiver->legs_known = receiver->legs_known && receiver->plan == plan &&
                           same_routes(receiver, receiver->routes, n) &&
                           !has_own_order(plan, receiver->rank) && !has_own_order(plan, rank);
    receiver->plan = plan;
    receiver->rank = rank;
    receiver->n_inlets = n;
    for (size_t i = 0; i < n; i++) {
        receiver->incoming[i].route = receiver->routes[i];
        receiver->incoming[i].is_ready = false;
    }
    return FERRY_OK;
}

typedef struct ordered_leg {
    uint32_t order;
    uint32_t leg;
} ordered_leg;

static int compare_ordered(const void *a, const void *b)
{
    const ordered_leg *x = a, *y = b;
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    return (x->leg > y->leg) - (x->leg < y->leg);
}

static ferry_status apply_own_order(fy_receiver *receiver, ferry_error *error)
{
    const ferry_plan *plan = receiver->plan;
    ordered_leg *order = fy_alloc(receiver->n_legs, sizeof *order);
    FY_TRY(fy_check_memory(order != NULL, "the order of parameters", error));
    for (size_t i = 0; i < receiver->n_legs; i++) {
        uint32_t leg = receiver->legs[i];
        uint32_t tensor = plan->routes.legs[leg].tensor;
        order[i] = (ordered_leg){.order = fy_problem_order(&plan->problem, receiver->rank, tensor),
                                 .leg = leg};
    }
    fy_sort(order, receiver->n_legs, sizeof *order, compare_ordered);
    for (size_t i = 0; i < receiver->n_legs; i++) {
        receiver->legs[i] = order[i].leg;
    }
    fy_free(order);
    return FERRY_OK;
}

ferry_status fy_receiver_list_legs(fy_receiver *receiver, ferry_error *error)
{
    const fy_routes *routes = &receiver->plan->routes;
    if (receiver->legs_known) {
        return FERRY_OK;
    }
    receiver->n_legs = 0;
    for (size_t i = 0; i < receiver->n_inlets; i++) {
        const fy_route *route = &routes->routes[receiver->incoming[i].route];
        FY_TRY(FY_GROW(receiver->legs, receiver->leg_capacity, receiver->n_legs + route->n_units,
                       "the tensors of a rank", error));
        memcpy(receiver->legs + receiver->n_legs, routes->unit_legs + route->first_unit,
               route->n_units * sizeof *receiver->legs);
        receiver->n_legs += route->n_units;
    }
    fy_sort(receiver->legs, receiver->n_legs, sizeof *receiver->legs, fy_compare_u32);
    receiver->legs_known = true;
    return has_own_order(receiver->plan, receiver->rank) ? apply_own_order(receiver, error)
                                                         : FERRY_OK;
}

static ferry_status open_source(const fy_receiver *receiver, const fy_incoming *incoming,
                                cell_source *t, ferry_error *error)
{
    const ferry_plan *plan = receiver->plan;
    const fy_route *route = &plan->routes.routes[incoming->route];
    const fy_view *view = route->view;
    t->sender = FY_NONE;
    if (plan->policy == FERRY_REPLICA_SEED) {
        t->sender = fy_seed_sender(plan, route, t->cell, incoming->slot);
        return FERRY_OK;
    }
    if (fy_route_may_be_local(&plan->routes, route) &&
        fy_view_has_rank(view, t->cell, receiver->rank)) {
        t->sender = receiver->rank;
        return FERRY_OK;
    }
    t->line = &plan->lines.lines[route->first_line + t->cell];
    if (t->line->n == 0) {
        t->sender = view->rank[view->cell_begin[t->cell]];
        return FERRY_OK;
    }
    fy_span span;
    FY_TRY(fy_span_init(plan, route, t->cell, &span, error));
    t->begin = fy_span_begin(plan, &span, incoming->slot, &t->volume);
    fy_span_cleanup(&span);
    return FERRY_OK;
}

/* The source of a cell, opened at its first atom. */
static ferry_status find_source(const fy_receiver *receiver, fy_incoming *incoming, fy_index *index,
                                uint32_t cell, uint32_t *number_out, ferry_error *error)
{
    fy_index_cursor c = fy_index_first(index, cell);
    while (c.value != FY_INDEX_NONE && incoming->sources[c.value].cell != cell) {
        fy_index_next(index, &c);
    }
    *number_out = c.value;
    if (c.value != FY_INDEX_NONE) {
        return FERRY_OK;
    }
    *number_out = (uint32_t)incoming->n_sources;
    if (!FY_RESERVE(incoming->sources, incoming->source_capacity, incoming->n_sources + 1) ||
        !fy_index_insert(index, cell, *number_out)) {
        return fy_fail_no_memory(error, "the senders of a rank");
    }
    cell_source *t = &incoming->sources[incoming->n_sources++];
    *t = (cell_source){.cell = cell};
    return open_source(receiver, incoming, t, error);
}

static ferry_status prepare(fy_receiver *receiver, fy_incoming *incoming, ferry_error *error)
{
    const fy_routes *routes = &receiver->plan->routes;
    const fy_route *route = &routes->routes[incoming->route];
    const fy_holders *holders = fy_route_dst_holders(routes, route);
    fy_index index = {0};
    incoming->slot = fy_holders_find(holders, receiver->rank);
    incoming->n_sources = 0;
    ferry_status status =
        fy_route_list_atoms(routes, route, holders->cell[incoming->slot], &incoming->atoms, error);
    if (status == FERRY_OK && !FY_RESERVE(incoming->atom_source, incoming->atom_source_capacity,
                                          incoming->atoms.n_items)) {
        status = fy_fail_no_memory(error, "the senders of a rank");
    }
    uint32_t last_cell = 0;
    for (size_t i = 0; i < incoming->atoms.n_items && status == FERRY_OK; i++) {
        uint32_t cell = incoming->atoms.items[i].cell;
        if (i > 0 && cell == last_cell) {
            incoming->atom_source[i] = incoming->atom_source[i - 1];
            continue;
        }
        last_cell = cell;
        status = find_source(receiver, incoming, &index, cell, &incoming->atom_source[i], error);
    }
    fy_index_cleanup(&index);
    incoming->is_ready = status == FERRY_OK;
    return status;
}

static fy_incoming *find_incoming(fy_receiver *receiver, uint32_t route)
{
    FY_BISECT_LAST(size_t, low, 0, receiver->n_inlets, middle,
                   receiver->incoming[middle].route <= route);
    return &receiver->incoming[low];
}

void fy_move_describe(const ferry_plan *plan, uint32_t leg, uint32_t from, uint32_t to,
                      ferry_move *move)
{
    const fy_leg *l = &plan->routes.legs[leg];
    const fy_tensor *tensor = &plan->problem.tensors[l->tensor];
    move->tensor = tensor->name;
    move->source = tensor->n_feeds == 0 ? NULL : plan->problem.tensors[l->source].name;
    move->dtype = tensor->dtype;
    move->from = from;
    move->to = to;
    move->n_dims = tensor->n_dims;
    move->src_parameter = NULL;
    move->dst_parameter = NULL;
}

/* Inside shared blocks the local begin depends on which of the holders sends. */
static uint64_t begin_at_owner(const ferry_plan *plan, const fy_route *route, uint32_t dim,
                               uint64_t global, uint32_t sender)
{
    const fy_layout *layout = &plan->problem.placements[route->src].layout;
    const fy_holders *holders = route->view->holders;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    fy_layout_parts(&plan->problem, layout, holders->cell[fy_holders_find(holders, sender)], parts);
    dim -= route->src_pad; /* a leading one is never shared */
    return fy_split_local(fy_problem_split(&plan->problem, layout, dim), parts[dim], global);
}

void fy_move_place(const ferry_plan *plan, const fy_route *route, const fy_atom *atom,
                   const fy_box *inside, ferry_move *move)
{
    uint64_t volume = 1;
    for (uint32_t d = 0; d < route->n_dims; d++) {
        uint64_t skipped = inside == NULL ? 0 : inside->begin[d];
        uint64_t begin = atom->src_begin[d];
        uint64_t length = inside == NULL ? atom->length[d] : inside->length[d];
        if (begin == FY_LOCAL_BY_OWNER) {
            begin = begin_at_owner(plan, route, d, atom->src_global[d], move->from);
        }
        if (d >= route->src_pad) {
            move->src_begin[d - route->src_pad] = begin + skipped;
            move->src_length[d - route->src_pad] = length;
        }
        if (d >= route->dst_pad) {
            move->dst_begin[d - route->dst_pad] = atom->dst_begin[d] + skipped;
            move->length[d - route->dst_pad] = length;
        }
        volume *= length;
    }
    move->src_n_dims = route->n_dims - route->src_pad;
    move->bytes = fy_bytes(volume, route->element_bits);
}

static ferry_status add_move(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                             const fy_atom *atom, const fy_box *inside, uint32_t sender,
                             ferry_error *error)
{
    FY_TRY(FY_GROW(receiver->moves, receiver->move_capacity, receiver->n_moves + 1,
                   "the moves of a rank", error));
    ferry_move *move = &receiver->moves[receiver->n_moves++];
    fy_move_describe(receiver->plan, leg, sender, receiver->rank, move);
    fy_move_place(receiver->plan, route, atom, inside, move);
    receiver->n_visited++;
    return FERRY_OK;
}

/* A part of an atom, kept until all that its sender sends of the leg is known: see fy_atoms_join.
 */
static ferry_status keep_parcel(fy_receiver *receiver, const fy_route *route, const fy_atom *atom,
                                const fy_box *inside, uint32_t sender, ferry_error *error)
{
    fy_atom parcel = *atom;
    parcel.cell = sender;
    for (uint32_t d = 0; inside != NULL && d < route->n_dims; d++) {
        if (parcel.src_begin[d] != FY_LOCAL_BY_OWNER) {
            parcel.src_begin[d] += inside->begin[d];
        }
        parcel.src_global[d] += inside->begin[d];
        parcel.dst_begin[d] += inside->begin[d];
        parcel.length[d] = inside->length[d];
    }
    return fy_atoms_push(&receiver->parcels, &parcel)
               ? FERRY_OK
               : fy_fail_no_memory(error, "the moves of a rank");
}

static ferry_status emit(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                         const fy_atom *atom, const fy_box *inside, uint32_t sender,
                         ferry_error *error)
{
    return route->merges_by_rank ? keep_parcel(receiver, route, atom, inside, sender, error)
                                 : add_move(receiver, leg, route, atom, inside, sender, error);
}

/* The pieces of an atom in the stretches of the senders that take part in it. */
static ferry_status emit_by_line(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                                 const fy_atom *atom, const cell_source *t, uint64_t at,
                                 ferry_error *error)
{
    const fy_lines *lines = &receiver->plan->lines;
    const uint64_t *ends = lines->end + t->line->first;
    uint64_t begin = at, end = at + atom->volume;
    uint32_t s = fy_line_find(lines, t->line, at);
    if (ends[s] >= end) {
        return emit(receiver, leg, route, atom, NULL, lines->sender[t->line->first + s], error);
    }
    for (; at < end; s++) {
        fy_box boxes[FY_MAX_RANGE_BOXES];
        uint64_t until = fy_min(end, ends[s]);
        size_t n = fy_range_boxes(atom->length, route->n_dims, at - begin, until - begin, boxes);
        for (size_t i = 0; i < n; i++) {
            FY_TRY(emit(receiver, leg, route, atom, &boxes[i], lines->sender[t->line->first + s],
                        error));
        }
        at = until;
    }
    return FERRY_OK;
}

/* What one sender has of several source cells can be one box. */
static ferry_status send_parcels(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                                 ferry_error *error)
{
    fy_atoms *parcels = &receiver->parcels;
    ferry_status status = FERRY_OK;
    fy_atoms_join(parcels, 0, route->n_dims);
    for (size_t i = 0; i < parcels->n_items && status == FERRY_OK; i++) {
        const fy_atom *parcel = &parcels->items[i];
        status = add_move(receiver, leg, route, parcel, NULL, parcel->cell, error);
    }
    return status;
}

static ferry_status make_leg(fy_receiver *receiver, uint32_t leg, ferry_error *error)
{
    const fy_leg *l = &receiver->plan->routes.legs[leg];
    const fy_route *route = &receiver->plan->routes.routes[l->route];
    fy_incoming *incoming = find_incoming(receiver, l->route);
    FY_TRY(incoming->is_ready ? FERRY_OK : prepare(receiver, incoming, error));
    ferry_status status = FERRY_OK;
    receiver->parcels.n_items = 0;
    for (size_t i = 0; i < incoming->n_sources; i++) {
        incoming->sources[i].done = 0;
    }
    for (size_t i = 0; i < incoming->atoms.n_items; i++) {
        const fy_atom *atom = &incoming->atoms.items[i];
        cell_source *t = &incoming->sources[incoming->atom_source[i]];
        if (t->sender != FY_NONE) {
            status = emit(receiver, leg, route, atom, NULL, t->sender, error);
        } else {
            uint64_t at = t->begin + l->unit * t->volume + t->done;
            t->done += atom->volume;
            status = emit_by_line(receiver, leg, route, atom, t, at, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
    }
    return send_parcels(receiver, leg, route, error);
}

static int compare_moves(const void *a, const void *b)
{
    const ferry_move *x = a, *y = b;
    for (uint32_t d = 0; d < x->n_dims; d++) {
        if (x->dst_begin[d] != y->dst_begin[d]) {
            return x->dst_begin[d] < y->dst_begin[d] ? -1 : 1;
        }
    }
    return 0;
}

static bool is_sorted(const fy_receiver *receiver)
{
    for (size_t i = 1; i < receiver->n_moves; i++) {
        if (compare_moves(&receiver->moves[i - 1], &receiver->moves[i]) > 0) {
            return false;
        }
    }
    return true;
}

ferry_status fy_receiver_make_moves(fy_receiver *receiver, size_t first, uint64_t first_task,
                                    size_t *next_out, ferry_error *error)
{
    const fy_leg *legs = receiver->plan->routes.legs;
    uint32_t tensor = legs[receiver->legs[first]].tensor;
    size_t next = first;
    receiver->n_moves = 0;
    for (; next < receiver->n_legs && legs[receiver->legs[next]].tensor == tensor; next++) {
        FY_TRY(make_leg(receiver, receiver->legs[next], error));
    }
    if (!is_sorted(receiver)) {
        fy_sort(receiver->moves, receiver->n_moves, sizeof *receiver->moves, compare_moves);
    }
    for (size_t i = 0; i < receiver->n_moves; i++) {
        receiver->moves[i].task_id = first_task + i;
    }
    *next_out = next;
    return FERRY_OK;
}

ferry_status fy_receiver_count(fy_receiver *receiver, uint32_t leg, uint64_t *count_out,
                               ferry_error *error)
{
    const ferry_plan *plan = receiver->plan;
    const fy_leg *l = &plan->routes.legs[leg];
    const fy_route *route = &plan->routes.routes[l->route];
    const fy_holders *holders = fy_route_dst_holders(&plan->routes, route);
    if (route->merges_by_rank) {
        receiver->n_moves = 0;
        ferry_status status = make_leg(receiver, leg, error);
        *count_out = receiver->n_moves;
        return status;
    }
    uint32_t slot = fy_holders_find(holders, receiver->rank);
    *count_out = fy_route_atom_count(&plan->routes, route, holders->cell[slot]) +
                 fy_lines_extra(&plan->lines, receiver->rank, leg);
    return FERRY_OK;
}
