/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_MIXED_PEER_SUM_H
#define FERRY_BENCH_MIXED_PEER_SUM_H

#include "mixed_cases.h"

/*
 * The sums that a careful user of MPI writes for types that it does not know, and for pieces that
 * were gathered: fp32 inside, rounded to the nearest once. Built for this CPU (-march=native); uses
 * AVX-512 with its bf16 and fp16 instructions, AVX-512, or what the compiler makes of plain C.
 */

/* to[i] += from[i]: an MPI operation. */
void mixed_peer_add(enum mixed_dtype dtype, const void *from, void *to, size_t n);

/* to[i] = the sum over `rows` of from[row * n + i]. */
void mixed_peer_sum(enum mixed_dtype dtype, const void *from, size_t rows, size_t n, void *to);

/* What it was built for, in words. */
const char *mixed_peer_kernel(enum mixed_dtype dtype);

#endif
