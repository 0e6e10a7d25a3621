/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"

#include "base/checked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t allocations_left = -1;

static bool must_fail(void)
{
    int64_t left = atomic_load_explicit(&allocations_left, memory_order_relaxed);
    if (left < 0) {
        return false;
    }
    if (left == 0) {
        return true;
    }
    atomic_store_explicit(&allocations_left, left - 1, memory_order_relaxed);
    return false;
}

void fy_alloc_fail_after(int64_t n_more)
{
    atomic_store_explicit(&allocations_left, n_more, memory_order_relaxed);
}

/* malloc(0) may be NULL, which would read as a failure. */
static size_t at_least_one(size_t bytes)
{
    return bytes == 0 ? 1 : bytes;
}

void *fy_alloc(size_t count, size_t item_bytes)
{
    uint64_t bytes;
    if (!fy_mul(count, item_bytes, &bytes) || must_fail()) {
        return NULL;
    }
    return malloc(at_least_one((size_t)bytes));
}

void *fy_alloc_zeroed(size_t count, size_t item_bytes)
{
    if (must_fail()) {
        return NULL;
    }
    return calloc(at_least_one(count), at_least_one(item_bytes));
}

void *fy_realloc(void *items, size_t count, size_t item_bytes)
{
    uint64_t bytes;
    if (!fy_mul(count, item_bytes, &bytes) || must_fail()) {
        return NULL;
    }
    return realloc(items, at_least_one((size_t)bytes));
}

char *fy_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = fy_alloc(bytes, 1);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

void fy_free(void *items)
{
    free(items);
}

bool fy_reserve(void *array_inout, size_t *capacity, size_t needed, size_t item_bytes)
{
    if (needed <= *capacity) {
        return true;
    }
    size_t larger = *capacity < 8 ? 8 : *capacity * 2;
    if (larger < needed) {
        larger = needed;
    }
    void *items;
    memcpy(&items, array_inout, sizeof items);
    void *moved = fy_realloc(items, larger, item_bytes);
    if (moved == NULL) {
        return false;
    }
    memcpy(array_inout, &moved, sizeof moved);
    *capacity = larger;
    return true;
}

struct fy_arena_block {
    struct fy_arena_block *next;
    size_t used;
    size_t capacity;
    max_align_t bytes[];
};

enum { FIRST_BLOCK_BYTES = 4096, LARGEST_BLOCK_BYTES = 1 << 20 };

static bool add_block(fy_arena *arena, size_t bytes)
{
    size_t capacity = FIRST_BLOCK_BYTES;
    if (arena->block != NULL) {
        capacity = arena->block->capacity * 2;
    }
    if (capacity > LARGEST_BLOCK_BYTES) {
        capacity = LARGEST_BLOCK_BYTES;
    }
    if (capacity < bytes) {
        capacity = bytes;
    }
    struct fy_arena_block *block = fy_alloc(1, sizeof *block + capacity);
    if (block == NULL) {
        return false;
    }
    block->next = arena->block;
    block->used = 0;
    block->capacity = capacity;
    arena->block = block;
    return true;
}

static void *take(fy_arena *arena, size_t bytes, size_t alignment)
{
    struct fy_arena_block *block = arena->block;
    size_t begin = block == NULL ? 0 : (block->used + alignment - 1) & ~(alignment - 1);
    if (block == NULL || begin > block->capacity || block->capacity - begin < bytes) {
        if (!add_block(arena, bytes)) {
            return NULL;
        }
        block = arena->block;
        begin = 0;
    }
    block->used = begin + bytes;
    return (char *)block->bytes + begin;
}

void *fy_arena_alloc(fy_arena *arena, size_t count, size_t item_bytes)
{
    uint64_t bytes;
    if (!fy_mul(count, item_bytes, &bytes) || bytes > SIZE_MAX / 2) {
        return NULL;
    }
    return take(arena, (size_t)bytes, _Alignof(max_align_t));
}

char *fy_arena_copy(fy_arena *arena, const char *text, size_t length)
{
    char *copy = take(arena, length + 1, 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

void fy_arena_cleanup(fy_arena *arena)
{
    while (arena->block != NULL) {
        struct fy_arena_block *next = arena->block->next;
        fy_free(arena->block);
        arena->block = next;
    }
}
