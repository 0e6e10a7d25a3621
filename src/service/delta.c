/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "service/delta.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/subset.h"
#include "service/send.h"

#include <string.h>

_Static_assert(FY_NETWORK_BYTES / FY_DELTA_BYTES <= 64, "a word has a bit for each block");
enum { DIGEST_BYTES = FY_DIGEST_BYTES };
_Static_assert((int)FY_DELTA_BYTES == (int)FY_DIGESTED_BYTES, "devices make digests of blocks");

/*
 * Blocks
 */

bool fy_delta_next(uint64_t blocks, uint64_t item_bytes, uint32_t *block_inout, uint64_t *first_out,
                   uint64_t *bytes_out)
{
    uint32_t n = fy_delta_n_blocks(item_bytes), begin = *block_inout;
    while (begin < n && (blocks >> begin & 1) == 0) {
        begin++;
    }
    uint32_t end = begin;
    while (end < n && (blocks >> end & 1) != 0) {
        end++;
    }
    uint64_t last = (uint64_t)end * FY_DELTA_BYTES;
    *block_inout = end;
    *first_out = (uint64_t)begin * FY_DELTA_BYTES;
    *bytes_out = (last < item_bytes ? last : item_bytes) - *first_out;
    return begin < n;
}

uint64_t fy_delta_bytes(uint64_t item_bytes, uint64_t blocks)
{
    uint64_t used = 0, first, bytes;
    uint32_t block = 0;
    while (fy_delta_next(blocks, item_bytes, &block, &first, &bytes)) {
        used += bytes;
    }
    return used;
}

uint64_t fy_delta_compact(char *packed, uint64_t item_bytes, uint64_t blocks)
{
    uint64_t used = 0, first, bytes;
    uint32_t block = 0;
    while (fy_delta_next(blocks, item_bytes, &block, &first, &bytes)) {
        if (used != first) {
            memmove(packed + used, packed + first, (size_t)bytes);
        }
        used += bytes;
    }
    return used;
}

uint64_t fy_delta_item_bytes(const fy_lane *lane)
{
    uint32_t most = 0;
    for (size_t i = 0; i < lane->n_items; i++) {
        const fy_item *item = &lane->items[i];
        uint32_t n = item->path == FERRY_PATH_MAPPED ? 0 : fy_delta_n_blocks(item->bytes);
        most = n > most ? n : most;
    }
    return most * (uint64_t)DIGEST_BYTES;
}

/*
 * Memory
 */

/* What becomes of a part's elements where they have come; NULL: nothing. */
typedef const fy_task_cast *part_change(const ferry_service *service, const fy_item_part *part);

static const fy_task_cast *change_sent(const ferry_service *service, const fy_item_part *part)
{
    const fy_task_cast *its = fy_sent_conversion(service, part);
    return fy_casts_on_arrival(its) ? its : NULL;
}

static const fy_task_cast *change_received(const ferry_service *service, const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    const fy_task_cast *its = fy_end_conversion(registry, &registry->receives.items[part->end]);
    return fy_casts_on_arrival(its) ? its : NULL;
}

/* Of an item, as it is at its receiver; more than travels where it becomes more. */
static uint64_t bytes_there(const ferry_service *service, const fy_lane *lane, const fy_item *item,
                            part_change *change)
{
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        bytes += fy_bytes_there(change(service, part), part->bytes);
    }
    return bytes;
}

