/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry_service_schedule: from what the ranks registered to what runs execute. Local steps take
 * turns with collective ones; a rank that fails goes on to the next agreement, so that nobody waits
 * for it in vain.
 */
#include "service/ledger.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "transport/agree.h"
#include "transport/host.h"

#include <string.h>
#include <unistd.h>

/* What every rank tells before it is decided how to go on. */
typedef struct facts {
    uint64_t copies; /* whether this rank has bytes to move */
    uint64_t node;
    uint64_t needs_rounds;
    uint64_t element_bytes; /* the largest element that it sends */
    uint64_t cannot_plan;   /* it has no plan, or one of other ranks, or only parts are missing */
    uint64_t is_partial;    /* only parts are missing */
} facts;

typedef struct common {
    bool needs_rounds;
    bool can_plan;
    bool is_partial;
    uint64_t element_bytes;
    uint32_t n_copying; /* ranks of this node that have bytes to move */
} common;

static uint64_t options_hash(const ferry_service *service)
{
    const ferry_service_options *o = &service->options;
    uint64_t values[] = {o->memory_cap, o->slot_bytes, o->max_tasks, o->checksum,
                         o->commit,     o->paths,      o->no_relays, o->first_version};
    return fy_hash64(values, sizeof values);
}

static bool plan_fits(const ferry_service *service)
{
    const ferry_world *world = service->world;
    const ferry_plan *plan = service->registry.plan;
    return plan != NULL && ferry_world_epoch(world) == 0 &&
           ferry_plan_world_size(plan) == world->n_ranks;
}

static facts facts_of(ferry_service *service)
{
    const fy_registry *registry = &service->registry;
    facts own = {.copies = registry->sends.n > 0,
                 .node = service->world->node_of[service->world->rank],
                 .cannot_plan = !plan_fits(service) || service->exec->wants_of != NULL,
                 .is_partial = service->exec->wants_of != NULL};
    uint32_t last = FY_NONE;
    for (size_t i = 0; i < registry->sends.n; i++) {
        const fy_end *end = &registry->sends.items[i];
        uint32_t peer = end->peer;
        own.element_bytes =
            end->element_bytes > own.element_bytes ? end->element_bytes : own.element_bytes;
        if (own.needs_rounds == 0 && peer != last && peer != service->world->rank) {
            own.needs_rounds = !fy_peer_is_direct(service, peer);
            last = peer;
        }
    }
    return own;
}

static ferry_status gather_facts(ferry_service *service, common *common_out, ferry_error *error)
{
    facts own = facts_of(service);
    common all = {.can_plan = true};
    const void *list = NULL;
    ferry_status status = ferry_world_all_gather(service->world, &own, sizeof own, &list, error);
    for (uint32_t rank = 0; status == FERRY_OK && rank < service->world->n_ranks; rank++) {
        facts its;
        memcpy(&its, (const char *)list + rank * sizeof its, sizeof its);
        all.needs_rounds = all.needs_rounds || its.needs_rounds != 0;
        all.can_plan = all.can_plan && its.cannot_plan == 0;
        all.is_partial = all.is_partial || its.is_partial != 0;
        all.element_bytes =
            its.element_bytes > all.element_bytes ? its.element_bytes : all.element_bytes;
        all.n_copying += its.copies != 0 && its.node == own.node;
    }
    *common_out = all;
    return status;
}

/* The cores of a node are shared by those of its ranks that copy. */
static ferry_status make_team(ferry_service *service, const common *all, ferry_error *error)
{
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = service->options.n_threads;
    if (n == 0) {
        n = all->n_copying == 0 || n_cores < 1 ? 1 : (uint32_t)n_cores / all->n_copying;
        n = n < 1 ? 1 : n;
    }
    if (service->team != NULL && fy_team_size(service->team) == n) {
        return FERRY_OK;
    }
    fy_team_destroy(service->team);
    service->team = NULL;
    service->statistics.n_allocations++;
    return fy_team_create(n, &service->team, error);
}

/* No rank that was left behind may still write to what is called valid later. */
static ferry_status secure(const fy_registry *registry, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    for (size_t i = 0; status == FERRY_OK && i < registry->n_held; i++) {
        const fy_held *held = &registry->held[i];
        if (held->destination != FY_NONE) {
            status = fy_memory_secure(held->front.base, held->front.bytes, error);
        }
        if (status == FERRY_OK && held->destination != FY_NONE) {
            status = fy_memory_secure(held->back.base, held->back.bytes, error);
        }
    }
    return status;
}

