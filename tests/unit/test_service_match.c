/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Whether sends meet receives: worlds of threads, with and without something wrong. */
#include "rank_threads.h"
#include "service_ends.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "plan/shards.h"

#include <ferry/plan.h>
#include <ferry/spec.h>

#include <stdlib.h>

enum { MOST_TASKS = 400 };

/* A task, and how its two halves are registered. */
typedef struct task {
    uint64_t id;
    uint32_t from, to;
    uint64_t sent, received; /* 0: not registered */
} task;

typedef struct match_case {
    task tasks[MOST_TASKS];
    uint32_t n_tasks;
    bool named;
    uint64_t slot_bytes[MOST_RANKS];
    ferry_status own[MOST_RANKS];
    const char *own_text;
    ferry_plan *plans[MOST_RANKS]; /* not kept by registries */
    ferry_status status[MOST_RANKS];
    ferry_error errors[MOST_RANKS];
    uint64_t seed;
} match_case;

static char memory[4096];

/* In an order of each rank's own. */
static void register_mine(rank_thread *self, const match_case *c, fy_registry *registry)
{
    uint64_t random = c->seed + self->rank;
    uint32_t turn = c->n_tasks == 0 ? 0 : random_below(&random, c->n_tasks);
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        const task *t = &c->tasks[(i + turn) % c->n_tasks];
        ferry_box box = flat_box(memory, sizeof memory, 0, 1);
        box.name = c->named ? "model.embed" : NULL;
        box.length[0] = t->sent;
        if (t->from == self->rank && t->sent != 0) {
            expect_ok(self, fy_registry_add(registry, true, t->id, t->to, &box, &self->error));
        }
        box.length[0] = t->received;
        if (t->to == self->rank && t->received != 0) {
            expect_ok(self, fy_registry_add(registry, false, t->id, t->from, &box, &self->error));
        }
    }
    fy_registry_sort(registry);
}

static void match_as_rank(rank_thread *self)
{
    match_case *c = self->context;
    uint32_t r = self->rank;
    fy_registry registry = {0};
    register_mine(self, c, &registry);
    fy_fail(&c->errors[r], c->own[r], "%s", c->own_text);
    c->status[r] = match_ends(self->world, &registry, c->own[r], &c->errors[r]);
    /* The world is in step: all ranks made the same calls. */
    ferry_status step = ferry_world_barrier(self->world, &self->error);
    fy_registry_cleanup(&registry);
    expect_ok(self, step);
}

/* All ranks end alike. */
static void run_case(match_case *c, uint32_t n_ranks, const char *row, ferry_status wanted)
{
    run_ranks(n_ranks, NULL, match_as_rank, c);
    for (uint32_t r = 0; r < n_ranks; r++) {
        check_status(row, wanted, c->status[r], &c->errors[r]);
        if (wanted != FERRY_OK && strcmp(c->errors[r].message, c->errors[0].message) != 0) {
            fail_msg("row \"%s\": rank %u says \"%s\", rank 0 \"%s\"", row, r, c->errors[r].message,
                     c->errors[0].message);
        }
    }
}

/* Ids as programs choose them: few bits, or all. Unique for each pair. */
static void make_tasks(match_case *c, uint32_t n_ranks, uint64_t *state)
{
    memset(c, 0, sizeof *c);
    c->seed = random_u64(state);
    c->n_tasks = random_below(state, MOST_TASKS);
    c->named = random_below(state, 2) == 0;
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        uint64_t bytes = 1 + random_below(state, 4000);
        c->tasks[i] = (task){.id = i,
                             .from = random_below(state, n_ranks),
                             .to = random_below(state, n_ranks),
                             .sent = bytes,
                             .received = bytes};
    }
    if (random_below(state, 2) == 0) {
        uint64_t factor = random_u64(state) | 1; /* odd: still unique */
        for (uint32_t i = 0; i < c->n_tasks; i++) {
            c->tasks[i].id = i * factor - 3;
        }
    }
}

static bool is_before(const task *a, const task *b)
{
    if (a->from != b->from || a->to != b->to) {
        return a->from != b->from ? a->from < b->from : a->to < b->to;
    }
    return a->id < b->id;
}

