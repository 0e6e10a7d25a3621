/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "model/group.h"

#include "support/check.h"

#include <pthread.h>
#include <stdio.h>

static ferry_group *list_of(size_t n_ranks, const uint32_t *ranks)
{
    ferry_group *group = NULL;
    ferry_error error;
    must(ferry_group_create(ranks, n_ranks, &group, &error), &error);
    return group;
}

static ferry_group *range_of(uint32_t first, uint32_t stride, size_t n_ranks)
{
    ferry_group *group = NULL;
    ferry_error error;
    must(ferry_group_create_range(first, stride, n_ranks, &group, &error), &error);
    return group;
}

static void check_members(const ferry_group *group, const uint32_t *ranks, size_t n_ranks)
{
    ferry_error error;
    size_t index = 4711;
    assert_int_equal(ferry_group_rank_count(group), n_ranks);
    for (size_t i = 0; i < n_ranks; i++) {
        assert_int_equal(ferry_group_rank_at(group, i), ranks[i]);
        must(ferry_group_find_rank(group, ranks[i], &index, &error), &error);
        assert_int_equal(index, i);
    }
}

static void test_list(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {7, 0, FERRY_MAX_RANKS - 1, 3};
    uint32_t copied[4];
    memcpy(copied, ranks, sizeof ranks);
    ferry_group *group = list_of(4, copied);
    memset(copied, 0, sizeof copied); /* the group has its own copy */
    check_members(group, ranks, 4);
    ferry_group_destroy(group);
}

/* A range behaves as the list of its ranks does, and equals it. */
static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        uint32_t first, stride;
        size_t n_ranks;
    } rows[] = {{0, 1, 4},
                {5, 3, 4},
                {5, 0, 1},
                {9, 7, 1},
                {3, 2, 0},
                {FERRY_MAX_RANKS - 1, 1, 1},
                {0, FERRY_MAX_RANKS - 1, 2}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t ranks[4];
        for (uint32_t k = 0; k < rows[i].n_ranks; k++) {
            ranks[k] = rows[i].first + k * rows[i].stride;
        }
        ferry_group *range = range_of(rows[i].first, rows[i].stride, rows[i].n_ranks);
        ferry_group *list = list_of(rows[i].n_ranks, ranks);
        check_members(range, ranks, rows[i].n_ranks);
        check_at(fy_group_equal(range, list) && fy_group_equal(list, range), "row %zu", i);
        check_at(fy_group_hash(range) == fy_group_hash(list), "row %zu", i);
        check_at(fy_group_compare(range, list) == 0, "row %zu", i);
        ferry_group_destroy(range);
        ferry_group_destroy(list);
    }
}

static void test_members(void **state)
{
    (void)state;
    ferry_group *groups[] = {range_of(5, 3, 4), list_of(4, (uint32_t[]){5, 8, 11, 14})};
    for (size_t g = 0; g < COUNT_OF(groups); g++) {
        for (uint32_t rank = 0; rank < 30; rank++) {
            ferry_error error;
            size_t index = 4711;
            bool member = rank >= 5 && rank <= 14 && (rank - 5) % 3 == 0;
            ferry_status status = ferry_group_find_rank(groups[g], rank, &index, &error);
            check_at(status == (member ? FERRY_OK : FERRY_ERR_INVALID_INPUT), "group %zu rank %u",
                     g, rank);
            check_at(index == (member ? (rank - 5) / 3 : 4711), "group %zu rank %u", g, rank);
        }
        ferry_error error;
        size_t index;
        ferry_group_find_rank(groups[g], 6, &index, &error);
        assert_string_equal(error.message, "rank 6 is not a member of the group (5, 8, 11, 14)");
        ferry_group_destroy(groups[g]);
    }
}

