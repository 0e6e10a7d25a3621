/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

fy_nccl_library fy_nccl;

static pthread_once_t opened = PTHREAD_ONCE_INIT;
static char full_name[32];
static char why_not[400];

/* The table's pointers are filled as what they are: functions, which C has no other cast for. */
static bool find(void *library, const char *name, void *place)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        snprintf(why_not, sizeof why_not,
                 "libnccl.so.2 has no function %s: ferry needs NCCL 2.18 or later", name);
        return false;
    }
    memcpy(place, &address, sizeof address);
    return true;
}

static bool find_all(void *library)
{
    bool all = true;
#define FIND(result, name, arguments) all = all && find(library, #name, &fy_nccl.name);
    FY_NCCL_CALLS(FIND)
#undef FIND
    return all;
}

static void open_library(void)
{
    int found = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(why_not, sizeof why_not,
                 "there is no NCCL: %.160s: it comes with the package nvidia-nccl-cu12 or -cu13 of "
                 "PyPI, whose folder LD_LIBRARY_PATH must name",
                 reason != NULL ? reason : "libnccl.so.2");
        return;
    }
    if (!find_all(library)) {
        return;
    }
    if (fy_nccl.ncclGetVersion(&found) != FY_NCCL_SUCCESS || found < FY_NCCL_LEAST_VERSION) {
        snprintf(why_not, sizeof why_not, "NCCL is %d.%d.%d: ferry needs 2.18 or later",
                 found / 10000, found % 10000 / 100, found % 100);
        return;
    }
    snprintf(full_name, sizeof full_name, "nccl %d.%d.%d", found / 10000, found % 10000 / 100,
             found % 100);
}

const char *fy_nccl_open_library(const char **why_out)
{
    pthread_once(&opened, open_library);
    *why_out = why_not;
    return full_name[0] == '\0' ? NULL : full_name;
}
