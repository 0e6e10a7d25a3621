/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/dtype.h"

#include "support/check.h"

#include <stdio.h>

static const struct named {
    uint32_t kind;
    const char *name;
    const char *safetensors;
    uint32_t bits;
} named[] = {
    {FERRY_F64, "f64", "F64", 64},
    {FERRY_F32, "f32", "F32", 32},
    {FERRY_F16, "f16", "F16", 16},
    {FERRY_BF16, "bf16", "BF16", 16},
    {FERRY_F8E4M3, "f8e4m3", "F8_E4M3", 8},
    {FERRY_F8E5M2, "f8e5m2", "F8_E5M2", 8},
    {FERRY_F8E8M0, "f8e8m0", "F8_E8M0", 8},
    {FERRY_F4, "f4", "F4", 4},
    {FERRY_I64, "i64", "I64", 64},
    {FERRY_U64, "u64", "U64", 64},
    {FERRY_I32, "i32", "I32", 32},
    {FERRY_U32, "u32", "U32", 32},
    {FERRY_I16, "i16", "I16", 16},
    {FERRY_U16, "u16", "U16", 16},
    {FERRY_I8, "i8", "I8", 8},
    {FERRY_U8, "u8", "U8", 8},
    {FERRY_BOOL, "bool", "BOOL", 8},
    {FERRY_C64, "c64", "C64", 64},
};

static void test_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(named); i++) {
        ferry_error error;
        ferry_dtype parsed, of, from_file;
        char text[FERRY_DTYPE_TEXT_BYTES];
        check_row(named[i].name, named[i].kind == i + 1); /* the numbers are part of the ABI */
        must(ferry_dtype_parse(named[i].name, &parsed, &error), &error);
        must(ferry_dtype_of(named[i].kind, &of, &error), &error);
        check_row(named[i].name, fy_dtype_from_safetensors(named[i].safetensors, &from_file));
        check_row(named[i].name,
                  parsed.kind == named[i].kind && parsed.element_bits == named[i].bits);
        check_row(named[i].name, of.kind == parsed.kind && of.element_bits == parsed.element_bits);
        check_row(named[i].name,
                  from_file.kind == parsed.kind && from_file.element_bits == parsed.element_bits);
        ferry_dtype_format(parsed, text, sizeof text);
        assert_string_equal(text, named[i].name);
        check_row(named[i].name, fy_dtype_is_valid(parsed));
        parsed.element_bits += 8;
        check_row(named[i].name, !fy_dtype_is_valid(parsed));
    }
}

static void test_opaque(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t bytes; /* 0: refused */
    } rows[] = {{"bytes:1", 1},
                {"bytes:12", 12},
                {"bytes:1048576", 1048576},
                {"bytes:1048577", 0},
                {"bytes:0", 0},
                {"bytes:", 0},
                {"bytes:-1", 0},
                {"bytes:+1", 0},
                {"bytes: 1", 0},
                {"bytes:01", 0},
                {"bytes:1x", 0},
                {"bytes:1.0", 0},
                {"bytes:0x10", 0},
                {"bytes:18446744073709551617", 0},
                {"bytes:99999999999999999999999", 0}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_error error;
        ferry_dtype dtype = {.kind = 4711};
        ferry_status wanted = rows[i].bytes == 0 ? FERRY_ERR_INVALID_INPUT : FERRY_OK;
        check_status(rows[i].text, wanted, ferry_dtype_parse(rows[i].text, &dtype, &error), &error);
        if (wanted != FERRY_OK) {
            check_says(rows[i].text, rows[i].text, &error);
            check_row(rows[i].text, dtype.kind == 4711);
            continue;
        }
        char text[FERRY_DTYPE_TEXT_BYTES];
        check_row(rows[i].text,
                  dtype.kind == FERRY_BYTES && dtype.element_bits == rows[i].bytes * 8);
        check_row(rows[i].text, fy_dtype_is_valid(dtype));
        ferry_dtype_format(dtype, text, sizeof text);
        assert_string_equal(text, rows[i].text);
    }
}

static void test_what_is_no_dtype(void **state)
{
    (void)state;
    static const char *const texts[] = {"",        "f",     "F32", "f32 ",   " f32",
                                        "float32", "bytes", "f8",  "f8_e4m3"};
    ferry_error error;
    ferry_dtype dtype = {.kind = 4711};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        check_status(texts[i], FERRY_ERR_INVALID_INPUT, ferry_dtype_parse(texts[i], &dtype, &error),
                     &error);
        check_says(texts[i], "is not a dtype; known are f64 f32", &error);
        check_row(texts[i],
                  !fy_dtype_from_safetensors(texts[i], &dtype) || strcmp(texts[i], "F32") == 0);
    }
}

static void test_misuse(void **state)
{
    (void)state;
    ferry_error error;
    ferry_dtype dtype;
    assert_int_equal(ferry_dtype_parse(NULL, &dtype, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_dtype_parse("f32", NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_dtype_of(FERRY_F32, NULL, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_dtype_of(FERRY_BYTES, &dtype, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_dtype_of(0, &dtype, NULL), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_dtype_of(19, &dtype, &error), FERRY_ERR_MISUSE);
}

static void test_validity(void **state)
{
    (void)state;
    static const struct {
        ferry_dtype dtype;
        bool valid;
    } rows[] = {{{0, 0}, false},
                {{19, 8}, false},
                {{FERRY_F4, 4}, true},
                {{FERRY_F4, 8}, false},
                {{FERRY_BYTES, 0}, false},
                {{FERRY_BYTES, 4}, false},
                {{FERRY_BYTES, 8}, true},
                {{FERRY_BYTES, 12}, false},
                {{FERRY_BYTES, 8u << 20}, true},
                {{FERRY_BYTES, (8u << 20) + 8}, false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_at(fy_dtype_is_valid(rows[i].dtype) == rows[i].valid, "row %zu", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_opaque),
        cmocka_unit_test(test_what_is_no_dtype),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_validity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
