/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_RANK_THREADS_H
#define FERRY_TESTS_RANK_THREADS_H

#include "support/check.h"

#include <ferry/world.h>

#include <pthread.h>
#include <stdio.h>

/*
 * Runs a function as every rank of a world of threads. cmocka's checks work in the first thread
 * only, so ranks record what was wrong first, and the test fails with that.
 */
enum { MOST_RANKS = 40 };

typedef struct rank_thread {
    ferry_world *world;
    uint32_t rank;
    uint32_t n_ranks;
    void *context;
    void (*run)(struct rank_thread *self);
    pthread_t thread;
    ferry_error error; /* for calls */
    char wrong[FERRY_ERROR_BYTES + 256];
} rank_thread;

/* Records and returns from the rank's function. */
#define expect(self, condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf((self)->wrong, sizeof(self)->wrong, "%s:%d: rank %u: not so: %s (%s)",        \
                     __FILE__, __LINE__, (self)->rank, #condition, (self)->error.message);         \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define expect_status(self, wanted, call)                                                          \
    do {                                                                                           \
        ferry_status got_ = (call);                                                                \
        if (got_ != (wanted)) {                                                                    \
            snprintf((self)->wrong, sizeof(self)->wrong, "%s:%d: rank %u: %s is %s: %s", __FILE__, \
                     __LINE__, (self)->rank, #call, ferry_status_name(got_),                       \
                     got_ == FERRY_OK ? "" : (self)->error.message);                               \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define expect_ok(self, call) expect_status(self, FERRY_OK, call)

/* The sentence of the last call that failed. */
#define expect_says(self, text) expect(self, strstr((self)->error.message, text) != NULL)

static void *rank_thread_main(void *argument)
{
    rank_thread *self = argument;
    self->run(self);
    /* A rank that gives up must not keep the others waiting. */
    if (self->wrong[0] != '\0') {
        ferry_world_abort(self->world, self->wrong);
    }
    ferry_world_destroy(self->world);
    return NULL;
}

/* options may be NULL. */
static inline void run_ranks(uint32_t n_ranks, const ferry_world_options *options,
                             void (*run)(rank_thread *self), void *context)
{
    static rank_thread ranks[MOST_RANKS];
    ferry_world *worlds[MOST_RANKS];
    ferry_error error;
    assert_true(n_ranks <= MOST_RANKS);
    must(ferry_world_create_threads(n_ranks, options, worlds, &error), &error);
    for (uint32_t r = 0; r < n_ranks; r++) {
        ranks[r] = (rank_thread){
            .world = worlds[r], .rank = r, .n_ranks = n_ranks, .context = context, .run = run};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_thread_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        /* Who was aborted tells less than who aborted. */
        if (ranks[r].wrong[0] != '\0' && strstr(ranks[r].wrong, "ABORTED") == NULL) {
            fail_msg("%s", ranks[r].wrong);
        }
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (ranks[r].wrong[0] != '\0') {
            fail_msg("%s", ranks[r].wrong);
        }
    }
}

#endif
