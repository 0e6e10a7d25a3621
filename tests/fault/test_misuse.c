/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Mistakes in the calling program are statuses with a sentence: never a crash, and outputs stay as
 * they were. */
#include "support/model.h"
#include "support/spec.h"

#include <stdio.h>
#include <stdlib.h>

static const grid source = {.first = 0, .dp = 1, .tp = 2},
                  destination = {.first = 1, .dp = 1, .tp = 3};
enum { WORLD = 4 };

typedef struct scene {
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_roster *roster;
    ferry_reshard_plan *ops;
    ferry_transfers *transfers;
    ferry_model *model;
    ferry_group *group;
    ferry_prefix_map *map;
    ferry_param_metadata metadata;
} scene;

static scene s;
static ferry_error error;

static int make_scene(void **state)
{
    static uint64_t sizes[2];
    (void)state;
    must(try_spec("{'format':'ferry.spec/1','tensors':[{'name':'a','shape':[8],'dtype':'u8'}],"
                  "'source':{'mesh':[['x',2]],'rules':[{'match':'*'}]},"
                  "'destination':{'mesh':[['x',2]],'first_rank':1,'rules':[{'match':'*','shard':["
                  "{'dim':0,'axis':'x'}]}]}}",
                  &s.spec, &error),
         &error);
    must(ferry_plan_create(s.spec, NULL, &s.plan, &error), &error);
    must(try_roster(&source, &destination, WORLD, &s.roster, &error), &error);
    must(ferry_reshard_plan_create(s.plan, 1, &s.ops, &error), &error);
    must(try_model(&source, 0, &s.model, &error), &error);
    must(ferry_prefix_map_create(&s.map, &error), &error);
    s.group = range_group(0, 1, 2);
    s.metadata = describe_param(&param_kinds[0], &source, 0, s.group, s.group, sizes);
    must(ferry_transfers_find_sources("p", &s.metadata, &s.metadata, 0, &s.transfers, &error),
         &error);
    return 0;
}

static int remove_scene(void **state)
{
    (void)state;
    ferry_transfers_destroy(s.transfers);
    ferry_group_destroy(s.group);
    ferry_prefix_map_destroy(s.map);
    ferry_model_destroy(s.model);
    ferry_reshard_plan_destroy(s.ops);
    ferry_roster_destroy(s.roster);
    ferry_plan_destroy(s.plan);
    ferry_spec_destroy(s.spec);
    return 0;
}

