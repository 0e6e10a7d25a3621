/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Half duplex: edge colouring of a general multigraph. Where ranks fall into two groups with all
 * edges between them it is bipartite, and Koenig's bound holds. Otherwise edges are oriented so
 * that every rank has half of its edges going out; colouring that bipartite graph with half the
 * degree leaves paths and cycles in each colour, which two rounds take, but for one edge of each
 * odd cycle. Those edges are put in one by one, with Shannon's exchanges, which never need more
 * than 3/2 of the degree.
 */
#include "schedule/colour.h"

#include "base/alloc.h"
#include "schedule/palette.h"

#include <string.h>

typedef struct general {
    fy_edges *edges;
    uint32_t n_ranks;
    uint32_t n_edges;
    uint32_t degree;
    uint32_t *begin;  /* [n_ranks + 1] edges at a rank */
    uint32_t *around; /* [2 n_edges] */
    uint32_t *work;   /* [n_ranks] */
    fy_edges turned;  /* the graph with edges turned, and the same rounds */
    uint8_t *side;    /* [n_ranks] 0 or 1: the groups of a bipartite graph; 2: not seen */
    uint32_t *stack;
} general;

static ferry_status general_init(general *g, fy_edges *edges, ferry_error *error)
{
    uint32_t n_ranks = edges->n_ranks, n_edges = (uint32_t)edges->n;
    const uint32_t *from = edges->from, *to = edges->to;
    *g = (general){.edges = edges, .n_ranks = n_ranks, .n_edges = n_edges, .turned = *edges};
    g->begin = fy_alloc_zeroed((size_t)n_ranks + 2, sizeof *g->begin);
    g->around = fy_alloc(2 * edges->n, sizeof *g->around);
    g->work = fy_alloc(n_ranks, sizeof *g->work);
    g->turned.from = fy_alloc(n_edges, sizeof *from);
    g->turned.to = fy_alloc(n_edges, sizeof *to);
    g->side = fy_alloc(n_ranks, sizeof *g->side);
    g->stack = fy_alloc(n_ranks, sizeof *g->stack);
    if (g->begin == NULL || g->around == NULL || g->work == NULL || g->turned.from == NULL ||
        g->turned.to == NULL || g->side == NULL || g->stack == NULL) {
        return fy_fail_no_memory(error, "the edges of a schedule");
    }
    for (uint32_t e = 0; e < g->n_edges; e++) {
        g->begin[from[e] + 2]++;
        g->begin[to[e] + 2]++;
    }
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        uint32_t count = g->begin[rank + 2];
        g->degree = count > g->degree ? count : g->degree;
        g->begin[rank + 2] += g->begin[rank + 1];
    }
    for (uint32_t e = 0; e < g->n_edges; e++) {
        g->around[g->begin[from[e] + 1]++] = e;
        g->around[g->begin[to[e] + 1]++] = e;
    }
    return FERRY_OK;
}

static void general_cleanup(general *g)
{
    fy_free(g->begin);
    fy_free(g->around);
    fy_free(g->work);
    fy_free(g->turned.from);
    fy_free(g->turned.to);
    fy_free(g->side);
    fy_free(g->stack);
}

static uint32_t across(const general *g, uint32_t edge, uint32_t rank)
{
    return g->edges->from[edge] == rank ? g->edges->to[edge] : g->edges->from[edge];
}

/* Two groups with no edge inside either, if there are such. */
static bool find_sides(general *g)
{
    memset(g->side, 2, g->n_ranks);
    for (uint32_t first = 0; first < g->n_ranks; first++) {
        if (g->side[first] != 2) {
            continue;
        }
        uint32_t n = 0;
        g->side[first] = 0;
        g->stack[n++] = first;
        while (n > 0) {
            uint32_t rank = g->stack[--n];
            for (uint32_t i = g->begin[rank]; i < g->begin[rank + 1]; i++) {
                uint32_t other = across(g, g->around[i], rank);
                if (g->side[other] == g->side[rank]) {
                    return false;
                }
                if (g->side[other] == 2) {
                    g->side[other] = g->side[rank] ^ 1;
                    g->stack[n++] = other;
                }
            }
        }
    }
    return true;
}

static void turn_by_side(general *g)
{
    for (uint32_t e = 0; e < g->n_edges; e++) {
        bool forward = g->side[g->edges->from[e]] == 0;
        g->turned.from[e] = forward ? g->edges->from[e] : g->edges->to[e];
        g->turned.to[e] = forward ? g->edges->to[e] : g->edges->from[e];
    }
}

/*
 * Trails that begin where an odd number of edges is left, then closed ones: every rank has equally
 * many edges in and out, give or take one.
 */
