/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of which codes are made come band by band, so that a rank holds a few bands of them: some
 * rows of blocks of a shard. Senders cut items between units of rows, and send those of a shard in
 * the order of its rows. What comes of a band waits in its slot, unread, until the band has a place
 * in the ring: so many bands before it are made. As all senders go through the bands in one order,
 * whoever waits for a place waits for bands that nobody holds back. Codes of f4 are made by scales
 * of matrices, which come as other tensors do: before all values, and no band is made without them.
 *
 * Not so where the order is another one (rounds of a schedule, parameters in boxes), or where what
 * came before is compared: then the rank has room for all values, and makes bands of them at the
 * end. A run that completes a failed one brings all values again, band by band too.
 */
#include "service/made.h"
#include "service/prepare.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "service/ends.h"

#include <ferry/shard.h>

enum { LEAST_PLACES = 2, MOST_PLACES = 8, LINE = 64 };

/*
 * What is sent
 */

/* Bytes of a task within a unit of rows. */
typedef struct piece {
    const fy_rows *rows;
    uint64_t lead[FERRY_MAX_DIMS];
    uint64_t unit;
    uint32_t end, place;
    uint64_t first, bytes;
} piece;

typedef struct piece_list {
    piece *items;
    size_t n, capacity;
} piece_list;

static int compare_units(const piece *a, const piece *b)
{
    if (a->rows->group != b->rows->group) {
        return a->rows->group < b->rows->group ? -1 : 1;
    }
    for (uint32_t d = 0; d < a->rows->n_lead; d++) {
        if (a->lead[d] != b->lead[d]) {
            return a->lead[d] < b->lead[d] ? -1 : 1;
        }
    }
    return (a->unit > b->unit) - (a->unit < b->unit);
}

static int compare_pieces(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int units = compare_units(x, y);
    return units != 0 ? units : x->end == y->end ? 0 : x->end < y->end ? -1 : 1;
}

/* The next matrix of a box; false behind the last. */
static bool next_plane(const fy_rows *rows, uint64_t *lead)
{
    for (uint32_t d = rows->n_lead; d-- > 0;) {
        if (++lead[d] < rows->lead[d] + rows->lead_length[d]) {
            return true;
        }
        lead[d] = rows->lead[d];
    }
    return false;
}

static ferry_status list_end(const fy_registry *registry, uint32_t end, uint32_t place,
                             piece_list *list, ferry_error *error)
{
    const fy_rows *rows = &registry->rows[registry->sends.items[end].rows - 1];
    piece p = {.rows = rows, .end = end, .place = place};
    for (uint32_t d = 0; d < rows->n_lead; d++) {
        p.lead[d] = rows->lead[d];
    }
    do {
        for (uint64_t row = rows->first, next; row < rows->first + rows->n; row = next) {
            p.unit = row / rows->unit;
            next = fy_min((p.unit + 1) * rows->unit, rows->first + rows->n);
            p.bytes = (next - row) * rows->row_bytes;
            FY_TRY(FY_GROW(list->items, list->capacity, list->n + 1, "the items of a rank", error));
            list->items[list->n++] = p;
            p.first += p.bytes;
        }
    } while (next_plane(rows, p.lead));
    return FERRY_OK;
}

bool fy_is_banded(const ferry_service *service, const fy_end *end)
{
    return service->program->by_bands && end->rows != 0;
}

/* Pieces in the order of the shards' rows, each unit in items of its own. */
static ferry_status cut_list(ferry_service *service, fy_channel *channel, piece_list *list,
                             ferry_error *error)
{
    uint64_t order = 0;
    ferry_status status = FERRY_OK;
    fy_sort(list->items, list->n, sizeof *list->items, compare_pieces);
    for (size_t i = 0; i < list->n && status == FERRY_OK; i++) {
        const piece *p = &list->items[i];
        order += i == 0 || compare_units(&list->items[i - 1], p) != 0;
        status =
            channel != NULL
                ? fy_items_cut(service, channel, p->end, p->place, p->first, p->bytes, order, error)
                : fy_items_cut_local(service, p->end, p->place, p->first, p->bytes, order, error);
    }
    fy_free(list->items);
    return status;
}

ferry_status fy_bands_cut(ferry_service *service, fy_channel *channel, ferry_error *error)
{
    const fy_channel_wire *wire = fy_wire_of(service, channel);
    const fy_registry *registry = &service->registry;
    piece_list list = {.items = NULL};
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < wire->n_sends && status == FERRY_OK; i++) {
        if (fy_is_banded(service, &registry->sends.items[wire->first_send + i])) {
            status = list_end(registry, wire->first_send + i, i, &list, error);
        }
    }
    if (status != FERRY_OK) {
        fy_free(list.items);
        return status;
    }
    return cut_list(service, channel, &list, error);
}

