/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_SLOTS_H
#define FERRY_TESTS_MIXED_SLOTS_H

/*
 * What may come before what, when ranks run as they please. A rank does its steps one after the
 * other and is held up by nothing but its waits, each for a message of one rank and one use: nobody
 * ever chooses. So all executions have the same events, and are the orders that extend one partial
 * order: that of each rank's own steps, a post before the wait for it, and so on through both.
 * One access comes before another in every execution if and only if it does in that order; if not,
 * some execution has them the other way round. Two accesses of one slot by different uses, of which
 * one writes, are in order or they are a fault: to look at all pairs is to look at all executions.
 *
 * A put is nobody's step: between its post and the wait for it, it reads the outbox and writes
 * the inbox whenever it likes.
 */
#include "mixed_schedules.h"

#include <inttypes.h>

typedef struct slot_event {
    uint32_t rank, index;
} slot_event;

typedef struct slot_message {
    bool posted, heard, put;
    slot_event post, wait;
} slot_message;

#define NO_PUT UINT32_MAX

/* A message's place in boxes, its header included, is read or written as a whole. */
typedef struct slot_access {
    uint64_t place; /* owner, edge, which box, message: all but the slot */
    uint64_t use;
    bool writes;
    slot_event event;
    uint32_t put; /* of which message it is the put; NO_PUT: what the event does itself */
} slot_access;

enum { MOST_CALLS = 16 };

typedef struct slot_call {
    const scheduled *w;
    uint64_t n_steps;
    uint64_t uses[FY_MIX_N_EDGES]; /* before it */
} slot_call;

typedef struct slot_cursor {
    uint32_t call, stage, step;
    uint64_t turn;
    uint32_t n_events;
    uint32_t *clocks; /* of each event: how many of every rank's come before it, or are it */
    size_t room;
} slot_cursor;

typedef struct slot_history {
    uint32_t n_ranks, n_calls;
    slot_call calls[MOST_CALLS];
    uint64_t most_uses;
    slot_message *messages; /* by edge, writer, reader and use */
    slot_access *accesses;
    size_t n_accesses, room;
    slot_cursor *cursors;
} slot_history;

static inline void history_begin(slot_history *h, uint32_t n_ranks)
{
    *h = (slot_history){.n_ranks = n_ranks};
}

static inline void history_add(slot_history *h, const scheduled *w, uint64_t n_steps)
{
    assert_true(h->n_calls < MOST_CALLS && w->n_ranks == h->n_ranks);
    slot_call *call = &h->calls[h->n_calls];
    *call = (slot_call){.w = w, .n_steps = n_steps};
    for (int edge = 0; edge < FY_MIX_N_EDGES; edge++) {
        if (h->n_calls > 0) {
            const slot_call *last = call - 1;
            call->uses[edge] =
                last->uses[edge] + last->w->schedules[0].edges[edge].uses * last->n_steps;
        }
        uint64_t end = call->uses[edge] + w->schedules[0].edges[edge].uses * n_steps;
        h->most_uses = end > h->most_uses ? end : h->most_uses;
    }
    h->n_calls++;
}

static inline uint32_t message_index(const slot_history *h, uint32_t edge, uint32_t from,
                                     uint32_t to, uint64_t use)
{
    assert_true(use < h->most_uses);
    return (uint32_t)(((edge * h->n_ranks + from) * h->n_ranks + to) * h->most_uses + use);
}

static inline void note_access(slot_history *h, const slot_access *access)
{
    if (h->n_accesses == h->room) {
        h->room = h->room * 2 + 1024;
        h->accesses = realloc(h->accesses, h->room * sizeof *h->accesses);
        assert_non_null(h->accesses);
    }
    h->accesses[h->n_accesses++] = *access;
}

static inline uint64_t place_key(uint32_t owner, uint32_t edge, bool inbox, uint32_t message)
{
    return (((uint64_t)owner * FY_MIX_N_EDGES + edge) * 2 + inbox) << 32 | message;
}

/* An event of a rank, and what it knows: what the one before knew, and itself. */
static inline slot_event next_event(slot_history *h, uint32_t rank)
{
    slot_cursor *c = &h->cursors[rank];
    size_t need = ((size_t)c->n_events + 1) * h->n_ranks;
    if (need > c->room) {
        c->room = need * 2;
        c->clocks = realloc(c->clocks, c->room * sizeof *c->clocks);
        assert_non_null(c->clocks);
    }
    uint32_t *own = &c->clocks[need - h->n_ranks];
    if (c->n_events > 0) {
        memcpy(own, own - h->n_ranks, h->n_ranks * sizeof *own);
    } else {
        memset(own, 0, h->n_ranks * sizeof *own);
    }
    own[rank] = ++c->n_events;
    return (slot_event){rank, c->n_events - 1};
}

