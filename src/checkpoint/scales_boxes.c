/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The scales of what parameters of a result become codes of. Boxes may say where they lie, as of
 * any tensor; of a weight whose scales no box is of, they come in a parameter beside each that has
 * codes of it, matrix by matrix as the codes lie: so the scales of an expert stand where the expert
 * stands, also where it is there twice. What several boxes have of one matrix shares the smallest
 * box of scales that has those of all. Scales of whole matrices likewise, in another parameter.
 *
 * A parameter with fills, whose blocks are those of what it has, gets scales for all of its blocks:
 * those that nothing is in have 1, as zeros have (scales_grid.c).
 */
#include "checkpoint/changes.h"
#include "checkpoint/scales_grid.h"

#include "base/checked.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

/* A box of codes whose scales nobody says. */
typedef struct need {
    uint32_t parameter;
    uint32_t weight;
    uint32_t box;
} need;

/*
 * What one box has of one matrix of a weight; then all that is of the matrix until an element of it
 * comes a second time.
 */
typedef struct piece {
    uint32_t weight;
    uint64_t plane;            /* of a parameter that is filled: which matrix of it; else 0 */
    uint64_t matrix;           /* row-major among those of the weight */
    uint64_t offset;           /* of the first code; then of the first scale */
    uint64_t begin[2], end[2]; /* rows and columns, of codes; then of scales */
    uint64_t stride[2];        /* from one to the next, in memory: likewise */
} piece;

/* A loop over the pieces of a box: how far each turn goes. */
typedef struct turns {
    uint64_t count, matrix, offset, begin[2];
} turns;

enum { MOST_TURNS = FERRY_MAX_DIMS + FERRY_MAX_REPEATS };

/* A parameter beside which scales may stand. */
typedef struct host_facts {
    bool is_filled;   /* not all of it is of boxes */
    bool in_grid;     /* and it has scales for all of its blocks */
    uint32_t n_boxes; /* that are not empty */
} host_facts;

typedef struct adding {
    const ferry_spec *spec;
    const fy_change *changes;
    ferry_side *boxes;
    const char *side_name;
    bool *is_said;     /* [spec->n_tensors] a box is of it */
    bool of_matrices;  /* else of blocks */
    host_facts *hosts; /* [n_hosts] of the parameters that there were first */
    size_t n_hosts;
    need *needs;
    size_t n, capacity;
    piece *pieces; /* of a parameter */
    size_t n_pieces, piece_capacity;
    fy_strided *places; /* scratch: of pieces in their matrix */
    size_t place_capacity;
} adding;

/* The scales of a weight that are at work; FY_NONE: it has none such. */
static uint32_t scales_of(const adding *a, uint32_t weight)
{
    const fy_change *change = &a->changes[weight];
    return a->of_matrices ? change->matrix_scales : change->scales;
}

static const fy_tensor *scales_tensor(const adding *a, uint32_t weight)
{
    return &a->spec->tensors[scales_of(a, weight)];
}

static int compare_numbers(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static int compare_needs(const void *a, const void *b)
{
    const need *x = a, *y = b;
    int parameters = compare_numbers(x->parameter, y->parameter);
    return parameters != 0 ? parameters : compare_numbers(x->box, y->box);
}

static int compare_by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return compare_numbers(x->offset, y->offset);
}

static int compare_by_weight(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int weights = compare_numbers(x->weight, y->weight);
    return weights != 0 ? weights : compare_by_place(a, b);
}

static int compare_by_matrix(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int planes = compare_numbers(x->plane, y->plane);
    int weights = planes != 0 ? planes : compare_numbers(x->weight, y->weight);
    int matrices = weights != 0 ? weights : compare_numbers(x->matrix, y->matrix);
    return matrices != 0 ? matrices : compare_by_place(a, b);
}

/* ---- which boxes ---- */

