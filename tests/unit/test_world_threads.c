/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/world.h"

#include "base/alloc.h"
#include "world/threads.h"

#include "support/check.h"
#include "support/random.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_RANKS = 32 };

/* Every rank is a thread; what is wrong there is told to the test's own one. */
typedef struct rank_thread {
    pthread_t thread;
    ferry_world *world;
    uint32_t rank;
    uint32_t n_ranks;
    void (*run)(struct rank_thread *self);
    void *context;
    const char *problem;
    int line;
    ferry_error error;
} rank_thread;

#define expect(condition)                                                                          \
    do {                                                                                           \
        if (!(condition) && self->problem == NULL) {                                               \
            self->problem = #condition;                                                            \
            self->line = __LINE__;                                                                 \
        }                                                                                          \
    } while (0)

static void *run_rank(void *context)
{
    rank_thread *self = context;
    self->run(self);
    ferry_world_destroy(self->world);
    return NULL;
}

static void run_ranks(const char *row, uint32_t n_ranks, const ferry_world_options *options,
                      void (*run)(rank_thread *self), void *context)
{
    static rank_thread threads[MOST_RANKS];
    ferry_world *worlds[MOST_RANKS];
    ferry_error error;
    memset(threads, 0, sizeof threads);
    must(ferry_world_create_threads(n_ranks, options, worlds, &error), &error);
    for (uint32_t r = 0; r < n_ranks; r++) {
        threads[r].world = worlds[r];
        threads[r].rank = r;
        threads[r].n_ranks = n_ranks;
        threads[r].run = run;
        threads[r].context = context;
        assert_int_equal(pthread_create(&threads[r].thread, NULL, run_rank, &threads[r]), 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(threads[r].thread, NULL);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (threads[r].problem != NULL) {
            fail_msg("row \"%s\": rank %u of %u, line %d: not so: %s (%s)", row, r, n_ranks,
                     threads[r].line, threads[r].problem, threads[r].error.message);
        }
    }
}

static bool is(rank_thread *self, ferry_status wanted, ferry_status status, const char *says)
{
    return status == wanted && (says == NULL || strstr(self->error.message, says) != NULL);
}

/*
 * Numbers
 */

static void look_at_numbers(rank_thread *self)
{
    ferry_world *world = self->world;
    expect(ferry_world_rank(world) == self->rank);
    expect(ferry_world_rank_count(world) == self->n_ranks);
    expect(ferry_world_epoch(world) == 0);
    expect(ferry_world_member_of(world, self->rank) == self->rank);
    expect(ferry_world_node_count(world) == 2);
    expect(ferry_world_node_of(world, self->rank) == (self->rank < 3 ? 0 : 1));
    expect(ferry_world_local_rank_count(world) == (self->rank < 3 ? 3 : 2));
    expect(ferry_world_local_rank(world) == self->rank % 3);
    expect(ferry_world_state(world, NULL, &self->error) == FERRY_OK);
    expect(world->threads);
    expect(world->bell_of(world, self->rank) == world->bell);
    expect(world->pid_of(world, self->rank) > 0);
    expect(world->pid_of(world, self->rank < 3 ? 3 : 0) == 0);
}

static void test_numbers(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.nodes = "3,2";
    run_ranks("numbers", 5, &options, look_at_numbers, NULL);
}

static void test_create_refused(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *worlds[4] = {NULL};
    ferry_error error;
    assert_int_equal(ferry_world_create_threads(0, NULL, worlds, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_world_create_threads(2, NULL, NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_world_create_threads(1u << 20, NULL, worlds, &error), FERRY_ERR_LIMIT);
    options.nodes = "3,2";
    assert_int_equal(ferry_world_create_threads(4, &options, worlds, &error),
                     FERRY_ERR_INVALID_INPUT);
    check_says("nodes", "places 5 ranks, but the world has 4", &error);
    assert_null(worlds[0]);
    ferry_world_destroy(NULL);
    ferry_world_abort(NULL, "nothing");
    assert_int_equal(ferry_world_rank(NULL), UINT32_MAX);
    assert_int_equal(ferry_world_rank_count(NULL), 0);
}

/* Newcomers */

enum { MEMBERS = 3, NEWCOMERS = 2 };

/* All ranks of a larger world, old and new, know each other. */
static void look_at_grown(rank_thread *self, ferry_world *world)
{
    const void *all;
    static const uint32_t members[] = {0, 1, 2, 9, 4};
    uint32_t rank = ferry_world_rank(world);
    expect(ferry_world_rank_count(world) == MEMBERS + NEWCOMERS);
    expect(ferry_world_epoch(world) == 1);
    expect(ferry_world_node_count(world) == 2);
    expect(ferry_world_node_of(world, MEMBERS) == 1);
    expect(world->n_first == 10);
    expect(ferry_world_all_gather(world, &rank, sizeof rank, &all, &self->error) == FERRY_OK);
    for (uint32_t r = 0; r < MEMBERS + NEWCOMERS && self->problem == NULL; r++) {
        expect(ferry_world_member_of(world, r) == members[r]);
        expect(((const uint32_t *)all)[r] == r);
    }
}

static void run_newcomer(rank_thread *self)
{
    expect(self->rank == ferry_world_rank(self->world));
    look_at_grown(self, self->world);
}

static void grow(rank_thread *self)
{
    static const uint32_t numbers[] = {9, 4};
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    ferry_world *larger = NULL, *newcomers[NEWCOMERS];
    rank_thread threads[NEWCOMERS];
    options.n_newcomers = NEWCOMERS;
    options.members = numbers;
    /* Refused on all, as rank 0 has no places for them; nothing is left of it. */
    expect(is(self, FERRY_ERR_MISUSE,
              ferry_world_grow(self->world, &options, &larger, &self->error), "newcomers_out"));
    expect(larger == NULL);
    options.newcomers_out = newcomers;
    expect(ferry_world_grow(self->world, &options, &larger, &self->error) == FERRY_OK);
    if (self->problem != NULL) {
        return;
    }
    for (uint32_t i = 0; i < NEWCOMERS && self->rank == 0; i++) {
        threads[i] = (rank_thread){.world = newcomers[i], .rank = MEMBERS + i, .run = run_newcomer};
        expect(pthread_create(&threads[i].thread, NULL, run_rank, &threads[i]) == 0);
    }
    look_at_grown(self, larger);
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    expect(ferry_world_rank_count(self->world) == MEMBERS);
    ferry_world_destroy(larger);
    for (uint32_t i = 0; i < NEWCOMERS && self->rank == 0; i++) {
        pthread_join(threads[i].thread, NULL);
        expect(threads[i].problem == NULL);
    }
}

static void test_grow(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.nodes = "2,1";
    run_ranks("grow", MEMBERS, &options, grow, NULL);
}

/* A rank alone is on the first of its nodes, and who joins it on the last, as among processes. */
static void test_grow_alone(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_grow_options growth = FERRY_GROW_OPTIONS_INIT;
    ferry_world *world, *larger, *newcomer;
    ferry_error error;
    options.nodes = "2";
    growth.newcomers_out = &newcomer;
    must(ferry_world_create_threads(1, &options, &world, &error), &error);
    must(ferry_world_grow(world, &growth, &larger, &error), &error);
    assert_int_equal(ferry_world_node_count(newcomer), 2);
    assert_int_equal(ferry_world_node_of(newcomer, 1), 1);
    ferry_world_leave(newcomer, "it was only looked at");
    ferry_world_destroy(newcomer);
    ferry_world_destroy(larger);
    ferry_world_destroy(world);
}

/* Every call with an argument that breaks its contract; the world is as well as before. */
static void test_misuse(void **state)
{
    (void)state;
    ferry_world *world, *other;
    ferry_error error;
    const void *out;
    const size_t *lengths;
    size_t n;
    char byte = 0;
    must(ferry_world_create_threads(1, NULL, &world, &error), &error);
    struct {
        const char *name;
        ferry_status status;
        ferry_status wanted;
    } rows[] = {
        {"barrier", ferry_world_barrier(NULL, NULL), FERRY_ERR_MISUSE},
        {"gather: no world", ferry_world_all_gather(NULL, &byte, 1, &out, NULL), FERRY_ERR_MISUSE},
        {"gather: no bytes", ferry_world_all_gather(world, NULL, 1, &out, NULL), FERRY_ERR_MISUSE},
        {"gather: no place", ferry_world_all_gather(world, &byte, 1, NULL, NULL), FERRY_ERR_MISUSE},
        {"gather_v: no lengths", ferry_world_all_gather_v(world, &byte, 1, &out, NULL, NULL),
         FERRY_ERR_MISUSE},
        {"gather_v: no bytes", ferry_world_all_gather_v(world, NULL, 1, &out, &lengths, NULL),
         FERRY_ERR_MISUSE},
        {"broadcast: root", ferry_world_broadcast(world, 1, &byte, 1, &out, &n, NULL),
         FERRY_ERR_MISUSE},
        {"broadcast: no bytes", ferry_world_broadcast(world, 0, NULL, 1, &out, &n, NULL),
         FERRY_ERR_MISUSE},
        {"send: to", ferry_world_send(world, 1, 0, &byte, 1, NULL), FERRY_ERR_MISUSE},
        {"send: no bytes", ferry_world_send(world, 0, 0, NULL, 1, NULL), FERRY_ERR_MISUSE},
        {"send: long", ferry_world_send(world, 0, 0, &byte, FERRY_MESSAGE_BYTES + 1, NULL),
         FERRY_ERR_LIMIT},
        {"receive: from", ferry_world_receive(world, 1, 0, 0, &out, &n, NULL, NULL),
         FERRY_ERR_MISUSE},
        {"receive: place", ferry_world_receive(world, 0, 0, 0, NULL, &n, NULL, NULL),
         FERRY_ERR_MISUSE},
        {"receive: nan", ferry_world_receive(world, 0, 0, 0.0 / 0.0, &out, &n, NULL, NULL),
         FERRY_ERR_MISUSE},
        {"receive: nothing there", ferry_world_receive(world, 0, 0, 0, &out, &n, NULL, NULL),
         FERRY_ERR_TIMEOUT},
        {"receive: from itself", ferry_world_receive(world, 0, 0, -1, &out, &n, NULL, NULL),
         FERRY_ERR_MISUSE},
        {"receive: from itself",
         ferry_world_receive(world, FERRY_ANY_RANK, 0, 9, &out, &n, NULL, NULL), FERRY_ERR_MISUSE},
        {"state", ferry_world_state(NULL, NULL, NULL), FERRY_ERR_MISUSE},
        {"shrink: well", ferry_world_shrink(world, 1, &other, NULL), FERRY_ERR_MISUSE},
        {"shrink: no place", ferry_world_shrink(world, 1, NULL, NULL), FERRY_ERR_MISUSE},
        {"create", ferry_world_create(NULL, NULL, NULL), FERRY_ERR_MISUSE},
        {"file: path", ferry_world_create_from_file("", 0, 1, NULL, &other, NULL),
         FERRY_ERR_MISUSE},
        {"file: rank", ferry_world_create_from_file("/x", 1, 1, NULL, &other, NULL),
         FERRY_ERR_MISUSE},
        {"bootstrap", ferry_world_create_from_bootstrap(NULL, NULL, &other, NULL),
         FERRY_ERR_MISUSE},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_row(rows[i].name, rows[i].status == rows[i].wanted);
    }
    must(ferry_world_barrier(world, &error), &error);
    ferry_world_destroy(world);
}

/*
 * Collective calls
 */

/* Everybody knows what everybody brings: a function of the seed, the call and the rank. */
typedef struct stress_plan {
    uint64_t seed;
    uint32_t n_calls;
    uint32_t most_bytes;
} stress_plan;

static uint32_t length_of(const stress_plan *stress, uint32_t number, uint32_t rank)
{
    uint64_t random = stress->seed + number * 1000003u + rank;
    return random_below(&random, 4) == 0 ? 0 : random_below(&random, stress->most_bytes + 1);
}

static unsigned char byte_of(const stress_plan *stress, uint32_t number, uint32_t rank, uint32_t at)
{
    return (unsigned char)(stress->seed + number * 31 + rank * 7 + at);
}

static bool is_right(const stress_plan *stress, uint32_t number, uint32_t rank,
                     const unsigned char *bytes, size_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i++) {
        if (bytes[i] != byte_of(stress, number, rank, i)) {
            return false;
        }
    }
    return true;
}

static void gather_one(rank_thread *self, const stress_plan *stress, uint32_t number,
                       const unsigned char *bytes, uint32_t n_bytes)
{
    const void *all = NULL;
    const size_t *lengths = NULL;
    expect(ferry_world_all_gather_v(self->world, bytes, n_bytes, &all, &lengths, &self->error) ==
           FERRY_OK);
    const unsigned char *at = all;
    for (uint32_t r = 0; r < self->n_ranks && self->problem == NULL; r++) {
        expect(lengths[r] == length_of(stress, number, r));
        expect(is_right(stress, number, r, at, lengths[r]));
        at += lengths[r];
    }
}

static void broadcast_one(rank_thread *self, const stress_plan *stress, uint32_t number,
                          const unsigned char *bytes, uint32_t n_bytes)
{
    uint32_t root = number % self->n_ranks;
    const void *out = NULL;
    size_t n_out = 0;
    expect(ferry_world_broadcast(self->world, root, self->rank == root ? bytes : NULL, n_bytes,
                                 &out, &n_out, &self->error) == FERRY_OK);
    expect(n_out == length_of(stress, number, root));
    expect(is_right(stress, number, root, out, n_out));
}

static void call_many(rank_thread *self)
{
    const stress_plan *stress = self->context;
    unsigned char *bytes = malloc(stress->most_bytes + 1);
    for (uint32_t number = 1; number <= stress->n_calls && self->problem == NULL; number++) {
        uint64_t random = stress->seed + number;
        uint32_t n_bytes = length_of(stress, number, self->rank);
        for (uint32_t i = 0; i < n_bytes; i++) {
            bytes[i] = byte_of(stress, number, self->rank, i);
        }
        switch (random_below(&random, 4)) {
        case 0:
            expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
            break;
        case 1:
            broadcast_one(self, stress, number, bytes, n_bytes);
            break;
        default:
            gather_one(self, stress, number, bytes, n_bytes);
            break;
        }
    }
    free(bytes);
}

static void test_stress(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 7, 16, 32};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        stress_plan stress = {.seed = 5 + i, .n_calls = 24000 / (4 + sizes[i]), .most_bytes = 300};
        char row[48];
        snprintf(row, sizeof row, "seed %u", (unsigned)stress.seed);
        run_ranks(row, sizes[i], NULL, call_many, &stress);
    }
    stress_plan large = {.seed = 99, .n_calls = 12, .most_bytes = 1 << 20};
    run_ranks("large", 4, NULL, call_many, &large);
}

