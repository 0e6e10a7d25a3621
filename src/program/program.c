/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "program/program.h"

#include "base/alloc.h"

static ferry_status fail(ferry_error *error)
{
    return fy_fail_no_memory(error, "a program");
}

ferry_status fy_program_lane_add(fy_program *program, uint8_t grade, bool gathers,
                                 bool is_pipelined, ferry_error *error)
{
    if (!FY_RESERVE(program->lanes, program->lane_capacity, program->n_lanes + 1)) {
        return fail(error);
    }
    program->lanes[program->n_lanes++] =
        (fy_program_lane){.first_block = (uint32_t)program->n_blocks,
                          .grade = grade,
                          .gathers = gathers,
                          .is_pipelined = is_pipelined};
    return FERRY_OK;
}

ferry_status fy_program_block_add(fy_program *program, uint64_t order, ferry_error *error)
{
    if (!FY_RESERVE(program->blocks, program->block_capacity, program->n_blocks + 1)) {
        return fail(error);
    }
    program->blocks[program->n_blocks++] =
        (fy_program_block){.order = order, .first_step = (uint32_t)program->n_steps};
    program->lanes[program->n_lanes - 1].n_blocks++;
    return FERRY_OK;
}

ferry_status fy_program_step_add(fy_program *program, fy_step_kind kind, uint32_t first, uint32_t n,
                                 ferry_error *error)
{
    if (!FY_RESERVE(program->steps, program->step_capacity, program->n_steps + 1)) {
        return fail(error);
    }
    program->steps[program->n_steps++] = (fy_program_step){.kind = kind, .first = first, .n = n};
    program->blocks[program->n_blocks - 1].n_steps++;
    return FERRY_OK;
}

ferry_status fy_program_wait_add(fy_program *program, uint32_t counter, uint64_t value,
                                 uint32_t per_turn, ferry_error *error)
{
    if (!FY_RESERVE(program->conditions, program->condition_capacity, program->n_conditions + 1)) {
        return fail(error);
    }
    if (program->blocks[program->n_blocks - 1].n_steps == 0) {
        FY_TRY(
            fy_program_step_add(program, FY_STEP_WAIT, (uint32_t)program->n_conditions, 0, error));
    }
    program->conditions[program->n_conditions++] =
        (fy_condition){.counter = counter, .per_turn = per_turn, .value = value};
    program->steps[program->n_steps - 1].n++;
    if (program->n_counters <= counter) {
        program->n_counters = counter + 1;
    }
    return FERRY_OK;
}

void fy_program_cleanup(fy_program *program)
{
    fy_free(program->lanes);
    fy_free(program->blocks);
    fy_free(program->steps);
    fy_free(program->conditions);
    *program = (fy_program){.n_lanes = 0};
}
