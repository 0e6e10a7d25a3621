/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/threads.h"

#include "base/alloc.h"

#include <string.h>
#include <time.h>

/*
 * One attempt to agree on who goes on: those that have joined when everybody has who may, or when
 * the time is over. Whoever notices that closes the round and makes the worlds of all. Everything
 * is under the lock of the old world.
 */
typedef struct fy_shrink_round {
    uint32_t n_inside; /* ranks that have joined and not yet returned; the last one frees it */
    uint32_t n_joined;
    uint32_t min_ranks; /* the largest that was asked for */
    int64_t closes_ns;
    bool is_closed;
    ferry_status status;
    ferry_error sentence;
    bool *joined;         /* by rank of the old world */
    ferry_world **worlds; /* by rank of the new one */
} fy_shrink_round;

static void free_round(fy_shrink_round *round)
{
    if (round != NULL) {
        fy_free(round->joined);
        fy_free(round->worlds);
        fy_free(round);
    }
}

static fy_shrink_round *new_round(const ferry_world *world)
{
    fy_shrink_round *round = fy_alloc_zeroed(1, sizeof *round);
    if (round == NULL) {
        return NULL;
    }
    round->closes_ns = fy_now_ns() + world->settings.join_ns;
    round->joined = fy_alloc_zeroed(world->n_ranks, sizeof *round->joined);
    round->worlds = fy_alloc_zeroed(world->n_ranks, sizeof(ferry_world *));
    if (round->joined == NULL || round->worlds == NULL) {
        free_round(round);
        return NULL;
    }
    return round;
}

/* Whom the failure names as lost: not who ended the world, for that rank lives. */
static bool is_lost(const ferry_world *world, uint32_t rank)
{
    uint32_t named;
    ferry_status status = fy_failure_get(world->failure, &named, NULL);
    return status != FERRY_ERR_ABORTED && named == rank;
}

static bool all_have_joined(const ferry_world *world, const fy_shrink_round *round)
{
    fy_threads *all = fy_threads_of(world);
    for (uint32_t r = 0; r < world->n_ranks; r++) {
        if (!round->joined[r] && !is_lost(world, r) && !atomic_load(&all->ranks[r].left)) {
            return false;
        }
    }
    return true;
}

/* The plan's arrays have room for n_joined. */
static ferry_status make_smaller(const ferry_world *world, fy_shrink_round *round,
                                 uint64_t *node_ids, uint32_t *members)
{
    uint32_t n_ranks = 0;
    for (uint32_t r = 0; r < world->n_ranks; r++) {
        if (round->joined[r]) {
            node_ids[n_ranks] = world->node_of[r];
            members[n_ranks++] = world->members[r];
        }
    }
    fy_threads_plan plan = {.n_ranks = n_ranks,
                            .epoch = world->epoch + 1,
                            .settings = &world->settings,
                            .node_ids = node_ids,
                            .members = members};
    return fy_threads_make(&plan, round->worlds, &round->sentence);
}

static ferry_status make_worlds(const ferry_world *world, fy_shrink_round *round)
{
    if (round->n_joined < round->min_ranks) {
        return fy_fail(&round->sentence, FERRY_ERR_PEER_LOST,
                       "%u of %u ranks would continue, but at least %u are required",
                       round->n_joined, world->n_ranks, round->min_ranks);
    }
    uint64_t *node_ids = fy_alloc(round->n_joined, sizeof *node_ids);
    uint32_t *members = fy_alloc(round->n_joined, sizeof *members);
    ferry_status status = node_ids == NULL || members == NULL
                              ? fy_fail_no_memory(&round->sentence, "a world of threads")
                              : make_smaller(world, round, node_ids, members);
    fy_free(node_ids);
    fy_free(members);
    return status;
}

/* A round that made no world is forgotten: its ranks may try again. */
static void close_round(const ferry_world *world, fy_threads *all, fy_shrink_round *round)
{
    round->status = make_worlds(world, round);
    round->is_closed = true;
    all->round = NULL;
    if (round->status == FERRY_OK) {
        all->is_shrunk = true;
        all->n_shrunk = round->n_joined;
        for (uint32_t r = 0; r < world->n_ranks; r++) {
            all->ranks[r].shrunk = round->joined[r];
        }
    }
    pthread_cond_broadcast(&all->changed);
}

