/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/made.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "prove/held.h"
#include "prove/quantize.h"
#include "prove/rank_boxes.h"

#include <string.h>

/* Sentences name at most so many bytes of a name. */
enum { NAME_BYTES = 256 };

void fy_proof_makers_cleanup(fy_proof_makers *makers)
{
    fy_index_cleanup(&makers->index);
    fy_free(makers->items);
    fy_free(makers->boxes);
    *makers = (fy_proof_makers){.items = NULL};
}

static const fy_proof_maker *find(const fy_proof_makers *makers, size_t owned, uint32_t tensor)
{
    fy_index_cursor c = fy_index_first(&makers->index, fy_hash_mix(owned, tensor));
    for (; c.value != FY_INDEX_NONE; fy_index_next(&makers->index, &c)) {
        const fy_proof_maker *maker = &makers->items[c.value];
        if (maker->owned == owned && maker->tensor == tensor) {
            return maker;
        }
    }
    return NULL;
}

ferry_status fy_proof_makers_note(fy_proof_makers *makers, size_t owned, uint32_t tensor,
                                  bool at_receiver, bool *is_same_out, ferry_error *error)
{
    const fy_proof_maker *known = find(makers, owned, tensor);
    *is_same_out = known == NULL || known->at_receiver == at_receiver;
    if (known != NULL) {
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(makers->items, makers->capacity, makers->n + 1, "the codes of a plan", error));
    makers->items[makers->n] =
        (fy_proof_maker){.owned = owned, .tensor = tensor, .at_receiver = at_receiver};
    return fy_check_memory(
        fy_index_insert(&makers->index, fy_hash_mix(owned, tensor), (uint32_t)makers->n++),
        "the codes of a plan", error);
}

ferry_status fy_proof_makers_add_box(fy_proof_makers *makers, size_t owned, size_t box,
                                     bool is_written, ferry_error *error)
{
    FY_TRY(FY_GROW(makers->boxes, makers->boxes_capacity, makers->n_boxes + 1,
                   "the scales of a plan", error));
    makers->boxes[makers->n_boxes++] =
        (fy_proof_scale_box){.owned = owned, .box = box, .is_written = is_written};
    return FERRY_OK;
}

static const uint64_t ones[FY_PROOF_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};

/* Blocks. */
typedef struct region {
    uint64_t begin[FY_PROOF_DIMS], length[FY_PROOF_DIMS];
} region;

/* What is left of a box of scales without what the rank was seen to make. */
typedef struct remainder {
    region *items, *next;
    size_t n, capacity, n_next, next_capacity;
    bool meets; /* something of it was */
} remainder;

/* What a turn of a box has that begins at an element, in blocks of so many elements. */
static region blocks_of(const fy_proof_held *box, const uint64_t *element, const uint64_t *block)
{
    region its;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t end = element[d] + box->steps[FY_PROOF_LOOPS + d].count;
        its.begin[d] = element[d] / block[d];
        its.length[d] = fy_ceil_div(end, block[d]) - its.begin[d];
    }
    return its;
}

/* The elements of one turn of a box; false: there is no such turn. */
static bool region_of(const fy_proof_held *box, uint64_t turn, region *out)
{
    uint64_t turns[FY_PROOF_STEPS] = {0};
    for (size_t i = FY_PROOF_LOOPS; i-- > 0;) {
        turns[i] = turn % box->steps[i].count;
        turn /= box->steps[i].count;
    }
    uint64_t element[FY_PROOF_DIMS];
    fy_proof_held_element(box, turns, element);
    *out = blocks_of(box, element, ones);
    return turn == 0;
}

static bool meet(const region *a, const region *b, region *common)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t begin = a->begin[d] > b->begin[d] ? a->begin[d] : b->begin[d];
        uint64_t end = fy_min(a->begin[d] + a->length[d], b->begin[d] + b->length[d]);
        if (begin >= end) {
            return false;
        }
        common->begin[d] = begin;
        common->length[d] = end - begin;
    }
    return true;
}

