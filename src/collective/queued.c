/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in the order of a queue. What is asked for is kept until the queue comes to it; then the
 * queue's driver makes the call as a caller in host order would. Meanwhile the handle is the
 * queue's: its calls keep their order, and those of anybody else are refused. What is found wrong
 * when a call is asked for uses up its number as well, in its turn, so that ranks which did begin
 * that call find out.
 */
#include "base/alloc.h"
#include "collective/comm.h"
#include "collective/graphs.h"
#include "collective/kernel.h"
#include "collective/library.h"
#include "world/bell.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

/* The outcome of a call on a queue, for who holds its request; the call and he have it in common.
 */
typedef struct queued_request {
    ferry_request base;
    ferry_world *world; /* retained */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    _Atomic bool cancelled; /* who makes the call looks */
    uint32_t n_holders;
    ferry_status status;
    ferry_error error;
} queued_request;

typedef struct queued_call {
    ferry_mixed_comm *comm;
    uint32_t op, mode;
    bool has_in, has_out; /* NULL is refused when the call begins */
    ferry_mixed_tensor in, out;
    ferry_status refusal; /* what was wrong when it was asked for, with `why` */
    ferry_error why;
    queued_request *request; /* NULL: run */
    bool is_counted;         /* among those that were asked for */
    fy_mix_call foreseen;    /* of one that goes ahead */
    fy_mix_ahead ahead;
    bool *has_failed; /* where to say that the device has not taken it */
} queued_call;

/*
 * Requests
 */

static void let_go(queued_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool is_last = --request->n_holders == 0;
    pthread_mutex_unlock(&request->lock);
    if (is_last) {
        pthread_mutex_destroy(&request->lock);
        pthread_cond_destroy(&request->changed);
        ferry_world_destroy(request->world);
        fy_free(request);
    }
}

static ferry_status outcome_of(const queued_request *request, ferry_error *error)
{
    return fy_forward(error, request->status, &request->error);
}

static ferry_status test_queued(ferry_request *base, bool *done_out, ferry_error *error)
{
    queued_request *request = (queued_request *)base;
    pthread_mutex_lock(&request->lock);
    *done_out = request->done;
    pthread_mutex_unlock(&request->lock);
    return *done_out ? outcome_of(request, error) : FERRY_OK;
}

/* Until the call has ended, or so many nanoseconds; whether it has. */
static bool await_end(queued_request *request, int64_t limit_ns)
{
    int64_t until_ns = fy_now_ns() + (limit_ns < 0 ? 0 : limit_ns);
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    int problem = 0;
    pthread_mutex_lock(&request->lock);
    while (!request->done && problem != ETIMEDOUT) {
        problem = limit_ns < 0 ? pthread_cond_wait(&request->changed, &request->lock)
                               : pthread_cond_timedwait(&request->changed, &request->lock, &until);
    }
    bool done = request->done;
    pthread_mutex_unlock(&request->lock);
    return done;
}

static ferry_status wait_queued(ferry_request *base, ferry_error *error)
{
    await_end((queued_request *)base, -1);
    return outcome_of((queued_request *)base, error);
}

/*
 * The handle breaks, as with any call that is cancelled, when its queue is at this one: those
 * behind it end by that, too. This thread may not use the world, which is the queue's.
 */
static void cancel_queued(ferry_request *base)
{
    queued_request *request = (queued_request *)base;
    atomic_store(&request->cancelled, true);
    fy_bell_ring(request->world->bell);
}

static void destroy_queued(ferry_request *base)
{
    queued_request *request = (queued_request *)base;
    if (!await_end(request, request->world->settings.deadline_ns)) {
        cancel_queued(base);
        await_end(request, -1);
    }
    let_go(request);
}

static const fy_request_ops queued_ops = {
    .test = test_queued, .wait = wait_queued, .cancel = cancel_queued, .destroy = destroy_queued};

