/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank does to send: one item at a time, whichever can go and comes first. */
#include "service/send.h"

#include "service/delta.h"

#include "base/checked.h"
#include "base/hash.h"
#include "host/copy.h"
#include "transport/host.h"

#include <string.h>

uint64_t *fy_hashes_of(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *hashes = service->run->hashes;
    return hashes == NULL ? NULL : hashes + channel->own_hashes + item->first_part;
}

void fy_hash_parts(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    for (uint32_t p = 0; hashes != NULL && p < item->n_parts; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        fy_part_end from = fy_source_of(service, part);
        hashes[p] = fy_area_hash(&from.area, from.base, part->first, part->bytes);
    }
}

/*
 * Through slots
 */

static ferry_status pack_item(ferry_service *service, const fy_channel *channel,
                              const fy_item *item, fy_payload payload, ferry_error *error)
{
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        fy_part_end from = fy_source_of(service, part);
        bool is_hashed_later = hashes == NULL || fy_casts_on_arrival(from.conversion);
        status = fy_move_pack(service, &from, part->first, part->bytes, payload,
                              is_hashed_later ? NULL : &hashes[p], error);
        payload.at += part->bytes;
    }
    fy_copy_fence();
    return status;
}

/* Bytes [first, first + bytes) of an item. */
static ferry_status pack_some(ferry_service *service, const fy_channel *channel,
                              const fy_item *item, uint64_t first, uint64_t bytes, char *payload,
                              ferry_error *error)
{
    uint64_t at = 0; /* of the part, in the item */
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts && at < first + bytes; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        uint64_t begin = at < first ? first : at;
        uint64_t end = at + part->bytes < first + bytes ? at + part->bytes : first + bytes;
        if (begin < end) {
            fy_part_end from = fy_source_of(service, part);
            status = fy_move_pack(service, &from, part->first + (begin - at), end - begin,
                                  fy_payload_here(payload + (begin - first)), NULL, error);
        }
        at += part->bytes;
    }
    return status;
}

/* Those blocks that differ, one behind the other, of what a device has looked at. */
static ferry_status pack_blocks(ferry_service *service, const fy_channel *channel,
                                const fy_item *item, fy_payload packed, ferry_error *error)
{
    char *payload = packed.at; /* of the host's: rings aside have no blocks */
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    uint64_t blocks = fy_delta_blocks(service, channel, item, NULL), first, bytes;
    uint32_t block = 0;
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK && fy_delta_next(blocks, item->bytes, &block, &first, &bytes)) {
        status = pack_some(service, channel, item, first, bytes, payload, error);
        payload += bytes;
    }
    for (uint32_t p = 0; status == FERRY_OK && hashes != NULL && p < item->n_parts; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        fy_part_end from = fy_source_of(service, part);
        status = fy_move_hash(service, &from, part->first, part->bytes, &hashes[p], error);
    }
    fy_copy_fence();
    return status;
}

uint64_t fy_slot_hash(const fy_slot_head *head, const char *payload)
{
    uint64_t hash = fy_hash64(payload, (size_t)head->bytes);
    return head->blocks == 0 ? hash : fy_hash_mix(hash, head->blocks);
}

/*
 * Destinations are hashed where they have come to: so what is cast there is hashed here as what it
 * becomes.
 */
static void hash_arrivals(ferry_service *service, const fy_channel *channel, const fy_item *item,
                          const char *payload)
{
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    for (uint32_t p = 0; hashes != NULL && p < item->n_parts; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        const fy_task_cast *how = fy_sent_conversion(service, part);
        if (fy_casts_on_arrival(how)) {
            hashes[p] = fy_packed_hash(how, payload, part->bytes);
        }
        payload += part->bytes;
    }
}

void fy_slot_head_write(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        const fy_slot *slot)
{
    uint64_t number = (uint64_t)(item - channel->out.items);
    char *payload = slot->payload.at; /* what is aside is not looked at: see fy_aside_offer */
    fy_slot_head head = {.stamp = (uint64_t)service->run->number << 32 | number,
                         .bytes = item->bytes};
    hash_arrivals(service, channel, item, payload);
    if (service->program->is_delta) {
        head.blocks = fy_delta_blocks(service, channel, item, payload);
        head.bytes = fy_delta_has_looked(service, channel, item)
                         ? fy_delta_bytes(item->bytes, head.blocks)
                         : fy_delta_compact(payload, item->bytes, head.blocks);
        uint32_t c = fy_channel_number(service->program, channel);
        fy_delta_skip(&service->run->channels[c], item->bytes - head.bytes);
    }
    if (service->options.checksum == FERRY_CHECKSUM_PATH) {
        head.hash = fy_slot_hash(&head, payload);
    }
    memcpy(slot->head, &head, sizeof head);
}

