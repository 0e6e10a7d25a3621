/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_STAGE_H
#define FY_MEMORY_CUDA_STAGE_H

#include "memory/cuda/queue.h"

#include <ferry/dtype.h>

/*
 * Work of the host's in a queue's order: on memory that the device does not reach, and with verbs
 * that it has no kernel for. Device memory comes by way of the queue's staging, piece by piece.
 */

/* A side of a copy or of a cast. */
typedef struct fy_cuda_side_of {
    const fy_area *area;
    void *base;      /* of a source only read */
    bool is_reached; /* the device's memory, or pinned */
    bool is_device;  /* the device's */
} fy_cuda_side_of;

/*
 * Bytes [first, first + bytes) of an area at base, which are in one allocation: what they are to
 * the queue's device. Of verbs.c. Entered.
 */
ferry_status fy_cuda_side_find(const fy_exec_queue *queue, const fy_area *area, const void *base,
                               uint64_t first, uint64_t bytes, fy_cuda_side_of *side_out,
                               ferry_error *error);

/* Bytes of an element of that kind of numbers. */
static inline uint64_t fy_cuda_element_bytes(uint32_t kind)
{
    return kind == FERRY_F64                         ? 8
           : kind == FERRY_F32                       ? 4
           : kind == FERRY_F16 || kind == FERRY_BF16 ? 2
                                                     : 1;
}

/* Bytes [first, first + bytes); hash_out may be NULL. At least one side is not reached. */
ferry_status fy_cuda_stage_copy(fy_exec_queue *queue, const fy_cuda_side_of *to,
                                const fy_cuda_side_of *from, uint64_t first, uint64_t bytes,
                                uint64_t *hash_out, ferry_error *error);
/* XXH3 of bytes of one side. */
ferry_status fy_cuda_stage_hash(fy_exec_queue *queue, const fy_cuda_side_of *from, uint64_t first,
                                uint64_t bytes, uint64_t *hash_out, ferry_error *error);
/* Any cast of elements [first, first + n), by the CPU. */
ferry_status fy_cuda_stage_cast(fy_exec_queue *queue, const fy_cast *cast,
                                const fy_cuda_side_of *to, const fy_cuda_side_of *from,
                                uint64_t first, uint64_t n, ferry_error *error);
/* Any sum, by the CPU; reached says of each source, and then of each target, what it is. */
ferry_status fy_cuda_stage_sum(fy_exec_queue *queue, const fy_sum *sum, const bool *reached,
                               ferry_error *error);

/*
 * Copies between what the device reaches: bytes [first, first + bytes) of both, by the driver where
 * they lie side by side, else by a kernel. Of move.c.
 */
ferry_status fy_cuda_move(fy_exec_queue *queue, const fy_area *to, void *to_base,
                          const fy_area *from, const void *from_base, uint64_t first,
                          uint64_t bytes, ferry_error *error);

#endif
