/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory that ferry allocates for one rank, and that others import. */
#include "conformance/suite.h"

#include <stdatomic.h>
#include <sys/resource.h>

/* Handles to what every rank has; that of this rank is its own region. */
typedef struct handles {
    ferry_buffer own;
    ferry_region *of[MOST_RANKS]; /* imported: all NULL where nothing can be */
} handles;

static bool can_import(const rank_context *me)
{
    return (me->can & FERRY_CAN_REMOTE_USER_MEMORY) != 0;
}

static void take_memory(rank_context *me, uint64_t bytes, ferry_buffer *buffer)
{
    must(me, ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 0, bytes, buffer, &me->error));
    expect(me, buffer->bytes == bytes && buffer->kind == FERRY_MEMORY_HOST, "a buffer of %llu",
           (unsigned long long)buffer->bytes);
    expect(me, (uintptr_t)buffer->base % 4096 == 0, "%p is not page aligned", buffer->base);
    expect(me, mismatch_byte(buffer->base, bytes, 0) == bytes, "new memory is not zero");
    expect(me,
           ferry_region_base(buffer->registration) == buffer->base &&
               ferry_region_bytes(buffer->registration) == bytes &&
               ferry_region_pointer(buffer->registration, me->rank) == buffer->base,
           "the registration is not that of the memory");
}

/* Of no transport, and registered with this one: others reach it as well. */
static void take_owned(rank_context *me, uint64_t bytes, ferry_buffer *buffer)
{
    must(me, ferry_memory_alloc(NULL, FERRY_MEMORY_HOST, 0, bytes, buffer, &me->error));
    expect(me, buffer->registration == NULL && mismatch_byte(buffer->base, bytes, 0) == bytes,
           "memory without a transport is registered or not zero");
    must(me, ferry_region_register(me->transport, buffer, &buffer->registration, &me->error));
}

/* Collective. */
static void exchange_keys(rank_context *me, handles *it)
{
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_key = 0;
    const void *all;
    const size_t *lengths;
    memset(it->of, 0, sizeof it->of);
    if (!can_import(me)) {
        must_fail(me, FERRY_ERR_UNSUPPORTED, NULL,
                  ferry_region_export(it->own.registration, key, sizeof key, &n_key, &me->error));
        return;
    }
    must(me, ferry_region_export(it->own.registration, key, sizeof key, &n_key, &me->error));
    must(me, ferry_world_all_gather_v(me->world, key, n_key, &all, &lengths, &me->error));
    const unsigned char *at = all;
    for (uint32_t peer = 0; peer < me->n_ranks; at += lengths[peer++]) {
        must(me, ferry_region_import(me->transport, at, lengths[peer], &it->of[peer], &me->error));
    }
    meet(me);
}

/* Collective. */
static void import_all(rank_context *me, uint64_t bytes, handles *it)
{
    take_memory(me, bytes, &it->own);
    exchange_keys(me, it);
}

static void free_handles(handles *it, uint32_t n_ranks)
{
    for (uint32_t peer = 0; peer < n_ranks; peer++) {
        ferry_region_free(it->of[peer]);
        it->of[peer] = NULL;
    }
}

static uint64_t bytes_of(const rank_context *me, uint32_t rank)
{
    static const uint64_t sizes[] = {6u << 20, 1 << 14, 70001, (3u << 20) + 5};
    return sizes[rank % COUNT_OF(sizes)] * (me->is_long ? 5 : 1);
}

/* Each rank has a part of each other's memory: its first half by pointer, if any, else by puts. */
static void write_part(rank_context *me, handles *it, uint32_t peer, ferry_region *words)
{
    uint64_t part = bytes_of(me, peer) / me->n_ranks;
    uint64_t half = part / 2;
    unsigned char *source = take(me, part);
    unsigned char *mapped = ferry_region_pointer(it->of[peer], peer);
    bool should = peer == me->rank || (me->can & FERRY_CAN_PEER_POINTER) != 0;
    expect(me, (mapped != NULL) == should, "memory of rank %u is at %p", (unsigned)peer,
           (void *)mapped);
    expect(me, ferry_region_pointer(it->of[peer], (peer + 1) % me->n_ranks) == NULL,
           "memory of another rank");
    fill(source, part, seed_of(me, 20, me->rank, peer));
    if (mapped != NULL) {
        memcpy(mapped + me->rank * part, source, half);
        atomic_thread_fence(memory_order_release);
    } else {
        put(me, peer, it->of[peer], me->rank * part, source, half);
    }
    put_signal(me, peer, it->of[peer], me->rank * part + half, source + half, part - half, words,
               me->rank, 1, FERRY_SIGNAL_SET);
    flush(me, peer);
    free(source);
}

