/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * How a connection is made: in steps, and before anything else goes through it.
 *
 * UCX connects when something is first sent. Where it then needs the peer's name for the endpoint,
 * as a rendezvous does, it asks for it with a message of its own (wireup). UCX 1.13 ends the
 * process when the answer to such a question still waits to be sent at the moment at which its
 * endpoint fails or its worker is destroyed. The answer waits where the connection back is not made
 * yet, and that is so for a round trip whenever the peer did not expect to be connected. So nobody
 * is asked before it could answer at once:
 *
 *   1. an endpoint is made, and flushed: when that ends, UCX's own connection stands
 *   2. a HELLO is sent, short enough that UCX asks for nothing. Who gets one does the same.
 *   3. when both have the other's HELLO, both can send, and nothing else is on its way: now the
 * lower rank sends a message for which UCX must know names. When it has been sent, and where it
 *      arrives, all is settled, and what has been waiting goes.
 */
#include "transport/ucx/ucx.h"

static bool say(fy_ucx *engine, uint32_t rank, fy_ucx_role role, uint16_t kind)
{
    fy_ucx_op *op = fy_ucx_op_new(engine, rank, role);
    if (op == NULL) {
        fy_ucx_lose(engine, engine->host->rank, "rank %u has no memory left to meet rank %u",
                    engine->host->rank, rank);
        return false;
    }
    op->header.kind = kind;
    op->header.number = 0;
    fy_ucx_send(op);
    return true;
}

void fy_ucx_meet(fy_ucx *engine, uint32_t rank)
{
    fy_ucx_peer *peer = &engine->peers[rank];
    if (fy_ucx_connect(engine, rank, NULL) != FERRY_OK) {
        return;
    }
    if (peer->can_send && !peer->has_greeted) {
        peer->has_greeted = say(engine, rank, FY_UCX_REPLYING, FY_UCX_HELLO);
    }
    if (peer->has_greeted && peer->is_greeted && !peer->is_naming && engine->host->rank < rank) {
        peer->is_naming = say(engine, rank, FY_UCX_NAMING, FY_UCX_NAMED);
    }
}