/* Whether a box with its repeats has elements, and all are of the weight: what is wrong is told
 * when the side is held against the tensors. */
static bool fits(const fy_said_box *box, const fy_tensor *weight)
{
    if (box->n_dims != weight->n_dims) {
        return false;
    }
    for (uint32_t d = 0; d < box->n_dims; d++) {
        uint64_t end, reach;
        bool fit = fy_add(box->numbers[d], fy_said_box_shape(box)[d], &end);
        for (uint32_t r = 0; r < box->n_repeats && fit; r++) {
            const uint64_t *repeat = fy_said_box_repeat(box, r);
            fit = repeat[0] > 0 && fy_mul(repeat[0] - 1, repeat[2 + d], &reach) &&
                  fy_add(end, reach, &end);
        }
        if (!fit || fy_said_box_shape(box)[d] == 0 || end > weight->shape[d]) {
            return false;
        }
    }
    return true;
}

static ferry_status list_needs(adding *a, ferry_error *error)
{
    a->n = 0;
    for (size_t i = 0; i < a->boxes->n_boxes; i++) {
        const fy_said_box *box = &a->boxes->boxes[i];
        uint32_t t = fy_spec_find_tensor(a->spec, a->boxes->tensors[box->tensor].name);
        if (t == FY_NONE || a->changes[t].kind != FY_QUANTIZED || scales_of(a, t) == FY_NONE ||
            a->is_said[scales_of(a, t)] || !fits(box, &a->spec->tensors[t])) {
            continue;
        }
        FY_TRY(FY_GROW(a->needs, a->capacity, a->n + 1, "the scales of a layout", error));
        a->needs[a->n++] = (need){.parameter = box->parameter, .weight = t, .box = (uint32_t)i};
    }
    fy_sort(a->needs, a->n, sizeof *a->needs, compare_needs);
    return FERRY_OK;
}

/* ---- pieces of matrices ---- */

/* The loops over the pieces of a box: its repeats, and the dimensions before rows and columns. */
static uint32_t list_turns(const fy_said_box *box, const fy_tensor *weight, turns all[MOST_TURNS])
{
    uint32_t n = 0, leading = box->n_dims - 2;
    uint64_t matrices[FERRY_MAX_DIMS], stride = 1;
    for (uint32_t d = leading; d-- > 0;) {
        matrices[d] = stride;
        stride *= weight->shape[d];
    }
    for (uint32_t r = 0; r < box->n_repeats; r++) {
        const uint64_t *repeat = fy_said_box_repeat(box, r);
        all[n] = (turns){.count = repeat[0],
                         .offset = repeat[1],
                         .begin = {repeat[2 + leading], repeat[3 + leading]}};
        for (uint32_t d = 0; d < leading; d++) {
            all[n].matrix += repeat[2 + d] * matrices[d];
        }
        n++;
    }
    for (uint32_t d = 0; d < leading; d++) {
        all[n++] = (turns){.count = fy_said_box_shape(box)[d],
                           .matrix = matrices[d],
                           .offset = fy_said_box_strides(box)[d]};
    }
    return n;
}

static piece first_piece(const fy_said_box *box, uint32_t number, const turns *all)
{
    uint32_t leading = box->n_dims - 2;
    const turns *dims = all + box->n_repeats;
    piece its = {.weight = number, .offset = box->offset};
    for (uint32_t d = 0; d < leading; d++) {
        its.matrix += box->numbers[d] * dims[d].matrix;
    }
    for (uint32_t i = 0; i < 2; i++) {
        its.begin[i] = box->numbers[leading + i];
        its.end[i] = its.begin[i] + fy_said_box_shape(box)[leading + i];
        its.stride[i] = fy_said_box_strides(box)[leading + i];
    }
    return its;
}

