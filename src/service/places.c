/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a receiver tells the sender of each channel: its number for the channel, its ring, the keys
 * of the regions that its buffers lie in, and for each task where the bytes go and which it wants.
 * A sender that reaches none of the buffers is told of none: all goes through slots.
 */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/hash.h"

/* Memory from here on is worth a registration of its own, where a network lies between. */
enum { REGISTER_BYTES = 64 << 10 };

/*
 * Slots are small, so that little is on its way where the network is slow; where it is fast several
 * of them travel as one put.
 */
enum {
    MOST_SLOTS = FY_MOST_WINDOW,
    MOST_DIRECT_SLOTS = 8, /* no network lies between: one is filled while another is emptied */
    GOOD_PAYLOAD = 64 << 10
};

/*
 * Rings
 */

static bool has_bands(const ferry_service *service, const fy_channel_wire *wire)
{
    const fy_end *receives = service->registry.receives.items + wire->first_receive;
    uint32_t i = 0;
    while (i < wire->n_receives && !fy_is_banded(service, &receives[i])) {
        i++;
    }
    return i < wire->n_receives;
}

static bool may_be_staged(const ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    bool receives = wire->n_receives + wire->n_relayed_receives > 0;
    return has_bands(service, wire) ||
           (receives && !(fy_transport_shares_pointers(service->transport, channel->peer) &&
                          channel->direct && !service->registry.has_far));
}

static uint32_t receive_at(const fy_channel_wire *wire, uint32_t place)
{
    return place < wire->n_receives ? wire->first_receive + place
                                    : wire->relayed_receives[place - wire->n_receives];
}

/* Of all that can come by a channel; saturates. */
static uint64_t bytes_of(const ferry_service *service, const fy_channel_wire *wire)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < wire->n_receives + wire->n_relayed_receives; i++) {
        uint64_t its = service->registry.receives.items[receive_at(wire, i)].bytes;
        bytes = bytes > UINT64_MAX - its ? UINT64_MAX : bytes + its;
    }
    return bytes;
}

/*
 * Memory that is never filled costs the time in which it is made: within a node, where that is
 * most of the time of a schedule, a ring is no longer than what comes by it.
 */
static void shorten(const ferry_service *service, fy_channel *channel)
{
    uint64_t bytes = bytes_of(service, fy_wire_of(service, channel));
    uint64_t least = bytes / FY_LEAST_PAYLOAD * FY_LEAST_PAYLOAD + FY_LEAST_PAYLOAD;
    channel->in_payload = least < channel->in_payload ? least : channel->in_payload;
    uint64_t n = bytes / channel->in_payload + 1;
    n = n < MOST_DIRECT_SLOTS ? n : MOST_DIRECT_SLOTS;
    channel->in_slots = n < channel->in_slots ? (uint32_t)n : channel->in_slots;
}

/* Half of the cap is for what comes, half for what goes. */
void fy_rings_lay_out(ferry_service *service)
{
    fy_service_program *program = service->program;
    uint64_t n = 0;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        n += may_be_staged(service, &program->channels[c]);
    }
    if (n == 0) {
        return;
    }
    uint64_t ring = fy_staging_share(service) / n / FY_SLOT_HEAD_BYTES * FY_SLOT_HEAD_BYTES;
    uint32_t n_slots = MOST_SLOTS;
    while (n_slots > 1 && ring / n_slots < GOOD_PAYLOAD + FY_SLOT_HEAD_BYTES) {
        n_slots /= 2;
    }
    uint64_t most = service->options.slot_bytes < FY_MOST_PAYLOAD ? service->options.slot_bytes
                                                                  : (uint64_t)FY_MOST_PAYLOAD;
    uint64_t slot = ring / n_slots / FY_LEAST_PAYLOAD * FY_LEAST_PAYLOAD;
    uint64_t payload = slot < FY_SLOT_HEAD_BYTES + FY_LEAST_PAYLOAD ? 0 : slot - FY_SLOT_HEAD_BYTES;
    if (payload == 0) {
        return; /* no sender has a slot: one that needs it says so */
    }
    most = (most + FY_LEAST_PAYLOAD - 1) / FY_LEAST_PAYLOAD * FY_LEAST_PAYLOAD;
    payload = payload < most ? payload : most;
    uint64_t at = 0;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        if (may_be_staged(service, channel)) {
            channel->in_ring = at;
            channel->in_slots = n_slots;
            channel->in_payload = payload;
            if (channel->direct) {
                shorten(service, channel);
            }
            at += channel->in_slots * (channel->in_payload + FY_SLOT_HEAD_BYTES);
        }
    }
    fy_aside_offer(service, ring, at);
}

