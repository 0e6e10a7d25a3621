/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* One run: what happens when, seen from one rank. It is one loop of small steps without a plan of
 * its own: whatever can be done next is done. */
#include "service/delta.h"
#include "service/send.h"

#include "base/alloc.h"

#include "base/print.h"

#include "transport/region.h"
#include "transport/word.h"

#include <stdarg.h>
#include <stdio.h>

/* Of one run's trace. */
static size_t n_spans(const fy_service_program *program)
{
    size_t n = 64 + 2 * program->local.n_items;
    for (uint32_t c = 0; c < program->n_channels; c++) {
        n += 3 * (program->channels[c].out.n_items + program->channels[c].in.n_items);
    }
    return n;
}

ferry_status fy_run_state_create(ferry_service *service, fy_run_state **run_out, ferry_error *error)
{
    const fy_service_program *program = service->program;
    uint32_t n = program->n_channels;
    fy_run_state *run = fy_alloc_zeroed(1, sizeof *run);
    FY_TRY(fy_check_memory(run != NULL, "a schedule's runs", error));
    run->channels = fy_alloc_zeroed(n, sizeof *run->channels);
    run->same_round = fy_alloc(n, sizeof *run->same_round);
    bool has_all = run->channels != NULL && run->same_round != NULL;
    for (int aside = 0; aside < 2; aside++) {
        run->packed.parcels[aside] =
            fy_alloc(program->packing[aside].n, sizeof *run->packed.parcels[aside]);
        has_all = has_all && run->packed.parcels[aside] != NULL;
    }
    run->packed.away = fy_alloc(program->packing[true].n, sizeof *run->packed.away);
    has_all = has_all && run->packed.away != NULL;
    if (program->checks_ends) {
        run->hashes = fy_alloc(program->n_hashes + 1, sizeof *run->hashes);
        run->found = fy_alloc(program->n_found + 1, sizeof *run->found);
        has_all = has_all && run->hashes != NULL && run->found != NULL;
    }
    if (service->options.trace) {
        run->span_capacity = n_spans(program);
        run->spans = fy_alloc(run->span_capacity, sizeof *run->spans);
        has_all = has_all && run->spans != NULL;
    }
    if (!has_all) {
        fy_run_state_destroy(run);
        return fy_fail_no_memory(error, "a schedule's runs");
    }
    for (uint32_t c = 0; c < n; c++) {
        run->channels[c].channel = &program->channels[c];
    }
    ferry_status status = fy_heap_open(&run->turns, n, error);
    FY_THEN(status, fy_moves_open(service, &run->moves, error));
    FY_THEN(status, fy_delta_open(service, run, error));
    FY_THEN(status, fy_makings_open(service, run, error));
    if (status != FERRY_OK) {
        fy_run_state_destroy(run);
        return status;
    }
    *run_out = run;
    return FERRY_OK;
}

ferry_status fy_run_state_furnish(ferry_service *service, ferry_error *error)
{
    fy_run_state *run = service->run;
    return fy_drive_open(&run->drive, &service->program->steps,
                         run->moves == NULL ? NULL : &run->moves->queues, error);
}

void fy_run_state_destroy(fy_run_state *run)
{
    if (run != NULL) {
        fy_moves_close(run->moves);
        fy_drive_close(&run->drive);
        fy_heap_close(&run->turns);
        fy_delta_close(run);
        fy_free(run->channels);
        fy_free(run->same_round);
        fy_free(run->packed.parcels[false]);
        fy_free(run->packed.parcels[true]);
        fy_free(run->packed.away);
        fy_free(run->hashes);
        fy_free(run->found);
        fy_free(run->spans);
        fy_rings_close(run);
        fy_free(run->made.scratch);
        fy_free(run->made.left);
        fy_free(run);
    }
}

void fy_run_signal(ferry_service *service, const fy_channel *channel, uint32_t word, uint64_t value)
{
    ferry_buffer nothing = ferry_buffer_of(NULL, 0);
    ferry_signal signal = {.region = service->control,
                           .offset = fy_word_offset(channel->theirs, word),
                           .value = value,
                           .op = FERRY_SIGNAL_SET};
    ferry_error why;
    ferry_status status = ferry_transport_put_signal(
        service->transport, channel->peer, service->control, 0, &nothing, &signal, NULL, &why);
    if (status != FERRY_OK) {
        fy_run_fail(service, status, channel->peer, "%s", why.message);
    }
}

