/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a receiver tells the sender of each channel: its number for the channel, its ring, the keys
 * of the regions that its buffers lie in, and for each task where the bytes go and which it wants.
 */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"

#include <string.h>

/* Memory from here on is worth a registration of its own, where a network lies between. */
enum { REGISTER_BYTES = 64 << 10 };

/*
 * Slots are small, so that little is on its way where the network is slow; where it is fast several
 * of them travel as one put.
 */
enum {
    MOST_PAYLOAD = (128 << 10) - FY_SLOT_HEAD_BYTES,
    MOST_SLOTS = FY_MOST_WINDOW,
    MOST_DIRECT_SLOTS = 8, /* no network lies between: one is filled while another is emptied */
    LEAST_PAYLOAD = 64,
    GOOD_PAYLOAD = 64 << 10
};

/*
 * Rings
 */

static bool may_be_staged(const ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    bool receives = wire->n_receives + wire->n_relayed_receives > 0;
    return receives && !(fy_transport_shares_pointers(service->transport, channel->peer) &&
                         channel->direct && !service->wire->has_far);
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
    uint64_t least = bytes / LEAST_PAYLOAD * LEAST_PAYLOAD + LEAST_PAYLOAD;
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
    uint64_t ring = service->options.memory_cap / 2 / n / FY_SLOT_HEAD_BYTES * FY_SLOT_HEAD_BYTES;
    uint32_t n_slots = MOST_SLOTS;
    while (n_slots > 1 && ring / n_slots < GOOD_PAYLOAD + FY_SLOT_HEAD_BYTES) {
        n_slots /= 2;
    }
    uint64_t most = service->options.slot_bytes < MOST_PAYLOAD ? service->options.slot_bytes
                                                               : (uint64_t)MOST_PAYLOAD;
    uint64_t slot = ring / n_slots / LEAST_PAYLOAD * LEAST_PAYLOAD;
    uint64_t payload = slot < FY_SLOT_HEAD_BYTES + LEAST_PAYLOAD ? 0 : slot - FY_SLOT_HEAD_BYTES;
    if (payload == 0) {
        return; /* no sender has a slot: one that needs it says so */
    }
    most = (most + LEAST_PAYLOAD - 1) / LEAST_PAYLOAD * LEAST_PAYLOAD;
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

/*
 * The region of a buffer: its own, or one that the service makes where that helps. Only one buffer
 * of a pair gets one: pairs that the caller did not register are staged.
 */
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
    uint32_t can = fy_transport_capabilities(service->transport, channel->peer);
    bool helps = !channel->direct && buffer->kind == FERRY_MEMORY_HOST &&
                 (can & FERRY_CAN_REMOTE_USER_MEMORY) != 0 && held->back.base == NULL &&
                 longest_run >= REGISTER_BYTES && fy_path_allowed(service, FERRY_PATH_REMOTE);
    if (!helps) {
        return FERRY_OK;
    }
    if (held->region == NULL || held->region->view.base != buffer->base ||
        !lies_in(buffer, held->region)) {
        ferry_region_free(held->region);
        held->region = NULL;
        FY_TRY(ferry_region_register(service->transport, buffer, &held->region, error));
        service->statistics.n_registrations++;
    }
    *region_out = held->region;
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
        if (status == FERRY_OK && end->run_bytes > all->longest_runs[all->base_of[i]]) {
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

static void write_place(const ferry_service *service, uint32_t receive, uint32_t base, fy_pack *out)
{
    const fy_end *end = &service->registry.receives.items[receive];
    const fy_wire *wire = service->wire;
    fy_pack_number(out, base);
    fy_pack_number(out, end->offset);
    fy_pack_number(out, end->run_bytes);
    fy_pack_number(out, end->bytes);
    fy_pack_number(out, end->n_dims);
    for (uint32_t d = 0; d < 2 * end->n_dims; d++) {
        fy_pack_number(out, service->registry.dims[end->dims + d]);
    }
    if (wire->wants_of == NULL) {
        fy_pack_number(out, 1);
        fy_pack_number(out, 0);
        fy_pack_number(out, end->bytes);
        return;
    }
    fy_pack_number(out, wire->wants_of[receive + 1] - wire->wants_of[receive]);
    for (uint32_t w = wire->wants_of[receive]; w < wire->wants_of[receive + 1]; w++) {
        fy_pack_number(out, wire->wants[w].first);
        fy_pack_number(out, wire->wants[w].bytes);
    }
}

static void write_ring(const ferry_service *service, const fy_channel *channel, fy_pack *out)
{
    fy_pack_number(out, fy_channel_number(service->program, channel));
    fy_pack_number(out, channel->in_ring);
    fy_pack_number(out, channel->in_slots);
    fy_pack_number(out, channel->in_payload);
}

ferry_status fy_places_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                             ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    said all;
    ferry_status status = said_init(&all, wire->n_receives + wire->n_relayed_receives, error);
    FY_THEN(status, list_bases(service, channel, &all, error));
    FY_THEN(status, find_regions(service, channel, &all, error));
    if (status == FERRY_OK) {
        write_ring(service, channel, out);
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

/*
 * The sender
 */

/*
 * What is read here ends as addresses that this rank writes to, so nothing is believed: an area is
 * made anew and held against its buffer, a buffer against its region, and a region against what
 * the engine that maps it knows of it.
 */

static ferry_status garbled(const fy_channel *channel, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u answered with places that do not fit what is sent to it: %s",
                   channel->peer, what);
}

/* A region of the peer's, or NULL: a key that cannot be imported does not help, and is no error. */
static ferry_status import_key(ferry_service *service, const fy_channel *channel, const void *key,
                               size_t n_bytes, ferry_region **region_out, ferry_error *error)
{
    ferry_region *region = NULL;
    ferry_error why;
    if (n_bytes == 0 ||
        ferry_region_import(service->transport, key, n_bytes, &region, &why) != FERRY_OK) {
        return FERRY_OK;
    }
    if (region->view.owner != channel->peer) {
        uint32_t owner = region->view.owner;
        ferry_region_free(region);
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "rank %u answered with the key of a region of rank %u", channel->peer,
                       owner);
    }
    service->statistics.n_registrations++;
    *region_out = region;
    return FERRY_OK;
}

static ferry_status read_keys(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              ferry_error *error)
{
    fy_channel_wire *wire = fy_wire_of(service, channel);
    uint64_t n = fy_read_number(reader, fy_read_left(reader));
    if (reader->failed) {
        return garbled(channel, "their keys are cut short", error);
    }
    channel->keys = fy_alloc_zeroed(n + 1, sizeof(ferry_region *));
    wire->key_bases = fy_alloc_zeroed(n + 1, sizeof(char *));
    if (channel->keys == NULL || wire->key_bases == NULL) {
        return fy_fail_no_memory(error, "keys of regions");
    }
    for (uint64_t i = 0; i < n; i++) {
        unsigned char key[FERRY_KEY_BYTES];
        uint64_t n_bytes = fy_read_number(reader, FERRY_KEY_BYTES);
        for (uint64_t b = 0; b < n_bytes; b++) {
            key[b] = (unsigned char)fy_read_number(reader, 255);
        }
        if (reader->failed) {
            return garbled(channel, "their keys are cut short", error);
        }
        channel->n_keys++;
        FY_TRY(import_key(service, channel, key, (size_t)n_bytes, &channel->keys[i], error));
        wire->key_bases[i] = ferry_region_pointer(channel->keys[i], channel->peer);
    }
    return FERRY_OK;
}

/* The area, made anew: no two elements share a byte, and it ends where a number can say. */
static ferry_status read_area(const fy_channel *channel, fy_reader *reader, fy_area *area_out,
                              ferry_error *error)
{
    uint64_t length[FERRY_MAX_DIMS], stride[FERRY_MAX_DIMS];
    uint64_t offset = fy_read_number(reader, UINT64_MAX);
    uint64_t run_bytes = fy_read_number(reader, UINT64_MAX);
    uint64_t bytes = fy_read_number(reader, UINT64_MAX);
    uint32_t n_dims = (uint32_t)fy_read_number(reader, FERRY_MAX_DIMS);
    for (uint32_t d = 0; d < n_dims; d++) {
        length[d] = fy_read_number(reader, UINT64_MAX);
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        stride[d] = fy_read_number(reader, UINT64_MAX);
    }
    if (reader->failed) {
        return garbled(channel, "an area is cut short", error);
    }
    ferry_error why = {.message = ""};
    if (fy_area_make(offset, run_bytes, n_dims, length, stride, area_out, &why) != FERRY_OK) {
        return garbled(channel, why.message, error);
    }
    return area_out->bytes == bytes
               ? FERRY_OK
               : garbled(channel, "an area has other bytes than it says", error);
}

static ferry_status keep_area(fy_channel *channel, fy_place *place, const fy_area *area,
                              ferry_error *error)
{
    if (!FY_RESERVE(channel->dims, channel->dims_capacity,
                    channel->n_dims + 2 * (size_t)area->n_dims + 1)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    place->offset = area->offset;
    place->run_bytes = area->run_bytes;
    place->bytes = area->bytes;
    place->n_dims = area->n_dims;
    place->dims = (uint32_t)channel->n_dims;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        channel->dims[channel->n_dims + d] = area->length[d];
        channel->dims[channel->n_dims + area->n_dims + d] = area->stride[d];
    }
    channel->n_dims += 2 * (size_t)area->n_dims;
    return FERRY_OK;
}

/* Ascending, so that no byte is sent twice. */
static ferry_status read_ranges(const ferry_service *service, const fy_channel *channel,
                                uint32_t index, fy_reader *reader, ferry_error *error)
{
    fy_channel_wire *wire = fy_wire_of(service, channel);
    uint64_t task_bytes = channel->places[index].bytes;
    uint64_t n = fy_read_number(reader, fy_read_left(reader));
    uint64_t at = 0;
    if (reader->failed) {
        return garbled(channel, "more ranges are wanted of a task than are told", error);
    }
    wire->wanted[index].first_range = (uint32_t)wire->n_ranges;
    wire->wanted[index].n_ranges = (uint32_t)n;
    if (!FY_RESERVE(wire->ranges, wire->range_capacity, wire->n_ranges + (size_t)n)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = fy_read_number(reader, task_bytes);
        uint64_t bytes = fy_read_number(reader, task_bytes - first);
        if (reader->failed || first < at) {
            return garbled(channel, "the bytes that are wanted of a task are not its own", error);
        }
        at = first + bytes;
        wire->ranges[wire->n_ranges++] = (fy_range){.first = first, .bytes = bytes};
    }
    return FERRY_OK;
}

/* A buffer of the peer's: within its region, and as long as what is put there reaches. */
static ferry_status read_spot(ferry_service *service, const fy_channel *channel, fy_reader *reader,
                              fy_spot *spot, ferry_error *error)
{
    char **key_bases = fy_wire_of(service, channel)->key_bases;
    uint64_t end;
    spot->address = fy_read_number(reader, UINT64_MAX);
    spot->bytes = fy_read_number(reader, UINT64_MAX);
    spot->space.kind = (uint32_t)fy_read_number(reader, FY_N_MEMORY_KINDS - 1);
    spot->space.device = (int32_t)fy_read_number(reader, INT32_MAX);
    uint64_t key = fy_read_number(reader, channel->n_keys);
    spot->key = key == 0 ? FY_NONE : (uint32_t)key - 1;
    spot->key_offset = fy_read_number(reader, UINT64_MAX);
    if (reader->failed || !fy_add(spot->address, spot->bytes, &end)) {
        return garbled(channel, "a buffer is cut short, or ends beyond all memory", error);
    }
    const ferry_region *region = spot->key == FY_NONE ? NULL : channel->keys[spot->key];
    if (region != NULL &&
        (!fy_add(spot->key_offset, spot->bytes, &end) || end > ferry_region_bytes(region))) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "rank %u answered with a place of %llu bytes at byte %llu of a region that "
                       "has %llu",
                       channel->peer, (unsigned long long)spot->bytes,
                       (unsigned long long)spot->key_offset,
                       (unsigned long long)ferry_region_bytes(region));
    }
    if (fy_transport_shares_pointers(service->transport, channel->peer)) {
        spot->mapped = (char *)(uintptr_t)spot->address; /* a thread of this process */
    } else if (region != NULL && key_bases[spot->key] != NULL) {
        spot->mapped = key_bases[spot->key] + spot->key_offset;
    }
    return FERRY_OK;
}

