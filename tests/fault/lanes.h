/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_LANES_H
#define FERRY_TESTS_LANES_H

#include "support/check.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Cases that wait more than they compute, side by side: each lane is a process of its own. */

/* Runs one lane's cases, with files in the folder. Returns how many were wrong. */
typedef int lane_function(const void *lanes, size_t i, const char *folder);

static void run_lanes(lane_function *run, const void *lanes, size_t n_lanes, size_t n_at_once)
{
    char folder[64] = "/tmp/ferry-lanes-XXXXXX";
    int n_wrong = 0;
    size_t n_begun = 0, n_running = 0;
    assert_non_null(mkdtemp(folder));
    while (n_begun < n_lanes || n_running > 0) {
        if (n_begun < n_lanes && n_running < n_at_once) {
            pid_t pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                int n = run(lanes, n_begun, folder);
                _exit(n > 100 ? 100 : n);
            }
            assert_true(pid > 0);
            n_begun++;
            n_running++;
            continue;
        }
        int status;
        if (wait(&status) > 0) {
            n_wrong += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            n_running--;
        }
    }
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(n_wrong, 0);
}

/* Cases that numbers draw: the first seed and those behind it, dealt to lanes. */
typedef struct seed_lanes {
    bool (*run)(uint64_t seed, const char *folder); /* false: it was wrong, and said how */
    uint64_t first;
    int n;
    size_t n_lanes;
} seed_lanes;

static int run_seed_lane(const void *context, size_t lane, const char *folder)
{
    const seed_lanes *own = context;
    int n_wrong = 0;
    for (uint64_t i = lane; i < (uint64_t)own->n; i += own->n_lanes) {
        if (!own->run(own->first + i, folder)) {
            print_error("  this was seed %llu\n", (unsigned long long)(own->first + i));
            n_wrong++;
        }
    }
    return n_wrong;
}

static void run_seeds(bool (*run)(uint64_t seed, const char *folder), uint64_t first, int n,
                      size_t n_lanes)
{
    seed_lanes lanes = {run, first, n, n_lanes};
    run_lanes(run_seed_lane, &lanes, n_lanes, n_lanes);
}

#endif
