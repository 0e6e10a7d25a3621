/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"

#include "support/spec.h"

#include "prove_case.h"

/*
 * What the prover says of parameters that dequantize: what comes beside them, and what moves must
 * say. Of c, 4 x 6 in blocks of 2 x 2, rank 1 has a part of row 1 and one of row 3, set down by a
 * loop; of b a part of row 3. Scales are b's first, by name.
 */
#define SAID "'dtype':'bf16','dequantize':{'block':[2,2],'scale':'*.s'}"

static const char base_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'c','shape':[4,6],'dtype':'f8e4m3'},"
    "{'name':'b','shape':[4,6],'dtype':'f8e5m2'},{'name':'c.s','shape':[2,3],'dtype':'f32'},"
    "{'name':'b.s','shape':[2,3],'dtype':'f32'}],'source':{'mesh':[],'rules':[{'match':'*'}]},"
    "'destination':{'boxes':[{'rank':1,'parameter':'w','elements':12," SAID
    ",'holds':[{'tensor':'c','begin':[1,0],'shape':[1,4],'offset':0,'strides':[4,1],"
    "'repeat':[{'count':2,'begin':[2,1],'offset':4}]},"
    "{'tensor':'b','begin':[3,1],'shape':[1,4],'offset':8,'strides':[4,1]}]}]}}";

#define VALUES                                                                                     \
    ",'dst_dtype':'bf16','dequantize':{'block':[2,2],'scale_dtype':'f32'},'part':'codes','at':"    \
    "'receiver','bytes':4}"
#define CODES(id, tensor, type, row, column, offset)                                               \
    "{'task_id':" #id ",'tensor':'" tensor "','from':0,'to':1,'shape':[1,4],'src':[[" #row         \
    ",1],[" #column ",4]],'dst':{'parameter':'w','offset':" #offset                                \
    ",'strides':[1,1]},'src_dtype':'" type "'" VALUES
#define SCALES(id, tensor, row, rows, offset, strides, bytes)                                      \
    "{'task_id':" #id ",'tensor':'" tensor ":scales','source':'" tensor                            \
    ".s','from':0,'to':1,'shape':[" #rows ",3],'src':[[" #row "," #rows                            \
    "],[0,3]],'dst':{'parameter':'w:scales','offset':" #offset ",'strides':" strides               \
    "},'bytes':" #bytes "}"
#define OF_B SCALES(3, "b", 1, 1, 0, "[1,1]", 12)
#define OF_C SCALES(4, "c", 0, 2, 3, "[3,1]", 24)

static const char base_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':2,'tensors':4,"
    "'bytes':{'moved':48,'local':0,'total':48},'bound':{'seconds':null,'rank':0,'why':'egress'},"
    "'ranks':[{'rank':0,'in':0,'out':48,'local':0},{'rank':1,'in':48,'out':0,'local':0}],"
    "'moves':[" CODES(0, "c", "f8e4m3", 1, 0, 0) "," CODES(1, "c", "f8e4m3", 3, 1, 4) "," CODES(
        2, "b", "f8e5m2", 3, 1, 8) "," OF_B "," OF_C "],'fills':[]}";

typedef struct row {
    const char *find;
    const char *replace;
    ferry_status status;
    const char *words;
} row;

static const row plan_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'dst_dtype':'bf16'", "'dst_dtype':'f16'", FERRY_ERR_PROOF,
     "task 0: c|should say that the receiver dequantizes it"},
    {"'part':'codes'", "'part':'scales'", FERRY_ERR_PROOF, "task 0: c|should say"},
    {"'scale_dtype':'f32'", "'scale_dtype':'f8e8m0'", FERRY_ERR_PROOF,
     "task 0: c|is dequantized by other blocks, or scales"},
    {"'block':[2,2]", "'block':[2,3]", FERRY_ERR_PROOF, "task 0: c|by other blocks"},
    {OF_B, SCALES(3, "b", 0, 1, 0, "[1,1]", 12), FERRY_ERR_PROOF, "task 3: b:scales"},
    {OF_B, SCALES(3, "b", 1, 1, 3, "[1,1]", 12), FERRY_ERR_PROOF, "task 3: b:scales"},
    {OF_C, SCALES(4, "c", 0, 2, 3, "[1,2]", 24), FERRY_ERR_PROOF, "task 4: c:scales"},
    {"," OF_C, "", FERRY_ERR_PROOF, "w:scales"},
    {"," OF_B "," OF_C, "", FERRY_ERR_PROOF, "w:scales"},
};

