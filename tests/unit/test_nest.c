/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/nest.h"

#include "support/check.h"
#include "support/random.h"

enum { MOST_PLACES = 4096 };

/* Where each place of memory comes from: 1 + the row-major number in a tensor. */
typedef struct picture {
    uint32_t at[MOST_PLACES];
    const uint64_t *shape;
    uint64_t begin, end; /* nothing may lie outside */
    size_t n_parts;
} picture;

static void draw_loops(picture *p, const fy_nest *nest, uint32_t loop, uint64_t place,
                       const uint64_t *index)
{
    if (loop < nest->n_loops) {
        for (uint64_t i = 0; i < nest->count[loop]; i++) {
            uint64_t next[FERRY_MAX_DIMS] = {0};
            for (uint32_t d = 0; d < nest->n_dims; d++) {
                next[d] = index[d] + i * nest->step[loop][d];
            }
            draw_loops(p, nest, loop + 1, place + i * nest->stride[loop], next);
        }
        return;
    }
    uint64_t number = 0;
    for (uint32_t d = 0; d < nest->n_dims; d++) {
        assert_true(index[d] < p->shape[d]);
        number = number * p->shape[d] + index[d];
    }
    assert_true(place >= p->begin && place < p->end);
    assert_int_equal(p->at[place], 0);
    p->at[place] = 1 + (uint32_t)number;
}

static ferry_status draw_part(void *context, fy_nest *part, ferry_error *error)
{
    picture *p = context;
    (void)error;
    p->n_parts++;
    draw_loops(p, part, 0, part->offset, part->begin);
    return FERRY_OK;
}

/* The same from what a box says, loop by loop. */
static void draw_box(picture *p, const fy_said_box *box, uint32_t repeat, uint64_t place,
                     const uint64_t *begin)
{
    if (repeat < box->n_repeats) {
        const uint64_t *its = fy_said_box_repeat(box, repeat);
        for (uint64_t i = 0; i < its[0]; i++) {
            uint64_t next[FERRY_MAX_DIMS] = {0};
            for (uint32_t d = 0; d < box->n_dims; d++) {
                next[d] = begin[d] + i * its[2 + d];
            }
            draw_box(p, box, repeat + 1, place + i * its[1], next);
        }
        return;
    }
    uint64_t n = fy_box_volume(fy_said_box_shape(box), box->n_dims);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t left = i, number = 0, at = place, index[FERRY_MAX_DIMS] = {0};
        for (uint32_t d = box->n_dims; d-- > 0;) {
            index[d] = left % fy_said_box_shape(box)[d];
            left /= fy_said_box_shape(box)[d];
            at += index[d] * fy_said_box_strides(box)[d];
        }
        for (uint32_t d = 0; d < box->n_dims; d++) {
            number = number * p->shape[d] + begin[d] + index[d];
        }
        p->at[at] = 1 + (uint32_t)number;
    }
}

