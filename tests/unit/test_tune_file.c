/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Tables of autotune: what is taken from them, and their files. */
#include "tune_tables.h"

#include "collective/tune_heat.h"

#include <jansson.h>
#include <string.h>

/*
 * Selection
 */

static void test_select(void **state)
{
    /* The border of 1000 and 4000 is 2000, their geometric mean; that of 4000 and 100000, 20000. */
    static const struct {
        uint64_t bytes;
        uint32_t mode, block;
    } rows[] = {{1, 2, 0},      {999, 2, 0},      {1000, 2, 0},      {1999, 2, 0},
                {2001, 4, 17},  {4000, 4, 17},    {19999, 4, 17},    {20001, 8, 5},
                {100000, 8, 5}, {1u << 30, 8, 5}, {UINT64_MAX, 8, 5}};

    ferry_mixed_comm comm = {.n_modes = 0};
    fy_tuning *t = fy_tuning_create(9);
    (void)state;
    assert_non_null(t);
    for (uint32_t op = 0; op < 5; op += 2) { /* of 1 and 3 there is nothing */
        add(t, op, (uint64_t)1000 << op, 2, 0, 1, true);
        add(t, op, (uint64_t)4000 << op, 2, 3, 3, false);
        add(t, op, (uint64_t)4000 << op, 4, 17, 1, true);
    }
    t->room = t->n;
    fy_tuning_index(t);
    assert_int_equal(t->first[0], 0);
    assert_int_equal(t->first[1], 2);
    assert_int_equal(t->first[2], 2);
    assert_int_equal(t->first[3], 4);
    assert_int_equal(t->first[4], 4);
    assert_int_equal(t->first[5], 6);
    fy_tune_destroy(t);

    t = fy_tuning_create(3);
    assert_non_null(t);
    add(t, 3, 1000, 2, 0, 1, true);
    add(t, 3, 4000, 4, 17, 1, true);
    add(t, 3, 100000, 8, 5, 1, true);
    fy_tuning_index(t);
    fy_tuning_adopt(&comm, t);
    assert_int_equal(comm.n_modes, 1);
    assert_int_equal(comm.modes[0], FERRY_MIXED_AUTOTUNE);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t mode = 0, block = 99;
        fy_tune_select(&comm, 3, rows[i].bytes, &mode, &block);
        check_at(mode == rows[i].mode && block == rows[i].block, "%llu bytes: mode %u, block %u",
                 (unsigned long long)rows[i].bytes, mode, block);
    }
    fy_tune_destroy(t);
}

static void test_sort(void **state)
{
    fy_entrant e[] = {{.mode = 2, .seconds = 3, .least = 1},
                      {.mode = 3, .seconds = 1, .least = 3},
                      {.mode = 4, .seconds = 1, .least = 2, .block_lines = 7},
                      {.mode = 4, .seconds = 1, .least = 2}};
    (void)state;
    fy_heat_sort(e, 4, false);
    assert_int_equal(e[0].mode, 3);
    assert_int_equal(e[1].block_lines, 0);
    assert_int_equal(e[2].block_lines, 7);
    assert_int_equal(e[3].mode, 2);
    fy_heat_sort(e, 4, true);
    assert_int_equal(e[0].mode, 2);
    assert_int_equal(e[3].mode, 3);
}

/*
 * Files
 */

static void put_file(const char *name, const char *text)
{
    FILE *stream = fopen(path_of(name), "w");
    assert_non_null(stream);
    assert_true(fputs(text, stream) >= 0);
    assert_int_equal(fclose(stream), 0);
}

static void check_same(const fy_tuning *a, const fy_tuning *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        const ferry_mixed_timing *x = &a->timings[i], *y = &b->timings[i];
        check_at(x->op == y->op && x->mode == y->mode && x->bytes == y->bytes &&
                     x->block_lines == y->block_lines && x->seconds == y->seconds &&
                     x->chosen == y->chosen,
                 "timing %zu", i);
    }
}

