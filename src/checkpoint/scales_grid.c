/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/scales_grid.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "model/problem.h"

#include <string.h>

enum { MOST_STEPS = 1 << 26 }; /* looks at a rectangle, in all bands of all planes */

void fy_grid_init(fy_grid *g, const uint64_t *shape, uint32_t n_dims, const uint64_t block[2])
{
    *g = (fy_grid){.n_planes = 1};
    for (uint32_t d = 0; d + 2 < n_dims; d++) {
        g->n_planes *= shape[d]; /* of the elements of a parameter: no overflow */
    }
    for (uint32_t d = 0; d < 2; d++) {
        g->shape[d] = shape[n_dims - 2 + d];
        g->block[d] = block[d];
        g->blocks[d] = fy_ceil_div(g->shape[d], block[d]);
    }
}

void fy_grid_cleanup(fy_grid *g)
{
    fy_free(g->said);
    fy_free(g->laid);
}

/* ---- parts ---- */

ferry_status fy_grid_add(fy_grid *g, const fy_grid_part *part, bool *fits_out, ferry_error *error)
{
    uint64_t volume = g->shape[0] * g->shape[1], steps[2] = {g->shape[1], 1};
    *fits_out = false;
    if (volume == 0) {
        return FERRY_OK;
    }
    uint64_t inside = part->offset % volume;
    uint64_t place[2] = {inside / g->shape[1], inside % g->shape[1]};
    fy_grid_rect rect = {.plane = part->offset / volume,
                         .n_planes = 1,
                         .weight = part->weight,
                         .matrix = part->matrix};
    for (uint32_t d = 0; d < 2; d++) {
        uint64_t n = part->end[d] - part->begin[d], block = g->block[d];
        if ((n > 1 && part->stride[d] != steps[d]) || n > g->shape[d] - place[d] ||
            place[d] % block != part->begin[d] % block) {
            return FERRY_OK;
        }
        rect.begin[d] = place[d] / block;
        rect.end[d] = fy_ceil_div(place[d] + n, block);
        rect.from[d] = part->begin[d] / block;
    }
    FY_TRY(FY_GROW(g->said, g->said_capacity, g->n_said + 1, "the scales of a layout", error));
    g->said[g->n_said++] = rect;
    *fits_out = true;
    return FERRY_OK;
}

/* ---- laying them out: plane by plane, in bands of rows that no rectangle begins or ends in ----
 */

