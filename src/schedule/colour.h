/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_COLOUR_H
#define FY_SCHEDULE_COLOUR_H

#include "schedule/edges.h"

#include <ferry/schedule.h>

/*
 * Edge colouring: every edge (a batch) gets a round such that in one round a rank sends at most one
 * and receives at most one. Edges from a rank to itself are legal in a bipartite graph: its two
 * ports are two vertices. Memory is linear in the edges, and the outcome a function of the input.
 */

/*
 * Full duplex: Euler splitting, exactly as many rounds as the largest degree, in
 * O(edges x log degree).
 */
ferry_status fy_colour_bipartite(fy_edges *edges, ferry_error *error);

/*
 * Half duplex: a rank takes part in one edge of a round. The optimum where senders and receivers
 * are different ranks (or the graph is bipartite some other way); else at most 3/2 of the largest
 * number of edges at one rank, and in practice close to it. No edge goes from a rank to itself.
 */
ferry_status fy_colour_general(fy_edges *edges, ferry_error *error);

/* Either of the two, by duplex. */
ferry_status fy_colour_batches(fy_edges *edges, uint32_t duplex, ferry_error *error);

#endif
