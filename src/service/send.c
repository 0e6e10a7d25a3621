/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank does to send: one item at a time, whichever can go and comes first. */
#include "service/exec.h"

#include "base/copy.h"
#include "base/hash.h"
#include "transport/host.h"

#include <string.h>

/* Where the bytes of a part come from. */
typedef struct origin {
    fy_area     area;
    const char *base;
} origin;

static origin origin_of(const ferry_service *service, const fy_part_of *part)
{
    const fy_registry *registry = &service->registry;
    bool               relayed  = (part->end & FY_RELAYED) != 0;
    const fy_end      *end      = relayed ? &registry->receives.items[part->end & ~FY_RELAYED]
                                          : &registry->sends.items[part->end];
    const fy_held     *held     = &registry->held[end->held];
    return (origin){.area = fy_end_area(registry, end),
                    .base = relayed ? fy_held_target_base(held) : fy_held_base(held)};
}

static const fy_part_of *part_at(const fy_channel *channel, const fy_item *item, uint32_t index)
{
    return &channel->out.parts[item->first_part + index];
}

/* Of the sending side's hashes, those of an item; NULL where none are wanted. */
static uint64_t *hashes_of(const ferry_service *service, const fy_channel *channel,
                           const fy_item *item)
{
    uint64_t *hashes = service->exec->hashes;
    return hashes == NULL ? NULL : hashes + channel->own_hashes + item->first_part;
}

static void hash_parts(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *hashes = hashes_of(service, channel, item);
    for (uint32_t p = 0; hashes != NULL && p < item->n_parts; p++) {
        const fy_part_of *part = part_at(channel, item, p);
        origin            from = origin_of(service, part);
        hashes[p]              = fy_area_hash(&from.area, from.base, part->first, part->bytes);
    }
}

/*
 * By the kernel
 */

/* Lists of pieces, handed over when they are full. */
typedef struct vectors {
    ferry_service    *service;
    const fy_channel *channel;
    size_t            n_here, n_there;
    ferry_status      status;
    ferry_error      *error;
} vectors;

static void hand_over(vectors *v)
{
    fy_exec *exec = v->service->exec;
    if (v->n_here > 0 && v->status == FERRY_OK) {
        v->status = fy_transport_attach_write(v->service->transport, v->channel->peer, exec->here,
                                              v->n_here, exec->there, v->n_there, v->error);
    }
    v->n_here = v->n_there = 0;
}

/* Runs of both sides, cut where either ends, so that lists may be handed over anywhere. */
static void list_part(vectors *v, const fy_part_of *part)
{
    fy_exec        *exec    = v->service->exec;
    const fy_place *place   = &v->channel->places[part->place];
    origin          from    = origin_of(v->service, part);
    fy_area         area    = fy_place_area(v->channel, place);
    fy_area_walk    here    = fy_area_walk_of(&from.area, part->first, part->bytes);
    fy_area_walk    there   = fy_area_walk_of(&area, part->first, part->bytes);
    uint64_t        here_at = 0, there_at = 0, here_n = 0, there_n = 0;
    for (uint64_t left = part->bytes; left > 0 && v->status == FERRY_OK;) {
        if (here_n == 0) {
            fy_area_next(&here, &here_at, &here_n);
        }
        if (there_n == 0) {
            fy_area_next(&there, &there_at, &there_n);
        }
        uint64_t n = here_n < there_n ? here_n : there_n;
        if (v->n_here == FY_MOST_VECTORS) {
            hand_over(v);
        }
        exec->here[v->n_here++] = (struct iovec){.iov_base = (char *)(uintptr_t)from.base + here_at,
                                                 .iov_len  = (size_t)n};
        exec->there[v->n_there++] = (struct iovec){
            .iov_base = (char *)(uintptr_t)place->spots[exec->side].address + there_at,
            .iov_len  = (size_t)n};
        here_at += n;
        there_at += n;
        here_n -= n;
        there_n -= n;
        left -= n;
    }
}

static ferry_status send_attached(ferry_service *service, const fy_channel *channel,
                                  const fy_item *item, ferry_error *error)
{
    vectors v = {.service = service, .channel = channel, .status = FERRY_OK, .error = error};
    hash_parts(service, channel, item);
    for (uint32_t p = 0; p < item->n_parts; p++) {
        list_part(&v, part_at(channel, item, p));
    }
    hand_over(&v);
    return v.status;
}

/*
 * By puts
 */

