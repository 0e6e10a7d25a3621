/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of kernels_body.h that is about blocks, in vectors of LANES elements, which the compiler
 * maps to the instructions of the set. A row is worked on block by block; what is left at the end
 * of a block goes through a vector of its own, so all elements are treated alike.
 */
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

enum { F32_NAN = 0x7fc00000 };

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int32_t signed_words __attribute__((vector_size(4 * LANES)));
typedef int16_t signed_halves __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
/* A pair of words each, and a byte for each pair. */
typedef uint64_t pairs __attribute__((vector_size(4 * LANES)));
typedef uint8_t pair_bytes __attribute__((vector_size(LANES / 2)));

static ALWAYS_INLINE words all_of(uint32_t bits)
{
    return bits | (words){0};
}

static ALWAYS_INLINE words chosen(words mask, words yes, words no)
{
    return (mask & yes) | (~mask & no);
}

/*
 * Of magnitudes, which are below 2^31 and so the same with a sign and without; and what is wider
 * than it was. The compiler knows better instructions only by their names.
 */
#if defined(__AVX512F__)
static ALWAYS_INLINE words larger(words a, words b)
{
    return (words)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

static ALWAYS_INLINE words smaller(words a, words b)
{
    return (words)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

static ALWAYS_INLINE signed_halves larger_halves(signed_halves a, signed_halves b)
{
    return (signed_halves)_mm512_max_epi16((__m512i)a, (__m512i)b);
}

static ALWAYS_INLINE words wide_halves(halves v)
{
    return (words)_mm512_cvtepu16_epi32((__m256i)v);
}

static ALWAYS_INLINE words wide_bytes(bytes v)
{
    return (words)_mm512_cvtepu8_epi32((__m128i)v);
}

static ALWAYS_INLINE pairs wide_pairs(const unsigned char *from)
{
    return (pairs)_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)from));
}

static ALWAYS_INLINE void store_pairs(unsigned char *to, pairs v)
{
    _mm_storel_epi64((__m128i *)(void *)to, _mm512_cvtepi64_epi8((__m512i)v));
}

