/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/memory.h"

#include "base/checked.h"
#include "base/sort.h"
#include "layout/patch.h"
#include "model/problem.h"

#include <string.h>

enum { TREE_FROM = 8 };

/* A box on its way into the memory. */
typedef struct loose_box {
    uint32_t tensor;
    uint32_t ranks;
    fy_memory_box box;
} loose_box;

typedef struct gathering_boxes {
    fy_memory *memory;
    const char *role;
    loose_box *boxes;
    size_t n, capacity;
    fy_patch *patches; /* scratch */
    size_t patch_capacity;
} gathering_boxes;

/* A box with the repeats that are left of it. */
typedef struct open_box {
    uint32_t n_dims;
    uint64_t offset;
    uint64_t begin[FERRY_MAX_DIMS];
    uint64_t shape[FERRY_MAX_DIMS];
    uint64_t strides[FERRY_MAX_DIMS];
    uint32_t n_repeats;
    ferry_side_repeat repeats[FERRY_MAX_REPEATS];
} open_box;

static void open_held(const fy_said_box *held, open_box *box)
{
    size_t n = held->n_dims * sizeof *box->begin;
    *box = (open_box){.n_dims = held->n_dims, .offset = held->offset};
    memcpy(box->begin, held->numbers, n);
    memcpy(box->shape, fy_said_box_shape(held), n);
    memcpy(box->strides, fy_said_box_strides(held), n);
    for (uint32_t i = 0; i < held->n_repeats; i++) {
        const uint64_t *numbers = fy_said_box_repeat(held, i);
        ferry_side_repeat *repeat = &box->repeats[box->n_repeats];
        if (numbers[0] > 1) {
            repeat->count = numbers[0];
            repeat->offset = numbers[1];
            memcpy(repeat->begin, numbers + 2, n);
            box->n_repeats++;
        }
    }
}

/* Whether a repeat only makes the box longer along one dimension. */
static bool absorb(open_box *box, const ferry_side_repeat *repeat)
{
    uint32_t along = FERRY_MAX_DIMS;
    for (uint32_t d = 0; d < box->n_dims; d++) {
        if (repeat->begin[d] != 0) {
            if (along != FERRY_MAX_DIMS) {
                return false;
            }
            along = d;
        }
    }
    if (along == FERRY_MAX_DIMS || repeat->begin[along] != box->shape[along]) {
        return false;
    }
    if (box->shape[along] == 1) {
        box->strides[along] = repeat->offset;
    } else if (repeat->offset != box->shape[along] * box->strides[along]) {
        return false;
    }
    box->shape[along] *= repeat->count;
    return true;
}

/* The shortest repeats first: each may make the next one fit. */
static void absorb_all(open_box *box)
{
    bool again = true;
    while (again) {
        again = false;
        for (uint32_t i = box->n_repeats; i-- > 0;) {
            if (absorb(box, &box->repeats[i])) {
                memmove(&box->repeats[i], &box->repeats[i + 1],
                        (box->n_repeats - i - 1) * sizeof *box->repeats);
                box->n_repeats--;
                again = true;
            }
        }
    }
}

/* Among variants of tensors. */
static uint32_t number_of(const gathering_boxes *g, const fy_said_box *held)
{
    return fy_memory_find_variant(g->memory, g->memory->tensor_of[held->tensor], held->parameter);
}

static ferry_status keep_box(gathering_boxes *g, const open_box *box, const uint64_t *begin,
                             uint64_t offset, const fy_said_box *held, ferry_error *error)
{
    fy_memory *memory = g->memory;
    size_t n = box->n_dims;
    uint64_t *numbers = fy_arena_alloc(&memory->arena, 3 * n + 1, sizeof *numbers);
    if (numbers == NULL || !FY_RESERVE(g->boxes, g->capacity, g->n + 1)) {
        return fy_fail_no_memory(error, "the boxes of a side");
    }
    memcpy(numbers, begin, n * sizeof *numbers);
    memcpy(numbers + n, box->shape, n * sizeof *numbers);
    memcpy(numbers + 2 * n, box->strides, n * sizeof *numbers);
    g->boxes[g->n++] = (loose_box){.tensor = number_of(g, held),
                                   .ranks = memory->side->parameters[held->parameter].ranks,
                                   .box = {.parameter = held->parameter,
                                           .n_dims = box->n_dims,
                                           .offset = offset,
                                           .numbers = numbers}};
    return FERRY_OK;
}