static ferry_status make_exec(ferry_service *service, ferry_error *error)
{
    service->exec = fy_alloc_zeroed(1, sizeof *service->exec);
    if (service->exec == NULL) {
        return fy_fail_no_memory(error, "a schedule");
    }
    service->statistics.n_allocations++;
    ferry_status status = fy_request_provide(service, error);
    if (status == FERRY_OK) {
        status = secure(&service->registry, error);
    }
    return status == FERRY_OK && service->ledger != NULL ? fy_ledger_apply(service, error) : status;
}

/* One step of a conversation: a message for each channel, and what is made of the answers. */
typedef ferry_status (*write_fn)(ferry_service *service, fy_channel *channel, fy_pack *out,
                                 ferry_error *error);
typedef ferry_status (*read_fn)(ferry_service *service, fy_channel *channel, const fy_pack *in,
                                ferry_error *error);

static ferry_status converse(ferry_service *service, ferry_status before, ferry_error *why,
                             write_fn write, read_fn read)
{
    fy_exec *exec = service->exec;
    size_t n = exec == NULL ? 0 : exec->n_channels;
    fy_pack *packs = fy_alloc_zeroed(2 * n + 1, sizeof *packs);
    ferry_status status = before;
    if (status == FERRY_OK && packs == NULL) {
        status = fy_fail_no_memory(why, "messages between ranks");
    }
    for (uint32_t c = 0; status == FERRY_OK && c < n; c++) {
        status = write(service, &exec->channels[c], &packs[c], why);
    }
    status = fy_agree(service->world, status, why);
    if (status == FERRY_OK) {
        status = fy_pairs_exchange(service, packs, packs + n, why);
    }
    for (uint32_t c = 0; status == FERRY_OK && c < n; c++) {
        status = read(service, &exec->channels[c], &packs[n + c], why);
    }
    for (size_t i = 0; packs != NULL && i < 2 * n; i++) {
        fy_pack_cleanup(&packs[i]);
    }
    fy_free(packs);
    return status;
}

static ferry_status make_items(ferry_service *service, bool needs_rounds, ferry_status before,
                               ferry_error *why)
{
    ferry_status status = fy_agree(service->world, before, why);
    if (status == FERRY_OK) {
        status = needs_rounds ? fy_order_sends(service, why) : fy_items_make(service, why);
    }
    if (status == FERRY_OK) {
        status = fy_items_local(service, why);
    }
    return status == FERRY_OK ? fy_items_finish(service, why) : status;
}

static ferry_status make_spans(ferry_service *service, ferry_error *error)
{
    fy_exec *exec = service->exec;
    if (!service->options.trace) {
        return FERRY_OK;
    }
    size_t n = 64 + 2 * exec->local.n_items;
    for (uint32_t c = 0; c < exec->n_channels; c++) {
        n += 3 * (exec->channels[c].out.n_items + exec->channels[c].in.n_items);
    }
    exec->spans = fy_alloc(n, sizeof *exec->spans);
    exec->span_capacity = n;
    return exec->spans == NULL ? fy_fail_no_memory(error, "a trace") : FERRY_OK;
}

/* Behind the matching, where all ranks have the same to go on with. */
static ferry_status prepare(ferry_service *service, ferry_error *why)
{
    common all = {0};
    ferry_status status = gather_facts(service, &all, why);
    if (status != FERRY_OK) {
        return status;
    }
    service->exec->is_partial = all.is_partial;
    if (all.needs_rounds && all.can_plan && service->exec->rounds == NULL) {
        status = fy_order_plan(service, all.element_bytes, why);
        if (status != FERRY_OK) {
            return status; /* on all ranks */
        }
    }
    status = fy_channels_make(service, why);
    for (uint32_t c = 0; status == FERRY_OK && c < service->exec->n_channels; c++) {
        fy_channel *channel = &service->exec->channels[c];
        channel->in_turns = all.needs_rounds && !channel->direct;
    }
    status = fy_agree(service->world, status, why);
    if (status == FERRY_OK) {
        fy_rings_lay_out(service);
        status = converse(service, status, why, fy_places_write, fy_places_read);
        status = make_items(service, all.needs_rounds, status, why);
        status = fy_agree(service->world, status, why);
    }
    if (status == FERRY_OK) {
        status = converse(service, status, why, fy_manifest_write, fy_manifest_read);
    }
    if (status == FERRY_OK) {
        status = fy_arrivals_check(service, why);
    }
    if (status == FERRY_OK) {
        status = make_team(service, &all, why);
    }
    if (status == FERRY_OK) {
        status = make_spans(service, why);
    }
    status = fy_agree(service->world, status, why);
    return status == FERRY_OK ? fy_staging_make(service, why) : status;
}

