/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Large worlds: colouring ten million chunks, and simulating 16,384 ranks. */
#include "schedule_bench.h"

#include "schedule/colour.h"

#include <stdlib.h>

typedef struct colour_case {
    const char *name;
    uint32_t n_ranks;
    uint64_t n_edges;
    bool is_skewed;
} colour_case;

static uint32_t scramble(uint64_t number, uint32_t below, bool is_skewed)
{
    number = (number + 1) * 0x9e3779b97f4a7c15u;
    number = (number ^ (number >> 31)) * 0xd6e8feb86659fd93u;
    double part = (double)(number >> 11) * 0x1p-53;
    return (uint32_t)((is_skewed ? part * part : part) * below);
}

static void measure_colour(const bench *b, const void *argument, bench_row *row)
{
    const colour_case *c = argument;
    uint32_t *from = bench_alloc(c->n_edges, sizeof *from);
    uint32_t *to = bench_alloc(c->n_edges, sizeof *to);
    uint32_t *out = bench_alloc(c->n_edges, sizeof *out);
    uint32_t *used = bench_alloc((size_t)c->n_ranks * 2, sizeof *used);
    uint32_t degree = 0;
    fy_edges edges = {c->n_ranks, 0, c->n_edges, from, to, out};
    double seconds[MAX_RUNS];
    ferry_error error;
    for (uint64_t i = 0; i < c->n_edges; i++) {
        from[i] = scramble(b->seed * 1000003 + 2 * i, c->n_ranks, c->is_skewed);
        to[i] = scramble(b->seed * 1000003 + 2 * i + 1, c->n_ranks, c->is_skewed);
        used[from[i]]++;
        used[c->n_ranks + to[i]]++;
    }
    for (uint32_t i = 0; i < c->n_ranks * 2; i++) {
        degree = used[i] > degree ? used[i] : degree;
    }
    ferry_status status = FERRY_OK;
    uint64_t before = bench_peak_kib();
    for (int i = 0; i < b->n_runs && status == FERRY_OK; i++) {
        double begin = bench_now();
        status = fy_colour_bipartite(&edges, &error);
        seconds[i] = bench_now() - begin;
    }
    if (bench_check(row, status, &error)) {
        bench_add(row, "edges", (double)c->n_edges);
        bench_add(row, "degree", degree);
        bench_add(row, "rounds", edges.n_rounds);
        bench_add(row, "median-s", bench_median(seconds, b->n_runs));
        bench_add(row, "least-s", seconds[0]);
        bench_add(row, "most-s", seconds[b->n_runs - 1]);
        bench_add(row, "peak-MiB", (double)bench_peak_kib() / 1024);
        bench_add(row, "bytes-an-edge",
                  (double)(bench_peak_kib() - before) * 1024 / (double)c->n_edges);
    }
    free(from);
    free(to);
    free(out);
    free(used);
}

