/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Other addresses for the tensors of a bound plan. */
#include "service/ledger.h"
#include "service/prepare.h"

#include "base/alloc.h"
#include "world/agree.h"
#include "world/order.h"

#include <string.h>

static ferry_status check_length(const char *name, const ferry_buffer *old_buffer,
                                 const ferry_buffer *new_buffer, ferry_error *error)
{
    if (new_buffer == NULL || new_buffer->bytes != old_buffer->bytes) {
        return fy_fail(error, FERRY_ERR_INVALID_INPUT,
                       "tensor \"%s\" cannot be bound to %llu bytes: it has %llu, and pairs stay "
                       "pairs",
                       name, (unsigned long long)(new_buffer == NULL ? 0 : new_buffer->bytes),
                       (unsigned long long)old_buffer->bytes);
    }
    return fy_buffer_check(new_buffer, name, error);
}

/* What has no name is the service's own, and so are scales that come with codes. */
static bool is_own(const fy_registry *registry, const fy_held *held)
{
    return registry->names[held->name] == '\0' ||
           (held->destination != FY_NONE && registry->targets[held->destination].is_staged);
}

/* Puts the new buffers of one side into place where `apply`, else only checks them. */
static ferry_status replace(fy_registry *registry, const ferry_tensors *tensors,
                            bool is_destination, bool apply, ferry_error *error)
{
    size_t index = SIZE_MAX;
    for (size_t i = 0; tensors != NULL && i < registry->n_held; i++) {
        fy_held *held = &registry->held[i];
        const char *name = registry->names + held->name;
        if ((held->destination != FY_NONE) != is_destination || is_own(registry, held)) {
            continue;
        }
        index = fy_tensors_find(tensors, name, index + 1);
        if (index == SIZE_MAX) {
            continue;
        }
        const ferry_buffer *front = fy_tensors_front(tensors, index);
        const ferry_buffer *back = fy_tensors_back(tensors, index);
        ferry_status status = check_length(name, &held->front, front, error);
        if (status == FERRY_OK && held->back.base != NULL) {
            status = check_length(name, &held->back, back, error);
        }
        if (status != FERRY_OK) {
            return status;
        }
        if (apply) {
            if (is_destination && held->front.base != front->base) {
                fy_target *target = &registry->targets[held->destination];
                target->state = FERRY_TENSOR_UNTOUCHED;
                target->version = target->missing = 0;
            }
            held->front = *front;
            if (held->back.base != NULL) {
                held->back = *back;
            }
            fy_registry_note(registry, &held->front);
            fy_registry_note(registry, &held->back);
        }
    }
    return FERRY_OK;
}

static ferry_status check_rebind(const ferry_service *service, ferry_error *error)
{
    if (!ferry_service_initialized(service) || fy_service_is_busy(service) ||
        !service->registry.scheduled || service->registry.plan == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_rebind needs a scheduled service with a bound plan and "
                       "without a run under way");
    }
    FY_TRY(fy_world_check_order(service->world, "ferry_service_rebind", error));
    return FERRY_OK;
}

/* What new addresses replace. */
typedef struct old_addresses {
    fy_held *held;
    fy_target *targets;
} old_addresses;

static void free_old(old_addresses *old)
{
    fy_free(old->held);
    fy_free(old->targets);
}

static ferry_status keep_old(const fy_registry *registry, old_addresses *old, ferry_error *error)
{
    old->held = fy_alloc(registry->n_held + 1, sizeof *old->held);
    old->targets = fy_alloc(registry->n_targets + 1, sizeof *old->targets);
    FY_TRY(fy_check_memory(old->held != NULL && old->targets != NULL, "other addresses", error));
    if (registry->n_held > 0) {
        memcpy(old->held, registry->held, registry->n_held * sizeof *old->held);
    }
    if (registry->n_targets > 0) {
        memcpy(old->targets, registry->targets, registry->n_targets * sizeof *old->targets);
    }
    return FERRY_OK;
}

static void put_back(fy_registry *registry, const old_addresses *old)
{
    if (registry->n_held > 0) {
        memcpy(registry->held, old->held, registry->n_held * sizeof *old->held);
    }
    if (registry->n_targets > 0) {
        memcpy(registry->targets, old->targets, registry->n_targets * sizeof *old->targets);
    }
}

/* On all ranks or on none: who cannot go by the new ones leaves everybody with the old ones. */
static ferry_status take_new(ferry_service *service, const ferry_tensors *sources,
                             const ferry_tensors *destinations, ferry_error *why)
{
    fy_registry *registry = &service->registry;
    old_addresses old = {.held = NULL};
    ferry_status status = keep_old(registry, &old, why);
    bool has_new = status == FERRY_OK;
    if (has_new) {
        replace(registry, sources, false, true, NULL);
        replace(registry, destinations, true, true, NULL);
        status = fy_check_writers(registry, service->world->rank, why);
    }
    status = fy_agree(service->world, status, why);
    if (status != FERRY_OK && has_new) {
        put_back(registry, &old);
    }
    free_old(&old);
    return status;
}

static ferry_status rebind(ferry_service *service, const ferry_tensors *sources,
                           const ferry_tensors *destinations, ferry_error *error)
{
    ferry_error why = {.message = ""};
    fy_registry *registry = &service->registry;
    ferry_status status = fy_take_refusal(service, &why);
    FY_THEN(status, replace(registry, sources, false, false, &why));
    FY_THEN(status, replace(registry, destinations, true, false, &why));
    FY_THEN(status, fy_ledger_keep(service, &why));
    status = fy_agree(service->world, status, &why);
    if (status != FERRY_OK) {
        return fy_forward(error, status, &why); /* everything is as it was */
    }
    status = take_new(service, sources, destinations, &why);
    FY_THEN(status, fy_prepare_again(service, FERRY_OK, &why));
    return fy_forward(error, status, &why);
}

ferry_status ferry_service_rebind(ferry_service *service, const ferry_tensors *sources,
                                  const ferry_tensors *destinations, ferry_error *error)
{
    ferry_status status = check_rebind(service, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t before = fy_exchanges_enter(service, FY_JOINT_SERVICE_REBIND);
    status = rebind(service, sources, destinations, error);
    fy_exchanges_leave(service, before);
    return status;
}
