/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantized blocks against the oracle: random formats, shapes, pitches and values, and rows worked
 * out by hand. --count N: so many random matrices.
 */
#include "convert/cast.h"
#include "convert/convert.h"
#include "exec/cast.h"
#include "oracle/convert.h"

#include "support/check.h"
#include "support/each_isa.h"
#include "support/random.h"

#include <ferry/dtype.h>

#include <stdlib.h>

enum { GUARD = 64 };

static uint32_t n_matrices = 700;

static oracle_type oracle_of(uint32_t kind)
{
    static const oracle_type of[] = {
        [FERRY_F32] = ORACLE_F32,       [FERRY_F16] = ORACLE_F16,       [FERRY_BF16] = ORACLE_BF16,
        [FERRY_F8E4M3] = ORACLE_F8E4M3, [FERRY_F8E5M2] = ORACLE_F8E5M2, [FERRY_F4] = ORACLE_F4,
        [FERRY_F8E8M0] = ORACLE_F8E8M0};
    return of[kind];
}

static oracle_block oracle_block_of(const fy_quantized *q)
{
    static const oracle_rule rules[] = {[FY_SCALE_LARGEST] = ORACLE_LARGEST,
                                        [FY_SCALE_COVER] = ORACLE_COVER,
                                        [FY_SCALE_FLOOR] = ORACLE_FLOOR};
    oracle_block block = {.from = oracle_of(q->kind),
                          .to = oracle_of(q->format.kind),
                          .scale_type = oracle_of(q->format.scale_kind),
                          .rule = rules[q->format.rule]};
    memcpy(&block.tensor_scale, &q->tensor_scale, sizeof block.tensor_scale);
    return block;
}

static uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- matrices: rows of elements of so many bits ---- */

typedef struct matrix {
    uint64_t n_rows, n_columns, pitch;
    unsigned bits;
    size_t n_bytes; /* behind which lies a guard */
    unsigned char *data;
} matrix;

static matrix matrix_of(uint64_t n_rows, uint64_t n_columns, unsigned bits, uint64_t *seed)
{
    uint64_t row_bytes = (n_columns * bits + 7) / 8;
    uint64_t gap = random_below(seed, 3) == 0 ? random_below(seed, 9) : 0;
    matrix m = {.n_rows = n_rows,
                .n_columns = n_columns,
                .bits = bits,
                .pitch = row_bytes + gap * ((bits + 7) / 8)};
    m.n_bytes = (size_t)((n_rows - 1) * m.pitch + row_bytes);
    m.data = malloc(m.n_bytes + GUARD);
    memset(m.data, 0x5a, m.n_bytes + GUARD);
    return m;
}

static uint32_t get(const matrix *m, uint64_t row, uint64_t column)
{
    const unsigned char *at = m->data + row * m->pitch + column * m->bits / 8;
    uint32_t code = 0;
    if (m->bits == 4) {
        return column % 2 == 0 ? *at & 15u : *at >> 4;
    }
    memcpy(&code, at, m->bits / 8);
    return code;
}

static void put(matrix *m, uint64_t row, uint64_t column, uint32_t code)
{
    unsigned char *at = m->data + row * m->pitch + column * m->bits / 8;
    if (m->bits == 4) {
        *at = (unsigned char)(column % 2 == 0 ? code : (*at & 15) | code << 4);
    } else {
        memcpy(at, &code, m->bits / 8);
    }
}

static fy_input input_of(const matrix *m)
{
    return (fy_input){m->data, m->n_bytes, m->pitch};
}

static fy_output output_of(const matrix *m)
{
    return (fy_output){m->data, m->n_bytes, m->pitch};
}

/* ---- random cases ---- */

static fy_quantized random_format(uint64_t *seed)
{
    static const uint32_t values[] = {FERRY_F32, FERRY_F16, FERRY_BF16};
    static const uint32_t codes[] = {FERRY_F8E4M3, FERRY_F8E4M3, FERRY_F8E5M2, FERRY_F4};
    static const uint64_t columns[] = {2, 16, 32, 64, 128, 6, 40, 1100, 2048};
    fy_quantized q = {.kind = values[random_below(seed, 3)]};
    fy_block_format *f = &q.format;
    f->kind = codes[random_below(seed, 4)];
    uint32_t n_scales = f->kind == FERRY_F4 ? 3 : 2, scale = random_below(seed, n_scales);
    f->scale_kind = scale == 0 ? FERRY_F32 : scale == 1 ? FERRY_F8E8M0 : FERRY_F8E4M3;
    f->rule = (fy_scale_rule)random_below(seed, 3);
    if (f->scale_kind == FERRY_F8E4M3) {
        f->rule = FY_SCALE_LARGEST;
    } else if (f->scale_kind == FERRY_F8E8M0 && f->rule == FY_SCALE_LARGEST) {
        f->rule = FY_SCALE_FLOOR;
    }
    f->block[0] = random_below(seed, 2) == 0 ? 1 : 1 + random_below(seed, 40);
    f->block[1] = columns[random_below(seed, COUNT_OF(columns))];
    if (f->kind != FERRY_F4 && random_below(seed, 4) == 0) {
        f->block[1] = 1 + random_below(seed, 200);
    }
    q.n_rows = 1 + random_below(seed, 50);
    q.n_columns = 1 + random_below(seed, random_below(seed, 8) == 0 ? 3000 : 200);
    return q;
}

