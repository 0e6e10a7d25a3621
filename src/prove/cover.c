/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/cover.h"

#include "base/checked.h"

#include <stdlib.h>

typedef struct level {
    fy_proof_numbers cuts;
    fy_proof_written **active; /* boxes that reach into the slab at hand */
    size_t capacity;
} level;

typedef struct cover {
    const fy_proof_shard *shard;
    level levels[FY_PROOF_DIMS];
    uint64_t begin[FY_PROOF_DIMS]; /* of the cell at hand */
    uint64_t length[FY_PROOF_DIMS];
    fy_proof_flaw flaw;
} cover;

/* A cell is all in the holder's flat range or all out of it: see push_flat_edges. */
static void look_at_cell(cover *c, fy_proof_written *const *boxes, size_t n)
{
    uint64_t number = fy_proof_shard_number(c->shard, c->begin);
    bool is_wanted = number >= c->shard->flat_begin && number < c->shard->flat_end;
    if (n == (is_wanted ? 1 : 0)) {
        return;
    }
    c->flaw.is_found = true;
    c->flaw.is_twice = n > 1;
    for (size_t i = 0; i < n && i < 2; i++) {
        c->flaw.tasks[i] = boxes[i]->task_id;
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        c->flaw.begin[d] = c->begin[d];
        c->flaw.length[d] = c->length[d];
    }
}

/*
 * Elements before number are those that come before its coordinates lexicographically. With cuts
 * before and behind its coordinate on every dimension, a cell has one order to it: all before, or
 * none.
 */
static bool push_flat_edge(fy_proof_numbers *cuts, const fy_proof_shard *shard, size_t dim,
                           uint64_t number)
{
    for (size_t d = FY_PROOF_DIMS - 1; d > dim; d--) {
        number /= shard->shape[d];
    }
    uint64_t coordinate = number % shard->shape[dim];
    return fy_proof_numbers_push(cuts, coordinate) && fy_proof_numbers_push(cuts, coordinate + 1);
}

static uint64_t volume_of(const fy_proof_shard *shard)
{
    uint64_t volume = 1;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        volume *= shard->shape[d];
    }
    return volume;
}

static bool push_flat_edges(fy_proof_numbers *cuts, const fy_proof_shard *shard, size_t dim)
{
    if (shard->flat_begin > 0 && !push_flat_edge(cuts, shard, dim, shard->flat_begin)) {
        return false;
    }
    /* A number behind the last element would have no coordinates. */
    return shard->flat_end == volume_of(shard) || push_flat_edge(cuts, shard, dim, shard->flat_end);
}

static bool collect_cuts(const cover *c, fy_proof_numbers *cuts, size_t dim,
                         fy_proof_written *const *boxes, size_t n)
{
    cuts->n = 0;
    if (!fy_proof_numbers_push(cuts, 0) || !fy_proof_numbers_push(cuts, c->shard->shape[dim]) ||
        !push_flat_edges(cuts, c->shard, dim)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!fy_proof_numbers_push(cuts, boxes[i]->begin[dim]) ||
            !fy_proof_numbers_push(cuts, boxes[i]->end[dim])) {
            return false;
        }
    }
    fy_proof_numbers_sort(cuts);
    return true;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = (*(const fy_proof_written *const *)a)->key;
    uint64_t y = (*(const fy_proof_written *const *)b)->key;
    return x < y ? -1 : x > y;
}

static void sort_by_begin(fy_proof_written **boxes, size_t n, size_t dim)
{
    for (size_t i = 0; i < n; i++) {
        boxes[i]->key = boxes[i]->begin[dim];
    }
    if (n > 1) {
        qsort(boxes, n, sizeof *boxes, by_key);
    }
}

/* boxes are those that reach into the slab of the dimensions before; they are sorted anew. */
static bool look_at_dim(cover *c, size_t dim, fy_proof_written **boxes, size_t n)
{
    if (dim == FY_PROOF_DIMS) {
        look_at_cell(c, boxes, n);
        return true;
    }
    level *at = &c->levels[dim];
    if (!FY_RESERVE(at->active, at->capacity, n) || !collect_cuts(c, &at->cuts, dim, boxes, n)) {
        return false;
    }
    sort_by_begin(boxes, n, dim);
    size_t next = 0, n_active = 0;
    for (size_t i = 0; i + 1 < at->cuts.n && !c->flaw.is_found; i++) {
        uint64_t begin = at->cuts.items[i];
        size_t n_kept = 0;
        for (size_t j = 0; j < n_active; j++) {
            if (at->active[j]->end[dim] > begin) {
                at->active[n_kept++] = at->active[j];
            }
        }
        n_active = n_kept;
        while (next < n && boxes[next]->begin[dim] == begin) {
            at->active[n_active++] = boxes[next++];
        }
        c->begin[dim] = begin;
        c->length[dim] = at->cuts.items[i + 1] - begin;
        if (!look_at_dim(c, dim + 1, at->active, n_active)) {
            return false;
        }
    }
    return true;
}

ferry_status fy_proof_cover_check(const fy_proof_shard *shard, size_t n_dims,
                                  fy_proof_written *boxes, size_t n, fy_proof_flaw *flaw_out,
                                  ferry_error *error)
{
    cover c = {.shard = shard};
    ferry_status status = FERRY_OK;
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        c.length[d] = 1;
    }
    fy_proof_written **list = fy_alloc(n, sizeof *list);
    for (size_t i = 0; list != NULL && i < n; i++) {
        list[i] = &boxes[i];
    }
    if (list == NULL || !look_at_dim(&c, FY_PROOF_DIMS - n_dims, list, n)) {
        status = fy_fail_no_memory(error, "the boxes of a shard");
    } else {
        *flaw_out = c.flaw;
    }
    for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
        fy_free(c.levels[d].cuts.items);
        fy_free(c.levels[d].active);
    }
    fy_free(list);
    return status;
}
