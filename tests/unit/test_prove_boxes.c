/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "prove/lattice.h"

#include "support/random.h"
#include "support/spec.h"

#include "prove_case.h"

/*
 * The prover on sides in boxes. What is right is decided by the oracle
 * (tests/oracle/box_oracle.py), with which tests/property/prove_boxes.py compares it; here stand
 * its sentences, its limits and how its work grows.
 */

/*
 * Rank 0 has q by columns and k behind it, rank 1 the lower half of q. Rank 2 wants q row by row in
 * a loop, k behind it and a row of padding, and n spread out; rank 1 has n, and wants it like
 * rank 2.
 */
#define SOURCE                                                                                     \
    "'source':{'boxes':["                                                                          \
    "{'rank':0,'parameter':'all','elements':20,'holds':["                                          \
    "{'tensor':'q','begin':[0,0],'shape':[4,3],'offset':0,'strides':[1,4]},"                       \
    "{'tensor':'k','begin':[0,0],'shape':[2,3],'offset':14,'strides':[3,1]}]},"                    \
    "{'ranks':[1],'parameter':'low','elements':6,'holds':["                                        \
    "{'tensor':'q','begin':[2,0],'shape':[2,3],'offset':0,'strides':[3,1]}]},"                     \
    "{'rank':1,'parameter':'n','elements':4,'holds':["                                             \
    "{'tensor':'n','begin':[0],'shape':[3],'offset':0,'strides':[1]}]}]}"
#define LOOP "'repeat':[{'count':4,'begin':[1,0],'offset':3}]"
#define DESTINATION                                                                                \
    "'destination':{'boxes':["                                                                     \
    "{'rank':2,'parameter':'qk','elements':21,'holds':["                                           \
    "{'tensor':'k','begin':[0,0],'shape':[2,3],'offset':12,'strides':[3,1]},"                      \
    "{'tensor':'q','begin':[0,0],'shape':[1,3],'offset':0,'strides':[3,1]," LOOP "}],"             \
    "'fill':[{'offset':18,'shape':[3],'strides':[1],'bits':'3f80'}]},"                             \
    "{'ranks':[1,2],'parameter':'n','dtype':'f32','elements':8,'partial':true,'holds':["           \
    "{'tensor':'n','begin':[0],'shape':[3],'offset':0,'strides':[2]}]}]}"

static const char base_spec[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'q','shape':[4,3],'dtype':'bf16'},"
    "{'name':'k','shape':[2,3],'dtype':'bf16'},{'name':'n','shape':[3],'dtype':'f32'},"
    "{'name':'m','shape':[3],'dtype':'f32','source':'n'}]," SOURCE "," DESTINATION "}";

#define MOVE(id, tensor, from, to, shape, src, dst, bytes)                                         \
    "{'task_id':" #id ",'tensor':'" tensor "','from':" #from ",'to':" #to ",'shape':" shape        \
    ",'src':" src ",'dst':" dst ",'bytes':" #bytes "}"
#define AT(parameter, offset, strides)                                                             \
    "{'parameter':'" parameter "','offset':" #offset ",'strides':" strides "}"
#define FILL "{'rank':2,'parameter':'qk','offset':18,'shape':[3],'strides':[1],'bits':'3f80'}"
#define K_MOVE MOVE(3, "k", 0, 2, "[2,3]", AT("all", 14, "[3,1]"), AT("qk", 12, "[3,1]"), 12)
#define N_MOVE MOVE(4, "n", 1, 2, "[3]", AT("n", 0, "[1]"), AT("n", 0, "[2]"), 12)
#define HIGH_MOVE MOVE(1, "q", 0, 2, "[2,3]", AT("all", 0, "[1,4]"), AT("qk", 0, "[3,1]"), 12)
#define LOW_MOVE MOVE(2, "q", 1, 2, "[2,3]", AT("low", 0, "[3,1]"), AT("qk", 6, "[3,1]"), 12)

static const char base_plan[] =
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':3,"
    "'bytes':{'moved':48,'local':12,'total':60},'bound':{'seconds':null,'rank':2,'why':'ingress'},"
    "'ranks':[{'rank':0,'in':0,'out':24,'local':0},{'rank':1,'in':0,'out':24,'local':12},"
    "{'rank':2,'in':48,'out':0,'local':0}],'moves':[" MOVE(
        0, "n", 1, 1, "[3]", AT("n", 0, "[1]"), AT("n", 0, "[2]"), 12) "," HIGH_MOVE "," LOW_MOVE
                                                                       "," K_MOVE "," N_MOVE
                                                                       "],'fills':[" FILL "]}";

typedef struct row {
    const char *name;
    const char *find;
    const char *replace;
    ferry_status status;
    const char *words;
} row;

