/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_LAYOUT_STRIDED_H
#define FY_LAYOUT_STRIDED_H

#include "base/status.h"

#include <ferry/limits.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Places in memory: offset + i[0] stride[0] + i[1] stride[1] + ..., with i[k] below count[k]. What
 * is asked of them is answered by arithmetic: no place is looked at by itself. See
 * docs/layout-algebra.md.
 */
enum { FY_MAX_LOOPS = FERRY_MAX_DIMS + 4 };

typedef struct fy_strided {
    uint64_t offset;
    uint32_t n_loops;
    uint64_t count[FY_MAX_LOOPS]; /* never 0 */
    uint64_t stride[FY_MAX_LOOPS];
} fy_strided;

/*
 * The same places with as few loops as that takes: by descending strides, without those of one
 * turn, and with those joined that go on where the inner one ends.
 */
void fy_strided_simplify(fy_strided *places);

/* How many places there are, and the last of them; false: a number does not fit. */
bool fy_strided_measure(const fy_strided *places, uint64_t *n_out, uint64_t *last_out);

/*
 * How many steps searches may take, of about a tenth of a microsecond each. Strides that contain
 * each other need a few; for those that cross nobody can say beforehand. One budget serves all that
 * is asked of one input.
 */
enum { FY_STRIDED_STEPS = 1 << 21, FY_STRIDED_STEPS_EACH = 256 };

static inline uint64_t fy_strided_budget(uint64_t n_places)
{
    return FY_STRIDED_STEPS + FY_STRIDED_STEPS_EACH * n_places;
}

/*
 * Of simplified places. Whether one of them is met twice, or one is met by both; *place_out is such
 * a one. FERRY_ERR_LIMIT where strides are so entangled that the budget is used up.
 */
ferry_status fy_strided_meets_itself(const fy_strided *places, uint64_t *budget_inout,
                                     bool *meets_out, uint64_t *place_out, ferry_error *error);
ferry_status fy_strided_meet(const fy_strided *a, const fy_strided *b, uint64_t *budget_inout,
                             bool *meet_out, uint64_t *place_out, ferry_error *error);

/* How many of simplified places, none of which is met twice, are below a place. */
uint64_t fy_strided_count_below(const fy_strided *places, uint64_t place);

/* How many steps that takes at most: 1, but for strides that cross; UINT64_MAX: very many. */
uint64_t fy_strided_count_steps(const fy_strided *places);

/*
 * Two of n simplified places that meet, none of them itself: *a_out < *b_out are their numbers, or
 * *a_out is n where no two do. Fast where nearly all are boxes of one array, however its dimensions
 * are ordered, or where they have few runs. FERRY_ERR_LIMIT as above.
 */
ferry_status fy_strided_find_meeting(const fy_strided *places, size_t n, uint64_t *budget_inout,
                                     size_t *a_out, size_t *b_out, uint64_t *place_out,
                                     ferry_error *error);

#endif
