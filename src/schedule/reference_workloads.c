/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/reference_workloads.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/segment.h"

ferry_status ferry_reference_workloads_create(uint32_t rank, uint32_t n_ranks,
                                              ferry_reference_workloads **workloads_out,
                                              ferry_error *error)
{
    if (workloads_out == NULL || rank >= n_ranks || n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "workloads of rank %u of %u: they need a place and a rank of a world of at most "
            "%u",
            rank, n_ranks, FERRY_MAX_RANKS);
    }
    ferry_reference_workloads *workloads = fy_alloc_zeroed(1, sizeof *workloads);
    FY_TRY(fy_check_memory(workloads != NULL, "workloads", error));
    workloads->rank = rank;
    workloads->n_ranks = n_ranks;
    *workloads_out = workloads;
    return FERRY_OK;
}

ferry_status ferry_reference_workloads_add_task(ferry_reference_workloads *workloads,
                                                uint64_t task_id, uint32_t to, uint64_t bytes,
                                                uint64_t element_bytes, ferry_error *error)
{
    if (workloads == NULL || workloads->is_packed) {
        return fy_fail(error, FERRY_ERR_MISUSE, "task %llu needs workloads that are not packed yet",
                       (unsigned long long)task_id);
    }
    if (to >= workloads->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu goes from rank %u to rank %u, but there are %u ranks",
                       (unsigned long long)task_id, workloads->rank, to, workloads->n_ranks);
    }
    if (element_bytes > UINT32_MAX) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu has elements of %llu bytes: at most 2^32 - 1 are possible",
                       (unsigned long long)task_id, (unsigned long long)element_bytes);
    }
    /* A slot of any size will do here: what it must be is known when the workloads are packed. */
    fy_cut cut;
    FY_TRY(fy_cut_task(task_id, bytes, element_bytes, UINT64_MAX, &cut, error));
    FY_TRY(FY_GROW(workloads->listed, workloads->task_capacity, workloads->n_tasks + 1,
                   "the tasks of the workloads", error));
    workloads->listed[workloads->n_tasks++] = (fy_listed_task){
        .id = task_id, .bytes = bytes, .element = (uint32_t)element_bytes, .to = to};
    return FERRY_OK;
}

static int compare_tasks(const void *a, const void *b)
{
    const fy_listed_task *x = a, *y = b;
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

/* Tasks [begin, end) are those of one receiver. */
static ferry_status pack_run(ferry_reference_workloads *w, size_t begin, size_t end,
                             size_t *run_capacity, ferry_error *error)
{
    uint32_t to = w->listed[begin].to;
    size_t n_segments = w->packed.n_segments, n_batches = w->packed.n_batches;
    fy_workload_run run = {.to = to, .first_batch = n_batches};
    FY_TRY(FY_GROW(w->runs, *run_capacity, w->n_runs + 1, "the receivers of the workloads", error));
    ferry_status status = fy_pack_pair(w->rank, to, w->tasks + begin, end - begin, w->slot_bytes,
                                       w->max_tasks, &w->packed, error);
    for (size_t i = n_segments; i < w->packed.n_segments; i++) {
        w->packed.segments[i].task += begin;
    }
    run.n_batches = (uint32_t)(w->packed.n_batches - n_batches);
    w->runs[w->n_runs++] = run;
    return status;
}

static ferry_status pack_runs(ferry_reference_workloads *w, ferry_error *error)
{
    size_t run_capacity = 0;
    ferry_status status = FERRY_OK;
    w->tasks = fy_alloc(w->n_tasks, sizeof *w->tasks);
    FY_TRY(fy_check_memory(w->tasks != NULL, "the tasks of the workloads", error));
    for (size_t i = 0; i < w->n_tasks; i++) {
        const fy_listed_task *listed = &w->listed[i];
        w->tasks[i] =
            (fy_task){.id = listed->id, .bytes = listed->bytes, .element = listed->element};
    }
    for (size_t begin = 0, end; begin < w->n_tasks && status == FERRY_OK; begin = end) {
        for (end = begin + 1; end < w->n_tasks && w->listed[end].to == w->listed[begin].to; end++) {
        }
        status = pack_run(w, begin, end, &run_capacity, error);
    }
    return status;
}

static ferry_status check_total(const ferry_reference_workloads *w, ferry_error *error)
{
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_tasks; i++) {
        if (!fy_add(total, w->listed[i].bytes, &total)) {
            return fy_fail(
                error, FERRY_ERR_LIMIT,
                "the tasks of rank %u add up to more than 2^64 bytes with task %llu for rank "
                "%u, of %llu bytes",
                w->rank, (unsigned long long)w->listed[i].id, w->listed[i].to,
                (unsigned long long)w->listed[i].bytes);
        }
    }
    return FERRY_OK;
}

static ferry_status check_degree(const ferry_reference_workloads *w, ferry_error *error)
{
    uint64_t n_sent = 0;
    for (size_t r = 0; r < w->n_runs; r++) {
        n_sent += w->runs[r].to == w->rank ? 0 : w->runs[r].n_batches;
    }
    if (n_sent > FY_MAX_DEGREE) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "rank %u sends %llu batches; at most %llu can be numbered: use larger slots",
                       w->rank, (unsigned long long)n_sent, (unsigned long long)FY_MAX_DEGREE);
    }
    return FERRY_OK;
}

