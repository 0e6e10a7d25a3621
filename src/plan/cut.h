/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PLAN_CUT_H
#define FY_PLAN_CUT_H

#include "layout/patch.h"
#include "model/memory.h"
#include "plan/core.h"

/*
 * Where a side is in boxes, a move is one box of memory on each end: what the planner wants to move
 * is cut by the boxes of both ranks, and parts that are one in both memories are joined.
 */
typedef struct fy_cut_piece {
    fy_box box;                     /* inside the atom, in the dimensions of the route */
    uint32_t times;                 /* boxes that have had it */
    const fy_memory_box *memory[2]; /* of the source and the destination; NULL: a mesh */
} fy_cut_piece;

/* The boxes of a rank that may have a part of a box of a tensor, by parameter and offset. */
typedef struct fy_cut_list {
    const fy_memory_box **boxes;
    size_t n, capacity;
    bool all_whole; /* each has all of it */
    /* What was asked: the same again, of another layer or of a rank that is alike, costs nothing.
     */
    const fy_memory *memory; /* NULL: nothing was */
    uint32_t tensor, kind;
    fy_box inside;
} fy_cut_list;

typedef struct fy_cutter {
    fy_cut_piece *pieces; /* the result */
    size_t n_pieces, piece_capacity;
    fy_cut_piece *open; /* scratch */
    size_t n_open, open_capacity;
    fy_cut_piece *next;
    size_t n_next, next_capacity;
    fy_cut_list lists[2]; /* of the source and the destination */
    uint32_t *found;
    size_t found_capacity;
} fy_cutter;

void fy_cutter_cleanup(fy_cutter *cutter);

/* Before it cuts for another plan. */
void fy_cutter_forget(fy_cutter *cutter);

/* Whether a side of the plan is in boxes. */
static inline bool fy_plan_has_boxes(const ferry_plan *plan)
{
    return plan->problem.memory[0] != NULL || plan->problem.memory[1] != NULL;
}

/* The pieces of an atom, or of a box inside it, that `from` sends to `to`. */
ferry_status fy_cutter_cut(fy_cutter *cutter, const ferry_plan *plan, uint32_t leg,
                           const fy_atom *atom, const fy_box *inside, uint32_t from, uint32_t to,
                           ferry_error *error);

/* Where a piece lies in the memories that are boxes: the rest of the move is filled in already. */
void fy_cut_place(const ferry_plan *plan, uint32_t leg, const fy_atom *atom,
                  const fy_cut_piece *piece, ferry_move *move);

/* Where a move lies on both ends, a mesh in row-major order: for whole bytes. */
void fy_cut_ends(const ferry_plan *plan, uint32_t leg, const ferry_move *move, fy_patch *patch_out);

/* What must agree for two moves to be one; data is the caller's. */
void fy_cut_patch(const ferry_plan *plan, uint32_t leg, const fy_atom *atom,
                  const fy_cut_piece *piece, const ferry_move *move, fy_patch *patch_out);

/*
 * Notes of which legs the moves must be made to be counted: where a rank has several boxes of a
 * tensor. Of all others, moves are as many as on a mesh.
 */
ferry_status fy_plan_note_cuts(ferry_plan *plan, ferry_error *error);

static inline bool fy_leg_is_cut(const ferry_plan *plan, uint32_t leg)
{
    return plan->cut_legs != NULL && plan->cut_legs[leg];
}

/* Notes whether moves of elements smaller than a byte must be looked at one by one. */
void fy_plan_note_bytes(ferry_plan *plan);
bool fy_patch_has_whole_bytes(const fy_patch *patch, uint32_t n_dims, uint64_t per_byte);
/* FERRY_ERR_INVALID_PLAN where a move of elements smaller than a byte begins or ends inside one. */
ferry_status fy_plan_check_bytes(ferry_plan *plan, ferry_error *error);

#endif