static const row plan_rows[] = {
    {"right", "moves", "moves", FERRY_OK, ""},
    {"a move less", K_MOVE ",", "", FERRY_ERR_PROOF, "task 4|should be 3"},
    {"the last less", "," N_MOVE, "", FERRY_ERR_PROOF,
     "n [0]: no move writes it on rank 2, element 0 of n|before task 4"},
    {"a move twice", N_MOVE,
     N_MOVE "," MOVE(5, "n", 1, 2, "[3]", AT("n", 0, "[1]"), AT("n", 0, "[2]"), 12),
     FERRY_ERR_PROOF, "task 5: n|of n is written twice|task 4 too"},
    {"another parameter", "'src':{'parameter':'low'", "'src':{'parameter':'all'", FERRY_ERR_PROOF,
     "task 2: q, element 6 of qk, from rank 1 to rank 2|no parameter all at the source"},
    {"no parameter", "'dst':{'parameter':'qk'", "'dst':{'parameter':'kq'", FERRY_ERR_PROOF,
     "rank 2 has no parameter kq at the destination"},
    {"the wrong element", "'src':{'parameter':'all','offset':0",
     "'src':{'parameter':'all','offset':1", FERRY_ERR_PROOF,
     "task 1: q|global element [0, 0] is element [0, 0] of q|the sender has element [1, 0] of q"},
    {"strides", "'strides':[1,4]", "'strides':[1,3]", FERRY_ERR_PROOF, "task 1: q|[0, 1]"},
    {"no element", "'src':{'parameter':'all','offset':14", "'src':{'parameter':'all','offset':13",
     FERRY_ERR_PROOF, "task 3: k|element 13 of the source parameter all is of nothing, not of k"},
    {"another tensor", "'dst':{'parameter':'qk','offset':12", "'dst':{'parameter':'qk','offset':9",
     FERRY_ERR_PROOF, "task 3: k|element 9 of the destination parameter qk is of q, not of k"},
    {"a fill", K_MOVE,
     MOVE(3, "k", 0, 2, "[1,3]", AT("all", 14, "[3,1]"), AT("qk", 18, "[3,1]"), 6), FERRY_ERR_PROOF,
     "task 3: k|element 18 of the destination parameter qk is a fill, not of k"},
    {"what is partial", N_MOVE, MOVE(4, "n", 1, 2, "[3]", AT("n", 0, "[1]"), AT("n", 1, "[2]"), 12),
     FERRY_ERR_PROOF, "task 4: n|element 1 of the destination parameter n is of nothing, not of n"},
    {"out of the parameter", "'src':{'parameter':'all','offset':14",
     "'src':{'parameter':'all','offset':15", FERRY_ERR_PROOF,
     "task 3: k|its source box leaves the parameter all of 20 elements"},
    {"far out", "'src':{'parameter':'all','offset':14,'strides':[3,1]}",
     "'src':{'parameter':'all','offset':14,'strides':[4611686018427387904,1]}", FERRY_ERR_PROOF,
     "task 3: k|leaves the parameter all"},
    {"stride 0", "'src':{'parameter':'all','offset':14,'strides':[3,1]}",
     "'src':{'parameter':'all','offset':14,'strides':[0,1]}", FERRY_ERR_PROOF,
     "task 3: k|a stride of the source is 0 where the length is 2"},
    {"a stride less", "'src':{'parameter':'all','offset':14,'strides':[3,1]}",
     "'src':{'parameter':'all','offset':14,'strides':[1]}", FERRY_ERR_PROOF, "1 dimensions"},
    {"a dimension less", "'shape':[2,3],'src':{'parameter':'all','offset':14",
     "'shape':[6],'src':{'parameter':'all','offset':14", FERRY_ERR_PROOF,
     "task 3: k|its shape has 1 dimensions, but the tensor 2"},
    {"empty", "'shape':[2,3],'src':{'parameter':'all','offset':14",
     "'shape':[0,3],'src':{'parameter':'all','offset':14", FERRY_ERR_PROOF, "its box is empty"},
    {"bytes", "'offset':12,'strides':[3,1]},'bytes':12", "'offset':12,'strides':[3,1]},'bytes':6",
     FERRY_ERR_PROOF, "task 3: k|6 elements of 16 bits|states 6 bytes"},
    {"no shape", "'shape':[2,3],'src':{'parameter':'all','offset':14",
     "'src':{'parameter':'all','offset':14", FERRY_ERR_INVALID_INPUT,
     "moves[3] lacks the key \"shape\""},
    {"a box of a mesh", AT("all", 14, "[3,1]"), "[[0,2],[0,3]]", FERRY_ERR_INVALID_INPUT,
     "moves[3].src must be an object"},
    {"out of order", HIGH_MOVE "," LOW_MOVE,
     MOVE(1, "q", 1, 2, "[2,3]", AT("low", 0, "[3,1]"), AT("qk", 6, "[3,1]"),
          12) "," MOVE(2, "q", 0, 2, "[2,3]", AT("all", 0, "[1,4]"), AT("qk", 0, "[3,1]"), 12),
     FERRY_ERR_PROOF, "task 2: q|comes behind a move to element 6, out of order"},
    {"parameters out of order", K_MOVE "," N_MOVE,
     MOVE(3, "n", 1, 2, "[3]", AT("n", 0, "[1]"), AT("n", 0, "[2]"),
          12) "," MOVE(4, "k", 0, 2, "[2,3]", AT("all", 14, "[3,1]"), AT("qk", 12, "[3,1]"), 12),
     FERRY_ERR_PROOF, "k [0, 0]: no move writes it on rank 2, element 12 of qk, before task 3"},
    {"ranks out of order", N_MOVE,
     MOVE(4, "n", 1, 1, "[3]", AT("n", 0, "[1]"), AT("n", 0, "[2]"), 12), FERRY_ERR_PROOF,
     "task 4: n|comes behind moves to rank 2 and qk, out of order"},
    {"no fills", ",'fills':[" FILL "]", "", FERRY_ERR_INVALID_INPUT, "lacks the key \"fills\""},
    {"a fill less", FILL, "", FERRY_ERR_PROOF, "element 18 of qk on rank 2 is a fill"},
    {"a fill twice", FILL, FILL "," FILL, FERRY_ERR_PROOF,
     "element 18 of qk|is written twice|by fill 0 too"},
    {"a fill in halves", FILL,
     "{'rank':2,'parameter':'qk','offset':18,'shape':[1,2],'strides':[9,1],'bits':'3F80'},"
     "{'rank':2,'parameter':'qk','offset':20,'shape':[],'strides':[],'bits':'3f80'}",
     FERRY_OK, ""},
    {"other bits", "'3f80'", "'3f81'", FERRY_ERR_PROOF,
     "fill 0: element 18 of qk on rank 2: has the bits 3f81, but element 18 wants 3f80"},
    {"a bit less", "'3f80'", "'3f8'", FERRY_ERR_PROOF, "has the bits 3f8,"},
    {"a fill of a tensor", "'offset':18,'shape':[3]", "'offset':17,'shape':[3]", FERRY_ERR_PROOF,
     "fills element 17, which is of k"},
    {"a fill too short", "'offset':18,'shape':[3]", "'offset':18,'shape':[2]", FERRY_ERR_PROOF,
     "element 20 of qk on rank 2 is a fill, but the plan does not fill it"},
    {"a fill too long", "'offset':18,'shape':[3]", "'offset':18,'shape':[4]", FERRY_ERR_PROOF,
     "leaves the parameter, which has 21 elements"},
    {"a fill of stride 0", "'shape':[3],'strides':[1],'bits'", "'shape':[3],'strides':[0],'bits'",
     FERRY_ERR_PROOF, "has the stride 0"},
    {"a fill of nothing", "'shape':[3],'strides':[1],'bits'", "'shape':[0],'strides':[1],'bits'",
     FERRY_ERR_PROOF, "is empty"},
    {"fills of too few strides", "'strides':[1],'bits'", "'strides':[],'bits'",
     FERRY_ERR_INVALID_INPUT, "fills[0].strides has 0 numbers for 1"},
    {"a fill of nobody", "{'rank':2,'parameter':'qk','offset':18",
     "{'rank':0,'parameter':'qk','offset':18", FERRY_ERR_PROOF, "rank 0|not in the destination"},
    {"a fill of no parameter", "{'rank':2,'parameter':'qk','offset':18",
     "{'rank':1,'parameter':'qk','offset':18", FERRY_ERR_PROOF, "rank 1|no such parameter"},
    {"a fill of what is partial", "{'rank':2,'parameter':'qk','offset':18,'shape':[3]",
     "{'rank':2,'parameter':'n','offset':1,'shape':[1]", FERRY_ERR_PROOF,
     "element 18 of qk on rank 2 is a fill"},
    {"moved", "'moved':48", "'moved':47", FERRY_ERR_PROOF, "states 47 bytes moved"},
};

