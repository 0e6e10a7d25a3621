/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What is sent, cut into items. */
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/checked.h"

static const uint32_t paths_in_turn[] = {FERRY_PATH_MAPPED, FERRY_PATH_REMOTE, FERRY_PATH_STAGED};
enum { N_PATHS = sizeof paths_in_turn / sizeof paths_in_turn[0] };

static uint64_t most_bytes(const ferry_service *service, const fy_channel *channel, uint32_t path)
{
    uint64_t slot = service->options.slot_bytes;
    uint64_t most = path == FERRY_PATH_STAGED   ? channel->out_payload
                    : path == FERRY_PATH_REMOTE ? (uint64_t)FY_NETWORK_BYTES
                                                : (uint64_t)FY_DIRECT_BYTES;
    return slot < most ? slot : most;
}

/* So many items to one rank take minutes through slots, and the memory of tables of them. */
enum { MOST_ITEMS = 1 << 22 };

/* Slots that are far too small would look like a run that hangs. */
static ferry_status check_count(const ferry_service *service, const fy_lane *lane, uint64_t bytes,
                                uint64_t limit, ferry_error *error)
{
    return bytes / limit <= MOST_ITEMS - fy_min(lane->n_items, MOST_ITEMS)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_LIMIT,
                         "rank %u moves bytes in pieces of %llu, and would have more than %u for "
                         "one rank: take a larger slot_bytes or memory_cap (--slot-bytes, "
                         "--memory-cap)",
                         service->world->rank, (unsigned long long)limit, (unsigned)MOST_ITEMS);
}

/* What must not be cut in two, of a part of what is sent. */
static uint64_t unit_of(const ferry_service *service, const fy_item_part *part)
{
    const fy_registry *registry = &service->registry;
    return (part->end & FY_RELAYED) != 0 ? 1
                                         : fy_end_unit(registry, &registry->sends.items[part->end]);
}

/*
 * To the lane's last item where that goes the same way and has room, else to new ones. Elements
 * that are cast are not cut in two, and begin at multiples of them.
 */
static ferry_status cut(const ferry_service *service, fy_lane *lane, const fy_item_part *part,
                        uint32_t path, uint64_t most, uint64_t order, ferry_error *error)
{
    uint64_t first = part->first;
    uint64_t left = part->bytes;
    uint64_t unit = unit_of(service, part);
    uint64_t limit = most < unit ? unit : most;
    FY_TRY(check_count(service, lane, left, limit, error));
    while (left > 0) {
        fy_item *item = lane->n_items == 0 ? NULL : &lane->items[lane->n_items - 1];
        if (item == NULL || item->path != path || item->order != order ||
            item->n_parts >= service->options.max_tasks || item->bytes % unit != 0 ||
            item->bytes + unit > limit) {
            FY_TRY(fy_lane_item(lane, path, order, &item, error));
        }
        uint64_t room = (limit - item->bytes) / unit * unit;
        uint64_t bytes = left < room ? left : room;
        FY_TRY(fy_lane_part(lane, part->end, part->place, first, bytes, error));
        first += bytes;
        left -= bytes;
    }
    return FERRY_OK;
}

ferry_status fy_items_cut(ferry_service *service, fy_channel *channel, uint32_t end, uint32_t place,
                          uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error)
{
    uint32_t path = fy_wire_of(service, channel)->wanted[place].path;
    uint64_t limit = most_bytes(service, channel, path);
    if (limit == 0) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a memory cap of %llu bytes leaves rank %u no slot for what rank %u sends "
                       "to it: each rank that sends to it takes at least %u bytes of half the cap",
                       (unsigned long long)service->options.memory_cap, channel->peer,
                       service->world->rank, 2u * FY_SLOT_HEAD_BYTES);
    }
    fy_item_part part = {.end = end, .place = place, .first = first, .bytes = bytes};
    return cut(service, &channel->out, &part, path, limit, order, error);
}

