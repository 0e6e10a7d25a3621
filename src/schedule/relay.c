/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/relay.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/relay_round.h"

#include <math.h>

/* Looks at a set of chunks that an attempt may cost: some nanoseconds each. */
static const double MOST_LOOKS = 1e9;

static ferry_status play(fy_relaying *r, ferry_error *error)
{
    size_t n = r->job->network->n_ranks;
    fy_port *ports = fy_alloc(2 * n, sizeof *ports);
    ferry_status status = ports == NULL ? fy_fail_no_memory(error, "the ports") : FERRY_OK;
    for (uint32_t round = 0; r->left_over > 0 && status == FERRY_OK; round++) {
        status = fy_relay_round(r, round, ports, error);
        if (status == FERRY_OK && r->n_transfers == 0) {
            status = fy_fail(error, FERRY_ERR_UNSUPPORTED, "relays came to a halt");
        }
    }
    fy_free(ports);
    return status;
}

static void owe(fy_debt *debt, uint64_t bytes, double rate)
{
    debt->bytes += bytes;
    debt->time += (double)bytes / rate;
}

static void add_own(fy_relaying *r)
{
    const fy_network *network = r->job->network;
    for (uint32_t i = 0; i < r->own.pairs->n_pairs; i++) {
        const fy_pair *pair = &r->own.pairs->pairs[i];
        double rate = fy_network_rate(network, pair->from, pair->to);
        owe(&r->rest[pair->from], pair->bytes, rate);
        owe(&r->rest[network->n_ranks + pair->to], pair->bytes, rate);
        r->left_over += pair->bytes;
        if (network->n_nodes == 0) {
            continue;
        }
        uint32_t a = fy_network_node(network, pair->from), b = fy_network_node(network, pair->to);
        if (a != b) {
            owe(&r->node_rest[a], pair->bytes, network->node_rate[a]);
            owe(&r->node_rest[network->n_nodes + b], pair->bytes, network->node_rate[b]);
        }
    }
}

/* Senders send each chunk once and let it leave their node once; receivers get all of it. */
static void add_group(fy_relaying *r, const fy_group *group)
{
    const fy_network *network = r->job->network;
    const uint32_t *ranks = r->groups.ranks + group->members;
    const uint32_t *nodes = r->groups.nodes + group->nodes;
    uint64_t bytes = 0;
    for (uint32_t chunk = 0; chunk < group->n_chunks; chunk++) {
        bytes += fy_group_chunk_bytes(&r->groups, group, chunk);
    }
    owe(&r->rest[ranks[0]], bytes, group->rate);
    for (uint32_t m = 1; m < group->n_members; m++) {
        owe(&r->rest[network->n_ranks + ranks[m]], bytes, group->rate);
        r->left_over += bytes;
    }
    for (uint32_t place = 1; place < group->n_nodes; place++) {
        owe(&r->node_rest[network->n_nodes + nodes[place]], bytes,
            network->node_rate[nodes[place]]);
    }
    if (group->n_nodes > 1) {
        owe(&r->node_rest[nodes[0]], bytes, network->node_rate[nodes[0]]);
    }
}

/* The own bytes' batches come behind the groups': rounds tell when they travel. */
static ferry_status append_own(const fy_deal *own, fy_deal *deal, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < own->n_batches && status == FERRY_OK; i++) {
        const fy_batch *batch = &own->batches[i];
        status = fy_deal_open(deal, batch->from, batch->to, batch->round, error);
        for (uint32_t s = 0; s < batch->n_segments && status == FERRY_OK; s++) {
            fy_segment segment = fy_batch_segment(batch, s, own->pairs->tasks, own->segments);
            status = fy_deal_add(deal, &segment, error);
        }
    }
    return status;
}

static void relaying_cleanup(fy_relaying *r)
{
    fy_deal_cleanup(&r->own);
    fy_groups_cleanup(&r->groups);
    fy_links_cleanup(&r->ranks);
    fy_links_cleanup(&r->nodes);
    fy_free(r->rest);
    fy_free(r->node_rest);
    fy_free(r->busy);
    fy_free(r->transfers);
}

/* So many causes can be looked at in every round. */
static size_t most_causes(const fy_relaying *r)
{
    double rounds = r->job->bound.time / r->chunk_time;
    return (size_t)fmin(MOST_LOOKS / (4 * rounds), INT32_MAX);
}

/*
 * Before anything is made for it: whatever the links are, a sender is one to each of its receivers,
 * or its node to each of their nodes.
 */
static ferry_status check_effort(const fy_relaying *r, ferry_error *error)
{
    size_t least = 0;
    for (size_t i = 0; i < r->groups.n_groups; i++) {
        const fy_group *group = &r->groups.groups[i];
        least += group->n_nodes == 0 ? group->n_members - 1 : group->n_nodes - 1;
    }
    return least <= most_causes(r) ? FERRY_OK
                                   : fy_fail(error, FERRY_ERR_UNSUPPORTED,
                                             "relays among %zu pairs of ranks at least", least);
}

static int least_first(const void *a, const void *b)
{
    const fy_port *x = a, *y = b;
    if (x->rest != y->rest) {
        return x->rest < y->rest ? -1 : 1;
    }
    return (x->vertex > y->vertex) - (x->vertex < y->vertex);
}

