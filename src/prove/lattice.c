/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "prove/lattice.h"

#include "base/checked.h"
#include "base/sort.h"
#include "prove/boxes.h"

#include <string.h>

/*
 * The digits of an element: how often the first stride goes into its number, how often the second
 * into what is left, and so on, and what is left at last. Digits behind the eighth are not looked
 * at: they only choose which boxes are asked.
 */
typedef struct digits {
    uint64_t strides[FY_PROOF_STEPS]; /* descending; 0 behind the last */
    size_t n;
} digits;

/* Boxes of a cluster with the same strides. */
typedef struct group {
    digits digits;
    const uint32_t *boxes;
    uint32_t n;
    const fy_proof_tree *tree; /* of their digits; NULL: there is one box */
} group;

typedef struct cluster {
    uint64_t first, last; /* elements */
    const group *groups;
    uint32_t n_groups;
} cluster;

struct fy_proof_lattice {
    const fy_proof_held *boxes;
    const cluster *clusters; /* ascending, apart from each other */
    size_t n_clusters;
};

/* A box while they are sorted: by first element, then within a cluster by strides. */
typedef struct sorted {
    uint64_t first, last;
    digits digits;
    uint32_t box;
} sorted;

/* Strides from the largest on; one that goes on where the next one ends is the same row. */
static digits digits_of(const fy_proof_held *box)
{
    fy_proof_step steps[FY_PROOF_STEPS];
    size_t n = 0;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        size_t at = n;
        if (box->steps[i].count > 1) {
            for (n++; at > 0 && steps[at - 1].stride < box->steps[i].stride; at--) {
                steps[at] = steps[at - 1];
            }
            steps[at] = box->steps[i];
        }
    }
    digits d = {.n = 0};
    for (size_t i = 0; i < n; i++) {
        if (i + 1 == n || steps[i].stride != steps[i + 1].stride * steps[i + 1].count) {
            d.strides[d.n++] = steps[i].stride;
        } else {
            steps[i + 1].count *= steps[i].count;
        }
    }
    return d;
}

/* The digits of elements from first to last, as far as they are a box: behind the first digit that
 * differs anything may be. */
static void box_of_range(const digits *d, uint64_t first, uint64_t last, uint64_t *begin,
                         uint64_t *end)
{
    size_t i = 0;
    for (; i < FY_PROOF_DIMS; i++) {
        uint64_t stride = i < d->n ? d->strides[i] : 1;
        begin[i] = first / stride;
        end[i] = last / stride + 1;
        first %= stride;
        last %= stride;
        if (end[i] - begin[i] > 1) {
            break;
        }
    }
    for (i++; i < FY_PROOF_DIMS; i++) {
        begin[i] = 0;
        end[i] = UINT64_MAX;
    }
}

/*
 * The digits of a box's elements by its own strides. Where smaller strides add up to more than a
 * larger one has left, digits carry, and what follows may be anything.
 */
static void box_of_held(const digits *d, const fy_proof_held *box, uint64_t *begin, uint64_t *end)
{
    uint64_t first = box->offset;
    uint64_t rest = fy_proof_held_last(box) - first; /* what its strides from here on add up to */
    for (size_t i = 0; i < FY_PROOF_DIMS; i++) {
        uint64_t stride = i < d->n ? d->strides[i] : 1;
        uint64_t smaller = 0;
        for (size_t k = 0; k < FY_PROOF_STEPS; k++) {
            const fy_proof_step *step = &box->steps[k];
            smaller += step->stride < stride ? (step->count - 1) * step->stride : 0;
        }
        bool is_carried = first % stride + smaller >= stride;
        begin[i] = first / stride;
        end[i] = (first + rest) / stride + 1;
        if (is_carried) {
            for (i++; i < FY_PROOF_DIMS; i++) {
                begin[i] = 0;
                end[i] = UINT64_MAX;
            }
            return;
        }
        first %= stride;
        rest = smaller;
    }
}

static int by_first(const void *a, const void *b)
{
    const sorted *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1)
                                : (x->box > y->box) - (x->box < y->box);
}

static int by_digits(const void *a, const void *b)
{
    const sorted *x = a, *y = b;
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        if (x->digits.strides[i] != y->digits.strides[i]) {
            return x->digits.strides[i] < y->digits.strides[i] ? -1 : 1;
        }
    }
    return (x->box > y->box) - (x->box < y->box);
}