static ferry_status write_out(gathering_boxes *g, const open_box *box, const fy_said_box *held,
                              ferry_error *error)
{
    uint64_t at[FERRY_MAX_REPEATS] = {0}, n = 1;
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        if (!fy_mul(n, box->repeats[i].count, &n) || n > FY_MAX_BOXES - g->n) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "%s: repeats make more than %d boxes; it got too many at the parameter "
                           "\"%s\"",
                           g->role, FY_MAX_BOXES,
                           g->memory->side->parameters[held->parameter].name);
        }
    }
    for (uint64_t turn = 0; turn < n; turn++) {
        uint64_t begin[FERRY_MAX_DIMS] = {0}, offset = box->offset;
        memcpy(begin, box->begin, box->n_dims * sizeof *begin);
        for (uint32_t i = 0; i < box->n_repeats; i++) {
            offset += at[i] * box->repeats[i].offset;
            for (uint32_t d = 0; d < box->n_dims; d++) {
                begin[d] += at[i] * box->repeats[i].begin[d];
            }
        }
        FY_TRY(keep_box(g, box, begin, offset, held, error));
        for (uint32_t i = box->n_repeats; i > 0; i--) {
            if (++at[i - 1] < box->repeats[i - 1].count) {
                break;
            }
            at[i - 1] = 0;
        }
    }
    return FERRY_OK;
}

static bool is_empty(const fy_said_box *held)
{
    for (uint32_t d = 0; d < held->n_dims; d++) {
        if (fy_said_box_shape(held)[d] == 0) {
            return true;
        }
    }
    return false;
}

/* One without repeats has its numbers in the same order: they are borrowed. */
static ferry_status keep_plain(gathering_boxes *g, const fy_said_box *held, ferry_error *error)
{
    FY_TRY(FY_GROW(g->boxes, g->capacity, g->n + 1, "the boxes of a side", error));
    g->boxes[g->n++] = (loose_box){.tensor = number_of(g, held),
                                   .ranks = g->memory->side->parameters[held->parameter].ranks,
                                   .box = {.parameter = held->parameter,
                                           .n_dims = held->n_dims,
                                           .offset = held->offset,
                                           .numbers = held->numbers}};
    return FERRY_OK;
}

static ferry_status gather(gathering_boxes *g, ferry_error *error)
{
    const ferry_side *side = g->memory->side;
    for (size_t i = 0; i < side->n_boxes; i++) {
        open_box box;
        if (is_empty(&side->boxes[i])) {
            continue;
        }
        if (side->boxes[i].n_repeats == 0) {
            FY_TRY(keep_plain(g, &side->boxes[i], error));
            continue;
        }
        open_held(&side->boxes[i], &box);
        absorb_all(&box);
        FY_TRY(write_out(g, &box, &side->boxes[i], error));
    }
    return FERRY_OK;
}

static int compare_loose(const void *a, const void *b)
{
    const loose_box *x = a, *y = b;
    if (x->tensor != y->tensor) {
        return x->tensor < y->tensor ? -1 : 1;
    }
    if (x->ranks != y->ranks) {
        return x->ranks < y->ranks ? -1 : 1;
    }
    if (x->box.parameter != y->box.parameter) {
        return x->box.parameter < y->box.parameter ? -1 : 1;
    }
    return (x->box.offset > y->box.offset) - (x->box.offset < y->box.offset);
}

static bool same_place(const loose_box *a, const loose_box *b)
{
    return a->tensor == b->tensor && a->box.parameter == b->box.parameter;
}

