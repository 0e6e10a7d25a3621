/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_RELAY_H
#define FY_SCHEDULE_RELAY_H

#include "schedule/build.h"
#include "schedule/content.h"

/*
 * Contents of one sender that the same receivers want, in one stream that is cut into chunks.
 * Member 0 is the sender, the others are the receivers in order of ranks.
 */
typedef struct fy_group {
    uint32_t n_members;
    uint32_t n_contents;
    uint32_t n_chunks;
    uint32_t n_words; /* of a set of chunks */
    uint32_t low;     /* words below are full at every member */
    uint32_t top;     /* words from here on are empty but at the sender */
    uint32_t n_nodes; /* that members live on, the sender's first; 0 where nodes do not limit */
    double rate;      /* at which its chunks travel */
    size_t members;   /* into fy_groups.ranks, and .place: the number among the group's nodes */
    size_t nodes;     /* into fy_groups.nodes */
    size_t tasks;     /* into fy_groups.tasks: content by content */
    size_t ids;       /* into fy_groups.ids: receiver by receiver, content by content */
    size_t chunks;    /* into fy_groups.chunks: n_chunks + 1 places */
    size_t have;      /* into fy_groups.have: sets of members, twice of nodes, and two more */
    size_t brought;   /* into fy_groups.brought: receiver by receiver */
} fy_group;

/* Where a chunk begins. */
typedef struct fy_chunk_begin {
    uint32_t content;
    uint64_t offset;
} fy_chunk_begin;

typedef struct fy_groups {
    const fy_pairs *pairs;
    fy_group *groups;
    size_t n_groups, group_capacity;
    uint32_t *ranks;
    uint32_t *place;
    size_t n_ranks, rank_capacity;
    uint32_t *nodes;
    size_t n_nodes, node_capacity;
    uint32_t *tasks; /* of a content for its first receiver: bytes and element are those of all */
    size_t n_tasks;
    uint64_t *ids; /* of all receivers' tasks */
    size_t n_ids;
    fy_chunk_begin *chunks;
    size_t n_chunks, chunk_capacity;
    uint64_t *have;
    size_t n_have;
    uint32_t *brought; /* by which batch of the deal a receiver got each chunk that it has */
    size_t n_brought;
    bool *is_grouped; /* [n_tasks of the pairs] */
} fy_groups;

/*
 * Groups the contents for which relays may pay: those whose sender, or whose sender's or receivers'
 * node, could not send everything directly within the bound. Chunks have at most chunk_bytes (at
 * least one element, though) and the job's limits.
 */
ferry_status fy_groups_init(const fy_job *job, uint64_t chunk_bytes, fy_groups *groups,
                            ferry_error *error);
void fy_groups_cleanup(fy_groups *groups);

/*
 * A chunk from one member, who has it, to another as a batch of the deal; from member 0 it is no
 * relay.
 */
ferry_status fy_groups_deal(fy_groups *groups, const fy_group *group, uint32_t chunk,
                            uint32_t from_member, uint32_t to_member, uint32_t round, fy_deal *deal,
                            ferry_error *error);

/* The chunks that a member has. */
static inline uint64_t *fy_group_have(const fy_groups *groups, const fy_group *group,
                                      uint32_t member)
{
    return groups->have + group->have + (size_t)member * group->n_words;
}

/* The chunks that some member on a node of the group has, or is about to get. */
static inline uint64_t *fy_group_node_have(const fy_groups *groups, const fy_group *group,
                                           uint32_t place)
{
    return fy_group_have(groups, group, group->n_members + place);
}

/* The chunks that all receivers on a node have: those it passes on, so that its ports share. */
static inline uint64_t *fy_group_node_ready(const fy_groups *groups, const fy_group *group,
                                            uint32_t place)
{
    return fy_group_node_have(groups, group, group->n_nodes + place);
}

/* The chunks that the sender has sent to somebody, and those that have left its node. */
static inline uint64_t *fy_group_released(const fy_groups *groups, const fy_group *group)
{
    return fy_group_node_have(groups, group, 2 * group->n_nodes);
}

static inline uint64_t *fy_group_outside(const fy_groups *groups, const fy_group *group)
{
    return fy_group_node_have(groups, group, 2 * group->n_nodes + 1);
}

uint64_t fy_group_chunk_bytes(const fy_groups *groups, const fy_group *group, uint32_t chunk);

/*
 * Rounds in which receivers pass on to each other what several of them want ; what only one wants
 * goes directly. deal is initialised by the caller for the job's pairs, and ends up with all of
 * their bytes. FERRY_ERR_UNSUPPORTED where that would take too long.
 */
ferry_status fy_deal_relayed(const fy_job *job, double chunk_bytes, fy_deal *deal,
                             ferry_error *error);

/*
 * The same along chains: every receiver has the chunks from the one before it, node by node. The
 * ends are late by a round per receiver, but no node lets a chunk in or out twice.
 */
ferry_status fy_deal_chained(const fy_job *job, double chunk_bytes, fy_deal *deal,
                             ferry_error *error);

/*
 * No way with chunks of this size is faster (floor.c): what a rank receives, in batches of a
 * latency each, and along a chain what it waits for before.
 */
ferry_status fy_floor_of_relayed(const fy_job *job, double chunk_bytes, double *time_out,
                                 ferry_error *error);
ferry_status fy_floor_of_chained(const fy_job *job, double chunk_bytes, double *time_out,
                                 ferry_error *error);

/* The bytes that a chunk has at most, where a size was thought of. */
static inline uint64_t fy_relay_chunk(const fy_job *job, double chunk_bytes)
{
    uint64_t bytes =
        chunk_bytes < (double)job->slot_bytes ? (uint64_t)chunk_bytes : job->slot_bytes;
    return bytes > 0 ? bytes : 1;
}

/* Whether there is any group, and the most receivers that one has. */
ferry_status fy_relay_fan_out(const fy_job *job, uint32_t *most_receivers_out, ferry_error *error);

#endif
