/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* A limit of bytes a second: on a clock that only those who wait move on. */
#include "checkpoint/pace.h"

#include "checkpoint/files.h"

#include "support/check.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct fake_clock {
    double now;
    unsigned n_naps;
    _Atomic bool *sets; /* in the second nap; NULL: nothing */
} fake_clock;

static double tell_time(void *context)
{
    return ((fake_clock *)context)->now;
}

static void sleep_on(void *context, double seconds)
{
    fake_clock *clock = context;
    assert_true(seconds > 0 && seconds <= 0.1);
    clock->now += seconds;
    if (++clock->n_naps == 2 && clock->sets != NULL) {
        atomic_store(clock->sets, true);
    }
}

static void begin(fy_pace *pace, uint64_t bytes_per_s, fake_clock *clock)
{
    ferry_error error;
    *clock = (fake_clock){.now = 1000};
    assert_int_equal(fy_pace_init(pace, bytes_per_s, &error), FERRY_OK);
    pace->now = tell_time;
    pace->sleep = sleep_on;
    pace->context = clock;
}

static void take(fy_pace *pace, uint64_t n_bytes)
{
    ferry_error error;
    assert_int_equal(fy_pace_take(pace, n_bytes, &error), FERRY_OK);
}

static void check_time(const fake_clock *clock, double seconds)
{
    check_at(fabs(clock->now - 1000 - seconds) < 1e-6, "%.9f s passed, not %.9f", clock->now - 1000,
             seconds);
}

/* Whatever the pieces: the bytes over the rate, less what a quarter of a second brings. */
static void test_rate(void **state)
{
    (void)state;
    static const uint64_t pieces[] = {1, 7, 512, 100000};
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        fy_pace pace;
        fake_clock clock;
        begin(&pace, 4096, &clock);
        for (int k = 0; k < 2000; k++) {
            take(&pace, pieces[i]);
        }
        double seconds = (double)(2000 * pieces[i]) / 4096 - 0.25;
        check_time(&clock, seconds > 0 ? seconds : 0);
        assert_int_equal(pace.taken_bytes, 2000 * pieces[i]);
        fy_pace_cleanup(&pace);
    }
}

/* Time in which nothing is taken is not saved up. */
static void test_idle(void **state)
{
    (void)state;
    fy_pace pace;
    fake_clock clock;
    begin(&pace, 1000, &clock);
    take(&pace, 1000);
    check_time(&clock, 0.75);
    clock.now += 50;
    take(&pace, 250);
    check_time(&clock, 50.75);
    take(&pace, 1000);
    check_time(&clock, 51.75);
    fy_pace_cleanup(&pace);
}

static void test_no_limit(void **state)
{
    (void)state;
    fy_pace pace;
    fake_clock clock;
    begin(&pace, 0, &clock);
    take(&pace, UINT64_MAX / 2);
    take(&pace, 0);
    assert_int_equal(clock.n_naps, 0);
    assert_int_equal(fy_pace_take(NULL, 1, NULL), FERRY_OK);
    fy_pace_cleanup(&pace);
}

/* Who waits for hours hears the wish to stop. */
static void test_stop(void **state)
{
    (void)state;
    fy_pace pace;
    fake_clock clock;
    ferry_error error;
    _Atomic bool stops = false;
    begin(&pace, 1, &clock);
    pace.stops = &stops;
    clock.sets = &stops;
    assert_int_equal(fy_pace_take(&pace, 100000, &error), FERRY_ERR_STOPPED);
    assert_int_equal(clock.n_naps, 2);
    fy_pace_cleanup(&pace);
}

/* ---- what files take ---- */

static const char *name_of(const void *context, size_t i)
{
    (void)context;
    return i == 0 ? "a" : "b";
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/ferry-test-XXXXXX", bytes[3000] = {1};
    assert_true(mkdtemp(folder) != NULL);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fy_pace pace;
    fake_clock clock;
    fy_files *files = NULL;
    ferry_error error;
    bool copied = false;
    begin(&pace, 1000, &clock);
    assert_int_equal(fy_files_make(fd, folder, 2, name_of, NULL, &files, &error), FERRY_OK);
    fy_files_set_pace(files, &pace);
    assert_int_equal(fy_files_write(files, 0, 0, bytes, 3000, &error), FERRY_OK);
    check_time(&clock, 2.75);
    assert_int_equal(fy_files_read(files, 0, 1000, bytes, 2000, &error), FERRY_OK);
    check_time(&clock, 4.75);
    /* Once for each side. */
    assert_int_equal(fy_files_copy(files, 0, 0, files, 1, 0, 1500, &copied, &error), FERRY_OK);
    check_time(&clock, 7.75);
    assert_int_equal(pace.taken_bytes, 8000);
    fy_files_destroy(files);
    fy_pace_cleanup(&pace);
    unlinkat(fd, "a", 0);
    unlinkat(fd, "b", 0);
    close(fd);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rate), cmocka_unit_test(test_idle),
                                       cmocka_unit_test(test_no_limit), cmocka_unit_test(test_stop),
                                       cmocka_unit_test(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
