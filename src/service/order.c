/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * In which order items go where a network lies between ranks: by the rounds of a schedule. That of
 * a whole plan knows relays; what was registered without one is scheduled from workloads.
 */
#include "service/star.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/order.h"
#include "world/agree.h"

#include <ferry/reference.h>

#include <string.h>

ferry_status fy_order_plan(ferry_service *service, uint64_t element_bytes, ferry_error *error)
{
    fy_star star;
    ferry_exchange exchange;
    ferry_schedule_options options = FERRY_SCHEDULE_OPTIONS_INIT;
    uint64_t slot_bytes = service->options.slot_bytes;
    options.slot_bytes = slot_bytes < element_bytes ? element_bytes : slot_bytes;
    options.max_tasks = service->options.max_tasks;
    options.no_relays = service->options.no_relays;
    ferry_status status = fy_star_open(&star, service, FERRY_OK, &exchange, error);
    FY_THEN(status, ferry_schedule_build_rooted(service->registry.plan, &options, &exchange,
                                                &service->program->rounds, error));
    fy_star_cleanup(&star);
    return status;
}

/* The send of a pair by its id, or FY_NONE: they are sorted. */
static uint32_t find_send(const ferry_service *service, const fy_channel *channel, uint64_t task_id)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_end *sends = service->registry.sends.items + wire->first_send;
    FY_BISECT(uint32_t, first, 0, wire->n_sends, middle, sends[middle].task_id < task_id);
    return first < wire->n_sends && sends[first].task_id == task_id ? first : FY_NONE;
}

static uint32_t find_relayed(const fy_channel_wire *wire, uint64_t task_id)
{
    FY_BISECT(uint32_t, first, 0, wire->n_relayed_sends, middle,
              wire->relayed_sends[middle] < task_id);
    return first < wire->n_relayed_sends && wire->relayed_sends[first] == task_id
               ? wire->n_sends + first
               : FY_NONE;
}

/* A segment of a plan's batch, where its path is the one that is cut now. */
static ferry_status cut_segment(ferry_service *service, fy_channel *channel,
                                const ferry_segment *segment, uint32_t path, uint64_t order,
                                ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    uint32_t place = segment->is_relayed ? find_relayed(wire, segment->task_id)
                                         : find_send(service, channel, segment->task_id);
    uint32_t end = segment->is_relayed ? fy_receive_of_task(service, segment->relay_task_id)
                   : place == FY_NONE  ? FY_NONE
                                       : wire->first_send + place;
    if (place == FY_NONE || end == FY_NONE) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "the schedule sends task %llu from rank %u to rank %u, which did not "
                       "register it",
                       (unsigned long long)segment->task_id, service->world->rank, channel->peer);
    }
    uint64_t has = segment->is_relayed ? service->registry.receives.items[end].bytes
                                       : service->registry.sends.items[end].bytes;
    has = channel->places == NULL ? has : fy_min(has, channel->places[place].bytes);
    if (segment->first_byte > has || segment->bytes > has - segment->first_byte) {
        return fy_fail(error, FERRY_ERR_EXCHANGE,
                       "the schedule sends bytes [%llu, %llu) of task %llu, which has %llu",
                       (unsigned long long)segment->first_byte,
                       (unsigned long long)(segment->first_byte + segment->bytes),
                       (unsigned long long)segment->task_id, (unsigned long long)has);
    }
    if (wire->wanted[place].path != path) {
        return FERRY_OK;
    }
    end |= segment->is_relayed ? FY_RELAYED : 0;
    return fy_items_cut(service, channel, end, place, segment->first_byte, segment->bytes, order,
                        error);
}

static ferry_status cut_batch(ferry_service *service, uint64_t number, ferry_error *error)
{
    const ferry_schedule *rounds = service->program->rounds;
    ferry_batch batch = FERRY_BATCH_INIT;
    ferry_segment segment = FERRY_SEGMENT_INIT;
    ferry_status status = ferry_schedule_batch_at(rounds, number, &batch, error);
    fy_channel *channel = status == FERRY_OK ? fy_channel_of(service->program, batch.to) : NULL;
    for (uint32_t path = 1; status == FERRY_OK && path < FERRY_PATH_ALL; path <<= 1) {
        for (uint32_t s = 0; status == FERRY_OK && s < batch.n_segments; s++) {
            status = ferry_schedule_segment_at(rounds, batch.first_segment + s, &segment, error);
            FY_THEN(status, cut_segment(service, channel, &segment, path, batch.round, error));
        }
    }
    return status;
}

static ferry_status cut_plan(ferry_service *service, ferry_error *error)
{
    const ferry_schedule *rounds = service->program->rounds;
    uint32_t self = service->world->rank;
    uint32_t n = ferry_schedule_send_count(rounds, self);
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
        uint64_t number = 0;
        status = ferry_schedule_send_at(rounds, self, i, &number, error);
        FY_THEN(status, cut_batch(service, number, error));
    }
    return status;
}

