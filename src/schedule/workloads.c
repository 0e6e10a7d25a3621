/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/workloads.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/segment.h"

ferry_status ferry_workloads_create(uint32_t my_pe, uint32_t n_pes, ferry_workloads **workloads_out,
                                    ferry_error *error)
{
    if (workloads_out == NULL || my_pe >= n_pes || n_pes > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "workloads of PE %u of %u: they need a place and a PE of a world of at most "
                       "%u",
                       my_pe, n_pes, FERRY_MAX_RANKS);
    }
    ferry_workloads *workloads = fy_alloc_zeroed(1, sizeof *workloads);
    if (workloads == NULL) {
        return fy_fail_no_memory(error, "workloads");
    }
    workloads->my_pe = my_pe;
    workloads->n_pes = n_pes;
    *workloads_out = workloads;
    return FERRY_OK;
}

ferry_status ferry_workloads_add_task(ferry_workloads *workloads, uint64_t task_id,
                                      uint32_t destination, uint64_t bytes, uint64_t element_bytes,
                                      ferry_error *error)
{
    if (workloads == NULL || workloads->is_packed) {
        return fy_fail(error, FERRY_ERR_MISUSE, "task %llu needs workloads that are not packed yet",
                       (unsigned long long)task_id);
    }
    if (destination >= workloads->n_pes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu goes from PE %u to PE %u, but there are %u PEs",
                       (unsigned long long)task_id, workloads->my_pe, destination,
                       workloads->n_pes);
    }
    /* A slot of any size will do here: what it must be is known when the workloads are packed. */
    fy_cut cut;
    ferry_status status = fy_cut_task(task_id, bytes, element_bytes, UINT64_MAX, &cut, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (!fy_reserve((void **)&workloads->tasks, &workloads->task_capacity, workloads->n_tasks + 1,
                    sizeof *workloads->tasks)) {
        return fy_fail_no_memory(error, "the tasks of the workloads");
    }
    workloads->tasks[workloads->n_tasks++] =
        (fy_workload_task){destination, {task_id, bytes, element_bytes}};
    return FERRY_OK;
}

static int compare_tasks(const void *a, const void *b)
{
    const fy_workload_task *x = a, *y = b;
    if (x->destination != y->destination) {
        return x->destination < y->destination ? -1 : 1;
    }
    return (x->task.task_id > y->task.task_id) - (x->task.task_id < y->task.task_id);
}

/* Tasks [begin, end) are those of one destination. */
static ferry_status pack_run(ferry_workloads *w, size_t begin, size_t end, fy_pair_task *tasks,
                             size_t *run_capacity, ferry_error *error)
{
    uint32_t destination = w->tasks[begin].destination;
    size_t n_segments = w->packed.n_segments, n_batches = w->packed.n_batches;
    fy_workload_run run = {.destination = destination, .first_group = n_batches};
    for (size_t i = begin; i < end; i++) {
        tasks[i - begin] = w->tasks[i].task;
    }
    if (!fy_reserve((void **)&w->runs, run_capacity, w->n_runs + 1, sizeof *w->runs)) {
        return fy_fail_no_memory(error, "the destinations of the workloads");
    }
    ferry_status status = fy_pack_pair(w->my_pe, destination, tasks, end - begin, w->slot_bytes,
                                       w->max_tasks, &w->packed, error);
    for (size_t i = n_segments; i < w->packed.n_segments; i++) {
        w->packed.segments[i].task += begin;
    }
    run.n_groups = (uint32_t)(w->packed.n_batches - n_batches);
    w->runs[w->n_runs++] = run;
    return status;
}

static ferry_status pack_runs(ferry_workloads *w, ferry_error *error)
{
    size_t run_capacity = 0;
    ferry_status status = FERRY_OK;
    fy_pair_task *tasks = fy_alloc(w->n_tasks, sizeof *tasks);
    if (tasks == NULL) {
        return fy_fail_no_memory(error, "the tasks of a destination");
    }
    for (size_t begin = 0, end; begin < w->n_tasks && status == FERRY_OK; begin = end) {
        for (end = begin + 1;
             end < w->n_tasks && w->tasks[end].destination == w->tasks[begin].destination; end++) {}
        status = pack_run(w, begin, end, tasks, &run_capacity, error);
    }
    fy_free(tasks);
    return status;
}

static ferry_status check_total(const ferry_workloads *w, ferry_error *error)
{
    uint64_t total = 0;
    for (size_t i = 0; i < w->n_tasks; i++) {
        if (!fy_add(total, w->tasks[i].task.bytes, &total)) {
            return fy_fail(
                error, FERRY_ERR_LIMIT,
                "the tasks of PE %u add up to more than 2^64 bytes with task %llu for PE "
                "%u, of %llu bytes",
                w->my_pe, (unsigned long long)w->tasks[i].task.task_id, w->tasks[i].destination,
                (unsigned long long)w->tasks[i].task.bytes);
        }
    }
    return FERRY_OK;
}

