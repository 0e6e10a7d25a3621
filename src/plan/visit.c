/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Visits in order of task ids. What a rank receives starts at its own first task. What it sends is
 * found on the lines that it serves: each stretch names receivers, and the place of a move among
 * the receiver's others follows from counts, without making those others.
 */
#include "plan/receiver.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* A tensor that this rank sends a part of, to one receiver. */
typedef struct pending_send {
    uint32_t to;
    uint32_t leg;
    uint32_t cell;
    uint32_t order; /* of the tensor among the receiver's */
    bool is_whole;  /* everything of the cell: no other sender has a share */
} pending_send;

typedef struct visit {
    const ferry_plan *plan;
    uint32_t rank;
    ferry_move_visitor visitor;
    void *context;
    ferry_visit_statistics statistics;
    fy_receiver receiver;
    pending_send *pending;
    size_t n_pending, pending_capacity;
    fy_cell_touch *touches;
    size_t touch_capacity;
    uint32_t *cells;
    size_t cell_capacity;
    fy_atoms atoms;
    uint64_t *atom_index;
    size_t atom_capacity;
    unsigned char *is_peer; /* a bit per rank */
} visit;

static void visit_cleanup(visit *v)
{
    fy_receiver_cleanup(&v->receiver);
    fy_free(v->pending);
    fy_free(v->touches);
    fy_free(v->cells);
    fy_free(v->atom_index);
    fy_free(v->is_peer);
    fy_atoms_cleanup(&v->atoms);
}

static void note_peer(visit *v, uint32_t rank)
{
    unsigned char bit = (unsigned char)(1u << (rank % 8));
    if (v->is_peer != NULL && rank != v->rank && (v->is_peer[rank / 8] & bit) == 0) {
        v->is_peer[rank / 8] = (unsigned char)(v->is_peer[rank / 8] | bit);
        v->statistics.n_peers++;
    }
}

static ferry_status hand_over(visit *v, const ferry_move *move)
{
    v->statistics.n_moves_visited++;
    return v->visitor(v->context, move);
}

/* All moves to the rank that the receiver is turned to. */
static ferry_status visit_received(visit *v, ferry_error *error)
{
    fy_receiver *receiver = &v->receiver;
    uint64_t task = v->plan->first_task[receiver->rank];
    ferry_status status = fy_receiver_list_legs(receiver, error);
    for (size_t i = 0; i < receiver->n_legs && status == FERRY_OK;) {
        status = fy_receiver_make_moves(receiver, i, task, &i, error);
        for (size_t m = 0; m < receiver->n_moves && status == FERRY_OK; m++) {
            note_peer(v, receiver->moves[m].from);
            status = hand_over(v, &receiver->moves[m]);
        }
        task += receiver->n_moves;
    }
    return status;
}

static ferry_status visit_all(visit *v, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; rank < v->plan->problem.n_ranks && status == FERRY_OK; rank++) {
        if (v->plan->first_task[rank] == v->plan->first_task[rank + 1]) {
            continue;
        }
        status = fy_receiver_turn(&v->receiver, v->plan, rank, error);
        FY_THEN(status, visit_received(v, error));
    }
    v->statistics.n_layout_classes = v->plan->routes.n_routes;
    return status;
}

static ferry_status add_errand(visit *v, const fy_route *route, uint32_t slot, uint64_t unit,
                               uint32_t cell, bool is_whole, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&v->plan->routes, route);
    uint32_t to = dst->rank[slot];
    if (to == v->rank) {
        return FERRY_OK; /* a self move: it is visited as received */
    }
    FY_TRY(
        FY_GROW(v->pending, v->pending_capacity, v->n_pending + 1, "the sends of a rank", error));
    uint32_t leg = fy_route_leg(&v->plan->routes, route, (uint32_t)unit);
    v->pending[v->n_pending++] = (pending_send){
        .to = to,
        .leg = leg,
        .cell = cell,
        .order = fy_problem_order(&v->plan->problem, to, v->plan->routes.legs[leg].tensor),
        .is_whole = is_whole};
    return FERRY_OK;
}

