/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROGRAM_PROGRAM_H
#define FY_PROGRAM_PROGRAM_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a rank does so that bytes move, as data: made once, constant from then on, and without a
 * pointer to anybody's memory. What changes while it runs is in drive.h.
 *
 * There are lanes, and in a lane blocks in order. A block begins when its conditions hold, and its
 * steps are done one after the other. A step names a range of operands, [first, first + n), in a
 * table of its kind: conditions are here, all other tables belong to who compiles the program and
 * are known to his verbs.
 */
typedef enum fy_step_kind {
    FY_STEP_WAIT = 0, /* for conditions: the first step of a block, if it has any */
    FY_STEP_MOVE,     /* areas to areas */
    FY_STEP_SUM,      /* areas, added up, to an area */
    FY_STEP_PUT,      /* to another rank */
    FY_STEP_SIGNAL,   /* tells another rank, or another lane, what is done */
    FY_N_STEP_KINDS
} fy_step_kind;

/*
 * A credit: it holds once the counter is at least `value`, and where a lane goes through its blocks
 * several times, `value + per_turn * turn`. Counters only grow. All that a step may have to wait
 * for is such a row: that a peer has entered, that slots are free, a turn that was granted, bytes
 * that have arrived, or what another lane has done.
 */
typedef struct fy_condition {
    uint32_t counter;
    uint32_t per_turn;
    uint64_t value;
} fy_condition;

typedef struct fy_program_step {
    uint32_t kind; /* fy_step_kind */
    uint32_t first, n;
} fy_program_step;

typedef struct fy_program_block {
    uint64_t order; /* of lanes that can go, the one with the least goes first */
    uint32_t first_step, n_steps;
} fy_program_block;

enum { FY_N_GRADES = 4, FY_ALONE = FY_N_GRADES };

/*
 * grade: the driver is asked for lanes of one grade at a time; one that is FY_ALONE it asks for by
 * its number, and it has neither counters nor queues. gathers: blocks that lie behind one
 * another, and can all begin, may be taken at once: each verb is then called once for all of them.
 * is_pipelined: in turn t block b is done for the (t - b)th time; else the blocks are gone through
 * one after the other, as often as there are turns.
 */
typedef struct fy_program_lane {
    uint32_t first_block, n_blocks;
    uint8_t grade;
    bool gathers;
    bool is_pipelined;
} fy_program_lane;

typedef struct fy_program {
    fy_program_lane *lanes;
    fy_program_block *blocks;
    fy_program_step *steps;
    fy_condition *conditions;
    size_t n_lanes, n_blocks, n_steps, n_conditions;
    size_t lane_capacity, block_capacity, step_capacity, condition_capacity;
    uint32_t n_counters;
} fy_program;

/*
 * Compiling: a lane, then its blocks, then their steps. All return FERRY_ERR_NO_MEMORY if there is
 * none. A condition belongs to the last block, whose other steps come behind it.
 */
ferry_status fy_program_lane_add(fy_program *program, uint8_t grade, bool gathers,
                                 bool is_pipelined, ferry_error *error);
ferry_status fy_program_block_add(fy_program *program, uint64_t order, ferry_error *error);
ferry_status fy_program_wait_add(fy_program *program, uint32_t counter, uint64_t value,
                                 uint32_t per_turn, ferry_error *error);
ferry_status fy_program_step_add(fy_program *program, fy_step_kind kind, uint32_t first, uint32_t n,
                                 ferry_error *error);
void fy_program_cleanup(fy_program *program); /* zeroed is allowed */

#endif
