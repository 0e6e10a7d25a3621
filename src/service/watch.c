/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is alive in a run. Each rank watches those that it waits for: the ranks next to it in the
 * tree of votes, from the first moment to the last, so that every member of the run is watched by
 * somebody however little it exchanges; and the peers of its channels as long as it waits for them.
 *
 * It asks them where they are, and their control threads answer, whatever their own threads do. A
 * rank that has begun the run must move it on; one that has not may take its time, but not longer
 * than the entry limit, nor in a call that this rank will not make while it waits (see
 * activity.h), nor outside of the world.
 *
 * That a peer moves its run on does not say that its bytes come through: so it also pulses on the
 * data plane, and silence there counts once it has entered.
 */
#include "service/run.h"

#include "transport/word.h"

#include <stdio.h>

/* How soon a neighbour is asked for the first time; then ever more seldom, it may compute for
 * hours. */
enum { FIRST_ASK_NS = 15 * 1000 * 1000 };

static void tell_halt(ferry_service *service, uint32_t rank)
{
    fy_run_letter(service, rank, FY_LETTER_HALT, NULL, 0);
}

void fy_watch_tell(ferry_service *service, uint32_t rank)
{
    tell_halt(service, rank);
}

void fy_watch_halt(ferry_service *service)
{
    fy_run_state *run = service->run;
    if (run->told_halt || fy_failed(service->world->failure)) {
        return;
    }
    run->told_halt = true;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        fy_run_signal(service, &service->program->channels[c], FY_WORD_HALT, run->number);
        tell_halt(service, service->program->channels[c].peer);
    }
}

void fy_watch_begin(ferry_service *service)
{
    fy_run_state *run = service->run;
    int64_t deadline = service->world->settings.deadline_ns;
    uint32_t n = 0;
    uint32_t ranks[FY_MOST_WATCHED];
    run->n_watched = fy_outcome_neighbours(service->world, ranks);
    for (n = 0; n < run->n_watched; n++) {
        run->watched[n] = (fy_watched){.rank = ranks[n],
                                       .heard_ns = run->begin_ns,
                                       .asked_ns = run->begin_ns,
                                       .pause_ns = FIRST_ASK_NS};
    }
    run->told_ns = run->begin_ns;
    run->ask_ns = deadline / 4;
}

static fy_watched *watched_of(fy_run_state *run, uint32_t rank)
{
    for (uint32_t i = 0; i < run->n_watched; i++) {
        if (run->watched[i].rank == rank) {
            return &run->watched[i];
        }
    }
    return NULL;
}

void fy_watch_voted(ferry_service *service, uint32_t rank)
{
    fy_watched *watched = watched_of(service->run, rank);
    if (watched != NULL) {
        watched->voted = true;
    }
}

bool fy_watch_has_voted(const ferry_service *service, uint32_t rank)
{
    const fy_watched *watched = watched_of(service->run, rank);
    return watched != NULL && watched->voted;
}

static void ask(ferry_service *service, uint32_t rank)
{
    fy_question question = {.kind = FY_OBJECT_SERVICE,
                            .number = service->work.number,
                            .run = service->run->number,
                            .tag = fy_run_tag(service, FY_LETTER_ANSWER)};
    service->world->ops->ask(service->world, rank, &question);
}

/* What a rank that has begun the run says of itself: in time of this rank. */
static void note_begun(ferry_service *service, uint32_t rank, const fy_answer *answer,
                       int64_t now_ns)
{
    fy_run_state *run = service->run;
    fy_watched *watched = watched_of(run, rank);
    const fy_channel *channel = fy_channel_of(service->program, rank);
    int64_t active = now_ns - answer->age_ns;
    int64_t entered = now_ns - answer->since_ns;
    if (watched != NULL) {
        bool news = !answer->over || !watched->over;
        watched->begun = true;
        watched->over = answer->over;
        watched->waits = answer->blocked && answer->kind == FY_OBJECT_SERVICE &&
                         answer->number == service->work.number;
        active = answer->over ? now_ns : active;
        watched->heard_ns = news && active > watched->heard_ns ? active : watched->heard_ns;
    }
    if (channel == NULL) {
        return;
    }
    fy_channel_state *state = &run->channels[fy_channel_number(service->program, channel)];
    if (!state->told) {
        state->told = true;
        state->heard_ns = entered > run->begin_ns ? entered : run->begin_ns;
    }
}

