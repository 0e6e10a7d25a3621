/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/nvshmem/heap.h"

#include "base/alloc.h"

#include <string.h>

enum { PAGE_BYTES = 4096 };

/* Where so many bytes are free, and before which piece: false where they are nowhere. */
static bool find_gap(const fy_nvshmem_heap *heap, uint64_t bytes, uint64_t *offset_out,
                     size_t *index_out)
{
    uint64_t at = 0;
    for (size_t i = 0; i <= heap->n_taken; i++) {
        uint64_t end = i < heap->n_taken ? heap->taken[i].offset : heap->bytes;
        if (end - at >= bytes) {
            *offset_out = at;
            *index_out = i;
            return true;
        }
        at = i < heap->n_taken ? end + heap->taken[i].bytes : end;
    }
    return false;
}

ferry_status fy_nvshmem_heap_take(fy_nvshmem_heap *heap, uint64_t bytes, uint64_t *offset_out,
                                  ferry_error *error)
{
    uint64_t whole = (bytes + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    uint64_t offset;
    size_t index;
    if (whole < bytes || !find_gap(heap, whole, &offset, &index)) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY,
                       "the symmetric heap of NVSHMEM has no room for %llu bytes: it has %llu in "
                       "all; NVSHMEM_SYMMETRIC_SIZE, such as 4G, says how many",
                       (unsigned long long)bytes, (unsigned long long)heap->bytes);
    }
    FY_TRY(FY_GROW(heap->taken, heap->capacity, heap->n_taken + 1, "pieces of the symmetric heap",
                   error));
    memmove(heap->taken + index + 1, heap->taken + index,
            (heap->n_taken - index) * sizeof *heap->taken);
    heap->taken[index] = (fy_nvshmem_piece){.offset = offset, .bytes = whole};
    heap->n_taken++;
    *offset_out = offset;
    return FERRY_OK;
}

void fy_nvshmem_heap_give(fy_nvshmem_heap *heap, uint64_t offset)
{
    size_t i = 0;
    while (i < heap->n_taken && heap->taken[i].offset != offset) {
        i++;
    }
    if (i < heap->n_taken) {
        heap->n_taken--;
        memmove(heap->taken + i, heap->taken + i + 1, (heap->n_taken - i) * sizeof *heap->taken);
    }
}