static ferry_status read_bases(ferry_service *service, fy_channel *channel, fy_reader *reader,
                               ferry_error *error)
{
    uint64_t n = fy_read_number(reader, fy_read_left(reader));
    if (reader->failed) {
        return garbled(channel, "their buffers are cut short", error);
    }
    channel->bases = fy_alloc_zeroed((size_t)n + 1, sizeof *channel->bases);
    FY_TRY(fy_check_memory(channel->bases != NULL, "places of tasks", error));
    channel->n_bases = (uint32_t)n;
    for (uint32_t i = 0; i < 2 * channel->n_bases; i++) {
        FY_TRY(read_spot(service, channel, reader, &channel->bases[i / 2].spots[i % 2], error));
    }
    return FERRY_OK;
}

static ferry_status check_reach(const fy_channel *channel, const fy_area *area,
                                const fy_place *place, ferry_error *error)
{
    const fy_spot *spots = channel->bases[place->base].spots;
    uint64_t begin, end;
    fy_area_hull(area, &begin, &end);
    for (uint32_t i = 0; i < 2; i++) {
        if (end > spots[i].bytes) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "rank %u answered with a place that reaches to byte %llu of a buffer "
                           "of %llu bytes",
                           channel->peer, (unsigned long long)end,
                           (unsigned long long)spots[i].bytes);
        }
    }
    return FERRY_OK;
}