static ferry_status fail_many(const adding *a, const need *its, ferry_error *error)
{
    return fy_fail(
        error, FERRY_ERR_LIMIT,
        "%s: parameter \"%.400s\" has parts of more than %d matrices that are quantized; "
        "say where their scales lie by boxes of \"%.400s\"",
        a->side_name, a->boxes->parameters[its->parameter].name, FY_MAX_BOXES,
        scales_tensor(a, its->weight)->name);
}

static ferry_status add_pieces(adding *a, const need *its, ferry_error *error)
{
    const fy_said_box *box = &a->boxes->boxes[its->box];
    turns all[MOST_TURNS];
    uint32_t n_turns = list_turns(box, &a->spec->tensors[its->weight], all);
    uint64_t n = 1;
    for (uint32_t l = 0; l < n_turns; l++) {
        if (!fy_mul(n, all[l].count, &n) || n > FY_MAX_BOXES - a->n_pieces) {
            return fail_many(a, its, error);
        }
    }
    FY_TRY(FY_GROW(a->pieces, a->piece_capacity, a->n_pieces + (size_t)n, "the scales of a layout",
                   error));
    for (uint64_t i = 0; i < n; i++) {
        piece at = first_piece(box, its->weight, all);
        uint64_t rest = i;
        for (uint32_t l = n_turns; l-- > 0; rest /= all[l].count) {
            uint64_t turn = rest % all[l].count;
            at.matrix += turn * all[l].matrix;
            at.offset += turn * all[l].offset;
            for (uint32_t d = 0; d < 2; d++) {
                at.begin[d] += turn * all[l].begin[d];
                at.end[d] += turn * all[l].begin[d];
            }
        }
        a->pieces[a->n_pieces++] = at;
    }
    return FERRY_OK;
}

/* ---- pieces that are one copy of a matrix ---- */

/* Whether no two of some pieces of a matrix have an element in common. */
static ferry_status are_apart(adding *a, const piece *pieces, size_t n, bool *are_out,
                              ferry_error *error)
{
    const fy_tensor *weight = &a->spec->tensors[pieces->weight];
    uint64_t columns = weight->shape[weight->n_dims - 1], place = 0;
    uint64_t budget = fy_strided_budget(n);
    size_t one = n, other = n;
    FY_TRY(FY_GROW(a->places, a->place_capacity, n, "the scales of a layout", error));
    for (size_t i = 0; i < n; i++) {
        const piece *its = &pieces[i];
        a->places[i] =
            (fy_strided){.offset = its->begin[0] * columns + its->begin[1],
                         .n_loops = 2,
                         .count = {its->end[0] - its->begin[0], its->end[1] - its->begin[1]},
                         .stride = {columns, 1}};
        fy_strided_simplify(&a->places[i]);
    }
    FY_TRY(fy_strided_find_meeting(a->places, n, &budget, &one, &other, &place, error));
    *are_out = one == n;
    return FERRY_OK;
}

static bool meet(const piece *a, const piece *b)
{
    return a->begin[0] < b->end[0] && b->begin[0] < a->end[0] && a->begin[1] < b->end[1] &&
           b->begin[1] < a->end[1];
}

static void widen(piece *all, const piece *more)
{
    for (uint32_t d = 0; d < 2; d++) {
        all->begin[d] = fy_min(all->begin[d], more->begin[d]);
        all->end[d] = fy_max(all->end[d], more->end[d]);
    }
}

/*
 * How many of n pieces of a matrix, from the first on, are apart. Mostly the boxes around them
 * tell; else ever more pieces are looked at, and then the number is halved in: so each is looked at
 * a few times.
 */
static ferry_status count_apart(adding *a, const piece *pieces, size_t n, size_t *count_out,
                                ferry_error *error)
{
    piece around = *pieces;
    size_t apart = 1, met = n + 1, step = 1;
    while (apart < n && !meet(&around, &pieces[apart])) {
        widen(&around, &pieces[apart++]);
    }
    for (; apart < n && apart + 1 < met; step *= 2) {
        size_t tried = met <= n ? apart + (met - apart) / 2 : fy_min(apart + step, n);
        bool are = false;
        FY_TRY(are_apart(a, pieces, tried, &are, error));
        *(are ? &apart : &met) = tried;
    }
    *count_out = apart;
    return FERRY_OK;
}

