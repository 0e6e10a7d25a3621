/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/carry.h"
#include "transport/host.h"
#include "transport/region.h"
#include "transport/registry.h"

/* Memory of devices that an engine carries beside those of the host's memory. */

bool fy_transport_is_aside(ferry_transport *transport, uint32_t peer)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    if (engine == NULL || fy_is_self(transport, peer)) {
        return false;
    }
    uint32_t kind = fy_engine_aside(engine->table)->space(engine->state).kind;
    return fy_way_of(engine->table, engine->state, peer, kind, kind) == FERRY_WAY_DIRECT;
}

fy_space fy_transport_aside_space(ferry_transport *transport)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    return engine == NULL ? (fy_space){.kind = FERRY_MEMORY_HOST}
                          : fy_engine_aside(engine->table)->space(engine->state);
}

ferry_status fy_transport_begin(ferry_transport *transport, uint32_t peer,
                                const ferry_region *region, uint64_t offset, const void *source,
                                uint64_t bytes, uint64_t *ticket_out, ferry_error *error)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    uint32_t index = fy_region_engine(region, peer);
    FY_TRY(fy_region_check(region, "put", peer, offset, bytes, error));
    ferry_status status =
        fy_engine_aside(engine->table)
            ->begin(engine->state, peer, &region->view, region->attachments[index], offset, source,
                    bytes, ticket_out, error);
    return fy_world_verdict(transport->world, status, error);
}

ferry_status fy_transport_reached(ferry_transport *transport, uint64_t ticket, ferry_error *error)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    return fy_engine_aside(engine->table)->reached(engine->state, ticket, error);
}

ferry_status fy_transport_settle(ferry_transport *transport, ferry_error *error)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    return fy_engine_aside(engine->table)->settle(engine->state, error);
}

ferry_status fy_transport_await_aside(ferry_transport *transport, ferry_error *error)
{
    const fy_open_engine *engine = fy_aside_of(transport);
    if (!transport->owes_aside) {
        return FERRY_OK;
    }
    ferry_status status = engine->table->flush(engine->state, FERRY_ANY_RANK, error);
    transport->owes_aside = status != FERRY_OK;
    return fy_world_verdict(transport->world, status, error);
}
