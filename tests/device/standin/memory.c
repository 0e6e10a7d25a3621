/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRANULE = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static unsigned long long n_made;

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
    bool found = one != NULL;
    block whole = found ? *one : (block){.base = NULL};
    size_t wanted = (size_t)((uintptr_t)pointer - (uintptr_t)whole.base) + bytes;
    while (found && whole.bytes < wanted) { /* mappings that follow each other are like one */
        const block *next = find(whole.base + whole.bytes);
        found = next != NULL && next->kind == BLOCK_MAPPED && whole.kind == BLOCK_MAPPED &&
                next->memory == whole.memory + whole.bytes;
        whole.bytes += found ? next->bytes : 0;
        whole.access &= found ? next->access : 0;
    }
    pthread_mutex_unlock(&lock);
    if (found) {
        *block_out = whole;
    }
    return found;
}

/* What its owner has freed is nobody's any more. */
static bool is_reached(int device, const block *one)
{
    switch (one->kind) {
    case BLOCK_DEVICE:
        return standin_sees(device, one->device);
    case BLOCK_OPENED:
        if (__atomic_load_n(&one->shared->is_freed, __ATOMIC_ACQUIRE) != 0) {
            fprintf(stderr, "stand-in: memory of another process, which has freed it, is used\n");
            return false;
        }
        return one->device == device;
    case BLOCK_MAPPED:
        return !one->is_fleet && (one->access >> device & 1) != 0;
    default:
        return true;
    }
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
    return is_reached(device, &last) ? last.memory + (pointer - last.base) : NULL;
}

static void *look_up(uint64_t at, uint32_t bytes, int writes)
{
    (void)writes;
    return standin_reach(twin_device, at, bytes);
}

static uint32_t look_up_all(uint64_t at, uint32_t bytes, void *places[TWIN_MOST_PLACES])
{
    return standin_reach_all(twin_device, at, bytes, places);
}

bool standin_is_bound(uint64_t at)
{
    static _Thread_local block last; /* as standin_reach has one */
    static _Thread_local unsigned long long seen;
    unsigned long long now = __atomic_load_n(&n_made, __ATOMIC_ACQUIRE);
    if (seen != now || at - (uintptr_t)last.base >= last.bytes) {
        if (!standin_find((const void *)(uintptr_t)at, 1, &last)) {
            last = (block){.base = NULL};
        }
        seen = now;
    }
    return last.is_bound;
}

static bool is_lost(int device)
{
    return standin_lost[device] != 0;
}

/* Before there are threads that run kernels. */
__attribute__((constructor)) static void tell_the_twin(void)
{
    twin_look_up = look_up;
    twin_is_lost = is_lost;
    twin_look_up_all = look_up_all;
}

