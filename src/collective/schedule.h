/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_COLLECTIVE_SCHEDULE_H
#define FY_COLLECTIVE_SCHEDULE_H

#include "collective/geometry.h"
#include "collective/topology.h"
#include "program/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What one rank does with one block of an operation in a mode: who sends what to whom, and when.
 * Data, made by pure functions and the same for whatever drives it: the host's loop today, kernels
 * of a GPU later.
 *
 * Edges. Bytes go from rank to rank along edges. An edge is one direction of exchange among one set
 * of ranks, with memory and a counter of uses of its own: its use number u goes through slot u mod
 * FY_MIX_N_SLOTS. Every edge is symmetric: a rank that writes to others along it hears from the
 * same ranks along it in the same use. That is why no rank ever asks whether a slot is free; the
 * proof stands in docs/collectives.md.
 */
typedef enum fy_mix_edge {
    /* Inside a node: parts spread out to those who reduce them, results joined again. */
    FY_MIX_EDGE_SPREAD_TP = 0, /* among the ranks of a local tensor-parallel group */
    FY_MIX_EDGE_SPREAD_ALL,    /* among all ranks of the node */
    FY_MIX_EDGE_JOIN_TP,
    FY_MIX_EDGE_JOIN_ALL,
    /* Between nodes, ranks of the same local rank only: there, and back again. */
    FY_MIX_EDGE_NODE_TP, /* among the nodes of a tensor-parallel group */
    FY_MIX_EDGE_NODE_ALL,
    FY_MIX_EDGE_BACK_TP,
    FY_MIX_EDGE_BACK_ALL,
    /* Rings: up is to the next rank of the group, down to the one before. */
    FY_MIX_EDGE_WORLD_UP,
    FY_MIX_EDGE_WORLD_DOWN,
    FY_MIX_EDGE_TP_UP,
    FY_MIX_EDGE_TP_DOWN,
    FY_MIX_EDGE_DP_UP,
    FY_MIX_EDGE_DP_DOWN,
    /* No ranks: memory of a rank's own, from stage to stage. */
    FY_MIX_EDGE_OWN,
    FY_MIX_N_EDGES
} fy_mix_edge;

enum { FY_MIX_N_SLOTS = 4 };

const char *fy_mix_edge_name(fy_mix_edge edge);
bool fy_mix_edge_is_ring(fy_mix_edge edge);
bool fy_mix_edge_is_between(fy_mix_edge edge); /* NODE_ and BACK_ */

/*
 * A piece of a block: part `index` of n, and of that part sub-part `sub` of n_sub, as
 * fy_mix_part_of cuts. All n = 1 is the whole block.
 */
typedef struct fy_mix_cut {
    uint32_t n, index;
    uint32_t n_sub, sub;
} fy_mix_cut;

fy_mix_span fy_mix_cut_span(const fy_mix_cut *cut, uint64_t n_elements, uint32_t line_elements);

/* Where elements are. A box holds messages of cells, each of one cut of a block. */
typedef enum fy_mix_place_kind {
    FY_MIX_PLACE_IN = 0,      /* chunk `cell` of the input */
    FY_MIX_PLACE_OUT,         /* chunk `cell` of the output */
    FY_MIX_PLACE_OUTBOX,      /* own memory: message, cell */
    FY_MIX_PLACE_INBOX,       /* own memory, written by `rank`: cell */
    FY_MIX_PLACE_PEER_OUTBOX, /* memory of `rank`, mapped: cell of its message 0 */
    FY_MIX_PLACE_PEER_INBOX,  /* memory of `rank`, mapped, for what this rank writes: cell */
    FY_MIX_PLACE_ADDED        /* the same cell of all outboxes of the edge, added up on the way */
} fy_mix_place_kind;

/* From where the offset within a cell counts: the cell holds the block, the part or the sub-part.
 */
typedef enum fy_mix_origin {
    FY_MIX_ORIGIN_BLOCK = 0,
    FY_MIX_ORIGIN_PART,
    FY_MIX_ORIGIN_SUB
} fy_mix_origin;

typedef struct fy_mix_place {
    uint8_t kind;   /* fy_mix_place_kind */
    uint8_t edge;   /* fy_mix_edge, of boxes */
    uint8_t origin; /* fy_mix_origin, of boxes */
    bool counts;    /* bytes that pass from rank to rank of a node */
    uint32_t rank;
    uint32_t message; /* of an outbox; of an inbox the number of its writer: fy_mix_edge_sender */
    uint32_t cell;
    uint32_t use; /* of boxes: which of the edge's uses in this step */
} fy_mix_place;

