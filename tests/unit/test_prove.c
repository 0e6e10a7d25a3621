/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/alloc.h"

#include "support/spec.h"

#include "prove_case.h"

#include <sys/stat.h>
#include <unistd.h>

/*
 * The plan that most mutations start from: a is cut by rows over ranks 0 and 1 and goes whole to
 * ranks 0 and 2, once as itself and once as t, which is tied to it.
 */
static const char base_spec[] =
    "{'format':'ferry.spec/1','tensors':["
    "{'name':'a','shape':[4,2],'dtype':'u8'},"
    "{'name':'t','shape':[4,2],'dtype':'u8','source':'a'},"
    "{'name':'b','shape':[4,2],'dtype':'u8'}],"
    "'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]},"
    "'destination':{'mesh':[['dp',2]],'ranks':[0,2],"
    "'rules':[{'match':'b','skip':true},{'match':'*'}]}}";

#define HEAD                                                                                       \
    "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,'tensors':3,"  \
    "'bytes':{'moved':24,'local':8,'total':32},'bound':{'seconds':1.5,'rank':0,'why':'egress'},"   \
    "'ranks':[{'rank':0,'in':8,'out':8,'local':8},{'rank':1,'in':0,'out':16,'local':0},"           \
    "{'rank':2,'in':16,'out':0,'local':0}],'moves':["
#define UP(id, tensor, from, to)                                                                   \
    "{'task_id':" #id "," tensor ",'from':" #from ",'to':" #to ",'src':[[0,2],[0,2]],"             \
    "'dst':[[0,2],[0,2]],'bytes':4}"
#define DOWN(id, tensor, from, to)                                                                 \
    "{'task_id':" #id "," tensor ",'from':" #from ",'to':" #to ",'src':[[0,2],[0,2]],"             \
    "'dst':[[2,2],[0,2]],'bytes':4}"
#define A "'tensor':'a'"
#define T "'tensor':'t','source':'a'"

static const char base_plan[] =
    HEAD UP(0, A, 0, 0) "," DOWN(1, A, 1, 0) "," UP(2, T, 0, 0) "," DOWN(3, T, 1, 0) "," UP(
        4, A, 0, 2) "," DOWN(5, A, 1, 2) "," UP(6, T, 0, 2) "," DOWN(7, T, 1, 2) "]}";

static void test_base(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    write_json("plan.json", base_plan);
    expect("base", FERRY_OK, "");
    ferry_proof proof = FERRY_PROOF_INIT;
    ferry_error error;
    assert_int_equal(ferry_plan_prove(path_of("spec.json"), path_of("plan.json"), &proof, &error),
                     FERRY_OK);
    assert_int_equal(proof.n_tensors, 2);
    assert_int_equal(proof.n_moves, 8);
    assert_int_equal(proof.n_destination_shards, 4);
    assert_int_equal(proof.moved_bytes, 24);
    assert_int_equal(proof.local_bytes, 8);
}

typedef struct mutation {
    const char *name;
    const char *find; /* in the base; its first place */
    const char *replace;
    ferry_status status;
    const char *words;
} mutation;

static void write_mutated(const char *file, const char *base, const mutation *m)
{
    char text[8192];
    const char *place = strstr(base, m->find);
    if (place == NULL) {
        fail_msg("%s: nothing to mutate", m->name);
        return;
    }
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - base), base, m->replace,
             place + strlen(m->find));
    write_json(file, text);
}

