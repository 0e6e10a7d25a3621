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

/* Of a tensor of 5 x 6 in blocks of 2 x 3, rank 0 has the upper four rows and rank 1 the last. */
static const char blocks_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[5,6],'dtype':'bf16'}],"
    "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
    "'sizes':[4,1]}]}]},'destination':{'mesh':[],'first_rank':2,'rules':[{'match':'w',"
    "'quantize':{'format':'f8e4m3','block':[2,3],'scale':'*.s'}}]}}";

#define FORMAT                                                                                     \
    "'quantize':{'format':'f8e4m3','block':[2,3],'scale_dtype':'f32','scale_kind':'amax'},"        \
    "'at':'sender'"
#define CODES(id, from, src, dst, bytes)                                                           \
    "{'task_id':" #id ",'tensor':'w','from':" #from ",'to':2,'src':" src ",'dst':" dst             \
    ",'src_dtype':'bf16','dst_dtype':'f8e4m3','part':'codes'," FORMAT ",'bytes':" #bytes "}"
#define SCALES(id, from, src, dst, bytes)                                                          \
    "{'task_id':" #id ",'tensor':'w.s','source':'w','from':" #from ",'to':2,'src':" src            \
    ",'dst':" dst ",'src_dtype':'bf16','dst_dtype':'f32','part':'scales'," FORMAT                  \
    ",'bytes':" #bytes "}"
#define UPPER CODES(0, 0, "[[0,4],[0,6]]", "[[0,4],[0,6]]", 24)
#define UPPER_SCALES SCALES(2, 0, "[[0,4],[0,6]]", "[[0,2],[0,2]]", 16)
#define LAST_SCALES SCALES(3, 1, "[[0,1],[0,6]]", "[[2,1],[0,2]]", 8)

static const char blocks_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':2,"
    "'bytes':{'moved':54,'local':0,'total':54},'bound':{'seconds':null,'rank':2,'why':'ingress'},"
    "'ranks':[{'rank':0,'in':0,'out':40,'local':0},{'rank':1,'in':0,'out':14,'local':0},"
    "{'rank':2,'in':54,'out':0,'local':0}],'moves':[" UPPER
    "," CODES(1, 1, "[[0,1],[0,6]]", "[[4,1],[0,6]]", 6) "," UPPER_SCALES "," LAST_SCALES "]}";

static const row blocks_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'part':'codes'", "'part':'scales'", FERRY_ERR_PROOF, "task 0: w|and that these are codes"},
    {"'at':'sender'", "'at':'receiver'", FERRY_ERR_PROOF, "task 0: w|that the sender quantizes"},
    {"'block':[2,3]", "'block':[2,2]", FERRY_ERR_PROOF, "task 0: w|in another format"},
    {"'amax'", "'cover'", FERRY_ERR_PROOF, "task 0: w|in another format"},
    {"'dst_dtype':'f8e4m3'", "'dst_dtype':'f8e5m2'", FERRY_ERR_PROOF, "f8e5m2 where it is f8e4m3"},
    {FORMAT ",'bytes':24", FORMAT ",'bytes':48", FERRY_ERR_PROOF, "24 elements of 8 bits|48 bytes"},
    {UPPER, CODES(0, 0, "[[0,3],[0,6]]", "[[0,3],[0,6]]", 18), FERRY_ERR_PROOF,
     "task 0: w|the elements 0 to 3 of the tensor|blocks are of 2"},
    {"'tensor':'w.s','source':'w'", "'tensor':'w.s','source':'w.s'", FERRY_ERR_PROOF,
     "task 2: w.s|has scales of w, and should name it"},
    {"'tensor':'w.s','source':'w'", "'tensor':'w.s'", FERRY_ERR_PROOF, "should name it"},
    {UPPER_SCALES, SCALES(2, 0, "[[0,3],[0,6]]", "[[0,2],[0,2]]", 16), FERRY_ERR_PROOF,
     "task 2: w.s|reads 3 elements from 0 on where its blocks are 4"},
    {UPPER_SCALES, SCALES(2, 0, "[[1,3],[0,6]]", "[[0,2],[0,2]]", 16), FERRY_ERR_PROOF,
     "task 2: w.s|reads from 1 on, which is no block of 2"},
    {UPPER_SCALES, SCALES(2, 0, "[[2,2],[0,6]]", "[[0,2],[0,2]]", 16), FERRY_ERR_PROOF,
     "task 2: w.s"},
    {LAST_SCALES, SCALES(3, 0, "[[0,2],[0,6]]", "[[2,1],[0,2]]", 8), FERRY_ERR_PROOF,
     "task 3: w.s|global element [2, 0] is element [2, 0] of w.s, but the sender has element [0, "
     "0]"},
    {LAST_SCALES, SCALES(3, 2, "[[0,1],[0,6]]", "[[2,1],[0,2]]", 8), FERRY_ERR_PROOF,
     "task 3: w.s|rank 2 is not in the source"},
    {"," LAST_SCALES, "", FERRY_ERR_PROOF, "w.s [2:3, 0:2]|no move"},
};

static const row blocks_spec_rows[] = {
    {"'block':[2,3]", "'block':[3,3]", FERRY_ERR_PROOF, "task 0: w|in another format"},
    {"'block':[2,3]", "'block':[0,3]", FERRY_ERR_INVALID_INPUT, "block"},
    {"'scale':'*.s'", "'scale_kind':'amax'", FERRY_ERR_INVALID_INPUT, "names no tensor"},
    {"'scale':'*.s'", "'scale':'w'", FERRY_ERR_INVALID_INPUT, "w: is the name of scales"},
    {"'format':'f8e4m3'", "'format':'nvfp4'", FERRY_ERR_INVALID_INPUT, "format \"nvfp4\""},
    {"'dtype':'bf16'", "'dtype':'i32'", FERRY_ERR_INVALID_INPUT, "w: is quantized, but"},
    {"'scale':'*.s'", "'scale':'*.t'", FERRY_ERR_PROOF, "w.s is not in the spec"},
};

static void test_blocks(void **state)
{
    (void)state;
    write_json("spec.json", blocks_spec);
    for (size_t i = 0; i < sizeof blocks_rows / sizeof *blocks_rows; i++) {
        write_replaced("plan.json", blocks_plan, &blocks_rows[i]);
        expect(blocks_rows[i].replace, blocks_rows[i].status, blocks_rows[i].words);
    }
    write_json("plan.json", blocks_plan);
    for (size_t i = 0; i < sizeof blocks_spec_rows / sizeof *blocks_spec_rows; i++) {
        write_replaced("spec.json", blocks_spec, &blocks_spec_rows[i]);
        expect(blocks_spec_rows[i].replace, blocks_spec_rows[i].status, blocks_spec_rows[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
