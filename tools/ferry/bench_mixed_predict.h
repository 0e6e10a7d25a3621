/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_MIXED_PREDICT_H
#define FERRY_TOOL_BENCH_MIXED_PREDICT_H

#include "bench_mixed.h"

/*
 * What a call of the mixed collectives will take: what it moves and how often it waits, which its
 * schedule says, times what each of these costs. Costs are those of a file, or are fitted to calls
 * of this machine.
 */

enum { MIXED_MOST_KNOTS = 16 };

/* A rate that depends on the size: inputs and outputs may lie in a cache, or not. */
typedef struct mixed_knot {
    double bytes; /* of a piece */
    double each;  /* seconds of a byte */
} mixed_knot;

struct mixed_costs {
    char name[64];
    bool overlaps;          /* what copies, reads and sends are parts that work at once */
    bool multicast_objects; /* of the ranks of a file, which reach each other in place at least */
    uint32_t processors;    /* of a node, that do all of it; 0: each rank has its own */
    double call;            /* seconds of a call that neither moves nor waits */
    double wait, between_wait; /* until a message of the node, or of another one, is seen */
    double turn; /* of a wait of a ring, whose next step begins behind it; inside a node */
    double step; /* of each wait of a further step of the other modes */
    double write, read, between; /* seconds of a byte, for ranks of the node and for others */
    size_t n_knots;              /* of what is read and written of tensors; by ascending bytes */
    mixed_knot tensors[MIXED_MOST_KNOTS];
};

/* ---- bench_mixed_costs.c ---- */

/* FERRY_ERR_IO or FERRY_ERR_INVALID_INPUT, with the file's name and what is wrong with it. */
ferry_status mixed_costs_load(const char *path, mixed_costs *costs_out, ferry_error *error);
/* The file that load reads, whole or not at all. */
ferry_status mixed_costs_save(const mixed_costs *costs, const char *path, ferry_error *error);
/* As a JSON object on stdout, and for people: whose costs, and each by its name in that object. */
void mixed_costs_print_json(const mixed_costs *costs);
void mixed_costs_print(const mixed_costs *costs, const char *before);

/* ---- bench_mixed_predict.c ---- */

/* The ranks whose schedules are looked at, and how many share the processors of a node. */
typedef struct mixed_sketches {
    ferry_mixed_sketch **at;
    uint32_t n;
    uint32_t n_sharing;
} mixed_sketches;

/* Of the ranks that the sizes of `options` make, which have none of their own. */
ferry_status mixed_sketches_open(const ferry_mixed_comm_options *options, uint32_t reach,
                                 uint32_t n_sharing, mixed_sketches *sketches_out,
                                 ferry_error *error);
void mixed_sketches_close(mixed_sketches *sketches); /* zeroed is allowed */

/* One call, and what was measured of it. */
typedef struct mixed_sample {
    uint32_t op, mode;
    uint64_t bytes, count; /* of the piece */
    double seconds;
} mixed_sample;

/* Seconds of a call; 0 where the mode has no schedule of its own, such as autotune. */
double mixed_predict(const mixed_costs *costs, const mixed_sketches *sketches,
                     const mixed_sample *call);

/*
 * The costs, none below 0, with which predictions are nearest to the samples, each by its own
 * share. Knots are the sizes of the samples, at most MIXED_MOST_KNOTS of them.
 */
ferry_status mixed_fit(const mixed_sample *samples, size_t n, const mixed_sketches *sketches,
                       mixed_costs *costs, ferry_error *error);

/*
 * As mixed_predict, times what the costs are off by at the samples of the same operation and mode
 * that are next below and above, at most two or a half: between them that changes evenly with the
 * logarithm of the size.
 */
double mixed_predict_beside(const mixed_costs *costs, const mixed_sketches *sketches,
                            const mixed_sample *samples, size_t n, const mixed_sample *call);

/* ---- bench_mixed_table.c ---- */

/* `ferry bench mixed --predict --costs FILE`: a table, and no ranks. An exit status. */
int mixed_predict_table(const mixed_request *r);

#endif
