/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/carry.h"

#include "base/alloc.h"
#include "exec/now.h"
#include "memory/pages.h"
#include "transport/host.h"
#include "transport/region.h"
#include "transport/registry.h"

/* The most that copies of sources may take before a put waits for the engine to be done. */
static const uint64_t MOST_KEPT_BYTES = (uint64_t)32 << 20;

/* A source's copy in host memory, which the engine may still read. */
struct fy_kept {
    fy_kept *next;
    uint32_t peer;
    void *base;
    uint64_t bytes;
};

static const fy_space host_space = {.kind = FERRY_MEMORY_HOST};

ferry_way fy_way_of(const fy_engine *engine, void *state, uint32_t peer, uint32_t source_kind,
                    uint32_t target_kind)
{
    bool all_host = source_kind == FERRY_MEMORY_HOST && target_kind == FERRY_MEMORY_HOST;
    uint32_t can = all_host                ? 0
                   : engine->reach == NULL ? UINT32_MAX
                                           : engine->reach(state, peer, source_kind, target_kind);
    if (can != UINT32_MAX) {
        return (can & FY_REACH_BY_EXEC) != 0 ? FERRY_WAY_DEVICE : FERRY_WAY_DIRECT;
    }
    if (source_kind != FERRY_MEMORY_HOST &&
        fy_way_of(engine, state, peer, FERRY_MEMORY_HOST, target_kind) != FERRY_WAY_NONE) {
        return FERRY_WAY_STAGED;
    }
    return FERRY_WAY_NONE;
}

static ferry_way way_here(uint32_t source_kind, uint32_t target_kind)
{
    const fy_space from = {.kind = source_kind}, to = {.kind = target_kind};
    return fy_is_host(from) && fy_is_host(to)   ? FERRY_WAY_DIRECT
           : fy_exec_for(from, to).exec != NULL ? FERRY_WAY_DEVICE
                                                : FERRY_WAY_STAGED;
}

ferry_status ferry_engine_choose(ferry_peer_class peer, ferry_memory_kind source,
                                 ferry_memory_kind target, const char **engine_out,
                                 ferry_way *way_out, ferry_error *error)
{
    static const size_t engines[FERRY_PEER_CLASSES] = {[FERRY_PEER_THREAD] = FY_ENGINE_INPROC,
                                                       [FERRY_PEER_NODE] = FY_ENGINE_SHM,
                                                       [FERRY_PEER_REMOTE] = FY_ENGINE_UCX};
    const fy_memory_kind *row;
    const fy_engine *table;
    FY_TRY(
        fy_check_use((uint32_t)peer < FERRY_PEER_CLASSES && engine_out != NULL && way_out != NULL,
                     "ferry_engine_choose needs a class of peers, and places for the engine and "
                     "the way",
                     error));
    *engine_out = peer == FERRY_PEER_SELF ? "" : fy_engine_name(engines[peer]);
    *way_out = FERRY_WAY_NONE;
    FY_TRY(fy_memory_get((uint32_t)source, &row, error));
    FY_TRY(fy_memory_get((uint32_t)target, &row, error));
    if (peer == FERRY_PEER_SELF) {
        *way_out = way_here((uint32_t)source, (uint32_t)target);
        return FERRY_OK;
    }
    FY_TRY(fy_engine_get(engines[peer], &table, error));
    *way_out = fy_way_of(table, NULL, FERRY_ANY_RANK, (uint32_t)source, (uint32_t)target);
    return FERRY_OK;
}

bool fy_engine_takes(const fy_open_engine *engine, uint32_t kind)
{
    return fy_way_of(engine->table, engine->state, FERRY_ANY_RANK, FERRY_MEMORY_HOST, kind) !=
           FERRY_WAY_NONE;
}

static ferry_status refuse(uint32_t from_rank, uint32_t from_kind, uint32_t to_rank,
                           uint32_t to_kind, const fy_engine *engine, ferry_error *error)
{

    return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                   "engine %s carries no bytes from memory of kind %s of rank %u to memory of kind "
                   "%s of rank %u: put them into host memory of rank %u, or let a copy service "
                   "move them, which stages",
                   engine->name, fy_memory_name(from_kind), from_rank, fy_memory_name(to_kind),
                   to_rank, to_rank);
}

