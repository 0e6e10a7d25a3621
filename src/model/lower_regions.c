/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose boxes are no product of splits: regions, and the ranks that have each. */
#include "model/lower_boxes.h"

#include "base/checked.h"
#include "base/sort.h"
#include "layout/regions.h"

#include <string.h>

/* Ranks that have a region: by layer, those that have it at least so many times. */
typedef struct fy_layered_ranks {
    uint32_t n_layers;
    uint32_t *holders; /* [n_layers] tables of one cell */
} fy_layered_ranks;

/* Boxes of a tensor that differ, and the lists of ranks that have each, as often as they do. */
typedef struct distinct_boxes {
    size_t n;
    size_t *first; /* [n + 1] into lists */
    uint32_t *lists;
} distinct_boxes;

typedef struct listed_box {
    const uint64_t *numbers; /* begin and shape */
    uint32_t n_dims;
    uint32_t list;
} listed_box;

static int compare_numbers(const listed_box *x, const listed_box *y)
{
    for (uint32_t k = 0; k < 2 * x->n_dims; k++) {
        if (x->numbers[k] != y->numbers[k]) {
            return x->numbers[k] < y->numbers[k] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_listed(const void *a, const void *b)
{
    const listed_box *x = a, *y = b;
    int numbers = compare_numbers(x, y);
    return numbers != 0 ? numbers : (x->list > y->list) - (x->list < y->list);
}

static ferry_status list_all(const fy_extent_table *table, uint32_t tensor, listed_box **boxes_out,
                             size_t *n_out, ferry_error *error)
{
    const fy_memory *memory = table->memory;
    const fy_memory_tensor *held = &memory->tensors[tensor];
    uint32_t n_lists = memory->spots[held->spots].n_lists;
    size_t n = 0;
    for (uint32_t i = 0; i < n_lists; i++) {
        n += memory->stocks[held->first_stock + i].n_boxes;
    }
    listed_box *boxes = fy_alloc(n, sizeof *boxes);
    FY_TRY(fy_check_memory(boxes != NULL, "the regions of a tensor", error));
    n = 0;
    for (uint32_t i = 0; i < n_lists; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + i];
        for (uint32_t k = 0; k < stock->n_boxes; k++) {
            const fy_memory_box *box = &memory->boxes[stock->first_box + k];
            boxes[n++] = (listed_box){.numbers = box->numbers, .n_dims = box->n_dims, .list = i};
        }
    }
    fy_sort(boxes, n, sizeof *boxes, compare_listed);
    *boxes_out = boxes;
    *n_out = n;
    return FERRY_OK;
}

/* Into the table's scratch, each once. */
static ferry_status find_distinct(fy_extent_table *table, uint32_t tensor, distinct_boxes *d,
                                  ferry_error *error)
{
    listed_box *boxes = NULL;
    size_t n = 0, n_dims = fy_extents_tensor(table, tensor)->n_dims;
    FY_TRY(list_all(table, tensor, &boxes, &n, error));
    d->first = fy_alloc(n + 1, sizeof *d->first);
    d->lists = fy_alloc(n, sizeof *d->lists);
    if (d->first == NULL || d->lists == NULL ||
        !FY_RESERVE(table->begin, table->begin_capacity, n * n_dims + 1) ||
        !FY_RESERVE(table->length, table->length_capacity, n * n_dims + 1)) {
        fy_free(boxes);
        return fy_fail_no_memory(error, "the regions of a tensor");
    }
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || compare_numbers(&boxes[i - 1], &boxes[i]) != 0) {
            d->first[d->n] = i;
            memcpy(table->begin + d->n * n_dims, boxes[i].numbers, n_dims * sizeof *table->begin);
            memcpy(table->length + d->n * n_dims, boxes[i].numbers + n_dims,
                   n_dims * sizeof *table->length);
            d->n++;
        }
        d->lists[i] = boxes[i].list;
    }
    d->first[d->n] = n;
    fy_free(boxes);
    return FERRY_OK;
}

/* A rank that has a region, for the so manieth time. */
typedef struct having {
    uint32_t rank;
    uint32_t time;
} having;

