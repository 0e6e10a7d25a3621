/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory: many regions, growing ones, unequal ones, impossible ones, registered ones and keys. */
#include "conformance/suite.h"

void case_peers(rank_context *me)
{
    ferry_region *region = alloc_region(me, 12345);
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        const char *name = NULL;
        uint32_t can = 0;
        must(me, ferry_transport_get_peer(me->transport, peer, &name, &can, &me->error));
        must(me, ferry_transport_get_peer(me->transport, peer, NULL, NULL, &me->error));
        expect(me, peer == me->rank || strstr(name, me->engine->engine) != NULL, "engine %s", name);
        unsigned char *mapped = ferry_region_pointer(region, peer);
        expect(me, peer == me->rank || (mapped != NULL) == ((can & FERRY_CAN_PEER_POINTER) != 0),
               "pointer %p with flags 0x%x", (void *)mapped, (unsigned)can);
        if (mapped != NULL) {
            mapped[me->rank * 100] = (unsigned char)(me->rank + 1);
        }
        bool strict = has_wrapper(me, "strict") && peer != me->rank;
        expect(me,
               !strict || ((can & FERRY_CAN_QUEUE_ORDER) != 0 && (can & FERRY_CAN_ONE_WORLD) != 0 &&
                           (can & FERRY_CAN_REMOTE_USER_MEMORY) == 0 && mapped == NULL),
               "strict has flags 0x%x", (unsigned)can);
    }
    meet(me);
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        unsigned char seen = base_of(region)[peer * 100];
        expect(me,
               seen == ((me->can & FERRY_CAN_PEER_POINTER) != 0 || peer == me->rank ? peer + 1 : 0),
               "rank %u wrote %u by its pointer", (unsigned)peer, seen);
    }
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_transport_get_peer(me->transport, me->n_ranks, NULL, NULL, &me->error));
    expect(me, ferry_region_pointer(region, me->n_ranks) == NULL, "a rank that is none");
    meet(me);
    ferry_region_free(region);
}

static uint64_t length_of(const rank_context *me, unsigned number)
{
    uint64_t random = seed_of(me, 5, number, 0);
    return 1 + random_below(&random, 1u << (1 + random_below(&random, 16)));
}

static void check_new(const rank_context *me, ferry_region *region)
{
    uint64_t bytes = ferry_region_bytes(region);
    expect(me, (uintptr_t)ferry_region_base(region) % 4096 == 0, "%p is not page aligned",
           ferry_region_base(region));
    expect(me, mismatch_byte(ferry_region_base(region), bytes, 0) == bytes,
           "new memory is not zero at byte %zu of %llu",
           mismatch_byte(ferry_region_base(region), bytes, 0), (unsigned long long)bytes);
}

void case_regions(rank_context *me)
{
    enum { MOST = 400 };
    unsigned n = me->is_long ? MOST : 64;
    ferry_region *regions[MOST];
    ferry_region *words = alloc_region(me, 64);
    uint32_t peer = next_rank(me);
    unsigned char *bytes = take(me, 1u << 17);
    unsigned order[MOST];
    for (unsigned i = 0; i < n; i++) {
        regions[i] = alloc_region(me, length_of(me, i));
        check_new(me, regions[i]);
        order[i] = i;
    }
    meet(me);
    for (unsigned i = 0; i < n; i++) {
        fill(bytes, length_of(me, i), seed_of(me, 6, me->rank, i));
        put(me, peer, regions[i], 0, bytes, length_of(me, i));
        flush(me, peer);
    }
    raise_signal(me, peer, words, 0, 1, FERRY_SIGNAL_SET);
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
    uint64_t shuffle = me->seed;
    for (unsigned left = n; left > 0; left--) { /* freed in an order that is nobody's */
        unsigned at = random_below(&shuffle, left);
        unsigned i = order[at];
        ferry_region *region = regions[i];
        order[at] = order[left - 1];
        size_t bad = mismatch(ferry_region_base(region), length_of(me, i),
                              seed_of(me, 6, previous_rank(me), i));
        expect(me, bad == length_of(me, i), "region %u of %llu bytes differs from byte %zu on", i,
               (unsigned long long)length_of(me, i), bad);
        ferry_region_free(region);
    }
    ferry_region_free(words);
    free(bytes);
}

