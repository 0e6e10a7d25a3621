/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts of whole matrices against the oracle: every code of the small types to every type, f32 by
 * a stride and around every place where a type rounds up instead of down, with and without
 * saturation. --stride N changes the stride.
 */
#include "convert/convert.h"
#include "oracle/convert.h"

#include "support/check.h"
#include "support/each_isa.h"
#include "support/random.h"

#include <ferry/dtype.h>

#include <fenv.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t stride = 10007;

static const struct type {
    const char *name;
    uint32_t kind;
    oracle_type oracle;
    size_t bytes;
} types[] = {
    {"f32", FERRY_F32, ORACLE_F32, 4},          {"f16", FERRY_F16, ORACLE_F16, 2},
    {"bf16", FERRY_BF16, ORACLE_BF16, 2},       {"f8e4m3", FERRY_F8E4M3, ORACLE_F8E4M3, 1},
    {"f8e5m2", FERRY_F8E5M2, ORACLE_F8E5M2, 1},
};

static uint32_t code_at(const struct type *t, const char *data, size_t i)
{
    uint32_t code = 0; /* of little-endian machines, as all that ferry runs on */
    memcpy(&code, data + i * t->bytes, t->bytes);
    return code;
}

static void put_code(const struct type *t, char *data, size_t i, uint32_t code)
{
    memcpy(data + i * t->bytes, &code, t->bytes);
}

/* ---- one row of codes ---- */

static void check_codes(const struct type *f, const struct type *t, fy_overflow overflow,
                        const uint32_t *codes, size_t n)
{
    ferry_error error;
    char *from = malloc(n * f->bytes), *to = malloc(n * t->bytes + 64);
    for (size_t i = 0; i < n; i++) {
        put_code(f, from, i, codes[i]);
    }
    memset(to, 0x5a, n * t->bytes + 64);
    fy_cast_matrix cast = {.from_kind = f->kind,
                           .to_kind = t->kind,
                           .overflow = overflow,
                           .n_rows = 1,
                           .n_columns = n,
                           .from = {from, n * f->bytes, 0},
                           .to = {to, n * t->bytes, 0}};
    must(fy_cast_run(&cast, &error), &error);
    for (size_t i = 0; i < n; i++) {
        uint32_t got = code_at(t, to, i);
        uint32_t wanted =
            oracle_cast(f->oracle, codes[i], t->oracle, overflow == FY_OVERFLOW_SATURATE);
        check_at(got == wanted, "%s %08x to %s%s: %08x, not %08x", f->name, codes[i], t->name,
                 overflow == FY_OVERFLOW_SATURATE ? ", saturating" : "", got, wanted);
    }
    for (size_t i = 0; i < 64; i++) {
        assert_true(to[n * t->bytes + i] == 0x5a);
    }
    free(from);
    free(to);
}

static void check_to_all(const struct type *f, const uint32_t *codes, size_t n)
{
    for (size_t j = 0; j < COUNT_OF(types); j++) {
        check_codes(f, &types[j], FY_OVERFLOW_PLAIN, codes, n);
        check_codes(f, &types[j], FY_OVERFLOW_SATURATE, codes, n);
    }
}

static void test_every_code_to_every_type(void **state)
{
    (void)state;
    uint32_t *codes = malloc(65536 * sizeof *codes);
    for (uint32_t code = 0; code < 65536; code++) {
        codes[code] = code;
    }
    for (size_t i = 1; i < COUNT_OF(types); i++) {
        check_to_all(&types[i], codes, (size_t)1 << 8 * types[i].bytes);
    }
    free(codes);
}

static void test_f32_by_a_stride(void **state)
{
    (void)state;
    size_t n = 0xffffffffu / stride + 1, at_once = 1 << 20;
    uint32_t *codes = malloc(at_once * sizeof *codes);
    for (size_t first = 0; first < n; first += at_once) {
        size_t here = n - first < at_once ? n - first : at_once;
        for (size_t i = 0; i < here; i++) {
            codes[i] = (uint32_t)((first + i) * stride);
        }
        check_to_all(&types[0], codes, here);
    }
    free(codes);
}

