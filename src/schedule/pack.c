/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/pack.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/segment.h"

#include <stdbool.h>

/*
 * Neighbouring segments of one task that have one size: a task has at most two runs, its full
 * segments and its end. Sorting runs sorts the segments.
 */
typedef struct fy_pair_run {
    uint64_t bytes; /* of each segment */
    uint64_t task_id;
    uint64_t first_index;
    uint64_t n_segments;
    uint64_t task;
    uint64_t full_bytes;
} fy_pair_run;

static int compare_runs(const void *a, const void *b)
{
    const fy_pair_run *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return (x->task_id > y->task_id) - (x->task_id < y->task_id);
}

static int compare_ids(const void *a, const void *b)
{
    const fy_pair_run *x = a, *y = b;
    return (x->task_id > y->task_id) - (x->task_id < y->task_id);
}

/* The pair that is being packed, and what it adds up to. */
typedef struct packing {
    uint32_t from, to;
    uint64_t slot_bytes;
    uint32_t max_tasks;
    uint64_t bytes;
    uint64_t n_segments;
    size_t n_runs;
    size_t n_before; /* batches of other pairs */
    fy_pair_batches *out;
} packing;

static ferry_status fail_duplicate(const packing *p, uint64_t task_id, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "two tasks from rank %u to rank %u have the id %llu: ids of a pair are distinct",
                   p->from, p->to, (unsigned long long)task_id);
}

static ferry_status add_runs(packing *p, const fy_task *t, uint64_t number, ferry_error *error)
{
    fy_cut cut;
    FY_TRY(fy_cut_task(t->id, t->bytes, t->element, p->slot_bytes, &cut, error));
    if (!fy_add(p->bytes, t->bytes, &p->bytes) ||
        !fy_add(p->n_segments, cut.n_segments, &p->n_segments)) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "the tasks from rank %u to rank %u add up to more than 2^64 bytes with task "
                       "%llu of %llu bytes",
                       p->from, p->to, (unsigned long long)t->id, (unsigned long long)t->bytes);
    }
    uint64_t n_full = t->bytes / cut.full_bytes;
    fy_pair_run run = {.bytes = cut.full_bytes,
                       .task_id = t->id,
                       .n_segments = n_full,
                       .task = number,
                       .full_bytes = cut.full_bytes};
    if (n_full > 0) {
        p->out->runs[p->n_runs++] = run;
    }
    if (n_full < cut.n_segments) {
        run.bytes = fy_cut_bytes(&cut, n_full);
        run.first_index = n_full;
        run.n_segments = 1;
        p->out->runs[p->n_runs++] = run;
    }
    return FERRY_OK;
}

/* The runs of one task are neighbours in the order of tasks, where its second begins behind 0. */
static ferry_status find_duplicate(packing *p, ferry_error *error)
{
    fy_pair_run *runs = p->out->runs;
    bool ascend = true;
    for (size_t i = 1; i < p->n_runs && ascend; i++) {
        ascend = runs[i - 1].task_id < runs[i].task_id || runs[i - 1].task == runs[i].task;
    }
    if (ascend) {
        return FERRY_OK;
    }
    fy_sort(runs, p->n_runs, sizeof *runs, compare_ids);
    for (size_t i = 1; i < p->n_runs; i++) {
        if (runs[i - 1].task_id == runs[i].task_id && runs[i - 1].task != runs[i].task) {
            return fail_duplicate(p, runs[i].task_id, error);
        }
    }
    return FERRY_OK;
}

static ferry_status fail_degree(const packing *p, uint64_t n_batches, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_LIMIT,
                   "rank %u has at least %llu batches for rank %u (%llu bytes in slots of %llu); "
                   "at most %llu can be numbered: use larger slots",
                   p->from, (unsigned long long)n_batches, p->to, (unsigned long long)p->bytes,
                   (unsigned long long)p->slot_bytes, (unsigned long long)FY_MAX_DEGREE);
}