static const mutation plan_mutations[] = {
    {"dropped last", "," DOWN(7, T, 1, 2), "", FERRY_ERR_PROOF,
     "t [2:4, 0:2]|no move writes it on rank 2"},
    {"dropped middle", DOWN(3, T, 1, 0) ",", "", FERRY_ERR_PROOF, "task 4|should be 3"},
    {"dropped shard", "," UP(6, T, 0, 2) "," DOWN(7, T, 1, 2), "", FERRY_ERR_PROOF,
     "t [0:4, 0:2]|no move writes it on rank 2|before task 6"},
    {"doubled", DOWN(7, T, 1, 2), DOWN(7, T, 1, 2) "," DOWN(8, T, 1, 2), FERRY_ERR_PROOF,
     "task 8|t|[2, 0]|written twice|rank 2|by task 7"},
    {"wrong sender", DOWN(5, A, 1, 2), DOWN(5, A, 0, 2), FERRY_ERR_PROOF,
     "task 5: a|from rank 0 to rank 2|[2, 0]|the sender has element [0, 0]"},
    {"sender outside the source", UP(0, A, 0, 0), UP(0, A, 2, 0), FERRY_ERR_PROOF,
     "rank 2 is not in the source"},
    {"receiver outside", UP(4, A, 0, 2), UP(4, A, 0, 1), FERRY_ERR_PROOF,
     "task 4|rank 1 is not in the destination"},
    {"receiver before", DOWN(5, A, 1, 2), DOWN(5, A, 1, 0), FERRY_ERR_PROOF,
     "task 5|behind moves to rank 2"},
    {"ids out of order", "'task_id':2", "'task_id':3", FERRY_ERR_PROOF, "task 3|should be 2"},
    {"begins out of order", UP(0, A, 0, 0) "," DOWN(1, A, 1, 0),
     DOWN(0, A, 1, 0) "," UP(1, A, 0, 0), FERRY_ERR_PROOF, "task 1|out of order"},
    {"tensors out of order", UP(0, A, 0, 0) "," DOWN(1, A, 1, 0) "," UP(2, T, 0, 0),
     UP(0, T, 0, 0) "," DOWN(1, T, 1, 0) "," UP(2, A, 0, 0), FERRY_ERR_PROOF,
     "task 2: a|the spec lists later"},
    {"a tensor comes back", DOWN(1, A, 1, 0) "," UP(2, T, 0, 0),
     DOWN(1, A, 1, 0) "," UP(2, T, 0, 0) "," DOWN(3, T, 1, 0) "," UP(4, A, 0, 0), FERRY_ERR_PROOF,
     "task 4: a"},
    {"shifted src", "'src':[[0,2],[0,2]]", "'src':[[0,2],[1,2]]", FERRY_ERR_PROOF,
     "task 0|source box|outside the local shard of shape [2, 2]"},
    {"shifted dst", "'dst':[[2,2],[0,2]]", "'dst':[[1,2],[0,2]]", FERRY_ERR_PROOF,
     "task 1|from rank 1 to rank 0|[1, 0]|[2, 0]"},
    {"dst outside", "'dst':[[2,2],[0,2]]", "'dst':[[3,2],[0,2]]", FERRY_ERR_PROOF,
     "task 1|destination box [3:5, 0:2]|outside the local shard of shape [4, 2]"},
    {"dst far outside", "'dst':[[2,2],[0,2]]", "'dst':[[9,2],[0,2]]", FERRY_ERR_PROOF,
     "task 1|destination box [9:11, 0:2]|outside the local shard of shape [4, 2]"},
    {"empty box", "'src':[[0,2],[0,2]],'dst':[[0,2],[0,2]]",
     "'src':[[0,0],[0,2]],'dst':[[0,0],[0,2]]", FERRY_ERR_PROOF, "task 0|empty"},
    {"shapes differ", "'src':[[0,2]", "'src':[[0,1]", FERRY_ERR_PROOF, "another shape"},
    {"a dimension less", "'src':[[0,2],[0,2]]", "'src':[[0,2]]", FERRY_ERR_PROOF,
     "has 1 dimensions at the source|2 and 2"},
    {"wrong bytes", "'bytes':4", "'bytes':5", FERRY_ERR_PROOF, "task 0|4 elements|states 5 bytes"},
    {"source missing", "'source':'a',", "", FERRY_ERR_PROOF, "task 2: t|lacks a source"},
    {"source too much", A, A ",'source':'a'", FERRY_ERR_PROOF, "task 0: a|names a source"},
    {"wrong source", "'source':'a'", "'source':'b'", FERRY_ERR_PROOF,
     "task 2: t|names the source b|fed from a"},
    {"unknown source", "'source':'a'", "'source':'x'", FERRY_ERR_PROOF, "x is not in the spec"},
    {"unknown tensor", A, "'tensor':'x'", FERRY_ERR_PROOF, "task 0|x is not in the spec"},
    {"unwanted tensor", UP(0, A, 0, 0), UP(0, "'tensor':'b'", 0, 0), FERRY_ERR_PROOF,
     "b|rank 0 has nothing of this tensor"},
    {"moved", "'moved':24", "'moved':25", FERRY_ERR_PROOF, "states 25 bytes moved|24"},
    {"local", "'local':8,'total'", "'local':9,'total'", FERRY_ERR_PROOF, "states 9 local"},
    {"total", "'total':32", "'total':31", FERRY_ERR_PROOF, "states 31 bytes in total|32"},
    {"in", "'in':16", "'in':15", FERRY_ERR_PROOF, "rank 2|15 bytes in|16"},
    {"out", "'out':16", "'out':15", FERRY_ERR_PROOF, "rank 1|15 out|16"},
    {"rank twice", "{'rank':1,", "{'rank':0,", FERRY_ERR_PROOF, "rank 0 twice"},
    {"world", "'world':3", "'world':4", FERRY_ERR_PROOF, "world of 4 ranks, not 3"},
    {"tensors", "'tensors':3", "'tensors':4", FERRY_ERR_PROOF, "states 4 tensors"},
    {"format", "ferry.plan/1", "ferry.plan/2", FERRY_ERR_INVALID_INPUT, "ferry.plan/2"},
    {"unknown key", "'world':3", "'world':3,'more':1", FERRY_ERR_INVALID_INPUT, "\"more\""},
    {"repeated key", "'world':3", "'world':3,'world':3", FERRY_ERR_INVALID_INPUT, "repeated"},
    {"missing key", "'world':3,", "", FERRY_ERR_INVALID_INPUT, "lacks the key \"world\""},
    {"unknown key of a move", "'task_id'", "'id':1,'task_id'", FERRY_ERR_INVALID_INPUT,
     "moves[0]|\"id\""},
    {"negative", "'src':[[0", "'src':[[-1", FERRY_ERR_INVALID_INPUT, "moves[0].src[0]"},
    {"cut off", "]}", "]", FERRY_ERR_INVALID_INPUT, "expected"},
    {"no value", "'world':3", "'world':", FERRY_ERR_INVALID_INPUT, "expected a value"},
    {"rest", "]}", "]}]", FERRY_ERR_INVALID_INPUT, "byte"},
};

