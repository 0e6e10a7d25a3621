/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_REFERENCE_SUMMARIES_H
#define FY_SCHEDULE_REFERENCE_SUMMARIES_H

#include "base/bytes.h"
#include "base/status.h"
#include "schedule/reference_batches.h"
#include "schedule/reference_workloads.h"

#include <ferry/reference.h>

#include <stddef.h>

typedef struct fy_summary_segment {
    ferry_reference_segment_id id;
    uint64_t bytes;
} fy_summary_segment;

typedef struct fy_summary {
    uint32_t from;
    uint32_t to;
    uint32_t index;
    uint32_t n_segments;
    size_t first_segment;
    uint64_t bytes;
} fy_summary;

struct ferry_reference_summaries {
    fy_summary *items; /* by (from, to, index) */
    size_t n_items, item_capacity;
    fy_summary_segment *segments;
    size_t n_segments, segment_capacity;
};

/* The whole world's batches as far as they are read: the one that a summary must be of. */
typedef struct fy_announced {
    const ferry_reference_batches *batches; /* NULL: nothing was announced */
    size_t at;
} fy_announced;

/* What a summary may hold, equal on all ranks. */
typedef struct fy_summary_limits {
    uint32_t n_ranks;
    uint64_t slot_bytes;
    uint64_t max_tasks;
} fy_summary_limits;

ferry_status fy_summaries_create(ferry_reference_summaries **summaries_out, ferry_error *error);

/* Packs the summaries of every batch that goes to another rank. */
void fy_summaries_pack(const ferry_reference_workloads *workloads, fy_pack *out);

/*
 * Appends what a rank packed; senders come in ascending order. The bytes are not trusted:
 * FERRY_ERR_EXCHANGE where they are cut short, name no rank, go on behind their end, exceed the
 * limits, do not add up or are not those announced. The sentence names the sender.
 */
ferry_status fy_summaries_read(ferry_reference_summaries *summaries, uint32_t from,
                               const fy_summary_limits *limits, fy_announced *announced,
                               fy_reader *in, ferry_error *error);

/*
 * Whether the segments that a rank receives are distinct, for each of its senders. Each rank looks
 * at its own: together they look at all.
 */
ferry_status fy_summaries_check_received(const ferry_reference_summaries *summaries, uint32_t rank,
                                         ferry_error *error);

#endif
