/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/memory.h"

#include "base/checked.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/reaper.h"
#include "memory/cuda/scratch.h"
#include "memory/cuda/watch.h"

#include <ferry/export.h>

#include <pthread.h>
#include <string.h>

enum { PAGE = 4096, SMALL_BYTES = 1 << 20 };

const fy_library *fy_cuda_library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the table */
static fy_cuda_spans spans;

static bool probe(char *why, size_t why_bytes)
{
    int32_t n_devices;
    return fy_cuda_open(&n_devices, why, why_bytes);
}

static int32_t device_count(void)
{
    int32_t n_devices;
    char why[256];
    return fy_cuda_open(&n_devices, why, sizeof why) ? n_devices : 0;
}

void fy_cuda_ask(const void *pointer, fy_cuda_found *f)
{
    CUpointer_attribute which[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    *f = (fy_cuda_found){.device = 0};
    void *places[] = {&f->type,  &f->device, &f->context, &f->is_managed,
                      &f->begin, &f->bytes,  &f->buffer,  &f->has_ipc};
    CUresult result = fy_cuda.cuPointerGetAttributes(sizeof which / sizeof which[0], which, places,
                                                     (CUdeviceptr)(uintptr_t)pointer);
    if (result != CUDA_SUCCESS) {
        *f = (fy_cuda_found){.device = 0};
    }
}

/*
 * Allocations
 */

/* The first page that begins there or behind it. */
static CUdeviceptr page_of(CUdeviceptr at)
{
    return fy_ceil_div(at, PAGE) * PAGE;
}

/* What others have freed may still have to be given back, and closed queues keep some. */
static CUresult allocate(const fy_cuda_device *device, uint64_t bytes, CUdeviceptr *given_out)
{
    CUresult result = fy_cuda.cuMemAlloc(given_out, (size_t)bytes);
    bool is_more = result == CUDA_ERROR_OUT_OF_MEMORY && fy_cuda_scratch_give_back(device);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && (fy_cuda_await_reaper() || is_more)) {
        result = fy_cuda.cuMemAlloc(given_out, (size_t)bytes);
        is_more = false; /* it may have been there before anybody waited */
    }
    return result;
}

/*
 * Small allocations begin where the last one ended: those are asked for with room for a page. What
 * is given back meanwhile goes as all memory does, for streams may wait.
 */
static ferry_status take(const fy_cuda_device *device, uint64_t bytes, fy_cuda_span *span,
                         ferry_error *error)
{
    CUdeviceptr given = 0;
    CUresult result = allocate(device, bytes + (bytes < SMALL_BYTES ? PAGE - 1 : 0), &given);
    if (result == CUDA_SUCCESS && bytes >= SMALL_BYTES && given % PAGE != 0) {
        fy_cuda_reap(&(fy_cuda_grave){
            .device = span->span.device, .given = given, .end = fy_cuda.cuMemFree});
        result = allocate(device, bytes + PAGE - 1, &given);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA device %d has no %llu bytes of memory",
                       (int)span->span.device, (unsigned long long)bytes);
    }
    FY_TRY(fy_cuda_check(result, "allocating memory of a device", error));
    span->given = given;
    fy_cuda_found f;
    fy_cuda_ask((void *)(uintptr_t)given, &f);
    span->span.base = (void *)(uintptr_t)page_of(given);
    span->span.number = f.buffer;
    return FERRY_OK;
}

/* By a queue's stream: those go on while callers' wait. */
static ferry_status zero(const fy_cuda_device *device, const fy_cuda_span *span, ferry_error *error)
{
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)span->span.base;
    fy_exec_queue *queue;
    FY_TRY(fy_cuda_queue_open(device->number, NULL, &queue, error));
    CUresult result = fy_cuda.cuMemsetD8Async(base, 0, (size_t)span->span.bytes, queue->stream);
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuStreamSynchronize(queue->stream);
    }
    fy_cuda_queue_close(queue);
    return fy_cuda_check(result, "clearing memory of a device", error);
}

ferry_status fy_cuda_span_enter(const fy_cuda_span *span, ferry_error *error)
{
    pthread_mutex_lock(&lock);
    bool fits = fy_cuda_spans_add(&spans, span);
    pthread_mutex_unlock(&lock);
    return fy_check_memory(fits, "the table of CUDA memory", error);
}

