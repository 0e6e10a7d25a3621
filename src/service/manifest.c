/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sender tells the receiver of each channel: the items, so that the receiver knows where
 * slots are unpacked to, what has arrived when a run fails, and when relayed bytes are there.
 */
#include "service/exec.h"

#include "base/alloc.h"

#include <stdlib.h>

ferry_status fy_manifest_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                               ferry_error *error)
{
    (void)error;
    const fy_lane *lane = &channel->out;
    fy_pack_number(out, fy_channel_number(service->exec, channel));
    fy_pack_number(out, lane->n_items);
    for (size_t i = 0; i < lane->n_items; i++) {
        const fy_item *item = &lane->items[i];
        fy_pack_number(out, item->path);
        fy_pack_number(out, item->slot);
        fy_pack_number(out, channel->in_turns ? item->order : 0);
        fy_pack_number(out, item->n_parts);
        for (uint32_t p = 0; p < item->n_parts; p++) {
            const fy_part_of *part = &lane->parts[item->first_part + p];
            fy_pack_number(out, part->place);
            fy_pack_number(out, part->first);
            fy_pack_number(out, part->bytes);
        }
    }
    return FERRY_OK;
}

static ferry_status garbled(const fy_channel *channel, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u announced items that do not fit what is received from it",
                   channel->peer);
}

static ferry_status read_part(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              ferry_error *error)
{
    uint32_t n     = channel->n_receives + channel->n_relayed_receives;
    uint64_t place = fy_read_number(reader, n == 0 ? 0 : n - 1);
    uint64_t first = fy_read_number(reader, UINT64_MAX);
    uint64_t bytes = fy_read_number(reader, UINT64_MAX);
    if (reader->failed || n == 0) {
        return garbled(channel, error);
    }
    uint32_t receive = place < channel->n_receives
                           ? channel->first_receive + (uint32_t)place
                           : channel->relayed_receives[place - channel->n_receives];
    uint64_t all     = service->registry.receives.items[receive].bytes;
    if (first > all || bytes > all - first || bytes == 0) {
        return garbled(channel, error);
    }
    return fy_lane_part(&channel->in, receive, (uint32_t)place, first, bytes, error);
}

static ferry_status read_item(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              ferry_error *error)
{
    uint32_t     path   = (uint32_t)fy_read_number(reader, FERRY_PATH_ALL);
    uint32_t     slot   = (uint32_t)fy_read_number(reader, UINT32_MAX);
    uint64_t     order  = fy_read_number(reader, UINT32_MAX);
    uint64_t     n      = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    fy_item     *item   = NULL;
    ferry_status status = fy_lane_item(&channel->in, path, order, &item, error);
    for (uint64_t p = 0; status == FERRY_OK && p < n; p++) {
        status = read_part(service, channel, reader, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    item       = &channel->in.items[channel->in.n_items - 1];
    item->slot = slot;
    if (path == FERRY_PATH_STAGED &&
        (slot >= channel->in_slots || item->bytes > channel->in_payload)) {
        return garbled(channel, error);
    }
    channel->in_staged   = channel->in_staged || path == FERRY_PATH_STAGED;
    channel->in_answered = channel->in_answered || channel->in_staged || path == FERRY_PATH_REMOTE;
    return FERRY_OK;
}

ferry_status fy_manifest_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                              ferry_error *error)
{
    fy_reader    reader = {.at = in->bytes, .end = in->bytes + in->used};
    ferry_status status = FERRY_OK;
    channel->theirs     = (uint32_t)fy_read_number(&reader, UINT32_MAX);
    uint64_t n          = fy_read_number(&reader, (uint64_t)(reader.end - reader.at));
    for (uint64_t i = 0; status == FERRY_OK && !reader.failed && i < n; i++) {
        status = read_item(service, channel, &reader, error);
    }
    if (status == FERRY_OK && (reader.failed || reader.at != reader.end)) {
        status = garbled(channel, error);
    }
    service->exec->in_bytes += channel->in.bytes;
    return status;
}

/*
 * Relays: what comes in, by receive and first byte, so that what is passed on can find the item
 * that brings it.
 */
typedef struct arrival {
    uint32_t receive;
    uint32_t channel;
    uint32_t item;
    uint64_t first;
    uint64_t bytes;
} arrival;

static int compare_arrivals(const void *a, const void *b)
{
    const arrival *x = a;
    const arrival *y = b;
    if (x->receive != y->receive) {
        return x->receive < y->receive ? -1 : 1;
    }
    return x->first < y->first ? -1 : x->first > y->first;
}

static ferry_status list_arrivals(const fy_exec *exec, arrival **list_out, size_t *n_out,
                                  ferry_error *error)
{
    size_t n = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        n += exec->channels[c].in.n_parts;
    }
    arrival *list = fy_alloc(n, sizeof *list);
    if (list == NULL) {
        return fy_fail_no_memory(error, "relays");
    }
    size_t at = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_lane *lane = &exec->channels[c].in;
        for (uint32_t i = 0; i < lane->n_items; i++) {
            const fy_item *item = &lane->items[i];
            for (uint32_t p = 0; p < item->n_parts; p++) {
                const fy_part_of *part = &lane->parts[item->first_part + p];
                list[at++]             = (arrival){.receive = part->end,
                                                   .channel = c,
                                                   .item    = i,
                                                   .first   = part->first,
                                                   .bytes   = part->bytes};
            }
        }
    }
    qsort(list, n, sizeof *list, compare_arrivals);
    *list_out = list;
    *n_out    = n;
    return FERRY_OK;
}

