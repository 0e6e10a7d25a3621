/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What models, rosters and specs refuse, and what a plan keeps. */
#include "base/json.h"

#include "support/model.h"
#include "support/spec.h"
#include "support/text.h"

#include <stdio.h>
#include <unistd.h>

static ferry_status try_name(const char *name, const char *resolved, ferry_error *error)
{
    ferry_model *model = NULL;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = name;
    m.resolved_name = resolved;
    m.n_dims = 1;
    m.shape[0] = 8;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    must(ferry_model_create(&model, error), error);
    ferry_status status = ferry_model_add(model, &m, error);
    ferry_model_destroy(model);
    return status;
}

static void test_names(void **state)
{
    (void)state;
    static const char *const good[] = {
        "w", "f\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\xa2", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"w\xff",
                                      "\x80",
                                      "\xc3",
                                      "\xc0\x80",
                                      "\xe0\x80\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xe2\x82"};
    char longest[FERRY_NAME_BYTES + 1];
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        must(try_name(good[i], NULL, &error), &error);
        must(try_name("w", good[i], &error), &error);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        check_at(!fy_is_utf8(bad[i]), "name %zu", i);
        check_at(try_name(bad[i], NULL, &error) == FERRY_ERR_INVALID_INPUT, "name %zu", i);
        check_at(try_name("w", bad[i], &error) == FERRY_ERR_INVALID_INPUT, "name %zu", i);
    }
    memset(longest, 'a', sizeof longest);
    longest[FERRY_NAME_BYTES - 1] = '\0';
    must(try_name(longest, NULL, &error), &error);
    longest[FERRY_NAME_BYTES - 1] = 'a';
    longest[FERRY_NAME_BYTES] = '\0';
    assert_int_equal(try_name(longest, NULL, &error), FERRY_ERR_LIMIT);
    assert_int_equal(try_name("w", longest, &error), FERRY_ERR_LIMIT);
}

/* A roster stays what it was when it was planned, so its plans can be saved and read back. */
static void test_planned_roster(void **state)
{
    (void)state;
    static const grid from = {.first = 0, .dp = 1, .tp = 1}, to = {.first = 1, .dp = 2, .tp = 1};
    char path[64];
    ferry_roster *roster = NULL;
    ferry_plan *plan = NULL, *again = NULL;
    ferry_model *models[3];
    ferry_error error;
    char digests[2][33];
    snprintf(path, sizeof path, "/tmp/ferry-test-roster-%ld.plan", (long)getpid());
    must(try_model(&from, 0, &models[0], &error), &error);
    must(try_model(&to, 1, &models[1], &error), &error);
    must(try_model(&to, 2, &models[2], &error), &error);
    must(ferry_roster_create(3, &roster, &error), &error);
    must(ferry_roster_set(roster, 0, models[0], NULL, &error), &error);
    must(ferry_roster_set(roster, 1, NULL, models[1], &error), &error);
    must(ferry_plan_create_from_roster(roster, NULL, &plan, &error), &error);
    assert_int_equal(ferry_roster_set(roster, 2, NULL, models[2], &error), FERRY_ERR_MISUSE);
    assert_non_null(strstr(error.message, "make a new roster"));
    must(ferry_plan_save(plan, path, &error), &error);
    must(ferry_plan_load(path, &again, &error), &error);
    ferry_plan_digest(plan, digests[0], sizeof digests[0]);
    ferry_plan_digest(again, digests[1], sizeof digests[1]);
    assert_string_equal(digests[0], digests[1]);
    unlink(path);
    ferry_plan_destroy(plan);
    ferry_plan_destroy(again);
    ferry_roster_destroy(roster);
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        ferry_model_destroy(models[i]);
    }
}

