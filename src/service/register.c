/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank registers. A call that fails leaves the registry as it was: it first makes room for
 * all that it will add, then adds it. Only an index may keep the number of a thing that did not
 * come to be; look-ups pass over what is beyond the count, or is not what they want.
 */
#include "service/registry.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/sort.h"
#include "transport/region.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN_NAME = 200 };

static ferry_status fail_no_memory(ferry_error *error)
{
    return fy_fail_no_memory(error, "registrations");
}

void fy_registry_cleanup(fy_registry *registry)
{
    fy_makings_free(registry);
    for (size_t i = 0; i < registry->n_held; i++) {
        ferry_region_free(registry->held[i].regions[0]);
        ferry_region_free(registry->held[i].regions[1]);
    }
    fy_free(registry->held);
    fy_free(registry->targets);
    fy_free(registry->names);
    fy_free(registry->dims);
    fy_free(registry->sends.items);
    fy_free(registry->receives.items);
    fy_patterns_free(registry);
    fy_scalings_free(registry);
    fy_products_free(registry);
    fy_free(registry->conversions);
    fy_index_cleanup(&registry->conversions_by_hash);
    fy_index_cleanup(&registry->held_by_base);
    fy_index_cleanup(&registry->sends.index);
    fy_index_cleanup(&registry->receives.index);
    ferry_plan_destroy(registry->plan);
    memset(registry, 0, sizeof *registry);
}

/*
 * Names
 */

/* Room for n_bytes more; the first name is "". */
static bool reserve_names(fy_registry *registry, size_t n_bytes)
{
    size_t first = registry->names_used == 0;
    if (!FY_RESERVE(registry->names, registry->names_capacity,
                    registry->names_used + n_bytes + first)) {
        return false;
    }
    if (first) {
        registry->names[0] = '\0';
        registry->names_used = 1;
    }
    return true;
}

ferry_status fy_registry_name(fy_registry *registry, const char *name, size_t *name_out,
                              ferry_error *error)
{
    size_t n_bytes = name == NULL || name[0] == '\0' ? 0 : strlen(name) + 1;
    if (!reserve_names(registry, n_bytes)) {
        return fail_no_memory(error);
    }
    *name_out = 0;
    if (n_bytes != 0) {
        *name_out = registry->names_used;
        memcpy(registry->names + registry->names_used, name, n_bytes);
        registry->names_used += n_bytes;
    }
    return FERRY_OK;
}

const char *fy_held_name(const fy_registry *registry, uint32_t held)
{
    uint32_t codes = registry->held[held].codes;
    return registry->names + registry->held[codes == FY_NONE ? held : codes].name;
}

/*
 * Buffers
 */

static uint64_t hash_base(const void *base)
{
    return fy_hash_mix((uint64_t)(uintptr_t)base, 1);
}

static uint32_t find_held(const fy_registry *registry, const void *base)
{
    fy_index_cursor c = fy_index_first(&registry->held_by_base, hash_base(base));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&registry->held_by_base, &c)) {
        if (c.value < registry->n_held && registry->held[c.value].front.base == base) {
            return c.value;
        }
    }
    return FY_NONE;
}

static ferry_status reserve_held(fy_registry *registry, ferry_error *error)
{
    if (registry->n_held >= FY_NONE - 1) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a rank registers at most %u buffers", FY_NONE - 1);
    }
    if (!FY_RESERVE(registry->held, registry->held_capacity, registry->n_held + 1) ||
        !FY_RESERVE(registry->targets, registry->target_capacity, registry->n_targets + 1)) {
        return fail_no_memory(error);
    }
    return FERRY_OK;
}

void fy_registry_note(fy_registry *registry, const ferry_buffer *buffer)
{
    registry->has_far = registry->has_far || buffer->kind != FERRY_MEMORY_HOST;
    registry->has_regions = registry->has_regions || buffer->registration != NULL;
}

