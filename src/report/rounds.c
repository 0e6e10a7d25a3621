/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels when, as the schedule is simulated: the bytes under way over time, the rounds, how
 * busy ranks are, the slowest link, and where there are few enough the batches themselves.
 */
#include "report/packed.h"
#include "report/parts.h"

#include "base/alloc.h"

enum { N_BINS = 160, MOST_ROUNDS = 400, MOST_BATCHES = 8000, TICKS = 1 << 16 };

/* Rounds that are shown as one. */
typedef struct round_span {
    double begin, end; /* of the first batch, and of the last */
    uint64_t bytes;
    uint64_t n_batches;
} round_span;

typedef struct round_table {
    const ferry_schedule *schedule;
    const ferry_simulation *simulation;
    ferry_schedule_report report;
    ferry_simulation_report found;
    double bins[N_BINS];
    round_span *spans;
    uint32_t rounds_a_span, n_spans;
    fy_packed batches;
    ferry_error *error;
} round_table;

/* In ticks of the whole time, which keeps them short. */
static uint64_t ticks(const round_table *t, double time)
{
    return t->found.seconds > 0 ? (uint64_t)(time / t->found.seconds * TICKS + 0.5) : 0;
}

/* A batch's bytes go over the bins that it is on the wire in, by time. */
static void add_to_bins(round_table *t, double begin, double end, double bytes)
{
    double width = t->found.seconds / N_BINS;
    size_t first = (size_t)(begin / width);
    for (size_t i = first; i < N_BINS && (double)i * width < end; i++) {
        double from = begin > (double)i * width ? begin : (double)i * width;
        double to = end < (double)(i + 1) * width ? end : (double)(i + 1) * width;
        t->bins[i] += end > begin && to > from ? bytes * (to - from) / (end - begin) : 0;
    }
}

static ferry_status take_batch(round_table *t, uint64_t number, bool is_listed)
{
    ferry_batch batch = FERRY_BATCH_INIT;
    double begin = 0, end = 0;
    FY_TRY(ferry_schedule_batch_at(t->schedule, number, &batch, t->error));
    FY_TRY(ferry_simulation_get_batch_time(t->simulation, number, &begin, &end, t->error));
    round_span *span = &t->spans[batch.round / t->rounds_a_span];
    span->begin = span->n_batches == 0 || begin < span->begin ? begin : span->begin;
    span->end = end > span->end ? end : span->end;
    span->bytes += batch.bytes;
    span->n_batches++;
    add_to_bins(t, begin, end, (double)batch.bytes);
    if (is_listed) {
        fy_packed_add(&t->batches, batch.round);
        fy_packed_add(&t->batches, batch.from);
        fy_packed_add(&t->batches, batch.to);
        fy_packed_add(&t->batches, ticks(t, begin));
        fy_packed_add(&t->batches, ticks(t, end));
        fy_packed_add(&t->batches, batch.bytes);
    }
    return FERRY_OK;
}

