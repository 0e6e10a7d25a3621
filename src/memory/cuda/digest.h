/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_DIGEST_H
#define FY_MEMORY_CUDA_DIGEST_H

#include "memory/cuda/stage.h"

/*
 * XXH3 of bytes of a device's memory, by kernels: see hash_kernel.h. Their second one takes its
 * time over each digest, and no more over many, so digests are begun and wait for each other; they
 * are ended together, by one job, before anything on the queue that could tell that they are there.
 */

/* XXH3 of bytes [first, first + bytes) of what the device has. By the host where it must. Entered.
 */
ferry_status fy_cuda_hash_side(fy_exec_queue *queue, const fy_cuda_side_of *from, uint64_t first,
                               uint64_t bytes, uint64_t *hash_out, ferry_error *error);

/* What was begun is ended here in the stream's order. A failure is the queue's, too. Entered. */
ferry_status fy_cuda_end_digests(fy_exec_queue *queue, ferry_error *error);
/* What was begun and never ended, on a queue that nobody has. */
void fy_cuda_forget_digests(fy_exec_queue *queue);

/* digest_each.c: the verb `digests`. */
ferry_status fy_cuda_digests_of(fy_exec_queue *queue, const fy_exec_part *parts, size_t n,
                                char *digests_out, ferry_error *error);

#endif
