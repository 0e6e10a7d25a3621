/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/layout_file.h"

#include "base/alloc.h"
#include "base/json.h"

#include "support/check.h"
#include "support/text.h"

#include <stdlib.h>
#include <unistd.h>

static fy_writer writer; /* too large for the stack */

static ferry_status parse(const char *text, json_t **side, json_t **tensors, ferry_error *error)
{
    return fy_layout_parse(text, strlen(text), "layout", side, tensors, error);
}

static char *dump(const json_t *json)
{
    ferry_error error;
    char *text = NULL;
    must(fy_json_dump(json, &text, &error), &error);
    return text;
}

static void test_parse(void **state)
{
    (void)state;
    ferry_error error;
    json_t *side = NULL, *tensors = NULL;
    must(parse("{\"format\":\"ferry.layout/1\",\"mesh\":[[\"tp\",2]],\"first_rank\":1,\"ranks\":1,"
               "\"stages\":{},\"rules\":\"deep\",\"tensors\":[{\"name\":1}]}",
               &side, &tensors, &error),
         &error);
    char *text = dump(side);
    assert_string_equal(text, "{\"mesh\":[[\"tp\",2]],\"first_rank\":1,\"ranks\":1,\"stages\":{},"
                              "\"rules\":\"deep\"}");
    fy_free(text);
    text = dump(tensors);
    assert_string_equal(text, "[{\"name\":1}]");
    fy_free(text);
    json_decref(side);
    json_decref(tensors);

    tensors = json_true(); /* is set even where there are none */
    must(parse("{\"mesh\":[]}", &side, &tensors, &error), &error);
    assert_null(tensors);
    assert_int_equal(json_object_size(side), 1);
    json_decref(side);
}

static void test_parse_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "layout"},
        {"[]", "must be an object"},
        {"{} {}", "line 1"},
        {"{\"mesh\":[],\"mesh\":[]}", "duplicate"},
        {"{\"mesh\":[]", "layout"},
        {"{\"mesh\":[],\"colour\":1}", "\"colour\""},
        {"{\"source\":{}}", "\"source\""},
        {"{\"format\":\"ferry.layout/2\"}", "\"ferry.layout/2\""},
        {"{\"format\":\"ferry.spec/1\"}", "\"ferry.layout/1\""},
        {"{\"format\":1}", "format"},
        {"{\"format\":null}", "format"},
        {"{\"tensors\":{}}", "tensors"},
        {"{\"tensors\":null}", "tensors"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        json_t *side = NULL, *tensors = NULL;
        check_status(rows[i].text, FERRY_ERR_INVALID_INPUT,
                     parse(rows[i].text, &side, &tensors, &error), &error);
        check_says(rows[i].text, rows[i].says, &error);
        check_says(rows[i].text, "layout", &error);
        check_row(rows[i].text, side == NULL && tensors == NULL);
    }
}

static void test_load(void **state)
{
    (void)state;
    ferry_error error;
    json_t *side = NULL, *tensors = NULL;
    char path[] = "/tmp/ferry-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "{\"rules\":[]}", 12) == 12);
    must(fy_layout_load(path, &side, &tensors, &error), &error);
    assert_non_null(json_object_get(side, "rules"));
    json_decref(side);
    side = NULL;
    assert_true(pwrite(fd, "x", 1, 0) == 1);
    assert_int_equal(fy_layout_load(path, &side, &tensors, &error), FERRY_ERR_INVALID_INPUT);
    check_says("damaged", path, &error);
    assert_int_equal(ftruncate(fd, (off_t)(1u << 30) + 1), 0);
    assert_int_equal(fy_layout_load(path, &side, &tensors, &error), FERRY_ERR_LIMIT);
    close(fd);
    unlink(path);
    assert_int_equal(fy_layout_load(path, &side, &tensors, &error), FERRY_ERR_IO);
    check_says("gone", path, &error);
    assert_null(side);
}

static const char SIDE[] = "{\"rules\":[{\"match\":\"*.q\",\"shard\":[{\"dim\":0,\"axis\":\"tp\"}]}"
                           ",{\"match\":\"\xc3\xa9\"}],"
                           "\"first_rank\":3,\"mesh\":[[\"pp\",2],[\"tp\",4]],"
                           "\"stages\":[{\"match\":\"l.{}.*\",\"count\":8,\"axis\":\"pp\"}]}";

static const char WRITTEN[] =
    "{\n"
    "  \"format\": \"ferry.layout/1\",\n"
    "  \"mesh\": [[\"pp\", 2], [\"tp\", 4]],\n"
    "  \"first_rank\": 3,\n"
    "  \"stages\": [\n"
    "    {\"match\": \"l.{}.*\", \"count\": 8, \"axis\": \"pp\"}\n"
    "  ],\n"
    "  \"rules\": [\n"
    "    {\"match\": \"*.q\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]},\n"
    "    {\"match\": \"\xc3\xa9\"}\n"
    "  ],\n"
    "  \"tensors\": [\n"
    "    {\"name\": \"l.0.q\", \"shape\": [4, 0], \"dtype\": \"bf16\"},\n"
    "    {\"name\": \"\\u0022\\u000a\", \"shape\": [], \"dtype\": "
    "\"bytes:3\"}\n"
    "  ]\n"
    "}\n";

