/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/device.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_CAPABILITY = 8 };    /* major: the kernels are built for it and later ones */
enum { MOST_OF_CODE = 9 };        /* major: drivers compile PTX for later ones */
enum { LEAST_OF_MULTICAST = 90 }; /* of PTX: see FY_HAS_FLEETS */

uint32_t fy_cuda_waves = 0;

/* All kernels, as machine code and as PTX: fatbin.c. */
extern const unsigned char fy_cuda_fatbin[], fy_cuda_fatbin_later[];

static const char *const names[FY_CUDA_N_KERNELS] = {
#define NAME(name, type) #name,
    FY_CUDA_KERNELS(NAME)
#undef NAME
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is prepared */
static fy_cuda_device **devices;                         /* NULL: not prepared yet */
static CUlibrary libraries[2];                           /* of machine code, of PTX */

static ferry_status attribute_of(CUdevice device, CUdevice_attribute which, int *value_out,
                                 ferry_error *error)
{
    return fy_cuda_check(fy_cuda.cuDeviceGetAttribute(value_out, which, device),
                         "asking what a device can do", error);
}

/* What the plugin relies on. */
static ferry_status check_abilities(CUdevice device, int32_t number, ferry_error *error)
{
    int major = 0, minor = 0, unified = 0, words = 0;
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, error));
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, error));
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &unified, error));
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, &words, error));
    if (major < LEAST_CAPABILITY) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "CUDA device %d has compute capability %d.%d, and ferry needs 8.0 or later",
                       (int)number, major, minor);
    }
    if (unified == 0 || words == 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "CUDA device %d has no %s, which ferry needs",
                       (int)number,
                       unified == 0 ? "addresses in common with the host"
                                    : "waits of streams for words of 64 bits");
    }
    return FERRY_OK;
}

/* The one that serves the device; a process may have devices of both kinds. */
static ferry_status open_library(CUdevice device, CUlibrary *library_out, ferry_error *error)
{
    int major = 0;
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, error));
    bool is_later = major > MOST_OF_CODE;
    CUlibrary *library = &libraries[is_later];
    if (*library == NULL) {
        const unsigned char *code = is_later ? fy_cuda_fatbin_later : fy_cuda_fatbin;
        FY_TRY(fy_cuda_check(fy_cuda.cuLibraryLoadData(library, code, NULL, NULL, 0, NULL, NULL, 0),
                             "loading ferry's kernels", error));
    }
    *library_out = *library;
    return FERRY_OK;
}

/* In the device's context. */
static ferry_status load_kernels(CUdevice number, fy_cuda_device *device, ferry_error *error)
{
    CUlibrary kernels;
    FY_TRY(open_library(number, &kernels, error));
    for (int i = 0; i < FY_CUDA_N_KERNELS; i++) {
        CUkernel kernel;
        CUresult result = fy_cuda.cuLibraryGetKernel(&kernel, kernels, names[i]);
        if (result == CUDA_SUCCESS) {
            result = fy_cuda.cuKernelGetFunction(&device->kernels[i], kernel);
        }
        if (result == CUDA_SUCCESS && fy_cuda.cuFuncLoad != NULL) {
            result = fy_cuda.cuFuncLoad(device->kernels[i]);
        }
        int n_blocks = 0;
        if (result == CUDA_SUCCESS) {
            result = fy_cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &n_blocks, device->kernels[i], FY_CUDA_THREADS, 0);
        }
        FY_TRY(fy_cuda_check(result, names[i], error));
        device->n_blocks[i] = n_blocks > 0 ? (uint32_t)n_blocks : 1;
    }
    return fy_cuda_check(fy_cuda.cuFuncGetAttribute(&device->ptx_version,
                                                    CU_FUNC_ATTRIBUTE_PTX_VERSION,
                                                    device->kernels[FY_NUMBER_OF_fy_cuda_lanes]),
                         "asking what kernels were compiled for", error);
}

