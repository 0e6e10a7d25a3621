/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "schedule/relay.h"

#include <math.h>

/*
 * The optimal rule goes through a table of ways and keeps the fastest; of two that are equal but
 * for this share the one with fewer batches, which comes first.
 */
static const double WORTH_IT = 0.995;

/*
 * Where nodes limit, and in half duplex, trees of relays may do worse than chains; from here on
 * both are tried.
 */
static const double CHAIN_FROM = 1.05;

/* From here on relays are played in the other way as well. */
static const double EAGER_FROM = 1.02;

/*
 * Where no way without relays can be nearer to the bound than this, relays are made before the
 * others, which mostly need not be made at all then.
 */
static const double RELAYS_FIRST_FROM = 1.5;

/* Of what is added up in another order than a schedule's times are. */
static const double ROUNDING = 1e-9;

/* Beyond so many pairs peeling would take minutes; with many tasks few ways are tried. */
enum { PEEL_PAIRS = 1 << 23, SORT_BATCHES = 1 << 19, MANY_TASKS = 1 << 20 };

enum { MOST_SIZES = 8 };

/* How far the table has been gone through. */
typedef struct search {
    const fy_job *job;
    bool peelable;
    bool receivers_known;
    uint32_t receivers; /* the most of one group of contents; below 2: nothing to relay */
    double floor;       /* no way without relays is faster */
    bool puts_off;      /* those ways, as long as relays are faster than that */
    bool gave_up;       /* the first relays were not */
    ferry_schedule *best;
    /* Of the way at hand: */
    double tried[MOST_SIZES];
    uint32_t n_tries;
    uint32_t n_sizes; /* that were thought of */
    uint32_t n_tried; /* of all ways */
    double last;      /* the size that was tried last, or 0 */
    bool helped;      /* it was the best so far */
    bool refused;     /* the first one would take too long; stays until relays are tried again */
} search;

/* A way may be tried with several sizes: times or numbers of bytes, each known after the last. */
typedef struct way {
    ferry_status (*deal)(const fy_job *job, double size, fy_deal *deal, ferry_error *error);
    bool (*applies)(const search *s);
    bool (*next_size)(search *s, double *size_out); /* false: no more */
    /* What it takes at least with a size; of ways without relays the search knows. */
    ferry_status (*floor)(const fy_job *job, double size, double *time_out, ferry_error *error);
    bool relays;
    bool eager;
    bool probes; /* its first size tells whether it would take too long, so that is always tried */
    const char *doing; /* for who is told */
} way;

static bool is_good(const ferry_schedule *schedule)
{
    return schedule->report.ratio <= 2 - WORTH_IT;
}

/* Of the best so far, or what those ways come to at least that have been put off. */
static double ratio_of(const search *s)
{
    return s->best != NULL ? s->best->report.ratio : s->floor / s->job->bound.time;
}

/* Whether a schedule that takes at least so long would not be taken. */
static bool is_too_slow(const search *s, double floor)
{
    double best = s->best != NULL ? s->best->report.makespan : s->puts_off ? s->floor : INFINITY;
    return floor * (1 - ROUNDING) >= WORTH_IT * best;
}

static ferry_status deal_whole(const fy_job *job, double size, fy_deal *deal, ferry_error *error)
{
    uint64_t chunk = size < (double)job->slot_bytes ? (uint64_t)size : job->slot_bytes;
    return fy_deal_whole(job, fy_max(chunk, 1), deal, error);
}

/* The same batches in rounds of like lengths. */
static ferry_status deal_sorted(const fy_job *job, double size, fy_deal *deal, ferry_error *error)
{
    FY_TRY(deal_whole(job, size, deal, error));
    return fy_deal_sort_rounds(job, deal, error);
}

static bool has_many_tasks(const search *s)
{
    return (double)s->job->pairs->bytes / (double)s->job->slot_bytes > MANY_TASKS;
}

static bool is_many_and_peelable(const search *s)
{
    return s->peelable && has_many_tasks(s);
}

static bool always(const search *s)
{
    (void)s;
    return true;
}

static bool is_sortable(const search *s)
{
    return s->best->n_batches <= SORT_BATCHES && s->job->duplex == FERRY_DUPLEX_FULL;
}

static bool is_few_and_peelable(const search *s)
{
    return s->peelable && !has_many_tasks(s);
}

