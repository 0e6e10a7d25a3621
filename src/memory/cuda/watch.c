/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/watch.h"

#include "base/alloc.h"
#include "memory/cuda/graph.h"

#include <sched.h>
#include <signal.h>
#include <time.h>

enum { SHORT_LOOKS = 100, NAP_NS = 20000, LOOK_NS = 5000000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows, and of all waits */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_started;
static size_t n_waits, n_jobs, n_meetings;

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

static void *watch(void *context)
{
    pthread_mutex_lock(&lock);
    for (uint32_t n_looks = 0;; n_looks++) {
        while (n_waits == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        has_opened = false;
        fy_cuda_each_open(open_gates);
        n_looks = has_opened ? 0 : n_looks;
        pthread_mutex_unlock(&lock);
        fy_cuda_nap(n_looks);
        pthread_mutex_lock(&lock);
    }
    return context;
}

/* Another thread: the driver may let it wait until a gate is open. */
static void *look_after(void *context)
{
    const struct timespec moment = {.tv_nsec = LOOK_NS};
    for (;;) {
        pthread_mutex_lock(&lock);
        while (n_jobs == 0 && n_waits == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        pthread_mutex_unlock(&lock);
        nanosleep(&moment, NULL);
        fy_cuda_look_at_all();
    }
    return context;
}

/* Under the lock. */
static bool is_there(void)
{
    is_started =
        is_started || (fy_cuda_start_thread(watch, NULL) && fy_cuda_start_thread(look_after, NULL));
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
        pthread_cond_broadcast(&changed);
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

bool fy_cuda_has_waits(fy_exec_queue *queue)
{
    pthread_mutex_lock(&lock);
    bool has = queue->waits != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

void fy_cuda_forget_waits(fy_exec_queue *queue)
{
    pthread_mutex_lock(&lock);
    while (queue->waits != NULL) {
        take_first(queue);
    }
    pthread_mutex_unlock(&lock);
}

static pthread_mutex_t gates = PTHREAD_MUTEX_INITIALIZER;

void fy_cuda_lock_gates(void)
{
    pthread_mutex_lock(&gates);
}

void fy_cuda_unlock_gates(void)
{
    pthread_mutex_unlock(&gates);
}

static bool do_kernels_meet(void)
{
    bool do_meet = false;
    for (fy_exec_queue *one = fy_cuda_first_queue(); one != NULL && !do_meet; one = one->next) {
        do_meet = atomic_load(&one->words->done) < atomic_load(&one->meets_until) &&
                  !atomic_load(&one->is_dead);
    }
    return do_meet;
}

bool fy_cuda_gates_are_open(void)
{
    pthread_mutex_lock(&lock);
    bool are_open = n_waits == 0 && n_meetings == 0;
    pthread_mutex_unlock(&lock);
    return are_open && !do_kernels_meet() && !fy_cuda_graphs_wait() && !fy_cuda_lanes_run();
}

uint64_t fy_cuda_meets_until(fy_exec_queue *queue, uint64_t mark)
{
    fy_cuda_lock_gates();
    uint64_t before = atomic_exchange(&queue->meets_until, mark);
    fy_cuda_unlock_gates();
    return before;
}

void fy_cuda_meeting_begins(void)
{
    fy_cuda_lock_gates();
    pthread_mutex_lock(&lock);
    n_meetings++;
    pthread_mutex_unlock(&lock);
    fy_cuda_unlock_gates();
}

void fy_cuda_meeting_ends(void)
{
    pthread_mutex_lock(&lock);
    n_meetings--;
    pthread_mutex_unlock(&lock);
}

void fy_cuda_job_begins(void)
{
    pthread_mutex_lock(&lock);
    if (n_jobs++ == 0 && is_there()) {
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

void fy_cuda_job_ends(void)
{
    pthread_mutex_lock(&lock);
    n_jobs--;
    pthread_mutex_unlock(&lock);
}
