/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* What names mean, and what wrappers do to an engine. */
#include "conformance/suite.h"

#include <stdatomic.h>

void case_names(rank_context *me)
{
    static const struct {
        const char *engines, *says;
    } rows[] = {
        {"nonsense", "nonsense"},
        {"", "shm"},
        {":", "empty"},
        {"strict:", "empty"},
        {"delay:NAME", "delay"},
        {"delay=5:NAME", "delay=5"},
        {"reorder:NAME", "reorder"},
        {"reorder=x:NAME", "reorder=x"},
        {"delay=ms:NAME", "delay"},
        {"delay=-1ms:NAME", "delay"},
        {"delay=2h:NAME", "delay"},
        {"delay=99999999999999999999s:NAME", "delay"},
        {"lose=1:NAME", "lose"},
        {"lose=@5:NAME", "lose"},
        {"lose=2@5:NAME", "2 ranks"},
        {"lose=1@5x:NAME", "lose"},
        {"flip=0:NAME", "flip"},
        {"flip:NAME", "flip"},
        {"strict=1:NAME", "strict"},
        {"trace=x:NAME", "trace"},
        {"tracer:NAME", "tracer"},
        {"NAME:strict", "NAME"},
        {"NAME:NAME", "NAME"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char text[128] = "";
        const char *says = rows[i].says;
        ferry_transport *opened = NULL;
        for (const char *at = rows[i].engines; *at != '\0'; at++) {
            bool is_name = strncmp(at, "NAME", 4) == 0;
            strncat(text, is_name ? me->engine->engine : at, is_name ? 32 : 1);
            at += is_name ? 3 : 0;
        }
        says = strcmp(says, "NAME") == 0 ? me->engine->engine : says;
        must_fail(me, FERRY_ERR_INVALID_INPUT, says,
                  ferry_transport_open(me->world, text, &opened, &me->error));
        expect(me, opened == NULL, "\"%s\": a failed call wrote its output", text);
    }
    ferry_transport *opened = NULL;
    must_fail(me, FERRY_ERR_INVALID_INPUT, NULL,
              ferry_transport_open(me->world,
                                   me->rank == 0 ? me->engine->engines : "trace:trace:nonsense",
                                   &opened, &me->error));
    opened = open_transport(me, me->world, "trace:trace:");
    ferry_transport_close(opened);
}

/*
 * To a rank that lives, and is answered by it when it is on a core again: a flush may take longer
 * than the short deadline of this case, and nothing is lost by that.
 */
static void flush_in_the_end(rank_context *me, uint32_t peer)
{
    ferry_status status;
    int64_t end_ns = now_ns() + (int64_t)(100e9 * me->patience);
    do {
        status = ferry_transport_flush(me->transport, peer, NULL, &me->error);
    } while (status == FERRY_ERR_TIMEOUT && now_ns() < end_ns &&
             ferry_world_state(me->world, NULL, NULL) == FERRY_OK);
    must(me, status);
}

/* From some operation on rank 1 is out of reach; nobody hangs and nobody is told otherwise. */
void case_lose(rank_context *me)
{
    enum { LOST = 1, N_BEFORE = 6 };
    me->transport = open_transport(me, me->world, "lose=1@6:");
    ferry_region *words = alloc_region(me, 64 * 8);
    uint32_t peer = me->rank == LOST ? 0 : LOST;
    uint32_t third = me->rank == LOST ? 2 : 2 - me->rank;
    meet(me);
    for (unsigned i = 1; i < N_BEFORE; i++) {
        raise_signal(me, peer, words, me->rank, i, FERRY_SIGNAL_SET);
        flush_in_the_end(me, peer);
    }
    meet(me);
    if (me->rank != 2) {
        wait_signal(me, words, peer, FERRY_COMPARE_EQ, N_BEFORE - 1, peer);
    }
    meet(me);
    for (unsigned i = N_BEFORE; i < 10; i++) {
        raise_signal(me, peer, words, me->rank, i, FERRY_SIGNAL_SET);
    }
    if (me->rank != LOST) { /* others go on among themselves */
        raise_signal(me, third, words, 10, 4, FERRY_SIGNAL_SET);
        flush_in_the_end(me, third);
        wait_signal(me, words, 10, FERRY_COMPARE_EQ, 4, third);
    }
    int64_t begin_ns = now_ns();
    must_fail(me, FERRY_ERR_TIMEOUT, "rank 1",
              ferry_transport_flush(me->transport, peer, NULL, &me->error));
    double took = (double)(now_ns() - begin_ns) / 1e9;
    double most = me->row->deadline_seconds * me->patience;
    expect(me, took > 0.9 * most, "the flush took %g s", took);
    must_fail(me, FERRY_ERR_TIMEOUT, "rank 1",
              ferry_transport_flush(me->transport, FERRY_ANY_RANK, NULL, &me->error));
    meet(me);
    uint64_t seen = wait_signal(me, words, peer, FERRY_COMPARE_GE, 0, peer);
    expect(me, seen <= N_BEFORE, "signal %llu came through", (unsigned long long)seen);
    must_fail(me, FERRY_ERR_TIMEOUT, "rank",
              ferry_transport_wait_signal(me->transport, words, peer * 8, FERRY_COMPARE_GT,
                                          N_BEFORE, peer, 0.05, NULL, NULL, &me->error));
    ferry_region_free(words);
}

/* A put is in place after its flush and, held back by strict, not before. */
void case_strict(rank_context *me)
{
    me->transport = open_transport(me, me->world, "strict:");
    ferry_region *data = alloc_region(me, 64);
    ferry_region *words = alloc_region(me, 64);
    unsigned char source = 1;
    put(me, next_rank(me), data, 0, &source, 1);
    meet(me);
    expect(me, base_of(data)[0] == 0, "a put is in place before any flush");
    meet(me);
    source = 2; /* against the contract: it shows */
    flush(me, next_rank(me));
    meet(me);
    expect(me, base_of(data)[0] == 2, "%u: the source was read before the flush", base_of(data)[0]);
    source = 3;
    put(me, next_rank(me), data, 1, &source, 1);
    raise_signal(me, next_rank(me), words, 0, 1, FERRY_SIGNAL_SET);
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
    expect(me, base_of(data)[1] == 3, "a put before a signal is not in place");
    flush(me, FERRY_ANY_RANK);
    ferry_region *imported = NULL, *own = NULL;
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_bytes;
    ferry_buffer buffer = ferry_buffer_of(&source, 1);
    must(me, ferry_region_register(me->transport, &buffer, &own, &me->error));
    if (ferry_region_export(own, key, sizeof key, &n_bytes, &me->error) == FERRY_OK) {
        const void *all;
        const size_t *lengths;
        must(me, ferry_world_all_gather_v(me->world, key, n_bytes, &all, &lengths, &me->error));
        const char *other = (const char *)all + (me->rank == 0 ? lengths[0] : 0);
        must_fail(me, FERRY_ERR_UNSUPPORTED, NULL,
                  ferry_region_import(me->transport, other, lengths[next_rank(me)], &imported,
                                      &me->error));
    }
    ferry_region_free(own);
    ferry_region_free(words);
    ferry_region_free(data);
}

/* Nothing arrives early, and everything arrives although the sender does nothing more. */
void case_delay(rank_context *me)
{
    enum { N = 200, DELAY_MS = 50 };
    me->transport = open_transport(me, me->world, "delay=50ms:");
    ferry_region *words = alloc_region(me, 64);
    ferry_region *data = alloc_region(me, 8 * N);
    uint64_t values[N];
    if (me->rank == 0) {
        atomic_store(&me->shared->word[0], (uint64_t)now_ns());
        for (uint64_t i = 0; i < N; i++) {
            values[i] = i + 1;
            put(me, 1, data, 8 * i, &values[i], 8);
            raise_signal(me, 1, words, 0, 1, FERRY_SIGNAL_ADD);
        }
        meet(me); /* of the world: the transport is not called */
        flush(me, 1);
    } else {
        wait_signal(me, words, 0, FERRY_COMPARE_GE, 1, 0);
        int64_t sent_ns = (int64_t)atomic_load(&me->shared->word[0]);
        double took = (double)(now_ns() - sent_ns) / 1e9;
        expect(me, took >= DELAY_MS / 1e3, "the first came after %g s", took);
        wait_signal(me, words, 0, FERRY_COMPARE_EQ, N, 0);
        for (uint64_t i = 0; i < N; i++) {
            memcpy(&values[i], base_of(data) + 8 * i, 8);
            expect(me, values[i] == i + 1, "put %llu", (unsigned long long)i);
        }
        meet(me);
    }
    /* what is under way when everything closes is no trouble */
    raise_signal(me, next_rank(me), words, 1, 1, FERRY_SIGNAL_ADD);
    ferry_transport_close(me->transport);
    me->transport = NULL;
}

static unsigned wrong_bits(const unsigned char *a, const unsigned char *b, size_t n)
{
    unsigned wrong = 0;
    for (size_t i = 0; i < n; i++) {
        wrong += (unsigned)__builtin_popcount((unsigned)(a[i] ^ b[i]));
    }
    return wrong;
}

/* In every four puts one bit of one is wrong, and the source stays as it is. */
void case_flip(rank_context *me)
{
    enum { N = 64, BYTES = 1000, PER_FLIP = 4 };
    me->transport = open_transport(me, me->world, "flip=4:");
    ferry_region *data = alloc_region(me, N * BYTES);
    ferry_region *words = alloc_region(me, 64);
    unsigned char *source = take(me, N * BYTES), *wanted = take(me, N * BYTES);
    fill(source, N * BYTES, seed_of(me, 11, me->rank, 0));
    fill(wanted, N * BYTES, seed_of(me, 11, previous_rank(me), 0));
    for (size_t i = 0; i < N; i++) {
        put(me, next_rank(me), data, i * BYTES, source + i * BYTES, BYTES);
        raise_signal(me, next_rank(me), words, 0, 1, FERRY_SIGNAL_ADD);
    }
    flush(me, FERRY_ANY_RANK);
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, N, previous_rank(me));
    expect(me, mismatch(source, N * BYTES, seed_of(me, 11, me->rank, 0)) == N * BYTES,
           "the source has changed");
    for (size_t i = 0; i < N; i += PER_FLIP) {
        unsigned wrong = 0;
        for (size_t j = i; j < i + PER_FLIP; j++) {
            wrong += wrong_bits(base_of(data) + j * BYTES, wanted + j * BYTES, BYTES);
        }
        expect(me, wrong == 1, "%u wrong bits in puts %zu to %zu", wrong, i, i + PER_FLIP - 1);
    }
    meet(me);
    ferry_region_free(data);
    ferry_region_free(words);
    free(source);
    free(wanted);
}