/* Of the boxes of one tensor in one parameter: those that are one. */
static ferry_status join_boxes(gathering_boxes *g, loose_box *boxes, size_t *n_inout,
                               ferry_error *error)
{
    size_t n = *n_inout;
    uint32_t n_dims = boxes->box.n_dims;
    FY_TRY(FY_GROW(g->patches, g->patch_capacity, n, "the boxes of a side", error));
    for (size_t i = 0; i < n; i++) {
        const fy_memory_box *box = &boxes[i].box;
        fy_patch *patch = &g->patches[i];
        memset(patch, 0, sizeof *patch);
        patch->offset[0] = box->offset;
        patch->data = (uint32_t)i;
        memcpy(patch->box.begin, box->numbers, n_dims * sizeof *box->numbers);
        memcpy(patch->box.length, fy_memory_shape(box), n_dims * sizeof *box->numbers);
        memcpy(patch->stride[0], fy_memory_strides(box), n_dims * sizeof *box->numbers);
    }
    FY_TRY(fy_patches_join(g->patches, n_inout, n_dims, 1, error));
    if (*n_inout == n) {
        return FERRY_OK;
    }
    for (size_t i = 0; i < *n_inout; i++) {
        const fy_patch *patch = &g->patches[i];
        uint64_t *numbers =
            fy_arena_alloc(&g->memory->arena, 3 * (size_t)n_dims + 1, sizeof *numbers);
        FY_TRY(fy_check_memory(numbers != NULL, "the boxes of a side", error));
        memcpy(numbers, patch->box.begin, n_dims * sizeof *numbers);
        memcpy(numbers + n_dims, patch->box.length, n_dims * sizeof *numbers);
        memcpy(numbers + 2 * (size_t)n_dims, patch->stride[0], n_dims * sizeof *numbers);
        boxes[i].box.offset = patch->offset[0];
        boxes[i].box.numbers = numbers;
    }
    fy_sort(boxes, *n_inout, sizeof *boxes, compare_loose);
    return FERRY_OK;
}

static ferry_status join_all(gathering_boxes *g, ferry_error *error)
{
    size_t kept = 0;
    for (size_t i = 0; i < g->n;) {
        size_t end = i + 1;
        while (end < g->n && same_place(&g->boxes[i], &g->boxes[end])) {
            end++;
        }
        size_t n = end - i;
        FY_TRY(n > 1 ? join_boxes(g, &g->boxes[i], &n, error) : FERRY_OK);
        memmove(&g->boxes[kept], &g->boxes[i], n * sizeof *g->boxes);
        kept += n;
        i = end;
    }
    g->n = kept;
    return FERRY_OK;
}

typedef struct rank_list_pair {
    uint32_t rank;
    uint32_t list; /* a position among the tensor's */
} rank_list_pair;

static int compare_pairs(const void *a, const void *b)
{
    const rank_list_pair *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->list > y->list) - (x->list < y->list);
}

/* Kinds are found by their lists: nearly always one, whose number says everything. */
static ferry_status find_kind(fy_spots *spots, fy_index *index, const rank_list_pair *pairs,
                              size_t n, uint32_t *kind_out, ferry_error *error)
{
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) {
        hash = fy_hash_mix(hash, pairs[i].list);
    }
    fy_index_cursor c = fy_index_first(index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(index, &c)) {
        const uint32_t *lists = spots->kind_lists + spots->kind_begin[c.value];
        bool same = spots->kind_begin[c.value + 1] - spots->kind_begin[c.value] == n;
        for (size_t i = 0; same && i < n; i++) {
            same = lists[i] == pairs[i].list;
        }
        if (same) {
            *kind_out = c.value;
            return FERRY_OK;
        }
    }
    *kind_out = spots->n_kinds;
    uint32_t used = spots->kind_begin[spots->n_kinds];
    for (size_t i = 0; i < n; i++) {
        spots->kind_lists[used++] = pairs[i].list;
    }
    spots->kind_begin[++spots->n_kinds] = used;
    return fy_check_memory(fy_index_insert(index, hash, *kind_out), "the ranks of a side", error);
}

static ferry_status fill_kinds(fy_spots *spots, const rank_list_pair *pairs, size_t n,
                               ferry_error *error)
{
    fy_index index = {0};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n && status == FERRY_OK;) {
        size_t end = i + 1;
        while (end < n && pairs[end].rank == pairs[i].rank) {
            end++;
        }
        spots->ranks[spots->n_ranks] = pairs[i].rank;
        status =
            find_kind(spots, &index, pairs + i, end - i, &spots->kinds[spots->n_ranks++], error);
        i = end;
    }
    fy_index_cleanup(&index);
    return status;
}