static inline bool comes_before(const slot_history *h, slot_event a, slot_event b)
{
    return h->cursors[b.rank].clocks[(size_t)b.index * h->n_ranks + a.rank] > a.index;
}

/* Where a rank stands: its schedule, and the step that its stage is at. */
typedef struct slot_place {
    const scheduled *w;
    const fy_mix_schedule *s;
    const uint64_t *uses;
    uint64_t step;
} slot_place;

static inline uint64_t slot_use(const slot_place *at, uint32_t edge, uint32_t use)
{
    return at->uses[edge] + at->step * at->s->edges[edge].uses + use;
}

static inline void note_place(slot_history *h, const slot_place *at, const fy_mix_place *p,
                              slot_event event, bool writes)
{
    if (p->kind == FY_MIX_PLACE_IN || p->kind == FY_MIX_PLACE_OUT) {
        return;
    }
    bool inbox = p->kind == FY_MIX_PLACE_INBOX || p->kind == FY_MIX_PLACE_PEER_INBOX;
    bool own = p->kind == FY_MIX_PLACE_INBOX || p->kind == FY_MIX_PLACE_OUTBOX;
    uint32_t owner = own ? event.rank : p->rank;
    note_access(h, &(slot_access){place_key(owner, p->edge, inbox, p->message),
                                  slot_use(at, p->edge, p->use), writes, event, NO_PUT});
}

static inline void note_sum(slot_history *h, const slot_place *at, const fy_mix_sum *sum,
                            uint32_t rank)
{
    slot_event event = next_event(h, rank);
    for (uint32_t i = 0; i < sum->n; i++) {
        note_place(h, at, &at->s->places[sum->first + i], event, false);
    }
    for (uint32_t i = 0; i < sum->n_targets; i++) {
        note_place(h, at, &sum->targets[i], event, true);
    }
}

/* The header is written here; of a put the rest is not. */
static inline void note_post(slot_history *h, const slot_place *at, const fy_program_step *step,
                             uint32_t rank)
{
    slot_event event = next_event(h, rank);
    for (uint32_t i = 0; i < step->n; i++) {
        const fy_mix_link *link = &at->s->links[step->first + i];
        uint64_t use = slot_use(at, link->edge, link->use);
        uint32_t index = message_index(h, link->edge, rank, link->rank, use);
        uint32_t sender = fy_mix_edge_sender(&at->w->topologies[link->rank], link->edge, rank);
        uint64_t outbox =
            place_key(rank, link->edge, false, link->form == FY_MIX_FORM_PUT ? link->message : 0);
        uint64_t inbox = place_key(link->rank, link->edge, true, sender);
        bool put = link->form == FY_MIX_FORM_PUT;
        uint64_t header = link->form == FY_MIX_FORM_STORE ? inbox : outbox;
        check_scheduled(at->w, !h->messages[index].posted);
        h->messages[index] = (slot_message){.posted = true, .put = put, .post = event};
        note_access(h, &(slot_access){header, use, true, event, NO_PUT});
        if (put) {
            note_access(h, &(slot_access){outbox, use, false, event, index});
            note_access(h, &(slot_access){inbox, use, true, event, index});
        }
    }
}

static inline bool note_wait(slot_history *h, const slot_place *at, const fy_program_step *step,
                             uint32_t rank)
{
    for (uint32_t i = 0; i < step->n; i++) {
        const fy_mix_link *link = &at->s->links[step->first + i];
        uint64_t use = slot_use(at, link->edge, link->use);
        if (!h->messages[message_index(h, link->edge, link->rank, rank, use)].posted) {
            return false;
        }
    }
    slot_event event = next_event(h, rank);
    uint32_t *own = &h->cursors[rank].clocks[(size_t)event.index * h->n_ranks];
    for (uint32_t i = 0; i < step->n; i++) {
        const fy_mix_link *link = &at->s->links[step->first + i];
        uint64_t use = slot_use(at, link->edge, link->use);
        slot_message *message = &h->messages[message_index(h, link->edge, link->rank, rank, use)];
        const uint32_t *theirs =
            &h->cursors[link->rank].clocks[(size_t)message->post.index * h->n_ranks];
        for (uint32_t r = 0; r < h->n_ranks; r++) {
            own[r] = theirs[r] > own[r] ? theirs[r] : own[r];
        }
        message->heard = true;
        message->wait = event;
        bool in_outbox = link->form == FY_MIX_FORM_MULTICAST;
        uint64_t header = in_outbox ? place_key(link->rank, link->edge, false, 0)
                                    : place_key(rank, link->edge, true, link->message);
        note_access(h, &(slot_access){header, use, false, event, NO_PUT});
    }
    return true;
}

