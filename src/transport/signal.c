/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
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
    if (transport == NULL || region == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE, "ferry_signal_wait needs a transport and a region");
    }
    if ((uint32_t)compare > FERRY_COMPARE_GT) {
        return fy_fail(error, FERRY_ERR_MISUSE, "signal: %u is not a ferry_compare",
                       (uint32_t)compare);
    }
    if (from != FERRY_ANY_RANK && from >= transport->world->n_ranks) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "signal: there is no rank %u in a world of %u ranks", from,
                       transport->world->n_ranks);
    }
    if (isnan(limit_seconds)) {
        return fy_fail(error, FERRY_ERR_MISUSE, "signal: the limit is not a number of seconds");
    }
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

ferry_status ferry_signal_wait(ferry_transport *transport, ferry_region *region, uint64_t offset,
                               ferry_compare compare, uint64_t value, uint32_t from,
                               double limit_seconds, uint64_t *value_out, ferry_error *error)
{
    ferry_status status =
        check_wait(transport, region, offset, compare, from, limit_seconds, error);
    if (status == FERRY_OK) {
        status = fy_transport_state(transport, error);
    }
    if (status != FERRY_OK) {
        return status;
    }
    expectation wait = {.transport = transport,
                        .word = fy_word_at(region->view.base, offset),
                        .compare = compare,
                        .value = value};
    int64_t limit_ns = limit_of(transport->world, limit_seconds);
    if (!look(&wait)) {
        status = limit_ns == 0
                     ? FERRY_ERR_TIMEOUT
                     : fy_world_wait(transport->world, look, may_sleep_ns, &wait, limit_ns, error);
    }
    if (status == FERRY_ERR_TIMEOUT) {
        status = fy_transport_state(transport, error); /* the world's, perhaps a timeout too */
        return status != FERRY_OK ? status : too_late(&wait, region, offset, from, limit_ns, error);
    }
    if (status == FERRY_OK && value_out != NULL) {
        *value_out = wait.seen;
    }
    return status;
}
