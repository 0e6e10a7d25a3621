/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/topology.h"

/*
 * Making one
 */

static ferry_status check_sizes(const fy_topology_wish *wish, ferry_error *error)
{
    if (wish->world_size == 0 || wish->local_size == 0 || wish->inter_size == 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "world_size %u, local_size %u, inter_size %u: none may be 0 unless all are",
                       wish->world_size, wish->local_size, wish->inter_size);
    }
    return FERRY_OK;
}

static ferry_status check_rank(const char *level, uint32_t rank, uint32_t size, ferry_error *error)
{
    if (rank >= size) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s_rank %u, but %s_size %u: ranks count from 0", level, rank, level, size);
    }
    return FERRY_OK;
}

static ferry_status check_ranks(const fy_topology_wish *wish, ferry_error *error)
{
    FY_TRY(check_rank("world", wish->world_rank, wish->world_size, error));
    FY_TRY(check_rank("local", wish->local_rank, wish->local_size, error));
    return check_rank("inter", wish->inter_rank, wish->inter_size, error);
}

static ferry_status check_world(const fy_topology_wish *wish, ferry_error *error)
{
    uint64_t product = (uint64_t)wish->local_size * wish->inter_size;
    if (product != wish->world_size) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "local_size %u x inter_size %u = %llu, but world_size is %u",
                       wish->local_size, wish->inter_size, (unsigned long long)product,
                       wish->world_size);
    }
    if (wish->world_size > FY_MIX_TOPOLOGY_MOST_RANKS) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "world_size %u: a mixed collective has at most %d ranks", wish->world_size,
                       FY_MIX_TOPOLOGY_MOST_RANKS);
    }
    return FERRY_OK;
}

/* Fills in what is left open (0) of a level's two sizes. */
static ferry_status split_level(const char *level, uint32_t size, uint32_t *tp, uint32_t *dp,
                                ferry_error *error)
{
    if (*tp != 0 && *dp != 0) {
        uint64_t product = (uint64_t)*tp * *dp;
        if (product != size) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "%s_tp_size %u x %s_dp_size %u = %llu, but %s_size is %u; one of the "
                           "two may be left open",
                           level, *tp, level, *dp, (unsigned long long)product, level, size);
        }
        return FERRY_OK;
    }
    uint32_t given = *tp != 0 ? *tp : *dp != 0 ? *dp : size;
    if (size % given != 0) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s_%s_size %u does not divide %s_size %u",
                       level, *tp != 0 ? "tp" : "dp", given, level, size);
    }
    uint32_t other = size / given;
    if (*dp != 0) {
        *tp = other;
    } else {
        *tp = given;
        *dp = other;
    }
    return FERRY_OK;
}

static ferry_status check_composed(const fy_topology_wish *wish, ferry_error *error)
{
    uint64_t composed = wish->local_rank + (uint64_t)wish->inter_rank * wish->local_size;
    if (composed != wish->world_rank) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "local_rank %u + inter_rank %u x local_size %u = %llu, but world_rank is %u",
                       wish->local_rank, wish->inter_rank, wish->local_size,
                       (unsigned long long)composed, wish->world_rank);
    }
    return FERRY_OK;
}

/* What follows from the rank; sizes are there. */
static void place_rank(fy_topology *t, uint32_t world_rank)
{
    t->world_rank = world_rank;
    t->local_rank = world_rank % t->local_size;
    t->inter_rank = world_rank / t->local_size;
    t->local_tp_rank = t->local_rank % t->local_tp;
    t->local_dp_rank = t->local_rank / t->local_tp;
    t->inter_tp_rank = t->inter_rank % t->inter_tp;
    t->inter_dp_rank = t->inter_rank / t->inter_tp;
    t->tp_rank = t->local_tp_rank + t->inter_tp_rank * t->local_tp;
    t->dp_rank = t->local_dp_rank + t->inter_dp_rank * t->local_dp;
}

ferry_status fy_topology_make(const fy_topology_wish *wish, fy_topology *topology_out,
                              ferry_error *error)
{
    fy_topology t = {.world_size = wish->world_size,
                     .local_size = wish->local_size,
                     .inter_size = wish->inter_size,
                     .local_tp = wish->local_tp,
                     .local_dp = wish->local_dp,
                     .inter_tp = wish->inter_tp,
                     .inter_dp = wish->inter_dp};
    FY_TRY(check_sizes(wish, error));
    FY_TRY(check_ranks(wish, error));
    FY_TRY(check_world(wish, error));
    FY_TRY(split_level("local", t.local_size, &t.local_tp, &t.local_dp, error));
    FY_TRY(split_level("inter", t.inter_size, &t.inter_tp, &t.inter_dp, error));
    FY_TRY(check_composed(wish, error));
    t.tp = t.local_tp * t.inter_tp;
    t.dp = t.local_dp * t.inter_dp;
    place_rank(&t, wish->world_rank);
    *topology_out = t;
    return FERRY_OK;
}

/*
 * Ranks
 */

fy_topology fy_topology_of_rank(const fy_topology *topology, uint32_t world_rank)
{
    fy_topology other = *topology;
    place_rank(&other, world_rank);
    return other;
}

uint32_t fy_topology_rank_at(const fy_topology *topology, uint32_t local_tp_rank,
                             uint32_t local_dp_rank, uint32_t inter_tp_rank, uint32_t inter_dp_rank)
{
    uint32_t local_rank = local_tp_rank + local_dp_rank * topology->local_tp;
    uint32_t inter_rank = inter_tp_rank + inter_dp_rank * topology->inter_tp;
    return local_rank + inter_rank * topology->local_size;
}