static void test_plan_mutations(void **state)
{
    (void)state;
    write_json("spec.json", base_spec);
    for (size_t i = 0; i < sizeof plan_mutations / sizeof *plan_mutations; i++) {
        const mutation *m = &plan_mutations[i];
        /* "]}" ends the ranks and each list too: the last place is meant. */
        mutation last = *m;
        if (strcmp(m->find, "]}") == 0) {
            last.find = base_plan + sizeof base_plan - 3;
        }
        write_mutated("plan.json", base_plan, &last);
        expect(m->name, m->status, m->words);
    }
}

static const mutation spec_mutations[] = {
    {"another layout", "'dim':0", "'dim':1", FERRY_ERR_PROOF, "outside"},
    {"a rank more", "[['dp',2]],'ranks':[0,2]", "[['dp',3]],'ranks':[0,2,5]", FERRY_ERR_PROOF,
     "a [0:4, 0:2]|no move writes it on rank 5"},
    {"a tensor more", "{'match':'b','skip':true},", "", FERRY_ERR_PROOF,
     "b [0:4, 0:2]|no move writes it on rank 0"},
    {"no rule", "{'match':'*','shard'", "{'match':'b','shard'", FERRY_ERR_INVALID_INPUT,
     "a: no rule of the source"},
    {"skipped at the source", "'rules':[{'match':'*'",
     "'rules':[{'match':'a','skip':true},{'match':'*'", FERRY_ERR_INVALID_INPUT,
     "a: is needed|source skips a"},
    {"unknown axis", "'axis':'tp'", "'axis':'xp'", FERRY_ERR_INVALID_INPUT, "\"xp\""},
    {"dim out of range", "'dim':0", "'dim':2", FERRY_ERR_INVALID_INPUT, "dimension 2 of 2"},
    {"second dim out of range", "2]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'}",
     "2],['pp',1]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp'},{'dim':2,'axis':'pp'}",
     FERRY_ERR_INVALID_INPUT, "dimension 2 of 2"},
    {"parts", "'dim':0", "'dim':0,'parts':3", FERRY_ERR_INVALID_INPUT, "do not divide 2"},
    {"two ways", "'dim':0", "'dim':0,'stride':1,'cycle':1", FERRY_ERR_INVALID_INPUT,
     "more than one"},
    {"nested", "'dim':0", "'dim':0,'nested':true,'stride':1", FERRY_ERR_INVALID_INPUT, "nested"},
    {"unit of a cycle", "'dim':0", "'dim':0,'unit':1,'cycle':1", FERRY_ERR_INVALID_INPUT, "unit"},
    {"unit", "'dim':0", "'dim':0,'unit':3", FERRY_ERR_INVALID_INPUT, "a dim 0: the unit 3"},
    {"sizes", "'dim':0", "'dim':0,'sizes':[1,2]", FERRY_ERR_INVALID_INPUT, "a dim 0|sizes 3"},
    {"sizes' number", "'dim':0", "'dim':0,'sizes':[4]", FERRY_ERR_INVALID_INPUT, "1 entries"},
    {"blocks", "'dim':0", "'dim':0,'blocks':[1,2]", FERRY_ERR_INVALID_INPUT, "a dim 0|blocks 3"},
    {"axis twice", "'shard':[", "'flat':{'axis':'tp'},'shard':[", FERRY_ERR_INVALID_INPUT,
     "a second time"},
    {"dim twice", "2]],'rules':[{'match':'*','shard':[",
     "2],['pp',1]],'rules':[{'match':'*','shard':[{'dim':0,'axis':'pp'},", FERRY_ERR_INVALID_INPUT,
     "cuts the dimension 0 again"},
    {"on too large", "'shard':[{'dim':0,'axis':'tp'}]", "'on':{'tp':2}", FERRY_ERR_INVALID_INPUT,
     "from -2 to 1"},
    {"on twice", "'shard':[{'dim':0,'axis':'tp'}]", "'on':{'tp':[1,-1]}", FERRY_ERR_INVALID_INPUT,
     ".tp has -1 twice"},
    {"ranks twice", "'ranks':[0,2]", "'ranks':[2,2]", FERRY_ERR_INVALID_INPUT, "rank 2 twice"},
    {"ranks' number", "'ranks':[0,2]", "'ranks':[0]", FERRY_ERR_INVALID_INPUT, "the mesh has 2"},
    {"name twice", "'name':'b'", "'name':'a'", FERRY_ERR_INVALID_INPUT, "a: stands twice"},
    {"dtype", "'dtype':'u8'", "'dtype':'u7'", FERRY_ERR_INVALID_INPUT, "u7"},
    {"source's dtype", "'dtype':'u8','source'", "'dtype':'i8','source'", FERRY_ERR_INVALID_INPUT,
     "t: its source a has another dtype"},
    {"source's shape", "'t','shape':[4,2]", "'t','shape':[4,1]", FERRY_ERR_INVALID_INPUT,
     "t|not the shape of its source a"},
    {"source of a source", "'source':'a'", "'source':'t'", FERRY_ERR_INVALID_INPUT,
     "its sources lead back to it, in a circle"},
    {"count before a source", "'source':'a'", "'count':[0],'source':'a'", FERRY_ERR_INVALID_INPUT,
     "tensors[1].count[0]"},
    {"unknown key", "'destination'", "'extra':1,'destination'", FERRY_ERR_INVALID_INPUT, "extra"},
};

