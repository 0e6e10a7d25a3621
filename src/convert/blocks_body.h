/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of kernels_body.h that is about blocks. A row is worked on block by block; short blocks,
 * those of the micro-scaled formats, have loops of a constant length.
 */
enum { F32_NAN = 0x7fc00000, PAIRS_AT_ONCE = 512 };

/* ---- the largest magnitude of a block ---- */

static ALWAYS_INLINE uint32_t magnitude_at(fy_value_type type, const char *from, size_t i)
{
    uint32_t word;
    uint16_t half;
    if (type == FY_VALUE_F32) {
        memcpy(&word, from + 4 * i, sizeof word);
        return word & 0x7fffffff;
    }
    memcpy(&half, from + 2 * i, sizeof half);
    return half & 0x7fff;
}

static ALWAYS_INLINE uint32_t infinity_of(fy_value_type type)
{
    return type == FY_VALUE_F32 ? F32_INFINITY : type == FY_VALUE_F16 ? 0x7c00 : 0x7f80;
}

static ALWAYS_INLINE uint32_t largest_in_words(const char *from, size_t n, bool is_finite)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitude_at(FY_VALUE_F32, from, i);
        magnitude = is_finite && magnitude >= F32_INFINITY ? 0 : magnitude;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* In numbers of 16 bits, of which a vector has twice as many. */
static ALWAYS_INLINE uint32_t largest_in_halves(fy_value_type type, const char *from, size_t n,
                                                bool is_finite)
{
    uint16_t most = 0, infinity = (uint16_t)infinity_of(type);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        half = (uint16_t)(half & 0x7fff);
        half = is_finite && half >= infinity ? 0 : half;
        most = half > most ? half : most;
    }
    return most;
}

static ALWAYS_INLINE uint32_t largest_in(fy_value_type type, const char *from, size_t n,
                                         bool is_finite)
{
    return type == FY_VALUE_F32 ? largest_in_words(from, n, is_finite)
                                : largest_in_halves(type, from, n, is_finite);
}

static ALWAYS_INLINE void largest_of(fy_value_type type, bool is_finite, uint32_t *largest,
                                     const char *from, size_t n, size_t width)
{
    size_t bytes = type == FY_VALUE_F32 ? 4 : 2;
    for (size_t at = 0, block = 0; at < n; at += width, block++) {
        size_t here = n - at < width ? n - at : width;
        const char *values = from + at * bytes;
        uint32_t found = here == 16   ? largest_in(type, values, 16, is_finite)
                         : here == 32 ? largest_in(type, values, 32, is_finite)
                                      : largest_in(type, values, here, is_finite);
        largest[block] = found > largest[block] ? found : largest[block];
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

static ALWAYS_INLINE float value_at(fy_value_type type, const char *from, size_t i)
{
    uint32_t word;
    uint16_t half;
    if (type == FY_VALUE_F32) {
        memcpy(&word, from + 4 * i, sizeof word);
        return float_of(word);
    }
    memcpy(&half, from + 2 * i, sizeof half);
    return float_of((uint32_t)half << 16);
}

/* An infinity is none of the numbers that saturate; f8e4m3 has no code for it but NaN. */
static ALWAYS_INLINE uint32_t code_of(fy_code_type type, float value)
{
    if (type == FY_CODE_F8E4M3) {
        return narrow_one_f8e4m3(capped(value, MOST_F8E4M3, F32_INFINITY));
    }
    if (type == FY_CODE_F8E5M2) {
        return saturate_one_f8e5m2(value);
    }
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    uint32_t code = (bits >> 28 & 8) | narrowed(least_of(magnitude, MOST_F4), 1, 1);
    return magnitude > F32_INFINITY ? 0 : code;
}

static ALWAYS_INLINE void codes_of(fy_value_type from_type, fy_code_type type,
                                   unsigned char *restrict to, const char *restrict from, size_t n,
                                   float scale)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = (unsigned char)code_of(type, value_at(from_type, from, i) / scale);
    }
}

