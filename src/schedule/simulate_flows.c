/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/simulate_flows.h"

#include "base/alloc.h"

#include <math.h>

/* Levels that differ by less are equal: what rounding does must not go round in circles. */
#define TOLERANCE 1e-13
/* Updates for each port before the tolerance doubles; far above what is seen. */
enum { PATIENCE = 64 };

enum { OUT = 0, IN = 1 };

static void init_ports(fy_flows *flows)
{
    const fy_network *network = flows->network;
    for (uint32_t p = 0; p < flows->n_ports; p++) {
        bool is_in = p >= network->n_nodes;
        uint32_t node = is_in ? p - network->n_nodes : p;
        size_t first = (size_t)node * network->ranks_per_node;
        flows->ports[p] = (fy_flow_port){.capacity = network->node_rate[node],
                                         .level = INFINITY,
                                         .first = is_in ? network->n_ranks + first : first};
    }
}

ferry_status fy_flows_init(fy_flows *flows, const fy_network *network, ferry_error *error)
{
    size_t n_ranks = network->n_ranks;
    *flows = (fy_flows){.network = network, .n_ports = 2 * network->n_nodes};
    flows->ports = fy_alloc(flows->n_ports, sizeof *flows->ports);
    flows->flows = fy_alloc_zeroed(n_ranks, sizeof *flows->flows);
    flows->members = fy_alloc(2 * n_ranks, sizeof *flows->members);
    flows->limits = fy_alloc(n_ranks, sizeof *flows->limits);
    flows->queue = fy_alloc(flows->n_ports, sizeof *flows->queue);
    flows->touched = fy_alloc(flows->n_ports, sizeof *flows->touched);
    flows->changed = fy_alloc(n_ranks, sizeof *flows->changed);
    if (flows->ports == NULL || flows->flows == NULL || flows->members == NULL ||
        flows->limits == NULL || flows->queue == NULL || flows->touched == NULL ||
        flows->changed == NULL) {
        return fy_fail_no_memory(error, "the simulated ports of nodes");
    }
    init_ports(flows);
    return FERRY_OK;
}

void fy_flows_cleanup(fy_flows *flows)
{
    fy_free(flows->ports);
    fy_free(flows->flows);
    fy_free(flows->members);
    fy_free(flows->limits);
    fy_free(flows->queue);
    fy_free(flows->touched);
    fy_free(flows->changed);
    *flows = (fy_flows){0};
}

static void touch(fy_flows *flows, uint32_t p)
{
    if (!flows->ports[p].is_touched) {
        flows->ports[p].is_touched = true;
        flows->touched[flows->n_touched++] = p;
    }
}

static void enqueue(fy_flows *flows, uint32_t p)
{
    if (!flows->ports[p].is_queued) {
        uint32_t at = flows->queue_first + flows->queue_used++;
        flows->ports[p].is_queued = true;
        flows->queue[at < flows->n_ports ? at : at - flows->n_ports] = p;
    }
}

static uint32_t dequeue(fy_flows *flows)
{
    uint32_t p = flows->queue[flows->queue_first];
    if (++flows->queue_first == flows->n_ports) {
        flows->queue_first = 0;
    }
    flows->queue_used--;
    flows->ports[p].is_queued = false;
    return p;
}

void fy_flows_join(fy_flows *flows, uint32_t sender, uint32_t receiver, double bytes, double now)
{
    const fy_network *network = flows->network;
    fy_flow *flow = &flows->flows[sender];
    *flow = (fy_flow){.cap = fy_network_rate(network, sender, receiver),
                      .left = bytes,
                      .since = now,
                      .receiver = receiver,
                      .ports = {fy_network_node(network, sender),
                                network->n_nodes + fy_network_node(network, receiver)}};
    for (int side = OUT; side <= IN; side++) {
        fy_flow_port *port = &flows->ports[flow->ports[side]];
        flow->positions[side] = port->n_flows;
        flows->members[port->first + port->n_flows++] = sender;
        enqueue(flows, flow->ports[side]);
        touch(flows, flow->ports[side]);
    }
}

