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
    fy_free(receiver->bundles);
    fy_cutter_cleanup(&receiver->cutter);
    fy_free(receiver->notes);
    fy_free(receiver->patches);
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

/* Whether two ranks list the same legs in the same order, given that they have the same routes. */
static bool lists_alike(const ferry_plan *plan, uint32_t a, uint32_t b)
{
    const fy_memory *memory = plan->problem.memory[1];
    return memory == NULL ? !has_own_order(plan, a) && !has_own_order(plan, b)
                          : fy_memory_is_alike(memory, a, b);
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
                           lists_alike(plan, receiver->rank, rank);
    if (receiver->plan != plan) {
        fy_cutter_forget(&receiver->cutter);
    }
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

/* The parameters of the receiver that a leg's tensor lies in, from the first to the last. */
typedef struct bundled_leg {
    uint32_t first;
    uint32_t last;
    uint32_t leg;
} bundled_leg;

static int compare_bundled(const void *a, const void *b)
{
    const bundled_leg *x = a, *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return (x->leg > y->leg) - (x->leg < y->leg);
}

static bundled_leg find_bundle(const fy_receiver *receiver, uint32_t leg)
{
    const ferry_plan *plan = receiver->plan;
    const fy_memory *memory = plan->problem.memory[1];
    const fy_memory_tensor *held =
        &memory->tensors[fy_problem_variant(&plan->problem, plan->routes.legs[leg].tensor)];
    const fy_spots *spots = &memory->spots[held->spots];
    uint32_t kind = fy_spots_kind(spots, receiver->rank);
    bundled_leg bundled = {.first = UINT32_MAX, .leg = leg};
    for (uint32_t i = spots->kind_begin[kind]; i < spots->kind_begin[kind + 1]; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + spots->kind_lists[i]];
        const fy_memory_box *boxes = memory->boxes + stock->first_box;
        uint32_t last = boxes[stock->n_boxes - 1].parameter;
        bundled.first = boxes->parameter < bundled.first ? boxes->parameter : bundled.first;
        bundled.last = last > bundled.last ? last : bundled.last;
    }
    return bundled;
}

/* Moves are numbered by parameter: legs in the order of these, with bundles that share none. */
static ferry_status bundle_legs(fy_receiver *receiver, ferry_error *error)
{
    size_t n = receiver->n_legs;
    bundled_leg *bundled = fy_alloc(n, sizeof *bundled);
    if (bundled == NULL || !FY_RESERVE(receiver->bundles, receiver->bundle_capacity, n)) {
        fy_free(bundled);
        return fy_fail_no_memory(error, "the tensors of a rank");
    }
    for (size_t i = 0; i < n; i++) {
        bundled[i] = find_bundle(receiver, receiver->legs[i]);
    }
    fy_sort(bundled, n, sizeof *bundled, compare_bundled);
    uint32_t number = 0, last = 0;
    for (size_t i = 0; i < n; i++) {
        number += i > 0 && bundled[i].first > last;
        last = bundled[i].last > last ? bundled[i].last : last;
        receiver->legs[i] = bundled[i].leg;
        receiver->bundles[i] = number;
    }
    fy_free(bundled);
    return FERRY_OK;
}