static void test_file(void **state)
{
    ferry_mixed_comm comm;
    fy_tuning *table = make_table(), *read = NULL;
    ferry_error error;
    json_error_t why;
    const char *format = NULL, *dtype = NULL, *op = NULL, *mode = NULL;
    int tp = 0, dp = 0, is_tree = 1, lanes = 0, is_chosen = 0;
    json_int_t bytes = 0, block = 0;
    double seconds = 0;
    (void)state;
    make_handle(&comm);
    must(fy_tuning_write(&comm, table, path_of("a.json"), &error), &error);
    must(fy_tuning_read(&comm, path_of("a.json"), &read, &error), &error);
    check_same(table, read);
    assert_int_equal(read->first[FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE], 2);

    json_t *root = json_load_file(path_of("a.json"), JSON_REJECT_DUPLICATES, &why);
    assert_non_null(root);
    assert_int_equal(json_unpack(root, "{s:s, s:{s:i, s:i}, s:s, s:b, s:i}", "format", &format,
                                 "topology", "local_tp", &tp, "local_dp", &dp, "dtype", &dtype,
                                 "deterministic", &is_tree, "grid_size", &lanes),
                     0);
    assert_string_equal(format, "ferry.tuning/1");
    assert_string_equal(dtype, "bf16");
    assert_true(tp == 2 && dp == 2 && !is_tree && lanes == 1);
    const json_t *timings = json_object_get(root, "timings");
    assert_int_equal(json_array_size(timings), 8);
    assert_int_equal(json_unpack(json_array_get(timings, 7), "{s:s, s:I, s:s, s:I, s:F, s:b!}",
                                 "op", &op, "bytes", &bytes, "mode", &mode, "block_size", &block,
                                 "seconds", &seconds, "chosen", &is_chosen),
                     0);
    assert_string_equal(op, "reduce-scatter-all-reduce");
    assert_string_equal(mode, "fused-bytes1-multicast");
    assert_true(bytes == 65536 && block == 260 && seconds == 1.0 / 3 && is_chosen);
    json_decref(root);
    fy_tune_destroy(read);
    fy_tune_destroy(table);
}

/* A valid table of one size, whose parts are replaced by those of a row. */
#define TIMING(op, bytes, mode, block, seconds, chosen)                                            \
    "{\"op\":\"" op "\",\"bytes\":" bytes ",\"mode\":\"" mode "\",\"block_size\":" block           \
    ",\"seconds\":" seconds ",\"chosen\":" chosen "}"
#define GATHER(mode, chosen) TIMING("all-reduce-all-gather", "8192", mode, "0", "1e-5", chosen)
#define SCATTER                                                                                    \
    TIMING("reduce-scatter-all-reduce", "8192", "fused-waits-multicast", "4096", "1", "true")
#define BOTH GATHER("fused-waits-multicast", "true") "," SCATTER
#define TOPOLOGY "{\"local_tp\":2,\"local_dp\":2,\"inter_tp\":1,\"inter_dp\":1}"
#define ENGINES "{\"inside\":\"other\",\"between\":\"\"}"
#define TABLE(format, topology, dtype, tree, engines, lanes, timings)                              \
    "{\"format\":\"" format "\",\"topology\":" topology ",\"dtype\":\"" dtype                      \
    "\",\"deterministic\":" tree ",\"engines\":" engines ",\"grid_size\":" lanes                   \
    ",\"timings\":[" timings "]}"
#define TIMES(timings) TABLE("ferry.tuning/1", TOPOLOGY, "bf16", "false", ENGINES, "1", timings)

typedef struct file_row {
    const char *name, *text, *says;
} file_row;

static const file_row accepted[] = {
    {"plain", TIMES(BOTH), NULL},
    {"other lanes and engines",
     TABLE("ferry.tuning/1", TOPOLOGY, "bf16", "false", ENGINES, "64", BOTH), NULL},
    {"a mode that this handle lacks, not chosen",
     TIMES(GATHER("fused-waits-multicast", "true") "," GATHER("base-one", "false") "," SCATTER),
     NULL},
    {"a large block that is not chosen",
     TIMES(GATHER("fused-waits-multicast", "true") "," TIMING("all-reduce-all-gather", "8192",
                                                              "fused-waits-unicast", "4294967295",
                                                              "0", "false") "," SCATTER),
     NULL},
    {"whole seconds and huge sizes",
     TIMES(BOTH "," TIMING("reduce-scatter-all-reduce", "9223372036854775807",
                           "fused-bytes1-unicast", "1", "2", "true")),
     NULL},
};

