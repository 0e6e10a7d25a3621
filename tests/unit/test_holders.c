/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/holders.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>

enum { MOST_RANKS = 40 };

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = ((const fy_holder *)a)->rank, y = ((const fy_holder *)b)->rank;
    return (x > y) - (x < y);
}

/* Against the entries themselves: every cell lists its ranks, ascending, and every rank is found.
 */
static void check_table(const fy_holders *h, uint32_t n_cells, fy_holder *entries, size_t n,
                        uint64_t seed)
{
    qsort(entries, n, sizeof *entries, compare_ranks);
    assert_int_equal(h->n_cells, n_cells);
    assert_int_equal(h->n_slots, n);
    uint32_t at[MOST_RANKS + 1] = {0};
    for (size_t i = 0; i < n; i++) {
        uint32_t slot = h->cell_begin[entries[i].cell] + at[entries[i].cell];
        check_at(h->rank[slot] == entries[i].rank && h->cell[slot] == entries[i].cell,
                 "seed %llu entry %zu", (unsigned long long)seed, i);
        check_at(fy_holders_find(h, entries[i].rank) == slot, "seed %llu entry %zu",
                 (unsigned long long)seed, i);
        check_at(fy_holders_replica(h, slot) == at[entries[i].cell], "seed %llu entry %zu",
                 (unsigned long long)seed, i);
        at[entries[i].cell]++;
    }
    bool same = true;
    for (uint32_t c = 0; c < n_cells; c++) {
        check_at(fy_holders_cell_size(h, c) == at[c], "seed %llu cell %u", (unsigned long long)seed,
                 c);
        same = same && at[c] == at[0];
    }
    check_at(h->n_replicas == (same ? at[0] : 0), "seed %llu", (unsigned long long)seed);
    for (size_t i = 1; i < n; i++) {
        check_at(h->rank[h->by_rank[i - 1]] < h->rank[h->by_rank[i]], "seed %llu",
                 (unsigned long long)seed);
    }
}

/* A random choice of ranks, in random order or ascending, on random cells. */
static size_t random_entries(uint64_t *seed, uint32_t n_cells, fy_holder *entries)
{
    uint32_t ranks[MOST_RANKS];
    size_t n = random_below(seed, MOST_RANKS) + 1;
    uint32_t first = random_below(seed, 100), stride = 1 + random_below(seed, 2) * 3;
    bool shuffled = random_below(seed, 2) == 1, even = random_below(seed, 2) == 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = shuffled ? random_below(seed, i + 1) : i;
        ranks[i] = ranks[j];
        ranks[j] = first + i * stride;
    }
    for (uint32_t i = 0; i < n; i++) {
        entries[i] =
            (fy_holder){.rank = ranks[i], .cell = even ? i % n_cells : random_below(seed, n_cells)};
    }
    return n;
}

static void test_random_tables(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 5000; round++) {
        uint64_t again = seed;
        uint32_t n_cells = random_below(&seed, 12) + 1;
        fy_holder entries[MOST_RANKS];
        fy_holders *h = NULL;
        ferry_error error;
        size_t n = random_entries(&seed, n_cells, entries);
        must(fy_holders_create(n_cells, entries, n, &h, &error), &error);
        check_table(h, n_cells, entries, n, again);
        for (uint32_t rank = 0; rank < 300; rank++) {
            bool listed = false;
            for (size_t i = 0; i < n; i++) {
                listed = listed || entries[i].rank == rank;
            }
            check_at((fy_holders_find(h, rank) != FY_NO_SLOT) == listed, "seed %llu rank %u",
                     (unsigned long long)again, rank);
        }
        fy_holders_destroy(h);
    }
}

static uint64_t hash_of(const fy_holder *entries, size_t n)
{
    fy_holders *h = NULL;
    ferry_error error;
    must(fy_holders_create(8, entries, n, &h, &error), &error);
    uint64_t hash = h->hash;
    fy_holders_destroy(h);
    return hash;
}

/* The hash is of who holds what: the order of the entries does not count, everything else does. */
static void test_hash(void **state)
{
    (void)state;
    static const fy_holder entries[] = {{0, 0}, {1, 1}, {2, 0}, {3, 1}};
    static const fy_holder reversed[] = {{3, 1}, {2, 0}, {1, 1}, {0, 0}};
    static const fy_holder others[][4] = {{{0, 0}, {1, 1}, {2, 1}, {3, 0}},
                                          {{0, 0}, {1, 1}, {2, 0}, {4, 1}},
                                          {{0, 2}, {1, 1}, {2, 0}, {3, 1}},
                                          {{0, 1}, {1, 0}, {2, 1}, {3, 0}}};
    assert_true(hash_of(entries, 4) == hash_of(reversed, 4));
    assert_true(hash_of(entries, 4) != hash_of(entries, 3));
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        check_at(hash_of(entries, 4) != hash_of(others[i], 4), "row %zu", i);
    }
}

static void test_edges(void **state)
{
    (void)state;
    static const fy_holder twice[] = {{5, 0}, {6, 1}, {5, 1}};
    static const fy_holder twice_in_order[] = {{5, 0}, {5, 1}, {6, 1}};
    ferry_error error;
    fy_holders *h = NULL;
    assert_int_equal(fy_holders_create(2, twice, 3, &h, &error), FERRY_ERR_INVALID_INPUT);
    assert_string_equal(error.message, "rank 5 holds it twice");
    assert_int_equal(fy_holders_create(2, twice_in_order, 3, &h, &error), FERRY_ERR_INVALID_INPUT);
    assert_null(h);
    must(fy_holders_create(3, twice, 2, &h, &error), &error); /* the last cell has no holder */
    assert_int_equal(fy_holders_cell_size(h, 2), 0);
    assert_int_equal(h->n_replicas, 0);
    fy_holders_destroy(h);
    must(fy_holders_create(1, NULL, 0, &h, &error), &error);
    assert_true(fy_holders_find(h, 0) == FY_NO_SLOT);
    fy_holders_destroy(h);
    fy_holders_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tables),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
