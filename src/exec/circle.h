/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_CIRCLE_H
#define FY_EXEC_CIRCLE_H

#include "base/status.h"
#include "exec/sum.h"

#include <stdint.h>

/*
 * Collectives of a library beside the devices' driver, NCCL, among the ranks of a circle: each has
 * its own queue, and all make the same calls in the same order, which nobody compares. The work of
 * one rank waits for that of the others, without end: who finds out that another one does not come
 * closes the circle, and so ends what waits.
 *
 * Nothing here blocks. What is begun goes on by itself; `state` says what has become of it.
 */
typedef struct fy_circle fy_circle;

struct fy_exec_queue;

enum { FY_CIRCLE_ID_BYTES = 128 };

typedef struct fy_circle_id {
    unsigned char bytes[FY_CIRCLE_ID_BYTES];
} fy_circle_id;

typedef enum fy_circle_verb {
    FY_CIRCLE_ALL_REDUCE = 0,    /* n elements to n, the same bits on all ranks */
    FY_CIRCLE_ALL_GATHER = 1,    /* n elements to n of each rank, in their order */
    FY_CIRCLE_REDUCE_SCATTER = 2 /* n elements for each rank to n, those of its own number */
} fy_circle_verb;

/* Tensors are memory of the queue's device. In place is what is so in mixed_comm.h. */
typedef struct fy_circle_call {
    fy_circle_verb verb;
    fy_sum_type type;
    const void *in;
    void *out;
    uint64_t n;
} fy_circle_call;

typedef struct fy_circles {
    /* "nccl 2.28.3", for ever; FERRY_ERR_UNSUPPORTED with a sentence where it cannot be had. */
    ferry_status (*name)(const char **name_out, ferry_error *error);
    /* One rank of a circle makes it, and the others get it. */
    ferry_status (*make_id)(struct fy_exec_queue *queue, fy_circle_id *id_out, ferry_error *error);
    /*
     * Begins. Refused where other queues would not go on while this one waits for other ranks. A
     * circle is closed before its queue.
     */
    ferry_status (*open)(struct fy_exec_queue *queue, const fy_circle_id *id, uint32_t rank,
                         uint32_t n_ranks, fy_circle **circle_out, ferry_error *error);
    /*
     * FERRY_OK: it is open, and what was called is on the queue; FERRY_ERR_TIMEOUT without a
     * sentence: not yet; or why it has failed for good.
     */
    ferry_status (*state)(fy_circle *circle, ferry_error *error);
    /* When the state is FERRY_OK, and nothing else goes on the queue until it is so again. */
    ferry_status (*call)(fy_circle *circle, const fy_circle_call *call, ferry_error *error);
    /*
     * is_over: all ranks have seen the ends of their calls and close it now. Else what waits in the
     * queue ends soon, in whatever state. NULL is allowed.
     */
    void (*close)(fy_circle *circle, bool is_over);
} fy_circles;

#endif
