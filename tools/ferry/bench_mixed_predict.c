/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of time. What CPUs do adds up, and ranks that outnumber the processors share them.
 * Parts of a device that work at once hide behind the busiest of them, but for one step of the
 * others: a block has to get through all of them.
 */
#include "bench_mixed_predict.h"

#include "steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SKETCHES = 64,
    N_REPRESENTATIVES = 3,
    N_FIXED = 8,
    MOST_COSTS = N_FIXED + MIXED_MOST_KNOTS
};

/* ---- ranks ---- */

static void place_rank(ferry_mixed_comm_options *o, uint32_t rank)
{
    o->world_rank = rank;
    o->local_rank = rank % o->local_size;
    o->inter_rank = rank / o->local_size;
}

/*
 * Ranks of a node do alike, but that those at its ends have a neighbour of a ring on another node:
 * of many ranks the first two and the last of the first node stand for all.
 */
static uint32_t rank_at(const ferry_mixed_comm_options *o, uint32_t n, uint32_t index)
{
    return n == o->world_size || index + 1 < n ? index : o->local_size - 1;
}

ferry_status mixed_sketches_open(const ferry_mixed_comm_options *options, uint32_t reach,
                                 uint32_t n_sharing, mixed_sketches *sketches_out,
                                 ferry_error *error)
{
    ferry_mixed_comm_options own = *options;
    uint32_t n = own.world_size <= MOST_SKETCHES                ? own.world_size
                 : own.local_size < (uint32_t)N_REPRESENTATIVES ? own.local_size
                                                                : (uint32_t)N_REPRESENTATIVES;
    mixed_sketches sketches = {.n_sharing = n_sharing};
    ferry_status status = FERRY_OK;
    sketches.at = calloc(n, sizeof *sketches.at);
    if (sketches.at == NULL) {
        return mixed_fail(error, FERRY_ERR_NO_MEMORY, "no memory for sketches of %u ranks", n);
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        place_rank(&own, rank_at(&own, n, i));
        status = ferry_mixed_sketch_create(&own, reach, &sketches.at[i], error);
        sketches.n += status == FERRY_OK;
    }
    if (status != FERRY_OK) {
        mixed_sketches_close(&sketches);
        return status;
    }
    *sketches_out = sketches;
    return FERRY_OK;
}

void mixed_sketches_close(mixed_sketches *sketches)
{
    for (uint32_t i = 0; i < sketches->n; i++) {
        ferry_mixed_sketch_destroy(sketches->at[i]);
    }
    free(sketches->at);
    *sketches = (mixed_sketches){.at = NULL};
}

/* ---- what a call consists of ---- */

/* How often each cost is paid. Bytes are those of the busiest processor, or of the busiest rank. */
enum {
    WAITS,
    TURNS,
    BETWEEN_WAITS,
    FURTHER_STEPS,
    STEPS,
    WRITTEN,
    READ,
    BETWEEN,
    TENSORS,
    N_PARTS
};

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static void find_own_parts(const ferry_mixed_work *w, double own[N_PARTS])
{
    bool one = w->is_pipelined; /* further steps are on their way while it waits for the first */
    double steps = (double)w->n_steps, inside = (double)w->n_inside_waits;
    double between = (double)w->n_between_waits;
    own[WAITS] = one ? inside : 0;
    own[TURNS] = one ? 0 : steps * inside;
    own[BETWEEN_WAITS] = (one ? 1 : steps) * between;
    own[FURTHER_STEPS] = one ? (steps - 1) * (inside + between) : 0;
    own[STEPS] = (double)w->n_steps;
    own[WRITTEN] = (double)(w->inside_bytes_written + w->own_bytes_written);
    own[READ] = (double)(w->inside_bytes_read + w->own_bytes_read);
    own[BETWEEN] = (double)w->between_bytes;
    own[TENSORS] = (double)(w->tensor_bytes_read + w->tensor_bytes_written);
}

/* False: the mode has no schedule. Of ranks that share processors the mean counts, for each of the
 * ranks that a processor has. */
static bool find_parts(const mixed_sketches *sketches, const mixed_sample *call,
                       uint32_t processors, double found[N_PARTS])
{
    double sum[N_PARTS] = {0}, lanes = 1;
    memset(found, 0, N_PARTS * sizeof *found);
    for (uint32_t i = 0; i < sketches->n; i++) {
        ferry_mixed_work w = FERRY_MIXED_WORK_INIT;
        double own[N_PARTS];
        if (ferry_mixed_sketch_count(sketches->at[i], call->op, call->mode, call->count, &w,
                                     NULL) != FERRY_OK) {
            return false;
        }
        lanes = processors > 0 ? w.n_lanes : 1; /* a device's bandwidth does not grow with lanes */
        find_own_parts(&w, own);
        for (size_t k = 0; k < N_PARTS; k++) {
            found[k] = max_of(found[k], own[k]);
            sum[k] += own[k];
        }
    }
    double crowd = processors > 0 ? max_of((double)sketches->n_sharing * lanes / processors, 1) : 1;
    for (size_t k = WRITTEN; k < N_PARTS; k++) {
        found[k] = max_of(found[k], sum[k] / sketches->n * crowd) / lanes;
    }
    return true;
}

