/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef FERRY_TESTS_CONFORMANCE_SUITE_H
#define FERRY_TESTS_CONFORMANCE_SUITE_H

#include "support/random.h"

#include <ferry/ferry.h>
#include <ferry/transport.h>
#include <ferry/world.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * One suite for all engines: a table of cases and a table of engines. A case is a function that
 * every rank of a new world runs; the ranks are threads or processes, as the engine wants. It uses
 * the public interface only.
 */
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { MOST_RANKS = 16, REPORT_BYTES = 2048, MOST_EXTRA_WORLDS = 64 };

typedef struct engine_row {
    const char *name;    /* of the row */
    const char *engines; /* for ferry_transport_open */
    const char *engine;  /* the one at its end */
    bool threads;        /* else processes */
    const char *env[3];  /* "NAME=VALUE" */
} engine_row;

/*
 * UCX's own shared memory, over which what UCX still owes a peer may be stuck in a world that has
 * failed: there its worker is left behind, see docs/worlds.md.
 */
static inline bool row_has_ucx_memory(const engine_row *engine)
{
    bool has = false;
    for (size_t i = 0; i < COUNT_OF(engine->env) && engine->env[i] != NULL; i++) {
        has = has || strstr(engine->env[i], "sm,") != NULL;
    }
    return has;
}

/* One job of NVSHMEM in a process, which ends with it: after the worlds it is still there. */
static inline bool row_has_one_job(const engine_row *engine)
{
    return strcmp(engine->engine, "nvshmem") == 0;
}

/* What all ranks of a run see. */
typedef struct run_shared {
    _Atomic uint32_t failed; /* 1: somebody writes; 2: the report is there */
    char report[REPORT_BYTES];
    _Atomic bool has_stopped; /* a rank has stopped itself: see end_later */
    _Atomic uint64_t word[8]; /* for cases that need a word beside ferry */
} run_shared;

typedef struct rank_context rank_context;

typedef struct case_row {
    const char *name;
    uint32_t n_ranks;
    void (*run)(rank_context *me);
    /* Of the world: 0 is that of the suite. */
    double deadline_seconds, entry_seconds;
    bool opens_itself; /* no transport is opened for it */
    bool processes_only;
    bool dies;       /* a rank ends without leaving, by SIGKILL */
    bool ends_badly; /* worlds fail while their ranks connect */
} case_row;

struct rank_context {
    const engine_row *engine;
    const case_row *row;
    uint32_t rank, n_ranks;
    ferry_world *world;
    ferry_transport *transport;
    uint32_t can;    /* flags that hold for every peer */
    uint64_t random; /* of this rank alone */
    uint64_t seed;   /* of all */
    bool is_long;
    uint32_t step; /* between sizes */
    double patience;
    const char *folder; /* for rendezvous files */
    run_shared *shared;
    ferry_world **extra; /* threads: handles of further worlds, by number and rank */
    ferry_error error;
    bool keeps; /* memory that a rank may still write to, of which nobody knows whether it does */
};

extern const case_row case_rows[];
extern const size_t n_case_rows;

/* Ends the run: the first report wins. */
_Noreturn void fail_run(const rank_context *me, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define fail(me, ...) fail_run((me), __FILE__, __LINE__, __VA_ARGS__)

#define expect(me, condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char expect_text[512];                                                                 \
            snprintf(expect_text, sizeof expect_text, __VA_ARGS__);                                \
            fail((me), "not so: %s: %s", #condition, expect_text);                                 \
        }                                                                                          \
    } while (0)

