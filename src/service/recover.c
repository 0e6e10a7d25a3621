/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * From a service that failed to one that goes on: the smaller world, the plan without the lost
 * ranks, the same memory, and what the failed run left.
 */
#include "service/ledger.h"

#include "base/alloc.h"
#include "base/options.h"
#include "world/agree.h"
#include "world/order.h"

typedef struct recovery {
    const ferry_recovery_options *options;
    const ferry_tensors *sources, *destinations;
    ferry_status refused; /* what the caller has against it: see ferry_service_refuse */
    ferry_error why;
    ferry_recovery found;
} recovery;

/*
 * The numbers
 */

/* The newest version that any rank has begun is made; the one after it where all have that whole.
 */
static ferry_status find_numbers(ferry_service *service, ferry_world *world, recovery *all,
                                 ferry_error *error)
{
    ferry_status status = ferry_service_recover(service, world, &all->found.whole, error);
    fy_field newest = {.name = "version", .value = fy_ledger_newest(service), .how = FY_MOST};
    FY_THEN(status,
            fy_agree_on(world, FY_JOINT_SERVICE_RECOVER_ONTO, 0, &newest, 1, FERRY_OK, error));
    bool none = newest.value == 0 || newest.value == service->options.first_version - 1;
    all->found.next = newest.value + (none || all->found.whole == newest.value);
    return status;
}

/*
 * The plan
 */

/* Members that are not in this world, of all that there were; *n_out of them. NULL: no memory. */
static uint32_t *list_lost(const ferry_world *world, size_t *n_out)
{
    size_t n = 0;
    uint32_t *lost = fy_alloc_zeroed((size_t)world->n_first + 1, sizeof *lost);
    for (uint32_t r = 0; lost != NULL && r < world->n_ranks; r++) {
        lost[world->members[r]] = 1;
    }
    for (uint32_t member = 0; lost != NULL && member < world->n_first; member++) {
        bool is_here = lost[member] != 0;
        lost[n] = member; /* behind which nobody is written before it is read */
        n += !is_here;
    }
    *n_out = n;
    return lost;
}

static ferry_status make_plan(const recovery *all, const ferry_world *world, ferry_plan **plan_out,
                              ferry_error *error)
{
    const ferry_recovery_options *options = all->options;
    ferry_plan_options plan;
    FY_TRY(fy_take_plan_options(options->plan_options, &plan, error));
    ferry_status status = FERRY_OK;
    size_t n_lost;
    uint32_t *lost = list_lost(world, &n_lost);
    FY_TRY(fy_check_memory(lost != NULL, "the lost ranks", error));
    if (options->replan != NULL) {
        status = options->replan(options->context, lost, n_lost, plan_out, error);
    } else {
        plan.lost_ranks = lost;
        plan.n_lost_ranks = n_lost;
        status = ferry_plan_create(options->spec, &plan, plan_out, error);
    }
    fy_free(lost);
    return status;
}

/*
 * The service
 */

static ferry_status create_like(const ferry_service *failed, ferry_world *world,
                                ferry_service **fresh_out, ferry_error *error)
{
    ferry_service_options options = failed->options;
    options.transport = NULL;
    FY_TRY(ferry_service_create(world, &options, fresh_out, error));
    ferry_service_set_progress(*fresh_out, failed->progress, failed->progress_context);
    return FERRY_OK;
}

/* What the failed one leaves; of an older version than the next one only the states. */
static ferry_status inherit(ferry_service *fresh, const ferry_service *failed, recovery *all,
                            ferry_error *error)
{
    ferry_ledger *ledger = NULL;
    fresh->n_begun = all->found.next - 1;
    fresh->version = failed->version;
    FY_TRY(fy_ledger_of(failed, &ledger, error));
    fy_ledger_inherit(fresh, ledger);
    if (fy_ledger_is_begun(ledger) && fy_ledger_version(ledger) == all->found.next) {
        all->found.bytes_in_place = ferry_ledger_bytes(ledger);
        fresh->ledger = fy_ledger_retain(ledger);
    }
    ferry_ledger_destroy(ledger);
    return FERRY_OK;
}

/* All of it that one rank can do. */
static ferry_status fill(ferry_service *fresh, const ferry_service *failed, recovery *all,
                         ferry_error *error)
{
    ferry_plan *plan = NULL;
    ferry_status status = make_plan(all, fresh->world, &plan, error);
    FY_THEN(status, ferry_service_bind(fresh, plan, all->sources, all->destinations, error));
    ferry_plan_destroy(plan);
    return status == FERRY_OK ? inherit(fresh, failed, all, error) : status;
}

static ferry_status make_fresh(ferry_service *failed, ferry_world *world, recovery *all,
                               ferry_service **fresh_out, ferry_error *error)
{
    ferry_error why = all->why;
    FY_TRY(find_numbers(failed, world, all, error));
    ferry_status status = all->refused;
    FY_THEN(status, create_like(failed, world, fresh_out, &why));
    status = fy_agree(world, status, &why);
    FY_THEN(status, fy_service_open(*fresh_out, &why));
    if (status == FERRY_OK) {
        fy_transport_adopt((*fresh_out)->transport, failed->transport);
        status = fill(*fresh_out, failed, all, &why);
        status = fy_agree(world, status, &why);
    }
    FY_THEN(status, ferry_service_schedule(*fresh_out, &why));
    return fy_forward(error, status, &why);
}

