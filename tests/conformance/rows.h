/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_CONFORMANCE_ROWS_H
#define FERRY_TESTS_CONFORMANCE_ROWS_H

/*
 * Suites of what is built on the engines: each is a table of cases that runs on every row of one
 * table of engines. Their command line, the loop over cases, and helpers of cases.
 */
#include "conformance/suite.h"

typedef struct suite_options {
    const engine_row *engine;
    const char *only; /* NULL: all cases */
    bool is_long;
    uint64_t seed, count;
    double patience;
} suite_options;

/* Set before run_suite: tensors may lie in far memory. */
extern bool suite_uses_far;

typedef struct row_suite {
    const char *name; /* of the program */
    size_t n_cases;
    const case_row *(*case_at)(size_t index);
    /* Of cases that the command line and the row allow. */
    bool (*is_wanted)(const suite_options *o, size_t index);
    double long_seconds; /* the most that a case may take in the long run */
} row_suite;

/*
 * suite ROW [--case NAME] [--long] [--seed N] [--count N] [--patience N]
 *
 * Runs the cases on one row. Each case has processes of its own: one for all ranks where they are
 * threads, else one a rank. The runner only starts them, waits no longer than a case may take, and
 * ends what is left by its pid. --count repeats each case with further seeds. The exit status; 77:
 * the engine cannot run here.
 */
int run_suite(const row_suite *suite, int argc, char **argv);

/* Where cases that take long by waiting run in the quick run too: no wrapper, and not all by ucx.
 */
bool row_is_plain(const engine_row *engine);

/* The engines of this row behind wrappers ("lose=1@9:", or ""); NULL: the default. */
const char *engines_of(const rank_context *me, const char *wrappers, char *text, size_t n_bytes);

/* The end of this process, or its stop, so many microseconds from now. */
void end_later(rank_context *me, uint32_t us, bool stops);

/*
 * Comes back when all ranks are here. They meet beside ferry: no rank is still in a collective call
 * then, whose end it would miss when another one dies.
 */
void meet_outside(rank_context *me);
/* The same of those who are left, so many, once in a case: memory is freed that others had open. */
void meet_left(rank_context *me, uint32_t n_left);

/* Fails unless the last sentence names this rank. */
void expect_named(rank_context *me, uint32_t victim);

static inline uint32_t dice(uint64_t *state, uint32_t least, uint32_t most)
{
    return least + random_below(state, most - least + 1);
}

static inline bool one_in(uint64_t *state, uint32_t n)
{
    return random_below(state, n) == 0;
}

/* The number of rounds of a case, for the quick run and the long one. */
static inline uint32_t times_of(const rank_context *me, uint32_t quick, uint32_t slow)
{
    return me->is_long ? slow : quick;
}

#endif
