/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_MATCH_H
#define FY_SCHEDULE_MATCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

#define FY_UNMATCHED UINT32_MAX

/*
 * A matching in a bipartite graph whose usable edges change from round to round. Vertices of both
 * sides have one numbering, left ones first.
 */
typedef struct fy_match {
    uint32_t n_left;
    uint32_t n_vertices;
    const uint32_t *left;  /* [edges] below n_left */
    const uint32_t *right; /* [edges] from 0 */
    uint32_t *edge;        /* [n_vertices] the matched edge, or FY_UNMATCHED */
    /* What the caller knows. spent: never usable again. */
    void *context;
    bool (*usable)(void *context, uint32_t edge);
    bool (*spent)(void *context, uint32_t edge);
    bool (*critical)(void *context, uint32_t vertex);
    /* Edges around vertices; spent ones lie behind length. */
    uint32_t *begin;
    uint32_t *length;
    uint32_t *around;
    uint32_t *seen; /* the search that last came by */
    uint32_t *via;  /* the edge by which it came */
    uint32_t *stack;
    uint32_t *visited; /* by the search so far, on the other side */
    uint32_t *dead;    /* the phase in which a search came by in vain */
    uint32_t search;
    uint32_t phase;
} fy_match;

/* The caller sets context and functions afterwards. */
ferry_status fy_match_init(fy_match *match, uint32_t n_left, uint32_t n_right, uint32_t n_edges,
                           const uint32_t *left, const uint32_t *right, ferry_error *error);
void fy_match_cleanup(fy_match *match);

static inline uint32_t fy_match_across(const fy_match *match, uint32_t edge, uint32_t vertex)
{
    return vertex < match->n_left ? match->n_left + match->right[edge] : match->left[edge];
}

/* Matches both ends of an edge, or frees them. */
void fy_match_set(fy_match *match, uint32_t edge);
void fy_match_clear(fy_match *match, uint32_t edge);
void fy_match_clear_all(fy_match *match);

/*
 * Begins anew to tell apart what is usable and critical. Within a phase these do not change, so
 * what one search found to lead nowhere no other one enters again.
 */
void fy_match_begin_phase(fy_match *match);

/*
 * Matches a free vertex by an alternating path that ends at a free vertex of the other side, or by
 * taking the edge of a vertex of its own side that is not critical. No vertex of the other side
 * loses its edge, so the two sides can be covered one after the other (Mendelsohn and Dulmage).
 * False if there is no such path.
 */
bool fy_match_cover(fy_match *match, uint32_t vertex);

#endif
