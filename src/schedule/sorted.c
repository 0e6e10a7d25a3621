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
} long_batch;

typedef struct sorting {
    fy_match match;
    long_batch *order; /* [edges] the longest first */
    uint32_t *left;
    uint32_t *right;
    bool *done;
    uint32_t *count; /* [vertices] batches left */
    double *load;    /* [vertices] time left */
    uint32_t most;
    double threshold;
    double patience; /* ports with more left than this keep their batch */
} sorting;

static bool is_usable(void *context, uint32_t edge)
{
    const sorting *s = context;
    return !s->done[edge] && s->order[edge].time >= s->threshold;
}

static bool is_spent(void *context, uint32_t edge)
{
    const sorting *s = context;
    return s->done[edge];
}

static bool is_critical(void *context, uint32_t vertex)
{
    const sorting *s = context;
    return s->count[vertex] == s->most || s->load[vertex] > s->patience;
}

static int longest_first(const void *a, const void *b)
{
    const long_batch *x = a, *y = b;
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
    fy_free(s->done);
    fy_free(s->count);
    fy_free(s->load);
}

static ferry_status sorting_init(sorting *s, const fy_job *job, const fy_deal *deal,
                                 ferry_error *error)
{
    size_t n = deal->n_batches;
    uint32_t n_ranks = job->pairs->n_ranks;
    *s = (sorting){0};
    s->order = fy_alloc(n, sizeof *s->order);
    s->left = fy_alloc(2 * n, sizeof *s->left);
    s->done = fy_alloc_zeroed(n, sizeof *s->done);
    s->count = fy_alloc_zeroed(2 * (size_t)n_ranks, sizeof *s->count);
    s->load = fy_alloc_zeroed(2 * (size_t)n_ranks, sizeof *s->load);
    if (s->order == NULL || s->left == NULL || s->done == NULL || s->count == NULL ||
        s->load == NULL) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    s->right = s->left + n;
    for (size_t i = 0; i < n; i++) {
        const fy_batch *batch = &deal->batches[i];
        double rate = fy_network_rate(job->network, batch->from, batch->to);
        s->order[i] = (long_batch){.time = job->network->latency + (double)batch->bytes / rate,
                                   .batch = (uint32_t)i};
    }
    fy_sort(s->order, n, sizeof *s->order, longest_first);
    for (size_t i = 0; i < n; i++) {
        const fy_batch *batch = &deal->batches[s->order[i].batch];
        s->left[i] = batch->from;
        s->right[i] = batch->to;
        s->count[batch->from]++;
        s->count[n_ranks + batch->to]++;
        s->load[batch->from] += s->order[i].time;
        s->load[n_ranks + batch->to] += s->order[i].time;
    }
    ferry_status status =
        fy_match_init(&s->match, n_ranks, n_ranks, (uint32_t)n, s->left, s->right, error);
    s->match.context = s;
    s->match.usable = is_usable;
    s->match.spent = is_spent;
    s->match.critical = is_critical;
    return status;
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
    for (uint32_t i = 0; i < match->length[vertex]; i++) {
        uint32_t edge = match->around[match->begin[vertex] + i];
        if (!s->done[edge] && match->edge[fy_match_across(match, edge, vertex)] == FY_UNMATCHED) {
            fy_match_set(match, edge);
            return;
        }
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
        uint32_t edge = s->match.edge[v];
        if (edge == FY_UNMATCHED) {
            continue;
        }
        uint32_t other = fy_match_across(&s->match, edge, v);
        deal->batches[s->order[edge].batch].round = round;
        s->done[edge] = true;
        s->count[v]--;
        s->count[other]--;
        s->load[v] -= s->order[edge].time;
        s->load[other] -= s->order[edge].time;
    }
    fy_match_clear_all(&s->match);
}

ferry_status fy_deal_sort_rounds(const fy_job *job, fy_deal *deal, ferry_error *error)
{
    sorting s;
    ferry_status status = sorting_init(&s, job, deal, error);
    if (status == FERRY_OK && deal->n_batches > 0) {
        double threshold = s.order[0].time;
        find_most(&s);
        for (uint32_t round = 0; s.most > 0; find_most(&s), round++) {
            for (s.threshold = threshold; !cover_fullest(&s); s.threshold = threshold) {
                threshold = threshold < 1e-3 * s.order[0].time ? 0 : 0.8 * threshold;
            }
            cover_busiest(&s);
            take_round(&s, deal, round);
        }
    }
    sorting_cleanup(&s);
    return status;
}
