/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/cache.h"

#include "base/checked.h"
#include "host/file.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { GUESSED_BYTES = 32 << 20 };

/* How many cores a list such as 0-3,8,10-11 names; at least 1. */
static uint32_t count_cores(const char *path)
{
    uint32_t n = 0;
    unsigned first, last;
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%u", &first) == 1) {
        int next = fgetc(file);
        last = first;
        if (next == '-' && fscanf(file, "%u", &last) == 1) {
            next = fgetc(file);
        }
        n += last >= first ? last - first + 1 : 1;
        if (next != ',') {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return n == 0 ? 1 : n;
}

/*
 * sysconf asks the processor itself, which in a virtual machine may tell of all caches of its kind
 * on the host together; the files tell of the one that these cores share.
 */
void fy_caches_look(const char *folder, fy_caches *caches_out)
{
    enum { MOST_CACHES = 16 };
    uint64_t last_level = 0;
    caches_out->shared_bytes = 0;
    caches_out->n_sharing = 1;
    for (unsigned i = 0; i < MOST_CACHES; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/index%u/level", folder, i);
        uint64_t level = fy_file_number(path);
        snprintf(path, sizeof path, "%s/index%u/size", folder, i);
        uint64_t kib = fy_file_number(path); /* such as 32768K */
        if (level > last_level && kib != 0) {
            last_level = level;
            caches_out->shared_bytes = kib << 10;
            snprintf(path, sizeof path, "%s/index%u/shared_cpu_list", folder, i);
            caches_out->n_sharing = count_cores(path);
        }
    }
}

/* One that is bound to a core has it for itself, whoever else has cores. */
static uint32_t count_usable(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 1 ? (uint32_t)n : all > 0 ? (uint32_t)all : 1;
}

static fy_caches here;

static void look(void)
{
    fy_caches_look("/sys/devices/system/cpu/cpu0/cache", &here);
    here.n_cores = count_usable();
    if (here.shared_bytes == 0) {
        here.shared_bytes = GUESSED_BYTES;
        here.n_sharing = here.n_cores;
    }
}

fy_caches fy_caches_here(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return here;
}

bool fy_caches_are_passed(const fy_caches *caches, uint32_t n_ranks, const void *in,
                          uint64_t in_bytes, const void *out, uint64_t out_bytes)
{
    uint64_t n_sharing = fy_min(n_ranks, caches->n_sharing);
    uint64_t each = fy_ceil_div(n_ranks, caches->n_cores); /* ranks that take turns on a core */
    uint64_t room = caches->shared_bytes / (n_sharing * each);
    uintptr_t read = (uintptr_t)in, written = (uintptr_t)out;
    uint64_t begin = fy_max(read, written), end = fy_min(read + in_bytes, written + out_bytes);
    uint64_t both = end > begin ? end - begin : 0;
    if (both == out_bytes && n_ranks <= caches->n_cores) {
        return false;
    }
    return in_bytes + out_bytes - both >= room;
}
