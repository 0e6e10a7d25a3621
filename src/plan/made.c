/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of a destination in boxes makes of values that it gets: the codes of its boxes, and
 * the scales of those blocks that it wants the scales of too. Boxes of scales are held against
 * those of codes in blocks; what several of them have in common is made once. Of f4 the scale of
 * each matrix is something that the rank gets, too.
 */
#include "plan/shards.h"

#include "plan/core.h"

#include "base/checked.h"
#include "layout/box_tree.h"
#include "model/memory.h"

#include <stdio.h>
#include <string.h>

enum { TREE_FROM = 8 };

/* A box of codes of the rank, or of scales. */
typedef struct own_box {
    const fy_memory_box *box;
    const fy_conversion *conversion;
    fy_box blocks;   /* that it has */
    uint32_t scales; /* whose box it is; of codes 0 */
    size_t n_parts;  /* of codes: of their scales */
    size_t last_part;
} own_box;

/* Blocks of a box of codes and of one of scales. */
typedef struct part {
    uint32_t codes, scales;
    fy_box blocks;
} part;

/* Of f4 a box of the rank with a scale of each matrix. */
typedef struct given_box {
    const fy_memory_box *box;
    fy_box matrices;
} given_box;

typedef struct making_list {
    const ferry_plan *plan;
    uint32_t rank, tensor, n_dims;
    own_box *codes, *scales;
    size_t n_codes, n_scales, codes_capacity, scales_capacity;
    given_box *given;
    size_t n_given, given_capacity;
    fy_box_tree *given_tree; /* NULL: they are few */
    part *parts;
    size_t n_parts, part_capacity;
    fy_box *rest, *next; /* of a box of scales, what no codes were found for */
    size_t n_rest, rest_capacity, n_next, next_capacity;
    uint32_t *found;
    size_t found_capacity;
} making_list;

static const fy_memory *memory_of(const making_list *m)
{
    return m->plan->problem.memory[1];
}

static uint64_t block_of(const making_list *m, const fy_conversion *conversion, uint32_t d)
{
    return d + 2 < m->n_dims ? 1 : conversion->is.block[d + 2 - m->n_dims];
}

/* conversion NULL: of the tensor with a scale of each matrix. */
static ferry_status add_own(making_list *m, const fy_memory_box *box,
                            const fy_conversion *conversion, uint32_t scales, ferry_error *error)
{
    if (conversion == NULL) {
        FY_TRY(FY_GROW(m->given, m->given_capacity, m->n_given + 1, "the scales of a rank", error));
        given_box *given = &m->given[m->n_given++];
        given->box = box;
        memcpy(given->matrices.begin, box->numbers, box->n_dims * sizeof(uint64_t));
        memcpy(given->matrices.length, fy_memory_shape(box), box->n_dims * sizeof(uint64_t));
        return FERRY_OK;
    }
    own_box own = {.box = box, .conversion = conversion, .scales = scales};
    for (uint32_t d = 0; d < m->n_dims; d++) {
        uint64_t block = scales != 0 ? 1 : block_of(m, conversion, d);
        own.blocks.begin[d] = box->numbers[d] / block;
        own.blocks.length[d] =
            fy_ceil_div(box->numbers[d] + fy_memory_shape(box)[d], block) - own.blocks.begin[d];
    }
    if (scales != 0) {
        FY_TRY(
            FY_GROW(m->scales, m->scales_capacity, m->n_scales + 1, "the scales of a rank", error));
        m->scales[m->n_scales++] = own;
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(m->codes, m->codes_capacity, m->n_codes + 1, "the codes of a rank", error));
    m->codes[m->n_codes++] = own;
    return FERRY_OK;
}

/* The rank's boxes of a variant. */
static ferry_status list_boxes(making_list *m, uint32_t variant, const fy_conversion *conversion,
                               uint32_t scales, ferry_error *error)
{
    const fy_memory *memory = memory_of(m);
    const fy_memory_tensor *held = &memory->tensors[variant];
    if (held->spots == FY_NO_SPOTS) {
        return FERRY_OK;
    }
    const fy_spots *spots = &memory->spots[held->spots];
    uint32_t kind = fy_spots_kind(spots, m->rank);
    if (kind == UINT32_MAX) {
        return FERRY_OK;
    }
    for (uint32_t i = spots->kind_begin[kind]; i < spots->kind_begin[kind + 1]; i++) {
        const fy_stock *stock = &memory->stocks[held->first_stock + spots->kind_lists[i]];
        for (uint32_t k = 0; k < stock->n_boxes; k++) {
            FY_TRY(add_own(m, &memory->boxes[stock->first_box + k], conversion, scales, error));
        }
    }
    return FERRY_OK;
}

