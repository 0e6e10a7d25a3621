/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The makespan against hand-made cases and against a simulator that shares nothing and saves
 * nothing. */
#include "schedule/schedule.h"

#include "base/alloc.h"

#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_BATCHES = 1024, MOST_RANKS = 96, MOST_WAITS = 4096 };

/* A schedule made by hand: only what the timing reads. */
typedef struct world {
    ferry_schedule schedule;
    fy_batch batches[MOST_BATCHES];
    uint64_t wait_begin[MOST_BATCHES + 1], waits[MOST_WAITS];
    uint64_t send_begin[MOST_RANKS + 1], sends[MOST_BATCHES];
    uint64_t recv_begin[MOST_RANKS + 1], recvs[MOST_BATCHES];
} world;

/* Batches come in order of rounds; what a batch waits for is given right after it. */
static void add_batch(world *w, uint32_t round, uint32_t from, uint32_t to, uint64_t bytes)
{
    uint64_t b = w->schedule.n_batches++;
    assert_true(b < MOST_BATCHES);
    w->batches[b] = (fy_batch){.round = round, .from = from, .to = to, .bytes = bytes};
    w->wait_begin[b + 1] = w->wait_begin[b];
}

static void add_wait(world *w, uint64_t batch)
{
    uint64_t *end = &w->wait_begin[w->schedule.n_batches];
    assert_true(*end < MOST_WAITS);
    w->waits[(*end)++] = batch;
}

static void list_batches(world *w)
{
    ferry_schedule *s = &w->schedule;
    uint64_t n_sends = 0, n_recvs = 0;
    assert_true(s->network.n_ranks <= MOST_RANKS);
    for (uint32_t rank = 0; rank < s->network.n_ranks; rank++) {
        for (uint64_t b = 0; b < s->n_batches; b++) {
            if (w->batches[b].from == rank) {
                w->sends[n_sends++] = b;
            }
            if (w->batches[b].to == rank) {
                w->recvs[n_recvs++] = b;
            }
        }
        w->send_begin[rank + 1] = n_sends;
        w->recv_begin[rank + 1] = n_recvs;
    }
    s->batches = w->batches;
    s->wait_begin = w->wait_begin[s->n_batches] == 0 ? NULL : w->wait_begin;
    s->waits = w->waits;
    s->send_begin = w->send_begin;
    s->sends = w->sends;
    s->recv_begin = w->recv_begin;
    s->recvs = w->recvs;
}

/* The simulator: at each event it looks at every batch, and shares the ports out from nothing. */
typedef struct naive {
    const ferry_schedule *schedule;
    uint32_t n_nodes, per;
    double node_rate[MOST_RANKS];
    enum { WAITING, LATENCY, MOVING, ENDED } state[MOST_BATCHES];
    double rest[MOST_BATCHES]; /* of the latency, then bytes */
    double rate[MOST_BATCHES];
    bool is_fixed[MOST_BATCHES];
    double now, busy[MOST_RANKS];
} naive;

static bool is_in_the_way(const naive *n, uint64_t earlier, uint64_t b)
{
    const fy_batch *x = &n->schedule->batches[earlier], *y = &n->schedule->batches[b];
    bool same = x->from == y->from || x->to == y->to;
    if (n->schedule->duplex == FERRY_DUPLEX_HALF) {
        same = same || x->from == y->to || x->to == y->from;
    }
    return same && n->state[earlier] != ENDED;
}

static bool naive_may_start(const naive *n, uint64_t b)
{
    const ferry_schedule *s = n->schedule;
    for (uint64_t earlier = 0; earlier < b; earlier++) {
        if (is_in_the_way(n, earlier, b)) {
            return false;
        }
    }
    for (uint64_t w = s->wait_begin == NULL ? 0 : s->wait_begin[b];
         s->wait_begin != NULL && w < s->wait_begin[b + 1]; w++) {
        if (n->state[s->waits[w]] != ENDED) {
            return false;
        }
    }
    return true;
}

static bool is_at_port(const naive *n, uint64_t b, uint32_t port)
{
    const fy_batch *batch = &n->schedule->batches[b];
    uint32_t from = batch->from / n->per, to = batch->to / n->per;
    return n->state[b] == MOVING && from != to &&
           port == (port < n->n_nodes ? from : n->n_nodes + to);
}

