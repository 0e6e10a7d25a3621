/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Fan-out by rounds of chunks. In every round senders and receivers are matched so that ports with
 * the most left to do are never idle; a sender whose time is short sends only what nobody else has
 * yet, and receivers pass the newest chunk on that the other lacks, which doubles its copies round
 * by round: k receivers have n chunks after about n + log2(k) rounds, and the sender sends each
 * once. Where nodes limit, the same game is played first among nodes, as often a round as their
 * ports carry a rank's rate, and a chunk enters a node once; then ranks play inside their nodes.
 */
#include "schedule/relay_round.h"

#include "base/checked.h"
#include "base/sort.h"

#include <math.h>
#include <string.h>

#define NONE UINT32_MAX

/* Only words that differ between members need a look: few, however many chunks there are. */
static uint32_t last_bit(const fy_group *group, const uint64_t *have, const uint64_t *lack)
{
    for (uint32_t w = group->top; w-- > group->low;) {
        uint64_t open = have[w] & ~lack[w];
        if (open != 0) {
            return w * 64 + 63 - (uint32_t)__builtin_clzll(open);
        }
    }
    return NONE;
}

/* In have and in neither of the others. */
static uint32_t first_bit(const fy_group *group, const uint64_t *have, const uint64_t *sent,
                          const uint64_t *there)
{
    for (uint32_t w = group->low; w <= group->top && w < group->n_words; w++) {
        uint64_t open = have[w] & ~(sent[w] | there[w]);
        if (open != 0) {
            return w * 64 + (uint32_t)__builtin_ctzll(open);
        }
    }
    return NONE;
}

static void set_bit(uint64_t *set, uint32_t chunk)
{
    set[chunk / 64] |= (uint64_t)1 << (chunk % 64);
}

static void clear_bit(uint64_t *set, uint32_t chunk)
{
    set[chunk / 64] &= ~((uint64_t)1 << (chunk % 64));
}

static bool has_bit(const uint64_t *set, uint32_t chunk)
{
    return (set[chunk / 64] >> (chunk % 64) & 1) != 0;
}

static bool is_short_of_time(const fy_relaying *r, const fy_debt *debt)
{
    return debt->bytes > 0 && debt->time + r->chunk_time > r->horizon;
}

/*
 * The chunk by which one rank may serve another, or NONE; of own bytes, 0. What nobody else has
 * comes first, oldest first, and is all that a sender short of time gives; then the newest.
 */
static uint32_t chunk_for_rank(const fy_relaying *r, const fy_cause *cause)
{
    if (cause->group == FY_OWN) {
        return r->own.hands[cause->to_member].rest > 0 ? 0 : NONE;
    }
    const fy_group *group = &r->groups.groups[cause->group];
    const uint64_t *from = fy_group_have(&r->groups, group, cause->from_member);
    const uint64_t *to = fy_group_have(&r->groups, group, cause->to_member);
    if (cause->from_member == 0) {
        uint32_t fresh = first_bit(group, from, fy_group_released(&r->groups, group), to);
        if (fresh != NONE) {
            return fresh;
        }
    }
    return is_short_of_time(r, &r->rest[cause->from]) ? NONE : last_bit(group, from, to);
}

/* The same for nodes: what has not left the sender's node comes first. */
static uint32_t chunk_for_node(const fy_relaying *r, const fy_cause *cause)
{
    if (cause->group == FY_OWN) {
        return r->own.hands[cause->to_member].rest > 0 ? 0 : NONE;
    }
    const fy_group *group = &r->groups.groups[cause->group];
    const uint64_t *from = fy_group_node_ready(&r->groups, group, cause->from_member);
    const uint64_t *to = fy_group_node_have(&r->groups, group, cause->to_member);
    if (cause->from_member == 0) {
        uint32_t fresh = first_bit(group, from, fy_group_outside(&r->groups, group), to);
        if (fresh != NONE) {
            return fresh;
        }
        if (is_short_of_time(r, &r->node_rest[cause->from])) {
            return NONE;
        }
    }
    return last_bit(group, from, to);
}

static void occupy_sender(fy_relaying *r, uint32_t rank)
{
    r->busy[rank] = true;
    if (r->half) {
        r->busy[r->job->network->n_ranks + rank] = true;
    }
}

