/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_COUNTED_MEMORY_H
#define FERRY_TESTS_COUNTED_MEMORY_H

#include <malloc.h>
#include <stddef.h>

/*
 * Stands in front of the allocator and counts, for a program that is linked with --wrap of all
 * four: for the one source of that program.
 */

void *__real_malloc(size_t n_bytes);
void *__real_calloc(size_t n, size_t item_bytes);
void *__real_realloc(void *items, size_t n_bytes);
void __real_free(void *items);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_calloc(size_t n, size_t item_bytes);
void *__wrap_realloc(void *items, size_t n_bytes);
void __wrap_free(void *items);

/* Bytes that are taken now, and the most since it was last set. */
static size_t live, most;

static void *count_memory(void *items)
{
    live += items == NULL ? 0 : malloc_usable_size(items);
    most = live > most ? live : most;
    return items;
}

void *__wrap_malloc(size_t n_bytes)
{
    return count_memory(__real_malloc(n_bytes));
}

void *__wrap_calloc(size_t n, size_t item_bytes)
{
    return count_memory(__real_calloc(n, item_bytes));
}

void *__wrap_realloc(void *items, size_t n_bytes)
{
    size_t before = items == NULL ? 0 : malloc_usable_size(items);
    void *moved = __real_realloc(items, n_bytes);
    live -= moved == NULL ? 0 : before;
    return count_memory(moved);
}

void __wrap_free(void *items)
{
    live -= items == NULL ? 0 : malloc_usable_size(items);
    __real_free(items);
}

#endif
