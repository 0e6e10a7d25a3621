/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Sides in boxes: what is refused, what calls make of them, and meshes written as boxes. */
#include "plan/shards.h"
#include "support/check.h"
#include "support/spec.h"

#include <ferry/ferry.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static ferry_error error;

#define HEAD                                                                                       \
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4,6],'dtype':'bf16'},"               \
    "{'name':'v','shape':[6],'dtype':'f32'},{'name':'h','shape':[2,4],'dtype':'f4'},"              \
    "{'name':'t','shape':[6],'dtype':'f32','source':'v'},"                                         \
    "{'name':'far','shape':[65536,65536,65536],'dtype':'u8'},"                                     \
    "{'name':'o','shape':[2],'dtype':'f32','only':'source'}],"                                     \
    "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':{'boxes':["
#define W "'elements':24,'holds':[{'tensor':'w','begin':[0,0],'shape':[4,6],'offset':0,'strides':"

typedef struct bad_row {
    const char *boxes; /* what stands in "boxes" */
    const char *sentence;
} bad_row;

static const bad_row bad_rows[] = {
    {"", "must have a parameter"},
    {"{'parameter':'p','elements':1,'holds':[]}", "must have either \"rank\" or \"ranks\""},
    {"{'rank':1,'ranks':[2],'parameter':'p','elements':1,'holds':[]}", "must have either"},
    {"{'ranks':[],'parameter':'p','elements':1,'holds':[]}", "must have a rank"},
    {"{'ranks':[3,1,3],'parameter':'p','elements':0,'dtype':'u8','holds':[]}",
     "the parameter \"p\" has rank 3 twice"},
    {"{'rank':1,'parameter':'','elements':0,'holds':[]}", "a parameter needs a name"},
    {"{'rank':1,'parameter':'p','elements':0,'holds':[]}", "neither a dtype nor a box"},
    {"{'rank':1,'parameter':'p'," W "[6]}]}", "strides has 1 numbers, but shape has 2"},
    {"{'rank':1,'parameter':'p'," W "[6,-1]}]}", "must be"},
    {"{'rank':1,'parameter':'p'," W "[6,0]}]}",
     "destination: parameter \"p\" of rank 1, box 0 (\"w\"): has the stride 0"},
    {"{'rank':1,'parameter':'p'," W "[6,1]}],'fill':[{'offset':3,'shape':[1],'strides':[1]}]}",
     "parameter \"p\" of rank 1: box 0 (\"w\") and fill 0 both give element 3"},
    {"{'rank':1,'parameter':'p'," W "[1,1]}]}", "box 0 (\"w\") gives element 1 of it twice"},
    {"{'rank':1,'parameter':'p'," W "[7,1]}]}",
     "reaches element 26 of the parameter, which has 24"},
    {"{'rank':1,'parameter':'p'," W "[9223372036854775807,1]}]}", "reaches further than 2^63"},
    {"{'rank':1,'parameter':'p','elements':24,'holds':[{'tensor':'w','begin':[1,0],'shape':[4,6],"
     "'offset':0,'strides':[6,1]}]}",
     "box 0 (\"w\"): reaches from 1 to 5 on dim 0 of the tensor, whose extent is 4"},
    {"{'rank':1,'parameter':'p','elements':24,'holds':[{'tensor':'w','begin':[0],'shape':[4],"
     "'offset':0,'strides':[6]}]}",
     "has 1 dimensions, but the tensor has 2"},
    {"{'rank':1,'parameter':'p','elements':24,'holds':[{'tensor':'x','begin':[0],'shape':[4],"
     "'offset':0,'strides':[6]}]}",
     "box 0 (\"x\"): there is no tensor of this name"},
    {"{'rank':1,'parameter':'p','elements':2,'holds':[{'tensor':'o','begin':[0],'shape':[2],"
     "'offset':0,'strides':[1]}]}",
     "box 0 (\"o\"): the tensor is \"only\" at the source"},
    {"{'rank':1,'parameter':'p','dtype':'f32'," W "[6,1]}]}",
     "box 0 (\"w\"): the tensor is bf16 and the parameter f32, which takes a cast from bf16 to "
     "f32: "
     "say \"cast\": \"round\", or \"saturate\""},
    {"{'rank':1,'parameter':'p','dtype':'i32','cast':'round'," W "[6,1]}]}",
     "takes a cast from bf16 to i32, which there is not: f32, f16, bf16, f8e4m3 and f8e5m2"},
    {"{'rank':1,'parameter':'p','dtype':'f64','cast':'saturate'," W "[6,1]}]}",
     "takes a cast from bf16 to f64, which there is not"},
    {"{'rank':1,'parameter':'p','dtype':'f32','cast':'up'," W "[6,1]}]}",
     "boxes[0].cast is \"up\"; there are \"round\", and \"saturate\""},
    {"{'rank':1,'parameter':'p','scale':2," W "[6,1]}]}",
     "boxes[0] has \"scale\", which needs \"cast\""},
    {"{'rank':1,'parameter':'p','add':0," W "[6,1]}]}",
     "boxes[0] has \"add\", which needs \"cast\""},
    {"{'rank':1,'parameter':'p','cast':'round','scale':0," W "[6,1]}]}",
     "boxes[0].scale is 0, or so small that it is 0 in f32"},
    {"{'rank':1,'parameter':'p','cast':'round','scale':1e39," W "[6,1]}]}",
     "boxes[0].scale is 9.9999999999999994e+38, which is too large for f32"},
    {"{'rank':1,'parameter':'p','cast':'round','add':'1'," W "[6,1]}]}",
     "boxes[0].add must be a number"},
    {"{'rank':1,'parameter':'p','quantize':{}," W "[6,1]}]}", "boxes[0].quantize lacks"},
    {"{'rank':1,'parameter':'p','dequantize':{}," W "[6,1]}]}",
     "boxes[0] dequantizes, and must say what to: \"dtype\" f32, f16 or bf16"},
    {"{'rank':1,'parameter':'p','dtype':'f32','dequantize':{}," W "[6,1]}]}",
     "boxes[0].dequantize lacks"},
    {"{'rank':1,'parameter':'p','dtype':'f32','dequantize':{'scale':'*.s','block':[2,2]}," W
     "[6,1]}]}",
     "parameter \"p\": \"w\" is bf16; codes that are dequantized are f8e4m3, f8e5m2 or f4"},
    {"{'rank':1,'parameter':'p','elements':24,'holds':[{'tensor':'w','begin':[0,0],'shape':[4,3],"
     "'offset':0,'strides':[6,1]}]}",
     "no box and no fill gives element 3 of it; say \"partial\""},
    {"{'rank':1,'parameter':'p','elements':72057594037927936,'holds':[{'tensor':'far','begin':[0,0,"
     "0],'shape':[65536,65536,65536],'offset':0,'strides':[68719607808,68719476737,68719476736]}]}",
     "boxes and fills give 281474976710656 of its 72057594037927936 elements; say \"partial\""},
    {"{'rank':1,'parameter':'p','elements':7,'holds':[{'tensor':'v','begin':[0],'shape':[3],"
     "'offset':0,'strides':[2]},{'tensor':'v','begin':[3],'shape':[3],'offset':3,'strides':[1]}]}",
     "box 0 (\"v\") and box 1 (\"v\") both give element 4"},
    {"{'rank':1,'parameter':'p','elements':6,'holds':[{'tensor':'v','begin':[0],'shape':[1],"
     "'offset':0,'strides':[1],'repeat':[{'count':0,'begin':[1],'offset':1}]}]}",
     "count must be"},
    {"{'rank':1,'parameter':'p','elements':6,'holds':[{'tensor':'v','begin':[0],'shape':[1],"
     "'offset':0,'strides':[1],'repeat':[{'count':7,'begin':[1],'offset':1}]}]}",
     "reaches from 0 to 7 on dim 0"},
    {"{'rank':1,'parameter':'p','elements':6,'holds':[{'tensor':'v','begin':[0],'shape':[1],"
     "'offset':0,'strides':[1],'repeat':[{'count':6,'begin':[1],'offset':0}]}]}",
     "has the stride 0 where its length, or the count of a repeat, is above 1"},
    {"{'rank':1,'parameter':'p','elements':6,'holds':[{'tensor':'v','begin':[0],'shape':[1],"
     "'offset':0,'strides':[1],'repeat':[{'count':9223372036854775807,'begin':[3],'offset':1}]}]}",
     "further than 64 bits"},
    {"{'rank':1,'parameter':'p','elements':6,'dtype':'f32','holds':[],'fill':[{'offset':0,"
     "'shape':[6],'strides':[1],'bits':'12'}]}",
     "fill 0: bits has 2 hex digits, but an element has 8"},
    {"{'rank':1,'parameter':'p','elements':6,'dtype':'f32','holds':[],'fill':[{'offset':0,"
     "'shape':[6],'strides':[1],'bits':'0000000G'}]}",
     "must be an element in hex digits"},
    {"{'rank':1,'parameter':'p','elements':2,'dtype':'bytes:12','holds':[],'fill':[{'offset':0,"
     "'shape':[2],'strides':[1]}]}",
     "elements that are filled may have up to 8 bytes"},
    {"{'rank':1,'parameter':'p','elements':8,'holds':[{'tensor':'h','begin':[0,0],'shape':[2,3],"
     "'offset':0,'strides':[4,1]}]}",
     "has elements of 4 bits and does not start and end on bytes"},
    {"{'rank':1,'parameter':'p'," W "[6,1]}]},{'ranks':[2,1],'parameter':'p'," W "[6,1]}]}",
     "destination: rank 1 has the parameter \"p\" twice"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_rows); i++) {
        char text[4096];
        ferry_spec *spec = NULL;
        snprintf(text, sizeof text, "%s%s]}}", HEAD, bad_rows[i].boxes);
        check_status(bad_rows[i].boxes, FERRY_ERR_INVALID_INPUT, try_spec(text, &spec, &error),
                     &error);
        check_says(bad_rows[i].boxes, bad_rows[i].sentence, &error);
    }
}