/* A barrier: nobody gets out before all are in. */
static void count_in_and_out(rank_thread *self)
{
    _Atomic uint32_t *inside = self->context;
    for (uint32_t i = 1; i <= 2000 && self->problem == NULL; i++) {
        atomic_fetch_add(inside, 1);
        expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
        expect(atomic_load(inside) >= i * self->n_ranks);
    }
}

static void test_barrier(void **state)
{
    (void)state;
    _Atomic uint32_t inside = 0;
    run_ranks("barrier", 8, NULL, count_in_and_out, &inside);
}

/* What one call hands out may go into the next one. */
static void hand_on(rank_thread *self)
{
    uint64_t value = self->rank;
    const void *all = &value;
    size_t n = sizeof value;
    for (int i = 0; i < 3; i++) {
        expect(ferry_world_all_gather(self->world, all, n, &all, &self->error) == FERRY_OK);
        n *= self->n_ranks;
    }
    for (size_t i = 0; i < n / sizeof value && self->problem == NULL; i++) {
        memcpy(&value, (const char *)all + i * sizeof value, sizeof value);
        expect(value == i % self->n_ranks);
    }
}

static void test_results_go_into_the_next_call(void **state)
{
    (void)state;
    run_ranks("hand on", 5, NULL, hand_on, NULL);
}

