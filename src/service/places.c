/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a receiver tells the sender of each channel: its number for the channel, its ring, the keys
 * of the regions that its buffers lie in, and for each task where the bytes go and which it wants.
 */
#include "service/exec.h"

#include "base/alloc.h"
#include "base/hash.h"

#include <string.h>

/* Memory from here on is worth a registration of its own, where a network lies between. */
enum { REGISTER_BYTES = 64 << 10 };

/*
 * Slots are small, so that little is on its way where the network is slow; where it is fast several
 * of them travel as one put.
 */
enum {
    MOST_PAYLOAD  = (128 << 10) - FY_SLOT_HEAD_BYTES,
    MOST_SLOTS    = FY_MOST_WINDOW,
    LEAST_PAYLOAD = 64,
    GOOD_PAYLOAD  = 64 << 10
};

/*
 * Rings
 */

static bool may_be_staged(const ferry_service *service, const fy_channel *channel)
{
    bool receives = channel->n_receives + channel->n_relayed_receives > 0;
    return receives &&
           !(fy_transport_shares_pointers(service->transport, channel->peer) && channel->direct);
}

/* Half of the cap is for what comes, half for what goes. */
void fy_rings_lay_out(ferry_service *service)
{
    fy_exec *exec = service->exec;
    uint64_t n    = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        n += may_be_staged(service, &exec->channels[c]);
    }
    if (n == 0) {
        return;
    }
    uint64_t ring = service->options.memory_cap / 2 / n / FY_SLOT_HEAD_BYTES * FY_SLOT_HEAD_BYTES;
    uint32_t n_slots = MOST_SLOTS;
    while (n_slots > 1 && ring / n_slots < GOOD_PAYLOAD + FY_SLOT_HEAD_BYTES) {
        n_slots /= 2;
    }
    uint64_t most    = service->options.slot_bytes < MOST_PAYLOAD ? service->options.slot_bytes
                                                                  : (uint64_t)MOST_PAYLOAD;
    uint64_t slot    = ring / n_slots / LEAST_PAYLOAD * LEAST_PAYLOAD;
    uint64_t payload = slot < FY_SLOT_HEAD_BYTES + LEAST_PAYLOAD ? 0 : slot - FY_SLOT_HEAD_BYTES;
    if (payload == 0) {
        return; /* no sender has a slot: one that needs it says so */
    }
    most        = (most + LEAST_PAYLOAD - 1) / LEAST_PAYLOAD * LEAST_PAYLOAD;
    payload     = payload < most ? payload : most;
    uint64_t at = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        if (may_be_staged(service, channel)) {
            channel->in_ring    = at;
            channel->in_slots   = n_slots;
            channel->in_payload = payload;
            at += n_slots * (payload + FY_SLOT_HEAD_BYTES);
        }
    }
}

/*
 * The receiver
 */

static const fy_held *held_of(const ferry_service *service, uint32_t receive)
{
    return &service->registry.held[service->registry.receives.items[receive].held];
}

/*
 * The region of a buffer: its own, or one that the service makes where that helps. Only one buffer
 * of a pair gets one: pairs that the caller did not register are staged.
 */
static ferry_status region_of(ferry_service *service, const fy_channel *channel, uint32_t receive,
                              const ferry_buffer *buffer, ferry_region **region_out,
                              ferry_error *error)
{
    const fy_end *end  = &service->registry.receives.items[receive];
    fy_held      *held = &service->registry.held[end->held];
    ferry_region *own  = buffer->registration;
    *region_out        = own;
    if (own != NULL && own->transport == service->transport) {
        return FERRY_OK;
    }
    *region_out    = NULL;
    uint32_t can   = fy_transport_capabilities(service->transport, channel->peer);
    bool     helps = !channel->direct && (can & FERRY_CAN_REMOTE_USER_MEMORY) != 0 &&
                 held->back.base == NULL && end->run_bytes >= REGISTER_BYTES &&
                 (service->options.paths == 0 || (service->options.paths & FERRY_PATH_REMOTE) != 0);
    if (!helps) {
        return FERRY_OK;
    }
    if (held->region == NULL || held->region->view.base != buffer->base) {
        ferry_region_free(held->region);
        held->region = NULL;
        ferry_status status =
            ferry_region_register(service->transport, buffer, &held->region, error);
        if (status != FERRY_OK) {
            return status;
        }
        service->statistics.n_registrations++;
    }
    *region_out = held->region;
    return FERRY_OK;
}

