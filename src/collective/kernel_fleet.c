/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of fleets, one of each node, and of each tensor-parallel group of a part of one: where all
 * ranks of a node have devices of their own, and these can write and add up each other's memory by
 * one access. Whatever keeps a rank from one of them, all ranks of all nodes hear of, and do
 * without any; the log says why.
 */
#include "base/checked.h"
#include "base/log.h"
#include "collective/kernel.h"
#include "world/agree.h"

#include <string.h>

enum { AREA_ALIGNMENT = 256 };

static void say(ferry_status status, const ferry_error *why)
{
    fy_log(status == FERRY_ERR_UNSUPPORTED ? FERRY_LOG_INFO : FERRY_LOG_WARN,
           "a mixed collective goes without multicast objects: %s", why->message);
}

bool fy_mix_fleet_is_wanted(const fy_topology *t, fy_mix_fleet_kind kind)
{
    return kind == FY_MIX_FLEET_NODE ? t->local_size > 1
                                     : t->local_tp > 1 && t->local_tp < t->local_size;
}

fy_mix_edge fy_mix_fleet_edge(fy_mix_fleet_kind kind)
{
    return kind == FY_MIX_FLEET_NODE ? FY_MIX_EDGE_JOIN_ALL : FY_MIX_EDGE_JOIN_TP;
}

static ferry_status ask(const fy_topology *t, const fy_mix_device *on, uint64_t *unit_out,
                        ferry_error *why)
{
    *unit_out = 0;
    if (on->exec->fleets == NULL) {
        return fy_fail(why, FERRY_ERR_UNSUPPORTED, "devices of kind %s have none", on->row->name);
    }
    for (fy_mix_fleet_kind kind = 0; kind < FY_MIX_N_FLEETS; kind++) {
        uint32_t n = fy_mix_edge_group_size(t, fy_mix_fleet_edge(kind));
        uint64_t unit = 0;
        if (fy_mix_fleet_is_wanted(t, kind)) {
            FY_TRY(on->exec->fleets->ask(on->number, n, 1, &unit, why));
        }
        *unit_out = fy_max(*unit_out, unit);
    }
    return FERRY_OK;
}

fy_mix_fleet_word fy_mix_fleets_ask(const ferry_mixed_comm *comm, const fy_mix_device *on)
{
    const fy_topology *t = &comm->program.topology;
    fy_mix_fleet_word word = {.can = 0};
    ferry_error why;
    if (t->local_size == 1) {
        return word;
    }
    ferry_status status = ask(t, on, &word.unit, &why);
    word.can = status == FERRY_OK;
    if (status != FERRY_OK) {
        say(status, &why);
    }
    return word;
}

/* A fleet that is being made, on all ranks at once, each its own. */
typedef struct making {
    ferry_mixed_comm *comm;
    const fy_mix_device *on;
    const fy_fleets *verbs;
    uint32_t n_ranks, first; /* of the fleet; first: which rank of the world makes it */
    uint64_t bytes;
} making;

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

/* What the first rank of a fleet says to its others. */
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

/* By the first rank of each, and then by the others. */
static ferry_status make(const making *m, fy_mix_fleet *its, bool *all_out, ferry_error *error)
{
    bool is_first = m->first == m->comm->program.topology.world_rank;
    made_word own = {.can = 1};
    ferry_error why;
    ferry_status status = FERRY_OK;
    const void *all;
    if (is_first) {
        status = m->verbs->make(m->on->number, m->n_ranks, m->bytes, own.handle, &its->fleet, &why);
        own.can = status == FERRY_OK;
    }
    FY_TRY(ferry_world_all_gather(m->comm->world, &own, sizeof own, &all, error));
    const made_word *words = all;
    *all_out = all_have_made(m->comm, words);
    if (!*all_out) {
        if (status != FERRY_OK) {
            say(status, &why);
        }
        return FERRY_OK;
    }
    if (!is_first) {
        const void *handle = words[m->first].handle;
        status = m->verbs->join(m->on->number, m->bytes, handle, &its->fleet, &why);
    }
    return agree(m->comm, status, &why, all_out, error);
}

static ferry_status take(const making *m, fy_mix_fleet *its, bool *all_out, ferry_error *error)
{
    ferry_mixed_comm *comm = m->comm;
    ferry_error why;
    FY_TRY(make(m, its, all_out, error));
    if (*all_out) {
        FY_TRY(agree(comm, m->verbs->enter(its->fleet, &why), &why, all_out, error));
    }
    if (*all_out) {
        FY_TRY(agree(comm, m->verbs->bind(its->fleet, &why), &why, all_out, error));
    }
    if (*all_out) {
        FY_TRY(agree(comm, m->verbs->map(its->fleet, &its->at, &why), &why, all_out, error));
    }
    return FERRY_OK;
}

/* One after the other, those of all nodes at once: where one is missing the others are of no use.
 */
static ferry_status take_all(making *m, uint64_t unit, const fy_mix_program *program,
                             fy_mix_fleets *fleets, uint64_t *bytes_out, ferry_error *error)
{
    const fy_topology *t = &program->topology;
    bool all = true;
    *bytes_out = 0;
    for (fy_mix_fleet_kind kind = 0; kind < FY_MIX_N_FLEETS && all; kind++) {
        fy_mix_fleet *its = &fleets->of[kind];
        fy_mix_edge edge = fy_mix_fleet_edge(kind);
        if (fy_mix_fleet_is_wanted(t, kind)) {
            m->n_ranks = fy_mix_edge_group_size(t, edge);
            m->first = fy_mix_edge_group_rank(t, edge, 0);
            uint64_t lanes = fy_mix_fleet_lane_bytes(program, kind) * program->n_lanes;
            its->area_bytes = fy_ceil_div(lanes, AREA_ALIGNMENT) * AREA_ALIGNMENT;
            m->bytes = fy_ceil_div(its->area_bytes * (m->n_ranks + (uint64_t)1), unit) * unit;
            FY_TRY(take(m, its, &all, error));
            *bytes_out += m->bytes;
        }
    }
    *bytes_out = all ? *bytes_out : 0;
    return FERRY_OK;
}

ferry_status fy_mix_fleets_open(ferry_mixed_comm *comm, const fy_mix_device *on, uint64_t unit,
                                const fy_mix_program *program, fy_mix_fleets *fleets,
                                ferry_error *error)
{
    making m = {.comm = comm, .on = on, .verbs = on->exec->fleets};
    uint64_t bytes = 0;
    *fleets = (fy_mix_fleets){.verbs = m.verbs};
    FY_TRY(take_all(&m, unit, program, fleets, &bytes, error));
    if (bytes == 0) {
        fy_mix_fleets_close(fleets);
        return FERRY_OK;
    }
    fy_log(FERRY_LOG_INFO, "a mixed collective of device %d goes by multicast objects, %llu bytes",
           on->number, (unsigned long long)bytes);
    return FERRY_OK;
}

void fy_mix_fleets_close(fy_mix_fleets *fleets)
{
    for (int i = 0; fleets->verbs != NULL && i < FY_MIX_N_FLEETS; i++) {
        fleets->verbs->leave(fleets->of[i].fleet);
    }
    memset(fleets, 0, sizeof *fleets);
}
