/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SCHEDULED_H
#define FY_SCHEDULE_SCHEDULED_H

#include "base/hash.h"
#include "base/status.h"

#include <ferry/scheduler.h>

#include <stdbool.h>

/* Columns, as the rules take them: batch i is (from[i], to[i], index[i]). */
struct ferry_scheduled_batches {
    uint32_t n_pes;
    size_t n_batches;
    size_t capacities[5];
    uint32_t *from;
    uint32_t *to;
    uint32_t *index;
    uint32_t *iteration;
    uint64_t *bytes;
};

ferry_status fy_scheduled_append(ferry_scheduled_batches *batches, uint32_t from, uint32_t to,
                                 uint32_t index, uint64_t bytes, ferry_error *error);

/*
 * FERRY_ERR_LIMIT where a PE sends or receives more than FY_MAX_DEGREE batches, or bytes that add
 * up beyond 64 bits.
 */
ferry_status fy_scheduled_check(const ferry_scheduled_batches *batches, ferry_error *error);

/* Of every batch and its iteration. */
fy_hash128 fy_scheduled_hash(const ferry_scheduled_batches *batches);

struct ferry_local_schedule {
    uint32_t my_pe;
    uint32_t n_iterations;
    uint64_t *begin; /* [n_iterations + 1] into batches */
    ferry_scheduled_batch *batches;
    fy_hash128 digest;
};

/* The part of one PE of batches that have iterations below n_iterations. No digest yet. */
ferry_status fy_local_schedule_create(const ferry_scheduled_batches *batches, uint32_t my_pe,
                                      uint32_t n_iterations, ferry_local_schedule **schedule_out,
                                      ferry_error *error);

#endif
