/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/share.h"

#include "base/alloc.h"
#include "base/sort.h"
#include "memory/cuda/memory.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/*
 * Memory that other processes may open: an allocation is named once, however many tensors lie in
 * it. The driver numbers allocations, so one that comes to the same address later is another.
 */
typedef struct named {
    fy_cuda_handle handle;
    fy_memory_span span; /* the driver's whole allocation */
    uint64_t n_users;
} named;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static named *all; /* in the order of their numbers */
static size_t n_all, capacity;

/* How many have smaller numbers. Under the lock. */
static size_t place_of(uint64_t number)
{
    FY_BISECT(size_t, first, 0, n_all, middle, all[middle].handle.number < number);
    return first;
}

/* Under the lock. Entered. */
static ferry_status name(const fy_cuda_found *f, named *fresh, ferry_error *error)
{
    fresh->handle.way = FY_CUDA_BY_IPC;
    fresh->handle.number = f->buffer;
    fresh->handle.bytes = f->bytes;
    fresh->span = (fy_memory_span){.device = f->device,
                                   .base = (void *)(uintptr_t)f->begin,
                                   .bytes = f->bytes,
                                   .number = f->buffer};
    return fy_cuda_check(fy_cuda.cuIpcGetMemHandle(&fresh->handle.by.ipc, f->begin),
                         "naming memory for other processes", error);
}

/* An allocation of the driver's. Entered. */
static ferry_status find_or_name(const fy_cuda_found *f, named *one_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&lock);
    size_t at = place_of(f->buffer);
    if (at == n_all || all[at].handle.number != f->buffer) {
        named fresh = *one_out;
        status = fy_check_memory(FY_RESERVE(all, capacity, n_all + 1), "shared CUDA memory", error);
        FY_THEN(status, name(f, &fresh, error));
        if (status == FERRY_OK) {
            memmove(&all[at + 1], &all[at], (n_all - at) * sizeof *all);
            all[at] = fresh;
            n_all++;
        }
    }
    if (status == FERRY_OK) {
        all[at].n_users++;
        *one_out = all[at];
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static ferry_status name_any(const void *pointer, uint64_t bytes, const fy_cuda_found *f,
                             named *one, ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(f->device, &device, error));
    one->handle = (fy_cuda_handle){.magic = FY_CUDA_HANDLE_MAGIC, .pid = (int32_t)getpid()};
    ferry_status status = f->context == NULL || f->context == device->context
                              ? fy_cuda_uuid_of(f->device, &one->handle.device, error)
                              : fy_fail(error, FERRY_ERR_UNSUPPORTED, "it is of another context");
    FY_THEN(status, f->has_ipc != 0
                        ? find_or_name(f, one, error)
                        : fy_cuda_pieces_name(pointer, bytes, &one->handle, &one->span, error));
    fy_cuda_leave();
    return status;
}

/* What is wrong with the memory itself; NULL: nothing. */
static const char *fault_of(const void *pointer, fy_cuda_found *f)
{
    fy_cuda_span known;
    bool is_known = fy_cuda_span_find(pointer, &known);
    fy_cuda_ask(pointer, f);
    return is_known && known.is_freed                      ? "it was freed"
           : is_known && known.import != NULL              ? "it is another process's"
           : f->is_managed != 0                            ? "it is managed memory"
           : !fy_cuda_is_device_memory(f) || f->bytes == 0 ? "it is no memory of a device"
                                                           : NULL;
}

ferry_status fy_cuda_export(const void *pointer, uint64_t bytes, void *handle, size_t *n_bytes_out,
                            fy_memory_span *span_out, ferry_error *error)
{
    fy_cuda_found f;
    ferry_error why = {.message = ""};
    named one = {.n_users = 0};
    const char *fault = fault_of(pointer, &f);
    ferry_status status = fault == NULL ? name_any(pointer, bytes, &f, &one, &why)
                                        : fy_fail(&why, FERRY_ERR_UNSUPPORTED, "%s", fault);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "other processes cannot open the CUDA memory at %p: %s",
                       pointer, why.message);
    }
    memcpy(handle, &one.handle, sizeof one.handle);
    *n_bytes_out = sizeof one.handle;
    *span_out = one.span;
    return FERRY_OK;
}

static void withdraw_allocation(const fy_cuda_handle *its)
{
    pthread_mutex_lock(&lock);
    size_t at = place_of(its->number);
    if (at < n_all && all[at].handle.number == its->number && --all[at].n_users == 0) {
        memmove(&all[at], &all[at + 1], (n_all - at - 1) * sizeof *all);
        n_all--;
    }
    if (n_all == 0) {
        fy_free(all);
        all = NULL;
        capacity = 0;
    }
    pthread_mutex_unlock(&lock);
}

void fy_cuda_withdraw(const void *handle, size_t n_bytes)
{
    fy_cuda_handle its;
    if (n_bytes == sizeof its) {
        memcpy(&its, handle, sizeof its);
        if (its.way == FY_CUDA_BY_IPC) {
            withdraw_allocation(&its);
        } else {
            fy_cuda_pieces_withdraw(&its);
        }
    }
}
