/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a library needs: communicators of the world, and of the TP and DP groups where there are
 * both. All ranks have them, or none uses them: what one rank lacks all hear of.
 */
#include "base/alloc.h"
#include "base/checked.h"
#include "base/log.h"
#include "collective/library_state.h"
#include "world/agree.h"
#include "world/world.h"

#include <stdio.h>
#include <string.h>

/* How long the call that tries whether the library's work runs on all devices at once may take. */
static const int64_t TRIAL_NS = 5000000000;

/* N_DEADLINES: for the start of a communicator, which takes its time where there are many ranks. */
enum { LOOK_NS = 200000, TRIAL_ELEMENTS = 64, N_DEADLINES = 3 };

/* What each rank says of itself: and an id of each group that it begins. */
typedef struct card {
    uint32_t can; /* go on: what is wrong was logged */
    char name[FERRY_MIXED_ENGINE_BYTES];
    fy_circle_id ids[FY_MIX_N_GROUPS];
} card;

/* One that is being opened, and why it cannot be; FERRY_OK of a status: nothing is wrong. */
typedef struct opening {
    ferry_mixed_comm *comm;
    fy_mix_library *library;
    bool is_absent; /* there is no such library: no reason to warn */
    ferry_status status;
    ferry_error why;
} opening;

static bool has_group(const fy_topology *t, fy_mix_group group)
{
    return group == FY_MIX_GROUP_WORLD || (t->tp > 1 && t->dp > 1);
}

/*
 * A rank's own part
 */

static ferry_status find_library(opening *o)
{
    fy_mix_library *l = o->library;
    FY_TRY(fy_mix_device_find(o->comm, &l->on, &o->why));
    l->circles = l->on.exec->circles;
    o->is_absent = true;
    if (l->circles == NULL) {
        return fy_fail(&o->why, FERRY_ERR_UNSUPPORTED, "there is none for devices of kind %s",
                       l->on.row->name);
    }
    FY_TRY(l->circles->name(&l->name, &o->why));
    o->is_absent = false;
    return fy_mix_device_take_queue(o->comm->world, &l->on, &o->why);
}

static ferry_status make_card(opening *o, card *own)
{
    const fy_topology *t = &o->comm->program.topology;
    FY_TRY(find_library(o));
    snprintf(own->name, sizeof own->name, "%s", o->library->name);
    for (fy_mix_group group = 0; group < FY_MIX_N_GROUPS; group++) {
        if (has_group(t, group) && fy_mix_seat_of(t, group).rank == 0) {
            FY_TRY(o->library->circles->make_id(o->library->on.queue, &own->ids[group], &o->why));
        }
    }
    return FERRY_OK;
}

/* Libraries of two versions may not understand each other, and would not say so. */
static ferry_status check_names(opening *o, const card *cards)
{
    for (uint32_t rank = 0; rank < o->comm->world->n_ranks; rank++) {
        if (strcmp(cards[rank].name, o->library->name) != 0) {
            return fy_fail(&o->why, FERRY_ERR_UNSUPPORTED,
                           "rank %u has %s, and rank %u %s: all ranks need the same", rank,
                           cards[rank].name, o->comm->world->rank, o->library->name);
        }
    }
    return FERRY_OK;
}

/*
 * Waiting, with an eye on the world
 */

typedef struct awaited {
    opening *o;
    ferry_status (*look)(opening *o, fy_mix_group group);
    fy_mix_group group;
} awaited;

static bool is_there(void *context)
{
    const awaited *a = context;
    a->o->status = a->look(a->o, a->group);
    return a->o->status != FERRY_ERR_TIMEOUT;
}

static int64_t look_again(void *context)
{
    (void)context;
    return LOOK_NS;
}

/* o->status is what came of it; what is returned is of the world. */
static ferry_status await(opening *o, fy_mix_group group, int64_t limit_ns,
                          ferry_status (*look)(opening *o, fy_mix_group group), const char *what,
                          ferry_error *error)
{
    awaited a = {.o = o, .look = look, .group = group};
    ferry_status status = fy_world_wait(o->comm->world, is_there, look_again, &a, limit_ns, error);
    if (fy_world_is_late(o->comm->world, &status, error)) {
        o->status = fy_fail(&o->why, FERRY_ERR_UNSUPPORTED, "%s did not end within %g s", what,
                            (double)limit_ns * 1e-9);
        return FERRY_OK;
    }
    return status;
}

