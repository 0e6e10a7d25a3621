/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds for batches that are not to be cut: one matching after the other that serves every port
 * with the most batches left, so there are as many rounds as the largest degree (Koenig), of the
 * longest batches that allow it, so that batches of one round are about as long. Then ports with
 * the most time left are served, as far as that goes. Slower than colouring, and the better order.
 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/match.h"
#include "schedule/palette.h"

#include <math.h>

typedef struct long_batch {
    double time;
    uint32_t batch;
    uint32_t from;
    uint32_t to;
} long_batch;

/*
 * Ports are matched by pairs of ranks, each of which offers the longest batch that it has left:
 * with the batches themselves as edges, two ranks with many of them would look at each in every
 * round.
 */
typedef struct sorting {
    fy_match match;
    long_batch *order; /* [batches] those of a pair side by side, the longest first */
    uint32_t n_pairs;
    uint32_t *left; /* [pairs], as the next three */
    uint32_t *right;
    uint32_t *next;  /* into order: what the pair offers */
    uint32_t *end;   /* what has been offered when next is here */
    uint32_t *count; /* [vertices] batches left */
    double *load;    /* [vertices] time left */
    double longest;
    uint32_t most;
    double threshold;
    double patience; /* ports with more left than this keep their batch */
} sorting;

static bool is_spent(void *context, uint32_t pair)
{
    const sorting *s = context;
    return s->next[pair] == s->end[pair];
}

static double time_offered(const sorting *s, uint32_t pair)
{
    return s->order[s->next[pair]].time;
}

static bool is_usable(void *context, uint32_t pair)
{
    const sorting *s = context;
    return time_offered(s, pair) >= s->threshold;
}

static bool is_critical(void *context, uint32_t vertex)
{
    const sorting *s = context;
    return s->count[vertex] == s->most || s->load[vertex] > s->patience;
}

static int by_pair_longest_first(const void *a, const void *b)
{
    const long_batch *x = a, *y = b;
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    if (x->time != y->time) {
        return x->time > y->time ? -1 : 1;
    }
    return (x->batch > y->batch) - (x->batch < y->batch);
}

static void sorting_cleanup(sorting *s)
{
    fy_match_cleanup(&s->match);
    fy_free(s->order);
    fy_free(s->left);
    fy_free(s->count);
    fy_free(s->load);
}

static bool begins_pair(const long_batch *order, size_t i)
{
    return i == 0 || order[i].from != order[i - 1].from || order[i].to != order[i - 1].to;
}

static ferry_status list_pairs(sorting *s, size_t n_batches, ferry_error *error)
{
    for (size_t i = 0; i < n_batches; i++) {
        s->n_pairs += begins_pair(s->order, i);
    }
    s->left = fy_alloc(4 * (size_t)s->n_pairs, sizeof *s->left);
    if (s->left == NULL) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    s->right = s->left + s->n_pairs;
    s->next = s->right + s->n_pairs;
    s->end = s->next + s->n_pairs;
    uint32_t n = 0;
    for (size_t i = 0; i < n_batches; i++) {
        if (begins_pair(s->order, i)) {
            s->left[n] = s->order[i].from;
            s->right[n] = s->order[i].to;
            s->next[n++] = (uint32_t)i;
        }
        s->end[n - 1] = (uint32_t)i + 1;
    }
    return FERRY_OK;
}

static ferry_status list_batches(sorting *s, const fy_job *job, const fy_deal *deal,
                                 ferry_error *error)
{
    size_t n = deal->n_batches;
    uint32_t n_ranks = job->pairs->n_ranks;
    s->order = fy_alloc(n, sizeof *s->order);
    s->count = fy_alloc_zeroed(2 * (size_t)n_ranks, sizeof *s->count);
    s->load = fy_alloc_zeroed(2 * (size_t)n_ranks, sizeof *s->load);
    if (s->order == NULL || s->count == NULL || s->load == NULL) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    for (size_t i = 0; i < n; i++) {
        const fy_batch *batch = &deal->batches[i];
        double rate = fy_network_rate(job->network, batch->from, batch->to);
        double time = job->network->latency + (double)batch->bytes / rate;
        s->order[i] =
            (long_batch){.time = time, .batch = (uint32_t)i, .from = batch->from, .to = batch->to};
        s->longest = time > s->longest ? time : s->longest;
        s->count[batch->from]++;
        s->count[n_ranks + batch->to]++;
        s->load[batch->from] += time;
        s->load[n_ranks + batch->to] += time;
    }
    fy_sort(s->order, n, sizeof *s->order, by_pair_longest_first);
    return FERRY_OK;
}