static bool is_not_peelable(const search *s)
{
    return !s->peelable;
}

static bool may_relay(const search *s)
{
    return s->receivers >= 2;
}

static bool may_relay_eagerly(const search *s)
{
    return may_relay(s) && !s->refused && ratio_of(s) > EAGER_FROM;
}

/* Where nodes limit, or where trees among so many receivers would take too long: chains are few. */
static bool may_chain(const search *s)
{
    return may_relay(s) && ratio_of(s) > CHAIN_FROM &&
           (s->job->network->n_nodes != 0 || s->job->duplex == FERRY_DUPLEX_HALF || s->refused);
}

static bool one_slot(search *s, double *size_out)
{
    *size_out = (double)s->job->slot_bytes;
    return s->n_sizes++ == 0;
}

/* Rounds of the length of a latency at least: shorter ones would mostly wait. */
static bool one_latency(search *s, double *size_out)
{
    *size_out = s->job->network->latency;
    return s->n_sizes++ == 0;
}

/* Equal chunks, ever smaller: for half duplex among ranks that both send and receive. */
static bool small_chunks(search *s, double *size_out)
{
    static const double parts[] = {16, 64, 256};
    const fy_job *job = s->job;
    double most = job->bound.time * fy_network_rate(job->network, job->bound.rank, job->bound.rank);
    while (s->n_sizes < sizeof parts / sizeof parts[0]) {
        *size_out = most / parts[s->n_sizes++];
        if (*size_out < (double)job->slot_bytes &&
            (double)job->pairs->bytes / fmax(*size_out, 1) < 1 << 24) {
            return true;
        }
    }
    return false;
}

static bool was_tried(const search *s, double size)
{
    bool was = false;
    for (uint32_t i = 0; i < s->n_tries; i++) {
        was = was || s->tried[i] == size;
    }
    return was;
}

/* Around the size for n chunks: a little off, then coarser and finer as long as that helps. */
static bool around(search *s, double n, double *size_out)
{
    static const struct {
        double factor;
        bool goes_on; /* only where the one before it helped */
    } tries[] = {{1, false},   {0.85, false}, {1.2, false}, {0.5, false},
                 {0.25, true}, {2, false},    {4, true}};
    double bytes = s->job->bound.time * s->job->network->rank_rate[s->job->bound.rank];
    while (s->n_sizes < sizeof tries / sizeof tries[0]) {
        size_t i = s->n_sizes++;
        *size_out = fmin(ceil(bytes / (n * tries[i].factor)), (double)s->job->slot_bytes);
        if ((tries[i].goes_on && !s->helped) || *size_out == s->last) {
            continue;
        }
        if (!was_tried(s, *size_out)) {
            return true;
        }
        s->last = *size_out;
        s->helped = false; /* as it would be if the same were made again */
    }
    return false;
}

/* The number of chunks at which latency and the pipeline's length cost the least together. */
static double best_chunks(const fy_job *job, double depth, double most)
{
    enum { LEAST_CHUNKS = 4 };
    double latency = job->network->latency;
    double n = latency > 0 ? sqrt(depth * job->bound.time / latency) : most;
    return fmin(fmax(n, LEAST_CHUNKS), most);
}

/*
 * In n rounds and log2(k) more k receivers pass n chunks on to each other, along a chain in n + k:
 * latency asks for few chunks, the pipeline for many.
 */
static bool tree_chunks(search *s, double *size_out)
{
    enum { MOST_CHUNKS = 384 };
    return around(s, best_chunks(s->job, log2(s->receivers + 1), MOST_CHUNKS), size_out);
}

/*
 * Where latency says how many, up to 8,192, but a sender's chunks and receivers make no more
 * batches than that; without latency more are always better, and 2,048 a beginning.
 */
static bool chain_chunks(search *s, double *size_out)
{
    enum { FEW_CHAINED = 2048, MOST_CHAINED = 8192, MOST_BATCHES = 1 << 22 };
    double most = FEW_CHAINED;
    if (s->job->network->latency > 0) {
        most = fmin(fmax((double)MOST_BATCHES / s->receivers, FEW_CHAINED), MOST_CHAINED);
    }
    return around(s, best_chunks(s->job, s->receivers, most), size_out);
}

/*
 * In this order, until a schedule is good. Uncut batches come first, as they are fewest; of very
 * many batches the even ones are made first, which mostly are good. Each earns its place on random
 * loads (docs/scheduling.md, section 12).
 */
