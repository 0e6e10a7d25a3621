/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include "base/log.h"
#include "transport/pages.h"

/* Memory that is registered as it is made. */

/* From the first engine that has such memory, else the library's own pages. */
static ferry_status furnish(ferry_region *region, ferry_error *error)
{
    ferry_transport *transport = region->transport;
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        const fy_open_engine *engine = &transport->engines[i];
        if (engine->table->alloc_local != NULL) {
            ferry_status status = engine->table->alloc_local(engine->state, &region->view,
                                                             &region->attachments[i], error);
            if (status == FERRY_OK) {
                region->attached |= 1u << i;
            }
            return status;
        }
    }
    ferry_status status = fy_pages_alloc_checked(region->view.bytes, &region->view.base, error);
    region->pages = status == FERRY_OK;
    return status;
}

ferry_status ferry_memory_alloc(ferry_transport *transport, uint64_t bytes,
                                ferry_buffer *buffer_out, ferry_error *error)
{
    if (transport == NULL || buffer_out == NULL || bytes == 0) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_memory_alloc needs a transport, at least one byte and a place for "
                       "the buffer");
    }
    ferry_region *region = NULL;
    ferry_status status = fy_transport_state(transport, error);
    if (status == FERRY_OK) {
        status = fy_region_new(transport, FY_REGION_REGISTERED, &region, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    region->memory = true;
    region->view.id = transport->next_registered;
    region->view.bytes = bytes;
    transport->next_registered += 2;
    status = furnish(region, error);
    if (status == FERRY_OK) {
        status = fy_region_announce(region, error);
    }
    if (status != FERRY_OK) {
        fy_region_destroy(region);
        return status;
    }
    *buffer_out = ferry_buffer_of(region->view.base, bytes);
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
    } else if (buffer->base != NULL) {
        fy_log(FERRY_LOG_WARN,
               "ferry_memory_free: the %llu bytes at %p are not from "
               "ferry_memory_alloc, and stay",
               (unsigned long long)buffer->bytes, buffer->base);
    }
    *buffer = ferry_buffer_of(NULL, 0);
}
