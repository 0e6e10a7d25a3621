/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is alive in a run. A rank pulses to its peers as long as it is in one, so silence on the data
 * plane means that it does not move its run on, or that its bytes are lost. A peer that has not
 * entered may take its time; but whether it has is asked on the control plane too, for its word may
 * be what was lost.
 */
#include "service/exec.h"

#include "transport/word.h"

#include <string.h>

enum { ASK = 1, HERE = 2, HALT = 3, LEFT = 4 };

typedef struct letter {
    uint64_t service;
    uint32_t run;
    uint32_t kind;
    int64_t  since_ns; /* how long the sender has been in the run */
} letter;

static void send_letter(ferry_service *service, uint32_t to, uint32_t kind)
{
    const fy_exec *exec    = service->exec;
    letter         message = {.service  = service->identity,
                              .run      = exec->run,
                              .kind     = kind,
                              .since_ns = fy_now_ns() - exec->begin_ns};
    fy_letter(service, to, FY_TAG_WATCH, &message, sizeof message);
}

void fy_watch_tell(ferry_service *service, uint32_t rank)
{
    send_letter(service, rank, HALT);
}

void fy_watch_leave(ferry_service *service, uint32_t rank)
{
    letter message = {.service = service->identity, .run = service->n_runs_begun, .kind = LEFT};
    fy_letter(service, rank, FY_TAG_WATCH, &message, sizeof message);
}

void fy_watch_halt(ferry_service *service)
{
    fy_exec *exec = service->exec;
    if (exec->told_halt || fy_failed(service->world->failure)) {
        return;
    }
    exec->told_halt = true;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        fy_run_signal(service, &exec->channels[c], FY_WORD_HALT, exec->run);
        send_letter(service, exec->channels[c].peer, HALT);
    }
}

static void read_letters(ferry_service *service)
{
    fy_exec    *exec = service->exec;
    const void *bytes;
    size_t      n_bytes;
    uint32_t    from;
    while (ferry_world_receive(service->world, FERRY_ANY_RANK, FY_TAG_WATCH, 0, &bytes, &n_bytes,
                               &from, NULL) == FERRY_OK) {
        letter message;
        if (n_bytes != sizeof message) {
            continue;
        }
        memcpy(&message, bytes, sizeof message);
        fy_channel *channel = fy_channel_of(exec, from);
        if (message.service == service->identity && message.kind == LEFT &&
            message.run < exec->run) {
            fy_world_fail(service->world, FERRY_ERR_MISUSE, from,
                          "rank %u has ended its service, and rank %u is in a run of it", from,
                          service->world->rank);
        }
        if (message.service != service->identity || message.run != exec->run) {
            continue;
        }
        if (message.kind == HALT) {
            exec->halted = exec->halted || exec->status == FERRY_OK;
        } else if (channel == NULL) {
            continue;
        } else if (message.kind == ASK) {
            send_letter(service, from, HERE);
        } else if (message.kind == HERE && !channel->told) {
            int64_t entered_ns = fy_now_ns() - message.since_ns;
            channel->told      = true;
            channel->heard_ns  = entered_ns > exec->begin_ns ? entered_ns : exec->begin_ns;
        }
    }
}

/* Any change of a channel's words. */
static uint64_t words_of(const ferry_service *service, uint32_t number)
{
    char    *base = ferry_region_base(service->control);
    uint64_t sum  = 0;
    for (uint32_t w = 0; w < FY_WORD_HALT; w++) {
        sum = sum * 31 + atomic_load(fy_word_at(base, fy_word_offset(number, w)));
    }
    return sum;
}

static bool is_awaited(const fy_channel *channel)
{
    return channel->n_sent < channel->out.n_items || channel->n_dealt < channel->in.n_items ||
           channel->n_consumed < channel->answers;
}

