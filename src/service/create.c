/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* The life of a service, and what it is told. */
#include "service/exec.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/options.h"
#include "base/print.h"
#include "plan/shards.h"
#include "transport/agree.h"
#include "transport/host.h"

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
    if (status == FERRY_OK) {
        status = check_options(&own, error);
    }
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

/* A rank that brings a transport does not take part when the others open one. */
static ferry_status agree_on_transport(ferry_service *service, ferry_error *error)
{
    const void *all = NULL;
    uint64_t own = service->transport != NULL;
    ferry_status status = ferry_world_all_gather(service->world, &own, sizeof own, &all, error);
    for (uint32_t rank = 1; status == FERRY_OK && rank < service->world->n_ranks; rank++) {
        if (memcmp(all, (const char *)all + rank * sizeof own, sizeof own) != 0) {
            status = fy_fail(error, FERRY_ERR_INVALID_INPUT,
                             "either all ranks give their service a transport or none: ranks 0 and "
                             "%u differ",
                             rank);
        }
    }
    return status;
}

/* The same on all ranks, and no other service's: its letters carry it. */
static ferry_status agree_on_number(ferry_service *service, ferry_error *error)
{
    fy_merged number = {.value = fy_thing_propose(service->world, FY_THING_SERVICE),
                        .how = FY_MOST};
    ferry_status status = fy_merge_numbers(service->world, &number, 1, error);
    if (status == FERRY_OK) {
        fy_service_work_add(service, (uint32_t)number.value);
    }
    return status;
}

static ferry_status init(ferry_service *service, ferry_error *error)
{
    ferry_status status = agree_on_transport(service, error);
    if (status == FERRY_OK && service->transport == NULL) {
        status = ferry_transport_open(service->world, service->options.engines, &service->transport,
                                      error);
    }
    if (status == FERRY_OK) {
        status = agree_on_number(service, error);
    }
    return status;
}

ferry_status fy_service_open(ferry_service *service, ferry_error *error)
{
    fy_joint_enter(service->world, FY_JOINT_SERVICE_INIT, 0);
    ferry_status status = init(service, error);
    fy_joint_leave(service->world);
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
    fy_log_set_level(log_level);
    return fy_service_open(service, error);
}

uint32_t ferry_service_my_pe(const ferry_service *service)
{
    return service == NULL ? FERRY_ANY_RANK : service->world->rank;
}

uint32_t ferry_service_n_pes(const ferry_service *service)
{
    return service == NULL ? 0 : service->world->n_ranks;
}

int32_t ferry_service_device(const ferry_service *service)
{
    (void)service;
    return -1;
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
    if (service->request != NULL) {
        ferry_request_cancel(&service->request->base);
        fy_request_drop(service->request);
    }
}

ferry_status ferry_service_clear_requests(ferry_service *service, ferry_error *error)
{
    if (service == NULL || service->request != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_clear_requests needs a service without a run under way");
    }
    ferry_status status = fy_world_check_process(service->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    fy_run_settle(service);
    fy_exec_destroy(service->exec);
    service->exec = NULL;
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
    return fy_fail(error, FERRY_ERR_INVALID_INPUT, "%s", service->refusal.message);
}

ferry_status ferry_service_finalize(ferry_service *service, ferry_error *error)
{
    if (service == NULL || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_finalize needs a service that was not finalized before");
    }
    ferry_status status = fy_world_check_process(service->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    end_run(service);
    if (service->request != NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_finalize within a progress callback of its run");
    }
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
    if (!service->finalized && ferry_service_finalize(service, NULL) != FERRY_OK) {
        return; /* its run goes on */
    }
    release_requests(service);
    ferry_transport_close(service->transport);
    ferry_world_destroy(service->world);
    pthread_mutex_destroy(&service->working);
    fy_free(service->own_engines);
    fy_free(service);
}
