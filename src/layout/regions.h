/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_REGIONS_H
#define FY_LAYOUT_REGIONS_H

#include "base/status.h"
#include "layout/box.h"

/*
 * Space cut where boxes begin and end: regions that some boxes have as a whole, and no other box
 * has anything of. What no box has is in no region. Boxes that are apart come back as they are, or
 * joined where neighbours are in the same boxes; each overlap adds a few.
 */
typedef struct fy_region_set {
    uint32_t n_dims;
    size_t n_regions;
    size_t region_capacity;
    struct fy_region_of *regions; /* in order of their begins */
    uint32_t *lists;              /* numbers of boxes, ascending in each list */
    size_t n_lists, list_capacity;
} fy_region_set;

typedef struct fy_region_of {
    fy_box box;
    size_t first; /* into lists */
    uint32_t n;   /* the boxes that have it */
} fy_region_of;

/* Begins and lengths of one box behind the other, n_dims numbers each; empty ones have nothing. */
ferry_status fy_regions_create(const uint64_t *begin, const uint64_t *length, size_t n,
                               uint32_t n_dims, fy_region_set *set_out, ferry_error *error);
void fy_regions_cleanup(fy_region_set *set);

#endif
