/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a way takes at least, latency counted, found without making it: ports are looked at one by
 * one, and what they wait for is left out but for the first chunk that comes down a chain.
 */
#include "schedule/links.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"

#include <math.h>

static double batch_time(const fy_job *job, double bytes, double batches, double rate)
{
    return bytes / rate + batches * job->network->latency;
}

static double most_of(const double *times, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, times[i]);
    }
    return most;
}

ferry_status fy_floor_of_direct(const fy_job *job, double *time_out, ferry_error *error)
{
    const fy_network *network = job->network;
    size_t n = network->n_ranks, nodes = network->n_nodes;
    double *times = fy_alloc_zeroed(2 * (n + nodes), sizeof *times);
    FY_TRY(fy_check_memory(times != NULL, "the ports of a schedule", error));
    double *in = job->duplex == FERRY_DUPLEX_HALF ? times : times + n, *node = times + 2 * n;
    for (uint32_t i = 0; i < job->pairs->n_pairs; i++) {
        const fy_pair *pair = &job->pairs->pairs[i];
        uint64_t least = fy_max(fy_ceil_div(pair->bytes, job->slot_bytes),
                                fy_ceil_div(pair->n_tasks, job->max_tasks));
        double time = batch_time(job, (double)pair->bytes, (double)least,
                                 fy_network_rate(network, pair->from, pair->to));
        times[pair->from] += time;
        in[pair->to] += time;
        if (nodes == 0) {
            continue;
        }
        uint32_t a = fy_network_node(network, pair->from), b = fy_network_node(network, pair->to);
        if (a != b) {
            node[a] += (double)pair->bytes / network->node_rate[a];
            node[nodes + b] += (double)pair->bytes / network->node_rate[b];
        }
    }
    *time_out = most_of(times, 2 * (n + nodes));
    fy_free(times);
    return FERRY_OK;
}

/* Something that a rank receives: not before begin, and in no less than time. */
typedef struct receipt {
    double begin;
    double time;
    uint32_t rank;
} receipt;

typedef struct receipts {
    const fy_job *job;
    receipt *at;
    size_t n;
} receipts;

static void add_receipt(receipts *r, uint32_t rank, double begin, uint64_t bytes, double batches)
{
    double time = batch_time(r->job, (double)bytes, batches, r->job->network->rank_rate[rank]);
    r->at[r->n++] = (receipt){.begin = begin, .time = time, .rank = rank};
}

/*
 * A receiver has nothing of a chain before a chunk has come down to the one before it. The last
 * chunk, which may be short, is looked at by itself: it may be faster than the others, but not
 * before the sender has sent all of them.
 */
static void add_chain(receipts *r, const fy_groups *groups, const fy_group *group)
{
    const uint32_t *ranks = groups->ranks + group->members;
    const double *rate = r->job->network->rank_rate;
    uint32_t others = group->n_chunks - 1, first = fy_next_in_chain(groups, group, 0);
    uint64_t bytes = 0, least = UINT64_MAX;
    for (uint32_t chunk = 0; chunk < others; chunk++) {
        uint64_t its = fy_group_chunk_bytes(groups, group, chunk);
        bytes += its;
        least = fy_min(least, its);
    }
    uint64_t last = fy_group_chunk_bytes(groups, group, others);
    least = others == 0 ? last : least;
    double begin = 0,
           last_begin = others * batch_time(r->job, (double)least, 1, rate[ranks[first]]);
    for (uint32_t m = first; m != 0; m = fy_next_in_chain(groups, group, m)) {
        add_receipt(r, ranks[m], begin, bytes, others);
        add_receipt(r, ranks[m], fmin(begin, last_begin), last, 1);
        begin += batch_time(r->job, (double)least, 1, rate[ranks[m]]);
        last_begin += batch_time(r->job, (double)fy_min(least, last), 1, rate[ranks[m]]);
    }
}

/* What comes from its sender may come at once. */
static void add_own(receipts *r, const fy_groups *groups, uint64_t chunk_bytes)
{
    const fy_pairs *pairs = r->job->pairs;
    uint64_t largest = fy_max(chunk_bytes, pairs->largest_element);
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        uint64_t bytes = 0;
        for (uint32_t t = pair->first; t < pair->first + pair->n_tasks; t++) {
            bytes += groups->is_grouped[t] ? 0 : pairs->tasks[t].bytes;
        }
        if (bytes > 0) {
            add_receipt(r, pair->to, 0, bytes, (double)fy_ceil_div(bytes, largest));
        }
    }
}

static int latest_first(const void *a, const void *b)
{
    const receipt *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (x->begin < y->begin) - (x->begin > y->begin);
}

/* What cannot begin before some time all ends behind it, one after the other. */
static double end_of(receipts *r)
{
    double end = 0, time = 0;
    fy_sort(r->at, r->n, sizeof *r->at, latest_first);
    for (size_t i = 0; i < r->n; i++) {
        time = i > 0 && r->at[i].rank == r->at[i - 1].rank ? time + r->at[i].time : r->at[i].time;
        end = fmax(end, r->at[i].begin + time);
    }
    return end;
}

ferry_status fy_floor_of_chained(const fy_job *job, double chunk_bytes, double *time_out,
                                 ferry_error *error)
{
    fy_groups groups;
    uint64_t chunk = fy_relay_chunk(job, chunk_bytes);
    receipts r = {.job = job};
    FY_TRY(fy_groups_init(job, chunk, &groups, error));
    r.at = fy_alloc(2 * groups.n_ranks + job->pairs->n_pairs, sizeof *r.at);
    ferry_status status = fy_check_memory(r.at != NULL, "the ports of a schedule", error);
    if (status == FERRY_OK) {
        add_own(&r, &groups, chunk);
        for (size_t i = 0; i < groups.n_groups; i++) {
            add_chain(&r, &groups, &groups.groups[i]);
        }
        *time_out = end_of(&r);
    }
    fy_free(r.at);
    fy_groups_cleanup(&groups);
    return status;
}

/* Whoever it comes from. */
ferry_status fy_floor_of_relayed(const fy_job *job, double chunk_bytes, double *time_out,
                                 ferry_error *error)
{
    const fy_pairs *pairs = job->pairs;
    uint64_t largest = fy_max(fy_relay_chunk(job, chunk_bytes), pairs->largest_element);
    double *times = fy_alloc_zeroed(job->network->n_ranks, sizeof *times);
    FY_TRY(fy_check_memory(times != NULL, "the ports of a schedule", error));
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        times[pair->to] +=
            batch_time(job, (double)pair->bytes, (double)fy_ceil_div(pair->bytes, largest),
                       job->network->rank_rate[pair->to]);
    }
    *time_out = most_of(times, job->network->n_ranks);
    fy_free(times);
    return FERRY_OK;
}
