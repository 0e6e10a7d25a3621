/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "support/check.h"

#include <ferry/log.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct sink {
    size_t n_lines;
    ferry_log_level level;
    char line[2048];
    bool busy; /* calls do not overlap */
    bool overlap;
} sink;

static void take(void *context, ferry_log_level level, const char *line)
{
    sink *s = context;
    s->overlap |= s->busy;
    s->busy = true;
    s->n_lines++;
    s->level = level;
    snprintf(s->line, sizeof s->line, "%s", line);
    s->busy = false;
}

/* Must be the first test: the environment is read at the first line, and only if nobody configured.
 */
static void test_environment(void **state)
{
    (void)state;
    setenv("FERRY_LOG", "warn", 1);
    assert_false(fy_log_enabled(FERRY_LOG_INFO));
    assert_true(fy_log_enabled(FERRY_LOG_WARN));
    setenv("FERRY_LOG", "trace", 1);
    assert_false(fy_log_enabled(FERRY_LOG_INFO));
    ferry_log_configure(FERRY_LOG_INFO, NULL, NULL);
    assert_true(fy_log_enabled(FERRY_LOG_INFO));
}

static void test_levels(void **state)
{
    (void)state;
    static const char *const names[] = {"trace", "debug", "info", "warn", "error"};
    for (int set = FERRY_LOG_TRACE; set <= FERRY_LOG_OFF; set++) {
        for (int level = FERRY_LOG_TRACE; level <= FERRY_LOG_ERROR; level++) {
            sink s = {0};
            ferry_log_configure((ferry_log_level)set, take, &s);
            fy_log((ferry_log_level)level, "%d and %s", 17, "text");
            check_at((s.n_lines == 1) == (level >= set), "set %d, level %d", set, level);
            check_at(fy_log_enabled((ferry_log_level)level) == (level >= set), "set %d, level %d",
                     set, level);
            if (s.n_lines == 1) {
                char expected[64];
                snprintf(expected, sizeof expected, "%s: 17 and text", names[level]);
                assert_string_equal(s.line, expected);
                assert_int_equal(s.level, level);
            }
        }
    }
}

static void test_rank(void **state)
{
    (void)state;
    sink s = {0};
    ferry_log_configure(FERRY_LOG_TRACE, take, &s);
    static const struct {
        int64_t rank;
        const char *line;
    } rows[] = {{0, "[rank 0] info: here"},
                {16383, "[rank 16383] info: here"},
                {INT64_MAX, "[rank 9223372036854775807] info: here"},
                {-1, "info: here"},
                {INT64_MIN, "info: here"}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_log_set_rank(rows[i].rank);
        fy_log(FERRY_LOG_INFO, "here");
        assert_string_equal(s.line, rows[i].line);
    }
}

static void test_long_lines_are_cut(void **state)
{
    (void)state;
    static char longer[5000];
    sink s = {0};
    memset(longer, 'x', sizeof longer - 1);
    ferry_log_configure(FERRY_LOG_TRACE, take, &s);
    fy_log(FERRY_LOG_ERROR, "%s", longer);
    assert_int_equal(s.n_lines, 1);
    assert_in_range(strlen(s.line), 1000, sizeof s.line - 1);
    assert_true(strncmp(s.line, "error: xxx", 10) == 0);
}

static void test_standard_error(void **state)
{
    (void)state;
    int ends[2], kept = dup(STDERR_FILENO);
    char line[100] = "";
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    ferry_log_configure(FERRY_LOG_WARN, NULL, NULL);
    fy_log(FERRY_LOG_INFO, "silent");
    fy_log(FERRY_LOG_WARN, "heard");
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(ends[1]);
    ssize_t n = read(ends[0], line, sizeof line - 1);
    assert_true(n > 0);
    assert_string_equal(line, "ferry: warn: heard\n");
    close(ends[0]);
    close(kept);
}

enum { N_THREADS = 4, N_LINES = 2000 };

static void *chatter(void *unused)
{
    for (int i = 0; i < N_LINES; i++) {
        fy_log(FERRY_LOG_INFO, "line %d", i);
    }
    return unused;
}

/* Calls of the sink do not overlap, and none is lost. */
static void test_threads(void **state)
{
    (void)state;
    sink s = {0};
    pthread_t threads[N_THREADS];
    ferry_log_configure(FERRY_LOG_INFO, take, &s);
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, chatter, NULL), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(s.n_lines, N_THREADS * N_LINES);
    assert_false(s.overlap);
}

/* A sink that calls what logs, and what sets the log up. */
static void take_and_log(void *context, ferry_log_level level, const char *line)
{
    sink *s = context;
    take(context, level, line);
    fy_log(FERRY_LOG_ERROR, "from within");
    ferry_log_set_rank(7);
    ferry_log_configure(FERRY_LOG_INFO, take, s + 1);
    fy_log(FERRY_LOG_ERROR, "from within");
}

static void test_sink_that_logs(void **state)
{
    (void)state;
    sink s[2] = {{0}, {0}};
    ferry_log_configure(FERRY_LOG_INFO, take_and_log, s);
    fy_log(FERRY_LOG_INFO, "first");
    assert_true(s[0].n_lines == 1 && s[1].n_lines == 0);
    assert_string_equal(s[0].line, "info: first");
    fy_log(FERRY_LOG_INFO, "second");
    assert_true(s[0].n_lines == 1 && s[1].n_lines == 1);
    assert_string_equal(s[1].line, "[rank 7] info: second");
    ferry_log_set_rank(-1);
    ferry_log_configure(FERRY_LOG_INFO, NULL, NULL);
}

static void test_parse(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int level; /* -1: none */
    } rows[] = {{"trace", 0}, {"debug", 1}, {"info", 2}, {"warn", 3},     {"error", 4},  {"off", 5},
                {"TRACE", 0}, {"Warn", 3},  {"", -1},    {"warning", -1}, {"warn ", -1}, {"0", -1}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        ferry_log_level level = FERRY_LOG_OFF;
        ferry_status wanted = rows[i].level < 0 ? FERRY_ERR_INVALID_INPUT : FERRY_OK;
        check_status(rows[i].text, wanted, ferry_log_level_parse(rows[i].text, &level, &error),
                     &error);
        check_row(rows[i].text, rows[i].level < 0 || (int)level == rows[i].level);
    }
    assert_int_equal(ferry_log_level_parse(NULL, NULL, NULL), FERRY_ERR_MISUSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment),    cmocka_unit_test(test_levels),
        cmocka_unit_test(test_rank),           cmocka_unit_test(test_long_lines_are_cut),
        cmocka_unit_test(test_standard_error), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_sink_that_logs), cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
