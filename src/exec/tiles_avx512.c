/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_TILES fy_tiles_avx512
#define VECTOR __m512i
#define LOAD(from) _mm512_loadu_si512((const void *)(from))
#define STORE(to, vector) _mm512_storeu_si512((void *)(to), vector)
#define STREAM(to, vector) _mm512_stream_si512((__m512i *)(void *)(to), vector)
#define QUARTER(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define WITH(v, from, lane) _mm512_inserti32x4(v, QUARTER(from), lane)
#define LANES(from, step)                                                                          \
    WITH(WITH(WITH(_mm512_castsi128_si512(QUARTER(from)), (from) + (step), 1),                     \
              (from) + 2 * (step), 2),                                                             \
         (from) + 3 * (step), 3)
#define LOW_8(a, b) _mm512_unpacklo_epi8(a, b)
#define LOW_16(a, b) _mm512_unpacklo_epi16(a, b)
#define LOW_32(a, b) _mm512_unpacklo_epi32(a, b)
#define LOW_64(a, b) _mm512_unpacklo_epi64(a, b)
#define HIGH_8(a, b) _mm512_unpackhi_epi8(a, b)
#define HIGH_16(a, b) _mm512_unpackhi_epi16(a, b)
#define HIGH_32(a, b) _mm512_unpackhi_epi32(a, b)
#define HIGH_64(a, b) _mm512_unpackhi_epi64(a, b)
#include "exec/tiles_body.h"
