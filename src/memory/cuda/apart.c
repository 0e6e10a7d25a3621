/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/apart.h"

#include "base/checked.h"
#include "memory/cuda/graph.h"
#include "memory/cuda/watch.h"

#include <time.h>

/*
 * A busy machine may keep a stream from going on for longer than it is looked at: then it is given
 * up for nothing, which costs no more than a stream. So those given up are looked at again, until a
 * search has taken SEARCH_NS. Where this thread hardly gets to look in that time, whoever moves the
 * streams on hardly gets to do so either: the search goes on until it has looked often, or is
 * LONGEST_NS.
 */
enum {
    LOOK_NS = 3000000,
    SEARCH_NS = 100000000,
    SEARCH_LOOKS = 25,
    LONGEST_NS = 2000000000,
    BUSY_NS = 200000000,
    MOST_STREAMS = 12,
    MOST_OF_DEVICE = 256, /* spares, before no more streams are made to find others */
    MOST_SPARES = 1024
};

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
           await_probe(own, LOOK_NS);
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

static uint32_t count_spares(const fy_cuda_device *device)
{
    uint32_t n = 0;
    for (size_t i = 0; i < n_spares; i++) {
        n += spares[i].device == device;
    }
    return n;
}

/*
 * Spares, as many as there are words for, all at once. A word says when its stream was asked, and
 * in which batch, so an answer to any question since the search began counts, however late it is.
 */
enum { MOST_BATCHES = MOST_SPARES / FY_CUDA_N_PROBES };

static bool has_answered(const fy_exec_queue *own, size_t word, size_t batch, uint64_t since)
{
    uint64_t answer = atomic_load(&own->words->probes[word]);
    return answer / MOST_BATCHES >= since && answer % MOST_BATCHES == batch;
}

/* n_spares: none of them goes on. */
static size_t find_among(fy_exec_queue *own, size_t batch, uint64_t since)
{
    size_t first = batch * FY_CUDA_N_PROBES, n = fy_min(n_spares - first, FY_CUDA_N_PROBES);
    uint64_t question = ++own->n_probes * MOST_BATCHES + batch, end = now_ns() + LOOK_NS;
    for (size_t i = 0; i < n; i++) {
        if (spares[first + i].device == own->device) {
            (void)fy_cuda.cuStreamWriteValue64(spares[first + i].stream,
                                               address_of(&own->words->probes[i]), question,
                                               CU_STREAM_WRITE_VALUE_DEFAULT);
        }
    }
    for (uint32_t n_looks = 0; now_ns() < end; n_looks++) {
        for (size_t i = 0; i < n; i++) {
            if (has_answered(own, i, batch, since)) {
                return first + i;
            }
        }
        fy_cuda_nap(n_looks);
    }
    return n_spares;
}

static bool find_spare(fy_exec_queue *own, uint64_t since, CUstream *stream_out)
{
    for (size_t batch = 0; batch * FY_CUDA_N_PROBES < n_spares; batch++) {
        size_t found = find_among(own, batch, since);
        if (found < n_spares) {
            *stream_out = spares[found].stream;
            spares[found] = spares[--n_spares];
            return true;
        }
    }
    return false;
}

