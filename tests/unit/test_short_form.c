/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Short forms of layouts. What the rules are for public models is said in checkpoint/families.py.
 */
#include "checkpoint/short_form.h"

#include "base/alloc.h"
#include "support/check.h"
#include "support/spec.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TENSORS = 256, MAX_NAME = 96 };

/* A model under construction. */
typedef struct scene {
    size_t n_tensors;
    fy_model_tensor tensors[MAX_TENSORS];
    uint64_t shapes[MAX_TENSORS][3];
    char names[MAX_TENSORS][MAX_NAME];
    json_t *config;
    json_t *side;
    json_t *replicated;
    ferry_error error;
} scene;

/* Extents that are 0 end the shape. */
static void add3(scene *s, const char *name, uint64_t a, uint64_t b, uint64_t c)
{
    size_t i = s->n_tensors++;
    uint64_t *shape = s->shapes[i];
    assert_true(i < MAX_TENSORS && strlen(name) < MAX_NAME);
    strcpy(s->names[i], name);
    shape[0] = a;
    shape[1] = b;
    shape[2] = c;
    s->tensors[i] = (fy_model_tensor){
        .name = s->names[i], .n_dims = (uint32_t)((a != 0) + (b != 0) + (c != 0)), .shape = shape};
}

static void add(scene *s, const char *name, uint64_t rows, uint64_t columns)
{
    add3(s, name, rows, columns, 0);
}

static void add_in_layer(scene *s, int layer, const char *name, uint64_t rows, uint64_t columns)
{
    char full[MAX_NAME];
    snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    add(s, full, rows, columns);
}

/* 8 heads of 8, 4 KV heads, 64 wide; an MLP of 96. */
static void add_layer(scene *s, int layer)
{
    add_in_layer(s, layer, "self_attn.q_proj.weight", 64, 64);
    add_in_layer(s, layer, "self_attn.k_proj.weight", 32, 64);
    add_in_layer(s, layer, "self_attn.v_proj.weight", 32, 64);
    add_in_layer(s, layer, "self_attn.o_proj.weight", 64, 64);
    add_in_layer(s, layer, "mlp.gate_proj.weight", 96, 64);
    add_in_layer(s, layer, "mlp.down_proj.weight", 64, 96);
    add_in_layer(s, layer, "input_layernorm.weight", 64, 0);
}

static void set_config(scene *s, const char *quoted)
{
    char *text = strdup(quoted);
    assert_non_null(text);
    unquote(text);
    json_decref(s->config);
    s->config = json_loads(text, 0, NULL);
    assert_non_null(s->config);
    free(text);
}

static scene *new_llama(int n_layers)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    add(s, "model.embed_tokens.weight", 100, 64);
    for (int i = 0; i < n_layers; i++) {
        add_layer(s, i);
    }
    add(s, "model.norm.weight", 64, 0);
    add(s, "lm_head.weight", 100, 64);
    set_config(s, "{'architectures': ['LlamaForCausalLM'], 'hidden_size': 64,"
                  " 'num_attention_heads': 8, 'num_key_value_heads': 4}");
    return s;
}

static void drop_answer(scene *s)
{
    json_decref(s->side);
    json_decref(s->replicated);
    s->side = s->replicated = NULL;
}

static void free_scene(scene *s)
{
    drop_answer(s);
    json_decref(s->config);
    free(s);
}

static ferry_status make(scene *s, const char *text)
{
    drop_answer(s);
    return fy_short_form_make(text, s->tensors, s->n_tensors, s->config, "src", &s->side,
                              &s->replicated, &s->error);
}

static json_t *parse(const char *quoted)
{
    char *text = strdup(quoted);
    assert_non_null(text);
    unquote(text);
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    free(text);
    assert_non_null(json);
    return json;
}

static void check_json(const char *row, const json_t *actual, const char *quoted)
{
    json_t *wanted = parse(quoted);
    if (!json_equal(actual, wanted)) {
        char *text = json_dumps(actual, JSON_COMPACT | JSON_ENCODE_ANY);
        fail_msg("row \"%s\": %s, not %s", row, text == NULL ? "nothing" : text, quoted);
    }
    json_decref(wanted);
}