static ALWAYS_INLINE uint32_t largest_lane(words v)
{
    return _mm512_reduce_max_epu32((__m512i)v);
}
#elif defined(__AVX2__)
static ALWAYS_INLINE words larger(words a, words b)
{
    return (words)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

static ALWAYS_INLINE words smaller(words a, words b)
{
    return (words)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

static ALWAYS_INLINE signed_halves larger_halves(signed_halves a, signed_halves b)
{
    return (signed_halves)_mm256_max_epi16((__m256i)a, (__m256i)b);
}

static ALWAYS_INLINE words wide_halves(halves v)
{
    return (words)_mm256_cvtepu16_epi32((__m128i)v);
}

static ALWAYS_INLINE words wide_bytes(bytes v)
{
    return (words)_mm256_cvtepu8_epi32((__m128i)(__v2di){(long long)(uint64_t)v, 0});
}

static ALWAYS_INLINE pairs wide_pairs(const unsigned char *from)
{
    int32_t packed;
    memcpy(&packed, from, sizeof packed);
    return (pairs)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(packed));
}

static ALWAYS_INLINE void store_pairs(unsigned char *to, pairs v)
{
    pair_bytes packed = __builtin_convertvector(v, pair_bytes);
    memcpy(to, &packed, sizeof packed);
}

static ALWAYS_INLINE uint32_t largest_lane(words v)
{
    __m128i m =
        _mm_max_epu32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}
#else
static ALWAYS_INLINE words larger(words a, words b)
{
    return chosen((words)((signed_words)a > (signed_words)b), a, b);
}

static ALWAYS_INLINE words smaller(words a, words b)
{
    return chosen((words)((signed_words)a > (signed_words)b), b, a);
}

static ALWAYS_INLINE signed_halves larger_halves(signed_halves a, signed_halves b)
{
    signed_halves is_more = a > b;
    return (a & is_more) | (b & ~is_more);
}

static ALWAYS_INLINE words wide_halves(halves v)
{
    return __builtin_convertvector(v, words);
}

static ALWAYS_INLINE words wide_bytes(bytes v)
{
    return __builtin_convertvector(v, words);
}

static ALWAYS_INLINE pairs wide_pairs(const unsigned char *from)
{
    pair_bytes packed;
    memcpy(&packed, from, sizeof packed);
    return __builtin_convertvector(packed, pairs);
}

static ALWAYS_INLINE void store_pairs(unsigned char *to, pairs v)
{
    pair_bytes packed = __builtin_convertvector(v, pair_bytes);
    memcpy(to, &packed, sizeof packed);
}

static ALWAYS_INLINE uint32_t largest_lane(words v)
{
    uint32_t most = 0;
    for (int i = 0; i < LANES; i++) {
        most = v[i] > most ? v[i] : most;
    }
    return most;
}
#endif

/* ---- the largest magnitude of a block ---- */

/* 0 in place of what is not finite, if that is to be left out. */
static ALWAYS_INLINE words counted(words magnitudes, bool is_finite, uint32_t infinity)
{
    return is_finite ? magnitudes & (words)(magnitudes < infinity) : magnitudes;
}

static ALWAYS_INLINE uint32_t largest_in_words(const char *from, size_t n, bool is_finite)
{
    words most = {0};
    for (size_t i = 0; i < n; i += LANES) {
        words v = {0};
        if (n - i >= LANES) {
            memcpy(&v, from + 4 * i, sizeof v);
        } else {
            memcpy(&v, from + 4 * i, 4 * (n - i));
        }
        most = larger(most, counted(v & 0x7fffffff, is_finite, F32_INFINITY));
    }
    return largest_lane(most);
}

/* Twice as many at once as there are lanes; the rest in lanes of their own. */
static ALWAYS_INLINE uint32_t largest_in_halves(const char *from, size_t n, bool is_finite,
                                                uint16_t infinity)
{
    signed_halves most = {0};
    words rest = {0};
    size_t i = 0;
    for (; n - i >= 2 * LANES; i += 2 * LANES) {
        signed_halves v;
        memcpy(&v, from + 2 * i, sizeof v);
        v &= 0x7fff;
        most = larger_halves(is_finite ? v & (v < (int16_t)infinity) : v, most);
    }
    for (; i < n; i += LANES) {
        halves v = {0};
        if (n - i >= LANES) {
            memcpy(&v, from + 2 * i, sizeof v);
        } else {
            memcpy(&v, from + 2 * i, 2 * (n - i));
        }
        rest = larger(rest, counted(wide_halves(v) & 0x7fff, is_finite, infinity));
    }
    words pairs_of = (words)most;
    rest = larger(rest, larger(pairs_of & 0xffff, pairs_of >> 16));
    return largest_lane(rest);
}

static ALWAYS_INLINE void largest_of(fy_value_type type, bool is_finite, uint32_t *largest,
                                     const char *from, size_t n, size_t width)
{
    size_t step = width * (type == FY_VALUE_F32 ? 4 : 2);
    for (size_t left = n; left > 0; from += step, largest++) {
        size_t here = left < width ? left : width;
        uint32_t found = type == FY_VALUE_F32   ? largest_in_words(from, here, is_finite)
                         : type == FY_VALUE_F16 ? largest_in_halves(from, here, is_finite, 0x7c00)
                                                : largest_in_halves(from, here, is_finite, 0x7f80);
        *largest = found > *largest ? found : *largest;
        left -= here;
    }
}

#define LARGEST(name, type)                                                                        \
    static void largest_##name(uint32_t *largest, const void *from, size_t n, size_t width)        \
    {                                                                                              \
        largest_of(type, false, largest, from, n, width);                                          \
    }                                                                                              \
    static void largest_finite_##name(uint32_t *largest, const void *from, size_t n, size_t width) \
    {                                                                                              \
        largest_of(type, true, largest, from, n, width);                                           \
    }

LARGEST(f32, FY_VALUE_F32)
LARGEST(f16, FY_VALUE_F16)
LARGEST(bf16, FY_VALUE_BF16)

/* ---- values to codes: of f32 and bf16, f16 goes by way of f32 ---- */

/* n is LANES, a constant, but at the end of a block. */
static ALWAYS_INLINE floats load_values(fy_value_type type, const char *from, size_t n)
{
    floats wide = {0};
    halves narrow = {0};
    if (type == FY_VALUE_F32) {
        memcpy(&wide, from, 4 * n);
        return wide;
    }
    memcpy(&narrow, from, 2 * n);
    return (floats)(wide_halves(narrow) << 16);
}

/*
 * Magnitudes, no more than the type's largest number, to codes. To each is added the power of two
 * whose last place is the last place of the code: so the processor rounds, and the lowest bits of
 * the sum are the mantissa with its leading bit. Below the smallest normal number the places are
 * those of that number.
 */
static ALWAYS_INLINE words rounded(words magnitudes, uint32_t mantissa, uint32_t bias)
{
    uint32_t shift = F32_MANTISSA - mantissa;
    words exponents = magnitudes & F32_INFINITY;
    words least = all_of((F32_BIAS + 1 - bias) << F32_MANTISSA);
    exponents = larger(exponents, least);
    floats places = (floats)(exponents + (shift << F32_MANTISSA));
    words sum = (words)((floats)magnitudes + places);
    return sum - exponents + (exponents >> shift) -
           ((shift << F32_MANTISSA) + ((F32_BIAS + 1 - bias) << mantissa));
}

static ALWAYS_INLINE words no_more_than(words magnitudes, uint32_t most)
{
    return smaller(magnitudes, all_of(most));
}

/* An infinity is none of the numbers that saturate; f8e4m3 has no code for it but NaN. */
static ALWAYS_INLINE words codes_of(fy_code_type type, floats values)
{
    words bits = (words)values, magnitudes = bits & 0x7fffffff, codes;
    if (type == FY_CODE_F8E4M3) {
        codes = rounded(no_more_than(magnitudes, MOST_F8E4M3), 3, 7);
        codes = chosen((words)(magnitudes >= F32_INFINITY), all_of(0x7f), codes);
        return codes | (bits >> 24 & 0x80);
    }
    if (type == FY_CODE_F8E5M2) {
        codes = rounded(no_more_than(magnitudes, MOST_F8E5M2), 2, 15);
        codes = chosen((words)(magnitudes == F32_INFINITY), all_of(0x7c), codes);
        codes = chosen((words)(magnitudes > F32_INFINITY), all_of(0x7f), codes);
        return codes | (bits >> 24 & 0x80);
    }
    codes = rounded(no_more_than(magnitudes, MOST_F4), 1, 1) | (bits >> 28 & 8);
    return codes & (words)(magnitudes <= F32_INFINITY);
}

/* Of f4 the first of two is in the lower half of a byte. */
static ALWAYS_INLINE void store_codes(fy_code_type type, unsigned char *to, words codes, size_t n)
{
    if (type == FY_CODE_F4) {
        pairs both = (pairs)codes;
        unsigned char packed[LANES / 2];
        both = (both | both >> 28) & 0xff;
        if (n == LANES) {
            store_pairs(to, both);
        } else {
            store_pairs(packed, both);
            memcpy(to, packed, (n + 1) / 2);
        }
    } else {
        bytes packed = __builtin_convertvector(codes, bytes);
        memcpy(to, &packed, n);
    }
}

static ALWAYS_INLINE void quantize_row(fy_value_type from_type, fy_code_type type,
                                       unsigned char *to, const char *from, size_t n, size_t width,
                                       const float *scales)
{
    size_t value_bytes = from_type == FY_VALUE_F32 ? 4 : 2, per_byte = type == FY_CODE_F4 ? 2 : 1;
    for (size_t left = n; left > 0; scales++) {
        size_t here = left < width ? left : width, i = 0;
        floats scale = (floats)all_of(bits_of(*scales));
        for (; i + LANES <= here; i += LANES) {
            floats values = load_values(from_type, from + i * value_bytes, LANES) / scale;
            store_codes(type, to + i / per_byte, codes_of(type, values), LANES);
        }
        if (i < here) { /* what is left over of the last byte is 0, as those lanes are */
            floats values = load_values(from_type, from + i * value_bytes, here - i) / scale;
            store_codes(type, to + i / per_byte, codes_of(type, values), here - i);
        }
        from += here * value_bytes;
        to += here / per_byte;
        left -= here;
    }
}

/* ---- codes to values ---- */

static ALWAYS_INLINE words load_codes(fy_code_type type, const unsigned char *from, size_t n)
{
    bytes codes = {0};
    if (type == FY_CODE_F4) {
        unsigned char packed[LANES / 2] = {0};
        memcpy(packed, from, n == LANES ? 0 : (n + 1) / 2);
        pairs both = wide_pairs(n == LANES ? from : packed);
        return (words)((both & 15) | (both & 0xf0) << 28);
    }
    memcpy(&codes, from, n);
    return wide_bytes(codes);
}

/* As widened() of one: see there. */
static ALWAYS_INLINE words widened_all(words magnitudes, uint32_t mantissa, uint32_t bias)
{
    uint32_t least = (F32_BIAS + 1 - bias) << F32_MANTISSA;
    words moved = magnitudes << (F32_MANTISSA - mantissa);
    words normal = moved + ((F32_BIAS - bias) << F32_MANTISSA);
    words small = (words)((floats)(moved + least) - (floats)(all_of(least)));
    return chosen((words)(magnitudes < 1u << mantissa), small, normal);
}

/*
 * f4 has 16 numbers, or 8 and a sign: so many fit into a register, in which a code is the place of
 * its value.
 */
#if defined(__AVX512F__)
static ALWAYS_INLINE floats values_of_f4(words codes)
{
    const floats numbers = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    return (floats)_mm512_permutexvar_ps((__m512i)codes, (__m512)numbers);
}
#elif defined(__AVX2__)
static ALWAYS_INLINE floats values_of_f4(words codes)
{
    const floats numbers = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6}; /* by the lower three bits of a code */
    words magnitudes = (words)_mm256_permutevar8x32_ps((__m256)numbers, (__m256i)codes);
    return (floats)(magnitudes | (codes & 8) << 28);
}
#else
static ALWAYS_INLINE floats values_of_f4(words codes)
{
    return (floats)(widened_all(codes & 7, 1, 1) | (codes & 8) << 28);
}
#endif

