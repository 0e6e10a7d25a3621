/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/queued.h"

#include "base/alloc.h"

#include <string.h>

/* Work for the queue's driver. */
typedef struct deferred {
    ferry_transport *transport; /* retained */
    fy_queued call;
    void *context[]; /* its words */
} deferred;

static ferry_status run(void *context, ferry_error *error)
{
    deferred *work = context;
    ferry_world *world = work->transport->world;
    fy_order_enter(world);
    ferry_status status = work->call.function(work->context, error);
    ferry_transport_close(work->transport);
    fy_order_leave();
    fy_order_give_back(world);
    ferry_world_destroy(world);
    if (work->call.ended != NULL) {
        work->call.ended(work->context, status, error);
    }
    fy_free(work);
    return status;
}

/* On a queue that was entered and is a device's. */
static ferry_status defer(fy_queue *queue, deferred *work, ferry_error *error)
{
    ferry_transport *transport = work->transport;
    FY_TRY(fy_order_take(transport->world, queue, work->call.what, error));
    fy_world_retain(transport->world);
    fy_transport_retain(transport);
    ferry_status status = fy_queue_defer(queue, run, work, error);
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
    *work = (deferred){.transport = transport, .call = *what};
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
