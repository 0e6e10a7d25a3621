/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/registry.h"

#include "host/plugin.h"
#include "memory/kind.h"
#include "transport/choose.h"

#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>

ferry_status __real_fy_plugin_load(const char *name, const char *symbol, fy_plugin_fn *function_out,
                                   const char **path_out, ferry_error *error);
ferry_status __wrap_fy_plugin_load(const char *name, const char *symbol, fy_plugin_fn *function_out,
                                   const char **path_out, ferry_error *error);

static fy_engine other_release = {.abi = FY_ENGINE_ABI + 2};
static bool gives_other;

static const fy_engine *engine_of_other_release(void)
{
    return &other_release;
}

static fy_memory_kind other_kind = {.abi = FY_MEMORY_ABI + 2, .kind = FERRY_MEMORY_FAR};
static int n_asked;

static const fy_memory_kind *kind_of_other_release(const fy_library *library)
{
    assert_int_equal(library->abi, FY_MEMORY_ABI);
    n_asked++;
    return &other_kind;
}

ferry_status __wrap_fy_plugin_load(const char *name, const char *symbol, fy_plugin_fn *function_out,
                                   const char **path_out, ferry_error *error)
{
    if (!gives_other) {
        return __real_fy_plugin_load(name, symbol, function_out, path_out, error);
    }
    *function_out = strcmp(symbol, FY_MEMORY_PLUGIN_SYMBOL) == 0
                        ? (fy_plugin_fn)kind_of_other_release
                        : (fy_plugin_fn)engine_of_other_release;
    *path_out = "/there/it.so";
    return FERRY_OK;
}

/* A plugin of another release is named with both versions, its own first. */
static void test_other_release(void **state)
{
    const fy_engine *table = NULL;
    ferry_error error;
    char sentence[160];
    (void)state;
    gives_other = true;
    check_status("other release", FERRY_ERR_UNSUPPORTED,
                 fy_engine_get(FY_ENGINE_UCX, &table, &error), &error);
    gives_other = false;
    snprintf(sentence, sizeof sentence,
             "/there/it.so speaks version %u of the plugin interface and this library version %u",
             FY_ENGINE_ABI + 2, FY_ENGINE_ABI);
    check_says("other release", sentence, &error);
}

/* The same of a kind of memory, whose plugin is asked once, however often it is wanted. */
static void test_other_memory(void **state)
{
    const fy_memory_kind *row = NULL;
    ferry_error error;
    char sentence[160];
    (void)state;
    gives_other = true;
    for (int i = 0; i < 3; i++) {
        check_status("other memory", FERRY_ERR_UNSUPPORTED,
                     fy_memory_get(FERRY_MEMORY_FAR, &row, &error), &error);
    }
    gives_other = false;
    snprintf(sentence, sizeof sentence,
             "/there/it.so speaks version %u of the plugin interface and this library version %u",
             FY_MEMORY_ABI + 2, FY_MEMORY_ABI);
    check_says("other memory", sentence, &error);
    assert_int_equal(n_asked, 1);
    assert_null(row);
    assert_null(fy_memory_row(FERRY_MEMORY_FAR));
}

static void test_engines_are_listed(void **state)
{
    (void)state;
    static const char *const names[] = {"inproc", "shm", "ucx", "nvshmem"};
    ferry_error error;
    assert_int_equal(ferry_engine_count(), COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *name = NULL;
        const char *summary = NULL;
        const char *why = NULL;
        bool available;
        must(ferry_engine_at(i, &name, &summary, &available, &why, &error), &error);
        assert_string_equal(name, names[i]);
        assert_true(strlen(summary) > 10);
        assert_int_equal(available, why[0] == '\0');
        must(ferry_engine_at(i, NULL, NULL, NULL, NULL, &error), &error);
        assert_int_equal(fy_engine_find(name, strlen(name)), i);
        assert_int_equal(fy_engine_find(name, strlen(name) - 1), FY_N_ENGINES);
    }
    check_status("past the end", FERRY_ERR_MISUSE,
                 ferry_engine_at(COUNT_OF(names), NULL, NULL, NULL, NULL, &error), &error);
    assert_int_equal(fy_engine_find("", 0), FY_N_ENGINES);
}

