/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What ranks hold, where the layouts are at their edges; random ones are compared with the oracle.
 */
#include "plan/shards.h"

#include "support/check.h"
#include "support/spec.h"

#include <ferry/shard.h>
#include <string.h>

#include <stdio.h>

static ferry_error error;

/* Every shard as a line: name, bytes, flat range, pieces by dimension, origins. */
static ferry_status describe(void *context, const ferry_shard *shard)
{
    text_buffer *out = context;
    text_printf(out, "%s %lluB", shard->tensor, (unsigned long long)shard->bytes);
    if (shard->is_flat) {
        text_printf(out, " flat %llu..%llu", (unsigned long long)shard->flat_begin,
                    (unsigned long long)shard->flat_end);
    }
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        text_printf(out, " %llu/%llu:", (unsigned long long)shard->local[d],
                    (unsigned long long)shard->global[d]);
        for (size_t i = 0; i < ferry_shard_piece_count(shard, d); i++) {
            uint64_t local, global, length;
            must(ferry_shard_piece_at(shard, d, i, &local, &global, &length, &error), &error);
            text_printf(out, "%s%llu+%llu", i == 0 ? "" : ",", (unsigned long long)global,
                        (unsigned long long)length);
        }
    }
    for (size_t i = 0; i < ferry_shard_origin_count(shard); i++) {
        ferry_origin origin = FERRY_ORIGIN_INIT;
        must(ferry_shard_origin_at(shard, i, &origin, &error), &error);
        text_printf(out, " from %s", origin.source);
        for (uint32_t d = 0; d < shard->n_dims; d++) {
            text_printf(out, "%s%llu+%llu", d == 0 ? " at " : ",", (unsigned long long)origin.at[d],
                        (unsigned long long)origin.length[d]);
        }
        for (uint32_t d = 0; d < origin.source_n_dims; d++) {
            text_printf(out, "%s%llu+%llu/%llu", d == 0 ? " begin " : ",",
                        (unsigned long long)origin.begin[d],
                        (unsigned long long)origin.source_length[d],
                        (unsigned long long)origin.source_global[d]);
        }
    }
    text_printf(out, "\n");
    return FERRY_OK;
}

typedef struct row {
    const char *name;
    const char *tensors;
    const char *source_rules;
    const char *destination_rules;
    uint32_t rank;
    const char *at_source; /* what the rank holds there, and at the destination */
    const char *at_destination;
} row;

#define WHOLE "{'match':'*'}"

