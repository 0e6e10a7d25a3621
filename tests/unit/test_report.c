/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Reports: what is refused, what is written where a text would be markup, and numbers that are
 * packed. */
#include "report/packed.h"
#include "support/check.h"
#include "support/spec.h"
#include "support/text.h"

#include <ferry/ferry.h>

#include <string.h>

static ferry_error error;

static void check_refused(ferry_status status, ferry_status wanted, const char *says)
{
    assert_int_equal(status, wanted);
    assert_non_null(strstr(error.message, says));
}

static int write_nothing(void *context, const char *bytes, size_t n_bytes)
{
    (void)bytes;
    (void)n_bytes;
    size_t *left = context;
    return (*left)-- == 0 ? -1 : 0;
}

static ferry_status write_report(const char *json, text_buffer *printed)
{
    return ferry_report_write_html(json, strlen(json), text_write, printed, &error);
}

static void test_misuse(void **state)
{
    (void)state;
    text_buffer printed = {0};
    size_t left = 0;
    static const char whole[] = "{\"format\":\"ferry.report/1\",\"title\":\"a\"}";
    check_refused(ferry_report_write_html(NULL, 0, text_write, &printed, &error), FERRY_ERR_MISUSE,
                  "ferry_report_write_html");
    check_refused(ferry_report_write_html(whole, sizeof whole - 1, NULL, NULL, &error),
                  FERRY_ERR_MISUSE, "ferry_report_write_html");
    check_refused(ferry_plan_write_html(NULL, NULL, text_write, &printed, &error), FERRY_ERR_MISUSE,
                  "ferry_plan_write_html");
    check_refused(write_report("{\"format\":\"ferry.plan/1\"}", &printed), FERRY_ERR_INVALID_INPUT,
                  "ferry.report/1");
    check_refused(write_report("[]", &printed), FERRY_ERR_INVALID_INPUT, "ferry.report/1");
    check_refused(write_report("{\"format\":", &printed), FERRY_ERR_INVALID_INPUT, "a report");
    assert_int_equal(printed.used, 0);
    /* The page before the report, the report, and the page behind it: each may fail. */
    for (size_t i = 0; i < 3; i++) {
        left = i;
        check_refused(
            ferry_report_write_html(whole, sizeof whole - 1, write_nothing, &left, &error),
            FERRY_ERR_IO, "could not be written");
    }
    left = 3;
    must(ferry_report_write_html(whole, sizeof whole - 1, write_nothing, &left, &error), &error);
    text_cleanup(&printed);
}

/* Nothing of a text ends the element that it stands in. */
static void test_markup(void **state)
{
    (void)state;
    text_buffer printed = {0};
    must(write_report("{\"format\":\"ferry.report/1\",\"title\":\"</script><!--\"}", &printed),
         &error);
    assert_non_null(strstr(printed.bytes,
                           ">{\"format\":\"ferry.report/1\",\"title\":\"\\u003c/script>"
                           "\\u003c!--\"}</script>"));
    assert_null(strstr(printed.bytes, "@REPORT@"));
    text_cleanup(&printed);
}

static void check_packed(const uint64_t *values, size_t n, const char *wanted)
{
    text_buffer printed = {0};
    fy_writer *w = calloc(1, sizeof *w);
    fy_packed packed = {0};
    assert_non_null(w);
    fy_writer_init(w, text_write, &printed);
    for (size_t i = 0; i < n; i++) {
        fy_packed_add(&packed, values[i]);
    }
    must(fy_packed_write(&packed, w, "", &error), &error);
    must(fy_writer_finish(w, &error), &error);
    assert_string_equal(printed.bytes, wanted);
    text_cleanup(&printed);
    free(w);
}

static void test_packed(void **state)
{
    (void)state;
    check_packed(NULL, 0, "\"\"");
    check_packed((uint64_t[]){0}, 1, "\"AA==\"");
    check_packed((uint64_t[]){127, 128}, 2, "\"f4AB\"");
    check_packed((uint64_t[]){300, 5}, 2, "\"rAIF\"");
    check_packed((uint64_t[]){UINT64_MAX}, 1, "\"////////////AQ==\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_misuse), cmocka_unit_test(test_markup),
                                       cmocka_unit_test(test_packed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
