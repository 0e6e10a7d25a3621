/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FY_WORLD_THREADS_H
#define FY_WORLD_THREADS_H

#include "world/mail.h"
#include "world/world.h"

#include <pthread.h>

/*
 * A world whose ranks are threads of one process: its handles share one object on the heap, which
 * goes with the last of them. Collectives are in threads.c, messages in threads_mail.c, shrinking
 * in threads_shrink.c, growing in threads_grow.c.
 */
enum { FY_MOST_THREADS = 1024, FY_CACHE_LINE_BYTES = 64 };

/* Messages that one rank has not received yet. */
typedef struct fy_mailbox {
    pthread_mutex_t lock;
    fy_mail mail;
    _Atomic uint64_t posted; /* how many came, ever: tells a waiter that there is more to look at */
} fy_mailbox;

/* What the others see of a rank. */
typedef struct fy_thread {
    /* How many collective calls it has entered. The three below belong to the last one. */
    _Atomic uint64_t entered;
    fy_step step;
    const void *bytes;
    size_t n_bytes;
    _Atomic bool left;
    fy_activity here;
    bool shrunk; /* got a smaller world; under the lock */
    fy_bell bell;
    fy_mailbox box;
    char apart[FY_CACHE_LINE_BYTES];
} fy_thread;

/* What a collective call hands out. */
typedef struct fy_threads_gathered {
    unsigned char *bytes;
    size_t capacity;
    size_t *lengths;
} fy_threads_gathered;

typedef struct fy_threads {
    _Atomic uint32_t references;
    uint32_t n_ranks;
    fy_failure failure;
    fy_bell gate; /* where all wait for collective calls and for the last to leave */
    _Atomic uint32_t n_left;
    /* Results of calls with even and odd numbers: what one call hands out may go into the next. */
    fy_threads_gathered gathered[2];
    ferry_status outcome; /* of the last collective call, for all ranks */
    uint32_t odd;         /* a rank that made another call than rank 0, or FERRY_ANY_RANK */
    ferry_error sentence;

    pthread_mutex_t lock; /* of what follows, and of shrunk */
    pthread_cond_t changed;
    struct fy_shrink_round *round;
    bool is_shrunk;
    uint32_t n_shrunk;

    char apart_1[FY_CACHE_LINE_BYTES];
    _Atomic uint64_t arrivals; /* at the collective call that is under way; see threads.c */
    char apart_2[FY_CACHE_LINE_BYTES];
    _Atomic uint64_t done; /* the number of the last whole collective call */
    char apart_3[FY_CACHE_LINE_BYTES];
    fy_thread ranks[];
} fy_threads;

/* The impl of a handle. */
typedef struct fy_thread_world {
    fy_threads *all;
    fy_letter *held; /* what receive handed out last */
} fy_thread_world;

static inline fy_threads *fy_threads_of(const ferry_world *world)
{
    return ((const fy_thread_world *)world->impl)->all;
}

/* What the handles of a new world have in common. Arrays are by rank. */
typedef struct fy_threads_plan {
    uint32_t n_ranks;
    uint32_t epoch;
    const fy_settings *settings;
    const uint64_t *node_ids;
    const uint32_t *members;
} fy_threads_plan;

/* All handles or none. */
ferry_status fy_threads_make(const fy_threads_plan *plan, ferry_world **worlds_out,
                             ferry_error *error);

/* Handles that nobody has used. */
void fy_threads_dispose(ferry_world **worlds, uint32_t n);

ferry_status fy_threads_send(ferry_world *world, uint32_t to, uint64_t tag, const void *bytes,
                             size_t n_bytes, bool waits, ferry_error *error);
ferry_status fy_threads_receive(ferry_world *world, uint32_t from, uint64_t tag, int64_t limit_ns,
                                const void **bytes_out, size_t *n_bytes_out, uint32_t *from_out,
                                ferry_error *error);
bool fy_threads_take(ferry_world *world, uint32_t from, uint64_t tag, void *buffer, size_t capacity,
                     size_t *n_bytes_out, uint32_t *from_out);
void fy_threads_forget(ferry_world *world, uint64_t first, uint64_t last);
void fy_threads_ask(ferry_world *world, uint32_t rank, const fy_question *question);
void fy_mailbox_init(fy_mailbox *box);
void fy_mailbox_cleanup(fy_mailbox *box);

ferry_status fy_threads_shrink(ferry_world *world, uint32_t min_ranks, ferry_world **world_out,
                               ferry_error *error);
ferry_status fy_threads_grow(ferry_world *world, const fy_growth *growth, ferry_world **world_out,
                             ferry_error *error);

#endif