static ferry_status alloc(int32_t number, uint64_t bytes, void **base_out, ferry_error *error)
{
    const fy_cuda_device *device;
    fy_cuda_span span = {.span = {.device = number, .bytes = bytes}};
    FY_TRY(fy_cuda_enter(number, &device, error));
    ferry_status status =
        bytes > (uint64_t)1 << 60
            ? fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA device %d has no %llu bytes of memory",
                      (int)number, (unsigned long long)bytes)
            : take(device, bytes, &span, error);
    if (status == FERRY_OK) {
        status = zero(device, &span, error);
        FY_THEN(status, fy_cuda_span_enter(&span, error));
        if (status != FERRY_OK) {
            fy_cuda_reap(
                &(fy_cuda_grave){.device = number, .given = span.given, .end = fy_cuda.cuMemFree});
        }
    }
    fy_cuda_leave();
    if (status == FERRY_OK) {
        *base_out = span.span.base;
    }
    return status;
}

void fy_cuda_span_forget(const void *base)
{
    pthread_mutex_lock(&lock);
    fy_cuda_span *one = fy_cuda_spans_find(&spans, base);
    if (one != NULL) {
        fy_cuda_spans_remove(&spans, one);
    }
    pthread_mutex_unlock(&lock);
}

/* It is about to be freed: then the address may be given anew. */
static bool forget(const void *base)
{
    fy_cuda_span_forget(base);
    return true;
}

/*
 * The driver would wait here until the device is idle, and so for queues that wait for the caller.
 * Where there may be such, somebody else waits, and nobody finds the memory meanwhile.
 */
static void free_cuda(int32_t number, void *base, uint64_t bytes)
{
    (void)bytes;
    pthread_mutex_lock(&lock);
    fy_cuda_span *one = fy_cuda_spans_find(&spans, base);
    bool is_ours = one != NULL && one->span.base == base && !one->is_freed && one->import == NULL;
    CUdeviceptr given = is_ours ? one->given : 0;
    if (is_ours) {
        one->is_freed = true;
    }
    pthread_mutex_unlock(&lock);
    if (is_ours) {
        fy_cuda_reap(&(fy_cuda_grave){.device = number,
                                      .given = given,
                                      .end = fy_cuda.cuMemFree,
                                      .base = base,
                                      .may_go = forget});
    }
}

/*
 * Pointers
 */

bool fy_cuda_span_find(const void *pointer, fy_cuda_span *span_out)
{
    pthread_mutex_lock(&lock);
    const fy_cuda_span *one = fy_cuda_spans_find(&spans, pointer);
    if (one != NULL) {
        *span_out = *one;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

void fy_cuda_span_free(const void *base, bool is_freed)
{
    pthread_mutex_lock(&lock);
    fy_cuda_span *one = fy_cuda_spans_find(&spans, base);
    if (one != NULL) {
        one->is_freed = is_freed;
    }
    pthread_mutex_unlock(&lock);
}

/* Whether it is of an allocation of ferry's, but not within what ferry has given to anybody. */
static bool is_round(const fy_cuda_found *f)
{
    fy_cuda_span span;
    return fy_cuda_span_find((const void *)(uintptr_t)page_of(f->begin), &span) &&
           span.given == f->begin;
}

static bool query(const void *pointer, fy_memory_span *span_out)
{
    fy_cuda_span span;
    fy_cuda_found f;
    int32_t n_devices;
    char why[256];
    if (!fy_cuda_open(&n_devices, why, sizeof why)) {
        return false;
    }
    if (fy_cuda_span_find(pointer, &span)) {
        *span_out = span.span;
        return !span.is_freed;
    }
    fy_cuda_ask(pointer, &f);
    if (fy_cuda_is_device_memory(&f) && is_round(&f)) {
        return false;
    }
    if (fy_cuda_is_device_memory(&f)) {
        *span_out = (fy_memory_span){.device = f.device,
                                     .base = (void *)(uintptr_t)f.begin,
                                     .bytes = f.bytes,
                                     .number = f.buffer,
                                     .is_piece = f.has_ipc == 0};
    }
    return fy_cuda_is_device_memory(&f);
}

static ferry_status refuse(const void *pointer, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_MISUSE, "CUDA memory at %p %s", pointer, what);
}

/*
 * Virtual memory of another device that this one sees: who has mapped it says for whom, and that is
 * asked for piece by piece. Its own allocations the driver opens by itself.
 */
static ferry_status let_in(const fy_cuda_device *device, const char *first, const char *last,
                           ferry_error *error)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->number},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    fy_cuda_found f;
    for (const char *at = first; at <= last; at = (const char *)(uintptr_t)f.begin + f.bytes) {
        fy_cuda_ask(at, &f);
        if (f.has_ipc != 0 || f.bytes == 0) {
            return FERRY_OK;
        }
        FY_TRY(fy_cuda_check(fy_cuda.cuMemSetAccess(f.begin, f.bytes, &access, 1),
                             "giving a device access to another one's virtual memory", error));
    }
    return FERRY_OK;
}

