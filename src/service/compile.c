/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* From items to steps: all that an item has to wait for becomes rows of counters and values. */
#include "service/delta.h"
#include "service/send.h"

/* Before an item goes: its peer is there, has room for it, lets it come; and its bytes are here. */
static ferry_status wait_out(fy_service_program *program, const fy_channel *channel,
                             uint32_t number, uint32_t item, size_t *after, ferry_error *error)
{
    fy_program *steps = &program->steps;
    uint32_t consumed = channel->out.items[item].consumed;
    if (item == 0) {
        FY_TRY(fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_ENTERED), 1, 0, error));
    }
    if (consumed > 0) {
        FY_TRY(fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_CONSUMED), consumed, 0,
                                   error));
    }
    if (channel->in_turns) {
        FY_TRY(
            fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_TURN), item + 1, 0, error));
    }
    if (fy_delta_tells(program, &channel->out.items[item])) {
        FY_TRY(fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_DIGESTS), item + 1, 0,
                                   error));
    }
    for (; *after < channel->n_afters && channel->afters[*after].item == item; ++*after) {
        const fy_after *its = &channel->afters[*after];
        FY_TRY(fy_program_wait_add(steps, fy_counter_of(its->channel, FY_COUNTER_DEALT),
                                   its->n_items, 0, error));
    }
    return FERRY_OK;
}

static ferry_status compile_out(fy_service_program *program, const fy_channel *channel,
                                uint32_t number, ferry_error *error)
{
    fy_program *steps = &program->steps;
    bool shares = false;
    size_t after = 0;
    for (size_t i = 0; i < channel->out.n_items; i++) {
        shares = shares || fy_burst_takes(channel, &channel->out.items[i]);
    }
    FY_TRY(fy_program_lane_add(steps,
                               shares || channel->in_turns ? FY_GRADE_NETWORK : FY_GRADE_DIRECT,
                               true, false, error));
    for (uint32_t i = 0; i < channel->out.n_items; i++) {
        const fy_item *item = &channel->out.items[i];
        FY_TRY(fy_program_block_add(steps, item->order, error));
        FY_TRY(wait_out(program, channel, number, i, &after, error));
        if (program->own_digests > 0 && item->path == FERRY_PATH_STAGED) {
            FY_TRY(fy_program_step_add(steps, FY_STEP_MOVE, i | FY_DIGESTED, 1, error));
        }
        if (item->path != FERRY_PATH_REMOTE) {
            FY_TRY(fy_program_step_add(steps, FY_STEP_MOVE, i, 1, error));
        }
        if (fy_burst_takes(channel, item)) {
            FY_TRY(fy_program_step_add(steps, FY_STEP_PUT, i, 1, error));
        }
        FY_TRY(fy_program_step_add(steps, FY_STEP_SIGNAL, i, 1, error));
    }
    if (channel->answers == 0) {
        return FERRY_OK;
    }
    FY_TRY(fy_program_block_add(steps, UINT64_MAX, error));
    return fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_CONSUMED), channel->answers,
                               0, error);
}

/* Digests of what items will write over, as far ahead of item number `item` as a window reaches. */
static ferry_status digest_in(fy_service_program *program, const fy_channel *channel, uint32_t item,
                              uint32_t *n_told, ferry_error *error)
{
    fy_program *steps = &program->steps;
    for (; *n_told < channel->in.n_items && *n_told < item + FY_DELTA_WINDOW; ++*n_told) {
        if (fy_delta_tells(program, &channel->in.items[*n_told])) {
            uint32_t operand = *n_told | FY_DIGESTED;
            FY_TRY(fy_program_block_add(steps, 0, error));
            FY_TRY(fy_program_step_add(steps, FY_STEP_MOVE, operand, 1, error));
            FY_TRY(fy_program_step_add(steps, FY_STEP_SIGNAL, operand, 1, error));
        }
    }
    return FERRY_OK;
}

/* Before values are taken out of their slot: so many bands of those before are made. */
static ferry_status wait_made(fy_service_program *program, const fy_item *item, ferry_error *error)
{
    uint32_t counter = fy_counter_of(program->n_channels, 0);
    return item->n_made == 0
               ? FERRY_OK
               : fy_program_wait_add(&program->steps, counter, item->n_made, 0, error);
}

static ferry_status compile_in(fy_service_program *program, const fy_channel *channel,
                               uint32_t number, ferry_error *error)
{
    fy_program *steps = &program->steps;
    uint32_t n_told = 0;
    FY_TRY(fy_program_lane_add(steps, FY_GRADE_IN, true, false, error));
    for (uint32_t i = 0; i < channel->in.n_items; i++) {
        const fy_item *item = &channel->in.items[i];
        FY_TRY(digest_in(program, channel, i, &n_told, error));
        FY_TRY(fy_program_block_add(steps, item->order, error));
        FY_TRY(
            fy_program_wait_add(steps, fy_counter_of(number, FY_COUNTER_ARRIVED), i + 1, 0, error));
        FY_TRY(wait_made(program, item, error));
        if (item->path == FERRY_PATH_STAGED || program->checks_ends) {
            FY_TRY(fy_program_step_add(steps, FY_STEP_MOVE, i, 1, error));
        }
        FY_TRY(fy_program_step_add(steps, FY_STEP_SIGNAL, i, 1, error));
    }
    return FERRY_OK;
}

static ferry_status compile_local(fy_service_program *program, ferry_error *error)
{
    fy_program *steps = &program->steps;
    const fy_lane *local = &program->local;
    FY_TRY(fy_program_lane_add(steps, FY_GRADE_LOCAL, false, false, error));
    for (uint32_t i = 0; i < local->n_items; i++) {
        FY_TRY(fy_program_block_add(steps, i, error));
        FY_TRY(wait_made(program, &local->items[i], error));
        for (int phase = 0; phase < FY_LOCAL_PHASES; phase++) {
            FY_TRY(fy_program_step_add(steps, FY_STEP_MOVE, i, 1, error));
        }
        FY_TRY(fy_program_step_add(steps, FY_STEP_SIGNAL, i, 1, error));
    }
    return FERRY_OK;
}

ferry_status fy_service_compile(fy_service_program *program, ferry_error *error)
{
    fy_program *steps = &program->steps;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        const fy_channel *channel = &program->channels[c];
        FY_TRY(compile_out(program, channel, c, error));
        FY_TRY(compile_in(program, channel, c, error));
    }
    FY_TRY(compile_local(program, error));
    uint32_t n_counters = fy_counter_of(program->n_channels, 1); /* and that of bands */
    if (steps->n_counters < n_counters) {
        steps->n_counters = n_counters;
    }
    return FERRY_OK;
}
