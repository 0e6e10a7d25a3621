/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that fork in the middle of runs, as trainers do whose data loaders are processes. A child
 * calls everything that it inherited, destroys it and ends, by _exit or by exit: each call is
 * refused with a sentence, and the parents' runs go on and move what they should.
 */
#include "processes.h"

#include <ferry/ferry.h>

enum { RANKS = 2, ROUNDS = 12, BYTES = 3 << 20, COLUMNS = 4096 };

typedef struct objects {
    ferry_transport *transport;
    ferry_region *region;
    ferry_buffer memory;
    ferry_service *service;
    ferry_mixed_comm *comm;
    ferry_request *request; /* under way */
    unsigned char *source;
    unsigned char *target;
    float *numbers;
} objects;

static void refused(rank_process *self, const char *call, ferry_status status)
{
    if (status != FERRY_ERR_MISUSE || strstr(self->error.message, "was forked from rank") == NULL) {
        fprintf(stderr, "%s: rank %u, in a child: %s: %s: %s\n", self->row, self->rank, call,
                ferry_status_name(status), self->error.message);
        _exit(1);
    }
    self->error.message[0] = '\0';
}

#define refuse(call) refused(self, #call, call)

static void check_world(rank_process *self)
{
    ferry_world *world = self->world, *smaller = NULL;
    ferry_error *error = &self->error;
    const void *bytes;
    const size_t *lengths;
    size_t n_bytes;
    refuse(ferry_world_state(world, NULL, error));
    refuse(ferry_world_barrier(world, error));
    refuse(ferry_world_all_gather(world, "x", 1, &bytes, error));
    refuse(ferry_world_all_gather_v(world, "x", 1, &bytes, &lengths, error));
    refuse(ferry_world_broadcast(world, 0, "x", 1, &bytes, &n_bytes, error));
    refuse(ferry_world_send(world, 1 - self->rank, 1, "x", 1, error));
    refuse(ferry_world_receive(world, FERRY_ANY_RANK, 1, -1, &bytes, &n_bytes, NULL, error));
    refuse(ferry_world_shrink(world, 0, &smaller, error));
    ferry_world_abort(world, "a child's reason");
    refuse(ferry_world_state(world, NULL, error));
    so(self, ferry_world_rank(world) == self->rank && ferry_world_rank_count(world) == RANKS);
}

static void check_transport(rank_process *self, objects *all)
{
    ferry_transport *transport = all->transport, *other = NULL;
    ferry_error *error = &self->error;
    ferry_region *region = NULL;
    ferry_buffer buffer = ferry_buffer_of(all->source, 64);
    ferry_signal signal = {.region = all->region, .offset = 0, .value = 1};
    uint32_t peer = 1 - self->rank;
    refuse(ferry_transport_open(self->world, NULL, &other, error));
    refuse(ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64, &region, error));
    refuse(ferry_transport_put(transport, peer, all->region, 64, &buffer, NULL, error));
    refuse(ferry_transport_put_signal(transport, peer, all->region, 64, &buffer, &signal, NULL,
                                      error));
    refuse(ferry_transport_get(transport, peer, all->region, 64, &buffer, NULL, error));
    refuse(ferry_transport_flush(transport, FERRY_ANY_RANK, NULL, error));
    refuse(ferry_transport_progress(transport, error));
    refuse(ferry_transport_wait_signal(transport, all->region, 0, FERRY_COMPARE_GE, 1, peer, -1,
                                       NULL, NULL, error));
}

static void check_service(rank_process *self, objects *all)
{
    ferry_error *error = &self->error;
    ferry_mixed_tensor in = {ferry_buffer_of(all->numbers, COLUMNS * sizeof(float)), 1, COLUMNS};
    ferry_request *request = NULL;
    bool done = false;
    if (all->request != NULL) {
        refuse(ferry_request_test(all->request, &done, error));
        refuse(ferry_request_wait(all->request, error));
        ferry_request_cancel(all->request);
        ferry_request_destroy(all->request);
    }
    refuse(ferry_service_run(all->service, NULL, error));
    refuse(ferry_service_start(all->service, NULL, &request, error));
    refuse(ferry_service_finalize(all->service, error));
    refuse(ferry_mixed_comm_run(all->comm, FERRY_MIXED_ALL_REDUCE, &in, &in,
                                FERRY_MIXED_MODE_DEFAULT, NULL, error));
    refuse(ferry_mixed_comm_shutdown(all->comm, error));
}

