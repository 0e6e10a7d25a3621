/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include <ferry/machine.h>

#include "base/alloc.h"
#include "host/copy_rate.h"

#include "support/check.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_looks(void **state)
{
    (void)state;
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    must(ferry_machine_probe(0, &machine, &error), &error);
    assert_true(machine.n_cpus >= 1);
    assert_true(machine.memory_bytes > 0);
    assert_true(machine.room_bytes < machine.memory_bytes);
    assert_true(machine.huge_page_bytes == 0 || machine.huge_page_bytes > 4096);
    assert_true(machine.copy_gbytes_per_s == 0 && machine.copy_all_gbytes_per_s == 0);
    assert_int_equal(machine.struct_size, sizeof machine);
}

static void test_counts_allowed_cpus_only(void **state)
{
    (void)state;
    cpu_set_t old, one;
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    if (sched_getaffinity(0, sizeof old, &old) != 0) {
        skip(); /* more than 1,024 CPUs */
    }
    CPU_ZERO(&one);
    for (size_t cpu = CPU_SETSIZE; cpu-- > 0;) {
        if (CPU_ISSET(cpu, &old)) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    ferry_status status = ferry_machine_probe(0.01, &machine, &error);
    sched_setaffinity(0, sizeof old, &old);
    check_status("one", FERRY_OK, status, &error);
    assert_int_equal(machine.n_cpus, 1);
    assert_true(machine.copy_gbytes_per_s > 0);
    assert_true(machine.copy_gbytes_per_s == machine.copy_all_gbytes_per_s);
}

static void test_measures(void **state)
{
    (void)state;
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    must(ferry_machine_probe(0.02, &machine, &error), &error);
    assert_true(machine.copy_gbytes_per_s > 0 && machine.copy_all_gbytes_per_s > 0);
}

/* Trying cross-memory attach needs a child; the program's own children and signals do not see it.
 */
static volatile sig_atomic_t n_signals;

static void count_signal(int number)
{
    (void)number;
    n_signals++;
}

static void test_leaves_children_alone(void **state)
{
    (void)state;
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    struct sigaction old, count = {.sa_handler = count_signal};
    assert_int_equal(sigaction(SIGCHLD, &count, &old), 0);
    must(ferry_machine_probe(0, &machine, &error), &error);
    assert_int_equal(n_signals, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1); /* none is left */
    pid_t child = fork();
    if (child == 0) {
        _exit(7);
    }
    int result = 0;
    must(ferry_machine_probe(0, &machine, &error), &error);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), 7);
    sigaction(SIGCHLD, &old, NULL);
}

static void test_misuse(void **state)
{
    (void)state;
    static const double seconds[] = {-1, 3601, (double)NAN};
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(seconds); i++) {
        check_status("seconds", FERRY_ERR_MISUSE, ferry_machine_probe(seconds[i], &machine, &error),
                     &error);
    }
    ferry_machine zero = {0};
    check_status("no _INIT", FERRY_ERR_MISUSE, ferry_machine_probe(0, &zero, &error), &error);
    check_status("NULL", FERRY_ERR_MISUSE, ferry_machine_probe(0, NULL, &error), &error);
}

static void test_older_struct(void **state)
{
    (void)state;
    ferry_machine machine = FERRY_MACHINE_INIT;
    ferry_error error;
    machine.struct_size = offsetof(ferry_machine, room_bytes);
    machine.copy_gbytes_per_s = -5;
    must(ferry_machine_probe(0, &machine, &error), &error);
    assert_true(machine.memory_bytes > 0 && machine.room_bytes == 0);
    assert_true(machine.copy_gbytes_per_s < 0);
}

static void test_too_little_room_to_measure(void **state)
{
    (void)state;
    static const uint32_t cpus[] = {0, 1};
    ferry_error error;
    double rate = -1;
    check_status("little", FERRY_ERR_NO_MEMORY,
                 fy_copy_rate(cpus, 2, (uint64_t)15 << 20, 0.01, &rate, &error), &error);
    check_says("little", "needs 16 MiB of room, and there are 15", &error);
    assert_true(rate < 0);
    must(fy_copy_rate(cpus, 2, (uint64_t)16 << 20, 0.01, &rate, &error), &error);
    assert_true(rate > 0);
}

/* Each allocation fails once; whatever the outcome, nothing is leaked or set. */
static void test_allocations_fail(void **state)
{
    (void)state;
    ferry_error error;
    int failures = 0;
    for (int n = 0; n < 100; n++) {
        ferry_machine machine = FERRY_MACHINE_INIT;
        fy_alloc_fail_after(n);
        ferry_status status = ferry_machine_probe(0.001, &machine, &error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            break;
        }
        failures++;
        check_status("allocation", FERRY_ERR_NO_MEMORY, status, &error);
        assert_int_equal(machine.n_cpus, 0);
    }
    assert_true(failures >= 3 && failures < 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looks),
        cmocka_unit_test(test_counts_allowed_cpus_only),
        cmocka_unit_test(test_measures),
        cmocka_unit_test(test_leaves_children_alone),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_older_struct),
        cmocka_unit_test(test_too_little_room_to_measure),
        cmocka_unit_test(test_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
