/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "plan/balance.h"

#include "base/alloc.h"
#include "base/sort.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Two levels that differ by less than this, relatively, are one level: doubles add up in some
 * order. */
static const double SAME_LEVEL = 1e-9;
/* Shares this close to the optimum are good enough to keep their evenness. */
static const double GOOD_ENOUGH = 1.002;
enum { MAX_SWEEPS = 40 };

static double rate_of(const fy_balance *b, uint32_t server)
{
    return b->rate == NULL ? 1.0 : b->rate[server];
}

static double level_of(const fy_balance *b, uint32_t server)
{
    return b->load[server] / rate_of(b, server);
}

/* Each member takes its part of the demand by rate: the optimum already where sets are alike. */
static void share_evenly(fy_balance *b)
{
    memset(b->load, 0, b->n_servers * sizeof *b->load);
    for (size_t s = 0; s < b->n_sets; s++) {
        double total = 0;
        for (size_t i = b->member_begin[s]; i < b->member_begin[s + 1]; i++) {
            total += rate_of(b, b->members[i]);
        }
        for (size_t i = b->member_begin[s]; i < b->member_begin[s + 1]; i++) {
            b->share[i] = b->demand[s] * rate_of(b, b->members[i]) / total;
            b->load[b->members[i]] += b->share[i];
        }
    }
}

typedef struct leveled {
    double level;
    uint32_t number; /* a server, a set or a member */
} leveled;