static bool make_group(fy_arena *arena, const fy_proof_held *boxes, const sorted *items, uint32_t n,
                       group *group_out)
{
    uint32_t *numbers = fy_arena_alloc(arena, n, sizeof *numbers);
    fy_proof_box *hulls = n == 1 ? NULL : fy_arena_alloc(arena, n, sizeof *hulls);
    if (numbers == NULL || (n > 1 && hulls == NULL)) {
        return false;
    }
    *group_out = (group){.digits = items[0].digits, .boxes = numbers, .n = n};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t end[FY_PROOF_DIMS];
        numbers[i] = items[i].box;
        if (n > 1) {
            hulls[i] = (fy_proof_box){.n_dims = FY_PROOF_DIMS};
            box_of_held(&items[i].digits, &boxes[items[i].box], hulls[i].at, end);
            for (size_t d = 0; d < FY_PROOF_DIMS; d++) {
                hulls[i].shape[d] = end[d] - hulls[i].at[d];
            }
        }
    }
    group_out->tree = n == 1 ? NULL : fy_proof_tree_make(arena, hulls, n);
    return n == 1 || group_out->tree != NULL;
}

static bool make_cluster(fy_arena *arena, const fy_proof_held *boxes, sorted *items, uint32_t n,
                         cluster *c)
{
    uint32_t n_groups = 0;
    *c = (cluster){.first = items[0].first, .last = items[0].last};
    for (uint32_t i = 1; i < n; i++) {
        c->last = fy_max(c->last, items[i].last);
    }
    fy_sort(items, n, sizeof *items, by_digits);
    for (uint32_t i = 0; i < n; i++) {
        n_groups += i == 0 || memcmp(items[i].digits.strides, items[i - 1].digits.strides,
                                     sizeof items->digits.strides) != 0;
    }
    group *groups = fy_arena_alloc(arena, n_groups, sizeof *groups);
    if (groups == NULL) {
        return false;
    }
    for (uint32_t first = 0, i = 1; i <= n; i++) {
        if (i == n || memcmp(items[i].digits.strides, items[first].digits.strides,
                             sizeof items->digits.strides) != 0) {
            if (!make_group(arena, boxes, items + first, i - first, &groups[c->n_groups++])) {
                return false;
            }
            first = i;
        }
    }
    c->groups = groups;
    return true;
}

static bool make_clusters(fy_arena *arena, fy_proof_lattice *lattice, sorted *items, size_t n)
{
    cluster *clusters = fy_arena_alloc(arena, n, sizeof *clusters);
    if (clusters == NULL) {
        return false;
    }
    lattice->clusters = clusters;
    for (size_t first = 0; first < n;) {
        uint64_t last = items[first].last;
        size_t i = first + 1;
        for (; i < n && items[i].first <= last; i++) {
            last = fy_max(last, items[i].last);
        }
        if (!make_cluster(arena, lattice->boxes, items + first, (uint32_t)(i - first),
                          &clusters[lattice->n_clusters++])) {
            return false;
        }
        first = i;
    }
    return true;
}

const fy_proof_lattice *fy_proof_lattice_make(fy_arena *arena, const fy_proof_held *boxes, size_t n)
{
    fy_proof_lattice *lattice = fy_arena_alloc(arena, 1, sizeof *lattice);
    sorted *items = fy_alloc(n, sizeof *items);
    bool is_made = lattice != NULL && items != NULL;
    if (is_made) {
        *lattice = (fy_proof_lattice){.boxes = boxes};
        for (size_t i = 0; i < n; i++) {
            items[i] = (sorted){.first = boxes[i].offset,
                                .last = fy_proof_held_last(&boxes[i]),
                                .digits = digits_of(&boxes[i]),
                                .box = (uint32_t)i};
        }
        fy_sort(items, n, sizeof *items, by_first);
        is_made = make_clusters(arena, lattice, items, n);
    }
    fy_free(items);
    return is_made ? lattice : NULL;
}

typedef struct asked {
    const fy_proof_lattice *lattice;
    const group *group;
    uint64_t element;
    size_t box;
    uint64_t *turns;
} asked;

