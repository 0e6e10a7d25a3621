/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_MIXED_CASES_H
#define FERRY_BENCH_MIXED_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A mixed operation on some ranks, and the values that prove its result: the same for mixed_ferry,
 * which runs it with ferry, and for mpi_mixed. Knows neither of them.
 *
 * Ranks are numbered tp_rank + dp_rank * tp. A piece is what one rank has of one chunk: the input,
 * and for reduce-scatter a dp-th of it. Inputs are small whole numbers, so that every sum of them
 * is exact in every type and in any order.
 */
enum mixed_op {
    MIXED_ALL_REDUCE,
    MIXED_ALL_GATHER,
    MIXED_REDUCE_SCATTER,
    MIXED_ALL_REDUCE_ALL_GATHER,
    MIXED_REDUCE_SCATTER_ALL_REDUCE,
    MIXED_N_OPS
};

enum mixed_dtype { MIXED_F32, MIXED_BF16, MIXED_F16, MIXED_N_DTYPES };

enum { MIXED_MAX_RANKS = 64 };

typedef struct mixed_case {
    enum mixed_op op;
    enum mixed_dtype dtype;
    int rank, n_ranks;
    int tp, dp;
    int tp_rank, dp_rank;
} mixed_case;

extern const char *const mixed_op_names[MIXED_N_OPS];
extern const char *const mixed_dtype_names[MIXED_N_DTYPES];

/* False where a name is none, or tp x dp is not n_ranks. */
bool mixed_case_make(const char *op, const char *dtype, int tp, int dp, int rank, int n_ranks,
                     mixed_case *out);

size_t mixed_element_bytes(enum mixed_dtype dtype);

/* How many pieces the input and the output have. */
size_t mixed_in_pieces(const mixed_case *c);
size_t mixed_out_pieces(const mixed_case *c);

/* Writes this rank's input; pieces of so many elements. */
void mixed_fill(const mixed_case *c, size_t piece, void *in);

/* How many elements of this rank's output are not what they must be. */
uint64_t mixed_count_wrong(const mixed_case *c, size_t piece, const void *out);

#endif