static queued_request *make_request(ferry_world *world)
{
    queued_request *request = fy_alloc_zeroed(1, sizeof *request);
    if (request != NULL) {
        pthread_condattr_t attributes; /* waits are not longer when the date is set */
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&request->changed, &attributes);
        pthread_condattr_destroy(&attributes);
        request->base.ops = &queued_ops;
        request->world = world;
        fy_world_retain(world);
        pthread_mutex_init(&request->lock, NULL);
        request->n_holders = 2;
    }
    return request;
}

static void end_request(queued_request *request, ferry_status status, const ferry_error *error)
{
    pthread_mutex_lock(&request->lock);
    request->done = true;
    request->status = status;
    if (status != FERRY_OK) {
        request->error = *error;
    }
    pthread_cond_broadcast(&request->changed);
    pthread_mutex_unlock(&request->lock);
    let_go(request);
}

/*
 * Calls
 */

static ferry_status begin_and_end(const queued_call *call, ferry_error *error)
{
    ferry_mixed_comm *comm = call->comm;
    bool is_ahead = call->ahead.is_there;
    if (is_ahead) {
        fy_mix_kernel_expect(comm, &call->ahead);
    }
    ferry_status status =
        fy_comm_call(comm, call->op, call->has_in ? &call->in : NULL,
                     call->has_out ? &call->out : NULL, call->mode, call->refusal, error);
    if (is_ahead) {
        fy_mix_kernel_part(comm->kernel);
    }
    return status;
}

/* The queue has come to the call, which is made now, or was by the kernel that went ahead. */
static ferry_status make_call(queued_call *call, ferry_error *error)
{
    ferry_mixed_comm *comm = call->comm;
    bool is_ahead = call->ahead.is_there;
    ferry_status status = FERRY_OK;
    *error = call->why;
    while (atomic_exchange(&comm->busy, true)) { /* by a call that was there before the queue's */
        sched_yield();
    }
    comm->state.cancelled = call->request == NULL ? NULL : &call->request->cancelled;
    if (!is_ahead || fy_mix_kernel_number(comm, &call->ahead, &status, error)) {
        status = begin_and_end(call, error);
    }
    comm->state.cancelled = NULL;
    fy_comm_give_back(comm);
    return status;
}

static ferry_status run_queued(void *context, ferry_error *error)
{
    queued_call *call = context;
    ferry_mixed_comm *comm = call->comm;
    if (call->ahead.is_there) {
        fy_mix_kernel_await(comm->kernel, &call->ahead);
    }
    ferry_status status = make_call(call, error);
    if (call->is_counted) { /* without the lock: who has it may wait for the end of this */
        atomic_fetch_sub(&comm->asked.n, 1);
    }
    return status;
}

/* The handle may be gone. */
static void end_queued(void *context, ferry_status status, const ferry_error *error)
{
    queued_call *call = context;
    if (call->request != NULL) {
        end_request(call->request, status, error);
    }
}

static ferry_status check_spaces(const queued_call *call, const fy_queue *queue, const char *what,
                                 ferry_error *error)
{
    ferry_status status = FERRY_OK;
    if (call->has_in) {
        status = fy_queue_check_space(queue, fy_space_of(&call->in.buffer), what, error);
    }
    if (status == FERRY_OK && call->has_out) {
        status = fy_queue_check_space(queue, fy_space_of(&call->out.buffer), what, error);
    }
    return status;
}

static bool have_graphs(const ferry_mixed_comm *comm)
{
    return fy_captures_exist(&comm->captures) ||
           (comm->kernel != NULL && fy_mix_graphs_exist(fy_mix_kernel_graphs(comm->kernel)));
}

static ferry_status check_enqueue(ferry_mixed_comm *comm, const char *what, ferry_error *error)
{
    FY_TRY(fy_comm_check_ready(comm, what, error));
    bool is_graphs = have_graphs(comm); /* whose calls come at any time */
    if (!is_graphs && atomic_load(&comm->world->queue) == NULL && atomic_load(&comm->busy)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: another thread, or a request, uses this handle now", what);
    }
    return FERRY_OK;
}

static fy_queued queued_of(const queued_call *call, const char *what)
{
    return (fy_queued){.what = what,
                       .function = run_queued,
                       .ended = end_queued,
                       .context = call,
                       .context_bytes = sizeof *call};
}

