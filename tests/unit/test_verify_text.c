/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/verify.h"

#include "support/check.h"

#include <ferry/ferry.h>

#include <stdlib.h>

typedef struct value_row {
    uint32_t kind;
    uint32_t bits; /* 0: the kind's own */
    const char *bytes;
    bool high;
    const char *says;
} value_row;

static const value_row rows[] = {
    {FERRY_F64, 0, "\x00\x00\x00\x00\x00\x00\xf8\x3f", false, "1.5 (0x3ff8000000000000)"},
    {FERRY_F64, 0, "\x9a\x99\x99\x99\x99\x99\xb9\x3f", false,
     "0.10000000000000001 (0x3fb999999999999a)"},
    {FERRY_F32, 0, "\x00\x00\x00\x80", false, "-0 (0x80000000)"},
    {FERRY_F32, 0, "\xcd\xcc\xcc\x3d", false, "0.100000001 (0x3dcccccd)"},
    {FERRY_F32, 0, "\x00\x00\x80\x7f", false, "inf (0x7f800000)"},
    {FERRY_F32, 0, "\x01\x00\xc0\x7f", false, "nan (0x7fc00001)"},
    {FERRY_F32, 0, "\x01\x00\x00\x00", false, "1.40129846e-45 (0x00000001)"},
    {FERRY_F16, 0, "\x00\x3e", false, "1.5 (0x3e00)"},
    {FERRY_F16, 0, "\x01\x00", false, "5.96046448e-08 (0x0001)"},
    {FERRY_F16, 0, "\xff\x7b", false, "65504 (0x7bff)"},
    {FERRY_BF16, 0, "\xc0\x3f", false, "1.5 (0x3fc0)"},
    {FERRY_BF16, 0, "\x00\x80", false, "-0 (0x8000)"},
    {FERRY_F8E4M3, 0, "\x7e", false, "448 (0x7e)"},
    {FERRY_F8E4M3, 0, "\x7f", false, "nan (0x7f)"},
    {FERRY_F8E5M2, 0, "\x7b", false, "57344 (0x7b)"},
    {FERRY_F8E5M2, 0, "\x7c", false, "inf (0x7c)"},
    {FERRY_F8E8M0, 0, "\x7f", false, "bytes 7f"},
    {FERRY_F4, 0, "\x5a", false, "0xa"},
    {FERRY_F4, 0, "\x5a", true, "0x5"},
    {FERRY_F4, 0, "\xf0", true, "0xf"},
    {FERRY_I64, 0, "\x00\x00\x00\x00\x00\x00\x00\x80", false, "-9223372036854775808"},
    {FERRY_I32, 0, "\xff\xff\xff\xff", false, "-1"},
    {FERRY_I32, 0, "\x00\x00\x00\x80", false, "-2147483648"},
    {FERRY_I16, 0, "\xff\x7f", false, "32767"},
    {FERRY_I8, 0, "\x80", false, "-128"},
    {FERRY_U64, 0, "\xff\xff\xff\xff\xff\xff\xff\xff", false, "18446744073709551615"},
    {FERRY_U32, 0, "\xff\xff\xff\xff", false, "4294967295"},
    {FERRY_U16, 0, "\x00\x80", false, "32768"},
    {FERRY_U8, 0, "\xff", false, "255"},
    {FERRY_BOOL, 0, "\x01", false, "1"},
    {FERRY_BOOL, 0, "\x02", false, "2"},
    {FERRY_C64, 0, "\x00\x00\xc0\x3f\x00\x00\x00\xc0", false, "1.5-2i (0xc00000003fc00000)"},
    {FERRY_C64, 0, "\x00\x00\x00\x80\x00\x00\x00\x80", false, "-0-0i (0x8000000080000000)"},
    {FERRY_BYTES, 24, "\x00\x0a\xff", false, "bytes 000aff"},
    {FERRY_BYTES, 128, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", false,
     "bytes 000102030405060708090a0b0c0d0e0f"},
    {FERRY_BYTES, 136, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10",
     false, "bytes 000102030405060708090a0b0c0d0e0f..."},
};

