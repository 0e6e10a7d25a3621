/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/safetensors.h"

#include "support/check.h"
#include "support/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Headers are written with single quotes in the tables here. */
static char *unquoted(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    return copy;
}

static ferry_status parse(const char *quoted, uint64_t data_bytes, fy_st_header *header,
                          ferry_error *error)
{
    char *text = unquoted(quoted);
    ferry_status status = fy_st_parse(text, strlen(text), data_bytes, "m.st", header, error);
    free(text);
    return status;
}

static void test_one(void **state)
{
    (void)state;
    fy_st_header header;
    ferry_error error;
    must(parse(" { 'data_offsets' : { 'more' : [1, {'a': null}] , 'shape':[ 2 , 3 ],\n"
               "'data_offsets':[0, 12] , 'dtype' : 'BF16', 'x':-1.5e+7 },\t"
               "'__metadata__':{'z':'1','a':''}} \r\n ",
               12, &header, &error),
         &error);
    assert_int_equal(header.n_tensors, 1);
    const fy_st_tensor *t = fy_st_find(&header, "data_offsets");
    assert_ptr_equal(t, &header.tensors[0]);
    assert_true(t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    assert_true(t->begin == 0 && t->end == 12 && !t->is_opaque);
    assert_true(t->dtype.kind == FERRY_BF16 && t->dtype.element_bits == 16);
    assert_string_equal(t->dtype_text, "BF16");
    assert_int_equal(header.n_metadata, 2);
    assert_string_equal(header.metadata[0].key, "a");
    assert_int_equal(header.n_metadata, 2);
    assert_string_equal(header.metadata[0].key, "a");
    assert_string_equal(header.metadata[0].value, "");
    assert_string_equal(header.metadata[1].key, "z");
    assert_string_equal(header.metadata[1].value, "1");
    assert_null(fy_st_find(&header, "data_offset"));
    fy_st_cleanup(&header);
    fy_st_cleanup(&header); /* of what is clean already */
}

static void test_order(void **state)
{
    (void)state;
    fy_st_header header;
    ferry_error error;
    must(parse("{'d':{'dtype':'U8','shape':[2],'data_offsets':[4,6]},"
               "'c':{'dtype':'U8','shape':[0],'data_offsets':[4,4]},"
               "'a':{'dtype':'F32','shape':[],'data_offsets':[0,4]},"
               "'b':{'dtype':'F32','shape':[3,0],'data_offsets':[4,4]}}",
               6, &header, &error),
         &error);
    assert_int_equal(header.n_tensors, 4);
    for (size_t i = 0; i < 4; i++) {
        char name[] = {(char)('a' + i), '\0'};
        assert_string_equal(header.tensors[i].name, name);
        assert_ptr_equal(fy_st_find(&header, name), &header.tensors[i]);
    }
    assert_ptr_equal(header.tensors[2].dtype_text, header.tensors[3].dtype_text);
    fy_st_cleanup(&header);
}

/* Texts as they are written and as they are meant. */
static const struct text_row {
    const char *written, *meant;
} texts[] = {
    {"a\\u0041\\/\\\\\\'", "aA/\\\""},
    {"\\b\\f\\n\\r\\t", "\b\f\n\r\t"},
    {"\\u00e9\\u20AC\\ud83d\\ude00", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
    {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
    {"\\uD7FF\\ue000\\uffff", "\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"},
    {"\\udbff\\udfff\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf\xf4\x8f\xbf\xbf"},
    {"\x7f", "\x7f"},
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        char text[200];
        fy_st_header header;
        ferry_error error;
        snprintf(text, sizeof text,
                 "{'__metadata__':{'%s':'%s'},'%s':{'dtype':'I8','shape':[],'data_offsets':[0,1]}}",
                 texts[i].written, texts[i].written, texts[i].written);
        check_status(texts[i].written, FERRY_OK, parse(text, 1, &header, &error), &error);
        check_row(texts[i].written, fy_st_find(&header, texts[i].meant) != NULL);
        check_row(texts[i].written, header.n_metadata == 1 &&
                                        strcmp(header.metadata[0].key, texts[i].meant) == 0 &&
                                        strcmp(header.metadata[0].value, texts[i].meant) == 0);
        fy_st_cleanup(&header);
    }
}

/* Element types: the word, a shape and the bytes; what ferry makes of it. */
static const struct dtype_row {
    const char *word;
    const char *shape;
    uint64_t bytes;
    uint32_t kind, bits;
    bool is_opaque;
} dtypes[] = {
    {"F64", "3", 24, FERRY_F64, 64, false},         {"C64", "3", 24, FERRY_C64, 64, false},
    {"BOOL", "3", 3, FERRY_BOOL, 8, false},         {"F8_E8M0", "3", 3, FERRY_F8E8M0, 8, false},
    {"F4", "3,2", 3, FERRY_F4, 4, false},           {"F8_E4M3FNUZ", "3", 3, FERRY_BYTES, 8, false},
    {"F8_E5M2FNUZ", "3", 3, FERRY_BYTES, 8, false}, {"F6_E2M3", "2,4", 6, FERRY_BYTES, 8, true},
    {"F6_E3M2", "4", 3, FERRY_BYTES, 8, true},      {"F6_E3M2", "0,4", 0, FERRY_BYTES, 8, false},
    {"C128", "3,2", 96, FERRY_BYTES, 128, false},   {"C128", "", 16, FERRY_BYTES, 128, false},
    {"C128", "3,0", 0, FERRY_BYTES, 8, false},      {"I4", "6", 3, FERRY_BYTES, 8, true},
    {"X9", "2", 3, FERRY_BYTES, 8, true},
};

static void test_dtypes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(dtypes); i++) {
        const struct dtype_row *row = &dtypes[i];
        char text[200];
        fy_st_header header;
        ferry_error error;
        snprintf(text, sizeof text, "{'w':{'dtype':'%s','shape':[%s],'data_offsets':[0,%llu]}}",
                 row->word, row->shape, (unsigned long long)row->bytes);
        check_status(row->word, FERRY_OK, parse(text, row->bytes, &header, &error), &error);
        const fy_st_tensor *t = &header.tensors[0];
        check_row(row->word, strcmp(t->dtype_text, row->word) == 0);
        check_row(row->word, t->dtype.kind == row->kind && t->dtype.element_bits == row->bits);
        check_row(row->word, t->is_opaque == row->is_opaque);
        fy_st_cleanup(&header);
    }
}