/* Spoils up to three tasks and returns the first of them in order of source, destination and id. */
static const task *spoil(match_case *c, uint64_t *state)
{
    const task *first = NULL;
    for (uint32_t n = 1 + random_below(state, 3); n > 0; n--) {
        task *t = &c->tasks[random_below(state, c->n_tasks)];
        uint32_t kind = random_below(state, 3);
        if (t->sent != t->received) {
            continue;
        }
        t->sent = kind == 0 ? 0 : t->sent;
        t->received = kind == 1 ? 0 : kind == 2 ? t->received + 1 : t->received;
        first = first == NULL || is_before(t, first) ? t : first;
    }
    return first;
}

static void test_random(void **state)
{
    static match_case c;
    uint64_t random = 11;
    (void)state;
    for (int round = 0; round < 150; round++) {
        uint32_t n_ranks = 1 + random_below(&random, 8);
        make_tasks(&c, n_ranks, &random);
        run_case(&c, n_ranks, "as it should be", FERRY_OK);
        if (c.n_tasks == 0) {
            continue;
        }
        const task *t = spoil(&c, &random);
        char text[160];
        run_case(&c, n_ranks, "spoilt", FERRY_ERR_INVALID_INPUT);
        snprintf(text, sizeof text,
                 "task %llu%s from rank %u to rank %u: ", (unsigned long long)t->id,
                 c.named ? " (model.embed)" : "", t->from, t->to);
        check_says(text, text, &c.errors[0]);
        snprintf(text, sizeof text,
                 t->sent == 0 ? "rank %u does not send" : "rank %u sends %llu bytes", t->from,
                 (unsigned long long)t->sent);
        check_says(text, text, &c.errors[0]);
        snprintf(text, sizeof text,
                 t->received == 0 ? "rank %u does not receive" : "rank %u receives %llu bytes",
                 t->to, (unsigned long long)t->received);
        check_says(text, text, &c.errors[0]);
    }
}

/* What one rank sends is received from another: two errors that must not cancel. */
static void test_wrong_source(void **state)
{
    static match_case c;
    (void)state;
    memset(&c, 0, sizeof c);
    c.n_tasks = 2;
    c.tasks[0] = (task){.id = 7, .from = 0, .to = 1, .sent = 64};
    c.tasks[1] = (task){.id = 7, .from = 2, .to = 1, .received = 64};
    run_case(&c, 3, "another source", FERRY_ERR_INVALID_INPUT);
    check_says("another source",
               "task 7 from rank 0 to rank 1: rank 0 sends 64 bytes, rank 1 does "
               "not receive it (of 1 sends and 0 receives",
               &c.errors[0]);
    c.tasks[1] = (task){.id = UINT64_MAX, .from = 0, .to = 1, .received = 64};
    run_case(&c, 3, "another id", FERRY_ERR_INVALID_INPUT);
    check_says("another id", "task 7 from", &c.errors[0]);
    c.tasks[0].received = 64;
    run_case(&c, 3, "the last id", FERRY_ERR_INVALID_INPUT);
    check_says("the last id", "task 18446744073709551615 from rank 0 to rank 1: rank 0 does not",
               &c.errors[0]);
}

/* Rank 1 brings sums of parts that there are not, as one in another version of ferry may. */
enum { LAST_PART = 15, N_SUMS = 2 * (LAST_PART + 1) };