static void drop_exec(ferry_service *service)
{
    fy_run_settle(service);
    fy_exec_destroy(service->exec);
    service->exec = NULL;
    service->registry.scheduled = false;
}

/* What it takes the place of is not needed any more. */
static void have_exec(ferry_service *service)
{
    service->registry.scheduled = true;
    ferry_ledger_destroy(service->ledger);
    ferry_ledger_destroy(service->kept);
    service->ledger = service->kept = NULL;
}

ferry_status fy_prepare_again(ferry_service *service, ferry_status before, ferry_error *error)
{
    ferry_error why = *error;
    ferry_schedule *rounds = service->exec->rounds;
    ferry_status status = before;
    service->exec->rounds = NULL;
    drop_exec(service);
    if (status == FERRY_OK) {
        status = make_exec(service, &why);
    }
    if (status == FERRY_OK) {
        service->exec->rounds = rounds;
        status = fy_check_writers(&service->registry, service->world->rank, &why);
    } else {
        ferry_schedule_destroy(rounds);
    }
    status = fy_agree(service->world, status, &why);
    if (status == FERRY_OK) {
        status = prepare(service, &why);
        status = fy_agree(service->world, status, &why);
    }
    if (status != FERRY_OK) {
        drop_exec(service);
        return fy_fail(error, status, "%s", why.message);
    }
    have_exec(service);
    return FERRY_OK;
}

/*
 * A rank that never began the run that failed elsewhere has an older ledger, or none: nothing of
 * the version that is resumed is there. And no rank's version goes back because another knew of
 * less.
 */
static ferry_status agree_on_ledgers(ferry_service *service, ferry_error *error)
{
    const ferry_ledger *ledger = service->ledger;
    uint64_t own = ledger == NULL ? 0 : fy_ledger_version(ledger); /* 0: none */
    enum { RESUMES, WHOLE, N };
    fy_merged most[N] = {{own, FY_MOST}, {service->version, FY_MOST}};
    ferry_status status = fy_merge_numbers(service->world, most, N, error);
    if (status == FERRY_OK && own < most[RESUMES].value) {
        ferry_ledger_destroy(service->ledger);
        service->ledger = NULL;
        if (service->n_begun < most[RESUMES].value) {
            service->n_begun = most[RESUMES].value - 1;
        }
    }
    if (status == FERRY_OK && most[RESUMES].value > 0) {
        service->version = most[WHOLE].value;
    }
    return status;
}

static ferry_status check_schedule(const ferry_service *service, ferry_error *error)
{
    if (service == NULL || !service->initialized || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_schedule needs a service between init and finalize");
    }
    if (service->registry.scheduled) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "what is registered is scheduled already: clear the requests first");
    }
    return FERRY_OK;
}

static ferry_status schedule(ferry_service *service, ferry_error *error)
{
    ferry_error why = {.message = ""};
    fy_registry_sort(&service->registry);
    if (service->ledger != NULL) {
        fy_ledger_inherit(service, service->ledger);
    }
    ferry_status status = agree_on_ledgers(service, error);
    if (status != FERRY_OK) {
        return status;
    }
    status = fy_take_refusal(service, &why);
    if (status == FERRY_OK) {
        status = make_exec(service, &why);
    }
    if (status == FERRY_OK) {
        status = fy_check_writers(&service->registry, service->world->rank, &why);
    }
    ferry_error all = {.message = ""};
    status =
        fy_match(service->world, &service->registry, options_hash(service), status, &why, &all);
    if (status == FERRY_OK) {
        status = prepare(service, &all);
        status = fy_agree(service->world, status, &all);
    }
    if (status != FERRY_OK) {
        drop_exec(service);
        return fy_fail(error, status, "%s", all.message);
    }
    service->statistics.n_schedules++;
    have_exec(service);
    return FERRY_OK;
}

ferry_status ferry_service_schedule(ferry_service *service, ferry_error *error)
{
    ferry_status status = check_schedule(service, error);
    if (status != FERRY_OK) {
        return status;
    }
    fy_joint_enter(service->world, FY_JOINT_SERVICE_SCHEDULE, fy_service_object(service));
    status = schedule(service, error);
    fy_joint_leave(service->world);
    return status;
}
