/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/slots.h"

static fy_slot slot_of_host(char *ring, uint64_t payload, uint32_t number)
{
    char *head = ring + number * fy_slot_step(payload, false);
    return (fy_slot){.head = head, .payload = fy_payload_here(head + FY_SLOT_HEAD_BYTES)};
}

static fy_slot slot_aside(const ferry_service *service, uint64_t heads, uint64_t first,
                          uint64_t payload, uint32_t number)
{
    char *head = ferry_region_base(service->slots);
    char *base = ferry_region_base(service->slots_aside);
    return (fy_slot){.head = head + heads + (uint64_t)number * FY_SLOT_HEAD_BYTES,
                     .payload = {.at = base + first + number * payload,
                                 .space = fy_transport_aside_space(service->transport)}};
}

fy_slot fy_slot_in(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    return channel->in_aside
               ? slot_aside(service, channel->in_heads, channel->in_ring, channel->in_payload,
                            item->slot)
               : slot_of_host((char *)ferry_region_base(service->slots) + channel->in_ring,
                              channel->in_payload, item->slot);
}

fy_slot fy_slot_mapped(const fy_channel *channel, const fy_item *item)
{
    return slot_of_host(channel->out_mapped, channel->out_payload, item->slot);
}

fy_slot fy_slot_parcel(const ferry_service *service, const fy_channel *channel, uint32_t parcel)
{
    const fy_packing *packing = fy_packing_of(service, channel);
    return channel->out_aside
               ? slot_aside(service, packing->heads, packing->first, packing->payload, parcel)
               : slot_of_host((char *)ferry_region_base(service->slots) + packing->first,
                              packing->payload, parcel);
}