/* Different calls are found out, on every rank, with one sentence; the world has failed. */
typedef struct mismatch {
    const char *name;
    int calls[4]; /* by rank: 0 barrier, 1 gather, 2 and more: broadcast from rank n - 2 */
    const char *says;
} mismatch;

static void call_differently(rank_thread *self)
{
    const mismatch *row = self->context;
    const void *out = self;
    const size_t *lengths;
    size_t n = 7;
    int call = row->calls[self->rank];
    ferry_status status = FERRY_OK;
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    if (call == 0) {
        status = ferry_world_barrier(self->world, &self->error);
    } else if (call == 1) {
        status = ferry_world_all_gather_v(self->world, &n, sizeof n, &out, &lengths, &self->error);
    } else {
        status = ferry_world_broadcast(self->world, (uint32_t)call - 2, &call, 4, &out, &n,
                                       &self->error);
    }
    expect(is(self, FERRY_ERR_MISUSE, status, row->says));
    expect(out == self && n == 7);
    expect(
        is(self, FERRY_ERR_MISUSE, ferry_world_state(self->world, NULL, &self->error), row->says));
    expect(is(self, FERRY_ERR_MISUSE, ferry_world_barrier(self->world, &self->error), row->says));
}

static void test_mismatch(void **state)
{
    (void)state;
    static mismatch rows[] = {
        {"kind",
         {0, 0, 1, 0},
         "rank 2 is in ferry_world_all_gather_v where rank 0 is in ferry_world_barrier"},
        {"kind",
         {3, 3, 3, 0},
         "rank 3 is in ferry_world_barrier where rank 0 is in ferry_world_broadcast (broadcast "
         "from "
         "rank 1)"},
        {"root",
         {2, 3, 2, 2},
         "rank 1 is in ferry_world_broadcast (broadcast from rank 1) where rank 0 is in "
         "ferry_world_broadcast (broadcast from rank 0)"},
        {"all",
         {0, 1, 2, 3},
         "rank 1 is in ferry_world_all_gather_v where rank 0 is in ferry_world_barrier"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        run_ranks(rows[i].name, 4, NULL, call_differently, &rows[i]);
    }
}

static void gather_unequal(rank_thread *self)
{
    const void *all;
    expect(
        is(self, FERRY_ERR_MISUSE,
           ferry_world_all_gather(self->world, "abc", self->rank == 2 ? 3 : 2, &all, &self->error),
           "rank 0 gives 2 bytes, rank 2 3"));
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
}

static void test_unequal_gather(void **state)
{
    (void)state;
    run_ranks("unequal", 3, NULL, gather_unequal, NULL);
}

/*
 * Messages
 */

static void expect_message(rank_thread *self, uint32_t from, uint32_t tag, const char *text)
{
    const void *bytes = "";
    size_t n = 0;
    uint32_t received = 99;
    expect(ferry_world_receive(self->world, from, tag, -1, &bytes, &n, &received, &self->error) ==
           FERRY_OK);
    expect(n == strlen(text) && memcmp(bytes, text, n) == 0);
    expect(from == FERRY_ANY_RANK || received == from);
}

static void send_text(rank_thread *self, uint32_t to, uint32_t tag, const char *text)
{
    expect(ferry_world_send(self->world, to, tag, text, strlen(text), &self->error) == FERRY_OK);
}

/* Tags and ranks are told apart, and what fits arrives in order. */
static void talk(rank_thread *self)
{
    const void *bytes;
    size_t n;
    if (self->rank == 0) {
        expect_message(self, 1, 5, "second tag");
        expect_message(self, 1, 4, "one");
        expect_message(self, 2, 4, "");
        expect_message(self, FERRY_ANY_RANK, 4, "two");
        send_text(self, 0, 9, "to myself");
        expect_message(self, FERRY_ANY_RANK, 9, "to myself");
        expect(is(self, FERRY_ERR_TIMEOUT,
                  ferry_world_receive(self->world, 1, 4, 0.01, &bytes, &n, NULL, &self->error),
                  "no message with tag 4 from rank 1 within 0.01 s"));
        expect(is(
            self, FERRY_ERR_TIMEOUT,
            ferry_world_receive(self->world, FERRY_ANY_RANK, 4, 0, &bytes, &n, NULL, &self->error),
            "from any rank"));
    } else if (self->rank == 1) {
        send_text(self, 0, 4, "one");
        send_text(self, 0, 4, "two");
        send_text(self, 0, 5, "second tag");
    } else {
        send_text(self, 0, 4, "");
    }
    expect(ferry_world_state(self->world, NULL, &self->error) == FERRY_OK);
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
}

static void test_messages(void **state)
{
    (void)state;
    run_ranks("messages", 3, NULL, talk, NULL);
}

/* Letters are taken out of the middle, the end and the beginning of a box. */
static void talk_to_itself(rank_thread *self)
{
    for (int i = 0; i < 3; i++) {
        send_text(self, 0, 1, "first");
        send_text(self, 0, 2, "middle");
        send_text(self, 0, 3, "last");
        expect_message(self, 0, 3, "last");
        send_text(self, 0, 1, "after the last");
        expect_message(self, 0, 2, "middle");
        expect_message(self, 0, 1, "first");
        expect_message(self, 0, 1, "after the last");
    }
}

static void test_order_in_a_mailbox(void **state)
{
    (void)state;
    run_ranks("itself", 1, NULL, talk_to_itself, NULL);
}

/* Everybody to everybody, in order of each sender; 0 bytes and the longest included. */
enum { N_MESSAGES = 100 };

static uint32_t message_length(uint32_t from, uint32_t number)
{
    static const uint32_t lengths[] = {4, 100, 5, FERRY_MESSAGE_BYTES, 4000};
    return lengths[(from + number) % COUNT_OF(lengths)];
}

static void send_to_all(rank_thread *self, unsigned char *bytes, uint32_t number)
{
    memcpy(bytes, &number, sizeof number);
    for (uint32_t to = 0; to < self->n_ranks; to++) {
        expect(ferry_world_send(self->world, to, 1, bytes, message_length(self->rank, number),
                                &self->error) == FERRY_OK);
    }
}

static void chatter(rank_thread *self)
{
    unsigned char *bytes = calloc(FERRY_MESSAGE_BYTES, 1);
    uint32_t number_from[MOST_RANKS] = {0};
    for (uint32_t i = 0; i < N_MESSAGES && self->problem == NULL; i++) {
        send_to_all(self, bytes, i);
        for (uint32_t k = 0; k < self->n_ranks && self->problem == NULL; k++) {
            const void *got;
            size_t n;
            uint32_t from, number = 0;
            expect(ferry_world_receive(self->world, FERRY_ANY_RANK, 1, -1, &got, &n, &from,
                                       &self->error) == FERRY_OK);
            if (self->problem == NULL) {
                memcpy(&number, got, sizeof number);
                expect(number == number_from[from]++);
                expect(n == message_length(from, number));
            }
        }
    }
    free(bytes);
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
}

static void test_many_messages(void **state)
{
    (void)state;
    run_ranks("chatter", 6, NULL, chatter, NULL);
}

/* A rank that never receives costs its senders a status, not the machine its memory. */
static void fill(rank_thread *self)
{
    static unsigned char bytes[FERRY_MESSAGE_BYTES];
    if (self->rank == 0) {
        uint32_t n_sent = 0;
        ferry_status status;
        while ((status = ferry_world_send(self->world, 1, 1, bytes, sizeof bytes, &self->error)) ==
               FERRY_OK) {
            n_sent++;
        }
        expect(is(self, FERRY_ERR_LIMIT, status, "wait for rank 1"));
        expect(n_sent > 1000 && n_sent <= 1024);
        expect(ferry_world_state(self->world, NULL, NULL) == FERRY_OK);
    }
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
}

static void test_full_mailbox(void **state)
{
    (void)state;
    run_ranks("full", 2, NULL, fill, NULL);
}

/*
 * Failure
 */

/* Ranks sleep in every kind of call while another one, or a thread beside them, ends the world. */
static void wait_somehow(rank_thread *self)
{
    const void *out;
    size_t n;
    uint32_t named = 99;
    if (self->rank == 3) {
        /* Others may sleep by now or not: both must end. */
        for (int i = 0; i < 200; i++) {
            sched_yield();
        }
        ferry_world_abort(self->world, "enough is enough");
        ferry_world_abort(self->world, "too late to count");
    } else if (self->rank % 3 == 0) {
        expect(is(self, FERRY_ERR_ABORTED, ferry_world_barrier(self->world, &self->error),
                  "rank 3 ended the world: enough is enough"));
    } else if (self->rank % 3 == 1) {
        expect(is(self, FERRY_ERR_ABORTED,
                  ferry_world_receive(self->world, 0, 1, -1, &out, &n, NULL, &self->error),
                  "rank 3 ended the world: enough is enough"));
    } else {
        expect(is(self, FERRY_ERR_ABORTED,
                  ferry_world_broadcast(self->world, 0, NULL, 0, &out, &n, &self->error),
                  "enough is enough"));
    }
    expect(is(self, FERRY_ERR_ABORTED, ferry_world_state(self->world, &named, &self->error),
              "enough is enough"));
    expect(named == 3);
    expect(is(self, FERRY_ERR_ABORTED, ferry_world_barrier(self->world, &self->error), "enough"));
    expect(is(self, FERRY_ERR_ABORTED, ferry_world_send(self->world, 0, 1, "x", 1, &self->error),
              "enough"));
}

static void test_abort(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        run_ranks("abort", 9, NULL, wait_somehow, NULL);
    }
}

