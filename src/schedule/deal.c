/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/deal.h"

#include "base/alloc.h"
#include "base/checked.h"

/* Only a pair of more tasks than a batch may have needs to be walked. */
static uint64_t room_of(const fy_deal *deal, uint32_t number)
{
    const fy_pair *pair = &deal->pairs->pairs[number];
    const fy_hand *hand = &deal->hands[number];
    uint32_t       end  = pair->first + pair->n_tasks;
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
    *deal       = (fy_deal){.pairs = pairs, .slot_bytes = slot_bytes, .max_tasks = max_tasks};
    deal->hands = fy_alloc(pairs->n_pairs, sizeof *deal->hands);
    if (deal->hands == NULL) {
        return fy_fail_no_memory(error, "the pairs of a schedule");
    }
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
    if (!fy_reserve((void **)&deal->batches, &deal->batch_capacity, deal->n_batches + 1,
                    sizeof *deal->batches)) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    deal->batches[deal->n_batches++] =
        (fy_batch){.round = round, .from = from, .to = to, .first_segment = deal->n_segments};
    return FERRY_OK;
}

ferry_status fy_deal_add(fy_deal *deal, const fy_segment *segment, ferry_error *error)
{
    fy_batch *batch = &deal->batches[deal->n_batches - 1];
    if (!fy_reserve((void **)&deal->segments, &deal->segment_capacity, deal->n_segments + 1,
                    sizeof *deal->segments)) {
        return fy_fail_no_memory(error, "the segments of a schedule");
    }
    deal->segments[deal->n_segments++] = *segment;
    batch->n_segments++;
    batch->bytes += segment->bytes;
    return FERRY_OK;
}

/* The part of the current task that fits into bytes, cut at elements; moves on behind it. */
static fy_segment next_part(const fy_deal *deal, fy_hand *hand, uint64_t bytes)
{
    const fy_task *task = &deal->pairs->tasks[hand->task];
    uint64_t       left = task->bytes - hand->offset, part = fy_min(left, bytes);
    part -= part < left ? part % task->element : 0;
    fy_segment segment = {.task_id = task->id, .first_byte = hand->offset, .bytes = part};
    hand->rest -= part;
    hand->offset = part == left ? 0 : hand->offset + part;
    hand->task += part == left;
    return segment;
}

ferry_status fy_deal_take(fy_deal *deal, uint32_t pair, uint32_t round, uint64_t bytes,
                          uint64_t *taken_out, ferry_error *error)
{
    const fy_pair *p      = &deal->pairs->pairs[pair];
    fy_hand       *hand   = &deal->hands[pair];
    ferry_status   status = fy_deal_open(deal, p->from, p->to, round, error);
    uint64_t       taken  = 0;
    bytes                 = fy_min(bytes, deal->slot_bytes);
    for (uint32_t n = 0;
         n < deal->max_tasks && taken < bytes && hand->rest > 0 && status == FERRY_OK; n++) {
        fy_segment segment = next_part(deal, hand, bytes - taken);
        if (segment.bytes == 0) {
            break;
        }
        taken += segment.bytes;
        status = fy_deal_add(deal, &segment, error);
    }
    if (status == FERRY_OK && taken == 0) {
        deal->n_batches--;
    } else if (status == FERRY_OK) {
        hand->room = room_of(deal, pair);
    }
    *taken_out = taken;
    return status;
}

ferry_status fy_deal_rest(fy_deal *deal, uint32_t pair, uint32_t round, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t     taken;
    while (deal->hands[pair].rest > 0 && status == FERRY_OK) {
        status = fy_deal_take(deal, pair, round, deal->slot_bytes, &taken, error);
    }
    return status;
}

/* The last segments of a batch that together have at least bytes. */
static uint32_t first_of_tail(const fy_deal *deal, const fy_batch *batch, uint64_t bytes,
                              uint64_t *tail_out)
{
    uint32_t first = batch->n_segments;
    *tail_out      = 0;
    while (first > 0 && *tail_out < bytes) {
        *tail_out += deal->segments[batch->first_segment + --first].bytes;
    }
    return first;
}

/* What a tail takes of the segment that it begins in: whole elements, whichever they are. */
static uint64_t cut_of(const fy_deal *deal, const fy_segment *segment, uint64_t wanted)
{
    uint64_t grain = deal->pairs->common_element;
    return grain >= segment->bytes ? segment->bytes
                                   : fy_min(fy_ceil_div(wanted, grain) * grain, segment->bytes);
}

ferry_status fy_deal_split(fy_deal *deal, size_t batch, uint64_t bytes, bool *done_out,
                           ferry_error *error)
{
    fy_batch    from   = deal->batches[batch];
    uint64_t    tail   = 0;
    uint32_t    first  = first_of_tail(deal, &from, bytes, &tail);
    fy_segment *border = &deal->segments[from.first_segment + first];
    uint64_t    part   = cut_of(deal, border, bytes - (tail - border->bytes));
    tail -= border->bytes - part;
    *done_out = tail < from.bytes;
    if (!*done_out) {
        return FERRY_OK;
    }
    ferry_status status = fy_deal_open(deal, from.from, from.to, from.round, error);
    for (uint32_t i = first; i < from.n_segments && status == FERRY_OK; i++) {
        fy_segment segment = deal->segments[from.first_segment + i];
        if (i == first) {
            segment.first_byte += segment.bytes - part;
            segment.bytes = part;
        }
        status = fy_deal_add(deal, &segment, error);
    }
    if (status == FERRY_OK) {
        fy_batch *rest = &deal->batches[batch];
        border         = &deal->segments[from.first_segment + first];
        border->bytes -= part;
        rest->bytes -= tail;
        rest->n_segments = first + (border->bytes > 0);
    }
    return status;
}
