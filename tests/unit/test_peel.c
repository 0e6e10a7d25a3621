/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Peeling of random matrices: rounds are matchings, what is served adds up, and the rounds' lengths
 * and what is left never exceed the largest load together; with unit grains nothing is left.
 */
#include "schedule/match.h"
#include "schedule/peel.h"

#include "support/check.h"
#include "support/random.h"

#include <string.h>

enum { MOST_SIDE = 24, MOST_EDGES = 400, MOST_ROUNDS = 100000 };

typedef struct matrix {
    uint32_t n_left, n_right, n_edges;
    uint32_t left[MOST_EDGES], right[MOST_EDGES];
    uint64_t whole[MOST_EDGES], rest[MOST_EDGES], served[MOST_EDGES];
    uint64_t load[2 * MOST_SIDE];
    uint64_t cap; /* the most of a take */
    uint64_t length[MOST_ROUNDS];
    uint32_t left_round[MOST_SIDE], right_round[MOST_SIDE]; /* the last round of a port, + 1 */
    uint32_t n_rounds;
    uint64_t before[MOST_EDGES]; /* what was left of each edge when the last round began */
} matrix;

/* No port stands still in a round for which something is left at a port that does so too. */
static void check_round_is_full(const matrix *m)
{
    for (uint32_t e = 0; m->n_rounds > 0 && e < m->n_edges; e++) {
        check_at(m->before[e] == 0 || m->left_round[m->left[e]] == m->n_rounds ||
                     m->right_round[m->right[e]] == m->n_rounds,
                 "round %u, edge %u", m->n_rounds - 1, e);
    }
}

static uint64_t avail(void *context, uint32_t edge)
{
    const matrix *m = context;
    return m->rest[edge] < m->cap ? m->rest[edge] : m->cap;
}

static ferry_status take(void *context, uint32_t edge, uint32_t round, uint64_t duration,
                         uint64_t *taken_out, ferry_error *error)
{
    matrix *m = context;
    uint64_t taken = avail(m, edge) < duration ? avail(m, edge) : duration;
    (void)error;
    assert_true(round < MOST_ROUNDS);
    if (round + 1 != m->n_rounds) {
        check_round_is_full(m);
        memcpy(m->before, m->rest, sizeof m->before);
        m->n_rounds = round + 1;
    }
    assert_true(m->left_round[m->left[edge]] <= round);
    assert_true(m->right_round[m->right[edge]] <= round);
    m->left_round[m->left[edge]] = round + 1;
    m->right_round[m->right[edge]] = round + 1;
    m->rest[edge] -= taken;
    m->served[edge] += taken;
    m->length[round] = taken > m->length[round] ? taken : m->length[round];
    *taken_out = taken;
    return FERRY_OK;
}

static void make_random(matrix *m, uint64_t *random)
{
    memset(m, 0, sizeof *m);
    m->n_left = 1 + random_below(random, MOST_SIDE);
    m->n_right = 1 + random_below(random, MOST_SIDE);
    m->n_edges = 1 + random_below(random, MOST_EDGES);
    m->cap = random_below(random, 3) == 0 ? 50 + random_below(random, 500) : UINT64_MAX;
    for (uint32_t e = 0; e < m->n_edges; e++) {
        m->left[e] = random_below(random, m->n_left);
        m->right[e] = random_below(random, m->n_right);
        m->whole[e] = 1 + random_below(random, 1u << random_below(random, 14));
        m->rest[e] = m->whole[e];
        m->load[m->left[e]] += m->whole[e];
        m->load[m->n_left + m->right[e]] += m->whole[e];
    }
}

static uint64_t largest_load(const matrix *m)
{
    uint64_t most = 0;
    for (uint32_t v = 0; v < m->n_left + m->n_right; v++) {
        most = m->load[v] > most ? m->load[v] : most;
    }
    return most;
}

static void check_seed(uint64_t seed, bool to_the_end)
{
    static matrix m;
    uint64_t random = seed, sum = 0;
    uint32_t end = 0;
    ferry_error error;
    make_random(&m, &random);
    uint64_t most = largest_load(&m);
    fy_peel peel = {.n_left = m.n_left,
                    .n_right = m.n_right,
                    .n_edges = m.n_edges,
                    .left = m.left,
                    .right = m.right,
                    .rest = m.rest,
                    .load = m.load,
                    .grain = 1,
                    .leftovers = to_the_end ? 0 : most / 64,
                    .shortest = 1,
                    .context = &m,
                    .avail = avail,
                    .take = take};
    must(fy_peel_run(&peel, 0, &end, &error), &error);
    check_round_is_full(&m);
    for (uint32_t round = 0; round < end; round++) {
        check_at(m.length[round] > 0, "seed %llu, round %u", (unsigned long long)seed, round);
        sum += m.length[round];
    }
    for (uint32_t e = 0; e < m.n_edges; e++) {
        check_at(m.served[e] + m.rest[e] == m.whole[e], "seed %llu, edge %u",
                 (unsigned long long)seed, e);
        check_at(!to_the_end || m.rest[e] == 0, "seed %llu, edge %u", (unsigned long long)seed, e);
    }
    check_at(sum + largest_load(&m) <= most, "seed %llu", (unsigned long long)seed);
    check_at(to_the_end || largest_load(&m) <= most / 64, "seed %llu", (unsigned long long)seed);
}

static void test_reaches_the_load(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        check_seed(seed, true);
        check_seed(seed, false);
    }
}

/* Graphs as bit masks of edges: a maximum matching by trying all. */
static uint32_t most_matched(uint32_t edges, uint32_t n, uint32_t row, uint32_t taken)
{
    if (row == n) {
        return 0;
    }
    uint32_t best = most_matched(edges, n, row + 1, taken);
    for (uint32_t column = 0; column < n; column++) {
        bool linked = ((edges >> (row * n + column)) & 1) != 0;
        if (linked && ((taken >> column) & 1) == 0) {
            uint32_t here = 1 + most_matched(edges, n, row + 1, taken | 1u << column);
            best = here > best ? here : best;
        }
    }
    return best;
}

static bool yes(void *context, uint32_t number)
{
    (void)context;
    (void)number;
    return true;
}

static bool no(void *context, uint32_t number)
{
    (void)context;
    (void)number;
    return false;
}

static void test_all_matchings(void **state)
{
    (void)state;
    enum { N = 4 };
    for (uint32_t edges = 0; edges < 1u << (N * N); edges += 3) {
        uint32_t left[N * N], right[N * N], n = 0, matched = 0;
        fy_match match;
        ferry_error error;
        for (uint32_t i = 0; i < N * N; i++) {
            if (((edges >> i) & 1) != 0) {
                left[n] = i / N;
                right[n++] = i % N;
            }
        }
        must(fy_match_init(&match, N, N, n, left, right, &error), &error);
        match.usable = yes;
        match.spent = no;
        match.critical = yes;
        for (uint32_t v = 0; v < N; v++) {
            matched += fy_match_cover(&match, v);
        }
        check_at(matched == most_matched(edges, N, 0, 0), "edges %x", edges);
        fy_match_cleanup(&match);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reaches_the_load),
        cmocka_unit_test(test_all_matchings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