/* One call: it must be refused as misuse, with a sentence, and again without a place for one. */
#define refuse(call_with_error)                                                                    \
    do {                                                                                           \
        ferry_error *e = &error;                                                                   \
        error.message[0] = '\0';                                                                   \
        check_status(#call_with_error, FERRY_ERR_MISUSE, call_with_error, &error);                 \
        check_row(#call_with_error, strlen(error.message) > 5);                                    \
        e = NULL;                                                                                  \
        check_row(#call_with_error, (call_with_error) == FERRY_ERR_MISUSE);                        \
    } while (0)

static ferry_status stop(void *context, const ferry_move *move)
{
    (void)move;
    size_t *n = context;
    return ++*n == 2 ? FERRY_ERR_STOPPED : FERRY_OK;
}

static void test_specs(void **state)
{
    (void)state;
    ferry_spec *spec = NULL;
    refuse(ferry_spec_parse(NULL, 0, "x", &spec, e));
    refuse(ferry_spec_parse("{}", 2, "x", NULL, e));
    refuse(ferry_spec_load(NULL, &spec, e));
    refuse(ferry_spec_load("x", NULL, e));
    assert_int_equal(ferry_spec_parse("", 0, NULL, &spec, &error), FERRY_ERR_INVALID_INPUT);
    assert_null(spec);
    assert_int_equal(ferry_spec_tensor_count(NULL), 0);
    ferry_spec_destroy(NULL);
}

static void test_plans(void **state)
{
    (void)state;
    ferry_plan *plan = NULL;
    ferry_plan_options options = {0}, policy = FERRY_PLAN_OPTIONS_INIT;
    size_t n = 0;
    policy.replica = 2;
    refuse(ferry_plan_create(NULL, NULL, &plan, e));
    refuse(ferry_plan_create(s.spec, NULL, NULL, e));
    refuse(ferry_plan_create(s.spec, &options, &plan, e));
    refuse(ferry_plan_create(s.spec, &policy, &plan, e));
    refuse(ferry_plan_visit(NULL, 0, stop, &n, NULL, e));
    refuse(ferry_plan_visit(s.plan, 0, NULL, NULL, NULL, e));
    refuse(ferry_plan_visit(s.plan, 3, stop, &n, NULL, e));
    refuse(ferry_plan_visit(s.plan, FERRY_ALL_RANKS - 1, stop, &n, NULL, e));
    refuse(ferry_plan_save(NULL, "x", e));
    refuse(ferry_plan_save(s.plan, NULL, e));
    refuse(ferry_plan_load(NULL, &plan, e));
    refuse(ferry_plan_load("x", NULL, e));
    refuse(ferry_plan_prove(NULL, "x", NULL, e));
    refuse(ferry_plan_prove("x", NULL, NULL, e));
    refuse(ferry_plan_prove("x", "x", &(ferry_proof){0}, e));
    assert_null(plan);
    assert_int_equal(n, 0);
    assert_int_equal(ferry_plan_rank_count(NULL), 0);
    ferry_plan_destroy(NULL);
}

/* A visitor ends the visit, with its own status. */
static void test_visitor_stops(void **state)
{
    (void)state;
    ferry_visit_statistics statistics = FERRY_VISIT_STATISTICS_INIT;
    size_t n = 0;
    assert_int_equal(ferry_plan_visit(s.plan, FERRY_ALL_RANKS, stop, &n, &statistics, &error),
                     FERRY_ERR_STOPPED);
    assert_int_equal(n, 2);
    assert_int_equal(statistics.n_moves_visited, 0); /* outputs are written on success only */
}

static int write_nowhere(void *context, const char *bytes, size_t n_bytes)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    return -1;
}

static void test_output(void **state)
{
    (void)state;
    ferry_plan_json_options none = {0}, far = FERRY_PLAN_JSON_OPTIONS_INIT;
    far.rank = 99;
    refuse(ferry_plan_write_json(NULL, NULL, write_nowhere, NULL, e));
    refuse(ferry_plan_write_json(s.plan, NULL, NULL, NULL, e));
    refuse(ferry_plan_write_json(s.plan, &none, write_nowhere, NULL, e));
    text_buffer out = {0};
    refuse(ferry_plan_write_json(s.plan, &far, text_write, &out, e));
    assert_int_equal(out.used, 0);
    text_cleanup(&out);
    assert_int_equal(ferry_plan_write_json(s.plan, NULL, write_nowhere, NULL, &error),
                     FERRY_ERR_IO);
    assert_int_equal(ferry_plan_save(s.plan, "/nowhere/at/all", &error), FERRY_ERR_IO);
}

/*
 * Structs with a size: one that was not initialised is misuse, a shorter one of an older caller
 * gets its fields and no more, and a longer one of a newer caller keeps its own.
 */
typedef struct sized {
    const char *name;
    ferry_status (*get)(void *out, ferry_error *e);
    size_t bytes;
} sized;

static ferry_status get_totals(void *out, ferry_error *e)
{
    return ferry_plan_get_totals(s.plan, out, e);
}

static ferry_status get_rank_bytes(void *out, ferry_error *e)
{
    return ferry_plan_get_rank_bytes(s.plan, 1, out, e);
}

static ferry_status get_bound(void *out, ferry_error *e)
{
    return ferry_plan_get_bound(s.plan, out, e);
}

static ferry_status get_statistics(void *out, ferry_error *e)
{
    return ferry_plan_get_statistics(s.plan, out, e);
}

static ferry_status get_visit(void *out, ferry_error *e)
{
    size_t n = 10;
    return ferry_plan_visit(s.plan, 1, stop, &n, out, e);
}

static const sized structs[] = {
    {"totals", get_totals, sizeof(ferry_plan_totals)},
    {"rank bytes", get_rank_bytes, sizeof(ferry_rank_bytes)},
    {"bound", get_bound, sizeof(ferry_plan_bound)},
    {"statistics", get_statistics, sizeof(ferry_plan_statistics)},
    {"visit", get_visit, sizeof(ferry_visit_statistics)},
};

static void check_sized(const sized *t, size_t struct_size)
{
    _Alignas(16) unsigned char bytes[256], whole[256];
    memset(bytes, 0xa5, sizeof bytes);
    memset(whole, 0xa5, sizeof whole);
    memcpy(bytes, &struct_size, sizeof struct_size);
    memcpy(whole, &t->bytes, sizeof t->bytes);
    must(t->get(bytes, &error), &error);
    must(t->get(whole, &error), &error);
    size_t kept = 0, written = struct_size < t->bytes ? struct_size : t->bytes;
    memcpy(&kept, bytes, sizeof kept);
    check_row(t->name, kept == struct_size);
    check_row(t->name, memcmp(bytes + 8, whole + 8, written - 8) == 0);
    for (size_t i = written; i < sizeof bytes; i++) {
        check_row(t->name, bytes[i] == 0xa5);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(structs); i++) {
        _Alignas(16) unsigned char bytes[256] = {0};
        check_row(structs[i].name, structs[i].get(bytes, &error) == FERRY_ERR_MISUSE);
        check_row(structs[i].name, structs[i].get(bytes, NULL) == FERRY_ERR_MISUSE);
        for (size_t b = 0; b < sizeof bytes; b++) {
            check_row(structs[i].name, bytes[b] == 0);
        }
        check_sized(&structs[i], structs[i].bytes);
        check_sized(&structs[i], structs[i].bytes + 32);
        check_sized(&structs[i], 2 * sizeof(size_t));
    }
    ferry_rank_bytes bytes = FERRY_RANK_BYTES_INIT;
    refuse(ferry_plan_get_totals(NULL, &(ferry_plan_totals)FERRY_PLAN_TOTALS_INIT, e));
    refuse(ferry_plan_get_totals(s.plan, NULL, e));
    refuse(ferry_plan_get_rank_bytes(NULL, 0, &bytes, e));
    refuse(ferry_plan_get_rank_bytes(s.plan, 3, &bytes, e));
    refuse(ferry_plan_get_rank_bytes(s.plan, 0, NULL, e));
    refuse(ferry_plan_get_bound(NULL, &(ferry_plan_bound)FERRY_PLAN_BOUND_INIT, e));
    refuse(ferry_plan_get_bound(s.plan, NULL, e));
    refuse(ferry_plan_get_statistics(NULL, NULL, e));
    refuse(ferry_plan_get_statistics(s.plan, NULL, e));
}

static void test_metadata(void **state)
{
    (void)state;
    bool found = true;
    uint64_t index = 4711;
    char buffer[FERRY_NAME_BYTES];
    ferry_param_metadata m = s.metadata, none = {0};
    ferry_param_description d = FERRY_PARAM_DESCRIPTION_INIT, no_description = {0};
    ferry_process_groups g = FERRY_PROCESS_GROUPS_INIT, no_groups = {0};
    refuse(ferry_param_detect_expert_index(NULL, &found, &index, e));
    refuse(ferry_param_detect_expert_index("weight1", NULL, &index, e));
    refuse(ferry_param_detect_expert_index("weight1", &found, NULL, e));
    refuse(ferry_prefix_map_create(NULL, e));
    refuse(ferry_prefix_map_add(NULL, "a", "b", e));
    refuse(ferry_prefix_map_add(s.map, NULL, "b", e));
    refuse(ferry_prefix_map_add(s.map, "a", NULL, e));
    refuse(ferry_prefix_map_add(s.map, "", "b", e));
    refuse(ferry_param_metadata_resolve_name(NULL, NULL, buffer, sizeof buffer, e));
    refuse(ferry_param_metadata_resolve_name(&none, NULL, buffer, sizeof buffer, e));
    refuse(ferry_param_metadata_resolve_name(&m, NULL, NULL, 0, e));
    refuse(ferry_param_metadata_extract(NULL, "n", 0, &g, NULL, &m, e));
    refuse(ferry_param_metadata_extract(&d, NULL, 0, &g, NULL, &m, e));
    refuse(ferry_param_metadata_extract(&d, "n", 0, NULL, NULL, &m, e));
    refuse(ferry_param_metadata_extract(&d, "n", 0, &g, NULL, NULL, e));
    refuse(ferry_param_metadata_extract(&no_description, "n", 0, &g, NULL, &m, e));
    refuse(ferry_param_metadata_extract(&d, "n", 0, &no_groups, NULL, &m, e));
    d.n_dims = FERRY_MAX_DIMS + 1;
    refuse(ferry_param_metadata_extract(&d, "n", 0, &g, NULL, &m, e));
    assert_true(found && index == 4711);
    assert_string_equal(m.name, s.metadata.name);
    ferry_prefix_map_destroy(NULL);
}

static void test_models(void **state)
{
    (void)state;
    ferry_param_metadata m = s.metadata, none = {0}, nameless = s.metadata, wide = s.metadata;
    size_t count = ferry_model_count(s.model);
    nameless.name = "";
    wide.n_dims = FERRY_MAX_DIMS + 1;
    refuse(ferry_model_create(NULL, e));
    refuse(ferry_model_add(NULL, &m, e));
    refuse(ferry_model_add(s.model, NULL, e));
    refuse(ferry_model_add(s.model, &none, e));
    refuse(ferry_model_add(s.model, &nameless, e));
    refuse(ferry_model_add(s.model, &wide, e));
    refuse(ferry_model_at(NULL, 0, &m, e));
    refuse(ferry_model_at(s.model, count, &m, e));
    refuse(ferry_model_at(s.model, 0, NULL, e));
    assert_int_equal(ferry_model_count(s.model), count);
    assert_int_equal(ferry_model_count(NULL), 0);
    ferry_model_destroy(NULL);
}

static void test_rosters(void **state)
{
    (void)state;
    ferry_roster *roster = NULL;
    ferry_plan *plan = NULL;
    refuse(ferry_roster_create(0, &roster, e));
    refuse(ferry_roster_create(4, NULL, e));
    refuse(ferry_roster_set(NULL, 0, NULL, NULL, e));
    refuse(ferry_roster_set(s.roster, WORLD, NULL, NULL, e));
    refuse(ferry_roster_set(s.roster, 0, NULL, NULL, e)); /* it is set already */
    refuse(ferry_plan_create_from_roster(NULL, NULL, &plan, e));
    refuse(ferry_plan_create_from_roster(s.roster, NULL, NULL, e));
    refuse(ferry_plan_create_from_roster(s.roster, &(ferry_plan_options){0}, &plan, e));
    assert_int_equal(ferry_roster_create(UINT32_MAX, &roster, &error), FERRY_ERR_LIMIT);
    assert_true(roster == NULL && plan == NULL);
    ferry_roster_destroy(NULL);
}

static void test_parameters(void **state)
{
    (void)state;
    const ferry_param_metadata *sources[] = {&s.metadata}, *holes[] = {&s.metadata, NULL};
    ferry_param_metadata none = {0};
    ferry_sharding_descriptor d = FERRY_SHARDING_DESCRIPTOR_INIT;
    ferry_transfers *t = NULL;
    size_t n = 4711;
    refuse(ferry_param_metadata_select_source(NULL, 1, &s.metadata, 0, &n, e));
    refuse(ferry_param_metadata_select_source(sources, 0, &s.metadata, 0, &n, e));
    refuse(ferry_param_metadata_select_source(sources, 1, NULL, 0, &n, e));
    refuse(ferry_param_metadata_select_source(sources, 1, &s.metadata, 0, NULL, e));
    refuse(ferry_param_metadata_select_source(holes, 2, &s.metadata, 0, &n, e));
    refuse(ferry_sharding_descriptor_build(NULL, &s.metadata, &d, &n, e));
    refuse(ferry_sharding_descriptor_build(&s.metadata, NULL, &d, &n, e));
    refuse(ferry_sharding_descriptor_build(&none, &s.metadata, &d, &n, e));
    refuse(ferry_sharding_descriptor_build(&s.metadata, &s.metadata, NULL, &n, e));
    refuse(ferry_sharding_descriptor_build(&s.metadata, &s.metadata, &d, NULL, e));
    refuse(ferry_transfers_plan_lcm(NULL, &s.metadata, &s.metadata, &d, 1, 0, &t, e));
    refuse(ferry_transfers_plan_lcm("p", NULL, &s.metadata, &d, 1, 0, &t, e));
    refuse(ferry_transfers_plan_lcm("p", &s.metadata, NULL, &d, 1, 0, &t, e));
    refuse(ferry_transfers_plan_lcm("p", &s.metadata, &s.metadata, &d, 1, 0, NULL, e));
    refuse(ferry_transfers_finalize_dp(NULL, &s.metadata, &s.metadata, 0, &t, e));
    refuse(ferry_transfers_finalize_dp("p", NULL, &s.metadata, 0, &t, e));
    refuse(ferry_transfers_finalize_dp("p", &s.metadata, &s.metadata, 0, NULL, e));
    refuse(ferry_transfers_find_sources(NULL, &s.metadata, &s.metadata, 0, &t, e));
    refuse(ferry_transfers_find_sources("p", NULL, &s.metadata, 0, &t, e));
    refuse(ferry_transfers_find_sources("p", &s.metadata, NULL, 0, &t, e));
    refuse(ferry_transfers_find_sources("p", &s.metadata, &s.metadata, 0, NULL, e));
    assert_true(t == NULL && n == 4711);
    ferry_transfer one = FERRY_TRANSFER_INIT;
    refuse(ferry_transfers_at(NULL, 0, &one, e));
    refuse(ferry_transfers_at(s.transfers, ferry_transfers_count(s.transfers), &one, e));
    refuse(ferry_transfers_at(s.transfers, 0, NULL, e));
    assert_int_equal(one.n_dims, 0);
    must(ferry_transfers_at(s.transfers, 0, &one, &error), &error);
    assert_int_equal(one.n_dims, s.metadata.n_dims);
    assert_int_equal(ferry_transfers_count(NULL), 0);
    ferry_transfers_destroy(NULL);
}

static void test_ops(void **state)
{
    (void)state;
    ferry_reshard_plan *ops = NULL;
    ferry_transfer_op op = FERRY_TRANSFER_OP_INIT, none = {0};
    char text[8] = "kept";
    refuse(ferry_reshard_plan_create(NULL, 0, &ops, e));
    refuse(ferry_reshard_plan_create(s.plan, 0, NULL, e));
    refuse(ferry_reshard_plan_create(s.plan, 3, &ops, e));
    refuse(ferry_reshard_plan_create(s.plan, FERRY_ALL_RANKS, &ops, e));
    refuse(ferry_reshard_plan_send_at(NULL, 0, &op, e));
    refuse(ferry_reshard_plan_receive_at(NULL, 0, &op, e));
    refuse(ferry_reshard_plan_receive_at(s.ops, 0, NULL, e));
    refuse(ferry_reshard_plan_receive_at(s.ops, 0, &none, e));
    refuse(ferry_reshard_plan_receive_at(s.ops, ferry_reshard_plan_receive_count(s.ops), &op, e));
    assert_null(ops);
    assert_int_equal(ferry_reshard_plan_send_count(NULL), 0);
    assert_int_equal(ferry_reshard_plan_receive_count(NULL), 0);
    assert_int_equal(ferry_reshard_plan_describe(NULL, text, sizeof text), 0);
    assert_true(ferry_reshard_plan_describe(s.ops, NULL, 0) > 40);
    assert_true(ferry_reshard_plan_describe(s.ops, text, sizeof text) > 40);
    assert_string_equal(text, "Reshard");
    ferry_reshard_plan_destroy(NULL);
}

static int gather_nothing(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                          const size_t **lengths_out)
{
    (void)context;
    (void)bytes;
    (void)n_bytes;
    (void)all_out;
    (void)lengths_out;
    return 1;
}

static int scatter_nothing(void *context, const void *all, const size_t *lengths,
                           const void **mine_out, size_t *n_bytes_out)
{
    (void)context;
    (void)all;
    (void)lengths;
    (void)mine_out;
    (void)n_bytes_out;
    return 1;
}

/* Of one rank. */
static int gather_own(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    static size_t length;
    static char own[1024];
    (void)context;
    length = n_bytes;
    assert_true(n_bytes <= sizeof own);
    memcpy(own, bytes, n_bytes);
    *all_out = own;
    *lengths_out = &length;
    return 0;
}

/* A rank without a place tells the others, so that they do not wait for it. */
static void test_exchanges_without_a_place(void **state)
{
    ferry_exchange alone = FERRY_EXCHANGE_INIT;
    (void)state;
    alone.n_ranks = 1;
    alone.all_gather = gather_own;
    refuse(ferry_reshard_plan_build_local(s.model, s.model, NULL, &alone, NULL, NULL, e));
    refuse(ferry_reshard_plan_build_centralized(s.model, s.model, NULL, &alone, NULL, NULL, e));
    refuse(ferry_spec_exchange(NULL, NULL, NULL, &alone, NULL, e));
}

/* Exchanges that are no exchange, and one that fails. */
static void test_exchanges(void **state)
{
    (void)state;
    ferry_reshard_plan *ops = NULL;
    ferry_exchange good = FERRY_EXCHANGE_INIT;
    good.n_ranks = 1;
    good.all_gather = gather_nothing;
    ferry_exchange bad[5] = {good, good, good, good, good};
    bad[0].struct_size = 0;
    bad[1].all_gather = NULL;
    bad[2].n_ranks = 0;
    bad[3].rank = 1;
    bad[4].scatter = scatter_nothing;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        refuse(ferry_reshard_plan_build_local(s.model, s.model, NULL, &bad[i], NULL, &ops, e));
        refuse(
            ferry_reshard_plan_build_centralized(s.model, s.model, NULL, &bad[i], NULL, &ops, e));
    }
    refuse(ferry_reshard_plan_build_local(s.model, s.model, NULL, NULL, NULL, &ops, e));
    refuse(ferry_reshard_plan_build_centralized(s.model, s.model, NULL, NULL, NULL, &ops, e));
    assert_int_equal(ferry_reshard_plan_build_local(s.model, NULL, NULL, &good, NULL, &ops, &error),
                     FERRY_ERR_EXCHANGE);
    assert_int_equal(
        ferry_reshard_plan_build_centralized(s.model, NULL, NULL, &good, NULL, &ops, &error),
        FERRY_ERR_EXCHANGE);
    assert_null(ops);
}

/* Functions without a status have nothing to say, but may not crash either. */
static void test_digests_of_nothing(void **state)
{
    (void)state;
    char digest[33] = "#";
    ferry_plan_digest(NULL, digest, sizeof digest);
    ferry_reshard_plan_digest(NULL, digest, sizeof digest);
    ferry_plan_digest(s.plan, NULL, 0);
    ferry_reshard_plan_digest(s.ops, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_visitor_stops),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_rosters),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_ops),
        cmocka_unit_test(test_exchanges_without_a_place),
        cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_digests_of_nothing),
    };
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
