/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A box of a source in a target that is cut: each piece of a shard has a box of its own. */
#include "model/naming_box.h"

#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/*
 * Of one dimension of the target, what a box and a piece of a shard share: so many elements, which
 * come again so often, with the distances of the box.
 */
typedef struct overlap {
    uint64_t into; /* the box, along this dimension */
    uint64_t jump; /* blocks of the box before the first */
    uint64_t length, count;
    uint64_t local; /* where it begins in the shard */
} overlap;

typedef struct overlaps {
    overlap *all;
    size_t n, capacity;
} overlaps;

typedef struct cutting {
    const fy_naming_box *box;
    const fy_naming_shard *shard;
    overlaps dims[FERRY_MAX_DIMS];
    size_t at[FERRY_MAX_DIMS];
    uint64_t strides[FERRY_MAX_DIMS]; /* of the shard */
} cutting;

uint64_t fy_naming_shard_length(const fy_naming_shard *shard, uint32_t dim)
{
    return shard->splits[dim]->part_length[shard->parts[dim]];
}

/* ---- one dimension ---- */

static bool is_owned(const fy_piece *piece, uint32_t part)
{
    return part >= piece->part && part - piece->part < piece->n_owners;
}

/* The source's dimension that goes along one of the target's. */
static uint32_t source_dim(const fy_naming_box *box, uint32_t dim)
{
    for (uint32_t d = 0; d < box->source->n_dims; d++) {
        if (box->along[d] == dim) {
            return d;
        }
    }
    return FY_NO_DIM;
}

static uint64_t length_along(const fy_naming_box *box, uint32_t dim)
{
    uint32_t d = source_dim(box, dim);
    return d == FY_NO_DIM ? 1 : box->shape[d];
}

/* Blocks that a piece has as a whole, one behind the other, are one overlap. */
static bool goes_on(const overlaps *list, const overlap *next, uint64_t step, uint64_t length)
{
    const overlap *last = list->n == 0 ? NULL : &list->all[list->n - 1];
    return last != NULL && last->length == length && next->length == length &&
           last->jump + last->count == next->jump &&
           last->local + last->count * step == next->local;
}

static ferry_status keep(overlaps *list, const overlap *next, uint64_t step, uint64_t length,
                         ferry_error *error)
{
    if (goes_on(list, next, step, length)) {
        list->all[list->n - 1].count++;
        return FERRY_OK;
    }
    FY_TRY(FY_GROW(list->all, list->capacity, list->n + 1, "the boxes of a model", error));
    list->all[list->n++] = *next;
    return FERRY_OK;
}

static ferry_status cut_piece(cutting *c, uint32_t dim, const fy_piece *piece, ferry_error *error)
{
    const fy_naming_box *box = c->box;
    bool repeats = dim == box->to_dim && box->count > 1;
    uint64_t count = repeats ? box->count : 1, step = repeats ? box->to_step : 0;
    uint64_t length = length_along(box, dim), end = piece->global + piece->length;
    uint64_t local = fy_split_local(c->shard->splits[dim], c->shard->parts[dim], piece->global);
    uint64_t i = 0;
    if (repeats && piece->global > box->at[dim]) {
        i = (piece->global - box->at[dim]) / step; /* no block before it reaches so far */
    }
    for (; i < count && box->at[dim] + i * step < end; i++) {
        uint64_t begin = box->at[dim] + i * step;
        uint64_t from = fy_max(begin, piece->global), to = fy_min(begin + length, end);
        if (from < to) {
            overlap next = {.into = from - begin,
                            .jump = i,
                            .length = to - from,
                            .count = 1,
                            .local = local + from - piece->global};
            FY_TRY(keep(&c->dims[dim], &next, step, length, error));
        }
    }
    return FERRY_OK;
}

/* Pieces before the box and behind it are not looked at: there may be as many as ranks. */
static ferry_status cut_dim(cutting *c, uint32_t dim, ferry_error *error)
{
    const fy_split *split = c->shard->splits[dim];
    const fy_naming_box *box = c->box;
    uint64_t begin = box->at[dim], end = begin + length_along(box, dim);
    if (dim == box->to_dim && box->count > 1) {
        end += (box->count - 1) * box->to_step;
    }
    FY_BISECT_LAST(size_t, first, 0, split->n_pieces, middle,
                   split->pieces[middle].global <= begin);
    for (size_t i = first; i < split->n_pieces && split->pieces[i].global < end; i++) {
        if (is_owned(&split->pieces[i], c->shard->parts[dim])) {
            FY_TRY(cut_piece(c, dim, &split->pieces[i], error));
        }
    }
    return FERRY_OK;
}

/* ---- all together ---- */

static ferry_status add(const cutting *c, ferry_side *side, size_t parameter, ferry_error *error)
{
    const fy_naming_box *box = c->box;
    const overlap *rows = &c->dims[box->to_dim].all[c->at[box->to_dim]];
    ferry_side_box added = FERRY_SIDE_BOX_INIT;
    added.tensor = box->source->name;
    added.n_dims = box->source->n_dims;
    for (uint32_t e = 0; e < c->shard->n_dims; e++) {
        added.offset += c->dims[e].all[c->at[e]].local * c->strides[e];
    }
    for (uint32_t d = 0; d < added.n_dims; d++) {
        uint32_t e = box->along[d];
        const overlap *part = e == FY_NO_DIM ? NULL : &c->dims[e].all[c->at[e]];
        added.begin[d] = box->begin[d] + (part == NULL ? 0 : part->into);
        added.shape[d] = part == NULL ? box->shape[d] : part->length;
        added.strides[d] = part == NULL ? 1 : c->strides[e];
    }
    added.begin[box->from_dim] += rows->jump * box->from_step;
    if (rows->count > 1) {
        added.n_repeats = 1;
        added.repeats[0].count = rows->count;
        added.repeats[0].begin[box->from_dim] = box->from_step;
        added.repeats[0].offset = box->to_step * c->strides[box->to_dim];
    }
    return ferry_side_add_box(side, parameter, &added, error);
}

static bool next_place(cutting *c)
{
    for (uint32_t d = c->shard->n_dims; d-- > 0;) {
        if (++c->at[d] < c->dims[d].n) {
            return true;
        }
        c->at[d] = 0;
    }
    return false;
}

ferry_status fy_naming_box_add(const fy_naming_box *box, const fy_naming_shard *shard,
                               ferry_side *side, size_t parameter, ferry_error *error)
{
    cutting c = {.box = box, .shard = shard};
    ferry_status status = FERRY_OK;
    uint64_t stride = 1;
    bool shares = true;
    for (uint32_t d = shard->n_dims; d-- > 0;) {
        c.strides[d] = stride;
        stride *= fy_max(fy_naming_shard_length(shard, d), 1);
    }
    for (uint32_t d = 0; d < shard->n_dims && status == FERRY_OK && shares; d++) {
        status = cut_dim(&c, d, error);
        shares = c.dims[d].n > 0;
    }
    while (status == FERRY_OK && shares) {
        status = add(&c, side, parameter, error);
        shares = next_place(&c);
    }
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        fy_free(c.dims[d].all);
    }
    return status;
}
