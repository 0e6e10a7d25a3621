/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The digest is of what each rank holds and of how replicas are chosen, never of how that was
 * written down. Ranks that agree on it must agree on every move: so wherever two specs have one
 * digest, their whole printed plans are compared too.
 */
#include "support/check.h"
#include "support/spec.h"

#include <stdio.h>

#define TENSORS                                                                                    \
    "{'name':'a','shape':[8,3],'dtype':'u8'},{'name':'b','shape':[6],'dtype':'f32'},"              \
    "{'name':'l.0.w','shape':[8,2],'dtype':'u8'},{'name':'l.1.w','shape':[8,2],'dtype':'u8'}"
#define SPEC(tensors, source, destination)                                                         \
    "{'format':'ferry.spec/1','tensors':[" tensors "],'source':{" source                           \
    "},'destination':{" destination "}}"
#define CUT(axis) "'rules':[{'match':'b'},{'match':'*','shard':[{'dim':0,'axis':" axis "}]}]"
#define TP4 "'mesh':[['tp',4]]," CUT("'tp'")
#define TP2 "'mesh':[['dp',3],['tp',2]],'first_rank':2," CUT("'tp'")

static const char base[] = SPEC(TENSORS, TP4, TP2);

typedef struct row {
    const char *name;
    const char *spec;
} row;

/* The same layouts, told in another way. */
static const row same[] = {
    {"a list of ranks", SPEC(TENSORS, "'mesh':[['tp',4]],'ranks':[0,1,2,3]," CUT("'tp'"),
                             "'mesh':[['dp',3],['tp',2]],'ranks':[2,3,4,5,6,7]," CUT("'tp'"))},
    {"other axis names", SPEC(TENSORS, "'mesh':[['x',4]]," CUT("'x'"),
                              "'mesh':[['y',3],['z',2]],'first_rank':2," CUT("'z'"))},
    {"an axis more", SPEC(TENSORS, "'mesh':[['one',1],['tp',4]]," CUT("'tp'"), TP2)},
    {"an axis in two", SPEC(TENSORS, "'mesh':[['s',2],['f',2]]," CUT("['s','f']"), TP2)},
    {"axes in another order with the ranks in theirs",
     SPEC(TENSORS, TP4, "'mesh':[['tp',2],['dp',3]],'ranks':[2,4,6,3,5,7]," CUT("'tp'"))},
    {"rules in another order",
     SPEC(TENSORS,
          "'mesh':[['tp',4]],'rules':[{'match':'l.*','shard':[{'dim':0,'axis':'tp'}]},"
          "{'match':'a','shard':[{'dim':0,'axis':'tp'}]},{'match':'nobody'},{'match':'?'}]",
          TP2)},
    {"an even cut as a stride", SPEC(TENSORS,
                                     "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':"
                                     "'*','shard':[{'dim':0,'axis':'tp','stride':1}]}]",
                                     TP2)},
    {"an even cut as a cycle", SPEC(TENSORS,
                                    "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':"
                                    "'*','shard':[{'dim':0,'axis':'tp','cycle':2}]}]",
                                    TP2)},
    {"an even cut as sizes", SPEC(TENSORS,
                                  "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':"
                                  "'*','shard':[{'dim':0,'axis':'tp','sizes':[2,2,2,2]}]}]",
                                  TP2)},
    {"an even cut as a block", SPEC(TENSORS,
                                    "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':"
                                    "'*','shard':[{'dim':0,'axis':'tp','blocks':[8]}]}]",
                                    TP2)},
    {"an even cut in units", SPEC(TENSORS,
                                  "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':"
                                  "'*','shard':[{'dim':0,'axis':'tp','unit':2}]}]",
                                  TP2)},
    {"an even cut, nested", SPEC(TENSORS,
                                 "'mesh':[['s',2],['f',2]],'rules':[{'match':'b'},{'match':"
                                 "'*','shard':[{'dim':0,'axis':['s','f'],'nested':true}]}]",
                                 TP2)},
    {"replicas as parts", SPEC(TENSORS, TP4,
                               "'mesh':[['tp',2],['dp',3]],'ranks':[2,4,6,3,5,7],"
                               "'rules':[{'match':'b'},{'match':'*','shard':["
                               "{'dim':0,'axis':['tp','dp'],'parts':2}]}]")},
    {"replicas as blocks", SPEC(TENSORS, TP4,
                                "'mesh':[['tp',2],['dp',3]],'ranks':[2,4,6,3,5,7],"
                                "'rules':[{'match':'b'},{'match':'*','shard':["
                                "{'dim':0,'axis':['tp','dp'],'blocks':[[8,2]]}]}]")},
    {"repeated tensors",
     SPEC("{'name':'a','shape':[8,3],'dtype':'u8'},{'name':'b','shape':[6],'dtype':'f32'},"
          "{'name':'l.{0}.w','count':[2],'shape':[8,2],'dtype':'u8'}",
          TP4, TP2)},
};

