/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/cluster.h"

void fy_cluster_fill_rates(const fy_cluster *cluster, uint32_t n_ranks, double *rank_rate,
                           double *node_rate)
{
    uint32_t n_nodes = fy_cluster_node_count(cluster, n_ranks);
    for (uint32_t rank = 0; rank < n_ranks && rank_rate != NULL; rank++) {
        rank_rate[rank] = cluster->present ? cluster->rank_rate : 1;
    }
    for (uint32_t node = 0; node < n_nodes && node_rate != NULL; node++) {
        node_rate[node] = cluster->node_rate;
    }
    for (size_t i = 0; i < cluster->n_overrides && cluster->overrides[i].node < n_nodes; i++) {
        const fy_node_rate *own = &cluster->overrides[i];
        uint64_t first = (uint64_t)own->node * cluster->ranks_per_node;
        uint64_t end = fy_min(first + cluster->ranks_per_node, n_ranks);
        for (uint64_t rank = first; rank < end && rank_rate != NULL; rank++) {
            rank_rate[rank] = own->rank_rate;
        }
        if (node_rate != NULL) {
            node_rate[own->node] = own->node_rate;
        }
    }
}
