/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls that were started: who has their request, or waits for something else, moves them on. */
#include "base/alloc.h"
#include "collective/wait.h"
#include "transport/host.h"

#include <sched.h>
#include <stdint.h>

/* Who has it moves the call on, and looks at what it has come to. */
static bool seize(fy_mix_request *request)
{
    return !atomic_exchange_explicit(&request->is_moved, true, memory_order_acquire);
}

static void let_go(fy_mix_request *request)
{
    atomic_store_explicit(&request->is_moved, false, memory_order_release);
}

static void close_request(fy_mix_request *request, ferry_status status)
{
    ferry_mixed_comm *comm = request->comm;
    request->status = status;
    request->done = true;
    fy_work_start(comm->world, &comm->work, false);
    fy_comm_give_back(comm);
}

static ferry_status outcome_of(const fy_mix_request *request, ferry_error *error)
{
    return fy_forward(error, request->status, &request->error);
}

/* Too late where this rank has done its part: the others may have the call behind them. */
static void obey_cancel(fy_mix_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    fy_mix_driver d = {.comm = comm, .n = comm->state.call.n_driven};
    if (atomic_load(&request->cancelled) && !fy_mix_is_over(&d)) {
        uint64_t number = comm->state.call.number;
        fy_comm_cancel(comm, number, "rank %u cancelled call %llu",
                       comm->program.topology.world_rank, (unsigned long long)number);
    }
}

static void hurry(ferry_mixed_comm *comm, bool hurries)
{
    if (comm->state.call.schedule->n_puts != 0) {
        pthread_mutex_lock(&comm->wires.network);
        fy_transport_hurry(comm->wires.transport, hurries);
        pthread_mutex_unlock(&comm->wires.network);
    }
}

/* Who only polls looks around as well, as often as who waits. */
static void poll_once(fy_mix_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    fy_mix_driver d = {.comm = comm,
                       .n = comm->state.call.n_driven,
                       .waits = request->waits,
                       .worked_ns = request->worked_ns};
    fy_mix_work_network(comm);
    hurry(comm, true);
    fy_mix_work(&d);
    hurry(comm, false);
    int64_t now_ns = fy_now_ns();
    if (d.worked || request->worked_ns == 0) {
        request->worked_ns = request->looked_ns = now_ns;
    } else if (now_ns - request->looked_ns > FY_MIX_PATIENCE_NS && !fy_mix_is_over(&d)) {
        fy_mix_look_around(&d);
        request->waits = d.waits;
        request->looked_ns = now_ns;
    }
}

/* A child by fork has the request, but not the call. */
static ferry_status check_process(const fy_mix_request *request, ferry_error *error)
{
    return request->comm == NULL ? FERRY_OK : fy_world_check_process(request->comm->world, error);
}

/* The flush of a call that is polled is polled as well, but not for longer than a deadline. */
static void end_polled(fy_mix_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    uint32_t peer = FERRY_ANY_RANK;
    int64_t now_ns = fy_now_ns();
    ferry_status status = FERRY_OK;
    if (comm->state.call.schedule->n_puts != 0) {
        request->settling_ns = request->settling_ns == 0 ? now_ns : request->settling_ns;
        status = fy_transport_try_flush(comm->wires.transport, &peer, &request->error);
    }
    if (status == FERRY_ERR_TIMEOUT &&
        now_ns - request->settling_ns <= comm->world->settings.deadline_ns) {
        return;
    }
    if (status == FERRY_ERR_TIMEOUT) {
        status = fy_fail(&request->error, status,
                         "rank %u has not answered to what rank %u has put there", peer,
                         comm->world->rank);
    }
    if (status != FERRY_OK) {
        fy_comm_break(comm, status, "%s", request->error.message);
    } else {
        comm->boards.n_sent = 0;
    }
    close_request(request, status);
}

static void test_once(fy_mix_request *request)
{
    ferry_mixed_comm *comm = request->comm;
    fy_mix_driver d = {.comm = comm, .n = comm->state.call.n_driven};
    ferry_status status;
    obey_cancel(request);
    poll_once(request);
    fy_works_move(comm->world);
    status = fy_comm_call_state(comm, comm->state.call.number, &request->error);
    if (status != FERRY_OK) {
        close_request(request, fy_mix_drain(comm, status));
    } else if (fy_mix_is_over(&d)) {
        end_polled(request);
    }
}

static ferry_status test_request(ferry_request *base, bool *done_out, ferry_error *error)
{
    fy_mix_request *request = (fy_mix_request *)base;
    if (check_process(request, error) != FERRY_OK) {
        *done_out = true;
        return FERRY_ERR_MISUSE;
    }
    *done_out = false;
    if (!seize(request)) {
        return FERRY_OK; /* another thread's wait moves it on */
    }
    if (!request->done) {
        test_once(request);
    }
    *done_out = request->done;
    let_go(request);
    return *done_out ? outcome_of(request, error) : FERRY_OK;
}