size_t fy_receiver_next(const fy_receiver *receiver, size_t first)
{
    const fy_leg *legs = receiver->plan->routes.legs;
    bool bundled = receiver->plan->problem.memory[1] != NULL;
    size_t next = first + 1;
    while (next < receiver->n_legs &&
           (bundled ? receiver->bundles[next] == receiver->bundles[first]
                    : legs[receiver->legs[next]].tensor == legs[receiver->legs[first]].tensor)) {
        next++;
    }
    return next;
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
    if (receiver->plan->problem.memory[1] != NULL) {
        return bundle_legs(receiver, error);
    }
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
    bool is_fed = fy_problem_whole(&plan->problem, l->tensor)->n_feeds > 0;
    move->tensor = tensor->name;
    move->source = is_fed ? plan->problem.tensors[l->source].name : NULL;
    if (tensor->scales != NULL) {
        move->source = plan->problem.tensors[tensor->scales->tensor].name;
    }
    move->dtype = fy_tensor_wire(tensor);
    move->src_dtype = tensor->conversion == NULL ? tensor->dtype : tensor->conversion->from;
    move->dst_dtype = fy_tensor_wanted(tensor);
    move->conversion = tensor->conversion == NULL ? NULL : &tensor->conversion->is;
    move->tensor_scale = fy_problem_tensor_scale_name(&plan->problem, l->tensor);
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

/* Up to here the sender's box of scales counts blocks; what it reads of them are values. */
void fy_move_finish(const ferry_plan *plan, uint32_t leg, ferry_move *move)
{
    const fy_problem *problem = &plan->problem;
    const fy_tensor *tensor = &problem->tensors[plan->routes.legs[leg].tensor];
    const fy_scales *scales = fy_problem_whole(problem, plan->routes.legs[leg].tensor)->scales;
    if (scales == NULL || tensor->conversion == NULL) {
        return;
    }
    uint32_t placement = problem->tensors[scales->tensor].src;
    const fy_layout *layout = &problem->placements[placement].layout;
    const fy_holders *holders = fy_problem_holders(problem, placement);
    uint32_t parts[FERRY_MAX_DIMS + 1], n = move->src_n_dims;
    uint64_t shape[FERRY_MAX_DIMS];
    fy_layout_parts(problem, layout, holders->cell[fy_holders_find(holders, move->from)], parts);
    (void)fy_layout_shard(problem, layout, parts, shape);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t d = n - 2 + i;
        uint64_t block = scales->blocks.block[i];
        move->src_begin[d] *= block;
        move->src_length[d] = fy_min(move->src_length[d] * block, shape[d] - move->src_begin[d]);
    }
}

/* A part of an atom that is one box of memory on both ends. */
static ferry_status add_piece(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                              const fy_atom *atom, const fy_cut_piece *piece, uint32_t sender,
                              ferry_error *error)
{
    const ferry_plan *plan = receiver->plan;
    size_t n = receiver->n_moves;
    if (!FY_RESERVE(receiver->moves, receiver->move_capacity, n + 1) ||
        !FY_RESERVE(receiver->notes, receiver->note_capacity, n + 1) ||
        !FY_RESERVE(receiver->patches, receiver->patch_capacity, receiver->n_patches + 1)) {
        return fy_fail_no_memory(error, "the moves of a rank");
    }
    ferry_move *move = &receiver->moves[receiver->n_moves++];
    fy_move_note *note = &receiver->notes[n];
    *note = (fy_move_note){.leg = leg, .is_cut = fy_leg_is_cut(plan, leg)};
    fy_move_describe(plan, leg, sender, receiver->rank, move);
    fy_move_place(plan, route, atom, &piece->box, move);
    fy_cut_place(plan, leg, atom, piece, move);
    if (piece->memory[1] != NULL) {
        note->parameter = piece->memory[1]->parameter;
    }
    if (note->is_cut) {
        fy_patch *patch = &receiver->patches[receiver->n_patches++];
        fy_cut_patch(plan, leg, atom, piece, move, patch);
        patch->data = (uint32_t)n;
    }
    receiver->n_visited++;
    return FERRY_OK;
}

static ferry_status add_pieces(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                               const fy_atom *atom, const fy_box *inside, uint32_t sender,
                               ferry_error *error)
{
    fy_cutter *cutter = &receiver->cutter;
    ferry_status status =
        fy_cutter_cut(cutter, receiver->plan, leg, atom, inside, sender, receiver->rank, error);
    for (size_t i = 0; i < cutter->n_pieces && status == FERRY_OK; i++) {
        status = add_piece(receiver, leg, route, atom, &cutter->pieces[i], sender, error);
    }
    return status;
}

