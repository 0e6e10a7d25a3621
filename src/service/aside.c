/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From memory of this rank's device to that of a peer's, over a network, by an engine that is
 * aside. Payloads go from slot to slot there, and never through the host. Heads are the host's, and
 * so are signals: they go by the peer's own engine, once the payloads are in place.
 */
#include "service/prepare.h"
#include "service/send.h"

#include "base/checked.h"
#include "transport/transport.h"

/* Larger than slots of the host's: each is packed and unpacked by a launch of its own. */
enum { MOST_SLOTS_ASIDE = 16, FEWEST_SLOTS_ASIDE = 4 };

/*
 * What is offered, and whether it is taken
 */

static bool lies_aside(const ferry_buffer *buffer, fy_space aside)
{
    return buffer->base == NULL || fy_same_space(fy_space_of(buffer), aside);
}

static bool end_lies_aside(const ferry_service *service, const fy_end *end, fy_space aside)
{
    const fy_held *held = &service->registry.held[end->held];
    return held->front.base != NULL && lies_aside(&held->front, aside) &&
           lies_aside(&held->back, aside);
}

/*
 * The CPU must not have to look at payloads: neither to check them on their way, nor to find what
 * differs, nor to hash what becomes of them at the receiver. And what comes in bands may wait
 * elsewhere.
 */
static bool may_come_aside(const ferry_service *service, const fy_end *end, fy_space aside)
{
    const fy_task_cast *how = fy_end_conversion(&service->registry, end);
    bool is_hashed = service->options.checksum == FERRY_CHECKSUM_END && fy_casts_on_arrival(how);
    return !is_hashed && !fy_is_banded(service, end) && end_lies_aside(service, end, aside);
}

static bool may_go_aside(const ferry_service *service, const fy_channel *channel)
{
    return service->options.checksum != FERRY_CHECKSUM_PATH && service->options.delta == 0 &&
           !channel->direct && fy_transport_is_aside(service->transport, channel->peer);
}

static bool wants_offer(const ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_end *receives = service->registry.receives.items;
    uint32_t n = wire->n_receives + wire->n_relayed_receives;
    fy_space aside = fy_transport_aside_space(service->transport);
    bool wants = n > 0 && may_go_aside(service, channel);
    for (uint32_t i = 0; wants && i < n; i++) {
        uint32_t receive = i < wire->n_receives ? wire->first_receive + i
                                                : wire->relayed_receives[i - wire->n_receives];
        wants = may_come_aside(service, &receives[receive], aside);
    }
    return wants;
}

void fy_aside_offer(ferry_service *service, uint64_t ring, uint64_t heads)
{
    fy_service_program *program = service->program;
    uint64_t at = 0;
    uint32_t n_slots = MOST_SLOTS_ASIDE;
    while (n_slots > FEWEST_SLOTS_ASIDE && ring / n_slots < FY_MOST_PAYLOAD) {
        n_slots /= 2;
    }
    uint64_t most = fy_min(service->options.slot_bytes, FY_MOST_PAYLOAD_ASIDE);
    uint64_t slot = ring / n_slots / FY_LEAST_PAYLOAD * FY_LEAST_PAYLOAD;
    uint64_t payload = slot < FY_SLOT_HEAD_BYTES + FY_LEAST_PAYLOAD ? 0 : slot - FY_SLOT_HEAD_BYTES;
    most = (most + FY_LEAST_PAYLOAD - 1) / FY_LEAST_PAYLOAD * FY_LEAST_PAYLOAD;
    payload = fy_min(payload, most);
    for (uint32_t c = 0; payload > 0 && c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        if (wants_offer(service, channel)) {
            channel->in_offer =
                (fy_offer){.ring = at, .heads = heads, .payload = payload, .n_slots = n_slots};
            at += n_slots * payload;
            heads += (uint64_t)n_slots * FY_SLOT_HEAD_BYTES;
        }
    }
}

