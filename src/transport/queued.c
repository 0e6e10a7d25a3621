/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/queued.h"

#include "base/alloc.h"

#include <pthread.h>
#include <string.h>

/* Work for the queue's driver. */
typedef struct deferred {
    ferry_transport *transport; /* retained */
    fy_queued call;
    const fy_exec *exec;
    void *context[]; /* its words */
} deferred;

/* The queue's thread has come to it. The world and the transport are kept, and the queue's. */
static ferry_status perform(ferry_transport *transport, const fy_queued *call, void *context,
                            ferry_error *error)
{
    ferry_world *world = transport->world;
    fy_order_enter(world);
    ferry_status status = call->function(context, error);
    ferry_transport_close(transport);
    fy_order_leave();
    if (call->launch != NULL) {
        fy_order_end_watch(world);
    } else {
        fy_order_give_back(world);
    }
    ferry_world_destroy(world);
    if (call->ended != NULL) {
        call->ended(context, status, error);
    }
    return status;
}

static ferry_status take(ferry_transport *transport, const void *queue, const char *what,
                         ferry_error *error)
{
    FY_TRY(fy_order_take(transport->world, queue, what, error));
    fy_world_retain(transport->world);
    fy_transport_retain(transport);
    return FERRY_OK;
}

static ferry_status run(void *context, ferry_error *error)
{
    deferred *work = context;
    ferry_status status = perform(work->transport, &work->call, work->context, error);
    fy_free(work);
    return status;
}

static bool is_over(const fy_order_end *end)
{
    return fy_exec_reached(end->by, end->queue, end->ticket, NULL) != FERRY_ERR_TIMEOUT;
}

/* Under the lock of the queue's verbs. */
static ferry_status launch(void *context, fy_exec_queue *queue, ferry_error *error)
{
    deferred *work = context;
    fy_order_end end = {.is_over = is_over, .by = work->exec, .queue = queue};
    FY_TRY(work->call.launch(work->context, queue, &end.ticket, error));
    fy_order_watch(work->transport->world, &end);
    return FERRY_OK;
}

/* On a queue that was entered and is a device's. */
static ferry_status defer(fy_queue *queue, deferred *work, ferry_error *error)
{
    ferry_transport *transport = work->transport;
    FY_TRY(take(transport, queue, work->call.what, error));
    ferry_status status = work->call.launch != NULL
                              ? fy_queue_watch(queue, launch, run, work, error)
                              : fy_queue_defer(queue, run, work, error);
    if (status != FERRY_OK) {
        fy_order_give_back(transport->world);
        ferry_world_destroy(transport->world);
        ferry_transport_close(transport);
    }
    return status;
}

ferry_status fy_transport_enqueue(ferry_transport *transport, fy_queue *queue,
                                  const fy_queued *what, ferry_error *error)
{
    deferred *work = fy_alloc_zeroed(1, sizeof *work + what->context_bytes);
    FY_TRY(fy_check_memory(work != NULL, "work on a queue", error));
    *work = (deferred){.transport = transport, .call = *what, .exec = fy_queue_exec(queue)};
    memcpy(work->context, what->context, what->context_bytes);
    ferry_status status = defer(queue, work, error);
    if (status != FERRY_OK) {
        fy_free(work);
    }
    return status;
}

ferry_status fy_transport_defer(ferry_transport *transport, ferry_queue *handle, const char *what,
                                fy_queue_fn function, void *context, size_t context_bytes,
                                ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(fy_queue_enter(handle, what, &queue, error));
    fy_queued call = {
        .what = what, .function = function, .context = context, .context_bytes = context_bytes};
    bool is_host = fy_queue_is_host(queue);
    ferry_status status = is_host ? FERRY_OK : fy_transport_enqueue(transport, queue, &call, error);
    fy_queue_leave(queue);
    if (is_host) {
        FY_TRY(fy_world_check_order(transport->world, what, error));
        status = function(context, error);
    }
    return status;
}

/*
 * Calls of graphs
 */

/* The lock is of all of them: an object that is in one's list lives while it is held. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct fy_captured {
    struct fy_captured *next; /* of the object's */
    fy_captures *of;          /* NULL: the object has ended them */
    ferry_transport *transport;
    fy_queue *queue; /* that the world belongs to meanwhile */
    fy_queued call;
    void *context[]; /* its words */
} captured;

static ferry_status begin(captured *one, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    pthread_mutex_lock(&captures_lock);
    if (one->of == NULL) {
        status =
            fy_fail(error, FERRY_ERR_MISUSE,
                    "%s: a graph was launched that has this call of an object which was ended: "
                    "nothing was moved; capture a graph anew",
                    one->call.what);
    }
    FY_THEN(status, take(one->transport, one->queue, one->call.what, error));
    if (status == FERRY_OK && one->call.begins != NULL) {
        one->call.begins(one->context);
    }
    pthread_mutex_unlock(&captures_lock);
    return status;
}

static ferry_status run_captured(void *context, ferry_error *error)
{
    captured *one = context;
    FY_TRY(begin(one, error));
    fy_queue_make_way(one->queue);
    return perform(one->transport, &one->call, one->context, error);
}

static void forget(void *context)
{
    captured *one = context;
    pthread_mutex_lock(&captures_lock);
    if (one->of != NULL) {
        captured **link = &one->of->first;
        while (*link != one) {
            link = &(*link)->next;
        }
        *link = one->next;
        if (one->call.forgotten != NULL) {
            one->call.forgotten(one->context);
        }
    }
    pthread_mutex_unlock(&captures_lock);
    fy_free(one);
}

ferry_status fy_transport_capture(ferry_transport *transport, fy_queue *queue,
                                  const fy_queued *what, fy_captures *of, ferry_error *error)
{
    captured *one = fy_alloc_zeroed(1, sizeof *one + what->context_bytes);
    FY_TRY(fy_check_memory(one != NULL, "a call in a graph", error));
    pthread_mutex_lock(&captures_lock);
    *one = (captured){
        .next = of->first, .of = of, .transport = transport, .queue = queue, .call = *what};
    memcpy(one->context, what->context, what->context_bytes);
    of->first = one;
    pthread_mutex_unlock(&captures_lock);
    return fy_queue_capture(queue, run_captured, forget, one, error);
}

bool fy_captures_exist(const fy_captures *of)
{
    pthread_mutex_lock(&captures_lock);
    bool exist = of->first != NULL;
    pthread_mutex_unlock(&captures_lock);
    return exist;
}

void fy_captures_end(fy_captures *of)
{
    pthread_mutex_lock(&captures_lock);
    for (captured *one = of->first; one != NULL; one = one->next) {
        one->of = NULL;
    }
    of->first = NULL;
    pthread_mutex_unlock(&captures_lock);
}
