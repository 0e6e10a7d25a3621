/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "transport/queued.h"
#include "transport/word.h"

#include "base/print.h"

#include <math.h>
#include <stdio.h>

ferry_status fy_word_check(const ferry_transport *transport, const ferry_region *region,
                           uint64_t offset, uint32_t rank, ferry_error *error)
{
    if (region->transport != transport) {
        return fy_fail(error, FERRY_ERR_MISUSE, "signal: region %llu belongs to another transport",
                       (unsigned long long)region->view.id);
    }
    if (region->view.kind != FY_REGION_SYMMETRIC) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "signal: region %llu is registered memory; signals lie in symmetric regions",
                       (unsigned long long)region->view.id);
    }
    if (!fy_is_host(region->view.space)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "signal: region %llu is memory of kind %s; signals lie in host memory",
                       (unsigned long long)region->view.id,
                       fy_memory_name(region->view.space.kind));
    }
    if (offset % sizeof(uint64_t) != 0) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "signal: offset %llu of region %llu is not a multiple of 8",
                       (unsigned long long)offset, (unsigned long long)region->view.id);
    }
    return fy_region_check(region, "signal", rank, offset, sizeof(uint64_t), error);
}

/* What a rank waits for. */
typedef struct expectation {
    ferry_transport *transport;
    _Atomic uint64_t *word;
    ferry_compare compare;
    uint64_t value;
    uint64_t seen;
} expectation;

static bool holds(uint64_t seen, ferry_compare compare, uint64_t value)
{
    switch (compare) {
    case FERRY_COMPARE_EQ:
        return seen == value;
    case FERRY_COMPARE_NE:
        return seen != value;
    case FERRY_COMPARE_GE:
        return seen >= value;
    case FERRY_COMPARE_GT:
        return seen > value;
    default:
        return false;
    }
}

/* Sequentially consistent, as the rule of bells asks. */
static bool look(void *context)
{
    expectation *wait = context;
    wait->seen = atomic_load(wait->word);
    if (holds(wait->seen, wait->compare, wait->value)) {
        return true;
    }
    if (fy_transport_work(wait->transport)) {
        wait->seen = atomic_load(wait->word);
        return holds(wait->seen, wait->compare, wait->value);
    }
    return false;
}

static int64_t may_sleep_ns(void *context)
{
    const expectation *wait = context;
    return fy_transport_sleep_ns(wait->transport);
}

static const char *const compare_texts[] = {"==", "!=", ">=", ">"};

static ferry_status too_late(const expectation *wait, const ferry_region *region, uint64_t offset,
                             uint32_t from, int64_t limit_ns, ferry_error *error)
{
    char who[32] = "nobody";
    char time[48];
    if (from != FERRY_ANY_RANK) {
        snprintf(who, sizeof who, "rank %u", from);
    }
    if (limit_ns == 0) {
        snprintf(time, sizeof time, "yet");
    } else {
        fy_print(time, sizeof time, "for %g s", (double)limit_ns / 1e9);
    }
    return fy_fail(error, FERRY_ERR_TIMEOUT,
                   "%s has %sraised signal %llu of region %llu to %s %llu (it is %llu) %s", who,
                   from == FERRY_ANY_RANK ? "" : "not ", (unsigned long long)offset,
                   (unsigned long long)region->view.id, compare_texts[wait->compare],
                   (unsigned long long)wait->value, (unsigned long long)wait->seen, time);
}

static ferry_status check_wait(const ferry_transport *transport, const ferry_region *region,
                               uint64_t offset, ferry_compare compare, uint32_t from,
                               double limit_seconds, ferry_error *error)
{
    FY_TRY(fy_check_use(transport != NULL && region != NULL,
                        "ferry_transport_wait_signal needs a transport and a region", error));
    if ((uint32_t)compare > FERRY_COMPARE_GT) {
        return fy_fail(error, FERRY_ERR_MISUSE, "signal: %u is not a ferry_compare",
                       (uint32_t)compare);
    }
    if (from != FERRY_ANY_RANK && from >= transport->world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "signal: there is no rank %u in a world of %u ranks", from,
                       transport->world->n_ranks);
    }
    FY_TRY(
        fy_check_use(!isnan(limit_seconds), "signal: the limit is not a number of seconds", error));
    return fy_word_check(transport, region, offset, transport->world->rank, error);
}

/* Centuries are forever. */
static int64_t limit_of(const ferry_world *world, double limit_seconds)
{
    if (limit_seconds < 0) {
        return world->settings.entry_ns;
    }
    return limit_seconds > 4e9 ? -1 : (int64_t)ceil(limit_seconds * 1e9);
}

/* A wait that was checked; in the order of a queue it is kept until it begins. */
typedef struct wait_call {
    ferry_transport *transport;
    const ferry_region *region;
    uint64_t offset;
    ferry_compare compare;
    uint64_t value;
    uint32_t from;
    double limit_seconds;
    uint64_t *value_out;
} wait_call;

static ferry_status wait_now(void *context, ferry_error *error)
{
    const wait_call *call = context;
    ferry_transport *transport = call->transport;
    expectation wait = {.transport = transport,
                        .word = fy_word_at(call->region->view.base, call->offset),
                        .compare = call->compare,
                        .value = call->value};
    int64_t limit_ns = limit_of(transport->world, call->limit_seconds);
    ferry_status status = fy_transport_state(transport, error);
    if (status == FERRY_OK && !look(&wait)) {
        status = limit_ns == 0
                     ? FERRY_ERR_TIMEOUT
                     : fy_world_wait(transport->world, look, may_sleep_ns, &wait, limit_ns, error);
    }
    if (status == FERRY_ERR_TIMEOUT) {
        status = fy_transport_state(transport, error); /* the world's, perhaps a timeout too */
        return status != FERRY_OK
                   ? status
                   : too_late(&wait, call->region, call->offset, call->from, limit_ns, error);
    }
    if (status == FERRY_OK && transport->uses_aside) {
        status = fy_transport_settle(transport, error);
    }
    if (status == FERRY_OK && call->value_out != NULL) {
        *call->value_out = wait.seen;
    }
    return status;
}

ferry_status ferry_transport_wait_signal(ferry_transport *transport, ferry_region *region,
                                         uint64_t offset, ferry_compare compare, uint64_t value,
                                         uint32_t from, double limit_seconds, uint64_t *value_out,
                                         ferry_queue *queue, ferry_error *error)
{
    FY_TRY(check_wait(transport, region, offset, compare, from, limit_seconds, error));
    wait_call call = {transport, region, offset, compare, value, from, limit_seconds, value_out};
    if (queue != NULL) {
        return fy_transport_defer(transport, queue, "signal", wait_now, &call, sizeof call, error);
    }
    FY_TRY(fy_world_check_order(transport->world, "signal", error));
    return wait_now(&call, error);
}
