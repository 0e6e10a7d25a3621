/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What one end of a pair reads of the other: places or items, of a pair whose memory is mapped or
 * that puts; the first byte says which. Every byte that a place names lies in its buffer, and a
 * buffer with a key in the key's region; a part lies in its task.
 */
#include "ranks.h"

#include "base/alloc.h"

static void check_place(const fy_channel *channel, const fy_place *place)
{
    fy_area area = fy_place_area(channel, place);
    uint64_t begin, end, sum = 0;
    fy_area_hull(&area, &begin, &end);
    for (int i = 0; i < 2; i++) {
        const fy_spot *spot = &place->spots[i];
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
    for (uint32_t r = 0; r < place->n_ranges; r++) {
        const fy_range *range = &channel->ranges[place->first_range + r];
        promise(range->first <= area.bytes && range->bytes <= area.bytes - range->first);
        sum += range->bytes;
    }
    promise(sum <= area.bytes);
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
            const fy_part_of *part = &channel->in.parts[item->first_part + p];
            promise(part->end < service->registry.receives.n);
            uint64_t all = service->registry.receives.items[part->end].bytes;
            promise(part->first < all && part->bytes <= all - part->first);
            bytes += part->bytes;
        }
    }
    promise(bytes == channel->in.bytes);
}

static void forget(fy_channel *channel)
{
    for (uint32_t i = 0; i < channel->n_keys; i++) {
        ferry_region_free(channel->keys[i]);
    }
    fy_free(channel->keys);
    fy_free(channel->key_bases);
    fy_free(channel->places);
    fy_free(channel->dims);
    fy_free(channel->ranges);
    fy_free(channel->in.items);
    fy_free(channel->in.parts);
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
    const fy_channel *its = &service->exec->channels[0];
    ferry_error error = {""};
    fy_channel channel = {.peer = its->peer,
                          .direct = its->direct,
                          .first_send = its->first_send,
                          .n_sends = its->n_sends,
                          .first_receive = its->first_receive,
                          .n_receives = its->n_receives,
                          .in_slots = 16,
                          .in_payload = 8 << 10,
                          .theirs = 0};
    fy_pack in = {.bytes = (unsigned char *)(uintptr_t)data + 1, .used = size - 1};
    bool places = (data[0] & 2) == 0;
    ferry_status status = places ? fy_places_read(service, &channel, &in, &error)
                                 : fy_manifest_read(service, &channel, &in, &error);
    check_sentence(status, &error);
    for (uint32_t i = 0; status == FERRY_OK && places && i < channel.n_places; i++) {
        check_place(&channel, &channel.places[i]);
    }
    if (status == FERRY_OK && !places) {
        check_items(service, &channel);
    }
    forget(&channel);
    return 0;
}
