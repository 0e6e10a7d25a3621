/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "program/drive.h"

#include "base/alloc.h"

/* Blocks that are offered at once; and lanes set aside that are looked at before a step. */
enum { MOST_TAKEN = 256, MOST_RETRIED = 4 };

ferry_status fy_drive_open(fy_drive *drive, const fy_program *program, fy_device_queues *queues,
                           ferry_error *error)
{
    size_t n = program->n_lanes, n_queues = queues == NULL ? 0 : queues->n;
    *drive = (fy_drive){
        .program = program,
        .queues = queues,
        .counters = fy_alloc_zeroed((size_t)program->n_counters + 1, sizeof *drive->counters),
        .waiting = fy_alloc((size_t)program->n_counters + 1, sizeof *drive->waiting),
        .cursors = fy_alloc(n + 1, sizeof *drive->cursors),
        .tickets = fy_alloc_zeroed(n * n_queues + 1, sizeof *drive->tickets),
        .open = fy_alloc(n + 1, sizeof *drive->open)};
    ferry_status status = FERRY_OK;
    for (uint32_t g = 0; status == FERRY_OK && g < FY_N_GRADES; g++) {
        status = fy_heap_open(&drive->ready[g], (uint32_t)n, error);
    }
    bool has_all = drive->counters != NULL && drive->waiting != NULL && drive->cursors != NULL &&
                   drive->tickets != NULL && drive->open != NULL;
    return status != FERRY_OK || has_all ? status : fy_fail_no_memory(error, "a program's run");
}

void fy_drive_close(fy_drive *drive)
{
    fy_free(drive->counters);
    fy_free(drive->waiting);
    fy_free(drive->cursors);
    fy_free(drive->tickets);
    fy_free(drive->open);
    for (uint32_t g = 0; g < FY_N_GRADES; g++) {
        fy_heap_close(&drive->ready[g]);
    }
    *drive = (fy_drive){.program = NULL};
}

/*
 * Who waits for a counter: a pairing heap by the value that is wanted, through the cursors. In
 * front is who wants the least.
 */

static uint32_t meld(fy_drive *drive, uint32_t a, uint32_t b)
{
    if (a == FY_NOBODY || b == FY_NOBODY) {
        return a == FY_NOBODY ? b : a;
    }
    uint32_t first = drive->cursors[b].wanted < drive->cursors[a].wanted ? b : a;
    uint32_t other = first == a ? b : a;
    drive->cursors[other].sibling = drive->cursors[first].child;
    drive->cursors[first].child = other;
    return first;
}

static void hang(fy_drive *drive, uint32_t lane, uint32_t counter, uint64_t wanted)
{
    fy_cursor *cursor = &drive->cursors[lane];
    cursor->wanted = wanted;
    cursor->child = cursor->sibling = FY_NOBODY;
    drive->waiting[counter] = meld(drive, drive->waiting[counter], lane);
}

/* Takes the first away: the others are melded in pairs, and these from the last to the first. */
static uint32_t unhang_first(fy_drive *drive, uint32_t counter)
{
    uint32_t first = drive->waiting[counter];
    uint32_t left = drive->cursors[first].child, pairs = FY_NOBODY, all = FY_NOBODY;
    while (left != FY_NOBODY) {
        uint32_t a = left, b = drive->cursors[a].sibling;
        left = b == FY_NOBODY ? FY_NOBODY : drive->cursors[b].sibling;
        uint32_t pair = meld(drive, a, b);
        drive->cursors[pair].sibling = pairs;
        pairs = pair;
    }
    while (pairs != FY_NOBODY) {
        uint32_t next = drive->cursors[pairs].sibling;
        all = meld(drive, all, pairs);
        pairs = next;
    }
    drive->waiting[counter] = all;
    return first;
}

/*
 * Where a lane stands
 */

static inline const fy_program_block *block_at(const fy_drive *drive, uint32_t lane, uint32_t ahead)
{
    const fy_program_lane *its = &drive->program->lanes[lane];
    return &drive->program->blocks[its->first_block + drive->cursors[lane].block + ahead];
}

const fy_program_step *fy_drive_at(const fy_drive *drive, uint32_t lane)
{
    return &drive->program->steps[block_at(drive, lane, 0)->first_step + drive->cursors[lane].step];
}

/* Which time it is that the lane does its block. */
static inline uint64_t turn_of(const fy_drive *drive, uint32_t lane)
{
    const fy_cursor *cursor = &drive->cursors[lane];
    return drive->program->lanes[lane].is_pipelined ? cursor->turn - cursor->block : cursor->turn;
}

