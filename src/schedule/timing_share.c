/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/timing_share.h"

#include "base/alloc.h"

#include <math.h>

/* Rates that differ by less than this, relatively, are one rate: doubles add up in some order. */
static const double SAME_RATE = 1e-13;
/*
 * Exact levels come to rest after finitely many visits. Rounding could keep some going in circles,
 * so what counts as the same grows by WIDEN every so many visits.
 */
static const double WIDEN = 8;
enum { VISITS_PER_PORT = 64 };

ferry_status fy_share_init(fy_share *share, const fy_network *network, ferry_error *error)
{
    size_t n_ports = 2 * (size_t)network->n_nodes, n_ranks = network->n_ranks;
    *share = (fy_share){.n_nodes = network->n_nodes,
                        .ports = fy_alloc_zeroed(n_ports, sizeof *share->ports),
                        .flows = fy_alloc_zeroed(n_ranks, sizeof *share->flows),
                        .links = fy_alloc(2 * n_ranks, sizeof *share->links),
                        .limits = fy_alloc(n_ranks, sizeof *share->limits),
                        .queue = fy_alloc(n_ports, sizeof *share->queue),
                        .touched = fy_alloc(n_ports, sizeof *share->touched),
                        .changed = fy_alloc(n_ranks, sizeof *share->changed)};
    if (share->ports == NULL || share->flows == NULL || share->links == NULL ||
        share->limits == NULL || share->queue == NULL || share->touched == NULL ||
        share->changed == NULL) {
        return fy_fail_no_memory(error, "the shares of node ports");
    }
    for (size_t p = 0; p < n_ports; p++) {
        size_t node = p % network->n_nodes;
        size_t first = node * network->ranks_per_node + (p < network->n_nodes ? 0 : n_ranks);
        share->ports[p] = (fy_share_port){
            .capacity = network->node_rate[node], .level = INFINITY, .links = share->links + first};
    }
    return FERRY_OK;
}

void fy_share_cleanup(fy_share *share)
{
    fy_free(share->ports);
    fy_free(share->flows);
    fy_free(share->links);
    fy_free(share->limits);
    fy_free(share->queue);
    fy_free(share->touched);
    fy_free(share->changed);
    *share = (fy_share){0};
}

static void touch(fy_share *share, uint32_t port)
{
    if (!share->ports[port].is_touched) {
        share->ports[port].is_touched = true;
        share->touched[share->n_touched++] = port;
    }
}

static void enqueue(fy_share *share, uint32_t port)
{
    if (!share->ports[port].is_queued) {
        uint32_t n_ports = 2 * share->n_nodes;
        uint32_t place = share->first_queued + share->n_queued;
        share->ports[port].is_queued = true;
        share->queue[place < n_ports ? place : place - n_ports] = port;
        share->n_queued++;
    }
}

static uint32_t dequeue(fy_share *share)
{
    uint32_t port = share->queue[share->first_queued];
    share->ports[port].is_queued = false;
    share->first_queued =
        share->first_queued + 1 == 2 * share->n_nodes ? 0 : share->first_queued + 1;
    share->n_queued--;
    return port;
}

void fy_share_add(fy_share *share, uint32_t flow, uint32_t from_node, uint32_t to_node, double cap)
{
    uint32_t ports[2] = {from_node, share->n_nodes + to_node};
    fy_share_flow *added = &share->flows[flow];
    added->rate = 0;
    for (int side = 0; side < 2; side++) {
        fy_share_port *port = &share->ports[ports[side]];
        added->port[side] = ports[side];
        added->link[side] = port->n_links;
        port->links[port->n_links] =
            (fy_share_link){.flow = flow, .other = ports[1 - side], .cap = cap};
        port->n_links++;
        touch(share, ports[side]);
        enqueue(share, ports[side]);
    }
}

void fy_share_remove(fy_share *share, uint32_t flow)
{
    fy_share_flow *removed = &share->flows[flow];
    for (int side = 0; side < 2; side++) {
        fy_share_port *port = &share->ports[removed->port[side]];
        fy_share_link last = port->links[--port->n_links];
        port->links[removed->link[side]] = last;
        share->flows[last.flow].link[side] = removed->link[side];
        touch(share, removed->port[side]);
        enqueue(share, removed->port[side]);
    }
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static bool is_same(double a, double b, double tolerance)
{
    double larger = a > b ? a : b;
    return a == b || (larger < INFINITY && fabs(a - b) <= tolerance * larger);
}

/*
 * The level at which the port's flows use just its capacity, given the other ports' levels. What
 * the flows use is concave in the level, so Newton's steps rise to the solution after the first,
 * from wherever that began; the level of last time is mostly one step away.
 */
static double find_level(const fy_share *share, const fy_share_port *port)
{
    double sum = 0, highest = 0;
    for (uint32_t i = 0; i < port->n_links; i++) {
        const fy_share_link *link = &port->links[i];
        double limit = least(link->cap, share->ports[link->other].level);
        share->limits[i] = limit;
        highest = limit > highest ? limit : highest;
        sum += limit;
    }
    if (sum <= port->capacity * (1 + SAME_RATE)) {
        return INFINITY;
    }
    double even = port->capacity / port->n_links;
    double level = port->level < INFINITY ? least(port->level, highest) : even;
    uint32_t n_free = 0, n_before, n_steps = 0;
    do {
        n_before = n_free;
        double below = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < port->n_links; i++) {
            bool is_free = share->limits[i] >= level;
            below += is_free ? 0 : share->limits[i];
            n += is_free;
        }
        if (n == 0) {
            return INFINITY; /* full but for rounding */
        }
        n_free = n;
        level = (port->capacity - below) / n_free;
        n_steps++;
        /* Equal counts are equal flows; from the second step on, only fewer remain. */
    } while (n_steps <= 2 ? n_free != n_before : n_free < n_before);
    return level;
}

/* Other ports see of a port what its level makes of each flow. */
static void visit(fy_share *share, uint32_t number, double tolerance)
{
    fy_share_port *port = &share->ports[number];
    double old = port->level, level = find_level(share, port);
    if (is_same(old, level, tolerance)) {
        return;
    }
    port->level = level;
    touch(share, number);
    for (uint32_t i = 0; i < port->n_links; i++) {
        const fy_share_link *link = &port->links[i];
        const fy_share_port *other = &share->ports[link->other];
        double limit = least(link->cap, other->level);
        bool lower = level < old; /* less never fills a port that was not full */
        if (!(lower && other->level == INFINITY) &&
            !is_same(least(limit, old), least(limit, level), tolerance)) {
            enqueue(share, link->other);
        }
    }
}

void fy_share_settle(fy_share *share)
{
    double tolerance = SAME_RATE;
    uint64_t most = VISITS_PER_PORT * 2 * (uint64_t)share->n_nodes, n_visits = 0;
    while (share->n_queued > 0) {
        visit(share, dequeue(share), tolerance);
        n_visits++;
        tolerance *= n_visits % most == 0 ? WIDEN : 1;
    }
    share->n_changed = 0;
    for (uint32_t t = 0; t < share->n_touched; t++) {
        fy_share_port *port = &share->ports[share->touched[t]];
        port->is_touched = false;
        for (uint32_t i = 0; i < port->n_links; i++) {
            const fy_share_link *link = &port->links[i];
            fy_share_flow *flow = &share->flows[link->flow];
            double rate = least(link->cap, least(port->level, share->ports[link->other].level));
            if (!is_same(flow->rate, rate, SAME_RATE)) {
                flow->rate = rate;
                share->changed[share->n_changed++] = link->flow;
            }
        }
    }
    share->n_touched = 0;
}
