/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Fan-out by rounds of chunks. In every round senders and receivers are matched so that ports with
 * the most left to do are never idle; a sender whose time is short sends only what nobody else has
 * yet, and receivers pass the newest chunk on that the other lacks, which doubles its copies round
 * by round: k receivers have n chunks after about n + log2(k) rounds, and the sender sends each
 * once.
 */
#include "schedule/relay.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "schedule/match.h"
#include "schedule/palette.h"

#include <string.h>

#define NONE UINT32_MAX

/* Every member is linked to all receivers up to this size; above, to some at powers of two. */
enum { FULL_MESH = 24 };

/* One reason why a rank may send to another: a group, or what only the receiver wants. */
typedef struct cause {
    uint32_t from;
    uint32_t to;
    uint32_t group; /* NONE: the pair's own bytes */
    uint32_t from_member;
    uint32_t to_member; /* of the pair's own bytes: the pair */
} cause;

typedef struct relaying {
    const fy_job *job;
    fy_deal       own; /* of tasks in no group */
    fy_groups     groups;
    cause        *reasons;
    size_t        n_reasons, reason_capacity;
    uint32_t     *begin; /* [n_edges + 1] into reasons */
    uint32_t     *left;
    uint32_t     *right;
    uint32_t      n_edges;
    fy_match      match;
    uint64_t      chunk_bytes;
    uint64_t     *rest;  /* [2 n_ranks] bytes that a port must still take on */
    uint32_t     *order; /* ports by rest */
    uint64_t      horizon;
    uint64_t      left_over; /* bytes that receivers still lack */
    bool          covering;  /* critical ports first; then whoever is free */
} relaying;

static ferry_status add_reason(relaying *r, uint32_t from, uint32_t to, uint32_t group,
                               uint32_t from_member, uint32_t to_member, ferry_error *error)
{
    if (from == to) {
        return FERRY_OK;
    }
    if (!fy_reserve((void **)&r->reasons, &r->reason_capacity, r->n_reasons + 1,
                    sizeof *r->reasons)) {
        return fy_fail_no_memory(error, "the links of a group");
    }
    r->reasons[r->n_reasons++] = (cause){from, to, group, from_member, to_member};
    return FERRY_OK;
}

/* All members, or those at distances of powers of two both ways round. */
static ferry_status link_member(relaying *r, uint32_t number, uint32_t member, ferry_error *error)
{
    const fy_group *group  = &r->groups.groups[number];
    const uint32_t *ranks  = r->groups.ranks + group->members;
    uint32_t        k      = group->n_members - 1;
    ferry_status    status = FERRY_OK;
    if (member == 0 || k <= FULL_MESH) {
        for (uint32_t to = 1; to <= k && status == FERRY_OK; to++) {
            status = add_reason(r, ranks[member], ranks[to], number, member, to, error);
        }
        return status;
    }
    for (uint32_t step = 1; step < k && status == FERRY_OK; step *= 2) {
        uint32_t up = (member - 1 + step) % k + 1, down = (member - 1 + k - step) % k + 1;
        status = add_reason(r, ranks[member], ranks[up], number, member, up, error);
        if (status == FERRY_OK && up != down) {
            status = add_reason(r, ranks[member], ranks[down], number, member, down, error);
        }
    }
    return status;
}

static int by_ranks(const void *a, const void *b)
{
    const cause *x = a, *y = b;
    if (x->from != y->from) {
        return x->from < y->from ? -1 : 1;
    }
    if (x->to != y->to) {
        return x->to < y->to ? -1 : 1;
    }
    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    return (x->from_member > y->from_member) - (x->from_member < y->from_member);
}

static ferry_status list_reasons(relaying *r, ferry_error *error)
{
    const fy_pairs *own    = r->own.pairs;
    ferry_status    status = FERRY_OK;
    for (uint32_t i = 0; i < own->n_pairs && status == FERRY_OK; i++) {
        status = add_reason(r, own->pairs[i].from, own->pairs[i].to, NONE, 0, i, error);
    }
    for (uint32_t g = 0; g < r->groups.n_groups; g++) {
        for (uint32_t m = 0; m < r->groups.groups[g].n_members && status == FERRY_OK; m++) {
            status = link_member(r, g, m, error);
        }
    }
    if (status == FERRY_OK && r->n_reasons > INT32_MAX) {
        status = fy_fail(error, FERRY_ERR_LIMIT, "relays among more than 2^31 pairs of ranks");
    }
    fy_sort(r->reasons, r->n_reasons, sizeof *r->reasons, by_ranks);
    return status;
}

