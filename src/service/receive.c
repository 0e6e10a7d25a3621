/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank does with what arrives, and with what it sends to itself. */
#include "service/send.h"

#include "service/delta.h"

#include "base/hash.h"
#include "host/copy.h"
#include "transport/region.h"
#include "transport/word.h"

#include <stdio.h>
#include <string.h>

static uint64_t word_of(const ferry_service *service, uint32_t channel, uint32_t word)
{
    return atomic_load(
        fy_word_at(ferry_region_base(service->control), fy_word_offset(channel, word)));
}

/* "model.embed, bytes 0 to 4096 of task 7 from rank 1 to rank 0 and 3 more": an item's parts. */
static void describe(const ferry_service *service, const fy_channel *channel, const fy_item *item,
                     uint32_t part_index, char *text, size_t text_bytes)
{
    const fy_item_part *part = &channel->in.parts[item->first_part + part_index];
    char task[400];
    char more[48] = "";
    fy_end_describe(&service->registry, &service->registry.receives.items[part->end], false,
                    service->world->rank, task, sizeof task);
    if (part_index == 0 && item->n_parts > 1 && service->options.checksum == FERRY_CHECKSUM_PATH) {
        snprintf(more, sizeof more, ", or of %u others packed with them", item->n_parts - 1);
    }
    snprintf(text, text_bytes, "bytes %llu to %llu of %s%s", (unsigned long long)part->first,
             (unsigned long long)(part->first + part->bytes), task, more);
}

static void corrupt(ferry_service *service, const fy_channel *channel, const fy_item *item,
                    uint32_t part, const char *how)
{
    char what[560];
    describe(service, channel, item, part, what, sizeof what);
    fy_run_fail(service, FERRY_ERR_DIGEST, channel->peer, "%s %s", what, how);
}

/* The hash of a payload that is one part is found when that is unpacked, and not cast. */
static bool is_fused(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &registry->receives.items[channel->in.parts[item->first_part].end];
    return service->options.checksum == FERRY_CHECKSUM_PATH && item->n_parts == 1 &&
           !service->program->is_delta && !fy_casts_on_arrival(fy_end_conversion(registry, end));
}

/* What was unpacked. */
static bool is_as_sent(ferry_service *service, const fy_channel_state *state, const fy_item *item)
{
    uint64_t found = state->path_hashes[(item - state->channel->in.items) % FY_MOST_BURST];
    fy_slot_head head;
    memcpy(&head, fy_slot_in(service, state->channel, item).head, sizeof head);
    if (is_fused(service, state->channel, item) && head.hash != found) {
        corrupt(service, state->channel, item, 0, "did not arrive as they were sent");
        return false;
    }
    return true;
}

/* Whether a head says of which blocks of its item the bytes behind it are, and of no others. */
static bool has_blocks(const ferry_service *service, const fy_item *item, const fy_slot_head *head)
{
    uint64_t bytes = 0, first, n;
    uint32_t block = 0;
    if (!service->program->is_delta) {
        return head->bytes == item->bytes;
    }
    while (fy_delta_next(head->blocks, item->bytes, &block, &first, &n)) {
        bytes += n;
    }
    return (head->blocks & ~fy_delta_all_blocks(item->bytes)) == 0 && head->bytes == bytes;
}

/* Bytes [first, first + bytes) of an item, which lie one behind the other. */
static bool unpack_some(ferry_service *service, const fy_channel *channel, const fy_item *item,
                        fy_payload payload, uint64_t first, uint64_t bytes, uint64_t *hash_out)
{
    uint64_t at = 0; /* of the part, in the item */
    for (uint32_t p = 0; p < item->n_parts && at < first + bytes; p++) {
        const fy_item_part *part = &channel->in.parts[item->first_part + p];
        uint64_t begin = at < first ? first : at;
        uint64_t end = at + part->bytes < first + bytes ? at + part->bytes : first + bytes;
        if (begin < end) {
            fy_part_end to = fy_target_at(service, part->end, part->first);
            fy_payload its = {.at = payload.at + (begin - first), .space = payload.space};
            ferry_error why;
            ferry_status status = fy_move_unpack(service, &to, part->first + (begin - at),
                                                 end - begin, its, hash_out, &why);
            if (status != FERRY_OK) {
                fy_run_fail(service, status, service->world->rank, "%s", why.message);
                return false;
            }
        }
        at += part->bytes;
    }
    return true;
}

static bool unpack_blocks(ferry_service *service, const fy_channel *channel, const fy_item *item,
                          const char *payload, uint64_t blocks)
{
    uint64_t first, bytes;
    uint32_t block = 0;
    bool ok = true;
    while (ok && fy_delta_next(blocks, item->bytes, &block, &first, &bytes)) {
        ok = unpack_some(service, channel, item, fy_payload_here(payload), first, bytes, NULL);
        payload += bytes;
    }
    return ok;
}

