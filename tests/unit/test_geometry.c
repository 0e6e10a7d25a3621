/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "collective/geometry.h"

#include "support/check.h"
#include "support/random.h"

static const uint32_t element_sizes[] = {1, 2, 4, 8, 16, 32, 64};

/* A case, with what its limits come to. */
typedef struct cut_case {
    fy_geometry_limits limits;
    uint64_t n_elements;
    uint32_t line_elements;
    uint64_t n_lines;
    uint64_t least, most; /* lines of a block, each bounded by the other */
    fy_geometry geometry;
} cut_case;

#define check_cut(c, condition)                                                                    \
    check_at(condition,                                                                            \
             "%llu elements of %u a line; %u lanes, blocks of at most %u and %u lines, at least "  \
             "%u, in %u steps: %u lanes of %llu, blocks of %llu",                                  \
             (unsigned long long)(c)->n_elements, (c)->line_elements, (c)->limits.n_lanes,         \
             (c)->limits.most_lines, (c)->limits.max_lines, (c)->limits.min_lines,                 \
             (c)->limits.min_steps, (c)->geometry.n_lanes,                                         \
             (unsigned long long)(c)->geometry.lane_elements,                                      \
             (unsigned long long)(c)->geometry.block_elements)

static cut_case make_case(const fy_geometry_limits *limits, uint64_t n_elements,
                          uint32_t element_bytes)
{
    cut_case c = {.limits = *limits, .n_elements = n_elements};
    c.geometry = fy_geometry_of(limits, n_elements, element_bytes);

    c.line_elements = 64 / element_bytes;
    c.n_lines = (n_elements - 1) / c.line_elements + 1;

    c.most = limits->most_lines;
    if (limits->max_lines != 0 && limits->max_lines < limits->most_lines) {
        c.most = limits->max_lines;
    }
    c.least = limits->min_lines == 0 ? 1 : limits->min_lines;
    if (c.least > c.most) {
        c.least = c.most;
    }
    return c;
}

/* One lane's range: it goes on where the one before has ended, and is equal but for the last. */
static void check_lane(const cut_case *c, uint32_t lane)
{
    const fy_geometry *g = &c->geometry;
    uint64_t begin = fy_geometry_lane_begin(g, lane);
    uint64_t length = fy_geometry_lane_length(g, lane);
    uint64_t steps = fy_geometry_lane_steps(g, lane);
    uint64_t end = begin + length;
    bool last = lane + 1 == g->n_lanes;
    check_cut(c, length > 0 && begin % c->line_elements == 0);
    check_cut(c, end == (last ? c->n_elements : fy_geometry_lane_begin(g, lane + 1)));
    check_cut(c, last ? length <= g->lane_elements : length == g->lane_elements);
    check_cut(c, steps >= 1 && (steps - 1) * g->block_elements < length);
    check_cut(c, length - (steps - 1) * g->block_elements <= g->block_elements);
}

static void check_lanes(const cut_case *c)
{
    const fy_geometry *g = &c->geometry;
    check_cut(c, g->n_elements == c->n_elements);
    check_cut(c, g->lane_elements % c->line_elements == 0);
    check_cut(c, fy_geometry_lane_begin(g, 0) == 0);
    for (uint32_t lane = 0; lane < g->n_lanes; lane++) {
        check_lane(c, lane);
        if (g->n_lanes > 64 && lane == 20) {
            lane = g->n_lanes - 20;
        }
    }
    const uint32_t idle[] = {g->n_lanes, UINT32_MAX};
    for (size_t i = 0; i < COUNT_OF(idle); i++) {
        check_cut(c, fy_geometry_lane_begin(g, idle[i]) == 0);
        check_cut(c, fy_geometry_lane_length(g, idle[i]) == 0);
        check_cut(c, fy_geometry_lane_steps(g, idle[i]) == 0);
    }
}

