/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Two writers to one byte, and writers of what others read: against a map of all bytes. */
#include "service_ends.h"

#include <stdlib.h>

enum { ME = 2, WRITTEN = 1, READ = 2 };

/* Sorted, as a service has them by then. */
static ferry_status check_now(fy_registry *registry, ferry_error *error)
{
    error->message[0] = '\0';
    fy_registry_sort(registry);
    return fy_check_writers(registry, ME, error);
}

static void expect_conflict(fy_registry *registry, const char *row, const char *const *says)
{
    ferry_error error;
    check_status(row, FERRY_ERR_INVALID_INPUT, check_now(registry, &error), &error);
    for (; *says != NULL; says++) {
        check_says(row, *says, &error);
    }
    fy_registry_cleanup(registry);
}

static void expect_none(fy_registry *registry, const char *row)
{
    ferry_error error;
    check_status(row, FERRY_OK, check_now(registry, &error), &error);
    fy_registry_cleanup(registry);
}

/* What the random cases are made of. */
typedef struct random_case {
    ferry_box boxes[24];
    bool is_send[24];
    uint32_t peer[24];
    uint32_t n;
} random_case;

/* The same bytes with the dimensions in another order, as a transposed view has them. */
static void permute(ferry_box *box, uint64_t *state)
{
    for (uint32_t d = box->n_dims; d > 1; d--) {
        uint32_t other = random_below(state, d);
        uint64_t length = box->length[d - 1], stride = box->stride[d - 1];
        box->length[d - 1] = box->length[other];
        box->stride[d - 1] = box->stride[other];
        box->length[other] = length;
        box->stride[other] = stride;
    }
}

/* Two views of one tensor, or anything at all. */
static void make_case(random_case *c, unsigned char *memory, uint32_t n_bytes, uint64_t *state)
{
    uint32_t kind = random_below(state, 3), n_sends = random_below(state, 3) == 0 ? 4 : 0;
    bool permuted = random_below(state, 2) == 0;
    uint32_t long_dim = random_below(state, 4); /* many runs for few boxes, as real ones are */
    uint64_t shape[3];
    for (uint32_t d = 0; d < 3; d++) {
        shape[d] = d == long_dim ? 2 + random_below(state, 30) : 1 + random_below(state, 6);
    }
    c->n = 1 + random_below(state, 10) + n_sends;
    for (uint32_t i = 0; i < c->n; i++) {
        c->is_send[i] = i < n_sends;
        c->peer[i] = random_below(state, 4);
        if (kind == 0) {
            c->boxes[i] = random_box(memory, n_bytes, 4, state);
            continue;
        }
        uint64_t begin[3], length[3];
        ferry_error error;
        for (int d = 0; d < 3; d++) {
            begin[d] = random_below(state, (uint32_t)shape[d]);
            length[d] = 1 + random_below(state, (uint32_t)(shape[d] - begin[d]));
            if (kind == 2 && random_below(state, 2) == 0) {
                begin[d] = 0;
                length[d] = shape[d];
            }
        }
        ferry_buffer buffer = ferry_buffer_of(memory, n_bytes);
        c->boxes[i] = (ferry_box)FERRY_BOX_INIT;
        must(ferry_box_of(&buffer, 2, 3, shape, begin, length, &c->boxes[i], &error), &error);
    }
    for (uint32_t i = 0; i < c->n && permuted; i++) {
        permute(&c->boxes[i], state);
    }
}

/* Keeps what does not collide, so that cases without a conflict are not all small. */
static void thin_out(random_case *c, unsigned char *map, uint32_t n_bytes)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        unsigned char *before = malloc(n_bytes);
        assert_non_null(before);
        memcpy(before, map, n_bytes);
        bool fresh = c->is_send[i] ? mark_box(&c->boxes[i], map, READ) || true
                                   : mark_box(&c->boxes[i], map, WRITTEN);
        for (uint32_t b = 0; b < n_bytes && fresh; b++) {
            fresh = map[b] != (WRITTEN | READ);
        }
        if (fresh) {
            c->boxes[kept] = c->boxes[i];
            c->is_send[kept] = c->is_send[i];
            c->peer[kept++] = c->peer[i];
        } else {
            memcpy(map, before, n_bytes);
        }
        free(before);
    }
    c->n = kept;
}

