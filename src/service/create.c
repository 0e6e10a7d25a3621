/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The life of a service, and what it is told. */
#include "service/prepare.h"
#include "service/run.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/options.h"
#include "base/print.h"
#include "plan/shards.h"
#include "transport/host.h"
#include "world/agree.h"
#include "world/order.h"

#include <string.h>

static ferry_status check_options(const ferry_service_options *options, ferry_error *error)
{
    if (options->checksum > FERRY_CHECKSUM_END || options->commit > FERRY_COMMIT_SWAP) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "service options: %u is not a ferry_checksum or %u is not a ferry_commit",
                       options->checksum, options->commit);
    }
    if ((options->paths & ~(uint32_t)FERRY_PATH_ALL) != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE, "service options: %#x are not FERRY_PATH_ flags",
                       options->paths);
    }
    if (options->device < -1) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "service options: %d is no device: they are numbered from 0, and -1 is the "
                       "host",
                       options->device);
    }
    if (options->first_version > FY_MOST_VERSION) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "service options: first_version %llu is beyond the last version, %llu",
                       (unsigned long long)options->first_version,
                       (unsigned long long)FY_MOST_VERSION);
    }
    enum { MOST_THREADS = 1024 };
    if (options->n_threads > MOST_THREADS) {
        return fy_fail(error, FERRY_ERR_LIMIT, "service options: %u threads are more than %d",
                       options->n_threads, (int)MOST_THREADS);
    }
    return FERRY_OK;
}

static void complete_options(ferry_service_options *options)
{
    if (options->memory_cap == 0) {
        options->memory_cap = FERRY_MEMORY_CAP;
    }
    if (options->slot_bytes == 0) {
        options->slot_bytes = FERRY_SLOT_BYTES;
    }
    if (options->slot_bytes > options->memory_cap) {
        options->slot_bytes = options->memory_cap;
    }
    if (options->max_tasks == 0) {
        options->max_tasks = FERRY_MAX_TASKS;
    }
    if (options->paths != 0) {
        options->paths |= FERRY_PATH_LOCAL | FERRY_PATH_STAGED;
    }
}

ferry_status ferry_service_create(ferry_world *world, const ferry_service_options *options,
                                  ferry_service **service_out, ferry_error *error)
{
    if (world == NULL || service_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_create needs a world and a place for the service");
    }
    ferry_service_options own;
    ferry_status status = fy_take_service_options(options, &own, error);
    FY_THEN(status, check_options(&own, error));
    if (status != FERRY_OK) {
        return status;
    }
    if (own.transport != NULL && own.transport->world != world) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "the transport of the service's options belongs to another world");
    }
    ferry_service *service = fy_alloc_zeroed(1, sizeof *service);
    char *engines = own.engines == NULL ? NULL : fy_strdup(own.engines);
    if (service == NULL || (own.engines != NULL && engines == NULL)) {
        fy_free(service);
        fy_free(engines);
        return fy_fail_no_memory(error, "a copy service");
    }
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK); /* a callback that waits */
    pthread_mutex_init(&service->working, &attributes);
    pthread_mutexattr_destroy(&attributes);
    pthread_mutex_init(&service->queue_lock, NULL);
    pthread_cond_init(&service->queue_moved, NULL);
    service->options = own;
    service->options.engines = service->own_engines = engines;
    complete_options(&service->options);
    service->world = world;
    service->n_begun = own.first_version > 0 ? own.first_version - 1 : 0;
    service->statistics.struct_size = sizeof service->statistics;
    fy_world_retain(world);
    if (own.transport != NULL) {
        fy_transport_retain(own.transport);
        service->transport = own.transport;
    }
    *service_out = service;
    return FERRY_OK;
}

/*
 * A rank that brings a transport does not take part when the others open one. The number is the
 * same on all ranks, and no other service's: its letters carry it.
 */
static ferry_status init(ferry_service *service, ferry_error *error)
{
    enum { TRANSPORT, NUMBER, N };
    fy_field fields[N] = {
        {.name = "whether a service is given a transport (1) or opens one (0)",
         .value = service->transport != NULL,
         .how = FY_SAME},
        {.value = fy_object_propose(service->world, FY_OBJECT_SERVICE), .how = FY_MOST}};
    ferry_status status = fy_take_refusal(service, error);
    status = fy_agree_on(service->world, FY_JOINT_SERVICE_INIT, 0, fields, N, status, error);
    if (status == FERRY_OK) {
        fy_object_settle(service->world, FY_OBJECT_SERVICE, (uint32_t)fields[NUMBER].value);
    }
    if (status == FERRY_OK && service->transport == NULL) {
        status = ferry_transport_open(service->world, service->options.engines, &service->transport,
                                      error);
    }
    if (status == FERRY_OK) {
        fy_service_work_add(service, (uint32_t)fields[NUMBER].value);
    }
    return status;
}