/* The level up to which the flows not yet fixed may rise as far as this port goes. */
static double naive_port_level(const naive *n, uint32_t port)
{
    double left = n->node_rate[port % n->n_nodes];
    uint32_t n_open = 0;
    for (uint64_t b = 0; b < n->schedule->n_batches; b++) {
        if (is_at_port(n, b, port)) {
            left -= n->is_fixed[b] ? n->rate[b] : 0;
            n_open += !n->is_fixed[b];
        }
    }
    return n_open == 0 ? INFINITY : left / n_open;
}

/* Progressive filling: all rise together, and what hits a limit stays there. */
static void naive_share(naive *n)
{
    const ferry_schedule *s = n->schedule;
    uint64_t n_open = 0;
    for (uint64_t b = 0; b < s->n_batches; b++) {
        n->is_fixed[b] = n->state[b] != MOVING;
        n_open += !n->is_fixed[b];
    }
    while (n_open > 0) {
        double level = INFINITY, port_level[2 * MOST_RANKS];
        for (uint32_t port = 0; port < 2 * n->n_nodes; port++) {
            port_level[port] = naive_port_level(n, port);
            level = fmin(level, port_level[port]);
        }
        for (uint64_t b = 0; b < s->n_batches; b++) {
            double cap = fy_network_rate(&s->network, s->batches[b].from, s->batches[b].to);
            level = n->is_fixed[b] ? level : fmin(level, cap);
        }
        for (uint64_t b = 0; b < s->n_batches; b++) {
            if (n->is_fixed[b]) {
                continue;
            }
            double limit = fy_network_rate(&s->network, s->batches[b].from, s->batches[b].to);
            for (uint32_t port = 0; port < 2 * n->n_nodes; port++) {
                limit = is_at_port(n, b, port) ? fmin(limit, port_level[port]) : limit;
            }
            if (limit <= level * (1 + 1e-12)) {
                n->is_fixed[b] = true;
                n->rate[b] = level;
                n_open--;
            }
        }
    }
}

/* Everything that ends or begins now; whether anything did. */
static bool naive_switch(naive *n)
{
    const ferry_schedule *s = n->schedule;
    bool changed = false;
    for (uint64_t b = 0; b < s->n_batches; b++) {
        if (n->state[b] == LATENCY && n->rest[b] <= 0) {
            n->state[b] = MOVING;
            n->rest[b] = (double)s->batches[b].bytes;
            changed = true;
        }
        if (n->state[b] == MOVING && n->rest[b] <= 0) {
            n->state[b] = ENDED;
            changed = true;
        }
        if (n->state[b] == WAITING && naive_may_start(n, b)) {
            n->state[b] = LATENCY;
            n->rest[b] = s->network.latency;
            changed = true;
        }
    }
    return changed;
}

static double naive_left(const naive *n, uint64_t b)
{
    return n->state[b] == LATENCY  ? n->rest[b]
           : n->state[b] == MOVING ? n->rest[b] / n->rate[b]
                                   : INFINITY;
}

static void naive_advance(naive *n, double step)
{
    bool is_busy[MOST_RANKS] = {false};
    for (uint64_t b = 0; b < n->schedule->n_batches; b++) {
        double left = naive_left(n, b);
        if (isfinite(left)) {
            is_busy[n->schedule->batches[b].from] = true;
            is_busy[n->schedule->batches[b].to] = true;
            n->rest[b] -= step * (n->state[b] == MOVING ? n->rate[b] : 1);
            n->rest[b] = left <= step * (1 + 1e-12) ? 0 : n->rest[b];
        }
    }
    for (uint32_t rank = 0; rank < n->schedule->network.n_ranks; rank++) {
        n->busy[rank] += is_busy[rank] ? step : 0;
    }
    n->now += step;
}

static void naive_run(naive *n, const ferry_schedule *schedule, uint32_t per, uint32_t n_nodes)
{
    n->schedule = schedule;
    n->per = per;
    n->n_nodes = n_nodes;
    n->now = 0;
    memset(n->state, 0, sizeof n->state);
    memset(n->busy, 0, sizeof n->busy);
    for (;;) {
        while (naive_switch(n)) {}
        naive_share(n);
        double step = INFINITY;
        for (uint64_t b = 0; b < schedule->n_batches; b++) {
            step = fmin(step, naive_left(n, b));
        }
        if (step == INFINITY) {
            break;
        }
        naive_advance(n, step);
    }
}