static void test_spec_mutations(void **state)
{
    (void)state;
    write_json("plan.json", base_plan);
    for (size_t i = 0; i < sizeof spec_mutations / sizeof *spec_mutations; i++) {
        write_mutated("spec.json", base_spec, &spec_mutations[i]);
        expect(spec_mutations[i].name, spec_mutations[i].status, spec_mutations[i].words);
    }
}

/*
 * Both ranks hold rows 0 and 2, side by side in their shards. Two moves bring them over; one would
 * bring the right bytes too, but it is no contiguous range of the tensor.
 */
#define SIDE                                                                                       \
    "{'mesh':[['tp',2]],'ranks':[%d,%d],'rules':[{'match':'*','shard':[{'dim':0,'axis':'tp',%s}]}" \
    "]}"
#define MOVE(id, from, to, src, dst, rows)                                                         \
    "{'task_id':" #id ",'tensor':'a','from':" #from ",'to':" #to ",'src':[[" #src "," #rows        \
    "]],'dst':[[" #dst "," #rows "]],'bytes':" #rows "}"

static void write_jump(const char *src_cut, const char *dst_cut, const char *moves)
{
    char spec[1000], plan[2000];
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4],'dtype':'u8'}],"
             "'source':" SIDE ",'destination':" SIDE "}",
             0, 1, src_cut, 2, 3, dst_cut);
    snprintf(plan, sizeof plan,
             "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':4,"
             "'tensors':1,'bytes':{'moved':4,'local':0,'total':4},'bound':{'seconds':null,'rank':0,"
             "'why':'egress'},'ranks':[{'rank':0,'in':0,'out':2,'local':0},{'rank':1,'in':0,"
             "'out':2,'local':0},{'rank':2,'in':2,'out':0,'local':0},{'rank':3,'in':2,'out':0,"
             "'local':0}],'moves':[%s]}",
             moves);
    write_json("spec.json", spec);
    write_json("plan.json", plan);
}