static void write_head(const round_table *t, fy_writer *w)
{
    const ferry_schedule_report *r = &t->report;
    fy_report_number(w, ",\n\"schedule\":{\"rounds\":", r->n_rounds);
    fy_report_number(w, ",\"degree\":", r->degree);
    fy_report_number(w, ",\"batches\":", r->n_batches);
    fy_report_number(w, ",\"bytes\":", r->bytes);
    fy_report_number(w, ",\"relayed\":", r->relayed_bytes);
    fy_write_text(w, r->has_seconds ? ",\"has_seconds\":true" : ",\"has_seconds\":false");
    fy_report_double(w, ",\"makespan\":", r->makespan);
    fy_report_double(w, ",\"bound\":", r->bound);
    fy_report_number(w, ",\"bound_rank\":", r->bound_rank);
    fy_write_text(w, ",\"bound_why\":");
    fy_write_string(w, ferry_plan_bound_reason_name(r->bound_reason));
    fy_report_double(w, ",\"end\":", t->found.seconds);
    fy_report_number(w, ",\"slowest\":[", t->found.slowest_from);
    fy_report_number(w, ",", t->found.slowest_to);
    fy_report_double(w, ",", t->found.slowest_seconds);
    fy_report_number(w, "],\"rounds_a_span\":", t->rounds_a_span);
    fy_write_text(w, ",\"bins\":[");
    for (size_t i = 0; i < N_BINS; i++) {
        fy_report_number(w, i == 0 ? "" : ",", (uint64_t)t->bins[i]);
    }
    fy_write_text(w, "],\"spans\":[");
    for (uint32_t i = 0; i < t->n_spans; i++) {
        const round_span *span = &t->spans[i];
        fy_report_double(w, i == 0 ? "[" : ",[", span->begin);
        fy_report_double(w, ",", span->end);
        fy_report_number(w, ",", span->bytes);
        fy_report_number(w, ",", span->n_batches);
        fy_write_text(w, "]");
    }
    fy_write_text(w, "]");
}

/* How much of the time each rank is sending or receiving. */
static ferry_status write_busy(const round_table *t, uint32_t n_ranks, fy_writer *w)
{
    fy_packed busy = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t rank = 0; rank < n_ranks && status == FERRY_OK; rank++) {
        ferry_simulation_rank of = FERRY_SIMULATION_RANK_INIT;
        status = ferry_simulation_get_rank(t->simulation, rank, &of, t->error);
        fy_packed_add(&busy, ticks(t, of.busy));
    }
    ferry_status packing = fy_packed_write(&busy, w, ",\"busy\":", t->error);
    return status == FERRY_OK ? packing : status;
}

static ferry_status collect(round_table *t)
{
    bool is_listed = t->report.n_batches <= MOST_BATCHES;
    t->rounds_a_span = (t->report.n_rounds + MOST_ROUNDS - 1) / MOST_ROUNDS;
    t->rounds_a_span = t->rounds_a_span == 0 ? 1 : t->rounds_a_span;
    t->n_spans = (t->report.n_rounds + t->rounds_a_span - 1) / t->rounds_a_span;
    t->spans = fy_alloc_zeroed((size_t)t->n_spans + 1, sizeof *t->spans);
    FY_TRY(fy_check_memory(t->spans != NULL, "the rounds of a report", t->error));
    for (uint64_t i = 0; i < t->report.n_batches; i++) {
        FY_TRY(take_batch(t, i, is_listed));
    }
    return FERRY_OK;
}

ferry_status fy_report_write_rounds(const ferry_schedule *schedule, uint32_t n_ranks,
                                    fy_writer *writer, ferry_error *error)
{
    ferry_simulation *simulation = NULL;
    round_table *t = fy_alloc_zeroed(1, sizeof *t);
    FY_TRY(fy_check_memory(t != NULL, "the rounds of a report", error));
    t->report = (ferry_schedule_report)FERRY_SCHEDULE_REPORT_INIT;
    t->found = (ferry_simulation_report)FERRY_SIMULATION_REPORT_INIT;
    ferry_status status = ferry_simulation_create(schedule, NULL, &simulation, error);
    t->schedule = schedule;
    t->simulation = simulation;
    t->error = error;
    FY_THEN(status, ferry_schedule_get_report(schedule, &t->report, error));
    FY_THEN(status, ferry_simulation_get_report(simulation, &t->found, error));
    FY_THEN(status, collect(t));
    if (status == FERRY_OK) {
        write_head(t, writer);
        status = write_busy(t, n_ranks, writer);
    }
    ferry_status packing = fy_packed_write(&t->batches, writer, ",\"listed\":", error);
    fy_write_text(writer, "}");
    ferry_simulation_destroy(simulation);
    fy_free(t->spans);
    fy_free(t);
    return status == FERRY_OK ? packing : status;
}
