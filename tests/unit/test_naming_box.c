/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of a tensor in shards of another one: random boxes in random cuts, against an oracle that
 * looks at each element by itself.
 */
#include "model/naming_box.h"

#include "model/side.h"
#include "support/check.h"

#include <string.h>

enum { MOST_ELEMENTS = 20000, N_ROUNDS = 3000, NOTHING = 0 };

static uint64_t state;

static uint64_t draw(uint64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

/* ---- what is drawn ---- */

static fy_split *draw_split(uint64_t extent)
{
    fy_split *split = NULL;
    ferry_error error;
    uint32_t n = 1 + (uint32_t)draw(4);
    uint64_t half = extent / 2 / n * n;
    const fy_split_block blocks[] = {{half, n}, {extent - half, 1}};
    switch (half > 0 ? draw(5) : draw(3)) {
    case 0:
        must(fy_split_whole(extent, &split, &error), &error);
        break;
    case 1:
        must(fy_split_even(extent, n, 1, &split, &error), &error);
        break;
    case 2:
        must(fy_split_cyclic(extent, n, 1 + draw(3), &split, &error), &error);
        break;
    case 3: /* the second block is on all of them */
        must(fy_split_blocks(extent, n, blocks, 2, 1, &split, &error), &error);
        break;
    default:
        must(fy_split_even(extent, n + 3, 1, &split, &error), &error);
    }
    return split;
}

typedef struct scene {
    fy_naming_tensor source;
    uint64_t target_shape[FERRY_MAX_DIMS];
    fy_naming_box box;
    fy_naming_shard shard;
    fy_split *splits[FERRY_MAX_DIMS];
} scene;

/* Dimensions of the source in another order in the target, and perhaps one more in either. */
static void draw_box(scene *s)
{
    uint32_t n = 1 + (uint32_t)draw(3), lead_from = (uint32_t)draw(2), lead_to = (uint32_t)draw(2);
    uint32_t turn = (uint32_t)draw(n), rows = (uint32_t)draw(n);
    s->source = (fy_naming_tensor){.name = "w", .n_dims = n + lead_from};
    s->box = (fy_naming_box){.source = &s->source, .count = 1 + draw(4)};
    s->shard.n_dims = n + lead_to;
    if (lead_from == 1) {
        s->source.shape[0] = 3;
        s->box.begin[0] = draw(3);
        s->box.shape[0] = 1;
        s->box.along[0] = FY_NO_DIM;
    }
    if (lead_to == 1) {
        s->target_shape[0] = 2;
        s->box.at[0] = draw(2);
    }
    for (uint32_t d = 0; d < n; d++) {
        uint32_t from = lead_from + d, to = lead_to + (d + turn) % n;
        uint64_t length = 1 + draw(5), blocks = d == rows ? s->box.count : 1;
        uint64_t from_step = length + draw(3), to_step = length + draw(3);
        s->box.along[from] = to;
        s->box.begin[from] = draw(3);
        s->box.at[to] = draw(3);
        s->box.shape[from] = length;
        s->source.shape[from] = s->box.begin[from] + blocks * from_step + draw(2);
        s->target_shape[to] = s->box.at[to] + blocks * to_step + draw(2);
        if (d == rows) {
            s->box.from_dim = from;
            s->box.to_dim = to;
            s->box.from_step = from_step;
            s->box.to_step = to_step;
        }
    }
    for (uint32_t d = 0; d < s->shard.n_dims; d++) {
        s->splits[d] = draw_split(s->target_shape[d]);
        s->shard.splits[d] = s->splits[d];
        s->shard.parts[d] = (uint32_t)draw(s->splits[d]->n_parts);
    }
}

/* ---- the oracle ---- */

/* The place in the part, which has its pieces in global order; false: it has not got that one. */
static bool find_local(const fy_split *split, uint32_t part, uint64_t global, uint64_t *local_out)
{
    uint64_t before = 0;
    for (size_t i = 0; i < split->n_pieces; i++) {
        const fy_piece *p = &split->pieces[i];
        if (part < p->part || part >= p->part + p->n_owners) {
            continue;
        }
        if (global >= p->global && global < p->global + p->length) {
            *local_out = before + global - p->global;
            return true;
        }
        before += p->length;
    }
    return false;
}

static bool next(uint64_t *index, const uint64_t *shape, uint32_t n)
{
    for (uint32_t d = n; d-- > 0;) {
        if (++index[d] < shape[d]) {
            return true;
        }
        index[d] = 0;
    }
    return false;
}

/* 1 + the element of the source that belongs to each of the shard, and NOTHING. */
static void fill_slowly(const scene *s, uint32_t *elements)
{
    const fy_naming_box *b = &s->box;
    for (uint64_t i = 0; i < b->count; i++) {
        uint64_t index[FERRY_MAX_DIMS] = {0};
        do {
            uint64_t at[FERRY_MAX_DIMS], from = 0, to = 0;
            bool held = true;
            memcpy(at, b->at, sizeof at);
            at[b->to_dim] += i * b->to_step;
            for (uint32_t d = 0; d < s->source.n_dims; d++) {
                uint64_t jump = d == b->from_dim ? i * b->from_step : 0;
                from = from * s->source.shape[d] + b->begin[d] + index[d] + jump;
                if (b->along[d] != FY_NO_DIM) {
                    at[b->along[d]] += index[d];
                }
            }
            for (uint32_t d = 0; d < s->shard.n_dims; d++) {
                uint64_t local = 0;
                held = held && find_local(s->splits[d], s->shard.parts[d], at[d], &local);
                to = to * fy_naming_shard_length(&s->shard, d) + local;
            }
            if (held) {
                elements[to] = (uint32_t)from + 1;
            }
        } while (next(index, b->shape, s->source.n_dims));
    }
}

/* ---- what was made ---- */

static void fill_from(const scene *s, const ferry_side *side, uint32_t *elements, size_t n)
{
    for (size_t i = 0; i < side->n_boxes; i++) {
        const fy_said_box *b = &side->boxes[i];
        const uint64_t *begin = b->numbers, *repeat = NULL;
        uint64_t count = 1;
        if (b->n_repeats > 0) {
            repeat = fy_said_box_repeat(b, 0);
            count = repeat[0];
        }
        for (uint64_t k = 0; k < count; k++) {
            uint64_t index[FERRY_MAX_DIMS] = {0};
            do {
                uint64_t from = 0, to = b->offset + (repeat == NULL ? 0 : k * repeat[1]);
                for (uint32_t d = 0; d < b->n_dims; d++) {
                    uint64_t more = repeat == NULL ? 0 : k * repeat[2 + d];
                    from = from * s->source.shape[d] + begin[d] + index[d] + more;
                    to += index[d] * fy_said_box_strides(b)[d];
                }
                assert_true(to < n);
                assert_int_equal(elements[to], NOTHING);
                elements[to] = (uint32_t)from + 1;
            } while (next(index, fy_said_box_shape(b), b->n_dims));
        }
    }
}

static size_t check_scene(const scene *s)
{
    static uint32_t wanted[MOST_ELEMENTS], have[MOST_ELEMENTS];
    ferry_side *side = NULL;
    ferry_error error;
    size_t parameter, n = 1, n_held = 0;
    const uint32_t rank = 0;
    for (uint32_t d = 0; d < s->shard.n_dims; d++) {
        n *= fy_naming_shard_length(&s->shard, d);
    }
    assert_true(n < MOST_ELEMENTS);
    memset(wanted, 0, n * sizeof *wanted);
    memset(have, 0, n * sizeof *have);
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, &rank, 1, "p", NULL, n, 0, &parameter, &error), &error);
    must(fy_naming_box_add(&s->box, &s->shard, side, parameter, &error), &error);
    fill_slowly(s, wanted);
    fill_from(s, side, have, n);
    assert_memory_equal(have, wanted, n * sizeof *have);
    for (size_t i = 0; i < n; i++) {
        n_held += wanted[i] != NOTHING;
    }
    assert_true(side->n_boxes <= n_held);
    ferry_side_destroy(side);
    return n_held;
}