static void test_plans(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    for (size_t i = 0; i < sizeof plan_rows / sizeof *plan_rows; i++) {
        write_replaced("plan.json", base_plan, plan_rows[i].find, plan_rows[i].replace);
        expect(plan_rows[i].replace, plan_rows[i].status, plan_rows[i].words);
    }
}

static const row spec_rows[] = {
    {SAID, "'dtype':'f16','dequantize':{'block':[2,2],'scale':'*.s'}", FERRY_ERR_PROOF,
     "task 0: c|both types"},
    {SAID, "'dtype':'bf16','dequantize':{'block':[4,2],'scale':'*.s'}", FERRY_ERR_INVALID_INPUT,
     "b.s: are not the scales"},
    {SAID, "'dtype':'bf16','dequantize':{'block':[2,2],'scale':'*.t'}", FERRY_ERR_INVALID_INPUT,
     "b: is dequantized, but its scales are not in the spec"},
    {SAID, "'dtype':'bf16','cast':'round','dequantize':{'block':[2,2],'scale':'*.s'}",
     FERRY_ERR_INVALID_INPUT, "boxes[0].dequantize stands at the source, or beside a cast"},
    {SAID, "'dtype':'i32','dequantize':{'block':[2,2],'scale':'*.s'}", FERRY_ERR_INVALID_INPUT,
     "c: is dequantized, but"},
    {"'shape':[4,6],'dtype':'f8e4m3'", "'shape':[4,6],'dtype':'bf16'", FERRY_ERR_INVALID_INPUT,
     "c: is dequantized, but"},
    {"'name':'b.s','shape':[2,3],'dtype':'f32'", "'name':'b.s','shape':[2,3],'dtype':'f8e8m0'",
     FERRY_ERR_INVALID_INPUT, "w:scales: has scales of two types"},
    {"'boxes':[",
     "'boxes':[{'rank':1,'parameter':'v','elements':4,'dtype':'f32','dequantize':{"
     "'block':[2,2],'scale':'c.s'},'holds':[{'tensor':'b','begin':[3,1],'shape':[1,4],"
     "'offset':0,'strides':[4,1]}]},",
     FERRY_ERR_INVALID_INPUT, "b: is dequantized by two tensors of scales"},
    {"'boxes':[",
     "'boxes':[{'rank':1,'parameter':'w:scales','elements':6,'holds':[{'tensor':'c.s',"
     "'begin':[0,0],'shape':[2,3],'offset':0,'strides':[3,1]}]},",
     FERRY_ERR_INVALID_INPUT, "rank 1 has two parameters w:scales"},
    /* A loop that reaches one column further needs the same scales. */
    {"'begin':[2,1],'offset':4", "'begin':[2,2],'offset':4", FERRY_ERR_PROOF, "task 1: c"},
};

static void test_specs(void **state)
{
    (void)state;
    write_json("plan.json", base_plan);
    for (size_t i = 0; i < sizeof spec_rows / sizeof *spec_rows; i++) {
        write_replaced("spec.json", base_spec, spec_rows[i].find, spec_rows[i].replace);
        expect(spec_rows[i].replace, spec_rows[i].status, spec_rows[i].words);
    }
}

/* Of a stack of two matrices of f4 rank 1 has a part of the second one, within blocks. */
static const char half_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'c','shape':[2,4,32],'dtype':'f4'},"
    "{'name':'c.s','shape':[2,4,2],'dtype':'f8e4m3'},{'name':'c.s_2','shape':[2],'dtype':'f32'}],"
    "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':{'boxes':[{'rank':1,"
    "'parameter':'w','elements':40,'dtype':'f32','dequantize':{'block':[1,16],'scale':'*.s'},"
    "'holds':[{'tensor':'c','begin':[1,1,2],'shape':[1,2,20],'offset':0,'strides':[40,20,1]}]}]}}";

