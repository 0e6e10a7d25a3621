/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Rounds of each rule against the degree, and makespans against the bound. */
#include "schedule_bench.h"

#include <ferry/reference.h>

#include <stdlib.h>

static ferry_status collect(const load *l, ferry_reference_batches **out, ferry_error *error)
{
    ferry_reference_batches *batches = NULL;
    ferry_status status = ferry_reference_batches_create(l->n_ranks, &batches, error);
    for (uint64_t i = 0; i < l->n && status == FERRY_OK; i++) {
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        batch.from = l->from[i];
        batch.to = l->to[i];
        batch.index = l->index[i];
        batch.bytes = l->bytes[i];
        status = ferry_reference_batches_add(batches, &batch, error);
    }
    *out = batches;
    return status;
}

static void measure_rounds(const bench *b, const void *argument, bench_row *row)
{
    static const struct {
        const char *rounds, *ratio;
        uint32_t rule, duplex;
    } rules[] = {
        {"optimal", "/degree", FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_FULL},
        {"first-fit", "ff/degree", FERRY_SCHEDULE_FIRST_FIT, FERRY_DUPLEX_FULL},
        {"ff-half", "ff-half/degree", FERRY_SCHEDULE_FIRST_FIT_HALF, FERRY_DUPLEX_HALF},
        {"opt-half", "opt-half/half-degree", FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_HALF},
    };
    const load *l = argument;
    uint32_t degree = load_degree(l, false), half = load_degree(l, true);
    ferry_error error;
    (void)b;
    bench_add(row, "batches", (double)l->n);
    bench_add(row, "degree", degree);
    bench_add(row, "half-degree", half);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        ferry_reference_batches *batches = NULL;
        uint32_t rounds = 0;
        ferry_status status = collect(l, &batches, &error);
        if (status == FERRY_OK) {
            status = ferry_reference_batches_assign_rounds(batches, rules[i].rule, rules[i].duplex,
                                                           &rounds, &error);
        }
        ferry_reference_batches_destroy(batches);
        if (!bench_check(row, status, &error)) {
            return;
        }
        bool is_half = rules[i].rule == FERRY_SCHEDULE_OPTIMAL && rules[i].duplex;
        double ratio = (double)rounds / (is_half ? half : degree);
        bench_add(row, rules[i].rounds, rounds);
        bench_add(row, rules[i].ratio, ratio);
        if (rules[i].rule == FERRY_SCHEDULE_FIRST_FIT_HALF) {
            bench_add(row, "ff-half/half-degree", (double)rounds / half);
        }
    }
}

void bench_rounds(bench *b)
{
    static const uint32_t worlds[] = {16, 64, 256};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        for (int kind = 0; kind < N_LOAD_KINDS; kind++) {
            uint64_t n_seeds = kind == LOAD_ALL_TO_ALL ? 1 : b->n_seeds;
            for (uint64_t seed = b->seed; seed < b->seed + n_seeds; seed++) {
                load l;
                load_init(&l, worlds[w], (load_kind)kind, SIZES_EQUAL, seed);
                load_write(b, &l);
                bench_case(b, l.name, measure_rounds, &l);
                load_cleanup(&l);
            }
        }
    }
}

typedef struct sized_load {
    const load *load;
    double latency_s; /* below 0: no cluster */
} sized_load;

/* A rule's schedule of the tasks: what it reports. */
static bool report_rule(const ferry_task_list *tasks, const ferry_cluster *cluster, uint32_t rule,
                        uint32_t duplex, uint64_t slot_bytes, ferry_schedule_report *report,
                        bench_row *row)
{
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule *schedule = NULL;
    ferry_error error;
    options.rule = rule;
    options.duplex = duplex;
    options.slot_bytes = slot_bytes;
    *report = (ferry_schedule_report)FERRY_SCHEDULE_REPORT_INIT;
    ferry_status status = ferry_schedule_create(tasks, cluster, &options, &schedule, &error);
    if (status == FERRY_OK) {
        status = ferry_schedule_get_report(schedule, report, &error);
    }
    ferry_schedule_destroy(schedule);
    return bench_check(row, status, &error);
}

/*
 * No schedule in batches of a slot at most is faster: a rank pays the latency of every batch, and
 * the bytes of a pair need so many. The library's bound counts the bytes only.
 */
