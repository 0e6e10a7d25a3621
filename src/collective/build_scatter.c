/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused operations that scatter: reduce-scatter, and all-reduce behind it. They mirror
 * build_gather.c: sums inside the node come first, then those across nodes. This rank ends with
 * chunk dp_rank of the sum over the whole world.
 */
#include "collective/build.h"

/* The part of a chunk that a local rank reduces: all of it, or that of its tensor-parallel rank. */
static fy_mix_cut cut_of(const fy_mix_builder *b, uint32_t local_tp_rank)
{
    return fy_mix_mode_has_parts(b->schedule->mode)
               ? fy_mix_cut_part(b->topology->local_tp, local_tp_rank)
               : fy_mix_cut_whole();
}

static uint32_t n_parts(const fy_mix_builder *b)
{
    return fy_mix_mode_has_parts(b->schedule->mode) ? b->topology->local_tp : 1;
}

static uint32_t chunk_of(const fy_topology *t, uint32_t local_dp_rank, uint32_t inter_dp_rank)
{
    return local_dp_rank + inter_dp_rank * t->local_dp;
}

static bool is_shared(const fy_mix_builder *b)
{
    return b->inside == FY_MIX_FORM_MULTICAST;
}

/* To one rank of the node: its piece of its chunk, for each data-parallel group of nodes. */
static void spread_to(fy_mix_builder *b, uint32_t local_rank)
{
    const fy_topology *t = b->topology;
    uint32_t local_tp = local_rank % t->local_tp, local_dp = local_rank / t->local_tp;
    for (uint32_t inter_dp = 0; inter_dp < t->inter_dp; inter_dp++) {
        uint32_t chunk = chunk_of(t, local_dp, inter_dp);
        fy_mix_place to = fy_mix_outbox(FY_MIX_EDGE_SPREAD_ALL, is_shared(b) ? 0 : local_rank,
                                        is_shared(b) ? chunk : inter_dp,
                                        is_shared(b) ? FY_MIX_ORIGIN_BLOCK : FY_MIX_ORIGIN_PART);
        to.counts = b->inside != FY_MIX_FORM_PUT && !(b->adds && local_rank == t->local_rank);
        if (b->inside == FY_MIX_FORM_STORE) {
            to.kind = FY_MIX_PLACE_PEER_INBOX;
            to.rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_SPREAD_ALL, local_rank);
        }
        fy_mix_copy_piece(b, cut_of(b, local_tp), fy_mix_in(chunk), to);
    }
}

/*
 * Multicast writes what several ranks reduce once: without parts that is what the ranks of a local
 * tensor-parallel group have in common. What all have is written, too, where it is added up.
 */
static bool is_written(const fy_mix_builder *b, uint32_t local_rank)
{
    const fy_topology *t = b->topology;
    if (b->adds) {
        return true;
    }
    if (!is_shared(b) || fy_mix_mode_has_parts(b->schedule->mode)) {
        return local_rank != t->local_rank;
    }
    bool first = local_rank % t->local_tp == 0;
    return first && !(t->local_tp == 1 && local_rank == t->local_rank);
}

static void spread(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    const fy_mix_edge_need need = {is_shared(b) ? 1 : t->local_size,
                                   is_shared(b) ? t->dp : t->inter_dp,
                                   n_parts(b),
                                   1,
                                   is_shared(b) ? FY_MIX_ORIGIN_BLOCK : FY_MIX_ORIGIN_PART,
                                   false};
    fy_mix_begin_stage(b);
    if (t->local_size == 1) {
        return;
    }
    fy_mix_use_edge(b, FY_MIX_EDGE_SPREAD_ALL, &need);
    for (uint32_t local_rank = 0; local_rank < t->local_size; local_rank++) {
        if (is_written(b, local_rank)) {
            spread_to(b, local_rank);
        }
    }
    fy_mix_post_to_edge(b, FY_MIX_EDGE_SPREAD_ALL, !is_shared(b));
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_SPREAD_ALL);
}

/* Everybody's piece of the chunk that this local rank reduces for a data-parallel group of nodes,
 * in a sum that is open. */
