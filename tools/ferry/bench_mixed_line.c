/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixed_line.h"

#include "bench.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double WINDOW_SECONDS = 2e-5;

enum { PACE_CALLS = 2, LEAST_SAMPLES = 5, MOST_WINDOW = 16, COLUMNS = 64 };

/* What a rank has found wrong in a line. */
typedef struct finding {
    mixed_verdict verdict; /* of all passes; the first wrong element is that of the first */
    uint32_t pattern;      /* where that was */
    uint64_t digest;       /* of a result that other ranks must have as well */
} finding;

/* What ranks tell each other of one form of a line. */
typedef struct share {
    bench_times times;
    finding found;
    ferry_mixed_counts counts;
} share;

/* ---- one call ---- */

/* How often a sum may be rounded on its way: in rings by every rank but the last. */
static uint32_t stages_of(const mixed_bench *b, uint32_t mode)
{
    uint32_t before_last = b->rank.n_ranks - 1;
    bool fused = mode >= FERRY_MIXED_FUSED_WAITS_MULTICAST && mode < FERRY_MIXED_BASE_ONE;
    if (b->request->deterministic) {
        return 0;
    }
    return fused && before_last > 2 ? 2 : before_last;
}

mixed_case mixed_case_of(const mixed_bench *b, const mixed_line *line, mixed_pattern pattern)
{
    const ferry_mixed_comm_info *info = &b->rank.info;
    return (mixed_case){.op = line->op,
                        .dtype = info->dtype,
                        .rank = b->rank.rank,
                        .n_ranks = b->rank.n_ranks,
                        .local_size = info->local_size,
                        .local_tp = info->local_tp_size,
                        .local_dp = info->local_dp_size,
                        .inter_tp = info->inter_tp_size,
                        .inter_dp = info->inter_dp_size,
                        .count = line->count,
                        .stages = stages_of(b, line->mode),
                        .seed = b->n_lines, /* what an earlier line has left is wrong */
                        .pattern = pattern};
}

/* Where a tensor lies. */
typedef struct place {
    const mixed_memory *memory;
    uint64_t offset, bytes;
} place;

typedef struct places {
    place in, out;
} places;

/* In place the smaller one is this rank's chunk of the larger. */
static places places_of(const mixed_bench *b, const mixed_case *c, mixed_form form)
{
    uint32_t element = mixed_element_bytes(c->dtype);
    uint64_t in = mixed_in_count(c) * element, out = mixed_out_count(c) * element;
    uint64_t chunk = mixed_dp_rank(c, c->rank) * (in < out ? in : out);
    if (form == MIXED_OUT_OF_PLACE) {
        return (places){{&b->in, 0, in}, {&b->out, 0, out}};
    }
    return (places){{&b->place, in < out ? chunk : 0, in}, {&b->place, out < in ? chunk : 0, out}};
}

static void *host_of(const place *at)
{
    return (char *)at->memory->host + at->offset;
}

static ferry_status send(const place *at, ferry_error *error)
{
    return mixed_memory_send(at->memory, at->offset, at->bytes, error);
}

static ferry_mixed_tensor tensor_of(const place *at, uint64_t row_bytes, uint64_t columns)
{
    ferry_mixed_tensor tensor = {mixed_memory_part(at->memory, at->offset, at->bytes),
                                 at->bytes / row_bytes, columns};
    return tensor;
}

static ferry_status call(mixed_bench *b, const mixed_line *line, mixed_form form,
                         ferry_error *error)
{
    mixed_case c = mixed_case_of(b, line, MIXED_INTEGERS);
    places at = places_of(b, &c, form);
    uint64_t columns = line->count % COLUMNS == 0 ? COLUMNS : 1;
    uint64_t row_bytes = columns * mixed_element_bytes(c.dtype);
    ferry_mixed_tensor in = tensor_of(&at.in, row_bytes, columns);
    ferry_mixed_tensor out = tensor_of(&at.out, row_bytes, columns);
    return ferry_mixed_comm_run(b->rank.comm, line->op, &in, &out, line->mode, b->queue, error);
}

/* Calls, and their end: on a queue they end later than they return. */
static ferry_status call_often(mixed_bench *b, const mixed_line *line, mixed_form form, uint32_t n,
                               ferry_error *error)
{
    for (uint32_t i = 0; i < n; i++) {
        FY_TRY(call(b, line, form, error));
    }
    return b->queue == NULL || n == 0 ? FERRY_OK : ferry_queue_synchronize(b->queue, error);
}

/* ---- checking ---- */