static void test_plans(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    for (size_t i = 0; i < sizeof plan_rows / sizeof *plan_rows; i++) {
        const row *r = &plan_rows[i];
        write_replaced("plan.json", base_plan, r->find, r->replace);
        expect(r->name, r->status, r->words);
    }
    write_json("plan.json", base_plan);
    ferry_proof proof = FERRY_PROOF_INIT;
    ferry_error error;
    must(prove(FY_PROOF_SMALL_SHARD, &proof, &error), &error);
    assert_int_equal(proof.n_tensors, 3);
    assert_int_equal(proof.n_moves, 5);
    assert_int_equal(proof.n_destination_shards, 3);
    assert_int_equal(proof.moved_bytes, 48);
    assert_int_equal(proof.local_bytes, 12);
}

#define BAD FERRY_ERR_INVALID_INPUT
static const row spec_rows[] = {
    {"a gap", "'elements':21", "'elements':23", BAD,
     "destination parameter qk on rank 2: nothing gives its element 21; 21 of 23 elements"},
    {"a gap inside", "'offset':18,'shape':[3]", "'offset':19,'shape':[2]", BAD,
     "nothing gives its element 18; 20 of 21"},
    {"partial", "'elements':21", "'elements':23,'partial':true", FERRY_OK, ""},
    {"two boxes", "'offset':12,'strides':[3,1]},{", "'offset':11,'strides':[3,1]},{", BAD,
     "destination parameter qk on rank 2: its element 11 is in two boxes|of k|of q"},
    {"a box and a fill", "'offset':18,'shape':[3]", "'offset':17,'shape':[4]", BAD,
     "its element 17 is in two boxes|of k|of a fill"},
    {"at the source", "'offset':14,'strides':[3,1]}", "'offset':11,'strides':[3,1]}", BAD,
     "source parameter all on rank 0: its element 11 is in two boxes"},
    {"on itself", "'offset':0,'strides':[1,4]", "'offset':0,'strides':[1,3]", BAD,
     "source parameter all on rank 0: its element 3 is in two boxes, of q and of q"},
    {"on itself by equal strides", "'offset':0,'strides':[1,4]", "'offset':0,'strides':[1,1]", BAD,
     "source parameter all on rank 0: its element 1 is in two boxes, of q and of q"},
    {"beyond the parameter", "'elements':20", "'elements':19", BAD,
     "source.boxes[0].holds[1] leaves the parameter all of 19 elements"},
    {"beyond the tensor", "{'tensor':'k','begin':[0,0]", "{'tensor':'k','begin':[1,0]", BAD,
     "source.boxes[0].holds[1] leaves k, which has 2 elements on dim 0"},
    {"a loop beyond the tensor", LOOP, "'repeat':[{'count':4,'begin':[1,1],'offset':3}]", BAD,
     "destination.boxes[0].holds[1] leaves q, which has 3 elements on dim 1"},
    {"a loop beyond the parameter", LOOP, "'repeat':[{'count':4,'begin':[1,0],'offset':7}]", BAD,
     "leaves the parameter qk"},
    {"a loop that overflows", LOOP,
     "'repeat':[{'count':4,'begin':[4611686018427387904,0],'offset':3}]", BAD, "leaves q"},
    {"a loop that overflows for long", LOOP,
     "'repeat':[{'count':5,'begin':[4611686018427387904,0],'offset':3}]", BAD, "leaves q"},
    {"a loop that stays", LOOP, "'repeat':[{'count':4,'begin':[1,0],'offset':0}]", BAD,
     "a stride is 0"},
    {"a loop of no turns", LOOP, "'repeat':[{'count':0,'begin':[1,0],'offset':3}]", BAD,
     "repeat[0].count must be from 1"},
    {"a loop of one dimension", LOOP, "'repeat':[{'count':4,'begin':[1],'offset':3}]", BAD,
     "repeat[0].begin has 1 numbers for 2"},
    {"five loops", LOOP, "'repeat':[{},{},{},{},{}]", BAD, "has 5 loops, more than 4"},
    {"stride 0", "'strides':[1,4]", "'strides':[0,4]", BAD,
     "source.boxes[0].holds[0] puts 4 elements of all on one"},
    {"a stride less", "'strides':[1,4]", "'strides':[4]", BAD, "strides has 1 numbers"},
    {"a begin less", "{'tensor':'k','begin':[0,0]", "{'tensor':'k','begin':[0]", BAD,
     "begin has 1 numbers"},
    {"negative", "'strides':[1,4]", "'strides':[-1,4]", BAD, "strides[0]"},
    {"too large", "'offset':14", "'offset':9223372036854775807", BAD, "offset must be"},
    {"dimensions", "{'tensor':'q','begin':[0,0],'shape':[4,3],'offset':0,'strides':[1,4]}",
     "{'tensor':'q','begin':[0],'shape':[4],'offset':0,'strides':[1]}", BAD,
     "has 1 dimensions, but q has 2"},
    {"no such tensor", "{'tensor':'k'", "{'tensor':'v'", BAD, "holds v, which is not among"},
    {"a tensor with a source", "{'tensor':'n'", "{'tensor':'m'", BAD,
     "source.boxes[2].holds[0] holds m, which has a source"},
    {"a tensor of the source", "{'name':'k','shape':[2,3],",
     "{'name':'k','only':'source','shape':[2,3],", BAD,
     "destination.boxes[0].holds[0] holds k, which is only at the source"},
    {"another dtype", "'dtype':'f32','elements'", "'dtype':'i32','elements'", BAD,
     "holds n, whose dtype is not that of the parameter n"},
    {"no dtype", "'dtype':'f32','elements'", "'dtype':'f33','elements'", BAD, "unknown dtype"},
    {"two dtypes", "{'tensor':'k','begin':[0,0]", "{'tensor':'n','begin':[0,0]", BAD, "n has 1"},
    {"bits", "'3f80'", "'3f8'", BAD, "has the bits \"3f8\", not 4 hexadecimal digits"},
    {"no bits", "'3f80'", "'3f8x'", BAD, "hexadecimal"},
    {"a fill at the source", "'elements':20", "'elements':20,'fill':[]", BAD,
     "stands at the source"},
    {"a name twice", "'ranks':[1,2],'parameter':'n'", "'ranks':[1,2],'parameter':'qk'", BAD,
     "rank 2 has two parameters qk"},
    {"a rank twice", "'ranks':[1,2]", "'ranks':[1,2,1]", BAD, "rank 1 has two parameters n"},
    {"no rank", "'ranks':[1,2]", "'ranks':[]", BAD, "names no rank"},
    {"rank and ranks", "'ranks':[1,2]", "'rank':1,'ranks':[1,2]", BAD, "either"},
    {"no boxes", DESTINATION, "'destination':{'boxes':[]}", BAD, "at least one parameter"},
    {"more beside", "'destination':{", "'destination':{'mesh':[],", BAD, "\"mesh\""},
    {"too many bits", "'elements':20", "'elements':4611686018427387904", BAD, "too many"},
    {"nobody has it", "{'tensor':'n','begin':[0],'shape':[3],'offset':0,'strides':[1]}", "", BAD,
     "source.boxes[2] holds nothing that says what its dtype is"},
    {"another rank wants it", "'ranks':[1,2]", "'ranks':[1,2,7]", FERRY_ERR_PROOF,
     "n [0]: no move writes it on rank 7, element 0 of n"},
    {"empty boxes", "'holds':[{'tensor':'k'",
     "'holds':[{'tensor':'k','begin':[2,0],'shape':[0,3],'offset':99,'strides':[0,0]},"
     "{'tensor':'k'",
     FERRY_OK, ""},
};

