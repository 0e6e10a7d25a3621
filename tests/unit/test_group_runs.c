/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups are runs, in memory and in packed models: held against plain lists, and their size against
 * budgets, for a world in which every rank tells of a group of everybody.
 */
#include "model/group.h"
#include "model/roster.h"

#include "support/check.h"
#include "support/model.h"
#include "support/random.h"

#include <stdlib.h>

enum { MOST_RANKS = 300, N_LISTS = 400 };

typedef struct rank_list {
    uint32_t ranks[MOST_RANKS];
    size_t n;
} rank_list;

static size_t below(uint64_t *seed, size_t limit)
{
    return random_below(seed, (uint32_t)limit);
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t c = *a;
    *a = *b;
    *b = c;
}

/* Stretches of different strides, up and down, in any order, now and then thrown about. */
static rank_list draw_list(uint64_t *seed)
{
    rank_list list = {.n = 0};
    uint64_t n_parts = random_below(seed, 7), base = random_below(seed, 1000);
    for (uint64_t p = 0; p < n_parts; p++) {
        uint64_t stride = 1 + random_below(seed, 5), n = 1 + random_below(seed, 40);
        bool down = random_below(seed, 2) == 0;
        for (uint64_t i = 0; i < n && list.n < MOST_RANKS; i++) {
            list.ranks[list.n++] = (uint32_t)(base + (down ? n - 1 - i : i) * stride);
        }
        base += n * stride + random_below(seed, 3);
    }
    uint64_t n_swaps = random_below(seed, 3) == 0 ? below(seed, 1 + 2 * list.n) : 0;
    for (uint64_t i = 0; i < n_swaps; i++) {
        swap(&list.ranks[below(seed, list.n)], &list.ranks[below(seed, list.n)]);
    }
    return list;
}

static ferry_group *group_of(const rank_list *list)
{
    ferry_group *group = NULL;
    ferry_error error;
    must(ferry_group_create(list->ranks, list->n, &group, &error), &error);
    return group;
}

static int compare_lists(const rank_list *a, const rank_list *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        if (a->ranks[i] != b->ranks[i]) {
            return a->ranks[i] < b->ranks[i] ? -1 : 1;
        }
    }
    return (a->n > b->n) - (a->n < b->n);
}

/* Every rank that there is, and some that there are not. */
static void check_members(const ferry_group *group, const rank_list *list, size_t number)
{
    assert_int_equal(ferry_group_rank_count(group), list->n);
    for (size_t i = 0; i < list->n; i++) {
        assert_int_equal(ferry_group_rank_at(group, i), list->ranks[i]);
    }
    for (uint32_t rank = 0; rank < 2500; rank++) {
        size_t wanted = SIZE_MAX, found = SIZE_MAX;
        for (size_t i = 0; i < list->n; i++) {
            wanted = list->ranks[i] == rank ? i : wanted;
        }
        bool member = fy_group_find(group, rank, &found);
        check_at(member == (wanted != SIZE_MAX) && found == wanted, "list %zu, rank %u", number,
                 rank);
    }
}

/* The same ranks in runs of the test's own: told otherwise, it is the same group. */
static ferry_group *retell(const rank_list *list, uint64_t *seed)
{
    fy_group_run runs[MOST_RANKS];
    size_t n_runs = 0;
    for (size_t i = 0; i < list->n;) {
        uint64_t most = 1 + random_below(seed, 5);
        int64_t stride =
            i + 1 < list->n ? (int64_t)list->ranks[i + 1] - (int64_t)list->ranks[i] : 3;
        fy_group_run run = {.first = list->ranks[i++], .n = 1, .stride = stride};
        while (i < list->n && run.n < most &&
               (int64_t)list->ranks[i] == run.first + run.n * stride) {
            run.n++;
            i++;
        }
        runs[n_runs++] = run;
    }
    ferry_group *group = NULL;
    ferry_error error;
    must(fy_group_create_runs(runs, n_runs, &group, &error), &error);
    return group;
}

