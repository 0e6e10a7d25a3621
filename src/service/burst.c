/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending over a network. Items are small, so that few bytes are on their way where it is slow;
 * what may go at once goes as one put, so that it costs little where it is fast.
 */
#include "service/send.h"

#include "transport/host.h"

bool fy_burst_takes(const fy_channel *channel, const fy_item *item)
{
    return item->path == FERRY_PATH_REMOTE ||
           (item->path == FERRY_PATH_STAGED && channel->out_mapped == NULL);
}

/* What was packed for an item that the peer has dealt with is free again. */
static bool is_free(const fy_exec *exec, const fy_parcel *parcel)
{
    return parcel->channel == FY_NONE || exec->channels[parcel->channel].n_consumed > parcel->item;
}

/* The longest run of free parcels, up to `most`: its first and its length. */
static uint32_t free_parcels(const fy_exec *exec, uint32_t most, uint32_t *first_out)
{
    uint32_t best = 0, n = 0;
    for (uint32_t i = 0; i < exec->n_parcels && best < most; i++) {
        n = is_free(exec, &exec->parcels[i]) ? n + 1 : 0;
        if (n > best) {
            best = n;
            *first_out = i + 1 - n;
        }
    }
    return best;
}

/* Items behind one another that may go, take the same way and, staged, lie side by side there. */
static uint32_t items_in_line(const fy_exec *exec, const fy_channel *channel)
{
    const fy_item *items = &channel->out.items[channel->n_sent];
    uint32_t left = (uint32_t)(channel->out.n_items - channel->n_sent);
    uint32_t most = left < FY_MOST_BURST ? left : (uint32_t)FY_MOST_BURST;
    uint32_t room = channel->in_turns ? fy_turns_room(exec) : most;
    uint32_t n = 1;
    most = room < most ? room : most;
    while (n < most && items[n].path == items[0].path &&
           (items[0].path == FERRY_PATH_REMOTE || items[n].slot == items[0].slot + n) &&
           fy_item_may_go(exec, channel, channel->n_sent + n)) {
        n++;
    }
    return n;
}

uint32_t fy_burst_length(const ferry_service *service, const fy_channel *channel)
{
    const fy_exec *exec = service->exec;
    uint32_t n = items_in_line(exec, channel);
    uint32_t first = 0;
    if (channel->out.items[channel->n_sent].path == FERRY_PATH_REMOTE) {
        return n;
    }
    /* Slots there and parcels here are as long, or else each goes by itself. */
    n = exec->parcel_payload == channel->out_payload ? n : 1;
    return free_parcels(exec, n, &first);
}

/*
 * Through slots
 */

static ferry_status put_slots(ferry_service *service, const fy_channel *channel,
                              const fy_item *items, uint32_t n, ferry_error *error)
{
    fy_exec *exec = service->exec;
    uint64_t step = exec->parcel_payload + FY_SLOT_HEAD_BYTES;
    uint32_t first = 0;
    free_parcels(exec, n, &first);
    char *slots = (char *)ferry_region_base(service->slots) + exec->parcels[first].offset;
    for (uint32_t i = 0; i < n; i++) {
        fy_parcel *parcel = &exec->parcels[first + i];
        parcel->channel = fy_channel_number(exec, channel);
        parcel->item = channel->n_sent + i;
        fy_slot_fill(service, channel, &items[i], slots + i * step);
    }
    int64_t begin = fy_now_ns();
    ferry_status status = fy_hashes_put(service, channel, items, n, error);
    if (status == FERRY_OK) {
        uint64_t bytes = (n - 1) * step + FY_SLOT_HEAD_BYTES + items[n - 1].bytes;
        ferry_buffer source = ferry_buffer_of(slots, bytes);
        ferry_signal signal = fy_arrival_of(service, channel, n);
        uint64_t offset =
            channel->out_ring + items[0].slot * (channel->out_payload + FY_SLOT_HEAD_BYTES);
        status = ferry_put_signal(service->transport, channel->peer, service->slots, offset,
                                  &source, &signal, NULL, error);
    }
    exec->wire_seconds = (double)(fy_now_ns() - begin) / 1e9;
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
    return ferry_put(put->service->transport, put->channel->peer, put->channel->keys[put->key],
                     put->offset, &source, NULL, error);
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

/* Runs of both sides, cut where either ends. */
static ferry_status add_part(growing *put, const fy_part_of *part, ferry_error *error)
{
    const fy_place *place = &put->channel->places[part->place];
    const fy_spot *spot = &place->spots[put->service->exec->side];
    fy_origin from = fy_origin_of(put->service, part);
    fy_area area = fy_place_area(put->channel, place);
    fy_area_walk here = fy_area_walk_of(&from.area, part->first, part->bytes);
    fy_area_walk there = fy_area_walk_of(&area, part->first, part->bytes);
    uint64_t here_at = 0, there_at = 0, here_n = 0, there_n = 0;
    ferry_status status = FERRY_OK;
    for (uint64_t left = part->bytes; left > 0 && status == FERRY_OK;) {
        if (here_n == 0) {
            fy_area_next(&here, &here_at, &here_n);
        }
        if (there_n == 0) {
            fy_area_next(&there, &there_at, &there_n);
        }
        uint64_t n = here_n < there_n ? here_n : there_n;
        status =
            add_run(put, spot->key, spot->key_offset + there_at, from.base + here_at, n, error);
        here_at += n;
        there_at += n;
        here_n -= n;
        there_n -= n;
        left -= n;
    }
    return status;
}

static ferry_status put_remote(ferry_service *service, const fy_channel *channel,
                               const fy_item *items, uint32_t n, ferry_error *error)
{
    growing put = {.service = service, .channel = channel};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < n; i++) {
        fy_hash_parts(service, channel, &items[i]);
        for (uint32_t p = 0; status == FERRY_OK && p < items[i].n_parts; p++) {
            status = add_part(&put, fy_part_at(channel, &items[i], p), error);
        }
    }
    if (status == FERRY_OK) {
        status = put_grown(&put, error);
    }
    if (status == FERRY_OK) {
        status = fy_hashes_put(service, channel, items, n, error);
    }
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = fy_arrival_of(service, channel, n);
    return status == FERRY_OK
               ? ferry_put_signal(service->transport, channel->peer, service->control, 0, &nothing,
                                  &signal, NULL, error)
               : status;
}

ferry_status fy_burst_send(ferry_service *service, const fy_channel *channel, uint32_t n,
                           ferry_error *error)
{
    const fy_item *items = &channel->out.items[channel->n_sent];
    return items->path == FERRY_PATH_REMOTE ? put_remote(service, channel, items, n, error)
                                            : put_slots(service, channel, items, n, error);
}
