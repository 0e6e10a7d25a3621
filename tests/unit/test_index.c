/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "base/index.h"

#include "base/alloc.h"

#include "support/check.h"
#include "support/random.h"

static size_t count_values(const fy_index *index, uint64_t hash, uint64_t *sum_out)
{
    size_t count = 0;
    *sum_out = 0;
    for (fy_index_cursor c = fy_index_first(index, hash); c.value != FY_INDEX_NONE;
         fy_index_next(index, &c)) {
        count++;
        *sum_out += c.value;
    }
    return count;
}

static void test_empty(void **state)
{
    (void)state;
    fy_index index = {0};
    uint64_t sum;
    assert_int_equal(count_values(&index, 0, &sum), 0);
    assert_int_equal(count_values(&index, UINT64_MAX, &sum), 0);
    fy_index_cleanup(&index);
}

/*
 * Hashes collide in every way: the same hash for several values, and different hashes that fall on
 * the same slots (low bits equal, or neighbours) so that probes run through each other.
 */
static void test_collisions(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t n_hashes;
        uint64_t step; /* between hashes */
        uint64_t first;
    } rows[] = {{"one hash", 1, 1, 5},
                {"hashes that share all low bits", 7, 1ull << 40, 3},
                {"the last slots, which wrap around", 5, 1, UINT64_MAX - 4},
                {"neighbours", 64, 1, 0},
                {"multiples of every capacity", 300, 4096, 0}};
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        fy_index index = {0};
        enum { N = 3000 };
        for (uint32_t v = 0; v < N; v++) {
            uint64_t hash = rows[r].first + v % rows[r].n_hashes * rows[r].step;
            check_row(rows[r].name, fy_index_insert(&index, hash, v));
        }
        for (uint64_t h = 0; h < rows[r].n_hashes; h++) {
            uint64_t sum, expected_sum = 0, expected = 0;
            for (uint64_t v = h; v < N; v += rows[r].n_hashes) {
                expected++;
                expected_sum += v;
            }
            size_t count = count_values(&index, rows[r].first + h * rows[r].step, &sum);
            check_row(rows[r].name, count == expected && sum == expected_sum);
        }
        uint64_t sum;
        check_row(rows[r].name, count_values(&index, 0x5555555555555555u, &sum) == 0);
        fy_index_cleanup(&index);
    }
}

static void test_random_hashes(void **state)
{
    (void)state;
    enum { N = 50000 };
    fy_index index = {0};
    uint64_t seed = 11;
    for (uint32_t v = 0; v < N; v++) {
        assert_true(fy_index_insert(&index, random_u64(&seed), v));
    }
    seed = 11;
    for (uint32_t v = 0; v < N; v++) {
        fy_index_cursor c = fy_index_first(&index, random_u64(&seed));
        check_at(c.value == v, "value %u", v);
        fy_index_next(&index, &c);
        check_at(c.value == FY_INDEX_NONE, "value %u", v);
    }
    fy_index_cleanup(&index);
}

/* A failed growth leaves everything that is in the index findable. */
static void test_failed_growth(void **state)
{
    (void)state;
    fy_index index = {0};
    uint32_t n = 0;
    assert_true(fy_index_insert(&index, 0, n++));
    fy_alloc_fail_after(0);
    while (fy_index_insert(&index, n, n)) {
        n++;
    }
    fy_alloc_fail_after(-1);
    assert_in_range(n, 2, 64);
    for (uint32_t v = 0; v < n; v++) {
        check_at(fy_index_first(&index, v).value == v, "value %u", v);
    }
    assert_true(fy_index_first(&index, n).value == FY_INDEX_NONE);
    assert_true(fy_index_insert(&index, n, n));
    assert_true(fy_index_first(&index, n).value == n);
    fy_index_cleanup(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_collisions),
        cmocka_unit_test(test_random_hashes),
        cmocka_unit_test(test_failed_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