/*
 * The output first: in place the input is in it, or it in the input. A kernel that waits for that
 * of another rank may hold up what this one copies to the same device: so all have copied first.
 */
static ferry_status begin_pass(mixed_bench *b, const mixed_line *line, mixed_form form,
                               mixed_pattern pattern, ferry_error *error)
{
    mixed_case c = mixed_case_of(b, line, pattern);
    places at = places_of(b, &c, form);
    mixed_poison(&c, host_of(&at.out));
    mixed_fill(&c, host_of(&at.in));
    FY_TRY(send(&at.out, error));
    FY_TRY(send(&at.in, error));
    return b->report.devices == NULL ? FERRY_OK : ferry_world_barrier(b->rank.world, error);
}

/* What a device has comes over the poison: what never comes is wrong. */
static ferry_status end_pass(mixed_bench *b, const mixed_line *line, mixed_form form,
                             mixed_pattern pattern, finding *found, ferry_error *error)
{
    mixed_case c = mixed_case_of(b, line, pattern);
    place at = places_of(b, &c, form).out;
    const void *out = host_of(&at);
    FY_TRY(mixed_memory_fetch(at.memory, at.offset, at.bytes, error));
    mixed_verdict v = mixed_check(&c, out);
    if (found->verdict.n_wrong == 0 && v.n_wrong > 0) {
        found->verdict = v;
        found->pattern = pattern;
    } else {
        found->verdict.n_wrong += v.n_wrong;
    }
    if (pattern != MIXED_INTEGERS) {
        found->digest = mixed_digest(&c, out);
    }
    return FERRY_OK;
}

static ferry_status check_pass(mixed_bench *b, const mixed_line *line, mixed_form form,
                               mixed_pattern pattern, finding *found, ferry_error *error)
{
    FY_TRY(begin_pass(b, line, form, pattern, error));
    FY_TRY(call_often(b, line, form, 1, error));
    return end_pass(b, line, form, pattern, found, error);
}

/* "all-reduce in place, mode base-one, pieces of 8 KiB" */
static const char *line_text(const mixed_line *line, mixed_form form, char text[160])
{
    char size[32];
    snprintf(text, 160, "%s%s, mode %s, pieces of %s", ferry_mixed_op_name(line->op),
             form == MIXED_IN_PLACE ? " in place" : "", ferry_mixed_mode_name(line->mode),
             bench_size_text(line->bytes, size));
    return text;
}

static void describe_wrong(mixed_bench *b, const mixed_line *line, mixed_form form, uint32_t rank,
                           const finding *found)
{
    char text[160];
    mixed_fail(
        &b->first_wrong, FERRY_ERR_DIGEST,
        found->pattern == MIXED_BITS
            ? "the first in %s: element %llu of rank %u has the bits %.0f and should have %.0f"
            : "the first in %s: element %llu of rank %u is %.9g and should be %.9g",
        line_text(line, form, text), (unsigned long long)found->verdict.first, rank,
        found->verdict.got, found->verdict.want);
}

static void describe_differing(mixed_bench *b, const mixed_line *line, mixed_form form,
                               uint32_t rank)
{
    char text[160];
    mixed_case c = mixed_case_of(b, line, MIXED_RANDOM);
    mixed_fail(&b->first_wrong, FERRY_ERR_DIGEST,
               "the first in %s: rank %u has other bits than rank %u", line_text(line, form, text),
               rank, mixed_first_replica(&c, rank));
}

/* ---- timing ---- */

typedef struct pace {
    uint64_t n_samples;
    uint64_t window; /* calls of each sample */
} pace;

static pace pace_of(const mixed_bench *b, double each)
{
    pace own = {0};
    double window = WINDOW_SECONDS / each;
    own.window = window < 1 ? 1 : window > MOST_WINDOW ? MOST_WINDOW : (uint64_t)window;
    double fit = b->request->seconds / (each * (double)own.window);
    own.n_samples = fit < LEAST_SAMPLES        ? LEAST_SAMPLES
                    : fit > MIXED_MOST_SAMPLES ? MIXED_MOST_SAMPLES
                                               : (uint64_t)fit;
    return own;
}

/*
 * The calls that warm up, and then either as many as were asked for, each timed alone, or as many
 * as fit into the time: by what the last of those calls took on rank 0, which decides for all.
 */
