/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_MIXED_SCHEDULES_H
#define FERRY_TESTS_MIXED_SCHEDULES_H

/* The schedules of all ranks of a small world, for every operation and mode that there is. */
#include "collective/schedule.h"

#include "mixed_shapes.h"

#include <stdlib.h>

typedef struct kind {
    uint32_t op, mode;
    bool deterministic, mapped;
    bool adds; /* what ranks sum is added up on the way, where it may be */
} kind;

typedef struct scheduled {
    const shape *s;
    kind k;
    uint32_t n_ranks;
    fy_topology *topologies;
    fy_mix_schedule *schedules;
} scheduled;

#define check_scheduled(w, condition)                                                              \
    check_at(condition, "%s, %s%s%s: local tp %u x dp %u, inter tp %u x dp %u",                    \
             ferry_mixed_op_name((w)->k.op), ferry_mixed_mode_name((w)->k.mode),                   \
             (w)->k.deterministic ? ", deterministic" : "", (w)->k.mapped ? "" : ", not mapped",   \
             (w)->s->local_tp, (w)->s->local_dp, (w)->s->inter_tp, (w)->s->inter_dp)

static inline void schedule_all(const shape *s, const kind *k, scheduled *w)
{
    const fy_mix_schedule_options options = {k->deterministic, k->mapped, k->adds};
    ferry_error error;
    *w = (scheduled){s, *k, world_size(s), NULL, NULL};
    w->topologies = calloc(w->n_ranks, sizeof *w->topologies);
    w->schedules = calloc(w->n_ranks, sizeof *w->schedules);
    assert_true(w->topologies != NULL && w->schedules != NULL);
    list_ranks(s, w->topologies);
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        must(fy_mix_schedule_build(&w->topologies[rank], k->op, k->mode, &options,
                                   &w->schedules[rank], &error),
             &error);
    }
}

static inline bool is_pipelined(const fy_mix_schedule *s)
{
    return s->program.lanes[0].is_pipelined;
}

static inline const fy_program_step *step_of_stage(const fy_mix_schedule *s, uint32_t stage,
                                                   uint32_t i)
{
    return &s->program.steps[s->program.blocks[stage].first_step + i];
}

static inline uint32_t count_steps(const fy_mix_schedule *s, fy_step_kind of)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->program.n_steps; i++) {
        n += s->program.steps[i].kind == of;
    }
    return n;
}

static inline void forget_schedules(scheduled *w)
{
    for (uint32_t rank = 0; rank < w->n_ranks; rank++) {
        fy_mix_schedule_cleanup(&w->schedules[rank]);
    }
    free(w->schedules);
    free(w->topologies);
}

/* What handles of this topology offer, with and without mapped memory and the one tree. */
enum { MOST_KINDS = 4 * FERRY_MIXED_N_OPS * FERRY_MIXED_N_MODES };

static inline uint32_t list_kinds(const shape *s, kind *kinds)
{
    fy_topology t = make(s, 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 4; i++) {
        bool deterministic = i % 2 != 0, mapped = i < 2;
        for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
            for (uint32_t mode = 0; mode < FERRY_MIXED_N_MODES; mode++) {
                if (fy_topology_has_op(&t, op) &&
                    fy_topology_has_mode(&t, mode, mapped, deterministic)) {
                    kinds[n++] = (kind){op, mode, deterministic, mapped, false};
                }
            }
        }
    }
    return n;
}

/* And those in which devices may add up; what they do not add is as without. */
static inline uint32_t list_adding_kinds(const shape *s, kind *kinds)
{
    kind all[MOST_KINDS];
    uint32_t n = 0;
    for (uint32_t i = 0, n_all = list_kinds(s, all); i < n_all; i++) {
        if (all[i].mapped && !all[i].deterministic) {
            kinds[n] = all[i];
            kinds[n++].adds = true;
        }
    }
    return n;
}

/* All topologies of n ranks. */
static inline void walk_shapes_of(uint32_t n, void (*check)(const shape *s))
{
    for (uint32_t local = 1; local <= n; local++) {
        for (uint32_t local_tp = 1; n % local == 0 && local_tp <= local; local_tp++) {
            uint32_t inter = n / local;
            for (uint32_t inter_tp = 1; local % local_tp == 0 && inter_tp <= inter; inter_tp++) {
                if (inter % inter_tp == 0) {
                    const shape s = {local_tp, local / local_tp, inter_tp, inter / inter_tp};
                    check(&s);
                }
            }
        }
    }
}

static inline bool is_multicast(uint32_t mode)
{
    return mode == FERRY_MIXED_FUSED_WAITS_MULTICAST ||
           mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST || mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST;
}

static inline bool is_base(uint32_t mode)
{
    return mode == FERRY_MIXED_BASE_ONE || mode == FERRY_MIXED_BASE_TP_DP;
}

/* Whose memory: rings run over any ranks, so "inside" is a matter of two ranks, not of an edge. */
static inline bool same_node(const scheduled *w, uint32_t a, uint32_t b)
{
    return w->topologies[a].inter_rank == w->topologies[b].inter_rank;
}

#endif
