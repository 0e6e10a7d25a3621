/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_RELAY_ROUND_H
#define FY_SCHEDULE_RELAY_ROUND_H

#include "schedule/links.h"
#include "schedule/relay.h"

/* What a port must still do. The time follows the bytes but for rounding. */
typedef struct fy_debt {
    double time;
    uint64_t bytes;
} fy_debt;

typedef struct fy_transfer {
    uint32_t group; /* FY_OWN: own bytes */
    uint32_t chunk;
    uint32_t from_member; /* while is_open: a place, of which some idle member is to send */
    uint32_t to_member;   /* of own bytes: the pair */
    bool is_open;
} fy_transfer;

typedef struct fy_relaying {
    const fy_job *job;
    fy_deal own; /* of tasks in no group */
    fy_deal *deal;
    fy_groups groups;
    fy_links ranks;
    fy_links nodes;
    uint64_t chunk_bytes;
    double chunk_time;
    fy_debt *rest;          /* [2 n_ranks] what a port must still do */
    fy_debt *node_rest;     /* [2 n_nodes] */
    bool *busy;             /* [2 n_ranks] ports in this round */
    fy_transfer *transfers; /* [n_ranks] of this round */
    uint32_t n_transfers;
    uint32_t round;
    double horizon;
    uint64_t left_over; /* bytes that receivers still lack */
    bool covering;      /* critical ports first; then whoever is free */
    bool half;
    bool chain; /* members pass on to the next one only */
} fy_relaying;

/* A vertex to be served. */
typedef struct fy_port {
    double rest;
    uint32_t vertex;
} fy_port;

/* Everything that travels in a round; ports has room for 2 n_ranks. */
ferry_status fy_relay_round(fy_relaying *relaying, uint32_t round, fy_port *ports,
                            ferry_error *error);
/* Gives the matchings their rules. */
void fy_relay_set_rules(fy_relaying *relaying);

#endif