/* Other layouts: each differs from the base in one thing. */
static const row other[] = {
    {"another name", SPEC("{'name':'c','shape':[8,3],'dtype':'u8'},{'name':'b','shape':[6],'dtype':"
                          "'f32'},{'name':'l.{0}.w','count':[2],'shape':[8,2],'dtype':'u8'}",
                          TP4, TP2)},
    {"another dtype of the size",
     SPEC("{'name':'a','shape':[8,3],'dtype':'i8'},{'name':'b','shape':"
          "[6],'dtype':'f32'},{'name':'l.{0}.w','count':[2],'shape':"
          "[8,2],'dtype':'u8'}",
          TP4, TP2)},
    {"another shape",
     SPEC("{'name':'a','shape':[8,4],'dtype':'u8'},{'name':'b','shape':[6],'dtype':"
          "'f32'},{'name':'l.{0}.w','count':[2],'shape':[8,2],'dtype':'u8'}",
          TP4, TP2)},
    {"another order",
     SPEC("{'name':'b','shape':[6],'dtype':'f32'},{'name':'a','shape':[8,3],'dtype'"
          ":'u8'},{'name':'l.{0}.w','count':[2],'shape':[8,2],'dtype':'u8'}",
          TP4, TP2)},
    {"a tensor less",
     SPEC("{'name':'a','shape':[8,3],'dtype':'u8'},{'name':'b','shape':[6],'dtype':"
          "'f32'},{'name':'l.0.w','shape':[8,2],'dtype':'u8'}",
          TP4, TP2)},
    {"a tied tensor",
     SPEC(TENSORS ",{'name':'t','shape':[6],'dtype':'f32','source':'b'}", TP4, TP2)},
    {"another cut", SPEC(TENSORS,
                         "'mesh':[['tp',4]],'rules':[{'match':'b'},{'match':'*','shard':"
                         "[{'dim':0,'axis':'tp','cycle':1}]}]",
                         TP2)},
    {"ranks that swap shards",
     SPEC(TENSORS, "'mesh':[['tp',4]],'ranks':[1,0,2,3]," CUT("'tp'"), TP2)},
    {"other ranks", SPEC(TENSORS, TP4, "'mesh':[['dp',3],['tp',2]],'first_rank':1," CUT("'tp'"))},
    {"fewer replicas",
     SPEC(TENSORS, TP4, "'mesh':[['dp',2],['tp',2]],'first_rank':2," CUT("'tp'"))},
    {"a tensor that is not wanted",
     SPEC(TENSORS, TP4,
          "'mesh':[['dp',3],['tp',2]],'first_rank':2,'rules':[{'match':'b','skip':true},"
          "{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]")},
};

typedef struct plan_text {
    char digest[33];
    text_buffer printed;
} plan_text;

static plan_text describe(const char *spec, const ferry_plan_options *options)
{
    plan_text t = {{0}, {0}};
    ferry_plan *plan = plan_of(spec, options);
    ferry_plan_digest(plan, t.digest, sizeof t.digest);
    t.printed = print_plan(plan);
    ferry_plan_destroy(plan);
    return t;
}

static void check_same(const char *name, const char *one, const char *two,
                       const ferry_plan_options *options)
{
    plan_text a = describe(one, options), b = describe(two, options);
    if (strcmp(a.digest, b.digest) != 0) {
        fail_msg("row \"%s\", policy %u: the digests differ", name, options->replica);
    }
    if (strcmp(a.printed.bytes, b.printed.bytes) != 0) {
        fail_msg("row \"%s\", policy %u: one digest, but two plans:\n%s%s", name, options->replica,
                 a.printed.bytes, b.printed.bytes);
    }
    text_cleanup(&a.printed);
    text_cleanup(&b.printed);
}

