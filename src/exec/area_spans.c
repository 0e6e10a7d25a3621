/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of an area lie, whatever their order: a range of them is a few boxes, and each is
 * walked in the order of memory. */
#include "exec/area.h"

#include "base/checked.h"

#include <string.h>

bool fy_area_is_permuted(const fy_area *area)
{
    uint64_t within = area->run_bytes;
    for (uint32_t d = area->n_dims; d-- > 0;) {
        if (area->stride[d] < within) {
            return true;
        }
        within = area->stride[d];
    }
    return false;
}

static ferry_status visit_area(const fy_area *area, fy_span_fn visit, void *context,
                               ferry_error *error)
{
    fy_area_walk walk = fy_area_walk_of(area, 0, area->bytes);
    uint64_t at, n;
    while (fy_area_next(&walk, &at, &n)) {
        FY_TRY(visit(context, at, n, error));
    }
    return FERRY_OK;
}

/* The dimensions from d on, of which the first has so many indices, by descending strides. */
static fy_area in_order(const fy_area *area, uint32_t d, uint64_t length, uint64_t offset)
{
    uint64_t lengths[FERRY_MAX_DIMS], strides[FERRY_MAX_DIMS];
    uint32_t n = 0;
    for (; d < area->n_dims; d++, n++) {
        uint32_t at = n;
        for (; at > 0 && strides[at - 1] < area->stride[d]; at--) {
            lengths[at] = lengths[at - 1];
            strides[at] = strides[at - 1];
        }
        lengths[at] = n == 0 ? length : area->length[d];
        strides[at] = area->stride[d];
    }
    return fy_area_of(offset, area->run_bytes, n, lengths, strides);
}

typedef struct spans {
    const fy_area *area;
    uint64_t size[FERRY_MAX_DIMS]; /* bytes of an index */
    fy_span_fn visit;
    void *context;
} spans;

/* Bytes of the dimensions from d on: what begins or ends within an index is cut once more. */
static ferry_status cut(const spans *s, uint32_t d, uint64_t offset, uint64_t first, uint64_t bytes,
                        ferry_error *error)
{
    if (d == s->area->n_dims) {
        return s->visit(s->context, offset + first, bytes, error);
    }
    uint64_t size = s->size[d], stride = s->area->stride[d];
    uint64_t at = first / size, skipped = first % size;
    if (skipped != 0) {
        uint64_t n = fy_min(size - skipped, bytes);
        FY_TRY(cut(s, d + 1, offset + at * stride, skipped, n, error));
        bytes -= n;
        at++;
    }
    uint64_t n_whole = bytes / size;
    if (n_whole != 0) {
        fy_area box = in_order(s->area, d, n_whole, offset + at * stride);
        FY_TRY(visit_area(&box, s->visit, s->context, error));
        at += n_whole;
    }
    return bytes % size == 0 ? FERRY_OK
                             : cut(s, d + 1, offset + at * stride, 0, bytes % size, error);
}

ferry_status fy_area_visit_spans(const fy_area *area, uint64_t first, uint64_t bytes,
                                 fy_span_fn visit, void *context, ferry_error *error)
{
    spans s = {.area = area, .visit = visit, .context = context};
    uint64_t size = area->run_bytes;
    for (uint32_t d = area->n_dims; d-- > 0; size *= area->length[d]) {
        s.size[d] = size;
    }
    return bytes == 0 ? FERRY_OK : cut(&s, 0, area->offset, first, bytes, error);
}