/* A code of the type: of any size, but where all are moderate, or near the one given. */
static uint32_t random_code(oracle_type type, uint32_t near, bool is_moderate, uint64_t *seed)
{
    uint32_t mask = type == ORACLE_F32 ? 0xffffffff : 0xffff, any = (uint32_t)random_u64(seed);
    uint32_t sign = type == ORACLE_F32 ? 0x80000000 : 0x8000;
    uint32_t infinity = type == ORACLE_F32 ? 0x7f800000 : type == ORACLE_F16 ? 0x7c00 : 0x7f80;
    uint32_t what = random_below(seed, 400);
    switch (is_moderate && what > 3 ? 400 : what) {
    case 0:
        return 0;
    case 1:
        return sign;
    case 2:
        return any & 7; /* subnormal */
    case 3:
        return infinity | (any & sign);
    case 4:
        return any & mask;
    case 5:
        return (infinity - 1) | (any & sign);
    default: /* up to 12 powers of two lower */
        break;
    }
    uint32_t exponents = random_below(seed, 12) << (type == ORACLE_F32   ? 23
                                                    : type == ORACLE_F16 ? 10
                                                                         : 7);
    uint32_t mantissa = any & (type == ORACLE_F32 ? 0x7fffff : type == ORACLE_F16 ? 0x3ff : 0x7f);
    uint32_t magnitude = (near & ~sign & mask) ^ mantissa;
    magnitude = magnitude > exponents ? magnitude - exponents : magnitude;
    return (magnitude < infinity ? magnitude : infinity - 1) | (any & 1 ? sign : 0);
}

/* Some matrices have no specials at all, some blocks are zero. */
static void fill_random(const fy_quantized *q, matrix *m, uint64_t *seed)
{
    oracle_type type = oracle_of(q->kind);
    uint32_t near = (uint32_t)random_u64(seed);
    bool is_tame = random_below(seed, 2) == 0, is_moderate = random_below(seed, 2) == 0;
    if (is_moderate) { /* around 1, so that scales are neither huge nor tiny */
        near = (type == ORACLE_F32   ? 0x3f800000
                : type == ORACLE_F16 ? 0x3c00
                                     : 0x3f80) +
               (near & 0x7f);
    }
    uint32_t infinity = type == ORACLE_F32 ? 0x7f800000 : type == ORACLE_F16 ? 0x7c00 : 0x7f80;
    for (uint64_t row = 0; row < q->n_rows; row++) {
        for (uint64_t column = 0; column < q->n_columns; column++) {
            uint64_t block = row / q->format.block[0] * 7 + column / q->format.block[1];
            uint32_t code = random_code(type, near, is_moderate, seed);
            if (is_tame && (code & (type == ORACLE_F32 ? 0x7fffffff : 0x7fff)) >= infinity) {
                code = 1;
            }
            put(m, row, column, block % 13 == 5 ? 0 : code);
        }
    }
}