/*
 * The receiver
 */

/* A buffer may be longer than what it was registered with: the longest of a base counts. */
static bool lies_in(const ferry_buffer *buffer, const ferry_region *region)
{
    uintptr_t base = (uintptr_t)buffer->base;
    uintptr_t first = (uintptr_t)region->view.base;
    return base >= first && base - first <= region->view.bytes &&
           buffer->bytes <= region->view.bytes - (base - first);
}

/* Whether to register memory that the caller has not helps with this peer. */
static bool may_register(const ferry_service *service, const fy_channel *channel)
{
    return !channel->direct && fy_path_allowed(service, FERRY_PATH_REMOTE) &&
           (fy_transport_capabilities(service->transport, channel->peer) &
            FERRY_CAN_REMOTE_USER_MEMORY) != 0;
}

/* A process of this node opens devices' memory, and copies to it without a slot. */
static bool may_open(const ferry_service *service, const fy_channel *channel, uint32_t kind)
{
    return kind != FERRY_MEMORY_HOST && fy_path_allowed(service, FERRY_PATH_MAPPED) &&
           !fy_transport_shares_pointers(service->transport, channel->peer) &&
           fy_transport_opens(service->transport, channel->peer, kind);
}

/*
 * Of the host's memory only one buffer of a pair gets one: others are staged. And what is the
 * service's own on a device, which goes when this rank likes, is opened by nobody.
 */
static bool helps(const ferry_service *service, const fy_channel *channel, const fy_held *held,
                  uint64_t longest_run, const ferry_buffer *buffer)
{
    return buffer->kind == FERRY_MEMORY_HOST
               ? longest_run >= REGISTER_BYTES && held->back.base == NULL &&
                     may_register(service, channel)
               : held->codes == FY_NONE && may_open(service, channel, buffer->kind);
}

/* Where a buffer's region is kept: pairs are swapped, and the other's may be in either place. */
static ferry_region **slot_of(fy_held *held, const ferry_buffer *buffer)
{
    const ferry_buffer *other = buffer == &held->back ? &held->front : &held->back;
    for (int i = 0; i < 2; i++) {
        if (held->regions[i] != NULL && held->regions[i]->view.base == buffer->base) {
            return &held->regions[i];
        }
    }
    bool is_others = held->regions[0] != NULL && other->base != NULL &&
                     held->regions[0]->view.base == other->base;
    return &held->regions[is_others ? 1 : 0];
}

/* The region of a buffer: its own, or one that the service makes where that helps. */
static ferry_status region_of(ferry_service *service, const fy_channel *channel, fy_held *held,
                              uint64_t longest_run, const ferry_buffer *buffer,
                              ferry_region **region_out, ferry_error *error)
{
    ferry_region *own = buffer->registration;
    *region_out = own;
    if (own != NULL && own->transport == service->transport && lies_in(buffer, own)) {
        return FERRY_OK;
    }
    *region_out = NULL;
    if (!helps(service, channel, held, longest_run, buffer)) {
        return FERRY_OK;
    }
    ferry_region **made = slot_of(held, buffer);
    if (*made == NULL || (*made)->view.base != buffer->base || !lies_in(buffer, *made)) {
        ferry_region_free(*made);
        *made = NULL;
        FY_TRY(ferry_region_register(service->transport, buffer, made, error));
        service->statistics.n_registrations++;
    }
    *region_out = *made;
    return FERRY_OK;
}

/* Things in the order in which they are first seen, each with its number. */
typedef struct numbering {
    uint64_t *items;
    uint32_t n;
    fy_index index;
} numbering;

/* There is room for it. */
static ferry_status number_of(numbering *all, uint64_t item, uint32_t *number_out,
                              ferry_error *error)
{
    uint64_t hash = fy_hash_mix(item, 0);
    fy_index_cursor c = fy_index_first(&all->index, hash);
    while (c.value != FY_INDEX_NONE && all->items[c.value] != item) {
        fy_index_next(&all->index, &c);
    }
    if (c.value == FY_INDEX_NONE) {
        if (!fy_index_insert(&all->index, hash, all->n)) {
            return fy_fail_no_memory(error, "places of tasks");
        }
        c.value = all->n;
        all->items[all->n++] = item;
    }
    *number_out = c.value;
    return FERRY_OK;
}

