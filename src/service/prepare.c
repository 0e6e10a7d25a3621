/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry_service_schedule: from what the ranks registered to what runs execute. Local steps take
 * turns with collective ones; a rank that fails goes on to the next agreement, so that nobody waits
 * for it in vain.
 */
#include "service/prepare.h"
#include "service/ledger.h"
#include "service/run.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "transport/host.h"
#include "world/agree.h"

#include <unistd.h>

enum { DIGEST_BYTES = 33 };

/*
 * What all ranks agree on before anything else: that they made the service and bound plans alike,
 * that every send has its receive, and how they go on.
 */
typedef enum fact {
    MEMORY_CAP,
    SLOT_BYTES,
    MAX_TASKS,
    CHECKSUM,
    COMMIT,
    PATHS,
    NO_RELAYS,
    FIRST_VERSION,
    DELTA,
    PLAN,
    SUM_LOW,
    SUM_HIGH,
    NEEDS_ROUNDS,
    CAN_PLAN,      /* it has a plan of these ranks, and all of it is to be moved */
    IS_PARTIAL,    /* only parts are missing */
    ELEMENT_BYTES, /* of the largest element that is sent */
    N_COPYING,     /* ranks that have bytes to move */
    LEAST_LEDGER,
    MOST_LEDGER, /* versions that are resumed; 0: none */
    WHOLE,       /* the newest version */
    N_FACTS
} fact;

static bool plan_fits(const ferry_service *service)
{
    const ferry_world *world = service->world;
    const ferry_plan *plan = service->registry.plan;
    return plan != NULL && ferry_world_epoch(world) == 0 &&
           ferry_plan_rank_count(plan) == world->n_ranks;
}

/* A look at what this rank sends. */
static void look_at_sends(ferry_service *service, fy_field facts[N_FACTS])
{
    const fy_registry *registry = &service->registry;
    uint32_t last = FY_NONE;
    for (size_t i = 0; i < registry->sends.n; i++) {
        const fy_end *end = &registry->sends.items[i];
        uint32_t peer = end->peer;
        facts[ELEMENT_BYTES].value = fy_max(facts[ELEMENT_BYTES].value, end->element_bytes);
        if (facts[NEEDS_ROUNDS].value == 0 && peer != last && peer != service->world->rank) {
            facts[NEEDS_ROUNDS].value = !fy_peer_is_direct(service, peer);
            last = peer;
        }
    }
}

static const char all_alike[] = ": a service is made alike on all ranks, but for its transport";

static void list_options(const ferry_service *service, fy_field facts[N_FACTS])
{
    const ferry_service_options *o = &service->options;
    const struct {
        const char *name;
        uint64_t value;
    } options[PLAN] = {[MEMORY_CAP] = {"the service's memory_cap", o->memory_cap},
                       [SLOT_BYTES] = {"the service's slot_bytes", o->slot_bytes},
                       [MAX_TASKS] = {"the service's max_tasks", o->max_tasks},
                       [CHECKSUM] = {"the service's checksum", o->checksum},
                       [COMMIT] = {"the service's commit", o->commit},
                       [PATHS] = {"the service's paths", o->paths},
                       [NO_RELAYS] = {"the service's no_relays", o->no_relays},
                       [FIRST_VERSION] = {"the service's first_version", o->first_version},
                       [DELTA] = {"the service's delta", o->delta}};
    for (int i = 0; i < PLAN; i++) {
        facts[i] = (fy_field){.name = options[i].name,
                              .value = options[i].value,
                              .how = FY_SAME,
                              .remedy = all_alike};
    }
}