/* The rule with that pattern; NULL: none. */
static const json_t *rule_of(const scene *s, const char *match)
{
    size_t i;
    json_t *rule;
    json_array_foreach (json_object_get(s->side, "rules"), i, rule) {
        if (strcmp(json_string_value(json_object_get(rule, "match")), match) == 0) {
            return rule;
        }
    }
    return NULL;
}

static void check_shard(const scene *s, const char *match, const char *quoted)
{
    const json_t *rule = rule_of(s, match);
    check_row(match, rule != NULL);
    if (quoted == NULL) {
        check_row(match, json_object_get(rule, "shard") == NULL);
    } else {
        check_json(match, json_object_get(rule, "shard"), quoted);
    }
}

static void check_list(const scene *s, const char *key, const char *quoted)
{
    check_json(key, json_object_get(s->side, key), quoted);
}

static void make_well(scene *s, const char *text)
{
    must(make(s, text), &s->error);
}

/* The library takes the side as a destination: it parses, and every tensor has its place. */
static void check_accepted(const scene *s)
{
    json_t *tensors = json_array();
    for (size_t i = 0; i < s->n_tensors; i++) {
        json_t *shape = json_array();
        for (uint32_t d = 0; d < s->tensors[i].n_dims; d++) {
            json_array_append_new(shape, json_integer((json_int_t)s->tensors[i].shape[d]));
        }
        json_array_append_new(tensors, json_pack("{s:s, s:o, s:s}", "name", s->tensors[i].name,
                                                 "shape", shape, "dtype", "bf16"));
    }
    json_t *spec = json_pack("{s:s, s:o, s:o, s:O}", "format", "ferry.spec/1", "tensors", tensors,
                             "source", parse("{'mesh': [['one', 1]], 'rules': [{'match': '*'}]}"),
                             "destination", s->side);
    char *text = json_dumps(spec, 0);
    assert_non_null(text);
    ferry_spec *parsed = NULL;
    ferry_plan *plan = NULL;
    ferry_error error;
    must(ferry_spec_parse(text, strlen(text), "spec", &parsed, &error), &error);
    must(ferry_plan_create(parsed, NULL, &plan, &error), &error);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(parsed);
    free(text);
    json_decref(spec);
}

/* ---- the text ---- */

static void test_is(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is;
    } rows[] = {{"tp=4", true},       {"tp=4,pp=2", true}, {"tp=x", true},   {"TP=4", true},
                {"banana=1", true},   {"tp=", true},       {"", false},      {"hf", false},
                {"tp", false},        {"=4", false},       {"4=tp", false},  {"./tp=4", false},
                {"a/tp=4", false},    {"l.json", false},   {"/tp=4", false}, {"tp4.json", false},
                {"layout=x.d", true}, {" tp=4", false},    {"tp =4", false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_row(rows[i].text, fy_short_form_is(rows[i].text) == rows[i].is);
    }
}

static void test_bad_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {{"tp=0", "above zero"},
                {"tp=-1", "above zero"},
                {"tp=+1", "above zero"},
                {"tp=", "above zero"},
                {"tp=x", "above zero"},
                {"tp=2x", "above zero"},
                {"tp=2 ", "above zero"},
                {"tp=2.0", "above zero"},
                {"tp=0x2", "above zero"},
                {"tp==2", "above zero"},
                {"tp=16777216", "above zero"},
                {"tp=18446744073709551617", "above zero"},
                {"tp=99999999999999999999999999999999999", "above zero"},
                {"TP=2", "none of"},
                {"cp=2", "\"cp=2\" is none of"},
                {"t=2", "none of"},
                {"tpp=2", "none of"},
                {"tp", "none of"},
                {"", "none of"},
                {"=2", "none of"},
                {"tp=2,", "none of"},
                {",tp=2", "none of"},
                {"tp=2,,pp=2", "none of"},
                {"tp=2;pp=2", "above zero"},
                {"tp=2, pp=2", "none of"},
                {"tp=2,tp=2", "tp twice"},
                {"tp=2,pp=1,tp=4", "tp twice"},
                {"tp=4096,pp=4096", "16777216 ranks"},
                {"tp=16777215,pp=16777215,dp=16777215,ep=16777215", "ranks"}};
    scene *s = new_llama(2);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_status(rows[i].text, FERRY_ERR_INVALID_INPUT, make(s, rows[i].text), &s->error);
        check_says(rows[i].text, rows[i].says, &s->error);
        check_row(rows[i].text, s->side == NULL && s->replicated == NULL);
    }
    free_scene(s);
}

