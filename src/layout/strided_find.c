/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of many strided places meet. Sorted by where they begin, those whose stretches of memory
 * are apart need no look. Many that are interwoven nearly always lie in one array, of which their
 * strides are the pitches: there they are boxes, and boxes that meet are found by their corners.
 * What is left is held against each other pair by pair.
 */
#include "layout/strided.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "layout/box_tree.h"

#include <string.h>

/* So few are held against each other sooner than an array is found for them. */
enum { FEW = 24, MOST_PAIRS = 1 << 24 };

typedef struct stretch_of {
    uint64_t first;
    uint64_t last;
    uint32_t number;
} stretch_of;

typedef struct finding {
    const fy_strided *places;
    const stretch_of *stretches; /* of the tangle at work */
    size_t n;
    size_t a, b; /* numbers of two that meet; b is SIZE_MAX as long as there are none */
    uint64_t place;
    uint64_t n_pairs; /* looked at in all */
} finding;

static int compare_stretches(const void *a, const void *b)
{
    const stretch_of *x = a, *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static ferry_status try_pair(finding *f, uint32_t a, uint32_t b, ferry_error *error)
{
    bool meet;
    FY_TRY(fy_strided_meet(&f->places[a], &f->places[b], &meet, &f->place, error));
    if (meet) {
        f->a = a < b ? a : b;
        f->b = a < b ? b : a;
    }
    return FERRY_OK;
}

static ferry_status find_by_pairs(finding *f, ferry_error *error)
{
    for (size_t i = 0; i < f->n && f->b == SIZE_MAX; i++) {
        for (size_t k = i + 1; k < f->n && f->b == SIZE_MAX; k++) {
            if (f->stretches[k].first > f->stretches[i].last) {
                break;
            }
            if (++f->n_pairs > MOST_PAIRS) {
                return fy_fail(error, FERRY_ERR_LIMIT,
                               "more than %d pairs of boxes whose strides have no common array",
                               MOST_PAIRS);
            }
            FY_TRY(try_pair(f, f->stretches[i].number, f->stretches[k].number, error));
        }
    }
    return FERRY_OK;
}

/* The pitches of an array, largest first; each is a multiple of the next. */
typedef struct pitches {
    uint32_t n;
    uint64_t pitch[FERRY_MAX_DIMS];
} pitches;

/* False: there are too many for an array of boxes. */
static bool add_pitch(pitches *p, uint64_t pitch)
{
    uint32_t at = 0;
    while (at < p->n && p->pitch[at] > pitch) {
        at++;
    }
    if (at < p->n && p->pitch[at] == pitch) {
        return true;
    }
    if (p->n == FERRY_MAX_DIMS) {
        return false;
    }
    memmove(&p->pitch[at + 1], &p->pitch[at], (p->n - at) * sizeof *p->pitch);
    p->pitch[at] = pitch;
    p->n++;
    return true;
}

static bool find_pitches(const finding *f, pitches *p)
{
    *p = (pitches){.n = 1, .pitch = {1}};
    for (size_t i = 0; i < f->n; i++) {
        const fy_strided *s = &f->places[f->stretches[i].number];
        for (uint32_t k = 0; k < s->n_loops; k++) {
            if (!add_pitch(p, s->stride[k])) {
                return false;
            }
        }
    }
    for (uint32_t d = 0; d + 1 < p->n; d++) {
        if (p->pitch[d] % p->pitch[d + 1] != 0) {
            return false;
        }
    }
    return true;
}

/* The places as a box of the array; false where they are none. */
static bool as_box(const fy_strided *s, const pitches *p, uint64_t *begin, uint64_t *length)
{
    uint64_t rest = s->offset;
    for (uint32_t d = 0; d < p->n; d++) {
        begin[d] = rest / p->pitch[d];
        rest %= p->pitch[d];
        length[d] = 1;
        for (uint32_t k = 0; k < s->n_loops; k++) {
            length[d] = s->stride[k] == p->pitch[d] ? s->count[k] : length[d];
        }
    }
    for (uint32_t d = p->n; d-- > 1;) {
        uint64_t width = p->pitch[d - 1] / p->pitch[d];
        if (begin[d] + length[d] <= width) {
            continue;
        }
        /* Loops that were joined, over whole rows. */
        if (begin[d] != 0 || length[d] % width != 0 || length[d - 1] != 1) {
            return false;
        }
        length[d - 1] = length[d] / width;
        length[d] = width;
    }
    return true;
}

static ferry_status find_in_tree(finding *f, const fy_box_tree *tree, const uint64_t *begin,
                                 const uint64_t *length, uint32_t n_dims, ferry_error *error)
{
    uint32_t *found = NULL;
    size_t capacity = 0, n = 0;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < f->n && status == FERRY_OK && f->b == SIZE_MAX; i++) {
        status = fy_box_tree_find(tree, begin + i * n_dims, length + i * n_dims, &found, &capacity,
                                  &n, error);
        for (size_t k = 0; k < n && status == FERRY_OK && f->b == SIZE_MAX; k++) {
            if (found[k] != i) {
                status = try_pair(f, f->stretches[i].number, f->stretches[found[k]].number, error);
            }
        }
    }
    fy_free(found);
    return status;
}

