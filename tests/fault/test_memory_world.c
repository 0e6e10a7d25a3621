/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Worlds of threads, and a world of two processes with its memory, when memory runs out. */
#include "rank_runs.h"

#include <ferry/transport.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

/*
 * Threads
 */

static void test_creation(void **state)
{
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    (void)state;
    options.secret = "a secret that is copied";
    options.nodes = "2";
    failing_mine = true;
    for (int64_t n = 0, refused = 1; refused != 0; n++) {
        ferry_world *worlds[RUN_RANKS] = {UNTOUCHED, UNTOUCHED, UNTOUCHED};
        ferry_error error = {""};
        int64_t live = failing_live;
        failing_start(n, n % 2 == 1);
        ferry_status status = ferry_world_create_threads(RUN_RANKS, &options, worlds, &error);
        refused = failing_stop();
        check_status("creation", refused ? FERRY_ERR_NO_MEMORY : FERRY_OK, status, &error);
        check_at(refused || n > 10, "allocation %lld", (long long)n);
        for (uint32_t r = 0; r < RUN_RANKS; r++) {
            check_at(status == FERRY_OK || worlds[r] == UNTOUCHED, "rank %u", r);
        }
        /* Each would wait for the others to leave. */
        for (uint32_t r = 0; r < RUN_RANKS && status == FERRY_OK; r++) {
            ferry_world_abort(worlds[r], "it was for its creation only");
            ferry_world_destroy(worlds[r]);
        }
        check_at(failing_live == live, "allocation %lld: %lld blocks are kept", (long long)n,
                 (long long)(failing_live - live));
    }
    failing_mine = false;
}

static ferry_status collect(rank_run *self)
{
    static const unsigned char bytes[3000];
    const void *all;
    const size_t *lengths;
    size_t n_bytes;
    ferry_status status = ferry_world_barrier(self->world, &self->error);
    if (status == FERRY_OK) {
        status = ferry_world_all_gather(self->world, bytes, 100, &all, &self->error);
    }
    for (uint32_t i = 1; i < 4 && status == FERRY_OK; i++) {
        status = ferry_world_all_gather_v(self->world, bytes, 500 * i + self->rank, &all, &lengths,
                                          &self->error);
        if (status == FERRY_OK && lengths[2] != 500 * i + 2) {
            self->wrong = "a length is wrong";
        }
    }
    for (uint32_t root = 0; root < RUN_RANKS && status == FERRY_OK; root++) {
        status = ferry_world_broadcast(self->world, root, bytes, sizeof bytes, &all, &n_bytes,
                                       &self->error);
    }
    return status == FERRY_OK ? ferry_world_barrier(self->world, &self->error) : status;
}

/* Many messages to the next rank before one is taken, with two tags. */
static ferry_status talk(rank_run *self)
{
    enum { N_MESSAGES = 40 };
    static const unsigned char bytes[5000];
    uint32_t next = (self->rank + 1) % RUN_RANKS;
    uint32_t previous = (self->rank + RUN_RANKS - 1) % RUN_RANKS;
    ferry_status status = FERRY_OK;
    for (uint32_t i = 0; i < N_MESSAGES && status == FERRY_OK; i++) {
        status = ferry_world_send(self->world, next, i % 2, bytes, (size_t)100 * i, &self->error);
    }
    for (uint32_t i = 0; i < N_MESSAGES && status == FERRY_OK; i++) {
        const void *got = NULL;
        size_t n_bytes = 0;
        uint32_t tag = i < N_MESSAGES / 2 ? 1 : 0; /* these first: the others queue */
        uint32_t number = i % (N_MESSAGES / 2) * 2 + tag;
        status = ferry_world_receive(self->world, previous, tag, RUN_SECONDS, &got, &n_bytes, NULL,
                                     &self->error);
        if (status == FERRY_OK && n_bytes != (size_t)100 * number) {
            self->wrong = "a message was lost";
        }
    }
    return status == FERRY_OK ? ferry_world_barrier(self->world, &self->error) : status;
}

/* After a failure: whoever finds no memory leaves, and the others go on. */
static ferry_status shrink(rank_run *self)
{
    ferry_world *smaller = UNTOUCHED;
    if (self->rank == 0) {
        ferry_world_abort(self->world, "to see who goes on");
    }
    if (ferry_world_barrier(self->world, &self->error) != FERRY_ERR_ABORTED) {
        self->wrong = "a barrier of a world that was ended";
    }
    ferry_status status = ferry_world_shrink(self->world, 1, &smaller, &self->error);
    if (status != FERRY_OK) {
        self->wrong = smaller != UNTOUCHED ? "an output was set by a call that failed" : NULL;
        return status;
    }
    status = ferry_world_barrier(smaller, &self->error);
    if (status != FERRY_OK) {
        ferry_world_abort(smaller, self->error.message);
    }
    ferry_world_destroy(smaller);
    return status;
}

