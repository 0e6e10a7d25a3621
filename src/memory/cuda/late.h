/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_LATE_H
#define FY_MEMORY_CUDA_LATE_H

#include "memory/cuda/queue.h"

/*
 * A stream that waits on the device may hold up any other one, for there are few channels, and
 * whoever frees memory. So ferry's own streams never do: what a queue is given while it waits for a
 * word of the host's is kept here, and put on its stream by a thread of the plugin's.
 */

/* The first member of what a verb is about, all of it by value: it may be moved. */
typedef struct fy_cuda_late {
    struct fy_cuda_late *next;
    /* On the queue, entered or not, with its lock of calls; NULL: a wait. */
    ferry_status (*perform)(fy_exec_queue *queue, const struct fy_cuda_late *what,
                            ferry_error *error);
    _Atomic uint64_t *word; /* of a wait: until it is at least value */
    uint64_t value;
} fy_cuda_late;

/*
 * Performs it now, or when the queue waits no more: then a failure is the queue's. *what has
 * `bytes` and `perform`. Under the lock of calls.
 */
ferry_status fy_cuda_do(fy_exec_queue *queue, const fy_cuda_late *what, size_t bytes,
                        ferry_error *error);
/* Lets a queue of its own stream wait. Under the lock of calls. */
ferry_status fy_cuda_hold(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                          ferry_error *error);
/* Whether there is anything that waits. */
bool fy_cuda_is_held(fy_exec_queue *queue);

#endif
