/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
/* Teams of ranks: they start, meet in a file, do one thing, and end. */
#include "transport_bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void member_check(const member *m, ferry_status status, const ferry_error *error)
{
    if (status != FERRY_OK) {
        fprintf(stderr, "bench_transport: rank %u: %s\n", m->rank, error->message);
        _exit(1);
    }
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_transport: %s: %s\n", what, strerror(errno));
    _exit(1);
}

void member_pin(uint32_t rank, pinning how)
{
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    CPU_ZERO(&set);
    for (long core = 0; core < n_cores; core++) {
        long own = how == PIN_ONE ? 0 : (long)rank % n_cores;
        if (how == PIN_NONE || core == own) {
            CPU_SET((size_t)core, &set);
        }
    }
    sched_setaffinity(0, sizeof set, &set); /* where that is refused, ranks run where they can */
}

void member_barrier(member *m)
{
    ferry_error error;
    member_check(m, ferry_world_barrier(m->world, &error), &error);
}

ferry_region *member_alloc(member *m, size_t bytes)
{
    ferry_region *region = NULL;
    ferry_error error;
    member_check(m, ferry_region_alloc(m->transport, FERRY_MEMORY_HOST, 0, bytes, &region, &error),
                 &error);
    return region;
}

ferry_region *member_register(member *m, void *base, size_t bytes)
{
    ferry_region *region = NULL;
    ferry_error error;
    ferry_buffer buffer = ferry_buffer_of(base, bytes);
    member_check(m, ferry_region_register(m->transport, &buffer, &region, &error), &error);
    return region;
}

void *member_map(const member *m, size_t bytes, bool huge)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail("memory");
    }
    madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(memory, (int)m->rank + 1, bytes);
    return memory;
}

void member_put(member *m, uint32_t peer, ferry_region *to, size_t offset, const void *from,
                size_t bytes)
{
    ferry_error error;
    ferry_buffer source = ferry_buffer_of(from, bytes);
    member_check(m, ferry_transport_put(m->transport, peer, to, offset, &source, NULL, &error),
                 &error);
}

void member_raise(member *m, uint32_t peer, ferry_region *to, const void *from, size_t bytes,
                  ferry_region *words, size_t offset, uint64_t value)
{
    ferry_error error;
    ferry_buffer source = ferry_buffer_of(from, bytes);
    ferry_signal signal = {
        .region = words, .offset = offset, .value = value, .op = FERRY_SIGNAL_SET};
    member_check(
        m, ferry_transport_put_signal(m->transport, peer, to, 0, &source, &signal, NULL, &error),
        &error);
}

void member_await(member *m, ferry_region *words, size_t offset, uint64_t value, uint32_t from)
{
    ferry_error error;
    member_check(m,
                 ferry_transport_wait_signal(m->transport, words, offset, FERRY_COMPARE_GE, value,
                                             from, m->bench->limit_s, NULL, NULL, &error),
                 &error);
}

void member_flush(member *m, uint32_t peer)
{
    ferry_error error;
    member_check(m, ferry_transport_flush(m->transport, peer, NULL, &error), &error);
}

/* Closing the transport frees the regions that are left. */
static void work(member *m)
{
    ferry_error error;
    if (!m->team->is_bare) {
        member_check(m, ferry_transport_open(m->world, m->team->engine, &m->transport, &error),
                     &error);
    }
    if (m->team->pinning == PIN_AFTER) {
        member_pin(m->rank, PIN_AFTER);
    }
    m->team->run(m);
    if (!m->team->is_bare) {
        member_barrier(m);
        ferry_transport_close(m->transport);
    }
    ferry_world_destroy(m->world);
}

/* ---- as processes ---- */