void bench_colour(bench *b)
{
    static const colour_case cases[] = {
        {"4,096 ranks, 1 million chunks, random", 4096, 1000000, false},
        {"4,096 ranks, 10 million chunks, random", 4096, 10000000, false},
        {"4,096 ranks, 10 million chunks, skewed", 4096, 10000000, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_case(b, cases[i].name, measure_colour, &cases[i]);
    }
}

typedef struct simulate_case {
    const char *name;
    uint32_t n_ranks;
    uint32_t n_batches; /* of a rank */
    double node_rate;   /* GB/s; 0: no cluster */
    uint32_t slots;     /* 0: unlimited */
    uint32_t rule;
} simulate_case;

static ferry_status simulate_tasks(const simulate_case *c, uint64_t seed,
                                   ferry_task_list **tasks_out, ferry_error *error)
{
    ferry_task_list *tasks = NULL;
    ferry_status status = ferry_task_list_create(c->n_ranks, &tasks, error);
    uint64_t id = 0;
    for (uint32_t rank = 0; rank < c->n_ranks && status == FERRY_OK; rank++) {
        for (uint32_t i = 0; i < c->n_batches && status == FERRY_OK; i++, id++) {
            ferry_task task = FERRY_TASK_INIT;
            task.task_id = id;
            task.from = rank;
            task.to = (rank + 1 + scramble(seed + id, c->n_ranks - 1, false)) % c->n_ranks;
            task.bytes = FERRY_SLOT_BYTES;
            status = ferry_task_list_add(tasks, &task, error);
        }
    }
    *tasks_out = tasks;
    return status;
}

static ferry_status simulate_once(const simulate_case *c, const ferry_schedule *schedule,
                                  bench_row *row, ferry_error *error)
{
    ferry_simulation_options options = FERRY_SIMULATION_OPTIONS_INIT;
    ferry_simulation *simulation = NULL;
    ferry_simulation_report report = FERRY_SIMULATION_REPORT_INIT;
    double begin = bench_now();
    options.n_send_slots = c->slots;
    options.n_receive_slots = c->slots;
    ferry_status status = ferry_simulation_create(schedule, &options, &simulation, error);
    double end = bench_now();
    if (status == FERRY_OK) {
        status = ferry_simulation_get_report(simulation, &report, error);
    }
    ferry_simulation_destroy(simulation);
    bench_add(row, "simulate-s", end - begin);
    bench_add(row, "predicted", report.seconds);
    return status;
}

static void measure_simulate(const bench *b, const void *argument, bench_row *row)
{
    const simulate_case *c = argument;
    ferry_task_list *tasks = NULL;
    ferry_cluster *cluster = NULL;
    ferry_schedule *schedule = NULL;
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_error error;
    options.rule = c->rule;
    ferry_status status = simulate_tasks(c, b->seed, &tasks, &error);
    if (status == FERRY_OK && c->node_rate > 0) {
        status = bench_cluster(c->node_rate, 5e-6, &cluster, &error);
    }
    double begin = bench_now();
    if (status == FERRY_OK) {
        status = ferry_schedule_create(tasks, cluster, &options, &schedule, &error);
    }
    double end = bench_now();
    if (status == FERRY_OK) {
        status = ferry_schedule_get_report(schedule, &report, &error);
    }
    bench_add(row, "batches", (double)report.n_batches);
    bench_add(row, "degree", report.degree);
    bench_add(row, "rounds", report.n_rounds);
    bench_add(row, "create-s", end - begin);
    if (status == FERRY_OK) {
        status = simulate_once(c, schedule, row, &error);
    }
    bench_add(row, "makespan", report.makespan);
    bench_add(row, "ratio", report.ratio);
    bench_add(row, "peak-MiB", (double)bench_peak_kib() / 1024);
    bench_check(row, status, &error);
    ferry_schedule_destroy(schedule);
    ferry_cluster_destroy(cluster);
    ferry_task_list_destroy(tasks);
}

void bench_simulate(bench *b)
{
    static const simulate_case cases[] = {
        {"1,024 x 100, free nodes", 1024, 100, 400, 0, FERRY_SCHEDULE_OPTIMAL},
        {"1,024 x 100, free nodes, 1 slot", 1024, 100, 400, 1, FERRY_SCHEDULE_OPTIMAL},
        {"1,024 x 100, nodes bind", 1024, 100, 200, 0, FERRY_SCHEDULE_OPTIMAL},
        {"16,384 x 100, no cluster", 16384, 100, 0, 0, FERRY_SCHEDULE_OPTIMAL},
        {"16,384 x 100, free nodes", 16384, 100, 400, 0, FERRY_SCHEDULE_OPTIMAL},
        {"16,384 x 100, free nodes, 2 slots", 16384, 100, 400, 2, FERRY_SCHEDULE_OPTIMAL},
        {"16,384 x 100, free nodes, first fit", 16384, 100, 400, 0, FERRY_SCHEDULE_FIRST_FIT},
        {"16,384 x 100, nodes bind", 16384, 100, 200, 0, FERRY_SCHEDULE_OPTIMAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_case(b, cases[i].name, measure_simulate, &cases[i]);
    }
}
