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
        write_replaced("plan.json", base_plan, plan_rows[i].find, plan_rows[i].replace);
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
        write_replaced("spec.json", base_spec, spec_rows[i].find, spec_rows[i].replace);
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
    {"'at':'sender'", "'at':'receiver'", FERRY_ERR_PROOF, "task 0: w|24 elements of 16 bits"},
    {"'part':'scales'," FORMAT, "'part':'scales','at':'receiver'", FERRY_ERR_PROOF,
     "task 2: w.s|a receiver makes its own without a move"},
    {"'at':'sender'", "'at':'rank 0'", FERRY_ERR_PROOF, "task 0: w|should say who quantizes it"},
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
    {"'format':'f8e4m3'", "'format':'f4'", FERRY_ERR_INVALID_INPUT, "format \"f4\""},
    {"'format':'f8e4m3'", "'format':'nvfp4'", FERRY_ERR_INVALID_INPUT, "more of nvfp4"},
    {"'scale':'*.s'", "'scale':'*.s','tensor_scale':'w'", FERRY_ERR_INVALID_INPUT,
     "names the scales of matrices where it is not nvfp4"},
    {"'dtype':'bf16'", "'dtype':'i32'", FERRY_ERR_INVALID_INPUT, "w: is quantized, but"},
    {"'scale':'*.s'", "'scale':'*.t'", FERRY_ERR_PROOF, "w.s is not in the spec"},
};

static void test_blocks(void **state)
{
    (void)state;
    write_json("spec.json", blocks_spec);
    for (size_t i = 0; i < sizeof blocks_rows / sizeof *blocks_rows; i++) {
        write_replaced("plan.json", blocks_plan, blocks_rows[i].find, blocks_rows[i].replace);
        expect(blocks_rows[i].replace, blocks_rows[i].status, blocks_rows[i].words);
    }
    write_json("plan.json", blocks_plan);
    for (size_t i = 0; i < sizeof blocks_spec_rows / sizeof *blocks_spec_rows; i++) {
        write_replaced("spec.json", blocks_spec, blocks_spec_rows[i].find,
                       blocks_spec_rows[i].replace);
        expect(blocks_spec_rows[i].replace, blocks_spec_rows[i].status, blocks_spec_rows[i].words);
    }
}

/* A stack of two matrices, each with a scale, becomes nvfp4. */
static const char f4_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[2,1,20],'dtype':'bf16'},"
    "{'name':'w.g','shape':[2],'dtype':'f32'}],'source':{'mesh':[['ep',2]],'rules':[{'match':'*',"
    "'shard':[{'dim':0,'axis':'ep'}]}]},'destination':{'mesh':[],'first_rank':2,'rules':["
    "{'match':'w','quantize':{'format':'nvfp4','scale':'*.s','tensor_scale':'*.g'}},"
    "{'match':'w.g','skip':true}]}}";

#define F4(id, what, more, from, src, dst, part, dtype, bytes)                                     \
    "{'task_id':" #id ",'tensor':'" what "'," more "'from':" #from ",'to':2,'src':" src            \
    ",'dst':" dst ",'src_dtype':'bf16','dst_dtype':'" dtype "','quantize':{'format':'nvfp4',"      \
    "'tensor_scale':'w.g'},'part':'" part "','at':'sender','bytes':" #bytes "}"
#define F4_CODES(id, from, plane)                                                                  \
    F4(id, "w", "", from, "[[0,1],[0,1],[0,20]]", "[[" #plane ",1],[0,1],[0,20]]", "codes", "f4",  \
       10)
#define F4_SCALES(id, from, plane)                                                                 \
    F4(id, "w.s", "'source':'w',", from, "[[0,1],[0,1],[0,20]]", "[[" #plane ",1],[0,1],[0,2]]",   \
       "scales", "f8e4m3", 2)

static const char f4_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':2,"
    "'bytes':{'moved':24,'local':0,'total':24},'bound':{'seconds':null,'rank':2,'why':'ingress'},"
    "'ranks':[{'rank':0,'in':0,'out':12,'local':0},{'rank':1,'in':0,'out':12,'local':0},"
    "{'rank':2,'in':24,'out':0,'local':0}],'moves':[" F4_CODES(0, 0, 0) "," F4_CODES(
        1, 1, 1) "," F4_SCALES(2, 0, 0) "," F4_SCALES(3, 1, 1) "]}";

