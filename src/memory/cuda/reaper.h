/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_REAPER_H
#define FY_MEMORY_CUDA_REAPER_H

#include "memory/cuda/device.h"

/*
 * Ends device memory with `end`, a call of the driver's: at once where no queue of the device is
 * busy, else on a thread of its own, when what was on the queues at this call is done. may_go, if
 * there is one, is asked with base just before: false, and the memory stays.
 */
typedef struct fy_cuda_grave {
    int32_t device;
    CUdeviceptr given;
    CUresult (*end)(CUdeviceptr given);
    void *base;
    bool (*may_go)(const void *base);
} fy_cuda_grave;

void fy_cuda_reap(const fy_cuda_grave *one);
/* On the thread in any case: streams that are no queue's may wait, too. */
void fy_cuda_reap_later(const fy_cuda_grave *one);

/* Waits a moment for memory that is about to be given back: whether some was. */
bool fy_cuda_await_reaper(void);

#endif
