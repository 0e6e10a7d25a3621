/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Worlds and transports as wholes: several at once, again and again, and when they end badly. */
#include "conformance/suite.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

/* A ring of puts, as proof that a transport works. */
static void run_ring(rank_context *me, unsigned n)
{
    enum { BYTES = 5000 };
    ferry_region *data = alloc_region(me, BYTES);
    ferry_region *words = alloc_region(me, 64);
    unsigned char source[BYTES];
    for (uint64_t i = 1; i <= n; i++) {
        fill(source, BYTES, seed_of(me, 10, me->rank, i));
        put_signal(me, next_rank(me), data, 0, source, BYTES, words, 0, i, FERRY_SIGNAL_SET);
        wait_signal(me, words, 0, FERRY_COMPARE_EQ, i, previous_rank(me));
        expect(me, mismatch(base_of(data), BYTES, seed_of(me, 10, previous_rank(me), i)) == BYTES,
               "round %llu", (unsigned long long)i);
        raise_signal(me, previous_rank(me), words, 1, i, FERRY_SIGNAL_SET);
        wait_signal(me, words, 1, FERRY_COMPARE_EQ, i, next_rank(me));
        flush(me, FERRY_ANY_RANK);
    }
    ferry_region_free(words);
    ferry_region_free(data);
}

static void *run_other_world(void *context)
{
    rank_context *me = context;
    run_ring(me, me->is_long ? 2000 : 200);
    return NULL;
}

/* Two worlds of the same ranks, both at work at the same time, each in a thread of its own. */
void case_worlds(rank_context *me)
{
    rank_context other = *me;
    pthread_t thread;
    other.world = another_world(me, 0);
    other.seed = me->seed + 1;
    me->transport = open_transport(me, me->world, "");
    other.transport = NULL;
    if (has_wrapper(me, "strict") || row_has_one_job(me->engine)) {
        must_fail(
            me, FERRY_ERR_UNSUPPORTED, "one world per process",
            ferry_transport_open(other.world, me->engine->engines, &other.transport, &me->error));
        run_ring(me, 10);
        ferry_transport_close(me->transport); /* then it is the other's turn */
        meet(me);
        me->transport = NULL;
    }
    other.transport = open_transport(&other, other.world, "");
    expect(me, pthread_create(&thread, NULL, run_other_world, &other) == 0, "a thread");
    if (me->transport != NULL) {
        run_ring(me, me->is_long ? 2000 : 200);
    }
    pthread_join(thread, NULL);
    ferry_transport_close(other.transport);
    ferry_world_destroy(other.world);
}

void case_reopen(rank_context *me)
{
    unsigned n = me->is_long ? 200 : 10;
    possessions before = {0};
    for (unsigned i = 0; i < n; i++) {
        me->transport = open_transport(me, me->world, "");
        run_ring(me, 2);
        ferry_transport_close(me->transport);
        me->transport = NULL;
        meet(me);
        if (i == 1) { /* what is made once has been made */
            before = possessions_of(me);
        }
        meet(me);
    }
    check_possessions(me, &before);
    meet(me);
    for (unsigned i = 0; i < (me->is_long ? 50u : 4u); i++) { /* whole worlds */
        rank_context other = *me;
        other.world = another_world(me, i);
        other.transport = open_transport(&other, other.world, "");
        run_ring(&other, 1);
        ferry_transport_close(other.transport);
        ferry_world_destroy(other.world);
        meet(me);
    }
}

/* One rank aborts while another waits for a signal and a third for a barrier. */
void case_abort(rank_context *me)
{
    ferry_region *words = alloc_region(me, 4096);
    ferry_buffer buffer = ferry_buffer_of("x", 1);
    ferry_error *e = &me->error;
    meet(me);
    atomic_fetch_add(&me->shared->word[0], me->rank != 0);
    if (me->rank == 0) {
        while (atomic_load(&me->shared->word[0]) < me->n_ranks - 1) {
            sleep_ms(1); /* they are about to wait */
        }
        ferry_world_abort(me->world, "the cat is on the keyboard");
    } else if (me->rank == 1) {
        must_fail(me, FERRY_ERR_ABORTED, "the cat is on the keyboard",
                  ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_EQ, 1, 0, 60,
                                              NULL, NULL, e));
        expect(me, strstr(e->message, "rank 0") != NULL, "\"%s\" does not name the rank",
               e->message);
    } else {
        must_fail(me, FERRY_ERR_ABORTED, "rank 0", ferry_world_barrier(me->world, e));
    }
    must_fail(me, FERRY_ERR_ABORTED, NULL, ferry_world_state(me->world, NULL, e));
    must_fail(me, FERRY_ERR_ABORTED, NULL, ferry_transport_progress(me->transport, e));
    must_fail(me, FERRY_ERR_ABORTED, NULL,
              ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_EQ, 1, 0, 0, NULL,
                                          NULL, e));
    must_fail(me, FERRY_ERR_ABORTED, NULL,
              ferry_transport_put(me->transport, next_rank(me), words, 8, &buffer, NULL, e));
    must_fail(me, FERRY_ERR_ABORTED, NULL,
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, NULL, e));
    ferry_region *more = NULL;
    must_fail(me, FERRY_ERR_ABORTED, NULL,
              ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, 4096, &more, e));
    ferry_region_free(words); /* waits for nobody now */
}