static ferry_status list_codes(making_list *m, ferry_error *error)
{
    const fy_problem *problem = &m->plan->problem;
    for (uint32_t v = m->tensor; v != FY_NO_VARIANT; v = fy_memory_next_variant(memory_of(m), v)) {
        const fy_conversion *conversion = fy_problem_conversion(problem, m->tensor, v);
        if (conversion != NULL && conversion->is.kind == FERRY_CONVERSION_CODES) {
            FY_TRY(list_boxes(m, v, conversion, 0, error));
        }
    }
    return FERRY_OK;
}

/* The scales of matrices, as they are: others are no numbers to make codes by. */
static ferry_status list_given(making_list *m, ferry_error *error)
{
    const fy_problem *problem = &m->plan->problem;
    uint32_t given = problem->tensors[m->tensor].tensor_scale;
    for (uint32_t v = given == 0 ? FY_NO_VARIANT : given - 1; v != FY_NO_VARIANT;
         v = fy_memory_next_variant(memory_of(m), v)) {
        if (fy_problem_conversion(problem, given - 1, v) == NULL) {
            FY_TRY(list_boxes(m, v, NULL, 0, error));
        }
    }
    return FERRY_OK;
}

/* What is left of a box without another one that lies within: up to two for each dimension. */
static ferry_status cut_out(making_list *m, const fy_box *from, const fy_box *hole,
                            ferry_error *error)
{
    fy_box left = *from;
    FY_TRY(FY_GROW(m->next, m->next_capacity, m->n_next + 2 * (size_t)m->n_dims,
                   "the scales of a rank", error));
    for (uint32_t d = 0; d < m->n_dims; d++) {
        uint64_t end = left.begin[d] + left.length[d], hole_end = hole->begin[d] + hole->length[d];
        fy_box side = left;
        side.length[d] = hole->begin[d] - left.begin[d];
        if (side.length[d] > 0) {
            m->next[m->n_next++] = side;
        }
        side.begin[d] = hole_end;
        side.length[d] = end - hole_end;
        if (side.length[d] > 0) {
            m->next[m->n_next++] = side;
        }
        left.begin[d] = hole->begin[d];
        left.length[d] = hole->length[d];
    }
    return FERRY_OK;
}

static ferry_status add_part(making_list *m, uint32_t codes, uint32_t scales, const fy_box *blocks,
                             ferry_error *error)
{
    FY_TRY(FY_GROW(m->parts, m->part_capacity, m->n_parts + 1, "the scales of a rank", error));
    m->codes[codes].n_parts++;
    m->codes[codes].last_part = m->n_parts;
    m->parts[m->n_parts++] = (part){.codes = codes, .scales = scales, .blocks = *blocks};
    return FERRY_OK;
}

/* Takes out of the rest what a box of codes has the blocks of. */
static ferry_status take_blocks(making_list *m, uint32_t codes, uint32_t scales, ferry_error *error)
{
    const fy_box *blocks = &m->codes[codes].blocks;
    m->n_next = 0;
    for (size_t i = 0; i < m->n_rest; i++) {
        fy_box common = {{0}, {0}};
        if (fy_box_meet(m->rest[i].begin, m->rest[i].length, blocks->begin, blocks->length,
                        m->n_dims, common.begin, common.length)) {
            FY_TRY(add_part(m, codes, scales, &common, error));
            FY_TRY(cut_out(m, &m->rest[i], &common, error));
            continue;
        }
        FY_TRY(FY_GROW(m->next, m->next_capacity, m->n_next + 1, "the scales of a rank", error));
        m->next[m->n_next++] = m->rest[i];
    }
    fy_box *rest = m->rest;
    size_t capacity = m->rest_capacity;
    m->rest = m->next;
    m->rest_capacity = m->next_capacity;
    m->n_rest = m->n_next;
    m->next = rest;
    m->next_capacity = capacity;
    return FERRY_OK;
}