static double slot_bound(const sized_load *s, double rate)
{
    const load *l = s->load;
    size_t n = (size_t)l->n_ranks * l->n_ranks;
    double most = 0, latency = s->latency_s < 0 ? 0 : s->latency_s;
    uint64_t *pairs = bench_alloc(n, sizeof *pairs);
    double *ports = bench_alloc((size_t)l->n_ranks * 2, sizeof *ports);
    for (uint64_t i = 0; i < l->n; i++) {
        pairs[(size_t)l->from[i] * l->n_ranks + l->to[i]] += l->bytes[i];
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t batches = (pairs[i] + FERRY_SLOT_BYTES - 1) / FERRY_SLOT_BYTES;
        double time = (double)pairs[i] / rate + latency * (double)batches;
        ports[i / l->n_ranks] += time;
        ports[l->n_ranks + i % l->n_ranks] += time;
    }
    for (uint32_t i = 0; i < l->n_ranks * 2; i++) {
        most = ports[i] > most ? ports[i] : most;
    }
    free(pairs);
    free(ports);
    return most;
}

static void report_rules(const sized_load *s, const ferry_task_list *tasks,
                         const ferry_cluster *cluster, bench_row *row)
{
    enum { PACKAGE_SLOT = 256 << 20 };
    ferry_schedule_report report;
    double begin = bench_now();
    if (!report_rule(tasks, cluster, FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_FULL, 0, &report, row)) {
        return;
    }
    bench_add(row, "seconds", bench_now() - begin);
    bench_add(row, "batches", (double)report.n_batches);
    bench_add(row, "bound", report.bound);
    bench_add(row, "degree", report.degree);
    bench_add(row, "rounds", report.n_rounds);
    double bound = report.bound;
    bench_add(row, "optimal/bound", report.makespan / bound);
    bench_add(row, "optimal/slot-bound",
              report.makespan / slot_bound(s, cluster == NULL ? 1 : 50e9));
    static const struct {
        const char *key;
        uint32_t rule;
        uint64_t slot_bytes;
    } others[] = {{"optimal-256M/bound", FERRY_SCHEDULE_OPTIMAL, PACKAGE_SLOT},
                  {"ff/bound", FERRY_SCHEDULE_FIRST_FIT, 0},
                  {"ff-256M/bound", FERRY_SCHEDULE_FIRST_FIT, PACKAGE_SLOT},
                  {"ff-half/bound", FERRY_SCHEDULE_FIRST_FIT_HALF, 0},
                  {"ff-half-256M/bound", FERRY_SCHEDULE_FIRST_FIT_HALF, PACKAGE_SLOT}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!report_rule(tasks, cluster, others[i].rule, FERRY_DUPLEX_FULL, others[i].slot_bytes,
                         &report, row)) {
            return;
        }
        /* Against the full-duplex bound, all of them: what the network could do. */
        bench_add(row, others[i].key, report.makespan / bound);
    }
    if (report_rule(tasks, cluster, FERRY_SCHEDULE_OPTIMAL, FERRY_DUPLEX_HALF, 0, &report, row)) {
        bench_add(row, "opt-half/half-bound", report.ratio);
    }
}

static void measure_sizes(const bench *b, const void *argument, bench_row *row)
{
    const sized_load *s = argument;
    ferry_task_list *tasks = NULL;
    ferry_cluster *cluster = NULL;
    ferry_error error;
    (void)b;
    ferry_status status = load_tasks(s->load, &tasks, &error);
    if (status == FERRY_OK && s->latency_s >= 0) {
        status = bench_cluster(400, s->latency_s, &cluster, &error);
    }
    if (bench_check(row, status, &error)) {
        report_rules(s, tasks, cluster, row);
    }
    ferry_task_list_destroy(tasks);
    ferry_cluster_destroy(cluster);
}

static void sizes_case(bench *b, uint32_t n_ranks, load_kind kind, load_sizes sizes, uint64_t seed)
{
    load l;
    load_init(&l, n_ranks, kind, sizes, seed);
    load_write(b, &l);
    for (int has_cluster = 0; has_cluster < 2; has_cluster++) {
        sized_load s = {&l, has_cluster ? 5e-6 : -1};
        char name[NAME_BYTES + 16];
        snprintf(name, sizeof name, "%s%s", l.name, has_cluster ? ", cluster" : "");
        bench_case(b, name, measure_sizes, &s);
    }
    load_cleanup(&l);
}

void bench_sizes(bench *b)
{
    static const struct {
        uint32_t n_ranks;
        load_kind kind;
    } worlds[] = {{16, LOAD_SPARSE},     {16, LOAD_DENSE},   {64, LOAD_SPARSE},
                  {64, LOAD_DENSE},      {64, LOAD_SKEWED},  {64, LOAD_HALVES},
                  {64, LOAD_ALL_TO_ALL}, {256, LOAD_SPARSE}, {256, LOAD_DENSE}};
    for (int sizes = SIZES_UNIFORM; sizes <= SIZES_TINY; sizes++) {
        for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
            for (uint64_t seed = b->seed; seed < b->seed + b->n_seeds; seed++) {
                sizes_case(b, worlds[i].n_ranks, worlds[i].kind, (load_sizes)sizes, seed);
            }
        }
    }
}