typedef struct override {
    uint32_t node;
    double rank_rate, node_rate;
} override;

typedef struct timing_case {
    const char *name;
    uint32_t n_ranks, duplex;
    struct {
        uint32_t per; /* ranks of a node; 0: no cluster */
        double rank_rate, node_rate, latency;
    } cluster;
    override slow; /* rates 0: none */
    struct {
        uint32_t round, from, to, bytes;
        uint32_t wait; /* 1 + the number of a batch; 0: none */
    } batches[3];
    double makespan, idle[6];
} timing_case;

enum { FULL = FERRY_DUPLEX_FULL, HALF = FERRY_DUPLEX_HALF };

static const timing_case CASES[] = {
    {"nothing", 2, FULL, .makespan = 0},
    {"a chain that relays", 3, FULL, .batches = {{0, 0, 1, 10, 0}, {1, 1, 2, 10, 1}},
     .makespan = 20, .idle = {10, 0, 10}},
    {"a chain that does not", 3, FULL, .batches = {{0, 0, 1, 10, 0}, {1, 1, 2, 10, 0}},
     .makespan = 10},
    {"half duplex", 3, HALF, .batches = {{0, 0, 1, 10, 0}, {1, 1, 2, 4, 0}}, .makespan = 14,
     .idle = {4, 0, 10}},
    {"half duplex, both ways", 2, HALF, .batches = {{0, 0, 1, 10, 0}, {1, 1, 0, 4, 0}},
     .makespan = 14},
    {"full duplex, both ways", 2, FULL, .batches = {{0, 0, 1, 10, 0}, {0, 1, 0, 4, 0}},
     .makespan = 10},
    {"incast", 4, FULL, .batches = {{0, 0, 3, 5, 0}, {1, 1, 3, 7, 0}, {2, 2, 3, 1, 0}},
     .makespan = 13, .idle = {8, 6, 12, 0}},
    {"a rank keeps its order", 4, FULL,
     .batches = {{0, 0, 1, 10, 0}, {1, 2, 1, 1, 0}, {2, 2, 3, 1, 0}}, .makespan = 12,
     .idle = {2, 1, 10, 11}},
    {"sends and receives overlap", 3, FULL,
     .batches = {{0, 0, 1, 10, 0}, {1, 1, 2, 6, 0}, {1, 2, 0, 3, 1}}, .makespan = 13,
     .idle = {0, 3, 4}},
    {"the slower rank and the latency", 4, FULL, .cluster = {1, 10, 100, 2}, .slow = {1, 5, 100},
     .batches = {{0, 0, 1, 50, 0}, {0, 2, 3, 50, 0}}, .makespan = 12, .idle = {0, 0, 5, 5}},
    {"a node's port is slower than its rank", 2, FULL, .cluster = {1, 10, 4, 1}, .slow = {9, 1, 1},
     .batches = {{0, 0, 1, 20, 0}}, .makespan = 6},
    {"two share a node's port", 4, FULL, .cluster = {2, 10, 10, 0},
     .batches = {{0, 0, 2, 100, 0}, {0, 1, 3, 50, 0}}, .makespan = 15, .idle = {0, 5, 0, 5}},
    {"two directions do not", 4, FULL, .cluster = {2, 10, 10, 0},
     .batches = {{0, 0, 2, 100, 0}, {0, 3, 1, 100, 0}}, .makespan = 10},
    {"nor does what stays in the node", 4, FULL, .cluster = {2, 10, 10, 0},
     .batches = {{0, 0, 2, 100, 0}, {0, 1, 0, 100, 0}}, .makespan = 10, .idle = {0, 0, 0, 10}},
    {"latency takes no share", 4, FULL, .cluster = {2, 10, 10, 4},
     .batches = {{0, 0, 2, 100, 0}, {0, 1, 0, 10, 0}, {1, 1, 3, 50, 0}}, .makespan = 19,
     .idle = {0, 0, 0, 5}},
    {"what a capped batch leaves", 6, FULL, .cluster = {2, 10, 8, 0}, .slow = {1, 2, 100},
     .batches = {{0, 0, 2, 20, 0}, {0, 1, 4, 60, 0}}, .makespan = 10, .idle = {0, 0, 0, 10, 0, 10}},
    {"what a narrow node leaves", 6, FULL, .cluster = {2, 10, 10, 0}, .slow = {0, 10, 4},
     .batches = {{0, 0, 2, 20, 0}, {0, 1, 4, 20, 0}, {0, 3, 5, 80, 0}}, .makespan = 10},
    {"a relay to another node", 4, FULL, .cluster = {2, 10, 10, 1},
     .batches = {{0, 0, 2, 40, 0}, {0, 1, 3, 40, 0}, {1, 2, 3, 40, 1}}, .makespan = 14,
     .idle = {5, 5, 0, 0}},
    {"half duplex between nodes", 4, HALF, .cluster = {2, 10, 10, 0},
     .batches = {{0, 0, 2, 50, 0}, {0, 1, 3, 50, 0}, {1, 2, 1, 30, 0}}, .makespan = 13,
     .idle = {3, 0, 0, 3}},
};

