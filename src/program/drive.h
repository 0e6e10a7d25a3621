/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_PROGRAM_DRIVE_H
#define FY_PROGRAM_DRIVE_H

#include "program/heap.h"
#include "program/program.h"
#include "program/queues.h"

/*
 * The host's loop: each lane goes as far as it gets. One whose next block lacks a counter hangs at
 * that counter, and is looked at again when it has risen far enough; those that can go stand in a
 * heap by their order. So a block costs the logarithm of the number of lanes, however many wait.
 */
typedef enum fy_progress { FY_PROGRESS_DONE, FY_PROGRESS_BLOCKED, FY_PROGRESS_FAILED } fy_progress;

/*
 * Of blocks that were taken at once the step has all operands. BLOCKED: the step is done again when
 * what it has begun is over, or else later. FAILED: nothing goes on, and who drives knows why.
 */
typedef fy_progress fy_verb(void *context, uint32_t lane, uint64_t turn,
                            const fy_program_step *step);

/* What is done with steps: a row for each way. */
typedef struct fy_verbs {
    /*
     * How many of the n blocks that come next in a lane, and whose conditions hold, begin now; all
     * is said of what lanes share and no counter counts. 0: not now, this lane is asked again
     * later. FY_NOBODY: neither does any other of its grade until the driver is called again. NULL:
     * all.
     */
    uint32_t (*take)(void *context, uint32_t lane, const fy_program_step *first, uint32_t n);
    fy_verb *run[FY_N_STEP_KINDS]; /* WAIT may be NULL: its conditions are counters */
    /* A queue has failed. */
    void (*fail)(void *context, uint32_t lane, ferry_status status, const ferry_error *why);
    /* What the lane had under way is over, and nothing of it will follow. NULL: nothing to do. */
    void (*drop)(void *context, uint32_t lane);
} fy_verbs;

/* Where a lane stands. */
typedef struct fy_cursor {
    uint64_t turn;
    uint32_t block;   /* of the lane */
    uint32_t n_taken; /* blocks; 0: none has begun */
    uint32_t n_ahead; /* blocks from here on that are known to begin as one */
    uint32_t step;    /* the next one of them */
    bool is_over;
    uint64_t wanted;         /* of the counter that it hangs at */
    uint32_t child, sibling; /* in the heap of those */
    uint32_t behind;         /* whom it stands in front of, of those that are set aside */
} fy_cursor;

/* State of a run, apart from the program. */
typedef struct fy_drive {
    const fy_program *program;
    const fy_verbs *verbs;
    void *context;
    fy_device_queues *queues; /* of moves and sums; none of them: all is done at the call */
    uint64_t *counters;
    uint32_t *waiting; /* of each counter, who wants the least of it */
    fy_cursor *cursors;
    fy_heap ready[FY_N_GRADES];
    struct {
        uint32_t first, last;
    } aside[FY_N_GRADES]; /* lanes that could not begin, or whose step is to be done again */
    fy_ticket *tickets;   /* of each lane, one for each queue */
    uint32_t *open;       /* lanes that have something under way */
    uint32_t n_open;
    uint64_t n_turns;
    bool failed;      /* a verb or a queue: nothing goes on */
    uint32_t n_left;  /* lanes that are not at their end */
    uint64_t n_looks; /* at lanes, whether they can go on: counted for tests */
} fy_drive;

/*
 * With room for a program's lanes and counters. Queues may be NULL; they outlive the drive. Of what
 * fails it can be closed.
 */
ferry_status fy_drive_open(fy_drive *drive, const fy_program *program, fy_device_queues *queues,
                           ferry_error *error);
void fy_drive_close(fy_drive *drive); /* zeroed is allowed */

/*
 * Everything from the beginning, of a program that there is room for: counters are 0, and each lane
 * goes through its blocks n times.
 */
void fy_drive_begin(fy_drive *drive, const fy_program *program, const fy_verbs *verbs,
                    void *context, uint64_t n_turns);

/* A counter has come to a value; one that it has passed is ignored. */
void fy_drive_raise(fy_drive *drive, uint32_t counter, uint64_t value);

/*
 * The first lane of a grade that can go takes its next block, or some of them, as far as it gets.
 * False if there is none.
 */
bool fy_drive_step(fy_drive *drive, uint32_t grade);

/* A lane that is FY_ALONE, as far as it gets. DONE: it is at its end. */
fy_progress fy_drive_go(fy_drive *drive, uint32_t lane);

/* The step that a lane, which is not at its end, has come to. */
const fy_program_step *fy_drive_at(const fy_drive *drive, uint32_t lane);

/* Lanes of a grade that can go, as far as counters say. */
static inline uint32_t fy_drive_n_ready(const fy_drive *drive, uint32_t grade)
{
    return drive->ready[grade].n;
}

/* The order of the first of these; the largest number if there is none. */
static inline uint64_t fy_drive_first_order(const fy_drive *drive, uint32_t grade)
{
    uint32_t first = fy_heap_first(&drive->ready[grade]);
    return first == FY_NOBODY ? UINT64_MAX : drive->ready[grade].keys[first];
}

/* Lanes whose tickets are reached go on. True if any did. */
bool fy_drive_reap(fy_drive *drive);

/* Of a run that goes no further: whether nothing is under way any more. */
bool fy_drive_is_still(fy_drive *drive);
/* Waits for that. */
void fy_drive_finish(fy_drive *drive);

#endif
