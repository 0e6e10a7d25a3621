/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One run: what happens when, seen from one rank. It is one loop of small steps without a plan of
 * its own: whatever can be done next is done. */
#include "service/exec.h"

#include "base/print.h"

#include "transport/word.h"

#include <stdarg.h>
#include <stdio.h>

void fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word, uint64_t value)
{
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = {.region = service->control,
                           .offset = fy_word_offset(channel->theirs, word),
                           .value = value,
                           .op = FERRY_SIGNAL_SET};
    ferry_error why;
    ferry_status status = ferry_put_signal(service->transport, channel->peer, service->control, 0,
                                           &nothing, &signal, NULL, &why);
    if (status != FERRY_OK) {
        fy_run_fail(service, status, channel->peer, "%s", why.message);
    }
}

void fy_run_fail(ferry_service *service, ferry_status status, uint32_t culprit, const char *format,
                 ...)
{
    fy_exec *exec = service->exec;
    if (exec->status != FERRY_OK || exec->halted) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(exec->why.message, sizeof exec->why.message, format, arguments);
    va_end(arguments);
    exec->status = status;
    exec->culprit = culprit;
}

void fy_run_settle(ferry_service *service)
{
    if (service->is_dirty &&
        ferry_flush(service->transport, FERRY_ANY_RANK, NULL, NULL) == FERRY_OK) {
        service->is_dirty = false;
    }
}

static void reset_channel(fy_channel *channel, int64_t now_ns)
{
    channel->n_sent = channel->n_dealt = channel->n_consumed = 0;
    channel->turn = channel->granted = 0;
    channel->entered = channel->told = false;
    channel->heard_ns = now_ns;
    channel->bytes_out = channel->bytes_in = 0;
}

/* A run that could not begin is one all the same: nothing of it is here. */
static void miss_everything(ferry_service *service)
{
    fy_exec *exec = service->exec;
    exec->n_local = 0;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        reset_channel(&exec->channels[c], 0);
    }
    fy_targets_miss(service);
}

/* Letters of earlier runs that came when these were over. */
static void forget_letters(ferry_service *service, uint32_t last)
{
    static const fy_letter_use uses[] = {FY_LETTER_VOTE, FY_LETTER_VERDICT, FY_LETTER_HALT,
                                         FY_LETTER_ANSWER};
    ferry_world *world = service->world;
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        world->ops->forget(world, fy_letter_tag(uses[i], FY_THING_SERVICE, service->work.number, 0),
                           fy_letter_tag(uses[i], FY_THING_SERVICE, service->work.number, last));
    }
}

/* Peers may write here from their word on that this rank has entered. */
static void enter(ferry_service *service, bool is_ready, int64_t now_ns)
{
    fy_exec *exec = service->exec;
    fy_transport_hurry(service->transport, true);
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        reset_channel(&exec->channels[c], now_ns);
        if (is_ready) {
            fy_run_signal(service, &exec->channels[c], FY_WORD_ENTERED, exec->run);
        }
    }
    fy_transport_hurry(service->transport, false);
}

ferry_status fy_run_begin(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    ferry_status status = fy_transport_state(service->transport, error);
    if (status != FERRY_OK) {
        miss_everything(service);
        return status;
    }
    ferry_error why;
    ferry_status flushed = FERRY_OK;
    if (service->is_dirty) {
        flushed = ferry_flush(service->transport, FERRY_ANY_RANK, NULL, &why);
        service->is_dirty = flushed != FERRY_OK;
    }
    int64_t now_ns = fy_now_ns();
    exec->run = ++service->n_runs_begun;
    exec->n_local = 0;
    exec->n_away = 0;
    exec->gives = false;
    exec->status = FERRY_OK;
    exec->culprit = FERRY_ANY_RANK;
    exec->halted = exec->told_halt = false;
    exec->done_bytes = 0;
    exec->flush_ns = 0;
    exec->n_spans = 0;
    exec->waits_since_ns = 0;
    exec->called_ns = 0;
    exec->begin_ns = exec->tick_ns = exec->pulse_ns = now_ns;
    exec->outcome = (fy_outcome){0};
    forget_letters(service, exec->run - 1);
    fy_watch_begin(service);
    fy_turns_begin(exec);
    fy_work_begin(service->world, &service->work, exec->run);
    for (uint32_t i = 0; i < exec->n_parcels; i++) {
        exec->parcels[i].channel = FY_NONE;
    }
    fy_statistics_begin(service);
    fy_targets_begin(service);
    ferry_error reason;
    ferry_status refused = fy_take_refusal(service, &reason);
    enter(service, refused == FERRY_OK, now_ns);
    if (refused != FERRY_OK) {
        fy_run_fail(service, refused, service->world->rank, "%s", reason.message);
    }
    if (flushed != FERRY_OK) {
        fy_run_fail(service, flushed, FERRY_ANY_RANK, "%s", why.message);
    }
    return FERRY_OK;
}

