/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/bell.h"

#include "world/failure.h"

#include "support/check.h"

#include <ferry/world.h>

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_TURNS = 20000, N_RINGERS = 8 };

/* Two waiters that hand a number to each other: a lost wake-up is a hang. */
typedef struct turn_table {
    fy_bell bells[2];
    _Atomic uint32_t number;
} turn_table;

static void wait_for_turn(turn_table *table, uint32_t side)
{
    while (atomic_load(&table->number) % 2 != side) {
        uint32_t seen = fy_bell_announce(&table->bells[side]);
        if (atomic_load(&table->number) % 2 != side) {
            fy_bell_sleep(&table->bells[side], seen, -1);
        }
        fy_bell_withdraw(&table->bells[side]);
    }
}

static void take_turns(turn_table *table, uint32_t side)
{
    for (uint32_t i = 0; i < N_TURNS; i++) {
        wait_for_turn(table, side);
        atomic_fetch_add(&table->number, 1);
        fy_bell_ring(&table->bells[1 - side]);
    }
}

static void *odd_side(void *context)
{
    take_turns(context, 1);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    turn_table table = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, odd_side, &table), 0);
    take_turns(&table, 0);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&table.number), 2 * N_TURNS);
    assert_int_equal(atomic_load(&table.bells[0].sleepers), 0);
    assert_int_equal(atomic_load(&table.bells[1].sleepers), 0);
}

/* All zero is a bell, and it works wherever it is mapped. */
static void test_processes(void **state)
{
    (void)state;
    turn_table *table =
        mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(table != MAP_FAILED);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        take_turns(table, 1);
        _exit(0);
    }
    take_turns(table, 0);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    assert_int_equal(atomic_load(&table->number), 2 * N_TURNS);
    munmap(table, sizeof *table);
}

static void test_limits(void **state)
{
    (void)state;
    fy_bell bell = {0};
    int64_t begin_ns = fy_now_ns();
    uint32_t seen = fy_bell_announce(&bell);
    fy_bell_sleep(&bell, seen, 0);
    fy_bell_sleep(&bell, seen, 2000000); /* returns although nobody rings */
    assert_true(fy_now_ns() - begin_ns >= 2000000);
    fy_bell_ring(&bell);
    fy_bell_sleep(&bell, seen, -1); /* rung after announce */
    fy_bell_withdraw(&bell);
    assert_int_equal(atomic_load(&bell.sleepers), 0);
    /* Without sleepers a ring leaves no trace: it cost one load. */
    uint32_t rings = atomic_load(&bell.rings);
    fy_bell_ring(&bell);
    assert_int_equal(atomic_load(&bell.rings), rings);
}

typedef struct sleeping_crowd {
    fy_bell bell;
    _Atomic bool go;
    _Atomic int awake;
} sleeping_crowd;

static void *sleep_till_go(void *context)
{
    sleeping_crowd *crowd = context;
    while (!atomic_load(&crowd->go)) {
        uint32_t seen = fy_bell_announce(&crowd->bell);
        if (!atomic_load(&crowd->go)) {
            fy_bell_sleep(&crowd->bell, seen, -1);
        }
        fy_bell_withdraw(&crowd->bell);
    }
    atomic_fetch_add(&crowd->awake, 1);
    return NULL;
}

/* One ring wakes all. */
static void test_crowd(void **state)
{
    (void)state;
    sleeping_crowd crowd = {0};
    pthread_t threads[N_RINGERS];
    for (int i = 0; i < N_RINGERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, sleep_till_go, &crowd), 0);
    }
    while (atomic_load(&crowd.bell.sleepers) < N_RINGERS) {
        fy_pause();
    }
    atomic_store(&crowd.go, true);
    fy_bell_ring(&crowd.bell);
    for (int i = 0; i < N_RINGERS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&crowd.awake), N_RINGERS);
}

typedef struct accusing_thread {
    fy_failure *failure;
    uint32_t rank;
    bool first;
} accusing_thread;

static void *accuse(void *context)
{
    accusing_thread *accuser = context;
    accuser->first = fy_failure_set(accuser->failure, FERRY_ERR_PEER_LOST, accuser->rank,
                                    "rank %u is gone", accuser->rank);
    /* First or not: from now on the world has failed. */
    ferry_error error;
    uint32_t rank;
    if (fy_failure_get(accuser->failure, &rank, &error) != FERRY_ERR_PEER_LOST) {
        accuser->rank = FERRY_ANY_RANK;
    }
    return NULL;
}

static void test_first_failure_stays(void **state)
{
    (void)state;
    fy_failure failure = {0};
    accusing_thread accusers[N_RINGERS];
    pthread_t threads[N_RINGERS];
    ferry_error error;
    uint32_t rank = 77;
    assert_false(fy_failed(&failure));
    assert_int_equal(fy_failure_get(&failure, &rank, &error), FERRY_OK);
    assert_int_equal(rank, 77);
    for (uint32_t i = 0; i < N_RINGERS; i++) {
        accusers[i] = (accusing_thread){.failure = &failure, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, accuse, &accusers[i]), 0);
    }
    uint32_t n_first = 0, first = 0;
    for (uint32_t i = 0; i < N_RINGERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(accusers[i].rank, i);
        n_first += accusers[i].first;
        first = accusers[i].first ? i : first;
    }
    char says[32];
    snprintf(says, sizeof says, "rank %u is gone", first);
    assert_int_equal(n_first, 1);
    assert_int_equal(fy_failure_get(&failure, &rank, &error), FERRY_ERR_PEER_LOST);
    assert_int_equal(rank, first);
    assert_string_equal(error.message, says);
    assert_int_equal(fy_failure_get(&failure, NULL, NULL), FERRY_ERR_PEER_LOST);
}

static void test_long_sentence(void **state)
{
    (void)state;
    fy_failure failure = {0};
    ferry_error error;
    assert_true(fy_failure_set(&failure, FERRY_ERR_ABORTED, 3, "%02000d\n", 7));
    assert_int_equal(fy_failure_get(&failure, NULL, &error), FERRY_ERR_ABORTED);
    assert_int_equal(strlen(error.message), FERRY_ERROR_BYTES - 1);
    assert_string_equal(error.message + FERRY_ERROR_BYTES - 4, "...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_first_failure_stays),
        cmocka_unit_test(test_long_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
