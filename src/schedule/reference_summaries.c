/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Summaries as bytes: runs of (to, number of batches), and of each batch its size, the
 * number of its segments and of each its task, its index and its size.
 */
#include "schedule/reference_summaries.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <stdlib.h>

ferry_status fy_summaries_create(ferry_reference_summaries **summaries_out, ferry_error *error)
{
    ferry_reference_summaries *summaries = fy_alloc_zeroed(1, sizeof *summaries);
    FY_TRY(fy_check_memory(summaries != NULL, "summaries", error));
    *summaries_out = summaries;
    return FERRY_OK;
}

void ferry_reference_summaries_destroy(ferry_reference_summaries *summaries)
{
    if (summaries != NULL) {
        fy_free(summaries->items);
        fy_free(summaries->segments);
        fy_free(summaries);
    }
}

static void pack_batch(const ferry_reference_workloads *w, const fy_pair_batch *batch, fy_pack *out)
{
    fy_pack_number(out, batch->bytes);
    fy_pack_number(out, batch->n_segments);
    for (uint32_t i = 0; i < batch->n_segments; i++) {
        const fy_pair_segment *segment = &w->packed.segments[batch->first_segment + i];
        fy_pack_number(out, w->tasks[segment->task].id);
        fy_pack_number(out, segment->segment_index);
        fy_pack_number(out, segment->bytes);
    }
}

void fy_summaries_pack(const ferry_reference_workloads *workloads, fy_pack *out)
{
    fy_workload_batches_pack(workloads, pack_batch, out);
}

/* Reading. */

typedef struct summary_reader {
    ferry_reference_summaries *summaries;
    uint32_t from;
    const fy_summary_limits *limits;
    fy_announced *announced;
    fy_reader *in;
} summary_reader;

static ferry_status fail_damaged(const summary_reader *r, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "the summaries of rank %u are cut short or damaged after %zu of them", r->from,
                   r->summaries->n_items);
}

/* Every batch takes a byte at least: what is left bounds how many there are. */
static uint64_t bytes_left(const summary_reader *r)
{
    return (uint64_t)(r->in->end - r->in->at);
}

static ferry_status read_segments(summary_reader *r, fy_summary *item, ferry_error *error)
{
    ferry_reference_summaries *s = r->summaries;
    uint64_t total = 0;
    for (uint32_t i = 0; i < item->n_segments; i++) {
        fy_summary_segment segment;
        segment.id.task_id = fy_read_number(r->in, UINT64_MAX);
        segment.id.segment_index = fy_read_number(r->in, UINT64_MAX);
        segment.bytes = fy_read_number(r->in, r->limits->slot_bytes);
        if (r->in->failed || segment.bytes == 0 || !fy_add(total, segment.bytes, &total)) {
            return fail_damaged(r, error);
        }
        if (!fy_reserve((void **)&s->segments, &s->segment_capacity, s->n_segments + 1,
                        sizeof *s->segments)) {
            return fy_fail_no_memory(error, "the segments of summaries");
        }
        s->segments[s->n_segments++] = segment;
    }
    if (total != item->bytes) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "batch %u from rank %u to rank %u is summarised with %llu bytes, but its %u "
                       "segments have %llu",
                       item->index, item->from, item->to, (unsigned long long)item->bytes,
                       item->n_segments, (unsigned long long)total);
    }
    return FERRY_OK;
}