/* Memory that was freed is really gone, and what follows is new. */
void case_alloc_loop(rank_context *me)
{
    const uint64_t most = me->is_long ? UINT64_C(256) << 20 : UINT64_C(32) << 20;
    ferry_region *words = alloc_region(me, 64);
    possessions before = {0};
    uint64_t count = 0;
    for (uint64_t bytes = 1; bytes <= most; bytes = bytes * 3 + 1) {
        for (unsigned round = 0; round < 5; round++) {
            ferry_region *region = alloc_region(me, bytes);
            unsigned char last = 0xff;
            check_new(me, region);
            meet(me);
            put_signal(me, next_rank(me), region, bytes - 1, &last, 1, words, 0, ++count,
                       FERRY_SIGNAL_SET);
            wait_signal(me, words, 0, FERRY_COMPARE_EQ, count, previous_rank(me));
            expect(me, base_of(region)[bytes - 1] == 0xff, "the last of %llu bytes",
                   (unsigned long long)bytes);
            memset(ferry_region_base(region), 0xcc, bytes);
            ferry_region_free(region);
            meet(me); /* threads of a process see each other's */
            if (round == 1) {
                before = possessions_of(me);
            }
            meet(me);
        }
        check_possessions(me, &before);
        meet(me);
    }
    ferry_region_free(words);
}

static void check_usable(rank_context *me)
{
    ferry_region *region = alloc_region(me, 4096);
    uint64_t value = me->rank + 1;
    put_signal(me, next_rank(me), region, 8, &value, 8, region, 0, 1, FERRY_SIGNAL_SET);
    wait_signal(me, region, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
    expect(me, base_of(region)[8] == previous_rank(me) + 1, "%u", base_of(region)[8]);
    ferry_region_free(region);
}

/* Whoever asks for another length than the others, all ranks hear of two that differ. */
void case_unequal(rank_context *me)
{
    for (uint32_t odd = 0; odd < me->n_ranks; odd++) {
        ferry_region *region = NULL;
        must_fail(me, FERRY_ERR_INVALID_INPUT, "rank ",
                  ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0,
                                     me->rank == odd ? 8192 : 4096, &region, &me->error));
        const char *first = strstr(me->error.message, "rank ");
        expect(me, strstr(first + 1, "rank ") != NULL, "\"%.400s\" names no two ranks",
               me->error.message);
        expect(me,
               strstr(me->error.message, "8192") != NULL &&
                   strstr(me->error.message, "4096") != NULL,
               "\"%.400s\" names no two lengths", me->error.message);
        expect(me, region == NULL, "a failed call wrote its output");
        check_usable(me);
    }
    ferry_region *region = NULL;
    must_fail(me, FERRY_ERR_MISUSE, NULL,
              ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, 0, &region, &me->error));
    must_fail(me, FERRY_ERR_INVALID_INPUT, "rank 1",
              ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, me->rank == 1 ? 0 : 4096,
                                 &region, &me->error));
    check_usable(me);
}

void case_huge(rank_context *me)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 46, UINT64_C(1) << 62, UINT64_MAX - 4095,
                                     UINT64_MAX, UINT64_C(1) << 63};
    check_usable(me);
    possessions before = possessions_of(me);
    meet(me);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        ferry_region *region = NULL;
        ferry_status status =
            ferry_region_alloc(me->transport, FERRY_MEMORY_HOST, 0, sizes[i], &region, &me->error);
        expect(me, status == FERRY_ERR_NO_MEMORY || status == FERRY_ERR_LIMIT,
               "2^%zu and so on: %s", i, ferry_status_name(status));
        meet(me);
        check_possessions(me, &before);
        meet(me);
    }
    check_usable(me);
}

