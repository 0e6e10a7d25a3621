/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Programs of lanes: one kernel for a call, with a block of threads for each lane. */
#include "exec/exec.h"

#include "base/alloc.h"
#include "memory/cuda/late.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/watch.h"

#include <string.h>

typedef struct late_call {
    fy_cuda_late late;
    fy_lanes_call call;
} late_call;

static void end_meeting(fy_cuda_job *job, bool failed)
{
    (void)job;
    (void)failed;
    fy_cuda_meeting_ends();
}

/* Tensors are memory of the device's own, of its primary context, and not freed. Entered. */
static ferry_status check_tensors(const fy_exec_queue *queue, const fy_lanes_call *call,
                                  ferry_error *error)
{
    const uint64_t tensors[] = {call->in, call->out};
    for (size_t i = 0; i < 2; i++) {
        fy_cuda_reach reach;
        const void *base = (const void *)(uintptr_t)tensors[i];
        FY_TRY(fy_cuda_reach_of(queue->device, base, 0, 1, queue->is_late, &reach, error));
        if (reach == FY_CUDA_PAGEABLE) {
            return fy_fail(error, FERRY_ERR_MISUSE, "%p is no memory that a kernel reaches", base);
        }
    }
    return FERRY_OK;
}

static ferry_status launch(fy_exec_queue *queue, const fy_lanes_call *call, ferry_error *error)
{
    FY_TRY(check_tensors(queue, call, error));
    uint64_t n_threads = (uint64_t)call->n_lanes * FY_CUDA_THREADS;
    fy_cuda_job *job = fy_alloc_zeroed(1, sizeof *job);
    FY_TRY(fy_check_memory(job != NULL, "a call by a kernel", error));
    fy_cuda_meeting_begins();
    ferry_status status = fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_lanes,
                                         call, n_threads, 1, error);
    if (status != FERRY_OK) {
        fy_cuda_meeting_ends();
        fy_free(job);
        return status;
    }
    queue->n_issued++;
    return fy_cuda_add_job(queue, job, end_meeting, error);
}

static ferry_status perform_call(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    const fy_lanes_call *call = &((const late_call *)late)->call;
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    return fy_cuda_end(queue, before, launch(queue, call, error), error);
}

ferry_status fy_cuda_run_lanes(fy_exec_queue *queue, const fy_lanes_call *call, ferry_error *error)
{
    const late_call one = {.late = {.perform = perform_call}, .call = *call};
    pthread_mutex_lock(&queue->calls);
    ferry_status status = fy_cuda_do(queue, &one.late, sizeof one, error);
    pthread_mutex_unlock(&queue->calls);
    return status;
}

ferry_status fy_cuda_most_lanes(int32_t number, uint32_t *n_out, uint64_t *identity_out,
                                ferry_error *error)
{
    const fy_cuda_device *device;
    CUuuid uuid;
    uint64_t halves[2];
    FY_TRY(fy_cuda_enter(number, &device, error));
    ferry_status status = fy_cuda_uuid_of(number, &uuid, error);
    if (status != FERRY_OK) {
        fy_cuda_leave();
        return status;
    }
    memcpy(halves, uuid.bytes, sizeof halves);
    *identity_out = halves[0] ^ halves[1];
    *n_out = device->n_processors * device->n_blocks[FY_NUMBER_OF_fy_cuda_lanes];
    fy_cuda_leave();
    return FERRY_OK;
}

/*
 * Pages stay pinned when they are given back: to unpin one the driver waits for all streams, and a
 * kernel of another rank may wait for the one that gives it back.
 */
typedef struct page {
    struct page *next;
} page;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static page *pages;

static ferry_status make_page(void **page_out, ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(fy_cuda_any_used(), &device, error));
    ferry_status status = fy_cuda_pinned_alloc(FY_LANES_PAGE_BYTES, page_out, error);
    fy_cuda_leave();
    return status;
}

ferry_status fy_cuda_lanes_take(fy_exec_queue *queue, void **page_out, ferry_error *error)
{
    FY_TRY(fy_cuda_queue_meets(queue, error));
    pthread_mutex_lock(&lock);
    page *one = pages;
    pages = one != NULL ? one->next : NULL;
    pthread_mutex_unlock(&lock);
    *page_out = one;
    return one != NULL ? FERRY_OK : make_page(page_out, error);
}

void fy_cuda_lanes_give(void *given)
{
    page *one = given;
    pthread_mutex_lock(&lock);
    one->next = pages;
    pages = one;
    pthread_mutex_unlock(&lock);
}
