/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs as the caller sees them: whole, or in steps. */
#include "service/ledger.h"
#include "service/moves.h"
#include "service/prepare.h"

#include "base/alloc.h"
#include "transport/host.h"

#include <stdatomic.h>
#include <string.h>

enum { CALLBACK_NS = 50 * 1000 * 1000, TEST_NS = 1000 * 1000 };

/* In a world that has failed, or where the caller asks to stop, this is noticed soon. */
enum { LONGEST_WAIT_NS = 10 * 1000 * 1000 };

static const fy_request_ops run_request_ops;

static ferry_status check_program(const ferry_service *service, ferry_error *error)
{
    return fy_check_use(service->program != NULL && service->registry.scheduled,
                        "a run needs a schedule: call ferry_service_schedule before", error);
}

static ferry_status check_run(const ferry_service *service, ferry_error *error)
{
    if (service == NULL || !service->initialized || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE, "a run needs a service between init and finalize");
    }
    FY_TRY(fy_world_check_process(service->world, error));
    /* While a queue has runs of it, they own the rest: each asks when it begins. */
    return atomic_load(&service->n_on_queue) > 0 ? FERRY_OK : check_program(service, error);
}

static ferry_status check_free(const ferry_service *service, ferry_error *error)
{
    return fy_check_use(service->request == NULL,
                        "a run is under way: wait for its request before the next one", error);
}

/* Those on queues come one after the other by themselves, and may begin at any time. */
static ferry_status check_host_free(const ferry_service *service, ferry_error *error)
{
    return fy_check_use(!atomic_load(&service->runs_in_host),
                        "a run is under way: wait for its request before the next one", error);
}

ferry_status fy_service_check_idle(const ferry_service *service, const char *what,
                                   ferry_error *error)
{
    return atomic_load(&service->n_on_queue) == 0
               ? FERRY_OK
               : fy_fail(error, FERRY_ERR_MISUSE,
                         "%s: runs of this service are under way on a queue: synchronize it first",
                         what);
}

ferry_status fy_service_check_order(const ferry_service *service, const char *what,
                                    ferry_error *error)
{
    FY_TRY(fy_service_check_idle(service, what, error));
    return fy_world_check_order(service->world, what, error);
}

static void use_anew(fy_run_request *request)
{
    request->status = FERRY_OK;
    atomic_store(&request->done, false);
    atomic_store(&request->cancelled, false);
}

/* One that was destroyed, or a new one. */
static fy_run_request *take_request(ferry_service *service)
{
    pthread_mutex_lock(&service->queue_lock);
    fy_run_request *request = service->requests;
    while (request != NULL && !request->is_spare) {
        request = request->next;
    }
    pthread_mutex_unlock(&service->queue_lock);
    if (request == NULL) {
        request = fy_alloc(1, sizeof *request);
        if (request == NULL) {
            return NULL;
        }
        request->base.ops = &run_request_ops;
        request->service = service;
        request->next = service->requests;
        service->requests = request;
        if (atomic_load(&service->n_on_queue) == 0) { /* else the queue's thread writes them */
            service->statistics.n_allocations++;
        }
    }
    request->is_spare = request->on_queue = request->is_abandoned = request->is_captured = false;
    use_anew(request);
    return request;
}

ferry_status fy_request_provide(ferry_service *service, ferry_error *error)
{
    fy_run_request *request = take_request(service);
    if (request == NULL) {
        return fy_fail_no_memory(error, "a request");
    }
    request->is_spare = true;
    return FERRY_OK;
}

/* A child by fork has the request, but not the run. */
static ferry_status check_process(const fy_run_request *request, ferry_error *error)
{
    return request->service == NULL ? FERRY_OK
                                    : fy_world_check_process(request->service->world, error);
}

/* What was missing belongs to one version: every other run moves everything. */
static ferry_status prepare_all(ferry_service *service, ferry_error *error)
{
    if (!service->program->is_partial || service->run->version == 0) {
        return FERRY_OK;
    }
    ferry_error why = {.message = ""};
    fy_joint_enter(service->world, FY_JOINT_SERVICE_RUN, fy_service_object(service));
    ferry_status status = fy_take_refusal(service, &why);
    FY_THEN(status, fy_ledger_keep(service, &why));
    status = fy_prepare_again(service, status, &why);
    fy_joint_leave(service->world);
    return fy_forward(error, status, &why);
}