static ferry_status list_edges(relaying *r, ferry_error *error)
{
    r->begin = fy_alloc(r->n_reasons + 1, sizeof *r->begin);
    r->left  = fy_alloc(2 * r->n_reasons, sizeof *r->left);
    if (r->begin == NULL || r->left == NULL) {
        return fy_fail_no_memory(error, "the links of ranks");
    }
    r->right = r->left + r->n_reasons;
    for (size_t i = 0; i < r->n_reasons; i++) {
        const cause *reason = &r->reasons[i];
        if (i == 0 || reason->from != reason[-1].from || reason->to != reason[-1].to) {
            r->begin[r->n_edges]   = (uint32_t)i;
            r->left[r->n_edges]    = reason->from;
            r->right[r->n_edges++] = reason->to;
        }
    }
    r->begin[r->n_edges] = (uint32_t)r->n_reasons;
    return FERRY_OK;
}

static uint64_t chunk_length(const relaying *r, const fy_group *group, uint32_t chunk)
{
    const fy_chunk_begin *begin = r->groups.chunks + group->chunks + chunk;
    uint64_t              bytes = 0;
    for (uint32_t c = begin->content; c <= begin[1].content && c < group->n_contents; c++) {
        size_t row = group->tasks + (size_t)c * (group->n_members - 1);
        bytes += c == begin[1].content ? begin[1].offset
                                       : r->groups.pairs->tasks[r->groups.tasks[row]].bytes;
    }
    return bytes - begin->offset;
}

/* What ports must take on at least: senders send each chunk once, receivers get all of it. */
static void add_up(relaying *r)
{
    uint32_t n = r->job->pairs->n_ranks;
    for (uint32_t i = 0; i < r->own.pairs->n_pairs; i++) {
        const fy_pair *pair = &r->own.pairs->pairs[i];
        r->rest[pair->from] += pair->bytes;
        r->rest[n + pair->to] += pair->bytes;
        r->left_over += pair->bytes;
    }
    for (size_t i = 0; i < r->groups.n_groups; i++) {
        const fy_group *group = &r->groups.groups[i];
        const uint32_t *ranks = r->groups.ranks + group->members;
        uint64_t        bytes = 0;
        for (uint32_t chunk = 0; chunk < group->n_chunks; chunk++) {
            bytes += chunk_length(r, group, chunk);
        }
        r->rest[ranks[0]] += bytes;
        for (uint32_t m = 1; m < group->n_members; m++) {
            r->rest[n + ranks[m]] += bytes;
            r->left_over += bytes;
        }
    }
}

/* The newest chunk that one member has and the other lacks; or NONE. */
static uint32_t newest(const relaying *r, const cause *reason)
{
    const fy_group *group = &r->groups.groups[reason->group];
    const uint64_t *a     = fy_group_have(&r->groups, group, reason->from_member);
    const uint64_t *b     = fy_group_have(&r->groups, group, reason->to_member);
    for (uint32_t w = group->n_words; w-- > 0;) {
        uint64_t open = a[w] & ~b[w];
        if (open != 0) {
            return w * 64 + 63 - (uint32_t)__builtin_clzll(open);
        }
    }
    return NONE;
}

/* Whether a reason brings down what its sender must send. */
static bool is_due(const relaying *r, const cause *reason)
{
    if (reason->group == NONE) {
        return r->own.hands[reason->to_member].rest > 0;
    }
    const fy_group *group = &r->groups.groups[reason->group];
    return reason->from_member == 0 && group->released < group->n_chunks;
}

static bool is_critical(void *context, uint32_t vertex)
{
    const relaying *r = context;
    return !r->covering || r->rest[vertex] + r->chunk_bytes > r->horizon;
}

static bool is_usable(void *context, uint32_t edge)
{
    const relaying *r        = context;
    uint32_t        from     = r->left[edge];
    bool            only_due = r->rest[from] > 0 && r->rest[from] + r->chunk_bytes > r->horizon;
    for (uint32_t i = r->begin[edge]; i < r->begin[edge + 1]; i++) {
        const cause *reason = &r->reasons[i];
        if (is_due(r, reason) ||
            (!only_due && reason->group != NONE && newest(r, reason) != NONE)) {
            return true;
        }
    }
    return false;
}

static bool is_spent(void *context, uint32_t edge)
{
    (void)context;
    (void)edge;
    return false;
}