/* Every receiver of a cell that has one holder, or whose sender the seed rule names. */
static ferry_status collect_whole(visit *v, const fy_route *route, uint32_t cell,
                                  ferry_error *error)
{
    const ferry_plan *plan = v->plan;
    const fy_holders *dst = fy_route_dst_holders(&plan->routes, route);
    size_t n = 0;
    ferry_status status = fy_route_list_touches(&plan->routes, route, cell, &v->touches,
                                                &v->touch_capacity, &n, error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        uint32_t s = dst->cell_begin[v->touches[i].dst];
        for (; s < dst->cell_begin[v->touches[i].dst + 1] && status == FERRY_OK; s++) {
            bool mine = plan->policy == FERRY_REPLICA_BALANCED ||
                        fy_seed_sender(plan, route, cell, s) == v->rank;
            for (uint32_t u = 0; mine && u < route->n_units && status == FERRY_OK; u++) {
                status = add_errand(v, route, s, u, cell, true, error);
            }
        }
    }
    return status;
}

/* Units in a stretch of a line, but not those of receivers that hold the cell themselves. */
static ferry_status collect_stretch(visit *v, const fy_route *route, const fy_span *span,
                                    uint64_t begin, uint64_t end, ferry_error *error)
{
    const fy_holders *dst = fy_route_dst_holders(&v->plan->routes, route);
    bool local = fy_route_may_be_local(&v->plan->routes, route);
    uint64_t from = begin;
    ferry_status status = FERRY_OK;
    while (begin < end && status == FERRY_OK) {
        fy_unit_place place = fy_span_locate(v->plan, span, begin);
        bool own = local && fy_view_has_rank(route->view, span->cell, dst->rank[place.slot]);
        /* All further units of this receiver follow without another look-up. */
        for (; place.unit < span->n_units && place.begin < end && status == FERRY_OK;
             place.unit++) {
            bool is_whole = place.begin >= from && place.begin + place.volume <= end;
            if (!own) {
                status = add_errand(v, route, place.slot, place.unit, span->cell, is_whole, error);
            }
            place.begin += place.volume;
        }
        begin = place.begin;
    }
    return status;
}

static ferry_status collect_line(visit *v, const fy_route *route, uint32_t cell,
                                 const fy_line *line, ferry_error *error)
{
    const fy_lines *lines = &v->plan->lines;
    fy_span span;
    FY_TRY(fy_span_init(v->plan, route, cell, &span, error));
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < line->n && status == FERRY_OK; i++) {
        if (lines->sender[line->first + i] == v->rank) {
            uint64_t begin = i == 0 ? 0 : lines->end[line->first + i - 1];
            status = collect_stretch(v, route, &span, begin, lines->end[line->first + i], error);
        }
    }
    fy_span_cleanup(&span);
    return status;
}

static ferry_status collect_route(visit *v, const fy_route *route, ferry_error *error)
{
    size_t n_cells = 0;
    ferry_status status = fy_route_cells_of_rank(&v->plan->routes, route, v->rank, &v->cells,
                                                 &v->cell_capacity, &n_cells, error);
    const fy_holders *dst = fy_route_dst_holders(&v->plan->routes, route);
    v->statistics.n_layout_classes += n_cells > 0 || fy_holders_find(dst, v->rank) != FY_NO_SLOT;
    for (size_t i = 0; i < n_cells && status == FERRY_OK; i++) {
        uint32_t cell = v->cells[i];
        if (v->plan->policy == FERRY_REPLICA_SEED) {
            status = collect_whole(v, route, cell, error);
            continue;
        }
        const fy_line *line = &v->plan->lines.lines[route->first_line + cell];
        status = line->n == 0 ? collect_whole(v, route, cell, error)
                              : collect_line(v, route, cell, line, error);
    }
    return status;
}

static int compare_pending(const void *a, const void *b)
{
    const pending_send *x = a, *y = b;
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    if (x->leg != y->leg) {
        return x->leg < y->leg ? -1 : 1;
    }
    return (x->cell > y->cell) - (x->cell < y->cell);
}

/* Whether the moves of this leg can be numbered without making all of them. */
static bool is_countable(const visit *v, size_t first, size_t next, const pending_send *e)
{
    const fy_leg *leg = &v->plan->routes.legs[e->leg];
    const fy_route *route = &v->plan->routes.routes[leg->route];
    return e->is_whole && next - first == 1 && fy_route_is_listed_by_cell(route) &&
           !route->merges_by_rank && fy_lines_extra(&v->plan->lines, e->to, e->leg) == 0;
}