static ferry_status begin(fy_run_request *request, ferry_error *error)
{
    ferry_service *service = request->service;
    FY_TRY(check_program(service, error));
    FY_TRY(prepare_all(service, error));
    FY_TRY(fy_run_begin(service, error));
    pthread_mutex_lock(&service->working);
    service->request = request;
    pthread_mutex_unlock(&service->working);
    fy_work_start(service->world, &service->work, true); /* other waits move it on, too */
    return FERRY_OK;
}

/* The request keeps the outcome. */
static void close_run(fy_run_request *request)
{
    ferry_service *service = request->service;
    const fy_outcome *outcome = &service->run->outcome;
    request->status = outcome->status;
    request->error = outcome->error;
    service->request = NULL;
    if (!request->on_queue) {
        atomic_store(&service->runs_in_host, false);
    }
    fy_work_start(service->world, &service->work, false);
}

static bool is_call_due(const ferry_service *service)
{
    int64_t called_ns = service->run->called_ns;
    return service->progress != NULL && (called_ns == 0 || fy_now_ns() - called_ns >= CALLBACK_NS);
}

static void call_back(fy_run_request *request, bool last)
{
    ferry_service *service = request->service;
    const fy_service_program *program = service->program;
    fy_run_state *run = service->run;
    if (service->progress == NULL || !(last || is_call_due(service))) {
        return;
    }
    int64_t now_ns = fy_now_ns();
    run->called_ns = now_ns;
    ferry_progress progress = {.struct_size = sizeof progress,
                               .bytes_done = run->done_bytes,
                               .bytes_total =
                                   program->out_bytes + program->in_bytes + program->local_bytes,
                               .seconds = (double)(now_ns - run->begin_ns) / 1e9};
    if (!service->progress(service->progress_context, &progress)) {
        atomic_store(&request->cancelled, true);
    }
}

static void check_cancel(fy_run_request *request)
{
    ferry_service *service = request->service;
    if (atomic_load(&request->cancelled) && service->run->outcome.phase == FY_PHASE_MOVING) {
        fy_run_fail(service, FERRY_ERR_ABORTED, service->world->rank, "rank %u cancelled the run",
                    service->world->rank);
    }
}

/* One step; false where nothing could be done. The first one asks before it moves anything. */
static bool advance(fy_run_request *request)
{
    ferry_service *service = request->service;
    call_back(request, false);
    check_cancel(request);
    bool worked = fy_run_step(service);
    fy_watch_tick(service);
    return worked;
}

/* Who waits looks around meanwhile: it goes on sleeping unless there is more to do than that. */
static bool step_ready(void *context)
{
    fy_run_request *request = context;
    ferry_service *service = request->service;
    bool worked = fy_transport_work(service->transport);
    check_cancel(request);
    worked = fy_run_step(service) || worked;
    fy_watch_tick(service);
    return worked || fy_run_is_over(service) || is_call_due(service);
}

/* A device rings no bell when it has moved something. */
static int64_t sleep_ns(const ferry_service *service)
{
    enum { MOMENT_NS = 20000 };
    int64_t its = fy_transport_sleep_ns(service->transport);
    bool moves = service->run->drive.n_open > 0 || service->run->made.far.by != NULL;
    return moves && its > MOMENT_NS ? MOMENT_NS : its;
}

/*
 * How long a rank that waits may leave it at that before it looks around. Where many share a core
 * each looks more seldom, for together they would keep it from work; yet often enough for letters
 * and for a cancel, which wake nobody.
 */
static int64_t patience_ns(const ferry_service *service)
{
    enum { MOST_NS = 100 * 1000 * 1000 };
    int64_t part = service->world->settings.deadline_ns / 16;
    int64_t longest_ns = (int64_t)service->world->ranks_per_core * LONGEST_WAIT_NS;
    longest_ns = longest_ns < MOST_NS ? longest_ns : MOST_NS;
    return part < longest_ns ? part : longest_ns;
}

