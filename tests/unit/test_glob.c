/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/glob.h"
#include "base/subset.h"

#include "support/check.h"
#include "support/random.h"

#include <ferry/plan.h>

#include <stdio.h>
#include <stdlib.h>

static bool matches(const char *pattern, const char *text)
{
    return fy_glob_match(pattern, strlen(pattern), text, strlen(text));
}

static const struct {
    const char *pattern;
    const char *text;
    bool fits;
} match_rows[] = {
    {"", "", true},
    {"", "a", false},
    {"*", "", true},
    {"**", "", true},
    {"?", "", false},
    {"?", "a", true},
    {"?", "ab", false},
    {"*", "anything.at-all", true},
    {"a*b", "ab", true},
    {"a*b", "a.b", true},
    {"a*b", "a.bc", false},
    {"*a*a*", "a", false},
    {"*a*a*", "aa", true},
    {"a?c", "abc", true},
    {"a?c", "ac", false},
    {"[a]", "a", false},
    {"[a]", "[a]", true},
    {"a.b", "axb", false},
    {"\\*", "*", false},
    {"\\*", "\\anything", true},
    {"*.weight", "layers.0.weight", true},
    {"*.weight", "weight", false},
    {"*.weight", "layers.0.weights", false},
    {"*?", "", false},
    {"?*", "x", true},
    {"*ab", "aab", true},
    {"a*", "ba", false},
    {"*aab*", "aaab", true},
    {"*?*?*", "x", false},
    {"layers.*.w", "layers..w", true},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(match_rows); i++) {
        check_at(matches(match_rows[i].pattern, match_rows[i].text) == match_rows[i].fits,
                 "row %zu: \"%s\" on \"%s\"", i, match_rows[i].pattern, match_rows[i].text);
    }
}

/* Bytes are bytes: a question mark stands for one of them, whatever the encoding. */
static void test_bytes(void **state)
{
    (void)state;
    assert_false(matches("?", "\xc3\xa9"));
    assert_true(matches("??", "\xc3\xa9"));
    assert_true(fy_glob_match("a?b", 3, "a\0b", 3));
    assert_true(fy_glob_match("*b", 2, "a\0b", 3));
    assert_true(fy_glob_match("abc", 2, "abx", 2));
}

static bool naive_match(const char *pattern, const char *text)
{
    if (*pattern == '\0') {
        return *text == '\0';
    }
    if (*pattern == '*') {
        return naive_match(pattern + 1, text) || (*text != '\0' && naive_match(pattern, text + 1));
    }
    return *text != '\0' && (*pattern == '?' || *pattern == *text) &&
           naive_match(pattern + 1, text + 1);
}

/* Digits with the letters, so that the same texts serve patterns with a number. */
static void random_text(uint64_t *seed, const char *alphabet, size_t most, char *text)
{
    size_t length = random_below(seed, (uint32_t)most + 1);
    for (size_t i = 0; i < length; i++) {
        text[i] = alphabet[random_below(seed, (uint32_t)strlen(alphabet))];
    }
    text[length] = '\0';
}

static void test_random_patterns(void **state)
{
    (void)state;
    uint64_t seed = 1;
    size_t n_fits = 0;
    for (int i = 0; i < 400000; i++) {
        uint64_t again = seed;
        char pattern[16], text[16];
        random_text(&seed, "ab*?*", 8, pattern);
        random_text(&seed, "aab", 10, text);
        bool expected = naive_match(pattern, text);
        n_fits += expected;
        check_at(matches(pattern, text) == expected, "seed %llu: \"%s\" on \"%s\"",
                 (unsigned long long)again, pattern, text);
    }
    assert_in_range(n_fits, 20000, 380000);
}

/* Time must not grow with the number of ways to place the stars: a naive matcher would take years.
 */
static void test_backtracking(void **state)
{
    (void)state;
    static char pattern[1001], text[20001];
    for (size_t i = 0; i + 1 < sizeof pattern; i += 2) {
        memcpy(pattern + i, "*a", 2);
    }
    pattern[sizeof pattern - 1] = 'b';
    memset(text, 'a', sizeof text - 1);
    assert_false(fy_glob_match(pattern, sizeof pattern, text, sizeof text - 1));
    text[sizeof text - 2] = 'b';
    assert_true(fy_glob_match(pattern, sizeof pattern, text, sizeof text - 1));
}

