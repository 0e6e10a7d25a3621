/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_ROOM_H
#define FY_HOST_ROOM_H

#include "base/status.h"

#include <stdint.h>

/*
 * How much more memory this process can take before something fails or is killed: what the machine
 * has available, what the cgroup of the process and those above it leave of their limits, and
 * RLIMIT_AS. Page cache that can be dropped counts as free; swap does not count. A look costs some
 * tens of microseconds, and the answer is old at once: others allocate too.
 *
 * Not all that is free is room. Page tables take 8 bytes a page of 4 KiB in each of two processes
 * that map it, which is 1/256, and the rest of the process lives on too: 32 MiB.
 */
#define FY_ROOM_RESERVE_PART 256u
#define FY_ROOM_RESERVE_BYTES ((uint64_t)32 << 20)

ferry_status fy_room(uint64_t *bytes_out, ferry_error *error);

/* ERR_NO_MEMORY unless bytes fit; the sentence says for what they are and which limit is in the
 * way. */
ferry_status fy_room_check(uint64_t bytes, const char *what, ferry_error *error);

/* The limit that leaves the least, and what it leaves. */
typedef struct fy_room_found {
    uint64_t room_bytes; /* free less the reserve */
    uint64_t allowed_bytes;
    uint64_t used_bytes; /* without page cache that can be dropped */
    char limit[512];     /* such as: the cgroup /jobs/7 allows */
} fy_room_found;

/*
 * The same from a folder like /proc, whose self/mountinfo says where cgroups are mounted, and with
 * this RLIMIT_AS (UINT64_MAX: none). The folder's meminfo must be there; the rest may be missing.
 */
ferry_status fy_room_look(const char *proc, uint64_t address_space_bytes, fy_room_found *found_out,
                          ferry_error *error);
ferry_status fy_room_check_found(const fy_room_found *found, uint64_t bytes, const char *what,
                                 ferry_error *error);

#endif
