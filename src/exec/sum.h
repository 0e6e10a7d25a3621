/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_SUM_H
#define FY_EXEC_SUM_H

#include "base/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Sums of several rows of elements: the arithmetic of the mixed collectives. Every sum is made in
 * f32, in the order of the sources, and rounded once, to nearest, ties to even, where the target
 * is narrower:
 *
 *     target[i] = round(((s[0][i] + s[1][i]) + s[2][i]) + ...)
 *
 * One source is a copy: bit for bit where the types are the same, f16 or bf16 widened exactly to
 * f32, f32 rounded to f16 or bf16.
 *
 * All instruction sets, and every position within a row, give the same bits, signs of zero,
 * infinities and subnormal numbers included; what is too large for f16 or bf16 becomes infinite.
 * A sum that is NaN is the same quiet NaN everywhere: that of the target's type with the sign clear
 * and only the first bit of its mantissa set; so replicas agree whatever order a processor's
 * operands have. The same holds where one source changes its type; only the copy of one source to
 * its own type keeps what a NaN carries. Sums of two -0 are -0.
 */

/* Types that are summed. */
typedef enum fy_sum_type {
    FY_SUM_F32 = 0,
    FY_SUM_F16 = 1,
    FY_SUM_BF16 = 2,
    FY_SUM_N_TYPES
} fy_sum_type;

static inline size_t fy_sum_type_bytes(fy_sum_type type)
{
    return type == FY_SUM_F32 ? 4 : 2;
}

/* The most targets of one sum. */
enum { FY_SUM_MOST_TARGETS = 2 };

typedef struct fy_sum {
    const void *const *sources; /* n_sources, each aligned to its element */
    size_t n_sources;           /* at least 1 */
    fy_sum_type source_type;
    void *targets[FY_SUM_MOST_TARGETS]; /* aligned likewise; the second may be NULL */
    fy_sum_type target_type;            /* of both */
    size_t n;                           /* elements */
    /* Write the first target past the cache; not fenced: fy_copy_fence before it is published. */
    bool stream;
} fy_sum;

/*
 * Sources and targets may be the very same memory, element by element (a sum in place); else they
 * do not overlap. f32 sources go to any type, others to their own and to f32.
 */
void fy_sum_run(const fy_sum *sum);

/* What an instruction set has: sum_<isa>.c. Used by tests, which compare all of them. */
typedef void (*fy_sum_fn)(const fy_sum *sum);
/* NULL where this build or machine has not the set, or FERRY_ISA asks for a lesser one. */
fy_sum_fn fy_sum_of_isa(fy_isa isa);

#endif