static const struct {
    const char *pattern;
    const char *text;
    bool fits;
    uint64_t number;
} number_rows[] = {
    {"{}", "0", true, 0},
    {"{}", "", false, 0},
    {"{}", "17", true, 17},
    {"{}", "017", false, 0},
    {"{}", "00", false, 0},
    {"{}", "-1", false, 0},
    {"{}", "+1", false, 0},
    {"{}", "1x", false, 0},
    {"a{}", "a10", true, 10},
    {"a{}", "a01", false, 0},
    {"*{}", "a01", true, 1},
    {"layers.{}.*", "layers.31.mlp", true, 31},
    {"layers.{}.*", "layers.x.mlp", false, 0},
    {"layers.{}.*", "layers..mlp", false, 0},
    {"*.{}.*", "a.1.b.2.c", true, 1},
    {"*{}*", "a12b3", true, 12},
    {"*{}", "a12b3", true, 3},
    {"*{}2", "122", true, 12},
    {"{}*", "123", true, 123},
    {"{}?", "123", true, 12},
    {"?{}", "123", true, 23},
    {"{}0*", "1000", true, 100},
    {"{}", "18446744073709551615", true, UINT64_MAX},
    {"{}", "18446744073709551614", true, UINT64_MAX - 1},
    {"{}", "18446744073709551616", true, UINT64_MAX},
    {"{}", "99999999999999999999999999999999", true, UINT64_MAX},
};

static void test_number_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(number_rows); i++) {
        uint64_t number = 4711;
        bool fits = fy_glob_match_number(number_rows[i].pattern, number_rows[i].text,
                                         strlen(number_rows[i].text), &number);
        check_at(fits == number_rows[i].fits && number == (fits ? number_rows[i].number : 4711),
                 "row %zu: \"%s\" on \"%s\" gives %llu", i, number_rows[i].pattern,
                 number_rows[i].text, (unsigned long long)number);
    }
}

/* All ways to put a decimal in the place of {}, leftmost first, longest first. */
static bool naive_number(const char *pattern, const char *text, uint64_t *number_out)
{
    const char *hole = strstr(pattern, "{}");
    for (size_t begin = 0; text[begin] != '\0'; begin++) {
        size_t most = strspn(text + begin, "0123456789");
        for (size_t length = text[begin] == '0' ? most > 0 : most; length > 0; length--) {
            char filled[64];
            char left[32];
            snprintf(left, sizeof left, "%.*s", (int)(hole - pattern), pattern);
            snprintf(filled, sizeof filled, "%.*s", (int)begin, text);
            if (naive_match(left, filled) && naive_match(hole + 2, text + begin + length)) {
                snprintf(filled, sizeof filled, "%.*s", (int)length, text + begin);
                *number_out = strtoull(filled, NULL, 10);
                return true;
            }
        }
    }
    return false;
}

/*
 * As hostile as a spec may be: names of thousands of digits, and stars on both sides of the number.
 * Trying every number at every place would take hours for these few calls.
 */
static void test_many_digits(void **state)
{
    (void)state;
    enum { N_DIGITS = 4000, N_CALLS = 400 };
    static const struct {
        const char *pattern;
        char fill;
        bool fits;
    } rows[] = {{"*{}*y*x", '1', false},    {"*{}*1*1*y", '1', false},    {"*1*{}*1*x", '1', false},
                {"*a?*{}*a*b", '1', false}, {"*{}*{", '9', false},        {"*?*{}*?*?", '1', true},
                {"*0*{}*0*x", '0', false},  {"*1?1*{}?1?*x*", '1', false}};
    static char text[N_DIGITS + 1];
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        memset(text, rows[i].fill, N_DIGITS);
        for (int call = 0; call < N_CALLS; call++) {
            uint64_t number = 4711;
            bool fits = fy_glob_match_number(rows[i].pattern, text, N_DIGITS, &number);
            check_at(fits == rows[i].fits, "row %zu: \"%s\"", i, rows[i].pattern);
            check_at(number == (fits ? UINT64_MAX : 4711), "row %zu", i);
        }
    }
}