static ferry_status agree_on_pace(mixed_bench *b, const mixed_line *line, mixed_form form,
                                  pace *pace_out, ferry_error *error)
{
    const mixed_request *r = b->request;
    const void *said = NULL;
    size_t n_said = 0;
    uint32_t first = r->n_warmup > PACE_CALLS ? r->n_warmup - PACE_CALLS : 0;
    if (r->n_iterations != 0) {
        *pace_out = (pace){.n_samples = r->n_iterations, .window = 1};
        return call_often(b, line, form, r->n_warmup, error);
    }
    ferry_status status = call_often(b, line, form, first, error);
    double begin = bench_now();
    FY_THEN(status, call_often(b, line, form, PACE_CALLS, error));
    if (status != FERRY_OK) {
        return status;
    }
    pace own = pace_of(b, (bench_now() - begin) / PACE_CALLS + 1e-9);
    FY_TRY(ferry_world_broadcast(b->rank.world, 0, &own, sizeof own, &said, &n_said, error));
    memcpy(pace_out, said, sizeof own);
    return FERRY_OK;
}

static ferry_status sample(mixed_bench *b, const mixed_line *line, mixed_form form, const pace *p,
                           ferry_error *error)
{
    ferry_status status = ferry_world_barrier(b->rank.world, error);
    for (uint64_t i = 0; i < p->n_samples && status == FERRY_OK; i++) {
        double begin = bench_now();
        status = call_often(b, line, form, (uint32_t)p->window, error);
        b->samples[i] = (bench_now() - begin) / (double)p->window;
    }
    return status;
}

static ferry_status count_call(mixed_bench *b, const mixed_line *line,
                               ferry_mixed_counts *counts_out, ferry_error *error)
{
    FY_TRY(ferry_mixed_comm_reset_counts(b->rank.comm, error));
    FY_TRY(call_often(b, line, MIXED_OUT_OF_PLACE, 1, error));
    return ferry_mixed_comm_get_counts(b->rank.comm, counts_out, error);
}

/* ---- predictions ---- */

bool mixed_is_by_library(const ferry_mixed_comm_info *info, uint32_t mode)
{
    return strcmp(info->base_engine, "ferry") != 0 &&
           (mode == FERRY_MIXED_BASE_ONE || mode == FERRY_MIXED_BASE_TP_DP);
}

/* Of what a library does nothing is known: neither what it moves, nor of how many lanes. */
static void predict_line(const mixed_bench *b, mixed_line *line)
{
    const mixed_sample call = {line->op, line->mode, line->bytes, line->count, 0};
    if (b->report.costs == NULL || mixed_is_by_library(&b->rank.info, line->mode)) {
        return;
    }
    line->predicted = mixed_predict_beside(&b->costs, &b->sketches, b->fit, b->n_fit, &call);
    for (size_t k = 0; k < b->costs.n_knots; k++) {
        line->is_fitted = line->is_fitted || b->costs.tensors[k].bytes == (double)line->bytes;
    }
}

/* How many lanes have something to do: as the handle cuts this message, where a mode is one. */
static void find_lanes(const mixed_bench *b, mixed_line *line)
{
    ferry_mixed_work work = FERRY_MIXED_WORK_INIT;
    if (b->sketches.n > 0 && !mixed_is_by_library(&b->rank.info, line->mode) &&
        ferry_mixed_sketch_count(b->sketches.at[0], line->op, line->mode, line->count, &work,
                                 NULL) == FERRY_OK) {
        line->n_lanes = work.n_lanes;
    }
}

/* ---- lines ---- */

static void take_times(mixed_figures *figures, const bench_times *times, bool is_first)
{
    if (times->median > figures->seconds) {
        figures->seconds = times->median;
        figures->slow = times->p99;
    }
    figures->least = is_first || times->least < figures->least ? times->least : figures->least;
    figures->most = times->most > figures->most ? times->most : figures->most;
}

static void take_counts(mixed_line *line, const ferry_mixed_counts *counts)
{
    line->work.written += counts->inside_bytes_written;
    line->work.read += counts->inside_bytes_read;
    line->work.between += counts->between_bytes;
    line->work.device_elements += counts->n_device_elements;
    line->work.waits = counts->n_waits > line->work.waits ? counts->n_waits : line->work.waits;
}

/* The first bad line is described, by its lowest rank. */
static void take_finding(mixed_bench *b, mixed_line *line, mixed_form form, const share *all,
                         uint32_t rank)
{
    mixed_case c = mixed_case_of(b, line, MIXED_RANDOM);
    mixed_figures *figures = &line->forms[form];
    const finding *found = &all[rank].found;
    bool none = b->n_wrong == 0 && b->n_differ == 0;
    if (found->verdict.n_wrong > 0 && none) {
        describe_wrong(b, line, form, rank, found);
    }
    bool differs = found->digest != all[mixed_first_replica(&c, rank)].found.digest;
    if (differs && none && found->verdict.n_wrong == 0) {
        describe_differing(b, line, form, rank);
    }
    figures->n_wrong += found->verdict.n_wrong;
    figures->n_differ += differs;
    b->n_wrong += found->verdict.n_wrong;
    b->n_differ += differs;
}