static int compare_havings(const void *a, const void *b)
{
    const having *x = a, *y = b;
    if (x->time != y->time) {
        return x->time < y->time ? -1 : 1;
    }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Of a sorted list of ranks; at a source the first time is all that counts. */
static size_t list_havings(const uint32_t *ranks, size_t n, bool all_times, having *havings)
{
    size_t kept = 0;
    uint32_t time = 0;
    for (size_t i = 0; i < n; i++) {
        time = i > 0 && ranks[i] == ranks[i - 1] ? time + 1 : 1;
        if (time == 1 || all_times) {
            havings[kept++] = (having){.rank = ranks[i], .time = time};
        }
    }
    fy_sort(havings, kept, sizeof *havings, compare_havings);
    return kept;
}

/* Adds tables of the ranks that stand in a sorted list n times, for each n. */
static ferry_status make_layers(fy_extent_table *table, const uint32_t *ranks, size_t n,
                                fy_layered_ranks *layered, ferry_error *error)
{
    having *havings = fy_alloc(n, sizeof *havings);
    fy_holder *entries = fy_alloc(n, sizeof *entries);
    ferry_status status =
        fy_check_memory(havings != NULL && entries != NULL, "the holders of a region", error);
    if (status == FERRY_OK) {
        n = list_havings(ranks, n, table->is_destination, havings);
        layered->n_layers = havings[n - 1].time;
        layered->holders =
            fy_arena_alloc(&table->problem->arena, layered->n_layers, sizeof *layered->holders);
        status = fy_check_memory(layered->holders != NULL, "the holders of a region", error);
    }
    for (size_t i = 0; i < n && status == FERRY_OK;) {
        fy_holders *holders = NULL;
        uint32_t time = havings[i].time;
        size_t n_entries = 0;
        for (; i < n && havings[i].time == time; i++) {
            entries[n_entries++] = (fy_holder){.rank = havings[i].rank, .cell = 0};
        }
        status = fy_holders_create(1, entries, n_entries, &holders, error);
        FY_THEN(status, fy_problem_add_holders(table->problem, holders, &layered->holders[time - 1],
                                               error));
    }
    fy_free(havings);
    fy_free(entries);
    return status;
}

/* The ranks of some of a tensor's lists, which are sorted. */
static ferry_status find_layers(fy_extent_table *table, const fy_spots *spots,
                                const uint32_t *lists, size_t n_lists, uint32_t *number_out,
                                ferry_error *error)
{
    const ferry_side *side = table->memory->side;
    uint32_t *ranks = NULL;
    size_t n = 0, capacity = 0;
    for (size_t i = 0; i < n_lists; i++) {
        fy_digest_u64(&table->key, spots->lists[lists[i]]);
    }
    fy_hash128 key = fy_digest_take(&table->key);
    FY_TRY(fy_check_memory(!table->key.failed, "the holders of a region", error));
    *number_out = fy_memo_find(&table->sets, key);
    if (*number_out != UINT32_MAX) {
        return FERRY_OK;
    }
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n_lists && status == FERRY_OK; i++) {
        const fy_rank_list *list = &side->lists[spots->lists[lists[i]]];
        status = FY_GROW(ranks, capacity, n + list->n, "the holders of a region", error);
        for (uint32_t k = 0; k < list->n && status == FERRY_OK; k++) {
            ranks[n++] = list->ranks[k];
        }
    }
    FY_THEN(status, FY_GROW(table->layered, table->layered_capacity, table->n_layered + 1,
                            "the holders of a region", error));
    if (status == FERRY_OK) {
        fy_sort(ranks, n, sizeof *ranks, fy_compare_u32);
        status = make_layers(table, ranks, n, &table->layered[table->n_layered], error);
    }
    if (status == FERRY_OK) {
        *number_out = (uint32_t)table->n_layered++;
        status = fy_check_memory(fy_memo_add(&table->sets, key, *number_out),
                                 "the holders of a region", error);
    }
    fy_free(ranks);
    return status;
}

static ferry_status place_region(fy_extent_table *table, const fy_box *box, uint32_t n_dims,
                                 uint32_t holders, uint32_t *placement_out, ferry_error *error)
{
    fy_layout layout = {.n_dims = n_dims};
    for (uint32_t d = 0; d < n_dims; d++) {
        fy_split *split = NULL;
        layout.shape[d] = box->length[d];
        FY_TRY(fy_split_whole(box->length[d], &split, error));
        FY_TRY(fy_problem_add_split(table->problem, split, &layout.split[d], error));
    }
    return fy_problem_add_placement(table->problem, &layout, holders, NULL, placement_out, error);
}

/* The regions of a set as extents, each as often as it has layers. */
static ferry_status fill_extents(fy_extent_table *table, uint32_t tensor, const distinct_boxes *d,
                                 const fy_region_set *set, fy_extents *extents, ferry_error *error)
{
    const fy_spots *spots = &table->memory->spots[table->memory->tensors[tensor].spots];
    uint32_t *lists = NULL, *numbers = fy_alloc(set->n_regions, sizeof *numbers);
    size_t capacity = 0, n_extents = 0;
    ferry_status status = fy_check_memory(numbers != NULL, "the regions of a tensor", error);
    for (size_t r = 0; r < set->n_regions && status == FERRY_OK; r++) {
        const struct fy_region_of *region = &set->regions[r];
        size_t n = 0;
        for (uint32_t i = 0; i < region->n && status == FERRY_OK; i++) {
            uint32_t box = set->lists[region->first + i];
            size_t more = d->first[box + 1] - d->first[box];
            status = FY_GROW(lists, capacity, n + more, "the regions of a tensor", error);
            if (status == FERRY_OK) {
                memcpy(lists + n, d->lists + d->first[box], more * sizeof *lists);
                n += more;
            }
        }
        if (status == FERRY_OK) {
            fy_sort(lists, n, sizeof *lists, fy_compare_u32);
            status = find_layers(table, spots, lists, n, &numbers[r], error);
        }
        n_extents += status == FERRY_OK ? table->layered[numbers[r]].n_layers : 0;
    }
    extents->regions =
        fy_arena_alloc(&table->problem->arena, n_extents + 1, sizeof *extents->regions);
    FY_THEN(status, fy_check_memory(extents->regions != NULL, "the regions of a tensor", error));
    for (size_t r = 0; r < set->n_regions && status == FERRY_OK; r++) {
        const fy_layered_ranks *layered = &table->layered[numbers[r]];
        for (uint32_t layer = 0; layer < layered->n_layers && status == FERRY_OK; layer++) {
            fy_extent *extent = &extents->regions[extents->n_regions++];
            *extent = (fy_extent){.box = set->regions[r].box, .layer = layer + 1};
            status = place_region(table, &extent->box, set->n_dims, layered->holders[layer],
                                  &extent->placement, error);
        }
    }
    fy_free(lists);
    fy_free(numbers);
    return status;
}