static void test_specs(void **state)
{
    (void)state;
    write_json("plan.json", base_plan);
    for (size_t i = 0; i < sizeof spec_rows / sizeof *spec_rows; i++) {
        const row *r = &spec_rows[i];
        write_replaced("spec.json", base_spec, r->find, r->replace);
        expect(r->name, r->status, r->words);
    }
}

/* ---- both kinds of sides, several sources, bytes ---- */

/* A mesh of two ranks that has the rows of w feeds boxes, or is fed. */
#define MESH(name)                                                                                 \
    "'" name "':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]}"
#define WHOLE(name, dtype, elements, rest)                                                         \
    "'" name "':{'boxes':[{'rank':0,'parameter':'p','dtype':'" dtype "','elements':" #elements     \
    ",'holds':[" rest "]}]}"
#define HEAD(world, moved, local, ranks)                                                           \
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':" #world         \
    ",'tensors':1,'bytes':{'moved':" #moved ",'local':" #local ",'total':0},"                      \
    "'bound':{'seconds':null,'rank':null,'why':'none'},'ranks':[" ranks "],'moves':["

/* A plan is right when only its totals are not: they are looked at last. */
#define ONLY_TOTALS FERRY_ERR_PROOF, "the plan states"

typedef struct case_row {
    const char *name;
    const char *spec;
    const char *moves;
    ferry_status status;
    const char *words;
} case_row;

#define W4 "'tensors':[{'name':'w','shape':[4,2],'dtype':'u8'}]"
#define F4 "'tensors':[{'name':'w','shape':[4,4],'dtype':'f4'}]"
#define W_BOX "{'tensor':'w','begin':[0,0],'shape':[4,2],'offset':0,'strides':[1,4]}"
#define F_BOX(strides) "{'tensor':'w','begin':[0,0],'shape':[4,4],'offset':0,'strides':" strides "}"
#define FED                                                                                        \
    "'tensors':[{'name':'a','shape':[4,2],'dtype':'u8'},{'name':'w','shape':[4,2],'dtype':'u8',"   \
    "'source':[{'tensor':'a','begin':[0,0],'shape':[2,2],'at':[2,0]},"                             \
    "{'tensor':'a','begin':[2,0],'shape':[2,2],'at':[0,0]}]}]"

/* Every second row of eight in two loops, and then the others. */
#define W8 "'tensors':[{'name':'w','shape':[8,2],'dtype':'u8'}]"
#define LOOPS(begin, offset)                                                                       \
    "{'tensor':'w','begin':" begin ",'shape':[1,2],'offset':" #offset ",'strides':[2,1],'repeat':" \
    "[{'count':2,'begin':[4,0],'offset':4},{'count':2,'begin':[2,0],'offset':2}]}"