static void check_parts(rank_context *me, const handles *it, ferry_region *words)
{
    uint64_t part = bytes_of(me, me->rank) / me->n_ranks;
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        wait_signal(me, words, peer, FERRY_COMPARE_EQ, 1, peer);
        size_t bad = mismatch((const unsigned char *)it->own.base + peer * part, part,
                              seed_of(me, 20, peer, me->rank));
        expect(me, bad == part, "what rank %u wrote differs from byte %zu of %llu on",
               (unsigned)peer, bad, (unsigned long long)part);
    }
}

/* And all of it comes back by gets. */
static void read_back(rank_context *me, handles *it, uint32_t peer)
{
    uint64_t part = bytes_of(me, peer) / me->n_ranks;
    unsigned char *bytes = take(me, part);
    ferry_buffer target = ferry_buffer_of(bytes, part);
    if ((me->can & FERRY_CAN_GET) != 0) {
        must(me, ferry_transport_get(me->transport, peer, it->of[peer], me->rank * part, &target,
                                     NULL, &me->error));
        flush(me, peer);
        expect(me, mismatch(bytes, part, seed_of(me, 20, me->rank, peer)) == part,
               "what came back from rank %u", (unsigned)peer);
    }
    free(bytes);
}

static void move_parts(rank_context *me, handles *it, ferry_region *words)
{
    for (uint32_t i = 0; i < me->n_ranks && can_import(me); i++) {
        write_part(me, it, (me->rank + i) % me->n_ranks, words);
    }
    if (can_import(me)) {
        check_parts(me, it, words);
    }
    for (uint32_t i = 0; i < me->n_ranks && can_import(me); i++) {
        read_back(me, it, (me->rank + i) % me->n_ranks);
    }
}

/* What no transport made is mapped by others all the same, and stays when the region has gone. */
void case_memory_owned(rank_context *me)
{
    handles it;
    ferry_region *words = alloc_region(me, 8 * MOST_RANKS);
    take_owned(me, bytes_of(me, me->rank), &it.own);
    ferry_region *first = it.own.registration;
    exchange_keys(me, &it);
    move_parts(me, &it, words);
    free_handles(&it, me->n_ranks);
    meet(me);
    ferry_region_free(first);
    uint64_t part = bytes_of(me, me->rank) / me->n_ranks;
    expect(me, !can_import(me) || mismatch(it.own.base, part, seed_of(me, 20, 0, me->rank)) == part,
           "what was written has gone with the region");
    /* A part is memory like any other, whatever the whole is. */
    ferry_buffer rest = ferry_buffer_of((char *)it.own.base + 100, 4000);
    must(me, ferry_region_register(me->transport, &rest, &first, &me->error));
    it.own.registration = NULL;
    ferry_memory_free(&it.own);
    ferry_region_free(first);
    ferry_region_free(words);
}

void case_memory(rank_context *me)
{
    handles it;
    ferry_region *words = alloc_region(me, 8 * MOST_RANKS);
    ferry_buffer none = ferry_buffer_of(NULL, 0);
    import_all(me, bytes_of(me, me->rank), &it);
    move_parts(me, &it, words);
    /* It is a source as well, wherever a part of it lies. */
    ferry_region *target = alloc_region(me, 4096);
    ferry_buffer part = it.own;
    part.base = (char *)it.own.base + 100;
    part.bytes = 4000;
    fill(part.base, part.bytes, me->rank);
    must(me, ferry_transport_put(me->transport, next_rank(me), target, 0, &part, NULL, &me->error));
    flush(me, next_rank(me));
    meet(me);
    expect(me, mismatch(base_of(target), 4000, previous_rank(me)) == 4000, "a part as a source");
    meet(me);
    free_handles(&it, me->n_ranks);
    meet(me);
    ferry_memory_free(&it.own);
    expect(me, it.own.base == NULL && it.own.registration == NULL && it.own.bytes == 0,
           "a freed buffer is not empty");
    ferry_memory_free(&it.own);
    ferry_memory_free(&none);
    ferry_memory_free(NULL);
    must_fail(me, FERRY_ERR_MISUSE, "at least one byte",
              ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 0, 0, &none, &me->error));
    must_fail(me, FERRY_ERR_MISUSE, "device 1",
              ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 1, 1, &none, &me->error));
    must_fail(
        me, FERRY_ERR_MISUSE, "device 3",
        ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 3, 1, &none.registration, &me->error));
    none = ferry_buffer_of(base_of(target), 1);
    none.device = 5;
    must_fail(
        me, FERRY_ERR_MISUSE, "device 5",
        ferry_transport_put(me->transport, next_rank(me), target, 0, &none, NULL, &me->error));
    none = ferry_buffer_of(NULL, 0);
    must_fail(me, FERRY_ERR_UNSUPPORTED, "cuda",
              ferry_memory_alloc(NULL, FERRY_MEMORY_CUDA, 0, 1, &none, &me->error));
    expect(me, none.base == NULL, "a failed call wrote its output");
    ferry_region_free(target);
    ferry_region_free(words);
}