static ferry_status keep(remainder *r, const region *left, ferry_error *error)
{
    FY_TRY(FY_GROW(r->next, r->next_capacity, r->n_next + 1, "the scales of a plan", error));
    r->next[r->n_next++] = *left;
    return FERRY_OK;
}

/* All of a region but what lies before or behind the hole on each dimension in turn. */
static ferry_status keep_around(remainder *r, region all, const region *hole, ferry_error *error)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        region before = all, behind = all;
        uint64_t hole_end = hole->begin[d] + hole->length[d];
        before.length[d] = hole->begin[d] - all.begin[d];
        behind.begin[d] = hole_end;
        behind.length[d] = all.begin[d] + all.length[d] - hole_end;
        FY_TRY(before.length[d] == 0 ? FERRY_OK : keep(r, &before, error));
        FY_TRY(behind.length[d] == 0 ? FERRY_OK : keep(r, &behind, error));
        all.begin[d] = hole->begin[d];
        all.length[d] = hole->length[d];
    }
    return FERRY_OK;
}

static ferry_status take_out(remainder *r, const region *made, ferry_error *error)
{
    r->n_next = 0;
    for (size_t i = 0; i < r->n; i++) {
        region hole;
        bool meets = meet(&r->items[i], made, &hole);
        r->meets = r->meets || meets;
        FY_TRY(meets ? keep_around(r, r->items[i], &hole, error) : keep(r, &r->items[i], error));
    }
    remainder before = *r;
    r->items = before.next;
    r->capacity = before.next_capacity;
    r->n = before.n_next;
    r->next = before.items;
    r->next_capacity = before.capacity;
    return FERRY_OK;
}

/* What is looked at for one rank, and of what. */
typedef struct checking {
    const fy_proof_makers *makers;
    const fy_proof_spec *spec;
    const fy_proof_memory *memory;
    size_t position;
    fy_proof_rank_boxes boxes; /* of the rank */
    const fy_proof_scaling *scaling;
    remainder left;
    uint64_t begin[FY_PROOF_DIMS], end[FY_PROOF_DIMS]; /* elements that it was, and perhaps is */
} checking;

static const fy_proof_parameter *parameter_of(const checking *c, size_t owned)
{
    return &c->memory->parameters[c->memory->owned[owned]];
}

/*
 * The turns of a box that have an element of what is left are found loop by loop, the outer first:
 * what the inner ones can add, and the box itself, leaves few turns of each. So who asks for one
 * turn of a box after the other does not look at all turns of another box each time.
 */
typedef struct turning {
    const fy_proof_held *held;
    const uint64_t *block;
    uint64_t reach[FY_PROOF_LOOPS + 1][FY_PROOF_DIMS]; /* of the box, and of loops from one on */
} turning;

static uint64_t step_of(const turning *t, size_t loop, size_t d)
{
    return t->held->loops == NULL ? 0 : t->held->loops[loop][d];
}

static void note_reach(turning *t)
{
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        t->reach[FY_PROOF_LOOPS][d] = t->held->steps[FY_PROOF_LOOPS + d].count;
        for (size_t i = FY_PROOF_LOOPS; i-- > 0;) {
            uint64_t more = (t->held->steps[i].count - 1) * step_of(t, i, d);
            t->reach[i][d] = t->reach[i + 1][d] + more;
        }
    }
}

/* The turns of a loop after which something may be had, from an element on: [*first, *end). */
static void find_turns(const checking *c, const turning *t, size_t loop, const uint64_t *element,
                       uint64_t *first, uint64_t *end)
{
    *first = 0;
    *end = t->held->steps[loop].count;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        uint64_t step = step_of(t, loop, d), behind = element[d] + t->reach[loop + 1][d];
        bool is_before = behind <= c->begin[d];
        if (element[d] >= c->end[d] || (is_before && step == 0)) {
            *end = 0;
        } else if (step > 0) {
            *first = fy_max(*first, is_before ? (c->begin[d] - behind) / step + 1 : 0);
            *end = fy_min(*end, (c->end[d] - 1 - element[d]) / step + 1);
        }
    }
}

