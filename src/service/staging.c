/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The symmetric memory of a service: words of channels, slots, hashes, digests, and slots in memory
 * of devices. Regions have the same length on all ranks, so each is as long as the rank with the
 * largest need asks for; they are kept while they are long enough.
 */
#include "service/delta.h"
#include "service/prepare.h"
#include "service/slots.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "transport/region.h"
#include "transport/word.h"
#include "world/agree.h"

#include <string.h>

enum { MOST_PARCELS = 64 };

/* The regions of a service; of what length is agreed on for all at once. */
enum { CONTROL, SLOTS, HASHES, DIGESTS, SLOTS_ASIDE, N_REGIONS };

static ferry_region **region_at(ferry_service *service, int which)
{
    return which == CONTROL   ? &service->control
           : which == SLOTS   ? &service->slots
           : which == HASHES  ? &service->hashes
           : which == DIGESTS ? &service->digests
                              : &service->slots_aside;
}

static bool reaches_rings(ferry_service *service, uint32_t peer)
{
    uint32_t can = 0;
    ferry_transport_get_peer(service->transport, peer, NULL, &can, NULL);
    return can != UINT32_MAX && (can & FERRY_CAN_PEER_POINTER) != 0;
}

/* Memory for packing on the sending side, where slots of peers are not mapped here. */
static ferry_status plan_packing(ferry_service *service, bool aside, fy_field needs[N_REGIONS],
                                 ferry_error *error)
{
    fy_service_program *program = service->program;
    uint64_t *end = &needs[aside ? SLOTS_ASIDE : SLOTS].value;
    uint64_t payload = 0;
    uint64_t n_items = 0;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        for (size_t i = 0; i < channel->out.n_items && channel->out_aside == aside; i++) {
            const fy_item *item = &channel->out.items[i];
            if (item->path == FERRY_PATH_STAGED && !channel->reaches_ring) {
                payload = channel->out_payload > payload ? channel->out_payload : payload;
                n_items++;
            }
        }
    }
    if (n_items == 0) {
        return FERRY_OK;
    }
    payload = (payload + 63) / 64 * 64;
    uint64_t step = fy_slot_step(payload, aside);
    uint64_t most = fy_staging_share(service) / (payload + FY_SLOT_HEAD_BYTES);
    most = most < MOST_PARCELS ? most : MOST_PARCELS;
    most = most < n_items ? most : n_items;
    if (most == 0) {
        return fy_fail(
            error, FERRY_ERR_LIMIT, "a memory cap of %llu bytes leaves no room to pack %llu",
            (unsigned long long)service->options.memory_cap, (unsigned long long)payload);
    }
    program->packing[aside] = (fy_packing){
        .n = (uint32_t)most, .payload = payload, .first = *end, .heads = needs[SLOTS].value};
    *end += most * step;
    needs[SLOTS].value += aside ? most * FY_SLOT_HEAD_BYTES : 0;
    return FERRY_OK;
}

/* The ends of the rings that are used; where none is, none is made. */
static void end_rings(const fy_service_program *program, fy_field needs[N_REGIONS])
{
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        uint64_t *end = &needs[channel->in_aside ? SLOTS_ASIDE : SLOTS].value;
        uint64_t ring = channel->in_slots * fy_slot_step(channel->in_payload, channel->in_aside);
        if (channel->in_staged) {
            *end = fy_max(*end, channel->in_ring + ring);
        }
        if (channel->in_staged && channel->in_aside) {
            uint64_t heads = (uint64_t)channel->in_slots * FY_SLOT_HEAD_BYTES;
            needs[SLOTS].value = fy_max(needs[SLOTS].value, channel->in_heads + heads);
        }
    }
}

/* What this rank packs lies behind what comes to it. */
static ferry_status plan_slots(ferry_service *service, fy_field needs[N_REGIONS],
                               ferry_error *error)
{
    fy_service_program *program = service->program;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        channel->reaches_ring = !channel->out_aside && reaches_rings(service, channel->peer);
    }
    end_rings(program, needs);
    FY_TRY(plan_packing(service, false, needs, error));
    return plan_packing(service, true, needs, error);
}

/* How many bytes come in. */
static uint64_t plan_hashes(ferry_service *service)
{
    fy_service_program *program = service->program;
    size_t n_out = 0, n_in = 0;
    if (service->options.checksum != FERRY_CHECKSUM_END) {
        return 0;
    }
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        channel->own_hashes = n_out;
        channel->own_found = n_in;
        channel->in_hashes = n_in * sizeof(uint64_t);
        n_out += channel->out.n_parts;
        n_in += channel->in.n_parts;
    }
    program->local_hashes = n_out;
    program->local_found = n_in;
    program->n_found = n_in + program->local.n_parts;
    program->n_hashes = n_out + program->local.n_parts;
    program->checks_ends = true;
    return n_in * sizeof(uint64_t);
}