static const row f4_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'tensor_scale':'w.g'", "'tensor_scale':'w'", FERRY_ERR_PROOF,
     "task 0: w|other scales of its"},
    {",'tensor_scale':'w.g'", "", FERRY_ERR_PROOF, "task 0: w|other scales of its matrices"},
    {"'at':'sender'", "'at':'receiver'", FERRY_ERR_PROOF, "task 0: w|20 elements of 16 bits"},
    {"'bytes':10", "'bytes':20", FERRY_ERR_PROOF, "task 0: w|20 elements of 4 bits|20 bytes"},
    {"'dst_dtype':'f4'", "'dst_dtype':'f8e4m3'", FERRY_ERR_PROOF, "where it is f4"},
    {"[[0,1],[0,1],[0,20]],'dst':[[0,1],[0,1],[0,20]]",
     "[[0,1],[0,1],[0,18]],'dst':[[0,1],[0,1],[0,18]]", FERRY_ERR_PROOF, "task 0: w"},
};

static const row f4_spec_rows[] = {
    {"'shape':[2],'dtype':'f32'", "'shape':[2],'dtype':'i32'", FERRY_ERR_INVALID_INPUT,
     "w: becomes f4 by a tensor that"},
    {"'shape':[2],", "'shape':[3],", FERRY_ERR_INVALID_INPUT, "w: becomes f4 by a tensor that"},
    {"'shape':[2],", "'shape':[2,1],", FERRY_ERR_INVALID_INPUT, "w: becomes f4 by a tensor that"},
    {"'tensor_scale':'*.g'", "'tensor_scale':'*.h'", FERRY_ERR_INVALID_INPUT,
     "w: becomes f4 by a tensor that"},
    {",'tensor_scale':'*.g'", "", FERRY_ERR_INVALID_INPUT, "names the scales of matrices"},
    {"[2,1,20]", "[2,1,19]", FERRY_ERR_INVALID_INPUT, "w: becomes f4, but its rows"},
    {"[{'match':'*','shard'", "[{'match':'w.g'},{'match':'*','shard'", FERRY_ERR_PROOF,
     "task 0: w|without the scales of its matrices"},
    {"[{'match':'*','shard'", "[{'match':'w.g','on':{'ep':1}},{'match':'*','shard'",
     FERRY_ERR_PROOF, "task 0: w|without the scales of its matrices"},
    {"[{'match':'*','shard'", "[{'match':'w.g','skip':true},{'match':'*','shard'", FERRY_ERR_PROOF,
     "task 0: w|without the scales of its matrices"},
};

static void test_f4(void **state)
{
    (void)state;
    write_json("spec.json", f4_spec);
    for (size_t i = 0; i < sizeof f4_rows / sizeof *f4_rows; i++) {
        write_replaced("plan.json", f4_plan, f4_rows[i].find, f4_rows[i].replace);
        expect(f4_rows[i].replace, f4_rows[i].status, f4_rows[i].words);
    }
    write_json("plan.json", f4_plan);
    for (size_t i = 0; i < sizeof f4_spec_rows / sizeof *f4_spec_rows; i++) {
        write_replaced("spec.json", f4_spec, f4_spec_rows[i].find, f4_spec_rows[i].replace);
        expect(f4_spec_rows[i].replace, f4_spec_rows[i].status, f4_spec_rows[i].words);
    }
}

/* Codes of 8 bits where the source is cut at row 3, inside a block: rank 2 makes codes and scales.
 */
#define MADE(id, from, src, dst, bytes, more)                                                      \
    "{'task_id':" #id ",'tensor':'w','from':" #from ",'to':2," more "'src':" src ",'dst':" dst     \
    ",'src_dtype':'bf16','dst_dtype':'f8e4m3','part':'codes','quantize':{'format':'f8e4m3',"       \
    "'block':[2,3],'scale_dtype':'f32','scale_kind':'amax'},'at':'receiver','bytes':" #bytes "}"
