/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "rank_threads.h"

#include "base/alloc.h"

#include "transport/transport.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Both mapped engines, as far as ranks that are threads show them; the context is the name. */
static const char *const engines[] = {"inproc", "shm"};

static void on_engines(uint32_t n_ranks, void (*run)(rank_thread *self))
{
    for (size_t i = 0; i < COUNT_OF(engines); i++) {
        run_ranks(n_ranks, NULL, run, (void *)(uintptr_t)engines[i]);
    }
}

static size_t count_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 256; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/*
 * Bytes and signals
 */

enum { LAP_BYTES = 100000, N_LAPS = 20, SIGNAL_AT = 8, REGION_BYTES = LAP_BYTES + 64 };

static void fill(unsigned char *bytes, size_t n_bytes, unsigned seed)
{
    for (size_t i = 0; i < n_bytes; i++) {
        bytes[i] = (unsigned char)(i * 7 + seed * 31 + 1);
    }
}

/* Each rank puts to the next one, which answers by a signal that the place is free again. */
static void run_ring(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    uint32_t next = (self->rank + 1) % self->n_ranks;
    uint32_t previous = (self->rank + self->n_ranks - 1) % self->n_ranks;
    static unsigned char sources[MOST_RANKS][LAP_BYTES];
    unsigned char *source = sources[self->rank];
    unsigned char wanted[64];
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, REGION_BYTES, &region,
                                       &self->error));
    unsigned char *base = ferry_region_base(region);
    expect(self, ferry_region_bytes(region) == REGION_BYTES);
    expect(self, (uintptr_t)base % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
    for (size_t i = 0; i < REGION_BYTES; i++) {
        expect(self, base[i] == 0);
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    for (unsigned lap = 1; lap <= N_LAPS; lap++) {
        ferry_signal arrived = {region, SIGNAL_AT, lap, FERRY_SIGNAL_SET};
        ferry_signal freed = {region, 2 * SIGNAL_AT, 1, FERRY_SIGNAL_ADD};
        ferry_buffer buffer = ferry_buffer_of(source, LAP_BYTES);
        ferry_buffer nothing = ferry_buffer_of(NULL, 0);
        uint64_t seen = 0;
        fill(source, LAP_BYTES, lap + self->rank);
        expect_ok(self, ferry_transport_put_signal(transport, next, region, 64, &buffer, &arrived,
                                                   NULL, &self->error));
        expect_ok(self, ferry_transport_flush(transport, next, NULL, &self->error));
        expect_ok(self, ferry_transport_wait_signal(transport, region, SIGNAL_AT, FERRY_COMPARE_GE,
                                                    lap, previous, 20, &seen, NULL, &self->error));
        expect(self, seen == lap);
        fill(wanted, sizeof wanted, lap + previous);
        expect(self, memcmp(base + 64, wanted, sizeof wanted) == 0);
        expect(self, base[64 + LAP_BYTES - 1] ==
                         (unsigned char)((LAP_BYTES - 1) * 7 + (lap + previous) * 31 + 1));
        expect_ok(self, ferry_transport_put_signal(transport, previous, region, 0, &nothing, &freed,
                                                   NULL, &self->error));
        expect_ok(self,
                  ferry_transport_wait_signal(transport, region, 2 * SIGNAL_AT, FERRY_COMPARE_EQ,
                                              lap, next, 20, NULL, NULL, &self->error));
    }
    /* What the next one got is what a get and its pointer show. */
    unsigned char fetched[64];
    ferry_buffer target = ferry_buffer_of(fetched, sizeof fetched);
    expect_ok(self, ferry_transport_get(transport, next, region, 64, &target, NULL, &self->error));
    expect_ok(self, ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, &self->error));
    expect(self, memcmp(fetched, source, sizeof fetched) == 0);
    const unsigned char *there = ferry_region_pointer(region, next);
    expect(self, there != NULL && memcmp(there + 64, source, sizeof fetched) == 0);
    expect(self, ferry_region_pointer(region, self->rank) == base);
    expect(self, ferry_region_pointer(region, self->n_ranks) == NULL);
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_ring(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    on_engines(2, run_ring);
    on_engines(5, run_ring);
    assert_int_equal(count_descriptors(), descriptors);
}

/* A rank alone: what it puts to itself never meets an engine. */
static void run_self(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    const char *name;
    uint32_t can;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    expect_ok(self,
              ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 3 << 20, &region, &self->error));
    expect_ok(self, ferry_transport_get_peer(transport, self->rank, &name, &can, &self->error));
    expect(self, strcmp(name, "self") == 0);
    unsigned char *base = ferry_region_base(region);
    fill(base, 1000, 5);
    ferry_buffer overlapping = ferry_buffer_of(base, 1000);
    ferry_signal signal = {region, 2 << 20, 7, FERRY_SIGNAL_ADD};
    for (int i = 0; i < 2; i++) {
        expect_ok(self, ferry_transport_put_signal(transport, self->rank, region, 8, &overlapping,
                                                   &signal, NULL, &self->error));
        expect_ok(self, ferry_transport_put(transport, self->rank, region, 0,
                                            &(ferry_buffer){.base = base + 8, .bytes = 1000}, NULL,
                                            &self->error));
    }
    unsigned char wanted[1000];
    fill(wanted, sizeof wanted, 5);
    expect(self, memcmp(base, wanted, sizeof wanted) == 0);
    ferry_buffer target = ferry_buffer_of(base + 500, 1000);
    expect_ok(self,
              ferry_transport_get(transport, self->rank, region, 0, &target, NULL, &self->error));
    expect(self, memcmp(base + 500, wanted, sizeof wanted) == 0);
    uint64_t seen;
    expect_ok(self, ferry_transport_wait_signal(transport, region, 2 << 20, FERRY_COMPARE_EQ, 14,
                                                FERRY_ANY_RANK, 0, &seen, NULL, &self->error));
    expect_ok(self, ferry_transport_progress(transport, &self->error));
    ferry_transport_close(transport); /* frees the region as well */
}