static ferry_status make_groups(ferry_workloads *w, ferry_error *error)
{
    w->groups = fy_alloc(w->packed.n_batches, sizeof *w->groups);
    if (w->groups == NULL) {
        return fy_fail_no_memory(error, "the groups of the workloads");
    }
    uint64_t n_sent = 0;
    for (size_t r = 0; r < w->n_runs; r++) {
        n_sent += w->runs[r].destination == w->my_pe ? 0 : w->runs[r].n_groups;
        for (size_t g = w->runs[r].first_group; g < w->runs[r].first_group + w->runs[r].n_groups;
             g++) {
            const fy_pair_batch *batch = &w->packed.batches[g];
            w->groups[g] = (ferry_workload_group){.workloads = w,
                                                  .destination = w->runs[r].destination,
                                                  .n_segments = batch->n_segments,
                                                  .first_segment = batch->first_segment,
                                                  .bytes = batch->bytes};
        }
    }
    if (n_sent > FY_MAX_DEGREE) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "PE %u sends %llu batches; at most %llu can be numbered: use larger slots",
                       w->my_pe, (unsigned long long)n_sent, (unsigned long long)FY_MAX_DEGREE);
    }
    return FERRY_OK;
}

static void drop_groups(ferry_workloads *w)
{
    fy_pair_batches_cleanup(&w->packed);
    fy_free(w->groups);
    fy_free(w->runs);
    w->groups = NULL;
    w->runs = NULL;
    w->n_runs = 0;
}

ferry_status ferry_workloads_pack(ferry_workloads *workloads, uint64_t slot_bytes,
                                  uint32_t max_tasks, ferry_error *error)
{
    if (workloads == NULL || workloads->is_packed) {
        return fy_fail(error, FERRY_ERR_MISUSE, "workloads are packed once");
    }
    workloads->slot_bytes = slot_bytes == 0 ? FERRY_SLOT_BYTES : slot_bytes;
    workloads->max_tasks = max_tasks == 0 ? FERRY_MAX_TASKS : max_tasks;
    fy_sort(workloads->tasks, workloads->n_tasks, sizeof *workloads->tasks, compare_tasks);
    ferry_status status = check_total(workloads, error);
    if (status == FERRY_OK) {
        status = pack_runs(workloads, error);
    }
    if (status == FERRY_OK) {
        status = make_groups(workloads, error);
    }
    if (status != FERRY_OK) {
        drop_groups(workloads);
        return status;
    }
    workloads->is_packed = true;
    return FERRY_OK;
}

void ferry_workloads_destroy(ferry_workloads *workloads)
{
    if (workloads != NULL) {
        drop_groups(workloads);
        fy_free(workloads->tasks);
        fy_free(workloads);
    }
}

static const fy_workload_run *find_run(const ferry_workloads *w, uint32_t destination)
{
    size_t low = 0, high = w == NULL || !w->is_packed ? 0 : w->n_runs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (w->runs[middle].destination == destination) {
            return &w->runs[middle];
        }
        if (w->runs[middle].destination < destination) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

uint32_t ferry_workloads_group_count(const ferry_workloads *workloads, uint32_t destination)
{
    const fy_workload_run *run = find_run(workloads, destination);
    return run == NULL ? 0 : run->n_groups;
}

ferry_status ferry_workloads_group_at(const ferry_workloads *workloads, uint32_t destination,
                                      uint32_t index, const ferry_workload_group **group_out,
                                      ferry_error *error)
{
    const fy_workload_run *run = find_run(workloads, destination);
    if (group_out == NULL || run == NULL || index >= run->n_groups) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "group %u for PE %u: there are %u, of packed workloads, and a place is "
                       "needed",
                       index, destination, run == NULL ? 0 : run->n_groups);
    }
    *group_out = &workloads->groups[run->first_group + index];
    return FERRY_OK;
}

uint32_t ferry_workload_group_destination(const ferry_workload_group *group)
{
    return group == NULL ? 0 : group->destination;
}

uint64_t ferry_workload_group_total_bytes(const ferry_workload_group *group)
{
    return group == NULL ? 0 : group->bytes;
}

uint32_t ferry_workload_group_task_count(const ferry_workload_group *group)
{
    return group == NULL ? 0 : group->n_segments;
}

ferry_status ferry_workload_group_task_at(const ferry_workload_group *group, uint32_t index,
                                          ferry_segment_id *id_out, uint64_t *first_byte_out,
                                          uint64_t *bytes_out, ferry_error *error)
{
    if (group == NULL || index >= group->n_segments) {
        return fy_fail(error, FERRY_ERR_MISUSE, "task %u of a group of %u", index,
                       ferry_workload_group_task_count(group));
    }
    const fy_pair_segment *segment =
        &group->workloads->packed.segments[group->first_segment + index];
    if (id_out != NULL) {
        *id_out = (ferry_segment_id){group->workloads->tasks[segment->task].task.task_id,
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
