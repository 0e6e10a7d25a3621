/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_WAIT_H
#define FY_COLLECTIVE_WAIT_H

#include "collective/comm.h"
#include "world/world.h"

/*
 * How a call gets to its end. Lanes of one thread take turns; with a team each lane has a thread
 * and waits by itself.
 */
typedef struct fy_mix_driver {
    ferry_mixed_comm *comm;
    uint32_t first, n; /* lanes */
    bool worked;       /* anything was done since this was set to false */
    bool blocks;       /* a thread waits; else it is polled */
    bool waits;        /* what the board says */
    int64_t worked_ns;
} fy_mix_driver;

/* How long nothing is done before it is asked why. */
enum { FY_MIX_PATIENCE_NS = 20000000 };

bool fy_mix_is_over(const fy_mix_driver *driver);
/* All lanes, each as far as it gets. */
void fy_mix_work(fy_mix_driver *driver);
void fy_mix_work_network(ferry_mixed_comm *comm);
/* Nothing was done for a while: why, and whether that is too long. */
void fy_mix_look_around(fy_mix_driver *driver);
/* Waits; `as` is the call that others hear of. */
ferry_status fy_mix_work_until_over(ferry_mixed_comm *comm, fy_joint_call as, ferry_error *error);
/* What has failed is over for the devices as well, before the caller has his tensors back. */
ferry_status fy_mix_drain(ferry_mixed_comm *comm, ferry_status status);
/* What was asked of others in the call before. */
void fy_mix_forget_answers(ferry_mixed_comm *comm);

#endif