static ferry_status write_all(const json_t *side, text_buffer *output, ferry_error *error)
{
    static const uint64_t shape[] = {4, 0};
    fy_writer_init(&writer, text_write, output);
    fy_layout_write_begin(&writer, side);
    fy_layout_write_tensor(&writer, 0, "l.0.q", "bf16", shape, 2);
    fy_layout_write_tensor(&writer, 1, "\"\n", "bytes:3", NULL, 0);
    fy_layout_write_end(&writer);
    return fy_writer_finish(&writer, error);
}

/* The text is for people, and says what was given. */
static void test_write(void **state)
{
    (void)state;
    ferry_error error;
    text_buffer output = {0};
    json_t *side = NULL, *tensors = NULL, *back = NULL;
    must(parse(SIDE, &side, &tensors, &error), &error);
    must(write_all(side, &output, &error), &error);
    assert_string_equal(output.bytes, WRITTEN);
    must(parse(output.bytes, &back, &tensors, &error), &error);
    assert_true(json_equal(back, side));
    assert_int_equal(json_array_size(tensors), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 1), "name")),
                        "\"\n");
    json_decref(back);
    json_decref(tensors);
    json_decref(side);
    text_cleanup(&output);
}

static void test_write_nothing(void **state)
{
    (void)state;
    ferry_error error;
    text_buffer output = {0};
    json_t *side = json_pack("{s[]s[]s[ii]}", "mesh", "rules", "ranks", 4, 2), *back, *tensors;
    fy_writer_init(&writer, text_write, &output);
    fy_layout_write_begin(&writer, side);
    fy_layout_write_end(&writer);
    must(fy_writer_finish(&writer, &error), &error);
    must(parse(output.bytes, &back, &tensors, &error), &error);
    assert_true(json_equal(back, side));
    assert_int_equal(json_array_size(tensors), 0);
    json_decref(back);
    json_decref(tensors);
    json_decref(side);
    text_cleanup(&output);
}

static int refuse(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    return -1;
}

static void test_write_fails(void **state)
{
    (void)state;
    ferry_error error;
    json_t *side = json_object(), *rules = json_array();
    text_buffer output = {0};
    for (int i = 0; i < 5000; i++) {
        json_array_append_new(rules, json_string("a rule that is long enough to fill the buffer"));
    }
    json_object_set_new(side, "rules", rules);
    fy_writer_init(&writer, refuse, NULL);
    fy_layout_write_begin(&writer, side);
    fy_layout_write_end(&writer);
    assert_int_equal(fy_writer_finish(&writer, &error), FERRY_ERR_IO);
    /* What jansson does not write, here a circle, is never left out in silence. */
    json_array_append(rules, side);
    fy_writer_init(&writer, text_write, &output);
    fy_layout_write_begin(&writer, side);
    fy_layout_write_end(&writer);
    assert_int_equal(fy_writer_finish(&writer, &error), FERRY_ERR_IO);
    json_array_clear(rules);
    json_decref(side);
    text_cleanup(&output);
}

static int json_left;

static void *scarce(size_t n_bytes)
{
    return json_left-- > 0 ? malloc(n_bytes) : NULL;
}

/* Where jansson's memory ends in the middle, the output fails: it never lacks a part. */
static void test_write_without_memory(void **state)
{
    (void)state;
    ferry_error error;
    ferry_status status = FERRY_ERR_IO;
    int n = 0;
    json_t *side = NULL;
    json_t *tensors = NULL;
    must(parse(SIDE, &side, &tensors, &error), &error);
    for (; status != FERRY_OK; n++) {
        text_buffer output = {0};
        assert_true(n < 10000);
        json_left = n;
        json_set_alloc_funcs(scarce, free);
        status = write_all(side, &output, &error);
        json_set_alloc_funcs(malloc, free);
        check_at(status == FERRY_OK || status == FERRY_ERR_IO, "allocation %d", n);
        check_at(status != FERRY_OK || strcmp(output.bytes, WRITTEN) == 0, "allocation %d", n);
        text_cleanup(&output);
    }
    assert_true(n > 1);
    json_decref(side);
}

static void test_load_without_memory(void **state)
{
    (void)state;
    ferry_error error;
    char path[] = "/tmp/ferry-test-XXXXXX";
    int fd = mkstemp(path);
    ferry_status status = FERRY_ERR_NO_MEMORY;
    int64_t n = 0;
    json_t *side = NULL, *tensors = NULL;
    assert_true(fd >= 0 && write(fd, SIDE, sizeof SIDE - 1) == (ssize_t)(sizeof SIDE - 1));
    for (; status == FERRY_ERR_NO_MEMORY; n++) {
        assert_true(n < 100 && side == NULL);
        fy_alloc_fail_after(n);
        status = fy_layout_load(path, &side, &tensors, &error);
        fy_alloc_fail_after(-1);
    }
    must(status, &error);
    assert_true(n > 1 && tensors == NULL);
    json_decref(side);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_nothing),
        cmocka_unit_test(test_write_fails),
        cmocka_unit_test(test_write_without_memory),
        cmocka_unit_test(test_load_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
