/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast objects. Memory that is bound moves into the object's file, so that all processes that
 * have the object reach it. What cuda.h leaves to whoever binds is looked at, too: memory that is
 * released while it is bound ends the process.
 */
#include "device/standin/virtual.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static bool is_supported(void)
{
    return getenv("STANDIN_MULTICAST") != NULL;
}

static size_t file_bytes_of(unsigned n_devices, size_t bytes)
{
    return 2 * (size_t)PAGE + n_devices * bytes;
}

/* STANDIN_MULTICAST_LEAKS, a file: a line of a process that ends with objects or bound memory. */
static _Atomic int n_left;
__attribute__((destructor)) static void say_what_is_left(void)
{
    const char *path = getenv("STANDIN_MULTICAST_LEAKS");
    int file = path != NULL && atomic_load(&n_left) != 0
                   ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)
                   : -1;
    if (file >= 0) {
        dprintf(file, "%d are left\n", atomic_load(&n_left));
        close(file);
    }
}

fleet_page *standin_fleet_open(int file, size_t file_bytes)
{
    fleet_page *fleet = mmap(NULL, file_bytes - PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (fleet == MAP_FAILED) {
        return NULL;
    }
    atomic_fetch_add(&n_left, 1);
    return fleet;
}

void standin_fleet_close(fleet_page *fleet)
{
    atomic_fetch_sub(&n_left, 1);
    munmap(fleet, file_bytes_of(fleet->n_devices, fleet->bytes) - PAGE);
}

void standin_fleet_await(const fleet_page *fleet)
{
    const struct timespec moment = {.tv_nsec = 100000};
    while (atomic_load(&fleet->n_added) < fleet->n_devices) {
        nanosleep(&moment, NULL);
    }
}

/* The place of a device among those of the object; -1: it was not added. */
static int place_of(const fleet_page *fleet, int device)
{
    for (unsigned k = 0; k < fleet->n_devices; k++) {
        if (atomic_load(&fleet->devices[k]) == 1 + standin_physical(device)) {
            return (int)k;
        }
    }
    return -1;
}

bool standin_fleet_place(const fleet_page *fleet, int device, uint64_t *at_out)
{
    int k = place_of(fleet, device);
    *at_out = PAGE + (uint64_t)(k < 0 ? 0 : k) * fleet->bytes;
    return k >= 0;
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *wanted,
                                           CUmulticastGranularity_flags which)
{
    ENTER(cuMulticastGetGranularity, false);
    if (bytes == NULL || wanted == NULL || (unsigned)which > 1 || wanted->numDevices == 0 ||
        wanted->size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = which == CU_MULTICAST_GRANULARITY_MINIMUM ? FLEET_GRAIN : 2 * FLEET_GRAIN;
    return is_supported() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static int make_file(const CUmulticastObjectProp *wanted)
{
    size_t bytes = file_bytes_of(wanted->numDevices, wanted->size);
    uint64_t about[2] = {STANDIN_FLEET_MAGIC, 0};
    int file = memfd_create("stand-in-multicast", MFD_CLOEXEC);
    if (file >= 0 &&
        (ftruncate(file, (off_t)bytes) != 0 ||
         pwrite(file, about, sizeof about, (off_t)(bytes - PAGE)) != (ssize_t)sizeof about)) {
        close(file);
        file = -1;
    }
    return file;
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *place,
                                   const CUmulticastObjectProp *wanted)
{
    ENTER(cuMulticastCreate, false);
    if (place == NULL || wanted == NULL || wanted->numDevices == 0 ||
        wanted->numDevices > MOST_DEVICES || wanted->size == 0 || wanted->size % FLEET_GRAIN != 0 ||
        wanted->flags != 0 ||
        (wanted->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
            0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_supported()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    physical one = {.file = make_file(wanted), .bytes = wanted->size, .device = -1};
    one.fleet = one.file >= 0
                    ? standin_fleet_open(one.file, file_bytes_of(wanted->numDevices, wanted->size))
                    : NULL;
    if (one.fleet == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    one.is_shared = wanted->handleTypes != 0;
    one.fleet->magic = STANDIN_FLEET_MAGIC;
    one.fleet->bytes = wanted->size;
    one.fleet->n_devices = wanted->numDevices;
    one.fleet->is_shared = one.is_shared;
    return standin_physical_keep(&one, place);
}

/* It stays until it is released: nobody else ends a handle of this rank's. */
static physical *find(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&standin_virtual_lock);
    physical *one = standin_physical_known(handle);
    pthread_mutex_unlock(&standin_virtual_lock);
    return one;
}

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    ENTER(cuMulticastAddDevice, false);
    const physical *one = find(handle);
    int n_devices = 0;
    if (one == NULL || one->fleet == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (cuDeviceGetCount(&n_devices) != CUDA_SUCCESS || device < 0 || device >= n_devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (place_of(one->fleet, device) >= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned k = 0; k < one->fleet->n_devices; k++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&one->fleet->devices[k], &none,
                                           1 + standin_physical(device))) {
            atomic_fetch_add(&one->fleet->n_added, 1);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Only whole objects are bound here, to whole memory that nobody has mapped yet. */
static CUresult bind(physical *object, physical *memory)
{
    uint64_t at;
    if (!standin_fleet_place(object->fleet, memory->device, &at)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned k = (unsigned)((at - PAGE) / object->bytes);
    int file = fcntl(object->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0 || atomic_exchange(&object->fleet->is_bound[k], true)) {
        close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    close(memory->file);
    memory->file = file;
    memory->at = at;
    memory->bound_to = (CUmemGenericAllocationHandle)(uintptr_t)object;
    atomic_fetch_add(&n_left, 1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                    CUmemGenericAllocationHandle memory_handle, size_t memory_at,
                                    size_t bytes, unsigned long long flags)
{
    ENTER(cuMulticastBindMem, false);
    physical *object = find(handle), *memory = find(memory_handle);
    if (object == NULL || object->fleet == NULL || memory == NULL || memory->fleet != NULL ||
        flags != 0 || bytes == 0 || bytes % FLEET_GRAIN != 0 || at % FLEET_GRAIN != 0 ||
        memory_at % FLEET_GRAIN != 0 || at + bytes > object->bytes ||
        memory_at + bytes > memory->bytes || (object->is_shared && !memory->is_shared)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes != object->bytes || bytes != memory->bytes) {
        fprintf(stderr, "stand-in: a part of memory, or of a multicast object, is bound\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    standin_fleet_await(object->fleet);
    pthread_mutex_lock(&standin_virtual_lock);
    CUresult result = memory->n_users == 1 && memory->bound_to == 0 ? bind(object, memory)
                                                                    : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&standin_virtual_lock);
    return result;
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                   size_t bytes)
{
    ENTER(cuMulticastUnbind, false);
    const physical *object = find(handle);
    int k = object != NULL && object->fleet != NULL ? place_of(object->fleet, device) : -1;
    if (k < 0 || at != 0 || bytes != object->bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_drain(device);
    if (!atomic_exchange(&object->fleet->is_bound[k], false)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    standin_virtual_unbind(handle, device);
    atomic_fetch_sub(&n_left, 1);
    return CUDA_SUCCESS;
}

/* What a block is to kernels that reach it by an address for all devices. */
uint32_t standin_reach_all(int device, uint64_t at, size_t bytes, void *places[TWIN_MOST_PLACES])
{
    block one;
    if (!standin_find((void *)(uintptr_t)at, bytes, &one) || one.kind != BLOCK_MAPPED ||
        !one.is_fleet || (one.access >> device & 1) == 0) {
        return 0;
    }
    const fleet_page *fleet = one.physical->fleet;
    for (unsigned k = 0; k < fleet->n_devices; k++) {
        if (!atomic_load(&fleet->is_bound[k])) {
            fprintf(stderr, "stand-in: a device of a multicast object has no memory bound\n");
            return 0;
        }
        places[k] = one.memory + k * fleet->bytes + (at - (uintptr_t)one.base);
    }
    return fleet->n_devices;
}
