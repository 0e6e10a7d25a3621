/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_CONTENT_H
#define FY_PROVE_CONTENT_H

#include "prove/move.h"

/* A growing list of numbers. All zero is an empty one. */
typedef struct fy_proof_numbers {
    uint64_t *items;
    size_t n;
    size_t capacity;
} fy_proof_numbers;

/* Memory that is used again from move to move. All zero at first. */
typedef struct fy_proof_scratch {
    fy_proof_numbers to[FY_PROOF_DIMS];
    fy_proof_numbers from[FY_PROOF_DIMS];
    fy_proof_numbers boxes; /* that a move has elements of */
} fy_proof_scratch;

void fy_proof_scratch_cleanup(fy_proof_scratch *scratch);

/* A move whose boxes are inside the two shards. */
typedef struct fy_proof_pair {
    const fy_proof_spec *spec;
    const fy_proof_move *move;
    const fy_proof_shard *from;
    const fy_proof_shard *to;
} fy_proof_pair;

/*
 * Both checks ask one thing: does the sender hold, at every place of the source box, the element
 * that the receiver wants at the same place of the destination box?
 *
 * This one asks it of every element, and marks it in writers, which has one number per element of
 * the destination shard (from flat_begin on): 0, or 1 + the task that writes it. An element that is
 * written twice is an error.
 */
ferry_status fy_proof_check_elements(const fy_proof_pair *pair, fy_proof_scratch *scratch,
                                     uint64_t *writers, ferry_error *error);

/*
 * This one cuts the move wherever a piece of either shard or a source box begins or ends. Within
 * such a cell local and global indices grow by one together on both sides, so that its first
 * element stands for all. Whether elements are written twice it does not see.
 */
ferry_status fy_proof_check_cells(const fy_proof_pair *pair, fy_proof_scratch *scratch,
                                  ferry_error *error);

/*
 * For moves whose content is checked otherwise: marks what one writes, and nothing else. The shard
 * of the pair that is read is not looked at.
 */
ferry_status fy_proof_mark_elements(const fy_proof_pair *pair, uint64_t *writers,
                                    ferry_error *error);

/* The element of the tensor that the receiver wants, and the element that the sender has there. */
ferry_status fy_proof_fail_content(const fy_proof_pair *pair, const uint64_t *wanted,
                                   const uint64_t *held, ferry_error *error);

/* Moves index on to the next place, row-major; false behind the last one. */
bool fy_proof_advance(uint64_t *index, const uint64_t *shape, size_t n_dims);

bool fy_proof_numbers_push(fy_proof_numbers *numbers, uint64_t number);

/* Sorts, and leaves every number once. */
void fy_proof_numbers_sort(fy_proof_numbers *numbers);

#endif