/* The pieces of each copy of a matrix become one, in place. */
static ferry_status join_copies(adding *a, ferry_error *error)
{
    piece *all = a->pieces;
    size_t kept = 0, end = 0;
    fy_sort(all, a->n_pieces, sizeof *all, compare_by_matrix);
    for (size_t i = 0, count; i < a->n_pieces; i += count) {
        for (end = fy_max(end, i); end < a->n_pieces && all[end].plane == all[i].plane &&
                                   all[end].weight == all[i].weight &&
                                   all[end].matrix == all[i].matrix;) {
            end++;
        }
        FY_TRY(count_apart(a, &all[i], end - i, &count, error));
        piece copy = all[i];
        for (size_t k = 1; k < count; k++) {
            widen(&copy, &all[i + k]);
        }
        all[kept++] = copy;
    }
    a->n_pieces = kept;
    return FERRY_OK;
}

/* ---- their scales ---- */

static uint64_t volume_of(const piece *its)
{
    return (its->end[0] - its->begin[0]) * (its->end[1] - its->begin[1]);
}

/* Makes codes scales, one behind the other in the order of the codes. */
static ferry_status place_scales(adding *a, const need *its, uint64_t *elements_out,
                                 ferry_error *error)
{
    uint64_t elements = 0;
    fy_sort(a->pieces, a->n_pieces, sizeof *a->pieces, compare_by_place);
    for (size_t i = 0; i < a->n_pieces; i++) {
        piece *p = &a->pieces[i];
        const uint64_t *block = a->changes[p->weight].format.block;
        for (uint32_t d = 0; d < 2; d++) {
            p->begin[d] = a->of_matrices ? 0 : p->begin[d] / block[d];
            p->end[d] = a->of_matrices ? 1 : fy_ceil_div(p->end[d], block[d]);
        }
        p->stride[0] = p->end[1] - p->begin[1];
        p->offset = elements;
        if (!fy_add(elements, volume_of(p), &elements)) {
            return fail_many(a, its, error);
        }
    }
    *elements_out = elements;
    return FERRY_OK;
}

/* How many of n, from one on, are of matrices in even steps, and lie so. */
static size_t count_even(const adding *a, const piece *p, size_t n)
{
    const fy_tensor *weight = &a->spec->tensors[p->weight];
    uint64_t last = weight->n_dims > 2 ? weight->shape[weight->n_dims - 3] : 1;
    size_t count = 1;
    bool is_even = true;
    while (count < n && is_even) {
        const piece *its = &p[count], *before = its - 1;
        is_even = its->weight == p->weight && its->matrix / last == p->matrix / last &&
                  its->matrix > before->matrix &&
                  memcmp(its->begin, p->begin, sizeof p->begin) == 0 &&
                  memcmp(its->end, p->end, sizeof p->end) == 0 &&
                  its->matrix - before->matrix == p[1].matrix - p->matrix &&
                  its->offset - before->offset == p[1].offset - p->offset;
        count += is_even;
    }
    return count;
}