uint32_t fy_topology_rank_of(const fy_topology *topology, uint32_t tp_rank, uint32_t dp_rank)
{
    return fy_topology_rank_at(topology, tp_rank % topology->local_tp, dp_rank % topology->local_dp,
                               tp_rank / topology->local_tp, dp_rank / topology->local_dp);
}

/*
 * Operations and modes
 */

bool fy_topology_has_op(const fy_topology *topology, uint32_t op)
{
    bool sums = topology->tp > 1, joins = topology->dp > 1;
    switch (op) {
    case FERRY_MIXED_ALL_REDUCE:
        return !joins; /* at world size 1 too */
    case FERRY_MIXED_ALL_GATHER:
    case FERRY_MIXED_REDUCE_SCATTER:
        return !sums && joins;
    case FERRY_MIXED_ALL_REDUCE_ALL_GATHER:
    case FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE:
        return sums && joins;
    default:
        return false;
    }
}

/* Whether it has a mode where any memory can be read in place and any tree of sums will do. */
static bool has_idea(const fy_topology *t, uint32_t mode)
{
    switch (mode) {
    case FERRY_MIXED_FUSED_WAITS_MULTICAST:
    case FERRY_MIXED_FUSED_WAITS_UNICAST:
    case FERRY_MIXED_BASE_ONE:
        return true;
    case FERRY_MIXED_FUSED_BYTES1_MULTICAST:
    case FERRY_MIXED_FUSED_BYTES1_UNICAST:
        return t->local_tp > 1;
    case FERRY_MIXED_FUSED_BYTES2_MULTICAST:
    case FERRY_MIXED_FUSED_BYTES2_UNICAST:
        return t->inter_tp > 1;
    case FERRY_MIXED_BASE_TP_DP:
        return t->tp > 1 && t->dp > 1;
    default:
        return false; /* DEFAULT and AUTOTUNE are none of their own */
    }
}

static bool reads_in_place(uint32_t mode)
{
    return mode == FERRY_MIXED_FUSED_WAITS_MULTICAST ||
           mode == FERRY_MIXED_FUSED_BYTES1_MULTICAST || mode == FERRY_MIXED_FUSED_BYTES2_MULTICAST;
}

bool fy_topology_has_mode(const fy_topology *topology, uint32_t mode, bool multicast,
                          bool deterministic)
{
    bool has = has_idea(topology, mode) &&
               (multicast || topology->local_size == 1 || !reads_in_place(mode));
    for (uint32_t op = 0; has && deterministic && op < FERRY_MIXED_N_OPS; op++) {
        has = !fy_topology_has_op(topology, op) || fy_topology_keeps_tree(topology, op, mode);
    }
    return has;
}

/* How many inputs an element of an operation's result is the sum of. */
static uint32_t summands(const fy_topology *t, uint32_t op)
{
    return op == FERRY_MIXED_ALL_GATHER ? 1 : fy_mix_op_scatters(op) ? t->world_size : t->tp;
}

size_t fy_topology_list_ops(const fy_topology *topology, uint32_t *ops_out)
{
    size_t n = 0;
    for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
        if (fy_topology_has_op(topology, op)) {
            ops_out[n++] = op;
        }
    }
    return n;
}

size_t fy_topology_list_modes(const fy_topology *topology, bool multicast, bool deterministic,
                              uint32_t *modes_out)
{
    size_t n = 0;
    for (uint32_t mode = FERRY_MIXED_FUSED_WAITS_MULTICAST; mode < FERRY_MIXED_N_MODES; mode++) {
        if (fy_topology_has_mode(topology, mode, multicast, deterministic)) {
            modes_out[n++] = mode;
        }
    }
    return n;
}

bool fy_topology_keeps_tree(const fy_topology *topology, uint32_t op, uint32_t mode)
{
    bool nodes_first = !fy_mix_op_scatters(op);
    switch (mode) {
    case FERRY_MIXED_FUSED_WAITS_MULTICAST:
    case FERRY_MIXED_FUSED_WAITS_UNICAST:
        return summands(topology, op) == 1 || !nodes_first || topology->local_tp == 1 ||
               topology->inter_tp == 1;
    case FERRY_MIXED_FUSED_BYTES1_MULTICAST:
    case FERRY_MIXED_FUSED_BYTES1_UNICAST:
    case FERRY_MIXED_FUSED_BYTES2_MULTICAST:
    case FERRY_MIXED_FUSED_BYTES2_UNICAST:
        return true; /* inside nodes first, whatever the operation */
    case FERRY_MIXED_BASE_ONE:
    case FERRY_MIXED_BASE_TP_DP:
        return summands(topology, op) == 1;
    default:
        return false;
    }
}

uint32_t fy_mix_op_in_chunks(const fy_topology *topology, uint32_t op)
{
    return fy_mix_op_scatters(op) ? topology->dp : 1;
}

uint32_t fy_mix_op_out_chunks(const fy_topology *topology, uint32_t op)
{
    return fy_mix_op_gathers(op) ? topology->dp : 1;
}

bool fy_mix_op_gathers(uint32_t op)
{
    return op == FERRY_MIXED_ALL_GATHER || op == FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
}

bool fy_mix_op_scatters(uint32_t op)
{
    return op == FERRY_MIXED_REDUCE_SCATTER || op == FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE;
}
