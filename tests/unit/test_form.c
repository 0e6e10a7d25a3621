/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/form.h"

#include "base/alloc.h"

#include "support/check.h"
#include "support/random.h"
#include "support/text.h"

#include <stdlib.h>

#include <jansson.h>

static fy_writer writer; /* too large for the stack */
static text_buffer output;

static int cleanup(void **state)
{
    (void)state;
    text_cleanup(&output);
    return 0;
}

/* The header, whose length is checked against what was said before. */
static const char *write_header(fy_form *form)
{
    ferry_error error;
    text_cleanup(&output);
    must(fy_form_arrange(form, "file", &error), &error);
    fy_writer_init(&writer, text_write, &output);
    fy_form_write_header(form, &writer);
    must(fy_writer_finish(&writer, &error), &error);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | (unsigned char)output.bytes[i];
    }
    assert_int_equal(output.used, form->header_bytes);
    assert_int_equal(length, form->header_bytes - 8);
    assert_int_equal(form->header_bytes % 8, 0);
    return output.bytes + 8;
}

static void test_empty(void **state)
{
    (void)state;
    fy_form form = {.has_checksums = true};
    assert_string_equal(write_header(&form), "{}      ");
    assert_int_equal(form.data_bytes, 0);
}

static void test_only_metadata(void **state)
{
    (void)state;
    const fy_st_entry entries[] = {{"a", "1"}, {"b", "2"}};
    fy_form form = {.metadata = entries, .n_metadata = 2};
    assert_string_equal(write_header(&form), "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\"}}      ");
}

/* By size of element, then by name; what has no elements stands in its order too. */
static void test_order(void **state)
{
    (void)state;
    static const uint64_t shape[] = {2, 3, 0};
    fy_form_tensor tensors[] = {
        {.name = "z6", .dtype_text = "F6_E2M3", .element_bits = 6, .bytes = 3, .tag = 0},
        {.name = "b",
         .dtype_text = "F16",
         .element_bits = 16,
         .n_dims = 2,
         .shape = shape,
         .bytes = 12,
         .tag = 1},
        {.name = "a8",
         .dtype_text = "I8",
         .element_bits = 8,
         .n_dims = 1,
         .shape = shape,
         .bytes = 2,
         .tag = 2},
        {.name = "z", .dtype_text = "I64", .element_bits = 64, .bytes = 8, .tag = 3},
        {.name = "a4",
         .dtype_text = "F4",
         .element_bits = 4,
         .n_dims = 1,
         .shape = shape,
         .bytes = 1,
         .tag = 4},
        {.name = "B",
         .dtype_text = "BF16",
         .element_bits = 16,
         .n_dims = 3,
         .shape = shape,
         .bytes = 0,
         .tag = 5},
    };
    static const uint32_t tags[] = {3, 5, 1, 2, 0, 4};
    static const uint64_t begins[] = {0, 8, 8, 20, 22, 25};
    fy_form form = {.tensors = tensors, .n_tensors = COUNT_OF(tensors)};
    const char *text = write_header(&form);
    for (size_t i = 0; i < COUNT_OF(tensors); i++) {
        check_at(tensors[i].tag == tags[i] && tensors[i].begin == begins[i], "place %zu", i);
    }
    assert_int_equal(form.data_bytes, 26);
    assert_memory_equal(text,
                        "{\"z\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                        "\"B\":{\"dtype\":\"BF16\",\"shape\":[2,3,0],\"data_offsets\":[8,8]},",
                        100);
}

/* The escapes of serde_json, and nothing else is touched. */
static void test_escapes(void **state)
{
    (void)state;
    fy_form_tensor tensor = {.name = "\"\\/\b\f\n\r\t\x01\x1f\x7f\xc3\xa9\xf0\x9d\x84\x9e",
                             .dtype_text = "U8",
                             .element_bits = 8,
                             .bytes = 1,
                             .checksum = 0x00fedcba98765432};
    const fy_st_entry entries[] = {{"\n", "\x0b"}};
    fy_form form = {.tensors = &tensor,
                    .n_tensors = 1,
                    .metadata = entries,
                    .n_metadata = 1,
                    .has_checksums = true};
#define NAME "\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9\xf0\x9d\x84\x9e"
    const char expected[] = "{\"__metadata__\":{\"\\n\":\"\\u000b\",\"ferry.xxh3." NAME
                            "\":\"00fedcba98765432\"},\"" NAME
                            "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    assert_memory_equal(write_header(&form), expected, sizeof expected - 1);
}

