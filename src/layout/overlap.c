/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/overlap.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <string.h>

/* A maximal common interval of two lists of pieces. */
typedef struct meeting {
    const fy_piece *src;
    const fy_piece *dst;
    uint64_t src_global;
    uint64_t length;
} meeting;

typedef struct walk {
    const fy_split *src;
    const fy_split *dst;
    fy_region region;
    size_t i; /* the next source piece */
    size_t j; /* the next destination piece */
} walk;

/* The next one, in global order. */
static bool next_meeting(walk *r, meeting *meeting_out)
{
    const fy_region *region = &r->region;
    while (r->i < r->src->n_pieces && r->j < r->dst->n_pieces) {
        const fy_piece *src = &r->src->pieces[r->i];
        const fy_piece *dst = &r->dst->pieces[r->j];
        /* Offsets from the begin of the region; pieces before it saturate at 0. */
        uint64_t src_end = src->global + src->length;
        uint64_t dst_end = dst->global + dst->length;
        src_end =
            src_end < region->src_begin ? 0 : fy_min(src_end - region->src_begin, region->length);
        dst_end =
            dst_end < region->dst_begin ? 0 : fy_min(dst_end - region->dst_begin, region->length);
        uint64_t src_at = src->global < region->src_begin ? 0 : src->global - region->src_begin;
        uint64_t dst_at = dst->global < region->dst_begin ? 0 : dst->global - region->dst_begin;
        uint64_t begin = fy_max(src_at, dst_at);
        uint64_t end = fy_min(src_end, dst_end);
        r->i += src_end <= dst_end;
        r->j += dst_end <= src_end;
        if (begin < end) {
            *meeting_out = (meeting){.src = src,
                                     .dst = dst,
                                     .src_global = region->src_begin + begin,
                                     .length = end - begin};
            return true;
        }
        if (begin >= region->length) {
            return false;
        }
    }
    return false;
}

/* Which owner of a shared source piece serves a destination part, when it has to be one. */
static uint32_t owner_for(const fy_piece *piece, uint32_t dst_part)
{
    bool own = dst_part >= piece->part && dst_part < piece->part + piece->n_owners;
    return own ? dst_part - piece->part : dst_part % piece->n_owners;
}

static fy_run run_of(const walk *r, const meeting *m, uint32_t owner)
{
    fy_run run = {.src_global = m->src_global, .length = m->length};
    uint64_t dst_global = m->src_global - r->region.src_begin + r->region.dst_begin;
    uint64_t dst_local = m->dst->local;
    if (m->dst->n_owners > 1) {
        dst_local = r->dst->shared_local[m->dst->local + owner];
    }
    run.dst_local = dst_local + (dst_global - m->dst->global);
    run.src_cell = m->src->cell;
    run.src_local = FY_LOCAL_BY_OWNER;
    if (m->src->n_owners == 1) {
        run.src_local = m->src->local + (m->src_global - m->src->global);
    } else if (r->region.one_owner) {
        uint32_t server = owner_for(m->src, m->dst->part + owner);
        run.src_cell = m->src->part + server;
        run.src_local =
            r->src->shared_local[m->src->local + server] + (m->src_global - m->src->global);
    }
    return run;
}

static bool continues(const fy_run *last, const fy_run *next)
{
    return last->src_cell == next->src_cell && last->src_local != FY_LOCAL_BY_OWNER &&
           last->src_global + last->length == next->src_global &&
           last->src_local + last->length == next->src_local &&
           last->dst_local + last->length == next->dst_local;
}

/* Two passes over the meetings: count per destination part, then place and merge. */
static bool collect_runs(walk whole, fy_overlap *overlap, size_t *n_filled)
{
    meeting m;
    size_t total = 0;
    for (walk r = whole; next_meeting(&r, &m);) {
        for (uint32_t owner = 0; owner < m.dst->n_owners; owner++) {
            overlap->run_begin[m.dst->part + owner + 1]++;
        }
        total += m.dst->n_owners;
    }
    for (uint32_t p = 0; p < overlap->n_dst_parts; p++) {
        overlap->run_begin[p + 1] += overlap->run_begin[p];
    }
    overlap->runs = fy_alloc(total, sizeof *overlap->runs);
    if (overlap->runs == NULL) {
        return false;
    }
    for (walk r = whole; next_meeting(&r, &m);) {
        for (uint32_t owner = 0; owner < m.dst->n_owners; owner++) {
            uint32_t part = m.dst->part + owner;
            fy_run run = run_of(&r, &m, owner);
            fy_run *first = overlap->runs + overlap->run_begin[part];
            fy_run *last = n_filled[part] == 0 ? NULL : first + n_filled[part] - 1;
            if (last != NULL && continues(last, &run)) {
                last->length += run.length;
            } else {
                first[n_filled[part]++] = run;
            }
        }
    }
    return true;
}

/* Closes the gaps that merging left between the parts. */
static void compact_runs(fy_overlap *overlap, const size_t *n_filled)
{
    size_t used = 0;
    for (uint32_t p = 0; p < overlap->n_dst_parts; p++) {
        size_t begin = overlap->run_begin[p];
        if (used != begin) {
            memmove(overlap->runs + used, overlap->runs + begin, n_filled[p] * sizeof(fy_run));
        }
        overlap->run_begin[p] = used;
        used += n_filled[p];
    }
    overlap->run_begin[overlap->n_dst_parts] = used;
}

/*
 * The runs in order of their source cell. Going through the destination parts in order keeps each
 * cell's list sorted by part. order[] receives (part, position) pairs grouped by cell.
 */
typedef struct placed {
    uint32_t dst_part;
    uint32_t position;
} placed;

