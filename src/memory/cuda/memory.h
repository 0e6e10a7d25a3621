/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_MEMORY_H
#define FY_MEMORY_CUDA_MEMORY_H

#include "memory/cuda/device.h"

/* What a pointer is to a device. */
typedef enum fy_cuda_reach {
    FY_CUDA_OURS,    /* the device's own memory */
    FY_CUDA_PINNED,  /* the host's, which the device can reach */
    FY_CUDA_PAGEABLE /* the host's, which only host functions reach */
} fy_cuda_reach;

/*
 * Of the bytes [begin, end) behind base, in one allocation; of no bytes they are pageable.
 * FERRY_ERR_MISUSE: memory of another device or of another context, and memory that was freed,
 * unless it may be, as of what was given to a queue before. A
 * range that is pinned in parts only is pageable. Entered.
 */
ferry_status fy_cuda_reach_of(const fy_cuda_device *device, const void *base, uint64_t begin,
                              uint64_t end, bool may_be_freed, fy_cuda_reach *reach_out,
                              ferry_error *error);

/* Memory that a host and all devices reach, at one address; on whatever thread. */
ferry_status fy_cuda_pinned_alloc(uint64_t bytes, void **base_out, ferry_error *error);

/* describe.c */
ferry_status fy_cuda_describe(int32_t number, char *text, size_t bytes, ferry_error *error);

extern const fy_memory_kind fy_cuda_memory;

#endif