static const way WAYS[] = {
    {.deal = fy_deal_even,
     .applies = is_many_and_peelable,
     .next_size = one_latency,
     .doing = "scheduling even rounds"},
    {.deal = deal_whole,
     .applies = always,
     .next_size = one_slot,
     .doing = "scheduling whole batches"},
    {.deal = deal_sorted,
     .applies = is_sortable,
     .next_size = one_slot,
     .doing = "scheduling rounds of like lengths"},
    {.deal = fy_deal_even,
     .applies = is_few_and_peelable,
     .next_size = one_latency,
     .doing = "scheduling even rounds"},
    {.deal = deal_whole,
     .applies = is_not_peelable,
     .next_size = small_chunks,
     .doing = "scheduling small batches"},
    {.deal = fy_deal_relayed,
     .applies = may_relay,
     .next_size = tree_chunks,
     .floor = fy_floor_of_relayed,
     .relays = true,
     .probes = true,
     .doing = "scheduling relays in trees"},
    {.deal = fy_deal_relayed,
     .applies = may_relay_eagerly,
     .next_size = tree_chunks,
     .floor = fy_floor_of_relayed,
     .relays = true,
     .eager = true,
     .doing = "scheduling eager relays"},
    {.deal = fy_deal_chained,
     .applies = may_chain,
     .next_size = chain_chunks,
     .floor = fy_floor_of_chained,
     .relays = true,
     .doing = "scheduling relays in chains"},
};

static ferry_status tell(search *s, const char *doing, ferry_error *error)
{
    ferry_schedule_progress progress = {.doing = doing,
                                        .n_tried = s->n_tried++,
                                        .ratio = s->best == NULL ? 0 : s->best->report.ratio};
    return s->job->progress == NULL || s->job->progress(s->job->progress_context, &progress)
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
}

/* Replaces the best where the way is worth it. */
static ferry_status try_size(search *s, const way *w, double size, ferry_error *error)
{
    fy_job job = *s->job;
    fy_deal deal = {0};
    ferry_schedule *schedule = NULL;
    job.eager = w->eager;
    FY_TRY(tell(s, w->doing, error));
    ferry_status status = fy_deal_init(&deal, job.pairs, job.slot_bytes, job.max_tasks, error);
    FY_THEN(status, w->deal(&job, size, &deal, error));
    FY_THEN(status, fy_schedule_assemble(&job, &deal, &schedule, error));
    fy_deal_cleanup(&deal);
    s->helped = status == FERRY_OK && (s->best == NULL || schedule->report.makespan <
                                                              WORTH_IT * s->best->report.makespan);
    if (s->helped) {
        ferry_schedule *other = s->best;
        s->best = schedule;
        schedule = other;
    }
    ferry_schedule_destroy(schedule);
    return status;
}

static bool is_done(const search *s)
{
    return s->gave_up || (s->best != NULL && is_good(s->best));
}

/* As try_size, where the size may be worth it. */
static ferry_status consider_size(search *s, const way *w, double size, ferry_error *error)
{
    double floor = 0;
    if (w->floor != NULL && !(w->probes && s->last == 0 && !s->puts_off)) {
        FY_TRY(w->floor(s->job, size, &floor, error));
    }
    bool is_first = s->puts_off && s->best == NULL;
    if (is_too_slow(s, floor)) {
        s->gave_up = is_first;
        s->helped = false;
        return FERRY_OK;
    }
    s->tried[s->n_tries++] = size;
    FY_TRY(try_size(s, w, size, error));
    s->gave_up = is_first && s->best->report.makespan >= WORTH_IT * s->floor * (1 - ROUNDING);
    return FERRY_OK;
}

static ferry_status try_sizes(search *s, const way *w, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    double size = 0;
    s->n_sizes = 0;
    s->n_tries = 0;
    s->last = 0;
    s->helped = true;
    s->refused = false;
    while (status == FERRY_OK && !is_done(s) && w->next_size(s, &size)) {
        status = consider_size(s, w, size, error);
        s->refused = status == FERRY_ERR_UNSUPPORTED && s->last == 0;
        s->last = size;
    }
    return status == FERRY_ERR_UNSUPPORTED ? FERRY_OK : status; /* it would take too long */
}

