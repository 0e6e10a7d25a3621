/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank counts of its runs, and the times of its batches. */
#include "service/run.h"

#include <string.h>

static double seconds(int64_t ns)
{
    return (double)ns / 1e9;
}

void fy_statistics_begin(ferry_service *service)
{
    ferry_service_statistics *s = &service->statistics;
    s->bytes_local = s->bytes_mapped = s->bytes_remote = s->bytes_staged = 0;
    s->bytes_relayed = s->bytes_received = s->bytes_device = 0;
    s->bytes_skipped = s->bytes_filled = s->bytes_device_slots = 0;
    s->n_batches_sent = s->n_batches_received = 0;
    s->seconds = s->seconds_pack = s->seconds_wire = s->seconds_unpack = 0;
    s->seconds_check = s->seconds_wait = 0;
}

static void add_span(ferry_service *service, uint32_t kind, uint32_t peer, uint64_t batch,
                     uint64_t bytes, int64_t begin_ns, int64_t end_ns)
{
    fy_run_state *run = service->run;
    if (run->n_spans < run->span_capacity) {
        run->spans[run->n_spans++] = (ferry_span){.struct_size = sizeof(ferry_span),
                                                  .kind = kind,
                                                  .peer = peer,
                                                  .batch = batch,
                                                  .bytes = bytes,
                                                  .begin = seconds(begin_ns - run->begin_ns),
                                                  .end = seconds(end_ns - run->begin_ns)};
    }
}

void fy_statistics_wait(ferry_service *service)
{
    service->run->waits_since_ns = fy_now_ns();
}

void fy_statistics_go_on(ferry_service *service, int64_t now_ns)
{
    enum { SHOWN_NS = 20000 };
    int64_t since_ns = service->run->waits_since_ns;
    if (since_ns == 0) {
        return;
    }
    service->run->waits_since_ns = 0;
    service->statistics.seconds_wait += seconds(now_ns - since_ns);
    if (now_ns - since_ns > SHOWN_NS) {
        add_span(service, FERRY_SPAN_WAIT, FERRY_ANY_RANK, 0, 0, since_ns, now_ns);
    }
}

static uint64_t relayed_bytes(const fy_channel *channel, const fy_item *item)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; channel->relays && p < item->n_parts; p++) {
        const fy_item_part *part = &channel->out.parts[item->first_part + p];
        bytes += (part->end & FY_RELAYED) != 0 ? part->bytes : 0;
    }
    return bytes;
}

void fy_statistics_sent(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        int64_t begin_ns, int64_t end_ns)
{
    fy_statistics_go_on(service, begin_ns);
    ferry_service_statistics *s = &service->statistics;
    double elapsed = seconds(end_ns - begin_ns);
    uint32_t kind = FERRY_SPAN_COPY;
    s->n_batches_sent++;
    s->bytes_relayed += relayed_bytes(channel, item);
    switch (item->path) {
    case FERRY_PATH_MAPPED:
        s->bytes_mapped += item->bytes;
        s->seconds_pack += elapsed;
        break;
    case FERRY_PATH_REMOTE:
        s->bytes_remote += item->bytes;
        s->seconds_wire += elapsed;
        kind = FERRY_SPAN_WIRE;
        break;
    default:
        s->bytes_staged += item->bytes;
        s->seconds_pack += elapsed - service->run->wire_seconds;
        s->seconds_wire += service->run->wire_seconds;
        kind = FERRY_SPAN_PACK;
        break;
    }
    uint64_t number = (uint64_t)(item - channel->out.items);
    int64_t wire_ns = (int64_t)(service->run->wire_seconds * 1e9);
    service->run->wire_seconds = 0;
    add_span(service, kind, channel->peer, number, item->bytes, begin_ns, end_ns - wire_ns);
    if (wire_ns > 0) {
        add_span(service, FERRY_SPAN_WIRE, channel->peer, number, item->bytes, end_ns - wire_ns,
                 end_ns);
    }
}

/* They were counted with what was sent. */
void fy_statistics_skipped(ferry_service *service, uint32_t path, uint64_t bytes)
{
    ferry_service_statistics *s = &service->statistics;
    uint64_t *of_path = path == FERRY_PATH_LOCAL    ? &s->bytes_local
                        : path == FERRY_PATH_MAPPED ? &s->bytes_mapped
                        : path == FERRY_PATH_REMOTE ? &s->bytes_remote
                                                    : &s->bytes_staged;
    *of_path -= bytes;
    s->bytes_skipped += bytes;
}

void fy_statistics_received(ferry_service *service, const fy_channel *channel, const fy_item *item,
                            int64_t begin_ns, int64_t unpacked_ns)
{
    fy_statistics_go_on(service, begin_ns);
    ferry_service_statistics *s = &service->statistics;
    uint64_t number = (uint64_t)(item - channel->in.items);
    s->n_batches_received++;
    s->bytes_received += item->bytes;
    if (item->path == FERRY_PATH_STAGED) {
        s->seconds_unpack += seconds(unpacked_ns - begin_ns);
        add_span(service, FERRY_SPAN_UNPACK, channel->peer, number, item->bytes, begin_ns,
                 unpacked_ns);
    }
    if (service->program->checks_ends) {
        int64_t now_ns = fy_now_ns();
        s->seconds_check += seconds(now_ns - unpacked_ns);
        add_span(service, FERRY_SPAN_CHECK, channel->peer, number, item->bytes, unpacked_ns,
                 now_ns);
    }
}

