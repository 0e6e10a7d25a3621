/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_CONVERT_WORDS_H
#define FY_CONVERT_WORDS_H

#include "convert/convert.h"

#include <ferry/dtype.h>

/*
 * What users call the formats of blocks:
 *
 *     f8e4m3:RxC   f8e4m3, an f32 scale, largest / 448, for each block of R rows and C columns
 *     f8e5m2:RxC   the same for f8e5m2
 *     ...:pow2     behind one of these: scales are powers of two, in f32; none saturates
 *     ...:e8m0     the same powers, stored as f8e8m0
 *     mxfp8        f8e4m3 with an f8e8m0 for each 32 elements of a row
 *     nvfp4        f4 with an f8e4m3 for each 16 elements of a row, and an f32 for each matrix
 */

/* The most rows, or columns, of a block. */
enum { FY_MOST_BLOCK = 65536 };

/* The first `length` bytes of text, whole. The sentence of a failure begins with the text. */
ferry_status fy_format_parse(const char *text, size_t length, fy_block_format *format_out,
                             ferry_error *error);

/* Whether it has a scale for each matrix, beside those of the blocks. */
static inline bool fy_format_has_tensor_scale(const fy_block_format *format)
{
    return format->scale_kind == FERRY_F8E4M3;
}

/* The word of a format that fy_format_parse made, ended by a zero. */
enum { FY_FORMAT_TEXT_BYTES = 40 };
void fy_format_print(const fy_block_format *format, char text[FY_FORMAT_TEXT_BYTES]);

#endif
