/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 makes all handles of the larger world, the newcomers' too; nobody has to come. But one
 * rank alone is a process as well, and other processes may join it.
 */
#include "world/threads.h"

#include "base/alloc.h"
#include "world/agree.h"
#include "world/meeting.h"

#include <string.h>

/* What rank 0 has made for all; the last member to take its own frees it. */
typedef struct batch {
    _Atomic uint32_t n_left;
    ferry_world *worlds[];
} batch;

/* Newcomers are on the last node, as those of a world of processes that fakes its nodes. */
static ferry_status make_all(const ferry_world *world, const fy_growth *growth, uint64_t *node_ids,
                             batch *made, ferry_error *error)
{
    uint32_t last = world->n_nodes - 1;
    if (world->n_ranks == 1 && world->settings.nodes != NULL) {
        FY_TRY(fy_settings_last_node(world->settings.nodes, &last, error));
    }
    for (uint32_t r = 0; r < growth->n_ranks; r++) {
        node_ids[r] = r < world->n_ranks ? world->node_of[r] : last;
    }
    fy_threads_plan plan = {.n_ranks = growth->n_ranks,
                            .epoch = world->epoch + 1,
                            .settings = &world->settings,
                            .node_ids = node_ids,
                            .members = growth->members};
    FY_TRY(fy_threads_make(&plan, made->worlds, error));
    for (uint32_t r = 0; r < growth->n_ranks; r++) {
        made->worlds[r]->n_first = growth->n_first;
    }
    return FERRY_OK;
}

static ferry_status make_batch(const ferry_world *world, const fy_growth *growth, batch **batch_out,
                               ferry_error *error)
{
    if (growth->newcomers_out == NULL) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "ferry_world_grow: in a world of several threads rank 0 needs "
                       "newcomers_out, places for the newcomers' worlds, which are threads too; "
                       "processes join a world of processes, or of one thread");
    }
    if (growth->n_ranks > FY_MOST_THREADS) {
        return fy_fail(error, FERRY_ERR_LIMIT,
                       "ferry_world_grow: %u ranks; a world of threads has at most %d",
                       growth->n_ranks, (int)FY_MOST_THREADS);
    }
    uint64_t *node_ids = fy_alloc(growth->n_ranks, sizeof *node_ids);
    batch *made = fy_alloc_zeroed(1, sizeof *made + growth->n_ranks * sizeof(ferry_world *));
    ferry_status status = node_ids == NULL || made == NULL
                              ? fy_fail_no_memory(error, "a world of threads")
                              : make_all(world, growth, node_ids, made, error);
    fy_free(node_ids);
    if (status != FERRY_OK) {
        fy_free(made);
        return status;
    }
    atomic_init(&made->n_left, world->n_ranks);
    *batch_out = made;
    return FERRY_OK;
}

/*
 * What a program has that nobody started as one of several ranks. It goes on as a world of one
 * process would that it had made instead, so that who begins alone need not know what may join.
 */
static ferry_status grow_alone(const ferry_world *world, const fy_growth *growth,
                               ferry_world **world_out, ferry_error *error)
{
    ferry_world *alone = NULL;
    fy_settings settings;
    fy_meeting meeting = FY_MEETING_INIT;
    meeting.n_ranks = 1;
    FY_TRY(fy_settings_copy(&world->settings, &settings, error));
    FY_TRY(fy_world_create_processes(&meeting, &settings, world->epoch, &alone, error));
    ferry_status status = alone->ops->grow(alone, growth, world_out, error);
    ferry_world_destroy(alone);
    return status;
}

ferry_status fy_threads_grow(ferry_world *world, const fy_growth *growth, ferry_world **world_out,
                             ferry_error *error)
{
    if (world->n_ranks == 1 && growth->newcomers_out == NULL) {
        return grow_alone(world, growth, world_out, error);
    }
    batch *made = NULL;
    ferry_status status = world->rank == 0 ? make_batch(world, growth, &made, error) : FERRY_OK;
    fy_field field = {.name = "worlds", .value = (uintptr_t)made, .how = FY_RANK_0};
    ferry_status agreed = fy_agree_on(world, FY_JOINT_GROW, 0, &field, 1, status, error);
    if (agreed != FERRY_OK) { /* on all ranks, so nobody has seen them */
        if (made != NULL) {
            fy_threads_dispose(made->worlds, growth->n_ranks);
            fy_free(made);
        }
        return agreed;
    }
    made = (batch *)(uintptr_t)field.value;
    *world_out = made->worlds[world->rank];
    if (world->rank == 0) {
        memcpy(growth->newcomers_out, made->worlds + world->n_ranks,
               (growth->n_ranks - world->n_ranks) * sizeof(ferry_world *));
    }
    if (atomic_fetch_sub(&made->n_left, 1) == 1) {
        fy_free(made);
    }
    return FERRY_OK;
}
