/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/host.h"
#include "transport/transport.h"

#include "base/checked.h"

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

bool fy_transport_can_attach(ferry_transport *transport, uint32_t peer)
{
    if (!is_other(transport, peer)) {
        return false;
    }
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    return engine->table->attach_pieces != NULL &&
           engine->table->attach_pieces(engine->state, peer, true, NULL, 0, NULL, 0, NULL) ==
               FERRY_OK;
}

/* False where the sum is no length. */
static bool sum(const struct iovec *pieces, size_t n, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (!fy_add(bytes, pieces[i].iov_len, &bytes)) {
            return false;
        }
    }
    *bytes_out = bytes;
    return bytes <= INT64_MAX;
}

static ferry_status attach(ferry_transport *transport, uint32_t peer, bool write,
                           const struct iovec *here, size_t n_here, const struct iovec *there,
                           size_t n_there, ferry_error *error)
{
    uint64_t ours = 0;
    uint64_t theirs = 0;
    if (!is_other(transport, peer)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "cross-memory attach: rank %u is not another rank of this world", peer);
    }
    if (!sum(here, n_here, &ours) || !sum(there, n_there, &theirs) || ours != theirs) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "cross-memory attach to rank %u: %zu pieces of %llu bytes here and %zu of "
                       "%llu there",
                       peer, n_here, (unsigned long long)ours, n_there, (unsigned long long)theirs);
    }
    const fy_open_engine *engine = fy_engine_for(transport, peer);
    ferry_status status = fy_transport_state(transport, error);
    if (status == FERRY_OK && engine->table->attach_pieces == NULL) {
        status =
            fy_fail(error, FERRY_ERR_UNSUPPORTED,
                    "engine %s has no cross-memory attach: put the bytes", engine->table->name);
    }
    if (status != FERRY_OK) {
        return status;
    }
    status = engine->table->attach_pieces(engine->state, peer, write, here, n_here, there, n_there,
                                          error);
    return fy_world_verdict(transport->world, status, error);
}

ferry_status fy_transport_attach_write(ferry_transport *transport, uint32_t peer,
                                       const struct iovec *here, size_t n_here,
                                       const struct iovec *there, size_t n_there,
                                       ferry_error *error)
{
    return attach(transport, peer, true, here, n_here, there, n_there, error);
}

ferry_status fy_transport_attach_read(ferry_transport *transport, uint32_t peer,
                                      const struct iovec *here, size_t n_here,
                                      const struct iovec *there, size_t n_there, ferry_error *error)
{
    return attach(transport, peer, false, here, n_here, there, n_there, error);
}