static void test_random_numbers(void **state)
{
    (void)state;
    uint64_t seed = 2;
    size_t n_fits = 0;
    for (int i = 0; i < 300000; i++) {
        uint64_t again = seed;
        uint64_t number = 0, expected_number = 0;
        char left[8], right[8], pattern[32], text[16];
        random_text(&seed, "a1*?", 4, left);
        random_text(&seed, "a0*?", 4, right);
        random_text(&seed, "a012", 8, text);
        snprintf(pattern, sizeof pattern, "%s{}%s", left, right);
        bool expected = naive_number(pattern, text, &expected_number);
        bool fits = fy_glob_match_number(pattern, text, strlen(text), &number);
        n_fits += fits;
        check_at(fits == expected && number == expected_number, "seed %llu: \"%s\" on \"%s\"",
                 (unsigned long long)again, pattern, text);
    }
    assert_in_range(n_fits, 20000, 280000);
}

static void test_count_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        size_t count;
    } rows[] = {{"", 0},     {"a", 0},    {"{}", 1}, {"{0}", 0},
                {"{}{}", 2}, {"{{}}", 1}, {"}{", 0}, {"a.{}.b.{}.c.{}", 3}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_row(rows[i].pattern, fy_glob_count_numbers(rows[i].pattern) == rows[i].count);
    }
}

/* ---- several patterns ---- */

static void test_subset(void **state)
{
    (void)state;
    static const struct {
        const char *subset;
        const char *name;
        bool has;
    } rows[] = {
        {NULL, "a", true},        {"a", "a", true},
        {"a", "b", false},        {"", "", true},
        {"", "a", false},         {"a,b", "b", true},
        {"a,b", "a,b", false},    {"a,", "", true},
        {"!a", "a", false},       {"!a", "b", true},
        {"!a,!b", "b", false},    {"!a,!b", "c", true},
        {"*,!a*", "ab", false},   {"!a*,*", "ab", false},
        {"!a*,*", "ba", true},    {"a*,!*b,c", "ab", false},
        {"a*,!*b,c", "ac", true}, {"a*,!*b,c", "c", true},
        {"a*,!*b,c", "d", false}, {"a!b", "a!b", true},
        {"!", "", false},         {"!", "a", true},
        {"!!a", "!a", false},     {"!!a", "a", true},
        {"a,!a", "a", false},     {"!a,a", "a", false},
        {"a,a,b", "a", true},     {"ab,a", "a", true},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_subset subset;
        check_at(fy_subset_create(rows[i].subset, &subset, NULL) == FERRY_OK, "row %zu", i);
        check_at(fy_subset_has(&subset, rows[i].name) == rows[i].has, "row %zu", i);
        fy_subset_cleanup(&subset);
    }
}