#define ROUND_ROBIN                                                                                \
    "{'format':'ferry.spec/1'," W8 "," WHOLE("source", "u8", 16,                                   \
                                             "{'tensor':'w','begin':[0,0],'shape':[8,2],'offset':" \
                                             "0,'strides':[2,1]}") "," WHOLE("destination", "u8",  \
                                                                             16,                   \
                                                                             LOOPS(                \
                                                                                 "[0,0]",          \
                                                                                 0) "," LOOPS("[1" \
                                                                                              ",0" \
                                                                                              "]", \
                                                                                              8)) "}"
#define HALF(row)                                                                                  \
    "{'tensor':'w','begin':[" #row ",0],'shape':[2,2],'offset':" #row ",'strides':[1,4]}"
#define PLAIN "{'tensor':'w','begin':[0,0],'shape':[4,2],'offset':0,'strides':[2,1]}"
#define TURNED                                                                                     \
    "'tensors':[{'name':'a','shape':[4,2],'dtype':'u8'},{'name':'w','shape':[4,2],'dtype':'u8',"   \
    "'source':[{'tensor':'a','begin':[0,0],'shape':[2,2],'at':[0,0]},"                             \
    "{'tensor':'a','begin':[3,0],'shape':[1,2],'at':[2,0]},"                                       \
    "{'tensor':'a','begin':[2,0],'shape':[1,2],'at':[3,0]}]}]"