/* There is room, and the index knows it. */
static uint32_t put_held(fy_registry *registry, const ferry_buffer *front, const ferry_buffer *back,
                         size_t name)
{
    uint32_t held = (uint32_t)registry->n_held++;
    registry->held[held] = (fy_held){.front = *front,
                                     .back = back == NULL ? (ferry_buffer){0} : *back,
                                     .destination = FY_NONE,
                                     .codes = FY_NONE,
                                     .name = name};
    fy_registry_note(registry, front);
    fy_registry_note(registry, &registry->held[held].back);
    return held;
}

/* There is room. */
static void make_destination(fy_registry *registry, uint32_t held)
{
    fy_held *item = &registry->held[held];
    if (item->destination == FY_NONE) {
        item->destination = (uint32_t)registry->n_targets;
        registry->targets[registry->n_targets++] = (fy_target){.held = held, .name = item->name};
    }
}

/* What a second registration of a base adds to the first. */
static void extend_held(fy_registry *registry, uint32_t held, const ferry_buffer *front,
                        const ferry_buffer *back, size_t name)
{
    fy_held *item = &registry->held[held];
    fy_registry_note(registry, front);
    if (back != NULL) {
        fy_registry_note(registry, back);
    }
    if (front->bytes > item->front.bytes) {
        item->front.bytes = front->bytes;
    }
    if (item->front.registration == NULL) {
        item->front.registration = front->registration;
    }
    if (item->back.base == NULL && back != NULL) {
        item->back = *back;
    }
    if (item->name == 0) {
        item->name = name;
        if (item->destination != FY_NONE) {
            registry->targets[item->destination].name = name;
        }
    }
}

ferry_status fy_registry_hold(fy_registry *registry, const ferry_buffer *front,
                              const ferry_buffer *back, size_t name, uint32_t *held_out,
                              ferry_error *error)
{
    uint32_t held = find_held(registry, front->base);
    if (held != FY_NONE) {
        extend_held(registry, held, front, back, name);
        *held_out = held;
        return FERRY_OK;
    }
    FY_TRY(reserve_held(registry, error));
    if (!reserve_names(registry, 0) ||
        !fy_index_insert(&registry->held_by_base, hash_base(front->base),
                         (uint32_t)registry->n_held)) {
        return fail_no_memory(error);
    }
    *held_out = put_held(registry, front, back, name);
    return FERRY_OK;
}

ferry_status fy_registry_hold_tensor(fy_registry *registry, const ferry_buffer *front,
                                     const ferry_buffer *back, size_t name, bool is_destination,
                                     uint32_t *held_out, ferry_error *error)
{
    FY_TRY(reserve_held(registry, error));
    if (!reserve_names(registry, 0)) {
        return fail_no_memory(error);
    }
    *held_out = put_held(registry, front, back, name);
    if (is_destination) {
        make_destination(registry, *held_out);
    }
    return FERRY_OK;
}

/*
 * Ends
 */

static int compare_ends(const void *a, const void *b)
{
    const fy_end *x = a, *y = b;
    if (x->peer != y->peer) {
        return x->peer < y->peer ? -1 : 1;
    }
    return x->task_id == y->task_id ? 0 : x->task_id < y->task_id ? -1 : 1;
}

const fy_end *fy_ends_find(const fy_ends *ends, uint32_t peer, uint64_t task_id)
{
    fy_end wanted = {.peer = peer, .task_id = task_id};
    return ends->n == 0 ? NULL
                        : bsearch(&wanted, ends->items, ends->n, sizeof wanted, compare_ends);
}

static bool index_ends(fy_ends *ends)
{
    for (; ends->n_indexed < ends->n; ends->n_indexed++) {
        const fy_end *end = &ends->items[ends->n_indexed];
        if (!fy_index_insert(&ends->index, fy_hash_mix(end->task_id, end->peer),
                             (uint32_t)ends->n_indexed)) {
            return false;
        }
    }
    return true;
}

