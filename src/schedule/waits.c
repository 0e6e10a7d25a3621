/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Which batches brought what a batch relays. Everything that arrives is looked up by (receiver,
 * task, first byte): a relayed segment is covered by what its sender received under another task.
 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/sort.h"

typedef struct arrival {
    uint64_t task_id;
    uint64_t first_byte;
    uint64_t end;
    uint64_t batch;
    uint32_t to;
} arrival;

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    int c = compare(x->to, y->to);
    c = c != 0 ? c : compare(x->task_id, y->task_id);
    return c != 0 ? c : compare(x->first_byte, y->first_byte);
}

typedef struct waiting {
    ferry_schedule *s;
    arrival *arrivals;
    size_t n_arrivals;
    size_t capacity; /* of s->waits */
    uint64_t n_waits;
} waiting;

static void list_arrivals(waiting *w)
{
    const ferry_schedule *s = w->s;
    for (uint64_t i = 0; i < s->n_batches; i++) {
        const fy_batch *batch = &s->batches[i];
        for (uint32_t k = 0; k < batch->n_segments; k++) {
            const fy_segment *segment = &s->segments[batch->first_segment + k];
            w->arrivals[w->n_arrivals++] = (arrival){.task_id = segment->task_id,
                                                     .first_byte = segment->first_byte,
                                                     .end = segment->first_byte + segment->bytes,
                                                     .batch = i,
                                                     .to = batch->to};
        }
    }
    fy_sort(w->arrivals, w->n_arrivals, sizeof *w->arrivals, by_place);
}

/* The last arrival of (to, task) that begins at or before first_byte. */
static size_t find_arrival(const waiting *w, uint32_t to, uint64_t task_id, uint64_t first_byte)
{
    arrival wanted = {.to = to, .task_id = task_id, .first_byte = first_byte};
    FY_BISECT(size_t, low, 0, w->n_arrivals, middle, by_place(&w->arrivals[middle], &wanted) <= 0);
    return low == 0 ? 0 : low - 1;
}

static ferry_status add_wait(waiting *w, uint64_t first, uint64_t batch, ferry_error *error)
{
    ferry_schedule *s = w->s;
    for (uint64_t i = first; i < w->n_waits; i++) {
        if (s->waits[i] == batch) {
            return FERRY_OK;
        }
    }
    FY_TRY(FY_GROW(s->waits, w->capacity, w->n_waits + 1, "the waits of a schedule", error));
    s->waits[w->n_waits++] = batch;
    return FERRY_OK;
}

static ferry_status wait_for(waiting *w, uint64_t number, const fy_segment *segment,
                             ferry_error *error)
{
    const fy_batch *batch = &w->s->batches[number];
    uint64_t from = segment->first_byte, end = from + segment->bytes;
    uint64_t first = w->s->wait_begin[number];
    ferry_status status = FERRY_OK;
    size_t i = find_arrival(w, batch->from, segment->relay_task_id, from);
    for (; i < w->n_arrivals && from < end && status == FERRY_OK; i++) {
        const arrival *a = &w->arrivals[i];
        if (a->to != batch->from || a->task_id != segment->relay_task_id || a->first_byte > from ||
            a->end <= from || w->s->batches[a->batch].round >= batch->round) {
            break;
        }
        from = a->end;
        status = add_wait(w, first, a->batch, error);
    }
    if (status == FERRY_OK && from < end) {
        return fy_fail(error, FERRY_ERR_INVALID_PLAN,
                       "rank %u is to relay bytes %llu to %llu of task %llu to rank %u in round "
                       "%u before it has them",
                       batch->from, (unsigned long long)from, (unsigned long long)end,
                       (unsigned long long)segment->relay_task_id, batch->to, batch->round);
    }
    return status;
}

ferry_status fy_schedule_list_waits(ferry_schedule *schedule, ferry_error *error)
{
    waiting w = {.s = schedule};
    ferry_status status = FERRY_OK;
    if (schedule->report.relayed_bytes == 0) {
        return FERRY_OK;
    }
    w.arrivals = fy_alloc(schedule->n_segments, sizeof *w.arrivals);
    schedule->wait_begin = fy_alloc(schedule->n_batches + 1, sizeof *schedule->wait_begin);
    if (w.arrivals == NULL || schedule->wait_begin == NULL) {
        status = fy_fail_no_memory(error, "the waits of a schedule");
        goto out;
    }
    list_arrivals(&w);
    for (uint64_t i = 0; i < schedule->n_batches; i++) {
        const fy_batch *batch = &schedule->batches[i];
        schedule->wait_begin[i] = w.n_waits;
        for (uint32_t k = 0; k < batch->n_segments && status == FERRY_OK; k++) {
            const fy_segment *segment = &schedule->segments[batch->first_segment + k];
            if (segment->is_relayed) {
                status = wait_for(&w, i, segment, error);
            }
        }
    }
    schedule->wait_begin[schedule->n_batches] = w.n_waits;
out:
    fy_free(w.arrivals);
    return status;
}