static void test_self(void **state)
{
    (void)state;
    on_engines(1, run_self);
}

/*
 * What is refused
 */

static void run_ranges(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    expect_ok(self,
              ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096, &region, &self->error));
    const struct {
        uint64_t offset;
        uint64_t bytes;
        const char *says; /* NULL: allowed */
    } rows[] = {
        {4096, 0, NULL},
        {4032, 64, NULL},
        {4090, 64,
         "put of 64 bytes at 4090 of region 2 (4096 bytes) on rank 1 goes 58 bytes past its end"},
        {0, 4097, "goes 1 bytes past its end"},
        {4097, 0, "begins 1 bytes past its end"},
        {UINT64_MAX, 64, "past its end"},
        {UINT64_MAX - 3, UINT64_MAX - 3, "past its end"},
        {1, UINT64_MAX, "past its end"},
    };
    unsigned char bytes[64] = {0};
    for (size_t i = 0; self->rank == 0 && i < COUNT_OF(rows); i++) {
        ferry_buffer buffer = ferry_buffer_of(bytes, rows[i].bytes);
        ferry_status status =
            ferry_transport_put(transport, 1, region, rows[i].offset, &buffer, NULL, &self->error);
        expect(self, status == (rows[i].says == NULL ? FERRY_OK : FERRY_ERR_MISUSE));
        if (rows[i].says != NULL) {
            expect_says(self, rows[i].says);
            expect_status(self, FERRY_ERR_MISUSE,
                          ferry_transport_get(transport, 1, region, rows[i].offset, &buffer, NULL,
                                              &self->error));
            expect_says(self, "get of ");
        }
    }
    /* A put whose signal is wrong moves nothing. */
    const struct {
        uint64_t offset;
        uint32_t op;
        const char *says;
    } signals[] = {
        {4, FERRY_SIGNAL_SET, "offset 4 of region 2 is not a multiple of 8"},
        {4096, FERRY_SIGNAL_SET, "signal of 8 bytes at 4096 of region 2"},
        {UINT64_MAX - 7, FERRY_SIGNAL_SET, "past its end"},
        {0, 2, "not a ferry_signal_op"},
    };
    memset(bytes, 9, sizeof bytes);
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        ferry_buffer buffer = ferry_buffer_of(bytes, sizeof bytes);
        ferry_signal signal = {region, signals[i].offset, 1, signals[i].op};
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_transport_put_signal(transport, self->rank, region, 0, &buffer, &signal,
                                                 NULL, &self->error));
        expect_says(self, signals[i].says);
    }
    expect(self, *(unsigned char *)ferry_region_base(region) == 0);
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_ranges(void **state)
{
    (void)state;
    on_engines(2, run_ranges);
}

static void check_waits(rank_thread *self, ferry_transport *transport, ferry_region *region)
{
    const struct {
        ferry_transport *transport;
        ferry_region *region;
        uint32_t compare, from;
        double seconds;
        const char *says;
    } rows[] = {
        {NULL, region, FERRY_COMPARE_EQ, 0, 0, "needs a transport and a region"},
        {transport, NULL, FERRY_COMPARE_EQ, 0, 0, "needs a transport and a region"},
        {transport, region, FERRY_COMPARE_GT + 1, 0, 0, "is not a ferry_compare"},
        {transport, region, FERRY_COMPARE_EQ, 2, 0, "no rank 2 in a world of 2 ranks"},
        {transport, region, FERRY_COMPARE_EQ, 0, NAN, "the limit is not a number of seconds"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint64_t seen = 77;
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_transport_wait_signal(rows[i].transport, rows[i].region, 0,
                                                  (ferry_compare)rows[i].compare, 0, rows[i].from,
                                                  rows[i].seconds, &seen, NULL, &self->error));
        expect_says(self, rows[i].says);
        expect(self, seen == 77);
    }
}