static const case_row case_rows[] = {
    {"round robin", ROUND_ROBIN,
     MOVE(0, "w", 0, 0, "[1,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[2,1]"), 2) "," MOVE(
         1, "w", 0, 0, "[1,2]", AT("p", 4, "[2,1]"), AT("p", 2, "[2,1]"),
         2) "," MOVE(2, "w", 0, 0, "[1,2]", AT("p", 8, "[2,1]"), AT("p", 4, "[2,1]"),
                     2) "," MOVE(3, "w", 0, 0, "[1,2]", AT("p", 12, "[2,1]"), AT("p", 6, "[2,1]"),
                                 2) "," MOVE(4, "w", 0, 0, "[1,2]", AT("p", 2, "[2,1]"),
                                             AT("p", 8, "[2,1]"),
                                             2) "," MOVE(5, "w", 0, 0, "[1,2]", AT("p", 6, "[2,1]"),
                                                         AT("p", 10, "[2,1]"),
                                                         2) "," MOVE(6, "w", 0, 0, "[1,2]",
                                                                     AT("p", 10, "[2,1]"),
                                                                     AT("p", 12, "[2,1]"),
                                                                     2) "," MOVE(7, "w", 0, 0,
                                                                                 "[1,2]",
                                                                                 AT("p", 14,
                                                                                    "[2,1]"),
                                                                                 AT("p", 14,
                                                                                    "[2,1]"),
                                                                                 2),
     ONLY_TOTALS},
    {"round robin, a turn less", ROUND_ROBIN,
     MOVE(0, "w", 0, 0, "[1,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[2,1]"), 2) "," MOVE(
         1, "w", 0, 0, "[1,2]", AT("p", 4, "[2,1]"), AT("p", 2, "[2,1]"),
         2) "," MOVE(2, "w", 0, 0, "[1,2]", AT("p", 12, "[2,1]"), AT("p", 6, "[2,1]"),
                     2) "," MOVE(3, "w", 0, 0, "[1,2]", AT("p", 2, "[2,1]"), AT("p", 8, "[2,1]"),
                                 2) "," MOVE(4, "w", 0, 0, "[1,2]", AT("p", 6, "[2,1]"),
                                             AT("p", 10, "[2,1]"),
                                             2) "," MOVE(5, "w", 0, 0, "[1,2]",
                                                         AT("p", 10, "[2,1]"), AT("p", 12, "[2,1]"),
                                                         2) "," MOVE(6, "w", 0, 0, "[1,2]",
                                                                     AT("p", 14, "[2,1]"),
                                                                     AT("p", 14, "[2,1]"), 2),
     FERRY_ERR_PROOF, "w [4, 0]: no move writes it on rank 0, element 4 of p"},
    {"round robin, a turn twice", ROUND_ROBIN,
     MOVE(0, "w", 0, 0, "[1,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[2,1]"),
          2) "," MOVE(1, "w", 0, 0, "[1,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[2,1]"), 2),
     FERRY_ERR_PROOF, "task 1: w|element 0 of p is written twice|by task 0 too"},
    {"over two boxes",
     "{'format':'ferry.spec/1'," W4
     "," WHOLE("source", "u8", 8, PLAIN) "," WHOLE("destination", "u8", 8, HALF(0) "," HALF(2)) "}",
     MOVE(0, "w", 0, 0, "[4,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[1,4]"), 8), ONLY_TOTALS},
    {"fed in another order",
     "{'format':'ferry.spec/1'," TURNED "," WHOLE("source", "u8", 8,
                                                  "{'tensor':'a','begin':[0,0],'shape':[4,2],'"
                                                  "offset':0,'strides':[2,1]}") "," WHOLE("destinat"
                                                                                          "ion",
                                                                                          "u8", 8,
                                                                                          W_BOX) "}",
     "{'task_id':0,'tensor':'w','source':'a','from':0,'to':0,'shape':[1,2],'src':" AT(
         "p", 0,
         "[2,1]") ",'dst':" AT("p", 0,
                               "[1,4]") ",'bytes':2},"
                                        "{'task_id':1,'tensor':'w','source':'a','from':0,'to':0,'"
                                        "shape':[2,2],'src':" AT("p", 2, "[2,1]") ",'dst':" AT(
                                            "p", 1, "[1,4]") ",'bytes':4}",
     FERRY_ERR_PROOF, "global element [2, 0] is element [3, 0] of a"},
    {"half bytes apart",
     "{'format':'ferry.spec/1'," F4
     "," WHOLE("source", "f4", 32,
               F_BOX("[8,2]")) ",'destination':{'boxes':[{'rank':0,'parameter':'p','elements':32,'"
                               "partial':true,'holds':[" F_BOX("[8,2]") "]}]}}",
     MOVE(0, "w", 0, 0, "[4,4]", AT("p", 0, "[8,2]"), AT("p", 0, "[8,2]"), 8), FERRY_ERR_PROOF,
     "do not start and end on bytes"},
    {"from a mesh",
     "{'format':'ferry.spec/1'," W4 "," MESH("source") "," WHOLE("destination", "u8", 8, W_BOX) "}",
     MOVE(0, "w", 0, 0, "[2,2]", "[[0,2],[0,2]]", AT("p", 0, "[1,4]"),
          4) "," MOVE(1, "w", 1, 0, "[2,2]", "[[0,2],[0,2]]", AT("p", 2, "[1,4]"), 4),
     ONLY_TOTALS},
    {"from a mesh, outside",
     "{'format':'ferry.spec/1'," W4 "," MESH("source") "," WHOLE("destination", "u8", 8, W_BOX) "}",
     MOVE(0, "w", 0, 0, "[4,2]", "[[0,4],[0,2]]", AT("p", 0, "[1,4]"), 8), FERRY_ERR_PROOF,
     "source box [0:4, 0:2] is outside the local shard of shape [2, 2]"},
    {"from a mesh, of another shape",
     "{'format':'ferry.spec/1'," W4 "," MESH("source") "," WHOLE("destination", "u8", 8, W_BOX) "}",
     MOVE(0, "w", 0, 0, "[2,2]", "[[0,1],[0,2]]", AT("p", 0, "[1,4]"), 4), FERRY_ERR_PROOF,
     "the source box [0:1, 0:2] has another shape"},
    {"to a mesh",
     "{'format':'ferry.spec/1'," W4 "," WHOLE("source", "u8", 8, W_BOX) "," MESH("destination") "}",
     MOVE(0, "w", 0, 0, "[2,2]", AT("p", 0, "[1,4]"), "[[0,2],[0,2]]",
          4) "," MOVE(1, "w", 0, 1, "[2,2]", AT("p", 2, "[1,4]"), "[[0,2],[0,2]]", 4),
     ONLY_TOTALS},
    {"to a mesh, twice",
     "{'format':'ferry.spec/1'," W4 "," WHOLE("source", "u8", 8, W_BOX) "," MESH("destination") "}",
     MOVE(0, "w", 0, 0, "[2,2]", AT("p", 0, "[1,4]"), "[[0,2],[0,2]]",
          4) "," MOVE(1, "w", 0, 0, "[1,2]", AT("p", 1, "[1,4]"), "[[1,1],[0,2]]", 2),
     FERRY_ERR_PROOF, "task 1: w|global element [1, 0] is written twice|task 0 too"},
    {"to a mesh, a gap",
     "{'format':'ferry.spec/1'," W4 "," WHOLE("source", "u8", 8, W_BOX) "," MESH("destination") "}",
     MOVE(0, "w", 0, 0, "[1,2]", AT("p", 0, "[1,4]"), "[[0,1],[0,2]]", 2), FERRY_ERR_PROOF,
     "w [1:2, 0:2]: no move writes it on rank 0"},
    {"fed",
     "{'format':'ferry.spec/1'," FED
     "," WHOLE("source", "u8", 8,
               "{'tensor':'a','begin':[0,0],'shape':[4,2],'offset':"
               "0,'strides':[2,1]}") "," WHOLE("destination", "u8", 8, W_BOX) "}",
     "{'task_id':0,'tensor':'w','source':'a','from':0,'to':0,'shape':[2,2],'src':" AT(
         "p", 4,
         "[2,1]") ",'dst':" AT("p", 0,
                               "[1,4]") ",'bytes':4},"
                                        "{'task_id':1,'tensor':'w','source':'a','from':0,'to':0,'"
                                        "shape':[2,2],'src':" AT("p", 0, "[2,1]") ",'dst':" AT(
                                            "p", 2, "[1,4]") ",'bytes':4}",
     ONLY_TOTALS},
    {"fed, over both",
     "{'format':'ferry.spec/1'," FED
     "," WHOLE("source", "u8", 8,
               "{'tensor':'a','begin':[0,0],'shape':[4,2],'offset':"
               "0,'strides':[2,1]}") "," WHOLE("destination", "u8", 8, W_BOX) "}",
     "{'task_id':0,'tensor':'w','source':'a','from':0,'to':0,'shape':[4,2],'src':" AT(
         "p", 0, "[2,1]") ",'dst':" AT("p", 0, "[1,4]") ",'bytes':8}",
     FERRY_ERR_PROOF, "global element [0, 0] is element [2, 0] of a"},
    {"a jump",
     "{'format':'ferry.spec/1'," W4 "," WHOLE(
         "source", "u8", 12,
         "{'tensor':'w','begin':[0,0],'shape':[1,2],'offset':0,'strides':[2,1]},{'tensor':'w','"
         "begin':[2,0],'shape':[1,2],'offset':2,'strides':[2,1]}") "," WHOLE("destination", "u8", 4,
                                                                             "{'tensor':'w','begin'"
                                                                             ":[0,0],'shape':[1,2],"
                                                                             "'offset':0,'strides':"
                                                                             "[2,1]},{'tensor':'w',"
                                                                             "'begin':[2,0],'shape'"
                                                                             ":[1,2],'offset':2,'"
                                                                             "strides':[2,1]}") "}",
     MOVE(0, "w", 0, 0, "[2,2]", AT("p", 0, "[2,1]"), AT("p", 0, "[2,1]"), 4), FERRY_ERR_PROOF,
     "jumps in the global index on dim 0 of w, to 2 instead of 1: it should be two moves"},
    {"half bytes",
     "{'format':'ferry.spec/1'," F4 "," WHOLE("source", "f4", 16, F_BOX("[4,1]")) "," WHOLE(
         "destination", "f4", 24, F_BOX("[6,1]")) "}",
     MOVE(0, "w", 0, 0, "[4,4]", AT("p", 0, "[4,1]"), AT("p", 0, "[6,1]"), 8),
     FERRY_ERR_INVALID_INPUT, "nothing gives its element 4"},
    {"half bytes in rows",
     "{'format':'ferry.spec/1'," F4 "," WHOLE("source", "f4", 24, F_BOX("[6,1]")) "," WHOLE(
         "destination", "f4", 16, F_BOX("[4,1]")) "}",
     MOVE(0, "w", 0, 0, "[4,4]", AT("p", 0, "[6,1]"), AT("p", 0, "[4,1]"), 8), ONLY_TOTALS},
    {"half bytes, odd",
     "{'format':'ferry.spec/1'," F4 "," WHOLE("source", "f4", 24, F_BOX("[5,1]")) "," WHOLE(
         "destination", "f4", 16, F_BOX("[4,1]")) "}",
     MOVE(0, "w", 0, 0, "[4,4]", AT("p", 0, "[5,1]"), AT("p", 0, "[4,1]"), 8), FERRY_ERR_PROOF,
     "its boxes do not start and end on bytes, with elements of 4 bits"},
    {"half bytes across",
     "{'format':'ferry.spec/1'," F4 "," WHOLE("source", "f4", 16, F_BOX("[1,4]")) "," WHOLE(
         "destination", "f4", 16, F_BOX("[4,1]")) "}",
     MOVE(0, "w", 0, 0, "[4,4]", AT("p", 0, "[1,4]"), AT("p", 0, "[4,1]"), 8), FERRY_ERR_PROOF,
     "do not start and end on bytes"},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof case_rows / sizeof *case_rows; i++) {
        const case_row *c = &case_rows[i];
        bool to_mesh = strstr(c->spec, "'destination':{'mesh'") != NULL;
        char text[8192];
        snprintf(text, sizeof text, "%s%s]%s}",
                 to_mesh                     ? HEAD(2, 1, 0, "")
                 : strstr(c->spec, "'mesh'") ? HEAD(2, 1, 0, "")
                                             : HEAD(1, 1, 0, ""),
                 c->moves, to_mesh ? "" : ",'fills':[]");
        write_json("spec.json", c->spec);
        write_json("plan.json", text);
        expect(c->name, c->status, c->words);
    }
}