ferry_status fy_slot_fill(ferry_service *service, const fy_channel *channel, const fy_item *item,
                          const fy_slot *slot, ferry_error *error)
{
    bool knows_blocks = fy_delta_has_looked(service, channel, item);
    ferry_status status =
        (knows_blocks ? pack_blocks : pack_item)(service, channel, item, slot->payload, error);
    if (status == FERRY_OK && !fy_moves_are_far(service)) { /* while it is in the caches */
        fy_slot_head_write(service, channel, item, slot);
    }
    return status;
}

/*
 * The item
 */

ferry_status fy_hashes_put(ferry_service *service, const fy_channel *channel, const fy_item *items,
                           uint32_t n, ferry_error *error)
{
    uint64_t *hashes = fy_hashes_of(service, channel, items);
    uint64_t n_parts = 0;
    if (hashes == NULL) {
        return FERRY_OK;
    }
    for (uint32_t i = 0; i < n; i++) {
        n_parts += items[i].n_parts;
    }
    ferry_buffer source = ferry_buffer_of(hashes, n_parts * sizeof *hashes);
    return ferry_transport_put(service->transport, channel->peer, service->hashes,
                               channel->out_hashes + items->first_part * sizeof *hashes, &source,
                               NULL, error);
}

ferry_signal fy_arrival_after(const ferry_service *service, const fy_channel *channel, uint32_t n)
{
    return (ferry_signal){.region = service->control,
                          .offset = fy_word_offset(channel->theirs, FY_WORD_ARRIVED),
                          .value = (uint64_t)service->run->number << 32 | n,
                          .op = FERRY_SIGNAL_SET};
}

ferry_signal fy_arrival_of(const ferry_service *service, const fy_channel_state *state, uint32_t n)
{
    return fy_arrival_after(service, state->channel, state->n_sent + n);
}

/*
 * Within the node: bytes are in place before the word is raised. A word that is raised wakes the
 * peer, which costs as much as to copy several KiB: small items go together, under one word. Of
 * what lies where it belongs the peer makes nothing before all of it does, so more goes together,
 * up to what is no longer a small part of a channel's turn.
 */
enum { STAGED_TOGETHER_BYTES = 32 << 10, MAPPED_TOGETHER_BYTES = 256 << 10 };

static uint32_t count_together(const fy_item *items, uint32_t most)
{
    uint64_t limit =
        items->path == FERRY_PATH_MAPPED ? MAPPED_TOGETHER_BYTES : STAGED_TOGETHER_BYTES;
    uint32_t n = 1;
    uint64_t bytes = items[0].bytes;
    while (n < most && items[n].path == items[0].path && bytes + items[n].bytes <= limit) {
        bytes += items[n++].bytes;
    }
    return n;
}

/* Into memory of a thread, or of a device of another process, which must not go away meanwhile. */
static ferry_status visit(ferry_service *service, fy_channel_state *state, ferry_error *error)
{
    uint32_t peer = state->channel->peer;
    if (state->channel->opens || fy_transport_shares_pointers(service->transport, peer)) {
        FY_TRY(fy_transport_visit(service->transport, peer, error));
        state->visits = true;
    }
    return FERRY_OK;
}

static ferry_status begin_here(ferry_service *service, fy_channel_state *state,
                               const fy_item *items, uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    ferry_status status = FERRY_OK;
    if (items->path == FERRY_PATH_MAPPED) {
        FY_TRY(visit(service, state, error));
        return fy_copy_mapped(service, channel, items, n, fy_hashes_of(service, channel, items),
                              &state->skipping, error);
    }
    for (const fy_item *item = items; status == FERRY_OK && item < items + n; item++) {
        fy_slot slot = fy_slot_mapped(channel, item);
        status = fy_slot_fill(service, channel, item, &slot, error);
    }
    return status;
}

void fy_send_drop(ferry_service *service, fy_channel_state *state)
{
    if (state->visits) {
        fy_transport_leave(service->transport, state->channel->peer);
        state->visits = false;
    }
}

/*
 * Steps
 */

