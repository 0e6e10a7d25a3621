/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_PACK_H
#define FERRY_PACK_H

#include <ferry/box.h>
#include <ferry/export.h>
#include <ferry/queue.h>
#include <ferry/status.h>

#include <stddef.h>
#include <stdint.h>

FERRY_BEGIN_DECLS

/*
 * The scales of one side of a cast, where real values are what is stored times the scale: a cast to
 * that side divides by it, one from it multiplies, in f32. The last two dims of the box are
 * matrices of blocks, row-major, those of one matrix behind the other; a box of one dim is a row.
 * Fixed size.
 */
typedef struct ferry_scales {
    const float *values; /* NULL: none */
    uint64_t n_values;   /* that may be read */
    uint64_t block_rows; /* of one block; both 0: one scale for all */
    uint64_t block_columns;
    uint64_t first_row; /* of the box in the tensor that the blocks are of */
    uint64_t first_column;
    uint64_t pitch; /* scales from a row of blocks to the next; default: as the box needs */
    uint64_t plane; /* and from one matrix to the next */
} ferry_scales;

/* Zero means the default. */
typedef struct ferry_copy_options {
    size_t struct_size;
    uint32_t n_threads; /* default 1: the caller's. Others are started and ended by the call */
    uint32_t from_kind; /* ferry_dtype_kind of both sides, to cast; both 0: bytes as they are */
    uint32_t to_kind;
    ferry_scales from_scales; /* of an f8 */
    ferry_scales to_scales;   /* of an f8 */
    uint64_t *hash_out;       /* (optional) XXH3, 64 bits, of the bytes in row-major order, computed
                                 as they pass: by one thread, and not of a cast */
} ferry_copy_options;

#define FERRY_COPY_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(ferry_copy_options), 0, 0, 0, {NULL, 0, 0, 0, 0, 0, 0, 0},                          \
            {NULL, 0, 0, 0, 0, 0, 0, 0}, NULL                                                      \
    }

/*
 * Copies a box to another one in this process's memory, in row-major order, whatever the shapes of
 * both: they have equally many bytes, or elements if it casts, and share none. Other threads see
 * the bytes behind a release store of this one. Boxes beyond the caches go past them.
 *
 * Casts: f32, f16, bf16, f8e4m3 and f8e5m2 to one another, and f64 to f32. They round to nearest,
 * ties to even. f16 and bf16 overflow to infinity; f8 to their largest number, as does infinity in
 * f8e4m3, which has none. NaN stays NaN. Scales by block need boxes of the same lengths, and tell
 * them by the dims of `from`.
 *
 * Either side may be memory of a device; between two devices that do not reach each other it goes
 * through the host. On a queue of a device the call returns at once; the boxes, which are that
 * device's or the host's, and what the options point to must stay until it is done.
 *
 * FERRY_ERR_INVALID_INPUT names what does not fit; FERRY_ERR_UNSUPPORTED a cast that there is not.
 * options may be NULL. After an error nothing was written.
 */
FERRY_API ferry_status ferry_box_copy(const ferry_box *to, const ferry_box *from,
                                      const ferry_copy_options *options, ferry_queue *queue,
                                      ferry_error *error);

FERRY_END_DECLS

#endif