static const fy_cluster *rates_of(const ferry_cluster *cluster)
{
    static const fy_cluster none = {.present = false};
    return cluster == NULL ? &none : &cluster->rates;
}

static ferry_cluster *cluster_of(uint32_t per, double rank_rate, double node_rate, double latency)
{
    ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
    ferry_cluster *cluster = NULL;
    ferry_error error;
    options.ranks_per_node = per;
    options.rank_bytes_per_s = rank_rate;
    options.node_bytes_per_s = node_rate;
    options.latency_s = latency;
    must(ferry_cluster_create(&options, &cluster, &error), &error);
    return cluster;
}

static void make_case(world *w, const timing_case *row)
{
    ferry_error error;
    ferry_cluster *cluster = NULL;
    memset(w, 0, sizeof *w);
    if (row->cluster.per > 0) {
        cluster = cluster_of(row->cluster.per, row->cluster.rank_rate, row->cluster.node_rate,
                             row->cluster.latency);
    }
    if (row->slow.rank_rate > 0) {
        must(ferry_cluster_set_node(cluster, row->slow.node, row->slow.rank_rate,
                                    row->slow.node_rate, &error),
             &error);
    }
    must(fy_network_init(rates_of(cluster), row->n_ranks, &w->schedule.network, &error), &error);
    ferry_cluster_destroy(cluster);
    w->schedule.duplex = row->duplex;
    for (size_t b = 0; b < COUNT_OF(row->batches) && row->batches[b].bytes > 0; b++) {
        add_batch(w, row->batches[b].round, row->batches[b].from, row->batches[b].to,
                  row->batches[b].bytes);
        if (row->batches[b].wait > 0) {
            add_wait(w, row->batches[b].wait - 1);
        }
    }
    list_batches(w);
}

static void test_cases(void **state)
{
    world *w = *state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        double makespan = -1, idle[6];
        ferry_error error;
        make_case(w, &CASES[i]);
        must(fy_schedule_time(&w->schedule, &makespan, idle, &error), &error);
        check_at(fabs(makespan - CASES[i].makespan) <= 1e-12 * makespan, "%s: %.17g, not %g",
                 CASES[i].name, makespan, CASES[i].makespan);
        for (uint32_t rank = 0; rank < CASES[i].n_ranks; rank++) {
            check_at(fabs(idle[rank] - CASES[i].idle[rank]) <= 1e-12 * makespan,
                     "%s rank %u: %.17g, not %g", CASES[i].name, rank, idle[rank],
                     CASES[i].idle[rank]);
        }
        fy_network_cleanup(&w->schedule.network);
    }
}

/* What a random schedule is made of. */
typedef struct recipe {
    uint32_t n_ranks, per, n_rounds, most_bytes, chance; /* of a pair in a round, in percent */
    double latency;
    bool has_cluster, even; /* all batches of one size */
} recipe;

static double random_rate(uint64_t *seed)
{
    return random_below(seed, 2) == 0 ? 1 + random_below(seed, 4)
                                      : 0.5 + (double)random_below(seed, 100000) / 12345.0;
}

