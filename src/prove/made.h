/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_MADE_H
#define FY_PROVE_MADE_H

#include "prove/spec.h"

/*
 * Where the destination is in boxes: who makes the codes that moves bring to its parameters, and
 * the boxes of scales, which no move brings where the receiver makes the codes. Both come in the
 * order of the plan; once all is there, each box of scales must have one maker.
 */
typedef struct fy_proof_maker {
    size_t owned; /* number of the parameter among all that ranks have */
    uint32_t tensor;
    bool at_receiver;
} fy_proof_maker;

typedef struct fy_proof_scale_box {
    size_t owned;
    size_t box;      /* of the parameter */
    bool is_written; /* by moves */
} fy_proof_scale_box;

typedef struct fy_proof_makers {
    fy_index index;
    fy_proof_maker *items;
    size_t n, capacity;
    fy_proof_scale_box *boxes;
    size_t n_boxes, boxes_capacity;
} fy_proof_makers;

void fy_proof_makers_cleanup(fy_proof_makers *makers);

/* Of codes that a move brings; *is_same_out: as others of the tensor in this parameter. */
ferry_status fy_proof_makers_note(fy_proof_makers *makers, size_t owned, uint32_t tensor,
                                  bool at_receiver, bool *is_same_out, ferry_error *error);

ferry_status fy_proof_makers_add_box(fy_proof_makers *makers, size_t owned, size_t box,
                                     bool is_written, ferry_error *error);

/* Behind the last move. Of f4 that ranks make, too, that they have a scale of each matrix. */
ferry_status fy_proof_makers_check(const fy_proof_makers *makers, const fy_proof_spec *spec,
                                   ferry_error *error);

#endif
