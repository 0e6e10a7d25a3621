/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether qemu-user runs the program, as where tests are compiled for another processor. It does
 * what a kernel does for it, but not all: cases that need the rest are left out, each with a line
 * that scripts/list_skips.py finds.
 */
#ifndef TESTS_SUPPORT_EMULATED_H
#define TESTS_SUPPORT_EMULATED_H

#include <stdbool.h>
#include <stdio.h>

#if defined(FERRY_TEST_EMULATED)
#define IS_EMULATED 1
#else
#define IS_EMULATED 0
#endif

/* `what` says what qemu-user does not do. */
static inline bool is_left_out(const char *test, const char *what)
{
    if (IS_EMULATED) {
        printf("SKIPPED %s: qemu-user %s\n", test, what);
    }
    return IS_EMULATED;
}

#endif
