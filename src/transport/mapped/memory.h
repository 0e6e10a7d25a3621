/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_MAPPED_MEMORY_H
#define FY_TRANSPORT_MAPPED_MEMORY_H

#include "base/status.h"
#include "world/world.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Memory that the ranks of a node share: a file in memory without a name, made by the node's first
 * rank and mapped whole by all, with one part for each. A rank's own part is populated when it is
 * made; the parts of others when they are first used, in granules of a huge page, so that no run
 * pays for page faults one by one.
 */
typedef struct fy_node_memory {
    char *map; /* of all parts */
    uint64_t map_bytes;
    uint64_t stride;     /* from one part to the next */
    uint64_t part_bytes; /* of whole pages */
    uint64_t n_granules; /* of a part */
    uint64_t *ready;     /* bits, by part and granule: populated in this process */
} fy_node_memory;

/* Collective over all ranks: bytes for each. An error leaves nothing. */
ferry_status fy_node_memory_create(ferry_world *world, uint64_t bytes, fy_node_memory *memory_out,
                                   ferry_error *error);
void fy_node_memory_cleanup(fy_node_memory *memory);

static inline char *fy_node_memory_part(const fy_node_memory *memory, uint32_t local)
{
    return memory->map + local * memory->stride;
}

/*
 * A part gets private pages in the place of those that others have mapped, with what is there now.
 * An error leaves some of either; the call can be repeated.
 */
ferry_status fy_node_memory_renew(fy_node_memory *memory, uint32_t local, ferry_error *error);

/* Populates what is not yet populated of these bytes, at least one, of a part. */
ferry_status fy_node_memory_prepare(fy_node_memory *memory, uint32_t local, uint64_t offset,
                                    uint64_t bytes, ferry_error *error);

#endif