#define MADE_HEAD                                                                                  \
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':2,"  \
    "'bytes':{'moved':60,'local':0,'total':60},'bound':{'seconds':null,'rank':2,'why':'ingress'}," \
    "'ranks':[{'rank':0,'in':0,'out':36,'local':0},{'rank':1,'in':0,'out':24,'local':0},"          \
    "{'rank':2,'in':60,'out':0,'local':0}],'moves':["
#define MADE_UPPER MADE(0, 0, "[[0,3],[0,6]]", "[[0,3],[0,6]]", 36, "")
#define MADE_LAST MADE(1, 1, "[[0,2],[0,6]]", "[[3,2],[0,6]]", 24, "")

static const char made_plan[] = MADE_HEAD MADE_UPPER "," MADE_LAST "]}";

static const row made_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'at':'receiver','bytes':24", "'at':'sender','bytes':12", FERRY_ERR_PROOF,
     "task 1: w|says that the sender quantizes it, but moves before it do not"},
    {MADE_LAST "]", MADE_LAST "," SCALES(2, 0, "[[0,2],[0,6]]", "[[0,1],[0,2]]", 8) "]",
     FERRY_ERR_PROOF, "w.s: is brought to rank 2, which makes the codes"},
};

/* And in boxes: c has the codes, and s the scales, column by column. */
#define HELD(tensor, shape, strides)                                                               \
    "'holds':[{'tensor':'" tensor "','begin':[0,0],'shape':" shape                                 \
    ",'offset':0,'strides':" strides "}]"
static const char made_boxes_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[5,6],'dtype':'bf16'}],"
    "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
    "'sizes':[3,2]}]}]},'destination':{'boxes':[{'rank':2,'parameter':'c','elements':30," HELD(
        "w", "[5,6]", "[6,1]") ",'quantize':{'format':'f8e4m3','block':[2,3],'scale':'*.s'}},"
                               "{'rank':2,'parameter':'s','elements':6," HELD("w.s", "[3,2]",
                                                                              "[1,3]") "}]}}";

#define BOX(offset) "{'parameter':'c','offset':" #offset ",'strides':[6,1]}"
#define BOX_UPPER MADE(0, 0, "[[0,3],[0,6]]", BOX(0), 36, "'shape':[3,6],")
#define BOX_LAST MADE(1, 1, "[[0,2],[0,6]]", BOX(18), 24, "'shape':[2,6],")
static const char made_boxes_plan[] = MADE_HEAD BOX_UPPER "," BOX_LAST "],'fills':[]}";

static const row made_boxes_rows[] = {
    {"moves", "moves", FERRY_OK, ""},
    {"'at':'receiver','bytes':24", "'at':'sender','bytes':12", FERRY_ERR_PROOF,
     "task 1: w|says that the sender quantizes it, but moves before it do not"},
    {BOX_LAST "]",
     BOX_LAST ",{'task_id':2,'tensor':'w.s','source':'w','from':0,'to':2,'shape':[1,2],"
              "'src':[[0,2],[0,6]],'dst':{'parameter':'s','offset':0,'strides':[1,3]},"
              "'src_dtype':'bf16','dst_dtype':'f32','part':'scales'," FORMAT ",'bytes':8}]",
     FERRY_ERR_INVALID_INPUT, "ends inside a block of 2"},
};

/* Where senders have whole blocks, who gets codes gets their scales by a move. */
static const char sent_boxes_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':2,"
    "'bytes':{'moved':30,'local':0,'total':30},'bound':{'seconds':null,'rank':2,'why':'ingress'},"
    "'ranks':[{'rank':0,'in':0,'out':24,'local':0},{'rank':1,'in':0,'out':6,'local':0},"
    "{'rank':2,'in':30,'out':0,'local':0}],'moves':[{'task_id':0,'tensor':'w','from':0,'to':2,"
    "'shape':[4,6],'src':[[0,4],[0,6]],'dst':" BOX(
        0) ",'src_dtype':'bf16','dst_dtype':'f8e4m3',"
           "'part':'codes'," FORMAT
           ",'bytes':24},{'task_id':1,'tensor':'w','from':1,'to':2,'shape':[1,6],"
           "'src':[[0,1],[0,6]],'dst':" BOX(24) ",'src_dtype':'bf16','dst_dtype':'f8e4m3',"
                                                "'part':'codes'," FORMAT ",'bytes':6}],'fills':[]}";

