/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_BENCH_REFIT_CASES_H
#define FERRY_BENCH_REFIT_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Who sends which part of what to whom: the same lists for bench_refit, which moves them with
 * ferry, and for mpi_refit. A rank has one piece of memory for all that it holds before, and one
 * for all that it holds afterwards.
 *
 *     matrix:S:D[:ROWS:COLUMNS]    a bf16 matrix, 16384 x 32768 (1 GiB) unless it says otherwise:
 *                                  row shards on ranks 0 .. S-1, column shards on 0 .. D-1
 *     layers:tp8-tp4dp2[:SCALE]    two layers, embedding and head of Llama 2 70B in bf16, 4.2 GiB;
 *     layers:tp4-tp2pp2[:SCALE]    rows and columns are divided by SCALE. The first keeps its eight
 *                                  ranks, the second moves from ranks 0-3 to 4-7
 *     send:ROWS:COLUMNS           a matrix from rank 0 to rank 1, as it is
 *     small:N                      N tensors of 1 to 16 KiB, each from one of two ranks to the
 *                                  other, where they lie in another order
 */

enum { REFIT_ELEMENT_BYTES = 2 };

/* A local shard of rows x columns at an offset of the rank's memory, and where in it a box begins.
 */
typedef struct refit_place {
    uint64_t offset;
    uint64_t rows, columns;
    uint64_t row, column;
} refit_place;

typedef struct refit_move {
    int from, to;
    refit_place source, destination;
    uint64_t rows, columns; /* of the box */
} refit_move;

typedef struct refit_case {
    int n_ranks;
    uint64_t *source_bytes; /* of each rank's memory */
    uint64_t *destination_bytes;
    refit_move *moves;
    size_t n_moves;
    uint64_t bytes; /* moved, also from a rank to itself */
} refit_case;

/* NULL, with a sentence on stderr, where the text is no case or memory is short. */
refit_case *refit_case_make(const char *text);
void refit_case_free(refit_case *c);

/* Where row r of the box begins, in bytes of the rank's memory. */
static inline uint64_t refit_row_at(const refit_place *place, uint64_t r)
{
    return place->offset +
           ((place->row + r) * place->columns + place->column) * REFIT_ELEMENT_BYTES;
}

/* Bytes that say of which rank and place they are. */
void refit_fill(const refit_case *c, int rank, void *source);
/* How many rows of the moves to this rank are wrong. */
uint64_t refit_count_wrong(const refit_case *c, int rank, const void *destination);

#endif