static void occupy_receiver(fy_relaying *r, uint32_t rank)
{
    r->busy[r->job->network->n_ranks + rank] = true;
    if (r->half) {
        r->busy[rank] = true;
    }
}

/* A transfer counts for others from the next round on; only nodes are told at once. */
static void note(fy_relaying *r, const fy_transfer *t)
{
    r->transfers[r->n_transfers++] = *t;
    if (t->group == FY_OWN) {
        const fy_pair *pair = &r->own.pairs->pairs[t->to_member];
        occupy_sender(r, pair->from);
        occupy_receiver(r, pair->to);
        return;
    }
    const fy_group *group = &r->groups.groups[t->group];
    const uint32_t *ranks = r->groups.ranks + group->members;
    occupy_receiver(r, ranks[t->to_member]);
    if (t->is_open) {
        uint32_t place = r->groups.place[group->members + t->to_member];
        set_bit(fy_group_node_have(&r->groups, group, place), t->chunk);
    } else {
        occupy_sender(r, ranks[t->from_member]);
    }
}

static bool rank_edge_usable(void *context, uint32_t edge)
{
    const fy_relaying *r = context;
    uint32_t n = r->job->network->n_ranks;
    if (r->busy[r->ranks.left[edge]] || r->busy[n + r->ranks.right[edge]]) {
        return false;
    }
    for (uint32_t i = r->ranks.begin[edge]; i < r->ranks.begin[edge + 1]; i++) {
        if (chunk_for_rank(r, &r->ranks.causes[i]) != NONE) {
            return true;
        }
    }
    return false;
}

static bool node_edge_usable(void *context, uint32_t edge)
{
    const fy_relaying *r = context;
    for (uint32_t i = r->nodes.begin[edge]; i < r->nodes.begin[edge + 1]; i++) {
        if (chunk_for_node(r, &r->nodes.causes[i]) != NONE) {
            return true;
        }
    }
    return false;
}

static bool never_spent(void *context, uint32_t edge)
{
    (void)context;
    (void)edge;
    return false;
}

static bool rank_critical(void *context, uint32_t vertex)
{
    const fy_relaying *r = context;
    return !r->covering || r->rest[vertex].time + r->chunk_time > r->horizon;
}

static bool node_critical(void *context, uint32_t vertex)
{
    const fy_relaying *r = context;
    return !r->covering || r->node_rest[vertex].time + r->chunk_time > r->horizon;
}

static int busiest_first(const void *a, const void *b)
{
    const fy_port *x = a, *y = b;
    if (x->rest != y->rest) {
        return x->rest > y->rest ? -1 : 1;
    }
    return (x->vertex > y->vertex) - (x->vertex < y->vertex);
}

/* Vertices with work left, the busiest first. */
static uint32_t sort_vertices(const fy_debt *debts, uint32_t n_vertices, fy_port *ports)
{
    uint32_t n = 0;
    for (uint32_t v = 0; v < n_vertices; v++) {
        if (debts[v].bytes > 0) {
            ports[n++] = (fy_port){.rest = debts[v].time, .vertex = v};
        }
    }
    fy_sort(ports, n, sizeof *ports, busiest_first);
    return n;
}

/* Serves free vertices in order; for the critical ones others give way, as far as these are not. */
static void cover_some(fy_relaying *r, fy_match *match, const fy_port *ports, uint32_t n,
                       bool senders_only, bool critical_only)
{
    fy_match_begin_phase(match);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t vertex = ports[i].vertex;
        if (match->edge[vertex] == FY_UNMATCHED && (!senders_only || vertex < match->n_left) &&
            (!critical_only || match->critical(r, vertex))) {
            fy_match_cover(match, vertex);
        }
    }
}

/*
 * Senders first, so that there is always something new to pass on; then those that cannot wait, for
 * whom others give way; then whoever is free. Where almost all are short of time it may be better
 * that everybody's wish makes others give way at first, the least busy one's last.
 */
static void match_all(fy_relaying *r, fy_match *match, const fy_port *ports, uint32_t n)
{
    fy_match_clear_all(match);
    r->covering = false;
    if (!r->job->eager) {
        cover_some(r, match, ports, n, true, false);
    }
    r->covering = true;
    cover_some(r, match, ports, n, false, !r->job->eager);
    r->covering = false;
    cover_some(r, match, ports, n, false, false);
}