/* What this rank says of the memory of a channel's receives. */
typedef struct said {
    uint32_t n;        /* places */
    uint32_t *base_of; /* of each: a number of `held` */
    numbering held;
    uint64_t *longest_runs; /* of each held */
    ferry_region **regions; /* two of each held, or NULL, and */
    uint32_t *keys;         /* their numbers of `known` */
    numbering known;        /* regions */
} said;

static ferry_status said_init(said *all, uint32_t n, ferry_error *error)
{
    size_t room = (size_t)n + 1;
    *all = (said){.n = n,
                  .base_of = fy_alloc(room, sizeof(uint32_t)),
                  .held.items = fy_alloc(room, sizeof(uint64_t)),
                  .longest_runs = fy_alloc_zeroed(room, sizeof(uint64_t)),
                  .regions = fy_alloc(2 * room, sizeof(ferry_region *)),
                  .keys = fy_alloc(2 * room, sizeof(uint32_t)),
                  .known.items = fy_alloc(2 * room, sizeof(uint64_t))};
    return all->base_of == NULL || all->held.items == NULL || all->longest_runs == NULL ||
                   all->regions == NULL || all->keys == NULL || all->known.items == NULL
               ? fy_fail_no_memory(error, "places of tasks")
               : FERRY_OK;
}

static void said_cleanup(said *all)
{
    fy_free(all->base_of);
    fy_free(all->held.items);
    fy_free(all->longest_runs);
    fy_free(all->regions);
    fy_free(all->keys);
    fy_free(all->known.items);
    fy_index_cleanup(&all->held.index);
    fy_index_cleanup(&all->known.index);
}

/* What is written next comes first. */
static const ferry_buffer *buffer_of(const fy_held *held, uint32_t spot)
{
    bool has_back = held->back.base != NULL;
    return has_back && spot == 0 ? &held->back : &held->front;
}

static ferry_status list_bases(const ferry_service *service, const fy_channel *channel, said *all,
                               ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < all->n; i++) {
        const fy_end *end = &service->registry.receives.items[receive_at(wire, i)];
        status = number_of(&all->held, end->held, &all->base_of[i], error);
        if (status == FERRY_OK && end->conversion == 0 &&
            end->run_bytes > all->longest_runs[all->base_of[i]]) {
            all->longest_runs[all->base_of[i]] = end->run_bytes;
        }
    }
    return status;
}

static ferry_status find_regions(ferry_service *service, const fy_channel *channel, said *all,
                                 ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < 2 * all->held.n; i++) {
        fy_held *held = &service->registry.held[all->held.items[i / 2]];
        ferry_region **region = &all->regions[i];
        status = region_of(service, channel, held, all->longest_runs[i / 2], buffer_of(held, i % 2),
                           region, error);
        all->keys[i] = FY_NONE;
        if (status == FERRY_OK && *region != NULL) {
            status = number_of(&all->known, (uintptr_t)*region, &all->keys[i], error);
        }
    }
    return status;
}

static void write_keys(const numbering *known, fy_pack *out)
{
    fy_pack_number(out, known->n);
    for (uint32_t i = 0; i < known->n; i++) {
        ferry_region *region = (ferry_region *)(uintptr_t)known->items[i];
        unsigned char key[FERRY_KEY_BYTES];
        size_t n_bytes = 0;
        /* An engine that cannot be reached there has no key: then the bytes take another way. */
        if (ferry_region_export(region, key, sizeof key, &n_bytes, NULL) != FERRY_OK) {
            n_bytes = 0;
        }
        fy_pack_number(out, n_bytes);
        for (size_t b = 0; b < n_bytes; b++) {
            fy_pack_number(out, key[b]);
        }
    }
}

static void write_bases(const ferry_service *service, const said *all, fy_pack *out)
{
    fy_pack_number(out, all->held.n);
    for (uint32_t i = 0; i < 2 * all->held.n; i++) {
        const fy_held *held = &service->registry.held[all->held.items[i / 2]];
        const ferry_buffer *buffer = buffer_of(held, i % 2);
        uint32_t key = all->keys[i];
        const ferry_region *region = all->regions[i];
        fy_pack_number(out, (uintptr_t)buffer->base);
        fy_pack_number(out, buffer->bytes);
        fy_pack_number(out, buffer->kind);
        fy_pack_number(out, (uint32_t)buffer->device);
        fy_pack_number(out, key == FY_NONE ? 0 : (uint64_t)key + 1);
        fy_pack_number(
            out, key == FY_NONE ? 0 : (uint64_t)((char *)buffer->base - (char *)region->view.base));
    }
}

