/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_BUILD_H
#define FY_COLLECTIVE_BUILD_H

#include "collective/schedule.h"

/*
 * What the makers of schedules share. Calls append; where memory is missing they do nothing more,
 * and fy_mix_schedule_build says so in the end.
 */
typedef struct fy_mix_builder {
    const fy_topology *topology;
    const fy_mix_schedule_options *options;
    fy_mix_schedule *schedule;
    fy_mix_form inside; /* of links inside the node */
    bool adds;          /* what each rank of the node sums is added up as it is read */
    fy_step_kind kind;  /* of the links that were begun last, and which use theirs is */
    uint32_t use, first_link;
    bool failed;
} fy_mix_builder;

/* The makers. */
void fy_mix_build_gather(fy_mix_builder *b);  /* fused: all-reduce, all-gather, both */
void fy_mix_build_scatter(fy_mix_builder *b); /* fused: reduce-scatter, and then all-reduce */
void fy_mix_build_ring(fy_mix_builder *b);    /* BASE */

/* How much of a block a mode gives to one rank: parts of BYTES1 and BYTES2, and their sub-parts. */
bool fy_mix_mode_is_fused(uint32_t mode);
bool fy_mix_mode_has_parts(uint32_t mode);
bool fy_mix_mode_has_sub_parts(uint32_t mode);
fy_mix_cut fy_mix_cut_whole(void);
fy_mix_cut fy_mix_cut_part(uint32_t n, uint32_t index);
fy_mix_cut fy_mix_cut_sub(uint32_t n, uint32_t index, uint32_t n_sub, uint32_t sub);
uint32_t fy_mix_local_rank_at(const fy_topology *t, uint32_t local_tp_rank, uint32_t local_dp_rank);

/* Memory of an edge; once for each that the schedule uses. */
typedef struct fy_mix_edge_need {
    uint32_t n_messages, n_cells, n, n_sub;
    fy_mix_origin origin;
    bool partial;
} fy_mix_edge_need;
void fy_mix_use_edge(fy_mix_builder *b, fy_mix_edge edge, const fy_mix_edge_need *need);

void fy_mix_begin_stage(fy_mix_builder *b);

/* A step: begin, sources or links, end. One without links, and a sum without targets, is none. */
void fy_mix_begin_sum(fy_mix_builder *b, fy_mix_cut cut, bool partial_sources,
                      bool partial_targets);
void fy_mix_add_source(fy_mix_builder *b, fy_mix_place source);
void fy_mix_add_target(fy_mix_builder *b, fy_mix_place target);
void fy_mix_end_sum(fy_mix_builder *b);
void fy_mix_copy_piece(fy_mix_builder *b, fy_mix_cut cut, fy_mix_place from, fy_mix_place to);

void fy_mix_begin_links(fy_mix_builder *b, fy_step_kind kind, uint32_t use);
void fy_mix_add_link(fy_mix_builder *b, fy_mix_edge edge, fy_mix_form form, uint32_t rank,
                     uint32_t message);
void fy_mix_end_links(fy_mix_builder *b);

/* All other ranks of an edge: waits for them, or posts message 0 to each, or number i to the i-th.
 */
void fy_mix_wait_for_edge(fy_mix_builder *b, fy_mix_edge edge);
void fy_mix_post_to_edge(fy_mix_builder *b, fy_mix_edge edge, bool own_messages);

fy_mix_place fy_mix_in(uint32_t chunk);
fy_mix_place fy_mix_out(uint32_t chunk);
fy_mix_place fy_mix_outbox(fy_mix_edge edge, uint32_t message, uint32_t cell, fy_mix_origin origin);
fy_mix_place fy_mix_inbox(fy_mix_edge edge, uint32_t rank, uint32_t cell, fy_mix_origin origin);
fy_mix_place fy_mix_added(fy_mix_edge edge, uint32_t cell);

/* What another rank of the edge has written for this one; of node edges from the inbox. */
fy_mix_place fy_mix_from_peer(const fy_mix_builder *b, fy_mix_edge edge, uint32_t rank,
                              uint32_t cell, fy_mix_origin origin);

/*
 * Copies a piece to all other ranks of an inside edge: once (multicast, and a message that is put),
 * or once for each.
 */
void fy_mix_share(fy_mix_builder *b, fy_mix_edge edge, fy_mix_cut cut, fy_mix_place from,
                  uint32_t cell, fy_mix_origin origin);
/*
 * The same within a sum that is open: adds the target that all read, if there is one;
 * fy_mix_share_rest after its end copies what is still missing from `from`, a target of the sum.
 */
void fy_mix_share_target(fy_mix_builder *b, fy_mix_edge edge, uint32_t cell, fy_mix_origin origin);
void fy_mix_share_rest(fy_mix_builder *b, fy_mix_edge edge, fy_mix_cut cut, fy_mix_place from,
                       uint32_t cell, fy_mix_origin origin);

#endif
