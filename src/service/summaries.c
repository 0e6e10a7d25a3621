/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Summaries as bytes: runs of (destination, number of batches), and of each batch its size, the
 * number of its segments and of each its task, its index and its size.
 */
#include "service/summaries.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

ferry_status fy_summaries_create(ferry_summaries **summaries_out, ferry_error *error)
{
    ferry_summaries *summaries = fy_alloc_zeroed(1, sizeof *summaries);
    if (summaries == NULL) {
        return fy_fail_no_memory(error, "summaries");
    }
    *summaries_out = summaries;
    return FERRY_OK;
}

void ferry_summaries_destroy(ferry_summaries *summaries)
{
    if (summaries != NULL) {
        fy_free(summaries->items);
        fy_free(summaries->tasks);
        fy_free(summaries);
    }
}

static void pack_group(const ferry_workloads *w, const ferry_workload_group *group, fy_pack *out)
{
    fy_pack_number(out, group->bytes);
    fy_pack_number(out, group->n_segments);
    for (uint32_t i = 0; i < group->n_segments; i++) {
        const fy_pair_segment *segment = &w->packed.segments[group->first_segment + i];
        fy_pack_number(out, w->tasks[segment->task].task.task_id);
        fy_pack_number(out, segment->segment_index);
        fy_pack_number(out, segment->bytes);
    }
}

void fy_summaries_pack(const ferry_workloads *workloads, fy_pack *out)
{
    const ferry_workloads *w = workloads;
    size_t n_others = w->n_runs;
    for (size_t r = 0; r < w->n_runs; r++) {
        n_others -= w->runs[r].destination == w->my_pe;
    }
    fy_pack_number(out, n_others);
    for (size_t r = 0; r < w->n_runs; r++) {
        const fy_workload_run *run = &w->runs[r];
        if (run->destination == w->my_pe) {
            continue;
        }
        fy_pack_number(out, run->destination);
        fy_pack_number(out, run->n_groups);
        for (uint32_t g = 0; g < run->n_groups; g++) {
            pack_group(w, &w->groups[run->first_group + g], out);
        }
    }
}

/* Reading. */

typedef struct summary_reader {
    ferry_summaries *summaries;
    uint32_t source;
    const fy_summary_limits *limits;
    fy_announced *announced;
    fy_reader *in;
} summary_reader;

static ferry_status fail_damaged(const summary_reader *r, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "the summaries of PE %u are cut short or damaged after %zu of them", r->source,
                   r->summaries->n_items);
}

/* Every batch takes a byte at least: what is left bounds how many there are. */
static uint64_t bytes_left(const summary_reader *r)
{
    return (uint64_t)(r->in->end - r->in->at);
}

static ferry_status read_tasks(summary_reader *r, ferry_workload_summary *item, ferry_error *error)
{
    ferry_summaries *s = r->summaries;
    uint64_t total = 0;
    for (uint32_t i = 0; i < item->n_tasks; i++) {
        fy_summary_task task;
        task.id.task_id = fy_read_number(r->in, UINT64_MAX);
        task.id.segment_index = fy_read_number(r->in, UINT64_MAX);
        task.bytes = fy_read_number(r->in, r->limits->slot_bytes);
        if (r->in->failed || task.bytes == 0 || !fy_add(total, task.bytes, &total)) {
            return fail_damaged(r, error);
        }
        if (!fy_reserve((void **)&s->tasks, &s->task_capacity, s->n_tasks + 1, sizeof *s->tasks)) {
            return fy_fail_no_memory(error, "the tasks of summaries");
        }
        s->tasks[s->n_tasks++] = task;
    }
    if (total != item->bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "batch %u from PE %u to PE %u is summarised with %llu bytes, but its %u "
                       "tasks have %llu",
                       item->batch_index, item->source, item->destination,
                       (unsigned long long)item->bytes, item->n_tasks, (unsigned long long)total);
    }
    return FERRY_OK;
}

