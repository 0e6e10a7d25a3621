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
    FY_CUDA_STRIP = 16,          /* rows of a block that one thread looks at */
    FY_CUDA_HASH_BLOCK = 1024,   /* bytes of XXH3 between two scrambles */
    FY_CUDA_HASH_LANES = 8,      /* numbers of a digest that is under way */
    FY_CUDA_HASH_SECRETS = 23,   /* words of the secret that a block's stripes meet */
    FY_CUDA_MOST_DIGESTS = 32,   /* of a launch */
    FY_CUDA_DIGESTED = 4096,     /* bytes of what fy_cuda_hash_each makes a digest of */
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
enum {
    FY_CUDA_SATURATES = 1,
    FY_CUDA_MULTIPLIES = 2,
    FY_CUDA_ADDS = 4,
    FY_CUDA_CODES = 8,      /* saturates as codes of blocks do */
    FY_CUDA_PLAIN_NANS = 16 /* see fy_cast */
};

/*
 * fy_cuda_cast_8, _4 (to f32) and _1: a unit is so many numbers; sides of units of different sizes.
 * fy_cuda_cast_f4_8 and _2: the same of codes of half a byte, of which from_type says nothing.
 */
typedef struct fy_cuda_cast {
    fy_cuda_side to, from;
    uint32_t n_units;
    uint32_t to_type, from_type; /* fy_cuda_number */
    uint32_t changes;            /* FY_CUDA_SATURATES, ... */
    float scale, add;
} fy_cuda_cast;

/* Scales of one side of a cast, as fy_cast_scales has them, but in memory that the device reads. */
typedef struct fy_cuda_scales {
    uint64_t numbers; /* the address that number 0 would have; 0: there are no scales */
    uint64_t pitch, step, plane;
    uint64_t of_matrices; /* the same of those of matrices, by which numbers in f8e4m3 are
                             multiplied; 0: they are no such */
    uint32_t are_powers;  /* f8e8m0, else f32 */
    uint32_t n_plane_dims;
    fy_cuda_divisor block[2]; /* of value 0: one scale for all */
    uint32_t origin[2];
    fy_cuda_divisor plane_length[FY_CUDA_MOST_DIMS];
    uint64_t plane_stride[FY_CUDA_MOST_DIMS], matrix_stride[FY_CUDA_MOST_DIMS];
} fy_cuda_scales;

/* fy_cuda_scaled_8 and _1: a cast whose numbers have scales; the eight of a unit have the same. */
typedef struct fy_cuda_scaled {
    fy_cuda_cast cast;
    fy_cuda_scales to_scales, from_scales;
    fy_cuda_divisor n_rows, n_columns; /* of a matrix */
    uint32_t plane, row, column;       /* of the launch's first number */
    uint32_t spare[3];
} fy_cuda_scaled;

/*
 * fy_cuda_largest_8 and _1: the largest finite magnitudes of blocks, as bits of f32, in words that
 * are 0 before. A unit is so many numbers side by side, of some rows of one block.
 */
typedef struct fy_cuda_largest {
    uint64_t from, pitch; /* of the first number; bytes from a row to the next */
    uint64_t to;          /* a word for each block, row by row */
    fy_cuda_divisor across, strips, block_columns; /* units of a row; strips of rows of a block */
    uint32_t block_rows, n_rows, n_blocks;         /* n_blocks: beside each other */
    uint32_t type;                                 /* fy_cuda_number */
    uint32_t n_units;
    uint32_t spare;
} fy_cuda_largest;

/*
 * fy_cuda_nvfp4: codes of half a byte and their scales, in f8e4m3, of a matrix in blocks of 16
 * numbers of a row. A unit is a block; the last one of a row may be shorter.
 */
typedef struct fy_cuda_halves {
    uint64_t from, codes, scales;
    uint64_t pitch, code_pitch; /* bytes from a row to the next */
    fy_cuda_divisor across;     /* blocks of a row */
    uint32_t n_columns, type;   /* fy_cuda_number */
    uint32_t is_wide;           /* numbers lie at multiples of 16 bytes, and blocks are whole */
    float of_matrix;            /* by which scales of blocks are multiplied */
    uint32_t n_units;
} fy_cuda_halves;

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
 * fy_cuda_hash_sums: what each block of XXH3 adds to a digest, whatever came before it. Blocks lie
 * side by side from a multiple of 16 on, and so do their sums, FY_CUDA_HASH_LANES of 64 bits each.
 * A unit of the launch has two neighbours of these.
 */
typedef struct fy_cuda_hash {
    uint64_t from, sums;
    uint64_t secret[FY_CUDA_HASH_SECRETS];
    uint32_t n_units;
    uint32_t spare;
} fy_cuda_hash;

/* A digest that goes on over n_blocks, whose sums lie side by side. */
typedef struct fy_cuda_digest {
    uint64_t sums, numbers;    /* addresses; numbers are what it has come to, and comes to */
    uint32_t n_blocks, begins; /* begins: it has come to nothing yet */
} fy_cuda_digest;

/* fy_cuda_hash_chain: the one thing that is in order, a number by one thread. */
typedef struct fy_cuda_chain {
    fy_cuda_digest digests[FY_CUDA_MOST_DIGESTS];
    uint64_t begin[FY_CUDA_HASH_LANES];  /* what numbers are of no bytes */
    uint64_t secret[FY_CUDA_HASH_LANES]; /* of a scramble, and by what that multiplies */
    uint64_t factor;
    uint32_t n_digests;
    uint32_t spare;
} fy_cuda_chain;

/*
 * fy_cuda_hash_each: what XXH3 has come to behind each FY_CUDA_DIGESTED bytes, which lie side by
 * side from a multiple of 16 on, as FY_CUDA_HASH_LANES numbers of 64 bits, side by side too. A unit
 * of the launch has two neighbours of these.
 */
typedef struct fy_cuda_each {
    uint64_t from, numbers;
    uint64_t begin[FY_CUDA_HASH_LANES];    /* what numbers are of no bytes */
    uint64_t secret[FY_CUDA_HASH_SECRETS]; /* that a block's stripes meet, */
    uint64_t scramble[FY_CUDA_HASH_LANES]; /* that meets numbers behind a block, */
    uint64_t last[FY_CUDA_HASH_LANES];     /* and that meets the last stripe of all */
    uint64_t factor;
    uint32_t n_units;
    uint32_t spare;
} fy_cuda_each;

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
    X(fy_cuda_cast_f4_8, fy_cuda_cast)                                                             \
    X(fy_cuda_cast_f4_2, fy_cuda_cast)                                                             \
    X(fy_cuda_scaled_8, fy_cuda_scaled)                                                            \
    X(fy_cuda_scaled_1, fy_cuda_scaled)                                                            \
    X(fy_cuda_largest_8, fy_cuda_largest)                                                          \
    X(fy_cuda_largest_1, fy_cuda_largest)                                                          \
    X(fy_cuda_nvfp4, fy_cuda_halves)                                                               \
    X(fy_cuda_sum_8, fy_cuda_sum)                                                                  \
    X(fy_cuda_sum_1, fy_cuda_sum)                                                                  \
    X(fy_cuda_hash_sums, fy_cuda_hash)                                                             \
    X(fy_cuda_hash_chain, fy_cuda_chain)                                                           \
    X(fy_cuda_hash_each, fy_cuda_each)

#define FY_CUDA_KERNELS(X) FY_CUDA_PLAIN_KERNELS(X) FY_CUDA_MEETING_KERNELS(X)

#endif