/*
 * Rank 2 ends the world when the others are asleep. A ring that is left out is no hang, for no
 * sleep lasts longer than a second, but in so many rounds it is more time than this test has.
 */
static void end_the_sleep(rank_thread *self)
{
    _Atomic uint32_t *n_awake = self->context;
    fy_threads *all = fy_threads_of(self->world);
    const void *out;
    size_t n;
    if (self->rank == 0) {
        expect(is(self, FERRY_ERR_ABORTED, ferry_world_barrier(self->world, &self->error),
                  "rank 2 ended the world: it gave no reason"));
    } else if (self->rank == 1) {
        expect(is(self, FERRY_ERR_ABORTED,
                  ferry_world_receive(self->world, 0, 1, -1, &out, &n, NULL, &self->error),
                  "rank 2 ended the world: it gave no reason"));
    } else {
        while (atomic_load(&all->gate.sleepers) == 0 ||
               atomic_load(&all->ranks[1].bell.sleepers) == 0) {
            sched_yield();
        }
        ferry_world_abort(self->world, NULL);
    }
    atomic_fetch_add(n_awake, 1);
    while (atomic_load(n_awake) < self->n_ranks) {
        sched_yield(); /* leaving rings as well */
    }
}

static void test_abort_wakes(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        _Atomic uint32_t n_awake = 0;
        run_ranks("sleep", 3, NULL, end_the_sleep, &n_awake);
    }
}

