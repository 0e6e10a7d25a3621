/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of many strided places meet. Sorted by where they begin, those whose stretches of memory
 * are apart need no look. Many that are interwoven nearly always lie in one array, of which their
 * strides are the pitches: there they are boxes, and boxes that meet are found by their corners.
 * The few that are no boxes of the array are held against all others. Where that were too many
 * pairs, the runs of all are sorted, if those are fewer.
 */
#include "layout/strided.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "layout/box_tree.h"

#include <string.h>

enum {
    FEW = 24, /* so few are held against each other sooner than an array is found for them */
    MOST_RUNS = 1 << 21,
    RUNS_PER_STEP = 8, /* sorting one costs so much less than a step of a search */
};

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
    uint64_t *budget;
} finding;

static int compare_stretches(const void *a, const void *b)
{
    const stretch_of *x = a, *y = b;
    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static void note_pair(finding *f, uint32_t a, uint32_t b)
{
    f->a = a < b ? a : b;
    f->b = a < b ? b : a;
}

static ferry_status try_pair(finding *f, uint32_t a, uint32_t b, ferry_error *error)
{
    bool meet;
    FY_TRY(fy_strided_meet(&f->places[a], &f->places[b], f->budget, &meet, &f->place, error));
    if (meet) {
        note_pair(f, a, b);
    }
    return FERRY_OK;
}

/* fits: those that are not to be held against each other; NULL: there are none. */
static ferry_status find_by_pairs(finding *f, const bool *fits, ferry_error *error)
{
    for (size_t i = 0; i < f->n && f->b == SIZE_MAX; i++) {
        for (size_t k = i + 1; k < f->n && f->b == SIZE_MAX; k++) {
            if (f->stretches[k].first > f->stretches[i].last) {
                break;
            }
            if (fits == NULL || !fits[i] || !fits[k]) {
                FY_TRY(try_pair(f, f->stretches[i].number, f->stretches[k].number, error));
            }
        }
    }
    return FERRY_OK;
}

/* ---- by runs --------------------------------------------------------------------------------- */

/* Whether the innermost loop is one run; places are simplified. */
static bool has_runs(const fy_strided *s)
{
    return s->n_loops > 0 && s->stride[s->n_loops - 1] == 1;
}

/* How many runs the tangle has; UINT64_MAX: more than are sorted. */
static uint64_t count_runs(const finding *f)
{
    uint64_t n = 0;
    for (size_t i = 0; i < f->n; i++) {
        const fy_strided *s = &f->places[f->stretches[i].number];
        uint64_t its = 1;
        for (uint32_t k = 0; k < s->n_loops - has_runs(s); k++) {
            if (!fy_mul(its, s->count[k], &its)) {
                return UINT64_MAX;
            }
        }
        if (its > MOST_RUNS || n + its > MOST_RUNS) {
            return UINT64_MAX;
        }
        n += its;
    }
    return n;
}

static size_t list_runs(const fy_strided *s, uint32_t number, stretch_of *runs)
{
    uint32_t n_outer = s->n_loops - has_runs(s);
    uint64_t length = has_runs(s) ? s->count[n_outer] : 1, at[FY_MAX_LOOPS] = {0};
    uint64_t first = s->offset;
    size_t n = 0;
    for (;;) {
        runs[n++] = (stretch_of){.first = first, .last = first + length - 1, .number = number};
        uint32_t k = n_outer;
        for (; k > 0; k--) {
            first += s->stride[k - 1];
            if (++at[k - 1] < s->count[k - 1]) {
                break;
            }
            first -= at[k - 1] * s->stride[k - 1];
            at[k - 1] = 0;
        }
        if (k == 0) {
            return n;
        }
    }
}

/* None meets itself, so the first run that begins within another is one of another's. */
static ferry_status find_by_runs(finding *f, uint64_t n_runs, ferry_error *error)
{
    size_t n = 0;
    stretch_of *runs = fy_alloc(n_runs, sizeof *runs);
    FY_TRY(fy_check_memory(runs != NULL, "the check of boxes", error));
    for (size_t i = 0; i < f->n; i++) {
        uint32_t number = f->stretches[i].number;
        n += list_runs(&f->places[number], number, runs + n);
    }
    *f->budget -= fy_min(n / RUNS_PER_STEP, *f->budget);
    fy_sort(runs, n, sizeof *runs, compare_stretches);
    for (size_t i = 1; i < n && f->b == SIZE_MAX; i++) {
        if (runs[i].first <= runs[i - 1].last) {
            f->place = runs[i].first;
            note_pair(f, runs[i - 1].number, runs[i].number);
        }
    }
    fy_free(runs);
    return FERRY_OK;
}

/* Pairs of which n_crossing times all others come into question, or runs where those are fewer. */
static ferry_status find_by_looks(finding *f, const bool *fits, size_t n_crossing,
                                  ferry_error *error)
{
    uint64_t n_pairs = n_crossing * (uint64_t)f->n; /* both are below 2^32 */
    uint64_t n_runs = n_pairs > FEW * FEW ? count_runs(f) : UINT64_MAX;
    bool by_runs = n_runs / RUNS_PER_STEP < fy_min(n_pairs, *f->budget);
    return by_runs ? find_by_runs(f, n_runs, error) : find_by_pairs(f, fits, error);
}

/* ---- by corners ------------------------------------------------------------------------------ */

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

static bool is_multiple(const pitches *p)
{
    for (uint32_t d = 0; d + 1 < p->n; d++) {
        if (p->pitch[d] % p->pitch[d + 1] != 0) {
            return false;
        }
    }
    return true;
}

typedef struct vote {
    uint64_t stride;
    size_t n;
} vote;

static int compare_strides(const void *a, const void *b)
{
    const vote *x = a, *y = b;
    return (x->stride > y->stride) - (x->stride < y->stride);
}

static int compare_votes(const void *a, const void *b)
{
    const vote *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n ? -1 : 1) : compare_strides(a, b);
}

