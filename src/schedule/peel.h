/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_PEEL_H
#define FY_SCHEDULE_PEEL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Open shop with preemption (Gonzalez and Sahni): a matrix of times is peeled into rounds in each
 * of which every port serves one other for the same time, so that ports of the largest load never
 * idle and the rounds together last no longer than that load. Exact peeling takes as many rounds as
 * there are entries; here a round lasts at least a threshold that falls geometrically, which takes
 * a few rounds per peer and leaves leftovers.
 *
 * The caller keeps the amounts: avail tells how much time of an edge can be served without a break,
 * take serves some of it.
 */
typedef struct fy_peel {
    uint32_t n_left;
    uint32_t n_right;
    uint32_t n_edges;
    const uint32_t *left;  /* [n_edges] */
    const uint32_t *right; /* [n_edges] */
    uint64_t *rest;        /* [n_edges] time left; lowered by take */
    uint64_t *load;        /* [n_left + n_right] sums of rest, kept up to date */
    uint64_t grain;        /* durations are multiples where possible */
    uint64_t shortest;     /* no round is meant to last less */
    uint64_t leftovers;    /* stop when no port has more left than that */
    void *context;
    /* At most rest[edge], which may be 0 for now. */
    uint64_t (*avail)(void *context, uint32_t edge);
    /* Serves up to duration of an edge in a round; says how much it was. */
    ferry_status (*take)(void *context, uint32_t edge, uint32_t round, uint64_t duration,
                         uint64_t *taken_out, ferry_error *error);
} fy_peel;

/*
 * Peels until only leftovers are left, or no round of the shortest duration serves all critical
 * ports. Rounds are numbered from first_round; *end_out is the number after the last.
 */
ferry_status fy_peel_run(fy_peel *peel, uint32_t first_round, uint32_t *end_out,
                         ferry_error *error);

#endif
