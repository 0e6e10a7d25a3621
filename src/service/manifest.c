/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sender tells the receiver of each channel: the items, so that the receiver knows where
 * slots are unpacked to, what has arrived when a run fails, and when relayed bytes are there.
 */
#include "service/exec.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

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

static ferry_status garbled(const fy_channel *channel, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u announced items that do not fit what is received from it: %s",
                   channel->peer, what);
}

static ferry_status read_part(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              ferry_error *error)
{
    uint32_t n = channel->n_receives + channel->n_relayed_receives;
    uint64_t place = fy_read_number(reader, n == 0 ? 0 : n - 1);
    uint64_t first = fy_read_number(reader, UINT64_MAX);
    uint64_t bytes = fy_read_number(reader, UINT64_MAX);
    if (reader->failed || n == 0) {
        return garbled(channel, "a part is of no task", error);
    }
    uint32_t receive = place < channel->n_receives
                           ? channel->first_receive + (uint32_t)place
                           : channel->relayed_receives[place - channel->n_receives];
    uint64_t all = service->registry.receives.items[receive].bytes;
    if (first > all || bytes > all - first || bytes == 0) {
        return garbled(channel, "a part is not part of its task", error);
    }
    return fy_lane_part(&channel->in, receive, (uint32_t)place, first, bytes, error);
}

/* One that items to this rank may take. */
static bool is_path(const ferry_service *service, uint32_t path)
{
    bool known = path == FERRY_PATH_MAPPED || path == FERRY_PATH_ATTACH ||
                 path == FERRY_PATH_REMOTE || path == FERRY_PATH_STAGED;
    return known && (path == FERRY_PATH_STAGED || fy_path_allowed(service, path));
}

/* Staged items take the slots in turn, as the sender counts them too: see fy_items_finish. */
static ferry_status check_slot(const fy_channel *channel, const fy_item *item, uint32_t slot,
                               uint32_t n_staged, ferry_error *error)
{
    if (channel->in_slots == 0 || slot != n_staged % channel->in_slots ||
        item->bytes > channel->in_payload) {
        return garbled(channel, "an item does not fit into its slot", error);
    }
    return FERRY_OK;
}

static ferry_status read_item(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              uint32_t *n_staged_inout, ferry_error *error)
{
    uint32_t path = (uint32_t)fy_read_number(reader, FERRY_PATH_ALL);
    uint32_t slot = (uint32_t)fy_read_number(reader, UINT32_MAX);
    uint64_t order = fy_read_number(reader, UINT32_MAX);
    uint64_t n = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    fy_item *item = NULL;
    if (reader->failed || !is_path(service, path) || n == 0) {
        return garbled(channel, "an item has no path, or no parts", error);
    }
    ferry_status status = fy_lane_item(&channel->in, path, order, &item, error);
    for (uint64_t p = 0; status == FERRY_OK && p < n; p++) {
        status = read_part(service, channel, reader, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    item = &channel->in.items[channel->in.n_items - 1];
    item->slot = slot;
    if (path == FERRY_PATH_STAGED) {
        status = check_slot(channel, item, slot, (*n_staged_inout)++, error);
        channel->in_staged = true;
    }
    channel->in_answered = channel->in_answered || channel->in_staged || path == FERRY_PATH_REMOTE;
    return status;
}

ferry_status fy_manifest_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                              ferry_error *error)
{
    fy_reader reader = {.at = in->bytes, .end = in->bytes + in->used};
    ferry_status status = FERRY_OK;
    uint32_t n_staged = 0;
    if (fy_read_number(&reader, UINT32_MAX) != channel->theirs || reader.failed) {
        return garbled(channel, "they are those of another pair", error);
    }
    uint64_t n = fy_read_number(&reader, (uint64_t)(reader.end - reader.at));
    for (uint64_t i = 0; status == FERRY_OK && !reader.failed && i < n; i++) {
        status = read_item(service, channel, &reader, &n_staged, error);
    }
    if (status == FERRY_OK && (reader.failed || reader.at != reader.end)) {
        status = garbled(channel, "they are cut short, or something follows them", error);
    }
    service->exec->in_bytes += channel->in.bytes;
    return status;
}

/*
 * What comes in, by receive and first byte: whether it is all that is wanted, and which item brings
 * what is passed on.
 */
typedef struct arrival {
    uint32_t channel;
    uint32_t item;
    uint64_t first;
    uint64_t bytes;
} arrival;

typedef struct arrivals {
    size_t *of; /* by receive: n_receives + 1 begins in list */
    arrival *list;
} arrivals;

static int compare_arrivals(const void *a, const void *b)
{
    const arrival *x = a;
    const arrival *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Parts of one task mostly come in their order. */
static void sort_arrivals(arrival *list, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        if (list[i].first < list[i - 1].first) {
            qsort(list, n, sizeof *list, compare_arrivals);
            return;
        }
    }
}

/* Puts the parts behind what they are parts of: all->of[r] moves on to the end of receive r. */
static void place_arrivals(const fy_exec *exec, arrivals *all)
{
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_lane *lane = &exec->channels[c].in;
        for (uint32_t i = 0; i < lane->n_items; i++) {
            const fy_item *item = &lane->items[i];
            for (uint32_t p = 0; p < item->n_parts; p++) {
                const fy_part_of *part = &lane->parts[item->first_part + p];
                all->list[all->of[part->end]++] =
                    (arrival){.channel = c, .item = i, .first = part->first, .bytes = part->bytes};
            }
        }
    }
}