/* Due ones first, the sender's own first of all; else the group of the newest chunk. */
static const cause *choose(const relaying *r, uint32_t edge)
{
    const cause *best = NULL;
    for (uint32_t i = r->begin[edge]; i < r->begin[edge + 1]; i++) {
        const cause *reason = &r->reasons[i];
        if (is_due(r, reason)) {
            return reason;
        }
        if (reason->group != NONE && best == NULL && newest(r, reason) != NONE) {
            best = reason;
        }
    }
    return best;
}

typedef struct transfer {
    const cause *reason;
    uint32_t     chunk;
} transfer;

/* What was sent in a round can be passed on from the next one. */
static ferry_status send_chunk(relaying *r, const transfer *t, uint32_t round, fy_deal *deal,
                               ferry_error *error)
{
    const cause *reason = t->reason;
    uint32_t     n      = r->job->pairs->n_ranks;
    uint64_t     bytes  = 0;
    ferry_status status;
    if (reason->group == NONE) {
        size_t first = r->own.n_batches;
        status = fy_deal_take(&r->own, reason->to_member, round, r->chunk_bytes, &bytes, error);
        if (status == FERRY_OK && bytes == 0) { /* not one element fits a chunk */
            status = fy_deal_take(&r->own, reason->to_member, round, r->own.pairs->largest_element,
                                  &bytes, error);
        }
        (void)first;
        r->rest[reason->from] -= bytes;
    } else {
        fy_group *group = &r->groups.groups[reason->group];
        uint64_t *have  = fy_group_have(&r->groups, group, reason->to_member);
        bytes           = chunk_length(r, group, t->chunk);
        have[t->chunk / 64] |= (uint64_t)1 << (t->chunk % 64);
        if (reason->from_member == 0 && t->chunk == group->released) {
            group->released++;
            r->rest[reason->from] -= bytes;
        }
        status = fy_groups_deal(&r->groups, group, t->chunk, reason->from_member, reason->to_member,
                                round, deal, error);
    }
    r->rest[n + reason->to] -= bytes;
    r->left_over -= bytes;
    return status;
}

typedef struct port {
    uint64_t rest;
    uint32_t vertex;
} port;

static int busiest_first(const void *a, const void *b)
{
    const port *x = a, *y = b;
    if (x->rest != y->rest) {
        return x->rest > y->rest ? -1 : 1;
    }
    return (x->vertex > y->vertex) - (x->vertex < y->vertex);
}

static uint32_t sort_ports(relaying *r, port *ports)
{
    uint32_t n = 0;
    for (uint32_t v = 0; v < r->match.n_vertices; v++) {
        if (r->rest[v] > 0) {
            ports[n++] = (port){.rest = r->rest[v], .vertex = v};
        }
    }
    fy_sort(ports, n, sizeof *ports, busiest_first);
    r->horizon = n == 0 ? 0 : ports[0].rest;
    return n;
}

static void match_ports(relaying *r, port *ports)
{
    uint32_t n = sort_ports(r, ports);
    fy_match_clear_all(&r->match);
    for (int pass = 0; pass < 2; pass++) {
        r->covering = pass == 0;
        for (uint32_t i = 0; i < n; i++) {
            if (r->match.edge[ports[i].vertex] == FY_UNMATCHED) {
                fy_match_cover(&r->match, ports[i].vertex);
            }
        }
    }
}

/* All transfers of a round are chosen before the first of them counts. */
static ferry_status play_round(relaying *r, uint32_t round, port *ports, transfer *transfers,
                               fy_deal *deal, ferry_error *error)
{
    uint32_t     n      = 0;
    ferry_status status = FERRY_OK;
    match_ports(r, ports);
    for (uint32_t v = 0; v < r->match.n_left; v++) {
        uint32_t edge = r->match.edge[v];
        if (edge == FY_UNMATCHED) {
            continue;
        }
        const cause *reason = choose(r, edge);
        transfer     t      = {.reason = reason, .chunk = NONE};
        if (reason != NULL && reason->group != NONE) {
            t.chunk =
                is_due(r, reason) ? r->groups.groups[reason->group].released : newest(r, reason);
        }
        if (reason != NULL) {
            transfers[n++] = t;
        }
    }
    for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
        status = send_chunk(r, &transfers[i], round, deal, error);
    }
    return status;
}

static ferry_status play(relaying *r, fy_deal *deal, ferry_error *error)
{
    uint32_t     n         = r->job->pairs->n_ranks;
    port        *ports     = fy_alloc(2 * (size_t)n, sizeof *ports);
    transfer    *transfers = fy_alloc(n, sizeof *transfers);
    ferry_status status    = FERRY_OK;
    if (ports == NULL || transfers == NULL) {
        status = fy_fail_no_memory(error, "the rounds of relays");
    }
    for (uint32_t round = 0; r->left_over > 0 && status == FERRY_OK; round++) {
        status = play_round(r, round, ports, transfers, deal, error);
    }
    fy_free(ports);
    fy_free(transfers);
    return status;
}