/* Errors that only a plan shows: of what is wanted, somebody must have each element. */
static void test_missing(void **state)
{
    static const struct {
        const char *source, *sentence;
    } rows[] = {
        {"{'rank':0,'parameter':'a','elements':18,'holds':[{'tensor':'w','begin':[1,0],'shape':"
         "[3,6],'offset':0,'strides':[6,1]}]}",
         "\"w\": rank 1 needs [0:1, 0:6] of source tensor \"w\", which no source rank has"},
        {"{'rank':0,'parameter':'a','elements':12,'holds':[{'tensor':'w','begin':[0,0],'shape':"
         "[2,4],'offset':0,'strides':[4,1]},{'tensor':'w','begin':[2,0],'shape':[2,2],'offset':8,"
         "'strides':[2,1]}]}",
         "destination tensor \"w\": rank 1 wants its element [0, 4], which no source rank has"},
        {"{'rank':0,'parameter':'a','elements':6,'holds':[{'tensor':'v','begin':[0],'shape':[6],"
         "'offset':0,'strides':[1]}]}",
         "destination tensor \"w\": rank 1 wants its element [0, 0], which no source rank has"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[4096];
        ferry_spec *spec = NULL;
        ferry_plan *plan = NULL;
        snprintf(text, sizeof text,
                 "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4,6],'dtype':'bf16'},"
                 "{'name':'v','shape':[6],'dtype':'bf16'}],'source':{'boxes':[%s]},"
                 "'destination':{'boxes':[{'rank':1,'parameter':'p'," W "[1,4]}]}]}}",
                 rows[i].source);
        must(try_spec(text, &spec, &error), &error);
        check_status(rows[i].sentence, FERRY_ERR_INVALID_PLAN,
                     ferry_plan_create(spec, NULL, &plan, &error), &error);
        check_says(rows[i].sentence, rows[i].sentence, &error);
        ferry_spec_destroy(spec);
    }
}

/* ---- a mesh as boxes ------------------------------------------------------------------------- */

typedef struct tracing {
    ferry_side *side;
    uint32_t rank;
    bool is_flat;
} tracing;

/* The shard of a tensor as a parameter of its name: one box for each combination of pieces. */
static ferry_status trace_shard(void *context, const ferry_shard *shard)
{
    tracing *t = context;
    uint64_t elements = 1, stride = 1;
    size_t at[FERRY_MAX_DIMS] = {0}, parameter;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    t->is_flat = t->is_flat || shard->is_flat;
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        elements *= shard->local[d];
    }
    if (elements == 0) {
        return FERRY_OK;
    }
    must(ferry_side_add_parameter(t->side, &t->rank, 1, shard->tensor, &shard->dtype, elements, 0,
                                  &parameter, &error),
         &error);
    box.tensor = shard->tensor;
    box.n_dims = shard->n_dims;
    for (uint32_t d = shard->n_dims; d-- > 0;) {
        box.strides[d] = stride;
        stride *= shard->local[d];
    }
    for (bool more = true; more;) {
        box.offset = 0;
        for (uint32_t d = 0; d < shard->n_dims; d++) {
            uint64_t local = 0;
            must(
                ferry_shard_piece_at(shard, d, at[d], &local, &box.begin[d], &box.shape[d], &error),
                &error);
            box.offset += local * box.strides[d];
        }
        must(ferry_side_add_box(t->side, parameter, &box, &error), &error);
        more = false;
        for (uint32_t d = shard->n_dims; d-- > 0 && !more;) {
            more = ++at[d] < ferry_shard_piece_count(shard, d);
            at[d] = more ? at[d] : 0;
        }
    }
    return FERRY_OK;
}

static ferry_side *trace(const ferry_plan *plan, ferry_side_role role, bool *is_flat)
{
    tracing t = {0};
    must(ferry_side_create(&t.side, &error), &error);
    for (t.rank = 0; t.rank < ferry_plan_rank_count(plan); t.rank++) {
        must(ferry_plan_visit_shards(plan, role, t.rank, trace_shard, &t, &error), &error);
    }
    *is_flat = *is_flat || t.is_flat;
    return t.side;
}

typedef struct move_list {
    ferry_move *moves;
    size_t n, capacity;
} move_list;

static ferry_status keep_move(void *context, const ferry_move *move)
{
    move_list *list = context;
    if (list->n == list->capacity) {
        list->capacity = list->capacity * 2 + 64;
        list->moves = realloc(list->moves, list->capacity * sizeof *list->moves);
        assert_non_null(list->moves);
    }
    list->moves[list->n++] = *move;
    return FERRY_OK;
}

static move_list list_moves(const ferry_plan *plan, uint32_t rank)
{
    move_list list = {0};
    must(ferry_plan_visit(plan, rank, keep_move, &list, NULL, &error), &error);
    return list;
}

/* That a move of boxes is that of a mesh, of which the parameters are shards. */
static void check_same(const char *name, const ferry_move *mesh, const ferry_move *boxes)
{
    check_row(name, mesh->task_id == boxes->task_id && mesh->from == boxes->from &&
                        mesh->to == boxes->to && mesh->bytes == boxes->bytes &&
                        strcmp(mesh->tensor, boxes->tensor) == 0);
    for (uint32_t d = 0; d < mesh->n_dims; d++) {
        check_row(name, mesh->length[d] == boxes->length[d]);
    }
    if (boxes->dst_parameter != NULL) {
        uint64_t offset = 0;
        check_row(name, strcmp(boxes->dst_parameter, boxes->tensor) == 0);
        for (uint32_t d = 0; d < mesh->n_dims; d++) {
            offset += boxes->length[d] > 1 ? mesh->dst_begin[d] * boxes->dst_strides[d] : 0;
        }
        check_row(name, offset <= boxes->dst_offset);
    }
}

