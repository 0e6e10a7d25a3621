/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_KERNEL_STATE_H
#define FY_COLLECTIVE_KERNEL_STATE_H

#include "collective/device.h"
#include "collective/graphs.h"
#include "collective/kernel.h"

/* What a handle has for kernels: made by kernel_open.c, used by kernel.c. */
struct fy_mix_kernel {
    fy_mix_program program; /* its lanes are blocks of threads */
    fy_mix_device on;
    const fy_settings *settings;
    ferry_buffer memory; /* boxes, tables */
    ferry_region *own, **theirs;
    ferry_region *farewells; /* a word of each rank: its kernels are over for good */
    fy_mix_fleets fleets;    /* without one: all is done by boxes */
    fy_mix_post post;
    fy_mix_graphs *graphs; /* NULL: there can be none */
    uint32_t n_named;      /* calls that had a name for a number; who puts them has a lock */
    fy_lanes_watch watch;
    fy_lanes_tables tables[FERRY_MIXED_N_OPS][FERRY_MIXED_N_MODES];
    fy_lanes_state *counted; /* of each lane, when counts were reset */
    uint64_t n_ahead;        /* since then */
    bool is_alone;           /* of the ranks of this process, on its device */
    /* Of a call. */
    const fy_mix_ahead *ahead; /* NULL: the host launches it, on the handles' own queue */
    bool is_launched;
    fy_exec_queue *at; /* the queue that it is on */
    fy_ticket before;  /* of what lies before it there */
    int64_t since_ns;  /* when all its blocks might have begun */
    bool has_rung;     /* it will be said when it is over */
    fy_ticket ticket;
    uint64_t waits; /* of lanes, as they were seen last */
};

/* A lane that waits says nothing to the host before that. */
enum { FY_MIX_KERNEL_PATIENCE_NS = 2000000 };

/* deadline_ns: how long a lane waits for a message; 0: without end. */
ferry_status fy_mix_kernel_launch(fy_mix_kernel *kernel, const fy_mix_call *call,
                                  uint64_t deadline_ns, ferry_error *error);
/* Whether a lane has ended before the call did. */
bool fy_mix_kernel_has_stopped(const fy_mix_kernel *kernel);
/* All that is under way ends soon, and nothing begins any more. */
void fy_mix_kernel_stop(const fy_mix_kernel *kernel);

#endif
