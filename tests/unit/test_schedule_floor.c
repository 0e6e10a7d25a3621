/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Floors of ways to schedule, by which most of them need not be made: nothing that is made of
 * random loads is below, and of loads whose time is known they are not far below. And what is made
 * for one sender with many receivers: not what cannot be near the bound.
 */
#include "schedule/build.h"
#include "schedule/relay.h"
#include "schedule/schedule.h"

#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <string.h>

enum { N_LOADS = 120, MOST_RANKS = 40 };

static const double SLACK = 1 + 1e-9;

static void add(ferry_task_list *list, uint64_t id, uint32_t from, uint32_t to, uint64_t bytes,
                uint64_t content)
{
    ferry_task task = FERRY_TASK_INIT;
    ferry_error error;
    task.task_id = id;
    task.from = from;
    task.to = to;
    task.bytes = bytes;
    task.element_bytes = 4;
    task.has_content = content != UINT64_MAX;
    task.content = content;
    must(ferry_task_list_add(list, &task, &error), &error);
}

/* Contents of random senders for random runs of receivers, and bytes of pairs of their own. */
static ferry_task_list *random_list(uint64_t *random, uint32_t n_ranks)
{
    ferry_task_list *list = NULL;
    ferry_error error;
    uint64_t id = 0;
    must(ferry_task_list_create(n_ranks, &list, &error), &error);
    for (uint32_t c = 0; c < 1 + random_below(random, 12); c++) {
        uint32_t from = random_below(random, 1 + n_ranks / 3),
                 first = random_below(random, n_ranks);
        uint32_t n = 1 + random_below(random, n_ranks);
        uint64_t bytes = 4 * (uint64_t)(1 + random_below(random, 100000));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t to = (first + i) % n_ranks;
            if (to != from) {
                add(list, id++, from, to, bytes, n > 1 ? c : UINT64_MAX);
            }
        }
    }
    return list;
}

/* Nodes that limit in every third load; latency in half of them; half duplex in every fourth. */
static fy_cluster random_cluster(uint64_t *random)
{
    uint32_t per = 1 + random_below(random, 6);
    double share = random_below(random, 3) == 0 ? 0.3 : 1;
    return (fy_cluster){.present = true,
                        .ranks_per_node = per,
                        .rank_rate = 1e9,
                        .node_rate = 1e9 * per * share,
                        .latency_s = 1e-6 * random_below(random, 2) * random_below(random, 20)};
}

typedef struct load {
    fy_pairs pairs;
    fy_network network;
    fy_job job;
} load;

static void make_load(load *l, const ferry_task_list *list, const fy_cluster *cluster,
                      uint32_t duplex, uint64_t slot_bytes)
{
    ferry_error error;
    must(fy_pairs_init(list, &l->pairs, &error), &error);
    must(fy_network_init(cluster, l->pairs.n_ranks, &l->network, &error), &error);
    l->job = (fy_job){.pairs = &l->pairs,
                      .network = &l->network,
                      .duplex = duplex,
                      .slot_bytes = slot_bytes,
                      .max_tasks = FERRY_MAX_TASKS,
                      .relays = true};
    must(fy_bound_of(&l->pairs, &l->network, duplex, &l->job.bound, &error), &error);
}

static void end_load(load *l)
{
    fy_network_cleanup(&l->network);
    fy_pairs_cleanup(&l->pairs);
}

typedef ferry_status (*make_deal)(const fy_job *job, double size, fy_deal *deal,
                                  ferry_error *error);

static ferry_status deal_whole(const fy_job *job, double size, fy_deal *deal, ferry_error *error)
{
    return fy_deal_whole(job, (uint64_t)size, deal, error);
}

/* 0: it would take too long. */
static double time_of(const load *l, make_deal make, double size)
{
    fy_deal deal = {0};
    ferry_schedule *schedule = NULL;
    ferry_error error;
    double makespan = 0;
    must(fy_deal_init(&deal, &l->pairs, l->job.slot_bytes, l->job.max_tasks, &error), &error);
    ferry_status status = make(&l->job, size, &deal, &error);
    if (status != FERRY_ERR_UNSUPPORTED) {
        must(status, &error);
        must(fy_schedule_assemble(&l->job, &deal, &schedule, &error), &error);
        makespan = schedule->report.makespan;
    }
    fy_deal_cleanup(&deal);
    ferry_schedule_destroy(schedule);
    return makespan;
}

static uint32_t check_relays(const load *l, uint32_t seed)
{
    uint32_t n_relayed = 0, most = 0;
    ferry_error error;
    must(fy_relay_fan_out(&l->job, &most, &error), &error);
    for (double size = 4000; most >= 2 && size < 500000; size *= 5) {
        double floors[2],
            times[2] = {time_of(l, fy_deal_relayed, size), time_of(l, fy_deal_chained, size)};
        must(fy_floor_of_relayed(&l->job, size, &floors[0], &error), &error);
        must(fy_floor_of_chained(&l->job, size, &floors[1], &error), &error);
        for (int i = 0; i < 2; i++) {
            check_at(times[i] <= 0 || floors[i] <= times[i] * SLACK,
                     "seed %u, %s of %g bytes: floor %g, time %g", seed,
                     i == 0 ? "trees" : "chains", size, floors[i], times[i]);
            n_relayed += times[i] > 0;
        }
    }
    return n_relayed;
}