static ferry_status take_loop(checking *c, const turning *t, size_t loop, const uint64_t *element,
                              ferry_error *error)
{
    uint64_t turn, end, at[FY_PROOF_DIMS];
    if (loop == FY_PROOF_LOOPS) {
        region has = blocks_of(t->held, element, t->block);
        return take_out(&c->left, &has, error);
    }
    find_turns(c, t, loop, element, &turn, &end);
    for (; turn < end && c->left.n > 0; turn++) {
        for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
            at[d] = element[d] + turn * step_of(t, loop, d);
        }
        FY_TRY(take_loop(c, t, loop + 1, at, error));
    }
    return FERRY_OK;
}

/* Takes out what all turns of a box have, in blocks of so many elements. */
static ferry_status take_turns(checking *c, const fy_proof_held *held, const uint64_t *block,
                               ferry_error *error)
{
    turning t = {.held = held, .block = block};
    note_reach(&t);
    return take_loop(c, &t, 0, held->begin, error);
}

/* Takes out what a box has of the codes, if its rank makes them. */
static ferry_status take_codes(void *context, const fy_proof_rank_box *its, ferry_error *error)
{
    checking *c = context;
    const fy_proof_parameter *p = parameter_of(c, its->owned);
    const fy_proof_maker *maker = find(c->makers, its->owned, c->scaling->tensor);
    bool makes = maker != NULL && maker->at_receiver && p->quantize != NULL &&
                 fy_proof_quantize_is_alike(p->quantize, c->scaling->quantize);
    return makes ? take_turns(c, its->held, c->scaling->block, error) : FERRY_OK;
}

/* Takes out of a region what boxes of a tensor with such blocks have. */
static ferry_status take_from(checking *c, const region *all, uint32_t tensor,
                              const uint64_t *block, fy_proof_visit_held_fn take,
                              ferry_error *error)
{
    FY_TRY(FY_GROW(c->left.items, c->left.capacity, (size_t)1, "the scales of a plan", error));
    c->left.items[0] = *all;
    c->left.n = 1;
    c->left.meets = false;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        c->begin[d] = all->begin[d] * block[d];
        c->end[d] = (all->begin[d] + all->length[d]) * block[d];
    }
    return fy_proof_rank_boxes_visit(&c->boxes, tensor, c->begin, c->end, take, c, c->spec->looks,
                                     error);
}

static ferry_status fail_box(const fy_proof_spec *spec, const fy_proof_scale_box *its,
                             size_t position, const uint64_t *scale, ferry_error *error)
{
    const fy_proof_side *side = &spec->sides[FY_PROOF_DESTINATION];
    const fy_proof_parameter *p = &side->memory->parameters[side->memory->owned[its->owned]];
    const fy_proof_tensor *tensor = &spec->tensors[p->boxes[its->box].tensor];
    unsigned long long rank = fy_proof_mesh_rank(&side->mesh, position);
    char element[100];
    fy_proof_element_format(element, sizeof element, tensor->entry->n_dims, scale);
    return its->is_written
               ? fy_fail(error, FERRY_ERR_PROOF,
                         "%.*s %s: is brought to rank %llu, %.*s, which makes the codes and so the "
                         "scales itself",
                         NAME_BYTES, tensor->name, element, rank, NAME_BYTES, p->name)
               : fy_fail(error, FERRY_ERR_PROOF,
                         "%.*s %s: no move writes it on rank %llu, in %.*s, nor does the rank make "
                         "the codes of its block",
                         NAME_BYTES, tensor->name, element, rank, NAME_BYTES, p->name);
}

/* Moves bring all of each turn of a box of scales, or the rank makes all of it. */
static ferry_status check_scale_box(checking *c, const fy_proof_scale_box *its, ferry_error *error)
{
    const fy_proof_held *held = &parameter_of(c, its->owned)->boxes[its->box];
    region all;
    c->scaling = c->spec->tensors[held->tensor].entry->scaling;
    for (uint64_t turn = 0; region_of(held, turn, &all); turn++) {
        FY_TRY(take_from(c, &all, c->scaling->tensor, c->scaling->block, take_codes, error));
        if (its->is_written ? c->left.meets : c->left.n > 0) {
            return fail_box(c->spec, its, c->position,
                            c->left.n > 0 ? c->left.items[0].begin : all.begin, error);
        }
    }
    return FERRY_OK;
}