/* The first of two is in the lower half of the byte; the half that is left over is 0. */
static ALWAYS_INLINE void pack_pairs(unsigned char *restrict to,
                                     const unsigned char *restrict codes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        to[i] = (unsigned char)(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    if (n % 2 != 0) {
        to[n / 2] = codes[n - 1];
    }
}

static ALWAYS_INLINE void quantize_some(fy_value_type from_type, fy_code_type type,
                                        unsigned char *to, const char *from, size_t n, float scale)
{
    unsigned char codes[2 * PAIRS_AT_ONCE];
    if (type != FY_CODE_F4) {
        codes_of(from_type, type, to, from, n, scale);
        return;
    }
    size_t bytes = from_type == FY_VALUE_F32 ? 4 : 2;
    for (size_t at = 0; at < n; at += sizeof codes) {
        size_t here = n - at < sizeof codes ? n - at : sizeof codes;
        codes_of(from_type, type, codes, from + at * bytes, here, scale);
        pack_pairs(to + at / 2, codes, here);
    }
}

static ALWAYS_INLINE void quantize_row(fy_value_type from_type, fy_code_type type,
                                       unsigned char *to, const char *from, size_t n, size_t width,
                                       const float *scales)
{
    size_t bytes = from_type == FY_VALUE_F32 ? 4 : 2;
    for (size_t at = 0, block = 0; at < n; at += width, block++) {
        size_t here = n - at < width ? n - at : width;
        unsigned char *codes = to + (type == FY_CODE_F4 ? at / 2 : at);
        const char *values = from + at * bytes;
        if (type == FY_CODE_F4 && here == 16) {
            quantize_some(from_type, type, codes, values, 16, scales[block]);
        } else if (here == 32) {
            quantize_some(from_type, type, codes, values, 32, scales[block]);
        } else {
            quantize_some(from_type, type, codes, values, here, scales[block]);
        }
    }
}

/* ---- codes to values ---- */

static ALWAYS_INLINE float value_of_code(fy_code_type type, uint32_t code)
{
    if (type == FY_CODE_F8E4M3) {
        return widen_one_f8e4m3(code);
    }
    if (type == FY_CODE_F8E5M2) {
        return widen_one_f16(code << 8);
    }
    return float_of((code & 8) << 28 | widened(code & 7, 1, 1));
}

/* NaN is always the same one: which operand's a processor takes is its own affair. */
static ALWAYS_INLINE float with_one_nan(float value)
{
    return (bits_of(value) & 0x7fffffff) > F32_INFINITY ? float_of(F32_NAN) : value;
}

static ALWAYS_INLINE void put_value(fy_value_type type, char *to, size_t i, float value)
{
    uint32_t word = bits_of(with_one_nan(value));
    if (type == FY_VALUE_F32) {
        memcpy(to + 4 * i, &word, sizeof word);
        return;
    }
    uint16_t half = (uint16_t)narrow_one_bf16(with_one_nan(value));
    memcpy(to + 2 * i, &half, sizeof half);
}

static ALWAYS_INLINE void values_of(fy_value_type to_type, fy_code_type type, char *restrict to,
                                    const unsigned char *restrict codes, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        put_value(to_type, to, i, value_of_code(type, codes[i]) * scale);
    }
}

static ALWAYS_INLINE void unpack_pairs(unsigned char *restrict codes,
                                       const unsigned char *restrict from, size_t n)
{
    for (size_t i = 0; i < (n + 1) / 2; i++) {
        codes[2 * i] = from[i] & 15;
        codes[2 * i + 1] = from[i] >> 4;
    }
}

static ALWAYS_INLINE void dequantize_some(fy_value_type to_type, fy_code_type type, char *to,
                                          const unsigned char *from, size_t n, float scale)
{
    unsigned char codes[2 * PAIRS_AT_ONCE];
    if (type != FY_CODE_F4) {
        values_of(to_type, type, to, from, n, scale);
        return;
    }
    size_t bytes = to_type == FY_VALUE_F32 ? 4 : 2;
    for (size_t at = 0; at < n; at += sizeof codes) {
        size_t here = n - at < sizeof codes ? n - at : sizeof codes;
        unpack_pairs(codes, from + at / 2, here);
        values_of(to_type, type, to + at * bytes, codes, here, scale);
    }
}

static ALWAYS_INLINE void dequantize_row(fy_value_type to_type, fy_code_type type, char *to,
                                         const unsigned char *from, size_t n, size_t width,
                                         const float *scales)
{
    size_t bytes = to_type == FY_VALUE_F32 ? 4 : 2;
    for (size_t at = 0, block = 0; at < n; at += width, block++) {
        size_t here = n - at < width ? n - at : width;
        const unsigned char *codes = from + (type == FY_CODE_F4 ? at / 2 : at);
        char *values = to + at * bytes;
        if (type == FY_CODE_F4 && here == 16) {
            dequantize_some(to_type, type, values, codes, 16, scales[block]);
        } else if (here == 32) {
            dequantize_some(to_type, type, values, codes, 32, scales[block]);
        } else {
            dequantize_some(to_type, type, values, codes, here, scales[block]);
        }
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
