/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Shards, and plans without ranks that are lost, when memory runs out. */
#include "steps.h"

#include "support/spec.h"

#include <ferry/shard.h>

#include <stdio.h>
#include <unistd.h>

/* Replicas, shared blocks, and shared blocks under a flat cut. */
static const char text[] =
    "{'format':'ferry.spec/1','tensors':[{'name':'w','shape':[24,4],'dtype':'bf16'},"
    "{'name':'packed','shape':[24,4],'dtype':'u8'},{'name':'flat','shape':[12],'dtype':'u8'},"
    "{'name':'e.{0}','count':[2],'shape':[6],'dtype':'u8'},{'name':'stack','shape':[2,6],"
    "'dtype':'u8','source':[{'tensor':'e.0','begin':[0],'shape':[6],'at':[0,0]},"
    "{'tensor':'e.1','begin':[0],'shape':[6],'at':[1,0]}]}],"
    "'source':{'mesh':[['dp',2],['cp',2],['tp',2]],'rules':["
    "{'match':'packed','shard':[{'dim':0,'axis':'tp','blocks':[8,[12,1],4]}]},"
    "{'match':'flat','shard':[{'dim':0,'axis':'cp','blocks':[4,[8,1]]}],'flat':{'axis':'tp'},"
    "'on':{'dp':0}},{'match':'*','shard':[{'dim':0,'axis':'tp','cycle':2}]}]},"
    "'destination':{'mesh':[['tp',4]],'first_rank':6,'rules':["
    "{'match':'e.*','skip':true},{'match':'*','shard':[{'dim':0,'axis':'tp'}]}]}}";

static const uint32_t one_lost[] = {9, 1};        /* of each replica another is left */
static const uint32_t half_lost[] = {1, 3, 5, 7}; /* and nobody who has odd rows of "w" */

typedef struct scene {
    char saved_path[64], out_path[64];
    ferry_spec *spec;
    ferry_plan *plan; /* without one_lost */
    ferry_plan *made_plan;
    text_buffer printed;
    bool is_printed;
} scene;

static ferry_plan_options without(const uint32_t *lost, size_t n_lost, uint32_t policy)
{
    ferry_plan_options options = FERRY_PLAN_OPTIONS_INIT;
    options.replica = policy;
    options.lost_ranks = lost;
    options.n_lost_ranks = n_lost;
    return options;
}

static int make_scene(void **state)
{
    static scene s;
    ferry_error error;
    ferry_plan_options options = without(one_lost, COUNT_OF(one_lost), FERRY_REPLICA_BALANCED);
    snprintf(s.saved_path, sizeof s.saved_path, "/tmp/ferry-fault-%ld.plan", (long)getpid());
    snprintf(s.out_path, sizeof s.out_path, "/tmp/ferry-fault-%ld.out", (long)getpid());
    must(try_spec(text, &s.spec, &error), &error);
    must(ferry_plan_create(s.spec, &options, &s.plan, &error), &error);
    must(ferry_plan_save(s.plan, s.saved_path, &error), &error);
    *state = &s;
    return 0;
}

static int remove_scene(void **state)
{
    scene *s = *state;
    ferry_plan_destroy(s->plan);
    ferry_spec_destroy(s->spec);
    return unlink(s->saved_path);
}

static ferry_status create_balanced(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_plan_options options = without(one_lost, COUNT_OF(one_lost), FERRY_REPLICA_BALANCED);
    return ferry_plan_create(s->spec, &options, &s->made_plan, error);
}

static ferry_status create_seed(void *context, ferry_error *error)
{
    scene *s = context;
    ferry_plan_options options = without(one_lost, COUNT_OF(one_lost), FERRY_REPLICA_SEED);
    return ferry_plan_create(s->spec, &options, &s->made_plan, error);
}

static ferry_status load(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_load(s->saved_path, &s->made_plan, error);
}

static ferry_status save(void *context, ferry_error *error)
{
    scene *s = context;
    return ferry_plan_save(s->plan, s->out_path, error);
}

static ferry_status describe_shard(void *context, const ferry_shard *shard)
{
    scene *s = context;
    int64_t countdown = failing_countdown; /* the test's own memory does not fail */
    failing_countdown = -1;
    text_printf(&s->printed, "%s %llu", shard->tensor, (unsigned long long)shard->bytes);
    for (uint32_t d = 0; d < shard->n_dims; d++) {
        text_printf(&s->printed, " %zu", ferry_shard_piece_count(shard, d));
    }
    failing_countdown = countdown;
    return FERRY_OK;
}

static ferry_status visit_side(scene *s, ferry_side_role side, uint32_t rank, ferry_error *error)
{
    ferry_status status = ferry_plan_visit_shards(s->plan, side, rank, describe_shard, s, error);
    s->is_printed = status == FERRY_OK;
    return status;
}

static ferry_status visit_source(void *context, ferry_error *error)
{
    return visit_side(context, FERRY_SIDE_SOURCE, 3, error);
}

static ferry_status visit_destination(void *context, ferry_error *error)
{
    return visit_side(context, FERRY_SIDE_DESTINATION, 7, error);
}

static void describe_scene(const void *context, text_buffer *out)
{
    const scene *s = context;
    if (s->made_plan != NULL) {
        text_buffer printed = print_plan(s->made_plan);
        text_append(out, printed.bytes, printed.used);
        text_cleanup(&printed);
    }
    text_printf(out, "saved %d\n", access(s->out_path, F_OK) == 0);
    if (s->is_printed) {
        text_append(out, s->printed.bytes, s->printed.used);
    }
}

static void give_back(void *context)
{
    scene *s = context;
    ferry_plan_destroy(s->made_plan);
    unlink(s->out_path);
    s->made_plan = NULL;
    s->is_printed = false;
    text_cleanup(&s->printed);
}

static const step steps[] = {
    {"plan without ranks, balanced", create_balanced, describe_scene, give_back, FERRY_OK},
    {"plan without ranks, seed", create_seed, describe_scene, give_back, FERRY_OK},
    {"save", save, describe_scene, give_back, FERRY_OK},
    {"load", load, describe_scene, give_back, FERRY_OK},
    {"visit shards at the source", visit_source, describe_scene, give_back, FERRY_OK},
    {"visit shards at the destination", visit_destination, describe_scene, give_back, FERRY_OK},
};

static void test_steps(void **state)
{
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        run_step(&steps[i], *state);
    }
}

/* To say what is lost takes memory too; without it the status is that, and nothing is kept. */
static void test_sentence(void **state)
{
    scene *s = *state;
    int64_t n_refusals = 0;
    for (ferry_status status = FERRY_ERR_NO_MEMORY; status == FERRY_ERR_NO_MEMORY; n_refusals++) {
        ferry_error error = {""};
        ferry_plan *plan = NULL;
        int64_t live = failing_live;
        ferry_plan_options options = without(half_lost, COUNT_OF(half_lost), 0);
        failing_start(n_refusals, true);
        status = ferry_plan_create(s->spec, &options, &plan, &error);
        bool refused = failing_stop();
        check_status("lost", refused ? FERRY_ERR_NO_MEMORY : FERRY_ERR_INVALID_PLAN, status,
                     &error);
        check_row("lost", plan == NULL && failing_live == live && strlen(error.message) > 10);
    }
    assert_true(n_refusals > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_sentence),
    };
    failing_init();
    return cmocka_run_group_tests(tests, make_scene, remove_scene);
}