/* Room for all segments, and for the batches as long as few of them are cut short. */
static ferry_status reserve(packing *p, ferry_error *error)
{
    fy_pair_batches *out = p->out;
    uint64_t n_batches =
        fy_max(fy_ceil_div(p->bytes, p->slot_bytes), fy_ceil_div(p->n_segments, p->max_tasks));
    uint64_t segments, batches;
    if (n_batches > FY_MAX_DEGREE) {
        return fail_degree(p, n_batches, error);
    }
    if (!fy_add(out->n_segments, p->n_segments, &segments) ||
        !fy_add(out->n_batches, n_batches, &batches) ||
        !FY_RESERVE(out->segments, out->segment_capacity, (size_t)segments) ||
        !FY_RESERVE(out->batches, out->batch_capacity, (size_t)batches)) {
        return fy_fail_no_memory(error, "the segments of a pair of ranks");
    }
    return FERRY_OK;
}

/* Appends a segment to the last batch of the pair or, where it does not fit, to a new one. */
static ferry_status append(packing *p, const fy_pair_run *run, uint64_t i, ferry_error *error)
{
    fy_pair_batches *out = p->out;
    fy_pair_batch *last = out->n_batches > p->n_before ? &out->batches[out->n_batches - 1] : NULL;
    if (last == NULL || last->bytes > p->slot_bytes - run->bytes ||
        last->n_segments == p->max_tasks) {
        if (out->n_batches - p->n_before == FY_MAX_DEGREE) {
            return fail_degree(p, FY_MAX_DEGREE + 1, error);
        }
        FY_TRY(FY_GROW(out->batches, out->batch_capacity, out->n_batches + 1,
                       "the batches of a pair of ranks", error));
        last = &out->batches[out->n_batches++];
        *last = (fy_pair_batch){.first_segment = out->n_segments};
    }
    uint64_t index = run->first_index + i;
    out->segments[out->n_segments++] = (fy_pair_segment){.task = run->task,
                                                         .segment_index = index,
                                                         .first_byte = index * run->full_bytes,
                                                         .bytes = run->bytes};
    last->bytes += run->bytes;
    last->n_segments++;
    return FERRY_OK;
}

static ferry_status fill(packing *p, ferry_error *error)
{
    fy_pair_run *runs = p->out->runs;
    ferry_status status = FERRY_OK;
    fy_sort(runs, p->n_runs, sizeof *runs, compare_runs);
    for (size_t r = 0; r < p->n_runs; r++) {
        for (uint64_t i = 0; i < runs[r].n_segments && status == FERRY_OK; i++) {
            status = append(p, &runs[r], i, error);
        }
    }
    return status;
}

ferry_status fy_pack_pair(uint32_t from, uint32_t to, const fy_task *tasks, size_t n_tasks,
                          uint64_t slot_bytes, uint32_t max_tasks, fy_pair_batches *batches,
                          ferry_error *error)
{
    packing p = {.from = from,
                 .to = to,
                 .slot_bytes = slot_bytes,
                 .max_tasks = max_tasks,
                 .n_before = batches->n_batches,
                 .out = batches};
    if (n_tasks == 0) {
        return FERRY_OK;
    }
    size_t n_segments = batches->n_segments;
    ferry_status status = FERRY_OK;
    if (n_tasks > SIZE_MAX / 2 || !FY_RESERVE(batches->runs, batches->run_capacity, 2 * n_tasks)) {
        return fy_fail_no_memory(error, "the tasks of a pair of ranks");
    }
    for (size_t i = 0; i < n_tasks && status == FERRY_OK; i++) {
        status = add_runs(&p, &tasks[i], i, error);
    }
    FY_THEN(status, find_duplicate(&p, error));
    FY_THEN(status, reserve(&p, error));
    FY_THEN(status, fill(&p, error));
    if (status != FERRY_OK) {
        batches->n_batches = p.n_before;
        batches->n_segments = n_segments;
    }
    return status;
}

void fy_pair_batches_cleanup(fy_pair_batches *batches)
{
    fy_free(batches->segments);
    fy_free(batches->batches);
    fy_free(batches->runs);
    *batches = (fy_pair_batches){0};
}
