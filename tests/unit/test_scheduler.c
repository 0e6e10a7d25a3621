/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's calls on one rank: packing, and both first-fit rules against slow ones. */
#include "support/check.h"
#include "support/random.h"
#include "support/workloads.h"

#include "schedule/rules.h"
#include "schedule/tasks.h"

#include <ferry/ferry.h>
#include <ferry/reference.h>

#include <stdio.h>

/* Packing. */

static void print_batches(const ferry_reference_workloads *w, uint32_t to, char *text, size_t room)
{
    ferry_error error;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t b = 0; b < ferry_reference_workloads_batch_count(w, to); b++) {
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        must(ferry_reference_workloads_batch_at(w, to, b, &batch, &error), &error);
        assert_int_equal(batch.to, to);
        assert_int_equal(batch.index, b);
        used +=
            (size_t)snprintf(text + used, room - used, "[%llu:", (unsigned long long)batch.bytes);
        for (uint32_t i = 0; i < ferry_reference_workloads_segment_count(w, to, b); i++) {
            ferry_reference_segment_id id;
            uint64_t first, bytes;
            must(ferry_reference_workloads_segment_at(w, to, b, i, &id, &first, &bytes, &error),
                 &error);
            used += (size_t)snprintf(text + used, room - used, " %llu.%llu@%llu+%llu",
                                     (unsigned long long)id.task_id,
                                     (unsigned long long)id.segment_index,
                                     (unsigned long long)first, (unsigned long long)bytes);
        }
        used += (size_t)snprintf(text + used, room - used, "]");
    }
}

static void test_batches(void **state)
{
    (void)state;
    static const task tasks[] = {{9, 1, 4, 2}, {3, 1, 25, 1}, {7, 1, 4, 4},
                                 {5, 2, 7, 7}, {1, 1, 3, 3},  {4, 0, 12, 4}};
    ferry_reference_workloads *w = NULL;
    ferry_error error;
    char text[512];
    must(try_workloads(0, 3, tasks, COUNT_OF(tasks), 10, 0, &w, &error), &error);
    print_batches(w, 1, text, sizeof text);
    assert_string_equal(text, "[10: 3.0@0+10][10: 3.1@10+10][9: 3.2@20+5 7.0@0+4]"
                              "[7: 9.0@0+4 1.0@0+3]");
    print_batches(w, 2, text, sizeof text);
    assert_string_equal(text, "[7: 5.0@0+7]");
    print_batches(w, 0, text, sizeof text); /* to itself: whole elements of 4 in a slot of 10 */
    assert_string_equal(text, "[8: 4.0@0+8][4: 4.1@8+4]");
    assert_int_equal(ferry_reference_workloads_batch_count(w, 3), 0);
    assert_int_equal(ferry_reference_workloads_segment_count(w, 1, 4), 0);
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    check_status("batch 4", FERRY_ERR_MISUSE,
                 ferry_reference_workloads_batch_at(w, 1, 4, &batch, &error), &error);
    check_says("batch 4", "batch 4 to rank 1: there are 4", &error);
    check_status("segment 2", FERRY_ERR_MISUSE,
                 ferry_reference_workloads_segment_at(w, 1, 3, 2, NULL, NULL, NULL, &error),
                 &error);
    check_says("segment 2", "segment 2 of the 2 of batch 3 to rank 1", &error);
    ferry_reference_workloads_destroy(w);
    must(try_workloads(0, 3, tasks, COUNT_OF(tasks), 0, 2, &w, &error), &error);
    print_batches(w, 1, text, sizeof text);
    assert_string_equal(text, "[29: 3.0@0+25 7.0@0+4][7: 9.0@0+4 1.0@0+3]");
    ferry_reference_workloads_destroy(w);
}

/* The reference's ids break at a million tasks and at a thousand segments. */
static void test_segment_ids(void **state)
{
    (void)state;
    static const task tasks[] = {
        {UINT64_MAX, 1, 5000, 1}, {UINT64_MAX - 1, 1, 3000, 1}, {0, 1, 1, 1}};
    ferry_reference_workloads *w = NULL;
    ferry_error error;
    must(try_workloads(0, 2, tasks, COUNT_OF(tasks), 1, 0, &w, &error), &error);
    assert_int_equal(ferry_reference_workloads_batch_count(w, 1), 8001);
    for (uint32_t g = 0; g < 8001; g++) {
        ferry_reference_segment_id id;
        must(ferry_reference_workloads_segment_at(w, 1, g, 0, &id, NULL, NULL, &error), &error);
        uint64_t task_id = g == 0 ? 0 : g < 3001 ? UINT64_MAX - 1 : UINT64_MAX;
        uint64_t index = g == 0 ? 0 : g < 3001 ? g - 1 : g - 3001;
        check_at(id.task_id == task_id && id.segment_index == index, "group %u", g);
    }
    ferry_reference_workloads_destroy(w);
}

