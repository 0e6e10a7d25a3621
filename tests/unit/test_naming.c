/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Names of a model in several namings: formulas, families, maps, sides and specs of them. */
#include "support/check.h"
#include "support/spec.h"

#include "base/alloc.h"
#include "model/formula.h"

#include <ferry/ferry.h>

#include <stdio.h>

#define CONFIG                                                                                     \
    "{'model_type':'qwen2','num_hidden_layers':2,'hidden_size':16,'vocab_size':40,"                \
    "'num_attention_heads':6,'num_key_value_heads':2,'head_dim':4,'intermediate_size':20"

static const ferry_dtype bf16 = {FERRY_BF16, 16}, f32 = {FERRY_F32, 32};

static ferry_status try_names(const char *config, const char *family, ferry_names **names_out,
                              ferry_error *error)
{
    char *text = strdup(config), *own = family == NULL ? NULL : strdup(family);
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    assert_non_null(text);
    unquote(text);
    options.config = text;
    options.config_length = strlen(text);
    if (own != NULL) {
        unquote(own);
        options.family = own;
        options.family_length = strlen(own);
    }
    ferry_status status = ferry_names_create(&options, names_out, error);
    free(text);
    free(own);
    return status;
}

static ferry_names *names_of(const char *config, const char *family)
{
    ferry_names *names = NULL;
    ferry_error error;
    must(try_names(config, family, &names, &error), &error);
    return names;
}

static ferry_map *map_of(ferry_names *names, const char *from, const char *to)
{
    ferry_map *map = NULL;
    ferry_error error;
    must(ferry_names_get_map(names, from, to, &map, &error), &error);
    return map;
}

static void check_same(const ferry_map *a, const ferry_map *b)
{
    text_buffer x = {0}, y = {0};
    ferry_error error;
    must(ferry_map_write_json(a, text_write, &x, &error), &error);
    must(ferry_map_write_json(b, text_write, &y, &error), &error);
    assert_string_equal(x.bytes, y.bytes);
    text_cleanup(&x);
    text_cleanup(&y);
}

/* ---- formulas ---- */

static void test_formulas(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } rows[] = {
        {"7", 7},
        {"1 + 2 * 3 - 4 / 3", 6},
        {"(1 + 2) * 3 % 4", 1},
        {"heads", 6},
        {"lacking ?? 5", 5},
        {"lacking ?? nothing ?? 4", 4},
        {"nothing ?? 3", 3},
        {"lacking / 2 ?? heads / 2", 3},
        {"heads == 6 && !(heads < 6) && heads >= 6", 1},
        {"heads != 6 || heads <= 5 || heads > 6", 0},
        {"heads == 5 && lacking", 0},
        {"heads == 6 || lacking", 1},
        {"layer in few", 1},
        {"layer + 1 in few", 0},
        {"!(layer in nothing ?? 0)", 1},
        {"twice", 12},
        {"own", 9},
        {"flag", 1},
        {"nested", 8},
    };
    ferry_error error;
    json_t *config = json_pack("{s:i, s:n, s:[i, i], s:b, s:i}", "heads", 6, "nothing", "few", 3, 5,
                               "flag", 1, "own", 8);
    json_t *numbers = json_pack("{s:s, s:s}", "twice", "2 * heads", "own", "own + 1");
    json_t *text = json_pack("{s:i}", "nested", 8);
    fy_formula_scope scope = {.source_name = "model",
                              .config = config,
                              .text_config = text,
                              .numbers = {numbers, NULL},
                              .n_indices = 1,
                              .indices = {"layer"},
                              .values = {3}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t value = 999;
        must(fy_formula_evaluate(&scope, rows[i].text, &value, &error), &error);
        if (value != rows[i].value) {
            fail_msg("%s is %llu", rows[i].text, (unsigned long long)value);
        }
    }
    json_decref(config);
    json_decref(numbers);
    json_decref(text);
}