static ferry_status put_part(ferry_service *service, const fy_channel *channel,
                             const fy_part_of *part, ferry_error *error)
{
    const fy_place *place   = &channel->places[part->place];
    const fy_spot  *spot    = &place->spots[service->exec->side];
    origin          from    = origin_of(service, part);
    fy_area         area    = fy_place_area(channel, place);
    fy_area_walk    here    = fy_area_walk_of(&from.area, part->first, part->bytes);
    fy_area_walk    there   = fy_area_walk_of(&area, part->first, part->bytes);
    uint64_t        here_at = 0, there_at = 0, here_n = 0, there_n = 0;
    for (uint64_t left = part->bytes; left > 0;) {
        if (here_n == 0) {
            fy_area_next(&here, &here_at, &here_n);
        }
        if (there_n == 0) {
            fy_area_next(&there, &there_at, &there_n);
        }
        uint64_t     n      = here_n < there_n ? here_n : there_n;
        ferry_buffer source = ferry_buffer_of(from.base + here_at, n);
        ferry_status status = ferry_put(service->transport, channel->peer, channel->keys[spot->key],
                                        spot->key_offset + there_at, &source, NULL, error);
        if (status != FERRY_OK) {
            return status;
        }
        here_at += n;
        there_at += n;
        here_n -= n;
        there_n -= n;
        left -= n;
    }
    return FERRY_OK;
}

static ferry_status send_remote(ferry_service *service, const fy_channel *channel,
                                const fy_item *item, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    hash_parts(service, channel, item);
    for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
        status = put_part(service, channel, part_at(channel, item, p), error);
    }
    return status;
}

/*
 * Through slots
 */

static void pack_item(ferry_service *service, const fy_channel *channel, const fy_item *item,
                      char *payload)
{
    uint64_t *hashes = hashes_of(service, channel, item);
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_part_of *part = part_at(channel, item, p);
        origin            from = origin_of(service, part);
        if (hashes != NULL) {
            hashes[p] = fy_area_pack_hash(payload, &from.area, from.base, part->first, part->bytes);
        } else {
            fy_area_pack_cached(payload, &from.area, from.base, part->first, part->bytes);
        }
        payload += part->bytes;
    }
    fy_copy_fence();
}

static void write_head(const ferry_service *service, const fy_channel *channel, const fy_item *item,
                       const char *payload, char *slot)
{
    uint64_t     number = (uint64_t)(item - channel->out.items);
    fy_slot_head head   = {.stamp = (uint64_t)service->exec->run << 32 | number,
                           .bytes = item->bytes};
    if (service->options.checksum == FERRY_CHECKSUM_PATH) {
        head.hash = fy_hash64(payload, (size_t)item->bytes);
    }
    memcpy(slot, &head, sizeof head);
}

static uint64_t slot_offset(const fy_channel *channel, const fy_item *item)
{
    return channel->out_ring + item->slot * (channel->out_payload + FY_SLOT_HEAD_BYTES);
}

/* What was packed for an item that the peer has dealt with is free again. */
static fy_parcel *free_parcel(const fy_exec *exec)
{
    for (uint32_t i = 0; i < exec->n_parcels; i++) {
        fy_parcel *parcel = &exec->parcels[i];
        if (parcel->channel == FY_NONE ||
            exec->channels[parcel->channel].n_consumed > parcel->item) {
            return parcel;
        }
    }
    return NULL;
}

/* One run of the source that holds all of an item: it needs no packing. */
static const char *whole_source(const ferry_service *service, const fy_channel *channel,
                                const fy_item *item)
{
    if (item->n_parts != 1 || service->exec->hashes != NULL) {
        return NULL;
    }
    const fy_part_of *part = part_at(channel, item, 0);
    origin            from = origin_of(service, part);
    fy_area_walk      walk = fy_area_walk_of(&from.area, part->first, part->bytes);
    uint64_t          at, n;
    return fy_area_next(&walk, &at, &n) && n == part->bytes ? from.base + at : NULL;
}

static ferry_status put_hashes(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, ferry_error *error)
{
    uint64_t *hashes = hashes_of(service, channel, item);
    if (hashes == NULL) {
        return FERRY_OK;
    }
    ferry_buffer source = ferry_buffer_of(hashes, item->n_parts * sizeof *hashes);
    return ferry_put(service->transport, channel->peer, service->hashes,
                     channel->out_hashes + item->first_part * sizeof *hashes, &source, NULL, error);
}

/* The item is here: the word that says so comes behind its bytes. */
static ferry_signal arrival_of(const ferry_service *service, const fy_channel *channel)
{
    return (ferry_signal){.region = service->control,
                          .offset = fy_word_offset(channel->theirs, FY_WORD_ARRIVED),
                          .value  = (uint64_t)service->exec->run << 32 | (channel->n_sent + 1),
                          .op     = FERRY_SIGNAL_SET};
}