/* However long the text, the sentence ends. */
static void test_long_text(void **state)
{
    (void)state;
    scene *s = new_llama(1);
    char *text = malloc(10001);
    assert_non_null(text);
    memset(text, 'a', 10000);
    text[10000] = '\0';
    check_status("long", FERRY_ERR_INVALID_INPUT, make(s, text), &s->error);
    assert_true(strlen(s->error.message) > 100 && strlen(s->error.message) < FERRY_ERROR_BYTES);
    free(text);
    free_scene(s);
}

static void test_mesh(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    make_well(s, "tp=2,ep=3,dp=1,pp=4");
    check_list(s, "mesh", "[['pp', 4], ['dp', 1], ['ep', 3], ['tp', 2]]");
    make_well(s, "tp=04");
    check_list(s, "mesh", "[['tp', 4]]");
    make_well(s, "dp=2");
    check_list(s, "mesh", "[['dp', 2]]");
    check_list(s, "stages", "[]");
    check_shard(s, "model.layers.*.self_attn.q_proj.weight", NULL);
    check_accepted(s);
    free_scene(s);
}

/* ---- dense models ---- */

static void test_llama(void **state)
{
    (void)state;
    scene *s = new_llama(3);
    make_well(s, "tp=2,pp=2");
    check_list(s, "stages", "[{'match': 'model.layers.{}.*', 'count': 3, 'axis': 'pp'}]");
    check_shard(s, "model.layers.*.self_attn.q_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'unit': 16}]");
    check_shard(s, "model.layers.*.self_attn.k_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'unit': 8}]");
    check_shard(s, "model.layers.*.self_attn.o_proj.weight",
                "[{'dim': 1, 'axis': 'tp', 'unit': 16}]");
    check_shard(s, "model.layers.*.mlp.gate_proj.weight", "[{'dim': 0, 'axis': 'tp'}]");
    check_shard(s, "model.layers.*.mlp.down_proj.weight", "[{'dim': 1, 'axis': 'tp'}]");
    check_json("embedding", rule_of(s, "model.embed_tokens.weight"),
               "{'match': 'model.embed_tokens.weight', 'on': {'pp': 0},"
               " 'shard': [{'dim': 0, 'axis': 'tp'}]}");
    check_json("norm", rule_of(s, "model.norm.weight"),
               "{'match': 'model.norm.weight', 'on': {'pp': -1}}");
    assert_int_equal(json_array_size(s->replicated), 0);
    check_accepted(s);
    make_well(s, "tp=8"); /* more than the KV heads */
    check_shard(s, "model.layers.*.self_attn.k_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'parts': 4, 'unit': 8}]");
    check_shard(s, "model.layers.*.self_attn.o_proj.weight",
                "[{'dim': 1, 'axis': 'tp', 'unit': 8}]");
    check_accepted(s);
    free_scene(s);
}

/* Layers behind the counted ones stand on the last stage, whatever their number. */
static void test_more_layers(void **state)
{
    (void)state;
    scene *s = new_llama(5);
    json_object_set_new(s->config, "num_hidden_layers", json_integer(3));
    make_well(s, "pp=2");
    check_list(s, "stages", "[{'match': 'model.layers.{}.*', 'sizes': [2, 3], 'axis': 'pp'}]");
    check_accepted(s);
    make_well(s, "pp=4");
    check_list(s, "stages",
               "[{'match': 'model.layers.{}.*', 'sizes': [1, 1, 1, 2], 'axis': 'pp'}]");
    make_well(s, "pp=7");
    check_accepted(s);
    json_object_set_new(s->config, "num_hidden_layers", json_integer(9)); /* and fewer */
    make_well(s, "pp=2");
    check_list(s, "stages", "[{'match': 'model.layers.{}.*', 'count': 9, 'axis': 'pp'}]");
    free_scene(s);
}

