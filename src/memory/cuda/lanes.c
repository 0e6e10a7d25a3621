/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Programs of lanes: one kernel for a call, with a block of threads for each lane. */
#include "exec/exec.h"

#include "memory/cuda/late.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/watch.h"

#include <string.h>

typedef struct late_call {
    fy_cuda_late late;
    uint64_t number; /* of the mark behind it */
    fy_lanes_call call;
} late_call;

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

/*
 * A mark says when the meeting is over, and no host function: what comes behind the kernel would
 * wait for that.
 */
static ferry_status launch(fy_exec_queue *queue, const late_call *one, ferry_error *error)
{
    FY_TRY(check_tensors(queue, &one->call, error));
    uint64_t n_threads = (uint64_t)one->call.n_lanes * FY_CUDA_THREADS;
    uint64_t last = fy_cuda_meets_until(queue, one->number);
    ferry_status status = fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_lanes,
                                         &one->call, n_threads, 1, error);
    if (status == FERRY_OK) {
        queue->n_issued++;
        status = fy_cuda_put_mark(queue, one->number, error);
    }
    if (status != FERRY_OK) { /* where it was launched the queue has failed: nobody hears its end */
        (void)fy_cuda_meets_until(queue, last);
    }
    return status;
}

static ferry_status perform_call(fy_exec_queue *queue, const fy_cuda_late *late, ferry_error *error)
{
    uint64_t before;
    FY_TRY(fy_cuda_begin_sound(queue, &before, error));
    return fy_cuda_end(queue, before, launch(queue, (const late_call *)late, error), error);
}

ferry_status fy_cuda_run_lanes(fy_exec_queue *queue, const fy_lanes_call *call, ferry_error *error)
{
    pthread_mutex_lock(&queue->calls);
    const late_call one = {
        .late = {.perform = perform_call}, .number = queue->n_marks + 1, .call = *call};
    ferry_status status = fy_cuda_do(queue, &one.late, sizeof one, error);
    queue->n_marks += status == FERRY_OK;
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