static ferry_status read_summary(summary_reader *r, uint32_t to, uint32_t index, ferry_error *error)
{
    ferry_reference_summaries *s = r->summaries;
    fy_summary item = {.from = r->from, .to = to, .index = index, .first_segment = s->n_segments};
    item.bytes = fy_read_number(r->in, r->limits->slot_bytes);
    item.n_segments = (uint32_t)fy_read_number(r->in, r->limits->max_tasks);
    if (r->in->failed || item.n_segments == 0) {
        return fail_damaged(r, error);
    }
    const ferry_reference_batches *known = r->announced->batches;
    if (known != NULL && known->items[r->announced->at].bytes != item.bytes) {
        return fy_fail(
            error, FERRY_ERR_EXCHANGE,
            "rank %u announced batch %u to rank %u with %llu bytes and summarised it with "
            "%llu",
            r->from, index, to, (unsigned long long)known->items[r->announced->at].bytes,
            (unsigned long long)item.bytes);
    }
    r->announced->at += known != NULL;
    ferry_status status = read_segments(r, &item, error);
    if (status == FERRY_OK &&
        !fy_reserve((void **)&s->items, &s->item_capacity, s->n_items + 1, sizeof *s->items)) {
        status = fy_fail_no_memory(error, "summaries");
    }
    if (status == FERRY_OK) {
        s->items[s->n_items++] = item;
    }
    return status;
}

/* How many batches the from announced next, and for whom: 0 and UINT32_MAX at its end. */
static uint64_t count_announced(const summary_reader *r, uint32_t *to_out)
{
    const ferry_reference_batches *known = r->announced->batches;
    size_t begin = r->announced->at, end = begin;
    *to_out = UINT32_MAX;
    while (end < known->n_batches && known->items[end].from == r->from &&
           known->items[end].to == known->items[begin].to) {
        *to_out = known->items[begin].to;
        end++;
    }
    return end - begin;
}

/* The next n summaries are for a to; n is 0 and the to UINT32_MAX at the end. */
static ferry_status check_announced(const summary_reader *r, uint32_t to, uint64_t n,
                                    ferry_error *error)
{
    uint32_t next;
    uint64_t n_next = count_announced(r, &next);
    if (next == to && n_next == n) {
        return FERRY_OK;
    }
    uint32_t which = next < to ? next : to;
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u announced %llu batches to rank %u and sent summaries of %llu", r->from,
                   (unsigned long long)(next == which ? n_next : 0), which,
                   (unsigned long long)(to == which ? n : 0));
}

static ferry_status read_run(summary_reader *r, uint64_t *last, ferry_error *error)
{
    uint64_t to = fy_read_number(r->in, r->limits->n_ranks - 1);
    uint64_t n = fy_read_number(r->in, fy_min(FY_MAX_DEGREE, bytes_left(r)));
    if (r->in->failed || n == 0 || to == r->from || (*last != UINT64_MAX && to <= *last)) {
        return fail_damaged(r, error);
    }
    *last = to;
    ferry_status status = FERRY_OK;
    if (r->announced->batches != NULL) {
        status = check_announced(r, (uint32_t)to, n, error);
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        status = read_summary(r, (uint32_t)to, i, error);
    }
    return status;
}

ferry_status fy_summaries_read(ferry_reference_summaries *summaries, uint32_t from,
                               const fy_summary_limits *limits, fy_announced *announced,
                               fy_reader *in, ferry_error *error)
{
    summary_reader r = {
        .summaries = summaries, .from = from, .limits = limits, .announced = announced, .in = in};
    uint64_t last = UINT64_MAX;
    ferry_status status = FERRY_OK;
    uint64_t n_runs = fy_read_number(in, limits->n_ranks);
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
    const ferry_reference_segment_id *x = a, *y = b;
    if (x->task_id != y->task_id) {
        return x->task_id < y->task_id ? -1 : 1;
    }
    return (x->segment_index > y->segment_index) - (x->segment_index < y->segment_index);
}

