/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Counts what the whole process asks the heap for, by standing before glibc's functions. */
#include "refit_bench.h"

#include <stdatomic.h>
#include <stdlib.h>

static atomic_ullong n_calls;

uint64_t refit_count_allocations(void)
{
    return atomic_load(&n_calls);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    return __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    return __libc_realloc(old, bytes);
}

#endif
