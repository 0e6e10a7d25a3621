/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a sender makes of the places that the receiver told: see places.c. They end as addresses
 * that this rank writes to, so nothing is believed: an area is made anew and held against its
 * buffer, a buffer against its region, and a region against what the engine that maps it knows of
 * it.
 */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "transport/region.h"

static ferry_status garbled(const fy_channel *channel, const char *what, ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "rank %u answered with places that do not fit what is sent to it: %s",
                   channel->peer, what);
}

/*
 * A region of the peer's, or NULL: a key that cannot be imported does not help, and is no error.
 * Nor does memory of a device to who has none of any: to open it would cost memory there.
 */
static ferry_status import_key(ferry_service *service, const fy_channel *channel, const void *key,
                               size_t n_bytes, ferry_region **region_out, ferry_error *error)
{
    ferry_region *region = NULL;
    ferry_error why;
    bool is_host = fy_key_kind(key, n_bytes) == FERRY_MEMORY_HOST;
    if (n_bytes == 0 || (!is_host && !service->registry.has_far)) {
        return FERRY_OK;
    }
    if (ferry_region_import(service->transport, key, n_bytes, &region, &why) != FERRY_OK) {
        fy_log(FERRY_LOG_INFO, "bytes to rank %u go through slots: %s", channel->peer, why.message);
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
        channel->opens = channel->opens ||
                         (wire->key_bases[i] != NULL && !fy_is_host(channel->keys[i]->view.space));
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
                              uint64_t bytes, ferry_error *error)
{
    if (!FY_RESERVE(channel->dims, channel->dims_capacity,
                    channel->n_dims + 2 * (size_t)area->n_dims + 1)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    place->offset = area->offset;
    place->run_bytes = area->run_bytes;
    place->bytes = bytes;
    place->n_dims = area->n_dims;
    place->dims = (uint32_t)channel->n_dims;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        channel->dims[channel->n_dims + d] = area->length[d];
        channel->dims[channel->n_dims + area->n_dims + d] = area->stride[d];
    }
    channel->n_dims += 2 * (size_t)area->n_dims;
    return FERRY_OK;
}

/* What is sent, or NULL: what is passed on. */
static const fy_end *send_of(const ferry_service *service, const fy_channel *channel,
                             uint32_t index)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    return index < wire->n_sends ? &service->registry.sends.items[wire->first_send + index] : NULL;
}

/* Ascending, so that no byte is sent twice, and of whole elements where one end casts them. */
static ferry_status read_ranges(const ferry_service *service, const fy_channel *channel,
                                uint32_t index, uint64_t task_bytes, fy_reader *reader,
                                ferry_error *error)
{
    fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_end *send = send_of(service, channel, index);
    uint64_t unit = send == NULL ? 1 : fy_end_unit(&service->registry, send);
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
        if (reader->failed || first < at || first % unit != 0 || bytes % unit != 0) {
            return garbled(channel, "the bytes that are wanted of a task are not its own", error);
        }
        at = first + bytes;
        wire->ranges[wire->n_ranges++] = (fy_range){.first = first, .bytes = bytes};
    }
    return FERRY_OK;
}

