/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/build.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/options.h"
#include "schedule/relay.h"

#include <math.h>

/*
 * The optimal rule tries a few ways and keeps the fastest; of two that are equal but for this share
 * the one with fewer batches, which comes first.
 */
static const double WORTH_IT = 0.995;

/*
 * Where nodes limit, and in half duplex, trees of relays may do worse than chains; from here on
 * both are tried.
 */
static const double CHAIN_FROM = 1.05;

/* From here on relays are played in the other way as well. */
static const double EAGER_FROM = 1.02;

/* Beyond so many pairs peeling would take minutes; with many tasks few ways are tried. */
enum { PEEL_PAIRS = 1 << 23, SORT_BATCHES = 1 << 19, MANY_TASKS = 1 << 20 };

typedef ferry_status (*deal_way)(const fy_job *job, double size, fy_deal *deal, ferry_error *error);

static ferry_status deal_first_fit(const fy_job *job, double size, fy_deal *deal,
                                   ferry_error *error)
{
    (void)size;
    return fy_deal_first_fit(job, deal, error);
}

static ferry_status deal_whole(const fy_job *job, double size, fy_deal *deal, ferry_error *error)
{
    uint64_t chunk = size < (double)job->slot_bytes ? (uint64_t)size : job->slot_bytes;
    return fy_deal_whole(job, fy_max(chunk, 1), deal, error);
}

/* The same batches in rounds of like lengths. */
static ferry_status deal_sorted(const fy_job *job, double size, fy_deal *deal, ferry_error *error)
{
    ferry_status status = deal_whole(job, size, deal, error);
    return status == FERRY_OK ? fy_deal_sort_rounds(job, deal, error) : status;
}

/* Replaces *best where the way is worth it; a way's size is a time or a number of bytes. */
static ferry_status try_way(const fy_job *job, deal_way way, double size, ferry_schedule **best,
                            ferry_error *error)
{
    fy_deal         deal;
    ferry_schedule *schedule = NULL;
    ferry_status status = fy_deal_init(&deal, job->pairs, job->slot_bytes, job->max_tasks, error);
    if (status == FERRY_OK) {
        status = way(job, size, &deal, error);
    }
    if (status == FERRY_OK) {
        status = fy_schedule_assemble(job, &deal, &schedule, error);
    }
    fy_deal_cleanup(&deal);
    if (status == FERRY_OK &&
        (*best == NULL || schedule->report.makespan < WORTH_IT * (*best)->report.makespan)) {
        ferry_schedule *other = *best;
        *best                 = schedule;
        schedule              = other;
    }
    ferry_schedule_destroy(schedule);
    return status;
}

static bool is_good(const ferry_schedule *schedule)
{
    return schedule->report.ratio <= 2 - WORTH_IT;
}

/* Half duplex is peeled only where every rank either sends or receives. */
static ferry_status find_peelable(const fy_job *job, bool *peelable_out, ferry_error *error)
{
    const fy_pairs *pairs = job->pairs;
    bool            clash = false;
    *peelable_out         = pairs->n_pairs <= PEEL_PAIRS;
    if (job->duplex == FERRY_DUPLEX_FULL) {
        return FERRY_OK;
    }
    uint8_t *role = fy_alloc_zeroed(pairs->n_ranks, 1);
    if (role == NULL) {
        return fy_fail_no_memory(error, "the ranks of a schedule");
    }
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

/* Rounds of the length of a latency at least: shorter ones would mostly wait. */
static ferry_status try_even(const fy_job *job, ferry_schedule **best, ferry_error *error)
{
    return try_way(job, fy_deal_even, job->network->latency, best, error);
}

/* Equal chunks, ever smaller: for half duplex among ranks that both send and receive. */
static ferry_status try_chunks(const fy_job *job, ferry_schedule **best, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    double most = job->bound.time * fy_network_rate(job->network, job->bound.rank, job->bound.rank);
    for (double parts = 16; parts <= 256 && !is_good(*best) && status == FERRY_OK; parts *= 4) {
        double chunk = most / parts;
        if (chunk < (double)job->slot_bytes &&
            (double)job->pairs->bytes / fmax(chunk, 1) < 1 << 24) {
            status = try_way(job, deal_whole, chunk, best, error);
        }
    }
    return status;
}

/* The number of chunks at which latency and the pipeline's length cost the least together. */
static double best_chunks(const fy_job *job, double depth, double most)
{
    enum { LEAST_CHUNKS = 4 };
    double latency = job->network->latency;
    double n       = latency > 0 ? sqrt(depth * job->bound.time / latency) : most;
    return fmin(fmax(n, LEAST_CHUNKS), most);
}

/* Pieces around the wanted size: a little off, then coarser and finer as long as that helps. */
static ferry_status try_chunked(const fy_job *job, deal_way way, double n, ferry_schedule **best,
                                ferry_error *error)
{
    static const struct {
        double factor;
        bool   goes_on; /* only where the one before it helped */
    } tries[]          = {{1, false},   {0.85, false}, {1.2, false}, {0.5, false},
                          {0.25, true}, {2, false},    {4, true}};
    double       bytes = job->bound.time * job->network->rank_rate[job->bound.rank];
    double       slot = (double)job->slot_bytes, last = 0;
    ferry_status status = FERRY_OK;
    bool         helped = true;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0] && status == FERRY_OK; i++) {
        const ferry_schedule *before = *best;
        double                size   = fmin(ceil(bytes / (n * tries[i].factor)), slot);
        if (is_good(*best) || (tries[i].goes_on && !helped) || size == last) {
            continue;
        }
        last   = size;
        status = try_way(job, way, size, best, error);
        helped = *best != before;
    }
    return status == FERRY_ERR_UNSUPPORTED ? FERRY_OK : status; /* it would take too long */
}

