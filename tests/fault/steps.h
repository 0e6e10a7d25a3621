/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_STEPS_H
#define FERRY_TESTS_STEPS_H

/*
 * A step is a call that allocates. It is run with its first, second, third ... allocation refused
 * until it succeeds: each time it must say so, leave its outputs alone and keep nothing. Once with
 * all later allocations refused too, and once with only that one, so that whatever goes on
 * afterwards shows.
 */
#include "failing.h"

#include "support/check.h"
#include "support/text.h"

typedef struct step {
    const char *name;
    ferry_status (*run)(void *scene, ferry_error *error);
    /* Everything that a run can make, as a text; the text before any run means nothing was made. */
    void (*describe)(const void *scene, text_buffer *out);
    void (*give_back)(void *scene);
    ferry_status other; /* what else a refusal may be told as */
} step;

/* The outcomes that there may be. */
typedef struct outcomes {
    text_buffer nothing, whole;
} outcomes;

static text_buffer describe(const step *t, const void *scene)
{
    text_buffer text = {0};
    text_append(&text, "", 0);
    t->describe(scene, &text);
    return text;
}

static void check_outcome(const step *t, const void *scene, const text_buffer *wanted)
{
    text_buffer have = describe(t, scene);
    if (strcmp(have.bytes, wanted->bytes) != 0) {
        fail_msg("row \"%s\": the outcome is\n%s\nnot\n%s", t->name, have.bytes, wanted->bytes);
    }
    text_cleanup(&have);
}

/*
 * A refusal must be told. Whoever can do without the memory, as a stream can without its buffer,
 * must have made the whole all the same.
 */
static void check_refusal(const step *t, int64_t n, bool for_good, ferry_status status,
                          const ferry_error *error)
{
    bool spared = status == FERRY_OK && !for_good;
    bool told = status == FERRY_ERR_NO_MEMORY || (t->other != FERRY_OK && status == t->other);
    size_t length = strlen(error->message);
    bool names = length >= 10 && error->message[length - 1] != ' ';
    if (!spared && (!told || !names)) {
        fail_msg("row \"%s\": allocation %lld %s refused: %s: %s", t->name, (long long)n,
                 for_good ? "and all later ones" : "alone", ferry_status_name(status),
                 error->message);
    }
}

/* One run with allocation n refused. False when the step did not get that far. */
static bool run_failing(const step *t, void *scene, int64_t n, bool for_good, const outcomes *o)
{
    ferry_error error = {""};
    int64_t live = failing_live;
    failing_start(n, for_good);
    ferry_status status = t->run(scene, &error);
    bool refused = failing_stop();
    if (refused) {
        check_refusal(t, n, for_good, status, &error);
    } else {
        check_status(t->name, FERRY_OK, status, &error);
    }
    check_outcome(t, scene, status == FERRY_OK ? &o->whole : &o->nothing);
    t->give_back(scene);
    if (failing_live != live) {
        fail_msg("row \"%s\": allocation %lld refused: %lld blocks are kept", t->name, (long long)n,
                 (long long)(failing_live - live));
    }
    return refused;
}

static void run_step(const step *t, void *scene)
{
    ferry_error error = {""};
    outcomes o = {.nothing = describe(t, scene)};
    must(t->run(scene, &error), &error);
    o.whole = describe(t, scene);
    t->give_back(scene);
    check_row(t->name, strcmp(o.nothing.bytes, o.whole.bytes) != 0);
    for (int for_good = 0; for_good < 2; for_good++) {
        int64_t n = 0;
        while (run_failing(t, scene, n, for_good == 1, &o)) {
            n++;
        }
        check_row(t->name, n > 0);
    }
    text_cleanup(&o.nothing);
    text_cleanup(&o.whole);
}

#endif
