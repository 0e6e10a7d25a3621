/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests must agree between machines, so every copy of the hash has to give what xxhash itself
 * gives. Here its headers are compiled once more, with this file's plain flags, as the reference.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/hash_isa.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>

static const fy_hash_kernels chosen = {.hash64 = fy_hash64, .hash128 = fy_hash128_of};

static const struct variant {
    const char *name;
    fy_isa needs;
    const fy_hash_kernels *kernels;
} variants[] = {
    {"baseline", FY_ISA_BASELINE, &fy_hash_baseline},
    {"avx2", FY_ISA_AVX2, &fy_hash_avx2},
    {"avx512", FY_ISA_AVX512, &fy_hash_avx512},
    {"chosen", FY_ISA_BASELINE, &chosen},
};

/* What the machine cannot run is left out: other machines run it. */
static bool can_run(const struct variant *v)
{
    return v->needs <= fy_cpu_isa();
}

static void check_range(const struct variant *v, const unsigned char *bytes, size_t n_bytes)
{
    XXH128_hash_t expected = XXH3_128bits(bytes, n_bytes);
    fy_hash128 hash = v->kernels->hash128(bytes, n_bytes);
    check_at(hash.low == expected.low64 && hash.high == expected.high64,
             "%s: 128 bits of %zu bytes", v->name, n_bytes);
    check_at(v->kernels->hash64(bytes, n_bytes) == XXH3_64bits(bytes, n_bytes),
             "%s: 64 bits of %zu bytes", v->name, n_bytes);
}

static unsigned char *random_bytes(size_t n_bytes, uint64_t seed)
{
    unsigned char *bytes = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] = (unsigned char)random_u64(&seed);
    }
    return bytes;
}

/* Exactly as many bytes as are hashed lie behind the pointer, so that a sanitizer sees one too far.
 */
static void test_all_lengths(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 1024; n++) {
        unsigned char *bytes = random_bytes(n == 0 ? 1 : n, n + 1);
        for (size_t v = 0; v < COUNT_OF(variants); v++) {
            if (can_run(&variants[v])) {
                check_range(&variants[v], bytes + (n == 0), n);
            }
        }
        free(bytes);
    }
}

static void test_offsets_and_long_inputs(void **state)
{
    (void)state;
    enum { MOST = 300000 };
    static const size_t lengths[] = {1,   3,   8,    16,   17,   128,  129,   240,   241,
                                     256, 511, 1024, 1025, 4096, 5000, 65536, 262144};
    unsigned char *bytes = random_bytes(MOST, 99);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t offset = 0; offset < 65; offset++) {
            for (size_t v = 0; v < COUNT_OF(variants); v++) {
                if (can_run(&variants[v])) {
                    check_range(&variants[v], bytes + offset, lengths[i]);
                }
            }
        }
    }
    free(bytes);
}

/* The published value for no bytes at all: the reference itself must be XXH3. */
static void test_published_vectors(void **state)
{
    (void)state;
    char text[33];
    assert_true(fy_hash64("", 0) == 0x2d06800538d394c2u);
    fy_hash128_print(fy_hash128_of("", 0), text, sizeof text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
}

static void test_format(void **state)
{
    (void)state;
    char text[33];
    fy_hash128_print((fy_hash128){.low = 0xab, .high = 0x1}, text, sizeof text);
    assert_string_equal(text, "000000000000000100000000000000ab");
}

static void test_addition(void **state)
{
    (void)state;
    fy_hash128 a = {.low = UINT64_MAX, .high = 1}, b = {.low = 1, .high = UINT64_MAX};
    fy_hash128 sum = fy_hash128_add(a, b);
    assert_true(sum.low == 0 && sum.high == 1);
    uint64_t seed = 5;
    for (int i = 0; i < 1000; i++) {
        fy_hash128 x = {random_u64(&seed), random_u64(&seed)};
        fy_hash128 y = {random_u64(&seed), random_u64(&seed)};
        fy_hash128 xy = fy_hash128_add(x, y), yx = fy_hash128_add(y, x);
        __extension__ unsigned __int128 wide =
            ((unsigned __int128)x.high << 64 | x.low) + ((unsigned __int128)y.high << 64 | y.low);
        check_at(xy.low == (uint64_t)wide && xy.high == (uint64_t)(wide >> 64), "pair %d", i);
        check_at(xy.low == yx.low && xy.high == yx.high, "pair %d", i);
    }
}

/* The record's form is fixed: numbers little endian, texts with their length in front. */
static void test_digest_record(void **state)
{
    (void)state;
    static const unsigned char record[] = {0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 2,
                                           0,    0,    0,    0,    0,    0,    0,    'a',  'b'};
    fy_digest d = {0};
    XXH128_hash_t expected = XXH3_128bits(record, sizeof record);
    for (int pass = 0; pass < 2; pass++) { /* taking starts the record anew */
        fy_digest_u64(&d, 0x0102030405060708u);
        fy_digest_text(&d, "ab");
        fy_hash128 hash = fy_digest_take(&d);
        check_at(hash.low == expected.low64 && hash.high == expected.high64, "pass %d", pass);
    }
    fy_digest_cleanup(&d);
    fy_hash128 empty = fy_digest_take(&d), nothing = fy_hash128_of("", 0);
    assert_true(empty.low == nothing.low && empty.high == nothing.high);
    fy_digest_cleanup(&d);
}

/* The lengths keep "a" + "bc" apart from "ab" + "c". */
static void test_digest_texts_stay_apart(void **state)
{
    (void)state;
    fy_digest d = {0};
    fy_digest_text(&d, "a");
    fy_digest_text(&d, "bc");
    fy_hash128 one = fy_digest_take(&d);
    fy_digest_text(&d, "ab");
    fy_digest_text(&d, "c");
    fy_hash128 two = fy_digest_take(&d);
    assert_true(one.low != two.low || one.high != two.high);
    fy_digest_cleanup(&d);
}

static void test_digest_failure_sticks(void **state)
{
    (void)state;
    fy_digest d = {0};
    fy_alloc_fail_after(0);
    fy_digest_u64(&d, 1);
    fy_alloc_fail_after(-1);
    fy_digest_u64(&d, 2);
    assert_true(d.failed);
    fy_digest_take(&d);
    assert_true(d.failed);
    fy_digest_cleanup(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_lengths),
        cmocka_unit_test(test_offsets_and_long_inputs),
        cmocka_unit_test(test_published_vectors),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_addition),
        cmocka_unit_test(test_digest_record),
        cmocka_unit_test(test_digest_texts_stay_apart),
        cmocka_unit_test(test_digest_failure_sticks),
    };
    for (size_t v = 0; v < COUNT_OF(variants); v++) {
        if (!can_run(&variants[v])) {
            print_message("left out, this machine has no %s\n", variants[v].name);
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
