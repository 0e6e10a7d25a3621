/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/graph.h"

#include "base/alloc.h"
#include "memory/cuda/memory.h"

/*
 * Each that the host makes has its word for good: a device that is lost may leave somebody behind
 * who sets it. A kernel has none.
 */
typedef struct captured {
    struct captured *next, *next_spare; /* of all with a word that there are */
    _Atomic uint64_t *over;             /* 1: nobody waits for it; NULL: a kernel */
    fy_graph_call call;
    _Atomic bool is_void; /* the graph has no wait for it, so nothing is begun */
} captured;

enum { PAGE_BYTES = 4096, WORD_BYTES = 64, PAGE_WORDS = PAGE_BYTES / WORD_BYTES };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static captured *all, *spares;
static size_t n_used;

/* Under the lock. Entered. */
static ferry_status make_page(ferry_error *error)
{
    void *page = NULL;
    captured *fresh = fy_alloc_zeroed(PAGE_WORDS, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "calls of a graph", error));
    ferry_status status = fy_cuda_pinned_alloc(PAGE_BYTES, &page, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    for (size_t i = 0; i < PAGE_WORDS; i++) {
        fresh[i].over = (_Atomic uint64_t *)((char *)page + i * WORD_BYTES);
        atomic_store(fresh[i].over, 1);
        fresh[i].next = all;
        fresh[i].next_spare = spares;
        all = spares = &fresh[i];
    }
    return FERRY_OK;
}

static ferry_status take_kernel(const fy_graph_call *call, captured **one_out, ferry_error *error)
{
    captured *one = fy_alloc_zeroed(1, sizeof *one);
    FY_TRY(fy_check_memory(one != NULL, "calls of a graph", error));
    one->call = *call;
    pthread_mutex_lock(&lock);
    n_used++;
    pthread_mutex_unlock(&lock);
    *one_out = one;
    return FERRY_OK;
}

static ferry_status take(const fy_graph_call *call, captured **one_out, ferry_error *error)
{
    pthread_mutex_lock(&lock);
    ferry_status status = spares != NULL ? FERRY_OK : make_page(error);
    captured *one = spares;
    if (status == FERRY_OK) {
        spares = one->next_spare;
        n_used++;
        one->call = *call;
        atomic_store(&one->is_void, false);
        *one_out = one;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* No graph has it any more. On a thread of the driver's, or the caller's. */
static void CUDA_CB end_captured(void *context)
{
    captured *one = context;
    bool is_kernel = one->over == NULL, is_free = one->call.gone(one->call.context);
    pthread_mutex_lock(&lock);
    n_used--;
    if (is_free && !is_kernel) {
        one->next_spare = spares;
        spares = one;
    }
    pthread_mutex_unlock(&lock);
    if (is_kernel) {
        fy_free(one);
    }
}

static void CUDA_CB launch_captured(void *context)
{
    const captured *one = context;
    if (!atomic_load(&one->is_void)) {
        one->call.launched(one->call.context, one->over);
    }
}

bool fy_cuda_graphs_exist(void)
{
    pthread_mutex_lock(&lock);
    bool exist = n_used > 0;
    pthread_mutex_unlock(&lock);
    return exist;
}

bool fy_cuda_graphs_wait(void)
{
    bool wait = false;
    pthread_mutex_lock(&lock);
    for (const captured *one = all; one != NULL && !wait; one = one->next) {
        wait = atomic_load(one->over) == 0;
    }
    pthread_mutex_unlock(&lock);
    return wait;
}

/* A legacy stream beside a capture cannot even be asked about it. */
bool fy_cuda_is_in_capture(const fy_exec_queue *queue)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    if (queue->stream == queue->own) {
        return false;
    }
    CUresult result = fy_cuda.cuStreamIsCapturing(queue->stream, &capture);
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
           (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE);
}

ferry_status fy_cuda_ask_capture(const fy_exec_queue *queue, bool *is_captured_out,
                                 ferry_error *error)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    *is_captured_out = false;
    if (queue->stream == queue->own) {
        return FERRY_OK;
    }
    FY_TRY(fy_cuda_check(fy_cuda.cuStreamIsCapturing(queue->stream, &capture),
                         "asking whether a stream is captured", error));
    *is_captured_out = capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return capture != CU_STREAM_CAPTURE_STATUS_INVALIDATED
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "the capture of this stream has failed by an earlier call: end it, and "
                         "begin another one");
}

