/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_PATCH_H
#define FY_LAYOUT_PATCH_H

#include "base/status.h"
#include "layout/box.h"

/*
 * A box of a tensor and where it lies in one memory or two: element begin + i is place offset +
 * i[0] stride[0] + ... of each. Along a dimension of one element the stride is free, unless it is
 * fixed: the memory has its own.
 */
typedef struct fy_patch {
    fy_box box;
    uint64_t offset[2];
    uint64_t stride[2][FERRY_MAX_DIMS];
    uint32_t fixed[2]; /* a bit for each dimension */
    uint64_t group;    /* only patches of one group may be one */
    uint32_t data;     /* the caller's; that of the first one stays */
} fy_patch;

/*
 * Makes one of every two that are one box in the tensor and in n_memories, until there are none,
 * the last dimension first; *n_inout is how many are left, in no order that matters.
 */
ferry_status fy_patches_join(fy_patch *patches, size_t *n_inout, uint32_t n_dims,
                             uint32_t n_memories, ferry_error *error);

#endif