static bool ask_box(void *context, size_t number)
{
    asked *a = context;
    a->box = a->group->boxes[number];
    return !fy_proof_held_find(&a->lattice->boxes[a->box], a->element, a->turns);
}

static bool visit_group(const group *g, const uint64_t *begin, const uint64_t *end,
                        fy_proof_visit_box_fn visit, void *context, uint64_t *looks)
{
    if (g->tree != NULL) {
        return fy_proof_tree_visit(g->tree, begin, end, visit, context, looks);
    }
    ++*looks;
    return visit(context, 0);
}

bool fy_proof_lattice_find(const fy_proof_lattice *lattice, uint64_t element, size_t *box_out,
                           uint64_t *turns_out, uint64_t *looks)
{
    if (lattice->n_clusters == 0 || element < lattice->clusters[0].first) {
        return false;
    }
    FY_BISECT_LAST(size_t, at, 0, lattice->n_clusters, middle,
                   lattice->clusters[middle].first <= element);
    const cluster *c = &lattice->clusters[at];
    asked a = {.lattice = lattice, .element = element, .turns = turns_out};
    for (uint32_t i = 0; element <= c->last && i < c->n_groups; i++) {
        uint64_t begin[FY_PROOF_DIMS], end[FY_PROOF_DIMS];
        a.group = &c->groups[i];
        box_of_range(&a.group->digits, element, element, begin, end);
        if (!visit_group(a.group, begin, end, ask_box, &a, looks)) {
            *box_out = a.box;
            return true;
        }
    }
    return false;
}

/* So many pairs are held against each other; then nobody knows. */
enum { MOST_PAIRS = 1 << 25 };

typedef struct rival {
    const fy_proof_lattice *lattice;
    uint64_t n_pairs;
    const group *group;
    size_t box;
    bool is_same_group;
    fy_proof_clash clash;
} rival;

/* False ends the visit: the two clash. */
static bool try_rival(void *context, size_t number)
{
    rival *r = context;
    size_t other = r->group->boxes[number];
    if (r->is_same_group && other <= r->box) {
        return true; /* each pair once */
    }
    if (++r->n_pairs > MOST_PAIRS) {
        r->clash = (fy_proof_clash){.is_unknown = true, .boxes = {r->box, other}};
        return false;
    }
    fy_proof_clash clash =
        fy_proof_held_meet(&r->lattice->boxes[r->box], &r->lattice->boxes[other]);
    if (clash.is_found || clash.is_unknown) {
        r->clash = clash;
        r->clash.boxes[0] = r->box;
        r->clash.boxes[1] = other;
    }
    return !clash.is_found;
}

/* The box against those of its group behind it, and of the groups behind that. */
static void look_for_rivals(rival *r, const cluster *c, uint32_t own, uint64_t *looks)
{
    const fy_proof_held *box = &r->lattice->boxes[r->box];
    for (uint32_t i = own; i < c->n_groups && !r->clash.is_found && r->n_pairs <= MOST_PAIRS; i++) {
        uint64_t begin[FY_PROOF_DIMS], end[FY_PROOF_DIMS];
        r->group = &c->groups[i];
        r->is_same_group = i == own;
        if (r->is_same_group) {
            box_of_held(&r->group->digits, box, begin, end);
        } else {
            box_of_range(&r->group->digits, box->offset, fy_proof_held_last(box), begin, end);
        }
        visit_group(r->group, begin, end, try_rival, r, looks);
    }
}

fy_proof_clash fy_proof_lattice_clash(const fy_proof_lattice *lattice, uint64_t *looks)
{
    rival r = {.lattice = lattice};
    for (size_t k = 0; k < lattice->n_clusters; k++) {
        const cluster *c = &lattice->clusters[k];
        for (uint32_t g = 0; g < c->n_groups; g++) {
            for (uint32_t i = 0; i < c->groups[g].n && !r.clash.is_found && r.n_pairs <= MOST_PAIRS;
                 i++) {
                r.box = c->groups[g].boxes[i];
                fy_proof_clash itself = fy_proof_held_meet(&lattice->boxes[r.box], NULL);
                if (itself.is_found || itself.is_unknown) {
                    r.clash = itself;
                    r.clash.boxes[0] = r.clash.boxes[1] = r.box;
                }
                if (!itself.is_found) {
                    look_for_rivals(&r, c, g, looks);
                }
            }
        }
    }
    return r.clash;
}