static ALWAYS_INLINE floats values_of(fy_code_type type, words codes)
{
    words magnitudes = codes & 0x7f, bits, nan = all_of(F32_NAN);
    if (type == FY_CODE_F8E4M3) {
        bits = widened_all(magnitudes, 3, 7);
        bits = chosen((words)(magnitudes == 0x7f), nan, bits);
        return (floats)(bits | (codes & 0x80) << 24);
    }
    if (type == FY_CODE_F8E5M2) {
        bits = widened_all(magnitudes, 2, 15);
        bits = chosen((words)(magnitudes == 0x7c), all_of(F32_INFINITY), bits);
        bits = chosen((words)(magnitudes > 0x7c), nan, bits);
        return (floats)(bits | (codes & 0x80) << 24);
    }
    return values_of_f4(codes);
}

/* Without scales. The compiler takes bytes apart better than it loads a few of them. */
#if defined(__AVX2__)
static void widen_f4(float *to, const void *from, size_t n)
{
    const unsigned char *codes = from;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats values = values_of_f4(load_codes(FY_CODE_F4, codes + i / 2, LANES));
        memcpy(to + i, &values, sizeof values);
    }
    if (i < n) {
        floats values = values_of_f4(load_codes(FY_CODE_F4, codes + i / 2, n - i));
        memcpy(to + i, &values, 4 * (n - i));
    }
}
#else
static ALWAYS_INLINE float widen_one_f4(uint32_t code)
{
    return float_of(widened(code & 7, 1, 1) | (code & 8) << 28);
}

