/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/writer.h"

#include "support/check.h"
#include "support/random.h"
#include "support/text.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

/* A writer is large: it lives outside the stack. */
static fy_writer writer;
static text_buffer output;

static int reset(void **state)
{
    (void)state;
    text_cleanup(&output);
    fy_writer_init(&writer, text_write, &output);
    return 0;
}

static int cleanup(void **state)
{
    (void)state;
    text_cleanup(&output);
    return 0;
}

static const char *finish(void)
{
    ferry_error error;
    must(fy_writer_finish(&writer, &error), &error);
    return output.bytes == NULL ? "" : output.bytes;
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        uint64_t value;
        const char *text;
    } rows[] = {
        {0, "0"}, {9, "9"}, {10, "10"}, {1000, "1000"}, {UINT64_MAX, "18446744073709551615"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        reset(NULL);
        fy_write_u64(&writer, rows[i].value);
        assert_string_equal(finish(), rows[i].text);
    }
}

static void check_double(double value)
{
    reset(NULL);
    fy_write_double(&writer, value);
    const char *written = finish();
    double back = strtod(written, NULL);
    check_at(memcmp(&back, &value, sizeof value) == 0, "%a became %s", value, written);
    json_t *json = json_loads(written, JSON_DECODE_ANY, NULL);
    check_at(json_is_number(json), "%a became %s", value, written);
    check_at(json_number_value(json) == value, "%a became %s", value, written);
    json_decref(json);
}

static void test_doubles_round_trip(void **state)
{
    (void)state;
    static const double values[] = {
        0,    1,     0.1,     1.0 / 3, 2.0 / 3,           1e15,    1e16,
        1e17, 1e22,  1e23,    5e-324,  DBL_MIN,           DBL_MAX, DBL_EPSILON,
        -1.5, 123e8, 0.00001, 4.35e-5, 9007199254740993.0};
    uint64_t seed = 3;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        check_double(values[i]);
    }
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_u64(&seed);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) {
            check_double(value);
        }
    }
}

static void test_doubles_are_short(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0.1, "0.1"},
                {0.25, "0.25"},
                {400, "400"},
                {0.3, "0.3"},
                {0.1 + 0.2, "0.30000000000000004"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        reset(NULL);
        fy_write_double(&writer, rows[i].value);
        assert_string_equal(finish(), rows[i].text);
    }
}

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        const char *text;
    } rows[] = {{"", "\"\""},
                {"plain.name-0", "\"plain.name-0\""},
                {"\"", "\"\\u0022\""},
                {"\\", "\"\\u005c\""},
                {"a\nb\tc", "\"a\\u000ab\\u0009c\""},
                {"\x01\x1f\x7f", "\"\\u0001\\u001f\x7f\""},
                {"\xc3\xa9", "\"\xc3\xa9\""},
                {"end\"", "\"end\\u0022\""}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        reset(NULL);
        fy_write_string(&writer, rows[i].value);
        assert_string_equal(finish(), rows[i].text);
        json_t *json = json_loads(output.bytes, JSON_DECODE_ANY, NULL);
        assert_non_null(json);
        assert_string_equal(json_string_value(json), rows[i].value);
        json_decref(json);
    }
}

/* Every byte arrives once and in order, wherever the buffer ends. */
static void test_long_output(void **state)
{
    (void)state;
    static char pattern[3 * FY_WRITER_BYTES];
    uint64_t seed = 9;
    text_buffer expected = {0};
    for (size_t i = 0; i < sizeof pattern; i++) {
        pattern[i] = (char)('a' + i % 23);
    }
    for (int i = 0; i < 200; i++) {
        size_t n = i % 10 == 0 ? random_below(&seed, sizeof pattern) : random_below(&seed, 2000);
        n = i == 17 ? FY_WRITER_BYTES : n;
        fy_write_bytes(&writer, pattern, n);
        text_append(&expected, pattern, n);
    }
    finish();
    assert_int_equal(output.used, expected.used);
    assert_memory_equal(output.bytes, expected.bytes, expected.used);
    text_cleanup(&expected);
}

typedef struct failing {
    size_t n_calls;
    size_t fails_at;
} failing;

static int write_until(void *context, const char *bytes, size_t n_bytes)
{
    failing *f = context;
    (void)bytes;
    (void)n_bytes;
    return ++f->n_calls >= f->fails_at ? 7 : 0;
}

/* A reader that went away is not called again, and the failure is told once, at the end. */
static void test_failure_sticks(void **state)
{
    (void)state;
    static char chunk[FY_WRITER_BYTES];
    for (size_t fails_at = 1; fails_at <= 3; fails_at++) {
        failing f = {.fails_at = fails_at};
        ferry_error error;
        fy_writer_init(&writer, write_until, &f);
        for (int i = 0; i < 10; i++) {
            fy_write_bytes(&writer, chunk, sizeof chunk);
            fy_write_text(&writer, "more");
        }
        assert_int_equal(fy_writer_finish(&writer, &error), FERRY_ERR_IO);
        assert_int_equal(f.n_calls, fails_at);
    }
}

static void test_failure_at_the_last_flush(void **state)
{
    (void)state;
    failing f = {.fails_at = 1};
    ferry_error error;
    fy_writer_init(&writer, write_until, &f);
    fy_write_text(&writer, "short");
    assert_int_equal(f.n_calls, 0);
    assert_int_equal(fy_writer_finish(&writer, &error), FERRY_ERR_IO);
    fy_writer_init(&writer, write_until, &f);
    assert_int_equal(fy_writer_finish(&writer, &error), FERRY_OK); /* nothing to write */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_numbers, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_doubles_round_trip, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_doubles_are_short, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_strings, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_long_output, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_failure_sticks, reset, cleanup),
        cmocka_unit_test_setup_teardown(test_failure_at_the_last_flush, reset, cleanup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
