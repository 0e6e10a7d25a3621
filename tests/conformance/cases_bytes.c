/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* That bytes arrive: sizes, alignments, large ones, to oneself, by get, and what a flush promises.
 */
#include "conformance/suite.h"

enum { GUARD = 64, SIZES_END = 65536, MOST_SHIFT = 128, GUARD_BYTE = 0xa5 };

/* Word 0 counts what has arrived, word 1 what was looked at. */
enum { ARRIVED = 0, LOOKED = 1 };

typedef struct sized_put {
    uint64_t bytes, target, source, seed;
} sized_put;

static sized_put sized_put_of(const rank_context *me, uint64_t bytes)
{
    uint64_t random = seed_of(me, 1, bytes, 0);
    return (sized_put){.bytes = bytes,
                       .target = GUARD + random_below(&random, MOST_SHIFT),
                       .source = random_below(&random, MOST_SHIFT),
                       .seed = random_u64(&random)};
}

static void look_at_put(const rank_context *me, ferry_region *data, const sized_put *p)
{
    unsigned char *target = base_of(data) + p->target;
    size_t bad = mismatch(target, p->bytes, p->seed);
    expect(me, bad == p->bytes, "%llu bytes at offset %llu differ from byte %zu on",
           (unsigned long long)p->bytes, (unsigned long long)p->target, bad);
    expect(me, mismatch_byte(target - GUARD, GUARD, GUARD_BYTE) == GUARD,
           "%llu bytes at offset %llu: something before them changed", (unsigned long long)p->bytes,
           (unsigned long long)p->target);
    expect(me, mismatch_byte(target + p->bytes, GUARD, GUARD_BYTE) == GUARD,
           "%llu bytes at offset %llu: something behind them changed", (unsigned long long)p->bytes,
           (unsigned long long)p->target);
    memset(target, GUARD_BYTE, p->bytes);
}

static void one_size(rank_context *me, ferry_region *data, ferry_region *words,
                     unsigned char *source, uint64_t bytes, uint64_t count)
{
    sized_put p = sized_put_of(me, bytes);
    if (me->rank == 0) {
        wait_signal(me, words, LOOKED, FERRY_COMPARE_GE, count, 1);
        flush(me, 1);
        fill(source + p.source, p.bytes, p.seed);
        put_signal(me, 1, data, p.target, source + p.source, p.bytes, words, ARRIVED, 1,
                   FERRY_SIGNAL_ADD);
    } else {
        wait_signal(me, words, ARRIVED, FERRY_COMPARE_GE, count + 1, 0);
        look_at_put(me, data, &p);
        raise_signal(me, 0, words, LOOKED, 1, FERRY_SIGNAL_ADD);
    }
}

void case_sizes(rank_context *me)
{
    ferry_region *data = alloc_region(me, SIZES_END + MOST_SHIFT + 2 * GUARD);
    ferry_region *words = alloc_region(me, 64);
    unsigned char *source = take(me, SIZES_END + MOST_SHIFT);
    memset(base_of(data), GUARD_BYTE, ferry_region_bytes(data));
    meet(me);
    uint64_t count = 0;
    for (uint64_t bytes = 0; bytes <= SIZES_END; bytes += bytes < 300 ? 1 : me->step) {
        one_size(me, data, words, source, bytes, count++);
    }
    for (uint64_t power = 512; power <= SIZES_END; power *= 2) {
        for (uint64_t bytes = power - 1; bytes <= power + 1 && bytes <= SIZES_END; bytes++) {
            one_size(me, data, words, source, bytes, count++);
        }
    }
    flush(me, FERRY_ANY_RANK);
    ferry_region_free(data);
    ferry_region_free(words);
    free(source);
}