static ferry_status wait_request(ferry_request *base, ferry_error *error)
{
    fy_mix_request *request = (fy_mix_request *)base;
    ferry_status status = check_process(request, error);
    if (status != FERRY_OK) {
        return status;
    }
    while (!seize(request)) {
        sched_yield();
    }
    if (!request->done) {
        obey_cancel(request);
        status =
            fy_comm_call_state(request->comm, request->comm->state.call.number, &request->error);
        status = status == FERRY_OK
                     ? fy_mix_work_until_over(request->comm, FY_JOINT_MIXED_RUN, &request->error)
                     : fy_mix_drain(request->comm, status);
        close_request(request, status);
    }
    let_go(request);
    return outcome_of(request, error);
}

/*
 * From within other waits and tests: see fy_work. Its own test or wait ends it; but what has failed
 * lets go of its device at once, where other handles' calls may be behind it.
 */
static void move_on(void *context, int64_t until_ns)
{
    ferry_mixed_comm *comm = context;
    fy_mix_request *request = comm->request;
    (void)until_ns; /* once is short */
    if (request != NULL && seize(request)) {
        if (request->is_held && !request->done) {
            obey_cancel(request);
            if (fy_comm_call_state(comm, comm->state.call.number, NULL) == FERRY_OK) {
                poll_once(request);
            }
            ferry_status status = fy_comm_call_state(comm, comm->state.call.number, NULL);
            if (status != FERRY_OK) {
                fy_mix_drain(comm, status);
            }
        }
        let_go(request);
    }
}

static int64_t look_again_ns(void *context)
{
    enum { AGAIN_NS = 1000000 };
    (void)context;
    return AGAIN_NS;
}

void fy_comm_work_add(ferry_mixed_comm *comm, uint32_t number)
{
    comm->work = (fy_work){
        .kind = FY_OBJECT_MIXED, .step = move_on, .sleep_ns = look_again_ns, .context = comm};
    fy_work_add(comm->world, &comm->work, number);
}

static void cancel_request(ferry_request *base)
{
    atomic_store(&((fy_mix_request *)base)->cancelled, true);
}

static bool has_ended(void *context)
{
    bool done = false;
    test_request(context, &done, NULL);
    return done;
}

static int64_t look_often_ns(void *context)
{
    (void)context;
    return FY_MIX_PATIENCE_NS / 10;
}

/* A cancelled call breaks its handle: so it may end by itself, but the wait for that is bounded. */
static void destroy_request(ferry_request *base)
{
    fy_mix_request *request = (fy_mix_request *)base;
    if (check_process(request, NULL) != FERRY_OK) {
        return;
    }
    if (request->comm != NULL) {
        ferry_world *world = request->comm->world;
        fy_world_wait(world, has_ended, look_often_ns, request, world->settings.deadline_ns, NULL);
    }
    if (!request->done) {
        cancel_request(base);
    }
    wait_request(base, NULL);
    request->is_held = false;
    if (request->comm == NULL) { /* its handle is gone */
        fy_free(request);
    }
}

static const fy_request_ops request_ops = {.test = test_request,
                                           .wait = wait_request,
                                           .cancel = cancel_request,
                                           .destroy = destroy_request};

ferry_status fy_comm_start(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                           const ferry_mixed_tensor *out, uint32_t mode, ferry_status refusal,
                           ferry_request **request_out, ferry_error *error)
{
    fy_mix_request *request = comm->request;
    if (request->is_held) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "start: destroy the request of the call before this one first");
    }
    FY_TRY(fy_comm_begin(comm, op, in, out, mode, 0, refusal, error));
    while (!seize(request)) {
        sched_yield();
    }
    request->base.ops = &request_ops;
    request->done = false;
    request->is_held = true;
    request->waits = false;
    request->worked_ns = 0;
    request->settling_ns = 0;
    atomic_store(&request->cancelled, false);
    fy_mix_driver d = {.comm = comm, .n = comm->state.call.n_driven};
    fy_mix_work(&d);
    let_go(request);
    fy_work_start(comm->world, &comm->work, true);
    *request_out = &request->base;
    return FERRY_OK;
}

void fy_comm_release_request(ferry_mixed_comm *comm)
{
    fy_mix_request *request = comm->request;
    if (request == NULL) {
        return;
    }
    if (request->is_held && !request->done) {
        cancel_request(&request->base);
        wait_request(&request->base, NULL);
    }
    pthread_mutex_lock(&comm->world->here->stepping); /* nobody moves it on any more */
    request->comm = NULL;
    comm->request = NULL;
    pthread_mutex_unlock(&comm->world->here->stepping);
    if (!request->is_held) {
        fy_free(request);
    }
}
