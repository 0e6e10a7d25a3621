/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/carry.h"
#include "transport/host.h"
#include "transport/queued.h"
#include "transport/region.h"
#include "transport/word.h"

#include "exec/now.h"
#include "host/copy.h"

#include <string.h>

/* Puts and gets: everything is checked here, so that engines need not. */

/* One call, before it is checked. */
typedef struct move {
    const char *what; /* "put", "get" */
    uint32_t peer;
    ferry_region *region;
    uint64_t offset;
    const ferry_buffer *buffer;
} move;

ferry_status fy_region_check(const ferry_region *region, const char *what, uint32_t peer,
                             uint64_t offset, uint64_t bytes, ferry_error *error)
{
    uint64_t all = region->view.bytes;
    if (offset <= all && bytes <= all - offset) {
        return FERRY_OK;
    }
    if (offset > all) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "%s of %llu bytes at %llu of region %llu (%llu bytes) on rank %u begins %llu "
            "bytes past its end",
            what, (unsigned long long)bytes, (unsigned long long)offset,
            (unsigned long long)region->view.id, (unsigned long long)all, peer,
            (unsigned long long)(offset - all));
    }
    return fy_fail(
        error, FERRY_ERR_MISUSE,
        "%s of %llu bytes at %llu of region %llu (%llu bytes) on rank %u goes %llu bytes "
        "past its end",
        what, (unsigned long long)bytes, (unsigned long long)offset,
        (unsigned long long)region->view.id, (unsigned long long)all, peer,
        (unsigned long long)(bytes - (all - offset)));
}

static ferry_status check_buffer(const ferry_transport *transport, const char *what,
                                 const ferry_buffer *buffer, ferry_error *error)
{
    const ferry_region *its = buffer->registration;
    FY_TRY(fy_buffer_check(buffer, what, error));
    if (its != NULL && its->transport != transport) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the buffer's %llu bytes do not lie in the region it says they do: that "
                       "belongs to another transport",
                       what, (unsigned long long)buffer->bytes);
    }
    return fy_registration_check(buffer, what, error);
}

/* Whether this rank can reach peer by this region at all. */
static ferry_status check_target(const ferry_transport *transport, const move *call,
                                 ferry_error *error)
{
    const ferry_region *region = call->region;
    if (region->transport != transport) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s: region %llu belongs to another transport",
                       call->what, (unsigned long long)region->view.id);
    }
    if (call->peer >= transport->world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s: there is no rank %u in a world of %u ranks",
                       call->what, call->peer, transport->world->n_ranks);
    }
    if (region->view.kind != FY_REGION_SYMMETRIC && region->view.owner != call->peer) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: region %llu is registered memory of rank %u, not of rank %u",
                       call->what, (unsigned long long)region->view.id, region->view.owner,
                       call->peer);
    }
    return FERRY_OK;
}

static ferry_status check_move(const ferry_transport *transport, const move *call,
                               ferry_error *error)
{
    if (transport == NULL || call->region == NULL || call->buffer == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a transport, a region and a buffer",
                       call->what);
    }
    FY_TRY(check_target(transport, call, error));
    FY_TRY(check_buffer(transport, call->what, call->buffer, error));
    FY_TRY(fy_region_check(call->region, call->what, call->peer, call->offset, call->buffer->bytes,
                           error));
    return fy_transport_state(transport, error);
}

static ferry_status check_signal(const ferry_transport *transport, uint32_t peer,
                                 const ferry_signal *signal, ferry_error *error)
{
    if (signal == NULL || signal->region == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "put with signal needs a signal with a region");
    }
    if (signal->op != FERRY_SIGNAL_SET && signal->op != FERRY_SIGNAL_ADD) {
        return fy_fail(error, FERRY_ERR_MISUSE, "signal: %u is not a ferry_signal_op", signal->op);
    }
    return fy_word_check(transport, signal->region, signal->offset, peer, error);
}

/* Whether the CPU and the engines for host memory do it all. */
static bool is_plain(const move *call)
{
    return (call->buffer->kind | call->region->view.space.kind) == FERRY_MEMORY_HOST ||
           call->buffer->bytes == 0;
}