/* What a call will have that is asked for now; 0: nobody knows. Under the lock. */
static uint64_t next_number(ferry_mixed_comm *comm)
{
    fy_mix_asked *asked = &comm->asked;
    bool is_first = atomic_fetch_add(&asked->n, 1) == 0;
    asked->is_unsure = asked->is_unsure && !is_first;
    asked->is_unsure = asked->is_unsure || have_graphs(comm);
    if (asked->is_unsure) { /* a graph's call may be counted just now */
        return 0;
    }
    if (is_first && comm->kernel != NULL) { /* graphs that are gone have made some */
        fy_mix_kernel_catch_up(comm);
    }
    asked->last = (is_first ? comm->state.call.number : asked->last) + 1;
    return asked->last;
}

/*
 * Whether the call can be a kernel on the stream, so that what comes behind it does not wait for
 * the host. What is wrong with a call is found again, and said, in its turn.
 */
static bool foresee(queued_call *call, fy_queue *queue)
{
    const ferry_mixed_comm *comm = call->comm;
    uint32_t mode = call->mode, block_lines = 0;
    ferry_error why;
    if (comm->kernel == NULL || !comm->state.by_kernel || atomic_load(&comm->broken) != FERRY_OK ||
        !call->has_in || !call->has_out ||
        fy_mix_call_check(comm, call->op, &call->in, &call->out, &why) != FERRY_OK) {
        return false;
    }
    uint64_t bytes = fy_mix_call_piece(comm, call->op, &call->in) * comm->program.element_bytes;
    if (fy_mix_call_mode(comm, call->op, bytes, &mode, &block_lines, &why) != FERRY_OK ||
        fy_mix_library_makes(comm->library, mode)) {
        return false;
    }
    fy_comm_foresee(comm, call->op, &call->in, &call->out, mode, block_lines, &call->foreseen);
    return fy_mix_kernel_may_go_ahead(comm->kernel, &call->foreseen, fy_queue_space(queue));
}

/* In a graph. What is refused uses up no number: ranks whose graphs have the call find out. */
static ferry_status capture(queued_call *call, fy_queue *queue, bool is_asked_for,
                            ferry_error *error)
{
    ferry_mixed_comm *comm = call->comm;
    if (is_asked_for) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "start: the stream is captured in a graph, whose calls have no requests: "
                       "call run");
    }
    FY_TRY(check_enqueue(comm, "run", error));
    FY_TRY(check_spaces(call, queue, "run", error));
    if (foresee(call, queue) && fy_mix_kernel_graphs(comm->kernel) != NULL) {
        return fy_mix_graphs_capture(fy_mix_kernel_graphs(comm->kernel), queue, &call->foreseen,
                                     &call->in, &call->out, error);
    }
    fy_queued queued = queued_of(call, "run");
    return fy_transport_capture(comm->wires.transport, queue, &queued, &comm->captures, error);
}

static ferry_status launch_ahead(void *context, fy_exec_queue *queue, fy_ticket *end_out,
                                 ferry_error *error)
{
    queued_call *call = context;
    ferry_status status =
        fy_mix_kernel_go_ahead(call->comm->kernel, &call->foreseen, queue, &call->ahead, error);
    *call->has_failed = status != FERRY_OK;
    *end_out = call->ahead.end;
    return status;
}

/* One that the device does not take uses up its number, too: so others find out. */
static ferry_status put(queued_call *call, fy_queue *queue, const char *what, ferry_error *error)
{
    ferry_transport *transport = call->comm->wires.transport;
    uint64_t number = next_number(call->comm);
    if (call->refusal == FERRY_OK && foresee(call, queue) && fy_queue_may_meet(queue)) {
        bool has_failed = false;
        call->foreseen.number = number;
        call->has_failed = &has_failed;
        fy_queued ahead = queued_of(call, what);
        ahead.launch = launch_ahead;
        ferry_status status = fy_transport_enqueue(transport, queue, &ahead, error);
        if (!has_failed) {
            return status;
        }
        call->refusal = status;
        call->why = *error;
    }
    fy_queued queued = queued_of(call, what);
    return fy_transport_enqueue(transport, queue, &queued, error);
}

