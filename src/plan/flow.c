/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact least level, by Newton's method on cuts. A level is feasible if a maximum flow from the
 * demand to the sets, from these to their members and from there to the servers, each with the
 * capacity level x rate, carries the whole demand. If not, the minimum cut is a group of servers
 * that the level overloads, and the group's own demand / rate is the next level: each step ends at
 * the ratio of a real cut, so there are few. Dinic's algorithm, without recursion.
 */
#include "plan/balance.h"

#include "base/alloc.h"

#include <string.h>

/*
 * Nodes: sets 0 .. n_sets - 1, then servers. A set's residual demand and a server's residual
 * capacity stand for the edges to the source and the sink.
 */
typedef struct network {
    const fy_balance *b;
    double *share;      /* flow from set to member */
    double *left;       /* [n_sets] demand that has not found a way */
    double *spare;      /* [n_servers] capacity that is left */
    size_t *back_begin; /* [n_servers + 1]: the set-member edges of each server */
    size_t *back_edge;
    uint32_t *edge_set; /* the set of each edge */
    uint32_t *depth;    /* [nodes] */
    uint32_t *queue;
    size_t *next; /* [nodes] the edge to try next */
    size_t *path; /* edges of the path at work, and whether forward is by parity */
    double noise; /* amounts below this are rounding */
} network;

static const uint32_t UNREACHED = UINT32_MAX;

static void network_cleanup(network *n)
{
    fy_free(n->left);
    fy_free(n->spare);
    fy_free(n->back_begin);
    fy_free(n->back_edge);
    fy_free(n->edge_set);
    fy_free(n->depth);
    fy_free(n->queue);
    fy_free(n->next);
    fy_free(n->path);
}

static bool network_init(network *n, const fy_balance *b, double *share)
{
    size_t n_edges = b->member_begin[b->n_sets];
    size_t n_nodes = b->n_sets + b->n_servers;
    *n = (network){.b = b, .share = share};
    n->left = fy_alloc(b->n_sets, sizeof *n->left);
    n->spare = fy_alloc(b->n_servers, sizeof *n->spare);
    n->back_begin = fy_alloc_zeroed(b->n_servers + 1, sizeof *n->back_begin);
    n->back_edge = fy_alloc(n_edges, sizeof *n->back_edge);
    n->edge_set = fy_alloc(n_edges, sizeof *n->edge_set);
    n->depth = fy_alloc(n_nodes, sizeof *n->depth);
    n->queue = fy_alloc(n_nodes, sizeof *n->queue);
    n->next = fy_alloc(n_nodes, sizeof *n->next);
    n->path = fy_alloc(n_nodes, sizeof *n->path);
    if (n->left == NULL || n->spare == NULL || n->back_begin == NULL || n->back_edge == NULL ||
        n->edge_set == NULL || n->depth == NULL || n->queue == NULL || n->next == NULL ||
        n->path == NULL) {
        return false;
    }
    for (size_t e = 0; e < n_edges; e++) {
        n->back_begin[b->members[e] + 1]++;
    }
    for (size_t i = 0; i < b->n_servers; i++) {
        n->back_begin[i + 1] += n->back_begin[i];
    }
    for (size_t s = 0; s < b->n_sets; s++) {
        for (size_t e = b->member_begin[s]; e < b->member_begin[s + 1]; e++) {
            n->edge_set[e] = (uint32_t)s;
            n->back_edge[n->back_begin[b->members[e]]++] = e;
        }
    }
    for (size_t i = b->n_servers; i > 0; i--) {
        n->back_begin[i] = n->back_begin[i - 1]; /* the filling moved each begin to its end */
    }
    n->back_begin[0] = 0;
    return true;
}

static double rate_of(const fy_balance *b, size_t server)
{
    return b->rate == NULL ? 1.0 : b->rate[server];
}

static void network_reset(network *n, double level)
{
    const fy_balance *b = n->b;
    double total = 0;
    for (size_t s = 0; s < b->n_sets; s++) {
        n->left[s] = b->demand[s];
        total += b->demand[s];
    }
    for (size_t i = 0; i < b->n_servers; i++) {
        n->spare[i] = level * rate_of(b, i);
    }
    memset(n->share, 0, b->member_begin[b->n_sets] * sizeof *n->share);
    n->noise = total * 1e-13;
}

/* Depths from the sets with demand left; true if a server with spare capacity is reached. */
static bool find_depths(network *n)
{
    const fy_balance *b = n->b;
    size_t head = 0, tail = 0;
    bool reached = false;
    for (size_t i = 0; i < b->n_sets + b->n_servers; i++) {
        n->depth[i] = UNREACHED;
        n->next[i] = 0;
    }
    for (size_t s = 0; s < b->n_sets; s++) {
        if (n->left[s] > n->noise) {
            n->depth[s] = 0;
            n->queue[tail++] = (uint32_t)s;
        }
    }
    while (head < tail) {
        uint32_t node = n->queue[head++];
        if (node < b->n_sets) {
            for (size_t e = b->member_begin[node]; e < b->member_begin[node + 1]; e++) {
                uint32_t server = (uint32_t)b->n_sets + b->members[e];
                if (n->depth[server] == UNREACHED) {
                    n->depth[server] = n->depth[node] + 1;
                    n->queue[tail++] = server;
                }
            }
            continue;
        }
        size_t server = node - b->n_sets;
        reached = reached || n->spare[server] > n->noise;
        for (size_t i = n->back_begin[server]; i < n->back_begin[server + 1]; i++) {
            uint32_t set = n->edge_set[n->back_edge[i]];
            if (n->depth[set] == UNREACHED && n->share[n->back_edge[i]] > n->noise) {
                n->depth[set] = n->depth[node] + 1;
                n->queue[tail++] = set;
            }
        }
    }
    return reached;
}

