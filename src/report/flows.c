/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends how much to whom. Moves come by receiver, so one row of senders is summed up at a time.
 * Where there are more pairs than a page should hold, ranks are joined to units: nodes first, then
 * pairs of units, until there are few enough.
 */
#include "report/packed.h"
#include "report/parts.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "plan/core.h"

enum { MOST_FLOWS = 400000 };

typedef struct flow {
    uint32_t from, to; /* units */
    uint64_t bytes;
} flow;

typedef struct flow_table {
    uint32_t n_ranks, node;
    uint32_t unit; /* so many ranks */
    flow *flows;   /* by receiver, then sender */
    size_t n, capacity;
    uint64_t *row;     /* [n_ranks] of the receiver at hand, by sender */
    uint32_t *senders; /* of the row */
    uint32_t n_senders;
    uint32_t to;
    ferry_error *error;
} flow_table;

/* Puts the row at hand behind the others. */
static ferry_status end_row(flow_table *t)
{
    fy_sort(t->senders, t->n_senders, sizeof *t->senders, fy_compare_u32);
    FY_TRY(
        FY_GROW(t->flows, t->capacity, t->n + t->n_senders, "the traffic of a report", t->error));
    for (uint32_t i = 0; i < t->n_senders; i++) {
        uint32_t from = t->senders[i];
        t->flows[t->n++] = (flow){.from = from, .to = t->to, .bytes = t->row[from]};
        t->row[from] = 0;
    }
    t->n_senders = 0;
    return FERRY_OK;
}

static ferry_status add_flow(flow_table *t, uint32_t from, uint32_t to, uint64_t bytes)
{
    if (to != t->to) {
        FY_TRY(end_row(t));
        t->to = to;
    }
    if (t->row[from] == 0) {
        t->senders[t->n_senders++] = from;
    }
    t->row[from] += bytes;
    return FERRY_OK;
}

/* Units of so many more ranks. The row at hand has been ended. */
static ferry_status join_units(flow_table *t)
{
    uint32_t times = t->unit == 1 && t->node > 1 ? t->node : 2;
    flow_table joined = *t;
    joined.unit = t->unit * times;
    joined.flows = NULL;
    joined.n = joined.capacity = 0;
    joined.to = 0;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < t->n && status == FERRY_OK; i++) {
        const flow *f = &t->flows[i];
        status = add_flow(&joined, f->from / times, f->to / times, f->bytes);
    }
    FY_THEN(status, end_row(&joined));
    fy_free(t->flows);
    *t = joined;
    return status;
}

static ferry_status take_move(void *context, const ferry_move *move)
{
    flow_table *t = context;
    if (move->from == move->to || move->bytes == 0) {
        return FERRY_OK;
    }
    FY_TRY(add_flow(t, move->from / t->unit, move->to / t->unit, move->bytes));
    if (t->n <= 4 * (size_t)MOST_FLOWS) {
        return FERRY_OK;
    }
    /* The row at hand goes on afterwards, in the wider unit: ended early, it would be two. */
    uint32_t to = t->to, last = t->unit;
    FY_TRY(end_row(t));
    FY_TRY(join_units(t));
    to = to * last / t->unit;
    while (t->n > 0 && t->flows[t->n - 1].to == to) {
        const flow *f = &t->flows[--t->n];
        FY_TRY(add_flow(t, f->from, f->to, f->bytes));
    }
    t->to = to;
    return FERRY_OK;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The distinct numbers of bytes, upwards: there are few, for layouts are regular. */
static ferry_status list_sizes(const flow_table *t, uint64_t **sizes_out, size_t *n_out,
                               ferry_error *error)
{
    uint64_t *sizes = fy_alloc(t->n + 1, sizeof *sizes);
    FY_TRY(fy_check_memory(sizes != NULL, "the traffic of a report", error));
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        sizes[i] = t->flows[i].bytes;
    }
    fy_sort(sizes, t->n, sizeof *sizes, compare_u64);
    for (size_t i = 0; i < t->n; i++) {
        if (kept == 0 || sizes[kept - 1] != sizes[i]) {
            sizes[kept++] = sizes[i];
        }
    }
    *sizes_out = sizes;
    *n_out = kept;
    return FERRY_OK;
}

/* Of each receiver the number of its senders; of each of these the step to it, and its size. */
static void pack_rows(const flow_table *t, const uint64_t *sizes, size_t n_sizes, fy_packed *packed)
{
    uint32_t n_units = (t->n_ranks - 1) / t->unit + 1;
    size_t at = 0;
    for (uint32_t to = 0; to < n_units; to++) {
        size_t end = at;
        uint32_t before = 0;
        while (end < t->n && t->flows[end].to == to) {
            end++;
        }
        fy_packed_add(packed, end - at);
        for (; at < end; at++) {
            const flow *f = &t->flows[at];
            FY_BISECT(size_t, number, 0, n_sizes, middle, sizes[middle] < f->bytes);
            fy_packed_add(packed, f->from - before);
            fy_packed_add(packed, number);
            before = f->from;
        }
    }
}

static ferry_status write_flows(const flow_table *t, fy_writer *w, ferry_error *error)
{
    uint64_t *sizes = NULL;
    size_t n_sizes = 0;
    fy_packed packed = {0}, dictionary = {0};
    FY_TRY(list_sizes(t, &sizes, &n_sizes, error));
    for (size_t i = 0; i < n_sizes; i++) {
        fy_packed_add(&dictionary, sizes[i]);
    }
    pack_rows(t, sizes, n_sizes, &packed);
    fy_free(sizes);
    fy_report_number(w, ",\n\"flows\":{\"unit\":", t->unit);
    fy_report_number(w, ",\"pairs\":", t->n);
    ferry_status status = fy_packed_write(&dictionary, w, ",\"sizes\":", error);
    ferry_status packing = fy_packed_write(&packed, w, ",\"rows\":", error);
    fy_write_text(w, "}");
    return status == FERRY_OK ? packing : status;
}

ferry_status fy_report_write_flows(const ferry_plan *plan, fy_writer *writer, ferry_error *error)
{
    const fy_cluster *cluster = &plan->problem.cluster;
    uint32_t n_ranks = plan->problem.n_ranks;
    flow_table t = {.n_ranks = n_ranks,
                    .node = cluster->present ? cluster->ranks_per_node : 1,
                    .unit = 1,
                    .error = error};
    t.row = fy_alloc_zeroed(n_ranks, sizeof *t.row);
    t.senders = fy_alloc(n_ranks, sizeof *t.senders);
    ferry_status status =
        fy_check_memory(t.row != NULL && t.senders != NULL, "the traffic of a report", error);
    FY_THEN(status, ferry_plan_visit(plan, FERRY_ALL_RANKS, take_move, &t, NULL, error));
    FY_THEN(status, end_row(&t));
    while (status == FERRY_OK && t.n > MOST_FLOWS) {
        status = join_units(&t);
    }
    FY_THEN(status, write_flows(&t, writer, error));
    fy_free(t.flows);
    fy_free(t.row);
    fy_free(t.senders);
    return status;
}
