/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/cache.h"

#include "host/file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/*
 * sysconf asks the processor itself, which in a virtual machine may tell of all caches of its kind
 * on the host together; the files tell of the one that these cores share.
 */
uint64_t fy_shared_cache_look(const char *folder)
{
    enum { MOST_CACHES = 16 };
    uint64_t last_level = 0, bytes = 0;
    for (unsigned i = 0; i < MOST_CACHES; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/index%u/level", folder, i);
        uint64_t level = fy_file_number(path);
        snprintf(path, sizeof path, "%s/index%u/size", folder, i);
        uint64_t kib = fy_file_number(path); /* such as 32768K */
        if (level > last_level && kib != 0) {
            last_level = level;
            bytes = kib << 10;
        }
    }
    return bytes;
}

uint64_t fy_shared_cache(void)
{
    static const uint64_t guess = (uint64_t)32 << 20;
    static _Atomic uint64_t known;
    uint64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes == 0) {
        bytes = fy_shared_cache_look("/sys/devices/system/cpu/cpu0/cache");
        bytes = bytes != 0 ? bytes : guess;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

unsigned fy_running_cores(void)
{
    static _Atomic unsigned known;
    unsigned n = atomic_load_explicit(&known, memory_order_relaxed);
    if (n == 0) {
        long says = sysconf(_SC_NPROCESSORS_ONLN);
        n = says > 0 ? (unsigned)says : 1;
        atomic_store_explicit(&known, n, memory_order_relaxed);
    }
    return n;
}
