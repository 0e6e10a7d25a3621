/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What BASE modes are to a library's collectives; nothing here moves anything. */
#include "collective/library.h"

fy_mix_seat fy_mix_seat_of(const fy_topology *t, fy_mix_group group)
{
    switch (group) {
    case FY_MIX_GROUP_TP:
        return (fy_mix_seat){t->tp_rank, t->tp, fy_topology_rank_of(t, 0, t->dp_rank)};
    case FY_MIX_GROUP_DP:
        return (fy_mix_seat){t->dp_rank, t->dp, fy_topology_rank_of(t, t->tp_rank, 0)};
    default:
        return (fy_mix_seat){t->world_rank, t->world_size, 0};
    }
}

static fy_mix_step call_of(fy_mix_group group, fy_circle_verb verb, fy_mix_step_end from,
                           fy_mix_step_end to, uint32_t chunks)
{
    return (fy_mix_step){.kind = FY_MIX_STEP_CALL,
                         .group = group,
                         .verb = verb,
                         .from = from,
                         .to = to,
                         .chunks = chunks};
}

static const fy_mix_step_end in = {FY_MIX_STEP_IN, 0}, out = {FY_MIX_STEP_OUT, 0},
                             between = {FY_MIX_STEP_BETWEEN, 0};

/* One collective over the world. */
static void make_one(const fy_topology *t, uint32_t op, fy_mix_steps *s)
{
    const fy_mix_step_end own = {FY_MIX_STEP_BETWEEN, t->dp_rank};
    switch (op) {
    case FERRY_MIXED_ALL_GATHER:
        s->steps[s->n++] = call_of(FY_MIX_GROUP_WORLD, FY_CIRCLE_ALL_GATHER, in, out, 1);
        break;
    case FERRY_MIXED_REDUCE_SCATTER:
        s->steps[s->n++] = call_of(FY_MIX_GROUP_WORLD, FY_CIRCLE_REDUCE_SCATTER, in, out, 1);
        break;
    case FERRY_MIXED_ALL_REDUCE_ALL_GATHER:
        s->n_between = t->world_size;
        s->steps[s->n++] = call_of(FY_MIX_GROUP_WORLD, FY_CIRCLE_ALL_GATHER, in, between, 1);
        s->steps[s->n++] = (fy_mix_step){.kind = FY_MIX_STEP_SUM, .from = between, .to = out};
        break;
    case FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE:
        s->n_between = t->dp;
        s->steps[s->n++] = call_of(FY_MIX_GROUP_WORLD, FY_CIRCLE_ALL_REDUCE, in, between, t->dp);
        s->steps[s->n++] = (fy_mix_step){.kind = FY_MIX_STEP_COPY, .from = own, .to = out};
        break;
    default:
        s->steps[s->n++] = call_of(FY_MIX_GROUP_WORLD, FY_CIRCLE_ALL_REDUCE, in, out, 1);
        break;
    }
}

/* One over each TP group, and one over each DP group. */
static void make_two(const fy_topology *t, uint32_t op, fy_mix_steps *s)
{
    const fy_mix_step_end own = {FY_MIX_STEP_OUT, t->dp_rank};
    if (op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER) {
        s->steps[s->n++] = call_of(FY_MIX_GROUP_TP, FY_CIRCLE_ALL_REDUCE, in, own, 1);
        s->steps[s->n++] = call_of(FY_MIX_GROUP_DP, FY_CIRCLE_ALL_GATHER, own, out, 1);
    } else {
        s->steps[s->n++] = call_of(FY_MIX_GROUP_DP, FY_CIRCLE_REDUCE_SCATTER, in, out, 1);
        s->steps[s->n++] = call_of(FY_MIX_GROUP_TP, FY_CIRCLE_ALL_REDUCE, out, out, 1);
    }
}

void fy_mix_steps_make(const fy_topology *topology, uint32_t op, uint32_t mode,
                       fy_mix_steps *steps_out)
{
    *steps_out = (fy_mix_steps){.n = 0};
    if (mode == FERRY_MIXED_BASE_TP_DP) {
        make_two(topology, op, steps_out);
    } else {
        make_one(topology, op, steps_out);
    }
}
