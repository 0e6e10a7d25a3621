/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"

#include "support/spec.h"

#include "prove_case.h"

/*
 * What the prover says of casts: a plan must say those of the spec, who computes them, and count
 * what travels. Rank 0 has four tensors of four elements; rank 1 wants one narrower, one wider,
 * one times two and plus one, and one as it is.
 */
static const char base_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4],'dtype':'bf16'},"
    "{'name':'b','shape':[4],'dtype':'bf16'},{'name':'c','shape':[4],'dtype':'f32'},"
    "{'name':'d','shape':[4],'dtype':'i32'}],'source':{'mesh':[],'rules':[{'match':'*'}]},"
    "'destination':{'mesh':[],'first_rank':1,'rules':["
    "{'match':'a','dtype':'f8e4m3','cast':'saturate'},{'match':'b','dtype':'f32','cast':'round'},"
    "{'match':'c','cast':'round','scale':0.1,'add':-1},{'match':'*'}]}}";

#define ENDS(id, tensor)                                                                           \
    "{'task_id':" #id ",'tensor':'" tensor "','from':0,'to':1,'src':[[0,4]],'dst':[[0,4]]"
#define NARROW ",'src_dtype':'bf16','dst_dtype':'f8e4m3','cast':'saturate','at':'sender'"
#define WIDE ",'src_dtype':'bf16','dst_dtype':'f32','cast':'round','at':'receiver'"
#define SAME                                                                                       \
    ",'src_dtype':'f32','dst_dtype':'f32','cast':'round','scale':0.10000000149011612,'add':-1,"    \
    "'at':'sender'"

static const char base_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':2,'tensors':4,"
    "'bytes':{'moved':44,'local':0,'total':44},'bound':{'seconds':null,'rank':0,'why':'egress'},"
    "'ranks':[{'rank':0,'in':0,'out':44,'local':0},{'rank':1,'in':44,'out':0,'local':0}],"
    "'moves':[" ENDS(0, "a") NARROW ",'bytes':4}," ENDS(1, "b") WIDE ",'bytes':8}," ENDS(2, "c")
        SAME ",'bytes':16}," ENDS(3, "d") ",'bytes':16}]}";

typedef struct row {
    const char *find;
    const char *replace;
    ferry_status status;
    const char *words;
} row;

static void write_replaced(const char *file, const char *base, const row *r)
{
    char text[4096];
    const char *place = strstr(base, r->find);
    assert_non_null(place);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - base), base, r->replace,
             place + strlen(r->find));
    write_json(file, text);
}

static const row plan_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {NARROW, "", FERRY_ERR_PROOF, "task 0: a|says \"src_dtype\" nothing, but it is bf16"},
    {"'src_dtype':'bf16','dst_dtype':'f8e4m3'", "'src_dtype':'f32','dst_dtype':'f8e4m3'",
     FERRY_ERR_PROOF, "task 0: a|says \"src_dtype\" f32, but it is bf16"},
    {"'dst_dtype':'f8e4m3'", "'dst_dtype':'f8e5m2'", FERRY_ERR_PROOF,
     "task 0: a|says \"dst_dtype\" f8e5m2, but it is f8e4m3"},
    {"'cast':'saturate'", "'cast':'round'", FERRY_ERR_PROOF,
     "task 0: a|says \"cast\" round, but it is saturate"},
    {"'at':'sender'", "'at':'receiver'", FERRY_ERR_PROOF,
     "task 0: a|says \"at\" receiver, but it is sender"},
    {",'at':'receiver'", "", FERRY_ERR_PROOF, "task 1: b|says \"at\" nothing, but it is receiver"},
    {"'saturate','at'", "'saturate','scale':1,'at'", FERRY_ERR_PROOF,
     "task 0: a|says another \"scale\" than the destination, which has 1"},
    {"'saturate','at'", "'saturate','add':0,'at'", FERRY_ERR_PROOF,
     "task 0: a|says another \"add\" than the destination, which has 0"},
    {"'scale':0.10000000149011612,", "", FERRY_ERR_PROOF,
     "task 2: c|says another \"scale\" than the destination, which has 0.1"},
    {"'scale':0.10000000149011612", "'scale':0.1", FERRY_ERR_PROOF, "task 2: c|another \"scale\""},
    {"'add':-1", "'add':1", FERRY_ERR_PROOF, "task 2: c|another \"add\"|which has -1"},
    {"'add':-1", "'add':'-1'", FERRY_ERR_PROOF, "task 2: c|another \"add\""},
    {ENDS(3, "d"), ENDS(3, "d") ",'at':'sender'", FERRY_ERR_PROOF,
     "task 3: d|says a cast, but the destination wants it as it is"},
    {NARROW ",'bytes':4", NARROW ",'bytes':8", FERRY_ERR_PROOF,
     "task 0: a|4 elements of 8 bits, but states 8 bytes"},
    {WIDE ",'bytes':8", WIDE ",'bytes':16", FERRY_ERR_PROOF,
     "task 1: b|4 elements of 16 bits, but states 16 bytes"},
    {"'cast':'saturate'", "'cast':1", FERRY_ERR_INVALID_INPUT, "moves[0].cast must be"},
};

