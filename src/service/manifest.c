/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sender tells the receiver of each channel: the items, so that the receiver knows where
 * slots are unpacked to, what has arrived when a run fails, and when relayed bytes are there.
 */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* Of what is sent, or passed on. */
static bool is_whole(const ferry_service *service, const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = (part->end & FY_RELAYED) != 0
                            ? &registry->receives.items[part->end & ~FY_RELAYED]
                            : &registry->sends.items[part->end];
    return part->first == 0 && part->bytes == end->bytes;
}

/* How many of the n parts behind this one are whole tasks at the next places: those need no words.
 */
static uint32_t count_followers(const ferry_service *service, const fy_item_part *part, uint32_t n)
{
    uint32_t i = 1;
    while (i <= n && part[i].place == part->place + i && is_whole(service, &part[i])) {
        i++;
    }
    return i - 1;
}

static void write_item(const ferry_service *service, const fy_channel *channel, const fy_item *item,
                       fy_pack *out)
{
    fy_pack_number(out, item->path);
    fy_pack_number(out, item->slot);
    fy_pack_number(out, channel->in_turns ? item->order : 0);
    fy_pack_number(out, item->n_parts);
    for (uint32_t p = 0; p < item->n_parts;) {
        const fy_item_part *part = &channel->out.parts[item->first_part + p];
        uint32_t n_followers = count_followers(service, part, item->n_parts - p - 1);
        fy_pack_number(out, part->place);
        fy_pack_number(out, part->first);
        fy_pack_number(out, part->bytes);
        fy_pack_number(out, n_followers);
        p += 1 + n_followers;
    }
}

ferry_status fy_manifest_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                               ferry_error *error)
{
    (void)error;
    const fy_lane *lane = &channel->out;
    fy_pack_number(out, fy_channel_number(service->program, channel));
    fy_pack_number(out, channel->out_aside);
    fy_pack_number(out, lane->n_items);
    for (size_t i = 0; i < lane->n_items; i++) {
        write_item(service, channel, &lane->items[i], out);
    }
    return FERRY_OK;
}

static ferry_status garbled(const fy_channel *channel, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u announced items that do not fit what is received from it: %s",
                   channel->peer, what);
}

/* What is read of a channel's items. */
typedef struct reading {
    ferry_service *service;
    fy_channel *channel;
    fy_reader in;
    uint32_t n_places;
    uint32_t n_staged;    /* items so far */
    uint32_t n_followers; /* parts so far that took no bytes: a place can be one once */
} reading;

static const fy_end *receive_of(const reading *r, uint32_t place, uint32_t *receive_out)
{
    const fy_channel_wire *wire = fy_wire_of(r->service, r->channel);
    *receive_out = place < wire->n_receives ? wire->first_receive + place
                                            : wire->relayed_receives[place - wire->n_receives];
    return &r->service->registry.receives.items[*receive_out];
}

/*
 * Takes note of a part. One that is cast here has whole elements, which begin at multiples of one
 * in the item, as its blocks do.
 */
static ferry_status take_part(reading *r, uint32_t receive, uint32_t place, uint64_t first,
                              uint64_t bytes, ferry_error *error)
{
    const fy_registry *registry = &r->service->registry;
    fy_lane *in = &r->channel->in;
    uint64_t unit = fy_end_unit(registry, &registry->receives.items[receive]);
    if (first % unit != 0 || bytes % unit != 0 || in->items[in->n_items - 1].bytes % unit != 0) {
        return garbled(r->channel, "an element is cut in two", error);
    }
    return fy_lane_part(in, receive, place, first, bytes, error);
}

static ferry_status read_followers(reading *r, uint32_t place, uint32_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (n > r->n_places - place - 1 || n > r->n_places - r->n_followers) {
        return garbled(r->channel, "a part is of no task", error);
    }
    r->n_followers += n;
    for (uint32_t i = 1; status == FERRY_OK && i <= n; i++) {
        uint32_t receive;
        uint64_t bytes = receive_of(r, place + i, &receive)->bytes;
        status = take_part(r, receive, place + i, 0, bytes, error);
    }
    return status;
}

