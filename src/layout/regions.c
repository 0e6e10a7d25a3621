/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A region with boxes that have only a part of it is cut in two where that costs least: both sides
 * are to have few boxes, and few boxes are to be on both. Boxes that have all of a region are put
 * aside and go to what becomes of it.
 */
#include "layout/regions.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"

#include <stdlib.h>
#include <string.h>

/* A region that is still to be cut. Its lists are freed with it. */
typedef struct rough {
    fy_box box;
    uint32_t *partly; /* boxes that have a part of it */
    size_t n_partly;
    uint32_t *wholly;
    size_t n_wholly;
} rough;

typedef struct cutting {
    const uint64_t *begin;
    const uint64_t *length;
    uint32_t n_dims;
    fy_region_set *set;
    rough *stack;
    size_t n_stack, stack_capacity;
    uint64_t *begins; /* scratch: of a region's boxes along a dimension, sorted; and their ends */
    uint64_t *ends;
} cutting;

static void rough_cleanup(rough *r)
{
    fy_free(r->partly);
    fy_free(r->wholly);
    r->partly = NULL;
    r->wholly = NULL;
}

void fy_regions_cleanup(fy_region_set *set)
{
    fy_free(set->regions);
    fy_free(set->lists);
    *set = (fy_region_set){0};
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

typedef struct plane {
    uint64_t cost;
    uint64_t at;
    uint32_t dim;
} plane;

/* The ends that the region's boxes have along a dimension, clipped to it. */
static void list_ends(cutting *c, const rough *r, uint32_t dim)
{
    uint64_t low = r->box.begin[dim], high = low + r->box.length[dim];
    for (size_t i = 0; i < r->n_partly; i++) {
        size_t at = (size_t)r->partly[i] * c->n_dims + dim;
        c->begins[i] = fy_max(low, c->begin[at]);
        c->ends[i] = fy_min(high, c->begin[at] + c->length[at]);
    }
    fy_sort(c->begins, r->n_partly, sizeof *c->begins, compare_u64);
    fy_sort(c->ends, r->n_partly, sizeof *c->ends, compare_u64);
}

/* n_before: boxes that begin before a place; n_behind: that end behind it. */
static void try_plane(plane *best, const rough *r, uint32_t dim, uint64_t at, size_t n_before,
                      size_t n_behind)
{
    uint64_t low = r->box.begin[dim], high = low + r->box.length[dim];
    if (at <= low || at >= high) {
        return;
    }
    uint64_t cost = fy_max(n_before, n_behind) + 2 * (n_before + n_behind - r->n_partly);
    if (cost < best->cost) {
        *best = (plane){.cost = cost, .at = at, .dim = dim};
    }
}

static void try_dimension(cutting *c, const rough *r, uint32_t dim, plane *best)
{
    size_t n = r->n_partly, before = 0, passed = 0;
    list_ends(c, r, dim);
    while (before < n || passed < n) {
        uint64_t at = before < n && c->begins[before] <= c->ends[passed] ? c->begins[before]
                                                                         : c->ends[passed];
        while (passed < n && c->ends[passed] <= at) {
            passed++;
        }
        try_plane(best, r, dim, at, before, n - passed);
        while (before < n && c->begins[before] <= at) {
            before++;
        }
    }
}

static bool has_all(const cutting *c, uint32_t box, const fy_box *region)
{
    const uint64_t *begin = c->begin + (size_t)box * c->n_dims;
    const uint64_t *length = c->length + (size_t)box * c->n_dims;
    for (uint32_t d = 0; d < c->n_dims; d++) {
        if (begin[d] > region->begin[d] ||
            begin[d] + length[d] < region->begin[d] + region->length[d]) {
            return false;
        }
    }
    return true;
}

static bool has_some(const cutting *c, uint32_t box, const fy_box *region)
{
    const uint64_t *begin = c->begin + (size_t)box * c->n_dims;
    const uint64_t *length = c->length + (size_t)box * c->n_dims;
    for (uint32_t d = 0; d < c->n_dims; d++) {
        if (begin[d] >= region->begin[d] + region->length[d] ||
            begin[d] + length[d] <= region->begin[d] || length[d] == 0) {
            return false;
        }
    }
    return true;
}

/* Pushes the part `box` of a region, with those of its boxes that have something of it. */
static ferry_status push(cutting *c, const rough *from, const fy_box *box, ferry_error *error)
{
    rough r = {.box = *box};
    size_t n = from->n_partly + from->n_wholly;
    r.partly = fy_alloc(from->n_partly, sizeof *r.partly);
    r.wholly = fy_alloc(n, sizeof *r.wholly);
    if (r.partly == NULL || r.wholly == NULL ||
        !FY_RESERVE(c->stack, c->stack_capacity, c->n_stack + 1)) {
        rough_cleanup(&r);
        return fy_fail_no_memory(error, "the regions of boxes");
    }
    for (size_t i = 0; i < from->n_wholly; i++) {
        r.wholly[r.n_wholly++] = from->wholly[i];
    }
    for (size_t i = 0; i < from->n_partly; i++) {
        uint32_t number = from->partly[i];
        if (has_all(c, number, box)) {
            r.wholly[r.n_wholly++] = number;
        } else if (has_some(c, number, box)) {
            r.partly[r.n_partly++] = number;
        }
    }
    c->stack[c->n_stack++] = r;
    return FERRY_OK;
}

static ferry_status keep_region(cutting *c, const rough *r, ferry_error *error)
{
    fy_region_set *set = c->set;
    if (r->n_wholly == 0) {
        return FERRY_OK;
    }
    if (!FY_RESERVE(set->regions, set->region_capacity, set->n_regions + 1) ||
        !FY_RESERVE(set->lists, set->list_capacity, set->n_lists + r->n_wholly)) {
        return fy_fail_no_memory(error, "the regions of boxes");
    }
    fy_sort(r->wholly, r->n_wholly, sizeof *r->wholly, fy_compare_u32);
    memcpy(set->lists + set->n_lists, r->wholly, r->n_wholly * sizeof *r->wholly);
    set->regions[set->n_regions++] =
        (fy_region_of){.box = r->box, .first = set->n_lists, .n = (uint32_t)r->n_wholly};
    set->n_lists += r->n_wholly;
    return FERRY_OK;
}

static ferry_status cut_next(cutting *c, ferry_error *error)
{
    rough r = c->stack[--c->n_stack];
    ferry_status status = FERRY_OK;
    if (r.n_partly == 0) {
        status = keep_region(c, &r, error);
        rough_cleanup(&r);
        return status;
    }
    plane best = {.cost = UINT64_MAX};
    for (uint32_t d = 0; d < c->n_dims; d++) {
        try_dimension(c, &r, d, &best);
    }
    fy_box low = r.box, high = r.box;
    low.length[best.dim] = best.at - low.begin[best.dim];
    high.begin[best.dim] = best.at;
    high.length[best.dim] = r.box.length[best.dim] - low.length[best.dim];
    status = push(c, &r, &high, error);
    FY_THEN(status, push(c, &r, &low, error));
    rough_cleanup(&r);
    return status;
}

/* Everything that has elements, and the box around it. */
static ferry_status push_all(cutting *c, size_t n, ferry_error *error)
{
    rough all = {.box = {{0}, {0}}};
    fy_box around = {{0}, {0}};
    all.partly = fy_alloc(n, sizeof *all.partly);
    FY_TRY(fy_check_memory(all.partly != NULL, "the regions of boxes", error));
    for (size_t i = 0; i < n; i++) {
        const uint64_t *begin = c->begin + i * c->n_dims, *length = c->length + i * c->n_dims;
        if (fy_box_volume(length, c->n_dims) == 0) {
            continue;
        }
        for (uint32_t d = 0; d < c->n_dims; d++) {
            uint64_t end = fy_max(begin[d] + length[d], around.begin[d] + around.length[d]);
            if (all.n_partly == 0) {
                around.begin[d] = begin[d];
                end = begin[d] + length[d];
            }
            around.begin[d] = fy_min(around.begin[d], begin[d]);
            around.length[d] = end - around.begin[d];
        }
        all.partly[all.n_partly++] = (uint32_t)i;
    }
    ferry_status status = all.n_partly == 0 ? FERRY_OK : push(c, &all, &around, error);
    rough_cleanup(&all);
    return status;
}

/* For qsort, which has no context: the regions at work carry what is compared. */
typedef struct joinable {
    const uint32_t *list;
    uint32_t n_dims;
    uint32_t along;
    fy_region_of region;
} joinable;

/* By boxes that have them and all but the begin along a dimension, then by that. */
static int compare_joinable(const void *a, const void *b)
{
    const joinable *x = a, *y = b;
    if (x->region.n != y->region.n) {
        return x->region.n < y->region.n ? -1 : 1;
    }
    int lists = memcmp(x->list, y->list, x->region.n * sizeof *x->list);
    if (lists != 0) {
        return lists;
    }
    for (uint32_t d = 0; d < x->n_dims; d++) {
        if (d == x->along) {
            continue;
        }
        if (x->region.box.begin[d] != y->region.box.begin[d]) {
            return x->region.box.begin[d] < y->region.box.begin[d] ? -1 : 1;
        }
        if (x->region.box.length[d] != y->region.box.length[d]) {
            return x->region.box.length[d] < y->region.box.length[d] ? -1 : 1;
        }
    }
    uint32_t d = x->along;
    return (x->region.box.begin[d] > y->region.box.begin[d]) -
           (x->region.box.begin[d] < y->region.box.begin[d]);
}

static bool are_joined(joinable *last, const joinable *next)
{
    uint32_t d = last->along;
    joinable moved = *next;
    moved.region.box.begin[d] = last->region.box.begin[d];
    if (compare_joinable(last, &moved) != 0 ||
        last->region.box.begin[d] + last->region.box.length[d] != next->region.box.begin[d]) {
        return false;
    }
    last->region.box.length[d] += next->region.box.length[d];
    return true;
}

static size_t join_along(joinable *items, size_t n, uint32_t along)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        items[i].along = along;
    }
    fy_sort(items, n, sizeof *items, compare_joinable);
    for (size_t i = 1; i < n; i++) {
        if (!are_joined(&items[kept], &items[i])) {
            items[++kept] = items[i];
        }
    }
    return kept + 1;
}

