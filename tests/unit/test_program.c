/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs and who drives them, against a model that looks at every lane after every step: nothing
 * begins before its conditions hold, nothing that can begin is left hanging, the first by order
 * goes first, a lane's steps keep their order, and none follows a move that is under way. And lanes
 * that stand in no line: each goes through its blocks as they do, however often it is blocked.
 */
#include "support/check.h"

#include "program/drive.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_LANES = 12,
    MOST_BLOCKS = 10,
    MOST_CONDITIONS = 3,
    MOST_COUNTERS = 10,
    N_GRADES = 2,
    MOST_TURNS = 3
};

/* The test's own description of a program; the library's is compiled from it. */
typedef struct model_block {
    uint64_t order;
    uint32_t n_conditions;
    struct {
        uint32_t counter, per_turn;
        uint64_t value;
    } conditions[MOST_CONDITIONS];
    uint32_t n_steps;
    fy_step_kind kinds[4];
    uint32_t raises;  /* of SIGNAL: which counter, by one */
    uint32_t operand; /* of its steps; those of the next block lie behind it, or further on */
} model_block;

typedef struct model_lane {
    uint32_t n_blocks, grade;
    bool gathers, is_pipelined;
    model_block blocks[MOST_BLOCKS];
    /* Where it must be: a list of what it does, and how far it is. */
    struct {
        uint32_t block, turn;
    } todo[MOST_BLOCKS * MOST_TURNS];
    uint32_t n_todo, done;
    uint32_t begun;   /* blocks that are under way now */
    uint32_t step;    /* of them, without the waiting */
    fy_ticket ticket; /* of its move, 0: none is under way */
    bool refuses;     /* it does not begin now, whatever its conditions */
} model_lane;

typedef struct scene {
    uint64_t random;
    uint32_t n_lanes, n_counters, n_turns;
    model_lane lanes[MOST_LANES];
    uint64_t counters[MOST_COUNTERS];
    fy_program program;
    fy_device_queues queues;
    fy_device_queue queue;
    fy_ticket marked, reached;
    fy_drive drive;
    size_t n_steps, n_gathered, n_refused, n_under_way, n_blocked;
    bool is_odd; /* takes are refused and steps blocked now and then */
} scene;

static uint32_t draw(scene *s, uint32_t n)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (uint32_t)(s->random >> 33) % n;
}

static scene *the_scene; /* of the exec, which has no context */

static ferry_status mark(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error)
{
    (void)queue;
    (void)error;
    *ticket_out = ++the_scene->marked;
    return FERRY_OK;
}

static ferry_status reached(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    (void)queue;
    (void)error;
    return ticket <= the_scene->reached ? FERRY_OK : FERRY_ERR_TIMEOUT;
}

static const fy_exec slow_exec = {.name = "slow", .mark = mark, .reached = reached};

/* By the model alone: whether the block that a lane is at may begin. */
static bool holds(const scene *s, const model_lane *lane, uint32_t ahead)
{
    const model_block *block = &lane->blocks[lane->todo[lane->done + ahead].block];
    uint64_t turn = lane->todo[lane->done + ahead].turn;
    for (uint32_t i = 0; i < block->n_conditions; i++) {
        uint64_t wanted = block->conditions[i].value + turn * block->conditions[i].per_turn;
        if (s->counters[block->conditions[i].counter] < wanted) {
            return false;
        }
    }
    return true;
}

static bool can_begin(const scene *s, const model_lane *lane)
{
    return lane->done < lane->n_todo && lane->begun == 0 && holds(s, lane, 0);
}

static uint64_t order_of(const model_lane *lane)
{
    return lane->blocks[lane->todo[lane->done].block].order;
}

/* Nobody of its grade who can begin, and would, comes before it. */
static void check_first(const scene *s, const model_lane *lane)
{
    for (uint32_t i = 0; i < s->n_lanes && !s->is_odd; i++) {
        const model_lane *other = &s->lanes[i];
        if (other != lane && other->grade == lane->grade && can_begin(s, other)) {
            assert_true(order_of(other) > order_of(lane) ||
                        (order_of(other) == order_of(lane) && other > lane));
        }
    }
}

static uint32_t take(void *context, uint32_t number, const fy_program_step *first, uint32_t n)
{
    scene *s = context;
    model_lane *lane = &s->lanes[number];
    (void)first;
    assert_true(lane->begun == 0 && n > 0 && lane->done + n <= lane->n_todo);
    assert_true(n == 1 || lane->gathers);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = lane->todo[lane->done + i].block;
        assert_true(holds(s, lane, i));
        assert_true(i == 0 || lane->blocks[at].operand == lane->blocks[at - 1].operand + 1);
    }
    check_first(s, lane);
    if (s->is_odd && draw(s, 3) == 0) {
        s->n_refused++;
        return draw(s, 2) == 0 ? 0 : FY_NOBODY;
    }
    lane->begun = s->is_odd ? 1 + draw(s, n) : n;
    s->n_gathered += lane->begun > 1;
    return lane->begun;
}

static void raise(scene *s, uint32_t counter)
{
    s->counters[counter]++;
    fy_drive_raise(&s->drive, counter, s->counters[counter]);
}

