/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/others.h"

#include "base/alloc.h"

#include "support/check.h"
#include "support/small_checkpoint.h"

#include <stdlib.h>
#include <string.h>

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_left_out;
    } rows[] = {
        {"pytorch_model.bin", true},
        {"pytorch_model-00001-of-00002.bin", true},
        {"pytorch_model.bin.index.json", true},
        {"consolidated.00.pth", true},
        {"consolidated.00.pt", true},
        {"model-Q4_K_M.gguf", true},
        {"tf_model.h5", true},
        {"flax_model.msgpack", true},
        {"rust_model.ot", true},
        {"model.onnx", true},
        {"config.json", false},
        {"tokenizer.model", false},
        {"tokenizer.json", false},
        {"big.bin", false},
        {"training_args.bin", false},
        {"optimizer.pt", false},
        {"modeling_llama.py", false},
        {"gguf", false},
        {"README.md", false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_row(rows[i].name, (fy_other_left_out(rows[i].name) != NULL) == rows[i].is_left_out);
    }
}

/* expected NULL: nothing is to change. */
static void test_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"{\"torch_dtype\": \"float32\"}", "{\"torch_dtype\": \"bfloat16\"}"},
        {"{\"a\":1e-05,\n \"torch_dtype\"\t:\n\"float16\" ,\"b\":[]}\n",
         "{\"a\":1e-05,\n \"torch_dtype\"\t:\n\"bfloat16\" ,\"b\":[]}\n"},
        {"{\"dtype\": \"torch.float32\"}", "{\"dtype\": \"bfloat16\"}"},
        {"{\"torch_dtype\": \"bfloat16\"}", NULL},
        {"{\"torch_dtype\": \"auto\"}", NULL},
        {"{\"torch_dtype\": null, \"dtype\": 3}", NULL},
        {"{\"text_config\": {\"torch_dtype\": \"float32\", \"x\": {\"dtype\": \"float32\"}}}",
         "{\"text_config\": {\"torch_dtype\": \"bfloat16\", \"x\": {\"dtype\": \"float32\"}}}"},
        {"{\"quantization_config\": {\"dtype\": \"float16\"}, \"dtype\": \"float32\"}",
         "{\"quantization_config\": {\"dtype\": \"float16\"}, \"dtype\": \"bfloat16\"}"},
        {"{\"x_config\": [{\"dtype\": \"float16\"}]}", NULL},
        {"[{\"dtype\": \"float16\"}]", NULL},
        {"{\"list\": [\"dtype\", \"float16\"], \"note\": \"torch_dtype\"}", NULL},
        {"{\"say \\\"torch_dtype\\\": \": \"float32\"}", NULL},
        {"{\"a\\\\\": \"}\", \"torch_dtype\": \"float32\"}",
         "{\"a\\\\\": \"}\", \"torch_dtype\": \"bfloat16\"}"},
        {"", NULL},
        {"{\"torch_dtype\": \"float32", NULL},
        {"{\"torch_dtype\":", NULL},
        {"}}}}", NULL},
        {"{\"a\": {\"a\": {}}, \"torch_dtype\": \"half\", \"vision_config\": {\"dtype\": "
         "\"double\"}}",
         "{\"a\": {\"a\": {}}, \"torch_dtype\": \"bfloat16\", \"vision_config\": {\"dtype\": "
         "\"bfloat16\"}}"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        size_t length = 0, given = strlen(rows[i].text);
        char *changed = NULL, *text = malloc(given + 1); /* reading behind it is seen */
        memcpy(text, rows[i].text, given);
        must(fy_config_set_dtype(text, given, "bfloat16", &changed, &length, &error), &error);
        check_row(rows[i].text, (changed == NULL) == (rows[i].expected == NULL));
        if (changed != NULL) {
            check_row(rows[i].text, length == strlen(rows[i].expected) &&
                                        memcmp(changed, rows[i].expected, length) == 0);
        }
        fy_free(changed);
        free(text);
    }
}

/* Deeper than any config is: nothing of it is taken for the model's. */
static void test_deep(void **state)
{
    (void)state;
    static char text[4000];
    ferry_error error;
    size_t length = 0;
    char *changed = NULL;
    for (int i = 0; i < 200; i++) {
        strcat(text, "{\"x_config\": ");
    }
    strcat(text, "{\"torch_dtype\": \"float32\"}");
    must(fy_config_set_dtype(text, strlen(text), "bfloat16", &changed, &length, &error), &error);
    assert_null(changed);
}

static void put_config(const char *text)
{
    FILE *stream = fopen(small_path("source/config.json"), "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, strlen(text), stream), strlen(text));
    assert_int_equal(fclose(stream), 0);
}

/* What is written is what was announced, whatever becomes of the source's file meanwhile. */
static void test_config_is_read_once(void **state)
{
    (void)state;
    static const char then[] = "{\"torch_dtype\": \"float32\"}";
    static const char later[] = "{\"torch_dtype\": \"float16\", \"model_type\": \"x\"}";
    static const char expected[] = "{\"torch_dtype\": \"bfloat16\"}";
    ferry_reshard_options options = FERRY_RESHARD_OPTIONS_INIT;
    ferry_reshard *reshard;
    ferry_error error;
    small_file file = {0};
    char text[80] = "";
    assert_int_equal(mkdir(small_path("source"), 0700), 0);
    small_add(&file, "w", "F32", (uint64_t[]){1}, 1, "\0\0\200?", 4);
    small_write(&file, small_path("source/model.safetensors"), NULL);
    put_config(then);
    ferry_checkpoint *source = small_open(small_path("source"));
    options.cast = FERRY_BF16;
    must(ferry_reshard_create(source, "hf", &options, &reshard, &error), &error);
    put_config(later);
    must(ferry_reshard_run(reshard, small_path("result"), NULL, NULL, &error), &error);
    FILE *stream = fopen(small_path("result/config.json"), "rb");
    assert_non_null(stream);
    assert_int_equal(fread(text, 1, sizeof text - 1, stream), strlen(expected));
    assert_string_equal(text, expected);
    fclose(stream);
    ferry_reshard_destroy(reshard);
    ferry_checkpoint_destroy(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_dtype),
        cmocka_unit_test(test_deep),
        cmocka_unit_test(test_config_is_read_once),
    };
    return cmocka_run_group_tests(tests, small_begin, small_end);
}