static ferry_status fail_rest(const making_list *m, const own_box *scales, ferry_error *error)
{
    char index[24 * FERRY_MAX_DIMS] = "";
    size_t used = 0;
    for (uint32_t d = 0; d < m->n_dims; d++) {
        used += (size_t)snprintf(index + used, sizeof index - used, d == 0 ? "%llu" : ", %llu",
                                 (unsigned long long)m->rest[0].begin[d]);
    }
    const ferry_side *side = memory_of(m)->side;
    return fy_fail(
        error, FERRY_ERR_INVALID_PLAN,
        "destination: parameter \"%s\" of rank %u has the scale [%s] of \"%s\", of a block "
        "that no sender has whole: the rank would make it, but wants no codes of it",
        side->parameters[scales->box->parameter].name, m->rank, index,
        m->plan->problem.tensors[m->tensor].name);
}

/* Finds the codes for the blocks of a box of scales. */
static ferry_status match(making_list *m, uint32_t scales, const fy_box_tree *tree,
                          ferry_error *error)
{
    const own_box *own = &m->scales[scales];
    size_t n = m->n_codes;
    FY_TRY(FY_GROW(m->rest, m->rest_capacity, (size_t)1, "the scales of a rank", error));
    m->rest[0] = own->blocks;
    m->n_rest = 1;
    if (tree != NULL) {
        FY_TRY(fy_box_tree_find(tree, own->blocks.begin, own->blocks.length, &m->found,
                                &m->found_capacity, &n, error));
    }
    for (size_t i = 0; i < n && m->n_rest > 0; i++) {
        uint32_t codes = tree == NULL ? (uint32_t)i : m->found[i];
        const ferry_conversion *a = &m->codes[codes].conversion->is, *b = &own->conversion->is;
        if (a->code_dtype.kind == b->code_dtype.kind &&
            a->scale_dtype.kind == b->scale_dtype.kind && a->scale_rule == b->scale_rule &&
            a->block[0] == b->block[0] && a->block[1] == b->block[1]) {
            FY_TRY(take_blocks(m, codes, scales, error));
        }
    }
    return m->n_rest == 0 ? FERRY_OK : fail_rest(m, own, error);
}

/* Of boxes that lie so many bytes apart; NULL where these are few. */
static ferry_status grow_tree(const void *first, size_t apart, size_t n_boxes, uint32_t n_dims,
                              fy_box_tree **tree_out, ferry_error *error)
{
    size_t n = n_boxes * n_dims;
    *tree_out = NULL;
    if (n_boxes <= TREE_FROM || n_dims == 0) {
        return FERRY_OK;
    }
    uint64_t *numbers = fy_alloc(n, 2 * sizeof *numbers);
    FY_TRY(fy_check_memory(numbers != NULL, "the boxes of a rank", error));
    for (size_t i = 0; i < n_boxes; i++) {
        const fy_box *box = (const void *)((const char *)first + i * apart);
        memcpy(numbers + i * n_dims, box->begin, n_dims * sizeof *numbers);
        memcpy(numbers + n + i * n_dims, box->length, n_dims * sizeof *numbers);
    }
    ferry_status status =
        fy_box_tree_create(numbers, numbers + n, n_boxes, n_dims, tree_out, error);
    fy_free(numbers);
    return status;
}

static ferry_status match_all(making_list *m, ferry_error *error)
{
    fy_box_tree *tree = NULL;
    ferry_status status = FERRY_OK;
    if (m->n_codes > 0) {
        status =
            grow_tree(&m->codes[0].blocks, sizeof m->codes[0], m->n_codes, m->n_dims, &tree, error);
    }
    for (uint32_t s = 0; s < m->n_scales && status == FERRY_OK; s++) {
        status = match(m, s, tree, error);
    }
    fy_box_tree_destroy(tree);
    return status;
}

/* Where element `at` of a tensor lies, which a box has. */
static fy_made_place place_of(const making_list *m, const fy_memory_box *box, const uint64_t *at)
{
    fy_made_place place = {.name = memory_of(m)->side->parameters[box->parameter].name,
                           .offset = box->offset};
    for (uint32_t d = 0; d < box->n_dims; d++) {
        place.strides[d] = fy_memory_strides(box)[d];
        place.offset += (at[d] - box->numbers[d]) * place.strides[d];
    }
    return place;
}