static ferry_status make_spots(fy_memory *memory, const uint32_t *lists, uint32_t n_lists,
                               fy_spots *spots, ferry_error *error)
{
    fy_arena *arena = &memory->arena;
    size_t n = 0;
    for (uint32_t i = 0; i < n_lists; i++) {
        n += memory->side->lists[lists[i]].n;
    }
    *spots = (fy_spots){.n_lists = n_lists};
    uint32_t *copy = fy_arena_alloc(arena, n_lists, sizeof *copy);
    rank_list_pair *pairs = fy_alloc(n, sizeof *pairs);
    spots->ranks = fy_arena_alloc(arena, n, sizeof *spots->ranks);
    spots->kinds = fy_arena_alloc(arena, n, sizeof *spots->kinds);
    spots->kind_begin = fy_arena_alloc(arena, n + 1, sizeof *spots->kind_begin);
    spots->kind_lists = fy_arena_alloc(arena, n, sizeof *spots->kind_lists);
    if (copy == NULL || pairs == NULL || spots->ranks == NULL || spots->kinds == NULL ||
        spots->kind_begin == NULL || spots->kind_lists == NULL) {
        fy_free(pairs);
        return fy_fail_no_memory(error, "the ranks of a side");
    }
    memcpy(copy, lists, n_lists * sizeof *copy);
    spots->lists = copy;
    spots->kind_begin[0] = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < n_lists; i++) {
        const fy_rank_list *list = &memory->side->lists[lists[i]];
        for (uint32_t k = 0; k < list->n; k++) {
            pairs[at++] = (rank_list_pair){.rank = list->ranks[k], .list = i};
        }
    }
    fy_sort(pairs, n, sizeof *pairs, compare_pairs);
    ferry_status status = fill_kinds(spots, pairs, n, error);
    fy_free(pairs);
    return status;
}

static ferry_status find_spots(fy_memory *memory, const uint32_t *lists, uint32_t n_lists,
                               uint32_t *number_out, ferry_error *error)
{
    uint64_t hash = fy_hash64(lists, n_lists * sizeof *lists);
    fy_index_cursor c = fy_index_first(&memory->spots_index, hash);
    for (; c.value != FY_INDEX_NONE; fy_index_next(&memory->spots_index, &c)) {
        const fy_spots *spots = &memory->spots[c.value];
        if (spots->n_lists == n_lists &&
            memcmp(spots->lists, lists, n_lists * sizeof *lists) == 0) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    *number_out = (uint32_t)memory->n_spots;
    FY_TRY(FY_GROW(memory->spots, memory->spots_capacity, memory->n_spots + 1,
                   "the ranks of a side", error));
    FY_TRY(make_spots(memory, lists, n_lists, &memory->spots[memory->n_spots], error));
    memory->n_spots++;
    return fy_check_memory(fy_index_insert(&memory->spots_index, hash, *number_out),
                           "the ranks of a side", error);
}

static ferry_status make_tree(const fy_memory *memory, fy_stock *stock, ferry_error *error)
{
    const fy_memory_box *boxes = memory->boxes + stock->first_box;
    size_t n_dims = boxes->n_dims;
    uint64_t *begin = fy_alloc(stock->n_boxes, n_dims * sizeof *begin + 1);
    uint64_t *length = fy_alloc(stock->n_boxes, n_dims * sizeof *length + 1);
    ferry_status status =
        fy_check_memory(begin != NULL && length != NULL, "an index of boxes", error);
    for (uint32_t i = 0; status == FERRY_OK && i < stock->n_boxes; i++) {
        memcpy(begin + i * n_dims, boxes[i].numbers, n_dims * sizeof *begin);
        memcpy(length + i * n_dims, fy_memory_shape(&boxes[i]), n_dims * sizeof *length);
    }
    FY_THEN(status, fy_box_tree_create(begin, length, stock->n_boxes, (uint32_t)n_dims,
                                       &stock->tree, error));
    fy_free(begin);
    fy_free(length);
    return status;
}

/* Stocks and spots of the boxes first .. end, which are of one tensor. */
static ferry_status place_tensor(gathering_boxes *g, size_t first, size_t end, uint32_t **lists,
                                 size_t *capacity, ferry_error *error)
{
    fy_memory *memory = g->memory;
    fy_memory_tensor *tensor = &memory->tensors[g->boxes[first].tensor];
    uint32_t n_lists = 0;
    bool is_single = true;
    tensor->first_stock = (uint32_t)memory->n_stocks;
    for (size_t i = first; i < end; i++) {
        memory->boxes[i] = g->boxes[i].box;
        if (i == first || g->boxes[i].ranks != g->boxes[i - 1].ranks) {
            FY_TRY(FY_GROW(*lists, *capacity, n_lists + 1u, "the ranks of a side", error));
            (*lists)[n_lists++] = g->boxes[i].ranks;
            memory->stocks[memory->n_stocks++] =
                (fy_stock){.ranks = g->boxes[i].ranks, .first_box = (uint32_t)i};
        }
        fy_stock *stock = &memory->stocks[memory->n_stocks - 1];
        is_single = is_single && stock->n_boxes == 0;
        stock->n_boxes++;
    }
    for (uint32_t i = 0; i < n_lists; i++) {
        fy_stock *stock = &memory->stocks[tensor->first_stock + i];
        FY_TRY(stock->n_boxes > TREE_FROM ? make_tree(memory, stock, error) : FERRY_OK);
    }
    FY_TRY(find_spots(memory, *lists, n_lists, &tensor->spots, error));
    const fy_spots *spots = &memory->spots[tensor->spots];
    tensor->is_single = is_single && spots->kind_begin[spots->n_kinds] == spots->n_kinds;
    return FERRY_OK;
}

static ferry_status place_tensors(gathering_boxes *g, ferry_error *error)
{
    fy_memory *memory = g->memory;
    uint32_t *lists = NULL;
    size_t capacity = 0;
    memory->boxes = fy_alloc(g->n, sizeof *memory->boxes);
    memory->stocks = fy_alloc_zeroed(g->n, sizeof *memory->stocks);
    memory->n_boxes = g->n;
    FY_TRY(fy_check_memory(memory->boxes != NULL && memory->stocks != NULL, "the boxes of a side",
                           error));
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < g->n && status == FERRY_OK;) {
        size_t end = i + 1;
        while (end < g->n && g->boxes[end].tensor == g->boxes[i].tensor) {
            end++;
        }
        status = place_tensor(g, i, end, &lists, &capacity, error);
        i = end;
    }
    fy_free(lists);
    return status;
}