/* Operands are numbered so that lane, step and block can be read from them. */
static uint32_t operand_of(const scene *s, uint32_t lane, uint32_t step, uint32_t block)
{
    return (lane * 4 + step) * 100 + s->lanes[lane].blocks[block].operand;
}

static fy_progress run_step(scene *s, uint32_t number, uint64_t turn, const fy_program_step *step)
{
    model_lane *lane = &s->lanes[number];
    uint32_t at = lane->todo[lane->done].block;
    const model_block *block = &lane->blocks[at];
    s->n_steps++;
    assert_true(lane->ticket <= s->reached); /* nothing is under way */
    assert_true(lane->begun > 0 && lane->step < block->n_steps);
    assert_int_equal(turn, lane->todo[lane->done].turn);
    assert_int_equal(step->kind, block->kinds[lane->step]);
    assert_int_equal(step->first, operand_of(s, number, lane->step, at));
    assert_int_equal(step->n, lane->begun);
    if (s->is_odd && draw(s, 8) == 0) {
        s->n_blocked++;
        return FY_PROGRESS_BLOCKED;
    }
    if (step->kind == FY_STEP_MOVE && s->queues.n > 0 && draw(s, 2) == 0) {
        s->queue.used = true;
        lane->ticket = s->marked + 1;
        s->n_under_way++;
    }
    uint32_t n = lane->begun;
    if (++lane->step == block->n_steps) {
        lane->step = lane->begun = 0;
        lane->done += n;
    }
    for (uint32_t i = 0; i < n && step->kind == FY_STEP_SIGNAL; i++) {
        raise(s, lane->blocks[at + i].raises);
    }
    return FY_PROGRESS_DONE;
}

static fy_progress run_any(void *context, uint32_t number, uint64_t turn,
                           const fy_program_step *step)
{
    return run_step(context, number, turn, step);
}

static void fail_never(void *context, uint32_t lane, ferry_status status, const ferry_error *why)
{
    (void)context;
    (void)lane;
    fail_msg("%d %s", status, why->message);
}

static const fy_verbs verbs = {.take = take,
                               .run = {[FY_STEP_MOVE] = run_any,
                                       [FY_STEP_SUM] = run_any,
                                       [FY_STEP_PUT] = run_any,
                                       [FY_STEP_SIGNAL] = run_any},
                               .fail = fail_never};

static void draw_block(scene *s, model_block *block)
{
    static const fy_step_kind kinds[] = {FY_STEP_MOVE, FY_STEP_SUM, FY_STEP_PUT};
    block->order = draw(s, 6);
    block->n_conditions = draw(s, MOST_CONDITIONS + 1);
    for (uint32_t i = 0; i < block->n_conditions; i++) {
        block->conditions[i].counter = draw(s, s->n_counters);
        block->conditions[i].value = draw(s, 12);
        block->conditions[i].per_turn = draw(s, 3);
    }
    block->n_steps = 1 + draw(s, 3);
    for (uint32_t i = 0; i + 1 < block->n_steps; i++) {
        block->kinds[i] = kinds[draw(s, 3)];
    }
    block->kinds[block->n_steps - 1] = FY_STEP_SIGNAL;
    block->raises = draw(s, s->n_counters);
}

/* What the lane does, in order: by the definition of a pipeline, turn by turn. */
static void list_todo(const scene *s, model_lane *lane)
{
    uint32_t more = lane->is_pipelined && lane->n_blocks > 0 ? lane->n_blocks - 1 : 0;
    for (uint32_t t = 0; t < s->n_turns + more; t++) {
        for (uint32_t b = 0; b < lane->n_blocks; b++) {
            uint32_t turn = lane->is_pipelined ? t - b : t;
            if (turn < s->n_turns) { /* below 0 it is a large number */
                lane->todo[lane->n_todo].block = b;
                lane->todo[lane->n_todo++].turn = turn;
            }
        }
    }
}

static void compile_lane(scene *s, uint32_t number)
{
    const model_lane *lane = &s->lanes[number];
    ferry_error error;
    must(fy_program_lane_add(&s->program, (uint8_t)lane->grade, lane->gathers, lane->is_pipelined,
                             &error),
         &error);
    for (uint32_t b = 0; b < lane->n_blocks; b++) {
        const model_block *block = &lane->blocks[b];
        must(fy_program_block_add(&s->program, block->order, &error), &error);
        for (uint32_t i = 0; i < block->n_conditions; i++) {
            must(fy_program_wait_add(&s->program, block->conditions[i].counter,
                                     block->conditions[i].value, block->conditions[i].per_turn,
                                     &error),
                 &error);
        }
        for (uint32_t i = 0; i < block->n_steps; i++) {
            must(fy_program_step_add(&s->program, block->kinds[i], operand_of(s, number, i, b), 1,
                                     &error),
                 &error);
        }
    }
}