/*
 * In n rounds and log2(k) more k receivers pass n chunks on to each other, along a chain in n + k:
 * latency asks for few chunks, the pipeline for many.
 */
static ferry_status try_relays(const fy_job *job, ferry_schedule **best, ferry_error *error)
{
    enum { MOST_CHUNKS = 384, MOST_CHAINED = 2048 };
    uint32_t     receivers = 0;
    ferry_status status    = fy_relay_fan_out(job, &receivers, error);
    if (status != FERRY_OK || receivers < 2) {
        return status;
    }
    double n = best_chunks(job, log2(receivers + 1), MOST_CHUNKS);
    status   = try_chunked(job, fy_deal_relayed, n, best, error);
    if (status == FERRY_OK && (*best)->report.ratio > EAGER_FROM) {
        fy_job eager = *job;
        eager.eager  = true;
        status       = try_chunked(&eager, fy_deal_relayed, n, best, error);
    }
    bool may_chain = job->network->n_nodes != 0 || job->duplex == FERRY_DUPLEX_HALF;
    if (status == FERRY_OK && may_chain && (*best)->report.ratio > CHAIN_FROM) {
        status = try_chunked(job, fy_deal_chained, best_chunks(job, receivers, MOST_CHAINED), best,
                             error);
    }
    return status;
}

/* Uncut batches first, as they are fewest; of very many batches the even ones are made first. */
static ferry_status schedule_direct(const fy_job *job, ferry_schedule **best, ferry_error *error)
{
    bool         peelable = false;
    ferry_status status   = find_peelable(job, &peelable, error);
    bool even_first = peelable && (double)job->pairs->bytes / (double)job->slot_bytes > MANY_TASKS;
    if (status == FERRY_OK && even_first) {
        status = try_even(job, best, error);
    }
    if (status == FERRY_OK && (*best == NULL || !is_good(*best))) {
        status = try_way(job, deal_whole, (double)job->slot_bytes, best, error);
    }
    if (status == FERRY_OK && (*best)->n_batches <= SORT_BATCHES && !is_good(*best) &&
        job->duplex == FERRY_DUPLEX_FULL) {
        status = try_way(job, deal_sorted, (double)job->slot_bytes, best, error);
    }
    if (status == FERRY_OK && !is_good(*best) && !even_first) {
        status = peelable ? try_even(job, best, error) : try_chunks(job, best, error);
    }
    return status;
}

static ferry_status schedule_best(const fy_job *job, ferry_schedule **best, ferry_error *error)
{
    if (job->rule != FERRY_SCHEDULE_OPTIMAL) {
        return try_way(job, deal_first_fit, 0, best, error);
    }
    ferry_status status = schedule_direct(job, best, error);
    if (status == FERRY_OK && job->relays && !is_good(*best)) {
        status = try_relays(job, best, error);
    }
    return status;
}

/* Before anything is cut: slots that are far too small would take all memory. */
static ferry_status check_degree(const fy_pairs *pairs, const fy_job *job, ferry_error *error)
{
    ferry_status status  = FERRY_OK;
    uint64_t    *batches = fy_alloc_zeroed(2 * (size_t)pairs->n_ranks, sizeof *batches);
    uint64_t     all     = 0;
    if (batches == NULL) {
        return fy_fail_no_memory(error, "the ports of a schedule");
    }
    for (uint32_t i = 0; i < pairs->n_pairs && status == FERRY_OK; i++) {
        const fy_pair *pair  = &pairs->pairs[i];
        uint64_t       least = fy_max(fy_ceil_div(pair->bytes, job->slot_bytes),
                                      fy_ceil_div(pair->n_tasks, job->max_tasks));
        uint64_t       sent  = batches[pair->from] += least;
        uint64_t       got   = batches[pairs->n_ranks + pair->to] += least;
        all += least;
        if (fy_max(sent, got) > INT32_MAX || all > INT32_MAX) {
            bool sends = sent >= got;
            status     = fy_fail(error, FERRY_ERR_LIMIT,
                                 "rank %u %s at least %llu batches of %llu bytes, and there are %llu "
                                     "in all; the limit is 2^31 - 1: take larger slots",
                             sends ? pair->from : pair->to, sends ? "sends" : "receives",
                                 (unsigned long long)fy_max(sent, got),
                                 (unsigned long long)job->slot_bytes, (unsigned long long)all);
        }
    }
    fy_free(batches);
    return status;
}

