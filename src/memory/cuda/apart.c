/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/apart.h"

#include "memory/cuda/graph.h"
#include "memory/cuda/watch.h"

#include <time.h>

/*
 * A busy machine may keep a stream from going on for longer than it is looked at: then it is given
 * up for nothing, which costs no more than a stream.
 */
enum {
    LOOK_NS = 3000000,
    LONG_LOOK_NS = 40000000,
    BUSY_NS = 200000000,
    MOST_STREAMS = 12,
    MOST_SPARES = 64
};

static uint64_t look_ns = LOOK_NS; /* of the list's lock */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static CUdeviceptr address_of(const void *pinned)
{
    return (CUdeviceptr)(uintptr_t)pinned;
}

/* Before others where the device is busy; callers' streams that wait hold them up all the same. */
ferry_status fy_cuda_make_stream(CUstream *stream_out, ferry_error *error)
{
    int least = 0, greatest = 0;
    FY_TRY(fy_cuda_check(fy_cuda.cuCtxGetStreamPriorityRange(&least, &greatest),
                         "asking for the priorities of streams", error));
    return fy_cuda_check(fy_cuda.cuStreamCreateWithPriority(stream_out, CU_STREAM_NON_BLOCKING,
                                                            greatest < 0 ? -1 : 0),
                         "making a stream", error);
}

/* From here on the stream waits; in a capture it may not. */
static bool shut(fy_exec_queue *waiting)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (fy_cuda.cuStreamIsCapturing(waiting->stream, &capture) != CUDA_SUCCESS ||
        capture != CU_STREAM_CAPTURE_STATUS_NONE) {
        return false;
    }
    return fy_cuda.cuStreamWaitValue64(waiting->stream, address_of(&waiting->words->trial),
                                       waiting->n_trials + 1,
                                       CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
}

static void open_again(fy_exec_queue *waiting)
{
    atomic_store(&waiting->words->trial, ++waiting->n_trials);
}

static bool await_probe(const fy_exec_queue *own, uint64_t most_ns)
{
    uint64_t end = now_ns() + most_ns;
    for (uint32_t i = 0; atomic_load(&own->words->probe) < own->n_probes; i++) {
        if (now_ns() > end) {
            return false;
        }
        fy_cuda_nap(i);
    }
    return true;
}

/* Whether it goes on. A failure is found by whoever uses it. */
static bool goes_on(fy_exec_queue *own, CUstream stream)
{
    return fy_cuda.cuStreamWriteValue64(stream, address_of(&own->words->probe), ++own->n_probes,
                                        CU_STREAM_WRITE_VALUE_DEFAULT) != CUDA_SUCCESS ||
           await_probe(own, look_ns);
}

/* Streams that were given up: others may find that they go on. Of the list's lock. */
static struct {
    const fy_cuda_device *device;
    CUstream stream;
} spares[MOST_SPARES];
static size_t n_spares;

static void keep_spare(const fy_cuda_device *device, CUstream stream)
{
    if (n_spares < MOST_SPARES) {
        spares[n_spares].device = device;
        spares[n_spares++].stream = stream;
    }
}

static bool find_spare(fy_exec_queue *own, CUstream *stream_out)
{
    for (size_t i = 0; i < n_spares; i++) {
        if (spares[i].device == own->device && goes_on(own, spares[i].stream)) {
            *stream_out = spares[i].stream;
            spares[i] = spares[--n_spares];
            return true;
        }
    }
    return false;
}

static const char none_found[] = "no stream was found that goes on while others wait: set "
                                 "CUDA_DEVICE_MAX_CONNECTIONS=32";

/* *stream_out stays NULL where there is none. */
static ferry_status find_other(fy_exec_queue *own, CUstream *stream_out, ferry_error *error)
{
    if (find_spare(own, stream_out)) {
        return FERRY_OK;
    }
    for (int i = 0; i < MOST_STREAMS && n_spares < MOST_SPARES; i++) {
        CUstream fresh = NULL;
        FY_TRY(fy_cuda_make_stream(&fresh, error));
        if (goes_on(own, fresh)) {
            *stream_out = fresh;
            return FERRY_OK;
        }
        keep_spare(own->device, fresh);
    }
    return FERRY_OK;
}

static bool is_own(const fy_exec_queue *queue, const fy_cuda_device *device)
{
    return queue->device == device && queue->own != NULL &&
           (queue->n_users == 0 || queue->stream == queue->own) && !atomic_load(&queue->is_dead);
}

/* The caller's, or one of kernels that wait for each other. */
static bool may_wait(const fy_exec_queue *queue, const fy_cuda_device *device)
{
    bool is_adopted = queue->n_users > 0 && queue->stream != queue->own;
    return queue->device == device && (is_adopted || queue->meets) && !atomic_load(&queue->is_dead);
}

/* What comes from here on goes on the other stream. */
static void exchange(fy_exec_queue *own)
{
    keep_spare(own->device, own->own);
    own->stream = own->n_users > 0 ? own->other : own->stream;
    own->own = own->other;
    own->other = NULL;
}

