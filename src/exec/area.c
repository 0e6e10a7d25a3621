/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/area.h"

#include "base/checked.h"
#include "exec/walk.h"
#include "layout/strided.h"

#include <string.h>

#define MOST_DIMS ((uint32_t)FERRY_MAX_DIMS)

static ferry_status fail_dim(uint32_t dim, uint64_t length, uint64_t stride, uint64_t extent,
                             ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "dim %u of an area: %llu elements at a stride of %llu bytes share bytes, for "
                   "what lies within one of them spans %llu",
                   dim, (unsigned long long)length, (unsigned long long)stride,
                   (unsigned long long)extent);
}

static ferry_status fail_overflow(ferry_error *error)
{
    return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                   "an area ends beyond 2^64 bytes; are lengths and strides right?");
}

/* Dimensions that have more than one element, by stride: the nesting of memory, not of indices. */
static uint32_t sort_by_stride(uint32_t n_dims, const uint64_t *length, const uint64_t *stride,
                               uint32_t order[MOST_DIMS])
{
    uint32_t n = 0;
    for (uint32_t d = n_dims; d-- > 0;) {
        if (length[d] == 1) {
            continue;
        }
        uint32_t i = n++;
        for (; i > 0 && stride[order[i - 1]] > stride[d]; i--) {
            order[i] = order[i - 1];
        }
        order[i] = d;
    }
    return n;
}

/* Of elements whose strides do not tell: whether a byte of one is another one's, too. */
static ferry_status check_apart(uint64_t element_bytes, uint32_t n_dims, const uint64_t *length,
                                const uint64_t *stride, bool *apart_out, ferry_error *error)
{
    fy_strided places = {.n_loops = n_dims + 1};
    uint64_t place, budget = fy_strided_budget(1);
    bool meets = true;
    memcpy(places.count, length, n_dims * sizeof *length);
    memcpy(places.stride, stride, n_dims * sizeof *stride);
    places.count[n_dims] = element_bytes;
    places.stride[n_dims] = 1;
    fy_strided_simplify(&places);
    FY_TRY(fy_strided_meets_itself(&places, &budget, &meets, &place, error));
    *apart_out = !meets;
    return FERRY_OK;
}

/* That no two elements share a byte and that the last byte has a number. */
static ferry_status check_extent(uint64_t offset, uint64_t element_bytes, uint32_t n_dims,
                                 const uint64_t *length, const uint64_t *stride, ferry_error *error)
{
    uint32_t order[MOST_DIMS], within = MOST_DIMS;
    uint32_t n = sort_by_stride(n_dims, length, stride, order);
    uint64_t extent = element_bytes, meant = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = order[i];
        uint64_t reach;
        if (stride[d] < extent && within == MOST_DIMS) {
            within = d;
            meant = extent;
        }
        if (!fy_mul(length[d] - 1, stride[d], &reach) || !fy_add(extent, reach, &extent)) {
            return fail_overflow(error);
        }
    }
    uint64_t end;
    bool apart = true;
    if (!fy_add(offset, extent, &end)) {
        return fail_overflow(error);
    }
    if (within != MOST_DIMS) {
        FY_TRY(check_apart(element_bytes, n_dims, length, stride, &apart, error));
    }
    return apart ? FERRY_OK : fail_dim(within, length[within], stride[within], meant, error);
}

bool fy_area_is_nested(const fy_area *area)
{
    uint32_t order[MOST_DIMS];
    uint32_t n = sort_by_stride(area->n_dims, area->length, area->stride, order);
    uint64_t extent = area->run_bytes;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = order[i];
        if (area->stride[d] < extent) {
            return false;
        }
        extent += (area->length[d] - 1) * area->stride[d];
    }
    return true;
}

/* Puts a dimension around what the area has; dimensions are kept fastest first until all are in. */
static void wrap(fy_area *area, uint64_t length, uint64_t stride)
{
    uint32_t n = area->n_dims;
    uint64_t within; /* the distance at which the next one would continue the last */
    if (length == 1) {
        return;
    }
    if (n == 0 && stride == area->run_bytes) {
        area->run_bytes *= length;
    } else if (n > 0 && fy_mul(area->stride[n - 1], area->length[n - 1], &within) &&
               stride == within) {
        area->length[n - 1] *= length;
    } else {
        area->length[n] = length;
        area->stride[n] = stride;
        area->n_dims++;
    }
}

