/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_WALK_H
#define FY_EXEC_WALK_H

#include "base/checked.h"
#include "exec/area.h"

/* How copies walk: not run by run but by as many equally spaced pieces as two areas have in common.
 */

/* To the begin of the next run; behind the last one, to the first. The walk stands at a run's end.
 */
static inline void fy_walk_next_run(fy_area_walk *walk)
{
    const fy_area *area = walk->area;
    walk->at -= area->run_bytes;
    walk->n_here = area->run_bytes;
    for (uint32_t d = area->n_dims; d-- > 0;) {
        walk->at += area->stride[d];
        if (++walk->index[d] < area->length[d]) {
            return;
        }
        walk->index[d] = 0;
        walk->at -= area->stride[d] * area->length[d];
    }
}

/* Over n_bytes, which lie in the run. */
static inline void fy_walk_take(fy_area_walk *walk, uint64_t n_bytes)
{
    walk->at += n_bytes;
    walk->left -= n_bytes;
    walk->n_here -= n_bytes;
    if (walk->n_here == 0) {
        fy_walk_next_run(walk);
    }
}

/*
 * The next pieces of n_bytes, which is at most what is left of the run: how many follow each other
 * at one distance. A run is cut into pieces where it is longer; else its neighbours are the others.
 */
static inline uint64_t fy_walk_pieces(const fy_area_walk *walk, uint64_t n_bytes,
                                      uint64_t *distance_out)
{
    const fy_area *area = walk->area;
    uint32_t last = area->n_dims - 1;
    if (n_bytes == area->run_bytes && area->n_dims != 0) {
        *distance_out = area->stride[last];
        return area->length[last] - walk->index[last];
    }
    *distance_out = n_bytes;
    return walk->n_here / n_bytes;
}

/* Over so many of them. */
static inline void fy_walk_take_pieces(fy_area_walk *walk, uint64_t n_bytes, uint64_t n_pieces)
{
    const fy_area *area = walk->area;
    if (n_bytes == area->run_bytes && area->n_dims != 0) {
        walk->index[area->n_dims - 1] += n_pieces - 1;
        walk->at += (n_pieces - 1) * area->stride[area->n_dims - 1];
        walk->left -= (n_pieces - 1) * n_bytes;
        fy_walk_take(walk, n_bytes);
    } else {
        fy_walk_take(walk, n_bytes * n_pieces);
    }
}

#endif
