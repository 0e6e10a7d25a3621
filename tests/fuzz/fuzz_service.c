/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What one end of a pair reads of the other: places or items, of a pair whose memory is mapped or
 * that puts; the first byte says which. Every byte that a place names lies in its buffer, and a
 * buffer with a key in the key's region; a part lies in its task.
 */
#include "ranks.h"

#include "base/alloc.h"

/* Of a task of so many bytes. */
static void check_wanted(const fy_channel_wire *wire, const fy_wanted *wanted, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < wanted->n_ranges; r++) {
        const fy_range *range = &wire->ranges[wanted->first_range + r];
        promise(range->first <= bytes && range->bytes <= bytes - range->first);
        sum += range->bytes;
    }
    promise(sum <= bytes);
}

static void check_place(const fy_channel *channel, const fy_place *place,
                        const fy_channel_wire *wire, const fy_wanted *wanted)
{
    fy_area area = fy_place_area(channel, place);
    uint64_t begin, end;
    promise(place->base < channel->n_bases);
    fy_area_hull(&area, &begin, &end);
    for (int i = 0; i < 2; i++) {
        const fy_spot *spot = &channel->bases[place->base].spots[i];
        promise(end <= spot->bytes);
        if (spot->key != FY_NONE && channel->keys[spot->key] != NULL) {
            promise(spot->key_offset <= ferry_region_bytes(channel->keys[spot->key]));
            promise(spot->bytes <= ferry_region_bytes(channel->keys[spot->key]) - spot->key_offset);
        }
    }
    fy_area_walk walk = fy_area_walk_of(&area, 0, area.bytes);
    uint64_t at, n;
    for (uint32_t i = 0; i < 1000 && fy_area_next(&walk, &at, &n); i++) {
        promise(at >= begin && n > 0 && n <= end - at);
    }
    check_wanted(wire, wanted, area.bytes);
}

static void check_items(const ferry_service *service, const fy_channel *channel)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < channel->in.n_items; i++) {
        const fy_item *item = &channel->in.items[i];
        promise(item->n_parts > 0 && item->bytes > 0);
        promise(item->path != FERRY_PATH_STAGED ||
                (item->slot < channel->in_slots && item->bytes <= channel->in_payload));
        for (uint32_t p = 0; p < item->n_parts; p++) {
            const fy_item_part *part = &channel->in.parts[item->first_part + p];
            promise(part->end < service->registry.receives.n);
            uint64_t all = service->registry.receives.items[part->end].bytes;
            promise(part->first < all && part->bytes <= all - part->first);
            bytes += part->bytes;
        }
    }
    promise(bytes == channel->in.bytes);
}

/* A program of one channel, as it is before the peer has said anything. */
static fy_channel *begin(ferry_service *service, uint32_t peer)
{
    service->program = fy_alloc_zeroed(1, sizeof *service->program);
    service->wire = fy_alloc_zeroed(1, sizeof *service->wire);
    promise(service->program != NULL && service->wire != NULL);
    fy_channel *channel = fy_alloc_zeroed(1, sizeof *channel);
    fy_channel_wire *wire = fy_alloc_zeroed(1, sizeof *wire);
    fy_talk *talk = fy_alloc_zeroed(1, sizeof *talk);
    promise(channel != NULL && wire != NULL && talk != NULL);
    *channel = (fy_channel){.peer = peer, .direct = true, .in_slots = 16, .in_payload = 8 << 10};
    *wire = (fy_channel_wire){.n_sends = (uint32_t)service->registry.sends.n,
                              .n_receives = (uint32_t)service->registry.receives.n};
    *service->program = (fy_service_program){.channels = channel, .n_channels = 1};
    *service->wire = (fy_wire){.channels = wire, .talks = talk, .n_channels = 1};
    return channel;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_rank ranks[2][N_RANKS];
    if (ranks[0][0].service == NULL) {
        fuzz_open_ranks(ranks[0], false);
        fuzz_open_ranks(ranks[1], true);
    }
    if (size == 0) {
        return 0;
    }
    ferry_service *service = ranks[data[0] & 1][0].service;
    fy_service_program *own = service->program;
    fy_channel *channel = begin(service, own->channels[0].peer);
    const fy_channel_wire *wire = service->wire->channels;
    ferry_error error = {""};
    fy_pack in = {.bytes = (unsigned char *)(uintptr_t)data + 1, .used = size - 1};
    bool places = (data[0] & 2) == 0;
    ferry_status status = places ? fy_places_read(service, channel, &in, &error)
                                 : fy_manifest_read(service, channel, &in, &error);
    check_sentence(status, &error);
    for (uint32_t i = 0; status == FERRY_OK && places && i < channel->n_places; i++) {
        check_place(channel, &channel->places[i], wire, &wire->wanted[i]);
    }
    bool out_of_reach = status == FERRY_OK && places && channel->places == NULL;
    for (uint32_t i = 0; out_of_reach && i < wire->n_sends; i++) {
        promise(wire->wanted[i].path == FERRY_PATH_STAGED);
        check_wanted(wire, &wire->wanted[i], service->registry.sends.items[i].bytes);
    }
    if (status == FERRY_OK && !places) {
        check_items(service, channel);
    }
    fy_wire_destroy(service->wire);
    fy_service_program_destroy(service->program);
    service->wire = NULL;
    service->program = own;
    return 0;
}