/* The strides that most have, and no fewer than some, as far as each is a multiple of the next. */
static ferry_status find_pitches(const finding *f, size_t least_votes, pitches *p,
                                 ferry_error *error)
{
    vote *votes = fy_alloc(f->n, FY_MAX_LOOPS * sizeof *votes);
    size_t n = 0, kept = 0;
    FY_TRY(fy_check_memory(votes != NULL, "the check of boxes", error));
    for (size_t i = 0; i < f->n; i++) {
        const fy_strided *s = &f->places[f->stretches[i].number];
        for (uint32_t k = 0; k < s->n_loops; k++) {
            votes[n++] = (vote){.stride = s->stride[k], .n = 1};
        }
    }
    fy_sort(votes, n, sizeof *votes, compare_strides);
    for (size_t i = 0; i < n; i++) {
        if (kept > 0 && votes[kept - 1].stride == votes[i].stride) {
            votes[kept - 1].n++;
        } else {
            votes[kept++] = votes[i];
        }
    }
    fy_sort(votes, kept, sizeof *votes, compare_votes);
    *p = (pitches){.n = 1, .pitch = {1}};
    for (size_t i = 0; i < kept && votes[i].n >= least_votes && p->n < FERRY_MAX_DIMS; i++) {
        pitches more = *p;
        if (add_pitch(&more, votes[i].stride) && is_multiple(&more)) {
            *p = more;
        }
    }
    fy_free(votes);
    return FERRY_OK;
}