/* What the map says; sends and receives are never one task here. */
static bool conflicts(const random_case *c, unsigned char *map, uint32_t n_bytes)
{
    bool clean = true;
    memset(map, 0, n_bytes);
    for (uint32_t i = 0; i < c->n; i++) {
        bool fresh = mark_box(&c->boxes[i], map, c->is_send[i] ? READ : WRITTEN);
        clean = clean && (fresh || c->is_send[i]);
    }
    for (uint32_t b = 0; b < n_bytes; b++) {
        clean = clean && map[b] != (WRITTEN | READ);
    }
    return !clean;
}

static void test_random(void **state)
{
    enum { BYTES = 2400 };
    static unsigned char memory[BYTES], map[BYTES];
    uint32_t n_conflicts = 0, n_clean = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        uint64_t random = seed;
        fy_registry registry = {0};
        random_case c;
        ferry_error error;
        make_case(&c, memory, BYTES, &random);
        if (random_below(&random, 2) == 0) {
            memset(map, 0, BYTES);
            thin_out(&c, map, BYTES);
        }
        for (uint32_t i = 0; i < c.n; i++) {
            add_end(&registry, c.is_send[i], i, c.peer[i], &c.boxes[i]);
        }
        bool wanted = conflicts(&c, map, BYTES);
        ferry_status got = check_now(&registry, &error);
        check_at(got == (wanted ? FERRY_ERR_INVALID_INPUT : FERRY_OK), "seed %llu: %s, %s",
                 (unsigned long long)seed, ferry_status_name(got), error.message);
        n_conflicts += wanted;
        n_clean += !wanted && c.n > 2;
        fy_registry_cleanup(&registry);
    }
    assert_true(n_conflicts > 3000 && n_clean > 3000);
}

/* Receives of one wide tensor by boxes, of which one may be moved by a byte or an element. */
static void add_columns(fy_registry *registry, char *memory, uint64_t n_rows, uint64_t row_bytes,
                        uint64_t n_parts, uint64_t moved)
{
    uint64_t part = row_bytes / n_parts;
    for (uint64_t i = 0; i < n_parts; i++) {
        ferry_box box = FERRY_BOX_INIT;
        box.buffer = ferry_buffer_of(memory, n_rows * row_bytes);
        box.element_bytes = part;
        box.offset = i * part - (i == moved);
        box.n_dims = 1;
        box.length[0] = n_rows;
        box.stride[0] = row_bytes;
        box.name = "wide";
        add_end(registry, false, i, (uint32_t)(i % 7), &box);
    }
}

/* Nothing is read or written: addresses are enough. */
static char *far_memory(void)
{
    return (char *)(uintptr_t)((uint64_t)1 << 40);
}

static void test_columns(void **state)
{
    fy_registry registry = {0};
    (void)state;
    /* So many runs that listing them would be noticed: 16 G and more. */
    add_columns(&registry, far_memory(), (uint64_t)1 << 31, 65536, 8, UINT64_MAX);
    expect_none(&registry, "columns");
    add_columns(&registry, far_memory(), (uint64_t)1 << 31, 65536, 8, 5);
    expect_conflict(&registry, "a column moved",
                    (const char *[]){"task 4 (wide) from rank 4 to rank 2",
                                     "task 5 (wide) from rank 5 to rank 2", NULL});
    add_columns(&registry, far_memory(), 16384, (uint64_t)100000 * 4, 100000, UINT64_MAX);
    expect_none(&registry, "100,000 columns");
    add_columns(&registry, far_memory(), 16384, (uint64_t)100000 * 4, 100000, 77777);
    expect_conflict(&registry, "one of 100,000 columns moved",
                    (const char *[]){"task 77776 ", "task 77777 ", NULL});
}

