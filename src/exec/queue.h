/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_QUEUE_H
#define FY_EXEC_QUEUE_H

#include "exec/exec.h"

#include <ferry/queue.h>

/*
 * A caller's queue within a call: enter finds out whether it is one, and keeps it until leave.
 * FERRY_ERR_MISUSE with a sentence that begins with `what`: of what is no queue (any more), of one
 * that was made before a fork, and on a thread that the queues of the caller's functions wait for.
 * NULL is entered and left for nothing, and gives NULL.
 */
typedef struct fy_queue fy_queue;
ferry_status fy_queue_enter(ferry_queue *handle, const char *what, fy_queue **queue_out,
                            ferry_error *error);
void fy_queue_leave(fy_queue *queue);

/* Of one that was entered: whether operations on it are in host order. NULL is. */
bool fy_queue_is_host(const fy_queue *queue);

/*
 * Whether work on it may use memory of that space: the host's, or its own device's. In host order
 * any. Else FERRY_ERR_MISUSE. Entered.
 */
ferry_status fy_queue_check_space(const fy_queue *queue, fy_space space, const char *what,
                                  ferry_error *error);

/*
 * Verbs on a queue that was entered and is not in host order: from begin to end nobody else has
 * it. Short, and without waiting.
 */
fy_exec_queue *fy_queue_begin(fy_queue *queue, const fy_exec **exec_out);
void fy_queue_end(fy_queue *queue);

/*
 * Work that the host does in the queue's order, however long it takes: it begins when earlier work
 * of the queue is done, on a thread that belongs to the queue, and later work begins when it has
 * returned. What it returns is the outcome of ferry_queue_synchronize. The function is called
 * exactly once if this returns FERRY_OK. In host order it is called at once, and its status is
 * returned. Entered.
 */
typedef ferry_status (*fy_queue_fn)(void *context, ferry_error *error);
ferry_status fy_queue_defer(fy_queue *queue, fy_queue_fn function, void *context,
                            ferry_error *error);
/*
 * Work that the device does by itself, and that the host looks on at: begin puts it on the queue,
 * now, and calls verbs alone; the function is called on the queue's thread when that has done what
 * was given to it before, and returns when the work is over. Later work of the device's does not
 * wait for it, but ferry_queue_synchronize does. Where this fails the function is not called; what
 * begin has put there stays. Not in host order. Entered.
 */
typedef ferry_status (*fy_queue_begin_fn)(void *context, fy_exec_queue *queue, ferry_error *error);
ferry_status fy_queue_watch(fy_queue *queue, fy_queue_begin_fn begin, fy_queue_fn function,
                            void *context, ferry_error *error);
/*
 * Whether work may be watched whose kernels wait for those of other ranks. They may hold up no
 * other queue of ferry's: a stream that was adopted may, of another one it is found out at the
 * first question, which may take a second. And no graph may have calls of the queue: the queue's
 * thread would wait for a kernel that may lie behind such a call, which waits for this thread.
 * Entered.
 */
bool fy_queue_may_meet(fy_queue *queue);
fy_space fy_queue_space(const fy_queue *queue);
const fy_exec *fy_queue_exec(const fy_queue *queue);

/*
 * Whether what is put on the queue is captured in a graph now. FERRY_ERR_MISUSE where the capture
 * has failed. Entered.
 */
ferry_status fy_queue_is_captured(fy_queue *queue, bool *is_captured_out, ferry_error *error);
/*
 * The same work, whenever a graph is launched that has this call; its later work begins when the
 * function has returned. What is deferred and what graphs have is done one after the other, by the
 * queue's thread; also when the handle of the queue is destroyed: then failures are logged. A
 * launch that comes before an earlier one has ended does nothing but fail. When no graph has the
 * call any more, forget is called on some thread; also, once, where this fails. Entered.
 */
ferry_status fy_queue_capture(fy_queue *queue, fy_queue_fn function, void (*forget)(void *context),
                              void *context, ferry_error *error);
/*
 * A kernel that a graph has, with nothing of the host's around it: somebody looks on at it, whom
 * ferry_queue_synchronize asks what has become of such calls, `of` being all that he looks on at.
 * He returns the first failure that the asker has not heard of, and counts what he has. `forget` as
 * with fy_queue_capture.
 */
typedef struct fy_queue_kernel {
    const fy_lanes_call *call;
    void (*forget)(void *context);
    void *context;
    void *of;
    ferry_status (*ask)(void *of, uint64_t *n_heard, ferry_error *error);
    void (*hold)(void *of);
    void (*let_go)(void *of);
} fy_queue_kernel;
ferry_status fy_queue_capture_kernel(fy_queue *queue, const fy_queue_kernel *kernel,
                                     ferry_error *error);

/* Within such a function, before it puts anything on a queue: the graph's stream waits just now. */
void fy_queue_make_way(fy_queue *queue);

#endif
