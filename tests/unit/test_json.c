/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include "support/check.h"

static const fy_json_place root = {.key = "spec"};

static void test_places(void **state)
{
    (void)state;
    fy_json_place source = {.parent = &root, .key = "source"};
    fy_json_place rules = {.parent = &source, .key = "rules"};
    fy_json_place third = {.parent = &rules, .index = 3};
    fy_json_place dim = {.parent = &third, .key = "dim"};
    fy_json_place inner = {.parent = &third, .index = 12};
    fy_json_place top = {.parent = &root, .index = 7};
    const struct {
        const fy_json_place *place;
        const char *text;
    } rows[] = {{&root, "spec:"},
                {&source, "spec: source"},
                {&rules, "spec: source.rules"},
                {&third, "spec: source.rules[3]"},
                {&dim, "spec: source.rules[3].dim"},
                {&inner, "spec: source.rules[3][12]"},
                {&top, "spec:[7]"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[100];
        fy_json_place_format(rows[i].place, text, sizeof text);
        if (strcmp(text, rows[i].text) != 0) {
            fail_msg("\"%s\", not \"%s\"", text, rows[i].text);
        }
    }
}

/* Places of any depth are cut, never written past their end. */
static void test_places_are_cut(void **state)
{
    (void)state;
    fy_json_place chain[50] = {{.key = "a name that is already rather long"}};
    char text[64 + 1];
    for (size_t i = 1; i < COUNT_OF(chain); i++) {
        chain[i] = (fy_json_place){.parent = &chain[i - 1], .key = "member"};
    }
    for (size_t bytes = 1; bytes <= 64; bytes++) {
        memset(text, '#', sizeof text);
        fy_json_place_format(&chain[COUNT_OF(chain) - 1], text, bytes);
        check_at(strlen(text) == bytes - 1 && text[bytes] == '#', "%zu bytes", bytes);
    }
    ferry_error error;
    assert_int_equal(fy_json_fail(&chain[49], &error, "is %s", "wrong"), FERRY_ERR_INVALID_INPUT);
    check_says("deep place", "is wrong", &error);
}

static const struct {
    const char *text;
    const char *says; /* NULL: it is JSON */
} parse_rows[] = {
    {"{}", NULL},
    {" [1, 2.5, \"x\", true, null] \n", NULL},
    {"{\"a\": 1, \"b\": 1}", NULL},
    {"", "doc: line"},
    {"   ", "doc: line"},
    {"{\"a\": 1, \"a\": 2}", "duplicate"},
    {"{\"x\": {\"a\": 1, \"a\": 1}}", "duplicate"},
    {"{} {}", "end of file"},
    {"{}x", "end of file"},
    {"[1,]", "doc: line 1"},
    {"{\"a\":1,}", "doc: line 1"},
    {"{'a': 1}", "doc: line 1"},
    {"[1, // no\n2]", "doc: line 1"},
    {"[NaN]", "doc: line 1"},
    {"[Infinity]", "doc: line 1"},
    {"[01]", "doc: line 1"},
    {"[1.]", "doc: line 1"},
    {"[.5]", "doc: line 1"},
    {"[+1]", "doc: line 1"},
    {"[0x10]", "doc: line 1"},
    {"[9223372036854775808]", "too big"},
    {"[1e999]", "overflow"},
    {"[\"a\tb\"]", "control character"},
    {"[\"\\u0000\"]", "\\u0000"},
    {"[\"\\ud800\"]", "doc: line 1"},
    {"[\"\\x\"]", "doc: line 1"},
    {"[\"\xff\"]", "decode"},
    {"[\"\xc0\xaf\"]", "decode"},
    {"[\"open", "doc: line 1"},
    {"[\n\n  tru]", "line 3"},
    {"\xef\xbb\xbf{}", "doc: line 1"},
};

static void test_parse(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(parse_rows); i++) {
        json_t *json = NULL;
        ferry_error error;
        ferry_status wanted = parse_rows[i].says == NULL ? FERRY_OK : FERRY_ERR_INVALID_INPUT;
        ferry_status status =
            fy_json_parse(parse_rows[i].text, strlen(parse_rows[i].text), "doc", &json, &error);
        check_status(parse_rows[i].text, wanted, status, &error);
        check_row(parse_rows[i].text, (json != NULL) == (wanted == FERRY_OK));
        if (parse_rows[i].says != NULL) {
            check_says(parse_rows[i].text, parse_rows[i].says, &error);
        }
        json_decref(json);
    }
}

/* What stands before the mistake is quoted: all of it, or the last of it where there is much. */
static void test_parse_quotes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted;
    } rows[] = {
        {"[1,]", ", after \"[1,]\""},
        {"[11111,22222,33333,44444,55555,x]", ", after \"[11111,22222,33333,44444,55555,x\""},
        {"[11111,22222,33333,44444,55555,66666,77777,x]",
         ", after \",33333,44444,55555,66666,77777,x\""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *json = NULL;
        ferry_error error;
        assert_int_equal(fy_json_parse(rows[i].text, strlen(rows[i].text), "doc", &json, &error),
                         FERRY_ERR_INVALID_INPUT);
        check_says(rows[i].text, rows[i].quoted, &error);
    }
}