/* A cluster, its nodes known to the simulator also where they cannot limit. */
static void random_network(world *w, naive *n, const recipe *r, uint64_t *seed)
{
    ferry_error error;
    double rank_rate = random_rate(seed), node_rate = random_rate(seed) * 2;
    uint32_t n_nodes = r->has_cluster ? (r->n_ranks - 1) / r->per + 1 : 0;
    ferry_cluster *cluster = NULL;
    if (r->has_cluster) {
        cluster = cluster_of(r->per, rank_rate, node_rate, r->latency);
    }
    for (uint32_t node = 0; node < n_nodes; node++) {
        n->node_rate[node] = node_rate;
        if (random_below(seed, 5) == 0) {
            n->node_rate[node] = random_rate(seed);
            must(ferry_cluster_set_node(cluster, node, random_rate(seed), n->node_rate[node],
                                        &error),
                 &error);
        }
    }
    must(fy_network_init(rates_of(cluster), r->n_ranks, &w->schedule.network, &error), &error);
    ferry_cluster_destroy(cluster);
}

/* Some earlier batches that brought something to the sender of the last batch. */
static void random_waits(world *w, uint64_t *seed)
{
    uint64_t last = w->schedule.n_batches - 1;
    for (uint64_t b = 0; b < last; b++) {
        if (w->batches[b].to == w->batches[last].from &&
            w->batches[b].round < w->batches[last].round && random_below(seed, 4) == 0) {
            add_wait(w, b);
        }
    }
}

static void random_round(world *w, const recipe *r, uint32_t round, uint64_t *seed)
{
    bool sends[MOST_RANKS] = {false}, recvs[MOST_RANKS] = {false};
    bool half = w->schedule.duplex == FERRY_DUPLEX_HALF;
    bool relays = random_below(seed, 2) == 0;
    for (uint32_t from = 0; from < r->n_ranks; from++) {
        uint32_t to = random_below(seed, r->n_ranks);
        if (from == to || sends[from] || recvs[to] || (half && (recvs[from] || sends[to])) ||
            random_below(seed, 100) >= r->chance) {
            continue;
        }
        sends[from] = true;
        recvs[to] = true;
        add_batch(w, round, from, to, r->even ? 7 : 1 + random_below(seed, r->most_bytes));
        if (relays) {
            random_waits(w, seed);
        }
    }
}

static void check_random(world *w, naive *n, const recipe *r, uint64_t first_seed)
{
    uint64_t seed = first_seed;
    double makespan, idle[MOST_RANKS];
    ferry_error error;
    memset(w, 0, sizeof *w);
    random_network(w, n, r, &seed);
    w->schedule.duplex = random_below(&seed, 2) == 0 ? FERRY_DUPLEX_HALF : FERRY_DUPLEX_FULL;
    for (uint32_t round = 0; round < r->n_rounds; round++) {
        random_round(w, r, round, &seed);
    }
    list_batches(w);
    naive_run(n, &w->schedule, r->per, r->has_cluster ? (r->n_ranks - 1) / r->per + 1 : 0);
    must(fy_schedule_time(&w->schedule, &makespan, idle, &error), &error);
    check_at(fabs(makespan - n->now) <= 1e-10 * n->now, "seed %ju: %.17g, not %.17g",
             (uintmax_t)first_seed, makespan, n->now);
    for (uint32_t rank = 0; rank < r->n_ranks; rank++) {
        check_at(fabs(idle[rank] - (n->now - n->busy[rank])) <= 1e-10 * n->now,
                 "seed %ju rank %u: %.17g, not %.17g", (uintmax_t)first_seed, rank, idle[rank],
                 n->now - n->busy[rank]);
    }
    fy_network_cleanup(&w->schedule.network);
}

static void test_random_small(void **state)
{
    naive *n = malloc(sizeof *n);
    assert_non_null(n);
    for (uint64_t i = 1; i <= 6000; i++) {
        uint64_t seed = i;
        recipe r = {.n_ranks = 2 + random_below(&seed, 9),
                    .per = 1 + random_below(&seed, 4),
                    .n_rounds = 1 + random_below(&seed, 5),
                    .most_bytes = 1 + random_below(&seed, 1000),
                    .chance = 30 + random_below(&seed, 71),
                    .latency = random_below(&seed, 2) * (double)random_below(&seed, 50),
                    .has_cluster = random_below(&seed, 8) > 0,
                    .even = random_below(&seed, 3) == 0};
        check_random(*state, n, &r, seed);
    }
    free(n);
}