/* Rank 2 has those scales, but makes codes of another format; rank 3 makes codes of theirs. */
static const char other_boxes_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[5,6],'dtype':'bf16'}],"
    "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',"
    "'sizes':[3,2]}]}]},'destination':{'boxes':[{'rank':2,'parameter':'c','elements':30," HELD(
        "w", "[5,6]", "[6,1]") ",'quantize':{'format':'f8e5m2','block':[2,3],'scale':'*.t'}},"
                               "{'rank':2,'parameter':'s','elements':6," HELD(
                                   "w.s", "[3,2]",
                                   "[1,3]") "},"
                                            "{'rank':3,'parameter':'c','elements':30," HELD(
                                                "w", "[5,6]",
                                                "[6,1]") ",'quantize':{'format':'f8e4m3','block':["
                                                         "2,3],'scale':'*.s'}}]}}";

#define MADE_BY(id, from, to, src, offset, shape, type, bytes)                                     \
    "{'task_id':" #id ",'tensor':'w','from':" #from ",'to':" #to ",'shape':" shape ",'src':" src   \
    ",'dst':" BOX(offset) ",'src_dtype':'bf16','dst_dtype':'" type "','part':'codes','quantize':"  \
                          "{'format':'" type                                                       \
                          "','block':[2,3],'scale_dtype':'f32','scale_kind':'amax'},"              \
                          "'at':'receiver','bytes':" #bytes "}"
static const char other_boxes_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':4,'tensors':2,"
    "'bytes':{'moved':120,'local':0,'total':120},"
    "'bound':{'seconds':null,'rank':0,'why':'egress'},"
    "'ranks':[{'rank':0,'in':0,'out':72,'local':0},{'rank':1,'in':0,'out':48,'local':0},"
    "{'rank':2,'in':60,'out':0,'local':0},{'rank':3,'in':60,'out':0,'local':0}],'moves':[" MADE_BY(
        0, 0, 2, "[[0,3],[0,6]]", 0, "[3,6]", "f8e5m2",
        36) "," MADE_BY(1, 1, 2, "[[0,2],[0,6]]", 18, "[2,6]", "f8e5m2",
                        24) "," MADE_BY(2, 0, 3, "[[0,3],[0,6]]", 0, "[3,6]", "f8e4m3",
                                        36) "," MADE_BY(3, 1, 3, "[[0,2],[0,6]]", 18, "[2,6]",
                                                        "f8e4m3", 24) "],'fills':[]}";

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static void test_made(void **state)
{
    (void)state;
    row cut = {"'sizes':[4,1]", "'sizes':[3,2]", FERRY_OK, ""};
    write_replaced("spec.json", blocks_spec, cut.find, cut.replace);
    for (size_t i = 0; i < COUNT(made_rows); i++) {
        write_replaced("plan.json", made_plan, made_rows[i].find, made_rows[i].replace);
        expect(made_rows[i].replace, made_rows[i].status, made_rows[i].words);
    }
    write_json("spec.json", made_boxes_spec);
    for (size_t i = 0; i < COUNT(made_boxes_rows); i++) {
        write_replaced("plan.json", made_boxes_plan, made_boxes_rows[i].find,
                       made_boxes_rows[i].replace);
        expect(made_boxes_rows[i].replace, made_boxes_rows[i].status, made_boxes_rows[i].words);
    }
    write_json("plan.json", made_boxes_plan);
    row moved = {"'rank':2,'parameter':'s'", "'rank':1,'parameter':'s'", FERRY_OK, ""};
    write_replaced("spec.json", made_boxes_spec, moved.find, moved.replace);
    expect("scales elsewhere", FERRY_ERR_PROOF,
           "w.s [0, 0]: no move writes it on rank 1, in s, nor does the rank make the codes");
}

/*
 * Values of that stack whose rows are cut inside a block: rank 2 makes nvfp4, by scales that it
 * gets too.
 */
