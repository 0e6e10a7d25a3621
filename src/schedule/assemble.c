/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"

#include <string.h>

/* Numbers the rounds in use from 0; *n_out of them. */
static ferry_status number_rounds(const fy_deal *deal, uint32_t **number_out, uint32_t *n_out,
                                  ferry_error *error)
{
    uint32_t end = 0, n = 0;
    for (size_t i = 0; i < deal->n_batches; i++) {
        end = deal->batches[i].round >= end ? deal->batches[i].round + 1 : end;
    }
    uint32_t *number = fy_alloc_zeroed(end, sizeof *number);
    FY_TRY(fy_check_memory(number != NULL, "the rounds of a schedule", error));
    for (size_t i = 0; i < deal->n_batches; i++) {
        number[deal->batches[i].round] = 1;
    }
    for (uint32_t round = 0; round < end; round++) {
        uint32_t used = number[round];
        number[round] = n;
        n += used;
    }
    *number_out = number;
    *n_out = n;
    return FERRY_OK;
}

/* A stable pass of a radix sort: order_out lists batches by their keys, which are below n_keys. */
static ferry_status sort_by(const uint32_t *keys, uint32_t n_keys, const uint32_t *order, size_t n,
                            uint32_t *order_out, ferry_error *error)
{
    size_t *begin = fy_alloc_zeroed((size_t)n_keys + 1, sizeof *begin);
    FY_TRY(fy_check_memory(begin != NULL, "the batches of a schedule", error));
    for (size_t i = 0; i < n; i++) {
        begin[keys[i] + 1]++;
    }
    for (uint32_t key = 0; key < n_keys; key++) {
        begin[key + 1] += begin[key];
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t batch = order == NULL ? (uint32_t)i : order[i];
        order_out[begin[keys[batch]]++] = batch;
    }
    fy_free(begin);
    return FERRY_OK;
}

/* By round, then by sender, of which a round has each at most once. */
static ferry_status sort_batches(ferry_schedule *s, const fy_deal *deal, ferry_error *error)
{
    uint32_t n_rounds = 0, *number = NULL;
    size_t n = deal->n_batches;
    uint32_t *columns = fy_alloc(3 * n, sizeof *columns);
    ferry_status status = number_rounds(deal, &number, &n_rounds, error);
    s->batches = fy_alloc(n, sizeof *s->batches);
    if (status == FERRY_OK && (columns == NULL || s->batches == NULL)) {
        status = fy_fail_no_memory(error, "the batches of a schedule");
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        columns[i] = deal->batches[i].from;
    }
    FY_THEN(status, sort_by(columns, s->network.n_ranks, NULL, n, columns + n, error));
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        columns[i] = number[deal->batches[i].round];
    }
    FY_THEN(status, sort_by(columns, n_rounds, columns + n, n, columns + 2 * n, error));
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        uint32_t batch = columns[2 * n + i];
        s->batches[i] = deal->batches[batch];
        s->batches[i].round = columns[batch];
        columns[n + batch] = (uint32_t)i;
    }
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        uint32_t by = s->batches[i].brought_by;
        s->batches[i].brought_by = by == 0 ? 0 : columns[n + by - 1] + 1;
    }
    if (status == FERRY_OK) {
        s->n_batches = n;
        s->report.n_rounds = n_rounds;
    }
    fy_free(columns);
    fy_free(number);
    return status;
}

/* Listed ones keep their numbers; others are numbered in the order of the batches. */
static void take_segments(ferry_schedule *s, fy_deal *deal)
{
    s->segments = deal->segments;
    deal->segments = NULL;
    for (uint64_t i = 0; i < s->n_batches; i++) {
        fy_batch *batch = &s->batches[i];
        if (s->segments == NULL) {
            batch->first_segment = s->n_segments;
        }
        s->n_segments += batch->n_segments;
        s->report.bytes += batch->bytes;
        for (uint32_t k = 0; s->segments != NULL && k < batch->n_segments; k++) {
            const fy_segment *segment = &s->segments[batch->first_segment + k];
            s->report.relayed_bytes += segment->is_relayed ? segment->bytes : 0;
        }
    }
}

/* The batches of each rank's port, in order; returns the most that one has. */
static uint32_t list_port(const ferry_schedule *s, bool sends, uint64_t *begin, uint64_t *list)
{
    uint32_t n = s->network.n_ranks;
    uint64_t most = 0;
    for (uint64_t i = 0; i < s->n_batches; i++) {
        begin[(sends ? s->batches[i].from : s->batches[i].to) + 1]++;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        most = fy_max(most, begin[rank + 1]);
        begin[rank + 1] += begin[rank];
    }
    for (uint64_t i = s->n_batches; i-- > 0;) { /* backwards: begin[] is the running end */
        uint32_t rank = sends ? s->batches[i].from : s->batches[i].to;
        list[--begin[rank + 1]] = i;
    }
    memmove(begin, begin + 1, n * sizeof *begin);
    begin[n] = s->n_batches;
    return (uint32_t)most;
}

