/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused operations that do not scatter: all-reduce, all-gather, and one after the other. Chunk
 * k of the output is the sum over the tensor-parallel ranks of group k; all-reduce has one chunk,
 * all-gather groups of one rank.
 */
#include "collective/build.h"

static uint32_t chunk_of(const fy_topology *t, uint32_t local_dp_rank, uint32_t inter_dp_rank)
{
    return local_dp_rank + inter_dp_rank * t->local_dp;
}

static uint32_t node_of(const fy_topology *t, uint32_t inter_tp_rank, uint32_t inter_dp_rank)
{
    return inter_tp_rank + inter_dp_rank * t->inter_tp;
}

/* The last stage of WAITS: each of the node's ranks has `n_cells` cells, and each is a summand. */
static void sum_node(fy_mix_builder *b, bool own_is_input)
{
    const fy_topology *t = b->topology;
    for (uint32_t inter_dp = 0; inter_dp < t->inter_dp; inter_dp++) {
        for (uint32_t local_dp = 0; local_dp < t->local_dp; local_dp++) {
            fy_mix_begin_sum(b, fy_mix_cut_whole(), false, false);
            for (uint32_t local_tp = 0; local_tp < t->local_tp; local_tp++) {
                uint32_t rank = fy_mix_local_rank_at(t, local_tp, local_dp);
                if (rank != t->world_rank) {
                    fy_mix_add_source(b, fy_mix_from_peer(b, FY_MIX_EDGE_SPREAD_ALL, rank, inter_dp,
                                                          FY_MIX_ORIGIN_BLOCK));
                } else if (own_is_input) {
                    fy_mix_add_source(b, fy_mix_in(0));
                } else {
                    fy_mix_add_source(
                        b, fy_mix_outbox(FY_MIX_EDGE_SPREAD_ALL, 0, inter_dp, FY_MIX_ORIGIN_BLOCK));
                }
            }
            fy_mix_add_target(b, fy_mix_out(chunk_of(t, local_dp, inter_dp)));
            fy_mix_end_sum(b);
        }
    }
}

static void waits_in_node(fy_mix_builder *b)
{
    const fy_mix_edge_need need = {1, 1, 1, 1, FY_MIX_ORIGIN_BLOCK, false};
    fy_mix_use_edge(b, FY_MIX_EDGE_SPREAD_ALL, &need);
    fy_mix_begin_stage(b);
    fy_mix_share(b, FY_MIX_EDGE_SPREAD_ALL, fy_mix_cut_whole(), fy_mix_in(0), 0,
                 FY_MIX_ORIGIN_BLOCK);
    fy_mix_post_to_edge(b, FY_MIX_EDGE_SPREAD_ALL, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_ALL);
    sum_node(b, true);
}

/* Sums over the nodes of one data-parallel group, of the cut that this rank has sent to all. */
static void add_node_sources(fy_mix_builder *b, uint32_t inter_dp, fy_mix_place own,
                             fy_mix_origin origin)
{
    const fy_topology *t = b->topology;
    for (uint32_t inter_tp = 0; inter_tp < t->inter_tp; inter_tp++) {
        uint32_t node = node_of(t, inter_tp, inter_dp);
        if (node == t->inter_rank) {
            fy_mix_add_source(b, own);
        } else {
            uint32_t rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_NODE_ALL, node);
            fy_mix_add_source(b, fy_mix_from_peer(b, FY_MIX_EDGE_NODE_ALL, rank, 0, origin));
        }
    }
}