static void turn_by_trails(general *g)
{
    memcpy(g->work, g->begin, g->n_ranks * sizeof *g->work);
    memset(g->turned.from, 0xff, g->n_edges * sizeof *g->turned.from);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t first = 0; first < g->n_ranks; first++) {
            bool odd = (g->begin[first + 1] - g->begin[first]) % 2 == 1;
            if (pass == 0 && !odd) {
                continue;
            }
            for (uint32_t rank = first;;) {
                while (g->work[rank] < g->begin[rank + 1] &&
                       g->turned.from[g->around[g->work[rank]]] != UINT32_MAX) {
                    g->work[rank]++;
                }
                if (g->work[rank] == g->begin[rank + 1]) {
                    break;
                }
                uint32_t edge = g->around[g->work[rank]++];
                g->turned.from[edge] = rank;
                g->turned.to[edge] = across(g, edge, rank);
                rank = g->turned.to[edge];
            }
        }
    }
}

/* Edges of one class: at every rank at most one goes out and one comes in. */
typedef struct classes {
    uint32_t n;
    uint32_t *begin; /* [n + 1] */
    uint32_t *edges;
    uint32_t *out; /* [n_ranks] the edge of the class that leaves a rank */
    uint32_t *in;
} classes;

static ferry_status classes_init(classes *c, const general *g, uint32_t n, const uint32_t *number,
                                 ferry_error *error)
{
    *c = (classes){.n = n};
    c->begin = fy_alloc_zeroed((size_t)n + 2, sizeof *c->begin);
    c->edges = fy_alloc(g->n_edges, sizeof *c->edges);
    c->out = fy_alloc(g->n_ranks, sizeof *c->out);
    c->in = fy_alloc(g->n_ranks, sizeof *c->in);
    if (c->begin == NULL || c->edges == NULL || c->out == NULL || c->in == NULL) {
        return fy_fail_no_memory(error, "the rounds of a schedule");
    }
    for (uint32_t e = 0; e < g->n_edges; e++) {
        c->begin[number[e] + 2]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        c->begin[i + 2] += c->begin[i + 1];
    }
    for (uint32_t e = 0; e < g->n_edges; e++) {
        c->edges[c->begin[number[e] + 1]++] = e;
    }
    memset(c->out, 0xff, g->n_ranks * sizeof *c->out);
    memset(c->in, 0xff, g->n_ranks * sizeof *c->in);
    return FERRY_OK;
}

static void classes_cleanup(classes *c)
{
    fy_free(c->begin);
    fy_free(c->edges);
    fy_free(c->out);
    fy_free(c->in);
}

/* Colours the path or cycle from an edge onwards by turns; the last edge of an odd cycle is left.
 */
static void colour_trail(const general *g, classes *c, uint32_t first, uint32_t base,
                         uint32_t *round)
{
    uint32_t turn = 0, edge = first, last = first;
    do {
        round[edge] = base + turn;
        turn = 1 - turn;
        c->in[g->turned.to[edge]] = FY_NO_EDGE;
        c->out[g->turned.from[edge]] = FY_NO_EDGE;
        last = edge;
        edge = c->out[g->turned.to[edge]];
    } while (edge != FY_NO_EDGE);
    bool closed = g->turned.to[last] == g->turned.from[first] && last != first;
    if (closed && round[last] == round[first]) {
        round[last] = FY_NO_COLOUR;
    }
}

static void colour_class(const general *g, classes *c, uint32_t number, uint32_t *round)
{
    const uint32_t *edges = c->edges + c->begin[number];
    uint32_t n = c->begin[number + 1] - c->begin[number];
    for (uint32_t i = 0; i < n; i++) {
        c->out[g->turned.from[edges[i]]] = edges[i];
        c->in[g->turned.to[edges[i]]] = edges[i];
    }
    for (int pass = 0; pass < 2; pass++) { /* paths from their begins, then what is left: cycles */
        for (uint32_t i = 0; i < n; i++) {
            bool waits = c->out[g->turned.from[edges[i]]] == edges[i];
            if (waits && (pass == 1 || c->in[g->turned.from[edges[i]]] == FY_NO_EDGE)) {
                colour_trail(g, c, edges[i], 2 * number, round);
            }
        }
    }
}

/*
 * Shannon: u and v have no common free colour, a is free at u, and edge vw has colour a. Of the
 * free colours of u, v and w two sets meet once there are 3/2 degree colours; then some exchange
 * frees a colour for uv. *done_out is false if they do not meet.
 */