static ferry_status check_options(const fy_pairs *pairs, const fy_job *job, ferry_error *error)
{
    for (uint32_t i = 0; i < pairs->n_tasks; i++) {
        const fy_task *task = &pairs->tasks[i];
        if (task->element > job->slot_bytes) {
            return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                           "task %llu from rank %u to rank %u has elements of %u bytes, which do "
                           "not fit a slot of %llu bytes: take larger slots",
                           (unsigned long long)task->id, task->from, task->to, task->element,
                           (unsigned long long)job->slot_bytes);
        }
    }
    return check_degree(pairs, job, error);
}

static ferry_status read_options(const ferry_schedule_options *options, fy_job *job,
                                 ferry_error *error)
{
    ferry_schedule_options own;
    ferry_status           status = fy_take_schedule_options(options, &own, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (own.rule > FERRY_SCHEDULE_FIRST_FIT_HALF || own.duplex > FERRY_DUPLEX_HALF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "options of a schedule: %u is no ferry_schedule_rule or %u no ferry_duplex",
                       own.rule, own.duplex);
    }
    bool is_half    = own.rule == FERRY_SCHEDULE_FIRST_FIT_HALF;
    job->rule       = own.rule;
    job->duplex     = is_half ? (uint32_t)FERRY_DUPLEX_HALF : own.duplex;
    job->slot_bytes = own.slot_bytes == 0 ? FERRY_SLOT_BYTES : own.slot_bytes;
    job->max_tasks  = own.max_tasks == 0 ? FERRY_MAX_TASKS : own.max_tasks;
    job->relays     = !own.no_relays && own.rule == FERRY_SCHEDULE_OPTIMAL;
    return FERRY_OK;
}

static ferry_status schedule_pairs(fy_pairs *pairs, const ferry_cluster *cluster,
                                   const ferry_schedule_options *options,
                                   ferry_schedule **schedule_out, ferry_error *error)
{
    fy_network      network = {0};
    fy_job          job     = {.pairs = pairs, .network = &network};
    ferry_schedule *best    = NULL;
    ferry_status    status  = read_options(options, &job, error);
    if (status == FERRY_OK) {
        status = fy_network_init(cluster, pairs->n_ranks, &network, error);
    }
    if (status == FERRY_OK) {
        status = check_options(pairs, &job, error);
    }
    if (status == FERRY_OK) {
        status = fy_bound_of(pairs, &network, job.duplex, &job.bound, error);
    }
    if (status == FERRY_OK) {
        status = schedule_best(&job, &best, error);
    }
    if (status == FERRY_OK) {
        status = fy_schedule_make_digest(best, error);
    }
    if (status == FERRY_OK) {
        *schedule_out = best;
    } else {
        ferry_schedule_destroy(best);
    }
    fy_network_cleanup(&network);
    return status;
}

ferry_status ferry_schedule_create(const ferry_task_list *tasks, const ferry_cluster *cluster,
                                   const ferry_schedule_options *options,
                                   ferry_schedule **schedule_out, ferry_error *error)
{
    if (tasks == NULL || schedule_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_schedule_create needs tasks and a place for the schedule");
    }
    fy_pairs     pairs;
    ferry_status status = fy_pairs_init(tasks, &pairs, error);
    if (status == FERRY_OK) {
        status = schedule_pairs(&pairs, cluster, options, schedule_out, error);
    }
    fy_pairs_cleanup(&pairs);
    return status;
}

ferry_status fy_schedule_create_taking(ferry_task_list *tasks, const ferry_cluster *cluster,
                                       const ferry_schedule_options *options,
                                       ferry_schedule **schedule_out, ferry_error *error)
{
    fy_pairs     pairs;
    ferry_status status = fy_pairs_take(tasks, &pairs, error);
    if (status == FERRY_OK) {
        status = schedule_pairs(&pairs, cluster, options, schedule_out, error);
    }
    fy_pairs_cleanup(&pairs);
    return status;
}
