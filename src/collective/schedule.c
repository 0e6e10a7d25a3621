/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Schedules as data: what they are made of and what follows from them. */
#include "collective/schedule.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "collective/build.h"

#include <string.h>

/* Among whom an edge leads. */
typedef enum edge_group {
    OF_ITSELF,
    OF_LOCAL_TP,
    OF_NODE,
    OF_INTER_TP,
    OF_NODES,
    OF_WORLD,
    OF_TP,
    OF_DP
} edge_group;

static const struct {
    const char *name;
    edge_group group;
} edges[] = {
    [FY_MIX_EDGE_SPREAD_TP] = {"spread-tp", OF_LOCAL_TP},
    [FY_MIX_EDGE_SPREAD_ALL] = {"spread-all", OF_NODE},
    [FY_MIX_EDGE_JOIN_TP] = {"join-tp", OF_LOCAL_TP},
    [FY_MIX_EDGE_JOIN_ALL] = {"join-all", OF_NODE},
    [FY_MIX_EDGE_NODE_TP] = {"node-tp", OF_INTER_TP},
    [FY_MIX_EDGE_NODE_ALL] = {"node-all", OF_NODES},
    [FY_MIX_EDGE_BACK_TP] = {"back-tp", OF_INTER_TP},
    [FY_MIX_EDGE_BACK_ALL] = {"back-all", OF_NODES},
    [FY_MIX_EDGE_WORLD_UP] = {"world-up", OF_WORLD},
    [FY_MIX_EDGE_WORLD_DOWN] = {"world-down", OF_WORLD},
    [FY_MIX_EDGE_TP_UP] = {"tp-up", OF_TP},
    [FY_MIX_EDGE_TP_DOWN] = {"tp-down", OF_TP},
    [FY_MIX_EDGE_DP_UP] = {"dp-up", OF_DP},
    [FY_MIX_EDGE_DP_DOWN] = {"dp-down", OF_DP},
    [FY_MIX_EDGE_OWN] = {"own", OF_ITSELF},
};
_Static_assert(sizeof edges / sizeof edges[0] == FY_MIX_N_EDGES, "a row for each edge");

const char *fy_mix_edge_name(fy_mix_edge edge)
{
    return edge < FY_MIX_N_EDGES ? edges[edge].name : "";
}

bool fy_mix_edge_is_ring(fy_mix_edge edge)
{
    return edge >= FY_MIX_EDGE_WORLD_UP && edge <= FY_MIX_EDGE_DP_DOWN;
}

bool fy_mix_edge_is_between(fy_mix_edge edge)
{
    return edge >= FY_MIX_EDGE_NODE_TP && edge <= FY_MIX_EDGE_BACK_ALL;
}

uint32_t fy_mix_edge_group_size(const fy_topology *t, fy_mix_edge edge)
{
    switch (edges[edge].group) {
    case OF_LOCAL_TP:
        return t->local_tp;
    case OF_NODE:
        return t->local_size;
    case OF_INTER_TP:
        return t->inter_tp;
    case OF_NODES:
        return t->inter_size;
    case OF_WORLD:
        return t->world_size;
    case OF_TP:
        return t->tp;
    case OF_DP:
        return t->dp;
    default:
        return 1;
    }
}

uint32_t fy_mix_edge_group_index(const fy_topology *t, fy_mix_edge edge)
{
    switch (edges[edge].group) {
    case OF_LOCAL_TP:
        return t->local_tp_rank;
    case OF_NODE:
        return t->local_rank;
    case OF_INTER_TP:
        return t->inter_tp_rank;
    case OF_NODES:
        return t->inter_rank;
    case OF_WORLD:
        return t->world_rank;
    case OF_TP:
        return t->tp_rank;
    case OF_DP:
        return t->dp_rank;
    default:
        return 0;
    }
}

uint32_t fy_mix_edge_group_rank(const fy_topology *t, fy_mix_edge edge, uint32_t index)
{
    switch (edges[edge].group) {
    case OF_LOCAL_TP:
        return fy_mix_local_rank_at(t, index, t->local_dp_rank);
    case OF_NODE:
        return index + t->inter_rank * t->local_size;
    case OF_INTER_TP:
        return fy_topology_rank_at(t, t->local_tp_rank, t->local_dp_rank, index, t->inter_dp_rank);
    case OF_NODES:
        return t->local_rank + index * t->local_size;
    case OF_WORLD:
        return index;
    case OF_TP:
        return fy_topology_rank_of(t, index, t->dp_rank);
    case OF_DP:
        return fy_topology_rank_of(t, t->tp_rank, index);
    default:
        return t->world_rank;
    }
}

uint32_t fy_mix_edge_sender(const fy_topology *t, fy_mix_edge edge, uint32_t rank)
{
    if (fy_mix_edge_is_ring(edge)) {
        return 0; /* one neighbour in each direction */
    }
    fy_topology other = fy_topology_of_rank(t, rank);
    return fy_mix_edge_group_index(&other, edge);
}

