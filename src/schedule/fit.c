/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The last step of even rounds: leftovers go where both of their ports idle long enough, the others
 * into rounds of their own behind. Where that makes more rounds than any rank has batches, a
 * busiest rank gets as many: bits of its batches move to rounds in which it and the other rank
 * idle, which shortens some rounds and lengthens none. Only where that cannot be done are batches
 * exchanged between rounds of different lengths (Koenig).
 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/colour.h"
#include "schedule/palette.h"

#include <math.h>
#include <string.h>

/* As many ranks are tried for padding. */
enum { PAD_RANKS = 64 };

typedef struct fitting {
    const fy_job *job;
    fy_deal *deal;
    fy_palette palette;
    fy_edges edges;   /* the batches, with room for capacity of them */
    uint32_t *degree; /* [n_ports] */
    double *length;   /* [n_rounds] the time of the longest batch */
    size_t capacity;
    uint32_t n_ports;
    uint32_t shift; /* from a receiver to its port */
    uint32_t n_rounds;
} fitting;

static double time_of(const fitting *f, const fy_batch *batch)
{
    return (double)batch->bytes / fy_network_rate(f->job->network, batch->from, batch->to);
}

/* Batches without a round at first; with room for some more by padding. */
static ferry_status fitting_init(fitting *f, const fy_job *job, fy_deal *deal, uint32_t n_rounds,
                                 ferry_error *error)
{
    uint32_t n = job->pairs->n_ranks;
    size_t nb = deal->n_batches;
    bool half = job->duplex == FERRY_DUPLEX_HALF;
    *f = (fitting){.job = job, .deal = deal, .n_ports = half ? n : 2 * n, .shift = half ? 0 : n};
    f->n_rounds = n_rounds;
    f->capacity = nb + (size_t)PAD_RANKS * 64;
    f->degree = fy_alloc_zeroed(f->n_ports, sizeof *f->degree);
    f->length = fy_alloc_zeroed(n_rounds + nb, sizeof *f->length);
    if (f->degree == NULL || f->length == NULL) {
        return fy_fail_no_memory(error, "the batches of a schedule");
    }
    FY_TRY(fy_deal_list_edges(deal, f->capacity - nb, &f->edges, error));
    for (size_t i = 0; i < nb; i++) {
        const fy_batch *batch = &deal->batches[i];
        f->degree[batch->from]++;
        f->degree[f->shift + batch->to]++;
        if (batch->round != FY_NO_COLOUR) {
            f->length[batch->round] = fmax(f->length[batch->round], time_of(f, batch));
        }
    }
    return fy_palette_init(&f->palette, f->n_ports, f->shift, &f->edges, error);
}

static void fitting_cleanup(fitting *f)
{
    fy_palette_cleanup(&f->palette);
    fy_edges_cleanup(&f->edges);
    fy_free(f->degree);
    fy_free(f->length);
}

/* The last round, which is a short one, that is long enough and idle at both ports. */
static uint32_t find_gap(fitting *f, uint32_t batch)
{
    uint32_t left = f->edges.from[batch], right = f->shift + f->edges.to[batch];
    double time = time_of(f, &f->deal->batches[batch]);
    for (f->palette.n_colours = f->n_rounds;;) {
        uint32_t round = fy_palette_free_both(&f->palette, left, right);
        if (round == FY_NO_COLOUR || f->length[round] >= time) {
            return round;
        }
        f->palette.n_colours = round;
    }
}

/* Those that found no gap get the fewest rounds that they can have among themselves. */
static ferry_status append_rounds(fitting *f, const uint32_t *batches, uint32_t n,
                                  ferry_error *error)
{
    fy_edges own;
    ferry_status status = fy_edges_init(&own, f->edges.n_ranks, n, error);
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        fy_edges_add(&own, f->edges.from[batches[i]], f->edges.to[batches[i]], FY_NO_COLOUR);
    }
    FY_THEN(status, fy_colour_batches(&own, f->job->duplex, error));
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        uint32_t round = f->n_rounds + own.round[i];
        f->length[round] = fmax(f->length[round], time_of(f, &f->deal->batches[batches[i]]));
        status = fy_palette_give(&f->palette, batches[i], round, error);
    }
    f->n_rounds += own.n_rounds;
    fy_edges_cleanup(&own);
    return status;
}

