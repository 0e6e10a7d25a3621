/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/crew.h"

#include "base/alloc.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { TICK_NS = 100000000, MOST_CORES = 16 };

typedef struct crew {
    const fy_crew_job *job;
    _Atomic size_t next;
    _Atomic bool stops;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t n_running;
    size_t failed_part;
    ferry_status status;
    ferry_error error;
} crew;

typedef struct worker {
    crew *crew;
    uint32_t number;
    pthread_t thread;
} worker;

static void note_failure(crew *c, size_t part, ferry_status status, const ferry_error *error)
{
    pthread_mutex_lock(&c->lock);
    if (c->status == FERRY_OK || part < c->failed_part) {
        c->status = status;
        c->failed_part = part;
        c->error = *error;
    }
    pthread_mutex_unlock(&c->lock);
    atomic_store(&c->stops, true);
}

static void *run_worker(void *argument)
{
    worker *w = argument;
    crew *c = w->crew;
    while (!atomic_load(&c->stops)) {
        size_t part = atomic_fetch_add(&c->next, 1);
        if (part >= c->job->n_parts) {
            break;
        }
        ferry_error error;
        ferry_status status = c->job->work(c->job->context, w->number, part, &error);
        if (status != FERRY_OK) {
            note_failure(c, part, status, &error);
        }
    }
    pthread_mutex_lock(&c->lock);
    c->n_running--;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Until all have ended; ticks meanwhile, and once where they were quicker than that. */
static bool look_on(crew *c)
{
    struct timespec until;
    bool goes_on = true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    pthread_mutex_lock(&c->lock);
    do {
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (c->n_running > 0 && pthread_cond_timedwait(&c->ended, &c->lock, &until) == 0) {}
        pthread_mutex_unlock(&c->lock);
        if (goes_on && !c->job->tick(c->job->context)) {
            goes_on = false;
            atomic_store(&c->stops, true);
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        pthread_mutex_lock(&c->lock);
    } while (c->n_running > 0);
    pthread_mutex_unlock(&c->lock);
    return goes_on;
}

/* Signals are for the threads of the caller's program. */
static uint32_t start(crew *c, worker *workers, uint32_t n)
{
    sigset_t all, before;
    uint32_t started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->n_running = n;
    for (; started < n; started++) {
        workers[started] = (worker){.crew = c, .number = started};
        if (pthread_create(&workers[started].thread, NULL, run_worker, &workers[started]) != 0) {
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_lock(&c->lock);
    c->n_running -= n - started;
    pthread_mutex_unlock(&c->lock);
    return started;
}

ferry_status fy_crew_run(const fy_crew_job *job, ferry_error *error)
{
    crew c = {.job = job};
    uint32_t n = job->n_parts < job->n_workers ? (uint32_t)job->n_parts : job->n_workers;
    worker *workers = fy_alloc(n, sizeof *workers);
    pthread_condattr_t clock;
    FY_TRY(fy_check_memory(workers != NULL, "threads", error));
    pthread_mutex_init(&c.lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c.ended, &clock);
    uint32_t started = start(&c, workers, n);
    ferry_status status = FERRY_OK;
    if (started == 0 && n > 0) {
        status = fy_fail(error, FERRY_ERR_LIMIT,
                         "no thread could be started; is the limit of threads reached?");
    } else {
        bool goes_on = look_on(&c);
        for (uint32_t i = 0; i < started; i++) {
            pthread_join(workers[i].thread, NULL);
        }
        if (c.status != FERRY_OK) {
            status = fy_forward(error, c.status, &c.error);
        } else if (!goes_on) {
            status = fy_fail(error, FERRY_ERR_STOPPED, "was stopped before it was done");
        }
    }
    pthread_cond_destroy(&c.ended);
    pthread_condattr_destroy(&clock);
    pthread_mutex_destroy(&c.lock);
    fy_free(workers);
    return status;
}

double fy_seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint32_t fy_crew_default_size(void)
{
    cpu_set_t cores;
    /* The set is too small for the largest machines, which have more than enough. */
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : MOST_CORES;
    return n > MOST_CORES ? MOST_CORES : (uint32_t)n;
}