/* Even ones as one box: steps of one are its shape, others repeats. */
static ferry_status add_box(adding *a, const piece *p, size_t count, size_t parameter,
                            ferry_error *error)
{
    const fy_tensor *weight = &a->spec->tensors[p->weight];
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    uint32_t leading = weight->n_dims - 2;
    uint64_t rest = p->matrix;
    box.tensor = scales_tensor(a, p->weight)->name;
    box.n_dims = scales_tensor(a, p->weight)->n_dims;
    box.offset = p->offset;
    for (uint32_t d = leading; d-- > 0; rest /= weight->shape[d]) {
        box.begin[d] = rest % weight->shape[d];
        box.shape[d] = 1;
        box.strides[d] = volume_of(p);
    }
    for (uint32_t i = 0; leading + i < box.n_dims; i++) {
        box.begin[leading + i] = p->begin[i];
        box.shape[leading + i] = p->end[i] - p->begin[i];
        box.strides[leading + i] = i == 0 ? p->stride[0] : 1;
    }
    if (count > 1 && p[1].matrix - p->matrix == 1) {
        box.shape[leading - 1] = count;
        box.strides[leading - 1] = p[1].offset - p->offset;
    } else if (count > 1) {
        box.n_repeats = 1;
        box.repeats[0] = (ferry_side_repeat){.count = count, .offset = p[1].offset - p->offset};
        box.repeats[0].begin[leading - 1] = p[1].matrix - p->matrix;
    }
    return ferry_side_add_box(a->boxes, parameter, &box, error);
}

static ferry_status add_boxes(adding *a, size_t parameter, ferry_error *error)
{
    fy_sort(a->pieces, a->n_pieces, sizeof *a->pieces, compare_by_weight);
    for (size_t i = 0, count; i < a->n_pieces; i += count) {
        count = count_even(a, &a->pieces[i], a->n_pieces - i);
        FY_TRY(add_box(a, &a->pieces[i], count, parameter, error));
    }
    return FERRY_OK;
}

/* The leading dimensions of the codes in files, and one more where each place of them has several
 * matrices; where it has as many elements as that. */
static ferry_status set_leading_shape(const adding *a, const fy_parameter *of, size_t parameter,
                                      uint64_t elements, ferry_error *error)
{
    uint64_t shape[FERRY_MAX_DIMS], all = 1;
    uint32_t n = 0;
    for (; n + 2 < of->n_dims; n++) {
        shape[n] = of->shape[n];
        all *= of->shape[n]; /* of the elements of a parameter: no overflow */
    }
    if (all == 0 || elements % all != 0 || (n == 0 && elements > 1)) {
        return FERRY_OK;
    }
    if (elements > all) {
        shape[n++] = elements / all;
    }
    return ferry_side_set_shape(a->boxes, parameter, n, shape, error);
}

/* As many dimensions as the codes have in files, where boxes beside each other are rows of one. */
static ferry_status set_shape(const adding *a, const fy_parameter *of, size_t parameter,
                              uint64_t elements, ferry_error *error)
{
    uint64_t shape[FERRY_MAX_DIMS], rest = 1;
    uint64_t columns = a->pieces->end[1] - a->pieces->begin[1];
    for (size_t i = 0; i < a->n_pieces; i++) {
        if (a->pieces[i].end[1] - a->pieces[i].begin[1] != columns) {
            return FERRY_OK;
        }
    }
    for (uint32_t d = 0; d + 2 < of->n_dims; d++) {
        shape[d] = of->shape[d];
        rest *= shape[d]; /* of the elements of a parameter: no overflow */
    }
    if (rest == 0 || elements % columns != 0 || elements / columns % rest != 0) {
        return FERRY_OK;
    }
    shape[of->n_dims - 2] = elements / columns / rest;
    shape[of->n_dims - 1] = columns;
    return ferry_side_set_shape(a->boxes, parameter, of->n_dims, shape, error);
}