/* The places as a box of the array; false where they are none. */
static bool as_box(const fy_strided *s, const pitches *p, uint64_t *begin, uint64_t *length)
{
    uint64_t rest = s->offset;
    uint32_t n_found = 0;
    for (uint32_t d = 0; d < p->n; d++) {
        begin[d] = rest / p->pitch[d];
        rest %= p->pitch[d];
        length[d] = 1;
        for (uint32_t k = 0; k < s->n_loops; k++) {
            bool is_pitch = s->stride[k] == p->pitch[d];
            length[d] = is_pitch ? s->count[k] : length[d];
            n_found += is_pitch;
        }
    }
    if (n_found < s->n_loops) {
        return false;
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

/* Those of a tangle that are boxes of one array. */
typedef struct fitting {
    pitches p;
    uint64_t *begin;
    uint64_t *length;
    uint32_t *numbers;
    bool *fits; /* [of the tangle] */
    size_t n;
} fitting;

static ferry_status find_in_tree(finding *f, const fitting *fit, const fy_box_tree *tree,
                                 ferry_error *error)
{
    uint32_t *found = NULL;
    size_t capacity = 0, n = 0, n_dims = fit->p.n;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < fit->n && status == FERRY_OK && f->b == SIZE_MAX; i++) {
        status = fy_box_tree_find(tree, fit->begin + i * n_dims, fit->length + i * n_dims, &found,
                                  &capacity, &n, error);
        for (size_t k = 0; k < n && status == FERRY_OK && f->b == SIZE_MAX; k++) {
            if (found[k] != i) {
                status = try_pair(f, fit->numbers[i], fit->numbers[found[k]], error);
            }
        }
    }
    fy_free(found);
    return status;
}

static void fitting_cleanup(fitting *fit)
{
    fy_free(fit->begin);
    fy_free(fit->length);
    fy_free(fit->numbers);
    fy_free(fit->fits);
    *fit = (fitting){.n = 0};
}

static ferry_status find_fitting(const finding *f, size_t least_votes, fitting *fit,
                                 ferry_error *error)
{
    FY_TRY(find_pitches(f, least_votes, &fit->p, error));
    fit->begin = fy_alloc(f->n, fit->p.n * sizeof *fit->begin);
    fit->length = fy_alloc(f->n, fit->p.n * sizeof *fit->length);
    fit->numbers = fy_alloc(f->n, sizeof *fit->numbers);
    fit->fits = fy_alloc(f->n, sizeof *fit->fits);
    FY_TRY(fy_check_memory(fit->begin != NULL && fit->length != NULL && fit->numbers != NULL &&
                               fit->fits != NULL,
                           "the check of boxes", error));
    for (size_t i = 0; i < f->n; i++) {
        size_t at = fit->n * fit->p.n;
        uint32_t number = f->stretches[i].number;
        fit->fits[i] = as_box(&f->places[number], &fit->p, fit->begin + at, fit->length + at);
        fit->numbers[fit->n] = number;
        fit->n += fit->fits[i];
    }
    return FERRY_OK;
}

/* A pitch that few have may cut the boxes of all others: of two arrays, the one that more fit. */
static ferry_status find_best(const finding *f, fitting *best, ferry_error *error)
{
    fitting common = {.n = 0};
    FY_TRY(find_fitting(f, 1, best, error));
    if (best->n == f->n) {
        return FERRY_OK;
    }
    ferry_status status = find_fitting(f, f->n / 16 + 1, &common, error);
    if (status == FERRY_OK && common.n > best->n) {
        fitting other = *best;
        *best = common;
        common = other;
    }
    fitting_cleanup(&common);
    return status;
}

static ferry_status find_by_corners(finding *f, ferry_error *error)
{
    fitting fit = {.n = 0};
    fy_box_tree *tree = NULL;
    ferry_status status = find_best(f, &fit, error);
    FY_THEN(status, fy_box_tree_create(fit.begin, fit.length, fit.n, fit.p.n, &tree, error));
    FY_THEN(status, find_in_tree(f, &fit, tree, error));
    if (fit.n < f->n && f->b == SIZE_MAX) {
        FY_THEN(status, find_by_looks(f, fit.fits, f->n - fit.n, error));
    }
    fy_box_tree_destroy(tree);
    fitting_cleanup(&fit);
    return status;
}

ferry_status fy_strided_find_meeting(const fy_strided *places, size_t n, uint64_t *budget_inout,
                                     size_t *a_out, size_t *b_out, uint64_t *place_out,
                                     ferry_error *error)
{
    finding f = {.places = places, .b = SIZE_MAX, .budget = budget_inout};
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
        if (f.n > 1) {
            status = f.n > FEW ? find_by_corners(&f, error) : find_by_pairs(&f, NULL, error);
        }
        i = end;
    }
    fy_free(stretches);
    *a_out = f.b == SIZE_MAX ? n : f.a;
    *b_out = f.b;
    *place_out = f.place;
    return status;
}