static void add_local_sources(fy_mix_builder *b, uint32_t inter_dp)
{
    const fy_topology *t = b->topology;
    uint32_t chunk = chunk_of(t, t->local_dp_rank, inter_dp);
    if (b->adds) {
        fy_mix_add_source(b, fy_mix_added(FY_MIX_EDGE_SPREAD_ALL, chunk));
        return;
    }
    for (uint32_t local_rank = 0; local_rank < t->local_size; local_rank++) {
        if (local_rank == t->local_rank) {
            fy_mix_add_source(b, fy_mix_in(chunk));
        } else {
            fy_mix_add_source(
                b, fy_mix_from_peer(b, FY_MIX_EDGE_SPREAD_ALL,
                                    fy_mix_edge_group_rank(t, FY_MIX_EDGE_SPREAD_ALL, local_rank),
                                    is_shared(b) ? chunk : inter_dp,
                                    is_shared(b) ? FY_MIX_ORIGIN_BLOCK : FY_MIX_ORIGIN_PART));
        }
    }
}

static bool has_join(const fy_mix_builder *b)
{
    return fy_mix_mode_has_parts(b->schedule->mode) && b->topology->local_tp > 1;
}

static void use_join(fy_mix_builder *b)
{
    const fy_mix_edge_need need = {1, 1, b->topology->local_tp, 1, FY_MIX_ORIGIN_PART, false};
    if (has_join(b)) {
        fy_mix_use_edge(b, FY_MIX_EDGE_JOIN_TP, &need);
    }
}

/* Ends an open sum whose result is a piece of the output, and gives it to those who want it too. */
static void finish_piece(fy_mix_builder *b, fy_mix_cut cut)
{
    fy_mix_add_target(b, fy_mix_out(0));
    if (has_join(b)) {
        fy_mix_share_target(b, FY_MIX_EDGE_JOIN_TP, 0, FY_MIX_ORIGIN_PART);
    }
    fy_mix_end_sum(b);
    if (has_join(b)) {
        fy_mix_share_rest(b, FY_MIX_EDGE_JOIN_TP, cut, fy_mix_out(0), 0, FY_MIX_ORIGIN_PART);
    }
}

static void join_parts(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    if (!has_join(b)) {
        return;
    }
    fy_mix_post_to_edge(b, FY_MIX_EDGE_JOIN_TP, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_JOIN_TP);
    for (uint32_t i = 0; i < t->local_tp; i++) {
        if (i != t->local_tp_rank) {
            fy_mix_copy_piece(b, fy_mix_cut_part(t->local_tp, i),
                              fy_mix_from_peer(b, FY_MIX_EDGE_JOIN_TP,
                                               fy_mix_edge_group_rank(t, FY_MIX_EDGE_JOIN_TP, i), 0,
                                               FY_MIX_ORIGIN_PART),
                              fy_mix_out(0));
        }
    }
}

/* Partial sums of the node for every other node: by data-parallel group, or by node. */
static void reduce_for_nodes(fy_mix_builder *b, bool by_node)
{
    const fy_topology *t = b->topology;
    bool partial = b->options->deterministic;
    fy_mix_origin origin = by_node ? FY_MIX_ORIGIN_SUB : FY_MIX_ORIGIN_PART;
    uint32_t n_sub = by_node ? t->inter_tp : 1;
    const fy_mix_edge_need need = {
        by_node ? t->inter_size : t->inter_dp, 1, n_parts(b), n_sub, origin, partial};
    fy_mix_use_edge(b, FY_MIX_EDGE_NODE_ALL, &need);
    for (uint32_t inter_dp = 0; inter_dp < t->inter_dp; inter_dp++) {
        for (uint32_t sub = 0; sub < n_sub; sub++) {
            fy_mix_cut cut = cut_of(b, t->local_tp_rank);
            cut.n_sub = n_sub;
            cut.sub = sub;
            fy_mix_begin_sum(b, cut, false, partial);
            add_local_sources(b, inter_dp);
            fy_mix_add_target(
                b, fy_mix_outbox(FY_MIX_EDGE_NODE_ALL, sub + inter_dp * n_sub, 0, origin));
            fy_mix_end_sum(b);
        }
    }
    fy_mix_begin_links(b, FY_STEP_PUT, 0);
    for (uint32_t node = 0; node < t->inter_size; node++) {
        if (node != t->inter_rank) {
            fy_mix_add_link(b, FY_MIX_EDGE_NODE_ALL, FY_MIX_FORM_PUT,
                            fy_mix_edge_group_rank(t, FY_MIX_EDGE_NODE_ALL, node),
                            by_node ? node : node / t->inter_tp);
        }
    }
    fy_mix_end_links(b);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_NODE_ALL);
}

