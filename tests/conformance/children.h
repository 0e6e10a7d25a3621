/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_CONFORMANCE_CHILDREN_H
#define FERRY_TESTS_CONFORMANCE_CHILDREN_H

/*
 * The processes that run the ranks of a case: one for all ranks where they are threads, else one a
 * rank. A runner starts them, waits for them, and ends what is left by its pid.
 */
#include "conformance/suite.h"

#include <sys/types.h>

enum { SKIPPED = 77, MOST_CHILDREN = 64 };

/* A case on one row of a suite. */
typedef struct case_plan {
    rank_context me; /* of every rank, without what is its own; random: that of the suite */
    ferry_world_options world;
    void (*run)(rank_context *me); /* its world is destroyed for it */
    bool is_quiet;                 /* lines of the log go nowhere */
    bool is_checked;               /* a process has the same things before and after */
} case_plan;

/* Whether a row can run here: tried in a process of its own. Why not goes to the report. */
bool engine_available(const engine_row *engine, bool is_quiet, run_shared *shared);

/*
 * Says that a row cannot run here, and why: SKIPPED; or 1, a failure, where MUST_NOT_SKIP
 * (words with commas between) has the engine.
 */
int skip_engine(const engine_row *engine, const run_shared *shared);

/* The process of a rank, or of all; negative: see errno. It dies with the caller. */
pid_t start_child(const case_plan *plan, uint32_t rank);

/* The processes of a case. */
typedef struct crew {
    const case_plan *plan;
    pid_t pids[MOST_CHILDREN];
    bool is_stopped[MOST_CHILDREN];
    uint32_t n, n_left, n_died;
    int64_t begin_ns, end_ns;
    char why[512]; /* it is not well; or empty */
} crew;

/*
 * Starts all and waits for all, not longer than this. Who was stopped is ended when the others have
 * ended. Of a row that dies one process may end by a signal. Nothing is left behind. The plan must
 * live as long as the crew.
 */
void crew_run(crew *c, const case_plan *plan, double most_seconds);

/* Prints the line of the case; true if all is well. */
bool crew_report(const crew *c);

#endif