static void check_channel(ferry_service *service, uint32_t number, int64_t now_ns, bool asks)
{
    fy_exec    *exec     = service->exec;
    fy_channel *channel  = &exec->channels[number];
    int64_t     deadline = service->world->settings.deadline_ns;
    int64_t     entry_ns = service->world->settings.entry_ns;
    uint64_t    words    = words_of(service, number);
    if (words != channel->seen) {
        channel->seen     = words;
        channel->heard_ns = now_ns;
    }
    if (!is_awaited(channel)) {
        return;
    }
    int64_t silent_ns = now_ns - channel->heard_ns;
    if ((channel->entered || channel->told) && silent_ns > deadline) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, channel->peer,
                    "rank %u has entered the run, and for %.1f s nothing of it has reached rank %u",
                    channel->peer, (double)silent_ns / 1e9, service->world->rank);
    } else if (!channel->entered && !channel->told && entry_ns > 0 &&
               now_ns - exec->begin_ns > entry_ns) {
        fy_run_fail(service, FERRY_ERR_TIMEOUT, channel->peer,
                    "rank %u has not entered the run that rank %u began %.1f s ago", channel->peer,
                    service->world->rank, (double)(now_ns - exec->begin_ns) / 1e9);
    } else if (!channel->entered && !channel->told && asks) {
        send_letter(service, channel->peer, ASK);
    }
}

/*
 * Who notices a silence first may be the silent rank itself, to which all others are silent. What
 * most of them say counts.
 */
void fy_watch_testify(ferry_service *service)
{
    fy_exec          *exec   = service->exec;
    const fy_channel *silent = NULL;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        const fy_channel *channel    = &exec->channels[c];
        bool              is_earlier = silent == NULL || channel->heard_ns < silent->heard_ns;
        silent                       = is_awaited(channel) && is_earlier ? channel : silent;
    }
    int64_t silent_ns = silent == NULL ? 0 : fy_now_ns() - silent->heard_ns;
    if (silent_ns > service->world->settings.deadline_ns / 2) {
        exec->halted = false;
        fy_run_fail(service, FERRY_ERR_TIMEOUT, silent->peer,
                    "for %.1f s nothing of rank %u has reached rank %u", (double)silent_ns / 1e9,
                    silent->peer, service->world->rank);
        exec->halted = true;
    }
}

/*
 * A rank that was found silent and does not vote either, though all are told to give up, ends the
 * world: nobody else can say how the run has ended.
 */
static void check_votes(ferry_service *service, int64_t now_ns)
{
    const fy_exec *exec = service->exec;
    if (exec->outcome.phase == FY_PHASE_VOTING && exec->status == FERRY_ERR_TIMEOUT &&
        now_ns - exec->outcome.voted_ns > service->world->settings.deadline_ns) {
        fy_world_fail(service->world, FERRY_ERR_TIMEOUT, exec->culprit, "%s", exec->why.message);
    }
}

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static int64_t tick_interval(const ferry_service *service)
{
    return clamp(service->world->settings.deadline_ns / 16, 5000000, 100000000);
}

void fy_watch_tick(ferry_service *service)
{
    fy_exec *exec     = service->exec;
    int64_t  now_ns   = fy_now_ns();
    int64_t  interval = tick_interval(service);
    int64_t  deadline = service->world->settings.deadline_ns;
    if (now_ns - exec->tick_ns < interval || exec->outcome.phase == FY_PHASE_OVER) {
        return;
    }
    /* Whoever was away itself cannot say how long the others were silent. */
    bool was_away = now_ns - exec->tick_ns > deadline / 2;
    exec->tick_ns = now_ns;
    read_letters(service);
    if (now_ns - exec->pulse_ns > deadline / 4) {
        exec->pulse_ns = now_ns;
        for (uint32_t c = 0; c < exec->n_channels; c++) {
            fy_run_signal(service, &exec->channels[c], FY_WORD_PULSE, (uint64_t)now_ns);
        }
    }
    check_votes(service, now_ns);
    bool asks = now_ns - exec->told_ns > exec->ask_ns;
    if (asks) {
        /* Letters stay with a peer until it enters: ever more seldom, for it may take hours. */
        exec->told_ns = now_ns;
        exec->ask_ns *= 2;
    }
    for (uint32_t c = 0; exec->outcome.phase == FY_PHASE_MOVING && c < exec->n_channels; c++) {
        if (was_away) {
            exec->channels[c].heard_ns = now_ns;
        }
        check_channel(service, c, now_ns, asks);
    }
}