/* Ranks that hold one parameter must say the same of it; what differs is named. */
static ferry_model *model_of_w(uint32_t rank, bool is_second, const char *what)
{
    ferry_model *model = NULL;
    ferry_error error;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "w";
    m.owner_rank = rank;
    m.n_dims = is_second && strcmp(what, "number of dimensions") == 0 ? 1 : 2;
    m.shape[0] = 8;
    m.shape[1] = is_second && strcmp(what, "shape") == 0 ? 4 : 3;
    m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
    m.data_parallel_group_ranks = rank == 0 ? range_group(0, 1, 1) : range_group(1, 1, 2);
    if (is_second && strcmp(what, "dtype") == 0) {
        m.dtype.kind = FERRY_I8;
    }
    must(ferry_model_create(&model, &error), &error);
    must(ferry_model_add(model, &m, &error), &error);
    ferry_group_destroy(m.data_parallel_group_ranks);
    return model;
}

static void test_ranks_that_differ(void **state)
{
    (void)state;
    static const char *const what[] = {"", "shape", "dtype", "number of dimensions"};
    for (size_t i = 0; i < COUNT_OF(what); i++) {
        ferry_roster *roster = NULL;
        ferry_plan *plan = NULL;
        ferry_model *models[3];
        ferry_error error = {""};
        char says[80];
        snprintf(says, sizeof says, "ranks 1 and 2 differ in %s", what[i]);
        must(ferry_roster_create(3, &roster, &error), &error);
        for (uint32_t rank = 0; rank < 3; rank++) {
            models[rank] = model_of_w(rank, rank == 2, what[i]);
            must(ferry_roster_set(roster, rank, rank == 0 ? models[rank] : NULL,
                                  rank == 0 ? NULL : models[rank], &error),
                 &error);
        }
        ferry_status status = ferry_plan_create_from_roster(roster, NULL, &plan, &error);
        check_status(says, i == 0 ? FERRY_OK : FERRY_ERR_INVALID_INPUT, status, &error);
        check_says(says, i == 0 ? "" : says, &error);
        ferry_plan_destroy(plan);
        ferry_roster_destroy(roster);
        for (uint32_t rank = 0; rank < 3; rank++) {
            ferry_model_destroy(models[rank]);
        }
    }
}

/* A rank that there is not is refused before a byte is written. */
static void test_rank_of_json(void **state)
{
    (void)state;
    ferry_plan *plan = plan_of("{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4],'dtype'"
                               ":'u8'}],'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
                               "'destination':{'mesh':[['x',2]],'rules':[{'match':'*'}]}}",
                               NULL);
    ferry_plan_json_options options = FERRY_PLAN_JSON_OPTIONS_INIT;
    for (int summary = 0; summary < 2; summary++) {
        text_buffer text = {0};
        ferry_error error = {""};
        options.rank = 2;
        options.summary = summary != 0;
        assert_int_equal(ferry_plan_write_json(plan, &options, text_write, &text, &error),
                         FERRY_ERR_MISUSE);
        assert_int_equal(text.used, 0);
        text_cleanup(&text);
    }
    ferry_plan_destroy(plan);
}

/* A name and a count are a few bytes, and gigabytes of names. */
static void test_names_of_a_count(void **state)
{
    (void)state;
    char spec[8192], name[4000];
    ferry_spec *made = NULL;
    ferry_error error;
    memset(name, 'a', sizeof name);
    name[sizeof name - 1] = '\0';
    snprintf(spec, sizeof spec,
             "{'format':'ferry.spec/1','tensors':[{'name':'%s{0}','count':[100000],'shape':[1],"
             "'dtype':'u8'}],'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
             "'destination':{'mesh':[['x',2]],'rules':[{'match':'*'}]}}",
             name);
    assert_int_equal(try_spec(spec, &made, &error), FERRY_ERR_INVALID_INPUT);
    assert_non_null(strstr(error.message, "for all names together"));
}

/* Boxes side by side on any dimension, as a grid, as a spiral that no line parts; and overlapping.
 */