static ferry_status put_slot(ferry_service *service, const fy_channel *channel, const fy_item *item,
                             ferry_error *error)
{
    fy_exec   *exec   = service->exec;
    fy_parcel *parcel = free_parcel(exec);
    char      *slot   = (char *)ferry_region_base(service->slots) + parcel->offset;
    uint64_t   offset = slot_offset(channel, item);
    *parcel           = (fy_parcel){.offset  = parcel->offset,
                                    .channel = fy_channel_number(exec, channel),
                                    .item    = (uint32_t)(item - channel->out.items)};
    const char *whole = whole_source(service, channel, item);
    if (whole == NULL) {
        pack_item(service, channel, item, slot + FY_SLOT_HEAD_BYTES);
    }
    write_head(service, channel, item, whole != NULL ? whole : slot + FY_SLOT_HEAD_BYTES, slot);
    int64_t      begin  = fy_now_ns();
    ferry_status status = put_hashes(service, channel, item, error);
    uint64_t     behind = whole == NULL ? item->bytes : 0;
    if (status == FERRY_OK && whole != NULL) {
        ferry_buffer payload = ferry_buffer_of(whole, item->bytes);
        status               = ferry_put(service->transport, channel->peer, service->slots,
                                         offset + FY_SLOT_HEAD_BYTES, &payload, NULL, error);
    }
    if (status == FERRY_OK) {
        ferry_buffer bytes  = ferry_buffer_of(slot, FY_SLOT_HEAD_BYTES + behind);
        ferry_signal signal = arrival_of(service, channel);
        status = ferry_put_signal(service->transport, channel->peer, service->slots, offset, &bytes,
                                  &signal, NULL, error);
    }
    exec->wire_seconds = (double)(fy_now_ns() - begin) / 1e9;
    return status;
}

/* Into the peer's slot, which is mapped here. */
static ferry_status fill_slot(ferry_service *service, const fy_channel *channel,
                              const fy_item *item)
{
    char *slot = channel->out_mapped + item->slot * (channel->out_payload + FY_SLOT_HEAD_BYTES);
    pack_item(service, channel, item, slot + FY_SLOT_HEAD_BYTES);
    write_head(service, channel, item, slot + FY_SLOT_HEAD_BYTES, slot);
    return FERRY_OK;
}

/*
 * The item
 */

static ferry_status send_mapped(ferry_service *service, const fy_channel *channel,
                                const fy_item *item, ferry_error *error)
{
    bool visits = fy_transport_shares_pointers(service->transport, channel->peer);
    if (visits && !fy_transport_visit(service->transport, channel->peer)) {
        return fy_transport_state(service->transport, error);
    }
    fy_copy_mapped(service, channel, item, hashes_of(service, channel, item));
    if (visits) {
        fy_transport_leave(service->transport, channel->peer);
    }
    return FERRY_OK;
}

static ferry_status send_bytes(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, ferry_error *error)
{
    switch (item->path) {
    case FERRY_PATH_MAPPED:
        return send_mapped(service, channel, item, error);
    case FERRY_PATH_ATTACH:
        return send_attached(service, channel, item, error);
    case FERRY_PATH_REMOTE:
        return send_remote(service, channel, item, error);
    default:
        return fill_slot(service, channel, item);
    }
}

static ferry_status send_and_signal(ferry_service *service, const fy_channel *channel,
                                    const fy_item *item, ferry_error *error)
{
    if (item->path == FERRY_PATH_STAGED && channel->out_mapped == NULL) {
        return put_slot(service, channel, item, error);
    }
    ferry_status status = send_bytes(service, channel, item, error);
    if (status == FERRY_OK) {
        status = put_hashes(service, channel, item, error);
    }
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal  = arrival_of(service, channel);
    return status == FERRY_OK
               ? ferry_put_signal(service->transport, channel->peer, service->control, 0, &nothing,
                                  &signal, NULL, error)
               : status;
}

static void send_item(ferry_service *service, fy_channel *channel)
{
    fy_exec       *exec  = service->exec;
    const fy_item *item  = &channel->out.items[channel->n_sent];
    int64_t        begin = fy_now_ns();
    ferry_error    why;
    ferry_status   status = send_and_signal(service, channel, item, &why);
    if (status != FERRY_OK) {
        fy_run_fail(service, status, channel->peer, "%s", why.message);
        return;
    }
    channel->n_sent++;
    channel->bytes_out += item->bytes;
    exec->done_bytes += item->bytes;
    fy_statistics_sent(service, channel, item, begin, fy_now_ns());
}

static bool conditions_hold(const fy_exec *exec, const fy_channel *channel, const fy_item *item)
{
    for (uint32_t i = 0; i < item->n_after; i++) {
        const fy_after *after = &channel->afters[item->after + i];
        if (exec->channels[after->channel].n_dealt < after->n_items) {
            return false;
        }
    }
    return true;
}

static bool can_send(const fy_exec *exec, const fy_channel *channel)
{
    if (!channel->entered || channel->n_sent >= channel->out.n_items) {
        return false;
    }
    const fy_item *item = &channel->out.items[channel->n_sent];
    if (item->consumed > channel->n_consumed || !conditions_hold(exec, channel, item)) {
        return false;
    }
    return item->path != FERRY_PATH_STAGED || channel->out_mapped != NULL ||
           free_parcel(exec) != NULL;
}

bool fy_send_step(ferry_service *service)
{
    fy_exec    *exec = service->exec;
    fy_channel *best = NULL;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        if (can_send(exec, channel) && (best == NULL || channel->out.items[channel->n_sent].order <
                                                            best->out.items[best->n_sent].order)) {
            best = channel;
        }
    }
    if (best == NULL) {
        return false;
    }
    send_item(service, best);
    return true;
}