static float f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits of what lies half way between two: exact, as f32 has more digits than either. */
static uint32_t middle(uint32_t a, uint32_t b)
{
    float value = (float)(((double)f32_of(a) + (double)f32_of(b)) / 2);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void test_f32_around_every_boundary(void **state)
{
    (void)state;
    uint32_t *codes = malloc((size_t)20 * 32768 * sizeof *codes);
    for (size_t i = 1; i < COUNT_OF(types); i++) {
        size_t n = 0;
        uint32_t n_codes = 1u << (8 * types[i].bytes - 1), before = 0, beyond = 0;
        for (uint32_t code = 0; code < n_codes; code++) {
            uint32_t at = oracle_cast(types[i].oracle, code, ORACLE_F32, false);
            bool is_beyond = at >= 0x7f800000; /* then: where the next number would be */
            uint32_t place = is_beyond ? before + (before - beyond) : at;
            uint32_t places[] = {place, middle(before, place)};
            for (size_t j = 0; j < 2; j++) {
                for (uint32_t step = 0; step < 5; step++) {
                    codes[n++] = places[j] - 2 + step;
                    codes[n++] = (places[j] - 2 + step) | 0x80000000;
                }
            }
            if (is_beyond) {
                break;
            }
            beyond = before;
            before = at;
        }
        check_codes(&types[0], &types[i], FY_OVERFLOW_PLAIN, codes, n);
        check_codes(&types[0], &types[i], FY_OVERFLOW_SATURATE, codes, n);
    }
    free(codes);
}

static void test_special_f32(void **state)
{
    (void)state;
    static const uint32_t codes[] = {
        0,          0x80000000, 1,          0x80000001, 0x7fffff,   0x800000,   0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001,
        0x7fffffff, 0xffffffff, 0x7fa12345, 0x7fbfffff, 0x43e80000, 0x43e80001, 0x43e7ffff,
        0x47700000, 0x476fffff, 0x477ff000, 0x477fefff, 0x7f7f8000, 0x7f7f7fff};
    check_to_all(&types[0], codes, COUNT_OF(codes));
}

/* What the table in convert.h says, worked out by hand. */
static void test_by_hand(void **state)
{
    (void)state;
    static const struct {
        uint32_t to, from, plain, saturated;
    } rows[] = {
        {FERRY_F8E4M3, 0x3f800000, 0x38, 0x38},         /* 1 */
        {FERRY_F8E4M3, 0x43e80000, 0x7e, 0x7e},         /* 464: a tie, to 448, which is even */
        {FERRY_F8E4M3, 0x43e80001, 0x7f, 0x7e},         /* a little more */
        {FERRY_F8E4M3, 0xc4000000, 0xff, 0xfe},         /* -512 */
        {FERRY_F8E4M3, 0x7f800000, 0x7f, 0x7e},         /* infinity */
        {FERRY_F8E4M3, 0xffc00000, 0xff, 0xff},         /* -NaN */
        {FERRY_F8E4M3, 0x80000000, 0x80, 0x80},         /* -0 */
        {FERRY_F8E4M3, 0x3b000000, 0x01, 0x01},         /* 2^-9 */
        {FERRY_F8E4M3, 0x3a800000, 0x00, 0x00},         /* 2^-10: a tie, to 0 */
        {FERRY_F8E4M3, 0x3a800001, 0x01, 0x01},         /* a little more */
        {FERRY_F8E5M2, 0x47700000, 0x7c, 0x7b},         /* 61440: a tie, to infinity */
        {FERRY_F8E5M2, 0x476fffff, 0x7b, 0x7b},         /* a little less: 57344 */
        {FERRY_F8E5M2, 0xff800000, 0xfc, 0xfc},         /* -infinity */
        {FERRY_F16, 0x477ff000, 0x7c00, 0x7bff},        /* 65520: a tie, to infinity */
        {FERRY_F16, 0x7fa12345, 0x7f09, 0x7f09},        /* NaN: quiet, with its upper bits */
        {FERRY_F16, 0x33000000, 0x0000, 0x0000},        /* 2^-25: a tie, to 0 */
        {FERRY_BF16, 0x7f7f8000, 0x7f80, 0x7f7f},       /* a tie, to infinity */
        {FERRY_BF16, 0x3f808000, 0x3f80, 0x3f80},       /* a tie, down to even */
        {FERRY_BF16, 0x3f818000, 0x3f82, 0x3f82},       /* a tie, up to even */
        {FERRY_BF16, 0x7f800001, 0x7fc0, 0x7fc0},       /* NaN that would have become infinite */
        {FERRY_BF16, 0x00000001, 0x0000, 0x0000},       /* 2^-149 */
        {FERRY_BF16, 0x00018000, 0x0002, 0x0002},       /* a subnormal tie, up to even */
        {FERRY_F32, 0x7f800001, 0x7f800001, 0x7f800001} /* a copy */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int saturates = 0; saturates < 2; saturates++) {
            ferry_error error;
            uint32_t got = 0, wanted = saturates ? rows[i].saturated : rows[i].plain;
            fy_cast_matrix cast = {.from_kind = FERRY_F32,
                                   .to_kind = rows[i].to,
                                   .overflow = saturates ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN,
                                   .n_rows = 1,
                                   .n_columns = 1,
                                   .from = {&rows[i].from, 4, 0},
                                   .to = {&got, 4, 0}};
            must(fy_cast_run(&cast, &error), &error);
            check_at(got == wanted, "row %zu, %08x: %x, not %x", i, rows[i].from, got, wanted);
        }
    }
}

