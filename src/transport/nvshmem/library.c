/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/nvshmem/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

fy_nvshmem_library fy_nvshmem;

enum { LEAST_MAJOR = 3 };

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static int n_devices;
static pid_t opener;
static char why_not[320];

static void *open_file(const char *name, const char *what, const char *remedy)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(why_not, sizeof why_not, "there is no %s: %.160s%s", what,
                 reason != NULL ? reason : name, remedy);
    }
    return library;
}

/* The table's pointers are filled as what they are: functions, which C has no other cast for. */
static bool find(void *library, const char *file, const char *name, void *place)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        snprintf(why_not, sizeof why_not, "%s has no function %s: ferry needs NVSHMEM 3 or later",
                 file, name);
        return false;
    }
    memcpy(place, &address, sizeof address);
    return true;
}

static bool find_all(void *nvshmem, void *driver)
{
    bool all = true;
#define FIND(result, name, arguments)                                                              \
    all = all && find(nvshmem, "libnvshmem_host.so.3", #name, &fy_nvshmem.name);
#define FIND_DRIVER(result, name, arguments)                                                       \
    all = all && find(driver, "libcuda.so.1", #name, &fy_nvshmem.name);
    FY_NVSHMEM_CALLS(FIND)
    FY_NVSHMEM_DRIVER_CALLS(FIND_DRIVER)
#undef FIND
#undef FIND_DRIVER
    return all;
}

static void open_library(void)
{
    int major = 0, minor = 0, patch = 0, n = 0;
    void *nvshmem = open_file("libnvshmem_host.so.3", "NVSHMEM",
                              ": it comes with the package nvidia-nvshmem-cu13 or -cu12 of PyPI, "
                              "whose folder LD_LIBRARY_PATH must name");
    void *driver =
        nvshmem == NULL ? NULL : open_file("libcuda.so.1", "CUDA driver, which NVSHMEM needs", "");
    if (driver == NULL || !find_all(nvshmem, driver)) {
        return;
    }
    fy_nvshmem.nvshmemx_vendor_get_version_info(&major, &minor, &patch);
    if (major < LEAST_MAJOR) {
        snprintf(why_not, sizeof why_not, "NVSHMEM is %d.%d.%d: ferry needs 3 or later", major,
                 minor, patch);
        return;
    }
    if (fy_nvshmem.cuInit(0) != 0 || fy_nvshmem.cuDeviceGetCount(&n) != 0 || n < 1) {
        snprintf(why_not, sizeof why_not,
                 "NVSHMEM needs a device, and the CUDA driver sees none that it can use");
        return;
    }
    opener = getpid();
    n_devices = n;
}

int fy_nvshmem_open_library(char *why, size_t why_bytes)
{
    pthread_once(&opened, open_library);
    bool is_forked = n_devices > 0 && opener != getpid();
    if (n_devices == 0 || is_forked) {
        snprintf(why, why_bytes, "%s",
                 is_forked ? "this process was forked after CUDA was opened, and cannot use it: "
                             "start it anew, or fork before"
                           : why_not);
        return 0;
    }
    return n_devices;
}
