/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/region.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/room.h"
#include "transport/agree.h"
#include "transport/pages.h"

#include <stdio.h>
#include <string.h>

ferry_status fy_region_new(ferry_transport *transport, fy_region_kind kind,
                           ferry_region **region_out, ferry_error *error)
{
    ferry_region *region = fy_alloc_zeroed(1, sizeof *region);
    if (region == NULL) {
        return fy_fail_no_memory(error, "a region");
    }
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
        fy_pages_free(region->view.base, region->view.bytes);
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
    ferry_status status =
        engine->table->attach(engine->state, &region->view, &region->attachments[index], error);
    if (status == FERRY_OK) {
        region->attached |= 1u << index;
    }
    return status;
}

/*
 * Symmetric regions
 */

/*
 * The first rank of a node asks for all of them whether there is room: together they would pass a
 * check that each makes by itself.
 */
static ferry_status check_room(const ferry_world *world, uint64_t bytes, ferry_error *error)
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

/* All ranks ask for the same length, and none has found a reason against it. */
static ferry_status compare_lengths(ferry_world *world, const fy_vote *vote, ferry_error *error)
{
    fy_votes votes;
    ferry_status status = fy_votes_gather(world, vote, &votes, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint32_t first_rank = FERRY_ANY_RANK;
    uint64_t first = 0;
    size_t at = 0;
    size_t n_bytes;
    const void *bytes;
    for (uint32_t rank = 0; (bytes = fy_votes_next(&votes, rank, &at, &n_bytes)) != NULL; rank++) {
        uint64_t its;
        if (n_bytes != sizeof its) {
            continue; /* it had no memory for a vote: its status says so */
        }
        memcpy(&its, bytes, sizeof its);
        if (first_rank == FERRY_ANY_RANK) {
            first_rank = rank;
            first = its;
        }
        if (its != first) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "rank %u allocates symmetric memory of %llu bytes and rank %u of %llu: "
                           "the length must be the same on all ranks",
                           first_rank, (unsigned long long)first, rank, (unsigned long long)its);
        }
    }
    return fy_votes_status(&votes, error);
}

/* The memory, and what the engines keep of it. What has been done stays recorded in the region. */
static ferry_status furnish(ferry_region *region, ferry_error *error)
{
    ferry_transport *transport = region->transport;
    uint32_t allocator = 0;
    ferry_status status = FERRY_OK;
    while (allocator < transport->n_engines && transport->engines[allocator].table->alloc == NULL) {
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
        status = fy_pages_alloc(region->view.bytes, &region->view.base, error);
        region->pages = status == FERRY_OK;
    }
    for (uint32_t i = 0; status == FERRY_OK && i < transport->n_engines; i++) {
        if (i != allocator) {
            status = fy_region_attach(region, i, error);
        }
    }
    return status;
}

static ferry_status alloc_symmetric(ferry_transport *transport, uint64_t bytes,
                                    ferry_region **region_out, ferry_error *error)
{
    ferry_world *world = transport->world;
    ferry_region *region = NULL;
    ferry_error why = {.message = ""};
    ferry_status status = fy_transport_state(transport, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (bytes == 0) {
        status = fy_fail(&why, FERRY_ERR_MISUSE, "a symmetric region needs at least one byte");
    } else {
        status = check_room(world, bytes, &why);
    }
    if (status == FERRY_OK) {
        status = fy_region_new(transport, FY_REGION_SYMMETRIC, &region, &why);
    }
    fy_vote vote = {.status = status, .own = &why, .bytes = &bytes, .n_bytes = sizeof bytes};
    status = compare_lengths(world, &vote, error);
    if (status != FERRY_OK) {
        goto out;
    }
    region->view.id = transport->next_symmetric;
    region->view.bytes = bytes;
    transport->next_symmetric += 2;
    status = furnish(region, &why);
    status = fy_agree(world, status, &why);
    if (status != FERRY_OK) {
        fy_fail(error, status, "%s", why.message);
        goto out;
    }
    *region_out = region;
    region = NULL;
out:
    fy_region_destroy(region);
    return status;
}

ferry_status ferry_region_alloc(ferry_transport *transport, uint64_t bytes,
                                ferry_region **region_out, ferry_error *error)
{
    if (transport == NULL || region_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_region_alloc needs a transport and a place for the region");
    }
    fy_joint_enter(transport->world, FY_JOINT_REGION_ALLOC, fy_joint_object(transport->number, 0));
    ferry_status status = alloc_symmetric(transport, bytes, region_out, error);
    fy_joint_leave(transport->world);
    return status;
}

void ferry_region_free(ferry_region *region)
{
    if (region == NULL || fy_world_is_inherited(region->transport->world)) {
        return;
    }
    ferry_transport *transport = region->transport;
    uint32_t peer = FERRY_ANY_RANK;
    /* What is still under way may need the region, here or there. */
    if (region->view.kind == FY_REGION_IMPORTED) {
        peer = region->view.owner;
    }
    ferry_flush(transport, peer, NULL, NULL);
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
    if (buffer->kind != FERRY_MEMORY_HOST) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "memory of kind %u cannot be registered: this version knows host memory "
                       "only",
                       buffer->kind);
    }
    if (buffer->base == NULL || buffer->bytes == 0 ||
        !fy_add((uintptr_t)buffer->base, buffer->bytes, &end)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%llu bytes at %p are not memory that can be registered",
                       (unsigned long long)buffer->bytes, buffer->base);
    }
    return FERRY_OK;
}

ferry_status fy_region_announce(ferry_region *region, ferry_error *error)
{
    for (uint32_t i = 0; i < region->transport->n_engines; i++) {
        ferry_error why;
        ferry_status status =
            fy_region_knows(region, i) ? FERRY_OK : fy_region_attach(region, i, &why);
        if (status != FERRY_OK && status != FERRY_ERR_UNSUPPORTED) {
            return fy_fail(error, status, "%s", why.message);
        }
    }
    return FERRY_OK;
}

ferry_status ferry_region_register(ferry_transport *transport, const ferry_buffer *buffer,
                                   ferry_region **region_out, ferry_error *error)
{
    if (transport == NULL || buffer == NULL || region_out == NULL) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_region_register needs a transport, a buffer and a place for the region");
    }
    ferry_region *region = NULL;
    ferry_status status = check_buffer(buffer, error);
    if (status == FERRY_OK) {
        status = fy_transport_state(transport, error);
    }
    if (status == FERRY_OK) {
        status = fy_region_new(transport, FY_REGION_REGISTERED, &region, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    region->view.id = transport->next_registered;
    region->view.base = buffer->base;
    region->view.bytes = buffer->bytes;
    transport->next_registered += 2;
    status = fy_region_announce(region, error);
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
    uint32_t index = region->transport->engine_of[peer];
    const fy_open_engine *engine = &region->transport->engines[index];
    if (engine->table->pointer == NULL) {
        return NULL;
    }
    return engine->table->pointer(engine->state, peer, &region->view, region->attachments[index]);
}
