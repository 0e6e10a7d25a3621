/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The least possible level of the busiest server is the largest of demand / rate over all groups of
 * servers, a group's demand being that of the sets that lie wholly inside. For a handful of servers
 * all groups can be tried.
 */
#include "plan/balance.h"

#include "support/check.h"
#include "support/random.h"

#include <math.h>
#include <stdio.h>

enum { MOST_SERVERS = 7, MOST_SETS = 12, MOST_MEMBERS = MOST_SERVERS * MOST_SETS };

/* Doubles add up in some order. */
static const double NOISE = 1e-9;
/* How far the shares may be from the exact level, which the solver keeps even shares for. */
static const double SLACK = 1.002;

typedef struct problem {
    size_t n_servers, n_sets;
    double rate[MOST_SERVERS];
    bool has_rates;
    uint32_t set[MOST_SETS]; /* bits of servers */
    double demand[MOST_SETS];
    /* as the solver takes it */
    size_t member_begin[MOST_SETS + 1];
    uint32_t members[MOST_MEMBERS];
    double share[MOST_MEMBERS];
    double load[MOST_SERVERS];
} problem;

static double group_level(const problem *p, uint32_t group)
{
    double demand = 0, rate = 0;
    for (size_t s = 0; s < p->n_sets; s++) {
        demand += (p->set[s] & ~group) == 0 ? p->demand[s] : 0;
    }
    for (size_t i = 0; i < p->n_servers; i++) {
        rate += (group >> i & 1) != 0 ? (p->has_rates ? p->rate[i] : 1) : 0;
    }
    return demand / rate;
}

static double best_level(const problem *p)
{
    double best = 0;
    for (uint32_t group = 1; group < 1u << p->n_servers; group++) {
        best = fmax(best, group_level(p, group));
    }
    return best;
}

/* Nobody can relieve a server that lies in a group whose level is the optimum. */
static bool is_tight(const problem *p, uint32_t server, double level)
{
    for (uint32_t group = 1; group < 1u << p->n_servers; group++) {
        if ((group >> server & 1) != 0 && group_level(p, group) >= level * (1 - NOISE)) {
            return true;
        }
    }
    return false;
}

static void solve(problem *p, fy_balance *b)
{
    size_t n = 0;
    for (size_t s = 0; s < p->n_sets; s++) {
        p->member_begin[s] = n;
        for (uint32_t i = 0; i < p->n_servers; i++) {
            if ((p->set[s] >> i & 1) != 0) {
                p->members[n++] = i;
            }
        }
    }
    p->member_begin[p->n_sets] = n;
    *b = (fy_balance){.n_servers = p->n_servers,
                      .rate = p->has_rates ? p->rate : NULL,
                      .n_sets = p->n_sets,
                      .member_begin = p->member_begin,
                      .members = p->members,
                      .demand = p->demand,
                      .share = p->share,
                      .load = p->load};
    ferry_error error;
    must(fy_balance_solve(b, &error), &error);
}

/* Shares are a way to serve every demand, and loads are their sums, as exact as the total allows.
 */
static void check_shares(const problem *p, const fy_balance *b, const char *row)
{
    double load[MOST_SERVERS] = {0}, total = 0;
    for (size_t s = 0; s < p->n_sets; s++) {
        total += p->demand[s];
    }
    for (size_t s = 0; s < p->n_sets; s++) {
        double served = 0;
        for (size_t i = p->member_begin[s]; i < p->member_begin[s + 1]; i++) {
            check_row(row, p->share[i] >= 0);
            served += p->share[i];
            load[p->members[i]] += p->share[i];
        }
        check_row(row, fabs(served - p->demand[s]) <= NOISE * total);
    }
    double highest = 0;
    for (size_t i = 0; i < p->n_servers; i++) {
        highest = fmax(highest, load[i] / (p->has_rates ? p->rate[i] : 1));
    }
    for (size_t i = 0; i < p->n_servers; i++) {
        check_row(row, fabs(load[i] - p->load[i]) <= NOISE * total);
    }
    check_row(row, highest <= b->level * SLACK * (1 + NOISE));
}

static void check_problem(problem *p, const char *row)
{
    fy_balance b;
    solve(p, &b);
    double exact = best_level(p);
    if (fabs(b.level - exact) > NOISE * exact) {
        fail_msg("row \"%s\": level %.17g, not %.17g", row, b.level, exact);
    }
    check_shares(p, &b, row);
    check_row(row, b.server < p->n_servers);
    check_row(row, is_tight(p, b.server, exact));
}