static uint64_t most_bytes_there(const ferry_service *service, const fy_lane *lane,
                                 part_change *change)
{
    uint64_t most = 0;
    for (size_t i = 0; i < lane->n_items; i++) {
        const fy_item *item = &lane->items[i];
        if (item->path != FERRY_PATH_MAPPED) {
            uint64_t bytes = bytes_there(service, lane, item, change);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

static uint64_t most_item_bytes(const ferry_service *service)
{
    const fy_service_program *program = service->program;
    uint64_t most = 0;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        uint64_t out = most_bytes_there(service, &program->channels[c].out, change_sent);
        uint64_t in = most_bytes_there(service, &program->channels[c].in, change_received);
        most = out > most ? out : most;
        most = in > most ? in : most;
    }
    return most;
}

/* Of an item that has digests. */
static uint32_t most_parts(const fy_service_program *program)
{
    uint32_t most = 0;
    for (uint32_t lane = 0; lane < 2 * program->n_channels; lane++) {
        const fy_channel *channel = &program->channels[lane / 2];
        const fy_lane *its = lane % 2 == 0 ? &channel->out : &channel->in;
        for (size_t i = 0; i < its->n_items; i++) {
            const fy_item *item = &its->items[i];
            bool is_more = item->n_parts > most && fy_delta_tells(program, item);
            most = is_more ? item->n_parts : most;
        }
    }
    return most;
}

ferry_status fy_delta_open(const ferry_service *service, fy_run_state *run, ferry_error *error)
{
    const fy_service_program *program = service->program;
    if (!program->is_delta) {
        return FERRY_OK;
    }
    /* The CPU needs one place; devices take their time, and fill one of each channel's own. */
    run->delta.gathered_bytes = most_item_bytes(service);
    size_t n = run->moves == NULL ? 1 : 1 + (size_t)program->n_channels;
    run->delta.gathered = fy_alloc(n, run->delta.gathered_bytes + 1);
    run->delta.told_digests = fy_alloc(program->told_digests + 1, 1);
    run->delta.own_digests = fy_alloc(program->own_digests + 1, 1);
    run->delta.parts = fy_alloc(run->moves == NULL ? 1 : (size_t)most_parts(program) + 1,
                                sizeof *run->delta.parts);
    return run->delta.gathered == NULL || run->delta.told_digests == NULL ||
                   run->delta.own_digests == NULL || run->delta.parts == NULL
               ? fy_fail_no_memory(error, "what is compared before it is moved")
               : FERRY_OK;
}

void fy_delta_close(fy_run_state *run)
{
    fy_free(run->delta.gathered);
    fy_free(run->delta.told_digests);
    fy_free(run->delta.own_digests);
    fy_free(run->delta.parts);
}

/*
 * Bytes of an item, and their digests
 */

/* Of what comes in by a channel. */
static char *gathered_of(const ferry_service *service, const fy_channel *channel)
{
    const fy_run_state *run = service->run;
    size_t place =
        fy_moves_are_far(service) ? 1 + (size_t)fy_channel_number(service->program, channel) : 0;
    return run->delta.gathered + place * run->delta.gathered_bytes;
}

typedef fy_part_end part_side(const ferry_service *service, const fy_item_part *part);

static fy_part_end target_side(const ferry_service *service, const fy_item_part *part)
{
    return fy_target_of(service, part->end);
}

/* What is at the receiver, there; what is sent as it is, at the sender. */
static ferry_status gather(ferry_service *service, const fy_lane *lane, const fy_item *item,
                           part_side *side, char *to, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t p = 0; status == FERRY_OK && p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        fy_part_end from = side(service, part);
        uint64_t bytes = fy_bytes_there(from.conversion, part->bytes);
        status = fy_move_gather(service, &from, fy_bytes_there(from.conversion, part->first), bytes,
                                to, error);
        to += bytes;
    }
    return status;
}

/*
 * Whether a device makes the digests of an item: it has all of its bytes, as they are at the other
 * end, too.
 */
static bool is_a_devices(const ferry_service *service, const fy_lane *lane, const fy_item *item,
                         part_side *side)
{
    fy_space first = {.kind = FERRY_MEMORY_HOST};
    for (uint32_t p = 0; fy_moves_are_far(service) && p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        fy_part_end its = side(service, part);
        first = p == 0 ? its.space : first;
        if (fy_is_host(its.space) || !fy_same_space(its.space, first) || its.conversion != NULL) {
            return false;
        }
    }
    return !fy_is_host(first) && fy_move_has_digests(first);
}

/* Begins to make them. */
static ferry_status digest_there(ferry_service *service, const fy_lane *lane, const fy_item *item,
                                 part_side *side, char *digests_out, ferry_error *error)
{
    fy_exec_part *parts = service->run->delta.parts;
    fy_space space = {.kind = FERRY_MEMORY_HOST};
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        fy_part_end its = side(service, part);
        space = its.space;
        parts[p] = (fy_exec_part){
            .area = its.area, .base = its.base, .first = part->first, .bytes = part->bytes};
    }
    return fy_move_digests(service, space, parts, item->n_parts, digests_out, error);
}

