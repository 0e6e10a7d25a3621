/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is a list of runs (first, stride, n). Groups of real worlds are one run or a few, so a
 * group of ten thousand ranks costs what one of ten does: in memory, in messages and in files.
 */
#include "model/group.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/sort.h"
#include "base/status.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More runs than this are not searched one by one. */
enum { MOST_SEARCHED = 8 };
/* Pairs of so many runs are looked at in less time than it takes to clear a bit for every rank. */
enum { MOST_PAIRED = 256 };

struct ferry_group {
    _Atomic uint32_t references;
    size_t n_ranks;
    size_t n_runs;
    uint64_t hash;
    size_t *before;    /* [n_runs] ranks of the runs before each */
    uint32_t *by_rank; /* positions by ascending rank, of a list of many runs; or NULL */
    fy_group_run runs[];
};

/* Runs that come one by one; equal lists of ranks become equal lists of runs, however told. */
typedef struct encoder {
    fy_group_run *runs;
    size_t n_runs, capacity;
    size_t n_ranks;
} encoder;

static uint32_t rank_of(const fy_group_run *run, uint32_t i)
{
    return (uint32_t)(run->first + run->stride * (int64_t)i);
}

/* True: the rank goes on where the last run ends, or makes its stride. */
static bool extends(const fy_group_run *last, uint32_t rank)
{
    return last->n == 1 ? rank != last->first : rank_of(last, last->n - 1) + last->stride == rank;
}

static bool add_rank(encoder *e, uint32_t rank)
{
    fy_group_run *last = e->n_runs == 0 ? NULL : &e->runs[e->n_runs - 1];
    e->n_ranks++;
    if (last != NULL && extends(last, rank)) {
        last->stride = last->n == 1 ? (int64_t)rank - last->first : last->stride;
        last->n++;
        return true;
    }
    if (!FY_RESERVE(e->runs, e->capacity, e->n_runs + 1)) {
        return false;
    }
    e->runs[e->n_runs++] = (fy_group_run){.first = rank, .n = 1};
    return true;
}

/* Rank by rank only until the last run has this one's stride. */
static bool add_run(encoder *e, const fy_group_run *run)
{
    for (uint32_t i = 0; i < run->n; i++) {
        fy_group_run *last = e->n_runs == 0 ? NULL : &e->runs[e->n_runs - 1];
        uint32_t rank = rank_of(run, i);
        if (last != NULL && last->n > 1 && last->stride == run->stride && extends(last, rank)) {
            last->n += run->n - i;
            e->n_ranks += run->n - i;
            return true;
        }
        if (!add_rank(e, rank)) {
            return false;
        }
    }
    return true;
}

static uint64_t hash_runs(const encoder *e)
{
    uint64_t hash = e->n_ranks;
    for (size_t i = 0; i < e->n_runs; i++) {
        hash = fy_hash_mix(hash, (uint64_t)e->runs[i].first << 32 | e->runs[i].n);
        hash = fy_hash_mix(hash, (uint64_t)e->runs[i].stride);
    }
    return hash;
}

/* Whether ranks are distinct. */

typedef struct ascending_run {
    int64_t low, high, stride;
} ascending_run;

static ascending_run ascending(const fy_group_run *run)
{
    int64_t last = rank_of(run, run->n - 1);
    if (run->n == 1) {
        return (ascending_run){.low = run->first, .high = run->first, .stride = 1};
    }
    return run->stride > 0
               ? (ascending_run){.low = run->first, .high = last, .stride = run->stride}
               : (ascending_run){.low = last, .high = run->first, .stride = -run->stride};
}

/* The greatest common divisor g of a and b, and x with a x = g modulo b. */
static int64_t extended_gcd(int64_t a, int64_t b, int64_t *x_out)
{
    int64_t x = 1, next_x = 0;
    while (b != 0) {
        int64_t quotient = a / b, rest = a % b, swap = x - quotient * next_x;
        a = b;
        b = rest;
        x = next_x;
        next_x = swap;
    }
    *x_out = x;
    return a;
}