/* A range that begins and ends within rows, and a column that reaches it, or does not, by a row. */
static void test_range_through_rows(void **state)
{
    static const uint64_t far = (uint64_t)1 << 30, row = 65536, part = 8192;
    const struct {
        const char *name;
        uint64_t first, n_rows;
        bool meets;
    } rows[] = {
        {"to where the range begins, further on", 0, far + 1, false},
        {"to its first whole row", 0, far + 2, true},
        {"from its last whole row on", far + 3, far, true},
        {"from where it has ended, before", far + 4, far, false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        fy_registry registry = {0};
        uint64_t bytes = 3 * far * row;
        ferry_box range =
            flat_box(far_memory(), bytes, far * row + row / 2, row / 2 + 3 * row + part);
        ferry_box column = FERRY_BOX_INIT;
        column.buffer = ferry_buffer_of(far_memory(), bytes);
        column.element_bytes = part;
        column.offset = rows[i].first * row + 2 * part;
        column.n_dims = 1;
        column.length[0] = rows[i].n_rows;
        column.stride[0] = row;
        add_end(&registry, false, 1, 0, &range);
        add_end(&registry, false, 2, 0, &column);
        if (rows[i].meets) {
            expect_conflict(&registry, rows[i].name, (const char *[]){"task 1 ", "task 2 ", NULL});
        } else {
            expect_none(&registry, rows[i].name);
        }
    }
}

/* A grid of boxes, in no order, beside rows that are whole. */
static void test_grid(void **state)
{
    enum { ROWS = 32, COLUMNS = 32 };
    uint64_t shape[3] = {(uint64_t)ROWS * 4096 + 4096, COLUMNS * 16, 3};
    fy_registry registry = {0};
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++) {
            uint32_t place = i * 389 % (ROWS * COLUMNS);
            uint64_t begin[3] = {place / COLUMNS * 4096, place % COLUMNS * 16, 0};
            uint64_t length[3] = {4096, 16, 2};
            ferry_buffer buffer = ferry_buffer_of(far_memory(), UINT64_C(1) << 40);
            ferry_box box = FERRY_BOX_INIT;
            ferry_error error;
            length[0] += bad == 1 && place == 500;
            must(ferry_box_of(&buffer, 2, 3, shape, begin, length, &box, &error), &error);
            add_end(&registry, false, i, 0, &box);
        }
        uint64_t row = shape[1] * shape[2] * 2;
        ferry_box rest = flat_box(far_memory(), UINT64_C(1) << 40, ROWS * 4096 * row, 4096 * row);
        add_end(&registry, false, 9999, 1, &rest);
        if (bad == 0) {
            expect_none(&registry, "a grid");
        } else {
            expect_conflict(&registry, "a box that is one row too long",
                            (const char *[]){"write the same bytes", NULL});
        }
    }
}

/* Of a wide tensor's transpose: strides rise, and listing the runs would be noticed. */
static void test_transposed(void **state)
{
    enum { N = 8 };
    const uint64_t n_rows = (uint64_t)1 << 31, row = 65536, part = row / N;
    fy_registry registry = {0};
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        for (uint64_t i = 0; i < N; i++) {
            ferry_box box = FERRY_BOX_INIT;
            box.buffer = ferry_buffer_of(far_memory(), n_rows * row);
            box.element_bytes = 2;
            box.offset = i * part;
            box.n_dims = 2;
            box.length[0] = part / 4; /* every other element */
            box.stride[0] = 4;
            box.length[1] = n_rows;
            box.stride[1] = row;
            if (bad == 1 && i == 5) { /* its first element is the last one of the part before */
                box.offset -= 4;
            }
            add_end(&registry, false, i, (uint32_t)i, &box);
        }
        if (bad == 0) {
            expect_none(&registry, "columns of a transposed view");
        } else {
            expect_conflict(&registry, "one is moved by an element",
                            (const char *[]){"task 4 ", "task 5 ", NULL});
        }
    }
}