/* A rank that has not begun the run, and why it never will. */
static void judge_absent(ferry_service *service, uint32_t rank, const fy_answer *answer,
                         int64_t now_ns)
{
    ferry_world *world = service->world;
    fy_watched *watched = watched_of(service->run, rank);
    char theirs[FY_JOINT_TEXT_BYTES];
    if (answer->leaves) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, rank,
                      "rank %u has left the world, and a run of service %u that others have begun "
                      "waits for it",
                      rank, service->work.number);
    } else if (service->blocks && fy_answer_blocks(world->here, answer)) {
        fy_joint_format(&answer->joint, theirs);
        fy_world_fail(world, FERRY_ERR_MISUSE, rank,
                      "rank %u is in %s where rank %u is in ferry_service_run of service %u: all "
                      "ranks make the same calls in the same order",
                      rank, theirs, world->rank, service->work.number);
    } else if (answer->ended && watched != NULL) {
        /* It may be about to leave the world. */
        watched->ended_ns = watched->ended_ns == 0 ? now_ns : watched->ended_ns;
        if (now_ns - watched->ended_ns > world->settings.deadline_ns / 8) {
            fy_world_fail(world, FERRY_ERR_MISUSE, rank,
                          "rank %u has ended service %u by ferry_service_finalize where rank %u is "
                          "in ferry_service_run of it: all ranks make the same calls in the same "
                          "order",
                          rank, service->work.number, world->rank);
        }
    }
}

static void read_letters(ferry_service *service, int64_t now_ns)
{
    fy_run_state *run = service->run;
    ferry_world *world = service->world;
    unsigned char bytes[FY_ANSWER_BYTES];
    size_t n_bytes;
    uint32_t from;
    while (world->ops->take(world, FERRY_ANY_RANK, fy_run_tag(service, FY_LETTER_HALT), bytes,
                            sizeof bytes, &n_bytes, &from)) {
        run->halted = run->halted || run->status == FERRY_OK;
    }
    while (world->ops->take(world, FERRY_ANY_RANK, fy_run_tag(service, FY_LETTER_ANSWER), bytes,
                            sizeof bytes, &n_bytes, &from)) {
        fy_answer answer;
        if (!fy_answer_read(bytes, n_bytes, &answer)) {
            continue;
        }
        if (answer.begun) {
            note_begun(service, from, &answer, now_ns);
        } else {
            judge_absent(service, from, &answer, now_ns);
        }
    }
}

/*
 * The ranks next to this one in the tree of votes.
 */

/* The run cannot end without its vote, or its verdict. */
static bool is_owing(const ferry_service *service, const fy_watched *watched)
{
    bool is_parent = watched->rank < service->world->rank;
    return is_parent || !watched->voted;
}

static void say_late(ferry_service *service, const fy_watched *watched, int64_t now_ns,
                     char text[FERRY_ERROR_BYTES])
{
    const fy_run_state *run = service->run;
    if (watched->begun) {
        snprintf(text, FERRY_ERROR_BYTES,
                 "rank %u has entered the run of service %u, and has not moved it on for %.1f s",
                 watched->rank, service->work.number, (double)(now_ns - watched->heard_ns) / 1e9);
    } else {
        snprintf(text, FERRY_ERROR_BYTES,
                 "rank %u has not entered the run of service %u that rank %u began %.1f s ago",
                 watched->rank, service->work.number, service->world->rank,
                 (double)(now_ns - run->begin_ns) / 1e9);
    }
}