/* Close frees what is left, of every kind. */
void case_leave_regions(rank_context *me)
{
    static unsigned char memory[MOST_RANKS][5000];
    ferry_region *region = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory[me->rank], sizeof memory[0]);
    for (unsigned i = 0; i < 5; i++) {
        region = alloc_region(me, 10000 + i);
        must(me, ferry_region_register(me->transport, &buffer, &region, &me->error));
    }
    region = alloc_region(me, 100);
    raise_signal(me, next_rank(me), region, 0, 1, FERRY_SIGNAL_SET);
    wait_signal(me, region, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
    flush(me, FERRY_ANY_RANK);
    meet(me);
}

/* Everybody registers memory; all put into all of it. */
static void put_into_imported(rank_context *me, unsigned char *memory, uint64_t bytes)
{
    unsigned char key[FERRY_KEY_BYTES];
    size_t n_key;
    ferry_region *own = NULL;
    ferry_region *others[MOST_RANKS];
    ferry_region *words = alloc_region(me, 8 * MOST_RANKS);
    unsigned char *source = take(me, bytes);
    ferry_buffer buffer = ferry_buffer_of(memory, bytes);
    const void *all;
    const size_t *lengths;
    uint64_t part = bytes / me->n_ranks;
    must(me, ferry_region_register(me->transport, &buffer, &own, &me->error));
    must(me, ferry_region_export(own, key, sizeof key, &n_key, &me->error));
    expect(me, n_key > 0 && n_key <= FERRY_KEY_BYTES, "a key of %zu bytes", n_key);
    must(me, ferry_world_all_gather_v(me->world, key, n_key, &all, &lengths, &me->error));
    const unsigned char *at = all;
    for (uint32_t peer = 0; peer < me->n_ranks; at += lengths[peer++]) {
        must(me, ferry_region_import(me->transport, at, lengths[peer], &others[peer], &me->error));
        expect(me,
               ferry_region_bytes(others[peer]) == bytes && ferry_region_base(others[peer]) == NULL,
               "an imported region of rank %u", (unsigned)peer);
    }
    fill(source, bytes, seed_of(me, 7, me->rank, 0));
    buffer = ferry_buffer_of(source, 16);
    for (uint32_t i = 0; i < me->n_ranks; i++) {
        uint32_t peer = (me->rank + i) % me->n_ranks;
        must_fail(me, FERRY_ERR_MISUSE, NULL,
                  ferry_transport_put(me->transport, (peer + 1) % me->n_ranks, others[peer], 0,
                                      &buffer, NULL, &me->error));
        must_fail(me, FERRY_ERR_MISUSE, NULL,
                  ferry_transport_put(me->transport, peer, others[peer], bytes - 15, &buffer, NULL,
                                      &me->error));
        put(me, peer, others[peer], me->rank * part, source, part / 2);
        put_signal(me, peer, others[peer], me->rank * part + part / 2, source + part / 2,
                   part - part / 2, words, me->rank, 1, FERRY_SIGNAL_SET);
    }
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        wait_signal(me, words, peer, FERRY_COMPARE_EQ, 1, peer);
        size_t bad = mismatch(memory + peer * part, part, seed_of(me, 7, peer, 0));
        expect(me, bad == part, "what rank %u put into registered memory differs from byte %zu on",
               (unsigned)peer, bad);
    }
    flush(me, FERRY_ANY_RANK);
    meet(me);
    for (uint32_t peer = 0; peer < me->n_ranks; peer++) {
        ferry_region_free(others[peer]);
    }
    meet(me);
    ferry_region_free(own);
    ferry_region_free(words);
    free(source);
}

/* What cannot be reached from outside still is a source. */
static void put_from_registered(rank_context *me, unsigned char *memory, uint64_t bytes)
{
    ferry_region *own = NULL;
    ferry_region *target = alloc_region(me, bytes);
    ferry_region *words = alloc_region(me, 64);
    ferry_buffer buffer = ferry_buffer_of(memory, bytes);
    ferry_signal signal = {.region = words, .value = 1, .op = FERRY_SIGNAL_ADD};
    fill(memory, bytes, seed_of(me, 8, me->rank, 0));
    must(me, ferry_region_register(me->transport, &buffer, &own, &me->error));
    buffer.registration = own;
    must(me, ferry_transport_put_signal(me->transport, next_rank(me), target, 0, &buffer, &signal,
                                        NULL, &me->error));
    wait_signal(me, words, 0, FERRY_COMPARE_EQ, 1, previous_rank(me));
    expect(me, mismatch(base_of(target), bytes, seed_of(me, 8, previous_rank(me), 0)) == bytes,
           "a put from registered memory");
    flush(me, FERRY_ANY_RANK);
    ferry_region_free(own);
    ferry_region_free(words);
    ferry_region_free(target);
}