/* How the bytes of a link get there. */
typedef enum fy_mix_form {
    FY_MIX_FORM_MULTICAST = 0, /* readers look into the writer's outbox */
    FY_MIX_FORM_STORE,         /* the writer has stored into the reader's inbox */
    FY_MIX_FORM_PUT            /* the writer puts a message of its outbox to the reader's inbox */
} fy_mix_form;

typedef struct fy_mix_link {
    uint8_t edge;
    uint8_t form;     /* fy_mix_form */
    uint32_t rank;    /* to whom, or from whom */
    uint32_t message; /* that is put; of what is waited for, the number of the inbox's writer */
    uint32_t use;     /* which of the edge's uses in this step */
} fy_mix_link;

/* Sources to targets over a cut of the block; one source is a copy. */
typedef struct fy_mix_sum {
    bool partial_sources; /* fp32 partial sums of a deterministic handle; else elements */
    bool partial_targets;
    uint8_t n_targets; /* 1 or 2 */
    fy_mix_cut cut;
    uint32_t first, n; /* sources, in schedule->places */
    fy_mix_place targets[2];
} fy_mix_sum;

/* What an edge needs of memory in this schedule; the same on all ranks. */
typedef struct fy_mix_edge_use {
    uint32_t uses;       /* in a step; 0: the edge is not used */
    uint32_t n_messages; /* of the outbox */
    uint32_t n_senders;  /* to an inbox: an index for each is fy_mix_edge_sender */
    uint32_t n_cells;    /* of a message */
    uint8_t origin;      /* fy_mix_origin: what a cell holds */
    uint32_t n, n_sub;   /* of that cut */
    bool partial;        /* cells of fp32 partial sums */
    bool multicast;      /* there are readers of the outbox, and no inbox */
    bool added;          /* and they read it as FY_MIX_PLACE_ADDED only */
} fy_mix_edge_use;

/*
 * The program has one lane, whose blocks are called stages here, and is gone through once for each
 * step of a message. Its operands: of SUM the sums; of WAIT, until every link's rank has written
 * its use, of PUT, by which messages go through the transport, and of SIGNAL, which announces what
 * lies in mapped memory, the links. A pipelined one begins step k + 1 before step k has ended.
 */
typedef struct fy_mix_schedule {
    uint32_t op, mode;
    fy_program program;
    uint32_t n_sums, n_places, n_links;
    fy_mix_sum *sums;
    fy_mix_place *places;
    fy_mix_link *links;
    fy_mix_edge_use edges[FY_MIX_N_EDGES];
    uint8_t used[FY_MIX_N_EDGES]; /* the edges that it uses */
    uint32_t n_used;
    uint32_t n_puts; /* links in a step that the transport carries */
    size_t sums_room, places_room, links_room;
} fy_mix_schedule;

typedef struct fy_mix_schedule_options {
    bool deterministic;
    bool mapped; /* memory of the node's other ranks can be read and written in place */
    bool adds;   /* FY_MIX_PLACE_ADDED can be read; in an order of its own, not that of ranks */
} fy_mix_schedule_options;

/*
 * Schedule of this rank for an operation and a mode that the topology has. FERRY_ERR_NO_MEMORY is
 * the only failure.
 */
ferry_status fy_mix_schedule_build(const fy_topology *topology, uint32_t op, uint32_t mode,
                                   const fy_mix_schedule_options *options,
                                   fy_mix_schedule *schedule_out, ferry_error *error);
void fy_mix_schedule_cleanup(fy_mix_schedule *schedule); /* zeroed is allowed */

/* Bytes of a cell of an edge, a multiple of a line, for blocks of n elements. */
uint64_t fy_mix_cell_bytes(const fy_mix_edge_use *use, uint64_t n_elements, uint32_t element_bytes);

/* Elements of the piece that a cell holds, and its bytes of a type. */
uint64_t fy_mix_cell_elements(const fy_mix_edge_use *use, uint64_t n_elements,
                              uint32_t line_elements);

/*
 * The ranks of an edge: those who write to each other along it, in the order in which they are
 * summed. Of a ring, all of the ring.
 */
uint32_t fy_mix_edge_group_size(const fy_topology *topology, fy_mix_edge edge);
uint32_t fy_mix_edge_group_rank(const fy_topology *topology, fy_mix_edge edge, uint32_t index);
uint32_t fy_mix_edge_group_index(const fy_topology *topology, fy_mix_edge edge); /* of this rank */

/* Which part of an inbox, of any rank of the edge, is for what `rank` writes. */
uint32_t fy_mix_edge_sender(const fy_topology *topology, fy_mix_edge edge, uint32_t rank);

#endif