#define HALF_MOVE(id, tensor, source, shape, src, offset, strides, bytes)                          \
    ",{'task_id':" #id ",'tensor':'c:" tensor "','source':'" source                                \
    "','from':0,'to':1,'shape':" shape ",'src':" src ",'dst':{'parameter':'w:" tensor              \
    "','offset':" #offset ",'strides':" strides "},'bytes':" #bytes "}"
#define OF_BLOCKS HALF_MOVE(1, "scales", "c.s", "[1,2,2]", "[[1,1],[1,2],[0,2]]", 0, "[1,2,1]", 4)
#define OF_MATRICES HALF_MOVE(2, "scales_2", "c.s_2", "[1]", "[[1,1]]", 0, "[1]", 4)

static const char half_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':2,'tensors':3,"
    "'bytes':{'moved':28,'local':0,'total':28},'bound':{'seconds':null,'rank':0,'why':'egress'},"
    "'ranks':[{'rank':0,'in':0,'out':28,'local':0},{'rank':1,'in':28,'out':0,'local':0}],"
    "'moves':[{'task_id':0,'tensor':'c','from':0,'to':1,'shape':[1,2,20],'src':[[1,1],[1,2],"
    "[2,20]],'dst':{'parameter':'w','offset':0,'strides':[1,20,1]},'src_dtype':'f4','dst_dtype':"
    "'f32','dequantize':{'block':[1,16],'scale_dtype':'f8e4m3'},'part':'codes','at':'receiver',"
    "'bytes':20}" OF_BLOCKS OF_MATRICES "],'fills':[]}";

static const row half_plan_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'bytes':20", "'bytes':40", FERRY_ERR_PROOF, "task 0: c"},
    {OF_MATRICES, "", FERRY_ERR_PROOF, "w:scales_2"},
    {OF_MATRICES, HALF_MOVE(2, "scales_2", "c.s_2", "[1]", "[[0,1]]", 0, "[1]", 4), FERRY_ERR_PROOF,
     "task 2: c:scales_2"},
    {OF_BLOCKS, HALF_MOVE(1, "scales", "c.s", "[1,2,2]", "[[0,1],[1,2],[0,2]]", 0, "[1,2,1]", 4),
     FERRY_ERR_PROOF, "task 1: c:scales"},
};

static const row half_spec_rows[] = {
    {"'name':'c.s_2'", "'name':'c.t_2'", FERRY_ERR_INVALID_INPUT,
     "c: is f4 that is dequantized, but the scales of its matrices are not in the spec"},
    {"'shape':[2],'dtype':'f32'", "'shape':[2],'dtype':'bf16'", FERRY_ERR_INVALID_INPUT,
     "c.s_2: does not have an f32 for each matrix"},
    {"'shape':[2],'dtype':'f32'", "'shape':[4],'dtype':'f32'", FERRY_ERR_INVALID_INPUT,
     "c.s_2: does not have an f32 for each matrix"},
    {"'shape':[2],'dtype':'f32'", "'shape':[1,2],'dtype':'f32'", FERRY_ERR_INVALID_INPUT,
     "c.s_2: does not have an f32 for each matrix"},
    {"'dtype':'f8e4m3'", "'dtype':'f32'", FERRY_ERR_INVALID_INPUT, "c.s: are not the scales"},
    {"'block':[1,16]", "'block':[2,16]", FERRY_ERR_INVALID_INPUT, "c.s: are not the scales"},
    {"[2,4,32]", "[2,4,31]", FERRY_ERR_INVALID_INPUT, "c: is dequantized, but"},
};

static void test_halves(void **state)
{
    (void)state;
    write_json("spec.json", half_spec);
    for (size_t i = 0; i < sizeof half_plan_rows / sizeof *half_plan_rows; i++) {
        const row *r = &half_plan_rows[i];
        write_replaced("plan.json", half_plan, r->find, r->replace);
        expect(r->replace, r->status, r->words);
    }
    write_json("plan.json", half_plan);
    for (size_t i = 0; i < sizeof half_spec_rows / sizeof *half_spec_rows; i++) {
        const row *r = &half_spec_rows[i];
        write_replaced("spec.json", half_spec, r->find, r->replace);
        expect(r->replace, r->status, r->words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans), cmocka_unit_test(test_specs),
                                       cmocka_unit_test(test_halves)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
