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
    uint64_t number; /* of the mark behind it */
    fy_lanes_call call;
} late_call;

/* Tensors are memory of the device's own, of its primary context, and not freed. */
ferry_status fy_cuda_check_lanes(const fy_exec_queue *queue, const fy_lanes_call *call,
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

ferry_status fy_cuda_launch_lanes(const fy_exec_queue *queue, const fy_lanes_call *call,
                                  ferry_error *error)
{
    return fy_cuda_launch(queue->device, queue->stream, FY_NUMBER_OF_fy_cuda_lanes, call,
                          (uint64_t)call->n_lanes * FY_CUDA_THREADS, 1, error);
}

/*
 * A mark says when the meeting is over, and no host function: what comes behind the kernel would
 * wait for that.
 */
static ferry_status launch(fy_exec_queue *queue, const late_call *one, ferry_error *error)
{
    FY_TRY(fy_cuda_check_lanes(queue, &one->call, error));
    uint64_t last = fy_cuda_meets_until(queue, one->number);
    ferry_status status = fy_cuda_launch_lanes(queue, &one->call, error);
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
    struct page *next; /* of all that there are */
    void *bytes;
    bool is_taken;
} page;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static page *pages;

/* Under the lock. */
static ferry_status make_page(page **page_out, ferry_error *error)
{
    const fy_cuda_device *device;
    page *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "a page of reports", error));
    ferry_status status = fy_cuda_enter(fy_cuda_any_used(), &device, error);
    if (status == FERRY_OK) {
        status = fy_cuda_pinned_alloc(FY_LANES_PAGE_BYTES, &fresh->bytes, error);
        fy_cuda_leave();
    }
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    fresh->next = pages;
    *page_out = pages = fresh;
    return FERRY_OK;
}

static bool runs(const page *one)
{
    const fy_lanes_report *reports =
        (const fy_lanes_report *)((const char *)one->bytes + sizeof(fy_lanes_board));
    bool is_any = false;
    for (uint32_t i = 0; i < FY_LANES_MOST_LANES && !is_any; i++) {
        uint64_t begun = __atomic_load_n(&reports[i].begun, __ATOMIC_ACQUIRE);
        is_any = begun >> 32 != 0 &&
                 (uint32_t)begun != (uint32_t)__atomic_load_n(&reports[i].ended, __ATOMIC_ACQUIRE);
    }
    return is_any;
}

bool fy_cuda_lanes_run(void)
{
    bool run = false;
    pthread_mutex_lock(&lock);
    for (const page *one = pages; one != NULL && !run; one = one->next) {
        run = one->is_taken && runs(one);
    }
    pthread_mutex_unlock(&lock);
    return run;
}

ferry_status fy_cuda_lanes_take(fy_exec_queue *queue, void **page_out, ferry_error *error)
{
    FY_TRY(fy_cuda_queue_meets(queue, error));
    pthread_mutex_lock(&lock);
    page *one = pages;
    while (one != NULL && one->is_taken) {
        one = one->next;
    }
    ferry_status status = one != NULL ? FERRY_OK : make_page(&one, error);
    if (status == FERRY_OK) {
        memset(one->bytes, 0, FY_LANES_PAGE_BYTES);
        one->is_taken = true; /* from here on others look at it */
        *page_out = one->bytes;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void fy_cuda_lanes_give(void *given)
{
    pthread_mutex_lock(&lock);
    page *one = pages;
    while (one->bytes != given) {
        one = one->next;
    }
    one->is_taken = false;
    pthread_mutex_unlock(&lock);
}