static ferry_status find_fresh(fy_exec_queue *own, CUstream *stream_out, ferry_error *error)
{
    for (int i = 0; i < MOST_STREAMS && count_spares(own->device) < MOST_OF_DEVICE; i++) {
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

/* *stream_out stays NULL where there is none. */
static ferry_status find_other(fy_exec_queue *own, CUstream *stream_out, ferry_error *error)
{
    uint64_t since = own->n_probes + 1, begin_ns = now_ns(), ns = 0;
    if (!find_spare(own, since, stream_out)) {
        FY_TRY(find_fresh(own, stream_out, error));
    }
    for (uint32_t i = 0;
         *stream_out == NULL && ns < LONGEST_NS && (ns < SEARCH_NS || i < SEARCH_LOOKS); i++) {
        fy_cuda_nap(i);
        (void)find_spare(own, since, stream_out);
        ns = now_ns() - begin_ns;
    }
    return FERRY_OK;
}

/* Also one that is closed, or has a stream of the caller's just now: it comes back. */
static bool is_own(const fy_exec_queue *queue, const fy_cuda_device *device)
{
    return queue->device == device && queue->own != NULL && !atomic_load(&queue->is_dead);
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
    CUstream stream = own->stream == own->own ? own->other : own->stream;
    __atomic_store_n(&own->stream, stream, __ATOMIC_RELEASE);
    __atomic_store_n(&own->own, own->other, __ATOMIC_RELEASE);
    own->other = NULL;
}

/* Who calls verbs may be held up in the driver, as all are just now: then false. */
static bool lock_calls(fy_exec_queue *own)
{
    uint64_t end = now_ns() + LOOK_NS;
    for (uint32_t i = 0; pthread_mutex_trylock(&own->calls) != 0; i++) {
        if (now_ns() > end) {
            return false;
        }
        fy_cuda_nap(i);
    }
    return true;
}

/* What is on its old stream is done first; where that takes long it stays with it. */
static bool await_old(const fy_exec_queue *own)
{
    uint64_t end = now_ns() + BUSY_NS;
    CUresult state = fy_cuda.cuStreamQuery(own->own);
    for (uint32_t i = 0; state == CUDA_ERROR_NOT_READY && now_ns() < end; i++) {
        fy_cuda_nap(i);
        state = fy_cuda.cuStreamQuery(own->own);
    }
    return state == CUDA_SUCCESS;
}

static void take_other(fy_exec_queue *own)
{
    bool is_locked = lock_calls(own);
    if (is_locked && await_old(own)) {
        exchange(own);
    } else {
        keep_spare(own->device, own->other);
        own->other = NULL;
        own->is_apart = false;
    }
    if (is_locked) {
        pthread_mutex_unlock(&own->calls);
    }
}

/*
 * One that had nothing to do has only what it was tried with on its stream: that may be left. Where
 * a search has found none there is none for others either.
 */
static ferry_status try_locked(fy_exec_queue *own, bool is_idle, bool *is_none, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    own->is_apart = goes_on(own, own->own);
    if (!own->is_apart && !*is_none) {
        status = find_other(own, &own->other, error);
        own->is_apart = own->other != NULL;
        *is_none = !own->is_apart;
    }
    if (own->other != NULL && is_idle) {
        exchange(own);
    }
    return status;
}

static ferry_status try_one(fy_exec_queue *own, bool *is_none, ferry_error *error)
{
    bool is_locked = !own->is_stuck && lock_calls(own);
    bool is_idle = own->is_stuck || (is_locked && fy_cuda.cuStreamQuery(own->own) == CUDA_SUCCESS);
    ferry_status status = try_locked(own, is_idle, is_none, error);
    if (is_locked) {
        pthread_mutex_unlock(&own->calls);
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

/* One, which may be one that waits, apart from all others that do. */
static ferry_status part(fy_exec_queue *own, bool *is_none, ferry_error *error)
{
    bool any = shut_all(own->device, own);
    ferry_status status = any ? try_one(own, is_none, error) : FERRY_OK;
    own->is_apart = own->is_apart || !any;
    open_all();
    return status;
}

/* All that do not wait themselves, while all that may do. */
static ferry_status try_others(const fy_cuda_device *device, bool *is_none, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (status == FERRY_OK && is_own(one, device) && !one->meets) {
            status = try_one(one, is_none, error);
        }
    }
    return status;
}

static bool others_are_apart(const fy_cuda_device *device)
{
    bool are = true;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        are = are && (!is_own(one, device) || one->meets || one->is_apart);
    }
    return are;
}

static const char none_found[] = "no stream was found that goes on while others wait: set "
                                 "CUDA_DEVICE_MAX_CONNECTIONS=32";

static void warn(bool is_none)
{
    if (is_none) {
        fy_cuda_library->log(FERRY_LOG_WARN, none_found);
    }
}

ferry_status fy_cuda_part_all(const fy_cuda_device *device, ferry_error *error)
{
    bool is_none = false;
    ferry_status status = FERRY_OK;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (status == FERRY_OK && is_own(one, device) && one->meets) {
            status = part(one, &is_none, error);
        }
    }
    bool any = shut_all(device, NULL);
    FY_THEN(status, any ? try_others(device, &is_none, error) : FERRY_OK);
    open_all();
    warn(is_none);
    return status;
}

ferry_status fy_cuda_part_one(fy_exec_queue *own, ferry_error *error)
{
    bool is_none = false;
    ferry_status status = part(own, &is_none, error);
    warn(is_none);
    return status;
}

/*
 * Best is a stream apart from all that may wait; else one that goes on beside what waits just now.
 * Where one that waits itself has moved, others may be in its new channel. What is wrong with a
 * stream is found by who uses it.
 */
static void part_stuck(fy_exec_queue *own)
{
    bool is_none = false;
    (void)part(own, &is_none, NULL);
    if (is_none) {
        is_none = false;
        (void)try_one(own, &is_none, NULL);
    }
    if (own->meets) {
        (void)shut_all(own->device, NULL);
        (void)try_others(own->device, &is_none, NULL);
        open_all();
    }
    warn(is_none);
}

/* Has nothing to do, and would not do it: then its calls stay locked. */
static bool is_stuck(fy_exec_queue *own)
{
    if (!lock_calls(own)) {
        return false;
    }
    bool is = fy_cuda.cuStreamQuery(own->own) == CUDA_SUCCESS && !goes_on(own, own->own);
    if (!is) {
        pthread_mutex_unlock(&own->calls);
    }
    return is;
}

/*
 * This is done at every launch, so what goes on at a first look is let be. All are looked at first:
 * a trial makes those that are shut for it look busy.
 */
void fy_cuda_part_idle(const fy_cuda_device *device)
{
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        one->is_stuck = is_own(one, device) && is_stuck(one);
    }
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (one->is_stuck && !goes_on(one, one->own)) { /* it may have moved with another one */
            part_stuck(one);
        }
    }
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL; one = one->next) {
        if (one->is_stuck) {
            one->is_stuck = false;
            pthread_mutex_unlock(&one->calls);
        }
    }
}

/* One more that goes on is kept for whoever comes later. */
static ferry_status keep_way(fy_exec_queue *waiting, bool *is_none, ferry_error *error)
{
    CUstream way = NULL;
    FY_TRY(find_other(waiting, &way, error));
    if (way != NULL) {
        keep_spare(waiting->device, way);
    }
    *is_none = way == NULL;
    return FERRY_OK;
}

/* First this one apart from all that wait already; then the others from them and this one. */
ferry_status fy_cuda_part_waiting(fy_exec_queue *own, ferry_error *error)
{
    bool is_none = false;
    own->meets = true;
    ferry_status status = part(own, &is_none, error);
    if (status == FERRY_OK && own->is_apart) {
        (void)shut_all(own->device, NULL);
        status = try_others(own->device, &is_none, error);
        FY_THEN(status, is_none ? FERRY_OK : keep_way(own, &is_none, error));
        open_all();
        is_none = is_none || !others_are_apart(own->device);
    }
    if (status == FERRY_OK && (is_none || !own->is_apart)) {
        status = fy_fail(error, FERRY_ERR_UNSUPPORTED, none_found);
    }
    own->meets = status == FERRY_OK;
    return status;
}