static void open_scene(scene *s, uint64_t seed)
{
    *s = (scene){.random = 88172645463325252u + seed * 2654435761u};
    the_scene = s;
    s->n_lanes = 1 + draw(s, MOST_LANES);
    s->n_counters = 1 + draw(s, MOST_COUNTERS);
    s->n_turns = 1 + draw(s, MOST_TURNS);
    s->is_odd = seed % 2 == 1;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        model_lane *lane = &s->lanes[i];
        lane->n_blocks = draw(s, MOST_BLOCKS + 1);
        lane->grade = draw(s, N_GRADES);
        lane->is_pipelined = draw(s, 4) == 0;
        lane->gathers = !lane->is_pipelined && draw(s, 2) == 0;
        for (uint32_t b = 0; b < lane->n_blocks; b++) {
            if (b > 0 && draw(s, 2) == 0) {
                lane->blocks[b] =
                    lane->blocks[b - 1]; /* of one form, so that they are taken at once */
            } else {
                draw_block(s, &lane->blocks[b]);
            }
            lane->blocks[b].operand =
                b == 0 ? 0 : lane->blocks[b - 1].operand + 1 + (draw(s, 4) == 0);
        }
        list_todo(s, lane);
        compile_lane(s, i);
    }
    ferry_error error;
    if (draw(s, 2) == 0) {
        s->queue = (fy_device_queue){.exec = &slow_exec};
        s->queues = (fy_device_queues){.items = &s->queue, .n = 1};
    }
    must(fy_drive_open(&s->drive, &s->program, &s->queues, &error), &error);
    fy_drive_begin(&s->drive, &s->program, &verbs, s, s->n_turns);
}

/* Nothing more happens by itself: then no lane may be able to go, by the model. */
static void check_idle(const scene *s)
{
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        assert_false(can_begin(s, &s->lanes[i]));
        assert_true(s->lanes[i].begun == 0 || s->lanes[i].ticket > s->reached);
    }
}

static bool is_over(const scene *s)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        n_left += s->lanes[i].done < s->lanes[i].n_todo || s->lanes[i].ticket > s->reached;
    }
    return n_left == 0;
}

/* Goes on until nothing does any more. Refusals and steps to be done again end with the draws. */
static void exhaust(scene *s)
{
    bool was_odd = s->is_odd;
    for (uint32_t i = 0; i < 200; i++) {
        if (draw(s, 4) == 0) {
            fy_drive_reap(&s->drive);
        } else {
            fy_drive_step(&s->drive, draw(s, N_GRADES));
        }
    }
    s->is_odd = false;
    for (uint32_t idle = 0; idle < MOST_LANES;) { /* some are asked again, a few at a time */
        bool worked = fy_drive_reap(&s->drive);
        for (uint32_t g = 0; g < N_GRADES; g++) {
            s->is_odd = s->drive.aside[g].first != FY_NOBODY; /* these come when they are asked */
            worked = fy_drive_step(&s->drive, g) || worked;
            s->is_odd = false;
        }
        idle = worked ? 0 : idle + 1;
    }
    s->is_odd = was_odd;
    check_idle(s);
}

static void run_scene(scene *s)
{
    for (uint32_t round = 0; !is_over(s); round++) {
        exhaust(s);
        s->reached = s->marked < s->reached + 3 ? s->marked : s->reached + draw(s, 4);
        if (draw(s, 2) == 0 || s->reached == s->marked) {
            raise(s, draw(s, s->n_counters));
        }
        assert_true(round < 2000);
    }
    exhaust(s);
    assert_int_equal(s->drive.n_left, 0);
    assert_int_equal(s->drive.n_open, 0);
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        assert_true(s->drive.cursors[i].is_over);
    }
}

static void close_scene(scene *s)
{
    fy_drive_close(&s->drive);
    fy_program_cleanup(&s->program);
}

static void test_random(void **state)
{
    enum { N = 600 };
    static scene s;
    size_t n_gathered = 0, n_refused = 0, n_under_way = 0, n_blocked = 0, n_steps = 0;
    (void)state;
    for (uint64_t seed = 0; seed < N; seed++) {
        open_scene(&s, seed);
        run_scene(&s);
        n_gathered += s.n_gathered;
        n_refused += s.n_refused;
        n_under_way += s.n_under_way;
        n_blocked += s.n_blocked;
        n_steps += s.n_steps;
        close_scene(&s);
    }
    check_at(n_steps > 50 * N && n_gathered > N && n_refused > N && n_under_way > N &&
                 n_blocked > N,
             "%zu steps, %zu taken at once, %zu refused, %zu under way, %zu blocked", n_steps,
             n_gathered, n_refused, n_under_way, n_blocked);
}

/* A step of a lane alone: the next one that the model has for it. */
static fy_progress run_alone(void *context, uint32_t number, uint64_t turn,
                             const fy_program_step *step)
{
    scene *s = context;
    model_lane *lane = &s->lanes[number];
    uint32_t at = lane->todo[lane->done].block;
    assert_true(lane->done < lane->n_todo);
    assert_int_equal(turn, lane->todo[lane->done].turn);
    assert_int_equal(step->kind, lane->blocks[at].kinds[lane->step]);
    assert_int_equal(step->first, operand_of(s, number, lane->step, at));
    assert_int_equal(step->n, 1);
    assert_true(fy_drive_at(&s->drive, number) == step);
    if (draw(s, 4) == 0) {
        s->n_blocked++;
        return FY_PROGRESS_BLOCKED;
    }
    if (++lane->step == lane->blocks[at].n_steps) {
        lane->step = 0;
        lane->done++;
    }
    s->n_steps++;
    return FY_PROGRESS_DONE;
}