static void check_other(const char *name, const char *one, const char *two,
                        const ferry_plan_options *options)
{
    plan_text a = describe(one, options), b = describe(two, options);
    if (strcmp(a.digest, b.digest) == 0) {
        fail_msg("row \"%s\", policy %u: the digests agree", name, options->replica);
    }
    text_cleanup(&a.printed);
    text_cleanup(&b.printed);
}

static void test_same(void **state)
{
    (void)state;
    for (uint32_t policy = FERRY_REPLICA_BALANCED; policy <= FERRY_REPLICA_SEED; policy++) {
        ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
        options.replica = policy;
        for (size_t i = 0; i < COUNT_OF(same); i++) {
            check_same(same[i].name, base, same[i].spec, &options);
        }
    }
}

/* A cut into one part is none; but to the seed rule, what a rule means to cut is cut. */
static void test_cut_in_one_part(void **state)
{
    (void)state;
    static const char one[] =
        SPEC(TENSORS,
             "'mesh':[['tp',4]],'rules':[{'match':'b','shard':[{'dim':0,'axis':"
             "'tp','parts':1}]},{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]",
             TP2);
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    check_same("a cut in one part", base, one, &options);
    options.replica = FERRY_REPLICA_SEED;
    check_other("a cut in one part", base, one, &options);
}

/* Each must differ from the base and from every other of them. */
static void test_other(void **state)
{
    (void)state;
    for (uint32_t policy = FERRY_REPLICA_BALANCED; policy <= FERRY_REPLICA_SEED; policy++) {
        ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
        options.replica = policy;
        for (size_t i = 0; i < COUNT_OF(other); i++) {
            check_other(other[i].name, base, other[i].spec, &options);
            for (size_t j = 0; j < i; j++) {
                check_other(other[i].name, other[j].spec, other[i].spec, &options);
            }
        }
    }
}

/* The order in which replicas are told changes nothing. */
static void test_order_of_replicas(void **state)
{
    (void)state;
    static const char dp2[] = SPEC(TENSORS, "'mesh':[['dp',2],['tp',2]]," CUT("'tp'"), TP2);
    static const struct {
        const char *name;
        const char *one, *two;
    } rows[] = {
        {"destination replicas swapped", base,
         SPEC(TENSORS, TP4, "'mesh':[['dp',3],['tp',2]],'ranks':[4,5,2,3,6,7]," CUT("'tp'"))},
        {"destination replicas reversed", base,
         SPEC(TENSORS, TP4, "'mesh':[['dp',3],['tp',2]],'ranks':[6,7,4,5,2,3]," CUT("'tp'"))},
        {"source replicas swapped", dp2,
         SPEC(TENSORS, "'mesh':[['dp',2],['tp',2]],'ranks':[2,3,0,1]," CUT("'tp'"), TP2)},
    };
    for (uint32_t policy = FERRY_REPLICA_BALANCED; policy <= FERRY_REPLICA_SEED; policy++) {
        ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
        options.replica = policy;
        for (size_t i = 0; i < COUNT_OF(rows); i++) {
            check_same(rows[i].name, rows[i].one, rows[i].two, &options);
        }
    }
}

/* Options are part of the digest, and a subset that takes everything is still a subset. */
static void test_options(void **state)
{
    (void)state;
    static const ferry_plan_options options[] = {
        {.struct_size = sizeof(ferry_plan_options), .replica = FERRY_REPLICA_BALANCED},
        {.struct_size = sizeof(ferry_plan_options), .replica = FERRY_REPLICA_SEED},
        {.struct_size = sizeof(ferry_plan_options),
         .replica = FERRY_REPLICA_BALANCED,
         .subset = "*"},
        {.struct_size = sizeof(ferry_plan_options),
         .replica = FERRY_REPLICA_BALANCED,
         .subset = "a"},
        {.struct_size = sizeof(ferry_plan_options), .replica = FERRY_REPLICA_SEED, .subset = "a"},
    };
    char digests[COUNT_OF(options)][33];
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        plan_text t = describe(base, &options[i]);
        memcpy(digests[i], t.digest, sizeof t.digest);
        text_cleanup(&t.printed);
        for (size_t j = 0; j < i; j++) {
            check_at(strcmp(digests[i], digests[j]) != 0, "options %zu and %zu", i, j);
        }
    }
}

