/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/share.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "memory/cuda/memory.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/reaper.h"
#include "memory/cuda/watch.h"

#include <pthread.h>
#include <string.h>

/*
 * Memory of other processes that is open here, each allocation once. It is closed as other memory
 * is freed: when queues that may use it are done.
 */
typedef struct import {
    unsigned char key[64]; /* of its handle */
    uint16_t way;
    uint64_t number;
    fy_memory_span span;
    uint64_t n_users; /* 0: it is about to be closed */
} import;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static import **all; /* in the order of their keys */
static size_t n_all, capacity;

/* How many have smaller keys. Under the lock. */
static size_t place_of(const unsigned char *key)
{
    FY_BISECT(size_t, first, 0, n_all, middle,
              memcmp(all[middle]->key, key, sizeof all[middle]->key) < 0);
    return first;
}

/* Under the lock; NULL: it is not open. */
static import *find(const unsigned char *key)
{
    size_t at = place_of(key);
    return at < n_all && memcmp(all[at]->key, key, sizeof all[at]->key) == 0 ? all[at] : NULL;
}

static import *find_base(const void *base)
{
    fy_cuda_span span;
    return fy_cuda_span_find(base, &span) ? span.import : NULL;
}

static void take_out(import *one)
{
    size_t at = place_of(one->key);
    memmove(&all[at], &all[at + 1], (n_all - at - 1) * sizeof *all);
    fy_cuda_span_forget(one->span.base);
    fy_free(one);
    if (--n_all == 0) {
        fy_free(all);
        all = NULL;
        capacity = 0;
    }
}

/*
 * Opening
 */

/* The device of this process that the memory lies on, or -1: it does not see it. */
static int32_t owner_of(const CUuuid *wanted, int32_t n_devices)
{
    for (int32_t d = 0; d < n_devices; d++) {
        CUuuid its;
        if (fy_cuda_uuid_of(d, &its, NULL) == FERRY_OK && memcmp(&its, wanted, sizeof its) == 0) {
            return d;
        }
    }
    return -1;
}

/* What is not seen may be reached all the same: the driver says so when it is opened. */
static bool may_reach(int32_t number, int32_t owner)
{
    int can = 0;
    CUdevice device, peer;
    return number == owner || owner < 0 ||
           (fy_cuda.cuDeviceGet(&device, number) == CUDA_SUCCESS &&
            fy_cuda.cuDeviceGet(&peer, owner) == CUDA_SUCCESS &&
            fy_cuda.cuDeviceCanAccessPeer(&can, device, peer) == CUDA_SUCCESS && can != 0);
}

/* How much of it there is: no more than its owner says, nor than the driver knows of. */
static bool measure(const fy_cuda_handle *its, fy_memory_span *span)
{
    fy_cuda_found f;
    fy_cuda_ask(span->base, &f);
    uint64_t before = f.bytes == 0 ? 0 : (uint64_t)(uintptr_t)span->base - f.begin;
    span->bytes = its->bytes;
    span->number = f.buffer;
    return f.bytes == 0 || its->way == FY_CUDA_BY_FILES ||
           (before <= f.bytes && its->bytes <= f.bytes - before);
}

static CUresult (*end_of(uint32_t way))(CUdeviceptr)
{
    return way == FY_CUDA_BY_IPC ? fy_cuda.cuIpcCloseMemHandle : fy_cuda_files_close;
}

/* Entered. */
static ferry_status open_entered(int32_t number, const fy_cuda_handle *its, CUdeviceptr *given_out,
                                 ferry_error *error)
{
    return its->way == FY_CUDA_BY_FILES
               ? fy_cuda_files_open(number, its, given_out, error)
               : fy_cuda_check(fy_cuda.cuIpcOpenMemHandle(given_out, its->by.ipc,
                                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                               "opening memory of another process", error);
}

static ferry_status open_on(int32_t number, const fy_cuda_handle *its, fy_memory_span *span,
                            ferry_error *error)
{
    const fy_cuda_device *device;
    CUdeviceptr given = 0;
    FY_TRY(fy_cuda_enter(number, &device, error));
    ferry_status status = open_entered(number, its, &given, error);
    if (status == FERRY_OK) {
        *span =
            (fy_memory_span){.device = number, .base = (void *)(uintptr_t)given, .is_import = true};
        if (!measure(its, span)) {
            status =
                fy_fail(error, FERRY_ERR_UNSUPPORTED,
                        "CUDA memory of process %d has other bytes than it says", (int)its->pid);
            (void)end_of(its->way)(given);
        }
    }
    fy_cuda_leave();
    return status;
}

/*
 * On a device that is in use already, best the one that the memory lies on; else on that one, if
 * this process sees it. A device of which the process has nothing is not touched else.
 */
static ferry_status open_somewhere(const fy_cuda_handle *its, fy_memory_span *span,
                                   ferry_error *error)
{
    int32_t n_devices = 0;
    char why[256];
    if (!fy_cuda_open(&n_devices, why, sizeof why)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s", why);
    }
    int32_t owner = owner_of(&its->device, n_devices);
    if (owner >= 0 && fy_cuda_is_used(owner)) {
        return open_on(owner, its, span, error);
    }
    for (int32_t d = 0; d < n_devices; d++) {
        if (fy_cuda_is_used(d) && may_reach(d, owner) && open_on(d, its, span, error) == FERRY_OK) {
            return FERRY_OK;
        }
    }
    return owner >= 0 ? open_on(owner, its, span, error)
                      : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                                "no CUDA device of this process reaches the one that memory of "
                                "process %d lies on, which it does not see",
                                (int)its->pid);
}

