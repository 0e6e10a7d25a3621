/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Strided places, regions and joined boxes, each against a look at every element. */
#include "layout/box_tree.h"
#include "layout/patch.h"
#include "layout/regions.h"
#include "layout/strided.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>

enum { MOST_PLACE = 4096, MOST_BOXES = 64 };

static ferry_error error;
static uint64_t budget; /* of the searches of a turn */

/* Adds one to every place that is met; the highest number that any has. */
static unsigned mark(const fy_strided *places, uint32_t loop, uint64_t at, unsigned *marks)
{
    if (loop == places->n_loops) {
        return ++marks[at];
    }
    unsigned most = 0;
    for (uint64_t i = 0; i < places->count[loop]; i++) {
        unsigned found = mark(places, loop + 1, at + i * places->stride[loop], marks);
        most = found > most ? found : most;
    }
    return most;
}

static fy_strided draw(uint64_t *seed, uint32_t most_loops, uint32_t most_count,
                       uint32_t most_stride)
{
    fy_strided places = {.offset = random_below(seed, 40)};
    places.n_loops = random_below(seed, most_loops + 1);
    for (uint32_t k = 0; k < places.n_loops; k++) {
        places.count[k] = 1 + random_below(seed, most_count);
        places.stride[k] = 1 + random_below(seed, most_stride);
    }
    return places;
}

static bool fits(const fy_strided *places)
{
    uint64_t n, last;
    return fy_strided_measure(places, &n, &last) && last < MOST_PLACE;
}

static void test_one(void **state)
{
    uint64_t seed = 1;
    size_t n_meeting = 0;
    (void)state;
    for (int turn = 0; turn < 40000; turn++) {
        fy_strided places = draw(&seed, 4, 5, turn % 2 == 0 ? 12 : 60), given = places;
        unsigned marks[MOST_PLACE] = {0};
        uint64_t place = 0;
        bool meets;
        budget = fy_strided_budget(1);
        if (!fits(&places)) {
            continue;
        }
        bool wanted = mark(&given, 0, given.offset, marks) > 1;
        fy_strided_simplify(&places);
        must(fy_strided_meets_itself(&places, &budget, &meets, &place, &error), &error);
        check_at(meets == wanted, "turn %d", turn);
        check_at(!meets || marks[place] > 1, "turn %d, place %d", turn, (int)place);
        n_meeting += meets;
        for (uint64_t at = 0; !meets && at < MOST_PLACE; at += 1 + at / 8) {
            uint64_t count = 0;
            for (uint64_t k = 0; k < at; k++) {
                count += marks[k];
            }
            check_at(fy_strided_count_below(&places, at) == count, "turn %d, below %d", turn,
                     (int)at);
        }
    }
    assert_true(n_meeting > 100);
}

static void test_two(void **state)
{
    uint64_t seed = 2;
    size_t n_meeting = 0;
    (void)state;
    for (int turn = 0; turn < 40000; turn++) {
        fy_strided a = draw(&seed, 4, 6, turn % 2 == 0 ? 9 : 50);
        fy_strided b = draw(&seed, 4, 6, turn % 2 == 0 ? 9 : 50);
        unsigned marks[MOST_PLACE] = {0}, others[MOST_PLACE] = {0};
        uint64_t place = 0;
        bool meet, wanted = false;
        budget = fy_strided_budget(2);
        if (!fits(&a) || !fits(&b)) {
            continue;
        }
        (void)mark(&a, 0, a.offset, marks);
        (void)mark(&b, 0, b.offset, others);
        for (uint64_t at = 0; at < MOST_PLACE; at++) {
            wanted = wanted || (marks[at] > 0 && others[at] > 0);
        }
        fy_strided_simplify(&a);
        fy_strided_simplify(&b);
        must(fy_strided_meet(&a, &b, &budget, &meet, &place, &error), &error);
        check_at(meet == wanted, "turn %d", turn);
        check_at(!meet || (marks[place] > 0 && others[place] > 0), "turn %d", turn);
        n_meeting += meet;
    }
    assert_true(n_meeting > 1000);
}

/* Boxes of one array, in any order of its dimensions, now and then moved onto another. */
static size_t draw_array(uint64_t *seed, fy_strided *boxes)
{
    uint64_t pitch[4], width = 1 + random_below(seed, 3);
    uint32_t n_dims = 1 + random_below(seed, 3);
    uint64_t cells[3];
    size_t n = 0, most = 1;
    pitch[n_dims] = width;
    for (uint32_t d = n_dims; d-- > 0;) {
        cells[d] = 1 + random_below(seed, 6);
        pitch[d] = pitch[d + 1] * cells[d];
        most *= cells[d];
    }
    for (size_t cell = 0; cell < most && n < MOST_BOXES; cell++) {
        fy_strided box = {.n_loops = 1, .count = {width}, .stride = {1}};
        size_t rest = cell;
        for (uint32_t d = n_dims; d-- > 0;) {
            box.offset += rest % cells[d] * pitch[d + 1];
            rest /= cells[d];
        }
        if (random_below(seed, 300) == 0) {
            box.offset += 1 + random_below(seed, 3);
        }
        if (random_below(seed, 12) > 0) {
            fy_strided_simplify(&box);
            boxes[n++] = box;
        }
    }
    return n;
}

