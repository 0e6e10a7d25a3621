/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_ALLOC_H
#define FY_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Every allocation of the library passes here, so that a test can make the first, second, third one
 * fail. Sizes are checked products; a count of zero yields a pointer that may be freed.
 */
void *fy_alloc(size_t count, size_t item_bytes);
void *fy_alloc_zeroed(size_t count, size_t item_bytes);
void *fy_realloc(void *items, size_t count, size_t item_bytes);
char *fy_strdup(const char *text);
void fy_free(void *items);

/*
 * Makes room for needed items in a growing array: capacity at least doubles, so appending costs
 * amortised constant time. On failure the array is as it was. array_inout points to the pointer to
 * its items, of whatever type.
 */
bool fy_reserve(void *array_inout, size_t *capacity, size_t needed, size_t item_bytes);
#define FY_RESERVE(array, capacity, needed)                                                        \
    fy_reserve(&(array), &(capacity), (needed), sizeof *(array))
/* That as a step that may fail; what: for the sentence. Wants base/status.h. */
#define FY_GROW(array, capacity, needed, what, error)                                              \
    fy_check_memory(FY_RESERVE(array, capacity, needed), what, error)

/* Test only: the allocation after n_more successful ones fails, and all later ones; negative: none.
 */
void fy_alloc_fail_after(int64_t n_more);

/* Many small objects with one lifetime: freed all at once. */
typedef struct fy_arena {
    struct fy_arena_block *block;
} fy_arena;

void *fy_arena_alloc(fy_arena *arena, size_t count, size_t item_bytes);
char *fy_arena_copy(fy_arena *arena, const char *text, size_t length); /* adds a zero */
void fy_arena_cleanup(fy_arena *arena);

#endif