static void test_inner_engines_are_there(void **state)
{
    (void)state;
    const fy_engine *table;
    ferry_error error;
    must(fy_engine_get(FY_ENGINE_INPROC, &table, &error), &error);
    assert_string_equal(table->name, "inproc");
    must(fy_engine_get(FY_ENGINE_SHM, &table, &error), &error);
    assert_string_equal(table->name, "shm");
    assert_int_equal(table->abi, FY_ENGINE_ABI);
}

/* An absent plugin is a sentence that says where it was looked for. */
static void test_absent_plugin(void **state)
{
    (void)state;
    bool available = true;
    const char *why = "";
    ferry_error error;
    setenv("FERRY_PLUGINS", "/nonexistent/plugins", 1);
    must(ferry_engine_at(FY_ENGINE_UCX, NULL, NULL, &available, &why, &error), &error);
    assert_false(available);
    assert_non_null(strstr(why, "/nonexistent/plugins"));
    available = true; /* either may be asked for alone */
    must(ferry_engine_at(FY_ENGINE_UCX, NULL, NULL, &available, NULL, &error), &error);
    assert_false(available);
    why = "";
    must(ferry_engine_at(FY_ENGINE_UCX, NULL, NULL, NULL, &why, &error), &error);
    assert_non_null(strstr(why, "/nonexistent/plugins"));
    must(ferry_engine_at(FY_ENGINE_SHM, NULL, NULL, NULL, &why, &error), &error);
    assert_string_equal(why, "");
    unsetenv("FERRY_PLUGINS");
}

static void test_choices(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *chain;
        int engine; /* -1: none */
    } good[] = {
        {"shm", "", FY_ENGINE_SHM},
        {"inproc", "", FY_ENGINE_INPROC},
        {"ucx", "", FY_ENGINE_UCX},
        {"strict:nvshmem", "strict", FY_ENGINE_NVSHMEM},
        {"strict:shm", "strict", FY_ENGINE_SHM},
        {"trace:delay=200us:ucx", "trace:delay=200us", FY_ENGINE_UCX},
        {"delay=1ms", "delay=1ms", -1},
        {"trace:delay=1ms", "trace:delay=1ms", -1},
    };
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        fy_choice choice;
        check_status(good[i].text, FERRY_OK, fy_choice_parse(good[i].text, &choice, &error),
                     &error);
        check_row(good[i].text, strcmp(choice.chain, good[i].chain) == 0);
        check_row(good[i].text, (int)choice.n_engines == (good[i].engine >= 0));
        check_row(good[i].text, good[i].engine < 0 || choice.engines[0] == (size_t)good[i].engine);
    }
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"", "empty"},
        {":", "empty"},
        {"shm:", "must come last"},
        {":shm", "empty"},
        {"strict::shm", "empty"},
        {"shm:ucx", "\"shm\" must come last"},
        {"shn", "\"shn\" is neither an engine (inproc, shm, ucx, nvshmem)"},
        {"SHM", "neither an engine"},
        {"shm ", "neither an engine"},
        {"turbo:shm", "\"turbo\" is neither"},
        {"delay=:shm", "delay"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fy_choice choice;
        check_status(bad[i].text, FERRY_ERR_INVALID_INPUT,
                     fy_choice_parse(bad[i].text, &choice, &error), &error);
        check_says(bad[i].text, bad[i].says, &error);
    }
    char long_text[FY_ENGINES_BYTES + 1];
    memset(long_text, 'a', FY_ENGINES_BYTES);
    long_text[FY_ENGINES_BYTES] = '\0';
    fy_choice choice;
    check_status("long", FERRY_ERR_INVALID_INPUT, fy_choice_parse(long_text, &choice, &error),
                 &error);
    check_says("long", "256 characters", &error);
}

/* A process is one PE of NVSHMEM, so threads are none. */
static void test_no_pes_of_threads(void **state)
{
    (void)state;
    uint32_t one_node[] = {0, 0};
    ferry_world world = {.n_ranks = 2, .threads = true, .n_nodes = 1, .node_of = one_node};
    fy_choice choice;
    const fy_engine *tables[FY_MOST_ENGINES];
    ferry_error error;
    must(fy_choice_parse("nvshmem", &choice, &error), &error);
    check_status("threads", FERRY_ERR_UNSUPPORTED,
                 fy_choice_tables(&choice, &world, tables, &error), &error);
    check_says("threads", "a process is one PE of NVSHMEM", &error);
}