static const fy_verbs alone = {.run = {run_alone, run_alone, run_alone, run_alone, run_alone},
                               .fail = fail_never};

static void open_alone(scene *s, uint64_t seed)
{
    *s = (scene){.random = 88172645463325252u + seed * 2654435761u};
    ferry_error error;
    s->n_lanes = 1 + draw(s, 3);
    s->n_counters = 1;
    s->n_turns = draw(s, MOST_TURNS + 1);
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        model_lane *lane = &s->lanes[i];
        lane->n_blocks = draw(s, MOST_BLOCKS + 1);
        lane->grade = FY_ALONE;
        lane->is_pipelined = draw(s, 2) == 0;
        for (uint32_t b = 0; b < lane->n_blocks; b++) {
            draw_block(s, &lane->blocks[b]);
            lane->blocks[b].n_conditions = 0;
            lane->blocks[b].operand = b;
        }
        if (s->n_turns > 0) {
            list_todo(s, lane);
        }
        compile_lane(s, i);
    }
    must(fy_drive_open(&s->drive, &s->program, NULL, &error), &error);
}

/* Twice over: nothing of a run is left in the next. */
static void test_alone(void **state)
{
    static scene s;
    size_t n_blocked = 0, n_steps = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        open_alone(&s, seed);
        for (uint32_t run = 0; run < 2; run++) {
            fy_drive_begin(&s.drive, &s.program, &alone, &s, s.n_turns);
            for (uint32_t i = 0; i < s.n_lanes; i++) {
                s.lanes[i].done = s.lanes[i].step = 0;
            }
            while (s.drive.n_left > 0) {
                uint32_t number = draw(&s, s.n_lanes);
                const model_lane *lane = &s.lanes[number];
                bool is_done = fy_drive_go(&s.drive, number) == FY_PROGRESS_DONE;
                assert_int_equal(is_done, lane->done == lane->n_todo);
                assert_false(fy_drive_step(&s.drive, 0)); /* nobody stands in line */
            }
            for (uint32_t i = 0; i < s.n_lanes; i++) {
                assert_int_equal(s.lanes[i].done, s.lanes[i].n_todo);
            }
        }
        n_blocked += s.n_blocked;
        n_steps += s.n_steps;
        close_scene(&s);
    }
    check_at(n_steps > 3000 && n_blocked > 1000, "%zu steps, %zu blocked", n_steps, n_blocked);
}

/* A lane whose verb fails stops all of them, and what is under way is dropped once it is over. */
static uint32_t n_dropped;

static fy_progress fail_step(void *context, uint32_t lane, uint64_t turn,
                             const fy_program_step *step)
{
    (void)turn;
    (void)step;
    scene *s = context;
    s->queue.used = lane == 0;
    return lane == 0 ? FY_PROGRESS_DONE : FY_PROGRESS_FAILED;
}

static void count_drop(void *context, uint32_t lane)
{
    (void)context;
    assert_int_equal(lane, 0);
    n_dropped++;
}

/* A lane alone that has failed stays where it is. */
static void test_failure_alone(void **state)
{
    static const fy_verbs failing = {.run = {[FY_STEP_MOVE] = fail_step}, .fail = fail_never};
    static scene s;
    ferry_error error;
    (void)state;
    s = (scene){.n_lanes = 0};
    for (uint32_t i = 0; i < 2; i++) {
        must(fy_program_lane_add(&s.program, FY_ALONE, false, false, &error), &error);
        must(fy_program_block_add(&s.program, 0, &error), &error);
        must(fy_program_step_add(&s.program, FY_STEP_MOVE, i, 1, &error), &error);
    }
    must(fy_drive_open(&s.drive, &s.program, NULL, &error), &error);
    fy_drive_begin(&s.drive, &s.program, &failing, &s, 1);
    assert_int_equal(fy_drive_go(&s.drive, 0), FY_PROGRESS_DONE);
    assert_int_equal(fy_drive_go(&s.drive, 1), FY_PROGRESS_FAILED);
    assert_int_equal(fy_drive_go(&s.drive, 1), FY_PROGRESS_FAILED);
    assert_true(s.drive.failed);
    assert_int_equal(fy_drive_at(&s.drive, 1)->first, 1);
    fy_drive_begin(&s.drive, &s.program, &failing, &s, 1);
    assert_int_equal(fy_drive_go(&s.drive, 0), FY_PROGRESS_DONE);
    close_scene(&s);
}

