/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/watch.h"

#include "base/alloc.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

enum { SHORT_LOOKS = 100, NAP_NS = 20000, LOOK_NS = 5000000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows, and of all waits */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_started;
static size_t n_waits, n_jobs;

bool fy_cuda_start_thread(void *(*run)(void *context), void *context)
{
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool is_there = pthread_create(&thread, NULL, run, context) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (is_there) {
        pthread_detach(thread);
    }
    return is_there;
}

void fy_cuda_nap(uint32_t n_looks)
{
    const struct timespec moment = {.tv_nsec = NAP_NS};
    if (n_looks < SHORT_LOOKS) {
        sched_yield();
    } else {
        nanosleep(&moment, NULL);
    }
}

/* Under the lock. */
static void take_first(fy_exec_queue *queue)
{
    fy_cuda_wait *one = queue->waits;
    queue->waits = one->next;
    queue->last_wait = queue->waits == NULL ? &queue->waits : queue->last_wait;
    fy_free(one);
    n_waits--;
}

static bool has_opened; /* since it was set to false. Under the lock */

static void open_gates(fy_exec_queue *queue)
{
    while (queue->waits != NULL && atomic_load(queue->waits->word) >= queue->waits->value) {
        atomic_store(&queue->words->gate, queue->waits->number);
        take_first(queue);
        has_opened = true;
    }
}

static void look(fy_exec_queue *queue)
{
    fy_cuda_look(queue);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Waits until there is something to watch. Under the lock. */
static void sleep_while_idle(uint32_t n_looks)
{
    if (n_waits == 0 && n_jobs == 0) {
        pthread_cond_wait(&changed, &lock);
    } else if (n_waits == 0) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&changed, &lock, &until);
    } else {
        pthread_mutex_unlock(&lock);
        fy_cuda_nap(n_looks);
        pthread_mutex_lock(&lock);
    }
}

static void *watch(void *context)
{
    uint64_t looked = 0;
    uint32_t n_looks = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        has_opened = false;
        fy_cuda_each_open(open_gates);
        n_looks = has_opened ? 0 : n_looks + 1;
        bool has_jobs = n_jobs > 0 || n_waits > 0;
        if (has_jobs && now_ns() - looked > LOOK_NS) {
            pthread_mutex_unlock(&lock); /* which failing takes */
            fy_cuda_each_open(look);
            looked = now_ns();
            pthread_mutex_lock(&lock);
        }
        sleep_while_idle(n_looks);
    }
    return context;
}

/* Under the lock. */
static bool is_there(void)
{
    is_started = is_started || fy_cuda_start_thread(watch, NULL);
    return is_started;
}

ferry_status fy_cuda_watch(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                           ferry_error *error)
{
    fy_cuda_wait *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    FY_TRY(fy_check_memory(fresh != NULL, "a wait of a CUDA queue", error));
    *fresh = (fy_cuda_wait){.word = word, .value = value, .number = queue->n_gates};
    pthread_mutex_lock(&lock);
    bool is_watched = is_there();
    if (is_watched) {
        *queue->last_wait = fresh;
        queue->last_wait = &fresh->next;
        n_waits++;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (!is_watched) {
        fy_free(fresh);
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA queues get no thread");
    }
    return FERRY_OK;
}

void fy_cuda_watch_no_more(fy_exec_queue *queue)
{
    pthread_mutex_lock(&lock);
    fy_cuda_wait **link = &queue->waits;
    while (*link != NULL && (*link)->number != queue->n_gates) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        fy_free(*link);
        *link = NULL;
        queue->last_wait = link;
        n_waits--;
    }
    pthread_mutex_unlock(&lock);
}

void fy_cuda_forget_waits(fy_exec_queue *queue)
{
    pthread_mutex_lock(&lock);
    while (queue->waits != NULL) {
        take_first(queue);
    }
    pthread_mutex_unlock(&lock);
}

void fy_cuda_job_begins(void)
{
    pthread_mutex_lock(&lock);
    if (n_jobs++ == 0 && is_there()) {
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

void fy_cuda_job_ends(void)
{
    pthread_mutex_lock(&lock);
    n_jobs--;
    pthread_mutex_unlock(&lock);
}