/* A service on another world in its place, or it stays with its memory. */
static ferry_status replace(ferry_service **service, ferry_world *world, recovery *all,
                            ferry_error *error)
{
    ferry_service *failed = *service;
    ferry_service *fresh = NULL;
    ferry_status status = make_fresh(failed, world, all, &fresh, error);
    if (status == FERRY_OK) {
        ferry_service_destroy(failed);
        *service = fresh;
        return FERRY_OK;
    }
    if (fresh != NULL && fresh->transport != NULL) {
        fy_transport_adopt(failed->transport, fresh->transport);
    }
    ferry_service_destroy(fresh);
    return status;
}

/* Nobody is lost: the same service, once more. */
static ferry_status keep(ferry_service *service, recovery *all, ferry_error *error)
{
    ferry_error why = all->why;
    ferry_status status = fy_agree(service->world, all->refused, &why);
    if (status != FERRY_OK) {
        return fy_forward(error, status, &why);
    }
    status = ferry_service_recover(service, service->world, &all->found.whole, error);
    if (status == FERRY_OK && !service->registry.scheduled) {
        status = ferry_service_schedule(service, error);
    }
    all->found.next = service->n_begun + 1;
    return status;
}

static ferry_status go_on(ferry_service **service, ferry_world *world, recovery *all,
                          ferry_error *error)
{
    /* Not by the service's number: where a recovery before ended well on some ranks only, those
     * have a service of another number. */
    fy_joint_enter(world, FY_JOINT_SERVICE_RECOVER_ONTO, 0);
    ferry_status status = world == (*service)->world ? keep(*service, all, error)
                                                     : replace(service, world, all, error);
    fy_joint_leave(world);
    return status;
}

/* The world, or a smaller one in its place. */
static ferry_status find_world(ferry_world **world, recovery *all, ferry_error *error)
{
    ferry_world *smaller = NULL;
    if (!fy_failed((*world)->failure)) {
        return FERRY_OK;
    }
    FY_TRY(ferry_world_shrink(*world, all->options->min_ranks, &smaller, error));
    all->found.n_lost += (*world)->n_ranks - smaller->n_ranks;
    ferry_world_destroy(*world);
    *world = smaller;
    return FERRY_OK;
}

static ferry_status check(const recovery *all, ferry_service *const *service,
                          ferry_world *const *world, ferry_error *error)
{
    const ferry_recovery_options *options = all->options;
    if (service == NULL || world == NULL || *world == NULL ||
        !ferry_service_initialized(*service) || fy_service_is_busy(*service) ||
        (*service)->registry.plan == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_recover_onto needs a world and a service with a bound plan "
                       "and without a run under way; for tasks that were registered one by one "
                       "there are ferry_service_recover, take_ledger and resume");
    }
    FY_TRY(fy_world_check_process((*service)->world, error));
    FY_TRY(fy_world_check_order((*service)->world, "ferry_service_recover_onto", error));
    if ((options->spec == NULL) == (options->replan == NULL)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_service_recover_onto needs options made with "
                       "FERRY_RECOVERY_OPTIONS_INIT that have a spec, or a function that plans");
    }
    return FERRY_OK;
}

static ferry_status hand_out(const ferry_recovery *found, ferry_recovery *recovery_out,
                             ferry_error *error)
{
    return recovery_out == NULL
               ? FERRY_OK
               : fy_copy_out(found, sizeof *found, recovery_out, "ferry_recovery", error);
}

/*
 * Each attempt that fails by the world has lost a rank, or found that this one was left behind, of
 * which every further attempt says the same.
 */
ferry_status ferry_service_recover_onto(ferry_service **service, ferry_world **world,
                                        const ferry_recovery_options *options,
                                        const ferry_tensors *sources,
                                        const ferry_tensors *destinations,
                                        ferry_recovery *recovery_out, ferry_error *error)
{
    recovery all = {.sources = sources, .destinations = destinations, .found = FERRY_RECOVERY_INIT};
    ferry_recovery_options own;
    ferry_status status = fy_take_recovery_options(options, &own, error);
    all.options = &own;
    FY_THEN(status, check(&all, service, world, error));
    FY_THEN(status,
            recovery_out == NULL ? FERRY_OK : fy_check_out(recovery_out, "ferry_recovery", error));
    if (status != FERRY_OK) {
        return status;
    }
    all.refused = fy_take_refusal(*service, &all.why);
    uint32_t n_attempts = (*world)->n_ranks + 2;
    do {
        all.found.bytes_in_place = 0;
        status = find_world(world, &all, error);
        FY_THEN(status, go_on(service, *world, &all, error));
    } while (status != FERRY_OK && fy_failed((*world)->failure) && --n_attempts > 0);
    return status == FERRY_OK ? hand_out(&all.found, recovery_out, error) : status;
}
