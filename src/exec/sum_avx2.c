/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/sum_isa.h"

#include <immintrin.h>
#include <string.h>

#define FY_SUM_KERNEL fy_sum_avx2
#define VECTOR __m256
#define ADD(a, b) _mm256_add_ps(a, b)
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE __m256i load_bits(const char *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static ALWAYS_INLINE __m128i load_half(const char *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

static ALWAYS_INLINE __m256 load_f32(const char *from)
{
    return _mm256_castsi256_ps(load_bits(from));
}

static ALWAYS_INLINE __m256 load_f16(const char *from)
{
    return _mm256_cvtph_ps(load_half(from));
}

static ALWAYS_INLINE __m256 load_bf16(const char *from)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(from)), 16));
}

static ALWAYS_INLINE void split_bf16(const char *from, __m256 *even_out, __m256 *odd_out)
{
    __m256i bits = load_bits(from);
    *even_out = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    *odd_out = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)));
}

static ALWAYS_INLINE __m256 with_one_nan(__m256 x)
{
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* Rounded to a bf16 in the upper half; what the lower half holds then is of no use. */
static ALWAYS_INLINE __m256i round_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

static ALWAYS_INLINE __m256i join_f16(__m256 a, __m256 b)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

static ALWAYS_INLINE __m256i join_bf16(__m256 a, __m256 b)
{
    __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(round_bf16(a), 16),
                                         _mm256_srli_epi32(round_bf16(b), 16));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

static ALWAYS_INLINE __m256i unsplit_bf16(__m256 even, __m256 odd)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(round_bf16(even), 16), round_bf16(odd), 0xaa);
}

static ALWAYS_INLINE __m256i bits_of(__m256 x)
{
    return _mm256_castps_si256(x);
}

static ALWAYS_INLINE void store_bits(char *to, __m256i bits)
{
    _mm256_storeu_si256((__m256i *)(void *)to, bits);
}

static ALWAYS_INLINE void stream_bits(char *to, __m256i bits)
{
    _mm256_stream_si256((__m256i *)(void *)to, bits);
}

/* At most two vectors. */
static ALWAYS_INLINE void copy_in(char *to, const char *from, size_t n_bytes)
{
    memset(to, 0, 2 * sizeof(__m256));
    memcpy(to, from, n_bytes);
}

static ALWAYS_INLINE void copy_out(char *to, const char *from, size_t n_bytes)
{
    memcpy(to, from, n_bytes);
}

#include "exec/sum_body.h"
