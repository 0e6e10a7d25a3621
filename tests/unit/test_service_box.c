/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Boxes of memory: their areas, and what is refused. */
#include "service_ends.h"

#include <stdlib.h>

/* A box's area has the bytes of its elements, in their order. */
static void test_random(void **state)
{
    enum { BYTES = 2000 };
    static char memory[BYTES];
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        uint64_t random = seed;
        ferry_box box = random_box(memory, BYTES, 4, &random);
        static unsigned char map[BYTES] = {0};
        fy_area area;
        ferry_error error;
        memset(map, 0, BYTES);
        must(fy_box_area(&box, &area, &error), &error);
        mark_box(&box, map, 1);
        fy_area_walk walk = fy_area_walk_of(&area, 0, area.bytes);
        uint64_t at, n = 0, n_total = 0, last = 0;
        while (fy_area_next(&walk, &at, &n)) {
            check_at(at >= last && at + n <= BYTES, "seed %llu", (unsigned long long)seed);
            for (last = at; last < at + n; last++) {
                check_at(map[last] == 1, "seed %llu", (unsigned long long)seed);
                map[last] = 0;
            }
            n_total += n;
        }
        check_at(n_total == area.bytes && memchr(map, 1, BYTES) == NULL, "seed %llu",
                 (unsigned long long)seed);
    }
}

/* ferry_box_of against the elements of a row-major tensor. */
static void test_box_of(void **state)
{
    static char memory[4000];
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        uint64_t random = seed, shape[3], begin[3], length[3], volume = 1;
        uint64_t bytes = 1 + random_below(&random, 4);
        uint32_t n_dims = random_below(&random, 4);
        ferry_box box = FERRY_BOX_INIT;
        ferry_buffer buffer = ferry_buffer_of(memory, sizeof memory);
        ferry_error error;
        for (uint32_t d = 0; d < n_dims; d++) {
            shape[d] = 1 + random_below(&random, 9);
            begin[d] = random_below(&random, (uint32_t)shape[d]);
            length[d] = 1 + random_below(&random, (uint32_t)(shape[d] - begin[d]));
            volume *= shape[d];
        }
        buffer.bytes = volume * bytes;
        must(ferry_box_of(&buffer, bytes, n_dims, shape, begin, length, &box, &error), &error);
        assert_int_equal(box.n_dims, n_dims);
        uint64_t offset = 0, stride = bytes;
        for (uint32_t d = n_dims; d-- > 0;) {
            assert_int_equal(box.length[d], length[d]);
            assert_int_equal(box.stride[d], stride);
            offset += begin[d] * stride;
            stride *= shape[d];
        }
        assert_int_equal(box.offset, offset);
        assert_true(box.buffer.base == memory && box.name == NULL);
        buffer.bytes--;
        check_status("a byte is missing", FERRY_ERR_INVALID_INPUT,
                     ferry_box_of(&buffer, bytes, n_dims, shape, begin, length, &box, &error),
                     &error);
    }
}

/* Nothing of a tensor, which may have a place and strides of its own all the same. */
static void test_box_of_nothing(void **state)
{
    static char memory[8];
    const uint64_t shape[] = {3, 0, 2}, begin[] = {1, 0, 1}, length[] = {2, 0, 1};
    ferry_buffer buffer = ferry_buffer_of(memory, 0);
    ferry_box box = FERRY_BOX_INIT;
    fy_area area = {.bytes = 77};
    ferry_error error;
    (void)state;
    must(ferry_box_of(&buffer, 4, 3, shape, begin, length, &box, &error), &error);
    assert_int_equal(box.offset, 0);
    for (uint32_t d = 0; d < 3; d++) {
        assert_int_equal(box.length[d], length[d]);
        assert_int_equal(box.stride[d], 4);
    }
    must(fy_box_area(&box, &area, &error), &error);
    assert_int_equal(area.bytes, 0);
}

/* What is wrong with a box of 4 x 5 elements of 2 bytes, 12 bytes a row, in 100 bytes from 10 on.
 */
typedef struct bad_box {
    const char *name;
    ferry_status wanted;
    const char *says;
    uint64_t element_bytes, offset, bytes, length, row, stride;
    uint32_t n_dims, kind;
} bad_box;