/* A batch that relays waits for the one that brought all of it. */
static ferry_status list_waits(ferry_schedule *s, ferry_error *error)
{
    uint64_t n = 0;
    if (s->report.relayed_bytes == 0) {
        return FERRY_OK;
    }
    s->wait_begin = fy_alloc(s->n_batches + 1, sizeof *s->wait_begin);
    s->waits = fy_alloc(s->n_batches, sizeof *s->waits);
    if (s->wait_begin == NULL || s->waits == NULL) {
        return fy_fail_no_memory(error, "the waits of a schedule");
    }
    for (uint64_t i = 0; i < s->n_batches; i++) {
        s->wait_begin[i] = n;
        if (s->batches[i].brought_by != 0) {
            s->waits[n++] = s->batches[i].brought_by - 1;
        }
    }
    s->wait_begin[s->n_batches] = n;
    return FERRY_OK;
}

static ferry_status list_ranks(ferry_schedule *s, ferry_error *error)
{
    size_t n = s->network.n_ranks;
    s->send_begin = fy_alloc_zeroed(2 * (n + 1), sizeof *s->send_begin);
    s->sends = fy_alloc(2 * s->n_batches, sizeof *s->sends);
    s->idle = fy_alloc_zeroed(n, sizeof *s->idle);
    if (s->send_begin == NULL || s->sends == NULL || s->idle == NULL) {
        return fy_fail_no_memory(error, "the lists of a schedule");
    }
    s->recv_begin = s->send_begin + n + 1;
    s->recvs = s->sends + s->n_batches;
    uint32_t sent = list_port(s, true, s->send_begin, s->sends);
    uint32_t arrived = list_port(s, false, s->recv_begin, s->recvs);
    s->report.degree = sent > arrived ? sent : arrived;
    return FERRY_OK;
}

static ferry_status copy_network(const fy_network *from, fy_network *to, ferry_error *error)
{
    *to = *from;
    to->node_rate = NULL;
    to->rank_rate = fy_alloc(from->n_ranks, sizeof *to->rank_rate);
    to->node_rate = fy_alloc(from->n_nodes, sizeof *to->node_rate);
    if (to->rank_rate == NULL || to->node_rate == NULL) {
        return fy_fail_no_memory(error, "the rates of a schedule");
    }
    memcpy(to->rank_rate, from->rank_rate, from->n_ranks * sizeof *to->rank_rate);
    if (from->n_nodes != 0) {
        memcpy(to->node_rate, from->node_rate, from->n_nodes * sizeof *to->node_rate);
    }
    return FERRY_OK;
}

static void digest_batch(const ferry_schedule *s, const fy_batch *batch, fy_digest *digest)
{
    uint64_t head[] = {batch->round, batch->from, batch->to, batch->n_segments};
    fy_digest_u64s(digest, head, sizeof head / sizeof head[0]);
    for (uint32_t k = 0; k < batch->n_segments; k++) {
        fy_segment segment = fy_schedule_segment(s, batch, k);
        uint64_t relayed = segment.is_relayed ? segment.relay_task_id : 0;
        uint64_t words[] = {segment.task_id, segment.first_byte, segment.bytes, segment.is_relayed,
                            relayed};
        fy_digest_u64s(digest, words, sizeof words / sizeof words[0]);
    }
}

/* Batches come in blocks: a record of millions of them never lies in memory at once. */
enum { HASH_BLOCK = 512 };

ferry_status fy_schedule_make_digest(ferry_schedule *s, ferry_error *error)
{
    fy_digest digest = {0};
    fy_digest_u64(&digest, s->network.n_ranks);
    fy_digest_u64(&digest, s->duplex);
    for (uint64_t i = 0; i < s->n_batches; i++) {
        digest_batch(s, &s->batches[i], &digest);
        if (i % HASH_BLOCK == HASH_BLOCK - 1) {
            fy_digest_hash(&digest, fy_digest_take(&digest));
        }
    }
    bool failed = digest.failed;
    s->digest = fy_digest_take(&digest);
    fy_digest_cleanup(&digest);
    return failed ? fy_fail_no_memory(error, "the digest of a schedule") : FERRY_OK;
}

static void fill_report(ferry_schedule *s, const fy_job *job, double makespan)
{
    ferry_schedule_report *report = &s->report;
    report->struct_size = sizeof *report;
    report->n_batches = s->n_batches;
    report->n_segments = s->n_segments;
    report->has_seconds = job->network->has_seconds;
    report->makespan = makespan;
    report->bound = job->bound.time;
    report->bound_reason = job->bound.reason;
    report->bound_rank = job->bound.rank;
    report->ratio = job->bound.time > 0 ? makespan / job->bound.time : 1;
}

ferry_status fy_schedule_assemble(const fy_job *job, fy_deal *deal, ferry_schedule **schedule_out,
                                  ferry_error *error)
{
    double makespan = 0;
    ferry_schedule *s = fy_alloc_zeroed(1, sizeof *s);
    FY_TRY(fy_check_memory(s != NULL, "a schedule", error));
    s->duplex = job->duplex;
    s->slot_bytes = job->slot_bytes;
    ferry_status status = copy_network(job->network, &s->network, error);
    FY_THEN(status, sort_batches(s, deal, error));
    if (status == FERRY_OK) {
        take_segments(s, deal);
        status = list_ranks(s, error);
    }
    FY_THEN(status, list_waits(s, error));
    FY_THEN(status, fy_schedule_time(s, &makespan, s->idle, error));
    if (status != FERRY_OK) {
        ferry_schedule_destroy(s);
        return status;
    }
    fill_report(s, job, makespan);
    *schedule_out = s;
    return FERRY_OK;
}