/* Where the bytes of an item of one part lie one behind the other, in host memory; else NULL. */
static const char *find_flat(const ferry_service *service, const fy_lane *lane, const fy_item *item,
                             part_side *side)
{
    const fy_item_part *part = &lane->parts[item->first_part];
    fy_part_end its = side(service, part);
    return item->n_parts == 1 && its.area.n_dims == 0 && fy_is_host(its.space)
               ? its.base + its.area.offset + fy_bytes_there(its.conversion, part->first)
               : NULL;
}

/* An item, block by block: where in which part the next one begins. */
typedef struct block_walk {
    const ferry_service *service;
    const fy_lane *lane;
    const fy_item *item;
    part_change *change;
    uint32_t part;
    uint64_t at;   /* in the part */
    uint64_t done; /* of the item */
} block_walk;

/* How many bytes the next block is at the receiver. */
static uint64_t next_block(block_walk *b)
{
    uint64_t left = b->item->bytes - b->done, there = 0;
    left = left < FY_DELTA_BYTES ? left : FY_DELTA_BYTES;
    b->done += left;
    while (left > 0) {
        const fy_item_part *part = &b->lane->parts[b->item->first_part + b->part];
        uint64_t n = part->bytes - b->at < left ? part->bytes - b->at : left;
        there += fy_bytes_there(b->change(b->service, part), n);
        left -= n;
        b->at += n;
        if (b->at == part->bytes) {
            b->part++;
            b->at = 0;
        }
    }
    return there;
}

/* Of bytes as they are at the receiver, a digest for each block of what travels. */
static void digest(block_walk b, const char *bytes, char *digests_out)
{
    for (; b.done < b.item->bytes; digests_out += DIGEST_BYTES) {
        uint64_t n = next_block(&b);
        fy_hash128 hash = fy_hash128_of(bytes, (size_t)n);
        memcpy(digests_out, &hash.low, sizeof hash.low);
        memcpy(digests_out + sizeof hash.low, &hash.high, sizeof hash.high);
        bytes += n;
    }
}

/*
 * The receiver
 */

static bool is_digested_there(const ferry_service *service, const fy_channel *channel,
                              uint32_t number)
{
    return is_a_devices(service, &channel->in, &channel->in.items[number], target_side);
}

static char *told_of(const ferry_service *service, const fy_channel *channel, uint32_t number)
{
    return service->run->delta.told_digests + channel->in_digests +
           fy_delta_slot(channel->in_digest_bytes, number);
}

/* Of what devices bring there is room for one; of what they look at there is nothing to bring. */
uint32_t fy_delta_take(const ferry_service *service, const fy_channel_state *state, uint32_t first,
                       uint32_t n)
{
    uint32_t most = n < FY_MOST_BURST ? n : (uint32_t)FY_MOST_BURST, i = 0;
    if (!fy_moves_are_far(service)) {
        return most;
    }
    while (i < most && is_digested_there(service, state->channel, first + i)) {
        i++;
    }
    return i > 0 ? i : 1;
}

/* Devices bring what they hold to the host, or digests of it; what is there is read when it is
 * told. */
