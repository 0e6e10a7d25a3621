/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "layout/box.h"

#include "support/check.h"

#include <stdio.h>

enum { MOST_VOLUME = 36 };

/* Every shape of at most so many elements, with up to FERRY_MAX_DIMS dimensions of which few are 1.
 */
typedef struct shape_walk {
    uint64_t shape[FERRY_MAX_DIMS];
    uint32_t n_dims;
    size_t n_shapes;
    void (*check)(const uint64_t *shape, uint32_t n_dims);
} shape_walk;

static void walk_shapes(shape_walk *walk, uint64_t volume, uint32_t n_ones)
{
    walk->check(walk->shape, walk->n_dims);
    walk->n_shapes++;
    if (walk->n_dims == FERRY_MAX_DIMS) {
        return;
    }
    for (uint64_t extent = n_ones < 3 ? 1 : 2; volume * extent <= MOST_VOLUME; extent++) {
        walk->shape[walk->n_dims++] = extent;
        walk_shapes(walk, volume * extent, n_ones + (extent == 1));
        walk->n_dims--;
    }
}

static uint64_t row_major(const uint64_t *shape, uint32_t n_dims, const uint64_t *at)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < n_dims; d++) {
        index = index * shape[d] + at[d];
    }
    return index;
}

/* Whether [begin, end) is one box: so are the rows between two corners that span it. */
static bool is_box(const uint64_t *shape, uint32_t n_dims, uint64_t begin, uint64_t end)
{
    uint64_t first[FERRY_MAX_DIMS], last[FERRY_MAX_DIMS], volume = 1;
    uint64_t low = begin, high = end - 1;
    for (uint32_t d = n_dims; d > 0; d--) {
        first[d - 1] = low % shape[d - 1];
        last[d - 1] = high % shape[d - 1];
        low /= shape[d - 1];
        high /= shape[d - 1];
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        if (last[d] < first[d]) {
            return false;
        }
        volume *= last[d] - first[d] + 1;
    }
    return volume == end - begin;
}

/* fewest[end - 1] for every end: the least number of boxes that [begin, end) is a sequence of. */
static void count_fewest(const uint64_t *shape, uint32_t n_dims, uint64_t begin, uint64_t volume,
                         size_t *fewest)
{
    for (uint64_t end = begin + 1; end <= volume; end++) {
        fewest[end] = is_box(shape, n_dims, begin, end) ? 1 : SIZE_MAX;
        for (uint64_t cut = begin + 1; cut < end; cut++) {
            if (fewest[cut] + 1 < fewest[end] && is_box(shape, n_dims, cut, end)) {
                fewest[end] = fewest[cut] + 1;
            }
        }
    }
}

/* The elements of a box in row-major order must go on where the last box ended. */
static uint64_t walk_box(const uint64_t *shape, uint32_t n_dims, const fy_box *box, uint64_t next)
{
    uint64_t volume = fy_box_volume(box->length, n_dims);
    for (uint64_t i = 0; i < volume; i++) {
        uint64_t at[FERRY_MAX_DIMS], rest = i;
        for (uint32_t d = n_dims; d > 0; d--) {
            at[d - 1] = box->begin[d - 1] + rest % box->length[d - 1];
            rest /= box->length[d - 1];
            check_at(at[d - 1] < shape[d - 1], "dim %u", d - 1);
        }
        check_at(row_major(shape, n_dims, at) == next, "element %llu", (unsigned long long)next);
        next++;
    }
    return next;
}

static void check_ranges(const uint64_t *shape, uint32_t n_dims)
{
    uint64_t volume = fy_box_volume(shape, n_dims);
    for (uint64_t begin = 0; begin <= volume; begin++) {
        size_t fewest[MOST_VOLUME + 1] = {0};
        count_fewest(shape, n_dims, begin, volume, fewest);
        for (uint64_t end = begin; end <= volume; end++) {
            fy_box boxes[FY_MAX_RANGE_BOXES];
            size_t n = fy_range_boxes(shape, n_dims, begin, end, boxes);
            uint64_t next = begin;
            for (size_t i = 0; i < n; i++) {
                next = walk_box(shape, n_dims, &boxes[i], next);
            }
            check_at(next == end, "%u dims, [%llu, %llu)", n_dims, (unsigned long long)begin,
                     (unsigned long long)end);
            check_at(n == (begin == end ? 0 : fewest[end]), "%u dims, [%llu, %llu)", n_dims,
                     (unsigned long long)begin, (unsigned long long)end);
            check_at(n_dims == 0 || n <= 2 * n_dims - 1, "%u dims", n_dims);
        }
    }
}

static void test_ranges(void **state)
{
    (void)state;
    shape_walk walk = {.check = check_ranges};
    walk_shapes(&walk, 1, 0);
    print_message("%zu shapes\n", walk.n_shapes);
    assert_in_range(walk.n_shapes, 1000, 1000000);
}

static void test_empty_ranges(void **state)
{
    (void)state;
    fy_box boxes[FY_MAX_RANGE_BOXES];
    uint64_t shape[] = {3, 0, 2};
    assert_int_equal(fy_range_boxes(shape, 3, 0, 0, boxes), 0);
    assert_int_equal(fy_range_boxes(shape, 1, 2, 2, boxes), 0);
    assert_int_equal(fy_range_boxes(shape, 1, 2, 1, boxes), 0);
    assert_int_equal(fy_range_boxes(shape, 0, 0, 1, boxes), 1); /* a scalar */
}

static void test_volume(void **state)
{
    (void)state;
    assert_true(fy_box_volume(NULL, 0) == 1);
    assert_true(fy_box_volume((uint64_t[]){7}, 1) == 7);
    assert_true(fy_box_volume((uint64_t[]){7, 0, 3}, 3) == 0);
    assert_true(fy_box_volume((uint64_t[]){1u << 31, 1u << 31, 3}, 3) == 3ull << 62);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_empty_ranges),
        cmocka_unit_test(test_volume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