/* Keys of checksums take their place among the others, sorted by name whatever the element. */
static void test_metadata_order(void **state)
{
    (void)state;
    fy_form_tensor tensors[] = {{.name = "d", .dtype_text = "U8", .element_bits = 8},
                                {.name = "a", .dtype_text = "U8", .element_bits = 8},
                                {.name = "b", .dtype_text = "F4", .element_bits = 4},
                                {.name = "\xc3", .dtype_text = "F32", .element_bits = 32},
                                {.name = " ", .dtype_text = "F4", .element_bits = 4},
                                {.name = "c", .dtype_text = "F32", .element_bits = 32}};
    const fy_st_entry entries[] = {{"", "v"}, {"ferry", "v"}, {"ferry/", "v"}, {"format", "pt"}};
    fy_form form = {.tensors = tensors,
                    .n_tensors = COUNT_OF(tensors),
                    .metadata = entries,
                    .n_metadata = COUNT_OF(entries),
                    .has_checksums = true};
#define ZERO "\":\"0000000000000000\",\"ferry"
    const char expected[] = "{\"__metadata__\":{\"\":\"v\",\"ferry\":\"v\",\"ferry.xxh3. " ZERO
                            ".xxh3.a" ZERO ".xxh3.b" ZERO ".xxh3.c" ZERO ".xxh3.d" ZERO
                            ".xxh3.\xc3" ZERO "/\":\"v\",\"format\":\"pt\"},\"c\":";
    assert_memory_equal(write_header(&form), expected, sizeof expected - 1);
}

/* No file is written that would not be read. */
static void test_names_that_files_cannot_have(void **state)
{
    (void)state;
    static const char *const names[] = {"", "__metadata__", "_"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        fy_form_tensor tensors[] = {{.name = "a", .dtype_text = "U8", .element_bits = 8},
                                    {.name = names[i], .dtype_text = "U8", .element_bits = 8}};
        fy_form form = {.tensors = tensors, .n_tensors = COUNT_OF(tensors)};
        ferry_error error;
        ferry_status status = fy_form_arrange(&form, "here", &error);
        check_status(names[i], i == 2 ? FERRY_OK : FERRY_ERR_INVALID_INPUT, status, &error);
        if (i < 2) {
            check_says(names[i], i == 0 ? "the name of a tensor is empty" : names[i], &error);
        }
    }
}

/* Whatever the order given, the bytes are the same, and every begin is whole elements away. */
static void test_random_order(void **state)
{
    (void)state;
    static const uint32_t bits[] = {64, 32, 16, 8, 4};
    uint64_t seed = 11;
    for (int round = 0; round < 300; round++) {
        fy_form_tensor tensors[20];
        char names[COUNT_OF(tensors)][8];
        uint64_t shapes[COUNT_OF(tensors)];
        uint32_t n = random_below(&seed, COUNT_OF(tensors) + 1);
        fy_form form = {.tensors = tensors, .n_tensors = n, .has_checksums = true};
        for (size_t i = 0; i < n; i++) {
            uint32_t size = bits[random_below(&seed, COUNT_OF(bits))];
            shapes[i] = random_below(&seed, 5) * 2;
            snprintf(names[i], sizeof names[i], "%c%zu", (char)('a' + random_below(&seed, 3)), i);
            tensors[i] = (fy_form_tensor){.name = names[i],
                                          .dtype_text = "X",
                                          .element_bits = size,
                                          .n_dims = 1,
                                          .shape = &shapes[i],
                                          .bytes = shapes[i] * size / 8,
                                          .checksum = i};
        }
        write_header(&form);
        text_buffer first = output;
        output = (text_buffer){0};
        for (size_t i = 0; i < n; i++) {
            uint64_t size = tensors[i].element_bits < 8 ? 1 : tensors[i].element_bits / 8;
            uint64_t end = i == 0 ? 0 : tensors[i - 1].begin + tensors[i - 1].bytes;
            check_at(tensors[i].begin % size == 0 && tensors[i].begin == end, "round %d", round);
        }
        for (size_t i = 0; i < n; i++) {
            uint32_t other = random_below(&seed, n);
            fy_form_tensor kept = tensors[i];
            tensors[i] = tensors[other];
            tensors[other] = kept;
        }
        write_header(&form);
        check_at(first.used == output.used && memcmp(first.bytes, output.bytes, first.used) == 0,
                 "round %d", round);
        json_t *json = json_loadb(output.bytes + 8, output.used - 8, JSON_REJECT_DUPLICATES, NULL);
        check_at(json_object_size(json) == n + (n > 0), "round %d", round);
        json_decref(json);
        text_cleanup(&first);
    }
}