fy_mix_span fy_mix_cut_span(const fy_mix_cut *cut, uint64_t n_elements, uint32_t line_elements)
{
    fy_mix_span part = {0, n_elements};
    if (cut->n > 1) {
        part = fy_mix_part_of(n_elements, cut->n, cut->index, line_elements);
    }
    if (cut->n_sub > 1) {
        fy_mix_span sub = fy_mix_part_of(part.length, cut->n_sub, cut->sub, line_elements);
        part = (fy_mix_span){part.begin + sub.begin, sub.length};
    }
    return part;
}

uint64_t fy_mix_cell_elements(const fy_mix_edge_use *use, uint64_t n_elements,
                              uint32_t line_elements)
{
    uint64_t n = n_elements;
    if (use->origin >= FY_MIX_ORIGIN_PART && use->n > 1) {
        n = fy_mix_part_longest(n, use->n, line_elements);
    }
    if (use->origin >= FY_MIX_ORIGIN_SUB && use->n_sub > 1) {
        n = fy_mix_part_longest(n, use->n_sub, line_elements);
    }
    return n;
}

uint64_t fy_mix_cell_bytes(const fy_mix_edge_use *use, uint64_t n_elements, uint32_t element_bytes)
{
    uint64_t n = fy_mix_cell_elements(use, n_elements, FY_MIX_LINE_BYTES / element_bytes);
    uint64_t bytes = n * (use->partial ? sizeof(float) : element_bytes);
    return fy_ceil_div(bytes, FY_MIX_LINE_BYTES) * FY_MIX_LINE_BYTES;
}

/* Which part of an inbox is whose. */
static void number_senders(const fy_topology *t, fy_mix_schedule *schedule)
{
    for (uint32_t i = 0; i < schedule->n_sums; i++) {
        fy_mix_sum *sum = &schedule->sums[i];
        for (uint32_t j = 0; j < sum->n_targets; j++) {
            if (sum->targets[j].kind == FY_MIX_PLACE_PEER_INBOX) {
                sum->targets[j].message =
                    fy_mix_edge_sender(t, (fy_mix_edge)sum->targets[j].edge, t->world_rank);
            }
        }
    }
    for (uint32_t i = 0; i < schedule->n_places; i++) {
        fy_mix_place *place = &schedule->places[i];
        if (place->kind == FY_MIX_PLACE_INBOX) {
            place->message = fy_mix_edge_sender(t, (fy_mix_edge)place->edge, place->rank);
        }
    }
}

/*
 * Whether what a rank sums inside its node is of all ranks there, or of its tensor-parallel group,
 * and no other one sums the same: the order of what is added up on the way is nobody's, so two
 * ranks might come to different bits. Whoever else wants it gets the sum itself.
 */
static bool may_add(const fy_topology *t, uint32_t op, uint32_t mode)
{
    bool has_parts = fy_mix_mode_has_parts(mode);
    if (t->local_size == 1) {
        return false;
    }
    return fy_mix_op_scatters(op) ? has_parts || t->local_tp == 1 : has_parts && t->local_tp > 1;
}

ferry_status fy_mix_schedule_build(const fy_topology *topology, uint32_t op, uint32_t mode,
                                   const fy_mix_schedule_options *options,
                                   fy_mix_schedule *schedule_out, ferry_error *error)
{
    fy_mix_schedule schedule = {.op = op, .mode = mode};
    bool shared = mode == FERRY_MIXED_FUSED_WAITS_MULTICAST ||
                  mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST ||
                  mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST;
    fy_mix_builder b = {.topology = topology,
                        .options = options,
                        .schedule = &schedule,
                        .adds = options->adds && shared && may_add(topology, op, mode),
                        .inside = shared            ? FY_MIX_FORM_MULTICAST
                                  : options->mapped ? FY_MIX_FORM_STORE
                                                    : FY_MIX_FORM_PUT};
    bool is_fused = fy_mix_mode_is_fused(mode);
    FY_TRY(fy_program_lane_add(&schedule.program, FY_ALONE, false, is_fused, error));
    if (!is_fused) {
        fy_mix_build_ring(&b);
    } else if (fy_mix_op_scatters(op)) {
        fy_mix_build_scatter(&b);
    } else {
        fy_mix_build_gather(&b);
    }
    if (b.failed) {
        fy_mix_schedule_cleanup(&schedule);
        return fy_fail_no_memory(error, "the schedule of a mixed collective");
    }
    number_senders(topology, &schedule);
    *schedule_out = schedule;
    return FERRY_OK;
}

void fy_mix_schedule_cleanup(fy_mix_schedule *schedule)
{
    fy_program_cleanup(&schedule->program);
    fy_free(schedule->sums);
    fy_free(schedule->places);
    fy_free(schedule->links);
    memset(schedule, 0, sizeof *schedule);
}
