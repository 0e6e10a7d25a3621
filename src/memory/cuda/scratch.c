/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/scratch.h"

#include "memory/cuda/reaper.h"

/* Kept for the next queue: memory is given back when the device is idle, and its free waits for
 * that. */
enum { MOST_KEPT = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const fy_cuda_device *device;
    CUdeviceptr scratch;
} kept[MOST_KEPT]; /* scratch 0: a free place */

/* One that is kept; 0: there is none. */
static CUdeviceptr take(const fy_cuda_device *device)
{
    CUdeviceptr found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_KEPT && found == 0; i++) {
        if (kept[i].device == device) {
            found = kept[i].scratch;
            kept[i].scratch = found == 0 ? kept[i].scratch : 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool keep(const fy_cuda_device *device, CUdeviceptr scratch)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MOST_KEPT && kept[i].scratch != 0) {
        i++;
    }
    if (i < MOST_KEPT) {
        kept[i].device = device;
        kept[i].scratch = scratch;
    }
    pthread_mutex_unlock(&lock);
    return i < MOST_KEPT;
}

/* Allocations begin at multiples of 256. */
bool fy_cuda_scratch_of(fy_exec_queue *queue, fy_cuda_scratch *scratch_out)
{
    CUdeviceptr given = queue->scratch != 0 ? queue->scratch : take(queue->device);
    if (given == 0 && fy_cuda.cuMemAlloc(&given, FY_CUDA_SCRATCH_BYTES) != CUDA_SUCCESS) {
        return false;
    }
    queue->scratch = given;
    scratch_out->pattern = given;
    scratch_out->packed = scratch_out->pattern + FY_CUDA_PATTERN_BYTES;
    scratch_out->sums = scratch_out->packed + FY_CUDA_PACKED_BYTES;
    scratch_out->scales = scratch_out->sums + FY_CUDA_SUMS_BYTES;
    return true;
}

void fy_cuda_scratch_end(const fy_cuda_device *device, CUdeviceptr scratch, bool is_kept)
{
    if (scratch != 0 && is_kept && keep(device, scratch)) {
        return;
    }
    while (scratch != 0 || (!is_kept && (scratch = take(device)) != 0)) {
        fy_cuda_reap(
            &(fy_cuda_grave){.device = device->number, .given = scratch, .end = fy_cuda.cuMemFree});
        scratch = 0;
    }
}
