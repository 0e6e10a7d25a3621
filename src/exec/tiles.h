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
/* The same of rows of planes whose columns lie apart from lines, beside as many as make a line. */
static inline size_t fy_plane_apart_row_bytes(size_t element_bytes)
{
    return fy_plane_row_bytes(element_bytes) / 2;
}
/* And of those whose short columns lie side by side: so many elements, and bytes, of a column. */
enum {
    FY_PLANE_MOST_SHORT = 256,
    FY_PLANE_MOST_SHORT_BYTES = 512,
    FY_PLANE_SHORT_BUFFER = 20 << 10
};
static inline size_t fy_plane_short_row_bytes(size_t element_bytes, size_t n_i)
{
    enum { LINE_BYTES = 64 };
    size_t n_tile = LINE_BYTES / element_bytes, n_rows = (n_i + n_tile - 1) / n_tile * n_tile;
    size_t most = FY_PLANE_SHORT_BUFFER / n_rows / LINE_BYTES * LINE_BYTES;
    size_t row_bytes = fy_plane_row_bytes(element_bytes);
    return most < row_bytes ? most : row_bytes;
}

/*
 * What an instruction set has: tiles_<isa>.c, by the logarithm of an element's bytes, 1 to 16. Any
 * alignment and number are fine. `streams`: every column begins at a line's begin (of 64 bytes);
 * its whole lines go past the cache, without a fence.
 *
 * transpose_apart is for elements of up to 8 bytes, and columns that begin anywhere, but at
 * multiples of the element: only their whole lines go past the cache. What is before the first line
 * that begins in a column is left out, unless the plane is the first; and the line that it ends in
 * is made whole with what the rows behind the plane have, of which there are enough, unless it is
 * the last. So one that is not the last has a line's elements in a column at least, and the last
 * one may have so many more than others that one less makes a line.
 *
 * transpose_short is for such elements and short whole columns that lie side by side, and leave as
 * one: in rows of fy_plane_short_row_bytes at most.
 *
 * turn is for planes of any size whose rows are short: 256 x 9, say. Through the cache, and without
 * a buffer; what has rows of less than 16 bytes, or columns of less than 64, is right, but slow.
 */
typedef struct fy_tiles_kernels {
    void (*transpose[FY_N_TILE_ELEMENTS])(const fy_plane *plane, bool streams);
    void (*transpose_apart[FY_N_TILE_ELEMENTS - 1])(const fy_plane *plane, bool is_first,
                                                    bool is_last);
    void (*transpose_short[FY_N_TILE_ELEMENTS - 1])(const fy_plane *plane);
    void (*turn[FY_N_TILE_ELEMENTS])(const fy_plane *plane);
} fy_tiles_kernels;

extern const fy_tiles_kernels fy_tiles_baseline;
extern const fy_tiles_kernels fy_tiles_avx2;
extern const fy_tiles_kernels fy_tiles_avx512;

/* Those of an instruction set, whatever FERRY_ISA says; the machine must have the set. */
const fy_tiles_kernels *fy_tiles_kernels_of(fy_isa isa);

#endif
