/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Predicted seconds: the same bytes for many receivers, and refits of large models. */
#include "schedule_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the busiest receiver gets. */
static ferry_status busiest_receiver(const ferry_schedule *schedule, uint64_t n_batches,
                                     uint64_t *bytes_out, ferry_error *error)
{
    enum { MAX_RANKS = 1 << 16 };
    uint64_t *bytes = bench_alloc(MAX_RANKS, sizeof *bytes), most = 0;
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n_batches && status == FERRY_OK; i++) {
        ferry_batch batch = FERRY_BATCH_INIT;
        status = ferry_schedule_batch_at(schedule, i, &batch, error);
        bytes[batch.to % MAX_RANKS] += batch.bytes;
        most = bytes[batch.to % MAX_RANKS] > most ? bytes[batch.to % MAX_RANKS] : most;
    }
    free(bytes);
    *bytes_out = most;
    return status;
}

/* What the schedule and its simulation say. rate: of a rank, bytes per unit of time. */
static ferry_status describe(const ferry_schedule *schedule, double rate, bench_row *row,
                             ferry_error *error)
{
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_simulation_report simulated = FERRY_SIMULATION_REPORT_INIT;
    ferry_simulation *simulation = NULL;
    uint64_t receives = 0;
    ferry_status status = ferry_schedule_get_report(schedule, &report, error);
    double begin = bench_now(), end = 0;
    if (status == FERRY_OK) {
        status = ferry_simulation_create(schedule, NULL, &simulation, error);
        end = bench_now();
    }
    if (status == FERRY_OK) {
        status = ferry_simulation_get_report(simulation, &simulated, error);
    }
    if (status == FERRY_OK) {
        status = busiest_receiver(schedule, report.n_batches, &receives, error);
    }
    ferry_simulation_destroy(simulation);
    bench_add(row, "simulate-s", end - begin);
    bench_add(row, "batches", (double)report.n_batches);
    bench_add(row, "rounds", report.n_rounds);
    bench_add(row, "degree", report.degree);
    bench_add(row, "GiB", (double)report.bytes / 0x1p30);
    bench_add(row, "relayed-GiB", (double)report.relayed_bytes / 0x1p30);
    bench_add(row, "simulated", simulated.seconds);
    bench_add(row, "makespan", report.makespan);
    bench_add(row, "bound", report.bound);
    bench_add(row, "simulated/bound", simulated.seconds / report.bound);
    bench_add(row, "simulated/receiver", simulated.seconds * rate / (double)receives);
    return status;
}

typedef struct fan_case {
    uint32_t n_receivers;
    uint64_t bytes;
    double latency_s; /* below 0: no cluster */
} fan_case;

static ferry_status fan_tasks(const fan_case *c, ferry_task_list **tasks_out, ferry_error *error)
{
    ferry_task_list *tasks = NULL;
    ferry_status status = ferry_task_list_create(c->n_receivers + 1, &tasks, error);
    for (uint32_t to = 1; to <= c->n_receivers && status == FERRY_OK; to++) {
        ferry_task task = FERRY_TASK_INIT;
        task.task_id = to;
        task.to = to;
        task.bytes = c->bytes;
        task.element_bytes = 2;
        task.has_content = true;
        status = ferry_task_list_add(tasks, &task, error);
    }
    *tasks_out = tasks;
    return status;
}

/*
 * The best that p equal pieces can do, for the best p: one sender and k receivers need at least
 * p - 1 + ceil(log2(k + 1)) rounds, since every round at most doubles the ranks that have a piece.
 */
static double pipeline_time(const fan_case *c)
{
    double seconds = (double)c->bytes / 50e9, best = INFINITY;
    double depth = ceil(log2((double)c->n_receivers + 1)) - 1;
    for (uint64_t p = c->bytes / FERRY_SLOT_BYTES; p < (1 << 16); p++) {
        best = fmin(best, ((double)p + depth) * (seconds / (double)p + c->latency_s));
    }
    return best;
}

