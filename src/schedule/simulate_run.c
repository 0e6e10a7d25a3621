/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop. Whatever happens is the end of something: of packing, of latency, of a batch on
 * the wire, of unpacking. An end makes ranks restless; once everything of one moment has ended,
 * each restless rank starts whatever may start.
 */
#include "schedule/simulate.h"

#include "schedule/simulate_flows.h"
#include "schedule/simulate_timers.h"

#include "base/alloc.h"

#define NO_BATCH UINT64_MAX
#define NO_RANK UINT32_MAX

/* Flows through shared ports that end within this share of the time passed end at one moment. */
#define SAME_MOMENT 0x1p-46

enum wire_state { WIRE_FREE, WIRE_LATENCY, WIRE_FLOWS, WIRE_LASTS };

/* Positions are in the schedule's sends or recvs; everything before one has been done or begun. */
typedef struct rank_state {
    uint64_t next_pack;
    uint64_t next_send;
    uint64_t next_recv;
    uint64_t next_unpack;
    uint64_t n_arrived;  /* position after the last batch that came off the wire */
    uint64_t wait;       /* position in waits; of the batch that waits_for */
    uint64_t waits_for;  /* the batch whose waits are being looked through */
    uint64_t slot_bytes; /* now */
    uint32_t send_slots; /* taken */
    uint32_t recv_slots;
    uint32_t next_waiter; /* who waits for the same batch */
    uint8_t wire;         /* of the batch that it sends: a wire_state */
    bool is_receiving;
    bool is_packing;
    bool is_unpacking;
    bool is_restless;
    double busy_since;
} rank_state;

typedef struct run {
    ferry_simulation *simulation;
    const ferry_schedule *schedule;
    bool packs; /* packing takes time */
    double now;
    double last_end;
    uint64_t n_placed;
    rank_state *ranks;
    uint32_t *restless;
    uint32_t n_restless;
    bool *is_placed;        /* [n_batches]; NULL: nothing is relayed */
    uint32_t *first_waiter; /* [n_batches] ranks; NULL likewise */
    fy_timers timers;       /* of each rank: the wire out of it; then packing; unpacking */
    fy_flows flows;
} run;

static uint64_t send_end(const run *r, uint32_t rank)
{
    return r->schedule->send_begin[rank + 1];
}

static uint64_t recv_end(const run *r, uint32_t rank)
{
    return r->schedule->recv_begin[rank + 1];
}

static uint64_t head_of_sends(const run *r, uint32_t rank)
{
    uint64_t at = r->ranks[rank].next_send;
    return at < send_end(r, rank) ? r->schedule->sends[at] : NO_BATCH;
}

static uint64_t head_of_recvs(const run *r, uint32_t rank)
{
    uint64_t at = r->ranks[rank].next_recv;
    return at < recv_end(r, rank) ? r->schedule->recvs[at] : NO_BATCH;
}

static void disturb(run *r, uint32_t rank)
{
    if (!r->ranks[rank].is_restless) {
        r->ranks[rank].is_restless = true;
        r->restless[r->n_restless++] = rank;
    }
}

static void take_slot(run *r, uint32_t rank, uint64_t bytes)
{
    rank_state *state = &r->ranks[rank];
    ferry_simulation_rank *found = &r->simulation->ranks[rank];
    state->slot_bytes += bytes;
    if (state->slot_bytes > found->peak_slot_bytes) {
        found->peak_slot_bytes = state->slot_bytes;
    }
}

static bool has_slot(uint32_t taken, uint32_t n_slots)
{
    return n_slots == 0 || taken < n_slots;
}

/* The first batch of a wait list, at or after a position, that is not in place. */
static uint64_t find_wait(const run *r, uint64_t batch, uint64_t position)
{
    const ferry_schedule *s = r->schedule;
    while (position < s->wait_begin[batch + 1] && r->is_placed[s->waits[position]]) {
        position++;
    }
    return position;
}

/* Whether all that a batch passes on is in place. If not, its sender hears of what is missing. */
static bool has_everything(run *r, uint32_t rank, uint64_t batch)
{
    const ferry_schedule *s = r->schedule;
    rank_state *state = &r->ranks[rank];
    if (s->wait_begin == NULL) {
        return true;
    }
    bool is_new = state->waits_for != batch;
    uint64_t position = find_wait(r, batch, is_new ? s->wait_begin[batch] : state->wait);
    if (position == s->wait_begin[batch + 1]) {
        state->wait = position;
        state->waits_for = batch;
        return true;
    }
    if (is_new || state->wait != position) {
        uint64_t wanted = s->waits[position];
        state->next_waiter = r->first_waiter[wanted];
        r->first_waiter[wanted] = rank;
        state->wait = position;
        state->waits_for = batch;
    }
    return false;
}