/* Within this rank. The ranges may overlap, which no other copy allows. */
static void copy_here(void *to, const void *from, uint64_t bytes)
{
    uintptr_t a = (uintptr_t)to;
    uintptr_t b = (uintptr_t)from;
    if (a - b < bytes || b - a < bytes) {
        memmove(to, from, (size_t)bytes);
    } else {
        fy_copy(to, from, (size_t)bytes);
    }
}

static ferry_status put_here(const move *call, const ferry_signal *signal, ferry_world *world,
                             ferry_error *error)
{
    if (!is_plain(call)) {
        FY_TRY(fy_move_now(call->region->view.space, (char *)call->region->view.base + call->offset,
                           fy_space_of(call->buffer), call->buffer->base, call->buffer->bytes,
                           error));
    } else if (call->buffer->bytes != 0) {
        copy_here((char *)call->region->view.base + call->offset, call->buffer->base,
                  call->buffer->bytes);
    }
    if (signal != NULL) {
        fy_word_raise(fy_word_at(signal->region->view.base, signal->offset), signal->value,
                      signal->op);
        fy_word_note(signal->region->view.base, signal->region->view.noted, signal->offset);
        fy_bell_ring(world->bell);
    }
    return FERRY_OK;
}

static ferry_status put(ferry_transport *transport, const move *call, const ferry_signal *signal,
                        ferry_error *error)
{
    if (fy_is_self(transport, call->peer)) {
        return put_here(call, signal, transport->world, error);
    }
    if (call->buffer->bytes == 0 && signal == NULL) {
        return FERRY_OK;
    }
    uint32_t index = transport->engine_of[call->peer];
    const fy_open_engine *engine = &transport->engines[index];
    void *known = call->region->attachments[index];
    fy_signal_view view;
    if (signal != NULL) {
        view = (fy_signal_view){.region = &signal->region->view,
                                .attachment = signal->region->attachments[index],
                                .offset = signal->offset,
                                .value = signal->value,
                                .op = signal->op};
    }
    if (!is_plain(call)) {
        fy_carriage what = {call->peer, call->region, call->offset, call->buffer};
        return fy_carry_put(transport, &what, signal == NULL ? NULL : &view, error);
    }
    if (fy_region_is_aside(call->region)) { /* and no bytes: the engine of words does not know it */
        return fy_carry_signal(transport, call->peer, &view, error);
    }
    if (signal != NULL) {
        FY_TRY(fy_transport_await_aside(transport, error));
    }
    ferry_status status = engine->table->put(engine->state, call->peer, &call->region->view, known,
                                             call->offset, call->buffer->base, call->buffer->bytes,
                                             signal == NULL ? NULL : &view, error);
    return fy_world_verdict(transport->world, status, error);
}

/*
 * The calls
 */

/* What a call in the order of a queue keeps until it begins. */
typedef struct queued_move {
    ferry_transport *transport;
    move call;
    ferry_buffer buffer;
    uint64_t allocation; /* which the buffer lies in; 0: nobody numbers them */
    bool has_signal;
    ferry_signal signal;
} queued_move;

static uint64_t allocation_of(const ferry_buffer *buffer)
{
    fy_memory_span span = {.number = 0};
    if (buffer->kind != FERRY_MEMORY_HOST && buffer->bytes != 0) {
        fy_memory_query(buffer->base, &span);
    }
    return span.number;
}

/*
 * Its turn has come: devices' memory that was freed meanwhile is found out, also where somebody
 * has got memory at the same address since.
 */
static ferry_status begin_queued(queued_move *it, ferry_error *error)
{
    it->call.buffer = &it->buffer;
    FY_TRY(fy_transport_state(it->transport, error));
    FY_TRY(fy_buffer_check(&it->buffer, it->call.what, error));
    return allocation_of(&it->buffer) == it->allocation
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "%s: the memory at %p was freed before its turn came, and is another "
                         "allocation now: free what a queue uses once the queue is done with it",
                         it->call.what, it->buffer.base);
}

static ferry_status put_queued(void *context, ferry_error *error)
{
    queued_move *it = context;
    FY_TRY(begin_queued(it, error));
    return put(it->transport, &it->call, it->has_signal ? &it->signal : NULL, error);
}

