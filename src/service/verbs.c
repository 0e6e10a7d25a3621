/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Which function does a step: by the lane's place among those of the channels. */
#include "base/checked.h"
#include "service/delta.h"
#include "service/send.h"

static bool is_local(const ferry_service *service, uint32_t lane)
{
    return lane == fy_lane_out(service->program->n_channels);
}

static fy_channel_state *channel_of(const ferry_service *service, uint32_t lane)
{
    return &service->run->channels[lane / 2];
}

static bool goes_out(uint32_t lane)
{
    return lane % 2 == 0;
}

/*
 * A step of digests: of what is told of an item before it comes, or of what is sent, before it
 * goes.
 */
static bool is_digested(const fy_program_step *step)
{
    return (step->first & FY_DIGESTED) != 0;
}

/*
 * What comes in and what stays here is limited by its counters: and a peer that waits for answers
 * is told soon. What is read again takes as long as to move it: nobody waits for all of it at once.
 */
static uint32_t take(void *context, uint32_t lane, const fy_program_step *first, uint32_t n)
{
    ferry_service *service = context;
    if (is_local(service, lane)) {
        return n;
    }
    fy_channel_state *state = channel_of(service, lane);
    if (goes_out(lane)) {
        return fy_send_take(service, state, first->first & ~FY_DIGESTED, n);
    }
    if (is_digested(first)) {
        return fy_delta_take(service, state, first->first & ~FY_DIGESTED, n);
    }
    bool takes_time = state->channel->in_answered || service->program->checks_ends;
    return takes_time ? (uint32_t)fy_min(n, FY_MOST_BURST) : n;
}

static fy_progress move(void *context, uint32_t lane, uint64_t turn, const fy_program_step *step)
{
    ferry_service *service = context;
    (void)turn;
    if (is_digested(step)) {
        return (goes_out(lane) ? fy_delta_look : fy_delta_move)(
            service, channel_of(service, lane), step->first & ~FY_DIGESTED, step->n);
    }
    return is_local(service, lane) ? fy_local_move(service)
           : goes_out(lane)
               ? fy_send_move(service, channel_of(service, lane), step->first, step->n)
               : fy_receive_move(service, channel_of(service, lane), step->first, step->n);
}

static fy_progress put(void *context, uint32_t lane, uint64_t turn, const fy_program_step *step)
{
    ferry_service *service = context;
    (void)turn;
    return fy_send_put(service, channel_of(service, lane), step->first, step->n);
}

static fy_progress signal(void *context, uint32_t lane, uint64_t turn, const fy_program_step *step)
{
    ferry_service *service = context;
    (void)turn;
    if (is_digested(step)) {
        return fy_delta_signal(service, channel_of(service, lane), step->first & ~FY_DIGESTED,
                               step->n);
    }
    return is_local(service, lane) ? fy_local_end(service)
           : goes_out(lane)
               ? fy_send_signal(service, channel_of(service, lane), step->first, step->n)
               : fy_receive_signal(service, channel_of(service, lane), step->first, step->n);
}

static void fail(void *context, uint32_t lane, ferry_status status, const ferry_error *why)
{
    ferry_service *service = context;
    (void)lane;
    fy_run_fail(service, status, service->world->rank, "%s", why->message);
}

static void drop(void *context, uint32_t lane)
{
    ferry_service *service = context;
    if (!is_local(service, lane) && goes_out(lane)) {
        fy_send_drop(service, channel_of(service, lane));
    }
}

const fy_verbs fy_service_verbs = {
    .take = take,
    .run = {[FY_STEP_MOVE] = move, [FY_STEP_PUT] = put, [FY_STEP_SIGNAL] = signal},
    .fail = fail,
    .drop = drop,
};