/* As many bytes as the send has, or what is passed on of a receive. */
static bool has_bytes(const ferry_service *service, const fy_channel *channel, uint32_t index,
                      uint64_t bytes)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    return index >= wire->n_sends ||
           service->registry.sends.items[wire->first_send + index].bytes == bytes;
}

/* Where the bytes of a place come from; of what is passed on it may be any of this rank's memory.
 */
static fy_space source_space(const ferry_service *service, const fy_channel_wire *wire,
                             uint32_t index)
{
    const fy_registry *registry = &service->registry;
    if (index < wire->n_sends) {
        const fy_end *end = &registry->sends.items[wire->first_send + index];
        return fy_space_of(&registry->held[end->held].front);
    }
    return (fy_space){service->wire->has_far ? FY_N_MEMORY_KINDS : FERRY_MEMORY_HOST, 0};
}

static ferry_status read_place(ferry_service *service, fy_channel *channel, uint32_t index,
                               fy_reader *reader, ferry_error *error)
{
    fy_place *place = &channel->places[index];
    fy_area area = {0};
    uint64_t base = fy_read_number(reader, UINT32_MAX);
    if (reader->failed || base >= channel->n_bases) {
        return garbled(channel, "a place is in none of their buffers", error);
    }
    place->base = (uint32_t)base;
    FY_TRY(read_area(channel, reader, &area, error));
    if (!has_bytes(service, channel, index, area.bytes)) {
        return garbled(channel, "a task has other bytes there", error);
    }
    FY_TRY(check_reach(channel, &area, place, error));
    FY_TRY(keep_area(channel, place, &area, error));
    FY_TRY(read_ranges(service, channel, index, reader, error));
    fy_channel_wire *wire = fy_wire_of(service, channel);
    uint64_t source_run = index < wire->n_sends
                              ? service->registry.sends.items[wire->first_send + index].run_bytes
                              : place->bytes;
    wire->wanted[index].path =
        fy_path_choose(service, channel, place, source_run, source_space(service, wire, index));
    return FERRY_OK;
}

