/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_BUILD_H
#define FY_COLLECTIVE_BUILD_H

#include "collective/schedule.h"

/*
 * What the makers of schedules share. Calls append; where memory is missing they do nothing more,
 * and fy_schedule_build says so in the end.
 */
typedef struct fy_builder {
    const fy_topology *topology;
    const fy_schedule_options *options;
    fy_schedule *schedule;
    fy_form inside; /* of links inside the node */
    bool failed;
} fy_builder;

/* The makers. */
void fy_build_gather(fy_builder *b);  /* fused: all-reduce, all-gather, both */
void fy_build_scatter(fy_builder *b); /* fused: reduce-scatter, and then all-reduce */
void fy_build_ring(fy_builder *b);    /* BASE */

/* How much of a block a mode gives to one rank: parts of BYTES1 and BYTES2, and their sub-parts. */
bool fy_mode_is_fused(uint32_t mode);
bool fy_mode_has_parts(uint32_t mode);
bool fy_mode_has_sub_parts(uint32_t mode);
fy_cut fy_cut_whole(void);
fy_cut fy_cut_part(uint32_t n, uint32_t index);
fy_cut fy_cut_sub(uint32_t n, uint32_t index, uint32_t n_sub, uint32_t sub);
uint32_t fy_local_rank_at(const fy_topology *t, uint32_t local_tp_rank, uint32_t local_dp_rank);

/* Memory of an edge; once for each that the schedule uses. */
typedef struct fy_edge_need {
    uint32_t n_messages, n_cells, n, n_sub;
    fy_origin origin;
    bool partial;
} fy_edge_need;
void fy_use_edge(fy_builder *b, fy_edge edge, const fy_edge_need *need);

void fy_begin_stage(fy_builder *b);

/*
 * An action: begin, sources or links, end. An action without links, and a sum without targets, is
 * taken back.
 */
void fy_begin_sum(fy_builder *b, fy_cut cut, bool partial_sources, bool partial_targets);
void fy_add_source(fy_builder *b, fy_place source);
void fy_add_target(fy_builder *b, fy_place target);
void fy_end_sum(fy_builder *b);
void fy_copy_piece(fy_builder *b, fy_cut cut, fy_place from, fy_place to);

void fy_begin_links(fy_builder *b, fy_action_kind kind, uint32_t use);
void fy_add_link(fy_builder *b, fy_edge edge, fy_form form, uint32_t rank, uint32_t message);
void fy_end_links(fy_builder *b);

/* All other ranks of an edge: waits for them, or posts message 0 to each, or number i to the i-th.
 */
void fy_wait_for_edge(fy_builder *b, fy_edge edge);
void fy_post_to_edge(fy_builder *b, fy_edge edge, bool own_messages);

fy_place fy_in(uint32_t chunk);
fy_place fy_out(uint32_t chunk);
fy_place fy_outbox(fy_edge edge, uint32_t message, uint32_t cell, fy_origin origin);
fy_place fy_inbox(fy_edge edge, uint32_t rank, uint32_t cell, fy_origin origin);

/* What another rank of the edge has written for this one; of node edges from the inbox. */
fy_place fy_from_peer(const fy_builder *b, fy_edge edge, uint32_t rank, uint32_t cell,
                      fy_origin origin);

/*
 * Copies a piece to all other ranks of an inside edge: once (multicast, and a message that is put),
 * or once for each.
 */
void fy_share(fy_builder *b, fy_edge edge, fy_cut cut, fy_place from, uint32_t cell,
              fy_origin origin);
/*
 * The same within a sum that is open: adds the target that all read, if there is one; fy_share_rest
 * after its end copies what is still missing from `from`, a target of the sum.
 */
void fy_share_target(fy_builder *b, fy_edge edge, uint32_t cell, fy_origin origin);
void fy_share_rest(fy_builder *b, fy_edge edge, fy_cut cut, fy_place from, uint32_t cell,
                   fy_origin origin);

#endif
