/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of `ferry bench mixed -c`, against results that this program computes by itself from
 * coordinates of ranks: right ones pass, and each kind of wrong one is found. The file is included
 * for what it does not show.
 */
#include "../../tools/ferry/bench_mixed_check.c"

#include "support/check.h"

#include <stdlib.h>

typedef struct shape {
    const char *name;
    uint32_t local_tp, local_dp, inter_tp, inter_dp;
} shape;

static const shape shapes[] = {{"1", 1, 1, 1, 1},
                               {"tp 2", 2, 1, 1, 1},
                               {"dp 3", 1, 3, 1, 1},
                               {"tp 2 dp 2", 2, 2, 1, 1},
                               {"tp 3, nodes 2", 3, 1, 2, 1},
                               {"dp 2, nodes dp 2", 1, 2, 1, 2},
                               {"tp 2 dp 3, nodes tp 2 dp 2", 2, 3, 2, 2},
                               {"dp 2, nodes tp 3", 1, 2, 3, 1}};

static const uint32_t dtypes[] = {FERRY_BF16, FERRY_F16, FERRY_F32};

enum { COUNT = 1500 }; /* more than a block of the checker, and no multiple of it */

/* ---- types, by arithmetic ---- */

static double decode(uint32_t dtype, uint32_t raw)
{
    int fraction = dtype == FERRY_F32 ? 23 : dtype == FERRY_F16 ? 10 : 7;
    int width = dtype == FERRY_F16 ? 5 : 8;
    int bias = (1 << (width - 1)) - 1;
    int exponent = (int)(raw >> fraction) & ((1 << width) - 1);
    double value = (double)(raw & ((1u << fraction) - 1));
    value = exponent == 0 ? ldexp(value, 1 - bias - fraction)
                          : ldexp(value + ldexp(1, fraction), exponent - bias - fraction);
    return raw >> (fraction + width) & 1 ? -value : value;
}

/* To nearest, ties to even, at so many bits of significand; not at the ends of the range. */
static double round_to(double value, int bits, int least_exponent)
{
    int exponent;
    frexp(value, &exponent);
    exponent = exponent - 1 < least_exponent ? least_exponent : exponent - 1;
    double unit = ldexp(1, exponent - bits + 1);
    return rint(value / unit) * unit;
}

static double round_as(uint32_t dtype, double value)
{
    return dtype == FERRY_F32   ? (double)(float)value
           : dtype == FERRY_F16 ? round_to(value, 11, -14)
                                : round_to(value, 8, -126);
}