/* Whether all ranks can go on; what is wrong here is said. */
static ferry_status all_can(opening *o, bool *all_out, ferry_error *error)
{
    fy_field can = {.value = o->status == FERRY_OK, .how = FY_AND};
    FY_TRY(fy_agree_on(o->comm->world, FY_JOINT_MIXED_INIT_VIRTUAL_MEMORY, fy_comm_object(o->comm),
                       &can, 1, FERRY_OK, error));
    *all_out = can.value != 0;
    return FERRY_OK;
}

/*
 * All ranks
 */

static ferry_status look_at_group(opening *o, fy_mix_group group)
{
    return o->library->circles->state(o->library->members[group], &o->why);
}

/* Waits for the others only where all have begun. */
static ferry_status open_group(opening *o, fy_mix_group group, const card *cards, bool *all_out,
                               ferry_error *error)
{
    fy_mix_library *l = o->library;
    fy_mix_seat seat = fy_mix_seat_of(&o->comm->program.topology, group);
    o->status = l->circles->open(l->on.queue, &cards[seat.first].ids[group], seat.rank,
                                 seat.n_ranks, &l->members[group], &o->why);
    FY_TRY(all_can(o, all_out, error));
    if (*all_out) {
        FY_TRY(await(o, group, N_DEADLINES * l->settings->deadline_ns, look_at_group,
                     "the start of a communicator", error));
        FY_TRY(all_can(o, all_out, error));
    }
    return FERRY_OK;
}

/* The trial: an all-reduce of each group. */
static ferry_status look_at_trial(opening *o, fy_mix_group group)
{
    fy_mix_library *l = o->library;
    fy_mix_step step = {.kind = FY_MIX_STEP_CALL,
                        .group = group,
                        .verb = FY_CIRCLE_ALL_REDUCE,
                        .from = {FY_MIX_STEP_IN, 0},
                        .to = {FY_MIX_STEP_OUT, 0},
                        .chunks = 1};
    if (!fy_mix_device_is_next(&l->on)) {
        return FERRY_ERR_TIMEOUT;
    }
    if (l->phase == FY_MIX_LIBRARY_STEPS) {
        FY_TRY(fy_mix_library_put(l, &step, &o->why));
        FY_TRY(l->on.exec->mark(l->on.queue, &l->ticket, &o->why));
        l->phase = FY_MIX_LIBRARY_MARKED;
    }
    ferry_status status = fy_exec_reached(l->on.exec, l->on.queue, l->ticket, &o->why);
    if (status == FERRY_OK) {
        fy_mix_device_step_aside(&l->on);
    }
    return status;
}

static ferry_status try_group(opening *o, fy_mix_group group, bool *all_out, ferry_error *error)
{
    fy_mix_library *l = o->library;
    uint64_t bytes = (uint64_t)TRIAL_ELEMENTS * l->program->element_bytes;
    int64_t limit_ns =
        TRIAL_NS < l->settings->deadline_ns / 2 ? TRIAL_NS : l->settings->deadline_ns / 2;
    for (int i = 0; i < 2; i++) {
        FY_THEN(o->status, fy_mix_device_make_room(&l->on, bytes, &l->on.scratch[i], &o->why));
        l->use[i].base = l->on.scratch[i].base;
    }
    FY_TRY(all_can(o, all_out, error));
    if (*all_out) {
        l->n_elements = TRIAL_ELEMENTS;
        l->phase = FY_MIX_LIBRARY_STEPS;
        fy_mix_device_line_up(&l->on);
        FY_TRY(await(o, group, limit_ns, look_at_trial, "a first collective of all ranks", error));
        FY_TRY(all_can(o, all_out, error));
        l->phase = *all_out ? FY_MIX_LIBRARY_IDLE : l->phase;
    }
    return FERRY_OK;
}

