/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/virtual.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Virtual memory: memory without addresses, and addresses without memory. */
enum { GRAIN = 16 << 10, MOST_RESERVED = 4096 }; /* small, so that much is in many pieces */

typedef struct reserved {
    char *base;
    size_t bytes;
} reserved;

pthread_mutex_t standin_virtual_lock = PTHREAD_MUTEX_INITIALIZER;
static physical *all;
static reserved ranges[MOST_RESERVED];

physical *standin_physical_known(CUmemGenericAllocationHandle handle)
{
    physical *one = all;
    while (one != NULL && (CUmemGenericAllocationHandle)(uintptr_t)one != handle) {
        one = one->next;
    }
    return one;
}

static void drop(physical *one)
{
    if (--one->n_users == 0) {
        physical **link = &all;
        while (*link != one) {
            link = &(*link)->next;
        }
        *link = one->next;
        if (one->bound_to != 0) {
            fprintf(stderr, "stand-in: memory is released that is bound to a multicast object\n");
            abort();
        }
        if (one->fleet != NULL) {
            standin_fleet_close(one->fleet);
        }
        close(one->file);
        free(one);
    }
}

void standin_virtual_unbind(CUmemGenericAllocationHandle object, int device)
{
    pthread_mutex_lock(&standin_virtual_lock);
    for (physical *one = all; one != NULL; one = one->next) {
        if (one->bound_to == object && one->device == device) {
            one->bound_to = 0;
        }
    }
    pthread_mutex_unlock(&standin_virtual_lock);
}