/* Which engines a world gets, from its numbers alone. */
static void test_best_engines(void **state)
{
    (void)state;
    uint32_t one_node[] = {0, 0, 0, 0};
    uint32_t two_nodes[] = {0, 0, 1, 1};
    uint32_t apart[] = {0, 1, 2, 3};
    const struct {
        const char *name;
        bool threads;
        uint32_t n_nodes;
        uint32_t *node_of;
        size_t engines[2];
        uint32_t n_engines;
    } rows[] = {
        {"threads", true, 1, one_node, {FY_ENGINE_INPROC}, 1},
        {"threads on faked nodes", true, 2, two_nodes, {FY_ENGINE_INPROC}, 1},
        {"one node", false, 1, one_node, {FY_ENGINE_SHM}, 1},
        {"two nodes", false, 2, two_nodes, {FY_ENGINE_SHM, FY_ENGINE_UCX}, 2},
        {"one rank on each", false, 4, apart, {FY_ENGINE_UCX}, 1},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_world world = {.rank = 1,
                             .n_ranks = 4,
                             .threads = rows[i].threads,
                             .n_nodes = rows[i].n_nodes,
                             .node_of = rows[i].node_of};
        fy_choice choice = {.n_engines = 0};
        fy_choice_complete(&choice, &world);
        check_row(rows[i].name, choice.n_engines == rows[i].n_engines);
        for (uint32_t e = 0; e < choice.n_engines; e++) {
            check_row(rows[i].name, choice.engines[e] == rows[i].engines[e]);
        }
        for (uint32_t peer = 0; peer < world.n_ranks; peer++) {
            bool far = choice.n_engines == 2 && rows[i].node_of[peer] != rows[i].node_of[1];
            check_row(rows[i].name, fy_choice_of(&choice, &world, peer) == far);
        }
    }
}

/* A named engine that cannot reach everybody is refused before anything is opened. */
static void test_reach(void **state)
{
    (void)state;
    uint32_t two_nodes[] = {0, 0, 1, 1};
    const fy_engine *tables[FY_MOST_ENGINES];
    ferry_error error;
    ferry_world world = {.n_ranks = 4, .n_nodes = 2, .node_of = two_nodes};
    fy_choice choice;
    must(fy_choice_parse("shm", &choice, &error), &error);
    check_status("shm", FERRY_ERR_UNSUPPORTED, fy_choice_tables(&choice, &world, tables, &error),
                 &error);
    check_says("shm", "rank 0 is on node 0, rank 2 on node 1", &error);
    must(fy_choice_parse("inproc", &choice, &error), &error);
    check_status("inproc", FERRY_ERR_UNSUPPORTED, fy_choice_tables(&choice, &world, tables, &error),
                 &error);
    check_says("inproc", "threads of one process", &error);
    /* Of few ranks, and of the last one, it holds as well. */
    uint32_t last[] = {0, 0, 1};
    ferry_world two = {.n_ranks = 2, .n_nodes = 1, .node_of = last};
    check_status("inproc of two", FERRY_ERR_UNSUPPORTED,
                 fy_choice_tables(&choice, &two, tables, &error), &error);
    must(fy_choice_parse("shm", &choice, &error), &error);
    must(fy_choice_tables(&choice, &two, tables, &error), &error);
    ferry_world three = {.n_ranks = 3, .n_nodes = 2, .node_of = last};
    check_status("shm, the last rank", FERRY_ERR_UNSUPPORTED,
                 fy_choice_tables(&choice, &three, tables, &error), &error);
    check_says("shm, the last rank", "rank 0 is on node 0, rank 2 on node 1", &error);
    setenv("FERRY_PLUGINS", "/nonexistent/plugins", 1);
    choice = (fy_choice){.n_engines = 0};
    fy_choice_complete(&choice, &world);
    check_status("no ucx", FERRY_ERR_UNSUPPORTED, fy_choice_tables(&choice, &world, tables, &error),
                 &error);
    unsetenv("FERRY_PLUGINS");
    check_says("no ucx", "the ranks are on 2 nodes, and only engine ucx", &error);
}

int main(void)
{
    /* A plugin that is loaded stays, so what is said without it comes first. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_absent_plugin),
        cmocka_unit_test(test_other_release),
        cmocka_unit_test(test_other_memory),
        cmocka_unit_test(test_reach),
        cmocka_unit_test(test_engines_are_listed),
        cmocka_unit_test(test_inner_engines_are_there),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_no_pes_of_threads),
        cmocka_unit_test(test_best_engines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
