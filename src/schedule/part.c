/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/part.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "schedule/build.h"

#include <ferry/group.h>

#include <math.h>
#include <string.h>

enum { HASH_BYTES = 2 * sizeof(uint64_t) };

/* The bits of a double: no rounding on the way. */
static void pack_double(fy_pack *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    fy_pack_number(out, bits);
}

static double read_double(fy_reader *in)
{
    uint64_t bits = fy_read_number(in, UINT64_MAX);
    double value;
    memcpy(&value, &bits, sizeof value);
    in->failed = in->failed || !isfinite(value) || value < 0;
    return in->failed ? 0 : value;
}

static void pack_head(const ferry_schedule *whole, uint32_t rank, fy_pack *out)
{
    const ferry_schedule_report *report = &whole->report;
    fy_pack_number(out, rank);
    fy_pack_number(out, whole->network.n_ranks);
    fy_pack_number(out, whole->duplex);
    fy_pack_number(out, whole->slot_bytes);
    fy_pack_number(out, whole->digest.low);
    fy_pack_number(out, whole->digest.high);
    fy_pack_number(out, report->n_rounds);
    fy_pack_number(out, report->degree);
    fy_pack_number(out, report->n_batches);
    fy_pack_number(out, report->n_segments);
    fy_pack_number(out, report->bytes);
    fy_pack_number(out, report->relayed_bytes);
    fy_pack_number(out, report->has_seconds);
    pack_double(out, report->makespan);
    pack_double(out, report->bound);
    pack_double(out, report->ratio);
    fy_pack_number(out, report->bound_reason);
    fy_pack_number(out, report->bound_rank);
    pack_double(out, whole->idle[rank]);
}

static void pack_batch(const ferry_schedule *whole, uint64_t number, fy_pack *out)
{
    const fy_batch *batch = &whole->batches[number];
    fy_pack_number(out, batch->round);
    fy_pack_number(out, batch->from);
    fy_pack_number(out, batch->to);
    fy_pack_number(out, batch->n_segments);
    for (uint32_t i = 0; i < batch->n_segments; i++) {
        fy_segment segment = fy_schedule_segment(whole, batch, i);
        fy_pack_number(out, segment.is_relayed);
        fy_pack_number(out, segment.task_id);
        fy_pack_number(out, segment.first_byte);
        fy_pack_number(out, segment.bytes);
        if (segment.is_relayed) {
            fy_pack_number(out, segment.relay_task_id);
        }
    }
}

/* Both lists ascend, so merging them gives the order of the whole. */
static void pack_batches(const ferry_schedule *whole, uint32_t rank, fy_pack *out)
{
    const uint64_t *send = whole->sends + whole->send_begin[rank];
    const uint64_t *send_end = whole->sends + whole->send_begin[rank + 1];
    const uint64_t *recv = whole->recvs + whole->recv_begin[rank];
    const uint64_t *recv_end = whole->recvs + whole->recv_begin[rank + 1];
    fy_pack_number(out, (uint64_t)((send_end - send) + (recv_end - recv)));
    while (send < send_end || recv < recv_end) {
        bool sends = recv == recv_end || (send < send_end && *send < *recv);
        pack_batch(whole, sends ? *send++ : *recv++, out);
    }
}

void fy_part_pack(const ferry_schedule *whole, uint32_t rank, fy_pack *out)
{
    size_t begin = out->used;
    if (out->failed || !FY_RESERVE(out->bytes, out->capacity, begin + HASH_BYTES)) {
        out->failed = true;
        return;
    }
    out->used += HASH_BYTES; /* written once there is something to hash */
    pack_head(whole, rank, out);
    pack_batches(whole, rank, out);
    if (!out->failed) {
        size_t body = begin + HASH_BYTES;
        fy_hash128 hash = fy_hash128_of(out->bytes + body, out->used - body);
        memcpy(out->bytes + begin, &hash.low, sizeof hash.low);
        memcpy(out->bytes + begin + sizeof hash.low, &hash.high, sizeof hash.high);
    }
}

/* Whether the bytes are as they were packed; in then stands behind the hash. */
static bool open_part(fy_reader *in)
{
    fy_hash128 said;
    if ((size_t)(in->end - in->at) < HASH_BYTES) {
        return false;
    }
    memcpy(&said.low, in->at, sizeof said.low);
    memcpy(&said.high, in->at + sizeof said.low, sizeof said.high);
    in->at += HASH_BYTES;
    fy_hash128 hash = fy_hash128_of(in->at, (size_t)(in->end - in->at));
    return hash.low == said.low && hash.high == said.high;
}

