/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry.plan/1 with its "schedule", streamed. */
#include "plan/json.h"
#include "schedule/schedule.h"

#include "base/alloc.h"
#include "base/options.h"
#include "base/writer.h"

static void write_u64(fy_writer *w, const char *before, uint64_t value)
{
    fy_write_text(w, before);
    fy_write_u64(w, value);
}

/* Without a cluster nobody knows seconds. */
static void write_seconds(fy_writer *w, const char *before, const ferry_schedule *schedule,
                          double value)
{
    fy_write_text(w, before);
    if (schedule->report.has_seconds) {
        fy_write_double(w, value);
    } else {
        fy_write_text(w, "null");
    }
}

static void write_head(fy_writer *w, const ferry_schedule *schedule)
{
    const ferry_schedule_report *report = &schedule->report;
    write_u64(w, ",\n\"schedule\":{\"rounds\":", report->n_rounds);
    write_u64(w, ",\"degree\":", report->degree);
    write_seconds(w, ",\"makespan_s\":", schedule, report->makespan);
    write_seconds(w, ",\"bound_s\":", schedule, report->bound);
    fy_write_text(w, ",\"ratio\":");
    fy_write_double(w, report->ratio);
    fy_write_text(w, ",\n\"idle_s\":[");
    for (uint32_t r = 0; r < schedule->network.n_ranks; r++) {
        write_u64(w, r == 0 ? "[" : ",[", r);
        write_seconds(w, ",", schedule, schedule->idle[r]);
        fy_write_text(w, "]");
    }
    fy_write_text(w, "]");
}

static void write_batch(fy_writer *w, const ferry_schedule *schedule, const fy_batch *batch)
{
    write_u64(w, "{\"round\":", batch->round);
    write_u64(w, ",\"from\":", batch->from);
    write_u64(w, ",\"to\":", batch->to);
    write_u64(w, ",\"bytes\":", batch->bytes);
    fy_write_text(w, ",\"segments\":[");
    for (uint32_t i = 0; i < batch->n_segments; i++) {
        fy_segment segment = fy_schedule_segment(schedule, batch, i);
        write_u64(w, i == 0 ? "[" : ",[", segment.task_id);
        write_u64(w, ",", segment.first_byte);
        write_u64(w, ",", segment.bytes);
        if (segment.is_relayed) {
            write_u64(w, ",", segment.relay_task_id);
        }
        fy_write_text(w, "]");
    }
    fy_write_text(w, "]}");
}

static void write_batches(fy_writer *w, const ferry_schedule *schedule, uint32_t rank)
{
    bool any = false;
    fy_write_text(w, ",\n\"batches\":[");
    for (uint64_t i = 0; i < schedule->n_batches && !w->failed; i++) {
        const fy_batch *batch = &schedule->batches[i];
        if (rank == FERRY_ALL_RANKS || batch->from == rank || batch->to == rank) {
            fy_write_text(w, any ? ",\n" : "\n");
            write_batch(w, schedule, batch);
            any = true;
        }
    }
    fy_write_text(w, "]");
}

ferry_status ferry_schedule_write_json(const ferry_schedule *schedule, const ferry_plan *plan,
                                       const ferry_plan_json_options *options, ferry_write_fn write,
                                       void *context, ferry_error *error)
{
    FY_TRY(fy_check_use(schedule != NULL && plan != NULL && write != NULL,
                        "ferry_schedule_write_json needs a schedule, its plan and a writer",
                        error));
    ferry_plan_json_options own;
    FY_TRY(fy_schedule_check_plan(schedule, ferry_plan_rank_count(plan), error));
    FY_TRY(fy_schedule_check_whole(schedule, "ferry_schedule_write_json", error));
    FY_TRY(fy_take_plan_json_options(options, &own, error));
    fy_writer *w = fy_alloc(1, sizeof *w);
    FY_TRY(fy_check_memory(w != NULL, "an output buffer", error));
    fy_writer_init(w, write, context);
    ferry_status status = fy_plan_write_members(plan, &own, w, error);
    if (status == FERRY_OK) {
        write_head(w, schedule);
        if (!own.summary) {
            write_batches(w, schedule, own.rank);
        }
        fy_write_text(w, "}}\n");
    }
    if (status == FERRY_OK || w->failed) {
        status = fy_writer_finish(w, error);
    }
    fy_free(w);
    return status;
}
