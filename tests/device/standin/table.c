/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "device/standin/standin.h"

#include <stdlib.h>
#include <string.h>

/* By name, in the versions of cuda.h: what the driver of that version gives. */
#define CALLS(X)                                                                                   \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGet)           \
    X(cuDeviceGetCount) X(cuDeviceGetAttribute) X(cuDeviceGetName) X(cuDeviceTotalMem)             \
    X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)              \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetCurrent) X(cuCtxGetStreamPriorityRange)       \
    X(cuCtxSynchronize) X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy)         \
    X(cuStreamGetCtx) X(cuStreamIsCapturing) X(cuStreamBeginCapture) X(cuStreamEndCapture)         \
    X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamWaitValue64)            \
    X(cuStreamWriteValue64) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery)    \
    X(cuEventSynchronize) X(cuEventElapsedTime) X(cuLaunchHostFunc) X(cuMemAlloc) X(cuMemFree)     \
    X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister)                 \
    X(cuMemGetAddressRange) X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuMemcpyAsync)    \
    X(cuMemsetD8Async) X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuKernelGetFunction)           \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuKernelGetParamInfo) X(cuFuncLoad)           \
    X(cuLaunchKernel) X(cuCtxEnablePeerAccess) X(cuDeviceGetUuid) X(cuIpcGetMemHandle)             \
    X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemGetAllocationGranularity) X(cuMemCreate)   \
    X(cuMemRelease) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)              \
    X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)         \
    X(cuMemRetainAllocationHandle) X(cuStreamGetCaptureInfo) X(cuThreadExchangeStreamCaptureMode)  \
    X(cuUserObjectCreate) X(cuUserObjectRelease) X(cuGraphRetainUserObject) X(cuGraphInstantiate)  \
    X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuMulticastCreate)                  \
    X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastUnbind)                             \
    X(cuMulticastGetGranularity) X(cuFuncGetAttribute)

typedef void (*any_fn)(void);

static const struct {
    const char *name;
    any_fn function;
} table[] = {
#define ROW(call) {#call, (any_fn)call},
    CALLS(ROW)
#undef ROW
};

CUresult CUDAAPI cuGetProcAddress(const char *name, void **place, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *found)
{
    if (name == NULL || place == NULL || version > 13000 || flags > 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const char *lacks = getenv("STANDIN_LACKS");
    *place = NULL;
    if (lacks != NULL && strcmp(lacks, name) == 0) {
        return CUDA_ERROR_NOT_FOUND;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].name, name) == 0) {
            memcpy(place, &table[i].function, sizeof *place);
        }
    }
    if (found != NULL) {
        *found = *place != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return *place != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