CUresult standin_physical_keep(const physical *what, CUmemGenericAllocationHandle *place)
{
    physical *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL || what->file < 0) {
        free(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = *what;
    fresh->n_users = 1;
    pthread_mutex_lock(&standin_virtual_lock);
    fresh->next = all;
    all = fresh;
    pthread_mutex_unlock(&standin_virtual_lock);
    *place = (CUmemGenericAllocationHandle)(uintptr_t)fresh;
    return CUDA_SUCCESS;
}

static CUresult keep(int file, size_t bytes, int device, bool is_shared,
                     CUmemGenericAllocationHandle *place)
{
    const physical one = {.file = file, .bytes = bytes, .device = device, .is_shared = is_shared};
    return standin_physical_keep(&one, place);
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                               CUmemAllocationGranularity_flags flags)
{
    ENTER(cuMemGetAllocationGranularity, false);
    if (bytes == NULL || wanted == NULL || (unsigned)flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = GRAIN;
    return CUDA_SUCCESS;
}

/* Behind the bytes there is a page that says on which device they lie. */
CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *place, size_t bytes,
                             const CUmemAllocationProp *wanted, unsigned long long flags)
{
    ENTER(cuMemCreate, false);
    if (place == NULL || wanted == NULL || bytes == 0 || bytes % GRAIN != 0 || flags != 0 ||
        wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t about[2] = {STANDIN_MAGIC, (uint64_t)standin_physical(wanted->location.id)};
    int file = memfd_create("stand-in-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)(bytes + PAGE)) != 0 ||
        pwrite(file, about, sizeof about, (off_t)bytes) != (ssize_t)sizeof about) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return keep(file, bytes, wanted->location.id,
                wanted->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, place);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemRelease, false);
    pthread_mutex_lock(&standin_virtual_lock);
    physical *one = standin_physical_known(handle);
    if (one != NULL) {
        drop(one);
    }
    pthread_mutex_unlock(&standin_virtual_lock);
    return one != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void *place, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle, false);
    pthread_mutex_lock(&standin_virtual_lock);
    const physical *one = standin_physical_known(handle);
    bool can = one != NULL && one->is_shared && place != NULL && flags == 0 &&
               type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int file = can ? fcntl(one->file, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&standin_virtual_lock);
    if (file >= 0) {
        memcpy(place, &file, sizeof file);
    }
    return !can ? CUDA_ERROR_INVALID_VALUE : file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult import_fleet(int file, size_t bytes, CUmemGenericAllocationHandle *place)
{
    physical one = {.file = fcntl(file, F_DUPFD_CLOEXEC, 0), .device = -1, .is_shared = true};
    one.fleet = one.file >= 0 ? standin_fleet_open(one.file, bytes) : NULL;
    if (one.fleet == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    one.bytes = one.fleet->bytes;
    return standin_physical_keep(&one, place);
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *place, void *handle,
                                                CUmemAllocationHandleType type)
{
    ENTER(cuMemImportFromShareableHandle, false);
    int file = (int)(intptr_t)handle;
    uint64_t about[2] = {0};
    struct stat status;
    if (place == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fstat(file, &status) != 0 || status.st_size < GRAIN + PAGE ||
        pread(file, about, sizeof about, status.st_size - PAGE) != (ssize_t)sizeof about ||
        (about[0] != STANDIN_MAGIC && about[0] != STANDIN_FLEET_MAGIC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (about[0] == STANDIN_FLEET_MAGIC) {
        return import_fleet(file, (size_t)status.st_size, place);
    }
    int device = 0;
    while (device < MOST_DEVICES - 1 && standin_physical(device) != (int)about[1]) {
        device++;
    }
    return keep(fcntl(file, F_DUPFD_CLOEXEC, 0), (size_t)status.st_size - PAGE, device, true,
                place);
}

/*
 * Addresses
 */

/* Under the lock; NULL: not all of it is reserved. */
static reserved *range_of(const char *base, size_t bytes)
{
    for (int i = 0; i < MOST_RESERVED; i++) {
        reserved *one = &ranges[i];
        if (one->base != NULL && base >= one->base && bytes <= one->bytes &&
            (size_t)(base - one->base) <= one->bytes - bytes) {
            return one;
        }
    }
    return NULL;
}

/* Behind what is barred there is as much again, where memory is mapped. */
CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *place, size_t bytes, size_t alignment,
                                     CUdeviceptr wanted, unsigned long long flags)
{
    ENTER(cuMemAddressReserve, false);
    (void)wanted;
    if (place == NULL || bytes == 0 || bytes % GRAIN != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    char *base =
        mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    int i = 0;
    pthread_mutex_lock(&standin_virtual_lock);
    while (i < MOST_RESERVED && ranges[i].base != NULL) {
        i++;
    }
    if (i < MOST_RESERVED) {
        ranges[i] = (reserved){base, bytes};
    }
    pthread_mutex_unlock(&standin_virtual_lock);
    if (i == MOST_RESERVED) {
        munmap(base, 2 * bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *place = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

static bool is_within(const block *one, const void *context)
{
    const reserved *range = context;
    return one->kind == BLOCK_MAPPED && one->base < range->base + range->bytes &&
           range->base < one->base + one->bytes;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    ENTER(cuMemAddressFree, false);
    const reserved wanted = {(char *)(uintptr_t)at, bytes};
    block left;
    if (standin_search(is_within, &wanted, &left)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&standin_virtual_lock);
    reserved *range = range_of(wanted.base, bytes);
    bool is_whole = range != NULL && range->base == wanted.base && range->bytes == bytes;
    if (is_whole) {
        munmap(range->base, 2 * bytes);
        range->base = NULL;
    }
    pthread_mutex_unlock(&standin_virtual_lock);
    return is_whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Under the lock. An object lies where its file does, for it has no addresses by which others
 * write.
 */
static CUresult map(reserved *range, char *base, size_t bytes, physical *one)
{
    char *memory = one->fleet != NULL ? (char *)one->fleet + PAGE : base + range->bytes;
    if (one->fleet == NULL && mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                   one->file, (off_t)one->at) == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const block fresh = {.kind = BLOCK_MAPPED,
                         .device = one->fleet != NULL ? 0 : one->device,
                         .base = base,
                         .bytes = bytes,
                         .memory = memory,
                         .is_fleet = one->fleet != NULL,
                         .is_bound = one->bound_to != 0,
                         .physical = one};
    one->n_users++;
    return standin_add(&fresh);
}

/* Nobody reaches it before access is given. */
CUresult CUDAAPI cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER(cuMemMap, false);
    const reserved wanted = {(char *)(uintptr_t)at, bytes};
    block other;
    if (offset != 0 || flags != 0 || bytes == 0 || standin_search(is_within, &wanted, &other)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&standin_virtual_lock);
    physical *one = standin_physical_known(handle);
    const fleet_page *fleet = one != NULL ? one->fleet : NULL;
    pthread_mutex_unlock(&standin_virtual_lock);
    if (fleet != NULL) {
        standin_fleet_await(fleet);
    }
    pthread_mutex_lock(&standin_virtual_lock);
    reserved *range = range_of(wanted.base, bytes);
    CUresult result = one == NULL || range == NULL || bytes != one->bytes
                          ? CUDA_ERROR_INVALID_VALUE
                          : map(range, wanted.base, bytes, one);
    pthread_mutex_unlock(&standin_virtual_lock);
    return result;
}

/* A whole mapping, when what is under way is done. */
CUresult CUDAAPI cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    ENTER(cuMemUnmap, false);
    block one;
    if (!standin_find((void *)(uintptr_t)at, bytes, &one) || one.kind != BLOCK_MAPPED ||
        one.bytes != bytes || (CUdeviceptr)(uintptr_t)one.base != at) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int d = 0; d < MOST_DEVICES && standin_random(2) == 0; d++) {
        standin_drain(d);
    }
    if (!standin_take_out(one.base, BLOCK_MAPPED, &one)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!one.is_fleet) {
        (void)mmap(one.memory, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    pthread_mutex_lock(&standin_virtual_lock);
    drop(one.physical);
    pthread_mutex_unlock(&standin_virtual_lock);
    return CUDA_SUCCESS;
}

static void give_access(block *one, void *context)
{
    one->access |= *(const unsigned *)context;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *wanted,
                                size_t n)
{
    ENTER(cuMemSetAccess, false);
    unsigned access = 0;
    for (size_t i = 0; wanted != NULL && i < n; i++) {
        if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        access |= 1u << wanted[i].location.id;
    }
    for (size_t done = 0; done < bytes;) {
        block one;
        if (!standin_find((void *)(uintptr_t)(at + done), 1, &one) || one.kind != BLOCK_MAPPED ||
            (CUdeviceptr)(uintptr_t)one.base != at + done || one.bytes > bytes - done) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        bool is_seen =
            (access & ~(1u << one.device)) == 0 || one.is_fleet || getenv("STANDIN_PEERS") != NULL;
        if (!is_seen) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        (void)standin_change(one.base, BLOCK_MAPPED, give_access, &access);
        done += one.bytes;
    }
    return access != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *place, void *pointer)
{
    ENTER(cuMemRetainAllocationHandle, false);
    block one;
    if (place == NULL || !standin_find(pointer, 1, &one) || one.kind != BLOCK_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&standin_virtual_lock);
    one.physical->n_users++;
    pthread_mutex_unlock(&standin_virtual_lock);
    *place = (CUmemGenericAllocationHandle)(uintptr_t)one.physical;
    return CUDA_SUCCESS;
}

/*
 * Allocations
 */

CUresult standin_alloc_pieces(CUdeviceptr *place, size_t bytes)
{
    int device = standin_current()->device;
    const CUmemAllocationProp wanted = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    const CUmemAccessDesc access = {.location = wanted.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t all_bytes = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    CUdeviceptr base = 0;
    CUresult result = cuMemAddressReserve(&base, all_bytes, 0, 0, 0);
    for (size_t done = 0, n; result == CUDA_SUCCESS && done < all_bytes; done += n) {
        CUmemGenericAllocationHandle handle;
        n = GRAIN;
        result = cuMemCreate(&handle, n, &wanted, 0);
        if (result == CUDA_SUCCESS) {
            result = cuMemMap(base + done, n, 0, handle, 0);
            (void)cuMemRelease(handle);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = cuMemSetAccess(base, all_bytes, &access, 1);
    }
    if (result == CUDA_SUCCESS) {
        memset((char *)(uintptr_t)base + all_bytes, 0xa5, bytes);
        *place = base;
    }
    return result;
}

CUresult standin_free_pieces(CUdeviceptr at)
{
    pthread_mutex_lock(&standin_virtual_lock);
    const reserved *range = range_of((char *)(uintptr_t)at, 1);
    size_t bytes = range != NULL && range->base == (char *)(uintptr_t)at ? range->bytes : 0;
    pthread_mutex_unlock(&standin_virtual_lock);
    CUresult result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (int d = 0; bytes > 0 && d < MOST_DEVICES; d++) {
        standin_drain(d);
    }
    for (size_t done = 0; result == CUDA_SUCCESS && done < bytes; done += GRAIN) {
        result = cuMemUnmap(at + done, GRAIN);
    }
    return result == CUDA_SUCCESS ? cuMemAddressFree(at, bytes) : result;
}
