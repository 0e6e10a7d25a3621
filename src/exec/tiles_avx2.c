/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#define FY_TILES fy_tiles_avx2
#define VECTOR __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define STORE(to, vector) _mm256_storeu_si256((__m256i *)(void *)(to), vector)
#define STREAM(to, vector) _mm256_stream_si256((__m256i *)(void *)(to), vector)
#define HALF(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define LANES(from, step)                                                                          \
    _mm256_inserti128_si256(_mm256_castsi128_si256(HALF(from)), HALF((from) + (step)), 1)
#define LOW_8(a, b) _mm256_unpacklo_epi8(a, b)
#define LOW_16(a, b) _mm256_unpacklo_epi16(a, b)
#define LOW_32(a, b) _mm256_unpacklo_epi32(a, b)
#define LOW_64(a, b) _mm256_unpacklo_epi64(a, b)
#define HIGH_8(a, b) _mm256_unpackhi_epi8(a, b)
#define HIGH_16(a, b) _mm256_unpackhi_epi16(a, b)
#define HIGH_32(a, b) _mm256_unpackhi_epi32(a, b)
#define HIGH_64(a, b) _mm256_unpackhi_epi64(a, b)
#include "exec/tiles_body.h"
