/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/peel.h"

#include "base/checked.h"
#include "schedule/match.h"

typedef struct peeling {
    fy_peel *peel;
    fy_match match;
    uint64_t horizon; /* the largest load */
    uint64_t threshold;
} peeling;

static bool is_critical(void *context, uint32_t vertex)
{
    const peeling *p = context;
    return p->peel->load[vertex] + p->threshold > p->horizon;
}

static bool is_long(void *context, uint32_t edge)
{
    const peeling *p = context;
    return p->peel->rest[edge] >= p->threshold &&
           p->peel->avail(p->peel->context, edge) >= p->threshold;
}

static bool is_spent(void *context, uint32_t edge)
{
    const peeling *p = context;
    return p->peel->rest[edge] == 0;
}

/* Edges that are still long enough stay matched from round to round. */
static void drop_short_matches(peeling *p)
{
    for (uint32_t v = 0; v < p->match.n_left; v++) {
        uint32_t edge = p->match.edge[v];
        if (edge != FY_UNMATCHED && !is_long(p, edge)) {
            fy_match_clear(&p->match, edge);
        }
    }
}

static bool cover_critical(peeling *p)
{
    for (uint32_t v = 0; v < p->match.n_vertices; v++) {
        if (p->match.edge[v] == FY_UNMATCHED && is_critical(p, v) &&
            !fy_match_cover(&p->match, v)) {
            return false;
        }
    }
    return true;
}

/* Ports that are free all the same serve their longest edge. */
static void fill(peeling *p)
{
    const fy_match *match = &p->match;
    const uint64_t *rest = p->peel->rest;
    for (uint32_t v = 0; v < match->n_left; v++) {
        uint32_t best = FY_UNMATCHED;
        if (match->edge[v] != FY_UNMATCHED) {
            continue;
        }
        for (uint32_t i = 0; i < match->length[v]; i++) {
            uint32_t edge = match->around[match->begin[v] + i];
            uint32_t other = fy_match_across(match, edge, v);
            bool open = match->edge[other] == FY_UNMATCHED;
            if (open && rest[edge] > 0 && (best == FY_UNMATCHED || rest[edge] > rest[best])) {
                best = edge;
            }
        }
        if (best != FY_UNMATCHED) {
            fy_match_set(&p->match, best);
        }
    }
}

/* As long as no port, served or not, would have more left than the horizon then is. */
static uint64_t duration_of(const peeling *p)
{
    const fy_peel *peel = p->peel;
    uint64_t duration = UINT64_MAX;
    for (uint32_t v = 0; v < p->match.n_vertices; v++) {
        uint32_t edge = p->match.edge[v];
        uint64_t served = edge == FY_UNMATCHED ? 0 : peel->avail(peel->context, edge);
        duration = fy_min(duration, p->horizon - peel->load[v] + served);
    }
    return duration - (duration > peel->grain ? duration % peel->grain : 0);
}

static ferry_status serve(peeling *p, uint32_t round, uint64_t duration, uint64_t *served_out,
                          ferry_error *error)
{
    fy_peel *peel = p->peel;
    ferry_status status = FERRY_OK;
    *served_out = 0;
    for (uint32_t v = 0; v < p->match.n_left && status == FERRY_OK; v++) {
        uint32_t edge = p->match.edge[v];
        uint64_t taken = 0;
        if (edge == FY_UNMATCHED) {
            continue;
        }
        status = peel->take(peel->context, edge, round, duration, &taken, error);
        peel->load[v] -= taken;
        peel->load[fy_match_across(&p->match, edge, v)] -= taken;
        *served_out += taken;
    }
    return status;
}

static uint64_t horizon_of(const peeling *p)
{
    uint64_t most = 0;
    for (uint32_t v = 0; v < p->match.n_vertices; v++) {
        most = fy_max(most, p->peel->load[v]);
    }
    return most;
}

/* A quarter less: rounds stay long, and few thresholds are tried in vain. */
static uint64_t lower(const fy_peel *peel, uint64_t threshold)
{
    uint64_t next = threshold - fy_max(threshold / 4, 1);
    if (next > peel->grain) {
        next -= next % peel->grain;
    } else if (threshold > peel->grain) {
        next = peel->grain;
    }
    return next;
}

static uint64_t first_threshold(const fy_peel *peel)
{
    uint64_t longest = 0;
    for (uint32_t e = 0; e < peel->n_edges; e++) {
        longest = fy_max(longest, peel->avail(peel->context, e));
    }
    return longest;
}

static ferry_status peel_round(peeling *p, uint32_t *round, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint64_t served = 0;
    p->threshold = fy_min(p->threshold, p->horizon);
    drop_short_matches(p);
    fy_match_begin_phase(&p->match);
    if (cover_critical(p)) {
        fill(p);
        uint64_t duration = duration_of(p);
        if (duration > 0) {
            status = serve(p, *round, duration, &served, error);
        }
    }
    if (served > 0) {
        (*round)++;
    } else {
        p->threshold = lower(p->peel, p->threshold);
    }
    return status;
}

ferry_status fy_peel_run(fy_peel *peel, uint32_t first_round, uint32_t *end_out, ferry_error *error)
{
    peeling p = {.peel = peel};
    uint32_t round = first_round;
    FY_TRY(fy_match_init(&p.match, peel->n_left, peel->n_right, peel->n_edges, peel->left,
                         peel->right, error));
    ferry_status status = FERRY_OK;
    p.match.context = &p;
    p.match.usable = is_long;
    p.match.spent = is_spent;
    p.match.critical = is_critical;
    p.threshold = first_threshold(peel);
    while (status == FERRY_OK && p.threshold >= peel->shortest && p.threshold > 0) {
        p.horizon = horizon_of(&p);
        if (p.horizon <= peel->leftovers) {
            break;
        }
        status = peel_round(&p, &round, error);
    }
    fy_match_cleanup(&p.match);
    if (status == FERRY_OK) {
        *end_out = round;
    }
    return status;
}