static int compare_begins(const void *a, const void *b)
{
    const joinable *x = a, *y = b;
    for (uint32_t d = 0; d < x->n_dims; d++) {
        if (x->region.box.begin[d] != y->region.box.begin[d]) {
            return x->region.box.begin[d] < y->region.box.begin[d] ? -1 : 1;
        }
    }
    return 0;
}

/* Cuts that were made for boxes elsewhere part regions that are alike. */
static ferry_status join_regions(fy_region_set *set, ferry_error *error)
{
    size_t n = set->n_regions;
    joinable *items = fy_alloc(n, sizeof *items);
    FY_TRY(fy_check_memory(items != NULL, "the regions of boxes", error));
    for (size_t i = 0; i < n; i++) {
        items[i] = (joinable){.list = set->lists + set->regions[i].first,
                              .n_dims = set->n_dims,
                              .region = set->regions[i]};
    }
    uint32_t idle = 0;
    for (uint32_t turn = 0; n > 1 && idle < set->n_dims; turn++) {
        size_t left = join_along(items, n, set->n_dims - 1 - turn % set->n_dims);
        idle = left < n ? 1 : idle + 1;
        n = left;
    }
    fy_sort(items, n, sizeof *items, compare_begins);
    for (size_t i = 0; i < n; i++) {
        set->regions[i] = items[i].region;
    }
    set->n_regions = n;
    fy_free(items);
    return FERRY_OK;
}

ferry_status fy_regions_create(const uint64_t *begin, const uint64_t *length, size_t n,
                               uint32_t n_dims, fy_region_set *set_out, ferry_error *error)
{
    cutting c = {.begin = begin, .length = length, .n_dims = n_dims, .set = set_out};
    *set_out = (fy_region_set){.n_dims = n_dims};
    c.begins = fy_alloc(n, sizeof *c.begins);
    c.ends = fy_alloc(n, sizeof *c.ends);
    ferry_status status =
        fy_check_memory(c.begins != NULL && c.ends != NULL, "the regions of boxes", error);
    FY_THEN(status, push_all(&c, n, error));
    while (c.n_stack > 0 && status == FERRY_OK) {
        status = cut_next(&c, error);
    }
    FY_THEN(status, join_regions(set_out, error));
    for (size_t i = 0; i < c.n_stack; i++) {
        rough_cleanup(&c.stack[i]);
    }
    fy_free(c.stack);
    fy_free(c.begins);
    fy_free(c.ends);
    if (status != FERRY_OK) {
        fy_regions_cleanup(set_out);
    }
    return status;
}
