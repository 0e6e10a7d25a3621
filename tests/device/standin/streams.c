/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * A thread for each channel, which does what its streams are given in the order in which it came:
 * a stream that waits holds up the others of its channel. Host functions of all streams share one
 * thread in the driver, so here they exclude each other: one that waits for another never ends.
 */

enum { LONGEST_DELAY_NS = 100000, POLL_NS = 20000, PATIENCE_S = 10 };
enum { MOST_CHANNELS = 8 };

typedef struct channel {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_started;
    unsigned n_holds; /* graphs that are being put there: nothing begins meanwhile */
    op *first, **last;
} channel;

static channel channels[MOST_DEVICES][MOST_CHANNELS];

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;
static pthread_mutex_t host_functions = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t n_launched;

static void nap(uint64_t ns)
{
    struct timespec moment = {.tv_nsec = (long)ns};
    nanosleep(&moment, NULL);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What a copy finds: memory of the device, of the host that it knows, or any of the host. */
static char *bytes_at(int device, uint64_t at, size_t bytes, bool *known_out)
{
    block one;
    *known_out = standin_find((void *)(uintptr_t)at, 1, &one);
    return *known_out ? standin_reach(device, at, bytes) : (char *)(uintptr_t)at;
}

static void lose(int device, CUresult why)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&standin_lost[device], &none, (int)why)) {
        fprintf(stderr, "stand-in: device %d is lost: error %d\n", device, (int)why);
    }
}