/* Ids that ascend are new without a look: the index, as large as the ends, is made when one is not.
 */
static ferry_status check_unique(fy_ends *ends, bool is_send, uint64_t task_id, uint32_t peer,
                                 ferry_error *error)
{
    fy_end wanted = {.peer = peer, .task_id = task_id};
    if (ends->n == 0 || task_id > ends->greatest_id) {
        return FERRY_OK;
    }
    FY_TRY(fy_check_memory(index_ends(ends), "the tasks of a rank", error));
    fy_index_cursor c = fy_index_first(&ends->index, fy_hash_mix(task_id, peer));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&ends->index, &c)) {
        if (compare_ends(&ends->items[c.value], &wanted) == 0) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "task %llu %s rank %u %s this rank is registered already: ids are "
                           "unique for each pair of source and destination",
                           (unsigned long long)task_id, is_send ? "to" : "from", peer,
                           is_send ? "from" : "to");
        }
    }
    return FERRY_OK;
}

static ferry_status check_area(const fy_area *area, uint64_t buffer_bytes, uint64_t task_id,
                               ferry_error *error)
{
    uint64_t begin, end;
    if (area->bytes == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu has 0 bytes: what has no bytes is not registered",
                       (unsigned long long)task_id);
    }
    fy_area_hull(area, &begin, &end);
    if (end > buffer_bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "task %llu takes bytes [%llu, %llu) of a buffer of %llu bytes",
                       (unsigned long long)task_id, (unsigned long long)begin,
                       (unsigned long long)end, (unsigned long long)buffer_bytes);
    }
    return FERRY_OK;
}

/* Room for an end. */
static ferry_status reserve_end(fy_registry *registry, fy_ends *ends, uint32_t n_dims,
                                ferry_error *error)
{
    size_t n_numbers = (size_t)n_dims * 2;
    if (ends->n >= FY_NONE - 1 || registry->n_dims + n_numbers > FY_NONE) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a rank registers at most %u tasks of each side",
                       FY_NONE - 1);
    }
    if (!FY_RESERVE(ends->items, ends->capacity, ends->n + 1) ||
        !FY_RESERVE(registry->dims, registry->dims_capacity, registry->n_dims + n_numbers)) {
        return fail_no_memory(error);
    }
    return FERRY_OK;
}

static uint64_t bytes_that_travel(const fy_registry *registry, bool is_send, const fy_end *end,
                                  const fy_area *area)
{
    const fy_task_cast *its = fy_end_conversion(registry, end);
    return its == NULL
               ? area->bytes
               : area->bytes / (is_send ? its->from_bytes : its->to_bytes) * its->wire_bytes;
}

/* There is room for its dimensions. */
static void lay(fy_registry *registry, fy_end *end, const fy_area *area)
{
    end->offset = area->offset;
    end->run_bytes = area->run_bytes;
    end->n_dims = area->n_dims;
    end->dims = (uint32_t)registry->n_dims;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        registry->dims[registry->n_dims + d] = area->length[d];
        registry->dims[registry->n_dims + area->n_dims + d] = area->stride[d];
    }
    registry->n_dims += (size_t)area->n_dims * 2;
}

void fy_registry_count(fy_registry *registry, uint32_t held, const fy_area *area)
{
    fy_target *target = &registry->targets[registry->held[held].destination];
    target->bytes += area->bytes;
    target->sum = fy_area_sum_of_both(target->sum, fy_area_sum(area));
}

/* There is room. */
static void put_end(fy_registry *registry, bool is_send, const fy_end *end, const fy_area *area)
{
    fy_ends *ends = is_send ? &registry->sends : &registry->receives;
    ends->greatest_id =
        ends->n == 0 || end->task_id > ends->greatest_id ? end->task_id : ends->greatest_id;
    fy_end *item = &ends->items[ends->n++];
    *item = *end;
    item->bytes = bytes_that_travel(registry, is_send, end, area);
    lay(registry, item, area);
    if (!is_send && registry->held[end->held].codes == FY_NONE) {
        make_destination(registry, end->held);
        fy_registry_count(registry, end->held, area);
    }
}

