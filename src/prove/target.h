/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_TARGET_H
#define FY_PROVE_TARGET_H

#include "prove/cover.h"
#include "prove/made.h"
#include "prove/spec.h"

/* Elements of one turn of a box that a task writes, by its dimensions. */
typedef struct fy_proof_cell {
    size_t box;
    uint64_t turn; /* of its loops, counted through */
    fy_proof_written written;
} fy_proof_cell;

/*
 * The parameter of a destination rank that is at hand, and what was written of it: of a small one
 * for every element by whom, of a large one a list of cells. One target takes moves, and another
 * one fills.
 */
typedef struct fy_proof_target {
    bool is_of_fills;
    fy_proof_makers *makers; /* of a target that takes moves: who makes codes and scales */
    size_t owned;            /* the number of the parameter among all that ranks have */
    const fy_proof_parameter *parameter; /* NULL: none is at hand */
    uint64_t rank;
    bool is_small;
    uint32_t *owners; /* of each element: 1 + its box, or 0 */
    size_t owners_capacity;
    uint64_t *writers; /* 1 + the task, or 0 */
    size_t writers_capacity;
    bool *touched; /* of each box: some element is written */
    size_t touched_capacity;
    fy_proof_cell *cells;
    size_t n_cells;
    size_t cells_capacity;
    fy_proof_written *written; /* those of one turn */
    size_t written_capacity;
} fy_proof_target;

void fy_proof_target_cleanup(fy_proof_target *target);

ferry_status fy_proof_target_open(fy_proof_target *target, const fy_proof_spec *spec,
                                  const fy_proof_parameter *parameter, uint64_t rank,
                                  ferry_error *error);

/* The box of an element and its turns; false: nothing is said of it. */
bool fy_proof_target_find(const fy_proof_target *target, uint64_t element, size_t *box_out,
                          uint64_t *turns_out, uint64_t *looks);

/*
 * Elements of a box from these turns of its steps on, so many of each step: of its loops one.
 * *twice_out is the first that was written before, and *by_out who did; then FERRY_ERR_PROOF,
 * without a sentence.
 */
ferry_status fy_proof_target_write(fy_proof_target *target, size_t box, const uint64_t *turns,
                                   const uint64_t *counts, uint64_t task_id, uint64_t *twice_out,
                                   uint64_t *by_out, ferry_error *error);

/*
 * Every element that is to be written was, and only once; of scales that no move writes at all
 * `makers` takes note. next_task: that of the next move.
 */
ferry_status fy_proof_target_close(fy_proof_target *target, const fy_proof_spec *spec,
                                   uint64_t next_task, ferry_error *error);

/* Whether it has boxes of tensors, or fills. */
bool fy_proof_parameter_wants(const fy_proof_parameter *parameter, bool fills);

#endif
