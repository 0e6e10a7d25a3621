/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Koenig: the edges of a bipartite multigraph of degree d can be coloured with d colours. Ports of
 * small degree are merged and dummy edges added until every vertex has degree d exactly. An even
 * degree is halved: every edge is paired with a neighbour at its left vertex and with one at its
 * right vertex, so pairs link all edges into cycles of even length, and alternate edges of a cycle
 * go to either half. An odd degree first gives up a perfect matching, which a regular graph always
 * has and which random walks find in O(n log n), however many edges there are.
 */
#include "schedule/colour.h"

#include "base/alloc.h"

#include <string.h>

/* Edges of a regular graph lie by left vertex, degree after degree. */
typedef struct half_edge {
    uint32_t right;
    uint32_t id; /* FY_NO_EDGE: a dummy */
} half_edge;

typedef struct colouring {
    uint32_t n;      /* vertices on either side */
    uint32_t *mate;  /* [edges] the edge paired at the right vertex */
    uint32_t *open;  /* [n] the edge at a right vertex that awaits its mate */
    uint32_t *match; /* [n] the matched edge of a right vertex */
    uint32_t *step;  /* [n] the edge by which a walk last left a left vertex */
    uint8_t *side;   /* [edges / 2] which edge of a left pair goes to the first half */
    uint64_t random;
    uint32_t *round_out;
    uint32_t next_round;
} colouring;

static uint64_t next_random(colouring *c)
{
    uint64_t x = c->random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint32_t random_below(colouring *c, uint32_t n)
{
    return (uint32_t)(((next_random(c) >> 32) * n) >> 32);
}

/* Gives the matched edges the next round and closes the gaps that they leave. */
static void take_matching(colouring *c, const half_edge *edges, uint32_t degree, half_edge *rest)
{
    for (uint32_t right = 0; right < c->n; right++) {
        const half_edge *edge = &edges[c->match[right]];
        if (edge->id != FY_NO_EDGE) {
            c->round_out[edge->id] = c->next_round;
        }
        c->step[c->match[right] / degree] = c->match[right];
    }
    c->next_round++;
    for (uint32_t left = 0; left < c->n; left++) {
        size_t first = (size_t)left * degree, gap = c->step[left];
        size_t before = gap - first;
        memmove(rest, edges + first, before * sizeof *rest);
        memmove(rest + before, edges + gap + 1, (degree - 1 - before) * sizeof *rest);
        rest += degree - 1;
    }
}

/*
 * Matches every left vertex in turn: a walk takes any edge to the right and the matched edge back
 * until it finds a free vertex. Remembering only the last edge out of a vertex cuts loops off.
 */
static void find_matching(colouring *c, const half_edge *edges, uint32_t degree)
{
    memset(c->match, 0xff, c->n * sizeof *c->match);
    for (uint32_t start = 0; start < c->n; start++) {
        uint32_t left = start, right;
        do {
            uint32_t edge = left * degree + random_below(c, degree);
            right = edges[edge].right;
            c->step[left] = edge;
            left = c->match[right] == FY_NO_EDGE ? left : c->match[right] / degree;
        } while (c->match[right] != FY_NO_EDGE);
        for (left = start;;) {
            uint32_t edge = c->step[left], old = c->match[edges[edge].right];
            c->match[edges[edge].right] = edge;
            if (old == FY_NO_EDGE) {
                break;
            }
            left = old / degree;
        }
    }
}

static void pair_at_right(colouring *c, const half_edge *edges, uint32_t n_edges)
{
    memset(c->open, 0xff, c->n * sizeof *c->open);
    for (uint32_t e = 0; e < n_edges; e++) {
        uint32_t *open = &c->open[edges[e].right];
        if (*open == FY_NO_EDGE) {
            *open = e;
        } else {
            c->mate[e] = *open;
            c->mate[*open] = e;
            *open = FY_NO_EDGE;
        }
    }
}

/* side 0: the even edge of the pair goes first; 1: the odd one; 2: not yet known. */
static void follow_cycles(colouring *c, uint32_t n_edges)
{
    memset(c->side, 2, n_edges / 2);
    for (uint32_t start = 0; start < n_edges; start += 2) {
        /* e goes to the first half, so its neighbour at the left and whom that meets go so on. */
        for (uint32_t e = start; c->side[e / 2] == 2; e = c->mate[e ^ 1]) {
            c->side[e / 2] = e & 1;
        }
    }
}

static void split(colouring *c, const half_edge *edges, uint32_t n_edges, half_edge *halves)
{
    half_edge *first = halves, *second = halves + n_edges / 2;
    pair_at_right(c, edges, n_edges);
    follow_cycles(c, n_edges);
    for (uint32_t pair = 0; pair < n_edges / 2; pair++) {
        first[pair] = edges[2 * pair + c->side[pair]];
        second[pair] = edges[2 * pair + (c->side[pair] ^ 1)];
    }
}

/* edges and spare are of equal size; both are used up. The depth is the logarithm of the degree. */
static void colour_regular(colouring *c, half_edge *edges, half_edge *spare, uint32_t degree)
{
    if (degree % 2 == 1) {
        if (degree == 1) {
            for (uint32_t e = 0; e < c->n; e++) {
                if (edges[e].id != FY_NO_EDGE) {
                    c->round_out[edges[e].id] = c->next_round;
                }
            }
            c->next_round++;
            return;
        }
        find_matching(c, edges, degree);
        take_matching(c, edges, degree, edges);
        degree--;
    }
    uint32_t n_edges = c->n * degree;
    split(c, edges, n_edges, spare);
    colour_regular(c, spare, edges, degree / 2);
    colour_regular(c, spare + n_edges / 2, edges + n_edges / 2, degree / 2);
}

/*
 * Merges ports until their degrees fill vertices of the wanted one; number_out says which vertex
 * each became. Two neighbours always hold more than one full vertex, so at most half is padding.
 */
static uint32_t merge_ports(uint32_t n_ranks, const uint32_t *count, uint32_t degree,
                            uint32_t *number_out)
{
    uint32_t number = 0;
    uint64_t filled = 0;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        if (filled + count[rank] > degree) {
            number++;
            filled = 0;
        }
        filled += count[rank];
        number_out[rank] = number;
    }
    return number + 1;
}