static ferry_status sorting_init(sorting *s, const fy_job *job, const fy_deal *deal,
                                 ferry_error *error)
{
    uint32_t n_ranks = job->pairs->n_ranks;
    *s = (sorting){0};
    FY_TRY(list_batches(s, job, deal, error));
    FY_TRY(list_pairs(s, deal->n_batches, error));
    FY_TRY(fy_match_init(&s->match, n_ranks, n_ranks, s->n_pairs, s->left, s->right, error));
    s->match.context = s;
    s->match.usable = is_usable;
    s->match.spent = is_spent;
    s->match.critical = is_critical;
    return FERRY_OK;
}

static void find_most(sorting *s)
{
    s->most = 0;
    for (uint32_t v = 0; v < s->match.n_vertices; v++) {
        s->most = s->count[v] > s->most ? s->count[v] : s->most;
    }
}

static bool cover_fullest(sorting *s)
{
    s->patience = INFINITY;
    fy_match_begin_phase(&s->match);
    for (uint32_t v = 0; v < s->match.n_vertices; v++) {
        if (s->match.edge[v] == FY_UNMATCHED && s->count[v] == s->most &&
            !fy_match_cover(&s->match, v)) {
            return false;
        }
    }
    return true;
}

/* A free port serves its longest batch for a port that is free as well. */
static void serve_free(sorting *s, uint32_t vertex)
{
    fy_match *match = &s->match;
    uint32_t best = FY_UNMATCHED;
    for (uint32_t i = 0; i < match->length[vertex]; i++) {
        uint32_t pair = match->around[match->begin[vertex] + i];
        if (!is_spent(s, pair) &&
            match->edge[fy_match_across(match, pair, vertex)] == FY_UNMATCHED &&
            (best == FY_UNMATCHED || time_offered(s, pair) > time_offered(s, best))) {
            best = pair;
        }
    }
    if (best != FY_UNMATCHED) {
        fy_match_set(match, best);
    }
}

/*
 * Ports with hardly less time left than the busiest one are served where one with less gives way;
 * then whoever is free.
 */
static void cover_busiest(sorting *s)
{
    double busiest = 0;
    for (uint32_t v = 0; v < s->match.n_vertices; v++) {
        busiest = s->load[v] > busiest ? s->load[v] : busiest;
    }
    s->patience = busiest - s->threshold;
    s->threshold = 0;
    fy_match_begin_phase(&s->match);
    for (uint32_t v = 0; v < s->match.n_vertices; v++) {
        if (s->match.edge[v] == FY_UNMATCHED && s->load[v] > s->patience && s->count[v] > 0) {
            fy_match_cover(&s->match, v);
        }
    }
    for (uint32_t v = 0; v < s->match.n_left; v++) {
        if (s->match.edge[v] == FY_UNMATCHED && s->count[v] > 0) {
            serve_free(s, v);
        }
    }
}

static void take_round(sorting *s, fy_deal *deal, uint32_t round)
{
    for (uint32_t v = 0; v < s->match.n_left; v++) {
        uint32_t pair = s->match.edge[v];
        if (pair == FY_UNMATCHED) {
            continue;
        }
        uint32_t other = fy_match_across(&s->match, pair, v);
        const long_batch *taken = &s->order[s->next[pair]++];
        deal->batches[taken->batch].round = round;
        s->count[v]--;
        s->count[other]--;
        s->load[v] -= taken->time;
        s->load[other] -= taken->time;
    }
    fy_match_clear_all(&s->match);
}

ferry_status fy_deal_sort_rounds(const fy_job *job, fy_deal *deal, ferry_error *error)
{
    sorting s;
    ferry_status status = sorting_init(&s, job, deal, error);
    if (status == FERRY_OK && deal->n_batches > 0) {
        double threshold = s.longest;
        find_most(&s);
        for (uint32_t round = 0; s.most > 0; find_most(&s), round++) {
            for (s.threshold = threshold; !cover_fullest(&s); s.threshold = threshold) {
                threshold = threshold < 1e-3 * s.longest ? 0 : 0.8 * threshold;
            }
            cover_busiest(&s);
            take_round(&s, deal, round);
        }
    }
    sorting_cleanup(&s);
    return status;
}
