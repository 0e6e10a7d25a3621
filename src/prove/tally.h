/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_TALLY_H
#define FY_PROVE_TALLY_H

#include "prove/move.h"

/* Bytes of one rank. */
typedef struct fy_proof_bytes {
    uint64_t in;
    uint64_t out;
    uint64_t local;
} fy_proof_bytes;

/*
 * The totals twice: as the plan states them and as its moves add up. Either may come first in the
 * file; they are compared at the end. Only ranks of the two sides have a line.
 */
typedef struct fy_proof_tally {
    const fy_proof_spec *spec;
    uint64_t n_moves;
    uint64_t moved;
    uint64_t local;
    uint64_t world; /* from here on as stated */
    uint64_t n_tensors;
    uint64_t stated_moved;
    uint64_t stated_local;
    uint64_t stated_total;
    size_t n_lines; /* destination ranks, then source ranks, ascending */
    fy_proof_bytes *counted;
    fy_proof_bytes *stated;
    bool *is_listed;
} fy_proof_tally;

ferry_status fy_proof_tally_init(fy_proof_tally *tally, const fy_proof_spec *spec,
                                 ferry_error *error);
void fy_proof_tally_cleanup(fy_proof_tally *tally);

/* Its ranks are in the sides. */
ferry_status fy_proof_tally_move(fy_proof_tally *tally, const fy_proof_move *move,
                                 ferry_error *error);

/* A line of "ranks". */
ferry_status fy_proof_tally_rank(fy_proof_tally *tally, uint64_t rank, fy_proof_bytes bytes,
                                 ferry_error *error);

/* Compares all that was stated with all that was counted. */
ferry_status fy_proof_tally_check(const fy_proof_tally *tally, uint64_t n_wanted_tensors,
                                  ferry_error *error);

#endif
