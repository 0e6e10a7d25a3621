/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "schedule/pack.h"
#include "schedule/rules.h"

static ferry_status pack_pair(const fy_job *job, const fy_pair *pair, fy_pair_task *tasks,
                              fy_pair_batches *packed, ferry_error *error)
{
    const fy_task *first = job->pairs->tasks + pair->first;
    for (uint32_t i = 0; i < pair->n_tasks; i++) {
        tasks[i] = (fy_pair_task){
            .task_id = first[i].id, .bytes = first[i].bytes, .element_bytes = first[i].element};
    }
    return fy_pack_pair(pair->from, pair->to, tasks, pair->n_tasks, job->slot_bytes, job->max_tasks,
                        packed, error);
}

/* What was packed for a pair goes to the deal, and the packer's memory serves the next pair. */
static ferry_status deal_packed(const fy_job *job, const fy_pair *pair, fy_pair_batches *packed,
                                fy_deal *deal, ferry_error *error)
{
    const fy_task *tasks = job->pairs->tasks + pair->first;
    if (!fy_reserve((void **)&deal->batches, &deal->batch_capacity,
                    deal->n_batches + packed->n_batches, sizeof *deal->batches) ||
        !fy_reserve((void **)&deal->segments, &deal->segment_capacity,
                    deal->n_segments + packed->n_segments, sizeof *deal->segments)) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    for (size_t i = 0; i < packed->n_batches; i++) {
        const fy_pair_batch *batch = &packed->batches[i];
        deal->batches[deal->n_batches++] = (fy_batch){.from = pair->from,
                                                      .to = pair->to,
                                                      .n_segments = batch->n_segments,
                                                      .first_segment = deal->n_segments,
                                                      .bytes = batch->bytes};
        for (uint64_t s = batch->first_segment; s < batch->first_segment + batch->n_segments; s++) {
            const fy_pair_segment *segment = &packed->segments[s];
            deal->segments[deal->n_segments++] = (fy_segment){.task_id = tasks[segment->task].id,
                                                              .first_byte = segment->first_byte,
                                                              .bytes = segment->bytes};
        }
    }
    packed->n_batches = 0;
    packed->n_segments = 0;
    return FERRY_OK;
}

static ferry_status pack_all(const fy_job *job, fy_deal *deal, ferry_error *error)
{
    const fy_pairs *pairs = job->pairs;
    fy_pair_batches packed = {0};
    fy_pair_task *tasks = fy_alloc(pairs->n_tasks, sizeof *tasks);
    ferry_status status = FERRY_OK;
    if (tasks == NULL) {
        return fy_fail_no_memory(error, "the tasks of a pair");
    }
    for (uint32_t i = 0; i < pairs->n_pairs && status == FERRY_OK; i++) {
        status = pack_pair(job, &pairs->pairs[i], tasks, &packed, error);
        if (status == FERRY_OK) {
            status = deal_packed(job, &pairs->pairs[i], &packed, deal, error);
        }
    }
    fy_pair_batches_cleanup(&packed);
    fy_free(tasks);
    return status;
}

ferry_status fy_deal_first_fit(const fy_job *job, fy_deal *deal, ferry_error *error)
{
    uint32_t n_rounds;
    uint32_t *columns = NULL;
    ferry_status status = pack_all(job, deal, error);
    if (status != FERRY_OK) {
        return status;
    }
    size_t n = deal->n_batches;
    columns = fy_alloc(3 * n, sizeof *columns);
    if (columns == NULL) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    for (size_t i = 0; i < n; i++) {
        columns[i] = deal->batches[i].from;
        columns[n + i] = deal->batches[i].to;
    }
    status = fy_choose_rounds(job->rule, job->duplex, job->pairs->n_ranks, n, columns, columns + n,
                              columns + 2 * n, &n_rounds, error);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        deal->batches[i].round = columns[2 * n + i];
    }
    fy_free(columns);
    return status;
}
