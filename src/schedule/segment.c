/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/segment.h"

#include <ferry/reference.h>

ferry_status fy_cut_task(uint64_t task_id, uint64_t bytes, uint64_t element_bytes,
                         uint64_t slot_bytes, fy_cut *cut_out, ferry_error *error)
{
    if (bytes == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu has zero bytes: leave it out, there is nothing to send",
                       (unsigned long long)task_id);
    }
    if (element_bytes == 0 || bytes % element_bytes != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu: %llu bytes are not a whole number of elements of %llu bytes",
                       (unsigned long long)task_id, (unsigned long long)bytes,
                       (unsigned long long)element_bytes);
    }
    if (slot_bytes < element_bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "a slot of %llu bytes takes no element of task %llu, which has %llu bytes: "
                       "slots need at least that",
                       (unsigned long long)slot_bytes, (unsigned long long)task_id,
                       (unsigned long long)element_bytes);
    }
    uint64_t full = slot_bytes - slot_bytes % element_bytes;
    *cut_out = (fy_cut){bytes, full, fy_ceil_div(bytes, full)};
    return FERRY_OK;
}

ferry_status ferry_reference_segment_count(uint64_t bytes, uint64_t element_bytes,
                                           uint64_t slot_bytes, uint64_t *n_out, ferry_error *error)
{
    fy_cut cut = {0};
    FY_TRY(fy_check_use(n_out != NULL, "counting segments needs a place for the count", error));
    FY_TRY(fy_cut_task(0, bytes, element_bytes, slot_bytes, &cut, error));
    *n_out = cut.n_segments;
    return FERRY_OK;
}

ferry_status ferry_reference_segment_at(uint64_t bytes, uint64_t element_bytes, uint64_t slot_bytes,
                                        uint64_t segment_index, uint64_t *first_byte_out,
                                        uint64_t *bytes_out, ferry_error *error)
{
    fy_cut cut = {0};
    FY_TRY(fy_cut_task(0, bytes, element_bytes, slot_bytes, &cut, error));
    if (first_byte_out == NULL || bytes_out == NULL || segment_index >= cut.n_segments) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "segment %llu of %llu: a segment that is there and two places are needed",
                       (unsigned long long)segment_index, (unsigned long long)cut.n_segments);
    }
    *first_byte_out = fy_cut_first_byte(&cut, segment_index);
    *bytes_out = fy_cut_bytes(&cut, segment_index);
    return FERRY_OK;
}