static void try_pack(run *r, uint32_t rank)
{
    rank_state *state = &r->ranks[rank];
    if (!r->packs || state->is_packing || state->next_pack == send_end(r, rank) ||
        !has_slot(state->send_slots, r->simulation->options.n_send_slots)) {
        return;
    }
    uint64_t batch = r->schedule->sends[state->next_pack];
    if (!has_everything(r, rank, batch)) {
        return;
    }
    uint64_t bytes = r->schedule->batches[batch].bytes;
    state->is_packing = true;
    state->send_slots++;
    take_slot(r, rank, bytes);
    fy_timers_set(&r->timers, r->schedule->network.n_ranks + rank,
                  r->now + (double)bytes / r->simulation->options.pack_bytes_per_s);
}

static void try_unpack(run *r, uint32_t rank)
{
    rank_state *state = &r->ranks[rank];
    if (state->is_unpacking || state->next_unpack == state->n_arrived) {
        return;
    }
    uint64_t bytes = r->schedule->batches[r->schedule->recvs[state->next_unpack]].bytes;
    state->is_unpacking = true;
    fy_timers_set(&r->timers, 2 * r->schedule->network.n_ranks + rank,
                  r->now + (double)bytes / r->simulation->options.pack_bytes_per_s);
}

/* Whether a rank with one port for both directions has another batch to see to before this one. */
static bool comes_later(const run *r, uint64_t batch, uint64_t other)
{
    if (other == NO_BATCH || other == batch) {
        return false;
    }
    uint32_t round = r->schedule->batches[batch].round;
    uint32_t first = r->schedule->batches[other].round;
    return first < round || (first == round && other < batch);
}

static bool ports_are_free(const run *r, uint64_t batch)
{
    const fy_batch *b = &r->schedule->batches[batch];
    const rank_state *from = &r->ranks[b->from], *to = &r->ranks[b->to];
    if (from->wire != WIRE_FREE || to->is_receiving) {
        return false;
    }
    return r->schedule->duplex == FERRY_DUPLEX_FULL ||
           (!from->is_receiving && to->wire == WIRE_FREE &&
            !comes_later(r, batch, head_of_recvs(r, b->from)) &&
            !comes_later(r, batch, head_of_sends(r, b->to)));
}

static bool crosses_nodes(const run *r, const fy_batch *b)
{
    const fy_network *network = &r->schedule->network;
    return network->n_nodes > 0 &&
           fy_network_node(network, b->from) != fy_network_node(network, b->to);
}

static bool is_busy(const rank_state *state)
{
    return state->wire != WIRE_FREE || state->is_receiving;
}

static void begin_busy(run *r, uint32_t rank)
{
    if (!is_busy(&r->ranks[rank])) {
        r->ranks[rank].busy_since = r->now;
    }
}

static void end_busy(run *r, uint32_t rank)
{
    if (!is_busy(&r->ranks[rank])) {
        r->simulation->ranks[rank].busy += r->now - r->ranks[rank].busy_since;
    }
    if (r->now > r->simulation->ranks[rank].end) {
        r->simulation->ranks[rank].end = r->now;
    }
}

static void begin_flow(run *r, const fy_batch *b)
{
    r->ranks[b->from].wire = WIRE_FLOWS;
    fy_flows_join(&r->flows, b->from, b->to, (double)b->bytes, r->now);
}

static void start(run *r, uint64_t batch)
{
    const fy_batch *b = &r->schedule->batches[batch];
    const fy_network *network = &r->schedule->network;
    rank_state *from = &r->ranks[b->from], *to = &r->ranks[b->to];
    r->simulation->start[batch] = r->now;
    begin_busy(r, b->from);
    begin_busy(r, b->to);
    from->next_send++;
    to->next_recv++;
    to->is_receiving = true;
    to->recv_slots++;
    take_slot(r, b->to, b->bytes);
    if (!r->packs) {
        from->send_slots++;
        take_slot(r, b->from, b->bytes);
    }
    if (crosses_nodes(r, b) && b->bytes > 0) {
        if (network->latency > 0) {
            from->wire = WIRE_LATENCY;
            fy_timers_set(&r->timers, b->from, r->now + network->latency);
        } else {
            begin_flow(r, b);
        }
        return;
    }
    double rate = fy_network_rate(network, b->from, b->to);
    from->wire = WIRE_LASTS;
    fy_timers_set(&r->timers, b->from, r->now + (network->latency + (double)b->bytes / rate));
}

