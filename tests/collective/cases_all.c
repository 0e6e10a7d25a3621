/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Every topology of a number of ranks, with every operation and mode that it offers. */
#include "collective/suite.h"

/* The oracle's own arithmetic, by numbers that are known. */
void case_oracle(rank_context *me)
{
    static const struct {
        uint32_t dtype, bits;
        double number;
    } known[] = {
        {FERRY_F16, 0x3c00, 1.0},
        {FERRY_F16, 0x7bff, 65504.0},
        {FERRY_F16, 0x7c00, 65520.0},
        {FERRY_F16, 0x7bff, 65519.9},
        {FERRY_F16, 0x0001, 0x1p-24},
        {FERRY_F16, 0x0000, 0x1p-25},
        {FERRY_F16, 0x0001, 0x1.8p-25},
        {FERRY_F16, 0x0400, 0x1p-14},
        {FERRY_F16, 0x3c00, 1 + 0x1p-11},
        {FERRY_F16, 0x3c02, 1 + 0x3p-11},
        {FERRY_BF16, 0xbf80, -1.0},
        {FERRY_BF16, 0x3f80, 1 + 0x1p-8},
        {FERRY_BF16, 0x3f82, 1 + 0x3p-8},
        {FERRY_BF16, 0x7f80, 3.4e38},
        {FERRY_F32, 0x3f800001, 1 + 0x1p-23},
        {FERRY_F32, 0x80000000, -0.0},
        {FERRY_F32, 0x4b800000, 16777217.0},
        {FERRY_F32, 0x00000001, 0x1p-149},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint32_t bits = round_once(known[i].dtype, known[i].number);
        expect(me, bits == known[i].bits, "%g is %#x, not %#x", known[i].number, bits,
               known[i].bits);
    }
    for (uint32_t bits = 0; bits < 65536; bits++) { /* what is a number is its own rounding */
        bool nan16 = (bits & 0x7fff) > 0x7c00, nan_bf = (bits & 0x7fff) > 0x7f80;
        expect(me, nan16 || round_once(FERRY_F16, widen(FERRY_F16, bits)) == bits, "%#x", bits);
        expect(me, nan_bf || round_once(FERRY_BF16, widen(FERRY_BF16, bits)) == bits, "%#x", bits);
        float number;
        memcpy(&number, &(uint32_t){bits << 16}, 4);
        expect(me, nan_bf || widen(FERRY_BF16, bits) == (double)number, "%#x", bits);
        expect(me, nan_bf || widen(FERRY_F32, bits << 16) == (double)number, "%#x", bits);
    }
}

/* The topologies of w ranks, one after the other. */
typedef struct walk {
    uint32_t w, l, local_tp, inter_tp; /* the next one; l = 0 at the begin */
} walk;

static uint32_t next_divisor(uint32_t n, uint32_t after)
{
    do {
        after++;
    } while (after <= n && n % after != 0);
    return after;
}

static bool walk_next(walk *at, shape *s_out)
{
    if (at->l == 0) {
        at->l = at->local_tp = at->inter_tp = 1;
    } else if ((at->inter_tp = next_divisor(at->w / at->l, at->inter_tp)) > at->w / at->l) {
        at->inter_tp = 1;
        at->local_tp = next_divisor(at->l, at->local_tp);
        if (at->local_tp > at->l) {
            at->local_tp = 1;
            at->l = next_divisor(at->w, at->l);
        }
    }
    if (at->l > at->w) {
        return false;
    }
    *s_out = shape_of(at->l, at->w / at->l, at->local_tp, at->inter_tp);
    return true;
}

static void call_once(scene *c, uint64_t *random, uint32_t op, uint32_t mode, data_kind data,
                      uint64_t n)
{
    call what = {.op = op, .mode = mode, .data = data};
    what.in_place = one_in(random, 4);
    what.form = one_in(random, 8) ? (call_form)random_below(random, N_FORMS) : FORM_RUN;
    what.data = op == FERRY_MIXED_ALL_GATHER ? DATA_BITS : data;
    draw_rows(random, n, &what);
    what.seed = random_u64(random);
    scene_call(c, &what);
}

/* Lengths about the borders of lines and blocks. */
static void call_borders(scene *c, uint64_t *random, uint32_t op, uint32_t mode)
{
    uint64_t line = 64 / dtype_bytes(c->options.dtype);
    const uint64_t counts[] = {1, 2, 3, line - 1, line, line + 1, 3 * line, 256 * line + 1, 4999};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        call_once(c, random, op, mode, (data_kind)random_below(random, 2), counts[i]);
    }
}

static void call_all(scene *c, uint64_t *random)
{
    bool is_long = c->me->is_long;
    uint32_t dtype = c->options.dtype;
    for (size_t i = 0; i < c->n_ops; i++) {
        for (size_t j = 0; j < c->n_modes; j++) {
            uint32_t op = c->ops[i], mode = c->modes[j];
            call_once(c, random, op, mode, DATA_INTEGERS, draw_count(random, dtype, 1200));
            call_once(c, random, op, mode, DATA_RANDOM, draw_count(random, dtype, 400));
            if (is_long) {
                call_borders(c, random, op, mode);
                call_once(c, random, op, mode, DATA_RANDOM, draw_count(random, dtype, 40000));
            }
            if (is_long && one_in(random, 40)) {
                uint64_t n = 1000003 / c->s.dp;
                call_once(c, random, op, mode, DATA_RANDOM, n);
            }
        }
    }
}

