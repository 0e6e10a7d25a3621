/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include "base/log.h"
#include "memory/local.h"
#include "transport/carry.h"
#include "transport/mapped/loan.h"
#include "world/order.h"

/* Memory that is registered as it is made. */

/* From the first engine that has such memory, else the library's own pages. */
static ferry_status furnish(ferry_region *region, ferry_error *error)
{
    ferry_transport *transport = region->transport;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->alloc_local != NULL &&
            fy_engine_takes(engine, region->view.space.kind)) {
            FY_TRY(engine->table->alloc_local(engine->state, &region->view, &region->attachments[i],
                                              error));
            region->attached |= 1u << i;
            return FERRY_OK;
        }
    }
    ferry_status status =
        fy_memory_row(region->view.space.kind)
            ->alloc(region->view.space.device, region->view.bytes, &region->view.base, error);
    region->pages = status == FERRY_OK;
    return status;
}

static ferry_status alloc_registered(ferry_transport *transport, fy_space space, uint64_t bytes,
                                     ferry_region **region_out, ferry_error *error)
{
    ferry_region *region = NULL;
    FY_TRY(fy_transport_state(transport, error));
    FY_TRY(fy_world_check_order(transport->world, "ferry_memory_alloc", error));
    FY_TRY(fy_region_new(transport, FY_REGION_REGISTERED, &region, error));
    region->memory = true;
    region->view.id = transport->next_registered;
    region->view.bytes = bytes;
    region->view.space = space;
    transport->next_registered += 2;
    ferry_status status = furnish(region, error);
    FY_THEN(status, fy_region_announce(region, error));
    if (status != FERRY_OK) {
        fy_region_destroy(region);
        return status;
    }
    *region_out = region;
    return FERRY_OK;
}

ferry_status ferry_memory_alloc(ferry_transport *transport, ferry_memory_kind kind, int32_t device,
                                uint64_t bytes, ferry_buffer *buffer_out, ferry_error *error)
{
    FY_TRY(fy_check_use(buffer_out != NULL && bytes != 0,
                        "ferry_memory_alloc needs at least one byte and a place for the buffer",
                        error));
    fy_space space = {.kind = (uint32_t)kind, .device = device};
    ferry_region *region = NULL;
    void *base = NULL;
    ferry_status status = fy_space_check(space, "ferry_memory_alloc", error);
    if (status == FERRY_OK && transport == NULL) {
        status = fy_is_host(space) ? fy_owned_alloc(bytes, &base, error)
                                   : fy_local_alloc(space, bytes, &base, error);
    } else if (status == FERRY_OK) {
        status = alloc_registered(transport, space, bytes, &region, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    *buffer_out = ferry_buffer_of(region != NULL ? region->view.base : base, bytes);
    buffer_out->kind = space.kind;
    buffer_out->device = space.device;
    buffer_out->registration = region;
    return FERRY_OK;
}

void ferry_memory_free(ferry_buffer *buffer)
{
    if (buffer == NULL) {
        return;
    }
    ferry_region *region = buffer->registration;
    if (region != NULL && region->memory) {
        ferry_region_free(region);
    } else if (buffer->base != NULL &&
               (region != NULL || (!fy_owned_free(buffer->base) && !fy_local_free(buffer->base)))) {
        fy_log(FERRY_LOG_WARN,
               "ferry_memory_free: the %llu bytes at %p are not from "
               "ferry_memory_alloc, and stay",
               (unsigned long long)buffer->bytes, buffer->base);
    }
    *buffer = ferry_buffer_of(NULL, 0);
}