/* A call that must succeed; it takes &me->error. */
#define must(me, call)                                                                             \
    do {                                                                                           \
        ferry_status must_status = (call);                                                         \
        if (must_status != FERRY_OK) {                                                             \
            fail((me), "%s: %s: %s", #call, ferry_status_name(must_status), (me)->error.message);  \
        }                                                                                          \
    } while (0)

/* A call that must fail in this way, with a sentence that holds these words (NULL: any). */
#define must_fail(me, wanted, words, call)                                                         \
    do {                                                                                           \
        (me)->error.message[0] = '\0';                                                             \
        ferry_status must_status = (call);                                                         \
        check_failure((me), __FILE__, __LINE__, #call, (wanted), (words), must_status);            \
    } while (0)

void check_failure(const rank_context *me, const char *file, int line, const char *call,
                   ferry_status wanted, const char *words, ferry_status got);

/*
 * What a collective call returned on this rank, told to all: fails unless all have this status, and
 * with one sentence that holds these words. For worlds that live.
 */
void all_same(rank_context *me, const char *what, ferry_status got, ferry_status wanted,
              const char *words);
#define all_fail(me, wanted, words, call)                                                          \
    do {                                                                                           \
        (me)->error.message[0] = '\0';                                                             \
        ferry_status all_status = (call);                                                          \
        all_same((me), #call, all_status, (wanted), (words));                                      \
    } while (0)

/* Seconds that a wait of a run may last before it counts as lost. */
static inline double limit_of(const rank_context *me)
{
    return 20 * me->patience;
}

static inline uint32_t next_rank(const rank_context *me)
{
    return (me->rank + 1) % me->n_ranks;
}

static inline uint32_t previous_rank(const rank_context *me)
{
    return (me->rank + me->n_ranks - 1) % me->n_ranks;
}

static inline void meet(rank_context *me)
{
    must(me, ferry_world_barrier(me->world, &me->error));
}

/* Memory of the test's own. */
void *take(const rank_context *me, size_t bytes);

/* Bytes that a seed determines, and where others begin (n_bytes: nowhere). */
void fill(void *bytes, size_t n_bytes, uint64_t seed);
size_t mismatch(const void *bytes, size_t n_bytes, uint64_t seed);
size_t mismatch_byte(const void *bytes, size_t n_bytes, unsigned char value);

/* All bytes of the one, as many as that has, to the beginning of the other, of whatever kinds. */
void copy_flat(rank_context *me, ferry_buffer to, ferry_buffer from);
/* The device that ranks of a node get where they take them in turn. */
int32_t own_device(const rank_context *me);

static inline uint64_t seed_of(const rank_context *me, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = me->seed * 0x100000001b3u + a;
    state = random_u64(&state) + b;
    state = random_u64(&state) + c;
    return random_u64(&state);
}

static inline unsigned char *base_of(ferry_region *region)
{
    return ferry_region_base(region);
}

ferry_region *alloc_region(rank_context *me, uint64_t bytes);

void put(rank_context *me, uint32_t peer, ferry_region *region, uint64_t offset, const void *source,
         uint64_t bytes);
/* The signal's word lies in the same or another region. */
void put_signal(rank_context *me, uint32_t peer, ferry_region *region, uint64_t offset,
                const void *source, uint64_t bytes, ferry_region *words, uint64_t word,
                uint64_t value, ferry_signal_op op);
/* The signal alone. */
void raise_signal(rank_context *me, uint32_t peer, ferry_region *words, uint64_t word,
                  uint64_t value, ferry_signal_op op);
uint64_t wait_signal(rank_context *me, ferry_region *words, uint64_t word, ferry_compare compare,
                     uint64_t value, uint32_t from);
void flush(rank_context *me, uint32_t peer);

/* A further world of the same ranks; collective. Destroyed by each rank for itself. */
ferry_world *another_world(rank_context *me, uint32_t number);

/* The transport of a world with what the engine's row says, or with wrappers before it. */
ferry_transport *open_transport(rank_context *me, ferry_world *world, const char *wrappers);

/*
 * What this process has, to be the same before and after. Where ranks are threads only rank 0
 * counts, others always have nothing: while it counts the others should wait.
 */
typedef struct possessions {
    size_t fds, threads, shared_maps;
} possessions;

possessions possessions_of(const rank_context *me);
/* Fails if they are not the same as before; a thread that was joined may take a moment to go. */
void check_possessions(const rank_context *me, const possessions *before);

int64_t now_ns(void);
void sleep_ms(unsigned ms);

/* Whether the row's engines hold this wrapper. */
static inline bool has_wrapper(const rank_context *me, const char *name)
{
    return strstr(me->engine->engines, name) != NULL;
}

/* The cases, by file. */
void case_sizes(rank_context *me);
void case_big(rank_context *me);
void case_flush(rank_context *me);
void case_self(rank_context *me);
void case_get(rank_context *me);
void case_order_set(rank_context *me);
void case_order_add(rank_context *me);
void case_order_large(rank_context *me);
void case_signals(rank_context *me);
void case_many_adders(rank_context *me);
void case_compare(rank_context *me);
void case_timeouts(rank_context *me);
void case_peers(rank_context *me);
void case_regions(rank_context *me);
void case_alloc_loop(rank_context *me);
void case_unequal(rank_context *me);
void case_huge(rank_context *me);
void case_leave_regions(rank_context *me);
void case_outside(rank_context *me);
void case_misuse(rank_context *me);
void case_keys(rank_context *me);
void case_bad_keys(rank_context *me);
void case_memory(rank_context *me);
void case_memory_owned(rank_context *me);
void case_memory_order(rank_context *me);
void case_memory_loop(rank_context *me);
void case_memory_huge(rank_context *me);
void case_memory_failed(rank_context *me);
void case_memory_scarce(rank_context *me);
void case_far(rank_context *me);
void case_far_asleep(rank_context *me);
void case_far_failed(rank_context *me);
void case_aside(rank_context *me); /* cases_aside.c */
void case_queue(rank_context *me);
void case_bad_queues(rank_context *me);
void case_target(rank_context *me);
void case_worlds(rank_context *me);
void case_reopen(rank_context *me);
void case_abort(rank_context *me);
void case_death(rank_context *me);
void case_connecting(rank_context *me);
void case_death_connecting(rank_context *me);
void case_half_put(rank_context *me);
void case_names(rank_context *me);
void case_lose(rank_context *me);
void case_stop(rank_context *me);
void case_strict(rank_context *me);
void case_delay(rank_context *me);
void case_flip(rank_context *me);
void case_trace(rank_context *me);

#endif
