/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROGRAM_HEAP_H
#define FY_PROGRAM_HEAP_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Numbers below a limit, each with a key, of which the one with the least key is at hand; of equal
 * keys the lesser number. A change costs the logarithm of how many there are.
 */
typedef struct fy_heap {
    uint32_t *items;
    uint32_t *places; /* of each number, plus one; 0: it is not there */
    uint64_t *keys;
    uint32_t n;
} fy_heap;

#define FY_NOBODY UINT32_MAX

/* Numbers below n. Of what fails, the heap can be closed all the same; zeroed is allowed. */
ferry_status fy_heap_open(fy_heap *heap, uint32_t n, ferry_error *error);
void fy_heap_close(fy_heap *heap);
/* Puts a number in, or changes its key. */
void fy_heap_set(fy_heap *heap, uint32_t item, uint64_t key);
void fy_heap_remove(fy_heap *heap, uint32_t item); /* one that is not there is allowed */

static inline void fy_heap_empty(fy_heap *heap)
{
    while (heap->n > 0) {
        heap->places[heap->items[--heap->n]] = 0;
    }
}

static inline uint32_t fy_heap_first(const fy_heap *heap)
{
    return heap->n == 0 ? FY_NOBODY : heap->items[0];
}

#endif
