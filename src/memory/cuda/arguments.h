/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_MEMORY_CUDA_ARGUMENTS_H
#define FY_MEMORY_CUDA_ARGUMENTS_H

#include "exec/lanes.h"

#include <stdint.h>

/*
 * What the kernels of kernels.h are given: one struct each, the same for devices, for their twin
 * and for who launches them.
 */
enum {
    FY_CUDA_THREADS = 256, /* of every block */
    FY_CUDA_DEEP = 4,      /* accesses of a thread that are under way at once */
    FY_CUDA_LANES = 32,    /* threads that share a piece of a table */
    FY_CUDA_PAIR = 2,      /* and what each of them has under way */
    FY_CUDA_WINDOW = 16,   /* bytes of a window of fy_cuda_copy_rows */
    FY_CUDA_MOST_DIMS = 8,
    FY_CUDA_MOST_SOURCES = 64,   /* of a sum */
    FY_CUDA_MOST_UNITS = 1 << 30 /* of a launch, of a run and of a dim: see divided() */
};

/* An unsigned division by a constant: of numbers below 2^31. */
typedef struct fy_cuda_divisor {
    uint32_t value, multiplier, shift;
} fy_cuda_divisor;

typedef struct fy_cuda_dim {
    fy_cuda_divisor length; /* of the outermost dim not used */
    uint32_t start;         /* the index of the launch's first run */
    uint64_t stride;        /* bytes */
} fy_cuda_dim;

/*
 * One side of a copy: an area, cut into units, as exec/area.h has it, from the unit on with which
 * the launch begins. Where it is flat, n_dims is 0 and the run has no end.
 */
typedef struct fy_cuda_side {
    uint64_t base;       /* address of the run's begin; of what is flat, of the first unit */
    fy_cuda_divisor run; /* in units */
    uint32_t start;      /* the launch's first unit in its run */
    uint32_t unit_bytes;
    uint32_t n_dims;
    fy_cuda_dim dims[FY_CUDA_MOST_DIMS]; /* outermost first */
} fy_cuda_side;

/* fy_cuda_copy_16, _8, _4, _2, _1: units of so many bytes. */
typedef struct fy_cuda_copy {
    fy_cuda_side to, from;
    uint32_t n_units;
    uint32_t spare;
} fy_cuda_copy;

/*
 * fy_cuda_copy_rows: rows that begin anywhere, of row_bytes each on both sides: units of the sides
 * are rows. A row is as many windows as one that begins badly has, and each of these is a unit of
 * the launch. Loads reach beyond what is copied, but not beyond [from_begin, from_end).
 */
typedef struct fy_cuda_rows {
    fy_cuda_side to, from;
    uint64_t from_begin, from_end;
    fy_cuda_divisor windows; /* of a row */
    uint32_t row_bytes;
    uint32_t n_units;
    uint32_t spare;
} fy_cuda_rows;

/*
 * fy_cuda_copy_table: many small boxes, each a few rows, by 32 threads each. The table is memory
 * that the device can read.
 */
typedef struct fy_cuda_piece {
    uint64_t to, from;
    uint64_t to_pitch, from_pitch;
    uint32_t row_units, multiplier; /* row_units below 2^16, and n_units below 2^20 */
    uint32_t n_units;
    uint16_t shift, unit_bytes;
} fy_cuda_piece;

typedef struct fy_cuda_table {
    uint64_t pieces;
    uint32_t n_pieces;
    uint32_t spare;
} fy_cuda_table;

/* Types of numbers, in casts and in sums. */
typedef enum fy_cuda_number {
    FY_CUDA_F32 = 0,
    FY_CUDA_F16 = 1,
    FY_CUDA_BF16 = 2,
    FY_CUDA_F8E4M3 = 3,
    FY_CUDA_F8E5M2 = 4
} fy_cuda_number;

/* What a cast does beside the change of type. */
enum { FY_CUDA_SATURATES = 1, FY_CUDA_MULTIPLIES = 2, FY_CUDA_ADDS = 4 };

/* fy_cuda_cast_8, _4 (to f32) and _1: a unit is so many numbers; sides of units of different sizes.
 */
typedef struct fy_cuda_cast {
    fy_cuda_side to, from;
    uint32_t n_units;
    uint32_t to_type, from_type; /* fy_cuda_number */
    uint32_t changes;            /* FY_CUDA_SATURATES, ... */
    float scale, add;
} fy_cuda_cast;

/* fy_cuda_sum_8 and _1: n_units of so many numbers, as exec/sum.h. */
typedef struct fy_cuda_sum {
    uint64_t sources[FY_CUDA_MOST_SOURCES];
    uint64_t targets[2]; /* the second may be 0 */
    uint64_t n_units;
    uint32_t n_sources;
    uint32_t source_type, target_type; /* fy_cuda_number */
    uint32_t spare;
} fy_cuda_sum;

/*
 * Kernels that meet: X(name, its argument). Their blocks wait for those of other launches, so all
 * of a launch must be there at once, and those of the others too.
 */
#define FY_CUDA_MEETING_KERNELS(X) X(fy_cuda_lanes, fy_lanes_call)

/* The others: blocks in any order. */
#define FY_CUDA_PLAIN_KERNELS(X)                                                                   \
    X(fy_cuda_copy_16, fy_cuda_copy)                                                               \
    X(fy_cuda_copy_8, fy_cuda_copy)                                                                \
    X(fy_cuda_copy_4, fy_cuda_copy)                                                                \
    X(fy_cuda_copy_2, fy_cuda_copy)                                                                \
    X(fy_cuda_copy_1, fy_cuda_copy)                                                                \
    X(fy_cuda_copy_rows, fy_cuda_rows)                                                             \
    X(fy_cuda_copy_table, fy_cuda_table)                                                           \
    X(fy_cuda_cast_8, fy_cuda_cast)                                                                \
    X(fy_cuda_cast_4, fy_cuda_cast)                                                                \
    X(fy_cuda_cast_1, fy_cuda_cast)                                                                \
    X(fy_cuda_sum_8, fy_cuda_sum)                                                                  \
    X(fy_cuda_sum_1, fy_cuda_sum)

#define FY_CUDA_KERNELS(X) FY_CUDA_PLAIN_KERNELS(X) FY_CUDA_MEETING_KERNELS(X)

#endif
