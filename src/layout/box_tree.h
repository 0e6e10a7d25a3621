/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_BOX_TREE_H
#define FY_LAYOUT_BOX_TREE_H

#include "base/status.h"
#include "layout/box.h"

/*
 * Finds boxes that meet a box. Boxes that lie near each other stand under one node, which knows the
 * box around them: where they are apart, a look-up costs the logarithm of their number and what it
 * finds.
 */
typedef struct fy_box_tree fy_box_tree;

/* Copies n boxes; begins and lengths are those of one box behind the other, n_dims numbers each. */
ferry_status fy_box_tree_create(const uint64_t *begin, const uint64_t *length, size_t n,
                                uint32_t n_dims, fy_box_tree **tree_out, ferry_error *error);
void fy_box_tree_destroy(fy_box_tree *tree); /* NULL is allowed */

/* The numbers of the boxes that have an element of a box, ascending; *found_inout grows. */
ferry_status fy_box_tree_find(const fy_box_tree *tree, const uint64_t *begin,
                              const uint64_t *length, uint32_t **found_inout, size_t *capacity,
                              size_t *n_out, ferry_error *error);

/* The elements that two boxes have in common; false: none. */
static inline bool fy_box_meet(const uint64_t *a_begin, const uint64_t *a_length,
                               const uint64_t *b_begin, const uint64_t *b_length, uint32_t n_dims,
                               uint64_t *begin_out, uint64_t *length_out)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t a_end = a_begin[d] + a_length[d], b_end = b_begin[d] + b_length[d];
        uint64_t begin = a_begin[d] > b_begin[d] ? a_begin[d] : b_begin[d];
        uint64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end) {
            return false;
        }
        begin_out[d] = begin;
        length_out[d] = end - begin;
    }
    return true;
}

#endif