static bool unpack(ferry_service *service, fy_channel_state *state, const fy_item *item)
{
    const fy_channel *channel = state->channel;
    uint64_t number = (uint64_t)(item - channel->in.items);
    fy_slot slot = fy_slot_in(service, channel, item);
    const char *payload = slot.payload.at;
    fy_slot_head head;
    memcpy(&head, slot.head, sizeof head);
    if (head.stamp != ((uint64_t)service->run->number << 32 | number) ||
        !has_blocks(service, item, &head)) {
        corrupt(service, channel, item, 0, "arrived with another head than was sent");
        return false;
    }
    bool checks = service->options.checksum == FERRY_CHECKSUM_PATH;
    bool fuses = is_fused(service, channel, item);
    if (checks && !fuses && head.hash != fy_slot_hash(&head, payload)) {
        corrupt(service, channel, item, 0, "did not arrive as they were sent");
        return false;
    }
    uint64_t *hash = fuses ? &state->path_hashes[number % FY_MOST_BURST] : NULL;
    bool ok = service->program->is_delta
                  ? unpack_blocks(service, channel, item, payload, head.blocks)
                  : unpack_some(service, channel, item, slot.payload, 0, item->bytes, hash);
    fy_copy_fence();
    return ok;
}

/* Reads destinations again. */
static bool read_again(ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint64_t *found = service->run->found + channel->own_found + item->first_part;
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_item_part *part = &channel->in.parts[item->first_part + p];
        fy_part_end to = fy_target_at(service, part->end, part->first);
        ferry_error why;
        ferry_status status =
            fy_move_hash(service, &to, fy_bytes_there(to.conversion, part->first),
                         fy_bytes_there(to.conversion, part->bytes), &found[p], &why);
        if (status != FERRY_OK) {
            fy_run_fail(service, status, service->world->rank, "%s", why.message);
            return false;
        }
    }
    return true;
}

/* The sender's hashes came before its signal. */
static bool check(ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    const char *hashes = (char *)ferry_region_base(service->hashes) + channel->in_hashes +
                         item->first_part * sizeof(uint64_t);
    const uint64_t *found = service->run->found + channel->own_found + item->first_part;
    for (uint32_t p = 0; p < item->n_parts; p++) {
        uint64_t wanted;
        memcpy(&wanted, hashes + p * sizeof wanted, sizeof wanted);
        if (found[p] != wanted) {
            corrupt(service, channel, item, p, "are not what left the source");
            return false;
        }
    }
    return true;
}

/* Begins to deal with an item that is here: false if the run has failed. */
static bool begin_deal(ferry_service *service, fy_channel_state *state, const fy_item *item)
{
    const fy_channel *channel = state->channel;
    state->deal_ns = fy_now_ns();
    if (item->path == FERRY_PATH_STAGED && !unpack(service, state, item)) {
        return false;
    }
    state->unpacked_ns = fy_now_ns();
    return !service->program->checks_ends || read_again(service, channel, item);
}

/* Its bytes are where they belong, and were read there. */
static bool end_deal(ferry_service *service, fy_channel_state *state)
{
    fy_run_state *run = service->run;
    const fy_channel *channel = state->channel;
    const fy_item *item = &channel->in.items[state->n_dealt];
    if (item->path == FERRY_PATH_STAGED && !is_as_sent(service, state, item)) {
        return false;
    }
    if (service->program->checks_ends && !check(service, channel, item)) {
        return false;
    }
    fy_bands_take(service, &channel->in, item, false);
    state->n_dealt++;
    run->done_bytes += item->bytes;
    if (channel->in_turns) {
        fy_turns_arrived(run, item->bytes);
    }
    fy_statistics_received(service, channel, item, state->deal_ns, state->unpacked_ns);
    return true;
}

/*
 * What a peer says that it has taken. Items are put into slots again for that, so it cannot be more
 * than was sent.
 */
static void note_consumed(ferry_service *service, fy_channel_state *state, uint32_t said)
{
    fy_run_state *run = service->run;
    const fy_channel *channel = state->channel;
    if (said < state->n_consumed || said > state->n_sent) {
        fy_run_fail(service, FERRY_ERR_EXCHANGE, channel->peer,
                    "rank %u says that it has taken %u items of rank %u in this run: it had taken "
                    "%u, and %u were sent",
                    channel->peer, said, service->world->rank, state->n_consumed, state->n_sent);
        return;
    }
    uint64_t n = said - state->n_consumed;
    state->n_consumed = said;
    fy_drive_raise(&run->drive,
                   fy_counter_of(fy_channel_number(service->program, channel), FY_COUNTER_CONSUMED),
                   said);
    run->n_away -= channel->in_turns ? (uint32_t)n : 0;
    if (service->program->in_bytes ==
        0) { /* a rank that only sends learns its port's rate by that */
        fy_turns_arrived(run, n * FY_NETWORK_BYTES);
    }
}

