/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_MEMORY_H
#define FY_PROVE_MEMORY_H

#include "prove/plan_file.h"
#include "prove/target.h"

/*
 * How far a plan has come in the parameters of the destination: rank by rank, and in each in the
 * order of the spec. One that is passed over must have nothing to be written.
 */
typedef struct fy_proof_progress {
    fy_proof_target target; /* the parameter at hand */
    size_t position;        /* of its rank */
    size_t owned;           /* the next that is not closed */
    uint64_t last_offset;
    uint64_t n_parameters;
    uint64_t next_task; /* of the moves */
    uint64_t n_fills;
} fy_proof_progress;

/* Comes to the parameter of a move to the rank at that position. */
ferry_status fy_proof_progress_move(fy_proof_progress *progress, const fy_proof_spec *spec,
                                    const fy_proof_move *move, size_t position, ferry_error *error);

/* Comes to the parameter of a fill, and checks the fill. */
ferry_status fy_proof_progress_fill(fy_proof_progress *progress, const fy_proof_spec *spec,
                                    const fy_proof_fill *fill, ferry_error *error);

/* Behind the last move or fill. */
ferry_status fy_proof_progress_end(fy_proof_progress *progress, const fy_proof_spec *spec,
                                   ferry_error *error);

/* The parameter that a move names on a side, of the rank at that position. */
ferry_status fy_proof_find_parameter(const fy_proof_spec *spec, const fy_proof_move *move, int side,
                                     size_t position, const fy_proof_parameter **parameter_out,
                                     ferry_error *error);

#endif
