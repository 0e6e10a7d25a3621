/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_SCHEDULE_PALETTE_H
#define FY_SCHEDULE_PALETTE_H

#include "schedule/edges.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which edge has which colour at which port, for colourings that are mended edge by edge. Memory is
 * linear in the coloured edges plus, for each port, a bit per colour up to its largest one.
 */
typedef struct fy_palette {
    uint32_t n_ports;
    uint32_t n_colours;          /* 0 .. n_colours - 1 may be used */
    fy_edges *graph;             /* the caller's; its rounds are the colours */
    uint32_t shift;              /* added to the second port: bipartite graphs have two sides */
    struct fy_palette_row *rows; /* [n_ports] the colours in use */
    uint64_t *keys;              /* hash table: port and colour, + 1 */
    uint32_t *edges;             /* thereof the edge */
    size_t capacity;
} fy_palette;

/* Enters the edges that have a round, which must be proper; there may be more of them later. */
ferry_status fy_palette_init(fy_palette *palette, uint32_t n_ports, uint32_t shift, fy_edges *edges,
                             ferry_error *error);
void fy_palette_cleanup(fy_palette *palette);

uint32_t fy_palette_port(const fy_palette *palette, uint32_t edge, int side);
/* The edge of that colour at a port, or FY_NO_EDGE. */
uint32_t fy_palette_find(const fy_palette *palette, uint32_t port, uint32_t colour);
/* Gives an edge a colour that both ports have free, or takes it away. */
ferry_status fy_palette_give(fy_palette *palette, uint32_t edge, uint32_t colour,
                             ferry_error *error);
void fy_palette_take(fy_palette *palette, uint32_t edge);

/* The largest colour below n_colours that a port, or both, have free; or FY_NO_COLOUR. */
uint32_t fy_palette_free(const fy_palette *palette, uint32_t port);
uint32_t fy_palette_free_both(const fy_palette *palette, uint32_t port, uint32_t other);

/*
 * Exchanges colours a and b along the path that begins at port, where one of them is free. Returns
 * the port at which the path ends; with only_if_not it changes nothing if that is this port.
 */
ferry_status fy_palette_swap(fy_palette *palette, uint32_t port, uint32_t a, uint32_t b,
                             uint32_t only_if_not, uint32_t *end_out, ferry_error *error);

/*
 * Colours an edge of a bipartite graph, which takes no more colours than the largest degree:
 * n_colours must be at least that.
 */
ferry_status fy_palette_insert(fy_palette *palette, uint32_t edge, ferry_error *error);

#endif
