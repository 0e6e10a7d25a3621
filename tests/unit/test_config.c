/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"

#include "base/cpu.h"

#include "support/check.h"

#include <ferry/log.h>

#include <stdlib.h>

extern char **environ;

/* The tests own the environment: what the caller had set must not decide them. */
static int clear(void **state)
{
    (void)state;
    clearenv();
    return 0;
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *value;
        const char *says; /* NULL: fine */
    } rows[] = {
        {"FERRY_LOG", "debug", NULL},
        {"FERRY_LOG", "TRACE", NULL},
        {"FERRY_LOG", "off", NULL},
        {"FERRY_LOG", "loud", "FERRY_LOG: \"loud\" is not a log level"},
        {"FERRY_LOG", "", "FERRY_LOG: \"\" is not a log level"},
        {"FERRY_ISA", "baseline", NULL},
        {"FERRY_ISA", "AVX2", NULL},
        {"FERRY_ISA", "avx512", NULL},
        {"FERRY_ISA", "sse9", "FERRY_ISA: \"sse9\" is not an instruction set"},
        {"FERRY_DEADLINE", "0.5", NULL},
        {"FERRY_DEADLINE", "0", "FERRY_DEADLINE: \"0\" is not a number of seconds above zero"},
        {"FERRY_DEADLINE", "-1", "FERRY_DEADLINE: \"-1\" is not a number"},
        {"FERRY_DEADLINE", "nan", "FERRY_DEADLINE: \"nan\" is not a number"},
        {"FERRY_DEADLINE", "inf", "FERRY_DEADLINE: \"inf\" is not a number"},
        {"FERRY_JOIN_LIMIT", "10s", "FERRY_JOIN_LIMIT: \"10s\" is not a number"},
        {"FERRY_ENTRY_LIMIT", "3", NULL},
        {"FERRY_PORT", "29500", NULL},
        {"FERRY_PORT", "0", NULL},
        {"FERRY_PORT", "65536", "FERRY_PORT: \"65536\" is not a number from 0 to 65535"},
        {"FERRY_PORT", "+1", "FERRY_PORT: \"+1\" is not a number"},
        {"FERRY_NODES", "2", NULL},
        {"FERRY_NODES", "3,5", NULL},
        {"FERRY_NODES", "1234567,1", NULL},
        {"FERRY_NODES", "12345678", "FERRY_NODES: \"12345678\" is neither a number of nodes"},
        {"FERRY_NODES", "3\xc3\xa9", "FERRY_NODES: \"3"},
        {"FERRY_NODES", "0", "FERRY_NODES: \"0\" is neither a number of nodes"},
        {"FERRY_NODES", "3,", "FERRY_NODES: \"3,\" is neither"},
        {"FERRY_NODES", "two", "FERRY_NODES: \"two\" is neither"},
        {"FERRY_SECRET", "", "FERRY_SECRET: it is set, but empty"},
        {"FERRY_UCX_MODE", "rma", NULL},
        {"FERRY_UCX_MODE", "fast",
         "FERRY_UCX_MODE: \"fast\" is not a way to put; use am, rma or auto"},
        {"FERRY_LOGS", "debug", "FERRY_LOGS: ferry has no variable of this name"},
        {"FERRY_LO", "debug", "FERRY_LO: "},
        {"FERRY_", "x", "FERRY_: "},
        {"FERRY_log", "debug", "FERRY_log: "},
        {"FERRY", "x", NULL},
        {"NOT_FERRY_LOG", "x", NULL},
        {"ferry_log", "x", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        clearenv();
        setenv(rows[i].name, rows[i].value, 1);
        ferry_status wanted = rows[i].says == NULL ? FERRY_OK : FERRY_ERR_INVALID_INPUT;
        check_status(rows[i].name, wanted, ferry_config_check(&error), &error);
        if (rows[i].says != NULL) {
            check_says(rows[i].name, rows[i].says, &error);
            assert_int_equal(ferry_config_check(NULL), FERRY_ERR_INVALID_INPUT);
        }
    }
}

static void test_no_environment(void **state)
{
    (void)state;
    char **kept = environ;
    environ = NULL;
    assert_int_equal(ferry_config_check(NULL), FERRY_OK);
    char *no_variable[] = {strdup("FERRY_LOGS"), NULL}; /* without =, as a host may leave it */
    environ = no_variable;
    assert_int_equal(ferry_config_check(NULL), FERRY_OK);
    environ = kept;
    free(no_variable[0]);
}

static void test_list(void **state)
{
    (void)state;
    ferry_error error;
    const char *name, *meaning, *value;
    size_t n = ferry_config_count();
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        must(ferry_config_at(i, &name, &meaning, &value, &error), &error);
        check_row(name, strncmp(name, "FERRY_", 6) == 0 && strlen(meaning) > 10 && value == NULL);
        setenv(name, "here", 1);
        must(ferry_config_at(i, NULL, NULL, &value, &error), &error);
        /* A secret is not for a screen. */
        assert_string_equal(value, strcmp(name, "FERRY_SECRET") == 0 ? "(hidden)" : "here");
        must(ferry_config_at(i, NULL, NULL, NULL, &error), &error);
    }
    assert_int_equal(ferry_config_at(n, &name, &meaning, &value, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_config_at(SIZE_MAX, NULL, NULL, NULL, NULL), FERRY_ERR_MISUSE);
}

/* Inside the library a wrong value counts as unset: a stray variable must not fail the host. */
static void test_values(void **state)
{
    (void)state;
    assert_int_equal(fy_config_log_level(), FERRY_LOG_OFF);
    assert_int_equal(fy_config_isa(), FY_ISA_AVX512);
    setenv("FERRY_LOG", "Warn", 1);
    setenv("FERRY_ISA", "avx2", 1);
    assert_int_equal(fy_config_log_level(), FERRY_LOG_WARN);
    assert_int_equal(fy_config_isa(), FY_ISA_AVX2);
    setenv("FERRY_LOG", "warning", 1);
    setenv("FERRY_ISA", "fast", 1);
    assert_int_equal(fy_config_log_level(), FERRY_LOG_OFF);
    assert_int_equal(fy_config_isa(), FY_ISA_AVX512);
}

/* Asked once, then remembered: later changes of the environment change nothing. */
static void test_isa_is_limited(void **state)
{
    (void)state;
    setenv("FERRY_ISA", "baseline", 1);
    assert_int_equal(fy_cpu_isa(), FY_ISA_BASELINE);
    setenv("FERRY_ISA", "avx512", 1);
    assert_int_equal(fy_cpu_isa(), FY_ISA_BASELINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_check, clear),
        cmocka_unit_test_setup(test_no_environment, clear),
        cmocka_unit_test_setup(test_list, clear),
        cmocka_unit_test_setup(test_values, clear),
        cmocka_unit_test_setup(test_isa_is_limited, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
