/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_RANK_BOXES_H
#define FY_PROVE_RANK_BOXES_H

#include "prove/spec.h"

/*
 * All boxes of one rank's memory, by their tensors and in trees of hulls, so that what the rank has
 * of a place is found without looking at all that it has.
 */
typedef struct fy_proof_rank_box {
    size_t owned; /* number of the parameter among all that ranks have */
    const fy_proof_held *held;
} fy_proof_rank_box;

typedef struct fy_proof_rank_boxes {
    fy_arena arena;
    size_t n_boxes, n_tensors;
    fy_proof_rank_box *boxes; /* by tensor */
    struct fy_proof_rank_tensor *tensors;
} fy_proof_rank_boxes;

/* It refers to the memory. cleanup: also of one that could not be made. */
ferry_status fy_proof_rank_boxes_make(const fy_proof_memory *memory, size_t position,
                                      fy_proof_rank_boxes *boxes_out, ferry_error *error);
void fy_proof_rank_boxes_cleanup(fy_proof_rank_boxes *boxes);

typedef ferry_status (*fy_proof_visit_held_fn)(void *context, const fy_proof_rank_box *box,
                                               ferry_error *error);

/* Boxes that may have an element of the tensor in [begin, end), in no order, until one fails. */
ferry_status fy_proof_rank_boxes_visit(const fy_proof_rank_boxes *boxes, uint32_t tensor,
                                       const uint64_t *begin, const uint64_t *end,
                                       fy_proof_visit_held_fn visit, void *context, uint64_t *looks,
                                       ferry_error *error);

#endif
