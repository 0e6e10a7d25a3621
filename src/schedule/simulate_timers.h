/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SIMULATE_TIMERS_H
#define FY_SCHEDULE_SIMULATE_TIMERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A fixed number of timers, each of which is set to one moment or off. Of equal moments the timer
 * with the lowest number comes first.
 */
typedef struct fy_timer {
    double when;
    uint32_t id;
} fy_timer;

typedef struct fy_timers {
    fy_timer *heap;     /* four children to a node: the earliest is heap[0] */
    uint32_t *position; /* [n_timers] in the heap; UINT32_MAX: off */
    uint32_t n_set;
} fy_timers;

/* False when memory is out; fy_timers_cleanup is due either way. */
bool fy_timers_init(fy_timers *timers, uint32_t n_timers);
void fy_timers_cleanup(fy_timers *timers);

/* Sets a timer, whether it was off or set to another moment. */
void fy_timers_set(fy_timers *timers, uint32_t id, double when);
/* Turns the earliest one off and returns it; one must be set. */
fy_timer fy_timers_take(fy_timers *timers);

#endif