static void match_beside_nonsense(rank_thread *self)
{
    match_case *c = self->context;
    if (self->rank == 1) {
        fy_field both[] = {{.value = 1, .how = FY_SUM}, {.how = FY_SUM}}, parts[N_SUMS];
        for (int i = 0; i < N_SUMS; i++) {
            parts[i] = (fy_field){.value = i == 2 * LAST_PART, .how = FY_SUM};
        }
        ferry_status status =
            fy_agree_on(self->world, FY_JOINT_SERVICE_SCHEDULE, 0, both, 2, FERRY_OK, &self->error);
        FY_THEN(status, fy_agree_on(self->world, FY_JOINT_SERVICE_SCHEDULE, 0, parts, N_SUMS,
                                    FERRY_OK, &self->error));
        expect_ok(self, status);
    } else {
        fy_registry registry = {0};
        c->status[0] = match_ends(self->world, &registry, FERRY_OK, &c->errors[0]);
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
}

static void test_nonsense(void **state)
{
    static match_case c;
    (void)state;
    memset(&c, 0, sizeof c);
    run_ranks(2, NULL, match_beside_nonsense, &c);
    check_status("nonsense", FERRY_ERR_INVALID_INPUT, c.status[0], &c.errors[0]);
    check_says("nonsense", "the sends and the receives that the ranks registered do not match",
               &c.errors[0]);
}

static void test_own_failures(void **state)
{
    static match_case c;
    (void)state;
    memset(&c, 0, sizeof c);
    c.n_tasks = 1;
    c.tasks[0] = (task){.id = 7, .from = 0, .to = 1, .sent = 64};
    c.own_text = "embed: no such buffer";
    c.own[1] = FERRY_ERR_LIMIT;
    c.own[2] = FERRY_ERR_IO;
    run_case(&c, 4, "own failures come first", FERRY_ERR_LIMIT);
    check_says("own failures", "rank 1: embed: no such buffer", &c.errors[3]);
}

/* A service on each rank, with options and a plan of the rank's own; nothing is registered. */
static void schedule_as_rank(rank_thread *self)
{
    match_case *c = self->context;
    uint32_t r = self->rank;
    ferry_service *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    options.slot_bytes = c->slot_bytes[r];
    expect_ok(self, ferry_service_create(self->world, &options, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error));
    service->registry.plan = c->plans[r] == NULL ? NULL : fy_plan_retain(c->plans[r]);
    c->status[r] = ferry_service_schedule(service, &c->errors[r]);
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    ferry_service_destroy(service);
}

static void run_schedules(match_case *c, uint32_t n_ranks, const char *row, ferry_status wanted)
{
    run_ranks(n_ranks, NULL, schedule_as_rank, c);
    for (uint32_t r = 0; r < n_ranks; r++) {
        check_status(row, wanted, c->status[r], &c->errors[r]);
    }
}

static void test_options(void **state)
{
    static match_case c;
    (void)state;
    memset(&c, 0, sizeof c);
    c.slot_bytes[2] = 5000;
    c.slot_bytes[3] = 6000;
    run_schedules(&c, 4, "options", FERRY_ERR_INVALID_INPUT);
    for (uint32_t r = 0; r < 4; r++) {
        check_says("options", "the service's slot_bytes is ", &c.errors[r]);
        check_says("options", " on rank 0 and 5000 on rank 2: a service is made alike",
                   &c.errors[r]);
    }
}

static ferry_plan *make_plan(const char *extent)
{
    char text[512];
    ferry_spec *spec;
    ferry_plan *plan;
    ferry_error error;
    snprintf(text, sizeof text,
             "{\"format\": \"ferry.spec/1\", \"tensors\": [{\"name\": \"w\", \"shape\": [%s], "
             "\"dtype\": \"f32\"}], \"source\": {\"mesh\": [[\"tp\", 2]], \"rules\": [{\"match\": "
             "\"*\", \"shard\": [{\"dim\": 0, \"axis\": \"tp\"}]}]}, \"destination\": {\"mesh\": "
             "[[\"tp\", 2]], \"rules\": [{\"match\": \"*\"}]}}",
             extent);
    must(ferry_spec_parse(text, strlen(text), "spec", &spec, &error), &error);
    must(ferry_plan_create(spec, NULL, &plan, &error), &error);
    ferry_spec_destroy(spec);
    return plan;
}

static void test_plans(void **state)
{
    static match_case c;
    ferry_plan *one = make_plan("8"), *other = make_plan("16");
    char digest[33];
    (void)state;
    memset(&c, 0, sizeof c);
    c.plans[1] = c.plans[2] = one;
    run_schedules(&c, 4, "who has a plan has the same", FERRY_OK);
    c.plans[3] = other;
    run_schedules(&c, 4, "another plan", FERRY_ERR_DIGEST);
    for (uint32_t r = 0; r < 4; r++) {
        ferry_plan_digest(one, digest, sizeof digest);
        check_says("another plan", digest, &c.errors[r]);
        check_says("another plan", " on rank 1 and ", &c.errors[r]);
        ferry_plan_digest(other, digest, sizeof digest);
        check_says("another plan", digest, &c.errors[r]);
        check_says("another plan", " on rank 3: all ranks bind the same", &c.errors[r]);
    }
    ferry_plan_destroy(one);
    ferry_plan_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),   cmocka_unit_test(test_wrong_source),
        cmocka_unit_test(test_nonsense), cmocka_unit_test(test_own_failures),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
