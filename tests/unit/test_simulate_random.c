/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Simulations of random schedules: what holds of all of them. A failure names the seed. */
#include "support/check.h"
#include "support/random.h"

#include "schedule/schedule.h"
#include "schedule/simulate_flows.h"

#include <math.h>
#include <stdlib.h>

#define CLOSE 1e-9

static bool is_close(double a, double b)
{
    return fabs(a - b) <= CLOSE * (1 + fabs(b));
}

enum { N_CROWD = 48, CROWD_NODE = 6, N_CROWD_NODES = N_CROWD / CROWD_NODE };

typedef struct port_use {
    double sum, fastest;
} port_use;

/*
 * Shares are max-min fair exactly if no port is overloaded and each flow has a bottleneck: its own
 * cap, or a full port through which nothing is faster.
 */
static void check_fair(const fy_flows *flows, const bool *is_in, uint64_t seed)
{
    port_use uses[2 * N_CROWD_NODES] = {{0}};
    for (uint32_t i = 0; i < N_CROWD; i++) {
        for (int side = 0; side < 2 && is_in[i]; side++) {
            port_use *use = &uses[flows->flows[i].ports[side]];
            use->sum += flows->flows[i].rate;
            use->fastest = fmax(use->fastest, flows->flows[i].rate);
        }
    }
    for (uint32_t p = 0; p < 2 * N_CROWD_NODES; p++) {
        check_at(uses[p].sum <= flows->ports[p].capacity * (1 + CLOSE),
                 "seed %llu port %u: %.17g of %g", (unsigned long long)seed, p, uses[p].sum,
                 flows->ports[p].capacity);
    }
    for (uint32_t i = 0; i < N_CROWD; i++) {
        const fy_flow *flow = &flows->flows[i];
        bool is_confined = !is_in[i] || flow->rate >= flow->cap * (1 - CLOSE);
        for (int side = 0; side < 2 && !is_confined; side++) {
            const port_use *use = &uses[flow->ports[side]];
            is_confined = use->sum >= flows->ports[flow->ports[side]].capacity * (1 - CLOSE) &&
                          flow->rate >= use->fastest * (1 - CLOSE);
        }
        check_at(is_confined, "seed %llu: the flow out of rank %u, %.17g of %g, could have more",
                 (unsigned long long)seed, i, flow->rate, flow->cap);
    }
}

static void change_crowd(fy_flows *flows, bool *is_in, uint64_t *random, double now)
{
    uint32_t sender = random_below(random, N_CROWD);
    if (is_in[sender]) {
        fy_flows_leave(flows, sender);
        is_in[sender] = false;
        return;
    }
    bool is_taken[N_CROWD] = {false};
    uint32_t receiver = random_below(random, N_CROWD);
    for (uint32_t i = 0; i < N_CROWD; i++) {
        is_taken[flows->flows[i].receiver] |= is_in[i];
    }
    if (!is_taken[receiver] && receiver / CROWD_NODE != sender / CROWD_NODE) {
        fy_flows_join(flows, sender, receiver, 1e6, now);
        is_in[sender] = true;
    }
}

static void test_shares_are_fair(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        double rank_rate[N_CROWD], node_rate[N_CROWD_NODES];
        bool is_in[N_CROWD] = {false};
        fy_flows flows;
        ferry_error error;
        /* Many equal rates in one half of the worlds, none in the other. */
        uint32_t n_rates = seed % 2 == 0 ? 3 : 1000000;
        for (uint32_t i = 0; i < N_CROWD; i++) {
            rank_rate[i] = 1 + random_below(&random, n_rates) * 5.0 / n_rates;
        }
        for (uint32_t i = 0; i < N_CROWD_NODES; i++) {
            node_rate[i] = 1 + random_below(&random, n_rates) * 20.0 / n_rates;
        }
        fy_network network = {.n_ranks = N_CROWD,
                              .n_nodes = N_CROWD_NODES,
                              .ranks_per_node = CROWD_NODE,
                              .rank_rate = rank_rate,
                              .node_rate = node_rate};
        must(fy_flows_init(&flows, &network, &error), &error);
        for (int step = 0; step < 500; step++) {
            uint32_t n_changes = 1 + random_below(&random, step % 50 == 0 ? 40 : 2);
            for (uint32_t i = 0; i < n_changes; i++) {
                change_crowd(&flows, is_in, &random, step);
            }
            fy_flows_settle(&flows, step);
            check_fair(&flows, is_in, seed);
        }
        fy_flows_cleanup(&flows);
    }
}

