/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A move is contiguous in both shards and in the whole tensor. Blocks of which several ranks share
 * some put rows beside each other, in one shard as in the other, that lie apart in the tensor.
 */
#include "support/check.h"
#include "support/spec.h"

typedef struct wanted_move {
    uint32_t from;
    uint64_t src, dst, length; /* of dimension 0 */
} wanted_move;

typedef struct found_moves {
    wanted_move moves[32];
    size_t n;
} found_moves;

/* Those to rank 2. */
static ferry_status note_move(void *context, const ferry_move *move)
{
    found_moves *found = context;
    if (move->to == 2) {
        assert_true(found->n < COUNT_OF(found->moves));
        found->moves[found->n++] = (wanted_move){.from = move->from,
                                                 .src = move->src_begin[0],
                                                 .dst = move->dst_begin[0],
                                                 .length = move->length[0]};
    }
    return FERRY_OK;
}

/* By the seed policy, where the lowest holder sends. */
static void check_moves(const char *spec, const wanted_move *wanted, size_t n)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = FERRY_REPLICA_SEED;
    ferry_plan *plan = plan_of(spec, &options);
    found_moves found = {.n = 0};
    ferry_error error;
    must(ferry_plan_visit(plan, FERRY_ALL_RANKS, note_move, &found, NULL, &error), &error);
    check_at(found.n == n, "%zu moves, not %zu", found.n, n);
    for (size_t i = 0; i < n; i++) {
        const wanted_move *a = &found.moves[i], *b = &wanted[i];
        check_at(
            a->from == b->from && a->src == b->src && a->dst == b->dst && a->length == b->length,
            "move %zu: from %u, %llu to %llu, %llu rows", i, a->from, (unsigned long long)a->src,
            (unsigned long long)a->dst, (unsigned long long)a->length);
    }
    ferry_plan_destroy(plan);
}

/* Rank 0 has rows 0, 1, 4, 5 and 8, and rank 2 wants just these: three moves. */
static void test_shared_blocks(void **state)
{
    (void)state;
    static const wanted_move wanted[] = {{0, 0, 0, 2}, {0, 2, 2, 2}, {0, 4, 4, 1}};
    check_moves("{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[9,3],'dtype':'u8'}],"
                "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
                "'blocks':[4,4,[1,1]]}]}]},"
                "'destination':{'mesh':[['tp',2]],'first_rank':2,'rules':[{'match':'*','shard':"
                "[{'dim':0,'axis':'tp','blocks':[4,4,[1,1]]}]}]}}",
                wanted, COUNT_OF(wanted));
}

/* Row 0, which both sources have, and rows 1 and 2 go on in the tensor: one move. */
static void test_shared_neighbours(void **state)
{
    (void)state;
    static const wanted_move wanted[] = {{0, 0, 0, 3}, {1, 1, 3, 2}};
    check_moves("{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[5,3],'dtype':'u8'}],"
                "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
                "'blocks':[[1,1],4]}]}]},"
                "'destination':{'mesh':[['one',1]],'first_rank':2,'rules':[{'match':'*'}]}}",
                wanted, COUNT_OF(wanted));
}

/* The same where the source has a dimension less than the tensor that it feeds. */
static void test_stacked(void **state)
{
    (void)state;
    static const wanted_move wanted[] = {{0, 0, 0, 1}, {1, 1, 0, 1}};
    check_moves("{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[5],'dtype':'u8'},"
                "{'name':'all','shape':[1,5],'dtype':'u8','source':[{'tensor':'w','begin':[0],"
                "'shape':[5],'at':[0,0]}]}],"
                "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
                "'blocks':[[1,1],4]}]}]},"
                "'destination':{'mesh':[['one',1]],'first_rank':2,'rules':[{'match':'w','skip':"
                "true},{'match':'*'}]}}",
                wanted, COUNT_OF(wanted));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_shared_neighbours),
        cmocka_unit_test(test_stacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
