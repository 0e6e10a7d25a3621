/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans without ranks that are gone; random ones are compared with the oracle. */
#include "support/check.h"
#include "support/spec.h"

#include <ferry/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static ferry_error error;

/* Two replicas of each half at ranks 0..3; the destination has one copy at 2..5, and "n" at 4. */
static const char replicated[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[8,4],'dtype':'f32'},"
    "{'name':'n','shape':[4],'dtype':'f32'}],"
    "'source':{'mesh':[['dp',2],['tp',2]],'rules':[{'match':'n'},"
    "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'destination':{'mesh':[['tp',4]],'first_rank':2,'rules':[{'match':'n','on':{'tp':2}},"
    "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'cluster':{'ranks_per_node':8,'rank_gbytes_per_s':1,'node_gbytes_per_s':8,'latency_us':0}}";

static ferry_status plan_without(const char *quoted, uint32_t policy, const char *subset,
                                 const uint32_t *lost, size_t n_lost, ferry_plan **plan_out)
{
    ferry_spec *spec = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = policy;
    options.subset = subset;
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost;
    must(try_spec(quoted, &spec, &error), &error);
    ferry_status status = ferry_plan_create(spec, &options, plan_out, &error);
    ferry_spec_destroy(spec);
    return status;
}

typedef struct row {
    const char *name;
    uint32_t lost[6];
    size_t n_lost;
    const char *subset;
    ferry_status status;
    const char *says;
} row;

static const row rows[] = {
    {"none", {0}, 0, NULL, FERRY_OK, ""},
    {"a replica", {0}, 1, NULL, FERRY_OK, ""},
    {"a replica and a receiver", {3, 0}, 2, NULL, FERRY_OK, ""},
    {"a whole replica", {0, 1}, 2, NULL, FERRY_OK, ""},
    {"one that has nothing at the source", {5}, 1, NULL, FERRY_OK, ""},
    {"both holders of a half",
     {2, 0},
     2,
     NULL,
     FERRY_ERR_INVALID_PLAN,
     "\"w\": rank 3 needs [2:4, 0:4] of source tensor \"w\", which only lost ranks held: 0, 2; "},
    {"both holders of a half that nobody wants", {2, 0, 3}, 3, NULL, FERRY_OK, ""},
    {"both holders of a half, but not of n", {2, 0}, 2, "n", FERRY_OK, ""},
    {"the receiver of n", {4}, 1, "n", FERRY_ERR_INVALID_PLAN, "moves and copies nothing"},
    {"all receivers",
     {5, 2, 4, 3},
     4,
     NULL,
     FERRY_ERR_INVALID_PLAN,
     "moves and copies nothing, 0 bytes: none of "},
    {"all ranks",
     {5, 4, 3, 2, 1, 0},
     6,
     NULL,
     FERRY_ERR_INVALID_PLAN,
     "all of its ranks, 6, are left out as lost"},
    {"no tensor", {0}, 0, "x", FERRY_ERR_INVALID_PLAN, "fits the subset \"x\""},
    {"behind the plan's last one", {6, 1, 4000000000}, 3, NULL, FERRY_OK, ""},
    {"twice", {1, 5, 1}, 3, NULL, FERRY_ERR_INVALID_INPUT, "rank 1 is lost twice"},
};

static bool is_lost(const row *r, uint32_t rank)
{
    for (size_t i = 0; i < r->n_lost; i++) {
        if (r->lost[i] == rank) {
            return true;
        }
    }
    return false;
}

static ferry_status check_move(void *context, const ferry_move *move)
{
    const row *r = context;
    check_row(r->name, !is_lost(r, move->from) && !is_lost(r, move->to));
    return FERRY_OK;
}

static ferry_status no_shard(void *context, const ferry_shard *shard)
{
    fail_msg("row \"%s\": a lost rank holds %s", ((const row *)context)->name, shard->tensor);
    return FERRY_OK;
}