/* The first arrival of a receive that ends behind `first`. */
static size_t seek(const arrival *list, size_t n, uint32_t receive, uint64_t first)
{
    size_t begin = 0;
    size_t end   = n;
    while (begin < end) {
        size_t         middle = begin + (end - begin) / 2;
        const arrival *a      = &list[middle];
        if (a->receive < receive || (a->receive == receive && a->first + a->bytes <= first)) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

/* One condition per channel: the latest item that matters. */
static ferry_status add_condition(fy_channel *channel, fy_item *item, uint32_t other,
                                  uint32_t n_items, ferry_error *error)
{
    for (uint32_t i = 0; i < item->n_after; i++) {
        fy_after *after = &channel->afters[item->after + i];
        if (after->channel == other) {
            after->n_items = after->n_items > n_items ? after->n_items : n_items;
            return FERRY_OK;
        }
    }
    if (!fy_reserve((void **)&channel->afters, &channel->after_capacity, channel->n_afters + 1,
                    sizeof *channel->afters)) {
        return fy_fail_no_memory(error, "relays");
    }
    if (item->n_after == 0) {
        item->after = (uint32_t)channel->n_afters;
    }
    channel->afters[channel->n_afters++] = (fy_after){.channel = other, .n_items = n_items};
    item->n_after++;
    return FERRY_OK;
}

static ferry_status wait_for_part(fy_channel *channel, fy_item *item, const fy_part_of *part,
                                  const arrival *list, size_t n, ferry_error *error)
{
    uint32_t receive = part->end & ~FY_RELAYED;
    uint64_t at      = part->first;
    uint64_t end     = part->first + part->bytes;
    for (size_t i = seek(list, n, receive, at); at < end; i++) {
        if (i >= n || list[i].receive != receive || list[i].first > at) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "the schedule relays bytes to rank %u that do not arrive here",
                           channel->peer);
        }
        ferry_status status =
            add_condition(channel, item, list[i].channel, list[i].item + 1, error);
        if (status != FERRY_OK) {
            return status;
        }
        at = list[i].first + list[i].bytes;
    }
    return FERRY_OK;
}

ferry_status fy_relays_wait(ferry_service *service, ferry_error *error)
{
    fy_exec     *exec   = service->exec;
    arrival     *list   = NULL;
    size_t       n      = 0;
    ferry_status status = FERRY_OK;
    for (uint32_t c = 0; status == FERRY_OK && c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        if (channel->n_relayed_sends == 0) {
            continue;
        }
        if (list == NULL) {
            status = list_arrivals(exec, &list, &n, error);
        }
        for (size_t i = 0; status == FERRY_OK && i < channel->out.n_items; i++) {
            fy_item *item = &channel->out.items[i];
            for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
                const fy_part_of *part = &channel->out.parts[item->first_part + p];
                if ((part->end & FY_RELAYED) != 0) {
                    status = wait_for_part(channel, item, part, list, n, error);
                }
            }
        }
    }
    fy_free(list);
    return status;
}