static void test_failure(void **state)
{
    static const fy_verbs failing = {
        .run = {[FY_STEP_MOVE] = fail_step}, .fail = fail_never, .drop = count_drop};
    static scene s;
    ferry_error error;
    (void)state;
    s = (scene){.queue = {.exec = &slow_exec}};
    the_scene = &s;
    s.queues = (fy_device_queues){.items = &s.queue, .n = 1};
    for (uint32_t i = 0; i < 3; i++) {
        must(fy_program_lane_add(&s.program, 0, false, false, &error), &error);
        must(fy_program_block_add(&s.program, i, &error), &error);
        must(fy_program_step_add(&s.program, FY_STEP_MOVE, 0, 1, &error), &error);
    }
    must(fy_drive_open(&s.drive, &s.program, &s.queues, &error), &error);
    fy_drive_begin(&s.drive, &s.program, &failing, &s, 1);
    assert_true(fy_drive_step(&s.drive, 0));
    assert_true(fy_drive_step(&s.drive, 0));
    assert_true(s.drive.failed);
    assert_false(fy_drive_step(&s.drive, 0));
    assert_false(fy_drive_is_still(&s.drive));
    assert_int_equal(n_dropped, 0);
    s.reached = s.marked;
    assert_true(fy_drive_is_still(&s.drive));
    assert_int_equal(n_dropped, 1);
    close_scene(&s);
}

/* What a step has begun before it failed is waited for like any other work. */
static fy_progress begin_and_fail(void *context, uint32_t lane, uint64_t turn,
                                  const fy_program_step *step)
{
    (void)lane;
    (void)turn;
    (void)step;
    ((scene *)context)->queue.used = true;
    return FY_PROGRESS_FAILED;
}

static void test_failure_under_way(void **state)
{
    static const fy_verbs failing = {
        .run = {[FY_STEP_MOVE] = begin_and_fail}, .fail = fail_never, .drop = count_drop};
    static scene s;
    ferry_error error;
    (void)state;
    s = (scene){.queue = {.exec = &slow_exec}};
    the_scene = &s;
    s.queues = (fy_device_queues){.items = &s.queue, .n = 1};
    must(fy_program_lane_add(&s.program, 0, false, false, &error), &error);
    must(fy_program_block_add(&s.program, 0, &error), &error);
    must(fy_program_step_add(&s.program, FY_STEP_MOVE, 0, 1, &error), &error);
    must(fy_drive_open(&s.drive, &s.program, &s.queues, &error), &error);
    fy_drive_begin(&s.drive, &s.program, &failing, &s, 1);
    n_dropped = 0;
    assert_true(fy_drive_step(&s.drive, 0));
    assert_true(s.drive.failed);
    assert_int_equal(s.drive.n_open, 1);
    assert_false(fy_drive_is_still(&s.drive));
    s.reached = s.marked;
    assert_true(fy_drive_is_still(&s.drive));
    assert_int_equal(n_dropped, 1);
    close_scene(&s);
}

/*
 * Queues of devices: rows of verbs that count what they are asked
 */

enum { DEVICES = 2 };

/* A queue is its device's number, plus one. */
static struct {
    int n_open[DEVICES], n_opened[DEVICES], n_marks[DEVICES];
    fy_ticket reached[DEVICES];
    bool opens_none, fails[DEVICES];
} seen;
static char queue_of[DEVICES];

static ferry_status open_counted(int32_t device, void *native, fy_exec_queue **queue_out,
                                 ferry_error *error)
{
    assert_null(native);
    if (seen.opens_none) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "no queue");
    }
    seen.n_open[device]++;
    seen.n_opened[device]++;
    *queue_out = (fy_exec_queue *)(void *)&queue_of[device];
    return FERRY_OK;
}

static size_t device_of(const fy_exec_queue *queue)
{
    return (size_t)((const char *)(const void *)queue - queue_of);
}

static void close_counted(fy_exec_queue *queue)
{
    seen.n_open[device_of(queue)]--;
}

static ferry_status mark_counted(fy_exec_queue *queue, fy_ticket *ticket_out, ferry_error *error)
{
    size_t d = device_of(queue);
    *ticket_out = (fy_ticket)++seen.n_marks[d];
    return seen.fails[d] ? fy_fail(error, FERRY_ERR_IO, "device %zu fails", d) : FERRY_OK;
}

static ferry_status reached_counted(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    (void)error;
    return ticket <= seen.reached[device_of(queue)] ? FERRY_OK : FERRY_ERR_TIMEOUT;
}

static bool reaches_own(int32_t device, fy_space space)
{
    return fy_is_host(space) || space.device == device;
}

static const fy_exec counted = {.name = "counted",
                                .queue_open = open_counted,
                                .queue_close = close_counted,
                                .reaches = reaches_own,
                                .mark = mark_counted,
                                .reached = reached_counted};

static const fy_memory_kind counted_kind = {.kind = FERRY_MEMORY_FAR, .exec = &counted};

/* A mark is reached when each queue that was used since the one before has reached its own. */
static void check_marks(fy_device_queues *queues)
{
    const fy_space host = {.kind = FERRY_MEMORY_HOST};
    const fy_space device[DEVICES] = {{.kind = FERRY_MEMORY_FAR},
                                      {.kind = FERRY_MEMORY_FAR, .device = 1}};
    fy_ticket tickets[DEVICES] = {9, 9};
    bool waits = true;
    ferry_error error;
    must(fy_queues_mark(queues, tickets, &waits, &error), &error);
    assert_true(!waits && tickets[0] == 0 && tickets[1] == 0);
    assert_null(fy_queues_use(queues, host, host));
    assert_int_equal(fy_queues_use(queues, host, device[0])->device, 0);
    assert_int_equal(fy_queues_use(queues, device[1], host)->device, 1);
    must(fy_queues_mark(queues, tickets, &waits, &error), &error);
    assert_true(waits && tickets[0] == 1 && tickets[1] == 1);
    assert_int_equal(fy_queues_reached(queues, tickets, &error), FERRY_ERR_TIMEOUT);
    seen.reached[0] = 1;
    assert_int_equal(fy_queues_reached(queues, tickets, &error), FERRY_ERR_TIMEOUT);
    seen.reached[0] = 0;
    seen.reached[1] = 1;
    assert_int_equal(fy_queues_reached(queues, tickets, &error), FERRY_ERR_TIMEOUT);
    seen.reached[0] = 1;
    must(fy_queues_reached(queues, tickets, &error), &error);
    must(fy_queues_mark(queues, tickets, &waits, &error), &error);
    assert_true(!waits && tickets[0] == 0 && tickets[1] == 0); /* used, but not since */
}

