/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* ferry_box_copy through its public header: what it moves, and what it refuses. */
#include <ferry/ferry.h>

#include "base/alloc.h"
#include "base/hash.h"

#include "support/check.h"
#include "support/random.h"

#include <stdlib.h>

/* A box [begin, begin + length) of a row-major tensor; fails the test if there is none. */
static ferry_box box_of(void *memory, uint64_t element_bytes, const uint64_t shape[2],
                        const uint64_t begin[2], const uint64_t length[2])
{
    ferry_error error;
    ferry_box box = FERRY_BOX_INIT;
    ferry_buffer buffer = ferry_buffer_of(memory, shape[0] * shape[1] * element_bytes);
    must(ferry_box_of(&buffer, element_bytes, 2, shape, begin, length, &box, &error), &error);
    return box;
}

/* A matrix is cut into quarters that change places, with one thread and with several. */
static void test_quarters(void **state)
{
    (void)state;
    enum { ROWS = 700, COLUMNS = 1500 };
    static const uint64_t shape[2] = {ROWS, COLUMNS}, length[2] = {ROWS / 2, COLUMNS / 2};
    uint32_t *from = malloc(ROWS * COLUMNS * 4), *to = malloc(ROWS * COLUMNS * 4);
    for (uint32_t threads = 0; threads <= 3; threads++) {
        ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
        options.n_threads = threads;
        memset(to, 0, ROWS * COLUMNS * 4);
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
            from[i] = i * 2654435761u + threads;
        }
        for (uint64_t quarter = 0; quarter < 4; quarter++) {
            uint64_t a[2] = {quarter / 2 * ROWS / 2, quarter % 2 * COLUMNS / 2};
            uint64_t b[2] = {ROWS / 2 - a[0], COLUMNS / 2 - a[1]};
            ferry_box f = box_of(from, 4, shape, a, length), t = box_of(to, 4, shape, b, length);
            ferry_error error;
            must(ferry_box_copy(&t, &f, threads == 0 ? NULL : &options, NULL, &error), &error);
        }
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
            uint32_t row = i / COLUMNS, column = i % COLUMNS;
            uint32_t other = (row + ROWS / 2) % ROWS * COLUMNS + (column + COLUMNS / 2) % COLUMNS;
            check_at(to[i] == from[other], "%u threads, row %u, column %u", threads, row, column);
        }
    }
    free(from);
    free(to);
}

/* To f8 in blocks of 2 x 4, and back: small whole numbers times powers of two are exact. */
static void test_blocks(void **state)
{
    (void)state;
    enum { ROWS = 6, COLUMNS = 10 };
    static const uint64_t shape[2] = {ROWS, COLUMNS}, zero[2] = {0, 0};
    static const float scales[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    float from[ROWS * COLUMNS], back[ROWS * COLUMNS];
    unsigned char codes[ROWS * COLUMNS];
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    ferry_error error;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        float scale = scales[i / COLUMNS / 2 * 3 + i % COLUMNS / 4];
        from[i] = (float)(i % 15 - 7) * scale;
    }
    ferry_box f = box_of(from, 4, shape, zero, shape), q = box_of(codes, 1, shape, zero, shape);
    ferry_box b = box_of(back, 4, shape, zero, shape);
    options.from_kind = FERRY_F32;
    options.to_kind = FERRY_F8E4M3;
    options.to_scales = (ferry_scales){
        .values = scales, .n_values = COUNT_OF(scales), .block_rows = 2, .block_columns = 4};
    must(ferry_box_copy(&q, &f, &options, NULL, &error), &error);
    assert_int_equal(codes[0], 0xce); /* -7 */
    assert_int_equal(codes[9], 0x40); /* 2, of the third block */
    options.from_scales = options.to_scales;
    options.to_scales = (ferry_scales){.values = NULL};
    options.from_kind = FERRY_F8E4M3;
    options.to_kind = FERRY_F32;
    must(ferry_box_copy(&b, &q, &options, NULL, &error), &error);
    assert_memory_equal(back, from, sizeof from);
    /* The last row and the last columns alone: they begin within a block. */
    uint64_t begin[2] = {5, 6}, length[2] = {1, 4};
    memset(back, 0, sizeof back);
    f = box_of(codes, 1, shape, begin, length);
    b = box_of(back, 4, shape, begin, length);
    options.from_scales.first_row = 5;
    options.from_scales.first_column = 6;
    must(ferry_box_copy(&b, &f, &options, NULL, &error), &error);
    assert_memory_equal(back + 56, from + 56, 16);
    assert_true(back[55] == 0);
}

typedef struct refusal {
    const char *name;
    ferry_status status;
    const ferry_box *to, *from;
    uint32_t from_kind, to_kind;
    ferry_scales from_scales, to_scales;
    const char *says;
} refusal;

static void try_copy(const refusal *row)
{
    ferry_error error;
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    options.from_kind = row->from_kind;
    options.to_kind = row->to_kind;
    options.from_scales = row->from_scales;
    options.to_scales = row->to_scales;
    check_status(row->name, row->status, ferry_box_copy(row->to, row->from, &options, NULL, &error),
                 &error);
    if (row->says != NULL) {
        check_says(row->name, row->says, &error);
    }
}

