/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_TILES_H
#define FY_EXEC_TILES_H

#include "base/cpu.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A plane of elements that changes its order: element (i, j) comes from `from` + i * from_pitch + j
 * elements and goes to `to` + j * to_pitch + i elements.
 */
typedef struct fy_plane {
    char *to;
    const char *from;
    uint64_t to_pitch, from_pitch;
    size_t n_i, n_j;
    const char
        *next; /* what is read after it, to be had in time: as many rows, as far apart; NULL */
} fy_plane;

/* What a plane may have at most: so many bytes of each row, and of each column. */
enum { FY_PLANE_ROW_BYTES = 512, FY_PLANE_BUFFER = 32 << 10, FY_N_TILE_ELEMENTS = 5 };

static inline size_t fy_plane_row_bytes(size_t element_bytes)
{
    return element_bytes == 1 ? FY_PLANE_ROW_BYTES / 2 : FY_PLANE_ROW_BYTES;
}
static inline size_t fy_plane_column_bytes(size_t element_bytes)
{
    return element_bytes <= 2 ? 128 : 256;
}

/*
 * What an instruction set has: tiles_<isa>.c, by the logarithm of an element's bytes, 1 to 16. Any
 * alignment and number are fine. `streams`: every column begins at a line's begin (of 64 bytes);
 * its whole lines go past the cache, without a fence.
 *
 * turn is for planes of any size whose rows are short: 256 x 9, say. Through the cache, and without
 * a buffer; what has rows of less than 16 bytes, or columns of less than 64, is right, but slow.
 */
typedef struct fy_tiles_kernels {
    void (*transpose[FY_N_TILE_ELEMENTS])(const fy_plane *plane, bool streams);
    void (*turn[FY_N_TILE_ELEMENTS])(const fy_plane *plane);
} fy_tiles_kernels;

extern const fy_tiles_kernels fy_tiles_baseline;
extern const fy_tiles_kernels fy_tiles_avx2;
extern const fy_tiles_kernels fy_tiles_avx512;

/* Those of an instruction set, whatever FERRY_ISA says; the machine must have the set. */
const fy_tiles_kernels *fy_tiles_kernels_of(fy_isa isa);

#endif