static inline bool note_stage(slot_history *h, const slot_place *at, uint32_t rank)
{
    slot_cursor *c = &h->cursors[rank];
    for (; c->step < at->s->program.blocks[c->stage].n_steps; c->step++) {
        const fy_program_step *step = step_of_stage(at->s, c->stage, c->step);
        if (step->kind == FY_STEP_SUM) {
            note_sum(h, at, &at->s->sums[step->first], rank);
        } else if (step->kind != FY_STEP_WAIT) {
            note_post(h, at, step, rank);
        } else if (!note_wait(h, at, step, rank)) {
            return false;
        }
    }
    c->step = 0;
    return true;
}

/* One call of a rank, until it must wait; whether it came to the end. */
static inline bool note_call(slot_history *h, uint32_t rank)
{
    slot_cursor *c = &h->cursors[rank];
    const slot_call *call = &h->calls[c->call];
    const fy_mix_schedule *s = &call->w->schedules[rank];
    slot_place at = {call->w, s, call->uses, 0};
    uint64_t turns = call->n_steps + (is_pipelined(s) ? s->program.n_blocks - 1 : 0);
    for (; c->turn < turns; c->turn++, c->stage = 0) {
        for (; c->stage < s->program.n_blocks; c->stage++) {
            if (is_pipelined(s) && c->turn < c->stage) {
                continue;
            }
            at.step = is_pipelined(s) ? c->turn - c->stage : c->turn;
            if (at.step < call->n_steps && !note_stage(h, &at, rank)) {
                return false;
            }
        }
    }
    c->turn = 0;
    return true;
}

static inline void history_run(slot_history *h)
{
    h->messages =
        calloc(FY_MIX_N_EDGES * h->n_ranks * h->n_ranks * h->most_uses + 1, sizeof *h->messages);
    h->cursors = calloc(h->n_ranks, sizeof *h->cursors);
    assert_true(h->messages != NULL && h->cursors != NULL);
    for (bool done = false, moved = true; !done;) {
        check_scheduled(h->calls[0].w, moved);
        done = true, moved = false;
        for (uint32_t rank = 0; rank < h->n_ranks; rank++) {
            slot_cursor *c = &h->cursors[rank];
            uint32_t before = c->n_events, call = c->call;
            while (c->call < h->n_calls && note_call(h, rank)) {
                c->call++;
            }
            moved = moved || c->n_events > before || c->call > call;
            done = done && c->call == h->n_calls;
        }
    }
}

static inline void history_forget(slot_history *h)
{
    for (uint32_t rank = 0; rank < h->n_ranks; rank++) {
        free(h->cursors[rank].clocks);
    }
    free(h->cursors);
    free(h->messages);
    free(h->accesses);
}

/* When an access is over at the latest: its own event, or the wait for the put that it is of. */
static inline bool ends_before(const slot_history *h, const slot_access *a, const slot_access *b)
{
    if (a->put == NO_PUT) {
        return comes_before(h, a->event, b->event);
    }
    return h->messages[a->put].heard && comes_before(h, h->messages[a->put].wait, b->event);
}

static inline int by_place(const void *left, const void *right)
{
    const slot_access *a = left, *b = right;
    if (a->place != b->place) {
        return a->place < b->place ? -1 : 1;
    }
    return a->use < b->use ? -1 : a->use > b->use;
}

/*
 * Whether the order of two accesses of one place matters: a's use is not after b's. Within a use it
 * is for what is written to be read; of what a rank does by itself mixed_symbols.h sees to that.
 */
static inline bool conflict(const slot_access *a, const slot_access *b, uint64_t n_slots)
{
    if (a->use == b->use) {
        bool alone = a->event.rank == b->event.rank && a->put == NO_PUT && b->put == NO_PUT;
        return a->writes && !b->writes && !alone;
    }
    return (a->writes || b->writes) && (b->use - a->use) % n_slots == 0;
}

/* Pairs of accesses that some execution has in the wrong order, with so many slots. */
static inline uint64_t count_faults(slot_history *h, uint64_t n_slots)
{
    uint64_t n = 0;
    if (h->n_accesses > 0) {
        qsort(h->accesses, h->n_accesses, sizeof *h->accesses, by_place);
    }
    for (size_t end, first = 0; first < h->n_accesses; first = end) {
        for (end = first; end < h->n_accesses && h->accesses[end].place == h->accesses[first].place;
             end++) {}
        for (size_t i = first; i < end; i++) {
            for (size_t j = first; j < end; j++) {
                const slot_access *a = &h->accesses[i], *b = &h->accesses[j];
                n += a->use <= b->use && conflict(a, b, n_slots) && !ends_before(h, a, b);
            }
        }
    }
    return n;
}

#endif