/* Where a plan has no fills, their numbers are tasks like others: of the caller's, who may hash. */
static void test_high_numbers(void **state)
{
    const uint64_t high = FY_FILL_TASKS + 7;
    fy_registry registry = {0};
    ferry_box written = flat_box(far_memory(), 4096, 0, 1024);
    ferry_box read = flat_box(far_memory(), 4096, 1023, 1024);
    (void)state;
    add_end(&registry, false, high, 0, &written);
    add_end(&registry, true, high + 1, 3, &read);
    expect_conflict(&registry, "what a task of a high number reads",
                    (const char *[]){"task 9223372036854775815 from rank 0 to rank 2",
                                     "task 9223372036854775816 from rank 2 to rank 3", NULL});
}

enum { PAIR_BYTES = 4096 };

/* Number i of the buffers that pairs are made of. */
static ferry_box whole_buffer(int i)
{
    return flat_box(far_memory() + (uint64_t)i * PAIR_BYTES, PAIR_BYTES, 0, PAIR_BYTES);
}

/* A destination that writes the back of a pair, and then the front, and so on. */
static void add_pair(fy_registry *registry, uint64_t task_id, int front, int back)
{
    ferry_box box = whole_buffer(10 + (int)task_id); /* equal ones would be taken for one */
    add_end(registry, false, task_id, 0, &box);
    registry->held[registry->n_held - 1].front = whole_buffer(front).buffer;
    registry->held[registry->n_held - 1].back = whole_buffer(back).buffer;
}

/* Each buffer of a pair is written sooner or later, and has what is valid the rest of the time. */
static void test_pairs(void **state)
{
    static const struct {
        int pairs[2][2]; /* front and back */
        int read;        /* -1: none */
        const char *says[3];
    } rows[] = {
        {{{0, 1}, {2, 3}}, 4, {NULL}},
        {{{0, 1}, {0, 3}}, -1, {"task 1 ", "write the same bytes, once", NULL}},
        {{{0, 1}, {2, 1}}, -1, {"task 2 ", "write the same bytes:", NULL}},
        {{{0, 1}, {2, 0}}, -1, {"task 1 ", "has its last version", NULL}},
        {{{0, 1}, {1, 3}}, -1, {"task 2 ", "has its last version", NULL}},
        {{{0, 1}, {2, 3}}, 1, {"task 9 ", "reads: one", NULL}},
        {{{0, 1}, {2, 3}}, 0, {"task 9 ", "reads, once", NULL}},
        {{{0, 1}, {2, 3}}, 2, {"task 9 ", "reads, once", NULL}},
        {{{0, 0}, {2, 3}}, -1, {"task 1 ", "has its last version", NULL}},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        fy_registry registry = {0};
        add_pair(&registry, 1, rows[r].pairs[0][0], rows[r].pairs[0][1]);
        add_pair(&registry, 2, rows[r].pairs[1][0], rows[r].pairs[1][1]);
        if (rows[r].read >= 0) {
            ferry_box read = whole_buffer(rows[r].read);
            read.buffer.bytes += 1; /* another buffer than the destination's */
            add_end(&registry, true, 9, 0, &read);
        }
        if (rows[r].says[0] == NULL) {
            expect_none(&registry, "pairs that lie apart");
        } else {
            expect_conflict(&registry, rows[r].says[1], rows[r].says);
        }
    }
}

/* What in one buffer may stay where it is: as one of a pair it would be written as readers read. */
static void test_pair_that_is_its_source(void **state)
{
    static const char *const says[2][3] = {
        {"task 1 ", "reads, once", NULL}, /* the source is the front */
        {"task 1 ", "reads: one", NULL},  /* and the back */
    };
    (void)state;
    for (int i = 0; i < 2; i++) {
        fy_registry registry = {0};
        ferry_box source = whole_buffer(i);
        add_end(&registry, true, 1, ME, &source);
        ferry_box box = whole_buffer(10);
        add_end(&registry, false, 1, ME, &box);
        registry.held[registry.n_held - 1].front = whole_buffer(0).buffer;
        registry.held[registry.n_held - 1].back = whole_buffer(1).buffer;
        expect_conflict(&registry, "a pair that is its source", says[i]);
    }
}

