/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The symmetric memory of a service: words of channels, slots, hashes. Regions have the same length
 * on all ranks, so each is as long as the rank with the largest need asks for; they are kept while
 * they are long enough.
 */
#include "service/exec.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "transport/agree.h"

#include <string.h>

enum { MOST_PARCELS = 64 };

typedef struct needs {
    uint64_t control, slots, hashes;
} needs;

static bool reaches_rings(ferry_service *service, uint32_t peer)
{
    uint32_t can = 0;
    ferry_transport_peer(service->transport, peer, NULL, &can, NULL);
    return can != UINT32_MAX && (can & FERRY_CAN_PEER_POINTER) != 0;
}

/* Memory for packing on the sending side, where slots of peers are not mapped here. */
static ferry_status plan_parcels(ferry_service *service, uint64_t first, uint64_t *end_out,
                                 ferry_error *error)
{
    fy_exec *exec = service->exec;
    uint64_t payload = 0;
    uint64_t n_items = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_channel *channel = &exec->channels[c];
        for (size_t i = 0; i < channel->out.n_items; i++) {
            const fy_item *item = &channel->out.items[i];
            if (item->path == FERRY_PATH_STAGED && !reaches_rings(service, channel->peer)) {
                payload = channel->out_payload > payload ? channel->out_payload : payload;
                n_items++;
            }
        }
    }
    *end_out = first;
    if (n_items == 0) {
        return FERRY_OK;
    }
    payload = (payload + 63) / 64 * 64;
    uint64_t most = service->options.memory_cap / 2 / (payload + FY_SLOT_HEAD_BYTES);
    most = most < MOST_PARCELS ? most : MOST_PARCELS;
    most = most < n_items ? most : n_items;
    if (most == 0) {
        return fy_fail(
            error, FERRY_ERR_LIMIT, "a memory cap of %llu bytes leaves no room to pack %llu",
            (unsigned long long)service->options.memory_cap, (unsigned long long)payload);
    }
    exec->parcels = fy_alloc(most, sizeof *exec->parcels);
    if (exec->parcels == NULL) {
        return fy_fail_no_memory(error, "a schedule");
    }
    exec->n_parcels = (uint32_t)most;
    exec->parcel_payload = payload;
    for (uint32_t i = 0; i < exec->n_parcels; i++) {
        exec->parcels[i] =
            (fy_parcel){.offset = first + i * (payload + FY_SLOT_HEAD_BYTES), .channel = FY_NONE};
    }
    *end_out = first + most * (payload + FY_SLOT_HEAD_BYTES);
    return FERRY_OK;
}

/* The end of the rings that are used; where none is, none is made. */
static uint64_t end_of_rings(const fy_exec *exec)
{
    uint64_t end = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_channel *channel = &exec->channels[c];
        uint64_t ring = channel->in_slots * (channel->in_payload + FY_SLOT_HEAD_BYTES);
        if (channel->in_staged && channel->in_ring + ring > end) {
            end = channel->in_ring + ring;
        }
    }
    return end;
}

static ferry_status plan_hashes(ferry_service *service, uint64_t *in_bytes_out, ferry_error *error)
{
    fy_exec *exec = service->exec;
    size_t n_out = 0, n_in = 0;
    *in_bytes_out = 0;
    if (service->options.checksum != FERRY_CHECKSUM_END) {
        return FERRY_OK;
    }
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        channel->own_hashes = n_out;
        channel->in_hashes = n_in * sizeof(uint64_t);
        n_out += channel->out.n_parts;
        n_in += channel->in.n_parts;
    }
    exec->local_hashes = n_out;
    exec->hashes = fy_alloc(n_out + exec->local.n_parts + 1, sizeof *exec->hashes);
    if (exec->hashes == NULL) {
        return fy_fail_no_memory(error, "hashes");
    }
    *in_bytes_out = n_in * sizeof(uint64_t);
    return FERRY_OK;
}

static ferry_status gather_needs(ferry_service *service, ferry_status own, const ferry_error *why,
                                 needs *most, ferry_error *error)
{
    fy_vote vote = {.status = own, .own = why, .bytes = most, .n_bytes = sizeof *most};
    fy_votes votes;
    ferry_status status = fy_votes_gather(service->world, &vote, &votes, error);
    if (status == FERRY_OK) {
        status = fy_votes_status(&votes, error);
    }
    size_t at = 0;
    size_t n_bytes;
    const void *bytes;
    for (uint32_t rank = 0;
         status == FERRY_OK && (bytes = fy_votes_next(&votes, rank, &at, &n_bytes)) != NULL;
         rank++) {
        needs its;
        if (n_bytes != sizeof its) {
            continue;
        }
        memcpy(&its, bytes, sizeof its);
        most->control = its.control > most->control ? its.control : most->control;
        most->slots = its.slots > most->slots ? its.slots : most->slots;
        most->hashes = its.hashes > most->hashes ? its.hashes : most->hashes;
    }
    return status;
}

/* All ranks keep the region or all make a new one, for all know the same lengths. */
static ferry_status provide(ferry_service *service, ferry_region **region, uint64_t bytes,
                            ferry_error *error)
{
    if (bytes <= ferry_region_bytes(*region)) {
        return FERRY_OK;
    }
    ferry_region_free(*region);
    *region = NULL;
    ferry_status status = ferry_region_alloc(service->transport, bytes, region, error);
    service->statistics.n_allocations += status == FERRY_OK;
    return status;
}

static bool has_staged(const fy_channel *channel)
{
    for (size_t i = 0; i < channel->out.n_items; i++) {
        if (channel->out.items[i].path == FERRY_PATH_STAGED) {
            return true;
        }
    }
    return false;
}