static ferry_status send_counted(visit *v, const pending_send *e, uint64_t first_task,
                                 ferry_error *error)
{
    const fy_leg *leg = &v->plan->routes.legs[e->leg];
    const fy_route *route = &v->plan->routes.routes[leg->route];
    const fy_holders *dst = fy_route_dst_holders(&v->plan->routes, route);
    uint32_t cell = dst->cell[fy_holders_find(dst, e->to)];
    FY_TRY(fy_route_list_cell_atoms(&v->plan->routes, route, e->cell, cell, &v->atoms,
                                    &v->atom_index, &v->atom_capacity, error));
    for (size_t i = 0; i < v->atoms.n_items; i++) {
        ferry_move move;
        fy_move_describe(v->plan, e->leg, v->rank, e->to, &move);
        fy_move_place(v->plan, route, &v->atoms.items[i], NULL, &move);
        fy_move_finish(v->plan, e->leg, &move);
        move.task_id = first_task + v->atom_index[i];
        FY_TRY(hand_over(v, &move));
    }
    return FERRY_OK;
}

static ferry_status send_made(visit *v, size_t first, uint64_t first_task, ferry_error *error)
{
    size_t next;
    uint64_t before = v->receiver.n_visited;
    ferry_status status = fy_receiver_make_moves(&v->receiver, first, first_task, &next, error);
    for (size_t i = 0; i < v->receiver.n_moves && status == FERRY_OK; i++) {
        if (v->receiver.moves[i].from == v->rank) {
            before++; /* hand_over counts it */
            status = hand_over(v, &v->receiver.moves[i]);
        }
    }
    v->statistics.n_moves_visited += v->receiver.n_visited - before;
    return status;
}

/* The pending sends of one tensor, which has the legs first .. next - 1 of the receiver. */
static ferry_status send_tensor(visit *v, size_t first, size_t next, uint64_t first_task,
                                size_t *next_inout, ferry_error *error)
{
    const fy_leg *legs = v->plan->routes.legs;
    uint32_t last = v->receiver.legs[next - 1];
    bool made = false;
    ferry_status status = FERRY_OK;
    for (; *next_inout < v->n_pending && status == FERRY_OK; (*next_inout)++) {
        const pending_send *e = &v->pending[*next_inout];
        if (e->to != v->receiver.rank || legs[e->leg].tensor != legs[last].tensor) {
            break;
        }
        if (is_countable(v, first, next, e)) {
            status = send_counted(v, e, first_task, error);
            continue;
        }
        if (!made) {
            status = send_made(v, first, first_task, error);
            made = true;
        }
    }
    return status;
}

static ferry_status count_tensor(visit *v, size_t first, size_t *next_out, uint64_t *count_out,
                                 ferry_error *error)
{
    const fy_leg *legs = v->plan->routes.legs;
    uint32_t tensor = legs[v->receiver.legs[first]].tensor;
    size_t next = first;
    *count_out = 0;
    for (; next < v->receiver.n_legs && legs[v->receiver.legs[next]].tensor == tensor; next++) {
        uint64_t count = 0;
        FY_TRY(fy_receiver_count(&v->receiver, v->receiver.legs[next], &count, error));
        *count_out += count;
    }
    *next_out = next;
    return FERRY_OK;
}

static int compare_legs(const void *a, const void *b)
{
    const pending_send *x = a, *y = b;
    return (x->leg > y->leg) - (x->leg < y->leg);
}

/* Whether legs of the receiver are among those that this rank sends of; sorted by leg. */
static bool is_pending(const visit *v, size_t first, size_t next, const pending_send *sends,
                       size_t n_sends)
{
    for (size_t i = first; i < next; i++) {
        uint32_t leg = v->receiver.legs[i];
        FY_BISECT(size_t, low, 0, n_sends, middle, sends[middle].leg < leg);
        if (low < n_sends && sends[low].leg == leg) {
            return true;
        }
    }
    return false;
}

