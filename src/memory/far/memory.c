/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/far/far.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <ferry/export.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct fy_far_span {
    fy_memory_span span; /* what the world sees */
    uint64_t half_bytes; /* from there to the memory itself */
    uint32_t n_users;    /* verbs under way, and one for who allocated it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the table, and of users */
static fy_far_span **spans;                              /* in the order of addresses */
static size_t n_spans, span_capacity;
static uint64_t n_made;

const fy_library *fy_far_library;

/* How many spans begin at or before the pointer. Under the lock. */
static size_t count_before(const void *pointer)
{
    FY_BISECT(size_t, first, 0, n_spans, middle,
              (uintptr_t)spans[middle]->span.base <= (uintptr_t)pointer);
    return first;
}

/* Under the lock; NULL: it is no far memory. */
static fy_far_span *find(const void *pointer)
{
    size_t n = count_before(pointer);
    fy_far_span *one = n == 0 ? NULL : spans[n - 1];
    bool is_in = one != NULL && (uintptr_t)pointer - (uintptr_t)one->span.base < one->span.bytes;
    return is_in ? one : NULL;
}

static void unmap(fy_far_span *span)
{
    munmap(span->span.base, (size_t)(2 * span->half_bytes));
    fy_free(span);
}

void fy_far_drop(fy_far_span *span)
{
    if (span == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    bool last = --span->n_users == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        unmap(span);
    }
}

ferry_status fy_far_find(int32_t device, const void *pointer, void **found_out,
                         fy_far_span **span_out, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&lock);
    fy_far_span *one = find(pointer);
    if (one == NULL) {
        *found_out = (void *)(uintptr_t)pointer;
    } else if (one->span.device != device) {
        status =
            fy_fail(error, FERRY_ERR_MISUSE, "far memory of device %d is out of reach of device %d",
                    (int)one->span.device, (int)device);
        one = NULL;
    } else {
        one->n_users++;
        *found_out = (char *)(uintptr_t)pointer + one->half_bytes;
    }
    pthread_mutex_unlock(&lock);
    *span_out = one;
    return status;
}

static bool probe(char *why, size_t why_bytes)
{
    (void)why;
    (void)why_bytes;
    return true;
}

static int32_t device_count(void)
{
    return FY_FAR_DEVICES;
}

/* Both halves: the first is barred, the second there. */
static ferry_status map(uint64_t half_bytes, void **base_out, ferry_error *error)
{
    char *base = MAP_FAILED;
    if (half_bytes <= (uint64_t)1 << 56) {
        base = mmap(NULL, (size_t)(2 * half_bytes), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (base == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of far memory could not be mapped",
                       (unsigned long long)half_bytes);
    }
    char *memory = base + half_bytes;
    int problem = mprotect(memory, (size_t)half_bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
    while (problem == 0 && madvise(memory, (size_t)half_bytes, MADV_POPULATE_WRITE) != 0 &&
           errno != EINVAL) {
        problem = errno == EINTR || errno == EAGAIN ? 0 : errno;
    }
    if (problem != 0) {
        munmap(base, (size_t)(2 * half_bytes));
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "%llu bytes of far memory could not be made present: %s",
                       (unsigned long long)half_bytes, strerror(problem));
    }
    *base_out = base;
    return FERRY_OK;
}

/* Into its place in the table. */
static bool insert(fy_far_span *fresh)
{
    pthread_mutex_lock(&lock);
    bool fits = FY_RESERVE(spans, span_capacity, n_spans + 1);
    if (fits) {
        size_t at = count_before(fresh->span.base);
        memmove(&spans[at + 1], &spans[at], (n_spans - at) * sizeof *spans);
        fresh->span.number = ++n_made;
        spans[at] = fresh;
        n_spans++;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

static ferry_status alloc(int32_t device, uint64_t bytes, void **base_out, ferry_error *error)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    fy_far_span *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "far memory", error));
    *fresh = (fy_far_span){.span = {.device = device, .bytes = bytes},
                           .half_bytes = (bytes + page - 1) / page * page,
                           .n_users = 1};
    ferry_status status = map(fresh->half_bytes, &fresh->span.base, error);
    if (status != FERRY_OK) {
        fy_free(fresh);
        return status;
    }
    *base_out = fresh->span.base;
    if (!insert(fresh)) {
        unmap(fresh);
        return fy_fail_no_memory(error, "far memory");
    }
    return FERRY_OK;
}

/* Verbs that are under way keep it: what they do reaches nobody. */
static void free_far(int32_t device, void *base, uint64_t bytes)
{
    (void)device;
    (void)bytes;
    pthread_mutex_lock(&lock);
    size_t n = count_before(base);
    fy_far_span *one = n == 0 || spans[n - 1]->span.base != base ? NULL : spans[n - 1];
    if (one != NULL) {
        memmove(&spans[n - 1], &spans[n], (n_spans - n) * sizeof *spans);
        n_spans--;
    }
    if (n_spans == 0) {
        fy_free(spans);
        spans = NULL;
        span_capacity = 0;
    }
    pthread_mutex_unlock(&lock);
    fy_far_drop(one);
}

static bool query(const void *pointer, fy_memory_span *span_out)
{
    pthread_mutex_lock(&lock);
    const fy_far_span *one = find(pointer);
    if (one != NULL) {
        *span_out = one->span;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

static pthread_once_t seeded = PTHREAD_ONCE_INIT;
static uint64_t seed;

static void choose_seed(void)
{
    const char *text = fy_far_library->setting("FERRY_FAR_SEED");
    char line[64];
    uint16_t any = 1;
    if (text != NULL) {
        any = (uint16_t)strtoul(text, NULL, 10);
    } else if (getrandom(&any, sizeof any, GRND_NONBLOCK) != (ssize_t)sizeof any) {
        any = (uint16_t)getpid();
    }
    seed = any;
    snprintf(line, sizeof line, "far memory works in the order of FERRY_FAR_SEED=%u",
             (unsigned)any);
    fy_far_library->log(FERRY_LOG_INFO, line);
}

uint64_t fy_far_seed(void)
{
    pthread_once(&seeded, choose_seed);
    return seed;
}

static const fy_memory_kind far_memory = {.abi = FY_MEMORY_ABI,
                                          .kind = FERRY_MEMORY_FAR,
                                          .name = "far",
                                          .summary =
                                              "for tests: host memory that the CPU must not touch",
                                          .cpu_access = false,
                                          .probe = probe,
                                          .device_count = device_count,
                                          .alloc = alloc,
                                          .free = free_far,
                                          .query = query,
                                          .exec = &fy_far_exec};

FERRY_API const fy_memory_kind *ferry_memory_plugin(const fy_library *library);

const fy_memory_kind *ferry_memory_plugin(const fy_library *library)
{
    fy_far_library = library;
    return library->abi == FY_MEMORY_ABI ? &far_memory : NULL;
}
