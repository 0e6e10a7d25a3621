/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_ROWS_H
#define FY_EXEC_ROWS_H

#include "base/cpu.h"
#include "exec/block.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A row that is to be copied; how long it is stands elsewhere. */
typedef struct fy_row {
    char *to;
    const char *from;
} fy_row;

/*
 * XXH3 adds up what its stripes of 64 bytes give within a block of 16, in any order, and scrambles
 * the sum at a block's end. So several rows can be hashed side by side: each adds to the blocks
 * that it has a part of, and the blocks are folded in their order.
 */
enum {
    FY_HASH_STRIPE = 64,
    FY_HASH_BLOCK_STRIPES = 16,
    FY_HASH_BLOCK = FY_HASH_STRIPE * FY_HASH_BLOCK_STRIPES,
    FY_STREAM_UNIT = 16,
    FY_APPEND_MOST = 64,
    /* The most bytes of a call to a kernel that hashes. */
    FY_HASH_MOST_BYTES = 65536
};

typedef struct fy_row_hash {
    _Alignas(64) uint64_t acc[8];  /* behind the last whole block */
    _Alignas(64) uint64_t open[8]; /* sum of the stripes of the block that is not yet whole */
    const unsigned char *secret;   /* that of XXH3 */
    uint64_t n_stripes;
} fy_row_hash;

/*
 * What an instruction set has: rows_<isa>.c. Rows of a call are of the same length. Copies go past
 * the cache, n_streams (as fy_cpu_streams says) rows side by side, without a fence; any alignment,
 * any length and any number are fine; lines that a row does not fill go through the cache. Rows
 * that are hashed are a multiple of FY_HASH_STRIPE long, come in the order of the hash, and are at
 * most FY_HASH_MOST_BYTES; a machine without vectors leaves those two out (NULL).
 *
 * stream copies the rows of a block one after the other, past the cache and without a fence. Where
 * they go, how far apart and how long they are is a multiple of FY_STREAM_UNIT; parts of a line
 * that nothing completes at once are right, but slow where rows have little else. What lies `ahead`
 * rows further on is asked for; 0: nothing.
 *
 * stream_run is for some of many rows of a line or more that go side by side. What is before the
 * first line that begins in them is left out, unless they are the first; and the line that they end
 * in is made whole with what the row behind them has, unless they are the last. What lies `ahead`
 * bytes behind each row is asked for; 0: nothing.
 *
 * join puts elements of 1, 2, 4 or 8 bytes side by side, past the cache and without a fence where
 * it streams, which is worth it for a few lines. It reads what is between the elements, too, but
 * nothing behind the last one. A machine without vectors leaves it out (NULL).
 *
 * append puts rows of up to FY_APPEND_MOST bytes, which do not overlap, side by side, and asks for
 * what comes next; past the cache and without a fence where it streams. It reads what is between
 * the rows, too, but nothing behind the last one. A machine without vectors leaves it out (NULL).
 */
typedef struct fy_rows_kernels {
    void (*copy)(const fy_row *rows, size_t n_rows, size_t row_bytes, unsigned n_streams);
    void (*copy_hash)(const fy_row *rows, size_t n_rows, size_t row_bytes, unsigned n_streams,
                      fy_row_hash *hash);
    void (*stream)(const fy_block *block, uint64_t ahead);
    void (*stream_run)(const fy_block *block, uint64_t ahead, bool is_first, bool is_last);
    void (*hash)(const fy_row *rows, size_t n_rows, size_t row_bytes, fy_row_hash *hash);
    void (*join)(const fy_block *block, bool streams);
    void (*append)(const fy_block *block, bool streams);
} fy_rows_kernels;

extern const fy_rows_kernels fy_rows_baseline;
extern const fy_rows_kernels fy_rows_avx2;
extern const fy_rows_kernels fy_rows_avx512;

/* Those of an instruction set, whatever FERRY_ISA says; the machine must have the set. */
const fy_rows_kernels *fy_rows_kernels_of(fy_isa isa);

#endif