/* Turns counts at [i + 1] to begins; filling moves each to its end, and back. */
static void sum_begins(uint32_t *begin, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        begin[i + 1] += begin[i];
    }
}

static void take_back(uint32_t *begin, size_t n)
{
    memmove(begin + 1, begin, n * sizeof *begin);
    begin[0] = 0;
}

static ferry_status list_ranks(fy_memory *memory, ferry_error *error)
{
    const ferry_side *side = memory->side;
    size_t n_pairs = 0;
    for (size_t i = 0; i < side->n_lists; i++) {
        const fy_rank_list *list = &side->lists[i];
        n_pairs += list->n;
        memory->n_ranks = (uint32_t)fy_max(memory->n_ranks, list->ranks[list->n - 1] + 1u);
    }
    fy_arena *arena = &memory->arena;
    size_t n_begins = memory->n_ranks + 1u, n_lists = side->n_lists;
    memory->rank_begin = fy_arena_alloc(arena, n_begins, sizeof *memory->rank_begin);
    memory->rank_lists = fy_arena_alloc(arena, n_pairs, sizeof *memory->rank_lists);
    memory->list_begin = fy_arena_alloc(arena, n_lists + 1, sizeof *memory->list_begin);
    memory->list_parameters =
        fy_arena_alloc(arena, side->n_parameters, sizeof *memory->list_parameters);
    if (memory->rank_begin == NULL || memory->rank_lists == NULL || memory->list_begin == NULL ||
        memory->list_parameters == NULL) {
        return fy_fail_no_memory(error, "the ranks of a side");
    }
    memset(memory->rank_begin, 0, n_begins * sizeof *memory->rank_begin);
    memset(memory->list_begin, 0, (n_lists + 1) * sizeof *memory->list_begin);
    for (size_t i = 0; i < n_lists; i++) {
        for (uint32_t k = 0; k < side->lists[i].n; k++) {
            memory->rank_begin[side->lists[i].ranks[k] + 1]++;
        }
    }
    for (size_t p = 0; p < side->n_parameters; p++) {
        memory->list_begin[side->parameters[p].ranks + 1]++;
    }
    sum_begins(memory->rank_begin, memory->n_ranks);
    sum_begins(memory->list_begin, n_lists);
    for (size_t i = 0; i < n_lists; i++) {
        for (uint32_t k = 0; k < side->lists[i].n; k++) {
            memory->rank_lists[memory->rank_begin[side->lists[i].ranks[k]]++] = (uint32_t)i;
        }
    }
    for (size_t p = 0; p < side->n_parameters; p++) {
        memory->list_parameters[memory->list_begin[side->parameters[p].ranks]++] = (uint32_t)p;
    }
    take_back(memory->rank_begin, memory->n_ranks);
    take_back(memory->list_begin, n_lists);
    return FERRY_OK;
}

