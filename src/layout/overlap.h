/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_OVERLAP_H
#define FY_LAYOUT_OVERLAP_H

#include "layout/split.h"

/*
 * Where two splits of one dimension meet. A region of the source dimension, [src_begin, src_begin +
 * length), is laid onto [dst_begin, dst_begin + length) of the destination dimension; for a tensor
 * that goes to itself both begins are 0 and the length is the extent.
 *
 * A run is a maximal interval that is contiguous in the source shard, the destination shard and the
 * global index alike. The overlap lists the runs of every destination part in local order, and the
 * same runs again by source cell. Built in time linear in the pieces of both splits and the runs.
 */
typedef struct fy_run {
    uint64_t src_global;
    uint64_t src_local; /* FY_LOCAL_BY_OWNER when the source cell is shared */
    uint64_t dst_local;
    uint64_t length;
    uint32_t src_cell;
} fy_run;

#define FY_LOCAL_BY_OWNER UINT64_MAX

/* The runs that one source cell and one destination part have in common. */
typedef struct fy_touch {
    uint64_t length;  /* of all of them */
    uint64_t before;  /* the lengths of the touches of this cell with lower parts */
    size_t first_run; /* into run_order */
    uint32_t n_runs;
    uint32_t dst_part;
} fy_touch;

typedef struct fy_overlap {
    uint32_t n_dst_parts;
    uint32_t n_src_cells;
    size_t *run_begin; /* [n_dst_parts + 1] into runs */
    fy_run *runs;
    size_t *touch_begin; /* [n_src_cells + 1] into touches, by ascending destination part */
    fy_touch *touches;
    uint32_t *run_order; /* positions within the destination part's runs */
} fy_overlap;

typedef struct fy_region {
    uint64_t src_begin;
    uint64_t dst_begin;
    uint64_t length;
    /*
     * With a flat cut on top, the owners of a shared piece have it at different places of different
     * flat parts, so they are no replicas of each other. Then each destination part takes it from
     * one owner: the part of its own number if that is one, and source cells are parts. What the
     * receivers have themselves is looked for later: see plan/flat.c.
     */
    bool one_owner;
} fy_region;

ferry_status fy_overlap_create(const fy_split *src, const fy_split *dst, const fy_region *region,
                               fy_overlap **overlap_out, ferry_error *error);
void fy_overlap_destroy(fy_overlap *overlap);

static inline size_t fy_overlap_n_runs(const fy_overlap *overlap, uint32_t dst_part)
{
    return overlap->run_begin[dst_part + 1] - overlap->run_begin[dst_part];
}

/* The elements of a source cell that destination parts want, each counted as often as wanted. */
static inline uint64_t fy_overlap_cell_total(const fy_overlap *overlap, uint32_t src_cell)
{
    size_t begin = overlap->touch_begin[src_cell], end = overlap->touch_begin[src_cell + 1];
    return begin == end ? 0 : overlap->touches[end - 1].before + overlap->touches[end - 1].length;
}

/* The touch of a source cell and a destination part, or NULL. */
const fy_touch *fy_overlap_find(const fy_overlap *overlap, uint32_t src_cell, uint32_t dst_part);

/* The touch of a source cell in which position (below the cell's total) lies. */
const fy_touch *fy_overlap_at(const fy_overlap *overlap, uint32_t src_cell, uint64_t position);

#endif
