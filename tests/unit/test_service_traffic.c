/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels when a service is scheduled: each rank's batches to rank 0, and back when they go;
 * to all ranks what does not grow with tasks, batches or pairs. All of it is counted.
 */
#include "rank_threads.h"

#include "service/prepare.h"

#include <ferry/ferry.h>

#include <stdatomic.h>
#include <stdlib.h>

ferry_status __real_fy_star_exchange(ferry_service *service, fy_talk *talks, const fy_pack *out,
                                     fy_pack *in, ferry_error *error);
ferry_status __wrap_fy_star_exchange(ferry_service *service, fy_talk *talks, const fy_pack *out,
                                     fy_pack *in, ferry_error *error);

static atomic_size_t n_gathered, n_calls;
static atomic_size_t n_to_root, n_to_rank[MOST_RANKS]; /* by the star */

/* In front of the world's table: what all ranks give to gathers and agreements. */
static const fy_world_ops *real_ops;
static fy_world_ops counting_ops;

static ferry_status count_gather(ferry_world *world, fy_collective kind, uint32_t root,
                                 const void *bytes, size_t n_bytes, const void **all_out,
                                 const size_t **lengths_out, ferry_error *error)
{
    atomic_fetch_add(&n_gathered, n_bytes);
    atomic_fetch_add(&n_calls, 1);
    return real_ops->gather(world, kind, root, bytes, n_bytes, all_out, lengths_out, error);
}

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER;

static void count_from_here(ferry_world *world)
{
    pthread_mutex_lock(&first);
    if (real_ops == NULL) { /* the same for all worlds of threads */
        real_ops = world->ops;
        counting_ops = *real_ops;
        counting_ops.gather = count_gather;
    }
    pthread_mutex_unlock(&first);
    world->ops = &counting_ops;
}

ferry_status __wrap_fy_star_exchange(ferry_service *service, fy_talk *talks, const fy_pack *out,
                                     fy_pack *in, ferry_error *error)
{
    uint32_t rank = ferry_world_rank(service->world), n = ferry_world_rank_count(service->world);
    for (uint32_t peer = 1; rank == 0 && peer < n; peer++) {
        atomic_fetch_add(&n_to_rank[peer], out[peer - 1].used);
    }
    atomic_fetch_add(&n_to_root, rank == 0 ? 0 : out[0].used);
    return __real_fy_star_exchange(service, talks, out, in, error);
}

enum { BYTES = 24000 };

typedef struct traffic {
    bool (*sends)(uint32_t from, uint32_t to, uint32_t n_ranks);
    uint32_t n_tasks;    /* that a rank sends to another one, BYTES together */
    uint64_t slot_bytes; /* 0: the default, which takes all of them */
    uint32_t paths;      /* 0: through slots */
    size_t bytes;        /* given to gathers by all ranks */
    size_t calls;
    size_t to_root; /* from all others */
    size_t to_rank[MOST_RANKS];
} traffic;

static bool to_next(uint32_t from, uint32_t to, uint32_t n_ranks)
{
    return to == (from + 1) % n_ranks;
}

static bool to_all(uint32_t from, uint32_t to, uint32_t n_ranks)
{
    (void)n_ranks;
    return from != to;
}

static bool from_rank_1(uint32_t from, uint32_t to, uint32_t n_ranks)
{
    (void)n_ranks;
    return from == 1 && to != 1;
}

static bool in_fours(uint32_t from, uint32_t to, uint32_t n_ranks)
{
    (void)n_ranks;
    return from != to && from / 4 == to / 4;
}

static bool with_rank_0(uint32_t from, uint32_t to, uint32_t n_ranks)
{
    (void)n_ranks;
    return from != to && (from == 0 || to == 0);
}

static void add_tasks(rank_thread *self, ferry_service *service, ferry_buffer *from,
                      ferry_buffer *to)
{
    const traffic *wanted = self->context;
    uint64_t size = BYTES / wanted->n_tasks;
    for (uint32_t peer = 0; peer < self->n_ranks; peer++) {
        for (uint32_t i = 0; i < wanted->n_tasks; i++) {
            if (wanted->sends(self->rank, peer, self->n_ranks)) {
                expect_ok(self, ferry_service_register_send(service, i, from, i * size, size, peer,
                                                            &self->error));
            }
            if (wanted->sends(peer, self->rank, self->n_ranks)) {
                expect_ok(self, ferry_service_register_receive(service, i, &to[peer], i * size,
                                                               size, peer, &self->error));
            }
        }
    }
}