static ferry_status exchange(fy_palette *p, uint32_t edge, uint32_t u, uint32_t v, uint32_t a,
                             bool *done_out, ferry_error *error)
{
    uint32_t f = fy_palette_find(p, v, a), end;
    uint32_t w =
        fy_palette_port(p, f, 0) == v ? fy_palette_port(p, f, 1) : fy_palette_port(p, f, 0);
    uint32_t c = fy_palette_free_both(p, v, w), b = fy_palette_free(p, v);
    ferry_status status = FERRY_OK;
    *done_out = false;
    if (c == FY_NO_COLOUR) {
        c = fy_palette_free_both(p, u, w);
        if (c == FY_NO_COLOUR || b == FY_NO_COLOUR) {
            return FERRY_OK;
        }
        /* c is free at u and w, b at v: of the three only two can end the same path. */
        status = fy_palette_swap(p, v, b, c, u, &end, error);
        if (status == FERRY_OK && end != u) {
            *done_out = true;
            return fy_palette_give(p, edge, c, error);
        }
        FY_THEN(status, fy_palette_swap(p, w, b, c, FY_NO_EDGE, &end, error));
        c = b;
    }
    if (status == FERRY_OK) {
        fy_palette_take(p, f);
        status = fy_palette_give(p, f, c, error);
    }
    if (status == FERRY_OK) {
        *done_out = true;
        status = fy_palette_give(p, edge, a, error);
    }
    return status;
}

static ferry_status insert(fy_palette *p, uint32_t edge, ferry_error *error)
{
    uint32_t u = fy_palette_port(p, edge, 0), v = fy_palette_port(p, edge, 1), end;
    ferry_status status = FERRY_OK;
    for (;; p->n_colours++) {
        bool done = false;
        uint32_t both = fy_palette_free_both(p, u, v);
        if (both != FY_NO_COLOUR) {
            return fy_palette_give(p, edge, both, error);
        }
        uint32_t a = fy_palette_free(p, u), b = fy_palette_free(p, v);
        if (a == FY_NO_COLOUR || b == FY_NO_COLOUR) {
            continue;
        }
        status = fy_palette_swap(p, v, a, b, u, &end, error);
        if (status == FERRY_OK && end != u) {
            return fy_palette_give(p, edge, a, error);
        }
        FY_THEN(status, exchange(p, edge, u, v, a, &done, error));
        if (status == FERRY_OK && !done) {
            status = exchange(p, edge, v, u, b, &done, error);
        }
        if (status != FERRY_OK || done) {
            return status;
        }
    }
}

static ferry_status insert_left_over(const general *g, uint32_t n_rounds, ferry_error *error)
{
    fy_palette palette;
    FY_TRY(fy_palette_init(&palette, g->n_ranks, 0, g->edges, error));
    ferry_status status = FERRY_OK;
    palette.n_colours = n_rounds;
    for (uint32_t e = 0; e < g->n_edges && status == FERRY_OK; e++) {
        if (g->edges->round[e] == FY_NO_COLOUR) {
            status = insert(&palette, e, error);
        }
    }
    g->edges->n_rounds = palette.n_colours;
    fy_palette_cleanup(&palette);
    return status;
}

/*
 * An odd degree leaves one round more than the degree: the edges of the smallest round are put in
 * again where the others have room.
 */
static void empty_last_round(const general *g, uint32_t n_rounds)
{
    for (uint32_t e = 0; n_rounds > g->degree && e < g->n_edges; e++) {
        if (g->edges->round[e] == n_rounds - 1) {
            g->edges->round[e] = FY_NO_COLOUR;
        }
    }
}

static ferry_status colour_by_trails(general *g, ferry_error *error)
{
    classes c = {0};
    turn_by_trails(g);
    ferry_status status = fy_colour_bipartite(&g->turned, error);
    uint32_t n = g->turned.n_rounds, n_rounds = 2 * n;
    FY_THEN(status, classes_init(&c, g, n, g->edges->round, error));
    if (status == FERRY_OK) {
        for (uint32_t i = 0; i < n; i++) {
            colour_class(g, &c, i, g->edges->round);
        }
        empty_last_round(g, n_rounds);
        status = insert_left_over(g, n_rounds < g->degree ? n_rounds : g->degree, error);
    }
    classes_cleanup(&c);
    return status;
}

ferry_status fy_colour_general(fy_edges *edges, ferry_error *error)
{
    general g;
    if (edges->n > INT32_MAX / 2) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "a half-duplex schedule of %zu batches: the limit is 2^30 - 1; take larger "
                       "slots",
                       edges->n);
    }
    ferry_status status = general_init(&g, edges, error);
    if (status == FERRY_OK && edges->n == 0) {
        edges->n_rounds = 0;
    } else if (status == FERRY_OK && find_sides(&g)) {
        turn_by_side(&g);
        status = fy_colour_bipartite(&g.turned, error);
        edges->n_rounds = g.turned.n_rounds;
    } else if (status == FERRY_OK) {
        status = colour_by_trails(&g, error);
    }
    general_cleanup(&g);
    return status;
}
