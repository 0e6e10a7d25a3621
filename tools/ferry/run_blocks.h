/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TOOL_RUN_BLOCKS_H
#define FERRY_TOOL_RUN_BLOCKS_H

#include "run_parts.h"
#include "run_pattern.h"

#include <ferry/dtype.h>
#include <ferry/plan.h>

#include <stdint.h>

/*
 * What a plan makes of the blocks of a tensor, reckoned slowly and apart from the library: of all
 * elements of a block, which are those of the tensor's stream (run_pattern.h), or of the streams
 * of what it is made of (run_parts.h), its scale, and of that each code. As in run_cast.h an
 * element is its bits.
 */
typedef struct run_quantized {
    run_key key;        /* of the tensor of values */
    run_parted *parts;  /* NULL: these are its own stream */
    ferry_dtype values; /* its type */
    const ferry_conversion *format;
    uint64_t rows, columns; /* of one of its matrices: the last two dimensions */
    run_key given;          /* of codes of f4: of the tensor with the scales of its matrices */
} run_quantized;

/* shape: of the tensor of values, of at least two dimensions. */
run_quantized run_quantized_of(const char *values, ferry_dtype dtype,
                               const ferry_conversion *conversion, const uint64_t *shape,
                               uint32_t n_dims);

/* Values [first, first + n) of the tensor, into memory of so many bytes for each. */
void run_quantized_values(const run_quantized *q, char *memory, uint64_t first, uint64_t n,
                          uint64_t bytes);

/* Scales that were reckoned of late: a row of blocks is met once for each row of elements, so there
 * is room for the blocks of the widest tensor that was met, and for no fewer than these. */
enum { RUN_BLOCKS_KEPT = 1024 };

typedef struct run_block_scale {
    const ferry_conversion *format; /* NULL: nothing is kept here */
    uint64_t key, block;
    uint64_t bits;  /* as it is stored */
    double divisor; /* of elements */
    bool is_lost;   /* of f4: something in it is not finite, and all its codes are 0 */
} run_block_scale;

typedef struct run_blocks {
    run_block_scale *kept;
    uint64_t n_kept;
    run_block_scale last; /* without memory for more */
} run_blocks;

void run_blocks_free(run_blocks *blocks);

/* The code of an element of the tensor, of which bits are the value's. */
uint64_t run_blocks_code(run_blocks *blocks, const run_quantized *q, uint64_t element,
                         uint64_t bits);

/*
 * The other way: a code times the scale with a number, in the type that is wanted. scales: those
 * that a rank has.
 */
typedef struct run_scaled {
    const ferry_conversion *format;
    const char *scales;
    const char *matrix_scales; /* of f4; else NULL */
    ferry_dtype to;
} run_scaled;

/* Of f4 also times the scale of the matrix with a number. */
uint64_t run_scaled_value(const run_scaled *scaled, uint64_t scale, uint64_t matrix, uint64_t code);

/* The number of the scale of an element, where a rank has matrices of rows and columns and the
 * scales of all of their blocks. */
uint64_t run_scaled_number(const ferry_conversion *format, uint64_t rows, uint64_t columns,
                           uint64_t element);

/* The scale with a number: those of a matrix row by row, one matrix after the other. */
uint64_t run_blocks_scale(run_blocks *blocks, const run_quantized *q, uint64_t number);

#endif
