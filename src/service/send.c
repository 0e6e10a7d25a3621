/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank does to send: one item at a time, whichever can go and comes first. */
#include "service/send.h"

#include "base/copy.h"
#include "base/hash.h"
#include "transport/host.h"

#include <string.h>

fy_origin fy_origin_of(const ferry_service *service, const fy_part_of *part)
{
    const fy_registry *registry = &service->registry;
    bool relayed = (part->end & FY_RELAYED) != 0;
    const fy_end *end = relayed ? &registry->receives.items[part->end & ~FY_RELAYED]
                                : &registry->sends.items[part->end];
    const fy_held *held = &registry->held[end->held];
    return (fy_origin){.area = fy_end_area(registry, end),
                       .base = relayed ? fy_held_target_base(held) : fy_held_base(held)};
}

uint64_t *fy_hashes_of(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *hashes = service->exec->hashes;
    return hashes == NULL ? NULL : hashes + channel->own_hashes + item->first_part;
}

void fy_hash_parts(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    for (uint32_t p = 0; hashes != NULL && p < item->n_parts; p++) {
        const fy_part_of *part = fy_part_at(channel, item, p);
        fy_origin from = fy_origin_of(service, part);
        hashes[p] = fy_area_hash(&from.area, from.base, part->first, part->bytes);
    }
}

/*
 * By the kernel
 */

/* Lists of pieces, handed over when they are full. */
typedef struct vectors {
    ferry_service *service;
    const fy_channel *channel;
    size_t n_here, n_there;
    ferry_status status;
    ferry_error *error;
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
    fy_exec *exec = v->service->exec;
    const fy_place *place = &v->channel->places[part->place];
    fy_origin from = fy_origin_of(v->service, part);
    fy_area area = fy_place_area(v->channel, place);
    fy_area_walk here = fy_area_walk_of(&from.area, part->first, part->bytes);
    fy_area_walk there = fy_area_walk_of(&area, part->first, part->bytes);
    uint64_t here_at = 0, there_at = 0, here_n = 0, there_n = 0;
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
                                                 .iov_len = (size_t)n};
        exec->there[v->n_there++] = (struct iovec){
            .iov_base = (char *)(uintptr_t)place->spots[exec->side].address + there_at,
            .iov_len = (size_t)n};
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
    fy_hash_parts(service, channel, item);
    for (uint32_t p = 0; p < item->n_parts; p++) {
        list_part(&v, fy_part_at(channel, item, p));
    }
    hand_over(&v);
    return v.status;
}

/*
 * Through slots
 */

static void pack_item(ferry_service *service, const fy_channel *channel, const fy_item *item,
                      char *payload)
{
    uint64_t *hashes = fy_hashes_of(service, channel, item);
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_part_of *part = fy_part_at(channel, item, p);
        fy_origin from = fy_origin_of(service, part);
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
    uint64_t number = (uint64_t)(item - channel->out.items);
    fy_slot_head head = {.stamp = (uint64_t)service->exec->run << 32 | number,
                         .bytes = item->bytes};
    if (service->options.checksum == FERRY_CHECKSUM_PATH) {
        head.hash = fy_hash64(payload, (size_t)item->bytes);
    }
    memcpy(slot, &head, sizeof head);
}

void fy_slot_fill(ferry_service *service, const fy_channel *channel, const fy_item *item,
                  char *slot)
{
    pack_item(service, channel, item, slot + FY_SLOT_HEAD_BYTES);
    write_head(service, channel, item, slot + FY_SLOT_HEAD_BYTES, slot);
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
    return ferry_put(service->transport, channel->peer, service->hashes,
                     channel->out_hashes + items->first_part * sizeof *hashes, &source, NULL,
                     error);
}

ferry_signal fy_arrival_of(const ferry_service *service, const fy_channel *channel, uint32_t n)
{
    return (ferry_signal){.region = service->control,
                          .offset = fy_word_offset(channel->theirs, FY_WORD_ARRIVED),
                          .value = (uint64_t)service->exec->run << 32 | (channel->n_sent + n),
                          .op = FERRY_SIGNAL_SET};
}

static ferry_status send_mapped(ferry_service *service, const fy_channel *channel,
                                const fy_item *item, ferry_error *error)
{
    bool visits = fy_transport_shares_pointers(service->transport, channel->peer);
    if (visits && !fy_transport_visit(service->transport, channel->peer)) {
        return fy_transport_state(service->transport, error);
    }
    fy_copy_mapped(service, channel, item, fy_hashes_of(service, channel, item));
    if (visits) {
        fy_transport_leave(service->transport, channel->peer);
    }
    return FERRY_OK;
}

static ferry_status send_direct(ferry_service *service, const fy_channel *channel,
                                const fy_item *item, ferry_error *error)
{
    switch (item->path) {
    case FERRY_PATH_MAPPED:
        return send_mapped(service, channel, item, error);
    case FERRY_PATH_ATTACH:
        return send_attached(service, channel, item, error);
    default:
        fy_slot_fill(service, channel, item,
                     channel->out_mapped +
                         item->slot * (channel->out_payload + FY_SLOT_HEAD_BYTES));
        return FERRY_OK;
    }
}