static const file_row refused[] = {
    {"nothing", "", "line 1"},
    {"cut", "{\"format\":\"ferry.tuning/1\",\"topology\":", "line 1"},
    {"a list", "[]", "must be an object"},
    {"format", TABLE("ferry.tuning/2", TOPOLOGY, "bf16", "false", ENGINES, "1", BOTH),
     "\"ferry.tuning/1\", not \"ferry.tuning/2\""},
    {"unknown key", "{\"x\":1}", "unknown key \"x\""},
    {"lacks", "{\"format\":\"ferry.tuning/1\"}", "lacks the key \"topology\""},
    {"topology",
     TABLE("ferry.tuning/1", "{\"local_tp\":4,\"local_dp\":1,\"inter_tp\":1,\"inter_dp\":1}",
           "bf16", "false", ENGINES, "1", BOTH),
     "local_tp 4, but that of this handle is 2"},
    {"topology of nothing", TABLE("ferry.tuning/1", "{}", "bf16", "false", ENGINES, "1", BOTH),
     "local_tp"},
    {"dtype", TABLE("ferry.tuning/1", TOPOLOGY, "f32", "false", ENGINES, "1", BOTH),
     "\"f32\", but that of this handle is \"bf16\""},
    {"deterministic", TABLE("ferry.tuning/1", TOPOLOGY, "bf16", "true", ENGINES, "1", BOTH),
     "deterministic is true, but false"},
    {"engines",
     TABLE("ferry.tuning/1", TOPOLOGY, "bf16", "false", "{\"inside\":1,\"between\":\"\"}", "1",
           BOTH),
     "engines.inside must be a string"},
    {"no lane", TABLE("ferry.tuning/1", TOPOLOGY, "bf16", "false", ENGINES, "0", BOTH),
     "grid_size must be from 1"},
    {"no list",
     "{\"format\":\"ferry.tuning/1\",\"topology\":" TOPOLOGY ",\"dtype\":\"bf16\","
     "\"deterministic\":false,\"engines\":" ENGINES ",\"grid_size\":1,\"timings\":{}}",
     "timings must be an array"},
    {"no times", TIMES(""), "timings has no time of all-reduce-all-gather"},
    {"one op", TIMES(GATHER("fused-waits-multicast", "true")),
     "has no time of reduce-scatter-all-reduce"},
    {"no number", TIMES("7"), "timings[0] must be an object"},
    {"op", TIMES(TIMING("all-scatter", "8192", "base-one", "0", "1", "true")), "all-scatter"},
    {"op of others", TIMES(TIMING("all-reduce", "8192", "base-one", "0", "1", "true")),
     "timings[0] op all-reduce is not offered"},
    {"spelling", TIMES(TIMING("ALL_REDUCE_ALL_GATHER", "8192", "base-one", "0", "1", "true")),
     "must be written \"all-reduce-all-gather\""},
    {"no mode", TIMES(GATHER("autotune", "true") "," SCATTER), "none that is measured"},
    {"not offered", TIMES(GATHER("base-one", "true") "," SCATTER),
     "mode base-one is not offered by this handle"},
    {"bytes", TIMES(TIMING("all-reduce-all-gather", "0", "base-one", "0", "1", "true")),
     "timings[0].bytes must be from 1"},
    {"bytes of a fraction",
     TIMES(TIMING("all-reduce-all-gather", "8192.0", "base-one", "0", "1", "true")),
     "timings[0].bytes must be a whole number"},
    {"block",
     TIMES(TIMING("all-reduce-all-gather", "8192", "fused-waits-unicast", "4097", "1",
                  "true") "," SCATTER),
     "block_size 4097 is more than the 4096"},
    {"negative time",
     TIMES(TIMING("all-reduce-all-gather", "8192", "base-one", "0", "-1e-5", "true")),
     "seconds must be a number from 0"},
    {"chosen without time",
     TIMES(TIMING("all-reduce-all-gather", "8192", "fused-waits-unicast", "0", "0", "true")),
     "has no time"},
    {"none chosen", TIMES(GATHER("fused-waits-multicast", "false") "," SCATTER),
     "0 are chosen, and not one"},
    {"two chosen",
     TIMES(GATHER("fused-waits-multicast", "true") "," GATHER("fused-waits-unicast",
                                                              "true") "," SCATTER),
     "timings[1] ends all-reduce-all-gather at 8192 bytes, of which 2 are chosen"},
    {"twice", TIMES(BOTH "," SCATTER), "timings[2] must come after"},
    {"order of ops", TIMES(SCATTER "," GATHER("fused-waits-multicast", "true")),
     "timings[1] must come after"},
    {"order of sizes",
     TIMES(GATHER("fused-waits-multicast", "true") "," TIMING(
         "all-reduce-all-gather", "4096", "fused-waits-multicast", "0", "1", "true") "," SCATTER),
     "timings[1] must come after"},
    {"order of modes",
     TIMES(GATHER("fused-waits-unicast", "true") "," GATHER("fused-waits-multicast",
                                                            "false") "," SCATTER),
     "timings[1] must come after"},
};

