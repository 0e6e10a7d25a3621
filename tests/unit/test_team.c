/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Every part is done once, whoever does it, and what parts wrote is there when the call returns. */
#include "exec/team.h"

#include "base/alloc.h"
#include "host/copy.h"

#include "support/check.h"
#include "support/emulated.h"
#include "support/sanitized.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST_PARTS = 5000 };

static fy_team *team_of(uint32_t n_threads)
{
    ferry_error error;
    fy_team *team = NULL;
    must(fy_team_create(n_threads, &team, &error), &error);
    assert_int_equal(fy_team_size(team), n_threads);
    return team;
}

/* Not atomic: that each is written once, and seen by the caller, is what is tested. */
typedef struct tally {
    uint32_t times[MOST_PARTS];
} tally;

static void count_part(void *context, uint64_t part)
{
    tally *t = context;
    t->times[part]++;
}

static void test_every_part_once(void **state)
{
    (void)state;
    static const uint64_t parts[] = {0, 1, 2, 3, 7, 64, MOST_PARTS};
    for (uint32_t n = 1; n <= 5; n++) {
        fy_team *team = team_of(n);
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            tally *t = calloc(1, sizeof *t);
            for (uint32_t round = 1; round <= 20; round++) {
                fy_team_run(team, parts[i], count_part, t);
                for (uint64_t part = 0; part < MOST_PARTS; part++) {
                    check_at(t->times[part] == (part < parts[i] ? round : 0),
                             "%u threads, round %u: part %llu of %llu: %u times", n, round,
                             (unsigned long long)part, (unsigned long long)parts[i],
                             t->times[part]);
                }
            }
            free(t);
        }
        fy_team_destroy(team);
    }
}

/* Jobs so short that threads come late to most of them. */
static void test_short_jobs(void **state)
{
    (void)state;
    fy_team *team = team_of(4);
    tally *t = calloc(1, sizeof *t);
    for (uint32_t round = 1; round <= 20000; round++) {
        fy_team_run(team, 2 + round % 5, count_part, t);
    }
    for (uint32_t part = 0; part < 6; part++) {
        assert_int_equal(t->times[part], part < 2 ? 20000 : 4000 * (6 - part));
    }
    free(t);
    fy_team_destroy(team);
}

/* Parts that wait for each other end only if several threads do them at once. */
typedef struct crowd {
    _Atomic uint32_t n;
    uint32_t wanted;
    pthread_t threads[8];
} crowd;

static void join_crowd(void *context, uint64_t part)
{
    crowd *c = context;
    c->threads[part] = pthread_self();
    atomic_fetch_add(&c->n, 1);
    while (atomic_load(&c->n) < c->wanted) {
        usleep(50);
    }
}

static void test_threads_work_at_once(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 8; n += 3) {
        fy_team *team = team_of(n);
        crowd c = {.wanted = n};
        fy_team_run(team, n, join_crowd, &c);
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j < i; j++) {
                assert_false(pthread_equal(c.threads[i], c.threads[j]));
            }
        }
        fy_team_destroy(team);
    }
}

/* The caller sees what was written past the cache, on whichever thread. */
enum { PIECE = 8192, PIECES = 64 };

typedef struct copies {
    char from[PIECES * PIECE], to[PIECES * PIECE];
} copies;

static void copy_piece(void *context, uint64_t part)
{
    copies *c = context;
    fy_copy_streaming_unfenced(c->to + part * PIECE, c->from + part * PIECE, PIECE);
}

static void test_streaming_parts_are_fenced(void **state)
{
    (void)state;
    fy_team *team = team_of(3);
    copies *c = calloc(1, sizeof *c);
    for (int round = 1; round < 100; round++) {
        memset(c->from, round, sizeof c->from);
        fy_team_run(team, PIECES, copy_piece, c);
        assert_memory_equal(c->to, c->from, sizeof c->to);
    }
    free(c);
    fy_team_destroy(team);
}

typedef struct watch {
    crowd crowd;
    _Atomic uint32_t n_blocking;
} watch;

static void look_at_signals(void *context, uint64_t part)
{
    watch *w = context;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (sigismember(&blocked, SIGUSR1) && sigismember(&blocked, SIGTERM)) {
        atomic_fetch_add(&w->n_blocking, 1);
    }
    join_crowd(&w->crowd, part);
}

static void test_threads_block_signals(void **state)
{
    (void)state;
    sigset_t blocked;
    fy_team *team = team_of(3);
    watch w = {.crowd = {.wanted = 3}};
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    assert_false(sigismember(&blocked, SIGUSR1)); /* as it was */
    fy_team_run(team, 3, look_at_signals, &w);
    assert_int_equal(w.n_blocking, 2);
    fy_team_destroy(team);
}

static void test_failures(void **state)
{
    (void)state;
    ferry_error error;
    fy_team *team = NULL;
    check_status("no threads", FERRY_ERR_MISUSE, fy_team_create(0, &team, &error), &error);
    for (int64_t n = 0;; n++) {
        fy_alloc_fail_after(n);
        ferry_status status = fy_team_create(3, &team, &error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            assert_true(n > 0);
            break;
        }
        check_status("allocation", FERRY_ERR_NO_MEMORY, status, &error);
        assert_null(team);
    }
    fy_team_destroy(team);
    fy_team_destroy(NULL);
}

/* A sanitizer's shadow memory and a limit of the address space exclude each other. */
#if !IS_SANITIZED
/* Fewer threads than were asked for is an error, and those that run end. */
static void test_too_many_threads(void **state)
{
    (void)state;
    if (is_left_out(__func__, "knows no limit of the address space (RLIMIT_AS)")) {
        return;
    }
    struct rlimit before, none;
    ferry_error error;
    fy_team *team = NULL;
    if (getrlimit(RLIMIT_AS, &before) != 0) {
        skip();
    }
    none = before;
    none.rlim_cur = (rlim_t)400 << 20; /* each thread's stack takes some of it */
    if (setrlimit(RLIMIT_AS, &none) != 0) {
        skip();
    }
    ferry_status status = fy_team_create(2000, &team, &error);
    setrlimit(RLIMIT_AS, &before);
    check_status("no room for stacks", FERRY_ERR_NO_MEMORY, status, &error);
    check_says("no room for stacks", "of 2000", &error);
    assert_null(team);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_once),
        cmocka_unit_test(test_short_jobs),
        cmocka_unit_test(test_threads_work_at_once),
        cmocka_unit_test(test_streaming_parts_are_fenced),
        cmocka_unit_test(test_threads_block_signals),
        cmocka_unit_test(test_failures),
#if !IS_SANITIZED
        cmocka_unit_test(test_too_many_threads),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