static _Atomic uint32_t n_lines[3];

static void count_line(void *context, ferry_log_level level, const char *line)
{
    (void)context;
    (void)level;
    static const char *const calls[] = {" put(", " flush(", " alloc("};
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        atomic_fetch_add(&n_lines[i],
                         strstr(line, calls[i]) != NULL && strstr(line, " us") != NULL);
    }
}

void case_trace(rank_context *me)
{
    enum { N = 10 };
    if (me->rank == 0 || !me->engine->threads) {
        ferry_log_configure(FERRY_LOG_TRACE, count_line, NULL);
    }
    meet(me);
    me->transport = open_transport(me, me->world, "trace:");
    ferry_region *words = alloc_region(me, 64);
    for (unsigned i = 0; i < N; i++) {
        raise_signal(me, next_rank(me), words, 0, 1, FERRY_SIGNAL_ADD);
        flush(me, next_rank(me));
    }
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, N, previous_rank(me));
    meet(me);
    expect(me, atomic_load(&n_lines[0]) >= N, "%u lines of put",
           (unsigned)atomic_load(&n_lines[0]));
    expect(me, atomic_load(&n_lines[1]) >= N, "%u lines of flush",
           (unsigned)atomic_load(&n_lines[1]));
    meet(me);
    ferry_region_free(words);
    ferry_transport_close(me->transport);
    me->transport = NULL;
    meet(me);
    if (me->rank == 0 || !me->engine->threads) {
        ferry_log_configure(FERRY_LOG_OFF, NULL, NULL);
    }
}
