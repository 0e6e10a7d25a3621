/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/relay.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/index.h"

#include <string.h>

/* Ports that could not send, or take in, everything directly within the bound. */
typedef struct strain {
    const fy_job *job;
    double *out;      /* [n_ranks] time, all receivers counted */
    double *node_out; /* [n_nodes] */
    double *node_in;
} strain;

static ferry_status strain_init(strain *s, const fy_job *job, ferry_error *error)
{
    const fy_network *network = job->network;
    size_t n = network->n_ranks, nodes = network->n_nodes;
    *s = (strain){.job = job};
    s->out = fy_alloc_zeroed(n + 2 * nodes, sizeof *s->out);
    FY_TRY(fy_check_memory(s->out != NULL, "the loads of ranks", error));
    s->node_out = s->out + n;
    s->node_in = s->node_out + nodes;
    for (uint32_t i = 0; i < job->pairs->n_pairs; i++) {
        const fy_pair *pair = &job->pairs->pairs[i];
        double bytes = (double)pair->bytes;
        double rate = fy_network_rate(network, pair->from, pair->to);
        s->out[pair->from] += bytes / rate;
        if (job->duplex == FERRY_DUPLEX_HALF) {
            s->out[pair->to] += bytes / rate;
        }
        if (nodes != 0) {
            uint32_t a = fy_network_node(network, pair->from);
            uint32_t b = fy_network_node(network, pair->to);
            s->node_out[a] += a == b ? 0 : bytes / network->node_rate[a];
            s->node_in[b] += a == b ? 0 : bytes / network->node_rate[b];
        }
    }
    return FERRY_OK;
}

static bool may_pay(const strain *s, const fy_pair *pair)
{
    const fy_network *network = s->job->network;
    double limit = 1.001 * s->job->bound.time;
    if (s->out[pair->from] > limit) {
        return true;
    }
    return network->n_nodes != 0 && (s->node_out[fy_network_node(network, pair->from)] > limit ||
                                     s->node_in[fy_network_node(network, pair->to)] > limit);
}

typedef struct grouping {
    fy_groups *groups;
    bool *pays; /* [n_contents] */
    fy_contents contents;
    strain strain;
    fy_index index;             /* of groups by sender and receivers */
    uint32_t *group_of;         /* [contents] or UINT32_MAX */
    fy_content_task *receivers; /* tasks of one content, one per receiver */
    size_t receiver_capacity;
} grouping;

static void find_paying(grouping *g)
{
    const fy_pairs *pairs = g->groups->pairs;
    for (uint32_t i = 0; i < pairs->n_pairs; i++) {
        const fy_pair *pair = &pairs->pairs[i];
        bool pays = may_pay(&g->strain, pair);
        for (uint32_t t = pair->first; pays && t < pair->first + pair->n_tasks; t++) {
            if (pairs->tasks[t].content != FY_NO_CONTENT) {
                g->pays[pairs->tasks[t].content] = true;
            }
        }
    }
}

/* The first task of each receiver of a content: the others go directly. */
static ferry_status list_receivers(grouping *g, uint32_t content, uint32_t *n_out,
                                   ferry_error *error)
{
    const fy_content *c = &g->contents.contents[content];
    uint32_t n = 0;
    FY_TRY(FY_GROW(g->receivers, g->receiver_capacity, c->end - c->begin,
                   "the receivers of a content", error));
    for (uint32_t i = c->begin; i < c->end; i++) {
        const fy_content_task *task = &g->contents.tasks[i];
        if (n == 0 || task->to != g->receivers[n - 1].to) {
            g->receivers[n++] = *task;
        }
    }
    *n_out = n;
    return FERRY_OK;
}

static bool has_members(const grouping *g, const fy_group *group, uint32_t from, uint32_t n)
{
    const uint32_t *ranks = g->groups->ranks + group->members;
    if (group->n_members != n + 1 || ranks[0] != from) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (ranks[i + 1] != g->receivers[i].to) {
            return false;
        }
    }
    return true;
}

static ferry_status add_group(grouping *g, uint32_t from, uint32_t n, uint64_t hash,
                              uint32_t *number_out, ferry_error *error)
{
    fy_groups *all = g->groups;
    if (!FY_RESERVE(all->groups, all->group_capacity, all->n_groups + 1) ||
        !FY_RESERVE(all->ranks, all->rank_capacity, all->n_ranks + n + 1) ||
        !fy_index_insert(&g->index, hash, (uint32_t)all->n_groups)) {
        return fy_fail_no_memory(error, "the groups of receivers");
    }
    *number_out = (uint32_t)all->n_groups;
    all->groups[all->n_groups++] = (fy_group){.n_members = n + 1, .members = all->n_ranks};
    all->ranks[all->n_ranks++] = from;
    for (uint32_t i = 0; i < n; i++) {
        all->ranks[all->n_ranks++] = g->receivers[i].to;
    }
    return FERRY_OK;
}

