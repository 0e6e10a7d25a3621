/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Schedules as data: what they are made of and what follows from them. */
#include "collective/schedule.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "collective/build.h"

#include <string.h>

static const char *const edge_names[] = {
    [FY_EDGE_SPREAD_TP] = "spread-tp",
    [FY_EDGE_SPREAD_ALL] = "spread-all",
    [FY_EDGE_JOIN_TP] = "join-tp",
    [FY_EDGE_JOIN_ALL] = "join-all",
    [FY_EDGE_NODE_TP] = "node-tp",
    [FY_EDGE_NODE_ALL] = "node-all",
    [FY_EDGE_BACK_TP] = "back-tp",
    [FY_EDGE_BACK_ALL] = "back-all",
    [FY_EDGE_WORLD_UP] = "world-up",
    [FY_EDGE_WORLD_DOWN] = "world-down",
    [FY_EDGE_TP_UP] = "tp-up",
    [FY_EDGE_TP_DOWN] = "tp-down",
    [FY_EDGE_DP_UP] = "dp-up",
    [FY_EDGE_DP_DOWN] = "dp-down",
    [FY_EDGE_OWN] = "own",
};
_Static_assert(sizeof edge_names / sizeof edge_names[0] == FY_N_EDGES, "a name for each edge");

const char *fy_edge_name(fy_edge edge)
{
    return edge < FY_N_EDGES ? edge_names[edge] : "";
}

bool fy_edge_is_ring(fy_edge edge)
{
    return edge >= FY_EDGE_WORLD_UP && edge <= FY_EDGE_DP_DOWN;
}

bool fy_edge_is_between(fy_edge edge)
{
    return edge >= FY_EDGE_NODE_TP && edge <= FY_EDGE_BACK_ALL;
}

uint32_t fy_edge_group_size(const fy_topology *t, fy_edge edge)
{
    switch (edge) {
    case FY_EDGE_SPREAD_TP:
    case FY_EDGE_JOIN_TP:
        return t->local_tp;
    case FY_EDGE_SPREAD_ALL:
    case FY_EDGE_JOIN_ALL:
        return t->local_size;
    case FY_EDGE_NODE_TP:
    case FY_EDGE_BACK_TP:
        return t->inter_tp;
    case FY_EDGE_NODE_ALL:
    case FY_EDGE_BACK_ALL:
        return t->inter_size;
    case FY_EDGE_WORLD_UP:
    case FY_EDGE_WORLD_DOWN:
        return t->world_size;
    case FY_EDGE_TP_UP:
    case FY_EDGE_TP_DOWN:
        return t->tp;
    case FY_EDGE_DP_UP:
    case FY_EDGE_DP_DOWN:
        return t->dp;
    default:
        return 1;
    }
}

uint32_t fy_edge_group_rank(const fy_topology *t, fy_edge edge, uint32_t index)
{
    switch (edge) {
    case FY_EDGE_SPREAD_TP:
    case FY_EDGE_JOIN_TP:
        return fy_local_rank_at(t, index, t->local_dp_rank);
    case FY_EDGE_SPREAD_ALL:
    case FY_EDGE_JOIN_ALL:
        return index + t->inter_rank * t->local_size;
    case FY_EDGE_NODE_TP:
    case FY_EDGE_BACK_TP:
        return fy_topology_rank_at(t, t->local_tp_rank, t->local_dp_rank, index, t->inter_dp_rank);
    case FY_EDGE_NODE_ALL:
    case FY_EDGE_BACK_ALL:
        return t->local_rank + index * t->local_size;
    case FY_EDGE_WORLD_UP:
    case FY_EDGE_WORLD_DOWN:
        return index;
    case FY_EDGE_TP_UP:
    case FY_EDGE_TP_DOWN:
        return fy_topology_rank_of(t, index, t->dp_rank);
    case FY_EDGE_DP_UP:
    case FY_EDGE_DP_DOWN:
        return fy_topology_rank_of(t, t->tp_rank, index);
    default:
        return t->world_rank;
    }
}

uint32_t fy_edge_group_index(const fy_topology *t, fy_edge edge)
{
    switch (edge) {
    case FY_EDGE_SPREAD_TP:
    case FY_EDGE_JOIN_TP:
        return t->local_tp_rank;
    case FY_EDGE_SPREAD_ALL:
    case FY_EDGE_JOIN_ALL:
        return t->local_rank;
    case FY_EDGE_NODE_TP:
    case FY_EDGE_BACK_TP:
        return t->inter_tp_rank;
    case FY_EDGE_NODE_ALL:
    case FY_EDGE_BACK_ALL:
        return t->inter_rank;
    case FY_EDGE_WORLD_UP:
    case FY_EDGE_WORLD_DOWN:
        return t->world_rank;
    case FY_EDGE_TP_UP:
    case FY_EDGE_TP_DOWN:
        return t->tp_rank;
    case FY_EDGE_DP_UP:
    case FY_EDGE_DP_DOWN:
        return t->dp_rank;
    default:
        return 0;
    }
}

