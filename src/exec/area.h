/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_EXEC_AREA_H
#define FY_EXEC_AREA_H

#include "base/status.h"

#include <ferry/plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * An n-dimensional strided area of memory, without its address: n_runs runs of run_bytes each, the
 * i-th of which begins at offset + sum of index[d] * stride[d] bytes. Dimensions are coalesced, so
 * that runs are as long and as few as they can be. Byte k of an area is the k-th in row-major
 * order.
 */
typedef struct fy_area {
    uint64_t offset;
    uint64_t run_bytes;
    uint64_t bytes;
    uint32_t n_dims; /* of the runs; 0: one run */
    uint64_t length[FERRY_MAX_DIMS];
    uint64_t stride[FERRY_MAX_DIMS];
} fy_area;

/*
 * Lengths in elements, strides in bytes, slowest dimension first; zero bytes are fine (an empty
 * area). FERRY_ERR_INVALID_INPUT where two elements share a byte, or where a number overflows.
 */
ferry_status fy_area_make(uint64_t offset, uint64_t element_bytes, uint32_t n_dims,
                          const uint64_t *length, const uint64_t *stride, fy_area *area_out,
                          ferry_error *error);

/* Of what is known to be fine, or is only read: strides of 0 say the same bytes again. */
fy_area fy_area_of(uint64_t offset, uint64_t element_bytes, uint32_t n_dims, const uint64_t *length,
                   const uint64_t *stride);

/*
 * Whether runs of the same bytes can be walked in order of addresses: with dimensions sorted by
 * their strides, each is at least the extent of what lies within. Areas that a plan gives mostly
 * are; boxes of which one lies between the elements of another's rows need not be.
 */
bool fy_area_is_nested(const fy_area *area);

/* bytes at offset. */
fy_area fy_area_flat(uint64_t offset, uint64_t bytes);

/* First byte and end of what an area touches; 0, 0 of an empty one. */
void fy_area_hull(const fy_area *area, uint64_t *begin_out, uint64_t *end_out);
/*
 * The same of bytes [first, first + bytes) of it alone, which may lie in memory that the others do
 * not: of a part of one run just these, else whole runs.
 */
void fy_area_hull_of(const fy_area *area, uint64_t first, uint64_t bytes, uint64_t *begin_out,
                     uint64_t *end_out);

/*
 * What tells one set of bytes from another, whichever way it is cut into areas: sums of areas that
 * lie apart are added to each other by fy_area_sum_of_both. Two sets have the same by chance only,
 * one time in about 2^61.
 */
uint64_t fy_area_sum(const fy_area *area);
uint64_t fy_area_sum_of_both(uint64_t a, uint64_t b);

typedef struct fy_area_walk {
    const fy_area *area;
    uint64_t left;   /* bytes that are still to come */
    uint64_t at;     /* offset of the next run */
    uint64_t n_here; /* what is left of the run at `at` */
    uint64_t index[FERRY_MAX_DIMS];
} fy_area_walk;

fy_area_walk fy_area_walk_of(const fy_area *area, uint64_t first, uint64_t bytes);
/* The next run: false behind the last. */
bool fy_area_next(fy_area_walk *walk, uint64_t *offset_out, uint64_t *bytes_out);

/*
 * Hands over where bytes [first, first + bytes) lie, in pieces that are as long and as few as their
 * places allow: not in the order of the bytes where memory has another one. Anything but FERRY_OK
 * ends it.
 */
typedef ferry_status (*fy_span_fn)(void *context, uint64_t offset, uint64_t bytes,
                                   ferry_error *error);
ferry_status fy_area_visit_spans(const fy_area *area, uint64_t first, uint64_t bytes,
                                 fy_span_fn visit, void *context, ferry_error *error);

/* Whether memory has the dimensions of an area in another order than its bytes have. */
bool fy_area_is_permuted(const fy_area *area);

/*
 * Copies bytes [first, first + bytes) of `from` to the same bytes of `to`, whatever the shapes of
 * both, which have equally many bytes and do not overlap. Large copies go past the cache, several
 * rows side by side, and are not fenced: fy_copy_fence() must follow before a signal.
 */
void fy_area_copy(const fy_area *to, void *to_base, const fy_area *from, const void *from_base,
                  uint64_t first, uint64_t bytes);

/* The same with everything left in the cache, where it is read again at once. */
void fy_area_copy_cached(const fy_area *to, void *to_base, const fy_area *from,
                         const void *from_base, uint64_t first, uint64_t bytes);

/*
 * The same, but what is equal already is only read, in pieces of a page where rows are long. Says
 * how many bytes were written; they are in the cache, and there is no need of a fence.
 */
uint64_t fy_area_update(const fy_area *to, void *to_base, const fy_area *from,
                        const void *from_base, uint64_t first, uint64_t bytes);

/* Into and out of contiguous memory: byte first of the area is the first byte there. */
void fy_area_unpack(const fy_area *to, void *to_base, const void *from, uint64_t first,
                    uint64_t bytes);
/* What this one writes is left in the cache. */
void fy_area_pack_cached(void *to, const fy_area *from, const void *from_base, uint64_t first,
                         uint64_t bytes);

/*
 * XXH3 (64 bits) of bytes [first, first + bytes) in row-major order: the same number for the same
 * bytes in any shape.
 */
uint64_t fy_area_hash(const fy_area *area, const void *base, uint64_t first, uint64_t bytes);
/* The same of the source, computed on the way: what is hashed has just been loaded to be copied. */
uint64_t fy_area_copy_hash(const fy_area *to, void *to_base, const fy_area *from,
                           const void *from_base, uint64_t first, uint64_t bytes);
uint64_t fy_area_pack_hash(void *to, const fy_area *from, const void *from_base, uint64_t first,
                           uint64_t bytes);
/* Of what is read from `from`. */
uint64_t fy_area_unpack_hash(const fy_area *to, void *to_base, const void *from, uint64_t first,
                             uint64_t bytes);

#endif
