/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_SCRATCH_H
#define FY_MEMORY_CUDA_SCRATCH_H

#include "memory/cuda/queue.h"

/*
 * A little memory of the device's that a queue has for itself: all that uses it comes in the
 * stream's order, so what one verb leaves there the next one may write over.
 */
typedef struct fy_cuda_scratch {
    CUdeviceptr pattern; /* bytes that come again and again in a copy */
    CUdeviceptr packed;  /* what is hashed and does not lie side by side */
    CUdeviceptr sums;    /* of blocks of digests */
    CUdeviceptr scales;  /* of a cast's target, and behind them its source's */
} fy_cuda_scratch;

enum {
    FY_CUDA_PATTERN_BYTES = 4096,
    FY_CUDA_PACKED_BYTES = 2 << 20,
    FY_CUDA_SUMS_BYTES = 4 << 20,     /* of 64 MiB */
    FY_CUDA_SCALES_BYTES = 256 << 10, /* of either side */
    FY_CUDA_SCRATCH_BYTES =
        FY_CUDA_PATTERN_BYTES + FY_CUDA_PACKED_BYTES + FY_CUDA_SUMS_BYTES + 2 * FY_CUDA_SCALES_BYTES
};

/*
 * False: the device has no memory left for it. It stays with the queue when that is closed, and so
 * for the next one: to free it the driver waits for all streams, and a caller's may wait for what
 * he does after a call of ferry's. Entered.
 */
bool fy_cuda_scratch_of(fy_exec_queue *queue, fy_cuda_scratch *scratch_out);
/* That of closed queues, by the reaper's thread, for a device without memory. False: none kept. */
bool fy_cuda_scratch_give_back(const fy_cuda_device *device);

#endif
