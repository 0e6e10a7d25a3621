/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/gate.h"

#include "world/world.h"

#include <time.h>

/* A copy by a device takes no longer: so long in all, whatever is asked how often. */
enum { MOMENT_MS = 1000 };

static uint32_t now_ms(void)
{
    return (uint32_t)(fy_now_ns() / 1000000) | 1;
}

static fy_gate *gate_of(ferry_world *world, uint32_t rank)
{
    return world->gate_of == NULL ? NULL : world->gate_of(world, rank);
}

void fy_gate_leave(ferry_world *world)
{
    atomic_fetch_sub(&gate_of(world, world->rank)->n_visits, 1);
}

/* Counted before the look: either the owner sees the visit, or the visitor the gate. */
bool fy_gate_enter(ferry_world *world, uint32_t peer)
{
    fy_gate *own = gate_of(world, world->rank), *theirs = gate_of(world, peer);
    if (own == NULL || theirs == NULL) {
        return false;
    }
    atomic_fetch_add(&own->n_visits, 1);
    if (fy_failed(world->failure) || atomic_load(&theirs->is_shut) != 0) {
        fy_gate_leave(world);
        return false;
    }
    return true;
}

static bool is_within(ferry_world *world, uint32_t rank)
{
    const fy_gate *its = gate_of(world, rank);
    return rank != world->rank && its != NULL && atomic_load(&its->n_visits) != 0 &&
           !fy_process_has_ended(world->pid_of(world, rank), 0);
}

ferry_status fy_gate_shut(ferry_world *world, ferry_error *error)
{
    const struct timespec moment = {.tv_nsec = 100000};
    fy_gate *own = gate_of(world, world->rank);
    uint32_t since = 0;
    if (own == NULL) {
        return FERRY_OK;
    }
    if (atomic_compare_exchange_strong(&own->is_shut, &since, now_ms())) {
        since = now_ms();
    }
    for (uint32_t local = 0; local < world->n_local_ranks; local++) {
        uint32_t rank = world->local_ranks[local];
        while (is_within(world, rank)) {
            if ((int32_t)(now_ms() - since) > MOMENT_MS) {
                return fy_fail(error, FERRY_ERR_TIMEOUT,
                               "rank %u has not ended what it copies there", rank);
            }
            nanosleep(&moment, NULL);
        }
    }
    return FERRY_OK;
}
