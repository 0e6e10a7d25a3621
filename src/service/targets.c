/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Versions: what each destination holds. */
#include "service/delta.h"

#include "world/agree.h"
#include "world/order.h"

static bool swaps(const ferry_service *service)
{
    return service->options.commit == FERRY_COMMIT_SWAP;
}

/* What was registered by hand has no back, also where runs swap. */
static bool is_in_place(const fy_registry *registry, const fy_target *target)
{
    return registry->held[target->held].back.base == NULL;
}

/*
 * A run that completes a version may be for others: ranks that joined after it was whole here. What
 * has it is left alone. (Not what is made here or multiplied: of that all comes again.)
 */
static bool is_kept(const ferry_service *service, const fy_target *target)
{
    return service->program->completes && target->lacks_nothing &&
           service->registry.n_products == 0 && service->registry.n_makings == 0 &&
           target->state == FERRY_TENSOR_VALID && target->version == service->n_begun;
}

/* Before any peer is told that it may write. */
void fy_targets_begin(ferry_service *service)
{
    fy_registry *registry = &service->registry;
    service->run->version = ++service->n_begun;
    service->run->is_whole = false;
    fy_delta_begin(service);
    for (size_t i = 0; i < registry->n_targets; i++) {
        fy_target *target = &registry->targets[i];
        target->missing = 0;
        target->is_kept = is_kept(service, target);
        if (target->bytes > 0 && is_in_place(registry, target) && !target->is_kept) {
            target->state = FERRY_TENSOR_TORN;
            target->version = service->n_begun;
        }
    }
}

static void miss(fy_registry *registry, const fy_lane *lane, size_t from_item, bool is_local)
{
    for (size_t i = from_item; i < lane->n_items; i++) {
        const fy_item *item = &lane->items[i];
        for (uint32_t p = 0; p < item->n_parts; p++) {
            const fy_item_part *part = &lane->parts[item->first_part + p];
            uint32_t receive = is_local ? part->place : part->end;
            const fy_end *end = &registry->receives.items[receive];
            uint32_t destination = registry->held[end->held].destination;
            if (destination != FY_NONE) { /* else what is made of it is missed */
                registry->targets[destination].missing +=
                    fy_bytes_there(fy_end_conversion(registry, end), part->bytes);
            }
        }
    }
}

/* Codes that were not multiplied are no values: all of them. */
static void miss_products(fy_registry *registry, size_t n_made)
{
    for (size_t i = n_made; i < registry->n_products; i++) {
        if (fy_product_is_missing(registry, n_made, i)) {
            fy_target *target =
                &registry->targets[registry->held[registry->products[i].target].destination];
            target->missing = target->bytes;
        }
    }
}

static void count_missing(ferry_service *service)
{
    fy_run_state *run = service->run;
    miss(&service->registry, &service->program->local, run->n_local, true);
    for (uint32_t c = 0; c < service->program->n_channels; c++) {
        const fy_channel_state *state = &run->channels[c];
        miss(&service->registry, &state->channel->in, state->n_dealt, false);
    }
    miss_products(&service->registry, run->products.n_done);
    fy_makings_miss(service);
}

void fy_targets_miss(ferry_service *service)
{
    service->run->version = ++service->n_begun;
    service->run->is_whole = false;
    service->run->delta.n_whole = 0;
    for (size_t i = 0; i < service->registry.n_targets; i++) {
        service->registry.targets[i].missing = 0;
    }
    count_missing(service);
}

static void swap_buffers(fy_registry *registry)
{
    for (size_t i = 0; i < registry->n_held; i++) {
        fy_held *held = &registry->held[i];
        bool is_kept = held->destination != FY_NONE && registry->targets[held->destination].is_kept;
        if (held->back.base != NULL && !is_kept) {
            ferry_buffer front = held->front;
            held->front = held->back;
            held->back = front;
        }
    }
}

/* The version is whole everywhere. */
static void commit(ferry_service *service)
{
    service->version = service->n_begun;
    service->run->is_whole = true;
    if (swaps(service)) {
        swap_buffers(&service->registry);
        service->run->side ^= 1;
    }
}

static void make_valid(ferry_service *service, fy_target *target)
{
    target->state = FERRY_TENSOR_VALID;
    target->version = service->n_begun;
    target->missing = 0;
}

void fy_targets_end(ferry_service *service, bool ok)
{
    fy_registry *registry = &service->registry;
    service->run->delta.n_whole = ok ? service->run->delta.n_whole + 1 : 0;
    if (!ok) {
        count_missing(service);
    }
    for (size_t i = 0; i < registry->n_targets; i++) {
        fy_target *target = &registry->targets[i];
        /* In place a tensor that got every byte is whole, whatever became of the others. */
        if (target->bytes > 0 && (ok || (is_in_place(registry, target) && target->missing == 0))) {
            make_valid(service, target);
        }
    }
    if (ok) {
        commit(service);
    }
}