/* A part, and whole tasks behind it: how many of the n parts that are left. */
static ferry_status read_parts(reading *r, uint64_t n, uint64_t *n_read_out, ferry_error *error)
{
    uint32_t place = (uint32_t)fy_read_number(&r->in, r->n_places == 0 ? 0 : r->n_places - 1);
    uint64_t first = fy_read_number(&r->in, UINT64_MAX);
    uint64_t bytes = fy_read_number(&r->in, UINT64_MAX);
    uint64_t n_followers = fy_read_number(&r->in, n - 1);
    if (r->in.failed || r->n_places == 0) {
        return garbled(r->channel, "a part is of no task", error);
    }
    uint32_t receive;
    uint64_t all = receive_of(r, place, &receive)->bytes;
    if (first > all || bytes > all - first || bytes == 0) {
        return garbled(r->channel, "a part is not part of its task", error);
    }
    *n_read_out = 1 + n_followers;
    FY_TRY(take_part(r, receive, place, first, bytes, error));
    return read_followers(r, place, (uint32_t)n_followers, error);
}

/* One that items to this rank may take. */
static bool is_path(const ferry_service *service, uint32_t path)
{
    bool known =
        path == FERRY_PATH_MAPPED || path == FERRY_PATH_REMOTE || path == FERRY_PATH_STAGED;
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

static ferry_status read_item(reading *r, ferry_error *error)
{
    fy_channel *channel = r->channel;
    uint32_t path = (uint32_t)fy_read_number(&r->in, FERRY_PATH_ALL);
    uint32_t slot = (uint32_t)fy_read_number(&r->in, UINT32_MAX);
    uint64_t order = fy_read_number(&r->in, UINT32_MAX);
    uint64_t n = fy_read_number(&r->in, UINT32_MAX);
    fy_item *item = NULL;
    if (r->in.failed || !is_path(r->service, path) || n == 0) {
        return garbled(channel, "an item has no path, or no parts", error);
    }
    FY_TRY(fy_lane_item(&channel->in, path, order, &item, error));
    uint64_t n_read = 0;
    for (uint64_t left = n; left > 0; left -= n_read) {
        FY_TRY(read_parts(r, left, &n_read, error));
    }
    ferry_status status = FERRY_OK;
    item = &channel->in.items[channel->in.n_items - 1];
    item->slot = slot;
    if (path == FERRY_PATH_STAGED) {
        status = check_slot(channel, item, slot, r->n_staged++, error);
        channel->in_staged = true;
    }
    channel->in_answered = channel->in_answered || channel->in_staged || path == FERRY_PATH_REMOTE;
    return status;
}

/* Which of the rings it takes. */
static ferry_status read_ring(fy_channel *channel, bool is_aside, ferry_error *error)
{
    const fy_offer *offer = &channel->in_offer;
    if (is_aside && offer->n_slots == 0) {
        return garbled(channel, "they come by slots that were not offered", error);
    }
    if (is_aside) {
        channel->in_aside = true;
        channel->in_ring = offer->ring;
        channel->in_heads = offer->heads;
        channel->in_slots = offer->n_slots;
        channel->in_payload = offer->payload;
    }
    return FERRY_OK;
}

ferry_status fy_manifest_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                              ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    reading r = {.service = service,
                 .channel = channel,
                 .in = fy_reader_of(in->bytes, in->used),
                 .n_places = wire->n_receives + wire->n_relayed_receives};
    ferry_status status = FERRY_OK;
    if (fy_read_number(&r.in, UINT32_MAX) != channel->theirs || r.in.failed) {
        return garbled(channel, "they are those of another pair", error);
    }
    FY_TRY(read_ring(channel, fy_read_number(&r.in, 1) != 0, error));
    uint64_t n = fy_read_number(&r.in, fy_read_left(&r.in));
    for (uint64_t i = 0; status == FERRY_OK && !r.in.failed && i < n; i++) {
        status = read_item(&r, error);
    }
    if (status == FERRY_OK && !fy_read_all(&r.in)) {
        status = garbled(channel, "they are cut short, or something follows them", error);
    }
    service->program->in_bytes += channel->in.bytes;
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
static void place_arrivals(const fy_service_program *program, arrivals *all)
{
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_lane *lane = &program->channels[c].in;
        for (uint32_t i = 0; i < lane->n_items; i++) {
            const fy_item *item = &lane->items[i];
            for (uint32_t p = 0; p < item->n_parts; p++) {
                const fy_item_part *part = &lane->parts[item->first_part + p];
                all->list[all->of[part->end]++] =
                    (arrival){.channel = c, .item = i, .first = part->first, .bytes = part->bytes};
            }
        }
    }
}

