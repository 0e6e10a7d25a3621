/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_CACHE_H
#define FY_HOST_CACHE_H

#include <stdbool.h>
#include <stdint.h>

/* What ranks of one machine share. */
typedef struct fy_caches {
    uint64_t shared_bytes; /* of a last cache before memory; there may be several */
    uint32_t n_sharing;    /* cores that share one */
    uint32_t n_cores;      /* that this process may use, or all where it is bound to one */
} fy_caches;

/* Of this machine: looked up once, then remembered. A guess where the system says nothing. */
fy_caches fy_caches_here(void);

/*
 * The last cache by a folder like /sys/devices/system/cpu/cpu0/cache: its bytes, 0 where it says
 * none, and how many cores share it.
 */
void fy_caches_look(const char *folder, fy_caches *caches_out);

/*
 * Whether an output is better stored past the caches, where each of n ranks on this machine reads
 * as many bytes and writes as many, again and again. Where all of that fits into the cache that
 * they share, storing through it takes half the time. Else lines of the output come from memory
 * before they are written, and push out inputs that are still to be read. An output that lies in
 * its input was just read where a rank has a core of its own.
 */
bool fy_caches_are_passed(const fy_caches *caches, uint32_t n_ranks, const void *in,
                          uint64_t in_bytes, const void *out, uint64_t out_bytes);

#endif