static void *gather_in_vain(void *context)
{
    rank_thread *self = context;
    char *bytes = malloc(100);
    const void *all;
    const size_t *lengths;
    memset(bytes, 1, 100);
    expect(ferry_world_all_gather_v(self->world, bytes, 100, &all, &lengths, &self->error) ==
           FERRY_ERR_ABORTED);
    free(bytes);
    return NULL;
}

/*
 * A rank that was about to enter when the world failed comes last: it must not put together what
 * those that are gone had brought.
 */
static void test_last_arrival_after_a_failure(void **state)
{
    (void)state;
    ferry_world *worlds[2];
    rank_thread other = {0};
    const void *all;
    const size_t *lengths;
    must(ferry_world_create_threads(2, NULL, worlds, &other.error), &other.error);
    other.world = worlds[0];
    fy_threads *threads = fy_threads_of(worlds[0]);
    assert_int_equal(pthread_create(&other.thread, NULL, gather_in_vain, &other), 0);
    while (atomic_load(&threads->arrivals) == 0) {
        sched_yield();
    }
    ferry_world_abort(worlds[1], "in the middle");
    pthread_join(other.thread, NULL);
    assert_null(other.problem);
    /* Not the public call: that looks at the failure first. */
    assert_int_equal(
        worlds[1]->ops->gather(worlds[1], FY_ALL_GATHER, 0, "x", 1, &all, &lengths, &other.error),
        FERRY_ERR_ABORTED);
    check_says("last", "in the middle", &other.error);
    ferry_world_destroy(worlds[0]);
    ferry_world_destroy(worlds[1]);
}

