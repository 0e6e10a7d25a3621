/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/content.h"
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
    if (t->out == NULL) {
        return fy_fail_no_memory(error, "the traffic of ranks");
    }
    t->in       = t->out + n;
    t->node_out = t->in + n;
    t->node_in  = t->node_out + nodes;
    return FERRY_OK;
}

static bool crosses(const fy_network *network, const fy_task *task)
{
    return network->n_nodes != 0 &&
           fy_network_node(network, task->from) != fy_network_node(network, task->to);
}

static void add_all(traffic *t, const fy_pairs *pairs, const fy_network *network)
{
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        const fy_task *task = &pairs->tasks[i];
        t->out[task->from] += task->bytes;
        t->in[task->to] += task->bytes;
        if (crosses(network, task)) {
            t->node_out[fy_network_node(network, task->from)] += task->bytes;
            t->node_in[fy_network_node(network, task->to)] += task->bytes;
        }
    }
}

/*
 * What several receivers want leaves its sender and its node once, and enters a node once: the
 * receivers can pass it on. They are in order of ranks, so those of a node come together.
 */
static void count_once(traffic *t, const fy_pairs *pairs, const fy_contents *contents,
                       const fy_network *network)
{
    for (uint32_t c = 0; c < contents->n; c++) {
        bool     left      = false;
        uint32_t last_node = UINT32_MAX;
        for (uint32_t i = contents->begin[c]; i < contents->begin[c + 1]; i++) {
            const fy_task *task = &pairs->tasks[contents->tasks[i]];
            if (i > contents->begin[c]) {
                t->out[task->from] -= task->bytes;
            }
            if (!crosses(network, task)) {
                continue;
            }
            uint32_t node = fy_network_node(network, task->to);
            if (left) {
                t->node_out[fy_network_node(network, task->from)] -= task->bytes;
            }
            if (node == last_node) {
                t->node_in[node] -= task->bytes;
            }
            left      = true;
            last_node = node;
        }
    }
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
    traffic      t        = {0};
    fy_contents  contents = {0};
    fy_bound     bound    = {.reason = FERRY_BOUND_NONE};
    ferry_status status   = traffic_init(&t, network, error);
    if (status == FERRY_OK) {
        status = fy_contents_init(pairs, &contents, error);
    }
    if (status == FERRY_OK) {
        add_all(&t, pairs, network);
        count_once(&t, pairs, &contents, network);
        find_busiest(&t, network, duplex, &bound);
        *bound_out = bound;
    }
    fy_contents_cleanup(&contents);
    fy_free(t.out);
    return status;
}