CUresult standin_add(const block *one)
{
    block *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = *one;
    if (one->is_fleet) { /* not before, for it takes long */
        __atomic_store_n(&twin_is_of_fleet, standin_is_bound, __ATOMIC_RELEASE);
    }
    pthread_mutex_lock(&lock);
    fresh->number = __atomic_add_fetch(&n_made, 1, __ATOMIC_RELEASE);
    fresh->next = blocks;
    blocks = fresh;
    if (fresh->shared != NULL && fresh->kind == BLOCK_DEVICE) {
        fresh->shared->number = fresh->number;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Under the lock. */
static block **link_of(const void *base, block_kind kind)
{
    block **link = &blocks;
    while (*link != NULL && ((*link)->base != base || (*link)->kind != kind)) {
        link = &(*link)->next;
    }
    return link;
}

bool standin_take_out(const void *base, block_kind kind, block *block_out)
{
    pthread_mutex_lock(&lock);
    block **link = link_of(base, kind);
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

bool standin_change(const void *base, block_kind kind, void (*change)(block *one, void *context),
                    void *context)
{
    pthread_mutex_lock(&lock);
    block *found = *link_of(base, kind);
    if (found != NULL) {
        change(found, context);
        __atomic_add_fetch(&n_made, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

bool standin_search(bool (*is)(const block *one, const void *context), const void *context,
                    block *block_out)
{
    pthread_mutex_lock(&lock);
    const block *one = blocks;
    while (one != NULL && !is(one, context)) {
        one = one->next;
    }
    if (one != NULL) {
        *block_out = *one;
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

char *standin_map(int file, uint64_t at, size_t half)
{
    char *base =
        mmap(NULL, 2 * half + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED && mmap(base + half, half + PAGE, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_FIXED, file, (off_t)at) == MAP_FAILED) {
        munmap(base, 2 * half + PAGE);
        base = MAP_FAILED;
    }
    return base == MAP_FAILED ? NULL : base;
}

/*
 * The file that device memory of this process lies in, of which others map what they open: what is
 * freed leaves a hole, and nothing comes to its place again.
 */
int standin_file = -1;

static uint64_t used, n_rooms;

static uint64_t take_room(size_t bytes)
{
    pthread_mutex_lock(&lock);
    n_rooms++;
    if (standin_file < 0) {
        standin_file = memfd_create("stand-in", MFD_CLOEXEC);
    }
    uint64_t at = used;
    used += bytes;
    if (standin_file >= 0 && ftruncate(standin_file, (off_t)used) != 0) {
        fprintf(stderr, "stand-in: a file in memory may not have %llu bytes\n",
                (unsigned long long)used);
    }
    pthread_mutex_unlock(&lock);
    return at;
}

/* The file goes when nothing is in it, for tests count descriptors. */
static void leave_room(uint64_t at, size_t bytes)
{
    (void)fallocate(standin_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                    (off_t)bytes);
    pthread_mutex_lock(&lock);
    if (--n_rooms == 0) {
        close(standin_file);
        standin_file = -1;
        used = 0;
    }
    pthread_mutex_unlock(&lock);
}

/* Behind a barred part of the same size, and not aligned to more than the driver says. */
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *place, size_t bytes)
{
    ENTER(cuMemAlloc, true);
    size_t shift = (size_t)standin_random(4) * GRANULE;
    if (place == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > (size_t)1 << 40) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (getenv("STANDIN_VIRTUAL") != NULL) {
        return standin_alloc_pieces(place, bytes);
    }
    size_t half = (bytes + shift + PAGE - 1) / PAGE * PAGE;
    uint64_t at = take_room(half + PAGE);
    char *base = standin_map(standin_file, at, half);
    if (base == NULL) {
        leave_room(at, half);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    block one = {.kind = BLOCK_DEVICE,
                 .device = standin_current()->device,
                 .base = base + shift,
                 .bytes = bytes,
                 .memory = base + half + shift,
                 .mapped = half,
                 .shared = (shared *)(void *)(base + 2 * half),
                 .file_at = at};
    memset(base + half, 0xa5, half); /* nobody has promised zeros */
    *one.shared = (shared){.magic = STANDIN_MAGIC,
                           .physical = standin_physical(one.device),
                           .bytes = bytes,
                           .shift = shift};
    CUresult result = standin_add(&one);
    if (result != CUDA_SUCCESS) {
        munmap(base, 2 * half + PAGE);
        leave_room(at, half);
        return result;
    }
    *place = (CUdeviceptr)(uintptr_t)one.base;
    return CUDA_SUCCESS;
}

/* One that is stopped, or is over and only waited for, closes nothing: nobody can wait for it. */
static bool can_close(int pid)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)fscanf(file, "%*d (%*[^)]) %c", &state);
        fclose(file);
    }
    return strchr("XZTt", state) == NULL;
}

/* cuda.h leaves open what becomes of memory that another process has open, and that is freed. */
static void say_who_has_it(const block *one)
{
    for (int i = 0; i < MOST_OPENERS && getenv("STANDIN_LAX") == NULL; i++) {
        int pid = __atomic_load_n(&one->shared->openers[i], __ATOMIC_ACQUIRE);
        if (pid > 0 && can_close(pid)) {
            fprintf(stderr, "stand-in: memory is freed that process %d has open\n", pid);
            abort();
        }
    }
}

CUresult CUDAAPI cuMemFree(CUdeviceptr place)
{
    ENTER(cuMemFree, true);
    block one;
    if (getenv("STANDIN_VIRTUAL") != NULL) {
        return standin_free_pieces(place);
    }
    if (!standin_find((void *)(uintptr_t)place, 1, &one) || one.kind != BLOCK_DEVICE ||
        (CUdeviceptr)(uintptr_t)one.base != place) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain(one.device);
    if (!standin_take_out(one.base, BLOCK_DEVICE, &one)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    say_who_has_it(&one);
    __atomic_store_n(&one.shared->is_freed, 1, __ATOMIC_RELEASE);
    munmap((char *)((uintptr_t)one.base / PAGE * PAGE), 2 * one.mapped + PAGE);
    /* The page behind it stays, for who has it open. */
    leave_room(one.file_at, one.mapped);
    return CUDA_SUCCESS;
}

static CUresult add_host(block_kind kind, char *base, size_t bytes)
{
    const block one = {.kind = kind, .base = base, .bytes = bytes, .memory = base};
    return standin_add(&one);
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
    CUresult result = add_host(BLOCK_PINNED, base, bytes);
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
    if (!standin_take_out(base, BLOCK_PINNED, &one)) {
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
    return add_host(BLOCK_REGISTERED, base, bytes);
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
    return standin_take_out(base, BLOCK_REGISTERED, &one) ? CUDA_SUCCESS
                                                          : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    ENTER(cuMemGetAddressRange, true);
    block one;
    if (!standin_find((void *)(uintptr_t)pointer, 1, &one) || one.kind > BLOCK_MAPPED) {
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
                        : one->kind <= BLOCK_MAPPED ? CU_MEMORYTYPE_DEVICE
                                                    : CU_MEMORYTYPE_HOST;
    int device = known ? one->device : -2;
    CUcontext owner = known && one->kind != BLOCK_MAPPED ? &standin_contexts[one->device] : NULL;
    unsigned is_capable = known && one->kind == BLOCK_DEVICE && getenv("STANDIN_NO_IPC") == NULL;
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
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        put(place, &is_capable, sizeof is_capable);
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
