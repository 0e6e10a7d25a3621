/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Formats of blocks by their words, and what is said of them in a config.json. */
#include "checkpoint/config_text.h"
#include "convert/words.h"

#include "base/alloc.h"
#include "base/json.h"

#include "support/check.h"

#include <jansson.h>

#include <string.h>

static void test_words(void **state)
{
    static const struct {
        const char *text, *printed;
        uint32_t kind, scale_kind;
        fy_scale_rule rule;
        uint64_t rows, columns;
    } rows[] = {
        {"f8e4m3:128x128", "f8e4m3:128x128", FERRY_F8E4M3, FERRY_F32, FY_SCALE_LARGEST, 128, 128},
        {"f8e4m3:1x65536:f32", "f8e4m3:1x65536", FERRY_F8E4M3, FERRY_F32, FY_SCALE_LARGEST, 1,
         65536},
        {"f8e5m2:7x3:pow2", "f8e5m2:7x3:pow2", FERRY_F8E5M2, FERRY_F32, FY_SCALE_COVER, 7, 3},
        {"f8e4m3:128x128:e8m0", "f8e4m3:128x128:e8m0", FERRY_F8E4M3, FERRY_F8E8M0, FY_SCALE_COVER,
         128, 128},
        {"mxfp8", "mxfp8", FERRY_F8E4M3, FERRY_F8E8M0, FY_SCALE_FLOOR, 1, 32},
        {"nvfp4", "nvfp4", FERRY_F4, FERRY_F8E4M3, FY_SCALE_LARGEST, 1, 16},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_block_format format;
        ferry_error error;
        char text[FY_FORMAT_TEXT_BYTES];
        must(fy_format_parse(rows[i].text, strlen(rows[i].text), &format, &error), &error);
        assert_int_equal(format.kind, rows[i].kind);
        assert_int_equal(format.scale_kind, rows[i].scale_kind);
        assert_int_equal(format.rule, rows[i].rule);
        assert_int_equal(format.block[0], rows[i].rows);
        assert_int_equal(format.block[1], rows[i].columns);
        fy_format_print(&format, text);
        assert_string_equal(text, rows[i].printed);
    }
}

static void test_no_words(void **state)
{
    static const char *const texts[] = {
        "",
        "f8",
        "f8e4m3",
        "f8e4m3:",
        "f8e4m3:128",
        "f8e4m3:x1",
        "f8e4m3:128x",
        "f8e4m3:0x1",
        "f8e4m3:1x65537",
        "f8e4m3:1x1x1",
        "f8e4m3: 1x1",
        "f8e4m3:1x1:",
        "f8e4m3:1x1:e4m3",
        "f8e4m3:1x1:f32:",
        "f8e4m3:1x1:f32:f32",
        "mxfp8:1x32",
        "nvfp4:",
        "F8E4M3:1x1",
        "bf16",
        "f8e4m3:-1x1",
        "f8e4m3:99999999999999999999x1",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        fy_block_format format = {.kind = 77};
        ferry_error error = {""};
        assert_int_equal(fy_format_parse(texts[i], strlen(texts[i]), &format, &error),
                         FERRY_ERR_INVALID_INPUT);
        assert_non_null(strstr(error.message, texts[i]));
        assert_int_equal(format.kind, 77);
    }
}

static void test_only_the_length(void **state)
{
    fy_block_format format;
    ferry_error error;
    (void)state;
    must(fy_format_parse("mxfp8=*.weight", 5, &format, &error), &error);
    assert_int_equal(format.block[1], 32);
}

/* A config.json becomes another, with this value or none. */
static void check_config(const char *text, const char *value, const char *expected)
{
    char *changed = NULL;
    size_t length = 0;
    ferry_error error;
    must(fy_config_set_quantization(text, strlen(text), value, &changed, &length, &error), &error);
    assert_string_equal(changed, expected);
    assert_int_equal(length, strlen(expected));
    fy_free(changed);
}

static void test_configs(void **state)
{
    (void)state;
    check_config("{}", NULL, "{}");
    check_config("{ \"a\": 1 }", NULL, "{ \"a\": 1 }");
    check_config("{\"a\":1,\"quantization_config\":{\"b\":[1,{}],\"c\":\"}\\\"\"}}", NULL,
                 "{\"a\":1}");
    check_config("{\"quantization_config\": null ,\n \"a\": 1}", NULL, "{\"a\": 1}");
    check_config("{\"quantization_config\":{}}\n", NULL, "{}\n");
    check_config("{\"text_config\": {\"quantization_config\": {}, \"a\": 2}, \"x\": "
                 "{\"quantization_config\": 3}}",
                 NULL, "{\"text_config\": {\"a\": 2}, \"x\": {\"quantization_config\": 3}}");
    check_config(
        "{\"a\":1, \"b_config\": {\"quantization_config\":1, \"quantization_config\":2}\n, "
        "\"quantization_config\":3 }",
        NULL, "{\"a\":1, \"b_config\": {}\n }");
    check_config("{}", "{\"q\":1}", "{\n  \"quantization_config\": {\"q\":1}\n}");
    check_config("{\n  \"eps\": 1e-06\n}\n", "{\"q\":1}",
                 "{\n  \"eps\": 1e-06,\n  \"quantization_config\": {\"q\":1}\n}\n");
    check_config("{\"quantization_config\": {\"old\":1}, \"a\": 1}", "5",
                 "{\"a\": 1,\n  \"quantization_config\": 5\n}");
}

