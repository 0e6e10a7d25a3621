/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* What no machine has: keeps sums of a few such lengths exact. */
static const uint64_t MOST_BYTES = (uint64_t)1 << 56;

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

/* Maps so that large memory begins where a huge page does. */
static void *map(uint64_t bytes)
{
    uint64_t spare = bytes >= FY_HUGE_BYTES ? FY_HUGE_BYTES : 0;
    char    *all   = mmap(NULL, (size_t)(bytes + spare), PROT_READ | PROT_WRITE,
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

ferry_status fy_pages_alloc(uint64_t bytes, void **base_out, ferry_error *error)
{
    uint64_t rounded;
    void    *base = MAP_FAILED;
    if (fy_pages_round(bytes, fy_page_bytes(), &rounded)) {
        base = map(rounded);
    }
    if (base == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%llu bytes of memory could not be mapped",
                       (unsigned long long)bytes);
    }
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

void fy_pages_free(void *base, uint64_t bytes)
{
    uint64_t rounded;
    if (base != NULL && fy_pages_round(bytes, fy_page_bytes(), &rounded)) {
        munmap(base, (size_t)rounded);
    }
}