static void test_unknown_tensors(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    add_in_layer(s, 1, "self_attn.q_proj.lora_A.weight", 8, 64);
    add_in_layer(s, 0, "self_attn.q_proj.qweight", 8, 64);
    add_in_layer(s, 0, "self_attn.q_proj.input_scale", 1, 0); /* one number is no question */
    add_in_layer(s, 0, "self_attn.q_proj.weight_scale", 64, 0);
    add(s, "model.extra.weight", 8, 8);
    add(s, "lm_head.qweight", 8, 8);
    make_well(s, "tp=2,pp=2");
    check_json("replicated", s->replicated,
               "['model.layers.1.self_attn.q_proj.lora_A.weight',"
               " 'model.layers.0.self_attn.q_proj.qweight', 'model.extra.weight',"
               " 'lm_head.qweight']");
    check_shard(s, "model.layers.*.self_attn.q_proj.weight_scale",
                "[{'dim': 0, 'axis': 'tp', 'unit': 16}]");
    check_json("head", rule_of(s, "lm_head.qweight"),
               "{'match': 'lm_head.qweight', 'on': {'pp': -1}}");
    check_accepted(s);
    drop_answer(s);
    must(fy_short_form_make("tp=2", s->tensors, s->n_tensors, s->config, "src", &s->side, NULL,
                            &s->error),
         &s->error);
    free_scene(s);
}

/* Two matrices in one of odd halves: a stride would not do, and each width needs its own blocks. */
static void test_own_rules(void **state)
{
    (void)state;
    scene *s = new_llama(0);
    for (int i = 0; i < 4; i++) {
        add_layer(s, i);
        add_in_layer(s, i, "mlp.gate_up_proj.weight", i == 2 ? 14 : i == 3 ? 18 : 10, 64);
    }
    make_well(s, "tp=4");
    check_shard(s, "model.layers.*.mlp.gate_up_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [5, 5]}]");
    check_shard(s, "model.layers.2.mlp.gate_up_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [7, 7]}]");
    check_shard(s, "model.layers.3.mlp.gate_up_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [9, 9]}]");
    check_accepted(s);
    s->names[s->n_tensors - 1][13] = '*'; /* of layer 3 */
    check_status("star", FERRY_ERR_INVALID_INPUT, make(s, "tp=4"), &s->error);
    check_says("star", "has * or ?", &s->error);
    free_scene(s);
}

/* ---- scales, experts, mixers ---- */

static void test_scales(void **state)
{
    (void)state;
    scene *s = new_llama(0);
    add_in_layer(s, 0, "mlp.gate_proj.weight", 1000, 256);
    add_in_layer(s, 0, "mlp.gate_proj.weight_scale_inv", 8, 2);
    add_in_layer(s, 0, "mlp.down_proj.weight", 256, 1000);
    add_in_layer(s, 0, "mlp.down_proj.weight_scale_inv", 2, 8);
    add_in_layer(s, 0, "input_layernorm.weight", 256, 0);
    check_status("no blocks", FERRY_ERR_INVALID_INPUT, make(s, "tp=3"), &s->error);
    check_says("no blocks", "weight_block_size", &s->error);
    make_well(s, "pp=3");
    set_config(s, "{'model_type': 'llama', 'quantization_config': {'weight_block_size':"
                  " [128, 128]}}");
    make_well(s, "tp=3");
    check_shard(s, "model.layers.*.mlp.gate_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'sizes': [384, 384, 232]}]");
    check_shard(s, "model.layers.*.mlp.gate_proj.weight_scale_inv", "[{'dim': 0, 'axis': 'tp'}]");
    check_shard(s, "model.layers.*.mlp.down_proj.weight_scale_inv", "[{'dim': 1, 'axis': 'tp'}]");
    check_accepted(s);
    free_scene(s);
}