/* The tasks in no group as pairs of their own. */
static ferry_status split_own(const fy_job *job, const fy_groups *groups, fy_pairs *own,
                              ferry_error *error)
{
    ferry_task_list list   = {.n_ranks = job->pairs->n_ranks};
    ferry_status    status = FERRY_OK;
    list.tasks             = fy_alloc(job->pairs->n_tasks, sizeof *list.tasks);
    if (list.tasks == NULL) {
        return fy_fail_no_memory(error, "the tasks of a schedule");
    }
    for (uint32_t i = 0; i < job->pairs->n_tasks; i++) {
        if (!groups->is_grouped[i]) {
            list.tasks[list.n_tasks++] = job->pairs->tasks[i];
        }
    }
    status = fy_pairs_init(&list, own, error);
    fy_free(list.tasks);
    return status;
}

/* The own bytes' batches come behind the groups': rounds tell when they travel. */
static ferry_status append_own(const fy_deal *own, fy_deal *deal, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < own->n_batches && status == FERRY_OK; i++) {
        const fy_batch *batch = &own->batches[i];
        status                = fy_deal_open(deal, batch->from, batch->to, batch->round, error);
        for (uint32_t s = 0; s < batch->n_segments && status == FERRY_OK; s++) {
            status = fy_deal_add(deal, &own->segments[batch->first_segment + s], error);
        }
    }
    return status;
}

static void relaying_cleanup(relaying *r)
{
    fy_deal_cleanup(&r->own);
    fy_groups_cleanup(&r->groups);
    fy_match_cleanup(&r->match);
    fy_free(r->reasons);
    fy_free(r->begin);
    fy_free(r->left);
    fy_free(r->rest);
}

static ferry_status relaying_init(relaying *r, ferry_error *error)
{
    uint32_t     n      = r->job->pairs->n_ranks;
    ferry_status status = list_reasons(r, error);
    r->rest             = fy_alloc_zeroed(2 * (size_t)n, sizeof *r->rest);
    if (status == FERRY_OK && r->rest == NULL) {
        status = fy_fail_no_memory(error, "the ports of a schedule");
    }
    if (status == FERRY_OK) {
        status = list_edges(r, error);
    }
    if (status == FERRY_OK) {
        status = fy_match_init(&r->match, n, n, r->n_edges, r->left, r->right, error);
    }
    if (status == FERRY_OK) {
        r->match.context  = r;
        r->match.usable   = is_usable;
        r->match.spent    = is_spent;
        r->match.critical = is_critical;
        add_up(r);
    }
    return status;
}

ferry_status fy_deal_relayed(const fy_job *job, double chunk_bytes, fy_deal *deal,
                             ferry_error *error)
{
    fy_pairs     own    = {0};
    relaying     r      = {.job = job};
    ferry_status status = FERRY_OK;
    r.chunk_bytes = chunk_bytes < (double)job->slot_bytes ? (uint64_t)chunk_bytes : job->slot_bytes;
    r.chunk_bytes = fy_max(r.chunk_bytes, 1);
    status        = fy_groups_init(job, r.chunk_bytes, &r.groups, error);
    if (status == FERRY_OK) {
        status = split_own(job, &r.groups, &own, error);
    }
    if (status == FERRY_OK) {
        status = fy_deal_init(&r.own, &own, job->slot_bytes, job->max_tasks, error);
    }
    if (status == FERRY_OK) {
        status = relaying_init(&r, error);
    }
    if (status == FERRY_OK) {
        status = play(&r, deal, error);
    }
    if (status == FERRY_OK) {
        status = append_own(&r.own, deal, error);
    }
    relaying_cleanup(&r);
    fy_pairs_cleanup(&own);
    return status;
}

ferry_status fy_relay_fan_out(const fy_job *job, uint32_t *most_receivers_out, ferry_error *error)
{
    fy_groups    groups;
    ferry_status status = fy_groups_init(job, job->slot_bytes, &groups, error);
    if (status == FERRY_OK) {
        uint32_t most = 0;
        for (size_t i = 0; i < groups.n_groups; i++) {
            most = groups.groups[i].n_members - 1 > most ? groups.groups[i].n_members - 1 : most;
        }
        *most_receivers_out = most;
        fy_groups_cleanup(&groups);
    }
    return status;
}
