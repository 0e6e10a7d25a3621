/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* When who waits yields, and when a yield that took long stops that; by a clock of the test's. */
#include "world/world.h"

#include "support/check.h"

#include <ferry/world.h>

static const int64_t MS = 1000000;

/* The number of the look that follows the first yield, without a core of its own and with one. */
enum { AFTER_A_YIELD = 2, AFTER_SPINNING = 10 };

static int64_t clock_ns = 1;
static int64_t yield_takes_ns;
static uint32_t n_yields;

int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    clock_ns += yield_takes_ns;
    n_yields++;
    return 0;
}

int64_t __wrap_fy_now_ns(void);
int64_t __wrap_fy_now_ns(void)
{
    clock_ns += 10; /* who looks at it is not in a loop without end */
    return clock_ns;
}

static bool is_there(void *context)
{
    uint32_t *n_looks = context;
    return --*n_looks == 0;
}

static int64_t sleeps_briefly(void *context)
{
    (void)context;
    return 1000;
}

/* Yields of one wait, for what is there at the look of this number: 1 is before any yield. */
static uint32_t yields_until(ferry_world *world, uint32_t look, int64_t each_takes_ns)
{
    ferry_error error;
    n_yields = 0;
    yield_takes_ns = each_takes_ns;
    must(fy_world_wait(world, is_there, sleeps_briefly, &look, -1, &error), &error);
    return n_yields;
}

/* One that shares its core with peers, or has one of its own. */
static ferry_world *world_of(bool shares_core)
{
    ferry_world *world;
    ferry_error error;
    must(ferry_world_create_threads(1, NULL, &world, &error), &error);
    world->spin_ns = shares_core ? 0 : 1;
    return world;
}

static void test_looks(void **state)
{
    (void)state;
    ferry_world *world = world_of(true);
    assert_int_equal(yields_until(world, 1, 1000), 0);
    assert_int_equal(yields_until(world, 2, 1000), 1);
    assert_int_equal(yields_until(world, 5, 1000), 4);
    /* It is not endless: then it sleeps. */
    assert_in_range(yields_until(world, 1000, 1000), 100, 210);
    ferry_world_destroy(world);
}

/* What was awaited came while a stranger had the core. */
static void test_strangers(void **state)
{
    (void)state;
    for (int shares = 0; shares < 2; shares++) {
        ferry_world *world = world_of(shares);
        uint32_t look = shares ? AFTER_A_YIELD : AFTER_SPINNING;
        assert_int_equal(yields_until(world, look, 2 * MS), 1);
        assert_int_equal(yields_until(world, 2 * look, 1000), 0);
        clock_ns += 15 * MS;
        assert_int_equal(yields_until(world, 2 * look, 1000), 0);
        clock_ns += 2 * MS;
        assert_true(yields_until(world, 2 * look, 1000) > 0);
        /* Soon again: for longer, but not for ever longer. */
        for (int i = 0; i < 3; i++) {
            assert_int_equal(yields_until(world, look, 2 * MS), 1);
            clock_ns += 62 * MS;
            assert_int_equal(yields_until(world, 2 * look, 1000), 0);
            clock_ns += 3 * MS;
        }
        /* Not soon: as at first. */
        clock_ns += 65 * MS;
        assert_int_equal(yields_until(world, look, 2 * MS), 1);
        clock_ns += 17 * MS;
        assert_true(yields_until(world, 2 * look, 1000) > 0);
        ferry_world_destroy(world);
    }
}

/* A peer computed, for which this rank would have waited in any way. */
static void test_peers_at_work(void **state)
{
    (void)state;
    ferry_world *world = world_of(true);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(yields_until(world, 3, 4 * MS), 1);
        assert_int_equal(yields_until(world, 4, 1000), 3);
    }
    ferry_world_destroy(world);

    world = world_of(false);
    assert_int_equal(yields_until(world, AFTER_SPINNING + 1, 4 * MS), 1);
    assert_int_equal(yields_until(world, 2 * AFTER_SPINNING, 1000), 0);
    ferry_world_destroy(world);
}

/* What came in less than a time slice is what peers did, where cores are shared; else a stranger.
 */
static void test_short_work(void **state)
{
    (void)state;
    for (int shares = 0; shares < 2; shares++) {
        ferry_world *world = world_of(shares);
        uint32_t look = shares ? AFTER_A_YIELD : AFTER_SPINNING;
        assert_int_equal(yields_until(world, look, MS), 1);
        assert_int_equal(yields_until(world, 2 * look, 1000) > 0, shares);
        ferry_world_destroy(world);
    }
}

/* Whoever begins to measure forgets them. */
static void test_forgiven(void **state)
{
    (void)state;
    ferry_world *world = world_of(true);
    assert_int_equal(yields_until(world, 2, 2 * MS), 1);
    assert_int_equal(yields_until(world, 3, 1000), 0);
    fy_world_forgive_yields(world);
    assert_int_equal(yields_until(world, 3, 1000), 2);
    ferry_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks),         cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_peers_at_work), cmocka_unit_test(test_short_work),
        cmocka_unit_test(test_forgiven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