static void write_wants(const fy_wire *wire, uint32_t receive, fy_pack *out)
{
    fy_pack_number(out, wire->wants_of[receive + 1] - wire->wants_of[receive]);
    for (uint32_t w = wire->wants_of[receive]; w < wire->wants_of[receive + 1]; w++) {
        fy_pack_number(out, wire->wants[w].first);
        fy_pack_number(out, wire->wants[w].bytes);
    }
}

static void write_place(const ferry_service *service, uint32_t receive, uint32_t base, fy_pack *out)
{
    const fy_end *end = &service->registry.receives.items[receive];
    const fy_wire *wire = service->wire;
    fy_pack_number(out, base);
    fy_pack_number(out, end->offset);
    fy_pack_number(out, end->run_bytes);
    fy_pack_number(out, fy_end_area(&service->registry, end).bytes);
    fy_pack_number(out, end->n_dims);
    for (uint32_t d = 0; d < 2 * end->n_dims; d++) {
        fy_pack_number(out, service->registry.dims[end->dims + d]);
    }
    if (wire->wants_of == NULL) {
        fy_pack_number(out, 1);
        fy_pack_number(out, 0);
        fy_pack_number(out, end->bytes);
    } else {
        write_wants(wire, receive, out);
    }
}

static void write_ring(const ferry_service *service, const fy_channel *channel, fy_pack *out)
{
    fy_pack_number(out, fy_channel_number(service->program, channel));
    fy_pack_number(out, channel->in_ring);
    fy_pack_number(out, channel->in_slots);
    fy_pack_number(out, channel->in_payload);
    fy_pack_number(out, channel->in_offer.ring);
    fy_pack_number(out, channel->in_offer.heads);
    fy_pack_number(out, channel->in_offer.n_slots);
    fy_pack_number(out, channel->in_offer.payload);
}

/*
 * Whether the peer may reach a buffer by itself: the memory is its own process's too, or has a key.
 * Of what it passes on it is told the lengths with the places.
 */
static bool may_reach(const ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_end *receives = service->registry.receives.items + wire->first_receive;
    if (wire->n_receives == 0 || wire->n_relayed_receives > 0) {
        return wire->n_relayed_receives > 0;
    }
    bool reaches = service->registry.has_regions;
    for (uint32_t i = 0; service->registry.has_far && !reaches && i < wire->n_receives; i++) {
        reaches = may_open(service, channel, service->registry.held[receives[i].held].front.kind);
    }
    bool may = !reaches && may_register(service, channel);
    for (uint32_t i = 0; may && !reaches && i < wire->n_receives; i++) {
        reaches = receives[i].conversion == 0 && receives[i].run_bytes >= REGISTER_BYTES;
    }
    return reaches || fy_transport_shares_pointers(service->transport, channel->peer);
}

/* No keys, no buffers; of each task no more than which bytes are wanted, if not all of all are. */
static void write_wants_alone(const ferry_service *service, const fy_channel *channel, fy_pack *out)
{
    const fy_wire *wire = service->wire;
    const fy_channel_wire *its = fy_wire_of(service, channel);
    fy_pack_number(out, 0);
    fy_pack_number(out, 0);
    fy_pack_number(out, its->n_receives);
    fy_pack_number(out, wire->wants_of == NULL);
    for (uint32_t i = 0; wire->wants_of != NULL && i < its->n_receives; i++) {
        write_wants(wire, its->first_receive + i, out);
    }
}

ferry_status fy_places_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                             ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    write_ring(service, channel, out);
    if (!may_reach(service, channel)) {
        write_wants_alone(service, channel, out);
        return FERRY_OK;
    }
    said all;
    ferry_status status = said_init(&all, wire->n_receives + wire->n_relayed_receives, error);
    FY_THEN(status, list_bases(service, channel, &all, error));
    FY_THEN(status, find_regions(service, channel, &all, error));
    if (status == FERRY_OK) {
        write_keys(&all.known, out);
        write_bases(service, &all, out);
        fy_pack_number(out, all.n);
        for (uint32_t i = 0; i < all.n; i++) {
            write_place(service, receive_at(wire, i), all.base_of[i], out);
        }
    }
    said_cleanup(&all);
    return status;
}
