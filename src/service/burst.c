/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending over a network. Items are small, so that few bytes are on their way where it is slow;
 * what may go at once goes as one put, so that it costs little where it is fast.
 */
#include "service/delta.h"
#include "service/send.h"

#include "transport/host.h"

#include <string.h>

bool fy_burst_takes(const fy_channel *channel, const fy_item *item)
{
    return item->path == FERRY_PATH_REMOTE ||
           (item->path == FERRY_PATH_STAGED && !channel->reaches_ring);
}

/* What was packed for an item that the peer has dealt with is free again. */
static bool is_free(const fy_run_state *run, const fy_parcel *parcel)
{
    return parcel->channel == FY_NONE || run->channels[parcel->channel].n_consumed > parcel->item;
}

/* The longest run of free parcels, up to `most`: its first and its length. */
static uint32_t free_parcels(const ferry_service *service, bool aside, uint32_t most,
                             uint32_t *first_out)
{
    const fy_run_state *run = service->run;
    uint32_t best = 0, n = 0;
    for (uint32_t i = 0; i < service->program->packing[aside].n && best < most; i++) {
        n = is_free(run, &run->packed.parcels[aside][i]) ? n + 1 : 0;
        if (n > best) {
            best = n;
            *first_out = i + 1 - n;
        }
    }
    return best;
}

/*
 * The parcels are taken here, and not when they are filled: in between others may have their turn,
 * where what is packed is looked at by a device first.
 */
static void take_parcels(fy_run_state *run, const fy_channel_state *state, uint32_t number,
                         uint32_t first, uint32_t n)
{
    fy_parcel *parcels = run->packed.parcels[state->channel->out_aside];
    for (uint32_t i = 0; i < n; i++) {
        parcels[state->parcel + i] = (fy_parcel){.channel = number, .item = first + i};
    }
}

uint32_t fy_burst_take(ferry_service *service, fy_channel_state *state, uint32_t first, uint32_t n)
{
    const fy_channel *channel = state->channel;
    const fy_item *items = &channel->out.items[first];
    uint32_t in_line = 1;
    if (items->path == FERRY_PATH_REMOTE) {
        return n;
    }
    /* Staged they lie side by side there; slots and parcels are as long, or each goes by itself. */
    while (in_line < n && items[in_line].slot == items->slot + in_line &&
           fy_packing_of(service, channel)->payload == channel->out_payload) {
        in_line++;
    }
    n = free_parcels(service, channel->out_aside, in_line, &state->parcel);
    take_parcels(service->run, state, fy_channel_number(service->program, channel), first, n);
    return n;
}

/*
 * Through slots
 */

ferry_status fy_burst_pack(ferry_service *service, fy_channel_state *state, uint32_t first,
                           uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    for (uint32_t i = 0; i < n; i++) {
        fy_slot slot = fy_slot_parcel(service, channel, state->parcel + i);
        FY_TRY(fy_slot_fill(service, channel, &channel->out.items[first + i], &slot, error));
    }
    return FERRY_OK;
}

/* One behind the other, with nothing between them: the last brings the signal. */
static ferry_status put_each(ferry_service *service, const fy_channel_state *state,
                             const fy_item *items, uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    ferry_status status = FERRY_OK;
    ferry_signal signal = fy_arrival_of(service, state, n);
    for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
        fy_slot slot = fy_slot_parcel(service, channel, state->parcel + i);
        fy_slot_head head;
        memcpy(&head, slot.head, sizeof head);
        ferry_buffer source = ferry_buffer_of(slot.head, FY_SLOT_HEAD_BYTES + head.bytes);
        uint64_t offset =
            channel->out_ring + items[i].slot * fy_slot_step(channel->out_payload, false);
        status = i + 1 < n
                     ? ferry_transport_put(service->transport, channel->peer, service->slots,
                                           offset, &source, NULL, error)
                     : ferry_transport_put_signal(service->transport, channel->peer, service->slots,
                                                  offset, &source, &signal, NULL, error);
    }
    return status;
}

static ferry_status put_together(ferry_service *service, const fy_channel_state *state,
                                 const fy_item *items, uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    uint64_t step = fy_slot_step(fy_packing_of(service, channel)->payload, false);
    uint64_t bytes = (n - 1) * step + FY_SLOT_HEAD_BYTES + items[n - 1].bytes;
    ferry_buffer source =
        ferry_buffer_of(fy_slot_parcel(service, channel, state->parcel).head, bytes);
    ferry_signal signal = fy_arrival_of(service, state, n);
    uint64_t offset = channel->out_ring + items[0].slot * fy_slot_step(channel->out_payload, false);
    return ferry_transport_put_signal(service->transport, channel->peer, service->slots, offset,
                                      &source, &signal, NULL, error);
}

