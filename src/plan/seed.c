/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference's choice of replicas. On a mesh, the DP group of a holder is the replicas of its cell,
 * in mesh order; a bucket is a DP group, and a bucket's first entry is its lowest rank. The entry only
 * represents: the senders are the holders of the other cells with the entry's replica number, which is
 * its tensor-parallel group. Tensors that neither side cuts go round robin over the source's DP group.
 */
#include "plan/core.h"

#include "model/seed.h"

static bool is_cut(const ferry_plan *plan, const fy_route *route)
{
    return plan->problem.placements[route->src].layout.is_cut ||
           plan->problem.placements[route->dst].layout.is_cut;
}

static bool same_group(const fy_holders *a, const fy_holders *b)
{
    if (a->n_slots != b->n_slots) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_slots; i++) {
        if (a->rank[i] != b->rank[i]) {
            return false;
        }
    }
    return true;
}

/* The holder of a source cell with this replica number; of a shared cell, its first owner. */
static uint32_t holder_of(const fy_route *route, uint32_t cell, uint32_t replica)
{
    const fy_view *view = route->view;
    if (view->placement != FY_NONE) {
        return view->rank[view->cell_begin[cell] + replica % fy_view_cell_size(view, cell)];
    }
    return view->rank[view->cell_begin[cell] + replica];
}

uint32_t fy_seed_sender(const ferry_plan *plan, const fy_route *route, uint32_t cell,
                        uint32_t slot)
{
    const fy_holders *src     = route->view->holders;
    const fy_holders *dst     = fy_route_dst_holders(&plan->routes, route);
    const fy_seed    *seed    = plan->problem.placements[route->src].seed;
    uint32_t          rank    = dst->rank[slot];
    uint32_t          replica = fy_holders_replica(dst, slot);
    if (seed != NULL) {
        return fy_seed_choose(seed, plan->problem.placements[route->dst].seed, is_cut(plan, route),
                              cell, rank);
    }
    if (!is_cut(plan, route)) {
        return same_group(src, dst) ? rank : src->rank[rank % src->n_slots];
    }
    return holder_of(route, cell, src->seed_replica[replica % src->n_cells]);
}
