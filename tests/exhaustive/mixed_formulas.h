/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_FORMULAS_H
#define FERRY_TESTS_MIXED_FORMULAS_H

/*
 * The tables of docs/collectives.md, "What each mode moves", row by row and in its letters: what a
 * rank counts for one message of one step that all divisors divide.
 */
#include "mixed_schedules.h"

typedef struct moved {
    uint64_t waits, written, read, between;
} moved;

typedef struct letters {
    uint64_t a, b, c, d; /* local tp, local dp, inter tp, inter dp */
    uint64_t L, N, W;
    uint64_t M; /* bytes of a piece */
    uint64_t P; /* bytes of a piece of partial sums between stages */
    bool multicast;
    /* Of this rank: how many of its two neighbours in a ring are in its node. */
    uint64_t world_near, tp_near, dp_near;
    /* In the world's ring, how many such neighbours bring a piece of this rank's chunk last: the
     * piece of the rank on the other side. */
    uint64_t last_wanted;
} letters;

/* Whether the step from a ring's index to the next, or to the one before, stays in the node: lower
 * is the coordinate that runs inside nodes. */
static inline uint64_t near_in_ring(uint64_t lower, uint64_t inside, uint64_t outside)
{
    if (inside * outside == 1) {
        return 0; /* no ring */
    }
    return outside == 1 ? 2 : (uint64_t)(lower + 1 < inside) + (lower > 0);
}

static inline uint64_t wanted_last(const fy_topology *t)
{
    fy_topology next = fy_topology_of_rank(t, (t->world_rank + 1) % t->world_size);
    fy_topology before =
        fy_topology_of_rank(t, (t->world_rank + t->world_size - 1) % t->world_size);
    bool up = before.inter_rank == t->inter_rank && next.dp_rank == t->dp_rank;
    bool down = next.inter_rank == t->inter_rank && before.dp_rank == t->dp_rank;
    return (uint64_t)up + down;
}

static inline letters letters_of(const fy_topology *t, uint32_t mode, uint64_t n, uint64_t e,
                                 uint64_t p)
{
    return (letters){.a = t->local_tp,
                     .b = t->local_dp,
                     .c = t->inter_tp,
                     .d = t->inter_dp,
                     .L = t->local_size,
                     .N = t->inter_size,
                     .W = t->world_size,
                     .M = n * e,
                     .P = n * p,
                     .multicast = is_multicast(mode),
                     .world_near = near_in_ring(t->local_rank, t->local_size, t->inter_size),
                     .tp_near = near_in_ring(t->local_tp_rank, t->local_tp, t->inter_tp),
                     .dp_near = near_in_ring(t->local_dp_rank, t->local_dp, t->inter_dp),
                     .last_wanted = wanted_last(t)};
}

static inline uint64_t if_several(uint64_t n)
{
    return n > 1 ? 1 : 0;
}

/* All-reduce, all-gather, all-reduce + all-gather. */

static inline moved gather_waits(const letters *l)
{
    uint64_t copies = l->L == 1 ? 0 : l->multicast ? 1 : l->L - 1;
    return (moved){.waits = if_several(l->N) + if_several(l->L),
                   .written = l->d * copies * l->M,
                   .read = l->d * (l->L - 1) * l->M,
                   .between = (l->N - 1) * l->M};
}

static inline moved gather_bytes1(const letters *l)
{
    uint64_t copies = l->multicast ? 1 : l->L - 1;
    return (moved){.waits = 2 + if_several(l->N),
                   .written = (l->a - 1 + l->d * copies) * l->M / l->a,
                   .read = (l->a - 1 + l->d * (l->L - 1)) * l->M / l->a,
                   .between = (l->N - 1) * l->P / l->a};
}

static inline moved gather_bytes2(const letters *l)
{
    uint64_t copies = l->L == 1 ? 0 : l->multicast ? 1 : l->L - 1;
    return (moved){.waits = 2 + if_several(l->a) + if_several(l->L),
                   .written = (l->a - 1 + l->d * copies) * l->M / l->a,
                   .read = (l->a - 1 + l->d * (l->L - 1)) * l->M / l->a,
                   .between = ((l->c - 1) * l->P + (l->N - 1) * l->M) / (l->a * l->c)};
}

/* Reduce-scatter, reduce-scatter + all-reduce. */

static inline moved scatter_waits(const letters *l)
{
    uint64_t groups = l->a > 1 ? l->b : l->b - 1; /* whose chunks somebody else wants */
    uint64_t copies = l->multicast ? groups : l->L - 1;
    return (moved){.waits = if_several(l->N) + if_several(l->L),
                   .written = l->d * copies * l->M,
                   .read = l->d * (l->L - 1) * l->M,
                   .between = (l->N - 1) * l->P};
}

static inline moved scatter_bytes1(const letters *l)
{
    uint64_t copies = l->multicast ? 1 : l->a - 1;
    return (moved){.waits = 2 + if_several(l->N),
                   .written = (l->d * (l->L - 1) + copies) * l->M / l->a,
                   .read = (l->d * (l->L - 1) + l->a - 1) * l->M / l->a,
                   .between = (l->N - 1) * l->P / l->a};
}

static inline moved scatter_bytes2(const letters *l)
{
    uint64_t copies = l->a == 1 ? 0 : l->multicast ? 1 : l->a - 1;
    return (moved){.waits = 2 + if_several(l->L) + if_several(l->a),
                   .written = (l->d * (l->L - 1) + copies) * l->M / l->a,
                   .read = (l->d * (l->L - 1) + l->a - 1) * l->M / l->a,
                   .between = ((l->N - 1) * l->P + (l->c - 1) * l->M) / (l->a * l->c)};
}