static void test_jumps(void **state)
{
    (void)state;
    write_jump("'cycle':1", "'blocks':[2,2]",
               MOVE(0, 0, 2, 0, 0, 1) "," MOVE(1, 0, 2, 1, 1, 1) "," MOVE(
                   2, 1, 3, 0, 0, 1) "," MOVE(3, 1, 3, 1, 1, 1));
    expect("two moves", FERRY_OK, "");
    write_jump("'cycle':1", "'blocks':[2,2]",
               MOVE(0, 0, 2, 0, 0, 1) "," MOVE(1, 0, 2, 1, 1, 1) "," MOVE(2, 1, 3, 0, 0, 2));
    expect("one move", FERRY_ERR_PROOF, "task 2|source box|jumps|dim 0|from 1 to 3");
}

/* 2^24 pieces of a shard are too many, one less is not: nothing of that size is made here. */
static void test_most_pieces(void **state)
{
    (void)state;
    write_json("spec.json", "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[33554432],"
                            "'dtype':'u8'}],'source':{'mesh':[['tp',2]],'rules':[{'match':'*',"
                            "'shard':[{'dim':0,'axis':'tp','cycle':1}]}]},"
                            "'destination':{'mesh':[['tp',1]],'rules':[{'match':'*'}]}}");
    write_json("plan.json", base_plan);
    expect("2^24 pieces", FERRY_ERR_LIMIT, "a dim 0|a cycle of 1 makes too many pieces");
}

/* A tensor of as many dimensions as there can be: none is taken for granted, the first neither. */
#define BOX(first) "[[" #first ",2],[0,1],[0,1],[0,1],[0,1],[0,1],[0,1],[0,2]]"