static void be_rank(member *m, const char *path)
{
    ferry_error error;
    ferry_world_options options = FERRY_WORLD_OPTIONS_INIT;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(m->bench->limit_s);
    if (m->team->pinning == PIN_BEFORE || m->team->pinning == PIN_ONE) {
        member_pin(m->rank, m->team->pinning);
    }
    member_check(
        m,
        ferry_world_create_from_file(path, m->rank, m->team->n_ranks, &options, &m->world, &error),
        &error);
    work(m);
    _exit(0);
}

static void end_ranks(const pid_t *ranks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ranks[i] > 0) {
            kill(ranks[i], SIGKILL);
        }
    }
}

/* The first that fails ends the others; alarms see to it that this ends. */
static bool await_ranks(pid_t *ranks, uint32_t n)
{
    bool is_good = true;
    for (uint32_t left = n; left > 0; left--) {
        int status = 0;
        pid_t ended;
        do {
            ended = waitpid(-1, &status, 0);
        } while (ended < 0 && errno == EINTR);
        for (uint32_t i = 0; i < n; i++) {
            ranks[i] = ranks[i] == ended ? 0 : ranks[i];
        }
        if (ended < 0 || status != 0) {
            if (is_good && WIFSIGNALED(status)) {
                fprintf(stderr, "bench_transport: a rank ended by signal %d\n", WTERMSIG(status));
            }
            is_good = false;
            end_ranks(ranks, n);
        }
    }
    return is_good;
}

static bool run_processes(const member *like, const char *path)
{
    pid_t ranks[MAX_RANKS] = {0};
    uint32_t n = 0;
    for (; n < like->team->n_ranks; n++) {
        ranks[n] = fork();
        if (ranks[n] == 0) {
            member own = *like;
            own.rank = n;
            be_rank(&own, path);
        }
        if (ranks[n] < 0) {
            perror("bench_transport: fork");
            end_ranks(ranks, n);
            break;
        }
    }
    return await_ranks(ranks, n) && n == like->team->n_ranks;
}

/* ---- as threads, of a process of their own ---- */

static void *be_thread(void *argument)
{
    member *m = argument;
    if (m->team->pinning == PIN_BEFORE) {
        member_pin(m->rank, PIN_BEFORE);
    }
    work(m);
    return NULL;
}

static void be_threads(const member *like)
{
    static member members[MAX_RANKS];
    static ferry_world *worlds[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    ferry_error error;
    uint32_t n = like->team->n_ranks;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(like->bench->limit_s);
    member_check(like, ferry_world_create_threads(n, NULL, worlds, &error), &error);
    for (uint32_t rank = 0; rank < n; rank++) {
        members[rank] = *like;
        members[rank].rank = rank;
        members[rank].world = worlds[rank];
        errno = pthread_create(&threads[rank], NULL, be_thread, &members[rank]);
        if (errno != 0) {
            fail("threads");
        }
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        pthread_join(threads[rank], NULL);
    }
    _exit(0);
}

static bool run_threads(const member *like)
{
    pid_t child = fork();
    if (child == 0) {
        be_threads(like);
    }
    return child > 0 && await_ranks(&child, 1);
}

const results *team_run(bench *b, const team *plan)
{
    static results *shared;
    char folder[64] = "/tmp/bench_transport.XXXXXX", path[80];
    fflush(NULL);
    if (shared == NULL) {
        void *map =
            mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        shared = map == MAP_FAILED ? NULL : map;
    }
    if (shared == NULL || mkdtemp(folder) == NULL) {
        perror("bench_transport");
        exit(1);
    }
    memset(shared, 0, sizeof *shared);
    snprintf(path, sizeof path, "%s/world", folder);
    member like = {.bench = b, .team = plan, .results = shared};
    bool is_good = plan->is_threads ? run_threads(&like) : run_processes(&like, path);
    unlink(path); /* if rank 0 could not */
    rmdir(folder);
    if (!is_good) {
        b->has_failed = true;
        printf("%s of %u ranks FAILED\n", b->part, plan->n_ranks);
    }
    return is_good ? shared : NULL;
}