uint32_t fy_edge_sender(const fy_topology *t, fy_edge edge, uint32_t rank)
{
    if (fy_edge_is_ring(edge)) {
        return 0; /* one neighbour in each direction */
    }
    fy_topology other = fy_topology_of_rank(t, rank);
    return fy_edge_group_index(&other, edge);
}

fy_span fy_cut_span(const fy_cut *cut, uint64_t n_elements, uint32_t line_elements)
{
    fy_span part = {0, n_elements};
    if (cut->n > 1) {
        part = fy_part_of(n_elements, cut->n, cut->index, line_elements);
    }
    if (cut->n_sub > 1) {
        fy_span sub = fy_part_of(part.length, cut->n_sub, cut->sub, line_elements);
        part = (fy_span){part.begin + sub.begin, sub.length};
    }
    return part;
}

uint64_t fy_cell_elements(const fy_edge_use *use, uint64_t n_elements, uint32_t line_elements)
{
    uint64_t n = n_elements;
    if (use->origin >= FY_ORIGIN_PART && use->n > 1) {
        n = fy_part_longest(n, use->n, line_elements);
    }
    if (use->origin >= FY_ORIGIN_SUB && use->n_sub > 1) {
        n = fy_part_longest(n, use->n_sub, line_elements);
    }
    return n;
}

uint64_t fy_cell_bytes(const fy_edge_use *use, uint64_t n_elements, uint32_t element_bytes)
{
    uint64_t n = fy_cell_elements(use, n_elements, FY_LINE_BYTES / element_bytes);
    uint64_t bytes = n * (use->partial ? sizeof(float) : element_bytes);
    return fy_ceil_div(bytes, FY_LINE_BYTES) * FY_LINE_BYTES;
}

/* Which part of an inbox is whose. */
static void number_senders(const fy_topology *t, fy_schedule *schedule)
{
    for (uint32_t i = 0; i < schedule->n_actions; i++) {
        fy_action *action = &schedule->actions[i];
        for (uint32_t j = 0; j < action->n_targets; j++) {
            if (action->targets[j].kind == FY_PLACE_PEER_INBOX) {
                action->targets[j].message =
                    fy_edge_sender(t, (fy_edge)action->targets[j].edge, t->world_rank);
            }
        }
        for (uint32_t j = 0; action->kind == FY_ACTION_WAIT && j < action->n; j++) {
            fy_link *link = &schedule->links[action->first + j];
            link->message = fy_edge_sender(t, (fy_edge)link->edge, link->rank);
        }
    }
    for (uint32_t i = 0; i < schedule->n_places; i++) {
        fy_place *place = &schedule->places[i];
        if (place->kind == FY_PLACE_INBOX) {
            place->message = fy_edge_sender(t, (fy_edge)place->edge, place->rank);
        }
    }
}

ferry_status fy_schedule_build(const fy_topology *topology, uint32_t op, uint32_t mode,
                               const fy_schedule_options *options, fy_schedule *schedule_out,
                               ferry_error *error)
{
    fy_schedule schedule = {.op = op, .mode = mode, .pipelined = fy_mode_is_fused(mode)};
    bool shared = mode == FERRY_MIXED_FUSED_WAITS_MULTICAST ||
                  mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST ||
                  mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST;
    fy_builder b = {.topology = topology,
                    .options = options,
                    .schedule = &schedule,
                    .inside = shared            ? FY_FORM_MULTICAST
                              : options->mapped ? FY_FORM_STORE
                                                : FY_FORM_PUT};
    if (!fy_mode_is_fused(mode)) {
        fy_build_ring(&b);
    } else if (fy_op_scatters(op)) {
        fy_build_scatter(&b);
    } else {
        fy_build_gather(&b);
    }
    if (b.failed) {
        fy_schedule_cleanup(&schedule);
        return fy_fail_no_memory(error, "the schedule of a mixed collective");
    }
    number_senders(topology, &schedule);
    *schedule_out = schedule;
    return FERRY_OK;
}

void fy_schedule_cleanup(fy_schedule *schedule)
{
    fy_free(schedule->stages);
    fy_free(schedule->actions);
    fy_free(schedule->places);
    fy_free(schedule->links);
    memset(schedule, 0, sizeof *schedule);
}
