/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference's choice of replicas. On a mesh, the DP group of a holder is the replicas of its cell,
 * in mesh order; a bucket is a DP group, and a bucket's first entry is its lowest rank. The entry only
 * represents: the senders are the holders of the other cells with the entry's replica number, which is
 * its tensor-parallel group. Tensors that neither side cuts stay where they are already; other ranks get
 * them round robin from the source's DP group.
 */
#include "plan/core.h"

#include "model/seed.h"

static bool is_cut(const ferry_plan *plan, const fy_route *route)
{
    return plan->problem.placements[route->src].layout.is_cut ||
           plan->problem.placements[route->dst].layout.is_cut;
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

static uint32_t choose(const ferry_plan *plan, const fy_route *route, uint32_t cell, uint32_t slot)
{
    const fy_holders *src     = route->view->holders;
    const fy_holders *dst     = fy_route_dst_holders(&plan->routes, route);
    const fy_seed    *seed    = plan->problem.placements[route->src].seed;
    uint32_t          rank    = dst->rank[slot];
    uint32_t          replica = fy_holders_replica(dst, slot);
    if (!is_cut(plan, route) && fy_holders_find(src, rank) != FY_NO_SLOT) {
        return rank; /* it has the parameter already */
    }
    if (seed != NULL) {
        return fy_seed_choose(seed, plan->problem.placements[route->dst].seed, is_cut(plan, route),
                              cell, rank);
    }
    if (!is_cut(plan, route)) {
        return src->rank[rank % src->n_slots];
    }
    return holder_of(route, cell, src->seed_replica[replica % src->n_cells]);
}

/* Groups that were given may name ranks that do not have the parameter: its first holder sends then. */
uint32_t fy_seed_sender(const ferry_plan *plan, const fy_route *route, uint32_t cell, uint32_t slot)
{
    const fy_view *view   = route->view;
    uint32_t       sender = choose(plan, route, cell, slot);
    if (plan->problem.placements[route->src].seed != NULL) {
        uint32_t holder = fy_holders_find(view->holders, sender);
        if (holder == FY_NO_SLOT || view->holders->cell[holder] != cell) {
            return view->rank[view->cell_begin[cell]];
        }
    }
    return sender;
}
