/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_RECEIVER_H
#define FY_PLAN_RECEIVER_H

#include "plan/core.h"
#include "plan/cut.h"

/*
 * What one rank receives. The geometry of each of its routes is worked out once, at the first
 * tensor that needs it, and serves all tensors of the route.
 */
typedef struct fy_incoming fy_incoming;

/* Of a move to or from boxes. */
typedef struct fy_move_note {
    uint32_t parameter; /* the receiver's */
    uint32_t leg;
    bool is_cut;  /* it may be one with others */
    bool is_gone; /* it is, with one before */
} fy_move_note;

typedef struct fy_receiver {
    const ferry_plan *plan;
    uint32_t rank;
    size_t n_inlets;
    fy_incoming *incoming; /* one per route, by ascending route */
    size_t incoming_capacity;
    uint32_t *legs; /* ascending */
    size_t n_legs, leg_capacity;
    bool legs_known;
    uint32_t *routes; /* of the rank, ascending; scratch of a turn */
    size_t n_routes, route_capacity;
    ferry_move *moves; /* of the tensor at work */
    size_t n_moves, move_capacity;
    fy_atoms parcels; /* boxes of the leg at work that may join, with senders as cells */
    uint64_t n_visited;
    /* Of plans with boxes; those that the receiver has it in decide which legs are made at once. */
    uint32_t *bundles; /* [legs] numbers */
    size_t bundle_capacity;
    fy_cutter cutter;
    fy_move_note *notes; /* [moves] */
    size_t note_capacity;
    bool checks_bytes; /* of elements that are smaller */
    fy_patch *patches;
    size_t n_patches, patch_capacity;
} fy_receiver;

/* Turns to a rank, keeping memory and whatever the last rank had in common with it. */
ferry_status fy_receiver_turn(fy_receiver *receiver, const ferry_plan *plan, uint32_t rank,
                              ferry_error *error);
void fy_receiver_cleanup(fy_receiver *receiver);

/* The legs of the rank, in order of tensors. */
ferry_status fy_receiver_list_legs(fy_receiver *receiver, ferry_error *error);

/*
 * Where the moves that are numbered together end: those of one tensor, or with boxes, those of the
 * parameters that share tensors.
 */
size_t fy_receiver_next(const fy_receiver *receiver, size_t first);

/* All moves from position first of the legs to *next_out, which is fy_receiver_next. */
ferry_status fy_receiver_make_moves(fy_receiver *receiver, size_t first, uint64_t first_task,
                                    size_t *next_out, ferry_error *error);

/* The number of moves of one leg; boxes are made only where senders decide how they join. */
ferry_status fy_receiver_count(fy_receiver *receiver, uint32_t leg, uint64_t *count_out,
                               ferry_error *error);

/* The number of moves of the legs first .. next - 1 that fy_receiver_next has set apart. */
ferry_status fy_receiver_count_range(fy_receiver *receiver, size_t first, size_t next,
                                     uint64_t *count_out, ferry_error *error);
/* The same of those only that boxes cut. */
ferry_status fy_receiver_count_cut(fy_receiver *receiver, size_t first, size_t next,
                                   uint64_t *count_out, ferry_error *error);

/* Fills the parts of a move that do not depend on boxes. */
void fy_move_describe(const ferry_plan *plan, uint32_t leg, uint32_t from, uint32_t to,
                      ferry_move *move);
/* Fills in the box of an atom, or of a part of it. */
void fy_move_place(const ferry_plan *plan, const fy_route *route, const fy_atom *atom,
                   const fy_box *inside, ferry_move *move);

/* The last step of a move: in units that whoever gets it counts in. */
void fy_move_finish(const ferry_plan *plan, uint32_t leg, ferry_move *move);

#endif
