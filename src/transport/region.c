/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "host/room.h"
#include "memory/kind.h"
#include "memory/pages.h"
#include "memory/piece.h"
#include "transport/carry.h"
#include "transport/word.h"
#include "world/agree.h"
#include "world/order.h"

#include <stdio.h>
#include <string.h>

ferry_status fy_region_new(ferry_transport *transport, fy_region_kind kind,
                           ferry_region **region_out, ferry_error *error)
{
    ferry_region *region = fy_alloc_zeroed(1, sizeof *region);
    FY_TRY(fy_check_memory(region != NULL, "a region", error));
    region->view.kind = kind;
    region->view.owner = transport->world->rank;
    region->transport = transport;
    region->next = transport->regions;
    region->link = &transport->regions;
    if (region->next != NULL) {
        region->next->link = &region->next;
    }
    transport->regions = region;
    *region_out = region;
    return FERRY_OK;
}

void fy_region_destroy(ferry_region *region)
{
    if (region == NULL) {
        return;
    }
    bool is_barred = fy_region_is_exposed_for_good(region);
    fy_region_forget_exposed(region);
    for (uint32_t i = region->transport->n_engines; i-- > 0;) {
        const fy_open_engine *engine = &region->transport->engines[i];
        if (fy_region_knows(region, i)) {
            engine->table->release(engine->state, &region->view, region->attachments[i]);
        }
    }
    if (region->pages && is_barred) {
        fy_pages_bar(region->view.base, region->view.bytes);
    } else if (region->pages) {
        fy_piece_free(region->view.space, region->view.base, region->view.bytes);
    }
    *region->link = region->next;
    if (region->next != NULL) {
        region->next->link = region->link;
    }
    fy_free(region);
}

ferry_status fy_region_attach(ferry_region *region, uint32_t index, ferry_error *error)
{
    const fy_open_engine *engine = &region->transport->engines[index];
    if (!fy_engine_takes(engine, region->view.space.kind)) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "engine %s does not reach memory of kind %s",
                       engine->table->name, fy_memory_name(region->view.space.kind));
    }
    FY_TRY(engine->table->attach(engine->state, &region->view, &region->attachments[index], error));
    region->attached |= 1u << index;
    return FERRY_OK;
}

/* Symmetric memory of devices is that of an engine that is aside, which has nothing but that. */
static bool concerns(const ferry_region *region, uint32_t index)
{
    const ferry_transport *transport = region->transport;
    bool is_aside = transport->has_aside && index == transport->n_engines - 1;
    return is_aside == fy_region_is_aside(region);
}

/*
 * Symmetric regions
 */

ferry_status fy_symmetric_room(const ferry_world *world, uint64_t bytes, ferry_error *error)
{
    bool asks = world->threads ? world->rank == 0 : world->local_rank == 0;
    uint32_t n_parts = world->threads ? world->n_ranks : world->n_local_ranks;
    uint64_t part;
    uint64_t all;
    if (!fy_pages_round(bytes, fy_page_bytes(), &part) || !fy_mul(part, n_parts, &all)) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "no machine has %u times %llu bytes", n_parts,
                       (unsigned long long)bytes);
    }
    if (!asks) {
        return FERRY_OK;
    }
    char what[96];
    snprintf(what, sizeof what, "symmetric memory, %llu bytes for each of %u ranks",
             (unsigned long long)bytes, n_parts);
    return fy_room_check(all, what, error);
}