static ferry_status prepare(int32_t number, fy_cuda_device *fresh, ferry_error *error)
{
    CUdevice device;
    int n_processors = 0;
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&device, number), "finding a device", error));
    FY_TRY(check_abilities(device, number, error));
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &n_processors, error));
    fresh->number = number;
    fresh->n_processors = (uint32_t)n_processors;
    FY_TRY(fy_cuda_check(fy_cuda.cuDevicePrimaryCtxRetain(&fresh->context, device),
                         "taking a device's primary context", error));
    FY_TRY(fy_cuda_check(fy_cuda_push(fresh->context), "entering a device", error));
    ferry_status status = load_kernels(device, fresh, error);
    fy_cuda_leave();
    return status;
}

/* Under the lock. What was prepared stays as long as the process. */
static ferry_status make_ready(int32_t number, int32_t n_devices, ferry_error *error)
{
    if (devices == NULL) {
        devices = fy_alloc_zeroed((size_t)n_devices, sizeof *devices);
        FY_TRY(fy_check_memory(devices != NULL, "a table of devices", error));
    }
    if (devices[number] != NULL) {
        return FERRY_OK;
    }
    fy_cuda_device *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    void *sees = fy_alloc_zeroed((size_t)n_devices, sizeof *fresh->sees);
    ferry_status status = fy_check_memory(fresh != NULL && sees != NULL, "a CUDA device", error);
    FY_THEN(status, prepare(number, fresh, error));
    if (status != FERRY_OK) {
        fy_free(sees);
        fy_free(fresh);
        return status;
    }
    fresh->sees = sees;
    devices[number] = fresh;
    return FERRY_OK;
}

ferry_status fy_cuda_enter(int32_t number, const fy_cuda_device **device_out, ferry_error *error)
{
    int32_t n_devices = 0;
    char why[256];
    if (!fy_cuda_open(&n_devices, why, sizeof why)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s", why);
    }
    if (number < 0 || number >= n_devices) {
        return fy_fail(error, FERRY_ERR_MISUSE, "there is no CUDA device %d, only %d", (int)number,
                       (int)n_devices);
    }
    pthread_mutex_lock(&lock);
    ferry_status status = make_ready(number, n_devices, error);
    const fy_cuda_device *found = status == FERRY_OK ? devices[number] : NULL;
    pthread_mutex_unlock(&lock);
    if (status != FERRY_OK) {
        return status;
    }
    FY_TRY(fy_cuda_check(fy_cuda_push(found->context), "entering a device", error));
    *device_out = found;
    return FERRY_OK;
}

/* NULL: it is not used. */
static const fy_cuda_device *used(int32_t number)
{
    pthread_mutex_lock(&lock);
    const fy_cuda_device *device = devices != NULL ? devices[number] : NULL;
    pthread_mutex_unlock(&lock);
    return device;
}

bool fy_cuda_is_used(int32_t number)
{
    return used(number) != NULL;
}

int32_t fy_cuda_any_used(void)
{
    int32_t n_devices = 0, found = 0;
    char why[256];
    if (!fy_cuda_open(&n_devices, why, sizeof why)) {
        return 0;
    }
    while (found < n_devices && !fy_cuda_is_used(found)) {
        found++;
    }
    return found < n_devices ? found : 0;
}

CUcontext fy_cuda_context_of(int32_t number)
{
    const fy_cuda_device *device = used(number);
    return device != NULL ? device->context : NULL;
}

/* In the context of number's. */
static bool let_see(int32_t number, int32_t other, CUcontext context)
{
    CUdevice device, peer;
    int can = 0;
    if (fy_cuda.cuDeviceGet(&device, number) != CUDA_SUCCESS ||
        fy_cuda.cuDeviceGet(&peer, other) != CUDA_SUCCESS ||
        fy_cuda.cuDeviceCanAccessPeer(&can, device, peer) != CUDA_SUCCESS || can == 0) {
        return false;
    }
    CUresult result = fy_cuda.cuCtxEnablePeerAccess(context, 0);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
        return true;
    }
    ferry_error why;
    char line[sizeof why.message + 128];
    (void)fy_cuda_fail(&why, result, "enabling peer access");
    snprintf(line, sizeof line, "CUDA devices %d and %d copy through the host: %s", (int)number,
             (int)other, why.message);
    fy_cuda_library->log(FERRY_LOG_WARN, line);
    return false;
}