static void check_plan(const row *r, const ferry_plan *plan)
{
    assert_int_equal(ferry_plan_rank_count(plan), 6);
    must(ferry_plan_visit(plan, FERRY_ALL_RANKS, check_move, (void *)r, NULL, &error), &error);
    for (uint32_t rank = 0; rank < 6; rank++) {
        ferry_rank_bytes bytes = FERRY_RANK_BYTES_INIT;
        must(ferry_plan_get_rank_bytes(plan, rank, &bytes, &error), &error);
        if (!is_lost(r, rank)) {
            continue;
        }
        check_row(r->name,
                  bytes.in == 0 && bytes.out == 0 && bytes.local == 0 && bytes.n_moves == 0);
        must(ferry_plan_visit(plan, rank, check_move, (void *)r, NULL, &error), &error);
        for (int side = 0; side < 2; side++) {
            must(ferry_plan_visit_shards(plan, (ferry_side_role)side, rank, no_shard, (void *)r,
                                         &error),
                 &error);
        }
    }
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(rows); i++) {
        const row *r = &rows[i / 2];
        ferry_plan *plan = NULL;
        uint32_t policy = i % 2 == 0 ? FERRY_REPLICA_BALANCED : FERRY_REPLICA_SEED;
        ferry_status status =
            plan_without(replicated, policy, r->subset, r->lost, r->n_lost, &plan);
        check_status(r->name, r->status, status, &error);
        if (status == FERRY_OK) {
            check_plan(r, plan);
        } else {
            check_says(r->name, r->says, &error);
            check_row(r->name, plan == NULL);
        }
        ferry_plan_destroy(plan);
    }
}

static void test_misuse(void **state)
{
    (void)state;
    ferry_plan *plan = NULL;
    assert_int_equal(plan_without(replicated, FERRY_REPLICA_BALANCED, NULL, NULL, 2, &plan),
                     FERRY_ERR_MISUSE);
    assert_null(plan);
}

static void digest_without(const uint32_t *lost, size_t n_lost, char digest_out[33])
{
    ferry_plan *plan = NULL;
    must(plan_without(replicated, FERRY_REPLICA_BALANCED, NULL, lost, n_lost, &plan), &error);
    ferry_plan_digest(plan, digest_out, FERRY_DIGEST_BYTES);
    ferry_plan_destroy(plan);
}

/* The digest is that of the set: also of ranks that change no move. */
static void test_digest(void **state)
{
    (void)state;
    static const uint32_t a[] = {0, 5}, b[] = {5, 0}, c[] = {5};
    char none[33], empty[33], one[33], two[33], other[33];
    digest_without(NULL, 0, none);
    digest_without(a, 0, empty);
    digest_without(c, 1, one);
    digest_without(a, 2, two);
    digest_without(b, 2, other);
    assert_string_equal(none, empty);
    assert_string_equal(two, other);
    assert_string_not_equal(none, one);
    assert_string_not_equal(one, two);
}

/* With one of two replicas gone, the other must send everything: the bound knows. */
static void test_bound(void **state)
{
    (void)state;
    static const uint32_t lost[] = {0};
    ferry_plan *plan = NULL;
    ferry_plan_bound bound = FERRY_PLAN_BOUND_INIT;
    static const char spec[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[1000],'dtype':'u8'}],"
        "'source':{'mesh':[['dp',2]],'rules':[{'match':'*'}]},"
        "'destination':{'mesh':[['dp',4]],'first_rank':2,'rules':[{'match':'*'}]}}";
    for (size_t n = 0; n < 2; n++) {
        must(plan_without(spec, FERRY_REPLICA_BALANCED, NULL, lost, n, &plan), &error);
        must(ferry_plan_get_bound(plan, &bound, &error), &error);
        assert_int_equal(bound.busiest_bytes, n == 0 ? 2000 : 4000);
        assert_int_equal(bound.rank, n == 0 ? bound.rank : 1);
        ferry_plan_destroy(plan);
    }
}

static void test_saved(void **state)
{
    (void)state;
    static const uint32_t lost[] = {3, 0};
    char path[] = "/tmp/ferry-lost-XXXXXX";
    ferry_plan *plan = NULL, *again = NULL;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    must(plan_without(replicated, FERRY_REPLICA_SEED, "w", lost, 2, &plan), &error);
    must(ferry_plan_save(plan, path, &error), &error);
    must(ferry_plan_load(path, &again, &error), &error);
    text_buffer before = print_plan(plan), after = print_plan(again);
    assert_string_equal(before.bytes, after.bytes);
    text_cleanup(&before);
    text_cleanup(&after);
    ferry_plan_destroy(plan);
    ferry_plan_destroy(again);
    unlink(path);
}