static ferry_status add_move(fy_receiver *receiver, uint32_t leg, const fy_route *route,
                             const fy_atom *atom, const fy_box *inside, uint32_t sender,
                             ferry_error *error)
{
    if (fy_plan_has_boxes(receiver->plan)) {
        return add_pieces(receiver, leg, route, atom, inside, sender, error);
    }
    FY_TRY(FY_GROW(receiver->moves, receiver->move_capacity, receiver->n_moves + 1,
                   "the moves of a rank", error));
    ferry_move *move = &receiver->moves[receiver->n_moves++];
    fy_move_describe(receiver->plan, leg, sender, receiver->rank, move);
    fy_move_place(receiver->plan, route, atom, inside, move);
    fy_move_finish(receiver->plan, leg, move);
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

/* What joining has made of a move. */
static void lengthen(ferry_move *move, const fy_patch *patch)
{
    uint64_t volume = 1;
    for (uint32_t d = 0; d < move->n_dims; d++) {
        uint32_t s = d + move->src_n_dims - move->n_dims; /* read only where the source has it */
        bool has = d + move->src_n_dims >= move->n_dims;
        volume *= patch->box.length[d];
        if (patch->box.length[d] == move->length[d]) {
            continue;
        }
        move->length[d] = patch->box.length[d];
        move->dst_strides[d] = patch->stride[1][d];
        if (has) {
            move->src_length[s] = patch->box.length[d];
            move->src_strides[s] = patch->stride[0][d];
        }
    }
    move->bytes = fy_bytes(volume, move->dtype.element_bits);
}

/* Of what boxes and senders have cut, whatever is one box on both ends becomes one move. */
static ferry_status join_moves(fy_receiver *receiver, ferry_error *error)
{
    uint32_t n_dims = 0;
    size_t kept = 0;
    if (receiver->n_patches < 2) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < receiver->n_patches; i++) {
        const ferry_move *move = &receiver->moves[receiver->patches[i].data];
        receiver->notes[receiver->patches[i].data].is_gone = true;
        n_dims = move->n_dims > n_dims ? move->n_dims : n_dims;
    }
    FY_TRY(fy_patches_join(receiver->patches, &receiver->n_patches, n_dims, 2, error));
    for (size_t i = 0; i < receiver->n_patches; i++) {
        uint32_t number = receiver->patches[i].data;
        receiver->notes[number].is_gone = false;
        lengthen(&receiver->moves[number], &receiver->patches[i]);
    }
    for (size_t i = 0; i < receiver->n_moves; i++) {
        if (!receiver->notes[i].is_gone) {
            receiver->moves[kept] = receiver->moves[i];
            receiver->notes[kept++] = receiver->notes[i];
        }
    }
    receiver->n_moves = kept;
    return FERRY_OK;
}

static ferry_status check_bytes(const fy_receiver *receiver, ferry_error *error)
{
    for (size_t i = 0; i < receiver->n_moves; i++) {
        const ferry_move *move = &receiver->moves[i];
        uint32_t bits = move->dtype.element_bits;
        fy_patch ends;
        if (bits % 8 == 0) {
            continue;
        }
        fy_cut_ends(receiver->plan, receiver->notes[i].leg, move, &ends);
        if (!fy_patch_has_whole_bytes(&ends, move->n_dims, 8 / bits)) {
            return fy_fail(
                error, FERRY_ERR_INVALID_PLAN,
                "\"%s\" has elements of %u bits, and a box of it from rank %u to rank %u "
                "does not start and end on bytes, or has them in another order; cut it "
                "at even places",
                move->tensor, bits, move->from, move->to);
        }
    }
    return FERRY_OK;
}

typedef struct placed_move {
    uint64_t offset;
    uint32_t parameter;
    uint32_t number;
} placed_move;