ferry_status fy_region_furnish(ferry_region *region, uint64_t bytes, uint64_t noted,
                               ferry_error *error)
{
    ferry_transport *transport = region->transport;
    uint32_t allocator = 0;
    ferry_status status = FERRY_OK;
    region->view.id = transport->next_symmetric;
    region->view.bytes = bytes;
    region->view.noted = noted;
    transport->next_symmetric += 2;
    transport->uses_aside = transport->uses_aside || fy_region_is_aside(region);
    while (allocator < transport->n_engines &&
           (transport->engines[allocator].table->alloc == NULL || !concerns(region, allocator) ||
            !fy_engine_takes(&transport->engines[allocator], region->view.space.kind))) {
        allocator++;
    }
    if (allocator < transport->n_engines) {
        const fy_open_engine *engine = &transport->engines[allocator];
        status = engine->table->alloc(engine->state, &region->view, &region->attachments[allocator],
                                      error);
        if (status == FERRY_OK) {
            region->attached |= 1u << allocator;
        }
    } else {
        status = fy_symmetric_room(transport->world, bytes, error);
        if (status == FERRY_OK) {
            status = fy_piece_alloc(region->view.space, bytes, &region->view.base, error);
            region->pages = status == FERRY_OK;
        }
    }
    for (uint32_t i = 0; status == FERRY_OK && i < transport->n_engines; i++) {
        if (i != allocator && concerns(region, i)) {
            status = fy_region_attach(region, i, error);
        }
    }
    return status;
}

static ferry_status alloc_symmetric(ferry_transport *transport, fy_space space, uint64_t bytes,
                                    ferry_region **region_out, ferry_error *error)
{
    ferry_world *world = transport->world;
    ferry_region *region = NULL;
    ferry_error why = {.message = ""};
    FY_TRY(fy_transport_state(transport, error));
    ferry_status status = fy_space_check(space, "ferry_region_alloc", &why);
    FY_THEN(status, fy_region_new(transport, FY_REGION_SYMMETRIC, &region, &why));
    fy_field asked[] = {{.name = "the length of symmetric memory",
                         .value = bytes,
                         .how = FY_SAME,
                         .remedy = ": the length must be the same on all ranks"},
                        {.name = "the kind of symmetric memory",
                         .text = fy_memory_name(space.kind),
                         .how = FY_SAME,
                         .remedy = ": the kind must be the same on all ranks"}};
    status = fy_agree_on(world, FY_JOINT_REGION_ALLOC, fy_joint_object(transport->number, 0), asked,
                         2, status, &why);
    if (status == FERRY_OK && bytes == 0) {
        status = fy_fail(&why, FERRY_ERR_MISUSE, "a symmetric region needs at least one byte");
    } else if (status == FERRY_OK) {
        region->view.space = space;
        status = fy_agree(world, fy_region_furnish(region, bytes, 0, &why), &why);
    }
    if (status != FERRY_OK) {
        fy_forward(error, status, &why);
        goto out;
    }
    *region_out = region;
    region = NULL;
out:
    fy_region_destroy(region);
    return status;
}

ferry_status ferry_region_alloc(ferry_transport *transport, ferry_memory_kind kind, int32_t device,
                                uint64_t bytes, ferry_region **region_out, ferry_error *error)
{
    FY_TRY(fy_check_use(transport != NULL && region_out != NULL,
                        "ferry_region_alloc needs a transport and a place for the region", error));
    FY_TRY(fy_world_check_order(transport->world, "ferry_region_alloc", error));
    fy_joint_enter(transport->world, FY_JOINT_REGION_ALLOC, fy_joint_object(transport->number, 0));
    fy_space space = {.kind = (uint32_t)kind, .device = device};
    ferry_status status = alloc_symmetric(transport, space, bytes, region_out, error);
    fy_joint_leave(transport->world);
    return status;
}

uint64_t fy_region_noted(const ferry_region *region)
{
    return region == NULL ? 0 : region->view.noted;
}

void ferry_region_free(ferry_region *region)
{
    if (region == NULL || fy_world_is_inherited(region->transport->world)) {
        return;
    }
    ferry_transport *transport = region->transport;
    uint32_t peer = FERRY_ANY_RANK;
    fy_order_await(transport->world); /* work of a queue may use the region */
    /* What is still under way may need the region, here or there. */
    if (region->view.kind == FY_REGION_IMPORTED) {
        peer = region->view.owner;
    }
    ferry_transport_flush(transport, peer, NULL, NULL);
    if (region->view.kind == FY_REGION_SYMMETRIC) {
        fy_joint_enter(transport->world, FY_JOINT_REGION_FREE,
                       fy_joint_object(transport->number, region->view.id));
        ferry_world_barrier(transport->world, NULL); /* if the world has failed nobody waits */
        fy_joint_leave(transport->world);
    }
    fy_region_destroy(region);
}