void case_keys(rank_context *me)
{
    for (uint64_t bytes = 3000; bytes <= (3u << 20); bytes *= 31) {
        unsigned char *memory = take(me, bytes + 1);
        put_from_registered(me, memory + 1, bytes);
        if ((me->can & FERRY_CAN_REMOTE_USER_MEMORY) != 0) {
            put_into_imported(me, memory + 1, bytes);
        }
        free(memory);
    }
}

static void refuse_key(rank_context *me, const unsigned char *key, size_t n_bytes, const char *what,
                       size_t at)
{
    ferry_region *region = NULL;
    me->error.message[0] = '\0';
    ferry_status status = ferry_region_import(me->transport, key, n_bytes, &region, &me->error);
    expect(me, status != FERRY_OK, "a key %s %zu was taken", what, at);
    expect(me, me->error.message[0] != '\0', "a key %s %zu: %s without a sentence", what, at,
           ferry_status_name(status));
    expect(me, region == NULL, "a failed call wrote its output");
}

/* Keys come from anywhere. */
void case_bad_keys(rank_context *me)
{
    static unsigned char memory[MOST_RANKS][1000];
    unsigned char key[2 * FERRY_KEY_BYTES] = {0}, bad[FERRY_KEY_BYTES];
    size_t n_key;
    ferry_region *own = NULL;
    ferry_buffer buffer = ferry_buffer_of(memory[me->rank], sizeof memory[0]);
    must(me, ferry_region_register(me->transport, &buffer, &own, &me->error));
    if ((me->can & FERRY_CAN_REMOTE_USER_MEMORY) == 0) {
        ferry_status status = ferry_region_export(own, key, sizeof key, &n_key, &me->error);
        expect(me, status == FERRY_OK || status == FERRY_ERR_UNSUPPORTED, "%s",
               ferry_status_name(status));
    } else {
        must(me, ferry_region_export(own, key, sizeof key, &n_key, &me->error));
        unsigned char theirs[FERRY_KEY_BYTES];
        const void *all;
        const size_t *lengths;
        must(me, ferry_world_all_gather_v(me->world, key, n_key, &all, &lengths, &me->error));
        const unsigned char *at = (const unsigned char *)all + (me->rank == 0 ? lengths[0] : 0);
        n_key = lengths[next_rank(me)];
        memcpy(theirs, at, n_key);
        memset(key, 0, sizeof key);
        memcpy(key, theirs, n_key);
        for (size_t n = 0; n < n_key; n++) {
            refuse_key(me, key, n, "cut to", n);
        }
        refuse_key(me, key, n_key + 1, "made longer than", n_key);
        for (size_t bit = 0; bit < n_key * 8; bit++) {
            memcpy(bad, theirs, n_key);
            bad[bit / 8] ^= (unsigned char)(1u << bit % 8);
            refuse_key(me, bad, n_key, "with a wrong bit", bit);
        }
    }
    for (unsigned i = 0; i < 1000; i++) {
        fill(bad, sizeof bad, random_u64(&me->random));
        refuse_key(me, bad, random_below(&me->random, sizeof bad), "of noise", i);
    }
    meet(me);
    n_key = 0;
    bool is_given = ferry_region_export(own, key, sizeof key, &n_key, &me->error) == FERRY_OK;
    if (is_given) { /* one's own key is good for as long as its region */
        ferry_region *again = NULL;
        must(me, ferry_region_import(me->transport, key, n_key, &again, &me->error));
        ferry_region_free(again);
    }
    ferry_region_free(own);
    if (is_given) {
        refuse_key(me, key, n_key, "of an own region that is gone, of bytes:", n_key);
    }
    check_usable(me);
}
