/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_TUNE_HEAT_H
#define FY_COLLECTIVE_TUNE_HEAT_H

#include "collective/comm.h"

/*
 * Timing one operation at one size in several ways, in turn, so that whatever else the machine does
 * hits all of them alike. Every number that comes out is the same on all ranks.
 */
enum { FY_MOST_ENTRANTS = 24, FY_MOST_SAMPLES = 32, FY_MOST_ROUNDS = 24 };

typedef struct fy_entrant {
    uint32_t mode, block_lines; /* 0: the default geometry */
    uint32_t n_calls;           /* of a sample */
    uint32_t n_samples;
    double seconds; /* of a call: the lower median of the slowest rank's samples; 0: none yet */
    double least;
    double samples[FY_MOST_SAMPLES];
} fy_entrant;

typedef struct fy_course {
    ferry_mixed_comm *comm;
    uint32_t op;
    uint64_t bytes;       /* of a piece */
    ferry_buffer in, out; /* for the largest piece */
    double spent;         /* seconds, by the clock of the slowest rank */
    double mine[FY_MOST_ROUNDS * FY_MOST_ENTRANTS + 1]; /* this rank's times */
} fy_course;

/*
 * Collective: n_rounds samples more of every entrant, as long as there is room for them; n_rounds
 * is at most FY_MOST_ROUNDS. A failure may have left other ranks within a call.
 */
ferry_status fy_heat_run(fy_course *course, fy_entrant *entrants, size_t n, uint32_t n_rounds,
                         ferry_error *error);

/* Forgets all samples, but not the times. */
void fy_heat_clear(fy_entrant *entrants, size_t n);

/*
 * As many calls to a sample that the clock and the call before it are no part of its time, by the
 * least sample of each; whether some sample now has twice as many.
 */
bool fy_heat_set_calls(fy_entrant *entrants, size_t n);

/* The fastest first, by the median or by the least sample; equals by mode and block. */
void fy_heat_sort(fy_entrant *entrants, size_t n, bool by_least);

#endif
