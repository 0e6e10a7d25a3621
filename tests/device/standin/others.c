/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <stdlib.h>
#include <string.h>

/*
 * Calls that ferry makes none of, and UCX does: its module for CUDA is linked against the driver,
 * and is not loaded where one is absent. Of pools and managed memory there is none here.
 */

CUresult CUDAAPI cuCtxGetDevice(CUdevice *place)
{
    ENTER(cuCtxGetDevice, true);
    if (place == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *place = standin_current()->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext one, unsigned long long *place)
{
    ENTER(cuCtxGetId, one == NULL);
    one = one == NULL ? standin_current() : one;
    if (place == NULL || one->n_retained == 0) {
        return place == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    }
    *place = 1 + (unsigned long long)(one - standin_contexts);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active)
{
    ENTER(cuDevicePrimaryCtxGetState, false);
    int n_devices = 0;
    (void)cuDeviceGetCount(&n_devices);
    if (device < 0 || device >= n_devices || flags == NULL || is_active == NULL) {
        return flags == NULL || is_active == NULL ? CUDA_ERROR_INVALID_VALUE
                                                  : CUDA_ERROR_INVALID_DEVICE;
    }
    *flags = 0;
    *is_active = standin_contexts[device].n_retained > 0;
    return CUDA_SUCCESS;
}

/* The call's first version, which cuda.h has no name for any more, gives the same here. */
CUresult CUDAAPI its_uuid(CUuuid *uuid, CUdevice device) __asm__("cuDeviceGetUuid");

CUresult CUDAAPI its_uuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute which,
                                       CUdeviceptr pointer)
{
    ENTER(cuPointerSetAttribute, false);
    block one;
    bool known = standin_find((void *)(uintptr_t)pointer, 1, &one) && one.kind <= BLOCK_MAPPED;
    return known && value != NULL && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    return cuMemcpyAsync(to, from, bytes, handle);
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    CUstream stream;
    CUresult result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuMemcpyAsync(to, (CUdeviceptr)(uintptr_t)from, bytes, stream);
    CUresult ended = cuStreamSynchronize(stream);
    (void)cuStreamDestroy(stream);
    return result == CUDA_SUCCESS ? ended : result;
}

typedef struct callback {
    CUstream stream;
    CUstreamCallback function;
    void *context;
} callback;

static void CUDA_CB call_back(void *context)
{
    callback one = *(callback *)context;
    free(context);
    one.function(one.stream, CUDA_SUCCESS, one.context);
}

CUresult CUDAAPI cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *context,
                                     unsigned flags)
{
    callback *one = function == NULL || flags != 0 ? NULL : malloc(sizeof *one);
    if (one == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *one = (callback){stream, function, context};
    CUresult result = cuLaunchHostFunc(stream, call_back, one);
    if (result != CUDA_SUCCESS) {
        free(one);
    }
    return result;
}

#define ABSENT(name, ...)                                                                          \
    CUresult CUDAAPI name(__VA_ARGS__)                                                             \
    {                                                                                              \
        ENTER(name, false);                                                                        \
        return CUDA_ERROR_NOT_SUPPORTED;                                                           \
    }
#define UNUSED __attribute__((unused))

ABSENT(cuMemAllocManaged, UNUSED CUdeviceptr *place, UNUSED size_t bytes, UNUSED unsigned flags)
ABSENT(cuMemGetAllocationPropertiesFromHandle, UNUSED CUmemAllocationProp *place,
       UNUSED CUmemGenericAllocationHandle handle)
ABSENT(cuMemRangeGetAttribute, UNUSED void *place, UNUSED size_t bytes,
       UNUSED CUmem_range_attribute which, UNUSED CUdeviceptr at, UNUSED size_t count)
ABSENT(cuMemPoolDestroy, UNUSED CUmemoryPool pool)
ABSENT(cuMemPoolSetAccess, UNUSED CUmemoryPool pool, UNUSED const CUmemAccessDesc *wanted,
       UNUSED size_t n)
ABSENT(cuMemPoolExportToShareableHandle, UNUSED void *place, UNUSED CUmemoryPool pool,
       UNUSED CUmemAllocationHandleType type, UNUSED unsigned long long flags)
ABSENT(cuMemPoolImportFromShareableHandle, UNUSED CUmemoryPool *place, UNUSED void *handle,
       UNUSED CUmemAllocationHandleType type, UNUSED unsigned long long flags)
ABSENT(cuMemPoolExportPointer, UNUSED CUmemPoolPtrExportData *place, UNUSED CUdeviceptr pointer)
ABSENT(cuMemPoolImportPointer, UNUSED CUdeviceptr *place, UNUSED CUmemoryPool pool,
       UNUSED CUmemPoolPtrExportData *data)