static ferry_status find_group(grouping *g, uint32_t from, uint32_t n, uint32_t *number_out,
                               ferry_error *error)
{
    uint64_t hash = from;
    for (uint32_t i = 0; i < n; i++) {
        hash = fy_hash_mix(hash, g->receivers[i].to);
    }
    for (fy_index_cursor c = fy_index_first(&g->index, hash); c.value != FY_INDEX_NONE;
         fy_index_next(&g->index, &c)) {
        if (has_members(g, &g->groups->groups[c.value], from, n)) {
            *number_out = c.value;
            return FERRY_OK;
        }
    }
    return add_group(g, from, n, hash, number_out, error);
}

static ferry_status assign_contents(grouping *g, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t c = 0; c < g->contents.n && status == FERRY_OK; c++) {
        uint32_t n = 0;
        g->group_of[c] = UINT32_MAX;
        if (g->pays[c]) {
            status = list_receivers(g, c, &n, error);
        }
        if (status == FERRY_OK && n > 1) {
            status = find_group(g, g->contents.contents[c].from, n, &g->group_of[c], error);
        }
        if (status == FERRY_OK && g->group_of[c] != UINT32_MAX) {
            g->groups->groups[g->group_of[c]].n_contents++;
        }
    }
    return status;
}

static uint64_t *task_id(const fy_groups *groups, const fy_group *group, uint32_t content,
                         uint32_t member)
{
    return &groups->ids[group->ids + (size_t)(member - 1) * group->n_contents + content];
}

/*
 * A receiver's ids lie side by side: it gets chunk after chunk, while those of a round go to many
 * receivers.
 */
static ferry_status list_tasks(grouping *g, ferry_error *error)
{
    fy_groups *all = g->groups;
    ferry_status status = FERRY_OK;
    uint32_t *listed = fy_alloc_zeroed(all->n_groups, sizeof *listed);
    for (size_t i = 0; i < all->n_groups; i++) {
        fy_group *group = &all->groups[i];
        group->tasks = all->n_tasks;
        group->ids = all->n_ids;
        all->n_tasks += group->n_contents;
        all->n_ids += (size_t)group->n_contents * (group->n_members - 1);
    }
    all->tasks = fy_alloc(all->n_tasks, sizeof *all->tasks);
    all->ids = fy_alloc(all->n_ids, sizeof *all->ids);
    status = fy_check_memory(all->tasks != NULL && all->ids != NULL && listed != NULL,
                             "the tasks of groups", error);
    for (uint32_t c = 0; c < g->contents.n && status == FERRY_OK; c++) {
        uint32_t n = 0;
        if (g->group_of[c] == UINT32_MAX) {
            continue;
        }
        const fy_group *group = &all->groups[g->group_of[c]];
        uint32_t number = listed[g->group_of[c]]++;
        status = list_receivers(g, c, &n, error);
        if (status == FERRY_OK) {
            all->tasks[group->tasks + number] = g->receivers[0].task;
        }
        for (uint32_t i = 0; i < n && status == FERRY_OK; i++) {
            *task_id(all, group, number, i + 1) = all->pairs->tasks[g->receivers[i].task].id;
            all->is_grouped[g->receivers[i].task] = true;
        }
    }
    fy_free(listed);
    return status;
}

static const fy_task *content_task(const fy_groups *groups, const fy_group *group, uint32_t content)
{
    return &groups->pairs->tasks[groups->tasks[group->tasks + content]];
}

static ferry_status add_chunk(fy_groups *groups, uint32_t content, uint64_t offset,
                              ferry_error *error)
{
    FY_TRY(FY_GROW(groups->chunks, groups->chunk_capacity, groups->n_chunks + 1,
                   "the chunks of groups", error));
    groups->chunks[groups->n_chunks++] = (fy_chunk_begin){.content = content, .offset = offset};
    return FERRY_OK;
}

/* The place at which a chunk that begins here ends. */
static fy_chunk_begin end_chunk(const fy_groups *groups, const fy_group *group,
                                fy_chunk_begin place, uint64_t chunk_bytes, uint32_t max_tasks)
{
    uint64_t bytes = 0;
    for (uint32_t n = 0; n < max_tasks && place.content < group->n_contents; n++) {
        const fy_task *task = content_task(groups, group, place.content);
        uint64_t left = task->bytes - place.offset, part = fy_min(left, chunk_bytes - bytes);
        part -= part < left ? part % task->element : 0;
        if (part == 0 && n == 0) {
            part = task->element;
        }
        bytes += part;
        place.offset += part;
        if (place.offset < task->bytes) {
            break;
        }
        place = (fy_chunk_begin){.content = place.content + 1};
        if (bytes >= chunk_bytes) {
            break;
        }
    }
    return place;
}