static int64_t step_sleep_ns(void *context)
{
    const ferry_service *service = ((const fy_run_request *)context)->service;
    int64_t its = sleep_ns(service), most = patience_ns(service);
    if (service->progress != NULL && most > CALLBACK_NS) {
        most = CALLBACK_NS; /* the caller looks around, too */
    }
    if (service->run->drive.aside[FY_GRADE_NETWORK].first != FY_NOBODY && most > LONGEST_WAIT_NS) {
        most = LONGEST_WAIT_NS; /* of lanes that wait for room a step asks some */
    }
    return its < most ? its : most;
}

/* From within other waits and tests: see fy_work. Who waits for the run itself moves it on. */
static void move_on(void *context, int64_t until_ns)
{
    ferry_service *service = context;
    if (pthread_mutex_trylock(&service->working) != 0) {
        return;
    }
    if (service->request != NULL && !fy_run_is_over(service)) {
        fy_transport_work(service->transport);
        check_cancel(service->request);
        while (fy_run_step(service) && !fy_run_is_over(service) && fy_now_ns() < until_ns) {}
        fy_watch_tick(service);
    }
    pthread_mutex_unlock(&service->working);
}

static int64_t work_sleep_ns(void *context)
{
    ferry_service *service = context;
    enum { LONGEST_NS = 10 * 1000 * 1000 }; /* watches look around so often */
    int64_t longest_ns = LONGEST_NS;
    if (atomic_load(&service->blocks)) {
        return INT64_MAX; /* who waits for its end looks around himself */
    }
    if (pthread_mutex_trylock(&service->working) == 0) {
        int64_t its = service->request != NULL ? sleep_ns(service) : INT64_MAX;
        longest_ns = its < longest_ns ? its : longest_ns;
        pthread_mutex_unlock(&service->working);
    }
    return longest_ns;
}

void fy_service_work_add(ferry_service *service, uint32_t number)
{
    service->work = (fy_work){
        .kind = FY_OBJECT_SERVICE, .step = move_on, .sleep_ns = work_sleep_ns, .context = service};
    fy_work_add(service->world, &service->work, number);
}

void fy_service_work_remove(ferry_service *service)
{
    fy_work_remove(service->world, &service->work);
}

static ferry_status outcome_of(const fy_run_request *request, ferry_error *error)
{
    return fy_forward(error, request->status, &request->error);
}

/* A run that was dropped ends as soon as the others have heard of it; they may be elsewhere. */
static void give_up_waiting(const ferry_service *service, int64_t waited_ns)
{
    fy_world_fail(service->world, FERRY_ERR_ABORTED, service->world->rank,
                  "rank %u has dropped its run of service %u, and for %.1f s the others have not "
                  "ended it",
                  service->world->rank, service->work.number, (double)waited_ns / 1e9);
}

/* Behind the limit the run is cancelled; behind another one the world fails. 0 is no limit. */
static void work_until_over(fy_run_request *request, int64_t limit_ns)
{
    ferry_service *service = request->service;
    int64_t begin_ns = fy_now_ns(), shared_ns = 0;
    service->blocks = true;
    fy_work_block(service->world, &service->work, FY_JOINT_SERVICE_RUN);
    while (!fy_run_is_over(service)) {
        fy_works_share(service->world, &shared_ns);
        if (advance(request)) {
            continue;
        }
        fy_statistics_wait(service);
        fy_world_wait(service->world, step_ready, step_sleep_ns, request,
                      limit_ns > 0 ? patience_ns(service) : -1, NULL);
        fy_statistics_go_on(service, fy_now_ns());
        if (limit_ns > 0 && fy_now_ns() - begin_ns > limit_ns) {
            if (atomic_exchange(&request->cancelled, true)) {
                give_up_waiting(service, limit_ns);
            }
            begin_ns = fy_now_ns();
        }
    }
    fy_work_unblock(service->world, &service->work);
    service->blocks = false;
    call_back(request, true);
}

/*
 * Runs on a device's queue. Its own thread begins the run when earlier work of the queue is done,
 * moves it on and ends it; nobody else does, and later work of the queue begins then.
 */