enum { TREE_FROM = 8 };

static ferry_status make_tree(fy_extents *extents, uint32_t n_dims, ferry_error *error)
{
    size_t n = extents->n_regions;
    uint64_t *begin = fy_alloc(n * n_dims + 1, sizeof *begin);
    uint64_t *length = fy_alloc(n * n_dims + 1, sizeof *length);
    ferry_status status =
        fy_check_memory(begin != NULL && length != NULL, "the regions of a tensor", error);
    for (size_t i = 0; status == FERRY_OK && i < n; i++) {
        memcpy(begin + i * n_dims, extents->regions[i].box.begin, n_dims * sizeof *begin);
        memcpy(length + i * n_dims, extents->regions[i].box.length, n_dims * sizeof *length);
    }
    FY_THEN(status, fy_box_tree_create(begin, length, n, n_dims, &extents->tree, error));
    fy_free(begin);
    fy_free(length);
    return status;
}

ferry_status fy_extents_as_regions(fy_extent_table *table, uint32_t tensor, fy_extents *extents,
                                   ferry_error *error)
{
    uint32_t n_dims = fy_extents_tensor(table, tensor)->n_dims;
    distinct_boxes d = {0};
    fy_region_set set = {0};
    ferry_status status = find_distinct(table, tensor, &d, error);
    FY_THEN(status, fy_regions_create(table->begin, table->length, d.n, n_dims, &set, error));
    FY_THEN(status, fill_extents(table, tensor, &d, &set, extents, error));
    if (status == FERRY_OK && extents->n_regions > TREE_FROM) {
        status = make_tree(extents, n_dims, error);
    }
    fy_regions_cleanup(&set);
    fy_free(d.first);
    fy_free(d.lists);
    return status;
}

/* What the extents of a tensor follow from. */
static fy_hash128 key_of(const fy_extent_table *table, uint32_t tensor)
{
    const fy_tensor *of = fy_extents_tensor(table, tensor);
    uint64_t values[2 + FERRY_MAX_DIMS] = {table->memory->keys[tensor].low,
                                           table->memory->keys[tensor].high};
    for (uint32_t d = 0; d < of->n_dims; d++) {
        values[2 + d] = of->shape[d];
    }
    return fy_hash128_of(values, (2 + of->n_dims) * sizeof *values);
}

ferry_status fy_extents_find(fy_extent_table *table, uint32_t tensor, uint32_t *number_out,
                             ferry_error *error)
{
    fy_extents extents = {.placement = FY_NONE};
    *number_out = FY_NONE;
    if (table->memory->tensors[tensor].spots == FY_NO_SPOTS) {
        return FERRY_OK;
    }
    fy_hash128 key = key_of(table, tensor);
    *number_out = fy_memo_find(&table->memo, key);
    if (*number_out != UINT32_MAX) {
        return FERRY_OK;
    }
    FY_TRY(fy_extents_as_product(table, tensor, &extents.placement, &extents.n_layers, error));
    ferry_status status = FERRY_OK;
    if (extents.placement == FY_NONE) {
        status = fy_extents_as_regions(table, tensor, &extents, error);
    }
    FY_THEN(status,
            FY_GROW(table->all, table->capacity, table->n + 1, "the boxes of a tensor", error));
    if (status != FERRY_OK) {
        fy_box_tree_destroy(extents.tree);
        return status;
    }
    *number_out = (uint32_t)table->n;
    table->all[table->n++] = extents;
    return fy_check_memory(fy_memo_add(&table->memo, key, *number_out), "the boxes of a tensor",
                           error);
}

void fy_extent_table_cleanup(fy_extent_table *table)
{
    for (size_t i = 0; i < table->n; i++) {
        fy_box_tree_destroy(table->all[i].tree);
    }
    fy_memo_cleanup(&table->memo);
    fy_memo_cleanup(&table->sets);
    fy_free(table->all);
    fy_free(table->layered);
    fy_free(table->begin);
    fy_free(table->length);
    fy_digest_cleanup(&table->key);
}