static int compare_descending(const void *a, const void *b)
{
    const leveled *x = a, *y = b;
    if (x->level != y->level) {
        return x->level > y->level ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

static int compare_ascending(const void *a, const void *b)
{
    return -compare_descending(a, b);
}

/*
 * The best cut whose group is "all servers at or above some level". At the optimum of the sum of
 * squares the top group proves the optimum, so the gap between it and the highest level says how
 * far we are.
 */
static double best_level_cut(const fy_balance *b, leveled *servers, leveled *sets,
                             uint32_t *server_out)
{
    for (size_t i = 0; i < b->n_servers; i++) {
        servers[i] = (leveled){.level = level_of(b, (uint32_t)i), .number = (uint32_t)i};
    }
    for (size_t s = 0; s < b->n_sets; s++) {
        double lowest = level_of(b, b->members[b->member_begin[s]]);
        for (size_t i = b->member_begin[s]; i < b->member_begin[s + 1]; i++) {
            double level = level_of(b, b->members[i]);
            lowest = level < lowest ? level : lowest;
        }
        sets[s] = (leveled){.level = lowest, .number = (uint32_t)s};
    }
    fy_sort(servers, b->n_servers, sizeof *servers, compare_descending);
    fy_sort(sets, b->n_sets, sizeof *sets, compare_descending);
    double rate = 0, demand = 0, best = 0;
    size_t next_set = 0;
    *server_out = servers[0].number;
    for (size_t i = 0; i < b->n_servers;) {
        double threshold = servers[i].level * (1 - SAME_LEVEL);
        uint32_t lowest = servers[i].number;
        do {
            rate += rate_of(b, servers[i].number);
            lowest = servers[i].number < lowest ? servers[i].number : lowest;
        } while (++i < b->n_servers && servers[i].level >= threshold);
        for (; next_set < b->n_sets && sets[next_set].level >= threshold; next_set++) {
            demand += b->demand[sets[next_set].number];
        }
        if (demand / rate > best) {
            best = demand / rate;
            *server_out = lowest;
        }
    }
    return best;
}

static double highest_level(const fy_balance *b)
{
    double highest = 0;
    for (size_t i = 0; i < b->n_servers; i++) {
        double level = level_of(b, (uint32_t)i);
        highest = level > highest ? level : highest;
    }
    return highest;
}

/* Takes a set's demand back and pours it over its members so that they end at one level. */
static void pour(fy_balance *b, size_t set, leveled *scratch)
{
    size_t begin = b->member_begin[set], n = b->member_begin[set + 1] - begin;
    for (size_t i = 0; i < n; i++) {
        uint32_t server = b->members[begin + i];
        b->load[server] -= b->share[begin + i];
        if (b->load[server] < 0) {
            b->load[server] = 0; /* rounding */
        }
        scratch[i] = (leveled){.level = level_of(b, server), .number = (uint32_t)i};
    }
    fy_sort(scratch, n, sizeof *scratch, compare_ascending);
    double rate = 0, filled = 0, level = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t server = b->members[begin + scratch[i].number];
        rate += rate_of(b, server);
        filled += b->load[server];
        level = (b->demand[set] + filled) / rate;
        if (i + 1 == n || level <= scratch[i + 1].level) {
            break;
        }
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t server = b->members[begin + i];
        double missing = level * rate_of(b, server) - b->load[server];
        b->share[begin + i] = missing > 0 ? missing : 0;
        b->load[server] += b->share[begin + i];
    }
}

static bool has_choice(const fy_balance *b)
{
    for (size_t s = 0; s < b->n_sets; s++) {
        if (b->member_begin[s + 1] - b->member_begin[s] > 1) {
            return true;
        }
    }
    return false;
}

/* Smaller sets first: their demand has the fewest places to go. */
static int compare_sizes(const void *a, const void *b)
{
    return compare_ascending(a, b);
}

static void sweep(fy_balance *b, const leveled *order, leveled *scratch)
{
    for (size_t i = 0; i < b->n_sets; i++) {
        size_t set = order[i].number;
        if (b->member_begin[set + 1] - b->member_begin[set] > 1) {
            pour(b, set, scratch);
        }
    }
}

static bool is_tight(double bound, double level)
{
    return level <= bound * (1 + SAME_LEVEL);
}

static double approach(fy_balance *b, leveled *servers, leveled *sets, leveled *order,
                       leveled *scratch)
{
    for (size_t s = 0; s < b->n_sets; s++) {
        size_t size = b->member_begin[s + 1] - b->member_begin[s];
        order[s] = (leveled){.level = (double)size, .number = (uint32_t)s};
    }
    fy_sort(order, b->n_sets, sizeof *order, compare_sizes);
    double bound = best_level_cut(b, servers, sets, &b->server);
    for (int i = 0; i < MAX_SWEEPS && !is_tight(bound, highest_level(b)); i++) {
        sweep(b, order, scratch);
        uint32_t server;
        double cut = best_level_cut(b, servers, sets, &server);
        if (cut > bound) {
            bound = cut;
            b->server = server;
        }
    }
    return bound;
}

/* The flow gives the exact optimum; its lopsided shares are taken only if the even ones are worse.
 */
static ferry_status settle_by_flow(fy_balance *b, double bound, ferry_error *error)
{
    size_t n_members = b->member_begin[b->n_sets];
    double *share = fy_alloc(n_members, sizeof *share);
    FY_TRY(fy_check_memory(share != NULL, "the balance of senders", error));
    ferry_status status = fy_balance_flow(b, bound, share, error);
    if (status == FERRY_OK && highest_level(b) > b->level * GOOD_ENOUGH) {
        memcpy(b->share, share, n_members * sizeof *share);
        memset(b->load, 0, b->n_servers * sizeof *b->load);
        for (size_t i = 0; i < n_members; i++) {
            b->load[b->members[i]] += share[i];
        }
    }
    fy_free(share);
    return status;
}

ferry_status fy_balance_solve(fy_balance *b, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    leveled *servers = fy_alloc(b->n_servers, sizeof *servers);
    leveled *sets = fy_alloc(b->n_sets, sizeof *sets);
    leveled *order = fy_alloc(b->n_sets, sizeof *order);
    leveled *scratch = fy_alloc(b->n_servers, sizeof *scratch);
    b->level = 0;
    b->server = 0;
    if (servers == NULL || sets == NULL || order == NULL || scratch == NULL) {
        status = fy_fail_no_memory(error, "the balance of senders");
        goto out;
    }
    if (b->n_servers == 0) {
        goto out;
    }
    share_evenly(b);
    if (!has_choice(b)) {
        best_level_cut(b, servers, sets, &b->server);
        b->level = highest_level(b);
        goto out;
    }
    double bound = approach(b, servers, sets, order, scratch);
    b->level = highest_level(b);
    if (is_tight(bound, b->level)) {
        b->level = bound;
    } else {
        status = settle_by_flow(b, bound, error);
    }
out:
    fy_free(servers);
    fy_free(sets);
    fy_free(order);
    fy_free(scratch);
    return status;
}
