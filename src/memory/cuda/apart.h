/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_APART_H
#define FY_MEMORY_CUDA_APART_H

#include "memory/cuda/queue.h"

/*
 * Streams share few channels, and one that waits holds up all others of its channel. So ferry's own
 * streams must be in other channels than a caller's stream that waits for what they do. The driver
 * says nothing of channels, so it is tried: the caller's stream waits for a moment, and a stream of
 * ferry's that does not go on meanwhile is given up for a new one, which gets another channel.
 * A stream of ferry's in which kernels wait for those of other ranks is like one of the caller's:
 * what brings these ranks forward must go on.
 *
 * All under the lock of the list of queues, in the device's context.
 */

/* A stream of the caller's was adopted: all of ferry's that there are. */
ferry_status fy_cuda_part_all(const fy_cuda_device *device, ferry_error *error);
/* A stream of ferry's was just made. */
ferry_status fy_cuda_part_one(fy_exec_queue *own, ferry_error *error);
/*
 * Kernels on one of ferry's are to wait for those of others, which leaves at least one stream that
 * goes on whatever waits, or is refused.
 */
ferry_status fy_cuda_part_waiting(fy_exec_queue *own, ferry_error *error);
/* A graph waits just now, on a stream that nobody knows: those of ferry's that have nothing to do.
 */
void fy_cuda_part_idle(const fy_cuda_device *device);

/* A new stream of ferry's. */
ferry_status fy_cuda_make_stream(CUstream *stream_out, ferry_error *error);

#endif
