/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/ends.h"

static fy_part_end side_of(const fy_registry *registry, const fy_end *end,
                           const ferry_buffer *buffer)
{
    return (fy_part_end){.area = fy_end_area(registry, end),
                         .base = buffer->base,
                         .space = fy_space_of(buffer),
                         .conversion = fy_end_conversion(registry, end)};
}

fy_part_end fy_target_of(const ferry_service *service, uint32_t receive)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &registry->receives.items[receive];
    return side_of(registry, end, fy_held_target(&registry->held[end->held]));
}

fy_part_end fy_source_of(const ferry_service *service, const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    if ((part->end & FY_RELAYED) != 0) { /* what has come is what goes on */
        fy_part_end from = fy_target_of(service, part->end & ~FY_RELAYED);
        from.conversion = NULL;
        return from;
    }
    const fy_end *end = &registry->sends.items[part->end];
    return side_of(registry, end, &registry->held[end->held].front);
}

fy_part_end fy_goal_of(const ferry_service *service, const fy_channel *channel,
                       const fy_item_part *part)
{
    if (channel == NULL) {
        return fy_target_at(service, part->place, part->first);
    }
    const fy_place *place = &channel->places[part->place];
    const fy_spot *spot = &channel->bases[place->base].spots[service->run->side];
    return (fy_part_end){.area = fy_place_area(channel, place),
                         .base = spot->mapped,
                         .space = spot->space,
                         .conversion = fy_sent_conversion(service, part)};
}

fy_both fy_both_of(const fy_area *from, const fy_area *to, uint64_t first, uint64_t bytes)
{
    return (fy_both){.from = fy_area_walk_of(from, first, bytes),
                     .to = fy_area_walk_of(to, first, bytes),
                     .left = bytes};
}

bool fy_both_next(fy_both *walk, uint64_t *from_out, uint64_t *to_out, uint64_t *n_out)
{
    if (walk->left == 0) {
        return false;
    }
    if (walk->from_n == 0) {
        fy_area_next(&walk->from, &walk->from_at, &walk->from_n);
    }
    if (walk->to_n == 0) {
        fy_area_next(&walk->to, &walk->to_at, &walk->to_n);
    }
    uint64_t n = walk->from_n < walk->to_n ? walk->from_n : walk->to_n;
    *from_out = walk->from_at;
    *to_out = walk->to_at;
    *n_out = n;
    walk->from_at += n;
    walk->to_at += n;
    walk->from_n -= n;
    walk->to_n -= n;
    walk->left -= n;
    return true;
}
