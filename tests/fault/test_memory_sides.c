/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Sides in boxes when memory runs out: as text, by calls, exchanged, planned, visited, written. */
#include "steps.h"

#include "support/spec.h"

#include <ferry/side.h>

#include <stdio.h>

/*
 * Replicas that overlap unevenly, a tensor that is wanted twice and cast in two ways, an interleave
 * with a repeat that is written out, fills, a stack, many boxes of one tensor, and codes that
 * become values.
 */
static const char text[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[12,4],'dtype':'bf16'},"
    "{'name':'v','shape':[24],'dtype':'u8'},{'name':'e.{0}','count':[2],'shape':[6],'dtype':'u8'},"
    "{'name':'s','shape':[2,6],'dtype':'u8','source':[{'tensor':'e.0','begin':[0],'shape':[6],"
    "'at':[0,0]},{'tensor':'e.1','begin':[0],'shape':[6],'at':[1,0]}]},"
    "{'name':'c','shape':[4,6],'dtype':'f8e4m3'},{'name':'c.s','shape':[2,2],'dtype':'f32'}],"
    "'source':{'boxes':["
    "{'ranks':[0,1],'parameter':'a','elements':32,'holds':[{'tensor':'w','begin':[0,0],'shape':"
    "[8,4],'offset':0,'strides':[4,1]}]},"
    "{'ranks':[1,2],'parameter':'b','elements':32,'holds':[{'tensor':'w','begin':[4,0],'shape':"
    "[8,4],'offset':0,'strides':[1,8]}]},"
    "{'rank':2,'parameter':'c','elements':50,'holds':[{'tensor':'v','begin':[0],'shape':[1],"
    "'offset':0,'strides':[1],'repeat':[{'count':12,'begin':[2],'offset':4}]},"
    "{'tensor':'v','begin':[1],'shape':[1],'offset':1,'strides':[1],'repeat':[{'count':12,"
    "'begin':[2],'offset':4}]}]},"
    "{'ranks':[0,2],'parameter':'e','elements':12,'holds':[{'tensor':'e.0','begin':[0],'shape':"
    "[6],'offset':0,'strides':[2]},{'tensor':'e.1','begin':[0],'shape':[6],'offset':1,'strides':"
    "[2]}]},"
    "{'rank':2,'parameter':'f','elements':24,'holds':[{'tensor':'c','begin':[0,0],'shape':[4,6],"
    "'offset':0,'strides':[6,1]}]},"
    "{'rank':0,'parameter':'g','elements':4,'holds':[{'tensor':'c.s','begin':[0,0],'shape':[2,2],"
    "'offset':0,'strides':[2,1]}]}]},"
    "'destination':{'boxes':["
    "{'ranks':[3,1],'parameter':'p','elements':52,'holds':[{'tensor':'w','begin':[0,0],'shape':"
    "[12,4],'offset':0,'strides':[1,12]}],'fill':[{'offset':48,'shape':[4],'strides':[1]}]},"
    "{'rank':3,'parameter':'q','elements':24,'holds':[{'tensor':'w','begin':[2,1],'shape':[8,3],"
    "'offset':0,'strides':[3,1]}]},"
    "{'ranks':[1,4],'parameter':'r','dtype':'f32','cast':'round','elements':48,'holds':[{'tensor':"
    "'w','begin':[0,0],'shape':[12,4],'offset':0,'strides':[4,1]}]},"
    "{'rank':4,'parameter':'t','dtype':'f8e4m3','cast':'saturate','scale':2,'add':1,'elements':24,"
    "'holds':[{'tensor':'w','begin':[2,1],'shape':[8,3],'offset':0,'strides':[3,1]}]},"
    "{'rank':4,'parameter':'v','elements':36,'holds':[{'tensor':'v','begin':[0],'shape':[24],"
    "'offset':0,'strides':[1]},{'tensor':'s','begin':[0,0],'shape':[2,6],'offset':24,'strides':"
    "[6,1]}]},"
    "{'ranks':[3,4],'parameter':'x','dtype':'bf16','dequantize':{'block':[2,3],'scale':'*.s'},"
    "'elements':18,'holds':[{'tensor':'c','begin':[1,0],'shape':[1,6],'offset':0,'strides':[18,1],"
    "'repeat':[{'count':3,'begin':[1,0],'offset':6}]}]}]}}";

typedef struct scene {
    char unquoted[sizeof text];
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_side *side; /* without ranks */
    ferry_side *made_side;
    ferry_spec *made_spec;
    ferry_plan *made_plan;
} scene;

static const ferry_dtype u8 = {FERRY_U8, 8};

