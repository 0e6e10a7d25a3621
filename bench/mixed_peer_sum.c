/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "mixed_peer_sum.h"

#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define WITH_AVX512 1
#else
#define WITH_AVX512 0
#endif

enum { LANES = 16 };

__extension__ typedef _Float16 float16;

/* ---- one element ---- */

static float bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float f16_to_float(uint16_t half)
{
    float16 value;
    memcpy(&value, &half, sizeof value);
    return (float)value;
}

static uint16_t float_to_f16(float value)
{
    float16 rounded = (float16)value;
    uint16_t half;
    memcpy(&half, &rounded, sizeof half);
    return half;
}

static void sum_element(enum mixed_dtype dtype, const void *from, size_t rows, size_t n, size_t i,
                        void *to)
{
    float sum = 0;
    for (size_t row = 0; row < rows; row++) {
        size_t at = row * n + i;
        sum += dtype == MIXED_F32    ? ((const float *)from)[at]
               : dtype == MIXED_BF16 ? bf16_to_float(((const uint16_t *)from)[at])
                                     : f16_to_float(((const uint16_t *)from)[at]);
    }
    if (dtype == MIXED_F32) {
        ((float *)to)[i] = sum;
    } else {
        ((uint16_t *)to)[i] = dtype == MIXED_BF16 ? float_to_bf16(sum) : float_to_f16(sum);
    }
}

/* ---- sixteen ---- */

#if WITH_AVX512

static inline __m512 load(enum mixed_dtype dtype, const void *from, size_t at)
{
    if (dtype == MIXED_F32) {
        return _mm512_loadu_ps((const float *)from + at);
    }
    __m256i halves = _mm256_loadu_si256((const void *)((const uint16_t *)from + at));
    if (dtype == MIXED_F16) {
        return _mm512_cvtph_ps(halves);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

static inline __m256i to_bf16(__m512 value)
{
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(value);
#else
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#endif
}

static inline void store(enum mixed_dtype dtype, void *to, size_t at, __m512 value)
{
    if (dtype == MIXED_F32) {
        _mm512_storeu_ps((float *)to + at, value);
    } else {
        void *place = (uint16_t *)to + at;
        _mm256_storeu_si256(place,
                            dtype == MIXED_BF16 ? to_bf16(value) : _mm512_cvtps_ph(value, 0));
    }
}

static inline size_t add_lanes(enum mixed_dtype dtype, const void *from, void *to, size_t n)
{
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        __m512 low = _mm512_add_ps(load(dtype, from, i), load(dtype, to, i));
        __m512 high = _mm512_add_ps(load(dtype, from, i + LANES), load(dtype, to, i + LANES));
        store(dtype, to, i, low);
        store(dtype, to, i + LANES, high);
    }
    return i;
}

/* fp16 added as fp16 is the same as fp32 rounded once: it has more than twice the bits. */
static size_t add_f16_lanes(const void *from, void *to, size_t n)
{
#ifdef __AVX512FP16__
    const uint16_t *source = from;
    uint16_t *sum = to;
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        _mm512_storeu_ph(sum + i,
                         _mm512_add_ph(_mm512_loadu_ph(source + i), _mm512_loadu_ph(sum + i)));
    }
    return i;
#else
    return add_lanes(MIXED_F16, from, to, n);
#endif
}

static inline size_t sum_lanes(enum mixed_dtype dtype, const void *from, size_t rows, size_t n,
                               void *to)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m512 sum = load(dtype, from, i);
        for (size_t row = 1; row < rows; row++) {
            sum = _mm512_add_ps(sum, load(dtype, from, row * n + i));
        }
        store(dtype, to, i, sum);
    }
    return i;
}

static size_t add_wide(enum mixed_dtype dtype, const void *from, void *to, size_t n)
{
    return dtype == MIXED_F32    ? add_lanes(MIXED_F32, from, to, n)
           : dtype == MIXED_BF16 ? add_lanes(MIXED_BF16, from, to, n)
                                 : add_f16_lanes(from, to, n);
}

static size_t sum_wide(enum mixed_dtype dtype, const void *from, size_t rows, size_t n, void *to)
{
    return dtype == MIXED_F32    ? sum_lanes(MIXED_F32, from, rows, n, to)
           : dtype == MIXED_BF16 ? sum_lanes(MIXED_BF16, from, rows, n, to)
                                 : sum_lanes(MIXED_F16, from, rows, n, to);
}

#else

static size_t add_wide(enum mixed_dtype dtype, const void *from, void *to, size_t n)
{
    const uint16_t *source = from;
    uint16_t *sum = to;
    if (dtype == MIXED_BF16) {
        for (size_t i = 0; i < n; i++) {
            sum[i] = float_to_bf16(bf16_to_float(sum[i]) + bf16_to_float(source[i]));
        }
    } else if (dtype == MIXED_F16) {
        for (size_t i = 0; i < n; i++) {
            sum[i] = float_to_f16(f16_to_float(sum[i]) + f16_to_float(source[i]));
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            ((float *)to)[i] += ((const float *)from)[i];
        }
    }
    return n;
}

static size_t sum_wide(enum mixed_dtype dtype, const void *from, size_t rows, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        sum_element(dtype, from, rows, n, i, to);
    }
    return n;
}

#endif

/* ---- all ---- */

void mixed_peer_add(enum mixed_dtype dtype, const void *from, void *to, size_t n)
{
    size_t bytes = mixed_element_bytes(dtype);
    for (size_t i = add_wide(dtype, from, to, n); i < n; i++) {
        unsigned char pair[8];
        memcpy(pair, (const char *)from + i * bytes, bytes);
        memcpy(pair + bytes, (char *)to + i * bytes, bytes);
        sum_element(dtype, pair, 2, 1, 0, (char *)to + i * bytes);
    }
}

void mixed_peer_sum(enum mixed_dtype dtype, const void *from, size_t rows, size_t n, void *to)
{
    for (size_t i = sum_wide(dtype, from, rows, n, to); i < n; i++) {
        sum_element(dtype, from, rows, n, i, to);
    }
}

const char *mixed_peer_kernel(enum mixed_dtype dtype)
{
#if defined(__AVX512BF16__) && defined(__AVX512FP16__)
    const char *wide = dtype == MIXED_F32 ? "AVX-512" : "AVX-512 with BF16 and FP16";
#else
    const char *wide = "AVX-512";
#endif
    (void)dtype;
    return WITH_AVX512 ? wide : "plain C";
}
