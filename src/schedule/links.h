/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_LINKS_H
#define FY_SCHEDULE_LINKS_H

#include "schedule/match.h"
#include "schedule/relay.h"

#define FY_OWN UINT32_MAX

/*
 * One reason why a rank may send to another, or a node to another: a group, of which both are
 * members (or places), or bytes that only the receiver wants.
 */
typedef struct fy_cause {
    uint32_t from;
    uint32_t to;
    uint32_t group; /* FY_OWN: a pair's own bytes */
    uint32_t from_member;
    uint32_t to_member; /* of own bytes: the pair */
    uint32_t from_turn; /* of their ends, by which links are tried */
    uint32_t to_turn;
} fy_cause;

/* Causes by the two that they link, and a matching of these. */
typedef struct fy_links {
    fy_cause *causes;
    size_t n_causes, capacity;
    size_t most_causes; /* beyond which it takes too long */
    uint32_t *begin;    /* [n_edges + 1] into causes */
    uint32_t *left;
    uint32_t *right;
    uint32_t n_edges;
    fy_match match;
} fy_links;

void fy_links_cleanup(fy_links *links);

/*
 * Links among ranks, and among nodes where these limit: then ranks are linked inside nodes only.
 * Large groups get a few links per member, at distances of powers of two.
 */
ferry_status fy_links_of_ranks(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                               const uint32_t *turn, fy_links *links, ferry_error *error);
/* The receiver after a member, going through those at home before the others; 0: none. */
uint32_t fy_next_in_chain(const fy_groups *groups, const fy_group *group, uint32_t member);
/* From every member to the next one; receivers on the sender's node come first. */
ferry_status fy_links_of_chains(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                                const uint32_t *turn, fy_links *links, ferry_error *error);
ferry_status fy_links_of_nodes(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                               const uint32_t *turn, fy_links *links, ferry_error *error);

#endif
