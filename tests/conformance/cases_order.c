/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sees a signal sees the bytes of all earlier puts of that rank. All ranks send to all: blocks
 * of rounds, each a number of puts to random places and a signal; the receiver knows from the seed
 * what must be there, and compares whole windows, so that a byte too many is found as well.
 */
#include "conformance/suite.h"

typedef struct shape {
    uint32_t n_cells; /* a power of two */
    uint32_t cell_bytes;
    uint32_t depth; /* rounds under way, each in a window of its own */
    uint32_t n_blocks;
    uint32_t op; /* ferry_signal_op */
} shape;

typedef struct round_plan {
    uint64_t random;
    uint32_t n_puts, first, stride;
} round_plan;

typedef struct one_put {
    uint32_t offset, source, bytes; /* within the window */
    uint64_t seed;
} one_put;

static round_plan plan_round(const rank_context *me, const shape *s, uint32_t from, uint32_t to,
                             uint32_t round)
{
    round_plan p = {.random = seed_of(me, from, to, round)};
    p.n_puts = random_below(&p.random, s->n_cells + 1);
    p.first = random_below(&p.random, s->n_cells);
    p.stride = 2 * random_below(&p.random, s->n_cells) + 1; /* visits every cell once */
    return p;
}

static one_put next_put(const shape *s, round_plan *p, uint32_t i)
{
    uint32_t cell = (p->first + i * p->stride) % s->n_cells;
    uint32_t half = s->cell_bytes / 2;
    one_put put = {.offset = cell * s->cell_bytes + random_below(&p->random, half),
                   .source = cell * s->cell_bytes + random_below(&p->random, half)};
    uint32_t most = random_below(&p->random, 8) == 0 ? half : 64;
    put.bytes = random_below(&p->random, most + 1);
    put.seed = random_u64(&p->random);
    return put;
}

typedef struct traffic {
    shape s;
    uint64_t window;
    ferry_region *data;  /* windows by sender and slot */
    ferry_region *words; /* 0 .. n: rounds of a sender; n ..: rounds that a receiver has seen */
    unsigned char *sources;
    unsigned char *images; /* what the windows must hold */
} traffic;

static uint64_t window_of(const traffic *t, uint32_t peer, uint32_t slot)
{
    return ((uint64_t)peer * t->s.depth + slot) * t->window;
}

/* The last put travels with the signal, or the signal alone. */
static void send_round(rank_context *me, traffic *t, uint32_t peer, uint32_t round)
{
    round_plan p = plan_round(me, &t->s, me->rank, peer, round);
    uint32_t slot = round % t->s.depth;
    unsigned char *source = t->sources + window_of(t, peer, slot);
    uint64_t target = window_of(t, me->rank, slot);
    uint64_t value = t->s.op == FERRY_SIGNAL_SET ? round + 1 : 1;
    for (uint32_t i = 0; i < p.n_puts; i++) {
        one_put o = next_put(&t->s, &p, i);
        fill(source + o.source, o.bytes, o.seed);
        if (i + 1 < p.n_puts) {
            put(me, peer, t->data, target + o.offset, source + o.source, o.bytes);
        } else {
            put_signal(me, peer, t->data, target + o.offset, source + o.source, o.bytes, t->words,
                       me->rank, value, (ferry_signal_op)t->s.op);
        }
    }
    if (p.n_puts == 0) {
        raise_signal(me, peer, t->words, me->rank, value, (ferry_signal_op)t->s.op);
    }
}

static void receive_round(rank_context *me, traffic *t, uint32_t peer, uint32_t round)
{
    round_plan p = plan_round(me, &t->s, peer, me->rank, round);
    uint64_t window = window_of(t, peer, round % t->s.depth);
    unsigned char *image = t->images + window;
    for (uint32_t i = 0; i < p.n_puts; i++) {
        one_put o = next_put(&t->s, &p, i);
        fill(image + o.offset, o.bytes, o.seed);
    }
    uint64_t seen = wait_signal(me, t->words, peer, FERRY_COMPARE_GE, round + 1, peer);
    expect(me, seen <= (uint64_t)t->s.n_blocks * t->s.depth, "rank %u raised %llu signals",
           (unsigned)peer, (unsigned long long)seen);
    if (memcmp(base_of(t->data) + window, image, t->window) != 0) {
        size_t at = 0;
        while (base_of(t->data)[window + at] == image[at]) {
            at++;
        }
        fail(me,
             "round %u of rank %u, %u puts: byte %zu of the window is wrong (cells of %u bytes)",
             (unsigned)round, (unsigned)peer, (unsigned)p.n_puts, at, (unsigned)t->s.cell_bytes);
    }
    raise_signal(me, peer, t->words, me->n_ranks + me->rank, 1, FERRY_SIGNAL_ADD);
}

static void run_block(rank_context *me, traffic *t, uint32_t block)
{
    uint32_t first = block * t->s.depth;
    for (uint32_t round = first; round < first + t->s.depth; round++) {
        for (uint32_t i = 1; i < me->n_ranks; i++) {
            send_round(me, t, (me->rank + i) % me->n_ranks, round);
        }
    }
    uint32_t begin = random_below(&me->random, me->n_ranks);
    for (uint32_t round = first; round < first + t->s.depth; round++) {
        for (uint32_t i = 0; i < me->n_ranks; i++) {
            uint32_t peer = (begin + i) % me->n_ranks;
            if (peer != me->rank) {
                receive_round(me, t, peer, round);
            }
        }
    }
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        if (peer != me->rank) {
            wait_signal(me, t->words, me->n_ranks + peer, FERRY_COMPARE_EQ, first + t->s.depth,
                        peer);
        }
    }
    flush(me, FERRY_ANY_RANK);
}

static void run_traffic(rank_context *me, const shape *s)
{
    traffic t = {.s = *s, .window = (uint64_t)s->n_cells * s->cell_bytes};
    uint64_t bytes = me->n_ranks * t.window * s->depth;
    t.data = alloc_region(me, bytes);
    t.words = alloc_region(me, 16 * me->n_ranks);
    t.sources = take(me, bytes);
    t.images = take(me, bytes);
    memset(t.images, 0, bytes);
    expect(me, mismatch_byte(base_of(t.data), bytes, 0) == bytes, "new memory is not zero");
    meet(me);
    for (uint32_t block = 0; block < s->n_blocks * (me->is_long ? 20u : 1u); block++) {
        t.s.n_blocks = block + 2; /* a fast peer may be one ahead */
        run_block(me, &t, block);
    }
    meet(me);
    ferry_region_free(t.data);
    ferry_region_free(t.words);
    free(t.sources);
    free(t.images);
}

void case_order_set(rank_context *me)
{
    run_traffic(
        me,
        &(shape){
            .n_cells = 64, .cell_bytes = 512, .depth = 4, .n_blocks = 100, .op = FERRY_SIGNAL_SET});
}

void case_order_add(rank_context *me)
{
    run_traffic(
        me,
        &(shape){
            .n_cells = 16, .cell_bytes = 256, .depth = 16, .n_blocks = 50, .op = FERRY_SIGNAL_ADD});
}

void case_order_large(rank_context *me)
{
    run_traffic(me, &(shape){.n_cells = 8,
                             .cell_bytes = 1 << 19,
                             .depth = 2,
                             .n_blocks = 5,
                             .op = FERRY_SIGNAL_ADD});
}