static void test_description(void **state)
{
    static const char *const names[] = {"lm_head.weight", "model.embed_tokens.weight", "w",
                                        "model.layers.0.mlp.gate.weight", ".weight"};
    fy_block_format format = fy_format_f8(128, 64);
    char *text = NULL;
    ferry_error error;
    (void)state;
    must(fy_config_describe(&format, names, COUNT_OF(names), &text, &error), &error);
    assert_string_equal(
        text, "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
              "\"weight_block_size\":[128,64],\"modules_to_not_convert\":[\"lm_head\","
              "\"model.layers.0.mlp.gate\"]}");
    fy_free(text);
    format.rule = FY_SCALE_COVER;
    must(fy_config_describe(&format, NULL, 0, &text, &error), &error);
    assert_non_null(strstr(text, "\"scale_fmt\":\"ue8m0\""));
    fy_free(text);
}

/* A quantization_config becomes another, where two tensors are values now. */
static void check_rest(const char *about, const char *expected)
{
    static const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "experts.down"};
    json_t *json = json_loads(about, 0, NULL);
    char *text = NULL;
    ferry_error error;
    assert_non_null(json);
    must(fy_config_describe_rest(json, names, COUNT_OF(names), &text, &error), &error);
    assert_string_equal(text, expected);
    fy_free(text);
    json_decref(json);
}

static void test_rest(void **state)
{
    (void)state;
    check_rest("{\"quant_method\": \"fp8\", \"weight_block_size\": [4, 4]}",
               "{\"quant_method\":\"fp8\",\"weight_block_size\":[4,4],"
               "\"modules_to_not_convert\":[\"model.layers.0.mlp.up_proj\",\"experts.down\"]}");
    check_rest("{\"modules_to_not_convert\": [\"lm_head\"], \"fmt\": \"e4m3\"}",
               "{\"modules_to_not_convert\":[\"lm_head\",\"model.layers.0.mlp.up_proj\","
               "\"experts.down\"],\"fmt\":\"e4m3\"}");
    check_rest("{\"modules_to_not_convert\": null}",
               "{\"modules_to_not_convert\":[\"model.layers.0.mlp.up_proj\",\"experts.down\"]}");
    check_rest("{\"ignored_layers\": [], \"ignore\": [\"a\"]}",
               "{\"ignored_layers\":[\"model.layers.0.mlp.up_proj\",\"experts.down\"],"
               "\"ignore\":[\"a\",\"model.layers.0.mlp.up_proj\",\"experts.down\"]}");
}

static void test_default_tensors(void **state)
{
    static const struct {
        const char *name;
        uint32_t n_dims;
        bool is_quantized;
    } rows[] = {
        {"model.layers.0.self_attn.q_proj.weight", 2, true},
        {"model.layers.61.mlp.experts.255.down_proj.weight", 2, true},
        {"model.layers.3.mlp.shared_experts.up_proj.weight", 2, true},
        {"model.layers.3.self_attn.kv_a_proj_with_mqa.weight", 2, true},
        {"gpt_neox.layers.0.attention.query_key_value.weight", 2, true},
        {"model.layers.0.mlp.experts.gate_up_proj", 3, true},
        {"model.layers.0.mlp.experts.gate_up_proj", 2, false},
        {"model.layers.0.self_attn.q_proj.bias", 1, false},
        {"model.layers.0.self_attn.q_proj.weight", 1, false},
        {"model.layers.3.mlp.gate.weight", 2, false},
        {"model.layers.3.mlp.shared_expert_gate.weight", 2, false},
        {"model.layers.3.block_sparse_moe.router.layer.weight", 2, false},
        {"model.layers.61.eh_proj.weight", 2, false},
        {"model.layers.61.shared_head.head.weight", 2, false},
        {"model.layers.61.embed_tokens.weight", 2, false},
        {"backbone.layers.1.mixer.conv1d.weight", 3, false},
        {"backbone.layers.1.mixer.in_proj.weight", 2, true},
        {"model.visual.blocks.0.attn.qkv.weight", 2, false},
        {"model.embed_tokens.weight", 2, false},
        {"lm_head.weight", 2, false},
        {"model.norm.weight", 1, false},
        {"weight", 2, false},
        {"0.weight", 2, true},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (fy_quantizes_by_default(rows[i].name, rows[i].n_dims) != rows[i].is_quantized) {
            fail_msg("\"%s\" with %u dimensions", rows[i].name, rows[i].n_dims);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_no_words),
        cmocka_unit_test(test_only_the_length),
        cmocka_unit_test(test_configs),
        cmocka_unit_test(test_rest),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_default_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
