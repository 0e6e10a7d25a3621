/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How the results of all ranks come to rank 0, and what they come to. */
#include "run.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 0x52554e };

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory");
    return FERRY_ERR_NO_MEMORY;
}

/* ---- to rank 0 ---- */

static ferry_status send_bytes(ferry_world *world, const char *bytes, size_t n_bytes,
                               ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t done = 0; done < n_bytes && status == FERRY_OK;) {
        size_t n = n_bytes - done < FERRY_MESSAGE_BYTES ? n_bytes - done : FERRY_MESSAGE_BYTES;
        status = ferry_world_send(world, 0, TAG, bytes + done, n, error);
        done += n;
    }
    return status;
}

static ferry_status receive_bytes(ferry_world *world, uint32_t from, char *to, size_t n_bytes,
                                  ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t done = 0; done < n_bytes && status == FERRY_OK;) {
        const void *bytes = NULL;
        size_t n = 0;
        status = ferry_world_receive(world, from, TAG, -1, &bytes, &n, NULL, error);
        if (status == FERRY_OK && n > n_bytes - done) {
            snprintf(error->message, sizeof error->message,
                     "rank %u sent other results than it had announced", from);
            status = FERRY_ERR_INVALID_INPUT;
        }
        if (status == FERRY_OK) {
            memcpy(to + done, bytes, n);
            done += n;
        }
    }
    return status;
}

/*
 * Collective: items of all ranks, in order of ranks, in memory that rank 0 frees; the others get
 * NULL. counts_out may be NULL.
 */
static ferry_status gather(ferry_world *world, const void *items, size_t item_bytes, size_t n,
                           void **all_out, size_t *total_out, size_t *counts_out,
                           ferry_error *error)
{
    uint32_t n_ranks = ferry_world_rank_count(world);
    uint64_t own = n;
    const void *said = NULL;
    ferry_status status = ferry_world_all_gather(world, &own, sizeof own, &said, error);
    if (status != FERRY_OK || ferry_world_rank(world) != 0) {
        return status == FERRY_OK ? send_bytes(world, items, n * item_bytes, error) : status;
    }
    size_t total = 0;
    uint64_t *counts = calloc(n_ranks, sizeof *counts);
    if (counts == NULL) {
        return fail_memory(error);
    }
    memcpy(counts, said, n_ranks * sizeof *counts);
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        total += counts[rank];
    }
    char *all = calloc(total > 0 ? total : 1, item_bytes);
    status = all == NULL ? fail_memory(error) : FERRY_OK;
    for (size_t rank = 0, at = 0; rank < n_ranks && status == FERRY_OK; rank++) {
        if (rank == 0) {
            memcpy(all, items, n * item_bytes);
        } else {
            status = receive_bytes(world, (uint32_t)rank, all + at * item_bytes,
                                   counts[rank] * item_bytes, error);
        }
        at += counts[rank];
        if (counts_out != NULL) {
            counts_out[rank] = counts[rank];
        }
    }
    free(counts);
    if (status != FERRY_OK) {
        free(all);
        return status;
    }
    *all_out = all;
    *total_out = total;
    return FERRY_OK;
}

ferry_status run_results_gather(ferry_world *world, const run_results *own, run_results *all_out,
                                ferry_error *error)
{
    size_t ignored;
    run_results all = {.n_ranks = own->n_ranks,
                       .n_nodes = own->n_nodes,
                       .n_runs = own->n_runs,
                       .machine = own->machine};
    all.n_spans = calloc(own->n_ranks, sizeof *all.n_spans);
    if (all.n_spans == NULL) {
        return fail_memory(error);
    }
    ferry_status status = gather(world, own->ranks, sizeof *own->ranks, 1, (void **)&all.ranks,
                                 &ignored, NULL, error);
    FY_THEN(status, gather(world, own->samples, sizeof *own->samples, own->n_runs,
                           (void **)&all.samples, &ignored, NULL, error));
    FY_THEN(status, gather(world, own->peers, sizeof *own->peers, own->n_peers, (void **)&all.peers,
                           &all.n_peers, NULL, error));
    FY_THEN(status, gather(world, own->spans, sizeof *own->spans, own->n_spans[0],
                           (void **)&all.spans, &ignored, all.n_spans, error));
    if (status != FERRY_OK) {
        run_results_free(&all);
        return status;
    }
    *all_out = all;
    return FERRY_OK;
}

void run_results_free(run_results *results)
{
    free(results->ranks);
    free(results->samples);
    free(results->peers);
    free(results->spans);
    free(results->n_spans);
    *results = (run_results){0};
}

/* ---- what they come to ---- */

static const char *const phase_names[RUN_PHASES] = {
    [RUN_PACK] = "pack",      [RUN_WIRE] = "wire", [RUN_UNPACK] = "unpack",
    [RUN_CHECKSUM] = "check", [RUN_WAIT] = "wait", [RUN_WHOLE] = "whole"};

const char *run_phase_name(uint32_t phase)
{
    return phase_names[phase];
}