static ferry_status wait_for_queue(fy_run_request *request, ferry_error *error)
{
    ferry_service *service = request->service;
    if (service == NULL) { /* it is gone, and has waited for this */
        return outcome_of(request, error);
    }
    if (fy_order_is_entered(service->world)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_request_wait within a progress callback waits for itself");
    }
    pthread_mutex_lock(&service->queue_lock);
    while (!atomic_load(&request->done)) {
        pthread_cond_wait(&service->queue_moved, &service->queue_lock);
    }
    pthread_mutex_unlock(&service->queue_lock);
    return outcome_of(request, error);
}

/* Nobody asks for the outcome any more. */
static void abandon(fy_run_request *request)
{
    ferry_service *service = request->service;
    pthread_mutex_lock(&service->queue_lock);
    request->is_spare = atomic_load(&request->done);
    request->is_abandoned = !request->is_spare;
    pthread_mutex_unlock(&service->queue_lock);
}

void fy_requests_drop(ferry_service *service)
{
    if (fy_order_is_entered(service->world)) {
        return;
    }
    fy_captures_end(&service->captures);
    pthread_mutex_lock(&service->queue_lock);
    for (fy_run_request *its = service->requests; its != NULL; its = its->next) {
        if (its->on_queue && !its->is_spare) {
            atomic_store(&its->cancelled, true);
        }
    }
    while (atomic_load(&service->n_on_queue) > 0) {
        pthread_cond_wait(&service->queue_moved, &service->queue_lock);
    }
    for (fy_run_request *its = service->requests; its != NULL; its = its->next) {
        its->is_spare = its->is_spare || its->is_captured;
    }
    pthread_mutex_unlock(&service->queue_lock);
}

/* A failure is the request's, too, which may be asked for it long after the queue was. */
static ferry_status run_queued(void *context, ferry_error *error)
{
    fy_run_request *request = *(fy_run_request **)context;
    ferry_service *service = request->service;
    ferry_status status = check_host_free(service, &request->error);
    FY_THEN(status, begin(request, &request->error));
    if (status == FERRY_OK) {
        pthread_mutex_lock(&service->working);
        work_until_over(request, 0);
        close_run(request);
        pthread_mutex_unlock(&service->working);
    } else {
        request->status = status;
    }
    return outcome_of(request, error);
}

/* The world is the caller's again. The last that the queue's thread does with the service. */
static void end_queued(void *context, ferry_status status, const ferry_error *error)
{
    fy_run_request *request = *(fy_run_request **)context;
    ferry_service *service = request->service;
    (void)status;
    (void)error;
    pthread_mutex_lock(&service->queue_lock);
    atomic_store(&request->done, true);
    request->is_spare = request->is_abandoned;
    atomic_fetch_sub(&service->n_on_queue, 1);
    pthread_cond_broadcast(&service->queue_moved);
    pthread_mutex_unlock(&service->queue_lock);
}

/* Whether the queue may use all of this rank's memory. */
static ferry_status check_memory(const ferry_service *service, const fy_queue *queue,
                                 const char *what, ferry_error *error)
{
    const fy_registry *registry = &service->registry;
    ferry_status status = FERRY_OK;
    for (size_t i = 0; i < registry->n_held && status == FERRY_OK; i++) {
        const fy_held *held = &registry->held[i];
        status = fy_queue_check_space(queue, fy_space_of(&held->front), what, error);
        if (status == FERRY_OK && held->back.base != NULL) {
            status = fy_queue_check_space(queue, fy_space_of(&held->back), what, error);
        }
    }
    return status;
}

static ferry_status enqueue(fy_run_request *request, fy_queue *queue, const char *what,
                            ferry_error *error)
{
    ferry_service *service = request->service;
    const fy_queued call = {.what = what,
                            .function = run_queued,
                            .ended = end_queued,
                            .context = &request,
                            .context_bytes = sizeof request};
    request->on_queue = true;
    atomic_fetch_add(&service->n_on_queue, 1);
    ferry_status status = fy_transport_enqueue(service->transport, queue, &call, error);
    if (status != FERRY_OK) {
        atomic_fetch_sub(&service->n_on_queue, 1);
        request->is_spare = true;
    }
    return status;
}