/* The rest of a rank that has failed is not looked at. */
static void list_facts(ferry_service *service, ferry_status before, fy_field facts[N_FACTS],
                       char digest[DIGEST_BYTES])
{
    const fy_registry *registry = &service->registry;
    uint64_t ledger = service->ledger == NULL ? 0 : fy_ledger_version(service->ledger);
    list_options(service, facts);
    facts[PLAN] = (fy_field){.name = "the plan that is bound",
                             .text = "",
                             .how = FY_SAME,
                             .has_none = registry->plan == NULL,
                             .remedy = ": all ranks bind the same",
                             .status = FERRY_ERR_DIGEST};
    facts[SUM_LOW] = facts[SUM_HIGH] = facts[N_COPYING] = (fy_field){.how = FY_SUM};
    facts[NEEDS_ROUNDS] = facts[IS_PARTIAL] = facts[ELEMENT_BYTES] = (fy_field){.how = FY_MOST};
    facts[CAN_PLAN] = facts[LEAST_LEDGER] = (fy_field){.how = FY_LEAST};
    facts[MOST_LEDGER] = facts[WHOLE] = (fy_field){.how = FY_MOST};
    facts[LEAST_LEDGER].value = facts[MOST_LEDGER].value = ledger;
    facts[WHOLE].value = service->version;
    if (before != FERRY_OK) {
        return;
    }
    if (registry->plan != NULL) {
        ferry_plan_digest(registry->plan, digest, DIGEST_BYTES);
        facts[PLAN].text = digest;
    }
    fy_hash128 sum = fy_match_sum(registry, service->world->rank);
    facts[SUM_LOW].value = sum.low;
    facts[SUM_HIGH].value = sum.high;
    facts[N_COPYING].value = registry->sends.n > 0;
    facts[CAN_PLAN].value = plan_fits(service) && !service->program->completes;
    facts[IS_PARTIAL].value = service->program->completes;
    look_at_sends(service, facts);
}

void fy_wire_channels_free(fy_wire *wire)
{
    for (uint32_t c = 0; c < wire->n_channels; c++) {
        fy_channel_wire *channel = &wire->channels[c];
        fy_free(channel->relayed_receives);
        fy_free(channel->relayed_sends);
        fy_free(channel->wanted);
        fy_free(channel->ranges);
        fy_free(channel->key_bases);
        fy_pack_cleanup(&wire->talks[c].own);
        fy_pack_cleanup(&wire->talks[c].in);
    }
    fy_free(wire->channels);
    fy_free(wire->talks);
    wire->channels = NULL;
    wire->talks = NULL;
    wire->n_channels = 0;
}

void fy_wire_destroy(fy_wire *wire)
{
    if (wire == NULL) {
        return;
    }
    fy_wire_channels_free(wire);
    fy_free(wire->by_task);
    fy_free(wire->wants);
    fy_free(wire->wants_of);
    fy_free(wire);
}

/* The cores of a node are shared by those of its ranks that copy, of which there are no more than
 * ranks on the node, or such ranks at all. */
