/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/mapped/memory.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "transport/agree.h"
#include "transport/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
static const long HUGETLBFS = 0x958458f6; /* statfs.f_type, as linux/magic.h has it */

/* Where the parts lie, which follows from the pages of the file. */
static bool lay_out(fy_node_memory *memory, uint64_t bytes, uint64_t page_bytes, uint32_t n_parts)
{
    if (!fy_pages_round(bytes, page_bytes, &memory->part_bytes)) {
        return false;
    }
    uint64_t step      = memory->part_bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : page_bytes;
    memory->stride     = (memory->part_bytes + step - 1) / step * step;
    memory->n_granules = fy_ceil_div(memory->part_bytes, FY_HUGE_BYTES);
    return fy_mul(memory->stride, n_parts, &memory->map_bytes) &&
           memory->map_bytes <= (uint64_t)INT64_MAX / 2;
}

/*
 * The file
 */

/* Huge pages of the pool that nobody has or was promised. */
static uint64_t free_huge_pages(void)
{
    uint64_t n_free = fy_file_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    uint64_t taken  = fy_file_number("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages");
    return n_free > taken ? n_free - taken : 0;
}

/* A longer file than the process may write would end it by a signal. */
static ferry_status check_file_limit(uint64_t bytes, ferry_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "symmetric memory of all ranks of this node takes %llu bytes, and "
                       "RLIMIT_FSIZE allows %llu: raise `ulimit -f`",
                       (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
    }
    return FERRY_OK;
}

static ferry_status make_file(uint64_t bytes, unsigned flags, int *fd_out, ferry_error *error)
{
    ferry_status status = check_file_limit(bytes, error);
    if (status != FERRY_OK) {
        return status;
    }
    int fd = memfd_create("ferry", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) {
        return fy_fail(error,
                       errno == EMFILE || errno == ENFILE ? FERRY_ERR_LIMIT : FERRY_ERR_NO_MEMORY,
                       "no file in memory for symmetric memory could be made: %s", strerror(errno));
    }
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "a file in memory cannot have %llu bytes: %s",
                         (unsigned long long)bytes, strerror(errno));
        close(fd);
        return status;
    }
    *fd_out = fd;
    return FERRY_OK;
}

/* A file of huge pages whose pages are promised, or -1. */
static int make_huge_file(uint64_t bytes, uint32_t n_parts)
{
    fy_node_memory layout;
    int            fd;
    if (bytes < FY_HUGE_BYTES || !lay_out(&layout, bytes, FY_HUGE_BYTES, n_parts)) {
        return -1;
    }
    uint64_t n_free   = free_huge_pages();
    uint64_t n_wanted = layout.map_bytes / FY_HUGE_BYTES;
    if (n_free < n_wanted) {
        fy_log(FERRY_LOG_DEBUG, "symmetric memory: %llu of the %llu huge pages wanted are free",
               (unsigned long long)n_free, (unsigned long long)n_wanted);
        return -1;
    }
    if (make_file(layout.map_bytes, MFD_HUGETLB | MFD_HUGE_2MB, &fd, NULL) != FERRY_OK) {
        return -1;
    }
    /* The first mapping takes the pages out of the pool, and the file keeps them. */
    void *map = mmap(NULL, (size_t)layout.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return -1;
    }
    munmap(map, (size_t)layout.map_bytes);
    return fd;
}

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
    int fd = make_huge_file(bytes, n_parts);
    if (fd >= 0) {
        fy_log(FERRY_LOG_DEBUG, "symmetric memory of %llu bytes lies in huge pages",
               (unsigned long long)bytes);
        *fd_out = fd;
        return FERRY_OK;
    }
    return make_file(layout.map_bytes, 0, fd_out, error);
}

/*
 * Sharing
 */

/* Among threads a descriptor's number is enough; it must stay until all have their own. */
static ferry_status share_among_threads(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    const void  *all;
    ferry_status status = ferry_world_all_gather(world, &fd, sizeof fd, &all, error);
    if (status != FERRY_OK) {
        return status;
    }
    int first;
    memcpy(&first, (const char *)all + world->local_ranks[0] * sizeof first, sizeof first);
    int own          = fcntl(first, F_DUPFD_CLOEXEC, 0);
    status           = own >= 0 ? FERRY_OK
                                : fy_fail(error, FERRY_ERR_LIMIT,
                                          "no descriptor is left for symmetric memory: %s", strerror(errno));
    ferry_status met = ferry_world_barrier(world, status == FERRY_OK ? error : NULL);
    if (status == FERRY_OK && met != FERRY_OK) {
        close(own);
        return met;
    }
    if (status == FERRY_OK) {
        *fd_out = own;
    }
    return status;
}