static ferry_status check_ours(const fy_cuda_device *device, const char *first, const char *last,
                               int32_t number, bool is_import, ferry_error *error)
{
    if (number == device->number) {
        return FERRY_OK;
    }
    return !is_import && fy_cuda_sees(device->number, number)
               ? let_in(device, first, last, error)
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "CUDA memory at %p is of device %d, out of reach of device %d",
                         (const void *)first, (int)number, (int)device->number);
}

ferry_status fy_cuda_reach_of(const fy_cuda_device *device, const void *base, uint64_t begin,
                              uint64_t end, bool may_be_freed, fy_cuda_reach *reach_out,
                              ferry_error *error)
{
    const char *first = (const char *)base + begin, *last = (const char *)base + end - 1;
    fy_cuda_span span;
    fy_cuda_found f, l;
    *reach_out = FY_CUDA_PAGEABLE;
    if (begin == end) {
        return FERRY_OK;
    }
    if (fy_cuda_span_find(first, &span)) {
        *reach_out = FY_CUDA_OURS;
        return span.is_freed && !may_be_freed
                   ? refuse(first, "was freed", error)
                   : check_ours(device, first, last, span.span.device, span.import != NULL, error);
    }
    fy_cuda_ask(first, &f);
    if (fy_cuda_is_device_memory(&f)) {
        *reach_out = FY_CUDA_OURS;
        FY_TRY(check_ours(device, first, last, f.device, false, error));
        return f.context == NULL || f.context == fy_cuda_context_of(f.device)
                   ? FERRY_OK
                   : refuse(first, "is of another context than its device's primary one", error);
    }
    if (f.type == CU_MEMORYTYPE_HOST && f.is_managed == 0) {
        fy_cuda_ask(last, &l);
        bool is_one = l.type == f.type && l.buffer == f.buffer && l.begin == f.begin;
        *reach_out = is_one ? FY_CUDA_PINNED : FY_CUDA_PAGEABLE;
    }
    return FERRY_OK;
}

/*
 * The host's memory
 */

static ferry_status pin(void *base, uint64_t bytes, ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(fy_cuda_any_used(), &device, error));
    CUresult result = fy_cuda.cuMemHostRegister(
        base, (size_t)bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    fy_cuda_leave();
    return fy_cuda_check(result, "pinning memory of the host", error);
}

/* The driver waits here for all streams. The memory may be gone afterwards, so the caller waits. */
static void unpin(void *base, uint64_t bytes)
{
    const fy_cuda_device *device;
    (void)bytes;
    if (fy_cuda_enter(fy_cuda_any_used(), &device, NULL) == FERRY_OK) {
        fy_cuda_lock_gates();
        for (uint32_t i = 0; !fy_cuda_gates_are_open(); i++) {
            fy_cuda_unlock_gates();
            fy_cuda_nap(i);
            fy_cuda_lock_gates();
        }
        (void)fy_cuda.cuMemHostUnregister(base);
        fy_cuda_unlock_gates();
        fy_cuda_leave();
    }
}

ferry_status fy_cuda_pinned_alloc(uint64_t bytes, void **base_out, ferry_error *error)
{
    CUresult result = fy_cuda.cuMemHostAlloc(base_out, (size_t)bytes,
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    return fy_cuda_check(result, "allocating pinned memory of the host", error);
}

static ferry_status enter(int32_t number, ferry_error *error)
{
    const fy_cuda_device *device;
    int32_t used = number >= 0 ? number : fy_cuda_any_used();
    if (number < 0 && !fy_cuda_is_used(used)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "no CUDA device is used by this process");
    }
    return fy_cuda_enter(used, &device, error);
}

const fy_memory_kind fy_cuda_memory = {.abi = FY_MEMORY_ABI,
                                       .kind = FERRY_MEMORY_CUDA,
                                       .name = "cuda",
                                       .summary = "memory of NVIDIA devices",
                                       .cpu_access = false,
                                       .probe = probe,
                                       .device_count = device_count,
                                       .describe = fy_cuda_describe,
                                       .alloc = alloc,
                                       .free = free_cuda,
                                       .query = query,
                                       .pin = pin,
                                       .unpin = unpin,
                                       .export_handle = fy_cuda_export,
                                       .withdraw = fy_cuda_withdraw,
                                       .import_handle = fy_cuda_import,
                                       .release = fy_cuda_release,
                                       .enter = enter,
                                       .leave = fy_cuda_leave,
                                       .exec = &fy_cuda_exec};

FERRY_API const fy_memory_kind *ferry_memory_plugin(const fy_library *library);

const fy_memory_kind *ferry_memory_plugin(const fy_library *library)
{
    fy_cuda_library = library;
    return library->abi == FY_MEMORY_ABI ? &fy_cuda_memory : NULL;
}