/* Whoever finds no memory is alone with it: there is a larger world on all ranks, or on none. */
static ferry_status grow(rank_run *self)
{
    ferry_world *larger = UNTOUCHED, *newcomer = UNTOUCHED;
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    options.newcomers_out = &newcomer;
    ferry_status status = ferry_world_grow(self->world, &options, &larger, &self->error);
    if (status != FERRY_OK) {
        bool set = larger != UNTOUCHED || newcomer != UNTOUCHED;
        self->wrong = set ? "an output was set by a call that failed" : NULL;
        return status;
    }
    ferry_world_abort(larger, "nobody is the newcomer");
    if (self->rank == 0) {
        ferry_world_destroy(newcomer);
    }
    ferry_world_destroy(larger);
    return ferry_world_barrier(self->world, &self->error);
}

static void test_threads(void **state)
{
    static const rank_script collecting = {.name = "collective calls", .run = collect};
    static const rank_script talking = {.name = "messages", .run = talk};
    static const rank_script shrinking = {.name = "shrink", .run = shrink, .alone = true};
    static const rank_script growing = {.name = "grow", .run = grow};
    (void)state;
    run_script(&collecting, 2);
    run_script(&talking, 30);
    run_script(&shrinking, 3);
    run_script(&growing, 3);
}

/* One thread alone, whom processes may join: none comes, and whatever fails leaves it as it was. */
static void test_alone(void **state)
{
    char path[64];
    ferry_grow_options options = FERRY_GROW_OPTIONS_INIT;
    (void)state;
    snprintf(path, sizeof path, "/tmp/ferry-memory-alone-%d", (int)getpid());
    options.path = path;
    options.join_seconds = 0.02;
    for (int64_t n = 0, refused = 1; refused != 0; n++) {
        ferry_world *world, *larger = UNTOUCHED;
        ferry_error error = {""};
        int64_t live = failing_live;
        must(ferry_world_create_threads(1, NULL, &world, &error), &error);
        failing_mine = true;
        failing_start(n, n % 2 == 1);
        ferry_status status = ferry_world_grow(world, &options, &larger, &error);
        refused = failing_stop();
        failing_mine = false;
        check_at(status != FERRY_OK && larger == UNTOUCHED && strlen(error.message) >= 10,
                 "allocation %lld: %s", (long long)n, ferry_status_name(status));
        check_at(refused || (status == FERRY_ERR_TIMEOUT && n > 10), "allocation %lld",
                 (long long)n);
        check_at(access(path, F_OK) != 0, "allocation %lld: the file is kept", (long long)n);
        must(ferry_world_barrier(world, &error), &error);
        ferry_world_destroy(world);
        check_at(failing_live == live, "allocation %lld: %lld blocks are kept", (long long)n,
                 (long long)(failing_live - live));
    }
}

/*
 * Processes
 */

enum { PAIRS = 24, CHILD_SECONDS = 150 };

/* How a process fared. */
typedef struct verdict {
    bool is_over;
    bool refused;
    bool is_late; /* it failed in its last call, which the other may have passed */
    int64_t kept;
    ferry_status status;
    ferry_error error;
} verdict;

typedef struct pair {
    verdict ranks[2];
    pid_t pids[2];
    char path[64];
    uint32_t victim;
    int64_t n;
    bool for_good;
    bool is_patient; /* waits for the other one as long as it takes */
} pair;

static ferry_status use_memory(ferry_world *world, ferry_transport *transport, uint32_t rank,
                               ferry_error *error)
{
    static const unsigned char bytes[100000];
    ferry_region *region = NULL;
    ferry_buffer source = ferry_buffer_of(bytes, sizeof bytes);
    ferry_status status =
        ferry_region_alloc(transport, FERRY_MEMORY_HOST, 0, 64 + sizeof bytes, &region, error);
    ferry_signal signal = {.region = region, .offset = 0, .value = 1};
    if (status == FERRY_OK) {
        status = ferry_transport_put_signal(transport, 1 - rank, region, 64, &source, &signal, NULL,
                                            error);
    }
    if (status == FERRY_OK) {
        status = ferry_transport_wait_signal(transport, region, 0, FERRY_COMPARE_EQ, 1, 1 - rank,
                                             CHILD_SECONDS, NULL, NULL, error);
    }
    if (status == FERRY_OK) {
        status = ferry_transport_flush(transport, 1 - rank, NULL, error);
    }
    if (status != FERRY_OK) {
        ferry_world_abort(world, error->message);
    }
    ferry_region_free(region);
    return status;
}

static ferry_status use_world(ferry_world *world, uint32_t rank, verdict *own)
{
    static const unsigned char bytes[3000];
    const void *got;
    size_t n_bytes;
    ferry_transport *transport = NULL;
    ferry_error *error = &own->error;
    ferry_status status = ferry_world_all_gather(world, bytes, sizeof bytes, &got, error);
    if (status == FERRY_OK) {
        status = ferry_world_send(world, 1 - rank, 7, bytes, sizeof bytes, error);
    }
    if (status == FERRY_OK) {
        status =
            ferry_world_receive(world, 1 - rank, 7, CHILD_SECONDS, &got, &n_bytes, NULL, error);
    }
    if (status == FERRY_OK) {
        status = ferry_transport_open(world, "shm", &transport, error);
    }
    if (status == FERRY_OK) {
        status = use_memory(world, transport, rank, error);
    }
    if (status == FERRY_OK) {
        status = ferry_world_barrier(world, error);
        own->is_late = status != FERRY_OK;
    }
    if (status != FERRY_OK) {
        ferry_world_abort(world, error->message);
    }
    ferry_transport_close(transport);
    return status;
}