void case_big(rank_context *me)
{
    static const uint64_t sizes[] = {(1u << 20) + 3, 1u << 20, (4u << 20) - 1, (16u << 20) + 7,
                                     64u << 20};
    const uint64_t most = 64u << 20;
    ferry_region *data = alloc_region(me, most + GUARD);
    ferry_region *words = alloc_region(me, 64);
    unsigned char *source = take(me, most);
    uint32_t peer = next_rank(me);
    uint64_t count = 0;
    for (unsigned round = 0; round < (me->is_long ? 8u : 1u); round++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            uint64_t bytes = sizes[i], offset = random_below(&me->random, GUARD / 2);
            offset = bytes == most ? 0 : offset;
            fill(source, bytes, seed_of(me, 2, me->rank, bytes + round));
            memset(base_of(data), GUARD_BYTE, most + GUARD);
            meet(me);
            /* both ways at once; the receiver finds the bytes by their place */
            put(me, peer, data, offset, source, bytes);
            put_signal(me, peer, words, 16, &offset, 8, words, ARRIVED, ++count, FERRY_SIGNAL_SET);
            wait_signal(me, words, ARRIVED, FERRY_COMPARE_EQ, count, peer);
            uint64_t at;
            memcpy(&at, base_of(words) + 16, 8);
            expect(me, at <= GUARD / 2, "the sender's offset %llu", (unsigned long long)at);
            size_t bad = mismatch(base_of(data) + at, bytes, seed_of(me, 2, peer, bytes + round));
            expect(me, bad == bytes, "%llu bytes differ from byte %zu on",
                   (unsigned long long)bytes, bad);
            size_t behind = GUARD + most - at - bytes;
            behind = behind > GUARD ? GUARD : behind;
            expect(me, mismatch_byte(base_of(data) + at + bytes, behind, GUARD_BYTE) == behind,
                   "something behind %llu bytes changed", (unsigned long long)bytes);
            flush(me, peer);
            meet(me);
        }
    }
    ferry_region_free(words);
    ferry_region_free(data);
    free(source);
}

/*
 * Large puts and a flush, and nothing else: no signal has ever gone where they go, and the control
 * plane tells that they are there.
 */
static void flush_alone(rank_context *me)
{
    enum { BYTES = 100000 };
    ferry_region *data = alloc_region(me, (uint64_t)me->n_ranks * BYTES);
    unsigned char *source = take(me, BYTES);
    fill(source, BYTES, seed_of(me, 22, me->rank, 0));
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        put(me, peer, data, (uint64_t)me->rank * BYTES, source, BYTES);
    }
    flush(me, FERRY_ANY_RANK);
    memset(source, 0xee, BYTES);
    meet(me);
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        size_t bad =
            mismatch(base_of(data) + (size_t)peer * BYTES, BYTES, seed_of(me, 22, peer, 0));
        expect(me, bad == BYTES, "byte %zu of rank %u is not in place after its flush", bad,
               (unsigned)peer);
    }
    meet(me);
    ferry_region_free(data);
    free(source);
}

/* Everybody puts to everybody, flushes, spoils the source, and only then says so. */
void case_flush(rank_context *me)
{
    flush_alone(me);
    enum { MOST = 1 << 20, N_PUTS = 5 };
    ferry_region *data = alloc_region(me, (uint64_t)me->n_ranks * N_PUTS * MOST);
    ferry_region *words = alloc_region(me, 64 * 8);
    unsigned char *source = take(me, (size_t)N_PUTS * MOST);
    for (unsigned round = 0; round < (me->is_long ? 100u : 6u); round++) {
        uint64_t random = seed_of(me, 3, round, 0);
        size_t bytes[N_PUTS];
        for (unsigned i = 0; i < N_PUTS; i++) {
            bytes[i] = random_below(&random, 1u << (4 + random_below(&random, 17)));
            fill(source + (size_t)i * MOST, bytes[i], seed_of(me, round, me->rank, i));
            for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
                put(me, peer, data, ((uint64_t)me->rank * N_PUTS + i) * MOST,
                    source + (size_t)i * MOST, bytes[i]);
            }
        }
        if (round % 2 == 0) {
            flush(me, FERRY_ANY_RANK);
        }
        for (uint32_t peer = 0; peer < me->n_ranks && round % 2 == 1; peer++) {
            flush(me, peer);
        }
        memset(source, 0xee, (size_t)N_PUTS * MOST);
        for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
            raise_signal(me, peer, words, me->rank, round + 1, FERRY_SIGNAL_SET);
        }
        for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
            wait_signal(me, words, peer, FERRY_COMPARE_EQ, round + 1, peer);
            for (unsigned i = 0; i < N_PUTS; i++) {
                unsigned char *at = base_of(data) + ((size_t)peer * N_PUTS + i) * MOST;
                expect(me, mismatch(at, bytes[i], seed_of(me, round, peer, i)) == bytes[i],
                       "round %u: put %u of rank %u, %zu bytes, is not in place after its flush",
                       round, i, (unsigned)peer, bytes[i]);
            }
        }
        flush(me, FERRY_ANY_RANK);
        meet(me);
        flush(me, FERRY_ANY_RANK); /* of nothing */
    }
    ferry_region_free(data);
    ferry_region_free(words);
    free(source);
}

