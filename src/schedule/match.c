/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "schedule/match.h"

#include "base/alloc.h"

#include <string.h>

ferry_status fy_match_init(fy_match *match, uint32_t n_left, uint32_t n_right, uint32_t n_edges,
                           const uint32_t *left, const uint32_t *right, ferry_error *error)
{
    uint32_t n = n_left + n_right;
    *match = (fy_match){.n_left = n_left, .n_vertices = n, .left = left, .right = right};
    match->begin = fy_alloc_zeroed((size_t)n + 2, sizeof *match->begin);
    match->length = fy_alloc_zeroed(7 * (size_t)n, sizeof *match->length);
    match->around = fy_alloc(2 * (size_t)n_edges, sizeof *match->around);
    if (match->begin == NULL || match->length == NULL || match->around == NULL) {
        fy_match_cleanup(match);
        return fy_fail_no_memory(error, "the pairs of a schedule");
    }
    match->edge = match->length + n;
    match->seen = match->edge + n;
    match->via = match->seen + n;
    match->stack = match->via + n;
    match->visited = match->stack + n;
    match->dead = match->visited + n;
    match->phase = 1;
    fy_match_clear_all(match);
    for (uint32_t e = 0; e < n_edges; e++) {
        match->begin[left[e] + 2]++;
        match->begin[n_left + right[e] + 2]++;
    }
    for (uint32_t v = 0; v < n; v++) {
        match->length[v] = match->begin[v + 2];
        match->begin[v + 2] += match->begin[v + 1];
    }
    for (uint32_t e = 0; e < n_edges; e++) {
        match->around[match->begin[left[e] + 1]++] = e;
        match->around[match->begin[n_left + right[e] + 1]++] = e;
    }
    return FERRY_OK;
}

void fy_match_cleanup(fy_match *match)
{
    fy_free(match->begin);
    fy_free(match->length);
    fy_free(match->around);
    *match = (fy_match){0};
}

void fy_match_set(fy_match *match, uint32_t edge)
{
    match->edge[match->left[edge]] = edge;
    match->edge[match->n_left + match->right[edge]] = edge;
}

void fy_match_clear(fy_match *match, uint32_t edge)
{
    match->edge[match->left[edge]] = FY_UNMATCHED;
    match->edge[match->n_left + match->right[edge]] = FY_UNMATCHED;
}

void fy_match_clear_all(fy_match *match)
{
    memset(match->edge, 0xff, match->n_vertices * sizeof *match->edge);
}

/* Walks the path that a search left back to its start and matches its edges. */
static void augment(fy_match *match, uint32_t start, uint32_t end)
{
    for (;;) {
        uint32_t edge = match->via[end], near = fy_match_across(match, edge, end);
        uint32_t old = match->edge[near];
        fy_match_set(match, edge);
        if (near == start) {
            return;
        }
        end = fy_match_across(match, old, near);
    }
}

/* Whether a search ends at a vertex of the other side; if not, the search goes on behind it. */
static bool ends_at(fy_match *match, uint32_t vertex, uint32_t *next_out)
{
    uint32_t old = match->edge[vertex];
    if (old == FY_UNMATCHED) {
        return true;
    }
    *next_out = fy_match_across(match, old, vertex);
    if (match->critical(match->context, *next_out)) {
        return false;
    }
    match->edge[*next_out] = FY_UNMATCHED;
    return true;
}

void fy_match_begin_phase(fy_match *match)
{
    match->phase++;
}

bool fy_match_cover(fy_match *match, uint32_t vertex)
{
    uint32_t n = 0, n_visited = 0, start = vertex, next = 0;
    match->search++;
    match->stack[n++] = start;
    while (n > 0) {
        vertex = match->stack[--n];
        for (uint32_t i = 0; i < match->length[vertex]; i++) {
            uint32_t *slot = &match->around[match->begin[vertex] + i], edge = *slot;
            uint32_t other = fy_match_across(match, edge, vertex);
            if (match->spent(match->context, edge)) {
                *slot = match->around[match->begin[vertex] + --match->length[vertex]];
                i--;
                continue;
            }
            if (match->seen[other] == match->search || match->dead[other] == match->phase ||
                !match->usable(match->context, edge)) {
                continue;
            }
            match->seen[other] = match->search;
            match->via[other] = edge;
            match->visited[n_visited++] = other;
            if (ends_at(match, other, &next)) {
                augment(match, start, other);
                return true;
            }
            match->stack[n++] = next;
        }
    }
    for (uint32_t i = 0; i < n_visited; i++) {
        match->dead[match->visited[i]] = match->phase;
    }
    return false;
}