static void test_segment_ranges(void **state)
{
    (void)state;
    ferry_error error;
    uint64_t n = 0, first = 0, bytes = 0;
    must(ferry_reference_segment_count(25, 5, 11, &n, &error), &error);
    assert_int_equal(n, 3);
    must(ferry_reference_segment_at(25, 5, 11, 2, &first, &bytes, &error), &error);
    assert_int_equal(first, 20);
    assert_int_equal(bytes, 5);
    must(ferry_reference_segment_at(UINT64_MAX, 1, UINT64_MAX - 1, 1, &first, &bytes, &error),
         &error);
    assert_true(first == UINT64_MAX - 1 && bytes == 1);
    assert_int_equal(ferry_reference_segment_at(25, 5, 11, 3, &first, &bytes, &error),
                     FERRY_ERR_MISUSE);
    assert_int_equal(ferry_reference_segment_count(25, 5, 4, &n, &error), FERRY_ERR_INVALID_INPUT);
}

typedef struct bad_tasks {
    const char *name;
    task tasks[2];
    uint64_t slot;
    ferry_status status;
    const char *says;
} bad_tasks;

static const bad_tasks bad_tasks_rows[] = {
    {"zero bytes",
     {{7, 1, 0, 1}, {8, 1, 1, 1}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "task 7 has zero bytes"},
    {"part of an element",
     {{7, 1, 9, 4}, {8, 1, 1, 1}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "task 7: 9 bytes are not a whole number of elements of 4 bytes"},
    {"no element",
     {{7, 1, 9, 0}, {8, 1, 1, 1}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "elements of 0 bytes"},
    {"large element",
     {{7, 1, (uint64_t)1 << 32, (uint64_t)1 << 32}, {8, 1, 1, 1}},
     UINT64_MAX,
     FERRY_ERR_INVALID_INPUT,
     "task 7 has elements of 4294967296 bytes: at most 2^32 - 1 are possible"},
    {"peer",
     {{7, 3, 9, 1}, {8, 1, 1, 1}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "task 7 goes from rank 0 to rank 3, but there are 3 ranks"},
    {"small slot",
     {{7, 1, 4, 4}, {8, 1, 32, 32}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "a slot of 16 bytes takes no element of task 8, which has 32 bytes"},
    {"duplicate",
     {{7, 1, 4, 4}, {7, 1, 64, 1}},
     16,
     FERRY_ERR_INVALID_INPUT,
     "two tasks from rank 0 to rank 1 have the id 7"},
    {"total",
     {{7, 1, UINT64_MAX, 1}, {8, 2, 1, 1}},
     UINT64_MAX,
     FERRY_ERR_LIMIT,
     "more than 2^64 bytes with task 8 for rank 2"},
    {"degree",
     {{7, 1, (uint64_t)1 << 40, 1}, {8, 2, 1, 1}},
     16,
     FERRY_ERR_LIMIT,
     "at least 68719476736 batches for rank 1"},
    {"degree by elements",
     {{7, 1, (uint64_t)9 << 31, 9}, {8, 2, 1, 1}},
     9,
     FERRY_ERR_LIMIT,
     "at least 2147483648 batches for rank 1"},
};

static void test_bad_tasks(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad_tasks_rows); i++) {
        ferry_reference_workloads *w = NULL;
        ferry_error error;
        ferry_status status =
            try_workloads(0, 3, bad_tasks_rows[i].tasks, 2, bad_tasks_rows[i].slot, 0, &w, &error);
        check_status(bad_tasks_rows[i].name, bad_tasks_rows[i].status, status, &error);
        check_says(bad_tasks_rows[i].name, bad_tasks_rows[i].says, &error);
        check_row(bad_tasks_rows[i].name, w == NULL);
    }
}

static void test_pack_again(void **state)
{
    (void)state;
    ferry_reference_workloads *w = NULL;
    ferry_error error;
    must(ferry_reference_workloads_create(0, 2, &w, &error), &error);
    must(ferry_reference_workloads_add_task(w, 1, 1, 64, 64, &error), &error);
    assert_int_equal(ferry_reference_workloads_pack(w, 63, 0, &error), FERRY_ERR_INVALID_INPUT);
    assert_int_equal(ferry_reference_workloads_batch_count(w, 1), 0);
    must(ferry_reference_workloads_pack(w, 64, 0, &error), &error);
    assert_int_equal(ferry_reference_workloads_batch_count(w, 1), 1);
    assert_int_equal(ferry_reference_workloads_pack(w, 64, 0, &error), FERRY_ERR_MISUSE);
    assert_int_equal(ferry_reference_workloads_add_task(w, 2, 1, 1, 1, &error), FERRY_ERR_MISUSE);
    ferry_reference_workloads_destroy(w);
}

/* Rules. */

enum { MOST = 4096 };

/* Every earlier batch is looked at, for every round. */
static uint32_t first_fit_slowly(size_t n, const uint32_t *from, const uint32_t *to, bool half,
                                 uint32_t *round)
{
    uint32_t n_rounds = 0;
    for (size_t i = 0; i < n; i++) {
        bool is_free = false;
        for (round[i] = 0; !is_free; round[i] += !is_free) {
            is_free = true;
            for (size_t j = 0; j < i && is_free; j++) {
                bool meets = from[i] == from[j] || to[i] == to[j] ||
                             (half && (from[i] == to[j] || to[i] == from[j]));
                is_free = !meets || round[j] != round[i];
            }
            if (is_free) {
                break;
            }
        }
        n_rounds = round[i] + 1 > n_rounds ? round[i] + 1 : n_rounds;
    }
    return n_rounds;
}

static void compare_rules(uint32_t n_ranks, size_t n, uint32_t *from, uint32_t *to)
{
    static uint32_t expected[MOST], actual[MOST];
    ferry_error error;
    for (int half = 0; half < 2; half++) {
        uint32_t n_expected = first_fit_slowly(n, from, to, half == 1, expected);
        fy_edges edges = {n_ranks, 77, n, from, to, actual};
        must(fy_first_fit(&edges, half == 1, &error), &error);
        assert_int_equal(edges.n_rounds, n_expected);
        for (size_t i = 0; i < n; i++) {
            check_at(actual[i] == expected[i], "batch %zu of %zu, half %d: %u, not %u", i, n, half,
                     actual[i], expected[i]);
        }
    }
}

/* All worlds of three ranks with up to two batches between two. */
static void test_small_worlds(void **state)
{
    (void)state;
    for (uint32_t world = 0; world < 729; world++) {
        uint32_t from[12], to[12], rest = world;
        size_t n = 0;
        for (uint32_t pair = 0; pair < 6; pair++, rest /= 3) {
            for (uint32_t i = 0; i < rest % 3; i++) {
                from[n] = pair / 2;
                to[n++] = (pair / 2 + 1 + pair % 2) % 3;
            }
        }
        compare_rules(3, n, from, to);
    }
}

/* All worlds of four ranks with up to one batch between two. */
static void test_four_ranks(void **state)
{
    (void)state;
    for (uint32_t world = 0; world < 4096; world++) {
        uint32_t from[12], to[12];
        size_t n = 0;
        for (uint32_t pair = 0; pair < 12; pair++) {
            if ((world >> pair & 1) != 0) {
                from[n] = pair / 3;
                to[n++] = (pair / 3 + 1 + pair % 3) % 4;
            }
        }
        compare_rules(4, n, from, to);
    }
}

static void test_random_worlds(void **state)
{
    (void)state;
    static uint32_t from[MOST], to[MOST];
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        uint32_t n_ranks = 2 + random_below(&random, 12), skew = 1 + random_below(&random, n_ranks);
        size_t n = random_below(&random, 120);
        for (size_t i = 0; i < n; i++) {
            from[i] = random_below(&random, n_ranks);
            to[i] = (from[i] + 1 + random_below(&random, n_ranks - 1)) % n_ranks;
            if (random_below(&random, 3) == 0 && from[i] != skew - 1) {
                to[i] = skew - 1; /* a busy receiver */
            }
        }
        compare_rules(n_ranks, n, from, to);
    }
}

/* Rounds far apart at one rank: a busy pair fills pages that others skip. */
static void test_distant_rounds(void **state)
{
    (void)state;
    static uint32_t from[MOST], to[MOST];
    size_t n = 0;
    for (; n < 1100; n++) {
        from[n] = 0;
        to[n] = 1;
    }
    for (uint32_t r = 2; r < 60; r++) {
        from[n] = r, to[n++] = 1;          /* behind all rounds of 1 */
        from[n] = r, to[n++] = 2 + r % 58; /* in an early one */
        from[n] = 2 + r % 58, to[n++] = 0; /* in the early ones of 0 */
        from[n] = 0, to[n++] = r;          /* late for 0, early for the other */
    }
    for (size_t i = 0; i < n; i++) {
        to[i] = to[i] == from[i] ? 1 : to[i];
    }
    compare_rules(60, n, from, to);
}

/* A sender whose first rounds are late ones, as many as a page has: its early ones stay free. */
static void test_late_first_rounds(void **state)
{
    (void)state;
    static uint32_t from[MOST], to[MOST], round[MOST];
    uint32_t n = 0;
    ferry_error error;
    for (; n < 2048; n++) {
        from[n] = n < 1024 ? 0 : 2;
        to[n] = 1;
    }
    from[n] = 2, to[n++] = 3;
    fy_edges edges = {4, 0, n, from, to, round};
    must(fy_first_fit(&edges, false, &error), &error);
    assert_int_equal(edges.n_rounds, 2048);
    for (uint32_t i = 0; i < n; i++) {
        check_at(round[i] == (i < 2048 ? i : 0), "batch %u: %u", i, round[i]);
    }
}

static ferry_reference_batches *list_of(uint32_t n_pes, const uint32_t (*rows)[3], size_t n)
{
    ferry_reference_batches *list = NULL;
    ferry_error error;
    must(ferry_reference_batches_create(n_pes, &list, &error), &error);
    for (size_t i = 0; i < n; i++) {
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        batch.from = rows[i][0];
        batch.to = rows[i][1];
        batch.index = rows[i][2];
        must(ferry_reference_batches_add(list, &batch, &error), &error);
    }
    return list;
}

/* Any iteration that has_conflict finds free and below the assigned one is a mistake of the rule.
 */
static void check_against_conflicts(const ferry_reference_batches *list, uint32_t duplex)
{
    ferry_error error;
    for (uint64_t i = 0; i < ferry_reference_batches_count(list); i++) {
        ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
        must(ferry_reference_batches_at(list, i, &batch, &error), &error);
        for (uint32_t it = 0; it <= batch.round; it++) {
            bool conflict = false;
            must(ferry_reference_batches_has_conflict(list, &batch, it, duplex, &conflict, &error),
                 &error);
            assert_true(conflict == (it < batch.round));
        }
    }
}

static void test_assign(void **state)
{
    (void)state;
    static const uint32_t rows[][3] = {{2, 0, 0}, {0, 1, 1}, {0, 1, 0}, {1, 0, 0}, {0, 2, 0}};
    static const uint32_t rounds[][5] = {{0, 1, 2, 0, 1}, {0, 1, 2, 3, 4}};
    ferry_error error;
    for (uint32_t half = 0; half < 2; half++) {
        ferry_reference_batches *list = list_of(3, rows, COUNT_OF(rows));
        uint32_t n = 0;
        must(
            ferry_reference_batches_assign_rounds(list, FERRY_SCHEDULE_FIRST_FIT, half, &n, &error),
            &error);
        assert_int_equal(n, half == 0 ? 3 : 5);
        for (uint64_t i = 0; i < COUNT_OF(rows); i++) {
            ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
            must(ferry_reference_batches_at(list, i, &batch, &error), &error);
            check_at(batch.round == rounds[half][i], "half %u, batch %llu: %u", half,
                     (unsigned long long)i, batch.round);
        }
        check_against_conflicts(list, half);
        must(ferry_reference_batches_assign_rounds(list, FERRY_SCHEDULE_OPTIMAL, half, &n, &error),
             &error);
        assert_int_equal(n, half == 0 ? 3 : 5);
        assert_int_equal(ferry_reference_batches_assign_rounds(list, 3, half, &n, &error),
                         FERRY_ERR_MISUSE);
        ferry_reference_batches_destroy(list);
    }
}

static void test_bad_batches(void **state)
{
    (void)state;
    static const uint32_t twice[][3] = {{0, 1, 4}, {1, 0, 4}, {0, 1, 4}};
    ferry_reference_batches *list = list_of(2, twice, 3);
    ferry_reference_batch batch = FERRY_REFERENCE_BATCH_INIT;
    uint32_t n = 77;
    ferry_error error;
    check_status(
        "twice", FERRY_ERR_INVALID_INPUT,
        ferry_reference_batches_assign_rounds(list, FERRY_SCHEDULE_FIRST_FIT, 0, &n, &error),
        &error);
    check_says("twice", "batch 4 from rank 0 to rank 1 is in the list twice", &error);
    assert_int_equal(n, 77);
    check_status("itself", FERRY_ERR_INVALID_INPUT,
                 ferry_reference_batches_add(list, &batch, &error), &error);
    check_says("itself", "from rank 0 to itself", &error);
    batch.to = 2;
    check_status("range", FERRY_ERR_INVALID_INPUT,
                 ferry_reference_batches_add(list, &batch, &error), &error);
    check_says("range", "from rank 0 to rank 2, but there are 2 ranks", &error);
    batch.to = 1;
    batch.bytes = UINT64_MAX;
    must(ferry_reference_batches_add(list, &batch, &error), &error);
    batch.index = 1;
    must(ferry_reference_batches_add(list, &batch, &error), &error);
    ferry_reference_batches_destroy(list);
    list = list_of(2, twice, 2);
    must(ferry_reference_batches_add(list, &batch, &error), &error);
    batch.index = 2;
    must(ferry_reference_batches_add(list, &batch, &error), &error);
    check_status(
        "total", FERRY_ERR_LIMIT,
        ferry_reference_batches_assign_rounds(list, FERRY_SCHEDULE_FIRST_FIT, 0, &n, &error),
        &error);
    check_says("total", "rank 0 sends add up to more than 2^64 bytes", &error);
    ferry_reference_batches_destroy(list);
}

/* Tasks are counted and then put: one that is missing, or is one too many, is told. */
static void test_counted_tasks(void **state)
{
    static const struct {
        const char *name;
        uint32_t n_first, n_second; /* that are put, of two from rank 0 to 1 and one to 2 */
        const char *says;           /* NULL: all is well */
    } rows[] = {{"all", 2, 1, NULL},
                {"none to the first", 0, 1, "3 tasks between ranks were counted, and 1 came"},
                {"one too few", 1, 1, "3 tasks between ranks were counted, and 2 came"},
                {"the last one is missing", 2, 0, "3 tasks between ranks were counted, and 2 came"},
                {"one too many", 2, 2, "rank 0 has other tasks for rank 2 than were counted"}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_pairs pairs;
        fy_pair_maker maker;
        ferry_error error;
        must(fy_pair_maker_init(&maker, 3, 10, &pairs, &error), &error);
        must(fy_pair_maker_count(&maker, 0, 1, &error), &error);
        must(fy_pair_maker_count(&maker, 0, 1, &error), &error);
        must(fy_pair_maker_count(&maker, 0, 2, &error), &error);
        must(fy_pair_maker_turn(&maker, &error), &error);
        ferry_status status = FERRY_OK;
        for (uint32_t t = 0; t < rows[i].n_first + rows[i].n_second && status == FERRY_OK; t++) {
            fy_task next = {.id = t, .bytes = 8, .element = 2, .content = FY_NO_CONTENT};
            fy_hash128 origin = {.low = t + 1};
            uint32_t to = t < rows[i].n_first ? 1 : 2;
            status = fy_pair_maker_put(&maker, 0, to, &next, origin, &error);
        }
        if (status == FERRY_OK) {
            status = fy_pair_maker_finish(&maker, &error);
        }
        check_status(rows[i].name, rows[i].says == NULL ? FERRY_OK : FERRY_ERR_INVALID_PLAN, status,
                     &error);
        if (rows[i].says != NULL) {
            check_says(rows[i].name, rows[i].says, &error);
        }
        fy_pair_maker_cleanup(&maker);
        fy_pairs_cleanup(&pairs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counted_tasks),     cmocka_unit_test(test_batches),
        cmocka_unit_test(test_segment_ids),       cmocka_unit_test(test_segment_ranges),
        cmocka_unit_test(test_bad_tasks),         cmocka_unit_test(test_pack_again),
        cmocka_unit_test(test_small_worlds),      cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_random_worlds),     cmocka_unit_test(test_distant_rounds),
        cmocka_unit_test(test_late_first_rounds), cmocka_unit_test(test_assign),
        cmocka_unit_test(test_bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