static void test_asks_for(void **state)
{
    (void)state;
    static const struct {
        const char *subset;
        bool asks; /* for "a.b", and not for "a" */
    } rows[] = {{NULL, false},     {"a.b", true},   {"a,a.b", true},  {"a*", false},
                {"*.b", true},     {"a*,*b", true}, {"!a.b", false},  {"!*.b", false},
                {"!a,*", false},   {"c", false},    {"a.?,!a", true}, {"a", false},
                {"*,c,?*", false}, {"??*", true},   {"c.b", false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_subset subset;
        check_at(fy_subset_create(rows[i].subset, &subset, NULL) == FERRY_OK, "row %zu", i);
        check_at(fy_subset_asks_for(&subset, "a.b", "a") == rows[i].asks, "row %zu", i);
        fy_subset_cleanup(&subset);
    }
}

static const char *name_of(const void *context, size_t i)
{
    return ((const char *const *)context)[i];
}

static void test_public_subset(void **state)
{
    (void)state;
    static const char *const names[] = {"a.w", NULL, "b.w"};
    ferry_subset *subset;
    ferry_error error;
    char list[] = "a.*,!b.w";
    assert_int_equal(ferry_subset_create(list, &subset, &error), FERRY_OK);
    memset(list, 'x', sizeof list - 1); /* it was copied */
    assert_true(ferry_subset_has(subset, "a.w"));
    assert_false(ferry_subset_has(subset, "b.w"));
    assert_false(ferry_subset_has(subset, NULL));
    assert_int_equal(ferry_subset_check(subset, 3, name_of, names, &error), FERRY_OK);
    assert_int_equal(ferry_subset_check(NULL, 3, name_of, names, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_subset_check(subset, 3, NULL, names, &error), FERRY_ERR_MISUSE);
    ferry_subset_destroy(subset);
    assert_int_equal(ferry_subset_create("a.*,!b.w", &subset, &error), FERRY_OK);
    assert_int_equal(ferry_subset_check(subset, 2, name_of, names, &error),
                     FERRY_ERR_INVALID_INPUT);
    assert_string_equal(error.message, "no tensor fits \"b.w\"");
    ferry_subset_destroy(subset);
    assert_int_equal(ferry_subset_create(NULL, &subset, &error), FERRY_OK);
    assert_true(ferry_subset_has(subset, "c") && ferry_subset_has(NULL, "c"));
    assert_false(ferry_subset_has(NULL, NULL));
    ferry_subset_destroy(subset);
    ferry_subset_destroy(NULL);
    assert_int_equal(ferry_subset_create("a", NULL, &error), FERRY_ERR_MISUSE);
}

/* Of names alone the list may be as long as what it is asked about. */
static void test_long_list(void **state)
{
    (void)state;
    enum { N = 100000, BYTES = 8 };
    char *list = calloc(N, BYTES), name[16];
    size_t length = 0;
    fy_subset subset;
    assert_non_null(list);
    for (unsigned i = 0; i < N; i++) {
        length += (size_t)sprintf(list + length, "%s%u", i == 0 ? "" : ",", 2 * i);
    }
    assert_int_equal(fy_subset_create(list, &subset, NULL), FERRY_OK);
    for (unsigned i = 0; i < 2 * N; i++) {
        sprintf(name, "%u", i);
        check_at(fy_subset_has(&subset, name) == (i % 2 == 0), "%u", i);
    }
    fy_subset_cleanup(&subset);
    free(list);
}

static const char *name_at(const void *context, size_t i)
{
    return ((const char *const *)context)[i];
}

static void test_unused(void **state)
{
    (void)state;
    static const char *const names[] = {"ab", NULL, "cd"};
    static const struct {
        const char *subset;
        const char *unused; /* NULL: none, or it is one pattern alone that takes in */
    } rows[] = {{NULL, NULL},   {"x", NULL},      {"a*,c*", NULL},   {"a*,x", "x"}, {"y,a*,x", "y"},
                {"a*,!x", "x"}, {"a*,!cd", NULL}, {"!a*,!?d", NULL}, {"a*,", ""},   {"!x", "x"},
                {"!a*", NULL},  {"ab,ab", NULL},  {"ab,cd", NULL},   {"ab,a", "a"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_subset subset;
        check_at(fy_subset_create(rows[i].subset, &subset, NULL) == FERRY_OK, "row %zu", i);
        const fy_subset_pattern *found = fy_subset_find_unused(&subset, 3, name_at, names);
        check_at((found != NULL) == (rows[i].unused != NULL), "row %zu", i);
        check_at(found == NULL || (found->length == strlen(rows[i].unused) &&
                                   memcmp(found->text, rows[i].unused, found->length) == 0),
                 "row %zu", i);
        fy_subset_cleanup(&subset);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),           cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_random_patterns), cmocka_unit_test(test_backtracking),
        cmocka_unit_test(test_number_table),    cmocka_unit_test(test_many_digits),
        cmocka_unit_test(test_random_numbers),  cmocka_unit_test(test_subset),
        cmocka_unit_test(test_asks_for),        cmocka_unit_test(test_long_list),
        cmocka_unit_test(test_public_subset),   cmocka_unit_test(test_unused),
        cmocka_unit_test(test_count_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