static void test_random(void **unused)
{
    (void)unused;
    size_t n_held = 0, n_with = 0;
    for (uint64_t round = 0; round < N_ROUNDS; round++) {
        scene s = {.box = {.count = 0}};
        state = round;
        draw_box(&s);
        size_t held = check_scene(&s);
        n_held += held;
        n_with += held > 0;
        for (uint32_t d = 0; d < s.shard.n_dims; d++) {
            fy_split_destroy(s.splits[d]);
        }
    }
    assert_true(n_held > 5 * N_ROUNDS && n_with > N_ROUNDS / 3);
}

/* Blocks of rows that a part has as a whole are one box that comes again. */
static void test_blocks_are_one_box(void **unused)
{
    (void)unused;
    fy_naming_tensor source = {.name = "w", .n_dims = 2, .shape = {64, 8}};
    fy_naming_box box = {.source = &source,
                         .shape = {1, 8},
                         .along = {0, 1},
                         .count = 64,
                         .from_step = 1,
                         .to_step = 2};
    fy_split *rows = NULL, *columns = NULL;
    ferry_side *side = NULL;
    ferry_error error;
    size_t parameter;
    const uint32_t rank = 0;
    must(fy_split_even(128, 2, 1, &rows, &error), &error);
    must(fy_split_whole(8, &columns, &error), &error);
    fy_naming_shard shard = {.n_dims = 2, .splits = {rows, columns}, .parts = {1, 0}};
    must(ferry_side_create(&side, &error), &error);
    must(ferry_side_add_parameter(side, &rank, 1, "p", NULL, 512, 0, &parameter, &error), &error);
    must(fy_naming_box_add(&box, &shard, side, parameter, &error), &error);
    assert_int_equal(side->n_boxes, 1);
    assert_int_equal(side->boxes[0].numbers[0], 32);
    assert_int_equal(fy_said_box_repeat(&side->boxes[0], 0)[0], 32);
    ferry_side_destroy(side);
    fy_split_destroy(rows);
    fy_split_destroy(columns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_blocks_are_one_box),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
