/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Fleets by multicast objects: one object, of which all ranks have a handle, and each has a device
 * in it and memory bound to it. */
#include "exec/fleet.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/reaper.h"
#include "memory/cuda/share.h"

#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(fy_cuda_handle) <= FY_FLEET_HANDLE_BYTES, "handles fit");

/* What there is of it so far; a handle or an address of 0 is none. */
struct fy_fleet {
    int32_t number; /* the device's */
    uint64_t bytes;
    CUmemGenericAllocationHandle object, memory;
    bool is_bound;
    fy_cuda_handle name; /* of the object, by who has made it: its magic is 0 else */
    CUdeviceptr own, all;
    bool own_is_mapped, all_is_mapped;
};

static CUmulticastObjectProp wish_of(uint32_t n_devices, uint64_t bytes)
{
    return (CUmulticastObjectProp){.numDevices = n_devices,
                                   .size = (size_t)bytes,
                                   .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
}

/* Memory that is bound to an object whose descriptor goes to others must have one, too. */
static CUmemAllocationProp memory_of(int32_t number)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = number}};
}

/* Entered. Both are powers of two. */
static ferry_status find_unit(int32_t number, uint32_t n_devices, uint64_t bytes,
                              uint64_t *unit_out, ferry_error *error)
{
    CUmulticastObjectProp wish = wish_of(n_devices, bytes);
    CUmemAllocationProp memory = memory_of(number);
    size_t of_object = 0, of_memory = 0;
    FY_TRY(fy_cuda_check(
        fy_cuda.cuMulticastGetGranularity(&of_object, &wish, CU_MULTICAST_GRANULARITY_MINIMUM),
        "asking for the granularity of multicast objects", error));
    FY_TRY(fy_cuda_check(fy_cuda.cuMemGetAllocationGranularity(&of_memory, &memory,
                                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                         "asking for the granularity of memory", error));
    *unit_out = fy_max(of_object, of_memory);
    return FERRY_OK;
}

static ferry_status ask(int32_t number, uint32_t n_devices, uint64_t bytes, uint64_t *unit_out,
                        ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(number, &device, error));
    ferry_status status = fy_cuda_check_multicast(number, error);
    FY_THEN(status, find_unit(number, n_devices, bytes, unit_out, error));
    fy_cuda_leave();
    return status;
}

/*
 * Ending it
 */

static void unmap(CUdeviceptr at, bool is_mapped, uint64_t bytes)
{
    if (is_mapped) {
        (void)fy_cuda.cuMemUnmap(at, (size_t)bytes);
    }
    if (at != 0) {
        (void)fy_cuda.cuMemAddressFree(at, (size_t)bytes);
    }
}

/* Memory is unbound before it is released, and the object is released last. */
static CUresult end(CUdeviceptr given)
{
    fy_fleet *fleet = (fy_fleet *)(uintptr_t)given;
    CUdevice device;
    unmap(fleet->all, fleet->all_is_mapped, fleet->bytes);
    unmap(fleet->own, fleet->own_is_mapped, fleet->bytes);
    if (fleet->is_bound && fy_cuda.cuDeviceGet(&device, fleet->number) == CUDA_SUCCESS) {
        (void)fy_cuda.cuMulticastUnbind(fleet->object, device, 0, (size_t)fleet->bytes);
    }
    if (fleet->memory != 0) {
        (void)fy_cuda.cuMemRelease(fleet->memory);
    }
    if (fleet->name.magic != 0) {
        fy_cuda_pieces_withdraw(&fleet->name);
    } else if (fleet->object != 0) {
        (void)fy_cuda.cuMemRelease(fleet->object);
    }
    fy_free(fleet);
    return CUDA_SUCCESS;
}

/* The driver may wait for all streams in these calls, as where memory is freed. */
static void leave(fy_fleet *fleet)
{
    if (fleet != NULL) {
        fy_cuda_reap(&(fy_cuda_grave){
            .device = fleet->number, .given = (CUdeviceptr)(uintptr_t)fleet, .end = end});
    }
}

/*
 * Making it
 */

static ferry_status begin(int32_t number, uint64_t bytes, fy_fleet **fleet_out, ferry_error *error)
{
    *fleet_out = fy_alloc_zeroed(1, sizeof **fleet_out);
    FY_TRY(fy_check_memory(*fleet_out != NULL, "a fleet of devices", error));
    (*fleet_out)->number = number;
    (*fleet_out)->bytes = bytes;
    return FERRY_OK;
}

/* In the device's context; what cannot be named is gone. */
static ferry_status create(fy_fleet *fleet, uint32_t n_devices, ferry_error *error)
{
    CUmulticastObjectProp wish = wish_of(n_devices, fleet->bytes);
    CUmemGenericAllocationHandle object;
    fy_cuda_handle name = {.magic = FY_CUDA_HANDLE_MAGIC, .pid = (int32_t)getpid()};
    FY_TRY(fy_cuda_check(fy_cuda.cuMulticastCreate(&object, &wish), "making a multicast object",
                         error));
    FY_TRY(fy_cuda_pieces_name_one(object, fleet->bytes, &name, error));
    fleet->object = object;
    fleet->name = name;
    return FERRY_OK;
}