enum { UNKNOWN, SEES, SEES_NOT };

bool fy_cuda_sees(int32_t number, int32_t other)
{
    const fy_cuda_device *device = used(number), *its = used(other);
    if (number == other) {
        return true;
    }
    if (device != NULL && its != NULL && device->sees[other] != UNKNOWN) {
        return device->sees[other] == SEES;
    }
    if (fy_cuda_enter(other, &its, NULL) != FERRY_OK) {
        return false;
    }
    fy_cuda_leave();
    if (fy_cuda_enter(number, &device, NULL) != FERRY_OK) {
        return false;
    }
    device->sees[other] = let_see(number, other, its->context) ? SEES : SEES_NOT;
    fy_cuda_leave();
    return device->sees[other] == SEES;
}

ferry_status fy_cuda_check_multicast(int32_t number, ferry_error *error)
{
    const fy_cuda_device *its = used(number);
    CUdevice device;
    int can = 0;
    if (fy_cuda.cuMulticastCreate == NULL || fy_cuda.cuMulticastAddDevice == NULL ||
        fy_cuda.cuMulticastBindMem == NULL || fy_cuda.cuMulticastUnbind == NULL ||
        fy_cuda.cuMulticastGetGranularity == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "the CUDA driver is too old for them: they need one of CUDA 12.1 or later");
    }
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&device, number), "finding a device", error));
    FY_TRY(attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &can, error));
    if (can == 0) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "CUDA device %d has none", (int)number);
    }
    if (its != NULL && its->ptx_version < LEAST_OF_MULTICAST) {
        return fy_fail(
            error, FERRY_ERR_UNSUPPORTED,
            "the kernels of CUDA device %d were compiled from PTX for compute capability "
            "%d.%d, and only those for 9.0 or later use them",
            (int)number, its->ptx_version / 10, its->ptx_version % 10);
    }
    return FERRY_OK;
}

ferry_status fy_cuda_uuid_of(int32_t number, CUuuid *uuid_out, ferry_error *error)
{
    CUdevice device;
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&device, number), "finding a device", error));
    return fy_cuda_check(fy_cuda.cuDeviceGetUuid(uuid_out, device), "asking who a device is",
                         error);
}

/*
 * Whatever is called here is not to be part of a capture of somebody's, on this thread or another
 * one, and must not make it fail: the thread is in relaxed mode while it is in a context of ours.
 */
static _Thread_local struct {
    uint32_t depth;
    CUstreamCaptureMode before;
} inside;

static void exchange_mode(void)
{
    (void)fy_cuda.cuThreadExchangeStreamCaptureMode(&inside.before);
}

CUresult fy_cuda_push(CUcontext context)
{
    CUresult result = fy_cuda.cuCtxPushCurrent(context);
    if (result == CUDA_SUCCESS && inside.depth++ == 0) {
        inside.before = CU_STREAM_CAPTURE_MODE_RELAXED;
        exchange_mode();
    }
    return result;
}

void fy_cuda_leave(void)
{
    CUcontext left;
    if (--inside.depth == 0) {
        exchange_mode();
    }
    (void)fy_cuda.cuCtxPopCurrent(&left);
}

ferry_status fy_cuda_launch(const fy_cuda_device *device, CUstream stream, fy_cuda_kernel kernel,
                            const void *argument, uint64_t n_units, uint32_t units_of_thread,
                            ferry_error *error)
{
    uint64_t wanted = fy_ceil_div(n_units, (uint64_t)units_of_thread * FY_CUDA_THREADS);
    uint64_t at_once = (uint64_t)device->n_processors * device->n_blocks[kernel];
    uint64_t most = fy_cuda_waves > 0 ? at_once * fy_cuda_waves : INT32_MAX;
    void *arguments[] = {(void *)(uintptr_t)argument};
    CUresult result =
        fy_cuda.cuLaunchKernel(device->kernels[kernel], (unsigned)fy_min(wanted, most), 1, 1,
                               FY_CUDA_THREADS, 1, 1, 0, stream, arguments, NULL);
    return fy_cuda_check(result, names[kernel], error);
}