/* Two ranks at each side: 0 and 1 on the axis tp. */
static const row rows[] = {
    {"scalar", "{'name':'s','shape':[],'dtype':'i64'}", WHOLE, WHOLE, 1, "s 8B\n", "s 8B from s\n"},
    {"no elements, beside something",
     "{'name':'a','shape':[0,3],'dtype':'u8'},{'name':'b','shape':[1],'dtype':'u8'}", WHOLE, WHOLE,
     0, "a 0B 0/0: 3/3:0+3\nb 1B 1/1:0+1\n",
     "a 0B 0/0: 3/3:0+3 from a at 0+0,0+3 begin 0+0/0,0+3/3\nb 1B 1/1:0+1 from b at 0+1 begin "
     "0+1/1\n"},
    {"a part without elements", "{'name':'a','shape':[1],'dtype':'f32'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}", WHOLE, 1, "a 0B 0/1:\n",
     "a 4B 1/1:0+1 from a at 0+1 begin 0+1/1\n"},
    {"stride", "{'name':'a','shape':[8],'dtype':'bf16'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp','stride':2}]}", WHOLE, 1, "a 8B 4/8:2+2,6+2\n",
     "a 16B 8/8:0+8 from a at 0+8 begin 0+8/8\n"},
    {"a cycle that ends early", "{'name':'a','shape':[7],'dtype':'u8'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp','cycle':2}]}", WHOLE, 1, "a 3B 3/7:2+2,6+1\n",
     "a 7B 7/7:0+7 from a at 0+7 begin 0+7/7\n"},
    {"sizes with an empty part first", "{'name':'a','shape':[5],'dtype':'u8'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp','sizes':[0,5]}]}", WHOLE, 1, "a 5B 5/5:0+5\n",
     "a 5B 5/5:0+5 from a at 0+5 begin 0+5/5\n"},
    {"own and shared blocks side by side are one piece", "{'name':'a','shape':[6],'dtype':'u8'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp','blocks':[4,[2,1]]}]}", WHOLE, 1, "a 4B 4/6:2+4\n",
     "a 6B 6/6:0+6 from a at 0+6 begin 0+6/6\n"},
    {"shared blocks apart", "{'name':'a','shape':[6],'dtype':'u8'}",
     "{'match':'*','shard':[{'dim':0,'axis':'tp','blocks':[4,[2,1]]}]}", WHOLE, 0,
     "a 4B 4/6:0+2,4+2\n", "a 6B 6/6:0+6 from a at 0+6 begin 0+6/6\n"},
    {"flat", "{'name':'a','shape':[3,5],'dtype':'f32'}", "{'match':'*','flat':{'axis':'tp'}}",
     WHOLE, 1, "a 28B flat 8..15 3/3:0+3 5/5:0+5\n",
     "a 60B 3/3:0+3 5/5:0+5 from a at 0+3,0+5 begin 0+3/3,0+5/5\n"},
    {"flat by sizes, nothing here", "{'name':'a','shape':[3],'dtype':'f32'}",
     "{'match':'*','flat':{'axis':'tp','sizes':[3,0]}}", WHOLE, 1, "a 0B flat 3..3 3/3:0+3\n",
     "a 12B 3/3:0+3 from a at 0+3 begin 0+3/3\n"},
    {"half a byte at the end",
     "{'name':'a','shape':[4],'dtype':'f4','source':[{'tensor':'p','begin':[0],'shape':[4],'at':"
     "[0]}]},{'name':'p','shape':[5],'dtype':'f4'}",
     WHOLE, "{'match':'p','skip':true}," WHOLE, 0, "p 3B 5/5:0+5\n",
     "a 2B 4/4:0+4 from p at 0+4 begin 0+4/5\n"},
    {"stacked experts",
     "{'name':'s','shape':[2,3],'dtype':'u8','source':[{'tensor':'e.1','begin':[0],'shape':[3],"
     "'at':[0,0]},{'tensor':'e.0','begin':[0],'shape':[3],'at':[1,0]}]},{'name':'e.{0}','count':"
     "[3],'shape':[3],'dtype':'u8'}",
     WHOLE, "{'match':'e.*','skip':true},{'match':'*','shard':[{'dim':0,'axis':'tp'}]}", 1,
     "e.0 3B 3/3:0+3\ne.1 3B 3/3:0+3\n",
     "s 3B 1/2:1+1 3/3:0+3 from e.1 at 0+1,0+3 begin 0+3/3 from e.0 at 1+1,0+3 begin 0+3/3\n"},
    {"a tensor that another is fed from as well",
     "{'name':'a','shape':[2],'dtype':'u8'},{'name':'b','shape':[2],'dtype':'u8','source':'a'}",
     WHOLE, WHOLE, 0, "a 2B 2/2:0+2\n",
     "a 2B 2/2:0+2 from a at 0+2 begin 0+2/2\nb 2B 2/2:0+2 from a at 0+2 begin 0+2/2\n"},
    {"not on this rank", "{'name':'a','shape':[2],'dtype':'u8'}", "{'match':'*','on':{'tp':0}}",
     WHOLE, 1, "", "a 2B 2/2:0+2 from a at 0+2 begin 0+2/2\n"},
};

static ferry_plan *plan_row(const row *r, const char *subset)
{
    char text[4096];
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.subset = subset;
    snprintf(text, sizeof text,
             "{'format':'ferry.spec/1','tensors':[%s],'source':{'mesh':[['tp',2]],'rules':[%s]},"
             "'destination':{'mesh':[['tp',2]],'rules':[%s]}}",
             r->tensors, r->source_rules, r->destination_rules);
    return plan_of(text, &options);
}

static void check_shards(const char *name, const ferry_plan *plan, ferry_side_role side,
                         uint32_t rank, const char *expected)
{
    text_buffer found = {0};
    text_append(&found, "", 0);
    must(ferry_plan_visit_shards(plan, side, rank, describe, &found, &error), &error);
    if (strcmp(found.bytes, expected) != 0) {
        fail_msg("row \"%s\": side %d has\n%snot\n%s", name, (int)side, found.bytes, expected);
    }
    text_cleanup(&found);
}

static void test_edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_plan *plan = plan_row(&rows[i], NULL);
        check_shards(rows[i].name, plan, FERRY_SIDE_SOURCE, rows[i].rank, rows[i].at_source);
        check_shards(rows[i].name, plan, FERRY_SIDE_DESTINATION, rows[i].rank,
                     rows[i].at_destination);
        ferry_plan_destroy(plan);
    }
}

/* A subset leaves out destination tensors, and the sources that only they want. */
static void test_subset(void **state)
{
    (void)state;
    const row r = {.tensors = "{'name':'a','shape':[2],'dtype':'u8'},{'name':'b','shape':[2],"
                              "'dtype':'u8','source':'a'},{'name':'c','shape':[1],'dtype':'u8'}",
                   .source_rules = WHOLE,
                   .destination_rules = WHOLE};
    ferry_plan *plan = plan_row(&r, "b");
    check_shards("b", plan, FERRY_SIDE_SOURCE, 0, "a 2B 2/2:0+2\n");
    check_shards("b", plan, FERRY_SIDE_DESTINATION, 1, "b 2B 2/2:0+2 from a at 0+2 begin 0+2/2\n");
    ferry_plan_destroy(plan);
}

