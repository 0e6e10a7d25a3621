/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_RUNS_H
#define FY_PROVE_RUNS_H

#include "prove/content.h"
#include "prove/target.h"

/* One side of a move: a shard of a mesh, or a parameter. */
typedef struct fy_proof_end {
    const fy_proof_shard *shard; /* NULL: there is a parameter */
    const fy_proof_parameter *parameter;
} fy_proof_end;

/* A move with a side in boxes. */
typedef struct fy_proof_ends {
    const fy_proof_spec *spec;
    const fy_proof_move *move;
    fy_proof_end sides[FY_PROOF_SIDES];
    fy_proof_target *target; /* with the destination's parameter; NULL: that is a mesh */
} fy_proof_ends;

/* What a move says of its places in memory: they are inside, and start and end on bytes. */
ferry_status fy_proof_check_places(const fy_proof_ends *ends, ferry_error *error);

/*
 * Both sides of the move are the same box of the tensor: from the first element on, the move is cut
 * into runs, in which the next element on any dimension is the next one of the tensor, at the
 * source and at the destination. What it writes goes to the target.
 */
ferry_status fy_proof_check_runs(const fy_proof_ends *ends, ferry_error *error);

#endif