static void read_head(fy_reader *in, uint32_t rank, uint32_t n_ranks, ferry_schedule *part)
{
    ferry_schedule_report *report = &part->report;
    in->failed = in->failed || fy_read_number(in, FERRY_MAX_RANKS) != rank ||
                 fy_read_number(in, FERRY_MAX_RANKS) != n_ranks;
    part->is_part = true;
    part->part_rank = rank;
    part->network = (fy_network){.n_ranks = n_ranks, .ranks_per_node = 1};
    part->duplex = (uint32_t)fy_read_number(in, FERRY_DUPLEX_HALF);
    part->slot_bytes = fy_read_number(in, UINT64_MAX);
    part->digest.low = fy_read_number(in, UINT64_MAX);
    part->digest.high = fy_read_number(in, UINT64_MAX);
    report->struct_size = sizeof *report;
    report->n_rounds = (uint32_t)fy_read_number(in, UINT32_MAX);
    report->degree = (uint32_t)fy_read_number(in, UINT32_MAX);
    report->n_batches = fy_read_number(in, UINT64_MAX);
    report->n_segments = fy_read_number(in, UINT64_MAX);
    report->bytes = fy_read_number(in, UINT64_MAX);
    report->relayed_bytes = fy_read_number(in, report->bytes);
    report->has_seconds = fy_read_number(in, 1) == 1;
    report->makespan = read_double(in);
    report->bound = read_double(in);
    report->ratio = read_double(in);
    report->bound_reason = (uint32_t)fy_read_number(in, FERRY_BOUND_NODE_INGRESS);
    report->bound_rank = (uint32_t)fy_read_number(in, n_ranks - 1);
    part->network.has_seconds = report->has_seconds;
}

/* What is read of a part, and what it has had so far. */
typedef struct reading {
    fy_reader *in;
    ferry_schedule *part;
    size_t batch_capacity;
    size_t segment_capacity;
    uint64_t n_sends;
    uint64_t n_recvs;
    uint64_t bytes;
    uint64_t relayed_bytes;
    uint64_t next_place[2]; /* the first round in which the rank may send, or receive */
} reading;

static ferry_status fail_damaged(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_EXCHANGE,
                   "the part of the schedule that rank 0 sent is damaged");
}

static ferry_status fail_part_memory(ferry_error *error)
{
    return fy_fail_no_memory(error, "a rank's part of a schedule");
}

static ferry_status read_segment(reading *r, fy_batch *batch, ferry_error *error)
{
    ferry_schedule *part = r->part;
    fy_reader *in = r->in;
    fy_segment segment = {.is_relayed = fy_read_number(in, 1) == 1};
    uint64_t end;
    segment.task_id = fy_read_number(in, UINT64_MAX);
    segment.first_byte = fy_read_number(in, UINT64_MAX);
    segment.bytes = fy_read_number(in, part->slot_bytes - batch->bytes);
    if (segment.is_relayed) {
        segment.relay_task_id = fy_read_number(in, UINT64_MAX);
        r->relayed_bytes += segment.bytes; /* no more than the bytes, which are checked */
    }
    if (in->failed || segment.bytes == 0 || !fy_add(segment.first_byte, segment.bytes, &end)) {
        return fail_damaged(error);
    }
    if (!FY_RESERVE(part->segments, r->segment_capacity, part->n_segments + 1)) {
        return fail_part_memory(error);
    }
    part->segments[part->n_segments++] = segment;
    batch->bytes += segment.bytes;
    return FERRY_OK;
}

/*
 * Batches ascend by (round, from), which no two share; the rank is one end of each, and its ports
 * are free in that round.
 */
static bool is_in_place(reading *r, const fy_batch *batch)
{
    const ferry_schedule *part = r->part;
    bool sends = batch->from == part->part_rank;
    if (batch->from == batch->to || (!sends && batch->to != part->part_rank) ||
        batch->round >= part->report.n_rounds) {
        return false;
    }
    if (part->n_batches > 0) {
        const fy_batch *last = &part->batches[part->n_batches - 1];
        if (batch->round < last->round ||
            (batch->round == last->round && batch->from <= last->from)) {
            return false;
        }
    }
    bool is_free = batch->round >= r->next_place[sends ? 0 : 1];
    for (int port = 0; port < 2; port++) {
        if (part->duplex == FERRY_DUPLEX_HALF || port == (sends ? 0 : 1)) {
            r->next_place[port] = (uint64_t)batch->round + 1;
        }
    }
    return is_free;
}

static ferry_status read_batch(reading *r, ferry_error *error)
{
    ferry_schedule *part = r->part;
    fy_reader *in = r->in;
    uint32_t n = part->network.n_ranks;
    fy_batch batch = {.first_segment = part->n_segments};
    batch.round = (uint32_t)fy_read_number(in, UINT32_MAX);
    batch.from = (uint32_t)fy_read_number(in, n - 1);
    batch.to = (uint32_t)fy_read_number(in, n - 1);
    batch.n_segments = (uint32_t)fy_read_number(in, UINT32_MAX);
    if (in->failed || batch.n_segments == 0 || !is_in_place(r, &batch)) {
        return fail_damaged(error);
    }
    for (uint32_t i = 0; i < batch.n_segments; i++) {
        FY_TRY(read_segment(r, &batch, error));
    }
    if (!fy_add(r->bytes, batch.bytes, &r->bytes)) {
        return fail_damaged(error);
    }
    if (!FY_RESERVE(part->batches, r->batch_capacity, part->n_batches + 1)) {
        return fail_part_memory(error);
    }
    part->batches[part->n_batches++] = batch;
    *(batch.from == part->part_rank ? &r->n_sends : &r->n_recvs) += 1;
    return FERRY_OK;
}