/* Runs that are on a queue have passed this, and own the memory. */
static ferry_status check_on_queue(const ferry_service *service, const fy_queue *queue,
                                   const char *what, ferry_error *error)
{
    FY_TRY(check_host_free(service, error));
    return atomic_load(&service->n_on_queue) > 0 ? FERRY_OK
                                                 : check_memory(service, queue, what, error);
}

/* A launch has come to the run: it is one on a queue from here on. */
static void begin_launched(void *context)
{
    fy_run_request *request = *(fy_run_request **)context;
    use_anew(request);
    atomic_fetch_add(&request->service->n_on_queue, 1);
}

static void forget_captured(void *context)
{
    fy_run_request *request = *(fy_run_request **)context;
    pthread_mutex_lock(&request->service->queue_lock);
    request->is_spare = true;
    pthread_mutex_unlock(&request->service->queue_lock);
}

/* Nobody can ask for the outcome of what is not even begun: that is the queue's only. */
static ferry_status capture_run(ferry_service *service, fy_queue *queue, const char *what,
                                bool is_asked_for, ferry_error *error)
{
    if (is_asked_for) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "%s: the stream is captured in a graph, whose runs have no requests: call "
                       "ferry_service_run",
                       what);
    }
    FY_TRY(check_on_queue(service, queue, what, error));
    fy_run_request *request = take_request(service);
    FY_TRY(fy_check_memory(request != NULL, "a request", error));
    const fy_queued call = {.what = what,
                            .function = run_queued,
                            .ended = end_queued,
                            .context = &request,
                            .context_bytes = sizeof request,
                            .begins = begin_launched,
                            .forgotten = forget_captured};
    request->on_queue = request->is_captured = true;
    ferry_status status =
        fy_transport_capture(service->transport, queue, &call, &service->captures, error);
    request->is_spare = status != FERRY_OK;
    return status;
}

static ferry_status start_on_queue(ferry_service *service, fy_queue *queue, const char *what,
                                   fy_run_request **request_out, ferry_error *error)
{
    FY_TRY(check_on_queue(service, queue, what, error));
    fy_run_request *request = take_request(service);
    FY_TRY(fy_check_memory(request != NULL, "a request", error));
    *request_out = request;
    return enqueue(request, queue, what, error);
}

static ferry_status start_now(ferry_service *service, const char *what,
                              fy_run_request **request_out, ferry_error *error)
{
    FY_TRY(fy_service_check_order(service, what, error));
    FY_TRY(check_free(service, error));
    fy_run_request *request = take_request(service);
    FY_TRY(fy_check_memory(request != NULL, "a request", error));
    atomic_store(&service->runs_in_host, true); /* a launch of a graph comes when it likes */
    ferry_status status = begin(request, error);
    request->is_spare = status != FERRY_OK;
    if (status != FERRY_OK) {
        atomic_store(&service->runs_in_host, false);
    }
    *request_out = request;
    return status;
}

/* *request_out stays NULL where a graph has the run from here on. */
static ferry_status start(ferry_service *service, ferry_queue *handle, const char *what,
                          bool is_asked_for, fy_run_request **request_out, ferry_error *error)
{
    fy_queue *queue;
    bool is_captured = false;
    FY_TRY(check_run(service, error));
    FY_TRY(fy_queue_enter(handle, what, &queue, error));
    ferry_status status = fy_queue_is_captured(queue, &is_captured, error);
    if (status == FERRY_OK && is_captured) {
        status = capture_run(service, queue, what, is_asked_for, error);
    } else if (status == FERRY_OK) {
        status = fy_queue_is_host(queue) ? start_now(service, what, request_out, error)
                                         : start_on_queue(service, queue, what, request_out, error);
    }
    fy_queue_leave(queue);
    return status;
}

ferry_status ferry_service_start(ferry_service *service, ferry_queue *queue,
                                 ferry_request **request_out, ferry_error *error)
{
    FY_TRY(fy_check_use(request_out != NULL, "ferry_service_start needs a place for the request",
                        error));
    fy_run_request *request = NULL;
    FY_TRY(start(service, queue, "ferry_service_start", true, &request, error));
    *request_out = &request->base;
    return FERRY_OK;
}

