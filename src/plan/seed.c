/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference's choice of replicas. It buckets the holders by DP group, takes the bucket by the
 * receiver's place in its own DP group, and the bucket's first entry, whose tensor-parallel group
 * sends. On a mesh, where the DP group of a holder is the replicas of its cell, every bucket begins
 * with the first replica: whichever bucket is taken, the lowest holder of each cell sends. Tensors
 * that neither side cuts stay where they are already; other ranks get them round robin from the
 * source's DP group.
 */
#include "plan/core.h"

#include "model/seed.h"

static bool is_cut(const ferry_plan *plan, const fy_route *route)
{
    return plan->problem.placements[route->src].layout.is_cut ||
           plan->problem.placements[route->dst].layout.is_cut;
}

static uint32_t choose(const ferry_plan *plan, const fy_route *route, uint32_t cell, uint32_t slot)
{
    const fy_holders *src = route->view->holders;
    const fy_seed *seed = plan->problem.placements[route->src].seed;
    uint32_t rank = fy_route_dst_holders(&plan->routes, route)->rank[slot];
    if (!is_cut(plan, route) && fy_holders_find(src, rank) != FY_NO_SLOT) {
        return rank; /* it has the parameter already */
    }
    if (seed != NULL) {
        return fy_seed_choose(seed, plan->problem.placements[route->dst].seed, is_cut(plan, route),
                              cell, rank);
    }
    if (!is_cut(plan, route)) {
        const fy_holders *whole = fy_plan_whole_table(plan, route->src);
        return whole->rank[rank % whole->n_slots];
    }
    return route->view->rank[route->view->cell_begin[cell]];
}

/*
 * Groups that were given may name ranks that do not have the parameter, or no longer: its first
 * holder sends then. A lost sender of what no side cuts is replaced round robin.
 */
uint32_t fy_seed_sender(const ferry_plan *plan, const fy_route *route, uint32_t cell, uint32_t slot)
{
    const fy_view *view = route->view;
    uint32_t sender = choose(plan, route, cell, slot);
    bool given = plan->problem.placements[route->src].seed != NULL;
    if (!given && plan->n_lost == 0) {
        return sender;
    }
    uint32_t holder = fy_holders_find(view->holders, sender);
    if (plan->n_lost > 0 && holder == FY_NO_SLOT && !is_cut(plan, route)) {
        uint32_t rank = fy_route_dst_holders(&plan->routes, route)->rank[slot];
        return view->holders->rank[rank % view->holders->n_slots];
    }
    if (given && (holder == FY_NO_SLOT || view->holders->cell[holder] != cell)) {
        return view->rank[view->cell_begin[cell]];
    }
    return sender;
}
