/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a receiver tells the sender of each channel: its number for the channel, its ring, the keys
 * of the regions that its buffers lie in, and for each task where the bytes go and which it wants.
 */
#include "service/exec.h"

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
    LEAST_PAYLOAD = 64,
    GOOD_PAYLOAD = 64 << 10
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
    uint64_t n = 0;
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
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        if (may_be_staged(service, channel)) {
            channel->in_ring = at;
            channel->in_slots = n_slots;
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
static ferry_status region_of(ferry_service *service, const fy_channel *channel, uint32_t receive,
                              const ferry_buffer *buffer, ferry_region **region_out,
                              ferry_error *error)
{
    const fy_end *end = &service->registry.receives.items[receive];
    fy_held *held = &service->registry.held[end->held];
    ferry_region *own = buffer->registration;
    *region_out = own;
    if (own != NULL && own->transport == service->transport && lies_in(buffer, own)) {
        return FERRY_OK;
    }
    *region_out = NULL;
    uint32_t can = fy_transport_capabilities(service->transport, channel->peer);
    bool helps = !channel->direct && (can & FERRY_CAN_REMOTE_USER_MEMORY) != 0 &&
                 held->back.base == NULL && end->run_bytes >= REGISTER_BYTES &&
                 fy_path_allowed(service, FERRY_PATH_REMOTE);
    if (!helps) {
        return FERRY_OK;
    }
    if (held->region == NULL || held->region->view.base != buffer->base ||
        !lies_in(buffer, held->region)) {
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
    uint32_t *keys;
    ferry_region **known;
    uint32_t n_known;
    fy_index index; /* of the known ones */
} spots;

/* The number of a region among the keys; its key is added where it is new. */
static ferry_status number_key(spots *all, ferry_region *region, uint32_t *key_out,
                               ferry_error *error)
{
    *key_out = FY_NONE;
    if (region == NULL) {
        return FERRY_OK;
    }
    uint64_t hash = fy_hash_mix((uintptr_t)region, 0);
    fy_index_cursor c = fy_index_first(&all->index, hash);
    while (c.value != FY_INDEX_NONE && all->known[c.value] != region) {
        fy_index_next(&all->index, &c);
    }
    if (c.value == FY_INDEX_NONE) {
        if (!fy_index_insert(&all->index, hash, all->n_known)) {
            return fy_fail_no_memory(error, "keys of regions");
        }
        c.value = all->n_known;
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
        size_t n_bytes = 0;
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
    fy_pack_number(out, buffer->bytes);
    fy_pack_number(out, key == FY_NONE ? 0 : (uint64_t)key + 1);
    fy_pack_number(
        out, key == FY_NONE ? 0 : (uint64_t)((char *)buffer->base - (char *)region->view.base));
}

static void write_place(const ferry_service *service, uint32_t receive, const uint32_t *keys,
                        ferry_region **regions, fy_pack *out)
{
    const fy_end *end = &service->registry.receives.items[receive];
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
            uint32_t at = 2 * i + spot;
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
    uint32_t n = channel->n_receives + channel->n_relayed_receives;
    spots all = {.regions = fy_alloc(2 * (size_t)n + 1, sizeof(ferry_region *)),
                 .keys = fy_alloc(2 * (size_t)n + 1, sizeof(uint32_t)),
                 .known = fy_alloc(2 * (size_t)n + 1, sizeof(ferry_region *))};
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
    uint64_t n = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    if (reader->failed) {
        return garbled(channel, "their keys are cut short", error);
    }
    channel->keys = fy_alloc_zeroed(n + 1, sizeof(ferry_region *));
    channel->key_bases = fy_alloc_zeroed(n + 1, sizeof(char *));
    if (channel->keys == NULL || channel->key_bases == NULL) {
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
        ferry_status status =
            import_key(service, channel, key, (size_t)n_bytes, &channel->keys[i], error);
        if (status != FERRY_OK) {
            return status;
        }
        channel->key_bases[i] = ferry_region_pointer(channel->keys[i], channel->peer);
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
    if (!fy_reserve((void **)&channel->dims, &channel->dims_capacity,
                    channel->n_dims + 2 * (size_t)area->n_dims + 1, sizeof *channel->dims)) {
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
static ferry_status read_ranges(fy_channel *channel, fy_place *place, fy_reader *reader,
                                ferry_error *error)
{
    uint64_t n = fy_read_number(reader, (uint64_t)(reader->end - reader->at));
    uint64_t at = 0;
    if (reader->failed) {
        return garbled(channel, "more ranges are wanted of a task than are told", error);
    }
    place->first_range = (uint32_t)channel->n_ranges;
    place->n_ranges = (uint32_t)n;
    if (!fy_reserve((void **)&channel->ranges, &channel->range_capacity,
                    channel->n_ranges + (size_t)n, sizeof *channel->ranges)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t first = fy_read_number(reader, place->bytes);
        uint64_t bytes = fy_read_number(reader, place->bytes - first);
        if (reader->failed || first < at) {
            return garbled(channel, "the bytes that are wanted of a task are not its own", error);
        }
        at = first + bytes;
        channel->ranges[channel->n_ranges++] = (fy_range){.first = first, .bytes = bytes};
    }
    return FERRY_OK;
}

/* A buffer of the peer's: within its region, and as long as what is put there reaches. */
static ferry_status read_spot(ferry_service *service, const fy_channel *channel, fy_reader *reader,
                              fy_spot *spot, ferry_error *error)
{
    uint64_t end;
    spot->address = fy_read_number(reader, UINT64_MAX);
    spot->bytes = fy_read_number(reader, UINT64_MAX);
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
    } else if (region != NULL && channel->key_bases[spot->key] != NULL) {
        spot->mapped = channel->key_bases[spot->key] + spot->key_offset;
    }
    return FERRY_OK;
}

static ferry_status check_reach(const fy_channel *channel, const fy_area *area,
                                const fy_place *place, ferry_error *error)
{
    uint64_t begin, end;
    fy_area_hull(area, &begin, &end);
    for (uint32_t i = 0; i < 2; i++) {
        if (end > place->spots[i].bytes) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "rank %u answered with a place that reaches to byte %llu of a buffer "
                           "of %llu bytes",
                           channel->peer, (unsigned long long)end,
                           (unsigned long long)place->spots[i].bytes);
        }
    }
    return FERRY_OK;
}

/* As many bytes as the send has, or what is passed on of a receive. */
static bool has_bytes(const ferry_service *service, const fy_channel *channel, uint32_t index,
                      uint64_t bytes)
{
    return index >= channel->n_sends ||
           service->registry.sends.items[channel->first_send + index].bytes == bytes;
}

static ferry_status read_place(ferry_service *service, fy_channel *channel, uint32_t index,
                               fy_reader *reader, ferry_error *error)
{
    fy_place *place = &channel->places[index];
    fy_area area = {0};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < 2; i++) {
        status = read_spot(service, channel, reader, &place->spots[i], error);
    }
    if (status == FERRY_OK) {
        status = read_area(channel, reader, &area, error);
    }
    if (status == FERRY_OK && !has_bytes(service, channel, index, area.bytes)) {
        status = garbled(channel, "a task has other bytes there", error);
    }
    if (status == FERRY_OK) {
        status = check_reach(channel, &area, place, error);
    }
    if (status == FERRY_OK) {
        status = keep_area(channel, place, &area, error);
    }
    if (status == FERRY_OK) {
        status = read_ranges(channel, place, reader, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t source_run = index < channel->n_sends
                              ? service->registry.sends.items[channel->first_send + index].run_bytes
                              : place->bytes;
    place->path = fy_path_choose(service, channel, place, source_run);
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
    fy_reader reader = {.at = in->bytes, .end = in->bytes + in->used};
    ferry_status status = read_ring(channel, &reader, error);
    if (status == FERRY_OK) {
        status = read_keys(service, channel, &reader, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t n = fy_read_number(&reader, UINT32_MAX);
    if (reader.failed || n != (uint64_t)channel->n_sends + channel->n_relayed_sends) {
        return garbled(channel, "there are more or fewer than tasks", error);
    }
    channel->places = fy_alloc_zeroed((size_t)n + 1, sizeof *channel->places);
    if (channel->places == NULL) {
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
