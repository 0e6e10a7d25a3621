/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The port model with node ports, from event to event. A rank sends one batch at a time, so a batch
 * on the wire is known by its sender, and each sender has one next event. What a flow has left is
 * brought up to date only when its rate changes.
 */
#include "schedule/timing.h"

#include "schedule/timing_clock.h"
#include "schedule/timing_share.h"

#include "base/alloc.h"

#include <string.h>

/* Events this close together, relatively, are of one instant: shares are settled once for all. */
static const double SAME_INSTANT = 1e-13;

typedef enum phase {
    PHASE_FIXED,   /* its end is known: nothing crosses nodes */
    PHASE_LATENCY, /* will be a flow when this is over */
    PHASE_FLOW
} phase;

/* What a rank is sending. */
typedef struct wire {
    uint64_t batch;
    double rest_bytes; /* at the time since, of a flow */
    double since;
    double rate;
    phase phase;
} wire;

typedef struct fluid {
    const ferry_schedule *schedule;
    const fy_timing *timing;
    double now;
    uint32_t *n_pending;    /* [n_batches] what must end before a batch starts */
    uint64_t *waiter_begin; /* [n_batches + 1] into waiters; NULL: nobody waits */
    uint64_t *waiters;      /* the batches that wait for a batch */
    uint64_t *next_send;    /* [n_ranks] into sends */
    uint64_t *next_recv;    /* [n_ranks] into recvs */
    wire *wires;            /* [n_ranks] by sender */
    fy_clock clock;
    fy_share share;
} fluid;

/* The waits, turned around. */
static ferry_status list_waiters(fluid *f, ferry_error *error)
{
    const ferry_schedule *schedule = f->schedule;
    uint64_t n = schedule->n_batches;
    if (schedule->wait_begin == NULL) {
        return FERRY_OK;
    }
    f->waiter_begin = fy_alloc_zeroed(n + 1, sizeof *f->waiter_begin);
    f->waiters = fy_alloc(schedule->wait_begin[n], sizeof *f->waiters);
    if (f->waiter_begin == NULL || f->waiters == NULL) {
        return fy_fail_no_memory(error, "the waits of a schedule");
    }
    for (uint64_t w = 0; w < schedule->wait_begin[n]; w++) {
        f->waiter_begin[schedule->waits[w]]++;
    }
    for (uint64_t b = 1; b <= n; b++) { /* the end of each list, which filling moves to its begin */
        f->waiter_begin[b] += f->waiter_begin[b - 1];
    }
    for (uint64_t b = n; b-- > 0;) {
        for (uint64_t w = schedule->wait_begin[b]; w < schedule->wait_begin[b + 1]; w++) {
            f->waiters[--f->waiter_begin[schedule->waits[w]]] = b;
        }
    }
    return FERRY_OK;
}

static ferry_status fluid_init(fluid *f, ferry_error *error)
{
    const ferry_schedule *schedule = f->schedule;
    uint32_t n_ranks = schedule->network.n_ranks;
    f->n_pending = fy_alloc(schedule->n_batches, sizeof *f->n_pending);
    f->next_send = fy_alloc(n_ranks, sizeof *f->next_send);
    f->next_recv = fy_alloc(n_ranks, sizeof *f->next_recv);
    f->wires = fy_alloc(n_ranks, sizeof *f->wires);
    if (f->n_pending == NULL || f->next_send == NULL || f->next_recv == NULL || f->wires == NULL) {
        return fy_fail_no_memory(error, "the timing of a schedule");
    }
    memcpy(f->next_send, schedule->send_begin, n_ranks * sizeof *f->next_send);
    memcpy(f->next_recv, schedule->recv_begin, n_ranks * sizeof *f->next_recv);
    for (uint64_t b = 0; b < schedule->n_batches; b++) {
        const uint64_t *waits = schedule->wait_begin;
        f->n_pending[b] = 2 + (waits == NULL ? 0 : (uint32_t)(waits[b + 1] - waits[b]));
    }
    ferry_status status = list_waiters(f, error);
    if (status == FERRY_OK) {
        status = fy_clock_init(&f->clock, n_ranks, error);
    }
    if (status == FERRY_OK) {
        status = fy_share_init(&f->share, &schedule->network, error);
    }
    return status;
}

static void fluid_cleanup(fluid *f)
{
    fy_free(f->n_pending);
    fy_free(f->waiter_begin);
    fy_free(f->waiters);
    fy_free(f->next_send);
    fy_free(f->next_recv);
    fy_free(f->wires);
    fy_clock_cleanup(&f->clock);
    fy_share_cleanup(&f->share);
}

/* After the latency: its bytes leave one node and enter another. */
static void start_flow(fluid *f, uint32_t from)
{
    const fy_network *network = &f->schedule->network;
    wire *w = &f->wires[from];
    const fy_batch *batch = &f->schedule->batches[w->batch];
    w->phase = PHASE_FLOW;
    w->rest_bytes = (double)batch->bytes;
    w->since = f->now;
    w->rate = 0;
    fy_share_add(&f->share, from, fy_network_node(network, from),
                 fy_network_node(network, batch->to), fy_network_rate(network, from, batch->to));
}

