/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_REAPER_H
#define FY_MEMORY_CUDA_REAPER_H

#include "memory/cuda/device.h"

/*
 * Frees device memory: at once where no queue of the device is busy, else on a thread of its own,
 * when what was on the queues at this call is done. `forget`, if there is one, is called with base
 * just before.
 */
void fy_cuda_reap(int32_t device, CUdeviceptr given, void *base, void (*forget)(const void *base));

/* Waits a moment for memory that is about to be given back: whether some was. */
bool fy_cuda_await_reaper(void);

#endif