typedef struct leftover {
    uint64_t bytes;
    uint32_t batch;
} leftover;

static int largest_first(const void *a, const void *b)
{
    const leftover *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return (x->batch > y->batch) - (x->batch < y->batch);
}

static ferry_status place_leftovers(fitting *f, ferry_error *error)
{
    size_t n = 0;
    leftover *leftovers = fy_alloc(f->deal->n_batches, sizeof *leftovers);
    uint32_t n_left = 0, *left = fy_alloc(f->deal->n_batches, sizeof *left);
    ferry_status status = FERRY_OK;
    if (leftovers == NULL || left == NULL) {
        status = fy_fail_no_memory(error, "the batches of a schedule");
        goto out;
    }
    for (size_t i = 0; i < f->deal->n_batches; i++) {
        if (f->edges.round[i] == FY_NO_COLOUR) {
            leftovers[n++] = (leftover){.bytes = f->deal->batches[i].bytes, .batch = (uint32_t)i};
        }
    }
    fy_sort(leftovers, n, sizeof *leftovers, largest_first);
    for (size_t i = 0; i < n && status == FERRY_OK; i++) {
        uint32_t round = find_gap(f, leftovers[i].batch);
        if (round == FY_NO_COLOUR) {
            left[n_left++] = leftovers[i].batch;
        } else {
            status = fy_palette_give(&f->palette, leftovers[i].batch, round, error);
        }
    }
    if (status == FERRY_OK && n_left > 0) {
        status = append_rounds(f, left, n_left, error);
    }
out:
    fy_free(leftovers);
    fy_free(left);
    return status;
}

/* A bit of one of a port's batches for a round in which both of the batch's ports idle. */
static ferry_status pad_round(fitting *f, uint32_t port, uint32_t round, bool *done_out,
                              ferry_error *error)
{
    uint32_t best = FY_NO_EDGE;
    for (uint32_t r = 0; r < f->n_rounds; r++) {
        uint32_t edge = fy_palette_find(&f->palette, port, r);
        if (edge == FY_NO_EDGE) {
            continue;
        }
        uint32_t left = f->edges.from[edge], right = f->shift + f->edges.to[edge];
        bool idle = fy_palette_find(&f->palette, left, round) == FY_NO_EDGE &&
                    fy_palette_find(&f->palette, right, round) == FY_NO_EDGE;
        if (idle &&
            (best == FY_NO_EDGE || f->deal->batches[edge].bytes > f->deal->batches[best].bytes)) {
            best = edge;
        }
    }
    *done_out = false;
    if (best == FY_NO_EDGE || f->deal->n_batches == f->capacity) {
        return FERRY_OK;
    }
    const fy_batch *batch = &f->deal->batches[best];
    double rate = fy_network_rate(f->job->network, batch->from, batch->to);
    double bytes = fmin(f->length[round] * rate, (double)batch->bytes / 2);
    ferry_status status = fy_deal_split(f->deal, best, fy_max((uint64_t)bytes, 1), done_out, error);
    if (status != FERRY_OK || !*done_out) {
        return status;
    }
    uint32_t bit = (uint32_t)f->deal->n_batches - 1;
    fy_edges_add(&f->edges, f->edges.from[best], f->edges.to[best], FY_NO_COLOUR);
    f->degree[f->edges.from[bit]]++;
    f->degree[f->shift + f->edges.to[bit]]++;
    return fy_palette_give(&f->palette, bit, round, error);
}

static uint32_t find_fullest(const fitting *f, const bool *tried)
{
    uint32_t best = FY_NO_EDGE;
    for (uint32_t port = 0; port < f->n_ports; port++) {
        if (!tried[port] && f->degree[port] > 0 &&
            (best == FY_NO_EDGE || f->degree[port] > f->degree[best])) {
            best = port;
        }
    }
    return best;
}

