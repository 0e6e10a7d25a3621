/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MODEL_MEMO_H
#define FY_MODEL_MEMO_H

#include "base/alloc.h"
#include "base/hash.h"
#include "base/index.h"

/* A memo from 128-bit keys to numbers. All zero is an empty one. */
typedef struct fy_memo_entry {
    fy_hash128 key;
    uint32_t number;
} fy_memo_entry;

typedef struct fy_memo {
    fy_index index;
    fy_memo_entry *entries;
    size_t n_entries;
    size_t capacity;
} fy_memo;

/* UINT32_MAX: there is none. */
static inline uint32_t fy_memo_find(const fy_memo *memo, fy_hash128 key)
{
    fy_index_cursor c = fy_index_first(&memo->index, key.low);
    while (c.value != FY_INDEX_NONE && memo->entries[c.value].key.high != key.high) {
        fy_index_next(&memo->index, &c);
    }
    return c.value == FY_INDEX_NONE ? UINT32_MAX : memo->entries[c.value].number;
}

/* False: no memory. */
static inline bool fy_memo_add(fy_memo *memo, fy_hash128 key, uint32_t number)
{
    if (!FY_RESERVE(memo->entries, memo->capacity, memo->n_entries + 1) ||
        !fy_index_insert(&memo->index, key.low, (uint32_t)memo->n_entries)) {
        return false;
    }
    memo->entries[memo->n_entries++] = (fy_memo_entry){.key = key, .number = number};
    return true;
}

static inline void fy_memo_cleanup(fy_memo *memo)
{
    fy_index_cleanup(&memo->index);
    fy_free(memo->entries);
}

#endif