/*
 * Few chunks are of one length: a short one at the end would take a round as well. Of many, a short
 * last one is welcome, since the last one's way through all receivers is what comes on top.
 */
static uint64_t even_chunk(const fy_groups *groups, const fy_group *group, uint64_t chunk_bytes)
{
    enum { FEW_CHUNKS = 32 };
    uint64_t bytes = 0, grain = groups->pairs->common_element;
    for (uint32_t c = 0; c < group->n_contents; c++) {
        bytes += content_task(groups, group, c)->bytes;
    }
    uint64_t n = fy_ceil_div(bytes, chunk_bytes), even = fy_ceil_div(bytes, n);
    return n > FEW_CHUNKS || grain >= even ? chunk_bytes
                                           : fy_min(fy_ceil_div(even, grain) * grain, chunk_bytes);
}

static ferry_status cut_chunks(const fy_job *job, fy_groups *groups, uint64_t chunk_bytes,
                               ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < groups->n_groups && status == FERRY_OK; i++) {
        fy_group *group = &groups->groups[i];
        fy_chunk_begin place = {0};
        uint64_t even = even_chunk(groups, group, chunk_bytes);
        group->chunks = groups->n_chunks;
        while (place.content < group->n_contents && status == FERRY_OK) {
            status = add_chunk(groups, place.content, place.offset, error);
            place = end_chunk(groups, group, place, even, job->max_tasks);
        }
        group->n_chunks = (uint32_t)(groups->n_chunks - group->chunks);
        group->n_words = (group->n_chunks + 63) / 64;
        group->have = groups->n_have;
        groups->n_have += (size_t)group->n_words * (group->n_members + 2 * group->n_nodes + 2);
        group->brought = groups->n_brought;
        groups->n_brought += (size_t)group->n_chunks * (group->n_members - 1);
        FY_THEN(status, add_chunk(groups, place.content, 0, error));
    }
    if (status == FERRY_OK) {
        groups->have = fy_alloc_zeroed(groups->n_have, sizeof *groups->have);
        status = groups->have == NULL ? fy_fail_no_memory(error, "the chunks of groups") : status;
    }
    return status;
}

/* Then receivers there carry across the border what the sender gives them, once each. */
static bool has_receiver_at_home(const fy_groups *groups, const fy_group *group)
{
    bool any = false;
    for (uint32_t m = 1; m < group->n_members; m++) {
        any = any || groups->place[group->members + m] == 0;
    }
    return any;
}

static void fill_senders(fy_groups *groups)
{
    for (size_t i = 0; i < groups->n_groups; i++) {
        const fy_group *group = &groups->groups[i];
        uint64_t *have = fy_group_have(groups, group, 0);
        for (uint32_t chunk = 0; chunk < group->n_chunks; chunk++) {
            have[chunk / 64] |= (uint64_t)1 << (chunk % 64);
        }
        if (group->n_nodes > 0 && !has_receiver_at_home(groups, group)) {
            memcpy(fy_group_node_ready(groups, group, 0), have, group->n_words * sizeof *have);
        }
    }
}

/* Which node each member lives on, in numbers of the group's own. */
static ferry_status place_members(const fy_job *job, fy_groups *groups, ferry_error *error)
{
    const fy_network *network = job->network;
    groups->place = fy_alloc_zeroed(groups->n_ranks, sizeof *groups->place);
    FY_TRY(fy_check_memory(groups->place != NULL, "the nodes of groups", error));
    for (size_t i = 0; network->n_nodes != 0 && i < groups->n_groups; i++) {
        fy_group *group = &groups->groups[i];
        const uint32_t *ranks = groups->ranks + group->members;
        uint32_t home = fy_network_node(network, ranks[0]), last = home, number = 0;
        FY_TRY(FY_GROW(groups->nodes, groups->node_capacity, groups->n_nodes + group->n_members,
                       "the nodes of groups", error));
        group->nodes = groups->n_nodes;
        groups->nodes[groups->n_nodes++] = home;
        group->n_nodes = 1;
        for (uint32_t m = 1; m < group->n_members; m++) { /* receivers are in order of nodes */
            uint32_t node = fy_network_node(network, ranks[m]);
            if (node != last && node != home) {
                number = group->n_nodes++;
                groups->nodes[groups->n_nodes++] = node;
            }
            last = node == home ? last : node;
            groups->place[group->members + m] = node == home ? 0 : number;
        }
    }
    return FERRY_OK;
}

