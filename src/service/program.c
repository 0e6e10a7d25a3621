/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/program.h"

#include "base/alloc.h"
#include "base/sort.h"

static void lane_cleanup(fy_lane *lane)
{
    fy_free(lane->items);
    fy_free(lane->parts);
}

static void channel_cleanup(fy_channel *channel)
{
    lane_cleanup(&channel->out);
    lane_cleanup(&channel->in);
    fy_free(channel->afters);
    fy_free(channel->places);
    fy_free(channel->dims);
    fy_free(channel->bases);
    for (uint32_t i = 0; i < channel->n_keys; i++) {
        ferry_region_free(channel->keys[i]);
    }
    fy_free(channel->keys);
}

void fy_service_program_destroy(fy_service_program *program)
{
    if (program == NULL) {
        return;
    }
    for (uint32_t c = 0; c < program->n_channels; c++) {
        channel_cleanup(&program->channels[c]);
    }
    fy_free(program->channels);
    lane_cleanup(&program->local);
    fy_program_cleanup(&program->steps);
    ferry_schedule_destroy(program->rounds);
    fy_free(program);
}

ferry_status fy_lane_item(fy_lane *lane, uint32_t path, uint64_t order, fy_item **item_out,
                          ferry_error *error)
{
    if (lane->n_items >= UINT32_MAX - 1 ||
        !FY_RESERVE(lane->items, lane->item_capacity, lane->n_items + 1)) {
        return fy_fail_no_memory(error, "a schedule's items");
    }
    fy_item *item = &lane->items[lane->n_items++];
    *item = (fy_item){.first_part = lane->n_parts, .path = path, .order = order};
    *item_out = item;
    return FERRY_OK;
}

ferry_status fy_lane_part(fy_lane *lane, uint32_t end, uint32_t place, uint64_t first,
                          uint64_t bytes, ferry_error *error)
{
    if (!FY_RESERVE(lane->parts, lane->part_capacity, lane->n_parts + 1)) {
        return fy_fail_no_memory(error, "a schedule's segments");
    }
    fy_item *item = &lane->items[lane->n_items - 1];
    lane->parts[lane->n_parts++] =
        (fy_item_part){.end = end, .place = place, .first = first, .bytes = bytes};
    item->n_parts++;
    item->bytes += bytes;
    lane->bytes += bytes;
    return FERRY_OK;
}

fy_channel *fy_channel_of(const fy_service_program *program, uint32_t peer)
{
    FY_BISECT(uint32_t, first, 0, program->n_channels, middle,
              program->channels[middle].peer < peer);
    return first < program->n_channels && program->channels[first].peer == peer
               ? &program->channels[first]
               : NULL;
}

fy_area fy_place_area(const fy_channel *channel, const fy_place *place)
{
    const uint64_t *dims = channel->dims + place->dims;
    fy_area area = {.offset = place->offset,
                    .run_bytes = place->run_bytes,
                    .bytes = place->run_bytes,
                    .n_dims = place->n_dims};
    for (uint32_t d = 0; d < place->n_dims; d++) {
        area.length[d] = dims[d];
        area.stride[d] = dims[place->n_dims + d];
        area.bytes *= area.length[d];
    }
    return area;
}