static void test_many(void **state)
{
    uint64_t seed = 3;
    size_t n_meeting = 0;
    (void)state;
    for (int turn = 0; turn < 8000; turn++) {
        fy_strided boxes[MOST_BOXES];
        unsigned marks[MOST_PLACE] = {0}, most = 0;
        size_t n = draw_array(&seed, boxes), a, b;
        uint64_t place;
        budget = fy_strided_budget(n);
        for (size_t extra = random_below(&seed, 3); extra > 0 && n < MOST_BOXES; extra--) {
            boxes[n] = draw(&seed, 2, 4, 9);
            boxes[n].offset += 30;
            bool meets;
            fy_strided_simplify(&boxes[n]);
            must(fy_strided_meets_itself(&boxes[n], &budget, &meets, &place, &error), &error);
            n += !meets;
        }
        for (size_t i = 0; i < n; i++) {
            unsigned found = mark(&boxes[i], 0, boxes[i].offset, marks);
            most = found > most ? found : most;
        }
        must(fy_strided_find_meeting(boxes, n, &budget, &a, &b, &place, &error), &error);
        check_at((a < n) == (most > 1), "turn %d", turn);
        check_at(a == n || (a < b && b < n && marks[place] > 1), "turn %d", turn);
        n_meeting += a < n;
    }
    assert_true(n_meeting > 100 && n_meeting < 7900);
}