void case_self(rank_context *me)
{
    enum { MOST = 100000 };
    ferry_region *data = alloc_region(me, 2 * MOST);
    ferry_region *words = alloc_region(me, 64);
    unsigned char *source = take(me, MOST);
    fill(source, MOST, me->random);
    put(me, me->rank, data, 1, source, MOST);
    flush(me, me->rank);
    expect(me, mismatch(base_of(data) + 1, MOST, me->random) == MOST, "a put to oneself");
    for (uint64_t i = 1; i <= 100; i++) {
        uint64_t bytes = i * 997;
        put_signal(me, me->rank, data, MOST, source, bytes, words, 0, 2, FERRY_SIGNAL_ADD);
        uint64_t seen = wait_signal(me, words, 0, FERRY_COMPARE_EQ, 2 * i, me->rank);
        expect(me, seen == 2 * i, "%llu", (unsigned long long)seen);
        expect(me, mismatch(base_of(data) + MOST, bytes, me->random) == bytes,
               "%llu bytes to oneself", (unsigned long long)bytes);
    }
    raise_signal(me, me->rank, words, 1, UINT64_MAX, FERRY_SIGNAL_SET);
    wait_signal(me, words, 1, FERRY_COMPARE_EQ, UINT64_MAX, FERRY_ANY_RANK);
    expect(me, ferry_region_pointer(data, me->rank) == ferry_region_base(data),
           "the own part lies elsewhere");
    flush(me, me->rank);
    ferry_region_free(words);
    ferry_region_free(data);
    free(source);
}

static void get(rank_context *me, uint32_t peer, ferry_region *region, uint64_t offset,
                void *target, uint64_t bytes)
{
    ferry_buffer buffer = ferry_buffer_of(target, bytes);
    must(me, ferry_transport_get(me->transport, peer, region, offset, &buffer, NULL, &me->error));
}

static void get_sizes(rank_context *me, ferry_region *data, uint64_t most)
{
    uint32_t peer = next_rank(me);
    unsigned char *target = take(me, most + 2 * GUARD + 64);
    unsigned char *image = take(me, most);
    fill(image, most, seed_of(me, 4, peer, 0));
    for (unsigned i = 0; i < (me->is_long ? 2000u : 200u); i++) {
        uint64_t bytes = random_below(&me->random, 1u << (1 + random_below(&me->random, 20)));
        uint64_t offset = random_below(&me->random, (uint32_t)(most - bytes) + 1);
        size_t shift = GUARD + random_below(&me->random, 64);
        memset(target, GUARD_BYTE, most + 2 * GUARD + 64);
        get(me, peer, data, offset, target + shift, bytes);
        flush(me, peer);
        expect(me, memcmp(target + shift, image + offset, bytes) == 0,
               "%llu bytes from offset %llu", (unsigned long long)bytes,
               (unsigned long long)offset);
        expect(me,
               mismatch_byte(target, shift, GUARD_BYTE) == shift &&
                   mismatch_byte(target + shift + bytes, GUARD, GUARD_BYTE) == GUARD,
               "something around %llu bytes changed", (unsigned long long)bytes);
    }
    free(image);
    free(target);
}

void case_get(rank_context *me)
{
    const uint64_t most = 1u << 20;
    ferry_region *data = alloc_region(me, most);
    unsigned char one[16];
    ferry_buffer buffer = ferry_buffer_of(one, sizeof one);
    fill(base_of(data), most, seed_of(me, 4, me->rank, 0));
    meet(me);
    if ((me->can & FERRY_CAN_GET) != 0) {
        get_sizes(me, data, most);
        must_fail(me, FERRY_ERR_MISUSE, NULL,
                  ferry_transport_get(me->transport, next_rank(me), data, most - 15, &buffer, NULL,
                                      &me->error));
    } else {
        must_fail(
            me, FERRY_ERR_UNSUPPORTED, NULL,
            ferry_transport_get(me->transport, next_rank(me), data, 0, &buffer, NULL, &me->error));
    }
    meet(me);
    ferry_region_free(data);
}
