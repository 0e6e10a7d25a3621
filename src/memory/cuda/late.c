/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/late.h"

#include "base/alloc.h"
#include "memory/cuda/watch.h"

#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_started;
static size_t n_held; /* queues */

static _Atomic bool has_moved; /* something since it was set to false */

bool fy_cuda_is_held(fy_exec_queue *queue)
{
    return atomic_load(&queue->is_held);
}

/* Under the lock of calls. */
static void take_first(fy_exec_queue *queue)
{
    fy_cuda_late *one = queue->late;
    queue->late = one->next;
    fy_free(one);
    if (queue->late == NULL) {
        queue->last_late = &queue->late;
        atomic_store(&queue->is_held, false);
        pthread_mutex_lock(&lock);
        n_held--;
        pthread_mutex_unlock(&lock);
    }
}

/* Who calls verbs just now is not waited for: he may be held up in the driver. */
static void go_on(fy_exec_queue *queue)
{
    if (!fy_cuda_is_held(queue) || pthread_mutex_trylock(&queue->calls) != 0) {
        return;
    }
    while (queue->late != NULL) {
        const fy_cuda_late *one = queue->late;
        ferry_error why;
        if (one->perform != NULL) {
            queue->is_late = true;
            ferry_status status = one->perform(queue, one, &why);
            queue->is_late = false;
            if (status != FERRY_OK) {
                fy_cuda_remember(queue, status, &why);
            }
        } else if (!atomic_load(&queue->is_dead) && atomic_load(one->word) < one->value) {
            break;
        }
        take_first(queue);
        atomic_store(&has_moved, true);
    }
    pthread_mutex_unlock(&queue->calls);
}

static void *submit(void *context)
{
    for (uint32_t n_looks = 0;; n_looks++) {
        pthread_mutex_lock(&lock);
        while (n_held == 0) {
            pthread_cond_wait(&changed, &lock);
        }
        pthread_mutex_unlock(&lock);
        atomic_store(&has_moved, false);
        fy_cuda_each_open(go_on);
        n_looks = atomic_load(&has_moved) ? 0 : n_looks;
        fy_cuda_nap(n_looks);
    }
    return context;
}

/* Under the lock of calls. */
static ferry_status keep(fy_exec_queue *queue, const fy_cuda_late *what, size_t bytes,
                         ferry_error *error)
{
    fy_cuda_late *fresh = fy_alloc(1, bytes);
    FY_TRY(fy_check_memory(fresh != NULL, "work on a CUDA queue", error));
    memcpy(fresh, what, bytes);
    fresh->next = NULL;
    pthread_mutex_lock(&lock);
    is_started = is_started || fy_cuda_start_thread(submit, NULL);
    bool is_there = is_started;
    if (is_there && queue->late == NULL) {
        n_held++;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (!is_there) {
        fy_free(fresh);
        return fy_fail(error, FERRY_ERR_NO_MEMORY, "CUDA queues get no thread");
    }
    *queue->last_late = fresh;
    queue->last_late = &fresh->next;
    atomic_store(&queue->is_held, true);
    return FERRY_OK;
}

ferry_status fy_cuda_do(fy_exec_queue *queue, const fy_cuda_late *what, size_t bytes,
                        ferry_error *error)
{
    return queue->late == NULL ? what->perform(queue, what, error)
                               : keep(queue, what, bytes, error);
}

ferry_status fy_cuda_hold(fy_exec_queue *queue, _Atomic uint64_t *word, uint64_t value,
                          ferry_error *error)
{
    const fy_cuda_late wait = {.word = word, .value = value};
    return keep(queue, &wait, sizeof wait, error);
}