static void widen_f4(float *to, const void *from, size_t n)
{
    const unsigned char *codes = from;
    for (size_t i = 0; i < n / 2; i++) {
        to[2 * i] = widen_one_f4(codes[i]);
        to[2 * i + 1] = widen_one_f4(codes[i] >> 4);
    }
    if (n % 2 != 0) {
        to[n - 1] = widen_one_f4(codes[n / 2]);
    }
}
#endif

/* NaN is always the same one: which operand's a processor takes is its own affair. */
static ALWAYS_INLINE void store_values(fy_value_type type, char *to, floats values, size_t n)
{
    words bits = (words)values;
    bits = chosen((words)((bits & 0x7fffffff) > F32_INFINITY), all_of(F32_NAN), bits);
    if (type == FY_VALUE_F32) {
        memcpy(to, &bits, 4 * n);
    } else {
        words rounded_bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        halves narrow = __builtin_convertvector(rounded_bits, halves);
        memcpy(to, &narrow, 2 * n);
    }
}

static ALWAYS_INLINE void dequantize_row(fy_value_type to_type, fy_code_type type, char *to,
                                         const unsigned char *from, size_t n, size_t width,
                                         const float *scales)
{
    size_t value_bytes = to_type == FY_VALUE_F32 ? 4 : 2, per_byte = type == FY_CODE_F4 ? 2 : 1;
    for (size_t left = n; left > 0; scales++) {
        size_t here = left < width ? left : width, i = 0;
        floats scale = (floats)all_of(bits_of(*scales));
        for (; i + LANES <= here; i += LANES) {
            floats values = values_of(type, load_codes(type, from + i / per_byte, LANES)) * scale;
            store_values(to_type, to + i * value_bytes, values, LANES);
        }
        if (i < here) {
            floats values =
                values_of(type, load_codes(type, from + i / per_byte, here - i)) * scale;
            store_values(to_type, to + i * value_bytes, values, here - i);
        }
        from += here / per_byte;
        to += here * value_bytes;
        left -= here;
    }
}