static void group_by_cell(const fy_overlap *overlap, size_t *cell_begin, placed *order)
{
    for (size_t i = 0; i < overlap->run_begin[overlap->n_dst_parts]; i++) {
        cell_begin[overlap->runs[i].src_cell + 1]++;
    }
    for (uint32_t c = 0; c < overlap->n_src_cells; c++) {
        cell_begin[c + 1] += cell_begin[c];
    }
    for (uint32_t p = 0; p < overlap->n_dst_parts; p++) {
        for (size_t i = overlap->run_begin[p]; i < overlap->run_begin[p + 1]; i++) {
            size_t at = cell_begin[overlap->runs[i].src_cell]++;
            order[at] = (placed){.dst_part = p, .position = (uint32_t)(i - overlap->run_begin[p])};
        }
    }
    for (uint32_t c = overlap->n_src_cells; c > 0; c--) {
        cell_begin[c] = cell_begin[c - 1]; /* the filling moved each begin to its end */
    }
    cell_begin[0] = 0;
}

static void build_touches(fy_overlap *overlap, const size_t *cell_begin, const placed *order)
{
    size_t n_touches = 0;
    for (uint32_t c = 0; c < overlap->n_src_cells; c++) {
        overlap->touch_begin[c] = n_touches;
        uint64_t before = 0;
        for (size_t i = cell_begin[c]; i < cell_begin[c + 1]; i++) {
            fy_touch *touch = &overlap->touches[n_touches];
            uint32_t part = order[i].dst_part;
            bool first = n_touches == overlap->touch_begin[c] || touch[-1].dst_part != part;
            if (first) {
                *touch = (fy_touch){.before = before, .first_run = i, .dst_part = part};
                n_touches++;
            } else {
                touch--;
            }
            uint64_t length = overlap->runs[overlap->run_begin[part] + order[i].position].length;
            touch->length += length;
            touch->n_runs++;
            before += length;
            overlap->run_order[i] = order[i].position;
        }
    }
    overlap->touch_begin[overlap->n_src_cells] = n_touches;
}

static bool index_by_cell(fy_overlap *overlap)
{
    size_t n_runs = overlap->run_begin[overlap->n_dst_parts];
    size_t *cell_begin = fy_alloc_zeroed((size_t)overlap->n_src_cells + 1, sizeof *cell_begin);
    placed *order = fy_alloc(n_runs, sizeof *order);
    overlap->touches = fy_alloc(n_runs, sizeof *overlap->touches);
    overlap->run_order = fy_alloc(n_runs, sizeof *overlap->run_order);
    bool complete = cell_begin != NULL && order != NULL && overlap->touches != NULL &&
                    overlap->run_order != NULL;
    if (complete) {
        group_by_cell(overlap, cell_begin, order);
        build_touches(overlap, cell_begin, order);
    }
    fy_free(cell_begin);
    fy_free(order);
    return complete;
}

static bool build(const walk *whole, fy_overlap *overlap)
{
    overlap->run_begin =
        fy_alloc_zeroed((size_t)overlap->n_dst_parts + 1, sizeof *overlap->run_begin);
    overlap->touch_begin =
        fy_alloc_zeroed((size_t)overlap->n_src_cells + 1, sizeof *overlap->touch_begin);
    size_t *n_filled = fy_alloc_zeroed(overlap->n_dst_parts, sizeof *n_filled);
    bool complete = overlap->run_begin != NULL && overlap->touch_begin != NULL &&
                    n_filled != NULL && collect_runs(*whole, overlap, n_filled);
    if (complete) {
        compact_runs(overlap, n_filled);
        complete = index_by_cell(overlap);
    }
    fy_free(n_filled);
    return complete;
}

ferry_status fy_overlap_create(const fy_split *src, const fy_split *dst, const fy_region *region,
                               fy_overlap **overlap_out, ferry_error *error)
{
    fy_overlap *overlap = fy_alloc_zeroed(1, sizeof *overlap);
    FY_TRY(fy_check_memory(overlap != NULL, "an overlap", error));
    overlap->n_dst_parts = dst->n_parts;
    overlap->n_src_cells = region->one_owner ? src->n_parts : src->n_cells;
    walk whole = {.src = src, .dst = dst, .region = *region};
    if (!build(&whole, overlap)) {
        fy_overlap_destroy(overlap);
        return fy_fail_no_memory(error, "the runs of an overlap");
    }
    *overlap_out = overlap;
    return FERRY_OK;
}

void fy_overlap_destroy(fy_overlap *overlap)
{
    if (overlap != NULL) {
        fy_free(overlap->run_begin);
        fy_free(overlap->runs);
        fy_free(overlap->touch_begin);
        fy_free(overlap->touches);
        fy_free(overlap->run_order);
        fy_free(overlap);
    }
}

const fy_touch *fy_overlap_find(const fy_overlap *overlap, uint32_t src_cell, uint32_t dst_part)
{
    FY_BISECT(size_t, low, overlap->touch_begin[src_cell], overlap->touch_begin[src_cell + 1],
              middle, overlap->touches[middle].dst_part < dst_part);
    bool found =
        low < overlap->touch_begin[src_cell + 1] && overlap->touches[low].dst_part == dst_part;
    return found ? &overlap->touches[low] : NULL;
}

const fy_touch *fy_overlap_at(const fy_overlap *overlap, uint32_t src_cell, uint64_t position)
{
    FY_BISECT_LAST(size_t, low, overlap->touch_begin[src_cell], overlap->touch_begin[src_cell + 1],
                   middle, overlap->touches[middle].before <= position);
    return &overlap->touches[low];
}