/* What stands beside a parameter, of whose boxes the first needs it; nothing is in it yet. */
static ferry_status add_parameter(adding *a, const need *its, uint64_t elements, size_t *number_out,
                                  ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[its->parameter];
    const fy_change *change = &a->changes[its->weight];
    const char *suffix =
        a->of_matrices ? FY_MATRIX_SCALES_SUFFIX : fy_scales_suffix(&change->format);
    ferry_dtype dtype = a->changes[scales_of(a, its->weight)].dtype;
    const fy_rank_list *list = &a->boxes->lists[of->ranks];
    char name[FERRY_NAME_BYTES];
    int length = snprintf(name, sizeof name, "%s%s", of->name, suffix);
    if (length < 0 || (size_t)length >= sizeof name) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s: parameter \"%.400s\": the name of its scales would be longer than %d "
                       "bytes; say where they lie by boxes of \"%.400s\"",
                       a->side_name, of->name, FERRY_NAME_BYTES - 1,
                       scales_tensor(a, its->weight)->name);
    }
    return ferry_side_add_parameter(a->boxes, list->ranks, list->n, name, &dtype, elements, 0,
                                    number_out, error);
}

/* Scales of what boxes have, and of nothing else. */
static ferry_status add_dense(adding *a, const need *its, ferry_error *error)
{
    uint64_t elements = 0;
    size_t number;
    FY_TRY(join_copies(a, error));
    FY_TRY(place_scales(a, its, &elements, error));
    FY_TRY(add_parameter(a, its, elements, &number, error));
    const fy_parameter *of = &a->boxes->parameters[its->parameter];
    if (of->shape != NULL && of->n_dims >= 2) {
        FY_TRY(a->of_matrices ? set_leading_shape(a, of, number, elements, error)
                              : set_shape(a, of, number, elements, error));
    }
    return add_boxes(a, number, error);
}

/* ---- those of parameters that are filled ---- */

/* Of a block of zeros, as the type of scales has it. */
static void put_one(ferry_dtype dtype, unsigned char bits[8])
{
    uint32_t one = dtype.kind == FERRY_F32 ? 0x3f800000 : dtype.kind == FERRY_F8E8M0 ? 0x7f : 0x38;
    for (uint32_t i = 0; i < 8; i++) {
        bits[i] = (unsigned char)(i < 4 ? one >> (8 * i) : 0);
    }
}

static ferry_status fill_rect(adding *a, const fy_grid *g, const fy_grid_rect *rect, size_t number,
                              ferry_error *error)
{
    uint64_t shape[3] = {rect->n_planes},
             strides[3] = {g->blocks[0] * g->blocks[1], g->blocks[1], 1};
    unsigned char bits[8];
    put_one(a->boxes->parameters[number].dtype, bits);
    for (uint32_t d = 0; d < 2; d++) {
        shape[1 + d] = rect->end[d] - rect->begin[d];
    }
    uint64_t offset = rect->plane * strides[0] + rect->begin[0] * strides[1] + rect->begin[1];
    return ferry_side_add_fill(a->boxes, number, 3, offset, shape, strides, bits, error);
}

/* The blocks of the grid that have something become pieces; the others are filled. */
static ferry_status take_grid(adding *a, const fy_grid *g, size_t number, ferry_error *error)
{
    a->n_pieces = 0;
    FY_TRY(FY_GROW(a->pieces, a->piece_capacity, g->n_laid, "the scales of a layout", error));
    for (size_t i = 0; i < g->n_laid; i++) {
        const fy_grid_rect *rect = &g->laid[i];
        if (rect->weight == FY_NONE) {
            FY_TRY(fill_rect(a, g, rect, number, error));
            continue;
        }
        piece its = {.weight = rect->weight, .matrix = rect->matrix, .stride = {g->blocks[1], 1}};
        its.offset = (rect->plane * g->blocks[0] + rect->begin[0]) * g->blocks[1] + rect->begin[1];
        for (uint32_t d = 0; d < 2; d++) {
            its.begin[d] = rect->from[d];
            its.end[d] = rect->from[d] + (rect->end[d] - rect->begin[d]);
        }
        a->pieces[a->n_pieces++] = its;
    }
    return add_boxes(a, number, error);
}