static void write_most_dims(int sender_of_second)
{
    char plan[2000];
    write_json("spec.json",
               "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4,1,1,1,1,1,1,2],"
               "'dtype':'u8'}],'source':{'mesh':[['tp',2]],'rules':[{'match':'*','shard':[{'dim':0,"
               "'axis':'tp'}]}]},'destination':{'mesh':[['tp',1]],'ranks':[2],"
               "'rules':[{'match':'*'}]}}");
    snprintf(plan, sizeof plan,
             "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':3,"
             "'tensors':1,'bytes':{'moved':8,'local':0,'total':8},'bound':{'seconds':null,'rank':0,"
             "'why':'egress'},'ranks':[{'rank':0,'in':0,'out':4,'local':0},{'rank':1,'in':0,"
             "'out':4,'local':0},{'rank':2,'in':8,'out':0,'local':0}],'moves':["
             "{'task_id':0,'tensor':'a','from':0,'to':2,'src':" BOX(0) ",'dst':" BOX(
                 0) ",'bytes':4},{'task_id':1,'tensor':'a','from':%d,'to':2,'src'"
                    ":" BOX(0) ",'dst':" BOX(2) ",'bytes':4}]}",
             sender_of_second);
    write_json("plan.json", plan);
}

static void test_most_dims(void **state)
{
    (void)state;
    write_most_dims(1);
    expect("eight dimensions", FERRY_OK, "");
    write_most_dims(0);
    expect("eight dimensions, wrong sender", FERRY_ERR_PROOF,
           "task 1|global element [2, 0, 0, 0, 0, 0, 0, 0] is element [2, 0, 0, 0, 0, 0, 0, 0]|"
           "the sender has element [0, 0, 0, 0, 0, 0, 0, 0]");
}

/* Every allocation of the library fails once: a status, no leak, and the proof at the end. */
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
            size_t length = strlen(error.message); /* which names what it was for */
            assert_true(status == FERRY_OK || (length > 10 && error.message[length - 1] != ' '));
        } while (status != FERRY_OK);
        fy_alloc_fail_after(-1);
        assert_true(n > 10);
    }
}