/* Values of a model whose config.json speaks of codes: their names alone are planned. */
static void test_blocks_of_nothing(void **state)
{
    (void)state;
    scene *s = new_llama(0);
    add_in_layer(s, 0, "mlp.gate_proj.weight", 1000, 256);
    add_in_layer(s, 0, "mlp.down_proj.weight", 256, 1000);
    add_in_layer(s, 0, "input_layernorm.weight", 256, 0);
    set_config(s, "{'model_type': 'llama', 'quantization_config': {'weight_block_size':"
                  " [128, 128]}}");
    make_well(s, "tp=3");
    check_shard(s, "model.layers.*.mlp.gate_proj.weight", "[{'dim': 0, 'axis': 'tp'}]");
    check_shard(s, "model.layers.*.mlp.down_proj.weight", "[{'dim': 1, 'axis': 'tp'}]");
    make_well(s, "tp=16");
    free_scene(s);
}

/* Heads of 64 in blocks of 128: two KV heads stay together, and so do their heads of q. */
static void test_scales_of_heads(void **state)
{
    (void)state;
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    add_in_layer(s, 0, "self_attn.q_proj.weight", 768, 256);
    add_in_layer(s, 0, "self_attn.q_proj.weight_scale_inv", 6, 2);
    add_in_layer(s, 0, "self_attn.k_proj.weight", 384, 256);
    add_in_layer(s, 0, "self_attn.k_proj.weight_scale_inv", 3, 2);
    add_in_layer(s, 0, "self_attn.o_proj.weight", 256, 768);
    add_in_layer(s, 0, "self_attn.o_proj.weight_scale_inv", 2, 6);
    set_config(s, "{'model_type': 'llama', 'head_dim': 64, 'quantization_config':"
                  " {'weight_block_size': [128, 128]}}");
    make_well(s, "tp=3");
    check_shard(s, "model.layers.*.self_attn.q_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'unit': 256}]");
    check_shard(s, "model.layers.*.self_attn.q_proj.weight_scale_inv",
                "[{'dim': 0, 'axis': 'tp', 'unit': 2}]");
    check_shard(s, "model.layers.*.self_attn.k_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'unit': 128}]");
    check_shard(s, "model.layers.*.self_attn.k_proj.weight_scale_inv",
                "[{'dim': 0, 'axis': 'tp'}]");
    check_shard(s, "model.layers.*.self_attn.o_proj.weight_scale_inv",
                "[{'dim': 1, 'axis': 'tp', 'unit': 2}]");
    check_accepted(s);
    s->shapes[1][0] = 7;
    check_status("scale", FERRY_ERR_INVALID_INPUT, make(s, "tp=3"), &s->error);
    check_says("scale", "weight_scale_inv\" has 7", &s->error);
    s->shapes[1][0] = 6;
    check_status("heads", FERRY_ERR_INVALID_INPUT, make(s, "tp=2"), &s->error);
    check_says("heads", "k_proj.weight\", 384 elements in dim 0, into 2 parts of 192", &s->error);
    check_status("shared", FERRY_ERR_INVALID_INPUT, make(s, "tp=12"), &s->error);
    check_says("shared", "share a scale", &s->error);
    free_scene(s);
}

static void test_experts(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    for (int e = 0; e < 11; e++) {
        char name[64];
        snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w2.weight", e);
        add_in_layer(s, 1, name, 64, 96);
    }
    make_well(s, "tp=2,ep=4");
    check_list(s, "stages",
               "[{'match': 'model.layers.*.experts.{}.*', 'count': 11, 'axis': 'ep'}]");
    check_shard(s, "model.layers.*.experts.*.w2.weight", "[{'dim': 1, 'axis': 'tp'}]");
    check_accepted(s);
    free_scene(s);
    s = new_llama(1);
    add3(s, "model.layers.0.mlp.experts.gate_up_proj", 10, 64, 32);
    add3(s, "model.layers.0.mlp.experts.down_proj", 10, 16, 64);
    make_well(s, "tp=2,ep=4");
    check_shard(s, "model.layers.*.experts.gate_up_proj",
                "[{'dim': 0, 'axis': 'ep', 'sizes': [3, 2, 3, 2]},"
                " {'dim': 2, 'axis': 'tp', 'stride': 2}]");
    check_shard(s, "model.layers.*.experts.down_proj",
                "[{'dim': 0, 'axis': 'ep', 'sizes': [3, 2, 3, 2]}, {'dim': 1, 'axis': 'tp'}]");
    check_accepted(s);
    s->shapes[s->n_tensors - 1][1] = 17;
    check_status("partner", FERRY_ERR_INVALID_INPUT, make(s, "tp=2"), &s->error);
    check_says("partner", "stacked experts", &s->error);
    free_scene(s);
}