void case_all(rank_context *me)
{
    static const uint32_t types[] = {FERRY_F16, FERRY_BF16, FERRY_F32};
    uint64_t random = seed_of(me, 1, me->n_ranks, 0);
    uint32_t first = random_below(&random, 3);
    walk at = {.w = me->n_ranks};
    shape s;
    for (uint32_t number = 0; walk_next(&at, &s); number++) {
        for (uint32_t i = 0; i < (me->is_long || me->n_ranks < 4 ? 3u : 1u); i++) {
            ferry_mixed_comm_options options =
                scene_options(me, &s, types[(first + number + i) % 3], &random);
            scene c;
            scene_open(&c, me, &s, &options);
            call_all(&c, &random);
            scene_close(&c);
        }
    }
}

/* Millions of elements, an odd number. */
void case_large(rank_context *me)
{
    uint64_t random = seed_of(me, 2, me->n_ranks, 0);
    for (uint32_t round = 0; round < times_of(me, 2, 40); round++) {
        shape s = draw_shape(&random, me->n_ranks);
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        options.max_block_size = one_in(&random, 2) ? 0 : dice(&random, 100, 3000);
        options.min_block_size = 256;
        options.staging_bytes = 0;
        scene_open(&c, me, &s, &options);
        uint64_t n = me->is_long ? 2000003 : 100003;
        for (size_t i = 0; i < c.n_ops; i++) {
            for (size_t j = 0; j < c.n_modes; j++) {
                data_kind data = one_in(&random, 2) ? DATA_INTEGERS : DATA_RANDOM;
                call_once(&c, &random, c.ops[i], c.modes[j], data, n / c.s.dp - 2);
            }
        }
        scene_close(&c);
    }
}

/* More ranks than there are cores by far; nodes of up to 64. */
void case_many_ranks(rank_context *me)
{
    uint64_t random = seed_of(me, 3, me->n_ranks, 0);
    uint32_t w = me->n_ranks;
    for (uint32_t round = 0; round < times_of(me, 2, 12); round++) {
        shape s = draw_shape(&random, w);
        if (round % 2 == 0) {
            s = shape_of(w, 1, round % 4 == 0 ? w : next_divisor(w, 1), 1);
        }
        ferry_mixed_comm_options options = scene_options(me, &s, draw_dtype(&random), &random);
        scene c;
        scene_open(&c, me, &s, &options);
        for (size_t i = 0; i < c.n_ops; i++) {
            for (size_t j = 0; j < c.n_modes; j++) {
                data_kind data = one_in(&random, 2) ? DATA_INTEGERS : DATA_RANDOM;
                uint64_t n = draw_count(&random, options.dtype, me->is_long ? 2000 : 100);
                call_once(&c, &random, c.ops[i], c.modes[j], data, n);
            }
        }
        scene_close(&c);
    }
}

/* Every offered mode gives the bits of the one tree, whatever the blocks, lanes and delays. */
static uint64_t call_tree(rank_context *me, const shape *s, uint32_t dtype, uint64_t *random)
{
    ferry_mixed_comm_options options = scene_options(me, s, dtype, random);
    options.deterministic = true;
    options.grid_size = dice(random, 1, 3);
    scene c;
    scene_open(&c, me, s, &options);
    c.skew_us = one_in(random, 2) ? 0 : 200;
    for (size_t i = 0; i < c.n_ops; i++) {
        for (size_t j = 0; j <= c.n_modes; j++) {
            uint32_t mode = j == c.n_modes ? (uint32_t)FERRY_MIXED_MODE_DEFAULT : c.modes[j];
            for (uint32_t k = 0; k < times_of(me, 2, 8); k++) {
                uint64_t n = draw_count(random, dtype, me->is_long ? 9000 : 700);
                call_once(&c, random, c.ops[i], mode, k == 1 ? DATA_BITS : DATA_CANCEL, n);
            }
        }
    }
    uint64_t n_ordered = c.n_ordered;
    scene_close(&c);
    return n_ordered;
}

void case_deterministic(rank_context *me)
{
    static const uint32_t types[] = {FERRY_F16, FERRY_BF16, FERRY_F32};
    uint64_t random = seed_of(me, 4, me->n_ranks, 0);
    uint64_t n_ordered = 0;
    walk at = {.w = me->n_ranks};
    shape s;
    for (uint32_t number = 0; walk_next(&at, &s); number++) {
        for (uint32_t i = 0; i < times_of(me, 1, 3); i++) {
            n_ordered += call_tree(me, &s, types[(number + i + me->seed) % 3], &random);
        }
    }
    expect(me, n_ordered > 0 || me->n_ranks < 3, "data that no order of additions changes");
}