static void compare_plans(const char *name, const ferry_plan *mesh, const ferry_plan *boxes)
{
    ferry_plan_totals wanted = FERRY_PLAN_TOTALS_INIT, have = FERRY_PLAN_TOTALS_INIT;
    must(ferry_plan_get_totals(mesh, &wanted, &error), &error);
    must(ferry_plan_get_totals(boxes, &have, &error), &error);
    check_row(name, wanted.n_moves == have.n_moves && wanted.moved_bytes == have.moved_bytes &&
                        wanted.local_bytes == have.local_bytes);
    for (uint32_t rank = 0; rank < ferry_plan_rank_count(mesh); rank++) {
        move_list a = list_moves(mesh, rank), b = list_moves(boxes, rank);
        check_row(name, a.n == b.n);
        for (size_t i = 0; i < a.n; i++) {
            check_same(name, &a.moves[i], &b.moves[i]);
        }
        free(a.moves);
        free(b.moves);
    }
}

static void test_mesh_as_boxes(void **state)
{
    static const char *const names[] = {"llama-tiny", "llama-3-70b", "mixtral-8x22b-ep"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[256];
        ferry_spec *spec = NULL;
        ferry_plan *plan = NULL;
        bool is_flat = false;
        snprintf(path, sizeof path, FERRY_EXAMPLES "/%s.json", names[i]);
        must(ferry_spec_load(path, &spec, &error), &error);
        must(ferry_plan_create(spec, NULL, &plan, &error), &error);
        ferry_side *source = trace(plan, FERRY_SIDE_SOURCE, &is_flat);
        ferry_side *destination = trace(plan, FERRY_SIDE_DESTINATION, &is_flat);
        check_row(names[i], !is_flat);
        for (int which = 1; which < 4; which++) {
            ferry_spec *made = NULL;
            ferry_plan *other = NULL;
            must(ferry_spec_create(spec, (which & 1) != 0 ? source : NULL,
                                   (which & 2) != 0 ? destination : NULL, &made, &error),
                 &error);
            must(ferry_plan_create(made, NULL, &other, &error), &error);
            compare_plans(names[i], plan, other);
            ferry_plan_destroy(other);
            ferry_spec_destroy(made);
        }
        ferry_side_destroy(source);
        ferry_side_destroy(destination);
        ferry_plan_destroy(plan);
        ferry_spec_destroy(spec);
    }
}

/* ---- by calls -------------------------------------------------------------------------------- */

enum { ROWS = 8, COLUMNS = 6, N_RANKS = 4 };
static const ferry_dtype bf16 = {FERRY_BF16, 16};
static const uint64_t shape[2] = {ROWS, COLUMNS};

/* A quarter each at the source; at the destination all, row by row, behind padding. */
static ferry_side *make_side(uint32_t rank, bool is_source, bool with_ranks)
{
    ferry_side *side = NULL;
    size_t parameter;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    const uint32_t *ranks = with_ranks ? &rank : NULL;
    const uint64_t pad[1] = {2}, one[1] = {1};
    const unsigned char bits[8] = {0x80, 0x3f, 9, 9}; /* what is behind says nothing */
    box.tensor = "w";
    box.n_dims = 2;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_tensor(side, "w", bf16, 2, shape, &error), &error);
    must(ferry_side_add_parameter(side, ranks, with_ranks ? 1 : 0, is_source ? "in" : "out", NULL,
                                  is_source ? ROWS / 2 * COLUMNS / 2 : ROWS * COLUMNS + 2, 0,
                                  &parameter, &error),
         &error);
    if (is_source) {
        box.begin[0] = rank / 2 * ROWS / 2;
        box.begin[1] = rank % 2 * COLUMNS / 2;
        box.shape[0] = ROWS / 2;
        box.shape[1] = COLUMNS / 2;
        box.strides[0] = COLUMNS / 2;
        box.strides[1] = 1;
    } else {
        box.shape[0] = 1; /* a row at a time */
        box.shape[1] = COLUMNS;
        box.offset = 2;
        box.strides[1] = 1;
        box.n_repeats = 1;
        box.repeats[0] = (ferry_side_repeat){.count = ROWS, .begin = {1, 0}, .offset = COLUMNS};
        must(ferry_side_add_fill(side, parameter, 1, 0, pad, one, bits, &error), &error);
    }
    must(ferry_side_add_box(side, parameter, &box, &error), &error);
    return side;
}

static ferry_status count_fill(void *context, const ferry_fill *fill)
{
    size_t *n = context;
    assert_int_equal(fill->offset, 0);
    assert_int_equal(fill->shape[0], 2);
    assert_int_equal(fill->bits[1], 0x3f);
    assert_int_equal(fill->bits[2], 0);
    assert_int_equal(fill->bytes, 4);
    ++*n;
    return FERRY_OK;
}

static ferry_status check_parameter(void *context, const ferry_shard *shard)
{
    size_t *n = context;
    assert_true(shard->is_parameter);
    assert_string_equal(shard->tensor, "out");
    assert_int_equal(shard->bytes, 2 * (ROWS * COLUMNS + 2));
    assert_int_equal(ferry_shard_piece_count(shard, 0), 0);
    ++*n;
    return FERRY_OK;
}

static void check_made(const ferry_plan *plan)
{
    size_t n_fills = 0, n_parameters = 0;
    move_list moves = list_moves(plan, FERRY_ALL_RANKS);
    assert_int_equal(moves.n, N_RANKS * N_RANKS); /* a quarter from each to each */
    for (size_t i = 0; i < moves.n; i++) {
        const ferry_move *move = &moves.moves[i];
        assert_string_equal(move->src_parameter, "in");
        assert_string_equal(move->dst_parameter, "out");
        assert_int_equal(move->src_offset, 0);
        assert_int_equal(move->dst_offset,
                         2 + move->from / 2 * (ROWS / 2) * COLUMNS + move->from % 2 * COLUMNS / 2);
        assert_int_equal(move->dst_strides[0], COLUMNS);
        assert_int_equal(move->dst_strides[1], 1);
        assert_int_equal(move->src_strides[0], COLUMNS / 2);
    }
    free(moves.moves);
    must(ferry_plan_visit_fills(plan, FERRY_ALL_RANKS, count_fill, &n_fills, &error), &error);
    assert_int_equal(n_fills, N_RANKS);
    must(ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, 1, check_parameter, &n_parameters,
                                 &error),
         &error);
    assert_int_equal(n_parameters, 1);
}

typedef struct meeting {
    pthread_barrier_t barrier;
    const void *bytes[N_RANKS];
    size_t lengths[N_RANKS];
} meeting;

typedef struct seat {
    meeting *at;
    uint32_t rank;
    const ferry_spec *base;
    ferry_spec *spec;
    ferry_status status;
    ferry_error error;
    bool is_wrong;      /* it tells a parameter with ranks */
    bool has_no_place;  /* for the spec */
    bool is_alike;      /* it has what rank 0 has */
    unsigned char *all; /* its own: others are ahead with the next call */
    size_t lengths[N_RANKS];
    size_t n_told;
} seat;

static int all_gather(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    seat *own = context;
    meeting *m = own->at;
    m->bytes[own->rank] = bytes;
    m->lengths[own->rank] = n_bytes;
    (void)pthread_barrier_wait(&m->barrier);
    size_t total = 0, used = 0;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        own->lengths[r] = m->lengths[r];
        total += m->lengths[r];
    }
    free(own->all);
    own->all = malloc(total + 1);
    for (uint32_t r = 0; own->all != NULL && r < N_RANKS; r++) {
        if (own->lengths[r] > 0) {
            memcpy(own->all + used, m->bytes[r], own->lengths[r]);
        }
        used += own->lengths[r];
    }
    own->n_told += n_bytes > 64; /* more than digests */
    (void)pthread_barrier_wait(&m->barrier);
    *all_out = own->all;
    *lengths_out = own->lengths;
    return own->all == NULL;
}