static void test_bad_boxes(void **state)
{
    static const bad_box rows[] = {
        {"good", FERRY_OK, "", 2, 10, 56, 4, 12, 2, 2, 0},
        {"no element", FERRY_ERR_INVALID_INPUT, "0 bytes", 0, 10, 100, 4, 12, 2, 2, 0},
        {"dimensions", FERRY_ERR_INVALID_INPUT, "9 dimensions", 2, 10, 100, 4, 12, 2, 9, 0},
        {"kind", FERRY_ERR_UNSUPPORTED, "kind cuda", 2, 10, 100, 4, 12, 2, 2, 1},
        {"too short", FERRY_ERR_INVALID_INPUT, "bytes [10, 56) of a buffer of 55", 2, 10, 55, 4, 12,
         2, 2, 0},
        {"too far", FERRY_ERR_INVALID_INPUT, "", 2, 11, 56, 4, 12, 2, 2, 0},
        {"elements share", FERRY_ERR_INVALID_INPUT, "", 2, 10, 100, 4, 12, 1, 2, 0},
        {"rows share", FERRY_ERR_INVALID_INPUT, "", 2, 10, 100, 4, 9, 2, 2, 0},
        {"strides of zero", FERRY_ERR_INVALID_INPUT, "", 2, 10, 100, 4, 0, 2, 2, 0},
        {"huge stride", FERRY_ERR_INVALID_INPUT, "", 2, 10, 100, 4, UINT64_MAX / 2, 2, 2, 0},
        {"huge length", FERRY_ERR_INVALID_INPUT, "", 2, 10, 100, UINT64_MAX / 8, 12, 2, 2, 0},
        {"huge offset", FERRY_ERR_INVALID_INPUT, "", 2, UINT64_MAX - 3, 100, 4, 12, 2, 2, 0},
        {"huge element", FERRY_ERR_INVALID_INPUT, "", UINT64_MAX, 10, 100, 4, 12, 2, 2, 0},
    };
    static char memory[100];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const bad_box *row = &rows[i];
        ferry_box box = FERRY_BOX_INIT;
        ferry_error error;
        fy_area area = {.bytes = 77};
        box.buffer = ferry_buffer_of(memory, row->bytes);
        box.buffer.kind = row->kind;
        box.element_bytes = row->element_bytes;
        box.offset = row->offset;
        box.n_dims = row->n_dims;
        box.length[0] = row->length;
        box.stride[0] = row->row;
        box.length[1] = 5;
        box.stride[1] = row->stride;
        check_status(row->name, row->wanted, fy_box_area(&box, &area, &error), &error);
        if (row->wanted == FERRY_OK) {
            check_row(row->name, area.bytes == 40 && area.offset == 10);
        } else {
            check_says(row->name, row->says, &error);
            check_row(row->name, area.bytes == 77);
        }
    }
    ferry_box box = {0}, own;
    fy_area area;
    ferry_error error;
    check_status("no size", FERRY_ERR_MISUSE, fy_box_take(&box, &own, &area, &error), &error);
    check_status("no box", FERRY_ERR_MISUSE, fy_box_take(NULL, &own, &area, &error), &error);
    box = (ferry_box)FERRY_BOX_INIT;
    box.buffer = ferry_buffer_of(NULL, 8);
    check_status("address 0", FERRY_ERR_INVALID_INPUT, fy_box_area(&box, &area, &error), &error);
    box.buffer = ferry_buffer_of(memory, UINT64_MAX);
    check_status("no end", FERRY_ERR_INVALID_INPUT, fy_box_area(&box, &area, &error), &error);
}

static void test_bad_box_of(void **state)
{
    static char memory[100];
    const uint64_t shape[9] = {4, 5, 1, 1, 1, 1, 1, 1, 1}, begin[9] = {1, 2}, length[9] = {2, 3, 1};
    const uint64_t late[2] = {3, 2}, huge[2] = {UINT64_MAX, 5}, none[2] = {0, 0},
                   no_row[2] = {0, 5};
    ferry_buffer buffer = ferry_buffer_of(memory, 100);
    ferry_box box = FERRY_BOX_INIT;
    ferry_error error;
    (void)state;
    box.offset = 77;
    check_status("late", FERRY_ERR_INVALID_INPUT,
                 ferry_box_of(&buffer, 4, 2, shape, late, length, &box, &error), &error);
    check_says("late", "begins at 3 of dimension 0 with length 2", &error);
    check_status("huge shape", FERRY_ERR_INVALID_INPUT,
                 ferry_box_of(&buffer, 4, 2, huge, begin, length, &box, &error), &error);
    check_status("huge begin", FERRY_ERR_INVALID_INPUT,
                 ferry_box_of(&buffer, 4, 2, shape, huge, length, &box, &error), &error);
    check_status("dimensions", FERRY_ERR_INVALID_INPUT,
                 ferry_box_of(&buffer, 4, 9, shape, begin, length, &box, &error), &error);
    check_status("no element", FERRY_ERR_INVALID_INPUT,
                 ferry_box_of(&buffer, 0, 2, shape, begin, length, &box, &error), &error);
    check_status("no shape", FERRY_ERR_MISUSE,
                 ferry_box_of(&buffer, 4, 2, NULL, begin, length, &box, &error), &error);
    check_status("no buffer", FERRY_ERR_MISUSE,
                 ferry_box_of(NULL, 4, 2, shape, begin, length, &box, &error), &error);
    assert_int_equal(box.offset, 77);
    must(ferry_box_of(&buffer, 4, 2, shape, begin, none, &box, &error), &error);
    must(ferry_box_of(&buffer, 4, 2, no_row, none, none, &box, &error), &error);
    must(ferry_box_of(&buffer, 4, 0, NULL, NULL, NULL, &box, &error), &error);
    ferry_box without = {0};
    check_status("no size", FERRY_ERR_MISUSE,
                 ferry_box_of(&buffer, 4, 2, shape, begin, length, &without, &error), &error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_box_of),
        cmocka_unit_test(test_box_of_nothing), cmocka_unit_test(test_bad_boxes),
        cmocka_unit_test(test_bad_box_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
