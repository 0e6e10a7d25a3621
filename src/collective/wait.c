/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* How lanes are driven, and when waiting ends. */
#include "collective/wait.h"

#include "transport/host.h"
#include "world/order.h"

#include <stdint.h>

/*
 * Who has not begun the call is asked where it is: it may be in another one, which this rank will
 * not make while it waits. What comes when the call is over is forgotten.
 */
static uint64_t answer_tag(const ferry_mixed_comm *comm, uint32_t call)
{
    return fy_letter_tag(FY_LETTER_ANSWER, FY_OBJECT_MIXED, comm->work.number, call);
}

void fy_mix_forget_answers(ferry_mixed_comm *comm)
{
    if (atomic_exchange(&comm->has_asked, false)) {
        comm->world->ops->forget(comm->world, answer_tag(comm, 0), answer_tag(comm, UINT32_MAX));
    }
}

bool fy_mix_is_over(const fy_mix_driver *d)
{
    for (uint32_t i = d->first; i < d->first + d->n; i++) {
        if (!d->comm->state.lanes[i].done) {
            return false;
        }
    }
    return true;
}

/* What is put, or beside a kernel what ranks of other nodes say of their calls. */
static bool uses_network(const ferry_mixed_comm *comm)
{
    return comm->state.call.schedule->n_puts != 0 ||
           (comm->state.by_kernel && comm->program.topology.inter_size > 1);
}

void fy_mix_work_network(ferry_mixed_comm *comm)
{
    if (uses_network(comm) && pthread_mutex_trylock(&comm->wires.network) == 0) {
        fy_transport_work(comm->wires.transport);
        pthread_mutex_unlock(&comm->wires.network);
    }
}

/* Goes as far as it gets. */
void fy_mix_work(fy_mix_driver *d)
{
    for (uint32_t i = d->first; i < d->first + d->n; i++) {
        fy_mix_lane *lane = &d->comm->state.lanes[i];
        uint64_t moved = lane->moved;
        if (!lane->done && fy_comm_advance(d->comm, lane) == FY_PROGRESS_FAILED) {
            d->worked = true;
            return;
        }
        d->worked |= lane->moved != moved;
    }
}

static bool has_news(const ferry_mixed_comm *comm)
{
    return atomic_load(&comm->broken) != FERRY_OK ||
           fy_comm_has_notice(comm, comm->state.call.number) || fy_comm_is_cancelled(comm);
}

static bool ready(void *context)
{
    fy_mix_driver *d = context;
    fy_mix_work_network(d->comm);
    fy_mix_work(d);
    return d->worked || has_news(d->comm);
}

/* Its bell is rung when a device is done; a device that has failed rings nothing. */
enum { MOST_DEVICE_NS = 20000000, POLLED_NS = 50000 };

/* Who finds another lane in the transport looks again soon: that one need not wake this. */
static int64_t sleep_ns(void *context)
{
    const fy_mix_driver *d = context;
    ferry_mixed_comm *comm = d->comm;
    int64_t ns = INT64_MAX;
    if (uses_network(comm)) {
        ns = 50000;
        if (pthread_mutex_trylock(&comm->wires.network) == 0) {
            ns = fy_transport_sleep_ns(comm->wires.transport);
            pthread_mutex_unlock(&comm->wires.network);
        }
    }
    for (uint32_t i = d->first; i < d->first + d->n; i++) {
        fy_mix_lane *lane = &comm->state.lanes[i];
        if (lane->verbs->ring_when_done != NULL &&
            lane->verbs->ring_when_done(lane, comm->world->bell)) {
            ns = ns < MOST_DEVICE_NS ? ns : MOST_DEVICE_NS;
        }
        if (lane->verbs->is_polled != NULL && lane->verbs->is_polled(lane)) {
            ns = ns < POLLED_NS ? ns : POLLED_NS;
        }
    }
    return ns;
}

/* Lanes of a team wait each by itself, and share the board. */
static void say_waits(fy_mix_driver *d, bool waits)
{
    ferry_mixed_comm *comm = d->comm;
    const fy_mix_call *call = &comm->state.call;
    pthread_mutex_lock(&comm->wires.network);
    if (waits != d->waits || !comm->boards.told) {
        comm->boards.n_waiting = comm->boards.n_waiting + waits - d->waits;
        comm->boards.told = true;
        d->waits = waits;
        fy_mix_board_write(comm, call->number, call->op, call->mode, call->count,
                           comm->boards.n_waiting != 0);
        fy_mix_board_tell(comm);
    }
    pthread_mutex_unlock(&comm->wires.network);
}

