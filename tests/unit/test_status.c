/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include "support/check.h"

#include <ferry/ferry.h>

#include <stdio.h>

static void test_names_and_texts(void **state)
{
    (void)state;
    static const struct {
        ferry_status status;
        int number;
        const char *name;
        const char *text;
    } rows[] = {
#define ROW(name, number, text) {FERRY_##name, number, #name, text},
        FERRY_STATUS_MAP(ROW)
#undef ROW
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_row(rows[i].name, (int)rows[i].status == rows[i].number);
        check_row(rows[i].name, rows[i].number == (int)i);
        check_row(rows[i].name, strcmp(ferry_status_name(rows[i].status), rows[i].name) == 0);
        check_row(rows[i].name, strcmp(ferry_status_text(rows[i].status), rows[i].text) == 0);
    }
}

/* The numbers are part of the ABI: written down here once more, so that a change shows. */
static void test_numbers_stay(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int number;
    } rows[] = {{"OK", 0},
                {"ERR_MISUSE", 1},
                {"ERR_INVALID_INPUT", 2},
                {"ERR_INVALID_PLAN", 3},
                {"ERR_NO_MEMORY", 4},
                {"ERR_LIMIT", 5},
                {"ERR_IO", 6},
                {"ERR_DIGEST", 7},
                {"ERR_UNSUPPORTED", 8},
                {"ERR_EXCHANGE", 9},
                {"ERR_PROOF", 10},
                {"ERR_STOPPED", 11},
                {"ERR_PEER_LOST", 12},
                {"ERR_TIMEOUT", 13},
                {"ERR_ABORTED", 14},
                {"ERR_DENIED", 15},
                {"ERR_DIFFERENT", 16}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const char *name = ferry_status_name((ferry_status)rows[i].number);
        check_row(rows[i].name, strcmp(name, rows[i].name) == 0);
    }
}

static void test_unknown_status(void **state)
{
    (void)state;
    static const int numbers[] = {-1, 17, 1000};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        ferry_status status = (ferry_status)numbers[i];
        check_at(strcmp(ferry_status_name(status), "ERR_UNKNOWN") == 0, "%d", numbers[i]);
        check_at(ferry_status_text(status) != NULL, "%d", numbers[i]);
    }
}

static void test_sentence(void **state)
{
    (void)state;
    ferry_error error;
    assert_int_equal(fy_fail(&error, FERRY_ERR_LIMIT, "%d of %s", 7, "them"), FERRY_ERR_LIMIT);
    assert_string_equal(error.message, "7 of them");
    assert_int_equal(fy_fail(NULL, FERRY_ERR_IO, "nobody reads %d", 1), FERRY_ERR_IO);
    assert_int_equal(fy_fail_no_memory(&error, "a plan"), FERRY_ERR_NO_MEMORY);
    assert_string_equal(error.message, "out of memory while allocating a plan");
}

/* Whatever the sentence says: it is no format. */
static void test_forward(void **state)
{
    ferry_error own, error = {.message = "as it was"};
    (void)state;
    fy_fail(&own, FERRY_ERR_IO, "%s", "100 %s of %n");
    assert_int_equal(fy_forward(&error, FERRY_OK, &own), FERRY_OK);
    assert_string_equal(error.message, "as it was");
    assert_int_equal(fy_forward(NULL, FERRY_ERR_IO, &own), FERRY_ERR_IO);
    assert_int_equal(fy_forward(&error, FERRY_ERR_LIMIT, &own), FERRY_ERR_LIMIT);
    assert_string_equal(error.message, "100 %s of %n");
}

static void test_truncation(void **state)
{
    (void)state;
    char text[FERRY_ERROR_BYTES + 8];
    for (size_t length = FERRY_ERROR_BYTES - 3; length < FERRY_ERROR_BYTES + 8; length++) {
        ferry_error error;
        memset(text, 'x', length);
        text[length < sizeof text ? length : sizeof text - 1] = '\0';
        size_t full = strlen(text);
        memset(&error, '#', sizeof error);
        fy_fail(&error, FERRY_ERR_IO, "%s", text);
        size_t kept = strlen(error.message);
        bool fits = full < FERRY_ERROR_BYTES;
        check_at(kept == (fits ? full : FERRY_ERROR_BYTES - 1), "length %zu", length);
        check_at(fits == (strstr(error.message, "...") == NULL), "length %zu", length);
        check_at(fits || strcmp(error.message + kept - 3, "...") == 0, "length %zu", length);
    }
}