/* Rows of which many are interwoven: no pair is held against each other. */
static void test_interwoven(void **state)
{
    enum { N = 20000 };
    fy_strided *boxes = calloc(N, sizeof *boxes);
    size_t a, b;
    uint64_t place;
    (void)state;
    assert_non_null(boxes);
    for (size_t i = 0; i < N; i++) {
        boxes[i] = (fy_strided){
            .offset = (uint64_t)i * 8, .n_loops = 2, .count = {1000, 8}, .stride = {N * 8, 1}};
    }
    budget = fy_strided_budget(N);
    must(fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    assert_int_equal(a, N);
    assert_int_equal(budget, fy_strided_budget(N));
    boxes[7].offset += 1;
    must(fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    assert_int_equal(a, 7);
    assert_int_equal(b, 8);
    free(boxes);
}

/*
 * Many whose strides cross: few runs are sorted, and one that is no box of the others' array is
 * held against them. Else the budget is soon used up, which is an error and no long wait.
 */
static void test_crossing(void **state)
{
    enum { N = 4000, WIDE = 1 << 20 };
    static fy_strided boxes[N];
    size_t a, b;
    uint64_t place;
    (void)state;
    for (size_t i = 0; i < N; i++) { /* a prime number of places apart, each in a lane of its own */
        boxes[i] = (fy_strided){.offset = i,
                                .n_loops = 1,
                                .count = {i % 2 == 0 ? 5 : 7},
                                .stride = {i % 2 == 0 ? 7 * N : 5 * N}};
    }
    budget = fy_strided_budget(N);
    must(fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    assert_int_equal(a, N);
    boxes[N - 1].offset = 7 * N + 2; /* on the second place of box 2 */
    must(fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    assert_int_equal(a, 2);
    assert_int_equal(b, N - 1);
    assert_int_equal(place, 7 * N + 2);
    for (size_t i = 0; i < N; i++) {
        boxes[i] = (fy_strided){.offset = i, .n_loops = 1, .count = {WIDE}, .stride = {N}};
    }
    boxes[9] = (fy_strided){.offset = 9, .n_loops = 1, .count = {WIDE / 3}, .stride = {3 * N}};
    budget = fy_strided_budget(N);
    must(fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    assert_int_equal(a, N);
    for (size_t i = 0; i < N; i++) {
        uint64_t stride = N * (1000 + i);
        boxes[i] = (fy_strided){.offset = i, .n_loops = 1, .count = {WIDE}, .stride = {stride}};
    }
    budget = fy_strided_budget(N);
    check_status("crossing", FERRY_ERR_LIMIT,
                 fy_strided_find_meeting(boxes, N, &budget, &a, &b, &place, &error), &error);
    check_says("crossing", "too many steps", &error);
    assert_int_equal(budget, 0);
}

enum { EXTENT = 7, MOST_CELLS = EXTENT * EXTENT * EXTENT };

typedef struct drawn_boxes {
    uint64_t begin[3 * MOST_BOXES];
    uint64_t length[3 * MOST_BOXES];
    size_t n;
    uint32_t n_dims;
} drawn_boxes;

static drawn_boxes draw_boxes(uint64_t *seed)
{
    drawn_boxes drawn = {.n = random_below(seed, 12), .n_dims = random_below(seed, 4)};
    for (size_t i = 0; i < drawn.n * drawn.n_dims; i++) {
        drawn.begin[i] = random_below(seed, EXTENT);
        drawn.length[i] = random_below(seed, EXTENT + 1 - (uint32_t)drawn.begin[i]);
    }
    return drawn;
}

static bool has_cell(const uint64_t *begin, const uint64_t *length, uint32_t n_dims, size_t cell)
{
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t at = cell % EXTENT;
        cell /= EXTENT;
        if (at < begin[d] || at >= begin[d] + length[d]) {
            return false;
        }
    }
    return true;
}

static void test_regions(void **state)
{
    uint64_t seed = 4;
    (void)state;
    for (int turn = 0; turn < 4000; turn++) {
        drawn_boxes drawn = draw_boxes(&seed);
        fy_region_set set;
        size_t n_cells = drawn.n_dims == 0   ? 1
                         : drawn.n_dims == 1 ? EXTENT
                         : drawn.n_dims == 2 ? EXTENT * EXTENT
                                             : MOST_CELLS;
        must(fy_regions_create(drawn.begin, drawn.length, drawn.n, drawn.n_dims, &set, &error),
             &error);
        for (size_t cell = 0; cell < n_cells; cell++) {
            size_t n_regions = 0, n_boxes = 0;
            const fy_region_of *found = NULL;
            for (size_t r = 0; r < set.n_regions; r++) {
                const fy_region_of *region = &set.regions[r];
                if (has_cell(region->box.begin, region->box.length, drawn.n_dims, cell)) {
                    found = region;
                    n_regions++;
                }
            }
            for (uint32_t i = 0; i < drawn.n; i++) {
                if (has_cell(drawn.begin + i * drawn.n_dims, drawn.length + i * drawn.n_dims,
                             drawn.n_dims, cell)) {
                    check_at(found != NULL && n_boxes < found->n &&
                                 set.lists[found->first + n_boxes] == i,
                             "turn %d", turn);
                    n_boxes++;
                }
            }
            check_at(n_regions == (n_boxes > 0), "turn %d", turn);
            check_at(found == NULL || found->n == n_boxes, "turn %d", turn);
        }
        fy_regions_cleanup(&set);
    }
}

static void test_tree(void **state)
{
    uint64_t seed = 5;
    uint32_t *found = NULL;
    size_t capacity = 0, n;
    (void)state;
    for (int turn = 0; turn < 4000; turn++) {
        drawn_boxes drawn = draw_boxes(&seed), asked = draw_boxes(&seed);
        fy_box_tree *tree;
        asked.n_dims = drawn.n_dims;
        must(fy_box_tree_create(drawn.begin, drawn.length, drawn.n, drawn.n_dims, &tree, &error),
             &error);
        must(fy_box_tree_find(tree, asked.begin, asked.length, &found, &capacity, &n, &error),
             &error);
        size_t at = 0;
        for (uint32_t i = 0; i < drawn.n; i++) {
            uint64_t begin[3], length[3];
            if (fy_box_meet(drawn.begin + i * drawn.n_dims, drawn.length + i * drawn.n_dims,
                            asked.begin, asked.length, drawn.n_dims, begin, length)) {
                check_at(at < n && found[at] == i, "turn %d", turn);
                at++;
            }
        }
        check_at(at == n, "turn %d", turn);
        fy_box_tree_destroy(tree);
    }
    free(found);
}

/* An array cut into cells that are joined again: one is left, wherever its strides come from. */
static void test_join(void **state)
{
    uint64_t seed = 6;
    (void)state;
    for (int turn = 0; turn < 2000; turn++) {
        fy_patch patches[512];
        uint64_t strides[2][3] = {{64, 8, 1}, {1, 8, 64}}, lengths[3];
        size_t n = 0;
        for (uint32_t d = 0; d < 3; d++) {
            lengths[d] = 1 + random_below(&seed, 8);
        }
        bool whole = random_below(&seed, 2) == 0;
        for (uint64_t i = 0; i < lengths[0]; i++) {
            for (uint64_t k = 0; k < lengths[1]; k++) {
                fy_patch patch = {.box = {{i, k, 0}, {1, 1, lengths[2]}}};
                for (uint32_t m = 0; m < 2; m++) {
                    patch.offset[m] = i * strides[m][0] + k * strides[m][1];
                    patch.stride[m][2] = strides[m][2];
                }
                patches[n++] = patch;
            }
        }
        size_t all = n;
        if (!whole) {
            patches[n - 1].offset[1] += 1000;
        }
        must(fy_patches_join(patches, &n, 3, 2, &error), &error);
        check_at(whole ? n == 1 : n > 1 || all < 3, "turn %d: %d", turn, (int)n);
        if (whole) {
            assert_memory_equal(patches[0].box.length, lengths, sizeof lengths);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),      cmocka_unit_test(test_two),
        cmocka_unit_test(test_many),     cmocka_unit_test(test_interwoven),
        cmocka_unit_test(test_crossing), cmocka_unit_test(test_regions),
        cmocka_unit_test(test_tree),     cmocka_unit_test(test_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