static ferry_dtype dtype_of(const value_row *row)
{
    ferry_dtype dtype = {.kind = row->kind, .element_bits = row->bits};
    ferry_error error;
    if (row->bits == 0) {
        must(ferry_dtype_of(row->kind, &dtype, &error), &error);
    }
    return dtype;
}

/* From memory that ends with the element, at an odd address: no byte behind it may be read. */
static void test_values(void **state)
{
    (void)state;
    bool seen[FERRY_BYTES + 1] = {false};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const value_row *row = &rows[i];
        ferry_dtype dtype = dtype_of(row);
        size_t n = (dtype.element_bits + 7) / 8;
        char *bytes = malloc(n + 1);
        char text[96];
        assert_non_null(bytes);
        memcpy(bytes + 1, row->bytes, n);
        fy_format_value(dtype, bytes + 1, row->high, 0, text, sizeof text);
        check_at(strcmp(text, row->says) == 0, "row %zu: \"%s\", not \"%s\"", i, text, row->says);
        free(bytes);
        seen[row->kind] = true;
    }
#define CHECK_SEEN(name, ...) assert_true(seen[FERRY_##name]);
    FERRY_DTYPE_MAP(CHECK_SEEN)
}

/* Of a long element, what differs and what follows it. */
static void test_long_values(void **state)
{
    (void)state;
    const ferry_dtype dtype = {.kind = FERRY_BYTES, .element_bits = 40 * 8};
    char bytes[40], text[96];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (char)i;
    }
    fy_format_value(dtype, bytes, false, 0, text, sizeof text);
    assert_string_equal(text, "bytes 000102030405060708090a0b0c0d0e0f...");
    fy_format_value(dtype, bytes, false, 20, text, sizeof text);
    assert_string_equal(text, "... 1415161718191a1b1c1d1e1f20212223...");
    fy_format_value(dtype, bytes, false, 24, text, sizeof text);
    assert_string_equal(text, "... 18191a1b1c1d1e1f2021222324252627");
    fy_format_value(dtype, bytes, false, 39, text, sizeof text);
    assert_string_equal(text, "... 27");
}

/* A text that is too short is cut, not overrun. */
static void test_short_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (size_t room = 1; room < 48; room++) {
            char *text = malloc(room);
            assert_non_null(text);
            fy_format_value(dtype_of(&rows[i]), rows[i].bytes, rows[i].high, 0, text, room);
            check_at(strlen(text) < room && strncmp(text, rows[i].says, strlen(text)) == 0,
                     "row %zu, %zu bytes: \"%s\"", i, room, text);
            free(text);
        }
    }
}

static void test_index(void **state)
{
    (void)state;
    const uint64_t index[] = {1, 0, UINT64_MAX - 1};
    char text[64];
    fy_format_shape(index, 3, text, sizeof text);
    assert_string_equal(text, "[1, 0, 18446744073709551614]");
    fy_format_shape(index, 1, text, sizeof text);
    assert_string_equal(text, "[1]");
    fy_format_shape(index, 0, text, sizeof text);
    assert_string_equal(text, "[]");
    for (size_t room = 1; room < 24; room++) {
        char *cut = malloc(room);
        assert_non_null(cut);
        fy_format_shape(index, 3, cut, room);
        assert_int_equal(strlen(cut), room - 1);
        free(cut);
    }
}

static void test_first_difference(void **state)
{
    (void)state;
    enum { N = 3 * 4096 + 5 };
    const uint64_t at[] = {0, 1, 4095, 4096, 4097, 8191, 8192, N - 1};
    char *a = calloc(1, N), *b = calloc(1, N);
    assert_true(a != NULL && b != NULL);
    assert_int_equal(fy_first_difference(a, b, 0), 0);
    assert_int_equal(fy_first_difference(a, b, N), N);
    for (size_t i = COUNT_OF(at); i-- > 0;) { /* those behind it stay */
        b[at[i]] = 1;
        assert_int_equal(fy_first_difference(a, b, N), at[i]);
        assert_int_equal(fy_first_difference(a, b, at[i]), at[i]);
        assert_int_equal(fy_first_difference(a, b, at[i] + 1), at[i]);
    }
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),           cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_short_texts),      cmocka_unit_test(test_index),
        cmocka_unit_test(test_first_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