void fy_flows_leave(fy_flows *flows, uint32_t sender)
{
    const fy_flow *flow = &flows->flows[sender];
    for (int side = OUT; side <= IN; side++) {
        fy_flow_port *port = &flows->ports[flow->ports[side]];
        uint32_t moved = flows->members[port->first + --port->n_flows];
        flows->members[port->first + flow->positions[side]] = moved;
        flows->flows[moved].positions[side] = flow->positions[side];
        enqueue(flows, flow->ports[side]);
    }
}

/* The level at which flows with these limits fill a port that cannot give all of them theirs. */
static double fill(double *limits, uint32_t n_limits, double capacity)
{
    double level = capacity / n_limits;
    for (;;) {
        uint32_t n_above = 0;
        for (uint32_t i = 0; i < n_limits; i++) {
            if (limits[i] > level) {
                limits[n_above++] = limits[i];
            } else {
                capacity -= limits[i];
            }
        }
        if (n_above == 0) {
            return INFINITY; /* full by rounding alone */
        }
        if (n_above == n_limits) {
            return level;
        }
        n_limits = n_above;
        level = capacity / n_limits;
    }
}

static double find_level(fy_flows *flows, uint32_t p)
{
    const fy_flow_port *port = &flows->ports[p];
    const uint32_t *members = flows->members + port->first;
    int other = p < flows->network->n_nodes ? IN : OUT;
    double sum = 0;
    for (uint32_t i = 0; i < port->n_flows; i++) {
        const fy_flow *flow = &flows->flows[members[i]];
        double level = flows->ports[flow->ports[other]].level;
        flows->limits[i] = level < flow->cap ? level : flow->cap;
        sum += flows->limits[i];
    }
    return sum <= port->capacity ? INFINITY : fill(flows->limits, port->n_flows, port->capacity);
}

static void set_level(fy_flows *flows, uint32_t p, double level)
{
    fy_flow_port *port = &flows->ports[p];
    const uint32_t *members = flows->members + port->first;
    int other = p < flows->network->n_nodes ? IN : OUT;
    double lower = level < port->level ? level : port->level;
    port->level = level;
    touch(flows, p);
    for (uint32_t i = 0; i < port->n_flows; i++) {
        const fy_flow *flow = &flows->flows[members[i]];
        uint32_t q = flow->ports[other];
        /* What exceeds its own limit elsewhere, before and after, makes no difference there. */
        if (lower < flow->cap && lower <= flows->ports[q].level) {
            enqueue(flows, q);
        }
    }
}

static void update_levels(fy_flows *flows)
{
    double tolerance = TOLERANCE;
    uint64_t patience = (uint64_t)flows->n_ports * PATIENCE;
    for (uint64_t n_updates = 1; flows->queue_used > 0; n_updates++) {
        uint32_t p = dequeue(flows);
        double level = find_level(flows, p), old = flows->ports[p].level;
        /* Of infinities only equal ones are close. */
        if (level != old && !(fabs(level - old) <= tolerance * old && isfinite(old))) {
            set_level(flows, p, level);
        }
        if (n_updates % patience == 0) {
            tolerance *= 2;
        }
    }
}

static double current_rate(const fy_flows *flows, const fy_flow *flow)
{
    double rate = flow->cap;
    for (int side = OUT; side <= IN; side++) {
        double level = flows->ports[flow->ports[side]].level;
        rate = level < rate ? level : rate;
    }
    return rate;
}

static void update_rates(fy_flows *flows, const fy_flow_port *port, double now)
{
    for (uint32_t i = 0; i < port->n_flows; i++) {
        uint32_t f = flows->members[port->first + i];
        fy_flow *flow = &flows->flows[f];
        double rate = current_rate(flows, flow);
        if (rate == flow->rate) {
            continue;
        }
        double left = flow->left - flow->rate * (now - flow->since);
        flow->left = left > 0 ? left : 0;
        flow->since = now;
        flow->rate = rate;
        flows->changed[flows->n_changed++] = f;
    }
}

void fy_flows_settle(fy_flows *flows, double now)
{
    flows->n_changed = 0;
    update_levels(flows);
    for (uint32_t i = 0; i < flows->n_touched; i++) {
        fy_flow_port *port = &flows->ports[flows->touched[i]];
        port->is_touched = false;
        update_rates(flows, port, now);
    }
    flows->n_touched = 0;
}

double fy_flows_end(const fy_flows *flows, uint32_t sender)
{
    const fy_flow *flow = &flows->flows[sender];
    return flow->since + flow->left / flow->rate;
}
