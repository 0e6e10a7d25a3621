/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "prove_case.h"

/* A plan whose ranks and bytes follow from its moves; so only the moves matter. */
typedef struct writing {
    char moves[8192];
    int n;
    uint64_t in[16], out[16], local[16];
} writing;

static void add_move(writing *w, const char *tensor, const char *source, int from, int to,
                     const char *src, const char *dst, uint64_t bytes)
{
    size_t used = strlen(w->moves);
    snprintf(
        w->moves + used, sizeof w->moves - used,
        "%s{'task_id':%d,'tensor':'%s',%s%s%s'from':%d,'to':%d,'src':%s,'dst':%s,'bytes':%llu}",
        w->n == 0 ? "" : ",", w->n, tensor, source == NULL ? "" : "'source':'",
        source == NULL ? "" : source, source == NULL ? "" : "',", from, to, src, dst,
        (unsigned long long)bytes);
    w->n++;
    if (from == to) {
        w->local[to] += bytes;
    } else {
        w->out[from] += bytes;
        w->in[to] += bytes;
    }
}

static void write_plan(const writing *w, int world, int n_tensors)
{
    char text[16384], ranks[2048] = "";
    uint64_t moved = 0, local = 0;
    for (int r = 0; r < world; r++) {
        size_t used = strlen(ranks);
        snprintf(ranks + used, sizeof ranks - used,
                 "%s{'rank':%d,'in':%llu,'out':%llu,'local':%llu}", r == 0 ? "" : ",", r,
                 (unsigned long long)w->in[r], (unsigned long long)w->out[r],
                 (unsigned long long)w->local[r]);
        moved += w->in[r];
        local += w->local[r];
    }
    snprintf(text, sizeof text,
             "{'format':'ferry.plan/1','digest':'00112233445566778899aabbccddeeff','world':%d,"
             "'tensors':%d,'bytes':{'moved':%llu,'local':%llu,'total':%llu},"
             "'bound':{'seconds':null,'rank':0,'why':'none'},'ranks':[%s],'moves':[%s]}",
             world, n_tensors, (unsigned long long)moved, (unsigned long long)local,
             (unsigned long long)(moved + local), ranks, w->moves);
    write_json("plan.json", text);
}

/* A piece of a vector of bytes: which rank has it, at which place of its local shard. */
typedef struct piece {
    int rank;
    int local;
    int length;
} piece;

typedef struct layout {
    const char *name;
    const char *mesh;
    const char *rule; /* without its match */
    int extent;
    piece pieces[10]; /* of the whole vector, in global order */
} layout;

