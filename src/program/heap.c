/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "program/heap.h"

#include "base/alloc.h"

ferry_status fy_heap_open(fy_heap *heap, uint32_t n, ferry_error *error)
{
    *heap = (fy_heap){.items = fy_alloc((size_t)n + 1, sizeof *heap->items),
                      .places = fy_alloc_zeroed((size_t)n + 1, sizeof *heap->places),
                      .keys = fy_alloc((size_t)n + 1, sizeof *heap->keys)};
    return heap->items == NULL || heap->places == NULL || heap->keys == NULL
               ? fy_fail_no_memory(error, "a heap")
               : FERRY_OK;
}

void fy_heap_close(fy_heap *heap)
{
    fy_free(heap->items);
    fy_free(heap->places);
    fy_free(heap->keys);
    *heap = (fy_heap){.n = 0};
}

static bool goes_before(const fy_heap *heap, uint32_t a, uint32_t b)
{
    return heap->keys[a] != heap->keys[b] ? heap->keys[a] < heap->keys[b] : a < b;
}

static void put_at(fy_heap *heap, uint32_t place, uint32_t item)
{
    heap->items[place] = item;
    heap->places[item] = place + 1;
}

static void sift_up(fy_heap *heap, uint32_t place, uint32_t item)
{
    while (place > 0 && goes_before(heap, item, heap->items[(place - 1) / 2])) {
        put_at(heap, place, heap->items[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put_at(heap, place, item);
}

static void sift_down(fy_heap *heap, uint32_t place, uint32_t item)
{
    for (uint32_t child; (child = 2 * place + 1) < heap->n; place = child) {
        if (child + 1 < heap->n && goes_before(heap, heap->items[child + 1], heap->items[child])) {
            child++;
        }
        if (goes_before(heap, item, heap->items[child])) {
            break;
        }
        put_at(heap, place, heap->items[child]);
    }
    sift_up(heap, place, item);
}

void fy_heap_set(fy_heap *heap, uint32_t item, uint64_t key)
{
    heap->keys[item] = key;
    uint32_t place = heap->places[item];
    sift_down(heap, place == 0 ? heap->n++ : place - 1, item);
}

void fy_heap_remove(fy_heap *heap, uint32_t item)
{
    uint32_t place = heap->places[item];
    if (place == 0) {
        return;
    }
    uint32_t last = heap->items[--heap->n];
    heap->places[item] = 0;
    if (last != item) {
        sift_down(heap, place - 1, last);
    }
}
