/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_LOCAL_H
#define FY_TRANSPORT_MAPPED_LOCAL_H

#include "base/status.h"
#include "transport/mapped/memory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Memory of one rank that others of its node can map: a file in memory whose name holds random
 * numbers. Its key says where the owner's descriptor is; who opens that through /proc and finds the
 * name has the right file, whatever has become of the owner's process id meanwhile.
 */
typedef struct fy_local_memory {
    char *map;
    uint64_t map_bytes;
    int fd; /* -1: private memory, which nobody can map */
    uint64_t token[2];
    bool shared; /* its key was given out */
    /* A renewal that has begun: bytes below `renewed` lie in the next file (-1: in private memory)
     * already. */
    int next_fd;
    uint64_t next_token[2];
    uint64_t renewed;
} fy_local_memory;

/*
 * Zero, and every page is there. Where descriptors run short, which are the program's, it is
 * private memory. An error leaves nothing.
 */
ferry_status fy_local_memory_create(uint64_t bytes, fy_local_memory *memory_out,
                                    ferry_error *error);
/* Who has mapped it keeps the pages until it unmaps them. */
void fy_local_memory_cleanup(fy_local_memory *memory);

enum { FY_LOCAL_KEY_BYTES = 56 };

/* Writes FY_LOCAL_KEY_BYTES, or nothing where it cannot be mapped; how many it wrote. */
size_t fy_local_memory_key(fy_local_memory *memory, void *key);

/*
 * Other pages at the same addresses, with what is there now: whoever has mapped the memory writes
 * to pages that nobody reads any more, and its keys lead nowhere. It takes 16 MiB more than there
 * are, not twice as much. An error leaves the content, and some old pages: the next call goes on
 * from there. Nothing is done where no key was given out.
 */
ferry_status fy_local_memory_renew(fy_local_memory *memory, ferry_error *error);

/*
 * Maps memory of process pid by its key: one part, not yet populated, which fy_node_memory_cleanup
 * ends. False where the kernel does not let this process look into that one, or the memory is gone.
 * Keys come from anywhere.
 */
bool fy_local_memory_map(int32_t pid, const void *key, size_t key_bytes, uint64_t bytes,
                         fy_node_memory *memory_out);

#endif
