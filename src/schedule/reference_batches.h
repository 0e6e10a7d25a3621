/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_REFERENCE_BATCHES_H
#define FY_SCHEDULE_REFERENCE_BATCHES_H

#include "base/hash.h"
#include "base/status.h"

#include <ferry/reference.h>

#include <stdbool.h>

typedef struct fy_scheduled_batch {
    uint32_t from;
    uint32_t to;
    uint32_t index;
    uint32_t round;
    uint64_t bytes;
} fy_scheduled_batch;

struct ferry_reference_batches {
    uint32_t n_ranks;
    fy_scheduled_batch *items;
    size_t n_batches, capacity;
};

ferry_status fy_scheduled_append(ferry_reference_batches *batches, uint32_t from, uint32_t to,
                                 uint32_t index, uint64_t bytes, ferry_error *error);

/*
 * FERRY_ERR_LIMIT where a rank sends or receives more than FY_MAX_DEGREE batches, or bytes that add
 * up beyond 64 bits.
 */
ferry_status fy_scheduled_check(const ferry_reference_batches *batches, ferry_error *error);

/* Of every batch and its round. */
fy_hash128 fy_scheduled_hash(const ferry_reference_batches *batches);

struct ferry_reference_schedule {
    uint32_t rank;
    uint32_t n_rounds;
    uint64_t *begin; /* [n_rounds + 1] into batches */
    ferry_reference_batch *batches;
    fy_hash128 digest;
};

/* The part of one rank of batches that have rounds below n_rounds. No digest yet. */
ferry_status fy_reference_schedule_create(const ferry_reference_batches *batches, uint32_t rank,
                                          uint32_t n_rounds,
                                          ferry_reference_schedule **schedule_out,
                                          ferry_error *error);

#endif
