/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_TIMING_SHARE_H
#define FY_SCHEDULE_TIMING_SHARE_H

#include "schedule/schedule.h"

/*
 * Max-min fair shares of node ports, kept up to date while flows come and go. A flow is known by
 * the rank that sends it, which has no more than one; it has a cap, leaves one node and enters
 * another.
 *
 * Every port has a level: a flow's rate is the least of its cap and its two ports' levels, and a
 * port's level is the one at which its flows use just its capacity, infinite where they cannot. A
 * set of levels of which all this holds is the max-min fair one, since each flow then has a
 * bottleneck: its cap, or a full port on which no flow is faster. So a change is followed from port
 * to port, only as far as levels change.
 */
typedef struct fy_share_link {
    uint32_t flow;
    uint32_t other; /* the flow's other port */
    double cap;
} fy_share_link;

typedef struct fy_share_port {
    double capacity;
    double level;
    fy_share_link *links; /* room for one of each rank of the node */
    uint32_t n_links;
    bool is_queued;  /* its level must be found anew */
    bool is_touched; /* since the last settling: rates of its flows may differ */
} fy_share_port;

typedef struct fy_share_flow {
    uint32_t port[2];
    uint32_t link[2]; /* its index in either port */
    double rate;      /* of the last settling */
} fy_share_flow;

typedef struct fy_share {
    uint32_t n_nodes;
    fy_share_port *ports; /* [2 * n_nodes]: egress, then ingress */
    fy_share_flow *flows; /* [n_ranks] */
    fy_share_link *links;
    double *limits;  /* scratch of one port */
    uint32_t *queue; /* [2 * n_nodes], a ring */
    uint32_t n_queued, first_queued;
    uint32_t *touched; /* [2 * n_nodes] */
    uint32_t n_touched;
    uint32_t *changed; /* [n_ranks] flows whose rate the last settling changed */
    uint32_t n_changed;
} fy_share;

/* What a failure leaves goes with fy_share_cleanup, too. */
ferry_status fy_share_init(fy_share *share, const fy_network *network, ferry_error *error);
void fy_share_cleanup(fy_share *share); /* of one that is all zero, too */

/* The rate of a new flow is 0 until shares are settled. */
void fy_share_add(fy_share *share, uint32_t flow, uint32_t from_node, uint32_t to_node, double cap);
void fy_share_remove(fy_share *share, uint32_t flow);

/* Brings rates up to date and lists the flows whose rates changed. */
void fy_share_settle(fy_share *share);

#endif