/* ---- seconds ---- */

/* The share of each knot in a size between two of them, on the scale of logarithms. */
static void weigh_knots(const mixed_costs *costs, double bytes, double *weights)
{
    size_t n = costs->n_knots, i = 0;
    memset(weights, 0, n * sizeof *weights);
    while (i < n && costs->tensors[i].bytes < bytes) {
        i++;
    }
    if (i == 0 || i == n) {
        weights[i == 0 ? 0 : n - 1] = 1;
        return;
    }
    double low = log(costs->tensors[i - 1].bytes), high = log(costs->tensors[i].bytes);
    weights[i] = (log(bytes) - low) / (high - low);
    weights[i - 1] = 1 - weights[i];
}

static double tensor_seconds(const mixed_costs *costs, double bytes, double moved)
{
    double weights[MIXED_MOST_KNOTS] = {0}, each = 0;
    if (costs->n_knots > 0) {
        weigh_knots(costs, bytes, weights);
    }
    for (size_t i = 0; i < costs->n_knots; i++) {
        each += weights[i] * costs->tensors[i].each;
    }
    return each * moved;
}

double mixed_predict(const mixed_costs *costs, const mixed_sketches *sketches,
                     const mixed_sample *call)
{
    double p[N_PARTS];
    if (!find_parts(sketches, call, costs->overlaps ? 0 : costs->processors, p)) {
        return 0;
    }
    double fixed = costs->call + costs->wait * p[WAITS] + costs->turn * p[TURNS] +
                   costs->between_wait * p[BETWEEN_WAITS] + costs->step * p[FURTHER_STEPS];
    double work[] = {costs->write * p[WRITTEN], costs->read * p[READ], costs->between * p[BETWEEN],
                     tensor_seconds(costs, (double)call->bytes, p[TENSORS])};
    double sum = 0, most = 0;
    for (size_t i = 0; i < sizeof work / sizeof work[0]; i++) {
        sum += work[i];
        most = max_of(most, work[i]);
    }
    return fixed + (costs->overlaps ? most + (sum - most) / p[STEPS] : sum);
}

/* ---- the fit ---- */

typedef struct fitting {
    size_t n_costs;
    double product[MOST_COSTS][MOST_COSTS], target[MOST_COSTS];
    double found[MOST_COSTS];
} fitting;

static int compare_knots(const void *a, const void *b)
{
    double x = ((const mixed_knot *)a)->bytes, y = ((const mixed_knot *)b)->bytes;
    return (x > y) - (x < y);
}

static ferry_status find_knots(const mixed_sample *samples, size_t n, mixed_costs *costs,
                               ferry_error *error)
{
    costs->n_knots = 0;
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < costs->n_knots; k++) {
            known = known || costs->tensors[k].bytes == (double)samples[i].bytes;
        }
        if (known) {
            continue;
        }
        if (costs->n_knots == MIXED_MOST_KNOTS) {
            return mixed_fail(error, FERRY_ERR_LIMIT, "costs are fitted to at most %d sizes",
                              MIXED_MOST_KNOTS);
        }
        costs->tensors[costs->n_knots++] = (mixed_knot){.bytes = (double)samples[i].bytes};
    }
    qsort(costs->tensors, costs->n_knots, sizeof costs->tensors[0], compare_knots);
    return FERRY_OK;
}

/* False: there is no schedule, so nothing to learn. */
static bool make_row(const mixed_sample *sample, const mixed_sketches *sketches,
                     const mixed_costs *costs, double row[MOST_COSTS])
{
    double p[N_PARTS], weights[MIXED_MOST_KNOTS];
    if (sample->seconds <= 0 || !find_parts(sketches, sample, costs->processors, p)) {
        return false;
    }
    const double fixed[N_FIXED] = {
        1, p[WAITS], p[TURNS], p[BETWEEN_WAITS], p[FURTHER_STEPS], p[WRITTEN], p[READ], p[BETWEEN]};
    weigh_knots(costs, (double)sample->bytes, weights);
    for (size_t i = 0; i < N_FIXED; i++) {
        row[i] = fixed[i] / sample->seconds;
    }
    for (size_t k = 0; k < costs->n_knots; k++) {
        row[N_FIXED + k] = weights[k] * p[TENSORS] / sample->seconds;
    }
    return true;
}