static void check_outside(const matrix *m)
{
    uint64_t row_bytes = (m->n_columns * m->bits + 7) / 8;
    for (uint64_t row = 0; row + 1 < m->n_rows; row++) {
        for (uint64_t at = row_bytes; at < m->pitch; at++) {
            check_at(m->data[row * m->pitch + at] == 0x5a, "behind row %llu",
                     (unsigned long long)row);
        }
    }
    for (size_t i = 0; i < GUARD; i++) {
        check_at(m->data[m->n_bytes + i] == 0x5a, "behind the matrix");
    }
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One block: gathered, quantized by the oracle, and compared. */
static void check_block(const fy_quantized *q, const matrix *values, const matrix *codes,
                        const matrix *scales, uint64_t i, uint64_t j)
{
    oracle_block block = oracle_block_of(q);
    const uint64_t *size = q->format.block;
    uint64_t end_row = least_of((i + 1) * size[0], q->n_rows);
    uint64_t end_column = least_of((j + 1) * size[1], q->n_columns);
    size_t n = (size_t)((end_row - i * size[0]) * (end_column - j * size[1])), at = 0;
    uint32_t *elements = malloc(n * sizeof *elements), *wanted = malloc(n * sizeof *wanted);
    for (uint64_t row = i * size[0]; row < end_row; row++) {
        for (uint64_t column = j * size[1]; column < end_column; column++) {
            elements[at++] = get(values, row, column);
        }
    }
    uint32_t scale = oracle_quantize(&block, elements, n, wanted);
    check_at(get(scales, i, j) == scale,
             "scale %llu, %llu is %x, not %x (kind %u, codes %u, scales %u, rule %d)",
             (unsigned long long)i, (unsigned long long)j, get(scales, i, j), scale, q->kind,
             q->format.kind, q->format.scale_kind, (int)q->format.rule);
    at = 0;
    for (uint64_t row = i * size[0]; row < end_row; row++) {
        for (uint64_t column = j * size[1]; column < end_column; column++, at++) {
            check_at(get(codes, row, column) == wanted[at],
                     "%x / %x is %x, not %x (kind %u, codes %u, scales %u, rule %d)", elements[at],
                     scale, get(codes, row, column), wanted[at], q->kind, q->format.kind,
                     q->format.scale_kind, (int)q->format.rule);
        }
    }
    free(elements);
    free(wanted);
}

static void check_back(const fy_quantized *q, const matrix *codes, const matrix *scales,
                       const matrix *values)
{
    oracle_block block = oracle_block_of(q);
    for (uint64_t row = 0; row < q->n_rows; row++) {
        for (uint64_t column = 0; column < q->n_columns; column++) {
            uint32_t code = get(codes, row, column);
            uint32_t scale = get(scales, row / q->format.block[0], column / q->format.block[1]);
            uint32_t wanted = oracle_dequantize(&block, code, scale);
            check_at(get(values, row, column) == wanted,
                     "%x x %x is %x, not %x (kind %u, codes %u, scales %u)", code, scale,
                     get(values, row, column), wanted, q->kind, q->format.kind,
                     q->format.scale_kind);
        }
    }
}

/* The same of codes that are cast first, and then multiplied where they lie. */
static void check_in_place(const fy_quantized *q, const matrix *codes, const matrix *scales,
                           matrix *values)
{
    ferry_error error;
    fy_input codes_in = input_of(codes), scales_in = input_of(scales);
    fy_output values_out = output_of(values);
    if (q->format.kind == FERRY_F4) {
        return; /* which is no cast */
    }
    must(fy_cast_run(&(fy_cast_matrix){.from_kind = q->format.kind,
                                       .to_kind = q->kind,
                                       .n_rows = q->n_rows,
                                       .n_columns = q->n_columns,
                                       .from = codes_in,
                                       .to = values_out},
                     &error),
         &error);
    must(fy_scale_values(q, &scales_in, &values_out, &error), &error);
    check_back(q, codes, scales, values);
}

static unsigned bits_of(uint32_t kind)
{
    return (unsigned)oracle_bits(oracle_of(kind));
}

static void check_matrix(fy_quantized q, uint64_t seed)
{
    ferry_error error;
    uint64_t shape[2];
    fy_scales_shape(&q, shape);
    matrix values = matrix_of(q.n_rows, q.n_columns, bits_of(q.kind), &seed);
    matrix back = matrix_of(q.n_rows, q.n_columns, bits_of(q.kind), &seed);
    matrix codes = matrix_of(q.n_rows, q.n_columns, bits_of(q.format.kind), &seed);
    matrix scales = matrix_of(shape[0], shape[1], bits_of(q.format.scale_kind), &seed);
    fy_input values_in = input_of(&values), codes_in = input_of(&codes);
    fy_input scales_in = input_of(&scales);
    fy_output codes_out = output_of(&codes), scales_out = output_of(&scales);
    fy_output back_out = output_of(&back);
    fill_random(&q, &values, &seed);
    if (q.format.scale_kind == FERRY_F8E4M3) {
        float largest;
        must(fy_largest(q.kind, q.n_rows, q.n_columns, &values_in, &largest, &error), &error);
        q.tensor_scale = fy_tensor_scale(&q.format, largest);
    }
    must(fy_quantize(&q, &values_in, &codes_out, &scales_out, &error), &error);
    for (uint64_t i = 0; i < shape[0]; i++) {
        for (uint64_t j = 0; j < shape[1]; j++) {
            check_block(&q, &values, &codes, &scales, i, j);
        }
    }
    must(fy_dequantize(&q, &codes_in, &scales_in, &back_out, &error), &error);
    check_back(&q, &codes, &scales, &back);
    /* Any codes, and any scales. */
    for (uint64_t row = 0; row < q.n_rows; row++) {
        for (uint64_t column = 0; column < q.n_columns; column++) {
            put(&codes, row, column,
                (uint32_t)random_u64(&seed) & (bits_of(q.format.kind) == 4 ? 15 : 255));
            if (row < shape[0] && column < shape[1] && random_below(&seed, 3) == 0) {
                put(&scales, row, column,
                    (uint32_t)random_u64(&seed) &
                        (bits_of(q.format.scale_kind) == 32 ? 0xffffffff : 255));
            }
        }
    }
    must(fy_dequantize(&q, &codes_in, &scales_in, &back_out, &error), &error);
    check_back(&q, &codes, &scales, &back);
    check_in_place(&q, &codes, &scales, &back);
    matrix *all[] = {&values, &back, &codes, &scales};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        check_outside(all[i]);
        free(all[i]->data);
    }
}