static void measure_fan(const bench *b, const void *argument, bench_row *row)
{
    const fan_case *c = argument;
    ferry_task_list *tasks = NULL;
    ferry_cluster *cluster = NULL;
    ferry_schedule *schedule = NULL;
    ferry_error error;
    ferry_status status = fan_tasks(c, &tasks, &error);
    (void)b;
    if (status == FERRY_OK && c->latency_s >= 0) {
        status = bench_cluster(400, c->latency_s, &cluster, &error);
    }
    double begin = bench_now();
    if (status == FERRY_OK) {
        status = ferry_schedule_create(tasks, cluster, NULL, &schedule, &error);
    }
    bench_add(row, "plan-s", 0);
    bench_add(row, "schedule-s", bench_now() - begin);
    if (status == FERRY_OK) {
        status = describe(schedule, cluster == NULL ? 1 : 50e9, row, &error);
        bench_add(row, "pipeline/receiver",
                  c->latency_s > 0 ? pipeline_time(c) * 50e9 / (double)c->bytes : 1);
    }
    bench_check(row, status, &error);
    ferry_schedule_destroy(schedule);
    ferry_cluster_destroy(cluster);
    ferry_task_list_destroy(tasks);
}

/* A spec in text: planned, scheduled and simulated on its own cluster of 50 GB/s a rank. */
static void measure_spec(const bench *b, const void *argument, bench_row *row)
{
    const char *text = argument;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_schedule *schedule = NULL;
    ferry_error error;
    double times[3] = {bench_now()};
    (void)b;
    ferry_status status = ferry_spec_parse(text, strlen(text), "spec", &spec, &error);
    if (status == FERRY_OK) {
        status = ferry_plan_create(spec, NULL, &plan, &error);
    }
    times[1] = bench_now();
    if (status == FERRY_OK) {
        status = ferry_schedule_create_for_plan(plan, NULL, &schedule, &error);
    }
    times[2] = bench_now();
    bench_add(row, "plan-s", times[1] - times[0]);
    bench_add(row, "schedule-s", times[2] - times[1]);
    if (status == FERRY_OK) {
        status = describe(schedule, 50e9, row, &error);
    }
    bench_check(row, status, &error);
    ferry_schedule_destroy(schedule);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

typedef struct replica_case {
    const char *name;
    const char *source, *destination; /* meshes */
    uint32_t first_rank;              /* of the destination */
} replica_case;

/* One matrix of 4 GiB, its rows cut over tp on both sides. */
static void replica_spec(char *text, size_t n, const replica_case *c)
{
    snprintf(text, n,
             "{\"format\":\"ferry.spec/1\",\"tensors\":[{\"name\":\"w\",\"shape\":[65536,32768],"
             "\"dtype\":\"bf16\"}],\"source\":{\"mesh\":%s,\"rules\":[{\"match\":\"*\",\"shard\":[{"
             "\"dim\":0,\"axis\":\"tp\"}]}]},\"destination\":{\"mesh\":%s,\"first_rank\":%u,"
             "\"rules\":[{\"match\":\"*\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]}]},\"cluster\":{"
             "\"ranks_per_node\":8,\"rank_gbytes_per_s\":50,\"node_gbytes_per_s\":400,"
             "\"latency_us\":5}}",
             c->source, c->destination, c->first_rank);
}

static void bench_replicas(bench *b)
{
    static const replica_case cases[] = {
        {"8 sources, 8 receivers: no relays", "[[\"dp\",8],[\"tp\",1]]", "[[\"dp\",8],[\"tp\",1]]",
         8},
        {"64 sources, 64 receivers: no relays", "[[\"dp\",64],[\"tp\",1]]",
         "[[\"dp\",64],[\"tp\",1]]", 64},
        {"TP8xDP8 -> TP4xDP16: no relays", "[[\"dp\",8],[\"tp\",8]]", "[[\"dp\",16],[\"tp\",4]]",
         64},
        {"TP8xDP8 -> TP8xDP8: no relays", "[[\"dp\",8],[\"tp\",8]]", "[[\"dp\",8],[\"tp\",8]]", 64},
        {"TP4 -> TP8xDP8", "[[\"tp\",4]]", "[[\"dp\",8],[\"tp\",8]]", 4},
        {"TP4 -> TP4xDP8", "[[\"tp\",4]]", "[[\"dp\",8],[\"tp\",4]]", 4},
        {"TP8 -> TP4xDP4", "[[\"tp\",8]]", "[[\"dp\",4],[\"tp\",4]]", 8},
        {"TP8 -> TP2xDP32", "[[\"tp\",8]]", "[[\"dp\",32],[\"tp\",2]]", 8},
        {"TP2xDP2 -> TP4xDP8", "[[\"dp\",2],[\"tp\",2]]", "[[\"dp\",8],[\"tp\",4]]", 4},
        {"TP1 -> TP8xDP8", "[[\"tp\",1]]", "[[\"dp\",8],[\"tp\",8]]", 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        replica_spec(text, sizeof text, &cases[i]);
        bench_case(b, cases[i].name, measure_spec, text);
    }
}

void bench_fan_out(bench *b)
{
    static const double latencies[] = {-1, 0, 5e-6};
    for (uint64_t gib = 1; gib <= 4; gib *= 4) {
        for (size_t i = 0; i < sizeof latencies / sizeof latencies[0]; i++) {
            for (uint32_t k = 1; k <= 64; k *= 2) {
                fan_case c = {k, gib << 30, latencies[i]};
                char name[NAME_BYTES];
                snprintf(name, sizeof name, "%llu GiB to %u, %s", (unsigned long long)gib, k,
                         latencies[i] < 0    ? "no cluster"
                         : latencies[i] == 0 ? "50 GB/s, 0 us"
                                             : "50 GB/s, 5 us");
                bench_case(b, name, measure_fan, &c);
            }
        }
    }
    bench_replicas(b);
}

/* The text of an example with a cluster of 50 GB/s a rank and this latency; NULL: no such file. */
static char *example_text(const bench *b, const char *name, double node_rate, double latency_us)
{
    enum { TAIL_BYTES = 256 };
    char path[1024];
    char *text = NULL;
    snprintf(path, sizeof path, "%s/%s", b->examples, name);
    FILE *file = fopen(path, "r");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        return NULL;
    }
    size_t n = (size_t)ftell(file);
    rewind(file);
    text = bench_alloc(n + TAIL_BYTES, 1);
    size_t n_read = fread(text, 1, n, file);
    fclose(file);
    text[n_read] = '\0';
    char *cluster = strstr(text, "\"cluster\""); /* the last member of the examples used here */
    if (cluster == NULL) {
        fprintf(stderr, "%s has no cluster at its end\n", path);
        free(text);
        return NULL;
    }
    snprintf(cluster, TAIL_BYTES,
             "\"cluster\":{\"ranks_per_node\":8,\"rank_gbytes_per_s\":50,\"node_gbytes_per_s\":%g,"
             "\"latency_us\":%g}}",
             node_rate, latency_us);
    return text;
}

void bench_refit(bench *b)
{
    static const struct {
        const char *name, *file;
    } models[] = {{"deepseek-v3 256 -> 256", "deepseek-v3.json"},
                  {"kimi-k2 256 -> 128", "kimi-k2-256-to-128.json"}};
    static const struct {
        double node_rate, latency_us;
    } networks[] = {{400, 0}, {400, 5}, {200, 5}};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        for (size_t i = 0; i < sizeof networks / sizeof networks[0]; i++) {
            char name[NAME_BYTES];
            snprintf(name, sizeof name, "%s, node %g, %g us", models[m].name, networks[i].node_rate,
                     networks[i].latency_us);
            char *text =
                example_text(b, models[m].file, networks[i].node_rate, networks[i].latency_us);
            if (text == NULL) {
                b->has_failed = true;
                continue;
            }
            bench_case(b, name, measure_spec, text);
            free(text);
        }
    }
}
