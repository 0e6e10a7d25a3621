/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of fleets, one of each node: where all ranks of a node have devices of their own, and
 * these can write and add up each other's memory by one access. Whatever keeps a rank from it, all
 * ranks of all nodes hear of, and do without; the log says why.
 */
#include "base/checked.h"
#include "base/log.h"
#include "collective/kernel.h"
#include "world/agree.h"

#include <string.h>

static void say(ferry_status status, const ferry_error *why)
{
    fy_log(status == FERRY_ERR_UNSUPPORTED ? FERRY_LOG_INFO : FERRY_LOG_WARN,
           "a mixed collective goes without multicast objects: %s", why->message);
}

fy_mix_fleet_word fy_mix_fleet_ask(const ferry_mixed_comm *comm, const fy_mix_device *on)
{
    const fy_topology *t = &comm->program.topology;
    fy_mix_fleet_word word = {.can = 0};
    ferry_error why;
    ferry_status status;
    if (t->local_size == 1) {
        return word;
    }
    if (on->exec->fleets == NULL) {
        status =
            fy_fail(&why, FERRY_ERR_UNSUPPORTED, "devices of kind %s have none", on->row->name);
    } else {
        status = on->exec->fleets->ask(on->number, t->local_size, 1, &word.unit, &why);
    }
    word.can = status == FERRY_OK;
    if (status != FERRY_OK) {
        say(status, &why);
    }
    return word;
}

/* All ranks have done a step, or one has not; where this one has not, it says why. */
static ferry_status agree(ferry_mixed_comm *comm, ferry_status status, const ferry_error *why,
                          bool *all_out, ferry_error *error)
{
    fy_field can = {.value = status == FERRY_OK, .how = FY_AND};
    if (status != FERRY_OK) {
        say(status, why);
    }
    FY_TRY(fy_agree_on(comm->world, FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY, fy_comm_object(comm), &can,
                       1, FERRY_OK, error));
    *all_out = can.value != 0;
    return FERRY_OK;
}

/* What the first rank of a node says to its others. */
typedef struct made_word {
    uint32_t can, spare;
    unsigned char handle[FY_FLEET_HANDLE_BYTES];
} made_word;

static bool all_have_made(const ferry_mixed_comm *comm, const made_word *words)
{
    for (uint32_t i = 0; i < comm->world->n_ranks; i++) {
        if (words[i].can == 0) {
            return false;
        }
    }
    return true;
}

/* By the first rank of each node, and then by its others. */
static ferry_status make(ferry_mixed_comm *comm, const fy_mix_device *on, uint64_t bytes,
                         fy_mix_fleet *its, bool *all_out, ferry_error *error)
{
    const fy_topology *t = &comm->program.topology;
    uint32_t first = t->world_rank - t->local_rank;
    made_word own = {.can = 1};
    ferry_error why;
    ferry_status status = FERRY_OK;
    const void *all;
    if (t->world_rank == first) {
        status = its->verbs->make(on->number, t->local_size, bytes, own.handle, &its->fleet, &why);
        own.can = status == FERRY_OK;
    }
    FY_TRY(ferry_world_all_gather(comm->world, &own, sizeof own, &all, error));
    const made_word *words = all;
    *all_out = all_have_made(comm, words);
    if (!*all_out) {
        if (status != FERRY_OK) {
            say(status, &why);
        }
        return FERRY_OK;
    }
    if (t->world_rank != first) {
        status = its->verbs->join(on->number, bytes, words[first].handle, &its->fleet, &why);
    }
    return agree(comm, status, &why, all_out, error);
}

static ferry_status take(ferry_mixed_comm *comm, const fy_mix_device *on, uint64_t bytes,
                         fy_mix_fleet *its, bool *all_out, ferry_error *error)
{
    ferry_error why;
    FY_TRY(make(comm, on, bytes, its, all_out, error));
    if (*all_out) {
        FY_TRY(agree(comm, its->verbs->enter(its->fleet, &why), &why, all_out, error));
    }
    if (*all_out) {
        FY_TRY(agree(comm, its->verbs->bind(its->fleet, &why), &why, all_out, error));
    }
    if (*all_out) {
        FY_TRY(agree(comm, its->verbs->map(its->fleet, &its->at, &why), &why, all_out, error));
    }
    return FERRY_OK;
}

ferry_status fy_mix_fleet_open(ferry_mixed_comm *comm, const fy_mix_device *on, uint64_t unit,
                               uint64_t area_bytes, fy_mix_fleet *fleet, ferry_error *error)
{
    uint64_t n_areas = comm->program.topology.local_size + (uint64_t)1;
    uint64_t bytes = fy_ceil_div(area_bytes * n_areas, unit) * unit;
    bool all = false;
    *fleet = (fy_mix_fleet){.verbs = on->exec->fleets, .area_bytes = area_bytes};
    FY_TRY(take(comm, on, bytes, fleet, &all, error));
    if (!all) {
        fy_mix_fleet_close(fleet);
        return FERRY_OK;
    }
    fy_log(FERRY_LOG_INFO, "a mixed collective of device %d goes by multicast objects, %llu bytes",
           on->number, (unsigned long long)bytes);
    return FERRY_OK;
}

void fy_mix_fleet_close(fy_mix_fleet *fleet)
{
    if (fleet->verbs != NULL) {
        fleet->verbs->leave(fleet->fleet);
    }
    memset(fleet, 0, sizeof *fleet);
}
