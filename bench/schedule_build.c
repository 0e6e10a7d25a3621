/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How long rank 0 takes to schedule the batches of a world, the network apart: all ranks build once
 * as threads, what rank 0 gathers is written down, and then rank 0 builds alone.
 */
#include "schedule_bench.h"

#include <ferry/reference.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PES = 64, MAX_CALLS = 16 };

/* What one call of the exchange hands to everybody. */
typedef struct gathered {
    char *bytes;
    size_t *lengths;
} gathered;

typedef struct world {
    const load *load;
    uint32_t rule;
    pthread_barrier_t barrier;
    const void *mine[MAX_PES];
    size_t lengths[MAX_PES];
    gathered calls[MAX_CALLS];
    ferry_status statuses[MAX_PES];
    ferry_error errors[MAX_PES];
} world;

typedef struct pe {
    world *world;
    uint32_t rank;
    size_t n_calls;
} pe;

/* Rank 0 joins everybody's bytes and keeps them. */
static void join(world *w, gathered *all)
{
    size_t n = 0;
    for (uint32_t rank = 0; rank < w->load->n_ranks; rank++) {
        n += w->lengths[rank];
    }
    all->bytes = bench_alloc(n, 1);
    all->lengths = bench_alloc(w->load->n_ranks, sizeof *all->lengths);
    n = 0;
    for (uint32_t rank = 0; rank < w->load->n_ranks; rank++) {
        if (w->lengths[rank] != 0) {
            memcpy(all->bytes + n, w->mine[rank], w->lengths[rank]);
        }
        n += w->lengths[rank];
        all->lengths[rank] = w->lengths[rank];
    }
}

static int record(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    pe *p = context;
    if (p->n_calls == MAX_CALLS) {
        return 1;
    }
    p->world->mine[p->rank] = bytes;
    p->world->lengths[p->rank] = n_bytes;
    pthread_barrier_wait(&p->world->barrier); /* everybody's bytes are there */
    gathered *all = &p->world->calls[p->n_calls++];
    if (p->rank == 0) {
        join(p->world, all);
    }
    pthread_barrier_wait(&p->world->barrier); /* they are joined */
    *all_out = all->bytes;
    *lengths_out = all->lengths;
    return 0;
}

static int replay(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                  const size_t **lengths_out)
{
    pe *p = context;
    if (p->n_calls == MAX_CALLS || p->world->calls[p->n_calls].bytes == NULL) {
        return 1;
    }
    const gathered *all = &p->world->calls[p->n_calls++];
    *all_out = all->bytes;
    *lengths_out = all->lengths;
    return n_bytes == all->lengths[0] && memcmp(bytes, all->bytes, n_bytes) == 0 ? 0 : 1;
}

/* One task fills a batch: slots are as large as the tasks. */
static ferry_status pack(const load *l, uint32_t rank, ferry_reference_workloads **out,
                         ferry_error *error)
{
    ferry_reference_workloads *w = NULL;
    ferry_status status = ferry_reference_workloads_create(rank, l->n_ranks, &w, error);
    for (uint64_t i = 0; i < l->n && status == FERRY_OK; i++) {
        if (l->from[i] == rank) {
            status = ferry_reference_workloads_add_task(w, i, l->to[i], l->bytes[i], 2, error);
        }
    }
    if (status == FERRY_OK) {
        status = ferry_reference_workloads_pack(w, l->bytes[0], 1, error);
    }
    *out = w;
    return status;
}

static ferry_status build(pe *p, const ferry_reference_workloads *workloads, uint32_t rule,
                          bool is_replay, uint32_t *rounds_out, ferry_error *error)
{
    ferry_reference_schedule_options options = FERRY_REFERENCE_SCHEDULE_OPTIONS_INIT;
    ferry_exchange exchange = FERRY_EXCHANGE_INIT;
    ferry_reference_schedule *schedule = NULL;
    ferry_reference_summaries *summaries = NULL;
    uint32_t n_ranks = p->world->load->n_ranks;
    options.rule = rule;
    exchange.context = p;
    exchange.rank = p->rank;
    exchange.n_ranks = n_ranks;
    exchange.all_gather = is_replay ? replay : record;
    ferry_status status = ferry_reference_schedule_build(workloads, &options, &exchange, &schedule,
                                                         &summaries, error);
    if (status == FERRY_OK) {
        *rounds_out = ferry_reference_schedule_round_count(schedule);
    }
    ferry_reference_schedule_destroy(schedule);
    ferry_reference_summaries_destroy(summaries);
    return status;
}

static void *run_pe(void *argument)
{
    pe *p = argument;
    ferry_reference_workloads *workloads = NULL;
    ferry_error *error = &p->world->errors[p->rank];
    uint32_t rounds;
    ferry_status status = pack(p->world->load, p->rank, &workloads, error);
    if (status == FERRY_OK) {
        status = build(p, workloads, p->world->rule, false, &rounds, error);
    }
    ferry_reference_workloads_destroy(workloads);
    p->world->statuses[p->rank] = status;
    return NULL;
}

