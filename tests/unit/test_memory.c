/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Checked arithmetic and everything that allocates. */
#include "base/alloc.h"
#include "base/checked.h"

#include "support/check.h"
#include "support/random.h"

__extension__ typedef unsigned __int128 wide;

static void test_checked_arithmetic(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      5,
                                      UINT32_MAX,
                                      1ull << 32,
                                      (1ull << 32) + 1,
                                      INT64_MAX,
                                      1ull << 63,
                                      UINT64_MAX - 1,
                                      UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        for (size_t j = 0; j < COUNT_OF(values); j++) {
            uint64_t a = values[i], b = values[j], sum, product;
            bool adds = (wide)a + b <= UINT64_MAX, multiplies = (wide)a * b <= UINT64_MAX;
            check_at(fy_add(a, b, &sum) == adds, "%zu, %zu", i, j);
            check_at(!adds || sum == a + b, "%zu, %zu", i, j);
            check_at(fy_mul(a, b, &product) == multiplies, "%zu, %zu", i, j);
            check_at(!multiplies || product == a * b, "%zu, %zu", i, j);
            check_at(fy_min(a, b) == (a < b ? a : b) && fy_max(a, b) == (a < b ? b : a), "%zu, %zu",
                     i, j);
            if (b != 0) {
                check_at(fy_ceil_div(a, b) == (uint64_t)(((wide)a + b - 1) / b), "%zu, %zu", i, j);
            }
        }
    }
}

/* A product beyond the address space is a failure, not a small block. */
static void test_sizes_that_overflow(void **state)
{
    (void)state;
    fy_arena arena = {0};
    assert_null(fy_alloc(SIZE_MAX, 2));
    assert_null(fy_alloc(SIZE_MAX / 4 + 2, 4));
    assert_null(fy_alloc_zeroed(SIZE_MAX, 2));
    assert_null(fy_arena_alloc(&arena, SIZE_MAX, 2));
    assert_null(fy_arena_alloc(&arena, SIZE_MAX, 1));
    char *block = fy_alloc(4, 1);
    assert_non_null(block);
    memcpy(block, "kept", 4);
    assert_null(fy_realloc(block, SIZE_MAX / 2, 4));
    assert_memory_equal(block, "kept", 4);
    fy_free(block);
    fy_arena_cleanup(&arena);
}

static void test_nothing_is_a_pointer(void **state)
{
    (void)state;
    void *blocks[] = {fy_alloc(0, 8), fy_alloc(8, 0), fy_alloc_zeroed(0, 8),
                      fy_realloc(NULL, 0, 8)};
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        check_at(blocks[i] != NULL, "block %zu", i);
        fy_free(blocks[i]);
    }
    fy_free(NULL);
}

static void test_zeroed_and_strdup(void **state)
{
    (void)state;
    uint64_t *zeroed = fy_alloc_zeroed(100, sizeof *zeroed);
    for (size_t i = 0; i < 100; i++) {
        check_at(zeroed[i] == 0, "word %zu", i);
    }
    fy_free(zeroed);
    char *copy = fy_strdup("a name");
    assert_string_equal(copy, "a name");
    fy_free(copy);
}

/* Appending costs amortised constant time only if capacity grows by a factor. */
static void test_reserve(void **state)
{
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0, n_moves = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t before = capacity;
        assert_true(fy_reserve((void **)&items, &capacity, i + 1, sizeof *items));
        n_moves += capacity != before;
        check_at(capacity > i && (capacity == before || capacity >= 2 * before), "item %u", i);
        items[i] = i;
    }
    assert_true(n_moves < 20);
    for (uint32_t i = 0; i < 100000; i++) {
        check_at(items[i] == i, "item %u", i);
    }
    size_t kept = capacity;
    assert_false(fy_reserve((void **)&items, &capacity, SIZE_MAX / 2, sizeof *items));
    assert_true(capacity == kept && items[99999] == 99999);
    assert_true(fy_reserve((void **)&items, &capacity, 1, sizeof *items));
    assert_true(capacity == kept);
    fy_free(items);
}

static void test_failing_on_request(void **state)
{
    (void)state;
    void *blocks[4];
    fy_alloc_fail_after(2);
    blocks[0] = fy_alloc(1, 1);
    blocks[1] = fy_alloc_zeroed(1, 1);
    blocks[2] = fy_alloc(1, 1);
    blocks[3] = fy_strdup("later ones fail too");
    assert_null(fy_realloc(blocks[0], 100, 1));
    fy_alloc_fail_after(-1);
    assert_true(blocks[0] != NULL && blocks[1] != NULL);
    assert_true(blocks[2] == NULL && blocks[3] == NULL);
    fy_free(blocks[0]);
    fy_free(blocks[1]);
}

typedef struct taken {
    unsigned char *bytes;
    size_t n_bytes;
} taken;

/* Pieces of all sizes stay apart, whole and aligned as their kind needs. */
static void test_arena(void **state)
{
    (void)state;
    enum { N = 2000 };
    static taken pieces[N];
    fy_arena arena = {0};
    uint64_t seed = 7;
    for (size_t i = 0; i < N; i++) {
        size_t bytes =
            i % 100 == 99 ? 100000 + random_below(&seed, 2000000) : random_below(&seed, 300);
        bool text = i % 2 == 0;
        char source[300];
        memset(source, 'a' + (int)(i % 26), sizeof source);
        pieces[i].n_bytes = text && bytes > sizeof source ? sizeof source : bytes;
        pieces[i].bytes = text ? (unsigned char *)fy_arena_copy(&arena, source, pieces[i].n_bytes)
                               : fy_arena_alloc(&arena, pieces[i].n_bytes, 1);
        check_at(pieces[i].bytes != NULL, "piece %zu", i);
        check_at(text || (uintptr_t)pieces[i].bytes % _Alignof(max_align_t) == 0, "piece %zu", i);
        check_at(!text || pieces[i].bytes[pieces[i].n_bytes] == '\0', "piece %zu", i);
        memset(pieces[i].bytes, (int)(i % 251), pieces[i].n_bytes);
    }
    for (size_t i = 0; i < N; i++) {
        for (size_t b = 0; b < pieces[i].n_bytes; b++) {
            check_at(pieces[i].bytes[b] == i % 251, "piece %zu byte %zu", i, b);
        }
    }
    fy_arena_cleanup(&arena);
    assert_null(arena.block);
    fy_arena_cleanup(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_sizes_that_overflow),
        cmocka_unit_test(test_nothing_is_a_pointer),
        cmocka_unit_test(test_zeroed_and_strdup),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_failing_on_request),
        cmocka_unit_test(test_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