static void test_random_matrices(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= n_matrices; seed++) {
        uint64_t of_format = seed + 1000000;
        check_matrix(random_format(&of_format), seed);
    }
}

/* Blocks as large as those of real weights, some of which have a faster way. */
static void test_large_blocks(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {FERRY_BF16, FERRY_BF16, FERRY_BF16, FERRY_F32, FERRY_F16};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        fy_quantized q = {.format = fy_format_f8(128, 128),
                          .kind = kinds[seed % COUNT_OF(kinds)],
                          .n_rows = 150,
                          .n_columns = 300};
        q.format.rule = (fy_scale_rule)(seed % 3);
        check_matrix(q, seed);
        q.format.block[0] = 2; /* longer than what goes through f32 at once */
        q.format.block[1] = 1100;
        q.n_rows = 3;
        q.n_columns = 2600;
        check_matrix(q, seed);
    }
}

/* All bf16 in one block, each of which has a scale of its own size; and its mantissas again. */
static void test_every_bf16_by_many_scales(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (uint32_t largest = 0x0001; largest < 0x7f80; largest += 211) {
        ferry_error error;
        fy_quantized q = {
            .format = fy_format_f8(128, 256), .kind = FERRY_BF16, .n_rows = 128, .n_columns = 256};
        matrix values = matrix_of(128, 256, 16, &seed), codes = matrix_of(128, 256, 8, &seed);
        matrix scales = matrix_of(1, 1, 32, &seed);
        for (uint32_t i = 0; i < 32768; i++) {
            uint32_t magnitude = i <= largest ? i : largest - i % (largest < 4096 ? largest : 4096);
            put(&values, i / 256, i % 256, magnitude | (i % 3 == 0 ? 0x8000 : 0));
        }
        fy_input in = input_of(&values);
        fy_output codes_out = output_of(&codes), scales_out = output_of(&scales);
        must(fy_quantize(&q, &in, &codes_out, &scales_out, &error), &error);
        check_block(&q, &values, &codes, &scales, 0, 0);
        free(values.data);
        free(codes.data);
        free(scales.data);
    }
}

/* Every code of every type, times scales of every kind that matters. */
static void test_every_code_back(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16};
    static const uint32_t f32_scales[] = {0x3f800000, 0xbf800000, 0x00000000, 0x80000000,
                                          0x7f800000, 0x7fc12345, 0x00000001, 0x7f7fffff,
                                          0x3eaaaaab, 0x38d1b717, 0x47c35000, 0x00800000};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        for (size_t s = 0; s < COUNT_OF(f32_scales); s++) {
            for (int e5m2 = 0; e5m2 < 2; e5m2++) {
                ferry_error error;
                uint64_t seed = 2;
                fy_quantized q = {.format = fy_format_f8(1, 256),
                                  .kind = kinds[k],
                                  .n_rows = 1,
                                  .n_columns = 256};
                q.format.kind = e5m2 ? FERRY_F8E5M2 : FERRY_F8E4M3;
                matrix codes = matrix_of(1, 256, 8, &seed), scales = matrix_of(1, 1, 32, &seed);
                matrix values = matrix_of(1, 256, bits_of(q.kind), &seed);
                for (uint32_t code = 0; code < 256; code++) {
                    put(&codes, 0, code, code);
                }
                put(&scales, 0, 0, f32_scales[s]);
                fy_input codes_in = input_of(&codes), scales_in = input_of(&scales);
                fy_output values_out = output_of(&values);
                must(fy_dequantize(&q, &codes_in, &scales_in, &values_out, &error), &error);
                check_back(&q, &codes, &scales, &values);
                free(codes.data);
                free(scales.data);
                free(values.data);
            }
        }
    }
}

/* All codes of f4 by all scales of a block: at once, in the two steps of plans (codes are widened
 * within a copy, and multiplied where they lie), and in steps of copies alone. */
