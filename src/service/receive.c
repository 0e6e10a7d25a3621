/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What a rank does with what arrives, and with what it sends to itself. */
#include "service/exec.h"

#include "base/copy.h"
#include "base/hash.h"
#include "transport/word.h"

#include <stdio.h>
#include <string.h>

static uint64_t word_of(const ferry_service *service, uint32_t channel, uint32_t word)
{
    return atomic_load(
        fy_word_at(ferry_region_base(service->control), fy_word_offset(channel, word)));
}

static char *target_of(const ferry_service *service, const fy_part_of *part, fy_area *area_out)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &registry->receives.items[part->end];
    *area_out = fy_end_area(registry, end);
    return fy_held_target_base(&registry->held[end->held]);
}

/* "model.embed, bytes 0 to 4096 of task 7 from rank 1 to rank 0 and 3 more": an item's parts. */
static void describe(const ferry_service *service, const fy_channel *channel, const fy_item *item,
                     uint32_t part_index, char *text, size_t text_bytes)
{
    const fy_part_of *part = &channel->in.parts[item->first_part + part_index];
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

static bool unpack(ferry_service *service, fy_channel *channel, const fy_item *item)
{
    uint64_t number = (uint64_t)(item - channel->in.items);
    const char *slot = (char *)ferry_region_base(service->slots) + channel->in_ring +
                       item->slot * (channel->in_payload + FY_SLOT_HEAD_BYTES);
    fy_slot_head head;
    memcpy(&head, slot, sizeof head);
    const char *payload = slot + FY_SLOT_HEAD_BYTES;
    if (head.stamp != ((uint64_t)service->exec->run << 32 | number) || head.bytes != item->bytes) {
        corrupt(service, channel, item, 0, "arrived with another head than was sent");
        return false;
    }
    bool checks = service->options.checksum == FERRY_CHECKSUM_PATH;
    bool fuses = checks && item->n_parts == 1; /* the hash of the part is that of the payload */
    if (checks && !fuses && head.hash != fy_hash64(payload, (size_t)item->bytes)) {
        corrupt(service, channel, item, 0, "did not arrive as they were sent");
        return false;
    }
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_part_of *part = &channel->in.parts[item->first_part + p];
        fy_area area;
        char *base = target_of(service, part, &area);
        if (!fuses) {
            fy_area_unpack(&area, base, payload, part->first, part->bytes);
        } else if (fy_area_unpack_hash(&area, base, payload, part->first, part->bytes) !=
                   head.hash) {
            corrupt(service, channel, item, 0, "did not arrive as they were sent");
            return false;
        }
        payload += part->bytes;
    }
    fy_copy_fence();
    return true;
}

/* Reads destinations again; the sender's hashes came before its signal. */
static bool check(ferry_service *service, fy_channel *channel, const fy_item *item)
{
    const char *hashes = (char *)ferry_region_base(service->hashes) + channel->in_hashes +
                         item->first_part * sizeof(uint64_t);
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_part_of *part = &channel->in.parts[item->first_part + p];
        fy_area area;
        uint64_t wanted;
        const char *base = target_of(service, part, &area);
        memcpy(&wanted, hashes + p * sizeof wanted, sizeof wanted);
        if (fy_area_hash(&area, base, part->first, part->bytes) != wanted) {
            corrupt(service, channel, item, p, "are not what left the source");
            return false;
        }
    }
    return true;
}

static bool deal(ferry_service *service, fy_channel *channel)
{
    fy_exec *exec = service->exec;
    const fy_item *item = &channel->in.items[channel->n_dealt];
    int64_t begin = fy_now_ns();
    if (item->path == FERRY_PATH_STAGED && !unpack(service, channel, item)) {
        return false;
    }
    int64_t unpacked = fy_now_ns();
    if (exec->hashes != NULL && !check(service, channel, item)) {
        return false;
    }
    channel->n_dealt++;
    channel->bytes_in += item->bytes;
    exec->done_bytes += item->bytes;
    if (channel->in_turns) {
        fy_turns_arrived(service, item->bytes);
    }
    fy_statistics_received(service, channel, item, begin, unpacked);
    return true;
}

/*
 * What a peer says that it has taken. Items are put into slots again for that, so it cannot be more
 * than was sent.
 */
static void note_consumed(ferry_service *service, fy_channel *channel, uint32_t said)
{
    fy_exec *exec = service->exec;
    if (said < channel->n_consumed || said > channel->n_sent) {
        fy_run_fail(service, FERRY_ERR_EXCHANGE, channel->peer,
                    "rank %u says that it has taken %u items of rank %u in this run: it had taken "
                    "%u, and %u were sent",
                    channel->peer, said, service->world->rank, channel->n_consumed,
                    channel->n_sent);
        return;
    }
    uint64_t n = said - channel->n_consumed;
    channel->n_consumed = said;
    exec->n_away -= channel->in_turns ? (uint32_t)n : 0;
    if (exec->in_bytes == 0) { /* a rank that only sends learns its port's rate by that */
        fy_turns_arrived(service, n * FY_NETWORK_BYTES);
    }
}

