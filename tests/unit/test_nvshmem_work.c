/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The thread that calls NVSHMEM: what counts as done, and when, where quiets are waited for late.
 */
#include "transport/nvshmem/work.h"

#include "support/check.h"
#include "transport/nvshmem/library.h"

#include <pthread.h>
#include <string.h>

fy_nvshmem_library fy_nvshmem;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char calls[256]; /* a letter each: p, and q for a quiet that has begun */
static int n_allowed;   /* quiets that may end */
static int n_ended;

static void note(char what)
{
    pthread_mutex_lock(&lock);
    calls[strlen(calls)] = what; /* there is room: see MANY */
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void put(void *there, const void *here, size_t bytes, int pe)
{
    (void)there, (void)here, (void)bytes, (void)pe;
    note('p');
}

static void quiet(void)
{
    note('q');
    pthread_mutex_lock(&lock);
    while (n_ended == n_allowed) {
        pthread_cond_wait(&changed, &lock);
    }
    n_ended++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void await_calls(const char *wanted)
{
    pthread_mutex_lock(&lock);
    while (strlen(calls) < strlen(wanted)) {
        pthread_cond_wait(&changed, &lock);
    }
    assert_string_equal(calls, wanted);
    pthread_mutex_unlock(&lock);
}

static void allow_one(void)
{
    pthread_mutex_lock(&lock);
    n_allowed++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void await_done(uint64_t number)
{
    while (!fy_nvshmem_is_done(number)) {
        sched_yield();
    }
}

static char pool[64];

static uint64_t post(fy_nvshmem_verb verb)
{
    fy_nvshmem_op op = {.verb = verb, .there = pool, .here = pool, .bytes = 8};
    uint64_t number = 0;
    assert_int_equal(fy_nvshmem_post(&op, &number, NULL), FERRY_OK);
    return number;
}

static void begin(void)
{
    memset(calls, 0, sizeof calls);
    n_allowed = n_ended = 0;
    fy_nvshmem_its.pool = pool;
    fy_nvshmem_its.bytes = sizeof pool;
    fy_nvshmem.nvshmem_putmem_nbi = put;
    fy_nvshmem.nvshmem_quiet = quiet;
}

/* What was put while a quiet went on is under way together, and none of it counts before its end.
 */
static void test_together(void **state)
{
    (void)state;
    begin();
    post(FY_NVSHMEM_PUT);
    uint64_t first = post(FY_NVSHMEM_QUIET);
    await_calls("pq");
    post(FY_NVSHMEM_PUT);
    post(FY_NVSHMEM_PUT);
    uint64_t second = post(FY_NVSHMEM_QUIET);
    uint64_t put_number = post(FY_NVSHMEM_PUT);
    uint64_t third = post(FY_NVSHMEM_QUIET);
    assert_false(fy_nvshmem_is_done(first));
    allow_one();
    await_calls("pqpppq"); /* one quiet for both */
    assert_true(fy_nvshmem_is_done(first));
    assert_false(fy_nvshmem_is_done(second));
    assert_false(fy_nvshmem_is_done(put_number));
    allow_one();
    await_done(third);
    assert_true(fy_nvshmem_is_done(second));
    assert_int_equal(n_ended, 2);
}

/* Quiets are not put off without end. */
static void test_bounded(void **state)
{
    enum { MANY = 40, AT_ONCE = 17 };
    uint64_t numbers[MANY];
    (void)state;
    begin();
    post(FY_NVSHMEM_QUIET);
    await_calls("q");
    for (int i = 0; i < MANY; i++) {
        post(FY_NVSHMEM_PUT);
        numbers[i] = post(FY_NVSHMEM_QUIET);
    }
    allow_one();
    char wanted[32] = "q";
    memset(wanted + 1, 'p', AT_ONCE);
    wanted[1 + AT_ONCE] = 'q';
    await_calls(wanted);
    assert_false(fy_nvshmem_is_done(numbers[0]));
    allow_one();
    await_done(numbers[AT_ONCE - 1]);
    assert_false(fy_nvshmem_is_done(numbers[AT_ONCE]));
    for (int i = 0; i < MANY; i++) {
        allow_one();
    }
    await_done(numbers[MANY - 1]);
}

/* A cut forgets what was put off, too: what comes later counts as ever. */
static void test_cut(void **state)
{
    (void)state;
    begin();
    post(FY_NVSHMEM_QUIET);
    await_calls("q");
    post(FY_NVSHMEM_PUT);
    uint64_t forgotten = post(FY_NVSHMEM_QUIET);
    fy_nvshmem_cut();
    assert_false(fy_nvshmem_is_done(forgotten)); /* what the thread is in counts as the last */
    allow_one();
    await_done(forgotten);
    assert_string_equal(calls, "q");
    post(FY_NVSHMEM_PUT);
    uint64_t last = post(FY_NVSHMEM_QUIET);
    await_calls("qpq");
    assert_false(fy_nvshmem_is_done(last));
    allow_one();
    await_done(last);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
