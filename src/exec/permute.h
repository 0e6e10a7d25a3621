/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_PERMUTE_H
#define FY_EXEC_PERMUTE_H

#include "exec/block.h"

#include <stdbool.h>

/*
 * fy_area_copy where an area is permuted: in the order that memory likes best, not in that of the
 * bytes. False, and nothing is done, where neither is, or where the areas have no common shape.
 * streams: large pieces go past the cache, and are not fenced.
 */
bool fy_area_permute(const fy_area *to, void *to_base, const fy_area *from, const void *from_base,
                     uint64_t first, uint64_t bytes, bool streams);

/* area_copy.c: the same for sides whose dimensions are in order, or have no common shape. */
void fy_sides_copy(fy_walk_side *to, fy_walk_side *from, bool streams);

#endif