/* The next admissible edge out of a node, or SIZE_MAX. */
static size_t admissible(network *n, uint32_t node)
{
    const fy_balance *b = n->b;
    if (node < b->n_sets) {
        size_t degree = b->member_begin[node + 1] - b->member_begin[node];
        for (; n->next[node] < degree; n->next[node]++) {
            size_t e = b->member_begin[node] + n->next[node];
            if (n->depth[b->n_sets + b->members[e]] == n->depth[node] + 1) {
                return e;
            }
        }
        return SIZE_MAX;
    }
    size_t server = node - b->n_sets;
    size_t degree = n->back_begin[server + 1] - n->back_begin[server];
    for (; n->next[node] < degree; n->next[node]++) {
        size_t e = n->back_edge[n->back_begin[server] + n->next[node]];
        if (n->share[e] > n->noise && n->depth[n->edge_set[e]] == n->depth[node] + 1) {
            return e;
        }
    }
    return SIZE_MAX;
}

/* Even places of the path run from set to server, odd ones back. */
static void push_along(network *n, uint32_t set, size_t server, size_t length)
{
    double amount = n->left[set] < n->spare[server] ? n->left[set] : n->spare[server];
    for (size_t i = 1; i < length; i += 2) {
        double most = n->share[n->path[i]];
        amount = most < amount ? most : amount;
    }
    for (size_t i = 0; i < length; i++) {
        n->share[n->path[i]] += i % 2 == 0 ? amount : -amount;
    }
    n->left[set] -= amount;
    n->spare[server] -= amount;
}

/* One path from a set to spare capacity by admissible edges; false when there is none. */
static bool augment_from(network *n, uint32_t set)
{
    uint32_t n_sets = (uint32_t)n->b->n_sets;
    uint32_t node = set;
    size_t length = 0;
    for (;;) {
        if (node >= n_sets && n->spare[node - n_sets] > n->noise) {
            push_along(n, set, node - n_sets, length);
            return true;
        }
        size_t e = admissible(n, node);
        if (e != SIZE_MAX) {
            n->path[length++] = e;
            node = node < n_sets ? n_sets + n->b->members[e] : n->edge_set[e];
            continue;
        }
        if (length == 0) {
            return false;
        }
        /* A dead end: step back and do not come here again. */
        e = n->path[--length];
        node = length % 2 == 0 ? n->edge_set[e] : n_sets + n->b->members[e];
        n->next[node]++;
    }
}

static void run_flow(network *n)
{
    while (find_depths(n)) {
        for (size_t s = 0; s < n->b->n_sets; s++) {
            while (n->left[s] > n->noise && augment_from(n, (uint32_t)s)) {}
        }
    }
}

/* After a flow that left demand behind: the ratio of the cut, whose nodes are those with a depth.
 */
static double cut_ratio(network *n, uint32_t *server_out)
{
    const fy_balance *b = n->b;
    double demand = 0, rate = 0;
    *server_out = UINT32_MAX;
    for (size_t s = 0; s < b->n_sets; s++) {
        demand += n->depth[s] == UNREACHED ? 0 : b->demand[s];
    }
    for (size_t i = b->n_servers; i > 0; i--) {
        if (n->depth[b->n_sets + i - 1] != UNREACHED) {
            rate += rate_of(b, i - 1);
            *server_out = (uint32_t)(i - 1);
        }
    }
    return rate > 0 ? demand / rate : 0;
}

ferry_status fy_balance_flow(fy_balance *b, double level_at_least, double *flow_share,
                             ferry_error *error)
{
    network n;
    double level = level_at_least;
    if (!network_init(&n, b, flow_share)) {
        network_cleanup(&n);
        return fy_fail_no_memory(error, "the flow between replicas");
    }
    for (;;) {
        uint32_t server;
        network_reset(&n, level);
        run_flow(&n);
        double next = cut_ratio(&n, &server);
        if (next <= level * (1 + 1e-12)) {
            break;
        }
        level = next;
        b->server = server;
    }
    b->level = level;
    /* What rounding left over must not be lost: it goes to each set's first member. */
    for (size_t s = 0; s < b->n_sets; s++) {
        if (n.left[s] > 0) {
            flow_share[b->member_begin[s]] += n.left[s];
        }
    }
    network_cleanup(&n);
    return FERRY_OK;
}