/* Takes out the matrices whose scales a box has as they are. */
static ferry_status take_given(void *context, const fy_proof_rank_box *its, ferry_error *error)
{
    checking *c = context;
    const fy_proof_parameter *p = parameter_of(c, its->owned);
    bool is_changed = p->cast.is_said && (p->cast.scale != 1 || p->cast.add != 0);
    bool has =
        !is_changed && p->dtype.kind == c->spec->tensors[its->held->tensor].entry->dtype.kind;
    return has ? take_turns(c, its->held, ones, error) : FERRY_OK;
}

/* The matrices of a box of f4 as the scales of these count them: without rows and columns. */
static region matrices_of(const region *codes)
{
    region all;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        all.begin[d] = d < 2 ? 0 : codes->begin[d - 2];
        all.length[d] = d < 2 ? 1 : codes->length[d - 2];
    }
    return all;
}

/* Of f4 that a rank makes of a box of its parameter. */
static ferry_status check_given(checking *c, size_t owned, const fy_proof_held *box,
                                ferry_error *error)
{
    const fy_proof_tensor *tensor = &c->spec->tensors[box->tensor];
    region codes;
    for (uint64_t turn = 0; region_of(box, turn, &codes); turn++) {
        region matrices = matrices_of(&codes);
        FY_TRY(take_from(c, &matrices, tensor->given - 1, ones, take_given, error));
        if (c->left.n > 0) {
            const fy_proof_side *side = &c->spec->sides[FY_PROOF_DESTINATION];
            return fy_fail(error, FERRY_ERR_PROOF,
                           "%.*s: rank %llu makes f4 of it in %.*s, and has not all scales of its "
                           "matrices",
                           NAME_BYTES, tensor->name,
                           (unsigned long long)fy_proof_mesh_rank(&side->mesh, c->position),
                           NAME_BYTES, parameter_of(c, owned)->name);
        }
    }
    return FERRY_OK;
}

static ferry_status check_maker(checking *c, const fy_proof_maker *maker, ferry_error *error)
{
    const fy_proof_parameter *p = parameter_of(c, maker->owned);
    bool is_f4 = p->quantize != NULL && p->quantize->codes.kind == FERRY_F4;
    for (size_t b = 0; b < p->n_boxes && is_f4 && maker->at_receiver; b++) {
        FY_TRY(p->boxes[b].tensor == maker->tensor
                   ? check_given(c, maker->owned, &p->boxes[b], error)
                   : FERRY_OK);
    }
    return FERRY_OK;
}

/* What is of the rank from here on: both lists come in the order of ranks. */
static ferry_status check_rank(checking *c, size_t *n_boxes, size_t *n_makers, ferry_error *error)
{
    const fy_proof_makers *makers = c->makers;
    size_t end = c->memory->first[c->position + 1];
    for (; *n_boxes < makers->n_boxes && makers->boxes[*n_boxes].owned < end; ++*n_boxes) {
        FY_TRY(check_scale_box(c, &makers->boxes[*n_boxes], error));
    }
    for (; *n_makers < makers->n && makers->items[*n_makers].owned < end; ++*n_makers) {
        FY_TRY(check_maker(c, &makers->items[*n_makers], error));
    }
    return FERRY_OK;
}

ferry_status fy_proof_makers_check(const fy_proof_makers *makers, const fy_proof_spec *spec,
                                   ferry_error *error)
{
    checking c = {
        .makers = makers, .spec = spec, .memory = spec->sides[FY_PROOF_DESTINATION].memory};
    size_t n_boxes = 0, n_makers = 0;
    ferry_status status = FERRY_OK;
    for (; status == FERRY_OK && (n_boxes < makers->n_boxes || n_makers < makers->n);
         c.position++) {
        status = fy_proof_rank_boxes_make(c.memory, c.position, &c.boxes, error);
        FY_THEN(status, check_rank(&c, &n_boxes, &n_makers, error));
        fy_proof_rank_boxes_cleanup(&c.boxes);
    }
    fy_free(c.left.items);
    fy_free(c.left.next);
    return status;
}
