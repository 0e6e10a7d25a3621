/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROVE_BOXES_H
#define FY_PROVE_BOXES_H

#include "prove/spec.h"

/*
 * Boxes in a tree of hulls, so that those near a place are found without looking at all. It lives
 * as long as the arena, and refers to the boxes.
 */
struct fy_proof_tree;

/* NULL where there is no memory. n: from 1 on. */
const fy_proof_tree *fy_proof_tree_make(fy_arena *arena, const fy_proof_box *boxes, size_t n);

/* Told the number of a box; false: no more are wanted. */
typedef bool (*fy_proof_visit_box_fn)(void *context, size_t box);

/*
 * Visits the boxes that have an element in [begin, end), in no order; false if the visit was ended.
 * Adds to looks how many boxes and hulls were compared.
 */
bool fy_proof_tree_visit(const fy_proof_tree *tree, const uint64_t *begin, const uint64_t *end,
                         fy_proof_visit_box_fn visit, void *context, uint64_t *looks);

#endif