/* Worked out by hand from the definitions. */
static const layout layouts[] = {
    {"even, uneven",
     "['tp',4]",
     "'shard':[{'dim':0,'axis':'tp'}]",
     10,
     {{0, 0, 3}, {1, 0, 3}, {2, 0, 3}, {3, 0, 1}}},
    {"product",
     "['dp',2],['tp',3]",
     "'shard':[{'dim':0,'axis':['dp','tp']}]",
     10,
     {{0, 0, 2}, {1, 0, 2}, {2, 0, 2}, {3, 0, 2}, {4, 0, 2}}},
    {"product, the slow axis last",
     "['dp',2],['tp',2]",
     "'shard':[{'dim':0,'axis':['tp','dp']}]",
     8,
     {{0, 0, 2}, {2, 0, 2}, {1, 0, 2}, {3, 0, 2}}},
    {"nested",
     "['dp',2],['tp',3]",
     "'shard':[{'dim':0,'axis':['dp','tp'],'nested':true}]",
     10,
     {{0, 0, 2}, {1, 0, 2}, {2, 0, 1}, {3, 0, 2}, {4, 0, 2}, {5, 0, 1}}},
    {"stride",
     "['tp',2]",
     "'shard':[{'dim':0,'axis':'tp','stride':2}]",
     10,
     {{0, 0, 3}, {1, 0, 3}, {0, 3, 3}, {1, 3, 1}}},
    {"blocks",
     "['tp',2]",
     "'shard':[{'dim':0,'axis':'tp','blocks':[3,[2,1],0,2]}]",
     7,
     {{0, 0, 2}, {1, 0, 1}, {1, 1, 2}, {0, 4, 1}, {1, 3, 1}}},
    {"sizes",
     "['tp',4]",
     "'shard':[{'dim':0,'axis':'tp','sizes':[3,0,5,2]}]",
     10,
     {{0, 0, 3}, {2, 0, 5}, {3, 0, 2}}},
    {"cycle",
     "['tp',3]",
     "'shard':[{'dim':0,'axis':'tp','cycle':2}]",
     11,
     {{0, 0, 2}, {1, 0, 2}, {2, 0, 2}, {0, 2, 2}, {1, 2, 2}, {2, 2, 1}}},
    {"parts", "['tp',4]", "'shard':[{'dim':0,'axis':'tp','parts':2}]", 7, {{1, 0, 4}, {2, 0, 3}}},
    {"unit", "['tp',2]", "'shard':[{'dim':0,'axis':'tp','unit':2}]", 6, {{0, 0, 4}, {1, 0, 2}}},
    {"parts of sizes",
     "['tp',4]",
     "'shard':[{'dim':0,'axis':'tp','parts':2,'sizes':[1,4]}]",
     5,
     {{0, 0, 1}, {3, 0, 4}}},
    {"parts of a stride",
     "['tp',4]",
     "'shard':[{'dim':0,'axis':'tp','parts':2,'stride':2}]",
     8,
     {{0, 0, 2}, {2, 0, 2}, {1, 2, 2}, {3, 2, 2}}},
    {"parts of a cycle",
     "['tp',4]",
     "'shard':[{'dim':0,'axis':'tp','parts':2,'cycle':1}]",
     4,
     {{0, 0, 1}, {2, 0, 1}, {1, 1, 1}, {3, 1, 1}}},
    {"flat",
     "['dp',2],['tp',2]",
     "'flat':{'axis':'dp'},'shard':[{'dim':0,'axis':'tp'}]",
     10,
     {{0, 0, 3}, {2, 3, 2}, {1, 0, 3}, {3, 3, 2}}},
    {"flat sizes", "['dp',3]", "'flat':{'axis':'dp','sizes':[1,0,4]}", 5, {{0, 0, 1}, {2, 1, 4}}},
    {"on",
     "['pp',3],['tp',2]",
     "'on':{'pp':-1},'shard':[{'dim':0,'axis':'tp'}]",
     4,
     {{4, 0, 2}, {5, 0, 2}}},
    {"on a list", "['pp',3]", "'on':{'pp':[0,-1]}", 4, {{2, 0, 4}}},
};

/* Every piece goes whole to rank 9; the piece number shifted is taken one element too late. */
static void write_layout_plan(const layout *at, int shifted)
{
    writing w = {.n = 0};
    int begin = 0;
    for (int i = 0; i < 10 && at->pieces[i].length > 0; i++) {
        const piece *p = &at->pieces[i];
        char src[64], dst[64];
        snprintf(src, sizeof src, "[[%d,%d]]", p->local + (i == shifted), p->length);
        snprintf(dst, sizeof dst, "[[%d,%d]]", begin, p->length);
        add_move(&w, "w", NULL, p->rank, 9, src, dst, (uint64_t)p->length);
        begin += p->length;
    }
    assert_int_equal(begin, at->extent);
    write_plan(&w, 10, 1);
}

static void test_layouts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *at = &layouts[i];
        char spec[1024];
        snprintf(spec, sizeof spec,
                 "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[%d],'dtype':'u8'}],"
                 "'source':{'mesh':[%s],'rules':[{'match':'w',%s}]},"
                 "'destination':{'mesh':[['one',1]],'first_rank':9,'rules':[{'match':'*'}]}}",
                 at->extent, at->mesh, at->rule);
        write_json("spec.json", spec);
        write_layout_plan(at, -1);
        expect(at->name, FERRY_OK, "");
        for (int shifted = 0; shifted < 10 && at->pieces[shifted].length > 0; shifted++) {
            write_layout_plan(at, shifted);
            expect(at->name, FERRY_ERR_PROOF, "task|w|to rank 9");
        }
    }
}

