/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Parameters of a side in boxes that dequantize: what comes beside them, and how it is said. */
#include "plan/shards.h"
#include "support/check.h"
#include "support/spec.h"

#include <ferry/ferry.h>
#include <ferry/shard.h>
#include <ferry/side.h>

#include <stdlib.h>

static ferry_error error;

/*
 * Of c, 3 x 8 x 10 in blocks of 3 x 4, the parameter w has the inner rows of two planes, set down
 * row by row behind each other, and a part of another plane; and of b, whose name comes first
 * though it is said last, some columns. Ranks 1 and 2 have it.
 */
#define HEAD                                                                                       \
    "{'format':'ferry.spec/1','tensors':[{'name':'c','shape':[3,8,10],'dtype':'f8e4m3'},"          \
    "{'name':'b','shape':[6,6],'dtype':'f8e5m2'},{'name':'c.s','shape':[3,3,3],'dtype':'f32'},"    \
    "{'name':'b.s','shape':[2,2],'dtype':'f32'}],"                                                 \
    "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':"
#define BOX_W                                                                                      \
    "{%s'parameter':'w','dtype':'bf16','elements':74,'dequantize':{'block':[3,4],'scale':'*.s'},"  \
    "'holds':[{'tensor':'c','begin':[0,2,3],'shape':[2,1,4],'offset':0,'strides':[4,1,1],"         \
    "'repeat':[{'count':4,'begin':[0,1,0],'offset':8}]},"                                          \
    "{'tensor':'c','begin':[2,2,3],'shape':[1,1,1],'offset':32,'strides':[1,1,1]},"                \
    "{'tensor':'b','begin':[0,4],'shape':[6,2],'offset':33,'strides':[1,6]}],"                     \
    "'fill':[{'offset':45,'shape':[29],'strides':[1],'bits':'3f80'}]}"

/* Scales: of 3 planes, 2 rows and 2 columns of blocks, and of 2 rows and 1 column. */
enum { ELEMENTS = 74, N_VALUES = 45, OF_C = 12, N_SCALES = OF_C + 2 };
static const uint32_t owners[] = {1, 2};

static ferry_spec *spec_with(const char *ranks)
{
    char box[1200], text[3000];
    ferry_spec *spec = NULL;
    snprintf(box, sizeof box, BOX_W, ranks);
    snprintf(text, sizeof text, HEAD "{'boxes':[%s]}}", box);
    must(try_spec(text, &spec, &error), &error);
    return spec;
}

static ferry_spec *full_spec(void)
{
    return spec_with("'ranks':[1,2],");
}

static void digest_of(const ferry_spec *spec, char digest[FERRY_DIGEST_BYTES])
{
    ferry_plan *plan = NULL;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    ferry_plan_digest(plan, digest, FERRY_DIGEST_BYTES);
    ferry_plan_destroy(plan);
}

static void expect_same_plan(const ferry_spec *a, const ferry_spec *b)
{
    char first[FERRY_DIGEST_BYTES], second[FERRY_DIGEST_BYTES];
    digest_of(a, first);
    digest_of(b, second);
    assert_string_equal(first, second);
}

/* What each place of the two memories is: a tensor's letter and an index, in one number. */
typedef struct places {
    uint64_t values[ELEMENTS], of_values[ELEMENTS]; /* their codes, and where their scales lie */
    uint64_t products[ELEMENTS];                    /* the same by what the service is told */
    uint64_t scales[N_SCALES];
    uint64_t n_values, n_scales, n_products;
} places;

static uint64_t name_element(const char *tensor, const uint64_t *index, uint32_t n_dims)
{
    uint64_t name = (uint64_t)tensor[0];
    for (uint32_t d = 0; d < n_dims; d++) {
        name = name * 100 + index[d];
    }
    return name;
}

