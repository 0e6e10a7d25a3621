/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "exec/moment.h"

#include "base/alloc.h"

#include <pthread.h>

struct ferry_event {
    pthread_mutex_t lock;
    fy_moment *moment; /* NULL: it has come */
};

ferry_status ferry_event_create(ferry_event **event_out, ferry_error *error)
{
    FY_TRY(
        fy_check_use(event_out != NULL, "ferry_event_create needs a place for the event", error));
    ferry_event *event = fy_alloc_zeroed(1, sizeof *event);
    FY_TRY(fy_check_memory(event != NULL, "an event", error));
    pthread_mutex_init(&event->lock, NULL);
    *event_out = event;
    return FERRY_OK;
}

void ferry_event_destroy(ferry_event *event)
{
    if (event != NULL) {
        fy_moment_drop(event->moment);
        pthread_mutex_destroy(&event->lock);
        fy_free(event);
    }
}

/* The event's moment, one user more. */
static fy_moment *hold_moment(ferry_event *event)
{
    pthread_mutex_lock(&event->lock);
    fy_moment *held = event->moment;
    if (held != NULL) {
        atomic_fetch_add(&held->n_users, 1);
    }
    pthread_mutex_unlock(&event->lock);
    return held;
}

static void set_moment(ferry_event *event, fy_moment *fresh)
{
    pthread_mutex_lock(&event->lock);
    fy_moment *old = event->moment;
    event->moment = fresh;
    pthread_mutex_unlock(&event->lock);
    fy_moment_drop(old);
}

ferry_status ferry_event_record(ferry_event *event, ferry_queue *handle, ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(fy_check_use(event != NULL, "ferry_event_record needs an event", error));
    FY_TRY(fy_queue_enter(handle, "ferry_event_record", &queue, error));
    ferry_status status = FERRY_OK;
    fy_moment *fresh = NULL;
    if (!fy_queue_is_host(queue)) {
        fresh = fy_alloc_zeroed(1, sizeof *fresh);
        if (fresh == NULL) {
            status = fy_fail_no_memory(error, "an event");
        } else {
            atomic_init(&fresh->n_users, 1);
            status = fy_queue_use_moment(queue, fresh, true, error);
        }
    }
    fy_queue_leave(queue);
    if (status != FERRY_OK) {
        fy_moment_drop(fresh);
        return status;
    }
    set_moment(event, fresh);
    return FERRY_OK;
}

static bool has_come(const fy_moment *one)
{
    return one == NULL || atomic_load(&one->word) != 0;
}

ferry_status ferry_event_test(ferry_event *event, bool *done_out, ferry_error *error)
{
    FY_TRY(fy_check_use(event != NULL && done_out != NULL,
                        "ferry_event_test needs an event and a place for the answer", error));
    fy_moment *held = hold_moment(event);
    *done_out = has_come(held);
    fy_moment_drop(held);
    return FERRY_OK;
}

/* Work of a queue comes before what was recorded on it meanwhile. */
static ferry_status await_moment(const fy_moment *one, const char *what, ferry_error *error)
{
    if (!has_come(one) && fy_queue_works_here(one->native)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: the event was recorded behind the work that this thread does for the "
                       "queue: it would wait for itself",
                       what);
    }
    for (uint32_t i = 0; !has_come(one); i++) {
        fy_exec_pause(i);
    }
    return FERRY_OK;
}

ferry_status ferry_event_synchronize(ferry_event *event, ferry_error *error)
{
    FY_TRY(fy_check_use(event != NULL, "ferry_event_synchronize needs an event", error));
    fy_moment *held = hold_moment(event);
    ferry_status status = await_moment(held, "ferry_event_synchronize", error);
    fy_moment_drop(held);
    return status;
}

ferry_status ferry_event_wait(ferry_event *event, ferry_queue *handle, ferry_error *error)
{
    fy_queue *queue;
    FY_TRY(fy_check_use(event != NULL, "ferry_event_wait needs an event", error));
    FY_TRY(fy_queue_enter(handle, "ferry_event_wait", &queue, error));
    fy_moment *held = hold_moment(event);
    ferry_status status =
        fy_queue_is_host(queue) ? await_moment(held, "ferry_event_wait", error) : FERRY_OK;
    if (held != NULL && !fy_queue_is_host(queue)) {
        status = fy_queue_use_moment(queue, held, false, error);
    }
    fy_moment_drop(held);
    fy_queue_leave(queue);
    return status;
}