/* Receivers are counted when relays are thought of, for that takes time. */
static ferry_status count_receivers(search *s, ferry_error *error)
{
    if (s->receivers_known || !s->job->relays) {
        return FERRY_OK;
    }
    s->receivers_known = true;
    return fy_relay_fan_out(s->job, &s->receivers, error);
}

/* Half duplex is peeled only where every rank either sends or receives. */
static ferry_status find_peelable(const fy_job *job, bool *peelable_out, ferry_error *error)
{
    const fy_pairs *pairs = job->pairs;
    bool clash = false;
    *peelable_out = pairs->n_pairs <= PEEL_PAIRS;
    if (job->duplex == FERRY_DUPLEX_FULL) {
        return FERRY_OK;
    }
    uint8_t *role = fy_alloc_zeroed(pairs->n_ranks, 1);
    FY_TRY(fy_check_memory(role != NULL, "the ranks of a schedule", error));
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        role[pairs->pairs[i].from] |= 1;
        role[pairs->pairs[i].to] |= 2;
    }
    for (uint32_t rank = 0; rank < pairs->n_ranks; rank++) {
        clash = clash || role[rank] == 3;
    }
    fy_free(role);
    *peelable_out = *peelable_out && !clash;
    return FERRY_OK;
}

static ferry_status go_through(search *s, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < sizeof WAYS / sizeof WAYS[0] && status == FERRY_OK; i++) {
        if (is_done(s)) {
            break;
        }
        if (WAYS[i].relays) {
            status = count_receivers(s, error);
        } else if (s->puts_off || is_too_slow(s, s->floor)) {
            continue;
        }
        if (status == FERRY_OK && WAYS[i].applies(s)) {
            status = try_sizes(s, &WAYS[i], error);
        }
    }
    return status;
}

/*
 * Where the first relays are faster than anything without them can be, nothing without them is
 * made. If not, all is gone through in the order of the table.
 */
static ferry_status find_best(search *s, ferry_error *error)
{
    FY_TRY(find_peelable(s->job, &s->peelable, error));
    FY_TRY(fy_floor_of_direct(s->job, &s->floor, error));
    s->puts_off = s->job->relays && s->floor > RELAYS_FIRST_FROM * s->job->bound.time;
    if (s->puts_off) {
        FY_TRY(go_through(s, error));
        s->puts_off = false;
        if (s->best != NULL && !s->gave_up) {
            return FERRY_OK;
        }
        ferry_schedule_destroy(s->best);
        s->best = NULL;
        s->gave_up = false;
    }
    return go_through(s, error);
}

static ferry_status deal_first_fit(const fy_job *job, double size, fy_deal *deal,
                                   ferry_error *error)
{
    (void)size;
    return fy_deal_first_fit(job, deal, error);
}

static ferry_status schedule_best(const fy_job *job, ferry_schedule **best_out, ferry_error *error)
{
    static const way first_fit = {.deal = deal_first_fit, .doing = "scheduling by first fit"};
    search s = {.job = job};
    ferry_status status;
    if (job->rule == FERRY_SCHEDULE_OPTIMAL) {
        status = find_best(&s, error);
    } else {
        status = try_size(&s, &first_fit, 0, error);
    }
    *best_out = s.best; /* the caller destroys it if this failed */
    return status;
}

/* A schedule of as many takes minutes, and ten gigabytes. */
enum { MOST_BATCHES = 1 << 26 };

/* Before anything is cut: slots that are far too small would take all memory. */
static ferry_status check_degree(const fy_pairs *pairs, const fy_job *job, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t *batches = fy_alloc_zeroed(2 * (size_t)pairs->n_ranks, sizeof *batches);
    uint64_t all = 0;
    FY_TRY(fy_check_memory(batches != NULL, "the ports of a schedule", error));
    for (uint32_t i = 0; i < pairs->n_pairs && status == FERRY_OK; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        uint64_t least = fy_max(fy_ceil_div(pair->bytes, job->slot_bytes),
                                fy_ceil_div(pair->n_tasks, job->max_tasks));
        uint64_t sent = batches[pair->from] += least;
        uint64_t got = batches[pairs->n_ranks + pair->to] += least;
        all += least;
        if (all > MOST_BATCHES) {
            bool sends = sent >= got;
            status =
                fy_fail(error, FERRY_ERR_LIMIT,
                        "rank %u %s at least %llu batches of %llu bytes, and there are %llu "
                        "in all; the limit is %u: take larger slots (--slot-bytes)",
                        sends ? pair->from : pair->to, sends ? "sends" : "receives",
                        (unsigned long long)fy_max(sent, got), (unsigned long long)job->slot_bytes,
                        (unsigned long long)all, (unsigned)MOST_BATCHES);
        }
    }
    fy_free(batches);
    return status;
}