static void test_nothing_is_below(void **state)
{
    (void)state;
    uint32_t n_relayed = 0;
    for (uint32_t seed = 0; seed < N_LOADS; seed++) {
        uint64_t random = seed;
        ferry_error error;
        uint32_t duplex = random_below(&random, 4) == 0 ? FERRY_DUPLEX_HALF : FERRY_DUPLEX_FULL;
        ferry_task_list *list = random_list(&random, 3 + random_below(&random, MOST_RANKS - 3));
        fy_cluster cluster = random_cluster(&random);
        load l;
        double floor;
        make_load(&l, list, &cluster, duplex, (uint64_t)1 << (14 + random_below(&random, 8)));
        must(fy_floor_of_direct(&l.job, &floor, &error), &error);
        double whole = time_of(&l, deal_whole, (double)l.job.slot_bytes);
        check_at(floor <= whole * SLACK, "seed %u: floor %g, whole batches %g", seed, floor, whole);
        if (duplex == FERRY_DUPLEX_FULL) {
            double even = time_of(&l, fy_deal_even, cluster.latency_s);
            check_at(floor <= even * SLACK, "seed %u: floor %g, even rounds %g", seed, floor, even);
        }
        n_relayed += check_relays(&l, seed);
        end_load(&l);
        ferry_task_list_destroy(list);
    }
    assert_true(n_relayed > N_LOADS);
}

enum { N_RECEIVERS = 30, CHUNK = 40000, N_CHUNKS = 100, LATENCY_US = 5 };

static ferry_task_list *fan(uint32_t n_receivers)
{
    ferry_task_list *list = NULL;
    ferry_error error;
    must(ferry_task_list_create(n_receivers + 1, &list, &error), &error);
    for (uint32_t to = 1; to <= n_receivers; to++) {
        add(list, to, 0, to, (uint64_t)N_CHUNKS * CHUNK, 7);
    }
    return list;
}

static const fy_cluster LINE = {.present = true,
                                .ranks_per_node = 1,
                                .rank_rate = 1e9,
                                .node_rate = 1e9,
                                .latency_s = 1e-6 * LATENCY_US};

/* A chunk takes 40 us and a latency; the last receiver waits for one to come to it. */
static void test_known_times(void **state)
{
    (void)state;
    ferry_error error;
    ferry_task_list *list = fan(N_RECEIVERS);
    load l;
    double floor, step = 1e-6 * LATENCY_US + CHUNK / 1e9;
    make_load(&l, list, &LINE, FERRY_DUPLEX_FULL, CHUNK);
    must(fy_floor_of_direct(&l.job, &floor, &error), &error);
    assert_true(fabs(floor / (N_RECEIVERS * N_CHUNKS * step) - 1) < 1e-9);
    must(fy_floor_of_relayed(&l.job, CHUNK, &floor, &error), &error);
    assert_true(fabs(floor / (N_CHUNKS * step) - 1) < 1e-9);
    must(fy_floor_of_chained(&l.job, CHUNK, &floor, &error), &error);
    assert_true(fabs(floor / ((N_CHUNKS + N_RECEIVERS - 1) * step) - 1) < 1e-9);
    assert_true(fabs(time_of(&l, fy_deal_chained, CHUNK) / floor - 1) < 1e-9);
    end_load(&l);
    ferry_task_list_destroy(list);
}

/* What was tried, with what came to be known. */
typedef struct told {
    uint32_t n_direct, n_relays;
} told;

static bool hear(void *context, const ferry_schedule_progress *progress)
{
    told *t = context;
    bool relays = strstr(progress->doing, "relays") != NULL;
    t->n_relays += relays;
    t->n_direct += !relays;
    return true;
}

static told hear_of(uint32_t n_receivers, bool no_relays)
{
    ferry_cluster_options rates = FERRY_CLUSTER_OPTIONS_INIT;
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_task_list *list = fan(n_receivers);
    ferry_schedule *schedule = NULL;
    ferry_cluster *cluster = NULL;
    ferry_error error;
    told t = {0, 0};
    rates.rank_bytes_per_s = rates.node_bytes_per_s = 1e9;
    rates.latency_s = 1e-6 * LATENCY_US;
    options.slot_bytes = CHUNK;
    options.no_relays = no_relays;
    options.progress = hear;
    options.context = &t;
    must(ferry_cluster_create(&rates, &cluster, &error), &error);
    must(ferry_schedule_create(list, cluster, &options, &schedule, &error), &error);
    ferry_schedule_destroy(schedule);
    ferry_cluster_destroy(cluster);
    ferry_task_list_destroy(list);
    return t;
}

/*
 * 30 receivers: direct batches would take 30 times the bound, so there are none. One receiver takes
 * its 100 batches of a latency each whatever is done, so the first way is the only one. Chains are
 * not tried where whole batches cannot be bettered.
 */
static void test_what_cannot_help_is_not_made(void **state)
{
    (void)state;
    told many = hear_of(N_RECEIVERS, false), one = hear_of(1, false);
    told alone = hear_of(N_RECEIVERS, true);
    assert_true(many.n_direct == 0 && many.n_relays > 0);
    assert_true(one.n_direct == 1 && one.n_relays == 0);
    assert_true(alone.n_direct == 1 && alone.n_relays == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_below),
        cmocka_unit_test(test_known_times),
        cmocka_unit_test(test_what_cannot_help_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