/* A move over two pieces is right at its first element, and wrong behind the gap between them. */
static void test_crossing(void **state)
{
    (void)state;
    static const char spec[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[8],'dtype':'u8'},"
        "{'name':'f','shape':[8],'dtype':'u8','source':["
        "{'tensor':'w','begin':[0],'shape':[2],'at':[0]},"
        "{'tensor':'w','begin':[4],'shape':[2],'at':[2]},"
        "{'tensor':'w','begin':[2],'shape':[2],'at':[4]},"
        "{'tensor':'w','begin':[6],'shape':[2],'at':[6]}]}],"
        "'source':{'mesh':[['tp',2]],'rules':[{'match':'*'%s}]},"
        "'destination':{'mesh':[['tp',2]],'rules':[{'match':'%s','skip':true},{'match':'*'%s}]}}";
    static const char strided[] = ",'shard':[{'dim':0,'axis':'tp','stride':2}]";
    const char *const cases[][3] = {{strided, "f", ""}, {"", "f", strided}, {"", "w", ""}};
    for (size_t i = 0; i < 3; i++) {
        const char *tensor = i == 2 ? "f" : "w", *source = i == 2 ? "w" : NULL;
        char text[1024];
        snprintf(text, sizeof text, spec, cases[i][0], cases[i][1], cases[i][2]);
        write_json("spec.json", text);
        writing w = {.n = 0};
        add_move(&w, tensor, source, 0, 0, "[[0,4]]", "[[0,4]]", 4);
        write_plan(&w, 2, 2);
        expect("crossing", FERRY_ERR_PROOF, "task 0|global element [|from rank 0 to rank 0");
    }
}

/* The flat range of a holder cuts a matrix within its rows, on both sides. */
static void test_flat_matrix(void **state)
{
    (void)state;
    write_json("spec.json",
               "{'format':'ferry.spec/1','tensors':[{'name':'m','shape':[3,4],'dtype':'u8'}],"
               "'source':{'mesh':[['dp',2]],'rules':[{'match':'m','flat':{'axis':'dp'}}]},"
               "'destination':{'mesh':[['dp',2]],"
               "'rules':[{'match':'m','flat':{'axis':'dp','sizes':[5,7]}}]}}");
    writing w = {.n = 0};
    add_move(&w, "m", NULL, 0, 0, "[[0,1],[0,4]]", "[[0,1],[0,4]]", 4);
    add_move(&w, "m", NULL, 0, 0, "[[1,1],[0,1]]", "[[1,1],[0,1]]", 1);
    add_move(&w, "m", NULL, 0, 1, "[[1,1],[1,1]]", "[[1,1],[1,1]]", 1);
    writing short_of_one = w;
    add_move(&w, "m", NULL, 1, 1, "[[1,1],[2,2]]", "[[1,1],[2,2]]", 2);
    writing early = w;
    add_move(&w, "m", NULL, 1, 1, "[[2,1],[0,4]]", "[[2,1],[0,4]]", 4);
    write_plan(&w, 2, 1);
    expect("flat matrix", FERRY_OK, "");
    add_move(&short_of_one, "m", NULL, 1, 1, "[[1,1],[3,1]]", "[[1,1],[3,1]]", 1);
    add_move(&short_of_one, "m", NULL, 1, 1, "[[2,1],[0,4]]", "[[2,1],[0,4]]", 4);
    write_plan(&short_of_one, 2, 1);
    expect("flat gap", FERRY_ERR_PROOF, "m [1:2, 2:3]|no move writes it on rank 1");
    add_move(&early, "m", NULL, 0, 1, "[[2,1],[0,4]]", "[[2,1],[0,4]]", 4);
    write_plan(&early, 2, 1);
    expect("flat range", FERRY_ERR_PROOF, "elements 8 to 11|outside the flat range [0, 6)");
}

/*
 * Rank 1 holds the elements from 5 on, of which a move brings those from 8 on. No move ends where
 * the range begins, so the prover itself must cut there, in every dimension.
 */
static void test_flat_cube(void **state)
{
    (void)state;
    write_json("spec.json",
               "{'format':'ferry.spec/1','tensors':[{'name':'m','shape':[4,2,2],'dtype':'u8'}],"
               "'source':{'mesh':[['dp',1]],'first_rank':2,'rules':[{'match':'m'}]},"
               "'destination':{'mesh':[['dp',2]],"
               "'rules':[{'match':'m','flat':{'axis':'dp','sizes':[5,11]}}]}}");
    writing w = {.n = 0};
    add_move(&w, "m", NULL, 2, 0, "[[0,1],[0,2],[0,2]]", "[[0,1],[0,2],[0,2]]", 4);
    add_move(&w, "m", NULL, 2, 0, "[[1,1],[0,1],[0,1]]", "[[1,1],[0,1],[0,1]]", 1);
    writing gap = w;
    add_move(&w, "m", NULL, 2, 1, "[[1,1],[0,1],[1,1]]", "[[1,1],[0,1],[1,1]]", 1);
    add_move(&w, "m", NULL, 2, 1, "[[1,1],[1,1],[0,2]]", "[[1,1],[1,1],[0,2]]", 2);
    add_move(&w, "m", NULL, 2, 1, "[[2,2],[0,2],[0,2]]", "[[2,2],[0,2],[0,2]]", 8);
    write_plan(&w, 3, 1);
    expect("flat cube", FERRY_OK, "");
    add_move(&gap, "m", NULL, 2, 1, "[[2,2],[0,2],[0,2]]", "[[2,2],[0,2],[0,2]]", 8);
    write_plan(&gap, 3, 1);
    expect("gap in a cube", FERRY_ERR_PROOF, "m [1:2|no move writes it on rank 1");
}

