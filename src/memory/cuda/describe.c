/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/memory.h"
#include "memory/cuda/nccl_library.h"

#include <stdio.h>
#include <string.h>

/* What the driver says of a device, which nothing is done with: it may not even be new enough. */

enum { MOST_NAMED = 8 }; /* devices that a line names */

static ferry_status attribute(CUdevice device, CUdevice_attribute which, int *value_out,
                              ferry_error *error)
{
    return fy_cuda_check(fy_cuda.cuDeviceGetAttribute(value_out, which, device),
                         "asking what a device can do", error);
}

static ferry_status describe_own(CUdevice device, int32_t number, char *text, size_t bytes,
                                 ferry_error *error)
{
    char name[128];
    int major, minor, processors, version = 0;
    size_t memory = 0;
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGetName(name, sizeof name, device),
                         "asking for a device's name", error));
    FY_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, error));
    FY_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, error));
    FY_TRY(attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &processors, error));
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceTotalMem(&memory, device), "asking for a device's memory",
                         error));
    FY_TRY(fy_cuda_check(fy_cuda.cuDriverGetVersion(&version), "asking for the driver's version",
                         error));
    snprintf(text, bytes,
             "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; driver of CUDA %d.%d; "
             "%s multicast objects",
             name, major, minor, processors, (double)memory / (1 << 30), version / 1000,
             version % 1000 / 10,
             fy_cuda_check_multicast(number, NULL) == FERRY_OK ? "has" : "has no");
    return FERRY_OK;
}

/* Whose memory it can read and write. */
static ferry_status describe_peers(CUdevice device, int32_t number, int32_t n_devices, char *text,
                                   size_t bytes, ferry_error *error)
{
    int32_t n_reached = 0;
    size_t used = strlen(text);
    for (int32_t other = 0; other < n_devices; other++) {
        CUdevice peer;
        int can = 0;
        if (other == number) {
            continue;
        }
        FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&peer, other), "finding a device", error));
        FY_TRY(fy_cuda_check(fy_cuda.cuDeviceCanAccessPeer(&can, device, peer),
                             "asking which devices reach each other", error));
        n_reached += can != 0;
        if (can != 0 && n_reached <= MOST_NAMED && used < bytes) {
            int more = snprintf(text + used, bytes - used, "%s%d",
                                n_reached == 1 ? "; reaches device " : ", ", (int)other);
            used += more > 0 ? (size_t)more : 0;
        }
    }
    if (n_reached > MOST_NAMED && used < bytes) {
        snprintf(text + used, bytes - used, " and %d more", (int)(n_reached - MOST_NAMED));
    } else if (n_reached == 0 && n_devices > 1 && used < bytes) {
        snprintf(text + used, bytes - used, "; reaches no other device");
    }
    return FERRY_OK;
}

/* Base modes of mixed collectives are NCCL's where it is found. */
static void describe_nccl(char *text, size_t bytes)
{
    const char *why, *found = fy_nccl_open_library(&why);
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "; %s", found == NULL ? "no NCCL" : found);
}

ferry_status fy_cuda_describe(int32_t number, char *text, size_t bytes, ferry_error *error)
{
    int32_t n_devices;
    CUdevice device;
    char why[256];
    if (!fy_cuda_open(&n_devices, why, sizeof why)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s", why);
    }
    FY_TRY(fy_cuda_check(fy_cuda.cuDeviceGet(&device, number), "finding a device", error));
    FY_TRY(describe_own(device, number, text, bytes, error));
    FY_TRY(describe_peers(device, number, n_devices, text, bytes, error));
    describe_nccl(text, bytes);
    return FERRY_OK;
}