/* A word of this run that counts items: so many, or 0. */
static uint32_t items_of(const ferry_service *service, uint32_t channel, uint32_t word)
{
    uint64_t value = word_of(service, channel, word);
    return value >> 32 == service->run->number ? (uint32_t)value : 0;
}

/* A channel's words become counters. */
static void look(ferry_service *service, uint32_t number)
{
    fy_run_state *run = service->run;
    fy_channel_state *state = &run->channels[number];
    const fy_channel *channel = state->channel;
    run->n_looks++;
    if (!state->entered && word_of(service, number, FY_WORD_ENTERED) == run->number) {
        state->entered = true;
        run->gives = true;
        fy_turns_await(run, number);
        fy_drive_raise(&run->drive, fy_counter_of(number, FY_COUNTER_ENTERED), 1);
    }
    if (channel->in_turns) {
        fy_drive_raise(&run->drive, fy_counter_of(number, FY_COUNTER_TURN),
                       items_of(service, number, FY_WORD_TURN));
    }
    if (state->n_consumed < channel->answers) {
        uint64_t consumed = word_of(service, number, FY_WORD_CONSUMED);
        if (consumed >> 32 == run->number && state->n_consumed != (uint32_t)consumed) {
            note_consumed(service, state, (uint32_t)consumed);
        }
    }
    if (word_of(service, number, FY_WORD_HALT) == run->number && run->status == FERRY_OK) {
        run->halted = true;
    }
    fy_drive_raise(&run->drive, fy_counter_of(number, FY_COUNTER_ARRIVED),
                   items_of(service, number, FY_WORD_ARRIVED));
    fy_drive_raise(&run->drive, fy_counter_of(number, FY_COUNTER_DIGESTS),
                   items_of(service, number, FY_WORD_DIGESTS));
}

/* Those that have signalled; when a run begins all, for some have before. */
static void look_at_news(ferry_service *service)
{
    fy_run_state *run = service->run;
    uint32_t n = service->program->n_channels;
    for (uint32_t first = 0; first < n; first += FY_NOTES_LINES) {
        uint64_t notes = fy_notes_take(ferry_region_base(service->control),
                                       fy_region_noted(service->control), first);
        notes = run->looks_at_all ? UINT64_MAX : notes;
        for (; notes != 0; notes &= notes - 1) {
            uint32_t channel = first + (uint32_t)__builtin_ctzll(notes);
            if (channel < n) {
                look(service, channel);
            }
        }
    }
    run->looks_at_all = false;
}

fy_progress fy_receive_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                            uint32_t n)
{
    bool ends = !fy_moves_are_far(service); /* else when all of them are moved */
    ferry_error why;
    ferry_status status =
        state->channel->in_aside ? fy_transport_settle(service->transport, &why) : FERRY_OK;
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
        return FY_PROGRESS_FAILED;
    }
    for (uint32_t i = first; i < first + n; i++) {
        if (!begin_deal(service, state, &state->channel->in.items[i]) ||
            (ends && !end_deal(service, state))) {
            return FY_PROGRESS_FAILED;
        }
    }
    return FY_PROGRESS_DONE;
}

/* One answer for all that was dealt with. */
fy_progress fy_receive_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                              uint32_t n)
{
    fy_run_state *run = service->run;
    const fy_channel *channel = state->channel;
    uint32_t number = fy_channel_number(service->program, channel);
    if (channel->in.items[first].path != FERRY_PATH_STAGED && !service->program->checks_ends) {
        state->deal_ns = state->unpacked_ns = fy_now_ns(); /* there was nothing to move */
    }
    while (state->n_dealt < first + n) {
        if (!end_deal(service, state)) {
            return FY_PROGRESS_FAILED;
        }
    }
    if (channel->in_answered) {
        fy_run_signal(service, channel, FY_WORD_CONSUMED,
                      (uint64_t)run->number << 32 | state->n_dealt);
    }
    if (channel->in_turns) {
        fy_turns_await(run, number);
        run->gives = true;
    }
    fy_drive_raise(&run->drive, fy_counter_of(number, FY_COUNTER_DEALT), state->n_dealt);
    return run->status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

/* What is here of each channel, but no more at once than that the others wait long. */
bool fy_receive_step(ferry_service *service)
{
    fy_run_state *run = service->run;
    bool worked = false;
    look_at_news(service);
    for (uint32_t n = fy_drive_n_ready(&run->drive, FY_GRADE_IN); n > 0 && run->status == FERRY_OK;
         n--) {
        worked = fy_drive_step(&run->drive, FY_GRADE_IN) || worked;
    }
    if (run->gives) {
        run->gives = false;
        fy_turns_give(service);
    }
    return worked || run->status != FERRY_OK;
}
