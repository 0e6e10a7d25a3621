/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/order.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all worlds' queues */
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;
static _Thread_local const ferry_world *entered;

static bool take(ferry_world *world, const void *queue)
{
    pthread_mutex_lock(&lock);
    const void *holder = atomic_load(&world->queue);
    bool is_free = holder == NULL || holder == queue;
    if (is_free) {
        atomic_store(&world->queue, queue);
        world->n_queued++;
    }
    pthread_mutex_unlock(&lock);
    return is_free;
}

/* Whether it was given back just now, or is soon, as the device has done all that the queue has. */
static bool is_over(const ferry_world *world)
{
    pthread_mutex_lock(&lock);
    bool is_free = world->n_queued == 0, is_watched = world->n_watched == world->n_queued;
    fy_order_end end = world->last_watched;
    pthread_mutex_unlock(&lock);
    return is_free || (is_watched && end.is_over(&end));
}

ferry_status fy_order_take(ferry_world *world, const void *queue, const char *what,
                           ferry_error *error)
{
    bool is_taken = take(world, queue);
    while (!is_taken && is_over(world)) {
        fy_order_await(world);
        is_taken = take(world, queue);
    }
    return is_taken ? FERRY_OK
                    : fy_fail(error, FERRY_ERR_MISUSE,
                              "%s: work of this world is under way on another queue: synchronize "
                              "that one first",
                              what);
}

static void give_back(ferry_world *world, bool is_watched)
{
    pthread_mutex_lock(&lock);
    world->n_watched -= is_watched;
    if (--world->n_queued == 0) {
        atomic_store(&world->queue, NULL);
        pthread_cond_broadcast(&given_back);
    }
    pthread_mutex_unlock(&lock);
}

void fy_order_give_back(ferry_world *world)
{
    give_back(world, false);
}

void fy_order_watch(ferry_world *world, const fy_order_end *end)
{
    pthread_mutex_lock(&lock);
    world->n_watched++;
    world->last_watched = *end;
    pthread_mutex_unlock(&lock);
}

void fy_order_end_watch(ferry_world *world)
{
    give_back(world, true);
}

void fy_order_enter(const ferry_world *world)
{
    entered = world;
}

void fy_order_leave(void)
{
    entered = NULL;
}

bool fy_order_is_entered(const ferry_world *world)
{
    return entered == world;
}

void fy_order_await(ferry_world *world)
{
    if (entered == world || atomic_load(&world->queue) == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    while (atomic_load(&world->queue) != NULL) {
        pthread_cond_wait(&given_back, &lock);
    }
    pthread_mutex_unlock(&lock);
}

ferry_status fy_order_refuse(ferry_world *world, const char *what, ferry_error *error)
{
    if (entered == world) {
        return FERRY_OK;
    }
    if (is_over(world)) {
        fy_order_await(world);
        return FERRY_OK;
    }
    return fy_fail(
        error, FERRY_ERR_MISUSE,
        "%s: work of this world is under way on a queue: name that queue, or synchronize "
        "it first",
        what);
}
