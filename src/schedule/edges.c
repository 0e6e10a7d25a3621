/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/edges.h"

#include "base/alloc.h"

ferry_status fy_edges_init(fy_edges *edges, uint32_t n_ranks, size_t capacity, ferry_error *error)
{
    *edges = (fy_edges){.n_ranks = n_ranks};
    if (capacity > INT32_MAX) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a schedule of %zu batches: the limit is 2^31 - 1; take larger slots",
                       capacity);
    }
    edges->from = fy_alloc(3 * capacity, sizeof *edges->from);
    FY_TRY(fy_check_memory(edges->from != NULL, "the batches of a schedule", error));
    edges->to = edges->from + capacity;
    edges->round = edges->to + capacity;
    return FERRY_OK;
}

void fy_edges_cleanup(fy_edges *edges)
{
    fy_free(edges->from);
    *edges = (fy_edges){0};
}