static void *sit(void *argument)
{
    seat *own = argument;
    ferry_exchange exchange = FERRY_EXCHANGE_INIT;
    ferry_side *source = make_side(own->is_alike ? 0 : own->rank, true, own->is_wrong);
    ferry_side *destination = make_side(own->rank, false, false);
    exchange.context = own;
    exchange.rank = own->rank;
    exchange.n_ranks = N_RANKS;
    exchange.all_gather = all_gather;
    own->status = ferry_spec_exchange(own->base, source, destination, &exchange,
                                      own->has_no_place ? NULL : &own->spec, &own->error);
    ferry_side_destroy(source);
    ferry_side_destroy(destination);
    return NULL;
}

static void meet_as(seat seats[N_RANKS], size_t *n_told_out)
{
    meeting m;
    memset(&m, 0, sizeof m);
    pthread_t threads[N_RANKS];
    assert_int_equal(pthread_barrier_init(&m.barrier, NULL, N_RANKS), 0);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        seats[r].at = &m;
        seats[r].rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, sit, &seats[r]), 0);
    }
    for (uint32_t r = 0; r < N_RANKS; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    }
    pthread_barrier_destroy(&m.barrier);
    *n_told_out = 0;
    for (uint32_t r = 0; r < N_RANKS; r++) {
        free(seats[r].all);
        *n_told_out += seats[r].n_told;
    }
}

static void meet(seat seats[N_RANKS], bool is_wrong, bool is_alike, size_t *n_told_out)
{
    for (uint32_t r = 0; r < N_RANKS; r++) {
        seats[r] = (seat){.is_wrong = is_wrong && r == 2, .is_alike = is_alike};
    }
    meet_as(seats, n_told_out);
}

static void test_exchange(void **state)
{
    seat seats[N_RANKS];
    char first[FERRY_DIGEST_BYTES], other[FERRY_DIGEST_BYTES];
    size_t n_told;
    (void)state;
    meet(seats, false, false, &n_told);
    assert_int_equal(n_told, N_RANKS);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        ferry_plan *plan = NULL;
        must(seats[r].status, &seats[r].error);
        must(ferry_plan_create(seats[r].spec, NULL, &plan, &error), &error);
        ferry_plan_digest(plan, r == 0 ? first : other, sizeof other);
        assert_string_equal(first, r == 0 ? first : other);
        check_made(plan);
        ferry_plan_destroy(plan);
        ferry_spec_destroy(seats[r].spec);
    }
    meet(seats, true, false, &n_told);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        check_status("ranks", FERRY_ERR_INVALID_INPUT, seats[r].status, &seats[r].error);
        check_says("ranks", "the parameter \"in\" has ranks", &seats[r].error);
    }
}

/* Sides as texts: what is written is read, and ranks may be left out. */
static void test_parsed(void **state)
{
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"[]", "a side: must be an object"},
        {"{\"boxes\":[],\"mesh\":[]}", "a side: "},
        {"{}", "boxes"},
        {"{\"boxes\":[{\"rank\":1,\"ranks\":[2],\"parameter\":\"p\",\"elements\":1,\"holds\":[]}]}",
         "must have either \"rank\" or \"ranks\""},
        {"{\"boxes\":[{\"parameter\":\"p\",\"elements\":1}]}", "holds"},
        {"{\"boxes\":", "a side: line 1"},
    };
    const char *own = "{\"boxes\":[{\"parameter\":\"p\",\"elements\":1,\"holds\":[]}]}";
    ferry_side *side = NULL, *made = make_side(0, true, true), *again = NULL;
    text_buffer first = {0}, second = {0};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        check_status(bad[i].text, FERRY_ERR_INVALID_INPUT,
                     ferry_side_parse(bad[i].text, strlen(bad[i].text), "a side", &side, &error),
                     &error);
        check_says(bad[i].text, bad[i].sentence, &error);
        assert_null(side);
    }
    assert_int_equal(ferry_side_parse(NULL, 0, "a side", &side, &error), FERRY_ERR_MISUSE);
    must(ferry_side_parse(own, strlen(own), "a side", &side, &error), &error);
    assert_int_equal(ferry_side_parameter_count(side), 1);
    assert_int_equal(ferry_side_write_json(side, text_write, &first, &error),
                     FERRY_ERR_INVALID_INPUT);
    must(ferry_side_write_json(made, text_write, &first, &error), &error);
    must(ferry_side_parse(first.bytes, strlen(first.bytes), "a side", &again, &error), &error);
    must(ferry_side_write_json(again, text_write, &second, &error), &error);
    assert_string_equal(first.bytes, second.bytes);
    free(first.bytes);
    free(second.bytes);
    ferry_side_destroy(side);
    ferry_side_destroy(made);
    ferry_side_destroy(again);
}

/* One rank's misuse is everybody's failure, and nobody waits. */
static void test_no_place(void **state)
{
    seat seats[N_RANKS] = {0};
    size_t n_told;
    (void)state;
    seats[1].has_no_place = true;
    meet_as(seats, &n_told);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        check_status("place", FERRY_ERR_MISUSE, seats[r].status, &seats[r].error);
        check_says("place", "a place for the spec, which rank 1 has not", &seats[r].error);
    }
}

static ferry_spec *make_base(const char *feed, uint64_t offset)
{
    char text[512];
    ferry_spec *parsed = NULL, *made = NULL;
    ferry_side *side = NULL;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    size_t parameter;
    snprintf(text, sizeof text,
             "{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[4],'dtype':'bf16'},"
             "{'name':'b','shape':[4],'dtype':'bf16'},"
             "{'name':'c','shape':[4],'dtype':'bf16','source':'%s'}],'source':{'mesh':[],'rules':"
             "[{'match':'*'}]},'destination':{'mesh':[],'rules':[{'match':'*'}]}}",
             feed);
    must(try_spec(text, &parsed, &error), &error);
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, &(uint32_t){0}, 1, "p", &bf16, 8, FERRY_PARAMETER_PARTIAL,
                                  &parameter, &error),
         &error);
    box.tensor = "c";
    box.n_dims = 1;
    box.shape[0] = 4;
    box.strides[0] = 1;
    box.offset = offset;
    must(ferry_side_add_box(side, parameter, &box, &error), &error);
    must(ferry_spec_create(parsed, NULL, side, &made, &error), &error);
    ferry_side_destroy(side);
    ferry_spec_destroy(parsed);
    return made;
}

/* Bases that differ in what a tensor is made of, or in boxes that calls have said. */
static void test_other_base(void **state)
{
    static const struct {
        const char *feed;
        uint64_t offset;
    } others[] = {{"a", 0}, {"b", 0}, {"a", 4}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        ferry_spec *base = make_base("a", 0), *other = make_base(others[i].feed, others[i].offset);
        seat seats[N_RANKS] = {0};
        size_t n_told;
        for (uint32_t r = 0; r < N_RANKS; r++) {
            seats[r].base = r == 3 ? other : base;
        }
        meet_as(seats, &n_told);
        for (uint32_t r = 0; r < N_RANKS; r++) {
            check_says("base",
                       i == 0 ? "there is no tensor of this name"
                              : "rank 3 makes the spec from another base than rank 0",
                       &seats[r].error);
        }
        ferry_spec_destroy(base);
        ferry_spec_destroy(other);
    }
}

/* What is alike is told by one; all have it. */
static void test_alike(void **state)
{
    seat seats[N_RANKS];
    size_t n_told;
    (void)state;
    meet(seats, false, true, &n_told);
    assert_int_equal(n_told, 1);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        text_buffer text = {0};
        must(seats[r].status, &seats[r].error);
        must(ferry_spec_write_json(seats[r].spec, text_write, &text, &error), &error);
        assert_non_null(strstr(text.bytes, "\"ranks\":[0,1,2,3],\"parameter\":\"in\""));
        free(text.bytes);
        ferry_spec_destroy(seats[r].spec);
    }
}