/* Arguments that are wrong in themselves; rank 0 alone makes the calls. */
/* What cannot be put, or fetched. */
static void check_moves(rank_thread *self, ferry_transport *transport, ferry_region *region,
                        ferry_transport *other, ferry_region *foreign)
{
    unsigned char bytes[64] = {0};
    ferry_error *error = &self->error;
    ferry_buffer buffer = ferry_buffer_of(bytes, sizeof bytes);
    ferry_buffer nowhere = ferry_buffer_of(NULL, 1);
    ferry_buffer device = buffer;
    ferry_buffer strange = buffer;
    ferry_signal signal = {foreign, 0, 1, FERRY_SIGNAL_SET};
    ferry_queue *queue = (ferry_queue *)(void *)bytes;
    device.kind = FERRY_MEMORY_CUDA;
    strange.registration = region;
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(NULL, 1, region, 0, &buffer, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, NULL, 0, &buffer, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, region, 0, NULL, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 2, region, 0, &buffer, NULL, error));
    expect_says(self, "no rank 2 in a world of 2 ranks");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(other, 1, region, 0, &buffer, NULL, error));
    expect_says(self, "belongs to another transport");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, region, 0, &nowhere, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, region, 0, &strange, NULL, error));
    expect_says(self, "do not lie in the region");
    expect_status(self, FERRY_ERR_UNSUPPORTED,
                  ferry_transport_put(transport, 1, region, 0, &device, NULL, error));
    expect_says(self, "kind cuda");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, region, 0, &buffer, queue, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_get(transport, 1, region, 0, &buffer, queue, error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_transport_flush(transport, 1, queue, error));
    expect_status(self, FERRY_ERR_MISUSE, ferry_transport_flush(transport, 2, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put_signal(transport, 1, region, 0, &buffer, NULL, NULL, error));
    expect_status(
        self, FERRY_ERR_MISUSE,
        ferry_transport_put_signal(transport, 1, region, 0, &buffer, &signal, NULL, error));
    expect_says(self, "belongs to another transport");
}

/* What cannot be waited for. */
static void check_conditions(rank_thread *self, ferry_transport *transport, ferry_region *region)
{
    ferry_error *error = &self->error;
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_wait_signal(transport, region, 0, (ferry_compare)4, 1, 1, 0, NULL,
                                              NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_wait_signal(transport, region, 3, FERRY_COMPARE_EQ, 1, 1, 0, NULL,
                                              NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_EQ, 1, 2, 0, NULL,
                                              NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_EQ, 1, 1, NAN,
                                              NULL, NULL, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_get_peer(transport, 2, NULL, NULL, error));
}

/* What cannot be registered, and what registered memory is not for. */
static void check_registering(rank_thread *self, ferry_transport *transport, ferry_region *region)
{
    unsigned char bytes[64] = {0};
    ferry_error *error = &self->error;
    ferry_buffer buffer = ferry_buffer_of(bytes, sizeof bytes);
    ferry_buffer nowhere = ferry_buffer_of(NULL, 1);
    ferry_buffer device = buffer;
    ferry_region *registered = NULL;
    ferry_signal signal = {NULL, 0, 1, FERRY_SIGNAL_SET};
    device.kind = FERRY_MEMORY_CUDA;
    expect_status(self, FERRY_ERR_UNSUPPORTED,
                  ferry_region_register(transport, &device, &registered, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_region_register(transport, &nowhere, &registered, error));
    expect_ok(self, ferry_region_register(transport, &buffer, &registered, error));
    signal.region = registered;
    expect_status(
        self, FERRY_ERR_MISUSE,
        ferry_transport_put_signal(transport, 1, region, 0, &buffer, &signal, NULL, error));
    expect_says(self, "signals lie in symmetric regions");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_transport_put(transport, 1, registered, 0, &buffer, NULL, error));
    expect_says(self, "registered memory of rank 0, not of rank 1");
    ferry_region_free(registered);
}

static void run_arguments(rank_thread *self)
{
    ferry_transport *transports[2];
    ferry_region *regions[2];
    for (int i = 0; i < 2; i++) {
        expect_ok(self,
                  ferry_transport_open(self->world, self->context, &transports[i], &self->error));
        expect_ok(self, ferry_region_alloc(transports[i], FERRY_MEMORY_HOST, 0, 100, &regions[i],
                                           &self->error));
    }
    if (self->rank == 0) {
        check_waits(self, transports[0], regions[0]);
        check_moves(self, transports[0], regions[0], transports[1], regions[1]);
        check_conditions(self, transports[0], regions[0]);
        check_registering(self, transports[0], regions[0]);
        ferry_region_free(NULL);
        ferry_transport_close(NULL);
    }
    for (int i = 0; i < 2; i++) {
        ferry_region_free(regions[i]);
        ferry_transport_close(transports[i]);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    on_engines(2, run_arguments);
}

/* What differs between ranks, or is too much, is an error on all of them, and no harm is done. */
static void run_disagreement(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    ferry_error *error = &self->error;
    const char *engine = self->rank == 2 ? "strict:inproc" : self->context;
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_transport_open(self->world, engine, &transport, error));
    expect_says(self, "the transport to open is \"");
    expect_says(self, " on rank 0 and \"strict:inproc\" on rank 2: all ranks must open the same");
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_transport_open(self->world, "shn", &transport, error));
    expect_says(self, "rank 0: transport \"shn\"");
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, self->rank == 1 ? 8192 : 4096,
                                     &region, error));
    expect_says(self, "the length of symmetric memory is 4096 on rank 0 and 8192 on rank 1");
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 0, &region, error));
    expect_says(self, "at least one byte");
    static const uint64_t much[] = {(uint64_t)1 << 45, (uint64_t)1 << 56, (uint64_t)1 << 63,
                                    UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(much); i++) {
        expect_status(self, FERRY_ERR_NO_MEMORY,
                      ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, much[i], &region, error));
        expect_says(self, "rank 0: ");
    }
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error));
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_disagreement(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    on_engines(3, run_disagreement);
    assert_int_equal(count_descriptors(), descriptors);
}

