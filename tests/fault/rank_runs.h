/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_RANK_RUNS_H
#define FERRY_TESTS_RANK_RUNS_H

/*
 * What every rank of a world of threads does, run with the first, second, third ... allocation of
 * one of them refused, until that rank needs no more. A rank that fails ends the world, as programs
 * do. Every rank must come to its end, and nothing may be kept.
 */
#include "failing.h"

#include "support/check.h"

#include <ferry/world.h>

#include <pthread.h>
#include <unistd.h>

enum { RUN_RANKS = 3, RUN_SECONDS = 100, HANG_SECONDS = 500 };

typedef struct rank_run {
    ferry_world *world;
    uint32_t rank;
    const void *plan;
    ferry_status (*run)(struct rank_run *self);
    bool is_victim;
    ferry_status status;
    ferry_error error;
    const char *wrong; /* what no refusal excuses */
    pthread_t thread;
} rank_run;

/* A sequence of ranks' calls. */
typedef struct rank_script {
    const char *name;
    const void *plan;
    ferry_status (*run)(rank_run *self);
    bool alone; /* one rank can fail while others succeed */
} rank_script;

/* An output must be as it was where a call fails. */
#define UNTOUCHED ((void *)(uintptr_t)8)

static void *rank_run_main(void *argument)
{
    rank_run *self = argument;
    failing_mine = self->is_victim;
    self->status = self->run(self);
    if (self->status != FERRY_OK) {
        ferry_world_abort(self->world, self->error.message);
    }
    ferry_world_destroy(self->world);
    failing_mine = false;
    return NULL;
}

static void check_ranks(const rank_script *script, const rank_run *ranks, bool refused, int64_t n,
                        uint32_t victim)
{
    for (uint32_t r = 0; r < RUN_RANKS; r++) {
        const rank_run *rank = &ranks[r];
        if (rank->wrong != NULL) {
            fail_msg("%s: allocation %lld of rank %u refused: rank %u: %s", script->name,
                     (long long)n, victim, r, rank->wrong);
        }
        bool told = rank->status == FERRY_OK || (refused && strlen(rank->error.message) >= 10);
        bool same = script->alone || (rank->status == FERRY_OK) == (ranks[0].status == FERRY_OK);
        if (!told || !same) {
            fail_msg("%s: allocation %lld of rank %u refused: rank %u: %s: %s", script->name,
                     (long long)n, victim, r, ferry_status_name(rank->status),
                     rank->status == FERRY_OK ? "" : rank->error.message);
        }
    }
}

/* One run; true if an allocation was refused. */
static bool run_once(const rank_script *script, uint32_t victim, int64_t n, bool for_good)
{
    static rank_run ranks[RUN_RANKS];
    ferry_world *worlds[RUN_RANKS];
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    ferry_error error;
    int64_t live = failing_live;
    options.deadline_seconds = RUN_SECONDS;
    options.join_seconds = RUN_SECONDS;
    must(ferry_world_create_threads(RUN_RANKS, &options, worlds, &error), &error);
    failing_start(n, for_good);
    for (uint32_t r = 0; r < RUN_RANKS; r++) {
        ranks[r] = (rank_run){.world = worlds[r],
                              .rank = r,
                              .plan = script->plan,
                              .run = script->run,
                              .is_victim = r == victim};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_run_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RUN_RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    bool refused = failing_stop();
    check_ranks(script, ranks, refused, n, victim);
    if (failing_live != live) {
        fail_msg("%s: allocation %lld of rank %u refused: %lld blocks are kept", script->name,
                 (long long)n, victim, (long long)(failing_live - live));
    }
    return refused;
}

/*
 * least: how many allocations the script makes at least, on some rank. Which rank does the work of
 * all can differ from run to run, so one run that needs no more does not end it.
 */
static int64_t run_victims(const rank_script *script)
{
    enum { LAST_RUNS = 5 };
    int64_t most = 0;
    for (uint32_t victim = 0; victim < RUN_RANKS; victim++) {
        for (int for_good = 0; for_good < 2; for_good++) {
            int64_t n_refused = 0;
            alarm(HANG_SECONDS); /* a hang is an end too */
            for (int64_t n = 0; n < n_refused + LAST_RUNS; n++) {
                n_refused = run_once(script, victim, n, for_good == 1) ? n + 1 : n_refused;
            }
            most = n_refused > most ? n_refused : most;
        }
    }
    alarm(0);
    return most;
}

static void run_script(const rank_script *script, int64_t least)
{
    enum { MOST_ROUNDS = 20 };
    int64_t most = run_victims(script);
    for (int round = 1; most < least && round < MOST_ROUNDS; round++) {
        most = run_victims(script);
    }
    check_at(most >= least, "%s: %lld allocations", script->name, (long long)most);
}

#endif