bool fy_aside_is_taken(ferry_service *service, const fy_channel *channel)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_registry *registry = &service->registry;
    fy_space aside = fy_transport_aside_space(service->transport);
    bool takes = channel->out_offer.n_slots > 0 && may_go_aside(service, channel);
    for (uint32_t i = 0; takes && i < wire->n_sends; i++) {
        takes = end_lies_aside(service, &registry->sends.items[wire->first_send + i], aside);
    }
    for (uint32_t i = 0; takes && i < wire->n_relayed_sends; i++) {
        uint32_t receive = fy_receive_of_task(service, wire->relayed_sends[i]);
        takes = receive != FY_NONE &&
                end_lies_aside(service, &registry->receives.items[receive], aside);
    }
    return takes;
}

/*
 * Puts
 */

ferry_status fy_aside_begin(ferry_service *service, const fy_channel_state *state, uint32_t first,
                            uint32_t n, ferry_error *error)
{
    fy_run_state *run = service->run;
    const fy_channel *channel = state->channel;
    const fy_packing *packing = fy_packing_of(service, channel);
    const fy_item *items = &channel->out.items[first];
    uint32_t place = (run->packed.first_away + run->packed.n_away) % packing->n;
    fy_away *away = &run->packed.away[place];
    for (uint32_t i = 0; i < n; i++) {
        fy_slot slot = fy_slot_parcel(service, channel, state->parcel + i);
        fy_slot_head_write(service, channel, &items[i], &slot);
    }
    *away = (fy_away){.channel = fy_channel_number(service->program, channel),
                      .first = first,
                      .n = n,
                      .parcel = state->parcel};
    fy_slot parcel = fy_slot_parcel(service, channel, state->parcel);
    FY_TRY(fy_transport_begin(service->transport, channel->peer, service->slots_aside,
                              channel->out_ring + items->slot * channel->out_payload,
                              parcel.payload.at, (n - 1) * packing->payload + items[n - 1].bytes,
                              &away->ticket, error));
    run->packed.n_away++;
    for (uint32_t i = 0; i < n; i++) {
        service->statistics.bytes_device_slots += items[i].bytes;
    }
    return FERRY_OK;
}

/* Payloads are in place: heads follow, and behind them the word. */
static ferry_status tell(ferry_service *service, const fy_away *away, ferry_error *error)
{
    const fy_channel *channel = &service->program->channels[away->channel];
    const fy_item *items = &channel->out.items[away->first];
    ferry_buffer heads = ferry_buffer_of(fy_slot_parcel(service, channel, away->parcel).head,
                                         (uint64_t)away->n * FY_SLOT_HEAD_BYTES);
    ferry_signal signal = fy_arrival_after(service, channel, away->first + away->n);
    FY_TRY(fy_hashes_put(service, channel, items, away->n, error));
    return ferry_transport_put_signal(service->transport, channel->peer, service->slots,
                                      channel->out_heads + items->slot * FY_SLOT_HEAD_BYTES, &heads,
                                      &signal, NULL, error);
}

bool fy_aside_tell(ferry_service *service)
{
    fy_run_state *run = service->run;
    bool worked = false;
    while (run->packed.n_away > 0 && run->status == FERRY_OK) {
        const fy_away *away = &run->packed.away[run->packed.first_away];
        uint32_t peer = service->program->channels[away->channel].peer;
        ferry_error why;
        ferry_status status = fy_transport_reached(service->transport, away->ticket, &why);
        if (status == FERRY_ERR_TIMEOUT) {
            break;
        }
        FY_THEN(status, tell(service, away, &why));
        if (status != FERRY_OK) {
            fy_run_fail(service, status, peer, "%s", why.message);
        }
        run->packed.first_away = (run->packed.first_away + 1) % service->program->packing[true].n;
        run->packed.n_away--;
        worked = true;
    }
    return worked;
}

ferry_status fy_aside_is_there(ferry_service *service, uint32_t *peer_out, ferry_error *error)
{
    const fy_run_state *run = service->run;
    if (run->packed.n_away == 0) {
        return FERRY_OK;
    }
    uint32_t newest = run->packed.first_away + run->packed.n_away - 1;
    const fy_away *away = &run->packed.away[newest % service->program->packing[true].n];
    *peer_out = service->program->channels[away->channel].peer;
    return fy_transport_reached(service->transport, away->ticket, error);
}
