/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Models, rosters, their plans and planning among ranks when memory runs out. */
#include "steps.h"

#include "support/model.h"
#include "support/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const grid source = {.first = 0, .dp = 2, .tp = 2},
                  destination = {.first = 3, .dp = 1, .tp = 3};
enum { WORLD = 6 };

typedef struct scene {
    char saved_path[64], out_path[64];
    ferry_roster *roster;
    ferry_plan *plan;
    ferry_model *src_model, *dst_model;
    ferry_group *group;
    ferry_param_metadata src, dst; /* one parameter of both sides */
    ferry_prefix_map *map;
    size_t length; /* of the exchange's only message */
    unsigned char message[10000];
    /* What steps make. */
    ferry_roster *made_roster;
    ferry_plan *made_plan;
    ferry_reshard_plan *made_ops;
    ferry_transfers *made_transfers;
    ferry_model *made_model;
    ferry_prefix_map *made_map;
    ferry_group *made_group;
    size_t chosen;
} scene;

static ferry_status make_group(void *context, ferry_error *error)
{
    static const uint32_t ranks[] = {5, 3, 4};
    scene *s = context;
    return ferry_group_create(ranks, 3, &s->made_group, error);
}

static ferry_status make_range(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_group_create_range(1, 2, 3, &s->made_group, error);
}

static ferry_status make_model(void *context, ferry_error *error)
{
    scene *s = context;
    return try_model(&source, 1, &s->made_model, error);
}

static ferry_status make_roster(void *context, ferry_error *error)
{
    scene *s = context;
    return try_roster(&source, &destination, WORLD, &s->made_roster, error);
}

static ferry_status make_map(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_prefix_map *map = NULL;
    ferry_status status = ferry_prefix_map_create(&map, error);
    for (int i = 0; i < 20 && status == FERRY_OK; i++) {
        char local[32], global[32];
        snprintf(local, sizeof local, "layers.%d", i);
        snprintf(global, sizeof global, "layers.%d", i + 20);
        status = ferry_prefix_map_add(map, local, global, error);
    }
    if (status == FERRY_OK) {
        s->made_map = map;
        map = NULL;
    }
    ferry_prefix_map_destroy(map);
    return status;
}

static ferry_status select_source(void *context, ferry_error *error)
{
    scene *s = context;
    const ferry_param_metadata *const sources[] = {&s->src, &s->src};
    return ferry_param_metadata_select_source(sources, 2, &s->dst, 3, &s->chosen, error);
}

static ferry_status route_param(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_transfers_find_sources("p", &s->src, &s->dst, 4, &s->made_transfers, error);
}

static ferry_status plan_balanced(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_create_from_roster(s->roster, NULL, &s->made_plan, error);
}

static ferry_status plan_seed(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = FERRY_REPLICA_SEED;
    return ferry_plan_create_from_roster(s->roster, &options, &s->made_plan, error);
}

static ferry_status list_ops(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_reshard_plan_create(s->plan, 4, &s->made_ops, error);
}

static ferry_status save(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_save(s->plan, s->out_path, error);
}

static ferry_status load(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_load(s->saved_path, &s->made_plan, error);
}

/* A world of one rank: everybody's message is its own. It must live until the next call. */
static int gather_own(void *context, const void *bytes, size_t n_bytes, const void **all_out,
                      const size_t **lengths_out)
{
    scene *s = context;
    assert_in_range(n_bytes, 0, sizeof s->message);
    memcpy(s->message, n_bytes == 0 ? (const void *)"" : bytes, n_bytes);
    s->length = n_bytes;
    *all_out = s->message;
    *lengths_out = &s->length;
    return 0;
}

static int scatter_own(void *context, const void *all, const size_t *lengths, const void **mine_out,
                       size_t *n_bytes_out)
{
    (void)context;
    *mine_out = all;
    *n_bytes_out = lengths[0];
    return 0;
}

static ferry_exchange exchange_of(scene *s)
{
    ferry_exchange x = FERRY_EXCHANGE_INIT;
    x.context = s;
    x.n_ranks = 1;
    x.all_gather = gather_own;
    return x;
}

static ferry_status build_local(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_exchange x = exchange_of(s);
    return ferry_reshard_plan_build_local(s->src_model, s->dst_model, NULL, &x, NULL, &s->made_ops,
                                          error);
}

static ferry_status build_centralized(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_exchange x = exchange_of(s);
    x.gather = gather_own;
    x.scatter = scatter_own;
    return ferry_reshard_plan_build_centralized(s->src_model, s->dst_model, &(uint64_t){8}, &x,
                                                NULL, &s->made_ops, error);
}

static ferry_status build_by_all_gather(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_exchange x = exchange_of(s);
    return ferry_reshard_plan_build_centralized(s->src_model, s->dst_model, NULL, &x, NULL,
                                                &s->made_ops, error);
}

static void describe_ops(const ferry_reshard_plan *ops, text_buffer *out)
{
    char line[200];
    ferry_reshard_plan_describe(ops, line, sizeof line);
    text_printf(out, "%s\n", line);
    for (size_t i = 0; i < ferry_reshard_plan_receive_count(ops); i++) {
        ferry_transfer_op op = FERRY_TRANSFER_OP_INIT;
        ferry_error error;
        must(ferry_reshard_plan_receive_at(ops, i, &op, &error), &error);
        text_printf(out, "%llu %s from %u\n", (unsigned long long)op.task_id, op.param_name,
                    op.peer_rank);
    }
}

