/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Colourings of every small multigraph, and of random larger ones, are proper and have as few
 * rounds as promised.
 */
#include "schedule/colour.h"

#include "support/check.h"
#include "support/random.h"

#include <string.h>

enum { MOST_RANKS = 96, MOST_EDGES = 6000, MOST_ROUNDS = 2 * MOST_EDGES };

typedef struct graph {
    uint32_t n_ranks;
    uint32_t n_edges;
    uint32_t from[MOST_EDGES];
    uint32_t to[MOST_EDGES];
} graph;

static uint32_t largest_degree(const graph *g, bool half)
{
    uint32_t sends[MOST_RANKS] = {0}, recvs[MOST_RANKS] = {0}, most = 0;
    for (uint32_t e = 0; e < g->n_edges; e++) {
        sends[g->from[e]]++;
        recvs[g->to[e]]++;
    }
    for (uint32_t r = 0; r < g->n_ranks; r++) {
        uint32_t here = half ? sends[r] + recvs[r] : sends[r] > recvs[r] ? sends[r] : recvs[r];
        most = here > most ? here : most;
    }
    return most;
}

/* Whether a group of ranks has all edges to the others: by trying all groups. */
static bool is_two_sided(const graph *g)
{
    for (uint32_t group = 0; group < (uint32_t)1 << g->n_ranks; group++) {
        bool fits = true;
        for (uint32_t e = 0; e < g->n_edges && fits; e++) {
            fits = ((group >> g->from[e]) & 1) != ((group >> g->to[e]) & 1);
        }
        if (fits) {
            return true;
        }
    }
    return false;
}

/* seen: a byte per rank, direction and round. */
static void expect_proper(const graph *g, bool half, const uint32_t *round, uint32_t n_rounds)
{
    static uint8_t seen[2 * MOST_RANKS][MOST_ROUNDS];
    for (uint32_t r = 0; r < 2 * g->n_ranks; r++) {
        memset(seen[r], 0, n_rounds);
    }
    for (uint32_t e = 0; e < g->n_edges; e++) {
        assert_true(round[e] < n_rounds);
        uint32_t to = g->to[e] + (half ? 0 : g->n_ranks);
        assert_int_equal(seen[g->from[e]][round[e]]++, 0);
        assert_int_equal(seen[to][round[e]]++, 0);
    }
}

static void check_graph(graph *g, bool half)
{
    static uint32_t round[MOST_EDGES];
    uint32_t degree = largest_degree(g, half);
    fy_edges edges = {g->n_ranks, 77, g->n_edges, g->from, g->to, round};
    ferry_error error;
    must(fy_colour_batches(&edges, half ? FERRY_DUPLEX_HALF : FERRY_DUPLEX_FULL, &error), &error);
    uint32_t n_rounds = edges.n_rounds;
    expect_proper(g, half, round, n_rounds);
    if (!half) {
        assert_int_equal(n_rounds, degree);
    } else {
        assert_true(n_rounds >= degree && n_rounds <= degree * 3 / 2);
        if (g->n_ranks <= 5 && is_two_sided(g)) {
            assert_int_equal(n_rounds, degree);
        }
    }
}

/* Every matrix of multiplicities up to most, of which entry i is digit i of a number. */
static void check_all(uint32_t n_ranks, uint32_t most, bool half)
{
    uint32_t n = n_ranks * n_ranks, count = 1;
    for (uint32_t i = 0; i < n; i++) {
        count *= most + 1;
    }
    for (uint32_t number = 0; number < count; number++) {
        static graph g;
        uint32_t digits = number;
        bool loops = false;
        g.n_ranks = n_ranks;
        g.n_edges = 0;
        for (uint32_t i = 0; i < n; i++, digits /= most + 1) {
            loops = loops || (digits % (most + 1) > 0 && i / n_ranks == i % n_ranks);
            for (uint32_t k = digits % (most + 1); k > 0; k--) {
                g.from[g.n_edges] = i / n_ranks;
                g.to[g.n_edges++] = i % n_ranks;
            }
        }
        if (!half || !loops) {
            check_graph(&g, half);
        }
    }
}

static void test_small_full_duplex(void **state)
{
    (void)state;
    check_all(1, 5, false);
    check_all(2, 4, false);
    check_all(3, 2, false);
    check_all(4, 1, false);
}

static void test_small_half_duplex(void **state)
{
    (void)state;
    check_all(2, 4, true);
    check_all(3, 2, true);
    check_all(4, 1, true);
}

/* Skewed, with few or many parallel edges. */
static void make_random(graph *g, uint64_t *random, bool half)
{
    g->n_ranks = 2 + random_below(random, MOST_RANKS - 1);
    g->n_edges = random_below(random, MOST_EDGES + 1);
    uint32_t hot = 1 + random_below(random, g->n_ranks);
    uint32_t skew = random_below(random, 4);
    for (uint32_t e = 0; e < g->n_edges; e++) {
        do {
            bool to_hot = random_below(random, 4) < skew;
            g->from[e] = random_below(random, g->n_ranks);
            g->to[e] = random_below(random, to_hot ? hot : g->n_ranks);
        } while (half && g->from[e] == g->to[e]);
    }
}

static void test_random_graphs(void **state)
{
    (void)state;
    static graph g;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        uint64_t random = seed;
        bool half = seed % 2 == 0;
        make_random(&g, &random, half);
        check_graph(&g, half);
    }
}

/* Three ranks with equally many edges between any two need 3/2 of the degree. */
static void test_shannon_triangle(void **state)
{
    (void)state;
    static graph g = {.n_ranks = 3};
    uint32_t round[MOST_EDGES];
    ferry_error error;
    for (uint32_t k = 0; k < 40; k++) {
        for (uint32_t i = 0; i < 3; i++) {
            g.from[g.n_edges] = i;
            g.to[g.n_edges++] = (i + 1) % 3;
        }
    }
    fy_edges edges = {3, 0, g.n_edges, g.from, g.to, round};
    must(fy_colour_general(&edges, &error), &error);
    assert_int_equal(edges.n_rounds, 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_full_duplex),
        cmocka_unit_test(test_small_half_duplex),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_shannon_triangle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
