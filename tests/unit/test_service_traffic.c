/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * What a service gathers from all ranks when it is scheduled: everybody's batches, whose order is
 * everybody's, and of tasks and of pairs nothing. The gathers of the world are counted.
 */
#include "rank_threads.h"

#include <ferry/ferry.h>

#include <stdatomic.h>
#include <stdlib.h>

ferry_status __real_ferry_world_all_gather_v(ferry_world *world, const void *bytes, size_t n_bytes,
                                             const void **all_out, const size_t **lengths_out,
                                             ferry_error *error);
ferry_status __wrap_ferry_world_all_gather_v(ferry_world *world, const void *bytes, size_t n_bytes,
                                             const void **all_out, const size_t **lengths_out,
                                             ferry_error *error);

static atomic_size_t n_gathered, n_calls;

ferry_status __wrap_ferry_world_all_gather_v(ferry_world *world, const void *bytes, size_t n_bytes,
                                             const void **all_out, const size_t **lengths_out,
                                             ferry_error *error)
{
    atomic_fetch_add(&n_gathered, n_bytes);
    atomic_fetch_add(&n_calls, 1);
    return __real_ferry_world_all_gather_v(world, bytes, n_bytes, all_out, lengths_out, error);
}

enum { BYTES = 24000 };

typedef struct traffic {
    uint32_t n_tasks; /* that each rank sends to the next one, BYTES together */
    size_t   bytes;   /* given to gathers by all ranks */
    size_t   calls;
} traffic;

static void work(rank_thread *self)
{
    const traffic        *wanted  = self->context;
    ferry_service        *service = NULL;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    uint32_t              next    = (self->rank + 1) % self->n_ranks;
    uint32_t              before  = (self->rank + self->n_ranks - 1) % self->n_ranks;
    uint64_t              size    = BYTES / wanted->n_tasks;
    static unsigned char  memory[MOST_RANKS][2][BYTES];
    ferry_buffer          from = {.base = memory[self->rank][0], .bytes = BYTES};
    ferry_buffer          to   = {.base = memory[self->rank][1], .bytes = BYTES};
    options.paths              = FERRY_PATH_STAGED;
    memset(from.base, (int)self->rank + 1, BYTES);
    memset(to.base, 0, BYTES);
    expect_ok(self, ferry_service_create(self->world, &options, &service, &self->error));
    expect_ok(self, ferry_service_init(service, FERRY_LOG_OFF, &self->error));
    for (uint32_t i = 0; i < wanted->n_tasks; i++) {
        expect_ok(self, ferry_service_register_send(service, i, &from, i * size, size, next,
                                                    &self->error));
        expect_ok(self, ferry_service_register_receive(service, i, &to, i * size, size, before,
                                                       &self->error));
    }
    expect_ok(self, ferry_service_schedule(service, &self->error));
    expect_ok(self, ferry_service_run(service, &self->error));
    for (size_t b = 0; b < BYTES; b++) {
        expect(self, memory[self->rank][1][b] == before + 1);
    }
    ferry_service_destroy(service);
}

static traffic traffic_of(uint32_t n_ranks, uint32_t n_tasks)
{
    traffic wanted = {.n_tasks = n_tasks};
    atomic_store(&n_gathered, 0);
    atomic_store(&n_calls, 0);
    run_ranks(n_ranks, NULL, work, &wanted);
    wanted.bytes = atomic_load(&n_gathered);
    wanted.calls = atomic_load(&n_calls);
    assert_true(wanted.calls >= n_ranks && wanted.bytes > 0); /* something was counted */
    return wanted;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
