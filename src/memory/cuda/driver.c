/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

fy_cuda_driver fy_cuda;

enum { LEAST_VERSION = 12000 };

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int n_devices;
static char why_not[256];
static _Atomic bool is_forked; /* the driver was opened by the process that forked this one */

typedef CUresult (*find_fn)(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *);

/* The table's pointers are filled as what they are: functions, which C has no other cast for. */
static bool find(find_fn get, const char *name, int version, void *place, bool needed)
{
    void *address = NULL;
    CUresult result = get(name, &address, version, 0, NULL);
    bool found = result == CUDA_SUCCESS && address != NULL;
    if (found) {
        memcpy(place, &address, sizeof address);
    } else if (needed) {
        snprintf(why_not, sizeof why_not,
                 "the CUDA driver has no %s: ferry needs a driver of CUDA 12.0 or later", name);
    }
    return found || !needed;
}

static bool find_all(find_fn get)
{
    bool all = true;
#define NEEDED(name, version) all = all && find(get, #name, version, &fy_cuda.name, true);
#define EXTRA(name, version) all = all && find(get, #name, version, &fy_cuda.name, false);
    FY_CUDA_CALLS(NEEDED)
    FY_CUDA_EXTRAS(EXTRA)
#undef NEEDED
#undef EXTRA
    return all;
}

static void in_child(void)
{
    is_forked = true;
}

static const char *name_of(CUresult result)
{
    const char *name = NULL;
    return fy_cuda.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != NULL ? name
                                                                                 : "no known error";
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(why_not, sizeof why_not, "there is no CUDA driver: %s",
                 reason != NULL ? reason : "libcuda.so.1 does not load");
        return;
    }
    find_fn get;
    void *address = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&get, &address, sizeof get);
    int version = 0;
    if (address == NULL) {
        snprintf(why_not, sizeof why_not,
                 "the CUDA driver is too old: ferry needs one of CUDA 12.0 or later");
        return;
    }
    if (!find_all(get)) {
        return;
    }
    CUresult result = fy_cuda.cuInit(0);
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuDriverGetVersion(&version);
    }
    if (result == CUDA_SUCCESS && version < LEAST_VERSION) {
        snprintf(why_not, sizeof why_not,
                 "the CUDA driver is of CUDA %d.%d: ferry needs 12.0 or later", version / 1000,
                 version % 1000 / 10);
        return;
    }
    if (result == CUDA_SUCCESS) {
        result = fy_cuda.cuDeviceGetCount(&n_devices);
    }
    if (result != CUDA_SUCCESS || n_devices < 1) {
        n_devices = 0;
        snprintf(why_not, sizeof why_not, "the CUDA driver sees no device (%s)",
                 result == CUDA_SUCCESS ? "it has none" : name_of(result));
        return;
    }
    (void)pthread_atfork(NULL, NULL, in_child);
}

bool fy_cuda_open(int32_t *n_devices_out, char *why, size_t why_bytes)
{
    pthread_once(&opened, open_driver);
    bool is_good = n_devices > 0 && !is_forked;
    if (is_good) {
        *n_devices_out = n_devices;
    } else {
        snprintf(why, why_bytes, "%s",
                 n_devices == 0 ? why_not
                                : "this process was forked after CUDA was opened, and cannot use "
                                  "it: start it anew, or fork before");
    }
    return is_good;
}

ferry_status fy_cuda_fail(ferry_error *error, CUresult result, const char *what)
{
    const char *text = NULL;
    if (fy_cuda.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) {
        text = "nothing more is known";
    }
    return fy_fail(error, result == CUDA_ERROR_OUT_OF_MEMORY ? FERRY_ERR_NO_MEMORY : FERRY_ERR_IO,
                   "%s: the CUDA driver says %s: %s", what, name_of(result), text);
}