static void copy(int device, const op *one)
{
    bool to_known, from_known;
    char *to = bytes_at(device, one->to, one->bytes, &to_known);
    char *from = one->from_is_staged ? (char *)(uintptr_t)one->from
                                     : bytes_at(device, one->from, one->bytes, &from_known);
    if (to == NULL || from == NULL) {
        lose(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    if (one->bytes == sizeof(uint64_t) && ((uintptr_t)to | (uintptr_t)from) % one->bytes == 0) {
        __atomic_store_n((uint64_t *)to, *(uint64_t *)from, __ATOMIC_RELAXED); /* a word is whole */
        return;
    }
    /* In two parts: who does not wait may see one of them only. */
    size_t half = one->bytes / 2;
    memmove(to, from, half);
    if (standin_random(8) == 0) {
        nap(standin_random(LONGEST_DELAY_NS));
    }
    memmove(to + half, from + half, one->bytes - half);
}

static void run_kernel(int device, const op *one)
{
    const char *text = getenv("STANDIN_LOSE");
    uint64_t number = atomic_fetch_add(&n_launched, 1) + 1;
    if (text != NULL && strtoull(text, NULL, 10) == number) {
        lose(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    if (standin_has_ptx()) {
        CUresult result = standin_run_ptx(device, one);
        if (result != CUDA_SUCCESS) {
            lose(device, result);
        }
        return;
    }
    twin_device = device;
    twin_end end =
        twin_launch(one->kernel, one->blocks, one->threads, one->argument, standin_random(1 << 20));
    if (end == TWIN_UNSETTLED) {
        fprintf(stderr, "stand-in: memory of a multicast object is read without a fence before\n");
    }
    if (end != TWIN_DONE) {
        lose(device,
             end == TWIN_MISALIGNED ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

static void poll_word(struct CUstream_st *stream, const op *one)
{
    _Atomic uint64_t *word = standin_reach(stream->device, one->to, sizeof *word);
    uint64_t begun = now_ns();
    bool has_said = false;
    while (word != NULL && (int64_t)(*word - one->number) < 0 && !standin_lost[stream->device]) {
        nap(POLL_NS);
        if (!has_said && now_ns() - begun > (uint64_t)PATIENCE_S * 1000000000u) {
            fprintf(stderr, "stand-in: a stream has waited %d s for a word to be %llu\n",
                    (int)PATIENCE_S, (unsigned long long)one->number);
            has_said = true;
        }
    }
    if (word == NULL) {
        lose(stream->device, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

static void set(int device, const op *one)
{
    bool known;
    char *to = bytes_at(device, one->to, one->bytes, &known);
    if (to == NULL) {
        lose(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    memset(to, one->value, one->bytes);
}

static void write_word(int device, const op *one)
{
    _Atomic uint64_t *word = standin_reach(device, one->to, sizeof *word);
    if (word == NULL) {
        lose(device, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    *word = one->number;
}

static void call(const op *one)
{
    pthread_mutex_lock(&host_functions);
    standin_in_host_function = true;
    one->function(one->context);
    standin_in_host_function = false;
    pthread_mutex_unlock(&host_functions);
}

static void perform(struct CUstream_st *stream, const op *one)
{
    if (standin_random(4) == 0) {
        nap(standin_random(LONGEST_DELAY_NS));
    }
    switch (one->kind) {
    case OP_COPY:
        copy(stream->device, one);
        break;
    case OP_SET:
        set(stream->device, one);
        break;
    case OP_RUN:
        run_kernel(stream->device, one);
        break;
    case OP_RECORD:
        one->event->at_ns = now_ns();
        one->event->n_done = one->number;
        break;
    case OP_AWAIT:
        while (one->event->n_done < one->number && !standin_lost[stream->device]) {
            nap(POLL_NS);
        }
        break;
    case OP_CALL:
        call(one);
        break;
    case OP_WRITE:
        write_word(stream->device, one);
        break;
    case OP_POLL:
        poll_word(stream, one);
        break;
    case OP_WORK:
        one->function(one->context);
        break;
    }
}

static void finish(op *one)
{
    struct CUstream_st *stream = one->stream;
    free(one->argument);
    if (one->from_is_staged) {
        free((void *)(uintptr_t)one->from);
    }
    free(one);
    pthread_mutex_lock(&stream->lock);
    stream->n_done++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void *work(void *context)
{
    channel *mine = context;
    for (;;) {
        pthread_mutex_lock(&mine->lock);
        while (mine->first == NULL || mine->n_holds > 0) {
            pthread_cond_wait(&mine->changed, &mine->lock);
        }
        op *one = mine->first;
        mine->first = one->next;
        mine->last = mine->first == NULL ? &mine->first : mine->last;
        pthread_mutex_unlock(&mine->lock);
        if (!standin_lost[one->stream->device]) { /* a lost device does nothing, calls included */
            perform(one->stream, one);
        }
        finish(one);
    }
    return NULL;
}

static int channel_count(void)
{
    static _Atomic int n;
    const char *text = getenv("STANDIN_CHANNELS");
    int none = 0, wanted = text != NULL ? atoi(text) : 2 + (int)standin_random(MOST_CHANNELS - 1);
    wanted = wanted < 1 ? 1 : wanted > MOST_CHANNELS ? MOST_CHANNELS : wanted;
    (void)atomic_compare_exchange_strong(&n, &none, wanted);
    return n;
}

/*
 * Streams take channels in turn, whatever their priority. Under the list's lock; NULL: it has no
 * thread.
 */
static channel *next_channel(int device)
{
    static int n_taken[MOST_DEVICES];
    channel *one = &channels[device][n_taken[device]++ % channel_count()];
    sigset_t all, old;
    pthread_t thread;
    if (one->is_started) {
        return one;
    }
    one->last = &one->first;
    pthread_mutex_init(&one->lock, NULL);
    pthread_cond_init(&one->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    one->is_started = pthread_create(&thread, NULL, work, one) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (one->is_started) {
        pthread_detach(thread);
    }
    return one->is_started ? one : NULL;
}

/* The streams that have no handle of their own are made when they are first used. */
static struct CUstream_st *named[MOST_DEVICES][2];

static CUresult make(unsigned flags, struct CUstream_st **stream_out)
{
    struct CUstream_st *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->device = standin_current()->device;
    fresh->flags = flags;
    pthread_mutex_init(&fresh->lock, NULL);
    pthread_cond_init(&fresh->changed, NULL);
    pthread_mutex_lock(&list_lock);
    fresh->channel = next_channel(fresh->device);
    if (fresh->channel != NULL) {
        fresh->next = streams;
        streams = fresh;
    }
    pthread_mutex_unlock(&list_lock);
    if (fresh->channel == NULL) {
        free(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream_out = fresh;
    return CUDA_SUCCESS;
}

struct CUstream_st *standin_stream(CUstream handle)
{
    uintptr_t number = (uintptr_t)handle;
    if (number <= 2) {
        struct CUstream_st **place = &named[standin_current()->device][number == 2];
        if (*place == NULL && make(0, place) != CUDA_SUCCESS) {
            return NULL;
        }
        return *place;
    }
    pthread_mutex_lock(&list_lock);
    struct CUstream_st *one = streams;
    while (one != NULL && one != handle) {
        one = one->next;
    }
    pthread_mutex_unlock(&list_lock);
    return one;
}

CUresult standin_push(CUstream handle, const op *what)
{
    struct CUstream_st *stream = standin_stream(handle);
    bool is_captured = false;
    if (stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result =
        (uintptr_t)handle <= 1 ? standin_check_legacy(stream->device, false) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = standin_capture(stream, what, &is_captured);
    }
    op *fresh = is_captured || result != CUDA_SUCCESS ? NULL : malloc(sizeof *fresh);
    if (fresh == NULL) {
        return is_captured || result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = *what;
    fresh->stream = stream;
    channel *through = stream->channel;
    pthread_mutex_lock(&stream->lock);
    stream->n_queued++;
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_lock(&through->lock);
    *through->last = fresh;
    through->last = &fresh->next;
    pthread_cond_signal(&through->changed);
    pthread_mutex_unlock(&through->lock);
    return CUDA_SUCCESS;
}

void standin_hold(struct CUstream_st *stream, bool holds)
{
    channel *through = stream->channel;
    pthread_mutex_lock(&through->lock);
    through->n_holds += holds ? 1 : -1u;
    pthread_cond_signal(&through->changed);
    pthread_mutex_unlock(&through->lock);
}

static void await(struct CUstream_st *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t all = stream->n_queued;
    while (stream->n_done < all) {
        pthread_cond_wait(&stream->changed, &stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
}

static pthread_rwlock_t drains = PTHREAD_RWLOCK_INITIALIZER;

void standin_pass(void)
{
    pthread_rwlock_rdlock(&drains);
    pthread_rwlock_unlock(&drains);
}

/* Streams come and go meanwhile: after each the list is begun anew. */
void standin_drain(int device)
{
    pthread_rwlock_wrlock(&drains);
    for (bool again = true; again;) {
        struct CUstream_st *busy = NULL;
        again = false;
        pthread_mutex_lock(&list_lock);
        for (struct CUstream_st *one = streams; one != NULL && busy == NULL; one = one->next) {
            pthread_mutex_lock(&one->lock);
            busy = one->device == device && one->n_done < one->n_queued ? one : NULL;
            pthread_mutex_unlock(&one->lock);
        }
        pthread_mutex_unlock(&list_lock);
        if (busy != NULL) {
            nap(POLL_NS);
            again = true;
        }
    }
    pthread_rwlock_unlock(&drains);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *place, unsigned flags, int priority)
{
    ENTER(cuStreamCreateWithPriority, true);
    (void)priority;
    return place == NULL || flags > 1 ? CUDA_ERROR_INVALID_VALUE : make(flags, place);
}

CUresult CUDAAPI cuStreamCreate(CUstream *place, unsigned flags)
{
    ENTER(cuStreamCreate, true);
    return place == NULL || flags > 1 ? CUDA_ERROR_INVALID_VALUE : make(flags, place);
}

/* Work that is under way is done; a stream that is no more stays in memory, for who is about to
 * leave it. */
CUresult CUDAAPI cuStreamDestroy(CUstream handle)
{
    static struct CUstream_st *gone;
    ENTER(cuStreamDestroy, true);
    struct CUstream_st *stream = (uintptr_t)handle <= 2 ? NULL : standin_stream(handle);
    if (stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    await(stream);
    pthread_mutex_lock(&list_lock);
    struct CUstream_st **link = &streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    stream->next = gone;
    gone = stream;
    pthread_mutex_unlock(&list_lock);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext *place)
{
    ENTER(cuStreamGetCtx, true);
    const struct CUstream_st *stream = standin_stream(handle);
    if (stream == NULL || place == NULL) {
        return stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *place = &standin_contexts[stream->device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle)
{
    ENTER(cuStreamQuery, true);
    struct CUstream_st *stream = standin_stream(handle);
    if (stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if ((uintptr_t)handle <= 1 && standin_check_legacy(stream->device, false) != CUDA_SUCCESS) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (standin_check_asked(stream) != CUDA_SUCCESS) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&stream->lock);
    bool is_done = stream->n_done == stream->n_queued;
    pthread_mutex_unlock(&stream->lock);
    return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle)
{
    ENTER(cuStreamSynchronize, true);
    struct CUstream_st *stream = standin_stream(handle);
    if (stream == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if ((uintptr_t)handle <= 1 && standin_check_legacy(stream->device, false) != CUDA_SUCCESS) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (standin_check_asked(stream) != CUDA_SUCCESS) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    await(stream);
    return (CUresult)standin_lost[stream->device];
}

/*
 * What streams do
 */

/*
 * With memory of the host that it does not know, the driver takes what is to be read at the call,
 * and what is to be written is there when it returns; either may be so, or not, otherwise.
 */
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    ENTER(cuMemcpyAsync, true);
    block one;
    op what = {.kind = OP_COPY, .to = to, .from = from, .bytes = bytes};
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    bool knows_from = standin_find((void *)(uintptr_t)from, bytes, &one);
    bool knows_to = standin_find((void *)(uintptr_t)to, bytes, &one);
    bool is_captured = standin_is_captured(handle);
    if (!knows_from && !is_captured && standin_random(2) == 0) {
        void *taken = malloc(bytes);
        if (taken == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(taken, (void *)(uintptr_t)from, bytes);
        what.from = (uint64_t)(uintptr_t)taken;
        what.from_is_staged = true;
    }
    CUresult result = standin_push(handle, &what);
    if (result == CUDA_SUCCESS && !knows_to && !is_captured && standin_random(4) > 0) {
        await(standin_stream(handle));
    }
    return result;
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream handle)
{
    ENTER(cuMemsetD8Async, true);
    block one;
    op what = {.kind = OP_SET, .to = to, .bytes = n, .value = value};
    if (n > 0 && !standin_find((void *)(uintptr_t)to, n, &one)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return n == 0 ? CUDA_SUCCESS : standin_push(handle, &what);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned blocks_x, unsigned blocks_y,
                                unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                                unsigned threads_z, unsigned shared_bytes, CUstream handle,
                                void **arguments, void **extra)
{
    ENTER(cuLaunchKernel, true);
    const twin_kernel *kernel = (const twin_kernel *)function;
    bool is_flat = blocks_y == 1 && blocks_z == 1 && threads_y == 1 && threads_z == 1;
    (void)shared_bytes;
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!is_flat || blocks_x == 0 || threads_x == 0 || threads_x > 1024 || extra != NULL ||
        arguments == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    op what = {.kind = OP_RUN, .kernel = kernel, .blocks = blocks_x, .threads = threads_x};
    what.argument = malloc(kernel->argument_bytes);
    if (what.argument == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(what.argument, arguments[0], kernel->argument_bytes);
    CUresult result = standin_push(handle, &what);
    if (result != CUDA_SUCCESS) {
        free(what.argument);
    }
    return result;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *context)
{
    ENTER(cuLaunchHostFunc, true);
    op what = {.kind = OP_CALL, .function = function, .context = context};
    return function == NULL ? CUDA_ERROR_INVALID_VALUE : standin_push(handle, &what);
}

static CUresult check_word(uint64_t at)
{
    block one;
    return at % sizeof(uint64_t) == 0 && standin_find((void *)(uintptr_t)at, sizeof at, &one)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream handle, CUdeviceptr at, cuuint64_t value,
                                     unsigned flags)
{
    ENTER(cuStreamWaitValue64, true);
    op what = {.kind = OP_POLL, .to = at, .number = value};
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || check_word(at) != CUDA_SUCCESS) {
        return flags != CU_STREAM_WAIT_VALUE_GEQ ? CUDA_ERROR_NOT_SUPPORTED
                                                 : CUDA_ERROR_INVALID_VALUE;
    }
    return standin_push(handle, &what);
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream handle, CUdeviceptr at, cuuint64_t value,
                                      unsigned flags)
{
    ENTER(cuStreamWriteValue64, true);
    op what = {.kind = OP_WRITE, .to = at, .number = value};
    return flags > 1 || check_word(at) != CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE
                                                       : standin_push(handle, &what);
}

/*
 * Events
 */

CUresult CUDAAPI cuEventCreate(CUevent *place, unsigned flags)
{
    ENTER(cuEventCreate, true);
    if (place == NULL || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *place = calloc(1, sizeof **place);
    if (*place == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*place)->device = standin_current()->device;
    (*place)->flags = flags;
    return CUDA_SUCCESS;
}

/* A stream may still have to record it: then it stays. */
CUresult CUDAAPI cuEventDestroy(CUevent event)
{
    ENTER(cuEventDestroy, true);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->n_done == event->n_recorded) {
        free(event);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle)
{
    ENTER(cuEventRecord, true);
    const struct CUstream_st *stream = standin_stream(handle);
    if (event == NULL || stream == NULL || stream->device != event->device) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    op what = {.kind = OP_RECORD, .event = event, .number = event->n_recorded + 1};
    event->n_recorded += stream->capture == NULL;
    return standin_push(handle, &what);
}

CUresult CUDAAPI cuEventQuery(CUevent event)
{
    ENTER(cuEventQuery, true);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return event->n_done >= event->n_recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    ENTER(cuEventSynchronize, true);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    while (event->n_done < event->n_recorded && !standin_lost[event->device]) {
        nap(POLL_NS);
    }
    return (CUresult)standin_lost[event->device];
}

CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    ENTER(cuEventElapsedTime, true);
    if (ms == NULL || begin == NULL || end == NULL || begin->n_recorded == 0 ||
        end->n_recorded == 0 || (begin->flags & CU_EVENT_DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (begin->n_done < begin->n_recorded || end->n_done < end->n_recorded) {
        return CUDA_ERROR_NOT_READY;
    }
    *ms = (float)((double)(end->at_ns - begin->at_ns) * 1e-6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    ENTER(cuStreamWaitEvent, true);
    if (event == NULL || flags > 1) {
        return event == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    op what = {.kind = OP_AWAIT, .event = event, .number = event->n_recorded};
    return standin_push(handle, &what);
}