/* The pattern of a value of the type, found by halving: numbers of one sign ascend as they do. */
static uint32_t encode(uint32_t dtype, double value)
{
    uint32_t sign = dtype == FERRY_F32 ? 0x80000000u : 0x8000u;
    uint32_t low = 0, high = (dtype == FERRY_F16   ? 0x7c00u
                              : dtype == FERRY_F32 ? 0x7f800000u
                                                   : 0x7f80u) -
                             1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (decode(dtype, middle) <= fabs(value)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return value < 0 ? low | sign : low;
}

/* ---- a world ---- */

typedef struct world {
    mixed_case c; /* of rank 0 */
    uint32_t tp, dp;
    void *in[64];
    void *out; /* of the rank that is looked at */
} world;

static bool offered(const shape *s, uint32_t op)
{
    bool sums = s->local_tp * s->inter_tp > 1, chunks = s->local_dp * s->inter_dp > 1;
    switch (op) {
    case FERRY_MIXED_ALL_REDUCE:
        return !chunks;
    case FERRY_MIXED_ALL_GATHER:
    case FERRY_MIXED_REDUCE_SCATTER:
        return chunks && !sums;
    default:
        return chunks && sums;
    }
}

static mixed_case case_of(const world *w, uint32_t rank)
{
    mixed_case c = w->c;
    c.rank = rank;
    return c;
}

static void open_world(world *w, const shape *s, uint32_t op, uint32_t dtype, mixed_pattern pattern)
{
    uint32_t local = s->local_tp * s->local_dp, n = local * s->inter_tp * s->inter_dp;
    *w = (world){.c = {.op = op,
                       .dtype = dtype,
                       .n_ranks = n,
                       .local_size = local,
                       .local_tp = s->local_tp,
                       .local_dp = s->local_dp,
                       .inter_tp = s->inter_tp,
                       .inter_dp = s->inter_dp,
                       .count = COUNT,
                       .seed = 7,
                       .pattern = pattern},
                 .tp = s->local_tp * s->inter_tp,
                 .dp = s->local_dp * s->inter_dp};
    for (uint32_t rank = 0; rank < n; rank++) {
        mixed_case c = case_of(w, rank);
        w->in[rank] = malloc(mixed_in_count(&c) * 4);
        assert_non_null(w->in[rank]);
        mixed_fill(&c, w->in[rank]);
    }
    w->out = malloc((size_t)COUNT * w->dp * 4);
    assert_non_null(w->out);
}

static void close_world(world *w)
{
    for (uint32_t rank = 0; rank < w->c.n_ranks; rank++) {
        free(w->in[rank]);
    }
    free(w->out);
}

/* From coordinates to ranks, where the checker goes from ranks to coordinates. */
static uint32_t rank_at(const world *w, uint32_t tp_rank, uint32_t dp_rank)
{
    uint32_t local = tp_rank % w->c.local_tp + dp_rank % w->c.local_dp * w->c.local_tp;
    uint32_t inter = tp_rank / w->c.local_tp + dp_rank / w->c.local_dp * w->c.inter_tp;
    return local + inter * w->c.local_size;
}

/* The sum of an element over tensor-parallel ranks of the groups [first, end). */
static double sum_of(const world *w, uint32_t first, uint32_t end, uint64_t index, bool rounded)
{
    double sum = 0;
    for (uint32_t dp_rank = first; dp_rank < end; dp_rank++) {
        double part = 0;
        for (uint32_t tp_rank = 0; tp_rank < w->tp; tp_rank++) {
            uint32_t rank = rank_at(w, tp_rank, dp_rank);
            part += decode(w->c.dtype, raw_at(w->c.dtype, w->in[rank], index));
        }
        sum += rounded ? round_as(w->c.dtype, part) : part;
    }
    return sum;
}

/* The right output of a rank. rounded: sums of each tensor-parallel group are a stage. */
static void compute(world *w, uint32_t dp_rank, bool rounded)
{
    for (uint32_t chunk = 0; chunk < (gathers(w->c.op) ? w->dp : 1); chunk++) {
        for (uint64_t i = 0; i < COUNT; i++) {
            double value = gathers(w->c.op) ? sum_of(w, chunk, chunk + 1, i, false)
                           : scatters(w->c.op)
                               ? sum_of(w, 0, w->dp, dp_rank * (uint64_t)COUNT + i, rounded)
                               : sum_of(w, 0, w->dp, i, rounded);
            store_raw(w->c.dtype, w->out, chunk * (uint64_t)COUNT + i,
                      encode(w->c.dtype, round_as(w->c.dtype, value)));
        }
    }
}

typedef void (*visit_fn)(world *w, mixed_case c, const char *name);

/* Each rank's right output of each operation, shape and type. */
static void visit_all(mixed_pattern pattern, uint32_t stages, visit_fn visit)
{
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        for (uint32_t op = 0; op < FERRY_MIXED_N_OPS; op++) {
            for (size_t d = 0; d < COUNT_OF(dtypes) && offered(&shapes[s], op); d++) {
                world w;
                open_world(&w, &shapes[s], op, dtypes[d], pattern);
                w.c.stages = stages;
                for (uint32_t dp_rank = 0; dp_rank < w.dp; dp_rank++) {
                    compute(&w, dp_rank, stages > 0);
                    visit(&w, case_of(&w, rank_at(&w, w.tp - 1, dp_rank)), shapes[s].name);
                }
                close_world(&w);
            }
        }
    }
}

/* ---- what is right ---- */

static void expect_right(world *w, mixed_case c, const char *name)
{
    mixed_verdict v = mixed_check(&c, w->out);
    check_at(v.n_wrong == 0, "%s, op %u, type %u, rank %u: %llu wrong, element %llu is %g for %g",
             name, c.op, c.dtype, c.rank, (unsigned long long)v.n_wrong,
             (unsigned long long)v.first, v.got, v.want);
}