/* Enough nodes and ranks for changes of shares to travel far. */
static void test_random_larger(void **state)
{
    naive *n = malloc(sizeof *n);
    assert_non_null(n);
    for (uint64_t i = 1; i <= 12; i++) {
        uint64_t seed = 1000000 + i;
        recipe r = {.n_ranks = 24 + random_below(&seed, MOST_RANKS / 2),
                    .per = 2 + random_below(&seed, 7),
                    .n_rounds = 4,
                    .most_bytes = 1000,
                    .chance = 100,
                    .latency = random_below(&seed, 2) * 20.0,
                    .has_cluster = true,
                    .even = i % 4 == 0};
        check_random(*state, n, &r, seed);
    }
    free(n);
}

/* Whether node ports count at all. */
static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t n_ranks, per;
        double rank_rate, node_rate;
        override slow;
        uint32_t n_nodes;
    } rows[] = {
        {"wide nodes", 6, 2, 10, 20, {0}, 0},
        {"wide but for rounding", 6, 3, 0.1, 0.3, {0}, 0},
        {"narrow nodes", 6, 2, 10, 19, {0}, 3},
        {"only the last node has few ranks", 5, 2, 10, 19, {0}, 3},
        {"ranks of the world only", 2, 1, 10, 10, {0}, 0},
        {"a half-empty node", 3, 2, 5, 10, {1, 10, 10}, 0},
        {"one narrow node", 6, 2, 10, 20, {2, 10, 19}, 3},
        {"one node with fast ranks", 6, 2, 10, 20, {1, 11, 20}, 3},
        {"a narrow node beyond the world", 6, 2, 10, 20, {3, 10, 1}, 0},
        {"one node, narrow", 8, 8, 10, 10, {0}, 0},
        {"a node larger than the world", 3, UINT32_MAX, 10, 10, {0}, 0},
        {"nobody", 0, 2, 10, 10, {0}, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        fy_network network;
        ferry_cluster *cluster = cluster_of(rows[i].per, rows[i].rank_rate, rows[i].node_rate, 3);
        if (rows[i].slow.rank_rate > 0) {
            must(ferry_cluster_set_node(cluster, rows[i].slow.node, rows[i].slow.rank_rate,
                                        rows[i].slow.node_rate, &error),
                 &error);
        }
        must(fy_network_init(rates_of(cluster), rows[i].n_ranks, &network, &error), &error);
        check_at(network.n_nodes == rows[i].n_nodes, "%s: %u", rows[i].name, network.n_nodes);
        check_row(rows[i].name, network.has_seconds && network.latency == 3);
        for (uint32_t rank = 0; rank < rows[i].n_ranks; rank++) {
            bool slow = rows[i].slow.rank_rate > 0 && rank / rows[i].per == rows[i].slow.node;
            check_row(rows[i].name, network.rank_rate[rank] ==
                                        (slow ? rows[i].slow.rank_rate : rows[i].rank_rate));
        }
        fy_network_cleanup(&network);
        ferry_cluster_destroy(cluster);
    }
}

static void test_no_cluster(void **state)
{
    (void)state;
    ferry_error error;
    fy_network network;
    must(fy_network_init(rates_of(NULL), 3, &network, &error), &error);
    assert_false(network.has_seconds);
    assert_int_equal(network.n_nodes, 0);
    assert_true(network.latency == 0 && fy_network_rate(&network, 0, 2) == 1);
    assert_int_equal(fy_network_node(&network, 2), 2);
    fy_network_cleanup(&network);
    ferry_cluster_destroy(NULL);
}