/* Aborts at random moments of many calls: every rank ends, with OK or with the abort. */
static void call_until_the_end(rank_thread *self)
{
    const stress_plan *stress = self->context;
    uint64_t random = stress->seed;
    uint32_t last = random_below(&random, 200);
    uint32_t killer = random_below(&random, self->n_ranks);
    unsigned char bytes[512];
    ferry_status status = FERRY_OK;
    for (uint32_t number = 1; status == FERRY_OK && self->problem == NULL; number++) {
        const void *all;
        const size_t *lengths;
        if (self->rank == killer && number == last + 1) {
            ferry_world_abort(self->world, "now");
        }
        /* On the stack, and written again at once: a copy that is still under way would show. */
        memset(bytes, (int)(number + self->rank), sizeof bytes);
        status = ferry_world_all_gather_v(self->world, bytes, sizeof bytes, &all, &lengths,
                                          &self->error);
        memset(bytes, 0xee, sizeof bytes);
        for (uint32_t r = 0; r < self->n_ranks && status == FERRY_OK; r++) {
            expect(((const unsigned char *)all)[r * sizeof bytes + 511] ==
                   (unsigned char)(number + r));
        }
    }
    expect(is(self, FERRY_ERR_ABORTED, status, "ended the world: now"));
}

static void test_abort_at_any_moment(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        stress_plan stress = {.seed = seed};
        char row[32];
        snprintf(row, sizeof row, "seed %u", (unsigned)seed);
        run_ranks(row, 5, NULL, call_until_the_end, &stress);
    }
}

/* The lowest rank is missing, so that it is named whoever else is late. */
static void enter_late(rank_thread *self)
{
    uint32_t named = 99;
    if (self->rank == 0) {
        while (ferry_world_state(self->world, NULL, NULL) == FERRY_OK) {
            sched_yield();
        }
    }
    expect(is(self, FERRY_ERR_TIMEOUT, ferry_world_barrier(self->world, &self->error),
              "rank 0 has not entered ferry_world_barrier, collective number 1, for 0.02 s"));
    expect(ferry_world_state(self->world, &named, NULL) == FERRY_ERR_TIMEOUT && named == 0);
}

static void test_entry_limit(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.entry_seconds = 0.02;
    run_ranks("late", 4, &options, enter_late, NULL);
}

/* A receive that takes too long ends nothing. */
static void receive_in_vain(rank_thread *self)
{
    _Atomic uint32_t *n_done = self->context;
    const void *out;
    size_t n;
    expect(is(self, FERRY_ERR_TIMEOUT,
              ferry_world_receive(self->world, FERRY_ANY_RANK, 3, -1, &out, &n, NULL, &self->error),
              "no message with tag 3 from any rank within 0.005 s"));
    expect(ferry_world_state(self->world, NULL, NULL) == FERRY_OK);
    atomic_fetch_add(n_done, 1);
    while (atomic_load(n_done) < self->n_ranks) {
        sched_yield();
    }
}

static void test_receive_limit(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    _Atomic uint32_t n_done = 0;
    options.entry_seconds = 0.005;
    run_ranks("in vain", 3, &options, receive_in_vain, &n_done);
}

/* Rank 1 leaves; how says in what the others wait for it. */
static void wait_for_a_leaver(rank_thread *self)
{
    const int *how = self->context;
    const void *out;
    size_t n;
    uint32_t named = 99;
    ferry_status status = FERRY_OK;
    if (self->rank == 1) {
        fy_threads *all = fy_threads_of(self->world);
        while (*how == 3 && atomic_load(&all->arrivals) < self->n_ranks - 1) {
            sched_yield();
        }
        return;
    }
    switch (*how) {
    case 0:
    case 3: /* all others wait before it leaves */
        status = ferry_world_barrier(self->world, &self->error);
        break;
    case 1:
        status = ferry_world_receive(self->world, 1, 0, -1, &out, &n, NULL, &self->error);
        break;
    default:
        while (status == FERRY_OK) {
            status = ferry_world_send(self->world, 1, 0, "x", 1, &self->error);
            sched_yield();
        }
        break;
    }
    expect(is(self, FERRY_ERR_PEER_LOST, status, "rank 1 has left the world"));
    expect(ferry_world_state(self->world, &named, NULL) == FERRY_ERR_PEER_LOST && named == 1);
}

static void test_leaving_too_early(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        for (int i = 0; i < 20; i++) {
            run_ranks("leaver", 4, NULL, wait_for_a_leaver, &how);
        }
    }
}

