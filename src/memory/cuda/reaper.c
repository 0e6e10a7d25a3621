/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/reaper.h"

#include "base/alloc.h"
#include "memory/cuda/graph.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/watch.h"

#include <time.h>

/* Memory that queues may still use. */
typedef struct grave {
    struct grave *next;
    fy_cuda_grave is;
} grave;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static grave *first, **last = &first;
static bool is_started;
enum { LOOK_NS = 10000000 };
static _Atomic uint64_t n_buried, n_given_back;

/*
 * The driver waits here for all streams, and lets others' calls wait, too: so not while one of them
 * waits at a gate of ferry's, or may begin to, as a graph that is launched. False: one does.
 */
static bool give_back(const fy_cuda_grave *one)
{
    fy_cuda_lock_gates();
    bool are_open = !fy_cuda_graphs_exist() && fy_cuda_gates_are_open();
    if (are_open && (one->may_go == NULL || one->may_go(one->base))) {
        (void)one->end(one->given);
    }
    fy_cuda_unlock_gates();
    return are_open;
}

/* They may stay as long as the process: who looks for their end need not hurry. */
static void await_graphs(void)
{
    const struct timespec moment = {.tv_nsec = LOOK_NS};
    while (fy_cuda_graphs_exist()) {
        nanosleep(&moment, NULL);
    }
}

static void *reap(void *context)
{
    for (;;) {
        const fy_cuda_device *device;
        pthread_mutex_lock(&lock);
        while (first == NULL) {
            pthread_cond_wait(&changed, &lock);
        }
        grave *one = first;
        first = one->next;
        last = first == NULL ? &first : last;
        pthread_mutex_unlock(&lock);
        if (fy_cuda_enter(one->is.device, &device, NULL) == FERRY_OK) {
            fy_cuda_await_all(device);
            for (uint32_t i = 0; !give_back(&one->is); i++) {
                await_graphs();
                fy_cuda_nap(i);
            }
            fy_cuda_leave();
        }
        fy_free(one);
        atomic_fetch_add(&n_given_back, 1);
    }
    return context;
}

static bool hand_over(const fy_cuda_grave *one)
{
    grave *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    bool is_taken = false;
    if (fresh == NULL) {
        return false;
    }
    fresh->is = *one;
    pthread_mutex_lock(&lock);
    is_started = is_started || fy_cuda_start_thread(reap, NULL);
    is_taken = is_started;
    if (is_taken) {
        atomic_fetch_add(&n_buried, 1);
        *last = fresh;
        last = &fresh->next;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (!is_taken) {
        fy_free(fresh);
    }
    return is_taken;
}

void fy_cuda_reap_later(const fy_cuda_grave *one)
{
    if (!hand_over(one)) {
        fy_cuda_library->log(FERRY_LOG_WARN, "no memory is left to give back memory of a device");
    }
}

void fy_cuda_reap(const fy_cuda_grave *one)
{
    const fy_cuda_device *device;
    if (fy_cuda_enter(one->device, &device, NULL) != FERRY_OK) {
        return;
    }
    if (!fy_cuda_is_idle(device) || !give_back(one)) {
        fy_cuda_reap_later(one);
    }
    fy_cuda_leave();
}

enum { MOST_NAPS = 50000 };

bool fy_cuda_await_reaper(void)
{
    uint64_t before = atomic_load(&n_given_back), all = atomic_load(&n_buried);
    for (uint32_t i = 0; i < MOST_NAPS && atomic_load(&n_given_back) < all; i++) {
        fy_cuda_nap(i);
    }
    return atomic_load(&n_given_back) > before;
}
