/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_SIMULATE_H
#define FY_SCHEDULE_SIMULATE_H

#include "schedule/schedule.h"

/* What a simulation found. Immutable once it is made. */
struct ferry_simulation {
    ferry_schedule *schedule; /* held */
    ferry_simulation_options options;
    ferry_simulation_report report;
    ferry_simulation_rank *ranks; /* [n_ranks] */
    double *start;                /* [n_batches] on the wire */
    double *end;                  /* [n_batches] off the wire */
};

/*
 * Runs the schedule: fills start, end and ranks, whose idle is left to the caller, and seconds_out,
 * when the last byte was in place. FERRY_ERR_INVALID_PLAN if batches wait for each other in a
 * circle.
 */
ferry_status fy_simulation_run(ferry_simulation *simulation, double *seconds_out,
                               ferry_error *error);

#endif
