/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/crew.h"

#include "support/check.h"

#include <ferry/ferry.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST_PARTS = 1000 };

typedef struct scene {
    _Atomic uint32_t done[MOST_PARTS];
    _Atomic uint32_t n_done, n_ticks, most_worker, n_blocked;
    _Atomic bool has_failed;
    size_t fails[2];     /* parts that fail; MOST_PARTS: none */
    size_t waits;        /* a part that ends after another has failed */
    size_t from;         /* all from this one on do so */
    uint32_t ticks_left; /* before one says stop; 0: none does */
    pthread_t caller;
} scene;

static void nap(void)
{
    usleep(1000);
}

static ferry_status work(void *context, uint32_t worker, size_t part, ferry_error *error)
{
    scene *s = context;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    s->n_blocked += sigismember(&blocked, SIGINT) == 1 && !pthread_equal(pthread_self(), s->caller);
    for (uint32_t most = s->most_worker;
         worker > most && !atomic_compare_exchange_weak(&s->most_worker, &most, worker);) {}
    bool waits = part == s->waits || part >= s->from;
    for (int i = 0; waits && !s->has_failed && i < 300000; i++) {
        nap();
    }
    s->done[part]++;
    s->n_done++;
    if (part == s->fails[0] || part == s->fails[1]) {
        ferry_status status = part == s->fails[0] ? FERRY_ERR_IO : FERRY_ERR_DIGEST;
        snprintf(error->message, sizeof error->message, "part %zu", part);
        s->has_failed = true;
        return status;
    }
    return FERRY_OK;
}

static ferry_status work_until_stopped(void *context, uint32_t worker, size_t part,
                                       ferry_error *error)
{
    scene *s = context;
    for (int i = 0; s->n_ticks == 0 && i < 300000; i++) {
        nap();
    }
    return work(context, worker, part, error);
}

static bool tick(void *context)
{
    scene *s = context;
    s->n_ticks++;
    assert_true(pthread_equal(pthread_self(), s->caller));
    return s->ticks_left == 0 || --s->ticks_left > 0;
}

static scene *fresh(void)
{
    static scene s;
    memset((void *)&s, 0, sizeof s);
    s.fails[0] = s.fails[1] = s.waits = s.from = MOST_PARTS;
    s.caller = pthread_self();
    return &s;
}

static ferry_status run(scene *s, uint32_t n_workers, size_t n_parts, ferry_error *error)
{
    fy_crew_job job = {
        .n_workers = n_workers, .n_parts = n_parts, .work = work, .tick = tick, .context = s};
    return fy_crew_run(&job, error);
}

static void test_all_parts_once(void **state)
{
    (void)state;
    const uint32_t workers[] = {1, 2, 7, 64};
    const size_t parts[] = {0, 1, 3, MOST_PARTS};
    for (size_t w = 0; w < COUNT_OF(workers); w++) {
        for (size_t p = 0; p < COUNT_OF(parts); p++) {
            scene *s = fresh();
            ferry_error error;
            must(run(s, workers[w], parts[p], &error), &error);
            check_at(s->n_done == parts[p], "%u workers, %zu parts", workers[w], parts[p]);
            for (size_t i = 0; i < parts[p]; i++) {
                assert_int_equal(s->done[i], 1);
            }
            assert_true(s->most_worker < workers[w]);
            assert_true(parts[p] == 0 || s->most_worker < parts[p]);
            assert_true(parts[p] == 0 || s->n_ticks > 0); /* however quick they were */
            assert_int_equal(s->n_blocked, parts[p]);     /* signals are not for workers */
        }
    }
}

static void test_lowest_failure(void **state)
{
    (void)state;
    for (uint32_t n_workers = 1; n_workers <= 8; n_workers *= 2) {
        scene *s = fresh();
        ferry_error error = {""};
        s->fails[0] = 20;
        s->fails[1] = 20 + (n_workers > 1 ? 1 : 0);
        s->from = 22; /* however long those two are kept off the cores */
        assert_int_equal(run(s, n_workers, MOST_PARTS, &error), FERRY_ERR_IO);
        assert_string_equal(error.message, "part 20");
        assert_true(s->n_done < MOST_PARTS); /* nobody went on for long */
        for (size_t i = 0; i <= 20; i++) {
            assert_int_equal(s->done[i], 1);
        }
    }
}

/* The lower one fails later. */
static void test_late_failure(void **state)
{
    (void)state;
    scene *s = fresh();
    ferry_error error = {""};
    s->fails[0] = 0;
    s->waits = 0;
    s->fails[1] = 5;
    assert_int_equal(run(s, 2, MOST_PARTS, &error), FERRY_ERR_IO);
    assert_string_equal(error.message, "part 0");
    assert_true(s->done[5] == 1 && s->n_done < MOST_PARTS);
}

static void test_stop(void **state)
{
    (void)state;
    scene *s = fresh();
    ferry_error error = {""};
    s->ticks_left = 1;
    fy_crew_job job = {.n_workers = 2,
                       .n_parts = MOST_PARTS,
                       .work = work_until_stopped,
                       .tick = tick,
                       .context = s};
    assert_int_equal(fy_crew_run(&job, &error), FERRY_ERR_STOPPED);
    assert_true(strlen(error.message) > 10);
    assert_true(s->n_ticks == 1 && s->n_done >= 2);
    /* A failure says more than the wish to stop. */
    s = fresh();
    s->ticks_left = 1;
    s->fails[0] = 1;
    job.context = s;
    job.n_parts = 2;
    error.message[0] = '\0';
    assert_int_equal(fy_crew_run(&job, &error), FERRY_ERR_IO);
    assert_string_equal(error.message, "part 1");
}

static void test_default_size(void **state)
{
    (void)state;
    assert_in_range(fy_crew_default_size(), 1, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_parts_once), cmocka_unit_test(test_lowest_failure),
        cmocka_unit_test(test_late_failure),   cmocka_unit_test(test_stop),
        cmocka_unit_test(test_default_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