static void test_files(void **state)
{
    ferry_mixed_comm comm;
    ferry_error error;
    fy_tuning *read = NULL;
    (void)state;
    make_handle(&comm);
    for (size_t i = 0; i < COUNT_OF(accepted); i++) {
        put_file("b.json", accepted[i].text);
        check_status(accepted[i].name, FERRY_OK,
                     fy_tuning_read(&comm, path_of("b.json"), &read, &error), &error);
        fy_tune_destroy(read);
        read = NULL;
    }
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        put_file("b.json", refused[i].text);
        check_status(refused[i].name, FERRY_ERR_INVALID_INPUT,
                     fy_tuning_read(&comm, path_of("b.json"), &read, &error), &error);
        check_says(refused[i].name, refused[i].says, &error);
        check_says(refused[i].name, "b.json", &error);
        check_says(refused[i].name, "`ferry tune", &error);
        assert_null(read);
    }
    comm.program.limits.max_lines = 64; /* the caller's own limit counts as well */
    put_file("b.json", TIMES(BOTH));
    check_status("limit", FERRY_ERR_INVALID_INPUT,
                 fy_tuning_read(&comm, path_of("b.json"), &read, &error), &error);
    check_says("limit", "block_size 4096 is more than the 64", &error);
    check_status("missing", FERRY_ERR_IO,
                 fy_tuning_read(&comm, path_of("none.json"), &read, &error), &error);
}

static void test_large_file(void **state)
{
    ferry_mixed_comm comm;
    ferry_error error;
    fy_tuning *read = NULL;
    FILE *stream = fopen(path_of("d.json"), "w");
    (void)state;
    assert_non_null(stream);
    assert_int_equal(ftruncate(fileno(stream), (16 << 20) + 1), 0);
    fclose(stream);
    make_handle(&comm);
    check_status("large", FERRY_ERR_LIMIT, fy_tuning_read(&comm, path_of("d.json"), &read, &error),
                 &error);
}

static void test_no_memory(void **state)
{
    ferry_mixed_comm comm;
    ferry_error error;
    fy_tuning *table = make_table(), *read = NULL;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    (void)state;
    make_handle(&comm);
    for (int n = 0; status != FERRY_OK; n++) {
        fy_alloc_fail_after(n);
        status = fy_tuning_write(&comm, table, path_of("c.json"), &error);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY);
        assert_int_equal(access(path_of("c.json"), F_OK) == 0, status == FERRY_OK);
    }
    status = FERRY_ERR_NO_MEMORY;
    for (int n = 0; status != FERRY_OK; n++) {
        fy_alloc_fail_after(n);
        status = fy_tuning_read(&comm, path_of("c.json"), &read, &error);
        fy_alloc_fail_after(-1);
        assert_true(status == FERRY_OK || (status == FERRY_ERR_NO_MEMORY && read == NULL));
    }
    check_same(table, read);
    fy_tune_destroy(read);
    fy_tune_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),     cmocka_unit_test(test_sort),
        cmocka_unit_test(test_file),       cmocka_unit_test(test_files),
        cmocka_unit_test(test_large_file), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
