/* Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0 */
#include "world/order.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all worlds' queues */
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;
static _Thread_local const ferry_world *entered;

/* In place of a queue, where all who have the world only look on. */
static const char nobody;

static bool take(ferry_world *world, const void *queue)
{
    pthread_mutex_lock(&lock);
    const void *holder = atomic_load(&world->queue);
    bool is_free = holder == NULL || holder == queue || holder == &nobody;
    if (is_free) {
        atomic_store(&world->queue, queue);
        world->n_queued++;
    }
    pthread_mutex_unlock(&lock);
    return is_free;
}

/*
 * Whether it was given back just now, or is soon, as the device has done all that the queue has.
 * Who has joined stays until he has parted; of several that look on at different things nobody
 * knows.
 */
static bool is_over(const ferry_world *world)
{
    pthread_mutex_lock(&lock);
    bool is_free = world->n_queued == 0, is_watched = world->n_watched == world->n_queued;
    bool is_joined = world->n_joined == 1 && world->last_joined.is_over(&world->last_joined);
    bool may_be = world->n_joined == 0 || is_joined;
    bool is_alone = world->n_joined == world->n_queued;
    fy_order_end end = world->last_watched;
    pthread_mutex_unlock(&lock);
    return is_free || (is_watched && may_be && (is_alone || end.is_over(&end)));
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

typedef enum how { DONE = 0, WATCHED, JOINED } how;

static void give_back(ferry_world *world, how way)
{
    pthread_mutex_lock(&lock);
    world->n_watched -= way != DONE;
    world->n_joined -= way == JOINED;
    world->n_queued--;
    if (world->n_queued == world->n_joined) {
        atomic_store(&world->queue, world->n_queued == 0 ? NULL : &nobody);
        pthread_cond_broadcast(&given_back);
    }
    pthread_mutex_unlock(&lock);
}

void fy_order_give_back(ferry_world *world)
{
    give_back(world, DONE);
}

void fy_order_watch(ferry_world *world, const fy_order_end *end)
{
    pthread_mutex_lock(&lock);
    world->n_watched++;
    world->last_watched = *end;
    pthread_mutex_unlock(&lock);
}

void fy_order_join(ferry_world *world, const fy_order_end *end)
{
    pthread_mutex_lock(&lock);
    world->n_queued++;
    world->n_watched++;
    world->n_joined++;
    world->last_joined = *end;
    if (atomic_load(&world->queue) == NULL) {
        atomic_store(&world->queue, &nobody);
    }
    pthread_mutex_unlock(&lock);
}

void fy_order_part(ferry_world *world)
{
    give_back(world, JOINED);
}

void fy_order_end_watch(ferry_world *world)
{
    give_back(world, WATCHED);
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

void fy_order_add_onlooker(ferry_world *world, fy_order_onlooker *one)
{
    pthread_mutex_lock(&lock);
    one->next = atomic_load(&world->onlookers);
    atomic_store(&world->onlookers, one);
    pthread_mutex_unlock(&lock);
}

void fy_order_remove_onlooker(ferry_world *world, fy_order_onlooker *one)
{
    pthread_mutex_lock(&lock);
    fy_order_onlooker *before = atomic_load(&world->onlookers);
    if (before == one) {
        atomic_store(&world->onlookers, one->next);
    } else {
        while (before->next != one) {
            before = before->next;
        }
        before->next = one->next;
    }
    pthread_mutex_unlock(&lock);
}

static bool is_seen(ferry_world *world)
{
    bool is_any = false;
    pthread_mutex_lock(&lock);
    for (const fy_order_onlooker *one = atomic_load(&world->onlookers); one != NULL && !is_any;
         one = one->next) {
        is_any = one->sees(one->of);
    }
    pthread_mutex_unlock(&lock);
    return is_any;
}

ferry_status fy_order_refuse(ferry_world *world, const char *what, ferry_error *error)
{
    if (entered == world) {
        return FERRY_OK;
    }
    if (atomic_load(&world->queue) != NULL && !is_over(world)) {
        return fy_fail(error, FERRY_ERR_MISUSE,
                       "%s: work of this world is under way on a queue: name that queue, or "
                       "synchronize it first",
                       what);
    }
    fy_order_await(world);
    return !is_seen(world) ? FERRY_OK
                           : fy_fail(error, FERRY_ERR_MISUSE,
                                     "%s: work of this world is under way in a graph: synchronize "
                                     "the stream that it was launched on first",
                                     what);
}
