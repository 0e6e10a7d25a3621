/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_CACHE_H
#define FY_HOST_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* What ranks of one machine share. */
typedef struct fy_caches {
    uint64_t shared_bytes; /* of the last cache before memory */
    uint32_t n_cores;      /* that run, whichever of them this process may use */
} fy_caches;

/* Of this machine: looked up once, then remembered. A guess where the system says nothing. */
fy_caches fy_caches_here(void);

/* Bytes of the last cache by a folder like /sys/devices/system/cpu/cpu0/cache; 0: it says none. */
uint64_t fy_shared_cache_look(const char *folder);

/*
 * Whether an output is better stored past the caches, where each of n ranks on this machine reads
 * as many bytes and writes as many, again and again. Where all of that fits into the cache that
 * they share, storing through it takes half the time. Else lines of the output come from memory
 * before they are written, and push out inputs that are still to be read. In place a rank with a
 * core of its own writes what it has just read.
 */
bool fy_caches_are_passed(const fy_caches *caches, uint32_t n_ranks, const void *in,
                          uint64_t in_bytes, const void *out, uint64_t out_bytes);

#endif