/* A window of digests for each channel: how many bytes come in. */
static uint64_t plan_digests(ferry_service *service)
{
    fy_service_program *program = service->program;
    uint64_t n_out = 0, n_in = 0;
    if (service->options.delta == 0) {
        return 0;
    }
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        channel->out_digest_bytes = fy_delta_item_bytes(&channel->out);
        channel->in_digest_bytes = fy_delta_item_bytes(&channel->in);
        channel->out_digests = n_out;
        channel->in_digests = n_in;
        n_out += FY_DELTA_WINDOW * channel->out_digest_bytes;
        n_in += FY_DELTA_WINDOW * channel->in_digest_bytes;
    }
    program->told_digests = n_in;
    program->own_digests = service->registry.has_far ? n_out : 0;
    program->is_delta = true;
    return n_out;
}

/*
 * All ranks keep a region or all make a new one, for all know the same lengths. A rank that fails
 * with one takes part in the next, for peers wait for it there.
 */
static ferry_status provide(ferry_service *service, ferry_region *fresh[N_REGIONS],
                            const fy_field needs[N_REGIONS], ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (int i = 0; i < N_REGIONS; i++) {
        ferry_region **region = region_at(service, i);
        uint64_t noted = i == CONTROL ? needs[i].value : 0;
        if (needs[i].value <=
            (i == CONTROL ? fy_region_noted(*region) : ferry_region_bytes(*region))) {
            continue;
        }
        ferry_region_free(*region);
        *region = fresh[i];
        fresh[i] = NULL;
        if (i == SLOTS_ASIDE) {
            (*region)->view.space = fy_transport_aside_space(service->transport);
        }
        ferry_error why;
        ferry_status its =
            fy_region_furnish(*region, needs[i].value + fy_notes_bytes(noted), noted, &why);
        service->statistics.n_allocations += its == FERRY_OK;
        if (its != FERRY_OK && status == FERRY_OK) {
            status = fy_forward(error, its, &why);
        }
    }
    return status;
}

/* One that some rank has not got is of no use: all make it anew the next time. */
static void forget_regions(ferry_service *service)
{
    for (int i = 0; i < N_REGIONS; i++) {
        fy_region_destroy(*region_at(service, i));
        *region_at(service, i) = NULL;
    }
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
    const ferry_region *slots = channel->out_aside ? service->slots_aside : service->slots;
    uint64_t ring = channel->out_slots * fy_slot_step(channel->out_payload, channel->out_aside);
    uint64_t heads = channel->out_aside ? (uint64_t)channel->out_slots * FY_SLOT_HEAD_BYTES : 0;
    uint64_t words = FY_WORDS * sizeof(uint64_t);
    uint64_t hashes = channel->out.n_parts * sizeof(uint64_t);
    uint64_t digests = FY_DELTA_WINDOW * channel->in_digest_bytes;
    uint64_t first_word = fy_word_offset(channel->theirs, 0);
    if (first_word + words > fy_region_noted(service->control) ||
        (has_staged(channel) && !lies_in(slots, channel->out_ring, ring)) ||
        (has_staged(channel) && !lies_in(service->slots, channel->out_heads, heads)) ||
        (service->program->checks_ends &&
         (channel->out_hashes % sizeof(uint64_t) != 0 ||
          !lies_in(service->hashes, channel->out_hashes, hashes))) ||
        (digests > 0 && !lies_in(service->digests, channel->their_digests, digests))) {
        return fy_fail(
            error, FERRY_ERR_EXCHANGE,
            "rank %u answered with slots, words or hashes, or digests, that lie outside of the "
            "memory that it shares with rank %u",
            channel->peer, service->world->rank);
    }
    return FERRY_OK;
}

static ferry_status check_channels(const ferry_service *service, ferry_error *error)
{
    const fy_service_program *program = service->program;
    ferry_status status = FERRY_OK;
    for (uint32_t c = 0; status == FERRY_OK && c < program->n_channels; c++) {
        status = check_channel(service, &program->channels[c], error);
    }
    return status;
}

/* Where the rings of peers are mapped here, if they are: once all ranks have made them. */
static void find_rings(ferry_service *service)
{
    fy_service_program *program = service->program;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        bool may_be_mapped = has_staged(channel) && !channel->out_aside;
        char *base = may_be_mapped ? ferry_region_pointer(service->slots, channel->peer) : NULL;
        channel->out_mapped = base == NULL ? NULL : base + channel->out_ring;
    }
}

