/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_MIXED_BENCH_H
#define FERRY_BENCH_MIXED_BENCH_H

#include "mixed_cases.h"

/*
 * How mixed_ferry and mpi_mixed measure, which is the same for both: the sides say what ways there
 * are, run one, and connect the ranks.
 *
 *     OP DTYPE TP DP [--sizes BYTES,...] [--ways NAME,...] [--batches N] [--batch-ms T]
 *                    [--in-place] [--fresh] [--json FILE]
 *
 * After a second of calls that do not count, of each size (bytes of a piece) and way a first run
 * goes to poisoned memory and is verified. Then come batches of calls one right after the other: in
 * each round every way has one, and each round begins with another way. A batch follows a barrier
 * and, where it has several calls, one that does not count; its figure is the slowest rank's time
 * over the number of calls. With --fresh each call has an input that its rank has just written, as
 * a layer does, and no other rank has in its caches. Ways that are MIXED_FAR_BEHIND times slower
 * than the best are left out of the rounds; long calls have three.
 *
 * Rank 0 prints a line of JSON for each size and way:
 *
 *     {"bytes": .., "way": "..", "calls": .., "wrong": .., "seconds": [..], "note": ".."}
 */
enum { MIXED_MAX_WAYS = 32, MIXED_MAX_SIZES = 32, MIXED_MAX_BATCHES = 100, MIXED_FAR_BEHIND = 3 };

typedef struct mixed_arguments {
    mixed_case its;
    size_t sizes[MIXED_MAX_SIZES];
    int n_sizes;
    const char *ways; /* NULL: all */
    int n_batches;
    double batch_seconds;
    bool in_place, is_fresh;
    const char *json;
} mixed_arguments;

typedef struct mixed_side {
    void *context;
    void (*barrier)(void *context);
    double (*max)(void *context, double own); /* over all ranks; collective */
    /* The ways, ended by NULL; and whether one serves for this case. */
    const char *const *ways;
    bool (*offers)(void *context, int way);
    /* Memory for a size: called before its runs, with pieces of so many elements. */
    void (*begin_size)(void *context, void *in, void *out, size_t piece);
    void (*run)(void *context, int way);
    const char *(*note)(void *context, int way); /* may be NULL */
} mixed_side;

/* Reads what begins with OP; false with a sentence on rank 0's stderr. The sizes must be multiples
 * of an element and are sorted. */
bool mixed_read_arguments(int argc, char **argv, int rank, int n_ranks, mixed_arguments *out);

/* The ways' names among the wanted ones? */
bool mixed_is_wanted(const char *list, const char *name);

/* Measures all; 0, or 1 where a result was wrong. */
int mixed_measure(const mixed_arguments *arguments, const mixed_side *side);

#endif
