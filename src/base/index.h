/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_INDEX_H
#define FY_BASE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A hash index: from a 64-bit hash to the numbers (below FY_INDEX_NONE) of things that the caller
 * keeps in an array of its own and compares itself. Several things may share a hash:
 *
 *     for (c = fy_index_first(ix, hash); c.value != FY_INDEX_NONE; fy_index_next(ix, &c)) {
 *         if (equal(&things[c.value], wanted)) ...
 *     }
 *
 * All zero is an empty index.
 */
#define FY_INDEX_NONE UINT32_MAX

typedef struct fy_index {
    struct fy_index_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t used;
} fy_index;

typedef struct fy_index_cursor {
    uint64_t hash;
    size_t slot;
    uint32_t value;
} fy_index_cursor;

bool fy_index_insert(fy_index *index, uint64_t hash, uint32_t value);
fy_index_cursor fy_index_first(const fy_index *index, uint64_t hash);
void fy_index_next(const fy_index *index, fy_index_cursor *cursor);
void fy_index_cleanup(fy_index *index);

#endif