#define ENTRY(dtype, shape, begin, end)                                                            \
    "{'dtype':" dtype ",'shape':" shape ",'data_offsets':[" begin "," end "]}"
#define W "{'w':" ENTRY("'U8'", "[4]", "0", "4")

/* What is refused, of four bytes of data, and what the sentence says. */
static const struct bad_row {
    const char *text, *says, *says_too;
} bad[] = {
    {"", "byte 0", "ends"},
    {"   ", "byte 3 of the header: ", "ends"},
    {"[]", "byte 0", "'['"},
    {W, "ends", "'}'"},
    {W "}}", "byte 53", "behind"},
    {W "} x", "behind", "'x'"},
    {W ",}", "a string", "'}'"},
    {"{,", "a string", "','"},
    {W " 'v':1}", "','", "'\""},
    {"{'w' 1}", "':'", "'1'"},
    {"{'':" ENTRY("'U8'", "[4]", "0", "4") "}", "empty", "byte 1"},
    {"{'w':5}", "\"w\"", "an object"},
    {"{'w\\u0000x':" ENTRY("'U8'", "[4]", "0", "4") "}", "zero", "byte 1"},
    {"{'w\\ud83d':1}", "\\ud83d", "surrogate"},
    {"{'w\\ude00\\ud83d':1}", "\\ude00", "surrogate"},
    {"{'w\\ud83d\\u0041':1}", "\\ud83d", "surrogate"},
    {"{'w\\ud83d\\", "\\ud83d", "surrogate"},
    {"{'w\\u12g4':1}", "hex digits", "byte 3"},
    {"{'w\\u12", "hex digits", "byte 3"},
    {"{'w\\x41':1}", "not an escape", "byte 3"},
    {"{'w\\", "not an escape", "byte 3"},
    {"{'w\n':1}", "control character 0x0a", "byte 3"},
    {"{'w\xff':1}", "UTF-8", "byte 3"},
    {"{'w\xc0\x80':1}", "UTF-8", "byte 3"},
    {"{'w\xe0\x80\x80':1}", "UTF-8", "byte 3"},
    {"{'w\xed\xa0\x80':1}", "UTF-8", "byte 3"},
    {"{'w\xf4\x90\x80\x80':1}", "UTF-8", "byte 3"},
    {"{'w\xe2\x82':1}", "UTF-8", "byte 3"},
    {"{'w", "does not end", "byte 1"},
    {"{'w':{'dtype':'U8','dtype':'U8','shape':[4],'data_offsets':[0,4]}}", "\"w\" dtype", "twice"},
    {"{'w':{'shape':[4],'dtype':'U8','shape':[4],'data_offsets':[0,4]}}", "\"w\" shape", "twice"},
    {"{'w':{'shape':[4],'data_offsets':[0,4]}}", "\"w\"", "lacks the key \"dtype\""},
    {"{'w':{'dtype':'U8','data_offsets':[0,4]}}", "\"w\"", "lacks the key \"shape\""},
    {"{'w':{'dtype':'U8','shape':[4]}}", "\"w\"", "lacks the key \"data_offsets\""},
    {"{'w':" ENTRY("5", "[4]", "0", "4") "}", "\"w\" dtype", "a string"},
    {"{'w':" ENTRY("''", "[4]", "0", "4") "}", "\"w\" dtype", "empty"},
    {"{'w':" ENTRY("'U8'", "4", "0", "4") "}", "\"w\" shape", "array"},
    {"{'w':" ENTRY("'U8'", "['4']", "0", "4") "}", "\"w\" shape", "a whole number"},
    {"{'w':" ENTRY("'U8'", "[4.0]", "0", "4") "}", "\"w\" shape", "'4.0'"},
    {"{'w':" ENTRY("'U8'", "[4e0]", "0", "4") "}", "\"w\" shape", "'4e0'"},
    {"{'w':" ENTRY("'U8'", "[04]", "0", "4") "}", "\"w\" shape", "'04'"},
    {"{'w':" ENTRY("'U8'", "[-4]", "0", "4") "}", "\"w\" shape", "'-4'"},
    {"{'w':" ENTRY("'U8'", "[4,]", "0", "4") "}", "\"w\" shape", "a whole number"},
    {"{'w':" ENTRY("'U8'", "[4 4]", "0", "4") "}", "\"w\" shape", "','"},
    {"{'w':" ENTRY("'U8'", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", "\"w\" shape", "limit of 8"},
    {"{'w':" ENTRY("'U8'", "[9223372036854775808]", "0", "4") "}", "\"w\" shape",
     "9223372036854775"},
    {"{'w':" ENTRY("'U8'", "[9223372036854775807,2]", "0", "4") "}", "\"w\"", "2^63"},
    {"{'w':" ENTRY("'U8'", "[4]", "0", "18446744073709551620") "}", "\"w\" data_offsets",
     "1844674407370955"},
    {"{'w':" ENTRY("'U8'", "[4]", "0", "4,4") "}", "\"w\" data_offsets", "two offsets"},
    {"{'w':{'dtype':'U8','shape':[4],'data_offsets':[4]}}", "\"w\" data_offsets", "second"},
    {"{'w':{'dtype':'U8','shape':[4],'data_offsets':null}}", "\"w\" data_offsets", "'null'"},
    {"{'w':" ENTRY("'U8'", "[4]", "0", "5") "}", "\"w\"", "[0, 5]"},
    {"{'w':" ENTRY("'U8'", "[4]", "4", "0") "}", "\"w\"", "[4, 0]"},
    {"{'w':" ENTRY("'U8'", "[5]", "0", "4") "}", "\"w\" needs 5", "4"},
    {"{'w':" ENTRY("'F32'", "[4]", "0", "4") "}", "\"w\" needs 16", "F32"},
    {"{'w':" ENTRY("'F4'", "[3]", "0", "4") "}", "\"w\"", "12 bits"},
    {"{'w':" ENTRY("'F6_E2M3'", "[5]", "0", "4") "}", "\"w\"", "30 bits"},
    {"{'w':" ENTRY("'F6_E2M3'", "[8]", "0", "4") "}", "\"w\" needs 6", "F6_E2M3"},
    {"{'w':" ENTRY("'Q7'", "[8]", "0", "0") ",'v':" ENTRY("'U8'", "[4]", "0", "4") "}", "\"w\"",
     "Q7"},
    {"{'w':" ENTRY("'Q7'", "[0]", "0", "4") "}", "\"w\" needs 0", "Q7"},
    {W ",'w':" ENTRY("'U8'", "[4]", "0", "4") "}", "\"w\"", "twice"},
    {W ",'v':" ENTRY("'U8'", "[1]", "3", "4") "}", "\"v\" begins at byte 3", "\"w\""},
    {"{'w':" ENTRY("'U8'", "[1]", "0", "1") ",'v':" ENTRY("'U8'", "[2]", "2", "4") "}",
     "\"v\" begins at byte 2", "ends at 1"},
    {"{'w':" ENTRY("'U8'", "[3]", "1", "4") "}", "\"w\" begins at byte 1", "header"},
    {"{'w':" ENTRY("'U8'", "[3]", "0", "3") "}", "end at byte 3", "4 bytes"},
    {"{}", "end at byte 0", "4 bytes"},
    {W ",'__metadata__':{},'__metadata__':{}}", "__metadata__", "twice"},
    {W ",'__metadata__':{'a':'1','b':'','a':'1'}}", "__metadata__", "\"a\" twice"},
    {W ",'__metadata__':5}", "__metadata__", "object"},
    {W ",'__metadata__':{'a':5}}", "\"__metadata__\" a", "a string"},
    {W ",'__metadata__':{'a':'\\u0000'}}", "\"__metadata__\" a", "zero"},
    {"{'w':{'x':tru}}", "\"w\"", "a value"},
    {"{'w':{'x':01}}", "\"w\"", "','"},
    {"{'w':{'x':1.}}", "\"w\"", "a value"},
    {"{'w':{'x':-}}", "\"w\"", "a value"},
    {"{'w':{'x':1e}}", "\"w\"", "a value"},
    {"{'w':{'x':[1,]}}", "\"w\"", "a value"},
    {"{'w':{'x':{'y'}}}", "\"w\"", "':'"},
    {"{'w':{'x':{'y':1,}}}", "\"w\"", "a string"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fy_st_header header;
        ferry_error error = {""};
        check_status(bad[i].text, FERRY_ERR_INVALID_INPUT, parse(bad[i].text, 4, &header, &error),
                     &error);
        check_says(bad[i].text, "m.st: ", &error);
        check_says(bad[i].text, bad[i].says, &error);
        check_says(bad[i].text, bad[i].says_too, &error);
        check_row(bad[i].text, header.tensors == NULL && header.arena.block == NULL);
    }
}

/* Every beginning of a header is refused, and no byte behind it is read. */
static void test_prefixes(void **state)
{
    (void)state;
    char *text = unquoted("{'__metadata__':{'\\ud83d\\ude00':'\xe2\x82\xac'},'w':{'x':[-1.5e-3,"
                          "true,{'y':null}],'dtype':'U8','shape':[2,2],'data_offsets':[0,4]}}");
    fy_st_header header;
    ferry_error error;
    for (size_t n = 0; n <= strlen(text); n++) {
        char *exact = malloc(n == 0 ? 1 : n); /* so that a sanitizer sees what lies behind */
        memcpy(exact, text, n);
        ferry_status status = fy_st_parse(exact, n, 4, "m.st", &header, &error);
        assert_int_equal(status, n == strlen(text) ? FERRY_OK : FERRY_ERR_INVALID_INPUT);
        free(exact);
    }
    fy_st_cleanup(&header);
    free(text);
}

static ferry_status parse_nested(int depth)
{
    text_buffer text = {0};
    fy_st_header header;
    ferry_error error;
    text_printf(&text, "{\"w\":{\"x\":");
    for (int i = 0; i < depth; i++) {
        text_append(&text, "[", 1);
    }
    for (int i = 0; i < depth; i++) {
        text_append(&text, "]", 1);
    }
    text_printf(&text, ",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
    ferry_status status = fy_st_parse(text.bytes, text.used, 1, "m.st", &header, &error);
    if (status == FERRY_OK) {
        fy_st_cleanup(&header);
    }
    text_cleanup(&text);
    return status;
}

static void test_depth(void **state)
{
    (void)state;
    assert_int_equal(parse_nested(128), FERRY_OK);
    assert_int_equal(parse_nested(129), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(parse_nested(1000000), FERRY_ERR_INVALID_INPUT);
}

enum { N_MANY = 20000 };

/* Backwards, so that they are sorted; and with ever new words until those are too many. */
static void test_many(void **state)
{
    (void)state;
    for (int words = 0; words < 2; words++) {
        text_buffer text = {0};
        fy_st_header header;
        ferry_error error;
        for (int i = N_MANY; i-- > 0;) {
            text_printf(&text, "%s\"layer.%d\":{\"dtype\":\"U%d\",\"shape\":[1],",
                        text.used ? "," : "{", i, words ? 1000 + i : 8);
            text_printf(&text, "\"data_offsets\":[%d,%d]}", i, i + 1);
        }
        text_append(&text, "}", 1);
        ferry_status status = fy_st_parse(text.bytes, text.used, N_MANY, "m.st", &header, &error);
        text_cleanup(&text);
        if (words == 1) {
            assert_int_equal(status, FERRY_ERR_INVALID_INPUT);
            check_says("words", "too many", &error);
            continue;
        }
        must(status, &error);
        assert_int_equal(header.n_tensors, N_MANY);
        for (size_t i = 0; i < N_MANY; i++) {
            char name[32];
            snprintf(name, sizeof name, "layer.%zu", i);
            assert_ptr_equal(fy_st_find(&header, name), &header.tensors[i]);
            assert_int_equal(header.tensors[i].begin, i);
        }
        fy_st_cleanup(&header);
    }
}

/* ---- files ---- */

static char path[] = "/tmp/ferry-test-XXXXXX";

static void put_file(uint64_t length, const char *text, size_t n_data)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    for (int i = 0; i < 8; i++) {
        fputc((int)(length >> (8 * i) & 0xff), stream);
    }
    fputs(text, stream);
    for (size_t i = 0; i < n_data; i++) {
        fputc(0, stream);
    }
    fclose(stream);
}

static void check_file(const char *row, const char *says, const char *says_too)
{
    struct stat about;
    fy_st_header header;
    ferry_error error;
    check_status(row, FERRY_ERR_INVALID_INPUT,
                 fy_st_read_at(AT_FDCWD, path, path, &header, &about, &error), &error);
    check_says(row, path, &error);
    check_says(row, says, &error);
    check_says(row, says_too, &error);
}

static void test_read(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    char *text = unquoted("{'w':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}  ");
    size_t n = strlen(text);
    struct stat about;
    fy_st_header header;
    ferry_error error;
    close(fd);
    check_file("empty", "0 bytes", "too few");
    put_file(n, text, 8);
    must(fy_st_read_at(AT_FDCWD, path, path, &header, &about, &error), &error);
    assert_true(header.data_begin == 8 + n && header.data_bytes == 8 && header.n_tensors == 1);
    fy_st_cleanup(&header);
    put_file(n, text, 7);
    check_file("data cut", "[0, 8]", "7 bytes");
    put_file(n, text, 9);
    check_file("a byte more", "byte 8", "9 bytes");
    put_file(n + 9, text, 8);
    check_file("a length beyond the file", "claims 65 bytes", "has 72");
    put_file(UINT64_MAX, text, 8);
    check_file("a huge length", "claims 18446744073709551615 bytes", "has 72");
    put_file(0, text, 8);
    check_file("no header", "byte 0", "ends");
    put_file(100000001, text, 8);
    assert_int_equal(truncate(path, 200000000), 0);
    check_file("a header beyond the limit", "claims 100000001 bytes", "limit of 100000000");
    unlink(path);
    assert_int_equal(fy_st_read_at(AT_FDCWD, path, path, &header, &about, &error), FERRY_ERR_IO);
    assert_int_equal(fy_st_read_at(AT_FDCWD, "/tmp", "/tmp", &header, &about, &error),
                     FERRY_ERR_IO);
    check_says("a folder", "not a regular file", &error);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),   cmocka_unit_test(test_order),
        cmocka_unit_test(test_texts), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_bad),   cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_many),
        cmocka_unit_test(test_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