/* As many as have enough lines, in equal ranges of whole lines; those left without one are none. */
static void check_lane_count(const cut_case *c)
{
    const fy_geometry *g = &c->geometry;
    uint64_t lines = g->lane_elements / c->line_elements;
    uint64_t most = c->n_lines / c->least;
    if (most > c->limits.n_lanes) {
        most = c->limits.n_lanes;
    }
    if (most == 0) {
        most = 1;
    }
    check_cut(c, g->n_lanes >= 1 && g->n_lanes <= most);
    check_cut(c, g->n_lanes == 1 || lines >= c->least);
    check_cut(c, lines * most >= c->n_lines && (lines - 1) * most < c->n_lines);
    check_cut(c, lines * g->n_lanes >= c->n_lines && lines * (g->n_lanes - 1) < c->n_lines);
}

static void check_blocks(const cut_case *c)
{
    const fy_geometry *g = &c->geometry;
    uint64_t lines = g->lane_elements / c->line_elements;
    uint64_t block = g->block_elements / c->line_elements;
    uint64_t steps = fy_geometry_lane_steps(g, 0);
    uint64_t wanted = c->limits.min_steps == 0 ? 1 : c->limits.min_steps;
    check_cut(c, block >= 1 && g->block_elements % c->line_elements == 0);
    check_cut(c, block <= c->limits.most_lines);
    check_cut(c, c->limits.max_lines == 0 || block <= c->limits.max_lines);
    if (lines <= c->limits.min_lines && lines <= c->most) {
        check_cut(c, steps == 1);
        return;
    }
    check_cut(c, steps == 1 || block >= c->least);
    check_cut(c, block < c->most || c->least == c->most || steps >= wanted);
    /* No further from the quotient than rounding, but for the limits. */
    check_cut(c, block == c->least || (block - 1) * wanted < lines);
    check_cut(c, block == c->most || (block + 1) * wanted > lines);
}

static void check_case(const fy_geometry_limits *limits, uint64_t n_elements,
                       uint32_t element_bytes)
{
    cut_case c = make_case(limits, n_elements, element_bytes);
    check_lanes(&c);
    check_lane_count(&c);
    check_blocks(&c);
}

/* Lines of one element: everything small. */
static void test_all_small(void **state)
{
    (void)state;
    enum { LANES = 5, MOST = 6, LEAST = 8, STEPS = 6, LINES = 40 };
    for (uint32_t i = 0; i < LANES * MOST * (MOST + 1) * LEAST * STEPS; i++) {
        uint32_t rest = i;
        fy_geometry_limits limits;
        limits.n_lanes = 1 + rest % LANES;
        rest = rest / LANES;
        limits.most_lines = 1 + rest % MOST;
        rest = rest / MOST;
        limits.max_lines = rest % (MOST + 1);
        rest = rest / (MOST + 1);
        limits.min_lines = rest % LEAST;
        limits.min_steps = rest / LEAST;
        for (uint64_t lines = 1; lines <= LINES; lines++) {
            check_case(&limits, lines, 64);
        }
    }
}

/* Lines of several elements, of which the last one is not full. */
static void test_all_tails(void **state)
{
    (void)state;
    for (size_t size = 0; size < COUNT_OF(element_sizes); size++) {
        for (uint32_t lanes = 1; lanes <= 4; lanes++) {
            for (uint32_t least = 0; least <= 3; least++) {
                fy_geometry_limits limits = {lanes, 3, 0, least, 4};
                for (uint64_t n = 1; n <= 700; n++) {
                    check_case(&limits, n, element_sizes[size]);
                }
            }
        }
    }
}

/* Of any magnitude below 2^bits, and not 0. */
static uint64_t magnitude(uint64_t *random, uint32_t bits)
{
    uint64_t value = random_u64(random) >> (64 - 1 - random_below(random, bits));
    return value == 0 ? 1 : value;
}

