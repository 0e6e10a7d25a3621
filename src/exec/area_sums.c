/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of g^offset over all bytes of an area, modulo a prime: the value of a polynomial that has
 * a term for each byte. It adds up over areas whichever way a set of bytes is cut into them. (Sums
 * of the offsets and of their squares do as well, but parts of a power of two bytes that change
 * places have the same ones.) Where dimensions nest, a sum is a product: of g^offset, of the
 * geometric series of the run, and of that of each dimension.
 */
#include "exec/area.h"

__extension__ typedef unsigned __int128 wide;

static const uint64_t PRIME = (UINT64_C(1) << 61) - 1;
static const uint64_t BASE = UINT64_C(1142896213707425863); /* any number but 0 and 1 */

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b; /* below 2^62 */
    return sum >= PRIME ? sum - PRIME : sum;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    return add((uint64_t)product & PRIME, (uint64_t)(product >> 61));
}

static uint64_t power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;
    for (; exponent > 0; exponent >>= 1, base = multiply(base, base)) {
        result = exponent % 2 == 1 ? multiply(result, base) : result;
    }
    return result;
}

/* 1 + ratio + ... + ratio^(n - 1): of twice as many terms it is 1 + ratio^n times as much. */
static uint64_t series(uint64_t ratio, uint64_t n)
{
    uint64_t sum = 0, next = 1; /* of the terms so far, and the term behind them */
    for (uint32_t bit = 64; bit-- > 0;) {
        sum = multiply(sum, add(1, next));
        next = multiply(next, next);
        if (n >> bit & 1) {
            sum = add(sum, next);
            next = multiply(next, ratio);
        }
    }
    return sum;
}

uint64_t fy_area_sum(const fy_area *area)
{
    uint64_t sum = multiply(power(BASE, area->offset), series(BASE, area->run_bytes));
    for (uint32_t d = 0; d < area->n_dims; d++) {
        sum = multiply(sum, series(power(BASE, area->stride[d]), area->length[d]));
    }
    return sum;
}

uint64_t fy_area_sum_of_both(uint64_t a, uint64_t b)
{
    return add(a, b);
}