ferry_status fy_cuda_is_captured(fy_exec_queue *queue, bool *is_captured_out, ferry_error *error)
{
    const fy_cuda_device *device;
    *is_captured_out = false;
    if (atomic_load(&queue->is_dead)) {
        return FERRY_OK;
    }
    FY_TRY(fy_cuda_enter(queue->device->number, &device, error));
    ferry_status status = fy_cuda_ask_capture(queue, is_captured_out, error);
    fy_cuda_leave();
    return status;
}

/* From here on the graph has it. Where this fails it goes at once. */
static ferry_status give_to_graph(const fy_exec_queue *queue, captured *one, ferry_error *error)
{
    CUstreamCaptureStatus capture;
    CUgraph graph = NULL;
    CUuserObject object = NULL;
    CUresult result =
        fy_cuda.cuStreamGetCaptureInfo(queue->stream, &capture, NULL, &graph, NULL, NULL, NULL);
    if (result == CUDA_SUCCESS && graph == NULL) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuUserObjectCreate(&object, one, end_captured, 1,
                                            CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    }
    if (result != CUDA_SUCCESS) {
        end_captured(one);
        return fy_cuda_fail(error, result, "asking for the graph of a capture");
    }
    result = fy_cuda.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (result != CUDA_SUCCESS) {
        (void)fy_cuda.cuUserObjectRelease(object, 1);
    }
    return fy_cuda_check(result, "giving a call to a graph", error);
}

static ferry_status put(const fy_exec_queue *queue, captured *one, ferry_error *error)
{
    CUresult result = fy_cuda.cuLaunchHostFunc(queue->stream, launch_captured, one);
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuStreamWaitValue64(
            queue->stream, (CUdeviceptr)(uintptr_t)(void *)one->over, 1, CU_STREAM_WAIT_VALUE_GEQ);
    }
    atomic_store(&one->is_void, result != CUDA_SUCCESS);
    return fy_cuda_check(result, "capturing a call in a graph", error);
}

static ferry_status check_driver(ferry_error *error)
{
    bool has_all = fy_cuda.cuStreamGetCaptureInfo != NULL && fy_cuda.cuUserObjectCreate != NULL &&
                   fy_cuda.cuUserObjectRelease != NULL && fy_cuda.cuGraphRetainUserObject != NULL;
    return has_all ? FERRY_OK
                   : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                             "a capture in a CUDA graph needs a driver of CUDA 12.3 or later: end "
                             "the capture, and make the calls without one");
}

/* With what a graph has of the call; entered if this returns FERRY_OK, and else it is gone. */
static ferry_status begin(fy_exec_queue *queue, const fy_graph_call *call, bool is_kernel,
                          captured **one_out, ferry_error *error)
{
    const fy_cuda_device *device;
    ferry_status status = check_driver(error);
    FY_THEN(status, fy_cuda_enter(queue->device->number, &device, error));
    if (status != FERRY_OK) {
        (void)call->gone(call->context);
        return status;
    }
    status = is_kernel ? take_kernel(call, one_out, error) : take(call, one_out, error);
    if (status != FERRY_OK) {
        (void)call->gone(call->context);
    }
    FY_THEN(status, give_to_graph(queue, *one_out, error));
    if (status != FERRY_OK) {
        fy_cuda_leave();
    }
    return status;
}

ferry_status fy_cuda_capture(fy_exec_queue *queue, const fy_graph_call *call, ferry_error *error)
{
    captured *one = NULL;
    FY_TRY(begin(queue, call, false, &one, error));
    ferry_status status = put(queue, one, error);
    fy_cuda_leave();
    return status;
}

ferry_status fy_cuda_capture_lanes(fy_exec_queue *queue, const fy_lanes_call *lanes,
                                   const fy_graph_call *call, ferry_error *error)
{
    captured *one = NULL;
    FY_TRY(begin(queue, call, true, &one, error));
    ferry_status status = fy_cuda_check_lanes(queue, lanes, error);
    FY_THEN(status, fy_cuda_launch_lanes(queue, lanes, error));
    fy_cuda_leave();
    return status;
}