/* Ranks of a saved plan are checked like those of options; its list is covered by the digest. */
static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        ferry_status status;
        const char *says;
    } damaged[] = {
        {"7", FERRY_ERR_INVALID_INPUT, "lost_ranks"},
        {"[-1]", FERRY_ERR_INVALID_INPUT, "lost_ranks"},
        {"['1']", FERRY_ERR_INVALID_INPUT, "lost_ranks"},
        {"[9]", FERRY_ERR_DIGEST, "digest"},
        {"[1,1]", FERRY_ERR_INVALID_INPUT, "twice"},
        {"[1]", FERRY_ERR_DIGEST, "digest"},
    };
    char path[] = "/tmp/ferry-lost-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t i = 0; i < COUNT_OF(damaged); i++) {
        char text[2048];
        FILE *stream = fopen(path, "wb");
        snprintf(text, sizeof text,
                 "{'format':'ferry.saved-plan/1','digest':'0123456789abcdef0123456789abcdef',"
                 "'replica':'balanced','lost_ranks':%s,'spec':%s}",
                 damaged[i].list, replicated);
        unquote(text);
        fputs(text, stream);
        fclose(stream);
        ferry_plan *plan = NULL;
        check_status(damaged[i].list, damaged[i].status, ferry_plan_load(path, &plan, &error),
                     &error);
        check_says(damaged[i].list, damaged[i].says, &error);
        check_row(damaged[i].list, plan == NULL);
    }
    unlink(path);
}

/* Owners of a shared block that a flat cut places differently stand in for each other. */
static void test_flat_over_shared(void **state)
{
    (void)state;
    static const char spec[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[6],'dtype':'u8'}],"
        "'source':{'mesh':[['cp',2],['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':"
        "'cp','blocks':[2,[4,1]]}],'flat':{'axis':'tp','sizes':[2,3]}}]},"
        "'destination':{'mesh':[['dp',1]],'first_rank':4,'rules':[{'match':'*'}]}}";
    /* Rank 0 has 0 2, rank 1 has 3 4 5, rank 2 has 1 2, rank 3 has 3 4 5. */
    static const uint32_t one[] = {1}, both[] = {3, 1};
    ferry_plan *plan = NULL;
    for (uint32_t policy = 0; policy < 2; policy++) {
        must(plan_without(spec, policy, NULL, one, 1, &plan), &error);
        ferry_rank_bytes bytes = FERRY_RANK_BYTES_INIT;
        must(ferry_plan_get_rank_bytes(plan, 4, &bytes, &error), &error);
        assert_int_equal(bytes.in, 6);
        ferry_plan_destroy(plan);
        plan = NULL;
        assert_int_equal(plan_without(spec, policy, NULL, both, 2, &plan), FERRY_ERR_INVALID_PLAN);
        check_says("both", "[3:4] of source tensor \"w\", which only lost ranks held: 1, 3;",
                   &error);
    }
}

/* Half of a large world, with a list that is in no order. */
static void test_many(void **state)
{
    (void)state;
    enum { WORLD = 1 << 18 };
    char spec[512];
    uint32_t *lost = malloc(WORLD / 2 * sizeof *lost);
    assert_non_null(lost);
    for (uint32_t i = 0; i < WORLD / 2; i++) {
        lost[i] = 2 * (i * 7919u % (WORLD / 2));
    }
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[2,512],'dtype':'u8'}],"
             "'source':{'mesh':[['tp',2],['dp',%d]],'rules':[{'match':'*','shard':[{'dim':0,"
             "'axis':'tp'}]}]},'destination':{'mesh':[['dp',%d]],'rules':[{'match':'*','on':{"
             "'dp':[0,1,%d]}}]}}",
             WORLD / 2, WORLD, WORLD - 1);
    ferry_plan *plan = NULL;
    must(plan_without(spec, FERRY_REPLICA_BALANCED, NULL, lost, WORLD / 2, &plan), &error);
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    must(ferry_plan_get_totals(plan, &totals, &error), &error);
    assert_int_equal(totals.local_bytes, 1024);
    assert_int_equal(totals.moved_bytes, 1024);
    ferry_plan_destroy(plan);
    free(lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_flat_over_shared),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