/* Stacked, fused and tied tensors, layers on stages, and a template with counts. */
static void test_sources(void **state)
{
    (void)state;
    write_json("spec.json",
               "{'format':'ferry.spec/1','tensors':["
               "{'name':'x.{0}.{1}','count':[2,2],'shape':[2,2],'dtype':'bf16'},"
               "{'name':'stack.{0}','count':[2],'shape':[2,2,2],'dtype':'bf16','source':["
               "{'tensor':'x.{0}.0','begin':[0,0],'shape':[2,2],'at':[0,0,0]},"
               "{'tensor':'x.{0}.1','begin':[0,0],'shape':[2,2],'at':[1,0,0]}]}],"
               "'source':{'mesh':[['pp',2]],'stages':[{'match':'x.{}.*','count':2,'axis':'pp'}],"
               "'rules':[{'match':'*'}]},"
               "'destination':{'mesh':[['ep',1],['tp',2]],'first_rank':2,"
               "'stages':[{'match':'stack.{}','sizes':[2],'axis':'ep'}],"
               "'rules':[{'match':'x*','skip':true},"
               "{'match':'*','shard':[{'dim':2,'axis':'tp'}]}]}}");
    writing w = {.n = 0};
    for (int to = 2; to < 4; to++) {
        const char *src = to == 2 ? "[[0,2],[0,1]]" : "[[0,2],[1,1]]";
        add_move(&w, "stack.0", "x.0.0", 0, to, src, "[[0,1],[0,2],[0,1]]", 4);
        add_move(&w, "stack.0", "x.0.1", 0, to, src, "[[1,1],[0,2],[0,1]]", 4);
        add_move(&w, "stack.1", "x.1.0", 1, to, src, "[[0,1],[0,2],[0,1]]", 4);
        writing swapped = w;
        add_move(&w, "stack.1", "x.1.1", 1, to, src, "[[1,1],[0,2],[0,1]]", 4);
        add_move(&swapped, "stack.1", "x.1.0", 1, to, src, "[[1,1],[0,2],[0,1]]", 4);
        write_plan(&swapped, 4, 6);
        expect("wrong expert", FERRY_ERR_PROOF, "stack.1|of x.1.1, but|of x.1.0 there");
    }
    write_plan(&w, 4, 6);
    expect("stack", FERRY_OK, "");
}

typedef struct half {
    const char *name;
    int rows;
    int columns;
    int sizes[2]; /* of the columns of ranks 0 and 1 */
    int failing;  /* the first move whose box is not on bytes; -1: none */
} half;

/* Two elements a byte: a box must not begin or end in the middle of one, in either shard. */
static const half halves[] = {
    {"all even", 2, 8, {4, 4}, -1},
    {"odd runs", 2, 6, {3, 3}, 0},
    {"odd rows at the source", 2, 5, {2, 3}, 0},
    {"one odd row", 1, 5, {2, 3}, 1},
};