/* Between this rank's memory and the peer's, where that can be pointed at from here. */
static ferry_status by_exec(ferry_transport *transport, const fy_carriage *what, bool puts,
                            ferry_error *error)
{
    uint32_t index = fy_region_engine(what->region, what->peer);
    const fy_open_engine *engine = &transport->engines[index];
    bool visits = what->region->view.kind != FY_REGION_SYMMETRIC && engine->table->visit != NULL;
    if (visits) {
        FY_TRY(fy_transport_visit(transport, what->peer, error));
    }
    char *there = engine->table->pointer(engine->state, what->peer, &what->region->view,
                                         what->region->attachments[index]);
    there += what->offset;
    /* Of symmetric memory each rank has its own device. */
    fy_space its = fy_memory_query(there, NULL);
    fy_space own = fy_space_of(what->buffer);
    ferry_status status =
        puts ? fy_move_now(its, there, own, what->buffer->base, what->buffer->bytes, error)
             : fy_move_now(own, what->buffer->base, its, there, what->buffer->bytes, error);
    if (visits) {
        engine->table->leave(engine->state, what->peer);
    }
    return status;
}

/*
 * Staging
 */

void fy_carry_drop(ferry_transport *transport, uint32_t peer)
{
    for (fy_kept **link = &transport->kept; *link != NULL;) {
        fy_kept *one = *link;
        if (peer != FERRY_ANY_RANK && one->peer != peer) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        transport->kept_bytes -= one->bytes;
        fy_pages_free(one->base, one->bytes);
        fy_free(one);
    }
}

/* Host memory that stays until the peer is flushed. */
static ferry_status keep(ferry_transport *transport, uint32_t peer, uint64_t bytes, void **base_out,
                         ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (transport->kept_bytes != 0 && transport->kept_bytes + bytes > MOST_KEPT_BYTES) {
        status = ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, error);
    }
    fy_kept *one = status == FERRY_OK ? fy_alloc_zeroed(1, sizeof *one) : NULL;
    FY_THEN(status, fy_check_memory(one != NULL, "a copy of a put's source", error));
    if (status == FERRY_OK) {
        *one = (fy_kept){.next = transport->kept, .peer = peer, .bytes = bytes};
        status = fy_pages_alloc_checked(bytes, &one->base, error);
    }
    if (status != FERRY_OK) {
        fy_free(one);
        return status;
    }
    transport->kept = one;
    transport->kept_bytes += bytes;
    *base_out = one->base;
    return FERRY_OK;
}

ferry_status fy_carry_signal(ferry_transport *transport, uint32_t peer,
                             const fy_signal_view *signal, ferry_error *error)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    FY_TRY(fy_transport_await_aside(transport, error));
    ferry_status status = engine->table->put(engine->state, peer, signal->region,
                                             signal->attachment, 0, NULL, 0, signal, error);
    return fy_world_verdict(transport->world, status, error);
}

/* The engine reads and writes such memory itself. */
static ferry_status put_directly(ferry_transport *transport, const fy_carriage *what,
                                 const fy_signal_view *signal, ferry_error *error)
{
    uint32_t index = transport->engine_of[what->peer];
    const fy_open_engine *engine = &transport->engines[index];
    if (signal != NULL) {
        FY_TRY(fy_transport_await_aside(transport, error));
    }
    ferry_status status = engine->table->put_from(engine->state, what->peer, &what->region->view,
                                                  what->region->attachments[index], what->offset,
                                                  what->buffer, signal, error);
    return fy_world_verdict(transport->world, status, error);
}

static ferry_status get_directly(ferry_transport *transport, const fy_carriage *what,
                                 ferry_error *error)
{
    uint32_t index = transport->engine_of[what->peer];
    const fy_open_engine *engine = &transport->engines[index];
    ferry_status status = engine->table->get_into(engine->state, what->peer, &what->region->view,
                                                  what->region->attachments[index], what->offset,
                                                  what->buffer, error);
    return fy_world_verdict(transport->world, status, error);
}

