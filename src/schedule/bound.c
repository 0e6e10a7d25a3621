/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/tasks.h"

#include "base/alloc.h"

/* Bytes through the ports of ranks and nodes, in and out. */
typedef struct traffic {
    uint64_t *out;      /* [n_ranks] */
    uint64_t *in;       /* [n_ranks] */
    uint64_t *node_out; /* [n_nodes] */
    uint64_t *node_in;
} traffic;

static ferry_status traffic_init(traffic *t, const fy_network *network, ferry_error *error)
{
    size_t n = network->n_ranks, nodes = network->n_nodes;
    t->out = fy_alloc_zeroed(2 * (n + nodes), sizeof *t->out);
    FY_TRY(fy_check_memory(t->out != NULL, "the traffic of ranks", error));
    t->in = t->out + n;
    t->node_out = t->in + n;
    t->node_in = t->node_out + nodes;
    return FERRY_OK;
}

static bool crosses(const fy_network *network, const fy_pair *pair)
{
    return network->n_nodes != 0 &&
           fy_network_node(network, pair->from) != fy_network_node(network, pair->to);
}

static void add_all(traffic *t, const fy_pairs *pairs, const fy_network *network)
{
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        t->out[pair->from] += pair->bytes;
        t->in[pair->to] += pair->bytes;
        if (crosses(network, pair)) {
            t->node_out[fy_network_node(network, pair->from)] += pair->bytes;
            t->node_in[fy_network_node(network, pair->to)] += pair->bytes;
        }
    }
}

/* Where a content has been so far: pairs come by receiver, so those of a node come together. */
typedef struct travels {
    bool began;
    uint32_t last_node; /* that it entered: 1 more than its number */
} travels;

/*
 * What several receivers want leaves its sender and its node once, and enters a node once: the
 * receivers can pass it on.
 */
static void count_once(traffic *t, const fy_pair *pair, const fy_task *task, travels *so_far,
                       const fy_network *network)
{
    if (so_far->began) {
        t->out[pair->from] -= task->bytes;
    }
    so_far->began = true;
    if (!crosses(network, pair)) {
        return;
    }
    uint32_t node = fy_network_node(network, pair->to);
    if (so_far->last_node != 0) {
        t->node_out[fy_network_node(network, pair->from)] -= task->bytes;
    }
    if (so_far->last_node == node + 1) {
        t->node_in[node] -= task->bytes;
    }
    so_far->last_node = node + 1;
}

static ferry_status count_contents(traffic *t, const fy_pairs *pairs, const fy_network *network,
                                   ferry_error *error)
{
    travels *so_far = fy_alloc_zeroed(pairs->n_contents, sizeof *so_far);
    FY_TRY(fy_check_memory(so_far != NULL, "the contents of tasks", error));
    for (uint32_t i = 0; i < pairs->n_pairs && pairs->n_contents > 0; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        for (uint32_t k = pair->first; k < pair->first + pair->n_tasks; k++) {
            const fy_task *task = &pairs->tasks[k];
            if (task->content != FY_NO_CONTENT) {
                count_once(t, pair, task, &so_far[task->content], network);
            }
        }
    }
    fy_free(so_far);
    return FERRY_OK;
}

static void consider(fy_bound *bound, double time, uint32_t rank, uint32_t reason)
{
    if (time > bound->time) {
        *bound = (fy_bound){.time = time, .rank = rank, .reason = reason};
    }
}

static void find_busiest(const traffic *t, const fy_network *network, uint32_t duplex,
                         fy_bound *bound)
{
    for (uint32_t rank = 0; rank < network->n_ranks; rank++) {
        double rate = network->rank_rate[rank];
        if (duplex == FERRY_DUPLEX_HALF) {
            consider(bound, (double)(t->out[rank] + t->in[rank]) / rate, rank,
                     t->out[rank] >= t->in[rank] ? FERRY_BOUND_EGRESS : FERRY_BOUND_INGRESS);
        } else {
            consider(bound, (double)t->out[rank] / rate, rank, FERRY_BOUND_EGRESS);
            consider(bound, (double)t->in[rank] / rate, rank, FERRY_BOUND_INGRESS);
        }
    }
    for (uint32_t node = 0; node < network->n_nodes; node++) {
        uint32_t rank = node * network->ranks_per_node;
        consider(bound, (double)t->node_out[node] / network->node_rate[node], rank,
                 FERRY_BOUND_NODE_EGRESS);
        consider(bound, (double)t->node_in[node] / network->node_rate[node], rank,
                 FERRY_BOUND_NODE_INGRESS);
    }
}

ferry_status fy_bound_of(const fy_pairs *pairs, const fy_network *network, uint32_t duplex,
                         fy_bound *bound_out, ferry_error *error)
{
    traffic t = {0};
    fy_bound bound = {.reason = FERRY_BOUND_NONE};
    ferry_status status = traffic_init(&t, network, error);
    if (status == FERRY_OK) {
        add_all(&t, pairs, network);
        status = count_contents(&t, pairs, network, error);
    }
    if (status == FERRY_OK) {
        find_busiest(&t, network, duplex, &bound);
        *bound_out = bound;
    }
    fy_free(t.out);
    return status;
}
