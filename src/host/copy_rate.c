/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "host/copy_rate.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/sort.h"
#include "host/copy.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST_PASSES = 1024, LEAST_PASSES = 3 };

#define MIB ((uint64_t)1 << 20)

/* What the threads of a measurement share. */
struct course {
    pthread_mutex_t starting; /* held while the threads are started */
    bool is_complete;
    pthread_barrier_t barrier;
    char *memory; /* of each thread in turn: a source, a destination */
    size_t bytes; /* of one of them */
    double seconds;
    bool is_done; /* the first thread decides, between two barriers */
    uint32_t n_passes;
    double passes[MOST_PASSES]; /* seconds of each */
};

struct copier {
    struct course *course;
    pthread_t thread;
    uint32_t index;
    uint32_t cpu;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A thread that may not move there measures where it is. */
static void pin(uint32_t cpu)
{
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    cpu_set_t *set = fy_alloc_zeroed(1, bytes);
    if (set != NULL) {
        CPU_SET_S(cpu, bytes, set);
        pthread_setaffinity_np(pthread_self(), bytes, set);
    }
    fy_free(set);
}

/* Waits until all threads are started, or one could not be. */
static bool may_begin(struct course *c)
{
    pthread_mutex_lock(&c->starting);
    bool is_complete = c->is_complete;
    pthread_mutex_unlock(&c->starting);
    return is_complete;
}

/* The memory is touched by the thread that copies it, so that it lies near. */
static void *copy_in_turns(void *argument)
{
    struct copier *copier = argument;
    struct course *c = copier->course;
    char *from = c->memory + (size_t)copier->index * 2 * c->bytes;
    char *to = from + c->bytes;
    bool leads = copier->index == 0;
    double start = 0, begin = 0;
    if (!may_begin(c)) {
        return NULL;
    }
    pin(copier->cpu);
    memset(from, 1, c->bytes);
    memset(to, 2, c->bytes);
    for (bool is_first = true;; is_first = false) {
        pthread_barrier_wait(&c->barrier);
        if (c->is_done) {
            return NULL;
        }
        if (leads) {
            begin = now();
            start = is_first ? begin : start;
        }
        fy_copy(to, from, c->bytes);
        pthread_barrier_wait(&c->barrier);
        if (leads) {
            double end = now();
            c->passes[c->n_passes++] = end - begin;
            c->is_done = c->n_passes == MOST_PASSES ||
                         (c->n_passes >= LEAST_PASSES && end - start >= c->seconds);
        }
    }
}

static ferry_status run(struct course *c, const uint32_t *cpus, uint32_t n, ferry_error *error)
{
    ferry_status status = FERRY_OK;
    uint32_t started = 0;
    sigset_t all, old;
    struct copier *copiers = fy_alloc_zeroed(n, sizeof *copiers);
    FY_TRY(fy_check_memory(copiers != NULL, "the threads that measure copies", error));
    sigfillset(&all); /* the threads have them blocked: signals are for the program's own */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&c->starting);
    for (; started < n && status == FERRY_OK; started++) {
        copiers[started] = (struct copier){.course = c, .index = started, .cpu = cpus[started]};
        int failure =
            pthread_create(&copiers[started].thread, NULL, copy_in_turns, &copiers[started]);
        if (failure != 0) {
            status = fy_fail(error, FERRY_ERR_NO_MEMORY,
                             "thread %u of %u that measures copies cannot be started: %s", started,
                             n, strerror(failure));
            break;
        }
    }
    c->is_complete = status == FERRY_OK;
    pthread_mutex_unlock(&c->starting);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (uint32_t i = 0; i < started; i++) {
        pthread_join(copiers[i].thread, NULL);
    }
    fy_free(copiers);
    return status;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ferry_status run_in_memory(struct course *c, const uint32_t *cpus, uint32_t n_cpus,
                                  ferry_error *error)
{
    size_t bytes = 2 * c->bytes * n_cpus;
    c->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->memory == MAP_FAILED) {
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "%zu bytes to measure copies with: %s", bytes,
                       strerror(errno));
    }
    madvise(c->memory, bytes, MADV_HUGEPAGE); /* only touching it gets faster */
    ferry_status status = run(c, cpus, n_cpus, error);
    munmap(c->memory, bytes);
    return status;
}

ferry_status fy_copy_rate(const uint32_t *cpus, uint32_t n_cpus, uint64_t room_bytes,
                          double seconds, double *bytes_per_s_out, ferry_error *error)
{
    uint64_t wanted = seconds >= 0.5 ? 256 * MIB : seconds >= 0.25 ? 128 * MIB : 64 * MIB;
    uint64_t bytes = fy_min(wanted, fy_min(2048 * MIB, room_bytes / 8) / n_cpus);
    if (bytes < MIB) {
        return fy_fail(
            error, FERRY_ERR_NO_MEMORY,
            "measuring copies on %u CPUs needs %llu MiB of room, and there are %llu; ask "
            "for no measurement",
            n_cpus, (unsigned long long)n_cpus * 8, (unsigned long long)(room_bytes / MIB));
    }
    struct course *c = fy_alloc_zeroed(1, sizeof *c);
    FY_TRY(fy_check_memory(c != NULL, "a measurement", error));
    c->bytes = (size_t)(bytes / MIB * MIB);
    c->seconds = seconds;
    pthread_mutex_init(&c->starting, NULL);
    pthread_barrier_init(&c->barrier, NULL, n_cpus);
    ferry_status status = run_in_memory(c, cpus, n_cpus, error);
    if (status == FERRY_OK) {
        fy_sort(c->passes, c->n_passes, sizeof *c->passes, compare_seconds);
        *bytes_per_s_out = (double)c->bytes * n_cpus / c->passes[c->n_passes / 2];
    }
    pthread_barrier_destroy(&c->barrier);
    pthread_mutex_destroy(&c->starting);
    fy_free(c);
    return status;
}