/* Takes note of a channel's words; how many items are here. */
static uint32_t look(ferry_service *service, fy_channel *channel)
{
    fy_exec *exec = service->exec;
    uint32_t number = fy_channel_number(exec, channel);
    if (!channel->entered && word_of(service, number, FY_WORD_ENTERED) == exec->run) {
        channel->entered = true;
        exec->gives = true;
    }
    if (channel->in_turns && channel->n_sent < channel->out.n_items) {
        uint64_t turn = word_of(service, number, FY_WORD_TURN);
        channel->turn = turn >> 32 == exec->run ? (uint32_t)turn : 0;
    }
    if (channel->n_consumed < channel->answers) {
        uint64_t consumed = word_of(service, number, FY_WORD_CONSUMED);
        if (consumed >> 32 == exec->run && channel->n_consumed != (uint32_t)consumed) {
            note_consumed(service, channel, (uint32_t)consumed);
        }
    }
    if (word_of(service, number, FY_WORD_HALT) == exec->run && exec->status == FERRY_OK) {
        exec->halted = true;
    }
    if (channel->n_dealt >= channel->in.n_items) {
        return channel->n_dealt;
    }
    uint64_t arrived = word_of(service, number, FY_WORD_ARRIVED);
    uint32_t n = arrived >> 32 == exec->run ? (uint32_t)arrived : 0;
    return n < channel->in.n_items ? n : (uint32_t)channel->in.n_items;
}

/* What is here of a channel, but not so much that the others wait long; one answer for all of it.
 */
static bool deal_some(ferry_service *service, fy_channel *channel, uint32_t n_here)
{
    uint32_t begin = channel->n_dealt;
    uint32_t end = begin;
    for (uint32_t n_staged = 0; channel->n_dealt < n_here && n_staged < FY_MOST_BURST;) {
        n_staged += channel->in.items[channel->n_dealt].path == FERRY_PATH_STAGED ||
                    service->exec->hashes != NULL; /* reading again takes as long */
        if (!deal(service, channel)) {
            return true; /* the run has failed */
        }
        end = channel->n_dealt;
    }
    if (end > begin && channel->in_answered) {
        fy_run_signal(service, channel, FY_WORD_CONSUMED,
                      (uint64_t)service->exec->run << 32 | channel->n_dealt);
    }
    service->exec->gives = service->exec->gives || (end > begin && channel->in_turns);
    return end > begin;
}

bool fy_receive_step(ferry_service *service)
{
    fy_exec *exec = service->exec;
    bool worked = false;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_channel *channel = &exec->channels[c];
        worked = deal_some(service, channel, look(service, channel)) || worked;
    }
    if (exec->gives) { /* for all of them: it looks at every channel */
        exec->gives = false;
        fy_turns_give(service);
    }
    return worked;
}

/* What a rank sends to itself. */
static bool check_local(ferry_service *service, const fy_item *item, const uint64_t *hashes)
{
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_part_of *part = &service->exec->local.parts[item->first_part + p];
        fy_part_of target = {.end = part->place};
        fy_area area;
        const char *base = target_of(service, &target, &area);
        if (fy_area_hash(&area, base, part->first, part->bytes) != hashes[p]) {
            char task[400];
            fy_end_describe(&service->registry, &service->registry.receives.items[part->place],
                            false, service->world->rank, task, sizeof task);
            fy_run_fail(service, FERRY_ERR_DIGEST, service->world->rank,
                        "bytes %llu to %llu of %s are not what left the source",
                        (unsigned long long)part->first,
                        (unsigned long long)(part->first + part->bytes), task);
            return false;
        }
    }
    return true;
}

bool fy_local_step(ferry_service *service)
{
    fy_exec *exec = service->exec;
    if (exec->n_local >= exec->local.n_items) {
        return false;
    }
    const fy_item *item = &exec->local.items[exec->n_local];
    uint64_t *hashes =
        exec->hashes == NULL ? NULL : exec->hashes + exec->local_hashes + item->first_part;
    int64_t begin = fy_now_ns();
    fy_copy_mapped(service, NULL, item, hashes);
    int64_t copied = fy_now_ns();
    if (hashes != NULL && !check_local(service, item, hashes)) {
        return true;
    }
    exec->n_local++;
    exec->done_bytes += item->bytes;
    fy_statistics_local(service, item, begin, copied);
    return true;
}
