/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/tree.h"

fy_tree_place fy_tree_parent(fy_tree_place place)
{
    if (place.index > 0) {
        return (fy_tree_place){place.node, (place.index - 1) / FY_TREE_ARITY};
    }
    if (place.node > 0) {
        return (fy_tree_place){(place.node - 1) / FY_TREE_ARITY, 0};
    }
    return place;
}

fy_tree_place fy_tree_next(fy_tree_place from, fy_tree_place to)
{
    /* Up from `to`: if the way passes `from`, the step before is its child. */
    fy_tree_place at = to;
    while (!fy_place_is_root(at)) {
        fy_tree_place above = fy_tree_parent(at);
        if (fy_place_equal(above, from)) {
            return at;
        }
        at = above;
    }
    return fy_tree_parent(from);
}
