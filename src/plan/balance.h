/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_BALANCE_H
#define FY_PLAN_BALANCE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Spreads load over servers. Every set has a demand that its members, servers, may share in any
 * proportion; the most loaded server, load over rate, is to be as low as possible.
 *
 * The optimum is the largest of demand / rate over all groups of servers, where a group's demand is
 * that of the sets that lie wholly inside it: the cut of a flow problem. Shares come from repeated
 * water-filling, which evens out all levels and is exact in one pass where sets are alike or
 * nested; where that does not converge, from the flow itself.
 */
typedef struct fy_balance {
    size_t n_servers;
    const double *rate; /* [n_servers]; NULL: all 1 */
    size_t n_sets;
    const size_t *member_begin; /* [n_sets + 1] into members and shares */
    const uint32_t *members;    /* servers, distinct within a set */
    const double *demand;       /* [n_sets] */
    /* Results. */
    double *share;   /* [members] caller's memory: how much of the demand each member takes */
    double *load;    /* [n_servers] caller's memory */
    double level;    /* the exact optimum: the least possible highest load / rate */
    uint32_t server; /* one that no solution can relieve */
} fy_balance;

ferry_status fy_balance_solve(fy_balance *balance, ferry_error *error);

/* For the exact case: feasibility of a level by maximum flow. Internal to the solver. */
ferry_status fy_balance_flow(fy_balance *balance, double level_at_least, double *flow_share,
                             ferry_error *error);

#endif
