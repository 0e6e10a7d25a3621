/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_SHAPES_H
#define FERRY_TESTS_MIXED_SHAPES_H

#include "collective/topology.h"

#include "support/check.h"

/* Topologies of mixed collectives, by counting, and what they offer, as two tables. */

enum { MOST_RANKS = 64 };

typedef struct shape {
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
} shape;

#define check_shape(s, condition)                                                                  \
    check_at(condition, "local tp %u x dp %u, inter tp %u x dp %u", (s)->local_tp, (s)->local_dp,  \
             (s)->inter_tp, (s)->inter_dp)

static inline uint32_t local_size(const shape *s)
{
    return s->local_tp * s->local_dp;
}

static inline uint32_t inter_size(const shape *s)
{
    return s->inter_tp * s->inter_dp;
}

static inline uint32_t world_size(const shape *s)
{
    return local_size(s) * inter_size(s);
}

/* Returns how many there are. */
static inline uint32_t walk_shapes(void (*check)(const shape *s))
{
    uint32_t n = 0;
    shape s;
    for (s.local_tp = 1; s.local_tp <= MOST_RANKS; s.local_tp++) {
        for (s.local_dp = 1; local_size(&s) <= MOST_RANKS; s.local_dp++) {
            for (s.inter_tp = 1; local_size(&s) * s.inter_tp <= MOST_RANKS; s.inter_tp++) {
                for (s.inter_dp = 1; world_size(&s) <= MOST_RANKS; s.inter_dp++) {
                    check(&s);
                    n++;
                }
            }
        }
    }
    return n;
}

static inline fy_topology_wish wish_for(const shape *s, uint32_t world_rank)
{
    return (fy_topology_wish){
        .world_rank = world_rank,
        .world_size = world_size(s),
        .local_rank = world_rank % local_size(s),
        .local_size = local_size(s),
        .inter_rank = world_rank / local_size(s),
        .inter_size = inter_size(s),
        .local_tp = s->local_tp,
        .local_dp = s->local_dp,
        .inter_tp = s->inter_tp,
        .inter_dp = s->inter_dp,
    };
}

static inline fy_topology make(const shape *s, uint32_t world_rank)
{
    fy_topology_wish wish = wish_for(s, world_rank);
    fy_topology t;
    ferry_error error;
    must(fy_topology_make(&wish, &t, &error), &error);
    return t;
}

static inline bool same(const fy_topology *a, const fy_topology *b)
{
    _Static_assert(sizeof *a == 18 * sizeof(uint32_t), "a field that is not compared, or padding");
    return memcmp(a, b, sizeof *a) == 0;
}

/* By counting: no division, and the topology of every rank in turn. */
static inline void list_ranks(const shape *s, fy_topology *ranks)
{
    fy_topology t = {.world_size = world_size(s),
                     .local_size = local_size(s),
                     .inter_size = inter_size(s),
                     .local_tp = s->local_tp,
                     .local_dp = s->local_dp,
                     .inter_tp = s->inter_tp,
                     .inter_dp = s->inter_dp,
                     .tp = s->local_tp * s->inter_tp,
                     .dp = s->local_dp * s->inter_dp};
    for (t.inter_dp_rank = 0; t.inter_dp_rank < s->inter_dp; t.inter_dp_rank++) {
        for (t.inter_tp_rank = 0; t.inter_tp_rank < s->inter_tp; t.inter_tp_rank++) {
            t.local_rank = 0;
            for (t.local_dp_rank = 0; t.local_dp_rank < s->local_dp; t.local_dp_rank++) {
                for (t.local_tp_rank = 0; t.local_tp_rank < s->local_tp; t.local_tp_rank++) {
                    t.tp_rank = t.local_tp_rank + t.inter_tp_rank * s->local_tp;
                    t.dp_rank = t.local_dp_rank + t.inter_dp_rank * s->local_dp;
                    ranks[t.world_rank] = t;
                    t.world_rank++;
                    t.local_rank++;
                }
            }
            t.inter_rank++;
        }
    }
}

/* Operations: offered with tp > 1 and dp > 1, whether rows grow or shrink by dp. */
static const struct op_row {
    uint32_t op;
    bool tp, dp;
    bool grows, shrinks;
} op_rows[] = {
    {FERRY_MIXED_ALL_REDUCE, true, false, false, false},
    {FERRY_MIXED_ALL_GATHER, false, true, true, false},
    {FERRY_MIXED_REDUCE_SCATTER, false, true, false, true},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, true, true, true, false},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, true, true, false, true},
};

typedef enum mode_family { WAITS, BYTES, ONE, TP_DP } mode_family;

/* Modes. */
static const struct mode_row {
    uint32_t mode;
    mode_family family;
    bool in_place;
    bool local_tp, inter_tp, both; /* offered when > 1; both: tp and dp */
} mode_rows[] = {
    {FERRY_MIXED_FUSED_WAITS_MULTICAST, WAITS, true, false, false, false},
    {FERRY_MIXED_FUSED_WAITS_UNICAST, WAITS, false, false, false, false},
    {FERRY_MIXED_FUSED_BYTES1_MULTICAST, BYTES, true, true, false, false},
    {FERRY_MIXED_FUSED_BYTES1_UNICAST, BYTES, false, true, false, false},
    {FERRY_MIXED_FUSED_BYTES2_MULTICAST, BYTES, true, false, true, false},
    {FERRY_MIXED_FUSED_BYTES2_UNICAST, BYTES, false, false, true, false},
    {FERRY_MIXED_BASE_ONE, ONE, false, false, false, false},
    {FERRY_MIXED_BASE_TP_DP, TP_DP, false, false, false, true},
};

static inline bool offers_mode(const shape *s, const struct mode_row *row, bool multicast)
{
    bool both = s->local_tp * s->inter_tp > 1 && s->local_dp * s->inter_dp > 1;
    return (!row->local_tp || s->local_tp > 1) && (!row->inter_tp || s->inter_tp > 1) &&
           (!row->both || both) && (!row->in_place || multicast || local_size(s) == 1);
}

#endif