static void destroy_all(rank_process *self, objects *all)
{
    ferry_mixed_comm_destroy(all->comm);
    ferry_service_destroy(all->service);
    ferry_region_free(all->region);
    ferry_memory_free(&all->memory);
    ferry_transport_close(all->transport);
    ferry_world_destroy(self->world);
}

/* round: which of the children this is. They end in different ways. */
static void be_child(rank_process *self, objects *all, uint32_t round)
{
    if (round % 4 == 3) {
        exit(0);
    }
    check_world(self);
    check_transport(self, all);
    check_service(self, all);
    if (round % 2 == 0) {
        destroy_all(self, all);
    }
    if (round % 3 == 0) {
        exit(0);
    }
    _exit(0);
}

static void fork_child(rank_process *self, objects *all, uint32_t round)
{
    int status = 0;
    pid_t child = fork();
    so(self, child >= 0);
    if (child == 0) {
        be_child(self, all, round);
    }
    so(self, waitpid(child, &status, 0) == child);
    so(self, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool open_all(rank_process *self, objects *all)
{
    ferry_error *error = &self->error;
    ferry_service_options options = FERRY_SERVICE_OPTIONS_INIT;
    ferry_mixed_comm_options mixed = FERRY_MIXED_COMM_OPTIONS_INIT;
    ferry_status status = ferry_transport_open(self->world, self->context, &all->transport, error);
    if (status == FERRY_ERR_UNSUPPORTED) {
        return false;
    }
    so(self, status == FERRY_OK);
    options.transport = all->transport;
    mixed.dtype = FERRY_F32;
    mixed.use_autotune = false;
    mixed.engines = self->context;
    all->source = calloc(1, BYTES);
    all->target = calloc(1, BYTES);
    all->numbers = calloc(COLUMNS, sizeof(float));
    so(self, ferry_region_alloc(all->transport, FERRY_MEMORY_HOST, 0, 4096, &all->region, error) ==
                 FERRY_OK);
    so(self, ferry_memory_alloc(all->transport, FERRY_MEMORY_HOST, 0, BYTES, &all->memory, error) ==
                 FERRY_OK);
    so(self, ferry_service_create(self->world, &options, &all->service, error) == FERRY_OK);
    so(self, ferry_service_init(all->service, FERRY_LOG_ERROR, error) == FERRY_OK);
    ferry_buffer source = ferry_buffer_of(all->source, BYTES);
    ferry_buffer target = ferry_buffer_of(all->target, BYTES);
    uint32_t peer = 1 - self->rank;
    so(self, ferry_service_register_send(all->service, self->rank, &source, 0, BYTES, peer,
                                         error) == FERRY_OK);
    so(self,
       ferry_service_register_receive(all->service, peer, self->rank == 0 ? &all->memory : &target,
                                      0, BYTES, peer, error) == FERRY_OK);
    so(self, ferry_service_schedule(all->service, error) == FERRY_OK);
    so(self, ferry_mixed_comm_create(self->world, &mixed, &all->comm, error) == FERRY_OK);
    return true;
}

static unsigned char byte_of(uint32_t rank, uint32_t round, size_t at)
{
    return (unsigned char)(at * 7 + rank * 101 + round * 13);
}

static void run_service(rank_process *self, objects *all, uint32_t round)
{
    for (size_t i = 0; i < BYTES; i++) {
        all->source[i] = byte_of(self->rank, round, i);
    }
    so(self, ferry_service_start(all->service, NULL, &all->request, &self->error) == FERRY_OK);
    fork_child(self, all, round);
    so(self, ferry_request_wait(all->request, &self->error) == FERRY_OK);
    ferry_request_destroy(all->request);
    all->request = NULL;
    const unsigned char *got = self->rank == 0 ? all->memory.base : all->target;
    for (size_t i = 0; i < BYTES; i++) {
        so(self, got[i] == byte_of(1 - self->rank, round, i));
    }
}

static void run_mixed(rank_process *self, objects *all, uint32_t round)
{
    for (uint32_t i = 0; i < COLUMNS; i++) {
        all->numbers[i] = (float)(i % 64 + self->rank + round);
    }
    ferry_mixed_tensor it = {ferry_buffer_of(all->numbers, COLUMNS * sizeof(float)), 1, COLUMNS};
    so(self,
       ferry_mixed_comm_start(all->comm, FERRY_MIXED_ALL_REDUCE, &it, &it, FERRY_MIXED_MODE_DEFAULT,
                              NULL, &all->request, &self->error) == FERRY_OK);
    fork_child(self, all, round);
    so(self, ferry_request_wait(all->request, &self->error) == FERRY_OK);
    ferry_request_destroy(all->request);
    all->request = NULL;
    for (uint32_t i = 0; i < COLUMNS; i++) {
        so(self, all->numbers[i] == (float)(2 * (i % 64) + 2 * round + 1));
    }
}

enum { UNSUPPORTED };

static void run(rank_process *self)
{
    objects all = {0};
    if (!open_all(self, &all)) {
        add_mark(self->shared, UNSUPPORTED);
        return;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        run_service(self, &all, round);
        run_mixed(self, &all, round);
        so(self, ferry_world_barrier(self->world, &self->error) == FERRY_OK);
    }
    so(self, ferry_mixed_comm_shutdown(all.comm, &self->error) == FERRY_OK);
    ferry_mixed_comm_destroy(all.comm);
    ferry_service_destroy(all.service);
    ferry_memory_free(&all.memory);
    ferry_region_free(all.region);
    ferry_transport_close(all.transport);
    free(all.source);
    free(all.target);
    free(all.numbers);
}

static void test_engine(const char *row, const char *engines, const char *nodes)
{
    rank_process like = patient_ranks(row, RANKS);
    processes all;
    like.options.nodes = nodes;
    like.context = engines;
    start_processes(&all, &like, run);
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* ends before its marks go */
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)all.pids[rank], &info, WEXITED | WNOWAIT), 0);
    }
    bool is_there = atomic_load(&all.shared->mark[UNSUPPORTED]) == 0;
    end_processes(row, &all, RANKS, FERRY_ANY_RANK);
    if (!is_there) {
        skip_engine(engines);
    }
}