static void test_half_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        const half *h = &halves[i];
        char text[600], words[64];
        snprintf(text, sizeof text,
                 "{'format':'ferry.spec/1','tensors':[{'name':'h','shape':[%d,%d],'dtype':'f4'}],"
                 "'source':{'mesh':[['tp',1]],'rules':[{'match':'*'}]},"
                 "'destination':{'mesh':[['tp',2]],'rules':[{'match':'*',"
                 "'shard':[{'dim':1,'axis':'tp','sizes':[%d,%d]}]}]}}",
                 h->rows, h->columns, h->sizes[0], h->sizes[1]);
        write_json("spec.json", text);
        writing w = {.n = 0};
        for (int to = 0; to < 2; to++) {
            char src[64], dst[64];
            snprintf(src, sizeof src, "[[0,%d],[%d,%d]]", h->rows, to * h->sizes[0], h->sizes[to]);
            snprintf(dst, sizeof dst, "[[0,%d],[0,%d]]", h->rows, h->sizes[to]);
            add_move(&w, "h", NULL, 0, to, src, dst, (uint64_t)(h->rows * h->sizes[to] / 2));
        }
        write_plan(&w, 2, 1);
        snprintf(words, sizeof words, "task %d: h|bytes", h->failing);
        expect(h->name, h->failing < 0 ? FERRY_OK : FERRY_ERR_PROOF, h->failing < 0 ? "" : words);
    }
}

/* An even number of elements from an odd one on. */
static void test_half_bytes_begin(void **state)
{
    (void)state;
    write_json("spec.json",
               "{'format':'ferry.spec/1','tensors':[{'name':'h','shape':[6],'dtype':'f4'}],"
               "'source':{'mesh':[['tp',1]],'rules':[{'match':'*'}]},"
               "'destination':{'mesh':[['tp',1]],'first_rank':1,'rules':[{'match':'*'}]}}");
    writing w = {.n = 0};
    add_move(&w, "h", NULL, 0, 1, "[[1,2]]", "[[1,2]]", 1);
    write_plan(&w, 2, 1);
    expect("odd begin", FERRY_ERR_PROOF, "task 0: h|do not start and end on bytes");
}

static void write_safetensors(const char *name, const char *header)
{
    char bytes[1024] = {0};
    size_t n = strlen(header);
    bytes[0] = (char)n; /* below 128 */
    memcpy(bytes + 8, header, n);
    for (size_t i = 8; i < 8 + n; i++) {
        bytes[i] = (char)(bytes[i] == '\'' ? '"' : bytes[i]);
    }
    write_bytes(name, bytes, 8 + n);
}

static const char model_spec[] = "{'format':'ferry.spec/1','model':'%s',"
                                 "'source':{'mesh':[['tp',1]],'rules':[{'match':'*'}]},"
                                 "'destination':{'mesh':[['tp',1]],'rules':[{'match':'*'}]}}";

static void write_model_spec(const char *path)
{
    char text[600];
    snprintf(text, sizeof text, model_spec, path);
    write_json("spec.json", text);
}

/* A file, an index and a folder; without "tensors" the order within a rank is free. */
static void test_model(void **state)
{
    (void)state;
    write_safetensors("model.safetensors",
                      "{'__metadata__':{'k':'v'},'s':{'dtype':'F32','shape':[],"
                      "'data_offsets':[0,4]}}");
    write_safetensors("part.safetensors",
                      "{'v':{'dtype':'F8_E4M3','shape':[3],'data_offsets':[0,3]}}");
    write_json("model.safetensors.index.json",
               "{'metadata':{'any':1},'weight_map':{'s':'model.safetensors',"
               "'v':'part.safetensors'}}");
    writing one = {.n = 0}, two = {.n = 0};
    add_move(&one, "s", NULL, 0, 0, "[]", "[]", 4);
    write_plan(&one, 1, 1);
    write_model_spec("model.safetensors");
    expect("a file", FERRY_OK, "");
    add_move(&two, "v", NULL, 0, 0, "[[0,3]]", "[[0,3]]", 3);
    add_move(&two, "s", NULL, 0, 0, "[]", "[]", 4);
    write_plan(&two, 1, 2);
    write_model_spec("model.safetensors.index.json");
    expect("an index", FERRY_OK, "");
    write_model_spec(".");
    expect("a folder", FERRY_OK, "");
    write_json("model.safetensors.index.json", "{'weight_map':{'s':'model.safetensors',"
                                               "'w':'part.safetensors'}}");
    expect("a wrong index", FERRY_ERR_INVALID_INPUT, "v|not placed in this file");
    write_safetensors("model.safetensors", "{'s':{'shape':[]}}");
    write_model_spec("model.safetensors");
    expect("no dtype", FERRY_ERR_INVALID_INPUT, "s|dtype");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),    cmocka_unit_test(test_flat_matrix),
        cmocka_unit_test(test_flat_cube),  cmocka_unit_test(test_sources),
        cmocka_unit_test(test_half_bytes), cmocka_unit_test(test_half_bytes_begin),
        cmocka_unit_test(test_crossing),   cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
