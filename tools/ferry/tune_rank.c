/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One rank of `ferry tune`: all measure, rank 0 prints and saves. */
#include "tune.h"

#include "bench.h"
#include "commands.h"
#include "terminal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- what was measured ---- */

static ferry_status collect(const mixed_rank *rank, tune_table *table, ferry_error *error)
{
    size_t n = ferry_mixed_comm_timing_count(rank->comm);
    ferry_status status = ferry_mixed_comm_get_info(rank->comm, &table->info, error);
    table->timings = calloc(n > 0 ? n : 1, sizeof *table->timings);
    if (table->timings == NULL) {
        return mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        table->timings[i] = (ferry_mixed_timing)FERRY_MIXED_TIMING_INIT;
        status = ferry_mixed_comm_timing_at(rank->comm, i, &table->timings[i], error);
    }
    table->n = n;
    return status;
}

/* Printed first: a file that cannot be written must not cost what was measured. */
static ferry_status tell(const mixed_request *r, const mixed_rank *rank, ferry_error *error)
{
    tune_table table = {.info = FERRY_MIXED_COMM_INFO_INIT};
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
    ferry_error error = {0};
    mixed_rank rank;
    ferry_status status = mixed_open(r, world, &rank, &error);
    if (status == FERRY_OK) {
        terminal_clock *clock = rank.rank == 0 ? terminal_clock_begin("measuring") : NULL;
        status = ferry_mixed_comm_run_autotune(rank.comm, &error);
        terminal_clock_end(clock);
    }
    if (status == FERRY_OK && rank.rank == 0) {
        status = tell(r, &rank, &error);
    }
    return mixed_close(&rank, status, &error);
}
