/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_TOPOLOGY_H
#define FY_COLLECTIVE_TOPOLOGY_H

#include "base/status.h"

#include <ferry/mixed_comm.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Who a rank is among tensor-parallel (sum) and data-parallel (concatenate) ranks, inside its node
 * and across nodes; pure. The tensor-parallel coordinate runs fastest on both levels.
 */
typedef struct fy_topology {
    uint32_t world_rank, world_size;
    uint32_t local_rank, local_size;
    uint32_t inter_rank, inter_size;
    uint32_t local_tp, local_dp, inter_tp, inter_dp; /* sizes */
    uint32_t tp, dp;                                 /* products of both levels */
    uint32_t local_tp_rank, local_dp_rank, inter_tp_rank, inter_dp_rank;
    uint32_t tp_rank, dp_rank;
} fy_topology;

/* What the caller says of it: sizes of 0 are left open. */
typedef struct fy_topology_wish {
    uint32_t world_rank, world_size;
    uint32_t local_rank, local_size;
    uint32_t inter_rank, inter_size;
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
} fy_topology_wish;

/* Ranks of a mixed collective; a table for each of them must fit into memory. */
enum { FY_MIX_TOPOLOGY_MOST_RANKS = 1 << 20 };

/*
 * FERRY_ERR_INVALID_INPUT names the first rule that is broken, with its numbers: sizes of zero,
 * ranks out of range, sizes that do not multiply, ranks that do not compose.
 */
ferry_status fy_topology_make(const fy_topology_wish *wish, fy_topology *topology_out,
                              ferry_error *error);

/* The same world as another of its ranks sees it. */
fy_topology fy_topology_of_rank(const fy_topology *topology, uint32_t world_rank);

/* The world rank at coordinates; all are below their sizes. */
uint32_t fy_topology_rank_at(const fy_topology *topology, uint32_t local_tp_rank,
                             uint32_t local_dp_rank, uint32_t inter_tp_rank,
                             uint32_t inter_dp_rank);

/* The world rank of a tensor-parallel and a data-parallel rank. */
uint32_t fy_topology_rank_of(const fy_topology *topology, uint32_t tp_rank, uint32_t dp_rank);

/* Whether the topology offers an operation (a ferry_mixed_op): docs/collectives.md has the table.
 * At world size 1 all-reduce is a copy, and the only one. */
bool fy_topology_has_op(const fy_topology *topology, uint32_t op);

/*
 * Whether it has a mode (a ferry_mixed_mode, neither DEFAULT nor AUTOTUNE): BYTES1 needs local_tp >
 * 1, BYTES2 inter_tp > 1, BASE_TP_DP tp > 1 and dp > 1. multicast: ranks of a node can read each
 * other's memory in place; without other ranks in the node there is nothing to be read, and both
 * forms are there. deterministic: only modes that keep the one tree for every operation that the
 * topology offers.
 */
bool fy_topology_has_mode(const fy_topology *topology, uint32_t mode, bool multicast,
                          bool deterministic);

/* Those that it has, by number, and how many: of FERRY_MIXED_N_OPS and FERRY_MIXED_N_MODES places.
 */
size_t fy_topology_list_ops(const fy_topology *topology, uint32_t *ops_out);
size_t fy_topology_list_modes(const fy_topology *topology, bool multicast, bool deterministic,
                              uint32_t *modes_out);

/*
 * Whether an operation in a mode sums in the one tree: ranks of a node ascending, then nodes
 * ascending. WAITS of the operations that begin with an all-reduce sums over nodes first, which is
 * another tree where both levels have something to sum; the rings of BASE begin anywhere.
 */
bool fy_topology_keeps_tree(const fy_topology *topology, uint32_t op, uint32_t mode);

/* Chunks of the input and of the output: 1 or dp. */
uint32_t fy_mix_op_in_chunks(const fy_topology *topology, uint32_t op);
uint32_t fy_mix_op_out_chunks(const fy_topology *topology, uint32_t op);

/* Whether the operation ends with a concatenation (all-reduce is the one that does neither). */
bool fy_mix_op_gathers(uint32_t op);
/* Whether it begins by scattering. */
bool fy_mix_op_scatters(uint32_t op);

#endif