/* Exactly the limit passes; one byte more, even of padding, does not. */
static void test_header_limit(void **state)
{
    (void)state;
    static const char frame[] = "{\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    const size_t n_most = 100000000 - (sizeof frame - 1);
    char *name = malloc(n_most + 2);
    fy_form_tensor tensor = {.name = name, .dtype_text = "U8", .element_bits = 8, .bytes = 1};
    fy_form form = {.tensors = &tensor, .n_tensors = 1};
    ferry_error error;
    assert_non_null(name);
    memset(name, 'n', n_most + 1);
    name[n_most + 1] = '\0';
    assert_int_equal(fy_form_arrange(&form, "file", &error), FERRY_ERR_LIMIT);
    check_says("limit", "file: ", &error);
    check_says("limit", "100000008", &error);
    name[n_most] = '\0';
    must(fy_form_arrange(&form, "file", &error), &error);
    assert_int_equal(form.header_bytes, 100000008);
    free(name);
}

static void test_other_limits(void **state)
{
    (void)state;
    ferry_error error;
    fy_form_tensor large[] = {{.name = "a", .dtype_text = "U8", .bytes = UINT64_MAX / 4},
                              {.name = "b", .dtype_text = "U8", .bytes = UINT64_MAX - 8}};
    fy_form form = {.tensors = large, .n_tensors = 2};
    assert_int_equal(fy_form_arrange(&form, "file", &error), FERRY_ERR_LIMIT);
    check_says("bytes", "file: ", &error);

    fy_form_tensor many[34];
    char names[34][8];
    for (uint32_t i = 0; i < 34; i++) {
        snprintf(names[i], sizeof names[i], "%02u", i);
        many[i] = (fy_form_tensor){
            .name = names[i], .dtype_text = "X", .element_bits = i < 32 ? 8 * (i + 1) : 8};
    }
    form = (fy_form){.tensors = many, .n_tensors = 34, .has_checksums = true};
    write_header(&form);
    many[33].element_bits = 3;
    assert_int_equal(fy_form_arrange(&form, "file", &error), FERRY_ERR_LIMIT);
}

static void test_parts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t n;
        uint64_t most;
        uint64_t bytes[6];
        uint32_t parts[6], n_parts;
    } rows[] = {
        {"none", 0, 10, {0}, {0}, 1},
        {"one", 1, 10, {3}, {0}, 1},
        {"exactly full", 3, 10, {4, 6, 1}, {0, 0, 1}, 2},
        {"would exceed", 3, 10, {4, 7, 3}, {0, 1, 1}, 2},
        {"larger than a part", 3, 10, {1, 11, 1}, {0, 1, 2}, 3},
        {"larger first", 3, 10, {11, 12, 10}, {0, 1, 2}, 3},
        {"empty ones stay", 4, 10, {10, 0, 0, 1}, {0, 0, 0, 1}, 2},
        {"empty ones beside a larger one", 3, 10, {0, 11, 0}, {0, 0, 0}, 1},
        {"huge", 3, 10, {UINT64_MAX, UINT64_MAX, 1}, {0, 1, 2}, 3},
        {"no limit", 3, UINT64_MAX, {1ull << 62, 1ull << 62, 1}, {0, 0, 0}, 1},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t part[6];
        check_row(rows[i].name,
                  fy_form_parts(rows[i].bytes, rows[i].n, rows[i].most, part) == rows[i].n_parts);
        check_row(rows[i].name, memcmp(part, rows[i].parts, rows[i].n * sizeof *part) == 0);
    }
}