/* The least rank of both; -1: there is none. All products stay below 2^60: ranks are below 2^24. */
static int64_t common_rank(ascending_run a, ascending_run b)
{
    int64_t x, low = a.low > b.low ? a.low : b.low, high = a.high < b.high ? a.high : b.high;
    if (low > high) {
        return -1;
    }
    int64_t g = extended_gcd(a.stride, b.stride, &x);
    if ((b.low - a.low) % g != 0) {
        return -1;
    }
    int64_t period = b.stride / g;
    int64_t steps = (b.low - a.low) / g % period * (x % period) % period;
    int64_t rank = a.low + a.stride * (steps < 0 ? steps + period : steps);
    int64_t common = a.stride * period; /* both meet again after this */
    rank += rank < low ? (low - rank + common - 1) / common * common : 0;
    rank -= rank > low ? (rank - low) / common * common : 0;
    return rank <= high ? rank : -1;
}

static int64_t find_twice_by_pairs(const encoder *e)
{
    int64_t found = -1;
    for (size_t i = 0; i < e->n_runs && found < 0; i++) {
        for (size_t j = 0; j < i && found < 0; j++) {
            found = common_rank(ascending(&e->runs[i]), ascending(&e->runs[j]));
        }
    }
    return found;
}

/* A bit for each rank that there can be: 2 MiB, so that a long group costs no more than its length.
 */
static ferry_status find_twice_by_rank(const encoder *e, int64_t *found_out, ferry_error *error)
{
    uint64_t *seen = fy_alloc_zeroed(FERRY_MAX_RANKS / 64, sizeof *seen);
    FY_TRY(fy_check_memory(seen != NULL, "a group", error));
    for (size_t i = 0; i < e->n_runs; i++) {
        for (uint32_t k = 0; k < e->runs[i].n && *found_out < 0; k++) {
            uint32_t rank = rank_of(&e->runs[i], k);
            uint64_t bit = UINT64_C(1) << (rank % 64);
            *found_out = (seen[rank / 64] & bit) != 0 ? (int64_t)rank : -1;
            seen[rank / 64] |= bit;
        }
    }
    fy_free(seen);
    return FERRY_OK;
}

/* By pairs of runs or rank by rank, as is less work: a short message cannot ask for much. */
static ferry_status check_distinct(const encoder *e, ferry_error *error)
{
    int64_t found = -1;
    ferry_status status = FERRY_OK;
    if (e->n_runs <= MOST_PAIRED || e->n_runs <= e->n_ranks / e->n_runs) {
        found = find_twice_by_pairs(e);
    } else {
        status = find_twice_by_rank(e, &found, error);
    }
    return status != FERRY_OK || found < 0 ? status
                                           : fy_fail(error, FERRY_ERR_INVALID_INPUT,
                                                     "group has rank %u twice", (uint32_t)found);
}

/* Making groups. */

typedef struct placed_rank {
    uint32_t rank;
    uint32_t position;
} placed_rank;

static int compare_placed(const void *a, const void *b)
{
    uint32_t x = ((const placed_rank *)a)->rank, y = ((const placed_rank *)b)->rank;
    return (x > y) - (x < y);
}

/* Lists of many short runs are as long as their ranks anyway. */
static bool sort_ranks(ferry_group *group)
{
    if (group->n_runs <= MOST_SEARCHED || group->n_ranks / 64 > group->n_runs) {
        return true;
    }
    placed_rank *placed = fy_alloc(group->n_ranks, sizeof *placed);
    group->by_rank = fy_alloc(group->n_ranks, sizeof *group->by_rank);
    bool complete = placed != NULL && group->by_rank != NULL;
    for (size_t i = 0; complete && i < group->n_ranks; i++) {
        placed[i] = (placed_rank){.rank = ferry_group_rank_at(group, i), .position = (uint32_t)i};
    }
    if (complete) {
        fy_sort(placed, group->n_ranks, sizeof *placed, compare_placed);
    }
    for (size_t i = 0; complete && i < group->n_ranks; i++) {
        group->by_rank[i] = placed[i].position;
    }
    fy_free(placed);
    return complete;
}

static void destroy(ferry_group *group)
{
    fy_free(group->before);
    fy_free(group->by_rank);
    fy_free(group);
}

