/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs as the caller sees them: whole, or in steps. */
#include "service/ledger.h"

#include "base/alloc.h"
#include "transport/host.h"

#include <stdatomic.h>
#include <string.h>

enum { CALLBACK_NS = 50 * 1000 * 1000, TEST_NS = 1000 * 1000 };

/* In a world that has failed, or where the caller asks to stop, this is noticed soon. */
enum { LONGEST_WAIT_NS = 10 * 1000 * 1000 };

static const fy_request_ops run_request_ops;

static ferry_status check_run(const ferry_service *service, ferry_error *error)
{
    if (service == NULL || !service->initialized || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE, "a run needs a service between init and finalize");
    }
    ferry_status status = fy_world_check_process(service->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (service->exec == NULL || !service->registry.scheduled) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a run needs a schedule: call "
                       "ferry_service_schedule before");
    }
    if (service->request != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "a run is under way: wait for its request before the next one");
    }
    return FERRY_OK;
}

/* One that was destroyed, or a new one. */
static fy_run_request *take_request(ferry_service *service)
{
    fy_run_request *request = service->requests;
    while (request != NULL && !request->is_spare) {
        request = request->next;
    }
    if (request == NULL) {
        request = fy_alloc(1, sizeof *request);
        if (request == NULL) {
            return NULL;
        }
        request->base.ops = &run_request_ops;
        request->service = service;
        request->next = service->requests;
        service->requests = request;
        service->statistics.n_allocations++;
    }
    request->is_spare = false;
    request->status = FERRY_OK;
    atomic_init(&request->done, false);
    atomic_init(&request->cancelled, false);
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

ferry_status ferry_service_start(ferry_service *service, ferry_queue *queue,
                                 ferry_request **request_out, ferry_error *error)
{
    ferry_status status = check_run(service, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (request_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_start needs a place for the request");
    }
    if (queue != NULL) {
        return fy_fail(error, FERRY_ERR_UNSUPPORTED,
                       "ferry_service_start: this version has no queues; pass NULL");
    }
    /* What was missing belongs to one version: every other run moves everything. */
    if (service->exec->is_partial && service->exec->version != 0) {
        ferry_error why = {.message = ""};
        fy_joint_enter(service->world, FY_JOINT_SERVICE_RUN, fy_service_object(service));
        status = fy_take_refusal(service, &why);
        if (status == FERRY_OK) {
            status = fy_ledger_keep(service, &why);
        }
        status = fy_prepare_again(service, status, &why);
        fy_joint_leave(service->world);
        if (status != FERRY_OK) {
            return fy_fail(error, status, "%s", why.message);
        }
    }
    fy_run_request *request = take_request(service);
    if (request == NULL) {
        return fy_fail_no_memory(error, "a request");
    }
    status = fy_run_begin(service, error);
    if (status != FERRY_OK) {
        request->is_spare = true;
        return status;
    }
    pthread_mutex_lock(&service->working);
    service->request = request;
    pthread_mutex_unlock(&service->working);
    fy_work_start(service->world, &service->work, true); /* other waits move it on, too */
    *request_out = &request->base;
    return FERRY_OK;
}

/* The request keeps the outcome; the service may begin another run. */
static void close_run(fy_run_request *request)
{
    ferry_service *service = request->service;
    const fy_outcome *outcome = &service->exec->outcome;
    request->status = outcome->status;
    request->error = outcome->error;
    service->request = NULL;
    fy_work_start(service->world, &service->work, false);
    atomic_store(&request->done, true);
}

static void call_back(fy_run_request *request, bool last)
{
    ferry_service *service = request->service;
    fy_exec *exec = service->exec;
    int64_t now_ns = fy_now_ns();
    bool is_due = exec->called_ns == 0 || now_ns - exec->called_ns >= CALLBACK_NS;
    if (service->progress == NULL || !(last || is_due)) {
        return;
    }
    exec->called_ns = now_ns;
    ferry_progress progress = {.struct_size = sizeof progress,
                               .bytes_done = exec->done_bytes,
                               .bytes_total = exec->out_bytes + exec->in_bytes + exec->local_bytes,
                               .seconds = (double)(now_ns - exec->begin_ns) / 1e9};
    if (!service->progress(service->progress_context, &progress)) {
        atomic_store(&request->cancelled, true);
    }
}

static void check_cancel(fy_run_request *request)
{
    ferry_service *service = request->service;
    if (atomic_load(&request->cancelled) && service->exec->outcome.phase == FY_PHASE_MOVING) {
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

static bool step_ready(void *context)
{
    fy_run_request *request = context;
    ferry_service *service = request->service;
    bool worked = fy_transport_work(service->transport);
    return fy_run_step(service) || worked || fy_run_is_over(service);
}

static int64_t step_sleep_ns(void *context)
{
    const fy_run_request *request = context;
    return fy_transport_sleep_ns(request->service->transport);
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
    int64_t sleep_ns = LONGEST_NS;
    if (pthread_mutex_trylock(&service->working) == 0) {
        int64_t its =
            service->request != NULL ? fy_transport_sleep_ns(service->transport) : INT64_MAX;
        sleep_ns = its < sleep_ns ? its : sleep_ns;
        pthread_mutex_unlock(&service->working);
    }
    return sleep_ns;
}

void fy_service_work_add(ferry_service *service, uint32_t number)
{
    service->work = (fy_work){
        .kind = FY_THING_SERVICE, .step = move_on, .sleep_ns = work_sleep_ns, .context = service};
    fy_work_add(service->world, &service->work, number);
}

void fy_service_work_remove(ferry_service *service)
{
    fy_work_remove(service->world, &service->work);
}

static ferry_status outcome_of(const fy_run_request *request, ferry_error *error)
{
    return request->status == FERRY_OK
               ? FERRY_OK
               : fy_fail(error, request->status, "%s", request->error.message);
}

static int64_t patience_ns(const ferry_service *service)
{
    int64_t part = service->world->settings.deadline_ns / 16;
    return part < LONGEST_WAIT_NS ? part : (int64_t)LONGEST_WAIT_NS;
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
        fy_world_wait(service->world, step_ready, step_sleep_ns, request, patience_ns(service),
                      NULL);
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

static ferry_status wait_for(fy_run_request *request, int64_t limit_ns, ferry_error *error)
{
    ferry_status status = check_process(request, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (!atomic_load(&request->done)) {
        ferry_service *service = request->service;
        if (pthread_mutex_lock(&service->working) != 0) {
            return fy_fail(error, FERRY_ERR_MISUSE,
                           "ferry_request_wait within a progress callback waits for itself");
        }
        if (!atomic_load(&request->done)) {
            work_until_over(request, limit_ns);
            close_run(request);
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
    fy_request_drop(request);
    request->is_spare = atomic_load(&request->done);
}

static const fy_request_ops run_request_ops = {
    .test = run_request_test,
    .wait = run_request_wait,
    .cancel = run_request_cancel,
    .destroy = run_request_destroy,
};

ferry_status ferry_service_run(ferry_service *service, ferry_error *error)
{
    ferry_request *request = NULL;
    ferry_status status = ferry_service_start(service, NULL, &request, error);
    if (status == FERRY_OK) {
        status = ferry_request_wait(request, error);
        ferry_request_destroy(request);
    }
    return status;
}

void ferry_service_set_progress(ferry_service *service, ferry_progress_fn progress, void *context)
{
    if (service != NULL) {
        service->progress = progress;
        service->progress_context = context;
    }
}