void fy_memory_destroy(fy_memory *memory)
{
    if (memory != NULL) {
        for (size_t i = 0; i < memory->n_stocks; i++) {
            fy_box_tree_destroy(memory->stocks[i].tree);
        }
        fy_free(memory->variants);
        fy_free(memory->tensors);
        fy_free(memory->keys);
        fy_free(memory->boxes);
        fy_free(memory->stocks);
        fy_free(memory->spots);
        fy_index_cleanup(&memory->spots_index);
        fy_arena_cleanup(&memory->arena);
        fy_free(memory);
    }
}

ferry_status fy_memory_create(const fy_memory_of *of, fy_memory **memory_out, ferry_error *error)
{
    fy_memory *memory = fy_alloc_zeroed(1, sizeof *memory);
    FY_TRY(fy_check_memory(memory != NULL, "the memory of a side", error));
    gathering_boxes g = {.memory = memory, .role = of->role};
    memory->side = of->side;
    memory->tensor_of = of->tensor_of;
    memory->n_tensors = of->n_tensors;
    ferry_status status = fy_memory_make_variants(memory, of, error);
    memory->tensors = fy_alloc_zeroed(memory->n_variants, sizeof *memory->tensors);
    memory->keys = fy_alloc(memory->n_variants, sizeof *memory->keys);
    FY_THEN(status, fy_check_memory(memory->tensors != NULL && memory->keys != NULL,
                                    "the memory of a side", error));
    for (uint32_t t = 0; status == FERRY_OK && t < memory->n_variants; t++) {
        memory->tensors[t].spots = FY_NO_SPOTS;
    }
    FY_THEN(status, list_ranks(memory, error));
    FY_THEN(status, gather(&g, error));
    if (status == FERRY_OK) {
        fy_sort(g.boxes, g.n, sizeof *g.boxes, compare_loose);
        status = join_all(&g, error);
    }
    FY_THEN(status, place_tensors(&g, error));
    FY_THEN(status, fy_memory_make_digest(memory, of, error));
    fy_free(g.boxes);
    fy_free(g.patches);
    if (status != FERRY_OK) {
        fy_memory_destroy(memory);
        return status;
    }
    *memory_out = memory;
    return FERRY_OK;
}

uint32_t fy_spots_kind(const fy_spots *spots, uint32_t rank)
{
    FY_BISECT(uint32_t, low, 0, spots->n_ranks, middle, spots->ranks[middle] < rank);
    return low < spots->n_ranks && spots->ranks[low] == rank ? spots->kinds[low] : UINT32_MAX;
}

ferry_status fy_memory_parameters(const fy_memory *memory, uint32_t rank, uint32_t **numbers_inout,
                                  size_t *capacity, size_t *n_out, ferry_error *error)
{
    *n_out = 0;
    if (rank >= memory->n_ranks) {
        return FERRY_OK;
    }
    for (uint32_t i = memory->rank_begin[rank]; i < memory->rank_begin[rank + 1]; i++) {
        uint32_t list = memory->rank_lists[i];
        size_t n = memory->list_begin[list + 1] - memory->list_begin[list];
        FY_TRY(FY_GROW(*numbers_inout, *capacity, *n_out + n, "the parameters of a rank", error));
        memcpy(*numbers_inout + *n_out, memory->list_parameters + memory->list_begin[list],
               n * sizeof **numbers_inout);
        *n_out += n;
    }
    fy_sort(*numbers_inout, *n_out, sizeof **numbers_inout, fy_compare_u32);
    return FERRY_OK;
}

bool fy_memory_is_alike(const fy_memory *memory, uint32_t a, uint32_t b)
{
    if (a >= memory->n_ranks || b >= memory->n_ranks) {
        return a >= memory->n_ranks && b >= memory->n_ranks;
    }
    uint32_t n = memory->rank_begin[a + 1] - memory->rank_begin[a];
    return n == memory->rank_begin[b + 1] - memory->rank_begin[b] &&
           memcmp(memory->rank_lists + memory->rank_begin[a],
                  memory->rank_lists + memory->rank_begin[b], n * sizeof *memory->rank_lists) == 0;
}