/* True if some port has a batch in every round in the end. */
static ferry_status pad(fitting *f, bool *padded_out, ferry_error *error)
{
    bool *tried = fy_alloc_zeroed(f->n_ports, sizeof *tried);
    ferry_status status = FERRY_OK;
    *padded_out = false;
    FY_TRY(fy_check_memory(tried != NULL, "the ports of a schedule", error));
    for (int i = 0; i < PAD_RANKS && status == FERRY_OK && !*padded_out; i++) {
        uint32_t port = find_fullest(f, tried);
        bool done = port != FY_NO_EDGE && f->n_rounds - f->degree[port] <= PAD_RANKS;
        for (uint32_t r = f->n_rounds; done && r-- > 0 && status == FERRY_OK;) {
            if (fy_palette_find(&f->palette, port, r) == FY_NO_EDGE) {
                status = pad_round(f, port, r, &done, error);
            }
        }
        *padded_out = done;
        if (port == FY_NO_EDGE) {
            break;
        }
        tried[port] = true;
    }
    fy_free(tried);
    return status;
}

static uint32_t largest_degree(const fitting *f)
{
    uint32_t most = 0;
    for (uint32_t port = 0; port < f->n_ports; port++) {
        most = f->degree[port] > most ? f->degree[port] : most;
    }
    return most;
}

/* Batches of the last rounds find room in the others by exchanges along paths. */
static ferry_status squeeze(fitting *f, ferry_error *error)
{
    uint32_t degree = largest_degree(f);
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < f->deal->n_batches; i++) {
        if (f->edges.round[i] >= degree) {
            fy_palette_take(&f->palette, i);
        }
    }
    f->palette.n_colours = degree;
    for (uint32_t i = 0; i < f->deal->n_batches && status == FERRY_OK; i++) {
        if (f->edges.round[i] == FY_NO_COLOUR) {
            status = fy_palette_insert(&f->palette, i, error);
        }
    }
    return status;
}

/* Most deals of like pairs need nothing: every batch has a round, and some port one in each. */
static ferry_status fits_already(const fy_job *job, const fy_deal *deal, uint32_t n_rounds,
                                 bool *fits_out, ferry_error *error)
{
    uint32_t n = job->pairs->n_ranks, shift = job->duplex == FERRY_DUPLEX_HALF ? 0 : n, most = 0;
    bool placed = true;
    uint32_t *count = fy_alloc_zeroed(2 * (size_t)n, sizeof *count);
    FY_TRY(fy_check_memory(count != NULL, "the ports of a schedule", error));
    for (size_t i = 0; i < deal->n_batches; i++) {
        placed = placed && deal->batches[i].round != FY_NO_COLOUR;
        count[deal->batches[i].from]++;
        count[shift + deal->batches[i].to]++;
    }
    for (uint32_t i = 0; i < 2 * n; i++) {
        most = count[i] > most ? count[i] : most;
    }
    *fits_out = placed && most == n_rounds;
    fy_free(count);
    return FERRY_OK;
}

static ferry_status fit(const fy_job *job, uint32_t n_rounds, fy_deal *deal, ferry_error *error)
{
    fitting f;
    bool fits = false;
    ferry_status status = fitting_init(&f, job, deal, n_rounds, error);
    FY_THEN(status, place_leftovers(&f, error));
    if (status == FERRY_OK) {
        fits = largest_degree(&f) == f.n_rounds;
    }
    if (status == FERRY_OK && !fits) {
        status = pad(&f, &fits, error);
    }
    if (status == FERRY_OK && !fits) {
        status = squeeze(&f, error);
    }
    if (status == FERRY_OK) {
        fy_deal_take_rounds(deal, &f.edges);
    }
    fitting_cleanup(&f);
    return status;
}

ferry_status fy_deal_fit_rounds(const fy_job *job, uint32_t n_rounds, fy_deal *deal,
                                ferry_error *error)
{
    bool fits = false;
    ferry_status status = fits_already(job, deal, n_rounds, &fits, error);
    return status == FERRY_OK && !fits ? fit(job, n_rounds, deal, error) : status;
}
