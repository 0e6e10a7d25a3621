/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is to send to this rank. Rounds are conflict-free, but ranks are not in step: a
 * sender that is ahead would share the port of a receiver with one that is behind, and leave its
 * own half idle. So a receiver lets items come in the order of rounds, a few at a time, those of
 * the next round as soon as few of the last are left to come. A sender that has not entered the run
 * holds nobody up, and has its turn when it comes.
 *
 * No ring of ranks waits for itself: of the lowest round that is not finished anywhere, the
 * receiver has no lower one to let come first, and the sender none to send.
 */
#include "service/run.h"

enum { LEAST_GRANT = 2 };

/*
 * What is on its way to this rank at once should take about so long to come: enough that its port
 * never idles, and little enough that what is granted to the next sender does not wait behind it in
 * the network's queues.
 */
static const int64_t ON_THE_WAY_NS = 4000000;

/* So much is a sample of the rate. */
enum { SAMPLE_BYTES = 8 * FY_NETWORK_BYTES };

/* Items of one round on one channel, from the first that has not been dealt with. */
typedef struct turn {
    fy_channel_state *state;
    uint64_t round;
    uint32_t first;
    uint32_t n; /* counted no further than it matters */
} turn;

void fy_turns_await(fy_run_state *run, uint32_t channel)
{
    const fy_channel_state *state = &run->channels[channel];
    const fy_lane *in = &state->channel->in;
    if (state->channel->in_turns && state->entered && state->n_dealt < in->n_items) {
        fy_heap_set(&run->turns, channel, in->items[state->n_dealt].order);
    } else {
        fy_heap_remove(&run->turns, channel);
    }
}

/* The first round of a channel that is not below `least`. */
static turn first_turn(fy_channel_state *state, uint64_t least)
{
    const fy_lane *in = &state->channel->in;
    turn found = {.state = NULL};
    for (uint32_t i = state->n_dealt; i < in->n_items && found.n < FY_MOST_WINDOW; i++) {
        uint64_t round = in->items[i].order;
        if (found.state == NULL && round >= least) {
            found = (turn){.state = state, .round = round, .first = i};
        }
        if (found.state != NULL && round != found.round) {
            break;
        }
        found.n += found.state != NULL;
    }
    return found;
}

static bool is_before(const turn *its, const turn *other)
{
    return its->state != NULL && (other->state == NULL || its->round < other->round);
}

/* Who has the first round that is not below `least`: of those that are below it, a later one. */
static turn next_turn(ferry_service *service, uint64_t least)
{
    fy_run_state *run = service->run;
    turn best = {.state = NULL};
    uint32_t first, n = 0;
    while ((first = fy_heap_first(&run->turns)) != FY_NOBODY) {
        bool is_below = run->turns.keys[first] < least;
        turn its = first_turn(&run->channels[first], least);
        best = is_before(&its, &best) ? its : best;
        if (!is_below) {
            break;
        }
        run->same_round[n++] = first;
        fy_heap_remove(&run->turns, first);
    }
    while (n > 0) {
        fy_turns_await(run, run->same_round[--n]);
    }
    return best;
}

/* Small grants are saved up, but for the last items of a round. */
static void grant(ferry_service *service, const turn *its, uint32_t n)
{
    fy_channel_state *state = its->state;
    uint32_t up_to = its->first + n;
    bool is_end = n == its->n;
    if (up_to >= state->granted + LEAST_GRANT || (is_end && up_to > state->granted)) {
        state->granted = up_to;
        fy_run_signal(service, state->channel, FY_WORD_TURN,
                      (uint64_t)service->run->number << 32 | state->granted);
    }
}

void fy_turns_arrived(fy_run_state *run, uint64_t bytes)
{
    fy_turn_window *window = &run->window;
    int64_t now_ns = fy_now_ns();
    if (window->since_ns == 0) { /* from the first that comes: before it the run stood still */
        window->since_ns = now_ns;
        return;
    }
    window->bytes += bytes;
    if (window->bytes < SAMPLE_BYTES) {
        return;
    }
    int64_t taken_ns = now_ns - window->since_ns + 1;
    double items = (double)window->bytes / FY_NETWORK_BYTES;
    double wanted = items * (double)ON_THE_WAY_NS / (double)taken_ns;
    window->n = wanted > FY_MOST_WINDOW    ? FY_MOST_WINDOW
                : wanted > FY_LEAST_WINDOW ? (uint32_t)wanted
                                           : FY_LEAST_WINDOW;
    window->bytes = 0;
    window->since_ns = now_ns;
}

/* The rate holds from run to run, but no sample reaches from one into the next. */
void fy_turns_begin(fy_run_state *run)
{
    run->window.bytes = 0;
    run->window.since_ns = 0;
}

/* What was learnt, or the least. */
static uint32_t window_of(const fy_run_state *run)
{
    return run->window.n < FY_LEAST_WINDOW ? FY_LEAST_WINDOW : run->window.n;
}

/*
 * A window for whoever's turn it is, and one for the next as well where the rest of that round is
 * let come.
 */
void fy_turns_give(ferry_service *service)
{
    uint32_t window = window_of(service->run);
    turn its = next_turn(service, 0);
    bool more = its.n <= window;
    while (its.state != NULL) {
        const fy_channel_state *before = its.state;
        bool whole = its.n <= window;
        grant(service, &its, whole ? its.n : window);
        if (!more) {
            return;
        }
        more = false;
        its = next_turn(service, its.round + 1);
        if (its.state == before && !whole) {
            return; /* a channel's items come in order */
        }
    }
}

/*
 * What a rank lets go stands in the queue of its own port, and there too before the answers that it
 * owes others: so it lets little go, those of the lowest round first, whoever else would take more.
 */
uint32_t fy_turns_room(const fy_run_state *run)
{
    uint32_t most = window_of(run) + FY_LEAST_WINDOW / 2;
    return run->n_away < most ? most - run->n_away : 0;
}