static void test_shm(void **state)
{
    (void)state;
    test_engine("shm", "shm", NULL);
}

static void test_ucx(void **state)
{
    (void)state;
    setenv("UCX_TLS", "tcp",
           1); /* what leaves traces in memory that all share is no test of ours */
    test_engine("ucx", "ucx", "2");
}

/* Ranks that are threads: their world is forked from just the same. */
static void test_threads(void **state)
{
    (void)state;
    ferry_world *worlds[2];
    ferry_error error;
    int status = 0;
    must(ferry_world_create_threads(2, NULL, worlds, &error), &error);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool fine = ferry_world_state(worlds[1], NULL, &error) == FERRY_ERR_MISUSE &&
                    ferry_world_barrier(worlds[0], &error) == FERRY_ERR_MISUSE;
        ferry_world_destroy(worlds[0]);
        ferry_world_destroy(worlds[1]);
        /* A world of its own is another matter. */
        ferry_world *own[1];
        fine = fine && ferry_world_create_threads(1, NULL, own, &error) == FERRY_OK &&
               ferry_world_barrier(own[0], &error) == FERRY_OK;
        _exit(fine ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    must(ferry_world_state(worlds[0], NULL, &error), &error);
    ferry_world_abort(worlds[0], "nobody waits for the other to leave");
    ferry_world_destroy(worlds[0]);
    ferry_world_destroy(worlds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shm),
        cmocka_unit_test(test_ucx),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
