/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_STEPS_H
#define FERRY_TESTS_STEPS_H

/*
 * A step is a call that allocates. It is run with its first, second, third ... allocation refused until it
 * succeeds: each time it must say so, leave its outputs alone and keep nothing. Once with all later
 * allocations refused too, and once with only that one, so that whatever goes on afterwards shows.
 */
#include "failing.h"

#include "support/check.h"

typedef struct step {
    const char *name;
    ferry_status (*run)(void *scene, ferry_error *error);
    /* After a run: what it made is right, or there is nothing. */
    void (*check)(const struct step *t, const void *scene, bool made);
    void (*give_back)(void *scene);
    ferry_status other; /* what else a refusal may be told as */
} step;

static void check_refusal(const step *t, int64_t n, bool for_good, ferry_status status,
                          const ferry_error *error)
{
    if (!for_good && status == FERRY_OK) {
        return; /* something could do without, as a stream can without its buffer: the check decides */
    }
    bool told = status == FERRY_ERR_NO_MEMORY || (t->other != FERRY_OK && status == t->other);
    if (!told || strlen(error->message) < 10) {
        fail_msg("row \"%s\": allocation %lld %s refused: %s: %s", t->name, (long long)n,
                 for_good ? "and all later ones" : "alone", ferry_status_name(status), error->message);
    }
}

/* One run with allocation n refused. False when the step did not get that far. */
static bool run_failing(const step *t, void *scene, int64_t n, bool for_good)
{
    ferry_error error   = {""};
    int64_t     live    = failing_live;
    failing_start(n, for_good);
    ferry_status status = t->run(scene, &error);
    bool         refused = failing_stop();
    if (refused) {
        check_refusal(t, n, for_good, status, &error);
    } else {
        check_status(t->name, FERRY_OK, status, &error);
    }
    t->check(t, scene, status == FERRY_OK);
    t->give_back(scene);
    if (failing_live != live) {
        fail_msg("row \"%s\": allocation %lld refused: %lld blocks are kept", t->name, (long long)n,
                 (long long)(failing_live - live));
    }
    return refused;
}

static void run_step(const step *t, void *scene)
{
    for (int for_good = 0; for_good < 2; for_good++) {
        int64_t n = 0;
        while (run_failing(t, scene, n, for_good == 1)) {
            n++;
        }
        check_row(t->name, n > 0);
    }
}

#endif