static void run_process(pair *p, uint32_t rank)
{
    verdict *own = &p->ranks[rank];
    ferry_world *world = NULL;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    int64_t live = failing_live;
    options.deadline_seconds = CHILD_SECONDS / 15.0;
    /* Some fail before they can say so. */
    options.join_seconds = p->is_patient ? CHILD_SECONDS : 5;
    alarm(CHILD_SECONDS);
    if (rank == p->victim) {
        failing_start(p->n, p->for_good);
    }
    own->status = ferry_world_create_from_file(p->path, rank, 2, &options, &world, &own->error);
    if (own->status == FERRY_OK) {
        own->status = use_world(world, rank, own);
        ferry_world_destroy(world);
    }
    own->refused = failing_stop();
    own->kept = failing_live - live;
    own->is_over = true;
    _exit(0);
}

static void fork_pair(pair *p)
{
    for (uint32_t r = 0; r < 2; r++) {
        pid_t pid = fork();
        assert_int_not_equal(pid, -1);
        if (pid == 0) {
            run_process(p, r);
        }
        p->pids[r] = pid;
    }
}

static void start_pair(pair *p, const char *folder, uint32_t victim, int64_t n, bool for_good)
{
    *p = (pair){.victim = victim, .n = n, .for_good = for_good};
    snprintf(p->path, sizeof p->path, "%s/%u-%lld-%d", folder, victim, (long long)n, for_good);
    fork_pair(p);
}

static void await_pair(pair *p)
{
    for (uint32_t r = 0; r < 2; r++) {
        int how;
        assert_int_equal(waitpid(p->pids[r], &how, 0), p->pids[r]);
    }
    unlink(p->path);
}

/* Nothing was refused, and one came too late for the other, as on a busy machine: the same again,
 * without that limit. */
static void try_without_limit(pair *p)
{
    bool is_late =
        p->ranks[0].status == FERRY_ERR_TIMEOUT || p->ranks[1].status == FERRY_ERR_TIMEOUT;
    if (!p->ranks[p->victim].refused && is_late) {
        memset(p->ranks, 0, sizeof p->ranks);
        p->is_patient = true;
        fork_pair(p);
        await_pair(p);
    }
}

/* True if an allocation was refused. */
static bool end_pair(pair *p)
{
    await_pair(p);
    try_without_limit(p);
    const verdict *victim = &p->ranks[p->victim];
    bool refused = victim->refused;
    bool failed = victim->status != FERRY_OK;
    for (uint32_t r = 0; r < 2; r++) {
        const verdict *v = &p->ranks[r];
        check_at(v->is_over, "allocation %lld of process %u refused: process %u did not end",
                 (long long)p->n, p->victim, r);
        check_at(v->kept == 0, "allocation %lld of process %u refused: process %u keeps %lld",
                 (long long)p->n, p->victim, r, (long long)v->kept);
        check_at(v->status == FERRY_OK || (refused && strlen(v->error.message) >= 10),
                 "allocation %lld of process %u refused: process %u: %s", (long long)p->n,
                 p->victim, r, v->error.message);
        check_at(victim->is_late || failed == (v->status != FERRY_OK),
                 "allocation %lld of process %u refused: process %u: %s: %s", (long long)p->n,
                 p->victim, r, ferry_status_name(v->status), v->error.message);
    }
    return refused;
}

/* Pairs of processes run at once, for some of them wait for limits. */
static void test_processes(void **state)
{
    char folder[] = "/tmp/ferry-memory-XXXXXX";
    pair *pairs = mmap(NULL, PAIRS * sizeof *pairs, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(pairs != MAP_FAILED);
    assert_non_null(mkdtemp(folder));
    failing_by_thread = false; /* a rank is a process with its threads */
    for (uint32_t victim = 0; victim < 2; victim++) {
        for (int for_good = 0; for_good < 2; for_good++) {
            int64_t n = 0;
            for (bool refused = true; refused; n += PAIRS) {
                for (int64_t i = 0; i < PAIRS; i++) {
                    start_pair(&pairs[i], folder, victim, n + i, for_good == 1);
                }
                for (int64_t i = 0; i < PAIRS; i++) {
                    refused = end_pair(&pairs[i]) && refused;
                }
            }
            check_at(n > 30, "%lld allocations of process %u", (long long)n, victim);
        }
    }
    failing_by_thread = true;
    rmdir(folder);
    munmap(pairs, PAIRS * sizeof *pairs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creation),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_processes),
    };
    failing_init();
    failing_by_thread = true;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
