/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/settings.h"

#include "world/world.h"

#include "support/check.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The tests own the environment: what the caller had set must not decide them. */
static int clear(void **state)
{
    (void)state;
    clearenv();
    return 0;
}

static const int64_t SECOND = 1000000000;

static void test_defaults(void **state)
{
    (void)state;
    fy_settings settings;
    ferry_error error;
    must(fy_settings_init(&settings, NULL, &error), &error);
    assert_int_equal(settings.deadline_ns, 10 * SECOND);
    assert_int_equal(settings.entry_ns, -1);
    assert_int_equal(settings.join_ns, 30 * SECOND);
    assert_null(settings.secret);
    assert_null(settings.nodes);
    assert_null(settings.host);
    fy_settings_cleanup(&settings);
}

static void test_variables_and_options(void **state)
{
    (void)state;
    fy_settings settings, copy;
    ferry_error error;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    setenv("FERRY_DEADLINE", "2", 1);
    setenv("FERRY_ENTRY_LIMIT", "0.5", 1);
    setenv("FERRY_SECRET", "from outside", 1);
    setenv("FERRY_NODES", "3,5", 1);
    setenv("FERRY_HOST", "10.0.0.7", 1);
    must(fy_settings_init(&settings, &options, &error), &error);
    assert_int_equal(settings.deadline_ns, 2 * SECOND);
    assert_int_equal(settings.entry_ns, SECOND / 2);
    assert_int_equal(settings.join_ns, 6 * SECOND); /* three of these deadlines */
    assert_string_equal(settings.secret, "from outside");
    assert_string_equal(settings.nodes, "3,5");
    assert_string_equal(settings.host, "10.0.0.7");
    fy_settings_cleanup(&settings);

    setenv("FERRY_JOIN_LIMIT", "7", 1);
    options.deadline_seconds = 1.5;
    options.entry_seconds = 4;
    options.secret = "from inside";
    options.nodes = "2";
    options.host = "h1";
    must(fy_settings_init(&settings, &options, &error), &error);
    must(fy_settings_copy(&settings, &copy, &error), &error);
    fy_settings_cleanup(&settings);
    assert_int_equal(copy.deadline_ns, 3 * SECOND / 2);
    assert_int_equal(copy.entry_ns, 4 * SECOND);
    assert_int_equal(copy.join_ns, 7 * SECOND);
    assert_string_equal(copy.secret, "from inside");
    assert_string_equal(copy.nodes, "2");
    assert_string_equal(copy.host, "h1");
    fy_settings_cleanup(&copy);
    assert_null(copy.secret);
}

#define SIZED .struct_size = sizeof(ferry_world_options)