static ferry_status check_options(const fy_pairs *pairs, const fy_job *job, ferry_error *error)
{
    for (uint32_t i = 0; i < pairs->n_pairs && pairs->largest_element > job->slot_bytes; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        for (uint32_t t = pair->first; t < pair->first + pair->n_tasks; t++) {
            const fy_task *task = &pairs->tasks[t];
            if (task->element > job->slot_bytes) {
                return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                               "task %llu from rank %u to rank %u has elements of %u bytes, which "
                               "do not fit a slot of %llu bytes: take larger slots",
                               (unsigned long long)task->id, pair->from, pair->to, task->element,
                               (unsigned long long)job->slot_bytes);
            }
        }
    }
    return check_degree(pairs, job, error);
}

static ferry_status read_options(const ferry_schedule_options *options, fy_job *job,
                                 ferry_error *error)
{
    ferry_schedule_options own;
    FY_TRY(fy_take_schedule_options(options, &own, error));
    if (own.rule > FERRY_SCHEDULE_FIRST_FIT_HALF || own.duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(
            error, FERRY_ERR_MISUSE,
            "options of a schedule: %u is not a ferry_schedule_rule or %u not a ferry_duplex",
            own.rule, own.duplex);
    }
    bool is_half = own.rule == FERRY_SCHEDULE_FIRST_FIT_HALF;
    job->rule = own.rule;
    job->duplex = is_half ? (uint32_t)FERRY_DUPLEX_HALF : own.duplex;
    job->slot_bytes = own.slot_bytes == 0 ? FERRY_SLOT_BYTES : own.slot_bytes;
    job->max_tasks = own.max_tasks == 0 ? FERRY_MAX_TASKS : own.max_tasks;
    job->progress = own.progress;
    job->progress_context = own.context;
    job->relays = !own.no_relays && own.rule == FERRY_SCHEDULE_OPTIMAL;
    return FERRY_OK;
}

/* What a schedule that is not listed is told by. */
static void hand_over_tasks(fy_pairs *pairs, ferry_schedule *schedule)
{
    if (schedule->segments == NULL) {
        schedule->tasks = pairs->tasks;
        pairs->tasks = NULL;
    }
}

ferry_status fy_schedule_create_taking(fy_pairs *pairs, const fy_cluster *cluster,
                                       const ferry_schedule_options *options,
                                       ferry_schedule **schedule_out, ferry_error *error)
{
    fy_network network = {0};
    fy_job job = {.pairs = pairs, .network = &network};
    ferry_schedule *best = NULL;
    ferry_status status = read_options(options, &job, error);
    FY_THEN(status, fy_network_init(cluster, pairs->n_ranks, &network, error));
    FY_THEN(status, check_options(pairs, &job, error));
    FY_THEN(status, fy_bound_of(pairs, &network, job.duplex, &job.bound, error));
    FY_THEN(status, schedule_best(&job, &best, error));
    if (status == FERRY_OK) {
        hand_over_tasks(pairs, best);
        status = fy_schedule_make_digest(best, error);
    }
    if (status == FERRY_OK) {
        *schedule_out = best;
    } else {
        ferry_schedule_destroy(best);
    }
    fy_network_cleanup(&network);
    fy_pairs_cleanup(pairs);
    return status;
}

ferry_status ferry_schedule_create(const ferry_task_list *tasks, const ferry_cluster *cluster,
                                   const ferry_schedule_options *options,
                                   ferry_schedule **schedule_out, ferry_error *error)
{
    FY_TRY(fy_check_use(tasks != NULL && schedule_out != NULL,
                        "ferry_schedule_create needs tasks and a place for the schedule", error));
    static const fy_cluster none = {.present = false};
    const fy_cluster *rates = cluster == NULL ? &none : &cluster->rates;
    fy_pairs pairs;
    FY_TRY(fy_pairs_init(tasks, &pairs, error));
    return fy_schedule_create_taking(&pairs, rates, options, schedule_out, error);
}