/* A world of random rounds; wait lists name a batch that the sender received in an earlier one. */
typedef struct crowd {
    struct ferry_schedule schedule;
    fy_batch *batches;
    uint64_t *wait_begin, *waits, *sends, *recvs;
    uint64_t send_begin[N_CROWD + 1], recv_begin[N_CROWD + 1];
    double rank_rate[N_CROWD], node_rate[N_CROWD];
} crowd;

enum { N_ROUNDS = 20, MOST_IN_CROWD = N_CROWD * N_ROUNDS };

static void list_crowd(crowd *c, uint64_t *lists, uint64_t *begin, bool by_sender)
{
    uint64_t n = 0;
    for (uint32_t rank = 0; rank < N_CROWD; rank++) {
        begin[rank] = n;
        for (uint64_t b = 0; b < c->schedule.n_batches; b++) {
            if ((by_sender ? c->batches[b].from : c->batches[b].to) == rank) {
                lists[n++] = b;
            }
        }
    }
    begin[N_CROWD] = n;
}

static void add_batch(crowd *c, uint32_t round, uint32_t from, uint32_t to, uint64_t *random)
{
    uint64_t n = c->schedule.n_batches++;
    c->wait_begin[n + 1] = c->wait_begin[n];
    for (uint64_t b = 0; b < n && random_below(random, 3) == 0; b++) {
        if (c->batches[b].to == from && c->batches[b].round < round) {
            c->waits[c->wait_begin[n + 1]++] = b;
            break;
        }
    }
    c->batches[n] = (fy_batch){.round = round,
                               .from = from,
                               .to = to,
                               .n_segments = 1,
                               .bytes = 1 + random_below(random, 1000)};
}

static void fill_crowd(crowd *c, uint64_t *random)
{
    bool is_half = c->schedule.duplex == FERRY_DUPLEX_HALF;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        bool sends[N_CROWD] = {false}, receives[N_CROWD] = {false};
        for (uint32_t from = 0; from < N_CROWD; from++) {
            uint32_t to = random_below(random, N_CROWD);
            if (to == from || receives[to] || (is_half && (receives[from] || sends[to]))) {
                continue;
            }
            sends[from] = receives[to] = true;
            add_batch(c, round, from, to, random);
        }
    }
    list_crowd(c, c->sends, c->send_begin, true);
    list_crowd(c, c->recvs, c->recv_begin, false);
}

static void make_crowd(crowd *c, uint64_t seed, uint32_t ranks_per_node)
{
    uint64_t random = seed;
    *c = (crowd){0};
    c->batches = calloc(MOST_IN_CROWD, sizeof *c->batches);
    c->wait_begin = calloc(MOST_IN_CROWD + 1, sizeof *c->wait_begin);
    c->waits = calloc(MOST_IN_CROWD, sizeof *c->waits);
    c->sends = calloc(MOST_IN_CROWD, sizeof *c->sends);
    c->recvs = calloc(MOST_IN_CROWD, sizeof *c->recvs);
    for (uint32_t i = 0; i < N_CROWD; i++) {
        c->rank_rate[i] = 1 + random_below(&random, 4);
        c->node_rate[i] = 1 + random_below(&random, 9);
    }
    c->schedule = (struct ferry_schedule){
        .network = {.n_ranks = N_CROWD,
                    .n_nodes = ranks_per_node == 0 ? 0 : N_CROWD / ranks_per_node,
                    .ranks_per_node = ranks_per_node == 0 ? 1 : ranks_per_node,
                    .latency = random_below(&random, 2) * 50.0,
                    .rank_rate = c->rank_rate,
                    .node_rate = c->node_rate},
        .duplex = seed % 3 == 0 ? FERRY_DUPLEX_HALF : FERRY_DUPLEX_FULL,
        .batches = c->batches,
        .wait_begin = c->wait_begin,
        .waits = c->waits,
        .send_begin = c->send_begin,
        .sends = c->sends,
        .recv_begin = c->recv_begin,
        .recvs = c->recvs};
    fill_crowd(c, &random);
}