/*
 * Who is late makes this rank give up, and with it all that hear of it. One that does not vote for
 * half a deadline after that, or holds up those that have voted for a success, ends the world:
 * nobody else can say how the run has ended.
 */
static void check_neighbour(ferry_service *service, const fy_watched *watched, int64_t now_ns)
{
    fy_run_state *run = service->run;
    int64_t deadline = service->world->settings.deadline_ns;
    int64_t entry_ns = service->world->settings.entry_ns;
    bool is_late = watched->begun ? now_ns - watched->heard_ns > deadline
                                  : entry_ns >= 0 && now_ns - run->begin_ns > entry_ns;
    char text[FERRY_ERROR_BYTES];
    if (!is_late || !is_owing(service, watched)) {
        return;
    }
    if (watched->begun && watched->waits &&
        fy_world_may_only_be_slow(service->world, watched->rank, now_ns - watched->heard_ns)) {
        return;
    }
    say_late(service, watched, now_ns, text);
    if (run->outcome.phase == FY_PHASE_MOVING) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, watched->rank, "%s", text);
        return;
    }
    bool gave_up = run->status != FERRY_OK || run->halted;
    if (!gave_up || now_ns - run->outcome.voted_ns > deadline / 2) {
        fy_world_fail(service->world, FERRY_ERR_TIMEOUT, watched->rank, "%s", text);
    }
}

/* One that has not answered or not begun is asked ever more seldom; but often enough to see in
 * time when one that has begun stops. */
static void ask_neighbour(ferry_service *service, fy_watched *watched, int64_t now_ns)
{
    int64_t most = service->world->settings.deadline_ns / 8;
    if (is_owing(service, watched) && now_ns - watched->asked_ns > watched->pause_ns) {
        watched->asked_ns = now_ns;
        watched->pause_ns = watched->pause_ns * 2 < most ? watched->pause_ns * 2 : most;
        ask(service, watched->rank);
    }
}

/*
 * Peers of channels.
 */

/* Any change of a channel's words. */
static uint64_t words_of(const ferry_service *service, uint32_t number)
{
    char *base = ferry_region_base(service->control);
    uint64_t sum = 0;
    for (uint32_t w = 0; w < FY_WORD_HALT; w++) {
        sum = sum * 31 + atomic_load(fy_word_at(base, fy_word_offset(number, w)));
    }
    return sum;
}

static void check_channel(ferry_service *service, uint32_t number, int64_t now_ns, bool asks)
{
    fy_run_state *run = service->run;
    fy_channel_state *state = &run->channels[number];
    uint32_t peer = state->channel->peer;
    int64_t deadline = service->world->settings.deadline_ns;
    int64_t entry_ns = service->world->settings.entry_ns;
    uint64_t words = words_of(service, number);
    if (words != state->seen) {
        state->seen = words;
        state->heard_ns = now_ns;
    }
    if (!fy_channel_awaits(state)) {
        return;
    }
    int64_t silent_ns = now_ns - state->heard_ns;
    if ((state->entered || state->told) && silent_ns > deadline) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, peer,
                    "rank %u has entered the run, and for %.1f s nothing of it has reached rank %u",
                    peer, (double)silent_ns / 1e9, service->world->rank);
    } else if (!state->entered && !state->told && entry_ns >= 0 &&
               now_ns - run->begin_ns > entry_ns) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, peer,
                    "rank %u has not entered the run that rank %u began %.1f s ago", peer,
                    service->world->rank, (double)(now_ns - run->begin_ns) / 1e9);
    } else if (!state->entered && !state->told && asks) {
        ask(service, peer);
    }
}

/*
 * Who notices a silence first may be the silent rank itself, to which all others are silent. What
 * most of them say counts.
 */
