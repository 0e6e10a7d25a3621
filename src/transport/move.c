/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/host.h"
#include "transport/region.h"
#include "transport/word.h"

#include "base/copy.h"

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
    if (buffer->kind != FERRY_MEMORY_HOST) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: memory of kind %u is not supported: this version knows host memory "
                       "only",
                       what, buffer->kind);
    }
    if (buffer->base == NULL && buffer->bytes != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s of %llu bytes with a buffer at NULL", what,
                       (unsigned long long)buffer->bytes);
    }
    const ferry_region *its = buffer->registration;
    if (its == NULL) {
        return FERRY_OK;
    }
    uintptr_t base = (uintptr_t)buffer->base;
    uintptr_t first = (uintptr_t)its->view.base;
    if (its->transport != transport || its->view.kind == FY_REGION_IMPORTED || base < first ||
        base - first > its->view.bytes || buffer->bytes > its->view.bytes - (base - first)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the buffer's %llu bytes do not lie in the region it says they do", what,
                       (unsigned long long)buffer->bytes);
    }
    return FERRY_OK;
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
                               const ferry_queue *queue, ferry_error *error)
{
    if (transport == NULL || call->region == NULL || call->buffer == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a transport, a region and a buffer",
                       call->what);
    }
    if (queue != NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "%s: this version has no queues; pass NULL",
                       call->what);
    }
    ferry_status status = check_target(transport, call, error);
    if (status == FERRY_OK) {
        status = check_buffer(transport, call->what, call->buffer, error);
    }
    if (status == FERRY_OK) {
        status = fy_region_check(call->region, call->what, call->peer, call->offset,
                                 call->buffer->bytes, error);
    }
    return status == FERRY_OK ? fy_transport_state(transport, error) : status;
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

static void put_here(const move *call, const ferry_signal *signal, ferry_world *world)
{
    if (call->buffer->bytes != 0) {
        copy_here((char *)call->region->view.base + call->offset, call->buffer->base,
                  call->buffer->bytes);
    }
    if (signal != NULL) {
        fy_word_raise(fy_word_at(signal->region->view.base, signal->offset), signal->value,
                      signal->op);
        fy_bell_ring(world->bell);
    }
}

static ferry_status put(ferry_transport *transport, const move *call, const ferry_signal *signal,
                        ferry_error *error)
{
    if (fy_is_self(transport, call->peer)) {
        put_here(call, signal, transport->world);
        return FERRY_OK;
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
    ferry_status status = engine->table->put(engine->state, call->peer, &call->region->view, known,
                                             call->offset, call->buffer->base, call->buffer->bytes,
                                             signal == NULL ? NULL : &view, error);
    return fy_world_verdict(transport->world, status, error);
}

ferry_status ferry_put(ferry_transport *transport, uint32_t peer, ferry_region *region,
                       uint64_t offset, const ferry_buffer *source, ferry_queue *queue,
                       ferry_error *error)
{
    move call = {.what = "put", .peer = peer, .region = region, .offset = offset, .buffer = source};
    ferry_status status = check_move(transport, &call, queue, error);
    return status == FERRY_OK ? put(transport, &call, NULL, error) : status;
}

ferry_status ferry_put_signal(ferry_transport *transport, uint32_t peer, ferry_region *region,
                              uint64_t offset, const ferry_buffer *source,
                              const ferry_signal *signal, ferry_queue *queue, ferry_error *error)
{
    move call = {.what = "put", .peer = peer, .region = region, .offset = offset, .buffer = source};
    ferry_status status = check_move(transport, &call, queue, error);
    if (status == FERRY_OK) {
        status = check_signal(transport, peer, signal, error);
    }
    return status == FERRY_OK ? put(transport, &call, signal, error) : status;
}

ferry_status ferry_get(ferry_transport *transport, uint32_t peer, ferry_region *region,
                       uint64_t offset, const ferry_buffer *target, ferry_queue *queue,
                       ferry_error *error)
{
    move call = {.what = "get", .peer = peer, .region = region, .offset = offset, .buffer = target};
    ferry_status status = check_move(transport, &call, queue, error);
    if (status != FERRY_OK || target->bytes == 0) {
        return status;
    }
    if (fy_is_self(transport, peer)) {
        copy_here(target->base, (const char *)region->view.base + offset, target->bytes);
        return FERRY_OK;
    }
    uint32_t index = transport->engine_of[peer];
    const fy_open_engine *engine = &transport->engines[index];
    if (engine->table->get == NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "engine %s cannot fetch bytes: put them",
                       engine->table->name);
    }
    status = engine->table->get(engine->state, peer, &region->view, region->attachments[index],
                                offset, target->base, target->bytes, error);
    return fy_world_verdict(transport->world, status, error);
}
