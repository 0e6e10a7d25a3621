/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Whether sends meet receives: worlds of threads, with and without something wrong. */
#include "rank_threads.h"
#include "service_ends.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "transport/agree.h"

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
    uint64_t options_hash[MOST_RANKS];
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
    registry.plan = c->plans[r];
    fy_fail(&self->error, c->own[r], "%s", c->own_text);
    c->status[r] = fy_match(self->world, &registry, c->options_hash[r], c->own[r], &self->error,
                            &c->errors[r]);
    registry.plan = NULL;
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

static void test_options(void **state)
{
    static match_case c;
    (void)state;
    memset(&c, 0, sizeof c);
    c.options_hash[2] = 5;
    c.options_hash[3] = 6;
    run_case(&c, 4, "options", FERRY_ERR_INVALID_INPUT);
    check_says("options", "rank 2 made its service with other options than rank 0", &c.errors[1]);
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
    run_case(&c, 4, "who has a plan has the same", FERRY_OK);
    c.plans[3] = other;
    run_case(&c, 4, "another plan", FERRY_ERR_DIGEST);
    ferry_plan_digest(other, digest);
    check_says("another plan", "rank 3 bound plan ", &c.errors[0]);
    check_says("another plan", digest, &c.errors[0]);
    ferry_plan_digest(one, digest);
    check_says("another plan", "and rank 1 plan ", &c.errors[0]);
    check_says("another plan", digest, &c.errors[0]);
    ferry_plan_destroy(one);
    ferry_plan_destroy(other);
}

/* ---- messages that rank LIAR makes up ---- */

enum { LIAR = 1, SUMMARY_BYTES = 64, SUMS_BYTES = 256, FINDING_BYTES = 224, ROOM = 320 };
#define NONE SIZE_MAX

/* What is done to one kind of message: bytes are set from a place on, and it has another length. */
typedef struct lie {
    const char *row;
    size_t kind;   /* the length of such a message */
    int round;     /* which of that kind, from 0 on */
    size_t length; /* 0: as it was; NONE: no bytes */
    size_t at, n;
    char byte; /* each of them */
    ferry_status status;
    const char *says;
    size_t flag; /* a byte that becomes 1; 0: none */
} lie;

static const lie *told;
static int n_told; /* messages of its kind so far */
static bool was_told;

/* The message, or what is sent instead; room is for that. */
static const void *make_up(const ferry_world *world, const void *bytes, size_t *n_inout, char *room)
{
    if (told == NULL || ferry_world_rank(world) != LIAR || *n_inout != told->kind ||
        n_told++ != told->round) {
        return bytes;
    }
    memset(room, 0, ROOM);
    memcpy(room, bytes, *n_inout);
    memset(room + told->at, told->byte, told->n);
    if (told->flag != 0) {
        room[told->flag] = 1;
    }
    *n_inout = told->length == NONE ? 0 : told->length == 0 ? *n_inout : told->length;
    was_told = true;
    return room;
}

ferry_status __real_fy_votes_gather(ferry_world *world, const fy_vote *vote, fy_votes *votes_out,
                                    ferry_error *error);
ferry_status __wrap_fy_votes_gather(ferry_world *world, const fy_vote *vote, fy_votes *votes_out,
                                    ferry_error *error);
ferry_status __real_ferry_world_all_gather(ferry_world *world, const void *bytes, size_t n_bytes,
                                           const void **all_out, ferry_error *error);
ferry_status __wrap_ferry_world_all_gather(ferry_world *world, const void *bytes, size_t n_bytes,
                                           const void **all_out, ferry_error *error);
ferry_status __real_ferry_world_broadcast(ferry_world *world, uint32_t root, const void *bytes,
                                          size_t n_bytes, const void **bytes_out,
                                          size_t *n_bytes_out, ferry_error *error);
ferry_status __wrap_ferry_world_broadcast(ferry_world *world, uint32_t root, const void *bytes,
                                          size_t n_bytes, const void **bytes_out,
                                          size_t *n_bytes_out, ferry_error *error);

ferry_status __wrap_fy_votes_gather(ferry_world *world, const fy_vote *vote, fy_votes *votes_out,
                                    ferry_error *error)
{
    char room[ROOM];
    fy_vote own = *vote;
    own.bytes = make_up(world, vote->bytes, &own.n_bytes, room);
    return __real_fy_votes_gather(world, &own, votes_out, error);
}

ferry_status __wrap_ferry_world_all_gather(ferry_world *world, const void *bytes, size_t n_bytes,
                                           const void **all_out, ferry_error *error)
{
    char room[ROOM];
    const void *own = make_up(world, bytes, &n_bytes, room);
    return __real_ferry_world_all_gather(world, own, n_bytes, all_out, error);
}