void fy_watch_testify(ferry_service *service)
{
    fy_run_state *run = service->run;
    const fy_channel_state *silent = NULL;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        const fy_channel_state *state = &run->channels[c];
        bool is_earlier = silent == NULL || state->heard_ns < silent->heard_ns;
        silent = fy_channel_awaits(state) && is_earlier ? state : silent;
    }
    int64_t silent_ns = silent == NULL ? 0 : fy_now_ns() - silent->heard_ns;
    if (silent_ns > service->world->settings.deadline_ns / 2) {
        run->halted = false;
        fy_run_fail(service, FERRY_ERR_TIMEOUT, silent->channel->peer,
                    "for %.1f s nothing of rank %u has reached rank %u", (double)silent_ns / 1e9,
                    silent->channel->peer, service->world->rank);
        run->halted = true;
    }
}

/* Each is looked at so often in a deadline that when it was heard of is known well enough. */
enum { LOOKS_PER_DEADLINE = 16 };

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static int64_t tick_interval(const ferry_service *service)
{
    return clamp(service->world->settings.deadline_ns / LOOKS_PER_DEADLINE, 5000000, 10000000);
}

static void forgive(ferry_service *service, int64_t now_ns)
{
    fy_run_state *run = service->run;
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        run->channels[c].heard_ns = now_ns;
    }
    for (uint32_t i = 0; i < run->n_watched; i++) {
        run->watched[i].heard_ns = now_ns;
    }
}

/*
 * Of many channels some at each tick: as many as are due for the time since the last one, for a
 * rank that sleeps, or shares its core with many, has few ticks.
 */
static uint32_t checked_at_once(const ferry_service *service, int64_t passed_ns)
{
    uint64_t round_ns = (uint64_t)service->world->settings.deadline_ns / LOOKS_PER_DEADLINE;
    uint64_t passed = (uint64_t)passed_ns;
    uint32_t n = service->program->n_channels;
    return passed < round_ns ? (uint32_t)((n * passed + round_ns - 1) / round_ns) : n;
}

static void check_channels(ferry_service *service, int64_t now_ns, int64_t passed_ns)
{
    fy_run_state *run = service->run;
    uint32_t n_channels = service->program->n_channels, n = checked_at_once(service, passed_ns);
    bool asks = now_ns - run->told_ns > run->ask_ns;
    if (asks) {
        run->told_ns = now_ns;
        run->ask_ns *= 2;
        n = n_channels;
    }
    for (; run->outcome.phase == FY_PHASE_MOVING && n > 0; n--) {
        run->next_checked = run->next_checked + 1 < n_channels ? run->next_checked + 1 : 0;
        check_channel(service, run->next_checked, now_ns, asks);
    }
}

static void pulse(ferry_service *service, int64_t now_ns)
{
    fy_run_state *run = service->run;
    if (now_ns - run->pulse_ns <= service->world->settings.deadline_ns / 4) {
        return;
    }
    run->pulse_ns = now_ns;
    fy_transport_hurry(service->transport, true);
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        fy_run_leave_word(service, &service->program->channels[c], FY_WORD_PULSE, (uint64_t)now_ns);
    }
    fy_transport_hurry(service->transport, false);
}

void fy_watch_tick(ferry_service *service)
{
    fy_run_state *run = service->run;
    int64_t now_ns = fy_now_ns();
    int64_t deadline = service->world->settings.deadline_ns;
    atomic_store_explicit(&service->work.active_ns, now_ns, memory_order_relaxed);
    if (now_ns - run->tick_ns < tick_interval(service) || run->outcome.phase == FY_PHASE_OVER) {
        return;
    }
    /* Whoever was away itself cannot say how long the others were silent. */
    int64_t passed_ns = now_ns - run->tick_ns;
    bool was_away = passed_ns > deadline / 2;
    run->tick_ns = now_ns;
    read_letters(service, now_ns);
    if (was_away) {
        forgive(service, now_ns);
    }
    pulse(service, now_ns);
    check_channels(service, now_ns, passed_ns);
    for (uint32_t i = 0; i < run->n_watched; i++) {
        check_neighbour(service, &run->watched[i], now_ns);
        ask_neighbour(service, &run->watched[i], now_ns);
    }
}