static ferry_status find_by_corners(finding *f, bool *done_out, ferry_error *error)
{
    pitches p;
    *done_out = false;
    if (!find_pitches(f, &p)) {
        return FERRY_OK;
    }
    uint64_t *begin = fy_alloc(f->n, p.n * sizeof *begin);
    uint64_t *length = fy_alloc(f->n, p.n * sizeof *length);
    fy_box_tree *tree = NULL;
    ferry_status status =
        fy_check_memory(begin != NULL && length != NULL, "the check of boxes", error);
    bool fits = status == FERRY_OK;
    for (size_t i = 0; fits && i < f->n; i++) {
        fits = as_box(&f->places[f->stretches[i].number], &p, begin + i * p.n, length + i * p.n);
    }
    if (fits) {
        status = fy_box_tree_create(begin, length, f->n, p.n, &tree, error);
        FY_THEN(status, find_in_tree(f, tree, begin, length, p.n, error));
        *done_out = true;
    }
    fy_box_tree_destroy(tree);
    fy_free(begin);
    fy_free(length);
    return status;
}

static ferry_status find_in_tangle(finding *f, ferry_error *error)
{
    bool done = false;
    if (f->n > FEW) {
        FY_TRY(find_by_corners(f, &done, error));
    }
    return done ? FERRY_OK : find_by_pairs(f, error);
}

ferry_status fy_strided_find_meeting(const fy_strided *places, size_t n, size_t *a_out,
                                     size_t *b_out, uint64_t *place_out, ferry_error *error)
{
    finding f = {.places = places, .b = SIZE_MAX};
    stretch_of *stretches = fy_alloc(n, sizeof *stretches);
    ferry_status status = fy_check_memory(stretches != NULL, "the check of boxes", error);
    for (size_t i = 0; stretches != NULL && i < n; i++) {
        uint64_t count, last = 0;
        (void)fy_strided_measure(&places[i], &count, &last); /* it was measured before */
        stretches[i] = (stretch_of){.first = places[i].offset, .last = last, .number = (uint32_t)i};
    }
    if (stretches != NULL) {
        fy_sort(stretches, n, sizeof *stretches, compare_stretches);
    }
    for (size_t i = 0; i < n && status == FERRY_OK && f.b == SIZE_MAX;) {
        size_t end = i + 1;
        uint64_t last = stretches[i].last;
        for (; end < n && stretches[end].first <= last; end++) {
            last = fy_max(last, stretches[end].last);
        }
        f.stretches = stretches + i;
        f.n = end - i;
        status = f.n > 1 ? find_in_tangle(&f, error) : FERRY_OK;
        i = end;
    }
    fy_free(stretches);
    *a_out = f.b == SIZE_MAX ? n : f.a;
    *b_out = f.b;
    *place_out = f.place;
    return status;
}
