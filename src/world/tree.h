/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_TREE_H
#define FY_WORLD_TREE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The control tree: who is connected with whom. Nodes in the order in which they came form a heap
 * of arity FY_TREE_ARITY, node 0 at its root; in every node the ranks in the order in which they
 * came form a heap again, and its first rank, the head, stands for the node in the heap of nodes.
 * So a rank's parent has always come before it, no rank has more than 2 x FY_TREE_ARITY children,
 * and only heads talk across nodes.
 */
enum { FY_TREE_ARITY = 16 };

/* Where a rank is: its node's number and its own in the node, both in order of coming. */
typedef struct fy_tree_place {
    uint32_t node;
    uint32_t index;
} fy_tree_place;

static inline bool fy_place_equal(fy_tree_place a, fy_tree_place b)
{
    return a.node == b.node && a.index == b.index;
}

static inline bool fy_place_is_root(fy_tree_place place)
{
    return place.node == 0 && place.index == 0;
}

/* The place above; the root's is itself. */
fy_tree_place fy_tree_parent(fy_tree_place place);

/*
 * The neighbour of from on the way to another place, to: its parent, or one of its children.
 */
fy_tree_place fy_tree_next(fy_tree_place from, fy_tree_place to);

#endif