/* What was sent before leaving arrives; only then does nobody remain who could send. */
static void leave_a_message(rank_thread *self)
{
    const void *out;
    size_t n;
    if (self->rank != 0) {
        send_text(self, 0, 1, "good-bye");
        return;
    }
    expect_message(self, 1, 1, "good-bye");
    expect_message(self, FERRY_ANY_RANK, 1, "good-bye");
    expect(is(self, FERRY_ERR_PEER_LOST,
              ferry_world_receive(self->world, FERRY_ANY_RANK, 1, -1, &out, &n, NULL, &self->error),
              "all others have left the world"));
}

static void test_last_words(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        run_ranks("last words", 3, NULL, leave_a_message, NULL);
    }
}

/* Whoever leaves waits for the others, but no longer than the deadline; then the world has failed.
 */
static void test_leaving_has_a_limit(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *worlds[2];
    ferry_error error;
    options.deadline_seconds = 0.01;
    must(ferry_world_create_threads(2, &options, worlds, &error), &error);
    int64_t begin_ns = fy_now_ns();
    ferry_world_destroy(worlds[0]);
    assert_true(fy_now_ns() - begin_ns >= 10000000);
    /* Whatever the others wait for, now or later, may need this rank. */
    assert_int_equal(ferry_world_state(worlds[1], NULL, NULL), FERRY_ERR_PEER_LOST);
    assert_int_equal(ferry_world_barrier(worlds[1], &error), FERRY_ERR_PEER_LOST);
    check_says("left", "rank 0 has left the world", &error);
    fy_world_retain(worlds[1]);
    ferry_world_destroy(worlds[1]);
    assert_int_equal(ferry_world_rank_count(worlds[1]), 2); /* still held */
    ferry_world_destroy(worlds[1]);
}

/*
 * Shrinking
 */

static bool gathers_members(rank_thread *self, ferry_world *world)
{
    uint32_t me = ferry_world_member_of(world, ferry_world_rank(world));
    const void *all;
    if (me != self->rank || ferry_world_all_gather(world, &me, 4, &all, &self->error) != FERRY_OK) {
        return false;
    }
    for (uint32_t r = 0; r < ferry_world_rank_count(world); r++) {
        if (((const uint32_t *)all)[r] != ferry_world_member_of(world, r)) {
            return false;
        }
    }
    return true;
}

/* Down to one: 8 -> 7 -> 5 -> 1. Members say who leaves at which step. */
static void shrink_down(rank_thread *self)
{
    static const uint32_t steps[][8] = {{2, 99}, {0, 7, 99}, {1, 3, 4, 6, 99}};
    static const uint32_t sizes[] = {7, 5, 1};
    for (uint32_t step = 0; step < COUNT_OF(steps) && self->problem == NULL; step++) {
        uint32_t min = step == 0 ? 7 : 0;
        for (const uint32_t *leaver = steps[step]; *leaver != 99; leaver++) {
            if (*leaver == self->rank) {
                return;
            }
        }
        /* More than one may have left; the failure names the first that was seen. */
        expect(is(self, FERRY_ERR_PEER_LOST, ferry_world_barrier(self->world, &self->error),
                  "has left the world"));
        ferry_world *smaller = NULL;
        expect(ferry_world_shrink(self->world, min, &smaller, &self->error) == FERRY_OK);
        if (self->problem != NULL) {
            return;
        }
        expect(is(self, FERRY_ERR_MISUSE,
                  ferry_world_shrink(self->world, 0, &smaller, &self->error), "destroy it"));
        ferry_world_destroy(self->world);
        self->world = smaller;
        expect(ferry_world_rank_count(smaller) == sizes[step]);
        expect(ferry_world_epoch(smaller) == step + 1);
        expect(ferry_world_node_count(smaller) == (step == 0 ? 3 : step == 1 ? 3 : 1));
        expect(gathers_members(self, smaller));
    }
}

static void test_shrink(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.nodes = "2,4,2";
    for (int i = 0; i < 20; i++) {
        run_ranks("shrink", 8, &options, shrink_down, NULL);
    }
}

/* Who ended the world lives: all go on. */
static void shrink_after_abort(rank_thread *self)
{
    ferry_world *same = NULL;
    if (self->rank == 1) {
        ferry_world_abort(self->world, "again");
    }
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_ERR_ABORTED);
    expect(ferry_world_shrink(self->world, self->n_ranks, &same, &self->error) == FERRY_OK);
    if (same != NULL) {
        expect(ferry_world_rank_count(same) == self->n_ranks);
        expect(gathers_members(self, same));
        ferry_world_destroy(same);
    }
}

static void test_shrink_after_abort(void **state)
{
    (void)state;
    run_ranks("abort", 6, NULL, shrink_after_abort, NULL);
}

/* Rank 0 is named as late and may not join; with a larger minimum nobody goes on; then they may. */
static void shrink_without_the_late(rank_thread *self)
{
    ferry_world *smaller = NULL;
    if (self->rank == 0) {
        while (ferry_world_state(self->world, NULL, NULL) == FERRY_OK) {
            sched_yield();
        }
        expect(is(self, FERRY_ERR_TIMEOUT,
                  ferry_world_shrink(self->world, 0, &smaller, &self->error), "rank 0 has not"));
        expect(smaller == NULL);
        return;
    }
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_ERR_TIMEOUT);
    expect(is(self, FERRY_ERR_PEER_LOST, ferry_world_shrink(self->world, 4, &smaller, &self->error),
              "3 of 4 ranks would continue, but at least 4 are required"));
    expect(smaller == NULL);
    expect(ferry_world_shrink(self->world, 3, &smaller, &self->error) == FERRY_OK);
    if (smaller != NULL) {
        smaller->settings.entry_ns = -1; /* nobody else is late by that little */
        expect(gathers_members(self, smaller));
        ferry_world_destroy(smaller);
    }
}