static void close_now(const fy_memory_span *span, uint32_t way)
{
    fy_cuda_reap(&(fy_cuda_grave){
        .device = span->device, .given = (CUdeviceptr)(uintptr_t)span->base, .end = end_of(way)});
}

/* Under the lock. */
static ferry_status add(const fy_cuda_handle *its, import **one_out, ferry_error *error)
{
    static const char what[] = "CUDA memory of another process";
    import *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    ferry_status status =
        fy_check_memory(fresh != NULL && FY_RESERVE(all, capacity, n_all + 1), what, error);
    FY_THEN(status, open_somewhere(its, &fresh->span, error));
    if (status == FERRY_OK) {
        const fy_cuda_span span = {.span = fresh->span, .import = fresh};
        status = fy_cuda_span_enter(&span, error);
        if (status != FERRY_OK) {
            close_now(&fresh->span, its->way);
        }
    }
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    memcpy(fresh->key, its->by.key, sizeof fresh->key);
    fresh->way = its->way;
    fresh->number = its->number;
    size_t at = place_of(its->by.key);
    memmove(&all[at + 1], &all[at], (n_all - at) * sizeof *all);
    all[at] = fresh;
    n_all++;
    *one_out = fresh;
    return FERRY_OK;
}

/* Under the lock. */
static ferry_status join(const fy_cuda_handle *its, fy_memory_span *span_out, ferry_error *error)
{
    import *one = find(its->by.key);
    if (one == NULL) {
        FY_TRY(add(its, &one, error));
    } else if (one->number != its->number) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "process %d has freed CUDA memory that is still open here, and has other "
                       "memory in its place",
                       (int)its->pid);
    }
    fy_cuda_span_free(one->span.base, false);
    one->n_users++;
    *span_out = one->span;
    return FERRY_OK;
}

ferry_status fy_cuda_import(const void *handle, size_t n_bytes, fy_memory_span *span_out,
                            ferry_error *error)
{
    fy_cuda_handle its;
    bool fits = n_bytes == sizeof its;
    if (fits) {
        memcpy(&its, handle, sizeof its);
        fits = its.magic == FY_CUDA_HANDLE_MAGIC && its.bytes > 0 &&
               (its.way == FY_CUDA_BY_IPC || its.way == FY_CUDA_BY_FILES);
    }
    if (!fits) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%zu bytes are no handle of CUDA memory",
                       n_bytes);
    }
    pthread_mutex_lock(&lock);
    ferry_status status = join(&its, span_out, error);
    pthread_mutex_unlock(&lock);
    return status;
}

/*
 * Closing
 */

/* Unless somebody has imported it meanwhile, or it went before. */
static bool may_go(const void *base)
{
    pthread_mutex_lock(&lock);
    import *one = find_base(base);
    bool goes = one != NULL && one->n_users == 0;
    if (goes) {
        take_out(one);
    }
    pthread_mutex_unlock(&lock);
    return goes;
}

enum { MOST_NAPS = 5000 };

/*
 * The owner may free the memory as soon as this rank has told that it does not use it any more, so
 * queues that are about to be done are waited for; what waits for others is not.
 */
static void await_queues(int32_t number)
{
    const fy_cuda_device *device;
    if (fy_cuda_enter(number, &device, NULL) == FERRY_OK) {
        for (uint32_t i = 0; i < MOST_NAPS && !fy_cuda_is_idle(device); i++) {
            fy_cuda_nap(i);
        }
        fy_cuda_leave();
    }
}

void fy_cuda_release(void *base)
{
    int32_t number = 0;
    uint32_t way = FY_CUDA_BY_IPC;
    pthread_mutex_lock(&lock);
    import *one = find_base(base);
    bool is_last = one != NULL && one->n_users > 0 && --one->n_users == 0;
    if (is_last) {
        number = one->span.device;
        way = one->way;
        fy_cuda_span_free(base, true);
    }
    pthread_mutex_unlock(&lock);
    if (is_last) {
        await_queues(number);
        fy_cuda_reap(&(fy_cuda_grave){.device = number,
                                      .given = (CUdeviceptr)(uintptr_t)base,
                                      .end = end_of(way),
                                      .base = base,
                                      .may_go = may_go});
    }
}