/* Experts whose gate and up take turns, with biases; as codes with scales of blocks, too. */
static scene *new_gpt_oss(bool packed)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    add_in_layer(s, 0, "self_attn.q_proj.weight", 64, 64);
    add_in_layer(s, 0, "self_attn.k_proj.weight", 32, 64);
    add_in_layer(s, 0, "self_attn.o_proj.weight", 64, 64);
    add_in_layer(s, 0, "self_attn.o_proj.bias", 64, 0);
    add_in_layer(s, 0, "self_attn.sinks", 8, 0);
    add_in_layer(s, 0, "mlp.router.weight", 10, 64);
    add_in_layer(s, 0, "mlp.router.bias", 10, 0);
    if (packed) {
        add3(s, "model.layers.0.mlp.experts.gate_up_proj_scales", 10, 320, 2);
        add3(s, "model.layers.0.mlp.experts.down_proj_scales", 10, 64, 5);
    } else {
        add3(s, "model.layers.0.mlp.experts.gate_up_proj", 10, 64, 320);
        add3(s, "model.layers.0.mlp.experts.down_proj", 10, 160, 64);
    }
    add_in_layer(s, 0, "mlp.experts.gate_up_proj_bias", 10, 320);
    add_in_layer(s, 0, "mlp.experts.down_proj_bias", 10, 64);
    return s;
}

static void test_turns(void **state)
{
    (void)state;
    scene *s = new_gpt_oss(false);
    make_well(s, "tp=2,ep=4");
    check_shard(s, "model.layers.*.self_attn.sinks", "[{'dim': 0, 'axis': 'tp', 'unit': 2}]");
    check_shard(s, "model.layers.*.mlp.router.bias", NULL);
    check_shard(s, "model.layers.*.experts.gate_up_proj",
                "[{'dim': 0, 'axis': 'ep', 'sizes': [3, 2, 3, 2]},"
                " {'dim': 2, 'axis': 'tp', 'unit': 2}]");
    check_shard(s, "model.layers.*.experts.gate_up_proj_bias",
                "[{'dim': 0, 'axis': 'ep', 'sizes': [3, 2, 3, 2]},"
                " {'dim': 1, 'axis': 'tp', 'unit': 2}]");
    check_shard(s, "model.layers.*.experts.down_proj_bias",
                "[{'dim': 0, 'axis': 'ep', 'sizes': [3, 2, 3, 2]}]");
    assert_int_equal(json_array_size(s->replicated), 0);
    check_accepted(s);
    make_well(s, "ep=5");
    check_shard(s, "model.layers.*.experts.gate_up_proj_bias", "[{'dim': 0, 'axis': 'ep'}]");
    make_well(s, "tp=8"); /* more than the KV heads */
    check_shard(s, "model.layers.*.self_attn.sinks", "[{'dim': 0, 'axis': 'tp'}]");
    check_accepted(s);
    free_scene(s);
    s = new_gpt_oss(true);
    make_well(s, "tp=2"); /* 3 blocks and 2 */
    check_shard(s, "model.layers.*.experts.gate_up_proj_scales",
                "[{'dim': 1, 'axis': 'tp', 'unit': 64}]");
    check_shard(s, "model.layers.*.experts.gate_up_proj_bias",
                "[{'dim': 1, 'axis': 'tp', 'unit': 64}]");
    check_shard(s, "model.layers.*.experts.down_proj_scales", "[{'dim': 2, 'axis': 'tp'}]");
    check_accepted(s);
    free_scene(s);
}