/*
 * Every rank puts to every other, each to another one first, in a world in which nobody has put
 * before; the victim ends it (kills: dies) after so many microseconds of this. Nothing is so large
 * that UCX puts it over TCP by itself: see docs/worlds.md.
 */
static void end_while_connecting(rank_context *me, uint32_t round, uint32_t victim, uint32_t us,
                                 bool kills)
{
    enum { BYTES = 60000 };
    static unsigned char source[BYTES];
    ferry_region *data = alloc_region(me, (uint64_t)BYTES * me->n_ranks); /* a place for each */
    ferry_region *words = alloc_region(me, 64);
    uint64_t at = (uint64_t)BYTES * me->rank, random = me->random + us;
    ferry_status status = FERRY_OK;
    meet(me);
    atomic_fetch_add(&me->shared->word[0], 1);
    while (me->rank == victim && atomic_load(&me->shared->word[0]) < (round + 1) * me->n_ranks) {
        sched_yield(); /* until nobody is in there */
    }
    int64_t end_ns = now_ns() + (int64_t)us * 1000;
    for (uint32_t i = 0; status == FERRY_OK; i++) {
        uint32_t peer = (me->rank + 1 + (i + us) % (me->n_ranks - 1)) % me->n_ranks;
        uint32_t bytes = random_below(&random, 3) == 0 ? BYTES : random_below(&random, 9000);
        ferry_buffer from = ferry_buffer_of(source, bytes);
        ferry_signal last = {.region = words, .offset = 0, .value = 1, .op = FERRY_SIGNAL_ADD};
        if (me->rank == victim && now_ns() >= end_ns) {
            if (kills) {
                kill(getpid(), SIGKILL);
            }
            ferry_world_abort(me->world, "while ranks connect");
        }
        status = i < 2 * me->n_ranks ? ferry_transport_put_signal(me->transport, peer, data, at,
                                                                  &from, &last, NULL, &me->error)
                                     : ferry_transport_progress(me->transport, &me->error);
    }
    check_failure(me, __FILE__, __LINE__, "puts", kills ? FERRY_ERR_PEER_LOST : FERRY_ERR_ABORTED,
                  kills ? NULL : "while ranks connect", status);
    /* UCX ends a rank whose connection another one refuses (docs/worlds.md), so all have heard of
     * the end before anybody closes. */
    atomic_fetch_add(&me->shared->word[1], 1);
    while (!kills && atomic_load(&me->shared->word[1]) < (round + 1) * me->n_ranks) {
        sleep_ms(1);
    }
    ferry_region_free(words);
    ferry_region_free(data);
}

/* Nothing stays of worlds that end while their ranks connect: the possessions are counted. */
void case_connecting(rank_context *me)
{
    for (uint32_t i = 0; i < (me->is_long ? MOST_EXTRA_WORLDS : 8u); i++) {
        rank_context other = *me;
        uint64_t random = seed_of(me, 11, i, 0);
        uint32_t victim = random_below(&random, me->n_ranks);
        other.world = another_world(me, i);
        if (i > 0 && row_has_one_job(me->engine)) { /* it has ended with the first world */
            all_fail(me, FERRY_ERR_UNSUPPORTED, "start its process anew",
                     ferry_transport_open(other.world, me->engine->engines, &other.transport,
                                          &me->error));
            ferry_world_destroy(other.world);
            continue;
        }
        other.transport = open_transport(&other, other.world, "");
        end_while_connecting(&other, i, victim, random_below(&random, 2500), false);
        ferry_transport_close(other.transport);
        ferry_world_destroy(other.world);
        meet(me);
    }
}

void case_death_connecting(rank_context *me)
{
    uint64_t random = seed_of(me, 12, 0, 0);
    uint32_t victim = random_below(&random, me->n_ranks);
    end_while_connecting(me, 0, victim, random_below(&random, 2500), true);
}

/*
 * A rank ends the world in the middle of what is put into memory of its own. When a flush has said
 * so, the memory is the rank's again: nothing lands there while the transport is closed.
 */