/*
 * Asking
 */

uint64_t ferry_service_destination_count(const ferry_service *service)
{
    return service == NULL ? 0 : service->registry.n_targets - service->registry.n_staged;
}

ferry_status ferry_service_destination_at(const ferry_service *service, uint64_t index,
                                          ferry_destination *destination_out, ferry_error *error)
{
    if (service == NULL || index >= ferry_service_destination_count(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_destination_at needs a service and an index below "
                       "ferry_service_destination_count");
    }
    FY_TRY(fy_service_check_idle(service, "ferry_service_destination_at", error));
    const fy_registry *registry = &service->registry;
    const fy_target *target =
        &registry->targets[index < registry->first_staged ? index : index + registry->n_staged];
    ferry_destination found = {
        .name = registry->names == NULL ? "" : registry->names + target->name,
        .state = target->state,
        .version = target->version,
        .bytes = target->bytes,
        .missing = target->missing,
        .buffer = registry->held[target->held].front,
    };
    return fy_copy_out(&found, sizeof found, destination_out, "ferry_destination", error);
}

uint64_t ferry_service_version(const ferry_service *service)
{
    return service == NULL ? 0 : service->version;
}

uint64_t ferry_service_next_version(const ferry_service *service)
{
    return service == NULL ? 0 : service->n_begun + 1;
}

/*
 * After a loss
 */

/*
 * The version that this rank has whole, committed or not: every byte of the last run came. A
 * schedule that has not run says nothing of the run before it.
 */
static uint64_t whole_version(const ferry_service *service)
{
    const fy_registry *registry = &service->registry;
    uint64_t missing = 0;
    if (service->n_begun == service->version || service->run == NULL ||
        service->run->version != service->n_begun) {
        return service->version;
    }
    for (size_t i = 0; i < registry->n_targets; i++) {
        missing += registry->targets[i].missing;
    }
    return missing == 0 ? service->n_begun : service->version;
}

/* This rank had missed only the news. */
static void commit_late(ferry_service *service)
{
    fy_registry *registry = &service->registry;
    for (size_t i = 0; i < registry->n_targets; i++) {
        if (registry->targets[i].bytes > 0) {
            make_valid(service, &registry->targets[i]);
        }
    }
    commit(service);
}

/*
 * In place nothing older is left to go back to, once a later run has begun to write. And who joined
 * has nothing older at all, however runs end.
 */
static bool still_has(const ferry_service *service, uint64_t version)
{
    const fy_registry *registry = &service->registry;
    for (size_t i = 0; i < registry->n_targets; i++) {
        const fy_target *target = &registry->targets[i];
        bool is_its = target->state == FERRY_TENSOR_VALID && target->version == version;
        bool may_lack = is_in_place(registry, target) || target->state == FERRY_TENSOR_UNTOUCHED;
        if (target->bytes > 0 && !target->is_staged && may_lack && !is_its) {
            return false;
        }
    }
    return true;
}

/* The least of what the ranks say. */
static ferry_status least_of(ferry_world *world, uint64_t own, uint64_t *least_out,
                             ferry_error *error)
{
    fy_field least = {.name = "version", .value = own, .how = FY_LEAST};
    ferry_status status =
        fy_agree_on(world, FY_JOINT_SERVICE_RECOVER, 0, &least, 1, FERRY_OK, error);
    *least_out = least.value;
    return status;
}

static ferry_status recover(ferry_service *service, ferry_world *survivors, uint64_t *version_out,
                            ferry_error *error)
{
    uint64_t whole;
    ferry_status status = least_of(survivors, whole_version(service), &whole, error);
    if (status != FERRY_OK) {
        return status;
    }
    if (whole > service->version && service->n_begun == whole) {
        commit_late(service);
    }
    /* Every rank answers the same: one that tore nothing cannot know that others did. */
    status = least_of(survivors, still_has(service, whole) ? whole : 0, &whole, error);
    if (status == FERRY_OK) {
        *version_out = whole;
    }
    return status;
}

ferry_status ferry_service_recover(ferry_service *service, ferry_world *survivors,
                                   uint64_t *version_out, ferry_error *error)
{
    if (service == NULL || survivors == NULL || version_out == NULL ||
        fy_service_is_busy(service)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_recover needs a service without a run under way, the world "
                       "of the survivors and a place for the version");
    }
    ferry_status status = fy_world_check_process(service->world, error);
    if (status != FERRY_OK) {
        return status;
    }
    FY_TRY(fy_world_check_order(service->world, "ferry_service_recover", error));
    fy_joint_enter(survivors, FY_JOINT_SERVICE_RECOVER, 0);
    status = recover(service, survivors, version_out, error);
    fy_joint_leave(survivors);
    return status;
}