/* The turns of n senders: who has the least to send itself is first; or else as they come. */
static ferry_status take_turns(const fy_debt *debts, size_t n, bool eager, uint32_t *turn,
                               ferry_error *error)
{
    fy_port *ports = fy_alloc(n, sizeof *ports);
    FY_TRY(fy_check_memory(ports != NULL, "the ports of a schedule", error));
    for (uint32_t i = 0; i < n; i++) {
        ports[i] = (fy_port){.rest = eager ? 0 : debts[i].time, .vertex = i};
    }
    fy_sort(ports, n, sizeof *ports, least_first);
    for (uint32_t i = 0; i < n; i++) {
        turn[ports[i].vertex] = i;
    }
    fy_free(ports);
    return FERRY_OK;
}

static ferry_status link_all(fy_relaying *r, ferry_error *error)
{
    const fy_network *network = r->job->network;
    uint32_t *turn = fy_alloc(network->n_ranks, sizeof *turn);
    FY_TRY(fy_check_memory(turn != NULL, "the ports of a schedule", error));
    ferry_status status = take_turns(r->rest, network->n_ranks, r->job->eager, turn, error);
    FY_THEN(status,
            r->chain ? fy_links_of_chains(r->job, r->own.pairs, &r->groups, turn, &r->ranks, error)
                     : fy_links_of_ranks(r->job, r->own.pairs, &r->groups, turn, &r->ranks, error));
    r->nodes.most_causes = r->ranks.most_causes - r->ranks.n_causes;
    if (status == FERRY_OK && network->n_nodes != 0 && !r->chain) {
        status = take_turns(r->node_rest, network->n_nodes, r->job->eager, turn, error);
        FY_THEN(status,
                fy_links_of_nodes(r->job, r->own.pairs, &r->groups, turn, &r->nodes, error));
    }
    fy_free(turn);
    return status;
}

static ferry_status relaying_init(fy_relaying *r, ferry_error *error)
{
    const fy_network *network = r->job->network;
    size_t n = network->n_ranks, nodes = network->n_nodes;
    r->rest = fy_alloc_zeroed(2 * n, sizeof *r->rest);
    r->node_rest = fy_alloc_zeroed(2 * nodes, sizeof *r->node_rest);
    r->busy = fy_alloc_zeroed(2 * n, sizeof *r->busy);
    r->transfers = fy_alloc(n, sizeof *r->transfers);
    r->groups.brought = fy_alloc(r->groups.n_brought, sizeof *r->groups.brought);
    r->half = r->job->duplex == FERRY_DUPLEX_HALF;
    if (r->rest == NULL || r->node_rest == NULL || r->busy == NULL || r->transfers == NULL ||
        r->groups.brought == NULL) {
        return fy_fail_no_memory(error, "the ports of a schedule");
    }
    add_own(r);
    for (size_t i = 0; i < r->groups.n_groups; i++) {
        add_group(r, &r->groups.groups[i]);
    }
    r->ranks.most_causes = most_causes(r);
    FY_TRY(link_all(r, error));
    fy_relay_set_rules(r);
    return FERRY_OK;
}

static ferry_status deal_relayed(const fy_job *job, double chunk_bytes, bool chain, fy_deal *deal,
                                 ferry_error *error)
{
    fy_pairs own = {0};
    fy_relaying r = {.job = job, .deal = deal, .chain = chain};
    r.chunk_bytes = fy_relay_chunk(job, chunk_bytes);
    r.chunk_time = (double)r.chunk_bytes / job->network->rank_rate[job->bound.rank];
    ferry_status status = fy_groups_init(job, r.chunk_bytes, &r.groups, error);
    FY_THEN(status, check_effort(&r, error));
    FY_THEN(status, fy_pairs_without(job->pairs, r.groups.is_grouped, &own, error));
    FY_THEN(status, fy_deal_init(&r.own, &own, job->slot_bytes, job->max_tasks, error));
    FY_THEN(status, relaying_init(&r, error));
    FY_THEN(status, play(&r, error));
    FY_THEN(status, append_own(&r.own, deal, error));
    relaying_cleanup(&r);
    fy_pairs_cleanup(&own);
    return status;
}

ferry_status fy_deal_relayed(const fy_job *job, double chunk_bytes, fy_deal *deal,
                             ferry_error *error)
{
    return deal_relayed(job, chunk_bytes, false, deal, error);
}

ferry_status fy_deal_chained(const fy_job *job, double chunk_bytes, fy_deal *deal,
                             ferry_error *error)
{
    return deal_relayed(job, chunk_bytes, true, deal, error);
}

ferry_status fy_relay_fan_out(const fy_job *job, uint32_t *most_receivers_out, ferry_error *error)
{
    fy_groups groups;
    FY_TRY(fy_groups_init(job, job->slot_bytes, &groups, error));
    uint32_t most = 0;
    for (size_t i = 0; i < groups.n_groups; i++) {
        most = groups.groups[i].n_members - 1 > most ? groups.groups[i].n_members - 1 : most;
    }
    *most_receivers_out = most;
    fy_groups_cleanup(&groups);
    return FERRY_OK;
}
