/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <ferry/mixed_comm.h>

#include "collective/schedule.h"

#include "support/check.h"

typedef const char *(*name_fn)(uint32_t number);
typedef ferry_status (*parse_fn)(const char *text, uint32_t *number_out, ferry_error *error);

static const char *const ops[] = {"all-reduce", "all-gather", "reduce-scatter",
                                  "all-reduce-all-gather", "reduce-scatter-all-reduce"};

static const char *const modes[] = {"default",
                                    "autotune",
                                    "fused-waits-multicast",
                                    "fused-waits-unicast",
                                    "fused-bytes1-multicast",
                                    "fused-bytes1-unicast",
                                    "fused-bytes2-multicast",
                                    "fused-bytes2-unicast",
                                    "base-one",
                                    "base-tp-dp"};

static void check_names(const char *const *names, uint32_t n, name_fn name, parse_fn parse)
{
    for (uint32_t i = 0; i < n; i++) {
        ferry_error error;
        uint32_t number = UINT32_MAX;
        char upper[40];
        size_t length = strlen(names[i]);
        assert_string_equal(name(i), names[i]); /* the numbers are part of the ABI */
        must(parse(names[i], &number, &error), &error);
        check_row(names[i], number == i);
        for (size_t c = 0; c <= length; c++) {
            char small = names[i][c];
            upper[c] = small == '-' ? '_' : small >= 'a' ? (char)(small - 32) : small;
        }
        number = UINT32_MAX;
        must(parse(upper, &number, &error), &error);
        check_row(upper, number == i);
        upper[length - 1] = '\0';
        check_status(upper, FERRY_ERR_INVALID_INPUT, parse(upper, &number, &error), &error);
    }
    assert_string_equal(name(n), "");
    assert_string_equal(name(UINT32_MAX), "");
}

static void check_refused(const char *const *names, uint32_t n, parse_fn parse)
{
    const char *const bad[] = {"",     "-",    "all-reduce ", "all reduce", "base-one-",
                               "base", "ring", " base-one",   "all--reduce"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        ferry_error error;
        uint32_t number = 77;
        check_status(bad[i], FERRY_ERR_INVALID_INPUT, parse(bad[i], &number, &error), &error);
        check_row(bad[i], number == 77);
        check_says(bad[i], bad[i], &error);
        for (uint32_t known = 0; known < n; known++) {
            check_says(bad[i], names[known], &error);
        }
        check_row(bad[i], parse(bad[i], &number, NULL) == FERRY_ERR_INVALID_INPUT);
    }
}

static void check_long(const char *last, parse_fn parse)
{
    char text[5000];
    ferry_error error;
    uint32_t number;
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    check_status("long", FERRY_ERR_INVALID_INPUT, parse(text, &number, &error), &error);
    check_says("long", last, &error);
}

static void check_misused(parse_fn parse)
{
    ferry_error error;
    uint32_t number;
    check_status("no text", FERRY_ERR_MISUSE, parse(NULL, &number, &error), &error);
    check_status("no place", FERRY_ERR_MISUSE, parse("base-one", NULL, &error), &error);
}

static void test_ops(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(ops), FERRY_MIXED_N_OPS);
    check_names(ops, FERRY_MIXED_N_OPS, ferry_mixed_op_name, ferry_mixed_op_parse);
    check_refused(ops, FERRY_MIXED_N_OPS, ferry_mixed_op_parse);
    check_long(ops[FERRY_MIXED_N_OPS - 1], ferry_mixed_op_parse);
    check_misused(ferry_mixed_op_parse);
}

static void test_modes(void **state)
{
    (void)state;
    assert_int_equal(COUNT_OF(modes), FERRY_MIXED_N_MODES);
    check_names(modes, FERRY_MIXED_N_MODES, ferry_mixed_mode_name, ferry_mixed_mode_parse);
    check_refused(modes, FERRY_MIXED_N_MODES, ferry_mixed_mode_parse);
    check_long(modes[FERRY_MIXED_N_MODES - 1], ferry_mixed_mode_parse);
    check_misused(ferry_mixed_mode_parse);
}

/* Sentences tell edges by their names. */
static void test_edges(void **state)
{
    (void)state;
    for (int i = 0; i < FY_MIX_N_EDGES; i++) {
        assert_true(strlen(fy_mix_edge_name((fy_mix_edge)i)) > 2);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(fy_mix_edge_name((fy_mix_edge)i),
                                    fy_mix_edge_name((fy_mix_edge)j));
        }
    }
    assert_string_equal(fy_mix_edge_name(FY_MIX_N_EDGES), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
