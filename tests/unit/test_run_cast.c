/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ferry run` reckons that a cast makes of an element, against what the library's kernels do,
 * for every element of the small types and many of f32; and with a scale and an add, against f32
 * arithmetic of the compiler. Two ways to the same bits that share nothing.
 */
#include "../../tools/ferry/run_cast.c"

#include "convert/convert.h"
#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <string.h>

static const uint32_t kinds[] = {FERRY_F32, FERRY_F16, FERRY_BF16, FERRY_F8E4M3, FERRY_F8E5M2};

enum { N_KINDS = sizeof kinds / sizeof kinds[0], N_RANDOM = 200000 };

static ferry_dtype dtype_of(uint32_t kind)
{
    ferry_dtype dtype = {0};
    ferry_error error;
    check_at(ferry_dtype_of(kind, &dtype, &error) == FERRY_OK, "kind %u", kind);
    return dtype;
}

static uint64_t cast_by_kernel(const run_cast *cast, uint64_t bits)
{
    uint64_t from = bits, to = 0;
    ferry_error error;
    fy_cast_matrix m = {.from_kind = cast->from.kind,
                        .to_kind = cast->to.kind,
                        .overflow = cast->saturates ? FY_OVERFLOW_SATURATE : FY_OVERFLOW_PLAIN,
                        .n_rows = 1,
                        .n_columns = 1,
                        .from = {.data = &from, .n_bytes = sizeof from},
                        .to = {.data = &to, .n_bytes = sizeof to}};
    check_at(fy_cast_run(&m, &error) == FERRY_OK, "a cast from %u to %u", m.from_kind, m.to_kind);
    return to;
}

static void check_element(const run_cast *cast, uint64_t bits)
{
    uint64_t found = cast_by_kernel(cast, bits);
    run_cast_result wanted = run_cast_element(cast, bits);
    check_at(run_cast_is_right(cast, wanted, found), "%llx of kind %u to kind %u%s: %llx, not %llx",
             (unsigned long long)bits, cast->from.kind, cast->to.kind,
             cast->saturates ? ", saturating" : "", (unsigned long long)found,
             (unsigned long long)wanted.bits);
    check_at(!run_cast_is_right(cast, wanted, ~found), "the complement of %llx is right too",
             (unsigned long long)found);
}

static uint64_t draw_f32(uint64_t *random, uint32_t i)
{
    uint64_t bits = (uint64_t)random_below(random, 1 << 16) << 16 | random_below(random, 1 << 16);
    /* Every second one is near what the small types can just tell, or not. */
    return i % 2 == 0 ? bits : bits & 0xfffff000u;
}

static void check_pair(uint32_t from, uint32_t to, bool saturates, uint64_t *random)
{
    run_cast cast = {
        .from = dtype_of(from), .to = dtype_of(to), .saturates = saturates, .scale = 1};
    if (cast.from.element_bits < 32) {
        for (uint64_t bits = 0; bits >> cast.from.element_bits == 0; bits++) {
            check_element(&cast, bits);
        }
        return;
    }
    for (uint32_t i = 0; i < N_RANDOM; i++) {
        check_element(&cast, draw_f32(random, i));
    }
}

static void test_kernels(void **state)
{
    uint64_t random = 1;
    (void)state;
    for (uint32_t i = 0; i < N_KINDS; i++) {
        for (uint32_t k = 0; k < N_KINDS; k++) {
            if (i != k) {
                check_pair(kinds[i], kinds[k], false, &random);
                check_pair(kinds[i], kinds[k], true, &random);
            }
        }
    }
}

static void test_f64(void **state)
{
    static const double values[] = {
        0.0,      -0.0, 1.0 / 3, 1e-45,       7e-46,       1e-40,           3.5e38,          -1e300,
        INFINITY, NAN,  5e-324,  1 + 0x1p-24, 1 + 0x3p-24, 0x1.fffffefp127, -0x1.fffffffp127};
    (void)state;
    run_cast cast = {.from = dtype_of(FERRY_F64), .to = dtype_of(FERRY_F32), .scale = 1};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        check_element(&cast, bits);
        cast.saturates = !cast.saturates;
    }
}

static float float_of(uint64_t bits)
{
    uint32_t half = (uint32_t)bits;
    float value;
    memcpy(&value, &half, sizeof value);
    return value;
}

static uint64_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* From f32 to f32 nothing is rounded but the product and the sum. */
static void test_arithmetic(void **state)
{
    static const float numbers[] = {1, 0.1f, -3, 1e30f, 3.0e-39f, 0.5f};
    uint64_t random = 2;
    (void)state;
    for (uint32_t i = 0; i < N_RANDOM; i++) {
        run_cast cast = {.from = dtype_of(FERRY_F32),
                         .to = dtype_of(FERRY_F32),
                         .scale = numbers[random_below(&random, 6)],
                         .add = random_below(&random, 2) == 0 ? 0 : numbers[i % 6]};
        uint64_t bits = draw_f32(&random, i);
        volatile float product = float_of(bits);
        product = cast.scale == 1 ? product : product * cast.scale;
        volatile float sum = cast.add == 0 ? product : product + cast.add;
        run_cast_result wanted = run_cast_element(&cast, bits);
        check_at(run_cast_is_right(&cast, wanted, bits_of(sum)), "%a x %a + %a is %a",
                 (double)float_of(bits), (double)cast.scale, (double)cast.add, (double)sum);
    }
}

typedef struct known {
    uint32_t from, to;
    bool saturates;
    float scale, add;
    uint64_t bits, wanted;
} known;

/* Reckoned by hand. */
static void test_known(void **state)
{
    static const known rows[] = {
        {FERRY_BF16, FERRY_F8E4M3, false, 2, 0, 0x4360, 0x7e},    /* 224 x 2 is the largest, 448 */
        {FERRY_BF16, FERRY_F8E4M3, false, 2, 0, 0x4370, 0x7f},    /* 240 x 2 is too large: NaN */
        {FERRY_BF16, FERRY_F8E4M3, true, 2, 0, 0x4370, 0x7e},     /* and saturates */
        {FERRY_BF16, FERRY_F8E4M3, true, -2, 0, 0x7f80, 0xfe},    /* infinity does, in f8e4m3 */
        {FERRY_BF16, FERRY_F16, true, 2, 0, 0x7f80, 0x7c00},      /* and stays one in f16 */
        {FERRY_F32, FERRY_BF16, false, 1, 1, 0x3b800000, 0x3f80}, /* 1 + 2^-8 is a tie: to even */
        {FERRY_F32, FERRY_BF16, false, 1, 1, 0x3c400000, 0x3f82}, /* 1 + 3 x 2^-8 is one, too */
        {FERRY_F32, FERRY_F16, true, 1e30f, 0, 0x7f000000, 0x7c00}, /* infinite in f32: stays so */
        {FERRY_F32, FERRY_F16, true, 1, 0, 0x477ff000, 0x7bff},     /* 65520 would be infinite */
        {FERRY_F8E5M2, FERRY_F32, false, 0.5f, -1, 0x3c, 0xbf000000}, /* 1 x 0.5 - 1 */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const known *row = &rows[i];
        run_cast cast = {.from = dtype_of(row->from),
                         .to = dtype_of(row->to),
                         .saturates = row->saturates,
                         .scale = row->scale,
                         .add = row->add};
        run_cast_result found = run_cast_element(&cast, row->bits);
        check_at(!found.is_any_nan && found.bits == row->wanted, "row %zu: %llx", i,
                 (unsigned long long)found.bits);
    }
    run_cast cast = {.from = dtype_of(FERRY_F32), .to = dtype_of(FERRY_F16), .scale = 2};
    run_cast_result nan = run_cast_element(&cast, 0x7fc00001);
    check_at(nan.is_any_nan && run_cast_is_right(&cast, nan, 0xfe01) &&
                 !run_cast_is_right(&cast, nan, 0x7c00),
             "any NaN is right, and infinity is not");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