/* The order of tensors counts only as far as one rank's parameters have it. */
static void test_order_of_tensors(void **state)
{
    (void)state;
    static const char ab[] = SPEC(
        "{'name':'a','shape':[4],'dtype':'u8'},{'name':'b','shape':[4],'dtype':'u8'},"
        "{'name':'c','shape':[4],'dtype':'u8'}",
        "'mesh':[['x',1]],'rules':[{'match':'*'}]",
        "'mesh':[['x',2]],'first_rank':1,'rules':[{'match':'a','on':{'x':0}},{'match':'b','on':"
        "{'x':1}},{'match':'c','on':{'x':1}}]");
    static const char ba[] = SPEC(
        "{'name':'b','shape':[4],'dtype':'u8'},{'name':'a','shape':[4],'dtype':'u8'},"
        "{'name':'c','shape':[4],'dtype':'u8'}",
        "'mesh':[['x',1]],'rules':[{'match':'*'}]",
        "'mesh':[['x',2]],'first_rank':1,'rules':[{'match':'a','on':{'x':0}},{'match':'b','on':"
        "{'x':1}},{'match':'c','on':{'x':1}}]");
    static const char cb[] = SPEC(
        "{'name':'a','shape':[4],'dtype':'u8'},{'name':'c','shape':[4],'dtype':'u8'},"
        "{'name':'b','shape':[4],'dtype':'u8'}",
        "'mesh':[['x',1]],'rules':[{'match':'*'}]",
        "'mesh':[['x',2]],'first_rank':1,'rules':[{'match':'a','on':{'x':0}},{'match':'b','on':"
        "{'x':1}},{'match':'c','on':{'x':1}}]");
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    check_same("ranks apart", ab, ba, &options);
    check_other("one rank", ab, cb, &options);
}

/*
 * Here senders change inside of tensors: what rounding gave one of them too much on one tensor is
 * taken back on the next, so it shows in which order the planner goes through them.
 */
#define X "{'name':'x','shape':[1000,7],'dtype':'f32'}"
#define Y "{'name':'y','shape':[331,13],'dtype':'f32'}"
#define Z "{'name':'z','shape':[97,11],'dtype':'f32'}"
#define REPLICAS "'mesh':[['dp',3]],'rules':[{'match':'*'}]"
#define STAGES                                                                                     \
    "'mesh':[['pp',3]],'first_rank':3,'rules':[{'match':'x','on':{'pp':0}},{'match':'y','on':"     \
    "{'pp':1}},{'match':'z','on':{'pp':2}}]"

static void test_order_of_cut_tensors(void **state)
{
    (void)state;
    static const char *const orders[] = {
        SPEC(X "," Y "," Z, REPLICAS, STAGES), SPEC(X "," Z "," Y, REPLICAS, STAGES),
        SPEC(Y "," X "," Z, REPLICAS, STAGES), SPEC(Y "," Z "," X, REPLICAS, STAGES),
        SPEC(Z "," X "," Y, REPLICAS, STAGES), SPEC(Z "," Y "," X, REPLICAS, STAGES),
    };
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    for (size_t i = 1; i < COUNT_OF(orders); i++) {
        check_same("cut tensors", orders[0], orders[i], &options);
    }
    ferry_plan *plan = plan_of(orders[0], &options);
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    ferry_error error;
    must(ferry_plan_get_totals(plan, &totals, &error), &error);
    assert_true(totals.n_moves > 6); /* senders change inside of rows */
    ferry_plan_destroy(plan);
}

/* Parts that are numbered in another way, and shared blocks that are replicas, with three senders.
 */