static ferry_status write_hash_place(ferry_service *service, fy_channel *channel, fy_pack *out,
                                     ferry_error *error)
{
    (void)service, (void)error;
    fy_pack_number(out, channel->in_hashes);
    fy_pack_number(out, channel->out_digests);
    return FERRY_OK;
}

static ferry_status read_hash_place(ferry_service *service, fy_channel *channel, const fy_pack *in,
                                    ferry_error *error)
{
    (void)service;
    fy_reader reader = fy_reader_of(in->bytes, in->used);
    channel->out_hashes = fy_read_number(&reader, UINT64_MAX);
    channel->their_digests = fy_read_number(&reader, UINT64_MAX);
    return fy_read_all(&reader)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_EXCHANGE,
                         "rank %u did not say where hashes and digests of items go", channel->peer);
}

/*
 * Networks connect at the first put. A peer that dies while it connects is more than some engines
 * bear, and the first run should not wait for it: so both ends do it here.
 */
static ferry_status connect_peers(ferry_service *service, ferry_error *error)
{
    fy_service_program *program = service->program;
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_status status = FERRY_OK;
    for (uint32_t c = 0; status == FERRY_OK && c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        ferry_signal signal = {.region = service->control,
                               .offset = fy_word_offset(channel->theirs, FY_WORD_PULSE),
                               .value = 1,
                               .op = FERRY_SIGNAL_SET};
        if (!channel->direct) {
            status = ferry_transport_put_signal(service->transport, channel->peer, service->control,
                                                0, &nothing, &signal, NULL, error);
        }
    }
    return status == FERRY_OK
               ? ferry_transport_flush(service->transport, FERRY_ANY_RANK, NULL, error)
               : status;
}

/* How much this rank needs, and regions that are still empty. */
static ferry_status plan(ferry_service *service, fy_field needs[N_REGIONS],
                         ferry_region *fresh[N_REGIONS], ferry_error *error)
{
    fy_service_program *program = service->program;
    needs[CONTROL].value = (uint64_t)program->n_channels * FY_WORDS * sizeof(uint64_t);
    ferry_status status = plan_slots(service, needs, error);
    FY_THEN(status, fy_run_state_create(service, &service->run, error));
    for (int i = 0; status == FERRY_OK && i < N_REGIONS; i++) {
        status = fy_region_new(service->transport, FY_REGION_SYMMETRIC, &fresh[i], error);
    }
    return status;
}

ferry_status fy_staging_make(ferry_service *service, bool connects, ferry_status before,
                             ferry_error *error)
{
    fy_field needs[N_REGIONS] = {
        {.how = FY_MOST}, {.how = FY_MOST}, {.how = FY_MOST}, {.how = FY_MOST}, {.how = FY_MOST}};
    ferry_region *fresh[N_REGIONS] = {NULL};
    ferry_status status = before;
    if (status == FERRY_OK) {
        needs[HASHES].value = plan_hashes(service);
        needs[DIGESTS].value = plan_digests(service);
    }
    if (service->options.checksum == FERRY_CHECKSUM_END || service->options.delta != 0) {
        status = fy_converse(service, status, write_hash_place, read_hash_place, error);
    }
    FY_THEN(status, plan(service, needs, fresh, error));
    status = fy_agree_on(service->world, FY_JOINT_SERVICE_SCHEDULE, fy_service_object(service),
                         needs, N_REGIONS, status, error);
    if (status == FERRY_OK) {
        status = provide(service, fresh, needs, error);
        FY_THEN(status, check_channels(service, error));
        FY_THEN(status, fy_service_compile(service->program, error));
        FY_THEN(status, fy_run_state_furnish(service, error));
        status = fy_agree(service->world, status, error);
        if (status == FERRY_OK) {
            find_rings(service);
        } else {
            forget_regions(service);
        }
    }
    for (int i = 0; i < N_REGIONS; i++) {
        fy_region_destroy(fresh[i]);
    }
    if (status != FERRY_OK) {
        return status;
    }
    service->statistics.staging_bytes = ferry_region_bytes(service->slots) +
                                        ferry_region_bytes(service->slots_aside) +
                                        fy_products_scheduled(service) + fy_makings_bytes(service);
    return connects ? fy_agree(service->world, connect_peers(service, error), error) : FERRY_OK;
}

void fy_staging_free(ferry_service *service)
{
    ferry_region_free(service->control);
    ferry_region_free(service->slots);
    ferry_region_free(service->hashes);
    ferry_region_free(service->digests);
    ferry_region_free(service->slots_aside);
    service->control = service->slots = service->hashes = service->digests = NULL;
    service->slots_aside = NULL;
}