static ferry_status read_summary(summary_reader *r, uint32_t destination, uint32_t index,
                                 ferry_error *error)
{
    ferry_summaries *s = r->summaries;
    ferry_workload_summary item = {.summaries = s,
                                   .source = r->source,
                                   .destination = destination,
                                   .batch_index = index,
                                   .first_task = s->n_tasks};
    item.bytes = fy_read_number(r->in, r->limits->slot_bytes);
    item.n_tasks = (uint32_t)fy_read_number(r->in, r->limits->max_tasks);
    if (r->in->failed || item.n_tasks == 0) {
        return fail_damaged(r, error);
    }
    const ferry_scheduled_batches *known = r->announced->batches;
    if (known != NULL && known->bytes[r->announced->at] != item.bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "PE %u announced batch %u to PE %u with %llu bytes and summarised it with "
                       "%llu",
                       r->source, index, destination,
                       (unsigned long long)known->bytes[r->announced->at],
                       (unsigned long long)item.bytes);
    }
    r->announced->at += known != NULL;
    ferry_status status = read_tasks(r, &item, error);
    if (status == FERRY_OK &&
        !fy_reserve((void **)&s->items, &s->item_capacity, s->n_items + 1, sizeof *s->items)) {
        status = fy_fail_no_memory(error, "summaries");
    }
    if (status == FERRY_OK) {
        s->items[s->n_items++] = item;
    }
    return status;
}

/* How many batches the source announced next, and for whom: 0 and UINT32_MAX at its end. */
static uint64_t count_announced(const summary_reader *r, uint32_t *destination_out)
{
    const ferry_scheduled_batches *known = r->announced->batches;
    size_t begin = r->announced->at, end = begin;
    *destination_out = UINT32_MAX;
    while (end < known->n_batches && known->from[end] == r->source &&
           known->to[end] == known->to[begin]) {
        *destination_out = known->to[begin];
        end++;
    }
    return end - begin;
}

/* The next n summaries are for a destination; n is 0 and the destination UINT32_MAX at the end. */
static ferry_status check_announced(const summary_reader *r, uint32_t destination, uint64_t n,
                                    ferry_error *error)
{
    uint32_t next;
    uint64_t n_next = count_announced(r, &next);
    if (next == destination && n_next == n) {
        return FERRY_OK;
    }
    uint32_t which = next < destination ? next : destination;
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "PE %u announced %llu batches to PE %u and sent summaries of %llu", r->source,
                   (unsigned long long)(next == which ? n_next : 0), which,
                   (unsigned long long)(destination == which ? n : 0));
}

static ferry_status read_run(summary_reader *r, uint64_t *last, ferry_error *error)
{
    uint64_t destination = fy_read_number(r->in, r->limits->n_pes - 1);
    uint64_t n = fy_read_number(r->in, fy_min(FY_MAX_DEGREE, bytes_left(r)));
    if (r->in->failed || n == 0 || destination == r->source ||
        (*last != UINT64_MAX && destination <= *last)) {
        return fail_damaged(r, error);
    }
    *last = destination;
    ferry_status status = FERRY_OK;
    if (r->announced->batches != NULL) {
        status = check_announced(r, (uint32_t)destination, n, error);
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        status = read_summary(r, (uint32_t)destination, i, error);
    }
    return status;
}

ferry_status fy_summaries_read(ferry_summaries *summaries, uint32_t source,
                               const fy_summary_limits *limits, fy_announced *announced,
                               fy_reader *in, ferry_error *error)
{
    summary_reader r = {.summaries = summaries,
                        .source = source,
                        .limits = limits,
                        .announced = announced,
                        .in = in};
    uint64_t last = UINT64_MAX;
    ferry_status status = FERRY_OK;
    uint64_t n_runs = fy_read_number(in, limits->n_pes);
    for (uint64_t i = 0; i < n_runs && status == FERRY_OK; i++) {
        status = read_run(&r, &last, error);
    }
    if (status == FERRY_OK && (in->failed || in->at != in->end)) {
        status = fail_damaged(&r, error);
    }
    if (status == FERRY_OK && announced->batches != NULL) {
        status = check_announced(&r, UINT32_MAX, 0, error);
    }
    return status;
}

static int compare_segments(const void *a, const void *b)
{
    const ferry_segment_id *x = a, *y = b;
    if (x->task_id != y->task_id) {
        return x->task_id < y->task_id ? -1 : 1;
    }
    return (x->segment_index > y->segment_index) - (x->segment_index < y->segment_index);
}

