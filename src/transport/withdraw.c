/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

/*
 * What an engine does before registered memory goes is what is needed here: so memory is made known
 * to each for a moment.
 */
void fy_transport_withdraw(ferry_transport *transport)
{
    uint64_t memory[8] = {0};
    fy_region_view view = {.kind = FY_REGION_REGISTERED,
                           .owner = transport->world->rank,
                           .id = transport->next_registered,
                           .base = memory,
                           .bytes = sizeof memory};
    transport->next_registered += 2;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        void *attachment = NULL;
        if (engine->table->attach(engine->state, &view, &attachment, NULL) == FERRY_OK) {
            engine->table->release(engine->state, &view, attachment);
        }
    }
}