static void start_batch(fluid *f, uint64_t number)
{
    const fy_network *network = &f->schedule->network;
    const fy_batch *batch = &f->schedule->batches[number];
    wire *w = &f->wires[batch->from];
    w->batch = number;
    f->timing->start[number] = f->now;
    if (batch->bytes == 0 ||
        fy_network_node(network, batch->from) == fy_network_node(network, batch->to)) {
        double rate = fy_network_rate(network, batch->from, batch->to);
        w->phase = PHASE_FIXED;
        fy_clock_set(&f->clock, batch->from,
                     f->now + (network->latency + (double)batch->bytes / rate));
    } else if (network->latency > 0) {
        w->phase = PHASE_LATENCY;
        fy_clock_set(&f->clock, batch->from, f->now + network->latency);
    } else {
        start_flow(f, batch->from);
    }
}

static void release(fluid *f, uint64_t number)
{
    if (--f->n_pending[number] == 0) {
        start_batch(f, number);
    }
}

/*
 * The ports of a rank are free: its next send, and its next receive, lack one thing less. Half
 * duplex, the port is free for the earlier one of the two.
 */
static void release_next(fluid *f, uint32_t rank, bool send, bool recv)
{
    const ferry_schedule *schedule = f->schedule;
    bool has_send = f->next_send[rank] < schedule->send_begin[rank + 1];
    bool has_recv = f->next_recv[rank] < schedule->recv_begin[rank + 1];
    uint64_t next_send = has_send ? schedule->sends[f->next_send[rank]] : UINT64_MAX;
    uint64_t next_recv = has_recv ? schedule->recvs[f->next_recv[rank]] : UINT64_MAX;
    if (schedule->duplex == FERRY_DUPLEX_HALF) {
        send = next_send < next_recv;
        recv = !send;
    }
    if (send && has_send) {
        release(f, next_send);
    }
    if (recv && has_recv) {
        release(f, next_recv);
    }
}

static void end_batch(fluid *f, uint64_t number)
{
    const fy_batch *batch = &f->schedule->batches[number];
    f->timing->end[number] = f->now;
    f->next_send[batch->from]++;
    f->next_recv[batch->to]++;
    release_next(f, batch->from, true, false);
    release_next(f, batch->to, false, true);
    if (f->waiter_begin != NULL) {
        for (uint64_t w = f->waiter_begin[number]; w < f->waiter_begin[number + 1]; w++) {
            release(f, f->waiters[w]);
        }
    }
}

/* The earliest event. The clock does not learn that a flow slows down before its time is up. */
static void take_event(fluid *f, double until)
{
    uint32_t from = f->clock.heap[0];
    wire *w = &f->wires[from];
    f->now = f->clock.time[from];
    if (w->phase == PHASE_FLOW) {
        double end = w->since + w->rest_bytes / w->rate;
        if (end > until) {
            fy_clock_set(&f->clock, from, end);
            return;
        }
        fy_share_remove(&f->share, from);
    }
    fy_clock_pop(&f->clock);
    if (w->phase == PHASE_LATENCY) {
        start_flow(f, from);
    } else {
        end_batch(f, w->batch);
    }
}

static void settle(fluid *f)
{
    fy_share_settle(&f->share);
    for (uint32_t i = 0; i < f->share.n_changed; i++) {
        uint32_t from = f->share.changed[i];
        wire *w = &f->wires[from];
        double rest = w->rest_bytes - w->rate * (f->now - w->since);
        w->rest_bytes = rest > 0 ? rest : 0;
        w->since = f->now;
        w->rate = f->share.flows[from].rate;
        double end = f->now + w->rest_bytes / w->rate;
        if (f->clock.place[from] == FY_CLOCK_NOWHERE || end < f->clock.time[from]) {
            fy_clock_set(&f->clock, from, end);
        }
    }
}

ferry_status fy_timing_follow(const ferry_schedule *schedule, const fy_timing *timing,
                              ferry_error *error)
{
    fluid f = {.schedule = schedule, .timing = timing};
    ferry_status status = fluid_init(&f, error);
    if (status != FERRY_OK) {
        goto out;
    }
    for (uint32_t rank = 0; rank < schedule->network.n_ranks; rank++) {
        release_next(&f, rank, true, true);
    }
    settle(&f);
    while (f.clock.n_events > 0) {
        double until = f.clock.time[f.clock.heap[0]] * (1 + SAME_INSTANT);
        while (f.clock.n_events > 0 && f.clock.time[f.clock.heap[0]] <= until) {
            take_event(&f, until);
        }
        settle(&f);
    }
out:
    fluid_cleanup(&f);
    return status;
}