void case_half_put(rank_context *me)
{
    enum { BYTES = 48 << 20, FIRST = 1 << 20 };
    static unsigned char memory[BYTES];
    unsigned char key[FERRY_KEY_BYTES];
    volatile const unsigned char *first = &memory[FIRST - 1];
    ferry_region *region = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory, sizeof memory);
    ferry_error *e = &me->error;
    size_t n_key = 0;
    const void *bytes;
    /* Who maps memory, or is let into it, writes until the world shrinks: docs/decisions/0030. */
    if ((me->can & FERRY_CAN_REMOTE_USER_MEMORY) == 0 || strcmp(me->engine->engine, "ucx") != 0 ||
        row_has_ucx_memory(me->engine)) {
        return;
    }
    if (me->rank == 1) {
        must(me, ferry_region_register(me->transport, &buffer, &region, e));
        must(me, ferry_region_export(region, key, sizeof key, &n_key, e));
    }
    must(me, ferry_world_broadcast(me->world, 1, key, n_key, &bytes, &n_key, e));
    if (me->rank == 0) {
        memset(memory, 0xaa, sizeof memory);
        must(me, ferry_region_import(me->transport, bytes, n_key, &region, e));
        (void)ferry_transport_put(me->transport, 1, region, 0, &buffer, NULL, e);
        (void)ferry_transport_flush(me->transport, 1, NULL, e);
        ferry_region_free(region);
        return;
    }
    while (*first == 0) {
        must(me, ferry_transport_progress(me->transport, e));
    }
    ferry_world_abort(me->world, "in the middle of a put");
    must_fail(me, FERRY_ERR_ABORTED, NULL,
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, NULL, e));
    ferry_region_free(region);
    memset(memory, 0x11, sizeof memory);
    ferry_transport_close(me->transport);
    me->transport = NULL;
    size_t at = mismatch_byte(memory, sizeof memory, 0x11);
    expect(me, at == sizeof memory, "byte %zu was written after the end", at);
}

/* Who does not answer in time may only be off the cores: it is lost when the world says so. */
static ferry_status flush_or_fail(rank_context *me)
{
    ferry_status status = FERRY_ERR_TIMEOUT;
    while (status == FERRY_ERR_TIMEOUT) {
        status = ferry_transport_flush(me->transport, FERRY_ANY_RANK, NULL, &me->error);
        if (status == FERRY_ERR_TIMEOUT && ferry_world_state(me->world, NULL, NULL) != FERRY_OK) {
            return ferry_world_state(me->world, NULL, &me->error);
        }
    }
    return status;
}

/*
 * Traffic in a ring, in the middle of which the last rank gets this signal; what the others wait
 * for ends and names it.
 */
static void run_until_failure(rank_context *me, int signal_number, ferry_status wanted)
{
    uint32_t victim = me->n_ranks - 1;
    ferry_region *words = alloc_region(me, 64);
    ferry_region *data = alloc_region(me, 100000);
    char name[32];
    unsigned char source[10000];
    snprintf(name, sizeof name, "rank %u", (unsigned)victim);
    memset(source, 1, sizeof source);
    ferry_status status = FERRY_OK;
    int64_t end_ns = now_ns() + (int64_t)(200e9 * me->patience);
    for (unsigned i = 0; status == FERRY_OK && now_ns() < end_ns; i++) {
        ferry_buffer buffer = ferry_buffer_of(source, 1 + i % sizeof source);
        ferry_signal signal = {.region = words, .offset = 0, .value = 1, .op = FERRY_SIGNAL_ADD};
        if (me->rank == victim && i == 100) {
            kill(getpid(), signal_number);
        }
        status = ferry_transport_put_signal(me->transport, next_rank(me), data, i % 50000, &buffer,
                                            &signal, NULL, &me->error);
        if (status == FERRY_OK) {
            status = ferry_transport_wait_signal(me->transport, words, 0, FERRY_COMPARE_GE, i + 1,
                                                 previous_rank(me), -1, NULL, NULL, &me->error);
        }
        status = status == FERRY_OK ? flush_or_fail(me) : status;
    }
    check_failure(me, __FILE__, __LINE__, "traffic with a lost rank", wanted, name, status);
    ferry_region_free(data);
    ferry_region_free(words);
}

void case_death(rank_context *me)
{
    run_until_failure(me, SIGKILL, FERRY_ERR_PEER_LOST);
}

/* A rank that is stopped shows no sign of life. The others end it when they know what they want. */
void case_stop(rank_context *me)
{
    uint32_t victim = me->n_ranks - 1;
    if (me->rank == victim) {
        atomic_store(&me->shared->word[0], (uint64_t)getpid());
    }
    meet(me);
    run_until_failure(me, SIGSTOP, FERRY_ERR_TIMEOUT);
    atomic_fetch_add(&me->shared->word[1], 1);
    int64_t end_ns = now_ns() + (int64_t)(200e9 * me->patience);
    while (me->rank == 0 && atomic_load(&me->shared->word[1]) < victim && now_ns() < end_ns) {
        sleep_ms(1);
    }
    if (me->rank == 0) {
        kill((pid_t)atomic_load(&me->shared->word[0]), SIGKILL);
    }
}