static ferry_status make_group(const encoder *e, ferry_group **group_out, ferry_error *error)
{
    FY_TRY(check_distinct(e, error));
    ferry_group *group = fy_alloc(1, sizeof *group + e->n_runs * sizeof *e->runs);
    FY_TRY(fy_check_memory(group != NULL, "a group", error));
    *group = (ferry_group){.n_ranks = e->n_ranks, .n_runs = e->n_runs, .hash = hash_runs(e)};
    atomic_init(&group->references, 1);
    group->before = fy_alloc(e->n_runs, sizeof *group->before);
    size_t before = 0;
    for (size_t i = 0; group->before != NULL && i < e->n_runs; i++) {
        group->runs[i] = e->runs[i];
        group->before[i] = before;
        before += e->runs[i].n;
    }
    if (group->before == NULL || !sort_ranks(group)) {
        destroy(group);
        return fy_fail_no_memory(error, "a group");
    }
    *group_out = group;
    return FERRY_OK;
}

ferry_status ferry_group_create(const uint32_t *ranks, size_t n_ranks, ferry_group **group_out,
                                ferry_error *error)
{
    if (group_out == NULL || (ranks == NULL && n_ranks > 0)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_group_create needs ranks and a place for the result");
    }
    if (n_ranks > FERRY_MAX_RANKS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "a group of %zu ranks; ranks are below %u", n_ranks,
                       FERRY_MAX_RANKS);
    }
    encoder e = {0};
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n_ranks && status == FERRY_OK; i++) {
        if (ranks[i] >= FERRY_MAX_RANKS) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "group has rank %u; ranks are below %u", ranks[i], FERRY_MAX_RANKS);
        } else if (!add_rank(&e, ranks[i])) {
            status = fy_fail_no_memory(error, "a group");
        }
    }
    FY_THEN(status, make_group(&e, group_out, error));
    fy_free(e.runs);
    return status;
}

ferry_status ferry_group_create_range(uint32_t first, uint32_t stride, size_t n_ranks,
                                      ferry_group **group_out, ferry_error *error)
{
    if (group_out == NULL || (stride == 0 && n_ranks > 1)) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "ferry_group_create_range needs a stride of at least 1 and a place for the result");
    }
    if (n_ranks > FERRY_MAX_RANKS ||
        (n_ranks > 0 && first + (uint64_t)(n_ranks - 1) * stride >= FERRY_MAX_RANKS)) {
        return fy_fail(error, FERRY_ERR_LIMIT, "%zu ranks from %u by %u; ranks are below %u",
                       n_ranks, first, stride, FERRY_MAX_RANKS);
    }
    fy_group_run run = {.first = first, .n = (uint32_t)n_ranks, .stride = stride};
    return fy_group_create_runs(&run, n_ranks > 0, group_out, error);
}

static bool is_run(const fy_group_run *run)
{
    int64_t most = FERRY_MAX_RANKS - 1;
    if (run->n == 0 || run->n > FERRY_MAX_RANKS || run->first > most ||
        (run->n > 1 && (run->stride == 0 || run->stride > most || run->stride < -most))) {
        return false;
    }
    int64_t last = run->first + (run->n - 1) * (run->n > 1 ? run->stride : 0);
    return last >= 0 && last <= most;
}

ferry_status fy_group_create_runs(const fy_group_run *runs, size_t n_runs, ferry_group **group_out,
                                  ferry_error *error)
{
    encoder e = {0};
    uint64_t sum = 0;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < n_runs && status == FERRY_OK; i++) {
        sum += runs[i].n;
        if (!is_run(&runs[i]) || sum > FERRY_MAX_RANKS) {
            status =
                fy_fail(error, FERRY_ERR_INVALID_INPUT,
                        "run %zu of a group, %u ranks from %u by %lld, leaves the ranks below "
                        "%u",
                        i, runs[i].n, runs[i].first, (long long)runs[i].stride, FERRY_MAX_RANKS);
        } else if (!add_run(&e, &runs[i])) {
            status = fy_fail_no_memory(error, "a group");
        }
    }
    FY_THEN(status, make_group(&e, group_out, error));
    fy_free(e.runs);
    return status;
}

ferry_group *ferry_group_retain(ferry_group *group)
{
    if (group != NULL) {
        atomic_fetch_add_explicit(&group->references, 1, memory_order_relaxed);
    }
    return group;
}