static void test_right_results_pass(void **state)
{
    (void)state;
    visit_all(MIXED_INTEGERS, 0, expect_right);
    visit_all(MIXED_RANDOM, 0, expect_right);
    visit_all(MIXED_RANDOM, 1, expect_right);
}

static void test_gathered_bits_pass(void **state)
{
    static const shape dp = {"dp 2, nodes dp 2", 1, 2, 1, 2};
    (void)state;
    for (size_t d = 0; d < COUNT_OF(dtypes); d++) {
        world w;
        size_t bytes = COUNT * (dtypes[d] == FERRY_F32 ? 4 : 2);
        open_world(&w, &dp, FERRY_MIXED_ALL_GATHER, dtypes[d], MIXED_BITS);
        for (uint32_t k = 0; k < 4; k++) {
            memcpy((char *)w.out + k * bytes, w.in[rank_at(&w, 0, k)], bytes);
        }
        expect_right(&w, case_of(&w, 1), dp.name);
        mixed_case c = case_of(&w, 1);
        for (uint64_t i = 0; i < mixed_out_count(&c); i += 2) {
            store_raw(c.dtype, w.out, i, raw_at(c.dtype, w.out, i) ^ 1);
        }
        assert_int_equal(mixed_check(&c, w.out).n_wrong, 2 * COUNT);
        close_world(&w);
    }
}

/* ---- what is wrong ---- */

static void expect_one_wrong(world *w, mixed_case c, const char *name)
{
    uint64_t at = mixed_out_count(&c) - 3;
    uint32_t raw = raw_at(c.dtype, w->out, at);
    /* The next number; a NaN; what another sign makes. */
    uint32_t wrong[] = {raw ^ 1, 0x7fffffffu >> (c.dtype == FERRY_F32 ? 0 : 16), 0};
    wrong[2] = encode(c.dtype, -2 * decode(c.dtype, raw) - 1);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        store_raw(c.dtype, w->out, at, wrong[i]);
        mixed_verdict v = mixed_check(&c, w->out);
        check_at(v.n_wrong == 1 && v.first == at, "%s, op %u, type %u, wrong %zu: %llu, first %llu",
                 name, c.op, c.dtype, i, (unsigned long long)v.n_wrong,
                 (unsigned long long)v.first);
        check_at(v.want == decode(c.dtype, raw), "%s, op %u: want %g", name, c.op, v.want);
    }
}

static void test_one_wrong_integer_is_found(void **state)
{
    (void)state;
    visit_all(MIXED_INTEGERS, 0, expect_one_wrong);
}

static void expect_all_wrong(world *w, mixed_case c, const char *name)
{
    mixed_poison(&c, w->out);
    mixed_verdict v = mixed_check(&c, w->out);
    check_at(v.n_wrong == mixed_out_count(&c) && v.first == 0, "%s: %llu", name,
             (unsigned long long)v.n_wrong);
}

static void test_nothing_written_is_found(void **state)
{
    (void)state;
    visit_all(MIXED_INTEGERS, 0, expect_all_wrong);
    visit_all(MIXED_RANDOM, 1, expect_all_wrong);
}

/* As if the last rank had put in the numbers of another call. */
static void expect_lost_rank(world *w, mixed_case c, const char *name)
{
    mixed_case other = case_of(w, c.n_ranks - 1);
    other.seed++;
    mixed_fill(&other, w->in[other.rank]);
    compute(w, mixed_dp_rank(&c, c.rank), c.stages > 0);
    mixed_verdict v = mixed_check(&c, w->out);
    check_at(v.n_wrong > COUNT / 2, "%s, op %u, type %u: only %llu wrong", name, c.op, c.dtype,
             (unsigned long long)v.n_wrong);
    other.seed--;
    mixed_fill(&other, w->in[other.rank]);
}

static void test_other_input_is_found(void **state)
{
    (void)state;
    visit_all(MIXED_INTEGERS, 0, expect_lost_rank);
    visit_all(MIXED_RANDOM, 1, expect_lost_rank);
}

