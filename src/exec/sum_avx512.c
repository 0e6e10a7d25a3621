/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/sum_isa.h"

#include <immintrin.h>

#define FY_SUM_KERNEL fy_sum_avx512
#define VECTOR __m512
#define ADD(a, b) _mm512_add_ps(a, b)
#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE __m512i load_bits(const char *from)
{
    return _mm512_loadu_si512((const void *)from);
}

static ALWAYS_INLINE __m256i load_half(const char *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static ALWAYS_INLINE __m512 load_f32(const char *from)
{
    return _mm512_castsi512_ps(load_bits(from));
}

static ALWAYS_INLINE __m512 load_f16(const char *from)
{
    return _mm512_cvtph_ps(load_half(from));
}

static ALWAYS_INLINE __m512 load_bf16(const char *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from)), 16));
}

static ALWAYS_INLINE void split_bf16(const char *from, __m512 *even_out, __m512 *odd_out)
{
    __m512i bits = load_bits(from);
    *even_out = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    *odd_out = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)));
}

/* The table says what becomes of each class of numbers: only the first two, NaNs, give way. */
static ALWAYS_INLINE __m512 with_one_nan(__m512 x)
{
    __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_fixupimm_ps(nan, x, _mm512_set1_epi32(0x11111100), 0);
}

/* Rounded to a bf16 in the upper half; what the lower half holds then is of no use. */
static ALWAYS_INLINE __m512i round_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i below = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(below, is_odd, bits, _mm512_set1_epi32(0x8000));
}

static ALWAYS_INLINE __m512i join(__m256i a, __m256i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

static ALWAYS_INLINE __m512i join_f16(__m512 a, __m512 b)
{
    return join(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT),
                _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
}

static ALWAYS_INLINE __m512i join_bf16(__m512 a, __m512 b)
{
    return join(_mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(a), 16)),
                _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16(b), 16)));
}

static ALWAYS_INLINE __m512i unsplit_bf16(__m512 even, __m512 odd)
{
    return _mm512_mask_mov_epi16(_mm512_srli_epi32(round_bf16(even), 16), 0xaaaaaaaa,
                                 round_bf16(odd));
}

static ALWAYS_INLINE __m512i bits_of(__m512 x)
{
    return _mm512_castps_si512(x);
}

static ALWAYS_INLINE void store_bits(char *to, __m512i bits)
{
    _mm512_storeu_si512((void *)to, bits);
}

static ALWAYS_INLINE void stream_bits(char *to, __m512i bits)
{
    _mm512_stream_si512((void *)to, bits);
}

/* The first so many bytes of a vector. */
static ALWAYS_INLINE __mmask64 first_bytes(size_t n_bytes)
{
    return n_bytes >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n_bytes) - 1;
}

/* At most two vectors; memory behind n_bytes is not touched. */
static ALWAYS_INLINE void copy_in(char *to, const char *from, size_t n_bytes)
{
    size_t n_second = n_bytes > 64 ? n_bytes - 64 : 0;
    __mmask64 second = first_bytes(n_second);
    store_bits(to, _mm512_maskz_loadu_epi8(first_bytes(n_bytes), from));
    store_bits(to + 64,
               second == 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(second, from + 64));
}

static ALWAYS_INLINE void copy_out(char *to, const char *from, size_t n_bytes)
{
    _mm512_mask_storeu_epi8(to, first_bytes(n_bytes), load_bits(from));
    if (n_bytes > 64) {
        _mm512_mask_storeu_epi8(to + 64, first_bytes(n_bytes - 64), load_bits(from + 64));
    }
}

#include "exec/sum_body.h"
