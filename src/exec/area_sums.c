/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of the offsets of an area's bytes, of their squares and of their cubes: they add up over
 * areas whichever way a set of bytes is cut into them. An offset is a sum of numbers that go each
 * their own way (the area's offset, the place in the run, each dimension), and the sums of powers
 * of such a sum follow from those of its parts: sum over all x and y of (x + y)^k is the sum over j
 * of binomial(k, j) sum(x^j) sum(y^(k - j)).
 */
#include "exec/area.h"

/* Of 0, 1, ... n - 1: how many they are, their sum, that of their squares, and of their cubes. */
static void sum_powers(uint64_t n, uint64_t of[FY_AREA_SUMS])
{
    __extension__ typedef unsigned __int128 wide;
    wide sum = n == 0 ? 0 : (wide)n * (n - 1) / 2, odd = n == 0 ? 0 : 2 * (wide)n - 1;
    of[0] = n;
    of[1] = (uint64_t)sum;
    of[2] =
        sum % 3 == 0 ? (uint64_t)(sum / 3) * (uint64_t)odd : (uint64_t)sum * (uint64_t)(odd / 3);
    of[3] = (uint64_t)sum * (uint64_t)sum;
}

/* Each of the numbers that are summed up so far, with each of 0, stride, ... (n - 1) stride added.
 */
static void spread(uint64_t sums[FY_AREA_SUMS], uint64_t n, uint64_t stride)
{
    uint64_t more[FY_AREA_SUMS], step = 1;
    sum_powers(n, more);
    for (int k = 0; k < FY_AREA_SUMS; k++, step *= stride) {
        more[k] *= step;
    }
    uint64_t cubes =
        sums[3] * more[0] + 3 * sums[2] * more[1] + 3 * sums[1] * more[2] + sums[0] * more[3];
    uint64_t squares = sums[2] * more[0] + 2 * sums[1] * more[1] + sums[0] * more[2];
    sums[3] = cubes;
    sums[2] = squares;
    sums[1] = sums[1] * more[0] + sums[0] * more[1];
    sums[0] *= more[0];
}

void fy_area_sum(const fy_area *area, uint64_t sums_inout[FY_AREA_SUMS])
{
    uint64_t at = area->offset, sums[FY_AREA_SUMS] = {1, at, at * at, at * at * at};
    spread(sums, area->run_bytes, 1);
    for (uint32_t d = 0; d < area->n_dims; d++) {
        spread(sums, area->length[d], area->stride[d]);
    }
    for (int k = 0; k < FY_AREA_SUMS; k++) {
        sums_inout[k] += sums[k];
    }
}
