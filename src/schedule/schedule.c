/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/schedule.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "base/status.h"

#include <string.h>

ferry_schedule *fy_schedule_retain(const ferry_schedule *schedule)
{
    ferry_schedule *held = (ferry_schedule *)schedule;
    atomic_fetch_add_explicit(&held->n_holders, 1, memory_order_relaxed);
    return held;
}

void ferry_schedule_destroy(ferry_schedule *schedule)
{
    if (schedule == NULL ||
        atomic_fetch_sub_explicit(&schedule->n_holders, 1, memory_order_acq_rel) > 0) {
        return;
    }
    fy_network_cleanup(&schedule->network);
    fy_free(schedule->batches);
    fy_free(schedule->segments);
    fy_free(schedule->tasks);
    fy_free(schedule->wait_begin);
    fy_free(schedule->waits);
    fy_free(schedule->send_begin);
    fy_free(schedule->sends);
    fy_free(schedule->idle);
    fy_free(schedule);
}

ferry_status ferry_schedule_get_report(const ferry_schedule *schedule,
                                       ferry_schedule_report *report_out, ferry_error *error)
{
    FY_TRY(fy_check_use(schedule != NULL, "ferry_schedule_get_report: no schedule", error));
    return fy_copy_out(&schedule->report, sizeof schedule->report, report_out,
                       "ferry_schedule_report", error);
}

static ferry_status check_index(const char *what, uint64_t index, uint64_t n, ferry_error *error)
{
    if (index >= n) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s %llu: the schedule has %llu", what,
                       (unsigned long long)index, (unsigned long long)n);
    }
    return FERRY_OK;
}

ferry_status ferry_schedule_batch_at(const ferry_schedule *schedule, uint64_t index,
                                     ferry_batch *batch_out, ferry_error *error)
{
    FY_TRY(check_index("batch", index, schedule == NULL ? 0 : schedule->n_batches, error));
    const fy_batch *batch = &schedule->batches[index];
    ferry_batch copy = {.struct_size = sizeof copy,
                        .round = batch->round,
                        .from = batch->from,
                        .to = batch->to,
                        .bytes = batch->bytes,
                        .first_segment = batch->first_segment,
                        .n_segments = batch->n_segments};
    return fy_copy_out(&copy, sizeof copy, batch_out, "ferry_batch", error);
}

/* Of listed ones the place; else the last batch that begins no later has it. */
static fy_segment segment_at(const ferry_schedule *schedule, uint64_t index)
{
    if (schedule->segments != NULL) {
        return schedule->segments[index];
    }
    FY_BISECT_LAST(uint64_t, low, 0, schedule->n_batches, middle,
                   schedule->batches[middle].first_segment <= index);
    const fy_batch *batch = &schedule->batches[low];
    return fy_schedule_segment(schedule, batch, (uint32_t)(index - batch->first_segment));
}

ferry_status ferry_schedule_segment_at(const ferry_schedule *schedule, uint64_t index,
                                       ferry_segment *segment_out, ferry_error *error)
{
    FY_TRY(check_index("segment", index, schedule == NULL ? 0 : schedule->n_segments, error));
    fy_segment segment = segment_at(schedule, index);
    ferry_segment copy = {.struct_size = sizeof copy,
                          .task_id = segment.task_id,
                          .first_byte = segment.first_byte,
                          .bytes = segment.bytes,
                          .is_relayed = segment.is_relayed,
                          .relay_task_id = segment.relay_task_id};
    return fy_copy_out(&copy, sizeof copy, segment_out, "ferry_segment", error);
}

static bool has_rank(const ferry_schedule *schedule, uint32_t rank)
{
    return schedule != NULL &&
           (schedule->is_part ? rank == schedule->part_rank : rank < schedule->network.n_ranks);
}

/* Where the lists have a rank that the schedule has. */
static uint32_t place_of(const ferry_schedule *schedule, uint32_t rank)
{
    return schedule->is_part ? 0 : rank;
}

uint32_t ferry_schedule_send_count(const ferry_schedule *schedule, uint32_t rank)
{
    if (!has_rank(schedule, rank)) {
        return 0;
    }
    const uint64_t *begin = schedule->send_begin + place_of(schedule, rank);
    return (uint32_t)(begin[1] - begin[0]);
}

uint32_t ferry_schedule_receive_count(const ferry_schedule *schedule, uint32_t rank)
{
    if (!has_rank(schedule, rank)) {
        return 0;
    }
    const uint64_t *begin = schedule->recv_begin + place_of(schedule, rank);
    return (uint32_t)(begin[1] - begin[0]);
}

ferry_status ferry_schedule_send_at(const ferry_schedule *schedule, uint32_t rank, uint32_t index,
                                    uint64_t *batch_out, ferry_error *error)
{
    FY_TRY(check_index("send", index, ferry_schedule_send_count(schedule, rank), error));
    FY_TRY(fy_check_use(batch_out != NULL, "ferry_schedule_send_at: batch_out is NULL", error));
    *batch_out = schedule->sends[schedule->send_begin[place_of(schedule, rank)] + index];
    return FERRY_OK;
}

ferry_status ferry_schedule_receive_at(const ferry_schedule *schedule, uint32_t rank,
                                       uint32_t index, uint64_t *batch_out, ferry_error *error)
{
    FY_TRY(check_index("receive", index, ferry_schedule_receive_count(schedule, rank), error));
    FY_TRY(fy_check_use(batch_out != NULL, "ferry_schedule_receive_at: batch_out is NULL", error));
    *batch_out = schedule->recvs[schedule->recv_begin[place_of(schedule, rank)] + index];
    return FERRY_OK;
}

ferry_status ferry_schedule_get_idle(const ferry_schedule *schedule, uint32_t rank,
                                     double *idle_out, ferry_error *error)
{
    if (schedule != NULL && schedule->is_part && rank != schedule->part_rank) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_schedule_get_idle of rank %u: this is the part of rank %u, which "
                       "knows its own idle time only",
                       rank, schedule->part_rank);
    }
    if (!has_rank(schedule, rank) || idle_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_schedule_get_idle needs a schedule, a rank of its world and a place; "
                       "the rank is %u",
                       rank);
    }
    *idle_out = schedule->idle[place_of(schedule, rank)];
    return FERRY_OK;
}

ferry_status fy_schedule_check_plan(const ferry_schedule *schedule, uint32_t n_ranks,
                                    ferry_error *error)
{
    if (schedule->network.n_ranks != n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a schedule of %u ranks cannot be that of a plan of %u ranks",
                       schedule->network.n_ranks, n_ranks);
    }
    return FERRY_OK;
}

ferry_status fy_schedule_check_whole(const ferry_schedule *schedule, const char *called,
                                     ferry_error *error)
{
    if (schedule->is_part) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s needs a whole schedule and was given the part of rank %u; "
                       "ferry_schedule_create_for_plan makes the whole",
                       called, schedule->part_rank);
    }
    return FERRY_OK;
}

size_t ferry_schedule_digest(const ferry_schedule *schedule, char *text, size_t text_bytes)
{
    return fy_hash128_print(schedule == NULL ? (fy_hash128){0, 0} : schedule->digest, text,
                            text_bytes);
}