/* Of many nodes, so that what is kept shows in how much is in use: small pieces may lie about. */
static void test_nothing_is_kept(void **state)
{
    (void)state;
    static char nodes[8001];
    size_t used = 0;
    for (size_t i = 0; i + 1 < sizeof nodes; i++) {
        nodes[i] = i % 2 == 0 ? '1' : ',';
    }
    nodes[sizeof nodes - 2] = '\0';
    setenv("FERRY_NODES", nodes, 1);
    for (int i = 0; i < 3; i++) {
        fy_settings settings;
        ferry_error error;
        must(fy_settings_init(&settings, NULL, &error), &error);
        fy_settings_cleanup(&settings);
        assert_true(i < 2 || mallinfo2().uordblks == used);
        used = mallinfo2().uordblks;
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ferry_world_options options;
        ferry_status status;
        const char *says;
    } rows[] = {
        {"no _INIT", {.struct_size = 0}, FERRY_ERR_MISUSE, "FERRY_WORLD_OPTIONS_INIT"},
        {"negative", {SIZED, .deadline_seconds = -1}, FERRY_ERR_MISUSE, "deadline_seconds is -1"},
        {"nan", {SIZED, .entry_seconds = NAN}, FERRY_ERR_MISUSE, "entry_seconds is"},
        {"infinite", {SIZED, .join_seconds = INFINITY}, FERRY_ERR_MISUSE, "join_seconds is inf"},
        {"empty secret", {SIZED, .secret = ""}, FERRY_ERR_INVALID_INPUT, "secret"},
        {"nodes", {SIZED, .nodes = "2,"}, FERRY_ERR_INVALID_INPUT, "\"2,\""},
        {"nodes", {SIZED, .nodes = "two"}, FERRY_ERR_INVALID_INPUT, "\"two\""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        fy_settings settings = {.deadline_ns = 42};
        check_status(rows[i].name, rows[i].status,
                     fy_settings_init(&settings, &rows[i].options, &error), &error);
        check_says(rows[i].name, rows[i].says, &error);
        check_row(rows[i].name, settings.deadline_ns == 42);
    }
}

/* What decides about the world is an error if it is wrong, and not the default; an option counts
 * first. */
static void test_wrong_variables(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *value;
    } rows[] = {
        {"FERRY_DEADLINE", "soon"}, {"FERRY_ENTRY_LIMIT", "-1"}, {"FERRY_JOIN_LIMIT", "0"},
        {"FERRY_NODES", "0"},       {"FERRY_HOST", ""},          {"FERRY_SECRET", ""},
    };
    fy_settings settings;
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        setenv(rows[i].name, rows[i].value, 1);
        check_status(rows[i].name, FERRY_ERR_INVALID_INPUT,
                     fy_settings_init(&settings, NULL, &error), &error);
        check_says(rows[i].name, rows[i].name, &error);
        unsetenv(rows[i].name);
    }
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.secret = "given";
    options.deadline_seconds = 2;
    setenv("FERRY_SECRET", "", 1);
    setenv("FERRY_DEADLINE", "soon", 1);
    must(fy_settings_init(&settings, &options, &error), &error);
    assert_int_equal(settings.deadline_ns, 2 * SECOND);
    fy_settings_cleanup(&settings);
}

static void test_fake_nodes(void **state)
{
    (void)state;
    static const struct {
        const char *nodes;
        uint32_t n_ranks;
        const char *wanted; /* a digit for each rank, or a part of the sentence */
        bool fine;
    } rows[] = {
        {"1", 3, "000", true},
        {"2", 4, "0011", true},
        {"2", 5, "00011", true},
        {"3", 8, "00011122", true},
        {"8", 8, "01234567", true},
        {"3,5", 8, "00011111", true},
        {"1,1,2", 4, "0122", true},
        {"7", 7, "0123456", true},
        {"1", 1, "0", true},
        {"9", 1, "0", true}, /* others may join it */
        {"1,1", 1, "places 2 ranks, but the world has 1", false},
        {"4", 5, "fill 3 nodes and not 4", false},
        {"9", 8, "fill 8 nodes and not 9", false},
        {"3,5", 9, "places 8 ranks, but the world has 9", false},
        {"3,5", 7, "places 8 ranks, but the world has 7", false},
        {"", 4, "neither a number", false},
        {"0", 4, "neither a number", false},
        {"2,0", 2, "neither a number", false},
        {",2", 2, "neither a number", false},
        {"2,,2", 4, "neither a number", false},
        {"2 ", 4, "neither a number", false},
        {"-2", 4, "neither a number", false},
        {"+2", 4, "neither a number", false},
        {"2x", 4, "neither a number", false},
        {"99999999999999999999", 4, "neither a number", false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (uint32_t rank = 0; rank < rows[i].n_ranks; rank++) {
            ferry_error error;
            uint32_t node = 99;
            ferry_status status =
                fy_settings_fake_node(rows[i].nodes, rank, rows[i].n_ranks, &node, &error);
            check_status(rows[i].nodes, rows[i].fine ? FERRY_OK : FERRY_ERR_INVALID_INPUT, status,
                         &error);
            if (rows[i].fine) {
                check_row(rows[i].nodes, node == (uint32_t)(rows[i].wanted[rank] - '0'));
            } else {
                check_says(rows[i].nodes, rows[i].wanted, &error);
                check_row(rows[i].nodes, node == 99);
            }
        }
    }
}

static void test_seconds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double wanted; /* 0: refused */
    } rows[] = {
        {"10", 10},      {"0.5", 0.5}, {".25", 0.25}, {"1e-3", 0.001}, {"31536000", 31536000},
        {"", 0},         {"0", 0},     {"-1", 0},     {"+1", 0},       {" 1", 0},
        {"1 ", 0},       {"1s", 0},    {"inf", 0},    {"nan", 0},      {"0x10", 0},
        {"99999999", 0}, {"1e400", 0}, {".", 0},      {"e5", 0},       {"1e", 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        fy_settings settings;
        setenv("FERRY_DEADLINE", rows[i].text, 1);
        ferry_status status = fy_settings_init(&settings, NULL, &error);
        check_status(rows[i].text, rows[i].wanted > 0 ? FERRY_OK : FERRY_ERR_INVALID_INPUT, status,
                     &error);
        if (status == FERRY_OK) {
            check_row(rows[i].text,
                      settings.deadline_ns == (int64_t)(rows[i].wanted * (double)SECOND));
            fy_settings_cleanup(&settings);
        }
    }
}

