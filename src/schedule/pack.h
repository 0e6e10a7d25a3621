/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_PACK_H
#define FY_SCHEDULE_PACK_H

#include "schedule/schedule.h"

#include <stddef.h>
#include <stdint.h>

/* The most batches of one rank in one direction: rounds are numbered with 32 bits. */
#define FY_MAX_DEGREE ((uint64_t)INT32_MAX)

typedef struct fy_pair_segment {
    uint64_t task; /* its index in the tasks that were packed */
    uint64_t segment_index;
    uint64_t first_byte; /* of the task */
    uint64_t bytes;
} fy_pair_segment;

typedef struct fy_pair_batch {
    uint64_t first_segment;
    uint64_t bytes;
    uint32_t n_segments;
} fy_pair_batch;

/* The batches of any number of pairs, one behind another. All zero is empty. */
typedef struct fy_pair_batches {
    fy_pair_segment *segments;
    size_t n_segments, segment_capacity;
    fy_pair_batch *batches;
    size_t n_batches, batch_capacity;
    struct fy_pair_run *runs; /* kept between calls for its memory alone */
    size_t run_capacity;
} fy_pair_batches;

/*
 * Cuts the tasks of a pair into segments (schedule/segment.h) and appends them in batches of at
 * most slot_bytes and at most max_tasks (not 0) segments: segments by size, largest first, then by
 * task id and segment index; a batch ends where the next segment does not fit. So the outcome does
 * not depend on the order of the tasks. Linear in the segments, and a sort of the tasks.
 *
 * Fails as fy_cut_task does; FERRY_ERR_INVALID_INPUT for two tasks of one id; FERRY_ERR_LIMIT where
 * the tasks' sizes add up beyond 64 bits or the batches to more than FY_MAX_DEGREE. from and to
 * appear in sentences only. On failure the batches are as they were.
 */
ferry_status fy_pack_pair(uint32_t from, uint32_t to, const fy_task *tasks, size_t n_tasks,
                          uint64_t slot_bytes, uint32_t max_tasks, fy_pair_batches *batches,
                          ferry_error *error);

void fy_pair_batches_cleanup(fy_pair_batches *batches);

#endif
