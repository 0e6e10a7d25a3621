/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_PLAN_FILE_H
#define FY_PROVE_PLAN_FILE_H

#include "prove/move.h"
#include "prove/tally.h"

/* Takes the moves of a plan in the order of the file. */
typedef ferry_status (*fy_proof_move_fn)(void *context, const fy_proof_move *move,
                                         ferry_error *error);

/*
 * Reads a ferry.plan/1 file, whose keys may come in any order, as a stream: what it states goes
 * into the tally, every move to the callback. A file that is no such plan is
 * FERRY_ERR_INVALID_INPUT.
 */
ferry_status fy_proof_plan_read(const char *path, fy_proof_tally *tally, fy_proof_move_fn take,
                                void *context, ferry_error *error);

#endif