/*
 * Registered memory
 */

enum { OWN_BYTES = 20000, PUT_BYTES = 12345, PUT_AT = 1001 };
static unsigned char memories[MOST_RANKS][OWN_BYTES];

/* The region of another rank, by its key. */
static void import_from(rank_thread *self, ferry_transport *transport, const ferry_region *own,
                        uint32_t peer, ferry_region **imported_out)
{
    unsigned char key[FERRY_KEY_BYTES];
    size_t key_bytes = 0;
    ferry_error *error = &self->error;
    const void *all;
    expect_ok(self, ferry_region_export(own, key, sizeof key, &key_bytes, error));
    expect(self, key_bytes <= FERRY_KEY_BYTES);
    expect_ok(self, ferry_world_all_gather(self->world, key, key_bytes, &all, error));
    expect_ok(self, ferry_region_import(transport, (const unsigned char *)all + peer * key_bytes,
                                        key_bytes, imported_out, error));
    expect(self, ferry_region_base(*imported_out) == NULL);
    expect(self, ferry_region_bytes(*imported_out) == OWN_BYTES);
    /* Among threads every pointer is good, but shm maps only what ferry allocated. */
    bool shares = strcmp(self->context, "inproc") == 0 || peer == self->rank;
    expect(self, ferry_region_pointer(*imported_out, peer) == (shares ? memories[peer] : NULL));
    expect(self, self->n_ranks == 1 || ferry_region_pointer(*imported_out, self->rank) == NULL);
}

/* Each puts into the memory of the next, finds what came from the one before, and gets it back. */
static void put_and_get(rank_thread *self, ferry_transport *transport, ferry_region *words,
                        ferry_region *imported, const unsigned char *bytes)
{
    uint32_t next = (self->rank + 1) % self->n_ranks;
    const unsigned char *memory = memories[self->rank];
    ferry_error *error = &self->error;
    ferry_buffer source = ferry_buffer_of((unsigned char *)(uintptr_t)bytes, PUT_BYTES);
    ferry_signal signal = {words, 8, 1, FERRY_SIGNAL_SET};
    if (self->n_ranks > 2) {
        uint32_t wrong = (next + 1) % self->n_ranks;
        expect_status(self, FERRY_ERR_MISUSE,
                      ferry_transport_put(transport, wrong, imported, 0, &source, NULL, error));
    }
    expect_ok(self, ferry_transport_put_signal(transport, next, imported, PUT_AT, &source, &signal,
                                               NULL, error));
    expect_ok(self, ferry_transport_wait_signal(transport, words, 8, FERRY_COMPARE_NE, 0,
                                                FERRY_ANY_RANK, 20, NULL, NULL, error));
    /* Each thread has a mapping of its own of shm's words: to ThreadSanitizer they are not one. */
    expect_ok(self, ferry_world_barrier(self->world, error));
    unsigned char wanted[PUT_BYTES];
    fill(wanted, sizeof wanted, (self->rank + self->n_ranks - 1) % self->n_ranks);
    expect(self, memcmp(memory + PUT_AT, wanted, sizeof wanted) == 0);
    expect(self, memory[PUT_AT - 1] == 0 && memory[PUT_AT + sizeof wanted] == 0);
    ferry_buffer target = ferry_buffer_of(wanted, sizeof wanted);
    expect_ok(self, ferry_transport_get(transport, next, imported, PUT_AT, &target, NULL, error));
    expect_ok(self, ferry_transport_flush(transport, next, NULL, error));
    expect(self, memcmp(wanted, bytes, sizeof wanted) == 0);
    expect_ok(self, ferry_world_barrier(self->world, error));
}

static void run_registered(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *words, *own, *imported = NULL;
    unsigned char bytes[PUT_BYTES], key[FERRY_KEY_BYTES];
    size_t key_bytes = 0;
    ferry_error *error = &self->error;
    unsigned char *memory = memories[self->rank];
    ferry_buffer buffer = ferry_buffer_of(memory, OWN_BYTES);
    ferry_buffer source = ferry_buffer_of(bytes, sizeof bytes);
    memset(memory, 0, OWN_BYTES);
    fill(bytes, sizeof bytes, self->rank);
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64, &words, error));
    expect_status(self, FERRY_ERR_MISUSE,
                  ferry_region_export(words, key, sizeof key, &key_bytes, error));
    expect_ok(self, ferry_region_register(transport, &buffer, &own, error));
    expect(self, ferry_region_base(own) == memory);
    import_from(self, transport, own, (self->rank + 1) % self->n_ranks, &imported);
    if (self->wrong[0] != '\0') {
        return;
    }
    put_and_get(self, transport, words, imported, bytes);
    if (self->wrong[0] != '\0') {
        return;
    }
    /* The owner reaches its own as well. */
    expect_ok(self, ferry_transport_put(transport, self->rank, own, 0, &source, NULL, error));
    expect(self, memcmp(memory, bytes, 1000) == 0);
    ferry_region_free(imported);
    expect_ok(self, ferry_world_barrier(self->world, error));
    ferry_region_free(own);
    ferry_region_free(words);
    ferry_transport_close(transport);
}