/* Guesses where the next piece lies must not depend on how parts are laid out. */
static void test_many_parts(void **state)
{
    (void)state;
    static const char spec[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[100,90],'dtype':'u8'}],"
        "'source':{'mesh':[['x',3],['y',5]],'rules':[{'match':'*','shard':["
        "{'dim':0,'axis':['x','y'],'blocks':[[30,3],40,[30,5]]}]}]},"
        "'destination':{'mesh':[['x',3]],'rules':[{'match':'*'}]}}";
    ferry_plan *plan = plan_of(spec, NULL);
    check_shards("blocks", plan, FERRY_SIDE_SOURCE, 7,
                 "a 1710B 19/100:10+10,51+3,82+6 90/90:0+90\n");
    ferry_plan_destroy(plan);
}

static ferry_status stop_at_second(void *context, const ferry_shard *shard)
{
    uint32_t *n = context;
    (void)shard;
    return ++*n == 2 ? FERRY_ERR_EXCHANGE : FERRY_OK;
}

typedef struct probe {
    uint64_t n;
} probe;

/* What is wrong to ask inside a visit. */
static ferry_status ask_wrongly(void *context, const ferry_shard *shard)
{
    probe *p = context;
    uint64_t at = 77;
    ferry_origin origin = FERRY_ORIGIN_INIT;
    p->n++;
    assert_int_equal(ferry_shard_piece_count(shard, shard->n_dims), 0);
    assert_int_equal(ferry_shard_piece_at(shard, shard->n_dims, 0, &at, &at, &at, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_shard_piece_at(shard, 0, 1, &at, &at, &at, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_shard_piece_at(shard, 0, 0, NULL, &at, &at, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_shard_origin_at(shard, 1, &origin, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_shard_origin_at(shard, 0, NULL, &error), FERRY_ERR_MISUSE);
    origin.struct_size = 0;
    assert_int_equal(ferry_shard_origin_at(shard, 0, &origin, &error), FERRY_ERR_MISUSE);
    assert_int_equal(at, 77);
    return FERRY_OK;
}

/* Copies that outlive their visit. */
typedef struct keeper {
    uint32_t n;
    ferry_shard shards[2];
} keeper;

static void check_is_over(const ferry_shard *shard)
{
    uint64_t at = 77;
    ferry_origin origin = FERRY_ORIGIN_INIT;
    assert_int_equal(ferry_shard_piece_count(shard, 0), 0);
    assert_int_equal(ferry_shard_piece_at(shard, 0, 0, &at, &at, &at, &error), FERRY_ERR_MISUSE);
    assert_int_equal(at, 77);
    assert_int_equal(ferry_shard_origin_count(shard), 0);
    assert_int_equal(ferry_shard_origin_at(shard, 0, &origin, &error), FERRY_ERR_MISUSE);
}

static ferry_status keep(void *context, const ferry_shard *shard)
{
    keeper *k = context;
    if (k->n == 1) {
        check_is_over(&k->shards[0]); /* its turn, although the visit goes on */
    }
    k->shards[k->n++] = *shard;
    assert_int_equal(ferry_shard_piece_count(&k->shards[k->n - 1], 0), 1);
    return FERRY_OK;
}

static void test_misuse(void **state)
{
    (void)state;
    const row r = {.tensors = "{'name':'a','shape':[2],'dtype':'u8'},"
                              "{'name':'b','shape':[2],'dtype':'u8'}",
                   .source_rules = WHOLE,
                   .destination_rules = WHOLE};
    ferry_plan *plan = plan_row(&r, NULL);
    uint32_t n = 0;
    probe p = {0};
    assert_int_equal(ferry_plan_visit_shards(NULL, FERRY_SIDE_SOURCE, 0, describe, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_shards(plan, FERRY_SIDE_SOURCE, 0, NULL, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_shards(plan, FERRY_SIDE_SOURCE, 2, describe, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_shards(plan, (ferry_side_role)2, 0, describe, NULL, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(
        ferry_plan_visit_shards(plan, FERRY_SIDE_SOURCE, 0, stop_at_second, &n, &error),
        FERRY_ERR_EXCHANGE);
    assert_int_equal(n, 2);
    assert_non_null(strstr(error.message, "the visitor ended the call"));
    must(ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, 1, ask_wrongly, &p, &error), &error);
    assert_int_equal(p.n, 2);
    assert_int_equal(ferry_shard_piece_count(NULL, 0), 0);
    assert_int_equal(ferry_shard_origin_count(NULL), 0);
    keeper kept = {.n = 0};
    must(ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, 1, keep, &kept, &error), &error);
    assert_int_equal(kept.n, 2);
    check_is_over(&kept.shards[1]);
    ferry_plan_destroy(plan);
    check_is_over(&kept.shards[0]);
}

/* Each owner destroys it; the last one ends it. */
static void test_owners(void **state)
{
    (void)state;
    ferry_plan *plan = plan_row(&rows[0], NULL);
    ferry_plan *same = fy_plan_retain(plan);
    assert_ptr_equal(plan, same);
    ferry_plan_destroy(plan);
    check_shards("retained", same, FERRY_SIDE_SOURCE, 1, rows[0].at_source);
    ferry_plan_destroy(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),      cmocka_unit_test(test_subset),
        cmocka_unit_test(test_many_parts), cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
