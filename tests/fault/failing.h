/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_FAILING_H
#define FERRY_TESTS_FAILING_H

/*
 * Allocations that fail on request, beneath ferry and beneath jansson, and a count of the blocks
 * that live. The programs of this folder are linked with --wrap for malloc and its kin, so the
 * library's own calls end here; jansson is handed these functions. Its parser is spared: it takes a
 * refusal for a syntax error, or asserts. What is taken from an arena may fail each time, not only
 * where its block happens to be full. Threads may allocate at once; failing_by_thread lets only
 * those fail that ask for it, so that the same allocation of a rank fails in every run.
 */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

void *__real_malloc(size_t n_bytes);
void *__real_calloc(size_t count, size_t item_bytes);
void *__real_realloc(void *items, size_t n_bytes);
void __real_free(void *items);

void *__real_fy_arena_alloc(fy_arena *arena, size_t count, size_t item_bytes);
char *__real_fy_arena_copy(fy_arena *arena, const char *text, size_t length);

json_t *__real_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error);

json_t *__wrap_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error);
void *__wrap_malloc(size_t n_bytes);
void *__wrap_calloc(size_t count, size_t item_bytes);
void *__wrap_realloc(void *items, size_t n_bytes);
void __wrap_free(void *items);
void *__wrap_fy_arena_alloc(fy_arena *arena, size_t count, size_t item_bytes);
char *__wrap_fy_arena_copy(fy_arena *arena, const char *text, size_t length);

/* Allocations before the one that fails; negative: none does. */
static _Atomic int64_t failing_countdown = -1;
static bool failing_for_good; /* all later ones fail too */
static _Atomic bool failing_happened;
static _Atomic int64_t failing_live;
static bool failing_by_thread;
static _Thread_local bool failing_mine;   /* this thread's allocations may fail */
static _Thread_local bool failing_spares; /* inside jansson's parser */

static bool failing_now(void)
{
    int64_t left = atomic_load(&failing_countdown);
    if (failing_spares || (failing_by_thread && !failing_mine)) {
        return false;
    }
    do {
        if (left < 0) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&failing_countdown, &left,
                                           left > 0           ? left - 1
                                           : failing_for_good ? 0
                                                              : -1));
    if (left > 0) {
        return false;
    }
    failing_happened = true;
    return true;
}

static void *count_block(void *block)
{
    failing_live += block != NULL;
    return block;
}

void *__wrap_malloc(size_t n_bytes)
{
    return failing_now() ? NULL : count_block(__real_malloc(n_bytes));
}

void *__wrap_calloc(size_t count, size_t item_bytes)
{
    return failing_now() ? NULL : count_block(__real_calloc(count, item_bytes));
}

void *__wrap_realloc(void *items, size_t n_bytes)
{
    if (failing_now()) {
        return NULL;
    }
    void *moved = __real_realloc(items, n_bytes);
    failing_live += items == NULL && moved != NULL;
    return moved;
}

void __wrap_free(void *items)
{
    failing_live -= items != NULL;
    __real_free(items);
}

void *__wrap_fy_arena_alloc(fy_arena *arena, size_t count, size_t item_bytes)
{
    return failing_now() ? NULL : __real_fy_arena_alloc(arena, count, item_bytes);
}

char *__wrap_fy_arena_copy(fy_arena *arena, const char *text, size_t length)
{
    return failing_now() ? NULL : __real_fy_arena_copy(arena, text, length);
}

json_t *__wrap_json_loadb(const char *text, size_t length, size_t flags, json_error_t *error)
{
    failing_spares = true;
    json_t *json = __real_json_loadb(text, length, flags, error);
    failing_spares = false;
    return json;
}

static inline void failing_init(void)
{
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
}

static inline void failing_start(int64_t n_before, bool for_good)
{
    failing_for_good = for_good;
    failing_happened = false;
    failing_countdown = n_before;
}

/* Whether an allocation was refused since the start. */
static inline bool failing_stop(void)
{
    failing_countdown = -1;
    return failing_happened;
}

#endif
