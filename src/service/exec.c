/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/exec.h"

#include "base/alloc.h"

static void lane_cleanup(fy_lane *lane)
{
    fy_free(lane->items);
    fy_free(lane->parts);
}

static void channel_cleanup(fy_channel *channel)
{
    lane_cleanup(&channel->out);
    lane_cleanup(&channel->in);
    fy_free(channel->relayed_receives);
    fy_free(channel->relayed_sends);
    fy_free(channel->afters);
    fy_free(channel->places);
    fy_free(channel->dims);
    fy_free(channel->ranges);
    for (uint32_t i = 0; i < channel->n_keys; i++) {
        ferry_region_free(channel->keys[i]);
    }
    fy_free(channel->keys);
    fy_free(channel->key_bases);
}

void fy_exec_destroy(fy_exec *exec)
{
    if (exec == NULL) {
        return;
    }
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        channel_cleanup(&exec->channels[c]);
    }
    fy_free(exec->channels);
    lane_cleanup(&exec->local);
    ferry_schedule_destroy(exec->rounds);
    fy_free(exec->by_task);
    fy_free(exec->wants);
    fy_free(exec->wants_of);
    fy_free(exec->parcels);
    fy_free(exec->hashes);
    fy_free(exec->here);
    fy_free(exec->there);
    fy_free(exec->ready);
    fy_free(exec->spans);
    fy_free(exec);
}

ferry_status fy_lane_item(fy_lane *lane, uint32_t path, uint64_t order, fy_item **item_out,
                          ferry_error *error)
{
    if (lane->n_items >= UINT32_MAX - 1 || !fy_reserve((void **)&lane->items, &lane->item_capacity,
                                                       lane->n_items + 1, sizeof *lane->items)) {
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
    if (!fy_reserve((void **)&lane->parts, &lane->part_capacity, lane->n_parts + 1,
                    sizeof *lane->parts)) {
        return fy_fail_no_memory(error, "a schedule's segments");
    }
    fy_item *item = &lane->items[lane->n_items - 1];
    lane->parts[lane->n_parts++] =
        (fy_part_of){.end = end, .place = place, .first = first, .bytes = bytes};
    item->n_parts++;
    item->bytes += bytes;
    lane->bytes += bytes;
    return FERRY_OK;
}

fy_channel *fy_channel_of(const fy_exec *exec, uint32_t peer)
{
    uint32_t first = 0;
    uint32_t end = exec->n_channels;
    while (first < end) {
        uint32_t middle = first + (end - first) / 2;
        if (exec->channels[middle].peer < peer) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first < exec->n_channels && exec->channels[first].peer == peer ? &exec->channels[first]
                                                                          : NULL;
}

fy_area fy_place_area(const fy_channel *channel, const fy_place *place)
{
    const uint64_t *dims = channel->dims + place->dims;
    fy_area area = {.offset = place->offset,
                    .run_bytes = place->run_bytes,
                    .bytes = place->bytes,
                    .n_dims = place->n_dims};
    for (uint32_t d = 0; d < place->n_dims; d++) {
        area.length[d] = dims[d];
        area.stride[d] = dims[place->n_dims + d];
    }
    return area;
}