/* Across nodes WAITS puts first: what it puts is the input, and not yet anybody's partial sum. */
static void waits_across(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    const fy_mix_edge_need to_nodes = {1, 1, 1, 1, FY_MIX_ORIGIN_BLOCK, false};
    const fy_mix_edge_need in_node = {1, t->inter_dp, 1, 1, FY_MIX_ORIGIN_BLOCK, false};
    bool alone = t->local_size == 1;
    fy_mix_place own_share = fy_mix_outbox(FY_MIX_EDGE_SPREAD_ALL, 0, 0, FY_MIX_ORIGIN_BLOCK);
    fy_mix_use_edge(b, FY_MIX_EDGE_NODE_ALL, &to_nodes);
    fy_mix_begin_stage(b);
    fy_mix_copy_piece(b, fy_mix_cut_whole(), fy_mix_in(0),
                      fy_mix_outbox(FY_MIX_EDGE_NODE_ALL, 0, 0, FY_MIX_ORIGIN_BLOCK));
    fy_mix_post_to_edge(b, FY_MIX_EDGE_NODE_ALL, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_NODE_ALL);
    if (!alone) {
        fy_mix_use_edge(b, FY_MIX_EDGE_SPREAD_ALL, &in_node);
    }
    for (uint32_t inter_dp = 0; inter_dp < t->inter_dp; inter_dp++) {
        own_share.cell = inter_dp;
        own_share.counts = !alone && b->inside == FY_MIX_FORM_MULTICAST;
        fy_mix_begin_sum(b, fy_mix_cut_whole(), false, false);
        add_node_sources(b, inter_dp, fy_mix_in(0), FY_MIX_ORIGIN_BLOCK);
        fy_mix_add_target(b, alone ? fy_mix_out(chunk_of(t, 0, inter_dp)) : own_share);
        fy_mix_end_sum(b);
        if (!alone) {
            own_share.counts = false;
            fy_mix_share_rest(b, FY_MIX_EDGE_SPREAD_ALL, fy_mix_cut_whole(), own_share, inter_dp,
                              FY_MIX_ORIGIN_BLOCK);
        }
    }
    if (!alone) {
        fy_mix_post_to_edge(b, FY_MIX_EDGE_SPREAD_ALL, false);
        fy_mix_begin_stage(b);
        fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_ALL);
        sum_node(b, false);
    }
}

/* Every rank of the local tensor-parallel group gets its part of this rank's input; also this one,
 * where what all have is added up. */
static void spread_parts(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    bool shared = b->inside == FY_MIX_FORM_MULTICAST;
    fy_mix_origin origin = shared ? FY_MIX_ORIGIN_BLOCK : FY_MIX_ORIGIN_PART;
    const fy_mix_edge_need need = {shared ? 1 : t->local_tp, 1, t->local_tp, 1, origin, false};
    if (t->local_tp == 1) {
        return;
    }
    fy_mix_use_edge(b, FY_MIX_EDGE_SPREAD_TP, &need);
    fy_mix_begin_stage(b);
    for (uint32_t i = 0; i < t->local_tp; i++) {
        if (i == t->local_tp_rank && !b->adds) {
            continue;
        }
        fy_mix_place target = fy_mix_outbox(FY_MIX_EDGE_SPREAD_TP, shared ? 0 : i, 0, origin);
        target.counts = b->inside != FY_MIX_FORM_PUT && i != t->local_tp_rank;
        if (b->inside == FY_MIX_FORM_STORE) {
            target.kind = FY_MIX_PLACE_PEER_INBOX;
            target.rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_SPREAD_TP, i);
        }
        fy_mix_copy_piece(b, fy_mix_cut_part(t->local_tp, i), fy_mix_in(0), target);
    }
    fy_mix_post_to_edge(b, FY_MIX_EDGE_SPREAD_TP, !shared);
}

/* This rank's part of everybody's input, in a sum that is open. */
static void add_part_sources(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    if (b->adds) {
        fy_mix_add_source(b, fy_mix_added(FY_MIX_EDGE_SPREAD_TP, 0));
        return;
    }
    for (uint32_t i = 0; i < t->local_tp; i++) {
        if (i == t->local_tp_rank) {
            fy_mix_add_source(b, fy_mix_in(0));
        } else {
            fy_mix_add_source(
                b, fy_mix_from_peer(b, FY_MIX_EDGE_SPREAD_TP,
                                    fy_mix_edge_group_rank(t, FY_MIX_EDGE_SPREAD_TP, i), 0,
                                    b->inside == FY_MIX_FORM_MULTICAST ? FY_MIX_ORIGIN_BLOCK
                                                                       : FY_MIX_ORIGIN_PART));
        }
    }
}

