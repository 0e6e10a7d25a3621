/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What one PE does in each iteration. */
#include "service/summaries.h"

#include "base/alloc.h"

typedef struct step {
    ferry_scheduled_batch send_batch;
    ferry_scheduled_batch recv_batch;
    const ferry_workload_group *send;   /* NULL: nothing */
    const ferry_workload_summary *recv; /* NULL: nothing */
} step;

struct ferry_iter_schedules {
    uint32_t n_iterations;
    step iterations[];
};

static ferry_status fail_unknown(const ferry_scheduled_batch *batch, const char *what,
                                 ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "batch %u from PE %u to PE %u, of %llu bytes, has no %s of that size: schedule, "
                   "workloads and summaries must be of one ferry_build_schedule",
                   batch->batch_index, batch->source, batch->destination,
                   (unsigned long long)batch->total_bytes, what);
}

static ferry_status set_send(step *it, const ferry_scheduled_batch *batch,
                             const ferry_workloads *workloads, ferry_error *error)
{
    if (batch->batch_index >= ferry_workloads_group_count(workloads, batch->destination)) {
        return fail_unknown(batch, "group", error);
    }
    ferry_status status = ferry_workloads_group_at(workloads, batch->destination,
                                                   batch->batch_index, &it->send, error);
    it->send_batch = *batch;
    if (status == FERRY_OK && it->send->bytes != batch->total_bytes) {
        status = fail_unknown(batch, "group", error);
    }
    return status;
}

static ferry_status set_recv(step *it, const ferry_scheduled_batch *batch,
                             const ferry_summaries *summaries, ferry_error *error)
{
    it->recv =
        ferry_summaries_find(summaries, batch->source, batch->destination, batch->batch_index);
    it->recv_batch = *batch;
    if (it->recv == NULL || it->recv->bytes != batch->total_bytes) {
        return fail_unknown(batch, "summary", error);
    }
    return FERRY_OK;
}

ferry_status ferry_prepare_iter_schedules(const ferry_local_schedule *schedule,
                                          const ferry_workloads *workloads,
                                          const ferry_summaries *summaries,
                                          ferry_iter_schedules **schedules_out, ferry_error *error)
{
    if (schedule == NULL || workloads == NULL || summaries == NULL || schedules_out == NULL ||
        workloads->my_pe != schedule->my_pe) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "iterations need a schedule, the workloads of its PE, summaries and a place "
                       "for the result");
    }
    uint32_t n = schedule->n_iterations;
    ferry_iter_schedules *schedules = fy_alloc_zeroed(sizeof *schedules + n * sizeof(step), 1);
    if (schedules == NULL) {
        return fy_fail_no_memory(error, "the iterations of a PE");
    }
    ferry_status status = FERRY_OK;
    schedules->n_iterations = n;
    for (uint32_t i = 0; i < n; i++) {
        for (uint64_t b = schedule->begin[i]; b < schedule->begin[i + 1] && status == FERRY_OK;
             b++) {
            const ferry_scheduled_batch *batch = &schedule->batches[b];
            status = batch->source == schedule->my_pe
                         ? set_send(&schedules->iterations[i], batch, workloads, error)
                         : set_recv(&schedules->iterations[i], batch, summaries, error);
        }
    }
    if (status == FERRY_OK) {
        *schedules_out = schedules;
        schedules = NULL;
    }
    ferry_iter_schedules_destroy(schedules);
    return status;
}

uint32_t ferry_iter_schedules_count(const ferry_iter_schedules *schedules)
{
    return schedules == NULL ? 0 : schedules->n_iterations;
}

static ferry_status check_iteration(const ferry_iter_schedules *schedules, uint32_t number,
                                    const void *place, ferry_error *error)
{
    if (place == NULL || number >= ferry_iter_schedules_count(schedules)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "iteration %u of %u needs a place for the result",
                       number, ferry_iter_schedules_count(schedules));
    }
    return FERRY_OK;
}

ferry_status ferry_iter_schedules_send(const ferry_iter_schedules *schedules, uint32_t iteration,
                                       ferry_scheduled_batch *batch_out,
                                       const ferry_workload_group **group_out, ferry_error *error)
{
    ferry_status status = check_iteration(schedules, iteration, group_out, error);
    if (status == FERRY_OK && schedules->iterations[iteration].send != NULL) {
        status = fy_copy_out(&schedules->iterations[iteration].send_batch, sizeof *batch_out,
                             batch_out, "a scheduled batch", error);
    }
    if (status == FERRY_OK) {
        *group_out = schedules->iterations[iteration].send;
    }
    return status;
}

ferry_status ferry_iter_schedules_recv(const ferry_iter_schedules *schedules, uint32_t iteration,
                                       ferry_scheduled_batch *batch_out,
                                       const ferry_workload_summary **summary_out,
                                       ferry_error *error)
{
    ferry_status status = check_iteration(schedules, iteration, summary_out, error);
    if (status == FERRY_OK && schedules->iterations[iteration].recv != NULL) {
        status = fy_copy_out(&schedules->iterations[iteration].recv_batch, sizeof *batch_out,
                             batch_out, "a scheduled batch", error);
    }
    if (status == FERRY_OK) {
        *summary_out = schedules->iterations[iteration].recv;
    }
    return status;
}

void ferry_iter_schedules_destroy(ferry_iter_schedules *schedules)
{
    fy_free(schedules);
}
