/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_TUNE_H
#define FY_COLLECTIVE_TUNE_H

#include "collective/comm.h"

/*
 * What autotune knows of a handle: for every operation and size the times of modes, and which one
 * is taken. The same on all ranks.
 */

/*
 * Collective: measures; the table replaces the one before. The handle is opened and every rank
 * calls this. Tests may shorten it by options.autotune_bytes.
 */
ferry_status fy_tune_run(ferry_mixed_comm *comm, ferry_error *error);

/*
 * Collective: reads a saved table on every rank and compares; FERRY_ERR_INVALID_INPUT where it is
 * malformed, of another topology, type, or determinism, or not the same on all ranks.
 */
ferry_status fy_tune_load(ferry_mixed_comm *comm, const char *path, ferry_error *error);

/*
 * The mode for a piece of so many bytes, and the block in lines that it was fastest with (0: the
 * default geometry's): of the nearest measured size in log space. The handle has a table.
 */
void fy_tune_select(const ferry_mixed_comm *comm, uint32_t op, uint64_t piece_bytes,
                    uint32_t *mode_out, uint32_t *block_lines_out);

void fy_tune_destroy(fy_tuning *tuning); /* NULL is allowed */

#endif