static ferry_status try_boxes(uint64_t (*boxes)[4], size_t n, uint64_t rows, uint64_t columns)
{
    size_t capacity = 400 + n * 80, used = 0;
    char *spec = malloc(capacity);
    ferry_spec *made = NULL;
    ferry_error error;
    assert_non_null(spec);
    used += (size_t)snprintf(spec + used, capacity - used,
                             "{'format':'ferry.spec/1','tensors':[{'name':'s','shape':[%llu,%llu],"
                             "'dtype':'u8'},{'name':'w','shape':[%llu,%llu],'dtype':'u8',"
                             "'source':[",
                             (unsigned long long)rows, (unsigned long long)columns,
                             (unsigned long long)rows, (unsigned long long)columns);
    for (size_t i = 0; i < n; i++) {
        used += (size_t)snprintf(
            spec + used, capacity - used,
            "%s{'tensor':'s','begin':[0,0],'shape':[%llu,%llu],'at':[%llu,%llu]}",
            i == 0 ? "" : ",", (unsigned long long)boxes[i][2], (unsigned long long)boxes[i][3],
            (unsigned long long)boxes[i][0], (unsigned long long)boxes[i][1]);
    }
    snprintf(spec + used, capacity - used,
             "]}],'source':{'mesh':[['x',1]],'rules':[{'match':'*'}]},"
             "'destination':{'mesh':[['x',2]],'rules':[{'match':'*'}]}}");
    ferry_status status = try_spec(spec, &made, &error);
    ferry_spec_destroy(made);
    free(spec);
    return status;
}

static void test_tilings(void **state)
{
    (void)state;
    enum { SIDE = 40 };
    static uint64_t grid_boxes[SIDE * SIDE][4];
    static uint64_t spiral[][4] = {
        {0, 0, 1, 2}, {0, 2, 2, 1}, {2, 1, 1, 2}, {1, 0, 2, 1}, {1, 1, 1, 1}};
    static uint64_t overlapping[][4] = {
        {0, 0, 1, 2}, {0, 1, 2, 1}, {2, 1, 1, 2}, {1, 0, 2, 1}, {1, 1, 1, 2}};
    for (uint64_t i = 0; i < SIDE * SIDE; i++) { /* in no order */
        uint64_t at = i * 7919 % (SIDE * SIDE);
        grid_boxes[i][0] = at / SIDE;
        grid_boxes[i][1] = at % SIDE;
        grid_boxes[i][2] = grid_boxes[i][3] = 1;
    }
    assert_int_equal(try_boxes(grid_boxes, SIDE * SIDE, SIDE, SIDE), FERRY_OK);
    grid_boxes[17][0] = grid_boxes[18][0];
    grid_boxes[17][1] = grid_boxes[18][1];
    assert_int_equal(try_boxes(grid_boxes, SIDE * SIDE, SIDE, SIDE), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(try_boxes(spiral, COUNT_OF(spiral), 3, 3), FERRY_OK);
    assert_int_equal(try_boxes(overlapping, COUNT_OF(overlapping), 3, 3), FERRY_ERR_INVALID_INPUT);
}

/* The first and the last coordinate of an axis of one are one. */
static void test_first_and_last(void **state)
{
    (void)state;
    static const struct {
        const char *on;
        ferry_status wanted;
    } rows[] = {{"[0,-1]", FERRY_OK},
                {"[-1,0]", FERRY_OK},
                {"[0,0]", FERRY_ERR_INVALID_INPUT},
                {"[-1,-1]", FERRY_ERR_INVALID_INPUT},
                {"[0,-1,0]", FERRY_ERR_INVALID_INPUT},
                {"[]", FERRY_ERR_INVALID_INPUT}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[500];
        ferry_spec *spec = NULL;
        ferry_error error;
        snprintf(text, sizeof text,
                 "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[4],'dtype':'u8'}],"
                 "'source':{'mesh':[['pp',1],['tp',2]],'rules':[{'match':'*','on':{'pp':%s}}]},"
                 "'destination':{'mesh':[['x',2]],'rules':[{'match':'*'}]}}",
                 rows[i].on);
        check_at(try_spec(text, &spec, &error) == rows[i].wanted, "%s", rows[i].on);
        ferry_spec_destroy(spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_planned_roster),
        cmocka_unit_test(test_ranks_that_differ),
        cmocka_unit_test(test_rank_of_json),
        cmocka_unit_test(test_names_of_a_count),
        cmocka_unit_test(test_tilings),
        cmocka_unit_test(test_first_and_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