/* Small tensors one behind the other, each its own buffer. */
static void test_many(void **state)
{
    fy_registry registry = {0};
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        for (uint64_t i = 0; i < 100000; i++) {
            ferry_box box =
                flat_box(far_memory() + i * 1000, 1001, 0, bad == 1 && i == 4711 ? 1001 : 1000);
            add_end(&registry, false, i, (uint32_t)(i % 11), &box);
        }
        if (bad == 0) {
            expect_none(&registry, "many tensors");
        } else {
            expect_conflict(&registry, "one is too long",
                            (const char *[]){"task 4711 ", "task 4712 ", NULL});
        }
    }
}

/* Strides that have nothing in common, many runs each: the merge. */
static void test_odd_strides(void **state)
{
    fy_registry registry = {0};
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        for (uint64_t i = 0; i < 3; i++) {
            ferry_box box = FERRY_BOX_INIT;
            box.buffer = ferry_buffer_of(far_memory(), 1 << 24);
            box.offset = i + (bad == 1 && i == 2 ? 5 : 0);
            box.n_dims = 2;
            box.length[0] = 1000 - i * 100;
            box.stride[0] = 6000 + i * 6 * 6; /* places of one kind mod 6, in different rows */
            box.length[1] = 900;
            box.stride[1] = 6;
            add_end(&registry, false, i, 0, &box);
        }
        if (bad == 0) {
            expect_none(&registry, "odd strides");
        } else {
            expect_conflict(&registry, "odd strides", (const char *[]){"task ", NULL});
        }
    }
}

static void test_reads(void **state)
{
    static char memory[1000], back[1000];
    fy_registry registry = {0};
    ferry_box low = flat_box(memory, 1000, 0, 400);
    ferry_box high = flat_box(memory, 1000, 399, 601);
    (void)state;
    low.name = "layer.weight";

    add_end(&registry, true, 1, 3, &low);
    add_end(&registry, true, 2, 3, &high);
    add_end(&registry, true, 1, 4, &low);
    expect_none(&registry, "readers alone");

    add_end(&registry, true, 1, 3, &low);
    add_end(&registry, false, 5, 4, &high);
    expect_conflict(&registry, "written and read",
                    (const char *[]){"task 5 (layer.weight) from rank 4 to rank 2 writes",
                                     "task 1 (layer.weight) from rank 2 to rank 3 reads", NULL});

    add_end(&registry, true, 7, ME, &low);
    add_end(&registry, false, 7, ME, &low);
    add_end(&registry, true, 7, 1, &low);
    expect_none(&registry, "kept where it is, and sent to others");

    add_end(&registry, true, 7, ME, &low);
    add_end(&registry, false, 7, ME, &low);
    add_end(&registry, false, 8, 1, &high);
    expect_conflict(&registry, "kept where it is, and written by others",
                    (const char *[]){"task 8 ", NULL});

    high.offset = 1;
    high.length[0] = 400;
    add_end(&registry, true, 7, ME, &low);
    add_end(&registry, false, 7, ME, &high);
    expect_conflict(&registry, "moved by a byte",
                    (const char *[]){"from rank 2 to rank 2 writes bytes that task 7", NULL});

    /* A pair: the back is written. */
    ferry_buffer front_buffer = ferry_buffer_of(memory, 1000);
    ferry_buffer back_buffer = ferry_buffer_of(back, 1000);
    ferry_error error;
    uint32_t held;
    must(fy_registry_hold(&registry, &front_buffer, &back_buffer, 0, &held, &error), &error);
    add_end(&registry, true, 7, ME, &low);
    add_end(&registry, false, 7, ME, &high);
    expect_none(&registry, "from the front to the back");

    must(fy_registry_hold(&registry, &front_buffer, &back_buffer, 0, &held, &error), &error);
    ferry_box behind = flat_box(back, 1000, 100, 10);
    add_end(&registry, true, 7, 1, &behind);
    add_end(&registry, false, 8, 1, &low);
    expect_conflict(&registry, "the back is read",
                    (const char *[]){"task 8 ", "that task 7 ", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_range_through_rows),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_high_numbers),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_pair_that_is_its_source),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_odd_strides),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_transposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