/* Items [begin, end) are of one pair; their tasks lie behind one another. */
static ferry_status check_pair(const ferry_summaries *s, size_t begin, size_t end,
                               ferry_error *error)
{
    size_t first = s->items[begin].first_task;
    size_t n = s->items[end - 1].first_task + s->items[end - 1].n_tasks - first;
    ferry_segment_id *ids = fy_alloc(n, sizeof *ids);
    if (ids == NULL) {
        return fy_fail_no_memory(error, "the segments of a pair of PEs");
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = s->tasks[first + i].id;
    }
    fy_sort(ids, n, sizeof *ids, compare_segments);
    ferry_status status = FERRY_OK;
    for (size_t i = 1; i < n && status == FERRY_OK; i++) {
        if (compare_segments(&ids[i - 1], &ids[i]) == 0) {
            status = fy_fail(
                error, FERRY_ERR_EXCHANGE,
                "the summaries from PE %u to PE %u list segment %llu of task %llu twice",
                s->items[begin].source, s->items[begin].destination,
                (unsigned long long)ids[i].segment_index, (unsigned long long)ids[i].task_id);
        }
    }
    fy_free(ids);
    return status;
}

ferry_status fy_summaries_check_received(const ferry_summaries *summaries, uint32_t my_pe,
                                         ferry_error *error)
{
    const ferry_workload_summary *items = summaries->items;
    ferry_status status = FERRY_OK;
    for (size_t begin = 0, end; begin < summaries->n_items && status == FERRY_OK; begin = end) {
        for (end = begin + 1;
             end < summaries->n_items && items[end].source == items[begin].source &&
             items[end].destination == items[begin].destination;
             end++) {}
        if (items[begin].destination == my_pe) {
            status = check_pair(summaries, begin, end, error);
        }
    }
    return status;
}

/* Asking. */

uint64_t ferry_summaries_count(const ferry_summaries *summaries)
{
    return summaries == NULL ? 0 : summaries->n_items;
}

ferry_status ferry_summaries_at(const ferry_summaries *summaries, uint64_t index,
                                const ferry_workload_summary **summary_out, ferry_error *error)
{
    if (summary_out == NULL || index >= ferry_summaries_count(summaries)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "summary %llu of %llu needs a place for the result",
                       (unsigned long long)index,
                       (unsigned long long)ferry_summaries_count(summaries));
    }
    *summary_out = &summaries->items[index];
    return FERRY_OK;
}

static int compare_keys(const ferry_workload_summary *a, uint32_t source, uint32_t destination,
                        uint32_t batch_index)
{
    if (a->source != source) {
        return a->source < source ? -1 : 1;
    }
    if (a->destination != destination) {
        return a->destination < destination ? -1 : 1;
    }
    return (a->batch_index > batch_index) - (a->batch_index < batch_index);
}

const ferry_workload_summary *ferry_summaries_find(const ferry_summaries *summaries,
                                                   uint32_t source, uint32_t destination,
                                                   uint32_t batch_index)
{
    size_t low = 0, high = (size_t)ferry_summaries_count(summaries);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_keys(&summaries->items[middle], source, destination, batch_index);
        if (order == 0) {
            return &summaries->items[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

uint32_t ferry_workload_summary_source(const ferry_workload_summary *summary)
{
    return summary == NULL ? 0 : summary->source;
}

uint32_t ferry_workload_summary_destination(const ferry_workload_summary *summary)
{
    return summary == NULL ? 0 : summary->destination;
}

uint32_t ferry_workload_summary_batch_index(const ferry_workload_summary *summary)
{
    return summary == NULL ? 0 : summary->batch_index;
}

uint64_t ferry_workload_summary_total_bytes(const ferry_workload_summary *summary)
{
    return summary == NULL ? 0 : summary->bytes;
}

uint32_t ferry_workload_summary_task_count(const ferry_workload_summary *summary)
{
    return summary == NULL ? 0 : summary->n_tasks;
}

ferry_status ferry_workload_summary_task_at(const ferry_workload_summary *summary, uint32_t index,
                                            ferry_segment_id *id_out, uint64_t *bytes_out,
                                            ferry_error *error)
{
    if (summary == NULL || index >= summary->n_tasks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "task %u of a summary of %u", index,
                       ferry_workload_summary_task_count(summary));
    }
    const fy_summary_task *task = &summary->summaries->tasks[summary->first_task + index];
    if (id_out != NULL) {
        *id_out = task->id;
    }
    if (bytes_out != NULL) {
        *bytes_out = task->bytes;
    }
    return FERRY_OK;
}
