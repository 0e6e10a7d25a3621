/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_BENCH_MIXED_CHECK_H
#define FERRY_TOOL_BENCH_MIXED_CHECK_H

#include <ferry/mixed_comm.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What ranks put into a mixed collective and what must come out: every element of every rank is
 * known to every rank without a message, so that each checks its own result alone. Pure.
 */

typedef enum mixed_pattern {
    MIXED_INTEGERS = 0, /* whole numbers, so small that every sum of some of them is exact */
    MIXED_RANDOM = 1,   /* numbers of all signs and many sizes; their sum is rounded */
    MIXED_BITS = 2      /* any bits, NaNs and -0 among them: of all-gather only */
} mixed_pattern;

/* One call as one rank sees it. */
typedef struct mixed_case {
    uint32_t op;    /* a ferry_mixed_op */
    uint32_t dtype; /* FERRY_F16, FERRY_BF16 or FERRY_F32 */
    uint32_t rank;
    uint32_t n_ranks;
    uint32_t local_size; /* ranks of a node */
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
    uint64_t count;  /* elements of the local piece */
    uint32_t stages; /* how often a sum may be rounded before it is complete */
    uint32_t seed;   /* other numbers for another one */
    mixed_pattern pattern;
} mixed_case;

/* What is wrong in one rank's result. */
typedef struct mixed_verdict {
    uint64_t n_wrong;
    uint64_t first; /* the first wrong element, */
    double got;     /* what it is, */
    double want;    /* and what it should be; of MIXED_BITS both are the bits */
} mixed_verdict;

/* Elements of this rank's input and of its output. */
uint64_t mixed_in_count(const mixed_case *c);
uint64_t mixed_out_count(const mixed_case *c);

uint32_t mixed_element_bytes(uint32_t dtype);

/* The rank among those that concatenate, of any rank of the world. */
uint32_t mixed_dp_rank(const mixed_case *c, uint32_t rank);

/* Writes this rank's input. */
void mixed_fill(const mixed_case *c, void *in);

/*
 * Fills an output with what is never right: NaN, and bits that hardly any input has.
 */
void mixed_poison(const mixed_case *c, void *out);

/*
 * Compares every element with the sum in double precision: of MIXED_INTEGERS it must be equal, of
 * MIXED_RANDOM within what rounding to the type at each stage and adding in single precision can
 * make, and of MIXED_BITS the same bits.
 */
mixed_verdict mixed_check(const mixed_case *c, const void *out);

/* A digest of an output: ranks whose results must be the same have the same. */
uint64_t mixed_digest(const mixed_case *c, const void *out);

/* The lowest rank whose result has the same bits as that of `rank`. */
uint32_t mixed_first_replica(const mixed_case *c, uint32_t rank);

#endif
