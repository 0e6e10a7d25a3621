/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * No place is in two boxes, so volumes say on which index of a dimension something is missing; only
 * boxes that have that index are looked at on the next.
 */
#include "layout/gap.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <string.h>

/* Where a box begins or ends on a dimension: the volume across that is there from then on, or no
 * longer, which is taken off. */
typedef struct edge {
    uint64_t at;
    uint64_t more;
} edge;

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The first index of dimension d at which n boxes do not fill what lies across. */
static uint64_t find_short(const fy_box *boxes, size_t n, const uint64_t *shape, uint32_t n_dims,
                           uint32_t d, edge *edges)
{
    uint64_t full = fy_box_volume(shape + d + 1, n_dims - d - 1), there = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t across = fy_box_volume(boxes[i].length + d + 1, n_dims - d - 1);
        edges[2 * i] = (edge){.at = boxes[i].begin[d], .more = across};
        edges[2 * i + 1] = (edge){.at = boxes[i].begin[d] + boxes[i].length[d], .more = 0 - across};
    }
    fy_sort(edges, 2 * n, sizeof *edges, compare_edges);
    for (size_t i = 0;;) {
        for (; i < 2 * n && edges[i].at <= at; i++) {
            there += edges[i].more;
        }
        if (there != full || i == 2 * n) {
            return at;
        }
        at = edges[i].at;
    }
}

ferry_status fy_boxes_find_gap(fy_box *boxes, size_t n, const uint64_t *shape, uint32_t n_dims,
                               uint64_t place_out[FERRY_MAX_DIMS], ferry_error *error)
{
    edge *edges = fy_alloc(n, 2 * sizeof *edges);
    FY_TRY(fy_check_memory(edges != NULL, "what boxes leave out", error));
    memset(place_out, 0, FERRY_MAX_DIMS * sizeof *place_out);
    for (uint32_t d = 0; d < n_dims; d++) {
        size_t kept = 0;
        place_out[d] = find_short(boxes, n, shape, n_dims, d, edges);
        for (size_t i = 0; i < n; i++) {
            if (place_out[d] >= boxes[i].begin[d] &&
                place_out[d] - boxes[i].begin[d] < boxes[i].length[d]) {
                boxes[kept++] = boxes[i];
            }
        }
        n = kept;
    }
    fy_free(edges);
    return FERRY_OK;
}
