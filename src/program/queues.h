/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROGRAM_QUEUES_H
#define FY_PROGRAM_QUEUES_H

#include "exec/exec.h"

/*
 * The queues, one for each device, that a program's moves and sums go on, and how far they are. A
 * move between host memory takes none of them: the CPU makes it at the call.
 */
typedef struct fy_device_queue {
    const fy_exec *exec;
    int32_t device;
    fy_exec_queue *queue;
    bool used; /* since the last mark */
} fy_device_queue;

typedef struct fy_device_queues {
    fy_device_queue *items;
    uint32_t n; /* 0: all memory is the host's */
} fy_device_queues;

/* Opens the queue that a choice needs, if it needs one that is not open yet. */
ferry_status fy_queues_add(fy_device_queues *queues, fy_exec_choice choice, ferry_error *error);
void fy_queues_close(fy_device_queues *queues); /* waits for them */

/* The open queue of a choice, or NULL. */
fy_device_queue *fy_queues_find(const fy_device_queues *queues, fy_exec_choice choice);

/* The queue on which bytes move between two spaces, which is used from now; NULL: the CPU's. */
fy_device_queue *fy_queues_use(fy_device_queues *queues, fy_space from, fy_space to);

/*
 * Takes a ticket of each queue that was used since the last mark, 0 of the others: whether there is
 * something to wait for. A queue that cannot say how far it is has failed: its status.
 */
ferry_status fy_queues_mark(fy_device_queues *queues, fy_ticket *tickets, bool *waits_out,
                            ferry_error *error);
/* FERRY_OK, FERRY_ERR_TIMEOUT without a sentence: not yet, or why a queue has failed. */
ferry_status fy_queues_reached(const fy_device_queues *queues, const fy_ticket *tickets,
                               ferry_error *error);
/* Waits until all that was called on them is done, or has failed. */
void fy_queues_finish(fy_device_queues *queues);

#endif