ferry_status fy_service_open(ferry_service *service, ferry_error *error)
{
    uint64_t before = fy_exchanges_enter(service, FY_JOINT_SERVICE_INIT);
    ferry_status status = init(service, error);
    fy_exchanges_leave(service, before);
    service->initialized = status == FERRY_OK;
    return status;
}

ferry_status ferry_service_init(ferry_service *service, ferry_log_level log_level,
                                ferry_error *error)
{
    if (service == NULL || service->initialized || service->finalized ||
        (uint32_t)log_level > FERRY_LOG_OFF) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_init needs a service that was not initialized before, and a "
                       "log level");
    }
    FY_TRY(fy_world_check_order(service->world, "ferry_service_init", error));
    if (!service->refuses) {
        fy_log_set_level(log_level);
    }
    return fy_service_open(service, error);
}

uint32_t ferry_service_my_pe(const ferry_service *service)
{
    return service == NULL ? FERRY_ANY_RANK : service->world->rank;
}

uint32_t ferry_service_pe_count(const ferry_service *service)
{
    return service == NULL ? 0 : service->world->n_ranks;
}

int32_t ferry_service_device(const ferry_service *service)
{
    return service == NULL ? -1 : service->options.device;
}

bool ferry_service_initialized(const ferry_service *service)
{
    return service != NULL && service->initialized && !service->finalized;
}

ferry_transport *ferry_service_transport(const ferry_service *service)
{
    return service == NULL ? NULL : service->transport;
}

/*
 * Registration
 */

static ferry_status check_registration(const ferry_service *service, const char *what,
                                       ferry_error *error)
{
    if (!ferry_service_initialized(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a service between init and finalize",
                       what);
    }
    FY_TRY(fy_service_check_idle(service, what, error));
    if (service->registry.scheduled || service->request != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s after ferry_service_schedule: clear the requests first", what);
    }
    return FERRY_OK;
}

static ferry_status add(ferry_service *service, bool is_send, uint64_t task_id,
                        const ferry_box *box, uint32_t peer, ferry_error *error)
{
    const char *what = is_send ? "registering a send" : "registering a receive";
    ferry_status status = check_registration(service, what, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (box == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s needs a box made with FERRY_BOX_INIT", what);
    }
    ferry_box own;
    status = fy_take_box(box, &own, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (peer >= service->world->n_ranks) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "%s of task %llu: there is no rank %u in a world of %u ranks", what,
                       (unsigned long long)task_id, peer, service->world->n_ranks);
    }
    if (service->registry.plan != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "%s beside a bound plan: clear the requests first",
                       what);
    }
    return fy_registry_add(&service->registry, is_send, task_id, peer, &own, error);
}

static ferry_status add_bytes(ferry_service *service, bool is_send, uint64_t task_id,
                              const ferry_buffer *buffer, uint64_t pos, uint64_t size,
                              uint32_t peer, ferry_error *error)
{
    if (buffer == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "task %llu needs a buffer",
                       (unsigned long long)task_id);
    }
    ferry_box box = FERRY_BOX_INIT;
    box.buffer = *buffer;
    box.offset = pos;
    box.n_dims = 1;
    box.length[0] = size;
    box.stride[0] = 1;
    return add(service, is_send, task_id, &box, peer, error);
}

ferry_status ferry_service_register_send(ferry_service *service, uint64_t task_id,
                                         const ferry_buffer *src, uint64_t src_pos, uint64_t size,
                                         uint32_t dest_pe, ferry_error *error)
{
    return add_bytes(service, true, task_id, src, src_pos, size, dest_pe, error);
}

ferry_status ferry_service_register_receive(ferry_service *service, uint64_t task_id,
                                            const ferry_buffer *dest, uint64_t dest_pos,
                                            uint64_t size, uint32_t src_pe, ferry_error *error)
{
    return add_bytes(service, false, task_id, dest, dest_pos, size, src_pe, error);
}

