/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_SEED_H
#define FERRY_TESTS_SEED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/*
 * The first seed of a program that draws cases: the fixed one, or what FERRY_TEST_SEED says, a
 * number or "random". A seed that is not the fixed one is printed, for it is the reproducer.
 */
static inline uint64_t first_seed_of(uint64_t fixed)
{
    const char *wanted = getenv("FERRY_TEST_SEED");
    uint64_t seed = 0;
    if (wanted == NULL || wanted[0] == '\0') {
        return fixed;
    }
    if (strcmp(wanted, "random") != 0) {
        seed = strtoull(wanted, NULL, 10);
    } else if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) {
        return fixed;
    }
    seed %= 1000000000; /* few digits, and no sum of it overflows */
    printf("FERRY_TEST_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

#endif
