/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_RANDOM_H
#define FERRY_TESTS_RANDOM_H

#include <stdint.h>

/* splitmix64: the same numbers everywhere, so that a seed is a reproducer. */
static inline uint64_t random_u64(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Below limit, which is not 0. */
static inline uint32_t random_below(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(random_u64(state) % limit);
}

#endif