void fy_run_leave_word(ferry_service *service, const fy_channel *channel, uint32_t word,
                       uint64_t value)
{
    void *theirs = ferry_region_pointer(service->control, channel->peer);
    uint64_t offset = fy_word_offset(channel->theirs, word);
    if (theirs == NULL) {
        fy_run_signal(service, channel, word, value);
        return;
    }
    fy_word_raise(fy_word_at(theirs, offset), value, FERRY_SIGNAL_SET);
    fy_word_note(theirs, fy_region_noted(service->control), offset);
}

uint64_t fy_run_tag(const ferry_service *service, fy_letter_use use)
{
    return fy_letter_tag(use, FY_OBJECT_SERVICE, service->work.number, service->run->number);
}

void fy_run_letter(ferry_service *service, uint32_t to, fy_letter_use use, const void *bytes,
                   size_t n_bytes)
{
    ferry_world *world = service->world;
    ferry_error why;
    if (fy_failed(world->failure)) {
        return;
    }
    ferry_status status =
        world->ops->send(world, to, fy_run_tag(service, use), bytes, n_bytes, false, &why);
    if (status != FERRY_OK) {
        fy_world_fail(world, status, world->rank, "rank %u could not tell rank %u: %s", world->rank,
                      to, why.message);
    }
}

void fy_run_fail(ferry_service *service, ferry_status status, uint32_t culprit, const char *format,
                 ...)
{
    fy_run_state *run = service->run;
    if (run->status != FERRY_OK || run->halted) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    fy_vprint(run->why.message, sizeof run->why.message, format, arguments);
    va_end(arguments);
    run->status = status;
    run->culprit = culprit;
}

void fy_run_settle(ferry_service *service)
{
    if (service->is_dirty &&
        ferry_transport_flush(service->transport, FERRY_ANY_RANK, NULL, NULL) == FERRY_OK) {
        service->is_dirty = false;
    }
}

static void reset_channel(fy_channel_state *state, int64_t now_ns)
{
    state->n_sent = state->n_dealt = state->n_consumed = 0;
    state->granted = 0;
    state->untold_bytes = 0;
    state->skipping = state->skipped = 0;
    state->entered = state->told = false;
    state->heard_ns = now_ns;
}

/* A run that could not begin is one all the same: nothing of it is here. */
static void miss_everything(ferry_service *service)
{
    fy_run_state *run = service->run;
    run->n_local = 0;
    run->products.n_done = 0;
    run->made.n = 0;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        reset_channel(&run->channels[c], 0);
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
        world->ops->forget(world,
                           fy_letter_tag(uses[i], FY_OBJECT_SERVICE, service->work.number, 0),
                           fy_letter_tag(uses[i], FY_OBJECT_SERVICE, service->work.number, last));
    }
}

/*
 * Peers may write here from their word on that this rank has entered, and let it have its turn: who
 * does neither is not woken for it.
 */
static void enter(ferry_service *service, bool is_ready, int64_t now_ns)
{
    fy_run_state *run = service->run;
    fy_transport_hurry(service->transport, true);
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        const fy_channel *channel = &service->program->channels[c];
        reset_channel(&run->channels[c], now_ns);
        if (is_ready && (channel->in.n_items > 0 || channel->in_turns)) {
            fy_run_signal(service, channel, FY_WORD_ENTERED, run->number);
        } else if (is_ready) {
            fy_run_leave_word(service, channel, FY_WORD_ENTERED, run->number);
        }
    }
    fy_transport_hurry(service->transport, false);
}

static ferry_status check_version(const ferry_service *service, ferry_error *error)
{
    if (service->n_begun >= FY_MOST_VERSION) { /* all ranks are behind it together */
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "version %llu was the last one: a service that goes on needs a smaller "
                       "first_version",
                       (unsigned long long)service->n_begun);
    }
    return FERRY_OK;
}

/* Nothing of the run before is left; who may still be at work on that has been waited for. */
static void reset(ferry_service *service, int64_t now_ns)
{
    fy_run_state *run = service->run;
    run->number = ++service->n_runs_begun;
    run->n_local = 0;
    run->scaled.n_done = 0;
    run->scaled.n_bands = 0;
    run->products.n_done = 0;
    run->products.n_bands = 0;
    run->made.n = 0;
    run->made.n_bands = 0;
    fy_bands_begin(service);
    run->local_phase = 0;
    run->delta.local_skipping = run->delta.local_skipped = 0;
    run->n_away = 0;
    run->gives = false;
    run->looks_at_all = true;
    fy_heap_empty(&run->turns);
    fy_drive_begin(&run->drive, &service->program->steps, &fy_service_verbs, service, 1);
    run->status = FERRY_OK;
    run->culprit = FERRY_ANY_RANK;
    run->halted = run->told_halt = false;
    run->done_bytes = 0;
    run->flush_ns = 0;
    run->n_spans = 0;
    run->waits_since_ns = 0;
    run->called_ns = 0;
    run->begin_ns = run->tick_ns = run->pulse_ns = now_ns;
    run->outcome = (fy_outcome){0};
    for (int aside = 0; aside < 2; aside++) {
        for (uint32_t i = 0; i < service->program->packing[aside].n; i++) {
            run->packed.parcels[aside][i].channel = FY_NONE;
        }
    }
    run->packed.first_away = run->packed.n_away = 0;
}