static void check_random(uint64_t seed, uint32_t element_bits)
{
    uint64_t random = seed;
    fy_geometry_limits limits;
    limits.n_lanes = (uint32_t)magnitude(&random, 12);
    limits.most_lines = (uint32_t)magnitude(&random, 20);
    limits.max_lines = random_below(&random, 2) == 0 ? 0 : (uint32_t)magnitude(&random, 20);
    limits.min_lines = random_below(&random, 2) == 0 ? 256 : (uint32_t)magnitude(&random, 14) - 1;
    limits.min_steps = random_below(&random, 2) == 0 ? 4 : (uint32_t)magnitude(&random, 10) - 1;
    if (random_below(&random, 20) == 0) {
        limits.n_lanes = UINT32_MAX;
    }
    if (random_below(&random, 20) == 0) {
        limits.min_lines = limits.min_steps = UINT32_MAX;
    }
    uint32_t element_bytes = element_sizes[random_below(&random, COUNT_OF(element_sizes))];
    check_case(&limits, magnitude(&random, element_bits), element_bytes);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200000; seed++) {
        check_random(seed, seed % 2 == 0 ? 30 : 61);
    }
}

/* Each of the fields at its ends, for messages at the end of what there can be. */
static void test_extremes(void **state)
{
    (void)state;
    const uint32_t ends[] = {1, 2, 3, 255, UINT32_MAX - 1, UINT32_MAX};
    const uint64_t sizes[] = {1,
                              ((uint64_t)1 << 32) - 1,
                              ((uint64_t)1 << 32) + 1,
                              ((uint64_t)1 << 60) - 1,
                              (uint64_t)1 << 60,
                              ((uint64_t)1 << 60) + 1};
    enum { N = COUNT_OF(ends) };
    for (uint32_t i = 0; i < N * N * N * N * N; i++) {
        fy_geometry_limits limits = {ends[i % N], ends[i / N % N],
                                     ends[i / N / N % N] == 3 ? 0 : ends[i / N / N % N],
                                     ends[i / N / N / N % N], ends[i / N / N / N / N]};
        for (size_t size = 0; size < COUNT_OF(sizes); size++) {
            check_case(&limits, sizes[size], element_sizes[i % COUNT_OF(element_sizes)]);
        }
    }
}

/* By hand, of bf16: 32 elements a line. Blocks are 256 lines or more, in four steps or more. */
static const struct by_hand {
    const char *name;
    uint32_t n_lanes, most_lines, max_lines;
    uint64_t n_elements;
    uint32_t lanes;
    uint64_t lane_lines, block_lines, steps, last_steps;
} by_hand[] = {
    {"one element", 8, 4096, 0, 1, 1, 1, 1, 1, 1},
    {"8 KiB", 8, 4096, 0, 4096, 1, 128, 128, 1, 1},
    {"16 KiB is one block", 8, 4096, 0, 8192, 1, 256, 256, 1, 1},
    {"an element more", 8, 4096, 0, 8193, 1, 257, 256, 2, 2},
    {"32 KiB are two lanes", 8, 4096, 0, 16384, 2, 256, 256, 1, 1},
    {"a lane of two steps", 1, 4096, 0, 16384, 1, 512, 256, 2, 2},
    {"four steps", 1, 4096, 0, 65536, 1, 2048, 512, 4, 4},
    {"four steps, the last shorter", 1, 4096, 0, 65600, 1, 2050, 513, 4, 4},
    {"more than four of the largest", 1, 512, 0, 81920, 1, 2560, 512, 5, 5},
    {"the caller's limit", 1, 4096, 300, 65536, 1, 2048, 300, 7, 7},
    {"a limit below the least", 1, 4096, 64, 8192, 1, 256, 64, 4, 4},
    {"a limit below the least, lanes", 8, 4096, 64, 8192, 4, 64, 64, 1, 1},
    {"slots of one line", 2, 1, 0, 320, 2, 5, 1, 5, 5},
    {"ranges differ", 3, 4096, 0, 32000, 3, 334, 256, 2, 2},
    {"the last lane is short", 4, 4096, 300, 4 * 32 * 256 + 32, 4, 257, 256, 2, 1},
    {"64 MiB", 2, 4096, 0, 33554432, 2, 524288, 4096, 128, 128},
};

