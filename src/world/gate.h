/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_GATE_H
#define FY_WORLD_GATE_H

#include "base/status.h"

#include <ferry/world.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * For memory that a process of the node can open, and that nothing takes from it again, as a
 * device's: each rank has a gate in the node's shared page. Who copies in a peer's memory says so
 * first, and looks whether the peer's gate is open; who shuts his gate waits for those that are
 * within. So a rank that was stopped before a copy, and wakes when it has been given up, begins
 * none. A world has gates of its own, so those of a smaller one are open again.
 */
typedef struct fy_gate {
    _Atomic uint32_t is_shut;  /* since when, in milliseconds; 0: it is open */
    _Atomic uint32_t n_visits; /* of this rank, to whatever peers */
} fy_gate;

/* False: the peer's gate is shut, or it is not on this node, and nothing may be touched. */
bool fy_gate_enter(ferry_world *world, uint32_t peer);
void fy_gate_leave(ferry_world *world);

/* Nobody enters from here on. FERRY_ERR_TIMEOUT: a rank that may live is still within. */
ferry_status fy_gate_shut(ferry_world *world, ferry_error *error);

#endif