/* The length counts, not a zero; a zero inside is refused. */
static void test_parse_takes_a_length(void **state)
{
    (void)state;
    json_t *json = NULL;
    ferry_error error;
    must(fy_json_parse("{}garbage", 2, "doc", &json, &error), &error);
    json_decref(json);
    json = NULL;
    assert_int_equal(fy_json_parse("{}\0", 3, "doc", &json, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(fy_json_parse("[\"a\0b\"]", 7, "doc", &json, &error), FERRY_ERR_INVALID_INPUT);
    assert_null(json);
}

/* Nesting is bounded: the parser recurses. */
static void test_parse_depth(void **state)
{
    (void)state;
    static char text[200000];
    json_t *json = NULL;
    ferry_error error;
    memset(text, '[', sizeof text);
    assert_int_equal(fy_json_parse(text, sizeof text, "doc", &json, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("200,000 brackets", "depth", &error);
    assert_null(json);
}

static void test_expect_object(void **state)
{
    (void)state;
    static const char *const keys[] = {"dim", "axis", NULL};
    static const struct {
        const char *text;
        const char *says;
    } rows[] = {
        {"{}", NULL},
        {"{\"axis\": 1}", NULL},
        {"{\"dim\": null, \"axis\": 1}", NULL},
        {"{\"dim\": 1, \"dims\": 1}",
         "spec: source has the unknown key \"dims\"; known are dim, axis"},
        {"{\"\": 1}", "unknown key \"\""},
        {"{\"Dim\": 1}", "unknown key \"Dim\""},
        {"[]", "spec: source must be an object, not an array"},
        {"1", "not an integer"},
        {"1.5", "not a number with a fraction"},
        {"\"x\"", "not a string"},
        {"true", "not a boolean"},
        {"null", "not null"},
    };
    fy_json_place place = {.parent = &root, .key = "source"};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        json_t *json = json_loads(rows[i].text, JSON_DECODE_ANY, NULL);
        ferry_status wanted = rows[i].says == NULL ? FERRY_OK : FERRY_ERR_INVALID_INPUT;
        check_status(rows[i].text, wanted, fy_json_expect_object(json, &place, keys, &error),
                     &error);
        if (rows[i].says != NULL) {
            check_says(rows[i].text, rows[i].says, &error);
        }
        json_decref(json);
    }
}

/* Every getter against every kind of value. */
enum { GET_ARRAY, GET_STRING, GET_BOOL, GET_INTEGER, GET_SIZE, GET_POSITIVE, N_GETTERS };

static ferry_status get(int getter, const json_t *json, ferry_error *error)
{
    fy_json_place place = {.parent = &root, .key = "value"};
    const char *text;
    bool flag;
    int64_t integer;
    uint64_t size;
    double number;
    switch (getter) {
    case GET_ARRAY:
        return fy_json_expect_array(json, &place, error);
    case GET_STRING:
        return fy_json_get_string(json, &place, &text, error);
    case GET_BOOL:
        return fy_json_get_bool(json, &place, &flag, error);
    case GET_INTEGER:
        return fy_json_get_integer(json, &place, -5, 5, &integer, error);
    case GET_SIZE:
        return fy_json_get_size(json, &place, 1, 5, &size, error);
    default:
        return fy_json_get_positive(json, &place, &number, error);
    }
}

static void test_getters(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int takes[N_GETTERS]; /* in the order of the enum */
    } rows[] = {
        {"[]", {1, 0, 0, 0, 0, 0}},   {"\"\"", {0, 1, 0, 0, 0, 0}},  {"\"5\"", {0, 1, 0, 0, 0, 0}},
        {"true", {0, 0, 1, 0, 0, 0}}, {"false", {0, 0, 1, 0, 0, 0}}, {"null", {0, 0, 0, 0, 0, 0}},
        {"{}", {0, 0, 0, 0, 0, 0}},   {"5", {0, 0, 0, 1, 1, 1}},     {"1", {0, 0, 0, 1, 1, 1}},
        {"0", {0, 0, 0, 1, 0, 0}},    {"-5", {0, 0, 0, 1, 0, 0}},    {"-6", {0, 0, 0, 0, 0, 0}},
        {"6", {0, 0, 0, 0, 0, 1}},    {"5.0", {0, 0, 0, 0, 0, 1}},   {"5e0", {0, 0, 0, 0, 0, 1}},
        {"0.0", {0, 0, 0, 0, 0, 0}},  {"-0.5", {0, 0, 0, 0, 0, 0}},  {"1e-300", {0, 0, 0, 0, 0, 1}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        json_t *json = json_loads(rows[i].text, JSON_DECODE_ANY, NULL);
        for (int g = 0; g < N_GETTERS; g++) {
            ferry_error error;
            ferry_status wanted = rows[i].takes[g] ? FERRY_OK : FERRY_ERR_INVALID_INPUT;
            ferry_status status = get(g, json, &error);
            check_at(status == wanted, "%s by getter %d", rows[i].text, g);
            if (status != FERRY_OK) {
                check_says(rows[i].text, "spec: value must be ", &error);
            }
        }
        json_decref(json);
    }
}

static void test_values(void **state)
{
    (void)state;
    ferry_error error;
    const json_t *member;
    const char *text;
    bool flag;
    int64_t integer;
    uint64_t size;
    double number;
    json_t *json =
        json_loads("[\"abc\", true, -9223372036854775808, 9223372036854775807, 0.25]", 0, NULL);
    must(fy_json_get_string(json_array_get(json, 0), &root, &text, &error), &error);
    assert_string_equal(text, "abc");
    must(fy_json_get_bool(json_array_get(json, 1), &root, &flag, &error), &error);
    assert_true(flag);
    must(
        fy_json_get_integer(json_array_get(json, 2), &root, INT64_MIN, INT64_MAX, &integer, &error),
        &error);
    assert_true(integer == INT64_MIN);
    must(fy_json_get_size(json_array_get(json, 3), &root, 0, UINT64_MAX, &size, &error), &error);
    assert_true(size == INT64_MAX);
    must(fy_json_get_positive(json_array_get(json, 4), &root, &number, &error), &error);
    assert_true(number == 0.25);
    json_decref(json);
    json = json_loads("{\"a\": 1}", 0, NULL);
    must(fy_json_member(json, &root, "a", &member, &error), &error);
    assert_true(json_is_integer(member));
    assert_int_equal(fy_json_member(json, &root, "b", &member, &error), FERRY_ERR_INVALID_INPUT);
    assert_string_equal(error.message, "spec: lacks the key \"b\"");
    json_decref(json);
}

typedef struct ring {
    const char *name;
    uint32_t weight;
    uint64_t *sizes;
    size_t n_sizes;
    const json_t *rest;
    bool is_gold;
} ring;

static ferry_status read_ring_sizes(const json_t *json, const fy_json_place *place, void *object,
                                    void *context, ferry_error *error)
{
    ring *r = object;
    return fy_json_read_sizes(json, place, 1, 9, context, "sizes", &r->sizes, &r->n_sizes, error);
}

static const fy_json_field ring_fields[] = {
    {"name", FY_JSON_STRING, FY_JSON_NEEDED, .offset = offsetof(ring, name)},
    {"weight", FY_JSON_U32, .offset = offsetof(ring, weight), .least = 2, .most = 20},
    {"sizes", FY_JSON_READ, .read = read_ring_sizes},
    {"rest", FY_JSON_VALUE, .offset = offsetof(ring, rest)},
    {"gold", FY_JSON_BOOL, .offset = offsetof(ring, is_gold)},
    {"note", .type = FY_JSON_UNREAD},
    {.key = NULL}};

/* Each row reads its member, and says what is wrong with it at its own place. */
static void test_tables(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message; /* NULL: it is fine */
    } rows[] = {
        {"{\"name\": \"one\", \"weight\": 20, \"sizes\": [1, 9], \"gold\": true, \"note\": 1}",
         NULL},
        {"{\"name\": \"one\"}", NULL},
        {"[]", "spec: must be an object, not an array"},
        {"{\"weight\": 3}", "spec: lacks the key \"name\""},
        {"{\"name\": 3}", "spec: name must be a string, not an integer"},
        {"{\"name\": \"one\", \"weight\": 1}", "spec: weight must be from 2 to 20, not 1"},
        {"{\"name\": \"one\", \"weight\": 21}", "spec: weight must be from 2 to 20, not 21"},
        {"{\"name\": \"one\", \"sizes\": 1}", "spec: sizes must be an array, not an integer"},
        {"{\"name\": \"one\", \"sizes\": [1, 10]}", "spec: sizes[1] must be from 1 to 9, not 10"},
        {"{\"name\": \"one\", \"gold\": 1}", "spec: gold must be true or false, not an integer"},
        {"{\"name\": \"one\", \"wait\": 1}", "spec: has the unknown key \"wait\"; known are name, "
                                             "weight, sizes, rest, gold, note"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_arena arena = {0};
        ring r = {.weight = 7};
        ferry_error error = {""};
        json_t *json = json_loads(rows[i].text, 0, NULL);
        ferry_status status = fy_json_read(json, &root, ring_fields, &r, &arena, &error);
        if (rows[i].message != NULL) {
            assert_int_equal(status, FERRY_ERR_INVALID_INPUT);
            assert_string_equal(error.message, rows[i].message);
        } else {
            must(status, &error);
            assert_string_equal(r.name, "one");
            assert_int_equal(r.weight, i == 0 ? 20 : 7);
            assert_int_equal(r.n_sizes, i == 0 ? 2 : 0);
            assert_true(i > 0 || (r.sizes[0] == 1 && r.sizes[1] == 9));
            assert_true(r.is_gold == (i == 0));
        }
        json_decref(json);
        fy_arena_cleanup(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_places_are_cut),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_quotes),
        cmocka_unit_test(test_parse_takes_a_length),
        cmocka_unit_test(test_parse_depth),
        cmocka_unit_test(test_expect_object),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
