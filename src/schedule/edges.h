/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_EDGES_H
#define FY_SCHEDULE_EDGES_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define FY_NO_COLOUR UINT32_MAX
#define FY_NO_EDGE UINT32_MAX

/*
 * Batches as the edges of a graph whose vertices are ranks (in full duplex their two ports), and
 * the rounds that they are given: its colours. In columns, for there may be a thousand million.
 */
typedef struct fy_edges {
    uint32_t n_ranks;
    uint32_t n_rounds; /* those in use are below; of whoever gave them */
    size_t n;
    uint32_t *from; /* [capacity], as are the others */
    uint32_t *to;
    uint32_t *round; /* FY_NO_COLOUR: none yet */
} fy_edges;

/* None yet, with room for capacity of them. FERRY_ERR_LIMIT beyond 2^31 - 1. */
ferry_status fy_edges_init(fy_edges *edges, uint32_t n_ranks, size_t capacity, ferry_error *error);
void fy_edges_cleanup(fy_edges *edges); /* of one that is all zero, too */

static inline void fy_edges_add(fy_edges *edges, uint32_t from, uint32_t to, uint32_t round)
{
    edges->from[edges->n] = from;
    edges->to[edges->n] = to;
    edges->round[edges->n++] = round;
}

#endif