/* Where memory of the peer's is mapped here; what is not where it should be is not used. */
static void map_spot(fy_spot *spot, const ferry_region *region, char *base)
{
    fy_space space = region->view.space;
    spot->mapped = base + spot->key_offset;
    spot->space = fy_is_host(space) ? space : fy_memory_query(spot->mapped, NULL);
    if (spot->space.kind != space.kind) {
        spot->mapped = NULL;
    }
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
        map_spot(spot, region, key_bases[spot->key]);
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

/* As many bytes as the send has there, in whole elements if they are cast; or what is passed on. */
static bool has_bytes(const ferry_service *service, const fy_end *send, const fy_area *area)
{
    const fy_task_cast *how = send == NULL ? NULL : fy_end_conversion(&service->registry, send);
    return send == NULL || (area->bytes == fy_bytes_there(how, send->bytes) &&
                            (how == NULL || area->run_bytes % how->to_bytes == 0));
}

/* Where the bytes of a place come from; of what is passed on it may be any of this rank's memory.
 */
static fy_space source_space(const ferry_service *service, const fy_end *send)
{
    const fy_registry *registry = &service->registry;
    if (send != NULL) {
        return fy_space_of(&registry->held[send->held].front);
    }
    return (fy_space){.kind = service->registry.has_far ? FY_N_MEMORY_KINDS : FERRY_MEMORY_HOST,
                      .device = 0};
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
    const fy_end *send = send_of(service, channel, index);
    if (!has_bytes(service, send, &area)) {
        return garbled(channel, "a task has other bytes there", error);
    }
    uint64_t bytes = send == NULL ? area.bytes : send->bytes;
    FY_TRY(check_reach(channel, &area, place, error));
    FY_TRY(keep_area(channel, place, &area, bytes, error));
    FY_TRY(read_ranges(service, channel, index, bytes, reader, error));
    fy_wire_of(service, channel)->wanted[index].path =
        fy_path_choose(service, channel, place, send == NULL ? bytes : send->run_bytes,
                       source_space(service, send), send != NULL && send->conversion != 0);
    if (send != NULL && fy_is_banded(service, send)) { /* it waits there until there is room */
        fy_wire_of(service, channel)->wanted[index].path = FERRY_PATH_STAGED;
    }
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
    channel->out_slots = (uint32_t)fy_read_number(reader, FY_MOST_WINDOW);
    channel->out_payload = fy_read_number(reader, FY_MOST_PAYLOAD);
    if (reader->failed || (channel->out_slots == 0) != (channel->out_payload == 0) ||
        channel->out_payload % FY_LEAST_PAYLOAD != 0 ||
        channel->out_ring % FY_SLOT_HEAD_BYTES != 0) {
        return garbled(channel, "its slots are none that can be used", error);
    }
    return FERRY_OK;
}

/* What it would have in memory of its device: taken where all that goes there can go so. */
static ferry_status read_offer(ferry_service *service, fy_channel *channel, fy_reader *reader,
                               ferry_error *error)
{
    fy_offer *offer = &channel->out_offer;
    offer->ring = fy_read_number(reader, UINT64_MAX);
    offer->heads = fy_read_number(reader, UINT64_MAX);
    offer->n_slots = (uint32_t)fy_read_number(reader, FY_MOST_WINDOW);
    offer->payload = fy_read_number(reader, FY_MOST_PAYLOAD_ASIDE);
    if (reader->failed || (offer->n_slots == 0) != (offer->payload == 0) ||
        offer->payload % FY_LEAST_PAYLOAD != 0 || offer->heads % FY_SLOT_HEAD_BYTES != 0 ||
        offer->ring % FY_LEAST_PAYLOAD != 0) {
        return garbled(channel, "its slots on a device are none that can be used", error);
    }
    if (fy_aside_is_taken(service, channel)) {
        channel->out_aside = true;
        channel->out_ring = offer->ring;
        channel->out_heads = offer->heads;
        channel->out_slots = offer->n_slots;
        channel->out_payload = offer->payload;
    }
    return FERRY_OK;
}

static ferry_status read_places(ferry_service *service, fy_channel *channel, uint32_t n,
                                fy_reader *reader, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    channel->places = fy_alloc_zeroed((size_t)n + 1, sizeof *channel->places);
    FY_TRY(fy_check_memory(channel->places != NULL, "places of tasks", error));
    channel->n_places = n;
    for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
        status = read_place(service, channel, i, reader, error);
    }
    return status;
}

/* Of buffers that nothing is said of: all is staged, and what is passed on has no length. */
static ferry_status read_wants_alone(ferry_service *service, fy_channel *channel, uint32_t n,
                                     fy_reader *reader, ferry_error *error)
{
    fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_end *sends = service->registry.sends.items + wire->first_send;
    ferry_status status = FERRY_OK;
    bool wants_all = fy_read_number(reader, 1) != 0;
    if (reader->failed || wire->n_relayed_sends > 0) {
        return garbled(channel, "nothing is said of their buffers", error);
    }
    if (wants_all && !FY_RESERVE(wire->ranges, wire->range_capacity, n)) {
        return fy_fail_no_memory(error, "places of tasks");
    }
    for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
        wire->wanted[i].path = FERRY_PATH_STAGED;
        if (wants_all) {
            wire->wanted[i].first_range = i;
            wire->wanted[i].n_ranges = 1;
            wire->ranges[wire->n_ranges++] = (fy_range){.first = 0, .bytes = sends[i].bytes};
        } else {
            status = read_ranges(service, channel, i, sends[i].bytes, reader, error);
        }
    }
    return status;
}

ferry_status fy_places_read(ferry_service *service, fy_channel *channel, const fy_pack *in,
                            ferry_error *error)
{
    fy_reader reader = fy_reader_of(in->bytes, in->used);
    fy_channel_wire *wire = fy_wire_of(service, channel);
    FY_TRY(read_ring(channel, &reader, error));
    FY_TRY(read_offer(service, channel, &reader, error));
    FY_TRY(read_keys(service, channel, &reader, error));
    FY_TRY(read_bases(service, channel, &reader, error));
    uint64_t n = fy_read_number(&reader, UINT32_MAX);
    if (reader.failed || n != (uint64_t)wire->n_sends + wire->n_relayed_sends) {
        return garbled(channel, "there are more or fewer than tasks", error);
    }
    wire->wanted = fy_alloc_zeroed((size_t)n + 1, sizeof *wire->wanted);
    FY_TRY(fy_check_memory(wire->wanted != NULL, "places of tasks", error));
    ferry_status status = channel->n_bases == 0
                              ? read_wants_alone(service, channel, (uint32_t)n, &reader, error)
                              : read_places(service, channel, (uint32_t)n, &reader, error);
    return status == FERRY_OK && reader.at != reader.end
               ? garbled(channel, "something follows the last of them", error)
               : status;
}