/* Items [begin, end) are of one pair; their tasks lie behind one another. */
static ferry_status check_pair(const ferry_reference_summaries *s, size_t begin, size_t end,
                               ferry_error *error)
{
    size_t first = s->items[begin].first_segment;
    size_t n = s->items[end - 1].first_segment + s->items[end - 1].n_segments - first;
    ferry_reference_segment_id *ids = fy_alloc(n, sizeof *ids);
    FY_TRY(fy_check_memory(ids != NULL, "the segments of a pair of ranks", error));
    for (size_t i = 0; i < n; i++) {
        ids[i] = s->segments[first + i].id;
    }
    fy_sort(ids, n, sizeof *ids, compare_segments);
    ferry_status status = FERRY_OK;
    for (size_t i = 1; i < n && status == FERRY_OK; i++) {
        if (compare_segments(&ids[i - 1], &ids[i]) == 0) {
            status = fy_fail(
                error, FERRY_ERR_EXCHANGE,
                "the summaries from rank %u to rank %u list segment %llu of task %llu twice",
                s->items[begin].from, s->items[begin].to, (unsigned long long)ids[i].segment_index,
                (unsigned long long)ids[i].task_id);
        }
    }
    fy_free(ids);
    return status;
}

ferry_status fy_summaries_check_received(const ferry_reference_summaries *summaries, uint32_t rank,
                                         ferry_error *error)
{
    const fy_summary *items = summaries->items;
    ferry_status status = FERRY_OK;
    for (size_t begin = 0, end; begin < summaries->n_items && status == FERRY_OK; begin = end) {
        for (end = begin + 1; end < summaries->n_items && items[end].from == items[begin].from &&
                              items[end].to == items[begin].to;
             end++) {}
        if (items[begin].to == rank) {
            status = check_pair(summaries, begin, end, error);
        }
    }
    return status;
}

/* Asking. */

uint64_t ferry_reference_summaries_count(const ferry_reference_summaries *summaries)
{
    return summaries == NULL ? 0 : summaries->n_items;
}

ferry_status ferry_reference_summaries_at(const ferry_reference_summaries *summaries,
                                          uint64_t number, ferry_reference_batch *batch_out,
                                          ferry_error *error)
{
    if (number >= ferry_reference_summaries_count(summaries)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "summary %llu of %llu", (unsigned long long)number,
                       (unsigned long long)ferry_reference_summaries_count(summaries));
    }
    const fy_summary *item = &summaries->items[number];
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    batch.from = item->from;
    batch.to = item->to;
    batch.index = item->index;
    batch.bytes = item->bytes;
    return fy_copy_out(&batch, sizeof batch, batch_out, "ferry_reference_batch", error);
}

static int compare_keys(const void *a, const void *b)
{
    const fy_summary *x = a, *y = b;
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

static const fy_summary *find(const ferry_reference_summaries *summaries, uint32_t from,
                              uint32_t to, uint32_t index)
{
    fy_summary wanted = {.from = from, .to = to, .index = index};
    return summaries == NULL || summaries->n_items == 0
               ? NULL
               : bsearch(&wanted, summaries->items, summaries->n_items, sizeof wanted,
                         compare_keys);
}

uint32_t ferry_reference_summaries_segment_count(const ferry_reference_summaries *summaries,
                                                 uint32_t from, uint32_t to, uint32_t index)
{
    const fy_summary *item = find(summaries, from, to, index);
    return item == NULL ? 0 : item->n_segments;
}

ferry_status ferry_reference_summaries_segment_at(const ferry_reference_summaries *summaries,
                                                  uint32_t from, uint32_t to, uint32_t index,
                                                  uint32_t number,
                                                  ferry_reference_segment_id *id_out,
                                                  uint64_t *bytes_out, ferry_error *error)
{
    const fy_summary *item = find(summaries, from, to, index);
    if (item == NULL || number >= item->n_segments) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "segment %u of the %u of batch %u from rank %u to rank %u", number,
                       item == NULL ? 0 : item->n_segments, index, from, to);
    }
    const fy_summary_segment *segment = &summaries->segments[item->first_segment + number];
    if (id_out != NULL) {
        *id_out = segment->id;
    }
    if (bytes_out != NULL) {
        *bytes_out = segment->bytes;
    }
    return FERRY_OK;
}