static ferry_status list_arrivals(const ferry_service *service, arrivals *all, ferry_error *error)
{
    const fy_exec *exec = service->exec;
    size_t n = service->registry.receives.n;
    size_t at = 0;
    all->of = fy_alloc_zeroed(n + 1, sizeof *all->of);
    if (all->of == NULL) {
        return fy_fail_no_memory(error, "what arrives");
    }
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_lane *lane = &exec->channels[c].in;
        for (size_t p = 0; p < lane->n_parts; p++) {
            all->of[lane->parts[p].end]++;
        }
    }
    for (size_t r = 0; r <= n; r++) { /* counts become begins */
        size_t here = all->of[r];
        all->of[r] = at;
        at += here;
    }
    all->list = fy_alloc(at, sizeof *all->list);
    if (all->list == NULL) {
        return fy_fail_no_memory(error, "what arrives");
    }
    place_arrivals(exec, all);
    memmove(all->of + 1, all->of, n * sizeof *all->of); /* ends become begins again */
    all->of[0] = 0;
    for (size_t r = 0; r < n; r++) {
        sort_arrivals(all->list + all->of[r], all->of[r + 1] - all->of[r]);
    }
    return FERRY_OK;
}

/* Every byte that is wanted of a receive comes once, and no other. */
static ferry_status check_receive(const ferry_service *service, const arrivals *all, size_t receive,
                                  ferry_error *error)
{
    const fy_exec *exec = service->exec;
    const fy_end *end = &service->registry.receives.items[receive];
    const arrival *next = all->list + all->of[receive];
    const arrival *last = all->list + all->of[receive + 1];
    const fy_range whole = {.first = 0, .bytes = end->bytes};
    const fy_range *wants = exec->wants_of == NULL ? &whole : exec->wants + exec->wants_of[receive];
    uint32_t n = exec->wants_of == NULL ? 1 : exec->wants_of[receive + 1] - exec->wants_of[receive];
    for (uint32_t w = 0; w < n; w++) {
        uint64_t at = wants[w].first;
        uint64_t want_end = wants[w].first + wants[w].bytes;
        for (; next < last && next->first == at && next->bytes <= want_end - at; next++) {
            at += next->bytes;
        }
        if (at < want_end) {
            next = NULL;
            break;
        }
    }
    if (next != last) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "rank %u announced items that do not bring each byte of task %llu once",
                       end->peer, (unsigned long long)end->task_id);
    }
    return FERRY_OK;
}

static ferry_status check_arrivals(const ferry_service *service, const arrivals *all,
                                   ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t r = 0; status == FERRY_OK && r < service->registry.receives.n; r++) {
        if (service->registry.receives.items[r].peer != service->world->rank) {
            status = check_receive(service, all, r, error);
        }
    }
    return status;
}

/* The first arrival of a receive that ends behind `first`. */
static size_t seek(const arrivals *all, uint32_t receive, uint64_t first)
{
    size_t begin = all->of[receive];
    size_t end = all->of[receive + 1];
    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        if (all->list[middle].first + all->list[middle].bytes <= first) {
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
                                  const arrivals *all, ferry_error *error)
{
    uint32_t receive = part->end & ~FY_RELAYED;
    uint64_t at = part->first;
    uint64_t end = part->first + part->bytes;
    for (size_t i = seek(all, receive, at); at < end; i++) {
        const arrival *its = &all->list[i];
        if (i >= all->of[receive + 1] || its->first > at) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "the schedule relays bytes to rank %u that do not arrive here",
                           channel->peer);
        }
        ferry_status status = add_condition(channel, item, its->channel, its->item + 1, error);
        if (status != FERRY_OK) {
            return status;
        }
        at = its->first + its->bytes;
    }
    return FERRY_OK;
}

static ferry_status wait_for_relayed(fy_channel *channel, const arrivals *all, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < channel->out.n_items; i++) {
        fy_item *item = &channel->out.items[i];
        for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
            const fy_part_of *part = &channel->out.parts[item->first_part + p];
            if ((part->end & FY_RELAYED) != 0) {
                status = wait_for_part(channel, item, part, all, error);
            }
        }
    }
    return status;
}

ferry_status fy_arrivals_check(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    arrivals all = {.of = NULL};
    ferry_status status = list_arrivals(service, &all, error);
    if (status == FERRY_OK) {
        status = check_arrivals(service, &all, error);
    }
    for (uint32_t c = 0; status == FERRY_OK && c < exec->n_channels; c++) {
        if (exec->channels[c].n_relayed_sends > 0) {
            status = wait_for_relayed(&exec->channels[c], &all, error);
        }
    }
    fy_free(all.of);
    fy_free(all.list);
    return status;
}
