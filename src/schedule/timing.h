/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_TIMING_H
#define FY_SCHEDULE_TIMING_H

#include "schedule/schedule.h"

/* When each batch is on the wire: [n_batches] each. */
typedef struct fy_timing {
    double *start;
    double *end;
} fy_timing;

/*
 * Fills the timing by following the fluid from event to event: for networks whose node ports may
 * limit (n_nodes > 0).
 */
ferry_status fy_timing_follow(const ferry_schedule *schedule, const fy_timing *timing,
                              ferry_error *error);

#endif