/* ---- allocations ---- */

static void test_failing_allocations(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    write_json("plan.json", base_plan);
    for (int way = 0; way < 2; way++) {
        int64_t n = 0;
        ferry_status status;
        ferry_error error;
        do {
            fy_alloc_fail_after(n++);
            status = prove(way == 0 ? FY_PROOF_SMALL_SHARD : 0, NULL, &error);
            assert_true(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
            size_t length = strlen(error.message);
            assert_true(status == FERRY_OK || (length > 10 && error.message[length - 1] != ' '));
        } while (status != FERRY_OK);
        fy_alloc_fail_after(-1);
        assert_true(n > 10);
    }
}

/* ---- the lattice against a map of all elements ---- */

enum { MAP = 4096, MOST_BOXES = 12 };

/* A box of random strides, mostly nested, and of few elements. */
static fy_proof_held random_box(uint64_t *random)
{
    fy_proof_held box = {.offset = random_below(random, 200)};
    uint64_t span = 1 + random_below(random, 3);
    for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
        box.steps[i].count = 1;
    }
    size_t n = random_below(random, 4);
    for (size_t i = 0; i < n; i++) {
        fy_proof_step *step = &box.steps[random_below(random, FY_PROOF_STEPS)];
        if (step->count > 1) {
            continue;
        }
        bool is_crossed = random_below(random, 6) == 0;
        *step =
            (fy_proof_step){.count = 2 + random_below(random, 5),
                            .stride = is_crossed ? 1 + random_below(random, (uint32_t)(2 * span))
                                                 : span + random_below(random, 3)};
        span = fy_max(span, step->stride * step->count);
    }
    return box;
}

static size_t add_to_map(uint8_t *map, const fy_proof_held *box)
{
    size_t n_clashes = 0;
    uint64_t element, turns[FY_PROOF_STEPS] = {0};
    for (;;) {
        element = box->offset;
        for (size_t i = 0; i < FY_PROOF_STEPS; i++) {
            element += turns[i] * box->steps[i].stride;
        }
        assert_true(element < MAP);
        n_clashes += map[element]++ > 0;
        size_t i = 0;
        while (i < FY_PROOF_STEPS && ++turns[i] == box->steps[i].count) {
            turns[i++] = 0;
        }
        if (i == FY_PROOF_STEPS) {
            return n_clashes;
        }
    }
}

static void check_finds(const fy_proof_lattice *lattice, const fy_proof_held *boxes,
                        const uint8_t *map)
{
    uint64_t looks = 0;
    for (uint64_t element = 0; element < MAP; element++) {
        uint64_t turns[FY_PROOF_STEPS];
        size_t box;
        bool is_found = fy_proof_lattice_find(lattice, element, &box, turns, &looks);
        assert_int_equal(is_found, map[element] > 0);
        uint64_t there = is_found ? boxes[box].offset : element;
        for (size_t i = 0; is_found && i < FY_PROOF_STEPS; i++) {
            assert_true(turns[i] < boxes[box].steps[i].count);
            there += turns[i] * boxes[box].steps[i].stride;
        }
        assert_int_equal(there, element);
    }
}

/* Boxes are added for as long as they do not meet; then one may meet, and must be told of. */
static void test_lattice(void **state)
{
    (void)state;
    uint64_t random = 18;
    size_t n_met = 0, n_apart = 0;
    for (int turn = 0; turn < 3000; turn++) {
        fy_arena arena = {0};
        static uint8_t map[MAP];
        fy_proof_held boxes[MOST_BOXES];
        size_t n = 0, most = 1 + random_below(&random, MOST_BOXES);
        bool is_clash = false;
        memset(map, 0, sizeof map);
        for (size_t tries = 0; tries < 60 && n < most && !is_clash; tries++) {
            static uint8_t with[MAP];
            boxes[n] = random_box(&random);
            memcpy(with, map, sizeof map);
            is_clash = add_to_map(with, &boxes[n]) > 0 && tries > 15;
            if (is_clash || add_to_map(memcpy(with, map, sizeof map), &boxes[n]) == 0) {
                memcpy(map, with, sizeof map);
                n++;
            }
        }
        uint64_t looks = 0;
        const fy_proof_lattice *lattice = fy_proof_lattice_make(&arena, boxes, n);
        fy_proof_clash clash = fy_proof_lattice_clash(lattice, &looks);
        assert_false(clash.is_unknown);
        assert_int_equal(clash.is_found, is_clash);
        if (is_clash) {
            uint64_t turns[FY_PROOF_STEPS];
            add_to_map(map, &boxes[n - 1]);
            assert_true(map[clash.element] > 1);
            assert_true(fy_proof_held_find(&boxes[clash.boxes[0]], clash.element, turns));
            assert_true(fy_proof_held_find(&boxes[clash.boxes[1]], clash.element, turns));
        } else {
            check_finds(lattice, boxes, map);
        }
        n_met += is_clash;
        n_apart += !is_clash;
        fy_arena_cleanup(&arena);
    }

    assert_true(n_met > 300 && n_apart > 300);
}