ferry_status ferry_service_register_send_box(ferry_service *service, uint64_t task_id,
                                             const ferry_box *src, uint32_t dest_pe,
                                             ferry_error *error)
{
    return add(service, true, task_id, src, dest_pe, error);
}

ferry_status ferry_service_register_receive_box(ferry_service *service, uint64_t task_id,
                                                const ferry_box *dest, uint32_t src_pe,
                                                ferry_error *error)
{
    return add(service, false, task_id, dest, src_pe, error);
}

ferry_status ferry_service_bind(ferry_service *service, const ferry_plan *plan,
                                const ferry_tensors *sources, const ferry_tensors *destinations,
                                ferry_error *error)
{
    ferry_status status = check_registration(service, "ferry_service_bind", error);
    if (status != FERRY_OK) {
        return status;
    }
    if (plan == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_service_bind needs a plan");
    }
    fy_registry fresh = {0};
    status = fy_bind(&fresh, service->world, plan, sources, destinations,
                     service->options.commit == FERRY_COMMIT_SWAP, error);
    if (status != FERRY_OK) {
        fy_registry_cleanup(&fresh);
        return status;
    }
    fy_registry_cleanup(&service->registry);
    service->registry = fresh;
    if (service->registry.plan == NULL) {
        service->registry.plan = fy_plan_retain(plan);
    }
    return FERRY_OK;
}

/*
 * The end
 */

static void end_run(ferry_service *service)
{
    fy_requests_drop(service);
    if (service->request != NULL) {
        ferry_request_cancel(&service->request->base);
        fy_request_drop(service->request);
    }
}

ferry_status ferry_service_clear_requests(ferry_service *service, ferry_error *error)
{
    if (service == NULL || fy_service_is_busy(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_clear_requests needs a service without a run under way");
    }
    FY_TRY(fy_world_check_process(service->world, error));
    fy_service_program_drop(service);
    fy_registry_cleanup(&service->registry);
    ferry_ledger_destroy(service->ledger);
    ferry_ledger_destroy(service->kept);
    service->ledger = service->kept = NULL;
    return FERRY_OK;
}

void ferry_service_refuse(ferry_service *service, const char *reason)
{
    if (service != NULL) {
        service->refuses = reason != NULL;
        fy_print(service->refusal.message, sizeof service->refusal.message, "rank %u says: %s",
                 service->world->rank, reason == NULL ? "" : reason);
    }
}

ferry_status fy_take_refusal(ferry_service *service, ferry_error *error)
{
    if (!service->refuses) {
        return FERRY_OK;
    }
    service->refuses = false;
    return fy_forward(error, FERRY_ERR_INVALID_INPUT, &service->refusal);
}

ferry_status ferry_service_finalize(ferry_service *service, ferry_error *error)
{
    if (service == NULL || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_finalize needs a service that was not finalized before");
    }
    FY_TRY(fy_world_check_process(service->world, error));
    end_run(service);
    if (fy_service_is_busy(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_finalize within a progress callback of its run");
    }
    FY_TRY(fy_world_check_order(service->world, "ferry_service_finalize", error));
    ferry_service_clear_requests(service, NULL);
    fy_joint_enter(service->world, FY_JOINT_SERVICE_FINALIZE, fy_service_object(service));
    fy_staging_free(service);
    fy_joint_leave(service->world);
    fy_service_work_remove(service);
    fy_team_destroy(service->team);
    service->team = NULL;
    service->finalized = true;
    return FERRY_OK;
}

/* What the caller still holds of requests outlives the service. */
static void release_requests(ferry_service *service)
{
    while (service->requests != NULL) {
        fy_run_request *request = service->requests;
        service->requests = request->next;
        request->service = NULL;
        if (request->is_spare) {
            fy_free(request);
        }
    }
}

void ferry_service_destroy(ferry_service *service)
{
    if (service == NULL || fy_world_is_inherited(service->world)) {
        return;
    }
    if (!service->finalized) {
        fy_requests_drop(service);
        fy_order_await(service->world); /* work of others on a queue */
    }
    if (!service->finalized && ferry_service_finalize(service, NULL) != FERRY_OK) {
        return; /* its run goes on */
    }
    release_requests(service);
    ferry_transport_close(service->transport);
    ferry_world_destroy(service->world);
    pthread_mutex_destroy(&service->working);
    pthread_mutex_destroy(&service->queue_lock);
    pthread_cond_destroy(&service->queue_moved);
    fy_free(service->own_engines);
    fy_free(service);
}