static void test_refused(void **state)
{
    (void)state;
    ferry_error error;
    ferry_group *group = NULL;
    const struct {
        const char *name;
        ferry_status wanted;
        ferry_status status;
    } rows[] = {
        {"twice", FERRY_ERR_INVALID_INPUT,
         ferry_group_create((uint32_t[]){3, 4, 3}, 3, &group, &error)},
        {"too high", FERRY_ERR_INVALID_INPUT,
         ferry_group_create((uint32_t[]){FERRY_MAX_RANKS}, 1, &group, &error)},
        {"too many", FERRY_ERR_LIMIT,
         ferry_group_create((uint32_t[]){1}, (size_t)FERRY_MAX_RANKS + 1, &group, NULL)},
        {"no list", FERRY_ERR_MISUSE, ferry_group_create(NULL, 1, &group, &error)},
        {"no place", FERRY_ERR_MISUSE, ferry_group_create((uint32_t[]){1}, 1, NULL, &error)},
        {"range too high", FERRY_ERR_LIMIT,
         ferry_group_create_range(FERRY_MAX_RANKS - 1, 1, 2, &group, &error)},
        {"range that wraps", FERRY_ERR_LIMIT,
         ferry_group_create_range(0, UINT32_MAX, 3, &group, &error)},
        {"range of too many", FERRY_ERR_LIMIT,
         ferry_group_create_range(0, 1, SIZE_MAX, &group, &error)},
        {"stride 0", FERRY_ERR_MISUSE, ferry_group_create_range(0, 0, 2, &group, &error)},
        {"range, no place", FERRY_ERR_MISUSE, ferry_group_create_range(0, 1, 2, NULL, &error)},
        {"no group", FERRY_ERR_MISUSE, ferry_group_find_rank(NULL, 0, &(size_t){0}, &error)},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        check_status(rows[i].name, rows[i].wanted, rows[i].status, &error);
    }
    assert_null(group);
}

static void test_empty_is_not_none(void **state)
{
    (void)state;
    ferry_group *empty = list_of(0, NULL);
    assert_non_null(empty);
    assert_int_equal(ferry_group_rank_count(empty), 0);
    assert_int_equal(ferry_group_rank_count(NULL), 0);
    assert_null(ferry_group_retain(NULL));
    ferry_group_destroy(NULL);
    ferry_group_destroy(empty);
}

/* Groups in the order in which Python sorts their tuples. */
static void test_order(void **state)
{
    (void)state;
    ferry_group *groups[] = {list_of(0, NULL),
                             list_of(1, (uint32_t[]){0}),
                             range_of(0, 1, 2),
                             list_of(2, (uint32_t[]){0, 3}),
                             list_of(3, (uint32_t[]){0, 3, 1}),
                             range_of(0, 4, 3),
                             list_of(1, (uint32_t[]){1}),
                             list_of(2, (uint32_t[]){1, 0}),
                             range_of(2, 1, 2)};
    for (size_t a = 0; a < COUNT_OF(groups); a++) {
        for (size_t b = 0; b < COUNT_OF(groups); b++) {
            int expected = (a > b) - (a < b);
            check_at(fy_group_compare(groups[a], groups[b]) == expected, "%zu, %zu", a, b);
            check_at(fy_group_equal(groups[a], groups[b]) == (a == b), "%zu, %zu", a, b);
            check_at((fy_group_hash(groups[a]) == fy_group_hash(groups[b])) == (a == b), "%zu, %zu",
                     a, b);
        }
    }
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        ferry_group_destroy(groups[i]);
    }
}

/* Long groups are cut to fit, whatever room there is. */
static void test_format(void **state)
{
    (void)state;
    ferry_group *group = range_of(1000000, 1, 100);
    ferry_group *empty = list_of(0, NULL);
    char text[201];
    for (size_t bytes = 32; bytes <= 200; bytes++) {
        memset(text, '#', sizeof text);
        fy_group_format(group, text, bytes);
        size_t length = strlen(text);
        check_at(length < bytes && text[bytes] == '#', "%zu bytes", bytes);
        check_at(text[0] == '(' && strcmp(text + length - 6, ", ...)") == 0, "%zu bytes: %s", bytes,
                 text);
    }
    fy_group_format(empty, text, sizeof text);
    assert_string_equal(text, "()");
    ferry_group_destroy(group);
    ferry_group_destroy(empty);
}

enum { N_THREADS = 4, N_ROUNDS = 20000 };

static void *hold_and_release(void *group)
{
    for (int i = 0; i < N_ROUNDS; i++) {
        ferry_group_destroy(ferry_group_retain(group));
    }
    ferry_group_destroy(group); /* the reference that the thread was given */
    return NULL;
}

static void test_references(void **state)
{
    (void)state;
    pthread_t threads[N_THREADS];
    ferry_group *group = range_of(0, 1, 4);
    for (int i = 0; i < N_THREADS; i++) {
        ferry_group_retain(group);
        assert_int_equal(pthread_create(&threads[i], NULL, hold_and_release, group), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(ferry_group_rank_count(group), 4);
    ferry_group_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_empty_is_not_none),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