/* Nodes are numbered by their lowest rank, whatever their identities are. */
static void test_nodes_of_a_world(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t rank, n_ranks;
        uint64_t ids[8];
        uint32_t node_of[8];
        uint32_t n_nodes, n_local, local_rank;
        uint32_t local[8];
    } rows[] = {
        {"one rank", 0, 1, {9}, {0}, 1, 1, 0, {0}},
        {"one node", 2, 4, {7, 7, 7, 7}, {0, 0, 0, 0}, 1, 4, 2, {0, 1, 2, 3}},
        {"descending ids", 3, 4, {9, 8, 9, 8}, {0, 1, 0, 1}, 2, 2, 1, {1, 3}},
        {"apart", 1, 3, {UINT64_MAX, 0, 1}, {0, 1, 2}, 3, 1, 0, {1}},
        {"mixed", 5, 8, {5, 3, 5, 1, 3, 1, 1, 0}, {0, 1, 0, 2, 1, 2, 2, 3}, 4, 3, 1, {3, 5, 6}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_settings settings = {0};
        ferry_world *world;
        ferry_error error;
        must(fy_world_new(rows[i].rank, rows[i].n_ranks, &settings, &world, &error), &error);
        check_row(rows[i].name, ferry_world_local_rank_count(world) == rows[i].n_ranks);
        must(fy_world_set_nodes(world, rows[i].ids, &error), &error);
        check_row(rows[i].name, ferry_world_node_count(world) == rows[i].n_nodes);
        check_row(rows[i].name, ferry_world_local_rank_count(world) == rows[i].n_local);
        check_row(rows[i].name, ferry_world_local_rank(world) == rows[i].local_rank);
        for (uint32_t r = 0; r < rows[i].n_ranks; r++) {
            check_row(rows[i].name, ferry_world_node_of(world, r) == rows[i].node_of[r]);
            check_row(rows[i].name, ferry_world_member_of(world, r) == r);
        }
        for (uint32_t r = 0; r < rows[i].n_local; r++) {
            check_row(rows[i].name, world->local_ranks[r] == rows[i].local[r]);
        }
        check_row(rows[i].name, ferry_world_node_of(world, rows[i].n_ranks) == UINT32_MAX);
        check_row(rows[i].name, ferry_world_member_of(world, rows[i].n_ranks) == UINT32_MAX);
        fy_world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_defaults, clear),
        cmocka_unit_test_setup(test_variables_and_options, clear),
        cmocka_unit_test_setup(test_nothing_is_kept, clear),
        cmocka_unit_test_setup(test_refused, clear),
        cmocka_unit_test_setup(test_wrong_variables, clear),
        cmocka_unit_test_setup(test_fake_nodes, clear),
        cmocka_unit_test_setup(test_seconds, clear),
        cmocka_unit_test_setup(test_nodes_of_a_world, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