static fy_progress progress_of(ferry_service *service, fy_channel_state *state, ferry_status status,
                               const ferry_error *why)
{
    if (status != FERRY_OK) {
        fy_run_fail(service, status, state->channel->peer, "%s", why->message);
    }
    if (status != FERRY_OK && !fy_moves_are_far(service)) { /* else when nothing is under way */
        fy_send_drop(service, state);
    }
    return status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

uint32_t fy_send_take(ferry_service *service, fy_channel_state *state, uint32_t first, uint32_t n)
{
    const fy_channel *channel = state->channel;
    bool bursts = fy_burst_takes(channel, &channel->out.items[first]);
    if (channel->in_turns) {
        uint32_t room = fy_turns_room(service->run);
        if (room == 0) {
            return FY_NOBODY;
        }
        n = room < n ? room : n;
    }
    if (bursts) {
        n = fy_transport_has_room(service->transport, channel->peer)
                ? fy_burst_take(service, state, first, (uint32_t)fy_min(n, FY_MOST_BURST))
                : 0;
    } else {
        n = count_together(&channel->out.items[first], n);
    }
    service->run->n_away += channel->in_turns ? n : 0;
    state->send_ns = n > 0 ? fy_now_ns() : state->send_ns;
    return n;
}

fy_progress fy_send_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                         uint32_t n)
{
    const fy_channel *channel = state->channel;
    const fy_item *items = &channel->out.items[first];
    ferry_error why;
    ferry_status status = fy_burst_takes(channel, items)
                              ? fy_burst_pack(service, state, first, n, &why)
                              : begin_here(service, state, items, n, &why);
    return progress_of(service, state, status, &why);
}

fy_progress fy_send_put(ferry_service *service, fy_channel_state *state, uint32_t first, uint32_t n)
{
    ferry_error why;
    ferry_status status = fy_burst_put(service, state, first, n, &why);
    return progress_of(service, state, status, &why);
}

/* Items whose digests the peer does not tell before it has dealt with what comes before them. */
static bool digests_are_next(const ferry_service *service, const fy_channel_state *state,
                             uint32_t n)
{
    const fy_lane *out = &state->channel->out;
    return state->n_sent + n < out->n_items &&
           fy_delta_tells(service->program, &out->items[state->n_sent + n]);
}

/*
 * Whether the peer must hear now that n items are there. To wake it costs more than to copy some
 * KiB, and by what is in its place already, and that nobody checks or passes on, it can do nothing
 * before the last of it has come.
 */
static bool is_told(const ferry_service *service, const fy_channel_state *state,
                    const fy_item *items, uint32_t n)
{
    return items->path != FERRY_PATH_MAPPED || service->program->rounds != NULL ||
           service->program->checks_ends || state->untold_bytes >= FY_DIRECT_BYTES ||
           digests_are_next(service, state, n) || state->n_sent + n == state->channel->out.n_items;
}

/* The word behind the bytes, where no put has brought it with them. */
static ferry_status tell(ferry_service *service, fy_channel_state *state, const fy_item *items,
                         uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    for (uint32_t i = 0; i < n; i++) {
        state->untold_bytes += items[i].bytes;
    }
    if (!is_told(service, state, items, n)) {
        return FERRY_OK;
    }
    state->untold_bytes = 0;
    if (items->path == FERRY_PATH_STAGED && fy_burst_takes(channel, items)) {
        return FERRY_OK;
    }
    if (items->path == FERRY_PATH_STAGED && fy_moves_are_far(service)) {
        for (uint32_t i = 0; i < n; i++) {
            fy_slot slot = fy_slot_mapped(channel, &items[i]);
            fy_slot_head_write(service, channel, &items[i], &slot);
        }
        fy_copy_fence();
    }
    ferry_status status = fy_hashes_put(service, channel, items, n, error);
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = fy_arrival_of(service, state, n);
    return status == FERRY_OK
               ? ferry_transport_put_signal(service->transport, channel->peer, service->control, 0,
                                            &nothing, &signal, NULL, error)
               : status;
}

fy_progress fy_send_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                           uint32_t n)
{
    fy_run_state *run = service->run;
    const fy_channel *channel = state->channel;
    const fy_item *items = &channel->out.items[first];
    ferry_error why;
    fy_send_drop(service, state);
    ferry_status status = tell(service, state, items, n, &why);
    if (status != FERRY_OK) {
        return progress_of(service, state, status, &why);
    }
    int64_t begin = state->send_ns, end = fy_now_ns();
    state->n_sent += n;
    for (uint32_t i = 0; i < n; i++) {
        run->done_bytes += items[i].bytes;
        fy_statistics_sent(service, channel, &items[i], begin, end);
        begin = end; /* the burst's time is its first item's */
    }
    fy_statistics_skipped(service, items->path, state->skipping);
    state->skipped += state->skipping;
    state->skipping = 0;
    return FY_PROGRESS_DONE;
}

/* Whichever comes first goes first, through memory or over a network. */
bool fy_send_step(ferry_service *service)
{
    fy_drive *drive = &service->run->drive;
    bool direct = fy_drive_first_order(drive, FY_GRADE_DIRECT) <=
                  fy_drive_first_order(drive, FY_GRADE_NETWORK);
    return fy_drive_step(drive, direct ? FY_GRADE_DIRECT : FY_GRADE_NETWORK) ||
           fy_drive_step(drive, direct ? FY_GRADE_NETWORK : FY_GRADE_DIRECT);
}