fy_progress fy_delta_move(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n)
{
    const fy_lane *in = &state->channel->in;
    ferry_status status = FERRY_OK;
    ferry_error why;
    for (uint32_t i = first; fy_moves_are_far(service) && status == FERRY_OK && i < first + n;
         i++) {
        status = is_digested_there(service, state->channel, i)
                     ? digest_there(service, in, &in->items[i], target_side,
                                    told_of(service, state->channel, i), &why)
                     : gather(service, in, &in->items[i], target_side,
                              gathered_of(service, state->channel), &why);
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
    }
    return status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

/* Those of an item, in memory that stays until its sender has used them. */
static const char *digest_item(ferry_service *service, const fy_channel *channel, uint32_t number,
                               uint64_t *bytes_out)
{
    const fy_item *item = &channel->in.items[number];
    char *digests = told_of(service, channel, number);
    *bytes_out = fy_delta_n_blocks(item->bytes) * (uint64_t)DIGEST_BYTES;
    if (is_digested_there(service, channel, number)) {
        return digests;
    }
    const char *bytes = find_flat(service, &channel->in, item, target_side);
    if (bytes == NULL) {
        bytes = gathered_of(service, channel);
        if (!fy_moves_are_far(service)) { /* of host memory that cannot fail */
            gather(service, &channel->in, item, target_side, gathered_of(service, channel), NULL);
        }
    }
    block_walk all = {
        .service = service, .lane = &channel->in, .item = item, .change = change_received};
    digest(all, bytes, digests);
    return digests;
}

fy_progress fy_delta_signal(ferry_service *service, fy_channel_state *state, uint32_t first,
                            uint32_t n)
{
    const fy_channel *channel = state->channel;
    ferry_status status = FERRY_OK;
    ferry_error why;
    for (uint32_t i = first; status == FERRY_OK && i < first + n; i++) {
        uint64_t n_bytes;
        const char *digests = digest_item(service, channel, i, &n_bytes);
        ferry_buffer source = ferry_buffer_of(digests, n_bytes);
        ferry_signal signal = {.region = service->control,
                               .offset = fy_word_offset(channel->theirs, FY_WORD_DIGESTS),
                               .value = (uint64_t)service->run->number << 32 | (i + 1),
                               .op = FERRY_SIGNAL_SET};
        uint64_t offset = channel->their_digests + fy_delta_slot(channel->in_digest_bytes, i);
        status =
            i + 1 < first + n
                ? ferry_transport_put(service->transport, channel->peer, service->digests, offset,
                                      &source, NULL, &why)
                : ferry_transport_put_signal(service->transport, channel->peer, service->digests,
                                             offset, &source, &signal, NULL, &why);
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, channel->peer, "%s", why.message);
    }
    return status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

/*
 * What the caller says
 */

ferry_status ferry_service_mark_unchanged(ferry_service *service, const char *subset,
                                          ferry_error *error)
{
    if (service != NULL && service->request != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_mark_unchanged: a run is under way: wait for its request "
                       "first");
    }
    FY_TRY(fy_check_use(service != NULL && service->registry.scheduled &&
                            service->registry.plan != NULL && service->options.delta != 0,
                        "ferry_service_mark_unchanged needs a scheduled service with the option "
                        "delta and a bound plan",
                        error));
    FY_TRY(fy_service_check_idle(service, "ferry_service_mark_unchanged", error));
    fy_registry *registry = &service->registry;
    fy_subset names;
    ferry_status status = fy_subset_create(subset, &names, error);
    for (size_t i = 0; status == FERRY_OK && i < registry->n_held; i++) {
        fy_held *held = &registry->held[i];
        /* What is received into may be sent on, but is never what it was by anybody's word. */
        held->is_marked = held->is_marked || (held->destination == FY_NONE &&
                                              fy_subset_has(&names, registry->names + held->name));
    }
    for (size_t i = 0; status == FERRY_OK && i < registry->n_scalings; i++) { /* as their values */
        const fy_scaling *s = &registry->scalings[i];
        bool is_marked = registry->held[s->source].is_marked &&
                         (s->given == FY_NONE || registry->held[s->given].is_marked);
        registry->held[s->held].is_marked = is_marked;
        if (s->given != FY_NONE) {
            registry->held[s->held_codes].is_marked = is_marked;
        }
    }
    fy_subset_cleanup(&names);
    return status;
}

/* In place the last run wrote what this one would; with swap it was the one before. */
void fy_delta_begin(ferry_service *service)
{
    fy_registry *registry = &service->registry;
    uint32_t needed = service->options.commit == FERRY_COMMIT_SWAP ? 2 : 1;
    for (size_t i = 0; service->program->is_delta && i < registry->n_held; i++) {
        fy_held *held = &registry->held[i];
        held->n_marked = held->is_marked ? held->n_marked + 1 : 0;
        held->is_kept = held->n_marked >= needed && service->run->delta.n_whole >= needed;
        held->is_marked = false;
    }
}

/*
 * The sender
 */

static bool keeps_all(const ferry_service *service, const fy_channel *channel, const fy_item *item)
{
    uint32_t p = 0;
    while (p < item->n_parts && fy_delta_keeps(service, fy_part_at(channel, item, p))) {
        p++;
    }
    return p == item->n_parts;
}