/* Names come from files: what could steer a terminal or break a log line must not pass. */
static void test_control_characters(void **state)
{
    (void)state;
    ferry_error error;
    for (int c = 1; c < 256; c++) {
        fy_fail(&error, FERRY_ERR_INVALID_INPUT, "a%cb", c);
        bool control = c < 0x20 || c == 0x7f;
        check_at(strlen(error.message) == 3, "byte 0x%02x", c);
        check_at((unsigned char)error.message[1] == (control ? '?' : c), "byte 0x%02x", c);
    }
    for (int c = 0x80; c < 0xc0; c++) { /* of two bytes in UTF-8 the first of these are controls */
        fy_fail(&error, FERRY_ERR_INVALID_INPUT, "a\xc2%cb", c);
        const char wanted[] = {'a', (char)(c < 0xa0 ? '?' : 0xc2), (char)(c < 0xa0 ? '?' : c), 'b',
                               0};
        check_at(strcmp(error.message, wanted) == 0, "byte 0x%02x", c);
    }
}

/* Those of Unicode that end a line or turn its direction, and their neighbours, which do not. */
static void test_characters_that_steer(void **state)
{
    (void)state;
    ferry_error error;
    for (unsigned c = 0x2000; c < 0x2080; c++) {
        const char text[] = {(char)0xe2, (char)(0x80 | (c >> 6 & 0x3f)), (char)(0x80 | (c & 0x3f)),
                             0};
        bool steers = c == 0x2028 || c == 0x2029 || (c >= 0x202a && c <= 0x202e) ||
                      (c >= 0x2066 && c <= 0x2069);
        fy_fail(&error, FERRY_ERR_INVALID_INPUT, "a%sb", text);
        check_at(strlen(error.message) == 5, "U+%04x", c);
        check_at(strncmp(error.message + 1, steers ? "???" : text, 3) == 0, "U+%04x", c);
    }
    fy_fail(&error, FERRY_ERR_INVALID_INPUT, "\xe1\x80\xa8"); /* a letter, U+1028 */
    assert_string_equal(error.message, "\xe1\x80\xa8");
    fy_fail(&error, FERRY_ERR_INVALID_INPUT, "a\xe2\x80"); /* which ends within one */
    assert_string_equal(error.message, "a\xe2\x80");
}

/* What is handed out is as long as the caller's struct says, and no longer than what is known. */
static void test_copy_out(void **state)
{
    (void)state;
    struct {
        size_t struct_size;
        uint64_t fields[3];
    } to, from = {sizeof from, {1, 2, 3}};
    ferry_error error;
    for (size_t known = 16; known <= sizeof from; known += 8) {
        for (size_t wanted = 16; wanted <= sizeof to; wanted += 8) {
            memset(&to, 0x77, sizeof to);
            to.struct_size = wanted;
            must(fy_copy_out(&from, known, &to, "a struct", &error), &error);
            assert_int_equal(to.struct_size, wanted);
            for (size_t i = 0; i < COUNT_OF(to.fields); i++) {
                bool is_there = 8 + 8 * i < known && 8 + 8 * i < wanted;
                check_at(to.fields[i] == (is_there ? i + 1 : 0x7777777777777777),
                         "field %zu of %zu bytes into %zu", i, known, wanted);
            }
        }
    }
    /* The size and nothing behind it is the struct of no version. */
    to.struct_size = 15;
    assert_int_equal(fy_copy_out(&from, sizeof from, &to, "a struct", &error), FERRY_ERR_MISUSE);
    check_says("too short", "struct_size is 15", &error);
    assert_int_equal(fy_copy_out(&from, sizeof from, NULL, "a struct", &error), FERRY_ERR_MISUSE);
}

static void test_version(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", FERRY_VERSION_MAJOR, FERRY_VERSION_MINOR,
             FERRY_VERSION_PATCH);
    assert_string_equal(text, FERRY_VERSION_TEXT);
    assert_string_equal(ferry_version(), FERRY_VERSION_TEXT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_texts),
        cmocka_unit_test(test_numbers_stay),
        cmocka_unit_test(test_unknown_status),
        cmocka_unit_test(test_sentence),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_characters_that_steer),
        cmocka_unit_test(test_copy_out),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