/*
 * What was registered
 */

static uint64_t wanted_bytes(const fy_channel_wire *wire, uint32_t place)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < wire->wanted[place].n_ranges; r++) {
        bytes += wire->ranges[wire->wanted[place].first_range + r].bytes;
    }
    return bytes;
}

/* What a slot holds at least: an element that is cast is not cut in two. */
static uint64_t slot_bytes_of(const ferry_service *service)
{
    const fy_registry *registry = &service->registry;
    uint64_t bytes = service->options.slot_bytes;
    for (size_t i = 0; i < registry->n_conversions; i++) {
        bytes = fy_max(bytes, registry->conversions[i].wire_bytes);
    }
    return bytes;
}

static ferry_status add_workloads(const ferry_service *service,
                                  ferry_reference_workloads *workloads, ferry_error *error)
{
    const fy_service_program *program = service->program;
    uint64_t slot_bytes = slot_bytes_of(service);
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        const fy_channel_wire *wire = fy_wire_of(service, channel);
        for (uint32_t i = 0; i < wire->n_sends; i++) {
            const fy_end *end = &service->registry.sends.items[wire->first_send + i];
            uint64_t bytes = wanted_bytes(wire, i);
            uint64_t element = end->element_bytes;
            if (bytes == 0) {
                continue;
            }
            if (element > fy_min(slot_bytes, UINT32_MAX) || bytes % element != 0) {
                element = 1;
            }
            FY_TRY(ferry_reference_workloads_add_task(workloads, end->task_id, channel->peer, bytes,
                                                      element, error));
        }
    }
    return ferry_reference_workloads_pack(workloads, slot_bytes, service->options.max_tasks, error);
}

/* Bytes of what is wanted of a task, one range behind the other. */
static ferry_status cut_stream(ferry_service *service, fy_channel *channel, uint32_t place,
                               uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_wanted *its = &wire->wanted[place];
    for (uint32_t r = 0; bytes > 0 && r < its->n_ranges; r++) {
        fy_range range = wire->ranges[its->first_range + r];
        if (first >= range.bytes) {
            first -= range.bytes;
            continue;
        }
        uint64_t n = range.bytes - first < bytes ? range.bytes - first : bytes;
        FY_TRY(fy_items_cut(service, channel, wire->first_send + place, place, range.first + first,
                            n, order, error));
        first = 0;
        bytes -= n;
    }
    return FERRY_OK;
}

static ferry_status cut_workload(ferry_service *service, const ferry_reference_workloads *workloads,
                                 const fy_sent_batch *sent, ferry_error *error)
{
    fy_channel *channel = fy_channel_of(service->program, sent->to);
    uint32_t n = ferry_reference_workloads_segment_count(workloads, sent->to, sent->index);
    ferry_status status = FERRY_OK;
    for (uint32_t path = 1; status == FERRY_OK && path < FERRY_PATH_ALL; path <<= 1) {
        for (uint32_t i = 0; status == FERRY_OK && i < n; i++) {
            ferry_reference_segment_id id;
            uint64_t first, bytes;
            status = ferry_reference_workloads_segment_at(workloads, sent->to, sent->index, i, &id,
                                                          &first, &bytes, error);
            uint32_t place = status == FERRY_OK ? find_send(service, channel, id.task_id) : FY_NONE;
            if (place != FY_NONE && fy_wire_of(service, channel)->wanted[place].path == path) {
                status = cut_stream(service, channel, place, first, bytes, sent->round, error);
            }
        }
    }
    return status;
}

static ferry_status schedule_workloads(ferry_service *service, ferry_status before,
                                       ferry_error *error)
{
    ferry_world *world = service->world;
    ferry_reference_workloads *workloads = NULL;
    fy_send_order order = {0};
    fy_star star;
    ferry_exchange exchange;
    ferry_error why = *error;
    ferry_status status = before;
    FY_THEN(status,
            ferry_reference_workloads_create(world->rank, world->n_ranks, &workloads, &why));
    FY_THEN(status, add_workloads(service, workloads, &why));
    status = fy_star_open(&star, service, status, &exchange, &why);
    FY_THEN(status, fy_build_order(workloads, &exchange, &order, &why));
    for (size_t i = 0; status == FERRY_OK && i < order.n; i++) {
        status = cut_workload(service, workloads, &order.batches[i], &why);
    }
    fy_free(order.batches);
    ferry_reference_workloads_destroy(workloads);
    fy_star_cleanup(&star);
    return fy_forward(error, status, &why);
}

ferry_status fy_order_sends(ferry_service *service, ferry_status before, ferry_error *error)
{
    if (service->program->rounds == NULL) {
        return schedule_workloads(service, before, error);
    }
    return before == FERRY_OK ? cut_plan(service, error) : before;
}