static void test_plans(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    for (size_t i = 0; i < sizeof plan_rows / sizeof *plan_rows; i++) {
        write_replaced("plan.json", base_plan, &plan_rows[i]);
        expect(plan_rows[i].replace, plan_rows[i].status, plan_rows[i].words);
    }
}

static const row spec_rows[] = {
    {"'cast':'saturate'", "'cast':'floor'", FERRY_ERR_INVALID_INPUT,
     "rules[0] has the cast \"floor\""},
    {",'cast':'saturate'", "", FERRY_ERR_INVALID_INPUT,
     "a: the destination wants another type|without a cast"},
    {"'match':'c','cast':'round'", "'match':'c'", FERRY_ERR_INVALID_INPUT,
     "rules[2] scales or adds, but says no cast"},
    {"'scale':0.1", "'scale':0", FERRY_ERR_INVALID_INPUT, "rules[2] scales by 0"},
    {"'scale':0.1", "'scale':1e39", FERRY_ERR_INVALID_INPUT, "rules[2].scale must be a number"},
    {"'add':-1", "'add':null", FERRY_ERR_INVALID_INPUT, "rules[2].add must be a number"},
    {"'dtype':'f32','cast'", "'dtype':'f64','cast'", FERRY_ERR_INVALID_INPUT, "b: the destination"},
    {"{'match':'*'}]}}", "{'match':'*','dtype':'f32','cast':'round'}]}}", FERRY_ERR_INVALID_INPUT,
     "d: the destination"},
    {"{'match':'*'}]},'dest", "{'match':'*','cast':'round'}]},'dest", FERRY_ERR_INVALID_INPUT,
     "casts at the source"},
    {"{'match':'*'}]},'dest", "{'match':'*','dtype':'f32'}]},'dest", FERRY_ERR_INVALID_INPUT,
     "says a dtype at the source"},
    /* Other casts than those that the plan says. */
    {"'cast':'saturate'", "'cast':'round'", FERRY_ERR_PROOF, "task 0: a|but it is round"},
    {"'scale':0.1", "'scale':0.2", FERRY_ERR_PROOF, "task 2: c|another \"scale\""},
    {"{'match':'*'}]}}", "{'match':'*','cast':'round'}]}}", FERRY_OK, ""},
};

static void test_specs(void **state)
{
    (void)state;
    write_json("plan.json", base_plan);
    for (size_t i = 0; i < sizeof spec_rows / sizeof *spec_rows; i++) {
        write_replaced("spec.json", base_spec, &spec_rows[i]);
        expect(spec_rows[i].replace, spec_rows[i].status, spec_rows[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_specs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