static void drop_batches(ferry_reference_workloads *w)
{
    fy_pair_batches_cleanup(&w->packed);
    fy_free(w->tasks);
    fy_free(w->runs);
    w->tasks = NULL;
    w->runs = NULL;
    w->n_runs = 0;
}

ferry_status ferry_reference_workloads_pack(ferry_reference_workloads *workloads,
                                            uint64_t slot_bytes, uint32_t max_tasks,
                                            ferry_error *error)
{
    FY_TRY(fy_check_use(workloads != NULL && !workloads->is_packed, "workloads are packed once",
                        error));
    workloads->slot_bytes = slot_bytes == 0 ? FERRY_SLOT_BYTES : slot_bytes;
    workloads->max_tasks = max_tasks == 0 ? FERRY_MAX_TASKS : max_tasks;
    fy_sort(workloads->listed, workloads->n_tasks, sizeof *workloads->listed, compare_tasks);
    ferry_status status = check_total(workloads, error);
    FY_THEN(status, pack_runs(workloads, error));
    FY_THEN(status, check_degree(workloads, error));
    if (status != FERRY_OK) {
        drop_batches(workloads);
        return status;
    }
    workloads->is_packed = true;
    return FERRY_OK;
}

void ferry_reference_workloads_destroy(ferry_reference_workloads *workloads)
{
    if (workloads != NULL) {
        drop_batches(workloads);
        fy_free(workloads->listed);
        fy_free(workloads);
    }
}

static const fy_workload_run *find_run(const ferry_reference_workloads *w, uint32_t to)
{
    size_t n = w == NULL || !w->is_packed ? 0 : w->n_runs;
    FY_BISECT(size_t, low, 0, n, middle, w->runs[middle].to < to);
    return low < n && w->runs[low].to == to ? &w->runs[low] : NULL;
}

uint32_t ferry_reference_workloads_batch_count(const ferry_reference_workloads *workloads,
                                               uint32_t to)
{
    const fy_workload_run *run = find_run(workloads, to);
    return run == NULL ? 0 : run->n_batches;
}

static const fy_pair_batch *find_batch(const ferry_reference_workloads *w, uint32_t to,
                                       uint32_t index)
{
    const fy_workload_run *run = find_run(w, to);
    return run == NULL || index >= run->n_batches ? NULL
                                                  : &w->packed.batches[run->first_batch + index];
}

ferry_status ferry_reference_workloads_batch_at(const ferry_reference_workloads *workloads,
                                                uint32_t to, uint32_t index,
                                                ferry_reference_batch *batch_out,
                                                ferry_error *error)
{
    const fy_pair_batch *found = find_batch(workloads, to, index);
    if (found == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "batch %u to rank %u: there are %u, of packed workloads", index, to,
                       ferry_reference_workloads_batch_count(workloads, to));
    }
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    batch.from = workloads->rank;
    batch.to = to;
    batch.index = index;
    batch.bytes = found->bytes;
    return fy_copy_out(&batch, sizeof batch, batch_out, "ferry_reference_batch", error);
}

uint32_t ferry_reference_workloads_segment_count(const ferry_reference_workloads *workloads,
                                                 uint32_t to, uint32_t index)
{
    const fy_pair_batch *batch = find_batch(workloads, to, index);
    return batch == NULL ? 0 : batch->n_segments;
}

ferry_status ferry_reference_workloads_segment_at(const ferry_reference_workloads *workloads,
                                                  uint32_t to, uint32_t index, uint32_t number,
                                                  ferry_reference_segment_id *id_out,
                                                  uint64_t *first_byte_out, uint64_t *bytes_out,
                                                  ferry_error *error)
{
    const fy_pair_batch *batch = find_batch(workloads, to, index);
    if (batch == NULL || number >= batch->n_segments) {
        return fy_fail(error, FERRY_ERR_MISUSE, "segment %u of the %u of batch %u to rank %u",
                       number, batch == NULL ? 0 : batch->n_segments, index, to);
    }
    const fy_pair_segment *segment = &workloads->packed.segments[batch->first_segment + number];
    if (id_out != NULL) {
        *id_out = (ferry_reference_segment_id){workloads->tasks[segment->task].id,
                                               segment->segment_index};
    }
    if (first_byte_out != NULL) {
        *first_byte_out = segment->first_byte;
    }
    if (bytes_out != NULL) {
        *bytes_out = segment->bytes;
    }
    return FERRY_OK;
}

void fy_workload_batches_pack(const ferry_reference_workloads *w, fy_workload_batch_fn *pack,
                              fy_pack *out)
{
    size_t n_others = w->n_runs;
    for (size_t r = 0; r < w->n_runs; r++) {
        n_others -= w->runs[r].to == w->rank;
    }
    fy_pack_number(out, n_others);
    for (size_t r = 0; r < w->n_runs; r++) {
        const fy_workload_run *run = &w->runs[r];
        if (run->to == w->rank) {
            continue;
        }
        fy_pack_number(out, run->to);
        fy_pack_number(out, run->n_batches);
        for (uint32_t b = 0; b < run->n_batches; b++) {
            pack(w, &w->packed.batches[run->first_batch + b], out);
        }
    }
}
