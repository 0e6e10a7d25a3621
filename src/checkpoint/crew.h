/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CHECKPOINT_CREW_H
#define FY_CHECKPOINT_CREW_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Threads that work off a list of parts while the caller's own thread looks on: it calls tick some
 * ten times a second, for progress, and for the wish to stop. Workers take the next part when they
 * have ended one, and take no more once one has failed.
 */
typedef struct fy_crew_job {
    uint32_t n_workers; /* no more than parts are started */
    size_t n_parts;
    /* worker is a number below n_workers, for what each has of its own. */
    ferry_status (*work)(void *context, uint32_t worker, size_t part, ferry_error *error);
    bool (*tick)(void *context); /* false: stop */
    void *context;
} fy_crew_job;

/*
 * Returns when all workers have ended. FERRY_OK, what the failing part of the lowest number
 * returned, or FERRY_ERR_STOPPED.
 */
ferry_status fy_crew_run(const fy_crew_job *job, ferry_error *error);

/* On a clock that only goes forward. */
double fy_seconds_now(void);

/* Cores that this process may use, at most 16. */
uint32_t fy_crew_default_size(void);

#endif
