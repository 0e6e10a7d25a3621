/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, GRANULE = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static unsigned long long n_made;
_Thread_local int standin_device;

/* Under the lock. */
static block *find(const void *pointer)
{
    block *one = blocks;
    while (one != NULL && (uintptr_t)pointer - (uintptr_t)one->base >= one->bytes) {
        one = one->next;
    }
    return one;
}

bool standin_find(const void *pointer, size_t bytes, block *block_out)
{
    pthread_mutex_lock(&lock);
    const block *one = find(pointer);
    bool found = one != NULL && bytes <= one->bytes - ((uintptr_t)pointer - (uintptr_t)one->base);
    if (found) {
        *block_out = *one;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *standin_reach(int device, uint64_t at, size_t bytes)
{
    static _Thread_local block last; /* of this thread; blocks of a running launch stay */
    static _Thread_local unsigned long long seen;
    unsigned long long now = __atomic_load_n(&n_made, __ATOMIC_ACQUIRE);
    const char *pointer = (const char *)(uintptr_t)at;
    bool is_last = seen == now && last.bytes > 0 &&
                   (uintptr_t)pointer - (uintptr_t)last.base < last.bytes &&
                   bytes <= last.bytes - ((uintptr_t)pointer - (uintptr_t)last.base);
    if (!is_last && !standin_find(pointer, bytes, &last)) {
        last.bytes = 0;
        return NULL;
    }
    seen = now;
    if (last.kind == BLOCK_DEVICE && last.device != device) {
        return NULL;
    }
    return last.memory + (pointer - last.base);
}

static void *look_up(uint64_t at, uint32_t bytes, int writes)
{
    (void)writes;
    return standin_reach(standin_device, at, bytes);
}

static CUresult add(block_kind kind, int device, char *base, size_t bytes, char *memory,
                    size_t mapped)
{
    block *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = (block){.kind = kind,
                     .device = device,
                     .base = base,
                     .bytes = bytes,
                     .memory = memory,
                     .mapped = mapped};
    twin_look_up = look_up;
    pthread_mutex_lock(&lock);
    fresh->number = __atomic_add_fetch(&n_made, 1, __ATOMIC_RELEASE);
    fresh->next = blocks;
    blocks = fresh;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* The block that begins there, out of the list; false: there is none. */
static bool take_out(const void *base, block_kind kind, block *block_out)
{
    pthread_mutex_lock(&lock);
    block **link = &blocks;
    while (*link != NULL && ((*link)->base != base || (*link)->kind != kind)) {
        link = &(*link)->next;
    }
    block *found = *link;
    if (found != NULL) {
        *link = found->next;
        *block_out = *found;
        __atomic_add_fetch(&n_made, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    free(found);
    return found != NULL;
}

/* Behind a barred part of the same size, and not aligned to more than the driver says. */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *place, size_t bytes)
{
    ENTER(cuMemAlloc, true);
    size_t shift = (size_t)standin_random(4) * GRANULE;
    if (place == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > (size_t)1 << 46) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t half = (bytes + shift + PAGE - 1) / PAGE * PAGE;
    char *base =
        mmap(NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = mprotect(base + half, half, PROT_READ | PROT_WRITE) != 0
                          ? CUDA_ERROR_OUT_OF_MEMORY
                          : add(BLOCK_DEVICE, standin_current()->device, base + shift, bytes,
                                base + half + shift, half);
    if (result != CUDA_SUCCESS) {
        munmap(base, 2 * half);
        return result;
    }
    memset(base + half, 0xa5, half); /* nobody has promised zeros */
    *place = (CUdeviceptr)(uintptr_t)(base + shift);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr place)
{
    ENTER(cuMemFree, true);
    block one;
    if (!standin_find((void *)(uintptr_t)place, 1, &one) || one.kind != BLOCK_DEVICE ||
        (CUdeviceptr)(uintptr_t)one.base != place) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain(one.device);
    if (!take_out(one.base, BLOCK_DEVICE, &one)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap((char *)((uintptr_t)one.base / PAGE * PAGE), 2 * one.mapped);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void **place, size_t bytes, unsigned flags)
{
    ENTER(cuMemHostAlloc, true);
    void *base;
    if (place == NULL || bytes == 0 || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (posix_memalign(&base, PAGE, bytes) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = add(BLOCK_PINNED, 0, base, bytes, base, 0);
    if (result != CUDA_SUCCESS) {
        free(base);
        return result;
    }
    *place = base;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeHost(void *base)
{
    ENTER(cuMemFreeHost, true);
    block one;
    if (!standin_find(base, 1, &one) || one.kind != BLOCK_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int d = 0; d < MOST_DEVICES; d++) {
        standin_drain(d);
    }
    if (!take_out(base, BLOCK_PINNED, &one)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(base);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostRegister(void *base, size_t bytes, unsigned flags)
{
    ENTER(cuMemHostRegister, true);
    block one;
    if (base == NULL || bytes == 0 || flags > 15) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (standin_find(base, 1, &one) || standin_find((char *)base + bytes - 1, 1, &one)) {
        return one.kind == BLOCK_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                            : CUDA_ERROR_INVALID_VALUE;
    }
    return add(BLOCK_REGISTERED, 0, base, bytes, base, 0);
}

CUresult CUDAAPI cuMemHostUnregister(void *base)
{
    ENTER(cuMemHostUnregister, true);
    block one;
    if (!standin_find(base, 1, &one) || one.kind != BLOCK_REGISTERED) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    for (int d = 0; d < MOST_DEVICES; d++) {
        standin_drain(d);
    }
    return take_out(base, BLOCK_REGISTERED, &one) ? CUDA_SUCCESS
                                                  : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    ENTER(cuMemGetAddressRange, true);
    block one;
    if (!standin_find((void *)(uintptr_t)pointer, 1, &one) || one.kind != BLOCK_DEVICE) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != NULL) {
        *base = (CUdeviceptr)(uintptr_t)one.base;
    }
    if (bytes != NULL) {
        *bytes = one.bytes;
    }
    return CUDA_SUCCESS;
}

static void put(void *place, const void *value, size_t bytes)
{
    memcpy(place, value, bytes);
}

static CUresult one_attribute(void *place, CUpointer_attribute which, const block *one, bool known)
{
    CUmemorytype type = !known                      ? (CUmemorytype)0
                        : one->kind == BLOCK_DEVICE ? CU_MEMORYTYPE_DEVICE
                                                    : CU_MEMORYTYPE_HOST;
    int device = known ? one->device : -2;
    CUcontext owner = known ? &standin_contexts[one->device] : NULL;
    unsigned managed = 0;
    CUdeviceptr base = known ? (CUdeviceptr)(uintptr_t)one->base : 0;
    size_t bytes = known ? one->bytes : 0;
    unsigned long long number = known ? one->number : 0;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        put(place, &type, sizeof type);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        put(place, &device, sizeof device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        put(place, &owner, sizeof owner);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        put(place, &managed, sizeof managed);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        put(place, &base, sizeof base);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        put(place, &bytes, sizeof bytes);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        put(place, &number, sizeof number);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned n, CUpointer_attribute *which, void **places,
                                        CUdeviceptr pointer)
{
    ENTER(cuPointerGetAttributes, false);
    block one = {.base = NULL};
    bool known = standin_find((void *)(uintptr_t)pointer, 1, &one);
    if (n == 0 || which == NULL || places == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < n; i++) {
        result = one_attribute(places[i], which[i], &one, known);
    }
    return result;
}

CUresult CUDAAPI cuPointerGetAttribute(void *place, CUpointer_attribute which, CUdeviceptr pointer)
{
    ENTER(cuPointerGetAttribute, false);
    block one = {.base = NULL};
    return standin_find((void *)(uintptr_t)pointer, 1, &one)
               ? one_attribute(place, which, &one, true)
               : CUDA_ERROR_INVALID_VALUE;
}