static bool record_world(world *w, bench_row *row)
{
    pthread_t threads[MAX_PES];
    pe pes[MAX_PES];
    pthread_barrier_init(&w->barrier, NULL, w->load->n_ranks);
    for (uint32_t rank = 0; rank < w->load->n_ranks; rank++) {
        pes[rank] = (pe){w, rank, 0};
        if (pthread_create(&threads[rank], NULL, run_pe, &pes[rank]) != 0) {
            perror("bench_schedule");
            exit(1);
        }
    }
    bool fine = true;
    for (uint32_t rank = 0; rank < w->load->n_ranks; rank++) {
        pthread_join(threads[rank], NULL);
        fine = bench_check(row, w->statuses[rank], &w->errors[rank]) && fine;
    }
    pthread_barrier_destroy(&w->barrier);
    return fine;
}

/* The median of ferry_reference_schedule_build as rank 0, whose batches are packed already. */
static bool time_build(const bench *b, const load *l, uint32_t rule, bench_row *row,
                       const char *key)
{
    static world w;
    ferry_reference_workloads *workloads = NULL;
    ferry_error error;
    double seconds[MAX_RUNS];
    uint32_t rounds = 0;
    w = (world){.load = l, .rule = rule};
    if (!record_world(&w, row)) {
        return false;
    }
    ferry_status status = pack(l, 0, &workloads, &error);
    for (int i = -1; i < b->n_runs && status == FERRY_OK; i++) { /* the first does not count */
        pe p = {&w, 0, 0};
        double begin = bench_now();
        status = build(&p, workloads, rule, true, &rounds, &error);
        if (i >= 0) {
            seconds[i] = bench_now() - begin;
        }
    }
    ferry_reference_workloads_destroy(workloads);
    if (!bench_check(row, status, &error)) {
        return false;
    }
    bench_add(row, key, bench_median(seconds, b->n_runs));
    return true;
}

/* The median of ferry_reference_batches_assign_rounds, the package's _assign_iterations. */
static bool time_assign(const bench *b, const load *l, uint32_t rule, bench_row *row,
                        const char *key, const char *rounds_key)
{
    ferry_reference_batches *batches = NULL;
    ferry_error error;
    double seconds[MAX_RUNS];
    uint32_t rounds = 0;
    ferry_status status = FERRY_OK;
    for (int i = -1; i < b->n_runs && status == FERRY_OK; i++) {
        status = ferry_reference_batches_create(l->n_ranks, &batches, &error);
        for (uint64_t k = 0; k < l->n && status == FERRY_OK; k++) {
            ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
            batch.from = l->from[k];
            batch.to = l->to[k];
            batch.index = l->index[k];
            batch.bytes = l->bytes[k];
            status = ferry_reference_batches_add(batches, &batch, &error);
        }
        double begin = bench_now();
        if (status == FERRY_OK) {
            status = ferry_reference_batches_assign_rounds(batches, rule, FERRY_DUPLEX_FULL,
                                                           &rounds, &error);
        }
        if (i >= 0) {
            seconds[i] = bench_now() - begin;
        }
        ferry_reference_batches_destroy(batches);
        batches = NULL;
    }
    if (!bench_check(row, status, &error)) {
        return false;
    }
    bench_add(row, rounds_key, rounds);
    bench_add(row, key, bench_median(seconds, b->n_runs));
    return true;
}

/* The median of a whole schedule from a list of tasks: chunks, rounds, order, times. */
static bool time_create(const bench *b, const load *l, bench_row *row, const char *key)
{
    ferry_task_list *tasks = NULL;
    ferry_schedule *schedule = NULL;
    ferry_error error;
    double seconds[MAX_RUNS];
    ferry_status status = load_tasks(l, &tasks, &error);
    for (int i = -1; i < b->n_runs && status == FERRY_OK; i++) {
        double begin = bench_now();
        status = ferry_schedule_create(tasks, NULL, NULL, &schedule, &error);
        if (i >= 0) {
            seconds[i] = bench_now() - begin;
        }
        ferry_schedule_destroy(schedule);
        schedule = NULL;
    }
    ferry_task_list_destroy(tasks);
    if (!bench_check(row, status, &error)) {
        return false;
    }
    bench_add(row, key, bench_median(seconds, b->n_runs));
    return true;
}

static void measure_build(const bench *b, const void *argument, bench_row *row)
{
    const load *l = argument;
    bench_add(row, "batches", (double)l->n);
    bench_add(row, "degree", load_degree(l, false));
    if (time_assign(b, l, FERRY_SCHEDULE_OPTIMAL, row, "assign-s", "rounds") &&
        time_build(b, l, FERRY_SCHEDULE_OPTIMAL, row, "build-s") &&
        time_assign(b, l, FERRY_SCHEDULE_FIRST_FIT, row, "ff-assign-s", "ff-rounds") &&
        time_build(b, l, FERRY_SCHEDULE_FIRST_FIT, row, "ff-build-s")) {
        time_create(b, l, row, "create-s");
    }
}

void bench_build(bench *b)
{
    static const load_kind kinds[] = {LOAD_ALL_TO_ALL, LOAD_DENSE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        load l;
        load_init(&l, MAX_PES, kinds[i], SIZES_EQUAL, b->seed);
        load_write(b, &l);
        bench_case(b, l.name, measure_build, &l);
        load_cleanup(&l);
    }
}
