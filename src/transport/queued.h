/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_TRANSPORT_QUEUED_H
#define FY_TRANSPORT_QUEUED_H

#include "exec/queue.h"
#include "transport/transport.h"
#include "world/order.h"

/*
 * A call that uses the transport, in the order of a queue: fy_queue_defer, and until the function
 * has returned the transport's world belongs to that queue. Other queues, and calls in host order,
 * are refused meanwhile (FERRY_ERR_MISUSE, with a sentence that begins with `what`): they would use
 * the world at the same time. In host order the function is called at once, and its status is
 * returned. What the context holds, which must be aligned as a pointer is, is copied.
 */
ferry_status fy_transport_defer(ferry_transport *transport, ferry_queue *handle, const char *what,
                                fy_queue_fn function, void *context, size_t context_bytes,
                                ferry_error *error);

/* The same, with more to say. Not in host order. */
typedef struct fy_queued {
    const char *what;
    fy_queue_fn function;
    /* When the world is the caller's again: who has heard of it may call in host order. Or NULL. */
    void (*ended)(void *context, ferry_status status, const ferry_error *error);
    const void *context;
    size_t context_bytes;
    /*
     * What the device does by itself: puts it there, now, and says where its end is; the function
     * looks on. NULL: the function does it, in the queue's order.
     */
    ferry_status (*launch)(void *context, fy_exec_queue *queue, fy_ticket *end_out,
                           ferry_error *error);
    /*
     * Of what a graph calls; both optional. Before each call, while the object that it uses surely
     * lives; and when no graph has it any more, if the object does.
     */
    void (*begins)(void *context);
    void (*forgotten)(void *context);
} fy_queued;
ferry_status fy_transport_enqueue(ferry_transport *transport, fy_queue *queue,
                                  const fy_queued *what, ferry_error *error);

/* Calls that graphs have of an object, which is used by them; zeroes: none. */
typedef struct fy_captures {
    struct fy_captured *first;
} fy_captures;

/*
 * The same while the queue is captured: fy_queue_capture. The world belongs to the queue from when
 * a launch has come to the call until the function has returned; a call that comes while it belongs
 * to another queue fails. The object and its transport are not kept: it ends its calls.
 */
ferry_status fy_transport_capture(ferry_transport *transport, fy_queue *queue,
                                  const fy_queued *what, fy_captures *of, ferry_error *error);
bool fy_captures_exist(const fy_captures *of);
/* From here on none begins; what is under way may go on. Graphs that still have some go on, and
 * these calls fail. */
void fy_captures_end(fy_captures *of);

#endif