static ferry_status open_all(opening *o, const card *cards, bool *all_out, ferry_error *error)
{
    const fy_topology *t = &o->comm->program.topology;
    o->status = check_names(o, cards);
    FY_TRY(all_can(o, all_out, error));
    for (fy_mix_group group = 0; group < FY_MIX_N_GROUPS && *all_out; group++) {
        if (has_group(t, group)) {
            FY_TRY(open_group(o, group, cards, all_out, error));
        }
    }
    for (fy_mix_group group = 0; group < FY_MIX_N_GROUPS && *all_out; group++) {
        if (has_group(t, group)) {
            FY_TRY(try_group(o, group, all_out, error));
        }
    }
    return FERRY_OK;
}

static ferry_status open_once(opening *o, bool *all_out, ferry_error *error)
{
    card own = {.can = 0};
    const void *all;
    o->status = make_card(o, &own);
    own.can = o->status == FERRY_OK;
    FY_TRY(ferry_world_all_gather(o->comm->world, &own, sizeof own, &all, error));
    uint32_t n_ranks = o->comm->world->n_ranks;
    *all_out = true;
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        *all_out = *all_out && ((const card *)all)[rank].can != 0;
    }
    if (!*all_out) {
        return FERRY_OK;
    }
    card *cards =
        fy_alloc(n_ranks, sizeof *cards); /* the next gather takes the place of this one */
    ferry_status status =
        fy_agree(o->comm->world, fy_check_memory(cards != NULL, "communicators", error), error);
    if (status == FERRY_OK) {
        memcpy(cards, all, n_ranks * sizeof *cards);
        status = open_all(o, cards, all_out, error);
    }
    fy_free(cards);
    return status;
}

static void discard(fy_mix_library *library, bool is_over)
{
    if (library->phase >= FY_MIX_LIBRARY_STEPS) {
        fy_mix_library_abort(library);
    }
    for (int i = 0; library->circles != NULL && i < FY_MIX_N_GROUPS; i++) {
        library->circles->close(library->members[i], is_over);
    }
    fy_mix_device_give_queue(&library->on);
    if (library->on.row != NULL) {
        fy_mix_device_free(&library->on, &library->between);
        fy_mix_device_free(&library->on, &library->on.scratch[0]);
        fy_mix_device_free(&library->on, &library->on.scratch[1]);
    }
    fy_free(library);
}

static void say_why_not(const opening *o)
{
    fy_log(o->status == FERRY_OK ? FERRY_LOG_DEBUG
           : o->is_absent        ? FERRY_LOG_INFO
                                 : FERRY_LOG_WARN,
           "base modes of a mixed collective are ferry's own rings, not a library's: %s",
           o->status == FERRY_OK ? "another rank could not do otherwise" : o->why.message);
}

static ferry_status open_library(ferry_mixed_comm *comm, ferry_error *error)
{
    opening o = {.comm = comm, .status = FERRY_OK};
    bool all = false;
    o.library = fy_alloc_zeroed(1, sizeof *o.library);
    ferry_status status =
        fy_agree(comm->world, fy_check_memory(o.library != NULL, "a library", error), error);
    if (status != FERRY_OK) {
        fy_free(o.library);
        return status;
    }
    o.library->program = &comm->program;
    o.library->settings = &comm->world->settings;
    status = open_once(&o, &all, error);
    if (status == FERRY_OK && all) {
        comm->library = o.library;
        return FERRY_OK;
    }
    if (status == FERRY_OK) {
        say_why_not(&o);
    }
    discard(o.library, false);
    return status;
}

/* Where a handle has no BASE modes, or one rank only, there is nothing for a library to do. */
ferry_status fy_mix_library_open(ferry_mixed_comm *comm, ferry_error *error)
{
    bool wants = comm->all_name_devices && comm->program.topology.world_size > 1 &&
                 fy_comm_has_mode(comm, FERRY_MIXED_BASE_ONE);
    return wants ? open_library(comm, error) : FERRY_OK;
}

void fy_mix_library_close(ferry_mixed_comm *comm)
{
    if (comm->library != NULL) {
        ferry_status own = (ferry_status)atomic_load(&comm->broken);
        bool is_over = fy_agree(comm->world, own, NULL) == FERRY_OK;
        discard(comm->library, is_over);
        comm->library = NULL;
    }
}
