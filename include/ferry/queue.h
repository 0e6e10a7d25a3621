/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_QUEUE_H
#define FERRY_QUEUE_H

#include <ferry/export.h>
#include <ferry/memory.h>
#include <ferry/status.h>

#include <stdbool.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * The order that operations keep with other work of a device: what a stream is to CUDA.
 *
 *     ferry_queue *queue;
 *     ferry_event *event;
 *     ferry_queue_create(FERRY_MEMORY_FAR, 0, &queue, &error);
 *     ferry_event_create(&event, &error);
 *     ferry_transport_put(transport, peer, region, 0, &source, queue, &error);
 *     ferry_transport_flush(transport, peer, queue, &error);
 *     ferry_event_record(event, queue, &error);
 *     ferry_queue_synchronize(queue, &error);
 *     ferry_event_destroy(event);
 *     ferry_queue_destroy(queue);
 *
 * Whatever takes a queue (copies, puts, gets, flushes, waits for signals, runs of services, mixed
 * collectives) begins when all earlier work of the queue is done, and later work begins when it is
 * done. The call returns at once, with FERRY_OK if the work is on the queue; what became of it is
 * said by ferry_queue_synchronize. NULL, and a queue of FERRY_MEMORY_HOST, are host order: the
 * operation begins when it is called, and the call returns what became of it.
 *
 * Work on a queue may use memory of the queue's device, and the host's. All of it, places for
 * results (hashes, values of signals) and scales of casts among it, must stay until the work is
 * done; buffers, boxes, options and signals are copied by the call.
 *
 * A world, with its transports, services and collectives, belongs to a queue from the first call
 * that puts work of it there until the last of that work is done: meanwhile calls on another queue,
 * and in host order, are FERRY_ERR_MISUSE. Regions, transports, services and collectives that are
 * freed meanwhile wait for it.
 *
 * A queue may be used by several threads at once. FERRY_ERR_MISUSE, with a sentence, are: what is
 * no queue, or none any more (a handle that is kept too long never means a queue that was made
 * later); memory of another device; a queue that was made before this process was forked; and a
 * wait for a queue, or for an event behind it, by a thread that does work of it.
 */
typedef struct ferry_queue ferry_queue;

/*
 * A queue of ferry's own, on a device of that kind of memory. FERRY_ERR_UNSUPPORTED: the kind
 * cannot be had here; FERRY_ERR_MISUSE: it has no such device.
 */
FERRY_API ferry_status ferry_queue_create(ferry_memory_kind kind, int32_t device,
                                          ferry_queue **queue_out, ferry_error *error);
/*
 * The same order as one that exists: native is its handle, such as a CUstream, or what
 * ferry_queue_native gave. Work of both comes in the order of the calls, and each has failures of
 * its own. The handle must stay open until the queue is destroyed, which does not close it.
 * FERRY_ERR_MISUSE: the kind knows no such handle, it is of another device, or the kind is the
 * host, which has none.
 */
FERRY_API ferry_status ferry_queue_adopt(ferry_memory_kind kind, int32_t device, void *native,
                                         ferry_queue **queue_out, ferry_error *error);
/*
 * Waits until its work is done, forgets failures that nobody asked for, and ends it. NULL, and what
 * is no queue any more, are allowed. On a thread that does work of the queue it cannot wait: then
 * the queue stays, and the log says so.
 */
FERRY_API void ferry_queue_destroy(ferry_queue *queue);

/* The kind it was made with; FERRY_MEMORY_HOST of what is no queue. */
FERRY_API ferry_memory_kind ferry_queue_kind(const ferry_queue *queue);
/* The device it was made with; 0 of what is no queue. */
FERRY_API int32_t ferry_queue_device(const ferry_queue *queue);
/* The handle of its order, to be adopted, valid as long as the queue is; NULL of one of the host.
 */
FERRY_API void *ferry_queue_native(const ferry_queue *queue);

/*
 * Waits until all work that was put on it before is done, and returns the first failure among that
 * of ferry since the last time, once; then FERRY_OK again. Work behind a failure is tried all the
 * same. Only where the device itself has failed nothing moves any more, and every further call says
 * so. NULL is FERRY_ERR_MISUSE.
 */
FERRY_API ferry_status ferry_queue_synchronize(ferry_queue *queue, ferry_error *error);

/*
 * A stream that was adopted may be captured in a CUDA graph. Then ferry_service_run and
 * ferry_mixed_comm_run on the queue are not made but kept by the graph, and made anew at each
 * launch of it, with what memory holds by then, in the order of the stream of the launch. Other
 * calls on the queue are FERRY_ERR_UNSUPPORTED, and the capture goes on.
 *
 * A launch is a call of its own: all ranks launch, and until the stream has been synchronized the
 * world belongs to the queue. Calls of one world in different graphs, or on other streams, must not
 * be under way at the same time; a launch that comes before an earlier one of the same call has
 * ended fails, and may break a collective. What became of launches is said by ferry_queue_synchronize; of a queue that was
 * destroyed graphs go on to use what they have, and failures are logged. A launch of a call whose
 * service or collective was ended does nothing but fail. Memory of devices that is freed is given
 * back when no graph has such calls any more.
 *
 * Whether calls on the queue are kept by a graph now. FERRY_ERR_MISUSE: the capture has failed.
 */
FERRY_API ferry_status ferry_queue_is_captured(ferry_queue *queue, bool *is_captured_out,
                                               ferry_error *error);

/*
 * Calls a function of the caller's in the queue's order, once, on some thread; in host order at
 * once, on this one. It should be short, as all of the queue waits for it, and use no queue itself:
 * what it calls with one is FERRY_ERR_MISUSE. context must stay until it is called.
 */
FERRY_API ferry_status ferry_queue_call(ferry_queue *queue, void (*function)(void *context),
                                        void *context, ferry_error *error);

/*
 * A moment of a queue, for other queues, of any device and kind, and for the host to wait for. May
 * be used by several threads at once.
 */
typedef struct ferry_event ferry_event;

/* An event that was never recorded is a moment that has come: nobody waits for it. */
FERRY_API ferry_status ferry_event_create(ferry_event **event_out, ferry_error *error);
/* Queues that wait for the moment go on doing so. The handle dangles. NULL is allowed. */
FERRY_API void ferry_event_destroy(ferry_event *event);

/*
 * From here on it is the moment when all that is on the queue so far is done; in host order it has
 * come. Who waits for an earlier moment of the event goes on waiting for that one.
 */
FERRY_API ferry_status ferry_event_record(ferry_event *event, ferry_queue *queue,
                                          ferry_error *error);
/* Later work of the queue waits for the moment, as it is recorded now; in host order the caller. */
FERRY_API ferry_status ferry_event_wait(ferry_event *event, ferry_queue *queue, ferry_error *error);
/* Whether the moment has come; never waits. */
FERRY_API ferry_status ferry_event_test(ferry_event *event, bool *done_out, ferry_error *error);
/*
 * Waits for the moment. It says nothing of failures: these are the queue's, and it comes all the
 * same. FERRY_ERR_MISUSE: it lies behind the work that this thread does for the queue.
 */
FERRY_API ferry_status ferry_event_synchronize(ferry_event *event, ferry_error *error);

FERRY_END_DECLS

#endif