static void free_crowd(crowd *c)
{
    free(c->batches);
    free(c->wait_begin);
    free(c->waits);
    free(c->sends);
    free(c->recvs);
}

/* Without nodes the port model is one pass over the batches, since each waits for earlier ones. */
static double port_model(const crowd *c, double *ends)
{
    double out[N_CROWD] = {0}, in[N_CROWD] = {0}, last = 0;
    bool is_half = c->schedule.duplex == FERRY_DUPLEX_HALF;
    for (uint64_t b = 0; b < c->schedule.n_batches; b++) {
        const fy_batch *batch = &c->batches[b];
        double start = fmax(out[batch->from], in[batch->to]);
        if (is_half) {
            start = fmax(start, fmax(in[batch->from], out[batch->to]));
        }
        for (uint64_t w = c->wait_begin[b]; w < c->wait_begin[b + 1]; w++) {
            start = fmax(start, ends[c->waits[w]]);
        }
        ends[b] =
            start + c->schedule.network.latency +
            (double)batch->bytes / fy_network_rate(&c->schedule.network, batch->from, batch->to);
        out[batch->from] = in[batch->to] = ends[b];
        last = fmax(last, ends[b]);
    }
    return last;
}

static double run_crowd(const crowd *c, const ferry_simulation_options *options, double *ends)
{
    ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
    ferry_simulation *simulation = NULL;
    ferry_error error;
    must(ferry_simulation_create(&c->schedule, options, &simulation, &error), &error);
    must(ferry_simulation_get_report(simulation, &report, &error), &error);
    for (uint64_t b = 0; b < c->schedule.n_batches && ends != NULL; b++) {
        double start;
        must(ferry_simulation_get_batch_time(simulation, b, &start, &ends[b], &error), &error);
    }
    ferry_simulation_destroy(simulation);
    return report.seconds;
}

static void test_random_is_the_port_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        static double ends[MOST_IN_CROWD], wanted[MOST_IN_CROWD];
        crowd c;
        make_crowd(&c, seed, 0);
        double seconds = run_crowd(&c, NULL, ends);
        check_at(is_close(seconds, port_model(&c, wanted)), "seed %llu", (unsigned long long)seed);
        for (uint64_t b = 0; b < c.schedule.n_batches; b++) {
            check_at(is_close(ends[b], wanted[b]), "seed %llu batch %llu: %g, not %g",
                     (unsigned long long)seed, (unsigned long long)b, ends[b], wanted[b]);
        }
        free_crowd(&c);
    }
}

static void test_any_number_of_slots_ends(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        ferry_simulation_options options = FERRY_SIMULATION_OPTIONS_INIT;
        double free_run, seconds;
        crowd c;
        make_crowd(&c, seed, seed % 2 == 0 ? 0 : 4);
        free_run = run_crowd(&c, NULL, NULL);
        /* In no time slots make no difference. */
        options.n_send_slots = options.n_receive_slots = 1;
        check_at(is_close(run_crowd(&c, &options, NULL), free_run), "seed %llu",
                 (unsigned long long)seed);
        for (uint32_t slots = 1; slots <= 3; slots++) {
            options = (ferry_simulation_options)FERRY_SIMULATION_OPTIONS_INIT;
            options.n_send_slots = slots;
            options.n_receive_slots = 1 + (uint32_t)seed % 2;
            options.pack_bytes_per_s = 2;
            seconds = run_crowd(&c, &options, NULL);
            check_at(isfinite(seconds) && seconds > 0, "seed %llu", (unsigned long long)seed);
        }
        free_crowd(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_are_fair),
        cmocka_unit_test(test_random_is_the_port_model),
        cmocka_unit_test(test_any_number_of_slots_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