#define F4_MADE(id, from, shape, src, dst, bytes)                                                  \
    "{'task_id':" #id ",'tensor':'w','from':" #from ",'to':2," shape "'src':" src ",'dst':" dst    \
    ",'src_dtype':'bf16','dst_dtype':'f4','quantize':{'format':'nvfp4','tensor_scale':'w.g'},"     \
    "'part':'codes','at':'receiver','bytes':" #bytes "}"
#define F4_MADE_HEAD(all, first)                                                                   \
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':3,"  \
    "'bytes':{'moved':" #all ",'local':0,'total':" #all "},'bound':{'seconds':null,'rank':2,"      \
    "'why':'ingress'},'ranks':[{'rank':0,'in':0,'out':" #first ",'local':0},{'rank':1,'in':0,"     \
    "'out':52,'local':0},{'rank':2,'in':" #all ",'out':0,'local':0}],'moves':["
#define F4_MADE_SOURCE                                                                             \
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[2,1,20],'dtype':'bf16'},"            \
    "{'name':'w.g','shape':[2],'dtype':'f32'}],'source':{'mesh':[['tp',2]],'rules':["              \
    "{'match':'w.g'},{'match':'*','shard':[{'dim':2,'axis':'tp','sizes':[7,13]}]}]},"

static const char f4_made_spec[] =
    F4_MADE_SOURCE "'destination':{'mesh':[['tp',1]],'first_rank':2,'rules':["
                   "{'match':'w','quantize':{'format':'nvfp4','scale':'*.s','tensor_scale':'*.g'}},"
                   "{'match':'w.g'}]}}";

static const char f4_made_plan[] = F4_MADE_HEAD(88, 36)
    F4_MADE(0, 0, "", "[[0,2],[0,1],[0,7]]", "[[0,2],[0,1],[0,7]]", 28) "," F4_MADE(
        1, 1, "", "[[0,2],[0,1],[0,13]]", "[[0,2],[0,1],[7,13]]",
        52) ","
            "{'task_id':2,'tensor':'w.g','from':0,'to':2,'src':[[0,2]],'dst':[[0,2]],'bytes':8}]}";

static const row f4_made_rows[] = {
    {"'match':'w.g'}]}}", "'match':'w.g'}]}}", FERRY_OK, ""},
    {"{'match':'w.g'}]}}", "{'match':'w.g','skip':true}]}}", FERRY_ERR_PROOF,
     "task 0: w|to one, without the scales of its matrices"},
    {"{'match':'w.g'}]}}", "{'match':'w.g','dtype':'bf16','cast':'round'}]}}", FERRY_ERR_PROOF,
     "task 0: w|to one, without the scales of its matrices"},
    {"{'match':'w.g'}]}}", "{'match':'w.g','cast':'round','scale':2}]}}", FERRY_ERR_PROOF,
     "task 0: w|to one, without the scales of its matrices"},
    {"{'match':'w.g'}]}}", "{'match':'w.g','cast':'round','add':1}]}}", FERRY_ERR_PROOF,
     "task 0: w|to one, without the scales of its matrices"},
    {"{'match':'w.g'}]}}", "{'match':'w.g','flat':{'axis':'tp'}}]}}", FERRY_OK, ""},
};

#define F4_HELD(name, tensor, elements, begin, shape, strides, more)                               \
    "{'rank':2,'parameter':'" name "','elements':" #elements ",'holds':[{'tensor':'" tensor        \
    "','begin':" begin ",'shape':" shape ",'offset':0,'strides':" strides "}]" more "}"
#define F4_BOXES(given)                                                                            \
    F4_MADE_SOURCE "'destination':{'boxes':[" F4_HELD(                                             \
        "c", "w", 40, "[0,0,0]", "[2,1,20]", "[20,20,1]",                                          \
        ",'quantize':{'format':'nvfp4','scale':'*.s','tensor_scale':'*.g'}") "," given "]}}"
#define F4_BOX(offset) "{'parameter':'c','offset':" #offset ",'strides':[20,20,1]}"
#define F4_BOX_PLAN(all, first, given)                                                             \
    F4_MADE_HEAD(all, first)                                                                       \
    F4_MADE(0, 0, "'shape':[2,1,7],", "[[0,2],[0,1],[0,7]]", F4_BOX(0), 28)                        \
    "," F4_MADE(1, 1, "'shape':[2,1,13],", "[[0,2],[0,1],[0,13]]", F4_BOX(7), 52) "," given        \
                                                                                  "],'fills':[]}"