static void test_queues(void **state)
{
    const fy_space host = {.kind = FERRY_MEMORY_HOST};
    const fy_space device[DEVICES] = {{.kind = FERRY_MEMORY_FAR},
                                      {.kind = FERRY_MEMORY_FAR, .device = 1}};
    fy_device_queues queues = {.n = 0};
    fy_ticket tickets[DEVICES] = {9, 9};
    bool waits = true;
    ferry_error error;
    (void)state;
    const fy_memory_kind *before =
        atomic_exchange(&fy_memory_rows[FERRY_MEMORY_FAR], &counted_kind);
    seen.opens_none = true;
    check_status("none to be had", FERRY_ERR_NO_MEMORY,
                 fy_queues_add(&queues, fy_exec_for(host, device[1]), &error), &error);
    assert_int_equal(queues.n, 0);
    seen.opens_none = false;
    for (int i = 0; i < 3; i++) { /* once each, and none for the host's */
        must(fy_queues_add(&queues, fy_exec_for(host, host), &error), &error);
        must(fy_queues_add(&queues, fy_exec_for(device[0], device[1]), &error), &error);
        must(fy_queues_add(&queues, fy_exec_for(host, device[1]), &error), &error);
        must(fy_queues_add(&queues, fy_exec_for(device[0], host), &error), &error);
    }
    assert_int_equal(queues.n, 2);
    assert_true(seen.n_opened[0] == 1 && seen.n_opened[1] == 1);
    assert_int_equal(fy_queues_find(&queues, fy_exec_for(host, device[0]))->device, 0);
    assert_int_equal(fy_queues_find(&queues, fy_exec_for(host, device[1]))->device, 1);

    check_marks(&queues);

    fy_queues_use(&queues, host, device[0]);
    fy_queues_use(&queues, host, device[1]);
    seen.fails[0] = seen.fails[1] = true;
    error.message[0] = '\0';
    check_status("a queue that cannot say", FERRY_ERR_IO,
                 fy_queues_mark(&queues, tickets, &waits, &error), &error);
    check_says("a queue that cannot say", queues.items[0].device == 0 ? "device 0" : "device 1",
               &error);
    seen.fails[0] = seen.fails[1] = false;
    seen.reached[0] = seen.reached[1] = 100;
    int marks = seen.n_marks[0] + seen.n_marks[1];
    fy_queues_finish(&queues);
    assert_int_equal(seen.n_marks[0] + seen.n_marks[1], marks + 2);
    fy_queues_close(&queues);
    assert_true(seen.n_open[0] == 0 && seen.n_open[1] == 0 && queues.n == 0);
    atomic_store(&fy_memory_rows[FERRY_MEMORY_FAR], before);
}

/* A drive that is begun again remembers nothing of the run before, not even of one that failed. */
static void test_again(void **state)
{
    static const fy_verbs failing = {
        .run = {[FY_STEP_MOVE] = fail_step}, .fail = fail_never, .drop = count_drop};
    static const fy_verbs nothing = {.fail = fail_never};
    static scene s;
    ferry_error error;
    (void)state;
    s = (scene){.queue = {.exec = &slow_exec}};
    the_scene = &s;
    s.queues = (fy_device_queues){.items = &s.queue, .n = 1};
    for (uint32_t i = 0; i < 2; i++) {
        must(fy_program_lane_add(&s.program, (uint8_t)i, false, false, &error), &error);
        must(fy_program_block_add(&s.program, i, &error), &error);
        must(fy_program_wait_add(&s.program, 0, 3, 0, &error), &error);
        must(fy_program_step_add(&s.program, FY_STEP_MOVE, 0, 1, &error), &error);
    }
    must(fy_drive_open(&s.drive, &s.program, &s.queues, &error), &error);
    for (int round = 0; round < 3; round++) {
        fy_drive_begin(&s.drive, &s.program, &failing, &s, 1);
        assert_false(fy_drive_step(&s.drive, 0));
        fy_drive_raise(&s.drive, 0, 5); /* past the value, at once */
        fy_drive_raise(&s.drive, 0, 4); /* which comes late */
        assert_int_equal(s.drive.counters[0], 5);
        assert_int_equal(fy_drive_n_ready(&s.drive, 0), 1);
        assert_int_equal(fy_drive_n_ready(&s.drive, 1), 1);
        assert_true(fy_drive_step(&s.drive, 0));
        assert_true(fy_drive_step(&s.drive, 1));
        assert_true(s.drive.failed);
        n_dropped = 0;
        s.reached = s.marked + 1; /* that of who finishes, too */
        fy_drive_finish(&s.drive);
        assert_int_equal(n_dropped, 1);
        assert_int_equal(s.drive.n_open, 0);
        fy_drive_begin(&s.drive, &s.program, &nothing, NULL, 1);
        fy_drive_raise(&s.drive, 0, 3);
        assert_true(fy_drive_step(&s.drive, 0));
        assert_true(fy_drive_step(&s.drive, 1));
        assert_int_equal(s.drive.n_left, 0);
    }
    close_scene(&s);
}