/* All rows should give 1: each sample counts by its own share, however long it takes. */
static void add_row(fitting *f, const double row[MOST_COSTS])
{
    for (size_t i = 0; i < f->n_costs; i++) {
        f->target[i] += row[i];
        for (size_t k = 0; k < f->n_costs; k++) {
            f->product[i][k] += row[i] * row[k];
        }
    }
}

/*
 * Least squares with nothing below 0, one cost after the other: each step makes the sum of squares
 * smaller, which is convex, so this ends at the one best place. Costs differ by ten orders of
 * magnitude, but a step of one does not depend on the scale of another.
 */
static void solve(fitting *f)
{
    enum { MOST_SWEEPS = 200000 };
    for (int sweep = 0; sweep < MOST_SWEEPS; sweep++) {
        double change = 0;
        for (size_t i = 0; i < f->n_costs; i++) {
            double pull = f->target[i];
            if (f->product[i][i] <= 0) {
                continue;
            }
            for (size_t k = 0; k < f->n_costs; k++) {
                pull -= f->product[i][k] * f->found[k];
            }
            double next = max_of(f->found[i] + pull / f->product[i][i], 0);
            change = max_of(change, fabs(next - f->found[i]) * sqrt(f->product[i][i]));
            f->found[i] = next;
        }
        if (change < 1e-9) {
            return;
        }
    }
}

ferry_status mixed_fit(const mixed_sample *samples, size_t n, const mixed_sketches *sketches,
                       mixed_costs *costs, ferry_error *error)
{
    fitting f = {.n_costs = 0};
    size_t n_rows = 0;
    costs->overlaps = false;
    FY_TRY(find_knots(samples, n, costs, error));
    f.n_costs = N_FIXED + costs->n_knots;
    for (size_t i = 0; i < n; i++) {
        double row[MOST_COSTS] = {0};
        if (make_row(&samples[i], sketches, costs, row)) {
            add_row(&f, row);
            n_rows++;
        }
    }
    if (n_rows == 0) {
        return mixed_fail(error, FERRY_ERR_INVALID_INPUT,
                          "there is no call to which costs can be fitted: autotune and default are "
                          "other modes under another name");
    }
    solve(&f);
    costs->call = f.found[0];
    costs->wait = f.found[1];
    costs->turn = f.found[2];
    costs->between_wait = f.found[3];
    costs->step = f.found[4];
    costs->write = f.found[5];
    costs->read = f.found[6];
    costs->between = f.found[7];
    for (size_t k = 0; k < costs->n_knots; k++) {
        costs->tensors[k].each = f.found[N_FIXED + k];
    }
    return FERRY_OK;
}

/* ---- what the costs leave out ---- */

/* The sample of the same operation and mode that is nearest below, or above; NULL: none is. */
static const mixed_sample *find_beside(const mixed_sample *samples, size_t n,
                                       const mixed_sample *call, bool above)
{
    const mixed_sample *found = NULL;
    for (size_t i = 0; i < n; i++) {
        const mixed_sample *s = &samples[i];
        bool fits = s->op == call->op && s->mode == call->mode && s->seconds > 0 &&
                    (above ? s->bytes >= call->bytes : s->bytes <= call->bytes);
        if (fits && (found == NULL || (s->bytes < found->bytes) == above)) {
            found = s;
        }
    }
    return found;
}

/* A sample that somebody else disturbed is no reason to be further off than by two. */
static double log_off(const mixed_costs *costs, const mixed_sketches *sketches,
                      const mixed_sample *sample)
{
    double predicted = mixed_predict(costs, sketches, sample);
    double off = predicted > 0 ? log(sample->seconds / predicted) : 0;
    return fmin(fmax(off, -log(2)), log(2));
}

double mixed_predict_beside(const mixed_costs *costs, const mixed_sketches *sketches,
                            const mixed_sample *samples, size_t n, const mixed_sample *call)
{
    const mixed_sample *below = find_beside(samples, n, call, false);
    const mixed_sample *above = find_beside(samples, n, call, true);
    below = below == NULL ? above : below;
    above = above == NULL ? below : above;
    if (below == NULL) {
        return mixed_predict(costs, sketches, call);
    }
    double low = log((double)below->bytes), high = log((double)above->bytes);
    double share = high > low ? (log((double)call->bytes) - low) / (high - low) : 0;
    double off =
        (1 - share) * log_off(costs, sketches, below) + share * log_off(costs, sketches, above);
    return mixed_predict(costs, sketches, call) * exp(off);
}
