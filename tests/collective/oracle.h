/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_COLLECTIVE_ORACLE_H
#define FERRY_TESTS_COLLECTIVE_ORACLE_H

#include <ferry/mixed_comm.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What every element of a mixed collective must be, one element at a time: from the definition of
 * topology and operations and from the arithmetic of numbers, and from nothing of the library.
 * Inputs are functions of a seed, a rank and an index, so each rank knows those of all.
 */
enum { ORACLE_MOST_RANKS = 64 };

/* Sizes of a topology. */
typedef struct shape {
    uint32_t w, l, n; /* ranks, ranks of a node, nodes */
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
    uint32_t tp, dp;
} shape;

/* Coordinates of a rank. */
typedef struct seat {
    uint32_t rank, local, node;
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
    uint32_t tp, dp;
} seat;

/* local_tp divides l and inter_tp divides n. */
shape shape_of(uint32_t l, uint32_t n, uint32_t local_tp, uint32_t inter_tp);
seat seat_of(const shape *s, uint32_t rank);
bool shape_has_op(const shape *s, uint32_t op);
/* Without AUTOTUNE and DEFAULT. */
bool shape_has_mode(const shape *s, uint32_t mode, bool multicast, bool deterministic);
uint32_t shape_in_chunks(const shape *s, uint32_t op);
uint32_t shape_out_chunks(const shape *s, uint32_t op);

/* Whose sum a chunk of an output is: node by node, the local ranks of each ascending. */
typedef struct summands {
    uint32_t n, n_nodes, n_locals; /* n = n_nodes * n_locals */
    uint32_t ranks[ORACLE_MOST_RANKS];
} summands;

/* chunk: of the whole result, below dp; 0 for all-reduce. */
summands summands_of(const shape *s, uint32_t op, uint32_t chunk);

/* What inputs are made of. */
typedef enum data_kind {
    DATA_INTEGERS, /* so small that no sum of them is ever rounded */
    DATA_RANDOM,   /* of either sign, between 1/16 and 32 */
    DATA_CANCEL,   /* large ones cancel, so the order of additions shows */
    DATA_BITS,     /* anything: NaN, infinities, -0, subnormal numbers */
    N_DATA
} data_kind;

uint32_t dtype_bytes(uint32_t dtype);
const char *dtype_name(uint32_t dtype);

/* The bits of element `index` at `position` of n that are summed together. */
uint32_t input_bits(data_kind kind, uint32_t dtype, uint64_t seed, uint32_t position, uint32_t n,
                    uint64_t index);

/* The number that bits stand for, and the bits of a number rounded once, ties to even. A NaN
 * becomes the quiet one with its sign clear and nothing else set. */
double widen(uint32_t dtype, uint32_t bits);
uint32_t round_once(uint32_t dtype, double number);

/* The sum in fp32 over the local ranks of each node, then over nodes, rounded once. One summand is
 * itself, bit for bit. */
uint32_t tree_bits(uint32_t dtype, const summands *set, const uint32_t *bits);

/*
 * The most that a result may differ from the exact sum of x:
 *
 *     u * sum|stage partials| + u * |S| + K * 2^-24 * sum|x|
 *
 * where the partials are those that a mode rounds on their way, with the error that they already
 * have.
 */
double bound_of(const shape *s, uint32_t op, uint32_t mode, uint32_t dtype, const summands *set,
                const double *x);

#endif
