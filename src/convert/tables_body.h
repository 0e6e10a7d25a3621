/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of kernels_body.h that is about large blocks of bf16 and f8e4m3, where the set has
 * AVX-512. All elements of a block have one scale, and there are 128 mantissas of a bf16, and 128
 * magnitudes of an f8e4m3: so a block has a table, made by the kernels of blocks_body.h, and
 * elements are looked up instead of divided. See fy_code_table.
 */
enum { HALVES = 32 };

typedef struct table_parts {
    __m512i part[4];
} table_parts;

static ALWAYS_INLINE table_parts load_table(const fy_code_table *table)
{
    table_parts t;
    for (int i = 0; i < 4; i++) {
        t.part[i] = _mm512_loadu_si512(table->entries + i * HALVES);
    }
    return t;
}

/* The entries that the lowest 7 bits of each number say. */
static ALWAYS_INLINE __m512i looked_up(const table_parts *t, __m512i numbers)
{
    __m512i low = _mm512_permutex2var_epi16(t->part[0], numbers, t->part[1]);
    __m512i high = _mm512_permutex2var_epi16(t->part[2], numbers, t->part[3]);
    return _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(0x40)),
                                 high);
}

static __attribute__((noinline)) void quantize_few(void *to, const void *from, size_t n,
                                                   const float *scale)
{
    quantize_bf16_f8e4m3(to, from, n, n, scale);
}

/* Zeros stay zeros; codes that would not be normal numbers are for the slower kernel. */
static ALWAYS_INLINE void quantize_halves(unsigned char *to, const char *from, const table_parts *t,
                                          const float *scale)
{
    __m512i values = _mm512_loadu_si512(from);
    __m512i exponents = _mm512_srli_epi16(_mm512_and_si512(values, _mm512_set1_epi16(0x7f80)), 4);
    __mmask32 is_some = _mm512_test_epi16_mask(values, _mm512_set1_epi16(0x7fff));
    __m512i codes = _mm512_maskz_add_epi16(is_some, looked_up(t, values), exponents);
    __m512i above = _mm512_sub_epi16(codes, _mm512_set1_epi16(8)); /* the least normal one */
    if (_mm512_mask_cmpgt_epu16_mask(is_some, above, _mm512_set1_epi16(0x7e - 8)) != 0) {
        quantize_few(to, from, HALVES, scale);
        return;
    }
    __m512i signs = _mm512_and_si512(_mm512_srli_epi16(values, 8), _mm512_set1_epi16(0x80));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi16_epi8(_mm512_or_si512(codes, signs)));
}

static void quantize_by_tables(void *to, const void *from, size_t n, size_t width,
                               const fy_code_table *tables)
{
    unsigned char *codes = to;
    const char *values = from;
    for (size_t left = n; left > 0; tables++) {
        size_t here = left < width ? left : width, i = 0;
        table_parts t = load_table(tables);
        for (; i + HALVES <= here; i += HALVES) {
            quantize_halves(codes + i, values + 2 * i, &t, &tables->scale);
        }
        if (i < here) {
            quantize_few(codes + i, values + 2 * i, here - i, &tables->scale);
        }
        codes += here;
        values += 2 * here;
        left -= here;
    }
}

/* Signs are exchanged, as a scale may be negative; that of NaN stays as it is in the table. */
static ALWAYS_INLINE void dequantize_halves(char *to, const unsigned char *from,
                                            const table_parts *t)
{
    __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)from));
    __m512i values = looked_up(t, codes);
    __m512i magnitudes = _mm512_and_si512(values, _mm512_set1_epi16(0x7fff));
    __mmask32 is_number = _mm512_cmple_epu16_mask(magnitudes, _mm512_set1_epi16(0x7f80));
    __m512i signs = _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(-0x8000));
    signs = _mm512_maskz_mov_epi16(is_number, signs);
    _mm512_storeu_si512(to, _mm512_xor_si512(values, signs));
}

static void dequantize_by_tables(void *to, const void *from, size_t n, size_t width,
                                 const fy_code_table *tables)
{
    char *values = to;
    const unsigned char *codes = from;
    for (size_t left = n; left > 0; tables++) {
        size_t here = left < width ? left : width, i = 0;
        table_parts t = load_table(tables);
        for (; i + HALVES <= here; i += HALVES) {
            dequantize_halves(values + 2 * i, codes + i, &t);
        }
        if (i < here) {
            dequantize_bf16_f8e4m3(values + 2 * i, codes + i, here - i, here - i, &tables->scale);
        }
        values += 2 * here;
        codes += here;
        left -= here;
    }
}
