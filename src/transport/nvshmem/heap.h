/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_NVSHMEM_HEAP_H
#define FY_NVSHMEM_HEAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Which bytes of a rank's part of the symmetric heap are taken: pages, the first that are free.
 * NVSHMEM's own calls for that are collective and wait for all PEs without a limit; so ferry asks
 * for all of the heap once, when a deadline watches, and each rank deals out its own part.
 */
typedef struct fy_nvshmem_piece {
    uint64_t offset, bytes;
} fy_nvshmem_piece;

typedef struct fy_nvshmem_heap {
    uint64_t bytes;
    fy_nvshmem_piece *taken; /* in order */
    size_t n_taken, capacity;
} fy_nvshmem_heap;

/* A piece that begins on a page; FERRY_ERR_NO_MEMORY says how much the heap has, and what to set.
 */
ferry_status fy_nvshmem_heap_take(fy_nvshmem_heap *heap, uint64_t bytes, uint64_t *offset_out,
                                  ferry_error *error);
void fy_nvshmem_heap_give(fy_nvshmem_heap *heap, uint64_t offset);

#endif
