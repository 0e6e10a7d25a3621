/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The seed policy with groups that say little: nobody can be chosen from an empty one. */
#include "support/model.h"

#include <ferry/ferry.h>

enum { N_RANKS = 4 };

/* w is replicated on ranks 0 and 1 and goes to ranks 2 and 3; both sides with their DP groups. */
static ferry_plan *plan_with(ferry_group *const dp[N_RANKS], bool is_tp)
{
    ferry_roster *roster = NULL;
    ferry_plan *plan = NULL;
    ferry_error error;
    must(ferry_roster_create(N_RANKS, &roster, &error), &error);
    for (uint32_t rank = 0; rank < N_RANKS; rank++) {
        ferry_group *tp = range_group(rank, 1, 1);
        ferry_model *m = NULL;
        ferry_param_metadata w = FERRY_PARAM_METADATA_INIT;
        w.name = "w";
        w.n_dims = 1;
        w.shape[0] = 8;
        w.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
        w.owner_rank = rank;
        w.is_tp = is_tp;
        w.partition_dim = 0;
        w.partition_stride = 1;
        w.data_parallel_group_ranks = dp[rank];
        w.tensor_parallel_group_ranks = is_tp ? tp : NULL;
        must(ferry_model_create(&m, &error), &error);
        must(ferry_model_add(m, &w, &error), &error);
        must(ferry_roster_set(roster, rank, rank < 2 ? m : NULL, rank < 2 ? NULL : m, &error),
             &error);
        ferry_model_destroy(m);
        ferry_group_destroy(tp);
    }
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = FERRY_REPLICA_SEED;
    must(ferry_plan_create_from_roster(roster, &options, &plan, &error), &error);
    ferry_roster_destroy(roster);
    return plan;
}

static ferry_status note_sender(void *context, const ferry_move *move)
{
    ((uint32_t *)context)[move->to] = move->from;
    return FERRY_OK;
}

/* Empty groups, at the sources, at the destinations or at both, choose as missing ones do. */
static void test_empty_groups(void **state)
{
    (void)state;
    ferry_error error;
    ferry_group *empty = NULL, *pairs[2] = {range_group(0, 1, 2), range_group(2, 1, 2)};
    must(ferry_group_create(NULL, 0, &empty, &error), &error);
    for (int is_tp = 0; is_tp < 2; is_tp++) {
        for (unsigned which = 1; which < 1u << N_RANKS; which++) {
            ferry_group *some[N_RANKS], *none[N_RANKS];
            uint32_t from[2][N_RANKS] = {{9, 9, 9, 9}, {9, 9, 9, 9}};
            for (uint32_t rank = 0; rank < N_RANKS; rank++) {
                bool chosen = (which >> rank & 1) != 0;
                some[rank] = chosen ? empty : pairs[rank / 2];
                none[rank] = chosen ? NULL : pairs[rank / 2];
            }
            ferry_plan *a = plan_with(some, is_tp != 0), *b = plan_with(none, is_tp != 0);
            must(ferry_plan_visit(a, FERRY_ALL_RANKS, note_sender, from[0], NULL, &error), &error);
            must(ferry_plan_visit(b, FERRY_ALL_RANKS, note_sender, from[1], NULL, &error), &error);
            for (uint32_t rank = 2; rank < N_RANKS; rank++) {
                check_at(from[0][rank] < 2 && from[0][rank] == from[1][rank],
                         "tp %d, groups %x: rank %u gets it from %u, but from %u without groups",
                         is_tp, which, rank, from[0][rank], from[1][rank]);
            }
            ferry_plan_destroy(a);
            ferry_plan_destroy(b);
        }
    }
    ferry_group_destroy(empty);
    ferry_group_destroy(pairs[0]);
    ferry_group_destroy(pairs[1]);
}

/* The functions for one parameter agree with the planner. */
static void test_one_parameter(void **state)
{
    (void)state;
    ferry_error error;
    ferry_group *empty = NULL;
    ferry_transfers *transfers = NULL;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    must(ferry_group_create(NULL, 0, &empty, &error), &error);
    m.name = "w";
    m.n_dims = 1;
    m.shape[0] = 8;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    m.data_parallel_group_ranks = empty;
    ferry_param_metadata without = m, destination = m;
    without.data_parallel_group_ranks = NULL;
    without.owner_rank = 1;
    destination.owner_rank = 2;
    const ferry_param_metadata *sources[] = {&m, &without};
    size_t chosen = 9;
    /* One bucket: both belong to nobody. */
    must(ferry_param_metadata_select_source(sources, 2, &destination, 2, &chosen, &error), &error);
    assert_int_equal(chosen, 0);
    must(ferry_transfers_finalize_dp("w", &m, &destination, 2, &transfers, &error), &error);
    assert_int_equal(ferry_transfers_count(transfers), 1);
    ferry_transfers_destroy(transfers);
    ferry_group_destroy(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_groups),
        cmocka_unit_test(test_one_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