/* Own bytes and what nobody else has, before what is passed on. */
static bool choose_cause(const fy_relaying *r, const fy_links *links, uint32_t edge,
                         uint32_t (*chunk_for)(const fy_relaying *, const fy_cause *),
                         const fy_cause **cause_out, uint32_t *chunk_out)
{
    *cause_out = NULL;
    for (uint32_t i = links->begin[edge]; i < links->begin[edge + 1]; i++) {
        const fy_cause *cause = &links->causes[i];
        uint32_t chunk = chunk_for(r, cause);
        if (chunk == NONE) {
            continue;
        }
        bool first = cause->group == FY_OWN || cause->from_member == 0;
        if (*cause_out == NULL || first) {
            *cause_out = cause;
            *chunk_out = chunk;
        }
        if (first) {
            break;
        }
    }
    return *cause_out != NULL;
}

/*
 * Of the idle members on a node that have the chunk the last one sends, the group's sender only if
 * there is no other: one port takes what crosses batch by batch, where several would share the
 * node's port and be late together.
 */
static uint32_t choose_sender(const fy_relaying *r, const fy_group *group, uint32_t place,
                              uint32_t chunk)
{
    const uint32_t *ranks = r->groups.ranks + group->members;
    const uint32_t *where = r->groups.place + group->members;
    for (uint32_t m = group->n_members; m-- > 0;) {
        if (where[m] == place && !r->busy[ranks[m]] &&
            has_bit(fy_group_have(&r->groups, group, m), chunk)) {
            return m;
        }
    }
    return NONE;
}

/* Of those that lack it, the one with the most left to receive; they take turns. */
static uint32_t choose_receiver(const fy_relaying *r, const fy_group *group, uint32_t place,
                                uint32_t chunk)
{
    const uint32_t *ranks = r->groups.ranks + group->members;
    const uint32_t *where = r->groups.place + group->members;
    const fy_debt *rest = r->rest + r->job->network->n_ranks;
    const bool *busy = r->busy + r->job->network->n_ranks;
    uint32_t best = NONE, k = group->n_members - 1;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t m = (i + r->round) % k + 1;
        if (where[m] == place && !busy[ranks[m]] &&
            !has_bit(fy_group_have(&r->groups, group, m), chunk) &&
            (best == NONE || rest[ranks[m]].time > rest[ranks[best]].time)) {
            best = m;
        }
    }
    return best;
}

static void cross(fy_relaying *r, uint32_t edge)
{
    const fy_cause *cause;
    uint32_t chunk = NONE, n = r->job->network->n_ranks;
    if (!choose_cause(r, &r->nodes, edge, chunk_for_node, &cause, &chunk)) {
        return;
    }
    fy_transfer t = {cause->group, chunk, cause->from_member, cause->to_member, false};
    if (cause->group == FY_OWN) {
        const fy_pair *pair = &r->own.pairs->pairs[cause->to_member];
        if (r->busy[pair->from] || r->busy[n + pair->to]) {
            return;
        }
    } else {
        const fy_group *group = &r->groups.groups[cause->group];
        t.is_open = true;
        t.to_member = choose_receiver(r, group, cause->to_member, chunk);
        if (t.to_member == NONE) {
            return;
        }
    }
    note(r, &t);
}

/*
 * What crosses is sent by whoever idles when all else of the round is settled; if nobody does, not
 * now.
 */
static void settle_crossings(fy_relaying *r)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->n_transfers; i++) {
        fy_transfer t = r->transfers[i];
        if (t.is_open) {
            const fy_group *group = &r->groups.groups[t.group];
            const uint32_t *place = r->groups.place + group->members;
            uint32_t from = choose_sender(r, group, t.from_member, t.chunk);
            if (from == NONE) {
                clear_bit(fy_group_node_have(&r->groups, group, place[t.to_member]), t.chunk);
                continue;
            }
            t.from_member = from;
            t.is_open = false;
            occupy_sender(r, r->groups.ranks[group->members + from]);
        }
        r->transfers[kept++] = t;
    }
    r->n_transfers = kept;
}