/* Channel by channel, path by path, so that items of a path are full. */
ferry_status fy_items_make(ferry_service *service, ferry_error *error)
{
    fy_service_program *program = service->program;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        const fy_channel_wire *wire = fy_wire_of(service, channel);
        for (uint32_t p = 0; p < N_PATHS; p++) {
            for (uint32_t i = 0; i < wire->n_sends; i++) {
                const fy_wanted *its = &wire->wanted[i];
                if (fy_is_banded(service, &service->registry.sends.items[wire->first_send + i])) {
                    continue;
                }
                for (uint32_t r = 0; its->path == paths_in_turn[p] && r < its->n_ranges; r++) {
                    const fy_range *range = &wire->ranges[its->first_range + r];
                    FY_TRY(fy_items_cut(service, channel, wire->first_send + i, i, range->first,
                                        range->bytes, 0, error));
                }
            }
        }
        FY_TRY(fy_bands_cut(service, channel, error));
        /* In turn with those of other channels, each rank beginning behind itself. */
        uint32_t n = program->n_channels;
        uint32_t turn = 0;
        while (turn < n && program->channels[turn].peer < service->world->rank) {
            turn++;
        }
        for (size_t i = 0; i < channel->out.n_items; i++) {
            channel->out.items[i].order = i * n + (c + n - turn) % n;
        }
    }
    return FERRY_OK;
}

ferry_status fy_items_cut_local(ferry_service *service, uint32_t send, uint32_t receive,
                                uint64_t first, uint64_t bytes, uint64_t order, ferry_error *error)
{
    uint64_t slot = service->options.slot_bytes;
    uint64_t limit = slot < FY_DIRECT_BYTES ? slot : (uint64_t)FY_DIRECT_BYTES;
    fy_item_part part = {.end = send, .place = receive, .first = first, .bytes = bytes};
    return cut(service, &service->program->local, &part, FERRY_PATH_LOCAL, limit, order, error);
}

ferry_status fy_items_local(ferry_service *service, ferry_error *error)
{
    const fy_wire *wire = service->wire;
    const fy_registry *registry = &service->registry;
    for (size_t i = wire->local_receives; i < registry->receives.n; i++) {
        const fy_end *end = &registry->receives.items[i];
        if (end->peer != service->world->rank) {
            break;
        }
        uint32_t send = wire->local_sends + (uint32_t)(i - wire->local_receives);
        if (fy_is_banded(service, end)) {
            continue;
        }
        fy_range all = {.first = 0, .bytes = end->bytes};
        fy_range *wants = wire->wants_of == NULL ? &all : wire->wants + wire->wants_of[i];
        uint32_t n = wire->wants_of == NULL ? 1 : wire->wants_of[i + 1] - wire->wants_of[i];
        for (uint32_t w = 0; w < n; w++) {
            FY_TRY(fy_items_cut_local(service, send, (uint32_t)i, wants[w].first, wants[w].bytes, 0,
                                      error));
        }
    }
    return fy_bands_cut_local(service, error);
}

/*
 * The last items of a path, of which so many may be under way: item number k of the path waits
 * until number k - n has been dealt with.
 */
typedef struct window {
    uint32_t n;
    uint32_t k;
    uint32_t recent[FY_MOST_WINDOW];
} window;

static uint32_t window_enter(window *w, uint32_t index)
{
    uint32_t needs = w->k < w->n ? 0 : w->recent[w->k % w->n] + 1;
    w->recent[w->k % w->n] = index;
    w->k++;
    return needs;
}

void fy_items_finish(ferry_service *service)
{
    fy_service_program *program = service->program;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        window staged = {.n = channel->out_slots};
        window remote = {.n = FY_MOST_WINDOW};
        for (uint32_t i = 0; i < channel->out.n_items; i++) {
            fy_item *item = &channel->out.items[i];
            if (item->path == FERRY_PATH_STAGED) {
                item->slot = staged.k % staged.n;
                item->consumed = window_enter(&staged, i);
                channel->answers = i + 1;
            } else if (item->path == FERRY_PATH_REMOTE) {
                item->consumed = window_enter(&remote, i);
                channel->answers = i + 1;
            }
        }
        program->out_bytes += channel->out.bytes;
    }
    program->local_bytes = program->local.bytes;
}