static void test_lists(void **state)
{
    (void)state;
    uint64_t seed = 20;
    rank_list last = draw_list(&seed);
    size_t n_shorter = 0;
    for (size_t i = 0; i < N_LISTS; i++) {
        rank_list list = draw_list(&seed);
        ferry_group *group = group_of(&list), *told = retell(&list, &seed);
        ferry_group *other = group_of(&last);
        check_members(group, &list, i);
        check_at(fy_group_equal(group, told) && fy_group_hash(group) == fy_group_hash(told) &&
                     fy_group_compare(group, told) == 0,
                 "list %zu", i);
        check_at(fy_group_compare(group, other) == compare_lists(&list, &last), "list %zu", i);
        check_at(fy_group_equal(group, other) == (compare_lists(&list, &last) == 0), "list %zu", i);
        n_shorter += fy_group_run_count(group) < list.n / 4;
        ferry_group_destroy(group);
        ferry_group_destroy(told);
        ferry_group_destroy(other);
        last = list;
        if (list.n > 1) {
            size_t at = below(&seed, list.n);
            list.ranks[at] = list.ranks[(at + 1 + below(&seed, list.n - 1)) % list.n];
            ferry_error error;
            check_at(ferry_group_create(list.ranks, list.n, &group, &error) ==
                         FERRY_ERR_INVALID_INPUT,
                     "list %zu with a rank twice", i);
        }
    }
    assert_true(n_shorter > N_LISTS / 4);
}

/* Whether two runs meet is worked out, not tried: so all small ones are tried here. */
static void test_runs_that_meet(void **state)
{
    (void)state;
    size_t counts[2] = {0, 0};
    for (uint32_t stride = 1; stride < 7; stride++) {
        for (uint32_t other = 1; other < 7; other++) {
            for (uint32_t first = 0; first < 9; first++) {
                for (uint32_t n = 1; n < 9; n++) {
                    fy_group_run runs[2] = {{30, 6, stride}, {26 + first, n, other}};
                    unsigned seen[128] = {0};
                    bool meet = false;
                    if ((first + n) % 2 == 0) { /* downwards */
                        runs[1].first += (n - 1) * other;
                        runs[1].stride = -(int64_t)other;
                    }
                    for (size_t r = 0; r < 2; r++) {
                        for (int64_t i = 0; i < runs[r].n; i++) {
                            meet = meet || seen[runs[r].first + i * runs[r].stride]++ > 0;
                        }
                    }
                    ferry_group *group = NULL;
                    ferry_error error;
                    ferry_status status = fy_group_create_runs(runs, 2, &group, &error);
                    check_at(status == (meet ? FERRY_ERR_INVALID_INPUT : FERRY_OK),
                             "6 by %u, and %u of %u by %u", stride, runs[1].first, n, other);
                    counts[meet]++;
                    ferry_group_destroy(group);
                }
            }
        }
    }
    assert_true(counts[0] > 100 && counts[1] > 100);
}

static void test_hostile_runs(void **state)
{
    (void)state;
    const fy_group_run rows[][2] = {
        {{0, 0, 1}, {5, 1, 1}},
        {{FERRY_MAX_RANKS, 1, 1}, {5, 1, 1}},
        {{1, FERRY_MAX_RANKS, 1}, {0, 1, 1}},
        {{0, FERRY_MAX_RANKS + 1, 1}, {5, 1, 1}},
        {{0, UINT32_MAX, 0}, {5, 1, 1}},
        {{7, 3, 0}, {5, 1, 1}},
        {{7, 3, -4}, {50, 1, 1}},
        {{0, 3, INT64_MAX}, {5, 1, 1}},
        {{9, 3, INT64_MIN}, {5, 1, 1}},
        {{0, FERRY_MAX_RANKS, 1}, {5, 1, 1}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ferry_group *group = NULL;
        ferry_error error;
        check_at(fy_group_create_runs(rows[i], 2, &group, &error) == FERRY_ERR_INVALID_INPUT,
                 "row %zu", i);
        assert_null(group);
    }
}

/* A message of a few bytes that names millions of ranks costs a sentence. */
static void test_hostile_group(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= FERRY_MAX_RANKS - 1; n = n < 10 ? n + 1 : n * 7) {
        ferry_roster *roster = NULL;
        ferry_model *model = NULL;
        ferry_plan *plan = NULL;
        ferry_group *group = range_group(0, 1, n);
        ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
        ferry_error error;
        m.name = "w";
        m.n_dims = 1;
        m.shape[0] = 4;
        m.dtype = (ferry_dtype){.kind = FERRY_U8, .element_bits = 8};
        m.is_tp = true;
        m.partition_stride = 1;
        m.tensor_parallel_group_ranks = group;
        must(ferry_model_create(&model, &error), &error);
        must(ferry_model_add(model, &m, &error), &error);
        must(ferry_roster_create(2, &roster, &error), &error);
        must(ferry_roster_set(roster, 0, model, model, &error), &error);
        assert_int_equal(ferry_plan_create_from_roster(roster, NULL, &plan, &error),
                         FERRY_ERR_INVALID_INPUT);
        assert_non_null(strstr(error.message, "the world has 2"));
        ferry_roster_destroy(roster);
        ferry_model_destroy(model);
        ferry_group_destroy(group);
    }
}