/* Whether a box has a scale of each of the matrices that begin there. */
static bool has_given(const given_box *given, const uint64_t *begin, const uint64_t *shape)
{
    const fy_box *all = &given->matrices;
    for (uint32_t d = 0; d < given->box->n_dims; d++) {
        if (begin[d] < all->begin[d] || begin[d] + shape[d] > all->begin[d] + all->length[d]) {
            return false;
        }
    }
    return true;
}

/* *box_out: NULL, if none has all. */
static ferry_status find_given(making_list *m, const uint64_t *begin, const uint64_t *shape,
                               const fy_memory_box **box_out, ferry_error *error)
{
    size_t n = m->n_given;
    *box_out = NULL;
    if (m->given_tree != NULL) {
        FY_TRY(fy_box_tree_find(m->given_tree, begin, shape, &m->found, &m->found_capacity, &n,
                                error));
    }
    for (size_t i = 0; i < n && *box_out == NULL; i++) {
        const given_box *given = &m->given[m->given_tree == NULL ? i : m->found[i]];
        *box_out = has_given(given, begin, shape) ? given->box : NULL;
    }
    return FERRY_OK;
}

static ferry_status fail_given(const making_list *m, const fy_memory_box *codes, const char *given,
                               ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "destination: parameter \"%s\" of rank %u gets nvfp4 of \"%s\", which the rank "
                   "makes, as no sender has whole blocks: it must have \"%s\" for all matrices of "
                   "the box too, as f32, in one box",
                   memory_of(m)->side->parameters[codes->parameter].name, m->rank,
                   m->plan->problem.tensors[m->tensor].name, given);
}

/* Of f4, where the scales of the matrices lie; codes: the box with what is made. */
static ferry_status place_given(making_list *m, const fy_memory_box *codes, const uint64_t *begin,
                                fy_made_codes *made, ferry_error *error)
{
    const fy_problem *problem = &m->plan->problem;
    uint32_t given = problem->tensors[m->tensor].tensor_scale;
    if (made->conversion->code_dtype.kind != FERRY_F4) {
        return FERRY_OK;
    }
    if (fy_memory_strides(codes)[m->n_dims - 1] != 1) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "destination: parameter \"%s\" of rank %u gets nvfp4 of \"%s\", which the "
                       "rank makes: elements of a row must lie side by side, with stride 1",
                       memory_of(m)->side->parameters[codes->parameter].name, m->rank,
                       problem->tensors[m->tensor].name);
    }
    const fy_memory_box *box;
    FY_TRY(find_given(m, begin, made->shape, &box, error));
    if (box == NULL) {
        return fail_given(m, codes, problem->tensors[given - 1].name, error);
    }
    made->given = place_of(m, box, begin);
    return FERRY_OK;
}

/* scales: of the blocks, or NULL: nobody wants them. */
static ferry_status visit_blocks(making_list *m, const own_box *codes, const own_box *scales,
                                 const fy_box *blocks, bool stores_codes,
                                 fy_made_codes_visitor *visitor, void *context, ferry_error *error)
{
    const fy_memory_box *box = codes->box;
    uint64_t begin[FERRY_MAX_DIMS];
    fy_made_codes made = {.tensor = m->plan->problem.tensors[m->tensor].name,
                          .conversion = &codes->conversion->is,
                          .values = codes->conversion->from,
                          .stores_codes = stores_codes,
                          .n_dims = m->n_dims};
    for (uint32_t d = 0; d < m->n_dims; d++) {
        uint64_t block = block_of(m, codes->conversion, d);
        begin[d] = blocks->begin[d] * block;
        made.shape[d] =
            fy_min(blocks->length[d] * block, box->numbers[d] + fy_memory_shape(box)[d] - begin[d]);
    }
    made.codes = place_of(m, box, begin);
    if (scales != NULL) {
        made.scales = place_of(m, scales->box, blocks->begin);
    }
    FY_TRY(place_given(m, box, begin, &made, error));
    return visitor(context, &made);
}