static void check_every_f4(const fy_quantized *q, const matrix *codes, const matrix *scales)
{
    uint64_t seed = 3, n = q->n_columns, bytes = bits_of(q->kind) / 8;
    matrix values = matrix_of(1, n, bits_of(q->kind), &seed);
    fy_input codes_in = input_of(codes), scales_in = input_of(scales);
    fy_output values_out = output_of(&values);
    fy_area from = fy_area_flat(0, n / 2), to = fy_area_flat(0, n * bytes);
    fy_cast pairs = {.from_kind = FERRY_F4, .to_kind = q->kind, .n_rows = 1, .n_columns = n / 2};
    enum { APART = 3 }; /* scales may lie so, as in a transpose */
    unsigned char *apart = calloc(n / 16, APART);
    for (uint64_t i = 0; i < n / 16; i++) {
        apart[i * APART] = scales->data[i];
    }
    fy_cast product = {.from_kind = q->kind,
                       .to_kind = q->kind,
                       .has_plain_nans = true,
                       .n_rows = 1,
                       .n_columns = n,
                       .from_scales = {.codes = apart,
                                       .of_matrices = &q->tensor_scale,
                                       .block = {1, 16},
                                       .pitch = n / 16 * APART,
                                       .step = APART}};
    ferry_error error;
    must(fy_dequantize(q, &codes_in, &scales_in, &values_out, &error), &error);
    check_back(q, codes, scales, &values);
    fy_area_cast_cached(&pairs, &to, values.data, &from, codes->data, 0, n / 2);
    must(fy_scale_values(q, &scales_in, &values_out, &error), &error);
    check_back(q, codes, scales, &values);
    fy_area_cast_cached(&pairs, &to, values.data, &from, codes->data, 0, n / 2);
    fy_area_cast_cached(&product, &to, values.data, &to, values.data, 0, n);
    check_back(q, codes, scales, &values);
    check_outside(&values);
    free(values.data);
    free(apart);
}

static void test_every_f4_by_every_scale(void **state)
{
    (void)state;
    static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16};
    static const float tensor_scales[] = {1, 0x1p-117f, 0x1p119f, 0.7853982F, 0x1.fffffep-14f};
    enum { N = 256 * 16 };
    uint64_t seed = 4;
    matrix codes = matrix_of(1, N, 4, &seed), scales = matrix_of(1, N / 16, 8, &seed);
    for (uint32_t i = 0; i < N; i++) {
        put(&codes, 0, i, (i + 5 * (i / 16)) & 15); /* each in every place of a block */
        put(&scales, 0, i / 16, i / 16);
    }
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        for (size_t t = 0; t < COUNT_OF(tensor_scales); t++) {
            fy_quantized q = {.format = fy_format_nvfp4(),
                              .kind = kinds[k],
                              .tensor_scale = tensor_scales[t],
                              .n_rows = 1,
                              .n_columns = N};
            check_every_f4(&q, &codes, &scales);
        }
    }
    free(codes.data);
    free(scales.data);
}