ferry_status __wrap_ferry_world_broadcast(ferry_world *world, uint32_t root, const void *bytes,
                                          size_t n_bytes, const void **bytes_out,
                                          size_t *n_bytes_out, ferry_error *error)
{
    char room[ROOM];
    const void *own = root == LIAR ? make_up(world, bytes, &n_bytes, room) : bytes;
    return __real_ferry_world_broadcast(world, root, own, n_bytes, bytes_out, n_bytes_out, error);
}

#define DAMAGED FERRY_ERR_EXCHANGE, "the message of rank 1 is damaged", 0

/* A task that the liar sends and rank 2 does not receive, in a world of three. */
static const lie lies[] = {
    {"no summary", SUMMARY_BYTES, 0, NONE, 0, 0, 0, DAMAGED},
    {"a short one", SUMMARY_BYTES, 0, SUMMARY_BYTES - 1, 0, 0, 0, DAMAGED},
    {"a long one", SUMMARY_BYTES, 0, SUMMARY_BYTES + 1, 0, 0, 0, DAMAGED},
    {"another sum", SUMMARY_BYTES, 0, 0, 0, 16, 0x5a, FERRY_ERR_INVALID_INPUT, "task 7 from rank",
     0},
    {"no sum", SUMMARY_BYTES, 0, 0, 0, 16, 0, FERRY_OK, "", 0},
    {"other options", SUMMARY_BYTES, 0, 0, 16, 8, 1, FERRY_ERR_INVALID_INPUT,
     "rank 1 made its service with other options", 0},
    {"two plans", SUMMARY_BYTES, 0, 0, 24, 1, 2, DAMAGED},
    {"many plans", SUMMARY_BYTES, 0, 0, 27, 1, 1, DAMAGED},
    {"a plan without digest", SUMMARY_BYTES, 0, 0, 24, 1, 1, DAMAGED},
    {"a digest without end", SUMMARY_BYTES, 0, 0, 28, 36, 'a', FERRY_ERR_EXCHANGE,
     "rank 1 is damaged", 24},
    {"sums of no rank", SUMS_BYTES, 0, 0, 3 * 16, 1, 1, DAMAGED},
    {"sums of rank 15", SUMS_BYTES, 0, 0, 15 * 16 + 15, 1, 1, DAMAGED},
    {"sums of rank 0", SUMS_BYTES, 0, 0, 0, 16, 1, FERRY_ERR_INVALID_INPUT, "do not match", 0},
    {"no sums", SUMS_BYTES, 0, 0, 0, SUMS_BYTES, 0, FERRY_ERR_INVALID_INPUT, "do not match", 0},
    {"sums of no destination", SUMS_BYTES, 1, 0, 3 * 16, 1, 1, DAMAGED},
    {"no sums of tasks", SUMS_BYTES, 2, 0, 0, 16, 0, FERRY_ERR_INVALID_INPUT, "do not match", 0},
    {"a short finding", FINDING_BYTES, 0, FINDING_BYTES - 1, 0, 0, 0, DAMAGED},
    {"a long finding", FINDING_BYTES, 0, FINDING_BYTES + 1, 0, 0, 0, DAMAGED},
    {"no finding", FINDING_BYTES, 0, NONE, 0, 0, 0, DAMAGED},
    {"it has it twice", FINDING_BYTES, 0, 0, 0, 1, 2, DAMAGED},
    {"it has it more often", FINDING_BYTES, 0, 0, 7, 1, 1, DAMAGED},
    {"a name without end", FINDING_BYTES, 0, 0, 24, 200, 'n', DAMAGED},
    {"other bytes", FINDING_BYTES, 0, 0, 8, 16, 1, FERRY_ERR_INVALID_INPUT, "task 7 from rank 1",
     0},
};

static void test_lies(void **state)
{
    static match_case c;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        lie made_up = lies[i];
        memset(&c, 0, sizeof c);
        c.n_tasks = 1;
        c.tasks[0] = (task){.id = 7, .from = LIAR, .to = 2, .sent = 64};
        n_told = 0;
        was_told = false;
        told = &made_up;
        run_case(&c, 3, made_up.row, made_up.status);
        told = NULL;
        check_row(made_up.row, was_told);
        if (made_up.status != FERRY_OK) {
            check_says(made_up.row, made_up.says, &c.errors[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),       cmocka_unit_test(test_wrong_source),
        cmocka_unit_test(test_own_failures), cmocka_unit_test(test_options),
        cmocka_unit_test(test_plans),        cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
