/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that outlives its transport: after a loss the program goes on with the same tensors, and
 * the region that their buffers name must be one of the new transport for peers to reach it as well
 * as before.
 */
#include "transport/region.h"

#include <string.h>

/* The engine that makes memory for registered regions, or none. */
static uint32_t maker_of(const ferry_transport *transport)
{
    uint32_t i = 0;
    while (i < transport->n_engines && transport->engines[i].table->alloc_local == NULL) {
        i++;
    }
    return i;
}

static bool is_made(const ferry_region *region)
{
    return region->memory && !region->pages;
}

static bool can_have(const ferry_transport *transport, const ferry_transport *elder)
{
    uint32_t its = maker_of(elder);
    uint32_t own = maker_of(transport);
    if (its == elder->n_engines || own == transport->n_engines) {
        return false;
    }
    const fy_engine *from = elder->engines[its].table;
    const fy_engine *to = transport->engines[own].table;
    return to->adopt != NULL && from->adopt != NULL && strcmp(from->name, to->name) == 0;
}

static void link_region(ferry_region *region, ferry_transport *transport)
{
    *region->link = region->next;
    if (region->next != NULL) {
        region->next->link = region->link;
    }
    region->next = transport->regions;
    region->link = &transport->regions;
    if (region->next != NULL) {
        region->next->link = &region->next;
    }
    transport->regions = region;
    region->transport = transport;
}

static void move_region(ferry_region *region, ferry_transport *transport)
{
    ferry_transport *elder = region->transport;
    uint32_t maker = is_made(region) ? maker_of(elder) : FY_MOST_ENGINES;
    void *made = maker < FY_MOST_ENGINES ? region->attachments[maker] : NULL;
    for (uint32_t i = 0; i < elder->n_engines; i++) {
        if (i != maker && fy_region_knows(region, i)) {
            elder->engines[i].table->release(elder->engines[i].state, &region->view,
                                             region->attachments[i]);
        }
    }
    link_region(region, transport);
    fy_region_move_exposure(region, maker < FY_MOST_ENGINES ? 1u << maker : 0,
                            maker < FY_MOST_ENGINES ? 1u << maker_of(transport) : 0);
    region->view.id = transport->next_registered;
    region->view.owner = transport->world->rank;
    region->attached = 0;
    transport->next_registered += 2;
    if (maker < FY_MOST_ENGINES) {
        uint32_t own = maker_of(transport);
        const fy_open_engine *engine = &transport->engines[own];
        region->attachments[own] = made;
        region->attached = 1u << own;
        engine->table->adopt(engine->state, &region->view, made);
    }
    /* An engine that does not get to know it reaches it as it reaches plain memory. */
    for (uint32_t i = 0; i < transport->n_engines; i++) {
        if (!fy_region_knows(region, i)) {
            (void)fy_region_attach(region, i, NULL);
        }
    }
}

void fy_transport_adopt(ferry_transport *transport, ferry_transport *elder)
{
    bool all = true;
    bool can = can_have(transport, elder);
    ferry_region *next = NULL;
    for (ferry_region *region = elder->regions; region != NULL; region = next) {
        next = region->next;
        if (region->view.kind != FY_REGION_REGISTERED) {
            continue;
        }
        if (can || !is_made(region)) {
            move_region(region, transport);
        } else {
            all = false;
        }
    }
    /* Whose memory stays as it is: that of the elder, or of one that it went on from itself. */
    ferry_transport *left = all ? elder->elder : elder;
    if (left != NULL && transport->elder == NULL && elder->elder != transport) {
        fy_transport_retain(left);
        transport->elder = left;
    }
}
