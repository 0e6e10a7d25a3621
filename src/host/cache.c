/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/cache.h"

#include "base/checked.h"
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

fy_caches fy_caches_here(void)
{
    static const uint64_t guess = (uint64_t)32 << 20;
    static _Atomic uint64_t known_bytes;
    static _Atomic uint32_t known_cores;
    uint64_t bytes = atomic_load_explicit(&known_bytes, memory_order_relaxed);
    uint32_t n_cores = atomic_load_explicit(&known_cores, memory_order_relaxed);
    if (bytes == 0 || n_cores == 0) {
        long says = sysconf(_SC_NPROCESSORS_ONLN);
        n_cores = says > 0 ? (uint32_t)says : 1;
        bytes = fy_shared_cache_look("/sys/devices/system/cpu/cpu0/cache");
        bytes = bytes != 0 ? bytes : guess;
        atomic_store_explicit(&known_bytes, bytes, memory_order_relaxed);
        atomic_store_explicit(&known_cores, n_cores, memory_order_relaxed);
    }
    return (fy_caches){.shared_bytes = bytes, .n_cores = n_cores};
}

bool fy_caches_are_passed(const fy_caches *caches, uint32_t n_ranks, const void *in,
                          uint64_t in_bytes, const void *out, uint64_t out_bytes)
{
    uint64_t room = caches->shared_bytes / n_ranks;
    uintptr_t read = (uintptr_t)in, written = (uintptr_t)out;
    if (read < written + out_bytes && written < read + in_bytes) { /* in place */
        return n_ranks > caches->n_cores && fy_max(in_bytes, out_bytes) >= room;
    }
    return in_bytes + out_bytes >= room;
}