static void sleep_until(fy_threads *all, int64_t end_ns)
{
    struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000),
                           .tv_nsec = (long)(end_ns % 1000000000)};
    pthread_cond_timedwait(&all->changed, &all->lock, &end);
}

/* How many of those that joined have lower ranks. */
static uint32_t new_rank(const fy_shrink_round *round, uint32_t rank)
{
    uint32_t lower = 0;
    for (uint32_t r = 0; r < rank; r++) {
        lower += round->joined[r];
    }
    return lower;
}

/* Without the lock: what is asked may wait for another rank's thread. */
static bool is_interrupted(ferry_world *world, fy_threads *all)
{
    if (world->settings.interrupt == NULL) {
        return false;
    }
    pthread_mutex_unlock(&all->lock);
    bool is_set = fy_interrupted(world->settings.interrupt);
    pthread_mutex_lock(&all->lock);
    return is_set;
}

/* The others go on without a rank that thought better of it. */
static void leave_round(const ferry_world *world, fy_threads *all, fy_shrink_round *round)
{
    if (!round->is_closed) {
        round->joined[world->rank] = false;
        round->n_joined--;
    }
    if (--round->n_inside == 0) {
        all->round = all->round == round ? NULL : all->round;
        free_round(round);
    }
}

static ferry_status take_part(ferry_world *world, fy_threads *all, uint32_t min_ranks,
                              ferry_world **world_out, ferry_error *error)
{
    if (all->round == NULL && (all->round = new_round(world)) == NULL) {
        return fy_fail_no_memory(error, "the shrinking of a world");
    }
    fy_shrink_round *round = all->round;
    round->n_inside++;
    round->n_joined++;
    round->joined[world->rank] = true;
    round->min_ranks = min_ranks > round->min_ranks ? min_ranks : round->min_ranks;
    while (!round->is_closed) {
        if (all_have_joined(world, round) || fy_now_ns() >= round->closes_ns) {
            close_round(world, all, round);
        } else if (is_interrupted(world, all) && !round->is_closed) {
            leave_round(world, all, round);
            return fy_interrupt_fail(error);
        } else if (!round->is_closed) {
            int64_t now = fy_now_ns();
            sleep_until(all, now + fy_interrupt_slice_ns(world->settings.interrupt,
                                                         round->closes_ns - now));
        }
    }
    ferry_status status = round->status;
    if (status == FERRY_OK) {
        *world_out = round->worlds[new_rank(round, world->rank)];
    } else {
        (void)fy_forward(error, status, &round->sentence);
    }
    if (--round->n_inside == 0) {
        free_round(round);
    }
    return status;
}

/* Under the lock. */
static ferry_status may_join(const ferry_world *world, const fy_threads *all, ferry_error *error)
{
    if (is_lost(world, world->rank)) {
        return fy_failure_get(world->failure, NULL, error);
    }
    if (all->ranks[world->rank].shrunk) {
        return fy_fail(error, FERRY_ERR_MISUSE, "rank %u has shrunk this world before; destroy it",
                       world->rank);
    }
    if (all->is_shrunk) {
        return fy_fail(error, FERRY_ERR_PEER_LOST,
                       "rank %u came too late: %u other ranks have made a smaller world",
                       world->rank, all->n_shrunk);
    }
    return FERRY_OK;
}

ferry_status fy_threads_shrink(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                               ferry_error *error)
{
    fy_threads *all = fy_threads_of(world);
    pthread_mutex_lock(&all->lock);
    ferry_status status = may_join(world, all, error);
    if (status == FERRY_OK) {
        fy_interrupt_begin(world->settings.interrupt);
        status = take_part(world, all, min_ranks, world_out, error);
    }
    pthread_mutex_unlock(&all->lock);
    return status;
}
