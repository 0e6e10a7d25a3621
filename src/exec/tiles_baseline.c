/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)

#define FY_TILES fy_tiles_baseline
#define VECTOR __m128i
#define LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define STORE(to, vector) _mm_storeu_si128((__m128i *)(void *)(to), vector)
#define STREAM(to, vector) _mm_stream_si128((__m128i *)(void *)(to), vector)
#define LANES(from, step) ((void)(step), LOAD(from))
#define LOW_8(a, b) _mm_unpacklo_epi8(a, b)
#define LOW_16(a, b) _mm_unpacklo_epi16(a, b)
#define LOW_32(a, b) _mm_unpacklo_epi32(a, b)
#define LOW_64(a, b) _mm_unpacklo_epi64(a, b)
#define HIGH_8(a, b) _mm_unpackhi_epi8(a, b)
#define HIGH_16(a, b) _mm_unpackhi_epi16(a, b)
#define HIGH_32(a, b) _mm_unpackhi_epi32(a, b)
#define HIGH_64(a, b) _mm_unpackhi_epi64(a, b)
#include "exec/tiles_body.h"

#else

#include "exec/tiles.h"

#include <string.h>

/* Line by line of the destination's, as C has it: what is read stays in the cache for its
 * neighbours. */
static inline __attribute__((always_inline)) void transpose(const fy_plane *p, size_t element)
{
    for (size_t j = 0; j < p->n_j; j++) {
        for (size_t i = 0; i < p->n_i; i++) {
            memcpy(p->to + j * p->to_pitch + i * element, p->from + i * p->from_pitch + j * element,
                   element);
        }
    }
}

#define KERNEL(bytes)                                                                              \
    static void transpose_##bytes(const fy_plane *plane, bool streams)                             \
    {                                                                                              \
        (void)streams;                                                                             \
        transpose(plane, bytes);                                                                   \
    }                                                                                              \
    static void turn_##bytes(const fy_plane *plane)                                                \
    {                                                                                              \
        transpose(plane, bytes);                                                                   \
    }
KERNEL(1)
KERNEL(2)
KERNEL(4)
KERNEL(8)
KERNEL(16)

/* Without streams nothing is gained by whole lines: each plane has what is its own. */
#define APART(bytes)                                                                               \
    static void transpose_short_##bytes(const fy_plane *plane)                                     \
    {                                                                                              \
        transpose(plane, bytes);                                                                   \
    }                                                                                              \
    static void transpose_apart_##bytes(const fy_plane *plane, bool is_first, bool is_last)        \
    {                                                                                              \
        (void)is_first;                                                                            \
        (void)is_last;                                                                             \
        transpose(plane, bytes);                                                                   \
    }
APART(1)
APART(2)
APART(4)
APART(8)

const fy_tiles_kernels fy_tiles_baseline = {
    .transpose = {transpose_1, transpose_2, transpose_4, transpose_8, transpose_16},
    .transpose_apart = {transpose_apart_1, transpose_apart_2, transpose_apart_4, transpose_apart_8},
    .transpose_short = {transpose_short_1, transpose_short_2, transpose_short_4, transpose_short_8},
    .turn = {turn_1, turn_2, turn_4, turn_8, turn_16}};

#endif