static void test_registered(void **state)
{
    (void)state;
    on_engines(1, run_registered);
    on_engines(3, run_registered);
}

/* Keys come from anywhere: none may do more than be refused. */
static void run_keys(rank_thread *self)
{
    ferry_transport *transports[2];
    ferry_region *own;
    ferry_region *imported = NULL;
    unsigned char memory[64];
    unsigned char key[FERRY_KEY_BYTES + 1] = {0};
    size_t n_bytes = 0;
    ferry_error *error = &self->error;
    ferry_buffer buffer = ferry_buffer_of(memory, sizeof memory);
    for (int i = 0; i < 2; i++) {
        expect_ok(self, ferry_transport_open(self->world, self->context, &transports[i], error));
    }
    expect_ok(self, ferry_region_register(transports[0], &buffer, &own, error));
    expect_ok(self, ferry_region_export(own, key, sizeof key, &n_bytes, error));
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_region_import(transports[1], key, n_bytes, &imported, error));
    expect_says(self, "another transport");
    for (size_t length = 0; length <= sizeof key; length++) {
        ferry_status status = ferry_region_import(transports[0], key, length, &imported, error);
        expect(self, (status == FERRY_OK) == (length == n_bytes));
        if (status == FERRY_OK) {
            ferry_region_free(imported);
        }
    }
    for (size_t bit = 0; bit < n_bytes * 8; bit++) {
        key[bit / 8] ^= (unsigned char)(1u << bit % 8);
        expect_status(self, FERRY_ERR_INVALID_INPUT,
                      ferry_region_import(transports[0], key, n_bytes, &imported, error));
        key[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    /* Whatever else is registered: the key is good as long as its own region is. */
    ferry_region *others[3];
    ferry_buffer piece = ferry_buffer_of(memory, 1);
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        expect_ok(self, ferry_region_register(transports[0], &piece, &others[i], error));
    }
    expect_ok(self, ferry_region_import(transports[0], key, n_bytes, &imported, error));
    ferry_region_free(imported);
    ferry_region_free(own);
    expect_status(self, FERRY_ERR_INVALID_INPUT,
                  ferry_region_import(transports[0], key, n_bytes, &imported, error));
    expect_says(self, "which is not registered (any more)");
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        ferry_region_free(others[i]);
    }
    ferry_transport_close(transports[1]);
    ferry_transport_close(transports[0]);
}

static void test_keys(void **state)
{
    (void)state;
    on_engines(1, run_keys);
}

/*
 * Waiting and failing
 */

static void run_limits(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    ferry_error *error = &self->error;
    uint64_t seen = 77;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 4096, &region, error));
    if (self->rank == 0) {
        *(uint64_t *)(void *)((char *)ferry_region_base(region) + 64) = 2;
        expect_status(self, FERRY_ERR_TIMEOUT,
                      ferry_transport_wait_signal(transport, region, 64, FERRY_COMPARE_GE, 3, 1, 0,
                                                  &seen, NULL, error));
        expect_says(self, "rank 1 has not raised signal 64 of region 2 to >= 3 (it is 2) yet");
        expect_status(self, FERRY_ERR_TIMEOUT,
                      ferry_transport_wait_signal(transport, region, 64, FERRY_COMPARE_GT, 2, 1,
                                                  0.05, &seen, NULL, error));
        expect_says(self,
                    "rank 1 has not raised signal 64 of region 2 to > 2 (it is 2) for 0.05 s");
        /* The world's own limit, which no call before this one was to keep. */
        self->world->settings.entry_ns = 100000000;
        expect_status(self, FERRY_ERR_TIMEOUT,
                      ferry_transport_wait_signal(transport, region, 64, FERRY_COMPARE_EQ, 9,
                                                  FERRY_ANY_RANK, -1, &seen, NULL, error));
        expect_says(self, "nobody has raised signal 64 of region 2 to == 9 (it is 2) for 0.1 s");
        self->world->settings.entry_ns = -1;
        expect(self, seen == 77);
        expect_ok(self, ferry_world_state(self->world, NULL, error));
    }
    expect_ok(self, ferry_world_send(self->world, 1 - self->rank, 5, "", 1, error));
    const void *bytes;
    size_t n_bytes;
    expect_ok(self, ferry_world_receive(self->world, 1 - self->rank, 5, -1, &bytes, &n_bytes, NULL,
                                        error));
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(engines); i++) {
        run_ranks(2, NULL, run_limits, (void *)(uintptr_t)engines[i]);
    }
}

