/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_TIMING_CLOCK_H
#define FY_SCHEDULE_TIMING_CLOCK_H

#include "base/status.h"

#include <stdint.h>

/* The next event of each rank that has one, earliest first; of equal times, the lowest rank. */
typedef struct fy_clock {
    double *time;    /* [n_ranks] */
    uint32_t *heap;  /* ranks; the children of i are 4 i + 1 .. 4 i + 4 */
    uint32_t *place; /* [n_ranks] in the heap; FY_CLOCK_NOWHERE: no event */
    uint32_t n_events;
} fy_clock;

#define FY_CLOCK_NOWHERE UINT32_MAX

ferry_status fy_clock_init(fy_clock *clock, uint32_t n_ranks, ferry_error *error);
void fy_clock_cleanup(fy_clock *clock); /* of one that is all zero, too */

/* Gives a rank an event, or its event another time. */
void fy_clock_set(fy_clock *clock, uint32_t rank, double time);

/* Takes away the earliest event; there is one. */
void fy_clock_pop(fy_clock *clock);

#endif
