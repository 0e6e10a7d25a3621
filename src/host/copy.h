/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_HOST_COPY_H
#define FY_HOST_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * Copies for data that the copying core will not read again. The ranges do not overlap; any
 * alignment of both and any size, zero too, are fine.
 *
 * After fy_copy a release store of the same thread, such as that of a flag, comes behind the bytes
 * for whoever acquires it. The unfenced form promises that only once fy_copy_fence was called: the
 * fence waits for the memory, so a batch of small pieces is half as fast again with one fence at
 * its end as with one for each.
 */

/*
 * Smaller pieces go through the cache, where memcpy is at least as fast. Without a fence it depends
 * on whether the destination begins with a line of the cache: the first and the last part of a line
 * cannot be streamed.
 */
#define FY_COPY_FENCED_FROM ((size_t)8192)
#define FY_COPY_ALIGNED_FROM ((size_t)256)
#define FY_COPY_UNALIGNED_FROM ((size_t)1024)

/* Past the cache: never reads the destination, and leaves alone what the cache holds. */
void fy_copy_streaming(void *to, const void *from, size_t n_bytes);
void fy_copy_streaming_unfenced(void *to, const void *from, size_t n_bytes);

/* Through the cache, as libc does it: for what this core or another one reads at once. */
static inline void fy_copy_cached(void *to, const void *from, size_t n_bytes)
{
    if (n_bytes != 0) {
        memcpy(to, from, n_bytes);
    }
}

static inline void fy_copy(void *to, const void *from, size_t n_bytes)
{
    if (n_bytes < FY_COPY_FENCED_FROM) {
        fy_copy_cached(to, from, n_bytes);
    } else {
        fy_copy_streaming(to, from, n_bytes);
    }
}

static inline void fy_copy_unfenced(void *to, const void *from, size_t n_bytes)
{
    if (n_bytes < ((uintptr_t)to % 64 == 0 ? FY_COPY_ALIGNED_FROM : FY_COPY_UNALIGNED_FROM)) {
        fy_copy_cached(to, from, n_bytes);
    } else {
        fy_copy_streaming_unfenced(to, from, n_bytes);
    }
}

/* Also keeps the compiler from moving memory accesses across. */
static inline void fy_copy_fence(void)
{
#if defined(__x86_64__)
    __asm__ volatile("sfence" ::: "memory");
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

#endif