/* A heap against a list that is searched. */
static void test_heap(void **state)
{
    enum { N = 40, ROUNDS = 5000 };
    static scene s = {.random = 77};
    uint64_t keys[N];
    bool is_in[N] = {false};
    fy_heap heap;
    ferry_error error;
    (void)state;
    must(fy_heap_open(&heap, N, &error), &error);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t item = draw(&s, N), first = FY_NOBODY, n = 0;
        is_in[item] = draw(&s, 3) != 0;
        if (is_in[item]) { /* also of one that is there already */
            keys[item] = draw(&s, 30);
            fy_heap_set(&heap, item, keys[item]);
        } else {
            fy_heap_remove(&heap, item);
        }
        for (uint32_t i = 0; i < N; i++) {
            n += is_in[i];
            first = is_in[i] && (first == FY_NOBODY || keys[i] < keys[first]) ? i : first;
        }
        assert_int_equal(heap.n, n);
        assert_int_equal(fy_heap_first(&heap), first);
    }
    fy_heap_close(&heap);
}

/* Steps that are to be done again, and queues that are late or fail: of one lane with one move. */
static struct {
    int n_moves, n_blocked, n_fails, n_looks;
    fy_device_queue *queue;
} lone;

static fy_progress move_once(void *context, uint32_t lane, uint64_t turn,
                             const fy_program_step *step)
{
    (void)context;
    (void)lane;
    (void)turn;
    (void)step;
    lone.n_moves++;
    lone.queue->used = lone.n_blocked == 0;
    return lone.n_blocked-- > 0 ? FY_PROGRESS_BLOCKED : FY_PROGRESS_DONE;
}

static void count_fail(void *context, uint32_t lane, ferry_status status, const ferry_error *why)
{
    (void)context;
    (void)lane;
    assert_int_equal(status, FERRY_ERR_IO);
    assert_non_null(strstr(why->message, "device 0 fails"));
    lone.n_fails++;
}

static ferry_status reached_late(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    (void)queue;
    (void)ticket;
    (void)error;
    return ++lone.n_looks < 5 ? FERRY_ERR_TIMEOUT : FERRY_OK;
}

static void test_lone_lane(void **state)
{
    static const fy_verbs moving = {.run = {[FY_STEP_MOVE] = move_once}, .fail = count_fail};
    fy_exec late = counted;
    fy_device_queue queue = {.exec = &late, .queue = (fy_exec_queue *)(void *)&queue_of[0]};
    fy_device_queues queues = {.items = &queue, .n = 1};
    fy_program program = {.n_lanes = 0};
    fy_drive drive;
    ferry_error error;
    (void)state;
    late.reached = reached_late;
    lone.queue = &queue;
    must(fy_program_lane_add(&program, 0, false, false, &error), &error);
    must(fy_program_block_add(&program, 0, &error), &error);
    must(fy_program_step_add(&program, FY_STEP_MOVE, 0, 1, &error), &error);
    must(fy_drive_open(&drive, &program, &queues, &error), &error);

    fy_drive_begin(&drive, &program, &moving, NULL, 1);
    lone.n_blocked = 2;
    for (int i = 1; i <= 3; i++) { /* once each time that the driver is called */
        assert_true(fy_drive_step(&drive, 0));
        assert_int_equal(lone.n_moves, i);
    }
    assert_int_equal(drive.n_open, 1);
    assert_false(fy_drive_reap(&drive));
    fy_drive_finish(&drive);
    assert_int_equal(drive.n_open, 0);
    assert_true(lone.n_looks >= 5);

    fy_drive_begin(&drive, &program, &moving, NULL, 1);
    lone.n_blocked = 0;
    seen.fails[0] = true;
    assert_true(fy_drive_step(&drive, 0));
    seen.fails[0] = false;
    assert_int_equal(lone.n_fails, 1);
    assert_true(drive.failed);
    assert_false(fy_drive_step(&drive, 0));
    fy_drive_close(&drive);
    fy_program_cleanup(&program);
}

/* A device that fails while it works: its lane ends there, and what it had is given back. */
static ferry_status reached_failed(fy_exec_queue *queue, fy_ticket ticket, ferry_error *error)
{
    (void)queue;
    (void)ticket;
    return fy_fail(error, FERRY_ERR_IO, "device 0 fails");
}