static ferry_status fill_side(ferry_side *side, ferry_error *error)
{
    const uint64_t shape[2] = {4, 6}, pad[1] = {2}, one[1] = {1};
    ferry_quantization codes = FERRY_QUANTIZATION_INIT;
    ferry_side_box box = FERRY_SIDE_BOX_INIT;
    size_t parameter = 0, second = 0;
    codes.code_dtype = (ferry_dtype){FERRY_F8E4M3, 8};
    codes.scale_dtype = (ferry_dtype){FERRY_F32, 32};
    codes.block[0] = codes.block[1] = 2;
    codes.scale = "*.s";
    box.tensor = "x";
    box.n_dims = 2;
    box.shape[0] = 4;
    box.shape[1] = 6;
    box.strides[0] = 1;
    box.strides[1] = 4;
    ferry_status status = ferry_side_add_tensor(side, "x", u8, 2, shape, error);
    if (status == FERRY_OK) {
        status = ferry_side_add_parameter(side, NULL, 0, "p", &u8, 26, 0, &parameter, error);
    }
    if (status == FERRY_OK) {
        status = ferry_side_set_quantize(side, parameter, &codes, error);
    }
    if (status == FERRY_OK) {
        const ferry_dtype bf16 = {FERRY_BF16, 16};
        status = ferry_side_add_parameter(side, NULL, 0, "z", &bf16, 0, 0, &second, error);
    }
    if (status == FERRY_OK) {
        status = ferry_side_set_dequantize(side, second, "*.s", codes.block, error);
    }
    if (status == FERRY_OK) { /* in its place */
        status = ferry_side_set_cast(side, parameter, true, 1, 0, error);
    }
    if (status == FERRY_OK) {
        status = ferry_side_add_box(side, parameter, &box, error);
    }
    if (status == FERRY_OK) {
        status = ferry_side_add_fill(side, parameter, 1, 24, pad, one, NULL, error);
    }
    return status;
}

static int make_scene(void **state)
{
    static scene s;
    ferry_error error;
    memcpy(s.unquoted, text, sizeof text);
    unquote(s.unquoted);
    must(ferry_spec_parse(s.unquoted, strlen(s.unquoted), "spec", &s.spec, &error), &error);
    must(ferry_plan_create(s.spec, NULL, &s.plan, &error), &error);
    must(ferry_side_create(&s.side, &error), &error);
    must(fill_side(s.side, &error), &error);
    *state = &s;
    return 0;
}

static int remove_scene(void **state)
{
    scene *s = *state;
    ferry_plan_destroy(s->plan);
    ferry_spec_destroy(s->spec);
    ferry_side_destroy(s->side);
    return 0;
}

static ferry_status parse(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_spec_parse(s->unquoted, strlen(s->unquoted), "spec", &s->made_spec, error);
}

static ferry_status create_balanced(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_create(s->spec, NULL, &s->made_plan, error);
}

static ferry_status create_seed(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = FERRY_REPLICA_SEED;
    return ferry_plan_create(s->spec, &options, &s->made_plan, error);
}

static ferry_status make_side(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_side *side = NULL;
    ferry_status status = ferry_side_create(&side, error);
    if (status == FERRY_OK) {
        status = fill_side(side, error);
    }
    if (status == FERRY_OK) {
        s->made_side = side;
        return FERRY_OK;
    }
    ferry_side_destroy(side);
    return status;
}

static ferry_status copy_spec(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_spec_create(s->spec, NULL, NULL, &s->made_spec, error);
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

static ferry_status exchange(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    return ferry_spec_exchange(NULL, s->side, NULL, &alone, &s->made_spec, error);
}

static ferry_status exchange_both(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    alone.n_ranks = 1;
    alone.all_gather = gather_alone;
    return ferry_spec_exchange(s->spec, NULL, NULL, &alone, &s->made_spec, error);
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    if (s->made_plan != NULL) {
        text_buffer printed = print_plan(s->made_plan);
        text_append(out, printed.bytes, printed.used);
        text_cleanup(&printed);
    }
    text_printf(out, "side %zu, spec %zu\n", ferry_side_parameter_count(s->made_side),
                ferry_spec_tensor_count(s->made_spec));
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_plan_destroy(s->made_plan);
    ferry_spec_destroy(s->made_spec);
    ferry_side_destroy(s->made_side);
    s->made_plan = NULL;
    s->made_spec = NULL;
    s->made_side = NULL;
}

static const step steps[] = {
    {"parse", parse, describe_scene, give_back, FERRY_OK},
    {"plan, balanced", create_balanced, describe_scene, give_back, FERRY_OK},
    {"plan, seed", create_seed, describe_scene, give_back, FERRY_OK},
    {"make a side", make_side, describe_scene, give_back, FERRY_OK},
    {"copy a spec", copy_spec, describe_scene, give_back, FERRY_OK},
    {"exchange, nothing", exchange_both, describe_scene, give_back, FERRY_OK},
};

static void test_steps(void **state)
{
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        run_step(&steps[i], *state);
    }
}

/* The destination is nobody's: that is said, or that memory was short. */
static void test_exchange(void **state)
{
    scene *s = *state;
    int64_t n_refusals = 0;
    for (ferry_status status = FERRY_ERR_NO_MEMORY; status == FERRY_ERR_NO_MEMORY; n_refusals++) {
        ferry_error error = {""};
        int64_t live = failing_live;
        failing_start(n_refusals, true);
        status = exchange(s, &error);
        bool refused = failing_stop();
        check_status("alone", refused ? FERRY_ERR_NO_MEMORY : FERRY_ERR_INVALID_INPUT, status,
                     &error);
        check_row("alone", s->made_spec == NULL && failing_live == live);
    }
    assert_true(n_refusals > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_exchange),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
