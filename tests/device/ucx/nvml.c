/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * UCX's module for CUDA is linked against NVML, which comes with the driver. This one says that it
 * finds no driver of its own, and UCX then knows of no NVLink.
 */
enum { NVML_ERROR_LIBRARY_NOT_FOUND = 12 };

const char *nvmlErrorString(int result);

const char *nvmlErrorString(int result)
{
    (void)result;
    return "a stand-in for NVML, which has nothing";
}

#define ABSENT(name)                                                                               \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NVML_ERROR_LIBRARY_NOT_FOUND;                                                       \
    }

ABSENT(nvmlInit_v2)
ABSENT(nvmlShutdown)
ABSENT(nvmlDeviceGetCount_v2)
ABSENT(nvmlDeviceGetHandleByIndex_v2)
ABSENT(nvmlDeviceGetPciInfo_v3)
ABSENT(nvmlDeviceGetFieldValues)
ABSENT(nvmlDeviceGetGpuFabricInfo)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