/* The last stage of BYTES: finished parts of the node's other ranks. */
static void join_parts(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    if (t->local_size == 1) {
        return;
    }
    fy_mix_post_to_edge(b, FY_MIX_EDGE_JOIN_ALL, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_JOIN_ALL);
    for (uint32_t local_dp = 0; local_dp < t->local_dp; local_dp++) {
        for (uint32_t local_tp = 0; local_tp < t->local_tp; local_tp++) {
            uint32_t rank = fy_mix_local_rank_at(t, local_tp, local_dp);
            for (uint32_t inter_dp = 0; rank != t->world_rank && inter_dp < t->inter_dp;
                 inter_dp++) {
                fy_mix_copy_piece(
                    b, fy_mix_cut_part(t->local_tp, local_tp),
                    fy_mix_from_peer(b, FY_MIX_EDGE_JOIN_ALL, rank, inter_dp, FY_MIX_ORIGIN_PART),
                    fy_mix_out(chunk_of(t, local_dp, inter_dp)));
            }
        }
    }
}

static void use_join(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    const fy_mix_edge_need need = {1, t->inter_dp, t->local_tp, 1, FY_MIX_ORIGIN_PART, false};
    if (t->local_size > 1) {
        fy_mix_use_edge(b, FY_MIX_EDGE_JOIN_ALL, &need);
    }
}

/* Ends an open sum whose result is a piece of the output, and gives it to the whole node. */
static void finish_piece(fy_mix_builder *b, fy_mix_cut cut, uint32_t inter_dp)
{
    const fy_topology *t = b->topology;
    fy_mix_place out = fy_mix_out(chunk_of(t, t->local_dp_rank, inter_dp));
    fy_mix_add_target(b, out);
    fy_mix_share_target(b, FY_MIX_EDGE_JOIN_ALL, inter_dp, FY_MIX_ORIGIN_PART);
    fy_mix_end_sum(b);
    fy_mix_share_rest(b, FY_MIX_EDGE_JOIN_ALL, cut, out, inter_dp, FY_MIX_ORIGIN_PART);
}

static void bytes_in_node(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    fy_mix_cut cut = fy_mix_cut_part(t->local_tp, t->local_tp_rank);
    use_join(b);
    spread_parts(b);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_TP);
    fy_mix_begin_sum(b, cut, false, false);
    add_part_sources(b);
    finish_piece(b, cut, 0);
    join_parts(b);
}

/* BYTES1 across nodes: each part, summed in its node, goes to all nodes at once. */
static void bytes1_across(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    bool partial = b->options->deterministic;
    fy_mix_cut cut = fy_mix_cut_part(t->local_tp, t->local_tp_rank);
    const fy_mix_edge_need need = {1, 1, t->local_tp, 1, FY_MIX_ORIGIN_PART, partial};
    fy_mix_place own = fy_mix_outbox(FY_MIX_EDGE_NODE_ALL, 0, 0, FY_MIX_ORIGIN_PART);
    use_join(b);
    fy_mix_use_edge(b, FY_MIX_EDGE_NODE_ALL, &need);
    spread_parts(b);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_TP);
    fy_mix_begin_sum(b, cut, false, partial);
    add_part_sources(b);
    fy_mix_add_target(b, own);
    fy_mix_end_sum(b);
    fy_mix_post_to_edge(b, FY_MIX_EDGE_NODE_ALL, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_NODE_ALL);
    for (uint32_t inter_dp = 0; inter_dp < t->inter_dp; inter_dp++) {
        fy_mix_begin_sum(b, cut, partial, false);
        add_node_sources(b, inter_dp, own, FY_MIX_ORIGIN_PART);
        finish_piece(b, cut, inter_dp);
    }
    join_parts(b);
}

