/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Blocks of an item: which bytes are theirs, and what is left of it when others are left out. */
#include "service/delta.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 20 * FY_DELTA_BYTES };

static bool is_in(uint64_t blocks, uint64_t at)
{
    return (blocks >> at / FY_DELTA_BYTES & 1) != 0;
}

static void check_blocks(uint64_t blocks, uint64_t n_bytes)
{
    static char packed[MOST], left[MOST], marks[MOST];
    uint64_t n_left = 0, first, bytes;
    uint32_t block = 0;
    memset(marks, 0, sizeof marks);
    for (uint64_t i = 0; i < n_bytes; i++) {
        packed[i] = (char)(i * 31 + i / 251);
        if (is_in(blocks, i)) {
            left[n_left++] = packed[i];
        }
    }
    while (fy_delta_next(blocks, n_bytes, &block, &first, &bytes)) {
        check_at(bytes > 0 && first + bytes <= n_bytes, "%llx: %llu bytes from %llu of %llu",
                 (unsigned long long)blocks, (unsigned long long)bytes, (unsigned long long)first,
                 (unsigned long long)n_bytes);
        memset(marks + first, 1, (size_t)bytes);
    }
    for (uint64_t i = 0; i < n_bytes; i++) {
        check_at(marks[i] == is_in(blocks, i), "%llx: byte %llu", (unsigned long long)blocks,
                 (unsigned long long)i);
    }
    uint64_t used = fy_delta_compact(packed, n_bytes, blocks);
    check_at(used == n_left && memcmp(packed, left, (size_t)used) == 0, "%llx of %llu bytes",
             (unsigned long long)blocks, (unsigned long long)n_bytes);
}

static void test_blocks(void **state)
{
    (void)state;
    uint64_t random = 7;
    static const uint64_t sizes[] = {
        1,   FY_DELTA_BYTES - 1, FY_DELTA_BYTES, FY_DELTA_BYTES + 1, 5 * FY_DELTA_BYTES, MOST - 3,
        MOST};
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        uint64_t all = fy_delta_all_blocks(sizes[s]);
        assert_int_equal(fy_delta_n_blocks(sizes[s]), (sizes[s] + 4095) / 4096);
        check_blocks(0, sizes[s]);
        check_blocks(all, sizes[s]);
        for (int i = 0; i < 200; i++) {
            check_blocks(random_u64(&random) & random_u64(&random) & all, sizes[s]);
        }
    }
    assert_int_equal(fy_delta_all_blocks(0), 0);
    assert_true(fy_delta_all_blocks(64 * FY_DELTA_BYTES) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