static void test_shrink_without_the_late(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    options.entry_seconds = 0.01;
    run_ranks("late", 4, &options, shrink_without_the_late, NULL);
}

/* Who does not come within the join limit is left behind, and told so when it comes. */
static void shrink_without_the_absent(rank_thread *self)
{
    _Atomic uint32_t *n_done = self->context;
    ferry_world *smaller = NULL;
    ferry_world_abort(self->world, "for this test");
    if (self->rank == 0) {
        while (atomic_load(n_done) < self->n_ranks - 1) {
            sched_yield();
        }
        expect(is(self, FERRY_ERR_PEER_LOST,
                  ferry_world_shrink(self->world, 0, &smaller, &self->error),
                  "rank 0 came too late: 2 other ranks"));
        return;
    }
    expect(ferry_world_shrink(self->world, 0, &smaller, &self->error) == FERRY_OK);
    if (smaller != NULL) {
        expect(ferry_world_rank_count(smaller) == 2);
        expect(ferry_world_rank(smaller) == self->rank - 1);
    }
    atomic_fetch_add(n_done, 1);
    ferry_world_destroy(smaller);
}

static void test_shrink_without_the_absent(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    _Atomic uint32_t n_done = 0;
    options.join_seconds = 8; /* in which the others come, also when one is off the cores */
    run_ranks("absent", 3, &options, shrink_without_the_absent, &n_done);
}

/*
 * Memory
 */

/* Every allocation fails once: a status, no handle and no leak. */
static void test_create_without_memory(void **state)
{
    (void)state;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_world *worlds[3];
    ferry_error error;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    options.secret = "s";
    options.nodes = "2,1";
    options.host = "h";
    for (int64_t n = 0; status != FERRY_OK; n++) {
        memset(worlds, 0, sizeof worlds);
        fy_alloc_fail_after(n);
        status = ferry_world_create_threads(3, &options, worlds, &error);
        fy_alloc_fail_after(-1);
        check_at(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY, "allocation %d", (int)n);
        check_at((worlds[0] == NULL) == (status != FERRY_OK), "allocation %d", (int)n);
    }
    ferry_world_abort(worlds[0], "done");
    for (int r = 0; r < 3; r++) {
        ferry_world_destroy(worlds[r]);
    }
}

/* Between two barriers rank 0 says how many more allocations succeed. */
static void set_memory(rank_thread *self, int64_t n_more)
{
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    if (self->rank == 0) {
        fy_alloc_fail_after(n_more);
    }
    expect(ferry_world_barrier(self->world, &self->error) == FERRY_OK);
}

/* What one rank has no memory for fails on all, and the world goes on. */
static void talk_without_memory(rank_thread *self)
{
    uint64_t value = self->rank;
    const void *all = NULL;
    set_memory(self, 0);
    expect(is(self, FERRY_ERR_NO_MEMORY,
              ferry_world_all_gather(self->world, &value, 8, &all, &self->error),
              "allocating 24 bytes that the ranks gather"));
    expect(ferry_world_send(self->world, 0, 0, "x", 1, &self->error) == FERRY_ERR_NO_MEMORY);
    set_memory(self, -1);
    expect(ferry_world_all_gather(self->world, &value, 8, &all, &self->error) == FERRY_OK);
    expect(all != NULL && memcmp((const char *)all + 8 * self->rank, &value, 8) == 0);
}

static void test_calls_without_memory(void **state)
{
    (void)state;
    run_ranks("no memory", 3, NULL, talk_without_memory, NULL);
    fy_alloc_fail_after(-1);
}

/* All get a smaller world or none, and a round that failed can be tried again. */
static void test_shrink_without_memory(void **state)
{
    (void)state;
    ferry_world *world, *same = NULL;
    ferry_error error;
    ferry_status status = FERRY_ERR_NO_MEMORY;
    must(ferry_world_create_threads(1, NULL, &world, &error), &error);
    ferry_world_abort(world, "to shrink it");
    for (int64_t n = 0; status != FERRY_OK; n++) {
        fy_alloc_fail_after(n);
        status = ferry_world_shrink(world, 0, &same, &error);
        fy_alloc_fail_after(-1);
        check_at(status == FERRY_OK || status == FERRY_ERR_NO_MEMORY, "allocation %d", (int)n);
        check_at((same == NULL) == (status != FERRY_OK), "allocation %d", (int)n);
    }
    must(ferry_world_barrier(same, &error), &error);
    ferry_world_destroy(same);
    ferry_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_grow),
        cmocka_unit_test(test_grow_alone),
        cmocka_unit_test(test_create_refused),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_stress),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_results_go_into_the_next_call),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_unequal_gather),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_order_in_a_mailbox),
        cmocka_unit_test(test_many_messages),
        cmocka_unit_test(test_full_mailbox),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_wakes),
        cmocka_unit_test(test_last_arrival_after_a_failure),
        cmocka_unit_test(test_abort_at_any_moment),
        cmocka_unit_test(test_entry_limit),
        cmocka_unit_test(test_receive_limit),
        cmocka_unit_test(test_leaving_too_early),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_leaving_has_a_limit),
        cmocka_unit_test(test_shrink),
        cmocka_unit_test(test_shrink_after_abort),
        cmocka_unit_test(test_shrink_without_the_late),
        cmocka_unit_test(test_shrink_without_the_absent),
        cmocka_unit_test(test_create_without_memory),
        cmocka_unit_test(test_calls_without_memory),
        cmocka_unit_test(test_shrink_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