static bool advance(uint64_t *index, const uint64_t *shape, uint32_t n_dims)
{
    for (uint32_t d = n_dims; d-- > 0;) {
        if (++index[d] < shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

static ferry_status note_box(void *context, const ferry_held_box *box)
{
    places *all = context;
    uint64_t index[FERRY_MAX_DIMS] = {0};
    bool is_scales = strcmp(box->parameter, "w:scales") == 0;
    assert_true(is_scales == (box->scales == NULL));
    do {
        uint64_t at = box->offset, scale = box->scales_offset, global[FERRY_MAX_DIMS];
        for (uint32_t d = 0; d < box->n_dims; d++) {
            uint64_t block = is_scales || d + 2 < box->n_dims ? 1 : d + 1 < box->n_dims ? 3 : 4;
            at += index[d] * box->strides[d];
            global[d] = box->begin[d] + index[d];
            scale += (global[d] / block - box->begin[d] / block) * box->scales_strides[d];
        }
        if (is_scales) {
            assert_string_equal(box->tensor + 1, ":scales");
            all->scales[at] = name_element(box->tensor, global, box->n_dims);
            all->n_scales++;
        } else {
            assert_string_equal(box->scales, "w:scales");
            all->values[at] = name_element(box->tensor, global, box->n_dims);
            all->of_values[at] = scale;
            all->n_values++;
        }
    } while (advance(index, box->shape, box->n_dims));
    return FERRY_OK;
}

static ferry_status note_product(void *context, const fy_product_box *box)
{
    places *all = context;
    uint64_t index[FERRY_MAX_DIMS] = {0};
    assert_string_equal(box->parameter, "w");
    assert_string_equal(box->scales, "w:scales");
    do {
        uint64_t at = box->offset, scale = box->scales_offset;
        for (uint32_t d = 0; d < box->n_dims; d++) {
            uint32_t inner = d + 2 < box->n_dims ? 2 : d + 2 - box->n_dims;
            uint64_t blocks = inner == 2 ? index[d] : (box->origin[inner] + index[d]) / (3 + inner);
            at += index[d] * box->strides[d];
            scale += blocks * box->scales_strides[d];
        }
        all->products[at] = scale;
        all->n_products++;
    } while (advance(index, box->shape, box->n_dims));
    return FERRY_OK;
}

/* Of each code the scale of its block, wherever both lie. */
static void test_places(void **state)
{
    static const uint64_t blocks[2] = {3, 4};
    ferry_spec *spec = full_spec();
    ferry_plan *plan = NULL;
    (void)state;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    for (size_t r = 0; r < COUNT_OF(owners); r++) {
        places all = {.n_values = 0};
        must(ferry_plan_visit_held_boxes(plan, FERRY_SIDE_DESTINATION, owners[r], note_box, &all,
                                         &error),
             &error);
        must(fy_plan_visit_products(plan, owners[r], note_product, &all, &error), &error);
        assert_int_equal(all.n_values, N_VALUES);
        assert_int_equal(all.n_products, all.n_values);
        assert_int_equal(all.n_scales, N_SCALES);
        for (uint64_t i = 0; i < all.n_values; i++) {
            uint64_t code = all.values[i], column = code % 100, row = code / 100 % 100;
            uint64_t wanted = (code / 10000 * 100 + row / blocks[0]) * 100 + column / blocks[1];
            check_at(all.of_values[i] < N_SCALES && all.scales[all.of_values[i]] == wanted,
                     "element %llu", (unsigned long long)i);
            check_at(all.products[i] == all.of_values[i], "element %llu", (unsigned long long)i);
        }
    }
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

typedef struct counted {
    uint64_t n, bytes;
    const char *name, *values;
} counted;

static ferry_status count_shard(void *context, const ferry_shard *shard)
{
    counted *c = context;
    assert_true(shard->is_parameter);
    c->n++;
    c->bytes += shard->bytes;
    c->name = shard->tensor;
    c->values = shard->values;
    return FERRY_OK;
}

static ferry_status count_work(void *context, const ferry_block_work *work)
{
    counted *c = context;
    assert_true(work->at_receiver && work->dequantizes && work->rank - 1 < 2);
    c->n++;
    c->bytes += work->staging_bytes;
    return FERRY_OK;
}

/* What the caller has is w; the service has what is beside it, which is told apart. */
static void test_what_is_beside(void **state)
{
    ferry_spec *spec = full_spec();
    ferry_plan *plan = NULL;
    (void)state;
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    for (uint32_t rank = 0; rank < 3; rank++) {
        counted shards = {.n = 0}, staged = {.n = 0};
        must(ferry_plan_visit_shards(plan, FERRY_SIDE_DESTINATION, rank, count_shard, &shards,
                                     &error),
             &error);
        must(ferry_plan_visit_staged(plan, rank, count_shard, &staged, &error), &error);
        assert_int_equal(shards.n, rank > 0);
        assert_int_equal(staged.n, rank > 0);
        if (rank > 0) {
            assert_string_equal(shards.name, "w");
            assert_null(shards.values);
            assert_int_equal(shards.bytes, ELEMENTS * 2);
            assert_string_equal(staged.name, "w:scales");
            assert_string_equal(staged.values, "w");
            assert_int_equal(staged.bytes, N_SCALES * sizeof(float));
        }
    }
    counted work = {.n = 0};
    must(ferry_plan_visit_block_work(plan, count_work, &work, &error), &error);
    assert_int_equal(work.n, 4);
    assert_int_equal(work.bytes, 2 * N_SCALES * sizeof(float));
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

static void test_subset(void **state)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    ferry_spec *spec = full_spec();
    ferry_plan *plan = NULL;
    places all = {.n_values = 0};
    (void)state;
    options.subset = "b";
    must(ferry_plan_create(spec, &options, &plan, &error), &error);
    must(fy_plan_visit_products(plan, 1, note_product, &all, &error), &error);
    assert_int_equal(all.n_products, 12);
    ferry_plan_destroy(plan);
    options.subset = "c";
    counted work = {.n = 0};
    must(ferry_plan_create(spec, &options, &plan, &error), &error);
    must(ferry_plan_visit_block_work(plan, count_work, &work, &error), &error);
    assert_int_equal(work.bytes, 2 * OF_C * sizeof(float));
    ferry_plan_destroy(plan);
    options.subset = "b:scales";
    assert_int_equal(ferry_plan_create(spec, &options, &plan, &error), FERRY_ERR_INVALID_PLAN);
    check_says("scales alone", "moves and copies nothing", &error);
    ferry_spec_destroy(spec);
}

/* Ranks that have some rows of scales, and some columns: no product of splits has both. */
static void test_subset_of_regions(void **state)
{
    static const char text[] =
        "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[8,10],'dtype':'f8e4m3'},"
        "{'name':'w.s','shape':[3,3],'dtype':'f32'},{'name':'x','shape':[4],'dtype':'u8'}],"
        "'source':{'mesh':[],'rules':[{'match':'*'}]},'destination':{'boxes':["
        "{'rank':1,'parameter':'p','dtype':'f32','elements':60,'dequantize':{'block':[3,4],"
        "'scale':'*.s'},'holds':[{'tensor':'w','begin':[0,0],'shape':[6,10],'offset':0,"
        "'strides':[10,1]}]},"
        "{'rank':2,'parameter':'q','dtype':'f16','elements':64,'dequantize':{'block':[3,4],"
        "'scale':'*.s'},'holds':[{'tensor':'w','begin':[0,0],'shape':[8,8],'offset':0,"
        "'strides':[8,1]}]}]}}";
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    counted work = {.n = 0};
    (void)state;
    options.subset = "w";
    must(try_spec(text, &spec, &error), &error);
    must(ferry_plan_create(spec, &options, &plan, &error), &error);
    must(ferry_plan_visit_block_work(plan, count_work, &work, &error), &error);
    assert_int_equal(work.n, 2);
    assert_int_equal(work.bytes, (2 * 3 + 3 * 2) * sizeof(float));
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
}

static void add_box(ferry_side *side, const char *tensor, uint32_t n_dims, const uint64_t *numbers,
                    uint64_t offset, uint64_t count)
{
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    box.tensor = tensor;
    box.n_dims = n_dims;
    box.offset = offset;
    memcpy(box.begin, numbers, n_dims * sizeof *numbers);
    memcpy(box.shape, numbers + n_dims, n_dims * sizeof *numbers);
    memcpy(box.strides, numbers + 2 * (size_t)n_dims, n_dims * sizeof *numbers);
    if (count > 1) {
        box.n_repeats = 1;
        box.repeats[0] = (ferry_side_repeat){.count = count, .begin = {0, 1, 0}, .offset = 8};
    }
    must(ferry_side_add_box(side, 0, &box, &error), &error);
}

/* The same parameter by calls; n_ranks 0: it is the caller's own. */
static ferry_side *make_side(size_t n_ranks)
{
    static const uint64_t planes[] = {0, 2, 3, 2, 1, 4, 4, 1, 1};
    static const uint64_t corner[] = {2, 2, 3, 1, 1, 1, 1, 1, 1}, columns[] = {0, 4, 6, 2, 1, 6};
    static const uint64_t fill[] = {29, 1}, block[2] = {3, 4};
    static const unsigned char one[8] = {0x80, 0x3f};
    const ferry_dtype bf16 = {FERRY_BF16, 16};
    ferry_side *side = NULL;
    size_t number = 0;
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, owners, n_ranks, "w", &bf16, ELEMENTS, 0, &number, &error),
         &error);
    must(ferry_side_set_cast(side, 0, true, 2, 0, &error), &error);
    must(ferry_side_set_dequantize(side, 0, "*.s", block, &error), &error);
    add_box(side, "c", 3, planes, 0, 4);
    add_box(side, "c", 3, corner, 32, 1);
    add_box(side, "b", 2, columns, 33, 1);
    must(ferry_side_add_fill(side, 0, 1, 45, fill, fill + 1, one, &error), &error);
    return side;
}

static ferry_spec *base_spec(void)
{
    ferry_spec *base = NULL;
    must(try_spec(HEAD "{'mesh':[],'rules':[{'match':'*'}]}}", &base, &error), &error);
    return base;
}

/* By calls, as text, and with another source: it is the same, and what is beside it never shows. */
static void test_in_other_words(void **state)
{
    ferry_spec *full = full_spec(), *base = base_spec(), *made = NULL, *again = NULL;
    ferry_side *side = make_side(2);
    text_buffer text = {0}, of_side = {0};
    (void)state;
    must(ferry_spec_create(base, NULL, side, &made, &error), &error);
    expect_same_plan(full, made);
    must(ferry_spec_write_json(made, text_write, &text, &error), &error);
    assert_null(strstr(text.bytes, ":scales"));
    must(ferry_spec_parse(text.bytes, strlen(text.bytes), "made", &again, &error), &error);
    expect_same_plan(full, again);
    ferry_spec_destroy(again);
    must(ferry_side_write_json(side, text_write, &of_side, &error), &error);
    assert_non_null(strstr(of_side.bytes, "\"dequantize\":{\"block\":[3,4],\"scale\":\"*.s\"}"));
    must(ferry_spec_create(made, NULL, NULL, &again, &error), &error); /* a copy of a copy */
    expect_same_plan(full, again);
    ferry_spec_destroy(again);
    /* What comes later takes its place. */
    must(ferry_side_set_cast(side, 0, true, 1, 0, &error), &error);
    must(ferry_spec_create(made, NULL, side, &again, &error), &error);
    assert_int_equal(ferry_spec_tensor_count(again), 4);
    ferry_spec_destroy(again);
    free(text.bytes);
    free(of_side.bytes);
    ferry_side_destroy(side);
    ferry_spec_destroy(made);
    ferry_spec_destroy(base);
    ferry_spec_destroy(full);
}

/* A world of one rank: what it says is what all say. */
static int gather_alone(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                        const size_t **lengths_out)
{
    static size_t length;
    (void)context;
    length = n_bytes;
    *all_out = bytes;
    *lengths_out = &length;
    return 0;
}

static void test_exchange(void **state)
{
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    ferry_spec *base = base_spec(), *told = NULL, *said = spec_with("'rank':0,");
    ferry_side *side = make_side(0);
    (void)state;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    must(ferry_spec_exchange(base, NULL, side, &alone, &told, &error), &error);
    expect_same_plan(said, told);
    ferry_spec_destroy(told);
    ferry_spec_destroy(said);
    ferry_spec_destroy(base);
    ferry_side_destroy(side);
}

static void test_misuse(void **state)
{
    static const struct {
        const char *scale;
        uint64_t block[2];
        const char *says;
    } rows[] = {
        {"*.s", {0, 1}, "blocks of 0 rows and 1 columns"},
        {"*.s", {1, UINT64_C(1) << 31}, "blocks of 1 rows and 2147483648 columns"},
        {"", {1, 1}, "scales that are called \"\""},
        {"*", {1, 1}, "for that of the codes"},
        {"a*b*", {1, 1}, "scales that are called \"a*b*\""},
    };
    static const uint64_t block[2] = {1, 1};
    const ferry_dtype codes = {FERRY_F8E4M3, 8};
    ferry_side *side = make_side(2);
    size_t number = 0;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_status(rows[i].says, FERRY_ERR_INVALID_INPUT,
                     ferry_side_set_dequantize(side, 0, rows[i].scale, rows[i].block, &error),
                     &error);
        check_says(rows[i].says, rows[i].says, &error);
        check_says(rows[i].says, "the parameter \"w\" has", &error);
    }
    must(ferry_side_add_parameter(side, owners, 1, "q", &codes, 1, 0, &number, &error), &error);
    assert_int_equal(ferry_side_set_dequantize(side, number, "*.s", block, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("codes of codes", "\"q\" is dequantized, and must be added with the type", &error);
    assert_int_equal(ferry_side_set_dequantize(side, 7, "*.s", block, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_dequantize(side, 0, NULL, block, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_dequantize(side, 0, "*.s", NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_side_set_dequantize(NULL, 0, "*.s", block, &error), FERRY_ERR_MISUSE);
    ferry_side_destroy(side);
}

/*
 * Codes and scales of two tensors each, which meet between blocks: of the first one there are two
 * boxes, which meet within a block and are one part all the same.
 */
static void test_boxes_of_one_part(void **state)
{
#define BOX_OF(tensor, begin, rows, columns, at)                                                   \
    "{'tensor':'" tensor "','begin':[" begin ",0],'shape':[" rows "," columns "],'at':[" at ",0]}"
    static const char text[] =
        "{'format':'ferry.spec/1','tensors':["
        "{'name':'p','shape':[6,8],'dtype':'f8e4m3','only':'source'},"
        "{'name':'q','shape':[3,8],'dtype':'f8e4m3','only':'source'},"
        "{'name':'p.s','shape':[2,2],'dtype':'f32','only':'source'},"
        "{'name':'q.s','shape':[1,2],'dtype':'f32','only':'source'},"
        "{'name':'c','shape':[9,8],'dtype':'f8e4m3','source':[" BOX_OF(
            "p", "0", "%u", "8",
            "0") "," BOX_OF("p", "%u", "%u", "8",
                            "%u") "," BOX_OF("q", "0", "3", "8",
                                             "6") "]},"
                                                  "{'name':'c.s','shape':[3,2],'dtype':'f32','"
                                                  "source':[" BOX_OF(
                                                      "p.s", "0", "2", "2",
                                                      "0") "," BOX_OF("q.s", "0", "1", "2",
                                                                      "2") "]}],"
                                                                           "'source':{'mesh':[],'"
                                                                           "rules':[{'match':'*'}]}"
                                                                           ",'destination':{'mesh':"
                                                                           "[],'rules':["
                                                                           "{'match':'c','dtype':'"
                                                                           "f32','dequantize':{'"
                                                                           "block':[3,4],'scale':'*"
                                                                           ".s'}},"
                                                                           "{'match':'*','skip':"
                                                                           "true}]}}";
    (void)state;
    for (unsigned cut = 1; cut < 6; cut++) {
        char whole[2000];
        ferry_spec *spec = NULL;
        snprintf(whole, sizeof whole, text, cut, cut, 6 - cut, cut);
        must(try_spec(whole, &spec, &error), &error);
        ferry_spec_destroy(spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),         cmocka_unit_test(test_what_is_beside),
        cmocka_unit_test(test_subset),         cmocka_unit_test(test_subset_of_regions),
        cmocka_unit_test(test_in_other_words), cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_misuse),         cmocka_unit_test(test_boxes_of_one_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