/* ---- one of each for each pair of types ---- */

#define BLOCKS(value_name, value_type, code_name, code_type)                                       \
    static void quantize_##value_name##_##code_name(void *to, const void *from, size_t n,          \
                                                    size_t width, const float *scales)             \
    {                                                                                              \
        quantize_row(value_type, code_type, to, from, n, width, scales);                           \
    }                                                                                              \
    static void dequantize_##value_name##_##code_name(void *to, const void *from, size_t n,        \
                                                      size_t width, const float *scales)           \
    {                                                                                              \
        dequantize_row(value_type, code_type, to, from, n, width, scales);                         \
    }

BLOCKS(f32, FY_VALUE_F32, f8e4m3, FY_CODE_F8E4M3)
BLOCKS(f32, FY_VALUE_F32, f8e5m2, FY_CODE_F8E5M2)
BLOCKS(f32, FY_VALUE_F32, f4, FY_CODE_F4)
BLOCKS(bf16, FY_VALUE_BF16, f8e4m3, FY_CODE_F8E4M3)
BLOCKS(bf16, FY_VALUE_BF16, f8e5m2, FY_CODE_F8E5M2)
BLOCKS(bf16, FY_VALUE_BF16, f4, FY_CODE_F4)

#define QUANTIZE_FROM(name)                                                                        \
    {                                                                                              \
        [FY_CODE_F8E4M3] = quantize_##name##_f8e4m3, [FY_CODE_F8E5M2] = quantize_##name##_f8e5m2,  \
        [FY_CODE_F4] = quantize_##name##_f4                                                        \
    }
#define DEQUANTIZE_TO(name)                                                                        \
    {                                                                                              \
        [FY_CODE_F8E4M3] = dequantize_##name##_f8e4m3,                                             \
        [FY_CODE_F8E5M2] = dequantize_##name##_f8e5m2, [FY_CODE_F4] = dequantize_##name##_f4       \
    }
