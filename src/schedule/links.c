/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/links.h"

#include "base/alloc.h"
#include "base/sort.h"

/* Every member is linked to all others up to this size. */
enum { FULL_MESH = 64 };

/* FERRY_ERR_UNSUPPORTED where there are too many. */
static ferry_status add_cause(fy_links *links, const fy_cause *cause, ferry_error *error)
{
    if (cause->from == cause->to) {
        return FERRY_OK;
    }
    if (links->n_causes >= links->most_causes) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED, "relays among more than %zu pairs of ranks",
                       links->most_causes);
    }
    FY_TRY(FY_GROW(links->causes, links->capacity, links->n_causes + 1, "the links of a group",
                   error));
    links->causes[links->n_causes++] = *cause;
    return FERRY_OK;
}

static int compare(uint32_t a, uint32_t b)
{
    return (a > b) - (a < b);
}

static int by_ends(const void *a, const void *b)
{
    const fy_cause *x = a, *y = b;
    int c = compare(x->from_turn, y->from_turn);
    c = c != 0 ? c : compare(x->to_turn, y->to_turn);
    c = c != 0 ? c : compare(x->group, y->group);
    c = c != 0 ? c : compare(x->from_member, y->from_member);
    return c != 0 ? c : compare(x->to_member, y->to_member);
}

/*
 * n vertices on either side. Links are tried in the order of turn[] of their ends: those that have
 * little to send themselves come first, as they have time to pass things on.
 */
static ferry_status finish(fy_links *links, uint32_t n, const uint32_t *turn, ferry_error *error)
{
    for (size_t i = 0; i < links->n_causes; i++) {
        links->causes[i].from_turn = turn[links->causes[i].from];
        links->causes[i].to_turn = turn[links->causes[i].to];
    }
    fy_sort(links->causes, links->n_causes, sizeof *links->causes, by_ends);
    links->begin = fy_alloc(links->n_causes + 1, sizeof *links->begin);
    links->left = fy_alloc(2 * links->n_causes, sizeof *links->left);
    if (links->begin == NULL || links->left == NULL) {
        return fy_fail_no_memory(error, "the links of ranks");
    }
    links->right = links->left + links->n_causes;
    for (size_t i = 0; i < links->n_causes; i++) {
        const fy_cause *cause = &links->causes[i];
        if (i == 0 || cause->from != cause[-1].from || cause->to != cause[-1].to) {
            links->begin[links->n_edges] = (uint32_t)i;
            links->left[links->n_edges] = cause->from;
            links->right[links->n_edges++] = cause->to;
        }
    }
    links->begin[links->n_edges] = (uint32_t)links->n_causes;
    return fy_match_init(&links->match, n, n, links->n_edges, links->left, links->right, error);
}

void fy_links_cleanup(fy_links *links)
{
    fy_match_cleanup(&links->match);
    fy_free(links->causes);
    fy_free(links->begin);
    fy_free(links->left);
}

/*
 * From one of n members to the others: the first, who sends, to all; others to all of few, or to
 * those at powers of two both ways round. ends are ranks or nodes; places, if not NULL, must agree.
 */
static ferry_status link_member(fy_links *links, uint32_t group, uint32_t member, uint32_t n,
                                const uint32_t *ends, const uint32_t *places, ferry_error *error)
{
    uint32_t k = n - 1;
    bool full = member == 0 || k <= FULL_MESH;
    ferry_status status = FERRY_OK;
    for (uint32_t step = 1; step <= k && status == FERRY_OK; step = full ? step + 1 : 2 * step) {
        uint32_t up = full ? step : (member - 1 + step) % k + 1;
        uint32_t down = full ? step : (member - 1 + k - step) % k + 1;
        for (int way = 0; way < (up == down ? 1 : 2) && status == FERRY_OK; way++) {
            uint32_t to = way == 0 ? up : down;
            fy_cause cause = {.from = ends[member],
                              .to = ends[to],
                              .group = group,
                              .from_member = member,
                              .to_member = to};
            if (places == NULL || places[member] == places[to]) {
                status = add_cause(links, &cause, error);
            }
        }
    }
    return status;
}

static ferry_status link_own(const fy_network *network, const fy_pairs *own, bool inside,
                             fy_links *links, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < own->n_pairs && status == FERRY_OK; i++) {
        fy_cause cause = {
            .from = own->pairs[i].from, .to = own->pairs[i].to, .group = FY_OWN, .to_member = i};
        if (!inside || fy_network_node(network, cause.from) == fy_network_node(network, cause.to)) {
            status = add_cause(links, &cause, error);
        }
    }
    return status;
}

uint32_t fy_next_in_chain(const fy_groups *groups, const fy_group *group, uint32_t member)
{
    const uint32_t *place = groups->place + group->members;
    bool home = place[member] == 0;
    for (uint32_t pass = home ? 0 : 1; pass < 2; pass++) {
        uint32_t first = (pass == 0) == home ? member + 1 : 1;
        for (uint32_t m = first; m < group->n_members; m++) {
            if ((place[m] == 0) == (pass == 0)) {
                return m;
            }
        }
    }
    return 0;
}

ferry_status fy_links_of_chains(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                                const uint32_t *turn, fy_links *links, ferry_error *error)
{
    ferry_status status = link_own(job->network, own, false, links, error);
    for (uint32_t g = 0; g < groups->n_groups; g++) {
        const fy_group *group = &groups->groups[g];
        const uint32_t *ranks = groups->ranks + group->members;
        for (uint32_t m = 0; m < group->n_members && status == FERRY_OK; m++) {
            uint32_t next = fy_next_in_chain(groups, group, m);
            fy_cause cause = {.from = ranks[m],
                              .to = ranks[next],
                              .group = g,
                              .from_member = m,
                              .to_member = next};
            status = next == 0 ? status : add_cause(links, &cause, error);
        }
    }
    return status == FERRY_OK ? finish(links, job->network->n_ranks, turn, error) : status;
}

ferry_status fy_links_of_ranks(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                               const uint32_t *turn, fy_links *links, ferry_error *error)
{
    const fy_network *network = job->network;
    bool inside = network->n_nodes != 0;
    ferry_status status = link_own(network, own, inside, links, error);
    for (uint32_t g = 0; g < groups->n_groups; g++) {
        const fy_group *group = &groups->groups[g];
        for (uint32_t m = 0; m < group->n_members && status == FERRY_OK; m++) {
            status = link_member(links, g, m, group->n_members, groups->ranks + group->members,
                                 inside ? groups->place + group->members : NULL, error);
        }
    }
    return status == FERRY_OK ? finish(links, network->n_ranks, turn, error) : status;
}

ferry_status fy_links_of_nodes(const fy_job *job, const fy_pairs *own, const fy_groups *groups,
                               const uint32_t *turn, fy_links *links, ferry_error *error)
{
    const fy_network *network = job->network;
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < own->n_pairs && status == FERRY_OK; i++) {
        fy_cause cause = {.from = fy_network_node(network, own->pairs[i].from),
                          .to = fy_network_node(network, own->pairs[i].to),
                          .group = FY_OWN,
                          .to_member = i};
        status = add_cause(links, &cause, error);
    }
    for (uint32_t g = 0; g < groups->n_groups; g++) {
        const fy_group *group = &groups->groups[g];
        for (uint32_t place = 0; place < group->n_nodes && status == FERRY_OK; place++) {
            status = link_member(links, g, place, group->n_nodes, groups->nodes + group->nodes,
                                 NULL, error);
        }
    }
    return status == FERRY_OK ? finish(links, network->n_nodes, turn, error) : status;
}
