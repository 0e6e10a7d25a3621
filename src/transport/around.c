/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/carry.h"
#include "transport/host.h"
#include "transport/transport.h"

/* Ways around puts: what is asked here goes to the engine of the peer, if its table has it. */

static bool is_other(const ferry_transport *transport, uint32_t peer)
{
    return peer < transport->world->n_ranks && !fy_is_self(transport, peer);
}

uint32_t fy_transport_capabilities(ferry_transport *transport, uint32_t peer)
{
    if (!is_other(transport, peer)) {
        return 0;
    }
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    uint32_t can = engine->table->capabilities(engine->state, peer);
    return can == UINT32_MAX ? 0 : can;
}

bool fy_transport_opens(ferry_transport *transport, uint32_t peer, uint32_t kind)
{
    if (!is_other(transport, peer) || kind == FERRY_MEMORY_HOST) {
        return false;
    }
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    return fy_way_of(engine->table, engine->state, peer, FERRY_MEMORY_HOST, kind) ==
           FERRY_WAY_DEVICE;
}

bool fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer)
{
    return is_other(transport, peer) &&
           transport->engines[transport->engine_of[peer]].table->shares_pointers;
}

/* A rank that was stopped may learn from the peer that the world has gone on without it. */
ferry_status fy_transport_visit(ferry_transport *transport, uint32_t peer, ferry_error *error)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    if (engine->table->visit(engine->state, peer)) {
        return FERRY_OK;
    }
    ferry_status status = fy_fail(error, FERRY_ERR_PEER_LOST,
                                  "rank %u lets nobody copy in its memory any more", peer);
    return fy_world_verdict(transport->world, status, error);
}

void fy_transport_leave(ferry_transport *transport, uint32_t peer)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    engine->table->leave(engine->state, peer);
}