static void count_ports(size_t n_edges, const uint32_t *port, uint32_t *count)
{
    for (size_t e = 0; e < n_edges; e++) {
        count[port[e]]++;
    }
}

static uint32_t largest(uint32_t n, const uint32_t *count)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        most = count[i] > most ? count[i] : most;
    }
    return most;
}

/* The vertices that ports became, and how many edges each of them has: left ones first. */
typedef struct merged {
    uint32_t degree;
    uint32_t n;       /* vertices on either side */
    uint32_t *number; /* [2 n_ranks] of the vertex that a port is part of */
    uint32_t *used;   /* [2 n] */
} merged;

/* Lays the edges out by left vertex, and fills up with dummies to vertices that lack edges. */
static void lay_out(const fy_edges *graph, const merged *m, half_edge *edges)
{
    uint32_t *left_used = m->used, *right_used = m->used + m->n;
    const uint32_t *left_of = m->number, *right_of = m->number + graph->n_ranks;
    for (size_t e = 0; e < graph->n; e++) {
        uint32_t left = left_of[graph->from[e]], right = right_of[graph->to[e]];
        edges[(size_t)left * m->degree + left_used[left]++] =
            (half_edge){.right = right, .id = (uint32_t)e};
        right_used[right]++;
    }
    uint32_t right = 0;
    for (uint32_t left = 0; left < m->n; left++) {
        for (; left_used[left] < m->degree; left_used[left]++) {
            while (right_used[right] == m->degree) {
                right++;
            }
            edges[(size_t)left * m->degree + left_used[left]] =
                (half_edge){.right = right, .id = FY_NO_EDGE};
            right_used[right]++;
        }
    }
}

static ferry_status colour_merged(fy_edges *graph, merged *m, ferry_error *error)
{
    uint64_t n_all = (uint64_t)m->n * m->degree;
    ferry_status status = FERRY_OK;
    colouring c = {.n = m->n, .round_out = graph->round, .random = 1};
    if (n_all >= FY_NO_EDGE) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "%zu batches of a largest degree of %u need %llu edges to colour, but the "
                       "limit is 2^32 - 2: take larger slots",
                       graph->n, m->degree, (unsigned long long)n_all);
    }
    half_edge *edges = fy_alloc(n_all, sizeof *edges), *spare = fy_alloc(n_all, sizeof *spare);
    m->used = fy_alloc_zeroed(2 * (size_t)m->n, sizeof *m->used);
    c.mate = fy_alloc(n_all, sizeof *c.mate);
    c.side = fy_alloc(n_all / 2 + 1, sizeof *c.side);
    c.open = fy_alloc(3 * (size_t)m->n, sizeof *c.open);
    if (edges == NULL || spare == NULL || m->used == NULL || c.mate == NULL || c.side == NULL ||
        c.open == NULL) {
        status = fy_fail_no_memory(error, "the edges of a schedule");
        goto out;
    }
    c.match = c.open + m->n;
    c.step = c.match + m->n;
    lay_out(graph, m, edges);
    colour_regular(&c, edges, spare, m->degree);
    graph->n_rounds = m->degree;
out:
    fy_free(edges);
    fy_free(spare);
    fy_free(m->used);
    fy_free(c.mate);
    fy_free(c.side);
    fy_free(c.open);
    return status;
}

ferry_status fy_colour_bipartite(fy_edges *edges, ferry_error *error)
{
    uint32_t n_ranks = edges->n_ranks;
    if (edges->n == 0) {
        edges->n_rounds = 0;
        return FERRY_OK;
    }
    uint32_t *sends = fy_alloc_zeroed(2 * (size_t)n_ranks, sizeof *sends);
    merged m = {.number = fy_alloc(2 * (size_t)n_ranks, sizeof *m.number)};
    ferry_status status = FERRY_OK;
    if (sends == NULL || m.number == NULL) {
        status = fy_fail_no_memory(error, "the ports of a schedule");
        goto out;
    }
    count_ports(edges->n, edges->from, sends);
    count_ports(edges->n, edges->to, sends + n_ranks);
    m.degree = largest(2 * n_ranks, sends);
    uint32_t left = merge_ports(n_ranks, sends, m.degree, m.number);
    uint32_t right = merge_ports(n_ranks, sends + n_ranks, m.degree, m.number + n_ranks);
    m.n = left > right ? left : right;
    status = colour_merged(edges, &m, error);
out:
    fy_free(sends);
    fy_free(m.number);
    return status;
}

ferry_status fy_colour_batches(fy_edges *edges, uint32_t duplex, ferry_error *error)
{
    return duplex == FERRY_DUPLEX_HALF ? fy_colour_general(edges, error)
                                       : fy_colour_bipartite(edges, error);
}
