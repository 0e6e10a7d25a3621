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
#include "service/exec.h"

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
    fy_channel *channel;
    uint64_t round;
    uint32_t first;
    uint32_t n; /* counted no further than it matters */
} turn;

static bool takes_turns(const fy_channel *channel)
{
    return channel->in_turns && channel->entered && channel->n_dealt < channel->in.n_items;
}

/* The first round of a channel that is not below `least`. */
static turn first_turn(fy_channel *channel, uint64_t least)
{
    turn found = {.channel = NULL};
    for (uint32_t i = channel->n_dealt; i < channel->in.n_items && found.n < FY_MOST_WINDOW; i++) {
        uint64_t round = channel->in.items[i].order;
        if (found.channel == NULL && round >= least) {
            found = (turn){.channel = channel, .round = round, .first = i};
        }
        if (found.channel != NULL && round != found.round) {
            break;
        }
        found.n += found.channel != NULL;
    }
    return found;
}

static turn next_turn(fy_exec *exec, uint64_t least)
{
    turn best = {.channel = NULL};
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        if (takes_turns(&exec->channels[c])) {
            turn its = first_turn(&exec->channels[c], least);
            if (its.channel != NULL && (best.channel == NULL || its.round < best.round)) {
                best = its;
            }
        }
    }
    return best;
}

/* Small grants are saved up, but for the last items of a round. */
static void grant(ferry_service *service, const turn *its, uint32_t n)
{
    fy_channel *channel = its->channel;
    uint32_t up_to = its->first + n;
    bool is_end = n == its->n;
    if (up_to >= channel->granted + LEAST_GRANT || (is_end && up_to > channel->granted)) {
        channel->granted = up_to;
        fy_run_signal(service, channel, FY_WORD_TURN,
                      (uint64_t)service->exec->run << 32 | channel->granted);
    }
}

void fy_turns_arrived(ferry_service *service, uint64_t bytes)
{
    fy_exec *exec = service->exec;
    int64_t now_ns = fy_now_ns();
    if (exec->window_ns == 0) { /* from the first that comes: before it the run stood still */
        exec->window_ns = now_ns;
        return;
    }
    exec->window_bytes += bytes;
    if (exec->window_bytes < SAMPLE_BYTES) {
        return;
    }
    int64_t taken_ns = now_ns - exec->window_ns + 1;
    double items = (double)exec->window_bytes / FY_NETWORK_BYTES;
    double wanted = items * (double)ON_THE_WAY_NS / (double)taken_ns;
    exec->window = wanted > FY_MOST_WINDOW    ? FY_MOST_WINDOW
                   : wanted > FY_LEAST_WINDOW ? (uint32_t)wanted
                                              : FY_LEAST_WINDOW;
    exec->window_bytes = 0;
    exec->window_ns = now_ns;
}

/* The rate holds from run to run, but no sample reaches from one into the next. */
void fy_turns_begin(fy_exec *exec)
{
    exec->window_bytes = 0;
    exec->window_ns = 0;
}

/*
 * A window for whoever's turn it is, and one for the next as well where the rest of that round is
 * let come.
 */
void fy_turns_give(ferry_service *service)
{
    fy_exec *exec = service->exec;
    uint32_t window = exec->window < FY_LEAST_WINDOW ? FY_LEAST_WINDOW : exec->window;
    turn its = next_turn(exec, 0);
    bool more = its.n <= window;
    while (its.channel != NULL) {
        const fy_channel *before = its.channel;
        bool whole = its.n <= window;
        grant(service, &its, whole ? its.n : window);
        if (!more) {
            return;
        }
        more = false;
        its = next_turn(exec, its.round + 1);
        if (its.channel == before && !whole) {
            return; /* a channel's items come in order */
        }
    }
}

/*
 * What a rank lets go stands in the queue of its own port, and there too before the answers that it
 * owes others: so it lets little go, those of the lowest round first, whoever else would take more.
 */
uint32_t fy_turns_room(const fy_exec *exec)
{
    uint32_t most =
        (exec->window < FY_LEAST_WINDOW ? FY_LEAST_WINDOW : exec->window) + FY_LEAST_WINDOW / 2;
    return exec->n_away < most ? most - exec->n_away : 0;
}