/* ---- growth ---- */

/* Where tensor i of n lies in p, by the form: [2, 2] elements. */
static void place_of(const char *form, int n, int i, int *offset, int *outer, int *inner)
{
    int side = 1;
    while (side * side < n) {
        side++;
    }
    if (strcmp(form, "behind") == 0) {
        *offset = 4 * i, *outer = 2, *inner = 1;
    } else if (strcmp(form, "beside") == 0) { /* rows of all tensors side by side */
        *offset = 2 * i, *outer = 2 * n, *inner = 1;
    } else if (strcmp(form, "between") == 0) { /* each in the gaps of all others */
        *offset = i, *outer = 2 * n, *inner = n;
    } else { /* in gaps of rows, and these in gaps */
        *offset = i / side * 2 * side + i % side, *outer = 2 * n, *inner = side;
    }
}

static void write_many(const char *form, int n)
{
    text_buffer spec = {0}, plan = {0};
    text_printf(&spec,
                "{'format':'ferry.spec/1','tensors':[{'name':'t{0}','count':[%d],'shape':"
                "[2,2],'dtype':'u8'}],'source':{'mesh':[],'rules':[{'match':'*'}]},"
                "'destination':{'boxes':[{'rank':0,'parameter':'p','elements':%d,'holds':[",
                n, 4 * n);
    text_printf(&plan, HEAD(1, 0, 0, ""));
    for (int i = 0; i < n; i++) {
        int offset, outer, inner;
        place_of(form, n, i, &offset, &outer, &inner);
        text_printf(&spec,
                    "%s{'tensor':'t%d','begin':[0,0],'shape':[2,2],'offset':%d,'strides':"
                    "[%d,%d]}",
                    i == 0 ? "" : ",", i, offset, outer, inner);
        text_printf(&plan,
                    "%s{'task_id':%d,'tensor':'t%d','from':0,'to':0,'shape':[2,2],"
                    "'src':[[0,2],[0,2]],'dst':{'parameter':'p','offset':%d,'strides':"
                    "[%d,%d]},'bytes':4}",
                    i == 0 ? "" : ",", i, i, offset, outer, inner);
    }
    text_printf(&spec, "]}]}}");
    text_printf(&plan, "],'fills':[]}");
    write_json("spec.json", spec.bytes);
    write_json("plan.json", plan.bytes);
    free(spec.bytes);
    free(plan.bytes);
}

static uint64_t count_looks(const char *form, int n)
{
    ferry_error error;
    uint64_t looks = 0;
    write_many(form, n);
    ferry_status status =
        fy_proof_run(path_of("spec.json"), path_of("plan.json"), 0, NULL, &looks, &error);
    assert_int_equal(status, FERRY_ERR_PROOF); /* of the totals alone, which come last */
    assert_non_null(strstr(error.message, "the plan states"));
    return looks;
}

/* Four times as many boxes cost about four times as much, however they lie in each other. */
static void test_growth(void **state)
{
    (void)state;
    static const char *const forms[] = {"behind", "beside", "between", "between twice"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        uint64_t few = count_looks(forms[i], 1024), many = count_looks(forms[i], 4096);
        check_row(forms[i], few > 1024 && many < 6 * few && many < 4096 * 200);
    }
}

/* Shapes that no list of elements could hold. */
static void test_large(void **state)
{
    (void)state;
    const char *spec =
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[1048576,1048576],'dtype':'f32'}],"
        "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':1,'axis':'tp'}]}]},"
        "'destination':{'boxes':[{'rank':2,'parameter':'p','elements':1649267441664,'holds':["
        "{'tensor':'w','begin':[0,0],'shape':[1048576,1],'offset':0,'strides':[1,1572864],"
        "'repeat':[{'count':1048576,'begin':[0,1],'offset':1572864}]}],'fill':[{'offset':1048576,"
        "'shape':[1048576,524288],'strides':[1572864,1]}]}]}}";
    const char *plan = HEAD(3, 4398046511104, 0,
                            "{'rank':0,'in':0,'out':2199023255552,'local':0},{'rank':1,'in':0,"
                            "'out':2199023255552,'local':0},{'rank':2,'in':4398046511104,'out':0,"
                            "'local':0}")
        MOVE(0, "w", 0, 2, "[1048576,524288]", "[[0,1048576],[0,524288]]",
             AT("p", 0, "[1,1572864]"),
             2199023255552) "," MOVE(1, "w", 1, 2, "[1048576,524288]", "[[0,1048576],[0,524288]]",
                                     AT("p", 824633720832, "[1,1572864]"),
                                     2199023255552) "],'fills':[{'rank':2,'parameter':'p','offset':"
                                                    "1048576,'shape':[1048576,524288],"
                                                    "'strides':[1572864,1],'bits':'00000000'}]}";
    write_json("spec.json", spec);
    write_json("plan.json", plan);
    expect("a wide one", FERRY_ERR_PROOF,
           "states 0 bytes in total, but its moves sum to 4398046511104");
    write_replaced("plan.json", plan, "'offset':824633720832", "'offset':824633720833");
    expect("one element off", FERRY_ERR_PROOF, "task 1: w|the sender has element [0, 524288]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),   cmocka_unit_test(test_specs),
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_lattice), cmocka_unit_test(test_growth),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
