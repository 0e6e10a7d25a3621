/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry run --trace: two processes of a Chrome trace, the schedule as it was simulated and the last
 * run as it went, with the ranks as threads. Spans of a thread may not overlap, so a rank has a
 * thread for what it sends and one for what it receives; in the run as many as it did at once.
 */
#include "run.h"

#include "output.h"
#include "plan.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>

enum { PID_PLAN = 1, PID_RUN = 2 };

typedef struct trace {
    FILE *file;
    const run_request *request;
    const ferry_plan *plan;
    const run_results *results;
    const run_summary *summary;
    uint32_t thread; /* the last number given */
} trace;

static ferry_status fail_memory(ferry_error *error)
{
    snprintf(error->message, sizeof error->message, "out of memory");
    return FERRY_ERR_NO_MEMORY;
}

static void write_process(trace *t, uint32_t pid, const char *name)
{
    fprintf(t->file,
            "%s\n{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}},\n{"
            "\"ph\":\"M\",\"pid\":%u,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%u}}",
            pid == PID_PLAN ? "" : ",", pid, name, pid, pid);
}

/* A new thread, which comes after those before. */
static uint32_t write_thread(trace *t, uint32_t pid, uint32_t rank, const char *what)
{
    uint32_t tid = ++t->thread;
    fprintf(t->file,
            ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":"
            "\"rank %u "
            "%s\"}},\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":{"
            "\"sort_index\":%u}}",
            pid, tid, rank, what, pid, tid, tid);
    return tid;
}

static void write_span(trace *t, uint32_t pid, uint32_t tid, const char *what, uint32_t peer,
                       double begin, double end)
{
    fprintf(t->file,
            ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"name\":\"%s %u\",\"ts\":%.3f,\"dur\":%.3f",
            pid, tid, what, peer, begin * 1e6, end > begin ? (end - begin) * 1e6 : 0);
}

/* ---- the plan ---- */

/* Seconds of a unit of simulated time; without a cluster, a rank's share of this machine. */
static double unit_of(const trace *t, const ferry_schedule_report *report)
{
    if (report->has_seconds) {
        return 1;
    }
    return t->summary->copy_bytes_per_s > 0
               ? (double)t->results->n_ranks / t->summary->copy_bytes_per_s
               : 1e-9;
}

static ferry_status write_batch(trace *t, const ferry_schedule *schedule,
                                const ferry_simulation *simulation, uint64_t number, bool sends,
                                uint32_t tid, double unit, ferry_error *error)
{
    ferry_batch batch = FERRY_BATCH_INIT;
    double begin = 0, end = 0;
    FY_TRY(ferry_schedule_batch_at(schedule, number, &batch, error));
    FY_TRY(ferry_simulation_get_batch_time(simulation, number, &begin, &end, error));
    write_span(t, PID_PLAN, tid, sends ? "to" : "from", sends ? batch.to : batch.from, begin * unit,
               end * unit);
    fprintf(t->file, ",\"args\":{\"round\":%u,\"bytes\":%llu,\"segments\":%u}}", batch.round,
            (unsigned long long)batch.bytes, batch.n_segments);
    return FERRY_OK;
}

static ferry_status write_planned_rank(trace *t, const ferry_schedule *schedule,
                                       const ferry_simulation *simulation, uint32_t rank,
                                       bool sends, double unit, ferry_error *error)
{
    uint32_t n = sends ? ferry_schedule_send_count(schedule, rank)
                       : ferry_schedule_receive_count(schedule, rank);
    uint32_t tid = n > 0 ? write_thread(t, PID_PLAN, rank, sends ? "sends" : "receives") : 0;
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        uint64_t number = 0;
        status = sends ? ferry_schedule_send_at(schedule, rank, i, &number, error)
                       : ferry_schedule_receive_at(schedule, rank, i, &number, error);
        FY_THEN(status, write_batch(t, schedule, simulation, number, sends, tid, unit, error));
    }
    return status;
}