/* On a device's queue that was entered; FERRY_OK, or the refusal, where it will be made. */
static ferry_status enqueue(queued_call *call, fy_queue *queue, const char *what,
                            bool *is_queued_out, ferry_error *error)
{
    ferry_mixed_comm *comm = call->comm;
    FY_TRY(check_enqueue(comm, what, error));
    call->refusal = check_spaces(call, queue, what, error);
    if (call->refusal != FERRY_OK) {
        call->why = *error;
    }
    call->is_counted = true;
    pthread_mutex_lock(&comm->asked.lock);
    ferry_status status = put(call, queue, what, error);
    if (status != FERRY_OK) {
        comm->asked.last--;
        atomic_fetch_sub(&comm->asked.n, 1);
    }
    pthread_mutex_unlock(&comm->asked.lock);
    FY_TRY(status);
    *is_queued_out = true;
    return call->refusal;
}

/* In host order, or refused for what is no queue. */
static ferry_status call_now(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                             const ferry_mixed_tensor *out, uint32_t mode, ferry_status refusal,
                             ferry_request **request_out, ferry_error *error)
{
    ferry_error own;
    bool refused = refusal != FERRY_OK;
    ferry_status status =
        fy_comm_take(comm, request_out == NULL ? "run" : "start", refused ? &own : error);
    if (status != FERRY_OK) {
        return refused ? refusal : status;
    }
    if (request_out != NULL) {
        status = fy_comm_start(comm, op, in, out, mode, refusal, request_out, error);
    } else {
        status = fy_comm_call(comm, op, in, out, mode, refusal, error);
    }
    if (request_out == NULL || status != FERRY_OK) {
        fy_comm_give_back(comm);
    }
    return status;
}

static ferry_status call_later(queued_call *call, fy_queue *queue, ferry_request **request_out,
                               ferry_error *error)
{
    bool is_queued = false, is_captured = false;
    FY_TRY(fy_queue_is_captured(queue, &is_captured, error));
    if (is_captured) {
        return capture(call, queue, request_out != NULL, error);
    }
    if (request_out != NULL) {
        call->request = make_request(call->comm->world);
        FY_TRY(fy_check_memory(call->request != NULL, "a request", error));
    }
    queued_request *request = call->request;
    ferry_status status =
        enqueue(call, queue, request == NULL ? "run" : "start", &is_queued, error);
    if (request != NULL && !is_queued) {
        let_go(request);
    }
    if (request != NULL && status != FERRY_OK) {
        let_go(request);
    } else if (request != NULL) {
        *request_out = &request->base;
    }
    return status;
}

ferry_status fy_comm_call_on(ferry_mixed_comm *comm, uint32_t op, const ferry_mixed_tensor *in,
                             const ferry_mixed_tensor *out, uint32_t mode, ferry_queue *handle,
                             ferry_request **request_out, ferry_error *error)
{
    fy_queue *queue;
    const char *what = request_out == NULL ? "run" : "start";
    ferry_status status = FERRY_OK;
    if (comm == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a mixed collective", what);
    }
    status = fy_world_check_process(comm->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_queue_enter(handle, what, &queue, error);
    if (status != FERRY_OK || fy_queue_is_host(queue)) {
        if (status == FERRY_OK) {
            fy_queue_leave(queue);
        }
        return call_now(comm, op, in, out, mode, status, request_out, error);
    }
    queued_call call = {
        .comm = comm, .op = op, .mode = mode, .has_in = in != NULL, .has_out = out != NULL};
    if (in != NULL) {
        call.in = *in;
    }
    if (out != NULL) {
        call.out = *out;
    }
    status = comm->finished ? fy_fail(error, FERRY_ERR_MISUSE,
                                      "%s after shutdown; only destroy may follow", what)
                            : call_later(&call, queue, request_out, error);
    fy_queue_leave(queue);
    return status;
}