static void test_states(void **state)
{
    (void)state;
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    add(s, "backbone.embeddings.weight", 100, 32);
    add(s, "backbone.layers.0.mixer.in_proj.weight", 2 * 64 + 2 * 32 + 8, 32);
    add3(s, "backbone.layers.0.mixer.conv1d.weight", 64 + 2 * 32, 1, 4);
    add(s, "backbone.layers.0.mixer.A_log", 8, 0);
    add(s, "backbone.layers.0.mixer.norm.weight", 64, 0);
    add(s, "backbone.layers.0.mixer.out_proj.weight", 32, 64);
    set_config(s, "{'model_type': 'mamba2', 'n_groups': 2, 'state_size': 16}");
    make_well(s, "tp=4");
    check_shard(s, "backbone.layers.*.mixer.in_proj.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [64, 64, [32, 2], [32, 2], 8]}]");
    check_shard(s, "backbone.layers.*.mixer.conv1d.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [64, [32, 2], [32, 2]]}]");
    check_accepted(s);
    make_well(s, "tp=2");
    check_shard(s, "backbone.layers.*.mixer.conv1d.weight",
                "[{'dim': 0, 'axis': 'tp', 'blocks': [64, 32, 32]}]");
    s->shapes[1][0]++;
    check_status("shape", FERRY_ERR_INVALID_INPUT, make(s, "tp=2"), &s->error);
    check_says("shape", "in_proj", &s->error);
    free_scene(s);
}

/* ---- what is refused ---- */

static void test_bad_configs(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        const char *says;
    } rows[] = {
        {"{'architectures': ['OPTForCausalLM']}", "\"OPTForCausalLM\""},
        {"{'model_type': 'opt', 'text_config': {'model_type': 'bert'}}", "\"opt\""},
        {"{'model_type': ''}", "\"\""},
        {"{'model_type': 'llama', 'num_attention_heads': '8'}", "num_attention_heads"},
        {"{'model_type': 'llama', 'num_attention_heads': 8.0}", "num_attention_heads"},
        {"{'model_type': 'llama', 'num_key_value_heads': [4, 4]}", "num_key_value_heads"},
        {"{'model_type': 'llama', 'head_dim': 0}", "head_dim"},
        {"{'model_type': 'llama', 'head_dim': -8}", "head_dim"},
        {"{'model_type': 'llama', 'head_dim': 4294967296}", "head_dim"},
        {"{'model_type': 'llama', 'head_dim': 5}", "heads of 5"},
        {"{'model_type': 'llama', 'head_dim': 8, 'num_attention_heads': 4}", "4 heads of 8"},
        {"{'model_type': 'llama', 'head_dim': 8, 'num_key_value_heads': 8}", "k_proj"},
        {"{'model_type': 'llama', 'num_attention_heads': 8, 'hidden_size': 128}", "heads of 16"},
        {"{'model_type': 'llama', 'head_dim': 64}", "heads of 64"},
        {"{'model_type': 'llama', 'quantization_config': {'weight_block_size': [0, 1]}}",
         "weight_block_size"},
        {"{'model_type': 'llama', 'quantization_config': {'weight_block_size': []}}",
         "weight_block_size"},
        {"{'model_type': 'llama'}", "config.json"},
        {"{}", "config.json"},
        {"[]", "config.json"},
        {"{'architectures': [], 'model_type': 3, 'text_config': []}", "config.json"},
    };
    scene *s = new_llama(2);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        set_config(s, rows[i].config);
        check_status(rows[i].config, FERRY_ERR_INVALID_INPUT, make(s, "tp=2"), &s->error);
        check_says(rows[i].config, rows[i].says, &s->error);
        check_row(rows[i].config, strncmp(s->error.message, "src: ", 5) == 0);
    }
    free_scene(s);
}

