/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that `ferry run` fills sources with: whole pieces against single bytes, across all
 * borders, and that no byte of poison is right and no wrong byte goes unseen. The file is included
 * for the kernels that it does not show.
 */
#include "../../tools/ferry/run_pattern.c"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>

enum { ROUNDS = 3000, MARGIN = 64, MOST_BYTES = 3000, ALL_BYTES = MOST_BYTES + 2 * MARGIN };

static const unsigned char BESIDE = 0x77;

typedef struct piece {
    uint64_t at, n_bytes;
    size_t offset; /* in bytes */
    unsigned char bytes[ALL_BYTES];
} piece;

/* At the begin, anywhere, and around the place where the numbers of words pass 2^32. */
static piece draw_piece(uint64_t *random)
{
    static const uint64_t places[] = {0, 0x123456789abcdefu, ((uint64_t)1 << 34) - 200};
    piece p;
    p.at = places[random_below(random, 3)] + random_below(random, 100);
    p.n_bytes = random_below(random, random_below(random, 2) ? 100 : MOST_BYTES);
    p.offset = MARGIN + random_below(random, MARGIN);
    p.n_bytes = p.n_bytes < MARGIN ? p.n_bytes : p.n_bytes - MARGIN;
    memset(p.bytes, BESIDE, sizeof p.bytes);
    return p;
}

static void test_fill(void **state)
{
    uint64_t random = 1;
    run_key key = run_key_of("layers.3.weight");
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        piece p = draw_piece(&random);
        run_pattern_fill(p.bytes + p.offset, key, p.at, p.n_bytes, 0);
        for (size_t i = 0; i < sizeof p.bytes; i++) {
            bool inside = i >= p.offset && i < p.offset + p.n_bytes;
            uint8_t wanted = inside ? run_pattern_byte(key, p.at + (i - p.offset)) : BESIDE;
            check_at(p.bytes[i] == wanted, "round %d, byte %zu", round, i);
        }
    }
}

/* Whatever bytes are asked for, each f32 is one that others can be divided by. */
static void test_scales(void **state)
{
    float scales[64], few[3];
    run_key key = run_key_of("w");
    key.is_scale = true;
    (void)state;
    run_pattern_fill(scales, key, 0, sizeof scales, 0);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        check_at(scales[i] >= 0x1p-63f && scales[i] < 0x1p65f, "scale %zu is %g", i,
                 (double)scales[i]);
    }
    run_pattern_fill(few, key, 5 * sizeof *few, sizeof few, 0);
    assert_memory_equal(few, scales + 5, sizeof few);
    assert_int_equal(run_pattern_check(scales, key, 0, sizeof scales), sizeof scales);
    scales[7] = -scales[7];
    assert_int_equal(run_pattern_check(scales, key, 0, sizeof scales), 7 * sizeof *scales + 3);
}

static void test_poison(void **state)
{
    uint64_t random = 2;
    run_key key = run_key_of("w");
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        piece p = draw_piece(&random);
        run_pattern_fill(p.bytes + p.offset, key, p.at, p.n_bytes, 1);
        for (uint64_t i = 0; i < p.n_bytes; i++) {
            check_at(p.bytes[p.offset + i] != run_pattern_byte(key, p.at + i), "round %d", round);
        }
        assert_int_equal(p.bytes[p.offset - 1], BESIDE);
        assert_int_equal(p.bytes[p.offset + p.n_bytes], BESIDE);
        assert_int_equal(run_pattern_check(p.bytes + p.offset, key, p.at, p.n_bytes), 0);
    }
}

/* The first of up to two wrong bits is the one that is told. */
static void test_check(void **state)
{
    uint64_t random = 3;
    run_key key = run_key_of("w");
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        piece p = draw_piece(&random);
        run_pattern_fill(p.bytes + p.offset, key, p.at, p.n_bytes, 0);
        check_at(run_pattern_check(p.bytes + p.offset, key, p.at, p.n_bytes) == p.n_bytes,
                 "round %d", round);
        if (p.n_bytes == 0) {
            continue;
        }
        uint64_t first = random_below(&random, (uint32_t)p.n_bytes);
        uint64_t later = first + random_below(&random, (uint32_t)(p.n_bytes - first));
        p.bytes[p.offset + first] ^= (unsigned char)(1u << random_below(&random, 8));
        if (later > first) {
            p.bytes[p.offset + later] ^= 0xff;
        }
        uint64_t found = run_pattern_check(p.bytes + p.offset, key, p.at, p.n_bytes);
        check_at(found == first, "round %d: %llu, not %llu", round, (unsigned long long)found,
                 (unsigned long long)first);
    }
}

/* What runs on a machine without vectors is the same. */
static void test_plain(void **state)
{
    static char fast[1 << 16], plain[1 << 16];
    run_key key = run_key_of("a");
    seeds s = seeds_of(key, 5);
    (void)state;
    run_pattern_fill(fast, key, 20, sizeof fast, 0);
    fill_plainly(plain, s, 5, sizeof plain / STEP_BYTES, 0);
    assert_memory_equal(fast, plain, sizeof fast);
    assert_int_equal(check_plainly(fast, s, 5, sizeof fast / STEP_BYTES), sizeof fast / STEP_BYTES);
    fast[sizeof fast - 1] ^= 1;
    assert_true(check_plainly(fast, s, 5, sizeof fast / STEP_BYTES) < sizeof fast / STEP_BYTES);
}

static int compare_words(const void *a, const void *b)
{
    uint32_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Whole words are all different, and two tensors have different bytes. */
static void test_distinct(void **state)
{
    enum { WORDS = 1 << 18 };
    uint32_t *words = malloc(WORDS * sizeof *words), *others = malloc(WORDS * sizeof *words);
    size_t equal = 0;
    (void)state;
    assert_true(words != NULL && others != NULL);
    run_pattern_fill(words, run_key_of("a"), 0, WORDS * sizeof *words, 0);
    run_pattern_fill(others, run_key_of("b"), 0, WORDS * sizeof *words, 0);
    for (size_t i = 0; i < WORDS; i++) {
        equal += words[i] == others[i];
    }
    assert_true(equal < 8);
    qsort(words, WORDS, sizeof *words, compare_words);
    for (size_t i = 1; i < WORDS; i++) {
        assert_true(words[i] != words[i - 1]);
    }
    free(words);
    free(others);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),  cmocka_unit_test(test_poison),
        cmocka_unit_test(test_check), cmocka_unit_test(test_scales),
        cmocka_unit_test(test_plain), cmocka_unit_test(test_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