static bool has_moved(const fy_exec *exec)
{
    if (exec->n_local < exec->local.n_items) {
        return false;
    }
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_channel *channel = &exec->channels[c];
        if (channel->n_sent < channel->out.n_items || channel->n_dealt < channel->in.n_items ||
            channel->n_consumed < channel->answers) {
            return false;
        }
    }
    return true;
}

bool fy_run_is_over(const ferry_service *service)
{
    return service->exec->outcome.phase == FY_PHASE_OVER;
}

/* Sends and receives first: what others wait for, and what they cannot do themselves. */
static bool move(ferry_service *service)
{
    bool worked = fy_receive_step(service);
    worked = fy_send_step(service) || worked;
    return worked || fy_local_step(service);
}

static bool gives_up(const fy_exec *exec)
{
    return exec->status != FERRY_OK || exec->halted;
}

/*
 * Before this rank votes, what it has put is where it belongs, so that a success is one and no
 * caller's memory is read after it. One that gives up for somebody's silence does not wait for an
 * answer, and nobody does for longer than a deadline. True when it may vote.
 */
static bool is_flushed(ferry_service *service)
{
    fy_exec *exec = service->exec;
    int64_t deadline = service->world->settings.deadline_ns;
    int64_t now_ns = fy_now_ns();
    uint32_t peer = FERRY_ANY_RANK;
    ferry_error why = {.message = ""};
    ferry_status status;
    if (exec->status == FERRY_ERR_TIMEOUT) {
        return true;
    }
    exec->flush_ns = exec->flush_ns == 0 ? now_ns : exec->flush_ns;
    status = fy_transport_try_flush(service->transport, &peer, &why);
    if (status == FERRY_OK) {
        service->is_dirty = false;
        return true;
    }
    if (status != FERRY_ERR_TIMEOUT || why.message[0] != '\0') {
        fy_run_fail(service, status, peer, "%s", why.message);
        return true;
    }
    if (now_ns - exec->flush_ns > deadline) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, peer,
                    "rank %u has not answered for %.1f s to what rank %u has put there", peer,
                    (double)(now_ns - exec->flush_ns) / 1e9, service->world->rank);
        return true;
    }
    return false;
}

static bool step(ferry_service *service)
{
    fy_exec *exec = service->exec;
    if (exec->outcome.phase != FY_PHASE_MOVING) {
        return fy_outcome_step(service);
    }
    if (!gives_up(exec) && !has_moved(exec)) {
        return move(service);
    }
    if (gives_up(exec)) {
        fy_outcome_give_up(service);
    }
    if (!is_flushed(service)) {
        return false;
    }
    if (gives_up(exec)) { /* for that flush */
        fy_outcome_give_up(service);
    }
    fy_outcome_begin(service);
    return true;
}

/* Whatever a peer does, nothing in a step waits for it. */
bool fy_run_step(ferry_service *service)
{
    if (fy_failed(service->world->failure)) {
        return fy_outcome_of_world(service);
    }
    fy_transport_hurry(service->transport, true);
    bool worked = step(service);
    fy_transport_hurry(service->transport, false);
    return worked;
}
