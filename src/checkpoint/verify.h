/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_VERIFY_H
#define FY_CHECKPOINT_VERIFY_H

#include "checkpoint/reshard.h"

/* One of two checkpoints that are compared: as a whole, and each local tensor with the others. */
typedef struct fy_verify_side {
    const ferry_checkpoint *checkpoint;
    fy_layout_job whole; /* to one rank that has everything */
    fy_layout_job own;   /* sharded: to its own layout */
    fy_files *files;
    fy_checked checked;
    bool has_own;
} fy_verify_side;

typedef struct fy_verify_worker {
    fy_gather whole[2];
    fy_gather own[2];
    char *window[2];
} fy_verify_worker;

typedef struct fy_verify_work {
    fy_verify_side sides[2];
    const ferry_verify_options *options;
    fy_buffers buffers;
    fy_verify_worker *workers;
    uint32_t *twin; /* [tensors of a] their numbers in b */
    uint64_t *digests;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t n_replicas;
    _Atomic bool stops;
    uint64_t total_bytes;
    double began;
} fy_verify_work;

/* Every bit of a tensor of a and its twin. */
ferry_status fy_verify_tensor(fy_verify_work *work, fy_verify_worker *worker, uint32_t tensor,
                              ferry_error *error);

/* Every local tensor of a side, with what the first of those who hold the same has. */
ferry_status fy_verify_replicas(fy_verify_work *work, fy_verify_worker *worker, uint32_t side,
                                uint32_t tensor, ferry_error *error);

/* The first byte in which two memories differ; n_bytes where they do not. */
uint64_t fy_first_difference(const char *a, const char *b, uint64_t n_bytes);

/*
 * An element's value, with its bits: "1.5 (0x3fc0)". Of half bytes, one of the two; of long opaque
 * elements, the bytes from the one that differs.
 */
void fy_format_value(ferry_dtype dtype, const char *element, bool high_half, uint64_t differs_at,
                     char *text, size_t text_bytes);

#endif