/*
 * The end of a run
 */

static ferry_status wait_for(fy_run_request *request, int64_t limit_ns, ferry_error *error)
{
    FY_TRY(check_process(request, error));
    if (request->on_queue) {
        return wait_for_queue(request, error);
    }
    if (!atomic_load(&request->done)) {
        ferry_service *service = request->service;
        FY_TRY(fy_world_check_order(service->world, "ferry_request_wait", error));
        if (pthread_mutex_lock(&service->working) != 0) {
            return fy_fail(error, FERRY_ERR_MISUSE,
                           "ferry_request_wait within a progress callback waits for itself");
        }
        if (!atomic_load(&request->done)) {
            work_until_over(request, limit_ns);
            close_run(request);
            atomic_store(&request->done, true);
        }
        pthread_mutex_unlock(&service->working);
    }
    return outcome_of(request, error);
}

static ferry_status run_request_wait(ferry_request *base, ferry_error *error)
{
    return wait_for((fy_run_request *)base, 0, error);
}

ferry_status fy_request_drop(fy_run_request *request)
{
    return wait_for(request, request->service->world->settings.deadline_ns, NULL);
}

static ferry_status run_request_test(ferry_request *base, bool *done_out, ferry_error *error)
{
    fy_run_request *request = (fy_run_request *)base;
    ferry_status status = check_process(request, error);
    *done_out = status != FERRY_OK || atomic_load(&request->done);
    if (*done_out) {
        return status != FERRY_OK ? status : outcome_of(request, error);
    }
    ferry_service *service = request->service;
    if (request->on_queue) {
        return FERRY_OK;
    }
    FY_TRY(fy_world_check_order(service->world, "ferry_request_test", error));
    if (pthread_mutex_trylock(&service->working) != 0) {
        return FERRY_OK; /* another thread works on it */
    }
    if (!atomic_load(&request->done)) {
        int64_t until = fy_now_ns() + TEST_NS;
        fy_transport_work(service->transport);
        while (!fy_run_is_over(service) && advance(request) && fy_now_ns() < until) {}
        if (fy_run_is_over(service)) {
            call_back(request, true);
            close_run(request);
            atomic_store(&request->done, true);
        }
    }
    *done_out = atomic_load(&request->done);
    if (!*done_out) { /* who tests one run after the other holds up nobody who has another order */
        fy_works_move(service->world);
    }
    pthread_mutex_unlock(&service->working);
    return *done_out ? outcome_of(request, error) : FERRY_OK;
}

static void run_request_cancel(ferry_request *base)
{
    /* From any thread, also while another one ends the service: only what is the request's. */
    fy_run_request *request = (fy_run_request *)base;
    atomic_store(&request->cancelled, true);
}

static void run_request_destroy(ferry_request *base)
{
    fy_run_request *request = (fy_run_request *)base;
    if (request->service == NULL) { /* its service is gone */
        fy_free(request);
        return;
    }
    if (check_process(request, NULL) != FERRY_OK) {
        return;
    }
    if (!request->on_queue) {
        fy_order_await(request->service->world);
        fy_request_drop(request);
    }
    abandon(request);
}

static const fy_request_ops run_request_ops = {
    .test = run_request_test,
    .wait = run_request_wait,
    .cancel = run_request_cancel,
    .destroy = run_request_destroy,
};

/* Of a run on a queue nobody has the request. */
ferry_status ferry_service_run(ferry_service *service, ferry_queue *queue, ferry_error *error)
{
    fy_run_request *request = NULL;
    FY_TRY(start(service, queue, "ferry_service_run", false, &request, error));
    if (request == NULL) {
        return FERRY_OK;
    }
    ferry_status status = request->on_queue ? FERRY_OK : wait_for(request, 0, error);
    abandon(request);
    return status;
}

void ferry_service_set_progress(ferry_service *service, ferry_progress_fn progress, void *context)
{
    if (service != NULL) {
        service->progress = progress;
        service->progress_context = context;
    }
}