static void reverse(uint64_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        uint64_t other = values[n - 1 - i];
        values[n - 1 - i] = values[i];
        values[i] = other;
    }
}

ferry_status fy_area_make(uint64_t offset, uint64_t element_bytes, uint32_t n_dims,
                          const uint64_t *length, const uint64_t *stride, fy_area *area_out,
                          ferry_error *error)
{
    if (n_dims > MOST_DIMS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "an area has %u dims; at most %u are allowed", n_dims, MOST_DIMS);
    }
    bool is_empty = element_bytes == 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        is_empty = is_empty || length[d] == 0;
    }
    if (!is_empty) { /* then no product overflows: the elements are disjoint within the extent */
        FY_TRY(check_extent(offset, element_bytes, n_dims, length, stride, error));
    }
    *area_out = is_empty ? fy_area_flat(offset, 0)
                         : fy_area_of(offset, element_bytes, n_dims, length, stride);
    return FERRY_OK;
}

fy_area fy_area_of(uint64_t offset, uint64_t element_bytes, uint32_t n_dims, const uint64_t *length,
                   const uint64_t *stride)
{
    fy_area area = fy_area_flat(offset, element_bytes);
    for (uint32_t d = n_dims; d-- > 0;) {
        area.bytes *= length[d];
        wrap(&area, length[d], stride[d]);
    }
    reverse(area.length, area.n_dims);
    reverse(area.stride, area.n_dims);
    return area;
}

fy_area fy_area_flat(uint64_t offset, uint64_t bytes)
{
    return (fy_area){.offset = offset, .run_bytes = bytes, .bytes = bytes};
}

void fy_area_hull(const fy_area *area, uint64_t *begin_out, uint64_t *end_out)
{
    uint64_t end = area->offset + area->run_bytes;
    for (uint32_t d = 0; d < area->n_dims; d++) {
        end += (area->length[d] - 1) * area->stride[d];
    }
    *begin_out = area->bytes == 0 ? 0 : area->offset;
    *end_out = area->bytes == 0 ? 0 : end;
}

void fy_area_hull_of(const fy_area *area, uint64_t first, uint64_t bytes, uint64_t *begin_out,
                     uint64_t *end_out)
{
    *begin_out = *end_out = 0;
    if (bytes == 0) {
        return;
    }
    fy_area_walk head = fy_area_walk_of(area, first, 1);
    fy_area_walk tail = fy_area_walk_of(area, first + bytes - 1, 1);
    uint32_t d = 0; /* the outermost dimension in which the two are apart */
    uint64_t begin = area->offset, end = area->offset + area->run_bytes;
    while (d < area->n_dims && head.index[d] == tail.index[d]) {
        begin += head.index[d] * area->stride[d];
        end += head.index[d] * area->stride[d];
        d++;
    }
    if (d == area->n_dims) {
        *begin_out = head.at;
        *end_out = tail.at + 1;
        return;
    }
    begin += head.index[d] * area->stride[d];
    end += tail.index[d] * area->stride[d];
    for (d++; d < area->n_dims; d++) {
        end += (area->length[d] - 1) * area->stride[d];
    }
    *begin_out = begin;
    *end_out = end;
}

fy_area_walk fy_area_walk_of(const fy_area *area, uint64_t first, uint64_t bytes)
{
    fy_area_walk walk = {.area = area, .left = bytes, .at = area->offset};
    if (bytes == 0) {
        return walk;
    }
    uint64_t run = first / area->run_bytes;
    uint64_t inside = first - run * area->run_bytes;
    for (uint32_t d = area->n_dims; d-- > 0; run /= area->length[d]) {
        walk.index[d] = run % area->length[d];
        walk.at += walk.index[d] * area->stride[d];
    }
    walk.at += inside;
    walk.n_here = area->run_bytes - inside;
    return walk;
}

bool fy_area_next(fy_area_walk *walk, uint64_t *offset_out, uint64_t *bytes_out)
{
    if (walk->left == 0) {
        return false;
    }
    *offset_out = walk->at;
    *bytes_out = fy_min(walk->n_here, walk->left);
    fy_walk_take(walk, *bytes_out);
    return true;
}
