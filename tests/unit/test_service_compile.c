/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What items become: programs as text, against what was worked out by hand. */
#include "support/check.h"

#include "service/program.h"
#include "service/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char text[8192];
static size_t used;

static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    used += (size_t)vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    assert_true(used < sizeof text);
}

static void say_conditions(const fy_program *program, const fy_program_step *step)
{
    static const char *const names[FY_N_COUNTERS] = {[FY_COUNTER_ENTERED] = "entered",
                                                     [FY_COUNTER_CONSUMED] = "consumed",
                                                     [FY_COUNTER_TURN] = "turn",
                                                     [FY_COUNTER_ARRIVED] = "arrived",
                                                     [FY_COUNTER_DEALT] = "dealt"};
    say(" wait");
    for (uint32_t i = step->first; i < step->first + step->n; i++) {
        const fy_condition *its = &program->conditions[i];
        assert_int_equal(its->per_turn, 0);
        say(" %s(%u)>=%llu", names[its->counter % FY_N_COUNTERS], its->counter / FY_N_COUNTERS,
            (unsigned long long)its->value);
    }
    say(";");
}

static void say_program(const fy_program *program)
{
    static const char *const grades[] = {[FY_GRADE_IN] = "in",
                                         [FY_GRADE_DIRECT] = "direct",
                                         [FY_GRADE_NETWORK] = "network",
                                         [FY_GRADE_LOCAL] = "local"};
    static const char *const kinds[] = {[FY_STEP_MOVE] = "move",
                                        [FY_STEP_SUM] = "sum",
                                        [FY_STEP_PUT] = "put",
                                        [FY_STEP_SIGNAL] = "signal"};
    used = 0;
    for (size_t l = 0; l < program->n_lanes; l++) {
        const fy_program_lane *lane = &program->lanes[l];
        say("%s%s%s\n", grades[lane->grade], lane->gathers ? ", gathers" : "",
            lane->is_pipelined ? ", pipelined" : "");
        for (uint32_t b = 0; b < lane->n_blocks; b++) {
            const fy_program_block *block = &program->blocks[lane->first_block + b];
            say("  %lld:", (long long)block->order);
            for (uint32_t s = 0; s < block->n_steps; s++) {
                const fy_program_step *step = &program->steps[block->first_step + s];
                if (step->kind == FY_STEP_WAIT) {
                    say_conditions(program, step);
                } else {
                    assert_int_equal(step->n, 1);
                    say(" %s %u;", kinds[step->kind], step->first);
                }
            }
            say("\n");
        }
    }
}

static void expect(const char *row, fy_service_program *program, const char *wanted)
{
    ferry_error error;
    must(fy_service_compile(program, &error), &error);
    say_program(&program->steps);
    if (strcmp(text, wanted) != 0) {
        fprintf(stderr, "%s: wanted\n%s\ngot\n%s", row, wanted, text);
    }
    check_row(row, strcmp(text, wanted) == 0);
    check_row(row, program->steps.n_counters >= FY_N_COUNTERS * program->n_channels);
    fy_program_cleanup(&program->steps);
}

#define LANE(its)                                                                                  \
    {                                                                                              \
        .items = (its), .n_items = sizeof(its) / sizeof *(its)                                     \
    }