void ferry_group_destroy(ferry_group *group)
{
    /* Acquire-release: the last holder must see every write of the others before it frees. */
    if (group != NULL &&
        atomic_fetch_sub_explicit(&group->references, 1, memory_order_acq_rel) == 1) {
        destroy(group);
    }
}

size_t ferry_group_rank_count(const ferry_group *group)
{
    return group == NULL ? 0 : group->n_ranks;
}

uint32_t ferry_group_rank_at(const ferry_group *group, size_t index)
{
    FY_BISECT_LAST(size_t, low, 0, group->n_runs, middle, group->before[middle] <= index);
    return rank_of(&group->runs[low], (uint32_t)(index - group->before[low]));
}

size_t fy_group_run_count(const ferry_group *group)
{
    return group->n_runs;
}

fy_group_run fy_group_run_at(const ferry_group *group, size_t index)
{
    return group->runs[index];
}

static bool find_sorted(const ferry_group *group, uint32_t rank, size_t *index_out)
{
    FY_BISECT(size_t, low, 0, group->n_ranks, middle,
              ferry_group_rank_at(group, group->by_rank[middle]) < rank);
    bool found = low < group->n_ranks && ferry_group_rank_at(group, group->by_rank[low]) == rank;
    *index_out = found ? group->by_rank[low] : *index_out;
    return found;
}

bool fy_group_find(const ferry_group *group, uint32_t rank, size_t *index_out)
{
    if (group->by_rank != NULL) {
        return find_sorted(group, rank, index_out);
    }
    for (size_t i = 0; i < group->n_runs; i++) {
        const fy_group_run *run = &group->runs[i];
        int64_t stride = run->n == 1 ? 1 : run->stride;
        int64_t offset = (int64_t)rank - run->first;
        if (offset % stride == 0 && offset / stride >= 0 && offset / stride < run->n) {
            *index_out = group->before[i] + (size_t)(offset / stride);
            return true;
        }
    }
    return false;
}

uint64_t fy_group_hash(const ferry_group *group)
{
    return group->hash;
}

static bool same_run(const fy_group_run *a, const fy_group_run *b)
{
    return a->first == b->first && a->n == b->n && a->stride == b->stride;
}

int fy_group_compare(const ferry_group *a, const ferry_group *b)
{
    size_t i = 0; /* runs that both begin with say nothing */
    while (i < a->n_runs && i < b->n_runs && same_run(&a->runs[i], &b->runs[i])) {
        i++;
    }
    for (size_t r = i < a->n_runs ? a->before[i] : a->n_ranks; r < a->n_ranks && r < b->n_ranks;
         r++) {
        uint32_t x = ferry_group_rank_at(a, r), y = ferry_group_rank_at(b, r);
        if (x != y) {
            return x < y ? -1 : 1;
        }
    }
    return (a->n_ranks > b->n_ranks) - (a->n_ranks < b->n_ranks);
}

bool fy_group_equal(const ferry_group *a, const ferry_group *b)
{
    bool same =
        a == b || (a->n_ranks == b->n_ranks && a->n_runs == b->n_runs && a->hash == b->hash);
    for (size_t i = 0; a != b && same && i < a->n_runs; i++) {
        same = same_run(&a->runs[i], &b->runs[i]);
    }
    return same;
}

void fy_group_format(const ferry_group *group, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "(");
    for (size_t i = 0; i < group->n_ranks; i++) {
        if (used + 24 > text_bytes) {
            snprintf(text + used, text_bytes - used, ", ...");
            used = strlen(text);
            break;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", i == 0 ? "" : ", ",
                                 ferry_group_rank_at(group, i));
    }
    snprintf(text + used, text_bytes - used, ")");
}

ferry_status ferry_group_find_rank(const ferry_group *group, uint32_t rank, size_t *index_out,
                                   ferry_error *error)
{
    FY_TRY(fy_check_use(group != NULL && index_out != NULL,
                        "ferry_group_find_rank needs a group and a place for the result", error));
    if (!fy_group_find(group, rank, index_out)) {
        char text[160];
        fy_group_format(group, text, sizeof text);
        return fy_fail(error, FERRY_ERR_INVALID_INPUT, "rank %u is not a member of the group %s",
                       rank, text);
    }
    return FERRY_OK;
}
