/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/deal.h"

#include "base/alloc.h"
#include "base/checked.h"

/* Only a pair of more tasks than a batch may have needs to be walked. */
static uint64_t room_of(const fy_deal *deal, uint32_t number)
{
    const fy_pair *pair = &deal->pairs->pairs[number];
    const fy_hand *hand = &deal->hands[number];
    uint32_t end = pair->first + pair->n_tasks;
    if (end - hand->task <= deal->max_tasks) {
        return fy_min(hand->rest, deal->slot_bytes);
    }
    uint64_t room = 0;
    for (uint32_t i = 0; i < deal->max_tasks && room < deal->slot_bytes; i++) {
        room += deal->pairs->tasks[hand->task + i].bytes - (i == 0 ? hand->offset : 0);
    }
    return fy_min(room, deal->slot_bytes);
}

ferry_status fy_deal_init(fy_deal *deal, const fy_pairs *pairs, uint64_t slot_bytes,
                          uint32_t max_tasks, ferry_error *error)
{
    *deal = (fy_deal){.pairs = pairs, .slot_bytes = slot_bytes, .max_tasks = max_tasks};
    deal->hands = fy_alloc(pairs->n_pairs, sizeof *deal->hands);
    FY_TRY(fy_check_memory(deal->hands != NULL, "the pairs of a schedule", error));
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        deal->hands[i] = (fy_hand){.rest = pairs->pairs[i].bytes, .task = pairs->pairs[i].first};
        deal->hands[i].room = room_of(deal, i);
    }
    return FERRY_OK;
}

void fy_deal_cleanup(fy_deal *deal)
{
    fy_free(deal->hands);
    fy_free(deal->batches);
    fy_free(deal->segments);
    *deal = (fy_deal){0};
}

ferry_status fy_deal_open(fy_deal *deal, uint32_t from, uint32_t to, uint32_t round,
                          ferry_error *error)
{
    FY_TRY(FY_GROW(deal->batches, deal->batch_capacity, deal->n_batches + 1,
                   "the batches of a schedule", error));
    deal->batches[deal->n_batches++] =
        (fy_batch){.round = round, .from = from, .to = to, .first_segment = deal->n_segments};
    return FERRY_OK;
}

ferry_status fy_deal_add(fy_deal *deal, const fy_segment *segment, ferry_error *error)
{
    fy_batch *batch = &deal->batches[deal->n_batches - 1];
    FY_TRY(FY_GROW(deal->segments, deal->segment_capacity, deal->n_segments + 1,
                   "the segments of a schedule", error));
    deal->segments[deal->n_segments++] = *segment;
    batch->n_segments++;
    batch->bytes += segment->bytes;
    return FERRY_OK;
}

/*
 * How much of the current task fits into bytes, cut at elements; the hand moves on behind it. 0:
 * not one element does.
 */
static uint64_t next_part(const fy_deal *deal, fy_hand *hand, uint64_t bytes)
{
    const fy_task *task = &deal->pairs->tasks[hand->task];
    uint64_t left = task->bytes - hand->offset, part = fy_min(left, bytes);
    part -= part < left ? part % task->element : 0;
    hand->rest -= part;
    hand->offset = part == left ? 0 : hand->offset + part;
    hand->task += part == left;
    return part;
}

ferry_status fy_deal_take(fy_deal *deal, uint32_t pair, uint32_t round, uint64_t bytes,
                          uint64_t *taken_out, ferry_error *error)
{
    const fy_pair *p = &deal->pairs->pairs[pair];
    fy_hand *hand = &deal->hands[pair];
    FY_TRY(fy_deal_open(deal, p->from, p->to, round, error));
    fy_batch *batch = &deal->batches[deal->n_batches - 1];
    batch->first_task = hand->task;
    batch->begin = hand->offset;
    bytes = fy_min(bytes, deal->slot_bytes);
    while (batch->n_segments < deal->max_tasks && batch->bytes < bytes && hand->rest > 0) {
        uint64_t from = hand->offset, part = next_part(deal, hand, bytes - batch->bytes);
        if (part == 0) {
            break;
        }
        batch->end = from + part;
        batch->bytes += part;
        batch->n_segments++;
    }
    *taken_out = batch->bytes;
    if (batch->bytes == 0) {
        deal->n_batches--;
    } else {
        hand->room = room_of(deal, pair);
    }
    return FERRY_OK;
}

ferry_status fy_deal_rest(fy_deal *deal, uint32_t pair, uint32_t round, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t taken;
    while (deal->hands[pair].rest > 0 && status == FERRY_OK) {
        status = fy_deal_take(deal, pair, round, deal->slot_bytes, &taken, error);
    }
    return status;
}

/* The segment that a batch's last bytes begin in, and how many bytes there are from its begin on.
 */
static uint32_t first_of_tail(const fy_deal *deal, const fy_batch *batch, uint64_t bytes,
                              uint64_t *tail_out)
{
    uint32_t first = batch->n_segments;
    *tail_out = 0;
    while (first > 0 && *tail_out < bytes) {
        *tail_out += fy_batch_segment(batch, --first, deal->pairs->tasks, NULL).bytes;
    }
    return first;
}

/* What a tail takes of the segment that it begins in: whole elements, whichever they are. */
static uint64_t cut_of(const fy_deal *deal, uint64_t segment_bytes, uint64_t wanted)
{
    uint64_t grain = deal->pairs->common_element;
    return grain >= segment_bytes ? segment_bytes
                                  : fy_min(fy_ceil_div(wanted, grain) * grain, segment_bytes);
}

ferry_status fy_deal_split(fy_deal *deal, size_t batch, uint64_t bytes, bool *done_out,
                           ferry_error *error)
{
    fy_batch from = deal->batches[batch];
    uint64_t tail = 0;
    uint32_t first = first_of_tail(deal, &from, bytes, &tail);
    fy_segment border = fy_batch_segment(&from, first, deal->pairs->tasks, NULL);
    uint64_t part = cut_of(deal, border.bytes, bytes - (tail - border.bytes));
    uint64_t cut = border.first_byte + border.bytes - part;
    tail -= border.bytes - part;
    *done_out = tail < from.bytes;
    if (!*done_out) {
        return FERRY_OK;
    }
    FY_TRY(fy_deal_open(deal, from.from, from.to, from.round, error));
    fy_batch *end = &deal->batches[deal->n_batches - 1], *rest = &deal->batches[batch];
    end->first_task = from.first_task + first;
    end->begin = cut;
    end->end = from.end;
    end->n_segments = from.n_segments - first;
    end->bytes = tail;
    rest->bytes -= tail;
    rest->n_segments = first + (part < border.bytes);
    rest->end = part < border.bytes ? cut : deal->pairs->tasks[from.first_task + first - 1].bytes;
    return FERRY_OK;
}

ferry_status fy_deal_list_edges(const fy_deal *deal, size_t n_more, fy_edges *edges,
                                ferry_error *error)
{
    FY_TRY(fy_edges_init(edges, deal->pairs->n_ranks, deal->n_batches + n_more, error));
    for (size_t i = 0; i < deal->n_batches; i++) {
        const fy_batch *batch = &deal->batches[i];
        fy_edges_add(edges, batch->from, batch->to, batch->round);
    }
    return FERRY_OK;
}

void fy_deal_take_rounds(fy_deal *deal, const fy_edges *edges)
{
    for (size_t i = 0; i < deal->n_batches; i++) {
        deal->batches[i].round = edges->round[i];
    }
}