static bool lies_in(const ferry_region *region, uint64_t first, uint64_t bytes)
{
    uint64_t end;
    return fy_add(first, bytes, &end) && end <= ferry_region_bytes(region);
}

/* What a peer said of its words, slots and hashes, now that the memory is there that they lie in.
 */
static ferry_status check_channel(const ferry_service *service, const fy_channel *channel,
                                  ferry_error *error)
{
    uint64_t ring = channel->out_slots * (channel->out_payload + FY_SLOT_HEAD_BYTES);
    uint64_t words = FY_WORDS * sizeof(uint64_t);
    uint64_t hashes = channel->out.n_parts * sizeof(uint64_t);
    if (!lies_in(service->control, fy_word_offset(channel->theirs, 0), words) ||
        (has_staged(channel) && !lies_in(service->slots, channel->out_ring, ring)) ||
        (service->exec->hashes != NULL &&
         (channel->out_hashes % sizeof(uint64_t) != 0 ||
          !lies_in(service->hashes, channel->out_hashes, hashes)))) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "rank %u answered with slots, words or hashes that lie outside of the "
                       "memory that it shares with rank %u",
                       channel->peer, service->world->rank);
    }
    return FERRY_OK;
}

/* Where the rings of peers are mapped here, if they are. */
static ferry_status find_rings(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        ferry_status status = check_channel(service, channel, error);
        if (status != FERRY_OK) {
            return status;
        }
        char *base =
            has_staged(channel) ? ferry_region_pointer(service->slots, channel->peer) : NULL;
        channel->out_mapped = base == NULL ? NULL : base + channel->out_ring;
    }
    return FERRY_OK;
}

static ferry_status exchange_hash_places(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    fy_pack *out = fy_alloc_zeroed(2 * (size_t)exec->n_channels + 1, sizeof *out);
    fy_pack *in = out == NULL ? NULL : out + exec->n_channels;
    for (uint32_t c = 0; out != NULL && c < exec->n_channels; c++) {
        fy_pack_number(&out[c], exec->channels[c].in_hashes);
    }
    ferry_error why = {.message = ""};
    ferry_status status = out == NULL ? fy_fail_no_memory(&why, "hashes") : FERRY_OK;
    status = fy_agree(service->world, status, &why);
    if (status == FERRY_OK) {
        status = fy_pairs_exchange(service, out, in, &why);
    }
    for (uint32_t c = 0; status == FERRY_OK && c < exec->n_channels; c++) {
        fy_reader reader = {.at = in[c].bytes, .end = in[c].bytes + in[c].used};
        exec->channels[c].out_hashes = fy_read_number(&reader, UINT64_MAX);
        if (reader.failed || reader.at != reader.end) {
            status = fy_fail(&why, FERRY_ERR_EXCHANGE,
                             "rank %u did not say where the hashes of its items go",
                             exec->channels[c].peer);
        }
    }
    for (uint32_t c = 0; out != NULL && c < 2 * exec->n_channels; c++) {
        fy_pack_cleanup(&out[c]);
    }
    fy_free(out);
    return status == FERRY_OK ? FERRY_OK : fy_fail(error, status, "%s", why.message);
}

/*
 * Networks connect at the first put. A peer that dies while it connects is more than some engines
 * bear, and the first run should not wait for it: so both ends do it here.
 */
static ferry_status connect_peers(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_status status = FERRY_OK;
    for (uint32_t c = 0; status == FERRY_OK && c < exec->n_channels; c++) {
        const fy_channel *channel = &exec->channels[c];
        ferry_signal signal = {.region = service->control,
                               .offset = fy_word_offset(channel->theirs, FY_WORD_PULSE),
                               .value = 1,
                               .op = FERRY_SIGNAL_SET};
        if (!channel->direct) {
            status = ferry_put_signal(service->transport, channel->peer, service->control, 0,
                                      &nothing, &signal, NULL, error);
        }
    }
    return status == FERRY_OK ? ferry_flush(service->transport, FERRY_ANY_RANK, NULL, error)
                              : status;
}

ferry_status fy_staging_make(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    ferry_error why = {.message = ""};
    needs most = {.control = (uint64_t)exec->n_channels * FY_WORDS * sizeof(uint64_t)};
    ferry_status status = plan_parcels(service, end_of_rings(exec), &most.slots, &why);
    if (status == FERRY_OK) {
        status = plan_hashes(service, &most.hashes, &why);
    }
    status = gather_needs(service, status, &why, &most, error);
    if (status == FERRY_OK && most.control > 0) {
        status = provide(service, &service->control, most.control, error);
    }
    if (status == FERRY_OK && most.slots > 0) {
        status = provide(service, &service->slots, most.slots, error);
    }
    if (status == FERRY_OK && most.hashes > 0) {
        status = provide(service, &service->hashes, most.hashes, error);
    }
    if (status != FERRY_OK) {
        return status; /* on all ranks */
    }
    if (most.hashes > 0) {
        status = exchange_hash_places(service, &why);
    }
    if (status == FERRY_OK) {
        status = find_rings(service, &why);
    }
    status = fy_agree(service->world, status, &why);
    if (status != FERRY_OK) {
        return fy_fail(error, status, "%s", why.message);
    }
    service->statistics.staging_bytes = ferry_region_bytes(service->slots);
    return connect_peers(service, error);
}

void fy_staging_free(ferry_service *service)
{
    ferry_region_free(service->control);
    ferry_region_free(service->slots);
    ferry_region_free(service->hashes);
    service->control = service->slots = service->hashes = NULL;
}