/* A sender feeds its fastest receiver, and receivers each other. */
static void set_rates(const fy_job *job, fy_groups *groups)
{
    for (size_t i = 0; i < groups->n_groups; i++) {
        fy_group *group = &groups->groups[i];
        const uint32_t *ranks = groups->ranks + group->members;
        for (uint32_t m = 1; m < group->n_members; m++) {
            double rate = fy_network_rate(job->network, ranks[0], ranks[m]);
            group->rate = rate > group->rate ? rate : group->rate;
        }
    }
}

static void grouping_cleanup(grouping *g)
{
    fy_contents_cleanup(&g->contents);
    fy_index_cleanup(&g->index);
    fy_free(g->strain.out);
    fy_free(g->pays);
    fy_free(g->group_of);
    fy_free(g->receivers);
}

ferry_status fy_groups_init(const fy_job *job, uint64_t chunk_bytes, fy_groups *groups,
                            ferry_error *error)
{
    grouping g = {.groups = groups};
    *groups = (fy_groups){.pairs = job->pairs};
    groups->is_grouped = fy_alloc_zeroed(job->pairs->n_tasks, sizeof *groups->is_grouped);
    g.pays = fy_alloc_zeroed(job->pairs->n_contents, sizeof *g.pays);
    g.group_of = fy_alloc(job->pairs->n_contents, sizeof *g.group_of);
    ferry_status status = strain_init(&g.strain, job, error);
    if (status == FERRY_OK &&
        (groups->is_grouped == NULL || g.pays == NULL || g.group_of == NULL)) {
        status = fy_fail_no_memory(error, "the groups of tasks");
    }
    if (status == FERRY_OK) {
        find_paying(&g);
        status = fy_contents_init(job->pairs, g.pays, &g.contents, error);
    }
    FY_THEN(status, assign_contents(&g, error));
    FY_THEN(status, list_tasks(&g, error));
    FY_THEN(status, place_members(job, groups, error));
    if (status == FERRY_OK) {
        set_rates(job, groups);
        status = cut_chunks(job, groups, fy_min(chunk_bytes, job->slot_bytes), error);
    }
    grouping_cleanup(&g);
    if (status == FERRY_OK) {
        fill_senders(groups);
    } else {
        fy_groups_cleanup(groups);
    }
    return status;
}

void fy_groups_cleanup(fy_groups *groups)
{
    fy_free(groups->groups);
    fy_free(groups->ranks);
    fy_free(groups->place);
    fy_free(groups->nodes);
    fy_free(groups->tasks);
    fy_free(groups->ids);
    fy_free(groups->chunks);
    fy_free(groups->have);
    fy_free(groups->brought);
    fy_free(groups->is_grouped);
    *groups = (fy_groups){0};
}

uint64_t fy_group_chunk_bytes(const fy_groups *groups, const fy_group *group, uint32_t chunk)
{
    const fy_chunk_begin *begin = groups->chunks + group->chunks + chunk;
    uint64_t bytes = 0;
    for (uint32_t c = begin->content; c <= begin[1].content && c < group->n_contents; c++) {
        bytes += c == begin[1].content ? begin[1].offset : content_task(groups, group, c)->bytes;
    }
    return bytes - begin->offset;
}

/* Which batch brought a chunk to a receiver. */
static uint32_t *brought(const fy_groups *groups, const fy_group *group, uint32_t chunk,
                         uint32_t member)
{
    return &groups->brought[group->brought + (size_t)(member - 1) * group->n_chunks + chunk];
}

ferry_status fy_groups_deal(fy_groups *groups, const fy_group *group, uint32_t chunk,
                            uint32_t from_member, uint32_t to_member, uint32_t round, fy_deal *deal,
                            ferry_error *error)
{
    const uint32_t *ranks = groups->ranks + group->members;
    const fy_chunk_begin *begin = groups->chunks + group->chunks + chunk;
    ferry_status status = fy_deal_open(deal, ranks[from_member], ranks[to_member], round, error);
    if (status == FERRY_OK) {
        *brought(groups, group, chunk, to_member) = (uint32_t)deal->n_batches - 1;
    }
    if (status == FERRY_OK && from_member != 0) {
        uint32_t by = *brought(groups, group, chunk, from_member);
        deal->batches[deal->n_batches - 1].brought_by = by + 1;
    }
    for (uint32_t c = begin->content; c <= begin[1].content && status == FERRY_OK; c++) {
        if (c == begin[1].content && begin[1].offset == 0) {
            break;
        }
        uint64_t offset = c == begin->content ? begin->offset : 0;
        uint64_t end =
            c == begin[1].content ? begin[1].offset : content_task(groups, group, c)->bytes;
        fy_segment segment = {.task_id = *task_id(groups, group, c, to_member),
                              .first_byte = offset,
                              .bytes = end - offset};
        if (from_member != 0) {
            segment.is_relayed = true;
            segment.relay_task_id = *task_id(groups, group, c, from_member);
        }
        status = fy_deal_add(deal, &segment, error);
    }
    return status;
}