static void ask(ferry_mixed_comm *comm, uint32_t rank)
{
    atomic_store(&comm->has_asked, true);
    fy_question question = {.kind = FY_OBJECT_MIXED,
                            .number = comm->work.number,
                            .run = comm->state.call.number,
                            .tag = answer_tag(comm, (uint32_t)comm->state.call.number)};
    comm->world->ops->ask(comm->world, rank, &question);
}

static void judge_absent(const fy_mix_driver *d, uint32_t rank, const fy_answer *answer)
{
    ferry_world *world = d->comm->world;
    fy_joint own = {.call = (uint32_t)d->comm->work.blocked_in, .object = fy_comm_object(d->comm)};
    /* One that ends the handle, too, may have the call on a queue: it begins by itself. */
    bool is_same = answer->joint.call == own.call && answer->joint.object == own.object;
    char theirs[FY_JOINT_TEXT_BYTES], ours[FY_JOINT_TEXT_BYTES];
    fy_joint_format(&own, ours);
    if (answer->leaves) {
        fy_world_fail(world, FERRY_ERR_PEER_LOST, rank,
                      "rank %u has left the world, and call %llu of mixed collective %u, which "
                      "others are in, waits for it",
                      rank, (unsigned long long)d->comm->state.call.number, d->comm->work.number);
    } else if (d->blocks && !is_same && fy_answer_blocks(world->here, answer)) {
        fy_joint_format(&answer->joint, theirs);
        fy_world_fail(world, FERRY_ERR_MISUSE, rank,
                      "rank %u is in %s where rank %u is in %s: all ranks make the same calls in "
                      "the same order",
                      rank, theirs, world->rank, ours);
    }
}

static void read_answers(const fy_mix_driver *d)
{
    ferry_world *world = d->comm->world;
    unsigned char bytes[FY_ANSWER_BYTES];
    size_t n_bytes;
    uint32_t from;
    while (world->ops->take(world, FERRY_ANY_RANK,
                            answer_tag(d->comm, (uint32_t)d->comm->state.call.number), bytes,
                            sizeof bytes, &n_bytes, &from)) {
        fy_answer answer;
        if (fy_answer_read(bytes, n_bytes, &answer) && !answer.begun) {
            judge_absent(d, from, &answer);
        }
    }
}

/*
 * Nothing was done for a while. A rank that is in this call, waits for nobody who is missing, and
 * gives no sign for the deadline, has lost something; one that has not begun the call may take as
 * long as the entry limit says.
 */
void fy_mix_look_around(fy_mix_driver *d)
{
    ferry_mixed_comm *comm = d->comm;
    const fy_settings *settings = &comm->world->settings;
    int64_t idle_ns = fy_now_ns() - d->worked_ns;
    bool was_there = false, waits = false;
    uint32_t rank = FERRY_ANY_RANK;
    read_answers(d);
    for (uint32_t i = d->first; i < d->first + d->n && !has_news(comm); i++) {
        fy_mix_lane *lane = &comm->state.lanes[i];
        if (lane->done || (lane->verbs->is_awaited != NULL && lane->verbs->is_awaited(lane))) {
            continue;
        }
        rank = fy_mix_lane_link(lane)->rank;
        fy_mix_suspicion suspicion = fy_mix_lane_suspect(comm, lane);
        if (suspicion == FY_MIX_NOT_THERE) {
            ask(comm, rank);
        }
        was_there |= suspicion == FY_MIX_ENTERED;
        waits |= suspicion == FY_MIX_NOT_THERE || suspicion == FY_MIX_WAITS_TOO;
    }
    if (fy_mix_is_over(d) || has_news(comm)) {
        return;
    }
    if (was_there && idle_ns > settings->deadline_ns &&
        !fy_world_may_only_be_slow(comm->world, rank, idle_ns)) {
        fy_comm_break(
            comm, FERRY_ERR_TIMEOUT,
            "mixed collective: rank %u is in call %llu too, but rank %u has heard nothing "
            "from it for %g s",
            rank, (unsigned long long)comm->state.call.number, comm->program.topology.world_rank,
            (double)idle_ns / 1e9);
    } else if (waits && settings->entry_ns >= 0 && idle_ns > settings->entry_ns) {
        fy_comm_break(comm, FERRY_ERR_TIMEOUT,
                      "mixed collective: rank %u waits in call %llu for rank %u, which has not "
                      "begun it for %g s",
                      comm->program.topology.world_rank,
                      (unsigned long long)comm->state.call.number, rank, (double)idle_ns / 1e9);
    } else {
        say_waits(d, waits);
    }
}