static void test_names(void **state)
{
    (void)state;
    char name[64];
    fy_form_part_name(0, 1, name, sizeof name);
    assert_string_equal(name, "model.safetensors");
    fy_form_part_name(0, 3, name, sizeof name);
    assert_string_equal(name, "model-00001-of-00003.safetensors");
    fy_form_part_name(123455, 123456, name, sizeof name);
    assert_string_equal(name, "model-123456-of-123456.safetensors");
    fy_form_rank_name(0, name, sizeof name);
    assert_string_equal(name, "rank-00000.safetensors");
    fy_form_rank_name(16777215, name, sizeof name);
    assert_string_equal(name, "rank-16777215.safetensors");
}

static ferry_status write_index(const char *const *names, const uint32_t *part, size_t n,
                                ferry_error *error)
{
    text_cleanup(&output);
    fy_writer_init(&writer, text_write, &output);
    ferry_status status = fy_form_write_index(names, part, n, 2, 12345678901, &writer, error);
    if (status == FERRY_OK) {
        must(fy_writer_finish(&writer, error), error);
    }
    return status;
}

static void test_index(void **state)
{
    (void)state;
    static const char *const names[] = {"b", "\"a\n", "b.c"};
    static const uint32_t part[] = {0, 1, 1};
    ferry_error error;
    must(write_index(names, part, 3, &error), &error);
    assert_string_equal(output.bytes, "{\n"
                                      "  \"metadata\": {\n"
                                      "    \"total_size\": 12345678901\n"
                                      "  },\n"
                                      "  \"weight_map\": {\n"
                                      "    \"\\\"a\\n\": \"model-00002-of-00002.safetensors\",\n"
                                      "    \"b\": \"model-00001-of-00002.safetensors\",\n"
                                      "    \"b.c\": \"model-00002-of-00002.safetensors\"\n"
                                      "  }\n"
                                      "}\n");
    must(write_index(NULL, NULL, 0, &error), &error);
    json_t *json = json_loads(output.bytes, 0, NULL);
    assert_int_equal(json_object_size(json_object_get(json, "weight_map")), 0);
    json_decref(json);
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"b", "a"};
    static const uint32_t part[] = {0, 1};
    ferry_error error;
    fy_form_tensor tensor = {.name = "a", .dtype_text = "U8", .element_bits = 8};
    fy_form form = {.tensors = &tensor, .n_tensors = 1, .has_checksums = true};
    fy_alloc_fail_after(0);
    ferry_status status = write_index(names, part, 2, &error);
    write_header(&form); /* takes none */
    fy_alloc_fail_after(-1);
    assert_int_equal(status, FERRY_ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_empty, cleanup),
        cmocka_unit_test_teardown(test_only_metadata, cleanup),
        cmocka_unit_test_teardown(test_order, cleanup),
        cmocka_unit_test_teardown(test_escapes, cleanup),
        cmocka_unit_test_teardown(test_metadata_order, cleanup),
        cmocka_unit_test(test_names_that_files_cannot_have),
        cmocka_unit_test_teardown(test_random_order, cleanup),
        cmocka_unit_test_teardown(test_header_limit, cleanup),
        cmocka_unit_test_teardown(test_other_limits, cleanup),
        cmocka_unit_test_teardown(test_parts, cleanup),
        cmocka_unit_test_teardown(test_names, cleanup),
        cmocka_unit_test_teardown(test_index, cleanup),
        cmocka_unit_test_teardown(test_no_memory, cleanup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