/* To an f8 of these scales, wrongly. */
static refusal bad_scales(const char *name, const ferry_box *to, const ferry_box *from,
                          ferry_scales from_scales, ferry_scales to_scales, const char *says)
{
    return (refusal){
        name, FERRY_ERR_INVALID_INPUT, to, from, FERRY_F32, FERRY_F8E4M3, from_scales, to_scales,
        says};
}

static void test_refused(void **state)
{
    (void)state;
    enum { N = 64 };
    static const uint64_t shape[2] = {8, 8}, zero[2] = {0, 0}, fewer[2] = {8, 7};
    static const uint64_t other[2] = {4, 16};
    static const float scales[4] = {1, 1, 1, 1};
    static float a[N], b[N];
    static unsigned char c[N];
    ferry_box wide = box_of(a, 4, shape, zero, shape), to = box_of(b, 4, shape, zero, shape);
    ferry_box few = box_of(a, 4, shape, zero, fewer), bytes = box_of(c, 1, shape, zero, shape);
    ferry_box odd = box_of(c, 1, other, zero, other), no_size = wide, outside = wide;
    no_size.struct_size = 0;
    outside.offset = 4;
    ferry_scales four = {.values = scales, .n_values = 4, .block_rows = 4, .block_columns = 4};
    ferry_scales three = four, half = four, none = {.values = NULL};
    three.n_values = 3;
    half.block_rows = 0;
    const refusal rows[] = {
        {"no box", FERRY_ERR_MISUSE, NULL, &wide, 0, 0, {0}, {0}, "_INIT"},
        {"no size", FERRY_ERR_MISUSE, &to, &no_size, 0, 0, {0}, {0}, "struct_size"},
        {"beyond", FERRY_ERR_INVALID_INPUT, &to, &outside, 0, 0, {0}, {0}, "of a buffer"},
        {"fewer", FERRY_ERR_INVALID_INPUT, &to, &few, 0, 0, {0}, {0}, "224 bytes"},
        {"itself", FERRY_ERR_INVALID_INPUT, &wide, &wide, 0, 0, {0}, {0}, "overlap"},
        {"no type", FERRY_ERR_UNSUPPORTED, &to, &wide, 0, FERRY_F32, {0}, {0}, "no cast"},
        {"to i32", FERRY_ERR_UNSUPPORTED, &to, &wide, FERRY_F32, FERRY_I32, {0}, {0}, "no cast"},
        bad_scales("too wide", &to, &wide, none, none, "4 bytes"),
        bad_scales("fewer elements", &bytes, &few, none, none, "56 elements"),
        bad_scales("scales of f32", &bytes, &wide, four, none, "only f8"),
        bad_scales("too few scales", &bytes, &wide, none, three, "2 x 2 blocks"),
        bad_scales("half a block", &bytes, &wide, none, half, "0 x 4"),
        bad_scales("other lengths", &odd, &wide, none, four, "same lengths"),
        {"well", FERRY_OK, &bytes, &wide, FERRY_F32, FERRY_F8E4M3, {0}, four, NULL},
        {"well without blocks", FERRY_OK, &odd, &wide, FERRY_F32, FERRY_F8E4M3, {0}, {0}, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        try_copy(&rows[i]);
    }
}

static void test_no_memory_and_nothing(void **state)
{
    (void)state;
    static const uint64_t shape[2] = {1024, 1024}, zero[2] = {0, 0}, none[2] = {0, 7};
    char *a = malloc(1 << 20), *b = malloc(1 << 20);
    ferry_copy_options options = FERRY_COPY_OPTIONS_INIT;
    ferry_error error;
    ferry_box f = box_of(a, 1, shape, zero, shape), t = box_of(b, 1, shape, zero, shape);
    ferry_status status = FERRY_ERR_NO_MEMORY;
    options.n_threads = 4;
    memset(a, 1, 1 << 20);
    memset(b, 2, 1 << 20);
    for (int64_t n = 0; status != FERRY_OK; n++) {
        fy_alloc_fail_after(n);
        status = ferry_box_copy(&t, &f, &options, NULL, &error);
        fy_alloc_fail_after(-1);
        check_status("allocation", n < 2 ? FERRY_ERR_NO_MEMORY : FERRY_OK, status, &error);
        assert_int_equal(b[77], status == FERRY_OK ? 1 : 2);
    }
    assert_memory_equal(a, b, 1 << 20);
    uint64_t hash = 0;
    options.hash_out = &hash;
    check_status("hash by four", FERRY_ERR_INVALID_INPUT,
                 ferry_box_copy(&t, &f, &options, NULL, &error), &error);
    options.n_threads = 1;
    must(ferry_box_copy(&t, &f, &options, NULL, &error), &error);
    assert_int_equal(hash, fy_hash64(a, 1 << 20));
    f = box_of(a, 1, none, zero, none);
    t = f;
    must(ferry_box_copy(&t, &f, &options, NULL, &error), &error);
    free(a);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarters),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory_and_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
