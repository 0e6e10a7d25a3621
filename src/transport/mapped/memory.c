/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/memory.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "host/room.h"
#include "memory/pages.h"
#include "transport/mapped/file.h"
#include "transport/region.h"
#include "world/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char WHAT[] = "symmetric memory of all ranks of this node";

/* Where the parts lie, which follows from the pages of the file. */
static bool lay_out(fy_node_memory *memory, uint64_t bytes, uint64_t page_bytes, uint32_t n_parts)
{
    if (!fy_pages_round(bytes, page_bytes, &memory->part_bytes)) {
        return false;
    }
    uint64_t step = memory->part_bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : page_bytes;
    memory->stride = (memory->part_bytes + step - 1) / step * step;
    memory->n_granules = fy_ceil_div(memory->part_bytes, FY_HUGE_BYTES);
    return fy_mul(memory->stride, n_parts, &memory->map_bytes) &&
           memory->map_bytes <= (uint64_t)INT64_MAX / 2;
}

/*
 * The file
 */

/* Every rank takes a descriptor while the file is handed out: to lack it then would be too late. */
static ferry_status check_descriptor(ferry_error *error)
{
    int fd = memfd_create("ferry", MFD_CLOEXEC);
    if (fd < 0) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "no descriptor is left for symmetric memory (%s): raise `ulimit -n`",
                       strerror(errno));
    }
    close(fd);
    return FERRY_OK;
}

/* On the node's first rank. */
static ferry_status create_file(uint64_t bytes, uint32_t n_parts, int *fd_out, ferry_error *error)
{
    fy_node_memory layout;
    if (!lay_out(&layout, bytes, fy_page_bytes(), n_parts)) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "symmetric memory of %llu bytes for each of %u ranks is more than can be "
                       "mapped",
                       (unsigned long long)bytes, n_parts);
    }
    fy_node_memory huge;
    if (bytes >= FY_HUGE_BYTES && lay_out(&huge, bytes, FY_HUGE_BYTES, n_parts)) {
        int fd = fy_shared_file_make_huge("ferry", WHAT, huge.map_bytes);
        if (fd >= 0) {
            *fd_out = fd;
            return FERRY_OK;
        }
    }
    return fy_shared_file_make("ferry", WHAT, layout.map_bytes, fd_out, error);
}

/*
 * Sharing
 */

/* Among threads a descriptor's number is enough; it must stay until all have their own. */
static ferry_status share_among_threads(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    const void *all;
    FY_TRY(ferry_world_all_gather(world, &fd, sizeof fd, &all, error));
    int first;
    memcpy(&first, (const char *)all + world->local_ranks[0] * sizeof first, sizeof first);
    int own = fcntl(first, F_DUPFD_CLOEXEC, 0);
    ferry_status status =
        own >= 0 ? FERRY_OK
                 : fy_fail(error, FERRY_ERR_LIMIT, "no descriptor is left for symmetric memory: %s",
                           strerror(errno));
    status = fy_agree(world, status, error);
    if (status == FERRY_OK) {
        *fd_out = own;
    } else if (own >= 0) {
        close(own);
    }
    return status;
}

static ferry_status share_file(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    if (world->ops->share_fd == NULL) {
        return share_among_threads(world, fd, fd_out, error);
    }
    ferry_error why;
    ferry_status status = world->ops->share_fd(world, fd, fd_out, &why);
    if (status != FERRY_OK) {
        if (world->local_rank == 0) { /* the others wait for what will never come */
            fy_world_fail(world, status, world->rank, "rank %u cannot share memory: %s",
                          world->rank, why.message);
        }
        return fy_forward(error, status, &why);
    }
    return FERRY_OK;
}

/*
 * Mapping
 */

/* The pages of the file decide where parts lie, so every rank asks the file. */
static ferry_status measure(int fd, uint64_t bytes, uint32_t n_parts, fy_node_memory *memory,
                            ferry_error *error)
{
    uint64_t file_bytes;
    uint64_t page_bytes = fy_shared_file_page_bytes(fd, &file_bytes);
    if (page_bytes == 0) {
        return fy_fail(error, FERRY_ERR_IO, "the node's shared memory cannot be examined: %s",
                       strerror(errno));
    }
    if (!lay_out(memory, bytes, page_bytes, n_parts) || file_bytes != memory->map_bytes) {
        return fy_fail(error, FERRY_ERR_IO,
                       "the node's shared memory has %llu bytes where %llu were expected",
                       (unsigned long long)file_bytes, (unsigned long long)memory->map_bytes);
    }
    return FERRY_OK;
}

