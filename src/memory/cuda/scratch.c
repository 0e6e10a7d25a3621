/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/scratch.h"

#include "memory/cuda/reaper.h"

/* Allocations begin at multiples of 256. */
bool fy_cuda_scratch_of(fy_exec_queue *queue, fy_cuda_scratch *scratch_out)
{
    if (queue->scratch == 0 &&
        fy_cuda.cuMemAlloc(&queue->scratch, FY_CUDA_SCRATCH_BYTES) != CUDA_SUCCESS) {
        queue->scratch = 0;
        return false;
    }
    scratch_out->pattern = queue->scratch;
    scratch_out->packed = scratch_out->pattern + FY_CUDA_PATTERN_BYTES;
    scratch_out->sums = scratch_out->packed + FY_CUDA_PACKED_BYTES;
    scratch_out->scales = scratch_out->sums + FY_CUDA_SUMS_BYTES;
    return true;
}

bool fy_cuda_scratch_give_back(const fy_cuda_device *device)
{
    bool is_any = false;
    for (CUdeviceptr one; (one = fy_cuda_take_scratch(device)) != 0; is_any = true) {
        fy_cuda_reap_later(
            &(fy_cuda_grave){.device = device->number, .given = one, .end = fy_cuda.cuMemFree});
    }
    return is_any;
}
