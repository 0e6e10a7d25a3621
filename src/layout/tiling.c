/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Whether boxes tile a shape, and if not, where. */
#include "layout/join.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "layout/hulls.h"

#include <string.h>

typedef struct other_box {
    size_t self, found; /* SIZE_MAX: none */
} other_box;

static bool find_other(void *context, size_t box)
{
    other_box *o = context;
    if (box != o->self && box < o->found) {
        o->found = box;
    }
    return true;
}

static fy_box intersect(const fy_box *a, const fy_box *b, uint32_t n_dims)
{
    fy_box both = {{0}, {0}};
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t end = fy_min(a->begin[d] + a->length[d], b->begin[d] + b->length[d]);
        both.begin[d] = fy_max(a->begin[d], b->begin[d]);
        both.length[d] = end - both.begin[d];
    }
    return both;
}

/* The first box that shares elements with another: it ends the search, so few are visited twice. */
static bool find_overlap(const fy_hulls *hulls, const fy_boxes *boxes, uint32_t n_dims,
                         fy_tiling *tiling)
{
    for (size_t i = 0; i < boxes->n; i++) {
        other_box o = {.self = i, .found = SIZE_MAX};
        fy_hulls_visit(hulls, &boxes->items[i], find_other, &o);
        if (o.found != SIZE_MAX) {
            tiling->fault = FY_TILING_OVERLAP;
            tiling->first = i;
            tiling->second = o.found;
            tiling->where = intersect(&boxes->items[i], &boxes->items[o.found], n_dims);
            return true;
        }
    }
    return false;
}

typedef struct first_box {
    size_t found; /* SIZE_MAX: none */
} first_box;

static bool take_first(void *context, size_t box)
{
    ((first_box *)context)->found = box;
    return false;
}

/* Cuts an area along a face of a box that reaches into it; false: the box has all of it. */
static bool cut_area(fy_box *area, const fy_box *box, uint32_t n_dims, fy_box *rest)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t end = area->begin[d] + area->length[d];
        uint64_t cut =
            box->begin[d] > area->begin[d] ? box->begin[d] : box->begin[d] + box->length[d];
        if (cut > area->begin[d] && cut < end) {
            *rest = *area;
            rest->begin[d] = cut;
            rest->length[d] = end - cut;
            area->length[d] = cut - area->begin[d];
            return true;
        }
    }
    return false;
}

/*
 * An area that no box reaches into. What one reaches into is cut along its faces, and the half
 * without it, if there is one, is looked at by itself; every cut is a face of a box, and boxes that
 * do not overlap are cut by few others.
 */
static ferry_status find_gap(const fy_hulls *hulls, const fy_boxes *boxes, const fy_box *whole,
                             uint32_t n_dims, fy_box *gap_out, ferry_error *error)
{
    fy_boxes stack = {0};
    fy_box area = *whole, rest;
    ferry_status status = FERRY_OK;
    while (status == FERRY_OK) {
        first_box met = {.found = SIZE_MAX};
        fy_hulls_visit(hulls, &area, take_first, &met);
        if (met.found == SIZE_MAX) {
            *gap_out = area;
            break;
        }
        if (cut_area(&area, &boxes->items[met.found], n_dims, &rest)) {
            status = FY_GROW(stack.items, stack.capacity, stack.n + 1, "boxes of a tensor", error);
            if (status == FERRY_OK) {
                stack.items[stack.n++] = rest;
            }
        } else if (stack.n > 0) {
            area = stack.items[--stack.n];
        } else {
            *gap_out = *whole; /* not reached: elements are missing */
            break;
        }
    }
    fy_free(stack.items);
    return status;
}

/* Copies what is not empty, with the numbers that they had; returns its elements. */
static uint64_t keep_filled(const fy_box *boxes, size_t n, uint32_t n_dims, fy_boxes *filled,
                            size_t *numbers)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t volume = fy_box_volume(boxes[i].length, n_dims);
        if (volume > 0) {
            numbers[filled->n] = i;
            filled->items[filled->n++] = boxes[i];
            sum += volume; /* they are looked at only where no two overlap */
        }
    }
    return sum;
}

static ferry_status check_filled(const fy_boxes *filled, uint64_t sum, const fy_box *whole,
                                 uint32_t n_dims, fy_tiling *tiling, ferry_error *error)
{
    uint64_t wanted = fy_box_volume(whole->length, n_dims);
    if (filled->n == 0) {
        tiling->fault = wanted == 0 ? FY_TILING_NONE : FY_TILING_GAP;
        tiling->where = *whole;
        return FERRY_OK;
    }
    fy_hulls *hulls = fy_hulls_create(filled->items, filled->n, n_dims);
    FY_TRY(fy_check_memory(hulls != NULL, "boxes of a tensor", error));
    ferry_status status = FERRY_OK;
    if (!find_overlap(hulls, filled, n_dims, tiling) && sum != wanted) {
        tiling->fault = FY_TILING_GAP;
        status = find_gap(hulls, filled, whole, n_dims, &tiling->where, error);
    }
    fy_hulls_destroy(hulls);
    return status;
}

ferry_status fy_boxes_check_tiling(const fy_box *boxes, size_t n, const uint64_t *shape,
                                   uint32_t n_dims, fy_tiling *tiling_out, ferry_error *error)
{
    fy_tiling tiling = {.fault = FY_TILING_NONE};
    fy_box whole = {{0}, {0}};
    fy_boxes filled = {.items = fy_alloc(n, sizeof *boxes)};
    size_t *numbers = fy_alloc(n, sizeof *numbers);
    ferry_status status =
        fy_check_memory(filled.items != NULL && numbers != NULL, "boxes of a tensor", error);
    if (status == FERRY_OK) {
        uint64_t sum = keep_filled(boxes, n, n_dims, &filled, numbers);
        memcpy(whole.length, shape, n_dims * sizeof *whole.length);
        status = check_filled(&filled, sum, &whole, n_dims, &tiling, error);
    }
    if (status == FERRY_OK && tiling.fault == FY_TILING_OVERLAP) {
        tiling.first = numbers[tiling.first];
        tiling.second = numbers[tiling.second];
    }
    if (status == FERRY_OK) {
        *tiling_out = tiling;
    }
    fy_free(filled.items);
    fy_free(numbers);
    return status;
}