static void work(rank_thread *self)
{
    const traffic *wanted = self->context;
    count_from_here(self->world);
    ferry_service *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    unsigned char *memory = calloc(self->n_ranks + 1, BYTES);
    ferry_buffer from = {.base = memory, .bytes = BYTES};
    ferry_buffer to[MOST_RANKS];
    options.paths = wanted->paths == 0 ? (uint32_t)FERRY_PATH_STAGED : wanted->paths;
    options.slot_bytes = wanted->slot_bytes == 0 ? options.slot_bytes : wanted->slot_bytes;
    memset(memory, (int)self->rank + 1, BYTES);
    for (uint32_t r = 0; r < self->n_ranks; r++) {
        to[r] = (ferry_buffer){.base = memory + (size_t)(r + 1) * BYTES, .bytes = BYTES};
    }
    expect_ok(self, ferry_service_create(self->world, &options, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error));
    add_tasks(self, service, &from, to);
    expect(self, self->wrong[0] == '\0');
    expect_ok(self, ferry_service_schedule(service, &self->error));
    expect_ok(self, ferry_service_run(service, NULL, &self->error));
    for (uint32_t r = 0; r < self->n_ranks; r++) {
        unsigned char came =
            wanted->sends(r, self->rank, self->n_ranks) ? (unsigned char)(r + 1) : 0;
        for (size_t b = 0; b < BYTES; b++) {
            expect(self, ((unsigned char *)to[r].base)[b] == came);
        }
    }
    ferry_service_destroy(service);
    free(memory);
}

static traffic traffic_like(uint32_t n_ranks, traffic wanted)
{
    atomic_store(&n_gathered, 0);
    atomic_store(&n_calls, 0);
    atomic_store(&n_to_root, 0);
    for (uint32_t r = 0; r < MOST_RANKS; r++) {
        atomic_store(&n_to_rank[r], 0);
    }
    run_ranks(n_ranks, NULL, work, &wanted);
    wanted.bytes = atomic_load(&n_gathered);
    wanted.calls = atomic_load(&n_calls);
    wanted.to_root = atomic_load(&n_to_root);
    for (uint32_t r = 0; r < n_ranks; r++) {
        wanted.to_rank[r] = atomic_load(&n_to_rank[r]);
    }
    assert_true(wanted.calls >= n_ranks && wanted.bytes > 0); /* something was counted */
    assert_true(wanted.to_root > 0 && wanted.to_rank[1] > 0);
    return wanted;
}

static traffic traffic_of(uint32_t n_ranks, uint32_t n_tasks)
{
    return traffic_like(n_ranks, (traffic){.sends = to_next, .n_tasks = n_tasks});
}

/* A thousand tasks that fill one batch are told to nobody but the rank that gets them. */
static void test_tasks(void **state)
{
    (void)state;
    traffic few = traffic_of(4, 2), many = traffic_of(4, 1000);
    assert_int_equal(few.calls, many.calls);
    check_at(many.bytes <= few.bytes + 4 * few.calls,
             "%zu bytes with 2 tasks a pair, %zu with 1000", few.bytes, many.bytes);
}

/* What one rank says of itself does not grow with the world, nor the number of gathers. */
static void test_ranks(void **state)
{
    (void)state;
    traffic small = traffic_of(3, 10), large = traffic_of(12, 10);
    assert_int_equal(small.calls / 3, large.calls / 12);
    check_at(large.bytes / 12 <= small.bytes / 3 + 4 * (small.calls / 3),
             "%zu bytes from each of 3 ranks, %zu from each of 12", small.bytes / 3,
             large.bytes / 12);
}

/*
 * Batches travel to rank 0 and back, a few bytes each, whoever sends them to whom; to all ranks
 * goes no more than for a ring of single batches, but that larger numbers take some bytes more.
 */
