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

/* ---- numbers of floating-point types of up to 64 bits ---- */

/* What bits say, exactly; NaN for all that are none. */
double run_float_value(ferry_dtype dtype, uint64_t bits);

/*
 * The bits of the nearest number of the type, a tie to the even one; of what is no NaN. What is
 * finite and too large is the largest number where it saturates.
 */
uint64_t run_float_round(ferry_dtype dtype, double value, bool saturates);

/* The f32 nearest to it; infinite where that is. */
double run_float_f32(double value);

/* An element as it lies in memory, up to 8 bytes. */
uint64_t run_load_bits(const char *at, uint64_t n_bytes);
void run_store_bits(char *at, uint64_t n_bytes, uint64_t bits);

#endif