/* As many batches as a node's ports carry at the rate of its ranks, but at least one. */
static uint32_t lanes_of(const fy_relaying *r, uint32_t node)
{
    const fy_network *network = r->job->network;
    double lanes =
        network->node_rate[node] / network->rank_rate[node * network->ranks_per_node] + 1e-9;
    return lanes < 1                         ? 1
           : lanes > network->ranks_per_node ? network->ranks_per_node
                                             : (uint32_t)lanes;
}

static void play_nodes(fy_relaying *r, fy_port *ports)
{
    uint32_t n = r->job->network->n_nodes, lane = 0, before;
    do {
        uint32_t n_ports = sort_vertices(r->node_rest, 2 * n, ports), kept = 0;
        for (uint32_t i = 0; i < n_ports; i++) {
            uint32_t node = ports[i].vertex < n ? ports[i].vertex : ports[i].vertex - n;
            if (lane < lanes_of(r, node)) {
                ports[kept++] = ports[i];
            }
        }
        before = r->n_transfers;
        match_all(r, &r->nodes.match, ports, kept);
        for (uint32_t node = 0; node < n; node++) {
            uint32_t edge = r->nodes.match.edge[node];
            if (edge != FY_UNMATCHED && lane < lanes_of(r, node) &&
                lane < lanes_of(r, r->nodes.right[edge])) {
                cross(r, edge);
            }
        }
        lane++;
    } while (r->n_transfers > before);
}

static void send_over(fy_relaying *r, uint32_t edge)
{
    const fy_cause *cause;
    uint32_t chunk = NONE;
    if (choose_cause(r, &r->ranks, edge, chunk_for_rank, &cause, &chunk)) {
        note(r, &(fy_transfer){cause->group, chunk, cause->from_member, cause->to_member, false});
    }
}

static void play_ranks(fy_relaying *r, const fy_port *ports, uint32_t n_ports)
{
    fy_match *match = &r->ranks.match;
    match_all(r, match, ports, n_ports);
    for (uint32_t v = 0; v < match->n_left; v++) {
        if (match->edge[v] != FY_UNMATCHED) {
            send_over(r, match->edge[v]);
        }
    }
}

/* Half duplex: the busiest ports first take any idle partner. */
static void play_half(fy_relaying *r, const fy_port *ports, uint32_t n_ports)
{
    const fy_match *match = &r->ranks.match;
    for (uint32_t p = 0; p < n_ports; p++) {
        uint32_t vertex = ports[p].vertex;
        for (uint32_t i = 0; i < match->length[vertex] && !r->busy[vertex]; i++) {
            uint32_t edge = match->around[match->begin[vertex] + i];
            if (rank_edge_usable(r, edge)) {
                send_over(r, edge);
            }
        }
    }
}

static void pay(fy_debt *debt, uint64_t bytes, double rate)
{
    debt->bytes -= bytes;
    debt->time -= (double)bytes / rate;
}

/* Brings down what the ports of a transfer still have to do: senders count what is new only. */
static void count_down(fy_relaying *r, uint32_t from, uint32_t to, uint64_t bytes, double rate,
                       bool is_new, bool is_new_outside)
{
    const fy_network *network = r->job->network;
    uint32_t n = network->n_ranks, nodes = network->n_nodes;
    pay(&r->rest[n + to], bytes, rate);
    if (is_new) {
        pay(&r->rest[from], bytes, rate);
    }
    r->left_over -= bytes;
    if (nodes != 0 && fy_network_node(network, from) != fy_network_node(network, to)) {
        uint32_t a = fy_network_node(network, from), b = fy_network_node(network, to);
        pay(&r->node_rest[nodes + b], bytes, network->node_rate[b]);
        if (is_new_outside) {
            pay(&r->node_rest[a], bytes, network->node_rate[a]);
        }
    }
}

static ferry_status send_own(fy_relaying *r, uint32_t pair, uint32_t round, ferry_error *error)
{
    const fy_pair *p = &r->own.pairs->pairs[pair];
    uint64_t bytes = 0;
    uint64_t rest = r->own.hands[pair].rest;
    uint64_t even = fy_ceil_div(rest, fy_ceil_div(rest, r->chunk_bytes));
    ferry_status status = fy_deal_take(&r->own, pair, round, even, &bytes, error);
    if (status == FERRY_OK && bytes == 0) { /* not one element fits a chunk */
        status = fy_deal_take(&r->own, pair, round, r->own.pairs->largest_element, &bytes, error);
    }
    count_down(r, p->from, p->to, bytes, fy_network_rate(r->job->network, p->from, p->to), true,
               true);
    return status;
}