/* All nodes' partial sums of this rank's piece, in order of nodes. */
static void begin_sum_of_nodes(fy_mix_builder *b, fy_mix_cut cut, bool by_node)
{
    const fy_topology *t = b->topology;
    fy_mix_origin origin = by_node ? FY_MIX_ORIGIN_SUB : FY_MIX_ORIGIN_PART;
    fy_mix_begin_sum(b, cut, b->options->deterministic, false);
    for (uint32_t node = 0; node < t->inter_size; node++) {
        if (node == t->inter_rank) {
            fy_mix_add_source(b, fy_mix_outbox(FY_MIX_EDGE_NODE_ALL,
                                               by_node ? node : t->inter_dp_rank, 0, origin));
        } else {
            uint32_t rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_NODE_ALL, node);
            fy_mix_add_source(b, fy_mix_from_peer(b, FY_MIX_EDGE_NODE_ALL, rank, 0, origin));
        }
    }
}

/* Sub-parts that the nodes of the tensor-parallel group have finished come back. */
static void finish_sub_parts(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    const fy_mix_edge_need need = {1, 1, t->local_tp, t->inter_tp, FY_MIX_ORIGIN_SUB, false};
    fy_mix_place own = fy_mix_outbox(FY_MIX_EDGE_BACK_TP, 0, 0, FY_MIX_ORIGIN_SUB);
    fy_mix_cut cut = fy_mix_cut_sub(t->local_tp, t->local_tp_rank, t->inter_tp, t->inter_tp_rank);
    fy_mix_use_edge(b, FY_MIX_EDGE_BACK_TP, &need);
    begin_sum_of_nodes(b, cut, true);
    fy_mix_add_target(b, fy_mix_out(0));
    fy_mix_add_target(b, own);
    fy_mix_end_sum(b);
    fy_mix_post_to_edge(b, FY_MIX_EDGE_BACK_TP, false);
    fy_mix_begin_stage(b);
    fy_mix_wait_for_edge(b, FY_MIX_EDGE_BACK_TP);
    for (uint32_t i = 0; i < t->inter_tp; i++) {
        cut.sub = i;
        if (i != t->inter_tp_rank) {
            uint32_t rank = fy_mix_edge_group_rank(t, FY_MIX_EDGE_BACK_TP, i);
            fy_mix_begin_sum(b, cut, false, false);
            fy_mix_add_source(b,
                              fy_mix_from_peer(b, FY_MIX_EDGE_BACK_TP, rank, 0, FY_MIX_ORIGIN_SUB));
            finish_piece(b, cut);
        } else if (has_join(b)) {
            fy_mix_share(b, FY_MIX_EDGE_JOIN_TP, cut, own, 0, FY_MIX_ORIGIN_PART);
        }
    }
}

void fy_mix_build_scatter(fy_mix_builder *b)
{
    const fy_topology *t = b->topology;
    fy_mix_cut cut = cut_of(b, t->local_tp_rank);
    use_join(b);
    spread(b);
    if (t->inter_size == 1) {
        fy_mix_begin_sum(b, cut, false, false);
        add_local_sources(b, 0);
        finish_piece(b, cut);
    } else if (fy_mix_mode_has_sub_parts(b->schedule->mode)) {
        reduce_for_nodes(b, true);
        finish_sub_parts(b);
    } else {
        reduce_for_nodes(b, false);
        begin_sum_of_nodes(b, cut, false);
        finish_piece(b, cut);
    }
    join_parts(b);
}
