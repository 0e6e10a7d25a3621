/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/nest.h"

#include "base/checked.h"

#include <string.h>

/* Keeps the loops by descending strides; one of a single turn is none. */
static void add_loop(fy_nest *nest, uint64_t count, uint64_t stride, const uint64_t *step)
{
    uint32_t at = nest->n_loops;
    if (count == 1) {
        return;
    }
    for (; at > 0 && nest->stride[at - 1] < stride; at--) {
        nest->count[at] = nest->count[at - 1];
        nest->stride[at] = nest->stride[at - 1];
        memcpy(nest->step[at], nest->step[at - 1], sizeof nest->step[at]);
    }
    nest->count[at] = count;
    nest->stride[at] = stride;
    memset(nest->step[at], 0, sizeof nest->step[at]);
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        nest->step[at][d] = step[d];
    }
    nest->n_loops++;
}

bool fy_nest_of_box(const fy_said_box *box, uint32_t element_bits, fy_nest *nest)
{
    uint32_t n = box->n_dims, unit = fy_unit_elements(element_bits);
    uint64_t step[FERRY_MAX_DIMS];
    bool any = true;
    *nest = (fy_nest){.n_dims = n, .offset = box->offset / unit};
    for (uint32_t d = 0; d < n; d++) {
        nest->begin[d] = d + 1 < n ? box->numbers[d] : box->numbers[d] / unit;
    }
    for (uint32_t i = 0; i < box->n_repeats; i++) {
        const uint64_t *repeat = fy_said_box_repeat(box, i);
        for (uint32_t d = 0; d < n; d++) {
            step[d] = d + 1 < n ? repeat[2 + d] : repeat[2 + d] / unit;
        }
        any = any && repeat[0] > 0;
        add_loop(nest, repeat[0], repeat[1] / unit, step);
    }
    for (uint32_t d = 0; d < n; d++) {
        bool is_last = d + 1 == n; /* its elements are side by side where they are in bytes */
        uint64_t length = is_last ? fy_said_box_shape(box)[d] / unit : fy_said_box_shape(box)[d];
        uint64_t stride = fy_said_box_strides(box)[d];
        memset(step, 0, sizeof step);
        step[d] = 1;
        any = any && length > 0;
        add_loop(nest, length, is_last && unit > 1 ? 1 : stride / unit, step);
    }
    return any;
}

bool fy_nest_of_fill(const fy_fill *fill, uint32_t element_bits, fy_nest *nest)
{
    uint32_t unit = fy_unit_elements(element_bits);
    bool any = true;
    *nest = (fy_nest){.offset = fill->offset / unit};
    for (uint32_t d = 0; d < fill->n_dims; d++) {
        uint64_t length = fill->numbers[d], stride = fill->numbers[fill->n_dims + d];
        any = any && length > 0;
        /* Of less than a byte, elements are in bytes along the dimension of stride 1. */
        bool is_inner = unit > 1 && stride == 1 && length > 1;
        add_loop(nest, is_inner ? length / unit : length, is_inner ? 1 : stride / unit, NULL);
    }
    return any;
}

uint64_t fy_nest_last(const fy_nest *nest)
{
    uint64_t last = nest->offset;
    for (uint32_t i = 0; i < nest->n_loops; i++) {
        last += (nest->count[i] - 1) * nest->stride[i];
    }
    return last;
}

uint64_t fy_nest_volume(const fy_nest *nest)
{
    return fy_box_volume(nest->count, nest->n_loops);
}

void fy_nest_hull(const fy_nest *nest, fy_box *hull)
{
    *hull = (fy_box){{0}, {0}};
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        hull->begin[d] = nest->begin[d];
        hull->length[d] = 1;
        for (uint32_t i = 0; i < nest->n_loops; i++) {
            hull->length[d] += (nest->count[i] - 1) * nest->step[i][d];
        }
    }
}

void fy_nest_take(fy_nest *nest, uint32_t loop, uint64_t first, uint64_t n)
{
    nest->offset += first * nest->stride[loop];
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        nest->begin[d] += first * nest->step[loop][d];
    }
    nest->count[loop] = n;
    if (n > 1) {
        return;
    }
    uint32_t behind = nest->n_loops - loop - 1;
    memmove(nest->count + loop, nest->count + loop + 1, behind * sizeof *nest->count);
    memmove(nest->stride + loop, nest->stride + loop + 1, behind * sizeof *nest->stride);
    memmove(nest->step + loop, nest->step + loop + 1, behind * sizeof *nest->step);
    nest->n_loops--;
}

/* How far a turn of a loop goes in a tensor's row-major order. */
static uint64_t reach(const fy_nest *nest, uint32_t loop, const uint64_t *shape)
{
    uint64_t at = 0;
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        at = at * shape[d] + nest->step[loop][d];
    }
    return at;
}

bool fy_nest_is_in_order(const fy_nest *nest, const uint64_t *shape)
{
    for (uint32_t i = 1; i < nest->n_loops; i++) {
        if (reach(nest, i, shape) > reach(nest, i - 1, shape)) {
            return false;
        }
    }
    return true;
}

bool fy_nest_is_dense(const fy_nest *nest, const fy_box *hull)
{
    uint64_t wanted = 1;
    uint32_t left = nest->n_loops;
    for (uint32_t d = nest->n_dims; d-- > 0;) {
        if (hull->length[d] == 1) {
            continue;
        }
        /* By their strides the loops come as the dimensions do. */
        if (left == 0 || nest->stride[left - 1] != wanted ||
            nest->count[left - 1] != hull->length[d] || nest->step[left - 1][d] != 1) {
            return false;
        }
        left--;
        wanted *= hull->length[d];
    }
    return left == 0;
}

/* The turns of the first loop that have something in [begin, end), and those that have nothing
 * beside it. Each turn reaches so far behind where it begins. */
typedef struct turns {
    uint64_t first, end;
    uint64_t first_whole, end_whole;
} turns;

static turns turns_of(const fy_nest *nest, uint64_t begin, uint64_t end)
{
    uint64_t stride = nest->stride[0], count = nest->count[0], at = nest->offset;
    uint64_t within = fy_nest_last(nest) - at - (count - 1) * stride;
    turns t = {.end = count, .end_whole = 0};
    if (begin > at + within) {
        t.first = fy_ceil_div(begin - at - within, stride);
    }
    t.first_whole = begin > at ? fy_ceil_div(begin - at, stride) : 0;
    t.end = end > at ? fy_min(count, fy_ceil_div(end - at, stride)) : 0;
    if (end > at + within) {
        t.end_whole = fy_min(count, fy_ceil_div(end - at - within, stride));
    }
    return t;
}

ferry_status fy_nest_clip(const fy_nest *nest, uint64_t begin, uint64_t end, fy_nest_fn visit,
                          void *context, ferry_error *error)
{
    fy_nest part = *nest;
    if (nest->offset >= end || fy_nest_last(nest) < begin) {
        return FERRY_OK;
    }
    if (nest->offset >= begin && fy_nest_last(nest) < end) {
        return visit(context, &part, error);
    }
    turns t = turns_of(nest, begin, end);
    for (uint64_t i = t.first; i < t.end; i++) {
        bool is_whole = i >= t.first_whole && i < t.end_whole;
        uint64_t n = is_whole ? t.end_whole - i : 1;
        part = *nest;
        fy_nest_take(&part, 0, i, n);
        FY_TRY(is_whole ? visit(context, &part, error)
                        : fy_nest_clip(&part, begin, end, visit, context, error));
        i += n - 1;
    }
    return FERRY_OK;
}