static void describe_plan(const ferry_plan *plan, text_buffer *out)
{
    ferry_error error;
    must(ferry_plan_write_json(plan, NULL, text_write, out, &error), &error);
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    if (s->made_roster != NULL) {
        ferry_plan *plan = NULL;
        ferry_error error;
        must(ferry_plan_create_from_roster(s->made_roster, NULL, &plan, &error), &error);
        describe_plan(plan, out);
        ferry_plan_destroy(plan);
    }
    if (s->made_plan != NULL) {
        describe_plan(s->made_plan, out);
    }
    if (s->made_ops != NULL) {
        describe_ops(s->made_ops, out);
    }
    if (access(s->out_path, F_OK) == 0) {
        ferry_plan *plan = NULL;
        ferry_error error;
        must(ferry_plan_load(s->out_path, &plan, &error), &error);
        describe_plan(plan, out);
        ferry_plan_destroy(plan);
    }
    text_printf(out, "%zu transfers, %zu parameters, %zu ranks, map %d, chosen %zu\n",
                ferry_transfers_count(s->made_transfers), ferry_model_count(s->made_model),
                ferry_group_rank_count(s->made_group), s->made_map != NULL, s->chosen);
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_roster_destroy(s->made_roster);
    ferry_plan_destroy(s->made_plan);
    ferry_reshard_plan_destroy(s->made_ops);
    ferry_transfers_destroy(s->made_transfers);
    ferry_model_destroy(s->made_model);
    ferry_prefix_map_destroy(s->made_map);
    ferry_group_destroy(s->made_group);
    unlink(s->out_path);
    s->made_roster = NULL;
    s->made_plan = NULL;
    s->made_ops = NULL;
    s->made_transfers = NULL;
    s->made_model = NULL;
    s->made_map = NULL;
    s->made_group = NULL;
    s->chosen = SIZE_MAX;
}

/* Among ranks, one without memory for its message sends none, which the others find damaged. */
static const step steps[] = {
    {"group", make_group, describe_scene, give_back, FERRY_OK},
    {"range", make_range, describe_scene, give_back, FERRY_OK},
    {"model", make_model, describe_scene, give_back, FERRY_OK},
    {"roster", make_roster, describe_scene, give_back, FERRY_OK},
    {"prefix map", make_map, describe_scene, give_back, FERRY_OK},
    {"select a source", select_source, describe_scene, give_back, FERRY_OK},
    {"route a parameter", route_param, describe_scene, give_back, FERRY_OK},
    {"plan a roster, balanced", plan_balanced, describe_scene, give_back, FERRY_OK},
    {"plan a roster, seed", plan_seed, describe_scene, give_back, FERRY_OK},
    {"ops of a rank", list_ops, describe_scene, give_back, FERRY_OK},
    {"save a roster", save, describe_scene, give_back, FERRY_OK},
    {"load a roster", load, describe_scene, give_back, FERRY_OK},
    {"local", build_local, describe_scene, give_back, FERRY_ERR_EXCHANGE},
    {"centralized", build_centralized, describe_scene, give_back, FERRY_ERR_EXCHANGE},
    {"centralized by all-gather", build_by_all_gather, describe_scene, give_back,
     FERRY_ERR_EXCHANGE},
};

static int make_scene(void **state)
{
    static scene s;
    static uint64_t sizes[2][2];
    static const grid alone = {.first = 0, .dp = 1, .tp = 1};
    ferry_error error;
    s = (scene){.chosen = SIZE_MAX};
    snprintf(s.saved_path, sizeof s.saved_path, "/tmp/ferry-fault-%ld.saved", (long)getpid());
    snprintf(s.out_path, sizeof s.out_path, "/tmp/ferry-fault-%ld.out", (long)getpid());
    must(try_roster(&source, &destination, WORLD, &s.roster, &error), &error);
    must(ferry_plan_create_from_roster(s.roster, NULL, &s.plan, &error), &error);
    must(ferry_plan_save(s.plan, s.saved_path, &error), &error);
    must(try_model(&alone, 0, &s.src_model, &error), &error);
    must(try_model(&alone, 0, &s.dst_model, &error), &error);
    s.group = range_group(0, 1, 2);
    ferry_group *to = range_group(3, 1, 3);
    s.src = describe_param(&param_kinds[3], &source, 0, s.group, s.group, sizes[0]);
    s.dst = describe_param(&param_kinds[3], &destination, 4, to, to, sizes[1]);
    *state = &s;
    return 0;
}

static int remove_scene(void **state)
{
    scene *s = *state;
    ferry_group_destroy(s->group);
    ferry_group_destroy(s->dst.tensor_parallel_group_ranks);
    ferry_model_destroy(s->src_model);
    ferry_model_destroy(s->dst_model);
    ferry_plan_destroy(s->plan);
    ferry_roster_destroy(s->roster);
    return unlink(s->saved_path);
}

static void test_steps(void **state)
{
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        run_step(&steps[i], *state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
