/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_BASE_CHECKED_H
#define FY_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* 64-bit arithmetic that says whether the result is exact. */

static inline bool fy_add(uint64_t a, uint64_t b, uint64_t *sum_out)
{
    return !__builtin_add_overflow(a, b, sum_out);
}

static inline bool fy_mul(uint64_t a, uint64_t b, uint64_t *product_out)
{
    return !__builtin_mul_overflow(a, b, product_out);
}

/* Without the overflow of a + b - 1; b is not zero. */
static inline uint64_t fy_ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint64_t fy_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t fy_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
