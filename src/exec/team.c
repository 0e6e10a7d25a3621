/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/team.h"

#include "base/alloc.h"
#include "host/copy.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

/* What waking a thread costs: who spins longer than that for work takes more than it can win. */
enum { SPIN_NS = 4000 };

/*
 * A thread takes part in a job only if it comes while there are parts left: nobody waits for one
 * that the kernel has not woken yet. The mutex guards what is not atomic.
 */
struct fy_team {
    uint32_t n_threads; /* with the caller's */
    uint32_t n_started;
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t has_work;
    pthread_cond_t is_left;
    _Atomic uint64_t n_jobs; /* that were ever begun; written under the mutex, watched without */
    _Atomic bool ends;
    bool is_open;      /* the job may be joined */
    uint32_t n_inside; /* threads in the job, without the caller's */
    uint64_t n_parts;
    void (*work)(void *context, uint64_t part);
    void *context;
    _Atomic uint64_t next; /* part; at n_parts and beyond there is none left */
};

static void take_parts(fy_team *team)
{
    uint64_t part;
    while ((part = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed)) <
           team->n_parts) {
        team->work(team->context, part);
    }
    fy_copy_fence(); /* of this thread's streaming stores; no other thread could */
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Looks for a job for a moment. */
static void spin(const fy_team *team, uint64_t n_seen)
{
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_explicit(&team->n_jobs, memory_order_relaxed) != n_seen ||
                atomic_load_explicit(&team->ends, memory_order_relaxed)) {
                return;
            }
            pause_core();
        }
    } while (now_ns() < end);
}

static void *work_until_the_end(void *argument)
{
    fy_team *team = argument;
    uint64_t n_seen = 0;
    pthread_mutex_lock(&team->mutex);
    while (!team->ends) {
        if (team->n_jobs == n_seen) {
            pthread_cond_wait(&team->has_work, &team->mutex);
            continue;
        }
        n_seen = team->n_jobs;
        if (!team->is_open) {
            continue;
        }
        team->n_inside++;
        pthread_mutex_unlock(&team->mutex);
        take_parts(team);
        pthread_mutex_lock(&team->mutex);
        team->is_open = false; /* there are no parts left */
        if (--team->n_inside == 0) {
            pthread_cond_signal(&team->is_left);
        }
        pthread_mutex_unlock(&team->mutex);
        spin(team, n_seen);
        pthread_mutex_lock(&team->mutex);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

static ferry_status start_threads(fy_team *team, ferry_error *error)
{
    sigset_t all, old;
    ferry_status status = FERRY_OK;
    sigfillset(&all); /* the threads have them blocked: signals are for the program's own */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; team->n_started + 1 < team->n_threads; team->n_started++) {
        int failure =
            pthread_create(&team->threads[team->n_started], NULL, work_until_the_end, team);
        if (failure != 0) {
            status = fy_fail(error, FERRY_ERR_NO_MEMORY,
                             "thread %u of %u that copy cannot be started: %s; ask for fewer",
                             team->n_started + 1, team->n_threads, strerror(failure));
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

ferry_status fy_team_create(uint32_t n_threads, fy_team **team_out, ferry_error *error)
{
    FY_TRY(fy_check_use(n_threads != 0, "a team has at least one thread, its caller's", error));
    fy_team *team = fy_alloc_zeroed(1, sizeof *team);
    FY_TRY(fy_check_memory(team != NULL, "a team of threads", error));
    team->n_threads = n_threads;
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->has_work, NULL);
    pthread_cond_init(&team->is_left, NULL);
    ferry_status status = FERRY_OK;
    team->threads = fy_alloc_zeroed(n_threads - 1, sizeof *team->threads);
    if (team->threads == NULL) {
        status = fy_fail_no_memory(error, "the threads of a team");
        goto out;
    }
    status = start_threads(team, error);
    if (status != FERRY_OK) {
        goto out;
    }
    *team_out = team;
    team = NULL; /* the caller owns it now */
out:
    fy_team_destroy(team);
    return status;
}

void fy_team_destroy(fy_team *team)
{
    if (team == NULL) {
        return;
    }
    pthread_mutex_lock(&team->mutex);
    team->ends = true;
    pthread_cond_broadcast(&team->has_work);
    pthread_mutex_unlock(&team->mutex);
    for (uint32_t i = 0; i < team->n_started; i++) {
        pthread_join(team->threads[i], NULL);
    }
    pthread_cond_destroy(&team->is_left);
    pthread_cond_destroy(&team->has_work);
    pthread_mutex_destroy(&team->mutex);
    fy_free(team->threads);
    fy_free(team);
}

uint32_t fy_team_size(const fy_team *team)
{
    return team->n_threads;
}

/* Wakes as many as there are parts for. */
static void open_job(fy_team *team, uint64_t n_parts, void (*work)(void *context, uint64_t part),
                     void *context)
{
    pthread_mutex_lock(&team->mutex);
    team->n_parts = n_parts;
    team->work = work;
    team->context = context;
    team->is_open = true;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&team->n_jobs, 1, memory_order_relaxed);
    if (n_parts >= team->n_threads) {
        pthread_cond_broadcast(&team->has_work);
    } else {
        for (uint64_t i = 1; i < n_parts; i++) {
            pthread_cond_signal(&team->has_work);
        }
    }
    pthread_mutex_unlock(&team->mutex);
}

void fy_team_run(fy_team *team, uint64_t n_parts, void (*work)(void *context, uint64_t part),
                 void *context)
{
    if (team->n_threads == 1 || n_parts <= 1) {
        for (uint64_t part = 0; part < n_parts; part++) {
            work(context, part);
        }
        fy_copy_fence();
        return;
    }
    open_job(team, n_parts, work, context);
    take_parts(team);
    pthread_mutex_lock(&team->mutex);
    team->is_open = false;
    while (team->n_inside > 0) {
        pthread_cond_wait(&team->is_left, &team->mutex);
    }
    pthread_mutex_unlock(&team->mutex);
}
