/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_MOMENT_H
#define FY_EXEC_MOMENT_H

#include "exec/queue.h"

/* A moment of a queue; kept by the event and by all queues that still use the word. */
typedef struct fy_moment {
    _Atomic uint32_t n_users;
    _Atomic uint64_t word; /* 1: it has come */
    const void *native;    /* of the queue that it was recorded on */
} fy_moment;

void fy_moment_drop(fy_moment *one); /* one user less; NULL is allowed */

/*
 * A verb of a queue that was entered and is not in host order: it sets the moment's word, or waits
 * for it. The queue uses the moment until it has passed it.
 */
ferry_status fy_queue_use_moment(fy_queue *queue, fy_moment *one, bool records, ferry_error *error);

/* Whether this thread does work of the queue of that handle, and so cannot wait for it. */
bool fy_queue_works_here(const void *native);

#endif
