/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/schedule.h"

#include "base/alloc.h"
#include "base/options.h"

#include <math.h>
#include <string.h>

/* The rates of a node's ranks may add up to its own but for rounding: that is no limit. */
static const double SAME_RATE = 1e-12;

/* Sums and quotients of what lies in between stay far from the ends of doubles. */
static const double LEAST_RATE = 1e-6, MOST_RATE = 1e30, MOST_LATENCY = 1e9;

static bool is_rate(double rate)
{
    return rate >= LEAST_RATE && rate <= MOST_RATE;
}

ferry_status ferry_cluster_create(const ferry_cluster_options *options, ferry_cluster **cluster_out,
                                  ferry_error *error)
{
    if (options == NULL || cluster_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_cluster_create needs options that began as "
                       "FERRY_CLUSTER_OPTIONS_INIT, and a place for the result");
    }
    ferry_cluster_options own;
    ferry_status status = fy_take_cluster_options(options, &own, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (own.ranks_per_node == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "cluster has 0 ranks per node; a node has at least 1");
    }
    if (!is_rate(own.rank_bytes_per_s) || !is_rate(own.node_bytes_per_s)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "cluster has ranks of %g bytes/s and nodes of %g bytes/s; rates are "
                       "from 1e-6 to 1e30",
                       own.rank_bytes_per_s, own.node_bytes_per_s);
    }
    if (!(own.latency_s >= 0 && own.latency_s <= MOST_LATENCY)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "cluster has a latency of %g s; it is from 0 to 1e9", own.latency_s);
    }
    ferry_cluster *cluster = fy_alloc(1, sizeof *cluster);
    if (cluster == NULL) {
        return fy_fail_no_memory(error, "a cluster");
    }
    *cluster = (ferry_cluster){.ranks_per_node = own.ranks_per_node,
                               .rank_rate = own.rank_bytes_per_s,
                               .node_rate = own.node_bytes_per_s,
                               .latency = own.latency_s};
    *cluster_out = cluster;
    return FERRY_OK;
}

/* Where the first override of this node or a later one stands. */
static size_t find_override(const ferry_cluster *cluster, uint32_t node)
{
    size_t low = 0, high = cluster->n_overrides;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cluster->overrides[middle].node < node) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

ferry_status ferry_cluster_set_node(ferry_cluster *cluster, uint32_t node, double rank_bytes_per_s,
                                    double node_bytes_per_s, ferry_error *error)
{
    if (cluster == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_cluster_set_node needs a cluster");
    }
    if (!is_rate(rank_bytes_per_s) || !is_rate(node_bytes_per_s)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "node %u has ranks of %g bytes/s and a port of %g bytes/s; rates are "
                       "from 1e-6 to 1e30",
                       node, rank_bytes_per_s, node_bytes_per_s);
    }
    size_t place = find_override(cluster, node);
    if (place < cluster->n_overrides && cluster->overrides[place].node == node) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "node %u has rates of its own already (ranks %g, port %g bytes/s); set a "
                       "node once",
                       node, cluster->overrides[place].rank_rate,
                       cluster->overrides[place].node_rate);
    }
    if (!fy_reserve((void **)&cluster->overrides, &cluster->override_capacity,
                    cluster->n_overrides + 1, sizeof *cluster->overrides)) {
        return fy_fail_no_memory(error, "the nodes of a cluster");
    }
    memmove(&cluster->overrides[place + 1], &cluster->overrides[place],
            (cluster->n_overrides - place) * sizeof *cluster->overrides);
    cluster->overrides[place] =
        (fy_node_port){.node = node, .rank_rate = rank_bytes_per_s, .node_rate = node_bytes_per_s};
    cluster->n_overrides++;
    return FERRY_OK;
}

void ferry_cluster_destroy(ferry_cluster *cluster)
{
    if (cluster != NULL) {
        fy_free(cluster->overrides);
        fy_free(cluster);
    }
}

/* Spells out the nodes of the world; whether any of their ports can ever limit its ranks. */
static bool fill_nodes(const ferry_cluster *cluster, fy_network *network)
{
    bool binds = false;
    size_t override = 0;
    for (uint32_t node = 0; node < network->n_nodes; node++) {
        double rank_rate = cluster->rank_rate, node_rate = cluster->node_rate;
        if (override < cluster->n_overrides && cluster->overrides[override].node == node) {
            rank_rate = cluster->overrides[override].rank_rate;
            node_rate = cluster->overrides[override].node_rate;
            override++;
        }
        uint64_t first = (uint64_t)node * cluster->ranks_per_node;
        uint64_t end = first + cluster->ranks_per_node;
        end = end < network->n_ranks ? end : network->n_ranks;
        for (uint64_t rank = first; rank < end; rank++) {
            network->rank_rate[rank] = rank_rate;
        }
        network->node_rate[node] = node_rate;
        binds = binds || rank_rate * (double)(end - first) > node_rate * (1 + SAME_RATE);
    }
    return binds;
}

ferry_status fy_network_init(const ferry_cluster *cluster, uint32_t n_ranks,
                             fy_network *network_out, ferry_error *error)
{
    fy_network network = {.has_seconds = cluster != NULL, .n_ranks = n_ranks, .ranks_per_node = 1};
    if (cluster != NULL) {
        network.ranks_per_node = cluster->ranks_per_node;
        network.latency = cluster->latency;
        network.n_nodes = n_ranks == 0 ? 0 : (n_ranks - 1) / cluster->ranks_per_node + 1;
    }
    network.rank_rate = fy_alloc(n_ranks, sizeof *network.rank_rate);
    network.node_rate = fy_alloc(network.n_nodes, sizeof *network.node_rate);
    if (network.rank_rate == NULL || network.node_rate == NULL) {
        fy_network_cleanup(&network);
        return fy_fail_no_memory(error, "the rates of a network");
    }
    for (uint32_t rank = 0; cluster == NULL && rank < n_ranks; rank++) {
        network.rank_rate[rank] = 1;
    }
    /* Nothing leaves the only node there is. */
    if (cluster != NULL && (!fill_nodes(cluster, &network) || network.n_nodes == 1)) {
        network.n_nodes = 0;
    }
    *network_out = network;
    return FERRY_OK;
}

void fy_network_cleanup(fy_network *network)
{
    fy_free(network->rank_rate);
    fy_free(network->node_rate);
    *network = (fy_network){0};
}