static ferry_status make_team(ferry_service *service, uint64_t n_copying, ferry_error *error)
{
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = service->options.n_threads;
    if (n == 0) {
        uint32_t n_sharing = (uint32_t)fy_min(n_copying, service->world->n_local_ranks);
        n = n_sharing == 0 || n_cores < 1 ? 1 : (uint32_t)n_cores / n_sharing;
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
    if (!fy_memory_is_exposed()) {
        return FERRY_OK;
    }
    for (size_t i = 0; status == FERRY_OK && i < registry->n_held; i++) {
        const fy_held *held = &registry->held[i];
        const ferry_buffer *sides[] = {&held->front, &held->back};
        bool is_written = held->destination != FY_NONE || held->codes != FY_NONE;
        for (int s = 0; s < 2 && status == FERRY_OK && is_written; s++) {
            if (sides[s]->kind == FERRY_MEMORY_HOST) {
                status = fy_memory_secure(sides[s]->base, sides[s]->bytes, error);
            }
        }
    }
    return status;
}

static ferry_status make_program(ferry_service *service, ferry_error *error)
{
    service->program = fy_alloc_zeroed(1, sizeof *service->program);
    service->wire = fy_alloc_zeroed(1, sizeof *service->wire);
    if (service->program == NULL || service->wire == NULL) {
        return fy_fail_no_memory(error, "a schedule");
    }
    service->statistics.n_allocations++;
    ferry_status status = fy_request_provide(service, error);
    FY_THEN(status, secure(&service->registry, error));
    if (status == FERRY_OK && service->ledger != NULL) {
        service->program->completes = true;
        status = fy_ledger_apply(service, error);
    }
    return status;
}

ferry_status fy_converse(ferry_service *service, ferry_status before, fy_write_fn write,
                         fy_read_fn read, ferry_error *error)
{
    fy_service_program *program = service->program;
    fy_wire *wire = service->wire;
    ferry_status status = before;
    for (uint32_t c = 0; c < wire->n_channels; c++) {
        fy_talk_begin(&wire->talks[c]);
        FY_THEN(status, write(service, &program->channels[c], &wire->talks[c].own, error));
    }
    status = fy_pairs_exchange(service, status, error);
    for (uint32_t c = 0; status == FERRY_OK && c < wire->n_channels; c++) {
        status = read(service, &program->channels[c], &wire->talks[c].message, error);
    }
    return status;
}

static ferry_status make_items(ferry_service *service, bool needs_rounds, ferry_status before,
                               ferry_error *error)
{
    ferry_status status = before;
    if (needs_rounds) {
        status = fy_order_sends(service, before, error);
    } else if (status == FERRY_OK) {
        status = fy_items_make(service, error);
    }
    FY_THEN(status, fy_items_local(service, error));
    if (status == FERRY_OK) {
        fy_items_finish(service);
    }
    return status;
}

/* By the rounds of the plan's schedule, in which there may be relays. */
static ferry_status order_plan(ferry_service *service, uint64_t element_bytes, ferry_error *error)
{
    ferry_status status = fy_order_plan(service, element_bytes, error);
    if (status == FERRY_OK) {
        fy_channels_drop(service);
        status = fy_channels_make(service, error);
    }
    /* Also where it failed: an exchange that a lost rank ended says no more than that. */
    return fy_agree(service->world, status, error);
}

/* Behind the agreement, where all ranks have the same to go on with, and a channel to each peer. */
static ferry_status prepare(ferry_service *service, const fy_field facts[N_FACTS],
                            ferry_error *error)
{
    fy_service_program *program = service->program;
    bool needs_rounds = facts[NEEDS_ROUNDS].value != 0;
    ferry_status status = FERRY_OK;
    program->is_partial = facts[IS_PARTIAL].value != 0;
    if (needs_rounds && facts[CAN_PLAN].value != 0 && program->rounds == NULL) {
        status = order_plan(service, facts[ELEMENT_BYTES].value, error);
        if (status != FERRY_OK) {
            return status; /* on all ranks */
        }
    }
    for (uint32_t c = 0; c < program->n_channels; c++) {
        fy_channel *channel = &program->channels[c];
        channel->in_turns = needs_rounds && !channel->direct;
    }
    bool in_order = !needs_rounds && service->options.delta == 0;
    FY_THEN(status, fy_bands_plan(service, in_order, error));
    fy_rings_lay_out(service);
    status = fy_converse(service, status, fy_places_write, fy_places_read, error);
    status = make_items(service, needs_rounds, status, error);
    status = fy_converse(service, status, fy_manifest_write, fy_manifest_read, error);
    FY_THEN(status, fy_arrivals_check(service, error));
    FY_THEN(status, fy_bands_check(service, error));
    FY_THEN(status, make_team(service, facts[N_COPYING].value, error));
    return fy_staging_make(service, needs_rounds, status, error);
}

void fy_service_program_drop(ferry_service *service)
{
    fy_run_settle(service);
    fy_wire_destroy(service->wire);
    fy_run_state_destroy(service->run);
    fy_service_program_destroy(service->program);
    service->wire = NULL;
    service->run = NULL;
    service->program = NULL;
    service->registry.scheduled = false;
}

/* What it takes the place of is not needed any more. */
static void have_program(ferry_service *service)
{
    service->registry.scheduled = true;
    fy_wire_destroy(service->wire);
    service->wire = NULL;
    ferry_ledger_destroy(service->ledger);
    ferry_ledger_destroy(service->kept);
    service->ledger = service->kept = NULL;
}

/* What one rank can do before it knows of others. rounds: of the plan, or NULL; taken over. */
static ferry_status begin(ferry_service *service, ferry_schedule *rounds, ferry_error *error)
{
    ferry_status status = make_program(service, error);
    if (service->program == NULL) {
        ferry_schedule_destroy(rounds);
    } else {
        service->program->rounds = rounds;
    }
    return status == FERRY_OK ? fy_channels_make(service, error) : status;
}

static ferry_status agree_on_facts(ferry_service *service, ferry_status before,
                                   fy_field facts[N_FACTS], ferry_error *error)
{
    char digest[DIGEST_BYTES] = "";
    ferry_world *world = service->world;
    list_facts(service, before, facts, digest);
    ferry_status status = fy_agree_on(world, FY_JOINT_SERVICE_SCHEDULE, fy_service_object(service),
                                      facts, N_FACTS, before, error);
    if (status == FERRY_OK && (facts[SUM_LOW].value != 0 || facts[SUM_HIGH].value != 0)) {
        status = fy_match_explain(world, &service->registry, error);
    }
    return status;
}

ferry_status fy_prepare_again(ferry_service *service, ferry_status before, ferry_error *error)
{
    ferry_error why = *error;
    fy_field facts[N_FACTS];
    ferry_schedule *rounds = service->program->rounds;
    ferry_status status = before;
    service->program->rounds = NULL;
    fy_service_program_drop(service);
    if (status == FERRY_OK) {
        status = begin(service, rounds, &why);
    } else {
        ferry_schedule_destroy(rounds);
    }
    status = agree_on_facts(service, status, facts, &why);
    FY_THEN(status, prepare(service, facts, &why));
    if (status != FERRY_OK) {
        fy_service_program_drop(service);
        return fy_forward(error, status, &why);
    }
    have_program(service);
    return FERRY_OK;
}

/*
 * A rank that never began the run that failed elsewhere has an older ledger, or none: nothing of
 * the version that is resumed is there, and it begins again without one. And no rank's version goes
 * back because another knew of less.
 */
static bool heed_ledgers(ferry_service *service, const fy_field facts[N_FACTS])
{
    uint64_t resumes = facts[MOST_LEDGER].value;
    uint64_t whole = facts[WHOLE].value;
    uint64_t own = service->ledger == NULL ? 0 : fy_ledger_version(service->ledger);
    if (own < resumes) {
        ferry_ledger_destroy(service->ledger);
        service->ledger = NULL;
        service->n_begun = service->n_begun < resumes ? resumes - 1 : service->n_begun;
    }
    if (resumes > 0) { /* a rank that joins has not yet what the others have whole */
        bool joins = service->ledger == NULL || !fy_ledger_is_begun(service->ledger);
        service->version = joins && whole >= resumes ? resumes - 1 : whole;
    }
    return facts[LEAST_LEDGER].value == resumes;
}

static ferry_status check_schedule(const ferry_service *service, ferry_error *error)
{
    if (service == NULL || !service->initialized || service->finalized) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_schedule needs a service between init and finalize");
    }
    FY_TRY(fy_service_check_order(service, "ferry_service_schedule", error));
    if (service->registry.scheduled) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "what is registered is scheduled already: clear the requests first");
    }
    return FERRY_OK;
}