bool fy_delta_has_looked(const ferry_service *service, const fy_channel *channel,
                         const fy_item *item)
{
    return service->program->is_delta && item->path == FERRY_PATH_STAGED &&
           is_a_devices(service, &channel->out, item, fy_source_of);
}

static char *own_of(const ferry_service *service, const fy_channel *channel, uint32_t number)
{
    return service->run->delta.own_digests + channel->out_digests +
           fy_delta_slot(channel->out_digest_bytes, number);
}

fy_progress fy_delta_look(ferry_service *service, fy_channel_state *state, uint32_t first,
                          uint32_t n)
{
    const fy_channel *channel = state->channel;
    ferry_status status = FERRY_OK;
    ferry_error why;
    for (uint32_t i = first; status == FERRY_OK && i < first + n; i++) {
        const fy_item *item = &channel->out.items[i];
        if (fy_delta_has_looked(service, channel, item) && !keeps_all(service, channel, item)) {
            status = digest_there(service, &channel->out, item, fy_source_of,
                                  own_of(service, channel, i), &why);
        }
    }
    if (status != FERRY_OK) {
        fy_run_fail(service, status, service->world->rank, "%s", why.message);
    }
    return status == FERRY_OK ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

static bool changes_there(const ferry_service *service, const fy_channel *channel,
                          const fy_item *item)
{
    uint32_t p = 0;
    while (p < item->n_parts && change_sent(service, fy_part_at(channel, item, p)) == NULL) {
        p++;
    }
    return p < item->n_parts;
}

/* Packed bytes as they will be at the receiver. */
static void convert(const ferry_service *service, const fy_channel *channel, const fy_item *item,
                    const char *packed, char *to)
{
    for (uint32_t p = 0; p < item->n_parts; p++) {
        const fy_item_part *part = fy_part_at(channel, item, p);
        const fy_task_cast *how = change_sent(service, part);
        uint64_t bytes = fy_bytes_there(how, part->bytes);
        if (how != NULL) {
            fy_area in = fy_area_flat(0, part->bytes), out = fy_area_flat(0, bytes);
            fy_area_cast_cached(&how->cast, &out, to, &in, packed, 0,
                                part->bytes / how->wire_bytes);
        } else {
            memcpy(to, packed, (size_t)bytes);
        }
        packed += part->bytes;
        to += bytes;
    }
}

/*
 * The item's bytes as they will be at the receiver. Those that are not packed, which are put from
 * where they lie, change at neither end.
 */
static const char *bytes_to_be(ferry_service *service, const fy_channel *channel,
                               const fy_item *item, const char *packed)
{
    char *gathered = service->run->delta.gathered;
    if (packed != NULL && changes_there(service, channel, item)) {
        convert(service, channel, item, packed, gathered);
        return gathered;
    }
    const char *bytes =
        packed != NULL ? packed : find_flat(service, &channel->out, item, fy_source_of);
    if (bytes == NULL) {
        gather(service, &channel->out, item, fy_source_of, gathered, NULL);
        bytes = gathered;
    }
    return bytes;
}

uint64_t fy_delta_blocks(ferry_service *service, const fy_channel *channel, const fy_item *item,
                         const char *packed)
{
    if (keeps_all(service, channel, item)) {
        return 0;
    }
    uint32_t number = (uint32_t)(item - channel->out.items);
    const char *theirs = (char *)ferry_region_base(service->digests) + channel->out_digests +
                         fy_delta_slot(channel->out_digest_bytes, number);
    char made[64 * DIGEST_BYTES];
    const char *ours = made;
    uint64_t differing = 0;
    if (fy_delta_has_looked(service, channel, item)) {
        ours = own_of(service, channel, number);
    } else {
        block_walk all = {
            .service = service, .lane = &channel->out, .item = item, .change = change_sent};
        digest(all, bytes_to_be(service, channel, item, packed), made);
    }
    for (uint32_t b = 0; b < fy_delta_n_blocks(item->bytes); b++) {
        bool differs =
            memcmp(ours + b * DIGEST_BYTES, theirs + b * DIGEST_BYTES, DIGEST_BYTES) != 0;
        differing |= (uint64_t)differs << b;
    }
    return differing;
}