enum { MOST_PATIENCE_NS = 100000000 };

static ferry_status drive(fy_mix_driver *d, ferry_error *error)
{
    ferry_mixed_comm *comm = d->comm;
    int64_t patience_ns = FY_MIX_PATIENCE_NS, shared_ns = 0;
    ferry_status status = FERRY_OK;
    d->worked_ns = 0;
    fy_mix_work(d);
    while (!fy_mix_is_over(d)) {
        status = fy_comm_call_state(comm, comm->state.call.number, error);
        if (status != FERRY_OK) {
            return status;
        }
        fy_works_share(comm->world, &shared_ns);
        d->worked = false;
        status = fy_world_wait(comm->world, ready, sleep_ns, d, patience_ns, error);
        if (d->worked) {
            d->worked_ns = 0;
            patience_ns = FY_MIX_PATIENCE_NS;
            if (d->waits) {
                say_waits(d, false);
            }
        } else if (status == FERRY_ERR_TIMEOUT && !fy_failed(comm->world->failure)) {
            d->worked_ns = d->worked_ns == 0 ? fy_now_ns() - patience_ns : d->worked_ns;
            fy_mix_look_around(d);
            patience_ns = patience_ns < MOST_PATIENCE_NS ? 2 * patience_ns : patience_ns;
        }
    }
    return FERRY_OK;
}

/* One lane of a team: its outcome is the handle's. */
static void drive_lane(void *context, uint64_t part)
{
    ferry_error error;
    fy_mix_driver d = {.comm = context, .first = (uint32_t)part, .n = 1, .blocks = true};
    ferry_world *world = d.comm->world;
    bool helps = d.comm->state.on_queue && !fy_order_is_entered(world);
    if (helps) {
        fy_order_enter(world);
    }
    drive(&d, &error);
    if (helps) {
        fy_order_leave();
    }
}

/* What was put has arrived, so that nobody waits for a rank that is elsewhere by now. */
static ferry_status settle(ferry_mixed_comm *comm, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (comm->state.call.schedule->n_puts != 0) {
        status = ferry_transport_flush(comm->wires.transport, FERRY_ANY_RANK, NULL, error);
        if (status == FERRY_OK) {
            comm->boards.n_sent = 0;
        }
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s", error->message);
    }
    return status;
}

ferry_status fy_mix_drain(ferry_mixed_comm *comm, ferry_status status)
{
    for (uint32_t i = 0; i < comm->program.n_lanes; i++) {
        fy_mix_lane *lane = &comm->state.lanes[i];
        if (lane->verbs != NULL && lane->verbs->drain != NULL) {
            lane->verbs->drain(lane);
        }
    }
    return status;
}

ferry_status fy_mix_work_until_over(ferry_mixed_comm *comm, fy_joint_call as, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t n_lanes = comm->state.call.n_driven;
    bool blocks = !comm->state.is_looked_on;
    if (blocks) {
        fy_work_block(comm->world, &comm->work, as);
    }
    if (comm->team != NULL && n_lanes > 1) {
        comm->state.on_queue = fy_order_is_entered(comm->world);
        fy_team_run(comm->team, n_lanes, drive_lane, comm);
        fy_mix_driver all = {.comm = comm, .first = 0, .n = n_lanes};
        status = fy_mix_is_over(&all) ? FERRY_OK
                                      : fy_comm_call_state(comm, comm->state.call.number, error);
    } else {
        fy_mix_driver all = {.comm = comm, .first = 0, .n = n_lanes, .blocks = blocks};
        status = drive(&all, error);
    }
    if (blocks) {
        fy_work_unblock(comm->world, &comm->work);
    }
    return status == FERRY_OK ? settle(comm, error) : fy_mix_drain(comm, status);
}
