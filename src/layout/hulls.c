/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/hulls.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

/* Levels of hulls: 8^11 boxes are more than memory holds. */
enum { MOST_LEVELS = 12 };

typedef struct ranked_box {
    uint64_t key; /* where it begins on the dimension at work */
    uint32_t box;
} ranked_box;

struct fy_hulls {
    const fy_box *boxes;
    uint32_t n_dims;
    size_t n;
    ranked_box *order;
    uint32_t n_levels;
    size_t n_at[MOST_LEVELS];   /* hulls of a level; the last has one */
    fy_box *level[MOST_LEVELS]; /* all in one array, which level[0] begins */
};

static int compare_ranked(const void *a, const void *b)
{
    const ranked_box *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x->box > y->box) - (x->box < y->box);
}

/* The dimension on which the boxes spread over most of their own lengths. */
static uint32_t widest_dim(const fy_hulls *hulls, const ranked_box *order, size_t n)
{
    uint32_t widest = 0;
    double most = -1;
    for (uint32_t d = 0; d < hulls->n_dims; d++) {
        uint64_t first = UINT64_MAX, last = 0;
        double lengths = 1;
        for (size_t i = 0; i < n; i++) {
            const fy_box *box = &hulls->boxes[order[i].box];
            first = fy_min(first, box->begin[d]);
            last = fy_max(last, box->begin[d]);
            lengths += (double)box->length[d];
        }
        double spread = (double)(last - first) / lengths;
        if (spread > most) {
            most = spread;
            widest = d;
        }
    }
    return widest;
}

/*
 * Neighbours near each other: halves of a dimension's order, each ordered by itself. The first half
 * fills whole hulls, of whole hulls. As deep as the logarithm of n.
 */
static void order_boxes(fy_hulls *hulls, ranked_box *order, size_t n)
{
    if (n <= FY_HULL_FAN) {
        return;
    }
    uint32_t d = widest_dim(hulls, order, n);
    for (size_t i = 0; i < n; i++) {
        order[i].key = hulls->boxes[order[i].box].begin[d];
    }
    fy_sort(order, n, sizeof *order, compare_ranked);
    size_t half = (n / 2 + FY_HULL_FAN - 1) / FY_HULL_FAN * FY_HULL_FAN;
    order_boxes(hulls, order, half);
    order_boxes(hulls, order + half, n - half);
}

static void widen(fy_box *hull, const fy_box *by, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t end = fy_max(hull->begin[d] + hull->length[d], by->begin[d] + by->length[d]);
        hull->begin[d] = fy_min(hull->begin[d], by->begin[d]);
        hull->length[d] = end - hull->begin[d];
    }
}

static const fy_box *below(const fy_hulls *hulls, uint32_t level, size_t i)
{
    return level == 0 ? &hulls->boxes[hulls->order[i].box] : &hulls->level[level - 1][i];
}

static void fill_levels(fy_hulls *hulls)
{
    size_t n = hulls->n;
    for (uint32_t level = 0; level < hulls->n_levels; level++) {
        for (size_t i = 0; i < n; i++) {
            fy_box *hull = &hulls->level[level][i / FY_HULL_FAN];
            if (i % FY_HULL_FAN == 0) {
                *hull = *below(hulls, level, i);
            } else {
                widen(hull, below(hulls, level, i), hulls->n_dims);
            }
        }
        n = hulls->n_at[level];
    }
}

fy_hulls *fy_hulls_create(const fy_box *boxes, size_t n, uint32_t n_dims)
{
    fy_hulls *hulls = fy_alloc_zeroed(1, sizeof *hulls);
    size_t n_hulls = 0;
    if (hulls == NULL) {
        return NULL;
    }
    *hulls = (fy_hulls){.boxes = boxes, .n_dims = n_dims, .n = n};
    for (size_t above = n; above > 1 || hulls->n_levels == 0;) {
        above = (above + FY_HULL_FAN - 1) / FY_HULL_FAN;
        hulls->n_at[hulls->n_levels++] = above;
        n_hulls += above;
    }
    hulls->order = fy_alloc(n, sizeof *hulls->order);
    hulls->level[0] = fy_alloc(n_hulls, sizeof(fy_box));
    if (hulls->order == NULL || hulls->level[0] == NULL) {
        fy_hulls_destroy(hulls);
        return NULL;
    }
    for (uint32_t i = 1; i < hulls->n_levels; i++) {
        hulls->level[i] = hulls->level[i - 1] + hulls->n_at[i - 1];
    }
    for (size_t i = 0; i < n; i++) {
        hulls->order[i] = (ranked_box){.box = (uint32_t)i};
    }
    order_boxes(hulls, hulls->order, n);
    fill_levels(hulls);
    return hulls;
}

void fy_hulls_destroy(fy_hulls *hulls)
{
    if (hulls != NULL) {
        fy_free(hulls->order);
        fy_free(hulls->level[0]);
        fy_free(hulls);
    }
}

/* Climbs down from the hull that is around all: a level of recursion for each of hulls. */
static bool visit_below(const fy_hulls *hulls, uint32_t level, size_t number, const fy_box *area,
                        fy_hulls_visit_fn visit, void *context)
{
    size_t n = level == 0 ? hulls->n : hulls->n_at[level - 1];
    size_t end = fy_min((number + 1) * FY_HULL_FAN, n);
    for (size_t i = number * FY_HULL_FAN; i < end; i++) {
        if (!fy_box_meets(below(hulls, level, i), area, hulls->n_dims)) {
            continue;
        }
        if (level == 0 ? !visit(context, hulls->order[i].box)
                       : !visit_below(hulls, level - 1, i, area, visit, context)) {
            return false;
        }
    }
    return true;
}

bool fy_hulls_visit(const fy_hulls *hulls, const fy_box *area, fy_hulls_visit_fn visit,
                    void *context)
{
    return visit_below(hulls, hulls->n_levels - 1, 0, area, visit, context);
}