static ferry_status write_plan(trace *t, ferry_error *error)
{
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    ferry_schedule_report report = FERRY_SCHEDULE_REPORT_INIT;
    ferry_schedule *schedule = NULL;
    ferry_simulation *simulation = NULL;
    options.slot_bytes = t->request->service.slot_bytes;
    options.no_relays = t->request->service.no_relays;
    ferry_status status = ferry_schedule_create_for_plan(t->plan, &options, &schedule, error);
    FY_THEN(status, ferry_schedule_get_report(schedule, &report, error));
    FY_THEN(status, ferry_simulation_create(schedule, NULL, &simulation, error));
    write_process(t, PID_PLAN, "plan");
    for (uint32_t i = 0; i < 2 * t->results->n_ranks && status == FERRY_OK; i++) {
        status = write_planned_rank(t, schedule, simulation, i / 2, i % 2 == 0, unit_of(t, &report),
                                    error);
    }
    ferry_simulation_destroy(simulation);
    ferry_schedule_destroy(schedule);
    return status;
}

/* ---- the run ---- */

static const char *kind_text(uint32_t kind)
{
    static const char *const texts[] = {
        [FERRY_SPAN_PACK] = "pack to",       [FERRY_SPAN_WIRE] = "wire to",
        [FERRY_SPAN_UNPACK] = "unpack from", [FERRY_SPAN_COPY] = "copy, peer",
        [FERRY_SPAN_CHECK] = "check, peer",  [FERRY_SPAN_WAIT] = "wait for"};
    return kind < sizeof texts / sizeof texts[0] ? texts[kind] : "span, peer";
}

static int compare_begin(const void *a, const void *b)
{
    const ferry_span *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

/* Threads of a rank, each with the end of its last span. */
typedef struct lane {
    uint32_t tid;
    double end;
} lane;

/* The first thread that is free at the span's begin. */
static lane *find_lane(trace *t, uint32_t rank, lane *lanes, size_t *n_lanes,
                       const ferry_span *span)
{
    for (size_t i = 0; i < *n_lanes; i++) {
        if (lanes[i].end <= span->begin) {
            return &lanes[i];
        }
    }
    lane *new_lane = &lanes[(*n_lanes)++];
    *new_lane =
        (lane){.tid = write_thread(t, PID_RUN, rank, *n_lanes == 1 ? "" : "beside"), .end = 0};
    return new_lane;
}

static ferry_status write_run_rank(trace *t, uint32_t rank, ferry_span *spans, size_t n,
                                   double offset, ferry_error *error)
{
    size_t n_lanes = 0;
    lane *lanes = calloc(n > 0 ? n : 1, sizeof *lanes);
    if (lanes == NULL) {
        return fail_memory(error);
    }
    qsort(spans, n, sizeof *spans, compare_begin);
    for (size_t i = 0; i < n; i++) {
        lane *l = find_lane(t, rank, lanes, &n_lanes, &spans[i]);
        l->end = spans[i].end;
        write_span(t, PID_RUN, l->tid, kind_text(spans[i].kind), spans[i].peer,
                   offset + spans[i].begin, offset + spans[i].end);
        fprintf(t->file, ",\"args\":{\"batch\":%llu,\"bytes\":%llu}}",
                (unsigned long long)spans[i].batch, (unsigned long long)spans[i].bytes);
    }
    free(lanes);
    return FERRY_OK;
}

/* Clocks of one machine can be compared; on several every rank begins at 0. */
static double begin_of(const run_results *results, uint32_t rank)
{
    double first = results->ranks[0].begin;
    for (uint32_t i = 1; i < results->n_ranks; i++) {
        first = results->ranks[i].begin < first ? results->ranks[i].begin : first;
    }
    return results->n_nodes == 1 ? results->ranks[rank].begin - first : 0;
}

static ferry_status write_run(trace *t, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    ferry_span *spans = t->results->spans;
    write_process(t, PID_RUN, "run");
    for (uint32_t rank = 0; rank < t->results->n_ranks && status == FERRY_OK; rank++) {
        size_t n = t->results->n_spans[rank];
        status = write_run_rank(t, rank, spans, n, begin_of(t->results, rank), error);
        spans += n;
    }
    return status;
}

static ferry_status fill(const void *context, FILE *file, ferry_error *error)
{
    trace t = *(const trace *)context;
    t.file = file;
    fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    ferry_status status = write_plan(&t, error);
    FY_THEN(status, write_run(&t, error));
    fprintf(file, "\n]}\n");
    return status;
}

ferry_status run_write_trace(const run_request *request, const ferry_plan *plan,
                             const run_results *results, const run_summary *summary,
                             ferry_error *error)
{
    trace t = {.request = request, .plan = plan, .results = results, .summary = summary};
    return replace_file(request->trace, fill, &t, error);
}