/* ---- matrices ---- */

static void check_matrix(const struct type *f, const struct type *t, uint64_t *seed)
{
    ferry_error error;
    uint64_t n_rows = 1 + random_below(seed, 7), n_columns = 1 + random_below(seed, 2500);
    uint64_t f_pitch = (n_columns + random_below(seed, 20)) * f->bytes;
    uint64_t t_pitch = (n_columns + random_below(seed, 20)) * t->bytes;
    size_t f_bytes = (size_t)((n_rows - 1) * f_pitch + n_columns * f->bytes);
    size_t t_bytes = (size_t)((n_rows - 1) * t_pitch + n_columns * t->bytes);
    char *from = malloc(f_bytes), *to = malloc(t_bytes), *wanted = malloc(t_bytes);
    for (size_t i = 0; i < f_bytes; i++) {
        from[i] = (char)random_u64(seed);
    }
    memset(to, 0x5a, t_bytes);
    memset(wanted, 0x5a, t_bytes);
    for (uint64_t row = 0; row < n_rows; row++) {
        for (uint64_t i = 0; i < n_columns; i++) {
            uint32_t code = code_at(f, from + row * f_pitch, (size_t)i);
            put_code(t, wanted + row * t_pitch, (size_t)i,
                     oracle_cast(f->oracle, code, t->oracle, true));
        }
    }
    fy_cast_matrix cast = {.from_kind = f->kind,
                           .to_kind = t->kind,
                           .overflow = FY_OVERFLOW_SATURATE,
                           .n_rows = n_rows,
                           .n_columns = n_columns,
                           .from = {from, f_bytes, f_pitch},
                           .to = {to, t_bytes, t_pitch}};
    must(fy_cast_run(&cast, &error), &error);
    check_at(memcmp(to, wanted, t_bytes) == 0, "%s to %s, %llu x %llu", f->name, t->name,
             (unsigned long long)n_rows, (unsigned long long)n_columns);
    free(from);
    free(to);
    free(wanted);
}

static void test_rows_that_lie_apart(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < COUNT_OF(types); i++) {
            for (size_t j = 0; j < COUNT_OF(types); j++) {
                check_matrix(&types[i], &types[j], &seed);
            }
        }
    }
}

/* A thread that rounds up and flushes subnormal numbers gets the same, and keeps what it has set.
 */