ferry_status fy_run_begin(ferry_service *service, ferry_error *error)
{
    fy_run_state *run = service->run;
    FY_TRY(check_version(service, error));
    ferry_status status = fy_transport_state(service->transport, error);
    if (status != FERRY_OK) {
        miss_everything(service);
        return status;
    }
    ferry_error why;
    ferry_status flushed = FERRY_OK;
    if (service->is_dirty) {
        flushed = ferry_transport_flush(service->transport, FERRY_ANY_RANK, NULL, &why);
        service->is_dirty = flushed != FERRY_OK;
    }
    int64_t now_ns = fy_now_ns();
    reset(service, now_ns);
    forget_letters(service, run->number - 1);
    fy_watch_begin(service);
    fy_turns_begin(run);
    fy_work_begin(service->world, &service->work, run->number);
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

bool fy_run_is_over(const ferry_service *service)
{
    return service->run->outcome.phase == FY_PHASE_OVER;
}

/* Sends and receives first: what others wait for, and what they cannot do themselves. */
static bool move(ferry_service *service)
{
    bool worked = fy_drive_reap(&service->run->drive);
    worked = fy_receive_step(service) || worked;
    worked = fy_makings_step(service) || worked;
    worked = fy_aside_tell(service) || worked;
    if (fy_scales_step(service)) { /* nothing is sent before they are there */
        return true;
    }
    worked = fy_send_step(service) || worked;
    return worked || fy_local_step(service);
}

static bool gives_up(const fy_run_state *run)
{
    return run->status != FERRY_OK || run->halted;
}

/*
 * Before this rank votes, what it has put is where it belongs, so that a success is one and no
 * caller's memory is read after it. One that gives up for somebody's silence does not wait for an
 * answer, and nobody does for longer than a deadline. True when it may vote.
 */
static bool is_flushed(ferry_service *service)
{
    fy_run_state *run = service->run;
    int64_t deadline = service->world->settings.deadline_ns;
    int64_t now_ns = fy_now_ns();
    uint32_t peer = FERRY_ANY_RANK;
    ferry_error why = {.message = ""};
    ferry_status status;
    if (run->status == FERRY_ERR_TIMEOUT) {
        return true;
    }
    run->flush_ns = run->flush_ns == 0 ? now_ns : run->flush_ns;
    status = fy_aside_is_there(service, &peer, &why);
    FY_THEN(status, fy_transport_try_flush(service->transport, &peer, &why));
    if (status == FERRY_OK) {
        service->is_dirty = false;
        return true;
    }
    if (status != FERRY_ERR_TIMEOUT || why.message[0] != '\0') {
        fy_run_fail(service, status, peer, "%s", why.message);
        return true;
    }
    if (now_ns - run->flush_ns > deadline) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, peer,
                    "rank %u has not answered for %.1f s to what rank %u has put there", peer,
                    (double)(now_ns - run->flush_ns) / 1e9, service->world->rank);
        return true;
    }
    return false;
}

/* Nothing is under way any more, nor does anybody's memory stay open for it. */
static bool has_stopped(ferry_service *service)
{
    fy_run_state *run = service->run;
    if (!fy_drive_is_still(&run->drive) || !fy_makings_are_still(service, gives_up(run))) {
        return false;
    }
    for (uint32_t c = 0; gives_up(run) && c < service->program->n_channels; c++) {
        fy_send_drop(service, &run->channels[c]);
    }
    return true;
}

static bool step(ferry_service *service)
{
    fy_run_state *run = service->run;
    if (run->outcome.phase != FY_PHASE_MOVING) {
        return fy_outcome_step(service);
    }
    if (!gives_up(run) && run->drive.n_left > 0) {
        return move(service);
    }
    if (!gives_up(run) && fy_makings_step(service)) {
        return true;
    }
    if (gives_up(run)) {
        fy_outcome_give_up(service);
    }
    if (has_stopped(service) && fy_products_step(service)) {
        return true;
    }
    if (!has_stopped(service) || !is_flushed(service)) {
        return false;
    }
    if (gives_up(run)) { /* for that flush */
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
