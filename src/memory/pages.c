/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/pages.h"

#include "base/checked.h"
#include "host/room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* What no machine has: keeps sums of a few such lengths exact. */
static const uint64_t MOST_BYTES = (uint64_t)1 << 56;

/* Between looks for room: some milliseconds of work, against tens of microseconds for a look. */
static const uint64_t STEP_BYTES = (uint64_t)16 << 20;

uint64_t fy_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

bool fy_pages_round(uint64_t bytes, uint64_t page_bytes, uint64_t *rounded_out)
{
    if (bytes > MOST_BYTES) {
        return false;
    }
    *rounded_out = (bytes + page_bytes - 1) & ~(page_bytes - 1);
    return true;
}

bool fy_pages_can_populate(void *base)
{
    return madvise(base, (size_t)fy_page_bytes(), MADV_POPULATE_WRITE) == 0 || errno != EINVAL;
}

ferry_status fy_pages_populate(void *base, uint64_t bytes, ferry_error *error)
{
    int problem;
    do {
        problem = madvise(base, (size_t)bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (problem == EINTR || problem == EAGAIN);
    if (problem == 0 || problem == EINVAL) {
        return FERRY_OK;
    }
    return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of memory could not be made present: %s",
                   (unsigned long long)bytes, strerror(problem));
}

void fy_pages_touch(void *base, uint64_t bytes)
{
    uint64_t page = fy_page_bytes();
    for (uint64_t at = 0; at < bytes; at += page) {
        ((volatile unsigned char *)base)[at] = 0;
    }
}

ferry_status fy_pages_reserve(int fd, uint64_t offset, uint64_t bytes, ferry_error *error)
{
    int problem;
    do {
        problem = fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0 ? 0 : errno;
    } while (problem == EINTR);
    if (problem != 0) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "%llu bytes of shared memory could not be made present: %s",
                       (unsigned long long)bytes, strerror(problem));
    }
    return FERRY_OK;
}

/*
 * One huge page instead of 512 small ones, where the kernel can (since 6.1, for files in memory
 * too): strided copies are a tenth faster, and peers map it at no cost. It wants a page to be
 * there. Whatever it leaves undone is populated as usual.
 */
static void collapse(char *base, uint64_t bytes)
{
    for (uint64_t at = 0; at + FY_HUGE_BYTES <= bytes; at += FY_HUGE_BYTES) {
        if (fy_pages_populate(base + at, fy_page_bytes(), NULL) != FERRY_OK ||
            madvise(base + at, (size_t)FY_HUGE_BYTES, MADV_COLLAPSE) != 0) {
            return;
        }
    }
}

void fy_pages_gather(void *base, uint64_t bytes)
{
    collapse(base, bytes);
    (void)fy_pages_populate(base, bytes, NULL);
}

ferry_status fy_pages_fill(void *base, uint64_t bytes, int fd, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    bool can_populate = true;
    char what[64];
    snprintf(what, sizeof what, "memory of %llu bytes", (unsigned long long)bytes);
    for (uint64_t at = 0; at < bytes && status == FERRY_OK; at += STEP_BYTES) {
        char *step = (char *)base + at;
        uint64_t step_bytes = fy_min(STEP_BYTES, bytes - at);
        status = fy_room_check(bytes - at, what, error);
        if (status == FERRY_OK && at == 0) {
            can_populate = fy_pages_can_populate(base);
        }
        if (status == FERRY_OK && can_populate) {
            collapse(step, step_bytes);
            status = fy_pages_populate(step, step_bytes, error);
        } else if (status == FERRY_OK) {
            status = fd < 0 ? FERRY_OK : fy_pages_reserve(fd, at, step_bytes, error);
            if (status == FERRY_OK) {
                fy_pages_touch(step, step_bytes);
            }
        }
    }
    return status;
}

/* Maps so that large memory begins where a huge page does. */
static void *map(uint64_t bytes)
{
    uint64_t spare = bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : 0;
    char *all = mmap(NULL, (size_t)(bytes + spare), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || spare == 0) {
        return all;
    }
    uint64_t before = (FY_HUGE_BYTES - (uintptr_t)all % FY_HUGE_BYTES) % FY_HUGE_BYTES;
    if (before > 0) {
        munmap(all, (size_t)before);
    }
    if (before < spare) {
        munmap(all + before + bytes, (size_t)(spare - before));
    }
    madvise(all + before, (size_t)bytes, MADV_HUGEPAGE); /* a wish */
    return all + before;
}

/* Private memory in which no page is there yet. */
static ferry_status reach(uint64_t bytes, void **base_out, uint64_t *rounded_out,
                          ferry_error *error)
{
    void *base = MAP_FAILED;
    if (fy_pages_round(bytes, fy_page_bytes(), rounded_out)) {
        base = map(*rounded_out);
    }
    if (base == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of memory could not be mapped",
                       (unsigned long long)bytes);
    }
    *base_out = base;
    return FERRY_OK;
}

ferry_status fy_pages_alloc(uint64_t bytes, void **base_out, ferry_error *error)
{
    uint64_t rounded = 0;
    void *base = NULL;
    FY_TRY(reach(bytes, &base, &rounded, error));
    ferry_status status = fy_pages_populate(base, rounded, error);
    if (status != FERRY_OK) {
        fy_pages_free(base, bytes);
        return status;
    }
    if (!fy_pages_can_populate(base)) {
        fy_pages_touch(base, rounded);
    }
    *base_out = base;
    return FERRY_OK;
}

ferry_status fy_pages_alloc_checked(uint64_t bytes, void **base_out, ferry_error *error)
{
    uint64_t rounded = 0;
    void *base = NULL;
    FY_TRY(reach(bytes, &base, &rounded, error));
    ferry_status status = fy_pages_fill(base, rounded, -1, error);
    if (status != FERRY_OK) {
        fy_pages_free(base, bytes);
        return status;
    }
    *base_out = base;
    return FERRY_OK;
}

/*
 * Not by the C library's mremap: UCX puts a function of four arguments in its place, which drops
 * where to, so that the pages would go nowhere, or wherever a register points.
 */
static bool move_pages_onto(void *base, void *fresh, uint64_t bytes)
{
    unsigned long flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    return syscall(SYS_mremap, fresh, (size_t)bytes, (size_t)bytes, flags, base) == (long)base;
}

ferry_status fy_pages_renew(void *base, uint64_t bytes, ferry_error *error)
{
    void *fresh =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of memory could not be mapped: %s",
                       (unsigned long long)bytes, strerror(errno));
    }
    ferry_status status = fy_pages_populate(fresh, bytes, error);
    if (status == FERRY_OK) {
        memcpy(fresh, base, (size_t)bytes);
        if (move_pages_onto(base, fresh, bytes)) {
            return FERRY_OK;
        }
        status = fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes could not be mapped again: %s",
                         (unsigned long long)bytes, strerror(errno));
    }
    munmap(fresh, (size_t)bytes);
    return status;
}

void fy_pages_free(void *base, uint64_t bytes)
{
    uint64_t rounded;
    if (base != NULL && fy_pages_round(bytes, fy_page_bytes(), &rounded)) {
        munmap(base, (size_t)rounded);
    }
}

void fy_pages_bar(void *base, uint64_t bytes)
{
    uint64_t rounded;
    if (base != NULL && fy_pages_round(bytes, fy_page_bytes(), &rounded)) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        if (mmap(base, (size_t)rounded, PROT_NONE, flags, -1, 0) == MAP_FAILED) {
            (void)mprotect(base, (size_t)rounded, PROT_NONE);
        }
    }
}