/* A spec that calls made is written, read, saved with its plan, and is the same. */
static void test_written(void **state)
{
    seat seats[N_RANKS];
    size_t n_told;
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES], path[64];
    text_buffer text = {0};
    ferry_spec *read = NULL;
    ferry_plan *plan = NULL, *again = NULL, *loaded = NULL;
    (void)state;
    meet(seats, false, false, &n_told);
    must(ferry_plan_create(seats[0].spec, NULL, &plan, &error), &error);
    must(ferry_spec_write_json(seats[0].spec, text_write, &text, &error), &error);
    must(ferry_spec_parse(text.bytes, strlen(text.bytes), "written", &read, &error), &error);
    must(ferry_plan_create(read, NULL, &again, &error), &error);
    snprintf(path, sizeof path, "/tmp/ferry-sides-%ld.plan", (long)getpid());
    must(ferry_plan_save(plan, path, &error), &error);
    must(ferry_plan_load(path, &loaded, &error), &error);
    unlink(path);
    ferry_plan_digest(plan, first, sizeof first);
    ferry_plan_digest(again, second, sizeof second);
    assert_string_equal(first, second);
    ferry_plan_digest(loaded, second, sizeof second);
    assert_string_equal(first, second);
    check_made(again);
    ferry_plan_destroy(plan);
    ferry_plan_destroy(again);
    ferry_plan_destroy(loaded);
    ferry_spec_destroy(read);
    free(text.bytes);
    for (uint32_t r = 0; r < N_RANKS; r++) {
        must(seats[r].status, &seats[r].error);
        ferry_spec_destroy(seats[r].spec);
    }
}

/* Half a byte and another cannot be told by one element. */
static void test_half_bytes(void **state)
{
    const ferry_dtype f4 = {FERRY_F4, 4};
    const uint32_t rank = 3;
    const uint64_t two = 2, one = 1;
    (void)state;
    for (unsigned char bits = 0x11; bits <= 0x12; bits++) {
        const unsigned char eight[8] = {bits};
        ferry_side *source = make_side(rank, true, true), *side = NULL;
        ferry_spec *spec = NULL;
        size_t parameter;
        must(ferry_side_create(&side, &error), &error);
        must(ferry_side_add_parameter(side, &rank, 1, "p", &f4, 2, 0, &parameter, &error), &error);
        must(ferry_side_add_fill(side, parameter, 1, 0, &two, &one, eight, &error), &error);
        ferry_status status = ferry_spec_create(NULL, source, side, &spec, &error);
        assert_int_equal(status, bits == 0x11 ? FERRY_OK : FERRY_ERR_INVALID_INPUT);
        if (status != FERRY_OK) {
            check_says("f4", "\"p\" of rank 3, fill 0: elements of 4 bits are filled two by two",
                       &error);
        }
        ferry_spec_destroy(spec);
        ferry_side_destroy(source);
        ferry_side_destroy(side);
    }
}

/* w, or a part of it, as the calls say it. */
static void add_w(ferry_side *side, const uint32_t *rank, const ferry_dtype *dtype,
                  const char *name, uint64_t rows)
{
    size_t parameter;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    box.tensor = "w";
    box.n_dims = 2;
    box.shape[0] = rows;
    box.shape[1] = box.strides[0] = 6;
    box.strides[1] = 1;
    must(ferry_side_add_parameter(side, rank, rank == NULL ? 0 : 1, name, dtype, 6 * rows, 0,
                                  &parameter, &error),
         &error);
    must(ferry_side_add_box(side, parameter, &box, &error), &error);
}

typedef struct cast_move {
    const char *parameter;
    uint32_t travels, wanted;
    bool is_cast, at_receiver;
    uint64_t bytes;
} cast_move;

/* By the parameters of rank 3, in their order. */
static const cast_move cast_moves[] = {
    {"plain", FERRY_BF16, FERRY_BF16, false, false, 48},
    {"wide", FERRY_BF16, FERRY_F32, true, true, 48},
    {"narrow", FERRY_F8E4M3, FERRY_F8E4M3, true, false, 24},
    {"part", FERRY_F8E4M3, FERRY_F8E4M3, true, false, 12},
    {"twice", FERRY_F8E4M3, FERRY_F8E4M3, true, false, 24},
    {"scaled", FERRY_BF16, FERRY_BF16, true, false, 48},
    {"same", FERRY_BF16, FERRY_BF16, false, false, 48},
};

static ferry_status check_cast_move(void *context, const ferry_move *move)
{
    size_t *n = context;
    assert_true(*n < COUNT_OF(cast_moves));
    const cast_move *wanted = &cast_moves[(*n)++];
    check_row(wanted->parameter, strcmp(move->dst_parameter, wanted->parameter) == 0);
    check_row(wanted->parameter, move->src_dtype.kind == FERRY_BF16);
    check_row(wanted->parameter, move->dtype.kind == wanted->travels);
    check_row(wanted->parameter, move->dst_dtype.kind == wanted->wanted);
    check_row(wanted->parameter, move->bytes == wanted->bytes);
    check_row(wanted->parameter, (move->conversion != NULL) == wanted->is_cast);
    if (move->conversion != NULL) {
        check_row(wanted->parameter, move->conversion->kind == FERRY_CONVERSION_CAST);
        check_row(wanted->parameter, move->conversion->at_receiver == wanted->at_receiver);
    }
    return FERRY_OK;
}

static ferry_side *make_casts(const uint32_t *rank)
{
    const ferry_dtype f32 = {FERRY_F32, 32}, f8 = {FERRY_F8E4M3, 8};
    const ferry_dtype *const dtypes[] = {NULL, &f32, &f8, &f8, &f8, NULL, NULL};
    ferry_side *side = NULL;
    must(ferry_side_create(&side, &error), &error);
    for (size_t p = 0; p < COUNT_OF(cast_moves); p++) {
        add_w(side, rank, dtypes[p], cast_moves[p].parameter, p == 3 ? 2 : 4);
        if (p > 0) {
            must(ferry_side_set_cast(side, p, p == 4, p == 5 ? 2 : 1, 0, &error), &error);
        }
    }
    return side;
}

static ferry_side *make_whole(const uint32_t *rank)
{
    const uint64_t of_w[2] = {4, 6};
    ferry_side *side = NULL;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_tensor(side, "w", bf16, 2, of_w, &error), &error);
    add_w(side, rank, NULL, "in", 4);
    return side;
}

static void digest_of(const ferry_spec *spec, char digest[FERRY_DIGEST_BYTES])
{
    ferry_plan *plan = NULL;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    ferry_plan_digest(plan, digest, FERRY_DIGEST_BYTES);
    ferry_plan_destroy(plan);
}

static const uint32_t three = 3;

/* One tensor, wanted by one rank in many ways: each parameter gets it as it says. */
static void test_casts(void **state)
{
    ferry_side *source = make_whole(&three), *side = make_casts(&three);
    ferry_spec *spec = NULL, *read = NULL;
    ferry_plan *plan = NULL;
    text_buffer text = {0};
    size_t n = 0;
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    (void)state;
    must(ferry_spec_create(NULL, source, side, &spec, &error), &error);
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    must(ferry_plan_visit(plan, 3, check_cast_move, &n, NULL, &error), &error);
    assert_int_equal(n, COUNT_OF(cast_moves));
    ferry_plan_totals totals = FERRY_PLAN_TOTALS_INIT;
    uint64_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(cast_moves); i++) {
        bytes += cast_moves[i].bytes;
    }
    must(ferry_plan_get_totals(plan, &totals, &error), &error);
    assert_int_equal(totals.local_bytes, bytes); /* all on one rank */
    must(ferry_spec_write_json(spec, text_write, &text, &error), &error);
    must(ferry_spec_parse(text.bytes, strlen(text.bytes), "written", &read, &error), &error);
    digest_of(spec, first);
    digest_of(read, second);
    assert_string_equal(first, second);
    ferry_spec_destroy(read);
    ferry_spec_destroy(spec);
    /* Another number is another plan; one that changes nothing is not. */
    must(ferry_side_set_cast(side, 5, false, 2, -0.0F, &error), &error);
    must(ferry_spec_create(NULL, source, side, &spec, &error), &error);
    digest_of(spec, second);
    assert_string_equal(first, second);
    ferry_spec_destroy(spec);
    must(ferry_side_set_cast(side, 5, false, 4, 0, &error), &error);
    must(ferry_spec_create(NULL, source, side, &spec, &error), &error);
    digest_of(spec, second);
    assert_string_not_equal(first, second);
    ferry_spec_destroy(spec);
    ferry_plan_destroy(plan);
    free(text.bytes);
    ferry_side_destroy(source);
    ferry_side_destroy(side);
}