ferry_status fy_bands_cut_local(ferry_service *service, ferry_error *error)
{
    const fy_wire *wire = service->wire;
    const fy_registry *registry = &service->registry;
    piece_list list = {.items = NULL};
    ferry_status status = FERRY_OK;
    for (size_t i = wire->local_receives; i < registry->receives.n && status == FERRY_OK; i++) {
        uint32_t send = wire->local_sends + (uint32_t)(i - wire->local_receives);
        if (registry->receives.items[i].peer != service->world->rank) {
            break;
        }
        if (fy_is_banded(service, &registry->sends.items[send])) {
            status = list_end(registry, send, (uint32_t)i, &list, error);
        }
    }
    if (status != FERRY_OK) {
        fy_free(list.items);
        return status;
    }
    return cut_list(service, NULL, &list, error);
}

/*
 * What comes
 */

static uint64_t row_bytes(const fy_code_maker *m)
{
    return m->q.n_columns * fy_cast_element_bytes(m->q.kind);
}

/* Of values on a mesh, which band byte `first` of a receive belongs to. */
static uint64_t band_of(const fy_registry *registry, const fy_end *end, uint64_t first)
{
    const fy_code_maker *m = &registry->makings[registry->held[end->held].making];
    fy_area area = fy_end_area(registry, end);
    uint64_t at = fy_area_walk_of(&area, first, 1).at - m->values.offset;
    uint64_t row = at / row_bytes(m);
    return m->first_band + row / m->q.n_rows * m->n_bands + row % m->q.n_rows / m->band_rows;
}

/* The most bytes of a band, in whole lines: so numbers of all places lie alike. */
static uint64_t place_bytes(const fy_registry *registry)
{
    uint64_t most = 0;
    for (size_t i = 0; i < registry->n_makings; i++) {
        const fy_code_maker *m = &registry->makings[i];
        most = fy_max(most, fy_min(m->band_rows, m->q.n_rows) * row_bytes(m));
    }
    return (most + LINE - 1) / LINE * LINE;
}

ferry_status fy_bands_plan(ferry_service *service, bool in_order, ferry_error *error)
{
    fy_service_program *program = service->program;
    fy_registry *registry = &service->registry;
    uint64_t cap = service->options.memory_cap, bytes = registry->gathered_bytes;
    uint64_t n_rings = fy_makings_choose(registry);
    program->by_bands = in_order && registry->plan != NULL &&
                        !ferry_plan_is_in_boxes(registry->plan, FERRY_SIDE_DESTINATION);
    if (program->by_bands && registry->n_makings > 0) {
        program->place_bytes = place_bytes(registry);
        uint64_t each = program->place_bytes * n_rings;
        program->n_places = fy_max(fy_min(cap / 2 / (each + 1), MOST_PLACES), LEAST_PLACES);
        program->n_places = fy_min(program->n_places, registry->n_bands);
        bytes = program->n_places * each;
    }
    return bytes <= cap
               ? fy_makings_gather(registry, program->n_places > 0, error)
               : fy_fail(
                     error, FERRY_ERR_LIMIT,
                     "rank %u quantizes values itself, for blocks of them come from several "
                     "ranks, and holds %llu bytes of these at once: more than the memory cap of "
                     "%llu bytes; a \"unit\" at the source keeps cuts between blocks",
                     service->world->rank, (unsigned long long)bytes, (unsigned long long)cap);
}

/* One band in an item, and each not before the one before it. */
static ferry_status check_lane(const ferry_service *service, fy_lane *lane, bool is_local,
                               uint32_t peer, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    uint64_t n_places = service->program->n_places, last = 0;
    bool any = false; /* values: no scale of a matrix comes behind them */
    for (size_t i = 0; i < lane->n_items; i++) {
        fy_item *item = &lane->items[i];
        uint64_t band = UINT64_MAX;
        bool ok = true;
        for (uint32_t p = 0; p < item->n_parts; p++) {
            const fy_item_part *part = &lane->parts[item->first_part + p];
            const fy_end *end = &registry->receives.items[is_local ? part->place : part->end];
            if (!fy_is_banded(service, end)) {
                bool is_given = registry->held[end->held].is_given;
                service->program->given_bytes += is_given ? part->bytes : 0;
                ok = ok && !(is_given && any);
                continue;
            }
            any = true;
            uint64_t its = band_of(registry, end, part->first);
            ok = ok && its >= last && (band == UINT64_MAX || band == its) &&
                 band_of(registry, end, part->first + part->bytes - 1) == its;
            band = its;
        }
        if (!ok) {
            return fy_fail(error, FERRY_ERR_EXCHANGE,
                           "rank %u announced values that do not come band by band", peer);
        }
        last = band == UINT64_MAX ? last : band;
        item->n_made = band == UINT64_MAX || band < n_places ? 0 : band + 1 - n_places;
    }
    return FERRY_OK;
}