/* A box of three dimensions in any order, of which one is said by a loop. */
static fy_said_box draw_said(uint64_t *r, uint64_t numbers[16])
{
    uint64_t order[3] = {0, 1, 2}, span = 1;
    fy_said_box box = {.n_dims = 3, .offset = random_below(r, 9), .numbers = numbers};
    for (uint32_t i = 2; i > 0; i--) {
        uint64_t j = random_below(r, i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (uint32_t d = 0; d < 3; d++) {
        numbers[d] = random_below(r, 3);
        numbers[3 + d] = 1 + random_below(r, 5);
    }
    for (uint32_t i = 0; i < 3; i++) {
        numbers[6 + order[i]] = span;
        span = span * numbers[3 + order[i]] + random_below(r, 3);
    }
    if (random_below(r, 2) == 0) { /* set down again, further on along a dimension */
        uint64_t d = random_below(r, 3);
        box.n_repeats = 1;
        numbers[9] = 1 + random_below(r, 4);
        numbers[10] = span + random_below(r, 4);
        numbers[11 + d] = numbers[3 + d] + random_below(r, 2);
    }
    return box;
}

/* Parts of windows are together what the box says, each place once. */
static void test_clip(void **state)
{
    (void)state;
    uint64_t r = 7;
    for (int round = 0; round < 3000; round++) {
        uint64_t numbers[16] = {0}, shape[3] = {40, 40, 40};
        fy_said_box box = draw_said(&r, numbers);
        static picture wanted, found;
        fy_nest nest;
        fy_box hull;
        wanted = (picture){.shape = shape};
        found = (picture){.shape = shape};
        assert_true(fy_nest_of_box(&box, 16, &nest));
        draw_box(&wanted, &box, 0, box.offset, box.numbers);
        uint64_t last = fy_nest_last(&nest), step = 1 + random_below(&r, (uint32_t)last + 3);
        assert_true(last < MOST_PLACES && wanted.at[last] != 0);
        fy_nest_hull(&nest, &hull);
        for (uint32_t i = 0; i < nest.n_loops; i++) {
            assert_true(nest.count[i] > 1);
            assert_true(i == 0 || nest.stride[i - 1] >= nest.stride[i]);
        }
        for (uint64_t begin = 0; begin <= last + step; begin += step) {
            found.begin = begin;
            found.end = begin + step;
            assert_int_equal(fy_nest_clip(&nest, begin, begin + step, draw_part, &found, NULL),
                             FERRY_OK);
        }
        assert_memory_equal(wanted.at, found.at, sizeof wanted.at);
        if (fy_nest_is_dense(&nest, &hull)) { /* the hull as it lies in a row */
            assert_int_equal(fy_box_volume(hull.length, 3), fy_nest_volume(&nest));
            assert_int_equal(last - nest.offset + 1, fy_nest_volume(&nest));
            assert_true(fy_nest_is_in_order(&nest, shape));
        }
        bool rises = true;
        for (uint64_t i = 0, before = 0; i <= last; i++) {
            rises = rises && (wanted.at[i] == 0 || wanted.at[i] > before);
            before = wanted.at[i] == 0 ? before : wanted.at[i];
        }
        /* Loops that cross may rise by turns only. */
        assert_true(!rises || nest.n_loops < 2 || fy_nest_is_in_order(&nest, shape));
    }
}

/* A long box is cut where windows end, not turn by turn. */
static void test_parts_are_few(void **state)
{
    (void)state;
    uint64_t numbers[16] = {0, 0, 0, 16, 8, 16, 128, 16, 1}, shape[3] = {16, 8, 16};
    const fy_said_box box = {.n_dims = 3, .numbers = numbers};
    static picture p;
    fy_nest nest;
    assert_true(fy_nest_of_box(&box, 16, &nest));
    p = (picture){.shape = shape, .begin = 5, .end = 2000};
    assert_int_equal(fy_nest_clip(&nest, 5, 2000, draw_part, &p, NULL), FERRY_OK);
    assert_true(p.n_parts <= 5);
}

/* Half bytes are counted in bytes, along the last dimension. */
static void test_half_bytes(void **state)
{
    (void)state;
    uint64_t numbers[] = {2, 4, 3, 6, 20, 1, 2, 100, 4, 0};
    const fy_said_box box = {.n_dims = 2, .n_repeats = 1, .offset = 8, .numbers = numbers};
    fy_nest nest;
    fy_box hull;
    assert_true(fy_nest_of_box(&box, 4, &nest));
    assert_int_equal(nest.n_loops, 3);
    assert_int_equal(nest.offset, 4);
    assert_int_equal(nest.begin[1], 2);
    assert_int_equal(nest.stride[0], 50);
    assert_int_equal(nest.stride[1], 10);
    assert_int_equal(nest.count[2], 3);
    assert_int_equal(nest.stride[2], 1);
    fy_nest_hull(&nest, &hull);
    assert_int_equal(hull.length[0], 3 + 4);
    assert_int_equal(hull.length[1], 3);
}

static void test_empty(void **state)
{
    (void)state;
    uint64_t numbers[] = {0, 0, 4, 0, 1, 1};
    const fy_said_box box = {.n_dims = 2, .numbers = numbers};
    const fy_fill fill = {.n_dims = 1, .numbers = (const uint64_t[]){0, 1}};
    fy_nest nest;
    assert_false(fy_nest_of_box(&box, 16, &nest));
    assert_false(fy_nest_of_fill(&fill, 16, &nest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_parts_are_few),
        cmocka_unit_test(test_half_bytes),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