static void test_by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(by_hand); i++) {
        const struct by_hand *row = &by_hand[i];
        fy_geometry_limits limits = {row->n_lanes, row->most_lines, row->max_lines, 256, 4};
        fy_geometry g = fy_geometry_of(&limits, row->n_elements, 2);
        check_row(row->name, g.n_lanes == row->lanes);
        check_row(row->name, g.lane_elements == row->lane_lines * 32);
        check_row(row->name, g.block_elements == row->block_lines * 32);
        check_row(row->name, fy_geometry_lane_steps(&g, 0) == row->steps);
        check_row(row->name, fy_geometry_lane_steps(&g, g.n_lanes - 1) == row->last_steps);
    }
}

#define check_parts(condition)                                                                     \
    check_at(condition, "%llu elements in %u parts, %u a line", (unsigned long long)n_elements, n, \
             line_elements)

/* All parts, or of very many the first and the last ones. Returns the longest. */
static uint64_t check_parts_of(uint64_t n_elements, uint32_t n, uint32_t line_elements)
{
    uint64_t longest = 0, next = 0, lines = n_elements / line_elements;
    uint64_t first = fy_mix_part_of(n_elements, n, 0, line_elements).length;
    lines += n_elements % line_elements != 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n > 200 && i == 100) {
            i = n - 100;
            next = fy_mix_part_of(n_elements, n, i, line_elements).begin;
            check_parts(next <= n_elements);
        }
        fy_mix_span part = fy_mix_part_of(n_elements, n, i, line_elements);
        check_parts(part.begin == next && part.length <= n_elements - next);
        check_parts(part.length == 0 || part.begin == i * first);
        next += part.length;
        check_parts(part.length == first || next == n_elements);
        longest = part.length > longest ? part.length : longest;
    }
    check_parts(next == n_elements);
    check_parts(n == 1 || first % line_elements == 0 || first == n_elements);
    check_parts(lines == 0 ? first == 0 : (lines - 1) / n == (first - 1) / line_elements);
    return longest;
}

static void test_parts(void **state)
{
    (void)state;
    const uint32_t lines[] = {1, 4, 16, 32};
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        for (uint32_t n = 1; n <= 70; n++) {
            uint64_t before = 0;
            for (uint64_t n_elements = 0; n_elements <= 300; n_elements++) {
                uint64_t longest = check_parts_of(n_elements, n, lines[i]);
                check_at(longest == fy_mix_part_longest(n_elements, n, lines[i]),
                         "%llu elements in %u parts", (unsigned long long)n_elements, n);
                /* What has room for a block has room for a shorter one. */
                check_at(longest >= before, "%llu elements in %u parts",
                         (unsigned long long)n_elements, n);
                before = longest;
            }
        }
    }
}

static void test_large_parts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        uint64_t random = seed;
        uint64_t n_elements = magnitude(&random, 61);
        uint32_t n = (uint32_t)magnitude(&random, 20);
        uint32_t line = 64 / element_sizes[random_below(&random, COUNT_OF(element_sizes))];
        check_at(check_parts_of(n_elements, n, line) == fy_mix_part_longest(n_elements, n, line),
                 "seed %llu", (unsigned long long)seed);
    }
    check_parts_of((uint64_t)1 << 60, UINT32_MAX, 32);
    check_parts_of(1, UINT32_MAX, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_small),   cmocka_unit_test(test_all_tails),
        cmocka_unit_test(test_random),      cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_parts),
        cmocka_unit_test(test_large_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
