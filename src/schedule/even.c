/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of sizes that keep the busiest ports busy: pairs are peeled in whole numbers of ticks, so
 * that every machine cuts alike. Where all rates are equal a tick is a byte.
 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "schedule/palette.h"
#include "schedule/peel.h"

#include <math.h>

typedef struct even {
    const fy_job *job;
    fy_deal *deal;
    uint64_t *ticks; /* [n_pairs] of a byte */
    uint64_t *rest;  /* [n_pairs] */
    uint64_t *load;  /* [2 n_ranks] */
    uint32_t *left;  /* [n_pairs] */
    uint32_t *right;
    double ticks_per_time;
} even;

static uint64_t avail(void *context, uint32_t pair)
{
    const even *e = context;
    return fy_min(e->rest[pair], e->deal->hands[pair].room * e->ticks[pair]);
}

static ferry_status take(void *context, uint32_t pair, uint32_t round, uint64_t duration,
                         uint64_t *taken_out, ferry_error *error)
{
    even *e = context;
    uint64_t taken = 0;
    ferry_status status =
        fy_deal_take(e->deal, pair, round, duration / e->ticks[pair], &taken, error);
    *taken_out = taken * e->ticks[pair];
    e->rest[pair] -= *taken_out;
    return status;
}

/* Rates differ by their share of the fastest pair, in steps of 1/64. */
static void set_ticks(even *e)
{
    const fy_pairs *pairs = e->job->pairs;
    double fastest = 0, slowest = INFINITY;
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        double rate = fy_network_rate(e->job->network, pairs->pairs[i].from, pairs->pairs[i].to);
        fastest = fmax(fastest, rate);
        slowest = fmin(slowest, rate);
    }
    double unit = fastest > slowest ? 64 : 1;
    e->ticks_per_time = fastest * unit;
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        double rate = fy_network_rate(e->job->network, pair->from, pair->to);
        e->ticks[i] = (uint64_t)fmin(ceil(unit * fastest / rate - 0.5), 1 << 20);
    }
}

static ferry_status even_init(even *e, const fy_job *job, fy_deal *deal, ferry_error *error)
{
    size_t n = job->pairs->n_pairs;
    *e = (even){.job = job, .deal = deal};
    e->ticks = fy_alloc(2 * n, sizeof *e->ticks);
    e->load = fy_alloc_zeroed(2 * (size_t)job->pairs->n_ranks, sizeof *e->load);
    e->left = fy_alloc(2 * n, sizeof *e->left);
    if (e->ticks == NULL || e->load == NULL || e->left == NULL) {
        return fy_fail_no_memory(error, "the pairs of a schedule");
    }
    e->rest = e->ticks + n;
    e->right = e->left + n;
    set_ticks(e);
    for (uint32_t i = 0; i < n; i++) {
        const fy_pair *pair = &job->pairs->pairs[i];
        e->left[i] = pair->from;
        e->right[i] = pair->to;
        if (!fy_mul(pair->bytes, e->ticks[i], &e->rest[i]) || e->rest[i] >> 62 != 0) {
            return fy_fail(error, FERRY_ERR_LIMIT,
                           "%llu bytes from rank %u to rank %u are too many for rates that differ "
                           "so much",
                           (unsigned long long)pair->bytes, pair->from, pair->to);
        }
        e->load[pair->from] += e->rest[i];
        e->load[job->pairs->n_ranks + pair->to] += e->rest[i];
    }
    return FERRY_OK;
}

static void even_cleanup(even *e)
{
    fy_free(e->ticks);
    fy_free(e->load);
    fy_free(e->left);
}

ferry_status fy_deal_even(const fy_job *job, double shortest, fy_deal *deal, ferry_error *error)
{
    even e;
    uint32_t end = 0;
    ferry_status status = even_init(&e, job, deal, error);
    if (status == FERRY_OK) {
        uint64_t largest = 0;
        for (uint32_t i = 0; i < 2 * job->pairs->n_ranks; i++) {
            largest = fy_max(largest, e.load[i]);
        }
        fy_peel peel = {.n_left = job->pairs->n_ranks,
                        .n_right = job->pairs->n_ranks,
                        .n_edges = job->pairs->n_pairs,
                        .left = e.left,
                        .right = e.right,
                        .rest = e.rest,
                        .load = e.load,
                        .grain = job->pairs->largest_element,
                        .leftovers = largest / 512,
                        .shortest = fy_max((uint64_t)(shortest * e.ticks_per_time), 1),
                        .context = &e,
                        .avail = avail,
                        .take = take};
        status = fy_peel_run(&peel, 0, &end, error);
    }
    for (uint32_t i = 0; i < job->pairs->n_pairs && status == FERRY_OK; i++) {
        status = fy_deal_rest(deal, i, FY_NO_COLOUR, error);
    }
    even_cleanup(&e);
    return status == FERRY_OK ? fy_deal_fit_rounds(job, end, deal, error) : status;
}
