/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_CHECK_H
#define FERRY_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ferry/status.h>

#include <stdbool.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* cmocka knows only the line: in a table or a loop the row says what failed. */
#define check_row(row, condition)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("row \"%s\": not so: %s", (row), #condition);                                 \
        }                                                                                          \
    } while (0)

/* The same for a place that takes more than a name to say. */
#define check_at(condition, ...)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("not so: %s\nat ", #condition);                                            \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static inline void check_status(const char *row, ferry_status expected, ferry_status actual,
                                const ferry_error *error)
{
    if (actual != expected) {
        fail_msg("row \"%s\": %s, not %s: %s", row, ferry_status_name(actual),
                 ferry_status_name(expected), actual == FERRY_OK ? "" : error->message);
    }
}

static inline void check_says(const char *row, const char *wanted, const ferry_error *error)
{
    if (strstr(error->message, wanted) == NULL) {
        fail_msg("row \"%s\": \"%s\" does not say \"%s\"", row, error->message, wanted);
    }
}

/* A call that must succeed; its error text is shown when it does not. */
#define must(call, error)                                                                          \
    do {                                                                                           \
        ferry_status must_status = (call);                                                         \
        if (must_status != FERRY_OK) {                                                             \
            fail_msg("%s: %s: %s", #call, ferry_status_name(must_status), (error)->message);       \
        }                                                                                          \
    } while (0)

#endif
