/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_PART_H
#define FY_SCHEDULE_PART_H

#include "base/bytes.h"
#include "base/status.h"
#include "schedule/schedule.h"

#include <stdint.h>

/*
 * One rank's part of a schedule as bytes: a hash of what follows; the world, the report and the
 * digest of the whole; the rank's idle time; and its batches with their segments, sent and received
 * ones in one list by (round, from). Both ends of a batch know it by those two numbers.
 */

/* Appends the part of a rank of a whole schedule. */
void fy_part_pack(const ferry_schedule *whole, uint32_t rank, fy_pack *out);

/*
 * Makes the schedule that fy_part_pack packed for a rank. The bytes are not trusted:
 * FERRY_ERR_EXCHANGE where they are not as they were packed, are another rank's, or hold what no
 * schedule does. Memory stays within a small multiple of the bytes that came.
 */
ferry_status fy_part_read(const unsigned char *bytes, size_t n_bytes, uint32_t rank,
                          uint32_t n_ranks, ferry_schedule **part_out, ferry_error *error);

#endif