/* A world of one rank: what it says is what all say. */
static int gather_alone(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                        const size_t **lengths_out)
{
    *(size_t *)context = n_bytes;
    *all_out = bytes;
    *lengths_out = context;
    return 0;
}

/* Casts that a rank tells the others are those that it said. */
static void test_told_casts(void **state)
{
    const uint32_t zero = 0;
    ferry_side *source = make_whole(&zero), *side = make_casts(&zero);
    ferry_side *own_source = make_whole(NULL), *own = make_casts(NULL);
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    ferry_spec *spec = NULL, *told = NULL;
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    size_t length = 0;
    (void)state;
    alone.context = &length;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    must(ferry_spec_create(NULL, source, side, &spec, &error), &error);
    must(ferry_spec_exchange(NULL, own_source, own, &alone, &told, &error), &error);
    digest_of(spec, first);
    digest_of(told, second);
    assert_string_equal(first, second);
    ferry_spec_destroy(spec);
    ferry_spec_destroy(told);
    ferry_side_destroy(source);
    ferry_side_destroy(side);
    ferry_side_destroy(own_source);
    ferry_side_destroy(own);
}

#define QUANTIZED(ranks)                                                                           \
    "{'boxes':[{" ranks "'parameter':'w','elements':24,'quantize':{'format':'f8e5m2','block':"     \
    "[2,3],'scale_kind':'cover','scale':'*.s'},'holds':[{'tensor':'w','begin':[0,0],'shape':"      \
    "[4,6],'offset':0,'strides':[6,1]}]},{" ranks "'parameter':'s','elements':4,'holds':["         \
    "{'tensor':'w.s','begin':[0,0],'shape':[2,2],'offset':0,'strides':[1,2]}]}]}"
#define ON_MESH                                                                                    \
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4,6],'dtype':'bf16'}],"              \
    "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':"

/* So is a quantization; its scales are no tensors of the text that is written. */
static void test_told_blocks(void **state)
{
    char base_text[] = ON_MESH "{'mesh':[],'rules':[{'match':'*'}]}}";
    char full_text[] = ON_MESH QUANTIZED("'rank':0,") "}";
    char side_text[] = QUANTIZED("");
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    ferry_spec *base = NULL, *full = NULL, *told = NULL, *again = NULL;
    ferry_side *side = NULL;
    text_buffer text = {0};
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    size_t length = 0;
    (void)state;
    unquote(side_text);
    must(try_spec(base_text, &base, &error), &error);
    must(try_spec(full_text, &full, &error), &error);
    must(ferry_side_parse(side_text, strlen(side_text), "side", &side, &error), &error);
    alone.context = &length;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    must(ferry_spec_exchange(base, NULL, side, &alone, &told, &error), &error);
    digest_of(full, first);
    digest_of(told, second);
    assert_string_equal(first, second);
    must(ferry_spec_write_json(told, text_write, &text, &error), &error);
    must(ferry_spec_parse(text.bytes, strlen(text.bytes), "told", &again, &error), &error);
    digest_of(again, second);
    assert_string_equal(first, second);
    /* Another destination than the one that asked for them has no scales. */
    ferry_spec_destroy(told);
    ferry_side_destroy(side);
    side = make_casts(&three);
    must(ferry_spec_create(full, NULL, side, &told, &error), &error);
    assert_int_equal(ferry_spec_tensor_count(full), 2);
    assert_int_equal(ferry_spec_tensor_count(told), 1);
    digest_of(told, second);
    free(text.bytes);
    ferry_spec_destroy(again);
    ferry_spec_destroy(told);
    ferry_spec_destroy(full);
    ferry_spec_destroy(base);
    ferry_side_destroy(side);
}

/* Parameters p of codes, and q of whole boxes of their scales, said by calls. */
static ferry_side *make_quantized(const ferry_quantization *quantization)
{
    const uint64_t of_scales[2] = {2, 2};
    const uint32_t zero = 0;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    ferry_side *side = NULL;
    size_t p = 0;
    must(ferry_side_create(&side, &error), &error);
    add_w(side, &zero, NULL, "w", 4);
    must(ferry_side_set_cast(side, 0, true, 2, 0, &error), &error);
    must(ferry_side_set_quantize(side, 0, quantization, &error), &error);
    must(ferry_side_add_parameter(side, &zero, 1, "s", NULL, 4, 0, &p, &error), &error);
    box.tensor = "w.s";
    box.n_dims = 2;
    memcpy(box.shape, of_scales, sizeof of_scales);
    box.strides[0] = 1;
    box.strides[1] = 2;
    must(ferry_side_add_box(side, p, &box, &error), &error);
    return side;
}

static const ferry_quantization wide_codes = {.struct_size = sizeof(ferry_quantization),
                                              .code_dtype = {FERRY_F8E5M2, 8},
                                              .scale_dtype = {FERRY_F32, 32},
                                              .block = {2, 3},
                                              .scale = "*.s",
                                              .scale_rule = 1};

/* By calls, and by a text. A cast that comes later takes its place, as it took that of one. */
static void test_quantize(void **state)
{
    char base_text[] = ON_MESH "{'mesh':[],'rules':[{'match':'*'}]}}";
    char full_text[] = ON_MESH QUANTIZED("'rank':0,") "}";
    ferry_spec *base = NULL, *full = NULL, *made = NULL;
    ferry_side *side = make_quantized(&wide_codes);
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    (void)state;
    must(try_spec(base_text, &base, &error), &error);
    must(try_spec(full_text, &full, &error), &error);
    must(ferry_spec_create(base, NULL, side, &made, &error), &error);
    digest_of(full, first);
    digest_of(made, second);
    assert_string_equal(first, second);
    ferry_spec_destroy(made);
    must(ferry_side_set_cast(side, 0, true, 2, 0, &error), &error);
    assert_int_equal(ferry_spec_create(base, NULL, side, &made, &error), FERRY_ERR_INVALID_INPUT);
    check_says("a cast", "\"w.s\"", &error); /* nobody makes it now */
    ferry_side_destroy(side);
    ferry_spec_destroy(full);
    ferry_spec_destroy(base);
}

#define F4_ON_MESH                                                                                 \
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4,6],'dtype':'bf16'},"               \
    "{'name':'w.g','shape':[],'dtype':'f32'},{'name':'w.h','shape':[],'dtype':'f32'}],"            \
    "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':"
#define F4_BOXES(given)                                                                            \
    "{'boxes':[{'rank':0,'parameter':'w','elements':24,'quantize':{'format':'nvfp4','scale':'*.s'" \
    ",'tensor_scale':'" given "'},'holds':[{'tensor':'w','begin':[0,0],'shape':[4,6],'offset':0,"  \
    "'strides':[6,1]}]}]}"

/* The side of the first text in place of the spec's, told by its rank; then written and read. */
static void tell(const ferry_spec *base, const ferry_side *side, char digest[FERRY_DIGEST_BYTES])
{
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    ferry_spec *told = NULL, *again = NULL;
    text_buffer text = {0};
    size_t length = 0;
    alone.context = &length;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    must(ferry_spec_exchange(base, NULL, side, &alone, &told, &error), &error);
    must(ferry_spec_write_json(told, text_write, &text, &error), &error);
    must(ferry_spec_parse(text.bytes, strlen(text.bytes), "told", &again, &error), &error);
    digest_of(again, digest);
    free(text.bytes);
    ferry_spec_destroy(again);
    ferry_spec_destroy(told);
}