static void test_bad_names(void **state)
{
    (void)state;
    scene *s = new_llama(0);
    check_status("no layers", FERRY_ERR_INVALID_INPUT, make(s, "pp=2"), &s->error);
    check_says("no layers", "layout file", &s->error);
    s->n_tensors = 0;
    check_status("nothing", FERRY_ERR_INVALID_INPUT, make(s, "pp=2"), &s->error);
    json_decref(s->config);
    s->config = NULL;
    add(s, "model.layers.0.self_attn.q_proj.weight", 64, 64); /* such are in many */
    check_status("names", FERRY_ERR_INVALID_INPUT, make(s, "pp=2"), &s->error);
    check_says("names", "names of the tensors", &s->error);
    free_scene(s);
}

static void try_strange_shapes(scene *s)
{
    static const uint64_t extents[] = {0, 1, 3, 96, INT64_MAX, UINT64_MAX, UINT64_MAX - 63};
    static const char *const texts[] = {"tp=2", "tp=4,pp=3", "tp=7,ep=2", "tp=16777215"};
    for (size_t i = 0; i < s->n_tensors; i++) {
        fy_model_tensor was = s->tensors[i];
        for (uint32_t d = 0; d < was.n_dims; d++) {
            uint64_t had = s->shapes[i][d];
            for (size_t e = 0; e < COUNT_OF(extents) * COUNT_OF(texts); e++) {
                s->shapes[i][d] = extents[e % COUNT_OF(extents)];
                s->error.message[0] = '\0';
                bool made = make(s, texts[e / COUNT_OF(extents)]) == FERRY_OK;
                check_row(was.name, made == (s->side != NULL));
                check_row(was.name, made || s->error.message[0] != '\0');
            }
            s->shapes[i][d] = had;
        }
        for (s->tensors[i].n_dims = 0; s->tensors[i].n_dims < 3; s->tensors[i].n_dims++) {
            check_row(was.name, (make(s, "tp=2,ep=2") == FERRY_OK) == (s->side != NULL));
        }
        s->tensors[i] = was;
    }
    free_scene(s);
}

/* Numbers of all sizes in shapes: a sentence or a side, nothing else. */
static void test_strange_shapes(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    add3(s, "model.layers.0.mlp.experts.gate_up_proj", 2, 64, 32);
    add3(s, "model.layers.0.mlp.experts.down_proj", 2, 16, 64);
    try_strange_shapes(s);
    try_strange_shapes(new_gpt_oss(false));
    try_strange_shapes(new_gpt_oss(true));
}

static void test_no_memory(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    for (int64_t n = 0;; n++) {
        fy_alloc_fail_after(n);
        ferry_status status = make(s, "tp=2,pp=2");
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            assert_true(n > 1);
            break;
        }
        check_status("memory", FERRY_ERR_NO_MEMORY, status, &s->error);
        assert_true(s->side == NULL && s->replicated == NULL);
    }
    free_scene(s);
}

/* jansson's memory, too: its allocations are refused one by one. */
static int64_t json_left = -1;

static void *scarce_malloc(size_t n_bytes)
{
    if (json_left == 0) {
        return NULL;
    }
    json_left -= json_left > 0;
    return malloc(n_bytes);
}

static void test_no_json_memory(void **state)
{
    (void)state;
    scene *s = new_llama(2);
    add_in_layer(s, 0, "mlp.gate_up_proj.weight", 10, 64);
    add_in_layer(s, 1, "mlp.gate_up_proj.weight", 14, 64);
    json_object_set_new(s->config, "num_hidden_layers", json_integer(1));
    json_set_alloc_funcs(scarce_malloc, free);
    for (int64_t n = 0;; n++) {
        json_left = n;
        ferry_status status = make(s, "tp=4,pp=2");
        json_left = -1;
        if (status == FERRY_OK) {
            assert_true(n > 50);
            break;
        }
        check_status("json", FERRY_ERR_NO_MEMORY, status, &s->error);
        assert_true(s->side == NULL && s->replicated == NULL);
    }
    json_set_alloc_funcs(malloc, free);
    free_scene(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_more_layers),
        cmocka_unit_test(test_unknown_tensors),
        cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_blocks_of_nothing),
        cmocka_unit_test(test_scales_of_heads),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_bad_configs),
        cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_strange_shapes),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_no_json_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