static ferry_status get(ferry_transport *transport, const move *call, ferry_error *error);

static ferry_status get_queued(void *context, ferry_error *error)
{
    queued_move *it = context;
    FY_TRY(begin_queued(it, error));
    return get(it->transport, &it->call, error);
}

/* A call that was checked, on a queue that may use its memory. */
static ferry_status move_on(ferry_transport *transport, const move *call,
                            const ferry_signal *signal, fy_queue_fn function, ferry_queue *handle,
                            ferry_error *error)
{
    fy_queue *queue;
    queued_move it = {.transport = transport, .call = *call, .buffer = *call->buffer};
    FY_TRY(fy_queue_enter(handle, call->what, &queue, error));
    ferry_status status = fy_queue_check_space(queue, fy_space_of(call->buffer), call->what, error);
    fy_queue_leave(queue);
    if (status != FERRY_OK) {
        return status;
    }
    if (signal != NULL) {
        it.has_signal = true;
        it.signal = *signal;
    }
    it.allocation = allocation_of(call->buffer);
    return fy_transport_defer(transport, handle, call->what, function, &it, sizeof it, error);
}

ferry_status ferry_transport_put(ferry_transport *transport, uint32_t peer, ferry_region *region,
                                 uint64_t offset, const ferry_buffer *source, ferry_queue *queue,
                                 ferry_error *error)
{
    move call = {.what = "put", .peer = peer, .region = region, .offset = offset, .buffer = source};
    FY_TRY(check_move(transport, &call, error));
    if (queue != NULL) {
        return move_on(transport, &call, NULL, put_queued, queue, error);
    }
    FY_TRY(fy_world_check_order(transport->world, call.what, error));
    return put(transport, &call, NULL, error);
}

ferry_status ferry_transport_put_signal(ferry_transport *transport, uint32_t peer,
                                        ferry_region *region, uint64_t offset,
                                        const ferry_buffer *source, const ferry_signal *signal,
                                        ferry_queue *queue, ferry_error *error)
{
    move call = {.what = "put", .peer = peer, .region = region, .offset = offset, .buffer = source};
    FY_TRY(check_move(transport, &call, error));
    FY_TRY(check_signal(transport, peer, signal, error));
    if (queue != NULL) {
        return move_on(transport, &call, signal, put_queued, queue, error);
    }
    FY_TRY(fy_world_check_order(transport->world, call.what, error));
    return put(transport, &call, signal, error);
}

static ferry_status get(ferry_transport *transport, const move *call, ferry_error *error)
{
    const ferry_region *region = call->region;
    const ferry_buffer *target = call->buffer;
    if (fy_is_self(transport, call->peer)) {
        const char *from = (const char *)region->view.base + call->offset;
        if (!is_plain(call)) {
            return fy_move_now(fy_space_of(target), target->base, region->view.space, from,
                               target->bytes, error);
        }
        copy_here(target->base, from, target->bytes);
        return FERRY_OK;
    }
    uint32_t index = fy_region_engine(region, call->peer);
    const fy_open_engine *engine = &transport->engines[index];
    if (engine->table->get == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "engine %s cannot fetch bytes: put them",
                       engine->table->name);
    }
    if (!is_plain(call)) {
        fy_carriage what = {call->peer, call->region, call->offset, target};
        return fy_carry_get(transport, &what, error);
    }
    ferry_status status =
        engine->table->get(engine->state, call->peer, &region->view, region->attachments[index],
                           call->offset, target->base, target->bytes, error);
    return fy_world_verdict(transport->world, status, error);
}

ferry_status ferry_transport_get(ferry_transport *transport, uint32_t peer, ferry_region *region,
                                 uint64_t offset, const ferry_buffer *target, ferry_queue *queue,
                                 ferry_error *error)
{
    move call = {.what = "get", .peer = peer, .region = region, .offset = offset, .buffer = target};
    ferry_status status = check_move(transport, &call, error);
    if (status != FERRY_OK || target->bytes == 0) {
        return status;
    }
    if (queue != NULL) {
        return move_on(transport, &call, NULL, get_queued, queue, error);
    }
    FY_TRY(fy_world_check_order(transport->world, call.what, error));
    return get(transport, &call, error);
}