/* One rank ends the world while the others wait or put; all get to know, and all memory goes. */
static void run_abort(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    ferry_region *another;
    ferry_error *error = &self->error;
    ferry_status status = FERRY_OK;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 1 << 20, &region, error));
    if (self->rank == 0) {
        ferry_world_abort(self->world, "enough");
    } else if (self->rank == 1) {
        status = ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_NE, 0, 0, -1, NULL,
                                             NULL, error);
        expect(self, status == FERRY_ERR_ABORTED);
    } else {
        static unsigned char source[1 << 20];
        ferry_buffer buffer = ferry_buffer_of(source, sizeof source - 64);
        while (status == FERRY_OK) {
            status = ferry_transport_put(transport, 0, region, 64, &buffer, NULL, error);
        }
        expect(self, status == FERRY_ERR_ABORTED);
    }
    expect_status(self, FERRY_ERR_ABORTED, ferry_transport_progress(transport, error));
    expect_says(self, "enough");
    expect_status(self, FERRY_ERR_ABORTED, ferry_transport_flush(transport, 0, NULL, error));
    expect_status(self, FERRY_ERR_ABORTED,
                  ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64, &another, error));
    expect_status(self, FERRY_ERR_ABORTED,
                  ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_EQ, 0, 0, 0, NULL,
                                              NULL, error));
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_abort(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        on_engines(4, run_abort);
    }
}

/* Without any allocation left at some point: an error, and nothing stays behind. */
static void run_without_memory(rank_thread *self)
{
    ferry_transport *transport = NULL;
    ferry_region *region = NULL;
    ferry_error *error = &self->error;
    bool whole = false;
    for (int64_t n_more = 0; !whole; n_more++) {
        expect(self, n_more < 1000);
        fy_alloc_fail_after(n_more);
        ferry_status status = ferry_transport_open(self->world, self->context, &transport, error);
        if (status == FERRY_OK) {
            status = ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error);
            whole = status == FERRY_OK;
        }
        fy_alloc_fail_after(-1);
        expect(self, whole || status == FERRY_ERR_NO_MEMORY);
        ferry_region_free(region);
        ferry_transport_close(transport);
        region = NULL;
        transport = NULL;
    }
}

static void test_without_memory(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    on_engines(1, run_without_memory);
    assert_int_equal(count_descriptors(), descriptors);
}

/* The same among several ranks: whichever of them lacks memory, all end alike. */
typedef struct outcomes {
    const char *engine;
    ferry_status of[MOST_RANKS];
} outcomes;

static void run_agreed(rank_thread *self)
{
    outcomes *common = self->context;
    ferry_error *error = &self->error;
    bool whole = false;
    for (int64_t n_more = 0; !whole; n_more++) {
        ferry_transport *transport = NULL;
        ferry_region *region = NULL;
        expect(self, n_more < 1000);
        expect_ok(self, ferry_world_barrier(self->world, error));
        if (self->rank == 0) {
            fy_alloc_fail_after(n_more);
        }
        expect_ok(self, ferry_world_barrier(self->world, error));
        ferry_status *mine = &common->of[self->rank];
        *mine = ferry_transport_open(self->world, common->engine, &transport, error);
        if (*mine == FERRY_OK) {
            *mine = ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error);
        }
        whole = *mine == FERRY_OK;
        expect(self, whole || *mine == FERRY_ERR_NO_MEMORY);
        expect_ok(self, ferry_world_barrier(self->world, error));
        for (uint32_t rank = 0; rank < self->n_ranks; rank++) {
            expect(self, common->of[rank] == *mine);
        }
        if (self->rank == 0) {
            fy_alloc_fail_after(-1);
        }
        expect_ok(self, ferry_world_barrier(self->world, error));
        ferry_region_free(region);
        ferry_transport_close(transport);
    }
}

static void test_agreed(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    for (size_t i = 0; i < COUNT_OF(engines); i++) {
        outcomes common = {.engine = engines[i]};
        run_ranks(3, NULL, run_agreed, &common);
    }
    assert_int_equal(count_descriptors(), descriptors);
}

/* Without a descriptor, or with files limited in length: an error and no signal. */
static void run_without_descriptors(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    ferry_error *error = &self->error;
    struct rlimit files, lengths, few;
    expect_ok(self, ferry_transport_open(self->world, "shm", &transport, error));
    expect(self, getrlimit(RLIMIT_NOFILE, &files) == 0 && getrlimit(RLIMIT_FSIZE, &lengths) == 0);
    int lowest = dup(0);
    expect(self, lowest >= 0);
    close(lowest);
    bool whole = false;
    for (unsigned n_more = 0; !whole; n_more++) {
        few = files;
        few.rlim_cur = (rlim_t)lowest + n_more;
        expect(self, n_more < 200 && setrlimit(RLIMIT_NOFILE, &few) == 0);
        ferry_status status =
            ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error);
        expect(self, setrlimit(RLIMIT_NOFILE, &files) == 0);
        whole = status == FERRY_OK;
        expect(self, n_more > 0 || !whole);
    }
    ferry_region_free(region);
    few = lengths;
    few.rlim_cur = 1 << 20;
    expect(self, setrlimit(RLIMIT_FSIZE, &few) == 0);
    ferry_status status =
        ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 2 << 20, &region, error);
    expect(self, setrlimit(RLIMIT_FSIZE, &lengths) == 0);
    expect(self, status == FERRY_ERR_NO_MEMORY);
    expect_says(self, "RLIMIT_FSIZE");
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error));
    ferry_region_free(region);
    ferry_transport_close(transport);
}