static void test_device_failure(void **state)
{
    static const fy_verbs moving = {
        .run = {[FY_STEP_MOVE] = move_once}, .fail = count_fail, .drop = count_drop};
    fy_exec broken = counted;
    fy_device_queue queue = {.exec = &broken, .queue = (fy_exec_queue *)(void *)&queue_of[0]};
    fy_device_queues queues = {.items = &queue, .n = 1};
    fy_program program = {.n_lanes = 0};
    fy_drive drive;
    ferry_error error;
    (void)state;
    broken.reached = reached_failed;
    memset(&lone, 0, sizeof lone);
    lone.queue = &queue;
    n_dropped = 0;
    must(fy_program_lane_add(&program, 0, false, false, &error), &error);
    must(fy_program_block_add(&program, 0, &error), &error);
    must(fy_program_step_add(&program, FY_STEP_MOVE, 0, 1, &error), &error);
    must(fy_program_step_add(&program, FY_STEP_MOVE, 1, 1, &error), &error);
    must(fy_drive_open(&drive, &program, &queues, &error), &error);
    fy_drive_begin(&drive, &program, &moving, NULL, 1);
    assert_true(fy_drive_step(&drive, 0));
    assert_int_equal(lone.n_moves, 1);
    assert_true(fy_drive_reap(&drive));
    assert_true(drive.failed && drive.n_open == 0);
    assert_int_equal(lone.n_moves, 1); /* and not the step behind it */
    assert_int_equal(lone.n_fails, 1);
    assert_int_equal(n_dropped, 1);
    assert_false(fy_drive_step(&drive, 0));
    fy_drive_close(&drive);
    fy_program_cleanup(&program);
}

/* Who takes blocks is not asked about those that only wait: there is no step to show him. */
static uint32_t take_moves(void *context, uint32_t lane, const fy_program_step *first, uint32_t n)
{
    (void)context;
    (void)lane;
    assert_int_equal(first->kind, FY_STEP_MOVE);
    lone.n_looks++;
    return n;
}

static void test_waits_only(void **state)
{
    static const fy_verbs taking = {
        .take = take_moves, .run = {[FY_STEP_MOVE] = move_once}, .fail = fail_never};
    fy_device_queue queue = {.exec = &counted};
    fy_program program = {.n_lanes = 0};
    fy_drive drive;
    ferry_error error;
    (void)state;
    memset(&lone, 0, sizeof lone);
    lone.queue = &queue;
    must(fy_program_lane_add(&program, 0, false, false, &error), &error);
    for (uint32_t b = 0; b < 3; b++) {
        must(fy_program_block_add(&program, b, &error), &error);
        must(fy_program_wait_add(&program, 0, b + 1, 0, &error), &error);
        if (b == 1) {
            must(fy_program_step_add(&program, FY_STEP_MOVE, 0, 1, &error), &error);
        }
    }
    must(fy_drive_open(&drive, &program, NULL, &error), &error);
    fy_drive_begin(&drive, &program, &taking, NULL, 1);
    for (uint32_t b = 0; b < 3; b++) {
        assert_false(fy_drive_step(&drive, 0));
        fy_drive_raise(&drive, 0, b + 1);
        assert_true(fy_drive_step(&drive, 0));
    }
    assert_int_equal(drive.n_left, 0);
    assert_true(lone.n_moves == 1 && lone.n_looks == 1);
    fy_drive_close(&drive);
    fy_program_cleanup(&program);
}

/* Looks at lanes for each block, however many lanes there are that cannot go. */
static uint64_t looks_of(uint32_t n_lanes)
{
    enum { BLOCKS = 4 };
    static const fy_verbs nothing = {.fail = fail_never};
    fy_program program = {.n_lanes = 0};
    fy_drive drive;
    ferry_error error;
    for (uint32_t i = 0; i < n_lanes; i++) {
        must(fy_program_lane_add(&program, 0, false, false, &error), &error);
        for (uint32_t b = 0; b < BLOCKS; b++) {
            must(fy_program_block_add(&program, b, &error), &error);
            must(fy_program_wait_add(&program, 0, b * n_lanes + i + 1, 0, &error), &error);
        }
    }
    must(fy_drive_open(&drive, &program, NULL, &error), &error);
    fy_drive_begin(&drive, &program, &nothing, NULL, 1);
    uint64_t before = drive.n_looks;
    for (uint32_t i = 0; i < BLOCKS * n_lanes; i++) {
        fy_drive_raise(&drive, 0, i + 1);
        assert_true(fy_drive_step(&drive, 0));
        assert_false(fy_drive_step(&drive, 0));
    }
    uint64_t looks = drive.n_looks - before;
    assert_int_equal(drive.n_left, 0);
    fy_drive_close(&drive);
    fy_program_cleanup(&program);
    return looks / (BLOCKS * n_lanes);
}

static void test_looks(void **state)
{
    (void)state;
    assert_true(looks_of(8) > 0);
    assert_true(looks_of(1000) <= looks_of(8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_alone),
        cmocka_unit_test(test_failure),        cmocka_unit_test(test_failure_alone),
        cmocka_unit_test(test_queues),         cmocka_unit_test(test_again),
        cmocka_unit_test(test_heap),           cmocka_unit_test(test_lone_lane),
        cmocka_unit_test(test_looks),          cmocka_unit_test(test_failure_under_way),
        cmocka_unit_test(test_device_failure), cmocka_unit_test(test_waits_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