static void test_wrong_formulas(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "needs a number or a word"},
        {"1 +", "needs a number or a word"},
        {"(1", "lacks a \")\""},
        {"1 2", "does not end"},
        {"lacking", "config.json lacks \"lacking\""},
        {"lacking && 1", "config.json lacks \"lacking\""},
        {"1 / 0", "divides by 0"},
        {"1 - 2", "below 0"},
        {"18446744073709551615 + 1", "beyond 2^64"},
        {"99999999999999999999", "beyond 2^64"},
        {"few", "is a list"},
        {"few + 1", "computes with a list"},
        {"1 in heads", "without a list"},
        {"word", "must be a whole number"},
        {"loop", "takes too long"},
        {"((((((((((((((((((((((((((1))))))))))))))))))))))))))", "nested too deeply"},
    };
    ferry_error error;
    json_t *config = json_pack("{s:i, s:[i], s:s}", "heads", 6, "few", 3, "word", "six");
    json_t *numbers = json_pack("{s:s, s:s, s:s, s:s, s:s}", "loop", "a+a+a+a+a+a+a+a+a+a", "a",
                                "b+b+b+b+b+b+b+b+b+b", "b", "c+c+c+c+c+c+c+c+c+c", "c",
                                "d+d+d+d+d+d+d+d+d+d", "d", "heads+heads");
    fy_formula_scope scope = {.source_name = "model", .config = config, .numbers = {numbers, NULL}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t value;
        assert_int_equal(fy_formula_evaluate(&scope, rows[i].text, &value, &error),
                         FERRY_ERR_INVALID_INPUT);
        check_says(rows[i].says, rows[i].says, &error);
    }
    json_decref(config);
    json_decref(numbers);
}

/* ---- families ---- */

/* By way of a third naming or not is the same. */
static void test_ways_are_one(void **state)
{
    (void)state;
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_map *there = map_of(names, "megatron", "hf"), *on = map_of(names, "hf", "vllm");
    ferry_map *at_once = map_of(names, "megatron", "vllm"), *back = map_of(names, "hf", "megatron");
    ferry_map *composed = NULL, *inverse = NULL;
    ferry_error error;
    must(ferry_map_compose(there, on, &composed, &error), &error);
    must(ferry_map_invert(there, &inverse, &error), &error);
    check_same(composed, at_once);
    check_same(inverse, back);
    ferry_map_destroy(there);
    ferry_map_destroy(on);
    ferry_map_destroy(at_once);
    ferry_map_destroy(back);
    ferry_map_destroy(composed);
    ferry_map_destroy(inverse);
    ferry_names_destroy(names);
}

/* Groups of q, k and v: of 6 heads and 2 of k and v, 3, 1 and 1 in each. */
static void test_groups(void **state)
{
    (void)state;
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_map *map = map_of(names, "megatron", "hf");
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    ferry_error error;
    size_t number;
    must(ferry_map_find_target(map, "model.layers.1.self_attn.k_proj.weight", &number, &error),
         &error);
    must(ferry_map_box_at(map, number, 1, &box, &error), &error);
    assert_string_equal(box.source, "decoder.layers.1.self_attention.linear_qkv.weight");
    assert_int_equal(box.begin[0], 20 + 12);
    assert_int_equal(box.shape[0], 4);
    assert_int_equal(box.at[0], 4);
    ferry_map_destroy(map);
    ferry_names_destroy(names);
}

static void test_families(void **state)
{
    (void)state;
    const char *text;
    assert_true(ferry_names_family_count() >= 9);
    assert_string_equal(ferry_names_family_at(0, &text), "deepseek-v3");
    assert_true(strstr(text, "kv_lora_rank") != NULL);
    assert_null(ferry_names_family_at(1000, NULL));
    ferry_names *names = names_of(CONFIG "}", NULL);
    assert_string_equal(ferry_names_naming_at(names, 0), "hf");
    assert_null(ferry_names_naming_at(names, ferry_names_naming_count(names)));
    ferry_names_destroy(names);
}