ferry_status fy_bands_check(ferry_service *service, ferry_error *error)
{
    fy_service_program *program = service->program;
    program->given_bytes = 0;
    if (program->n_places == 0) {
        return FERRY_OK;
    }
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        FY_TRY(check_lane(service, &channel->in, false, channel->peer, error));
    }
    return check_lane(service, &program->local, true, service->world->rank, error);
}

/*
 * Runs
 */

ferry_status fy_bands_open(const ferry_service *service, fy_run_state *run, ferry_error *error)
{
    const fy_service_program *program = service->program;
    if (program->n_places == 0) {
        return FERRY_OK;
    }
    run->made.left = fy_alloc(service->registry.n_bands, sizeof *run->made.left);
    return fy_check_memory(run->made.left != NULL, "values that are quantized on arrival", error);
}

uint64_t fy_bands_bytes(const ferry_service *service)
{
    const fy_service_program *program = service->program;
    return program->n_places == 0
               ? service->registry.gathered_bytes
               : service->run->made.n_rings * program->n_places * program->place_bytes;
}

void fy_bands_begin(ferry_service *service)
{
    const fy_registry *registry = &service->registry;
    uint64_t *left = service->run->made.left;
    service->run->made.given_left = service->program->given_bytes;
    for (size_t i = 0; left != NULL && i < registry->n_makings; i++) {
        const fy_code_maker *m = &registry->makings[i];
        for (uint64_t b = 0; b < m->n_bands * m->n_planes; b++) {
            uint64_t row = b % m->n_bands * m->band_rows;
            left[m->first_band + b] = fy_min(m->band_rows, m->q.n_rows - row) * row_bytes(m);
        }
    }
}

void fy_bands_take(ferry_service *service, const fy_lane *lane, const fy_item *item, bool is_local)
{
    const fy_registry *registry = &service->registry;
    for (uint32_t p = 0; service->run->made.left != NULL && p < item->n_parts; p++) {
        const fy_item_part *part = &lane->parts[item->first_part + p];
        const fy_end *end = &registry->receives.items[is_local ? part->place : part->end];
        if (fy_is_banded(service, end)) {
            service->run->made.left[band_of(registry, end, part->first)] -= part->bytes;
        } else if (registry->held[end->held].is_given) {
            service->run->made.given_left -= part->bytes;
        }
    }
}

bool fy_band_is_there(const ferry_service *service, uint64_t band)
{
    const fy_run_state *run = service->run;
    return run->made.left == NULL ? run->drive.n_left == 0
                                  : run->made.given_left == 0 && run->made.left[band] == 0;
}

/* Places are as if the memory of all values began before them. */
char *fy_band_base(const ferry_service *service, uint32_t held, uint64_t band)
{
    const fy_run_state *run = service->run;
    const fy_registry *registry = &service->registry;
    if (service->program->n_places == 0) {
        return registry->held[held].front.base;
    }
    const fy_code_maker *m = &registry->makings[registry->held[held].making];
    uintptr_t ring = (uintptr_t)fy_ring_of(run, m->space)->base;
    uint64_t number = band - m->first_band;
    uint64_t row = number / m->n_bands * m->q.n_rows + number % m->n_bands * m->band_rows;
    uint64_t place = band % service->program->n_places * service->program->place_bytes;
    return (char *)(ring + place - m->values.offset - row * row_bytes(m));
}

fy_part_end fy_target_at(const ferry_service *service, uint32_t receive, uint64_t first)
{
    const fy_registry *registry = &service->registry;
    const fy_end *end = &registry->receives.items[receive];
    fy_part_end target = fy_target_of(service, receive);
    if (service->program->n_places > 0 && fy_is_banded(service, end)) {
        target.base = fy_band_base(service, end->held, band_of(registry, end, first));
        target.space = registry->makings[registry->held[end->held].making].space;
    }
    return target;
}