/* BASE. A ring sends `one_way` bytes to each of two neighbours; `near` of them are in the node. */

static inline moved in_ring(uint64_t waits, uint64_t one_way, uint64_t near)
{
    return (moved){waits, near * one_way, near * one_way, (2 - near) * one_way};
}

static inline moved one_all_reduce(const letters *l)
{
    if (l->W == 1) {
        return (moved){0, 0, 0, 0};
    }
    return in_ring(2 * (l->W - 1), (l->W - 1) * l->M / l->W, l->world_near);
}

/* All-gather, reduce-scatter, and all-reduce + all-gather, which gathers all inputs. */
static inline moved one_pieces(const letters *l)
{
    return in_ring(l->W - 1, (l->W - 1) * l->M / 2, l->world_near);
}

/*
 * A whole all-reduce of all chunks, in pieces of M/tp, halves of which come from each neighbour in
 * each pass: in the W - 1 that reduce and in all but the last that gather they are read, to go on;
 * in the last one only those of the own chunk.
 */
static inline moved one_scatter_all_reduce(const letters *l)
{
    uint64_t tp = l->a * l->c;
    moved m = in_ring(2 * (l->W - 1), (l->W - 1) * l->M / tp, l->world_near);
    m.read = (l->world_near * (2 * l->W - 3) + l->last_wanted) * l->M / (2 * tp);
    return m;
}

static inline moved tp_dp(const letters *l)
{
    uint64_t tp = l->a * l->c, dp = l->b * l->d;
    moved sum = in_ring(2 * (tp - 1), (tp - 1) * l->M / tp, l->tp_near);
    moved joint = in_ring(dp - 1, (dp - 1) * l->M / 2, l->dp_near);
    return (moved){sum.waits + joint.waits, sum.written + joint.written, sum.read + joint.read,
                   sum.between + joint.between};
}

/* Which row an operation and a mode have. */
typedef moved (*formula)(const letters *l);

static const struct formula_row {
    uint32_t op, mode; /* of fused modes the multicast one; both forms are one row */
    formula of;
} formula_rows[] = {
    {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_MULTICAST, gather_waits},
    {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES1_MULTICAST, gather_bytes1},
    {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES2_MULTICAST, gather_bytes2},
    {FERRY_MIXED_ALL_REDUCE, FERRY_MIXED_BASE_ONE, one_all_reduce},
    {FERRY_MIXED_ALL_GATHER, FERRY_MIXED_FUSED_WAITS_MULTICAST, gather_waits},
    {FERRY_MIXED_ALL_GATHER, FERRY_MIXED_BASE_ONE, one_pieces},
    {FERRY_MIXED_REDUCE_SCATTER, FERRY_MIXED_FUSED_WAITS_MULTICAST, scatter_waits},
    {FERRY_MIXED_REDUCE_SCATTER, FERRY_MIXED_BASE_ONE, one_pieces},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_FUSED_WAITS_MULTICAST, gather_waits},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_FUSED_BYTES1_MULTICAST, gather_bytes1},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_FUSED_BYTES2_MULTICAST, gather_bytes2},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_BASE_ONE, one_pieces},
    {FERRY_MIXED_ALL_REDUCE_ALL_GATHER, FERRY_MIXED_BASE_TP_DP, tp_dp},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_FUSED_WAITS_MULTICAST, scatter_waits},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES1_MULTICAST, scatter_bytes1},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_FUSED_BYTES2_MULTICAST, scatter_bytes2},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_BASE_ONE, one_scatter_all_reduce},
    {FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_MIXED_BASE_TP_DP, tp_dp},
};

static inline uint32_t row_mode(uint32_t mode)
{
    return is_base(mode) || is_multicast(mode) ? mode : mode - 1;
}

static inline moved moved_by(uint32_t op, uint32_t mode, const letters *l)
{
    _Static_assert(FERRY_MIXED_FUSED_WAITS_UNICAST == FERRY_MIXED_FUSED_WAITS_MULTICAST + 1 &&
                       FERRY_MIXED_FUSED_BYTES2_UNICAST == FERRY_MIXED_FUSED_BYTES2_MULTICAST + 1,
                   "the two forms of a mode are neighbours");
    for (size_t i = 0; i < COUNT_OF(formula_rows); i++) {
        if (formula_rows[i].op == op && formula_rows[i].mode == row_mode(mode)) {
            return formula_rows[i].of(l);
        }
    }
    fail_msg("no row for %s, %s", ferry_mixed_op_name(op), ferry_mixed_mode_name(mode));
    return (moved){0, 0, 0, 0};
}

/*
 * By multicast objects of nodes and of tensor-parallel groups in them: whether one sum comes of all
 * that a rank adds up inside the node; and what is read then, of what the tables have it read.
 */
static inline bool adds_up(uint32_t op, uint32_t mode, const letters *l)
{
    bool waits = row_mode(mode) == FERRY_MIXED_FUSED_WAITS_MULTICAST;
    if (!l->multicast || l->L == 1) {
        return false;
    }
    return op_rows[op].shrinks ? !waits || l->a == 1 : !waits && l->a > 1;
}

static inline uint64_t read_by_objects(uint32_t op, const letters *l, uint64_t read)
{
    uint64_t all = op_rows[op].shrinks ? l->d * (l->L - 1) : l->a - 1;
    uint64_t once = op_rows[op].shrinks ? l->d : 1;
    return read - all * l->M / l->a + once * l->M / l->a;
}

#endif
