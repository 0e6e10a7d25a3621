/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_CLUSTER_H
#define FY_BASE_CLUSTER_H

#include "base/checked.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rates in bytes per second; without a cluster, one byte per unit of time. */
typedef struct fy_node_rate {
    uint32_t node;
    double rank_rate;
    double node_rate;
} fy_node_rate;

/* What the network of a spec, or of a program that schedules, can do. */
typedef struct fy_cluster {
    bool present;
    uint32_t ranks_per_node;
    double rank_rate;
    double node_rate;
    double latency_s;
    size_t n_overrides;
    fy_node_rate *overrides; /* by ascending node */
} fy_cluster;

static inline uint32_t fy_cluster_node_count(const fy_cluster *cluster, uint32_t n_ranks)
{
    return n_ranks == 0 || !cluster->present ? 0 : (n_ranks - 1) / cluster->ranks_per_node + 1;
}

/* Spells rates out for a world: of each rank and of each node; either place may be NULL. */
void fy_cluster_fill_rates(const fy_cluster *cluster, uint32_t n_ranks, double *rank_rate,
                           double *node_rate);

#endif