static int compare_placed(const void *a, const void *b)
{
    const placed_move *x = a, *y = b;
    if (x->parameter != y->parameter) {
        return x->parameter < y->parameter ? -1 : 1;
    }
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

/* By the receiver's parameters, and where moves begin there: no two begin at the same place. */
static ferry_status sort_by_place(fy_receiver *receiver, ferry_error *error)
{
    size_t n = receiver->n_moves;
    placed_move *order = fy_alloc(n, sizeof *order);
    ferry_move *sorted = fy_alloc(n, sizeof *sorted);
    if (order == NULL || sorted == NULL) {
        fy_free(order);
        fy_free(sorted);
        return fy_fail_no_memory(error, "the moves of a rank");
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = (placed_move){.parameter = receiver->notes[i].parameter,
                                 .offset = receiver->moves[i].dst_offset,
                                 .number = (uint32_t)i};
    }
    fy_sort(order, n, sizeof *order, compare_placed);
    for (size_t i = 0; i < n; i++) {
        sorted[i] = receiver->moves[order[i].number];
    }
    if (n > 0) {
        memcpy(receiver->moves, sorted, n * sizeof *sorted);
    }
    fy_free(order);
    fy_free(sorted);
    return FERRY_OK;
}

static ferry_status sort_moves(fy_receiver *receiver, ferry_error *error)
{
    if (receiver->plan->problem.memory[1] != NULL) {
        return receiver->n_moves > 1 ? sort_by_place(receiver, error) : FERRY_OK;
    }
    if (!is_sorted(receiver)) {
        fy_sort(receiver->moves, receiver->n_moves, sizeof *receiver->moves, compare_moves);
    }
    return FERRY_OK;
}

ferry_status fy_receiver_make_moves(fy_receiver *receiver, size_t first, uint64_t first_task,
                                    size_t *next_out, ferry_error *error)
{
    size_t next = fy_receiver_next(receiver, first);
    receiver->n_moves = 0;
    receiver->n_patches = 0;
    for (size_t i = first; i < next; i++) {
        FY_TRY(make_leg(receiver, receiver->legs[i], error));
    }
    FY_TRY(join_moves(receiver, error));
    FY_TRY(receiver->checks_bytes ? check_bytes(receiver, error) : FERRY_OK);
    for (size_t i = 0; fy_plan_has_boxes(receiver->plan) && i < receiver->n_moves; i++) {
        fy_move_finish(receiver->plan, receiver->notes[i].leg, &receiver->moves[i]);
    }
    FY_TRY(sort_moves(receiver, error));
    for (size_t i = 0; i < receiver->n_moves; i++) {
        receiver->moves[i].task_id = first_task + i;
    }
    *next_out = next;
    return FERRY_OK;
}

ferry_status fy_receiver_count_cut(fy_receiver *receiver, size_t first, size_t next,
                                   uint64_t *count_out, ferry_error *error)
{
    receiver->n_moves = 0;
    receiver->n_patches = 0;
    for (size_t i = first; i < next; i++) {
        if (fy_leg_is_cut(receiver->plan, receiver->legs[i])) {
            FY_TRY(make_leg(receiver, receiver->legs[i], error));
        }
    }
    FY_TRY(join_moves(receiver, error));
    *count_out = receiver->n_moves;
    return FERRY_OK;
}

ferry_status fy_receiver_count_range(fy_receiver *receiver, size_t first, size_t next,
                                     uint64_t *count_out, ferry_error *error)
{
    uint64_t total = 0, count = 0;
    bool any_cut = false;
    for (size_t i = first; i < next; i++) {
        if (fy_leg_is_cut(receiver->plan, receiver->legs[i])) {
            any_cut = true;
            continue;
        }
        FY_TRY(fy_receiver_count(receiver, receiver->legs[i], &count, error));
        total += count;
    }
    if (any_cut) {
        FY_TRY(fy_receiver_count_cut(receiver, first, next, &count, error));
        total += count;
    }
    *count_out = total;
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
        receiver->n_patches = 0;
        ferry_status status = make_leg(receiver, leg, error);
        *count_out = receiver->n_moves;
        return status;
    }
    uint32_t slot = fy_holders_find(holders, receiver->rank);
    *count_out = fy_route_atom_count(&plan->routes, route, holders->cell[slot]) +
                 fy_lines_extra(&plan->lines, receiver->rank, leg);
    return FERRY_OK;
}
