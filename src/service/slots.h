/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SERVICE_SLOTS_H
#define FY_SERVICE_SLOTS_H

#include "service/moves.h"

/*
 * Where slots are. A payload lies behind its head; or aside, in memory of a device, and heads one
 * behind the other in the host's.
 */
typedef struct fy_slot {
    char *head;
    fy_payload payload;
} fy_slot;

/* Of an item that comes in; of one that goes out, where the peer's ring is mapped here. */
fy_slot fy_slot_in(const ferry_service *service, const fy_channel *channel, const fy_item *item);
fy_slot fy_slot_mapped(const fy_channel *channel, const fy_item *item);

/* What this rank packs in before it puts: one of the channel's packing. */
fy_slot fy_slot_parcel(const ferry_service *service, const fy_channel *channel, uint32_t parcel);

static inline const fy_packing *fy_packing_of(const ferry_service *service,
                                              const fy_channel *channel)
{
    return &service->program->packing[channel->out_aside];
}

/* How many bytes lie between one slot and the next, behind whatever goes into them. */
static inline uint64_t fy_slot_step(uint64_t payload, bool is_aside)
{
    return payload + (is_aside ? 0 : FY_SLOT_HEAD_BYTES);
}

#endif
