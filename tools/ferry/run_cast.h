/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_CAST_H
#define FERRY_TOOL_RUN_CAST_H

#include <ferry/dtype.h>
#include <ferry/plan.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What a plan's cast makes of one element, reckoned slowly and apart from the library: in doubles,
 * which hold what an f32 times or plus an f32 is before it is rounded, and with a rounding of its
 * own. An element is its bits, the lowest first.
 */
typedef struct run_cast {
    ferry_dtype from, to;
    bool saturates;
    float scale, add;
} run_cast;

run_cast run_cast_of(const ferry_conversion *conversion, ferry_dtype from, ferry_dtype to);

typedef struct run_cast_result {
    uint64_t bits;
    bool is_any_nan; /* every NaN is right: which one comes of arithmetic is not said */
} run_cast_result;

run_cast_result run_cast_element(const run_cast *cast, uint64_t bits);

/* Whether the bits found are right. */
bool run_cast_is_right(const run_cast *cast, run_cast_result wanted, uint64_t found);

#endif
