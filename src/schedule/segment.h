/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SEGMENT_H
#define FY_SCHEDULE_SEGMENT_H

#include "base/checked.h"
#include "base/status.h"

#include <stdint.h>

/*
 * How a task is cut: segments of full_bytes and one shorter at its end, if need be. full_bytes is
 * the largest number of whole elements that a slot takes, so both ends of a task cut alike from its
 * size, its element and the slot alone. Segment i of task t is (t, i): no two segments share a
 * name.
 */
typedef struct fy_cut {
    uint64_t bytes;
    uint64_t full_bytes;
    uint64_t n_segments;
} fy_cut;

/*
 * FERRY_ERR_INVALID_INPUT for a task of zero bytes, for bytes that are not whole elements, and for
 * a slot that does not take one element; the sentence names the task.
 */
ferry_status fy_cut_task(uint64_t task_id, uint64_t bytes, uint64_t element_bytes,
                         uint64_t slot_bytes, fy_cut *cut_out, ferry_error *error);

/* index < n_segments: no product overflows. */
static inline uint64_t fy_cut_first_byte(const fy_cut *cut, uint64_t index)
{
    return index * cut->full_bytes;
}

static inline uint64_t fy_cut_bytes(const fy_cut *cut, uint64_t index)
{
    return fy_min(cut->full_bytes, cut->bytes - fy_cut_first_byte(cut, index));
}

#endif