static ferry_status list_arrivals(const ferry_service *service, arrivals *all, ferry_error *error)
{
    const fy_service_program *program = service->program;
    size_t n = service->registry.receives.n;
    size_t at = 0;
    all->of = fy_alloc_zeroed(n + 1, sizeof *all->of);
    FY_TRY(fy_check_memory(all->of != NULL, "what arrives", error));
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_lane *lane = &program->channels[c].in;
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
    FY_TRY(fy_check_memory(all->list != NULL, "what arrives", error));
    place_arrivals(program, all);
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
    const fy_wire *wire = service->wire;
    const fy_end *end = &service->registry.receives.items[receive];
    const arrival *next = all->list + all->of[receive];
    const arrival *last = all->list + all->of[receive + 1];
    const fy_range whole = {.first = 0, .bytes = end->bytes};
    const fy_range *wants = wire->wants_of == NULL ? &whole : wire->wants + wire->wants_of[receive];
    uint32_t n = wire->wants_of == NULL ? 1 : wire->wants_of[receive + 1] - wire->wants_of[receive];
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
    FY_BISECT(size_t, begin, all->of[receive], all->of[receive + 1], middle,
              all->list[middle].first + all->list[middle].bytes <= first);
    return begin;
}

/* One condition per channel: the latest item that matters. Items come in order. */
static ferry_status add_condition(fy_channel *channel, uint32_t item, uint32_t other,
                                  uint32_t n_items, ferry_error *error)
{
    for (size_t i = channel->n_afters; i > 0 && channel->afters[i - 1].item == item; i--) {
        fy_after *after = &channel->afters[i - 1];
        if (after->channel == other) {
            after->n_items = after->n_items > n_items ? after->n_items : n_items;
            return FERRY_OK;
        }
    }
    if (!FY_RESERVE(channel->afters, channel->after_capacity, channel->n_afters + 1)) {
        return fy_fail_no_memory(error, "relays");
    }
    channel->afters[channel->n_afters++] =
        (fy_after){.item = item, .channel = other, .n_items = n_items};
    return FERRY_OK;
}

static ferry_status wait_for_part(fy_channel *channel, uint32_t item, const fy_item_part *part,
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
        FY_TRY(add_condition(channel, item, its->channel, its->item + 1, error));
        at = its->first + its->bytes;
    }
    return FERRY_OK;
}

static ferry_status wait_for_relayed(fy_channel *channel, const arrivals *all, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < channel->out.n_items; i++) {
        const fy_item *item = &channel->out.items[i];
        for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
            const fy_item_part *part = &channel->out.parts[item->first_part + p];
            if ((part->end & FY_RELAYED) != 0) {
                status = wait_for_part(channel, (uint32_t)i, part, all, error);
            }
        }
    }
    return status;
}

ferry_status fy_arrivals_check(ferry_service *service, ferry_error *error)
{
    fy_service_program *program = service->program;
    arrivals all = {.of = NULL};
    ferry_status status = list_arrivals(service, &all, error);
    FY_THEN(status, check_arrivals(service, &all, error));
    for (uint32_t c = 0; status == FERRY_OK && c < program->n_channels; c++) {
        if (program->channels[c].relays) {
            status = wait_for_relayed(&program->channels[c], &all, error);
        }
    }
    fy_free(all.of);
    fy_free(all.list);
    return status;
}
