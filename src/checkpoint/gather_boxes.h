/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_GATHER_BOXES_H
#define FY_CHECKPOINT_GATHER_BOXES_H

#include "checkpoint/boxed.h"
#include "checkpoint/gather.h"

/* A box that a source rank has all of, in the dimensions of a route. */
typedef struct fy_boxed_read {
    uint32_t source; /* the tensor of the problem */
    uint32_t rank;
    uint32_t n_dims;
    uint32_t src_pad, dst_pad;
    const uint64_t *src_begin; /* in the source tensor */
    const uint64_t *dst_begin; /* in the destination's shard */
    const uint64_t *length;
} fy_boxed_read;

/* Reads it into the window, from whichever of the rank's parameters have it. */
ferry_status fy_gather_read_boxes(fy_gather *gather, const fy_window *window,
                                  const fy_boxed_read *read, char *to, ferry_error *error);

#endif