ferry_status fy_registry_lay(fy_registry *registry, uint32_t held, const fy_area *area,
                             fy_end *end_out, ferry_error *error)
{
    if (!FY_RESERVE(registry->dims, registry->dims_capacity,
                    registry->n_dims + 2 * (size_t)area->n_dims)) {
        return fail_no_memory(error);
    }
    *end_out = (fy_end){.held = held, .bytes = area->bytes};
    lay(registry, end_out, area);
    return FERRY_OK;
}

ferry_status fy_registry_add_area(fy_registry *registry, bool is_send, uint64_t task_id,
                                  uint32_t peer, uint32_t held, uint64_t element_bytes,
                                  uint32_t conversion, const fy_area *area, ferry_error *error)
{
    fy_ends *ends = is_send ? &registry->sends : &registry->receives;
    FY_TRY(check_area(area, registry->held[held].front.bytes, task_id, error));
    FY_TRY(check_unique(ends, is_send, task_id, peer, error));
    if (!is_send) {
        FY_TRY(reserve_held(registry, error));
    }
    FY_TRY(reserve_end(registry, ends, area->n_dims, error));
    fy_end end = {.task_id = task_id,
                  .peer = peer,
                  .held = held,
                  .element_bytes = element_bytes,
                  .conversion = conversion};
    put_end(registry, is_send, &end, area);
    return FERRY_OK;
}

/*
 * Conversions
 */

static bool is_same_conversion(const fy_task_cast *a, const fy_task_cast *b)
{
    return a->cast.from_kind == b->cast.from_kind && a->cast.to_kind == b->cast.to_kind &&
           a->cast.overflow == b->cast.overflow && a->cast.scale == b->cast.scale &&
           a->cast.add == b->cast.add && a->at_receiver == b->at_receiver && a->is_raw == b->is_raw;
}

static uint64_t hash_conversion(const fy_task_cast *c)
{
    float numbers[] = {c->cast.scale, c->cast.add};
    uint32_t kinds[] = {c->cast.from_kind, c->cast.to_kind, c->cast.overflow, c->at_receiver};
    return fy_hash_mix(fy_hash64(numbers, sizeof numbers), fy_hash64(kinds, sizeof kinds));
}

ferry_status fy_registry_convert(fy_registry *registry, const fy_task_cast *conversion,
                                 uint32_t *number_out, ferry_error *error)
{
    uint64_t hash = hash_conversion(conversion);
    bool is_shared = conversion->cast.to_scales.values == NULL; /* each box has its own scales */
    fy_index_cursor c = fy_index_first(&registry->conversions_by_hash, hash);
    for (; is_shared && c.value != FY_INDEX_NONE;
         fy_index_next(&registry->conversions_by_hash, &c)) {
        if (is_same_conversion(&registry->conversions[c.value], conversion)) {
            *number_out = c.value + 1;
            return FERRY_OK;
        }
    }
    size_t n = registry->n_conversions;
    if (n >= FY_NONE - 1 ||
        !FY_RESERVE(registry->conversions, registry->conversion_capacity, n + 1) ||
        (is_shared && !fy_index_insert(&registry->conversions_by_hash, hash, (uint32_t)n))) {
        return fail_no_memory(error);
    }
    registry->conversions[n] = *conversion;
    registry->n_conversions = n + 1;
    *number_out = (uint32_t)n + 1;
    return FERRY_OK;
}

