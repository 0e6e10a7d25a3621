/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_GROWN_H
#define FERRY_TESTS_GROWN_H

#include "processes.h"

#include <string.h>

/* Worlds of processes that grow: what members and newcomers of several programs do. */

static char meeting[64]; /* where members and newcomers meet: another file than that of the start */

static inline ferry_grow_options growth_of(uint32_t n_newcomers)
{
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    options.n_newcomers = n_newcomers;
    options.path = meeting;
    return options;
}

/* A process that joins nothing at its start. It is the last of n. */
static inline void start_newcomer(processes *all, const rank_process *like, uint32_t n,
                                  void (*run)(rank_process *self))
{
    rank_process self;
    if (fork_rank(all, like, n, &self)) {
        run(&self);
        ferry_world_destroy(self.world);
        _exit(0);
    }
}

static inline void wait_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* All ranks tell each other who they are, and each sends to the next. */
static inline void check_world(rank_process *self, ferry_world *world, uint32_t n_ranks,
                               uint32_t epoch)
{
    const void *all, *bytes;
    size_t n_bytes;
    uint32_t rank = ferry_world_rank(world);
    uint32_t own = ferry_world_member_of(world, rank);
    so(self, ferry_world_rank_count(world) == n_ranks);
    so(self, ferry_world_epoch(world) == epoch);
    so(self, ferry_world_all_gather(world, &own, sizeof own, &all, &self->error) == FERRY_OK);
    for (uint32_t r = 0; r < n_ranks; r++) {
        so(self, ((const uint32_t *)all)[r] == ferry_world_member_of(world, r));
    }
    so(self, ferry_world_send(world, (rank + 1) % n_ranks, 1, &rank, sizeof rank, &self->error) ==
                 FERRY_OK);
    so(self, ferry_world_receive(world, (rank + n_ranks - 1) % n_ranks, 1, -1, &bytes, &n_bytes,
                                 NULL, &self->error) == FERRY_OK);
    so(self, *(const uint32_t *)bytes == (rank + n_ranks - 1) % n_ranks);
}

static inline ferry_world *grow(rank_process *self, const ferry_grow_options *options)
{
    ferry_world *larger = NULL;
    uint32_t rank = ferry_world_rank(self->world);
    so(self, ferry_world_grow(self->world, options, &larger, &self->error) == FERRY_OK);
    so(self, ferry_world_rank(larger) == rank);
    return larger;
}

static inline void join(rank_process *self)
{
    so(self, ferry_world_join(meeting, &self->options, &self->world, &self->error) == FERRY_OK);
}

/* The rank goes on in the larger world. */
static inline void replace(rank_process *self, ferry_world *larger)
{
    ferry_world_destroy(self->world);
    self->world = larger;
}

#endif