static void test_arithmetic_of_the_caller(void **state)
{
    (void)state;
    fenv_t before;
    assert_int_equal(fegetenv(&before), 0);
    assert_int_equal(fesetround(FE_UPWARD), 0);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* results and operands that are subnormal become 0 */
    unsigned set = _mm_getcsr();
#endif
    static const uint32_t from[] = {0x00400000, 0x3f800001, 0x3a800000, 0x33800000, 0x3e000001,
                                    0x33000000, 0x3ac00000, 0x38000001, 0x37000001, 0x36000001};
    uint32_t wide[COUNT_OF(from)];
    uint16_t small[COUNT_OF(from)] = {1, 0x8001, 0x03ff, 0x0200, 0x0011, 0x7f, 0x40, 0x80, 3, 5};
    uint16_t narrow[COUNT_OF(from)];
    ferry_error error;
    fy_cast_matrix down = {.from_kind = FERRY_F32,
                           .to_kind = FERRY_F16,
                           .n_rows = 1,
                           .n_columns = COUNT_OF(from),
                           .from = {from, sizeof from, 0},
                           .to = {narrow, sizeof narrow, 0}};
    fy_cast_matrix up = {.from_kind = FERRY_F16,
                         .to_kind = FERRY_F32,
                         .n_rows = 1,
                         .n_columns = COUNT_OF(small),
                         .from = {small, sizeof small, 0},
                         .to = {wide, sizeof wide, 0}};
    must(fy_cast_run(&down, &error), &error);
    must(fy_cast_run(&up, &error), &error);
#if defined(__x86_64__)
    assert_int_equal(_mm_getcsr() & 0xffc0, set & 0xffc0);
#endif
    assert_int_equal(fegetround(), FE_UPWARD);
    assert_int_equal(fesetenv(&before), 0);
    for (size_t i = 0; i < COUNT_OF(from); i++) {
        check_at(narrow[i] == oracle_cast(ORACLE_F32, from[i], ORACLE_F16, false), "%08x", from[i]);
        check_at(wide[i] == oracle_cast(ORACLE_F16, small[i], ORACLE_F32, false), "%04x", small[i]);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static float memory[16];
    const fy_cast_matrix good = {.from_kind = FERRY_F32,
                                 .to_kind = FERRY_BF16,
                                 .n_rows = 2,
                                 .n_columns = 3,
                                 .from = {memory, 24, 0},
                                 .to = {memory + 8, 12, 0}};
    fy_cast_matrix bad[10];
    ferry_error error;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        bad[i] = good;
    }
    bad[0].to_kind = FERRY_F64;
    bad[1].from_kind = FERRY_I32;
    bad[2].from.n_bytes = 23;
    bad[3].to.n_bytes = 11;
    bad[4].from.pitch = 8;
    bad[5].from.pitch = 14;
    bad[6].to.data = (char *)bad[6].to.data + 1;
    bad[7].n_columns = UINT64_MAX / 2;
    bad[8].n_rows = UINT64_MAX;
    bad[9].from.data = NULL;
    static const struct {
        ferry_status status;
        const char *says;
    } wanted[] = {{FERRY_ERR_UNSUPPORTED, "no cast"},
                  {FERRY_ERR_UNSUPPORTED, "no cast"},
                  {FERRY_ERR_INVALID_INPUT,
                   "what is cast: 2 rows of 12 bytes, 12 apart, do not fit into the 23"},
                  {FERRY_ERR_INVALID_INPUT, "the result of the cast: 2 rows of 6 bytes"},
                  {FERRY_ERR_INVALID_INPUT, "rows of 12 bytes cannot lie 8 bytes apart"},
                  {FERRY_ERR_INVALID_INPUT, "multiples of the 4 bytes"},
                  {FERRY_ERR_INVALID_INPUT, "multiples of the 2 bytes"},
                  {FERRY_ERR_INVALID_INPUT, "too many bytes"},
                  {FERRY_ERR_INVALID_INPUT, "do not fit"},
                  {FERRY_ERR_INVALID_INPUT, "do not fit into the 0 bytes"}};
    must(fy_cast_run(&good, &error), &error);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        check_status(wanted[i].says, wanted[i].status, fy_cast_run(&bad[i], &error), &error);
        check_says(wanted[i].says, wanted[i].says, &error);
    }
    fy_cast_matrix empty = good;
    empty.n_rows = 0;
    empty.from = (fy_input){0};
    empty.to = (fy_output){0};
    must(fy_cast_run(&empty, &error), &error);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_special_f32),
        cmocka_unit_test(test_every_code_to_every_type),
        cmocka_unit_test(test_f32_around_every_boundary),
        cmocka_unit_test(test_f32_by_a_stride),
        cmocka_unit_test(test_rows_that_lie_apart),
        cmocka_unit_test(test_arithmetic_of_the_caller),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--stride") == 0) {
        stride = (uint32_t)strtoul(argv[2], NULL, 10);
    }
    return run_with_each_isa(run_all);
}