static void test_without_descriptors(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    run_ranks(1, NULL, run_without_descriptors, NULL);
    assert_int_equal(count_descriptors(), descriptors);
}

/* Regions of many lengths and lives, freed in another order than they were made. */
static void run_many_regions(rank_thread *self)
{
    enum { N_REGIONS = 40 };
    ferry_transport *transport;
    ferry_region *regions[N_REGIONS];
    uint32_t next = (self->rank + 1) % self->n_ranks;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    for (unsigned i = 0; i < N_REGIONS; i++) {
        uint64_t bytes = 8 + (uint64_t)i * i * i * 61;
        expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, bytes, &regions[i],
                                           &self->error));
        unsigned char last = (unsigned char)(i + 1);
        ferry_buffer buffer = ferry_buffer_of(&last, 1);
        expect_ok(self, ferry_transport_put(transport, next, regions[i], bytes - 1, &buffer, NULL,
                                            &self->error));
    }
    expect_ok(self, ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, &self->error));
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    for (unsigned i = 0; i < N_REGIONS; i++) {
        const unsigned char *base = ferry_region_base(regions[i]);
        expect(self, base[ferry_region_bytes(regions[i]) - 1] == i + 1);
    }
    for (unsigned i = 0; i < N_REGIONS; i++) {
        ferry_region_free(regions[i * 7 % N_REGIONS]);
    }
    ferry_transport_close(transport);
}

static void test_many_regions(void **state)
{
    (void)state;
    on_engines(3, run_many_regions);
}

/*
 * Memory, pointers of peers, and holders of a transport
 */

static void run_shared_pointers(rank_thread *self)
{
    ferry_transport *transport;
    ferry_buffer memory;
    uint32_t next = (self->rank + 1) % self->n_ranks;
    bool hides = strstr(self->context, "flip") != NULL || strstr(self->context, "strict") != NULL;
    bool shares = strstr(self->context, "inproc") != NULL && !hides;
    ferry_error *error = &self->error;
    const void *all;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect(self, fy_transport_shares_pointers(transport, next) == shares);
    expect(self, !fy_transport_shares_pointers(transport, self->rank));
    expect(self, !fy_transport_shares_pointers(transport, self->n_ranks));
    expect(self, fy_transport_capabilities(transport, self->n_ranks) == 0);
    expect_ok(self, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 1000, &memory, error));
    expect_ok(self,
              ferry_world_all_gather(self->world, &memory.base, sizeof memory.base, &all, error));
    unsigned char *theirs;
    memcpy(&theirs, (const char *)all + next * sizeof theirs, sizeof theirs);
    if (shares) {
        expect_ok(self, fy_transport_visit(transport, next, error));
        memset(theirs, (int)self->rank + 1, 1000);
        fy_transport_leave(transport, next);
    }
    expect_ok(self, ferry_world_barrier(self->world, error));
    const unsigned char *own = memory.base;
    unsigned written = (self->rank + self->n_ranks - 1) % self->n_ranks + 1;
    expect(self, own[0] == (shares ? written : 0) && own[999] == own[0]);
    expect_ok(self, ferry_world_barrier(self->world, error));
    if (self->rank == 0) {
        ferry_world_abort(self->world, "enough");
    }
    while (ferry_transport_progress(transport, error) == FERRY_OK) {}
    expect(self, !shares || fy_transport_visit(transport, next, error) != FERRY_OK);
    ferry_memory_free(&memory);
    ferry_transport_close(transport);
}

static void test_shared_pointers(void **state)
{
    static const char *const some[] = {"inproc",       "trace:inproc",     "shm",
                                       "trace:shm",    "flip=1000:inproc", "trace:flip=1000:inproc",
                                       "strict:inproc"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(some); i++) {
        run_ranks(3, NULL, run_shared_pointers, (void *)(uintptr_t)some[i]);
    }
}

/*
 * A key is of one block of memory, also where another block has taken its place among those of all
 * ranks: many come and go, and each rank imports what is left of the next one's, and what is not.
 */
enum { N_BLOCKS = 24 };

typedef struct told {
    unsigned char key[FERRY_KEY_BYTES];
    size_t key_bytes;
    void *base;
    bool lives;
} told;

static void make_block(rank_thread *self, ferry_transport *transport, ferry_buffer *memory,
                       told *its)
{
    expect_ok(self, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 64, memory, &self->error));
    expect_ok(self, ferry_region_export(memory->registration, its->key, sizeof its->key,
                                        &its->key_bytes, &self->error));
    its->base = memory->base;
    its->lives = true;
}