/* By calls, and by a text; by another scale of the matrix it is another plan. */
static void test_f4(void **state)
{
    char full_text[] = F4_ON_MESH F4_BOXES("*.g") "}";
    char other_text[] = F4_ON_MESH F4_BOXES("*.h") "}";
    ferry_quantization f4 = FERRY_QUANTIZATION_INIT;
    ferry_spec *full = NULL, *other = NULL;
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    const char *given[] = {"*.g", "w.h"};
    ferry_spec **specs[] = {&full, &other};
    (void)state;
    must(try_spec(full_text, &full, &error), &error);
    must(try_spec(other_text, &other, &error), &error);
    f4.code_dtype = (ferry_dtype){FERRY_F4, 4};
    f4.scale_dtype = (ferry_dtype){FERRY_F8E4M3, 8};
    f4.block[0] = 1;
    f4.block[1] = 16;
    f4.scale = "*.s";
    for (size_t i = 0; i < COUNT_OF(given); i++) { /* in place of the other one's destination */
        ferry_side *side = NULL;
        ferry_side_box box = FERRY_SIDE_BOX_INIT;
        size_t p;
        must(ferry_side_create(&side, &error), &error);
        must(ferry_side_add_parameter(side, NULL, 0, "w", NULL, 24, 0, &p, &error), &error);
        box.tensor = "w";
        box.n_dims = 2;
        box.shape[0] = 4;
        box.shape[1] = 6;
        box.strides[0] = 6;
        box.strides[1] = 1;
        must(ferry_side_add_box(side, p, &box, &error), &error);
        f4.tensor_scale = given[i];
        must(ferry_side_set_quantize(side, p, &f4, &error), &error);
        tell(*specs[1 - i], side, second);
        digest_of(*specs[i], first);
        assert_string_equal(first, second);
        ferry_side_destroy(side);
    }
    digest_of(full, second);
    assert_string_not_equal(first, second);
    ferry_spec_destroy(full);
    ferry_spec_destroy(other);
}

/*
 * Codes that ranks make, in boxes of one row of blocks and of two in turn; of the last block there
 * is but one row. The first n_scales rows of blocks have boxes of scales, one for each. Gaps
 * between boxes, and scales that go backwards, keep them apart.
 */
enum { BLOCK_ROWS = 15, VALUE_ROWS = 29 };

static size_t write_rows(char *text, size_t size, uint32_t rank, unsigned n_codes,
                         unsigned n_scales)
{
    size_t n = (size_t)snprintf(text, size,
                                "{'rank':%u,'parameter':'c','elements':200,'partial':true,"
                                "'quantize':{'format':'f8e4m3','block':[2,6],'scale':'*.s'},"
                                "'holds':[",
                                rank);
    for (unsigned at = 0, high = 1; at < n_codes; at += high, high = 3 - high) {
        unsigned rows = 2 * (at + high) <= VALUE_ROWS ? 2 * high : VALUE_ROWS - 2 * at;
        n += (size_t)snprintf(text + n, size - n,
                              "%s{'tensor':'w','begin':[%u,0],'shape':[%u,6],'offset':%u,"
                              "'strides':[6,1]}",
                              at == 0 ? "" : ",", 2 * at, rows, 12 * at + (2 * at + 1) / 3);
    }
    n += (size_t)snprintf(text + n, size - n,
                          "]},{'rank':%u,'parameter':'s','elements':30,'partial':true,'holds':[",
                          rank);
    for (unsigned at = 0; at < n_scales; at++) {
        n += (size_t)snprintf(text + n, size - n,
                              "%s{'tensor':'w.s','begin':[%u,0],'shape':[1,1],'offset':%u,"
                              "'strides':[1,1]}",
                              at == 0 ? "" : ",", at, VALUE_ROWS - 1 - 2 * at);
    }
    return n + (size_t)snprintf(text + n, size - n, "]}");
}

static ferry_status plan_rows(uint32_t n_ranks, uint32_t n_lost, unsigned n_codes,
                              unsigned n_scales, ferry_plan **plan_out)
{
    char text[8000];
    const uint32_t lost[] = {0};
    ferry_spec *spec = NULL;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    size_t n = (size_t)snprintf(
        text, sizeof text,
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[29,6],'dtype':'f32'}],'source':"
        "{'mesh':[['r',2]],'first_rank':4,'rules':[{'match':'*','shard':[{'dim':0,'axis':'r',"
        "'sizes':[13,16]}]}]},'destination':{'boxes':[");
    for (uint32_t r = 0; r < n_ranks; r++) {
        n += (size_t)snprintf(text + n, sizeof text - n, r == 0 ? "" : ",");
        n += write_rows(text + n, sizeof text - n, r, n_codes, n_scales);
    }
    snprintf(text + n, sizeof text - n, "]}}");
    must(try_spec(text, &spec, &error), &error);
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost;
    ferry_status status = ferry_plan_create(spec, &options, plan_out, &error);
    ferry_spec_destroy(spec);
    return status;
}

typedef struct made_rows {
    uint64_t n_codes, n_scales; /* rows that are stored, and blocks that have a scale */
} made_rows;

static ferry_status count_made(void *context, const fy_made_codes *made)
{
    made_rows *rows = context;
    assert_int_equal(made->shape[1], 6);
    rows->n_codes += made->stores_codes ? made->shape[0] : 0;
    if (made->scales.name != NULL) {
        uint64_t begin = VALUE_ROWS - 1 - made->scales.offset, left = VALUE_ROWS - begin;
        assert_int_equal(made->shape[0], left < 2 ? left : 2);
        assert_int_equal(made->codes.offset, 6 * begin + (begin + 1) / 3);
        rows->n_scales++;
    }
    return FERRY_OK;
}

static ferry_status count_work(void *context, const ferry_block_work *work)
{
    uint64_t *bytes = context;
    assert_string_equal(work->tensor, "w");
    assert_true(work->at_receiver && !work->dequantizes);
    bytes[work->rank] += work->staging_bytes;
    return FERRY_OK;
}