/* The first block of a turn: a pipeline that drains has no more for those before it. */
static inline uint32_t first_of(const fy_program_lane *lane, uint64_t turn, uint64_t n_turns)
{
    return lane->is_pipelined && turn >= n_turns ? (uint32_t)(turn - n_turns) + 1 : 0;
}

/* Behind the last block of its turn a lane is at the first of the next: false at its end. */
static inline bool find_block(const fy_program_lane *lane, fy_cursor *cursor, uint64_t n_turns)
{
    if (cursor->block == lane->n_blocks || (lane->is_pipelined && cursor->block > cursor->turn)) {
        cursor->turn++;
        cursor->block = first_of(lane, cursor->turn, n_turns);
    }
    return lane->is_pipelined ? n_turns > 0 && cursor->block < lane->n_blocks
                              : cursor->turn < n_turns && lane->n_blocks > 0;
}

/* The condition of a block that does not hold yet, or NULL. */
static const fy_condition *find_lack(const fy_drive *drive, const fy_program_block *block,
                                     uint64_t turn, uint64_t *wanted_out)
{
    const fy_program_step *step = &drive->program->steps[block->first_step];
    if (block->n_steps == 0 || step->kind != FY_STEP_WAIT || drive->verbs->run[FY_STEP_WAIT]) {
        return NULL;
    }
    for (uint32_t i = 0; i < step->n; i++) {
        const fy_condition *its = &drive->program->conditions[step->first + i];
        *wanted_out = its->value + turn * its->per_turn;
        if (drive->counters[its->counter] < *wanted_out) {
            return its;
        }
    }
    return NULL;
}

/* To the block that a lane does next: false at its end. */
static inline bool go_to_block(fy_drive *drive, const fy_program_lane *its, fy_cursor *cursor)
{
    if (!find_block(its, cursor, drive->n_turns)) {
        cursor->is_over = true;
        drive->n_left--;
    }
    return !cursor->is_over;
}

static void stand_in_line(fy_drive *drive, uint32_t lane)
{
    fy_heap_set(&drive->ready[drive->program->lanes[lane].grade], lane,
                block_at(drive, lane, 0)->order);
}

/* A lane that stands before a block can begin it, or hangs at what it lacks, or is at its end. */
static void consider(fy_drive *drive, uint32_t lane)
{
    const fy_program_lane *its = &drive->program->lanes[lane];
    fy_cursor *cursor = &drive->cursors[lane];
    uint64_t wanted;
    drive->n_looks++;
    if (!go_to_block(drive, its, cursor) || its->grade == FY_ALONE) {
        return;
    }
    const fy_condition *lack =
        find_lack(drive, block_at(drive, lane, 0), turn_of(drive, lane), &wanted);
    if (lack != NULL) {
        hang(drive, lane, lack->counter, wanted);
    } else {
        stand_in_line(drive, lane);
    }
}

void fy_drive_begin(fy_drive *drive, const fy_program *program, const fy_verbs *verbs,
                    void *context, uint64_t n_turns)
{
    drive->program = program;
    drive->verbs = verbs;
    drive->context = context;
    drive->n_turns = n_turns;
    drive->n_open = 0;
    drive->failed = false;
    drive->n_left = (uint32_t)program->n_lanes;
    for (uint32_t i = 0; i < program->n_counters; i++) {
        drive->counters[i] = 0;
        drive->waiting[i] = FY_NOBODY;
    }
    for (uint32_t g = 0; g < FY_N_GRADES; g++) {
        fy_heap_empty(&drive->ready[g]);
        drive->aside[g].first = drive->aside[g].last = FY_NOBODY;
    }
    for (uint32_t i = 0; i < program->n_lanes; i++) {
        drive->cursors[i] = (fy_cursor){.turn = 0};
        consider(drive, i);
    }
}

void fy_drive_raise(fy_drive *drive, uint32_t counter, uint64_t value)
{
    if (counter >= drive->program->n_counters || drive->counters[counter] >= value) {
        return;
    }
    drive->counters[counter] = value;
    uint32_t first;
    while ((first = drive->waiting[counter]) != FY_NOBODY &&
           drive->cursors[first].wanted <= value) {
        consider(drive, unhang_first(drive, counter));
    }
}

/*
 * Lanes that are asked again
 */