/* Two of each for every place: a region, and its number among the keys. */
typedef struct spots {
    ferry_region **regions;
    uint32_t      *keys;
    ferry_region **known;
    uint32_t       n_known;
    fy_index       index; /* of the known ones */
} spots;

/* The number of a region among the keys; its key is added where it is new. */
static ferry_status number_key(spots *all, ferry_region *region, uint32_t *key_out,
                               ferry_error *error)
{
    *key_out = FY_NONE;
    if (region == NULL) {
        return FERRY_OK;
    }
    uint64_t        hash = fy_hash_mix((uintptr_t)region, 0);
    fy_index_cursor c    = fy_index_first(&all->index, hash);
    while (c.value != FY_INDEX_NONE && all->known[c.value] != region) {
        fy_index_next(&all->index, &c);
    }
    if (c.value == FY_INDEX_NONE) {
        if (!fy_index_insert(&all->index, hash, all->n_known)) {
            return fy_fail_no_memory(error, "keys of regions");
        }
        c.value                    = all->n_known;
        all->known[all->n_known++] = region;
    }
    *key_out = c.value;
    return FERRY_OK;
}

static uint32_t receive_at(const fy_channel *channel, uint32_t place)
{
    return place < channel->n_receives ? channel->first_receive + place
                                       : channel->relayed_receives[place - channel->n_receives];
}

static void write_keys(ferry_region **known, uint32_t n_known, fy_pack *out)
{
    fy_pack_number(out, n_known);
    for (uint32_t i = 0; i < n_known; i++) {
        unsigned char key[FERRY_KEY_BYTES];
        size_t        n_bytes = 0;
        /* An engine that cannot be reached there has no key: then the bytes take another way. */
        if (ferry_region_export(known[i], key, &n_bytes, NULL) != FERRY_OK) {
            n_bytes = 0;
        }
        fy_pack_number(out, n_bytes);
        for (size_t b = 0; b < n_bytes; b++) {
            fy_pack_number(out, key[b]);
        }
    }
}

/* What is written next comes first. */
static const ferry_buffer *buffer_of(const fy_held *held, uint32_t spot)
{
    bool has_back = held->back.base != NULL;
    return has_back && spot == 0 ? &held->back : &held->front;
}

static void write_spot(const ferry_buffer *buffer, uint32_t key, const ferry_region *region,
                       fy_pack *out)
{
    fy_pack_number(out, (uintptr_t)buffer->base);
    fy_pack_number(out, key == FY_NONE ? 0 : (uint64_t)key + 1);
    fy_pack_number(
        out, key == FY_NONE ? 0 : (uint64_t)((char *)buffer->base - (char *)region->view.base));
}

static void write_place(const ferry_service *service, uint32_t receive, const uint32_t *keys,
                        ferry_region **regions, fy_pack *out)
{
    const fy_end  *end  = &service->registry.receives.items[receive];
    const fy_exec *exec = service->exec;
    for (uint32_t spot = 0; spot < 2; spot++) {
        write_spot(buffer_of(held_of(service, receive), spot), keys[spot], regions[spot], out);
    }
    fy_pack_number(out, end->offset);
    fy_pack_number(out, end->run_bytes);
    fy_pack_number(out, end->bytes);
    fy_pack_number(out, end->n_dims);
    for (uint32_t d = 0; d < 2 * end->n_dims; d++) {
        fy_pack_number(out, service->registry.dims[end->dims + d]);
    }
    if (exec->wants_of == NULL) {
        fy_pack_number(out, 1);
        fy_pack_number(out, 0);
        fy_pack_number(out, end->bytes);
        return;
    }
    fy_pack_number(out, exec->wants_of[receive + 1] - exec->wants_of[receive]);
    for (uint32_t w = exec->wants_of[receive]; w < exec->wants_of[receive + 1]; w++) {
        fy_pack_number(out, exec->wants[w].first);
        fy_pack_number(out, exec->wants[w].bytes);
    }
}