/* Everything that can be refused before anything is added. */
static ferry_status check_box(fy_registry *registry, bool is_send, uint64_t task_id, uint32_t peer,
                              const ferry_box *box, fy_area *area_out, ferry_error *error)
{
    ferry_error inner;
    bool is_named = box->name != NULL && box->name[0] != '\0';
    ferry_status status = fy_box_area(box, area_out, &inner);
    FY_THEN(status, fy_registration_check(&box->buffer,
                                          is_named ? box->name : "the memory of a box", &inner));
    if (status != FERRY_OK) {
        return fy_fail(error, status, "task %llu %s rank %u: %s", (unsigned long long)task_id,
                       is_send ? "to" : "from", peer, inner.message);
    }
    FY_TRY(check_area(area_out, box->buffer.bytes, task_id, error));
    return check_unique(is_send ? &registry->sends : &registry->receives, is_send, task_id, peer,
                        error);
}

ferry_status fy_registry_add(fy_registry *registry, bool is_send, uint64_t task_id, uint32_t peer,
                             const ferry_box *box, ferry_error *error)
{
    fy_area area;
    FY_TRY(check_box(registry, is_send, task_id, peer, box, &area, error));
    fy_ends *ends = is_send ? &registry->sends : &registry->receives;
    size_t names_used = registry->names_used, name = 0;
    uint32_t held = find_held(registry, box->buffer.base);
    ferry_status status = reserve_held(registry, error);
    if (status == FERRY_OK) { /* a buffer has one name: the first that it is given */
        bool named = held != FY_NONE && registry->held[held].name != 0;
        status = fy_registry_name(registry, named ? NULL : box->name, &name, error);
    }
    FY_THEN(status, reserve_end(registry, ends, area.n_dims, error));
    FY_THEN(status, fy_registry_hold(registry, &box->buffer, NULL, name, &held, error));
    if (status != FERRY_OK) {
        registry->names_used = names_used;
        return status;
    }
    fy_end end = {.task_id = task_id,
                  .peer = peer,
                  .held = held,
                  .element_bytes = box->element_bytes,
                  .conversion = 0};
    put_end(registry, is_send, &end, &area);
    return FERRY_OK;
}

static void sort_ends(fy_ends *ends)
{
    size_t i = 1;
    while (i < ends->n && compare_ends(&ends->items[i - 1], &ends->items[i]) < 0) {
        i++;
    }
    if (i < ends->n) {
        fy_sort(ends->items, ends->n, sizeof *ends->items, compare_ends);
    }
    fy_index_cleanup(&ends->index);
    ends->n_indexed = 0;
}

void fy_registry_sort(fy_registry *registry)
{
    sort_ends(&registry->sends);
    sort_ends(&registry->receives);
}

fy_area fy_end_area(const fy_registry *registry, const fy_end *end)
{
    fy_area area = {.offset = end->offset,
                    .run_bytes = end->run_bytes,
                    .bytes = end->run_bytes,
                    .n_dims = end->n_dims};
    for (uint32_t d = 0; d < end->n_dims; d++) {
        const uint64_t *dims = registry->dims + end->dims + d;
        area.length[d] = dims[0];
        area.stride[d] = dims[end->n_dims];
        area.bytes *= area.length[d];
    }
    return area;
}

void fy_end_describe(const fy_registry *registry, const fy_end *end, bool is_send, uint32_t my_rank,
                     char *text, size_t text_bytes)
{
    const char *name = fy_held_name(registry, end->held);
    bool cut = strlen(name) > SHOWN_NAME;
    if (fy_end_fills(registry, end)) {
        snprintf(text, text_bytes, "a fill of %.*s%s at rank %u", SHOWN_NAME, name,
                 cut ? "..." : "", my_rank);
        return;
    }
    snprintf(text, text_bytes, "task %llu%s%.*s%s%s from rank %u to rank %u",
             (unsigned long long)end->task_id, name[0] == '\0' ? "" : " (", SHOWN_NAME, name,
             cut ? "..." : "", name[0] == '\0' ? "" : ")", is_send ? my_rank : end->peer,
             is_send ? end->peer : my_rank);
}
