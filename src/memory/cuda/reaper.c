/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "memory/cuda/reaper.h"

#include "base/alloc.h"
#include "memory/cuda/queue.h"
#include "memory/cuda/watch.h"

/* Memory that queues may still use, until all events have come. */
typedef struct grave {
    struct grave *next;
    int32_t device;
    CUdeviceptr given;
    void *base;
    void (*forget)(const void *base);
    CUevent *events;
    size_t n_events;
} grave;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static grave *first, **last = &first;
static bool is_started;

static void give_back(grave *one)
{
    for (size_t i = 0; i < one->n_events; i++) {
        (void)fy_cuda.cuEventDestroy(one->events[i]);
    }
    fy_free(one->events);
    one->forget(one->base);
    (void)fy_cuda.cuMemFree(one->given);
}

/* Those that cannot come any more, of a lost context, count as having come. */
static bool have_come(const grave *one)
{
    bool all = true;
    for (size_t i = 0; i < one->n_events; i++) {
        all = all && fy_cuda.cuEventQuery(one->events[i]) != CUDA_ERROR_NOT_READY;
    }
    return all;
}

static void *reap(void *context)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        while (first == NULL) {
            pthread_cond_wait(&changed, &lock);
        }
        grave *one = first;
        first = one->next;
        last = first == NULL ? &first : last;
        pthread_mutex_unlock(&lock);
        const fy_cuda_device *device;
        if (fy_cuda_enter(one->device, &device, NULL) == FERRY_OK) {
            for (uint32_t i = 0; !have_come(one); i++) {
                fy_cuda_nap(i);
            }
            give_back(one);
            fy_cuda_leave();
        }
        fy_free(one);
    }
    return context;
}

static bool hand_over(const grave *one)
{
    grave *fresh = fy_alloc_zeroed(1, sizeof *fresh);
    bool is_taken = false;
    if (fresh == NULL) {
        return false;
    }
    *fresh = *one;
    pthread_mutex_lock(&lock);
    is_started = is_started || fy_cuda_start_thread(reap, NULL);
    is_taken = is_started;
    if (is_taken) {
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

void fy_cuda_reap(int32_t number, CUdeviceptr given, void *base, void (*forget)(const void *base))
{
    const fy_cuda_device *device;
    grave one = {.device = number, .given = given, .base = base, .forget = forget};
    if (fy_cuda_enter(number, &device, NULL) != FERRY_OK) {
        return;
    }
    ferry_error why;
    ferry_status status = fy_cuda_busy(device, &one.events, &one.n_events, &why);
    if (status != FERRY_OK) {
        fy_cuda_library->log(FERRY_LOG_WARN, why.message);
    }
    if (status != FERRY_OK || one.n_events == 0 || !hand_over(&one)) {
        give_back(&one);
    }
    fy_cuda_leave();
}