static ferry_status find_regions(ferry_service *service, const fy_channel *channel, uint32_t n,
                                 spots *all, ferry_error *error)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t receive = receive_at(channel, i);
        for (uint32_t spot = 0; spot < 2; spot++) {
            uint32_t     at = 2 * i + spot;
            ferry_status status =
                region_of(service, channel, receive, buffer_of(held_of(service, receive), spot),
                          &all->regions[at], error);
            if (status == FERRY_OK) {
                status = number_key(all, all->regions[at], &all->keys[at], error);
            }
            if (status != FERRY_OK) {
                return status;
            }
        }
    }
    return FERRY_OK;
}

ferry_status fy_places_write(ferry_service *service, fy_channel *channel, fy_pack *out,
                             ferry_error *error)
{
    uint32_t     n      = channel->n_receives + channel->n_relayed_receives;
    spots        all    = {.regions = fy_alloc(2 * (size_t)n + 1, sizeof(ferry_region *)),
                           .keys    = fy_alloc(2 * (size_t)n + 1, sizeof(uint32_t)),
                           .known   = fy_alloc(2 * (size_t)n + 1, sizeof(ferry_region *))};
    ferry_status status = all.regions == NULL || all.keys == NULL || all.known == NULL
                              ? fy_fail_no_memory(error, "places of tasks")
                              : find_regions(service, channel, n, &all, error);
    if (status == FERRY_OK) {
        fy_pack_number(out, fy_channel_number(service->exec, channel));
        fy_pack_number(out, channel->in_ring);
        fy_pack_number(out, channel->in_slots);
        fy_pack_number(out, channel->in_payload);
        write_keys(all.known, all.n_known, out);
        fy_pack_number(out, n);
        for (uint32_t i = 0; i < n; i++) {
            write_place(service, receive_at(channel, i), all.keys + 2 * i, all.regions + 2 * i,
                        out);
        }
    }
    fy_free(all.regions);
    fy_free(all.keys);
    fy_free(all.known);
    fy_index_cleanup(&all.index);
    return status;
}

/*
 * The sender
 */

static ferry_status garbled(const fy_channel *channel, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u answered with places that do not fit what is sent to it",
                   channel->peer);
}

/* A key that cannot be imported is one that does not help: not an error. */
static ferry_status read_keys(ferry_service *service, fy_channel *channel, fy_reader *reader,
                              ferry_error *error)
{
    uint64_t n = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    if (reader->failed) {
        return garbled(channel, error);
    }
    channel->keys      = fy_alloc_zeroed(n + 1, sizeof(ferry_region *));
    channel->key_bases = fy_alloc_zeroed(n + 1, sizeof(char *));
    if (channel->keys == NULL || channel->key_bases == NULL) {
        return fy_fail_no_memory(error, "keys of regions");
    }
    for (uint64_t i = 0; i < n; i++) {
        unsigned char key[FERRY_KEY_BYTES];
        uint64_t      n_bytes = fy_read_number(reader, FERRY_KEY_BYTES);
        for (uint64_t b = 0; b < n_bytes; b++) {
            key[b] = (unsigned char)fy_read_number(reader, 255);
        }
        if (reader->failed) {
            return garbled(channel, error);
        }
        channel->n_keys++;
        ferry_error why;
        if (n_bytes == 0 || ferry_region_import(service->transport, key, (size_t)n_bytes,
                                                &channel->keys[i], &why) != FERRY_OK) {
            channel->keys[i] = NULL;
            continue;
        }
        service->statistics.n_registrations++;
        channel->key_bases[i] = ferry_region_pointer(channel->keys[i], channel->peer);
    }
    return FERRY_OK;
}