static ferry_status share_file(ferry_world *world, int fd, int *fd_out, ferry_error *error)
{
    if (world->ops->share_fd == NULL) {
        return share_among_threads(world, fd, fd_out, error);
    }
    ferry_error  why;
    ferry_status status = world->ops->share_fd(world, fd, fd_out, &why);
    if (status != FERRY_OK) {
        if (world->local_rank == 0) { /* the others wait for what will never come */
            fy_world_fail(world, status, world->rank, "rank %u cannot share memory: %s",
                          world->rank, why.message);
        }
        return fy_fail(error, status, "%s", why.message);
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
    struct stat   status;
    struct statfs system;
    if (fstat(fd, &status) != 0 || fstatfs(fd, &system) != 0) {
        return fy_fail(error, FERRY_ERR_IO, "the node's shared memory cannot be examined: %s",
                       strerror(errno));
    }
    bool     huge       = (long)system.f_type == HUGETLBFS;
    uint64_t page_bytes = huge ? (uint64_t)system.f_bsize : fy_page_bytes();
    if (!lay_out(memory, bytes, page_bytes, n_parts) ||
        (uint64_t)status.st_size != memory->map_bytes) {
        return fy_fail(error, FERRY_ERR_IO,
                       "the node's shared memory has %llu bytes where %llu were expected",
                       (unsigned long long)status.st_size, (unsigned long long)memory->map_bytes);
    }
    return FERRY_OK;
}

/* Begins where a huge page does, so that large parts do. */
static char *map_aligned(int fd, uint64_t bytes)
{
    uint64_t spare = bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : 0;
    char    *all   = mmap(NULL, (size_t)(bytes + spare), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        return NULL;
    }
    uint64_t before =
        spare == 0 ? 0 : (FY_HUGE_BYTES - (uintptr_t)all % FY_HUGE_BYTES) % FY_HUGE_BYTES;
    char *map =
        mmap(all + before, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (map == MAP_FAILED) {
        munmap(all, (size_t)(bytes + spare));
        return NULL;
    }
    if (before > 0) {
        munmap(all, (size_t)before);
    }
    if (before < spare) {
        munmap(map + bytes, (size_t)(spare - before));
    }
    return map;
}

static ferry_status populate_own(fy_node_memory *memory, int fd, uint32_t local, ferry_error *error)
{
    char *part = fy_node_memory_part(memory, local);
    if (fy_pages_can_populate(part)) {
        return fy_node_memory_prepare(memory, local, 0, memory->part_bytes, error);
    }
    /* An older kernel: first make sure that there are pages, for touching cannot fail politely. */
    off_t offset = (off_t)(local * memory->stride);
    int   problem;
    do {
        problem = fallocate(fd, 0, offset, (off_t)memory->part_bytes) == 0 ? 0 : errno;
    } while (problem == EINTR);
    if (problem != 0) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "%llu bytes of shared memory could not be made present: %s",
                       (unsigned long long)memory->part_bytes, strerror(problem));
    }
    fy_pages_touch(part, memory->part_bytes);
    return FERRY_OK;
}

static ferry_status map_file(ferry_world *world, int fd, uint64_t bytes, fy_node_memory *memory,
                             ferry_error *error)
{
    ferry_status status = measure(fd, bytes, world->n_local_ranks, memory, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t n_bits = memory->n_granules * world->n_local_ranks;
    memory->ready   = fy_alloc_zeroed((size_t)fy_ceil_div(n_bits, 64), sizeof *memory->ready);
    memory->map     = map_aligned(fd, memory->map_bytes);
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
    ferry_error    why    = {.message = ""};
    ferry_status   status = FERRY_OK;
    int            made   = -1;
    int            fd     = -1;
    if (world->local_rank == 0) {
        status = create_file(bytes, world->n_local_ranks, &made, &why);
    }
    if (status == FERRY_OK) {
        status = check_descriptor(&why);
    }
    status = fy_agree(world, status, &why);
    if (status == FERRY_OK) {
        status = share_file(world, made, &fd, &why);
    }
    if (status == FERRY_OK) {
        status = map_file(world, fd, bytes, &memory, &why);
    }
    if (made >= 0) {
        close(made);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (status != FERRY_OK) {
        fy_node_memory_cleanup(&memory);
        return fy_fail(error, status, "%s", why.message);
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
        uint64_t  bit  = local * memory->n_granules + granule;
        uint64_t *word = &memory->ready[bit / 64];
        uint64_t  mask = (uint64_t)1 << bit % 64;
        if ((*word & mask) != 0) {
            continue;
        }
        uint64_t     at = granule * FY_HUGE_BYTES;
        ferry_status status =
            fy_pages_populate(fy_node_memory_part(memory, local) + at,
                              fy_min(FY_HUGE_BYTES, memory->part_bytes - at), error);
        if (status != FERRY_OK) {
            return status;
        }
        *word |= mask;
    }
    return FERRY_OK;
}