static ferry_status add_grid(adding *a, const need *its, const fy_grid *g, ferry_error *error)
{
    uint64_t shape[FERRY_MAX_DIMS];
    size_t number;
    FY_TRY(add_parameter(a, its, g->n_planes * g->blocks[0] * g->blocks[1], &number, error));
    const fy_parameter *of = &a->boxes->parameters[its->parameter];
    memcpy(shape, of->shape, of->n_dims * sizeof *shape);
    shape[of->n_dims - 2] = g->blocks[0];
    shape[of->n_dims - 1] = g->blocks[1];
    FY_TRY(ferry_side_set_shape(a->boxes, number, of->n_dims, shape, error));
    return take_grid(a, g, number, error);
}

/* Of all blocks of a parameter, if these are blocks of what it has. n: how many boxes need it */
static ferry_status try_grid(adding *a, const need *its, size_t n, bool *done_out,
                             ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[its->parameter];
    host_facts *host = &a->hosts[its->parameter];
    bool fits = host->is_filled && host->n_boxes == n && of->shape != NULL && of->n_dims >= 2;
    ferry_status status = FERRY_OK;
    fy_grid g;
    *done_out = false;
    if (!fits) {
        return FERRY_OK;
    }
    fy_grid_init(&g, of->shape, of->n_dims, a->changes[its->weight].format.block);
    for (size_t i = 0; i < a->n_pieces && fits && status == FERRY_OK; i++) {
        const piece *p = &a->pieces[i];
        fy_grid_part part = {.weight = p->weight, .matrix = p->matrix, .offset = p->offset};
        memcpy(part.begin, p->begin, sizeof part.begin);
        memcpy(part.end, p->end, sizeof part.end);
        memcpy(part.stride, p->stride, sizeof part.stride);
        status = fy_grid_add(&g, &part, &fits, error);
    }
    FY_THEN(status, fits ? fy_grid_lay(&g, &fits, error) : FERRY_OK);
    host->in_grid = fits && status == FERRY_OK;
    FY_THEN(status, fits ? add_grid(a, its, &g, error) : FERRY_OK);
    fy_grid_cleanup(&g);
    *done_out = fits;
    return status;
}

/* How many matrices each plane of a parameter has that has some; 0: not as many as the next. The
 * pieces are in the order of their planes. */
static size_t count_matrices(const adding *a)
{
    size_t each = 0;
    for (size_t i = 0, end; i < a->n_pieces; i = end) {
        for (end = i; end < a->n_pieces && a->pieces[end].plane == a->pieces[i].plane;) {
            end++;
        }
        if (each != 0 && end - i != each) {
            return 0;
        }
        each = end - i;
    }
    return each;
}

/* Planes without a matrix have the scale 1, as many times as others have one. */
static ferry_status fill_planes(adding *a, size_t number, uint64_t n_planes, size_t each,
                                ferry_error *error)
{
    unsigned char bits[8];
    uint64_t next = 0, stride = 1;
    put_one(a->boxes->parameters[number].dtype, bits);
    for (size_t i = 0; i <= a->n_pieces; i += each) {
        uint64_t plane = i == a->n_pieces ? n_planes : a->pieces[i].plane;
        uint64_t n = (plane - next) * each;
        if (n > 0) {
            FY_TRY(ferry_side_add_fill(a->boxes, number, 1, next * each, &n, &stride, bits, error));
        }
        next = plane + 1;
    }
    return FERRY_OK;
}

/* Of matrices, beside a parameter whose blocks all have a scale. */
static ferry_status add_matrices(adding *a, const need *its, ferry_error *error)
{
    const fy_parameter *of = &a->boxes->parameters[its->parameter];
    uint64_t volume = of->shape[of->n_dims - 2] * of->shape[of->n_dims - 1];
    uint64_t n_planes = of->elements / volume, elements = 0;
    size_t number;
    for (size_t i = 0; i < a->n_pieces; i++) {
        a->pieces[i].plane = a->pieces[i].offset / volume;
    }
    FY_TRY(join_copies(a, error));
    FY_TRY(place_scales(a, its, &elements, error));
    size_t each = count_matrices(a);
    for (size_t i = 0; i < a->n_pieces && each > 0; i++) {
        a->pieces[i].offset = a->pieces[i].plane * each + i % each;
    }
    elements = each > 0 ? n_planes * each : elements;
    FY_TRY(add_parameter(a, its, elements, &number, error));
    of = &a->boxes->parameters[its->parameter];
    FY_TRY(set_leading_shape(a, of, number, elements, error));
    FY_TRY(each > 0 ? fill_planes(a, number, n_planes, each, error) : FERRY_OK);
    return add_boxes(a, number, error);
}