static ferry_status read_dims(fy_channel *channel, fy_place *place, fy_reader *reader,
                              ferry_error *error)
{
    place->n_dims = (uint32_t)fy_read_number(reader, FERRY_MAX_DIMS);
    place->dims   = (uint32_t)channel->n_dims;
    if (!fy_reserve((void **)&channel->dims, &channel->dims_capacity,
                    channel->n_dims + 2 * (size_t)place->n_dims + 1, sizeof *channel->dims)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    for (uint32_t d = 0; d < 2 * place->n_dims; d++) {
        channel->dims[channel->n_dims++] = fy_read_number(reader, UINT64_MAX);
    }
    return FERRY_OK;
}

static ferry_status read_ranges(fy_channel *channel, fy_place *place, fy_reader *reader,
                                ferry_error *error)
{
    uint64_t n         = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    place->first_range = (uint32_t)channel->n_ranges;
    place->n_ranges    = (uint32_t)n;
    if (!fy_reserve((void **)&channel->ranges, &channel->range_capacity,
                    channel->n_ranges + (size_t)n, sizeof *channel->ranges)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = fy_read_number(reader, place->bytes);
        uint64_t bytes = fy_read_number(reader, place->bytes - (reader->failed ? 0 : first));
        channel->ranges[channel->n_ranges++] = (fy_range){.first = first, .bytes = bytes};
    }
    return FERRY_OK;
}

static void read_spot(ferry_service *service, const fy_channel *channel, fy_reader *reader,
                      fy_spot *spot)
{
    spot->address    = fy_read_number(reader, UINT64_MAX);
    uint64_t key     = fy_read_number(reader, channel->n_keys);
    spot->key        = key == 0 ? FY_NONE : (uint32_t)key - 1;
    spot->key_offset = fy_read_number(reader, UINT64_MAX);
    if (fy_transport_shares_pointers(service->transport, channel->peer)) {
        spot->mapped = (char *)(uintptr_t)spot->address; /* a thread of this process */
    } else if (spot->key != FY_NONE && channel->key_bases[spot->key] != NULL) {
        spot->mapped = channel->key_bases[spot->key] + spot->key_offset;
    }
}

static ferry_status read_place(ferry_service *service, fy_channel *channel, uint32_t index,
                               fy_reader *reader, ferry_error *error)
{
    fy_place *place = &channel->places[index];
    read_spot(service, channel, reader, &place->spots[0]);
    read_spot(service, channel, reader, &place->spots[1]);
    place->offset       = fy_read_number(reader, UINT64_MAX);
    place->run_bytes    = fy_read_number(reader, UINT64_MAX);
    place->bytes        = fy_read_number(reader, UINT64_MAX);
    ferry_status status = read_dims(channel, place, reader, error);
    if (status == FERRY_OK) {
        status = read_ranges(channel, place, reader, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    if (reader->failed ||
        (index < channel->n_sends &&
         service->registry.sends.items[channel->first_send + index].bytes != place->bytes)) {
        return garbled(channel, error);
    }
    uint64_t source_run = index < channel->n_sends
                              ? service->registry.sends.items[channel->first_send + index].run_bytes
                              : place->bytes;
    place->path         = fy_path_choose(service, channel, place, source_run);
    return FERRY_OK;
}

ferry_status fy_places_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                            ferry_error *error)
{
    fy_reader reader     = {.at = in->bytes, .end = in->bytes + in->used};
    channel->theirs      = (uint32_t)fy_read_number(&reader, UINT32_MAX);
    channel->out_ring    = fy_read_number(&reader, UINT64_MAX);
    channel->out_slots   = (uint32_t)fy_read_number(&reader, MOST_SLOTS);
    channel->out_payload = fy_read_number(&reader, MOST_PAYLOAD);
    ferry_status status  = read_keys(service, channel, &reader, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t n = fy_read_number(&reader, UINT32_MAX);
    if (reader.failed || n != channel->n_sends + channel->n_relayed_sends) {
        return garbled(channel, error);
    }
    channel->places = fy_alloc_zeroed((size_t)n + 1, sizeof *channel->places);
    if (channel->places == NULL) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    channel->n_places = (uint32_t)n;
    for (uint32_t i = 0; status == FERRY_OK && i < channel->n_places; i++) {
        status = read_place(service, channel, i, &reader, error);
    }
    return status == FERRY_OK && reader.at != reader.end ? garbled(channel, error) : status;
}