/* With boxes, moves are numbered by bundles: those are made that this rank sends something of. */
static ferry_status send_bundles(visit *v, size_t *next_inout, ferry_error *error)
{
    pending_send *sends = &v->pending[*next_inout];
    uint32_t to = sends->to;
    size_t n_sends = 0;
    while (*next_inout + n_sends < v->n_pending && sends[n_sends].to == to) {
        n_sends++;
    }
    fy_sort(sends, n_sends, sizeof *sends, compare_legs);
    ferry_status status = fy_receiver_turn(&v->receiver, v->plan, to, error);
    FY_THEN(status, fy_receiver_list_legs(&v->receiver, error));
    uint64_t task = v->plan->first_task[to];
    note_peer(v, to);
    for (size_t i = 0; i < v->receiver.n_legs && status == FERRY_OK;) {
        size_t next = fy_receiver_next(&v->receiver, i);
        uint64_t count = 0;
        if (is_pending(v, i, next, sends, n_sends)) {
            status = send_made(v, i, task, error);
            count = v->receiver.n_moves;
        } else {
            status = fy_receiver_count_range(&v->receiver, i, next, &count, error);
        }
        task += count;
        i = next;
    }
    *next_inout += n_sends;
    return status;
}

/* Walks the tensors of one receiver as far as pending sends go. */
static ferry_status send_to(visit *v, size_t *next_inout, ferry_error *error)
{
    uint32_t to = v->pending[*next_inout].to;
    ferry_status status = fy_receiver_turn(&v->receiver, v->plan, to, error);
    FY_THEN(status, fy_receiver_list_legs(&v->receiver, error));
    uint64_t task = v->plan->first_task[to];
    note_peer(v, to);
    for (size_t i = 0; i < v->receiver.n_legs && status == FERRY_OK;) {
        size_t next = i;
        uint64_t count = 0;
        status = count_tensor(v, i, &next, &count, error);
        FY_THEN(status, send_tensor(v, i, next, task, next_inout, error));
        if (*next_inout == v->n_pending || v->pending[*next_inout].to != to) {
            break;
        }
        task += count;
        i = next;
    }
    return status;
}

static ferry_status receive_own(visit *v, ferry_error *error)
{
    FY_TRY(fy_receiver_turn(&v->receiver, v->plan, v->rank, error));
    return visit_received(v, error);
}

static ferry_status visit_rank(visit *v, ferry_error *error)
{
    bool received = false;
    for (size_t r = 0; r < v->plan->routes.n_routes; r++) {
        FY_TRY(collect_route(v, &v->plan->routes.routes[r], error));
    }
    ferry_status status = FERRY_OK;
    fy_sort(v->pending, v->n_pending, sizeof *v->pending, compare_pending);
    for (size_t i = 0; i < v->n_pending && status == FERRY_OK;) {
        if (!received && v->pending[i].to > v->rank) {
            received = true;
            status = receive_own(v, error);
        }
        FY_THEN(status,
                fy_plan_has_boxes(v->plan) ? send_bundles(v, &i, error) : send_to(v, &i, error));
    }
    if (!received && status == FERRY_OK) {
        status = receive_own(v, error);
    }
    return status;
}

ferry_status ferry_plan_visit(const ferry_plan *plan, uint32_t rank, ferry_move_visitor visitor,
                              void *context, ferry_visit_statistics *statistics_out,
                              ferry_error *error)
{
    FY_TRY(fy_check_use(plan != NULL && visitor != NULL,
                        "ferry_plan_visit needs a plan and a visitor", error));
    if (statistics_out != NULL &&
        fy_check_out(statistics_out, "ferry_visit_statistics", error) != FERRY_OK) {
        return FERRY_ERR_MISUSE;
    }
    if (rank != FERRY_ALL_RANKS && rank >= plan->problem.n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u is not in the world of %u ranks", rank,
                       plan->problem.n_ranks);
    }
    visit v = {.plan = plan, .rank = rank, .visitor = visitor, .context = context};
    ferry_status status = FERRY_OK;
    fy_before_callback(error);
    if (rank == FERRY_ALL_RANKS) {
        status = visit_all(&v, error);
    } else {
        v.is_peer = fy_alloc_zeroed(plan->problem.n_ranks / 8 + 1, 1);
        status = v.is_peer == NULL ? fy_fail_no_memory(error, "the peers of a rank")
                                   : visit_rank(&v, error);
    }
    if (statistics_out != NULL && status == FERRY_OK) {
        status = fy_copy_out(&v.statistics, sizeof v.statistics, statistics_out,
                             "ferry_visit_statistics", error);
    }
    visit_cleanup(&v);
    return fy_after_callback(status, "visitor", error);
}