static ferry_status populate_own(fy_node_memory *memory, int fd, uint32_t local, ferry_error *error)
{
    char *part = fy_node_memory_part(memory, local);
    if (fy_pages_can_populate(part)) {
        return fy_node_memory_prepare(memory, local, 0, memory->part_bytes, error);
    }
    /* An older kernel: first make sure that there are pages, for touching cannot fail politely. */
    FY_TRY(fy_pages_reserve(fd, local * memory->stride, memory->part_bytes, error));
    fy_pages_touch(part, memory->part_bytes);
    return FERRY_OK;
}

static ferry_status map_file(ferry_world *world, int fd, uint64_t bytes, fy_node_memory *memory,
                             ferry_error *error)
{
    FY_TRY(measure(fd, bytes, world->n_local_ranks, memory, error));
    uint64_t n_bits = memory->n_granules * world->n_local_ranks;
    memory->ready = fy_alloc_zeroed((size_t)fy_ceil_div(n_bits, 64), sizeof *memory->ready);
    memory->map = fy_shared_file_map(fd, memory->map_bytes);
    if (memory->map == NULL || memory->ready == NULL) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "%llu bytes of shared memory of %u ranks could not be mapped: %s",
                       (unsigned long long)memory->map_bytes, world->n_local_ranks,
                       strerror(memory->ready == NULL ? ENOMEM : errno));
    }
    if (memory->part_bytes >= FY_HUGE_BYTES) {
        madvise(memory->map, (size_t)memory->map_bytes, MADV_HUGEPAGE); /* a wish */
    }
    return populate_own(memory, fd, world->local_rank, error);
}

ferry_status fy_node_memory_create(ferry_world *world, uint64_t bytes, fy_node_memory *memory_out,
                                   ferry_error *error)
{
    fy_node_memory memory = {.map = NULL};
    ferry_error why = {.message = ""};
    ferry_status status = FERRY_OK;
    int made = -1;
    int fd = -1;
    status = fy_symmetric_room(world, bytes, &why);
    if (status == FERRY_OK && world->local_rank == 0) {
        status = create_file(bytes, world->n_local_ranks, &made, &why);
    }
    FY_THEN(status, check_descriptor(&why));
    status = fy_agree(world, status, &why);
    FY_THEN(status, share_file(world, made, &fd, &why));
    FY_THEN(status, map_file(world, fd, bytes, &memory, &why));
    if (made >= 0) {
        close(made);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (status != FERRY_OK) {
        fy_node_memory_cleanup(&memory);
        return fy_forward(error, status, &why);
    }
    *memory_out = memory;
    return FERRY_OK;
}

void fy_node_memory_cleanup(fy_node_memory *memory)
{
    if (memory->map != NULL) {
        munmap(memory->map, (size_t)memory->map_bytes);
    }
    fy_free(memory->ready);
    *memory = (fy_node_memory){.map = NULL};
}

ferry_status fy_node_memory_prepare(fy_node_memory *memory, uint32_t local, uint64_t offset,
                                    uint64_t bytes, ferry_error *error)
{
    uint64_t last = (offset + bytes - 1) / FY_HUGE_BYTES;
    for (uint64_t granule = offset / FY_HUGE_BYTES; granule <= last; granule++) {
        uint64_t bit = local * memory->n_granules + granule;
        uint64_t *word = &memory->ready[bit / 64];
        uint64_t mask = (uint64_t)1 << bit % 64;
        if ((*word & mask) != 0) {
            continue;
        }
        uint64_t at = granule * FY_HUGE_BYTES;
        FY_TRY(fy_pages_populate(fy_node_memory_part(memory, local) + at,
                                 fy_min(FY_HUGE_BYTES, memory->part_bytes - at), error));
        *word |= mask;
    }
    return FERRY_OK;
}

ferry_status fy_node_memory_renew(fy_node_memory *memory, uint32_t local, ferry_error *error)
{
    char *part = fy_node_memory_part(memory, local);
    ferry_status status = FERRY_OK;
    for (uint64_t at = 0; status == FERRY_OK && at < memory->part_bytes; at += FY_RENEW_BYTES) {
        uint64_t bytes = fy_min(FY_RENEW_BYTES, memory->part_bytes - at);
        status = fy_room_check(bytes, "other pages for symmetric memory", error);
        FY_THEN(status, fy_pages_renew(part + at, bytes, error));
    }
    return status;
}
