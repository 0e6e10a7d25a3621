/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_PLAN_FILE_H
#define FY_PROVE_PLAN_FILE_H

#include "prove/move.h"
#include "prove/tally.h"

/* A box that a receiver fills itself. Its texts live as long as the plan's JSON at hand. */
typedef struct fy_proof_fill {
    uint64_t rank;
    const char *parameter;
    const char *bits;
    uint64_t offset;
    size_t n_dims;
    uint64_t shape[FY_PROOF_DIMS];
    uint64_t strides[FY_PROOF_DIMS];
} fy_proof_fill;

/* Take the moves and the fills of a plan, each in the order of the file. */
typedef struct fy_proof_takers {
    ferry_status (*take_move)(void *context, const fy_proof_move *move, ferry_error *error);
    ferry_status (*take_fill)(void *context, const fy_proof_fill *fill, ferry_error *error);
    void *context;
} fy_proof_takers;

/*
 * Reads a ferry.plan/1 file, whose keys may come in any order, as a stream: what it states goes
 * into the tally, every move and fill to who takes it. A file that is no such plan is
 * FERRY_ERR_INVALID_INPUT.
 */
ferry_status fy_proof_plan_read(const char *path, fy_proof_tally *tally,
                                const fy_proof_takers *takers, ferry_error *error);

#endif