static ferry_status put_parcels(ferry_service *service, const fy_channel_state *state,
                                const fy_item *items, uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    for (uint32_t i = 0; fy_moves_are_far(service) && i < n; i++) {
        fy_slot slot = fy_slot_parcel(service, channel, state->parcel + i);
        fy_slot_head_write(service, channel, &items[i], &slot);
    }
    int64_t begin = fy_now_ns();
    ferry_status status = fy_hashes_put(service, channel, items, n, error);
    if (status == FERRY_OK) {
        status =
            (service->program->is_delta ? put_each : put_together)(service, state, items, n, error);
    }
    service->run->wire_seconds = (double)(fy_now_ns() - begin) / 1e9;
    return status;
}

/*
 * Into destinations
 */

/* A put that grows as long as the next piece goes on where it ends, on both sides. */
typedef struct growing {
    ferry_service *service;
    const fy_channel *channel;
    uint32_t key;
    uint64_t offset;
    const char *from;
    uint64_t bytes;
} growing;

static ferry_status put_grown(growing *put, ferry_error *error)
{
    if (put->bytes == 0) {
        return FERRY_OK;
    }
    ferry_buffer source = ferry_buffer_of(put->from, put->bytes);
    put->bytes = 0;
    return ferry_transport_put(put->service->transport, put->channel->peer,
                               put->channel->keys[put->key], put->offset, &source, NULL, error);
}

static ferry_status add_run(growing *put, uint32_t key, uint64_t offset, const char *from,
                            uint64_t bytes, ferry_error *error)
{
    bool goes_on = put->bytes > 0 && put->key == key && put->offset + put->bytes == offset &&
                   put->from + put->bytes == from;
    if (goes_on) {
        put->bytes += bytes;
        return FERRY_OK;
    }
    ferry_status status = put_grown(put, error);
    put->key = key;
    put->offset = offset;
    put->from = from;
    put->bytes = bytes;
    return status;
}

/* Bytes [first, first + bytes) of a part's task. */
static ferry_status add_part(growing *put, const fy_item_part *part, uint64_t first, uint64_t bytes,
                             ferry_error *error)
{
    const fy_channel *channel = put->channel;
    const fy_place *place = &channel->places[part->place];
    const fy_spot *spot = &channel->bases[place->base].spots[put->service->run->side];
    fy_part_end from = fy_source_of(put->service, part);
    fy_area to = fy_place_area(channel, place);
    fy_both walk = fy_both_of(&from.area, &to, first, bytes);
    uint64_t from_at, to_at, n;
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK && fy_both_next(&walk, &from_at, &to_at, &n)) {
        status = add_run(put, spot->key, spot->key_offset + to_at, from.base + from_at, n, error);
    }
    return status;
}

/* Bytes [first, first + bytes) of an item. */
static ferry_status add_some(growing *put, const fy_item *item, uint64_t first, uint64_t bytes,
                             ferry_error *error)
{
    uint64_t at = 0; /* of the part, in the item */
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts && at < first + bytes; p++) {
        const fy_item_part *part = fy_part_at(put->channel, item, p);
        uint64_t begin = at < first ? first : at;
        uint64_t end = at + part->bytes < first + bytes ? at + part->bytes : first + bytes;
        if (begin < end) {
            status = add_part(put, part, part->first + (begin - at), end - begin, error);
        }
        at += part->bytes;
    }
    return status;
}

static ferry_status add_item(growing *put, fy_channel_state *state, const fy_item *item,
                             ferry_error *error)
{
    uint64_t first, bytes, left_out = item->bytes;
    uint32_t block = 0;
    ferry_status status = FERRY_OK;
    if (!put->service->program->is_delta) {
        return add_some(put, item, 0, item->bytes, error);
    }
    uint64_t blocks = fy_delta_blocks(put->service, put->channel, item, NULL);
    while (status == FERRY_OK && fy_delta_next(blocks, item->bytes, &block, &first, &bytes)) {
        status = add_some(put, item, first, bytes, error);
        left_out -= bytes;
    }
    fy_delta_skip(state, left_out);
    return status;
}

static ferry_status put_remote(ferry_service *service, fy_channel_state *state,
                               const fy_item *items, uint32_t n, ferry_error *error)
{
    const fy_channel *channel = state->channel;
    growing put = {.service = service, .channel = channel};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
        fy_hash_parts(service, channel, &items[i]);
        status = add_item(&put, state, &items[i], error);
    }
    return status == FERRY_OK ? put_grown(&put, error) : status;
}

ferry_status fy_burst_put(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n, ferry_error *error)
{
    const fy_item *items = &state->channel->out.items[first];
    if (items->path == FERRY_PATH_REMOTE) {
        return put_remote(service, state, items, n, error);
    }
    return state->channel->out_aside ? fy_aside_begin(service, state, first, n, error)
                                     : put_parcels(service, state, items, n, error);
}