/*
 * The ring, which lies in memory that is not there yet: fy_staging_make holds it against that. No
 * slots and no payload is a receiver without room, of whom nothing is staged.
 */
static ferry_status read_ring(fy_channel *channel, fy_reader *reader, ferry_error *error)
{
    channel->theirs = (uint32_t)fy_read_number(reader, UINT32_MAX);
    channel->out_ring = fy_read_number(reader, UINT64_MAX);
    channel->out_slots = (uint32_t)fy_read_number(reader, MOST_SLOTS);
    channel->out_payload = fy_read_number(reader, MOST_PAYLOAD);
    if (reader->failed || (channel->out_slots == 0) != (channel->out_payload == 0) ||
        channel->out_payload % LEAST_PAYLOAD != 0 || channel->out_ring % FY_SLOT_HEAD_BYTES != 0) {
        return garbled(channel, "its slots are none that can be used", error);
    }
    return FERRY_OK;
}

ferry_status fy_places_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                            ferry_error *error)
{
    fy_reader reader = fy_reader_of(in->bytes, in->used);
    fy_channel_wire *wire = fy_wire_of(service, channel);
    FY_TRY(read_ring(channel, &reader, error));
    FY_TRY(read_keys(service, channel, &reader, error));
    FY_TRY(read_bases(service, channel, &reader, error));
    ferry_status status = FERRY_OK;
    uint64_t n = fy_read_number(&reader, UINT32_MAX);
    if (reader.failed || n != (uint64_t)wire->n_sends + wire->n_relayed_sends) {
        return garbled(channel, "there are more or fewer than tasks", error);
    }
    channel->places = fy_alloc_zeroed((size_t)n + 1, sizeof *channel->places);
    wire->wanted = fy_alloc_zeroed((size_t)n + 1, sizeof *wire->wanted);
    if (channel->places == NULL || wire->wanted == NULL) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    channel->n_places = (uint32_t)n;
    for (uint32_t i = 0; status == FERRY_OK && i < channel->n_places; i++) {
        status = read_place(service, channel, i, &reader, error);
    }
    return status == FERRY_OK && reader.at != reader.end
               ? garbled(channel, "something follows the last of them", error)
               : status;
}