/* What is on its old stream is done first; where that takes long it stays with it. */
static void take_other(fy_exec_queue *own)
{
    pthread_mutex_lock(&own->calls);
    uint64_t end = now_ns() + BUSY_NS;
    CUresult state = fy_cuda.cuStreamQuery(own->own);
    for (uint32_t i = 0; state == CUDA_ERROR_NOT_READY && now_ns() < end; i++) {
        fy_cuda_nap(i);
        state = fy_cuda.cuStreamQuery(own->own);
    }
    if (state == CUDA_SUCCESS) {
        exchange(own);
    } else {
        keep_spare(own->device, own->other);
        own->other = NULL;
        own->is_apart = false;
    }
    pthread_mutex_unlock(&own->calls);
}

/* Who calls verbs may be held up in the driver, as all are just now: then false. */
static bool lock_calls(fy_exec_queue *own)
{
    uint64_t end = now_ns() + look_ns;
    for (uint32_t i = 0; pthread_mutex_trylock(&own->calls) != 0; i++) {
        if (now_ns() > end) {
            return false;
        }
        fy_cuda_nap(i);
    }
    return true;
}

/* One that had nothing to do has only what it was tried with on its stream: that may be left. */
static ferry_status try_one(fy_exec_queue *own, ferry_error *error)
{
    bool is_locked = lock_calls(own);
    bool is_idle = is_locked && fy_cuda.cuStreamQuery(own->own) == CUDA_SUCCESS;
    own->is_apart = goes_on(own, own->own);
    ferry_status status = own->is_apart ? FERRY_OK : find_other(own, &own->other, error);
    own->is_apart = own->is_apart || own->other != NULL;
    if (own->other != NULL && is_idle) {
        exchange(own);
    }
    if (is_locked) {
        pthread_mutex_unlock(&own->calls);
    }
    return status;
}

/* Of one stream of ferry's, or all that do not wait themselves just now. */
static ferry_status try_all(const fy_cuda_device *device, fy_exec_queue *only, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        bool is_meant = only != NULL ? one == only : is_own(one, device) && !one->is_tried;
        if (status == FERRY_OK && is_meant) {
            status = try_one(one, error);
        }
    }
    return status;
}

/*
 * All streams that may wait do so at once, so that what goes on is apart from each; but `only` does
 * not. Nothing is freed meanwhile, which would wait. False: none waits.
 */
static bool shut_all(const fy_cuda_device *device, const fy_exec_queue *only)
{
    bool any = fy_cuda_graphs_wait();
    fy_cuda_lock_gates();
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        one->is_tried = one != only && may_wait(one, device) && shut(one);
        any = any || one->is_tried;
    }
    return any;
}

static void open_all(void)
{
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (one->is_tried) {
            open_again(one);
        }
    }
    fy_cuda_unlock_gates();
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (one->other != NULL) {
            take_other(one);
        }
    }
}

static bool are_apart(const fy_cuda_device *device)
{
    bool are = true;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        are = are && (!is_own(one, device) || one->is_apart);
    }
    return are;
}

static ferry_status part(const fy_cuda_device *device, fy_exec_queue *only, ferry_error *error)
{
    bool any = shut_all(device, only);
    ferry_status status = any ? try_all(device, only, error) : FERRY_OK;
    open_all();
    if (any && (only != NULL ? !only->is_apart : !are_apart(device))) {
        fy_cuda_library->log(FERRY_LOG_WARN, none_found);
    }
    return status;
}

/* What is wrong with a stream is found by whoever uses it. */
static void try_idle(fy_exec_queue *own)
{
    if (!lock_calls(own)) {
        return;
    }
    if (fy_cuda.cuStreamQuery(own->own) == CUDA_SUCCESS && !goes_on(own, own->own) &&
        find_other(own, &own->other, NULL) == FERRY_OK && own->other != NULL) {
        exchange(own);
    }
    pthread_mutex_unlock(&own->calls);
}

void fy_cuda_part_idle(const fy_cuda_device *device)
{
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (is_own(one, device)) {
            try_idle(one);
        }
    }
}

ferry_status fy_cuda_part_all(const fy_cuda_device *device, ferry_error *error)
{
    return part(device, NULL, error);
}

ferry_status fy_cuda_part_one(fy_exec_queue *own, ferry_error *error)
{
    return part(own->device, own, error);
}

/* One more that goes on is kept for whoever comes later. */
static ferry_status keep_way(fy_exec_queue *waiting, ferry_error *error)
{
    CUstream way = NULL;
    FY_TRY(find_other(waiting, &way, error));
    if (way == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, none_found);
    }
    keep_spare(waiting->device, way);
    return FERRY_OK;
}

/* First apart from those that wait already; the others then, from all. */
static ferry_status part_waiting(fy_exec_queue *own, ferry_error *error)
{
    own->is_apart = true;
    FY_TRY(fy_cuda_part_one(own, error));
    if (!own->is_apart) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, none_found);
    }
    own->meets = true;
    (void)shut_all(own->device, NULL);
    ferry_status status = try_all(own->device, NULL, error);
    FY_THEN(status, keep_way(own, error));
    open_all();
    if (status == FERRY_OK && !are_apart(own->device)) {
        status = fy_fail(error, FERRY_ERR_UNSUPPORTED, none_found);
    }
    own->meets = status == FERRY_OK;
    return status;
}

/* What is refused here is refused for good, so it is looked at for longer first. */
ferry_status fy_cuda_part_waiting(fy_exec_queue *own, ferry_error *error)
{
    ferry_status status = part_waiting(own, error);
    if (status == FERRY_ERR_UNSUPPORTED) {
        look_ns = LONG_LOOK_NS;
        status = part_waiting(own, error);
        look_ns = LOOK_NS;
    }
    return status;
}