static void expect_chunks_in_order(world *w, mixed_case c, const char *name)
{
    size_t bytes = (size_t)COUNT * mixed_element_bytes(c.dtype);
    unsigned char *out = w->out, *kept = malloc(bytes);
    if (gathers(c.op)) {
        memcpy(kept, out, bytes);
        memcpy(out, out + bytes, bytes);
        memcpy(out + bytes, kept, bytes);
        check_at(mixed_check(&c, out).n_wrong > COUNT, "%s, op %u", name, c.op);
    }
    if (scatters(c.op)) { /* the chunk of the next rank */
        compute(w, (mixed_dp_rank(&c, c.rank) + 1) % w->dp, false);
        check_at(mixed_check(&c, out).n_wrong > COUNT / 2, "%s, op %u", name, c.op);
    }
    free(kept);
}

static void test_wrong_chunks_are_found(void **state)
{
    (void)state;
    visit_all(MIXED_INTEGERS, 0, expect_chunks_in_order);
}

/* Sums that were cut to four bits fewer than the type has. */
static void expect_coarse(world *w, mixed_case c, const char *name)
{
    int bits = (c.dtype == FERRY_F32 ? 24 : c.dtype == FERRY_F16 ? 11 : 8) - 4;
    uint64_t n = mixed_out_count(&c);
    if (c.n_ranks > 4) {
        return; /* the bound of many ranks is wider than that */
    }
    for (uint64_t i = 0; i < n; i++) {
        double value = decode(c.dtype, raw_at(c.dtype, w->out, i));
        store_raw(c.dtype, w->out, i, encode(c.dtype, round_to(value, bits, -14)));
    }
    check_at(mixed_check(&c, w->out).n_wrong > 0, "%s, op %u, type %u", name, c.op, c.dtype);
}

static void test_coarse_sums_are_found(void **state)
{
    (void)state;
    visit_all(MIXED_RANDOM, 0, expect_coarse);
}

/* ---- the rest ---- */

static void test_integers_stay_exact(void **state)
{
    static const uint32_t sizes[] = {1, 2, 7, 64, 256, 257, 1000, 5000};
    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        double values[BLOCK], most[BLOCK] = {0}, any = 0;
        mixed_case c = {.dtype = FERRY_BF16, .n_ranks = sizes[s], .local_size = sizes[s]};
        for (uint32_t rank = 0; rank < sizes[s]; rank++) {
            inputs(&c, rank, 1 << 20, BLOCK, values);
            for (uint32_t i = 0; i < BLOCK; i++) {
                most[i] += fabs(values[i]);
                any += fabs(values[i]);
            }
        }
        check_at(any > 0, "%u ranks: all are zero", sizes[s]);
        for (uint32_t i = 0; i < BLOCK; i++) {
            check_at(most[i] <= 256, "%u ranks: %g", sizes[s], most[i]);
        }
    }
}

static void test_digests(void **state)
{
    static const shape grid = {"tp 2 dp 2", 2, 2, 1, 1};
    world w;
    (void)state;
    open_world(&w, &grid, FERRY_MIXED_REDUCE_SCATTER_ALL_REDUCE, FERRY_F16, MIXED_RANDOM);
    compute(&w, 0, false);
    mixed_case c = case_of(&w, 0);
    uint64_t before = mixed_digest(&c, w.out);
    assert_true(before == mixed_digest(&c, w.out));
    store_raw(c.dtype, w.out, 700, raw_at(c.dtype, w.out, 700) ^ 1);
    assert_true(before != mixed_digest(&c, w.out));
    static const uint32_t in_group[] = {0, 0, 2, 2};
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(mixed_first_replica(&c, rank), in_group[rank]);
    }
    c.op = FERRY_MIXED_ALL_REDUCE_ALL_GATHER;
    assert_int_equal(mixed_first_replica(&c, 3), 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_results_pass),
        cmocka_unit_test(test_gathered_bits_pass),
        cmocka_unit_test(test_one_wrong_integer_is_found),
        cmocka_unit_test(test_nothing_written_is_found),
        cmocka_unit_test(test_other_input_is_found),
        cmocka_unit_test(test_wrong_chunks_are_found),
        cmocka_unit_test(test_coarse_sums_are_found),
        cmocka_unit_test(test_integers_stay_exact),
        cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
