/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef MIXED_STALLS_H
#define MIXED_STALLS_H

#include "collective/comm.h"

/*
 * Verbs in front of those of the library: something is called before every step of a handle's
 * lanes, waits may trust every epoch, and autotune's clock may be another one.
 */
typedef struct stalls {
    fy_mix_verbs verbs;                                     /* first: lanes point to it */
    void (*before)(void *context, const fy_mix_lane *lane); /* (optional) */
    int64_t (*now_ns)(void *context);                       /* (optional) */
    void *context;
    bool trusts_epochs;
} stalls;

static inline fy_progress stalled(void *context, uint32_t index, uint64_t number,
                                  const fy_program_step *step)
{
    const fy_mix_lane *lane = context;
    const stalls *s = (const stalls *)(const void *)lane->verbs;
    if (s->before != NULL) {
        s->before(s->context, lane);
    }
    if (s->trusts_epochs && step->kind == FY_STEP_WAIT) {
        return FY_PROGRESS_DONE;
    }
    return fy_mix_host_verbs.steps.run[step->kind](context, index, number, step);
}

static inline int64_t stalled_now_ns(const fy_mix_verbs *verbs)
{
    const stalls *s = (const stalls *)(const void *)verbs;
    return s->now_ns != NULL ? s->now_ns(s->context) : fy_now_ns();
}

/* Of a handle, until it is given its own again; s lives as long. */
static inline void stall_by(ferry_mixed_comm *comm, stalls *s)
{
    s->verbs = fy_mix_host_verbs;
    for (int kind = 0; kind < FY_N_STEP_KINDS; kind++) {
        s->verbs.steps.run[kind] = stalled;
    }
    s->verbs.now_ns = stalled_now_ns;
    comm->host_verbs = &s->verbs;
}

static inline void stall_no_more(ferry_mixed_comm *comm)
{
    comm->host_verbs = &fy_mix_host_verbs;
}

#endif