/* One parameter on every rank, which names the whole world twice; as a list or as a range. */
static ferry_model *model_of(uint32_t rank, ferry_group *world)
{
    ferry_error error;
    ferry_model *model = NULL;
    ferry_param_metadata m = FERRY_PARAM_METADATA_INIT;
    m.name = "norm.weight";
    m.n_dims = 1;
    m.shape[0] = 1024;
    m.dtype = (ferry_dtype){.kind = FERRY_BF16, .element_bits = 16};
    m.owner_rank = rank;
    m.data_parallel_group_ranks = world;
    m.pipeline_parallel_group_ranks = world;
    must(ferry_model_create(&model, &error), &error);
    must(ferry_model_add(model, &m, &error), &error);
    return model;
}

static ferry_group *list_all(uint32_t n_ranks)
{
    ferry_error error;
    ferry_group *group = NULL;
    uint32_t *ranks = calloc(n_ranks, sizeof *ranks);
    assert_non_null(ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ranks[r] = r;
    }
    must(ferry_group_create(ranks, n_ranks, &group, &error), &error);
    free(ranks);
    return group;
}

/* The bytes that all ranks gather; and the groups that whoever has gathered them keeps. */
static size_t gather(uint32_t n_ranks, bool as_list, size_t *n_groups_out)
{
    ferry_error error;
    fy_pack packed = {0};
    ferry_roster *roster = NULL;
    ferry_group *world = as_list ? list_all(n_ranks) : range_group(0, 1, n_ranks);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ferry_model *model = model_of(r, world);
        fy_model_pack(model, &packed);
        fy_model_pack(model, &packed);
        ferry_model_destroy(model);
    }
    ferry_group_destroy(world);
    fy_reader in = {.at = packed.bytes, .end = packed.bytes + packed.used};
    must(ferry_roster_create(n_ranks, &roster, &error), &error);
    for (uint32_t r = 0; r < n_ranks; r++) {
        must(fy_roster_set_packed(roster, r, &in, &error), &error);
    }
    assert_ptr_equal(in.at, in.end);
    *n_groups_out = roster->outlines.groups.n_groups;
    size_t bytes = packed.used;
    fy_pack again = {0}; /* what a saved plan holds is the same */
    for (uint32_t r = 0; r < n_ranks; r++) {
        fy_roster_pack(roster, r, &again);
    }
    assert_int_equal(again.used, packed.used);
    assert_memory_equal(again.bytes, packed.bytes, packed.used);
    fy_pack_cleanup(&again);
    ferry_roster_destroy(roster);
    fy_pack_cleanup(&packed);
    return bytes;
}

static void test_large_worlds(void **state)
{
    (void)state;
    for (int as_list = 0; as_list < 2; as_list++) {
        size_t n_groups, few = gather(1024, as_list != 0, &n_groups);
        assert_int_equal(n_groups, 1);
        size_t many = gather(8192, as_list != 0, &n_groups);
        assert_int_equal(n_groups, 1);
        assert_true(many < 2000000 && many < 9 * few);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),        cmocka_unit_test(test_runs_that_meet),
        cmocka_unit_test(test_hostile_runs), cmocka_unit_test(test_hostile_group),
        cmocka_unit_test(test_large_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
