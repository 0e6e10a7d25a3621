/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_FLAT_H
#define FY_PLAN_FLAT_H

#include "plan/route.h"

/* Source cells of a destination cell's own ranks that are looked at. */
enum { FY_MOST_OWN_CELLS = 32 };

/* What the flat cuts of both sides need to know about the atoms of one destination cell. */
typedef struct fy_flat_cut {
    const fy_routes *routes;
    const fy_route *route;
    const fy_layout *src;
    const fy_layout *dst;
    uint32_t dst_parts[FERRY_MAX_DIMS + 1];
    uint64_t dst_shape[FERRY_MAX_DIMS];
    uint64_t dst_begin, dst_end;
    fy_atoms boxes;   /* scratch: the parts of one box */
    fy_atoms orphans; /* scratch: those whose source cell has no holder */
    fy_atoms rest;    /* scratch: what none of the destination's own ranks has */
    fy_atoms next;
    uint32_t own[FY_MOST_OWN_CELLS]; /* source cells of ranks of the destination cell */
    uint32_t n_own;
    bool has_new_owners;
    bool one_part; /* only what this flat part of the source has */
    uint32_t part;
    fy_atoms *atoms;
} fy_flat_cut;

void fy_flat_cut_init(fy_flat_cut *cut, const fy_routes *routes, const fy_route *route,
                      uint32_t dst, fy_atoms *atoms);
/* Whether a rank may hold at the source, in another owner's place, what it wants of the route. */
bool fy_flat_has_choice(const fy_routes *routes, const fy_route *route);
/* Leaves out what other flat parts than that of a source cell have. */
void fy_flat_cut_only(fy_flat_cut *cut, uint32_t cell);
/* Adds the parts of a box that the flat cuts make; false: no memory. */
bool fy_flat_cut_push(fy_flat_cut *cut, const fy_atom *atom);
/* After the last box; also of a cut that was not begun. */
void fy_flat_cut_end(fy_flat_cut *cut);

/*
 * The ranks of a table, that of the source or as it was, which hold the first element of an atom of
 * a route with a flat source: ascending, for the caller to free.
 */
ferry_status fy_flat_list_holders(const fy_routes *routes, const fy_route *route,
                                  const fy_holders *holders, const fy_atom *atom,
                                  uint32_t **ranks_out, size_t *n_out, ferry_error *error);

#endif
