/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_TEAM_H
#define FY_EXEC_TEAM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Threads that share work: the caller's own, and n - 1 that sleep between jobs (they spin for some
 * microseconds first). Nothing is allocated per job. A team of 1 makes no thread.
 */
typedef struct fy_team fy_team;

ferry_status fy_team_create(uint32_t n_threads, fy_team **team_out, ferry_error *error);
void fy_team_destroy(fy_team *team); /* NULL is allowed */
uint32_t fy_team_size(const fy_team *team);

/*
 * Calls work(context, i) once for each i below n_parts, on any thread of the team, the caller's
 * too; returns when all are done. Threads take the next part when they have ended one, so parts of
 * equal size are shared evenly on cores of unequal speed. What the parts have written past the
 * cache is fenced. For one thread at a time, and not for the parts themselves.
 */
void fy_team_run(fy_team *team, uint64_t n_parts, void (*work)(void *context, uint64_t part),
                 void *context);

#endif