/* The owner frees while others have it mapped: they keep it, and a late import is refused. */
void case_memory_order(rank_context *me)
{
    enum { BYTES = 5 << 20 };
    handles it;
    uint32_t peer = next_rank(me);
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_key = 0;
    ferry_region *late = NULL;
    import_all(me, BYTES, &it);
    if (!can_import(me)) {
        ferry_memory_free(&it.own);
        return;
    }
    unsigned char *mapped = ferry_region_pointer(it.of[peer], peer);
    must(me, ferry_region_export(it.own.registration, key, sizeof key, &n_key, &me->error));
    fill(it.own.base, BYTES, me->rank);
    meet(me);
    ferry_memory_free(&it.own);
    meet(me);
    if (mapped != NULL) {
        expect(me, mismatch(mapped, BYTES, peer) == BYTES, "memory that its owner has freed");
        memset(mapped, 0x5a, BYTES);
        meet(me);
        expect(me, me->engine->threads || mismatch_byte(mapped, BYTES, 0x5a) == BYTES,
               "memory that nobody else has");
    } else {
        meet(me);
    }
    free_handles(&it, me->n_ranks);
    meet(me);
    /* Its key leads nowhere, or to a handle with nothing behind it; nor to what came after it. */
    ferry_buffer other;
    const void *all;
    take_memory(me, BYTES, &other);
    must(me, ferry_world_all_gather(me->world, key, n_key, &all, &me->error));
    ferry_status status = ferry_region_import(
        me->transport, (const unsigned char *)all + peer * n_key, n_key, &late, &me->error);
    expect(me, (status == FERRY_OK) == (late != NULL), "%s", ferry_status_name(status));
    expect(me, ferry_region_pointer(late, peer) == NULL, "memory that is gone is mapped");
    ferry_region_free(late);
    meet(me);
    ferry_memory_free(&other);
}

/* Many small pieces and some large ones, over and over: nothing stays behind. */
void case_memory_loop(rank_context *me)
{
    enum { N = 100 };
    handles it;
    possessions before = {0};
    ferry_buffer small[N];
    unsigned rounds = me->is_long ? 100 : 6;
    ferry_region *none = alloc_region(me, 64);
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < N; i++) {
            take_memory(me, 1 + random_below(&me->random, 1u << 14), &small[i]);
            memset(small[i].base, 0xee, small[i].bytes);
        }
        import_all(me, (uint64_t)(1 + round % 3) << 20, &it);
        if (round % 2 == 0) {
            ferry_memory_free(&it.own);
        }
        free_handles(&it, me->n_ranks);
        ferry_memory_free(&it.own);
        for (unsigned left = N; left > 0; left--) {
            unsigned at = random_below(&me->random, left);
            ferry_memory_free(&small[at]);
            small[at] = small[left - 1];
        }
        meet(me); /* threads of a process see each other's */
        if (round == 1) {
            before = possessions_of(me);
        } else if (round > 1) {
            check_possessions(me, &before);
        }
        meet(me);
    }
    ferry_region_free(none);
}

void case_memory_huge(rank_context *me)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 44, UINT64_C(1) << 62, UINT64_C(1) << 63,
                                     UINT64_MAX - 4095, UINT64_MAX};
    possessions before = possessions_of(me);
    meet(me);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        ferry_buffer buffer = ferry_buffer_of(me, 1);
        must_fail(
            me, FERRY_ERR_NO_MEMORY, "memory",
            ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 0, sizes[i], &buffer, &me->error));
        expect(me, buffer.base == me, "a failed call wrote its output");
    }
    meet(me);
    check_possessions(me, &before);
    meet(me);
    ferry_buffer buffer;
    take_memory(me, 10000, &buffer); /* left to close */
}