static ferry_status schedule(ferry_service *service, ferry_error *error)
{
    ferry_error why = {.message = ""};
    fy_field facts[N_FACTS];
    fy_registry_sort(&service->registry);
    if (service->ledger != NULL) {
        fy_ledger_inherit(service, service->ledger);
    }
    ferry_status status = fy_take_refusal(service, &why);
    FY_THEN(status, fy_check_writers(&service->registry, service->world->rank, &why));
    FY_THEN(status, begin(service, NULL, &why));
    status = agree_on_facts(service, status, facts, &why);
    if (status == FERRY_OK && !heed_ledgers(service, facts)) {
        fy_service_program_drop(service);
        status = agree_on_facts(service, begin(service, NULL, &why), facts, &why);
    }
    FY_THEN(status, prepare(service, facts, &why));
    if (status != FERRY_OK) {
        fy_service_program_drop(service);
        return fy_forward(error, status, &why);
    }
    service->statistics.n_schedules++;
    have_program(service);
    return FERRY_OK;
}

ferry_status ferry_service_schedule(ferry_service *service, ferry_error *error)
{
    ferry_status status = check_schedule(service, error);
    if (status != FERRY_OK) {
        return status;
    }
    uint64_t before = fy_exchanges_enter(service, FY_JOINT_SERVICE_SCHEDULE);
    status = schedule(service, error);
    fy_exchanges_leave(service, before);
    return status;
}
