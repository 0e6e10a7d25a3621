/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry tune`: all measure, rank 0 prints and saves. */
#include "tune.h"

#include "bench.h"
#include "commands.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- while it lasts, on rank 0's terminal ---- */

typedef struct clock_line {
    pthread_t   thread;
    bool        runs;
    atomic_bool ends;
} clock_line;

static void *show_clock(void *argument)
{
    static const struct timespec tick = {.tv_nsec = 100000000};

    clock_line *line  = argument;
    double      begin = bench_now(), shown = begin;
    while (!atomic_load(&line->ends)) {
        nanosleep(&tick, NULL);
        if (bench_now() >= shown + 1) {
            shown = bench_now();
            fprintf(stderr, "\r\033[Kmeasuring: %.0f s", shown - begin);
            fflush(stderr);
        }
    }
    fprintf(stderr, "\r\033[K");
    fflush(stderr);
    return NULL;
}

/* Without a thread to show it nothing is shown. */
static void begin_clock(clock_line *line, bool wanted)
{
    atomic_init(&line->ends, false);
    line->runs = wanted && isatty(STDERR_FILENO) != 0 &&
                 pthread_create(&line->thread, NULL, show_clock, line) == 0;
}

static void end_clock(clock_line *line)
{
    if (line->runs) {
        atomic_store(&line->ends, true);
        pthread_join(line->thread, NULL);
    }
}

/* ---- what was measured ---- */

static ferry_status collect(const mixed_rank *rank, tune_table *table, ferry_error *error)
{
    size_t       n      = ferry_mixed_comm_timing_count(rank->comm);
    ferry_status status = ferry_mixed_comm_describe(rank->comm, &table->info, error);
    table->timings      = calloc(n > 0 ? n : 1, sizeof *table->timings);
    if (table->timings == NULL) {
        return mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        table->timings[i] = (ferry_mixed_timing)FERRY_MIXED_TIMING_INIT;
        status            = ferry_mixed_comm_timing_at(rank->comm, i, &table->timings[i], error);
    }
    table->n = n;
    return status;
}

/* Printed first: a file that cannot be written must not cost what was measured. */
static ferry_status tell(const mixed_request *r, const mixed_rank *rank, ferry_error *error)
{
    tune_table   table  = {.info = FERRY_MIXED_COMM_INFO_INIT};
    ferry_status status = collect(rank, &table, error);
    if (status == FERRY_OK && r->json) {
        tune_print_json(&table);
    } else if (status == FERRY_OK) {
        printf("ferry %s, ", ferry_version());
        tune_print_table(&table);
    }
    fflush(stdout);
    tune_table_free(&table);
    if (status == FERRY_OK && r->out != NULL) {
        status = ferry_mixed_comm_save_tuning(rank->comm, r->out, error);
    }
    return status;
}

int tune_rank(const mixed_request *r, ferry_world *world)
{
    ferry_error  error = {0};
    mixed_rank   rank;
    clock_line   line;
    ferry_status status = mixed_open(r, world, &rank, &error);
    if (status == FERRY_OK) {
        begin_clock(&line, rank.rank == 0);
        status = ferry_mixed_comm_run_autotune(rank.comm, &error);
        end_clock(&line);
    }
    if (status == FERRY_OK && rank.rank == 0) {
        status = tell(r, &rank, &error);
    }
    return mixed_close(&rank, status, &error);
}