static void test_config_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } rows[] = {
        {"{'model_type':'bert'}", "no family of names has the model_type \"bert\""},
        {"{}", "no family of names has the model_type \"\""},
        {"[]", "is no JSON object"},
        {"{", "line 1"},
    };
    ferry_names *names = NULL;
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_int_equal(try_names(rows[i].config, NULL, &names, &error), FERRY_ERR_INVALID_INPUT);
        check_says(rows[i].says, rows[i].says, &error);
    }
    names = names_of("{'model_type':'llama','hidden_size':8,'num_hidden_layers':1}", NULL);
    size_t count;
    assert_int_equal(ferry_names_get_tensor_count(names, "hf", &count, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "config.json lacks \"vocab_size\"", &error);
    assert_int_equal(ferry_names_get_tensor_count(names, "nemo", &count, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "no naming \"nemo\", but hf, transformers, vllm, megatron", &error);
    ferry_names_destroy(names);
}

/* ---- a family of one's own ---- */

#define OWN                                                                                        \
    "{'format':'ferry.names/1','namings':{'a':{},'b':{}},'numbers':{'n':'num_hidden_layers'},"     \
    "'tensors':["

static void test_own_family(void **state)
{
    (void)state;
    ferry_names *names = names_of("{'num_hidden_layers':2}",
                                  OWN "{'each':{'i':'n','e':3},'parts':{'x':[4,6],'y':[4,6]},'a':{'"
                                      "{i}.{e}.x':'x','{i}.{e}.y':'y'},"
                                      "'b':{'{i}.xy':{'of':['x','y'],'blocks':2,'stack':'e'}}}]}");
    ferry_map *map = map_of(names, "a", "b");
    ferry_map_box box = FERRY_MAP_BOX_INIT;
    ferry_error error;
    size_t number;
    must(ferry_map_find_target(map, "1.xy", &number, &error), &error);
    assert_int_equal(ferry_map_target_count(map), 2);
    assert_int_equal(ferry_map_source_count(map), 12);
    must(ferry_map_box_at(map, number, 6, &box, &error), &error); /* the second block of 1.1.x */
    assert_string_equal(box.source, "1.1.x");
    assert_int_equal(box.begin[0], 2);
    assert_int_equal(box.at[0], 1);
    assert_int_equal(box.at[1], 4);
    ferry_map_destroy(map);
    ferry_names_destroy(names);
}

static void test_own_family_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *family, *says;
    } rows[] = {
        {"{'format':'ferry.names/2','tensors':[]}", "this version reads ferry.names/1"},
        {"{'format':'ferry.names/1'}", "tensors"},
        {"{'format':'ferry.names/1','tensors':[],'more':1}", "more"},
        {OWN "'attentions']}", "no group that families share"},
        {OWN "{'parts':{'x':[2]},'c':{}}]}", "has the unknown key \"c\""},
        {OWN "{'a':{}}]}", "must be an object with \"parts\""},
        {OWN "{'parts':{'x':[2]},'a':{'w':'z'}}]}", "names \"z\", which is not among the parts"},
        {OWN "{'parts':{'x':[2]},'a':{'w':'x','v':'x'}}]}", "has \"x\" in two tensors"},
        {OWN "{'parts':{'x':[2],'y':[2]},'a':{'w':'x'}},{'parts':{'x':[2]},'a':{'w':'x'}}]}",
         "makes a second tensor \"w\""},
        {OWN "{'parts':{'x':[2,3],'y':[2,4]},'a':{'w':{'of':['x','y']}}}]}",
         "joins parts of different lengths in \"w\""},
        {OWN "{'parts':{'x':[5]},'a':{'w':{'of':'x','blocks':2}}}]}",
         "cuts the 5 rows of \"x\" into 2 blocks"},
        {OWN "{'parts':{'x':[5]},'a':{'w':{'of':'x','first_of':2}}}]}", "w.first_of must be a"},
        {OWN "{'parts':{'x':[5]},'a':{'w':{'of':'x','stack':'e'}}}]}",
         "stacks \"e\", which is not the last index"},
        {OWN "{'parts':{'x':[5]},'a':{'w':{'off':'x'}}}]}", "off"},
        {OWN "{'parts':{'x':[5]},'a':{'<layer>.w':'x'}}]}", "<layer>, which is no text of a"},
        {OWN "{'parts':{'x':[]},'a':{'w':'x'}}]}", "must have from 1 to 7 lengths"},
        {OWN "{'each':{'i':9999999},'parts':{'x':[1]},'a':{'w{i}':'x'}}]}", "more than 4194304"},
        {OWN "{'parts':{'x':[1]},'a':['w']}]}", "\"a\" must be an object of names"},
        {OWN "{'parts':{'x':[4000000000,4000000000]},'a':{'w':'x'}}]}", "makes \"w\" too long"},
    };
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_names *names = NULL;
        size_t count;
        ferry_status status = try_names("{'num_hidden_layers':2}", rows[i].family, &names, &error);
        if (status == FERRY_OK) {
            status = ferry_names_get_tensor_count(names, "a", &count, &error);
        }
        assert_int_equal(status, FERRY_ERR_INVALID_INPUT);
        check_says(rows[i].says, rows[i].says, &error);
        ferry_names_destroy(names);
    }
}