static void check_work(const ferry_plan *plan)
{
    uint64_t bytes[6] = {0};
    must(ferry_plan_visit_block_work(plan, count_work, bytes, &error), &error);
    for (size_t r = 0; r < COUNT_OF(bytes); r++) {
        assert_int_equal(bytes[r], r == 0 ? VALUE_ROWS * 6 * sizeof(float) : 0);
    }
    assert_int_equal(ferry_plan_visit_block_work(NULL, count_work, bytes, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_plan_visit_block_work(plan, NULL, bytes, &error), FERRY_ERR_MISUSE);
}

static void test_made_codes(void **state)
{
    static const char words[] = "\"s\" of rank %u has the scale [3, 0]";
    ferry_plan *plan = NULL;
    made_rows rows = {0};
    char says[80];
    (void)state;
    must(plan_rows(1, 0, BLOCK_ROWS, BLOCK_ROWS, &plan), &error);
    must(fy_plan_visit_made(plan, 0, count_made, &rows, &error), &error);
    assert_int_equal(rows.n_codes, VALUE_ROWS);
    assert_int_equal(rows.n_scales, BLOCK_ROWS);
    check_work(plan);
    ferry_plan_destroy(plan);
    plan = NULL;
    for (uint32_t n_lost = 0; n_lost < 2; n_lost++) { /* both ranks want the same */
        snprintf(says, sizeof says, words, n_lost);
        check_status(says, FERRY_ERR_INVALID_PLAN, plan_rows(2, n_lost, 2, 4, &plan), &error);
        check_says(says, says, &error);
    }
}

static void test_bad_quantize(void **state)
{
    static const struct {
        ferry_quantization given;
        const char *says;
    } rows[] = {
        {{.code_dtype = {FERRY_BF16, 16}}, "codes of the type bf16"},
        {{.code_dtype = {FERRY_F8E4M3, 4}}, "codes of the type"},
        {{.code_dtype = {FERRY_F4, 4}}, "codes of the type f4; these are nvfp4"},
        {{.code_dtype = {FERRY_F4, 4}, .scale_dtype = {FERRY_F8E4M3, 8}, .block = {1, 16}},
         "codes of the type f4 without a tensor_scale"},
        {{.code_dtype = {FERRY_F4, 4},
          .scale_dtype = {FERRY_F8E4M3, 8},
          .block = {1, 16},
          .tensor_scale = "*"},
         "codes of the type f4 without a tensor_scale"},
        {{.code_dtype = {FERRY_F4, 4},
          .scale_dtype = {FERRY_F8E4M3, 8},
          .block = {1, 32},
          .tensor_scale = "*.g"},
         "of blocks of 1 x 16"},
        {{.tensor_scale = "*.g"}, "a tensor_scale \"*.g\", which only codes of f4 take"},
        {{.scale_dtype = {FERRY_F16, 16}}, "scales of the type f16"},
        {{.scale_dtype = {FERRY_F8E8M0, 8}}, "scales by rule 0"},
        {{.scale_rule = 3}, "scales by rule 3"},
        {{.block = {0, 1}}, "blocks of 0 rows and 1 columns"},
        {{.block = {1, UINT64_C(1) << 31}}, "blocks of 1 rows and 2147483648 columns"},
        {{.scale = ""}, "scales that are called \"\""},
        {{.scale = "*"}, "scales that are called \"*\""},
        {{.scale = "a*b*"}, "scales that are called \"a*b*\""},
    };
    ferry_side *side = make_whole(&three);
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_quantization given = rows[i].given;
        given.struct_size = sizeof given;
        given.code_dtype = given.code_dtype.kind == 0 ? wide_codes.code_dtype : given.code_dtype;
        given.scale_dtype =
            given.scale_dtype.kind == 0 ? wide_codes.scale_dtype : given.scale_dtype;
        given.scale = given.scale == NULL ? "*.s" : given.scale;
        if (given.block[1] == 0) {
            given.block[0] = given.block[1] = 2;
        }
        assert_int_equal(ferry_side_set_quantize(side, 0, &given, &error), FERRY_ERR_INVALID_INPUT);
        check_says(rows[i].says, rows[i].says, &error);
        check_says(rows[i].says, "the parameter \"in\" has", &error);
    }
    ferry_quantization nameless = wide_codes;
    nameless.scale = NULL;
    assert_int_equal(ferry_side_set_quantize(side, 0, &nameless, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_quantize(side, 0, NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_quantize(side, 1, &wide_codes, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_quantize(NULL, 0, &wide_codes, &error), FERRY_ERR_MISUSE);
    ferry_side_destroy(side);
}

static void test_bad_casts(void **state)
{
    static const float bad[][2] = {{0, 0},         {-0.0F, 1}, {INFINITY, 0},
                                   {1, -INFINITY}, {NAN, 0},   {1, NAN}};
    ferry_side *source = make_whole(&three), *side = make_casts(&three);
    ferry_spec *spec = NULL;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(ferry_side_set_cast(side, 1, false, bad[i][0], bad[i][1], &error),
                         FERRY_ERR_INVALID_INPUT);
        check_says("number", "the parameter \"wide\" has a cast with the scale", &error);
    }
    assert_int_equal(ferry_side_set_cast(side, 7, false, 1, 0, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_cast(NULL, 0, false, 1, 0, &error), FERRY_ERR_MISUSE);
    must(ferry_side_set_cast(source, 0, false, 1, 0, &error), &error);
    assert_int_equal(ferry_spec_create(NULL, source, side, &spec, &error), FERRY_ERR_INVALID_INPUT);
    check_says("source", "source: parameter \"in\" of rank 3: says a cast, but a source", &error);
    ferry_side_destroy(source);
    ferry_side_destroy(side);
}

/* A shape has as many elements, is written and read, and no plan depends on it. */
static void test_shapes(void **state)
{
    static const uint64_t huge[] = {1ull << 32, 1ull << 32, 10};
    static const uint64_t wraps[] = {3, (1ull << 63) + 1, 2}, zero[] = {0, UINT64_MAX};
    static const uint64_t good[] = {2, 3}, bad[] = {3, 3}, ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 6};
    const uint32_t rank = 1;
    const ferry_dtype u8 = {.kind = FERRY_U8, .element_bits = 8};
    ferry_side *side = NULL;
    size_t six, none, one;
    text_buffer text = {0};
    (void)state;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, &rank, 1, "six", &u8, 6, FERRY_PARAMETER_PARTIAL, &six,
                                  &error),
         &error);
    must(ferry_side_add_parameter(side, &rank, 1, "none", &u8, 0, 0, &none, &error), &error);
    must(ferry_side_add_parameter(side, &rank, 1, "one", &u8, 1, FERRY_PARAMETER_PARTIAL, &one,
                                  &error),
         &error);
    assert_int_equal(ferry_side_set_shape(side, six, 2, bad, &error), FERRY_ERR_INVALID_INPUT);
    check_says("more", "the parameter \"six\" has 6 elements, but its shape has 9", &error);
    assert_int_equal(ferry_side_set_shape(side, six, 3, huge, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_set_shape(side, six, 3, wraps, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_set_shape(side, six, 9, ones, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_set_shape(side, six, 0, NULL, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_set_shape(side, 3, 2, good, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_shape(NULL, six, 2, good, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_shape(side, six, 2, NULL, &error), FERRY_ERR_MISUSE);
    must(ferry_side_set_shape(side, six, 2, good, &error), &error);
    must(ferry_side_set_shape(side, none, 1, zero, &error), &error);
    must(ferry_side_set_shape(side, one, 0, NULL, &error), &error);
    must(ferry_side_write_json(side, text_write, &text, &error), &error);
    assert_non_null(strstr(text.bytes, "\"elements\":6,\"shape\":[2,3]"));
    assert_non_null(strstr(text.bytes, "\"elements\":0,\"shape\":[0]"));
    assert_non_null(strstr(text.bytes, "\"elements\":1,\"shape\":[]"));
    text_cleanup(&text);
    ferry_side_destroy(side);
}

static void test_calls(void **state)
{
    ferry_side *side = make_side(3, true, true), *own = make_side(3, false, false);
    ferry_spec *spec = NULL;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    const uint64_t other[2] = {2, 2};
    const uint32_t twice[] = {4, 4};
    size_t parameter;
    text_buffer text = {0};
    (void)state;
    assert_int_equal(ferry_side_parameter_count(side), 1);
    assert_int_equal(ferry_side_parameter_count(NULL), 0);
    assert_int_equal(ferry_side_add_tensor(side, "w", bf16, 2, other, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("shape", "was added with another shape or type", &error);
    assert_int_equal(ferry_side_add_box(side, 7, &box, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_add_box(side, 0, &box, &error), FERRY_ERR_MISUSE);
    box.tensor = "w";
    box.n_repeats = 5;
    assert_int_equal(ferry_side_add_box(side, 0, &box, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_add_parameter(side, twice, 2, "p", NULL, 1, 0, &parameter, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_side_add_parameter(side, twice, 1, "p", NULL, 1, 8, &parameter, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_write_json(own, text_write, &text, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("own", "tell each other what they have first", &error);
    assert_int_equal(ferry_spec_create(NULL, side, own, &spec, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_spec_create(NULL, side, NULL, &spec, &error), FERRY_ERR_MISUSE);
    must(ferry_side_write_json(side, text_write, &text, &error), &error);
    assert_non_null(strstr(text.bytes, "\"parameter\":\"in\""));
    free(text.bytes);
    ferry_side_destroy(side);
    ferry_side_destroy(own);
    ferry_side_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),           cmocka_unit_test(test_missing),
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_mesh_as_boxes), cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_no_place),      cmocka_unit_test(test_parsed),
        cmocka_unit_test(test_other_base),    cmocka_unit_test(test_alike),
        cmocka_unit_test(test_written),       cmocka_unit_test(test_half_bytes),
        cmocka_unit_test(test_casts),         cmocka_unit_test(test_bad_casts),
        cmocka_unit_test(test_quantize),      cmocka_unit_test(test_f4),
        cmocka_unit_test(test_made_codes),    cmocka_unit_test(test_bad_quantize),
        cmocka_unit_test(test_told_casts),    cmocka_unit_test(test_told_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