/* Every rank learns what all have found, so that all end alike. */
static ferry_status combine(mixed_bench *b, mixed_line *line, mixed_form form, const share *own,
                            ferry_error *error)
{
    const void *said = NULL;
    share *all = malloc(b->rank.n_ranks * sizeof *all);
    ferry_status status =
        all == NULL ? mixed_fail(error, FERRY_ERR_NO_MEMORY, "out of memory") : FERRY_OK;
    FY_THEN(status, ferry_world_all_gather(b->rank.world, own, sizeof *own, &said, error));
    if (status == FERRY_OK) {
        memcpy(all, said, b->rank.n_ranks * sizeof *all);
        for (uint32_t rank = 0; rank < b->rank.n_ranks; rank++) {
            take_times(&line->forms[form], &all[rank].times, rank == 0);
            take_counts(line, &all[rank].counts);
            take_finding(b, line, form, all, rank);
        }
    }
    free(all);
    return status;
}

/*
 * The rate of the whole tensor: the larger of input and output. On the bus each rank has to take in
 * and give out at least (W + tp - 2) / W of that: (tp - 1) / tp of a piece for the sums, and
 * (W - 1) / W of the whole to gather or scatter it.
 */
static void take_rates(const mixed_bench *b, const mixed_line *line, mixed_figures *figures)
{
    double ranks = b->rank.n_ranks;
    figures->rate = (double)line->bytes * b->rank.info.dp_size / figures->seconds;
    figures->bus_rate = figures->rate * (ranks + b->rank.info.tp_size - 2) / ranks;
}

/* In place a call works on what the one before it has left, so that nobody knows the result. */
static bool may_check_timed(const mixed_bench *b, mixed_form form)
{
    return b->request->check && form == MIXED_OUT_OF_PLACE;
}

static ferry_status check_form(mixed_bench *b, const mixed_line *line, mixed_form form,
                               finding *found, ferry_error *error)
{
    mixed_pattern pattern = line->op == FERRY_MIXED_ALL_GATHER ? MIXED_BITS : MIXED_RANDOM;
    FY_TRY(check_pass(b, line, form, pattern, found, error));
    FY_TRY(check_pass(b, line, form, MIXED_INTEGERS, found, error));
    return begin_pass(b, line, form, MIXED_INTEGERS, error); /* of the calls that are timed */
}

static ferry_status run_form(mixed_bench *b, mixed_line *line, mixed_form form, ferry_error *error)
{
    share own = {.counts = FERRY_MIXED_COUNTS_INIT};
    pace p = {0};
    mixed_figures *figures = &line->forms[form];
    bool counts = b->request->counts && form == MIXED_OUT_OF_PLACE;
    FY_TRY(b->request->check ? check_form(b, line, form, &own.found, error) : FERRY_OK);
    FY_TRY(agree_on_pace(b, line, form, &p, error));
    FY_TRY(sample(b, line, form, &p, error));
    if (may_check_timed(b, form)) {
        FY_TRY(end_pass(b, line, form, MIXED_INTEGERS, &own.found, error));
    }
    if (counts) {
        FY_TRY(count_call(b, line, &own.counts, error));
    }
    own.times = bench_sort_times(b->samples, p.n_samples);
    figures->n_calls = p.n_samples * p.window;
    FY_TRY(combine(b, line, form, &own, error));
    take_rates(b, line, figures);
    return FERRY_OK;
}

ferry_status mixed_time_line(mixed_bench *b, mixed_line *line, ferry_error *error)
{
    b->n_lines++;
    return run_form(b, line, MIXED_OUT_OF_PLACE, error);
}

ferry_status mixed_run_line(mixed_bench *b, mixed_line *line, ferry_error *error)
{
    ferry_status status = run_form(b, line, MIXED_OUT_OF_PLACE, error);
    FY_THEN(status, run_form(b, line, MIXED_IN_PLACE, error));
    if (status == FERRY_OK && b->rank.rank == 0) {
        predict_line(b, line);
        find_lanes(b, line);
        mixed_report_line(&b->report, line);
    }
    b->n_lines++;
    return status;
}