/* Codes whose blocks have their scales in one box come with them, others by themselves. */
static ferry_status visit_all(making_list *m, fy_made_codes_visitor *visitor, void *context,
                              ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < m->n_codes && status == FERRY_OK; i++) {
        const own_box *codes = &m->codes[i];
        const part *only = codes->n_parts == 1 ? &m->parts[codes->last_part] : NULL;
        bool is_whole = only != NULL && memcmp(only->blocks.length, codes->blocks.length,
                                               m->n_dims * sizeof(uint64_t)) == 0;
        status = visit_blocks(m, codes, is_whole ? &m->scales[only->scales] : NULL, &codes->blocks,
                              true, visitor, context, error);
    }
    for (size_t i = 0; i < m->n_parts && status == FERRY_OK; i++) {
        const part *its = &m->parts[i];
        const own_box *codes = &m->codes[its->codes];
        bool is_done = codes->n_parts == 1 && memcmp(its->blocks.length, codes->blocks.length,
                                                     m->n_dims * sizeof(uint64_t)) == 0;
        status = is_done ? FERRY_OK
                         : visit_blocks(m, codes, &m->scales[its->scales], &its->blocks, false,
                                        visitor, context, error);
    }
    return status;
}

static ferry_status visit_tensor(making_list *m, fy_made_codes_visitor *visitor, void *context,
                                 ferry_error *error)
{
    const fy_problem *problem = &m->plan->problem;
    m->n_codes = m->n_scales = m->n_parts = m->n_given = 0;
    m->n_dims = problem->tensors[m->tensor].n_dims;
    FY_TRY(list_codes(m, error));
    FY_TRY(list_given(m, error));
    for (uint32_t t = problem->tensors[m->tensor].made_scales; t != 0;
         t = problem->tensors[t].made_scales) {
        if (fy_routes_make(&m->plan->routes, t)) {
            FY_TRY(list_boxes(m, t, problem->tensors[t].conversion, t, error));
        }
    }
    FY_TRY(match_all(m, error));
    if (m->n_given > 0) {
        FY_TRY(grow_tree(&m->given[0].matrices, sizeof m->given[0], m->n_given, m->n_dims - 2,
                         &m->given_tree, error));
    }
    ferry_status status = visit_all(m, visitor, context, error);
    fy_box_tree_destroy(m->given_tree);
    m->given_tree = NULL;
    return status;
}

ferry_status fy_plan_visit_made_boxes(const ferry_plan *plan, uint32_t rank,
                                      fy_made_codes_visitor *visitor, void *context,
                                      ferry_error *error)
{
    making_list m = {.plan = plan, .rank = rank};
    ferry_status status = FERRY_OK;
    for (uint32_t t = 0; t < memory_of(&m)->n_tensors && status == FERRY_OK; t++) {
        const fy_tensor *tensor = &plan->problem.tensors[t];
        bool is_used = (plan->used[1][t / 8] >> (t % 8) & 1) != 0;
        if (tensor->made_scales != 0 && tensor->scales == NULL && is_used) {
            m.tensor = t;
            status = visit_tensor(&m, visitor, context, error);
        }
    }
    fy_free(m.codes);
    fy_free(m.scales);
    fy_free(m.given);
    fy_free(m.parts);
    fy_free(m.rest);
    fy_free(m.next);
    fy_free(m.found);
    return status;
}

static ferry_status look_only(void *context, const fy_made_codes *made)
{
    (void)context, (void)made;
    return FERRY_OK;
}

ferry_status fy_plan_check_made(const ferry_plan *plan, ferry_error *error)
{
    const fy_memory *memory = plan->problem.memory[1];
    bool any = false, is_known = false; /* a rank before has the same, and was looked at */
    for (uint32_t i = 0; i < plan->problem.n_tensors / 8 + 1u; i++) {
        any = any || plan->routes.made[i] != 0;
    }
    if (memory == NULL || !any) {
        return FERRY_OK;
    }
    for (uint32_t r = 0; r < memory->n_ranks; r++) {
        is_known = is_known && fy_memory_is_alike(memory, r - 1, r);
        if (!is_known && !fy_plan_has_lost(plan, r)) {
            FY_TRY(fy_plan_visit_made_boxes(plan, r, look_only, NULL, error));
            is_known = true;
        }
    }
    return FERRY_OK;
}