static void try_start(run *r, uint64_t batch)
{
    if (batch == NO_BATCH) {
        return;
    }
    const fy_batch *b = &r->schedule->batches[batch];
    const rank_state *from = &r->ranks[b->from];
    if (batch != head_of_sends(r, b->from) || batch != head_of_recvs(r, b->to) ||
        !ports_are_free(r, batch) ||
        !has_slot(r->ranks[b->to].recv_slots, r->simulation->options.n_receive_slots)) {
        return;
    }
    if (r->packs ? from->next_send < from->next_pack : has_everything(r, b->from, batch)) {
        start(r, batch);
    }
}

static void start_what_may(run *r)
{
    while (r->n_restless > 0) {
        uint32_t rank = r->restless[--r->n_restless];
        r->ranks[rank].is_restless = false;
        try_pack(r, rank);
        try_start(r, head_of_sends(r, rank));
        try_start(r, head_of_recvs(r, rank));
    }
}

static void place(run *r, uint64_t batch)
{
    uint32_t rank = r->schedule->batches[batch].to;
    r->n_placed++;
    r->ranks[rank].recv_slots--;
    r->ranks[rank].slot_bytes -= r->schedule->batches[batch].bytes;
    r->simulation->ranks[rank].end = r->now;
    r->last_end = r->now;
    disturb(r, rank);
    if (r->is_placed == NULL) {
        return;
    }
    r->is_placed[batch] = true;
    uint32_t waiter = r->first_waiter[batch];
    while (waiter != NO_RANK) {
        disturb(r, waiter);
        waiter = r->ranks[waiter].next_waiter;
    }
}

static void end_wire(run *r, uint32_t rank)
{
    rank_state *from = &r->ranks[rank];
    uint64_t batch = r->schedule->sends[from->next_send - 1];
    const fy_batch *b = &r->schedule->batches[batch];
    rank_state *to = &r->ranks[b->to];
    if (from->wire == WIRE_FLOWS) {
        fy_flows_leave(&r->flows, rank);
    }
    r->simulation->end[batch] = r->now;
    from->wire = WIRE_FREE;
    to->is_receiving = false;
    from->send_slots--;
    from->slot_bytes -= b->bytes;
    end_busy(r, b->from);
    end_busy(r, b->to);
    disturb(r, b->from);
    disturb(r, b->to);
    to->n_arrived++;
    if (r->packs) {
        try_unpack(r, b->to);
    } else {
        place(r, batch);
    }
}

static void end_unpack(run *r, uint32_t rank)
{
    rank_state *state = &r->ranks[rank];
    state->is_unpacking = false;
    place(r, r->schedule->recvs[state->next_unpack++]);
    try_unpack(r, rank);
}

static void expire(run *r, uint32_t timer)
{
    uint32_t n_ranks = r->schedule->network.n_ranks;
    uint32_t rank = timer % n_ranks;
    if (timer >= 2 * n_ranks) {
        end_unpack(r, rank);
    } else if (timer >= n_ranks) {
        r->ranks[rank].is_packing = false;
        r->ranks[rank].next_pack++;
        disturb(r, rank);
    } else if (r->ranks[rank].wire == WIRE_LATENCY) {
        begin_flow(r, &r->schedule->batches[r->schedule->sends[r->ranks[rank].next_send - 1]]);
    } else {
        end_wire(r, rank);
    }
}

static void settle_flows(run *r)
{
    fy_flows_settle(&r->flows, r->now);
    for (uint32_t i = 0; i < r->flows.n_changed; i++) {
        uint32_t rank = r->flows.changed[i];
        fy_timers_set(&r->timers, rank, fy_flows_end(&r->flows, rank));
    }
}

static void run_events(run *r)
{
    bool has_nodes = r->schedule->network.n_nodes > 0;
    double slack = has_nodes ? SAME_MOMENT : 0;
    for (;;) {
        start_what_may(r);
        if (has_nodes) {
            settle_flows(r);
        }
        if (r->timers.n_set == 0) {
            return;
        }
        double when = r->timers.heap[0].when;
        r->now = when > r->now ? when : r->now;
        do {
            expire(r, fy_timers_take(&r->timers).id);
        } while (r->timers.n_set > 0 && r->timers.heap[0].when <= r->now * (1 + slack));
    }
}