static void test_numbers_of_parts(void **state)
{
    (void)state;
#define TO(destination) SPEC(X "," Y, REPLICAS, destination)
    static const struct {
        const char *name;
        const char *one, *two;
    } rows[] = {
        {"an empty part in front",
         TO("'mesh':[['tp',3]],'ranks':[3,4,5],'rules':[{'match':'x','shard':[{'dim':1,'axis':'tp',"
            "'sizes':[3,4,0]}]},{'match':'*'}]"),
         TO("'mesh':[['tp',3]],'ranks':[5,3,4],'rules':[{'match':'x','shard':[{'dim':1,'axis':'tp',"
            "'sizes':[0,3,4]}]},{'match':'*','on':{'tp':[1,2,0]}}]")},
        {"replicas as shared blocks",
         TO("'mesh':[['tp',2],['dp',2]],'first_rank':3,'rules':[{'match':'*'}]"),
         TO("'mesh':[['tp',2],['dp',2]],'first_rank':3,'rules':[{'match':'x','shard':[{'dim':0,"
            "'axis':'tp','blocks':[[600,1],[400,1]]}]},{'match':'*'}]")},
        {"one of two tensors as shared blocks",
         SPEC(X ",{'name':'x2','shape':[1000,7],'dtype':'f32'}", REPLICAS,
              "'mesh':[['tp',4]],'first_rank':3,'rules':[{'match':'*'}]"),
         SPEC(X ",{'name':'x2','shape':[1000,7],'dtype':'f32'}", REPLICAS,
              "'mesh':[['tp',4]],'first_rank':3,'rules':[{'match':'x2','shard':[{'dim':0,"
              "'axis':'tp','blocks':[[1000,1]]}]},{'match':'*'}]")},
        {"half of the replicas as shared blocks",
         TO("'mesh':[['tp',4]],'first_rank':3,'rules':[{'match':'x','shard':[{'dim':0,"
            "'axis':'tp','parts':2}]},{'match':'*'}]"),
         TO("'mesh':[['tp',4]],'first_rank':3,'rules':[{'match':'x','shard':[{'dim':0,"
            "'axis':'tp','blocks':[[1000,2]]}]},{'match':'*'}]")},
    };
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_same(rows[i].name, rows[i].one, rows[i].two, &options);
    }
}

static void test_ways_to_place(void **state)
{
    (void)state;
    static const char stages[] = SPEC(
        "{'name':'l.{0}.w','count':[4],'shape':[4],'dtype':'u8'}",
        "'mesh':[['pp',2],['tp',2]],'stages':[{'match':'l.{}.*','count':4,'axis':'pp'}],'rules':"
        "[{'match':'*'}]",
        "'mesh':[['x',2]],'first_rank':4,'rules':[{'match':'*'}]");
    static const char sizes[] =
        SPEC("{'name':'l.{0}.w','count':[4],'shape':[4],'dtype':'u8'}",
             "'mesh':[['pp',2],['tp',2]],'stages':[{'match':'l.{}.*','sizes':[2,2],'axis':'pp'}],"
             "'rules':[{'match':'*'}]",
             "'mesh':[['x',2]],'first_rank':4,'rules':[{'match':'*'}]");
    static const char pins[] =
        SPEC("{'name':'l.{0}.w','count':[4],'shape':[4],'dtype':'u8'}",
             "'mesh':[['pp',2],['tp',2]],'rules':[{'match':'l.0.w','on':{'pp':0}},{'match':'l.1.w',"
             "'on':{'pp':-2}},{'match':'*','on':{'pp':[1]}}]",
             "'mesh':[['x',2]],'first_rank':4,'rules':[{'match':'*'}]");
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    check_same("stage sizes", stages, sizes, &options);
    check_same("pins", stages, pins, &options);
    options.replica = FERRY_REPLICA_SEED;
    check_same("pins, seed", stages, pins, &options);
}

static void test_tied_as_a_box(void **state)
{
    (void)state;
    static const char tied[] =
        SPEC(TENSORS ",{'name':'t','shape':[8,3],'dtype':'u8','source':'a'}", TP4, TP2);
    static const char box[] = SPEC(
        TENSORS ",{'name':'t','shape':[8,3],'dtype':'u8','source':[{'tensor':'a','begin':[0,0],"
                "'shape':[8,3],'at':[0,0]}]}",
        TP4, TP2);
    static const char other_box[] = SPEC(
        TENSORS ",{'name':'t','shape':[8,3],'dtype':'u8','source':[{'tensor':'a','begin':[4,0],"
                "'shape':[4,3],'at':[0,0]},{'tensor':'a','begin':[0,0],'shape':[4,3],'at':[4,0]}]}",
        TP4, TP2);
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    check_same("tied", tied, box, &options);
    check_other("halves swapped", tied, other_box, &options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_cut_in_one_part),
        cmocka_unit_test(test_other),
        cmocka_unit_test(test_order_of_replicas),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_order_of_tensors),
        cmocka_unit_test(test_order_of_cut_tensors),
        cmocka_unit_test(test_numbers_of_parts),
        cmocka_unit_test(test_ways_to_place),
        cmocka_unit_test(test_tied_as_a_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