static ferry_status read_batches(reading *r, ferry_error *error)
{
    const ferry_schedule_report *report = &r->part->report;
    uint64_t n = fy_read_number(r->in, report->n_batches);
    ferry_status status = FERRY_OK;
    for (uint64_t i = 0; i < n && status == FERRY_OK; i++) {
        status = read_batch(r, error);
    }
    if (status == FERRY_OK &&
        (r->in->failed || r->in->at != r->in->end || r->n_sends > report->degree ||
         r->n_recvs > report->degree || r->part->n_segments > report->n_segments ||
         r->bytes > report->bytes || r->relayed_bytes > report->relayed_bytes)) {
        return fail_damaged(error);
    }
    return status;
}

static ferry_status list_ports(const reading *r, ferry_error *error)
{
    ferry_schedule *part = r->part;
    uint64_t *send, *recv;
    part->send_begin = fy_alloc_zeroed(4, sizeof *part->send_begin);
    part->sends = fy_alloc((size_t)part->n_batches, sizeof *part->sends);
    if (part->send_begin == NULL || part->sends == NULL) {
        return fail_part_memory(error);
    }
    part->recv_begin = part->send_begin + 2;
    part->recvs = part->sends + r->n_sends;
    part->send_begin[1] = r->n_sends;
    part->recv_begin[1] = r->n_recvs;
    send = part->sends;
    recv = part->recvs;
    for (uint64_t i = 0; i < part->n_batches; i++) {
        *(part->batches[i].from == part->part_rank ? send++ : recv++) = i;
    }
    return FERRY_OK;
}

/*
 * What a rank passes on it has received, so its part tells what its own batches wait for. What
 * others wait for before they send to it is not known here, nor of use: their relays do not count.
 */
static ferry_status list_waits(ferry_schedule *part, ferry_error *error)
{
    ferry_schedule view = *part;
    view.segments = fy_alloc((size_t)part->n_segments, sizeof *view.segments);
    if (view.segments == NULL) {
        return fail_part_memory(error);
    }
    if (part->n_segments > 0) {
        memcpy(view.segments, part->segments, part->n_segments * sizeof *view.segments);
    }
    for (uint64_t i = 0; i < part->n_batches; i++) {
        const fy_batch *batch = &part->batches[i];
        for (uint32_t k = 0; k < batch->n_segments && batch->to == part->part_rank; k++) {
            view.segments[batch->first_segment + k].is_relayed = false;
        }
    }
    ferry_status status = fy_schedule_list_waits(&view, error);
    part->wait_begin = view.wait_begin; /* freed with the part, whatever the outcome */
    part->waits = view.waits;
    fy_free(view.segments);
    /* A relay of what never arrived is no plan that anybody made. */
    return status == FERRY_ERR_INVALID_PLAN ? fail_damaged(error) : status;
}

static ferry_status read_part(reading *r, uint32_t rank, uint32_t n_ranks, ferry_error *error)
{
    ferry_schedule *part = r->part;
    part->idle = fy_alloc_zeroed(1, sizeof *part->idle);
    if (part->idle == NULL) {
        return fail_part_memory(error);
    }
    if (!open_part(r->in)) {
        return fail_damaged(error);
    }
    read_head(r->in, rank, n_ranks, part);
    part->idle[0] = read_double(r->in);
    if (r->in->failed || part->slot_bytes == 0 || part->idle[0] > part->report.makespan) {
        return fail_damaged(error);
    }
    ferry_status status = read_batches(r, error);
    FY_THEN(status, list_ports(r, error));
    return status == FERRY_OK && r->relayed_bytes > 0 ? list_waits(part, error) : status;
}

ferry_status fy_part_read(const unsigned char *bytes, size_t n_bytes, uint32_t rank,
                          uint32_t n_ranks, ferry_schedule **part_out, ferry_error *error)
{
    fy_reader in = {.at = bytes, .end = bytes + n_bytes};
    ferry_schedule *part = fy_alloc_zeroed(1, sizeof *part);
    if (part == NULL) {
        return fail_part_memory(error);
    }
    reading r = {.in = &in, .part = part};
    ferry_status status = read_part(&r, rank, n_ranks, error);
    if (status == FERRY_OK) {
        *part_out = part;
        part = NULL;
    }
    ferry_schedule_destroy(part);
    return status;
}
