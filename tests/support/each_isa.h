/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_EACH_ISA_H
#define FERRY_TESTS_EACH_ISA_H

/*
 * The instruction set is chosen once for a process. So a program's tests are run by a child for
 * each set that the machine has, or only for the one that FERRY_ISA names. Returns main's result.
 */
#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int run_as(fy_isa isa, int (*run)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("FERRY_ISA", fy_isa_name(isa), 1);
        if (fy_cpu_isa() != isa) {
            fprintf(stderr, "left out, this machine has no %s\n", fy_isa_name(isa));
            exit(0);
        }
        fprintf(stderr, "---- %s\n", fy_isa_name(isa));
        exit(run());
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return 1;
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static inline int run_with_each_isa(int (*run)(void))
{
    int result = 0;
    if (getenv("FERRY_ISA") != NULL) {
        return run();
    }
    for (int isa = FY_ISA_BASELINE; isa <= FY_ISA_AVX512; isa++) {
        result |= run_as((fy_isa)isa, run);
    }
    return result;
}

#endif