static bool all_have(const fy_relaying *r, const fy_group *group, uint32_t place, uint32_t chunk)
{
    const uint32_t *where = r->groups.place + group->members;
    for (uint32_t m = 1; m < group->n_members; m++) {
        if (where[m] == place && !has_bit(fy_group_have(&r->groups, group, m), chunk)) {
            return false;
        }
    }
    return true;
}

static ferry_status send_chunk(fy_relaying *r, const fy_transfer *t, uint32_t round,
                               ferry_error *error)
{
    if (t->group == FY_OWN) {
        return send_own(r, t->to_member, round, error);
    }
    fy_group *group = &r->groups.groups[t->group];
    const uint32_t *ranks = r->groups.ranks + group->members;
    const uint32_t *place = r->groups.place + group->members;
    uint64_t *released = fy_group_released(&r->groups, group);
    uint64_t *outside = fy_group_outside(&r->groups, group);
    uint64_t bytes = fy_group_chunk_bytes(&r->groups, group, t->chunk);
    bool is_new = t->from_member == 0 && !has_bit(released, t->chunk);
    bool leaves = place[t->from_member] == 0 && place[t->to_member] != 0;
    count_down(r, ranks[t->from_member], ranks[t->to_member], bytes, group->rate, is_new,
               leaves && !has_bit(outside, t->chunk));
    set_bit(fy_group_have(&r->groups, group, t->to_member), t->chunk);
    if (is_new) {
        set_bit(released, t->chunk);
    }
    group->top = t->chunk / 64 >= group->top ? t->chunk / 64 + 1 : group->top;
    if (leaves) {
        set_bit(outside, t->chunk);
    }
    if (group->n_nodes > 0 && all_have(r, group, place[t->to_member], t->chunk)) {
        set_bit(fy_group_node_ready(&r->groups, group, place[t->to_member]), t->chunk);
    }
    return fy_groups_deal(&r->groups, group, t->chunk, t->from_member, t->to_member, round, r->deal,
                          error);
}

static double largest(const fy_debt *debts, uint32_t n)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++) {
        most = fmax(most, debts[i].time);
    }
    return most;
}

static void set_match(fy_relaying *r, fy_match *match, bool (*usable)(void *, uint32_t),
                      bool (*critical)(void *, uint32_t))
{
    match->context = r;
    match->usable = usable;
    match->spent = never_spent;
    match->critical = critical;
}

void fy_relay_set_rules(fy_relaying *r)
{
    set_match(r, &r->ranks.match, rank_edge_usable, rank_critical);
    set_match(r, &r->nodes.match, node_edge_usable, node_critical);
}

/* Words in which nobody lacks anything need no look any more. */
static void close_words(fy_relaying *r)
{
    for (size_t g = 0; g < r->groups.n_groups; g++) {
        fy_group *group = &r->groups.groups[g];
        for (bool full = true; full && group->low + 1 < group->top;) {
            for (uint32_t m = 1; m < group->n_members && full; m++) {
                full = fy_group_have(&r->groups, group, m)[group->low] == UINT64_MAX;
            }
            group->low += full;
        }
    }
}

ferry_status fy_relay_round(fy_relaying *r, uint32_t round, fy_port *ports, ferry_error *error)
{
    uint32_t n = r->job->network->n_ranks, nodes = r->job->network->n_nodes;
    ferry_status status = FERRY_OK;
    r->horizon = fmax(largest(r->rest, 2 * n), largest(r->node_rest, 2 * nodes));
    r->n_transfers = 0;
    r->round = round;
    close_words(r);
    memset(r->busy, 0, 2 * (size_t)n * sizeof *r->busy);
    if (nodes != 0 && !r->chain) {
        play_nodes(r, ports);
    }
    uint32_t n_ports = sort_vertices(r->rest, 2 * n, ports);
    if (r->half) {
        play_half(r, ports, n_ports);
    } else {
        play_ranks(r, ports, n_ports);
    }
    settle_crossings(r);
    for (uint32_t i = 0; i < r->n_transfers && status == FERRY_OK; i++) {
        status = send_chunk(r, &r->transfers[i], round, error);
    }
    return status;
}