static const struct {
    const char *name;
    problem problem;
    double level;
} balance_rows[] = {
    {"one server", {.n_servers = 1, .n_sets = 1, .set = {1}, .demand = {5}}, 5},
    {"two alike", {.n_servers = 2, .n_sets = 1, .set = {3}, .demand = {5}}, 2.5},
    {"no sets", {.n_servers = 3, .n_sets = 0}, 0},
    {"no demand", {.n_servers = 2, .n_sets = 2, .set = {1, 3}, .demand = {0, 0}}, 0},
    {"own work first", {.n_servers = 2, .n_sets = 2, .set = {1, 3}, .demand = {4, 2}}, 4},
    {"own work, then even", {.n_servers = 2, .n_sets = 2, .set = {1, 3}, .demand = {4, 6}}, 5},
    {"a chain", {.n_servers = 3, .n_sets = 3, .set = {1, 3, 6}, .demand = {6, 3, 3}}, 6},
    {"a chain that evens out",
     {.n_servers = 3, .n_sets = 3, .set = {1, 3, 6}, .demand = {6, 6, 6}},
     6},
    {"rates",
     {.n_servers = 2, .n_sets = 1, .set = {3}, .demand = {8}, .has_rates = true, .rate = {3, 1}},
     2},
    {"a slow owner",
     {.n_servers = 2,
      .n_sets = 2,
      .set = {2, 3},
      .demand = {4, 4},
      .has_rates = true,
      .rate = {4, 1}},
     4},
    {"two halves", {.n_servers = 4, .n_sets = 3, .set = {3, 12, 15}, .demand = {10, 2, 2}}, 5},
    {"a ring", {.n_servers = 3, .n_sets = 3, .set = {3, 6, 5}, .demand = {1, 2, 3}}, 2},
    {"the long way round",
     {.n_servers = 5, .n_sets = 5, .set = {1, 3, 6, 12, 24}, .demand = {10, 9, 8, 7, 1}},
     10},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(balance_rows); i++) {
        problem p = balance_rows[i].problem;
        check_problem(&p, balance_rows[i].name);
        check_row(balance_rows[i].name,
                  fabs(best_level(&p) - balance_rows[i].level) <= NOISE * balance_rows[i].level);
    }
}

static void test_no_servers(void **state)
{
    (void)state;
    problem p = {.n_servers = 0};
    fy_balance b;
    solve(&p, &b);
    assert_true(b.level == 0);
}

/* Demands and rates of one size, of very different sizes, and zero. */
static double random_amount(uint64_t *seed, uint32_t kind)
{
    switch (kind) {
    case 0:
        return 1 + random_below(seed, 4);
    case 1:
        return random_below(seed, 3) == 0 ? 0 : random_below(seed, 1000);
    default:
        return ldexp(1 + random_below(seed, 1000), (int)random_below(seed, 31));
    }
}

static void random_problem(uint64_t *seed, problem *p)
{
    uint32_t kind = random_below(seed, 3);
    *p = (problem){.n_servers = random_below(seed, MOST_SERVERS) + 1,
                   .n_sets = random_below(seed, MOST_SETS) + 1,
                   .has_rates = random_below(seed, 2) == 1};
    for (size_t i = 0; i < p->n_servers; i++) {
        p->rate[i] = random_below(seed, 2) == 0 ? 1 + random_below(seed, 3)
                                                : ldexp(1, (int)random_below(seed, 12) - 6);
    }
    uint32_t narrow = random_below(seed, 2);
    for (size_t s = 0; s < p->n_sets; s++) {
        uint32_t any = random_below(seed, (1u << p->n_servers) - 1) + 1;
        uint32_t two = 1u << random_below(seed, (uint32_t)p->n_servers);
        two |= 1u << random_below(seed, (uint32_t)p->n_servers);
        p->set[s] = narrow == 1 ? two : any;
        p->demand[s] = random_amount(seed, kind);
    }
}

static void test_random_problems(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 30000; i++) {
        char row[32];
        problem p;
        snprintf(row, sizeof row, "seed %llu", (unsigned long long)seed);
        random_problem(&seed, &p);
        check_problem(&p, row);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_no_servers),
        cmocka_unit_test(test_random_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
