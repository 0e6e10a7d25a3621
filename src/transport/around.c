/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
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

bool fy_transport_shares_pointers(const ferry_transport *transport, uint32_t peer)
{
    return is_other(transport, peer) &&
           transport->engines[transport->engine_of[peer]].table->visit != NULL;
}

bool fy_transport_visit(ferry_transport *transport, uint32_t peer)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    return engine->table->visit(engine->state, peer);
}

void fy_transport_leave(ferry_transport *transport, uint32_t peer)
{
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    engine->table->leave(engine->state, peer);
}