/* One item within the node: its bytes are in place before the word is raised. */
static ferry_status send_one(ferry_service *service, const fy_channel *channel, const fy_item *item,
                             ferry_error *error)
{
    ferry_status status = send_direct(service, channel, item, error);
    if (status == FERRY_OK) {
        status = fy_hashes_put(service, channel, item, 1, error);
    }
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = fy_arrival_of(service, channel, 1);
    return status == FERRY_OK
               ? ferry_put_signal(service->transport, channel->peer, service->control, 0, &nothing,
                                  &signal, NULL, error)
               : status;
}

static void send_items(ferry_service *service, fy_channel *channel)
{
    fy_exec *exec = service->exec;
    const fy_item *item = &channel->out.items[channel->n_sent];
    bool burst = fy_burst_takes(channel, item);
    uint32_t n = burst ? fy_burst_length(service, channel) : 1;
    int64_t begin = fy_now_ns();
    ferry_error why;
    ferry_status status =
        burst ? fy_burst_send(service, channel, n, &why) : send_one(service, channel, item, &why);
    if (status != FERRY_OK) {
        fy_run_fail(service, status, channel->peer, "%s", why.message);
        return;
    }
    int64_t end = fy_now_ns();
    channel->n_sent += n;
    exec->n_away += channel->in_turns ? n : 0;
    for (uint32_t i = 0; i < n; i++) {
        channel->bytes_out += item[i].bytes;
        exec->done_bytes += item[i].bytes;
        fy_statistics_sent(service, channel, &item[i], begin, end);
        begin = end; /* the burst's time is its first item's */
    }
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

bool fy_item_may_go(const fy_exec *exec, const fy_channel *channel, uint32_t index)
{
    const fy_item *item = &channel->out.items[index];
    return item->consumed <= channel->n_consumed && (!channel->in_turns || index < channel->turn) &&
           conditions_hold(exec, channel, item);
}

static bool can_send(const ferry_service *service, const fy_channel *channel)
{
    if (!channel->entered || channel->n_sent >= channel->out.n_items ||
        !fy_item_may_go(service->exec, channel, channel->n_sent)) {
        return false;
    }
    if (channel->in_turns && fy_turns_room(service->exec) == 0) {
        return false;
    }
    return !fy_burst_takes(channel, &channel->out.items[channel->n_sent]) ||
           (fy_burst_length(service, channel) > 0 &&
            fy_transport_has_room(service->transport, channel->peer));
}

/*
 * Whose item comes first, by a heap of the channels that can send. A look at all channels is worth
 * an item where there are few of them. Where there are many it is worth several, for what comes in
 * is looked at in between, and that takes as long: but no longer than a moment.
 */
enum { CHANNELS_PER_ITEM = 32 };
static const int64_t MOMENT_NS = 1000000;

static bool goes_before(const fy_exec *exec, uint32_t a, uint32_t b)
{
    const fy_channel *x = &exec->channels[a], *y = &exec->channels[b];
    uint64_t first = x->out.items[x->n_sent].order, second = y->out.items[y->n_sent].order;
    return first != second ? first < second : a < b;
}

static void sift_down(fy_exec *exec, size_t n, size_t i)
{
    uint32_t moved = exec->ready[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && goes_before(exec, exec->ready[child + 1], exec->ready[child])) {
            child++;
        }
        if (goes_before(exec, moved, exec->ready[child])) {
            break;
        }
        exec->ready[i] = exec->ready[child];
    }
    exec->ready[i] = moved;
}

static size_t find_ready(ferry_service *service)
{
    fy_exec *exec = service->exec;
    size_t n = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        if (can_send(service, &exec->channels[c])) {
            exec->ready[n++] = c;
        }
    }
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(exec, n, i);
    }
    return n;
}

/* The first has sent: in front comes whoever is first now and can. How many are left. */
static size_t find_next(ferry_service *service, size_t n)
{
    fy_exec *exec = service->exec;
    do {
        if (!can_send(service, &exec->channels[exec->ready[0]])) {
            exec->ready[0] = exec->ready[--n];
        }
        if (n > 0) {
            sift_down(exec, n, 0);
        }
    } while (n > 0 && !can_send(service, &exec->channels[exec->ready[0]]));
    return n;
}

bool fy_send_step(ferry_service *service)
{
    fy_exec *exec = service->exec;
    size_t n = find_ready(service);
    if (n == 0) {
        return false;
    }
    uint32_t left = 1 + exec->n_channels / CHANNELS_PER_ITEM;
    int64_t until = fy_now_ns() + MOMENT_NS;
    while (n > 0 && left > 0 && exec->status == FERRY_OK) {
        send_items(service, &exec->channels[exec->ready[0]]);
        left = fy_now_ns() < until ? left - 1 : 0;
        n = left > 0 ? find_next(service, n) : n;
    }
    return true;
}