/* When the world has failed nothing new is made, and all goes, in any order and at any time. */
void case_memory_failed(rank_context *me)
{
    enum { BYTES = 3 << 20 };
    handles it;
    ferry_buffer more;
    import_all(me, BYTES, &it);
    uint32_t peer = next_rank(me);
    unsigned char *mapped = ferry_region_pointer(it.of[peer], peer);
    meet(me);
    atomic_fetch_add(&me->shared->word[0], 1);
    while (me->rank == 0 && atomic_load(&me->shared->word[0]) < me->n_ranks) {
        sleep_ms(1); /* until all have left the barrier */
    }
    if (me->rank == 0) {
        ferry_world_abort(me->world, "enough");
    }
    for (ferry_status status = FERRY_OK; status == FERRY_OK;) {
        if (mapped != NULL) {
            memset(mapped, (int)me->rank, BYTES);
        }
        status = ferry_transport_progress(me->transport, &me->error);
    }
    must_fail(me, FERRY_ERR_ABORTED, "enough",
              ferry_memory_alloc(me->transport, FERRY_MEMORY_HOST, 0, 4096, &more, &me->error));
    if (me->rank != 1) {
        ferry_memory_free(&it.own);
    }
    if (mapped != NULL) {
        memset(mapped, 1, BYTES);
    }
    free_handles(&it, me->n_ranks);
    ferry_memory_free(&it.own);
}

/* Descriptors run short: the memory is there all the same, and reached as user memory is. */
void case_memory_scarce(rank_context *me)
{
    enum { N = 60, BYTES = 9000 };
    struct rlimit limit, less;
    ferry_buffer small[N];
    handles it;
    ferry_region *words = alloc_region(me, 64);
    meet(me);
    getrlimit(RLIMIT_NOFILE, &limit);
    size_t n_fds = possessions_of(me).fds;
    possessions before = {0};
    less = limit;
    less.rlim_cur = 2 * n_fds + 40;
    expect(me, setrlimit(RLIMIT_NOFILE, &less) == 0, "RLIMIT_NOFILE stays");
    for (unsigned i = 0; i < N; i++) {
        take_memory(me, BYTES, &small[i]);
    }
    before = possessions_of(me);
    expect(me, before.fds <= n_fds + 30, "memory took %zu descriptors", before.fds - n_fds);
    import_all(me, BYTES, &it);
    if (can_import(me)) {
        unsigned char bytes[BYTES];
        uint32_t peer = next_rank(me);
        bool shm = strcmp(me->engine->engine, "shm") == 0;
        expect(me, !shm || ferry_region_pointer(it.of[peer], peer) == NULL, "it has a descriptor");
        fill(bytes, BYTES, me->rank);
        put_signal(me, peer, it.of[peer], 0, bytes, BYTES, words, 0, 1, FERRY_SIGNAL_SET);
        wait_signal(me, words, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
        expect(me, mismatch(it.own.base, BYTES, previous_rank(me)) == BYTES, "what was put");
        flush(me, peer);
        meet(me);
    }
    free_handles(&it, me->n_ranks);
    meet(me);
    for (unsigned i = 0; i < N; i++) {
        ferry_memory_free(&small[i]);
    }
    ferry_memory_free(&it.own);
    setrlimit(RLIMIT_NOFILE, &limit);
    ferry_region_free(words);
}

/* What is put arrives while its target does nothing but let the engines work. */
void case_target(rank_context *me)
{
    static const uint64_t sizes[] = {1, 4096, 70000, 1 << 20, 8 << 20};
    ferry_region *region = alloc_region(me, 64 + (8u << 20));
    unsigned char *source = take(me, 8u << 20);
    _Atomic uint64_t *word = (_Atomic uint64_t *)ferry_region_base(region);
    for (uint64_t i = 0; i < COUNT_OF(sizes); i++) {
        if (me->rank == 0) {
            fill(source, sizes[i], seed_of(me, 21, i, 0));
            put_signal(me, 1, region, 64, source, sizes[i], region, 0, i + 1, FERRY_SIGNAL_SET);
            flush(me, 1);
        } else {
            int64_t end_ns = now_ns() + (int64_t)(limit_of(me) * 1e9);
            while (atomic_load(word) != i + 1) {
                must(me, ferry_transport_progress(me->transport, &me->error));
                expect(me, now_ns() < end_ns, "%llu bytes do not arrive",
                       (unsigned long long)sizes[i]);
            }
            expect(me, mismatch(base_of(region) + 64, sizes[i], seed_of(me, 21, i, 0)) == sizes[i],
                   "%llu bytes", (unsigned long long)sizes[i]);
        }
        meet(me);
    }
    free(source);
    ferry_region_free(region);
}
