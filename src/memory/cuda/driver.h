/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_DRIVER_H
#define FY_MEMORY_CUDA_DRIVER_H

#include "base/status.h"

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

/*
 * The driver's functions, found at run time: the plugin is linked with nothing of CUDA. Behind each
 * name is the version whose signature cuda.h declares. Those of FY_CUDA_EXTRAS may be NULL.
 */
#define FY_CUDA_CALLS(X)                                                                           \
    X(cuInit, 2000)                                                                                \
    X(cuDriverGetVersion, 2020)                                                                    \
    X(cuGetErrorName, 6000)                                                                        \
    X(cuGetErrorString, 6000)                                                                      \
    X(cuDeviceGet, 2000)                                                                           \
    X(cuDeviceGetCount, 2000)                                                                      \
    X(cuDeviceGetAttribute, 2000)                                                                  \
    X(cuDeviceGetName, 2000)                                                                       \
    X(cuDeviceTotalMem, 3020)                                                                      \
    X(cuDeviceCanAccessPeer, 4000)                                                                 \
    X(cuDeviceGetUuid, 11040)                                                                      \
    X(cuDevicePrimaryCtxRetain, 7000)                                                              \
    X(cuCtxEnablePeerAccess, 4000)                                                                 \
    X(cuCtxPushCurrent, 4000)                                                                      \
    X(cuCtxPopCurrent, 4000)                                                                       \
    X(cuCtxGetStreamPriorityRange, 5050)                                                           \
    X(cuStreamCreateWithPriority, 5050)                                                            \
    X(cuStreamDestroy, 4000)                                                                       \
    X(cuStreamGetCtx, 9020)                                                                        \
    X(cuStreamIsCapturing, 10000)                                                                  \
    X(cuThreadExchangeStreamCaptureMode, 10010)                                                    \
    X(cuStreamQuery, 2000)                                                                         \
    X(cuStreamSynchronize, 2000)                                                                   \
    X(cuStreamWaitValue64, 11070)                                                                  \
    X(cuStreamWriteValue64, 11070)                                                                 \
    X(cuEventCreate, 2000)                                                                         \
    X(cuEventRecord, 2000)                                                                         \
    X(cuLaunchHostFunc, 10000)                                                                     \
    X(cuMemAlloc, 3020)                                                                            \
    X(cuMemFree, 3020)                                                                             \
    X(cuMemHostAlloc, 2020)                                                                        \
    X(cuMemFreeHost, 2000)                                                                         \
    X(cuMemHostRegister, 6050)                                                                     \
    X(cuMemHostUnregister, 4000)                                                                   \
    X(cuPointerGetAttributes, 7000)                                                                \
    X(cuIpcGetMemHandle, 4010)                                                                     \
    X(cuIpcOpenMemHandle, 11000)                                                                   \
    X(cuIpcCloseMemHandle, 4010)                                                                   \
    X(cuMemGetAllocationGranularity, 10020)                                                        \
    X(cuMemCreate, 10020)                                                                          \
    X(cuMemRetainAllocationHandle, 11000)                                                          \
    X(cuMemExportToShareableHandle, 10020)                                                         \
    X(cuMemImportFromShareableHandle, 10020)                                                       \
    X(cuMemAddressReserve, 10020)                                                                  \
    X(cuMemAddressFree, 10020)                                                                     \
    X(cuMemMap, 10020)                                                                             \
    X(cuMemUnmap, 10020)                                                                           \
    X(cuMemSetAccess, 10020)                                                                       \
    X(cuMemRelease, 10020)                                                                         \
    X(cuMemcpyAsync, 4000)                                                                         \
    X(cuMemsetD8Async, 3020)                                                                       \
    X(cuLibraryLoadData, 12000)                                                                    \
    X(cuLibraryGetKernel, 12000)                                                                   \
    X(cuKernelGetFunction, 12000)                                                                  \
    X(cuFuncGetAttribute, 2020)                                                                    \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050)                                           \
    X(cuLaunchKernel, 4000)

#define FY_CUDA_EXTRAS(X)                                                                          \
    X(cuFuncLoad, 12040)                                                                           \
    X(cuMulticastCreate, 12010)                                                                    \
    X(cuMulticastAddDevice, 12010)                                                                 \
    X(cuMulticastBindMem, 12010)                                                                   \
    X(cuMulticastUnbind, 12010)                                                                    \
    X(cuMulticastGetGranularity, 12010)                                                            \
    X(cuStreamGetCaptureInfo, 12030)                                                               \
    X(cuUserObjectCreate, 11030)                                                                   \
    X(cuUserObjectRelease, 11030)                                                                  \
    X(cuGraphRetainUserObject, 11030)

typedef struct fy_cuda_driver {
#define FY_CUDA_FIELD(name, version) __typeof__(&name) name;
    FY_CUDA_CALLS(FY_CUDA_FIELD) FY_CUDA_EXTRAS(FY_CUDA_FIELD)
#undef FY_CUDA_FIELD
} fy_cuda_driver;

extern fy_cuda_driver fy_cuda;

/*
 * Finds the driver and its devices, once in a process: how many there are, at least 1; else false,
 * and why is a sentence. In a process that was forked after that it says so.
 */
bool fy_cuda_open(int32_t *n_devices_out, char *why, size_t why_bytes);

/*
 * What a call of the driver's that has failed is to the library's callers: FERRY_ERR_NO_MEMORY for
 * memory, else FERRY_ERR_IO. The sentence says what was to be done, and what the driver said.
 */
ferry_status fy_cuda_fail(ferry_error *error, CUresult result, const char *what);

static inline ferry_status fy_cuda_check(CUresult result, const char *what, ferry_error *error)
{
    return result == CUDA_SUCCESS ? FERRY_OK : fy_cuda_fail(error, result, what);
}

#endif
