/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "schedule/pack.h"
#include "schedule/rules.h"

/* What was packed for a pair goes to the deal, and the packer's memory serves the next pair. */
static ferry_status deal_packed(const fy_job *job, const fy_pair *pair, fy_pair_batches *packed,
                                fy_deal *deal, ferry_error *error)
{
    const fy_task *tasks = job->pairs->tasks + pair->first;
    if (!FY_RESERVE(deal->batches, deal->batch_capacity, deal->n_batches + packed->n_batches) ||
        !FY_RESERVE(deal->segments, deal->segment_capacity,
                    deal->n_segments + packed->n_segments)) {
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
    fy_pair_batches packed = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < job->pairs->n_pairs && status == FERRY_OK; i++) {
        const fy_pair *pair = &job->pairs->pairs[i];
        status = fy_pack_pair(pair->from, pair->to, job->pairs->tasks + pair->first, pair->n_tasks,
                              job->slot_bytes, job->max_tasks, &packed, error);
        FY_THEN(status, deal_packed(job, pair, &packed, deal, error));
    }
    fy_pair_batches_cleanup(&packed);
    return status;
}

ferry_status fy_deal_first_fit(const fy_job *job, fy_deal *deal, ferry_error *error)
{
    fy_edges edges = {0};
    FY_TRY(pack_all(job, deal, error));
    ferry_status status = fy_deal_list_edges(deal, 0, &edges, error);
    FY_THEN(status, fy_choose_rounds(job->rule, job->duplex, &edges, error));
    if (status == FERRY_OK) {
        fy_deal_take_rounds(deal, &edges);
    }
    fy_edges_cleanup(&edges);
    return status;
}