/* ---- what was seen ---- */

static void see_all(ferry_names *names, const char *naming, const char *but, ferry_dtype dtype)
{
    size_t count;
    ferry_error error;
    must(ferry_names_get_tensor_count(names, naming, &count, &error), &error);
    for (size_t i = 0; i < count; i++) {
        ferry_map_tensor t = FERRY_MAP_TENSOR_INIT;
        must(ferry_names_tensor_at(names, naming, i, &t, &error), &error);
        if (but == NULL || strstr(t.name, but) == NULL) {
            must(ferry_names_see(names, naming, t.name, dtype, t.n_dims, t.shape, &error), &error);
        }
    }
}

static void test_seen(void **state)
{
    (void)state;
    static const uint64_t wrong[] = {24, 17};
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_error error;
    see_all(names, "hf", "layers.1.mlp.up_proj", f32);
    assert_int_equal(ferry_names_check_seen(names, "hf", &error), FERRY_ERR_INVALID_INPUT);
    check_says("", "lacks the tensor \"model.layers.1.mlp.up_proj.weight\"", &error);
    assert_int_equal(
        ferry_names_see(names, "hf", "model.layers.2.mlp.up_proj.weight", bf16, 2, wrong, &error),
        FERRY_ERR_INVALID_INPUT);
    check_says("", "no rule of hf covers the tensor \"model.layers.2.mlp", &error);
    assert_int_equal(ferry_names_see(names, "hf", "model.layers.1.self_attn.q_proj.weight", bf16, 2,
                                     wrong, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "has the shape [24, 17], but hf makes it [24, 16]", &error);
    must(ferry_names_see(names, "hf", "model.layers.0.rotary_emb.inv_freq", f32, 2, wrong, &error),
         &error); /* ignored */
    see_all(names, "hf", NULL, f32);
    must(ferry_names_check_seen(names, "hf", &error), &error);
    ferry_map *map = map_of(names, "hf", "vllm");
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    must(ferry_map_target_at(map, 0, &tensor, &error), &error);
    assert_int_equal(tensor.dtype.kind, FERRY_F32);
    ferry_map_destroy(map);
    ferry_names_destroy(names);
}

/* What one tensor of the target is made of has one type. */
static void test_types_differ(void **state)
{
    (void)state;
    static const uint64_t shape[] = {20, 16};
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_map *map = NULL;
    ferry_error error;
    see_all(names, "hf", NULL, bf16);
    must(ferry_names_see(names, "hf", "model.layers.1.mlp.up_proj.weight", f32, 2, shape, &error),
         &error);
    assert_int_equal(ferry_names_get_map(names, "hf", "vllm", &map, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "which are of different types", &error);
    ferry_names_destroy(names);
}

#define PREDICTS                                                                                   \
    "{'model_type':'deepseek_v3','num_hidden_layers':2,'hidden_size':16,'vocab_size':40,"          \
    "'num_attention_heads':4,'qk_nope_head_dim':6,'qk_rope_head_dim':2,'v_head_dim':4,"            \
    "'kv_lora_rank':8,'q_lora_rank':12,'intermediate_size':20,'moe_intermediate_size':10,"         \
    "'n_routed_experts':3,'n_shared_experts':1,'first_k_dense_replace':1,"                         \
    "'num_nextn_predict_layers':1}"

/* Layers that predict further tokens may be there or not. */
static void test_optional(void **state)
{
    (void)state;
    ferry_names *names = names_of(PREDICTS, NULL);
    ferry_map *with = map_of(names, "hf", "megatron"), *without;
    ferry_error error;
    size_t number;
    must(ferry_map_find_target(with, "mtp.layers.0.eh_proj.weight", &number, &error), &error);
    see_all(names, "hf", "layers.2.", bf16);
    must(ferry_names_check_seen(names, "hf", &error), &error);
    without = map_of(names, "hf", "megatron");
    assert_int_equal(ferry_map_find_target(without, "mtp.layers.0.eh_proj.weight", &number, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_true(ferry_map_target_count(with) > ferry_map_target_count(without));
    ferry_map_destroy(with);
    ferry_map_destroy(without);
    ferry_names_destroy(names);
}

/* Of another naming's tensors, those of one layer, if `prefix` is not NULL; or none. */
static void check_left_out(ferry_names *names, const char *from, const char *to, const char *prefix)
{
    ferry_error error;
    enum { MOST = 256 };
    size_t count, n_wanted = 0;
    const char *found, *wanted[MOST];
    must(ferry_names_get_tensor_count(names, from, &count, &error), &error);
    for (size_t i = 0; i < count; i++) {
        ferry_map_tensor t = FERRY_MAP_TENSOR_INIT;
        must(ferry_names_tensor_at(names, from, i, &t, &error), &error);
        if (prefix != NULL && strncmp(t.name, prefix, strlen(prefix)) == 0) {
            must(ferry_names_left_out_at(names, from, to, n_wanted++, &found, &error), &error);
            assert_non_null(found);
            assert_string_equal(found, t.name);
            assert_true(n_wanted <= MOST);
            wanted[n_wanted - 1] = t.name;
        }
    }
    for (size_t i = n_wanted; i-- > 0;) { /* in any order, and twice */
        for (int k = 0; k < 2; k++) {
            must(ferry_names_left_out_at(names, from, to, i, &found, &error), &error);
            assert_string_equal(found, wanted[i]);
        }
    }
    must(ferry_names_left_out_at(names, from, to, n_wanted, &found, &error), &error);
    assert_null(found);
    assert_true((prefix != NULL) == (n_wanted > 0));
}

static void test_left_out(void **state)
{
    (void)state;
    ferry_names *names = names_of(PREDICTS, NULL);
    ferry_error error;
    const char *found;
    check_left_out(names, "hf", "vllm", "model.layers.2.");
    check_left_out(names, "hf", "transformers", "model.layers.2.");
    check_left_out(names, "megatron", "vllm", "mtp.layers.0.");
    check_left_out(names, "hf", "megatron", NULL);
    check_left_out(names, "vllm", "hf", NULL);
    see_all(names, "hf", "layers.2.", bf16);
    check_left_out(names, "hf", "vllm", NULL);
    assert_int_equal(ferry_names_left_out_at(names, "hf", "nosuch", 0, &found, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_names_left_out_at(names, "hf", "vllm", 0, NULL, &error),
                     FERRY_ERR_MISUSE);
    ferry_names_destroy(names);
}

static void test_find_naming(void **state)
{
    (void)state;
    static const char *const tensors[] = {"decoder.layers.0.input_layernorm.weight",
                                          "decoder.final_layernorm.weight"};
    static const char *const strange[] = {"bert.layer.0"};
    ferry_names *names = names_of(CONFIG "}", NULL);
    const char *found;
    ferry_error error;
    must(ferry_names_find_naming(names, tensors, 2, &found, &error), &error);
    assert_string_equal(found, "megatron-local");
    assert_int_equal(ferry_names_find_naming(names, strange, 1, &found, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "no naming has any of the 1 tensors (the first is \"bert.layer", &error);
    ferry_names_destroy(names);
}

#define GPT                                                                                        \
    "{'model_type':'gpt_oss','num_hidden_layers':1,'hidden_size':8,'vocab_size':10,"               \
    "'num_attention_heads':2,'num_key_value_heads':2,'head_dim':4,'intermediate_size':6,"          \
    "'num_local_experts':2}"

/* vLLM calls some modules otherwise than files do. */
static void test_server_names(void **state)
{
    (void)state;
    static const char *const tensors[] = {
        "model.embedding.weight",
        "model.layers.0.attn.qkv_proj.weight",
        "model.layers.0.attn.qkv_proj.bias",
        "model.layers.0.attn.o_proj.weight",
        "model.layers.0.attn.sinks",
    };
    ferry_names *names = names_of(GPT, NULL);
    ferry_map *map = map_of(names, "vllm", "vllm");
    ferry_error error;
    size_t number;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        must(ferry_map_find_target(map, tensors[i], &number, &error), &error);
    }
    ferry_map_destroy(map);
    ferry_names_destroy(names);
}

/* ---- sides and specs ---- */

/* What is transposed on the way is said in boxes, and so are zeros that ranks have. */
static void check_turned_specs(ferry_names *names)
{
    static const struct {
        const char *from, *source, *to, *destination;
        uint32_t first_rank, n_ranks;
    } rows[] = {
        {"hf", NULL, "megatron", "tp=2", 1, 3},     {"hf", "", "megatron", "ep=2", 0, 2},
        {"megatron", "tp=2", "hf", NULL, 2, 3},     {"hf", NULL, "megatron", "", 1, 2},
        {"hf", "tp=2", "megatron", "tp=2", 2, 4},   {"hf", "tp=2", "transformers", "tp=2", 2, 4},
        {"megatron", "tp=2", "vllm", "tp=2", 2, 4}, {"vllm", "tp=2", "vllm", "dp=2,tp=2", 3, 7},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ferry_spec *spec = NULL;
        ferry_plan *plan = NULL;
        ferry_error error;
        must(ferry_names_get_spec(names, rows[i].from, rows[i].source, rows[i].to,
                                  rows[i].destination, rows[i].first_rank, &spec, &error),
             &error);
        must(ferry_plan_create(spec, NULL, &plan, &error), &error);
        assert_int_equal(ferry_plan_rank_count(plan), rows[i].n_ranks);
        ferry_plan_destroy(plan);
        ferry_spec_destroy(spec);
    }
}

/* Whichever allocation fails, that is what is said, and a later call works. */
static void test_memory_of_boxes(void **state)
{
    (void)state;
    static const char *const rows[][4] = {{"hf", "tp=2", "megatron", "tp=2,ep=2"},
                                          {"vllm", "tp=2", "vllm", "tp=2"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ferry_names *names = names_of(GPT, NULL);
        ferry_status status = FERRY_ERR_NO_MEMORY;
        int64_t n = 0;
        for (; status != FERRY_OK; n++) {
            ferry_spec *spec = NULL;
            ferry_error error;
            fy_alloc_fail_after(n);
            status = ferry_names_get_spec(names, rows[i][0], rows[i][1], rows[i][2], rows[i][3], 4,
                                          &spec, &error);
            fy_alloc_fail_after(-1);
            check_at(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY, "allocation %d: %s",
                     (int)n, error.message);
            ferry_spec_destroy(spec);
        }
        assert_true(n > 100);
        ferry_names_destroy(names);
    }
}

static void test_transposed(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {0};
    ferry_names *names = names_of(GPT, NULL);
    ferry_map *map = NULL;
    ferry_side *side = NULL;
    text_buffer text = {0};
    ferry_error error;
    assert_int_equal(ferry_names_get_map(names, "hf", "megatron", &map, &error),
                     FERRY_ERR_UNSUPPORTED);
    check_says("", "is a transposed", &error);
    map = map_of(names, "hf", "transformers");
    must(ferry_names_get_side(names, "hf", "megatron", ranks, 1, &side, &error), &error);
    must(ferry_side_write_json(side, text_write, &text, &error), &error);
    assert_non_null(strstr(text.bytes, "decoder.layers.0.mlp.experts.linear_fc1.weight1"));
    check_turned_specs(names);
    text_cleanup(&text);
    ferry_side_destroy(side);
    ferry_map_destroy(map);
    ferry_names_destroy(names);
}

static void test_spec(void **state)
{
    (void)state;
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_spec *spec = NULL;
    ferry_plan *plan = NULL;
    ferry_error error;
    must(ferry_names_get_spec(names, "megatron", "tp=2,pp=2", "vllm", "tp=2", 4, &spec, &error),
         &error);
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    assert_int_equal(ferry_plan_rank_count(plan), 6);
    ferry_plan_destroy(plan);
    ferry_spec_destroy(spec);
    spec = NULL;
    must(ferry_names_get_spec(names, "hf", NULL, "hf", "", 1, &spec, &error), &error);
    ferry_spec_destroy(spec);
    assert_int_equal(ferry_names_get_spec(names, "megatron", "tp=4", "hf", NULL, 0, &spec, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("", "exceeds the 2", &error);
    ferry_names_destroy(names);
}

static void test_misuse(void **state)
{
    (void)state;
    static const uint64_t shape[] = {1};
    static const uint32_t ranks[] = {0};
    ferry_names *names = names_of(CONFIG "}", NULL);
    ferry_names_options options = FERRY_NAMES_OPTIONS_INIT;
    ferry_map_tensor tensor = FERRY_MAP_TENSOR_INIT;
    ferry_map *map;
    ferry_side *side;
    ferry_spec *spec;
    size_t count;
    const char *found;
    ferry_error error;
    assert_int_equal(ferry_names_create(&options, &names, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_get_tensor_count(NULL, "hf", &count, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_tensor_at(names, NULL, 0, &tensor, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_tensor_at(names, "hf", 1000, &tensor, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_names_see(names, "hf", NULL, bf16, 1, shape, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_check_seen(NULL, "hf", &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_find_naming(names, NULL, 1, &found, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_get_map(names, "hf", NULL, &map, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_get_side(names, "hf", "vllm", ranks, 0, &side, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_get_spec(names, NULL, NULL, "hf", NULL, 0, &spec, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_names_naming_count(NULL), 0);
    ferry_names_destroy(names);
    ferry_names_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_wrong_formulas),
        cmocka_unit_test(test_ways_are_one),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_config_is_wrong),
        cmocka_unit_test(test_own_family),
        cmocka_unit_test(test_own_family_is_wrong),
        cmocka_unit_test(test_seen),
        cmocka_unit_test(test_types_differ),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_optional),
        cmocka_unit_test(test_find_naming),
        cmocka_unit_test(test_server_names),
        cmocka_unit_test(test_memory_of_boxes),
        cmocka_unit_test(test_transposed),
        cmocka_unit_test(test_spec),
        cmocka_unit_test(test_misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
