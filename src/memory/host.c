/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/kind.h"

#include "memory/pages.h"

/* The host's memory, which is always there. */

static bool probe(char *why, size_t why_bytes)
{
    (void)why;
    (void)why_bytes;
    return true;
}

static int32_t device_count(void)
{
    return 1;
}

static ferry_status alloc(int32_t device, uint64_t bytes, void **base_out, ferry_error *error)
{
    (void)device;
    return fy_pages_alloc_checked(bytes, base_out, error);
}

static void free_pages(int32_t device, void *base, uint64_t bytes)
{
    (void)device;
    fy_pages_free(base, bytes);
}

const fy_memory_kind fy_host_memory = {.abi = FY_MEMORY_ABI,
                                       .kind = FERRY_MEMORY_HOST,
                                       .name = "host",
                                       .summary = "memory of the machine itself",
                                       .cpu_access = true,
                                       .probe = probe,
                                       .device_count = device_count,
                                       .alloc = alloc,
                                       .free = free_pages,
                                       .exec = &fy_cpu_exec};