double run_phase_seconds(const run_sample *sample, uint32_t phase)
{
    const ferry_service_statistics *s = &sample->statistics;
    switch (phase) {
    case RUN_PACK:
        return s->seconds_pack;
    case RUN_WIRE:
        return s->seconds_wire;
    case RUN_UNPACK:
        return s->seconds_unpack;
    case RUN_CHECKSUM:
        return s->seconds_check;
    case RUN_WAIT:
        return s->seconds_wait;
    default:
        return s->seconds;
    }
}

static const run_sample *sample_of(const run_results *results, uint32_t rank, uint32_t number)
{
    return &results->samples[(size_t)rank * results->n_runs + number];
}

double run_seconds(const run_results *results, uint32_t number)
{
    double most = 0;
    for (uint32_t rank = 0; rank < results->n_ranks; rank++) {
        double seconds = sample_of(results, rank, number)->statistics.seconds;
        most = seconds > most ? seconds : most;
    }
    return most;
}

typedef struct timed {
    double seconds;
    uint32_t number;
} timed;

static int compare_timed(const void *a, const void *b)
{
    const timed *x = a, *y = b;
    if (x->seconds != y->seconds) {
        return x->seconds < y->seconds ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

/* Of an even number, the later of the two in the middle: a run that there was. */
static void summarize_runs(const run_results *results, timed *runs, run_summary *s)
{
    uint32_t n = results->n_runs - 1;
    for (uint32_t i = 0; i < n; i++) {
        runs[i] = (timed){.seconds = run_seconds(results, i + 1), .number = i + 1};
    }
    qsort(runs, n, sizeof *runs, compare_timed);
    s->least = runs[0].seconds;
    s->most = runs[n - 1].seconds;
    s->median = runs[n / 2].seconds;
    s->median_run = runs[n / 2].number;
    s->bytes_per_s = s->median > 0 ? (double)s->bytes / s->median : 0;
}

static void summarize_phase(const run_results *results, uint32_t phase, timed *ranks,
                            run_summary *s)
{
    uint32_t n = results->n_ranks;
    for (uint32_t i = 0; i < n; i++) {
        ranks[i] = (timed){
            .seconds = run_phase_seconds(sample_of(results, i, s->median_run), phase), .number = i};
    }
    qsort(ranks, n, sizeof *ranks, compare_timed);
    s->phases[phase] = (run_phase){.least = ranks[0].seconds,
                                   .median = ranks[n / 2].seconds,
                                   .most = ranks[n - 1].seconds,
                                   .slowest = ranks[n - 1].number};
}

/* A rank's plannings, allocations and registrations from the first run's end to the last one's. */
static uint64_t later_work(const run_results *results, uint32_t rank)
{
    const ferry_service_statistics *first = &sample_of(results, rank, 0)->statistics;
    const ferry_service_statistics *last =
        &sample_of(results, rank, results->n_runs - 1)->statistics;
    return last->n_schedules - first->n_schedules + (last->n_allocations - first->n_allocations) +
           (last->n_registrations - first->n_registrations);
}

static void add_rank(const run_results *results, uint32_t rank, run_summary *s)
{
    const run_rank_result *r = &results->ranks[rank];
    const ferry_service_statistics *t = &sample_of(results, rank, s->median_run)->statistics;
    const uint64_t bytes[] = {t->bytes_local, t->bytes_mapped, t->bytes_remote, t->bytes_staged};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        s->path_bytes[i] += bytes[i];
    }
    s->relayed_bytes += t->bytes_relayed;
    s->device_slot_bytes += t->bytes_device_slots;
    s->staging_bytes = t->staging_bytes > s->staging_bytes ? t->staging_bytes : s->staging_bytes;
    s->later_work += later_work(results, rank);
    s->source_bytes += r->source_bytes;
    s->destination_bytes += r->destination_bytes;
    s->source_ranks += r->source_shards > 0;
    s->destination_ranks += r->destination_shards > 0;
    s->verified_shards += r->verified_shards;
    s->verified_bytes += r->verified_bytes;
    s->copy_bytes_per_s += r->copy_gbytes_per_s * 1e9;
}

ferry_status run_summarize(const ferry_plan *plan, const run_results *results,
                           run_summary *summary_out, ferry_error *error)
{
    run_summary s = {.totals = FERRY_PLAN_TOTALS_INIT,
                     .bound = FERRY_PLAN_BOUND_INIT,
                     .plan = FERRY_PLAN_STATISTICS_INIT};
    size_t n = results->n_ranks > results->n_runs ? results->n_ranks : results->n_runs;
    timed *sorted = calloc(n, sizeof *sorted);
    if (sorted == NULL) {
        return fail_memory(error);
    }
    ferry_status status = ferry_plan_get_totals(plan, &s.totals, error);
    FY_THEN(status, ferry_plan_get_bound(plan, &s.bound, error));
    FY_THEN(status, ferry_plan_get_statistics(plan, &s.plan, error));
    if (status == FERRY_OK) {
        s.bytes = s.totals.moved_bytes + s.totals.local_bytes;
        summarize_runs(results, sorted, &s);
        for (uint32_t phase = 0; phase < RUN_PHASES; phase++) {
            summarize_phase(results, phase, sorted, &s);
        }
        for (uint32_t rank = 0; rank < results->n_ranks; rank++) {
            add_rank(results, rank, &s);
        }
        *summary_out = s;
    }
    free(sorted);
    return status;
}