/* Where something has failed leave() ends what there is. */
static ferry_status entered(fy_fleet *fleet,
                            ferry_status (*step)(fy_fleet *, void *, ferry_error *), void *context,
                            ferry_error *error)
{
    const fy_cuda_device *device;
    FY_TRY(fy_cuda_enter(fleet->number, &device, error));
    ferry_status status = step(fleet, context, error);
    fy_cuda_leave();
    return status;
}

static ferry_status create_step(fy_fleet *fleet, void *n_devices, ferry_error *error)
{
    return create(fleet, *(const uint32_t *)n_devices, error);
}

static ferry_status make(int32_t number, uint32_t n_devices, uint64_t bytes, void *handle,
                         fy_fleet **fleet_out, ferry_error *error)
{
    FY_TRY(begin(number, bytes, fleet_out, error));
    FY_TRY(entered(*fleet_out, create_step, &n_devices, error));
    memcpy(handle, &(*fleet_out)->name, sizeof(*fleet_out)->name);
    return FERRY_OK;
}

static ferry_status import_step(fy_fleet *fleet, void *handle, ferry_error *error)
{
    fy_cuda_handle its;
    int fd;
    memcpy(&its, handle, sizeof its);
    if (its.magic != FY_CUDA_HANDLE_MAGIC || its.way != FY_CUDA_BY_FILES ||
        its.bytes != fleet->bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "what the first rank says names no such object");
    }
    FY_TRY(fy_cuda_files_take(&its, &fd, error));
    CUresult result = fy_cuda.cuMemImportFromShareableHandle(
        &fleet->object, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(fd);
    fleet->object = result == CUDA_SUCCESS ? fleet->object : 0;
    return fy_cuda_check(result, "opening a multicast object of another process", error);
}

static ferry_status join(int32_t number, uint64_t bytes, const void *handle, fy_fleet **fleet_out,
                         ferry_error *error)
{
    FY_TRY(begin(number, bytes, fleet_out, error));
    return entered(*fleet_out, import_step, (void *)(uintptr_t)handle, error);
}

static ferry_status enter_step(fy_fleet *fleet, void *context, ferry_error *error)
{
    CUdevice device;
    (void)context;
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&device, fleet->number), "finding a device", error));
    return fy_cuda_check(fy_cuda.cuMulticastAddDevice(fleet->object, device),
                         "adding a device to a multicast object", error);
}

static ferry_status enter(fy_fleet *fleet, ferry_error *error)
{
    return entered(fleet, enter_step, NULL, error);
}

static ferry_status bind_step(fy_fleet *fleet, void *context, ferry_error *error)
{
    CUmemAllocationProp wish = memory_of(fleet->number);
    CUmemGenericAllocationHandle memory;
    (void)context;
    FY_TRY(fy_cuda_check(fy_cuda.cuMemCreate(&memory, (size_t)fleet->bytes, &wish, 0),
                         "taking memory for a multicast object", error));
    fleet->memory = memory;
    FY_TRY(fy_cuda_check(
        fy_cuda.cuMulticastBindMem(fleet->object, 0, memory, 0, (size_t)fleet->bytes, 0),
        "binding memory to a multicast object", error));
    fleet->is_bound = true;
    return FERRY_OK;
}

static ferry_status bind(fy_fleet *fleet, ferry_error *error)
{
    return entered(fleet, bind_step, NULL, error);
}

/* At an address of its own, which only this device reaches. */
static CUresult map_one(const fy_fleet *fleet, CUmemGenericAllocationHandle what, uint64_t unit,
                        CUdeviceptr *at, bool *is_mapped)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = fleet->number},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t bytes = (size_t)fleet->bytes;
    CUdeviceptr place = 0;
    CUresult result = fy_cuda.cuMemAddressReserve(&place, bytes, (size_t)unit, 0, 0);
    *at = result == CUDA_SUCCESS ? place : 0;
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuMemMap(place, bytes, 0, what, 0);
        *is_mapped = result == CUDA_SUCCESS;
    }
    return result == CUDA_SUCCESS ? fy_cuda.cuMemSetAccess(place, bytes, &access, 1) : result;
}

static ferry_status map_step(fy_fleet *fleet, void *context, ferry_error *error)
{
    fy_fleet_addresses *addresses = context;
    uint64_t unit = fleet->bytes & (~fleet->bytes + 1); /* no less than what was asked for */
    CUresult result = map_one(fleet, fleet->memory, unit, &fleet->own, &fleet->own_is_mapped);
    if (result == CUDA_SUCCESS) {
        result = map_one(fleet, fleet->object, unit, &fleet->all, &fleet->all_is_mapped);
    }
    FY_TRY(fy_cuda_check(result, "mapping a multicast object", error));
    *addresses = (fy_fleet_addresses){.own = fleet->own, .all = fleet->all};
    return FERRY_OK;
}

static ferry_status map(fy_fleet *fleet, fy_fleet_addresses *addresses_out, ferry_error *error)
{
    return entered(fleet, map_step, addresses_out, error);
}

const fy_fleets fy_cuda_fleets = {.ask = ask,
                                  .make = make,
                                  .join = join,
                                  .enter = enter,
                                  .bind = bind,
                                  .map = map,
                                  .leave = leave};