/* Of an item of this rank to itself. */
static uint64_t filled_of(const ferry_service *service, const fy_item *item)
{
    const fy_lane *lane = &service->program->local;
    uint64_t bytes = 0;
    for (uint32_t p = 0; service->registry.n_fills > 0 && p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        bool fills = fy_end_fills(&service->registry, &service->registry.sends.items[part->end]);
        bytes += fills ? part->bytes : 0;
    }
    return bytes;
}

void fy_statistics_local(ferry_service *service, const fy_item *item, int64_t begin_ns,
                         int64_t copied_ns)
{
    fy_statistics_go_on(service, begin_ns);
    ferry_service_statistics *s = &service->statistics;
    int64_t now_ns = fy_now_ns();
    uint64_t number = (uint64_t)(item - service->program->local.items);
    s->bytes_local += item->bytes;
    s->bytes_filled += filled_of(service, item);
    s->seconds_pack += seconds(copied_ns - begin_ns);
    add_span(service, FERRY_SPAN_COPY, service->world->rank, number, item->bytes, begin_ns,
             copied_ns);
    if (service->program->checks_ends) {
        s->seconds_check += seconds(now_ns - copied_ns);
        add_span(service, FERRY_SPAN_CHECK, service->world->rank, number, item->bytes, copied_ns,
                 now_ns);
    }
}

void fy_statistics_end(ferry_service *service)
{
    int64_t now_ns = fy_now_ns();
    fy_statistics_go_on(service, now_ns); /* no wait is longer than the run */
    service->statistics.seconds = seconds(now_ns - service->run->begin_ns);
    service->statistics.n_runs += service->run->outcome.status == FERRY_OK;
}

ferry_status ferry_service_get_statistics(const ferry_service *service,
                                          ferry_service_statistics *statistics_out,
                                          ferry_error *error)
{
    FY_TRY(fy_check_use(service != NULL, "ferry_service_get_statistics needs a service", error));
    FY_TRY(fy_service_check_idle(service, "ferry_service_get_statistics", error));
    return fy_copy_out(&service->statistics, sizeof service->statistics, statistics_out,
                       "ferry_service_statistics", error);
}

/*
 * Peers
 */

static bool has_local(const fy_service_program *program)
{
    return program->local.n_items > 0;
}

uint32_t ferry_service_peer_count(const ferry_service *service)
{
    if (service == NULL || service->program == NULL || !service->registry.scheduled) {
        return 0;
    }
    return service->program->n_channels + has_local(service->program);
}

static void fill_peer(const ferry_service *service, const fy_channel *channel,
                      ferry_service_peer *out)
{
    out->peer = channel->peer;
    out->bytes_out = channel->out.bytes;
    out->bytes_in = channel->in.bytes;
    out->bytes_skipped =
        service->run->channels[fy_channel_number(service->program, channel)].skipped;
    out->paths = 0;
    out->engine = "";
    for (size_t i = 0; i < channel->out.n_items; i++) {
        out->paths |= channel->out.items[i].path;
    }
    ferry_transport_get_peer(service->transport, channel->peer, &out->engine, NULL, NULL);
}

ferry_status ferry_service_peer_at(const ferry_service *service, uint32_t index,
                                   ferry_service_peer *peer_out, ferry_error *error)
{
    FY_TRY(fy_check_use(index < ferry_service_peer_count(service),
                        "ferry_service_peer_at needs a scheduled service and an index below "
                        "ferry_service_peer_count",
                        error));
    ferry_service_peer found = FERRY_SERVICE_PEER_INIT;
    const fy_service_program *program = service->program;
    uint32_t before = 0; /* channels to ranks below this one */
    while (before < program->n_channels && program->channels[before].peer < service->world->rank) {
        before++;
    }
    if (!has_local(program) || index < before) {
        fill_peer(service, &program->channels[index], &found);
    } else if (index > before) {
        fill_peer(service, &program->channels[index - 1], &found);
    } else {
        found.peer = service->world->rank;
        found.paths = FERRY_PATH_LOCAL;
        found.engine = "";
        found.bytes_out = found.bytes_in = program->local.bytes;
        found.bytes_skipped = service->run->delta.local_skipped;
    }
    return fy_copy_out(&found, sizeof found, peer_out, "ferry_service_peer", error);
}

uint64_t ferry_service_span_count(const ferry_service *service)
{
    return service == NULL || service->run == NULL ? 0 : service->run->n_spans;
}

ferry_status ferry_service_span_at(const ferry_service *service, uint64_t index,
                                   ferry_span *span_out, ferry_error *error)
{
    FY_TRY(service == NULL ? FERRY_OK
                           : fy_service_check_idle(service, "ferry_service_span_at", error));
    FY_TRY(fy_check_use(index < ferry_service_span_count(service),
                        "ferry_service_span_at needs an index below ferry_service_span_count",
                        error));
    return fy_copy_out(&service->run->spans[index], sizeof *span_out, span_out, "ferry_span",
                       error);
}
