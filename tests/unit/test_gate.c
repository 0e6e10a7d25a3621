/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Who may copy in the memory of whom, after one of them was given up. */
#include "world/gate.h"

#include "world/world.h"

#include "support/check.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3 };

static fy_gate gates[RANKS];
static int32_t pids[RANKS];
static uint32_t all_ranks[RANKS] = {0, 1, 2};
static fy_failure failures[RANKS];

static fy_gate *gate_of(ferry_world *world, uint32_t rank)
{
    (void)world;
    return rank < RANKS ? &gates[rank] : NULL;
}

static int32_t pid_of(ferry_world *world, uint32_t rank)
{
    (void)world;
    return pids[rank];
}

static ferry_world world_of(uint32_t rank)
{
    return (ferry_world){.rank = rank,
                         .n_ranks = RANKS,
                         .failure = &failures[rank],
                         .local_ranks = all_ranks,
                         .n_local_ranks = RANKS,
                         .gate_of = gate_of,
                         .pid_of = pid_of};
}

static int set_up(void **state)
{
    (void)state;
    memset(gates, 0, sizeof gates);
    for (int rank = 0; rank < RANKS; rank++) {
        pids[rank] = (int32_t)getpid();
    }
    return 0;
}

/* Once it is shut nobody enters, whatever he knows; in others' memory all go on. */
static void test_shut(void **state)
{
    (void)state;
    ferry_world own = world_of(0), other = world_of(1);
    ferry_error error;
    assert_true(fy_gate_enter(&other, 0));
    fy_gate_leave(&other);
    assert_int_equal(fy_gate_shut(&own, &error), FERRY_OK);
    assert_false(fy_gate_enter(&other, 0));
    assert_int_equal(gates[1].n_visits, 0);
    assert_true(fy_gate_enter(&other, 2));
    fy_gate_leave(&other);
    assert_int_equal(gates[1].n_visits, 0);
    assert_false(fy_gate_enter(&other, RANKS));
}

static void *leave_soon(void *context)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    nanosleep(&moment, NULL);
    fy_gate_leave(context);
    return NULL;
}

/* Who is within is waited for; who stays is said, and can be asked for again. */
static void test_within(void **state)
{
    (void)state;
    ferry_world own = world_of(0), other = world_of(2);
    ferry_error error;
    pthread_t thread;
    assert_true(fy_gate_enter(&other, 0));
    assert_int_equal(fy_gate_shut(&own, &error), FERRY_ERR_TIMEOUT);
    assert_string_equal(error.message, "rank 2 has not ended what it copies there");
    atomic_fetch_add(&gates[0].is_shut, 2000); /* as if it were shut later */
    assert_int_equal(pthread_create(&thread, NULL, leave_soon, &other), 0);
    assert_int_equal(fy_gate_shut(&own, &error), FERRY_OK);
    assert_int_equal(gates[2].n_visits, 0);
    pthread_join(thread, NULL);
}

/* Who was killed within is not. */
static void test_killed(void **state)
{
    (void)state;
    ferry_world own = world_of(0), other = world_of(1);
    ferry_error error;
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    pids[1] = (int32_t)child;
    assert_true(fy_gate_enter(&other, 0));
    kill(child, SIGKILL);
    assert_int_equal(fy_gate_shut(&own, &error), FERRY_OK);
    waitpid(child, NULL, 0);
}

/* Among threads there is none, and nobody opens anything. */
static void test_threads(void **state)
{
    (void)state;
    ferry_world own = world_of(0);
    ferry_error error;
    own.gate_of = NULL;
    assert_false(fy_gate_enter(&own, 1));
    assert_int_equal(fy_gate_shut(&own, &error), FERRY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_shut, set_up), cmocka_unit_test_setup(test_within, set_up),
        cmocka_unit_test_setup(test_killed, set_up), cmocka_unit_test_setup(test_threads, set_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