/* Within a node: what is mapped is moved to its place; rings have room for two. */
static void test_node(void **state)
{
    fy_item out[] = {{.path = FERRY_PATH_MAPPED, .order = 4},
                     {.path = FERRY_PATH_STAGED, .order = 4},
                     {.path = FERRY_PATH_STAGED, .order = 6},
                     {.path = FERRY_PATH_STAGED, .order = 9, .consumed = 2}};
    fy_item in[] = {{.path = FERRY_PATH_STAGED, .order = 3},
                    {.path = FERRY_PATH_MAPPED, .order = 8}};
    fy_item own[] = {{.order = 70}, {.order = 60}};
    fy_channel channel = {
        .out = LANE(out), .in = LANE(in), .direct = true, .reaches_ring = true, .answers = 4};
    fy_service_program program = {.channels = &channel, .n_channels = 1, .local = LANE(own)};
    (void)state;
    expect("node", &program,
           "direct, gathers\n"
           "  4: wait entered(0)>=1; move 0; signal 0;\n"
           "  4: move 1; signal 1;\n"
           "  6: move 2; signal 2;\n"
           "  9: wait consumed(0)>=2; move 3; signal 3;\n"
           "  -1: wait consumed(0)>=4;\n"
           "in, gathers\n"
           "  3: wait arrived(0)>=1; move 0; signal 0;\n"
           "  8: wait arrived(0)>=2; signal 1;\n"
           "local\n"
           "  0: move 0; move 0; move 0; signal 0;\n"
           "  1: move 1; move 1; move 1; signal 1;\n");
    program.checks_ends = true;
    channel.out.n_items = channel.in.n_items - 1;
    channel.answers = 0;
    program.local.n_items = 0;
    expect("checked where it has come to", &program,
           "direct, gathers\n"
           "  4: wait entered(0)>=1; move 0; signal 0;\n"
           "in, gathers\n"
           "  3: wait arrived(0)>=1; move 0; signal 0;\n"
           "  8: wait arrived(0)>=2; move 1; signal 1;\n"
           "local\n");
}

/* Over a network: turns, puts, and items that are made of what comes through other channels. */
static void test_network(void **state)
{
    fy_item out[] = {{.path = FERRY_PATH_STAGED, .order = 1},
                     {.path = FERRY_PATH_REMOTE, .order = 2},
                     {.path = FERRY_PATH_STAGED, .order = 5, .consumed = 1}};
    fy_item in[] = {{.path = FERRY_PATH_REMOTE, .order = 7}};
    fy_item mapped[] = {{.path = FERRY_PATH_MAPPED, .order = 3},
                        {.path = FERRY_PATH_MAPPED, .order = 3}};
    fy_item staged[] = {{.path = FERRY_PATH_STAGED, .order = 2}};
    fy_after afters[] = {{.item = 1, .channel = 1, .n_items = 6},
                         {.item = 2, .channel = 1, .n_items = 8},
                         {.item = 2, .channel = 2, .n_items = 3}};
    fy_after mapped_afters[] = {{.item = 0, .channel = 0, .n_items = 1}};
    fy_channel channels[] = {
        {.out = LANE(out), .in = LANE(in), .in_turns = true, .afters = afters, .n_afters = 3},
        {.out = LANE(mapped), .in_turns = true, .afters = mapped_afters, .n_afters = 1},
        {.out = LANE(staged), .answers = 1}};
    fy_service_program program = {.channels = channels, .n_channels = 3};
    (void)state;
    expect("network", &program,
           "network, gathers\n"
           "  1: wait entered(0)>=1 turn(0)>=1; move 0; put 0; signal 0;\n"
           "  2: wait turn(0)>=2 dealt(1)>=6; put 1; signal 1;\n"
           "  5: wait consumed(0)>=1 turn(0)>=3 dealt(1)>=8 dealt(2)>=3; move 2; put 2; signal 2;\n"
           "in, gathers\n"
           "  7: wait arrived(0)>=1; signal 0;\n"
           "network, gathers\n" /* its turns count among those of the network */
           "  3: wait entered(1)>=1 turn(1)>=1 dealt(0)>=1; move 0; signal 0;\n"
           "  3: wait turn(1)>=2; move 1; signal 1;\n"
           "in, gathers\n"
           "network, gathers\n"
           "  2: wait entered(2)>=1; move 0; put 0; signal 0;\n"
           "  -1: wait consumed(2)>=1;\n"
           "in, gathers\n"
           "local\n");
}

static void test_nothing(void **state)
{
    fy_channel channel = {.peer = 1};
    fy_service_program program = {.channels = &channel, .n_channels = 1};
    (void)state;
    expect("no items", &program, "direct, gathers\nin, gathers\nlocal\n");
    program.n_channels = 0;
    expect("no channels", &program, "local\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_node), cmocka_unit_test(test_network),
                                       cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
