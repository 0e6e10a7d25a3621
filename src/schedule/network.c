/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/schedule.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/sort.h"

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
    FY_TRY(fy_check_use(options != NULL && cluster_out != NULL,
                        "ferry_cluster_create needs options that began as "
                        "FERRY_CLUSTER_OPTIONS_INIT, and a place for the result",
                        error));
    ferry_cluster_options own;
    FY_TRY(fy_take_cluster_options(options, &own, error));
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
    FY_TRY(fy_check_memory(cluster != NULL, "a cluster", error));
    *cluster = (ferry_cluster){.rates = {.present = true,
                                         .ranks_per_node = own.ranks_per_node,
                                         .rank_rate = own.rank_bytes_per_s,
                                         .node_rate = own.node_bytes_per_s,
                                         .latency_s = own.latency_s}};
    *cluster_out = cluster;
    return FERRY_OK;
}

/* Where the first override of this node or a later one stands. */
static size_t find_override(const fy_cluster *rates, uint32_t node)
{
    FY_BISECT(size_t, low, 0, rates->n_overrides, middle, rates->overrides[middle].node < node);
    return low;
}

ferry_status ferry_cluster_set_node(ferry_cluster *cluster, uint32_t node, double rank_bytes_per_s,
                                    double node_bytes_per_s, ferry_error *error)
{
    FY_TRY(fy_check_use(cluster != NULL, "ferry_cluster_set_node needs a cluster", error));
    if (!is_rate(rank_bytes_per_s) || !is_rate(node_bytes_per_s)) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "node %u has ranks of %g bytes/s and a port of %g bytes/s; rates are "
                       "from 1e-6 to 1e30",
                       node, rank_bytes_per_s, node_bytes_per_s);
    }
    fy_cluster *rates = &cluster->rates;
    size_t place = find_override(rates, node);
    if (place < rates->n_overrides && rates->overrides[place].node == node) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "node %u has rates of its own already (ranks %g, port %g bytes/s); set a "
                       "node once",
                       node, rates->overrides[place].rank_rate, rates->overrides[place].node_rate);
    }
    FY_TRY(FY_GROW(rates->overrides, cluster->override_capacity, rates->n_overrides + 1,
                   "the nodes of a cluster", error));
    memmove(&rates->overrides[place + 1], &rates->overrides[place],
            (rates->n_overrides - place) * sizeof *rates->overrides);
    rates->overrides[place] =
        (fy_node_rate){.node = node, .rank_rate = rank_bytes_per_s, .node_rate = node_bytes_per_s};
    rates->n_overrides++;
    return FERRY_OK;
}

void ferry_cluster_destroy(ferry_cluster *cluster)
{
    if (cluster != NULL) {
        fy_free(cluster->rates.overrides);
        fy_free(cluster);
    }
}

/* Whether the port of any node can ever limit its ranks. Nothing leaves the only node there is. */
static bool nodes_bind(const fy_network *network)
{
    bool binds = false;
    for (uint32_t node = 0; node < network->n_nodes && network->n_nodes > 1; node++) {
        uint64_t first = (uint64_t)node * network->ranks_per_node;
        uint64_t end = fy_min(first + network->ranks_per_node, network->n_ranks);
        binds = binds || network->rank_rate[first] * (double)(end - first) >
                             network->node_rate[node] * (1 + SAME_RATE);
    }
    return binds;
}

ferry_status fy_network_init(const fy_cluster *cluster, uint32_t n_ranks, fy_network *network_out,
                             ferry_error *error)
{
    fy_network network = {.has_seconds = cluster->present,
                          .n_ranks = n_ranks,
                          .n_nodes = fy_cluster_node_count(cluster, n_ranks),
                          .ranks_per_node = cluster->present ? cluster->ranks_per_node : 1,
                          .latency = cluster->latency_s};
    network.rank_rate = fy_alloc(n_ranks, sizeof *network.rank_rate);
    network.node_rate = fy_alloc(network.n_nodes, sizeof *network.node_rate);
    if (network.rank_rate == NULL || network.node_rate == NULL) {
        fy_network_cleanup(&network);
        return fy_fail_no_memory(error, "the rates of a network");
    }
    fy_cluster_fill_rates(cluster, n_ranks, network.rank_rate, network.node_rate);
    network.n_nodes = nodes_bind(&network) ? network.n_nodes : 0;
    *network_out = network;
    return FERRY_OK;
}

void fy_network_cleanup(fy_network *network)
{
    fy_free(network->rank_rate);
    fy_free(network->node_rate);
    *network = (fy_network){0};
}