/* ---- all ---- */

static void note_said(adding *a)
{
    for (size_t i = 0; i < a->boxes->n_boxes; i++) {
        const char *name = a->boxes->tensors[a->boxes->boxes[i].tensor].name;
        uint32_t t = fy_spec_find_tensor(a->spec, name);
        a->is_said[t == FY_NONE ? a->spec->n_tensors : t] = true;
    }
}

static ferry_status note_hosts(adding *a, ferry_error *error)
{
    const ferry_side *side = a->boxes;
    a->n_hosts = side->n_parameters;
    a->hosts = fy_alloc_zeroed(a->n_hosts, sizeof *a->hosts);
    FY_TRY(fy_check_memory(a->hosts != NULL, "the scales of a layout", error));
    for (size_t i = 0; i < a->n_hosts; i++) {
        a->hosts[i].is_filled = side->parameters[i].is_partial;
    }
    for (size_t i = 0; i < side->n_fills; i++) {
        a->hosts[side->fills[i].parameter].is_filled = true;
    }
    for (size_t i = 0; i < side->n_boxes; i++) {
        const fy_said_box *box = &side->boxes[i];
        bool has_some = fy_box_volume(fy_said_box_shape(box), box->n_dims) > 0;
        a->hosts[box->parameter].n_boxes += has_some;
    }
    return FERRY_OK;
}

/* Beside one parameter, which n boxes need. */
static ferry_status add_beside(adding *a, const need *needs, size_t n, ferry_error *error)
{
    bool done = false;
    a->n_pieces = 0;
    for (size_t i = 0; i < n; i++) {
        FY_TRY(add_pieces(a, &needs[i], error));
    }
    if (a->of_matrices && a->hosts[needs->parameter].in_grid) {
        return add_matrices(a, needs, error);
    }
    FY_TRY(a->of_matrices ? FERRY_OK : try_grid(a, needs, n, &done, error));
    return done ? FERRY_OK : add_dense(a, needs, error);
}

static ferry_status add_all(adding *a, bool of_matrices, ferry_error *error)
{
    a->of_matrices = of_matrices;
    FY_TRY(list_needs(a, error));
    for (size_t i = 0, end; i < a->n; i = end) {
        for (end = i; end < a->n && a->needs[end].parameter == a->needs[i].parameter;) {
            end++;
        }
        FY_TRY(add_beside(a, &a->needs[i], end - i, error));
    }
    return FERRY_OK;
}

ferry_status fy_changes_add_scale_boxes(const ferry_spec *spec, const fy_change *changes,
                                        ferry_side *boxes, const char *name, ferry_error *error)
{
    adding a = {.spec = spec, .changes = changes, .boxes = boxes, .side_name = name};
    a.is_said = fy_alloc_zeroed(spec->n_tensors + (size_t)1, sizeof *a.is_said);
    FY_TRY(fy_check_memory(a.is_said != NULL, "the scales of a layout", error));
    note_said(&a);
    ferry_status status = note_hosts(&a, error);
    FY_THEN(status, add_all(&a, false, error));
    FY_THEN(status, add_all(&a, true, error));
    fy_free(a.is_said);
    fy_free(a.hosts);
    fy_free(a.needs);
    fy_free(a.pieces);
    fy_free(a.places);
    return status;
}