static void test_files_and_misuse(void **state)
{
    (void)state;
    ferry_error error;
    ferry_proof proof = {0};
    write_json("spec.json", base_spec);
    write_json("plan.json", base_plan);
    const char *spec = path_of("spec.json"), *plan = path_of("plan.json");
    assert_int_equal(ferry_plan_prove(NULL, plan, NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_prove(spec, NULL, NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_prove(spec, plan, &proof, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_prove(spec, path_of("none"), NULL, NULL), FERRY_ERR_IO);
    assert_int_equal(ferry_plan_prove(path_of("none"), plan, NULL, &error), FERRY_ERR_IO);
    assert_int_equal(ferry_plan_prove(plan, plan, NULL, &error), FERRY_ERR_INVALID_INPUT);
    write_json("spec.json", "{'format':'ferry.spec/1','model':'none.safetensors.index.json',"
                            "'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                            "'destination':{'mesh':[['x',1]],'rules':[{'match':'*'}]}}");
    ferry_status status = ferry_plan_prove(spec, plan, NULL, &error);
    assert_int_equal(status, FERRY_ERR_IO);
    assert_non_null(strstr(error.message, "none.safetensors.index.json"));
    write_json("spec.json", "{'format':'ferry.spec/1','model':'folder',"
                            "'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                            "'destination':{'mesh':[['x',1]],'rules':[{'match':'*'}]}}");
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    assert_int_equal(mkdir(path_of("folder/model.safetensors.index.json"), 0700), 0);
    status = ferry_plan_prove(spec, plan, NULL, &error);
    assert_int_equal(rmdir(path_of("folder/model.safetensors.index.json")), 0);
    assert_int_equal(rmdir(path_of("folder")), 0);
    assert_int_equal(status, FERRY_ERR_IO);
    assert_non_null(strstr(error.message, "is not a regular file"));
    write_json("spec.json", base_spec);
    write_json("plan.json", "{'format':'ferry.plan/1','moves':[{'task_id':0,");
    expect("cut off in a move", FERRY_ERR_INVALID_INPUT, "the rest of a value");
}

/* The keys may come in any order, and a schedule may be there. */
static void test_key_order(void **state)
{
    (void)state;
    char text[8192];
    const char *moves = strstr(base_plan, "'moves'");
    int n_moves = (int)strlen(moves) - 1;
    int n_head = (int)(moves - base_plan) - 2; /* without the brace and the comma */
    snprintf(text, sizeof text, "{'schedule':{'batches':[{'round':0}],'s':'}\\\"'} , %.*s,\n%.*s}",
             n_moves, moves, n_head, base_plan + 1);
    write_json("spec.json", base_spec);
    write_json("plan.json", text);
    expect("moves first", FERRY_OK, "");
}

/* ---- many boxes ---- */

/* w is put together from n tensors of 2 x 2, below each other, beside each other, or in a square.
 */
static void write_fed(int n, const char *form)
{
    int side = 1;
    text_buffer text = {0};
    while (side * side < n) {
        side++;
    }
    bool is_rows = strcmp(form, "rows") == 0, is_columns = strcmp(form, "columns") == 0;
    int width = is_rows ? 1 : is_columns ? n : side;
    text_printf(&text,
                "{'format':'ferry.spec/1','tensors':[{'name':'s{0}','count':[%d],"
                "'shape':[2,2],'dtype':'u8'},{'name':'w','shape':[%d,%d],'dtype':'u8',"
                "'source':[",
                n, 2 * (n / width), 2 * width);
    for (int i = 0; i < n; i++) {
        text_printf(&text, "%s{'tensor':'s%d','begin':[0,0],'shape':[2,2],'at':[%d,%d]}",
                    i == 0 ? "" : ",", i, 2 * (i / width), 2 * (i % width));
    }
    text_printf(&text,
                "]}],'source':{'mesh':[['tp',1]],'rules':[{'match':'*'}]},'destination':"
                "{'mesh':[['tp',2]],'rules':[{'match':'s*','skip':true},"
                "{'match':'*','shard':[{'dim':%d,'axis':'tp'}]}]}}",
                is_columns);
    write_json("spec.json", text.bytes);
    ferry_plan *plan = plan_of(text.bytes, NULL);
    text_buffer printed = print_plan(plan);
    write_bytes("plan.json", printed.bytes, printed.used);
    ferry_plan_destroy(plan);
    free(printed.bytes);
    free(text.bytes);
}

static uint64_t count_looks(int n, const char *form, uint64_t most_elements)
{
    ferry_error error;
    ferry_proof proof = FERRY_PROOF_INIT;
    uint64_t looks = 0;
    write_fed(n, form);
    must(fy_proof_run(path_of("spec.json"), path_of("plan.json"), most_elements, &proof, &looks,
                      &error),
         &error);
    check_row(form, proof.n_moves == (uint64_t)n);
    return looks;
}

/* Four times as many boxes cost about four times as much, however they lie. */
static void test_growth_over_boxes(void **state)
{
    (void)state;
    static const char *const forms[] = {"rows", "columns", "square"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        for (int way = 0; way < 2; way++) {
            uint64_t most = way == 0 ? FY_PROOF_SMALL_SHARD : 0;
            uint64_t few = count_looks(1024, forms[i], most),
                     many = count_looks(4096, forms[i], most);
            check_row(forms[i], few > 1024 && many < 6 * few && many < 4096 * 200);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),
        cmocka_unit_test(test_plan_mutations),
        cmocka_unit_test(test_spec_mutations),
        cmocka_unit_test(test_jumps),
        cmocka_unit_test(test_most_pieces),
        cmocka_unit_test(test_most_dims),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_files_and_misuse),
        cmocka_unit_test(test_key_order),
        cmocka_unit_test(test_growth_over_boxes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