/*
 * Registered memory
 */

static ferry_status check_buffer(const ferry_buffer *buffer, ferry_error *error)
{
    uint64_t end;
    if (buffer->base == NULL || buffer->bytes == 0 ||
        !fy_add((uintptr_t)buffer->base, buffer->bytes, &end)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%llu bytes at %p are not memory that can be registered",
                       (unsigned long long)buffer->bytes, buffer->base);
    }
    return fy_buffer_check(buffer, "registered memory", error);
}

ferry_status fy_region_announce(ferry_region *region, ferry_error *error)
{
    for (uint32_t i = 0; i < region->transport->n_engines; i++) {
        ferry_error why;
        bool is_known = fy_region_knows(region, i) || !concerns(region, i);
        ferry_status status = is_known ? FERRY_OK : fy_region_attach(region, i, &why);
        if (status != FERRY_OK && status != FERRY_ERR_UNSUPPORTED) {
            return fy_forward(error, status, &why);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                   ferry_region **region_out, ferry_error *error)
{
    FY_TRY(fy_check_use(
        transport != NULL && buffer != NULL && region_out != NULL,
        "ferry_region_register needs a transport, a buffer and a place for the region", error));
    ferry_region *region = NULL;
    FY_TRY(check_buffer(buffer, error));
    FY_TRY(fy_transport_state(transport, error));
    FY_TRY(fy_world_check_order(transport->world, "ferry_region_register", error));
    FY_TRY(fy_region_new(transport, FY_REGION_REGISTERED, &region, error));
    region->view.id = transport->next_registered;
    region->view.base = buffer->base;
    region->view.bytes = buffer->bytes;
    region->view.space = fy_space_of(buffer);
    transport->next_registered += 2;
    ferry_status status = fy_region_announce(region, error);
    if (status != FERRY_OK) {
        fy_region_destroy(region);
        return status;
    }
    *region_out = region;
    return FERRY_OK;
}

/*
 * Looking at regions
 */

ferry_status fy_registration_check(const ferry_buffer *buffer, const char *what, ferry_error *error)
{
    const ferry_region *region = buffer->registration;
    if (region == NULL) {
        return FERRY_OK;
    }
    uintptr_t base = (uintptr_t)buffer->base;
    uintptr_t first = (uintptr_t)region->view.base;
    uint64_t all = region->view.bytes;
    unsigned long long bytes = buffer->bytes;
    if (region->view.kind == FY_REGION_IMPORTED) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the buffer's %llu bytes at %p of rank %u do not lie in the region it "
                       "says they do: that is memory of rank %u",
                       what, bytes, buffer->base, region->transport->world->rank,
                       region->view.owner);
    }
    if (base < first || base - first > all || bytes > all - (base - first)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the buffer's %llu bytes at %p of rank %u do not lie in the region it "
                       "says they do: that has %llu bytes at %p",
                       what, bytes, buffer->base, region->transport->world->rank,
                       (unsigned long long)all, region->view.base);
    }
    return FERRY_OK;
}

void *ferry_region_base(const ferry_region *region)
{
    return region == NULL || region->view.kind == FY_REGION_IMPORTED ? NULL : region->view.base;
}

uint64_t ferry_region_bytes(const ferry_region *region)
{
    return region == NULL ? 0 : region->view.bytes;
}

void *ferry_region_pointer(const ferry_region *region, uint32_t peer)
{
    if (region == NULL || peer >= region->transport->world->n_ranks ||
        (region->view.kind != FY_REGION_SYMMETRIC && region->view.owner != peer)) {
        return NULL;
    }
    if (fy_is_self(region->transport, peer)) {
        return region->view.base;
    }
    uint32_t index = fy_region_engine(region, peer);
    const fy_open_engine *engine = &region->transport->engines[index];
    if (engine->table->pointer == NULL) {
        return NULL;
    }
    return engine->table->pointer(engine->state, peer, &region->view, region->attachments[index]);
}