/* One that is aside has no signals: the peer's own sends it when the bytes are in place. */
static ferry_status put_by_engine(ferry_transport *transport, const fy_carriage *what,
                                  const void *source, uint64_t bytes, const fy_signal_view *signal,
                                  ferry_error *error)
{
    bool is_aside = fy_region_is_aside(what->region);
    uint32_t index = fy_region_engine(what->region, what->peer);
    const fy_open_engine *engine = &transport->engines[index];
    transport->owes_aside = transport->owes_aside || is_aside;
    if (signal != NULL && !is_aside) {
        FY_TRY(fy_transport_await_aside(transport, error));
    }
    ferry_status status = engine->table->put(engine->state, what->peer, &what->region->view,
                                             what->region->attachments[index], what->offset, source,
                                             bytes, is_aside ? NULL : signal, error);
    FY_TRY(fy_world_verdict(transport->world, status, error));
    return is_aside && signal != NULL ? fy_carry_signal(transport, what->peer, signal, error)
                                      : FERRY_OK;
}

static ferry_status stage(ferry_transport *transport, const fy_carriage *what,
                          const fy_signal_view *signal, ferry_error *error)
{
    const ferry_buffer *source = what->buffer;
    void *copy = NULL;
    FY_TRY(keep(transport, what->peer, source->bytes, &copy, error));
    FY_TRY(fy_move_now(host_space, copy, fy_space_of(source), source->base, source->bytes, error));
    return put_by_engine(transport, what, copy, source->bytes, signal, error);
}

ferry_status fy_carry_put(ferry_transport *transport, const fy_carriage *what,
                          const fy_signal_view *signal, ferry_error *error)
{
    uint32_t index = fy_region_engine(what->region, what->peer);
    const fy_open_engine *engine = &transport->engines[index];
    uint32_t from = what->buffer->kind;
    uint32_t to = what->region->view.space.kind;
    ferry_status status;
    switch (fy_way_of(engine->table, engine->state, what->peer, from, to)) {
    case FERRY_WAY_DIRECT:
        return fy_region_is_aside(what->region) ? put_by_engine(transport, what, what->buffer->base,
                                                                what->buffer->bytes, signal, error)
                                                : put_directly(transport, what, signal, error);
    case FERRY_WAY_DEVICE:
        status = by_exec(transport, what, true, error);
        return status == FERRY_OK && signal != NULL
                   ? fy_carry_signal(transport, what->peer, signal, error)
                   : status;
    case FERRY_WAY_STAGED:
        return stage(transport, what, signal, error);
    default:
        return refuse(transport->world->rank, from, what->peer, to, engine->table, error);
    }
}

/* The engine's get has arrived behind a flush only. */
static ferry_status get_staged(ferry_transport *transport, const fy_carriage *what,
                               ferry_error *error)
{
    const ferry_buffer *target = what->buffer;
    ferry_buffer copy = ferry_buffer_of(NULL, target->bytes);
    ferry_status status = fy_pages_alloc_checked(copy.bytes, &copy.base, error);
    FY_THEN(status, ferry_transport_get(transport, what->peer, what->region, what->offset, &copy,
                                        NULL, error));
    FY_THEN(status, ferry_transport_flush(transport, what->peer, NULL, error));
    FY_THEN(status, fy_move_now(fy_space_of(target), target->base, host_space, copy.base,
                                copy.bytes, error));
    fy_pages_free(copy.base, copy.bytes);
    return status;
}

ferry_status fy_carry_get(ferry_transport *transport, const fy_carriage *what, ferry_error *error)
{
    uint32_t index = fy_region_engine(what->region, what->peer);
    const fy_open_engine *engine = &transport->engines[index];
    uint32_t from = what->region->view.space.kind;
    uint32_t to = what->buffer->kind;
    switch (fy_way_of(engine->table, engine->state, what->peer, to, from)) {
    case FERRY_WAY_DEVICE:
        return by_exec(transport, what, false, error);
    case FERRY_WAY_DIRECT:
        if (!fy_region_is_aside(what->region)) {
            return get_directly(transport, what, error);
        }
        break;
    default:
        break;
    }
    return from == FERRY_MEMORY_HOST
               ? get_staged(transport, what, error)
               : refuse(what->peer, from, transport->world->rank, to, engine->table, error);
}
