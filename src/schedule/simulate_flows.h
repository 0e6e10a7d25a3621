/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SIMULATE_FLOWS_H
#define FY_SCHEDULE_SIMULATE_FLOWS_H

#include "schedule/schedule.h"

/*
 * Batches that cross from node to node and share the nodes' ports max-min fairly. A rank sends one
 * at a time, so the sender's rank names the flow.
 *
 * Every port has a level: what it grants each flow through it, infinite where it has room for all.
 * A flow runs at the least of its own cap and its two ports' levels. Where every port's level
 * follows from its neighbours' so that the port is just full, each flow has a bottleneck at which
 * none is faster: these shares are the max-min fair ones. A change therefore spreads from ports
 * to ports of higher levels only, and only through flows that feel it.
 */
typedef struct fy_flow {
    double cap; /* what the two ranks can do */
    double rate;
    double left;  /* bytes, at the time of since */
    double since; /* when the rate was last set */
    uint32_t receiver;
    uint32_t ports[2];     /* out of the sender's node, into the receiver's */
    uint32_t positions[2]; /* among the flows of each port */
} fy_flow;

typedef struct fy_flow_port {
    double capacity;
    double level;
    size_t first; /* of its flows in members */
    uint32_t n_flows;
    bool is_queued;
    bool is_touched;
} fy_flow_port;

typedef struct fy_flows {
    const fy_network *network;
    uint32_t n_ports; /* the egress of each node, then the ingress of each */
    fy_flow_port *ports;
    fy_flow *flows;    /* [n_ranks], by sender */
    uint32_t *members; /* flows by port */
    double *limits;    /* scratch: of the flows of one port */
    uint32_t *queue;   /* a ring of ports whose level may be out of date */
    uint32_t queue_first, queue_used;
    uint32_t *touched; /* ports with flows whose rate may be out of date */
    uint32_t n_touched;
    uint32_t *changed; /* after fy_flows_settle: flows with a new rate */
    uint32_t n_changed;
} fy_flows;

/* network->n_nodes is not 0. fy_flows_cleanup is due in any case. */
ferry_status fy_flows_init(fy_flows *flows, const fy_network *network, ferry_error *error);
void fy_flows_cleanup(fy_flows *flows);

/* The rates are as they were until fy_flows_settle. */
void fy_flows_join(fy_flows *flows, uint32_t sender, uint32_t receiver, double bytes, double now);
void fy_flows_leave(fy_flows *flows, uint32_t sender);

/* Shares the ports anew, if anything joined or left, and lists the flows whose rate changed. */
void fy_flows_settle(fy_flows *flows, double now);

/* When a flow ends if its rate stays. */
double fy_flows_end(const fy_flows *flows, uint32_t sender);

#endif