/* What an unfinished batch waits for when nothing moves any more. */
static uint64_t find_obstacle(const run *r, uint64_t batch)
{
    const ferry_schedule *s = r->schedule;
    const fy_batch *b = &s->batches[batch];
    uint64_t head = head_of_sends(r, b->from);
    if (head != batch) {
        return head;
    }
    if (s->wait_begin != NULL) {
        uint64_t position = find_wait(r, batch, s->wait_begin[batch]);
        if (position < s->wait_begin[batch + 1]) {
            return s->waits[position];
        }
    }
    head = head_of_recvs(r, b->to);
    if (head != batch) {
        return head;
    }
    head = head_of_recvs(r, b->from);
    return comes_later(r, batch, head) ? head : head_of_sends(r, b->to);
}

static ferry_status fail_stuck(const run *r, ferry_error *error)
{
    const ferry_schedule *s = r->schedule;
    uint64_t batch = 0;
    while (r->simulation->end[batch] >= 0) {
        batch++;
    }
    /* A chain of obstacles as long as there are batches ends in the circle. */
    uint64_t obstacle = find_obstacle(r, batch);
    for (uint64_t i = 0; i < s->n_batches && obstacle != NO_BATCH; i++) {
        batch = obstacle;
        obstacle = find_obstacle(r, batch);
    }
    const fy_batch *b = &s->batches[batch];
    if (obstacle == NO_BATCH) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "batch %llu (round %u, from rank %u to rank %u) can never start: it is "
                       "missing in the order of its sender or of its receiver",
                       (unsigned long long)batch, b->round, b->from, b->to);
    }
    const fy_batch *o = &s->batches[obstacle];
    return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                   "batch %llu (round %u, from rank %u to rank %u) can never start: it waits for "
                   "batch %llu (round %u, from rank %u to rank %u), which waits for it, be it "
                   "through others; lists must follow the rounds, and relays come in later ones",
                   (unsigned long long)batch, b->round, b->from, b->to,
                   (unsigned long long)obstacle, o->round, o->from, o->to);
}

static void init_ranks(run *r)
{
    const ferry_schedule *s = r->schedule;
    for (uint32_t i = s->network.n_ranks; i > 0; i--) {
        uint32_t rank = i - 1;
        r->ranks[rank] = (rank_state){.next_pack = s->send_begin[rank],
                                      .next_send = s->send_begin[rank],
                                      .next_recv = s->recv_begin[rank],
                                      .next_unpack = s->recv_begin[rank],
                                      .n_arrived = s->recv_begin[rank],
                                      .waits_for = NO_BATCH,
                                      .next_waiter = NO_RANK};
        disturb(r, rank);
    }
    for (uint64_t b = 0; b < s->n_batches; b++) {
        r->simulation->start[b] = -1;
        r->simulation->end[b] = -1;
        if (r->first_waiter != NULL) {
            r->first_waiter[b] = NO_RANK;
        }
    }
}

static ferry_status init(run *r, ferry_error *error)
{
    const ferry_schedule *s = r->schedule;
    uint32_t n_ranks = s->network.n_ranks;
    bool relays = s->wait_begin != NULL;
    r->ranks = fy_alloc(n_ranks, sizeof *r->ranks);
    r->restless = fy_alloc(n_ranks, sizeof *r->restless);
    bool ok = fy_timers_init(&r->timers, r->packs ? 3 * n_ranks : n_ranks);
    ok = ok && r->ranks != NULL && r->restless != NULL;
    if (relays) {
        r->is_placed = fy_alloc_zeroed((size_t)s->n_batches, sizeof *r->is_placed);
        r->first_waiter = fy_alloc((size_t)s->n_batches, sizeof *r->first_waiter);
        ok = ok && r->is_placed != NULL && r->first_waiter != NULL;
    }
    FY_TRY(fy_check_memory(ok, "a simulated schedule", error));
    init_ranks(r);
    return s->network.n_nodes > 0 ? fy_flows_init(&r->flows, &s->network, error) : FERRY_OK;
}

ferry_status fy_simulation_run(ferry_simulation *simulation, double *seconds_out,
                               ferry_error *error)
{
    run r = {.simulation = simulation,
             .schedule = simulation->schedule,
             .packs = simulation->options.pack_bytes_per_s > 0};
    ferry_status status = init(&r, error);
    if (status != FERRY_OK) {
        goto out;
    }
    run_events(&r);
    if (r.n_placed < r.schedule->n_batches) {
        status = fail_stuck(&r, error);
        goto out;
    }
    *seconds_out = r.last_end;
out:
    fy_free(r.ranks);
    fy_free(r.restless);
    fy_free(r.is_placed);
    fy_free(r.first_waiter);
    fy_timers_cleanup(&r.timers);
    fy_flows_cleanup(&r.flows);
    return status;
}