static int compare_numbers(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

/* A plane's in the order of their columns: so is each band. */
static int compare_rects(const void *a, const void *b)
{
    const fy_grid_rect *x = a, *y = b;
    int planes = compare_numbers(x->plane, y->plane);
    return planes != 0 ? planes : compare_numbers(x->begin[1], y->begin[1]);
}

static int compare_lines(const void *a, const void *b)
{
    return compare_numbers(*(const uint64_t *)a, *(const uint64_t *)b);
}

/* Whether two have the same block of a tensor at each place that both have. */
static bool agree(const fy_grid_rect *a, const fy_grid_rect *b)
{
    bool same = a->weight == b->weight && a->matrix == b->matrix;
    for (uint32_t d = 0; d < 2; d++) {
        same = same && a->begin[d] + b->from[d] == b->begin[d] + a->from[d];
    }
    return same;
}

/* Columns of a band: those of a rectangle, or nobody's where there is none. */
static ferry_status put(fy_grid *g, const fy_grid_rect *of, fy_grid_rect at, ferry_error *error)
{
    if (at.begin[1] >= at.end[1]) {
        return FERRY_OK;
    }
    at.weight = of == NULL ? FY_NONE : of->weight;
    if (of != NULL) {
        at.matrix = of->matrix;
        for (uint32_t d = 0; d < 2; d++) {
            at.from[d] = of->from[d] + (at.begin[d] - of->begin[d]);
        }
    }
    FY_TRY(FY_GROW(g->laid, g->laid_capacity, g->n_laid + 1, "the scales of a layout", error));
    g->laid[g->n_laid++] = at;
    return FERRY_OK;
}

/* band: its plane and rows. rects: those of the plane. */
static ferry_status lay_band(fy_grid *g, const fy_grid_rect *rects, size_t n, fy_grid_rect band,
                             bool *fits_out, ferry_error *error)
{
    const fy_grid_rect *last = NULL; /* the one that reaches to where the band is laid */
    uint64_t done = 0;
    for (size_t i = 0; i < n; i++) {
        const fy_grid_rect *rect = &rects[i];
        if (rect->begin[0] >= band.end[0] || rect->end[0] <= band.begin[0]) {
            continue;
        }
        if (rect->begin[1] < done && !agree(rect, last)) {
            *fits_out = false;
            return FERRY_OK;
        }
        band.begin[1] = done;
        band.end[1] = rect->begin[1];
        FY_TRY(put(g, NULL, band, error));
        band.begin[1] = fy_max(done, rect->begin[1]);
        band.end[1] = rect->end[1];
        FY_TRY(put(g, rect, band, error));
        last = rect->end[1] > done ? rect : last;
        done = fy_max(done, rect->end[1]);
    }
    band.begin[1] = done;
    band.end[1] = g->blocks[1];
    return put(g, NULL, band, error);
}

/* lines: room for two of each rectangle, and two more. */
static ferry_status lay_plane(fy_grid *g, uint64_t plane, const fy_grid_rect *rects, size_t n,
                              uint64_t *lines, bool *fits_out, ferry_error *error)
{
    size_t n_lines = 0;
    lines[n_lines++] = 0;
    lines[n_lines++] = g->blocks[0];
    for (size_t i = 0; i < n; i++) {
        lines[n_lines++] = rects[i].begin[0];
        lines[n_lines++] = rects[i].end[0];
    }
    fy_sort(lines, n_lines, sizeof *lines, compare_lines);
    for (size_t i = 1; i < n_lines && *fits_out; i++) {
        fy_grid_rect band = {
            .plane = plane, .n_planes = 1, .begin = {lines[i - 1]}, .end = {lines[i]}};
        if (lines[i - 1] < lines[i]) {
            FY_TRY(lay_band(g, rects, n, band, fits_out, error));
        }
    }
    return FERRY_OK;
}

/* Matrices of which nothing was said. */
static ferry_status skip_planes(fy_grid *g, uint64_t first, uint64_t end, ferry_error *error)
{
    fy_grid_rect all = {
        .plane = first, .n_planes = end - first, .end = {g->blocks[0], g->blocks[1]}};
    return first < end && g->blocks[0] > 0 ? put(g, NULL, all, error) : FERRY_OK;
}

static ferry_status lay_planes(fy_grid *g, uint64_t *lines, bool *fits_out, ferry_error *error)
{
    uint64_t plane = 0, steps = 0;
    for (size_t i = 0, end; i < g->n_said && *fits_out; i = end) {
        for (end = i; end < g->n_said && g->said[end].plane == g->said[i].plane;) {
            end++;
        }
        steps += (uint64_t)(end - i) * (end - i);
        if (steps > MOST_STEPS) { /* then as where blocks do not lie on blocks */
            *fits_out = false;
            return FERRY_OK;
        }
        FY_TRY(skip_planes(g, plane, g->said[i].plane, error));
        plane = g->said[i].plane + 1;
        FY_TRY(lay_plane(g, plane - 1, &g->said[i], end - i, lines, fits_out, error));
    }
    return *fits_out ? skip_planes(g, plane, g->n_planes, error) : FERRY_OK;
}

ferry_status fy_grid_lay(fy_grid *g, bool *fits_out, ferry_error *error)
{
    uint64_t *lines = fy_alloc(2 * g->n_said + 2, sizeof *lines);
    FY_TRY(fy_check_memory(lines != NULL, "the scales of a layout", error));
    *fits_out = true;
    fy_sort(g->said, g->n_said, sizeof *g->said, compare_rects);
    ferry_status status = lay_planes(g, lines, fits_out, error);
    fy_free(lines);
    return status;
}