static void set_aside(fy_drive *drive, uint32_t lane)
{
    uint32_t grade = drive->program->lanes[lane].grade;
    drive->cursors[lane].behind = FY_NOBODY;
    if (drive->aside[grade].first == FY_NOBODY) {
        drive->aside[grade].first = lane;
    } else {
        drive->cursors[drive->aside[grade].last].behind = lane;
    }
    drive->aside[grade].last = lane;
}

static void retry(fy_drive *drive, uint32_t grade)
{
    for (int i = 0; i < MOST_RETRIED && drive->aside[grade].first != FY_NOBODY; i++) {
        uint32_t lane = drive->aside[grade].first;
        drive->aside[grade].first = drive->cursors[lane].behind;
        drive->n_looks++;
        stand_in_line(drive, lane);
    }
}

/*
 * Steps
 */

/* The steps of a block behind its waiting. */
static uint32_t n_waits(const fy_drive *drive, const fy_program_block *block)
{
    return block->n_steps > 0 && drive->program->steps[block->first_step].kind == FY_STEP_WAIT;
}

/* Whether b does with the operands behind a's what a does with its own. */
static bool goes_on(const fy_drive *drive, const fy_program_block *a, const fy_program_block *b)
{
    uint32_t i = n_waits(drive, a), j = n_waits(drive, b);
    const fy_program_step *steps = drive->program->steps;
    if (a->n_steps - i != b->n_steps - j) {
        return false;
    }
    for (; i < a->n_steps; i++, j++) {
        const fy_program_step *x = &steps[a->first_step + i], *y = &steps[b->first_step + j];
        if (x->kind != y->kind || x->first + x->n != y->first) {
            return false;
        }
    }
    return true;
}

/* How many blocks can be taken at once: what held once holds, so each block is looked at once. */
static uint32_t count_ahead(const fy_drive *drive, uint32_t lane)
{
    const fy_program_lane *its = &drive->program->lanes[lane];
    fy_cursor *cursor = &drive->cursors[lane];
    uint32_t left = its->n_blocks - cursor->block, n = cursor->n_ahead == 0 ? 1 : cursor->n_ahead;
    uint64_t turn = turn_of(drive, lane), wanted;
    while (its->gathers && n < left && n < MOST_TAKEN &&
           goes_on(drive, block_at(drive, lane, n - 1), block_at(drive, lane, n)) &&
           find_lack(drive, block_at(drive, lane, n), turn, &wanted) == NULL) {
        n++;
    }
    cursor->n_ahead = n;
    return n;
}

static uint32_t take(fy_drive *drive, uint32_t lane)
{
    const fy_program_block *block = block_at(drive, lane, 0);
    uint32_t n = count_ahead(drive, lane);
    uint32_t at = n_waits(drive, block);
    return drive->verbs->take == NULL || at == block->n_steps
               ? n
               : drive->verbs->take(drive->context, lane,
                                    &drive->program->steps[block->first_step + at], n);
}

/* A step with the operands of all blocks that were taken. */
static fy_program_step step_of(const fy_drive *drive, uint32_t lane)
{
    const fy_cursor *cursor = &drive->cursors[lane];
    const fy_program_block *block = block_at(drive, lane, 0);
    fy_program_step step = *fy_drive_at(drive, lane);
    uint32_t behind = cursor->step - n_waits(drive, block);
    for (uint32_t i = 1; i < cursor->n_taken && step.kind != FY_STEP_WAIT; i++) {
        const fy_program_block *next = block_at(drive, lane, i);
        step.n += drive->program->steps[next->first_step + n_waits(drive, next) + behind].n;
    }
    return step;
}

static void fail(fy_drive *drive, uint32_t lane, ferry_status status, const ferry_error *why)
{
    drive->failed = true;
    drive->verbs->fail(drive->context, lane, status, why);
}

/* Whether what a step has begun is under way. */
static bool is_under_way(fy_drive *drive, uint32_t lane)
{
    ferry_error why;
    bool waits;
    if (drive->queues == NULL || drive->queues->n == 0) {
        return false;
    }
    ferry_status status = fy_queues_mark(
        drive->queues, &drive->tickets[(size_t)lane * drive->queues->n], &waits, &why);
    if (status != FERRY_OK) {
        fail(drive, lane, status, &why);
    }
    if (waits) {
        drive->open[drive->n_open++] = lane;
    }
    return waits;
}