/* Each node of the tensor-parallel group sums a sub-part of this rank's part. */
static void reduce_sub_parts(fy_mix_builder *b, bool partial)
{
    const fy_topology *t = b->topology;
    if (t->local_tp == 1) {
        fy_mix_begin_stage(b); /* there was nothing to spread */
    }
    for (uint32_t i = 0; i < t->inter_tp; i++) {
        fy_mix_begin_sum(b, fy_mix_cut_sub(t->local_tp, t->local_tp_rank, t->inter_tp, i), false,
                         partial);
        add_part_sources(b);
        fy_mix_add_target(b, fy_mix_outbox(FY_MIX_EDGE_NODE_TP, i, 0, FY_MIX_ORIGIN_SUB));
        fy_mix_end_sum(b);
    }
    fy_mix_post_to_edge(b, FY_MIX_EDGE_NODE_TP, true);
    fy_mix_cut cut = fy_mix_cut_sub(t->local_tp, t->local_tp_rank, t->inter_tp, t->inter_tp_rank);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_NODE_TP);
    fy_mix_begin_sum(b, cut, partial, false);
    for (uint32_t i = 0; i < t->inter_tp; i++) {
        if (i == t->inter_tp_rank) {
            fy_mix_add_source(b, fy_mix_outbox(FY_MIX_EDGE_NODE_TP, i, 0, FY_MIX_ORIGIN_SUB));
        } else {
            uint32_t rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_NODE_TP, i);
            fy_mix_add_source(b,
                              fy_mix_from_peer(b, FY_MIX_EDGE_NODE_TP, rank, 0, FY_MIX_ORIGIN_SUB));
        }
    }
    fy_mix_add_target(b, fy_mix_out(t->dp_rank));
    fy_mix_add_target(b, fy_mix_outbox(FY_MIX_EDGE_BACK_ALL, 0, 0, FY_MIX_ORIGIN_SUB));
    fy_mix_end_sum(b);
    fy_mix_post_to_edge(b, FY_MIX_EDGE_BACK_ALL, false);
}

static void bytes2_across(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    bool partial = b->options->deterministic;
    const fy_mix_edge_need there = {t->inter_tp,       1,      t->local_tp, t->inter_tp,
                                    FY_MIX_ORIGIN_SUB, partial};
    const fy_mix_edge_need back = {1, 1, t->local_tp, t->inter_tp, FY_MIX_ORIGIN_SUB, false};
    use_join(b);
    fy_mix_use_edge(b, FY_MIX_EDGE_NODE_TP, &there);
    fy_mix_use_edge(b, FY_MIX_EDGE_BACK_ALL, &back);
    spread_parts(b);
    if (t->local_tp > 1) {
        fy_mix_begin_stage(b);
        fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_TP);
    }
    reduce_sub_parts(b, partial);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_BACK_ALL);
    for (uint32_t node = 0; node < t->inter_size; node++) {
        uint32_t inter_tp = node % t->inter_tp, inter_dp = node / t->inter_tp;
        fy_mix_cut cut = fy_mix_cut_sub(t->local_tp, t->local_tp_rank, t->inter_tp, inter_tp);
        if (node == t->inter_rank) { /* the output has it */
            fy_mix_share(b, FY_MIX_EDGE_JOIN_ALL, cut,
                         fy_mix_outbox(FY_MIX_EDGE_BACK_ALL, 0, 0, FY_MIX_ORIGIN_SUB), inter_dp,
                         FY_MIX_ORIGIN_PART);
            continue;
        }
        uint32_t rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_BACK_ALL, node);
        fy_mix_begin_sum(b, cut, false, false);
        fy_mix_add_source(b, fy_mix_from_peer(b, FY_MIX_EDGE_BACK_ALL, rank, 0, FY_MIX_ORIGIN_SUB));
        finish_piece(b, cut, inter_dp);
    }
    join_parts(b);
}

void fy_mix_build_gather(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    uint32_t mode = b->schedule->mode;
    if (!fy_mix_mode_has_parts(mode)) {
        if (t->inter_size == 1) {
            waits_in_node(b);
        } else {
            waits_across(b);
        }
    } else if (t->inter_size == 1) {
        bytes_in_node(b);
    } else if (fy_mix_mode_has_sub_parts(mode)) {
        bytes2_across(b);
    } else {
        bytes1_across(b);
    }
}