#define F4_GIVEN(id, begin, n, parameter, bytes)                                                   \
    "{'task_id':" #id ",'tensor':'w.g','from':0,'to':2,'shape':[" #n "],'src':[[" #begin "," #n    \
    "]],'dst':{'parameter':'" parameter "','offset':0,'strides':[1]},'bytes':" #bytes "}"

static const struct {
    const char *spec, *plan;
    ferry_status status;
    const char *words;
} f4_boxes[] = {
    {F4_BOXES(F4_HELD("g", "w.g", 2, "[0]", "[2]", "[1]", "")),
     F4_BOX_PLAN(88, 36, F4_GIVEN(2, 0, 2, "g", 8)), FERRY_OK, ""},
    {F4_BOXES(F4_HELD("g", "w.g", 1, "[0]", "[1]", "[1]", "") "," F4_HELD("h", "w.g", 1, "[1]",
                                                                          "[1]", "[1]", "")),
     F4_BOX_PLAN(88, 36, F4_GIVEN(2, 0, 1, "g", 4) "," F4_GIVEN(3, 1, 1, "h", 4)), FERRY_OK, ""},
    {F4_BOXES(F4_HELD("g", "w.g", 1, "[1]", "[1]", "[1]", "")),
     F4_BOX_PLAN(84, 32, F4_GIVEN(2, 1, 1, "g", 4)), FERRY_ERR_PROOF,
     "w: rank 2 makes f4 of it in c, and has not all scales"},
    {F4_BOXES(F4_HELD("g", "w.g", 2, "[0]", "[2]", "[1]", ",'cast':'round','scale':2")),
     F4_BOX_PLAN(88, 36,
                 "{'task_id':2,'tensor':'w.g','from':0,'to':2,'shape':[2],'src':[[0,2]],'dst':"
                 "{'parameter':'g','offset':0,'strides':[1]},'src_dtype':'f32','dst_dtype':'f32',"
                 "'cast':'round','scale':2,'at':'sender','bytes':8}"),
     FERRY_ERR_PROOF, "w: rank 2 makes f4 of it in c, and has not all scales"},
};

static void test_f4_made(void **state)
{
    (void)state;
    write_json("plan.json", f4_made_plan);
    for (size_t i = 0; i < COUNT(f4_made_rows); i++) {
        write_replaced("spec.json", f4_made_spec, f4_made_rows[i].find, f4_made_rows[i].replace);
        expect(f4_made_rows[i].replace, f4_made_rows[i].status, f4_made_rows[i].words);
    }
    for (size_t i = 0; i < COUNT(f4_boxes); i++) {
        write_json("spec.json", f4_boxes[i].spec);
        write_json("plan.json", f4_boxes[i].plan);
        expect(f4_boxes[i].spec, f4_boxes[i].status, f4_boxes[i].words);
    }
}

/* Scales in boxes that nobody brings, nor makes with the codes that the rank has. */
static void test_scales_without_codes(void **state)
{
    static const char words[] =
        "w.s [0, 0]: no move writes it on rank 2, in s, nor does the rank make the codes";
    (void)state;
    row whole = {"'sizes':[3,2]", "'sizes':[4,1]", FERRY_OK, ""};
    write_replaced("spec.json", made_boxes_spec, whole.find, whole.replace);
    write_json("plan.json", sent_boxes_plan);
    expect("codes of senders", FERRY_ERR_PROOF, words);
    write_json("spec.json", other_boxes_spec);
    write_json("plan.json", other_boxes_plan);
    expect("codes of another format", FERRY_ERR_PROOF, words);
    row here = {"'rank':2,'parameter':'s'", "'rank':3,'parameter':'s'", FERRY_OK, ""};
    write_replaced("spec.json", other_boxes_spec, here.find, here.replace);
    expect("codes of that format", FERRY_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_f4),
        cmocka_unit_test(test_made),
        cmocka_unit_test(test_f4_made),
        cmocka_unit_test(test_scales_without_codes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