static void test_refused_clusters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t per;
        double rank_rate, node_rate, latency;
        const char *says;
    } rows[] = {
        {"no ranks", 0, 1, 1, 0, "0 ranks per node"},
        {"no rank rate", 1, 0, 1, 0, "ranks of 0 bytes/s"},
        {"negative rank rate", 1, -5, 1, 0, "ranks of -5 bytes/s"},
        {"infinite rank rate", 1, INFINITY, 1, 0, "ranks of inf bytes/s"},
        {"no number", 1, NAN, 1, 0, "bytes/s"},
        {"no node rate", 1, 1, 0, 0, "nodes of 0 bytes/s"},
        {"infinite node rate", 1, 1, INFINITY, 0, "nodes of inf bytes/s"},
        {"negative latency", 1, 1, 1, -1, "a latency of -1 s"},
        {"infinite latency", 1, 1, 1, INFINITY, "a latency of inf s"},
        {"latency that is not a number", 1, 1, 1, NAN, "a latency of"},
    };
    ferry_cluster *cluster = NULL;
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_cluster_options options = FERRY_CLUSTER_OPTIONS_INIT;
        options.ranks_per_node = rows[i].per;
        options.rank_bytes_per_s = rows[i].rank_rate;
        options.node_bytes_per_s = rows[i].node_rate;
        options.latency_s = rows[i].latency;
        check_status(rows[i].name, FERRY_ERR_INVALID_INPUT,
                     ferry_cluster_create(&options, &cluster, &error), &error);
        check_says(rows[i].name, rows[i].says, &error);
        assert_null(cluster);
    }
    ferry_cluster_options none = {0};
    check_status("no options", FERRY_ERR_MISUSE, ferry_cluster_create(NULL, &cluster, &error),
                 &error);
    check_status("no struct_size", FERRY_ERR_MISUSE, ferry_cluster_create(&none, &cluster, &error),
                 &error);
    none = (ferry_cluster_options)FERRY_CLUSTER_OPTIONS_INIT;
    check_status("no place", FERRY_ERR_MISUSE, ferry_cluster_create(&none, NULL, &error), &error);
    check_status("no cluster", FERRY_ERR_MISUSE, ferry_cluster_set_node(NULL, 0, 1, 1, &error),
                 &error);
}

/* Nodes may be set in any order, once each; a refused one changes nothing. */
static void test_nodes(void **state)
{
    (void)state;
    static const uint32_t order[] = {5, 1, 7, 0, 3, UINT32_MAX};
    ferry_cluster *cluster = cluster_of(1, 10, 10, 0);
    ferry_error error;
    fy_network network;
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        must(ferry_cluster_set_node(cluster, order[i], 1.0 + order[i], 2, &error), &error);
    }
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        check_status("twice", FERRY_ERR_INVALID_INPUT,
                     ferry_cluster_set_node(cluster, order[i], 3, 3, &error), &error);
    }
    check_says("twice", "node 4294967295 has rates of its own already", &error);
    check_status("rank rate", FERRY_ERR_INVALID_INPUT,
                 ferry_cluster_set_node(cluster, 2, 0, 3, &error), &error);
    check_status("node rate", FERRY_ERR_INVALID_INPUT,
                 ferry_cluster_set_node(cluster, 2, 3, NAN, &error), &error);
    must(fy_network_init(rates_of(cluster), 8, &network, &error), &error);
    assert_int_equal(network.n_nodes, 8);
    for (uint32_t node = 0; node < 8; node++) {
        bool own = node == 5 || node == 1 || node == 7 || node == 0 || node == 3;
        check_at(network.rank_rate[node] == (own ? 1 + node : 10), "node %u", node);
        check_at(network.node_rate[node] == (own ? 2 : 10), "node %u", node);
    }
    fy_network_cleanup(&network);
    ferry_cluster_destroy(cluster);
}

/* Every allocation fails once: an error, and the outputs are as they were. */
static void test_no_memory(void **state)
{
    world *w = *state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        ferry_status status = FERRY_ERR_NO_MEMORY;
        double makespan = -1, idle[6] = {-1, -1, -1, -1, -1, -1};
        ferry_error error;
        make_case(w, &CASES[i]);
        for (int64_t n = 0; status != FERRY_OK; n++) {
            check_at(status == FERRY_ERR_NO_MEMORY && makespan == -1 && idle[0] == -1, "%s, %jd",
                     CASES[i].name, (intmax_t)n);
            fy_alloc_fail_after(n);
            status = fy_schedule_time(&w->schedule, &makespan, idle, &error);
        }
        fy_alloc_fail_after(-1);
        check_row(CASES[i].name, makespan == CASES[i].makespan || makespan > 0);
        fy_network_cleanup(&w->schedule.network);
    }
}

static int make_world(void **state)
{
    *state = malloc(sizeof(world));
    return *state == NULL;
}

static int drop_world(void **state)
{
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),         cmocka_unit_test(test_random_small),
        cmocka_unit_test(test_random_larger), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_cluster),    cmocka_unit_test(test_refused_clusters),
        cmocka_unit_test(test_nodes),         cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_world, drop_world);
}