static void test_batches(void **state)
{
    enum { N = 12, SLOT = 1000, BATCHES = BYTES / SLOT, HEAD = 32, EACH = 4 };
    static const struct {
        const char *name;
        bool (*sends)(uint32_t from, uint32_t to, uint32_t n_ranks);
    } cases[] = {{"a ring", to_next},
                 {"all to all", to_all},
                 {"one to all", from_rank_1},
                 {"all to all in fours", in_fours}};
    (void)state;
    traffic ring = traffic_of(N, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        traffic t = traffic_like(
            N, (traffic){.sends = cases[i].sends, .n_tasks = BATCHES, .slot_bytes = SLOT});
        size_t all = 0;
        for (uint32_t r = 1; r < N; r++) {
            size_t n_sent = 0;
            for (uint32_t to = 0; to < N; to++) {
                n_sent += cases[i].sends(r, to, N) ? BATCHES : 0;
            }
            all += n_sent;
            check_at(t.to_rank[r] <= HEAD + EACH * n_sent,
                     "%s: rank %u has %zu batches and is sent %zu bytes", cases[i].name, r, n_sent,
                     t.to_rank[r]);
        }
        check_at(t.to_root <= N * HEAD + EACH * all, "%s: %zu batches, %zu bytes to rank 0",
                 cases[i].name, all, t.to_root);
        check_at(t.calls == ring.calls && t.bytes <= ring.bytes + 4 * ring.calls,
                 "%s: %zu bytes in %zu gathers, %zu in %zu of a ring", cases[i].name, t.bytes,
                 t.calls, ring.bytes, ring.calls);
    }
}

/* A rank with so many peers that a step of it sends several items: every byte arrives. */
static void test_many_peers(void **state)
{
    static const uint32_t paths[] = {FERRY_PATH_STAGED, FERRY_PATH_STAGED | FERRY_PATH_MAPPED};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        run_ranks(
            MOST_RANKS, NULL, work,
            &(traffic){.sends = with_rank_0, .n_tasks = 6, .slot_bytes = 4000, .paths = paths[i]});
    }
}

/*
 * Regions: what all ranks tell each other of a symmetric one does not grow with those that there
 * are or with the world, and of registered memory they tell nothing until its key is handed over.
 */
static void make_regions(rank_thread *self)
{
    enum { MOST_REGIONS = 32, REGION_BYTES = 64 };
    const uint32_t *n = self->context;
    count_from_here(self->world);
    ferry_transport *transport = NULL;
    ferry_region *symmetric[MOST_REGIONS], *registered[MOST_REGIONS];
    static unsigned char memory[MOST_RANKS][REGION_BYTES];
    ferry_buffer buffer = ferry_buffer_of(memory[self->rank], REGION_BYTES);
    unsigned char key[FERRY_KEY_BYTES];
    size_t key_bytes = 0;
    expect_ok(self, ferry_transport_open(self->world, "inproc", &transport, &self->error));
    for (uint32_t i = 0; i < *n; i++) {
        expect_ok(self, ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, REGION_BYTES,
                                           &symmetric[i], &self->error));
        expect_ok(self, ferry_region_register(transport, &buffer, &registered[i], &self->error));
        expect_ok(self,
                  ferry_region_export(registered[i], key, sizeof key, &key_bytes, &self->error));
    }
    for (uint32_t i = 0; i < *n; i++) {
        ferry_region_free(registered[i]);
        ferry_region_free(symmetric[i]);
    }
    ferry_transport_close(transport);
}

static traffic traffic_of_regions(uint32_t n_ranks, uint32_t n_regions)
{
    atomic_store(&n_gathered, 0);
    atomic_store(&n_calls, 0);
    run_ranks(n_ranks, NULL, make_regions, &n_regions);
    return (traffic){.bytes = atomic_load(&n_gathered) / n_ranks,
                     .calls = atomic_load(&n_calls) / n_ranks};
}

static void test_regions(void **state)
{
    enum { FEW = 8, MANY = 32, MOST_CALLS = 4, MOST_BYTES = 64 };
    traffic each[2];
    (void)state;
    for (int large = 0; large < 2; large++) {
        uint32_t n_ranks = large ? 12 : 3;
        traffic few = traffic_of_regions(n_ranks, FEW), many = traffic_of_regions(n_ranks, MANY);
        each[large] = (traffic){.bytes = (many.bytes - few.bytes) / (MANY - FEW),
                                .calls = (many.calls - few.calls) / (MANY - FEW)};
        check_at(each[large].calls > 0 && each[large].calls <= MOST_CALLS &&
                     each[large].bytes <= MOST_BYTES,
                 "%u ranks: %zu gathers and %zu bytes for a region", n_ranks, each[large].calls,
                 each[large].bytes);
    }
    assert_int_equal(each[0].calls, each[1].calls);
    /* An address that was told once may be a byte longer in one of the worlds. */
    check_at(each[0].bytes <= each[1].bytes + 1 && each[1].bytes <= each[0].bytes + 1,
             "%zu bytes for a region on 3 ranks, %zu on 12", each[0].bytes, each[1].bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks),   cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_batches), cmocka_unit_test(test_many_peers),
        cmocka_unit_test(test_regions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
