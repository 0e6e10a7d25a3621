/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_SUMMARIES_H
#define FY_SERVICE_SUMMARIES_H

#include "base/status.h"
#include "model/roster.h"
#include "schedule/scheduled.h"
#include "schedule/workloads.h"

#include <ferry/scheduler.h>

#include <stddef.h>

typedef struct fy_summary_task {
    ferry_segment_id id;
    uint64_t bytes;
} fy_summary_task;

struct ferry_workload_summary {
    const struct ferry_summaries *summaries;
    uint32_t source;
    uint32_t destination;
    uint32_t batch_index;
    uint32_t n_tasks;
    size_t first_task;
    uint64_t bytes;
};

struct ferry_summaries {
    ferry_workload_summary *items; /* by (source, destination, batch index) */
    size_t n_items, item_capacity;
    fy_summary_task *tasks;
    size_t n_tasks, task_capacity;
};

/* The whole world's batches as far as they are read: the one that a summary must be of. */
typedef struct fy_announced {
    const ferry_scheduled_batches *batches; /* NULL: nothing was announced */
    size_t at;
} fy_announced;

/* What a summary may hold, equal on all ranks. */
typedef struct fy_summary_limits {
    uint32_t n_pes;
    uint64_t slot_bytes;
    uint64_t max_tasks;
} fy_summary_limits;

ferry_status fy_summaries_create(ferry_summaries **summaries_out, ferry_error *error);

/* Packs the summaries of every batch that goes to another PE. */
void fy_summaries_pack(const ferry_workloads *workloads, fy_pack *out);

/*
 * Appends what a source packed; sources come in ascending order. The bytes are not trusted:
 * FERRY_ERR_EXCHANGE where they are cut short, name no PE, go on behind their end, exceed the
 * limits, do not add up or are not those announced. The sentence names the source.
 */
ferry_status fy_summaries_read(ferry_summaries *summaries, uint32_t source,
                               const fy_summary_limits *limits, fy_announced *announced,
                               fy_reader *in, ferry_error *error);

/*
 * Whether the segments that a PE receives are distinct, for each of its senders. Each PE looks at
 * its own: together they look at all.
 */
ferry_status fy_summaries_check_received(const ferry_summaries *summaries, uint32_t my_pe,
                                         ferry_error *error);

#endif