/* Of any length, also where the last byte has one code that is meant. */
static void test_lengths_of_f4(void **state)
{
    (void)state;
    enum { MOST = 70 };
    static const float worth[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    uint64_t seed = 5;
    unsigned char codes[MOST];
    float values[MOST + 1];
    for (uint64_t i = 0; i < MOST; i++) {
        codes[i] = (unsigned char)random_u64(&seed);
    }
    for (uint32_t n = 0; n <= MOST; n++) {
        uint32_t begin = n % 7;
        values[n] = 12;
        fy_widen(fy_convert_kernels_here(), FERRY_F4, values, codes + begin, n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t code = codes[begin + i / 2] >> (i % 2 * 4) & 15;
            uint32_t wanted = f32_bits(worth[code & 7]) | (code & 8) << 28;
            assert_int_equal(f32_bits(values[i]), wanted);
        }
        assert_true(values[n] == 12);
    }
}

/* ---- by hand ---- */

static void quantize_row(const fy_quantized *q, const float *values, unsigned char *codes,
                         void *scales)
{
    ferry_error error;
    fy_input in = {values, q->n_columns * sizeof *values, 0};
    fy_output codes_out = {codes, fy_codes_row_bytes(q), 0};
    uint64_t shape[2];
    fy_scales_shape(q, shape);
    fy_output scales_out = {scales, shape[1] * (q->format.scale_kind == FERRY_F32 ? 4 : 1), 0};
    must(fy_quantize(q, &in, &codes_out, &scales_out, &error), &error);
}

static float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_f8_by_hand(void **state)
{
    (void)state;
    float nan = f32_of(0xffc00001), infinity = f32_of(0x7f800000);
    const float values[12] = {448,  1,     -2,       -0.0f, /* scale 1 */
                              0,    -0.0f, 0,        0,     /* of zeros: 1 */
                              -896, nan,   infinity, 4};    /* scale 2 */
    static const unsigned char wanted[12] = {0x7e, 0x38, 0xc0, 0x80, 0x00, 0x80,
                                             0x00, 0x00, 0xfe, 0xff, 0x7f, 0x40};
    unsigned char codes[12];
    float scales[3];
    fy_quantized q = {
        .format = fy_format_f8(1, 4), .kind = FERRY_F32, .n_rows = 1, .n_columns = 12};
    quantize_row(&q, values, codes, scales);
    assert_memory_equal(codes, wanted, sizeof codes);
    assert_true(scales[0] == 1 && scales[1] == 1 && scales[2] == 2);

    /* 1 / 448, rounded; and of the least f32, where the quotient would be 0: 2^-126. */
    const float small[8] = {1, 0.5f, 0, 0, 0x1p-149f, 0, 0, 0};
    q.n_columns = 8;
    quantize_row(&q, small, codes, scales);
    assert_int_equal(f32_bits(scales[0]), 0x3b124925);
    assert_int_equal(f32_bits(scales[1]), 0x00800000);
    assert_int_equal(codes[0], 0x7e);
    assert_int_equal(codes[1], 0x76);
    assert_int_equal(codes[4], 0x00); /* 2^-23 of the least scale */

    /* Only what is no number: the scale is 1. */
    const float none[4] = {nan, infinity, -infinity, nan};
    static const unsigned char none_wanted[4] = {0xff, 0x7f, 0xff, 0xff};
    q.n_columns = 4;
    quantize_row(&q, none, codes, scales);
    assert_memory_equal(codes, none_wanted, sizeof none_wanted);
    assert_true(scales[0] == 1);
    q.format.kind = FERRY_F8E5M2; /* which has an infinity */
    static const unsigned char e5m2_wanted[4] = {0xff, 0x7c, 0xfc, 0xff};
    quantize_row(&q, none, codes, scales);
    assert_memory_equal(codes, e5m2_wanted, sizeof e5m2_wanted);
}

static void test_powers_by_hand(void **state)
{
    (void)state;
    static const struct {
        fy_scale_rule rule;
        uint32_t largest; /* f32 */
        uint32_t kind;
        unsigned scale, code;
    } rows[] = {
        {FY_SCALE_FLOOR, 0x3f800000, FERRY_F8E4M3, 127 - 8, 0x78}, /* 1 is 256 x 2^-8 */
        {FY_SCALE_FLOOR, 0x3fffffff, FERRY_F8E4M3, 127 - 8, 0x7e}, /* nearly 512: saturates */
        {FY_SCALE_COVER, 0x3fe00000, FERRY_F8E4M3, 127 - 8, 0x7e}, /* 448 x 2^-8 */
        {FY_SCALE_COVER, 0x3fe00001, FERRY_F8E4M3, 127 - 7, 0x76}, /* a little more: 224 x 2^-7 */
        {FY_SCALE_COVER, 0x3f800000, FERRY_F8E4M3, 127 - 8, 0x78},
        {FY_SCALE_FLOOR, 0x3f800000, FERRY_F8E5M2, 127 - 15, 0x78}, /* 2^15 */
        {FY_SCALE_FLOOR, 0x3f800000, FERRY_F4, 127 - 2, 6},         /* 4 */
        {FY_SCALE_COVER, 0x40c00000, FERRY_F4, 127, 7},             /* 6 */
        {FY_SCALE_COVER, 0x40c00001, FERRY_F4, 128, 5},             /* 3 */
        {FY_SCALE_FLOOR, 0x7f7fffff, FERRY_F8E4M3, 127 + 119, 0x7e},
        {FY_SCALE_COVER, 0x7f7fffff, FERRY_F8E4M3, 127 + 120, 0x78},
        {FY_SCALE_FLOOR, 0x00000001, FERRY_F8E4M3, 0, 0x00}, /* 2^-149 / 2^-127 = 2^-22 */
        {FY_SCALE_FLOOR, 0x00400000, FERRY_F8E4M3, 0, 0x38}, /* 2^-127 */
        {FY_SCALE_FLOOR, 0x03800000, FERRY_F8E4M3, 0, 0x70}, /* 2^-120: 128 x the least */
        {FY_SCALE_FLOOR, 0x04800000, FERRY_F8E4M3, 1, 0x78}, /* 2^-118: 256 x 2^-126 */
        {FY_SCALE_FLOOR, 0x00000000, FERRY_F8E4M3, 127, 0x00},
        {FY_SCALE_FLOOR, 0x7fc00000, FERRY_F8E4M3, 127, 0x7f},
        {FY_SCALE_FLOOR, 0x7fc00000, FERRY_F4, 255, 0},
        {FY_SCALE_FLOOR, 0xff800000, FERRY_F4, 255, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const float value = f32_of(rows[i].largest);
        unsigned char code, scale;
        float wide;
        fy_quantized q = {
            .format = fy_format_mxfp8(), .kind = FERRY_F32, .n_rows = 1, .n_columns = 1};
        q.format.rule = rows[i].rule;
        q.format.kind = rows[i].kind;
        quantize_row(&q, &value, &code, &scale);
        check_at(scale == rows[i].scale && code == rows[i].code, "row %zu: %u, %02x", i, scale,
                 code);
        /* The same as an f32, which goes no lower than 2^-126. */
        q.format.scale_kind = FERRY_F32;
        quantize_row(&q, &value, &code, &wide);
        uint32_t wanted = rows[i].scale == 255 ? 0x7fc00000
                          : rows[i].scale == 0 ? 0x00800000
                                               : rows[i].scale << 23;
        check_at(f32_bits(wide) == wanted, "row %zu: %08x", i, f32_bits(wide));
    }
}

static void test_nvfp4_by_hand(void **state)
{
    (void)state;
    ferry_error error;
    float values[35] = {2688, -448, 224, 672}; /* the scale of the tensor is 1, of the block 448 */
    float largest, back[35];
    unsigned char codes[18], scales[3];
    fy_quantized q = {.format = fy_format_nvfp4(), .kind = FERRY_F32, .n_rows = 1, .n_columns = 35};
    values[16] = -6;    /* a block whose scale is 1 */
    values[17] = 0.75f; /* a tie: to 1, which is even */
    values[18] = 0.25f; /* a tie: to 0 */
    values[19] = -0.0f;
    values[20] = 5; /* a tie: to 4 */
    values[32] = 0.001f;
    values[34] = 0.02f;
    fy_input in = {values, sizeof values, 0};
    must(fy_largest(FERRY_F32, 1, 35, &in, &largest, &error), &error);
    assert_true(largest == 2688);
    q.tensor_scale = fy_tensor_scale(&q.format, largest);
    assert_true(q.tensor_scale == 1);
    quantize_row(&q, values, codes, scales);
    static const unsigned char wanted[] = {0xa7, 0x31};
    assert_memory_equal(codes, wanted, 2); /* 6 and -1, 0.5 and 1.5, the first in the lower half */
    static const unsigned char second[] = {0x2f, 0x80, 0x06};
    assert_memory_equal(codes + 8, second, 3);
    assert_int_equal(scales[0], 0x7e);
    assert_int_equal(scales[1], 0x38);
    assert_int_equal(scales[2], 0x02); /* 0.02 / 6, to the nearest: 2 x 2^-9 */
    assert_int_equal(codes[17], 0x07); /* 0.02 x 2^8 = 5.12: to 6 */

    fy_input codes_in = {codes, sizeof codes, 0}, scales_in = {scales, sizeof scales, 0};
    fy_output out = {back, sizeof back, 0};
    must(fy_dequantize(&q, &codes_in, &scales_in, &out, &error), &error);
    assert_true(back[0] == 2688 && back[1] == -448 && back[2] == 224 && back[3] == 672);
    assert_true(back[16] == -6 && back[17] == 1 && back[18] == 0 && back[20] == 4);
    assert_true(f32_bits(back[19]) == 0x80000000 && back[34] == 6 * 0x1p-8f);

    /* What is no number spoils its block, and no other. */
    values[3] = f32_of(0x7f800000);
    quantize_row(&q, values, codes, scales);
    assert_int_equal(scales[0], 0x7f);
    assert_int_equal(codes[0], 0);
    assert_int_equal(scales[1], 0x38);
    must(fy_dequantize(&q, &codes_in, &scales_in, &out, &error), &error);
    assert_true(f32_bits(back[0]) == 0x7fc00000 && f32_bits(back[15]) == 0x7fc00000);
    assert_true(back[16] == -6);

    assert_true(fy_tensor_scale(&q.format, 0) == 1);
    assert_true(fy_tensor_scale(&q.format, 0x1p-149f) == 0x1p-117f);
}

/* ---- refusals ---- */

typedef struct refusal {
    const char *says;
    ferry_status status;
    fy_quantized q;
    uint64_t values_bytes, codes_bytes, scales_bytes;
} refusal;

static void test_refusals(void **state)
{
    (void)state;
    static float memory[256];
    static unsigned char codes[256], scales[64];
    const fy_quantized good = {
        .format = fy_format_f8(2, 4), .kind = FERRY_F32, .n_rows = 3, .n_columns = 5};
    refusal rows[] = {
        {"values of kind 9", FERRY_ERR_UNSUPPORTED, good, 60, 15, 16},
        {"codes of kind 2", FERRY_ERR_UNSUPPORTED, good, 60, 15, 16},
        {"scales of kind 5", FERRY_ERR_UNSUPPORTED, good, 60, 15, 16},
        {"powers of two", FERRY_ERR_UNSUPPORTED, good, 60, 15, 16},
        {"blocks of 2 x 0 are empty", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"the middle of a byte", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"the scale of the tensor is 0", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"of no use", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"the values to quantize: 3 rows of 20 bytes", FERRY_ERR_INVALID_INPUT, good, 59, 15, 16},
        {"the codes: 3 rows of 5 bytes", FERRY_ERR_INVALID_INPUT, good, 60, 14, 16},
        {"the scales: 2 rows of 8 bytes, 8 apart, do not fit into the 15", FERRY_ERR_INVALID_INPUT,
         good, 60, 15, 15},
        {"too many bytes", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"the scale of the tensor is nan", FERRY_ERR_INVALID_INPUT, good, 60, 15, 16},
        {"rule 3", FERRY_ERR_UNSUPPORTED, good, 60, 15, 16},
    };
    rows[0].q.kind = FERRY_I64;
    rows[1].q.format.kind = FERRY_F32;
    rows[2].q.format.scale_kind = FERRY_F8E4M3;
    rows[3].q.format.scale_kind = FERRY_F8E8M0;
    rows[4].q.format.block[1] = 0;
    rows[5].q.format.kind = FERRY_F4;
    rows[5].q.format.block[1] = 5;
    rows[6].q.format = fy_format_nvfp4();
    rows[7].q.tensor_scale = 1;
    rows[11].q.n_columns = UINT64_MAX / 2;
    rows[12].q.format = fy_format_nvfp4();
    rows[12].q.tensor_scale = f32_of(0x7fc00000);
    rows[13].q.format.rule = (fy_scale_rule)3;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        const refusal *r = &rows[i];
        fy_input values_in = {memory, r->values_bytes, 0}, codes_in = {codes, r->codes_bytes, 0};
        fy_input scales_in = {scales, r->scales_bytes, 0};
        fy_output values_out = {memory, r->values_bytes, 0};
        fy_output codes_out = {codes, r->codes_bytes, 0};
        fy_output scales_out = {scales, r->scales_bytes, 0};
        check_status(r->says, r->status,
                     fy_quantize(&r->q, &values_in, &codes_out, &scales_out, &error), &error);
        check_says(r->says, r->says, &error);
        check_status(r->says, r->status,
                     fy_dequantize(&r->q, &codes_in, &scales_in, &values_out, &error), &error);
        if (strstr(r->says, "codes: ") == NULL) { /* which it has none of */
            check_status(r->says, r->status,
                         fy_scale_values(&r->q, &scales_in, &values_out, &error), &error);
        }
    }
}

/* What has neither values nor blocks, and what is asked of their magnitudes. */
static void test_refused_magnitudes(void **state)
{
    (void)state;
    static float memory[256];
    ferry_error error;
    float largest = -1;
    fy_input values_in = {memory, 60, 0};
    check_status("largest", FERRY_ERR_UNSUPPORTED,
                 fy_largest(FERRY_F64, 3, 5, &values_in, &largest, &error), &error);
    check_status("largest", FERRY_ERR_INVALID_INPUT,
                 fy_largest(FERRY_F32, 3, 6, &values_in, &largest, &error), &error);
    assert_true(largest == -1);
    must(fy_largest(FERRY_F32, 0, 0, &values_in, &largest, &error), &error);
    assert_true(largest == 0);
    fy_quantized empty = {
        .format = fy_format_f8(2, 4), .kind = FERRY_F32, .n_rows = 3, .n_columns = 5};
    fy_input none = {0};
    fy_output nowhere = {0};
    empty.n_columns = 0;
    must(fy_quantize(&empty, &none, &nowhere, &nowhere, &error), &error);
    must(fy_dequantize(&empty, &none, &none, &nowhere, &error), &error);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f8_by_hand),
        cmocka_unit_test(test_powers_by_hand),
        cmocka_unit_test(test_nvfp4_by_hand),
        cmocka_unit_test(test_every_f4_by_every_scale),
        cmocka_unit_test(test_lengths_of_f4),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_magnitudes),
        cmocka_unit_test(test_every_code_back),
        cmocka_unit_test(test_random_matrices),
        cmocka_unit_test(test_large_blocks),
        cmocka_unit_test(test_every_bf16_by_many_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--count") == 0) {
        n_matrices = (uint32_t)strtoul(argv[2], NULL, 10);
    }
    return run_with_each_isa(run_all);
}