static void go_on(fy_drive *drive, uint32_t lane)
{
    fy_cursor *cursor = &drive->cursors[lane];
    uint32_t n_steps = block_at(drive, lane, 0)->n_steps;
    while (cursor->step < n_steps) {
        fy_program_step step = step_of(drive, lane);
        fy_progress progress = FY_PROGRESS_DONE;
        if (drive->verbs->run[step.kind] != NULL) {
            progress =
                drive->verbs->run[step.kind](drive->context, lane, turn_of(drive, lane), &step);
        }
        drive->failed = drive->failed || progress == FY_PROGRESS_FAILED;
        cursor->step += progress == FY_PROGRESS_DONE;
        /* Also what fails may have begun something, and what is to be done again. */
        if (is_under_way(drive, lane) || drive->failed) {
            return;
        }
        if (progress == FY_PROGRESS_BLOCKED) {
            set_aside(drive, lane);
            return;
        }
    }
    cursor->block += cursor->n_taken;
    cursor->n_ahead -= cursor->n_taken;
    cursor->n_taken = cursor->step = 0;
    consider(drive, lane);
}

bool fy_drive_step(fy_drive *drive, uint32_t grade)
{
    fy_heap *ready = &drive->ready[grade];
    uint32_t lane;
    if (drive->failed) {
        return false;
    }
    retry(drive, grade);
    while ((lane = fy_heap_first(ready)) != FY_NOBODY) {
        fy_cursor *cursor = &drive->cursors[lane];
        uint32_t n = cursor->n_taken > 0 ? cursor->n_taken : take(drive, lane);
        drive->n_looks++;
        if (n == FY_NOBODY) {
            return false;
        }
        fy_heap_remove(ready, lane);
        if (n == 0) {
            set_aside(drive, lane);
            continue;
        }
        cursor->n_taken = n;
        go_on(drive, lane);
        return true;
    }
    return false;
}

/*
 * A lane alone
 */

fy_progress fy_drive_go(fy_drive *drive, uint32_t lane)
{
    const fy_program *program = drive->program;
    const fy_program_lane *its = &program->lanes[lane];
    fy_verb *const *run = drive->verbs->run;
    fy_cursor *cursor = &drive->cursors[lane];
    if (drive->failed) {
        return FY_PROGRESS_FAILED;
    }
    while (!cursor->is_over) {
        const fy_program_block *block = &program->blocks[its->first_block + cursor->block];
        const fy_program_step *step = &program->steps[block->first_step + cursor->step];
        uint64_t turn = turn_of(drive, lane);
        for (uint32_t n = block->n_steps; cursor->step < n; cursor->step++, step++) {
            fy_progress progress = run[step->kind](drive->context, lane, turn, step);
            if (progress != FY_PROGRESS_DONE) {
                drive->failed = progress == FY_PROGRESS_FAILED;
                return progress;
            }
        }
        cursor->step = 0;
        cursor->block++;
        go_to_block(drive, its, cursor);
    }
    return FY_PROGRESS_DONE;
}

/*
 * What is under way
 */

static bool is_reached(fy_drive *drive, uint32_t lane)
{
    ferry_error why;
    ferry_status status =
        fy_queues_reached(drive->queues, &drive->tickets[(size_t)lane * drive->queues->n], &why);
    if (status == FERRY_ERR_TIMEOUT) {
        return false;
    }
    if (status != FERRY_OK) {
        fail(drive, lane, status, &why);
    }
    return true;
}

static void drop(fy_drive *drive, uint32_t lane)
{
    if (drive->verbs->drop != NULL) {
        drive->verbs->drop(drive->context, lane);
    }
}

bool fy_drive_reap(fy_drive *drive)
{
    bool worked = false;
    for (uint32_t i = 0; i < drive->n_open && !drive->failed;) {
        uint32_t lane = drive->open[i];
        if (!is_reached(drive, lane)) {
            i++;
            continue;
        }
        drive->open[i] = drive->open[--drive->n_open];
        worked = true;
        if (drive->failed) {
            drop(drive, lane);
        } else {
            go_on(drive, lane);
        }
    }
    return worked;
}

bool fy_drive_is_still(fy_drive *drive)
{
    while (drive->n_open > 0) {
        uint32_t lane = drive->open[drive->n_open - 1];
        if (!is_reached(drive, lane)) {
            return false;
        }
        drive->n_open--;
        drop(drive, lane);
    }
    return true;
}

void fy_drive_finish(fy_drive *drive)
{
    if (drive->n_open > 0) {
        fy_queues_finish(drive->queues);
        fy_drive_is_still(drive);
    }
}