static void import_block(rank_thread *self, ferry_transport *transport, uint32_t owner,
                         const told *its)
{
    ferry_region *imported = NULL;
    ferry_status status =
        ferry_region_import(transport, its->key, its->key_bytes, &imported, &self->error);
    if (its->lives) {
        expect(self, status == FERRY_OK);
        expect(self, ferry_region_pointer(imported, owner) == its->base);
        ferry_region_free(imported);
    } else {
        expect(self, status == FERRY_ERR_MISUSE);
        expect_says(self, "its memory has been freed");
    }
}

static void run_blocks(rank_thread *self)
{
    ferry_transport *transport;
    ferry_buffer memory[N_BLOCKS];
    told own[N_BLOCKS];
    const void *all = NULL;
    uint32_t next = (self->rank + 1) % self->n_ranks;
    memset(own, 0, sizeof own);
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        if (i >= N_BLOCKS / 2) { /* one goes, and one comes */
            size_t gone = i - N_BLOCKS / 2;
            ferry_memory_free(&memory[gone]);
            own[gone].lives = false;
        }
        make_block(self, transport, &memory[i], &own[i]);
        if (self->wrong[0] != '\0') {
            return;
        }
    }
    expect_ok(self, ferry_world_all_gather(self->world, own, sizeof own, &all, &self->error));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        told its;
        memcpy(&its, (const char *)all + next * sizeof own + i * sizeof its, sizeof its);
        import_block(self, transport, next, &its);
        if (self->wrong[0] != '\0') {
            return;
        }
    }
    expect_ok(self, ferry_world_barrier(self->world, &self->error));
    for (size_t i = N_BLOCKS / 2; i < N_BLOCKS; i++) {
        ferry_memory_free(&memory[i]);
    }
    ferry_transport_close(transport);
}

static void test_blocks(void **state)
{
    (void)state;
    run_ranks(3, NULL, run_blocks, (void *)(uintptr_t) "inproc");
}

/* Memory goes whenever its owner says, before the transport's last holder does. */
static void run_holders(rank_thread *self)
{
    ferry_transport *transport;
    ferry_region *region;
    ferry_region *own;
    ferry_buffer memory[3];
    static unsigned char bytes[MOST_RANKS][64];
    ferry_buffer buffer = ferry_buffer_of(bytes[self->rank], 64);
    ferry_error *error = &self->error;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, error));
    expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 100, &region, error));
    expect_ok(self, ferry_region_register(transport, &buffer, &own, error));
    for (int i = 0; i < 3; i++) {
        expect_ok(self, ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 5000u << i * 5,
                                           &memory[i], error));
    }
    fy_transport_retain(transport);
    fy_transport_retain(transport);
    ferry_transport_close(transport);
    ferry_memory_free(&memory[1]);
    ferry_region_free(own);
    ferry_transport_close(transport);
    /* One is left: everything works as before. */
    ferry_buffer source = ferry_buffer_of(memory[0].base, 8);
    expect_ok(self, ferry_transport_put(transport, (self->rank + 1) % self->n_ranks, region, 0,
                                        &source, NULL, error));
    expect_ok(self, ferry_world_barrier(self->world, error));
    ferry_memory_free(&memory[2]);
    ferry_transport_close(transport); /* and with it memory[0] and the region */
}

static void test_holders(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    on_engines(3, run_holders);
    assert_int_equal(count_descriptors(), descriptors);
}

/* Any allocation of ferry_memory_alloc may fail, and then nothing has happened. */
static void run_scarce_memory(rank_thread *self)
{
    ferry_transport *transport;
    ferry_buffer memory;
    expect_ok(self, ferry_transport_open(self->world, self->context, &transport, &self->error));
    expect_ok(self,
              ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 3 << 20, &memory, &self->error));
    for (int64_t n_more = 0;; n_more++) {
        ferry_buffer another = ferry_buffer_of(self, 1);
        fy_alloc_fail_after(self->rank == 0 ? n_more : -1);
        ferry_status status =
            ferry_memory_alloc(transport, FERRY_MEMORY_HOST, 0, 5 << 20, &another, &self->error);
        fy_alloc_fail_after(-1);
        if (status == FERRY_OK) {
            ferry_memory_free(&another);
            break;
        }
        expect(self, status == FERRY_ERR_NO_MEMORY && another.base == self && n_more < 1000);
    }
    ferry_memory_free(&memory);
    ferry_transport_close(transport);
}

static void test_scarce_memory(void **state)
{
    (void)state;
    size_t descriptors = count_descriptors();
    on_engines(1, run_scarce_memory);
    assert_int_equal(count_descriptors(), descriptors);
}

/* Whatever was opened and closed: what the program had before, it has still. */
static struct stat output_before;

static void test_own_descriptors(void **state)
{
    struct stat output;
    (void)state;
    assert_int_equal(fstat(STDOUT_FILENO, &output), 0);
    assert_true(output.st_ino == output_before.st_ino && output.st_dev == output_before.st_dev);
}

int main(void)
{
    if (fstat(STDOUT_FILENO, &output_before) != 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_registered),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_without_memory),
        cmocka_unit_test(test_shared_pointers),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_holders),
        cmocka_unit_test(test_scarce_memory),
        cmocka_unit_test(test_agreed),
        cmocka_unit_test(test_without_descriptors),
        cmocka_unit_test(test_many_regions),
        cmocka_unit_test(test_own_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
