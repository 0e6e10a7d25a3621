/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/window.h"

#include "base/checked.h"

#include <string.h>

/* The longest shard of a dimension. */
static uint64_t longest(const fy_layout_job *job, uint32_t placement, uint32_t dim)
{
    const fy_layout *layout = &job->problem.placements[placement].layout;
    return job->longest[layout->split[dim]];
}

/* Elements of a row of dim in the largest shard; saturates. */
static uint64_t row_of(const fy_layout_job *job, uint32_t placement, uint32_t dim)
{
    const fy_layout *layout = &job->problem.placements[placement].layout;
    uint64_t row = 1;
    for (uint32_t d = dim + 1; d < layout->n_dims; d++) {
        if (!fy_mul(row, longest(job, placement, d), &row)) {
            return UINT64_MAX;
        }
    }
    return row;
}

static uint64_t bytes_of(uint64_t n_elements, uint32_t bits)
{
    return n_elements > UINT64_MAX / 64 ? UINT64_MAX : (n_elements * bits + 7) / 8;
}

/* The largest row of a source shard under the dimension of the cut. */
static uint64_t source_row_bytes(const fy_layout_job *job, uint32_t tensor, uint32_t dim)
{
    uint32_t bits = job->problem.tensors[tensor].dtype.element_bits;
    uint64_t most = 1;
    for (size_t l = job->first_leg[tensor]; l < job->first_leg[tensor + 1]; l++) {
        const fy_route *route = &job->routes.routes[job->routes.legs[l].route];
        uint32_t common = dim + route->dst_pad;
        if (common >= route->src_pad) {
            most = fy_max(most, bytes_of(row_of(job, route->src, common - route->src_pad), bits));
        }
    }
    return most;
}

/* Whether windows of whole rows may begin in the midst of a byte. */
static bool splits_bytes(uint64_t row, uint32_t bits)
{
    return bits % 8 != 0 && row * bits % 8 != 0;
}

fy_grain fy_grain_of(const fy_layout_job *job, uint32_t tensor, uint64_t most_bytes,
                     uint64_t most_span)
{
    const fy_tensor *t = &job->problem.tensors[tensor];
    const fy_layout *layout = &job->problem.placements[t->dst].layout;
    uint32_t bits = t->dtype.element_bits;
    fy_grain grain = {.dim = 0, .rows = 1};
    if (layout->n_dims == 0) {
        return grain;
    }
    if (bits % 8 != 0) { /* rows come in eights, which end on bytes */
        most_bytes /= 8;
        most_span /= 8;
    }
    while (grain.dim + 1 < layout->n_dims &&
           bytes_of(row_of(job, t->dst, grain.dim), bits) > most_bytes) {
        grain.dim++;
    }
    uint64_t row_bytes = fy_max(bytes_of(row_of(job, t->dst, grain.dim), bits), 1);
    grain.rows = most_bytes / row_bytes;
    if (job->from->boxed == NULL) { /* whose parameters have rows of their own */
        grain.rows = fy_min(grain.rows, most_span / source_row_bytes(job, tensor, grain.dim));
    }
    grain.rows = fy_max(grain.rows, 1);
    if (bits % 8 != 0) {
        grain.rows *= 8;
    }
    return grain;
}

/* Whether a flat range of elements smaller than a byte ends somewhere in rows of an odd number. */
static bool halves_rows(const fy_window_walk *walk)
{
    uint64_t last = walk->n_dims == 0 ? 1 : walk->window.shape[walk->n_dims - 1];
    return walk->element_bits % 8 != 0 && (last % 2 != 0 || walk->window.flat_begin % 2 != 0);
}

void fy_window_walk_begin(fy_window_walk *walk, const fy_layout_job *job, uint32_t tensor,
                          uint32_t cell, const fy_grain *grain)
{
    const fy_tensor *t = &job->problem.tensors[tensor];
    const fy_layout *layout = &job->problem.placements[t->dst].layout;
    uint32_t parts[FERRY_MAX_DIMS + 1];
    uint64_t begin, end;
    *walk = (fy_window_walk){.window = {.tensor = tensor, .cell = cell},
                             .grain = *grain,
                             .is_flat = layout->n_flat != 0,
                             .n_dims = layout->n_dims,
                             .element_bits = t->dtype.element_bits,
                             .row = 1,
                             .section = 1};
    fy_layout_parts(&job->problem, layout, cell, parts);
    uint64_t n_elements = fy_layout_shard(&job->problem, layout, parts, walk->window.shape);
    fy_layout_flat_range(layout, parts[layout->n_dims], n_elements, &begin, &end);
    walk->window.flat_begin = begin;
    walk->end = end - begin;
    for (uint32_t d = grain->dim + 1; d < layout->n_dims; d++) {
        walk->row *= walk->window.shape[d];
    }
    walk->section = layout->n_dims == 0 ? 1 : walk->row * walk->window.shape[grain->dim];
    /* Rare: a section of an odd number of half bytes. Then it is a row, and rows come in pairs. */
    for (uint32_t d = grain->dim; d > 0 && splits_bytes(walk->section, walk->element_bits); d--) {
        walk->row = walk->section;
        walk->section = walk->row * walk->window.shape[d - 1];
        walk->grain.dim = d - 1;
        walk->grain.rows = 2;
    }
    if (walk->is_flat) {
        walk->section = walk->end;
    }
    if (walk->is_flat && halves_rows(walk)) {
        walk->grain.rows = UINT64_MAX / fy_max(walk->row, 1);
    }
}

/* The elements from next on as boxes of the shard. */
static void fill_boxes(fy_window_walk *walk, uint64_t n)
{
    fy_window *w = &walk->window;
    w->first = walk->next;
    w->n_elements = n;
    w->bytes = fy_ceil_div(n * walk->element_bits, 8);
    w->n_boxes = fy_range_boxes(w->shape, walk->n_dims, w->flat_begin + w->first,
                                w->flat_begin + w->first + n, w->boxes);
}

bool fy_window_walk_next(fy_window_walk *walk)
{
    if (walk->next >= walk->end) {
        return false;
    }
    uint64_t left = walk->section - walk->next % walk->section, n;
    if (!fy_mul(walk->grain.rows, walk->row, &n) || n > left) {
        n = left;
    }
    n = fy_min(n, walk->end - walk->next);
    fill_boxes(walk, n);
    walk->next += n;
    return true;
}
